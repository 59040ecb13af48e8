//! The margin between a router's selected experts and the others.

use crate::{GroupScore, Result, Router, RouterScore, Routes, Tensor};
use std::collections::BTreeMap;

/// The values by which experts are compared: their scores before the bias.
fn scores(logits: &[f64], score: RouterScore) -> Vec<f64> {
    match score {
        RouterScore::SparseMixer { .. } => logits.to_vec(),
        RouterScore::Sigmoid => logits.iter().map(|l| 1.0 / (1.0 + (-l).exp())).collect(),
        RouterScore::SqrtSoftplus => logits.iter().map(|l| l.exp().ln_1p().sqrt()).collect(),
        RouterScore::Softmax => {
            let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|l| (l - max).exp()).sum();
            logits.iter().map(|l| (l - max).exp() / sum).collect()
        }
    }
}

/// The difference between the last value among the `k` greatest and the next one; infinite if there is no other.
fn gap(values: impl Iterator<Item = f64>, k: usize) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    match sorted.get(k) {
        Some(next) if k > 0 => sorted[k - 1] - next,
        _ => f64::INFINITY,
    }
}

/// The smallest margin over all tokens with router logits `[T,E]` between a score that was selected, of an expert or of a
/// group, and one that was not: with rounding errors below it the same experts are picked. Infinite without tokens or without
/// a choice.
///
/// # Errors
/// If a tensor is not of real numbers.
pub fn routing_margin(logits: &Tensor, bias: Option<&Tensor>, router: &Router) -> Result<f64> {
    let experts = logits.as_matrix().1.max(1);
    let bias = bias.map(|bias| bias.ready()?.to_reals()).transpose()?.unwrap_or_else(|| vec![0.0; experts]);
    let mut least = f64::INFINITY;
    for row in logits.ready()?.to_reals()?.chunks_exact(experts) {
        let mut choice = scores(row, router.score);
        choice.iter_mut().zip(&bias).for_each(|(c, b)| *c += b);
        if let RouterScore::SparseMixer { .. } = router.score {
            // The second is picked among what the first leaves.
            least = least.min(gap(choice.iter().copied(), 1)).min(gap(choice.iter().copied(), 2));
            continue;
        }
        let Some((groups, keep, judge)) = router.groups else {
            least = least.min(gap(choice.iter().copied(), router.top_k));
            continue;
        };
        let size = (experts / groups.max(1)).max(1);
        let (GroupScore::Best(of_best) | GroupScore::BestLogits(of_best)) = judge else {
            let gaps =
                choice.chunks_exact(size).map(|g| gap(g.iter().copied(), router.top_k / groups.max(1)));
            least = gaps.fold(least, f64::min);
            continue;
        };
        let by = if matches!(judge, GroupScore::BestLogits(_)) { row } else { &choice };
        let judged: Vec<f64> = by
            .chunks_exact(size)
            .map(|group| {
                let mut sorted = group.to_vec();
                sorted.sort_by(|a, b| b.total_cmp(a));
                sorted.iter().take(of_best).sum()
            })
            .collect();
        let mut order: Vec<usize> = (0..judged.len()).collect();
        order.sort_by(|a, b| judged[*b].total_cmp(&judged[*a]));
        let open = order[..keep.min(order.len())].iter().flat_map(|group| &choice[group * size..][..size]);
        least = least.min(gap(judged.iter().copied(), keep)).min(gap(open.copied(), router.top_k));
    }
    Ok(least)
}

/// The smallest margin over all experts, each of which takes at most the `capacity` copies with the greatest weights, between
/// the weight of a copy that is taken and one that is dropped. `weights[T,K]`, `routes` and `share_of[T]` are those of
/// [`super::drop_tokens`]. Infinite if every expert takes all.
///
/// # Errors
/// If the weights are not real numbers.
pub fn drop_margin(weights: &Tensor, routes: &Routes, (capacity, share_of): (usize, &[u32])) -> Result<f64> {
    let (values, width) = (weights.ready()?.to_reals()?, weights.as_matrix().1.max(1));
    let mut least = f64::INFINITY;
    for expert in 0..routes.starts.len() - 1 {
        let mut of_shares: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for &copy in &routes.copies[routes.range(expert)] {
            let share = share_of.get(copy as usize / width).copied().unwrap_or(0);
            of_shares.entry(share).or_default().push(values[copy as usize]);
        }
        let gaps = of_shares.into_values().map(|weights| gap(weights.into_iter(), capacity));
        least = gaps.fold(least, f64::min);
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;

    fn margin(logits: &[f64], bias: &[f64], router: Router) -> f64 {
        let t = |v: &[f64]| Tensor::from_slice(&Arena::default(), [1, v.len()], v).unwrap();
        routing_margin(&t(logits), Some(&t(bias)), &router).unwrap()
    }

    #[test]
    fn the_margin_is_what_moves_a_pick() {
        let none = [0.0; 4];
        let mut router =
            Router { top_k: 1, score: RouterScore::Sigmoid, groups: None, normalise: false, scale: 1.0 };
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let found = margin(&[1.0, -1.0, 0.5, 0.0], &none, router);
        assert!((found - (sigmoid(1.0) - sigmoid(0.5))).abs() < 1e-15);
        // The bias takes part: the third is first by then.
        let found = margin(&[1.0, -1.0, 0.5, 0.0], &[0.0, 0.0, 1.0, 0.0], router);
        assert!((found - (sigmoid(0.5) + 1.0 - sigmoid(1.0))).abs() < 1e-15);
        router.top_k = 4;
        assert_eq!(margin(&[1.0, 2.0, 3.0, 4.0], &none, router), f64::INFINITY);
        // Of the groups (1, 2) and (3, 0) the second is used, and its best expert: less than 3 - 2 decides nothing.
        router = Router { score: RouterScore::SparseMixer { jitter: 0.01 }, ..router };
        assert!((margin(&[1.0, 2.0, 3.0, 0.5], &none, router) - 1.0).abs() < 1e-15);
        router = Router {
            top_k: 1,
            score: RouterScore::Sigmoid,
            groups: Some((2, 1, GroupScore::Best(1))),
            ..router
        };
        let found = margin(&[1.0, 2.0, 2.1, -3.0], &none, router);
        assert!((found - (sigmoid(2.1) - sigmoid(2.0))).abs() < 1e-15);
    }

    #[test]
    fn the_margin_of_what_is_dropped_is_that_of_each_share() {
        let weights = [0.9, 0.5, 0.4, 0.2f64];
        let weights = Tensor::from_slice(&Arena::default(), [4, 1], &weights).unwrap();
        let routes = Routes::new(&[0, 0, 0, 1], 1, 2).unwrap();
        let found =
            |capacity, share_of: &[u32]| drop_margin(&weights, &routes, (capacity, share_of)).unwrap();
        assert!((found(1, &[]) - 0.4).abs() < 1e-15);
        assert!((found(2, &[]) - 0.1).abs() < 1e-15);
        assert_eq!(found(3, &[]), f64::INFINITY);
        // The second and the third token are in shares of their own.
        assert!((found(1, &[0, 1, 0, 1]) - 0.5).abs() < 1e-15);
    }
}
