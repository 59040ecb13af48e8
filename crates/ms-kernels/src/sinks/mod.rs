//! Attention sinks: one extra score per head, for a key whose value is zero.
//!
//! The sink only enlarges the denominator, so it can be applied after the attention kernel: an output times `σ(lse − s)` and
//! a log-sum-exp of `lse + softplus(s − lse)` are those of the softmax with the sink, and [`crate::attention::backward`] on
//! them gives the right gradients of queries, keys and values.

#[cfg(test)]
mod tests;

use crate::error::{expect_len, expect_rows};
use crate::float::{exp, sigmoid, softplus};
use crate::{Cpu, Element, Result};

const STEP: usize = 64;

/// Adds the sinks to the softmax, in place.
///
/// | arg     | shape      | dtype | meaning                                         |
/// |---------|------------|-------|-------------------------------------------------|
/// | `out`   | `[T,N·D]`  | `E`   | output of [`crate::attention::forward`]         |
/// | `lse`   | `[N,T]`    | f32   | its log of each softmax's denominator           |
/// | `sinks` | `[N]`      | f32   | the score of each head's sink                   |
///
/// A query without keys keeps output 0; its log-sum-exp becomes the sink.
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
///
/// # Source
/// OpenAI, arXiv:2508.10925, section 2.1; Xiao et al., arXiv:2309.17453.
pub fn forward<E: Element>(cpu: &Cpu, out: &mut [E], lse: &mut [f32], sinks: &[f32]) -> Result<()> {
    const OP: &str = "sinks::forward";
    let heads = sinks.len();
    let tokens = expect_rows(OP, "lse", heads, lse.len())?;
    let width = expect_rows(OP, "out", tokens, out.len())?;
    let dim = expect_rows(OP, "out", heads, width)?;
    let before: &[f32] = lse;
    cpu.for_each_row(tokens, STEP, (out, width), |t, row| {
        for (n, head) in row.chunks_exact_mut(dim.max(1)).enumerate() {
            let share = sigmoid(before[n * tokens + t] - sinks[n]);
            for v in head {
                *v = E::from_f32(v.to_f32() * share);
            }
        }
    });
    cpu.for_each_row(heads, 1, (lse, tokens), |n, row| {
        for v in row {
            let ahead = sinks[n] - *v;
            // Without keys the log-sum-exp is minus infinity.
            *v = if ahead == f32::INFINITY { sinks[n] } else { *v + softplus(ahead) };
        }
    });
    Ok(())
}

/// Adds the gradient with respect to the sinks: `dsinks[n] −= Σ_t exp(sinks[n] − lse[n,t]) · (dout · out)[t,n]`.
///
/// `out[T,N·D]` and `lse[N,T]` are those with the sinks. Sums run in order of the tokens.
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
pub fn backward<E: Element>(
    cpu: &Cpu,
    dsinks: &mut [f32],
    dout: &[E],
    out: &[E],
    lse: &[f32],
    sinks: &[f32],
) -> Result<()> {
    const OP: &str = "sinks::backward";
    let heads = sinks.len();
    expect_len(OP, "dsinks", heads, dsinks.len())?;
    let tokens = expect_rows(OP, "lse", heads, lse.len())?;
    let width = expect_rows(OP, "out", tokens, out.len())?;
    let dim = expect_rows(OP, "out", heads, width)?;
    expect_len(OP, "dout", out.len(), dout.len())?;
    cpu.for_each_row(heads, 1, (dsinks, 1), |n, d| {
        for t in 0..tokens {
            let at = t * width + n * dim;
            let dot = |sum: f32, (a, b): (&E, &E)| a.to_f32().mul_add(b.to_f32(), sum);
            let delta = dout[at..][..dim].iter().zip(&out[at..][..dim]).fold(0.0, dot);
            d[0] -= exp(sinks[n] - lse[n * tokens + t]) * delta;
        }
    });
    Ok(())
}
