//! The formula for one row, in f64.

/// Negative log-likelihood of `target` and its gradient with respect to the logits.
pub(super) fn loss(logits: &[f64], target: usize) -> (f64, Vec<f64>) {
    let max = logits.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x));
    let sum: f64 = logits.iter().map(|x| (x - max).exp()).sum();
    let mut gradient: Vec<f64> = logits.iter().map(|x| (x - max).exp() / sum).collect();
    gradient[target] -= 1.0;
    (max + sum.ln() - logits[target], gradient)
}
