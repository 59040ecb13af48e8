//! The formula for one row, as plain f64 loops.

/// Output and `1/rms` of a row; `w` is the factor itself, an offset already added.
pub(super) fn forward(x: &[f64], w: &[f64], eps: f64) -> (Vec<f64>, f64) {
    let rstd = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + eps).sqrt();
    (x.iter().zip(w).map(|(x, w)| x * rstd * w).collect(), rstd)
}

/// Gradients of `x` and `w`.
pub(super) fn backward(dy: &[f64], x: &[f64], w: &[f64], eps: f64) -> (Vec<f64>, Vec<f64>) {
    let (_, r) = forward(x, w, eps);
    let n = x.len();
    let dot: f64 = (0..n).map(|h| dy[h] * w[h] * x[h]).sum();
    let dx = (0..n).map(|h| r * w[h] * dy[h] - x[h] * r * r * r / n as f64 * dot).collect();
    (dx, (0..n).map(|h| dy[h] * x[h] * r).collect())
}
