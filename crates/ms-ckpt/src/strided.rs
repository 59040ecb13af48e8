//! Elements of a tensor that does not lie in a row: views, transposes, expanded tensors.

use std::ops::Range;

/// Appends elements `range` of a strided tensor, in row-major order, to `out`.
///
/// `bytes` holds the storage, `start` is the first element's byte, `size` the bytes of an element.
pub(crate) fn gather(
    bytes: &[u8],
    start: usize,
    shape: &[usize],
    strides: &[usize],
    size: usize,
    range: Range<usize>,
    out: &mut Vec<u8>,
) {
    for i in range {
        let (mut rest, mut element) = (i, 0);
        for (&dim, &stride) in shape.iter().zip(strides).rev() {
            element += rest % dim * stride;
            rest /= dim;
        }
        let at = start + element * size;
        out.extend_from_slice(&bytes[at..at + size]);
    }
}
