//! Packing and the register tile, one type per instruction set.
//!
//! A packed panel holds `width` rows (or columns) of an operand with `k` outermost: `panel[step][width]`. The terms of `k`
//! are in the order in which they are summed, see [`Order`], and are padded with zero terms to whole pairs, or to whole tiles
//! of [`tile32`]. Unused rows of the last panel are zero.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512bf16;
pub(crate) mod bfdot;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;
pub(crate) mod tile32;

use bytemuck::Pod;

use crate::Element;

/// Where a tile's sums go.
#[derive(Clone, Copy)]
pub(crate) enum Store {
    /// As they are.
    F32 { to: *mut f32, stride: usize },
    /// Rounded to bf16.
    Bf16 { to: *mut half::bf16, stride: usize },
}

#[cfg(target_arch = "x86_64")]
impl Store {
    /// Address of the first row, and bytes of `NR` columns and from one row to the next.
    #[inline(always)]
    fn bytes<const NR: usize>(self) -> (*const i8, usize, usize) {
        match self {
            Store::F32 { to, stride } => (to.cast_const().cast(), NR * 4, stride * 4),
            Store::Bf16 { to, stride } => (to.cast_const().cast(), NR * 2, stride * 2),
        }
    }
}

/// One tile of at most `MR` rows and `NR` columns of a product.
#[derive(Clone, Copy)]
pub(crate) struct Tile<P> {
    /// Packed steps of `k`.
    pub(crate) steps: usize,
    /// Row 0, step 0 of the left operand.
    pub(crate) a: *const P,
    /// Elements from one row of `a` to the next: 1 in a panel.
    pub(crate) a_row: usize,
    /// Elements from one step of `a` to the next: `MR` in a panel.
    pub(crate) a_step: usize,
    /// Panel of the right operand, `NR` elements a step.
    pub(crate) b: *const P,
    /// Where the sums start from: nothing for zero, otherwise address and stride.
    pub(crate) start: Option<(*const f32, usize)>,
    /// `NR` values to add to each finished row, or null.
    pub(crate) bias: *const f32,
    /// Where the sums go.
    pub(crate) store: Store,
    /// Address and stride of the sums that the tile after this one starts from, to fetch meanwhile. A hint: any
    /// address will do.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    pub(crate) next: (*const f32, usize),
    /// Rows to compute, 1 to `MR`.
    pub(crate) rows: usize,
    /// Columns to read and write, 1 to `NR`.
    pub(crate) cols: usize,
}

/// A part of an operand to pack.
#[derive(Clone, Copy)]
pub(crate) struct Source<E> {
    /// First element.
    pub(crate) data: *const E,
    /// Elements from one line of memory to the next.
    pub(crate) stride: usize,
    /// Terms of `k`.
    pub(crate) terms: usize,
    /// Terms of a panel: those of `k`, then zeros.
    pub(crate) filled: usize,
    /// Rows of `a` or columns of `b`.
    pub(crate) lines: usize,
    /// Order of the packed terms.
    pub(crate) order: Order,
}

impl<E: Element> Source<E> {
    /// The bits of a bf16 source.
    ///
    /// # Panics
    /// If the elements are not bf16.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn bits(self) -> Source<u16> {
        assert!(crate::element::is_bf16::<E>(), "the kernels of bf16 are chosen for bf16 operands only");
        let Source { data, stride, terms, filled, lines, order } = self;
        Source { data: data.cast(), stride, terms, filled, lines, order }
    }
}

/// Order in which terms of `k` are packed, and so summed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// 0, 1, 2, 3, ...
    Natural,
    /// 1, 0, 3, 2, ...: the order of the bf16 dot instruction.
    Swapped,
}

impl Order {
    /// Where term `k` stands.
    #[inline(always)]
    pub(crate) fn position(self, k: usize) -> usize {
        k ^ usize::from(self == Order::Swapped)
    }
}

/// Which operand a panel is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// `a`: panels of `MR` rows.
    Left,
    /// `b`: panels of `NR` columns.
    Right,
}

impl Side {
    /// Rows or columns of a panel.
    pub(crate) const fn width<K: Kernel>(self) -> usize {
        match self {
            Side::Left => K::MR,
            Side::Right => K::NR,
        }
    }
}

/// The inner loops for one instruction set.
pub(crate) trait Kernel: Copy + Send + Sync + 'static {
    /// Rows of a tile.
    const MR: usize;
    /// Columns of a tile.
    const NR: usize;
    /// Terms of `k` in one packed element.
    const TERMS: usize;
    /// Panels are padded to a multiple of this many terms.
    const GRANULE: usize = 2;
    /// Order of the terms in a panel of a matrix product.
    const ORDER: Order = Order::Swapped;
    /// Most packed steps in a block of `k`: a panel of `NR` then fits the first-level cache.
    const DEPTH: usize;
    /// Maximum rows of `a` that are packed together: they fit into the second-level cache together with the streamed data.
    const BLOCK_ROWS: usize = 1008;
    /// Whether a left operand may stand anywhere, its rows and steps as [`Tile`] says, and need not be packed.
    const LEFT_IN_PLACE: bool = true;
    /// A tile may begin at a multiple of this many columns of a panel, with `b` advanced by as many elements.
    const COLUMN_STEP: usize = Self::NR;
    /// What panels are made of.
    type Packed: Pod + Send + Sync;

    /// Prepares this thread for calls of [`Kernel::tile`], until [`Kernel::end`].
    ///
    /// # Safety
    /// The instruction set must be there; [`Kernel::end`] must follow on this thread, with nothing of another kernel between.
    #[inline(always)]
    unsafe fn begin() {}

    /// Undoes [`Kernel::begin`].
    ///
    /// # Safety
    /// The instruction set must be there.
    #[inline(always)]
    unsafe fn end() {}

    /// Packs a source whose `k` is contiguous: line `i`, term `k` at `data[i·stride + k]`.
    ///
    /// # Safety
    /// The source must be readable; `to` must have room for all panels, one after another, of the side's width for
    /// each packed step; the instruction set must be there.
    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut Self::Packed);

    /// Packs a source whose `k` is strided: line `i`, term `k` at `data[k·stride + i]`.
    ///
    /// # Safety
    /// As for [`Kernel::pack_contiguous`].
    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut Self::Packed);

    /// Computes one tile.
    ///
    /// # Safety
    /// All that [`Tile`] points to must be readable, and `store` writable, for the stated sizes; nobody else may
    /// use the stored part meanwhile; the instruction set must be there.
    unsafe fn tile(tile: &Tile<Self::Packed>);
}

/// Terms of a panel that holds `terms` terms.
pub(crate) fn filled<K: Kernel>(terms: usize) -> usize {
    terms.next_multiple_of(K::GRANULE)
}

/// Packed steps of `terms` terms.
pub(crate) fn steps<K: Kernel>(terms: usize) -> usize {
    filled::<K>(terms) / K::TERMS
}

/// Repeats a block for each row of a tile, with the row as a constant. Written out, for the compiler may leave a loop
/// as a loop, and then the sums in memory.
macro_rules! each_row {
    ($row:ident < $rows:ident, $($body:tt)*) => {
        each_row!(@ $row $rows [0 1 2 3 4 5] { $($body)* })
    };
    (@ $row:ident $rows:ident [$($n:literal)*] $body:tt) => {
        $(if $n < $rows {
            const $row: usize = $n;
            $body
        })*
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use each_row;

/// Calls `$rows` for the rows of a tile.
macro_rules! by_rows {
    ($tile:expr, $rows:ident $(, $panel:tt)?) => {
        match $tile.rows {
            1 => $rows::<1 $(, $panel)?>($tile),
            2 => $rows::<2 $(, $panel)?>($tile),
            3 => $rows::<3 $(, $panel)?>($tile),
            4 => $rows::<4 $(, $panel)?>($tile),
            5 => $rows::<5 $(, $panel)?>($tile),
            _ => $rows::<6 $(, $panel)?>($tile),
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use by_rows;

/// The packing of a [`Kernel`], by functions that know the width of a panel.
macro_rules! packing_by_width {
    () => {
        unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe {
                match side {
                    Side::Left => pack_contiguous::<E, MR>(source, to),
                    Side::Right => pack_contiguous::<E, NR>(source, to),
                }
            }
        }

        unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe {
                match side {
                    Side::Left => pack_strided::<E, MR>(source, to),
                    Side::Right => pack_strided::<E, NR>(source, to),
                }
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use packing_by_width;

/// A kernel of an order of its own, with the panels of another one but for their padding and the order of terms.
macro_rules! with_panels_of {
    ($other:ty: $name:ty, $granule:ident, $tile:ident => $compute:expr) => {
        impl Kernel for $name {
            const MR: usize = <$other>::MR;
            const NR: usize = <$other>::NR;
            const TERMS: usize = 1;
            const GRANULE: usize = $granule;
            const ORDER: $crate::matmul::kernel::Order = $crate::matmul::kernel::Order::Natural;
            const DEPTH: usize = <$other>::DEPTH;
            const BLOCK_ROWS: usize = <$other>::BLOCK_ROWS;
            type Packed = f32;

            unsafe fn pack_contiguous<E: $crate::Element>(
                source: $crate::matmul::kernel::Source<E>,
                side: $crate::matmul::kernel::Side,
                to: *mut f32,
            ) {
                // SAFETY: the caller's promise.
                unsafe { <$other>::pack_contiguous(source, side, to) }
            }

            unsafe fn pack_strided<E: $crate::Element>(
                source: $crate::matmul::kernel::Source<E>,
                side: $crate::matmul::kernel::Side,
                to: *mut f32,
            ) {
                // SAFETY: the caller's promise.
                unsafe { <$other>::pack_strided(source, side, to) }
            }

            unsafe fn tile($tile: &$crate::matmul::kernel::Tile<f32>) {
                // SAFETY: the caller's promise.
                unsafe { $compute }
            }
        }
    };
}
pub(crate) use with_panels_of;

/// Evaluates `$work` with `$kernel` standing for the kernel of a `Cpu` for operands of type `$element`.
macro_rules! with_kernel {
    ($cpu:expr, $element:ty, $kernel:ident => $work:expr) => {{
        use $crate::matmul::kernel::{self, with};
        use $crate::{Arithmetic, Isa};
        let arithmetic =
            if $crate::element::is_bf16::<$element>() { $cpu.arithmetic() } else { Arithmetic::Pair };
        match (arithmetic, $cpu.isa()) {
            #[cfg(target_arch = "aarch64")]
            (Arithmetic::Pair, Isa::Neon | Isa::NeonBf16) => with!(kernel::neon::Neon, $kernel => $work),
            #[cfg(target_arch = "x86_64")]
            (Arithmetic::Pair, Isa::Avx2) => with!(kernel::avx2::Avx2, $kernel => $work),
            #[cfg(target_arch = "x86_64")]
            (Arithmetic::Pair, Isa::Avx512Bf16) if $crate::element::is_bf16::<$element>() => {
                with!(kernel::avx512bf16::Avx512Bf16, $kernel => $work)
            }
            // Where there are tiles the dot instruction is the slower of the two: half the rate of multiply-adds on
            // Sapphire Rapids.
            #[cfg(target_arch = "x86_64")]
            (Arithmetic::Pair, Isa::Avx512 | Isa::Avx512Convert | Isa::Avx512Bf16 | Isa::Amx) => {
                with!(kernel::avx512::Avx512, $kernel => $work)
            }
            (Arithmetic::Pair, _) => with!(kernel::portable::Portable, $kernel => $work),
            #[cfg(target_arch = "aarch64")]
            (Arithmetic::Tile32, Isa::Neon | Isa::NeonBf16) => with!(kernel::tile32::neon::Neon, $kernel => $work),
            #[cfg(target_arch = "x86_64")]
            (Arithmetic::Tile32, Isa::Avx2) => with!(kernel::tile32::avx2::Avx2, $kernel => $work),
            #[cfg(target_arch = "x86_64")]
            (Arithmetic::Tile32, Isa::Avx512 | Isa::Avx512Convert | Isa::Avx512Bf16) => {
                with!(kernel::tile32::avx512::Avx512, $kernel => $work)
            }
            #[cfg(target_arch = "x86_64")]
            (Arithmetic::Tile32, Isa::Amx) => with!(kernel::tile32::amx::Amx, $kernel => $work),
            (Arithmetic::Tile32, _) => with!(kernel::tile32::portable::Portable, $kernel => $work),
            #[cfg(target_arch = "aarch64")]
            (Arithmetic::Bfdot, Isa::NeonBf16) => with!(kernel::bfdot::neon::Bfmmla, $kernel => $work),
            #[cfg(target_arch = "x86_64")]
            (Arithmetic::Bfdot, Isa::Avx2 | Isa::Avx512 | Isa::Avx512Convert | Isa::Avx512Bf16 | Isa::Amx) => {
                with!(kernel::bfdot::avx2::Avx2, $kernel => $work)
            }
            (Arithmetic::Bfdot, _) => with!(kernel::bfdot::portable::Portable, $kernel => $work),
        }
    }};
}
pub(crate) use with_kernel;

/// Evaluates `$work` with `$name` standing for a type.
macro_rules! with {
    ($type:ty, $name:ident => $work:expr) => {{
        type $name = $type;
        $work
    }};
}
pub(crate) use with;
