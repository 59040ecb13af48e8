//! How much is trained on: the sizes of batches and the length of the run.

use anyhow::Result;
use ms_cli::megatron::{Given, Upstream};
use ms_cli::{Usage, refuse};
use ms_trainer::BatchSizes;

options! {
    /// How much is trained on.
    pub(crate) struct Batches in "Batch" {
        micro: Option<usize> = "--micro-batch-size", "samples per forward pass", range = "[1,16777216]";
        pub(crate) global: Option<usize> = "--global-batch-size", "samples per iteration (default: micro-batch size x data-parallel size)", range = "[1,16777216]";
        rampup: Vec<String> = "--rampup-batch-size", "ramp up the global batch size: START INCREMENT SAMPLES";
        lowered: bool = "--decrease-batch-size-if-needed", "lower a global batch size that data-parallel ranks cannot share evenly to the next that they can; --train-iters and schedules stay as given";
        pub(crate) seq_length: Option<usize> = "--seq-length", "tokens per sample", range = "[1,268435456]";
        iters: Option<u64> = "--train-iters", "number of iterations to train", range = "[0,1000000000000]";
        samples: Given<Option<u64>> = "--train-samples", "number of samples to train, instead of --train-iters", range = "[0,1000000000000]";
    }
}

/// A number that must be given.
fn need(value: Option<usize>, flag: &str) -> Result<usize> {
    Ok(value.ok_or_else(|| Usage(format!("{flag} is required")))?)
}

impl Batches {
    /// Tokens of a sample.
    ///
    /// # Errors
    /// If they are not given.
    pub(super) fn seq_length(&self) -> Result<usize> {
        need(self.seq_length, "--seq-length")
    }

    /// Samples of a micro-batch.
    ///
    /// # Errors
    /// If they are not given.
    pub(crate) fn micro(&self) -> Result<usize> {
        need(self.micro, "--micro-batch-size")
    }

    /// The sizes of batches that `dp` data-parallel ranks share.
    ///
    /// # Errors
    /// If a size is missing, or `--rampup-batch-size` has another form.
    pub(super) fn sizes(&self, dp: usize) -> Result<BatchSizes> {
        let micro = self.micro()?;
        let global = self.global.unwrap_or(micro * dp);
        Ok(BatchSizes { micro, global, rampup: rampup(&self.rampup)?, lowered: self.lowered })
    }

    /// Whether the length of the run is given in samples.
    pub(super) fn count_samples(&self) -> bool {
        self.samples.is_given()
    }

    /// Iterations and samples of the run; none of a run that need not train.
    ///
    /// # Errors
    /// If its length is missing, or is given twice.
    pub(super) fn length(
        &self,
        batch: &BatchSizes,
        upstream: Upstream,
        need_not_train: bool,
    ) -> Result<(u64, u64)> {
        Ok(match (self.iters, self.samples.value) {
            (Some(_), None) if batch.rampup.is_some() => {
                refuse!("--rampup-batch-size needs --train-samples instead of --train-iters")
            }
            (Some(iters), None) => (iters, iters.saturating_mul(batch.global as u64)),
            (None, Some(samples)) => (iterations_for(batch, samples, upstream), samples),
            (Some(_), Some(_)) => refuse!("--train-iters and --train-samples: pass one of them"),
            (None, None) if need_not_train => (0, 0),
            (None, None) => refuse!("--train-iters is required (or --train-samples)"),
        })
    }
}

/// How a global batch grows: first size, increment, samples over which it grows.
fn rampup(words: &[String]) -> Result<Option<(usize, usize, u64)>> {
    if words.is_empty() {
        return Ok(None);
    }
    let numbers: Vec<usize> = words.iter().filter_map(|w| w.parse().ok()).collect();
    match numbers[..] {
        [start, increment, samples] if words.len() == 3 => Ok(Some((start, increment, samples as u64))),
        _ => refuse!("--rampup-batch-size: expected start, increment and samples, found {words:?}"),
    }
}

/// Iterations that take `samples` samples: while the batch grows, and then at its full size; a rest that does not fill
/// a batch is left out. Where there are fewer samples than the batch takes to grow, v2.0.0 takes back as many full batches as
/// the excess has, and the head stops as soon as all samples are taken.
///
/// # Source
/// Megatron-LM `core_r0.8.0` and `core_v0.12.1`, `megatron/training/training.py`, `update_train_iters`.
fn iterations_for(batch: &BatchSizes, samples: u64, upstream: Upstream) -> u64 {
    let (mut consumed, mut iterations) = (0u64, 0u64);
    let full = batch.global.max(1) as u64;
    if let Some((_, _, growing)) = batch.rampup {
        let until = if upstream == Upstream::Head { growing.min(samples) } else { growing };
        while consumed <= until {
            consumed += batch.global_at(consumed).max(1) as u64;
            iterations += 1;
        }
    }
    match samples.checked_sub(consumed) {
        Some(rest) => iterations + rest / full,
        None if upstream == Upstream::Head => iterations,
        None => iterations.saturating_sub((consumed - samples).div_ceil(full)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_growing_batch_are_counted_as_megatron_does() {
        // Batches of 4 up to sample 20, of 8 up to 44, of 12 up to 68, then of 16.
        let growing = BatchSizes { micro: 2, global: 16, rampup: Some((4, 4, 60)), lowered: false };
        for upstream in [Upstream::V2_0_0, Upstream::Head] {
            assert_eq!(iterations_for(&growing, 100, upstream), 5 + 3 + 2 + 2);
            assert_eq!(iterations_for(&BatchSizes { rampup: None, ..growing }, 100, upstream), 6);
        }
        // Fewer samples than the 68 at which the batch has grown.
        for (samples, old, head) in [(60, 9, 10), (30, 7, 7), (68, 10, 10), (0, 5, 1)] {
            assert_eq!(iterations_for(&growing, samples, Upstream::V2_0_0), old, "{samples}");
            assert_eq!(iterations_for(&growing, samples, Upstream::Head), head, "{samples}");
        }
    }
}
