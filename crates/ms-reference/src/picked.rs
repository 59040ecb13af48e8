//! Which keys an indexer picks, and attention over picked rows.

use crate::operand::{numbers, reals};
use crate::routing::falling;
use crate::tape::dot;
use ms_core::{Error, IndexerInputs, Result, Sight, Tensor};

/// The picks of each query, `[T,places]`: rising rows of keys, then -1. Of equal scores the first wins.
pub(crate) fn pick(inputs: &IndexerInputs<'_>, sights: &[Sight], places: usize) -> Result<Vec<i32>> {
    let ((_, heads), (rows, dim)) = (inputs.w.as_matrix(), inputs.k.as_matrix());
    let (q, k, w) = (reals(inputs.q)?, reals(inputs.k)?, reals(inputs.w)?);
    let mut all = Vec::with_capacity(sights.len() * places);
    for (t, s) in sights.iter().enumerate() {
        if s.start.saturating_add(s.seen) > rows {
            let end = s.start.saturating_add(s.seen);
            return Err(Error::Range { what: "keys of an indexer", start: s.start, end, len: rows });
        }
        let score = |row: usize| -> f64 {
            let key = &k[row * dim..][..dim];
            // NaN stays what it is.
            let relu = |x: f64| if x < 0.0 { 0.0 } else { x };
            let of = |h: usize| w[t * heads + h] * relu(dot(&q[(t * heads + h) * dim..][..dim], key));
            (0..heads).map(of).sum()
        };
        let mut scored: Vec<(f64, usize)> = (s.start..s.start + s.seen).map(|j| (score(j), j)).collect();
        scored.sort_by(|a, b| falling(a.0, b.0).then(a.1.cmp(&b.1)));
        let mut rows: Vec<i32> = scored.iter().take(places).map(|p| p.1 as i32).collect();
        rows.sort_unstable();
        rows.resize(places, -1);
        all.extend(rows);
    }
    Ok(all)
}

/// The picked rows of query `t`.
pub(crate) fn rows_of(picks: &Tensor, t: usize, keys: usize) -> Result<Vec<usize>> {
    let places = picks.dim(1);
    let row = &numbers(picks)?[t * places..][..places];
    let picked = row.iter().filter(|&&p| p != -1);
    picked
        .map(|&p| {
            let outside = Error::Range { what: "picked keys", start: p as usize, end: p as usize, len: keys };
            usize::try_from(p).ok().filter(|&p| p < keys).ok_or(outside)
        })
        .collect()
}

/// Probabilities of scores, and the log of their denominator; nothing and minus infinity for no scores.
pub(crate) fn softmax(scores: &[f64]) -> (Vec<f64>, f64) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if scores.is_empty() {
        return (Vec::new(), max);
    }
    let lse = max + scores.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
    (scores.iter().map(|s| (s - lse).exp()).collect(), lse)
}
