//! What numbers come out: other modes of calculation, orders of sums, garbage that must be garbage, masks that are left out.

use super::scenarios::scenarios;
use crate::client::call;
use crate::client::{
    Array, Attention, BF16, BOOL, F32, I64, ints, list, message, noise, ok, op, start, stream,
};
use hccl_sys::types::{aclTensor, aclrtStream};
use std::ffi::CStr;
use std::ptr::null_mut;

scenarios! {
    operators_that_add_atomically_have_one_order_when_asked results_are_perturbed_by_a_unit sums_are_those_of_f64
    an_index_behind_the_table_reads_ones attention_without_its_mask_attends_to_everything
    attention_is_refused_in_the_first_phase masks_of_every_form_say_the_same
}

/// Different results of so many calls, by their bits.
fn results(calls: usize, one: impl Fn() -> Vec<f64>) -> usize {
    let mut all: Vec<Vec<u64>> = (0..calls).map(|_| one().iter().map(|v| v.to_bits()).collect()).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}

/// The gradients that the published pages call not deterministic, each with sums of several terms.
fn atomics(s: aclrtStream) -> Vec<(&'static str, usize)> {
    let of = |dims: &[i64], seed| Array::of(dims, F32, &noise(dims.iter().product::<i64>() as usize, seed));
    let indices = Array::of(&[40], I64, &[1.0; 40]);
    let (grad, rstd) = (of(&[40, 6], 1), Array::of(&[40, 1], F32, &[1.0; 40]));
    let embedding = || {
        let out = Array::new(&[3, 6], F32);
        ok(op!(
            s,
            nn.aclnnEmbeddingDenseBackward(grad.tensor(), indices.tensor(), 3, u64::MAX, false, out.tensor())
        ));
        out.read(s)
    };
    let norm = || {
        let (dx, dgamma) = (Array::new(&[40, 6], F32), Array::new(&[6], F32));
        let (x, gamma) = (of(&[40, 6], 2), of(&[6], 3));
        let (dy, dx_) = (grad.tensor(), dx.tensor());
        ok(op!(s, nn.aclnnRmsNormGrad(dy, x.tensor(), rstd.tensor(), gamma.tensor(), dx_, dgamma.tensor())));
        dgamma.read(s)
    };
    let attention = || {
        let a: Vec<Array> = (0..4).map(|i| of(&[1, 1, 30, 8], 10 + i)).collect();
        attend(s, &a, c"BNSD", 1, 0, null_mut()).1
    };
    vec![
        ("EmbeddingDenseBackward", results(12, embedding)),
        ("RmsNormGrad", results(12, norm)),
        ("FlashAttentionScoreGrad", results(6, attention)),
    ]
}

fn operators_that_add_atomically_have_one_order_when_asked() {
    start(0);
    let s = stream();
    let all = |what: &str, one: bool| {
        for (name, found) in atomics(s) {
            assert_eq!(found == 1, one, "{name} has {found} results {what}");
        }
    };
    all("unless it is asked", false);
    ok(call!(rt.aclrtSetSysParamOpt(0, 1)));
    all("with the process's option alone", false);
    ok(call!(rt.aclrtCtxSetSysParamOpt(0, 1)));
    all("with both options", true);
}

/// Runs with `CANN_EMU_NUMERICS=perturb`: results move by a unit of their type at most, and some do.
fn results_are_perturbed_by_a_unit() {
    start(0);
    let s = stream();
    for (dtype, unit) in [(F32, 2f64.powi(-23)), (BF16, 2f64.powi(-7))] {
        let v = Array::rounded(&noise(500, 4), dtype);
        let (a, zero, c) =
            (Array::of(&[500], dtype, &v), Array::of(&[500], dtype, &[0.0; 500]), Array::new(&[500], dtype));
        ok(op!(s, math.aclnnAdd(a.tensor(), zero.tensor(), super::scenarios::scalar(1.0), c.tensor())));
        let moved: Vec<f64> = c.read(s).iter().zip(&v).map(|(got, v)| (got - v).abs() / v.abs()).collect();
        assert!(moved.iter().all(|m| *m <= unit), "{:?}", moved.iter().copied().fold(0.0, f64::max));
        let some = moved.iter().filter(|m| **m > 0.0).count();
        assert!((50..500).contains(&some), "{some} of 500 moved");
    }
}

/// Runs with `CANN_EMU_NUMERICS=oracle`.
fn sums_are_those_of_f64() {
    start(0);
    let s = stream();
    // In f32 the ones would be lost beside the first term.
    let mut v = vec![1.0; 1000];
    v[0] = 3e8;
    let (x, y) = (Array::of(&[1000], F32, &v), Array::new(&[1], F32));
    ok(op!(s, math.aclnnReduceSum(x.tensor(), ints(&[0]), true, F32, y.tensor())));
    assert_eq!(y.read(s), [f64::from((3e8 + 999.0) as f32)]);
}

fn an_index_behind_the_table_reads_ones() {
    start(0);
    let s = stream();
    let table = Array::of(&[2, 3], F32, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let (at, out) = (Array::of(&[3], I64, &[1.0, 2.0, 0.0]), Array::new(&[3, 3], F32));
    ok(op!(s, nn.aclnnEmbedding(table.tensor(), at.tensor(), out.tensor())));
    let got = out.read(s);
    assert_eq!((&got[..3], &got[6..]), (&[4.0, 5.0, 6.0][..], &[1.0, 2.0, 3.0][..]));
    assert!(got[3..6].iter().all(|v| v.is_nan()));
}

/// Output of attention and the gradient by its keys, in a layout.
fn attend(
    s: aclrtStream,
    a: &[Array],
    layout: &'static CStr,
    heads: i64,
    mode: i64,
    mask: *mut aclTensor,
) -> (Vec<f64>, Vec<f64>) {
    let (dims, d) = (&a[0].dims, &a[0].dims);
    let (batch, seq) = match layout.to_bytes() {
        b"BSH" | b"BSND" => (d[0], d[1]),
        b"SBH" => (d[1], d[0]),
        _ => (d[0], d[2]),
    };
    let stat = [batch, heads, seq, 8];
    let (out, max, sum) = (Array::new(dims, F32), Array::new(&stat, F32), Array::new(&stat, F32));
    let g: Vec<Array> = (0..3).map(|_| Array::new(dims, F32)).collect();
    let call = Attention {
        qkv: [&a[0], &a[1], &a[2]].map(Array::tensor),
        mask,
        layout,
        heads,
        scale: 0.3,
        mode,
        statistics: [max.tensor(), sum.tensor()],
        out: out.tensor(),
    };
    ok(call.forward(s));
    ok(call.gradient(s, a[3].tensor(), [&g[0], &g[1], &g[2]].map(Array::tensor)));
    let statistics = [max.read(s), sum.read(s)];
    for copies in statistics.iter().flat_map(|v| v.chunks(8)) {
        assert!(copies.iter().all(|v| v.to_bits() == copies[0].to_bits()), "eight copies: {copies:?}");
    }
    (out.read(s), g[1].read(s))
}

fn inputs(dims: &[i64]) -> Vec<Array> {
    let n = dims.iter().product::<i64>() as usize;
    (0..4).map(|i| Array::of(dims, F32, &noise(n, 30 + i))).collect()
}

fn attention_without_its_mask_attends_to_everything() {
    start(0);
    let s = stream();
    ok(call!(rt.aclrtSetSysParamOpt(0, 1)));
    ok(call!(rt.aclrtCtxSetSysParamOpt(0, 1)));
    let a = inputs(&[1, 2, 5, 8]);
    assert_eq!(attend(s, &a, c"BNSD", 2, 2, null_mut()), attend(s, &a, c"BNSD", 2, 0, null_mut()));
    // The operator of inference asks for it.
    let (none, text, out) =
        (null_mut::<aclTensor>(), c"BNSD".as_ptr().cast_mut(), Array::new(&[1, 2, 5, 8], F32));
    let lse = Array::none();
    let infer = |mode: i64| {
        op!(s, attention.aclnnFusedInferAttentionScore:
            a[0].tensor(), list(&[a[1].tensor()]), list(&[a[2].tensor()]), none, none, null_mut(),
            null_mut(), none, none, none, none, none, none, none, none, none, none, 2, 0.3, 65536, 65536,
            text, 2, mode, 0, 0, 0, false, out.tensor(), lse.tensor())
    };
    ok(infer(0));
    assert_eq!(infer(2), 161_002);
    let said = message();
    assert!(said.contains("2048"), "{said}");
}

fn attention_is_refused_in_the_first_phase() {
    start(0);
    let s = stream();
    let a = inputs(&[1, 2, 5, 8]);
    let small = Array::of(&[5, 5], BOOL, &[0.0; 25]);
    let wide = inputs(&[1, 1, 1, 776]);
    for (a, layout, heads, mode, mask, says) in [
        (&a, c"NDBS", 2, 0, null_mut(), "NN-14: inputLayout"),
        (&a, c"BSH", 2, 0, null_mut(), "dimensions"),
        (&a, c"BNSD", 3, 0, null_mut(), "heads"),
        (&a, c"BNSD", 0, 0, null_mut(), "heads"),
        (&wide, c"BNSD", 1, 0, null_mut(), "at most 768"),
        (&a, c"BNSD", 2, 3, small.tensor(), "2048"),
    ] {
        let (stat, out) = (Array::new(&[1, 2, 5, 8], F32), Array::new(&a[0].dims, F32));
        let call = Attention {
            qkv: [&a[0], &a[1], &a[2]].map(Array::tensor),
            mask,
            layout,
            heads,
            scale: 0.3,
            mode,
            statistics: [stat.tensor(), stat.tensor()],
            out: out.tensor(),
        };
        let code = call.forward(s);
        assert_eq!(code, 161_002, "{layout:?} {heads} {mode}: {}", message());
        let said = message();
        assert!(said.contains(says), "{said}");
    }
}

/// The compressed mask of mode 2 and whole masks of every form: one for all, one a sequence, one a head.
fn masks_of_every_form_say_the_same() {
    start(0);
    let s = stream();
    ok(call!(rt.aclrtSetSysParamOpt(0, 1)));
    ok(call!(rt.aclrtCtxSetSysParamOpt(0, 1)));
    let (b, n, t) = (2i64, 3i64, 5i64);
    let a = inputs(&[b, n, t, 8]);
    let causal = |rows: i64| -> Vec<f64> {
        (0..rows * rows).map(|i| f64::from(u8::from(i % rows > i / rows))).collect()
    };
    let compressed = Array::of(&[2048, 2048], BOOL, &causal(2048));
    let want = attend(s, &a, c"BNSD", n, 2, compressed.tensor());
    assert_ne!(want, attend(s, &a, c"BNSD", n, 0, null_mut()));
    for dims in [vec![t, t], vec![1, 1, t, t], vec![b, 1, t, t], vec![b, n, t, t]] {
        let times = (dims.iter().product::<i64>() / (t * t)) as usize;
        let mask = Array::of(&dims, BOOL, &causal(t).repeat(times));
        for mode in [0, 1] {
            assert_eq!(attend(s, &a, c"BNSD", n, mode, mask.tensor()), want, "mode {mode}, mask {dims:?}");
        }
    }
}
