//! Bits: what two modes, two runs, all layouts and two ways to the same result give.

use super::scenarios::{ranks, scalar, scenarios};
use super::{Personality, passes_in, run_in};
use crate::client::{Array, Attention, F16, F32, call, noise, ok, op, start, stream};
use std::ptr::null_mut;

scenarios! {
    a_chain_of_operators_and_a_sum_of_ranks every_layout_of_attention_gives_the_same
    an_average_is_a_sum_and_a_scale plans_of_many_shapes_do_not_meet
}

/// Lines of a run that say bits.
fn bits_of(mode: &str, seed: &str, fixed: bool) -> Vec<String> {
    let fixed = if fixed { "true" } else { "false" };
    let settings = [("CANN_EMU_MODE", mode), ("CANN_EMU_SEED", seed), ("HCCL_DETERMINISTIC", fixed)];
    let out = run_in(Personality::V91, "a_chain_of_operators_and_a_sum_of_ranks", &settings);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut lines: Vec<String> = text.lines().filter(|l| l.starts_with("bits ")).map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines.len(), 4);
    lines
}

/// With determinism asked for, neither the mode nor the run nor the seed reaches a bit; without it the order of sums does.
#[test]
fn modes_and_runs_give_the_same_bits() {
    let want = bits_of("lazy", "1", true);
    for (mode, seed) in [("lazy", "2"), ("threads", "1"), ("threads", "3"), ("eager", "4")] {
        assert_eq!(bits_of(mode, seed, true), want, "{mode} with seed {seed}");
    }
    let drawn: Vec<Vec<String>> = ["1", "2", "3", "4"].map(|seed| bits_of("lazy", seed, false)).into();
    assert!(drawn.iter().any(|d| *d != drawn[0]), "sums in four drawn orders are alike");
}

#[test]
fn two_ways_give_the_same() {
    passes_in("every_layout_of_attention_gives_the_same", &["lazy", "threads"], &[]);
    passes_in("an_average_is_a_sum_and_a_scale", &["lazy", "threads"], &[("HCCL_BUFFSIZE", "8")]);
    passes_in("plans_of_many_shapes_do_not_meet", &["lazy", "threads"], &[]);
}

fn deterministic() {
    if std::env::var("HCCL_DETERMINISTIC").is_ok_and(|v| v == "true") {
        ok(call!(rt.aclrtSetSysParamOpt(0, 1)));
        ok(call!(rt.aclrtCtxSetSysParamOpt(0, 1)));
    }
}

/// A product, a norm, an activation and a sum of four ranks; says the bits of each rank.
fn a_chain_of_operators_and_a_sum_of_ranks() {
    ranks(4, |r, comm, s| {
        deterministic();
        let (m, k, n) = (5i64, 200i64, 6i64);
        let x = Array::of(&[m, k], F32, &noise((m * k) as usize, 1 + r as u64));
        let w = Array::of(&[k, n], F32, &noise((k * n) as usize, 9));
        let (y, z) = (Array::new(&[m, n], F32), Array::new(&[m, n], F32));
        ok(op!(s, products.aclnnMm(x.tensor(), w.tensor(), y.tensor(), 0)));
        ok(op!(s, nn.aclnnSilu(y.tensor(), z.tensor())));
        ok(op!(s, math.aclnnAdd(z.tensor(), y.tensor(), scalar(0.5), z.tensor())));
        assert_eq!(call!(hccl.HcclAllReduce(z.at, z.at, (m * n) as u64, 4, 0, comm, s)), 0);
        let bits: Vec<String> = z.read(s).iter().map(|v| format!("{:08x}", (*v as f32).to_bits())).collect();
        println!("bits {r} {}", bits.join(" "));
    });
}

/// The same queries, keys and values in five layouts.
fn every_layout_of_attention_gives_the_same() {
    start(0);
    ok(call!(rt.aclrtSetSysParamOpt(0, 1)));
    ok(call!(rt.aclrtCtxSetSysParamOpt(0, 1)));
    let s = stream();
    let (b, n, t, d) = (2usize, 3usize, 5usize, 8usize);
    // In the order of BSND.
    let values: Vec<Vec<f64>> = (0..3).map(|i| Array::rounded(&noise(b * t * n * d, 30 + i), F16)).collect();
    // Where element (batch, token, head, i) stands in a layout.
    let place = |layout: &str, [i, j, h, e]: [usize; 4]| match layout {
        "SBH" => ((j * b + i) * n + h) * d + e,
        "BNSD" => ((i * n + h) * t + j) * d + e,
        _ => ((i * t + j) * n + h) * d + e,
    };
    let every = || (0..b * t * n * d).map(|at| [at / (t * n * d), at / (n * d) % t, at / d % n, at % d]);
    let mut first: Option<Vec<f64>> = None;
    for (layout, text) in
        [("BSH", c"BSH"), ("SBH", c"SBH"), ("BSND", c"BSND"), ("BNSD", c"BNSD"), ("TND", c"TND")]
    {
        let dims: Vec<usize> = match layout {
            "BSH" => vec![b, t, n * d],
            "SBH" => vec![t, b, n * d],
            "BSND" => vec![b, t, n, d],
            "BNSD" => vec![b, n, t, d],
            _ => vec![b * t, n, d],
        };
        let dims: Vec<i64> = dims.into_iter().map(|d| d as i64).collect();
        let given = |v: &Vec<f64>| {
            let mut turned = vec![0.0; v.len()];
            every().enumerate().for_each(|(from, at)| turned[place(layout, at)] = v[from]);
            Array::of(&dims, F16, &turned)
        };
        let [q, k, v] = [&values[0], &values[1], &values[2]].map(given);
        let of_statistics = match layout {
            "TND" => vec![(b * t) as i64, n as i64, 8],
            _ => vec![b as i64, n as i64, t as i64, 8],
        };
        let (max, sum) = (Array::new(&of_statistics, F32), Array::new(&of_statistics, F32));
        let out = Array::new(&dims, F16);
        let call = Attention {
            qkv: [&q, &k, &v].map(Array::tensor),
            mask: null_mut(),
            layout: text,
            heads: n as i64,
            scale: 0.35,
            mode: 0,
            statistics: [max.tensor(), sum.tensor()],
            out: out.tensor(),
        };
        let of_rows = layout == "TND";
        ok(if of_rows { call.of_rows(s, &[t as i64, 2 * t as i64]) } else { call.forward(s) });
        let got = out.read(s);
        let got: Vec<f64> = every().map(|at| got[place(layout, at)]).collect();
        assert!(got.iter().any(|v| *v != 0.0));
        let want = first.get_or_insert_with(|| got.clone());
        assert_eq!(got, *want, "{layout}");
    }
}

/// There is no operation for averages: a sum and a scale are one.
fn an_average_is_a_sum_and_a_scale() {
    ranks(4, |r, comm, s| {
        let a = Array::of(&[3], F32, &[r as f64, 2.0 * r as f64, 1.0]);
        assert_ne!(call!(hccl.HcclAllReduce(a.at, a.at, 3, 4, 4, comm, s)), 0, "an average");
        assert_eq!(call!(hccl.HcclAllReduce(a.at, a.at, 3, 4, 0, comm, s)), 0);
        let b = Array::new(&[3], F32);
        ok(op!(s, math.aclnnMuls(a.tensor(), scalar(0.25), b.tensor())));
        assert_eq!(b.read(s), [1.5, 3.0, 1.0]);
    });
}

/// Shapes that come again after others have the results of the first time: no plan is taken for another's.
fn plans_of_many_shapes_do_not_meet() {
    start(0);
    ok(call!(rt.aclrtSetSysParamOpt(0, 1)));
    ok(call!(rt.aclrtCtxSetSysParamOpt(0, 1)));
    let s = stream();
    let product = |m: i64, k: i64, n: i64| {
        let x = Array::of(&[m, k], F32, &noise((m * k) as usize, 3));
        let w = Array::of(&[k, n], F32, &noise((k * n) as usize, 4));
        let y = Array::new(&[m, n], F32);
        ok(op!(s, products.aclnnMm(x.tensor(), w.tensor(), y.tensor(), 0)));
        y
    };
    let shapes = [(2, 3, 4), (4, 3, 2), (3, 2, 4), (2, 6, 2), (7, 1, 5)];
    let alone: Vec<Vec<f64>> = shapes.iter().map(|(m, k, n)| product(*m, *k, *n).read(s)).collect();
    // All under way together, three times over.
    let under_way: Vec<Array> = shapes.iter().cycle().take(15).map(|(m, k, n)| product(*m, *k, *n)).collect();
    for (i, y) in under_way.iter().enumerate() {
        assert_eq!(y.read(s), alone[i % 5], "{:?} again", shapes[i % 5]);
    }
}
