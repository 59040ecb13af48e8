//! Numbered training rows.

use crate::Result;

/// One training row, aligned: position `i` sees `tokens[..=i]` of its segment and predicts `labels[i]`.
///
/// All vectors but `segment_ends` have the length of the row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Input ids; never negative.
    pub tokens: Vec<i32>,
    /// The id that follows each input; where `loss_mask` is 0 it means nothing (and is 0 or the pad id).
    pub labels: Vec<i32>,
    /// 1.0 where the loss counts, else 0.0.
    pub loss_mask: Vec<f32>,
    /// Position of each token for rotary or learned positions.
    pub position_ids: Vec<i32>,
    /// Ends of the stretches that attend only within themselves; ascending, the last is the row's length.
    pub segment_ends: Vec<i32>,
    /// For preference pairs: the other answer. `self` is then the chosen one.
    pub rejected: Option<Box<Sample>>,
}

/// A numbered dataset of training rows. Reading a row is deterministic: same number, same row.
pub trait Samples: Send + Sync {
    /// Number of rows.
    fn len(&self) -> u64;

    /// Row `index`.
    ///
    /// # Errors
    /// [`crate::Error::NoSuchSample`] outside the set; whatever reading the files gives.
    fn get(&self, index: u64) -> Result<Sample>;

    /// Tokens of row `index` of the set, where that is known without reading it.
    fn row_tokens(&self, _index: u64) -> Option<usize> {
        None
    }

    /// Whether there is no row.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<S: Samples + ?Sized> Samples for std::sync::Arc<S> {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn get(&self, index: u64) -> Result<Sample> {
        (**self).get(index)
    }

    fn row_tokens(&self, index: u64) -> Option<usize> {
        (**self).row_tokens(index)
    }
}

/// Rows whose document boundaries are ignored: every `length` tokens attend only within themselves.
///
/// # Source
/// MindSpeed-LLM, `--fix-sub-seq-length`: for measurements.
pub struct FixedSubSequences {
    /// The rows.
    pub rows: std::sync::Arc<dyn Samples>,
    /// Tokens of a stretch; not 0.
    pub length: usize,
}

impl Samples for FixedSubSequences {
    fn len(&self) -> u64 {
        self.rows.len()
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let mut row = self.rows.get(index)?;
        let all = row.tokens.len();
        let ends = (1..all.div_ceil(self.length.max(1))).map(|i| (i * self.length) as i32);
        row.segment_ends = ends.chain([all as i32]).collect();
        Ok(row)
    }

    fn row_tokens(&self, index: u64) -> Option<usize> {
        self.rows.row_tokens(index)
    }
}

pub(crate) fn check_index(index: u64, len: u64) -> Result<()> {
    if index < len { Ok(()) } else { Err(crate::Error::NoSuchSample { index, len }) }
}
