//! Products of blocks, on the tiles of the matrix kernels.
//!
//! All operands are widened to f32 and summed in natural order, on every instruction set.

use crate::Element;
use crate::matmul::kernel::{Kernel, Order, Side, Source, Store, Tile, filled, steps};

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

    /// Packs `rows` rows as lines, terms along the row: an operand of a product over the head size. Needs `packed_lines` elements.
    ///
    /// # Safety
    /// The rows must be readable, `to` must have room.
    pub(super) unsafe fn pack_lines<K: Kernel>(self, rows: usize, side: Side, to: *mut K::Packed) {
        let Self { data, stride, dim } = self;
        let filled = filled::<K>(dim);
        let source = Source { data, stride, terms: dim, filled, lines: rows, order: Order::Natural };
        // SAFETY: the caller's promise.
        unsafe { K::pack_contiguous(source, side, to) }
    }

    /// Packs `rows` rows as terms, lines along the row: the right operand of a product over the rows. Needs
    /// `packed_terms` elements.
    ///
    /// # Safety
    /// The rows must be readable, `to` must have room.
    pub(super) unsafe fn pack_terms<K: Kernel>(self, rows: usize, to: *mut K::Packed) {
        let Self { data, stride, dim } = self;
        let filled = filled::<K>(rows);
        let source = Source { data, stride, terms: rows, filled, lines: dim, order: Order::Natural };
        // SAFETY: the caller's promise.
        unsafe { K::pack_strided(source, Side::Right, to) }
    }
}

/// Elements that [`Rows::pack_lines`] writes.
pub(super) fn packed_lines<K: Kernel>(rows: usize, side: Side, dim: usize) -> usize {
    rows.next_multiple_of(side.width::<K>()) * steps::<K>(dim)
}

/// Elements that [`Rows::pack_terms`] writes.
pub(super) fn packed_terms<K: Kernel>(rows: usize, dim: usize) -> usize {
    dim.next_multiple_of(K::NR) * steps::<K>(rows)
}

/// Elements rounded up to whole cache lines, so that what follows is aligned.
pub(super) fn lines(elements: usize) -> usize {
    elements.next_multiple_of(16)
}

/// A left operand in place: element (row, step) at `data[row·row_stride + step·step_stride]`.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) data: *const f32,
    pub(super) row_stride: usize,
    pub(super) step_stride: usize,
}

/// A right operand packed by [`Rows::pack_terms`].
#[derive(Clone, Copy)]
pub(super) struct Right {
    pub(super) data: *const f32,
    /// Rows that were packed.
    pub(super) rows: usize,
    /// Head size.
    pub(super) dim: usize,
}

/// `c[row, d] (+)= Σ_{t in first..end} left[row, t − first] · right[t, d]` for up to `MR` rows.
///
/// # Safety
/// `c` must be writable for `rows` rows of `dim` values, `stride` apart; the operands must be readable.
pub(super) unsafe fn add_rows<K: Kernel<Packed = f32>>(
    c: (*mut f32, usize),
    add: bool,
    left: Left,
    rows: usize,
    right: Right,
    first: usize,
    end: usize,
) {
    let depth = steps::<K>(right.rows);
    for (panel, d) in (0..right.dim).step_by(K::NR).enumerate() {
        let (to, stride) = (c.0.wrapping_add(d), c.1);
        let tile = Tile {
            steps: end - first,
            a: left.data,
            a_row: left.row_stride,
            a_step: left.step_stride,
            b: right.data.wrapping_add(panel * K::NR * depth + first * K::NR),
            start: add.then_some((to.cast_const(), stride)),
            bias: std::ptr::null(),
            store: Store::F32 { to, stride },
            next: (to.wrapping_add(K::NR), stride),
            rows,
            cols: K::NR.min(right.dim - d),
        };
        // SAFETY: the caller's promise.
        unsafe { K::tile(&tile) }
    }
}

/// Scores of one panel of `MR` keys and one panel of `NR` queries: `c[key, query] = Σ_d key·query`.
///
/// # Safety
/// `c` must be writable for `MR` rows of `NR` values, `stride` apart; the panels must be packed.
pub(super) unsafe fn scores<K: Kernel<Packed = f32>>(
    c: (*mut f32, usize),
    keys: *const f32,
    queries: *const f32,
    dim: usize,
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
        cols: K::NR,
    };
    // SAFETY: the caller's promise.
    unsafe { K::tile(&tile) }
}

/// Calls `work` with the kernel of an instruction set.
macro_rules! with_kernel {
    ($isa:expr, $function:ident ( $($arg:expr),* $(,)? )) => {
        match $isa {
            $crate::Isa::Portable => $function::<$crate::matmul::kernel::portable::Portable, _>($($arg),*),
            #[cfg(target_arch = "x86_64")]
            $crate::Isa::Avx2 => $function::<$crate::matmul::kernel::avx2::Avx2, _>($($arg),*),
            #[cfg(target_arch = "x86_64")]
            $crate::Isa::Avx512 | $crate::Isa::Avx512Bf16 | $crate::Isa::Amx => {
                $function::<$crate::matmul::kernel::avx512::Avx512, _>($($arg),*)
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => $function::<$crate::matmul::kernel::portable::Portable, _>($($arg),*),
        }
    };
}
pub(super) use with_kernel;
