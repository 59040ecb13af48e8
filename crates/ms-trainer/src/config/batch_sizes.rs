//! Batch sizes, and how the global batch grows.

use crate::{Error, Result};

/// Batch sizes, in samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSizes {
    /// Samples of one forward pass.
    pub micro: usize,
    /// Samples of one iteration.
    pub global: usize,
    /// The global batch grows: first size, increment, samples over which it grows (`--rampup-batch-size`).
    pub rampup: Option<(usize, usize, u64)>,
    /// Batches that do not divide among the data-parallel ranks are lowered to the next size that does.
    pub lowered: bool,
}

impl BatchSizes {
    /// The samples of a global batch of `global` that `dp` data-parallel ranks work on.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `megatron/core/num_microbatches_calculator.py`, `current_running_global_batch_size`.
    pub fn running(&self, global: usize, dp: usize) -> usize {
        let unit = (self.micro * dp).max(1);
        if self.lowered { global / unit * unit } else { global }
    }

    /// Checks that the batches divide among `dp` data-parallel ranks.
    ///
    /// # Errors
    /// [`Error::Config`] naming the flag.
    pub fn validate(&self, dp: usize) -> Result<()> {
        let unit = self.micro * dp;
        let divides = |size: usize| if self.lowered { size >= unit } else { size.is_multiple_of(unit) };
        if self.micro == 0 || self.global == 0 || !divides(self.global) {
            let wanted = if self.lowered { "no less than" } else { "a multiple of" };
            let expected = format!(
                "{wanted} --micro-batch-size {} x {dp} data-parallel ranks (of --nproc-per-node)",
                self.micro
            );
            return Err(Error::config("--global-batch-size", expected, self.global));
        }
        if let Some((start, increment, samples)) = self.rampup {
            let legal = divides(start)
                && increment > 0
                && (self.lowered || increment.is_multiple_of(unit))
                && start > 0
                && start <= self.global
                && (self.global - start).is_multiple_of(increment)
                && samples > 0;
            if !legal {
                let expected = format!(
                    "start, increment and samples, sizes {} that lead to the global batch {}",
                    if self.lowered { format!("from {unit} on") } else { format!("multiples of {unit}") },
                    self.global
                );
                return Err(Error::config(
                    "--rampup-batch-size",
                    expected,
                    format!("{start} {increment} {samples}"),
                ));
            }
        }
        Ok(())
    }

    /// The global batch after `consumed` samples.
    ///
    /// # Source
    /// Megatron-LM `core_r0.8.0`, `megatron/core/num_microbatches_calculator.py`.
    pub fn global_at(&self, consumed: u64) -> usize {
        match self.rampup {
            Some((start, increment, samples)) if consumed <= samples && start < self.global => {
                let steps = (self.global - start) / increment;
                let per_step = samples as f64 / steps as f64;
                let done = (consumed as f64 / per_step) as usize;
                (start + done * increment).min(self.global)
            }
            _ => self.global,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_batch_reaches_its_size_in_steps() {
        let sizes = BatchSizes { micro: 2, global: 16, rampup: Some((4, 4, 60)), lowered: false };
        sizes.validate(2).unwrap();
        let at: Vec<usize> = [0, 19, 20, 40, 60, 61].map(|n| sizes.global_at(n)).to_vec();
        assert_eq!(at, [4, 4, 8, 12, 16, 16]);
        assert!(sizes.validate(3).is_err());
        assert!(BatchSizes { rampup: Some((3, 4, 60)), ..sizes }.validate(1).is_err());
        // Of batches that do not divide among three ranks what does is worked on.
        assert!(sizes.validate(3).is_err());
        let lowered = BatchSizes { lowered: true, rampup: Some((8, 4, 60)), ..sizes };
        assert!(lowered.validate(3).is_ok() && lowered.validate(5).is_err());
        assert_eq!([8, 12, 16].map(|global| lowered.running(global, 3)), [6, 12, 12]);
        assert_eq!(sizes.running(16, 3), 16);
    }
}
