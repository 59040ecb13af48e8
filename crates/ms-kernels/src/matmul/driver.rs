//! Blocks, units and the order of loops.
//!
//! A unit is a block of rows and columns of the result. For each block of `k` it packs its rows of `a`, then, a few
//! hundred columns at a time, its part of `b`, and runs the tiles: a panel of `a` stays in the first-level cache
//! while the panels of `b` stream past it from the second. Every unit packs for itself into its thread's scratch, so
//! units never wait for each other. A sum runs on over blocks of `k` from where it stood, therefore no block size
//! reaches the bits of the result.

use super::kernel::{Kernel, Order, Source, Store, Tile, steps};
use super::{Dims, Form, Mat};
use crate::element::is_bf16;
use crate::memory::{Scratch, with_scratch};
use crate::{Cpu, Element};

/// Terms of `k` in a block: a panel of six rows of `a` then takes 12 KiB.
const KC: usize = 512;
/// Columns of `b` that are packed at a time: 768 KiB, more than half of a second-level cache of 1 MiB or more.
const NC: usize = 384;
/// Rows of a unit, at most and at least.
const UNIT_ROWS: (usize, usize) = (504, 252);
/// Columns of a unit, at most and at least.
const UNIT_COLS: (usize, usize) = (1536, 192);
/// Units that each thread should find.
const UNITS_PER_THREAD: usize = 4;

/// Where the result goes, by address.
#[derive(Clone, Copy)]
pub(super) struct Target<E> {
    /// The result.
    pub(super) store: Store,
    /// Whether sums start from the f32 values that are there.
    pub(super) add: bool,
    /// `[N]`, or null.
    pub(super) bias: *const E,
}

// SAFETY: an address that units write disjoint tiles through; `matmul` holds the unique borrow meanwhile.
unsafe impl<E> Sync for Target<E> {}

/// Splits `total` into equal blocks of at most `most`, each but the last a multiple of `unit`.
fn even(total: usize, most: usize, unit: usize) -> usize {
    total.div_ceil(total.div_ceil(most).max(1)).next_multiple_of(unit).max(unit)
}

/// Computes the product with kernel `K`.
///
/// # Safety
/// Operands and target must cover `dims`, the target must not be used meanwhile, and the instruction set of `K`
/// must be there.
pub(super) unsafe fn product<K: Kernel, E: Element>(
    cpu: &Cpu,
    form: Form,
    dims: Dims,
    a: Mat<'_, E>,
    b: Mat<'_, E>,
    target: Target<E>,
) {
    let (mut most_rows, mut most_cols) = (UNIT_ROWS.0, UNIT_COLS.0);
    if cpu.threads() > 1 {
        let wanted = UNITS_PER_THREAD * cpu.threads();
        while dims.m.div_ceil(most_rows) * dims.n.div_ceil(most_cols) < wanted {
            if most_rows > UNIT_ROWS.1 && dims.m > most_rows / 2 {
                most_rows /= 2;
            } else if most_cols > UNIT_COLS.1 {
                most_cols /= 2;
            } else if most_rows > UNIT_ROWS.1 {
                most_rows /= 2;
            } else {
                break;
            }
        }
    }
    let rows = even(dims.m, most_rows, K::MR);
    let cols = even(dims.n, most_cols, K::NR);
    let row_blocks = dims.m.div_ceil(rows);
    cpu.for_each_unit(row_blocks * dims.n.div_ceil(cols), |u| {
        let (i, j) = (u % row_blocks * rows, u / row_blocks * cols);
        let unit = Unit { form, dims, a, b, target, i, j, m: rows.min(dims.m - i), n: cols.min(dims.n - j) };
        // SAFETY: the caller's promise; units have different rows or columns.
        unsafe { unit.run::<K>() }
    });
}

struct Unit<'a, E> {
    form: Form,
    dims: Dims,
    a: Mat<'a, E>,
    b: Mat<'a, E>,
    target: Target<E>,
    /// First row and column.
    i: usize,
    j: usize,
    /// Rows and columns.
    m: usize,
    n: usize,
}

impl<E: Element> Unit<'_, E> {
    /// # Safety
    /// As for [`product`].
    unsafe fn run<K: Kernel>(&self) {
        let k = self.dims.k;
        let kc = even(k, KC, 16);
        let blocks = k.div_ceil(kc).max(1);
        let depth = steps::<K>(kc);
        // Sums that pass through f32 on their way to bf16 need a place between blocks of k.
        let keep = blocks > 1 && matches!(self.target.store, Store::Bf16 { .. });
        let width = self.n.next_multiple_of(K::NR);
        let kept = if keep { self.m * width } else { 0 };
        with_scratch(Scratch::PanelsB, NC.min(width) * depth, |pb: &mut [K::Packed]| {
            with_scratch(
                Scratch::PanelsA,
                self.m.next_multiple_of(K::MR) * depth,
                |pa: &mut [K::Packed]| {
                    with_scratch(Scratch::Partials, kept + width, |scratch: &mut [f32]| {
                        let (bias, partial) = scratch.split_at_mut(width);
                        let bias = self.bias(bias);
                        for block in 0..blocks {
                            let k0 = block * kc;
                            let terms = kc.min(k - k0);
                            let partial = partial.as_mut_ptr();
                            let place = Place { block, blocks, terms, bias, partial, width };
                            // SAFETY: the scratch has room for these panels and sums; the rest is the caller's
                            // promise.
                            unsafe {
                                self.pack_a::<K>(k0, terms, pa.as_mut_ptr());
                                for j in (0..self.n).step_by(NC) {
                                    let n = NC.min(self.n - j);
                                    self.pack_b::<K>(j, n, k0, terms, pb.as_mut_ptr());
                                    self.tiles::<K>(j, n, pa.as_ptr(), pb.as_ptr(), &place);
                                }
                            }
                        }
                    });
                },
            );
        });
    }

    /// The unit's bias widened to f32 in `to`, or null.
    fn bias(&self, to: &mut [f32]) -> *const f32 {
        if self.target.bias.is_null() {
            return std::ptr::null();
        }
        for (j, v) in to.iter_mut().enumerate() {
            // SAFETY: a bias that is not null has N elements, and j + self.j is below N.
            *v = if j < self.n { unsafe { *self.target.bias.add(self.j + j) }.to_f32() } else { 0.0 };
        }
        to.as_ptr()
    }

    /// Packs `n` columns of `b` from column `j0` of the unit.
    ///
    /// # Safety
    /// `to` must have room for their panels.
    unsafe fn pack_b<K: Kernel>(&self, j0: usize, n: usize, k0: usize, terms: usize, to: *mut K::Packed) {
        let Mat { data, stride } = self.b;
        let (data, column, order) = (data.as_ptr(), self.j + j0, Order::Swapped);
        // SAFETY: the part lies inside b, whose size was checked; room is the caller's promise.
        unsafe {
            if self.form == Form::Nt {
                let data = data.wrapping_add(column * stride + k0);
                K::pack_contiguous(Source { data, stride, terms, lines: n, order }, K::NR, to);
            } else {
                let data = data.wrapping_add(k0 * stride + column);
                K::pack_strided(Source { data, stride, terms, lines: n, order }, K::NR, to);
            }
        }
    }

    /// Packs the unit's rows of `a`.
    ///
    /// # Safety
    /// `to` must have room for their panels.
    unsafe fn pack_a<K: Kernel>(&self, k0: usize, terms: usize, to: *mut K::Packed) {
        let Mat { data, stride } = self.a;
        let (data, lines, order) = (data.as_ptr(), self.m, Order::Swapped);
        // SAFETY: the part lies inside a, whose size was checked; room is the caller's promise.
        unsafe {
            if self.form == Form::Tn {
                let data = data.wrapping_add(k0 * stride + self.i);
                K::pack_strided(Source { data, stride, terms, lines, order }, K::MR, to);
            } else {
                let data = data.wrapping_add(self.i * stride + k0);
                K::pack_contiguous(Source { data, stride, terms, lines, order }, K::MR, to);
            }
        }
    }

    /// All tiles of `n` columns from column `j0` of the unit, for one block of `k`.
    ///
    /// # Safety
    /// Panels must be packed, and the target writable.
    unsafe fn tiles<K: Kernel>(
        &self,
        j0: usize,
        n: usize,
        pa: *const K::Packed,
        pb: *const K::Packed,
        place: &Place,
    ) {
        let depth = steps::<K>(place.terms);
        let biased = place.block + 1 == place.blocks && !place.bias.is_null();
        for (panel_a, i) in (0..self.m).step_by(K::MR).enumerate() {
            for (panel_b, j) in (0..n).step_by(K::NR).enumerate() {
                let (start, store) = self.ends(i, j0 + j, place);
                let tile = Tile {
                    steps: depth,
                    a: pa.wrapping_add(panel_a * K::MR * depth),
                    a_row: 1,
                    a_step: K::MR,
                    b: pb.wrapping_add(panel_b * K::NR * depth),
                    start,
                    bias: if biased { place.bias.wrapping_add(j0 + j) } else { std::ptr::null() },
                    store,
                    rows: K::MR.min(self.m - i),
                    cols: K::NR.min(n - j),
                };
                // SAFETY: the caller's promise.
                unsafe { K::tile(&tile) }
            }
        }
    }

    /// Where the sums of the tile at row `i`, column `j` of the unit start from and go to.
    fn ends(&self, i: usize, j: usize, place: &Place) -> (Option<(*const f32, usize)>, Store) {
        match self.target.store {
            Store::F32 { to, stride } => {
                let at = to.wrapping_add((self.i + i) * stride + self.j + j);
                let start = (place.block > 0 || self.target.add).then_some((at.cast_const(), stride));
                (start, Store::F32 { to: at, stride })
            }
            Store::Bf16 { to, stride } => {
                let partial = place.partial.wrapping_add(i * place.width + j);
                let start = (place.block > 0).then_some((partial.cast_const(), place.width));
                if place.block + 1 < place.blocks {
                    (start, Store::F32 { to: partial, stride: place.width })
                } else {
                    let at = to.wrapping_add((self.i + i) * stride + self.j + j);
                    (start, Store::Bf16 { to: at, stride })
                }
            }
        }
    }
}

/// Which block of `k` it is and where sums wait between blocks.
struct Place {
    block: usize,
    blocks: usize,
    /// Terms of `k` in this block.
    terms: usize,
    bias: *const f32,
    partial: *mut f32,
    width: usize,
}

/// The address of a result of element type `E`.
pub(super) fn store<E: Element>(data: &mut [E], stride: usize) -> Store {
    let to = data.as_mut_ptr();
    if is_bf16::<E>() { Store::Bf16 { to: to.cast(), stride } } else { Store::F32 { to: to.cast(), stride } }
}
