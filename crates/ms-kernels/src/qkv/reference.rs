//! The formula for one head, in f64: norm, then rotation.

/// `w · x / rms(x)`, or `x` without weights; then pairs `(i, i + half)` rotated by `angles[i]`.
pub(super) fn forward(x: &[f64], norm: Option<(&[f64], f64)>, angles: &[f64]) -> Vec<f64> {
    let mut y = match norm {
        None => x.to_vec(),
        Some((w, eps)) => {
            let r = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + eps).sqrt();
            x.iter().zip(w).map(|(x, w)| x * r * w).collect()
        }
    };
    let half = angles.len();
    for (i, angle) in angles.iter().enumerate() {
        let (a, b) = (y[i], y[i + half]);
        y[i] = a * angle.cos() - b * angle.sin();
        y[i + half] = b * angle.cos() + a * angle.sin();
    }
    y
}
