//! Random keys of tokens: what is drawn for a token depends on which token it is, not on which rank holds it.

use ms_core::mix;
use ms_data::MicroBatch;

/// A key of each token of a micro-batch `[T]`, by the seed, the iteration, its sample and its place in the sample: the same
/// whichever rank has it.
pub(super) fn keys(seed: u64, iteration: u64, mb: &MicroBatch) -> Vec<u64> {
    let of_iteration = mix(mix(seed) ^ iteration);
    let mut keys = Vec::with_capacity(mb.tokens.len());
    let mut start = 0;
    for (row, &end) in mb.row_ends.iter().enumerate() {
        // Rows of pairs: all chosen ones, then all rejected ones of the same samples.
        let many = mb.samples.len().max(1);
        let sample = mb.samples.get(row % many).copied().unwrap_or(row as u64);
        let of_row = mix(mix(of_iteration ^ sample) ^ (row / many) as u64);
        keys.extend((start..end).map(|t| mix(of_row.wrapping_add((t - start) as u64))));
        start = end;
    }
    keys
}
