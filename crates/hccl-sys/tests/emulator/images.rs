//! Operators of images against their formulas.

use super::scenarios::scenarios;
use crate::client::{Array, F32, call, ints, near, noise, ok, op, start, stream};
use hccl_sys::types::aclTensor;
use std::ptr::null_mut;

scenarios! {
    a_convolution_and_its_gradients_equal_the_formula
    batch_norm_equals_the_formula
}

/// A convolution of `[2,2,4,5]` by `[3,2,3,2]` with strides 1 and 2, padding 1 and 0, to `[2,3,4,2]`.
fn convolved(x: &[f64], w: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; 2 * 3 * 4 * 2];
    for (at, out) in y.iter_mut().enumerate() {
        let (n, o, r, q) = (at / 24, at / 8 % 3, at / 2 % 4, at % 2);
        for (c, i, j) in (0..12).map(|t| (t / 6, t / 2 % 3, t % 2)) {
            let (row, col) = (r + i, 2 * q + j);
            if (1..=4).contains(&row) && col < 5 {
                *out += x[((n * 2 + c) * 4 + row - 1) * 5 + col] * w[((o * 2 + c) * 3 + i) * 2 + j];
            }
        }
    }
    y
}

/// The gradient of `Σ dy · f(x)`, by central differences: exact but for rounding where f is linear.
fn gradient(f: impl Fn(&[f64]) -> Vec<f64>, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let sum = |x: &[f64]| -> f64 { f(x).iter().zip(dy).map(|(a, b)| a * b).sum() };
    let moved = |i: usize, by: f64| {
        let mut at = x.to_vec();
        at[i] += by;
        sum(&at)
    };
    (0..x.len()).map(|i| (moved(i, 1e-4) - moved(i, -1e-4)) / 2e-4).collect()
}

fn a_convolution_and_its_gradients_equal_the_formula() {
    start(0);
    let s = stream();
    let (x, w, dy) = (noise(80, 60), noise(36, 61), noise(48, 62));
    let (ax, aw) = (Array::of(&[2, 2, 4, 5], F32, &x), Array::of(&[3, 2, 3, 2], F32, &w));
    let (ag, y) = (Array::of(&[2, 3, 4, 2], F32, &dy), Array::new(&[2, 3, 4, 2], F32));
    let none: *mut aclTensor = null_mut();
    let (stride, padding, dilation, zero) = (ints(&[1, 2]), ints(&[1, 0]), ints(&[1, 1]), ints(&[0, 0]));
    ok(op!(s, products.aclnnConvolution:
        ax.tensor(), aw.tensor(), none, stride, padding, dilation, false, zero, 1, y.tensor(), 0));
    near("convolution", &y.read(s), &convolved(&x, &w), F32);
    let (dx, dw, db) =
        (Array::new(&[2, 2, 4, 5], F32), Array::new(&[3, 2, 3, 2], F32), Array::new(&[3], F32));
    let wanted = [true; 3];
    let mask = call!(meta.aclCreateBoolArray(wanted.as_ptr(), 3)).cast();
    ok(op!(s, products.aclnnConvolutionBackward:
        ag.tensor(), ax.tensor(), aw.tensor(), ints(&[3]), stride, padding, dilation, false, zero, 1, mask,
        0, dx.tensor(), dw.tensor(), db.tensor()));
    near("by x", &dx.read(s), &gradient(|x| convolved(x, &w), &x, &dy), F32);
    near("by the weight", &dw.read(s), &gradient(|w| convolved(&x, w), &w, &dy), F32);
    let sums: Vec<f64> = (0..3).map(|o| (0..48).filter(|i| i / 8 % 3 == o).map(|i| dy[i]).sum()).collect();
    near("by the bias", &db.read(s), &sums, F32);
}

fn batch_norm_equals_the_formula() {
    start(0);
    let s = stream();
    let (n, c, plane) = (3usize, 2usize, 4usize);
    let x = noise(n * c * plane, 63);
    let (ax, y) = (Array::of(&[3, 2, 2, 2], F32, &x), Array::new(&[3, 2, 2, 2], F32));
    let (w, b) = (Array::of(&[2], F32, &[1.5, -0.5]), Array::of(&[2], F32, &[0.25, 1.0]));
    let (rm, rv) = (Array::of(&[2], F32, &[0.0, 0.0]), Array::of(&[2], F32, &[1.0, 1.0]));
    let (sm, si) = (Array::new(&[2], F32), Array::new(&[2], F32));
    ok(op!(s, nn.aclnnBatchNorm:
        ax.tensor(), w.tensor(), b.tensor(), rm.tensor(), rv.tensor(), true, 0.1, 1e-5, y.tensor(),
        sm.tensor(), si.tensor()));
    let of = |ch: usize| -> Vec<f64> { (0..x.len()).filter(|i| i / plane % c == ch).map(|i| x[i]).collect() };
    let count = (n * plane) as f64;
    let mean = |ch: usize| of(ch).iter().sum::<f64>() / count;
    let var = |ch: usize| of(ch).iter().map(|v| (v - mean(ch)).powi(2)).sum::<f64>() / count;
    let (scale, shift) = ([1.5, -0.5], [0.25, 1.0]);
    let want: Vec<f64> = (0..x.len())
        .map(|i| {
            let ch = i / plane % c;
            (x[i] - mean(ch)) / (var(ch) + 1e-5).sqrt() * scale[ch] + shift[ch]
        })
        .collect();
    near("y", &y.read(s), &want, F32);
    near("running mean", &rm.read(s), &[0.1 * mean(0), 0.1 * mean(1)], F32);
    let open = count / (count - 1.0);
    near("running variance", &rv.read(s), &[0.9 + 0.1 * var(0) * open, 0.9 + 0.1 * var(1) * open], F32);
}
