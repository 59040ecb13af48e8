//! The order of sequences over the epochs of a run.

use crate::random::RandomState;
use std::ops::Range;

/// How a split is ordered.
#[derive(Clone, Debug)]
pub struct Order {
    /// `--seed`.
    pub seed: u32,
    /// Not `--no-shuffle`.
    pub shuffle: bool,
    /// `--padded-samples`: each epoch is padded to a multiple of this global batch size.
    pub fill_to: Option<u64>,
    /// `--full-shuffle-instruction-dataset`: all epochs of a split are shuffled once more as one list, split after split,
    /// by Python's `random`. Upstream takes whatever state that is in; here it is fresh from the seed.
    pub full_shuffle: bool,
}

impl Order {
    /// Upstream's default: every epoch shuffled by itself.
    pub fn shuffled(seed: u32) -> Self {
        Self { seed, shuffle: true, fill_to: None, full_shuffle: false }
    }
}

/// Sequence numbers of whole epochs of `sequences`, at least `samples` of them.
///
/// [`Order::full_shuffle`] is for whoever knows the splits before. Filling takes 0, 1, 2, … whatever the split: so does upstream.
pub fn order(sequences: Range<usize>, samples: u64, how: &Order) -> Vec<i64> {
    let mut rng = RandomState::new(how.seed);
    let mut out: Vec<i64> = Vec::new();
    if sequences.is_empty() {
        return out;
    }
    while (out.len() as u64) < samples {
        let start = out.len();
        out.extend(sequences.clone().map(|i| i as i64));
        if let Some(batch) = how.fill_to {
            let rest = sequences.len() as u64 % batch;
            if rest != 0 {
                out.extend(0..(batch - rest) as i64);
            }
        }
        if how.shuffle {
            rng.shuffle(&mut out[start..]);
        }
    }
    out
}
