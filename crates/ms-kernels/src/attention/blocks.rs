//! Products of blocks, on the tiles of the matrix kernels.
//!
//! f32 operands are summed in natural order on every instruction set, bf16 ones in the order of their kernel's arithmetic.
//! The result of a block of scores is the left operand of the products that follow, in place and in the order of their terms:
//! in f32, or pairs of bf16. Only for AMX tiles it is packed once more.

use std::marker::PhantomData;

use half::bf16;

use super::body::{BK, BQ, STRIDE};
use crate::Element;
use crate::element::is_bf16;
use crate::matmul::kernel::{Kernel, Order, Side, Source, Store, Tile, filled, steps};
use crate::prefetch::fetch_rows;

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

    /// The same part of the rows `offset` elements on.
    pub(super) fn at(self, offset: usize) -> Self {
        Self { data: self.data.wrapping_add(offset), ..self }
    }

    /// The first row.
    ///
    /// # Safety
    /// It must be readable, and nobody may write it, for as long as the slice lives.
    pub(super) unsafe fn first<'a>(self) -> &'a [E] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.data, self.dim) }
    }

    /// Prefetches this many rows.
    #[inline(always)]
    pub(super) fn fetch(self, rows: usize) {
        fetch_rows(self.data, self.stride, rows, self.dim);
    }

    /// The rows as a left operand where they stand, if the kernel can read them there: its packed elements are then pieces of
    /// them, in their order.
    pub(super) fn in_place<K: Kernel>(self) -> Option<Left<K::Packed>> {
        let Self { data, stride, dim } = self;
        let data = data.cast::<K::Packed>();
        let pieces = K::TERMS * size_of::<E>() == size_of::<K::Packed>();
        let whole = stride.is_multiple_of(K::TERMS) && dim.is_multiple_of(K::GRANULE);
        let row_stride = stride / K::TERMS;
        (K::LEFT_IN_PLACE && pieces && whole && data.is_aligned()).then_some(Left {
            data,
            row_stride,
            step_stride: 1,
            panel: K::MR * row_stride,
        })
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
        Self { data: block.cast(), row_stride: STRIDE, step_stride: 1, panel: K::MR * STRIDE }
    }

    /// Columns of a block of f32, terms down them.
    pub(super) fn down<K: Kernel<Packed = P>>(block: *const f32) -> Self {
        Self { data: block.cast(), row_stride: 1, step_stride: STRIDE, panel: K::MR }
    }

    /// Rows of a block of bf16, pairs of terms along them.
    pub(super) fn pairs_along<K: Kernel<Packed = P>>(block: *const bf16) -> Self {
        Self { data: block.cast(), row_stride: STRIDE / 2, step_stride: 1, panel: K::MR * STRIDE / 2 }
    }

    /// Columns of a block of pairs of bf16.
    pub(super) fn pairs_down<K: Kernel<Packed = P>>(block: *const u32) -> Self {
        Self { data: block.cast(), row_stride: 1, step_stride: STRIDE, panel: K::MR }
    }

    /// The rows from `first` on, a multiple of `MR`.
    pub(super) fn from<K: Kernel<Packed = P>>(self, first: usize) -> Self {
        Self { data: self.data.wrapping_add(first / K::MR * self.panel), ..self }
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

/// Scores of `rows` keys of a panel from row `row` on and `cols` queries of one panel: `c[key, query] = Σ_d key·query`.
///
/// # Safety
/// `c` must be writable for `rows` rows of `cols` values, `stride` apart; the keys must be readable and the queries packed.
pub(super) unsafe fn scores<K: Kernel>(
    c: (*mut f32, usize),
    keys: Left<K::Packed>,
    (row, rows): (usize, usize),
    queries: *const K::Packed,
    dim: usize,
    cols: usize,
) {
    let tile = Tile {
        steps: steps::<K>(dim),
        a: keys.from::<K>(row).data,
        a_row: keys.row_stride,
        a_step: keys.step_stride,
        b: queries,
        start: None,
        bias: std::ptr::null(),
        store: Store::F32 { to: c.0, stride: c.1 },
        next: (c.0.wrapping_add(K::NR), c.1),
        rows,
        cols,
    };
    // SAFETY: the caller's promise.
    unsafe { K::tile(&tile) }
}

/// Keys and values of a group of a segment as operands, in blocks of `BK` keys.
///
/// Keys are read in place if possible. What must be packed is packed when a block is first requested, so that it is in a near
/// cache; or all at once, for several threads.
pub(super) struct Operands<'a, K: Kernel, E> {
    keys: Rows<E>,
    values: Rows<E>,
    len: usize,
    in_place: Option<Left<K::Packed>>,
    room: *mut K::Packed,
    packed: usize,
    borrow: PhantomData<&'a mut [K::Packed]>,
}

impl<'a, K: Kernel, E: Element> Operands<'a, K, E> {
    /// Packed elements of a block of keys, none if they are not packed, and of values.
    fn sizes(keys: Rows<E>) -> (usize, usize) {
        let values = packed_terms::<K>(BK, Side::Right, keys.dim);
        let packed = keys.in_place::<K>().is_none();
        (if packed { packed_lines::<K>(BK, Side::Left, keys.dim) } else { 0 }, values)
    }

    /// Packed elements of `len` keys and values.
    pub(super) fn room(keys: Rows<E>, len: usize) -> usize {
        let (keys, values) = Self::sizes(keys);
        lines(len.div_ceil(BK) * (keys + values))
    }

    /// `len` keys and values, none of them packed yet.
    pub(super) fn new(keys: Rows<E>, values: Rows<E>, len: usize, room: &'a mut [K::Packed]) -> Self {
        assert!(room.len() >= Self::room(keys, len), "room for all blocks");
        let in_place = keys.in_place::<K>();
        Self { keys, values, len, in_place, room: room.as_mut_ptr(), packed: 0, borrow: PhantomData }
    }

    /// The same again after [`Operands::pack`]: it only reads.
    pub(super) fn shared(keys: Rows<E>, values: Rows<E>, len: usize, room: &'a [K::Packed]) -> Self {
        assert!(room.len() >= Self::room(keys, len), "room for all blocks");
        let (room, in_place) = (room.as_ptr().cast_mut(), keys.in_place::<K>());
        Self { keys, values, len, in_place, room, packed: usize::MAX, borrow: PhantomData }
    }

    /// Packs every block.
    ///
    /// # Safety
    /// The rows must be readable.
    pub(super) unsafe fn pack(&mut self) {
        for k0 in (0..self.len).step_by(BK) {
            // SAFETY: the caller's promise.
            unsafe {
                self.keys(k0);
                self.values(k0);
            }
        }
    }

    fn at(&self, k0: usize) -> (*mut K::Packed, usize) {
        let (keys, values) = Self::sizes(self.keys);
        (self.room.wrapping_add(k0 / BK * (keys + values)), keys)
    }

    /// The block of keys from `k0` on, a multiple of `BK`; the values of the preceding block must have been requested.
    ///
    /// # Safety
    /// The rows must be readable.
    pub(super) unsafe fn keys(&mut self, k0: usize) -> Left<K::Packed> {
        if let Some(left) = self.in_place {
            return left.from::<K>(k0);
        }
        let (to, _) = self.at(k0);
        if k0 / BK >= self.packed {
            // SAFETY: the rows are the caller's promise; there is room for every block.
            unsafe { self.keys.from(k0).pack_lines::<K>(BK.min(self.len - k0), Side::Left, to) };
        }
        Left::packed::<K>(to, steps::<K>(self.keys.dim))
    }

    /// The block of values from key `k0` on, a multiple of `BK`, row 0 being that key's.
    ///
    /// # Safety
    /// As for [`Operands::keys`], which must have been called for this block.
    pub(super) unsafe fn values(&mut self, k0: usize) -> Right<K::Packed> {
        let (to, keys) = self.at(k0);
        let (to, rows) = (to.wrapping_add(keys), BK.min(self.len - k0));
        if k0 / BK >= self.packed {
            // SAFETY: as there.
            unsafe { self.values.from(k0).pack_terms::<K>(rows, Side::Right, to) };
            self.packed = k0 / BK + 1;
        }
        Right { data: to, rows, dim: self.values.dim }
    }

    /// Asks for the rows that are used after panel `panel` of the keys from `k0` on.
    pub(super) fn fetch_after(&self, k0: usize, panel: usize) {
        let row = k0 + (panel + AHEAD) * K::MR;
        if self.in_place.is_some() && row < self.len {
            self.keys.from(row).fetch(K::MR.min(self.len - row));
        }
        let row = k0 + panel * K::MR;
        if k0 / BK >= self.packed && row < self.len {
            self.values.from(row).fetch(K::MR.min(self.len - row));
        }
    }
}

/// Panels of keys that their rows are prefetched.
const AHEAD: usize = 2;
