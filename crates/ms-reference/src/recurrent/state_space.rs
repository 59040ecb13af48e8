//! The selective state space of Mamba-2.

use crate::tape::{Real, dot};
use ms_core::{Segment, StateSpace};

/// Operands of a scan: `[x, b, c, dt]` of tokens and `[a_log, d, dt_bias]` of heads.
pub(super) struct Scan<'a, R> {
    pub(super) inputs: [&'a [R]; 4],
    pub(super) weights: [&'a [R]; 3],
    pub(super) segments: &'a [Segment],
    pub(super) shape: StateSpace,
}

/// `h_t = exp(−e^{a_log} Δ_t) h_{t−1} + Δ_t x_t ⊗ B_t`, `y_t = h_t C_t + D x_t`, `Δ_t = softplus(dt_t + dt_bias)` within its
/// limits; `states[D,N,P,S]` is read and replaced.
pub(super) fn scan<R: Real>(s: &Scan<'_, R>, mut states: Option<&mut [R]>) -> Vec<R> {
    let StateSpace { heads, head_dim: p, groups, state, step_limit: (low, high) } = s.shape;
    let ([x, b, c, dt], [a_log, d, dt_bias]) = (s.inputs, s.weights);
    let mut y = vec![R::from(0.0); x.len()];
    for (i, segment) in s.segments.iter().enumerate() {
        for n in 0..heads {
            let unit = (i * heads + n) * p * state..(i * heads + n + 1) * p * state;
            let mut h = match &states {
                Some(states) => states[unit.clone()].to_vec(),
                None => vec![R::from(0.0); p * state],
            };
            for t in segment.q_start..segment.q_start + segment.q_len {
                let step = (dt[t * heads + n] + dt_bias[n]).softplus();
                let step = step.max(R::from(low)).min(R::from(high));
                let decay = (-(a_log[n].exp()) * step).exp();
                let group = (t * groups + n * groups / heads) * state;
                for i in 0..p {
                    let input = x[(t * heads + n) * p + i];
                    let row = &mut h[i * state..][..state];
                    row.iter_mut().zip(&b[group..]).for_each(|(h, &b)| *h = decay * *h + step * input * b);
                    y[(t * heads + n) * p + i] = dot(row, &c[group..][..state]) + d[n] * input;
                }
            }
            if let Some(states) = &mut states {
                states[unit].copy_from_slice(&h);
            }
        }
    }
    y
}
