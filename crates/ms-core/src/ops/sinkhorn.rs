//! Sinkhorn routing: spreads the tokens of a micro-batch evenly over the experts.

use super::moe::TokenGroup;
use crate::{Result, Tensor};

/// What a Sinkhorn router picks.
pub struct SinkhornChoice {
    /// The experts of each token `[T,K]`, i32, best first.
    pub experts: Tensor,
    /// The smallest margin, as a share of a token, between what was picked and what was not; infinite without a choice.
    pub margin: f64,
}

const TOLERANCE: f64 = 1e-4;
const EPS: f64 = 1e-8;

/// The `top_k` experts of tokens with router logits `[T,E]` by `exp(logits)`, whose rows and columns are scaled in turn until
/// all experts have the same share of all tokens. `ranks` are those whose tokens are one micro-batch.
///
/// Sums in f64. The loop ends when the columns' factors change by less than 1e-4 on average. Of equal values the expert with
/// the lower number wins. Nothing has a gradient.
///
/// # Errors
/// If `logits` is not of real numbers or a rank fails.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/transformer/moe/moe_utils.py`, `sinkhorn`; Clark et al., arXiv:2202.01169.
pub fn sinkhorn(logits: &Tensor, top_k: usize, ranks: Option<&dyn TokenGroup>) -> Result<SinkhornChoice> {
    let (tokens, count) = logits.as_matrix();
    let cost: Vec<f64> = logits.ready()?.to_reals()?.into_iter().map(f64::exp).collect();
    let rows = || cost.chunks_exact(count.max(1));
    let sum = |values: Vec<f64>| ranks.map_or(Ok(values.clone()), |ranks| ranks.sum_reals(values));
    let all = sum(vec![tokens as f64])?[0].max(1.0);
    let mut of_expert = vec![1.0; count];
    let mut moved = f64::INFINITY;
    while moved > TOLERANCE {
        let mut taken = vec![0.0; count];
        for row in rows() {
            let of_token: f64 = row.iter().zip(&of_expert).map(|(c, d)| c * d).sum();
            let of_token = 1.0 / (all * (of_token + EPS));
            taken.iter_mut().zip(row).for_each(|(t, c)| *t += of_token * c);
        }
        let next: Vec<f64> = sum(taken)?.iter().map(|t| 1.0 / (count as f64 * (t + EPS))).collect();
        moved = next.iter().zip(&of_expert).map(|(a, b)| (a - b).abs()).sum::<f64>() / count.max(1) as f64;
        of_expert = next;
    }
    let (mut experts, mut margin) = (Vec::with_capacity(tokens * top_k), f64::INFINITY);
    for row in rows() {
        // The factor of a token is that of all its experts.
        let even: Vec<f64> = row.iter().zip(&of_expert).map(|(c, d)| c * d).collect();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&a, &b| even[b].total_cmp(&even[a]));
        if let (Some(&last), Some(&next)) = (order.get(top_k.wrapping_sub(1)), order.get(top_k)) {
            margin = margin.min((even[last] - even[next]) / even.iter().sum::<f64>());
        }
        experts.extend(order.iter().take(top_k).map(|&e| e as i32));
    }
    Ok(SinkhornChoice { experts: Tensor::from_slice(logits.arena(), [tokens, top_k], &experts)?, margin })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, Rng};
    use std::sync::{Barrier, Mutex};

    fn logits(tokens: usize, count: usize, towards: f64) -> Vec<f64> {
        let mut rng = Rng::named(5, "sinkhorn");
        (0..tokens * count)
            .map(|i| rng.uniform() * 4.0 + if i % count == 0 { towards } else { 0.0 })
            .collect()
    }

    fn choose(values: &[f64], count: usize, top_k: usize) -> Vec<i32> {
        let t = Tensor::from_slice(&Arena::default(), [values.len() / count, count], values).unwrap();
        sinkhorn(&t, top_k, None).unwrap().experts.as_slice::<i32>().unwrap().to_vec()
    }

    #[test]
    fn an_expert_that_all_tokens_favour_gets_about_an_even_share() {
        let (tokens, count) = (240, 6);
        let values = logits(tokens, count, 3.0);
        let of = |picks: &[i32], e: i32| picks.iter().filter(|&&p| p == e).count();
        let greedy: Vec<i32> = values
            .chunks_exact(count)
            .map(|row| (0..count).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as i32)
            .collect();
        let even = choose(&values, count, 1);
        assert!(of(&greedy, 0) > 200, "{}", of(&greedy, 0));
        for e in 0..count as i32 {
            assert!((20..=60).contains(&of(&even, e)), "expert {e}: {}", of(&even, e));
        }
    }

    #[test]
    fn what_all_experts_of_a_token_or_all_tokens_of_an_expert_gain_changes_no_choice() {
        let (tokens, count) = (32, 5);
        let values = logits(tokens, count, 0.0);
        let plain = choose(&values, count, 2);
        let by_token: Vec<f64> =
            values.iter().enumerate().map(|(i, v)| v + (i / count) as f64 * 0.1).collect();
        assert_eq!(plain, choose(&by_token, count, 2));
        // Scaled matrices have one fixed point; the loop ends near it.
        let by_expert: Vec<f64> =
            values.iter().enumerate().map(|(i, v)| v + (i % count) as f64 * 0.5).collect();
        let differ = plain.iter().zip(choose(&by_expert, count, 2)).filter(|(a, b)| **a != *b).count();
        assert!(differ <= 2, "{differ} of {} picks", plain.len());
    }

    /// Two threads that add what they have.
    struct Two<'a>(&'a Barrier, &'a Mutex<Vec<f64>>);

    impl TokenGroup for Two<'_> {
        fn sum(&self, _: Vec<i64>) -> Result<Vec<i64>> {
            unreachable!("nothing is counted")
        }

        fn sum_reals(&self, values: Vec<f64>) -> Result<Vec<f64>> {
            {
                let mut sum = self.1.lock().unwrap();
                sum.resize(values.len(), 0.0);
                sum.iter_mut().zip(&values).for_each(|(s, v)| *s += v);
            }
            self.0.wait();
            let all = self.1.lock().unwrap().clone();
            if self.0.wait().is_leader() {
                self.1.lock().unwrap().clear();
            }
            self.0.wait();
            Ok(all)
        }
    }

    #[test]
    fn ranks_that_share_the_tokens_choose_as_one_that_has_them_all() {
        let (tokens, count) = (24, 6);
        let values = logits(tokens, count, 2.0);
        let whole = choose(&values, count, 2);
        let (barrier, sum) = (Barrier::new(2), Mutex::new(Vec::new()));
        let half = values.len() / 2;
        let parts: Vec<Vec<i32>> = std::thread::scope(|s| {
            let rank = |r: usize| {
                let (barrier, sum) = (&barrier, &sum);
                let part = &values[r * half..(r + 1) * half];
                s.spawn(move || {
                    let t = Tensor::from_slice(&Arena::default(), [tokens / 2, count], part).unwrap();
                    let found = sinkhorn(&t, 2, Some(&Two(barrier, sum))).unwrap();
                    assert!(found.margin > 1e-9);
                    found.experts.as_slice::<i32>().unwrap().to_vec()
                })
            };
            [0, 1].map(rank).map(|t| t.join().unwrap()).to_vec()
        });
        assert_eq!(parts.concat(), whole);
    }
}
