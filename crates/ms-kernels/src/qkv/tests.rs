//! Every instance against the reference, the goldens and each other.

use half::bf16;
use ms_testing::assert_close;

use super::{Packed, QkNorm, backward, forward, reference};
use crate::rope::{Rotary, tables};
use crate::trial::{finite_differences, random, same_everywhere, wide, wide64};
use crate::{Cpu, Element, Error};

const SHAPE: Packed = Packed { tokens: 150, groups: 2, heads_per_group: 3, head_dim: 20 };
const FREQUENCIES: [f32; 8] = [1.0, 0.6, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01];
const EPS: f32 = 1e-3;

fn positions() -> Vec<i32> {
    (0..SHAPE.tokens as i32).map(|t| t % 40).collect()
}

fn check<E: Element>(with_norm: bool) {
    let (cos, sin) = tables(&FREQUENCIES, 40, 1.0);
    let rotary = Rotary { cos: &cos, sin: &sin, dim: 16, interleaved: false };
    let (dim, width) = (SHAPE.head_dim, SHAPE.width());
    let qkv = random::<E>(SHAPE.tokens * width, 1);
    let dout = random::<E>(SHAPE.tokens * width, 2);
    let (wq, wk) = (random::<E>(dim, 3), random::<E>(dim, 4));
    let norm = QkNorm { q_weight: &wq, k_weight: &wk, eps: EPS };
    let norm = with_norm.then_some(&norm);
    let positions = positions();
    let what = format!("{} norm {with_norm}", E::NAME);
    let (out, dqkv, dwq, dwk) = same_everywhere(&what, |cpu| {
        let mut out = vec![E::default(); qkv.len()];
        let mut rstd = vec![0f32; if with_norm { SHAPE.tokens * SHAPE.norms() } else { 0 }];
        forward(cpu, &mut out, &mut rstd, &qkv, &SHAPE, norm, &positions, &rotary).unwrap();
        let mut dqkv = dout.clone();
        let sums = if with_norm { dim } else { 0 };
        let (mut dwq, mut dwk) = (vec![0.25f32; sums], vec![0.25f32; sums]);
        let input: &[E] = if with_norm { &qkv } else { &[] };
        backward(cpu, &mut dqkv, input, &rstd, &SHAPE, norm, &mut dwq, &mut dwk, &positions, &rotary)
            .unwrap();
        (out, dqkv, dwq, dwk)
    });
    let (rtol, atol) = if E::NAME == "f32" { (1e-4, 1e-5) } else { (2e-2, 3e-2) };
    let (wq, wk) = (wide64(&wq), wide64(&wk));
    let (mut want_dwq, mut want_dwk) = (vec![0.25f64; dim], vec![0.25f64; dim]);
    for t in 0..SHAPE.tokens {
        let angles: Vec<f64> = FREQUENCIES.iter().map(|f| f64::from(positions[t] as f32 * f)).collect();
        for slot in 0..SHAPE.groups * (SHAPE.heads_per_group + 2) {
            let at = t * width + slot * dim;
            let head = slot % (SHAPE.heads_per_group + 2);
            let (x, y, g) = (wide64(&qkv[at..at + dim]), &out[at..at + dim], wide64(&dout[at..at + dim]));
            if head > SHAPE.heads_per_group {
                assert!(y == &qkv[at..at + dim], "values are copied");
                assert!(dqkv[at..at + dim] == dout[at..at + dim], "gradients of values pass");
                continue;
            }
            let key = head == SHAPE.heads_per_group;
            let w = if key { &wk } else { &wq };
            let run = |x: &[f64], w: &[f64]| {
                reference::forward(x, with_norm.then_some((w, f64::from(EPS))), &angles)
            };
            assert_close(&what, &wide(y), &run(&x, w), rtol, atol);
            let loss = |x: &[f64], w: &[f64]| run(x, w).iter().zip(&g).map(|(a, b)| a * b).sum();
            let dx = finite_differences(&x, |x| loss(x, w));
            assert_close(&format!("{what} dx"), &wide(&dqkv[at..at + dim]), &dx, rtol, atol);
            let dw = finite_differences(w, |w| loss(&x, w));
            let sum = if key { &mut want_dwk } else { &mut want_dwq };
            sum.iter_mut().zip(dw).for_each(|(a, b)| *a += b);
        }
    }
    if with_norm {
        assert_close("dq_weight", &dwq, &want_dwq, rtol, 30.0 * atol);
        assert_close("dk_weight", &dwk, &want_dwk, rtol, 30.0 * atol);
    }
}

#[test]
fn every_instance_meets_the_formula_and_its_finite_differences() {
    for with_norm in [false, true] {
        check::<f32>(with_norm);
        check::<bf16>(with_norm);
    }
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let cpu = Cpu::single();
    let shape = Packed { tokens: 2, groups: 1, heads_per_group: 1, head_dim: 4 };
    let (cos, sin) = tables(&[1.0, 0.5], 8, 1.0);
    let rotary = Rotary { cos: &cos, sin: &sin, dim: 4, interleaved: false };
    let qkv = vec![1f32; 24];
    let mut out = qkv.clone();
    let weight = [1f32; 4];
    let norm = QkNorm { q_weight: &weight, k_weight: &weight[..3], eps: 0.0 };
    let mut call = |norm, rstd: &mut [f32], positions: &[i32]| {
        forward(&cpu, &mut out, rstd, &qkv, &shape, norm, positions, &rotary)
    };
    assert_eq!(call(None, &mut [], &[0, 7]), Ok(()));
    assert!(matches!(call(None, &mut [], &[0, 8]), Err(Error::Range { index: 1, value: 8, .. })));
    assert!(matches!(call(Some(&norm), &mut [0.0; 4], &[0, 1]), Err(Error::Shape { name: "k_weight", .. })));
    let norm = QkNorm { k_weight: &weight, ..norm };
    assert_eq!(call(Some(&norm), &mut [0.0; 4], &[0, 1]), Ok(()));
    assert!(matches!(call(Some(&norm), &mut [0.0; 3], &[0, 1]), Err(Error::Shape { name: "rstd", .. })));
}
