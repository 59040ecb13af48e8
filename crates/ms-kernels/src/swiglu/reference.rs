//! The formula for one element, in f64.

/// `silu(gate) · up`.
pub(super) fn forward(gate: f64, up: f64) -> f64 {
    gate / (1.0 + (-gate).exp()) * up
}

/// Gradients of gate and up.
pub(super) fn backward(dy: f64, gate: f64, up: f64) -> (f64, f64) {
    let s = 1.0 / (1.0 + (-gate).exp());
    (dy * up * s * (1.0 + gate * (1.0 - s)), dy * gate * s)
}
