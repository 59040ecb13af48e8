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
    /// `--padded-samples`: each epoch is filled up to a multiple of this global batch size.
    pub fill_to: Option<u64>,
}

/// Sequence numbers of whole epochs of `sequences`, at least `samples` of them.
///
/// Filling takes 0, 1, 2, … whatever the split: so does upstream.
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
