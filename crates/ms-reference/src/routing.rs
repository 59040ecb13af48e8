//! Routers: which experts a token goes to, with what weights, and the load-balancing loss.

use crate::tape::{Real, sum};
use ms_core::{Error, ExpertLoad, GroupScore, Result, Router, RouterScore};
use std::cmp::Ordering;

/// Softmax over the experts that are `open`, 0 for the others.
fn softmax<R: Real>(logits: &[R], open: impl Fn(usize) -> bool) -> Vec<R> {
    let all = || logits.iter().enumerate();
    let max = all().filter(|(e, _)| open(*e)).map(|(_, l)| l.value()).fold(f64::NEG_INFINITY, f64::max);
    let each: Vec<R> =
        all().map(|(e, &l)| if open(e) { (l - R::from(max)).exp() } else { R::from(0.0) }).collect();
    let total = sum(each.iter().copied());
    each.into_iter().map(|e| e / total).collect()
}

fn scores<R: Real>(logits: &[R], score: RouterScore) -> Vec<R> {
    match score {
        RouterScore::Softmax | RouterScore::SparseMixer { .. } => softmax(logits, |_| true),
        RouterScore::Sigmoid => logits.iter().map(|l| l.sigmoid()).collect(),
        RouterScore::SqrtSoftplus => logits.iter().map(|l| l.softplus().sqrt()).collect(),
    }
}

/// The greater first; NaN is above all numbers, and zeros of both signs are equal.
pub(crate) fn falling(a: f64, b: f64) -> Ordering {
    b.is_nan().cmp(&a.is_nan()).then(b.partial_cmp(&a).unwrap_or(Ordering::Equal))
}

/// Index of the greatest value among those `open`; the first of equals. NaN is above all numbers.
fn best(values: &[f64], open: impl Fn(usize) -> bool) -> usize {
    let greater = |found: Option<usize>, e: usize| match found {
        Some(b) if values[b] >= values[e] || values[b].is_nan() => Some(b),
        _ => Some(e),
    };
    (0..values.len()).filter(|&e| open(e)).fold(None, greater).unwrap_or(0)
}

/// The `k` best of `values` among those `open`, best first.
fn top(values: &[f64], k: usize, open: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut picks = Vec::with_capacity(k);
    for _ in 0..k {
        picks.push(best(values, |e| open(e) && !picks.contains(&e)));
    }
    picks
}

/// Whether the softmax that the pick of `best` has its weight from includes expert `e`.
fn mixes<R: Real>(logits: &[R], best: usize, e: usize, jitter: f64) -> bool {
    let (max, l) = (logits[best].value(), logits[e].value());
    e == best || (max - l) / l.abs().max(max.abs()) <= 2.0 * jitter
}

/// The experts of a token.
pub(crate) fn choose(router: &Router, logits: &[f64], bias: Option<&[f64]>) -> Result<Vec<usize>> {
    let count = logits.len();
    if let RouterScore::SparseMixer { .. } = router.score {
        return Ok(top(logits, 2, |_| true));
    }
    let mut choice = scores(logits, router.score);
    choice.iter_mut().zip(bias.into_iter().flatten()).for_each(|(c, b)| *c += b);
    let Some((groups, keep, judge)) = router.groups else { return Ok(top(&choice, router.top_k, |_| true)) };
    if groups == 0 || !count.is_multiple_of(groups) || keep > groups {
        return Err(Error::Range { what: "groups of experts", start: keep, end: groups, len: count });
    }
    let size = count / groups;
    let (GroupScore::Best(of_best) | GroupScore::BestLogits(of_best)) = judge else {
        if keep != groups || !router.top_k.is_multiple_of(groups) {
            let (start, end) = (router.top_k, groups);
            return Err(Error::Range { what: "experts of groups alike", start, end, len: count });
        }
        let of_group = |g: usize| top(&choice, router.top_k / groups, |e| e / size == g);
        let mut picks: Vec<usize> = (0..groups).flat_map(of_group).collect();
        picks.sort_by(|a, b| falling(choice[*a], choice[*b]));
        return Ok(picks);
    };
    let by = if matches!(judge, GroupScore::BestLogits(_)) { logits } else { &choice };
    let judged: Vec<f64> = by
        .chunks_exact(size)
        .map(|group| top(group, of_best.min(size), |_| true).into_iter().map(|e| group[e]).sum())
        .collect();
    let kept = top(&judged, keep, |_| true);
    Ok(top(&choice, router.top_k, |e| kept.contains(&(e / size))))
}

/// The weights of the experts `picked` for a token.
pub(crate) fn weigh<R: Real>(router: &Router, logits: &[R], picked: &[usize]) -> Vec<R> {
    if let RouterScore::SparseMixer { jitter } = router.score {
        let first = picked[0];
        let weight = |i: usize, e: usize| {
            softmax(logits, |o| (i == 0 || o != first) && mixes(logits, e, o, jitter))[e]
        };
        return picked.iter().enumerate().map(|(i, &e)| weight(i, e)).collect();
    }
    let scores = scores(logits, router.score);
    let mut weights: Vec<R> = picked.iter().map(|&e| scores[e]).collect();
    if router.normalise {
        let total = sum(weights.iter().copied()) + R::from(1e-20);
        weights.iter_mut().for_each(|w| *w = *w / total);
    }
    weights.into_iter().map(|w| w * R::from(router.scale)).collect()
}

/// `Σ_g Σ_e weights[g,e] · Σ_{t in g} p[t,e] + z · Σ_t ln(Σ_e exp(logits[t,e]))²`, with `p` the scores plus `bias`,
/// normalised where they are not a softmax, unless they are to stay undivided.
pub(crate) fn balance<R: Real>(router: &Router, logits: &[R], load: &ExpertLoad) -> R {
    let count = load.weights.len() / load.groups.max(1);
    let of_token = |(t, logits): (usize, &[R])| {
        let group = load.group_of.get(t).map_or(0, |&g| g as usize);
        let mut p = scores(logits, router.score);
        p.iter_mut().zip(&load.bias).for_each(|(p, &b)| *p = *p + R::from(b));
        let is_softmax = matches!(router.score, RouterScore::Softmax | RouterScore::SparseMixer { .. });
        if !is_softmax && !load.undivided {
            let total = sum(p.iter().copied()) + R::from(1e-20);
            p.iter_mut().for_each(|p| *p = *p / total);
        }
        let weights = &load.weights[group * count..][..count];
        let most = logits.iter().fold(R::from(f64::NEG_INFINITY), |m, &l| m.max(l));
        let z = most + sum(logits.iter().map(|&l| (l - most).exp())).ln();
        sum(p.into_iter().zip(weights).map(|(p, &w)| p * R::from(w))) + R::from(load.z) * z * z
    };
    sum(logits.chunks_exact(count.max(1)).enumerate().map(of_token))
}

#[cfg(test)]
mod tests {
    use super::falling;

    #[test]
    fn what_is_no_number_of_either_sign_comes_first_and_zeros_are_equal() {
        let mut values =
            [-0.0, 1.0, -f64::NAN, 0.0, f64::INFINITY, f64::NAN].into_iter().enumerate().collect::<Vec<_>>();
        values.sort_by(|a, b| falling(a.1, b.1));
        assert_eq!(values.into_iter().map(|v| v.0).collect::<Vec<_>>(), [2, 5, 4, 1, 0, 3]);
    }
}
