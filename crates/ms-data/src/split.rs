//! Splits: which part of a dataset is for training, validation and test.

use crate::{Error, Result};
use std::ops::Range;

/// Names of the three splits, in order.
pub(crate) const NAMES: [&str; 3] = ["train", "valid", "test"];

/// Three shares of a dataset, such as `969, 30, 1`; they need not sum to any particular number.
#[derive(Clone, Debug)]
pub struct Split {
    shares: [f64; 3],
    text: String,
}

/// Splits are equal if their shares are, however they were written.
impl PartialEq for Split {
    fn eq(&self, other: &Self) -> bool {
        self.shares == other.shares
    }
}

/// Ranges of sequences for train, valid, test; `None` where a split has no share.
pub type SplitRanges = [Option<Range<usize>>; 3];

impl Split {
    /// Parses `a,b,c`, `a/b/c` or fewer numbers, the missing ones being 0: every run of digits and points counts. Letters and
    /// signs, which Megatron skips silently, are refused.
    ///
    /// # Errors
    /// [`Error::Options`] if there is no number, or more than three, only zeros, or anything other than numbers.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |reason: &str| Error::options(format!("split {text:?}: {reason}"));
        let mut shares = [0.0; 3];
        let mut count = 0;
        let separates = |c: char| c.is_ascii_digit() || c.is_whitespace() || ".,/:;[]()".contains(c);
        if let Some(other) = text.chars().find(|&c| !separates(c)) {
            return Err(bad(&format!("expected numbers with commas between them, found {other:?}")));
        }
        for run in text.split(|c: char| !c.is_ascii_digit() && c != '.').filter(|run| !run.is_empty()) {
            if count == 3 {
                return Err(bad("expected at most three numbers"));
            }
            shares[count] = run.parse().map_err(|_| bad(&format!("{run:?} is not a number")))?;
            count += 1;
        }
        let sum: f64 = shares.iter().sum();
        if count == 0 || sum <= 0.0 || !sum.is_finite() {
            return Err(bad("expected numbers that sum to more than zero"));
        }
        Ok(Self { shares: shares.map(|share| share / sum), text: text.to_owned() })
    }

    /// The whole dataset for one split: 0 train, 1 valid, 2 test.
    ///
    /// # Panics
    /// If `which` is not below 3.
    pub fn only(which: usize) -> Self {
        let mut shares = [0.0; 3];
        shares[which] = 1.0;
        Self { shares, text: shares.map(|share| share.to_string()).join(",") }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Lower and upper bound of each split as shares of the dataset; `None` for an empty one. Source: Megatron-LM
    /// `core_r0.8.0` `blended_megatron_dataset_config.py`, `convert_split_vector_to_split_matrix`.
    pub fn matrix(&self) -> [Option<(f64, f64)>; 3] {
        let mut low = 0.0;
        self.shares.map(|share| {
            let bounds = (low, low + share);
            low += share;
            (bounds.0 < bounds.1).then_some(bounds)
        })
    }

    /// Ranges of a pretraining dataset of `n` sequences: bounds times `n`, rounded half to even.
    pub fn pretraining_ranges(&self, n: usize) -> SplitRanges {
        let at = |share: f64| (share * n as f64).round_ties_even() as usize;
        self.matrix().map(|bounds| bounds.map(|(low, high)| at(low)..at(high)))
    }

    /// Ranges of a fine-tuning dataset of `n` sequences: sizes are rounded one by one, then all bounds but the first are
    /// shifted so that the last is `n`. Source: MindSpeed-LLM v2.0.0 `mindspeed_llm/tasks/preprocess/utils.py`.
    pub fn finetuning_ranges(&self, n: usize) -> SplitRanges {
        let mut bounds = [0i64; 4];
        for k in 0..3 {
            bounds[k + 1] = bounds[k] + (self.shares[k] * n as f64).round_ties_even() as i64;
        }
        let excess = bounds[3] - n as i64;
        for bound in &mut bounds[1..] {
            *bound -= excess;
        }
        std::array::from_fn(|k| {
            let (low, high) = (bounds[k].max(0) as usize, bounds[k + 1].max(0) as usize);
            (low < high).then_some(low..high)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_do_not_matter_and_missing_shares_are_zero() {
        let thousand = Split::parse("969, 30, 1").unwrap();
        assert_eq!(thousand, Split::parse("969/30/1").unwrap());
        assert_eq!(thousand.pretraining_ranges(1000), [Some(0..969), Some(969..999), Some(999..1000)]);
        assert_eq!(Split::parse("100").unwrap().pretraining_ranges(7), [Some(0..7), None, None]);
    }

    #[test]
    fn halves_round_to_even() {
        let half = Split::parse("50,50,0").unwrap();
        assert_eq!(half.pretraining_ranges(5), [Some(0..2), Some(2..5), None]);
        assert_eq!(
            half.finetuning_ranges(5),
            [Some(0..3), Some(3..5), None],
            "the sizes 2, 2 are shifted to end at 5"
        );
    }

    #[test]
    fn nonsense_is_refused_with_the_text() {
        for text in ["", "a", "0,0", "1,2,3,4", "1..2"] {
            assert!(Split::parse(text).unwrap_err().to_string().contains(&format!("{text:?}")), "{text}");
        }
    }
}
