//! Prefetching keys and values during the arithmetic on earlier ones.
//!
//! A core tracks only a few outstanding misses, and a burst of prefetches stalls the loads behind it; so each step of the
//! arithmetic issues a small share. The end of one block of memory prefetches the start of the next, which may be far away.

use half::bf16;

use super::Block;
use crate::prefetch::{LINE, fetch_far};

/// Bytes between what is prefetched and what is used.
const DISTANCE: usize = 32 << 10;
/// Bytes between the first and the second prefetch of a line: the processor drops some while too many are outstanding.
const AGAIN: usize = 8 << 10;

/// Cache lines in the order in which they will be read; if `TWICE`, each is prefetched a second time nearer to its use.
pub(super) struct Prefetch<const TWICE: bool> {
    at: *const i8,
    /// Lines left at `at`.
    left: usize,
    /// Start and number of the lines that follow.
    next: (*const i8, usize),
    lines_per_step: usize,
}

impl<const TWICE: bool> Prefetch<TWICE> {
    /// For arithmetic on `block` in `steps` steps, after which `next` is read.
    #[inline(always)]
    pub(super) fn new(block: Block<'_, bf16>, next: &[bf16], steps: usize) -> Self {
        // The rows of a cache are contiguous; between packed rows there is memory that nobody needs.
        let bytes = if block.token_stride > 4 * block.groups * block.dim {
            0
        } else {
            block.count * block.token_stride * size_of::<bf16>()
        };
        let first = DISTANCE.min(bytes);
        Self {
            at: block.data.as_ptr().cast::<i8>().wrapping_add(first),
            left: (bytes - first).div_ceil(LINE),
            next: (next.as_ptr().cast(), size_of_val(next).min(first).div_ceil(LINE)),
            lines_per_step: bytes.div_ceil(LINE).div_ceil(steps.max(1)),
        }
    }

    /// Prefetches one step's share into the second-level cache; the first is too small to hold them beside the keys in use.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        let lines = self.lines_per_step.min(self.left);
        for line in 0..lines {
            let line = self.at.wrapping_add(line * LINE);
            fetch_far(line);
            if TWICE {
                fetch_far(line.wrapping_sub(AGAIN));
            }
        }
        (self.at, self.left) = (self.at.wrapping_add(lines * LINE), self.left - lines);
        if self.left == 0 {
            (self.at, self.left) = std::mem::replace(&mut self.next, (self.at, 0));
        }
    }
}
