//! Bytes that a rank sends in an operation (the minimum for the best algorithm, whatever the transport), and what parts it has.

use crate::{Error, Result};
use ms_core::Tensor;

/// Bytes of a tensor's elements.
pub fn bytes(t: &Tensor) -> usize {
    t.numel() * t.dtype().size()
}

/// For an all-reduce of `t` over `size` ranks.
pub fn all_reduce(t: &Tensor, size: usize) -> usize {
    2 * bytes(t) * (size - 1) / size
}

/// For an all-gather of a rank's `t`.
pub fn all_gather(t: &Tensor, size: usize) -> usize {
    bytes(t) * (size - 1)
}

/// The shape of what an all-gather of `size` tensors like `t` gives.
pub fn gathered(t: &Tensor, size: usize) -> Vec<usize> {
    let mut shape = t.shape().to_vec();
    match shape.first_mut() {
        Some(rows) => *rows *= size,
        None => shape.push(size),
    }
    shape
}

/// For a broadcast of `t` to `size` ranks, by its root or by another rank.
pub fn broadcast(t: &Tensor, size: usize, by_root: bool) -> usize {
    if by_root && size > 1 { bytes(t) } else { 0 }
}

/// For operations that send each of `size` ranks an equal part of `t`: reduce-scatter and all-to-all.
pub fn parts(t: &Tensor, size: usize) -> usize {
    bytes(t) / size * (size - 1)
}

/// For an exchange of rows of `t`: `rows[r]` are for rank `r`, and this rank is `rank`.
pub fn rows(t: &Tensor, rows: &[usize], rank: usize) -> usize {
    let (all, width) = t.as_matrix();
    (all - rows[rank]) * width * t.dtype().size()
}

/// Holds that `numel` elements of what is called `name` can be divided among `size` ranks.
///
/// # Errors
/// [`Error::Indivisible`] if they cannot.
pub fn check_parts(name: &'static str, numel: usize, size: usize) -> Result<()> {
    if numel.is_multiple_of(size) { Ok(()) } else { Err(Error::Indivisible { name, numel, size }) }
}

/// Holds that `rows` says for each of `size` ranks how many rows of `t` it gets.
///
/// # Errors
/// If there are other ranks, or more or fewer rows.
pub fn check_rows(t: &Tensor, rows: &[usize], size: usize) -> Result<()> {
    let (len, end) = (t.as_matrix().0, rows.iter().sum());
    if rows.len() == size && end == len {
        Ok(())
    } else {
        Err(ms_core::Error::Range { what: "rows to send", start: 0, end, len }.into())
    }
}
