//! What the formulas are made of: gradients by differences, maps along a dimension, special functions by other ways than the
//! kernels'.

/// The gradient of `Σ dy · f(x)` by central differences of the fourth order.
pub(super) fn gradient(f: impl Fn(&[f64]) -> Vec<f64>, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let sum = |x: &[f64]| -> f64 { f(x).iter().zip(dy).map(|(a, b)| a * b).sum() };
    let h = 1e-3;
    let moved = |i: usize, by: f64| {
        let mut at = x.to_vec();
        at[i] += by;
        sum(&at)
    };
    let one =
        |i| (8.0 * (moved(i, h) - moved(i, -h)) - (moved(i, 2.0 * h) - moved(i, -2.0 * h))) / (12.0 * h);
    (0..x.len()).map(one).collect()
}

/// As [`gradient`] where f is linear: exact but for rounding, whatever the kinks.
pub(super) fn transposed(f: impl Fn(&[f64]) -> Vec<f64>, n: usize, dy: &[f64]) -> Vec<f64> {
    let unit = |i: usize| -> Vec<f64> { (0..n).map(|j| f64::from(u8::from(i == j))).collect() };
    (0..n).map(|i| f(&unit(i)).iter().zip(dy).map(|(a, b)| a * b).sum()).collect()
}

/// The derivative of a function of one number.
pub(super) fn slope(f: impl Fn(f64) -> f64, x: f64) -> f64 {
    let h = 1e-3;
    (8.0 * (f(x + h) - f(x - h)) - (f(x + 2.0 * h) - f(x - 2.0 * h))) / (12.0 * h)
}

/// Each value through `f`.
pub(super) fn map(x: &[f64], f: impl Fn(f64) -> f64) -> Vec<f64> {
    x.iter().map(|v| f(*v)).collect()
}

/// Pairs of values through `f`.
pub(super) fn zip(x: &[f64], y: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    assert_eq!(x.len(), y.len());
    x.iter().zip(y).map(|(a, b)| f(*a, *b)).collect()
}

/// A truth value as a number.
pub(super) fn truth(b: bool) -> f64 {
    f64::from(u8::from(b))
}

/// Every line along a dimension through `f`; the lines may change their length.
pub(super) fn along(x: &[f64], dims: &[i64], axis: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let n = dims[axis] as usize;
    let inner: usize = dims[axis + 1..].iter().product::<i64>() as usize;
    let outer: usize = dims[..axis].iter().product::<i64>() as usize;
    let mut lines = Vec::new();
    for o in 0..outer {
        for i in 0..inner {
            lines.push(f(&(0..n).map(|k| x[(o * n + k) * inner + i]).collect::<Vec<f64>>()));
        }
    }
    let m = lines.first().map_or(0, Vec::len);
    let mut out = vec![0.0; outer * m * inner];
    for (l, line) in lines.iter().enumerate() {
        assert_eq!(line.len(), m);
        for (k, v) in line.iter().enumerate() {
            out[(l / inner * m + k) * inner + l % inner] = *v;
        }
    }
    out
}

/// Each of the last `n` dimensions in turn through `f(line, which)`; gives the new dimensions, too.
pub(super) fn along_last(
    x: &[f64],
    dims: &[i64],
    n: usize,
    f: impl Fn(&[f64], usize) -> Vec<f64>,
) -> (Vec<f64>, Vec<i64>) {
    let (mut v, mut d) = (x.to_vec(), dims.to_vec());
    for which in 0..n {
        let axis = dims.len() - n + which;
        v = along(&v, &d, axis, |line| f(line, which));
        let others: i64 = d.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, n)| n).product();
        d[axis] = v.len() as i64 / others;
    }
    (v, d)
}

/// The product of `[m,k]` and `[k,n]`.
pub(super) fn product(a: &[f64], b: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    (0..m * n).map(|i| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum()).collect()
}

/// `[m,n]` with rows and columns exchanged.
pub(super) fn transpose(a: &[f64], m: usize, n: usize) -> Vec<f64> {
    (0..m * n).map(|i| a[i % m * n + i / m]).collect()
}

/// ∫₀ˣ f by Simpson's rule.
fn integral(f: impl Fn(f64) -> f64, x: f64) -> f64 {
    let n = 2000;
    let h = x / f64::from(n);
    let weight = |i: i32| if i == 0 || i == n { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
    (0..=n).map(|i| weight(i) * f(f64::from(i) * h)).sum::<f64>() * h / 3.0
}

/// Error function: its integral.
pub(super) fn erf(x: f64) -> f64 {
    2.0 / std::f64::consts::PI.sqrt() * integral(|t| (-t * t).exp(), x)
}

/// The logarithm of Γ: Stirling's series far out, brought back by the recursion.
pub(super) fn ln_gamma(x: f64) -> f64 {
    assert!(x > 0.0);
    let y = x + 20.0;
    let series = 1.0 / (12.0 * y) - 1.0 / (360.0 * y.powi(3)) + 1.0 / (1260.0 * y.powi(5));
    let far = (y - 0.5) * y.ln() - y + 0.5 * (2.0 * std::f64::consts::PI).ln() + series;
    far - (0..20).map(|i| (x + f64::from(i)).ln()).sum::<f64>()
}

pub(super) fn sigmoid(x: f64) -> f64 {
    0.5 + 0.5 * (0.5 * x).tanh()
}

pub(super) fn softplus(x: f64) -> f64 {
    (1.0 + x.exp()).ln()
}

/// Φ, the normal distribution.
pub(super) fn phi(x: f64) -> f64 {
    0.5 + 0.5 * erf(x / std::f64::consts::SQRT_2)
}
