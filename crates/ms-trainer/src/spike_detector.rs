//! Detection of values that deviate strongly from their initial ones.

use crate::{Error, Result};

/// Values that say what is usual.
const FIRST: usize = 100;
/// How many times the largest of them is too much.
const FACTOR: f64 = 10.0;

/// A monitored value: the largest of its first hundred magnitudes; no later one may be ten times as large. NaN is left to
/// other checks.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/core/rerun_state_machine.py`, `is_unexpectedly_large`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpikeDetector {
    what: &'static str,
    flag: &'static str,
    seen: usize,
    most: f64,
}

impl SpikeDetector {
    /// Nothing is known yet of `what`, which `flag` asks to look at.
    pub(crate) fn new(what: &'static str, flag: &'static str) -> Self {
        Self { what, flag, seen: 0, most: 0.0 }
    }

    /// Looks at the next values.
    ///
    /// # Errors
    /// [`Error::Unusual`] with the first that is too large; `place` says where.
    pub(crate) fn look(&mut self, values: &[f64], iteration: u64, place: impl Fn() -> String) -> Result<()> {
        for value in values.iter().map(|v| v.abs()).filter(|v| v.is_finite()) {
            if self.seen < FIRST {
                self.seen += 1;
                self.most = self.most.max(value);
            } else if value >= self.most * FACTOR {
                let (rank, what, flag, most) = (place(), self.what, self.flag, self.most);
                return Err(Error::Unusual {
                    iteration,
                    rank,
                    what,
                    value,
                    most,
                    first: FIRST,
                    factor: FACTOR,
                    flag,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ten_times_the_most_of_the_first_hundred_is_an_error() {
        let mut detector = SpikeDetector::new("the loss", "--check-for-spiky-loss");
        let look =
            |detector: &mut SpikeDetector, values: &[f64]| detector.look(values, 7, || "rank 3".to_owned());
        // The first hundred may be anything, and NaN is not counted.
        let first: Vec<f64> = (0..100).map(|i| if i == 40 { -2.0 } else { 1.0 }).collect();
        look(&mut detector, &[f64::NAN, f64::INFINITY]).unwrap();
        look(&mut detector, &first).unwrap();
        look(&mut detector, &[19.9, f64::NAN, -19.9]).unwrap();
        let error = look(&mut detector, &[3.0, -20.0]).unwrap_err().to_string();
        for part in ["iteration 7, rank 3", "the loss is 20", "the 2 that", "--check-for-spiky-loss"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
