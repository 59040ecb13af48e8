//! Training of an indexer: attention's weights over the keys, and the divergence of the indexer's distribution from them.

#[cfg(test)]
mod tests;

use super::{Indexer, check_picks, relu, row};
use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::float::{exp, ln};
use crate::{Cpu, Element, Result, lanes};
pub use ms_operands::Divergence;

/// Sizes of attention's heads: groups, heads of a group, elements of a head.
pub type HeadSizes = (usize, usize, usize);

/// The weights that attention gives the picked keys of each query, summed over heads.
///
/// | arg       | shape     | dtype | meaning                                                |
/// |-----------|-----------|-------|--------------------------------------------------------|
/// | `weights` | `[T,P]`   | f32   | output; 0 where there is no pick                       |
/// | `q`       | `[T,N·D]` | `E`   | queries                                                |
/// | `k`       | `[C,G·D]` | `E`   | keys, one head per group                               |
/// | `picks`   | `[T,P]`   | i32   | rows of `k`, or [`super::NONE`]                        |
/// | `scale`   | -         | f32   | factor on `q · k`                                      |
///
/// A head's weights are the softmax over the picks of the query. Sums run over rising heads.
///
/// # Errors
/// [`crate::Error::Shape`] or [`crate::Error::Range`] if an operand does not fit.
pub fn attention_weights<E: Element>(
    cpu: &Cpu,
    weights: &mut [f32],
    q: &[E],
    k: &[E],
    (groups, heads_per_group, dim): HeadSizes,
    picks: &[i32],
    places: usize,
    scale: f32,
) -> Result<()> {
    const OP: &str = "selected::attention_weights";
    let heads = groups * heads_per_group;
    let tokens = expect_rows(OP, "q", heads * dim, q.len())?;
    let keys = expect_rows(OP, "k", groups * dim, k.len())?;
    expect_len(OP, "weights", tokens * places, weights.len())?;
    check_picks(OP, picks, places, tokens, keys)?;
    cpu.for_each_row(tokens, 1, (weights, places), |t, weights| {
        weights.fill(0.0);
        let mut scores = vec![0f32; row(picks, places, t).count()];
        for head in 0..heads {
            let query = &q[(t * heads + head) * dim..][..dim];
            let group = head / heads_per_group;
            let mut max = f32::NEG_INFINITY;
            for (s, j) in scores.iter_mut().zip(row(picks, places, t)) {
                *s = scale * lanes::dot(cpu.isa(), query, &k[(j * groups + group) * dim..][..dim]);
                max = max.max(*s);
            }
            lanes::exponentials(cpu.isa(), &mut scores, max);
            let sum: f32 = scores.iter().sum();
            let used = picks[t * places..][..places].iter().zip(weights.iter_mut());
            used.filter(|(p, _)| **p >= 0).zip(&scores).for_each(|((_, w), s)| *w += s / sum);
        }
    });
    Ok(())
}

/// The divergence of a query and its gradients with respect to the indexer's scores, which replace them.
fn of_query(divergence: Divergence, attention: impl Iterator<Item = f32> + Clone, scores: &mut [f32]) -> f64 {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shares: Vec<f64> = scores.iter().map(|s| f64::from(exp(s - max))).collect();
    let (sum, all) = (shares.iter().sum::<f64>(), attention.clone().map(f64::from).sum::<f64>());
    let whole = if all > 0.0 { 1.0 / all } else { 0.0 };
    let target = attention.map(|a| f64::from(a) * whole);
    // For each key, `(gradient of p) · p`, or with the exact form, the gradient of the score itself.
    let (mut loss, mut along) = (0.0, 0.0);
    let total: f64 = target.clone().sum();
    let each = target.zip(&shares).zip(scores.iter());
    let slopes: Vec<f64> = each
        .map(|((t, share), score)| {
            let p = share / sum;
            let slope = match divergence {
                Divergence::Smoothed { eps } => {
                    loss += (t + eps) * (ln(t + eps) - ln(p + eps));
                    -(t + eps) / (p + eps)
                }
                Divergence::Floored { eps } => {
                    loss += t * (ln((t / (total + eps)).max(eps)) - ln(p + eps));
                    -t / (p + eps)
                }
                Divergence::Exact { eps } => {
                    loss += t * (ln(t.max(eps)) - (f64::from(score - max) - ln(sum)));
                    return p * total - t;
                }
            };
            along += p * slope;
            slope
        })
        .collect();
    for ((score, slope), share) in scores.iter_mut().zip(slopes).zip(&shares) {
        *score = match divergence {
            Divergence::Exact { .. } => slope as f32,
            _ => (share / sum * (slope - along)) as f32,
        };
    }
    loss
}

/// Gradients of [`loss`] with respect to the indexer's operands; outputs.
pub struct Gradients<'a> {
    /// `[T,N·D]`.
    pub q: &'a mut [f32],
    /// `[C,D]`; keys that nobody picked get zeros.
    pub k: &'a mut [f32],
    /// `[T,N]`.
    pub w: &'a mut [f32],
}

/// Tokens whose gradients by products are held at the same time.
const TOKENS: usize = 16;
/// Columns of the keys' gradients that a unit sums.
const COLUMNS: usize = 32;

/// The sum over queries of how far the indexer is from the weights of attention ([`attention_weights`]), and `factor` times its
/// gradients.
///
/// | arg         | shape     | dtype | meaning                                          |
/// |-------------|-----------|-------|--------------------------------------------------|
/// | `indexer`   | -         | f32   | operands, as for [`super::pick_seen`]            |
/// | `picks`     | `[T,P]`   | i32   | rows of its keys, or [`super::NONE`]             |
/// | `attention` | `[T,P]`   | f32   | weights that attention gives these; any positive sum |
///
/// The indexer's distribution is the softmax of its scores over the picks. A query without picks has no part in it. Where a
/// product is not positive no gradient goes through it. Sums run over rising tokens and heads.
///
/// # Errors
/// [`crate::Error::Shape`] or [`crate::Error::Range`] if an operand does not fit.
pub fn loss(
    cpu: &Cpu,
    gradients: Gradients<'_>,
    indexer: &Indexer<'_>,
    (picks, places): (&[i32], usize),
    attention: &[f32],
    divergence: Divergence,
    factor: f32,
) -> Result<f64> {
    const OP: &str = "selected::loss";
    let Indexer { q, k, w, heads, dim } = *indexer;
    let tokens = expect_rows(OP, "w", heads, w.len())?;
    let keys = expect_rows(OP, "k", dim, k.len())?;
    expect_len(OP, "q", tokens * heads * dim, q.len())?;
    let Gradients { q: dq, k: dk, w: dw } = gradients;
    for (name, want, got) in [("dq", q.len(), dq.len()), ("dk", k.len(), dk.len()), ("dw", w.len(), dw.len())]
    {
        expect_len(OP, name, want, got)?;
    }
    expect_len(OP, "attention", tokens * places, attention.len())?;
    check_picks(OP, picks, places, tokens, keys)?;
    dk.fill(0.0);
    if places == 0 {
        dq.fill(0.0);
        dw.fill(0.0);
        return Ok(0.0);
    }
    let (dq, dk, dw) = (Disjoint::new(dq), Disjoint::new(dk), Disjoint::new(dw));
    let mut losses = vec![0f64; tokens];
    let losses_to = Disjoint::new(&mut losses);
    // For each head and pick, the gradient of their product.
    let width = heads * places;
    let mut held = vec![0f32; TOKENS.min(tokens) * width];
    for first in (0..tokens).step_by(TOKENS) {
        let n = TOKENS.min(tokens - first);
        cpu.for_each_row(n, 1, (&mut held, width), |u, held| {
            let t = first + u;
            let picked: Vec<&[f32]> = row(picks, places, t).map(|j| &k[j * dim..][..dim]).collect();
            let weights = &w[t * heads..][..heads];
            let mut scores = vec![0f32; picked.len()];
            for (h, held) in held.chunks_exact_mut(places).enumerate() {
                let query = &q[(t * heads + h) * dim..][..dim];
                for ((s, product), key) in scores.iter_mut().zip(held).zip(&picked) {
                    *product = lanes::dot(cpu.isa(), query, key);
                    *s += weights[h] * relu(*product);
                }
            }
            let of_picks = picks[t * places..][..places].iter().zip(&attention[t * places..]);
            let target = of_picks.filter(|(p, _)| **p >= 0).map(|(_, a)| *a);
            let loss = of_query(divergence, target, &mut scores);
            // SAFETY: a unit takes its own tokens.
            let (to, dw) = unsafe { (losses_to.part(t, 1), dw.part(t * heads, heads)) };
            to[0] = loss;
            for (h, held) in held.chunks_exact_mut(places).enumerate() {
                let mut by_weight = 0f32;
                let mut parts = Vec::with_capacity(picked.len());
                for ((ds, product), &key) in scores.iter().zip(held).zip(&picked) {
                    by_weight += ds * factor * relu(*product);
                    *product = if *product > 0.0 { ds * factor * weights[h] } else { 0.0 };
                    parts.push((*product, key));
                }
                dw[h] = by_weight;
                // SAFETY: as above.
                lanes::blend(cpu.isa(), unsafe { dq.part((t * heads + h) * dim, dim) }, &parts);
            }
        });
        cpu.for_each_unit(dim.div_ceil(COLUMNS), |u| {
            let columns = u * COLUMNS..dim.min((u + 1) * COLUMNS);
            for (t, held) in (first..first + n).zip(held.chunks_exact(width)) {
                for h in 0..heads {
                    let query = &q[(t * heads + h) * dim..][columns.clone()];
                    for (j, &slope) in row(picks, places, t).zip(&held[h * places..]) {
                        if slope != 0.0 {
                            // SAFETY: a unit takes its own columns.
                            let to = unsafe { dk.part(j * dim + columns.start, columns.len()) };
                            to.iter_mut().zip(query).for_each(|(d, q)| *d += slope * q);
                        }
                    }
                }
            }
        });
    }
    Ok(losses.iter().sum())
}
