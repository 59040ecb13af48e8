//! Every instance against the reference, the goldens and each other.

use half::bf16;
use ms_testing::{Golden, assert_close, golden, read_golden};

use super::{Rotary, apply, reference, tables};
use crate::trial::{cpus, random, same_everywhere, wide, wide64};
use crate::{Cpu, Error};

#[test]
fn pytorch_goldens_are_met() {
    let path = golden("ops/rope.safetensors");
    let (g, meta) = read_golden(&path);
    let inv_freq = g["inv_freq"].f32();
    let [s, b, n, d] = g["q"].shape[..] else { panic!("q has four dimensions") };
    let (cos, sin) = tables(&inv_freq, 64, 1.0);
    // Rows are (position, batch): every batch shares the position.
    let positions = |of: &dyn Fn(usize) -> i32| -> Vec<i32> { (0..s * b).map(|row| of(row / b)).collect() };
    let plain = positions(&|t| t as i32);
    let reset = g["position_ids_reset"].i64();
    let reset = positions(&|t| reset[t] as i32);
    let part: usize = (meta["rotary_percent"].parse::<f64>().unwrap() * d as f64).round() as usize;
    let partial_freq = partial_frequencies(&meta["base"], part);
    let (part_cos, part_sin) = tables(&partial_freq, 64, 1.0);
    let rotary = Rotary { cos: &cos, sin: &sin, dim: d, interleaved: false };
    let interleaved = Rotary { interleaved: true, ..rotary };
    let partial = Rotary { cos: &part_cos, sin: &part_sin, dim: part, interleaved: false };
    for cpu in cpus(&[1, 2]) {
        let run = |x: &Golden, rotary: &Rotary<'_>, positions: &[i32], inverse: bool| {
            let mut x = x.f32();
            apply(&cpu, &mut x, s * b, n, d, positions, rotary, inverse).unwrap();
            x
        };
        assert_close("half", &run(&g["q"], &rotary, &plain, false), &g["out_half"].values, 1e-5, 1e-6);
        assert_close("dq half", &run(&g["dout"], &rotary, &plain, true), &g["dq_half"].values, 1e-4, 1e-6);
        let got = run(&g["q"], &interleaved, &plain, false);
        assert_close("interleaved", &got, &g["out_interleaved"].values, 1e-5, 1e-6);
        let got = run(&g["dout"], &interleaved, &plain, true);
        assert_close("dq interleaved", &got, &g["dq_interleaved"].values, 1e-4, 1e-6);
        assert_close("reset", &run(&g["q"], &rotary, &reset, false), &g["out_half_reset"].values, 1e-5, 1e-6);
        let got = run(&g["q"], &partial, &plain, false);
        assert_close("partial", &got, &g["out_partial_half"].values, 1e-5, 1e-6);
    }
}

fn partial_frequencies(base: &str, dim: usize) -> Vec<f32> {
    let base: f64 = base.parse().unwrap();
    (0..dim / 2).map(|i| base.powf(-((2 * i) as f64) / dim as f64) as f32).collect()
}

#[test]
fn every_instance_meets_the_formula_and_the_inverse_undoes_it() {
    // Less than sixteen pairs, and two chunks of sixteen with a rest.
    for dim in [20, 72] {
        rotates_by_the_formula(700, 2, dim + 6, dim);
    }
}

fn rotates_by_the_formula(tokens: usize, heads: usize, d: usize, dim: usize) {
    let inv_freq: Vec<f32> = (0..dim / 2).map(|i| 10f32.powf(-(i as f32) / 4.0)).collect();
    let (cos, sin) = tables(&inv_freq, 1000, 1.0);
    let positions: Vec<i32> = (0..tokens as i32).map(|t| (t * 7) % 1000).collect();
    for interleaved in [false, true] {
        let rotary = Rotary { cos: &cos, sin: &sin, dim, interleaved };
        let x = random::<f32>(tokens * heads * d, 1);
        let (rotated, back) = same_everywhere("rope", |cpu| {
            let mut y = x.clone();
            apply(cpu, &mut y, tokens, heads, d, &positions, &rotary, false).unwrap();
            let rotated = y.clone();
            apply(cpu, &mut y, tokens, heads, d, &positions, &rotary, true).unwrap();
            (rotated, y)
        });
        assert_close("inverse", &back, &wide64(&x), 1e-5, 1e-6);
        let mut want = wide64(&x);
        for (i, head) in want.chunks_exact_mut(d).enumerate() {
            let position = positions[i / heads] as f32;
            let angles: Vec<f64> = inv_freq.iter().map(|f| f64::from(position * f)).collect();
            reference::rotate(head, &angles, interleaved);
        }
        assert_close("rotated", &rotated, &want, 1e-5, 1e-6);
        let narrow = random::<bf16>(tokens * heads * d, 1);
        let got = same_everywhere("rope bf16", |cpu| {
            let mut y = narrow.clone();
            apply(cpu, &mut y, tokens, heads, d, &positions, &rotary, false).unwrap();
            y
        });
        assert_close("bf16", &wide(&got), &want, 1e-2, 1e-2);
    }
}

#[test]
fn tables_scale_cosines_and_sines() {
    let (cos, sin) = tables(&[0.5, 0.25], 3, 1.5);
    let want_cos: Vec<f64> = [0.0, 0.0, 0.5, 0.25, 1.0, 0.5].iter().map(|a: &f64| 1.5 * a.cos()).collect();
    let want_sin: Vec<f64> = [0.0, 0.0, 0.5, 0.25, 1.0, 0.5].iter().map(|a: &f64| 1.5 * a.sin()).collect();
    assert_close("cos", &cos, &want_cos, 2e-7, 1e-9);
    assert_close("sin", &sin, &want_sin, 2e-7, 1e-9);
}

#[test]
fn a_position_outside_the_tables_is_an_error() {
    let (cos, sin) = tables(&[1.0], 4, 1.0);
    let rotary = Rotary { cos: &cos, sin: &sin, dim: 2, interleaved: false };
    let cpu = Cpu::single();
    let mut x = vec![0f32; 4];
    let error = apply(&cpu, &mut x, 2, 1, 2, &[3, 4], &rotary, false).unwrap_err();
    assert_eq!(error, Error::Range { op: "rope::apply", name: "positions", index: 1, value: 4, limit: 4 });
    assert!(apply(&cpu, &mut x, 2, 1, 2, &[0, -1], &rotary, false).is_err());
    assert!(apply(&cpu, &mut x, 2, 1, 2, &[0], &rotary, false).is_err());
    let odd = Rotary { dim: 3, ..rotary };
    assert!(matches!(apply(&cpu, &mut x, 2, 1, 2, &[0, 0], &odd, false), Err(Error::Size { .. })));
}
