//! Compared with the formula in f64, its finite differences, and documents processed in pieces.

use super::*;
use crate::trial::{finite_differences, random, same_everywhere, wide64};
use ms_testing::assert_close;

const C: usize = 3;
const W: usize = 4;

fn reference(x: &[f64], w: &[f64], b: &[f64], borders: &[usize]) -> Vec<f64> {
    let mut y = vec![0.0; x.len()];
    for pair in borders.windows(2) {
        for t in pair[0]..pair[1] {
            for c in 0..C {
                let mut sum = b[c];
                for k in 0..W {
                    if t + k >= pair[0] + W - 1 {
                        sum += w[c * W + k] * x[(t + k + 1 - W) * C + c];
                    }
                }
                y[t * C + c] = sum / (1.0 + (-sum).exp());
            }
        }
    }
    y
}

#[test]
fn documents_do_not_see_each_other_and_the_gradient_is_that_of_the_formula() {
    let borders = [0usize, 5, 6, 11];
    let segments: Vec<Segment> = borders.windows(2).map(|p| Segment::of(p[0], p[1] - p[0])).collect();
    let (x, w, b) = (random::<f32>(11 * C, 1), random::<f32>(C * W, 2), random::<f32>(C, 3));
    let dy = random::<f32>(11 * C, 4);
    let call = Convolution { x: &x, w: &w, b: &b, history: &[], segments: &segments, channels: C };
    let (y, dx, dw, db) = same_everywhere("convolution", |cpu| {
        let mut y = vec![0f32; x.len()];
        forward(cpu, &mut y, &call).unwrap();
        let (mut dx, mut dw, mut db) = (vec![0f32; x.len()], vec![0f32; w.len()], vec![0f32; C]);
        backward(cpu, &mut dx, &mut dw, &mut db, &dy, &call).unwrap();
        (y, dx, dw, db)
    });
    let (x, w, b) = (wide64(&x), wide64(&w), wide64(&b));
    assert_close("y", &y, &reference(&x, &w, &b, &borders), 1e-5, 1e-6);
    let loss = |x: &[f64], w: &[f64], b: &[f64]| -> f64 {
        reference(x, w, b, &borders).iter().zip(&dy).map(|(y, d)| y * f64::from(*d)).sum()
    };
    assert_close("dx", &dx, &finite_differences(&x, |x| loss(x, &w, &b)), 1e-4, 1e-5);
    assert_close("dw", &dw, &finite_differences(&w, |w| loss(&x, w, &b)), 1e-4, 1e-5);
    assert_close("db", &db, &finite_differences(&b, |b| loss(&x, &w, b)), 1e-4, 1e-5);
}

#[test]
fn a_document_in_pieces_gives_the_same_as_in_one() {
    let (x, w) = (random::<f32>(9 * C, 1), random::<f32>(C * W, 2));
    fn call<'a>(x: &'a [f32], w: &'a [f32], history: &'a [f32], segments: &'a [Segment]) -> Convolution<'a> {
        Convolution { x, w, b: &[], history, segments, channels: C }
    }
    let mut want = vec![0f32; x.len()];
    forward(&Cpu::single(), &mut want, &call(&x, &w, &[], &[Segment::of(0, 9)])).unwrap();
    for cuts in [vec![0, 4, 9], vec![0, 1, 2, 3, 9], vec![0, 8, 9]] {
        let mut history = vec![0f32; (W - 1) * C];
        for pair in cuts.windows(2) {
            let (start, len) = (pair[0], pair[1] - pair[0]);
            let one = [Segment::of(0, len)];
            let part = &x[start * C..][..len * C];
            let mut y = vec![0f32; part.len()];
            forward(&Cpu::single(), &mut y, &call(part, &w, &history, &one)).unwrap();
            assert_eq!(y, want[start * C..][..len * C]);
            let last = last_inputs(&call(part, &w, &history, &one)).unwrap();
            history = last;
        }
    }
}

#[test]
fn documents_that_leave_a_gap_are_refused() {
    let call = Convolution {
        x: &[0.0; 9],
        w: &[0.0; 6],
        b: &[],
        history: &[],
        segments: &[Segment::of(0, 1), Segment::of(2, 1)],
        channels: 3,
    };
    let e = forward(&Cpu::single(), &mut [0.0; 9], &call).unwrap_err();
    assert!(e.to_string().contains("segment 1 starts at query token 2"), "{e}");
}
