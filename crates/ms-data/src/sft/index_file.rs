//! The order of a fine-tuning dataset, stored in a file next to it as upstream does.

use super::Order;
use crate::npy::{self, Array};
use crate::{Error, Result};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// `PREFIX_SPLIT_indexmap_NUMns_SEEDs[_padded_samples][_shuffle]_decoder_packed_idx.npy`.
fn path(prefix: &Path, split: &str, samples: u64, how: &Order) -> PathBuf {
    let mut name = prefix.as_os_str().to_os_string();
    let filled = if how.fill_to.is_some() { "_padded_samples" } else { "" };
    let shuffled = if how.shuffle { "_shuffle" } else { "" };
    name.push(format!(
        "_{split}_indexmap_{samples}ns_{}s{filled}{shuffled}_decoder_packed_idx.npy",
        how.seed
    ));
    name.into()
}

/// The order of the file, if it is there and can be one of `sequences` over the epochs that `samples` need.
///
/// The name says nothing about the data, and upstream believes it; an order that does not fit is not used here.
pub(super) fn read(
    prefix: &Path,
    split: &str,
    sequences: &Range<usize>,
    samples: u64,
    how: &Order,
) -> Option<Vec<i64>> {
    let path = path(prefix, split, samples, how);
    let order: Vec<i64> = Array::open(&path).ok()?.values().collect();
    let mut want = super::order(sequences.clone(), samples, &Order { shuffle: false, ..how.clone() });
    let mut found = order.clone();
    want.sort_unstable();
    found.sort_unstable();
    if want != found {
        tracing::warn!("{}: not an order of this set; it is built again", path.display());
        return None;
    }
    Some(order)
}

/// Writes the order.
pub(super) fn write(prefix: &Path, split: &str, samples: u64, how: &Order, order: &[i64]) -> Result<()> {
    let path = path(prefix, split, samples, how);
    npy::write(&path, 0, order.len(), order.iter().copied()).map_err(|error| match error {
        Error::Io { source, .. } => Error::Io { path, source },
        other => other,
    })
}
