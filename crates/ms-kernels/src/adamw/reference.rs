//! The formula for one element, in f64.

use super::Hyper;

/// Updates weight, first and second moment with gradient `g`.
pub(super) fn step(p: &mut f64, m: &mut f64, v: &mut f64, g: f64, h: &Hyper) {
    *m = h.beta1 * *m + (1.0 - h.beta1) * g;
    *v = h.beta2 * *v + (1.0 - h.beta2) * g * g;
    let t = i32::try_from(h.step).expect("tests take few steps");
    let (mh, vh) = (*m / (1.0 - h.beta1.powi(t)), *v / (1.0 - h.beta2.powi(t)));
    *p = *p * (1.0 - h.lr * h.weight_decay) - h.lr * mh / (vh.sqrt() + h.eps);
}
