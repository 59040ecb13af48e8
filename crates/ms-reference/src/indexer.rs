//! Training of an indexer: attention's weights, and the divergence of the indexer's distribution from them.

use crate::operand::reals;
use crate::picked::{rows_of, softmax};
use crate::tape::{Real, dot, sum};
use ms_core::{Divergence, Error, HeadLayout, Result, Tensor};

/// The weights of attention, summed over heads, of each of the `picks[T,P]`.
pub(crate) fn attention_weights(
    q: &Tensor,
    k: &Tensor,
    heads: HeadLayout,
    picks: &Tensor,
    scale: f64,
) -> Result<Vec<f64>> {
    let HeadLayout { groups, heads_per_group, head_dim } = heads;
    let ((tokens, places), (keys, width)) = (picks.as_matrix(), k.as_matrix());
    if width != groups * head_dim {
        let (want, got) = (ms_core::Shape::new(&[keys, groups * head_dim]), k.shape());
        return Err(Error::Shape { op: "attention_weights", name: "k", want, got });
    }
    let mut weights = vec![0.0; tokens * places];
    for t in 0..tokens {
        let rows = rows_of(picks, t, keys)?;
        for head in 0..heads.heads() {
            let query = &reals(q)?[(t * heads.heads() + head) * head_dim..][..head_dim];
            let group = head / heads_per_group;
            let key = |j: usize| -> Result<&[f64]> {
                Ok(&reals(k)?[(j * groups + group) * head_dim..][..head_dim])
            };
            let scores = rows.iter().map(|&j| Ok(scale * dot(query, key(j)?))).collect::<Result<Vec<_>>>()?;
            weights[t * places..].iter_mut().zip(softmax(&scores).0).for_each(|(w, p)| *w += p);
        }
    }
    Ok(weights)
}

/// The divergence of the indexer from `attention[T,P]`, summed over queries, each with its `rows` of keys.
pub(crate) fn loss<R: Real>(
    [q, k, w]: [&[R]; 3],
    rows: &[Vec<usize>],
    attention: &[f64],
    (heads, dim): (usize, usize),
    divergence: Divergence,
) -> R {
    let places = attention.len() / rows.len().max(1);
    let of_query = |(t, rows): (usize, &Vec<usize>)| {
        let score = |&j: &usize| {
            let of_head = |h: usize| {
                let product = dot(&q[(t * heads + h) * dim..][..dim], &k[j * dim..][..dim]);
                w[t * heads + h] * product.max(0.0.into())
            };
            sum((0..heads).map(of_head))
        };
        let scores: Vec<R> = rows.iter().map(score).collect();
        let max = scores.iter().map(|s| s.value()).fold(f64::NEG_INFINITY, f64::max);
        let all = sum(scores.iter().map(|&s| (s - max.into()).exp()));
        let of_keys = &attention[t * places..][..rows.len()];
        let whole: f64 = of_keys.iter().sum();
        let target: Vec<f64> = of_keys.iter().map(|a| if whole > 0.0 { a / whole } else { 0.0 }).collect();
        let total: f64 = target.iter().sum();
        sum(target.iter().zip(&scores).map(|(&t, &s)| {
            let log_p = s - max.into() - all.ln();
            let log_of_sum = |eps: f64| (log_p.exp() + eps.into()).ln();
            match divergence {
                Divergence::Smoothed { eps } => {
                    R::from(t + eps) * (R::from((t + eps).ln()) - log_of_sum(eps))
                }
                Divergence::Floored { eps } => {
                    R::from(t) * (R::from((t / (total + eps)).max(eps).ln()) - log_of_sum(eps))
                }
                Divergence::Exact { eps } => R::from(t) * (R::from(t.max(eps).ln()) - log_p),
            }
        }))
    };
    sum(rows.iter().enumerate().map(of_query))
}
