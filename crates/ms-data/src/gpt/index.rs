//! The document, sample and shuffle indices of one dataset and split.

use crate::random::RandomState;
use crate::{Error, Result};

/// Tokens that consecutive samples share: the label of the last position of one is the first input of the next.
const EXTRA: i64 = 1;

/// The order of samples of one split of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GptIndex {
    /// Sequence numbers in reading order; each occurs once per epoch.
    pub documents: Vec<i32>,
    /// Where each sample starts: (position in `documents`, token offset in that sequence). One row more than samples.
    pub samples: Vec<(i64, i64)>,
    /// Sample number → row of `samples`.
    pub shuffle: Vec<u32>,
    /// Tokens of one epoch.
    pub tokens_per_epoch: i64,
    /// Number of epochs.
    pub epochs: i64,
    /// Whether the last epoch is shuffled on its own, because few of its samples are needed.
    pub separate_last_epoch: bool,
}

impl GptIndex {
    /// Builds the indices.
    ///
    /// `sequences` are the numbers of the split's sequences; `length(i)` gives the tokens of sequence `i`; `row_tokens` is
    /// the length of a sample without the extra token; `samples` the number needed, or `None` for one epoch.
    ///
    /// Memory: 4 bytes per sequence and epoch, 20 per sample.
    ///
    /// # Errors
    /// The reason, if there are no tokens, or no whole sample fits, or the dataset is too large for the format.
    pub fn build(
        sequences: std::ops::Range<usize>,
        length: impl Fn(usize) -> usize,
        row_tokens: usize,
        samples: Option<u64>,
        seed: u32,
    ) -> std::result::Result<Self, String> {
        let row = row_tokens as i64;
        let per_epoch: i64 = sequences.clone().map(|i| length(i) as i64).sum();
        if per_epoch == 0 {
            // Upstream adds epochs forever here.
            return Err("it holds no tokens".into());
        }
        let epochs = match samples {
            None => 1,
            Some(samples) => {
                let need = i64::try_from(samples).ok().and_then(|s| s.checked_mul(row)?.checked_add(EXTRA));
                let need = need.ok_or_else(|| format!("{samples} samples are too many"))?;
                need.div_euclid(per_epoch) + i64::from(need % per_epoch != 0)
            }
        }
        .max(1);
        let separate_last_epoch = separate_last_epoch(samples, epochs, per_epoch, row)?;
        let entries = (sequences.len() as i64).saturating_mul(epochs);
        if i32::try_from(sequences.end).is_err() || entries > i64::from(i32::MAX) * 4 {
            return Err(format!("{entries} sequences over {epochs} epochs are too many"));
        }

        let mut rng = RandomState::new(seed);
        let mut documents = Vec::with_capacity(entries as usize);
        let add_epochs = |documents: &mut Vec<i32>, count: i64, rng: &mut RandomState| {
            let start = documents.len();
            for _ in 0..count {
                documents.extend(sequences.clone().map(|i| i as i32));
            }
            rng.shuffle(&mut documents[start..]);
        };
        if separate_last_epoch {
            add_epochs(&mut documents, epochs - 1, &mut rng);
            add_epochs(&mut documents, 1, &mut rng);
        } else {
            add_epochs(&mut documents, epochs, &mut rng);
        }

        let rows = cut_into_samples(&documents, &length, row, epochs * per_epoch);
        let count = rows.len() - 1;
        if count as u64 >= u64::from(u32::MAX) - 1 {
            return Err(format!("{count} samples are more than 2^32"));
        }
        let mut shuffle: Vec<u32> = (0..count as u32).collect();
        if separate_last_epoch {
            let first = ((epochs - 1) * per_epoch - EXTRA).div_euclid(row) as usize;
            let (head, tail) = shuffle.split_at_mut(first);
            rng.shuffle(head);
            rng.shuffle(tail);
        } else {
            rng.shuffle(&mut shuffle);
        }
        Ok(Self {
            documents,
            samples: rows,
            shuffle,
            tokens_per_epoch: per_epoch,
            epochs,
            separate_last_epoch,
        })
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.shuffle.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.shuffle.is_empty()
    }
}

/// The last epoch is kept apart if less than 80 % of its samples are needed, so that it is not over-represented.
pub(super) fn separate_last_epoch(
    samples: Option<u64>,
    epochs: i64,
    per_epoch: i64,
    row: i64,
) -> std::result::Result<bool, String> {
    let Some(samples) = samples.filter(|_| epochs > 1) else { return Ok(false) };
    let without_last = ((epochs - 1) * per_epoch - EXTRA).div_euclid(row);
    let from_last = samples as i64 - without_last;
    let in_epoch = (per_epoch - EXTRA).div_euclid(row);
    if from_last < 0 || from_last > in_epoch + 1 {
        return Err(format!(
            "{samples} samples over {epochs} epochs take {from_last} of the last one's {in_epoch}"
        ));
    }
    Ok(from_last < (0.80 * in_epoch as f64) as i64)
}

/// Start of every sample, and one row for the end of the last.
fn cut_into_samples(
    documents: &[i32],
    length: &impl Fn(usize) -> usize,
    row: i64,
    tokens: i64,
) -> Vec<(i64, i64)> {
    let count = ((tokens - EXTRA) / row).max(0) as usize;
    let mut rows = Vec::with_capacity(count + 1);
    rows.push((0, 0));
    let (mut at, mut offset) = (0usize, 0i64);
    for _ in 0..count {
        let mut remaining = row + EXTRA;
        loop {
            let left = length(documents[at] as usize) as i64 - offset;
            remaining -= left;
            if remaining <= 0 {
                offset += remaining + left - EXTRA;
                break;
            }
            if at + 1 == documents.len() {
                offset = length(documents[at] as usize) as i64 - EXTRA;
                break;
            }
            at += 1;
            offset = 0;
        }
        rows.push((at as i64, offset));
    }
    rows
}

/// [`GptIndex::build`] with an error that names the set.
pub(super) fn build_for(
    set: &super::Source,
    split: &'static str,
    sequences: std::ops::Range<usize>,
    row_tokens: usize,
    samples: Option<u64>,
    seed: u32,
) -> Result<GptIndex> {
    let empty = sequences.clone().all(|i| set.length(i) == 0);
    if empty {
        return Err(Error::EmptySplit { path: set.name().into(), split, samples: samples.unwrap_or(0) });
    }
    GptIndex::build(sequences, |i| set.length(i), row_tokens, samples, seed).map_err(|reason| Error::Input {
        path: set.name().into(),
        reason: format!("{split} split: {reason}"),
    })
}
