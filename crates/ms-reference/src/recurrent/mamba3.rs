//! The state space of Mamba-3: trapezoidal steps, keys and queries rotated by accumulated angles.

use crate::tape::{Real, dot};
use ms_core::{Mamba3Shape, Segment, TurnedPairs};
use std::f64::consts::PI;

/// What each document's last token left: of every head its angles, keys and input, and its state.
pub(super) struct Memory<'a, R> {
    pub(super) last: &'a mut [R],
    pub(super) states: &'a mut [R],
}

/// `h_t = a_t (h_{t−1} + Δ_t (1−λ_t) V_{t−1} K_{t−1}) + Δ_t λ_t V_t K_t`, `o_r = h_t q_r + D v_r`, `y = Σ_r o_r · silu(z ·
/// rank_z_r) · rank_o_r`, where `V K = Σ_r v_r ⊗ k_r`, `v_r = x · rank_x_r`, `Δ = softplus(dt + dt_bias)`, `a =
/// exp(−max(softplus(rate), floor) Δ)`, `λ = σ(trap)`, and keys and queries are `b_r + b_bias` and `c_r +
/// c_bias` rotated by `θ_t = θ_{t−1} + π Δ_t tanh(angle_t)`.
pub(super) fn scan<R: Real>(
    operands: [&[R]; 15],
    segments: &[Segment],
    shape: &Mamba3Shape,
    mut memory: Option<Memory<'_, R>>,
) -> Vec<R> {
    let [x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o] = operands;
    let Mamba3Shape { heads, head_dim: p, state: s, ranks, angles, pairs, rate_floor } = *shape;
    let zeros = |n: usize| vec![R::from(0.0); n];
    let factor = |of: &[R], n: usize, r: usize, i: usize| {
        if of.is_empty() { R::from(1.0) } else { of[(n * ranks + r) * p + i] }
    };
    let mut y = zeros(x.len());
    for (document, segment) in segments.iter().enumerate() {
        for n in 0..heads {
            let unit = document * heads + n;
            let (mut theta, mut keys, mut before, mut h) =
                (zeros(angles), zeros(ranks * s), zeros(p), zeros(p * s));
            if let Some(m) = &memory {
                let last = &m.last[unit * shape.last()..][..shape.last()];
                theta.copy_from_slice(&last[..angles]);
                keys.copy_from_slice(&last[angles..angles + ranks * s]);
                before.copy_from_slice(&last[angles + ranks * s..]);
                h.copy_from_slice(&m.states[unit * p * s..][..p * s]);
            }
            for t in segment.q_start..segment.q_start + segment.q_len {
                let at = t * heads + n;
                let step = (dt[at] + dt_bias[n]).softplus();
                let decay = (-(rate[at].softplus().max(R::from(rate_floor))) * step).exp();
                let end = trap[at].sigmoid();
                for (j, theta) in theta.iter_mut().enumerate() {
                    *theta = *theta + angle[t * angles + j].tanh() * R::from(PI) * step;
                }
                let turned = |of: &[R], bias: &[R], r: usize| {
                    let each = (0..s).map(|i| of[(t * ranks + r) * s + i] + bias[(n * ranks + r) * s + i]);
                    let mut row: Vec<R> = each.collect();
                    for (j, theta) in theta.iter().enumerate() {
                        let (first, second) = match pairs {
                            TurnedPairs::Neighbours => (2 * j, 2 * j + 1),
                            TurnedPairs::Halves => (j, j + s / 2),
                        };
                        let (a, b) = (row[first], row[second]);
                        row[first] = a * theta.cos() - b * theta.sin();
                        row[second] = a * theta.sin() + b * theta.cos();
                    }
                    row
                };
                let now: Vec<R> = (0..ranks).flat_map(|r| turned(b, b_bias, r)).collect();
                let input = &x[at * p..][..p];
                for i in 0..p {
                    for e in 0..s {
                        let mut sum = decay * h[i * s + e];
                        for r in 0..ranks {
                            let by = factor(rank_x, n, r, i);
                            let begin = decay * step * (R::from(1.0) - end) * before[i] * keys[r * s + e];
                            sum = sum + by * (begin + step * end * input[i] * now[r * s + e]);
                        }
                        h[i * s + e] = sum;
                    }
                }
                for r in 0..ranks {
                    let q = turned(c, c_bias, r);
                    for i in 0..p {
                        let out = dot(&h[i * s..][..s], &q) + d[n] * input[i] * factor(rank_x, n, r, i);
                        let gate = z[at * p + i] * factor(rank_z, n, r, i);
                        y[at * p + i] = y[at * p + i] + out * gate * gate.sigmoid() * factor(rank_o, n, r, i);
                    }
                }
                keys = now;
                before.copy_from_slice(input);
            }
            if let Some(m) = &mut memory {
                let kept = theta.iter().chain(&keys).chain(&before);
                m.last[unit * shape.last()..][..shape.last()]
                    .iter_mut()
                    .zip(kept)
                    .for_each(|(to, v)| *to = *v);
                m.states[unit * p * s..][..p * s].copy_from_slice(&h);
            }
        }
    }
    y
}
