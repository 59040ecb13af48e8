//! The gated delta rule of Gated DeltaNet.

use crate::tape::{Real, dot, sum};
use ms_core::{DeltaRule, Segment};

/// `x` brought to length `length`.
fn unit<R: Real>(x: &[R], length: f64) -> Vec<R> {
    let by = R::from(length) / (dot(x, x) + R::from(1e-6)).sqrt();
    x.iter().map(|&x| x * by).collect()
}

/// `S_t = e^{g_t} S_{t−1} + k_t ⊗ β_t (v_t − (e^{g_t} S_{t−1})ᵀ k_t)`, `y_t = S_tᵀ q_t`, with keys of length 1 and queries of
/// length `K^-1/2`; `states[D,N,K,V]` is read and replaced.
pub(super) fn scan<R: Real>(
    [q, k, v, g, beta]: [&[R]; 5],
    segments: &[Segment],
    shape: &DeltaRule,
    mut states: Option<&mut [R]>,
) -> Vec<R> {
    let DeltaRule { key_heads, value_heads: heads, key_dim, value_dim } = *shape;
    let mut y = Vec::new();
    y.resize(v.len(), R::from(0.0));
    for (i, segment) in segments.iter().enumerate() {
        for n in 0..heads {
            let size = key_dim * value_dim;
            let place = (i * heads + n) * size..(i * heads + n + 1) * size;
            let mut state = match &states {
                Some(states) => states[place.clone()].to_vec(),
                None => vec![R::from(0.0); size],
            };
            for t in segment.q_start..segment.q_start + segment.q_len {
                let key = (t * key_heads + n * key_heads / heads) * key_dim;
                let q = unit(&q[key..][..key_dim], (key_dim as f64).powf(-0.5));
                let k = unit(&k[key..][..key_dim], 1.0);
                let (decay, beta) = (g[t * heads + n].exp(), beta[t * heads + n]);
                state.iter_mut().for_each(|s| *s = *s * decay);
                for j in 0..value_dim {
                    let at = (t * heads + n) * value_dim + j;
                    let known = sum((0..key_dim).map(|i| state[i * value_dim + j] * k[i]));
                    let written = beta * (v[at] - known);
                    (0..key_dim)
                        .for_each(|i| state[i * value_dim + j] = state[i * value_dim + j] + k[i] * written);
                    y[at] = sum((0..key_dim).map(|i| state[i * value_dim + j] * q[i]));
                }
            }
            if let Some(states) = &mut states {
                states[place].copy_from_slice(&state);
            }
        }
    }
    y
}

/// `g[t,n] = −exp(a_log[n]) · softplus(a[t,n] + dt_bias[n])`.
pub(super) fn decay<R: Real>(a: &[R], a_log: &[R], dt_bias: &[R]) -> Vec<R> {
    let n = a_log.len();
    a.iter().enumerate().map(|(i, &a)| -(a_log[i % n].exp()) * (a + dt_bias[i % n]).softplus()).collect()
}
