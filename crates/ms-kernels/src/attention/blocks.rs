//! Products of blocks, on the tiles of the matrix kernels.
//!
//! f32 operands are summed in natural order on every instruction set, bf16 ones in the order of their kernel's arithmetic.
//! What comes out of a block of scores is the left operand of the products that follow, in the order of their terms, where it
//! stands: in f32, or pairs of bf16. Only for matrix tiles it is packed once more.

use half::bf16;

use super::body::{BK, BQ};
use crate::Element;
use crate::element::is_bf16;
use crate::matmul::kernel::{Kernel, Order, Side, Source, Store, Tile, filled, steps};
use crate::narrow::fetch_rows;

/// Order of the terms of a product.
fn order<K: Kernel, E: Element>() -> Order {
    if is_bf16::<E>() { K::ORDER } else { Order::Natural }
}

/// Heads of one kind in memory: rows of `dim` elements, `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<E> {
    pub(super) data: *const E,
    pub(super) stride: usize,
    pub(super) dim: usize,
}

impl<E: Element> Rows<E> {
    /// Rows from `first` on.
    pub(super) fn from(self, first: usize) -> Self {
        Self { data: self.data.wrapping_add(first * self.stride), ..self }
    }

    /// Asks for so many rows.
    pub(super) fn fetch(self, rows: usize) {
        fetch_rows(self.data, self.stride, rows, self.dim);
    }

    /// Packs `rows` rows as lines, terms along the row: an operand of a product over the head size. Needs `packed_lines`
    /// elements.
    ///
    /// # Safety
    /// The rows must be readable, `to` must have room.
    pub(super) unsafe fn pack_lines<K: Kernel>(self, rows: usize, side: Side, to: *mut K::Packed) {
        let Self { data, stride, dim } = self;
        let filled = filled::<K>(dim);
        let source = Source { data, stride, terms: dim, filled, lines: rows, order: order::<K, E>() };
        // SAFETY: the caller's promise.
        unsafe { K::pack_contiguous(source, side, to) }
    }

    /// Packs `rows` rows as terms, lines along the row: an operand of a product over the rows. Needs `packed_terms` elements.
    ///
    /// # Safety
    /// The rows must be readable, `to` must have room.
    pub(super) unsafe fn pack_terms<K: Kernel>(self, rows: usize, side: Side, to: *mut K::Packed) {
        let Self { data, stride, dim } = self;
        let filled = filled::<K>(rows);
        let source = Source { data, stride, terms: rows, filled, lines: dim, order: order::<K, E>() };
        // SAFETY: the caller's promise.
        unsafe { K::pack_strided(source, side, to) }
    }
}

/// Elements that [`Rows::pack_lines`] writes.
pub(super) fn packed_lines<K: Kernel>(rows: usize, side: Side, dim: usize) -> usize {
    rows.next_multiple_of(side.width::<K>()) * steps::<K>(dim)
}

/// Elements that [`Rows::pack_terms`] writes.
pub(super) fn packed_terms<K: Kernel>(rows: usize, side: Side, dim: usize) -> usize {
    dim.next_multiple_of(side.width::<K>()) * steps::<K>(rows)
}

/// Elements rounded up to whole cache lines, so that what follows is aligned.
pub(super) fn lines(elements: usize) -> usize {
    elements.next_multiple_of(16)
}

/// `first..end` widened to whole steps of packed terms.
pub(super) fn whole_steps<K: Kernel>(first: usize, end: usize) -> (usize, usize) {
    (first / K::GRANULE * K::GRANULE, end.next_multiple_of(K::GRANULE))
}

/// A left operand: element (row, step) at `data[row / MR · panel + row % MR · row_stride + step · step_stride]`.
#[derive(Clone, Copy)]
pub(super) struct Left<P> {
    data: *const P,
    row_stride: usize,
    step_stride: usize,
    panel: usize,
}

impl<P> Left<P> {
    /// Rows of a block of f32, terms along them.
    pub(super) fn along<K: Kernel<Packed = P>>(block: *const f32) -> Self {
        Self { data: block.cast(), row_stride: BQ, step_stride: 1, panel: K::MR * BQ }
    }

    /// Columns of a block of f32, terms down them.
    pub(super) fn down<K: Kernel<Packed = P>>(block: *const f32) -> Self {
        Self { data: block.cast(), row_stride: 1, step_stride: BQ, panel: K::MR }
    }

    /// Rows of a block of bf16, pairs of terms along them.
    pub(super) fn pairs_along<K: Kernel<Packed = P>>(block: *const bf16) -> Self {
        Self { data: block.cast(), row_stride: BQ / 2, step_stride: 1, panel: K::MR * BQ / 2 }
    }

    /// Columns of a block of pairs of bf16.
    pub(super) fn pairs_down<K: Kernel<Packed = P>>(block: *const u32) -> Self {
        Self { data: block.cast(), row_stride: 1, step_stride: BQ, panel: K::MR }
    }

    /// Panels of `steps` steps each.
    pub(super) fn packed<K: Kernel<Packed = P>>(panels: *const P, steps: usize) -> Self {
        Self { data: panels, row_stride: 1, step_stride: K::MR, panel: K::MR * steps }
    }
}

/// Elements of the panels that a block is packed to, columns as lines or rows as lines.
pub(super) fn packed_block<K: Kernel>() -> usize {
    packed_lines::<K>(BK, Side::Left, BQ).max(packed_terms::<K>(BK, Side::Left, BQ))
}

/// A right operand packed by [`Rows::pack_terms`].
#[derive(Clone, Copy)]
pub(super) struct Right<P> {
    pub(super) data: *const P,
    /// Rows that were packed.
    pub(super) rows: usize,
    /// Head size.
    pub(super) dim: usize,
}

/// `c[i, d] (+)= Σ_{t in first..end} left[row + i, t − offset] · right[t, d]` for up to `MR` rows, `row` a multiple of `MR`.
/// `first..end` is widened to [`whole_steps`]; `offset` is a multiple of them.
///
/// # Safety
/// `c` must be writable for `rows` rows of `dim` values, `stride` apart; the operands must be readable, zero beyond their terms.
pub(super) unsafe fn add_rows<K: Kernel>(
    c: (*mut f32, usize),
    add: bool,
    left: Left<K::Packed>,
    (row, rows): (usize, usize),
    right: Right<K::Packed>,
    (first, end): (usize, usize),
    offset: usize,
) {
    let depth = steps::<K>(right.rows);
    let (first, end) = whole_steps::<K>(first, end);
    let a = left.data.wrapping_add(row / K::MR * left.panel + (first - offset) / K::TERMS * left.step_stride);
    let below = c.0.wrapping_add(K::MR * c.1);
    for (panel, d) in (0..right.dim).step_by(K::NR).enumerate() {
        let (to, stride) = (c.0.wrapping_add(d), c.1);
        let tile = Tile {
            steps: (end - first) / K::TERMS,
            a,
            a_row: left.row_stride,
            a_step: left.step_stride,
            b: right.data.wrapping_add(panel * K::NR * depth + first / K::TERMS * K::NR),
            start: add.then_some((to.cast_const(), stride)),
            bias: std::ptr::null(),
            store: Store::F32 { to, stride },
            next: (if d + K::NR < right.dim { to.wrapping_add(K::NR) } else { below }, stride),
            rows,
            cols: K::NR.min(right.dim - d),
        };
        // SAFETY: the caller's promise.
        unsafe { K::tile(&tile) }
    }
}

/// Scores of one panel of `MR` keys and `cols` queries of one panel: `c[key, query] = Σ_d key·query`.
///
/// # Safety
/// `c` must be writable for `MR` rows of `cols` values, `stride` apart; the panels must be packed.
pub(super) unsafe fn scores<K: Kernel>(
    c: (*mut f32, usize),
    keys: *const K::Packed,
    queries: *const K::Packed,
    dim: usize,
    cols: usize,
) {
    let tile = Tile {
        steps: steps::<K>(dim),
        a: keys,
        a_row: 1,
        a_step: K::MR,
        b: queries,
        start: None,
        bias: std::ptr::null(),
        store: Store::F32 { to: c.0, stride: c.1 },
        next: (c.0.wrapping_add(K::NR), c.1),
        rows: K::MR,
        cols,
    };
    // SAFETY: the caller's promise.
    unsafe { K::tile(&tile) }
}
