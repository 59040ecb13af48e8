//! Cross entropy over a vocabulary that may be sharded over ranks.

use crate::Reference;
use crate::operand::{expect, numbers, reals};
use ms_core::{LossBackend, Result, Tensor};

/// The place of `target` in the share from id `first` on.
fn local(target: i32, first: usize, vocab: usize) -> Option<usize> {
    usize::try_from(target).ok()?.checked_sub(first).filter(|&i| i < vocab)
}

impl LossBackend for Reference {
    fn cross_entropy_statistics(&self, logits: &Tensor, targets: &Tensor, first: usize) -> Result<Tensor> {
        let (t, v) = logits.as_matrix();
        let mut all = Vec::with_capacity(3 * t);
        for (row, &target) in reals(logits)?.chunks_exact(v).zip(numbers(targets)?) {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|l| (l - max).exp()).sum();
            all.extend([max, sum, local(target, first, v).map_or(0.0, |i| row[i])]);
        }
        self.give(&[t, 3], &all)
    }

    fn cross_entropy_merge(&self, statistics: &Tensor, shares: usize) -> Result<Tensor> {
        let (rows, all) = (statistics.as_matrix().0, reals(statistics)?);
        let tokens = rows / shares.max(1);
        expect("cross_entropy_merge", "statistics", statistics, &[tokens * shares, 3])?;
        let mut merged = Vec::with_capacity(3 * tokens);
        for t in 0..tokens {
            let of = |share: usize| &all[(share * tokens + t) * 3..][..3];
            let max = (0..shares).map(|s| of(s)[0]).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = (0..shares).map(|s| of(s)[1] * (of(s)[0] - max).exp()).sum();
            merged.extend([max, sum, (0..shares).map(|s| of(s)[2]).sum()]);
        }
        self.give(&[tokens, 3], &merged)
    }

    fn cross_entropy_nll(&self, statistics: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let rows = reals(statistics)?.chunks_exact(3).zip(numbers(targets)?);
        let nll = rows.map(|(row, &target)| if target < 0 { 0.0 } else { row[0] + row[1].ln() - row[2] });
        self.give(&[targets.numel()], &nll.collect::<Vec<_>>())
    }

    fn cross_entropy_whole(&self, logits: &mut Tensor, targets: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let statistics = self.cross_entropy_statistics(logits, targets, 0)?;
        self.cross_entropy_gradient(logits, &statistics, targets, weights, 0)?;
        Ok(statistics)
    }

    fn cross_entropy_gradient(
        &self,
        logits: &mut Tensor,
        statistics: &Tensor,
        targets: &Tensor,
        weights: &Tensor,
        first: usize,
    ) -> Result<()> {
        let (t, v) = logits.as_matrix();
        expect("cross_entropy_gradient", "statistics", statistics, &[t, 3])?;
        expect("cross_entropy_gradient", "weights", weights, &[t])?;
        let (statistics, targets, weights) = (reals(statistics)?, numbers(targets)?, reals(weights)?);
        for (t, row) in logits.as_mut_slice::<f64>()?.chunks_exact_mut(v).enumerate() {
            let (max, sum) = (statistics[3 * t], statistics[3 * t + 1]);
            row.iter_mut().for_each(|l| *l = weights[t] * (*l - max).exp() / sum);
            if let Some(i) = local(targets[t], first, v) {
                row[i] -= weights[t];
            }
            if weights[t] == 0.0 {
                row.fill(0.0);
            }
        }
        Ok(())
    }
}
