//! Compared with the softmax with one more column, written out.

use super::*;
use crate::Isa;

/// Softmax over two keys and a sink, written out.
#[test]
fn a_sink_joins_the_denominator() {
    let cpu = Cpu::new(2, Isa::detect()).unwrap();
    // One token, two heads of one element: scores a, b with values 1 and 3, and a token that saw no key.
    let (a, b, sink) = (0.5f64, -0.25f64, [0.75f32, -2.0]);
    let sum = a.exp() + b.exp();
    let plain = (a.exp() + 3.0 * b.exp()) / sum;
    let mut out = [plain as f32, plain as f32, 0.0, 0.0];
    let mut lse = [sum.ln() as f32, f32::NEG_INFINITY, sum.ln() as f32, f32::NEG_INFINITY];
    forward(&cpu, &mut out, &mut lse, &sink).unwrap();
    for n in 0..2 {
        let s = f64::from(sink[n]).exp();
        let want = (a.exp() + 3.0 * b.exp()) / (sum + s);
        assert!((f64::from(out[n]) - want).abs() < 1e-6);
        assert!((f64::from(lse[2 * n]) - (sum + s).ln()).abs() < 1e-6);
        assert_eq!((out[2 + n], lse[2 * n + 1]), (0.0, sink[n]));
    }
}

#[test]
fn the_gradient_is_that_of_differences() {
    let cpu = Cpu::new(1, Isa::detect()).unwrap();
    let (out, lse) = ([0.3f32, -0.7, 1.1, 0.4, 0.2, -0.9], [0.2f32, 1.5, -0.6]);
    let dout = [0.5f32, 0.25, -1.0, 2.0, -0.75, 1.25];
    let sink = 0.4f32;
    // The loss dout · out(sink); the plain outputs stay what they are.
    let loss = |s: f32| -> f64 {
        let (mut o, mut l) = (out, lse);
        forward(&cpu, &mut o, &mut l, &[s]).unwrap();
        o.iter().zip(&dout).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let (mut o, mut l, mut d) = (out, lse, [1.0f32]);
    forward(&cpu, &mut o, &mut l, &[sink]).unwrap();
    backward(&cpu, &mut d, &dout, &o, &l, &[sink]).unwrap();
    let want = (loss(sink + 1e-2) - loss(sink - 1e-2)) / 2e-2;
    assert!((f64::from(d[0] - 1.0) - want).abs() < 1e-3, "{} {want}", d[0] - 1.0);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let cpu = Cpu::new(1, Isa::detect()).unwrap();
    assert!(forward(&cpu, &mut [0.0f32; 5], &mut [0.0; 2], &[0.0; 2]).is_err());
    assert!(forward(&cpu, &mut [0.0f32; 4], &mut [0.0; 3], &[0.0; 2]).is_err());
    let short = backward(&cpu, &mut [0.0; 2], &[0.0f32; 3], &[0.0; 4], &[0.0; 2], &[0.0; 2]);
    assert!(short.is_err());
}
