//! Copying a region with its last two dimensions swapped, a strip of columns at a time.

use ms_core::{DType, Region};

use crate::checkpoint::Checkpoint;
use crate::name::Name;
use crate::{Error, Result};

/// Bytes of a strip.
const STRIP: usize = 1 << 21;

/// First elements of the rows of each matrix of a region, and the elements of a row; `None` if a row is not one run.
pub(crate) fn matrices(region: &Region) -> Option<(Vec<Vec<usize>>, usize)> {
    let local = region.local_shape();
    let n = local.len();
    if n < 2 {
        return None;
    }
    let (rows, columns) = (local[n - 2], local[n - 1]);
    let mut starts = Vec::new();
    for (start, len) in region.runs() {
        if columns == 0 || len % columns != 0 {
            return None;
        }
        starts.extend((0..len / columns).map(|r| start + r * columns));
    }
    Some((starts.chunks(rows.max(1)).map(<[usize]>::to_vec).collect(), columns))
}

impl Checkpoint {
    /// As [`Checkpoint::copy`], with the last two dimensions of the region swapped.
    pub(crate) fn copy_transposed(
        &self,
        name: &Name,
        region: &Region,
        dtype: DType,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (matrices, columns) = matrices(region)
            .ok_or_else(|| Error::Cut(format!("{name}: rows of a transposed tensor are cut")))?;
        let size = dtype.size();
        let flat = |starts: &[usize], columns: usize, first: usize| {
            // The strip as a region of the flattened tensor.
            let runs = starts.iter().map(|s| s + first..s + first + columns);
            Region::along(&[region.shape.numel()].into(), 0, runs)
        };
        let (mut strip, mut turned) = (Vec::new(), Vec::new());
        for starts in matrices {
            let rows = starts.len();
            let width = (STRIP / (rows * size).max(1)).clamp(1, columns.max(1));
            for first in (0..columns).step_by(width) {
                let width = width.min(columns - first);
                strip.clear();
                self.copy_flat(name, &flat(&starts, width, first), dtype, &mut |bytes| {
                    strip.extend_from_slice(bytes);
                    Ok(())
                })?;
                turned.resize(strip.len(), 0);
                match size {
                    2 => turn::<2>(&strip, &mut turned, rows, width),
                    4 => turn::<4>(&strip, &mut turned, rows, width),
                    8 => turn::<8>(&strip, &mut turned, rows, width),
                    _ => turn::<1>(&strip, &mut turned, rows, width),
                }
                sink(&turned)?;
            }
        }
        Ok(())
    }
}

/// `[rows, columns]` elements of `S` bytes into `[columns, rows]`.
fn turn<const S: usize>(from: &[u8], to: &mut [u8], rows: usize, columns: usize) {
    const BLOCK: usize = 32; // elements of a side: two blocks stay in the first cache
    for r0 in (0..rows).step_by(BLOCK) {
        for c0 in (0..columns).step_by(BLOCK) {
            for c in c0..(c0 + BLOCK).min(columns) {
                for r in r0..(r0 + BLOCK).min(rows) {
                    let (a, b) = ((r * columns + c) * S, (c * rows + r) * S);
                    to[b..b + S].copy_from_slice(&from[a..a + S]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_matrix_are_found() {
        // Rows 1 and 3 of both experts of [2, 4, 3].
        let region = Region { lead: Some(0..2), ..Region::along(&[2, 4, 3].into(), 1, [1..2, 3..4]) };
        assert_eq!(matrices(&region), Some((vec![vec![3, 9], vec![15, 21]], 3)));
        let columns = Region::along(&[2, 2, 4].into(), 2, std::iter::once(1..3));
        assert_eq!(matrices(&columns), Some((vec![vec![1, 5], vec![9, 13]], 2)));
        assert_eq!(matrices(&Region::along(&[4].into(), 0, std::iter::once(0..4))), None);
    }

    #[test]
    fn a_matrix_is_turned() {
        let from: Vec<u8> = (0..6).flat_map(|i| [i, 100 + i]).collect();
        let mut to = vec![0; 12];
        turn::<2>(&from, &mut to, 2, 3);
        assert_eq!(to, [0, 100, 3, 103, 1, 101, 4, 104, 2, 102, 5, 105]);
    }
}
