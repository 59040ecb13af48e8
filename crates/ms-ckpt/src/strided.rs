//! Elements of non-contiguous tensors: views, transposes, expanded tensors.

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
    // Along the last dimension neighbours are a fixed step apart: only a row's first element is looked up.
    let (&columns, &step) = match (shape.last(), strides.last()) {
        (Some(n), Some(s)) => (n, s),
        _ => (&1, &1),
    };
    let mut i = range.start;
    while i < range.end {
        let (mut rest, mut element) = (i, 0);
        for (&dim, &stride) in shape.iter().zip(strides).rev() {
            element += rest % dim * stride;
            rest /= dim;
        }
        let n = (columns - i % columns).min(range.end - i);
        let first = start + element * size;
        if step == 1 {
            out.extend_from_slice(&bytes[first..first + n * size]);
        } else {
            match size {
                2 => strided::<2>(bytes, first, step, n, out),
                4 => strided::<4>(bytes, first, step, n, out),
                _ => (0..n).for_each(|k| {
                    let at = first + k * step * size;
                    out.extend_from_slice(&bytes[at..at + size]);
                }),
            }
        }
        i += n;
    }
}

/// `n` elements of `S` bytes, `step` elements apart.
fn strided<const S: usize>(bytes: &[u8], first: usize, step: usize, n: usize, out: &mut Vec<u8>) {
    let from = out.len();
    out.resize(from + n * S, 0);
    for (k, to) in out[from..].chunks_exact_mut(S).enumerate() {
        let at = first + k * step * S;
        to.copy_from_slice(&bytes[at..at + S]);
    }
}
