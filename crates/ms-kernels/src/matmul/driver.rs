//! Blocking, work units and the order of loops.
//!
//! A work unit is a part of the rows and columns of the result. For each block of `k` it packs a block of its rows of `a`,
//! which stays in the second-level cache, then, one panel at a time, its part of `b`, and runs the tiles of the panel's
//! columns: the panel of `b` stays in the first-level cache while the panels of `a` stream past it, a tenth of the bytes.
//! Further blocks of rows find `b` already packed. Every unit packs for itself into its thread's scratch, so units never wait
//! for each other.
//!
//! A sum continues over blocks of `k` from where it stood, so no block size affects the bits of the result. Meanwhile the
//! unit's sums are stored tile by tile in scratch, because rows of a result are often a power of two apart and would share
//! few cache sets. The data packed next is prefetched a few lines per tile; packing would otherwise wait for memory.

use std::marker::PhantomData;

use super::kernel::{Kernel, Side, Source, Store, Tile, filled, steps};
use super::{Dims, Form, Mat, Out};
use crate::element::is_bf16;
use crate::memory::{Scratch, with_scratch};
use crate::prefetch::{Lines, fetch_far};
use crate::{Cpu, Element};

/// Rows of a unit, at most and at least.
const UNIT_ROWS: (usize, usize) = (1008, 252);
/// Columns of a unit, at most and at least: as many as that packing `a` takes little time.
const UNIT_COLS: (usize, usize) = (2048, 192);
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

impl<E: Element> Target<E> {
    pub(super) fn new(out: Out<'_, E>) -> Self {
        let no_bias = std::ptr::null();
        match out {
            Out::Set { data, stride, bias } => {
                Self { store: store(data, stride), add: false, bias: bias.map_or(no_bias, <[E]>::as_ptr) }
            }
            Out::SetF32 { data, stride } => Self { store: store(data, stride), add: false, bias: no_bias },
            Out::AddF32 { data, stride } => Self { store: store(data, stride), add: true, bias: no_bias },
        }
    }
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
        unsafe {
            let _ready = Ready::<K>::new();
            unit.run::<K>();
        }
    });
}

/// A thread that is prepared for the tiles of a kernel, until dropped.
pub(crate) struct Ready<K: Kernel> {
    kernel: PhantomData<K>,
}

impl<K: Kernel> Ready<K> {
    /// # Safety
    /// As for [`Kernel::begin`].
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: the caller's promise; `drop` ends it.
        unsafe { K::begin() };
        Self { kernel: PhantomData }
    }
}

impl<K: Kernel> Drop for Ready<K> {
    fn drop(&mut self) {
        // SAFETY: begun by `new`.
        unsafe { K::end() }
    }
}

#[derive(Clone, Copy)]
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
        let kc = even(k, K::DEPTH * K::TERMS, K::GRANULE.max(16));
        let blocks = k.div_ceil(kc).max(1);
        let depth = steps::<K>(kc);
        let (rows, width) = (self.m.next_multiple_of(K::MR), self.n.next_multiple_of(K::NR));
        let kept = if blocks > 1 { rows * width } else { 0 };
        let most = even(self.m, K::BLOCK_ROWS, K::MR);
        // Panels of `b` are kept for the blocks of rows after the first.
        let panels = if self.m > most { width } else { K::NR };
        with_scratch(Scratch::PanelsB, panels * depth, |pb: &mut [K::Packed]| {
            with_scratch(Scratch::PanelsA, most * depth, |pa: &mut [K::Packed]| {
                with_scratch(Scratch::Partials, kept + width, |scratch: &mut [f32]| {
                    let (partial, bias) = scratch.split_at_mut(kept);
                    let bias = self.bias(bias);
                    for block in 0..blocks {
                        let (k0, next) = (block * kc, (block + 1) * kc);
                        for first in (0..self.m).step_by(most) {
                            let place = Place {
                                block,
                                blocks,
                                k0,
                                terms: kc.min(k - k0),
                                bias,
                                partial: partial.as_mut_ptr().wrapping_add(first * width),
                            };
                            let part = self.rows(first, most);
                            let (a_next, k_next) =
                                if first + most < self.m { (first + most, k0) } else { (0, next) };
                            let terms = kc.min(k.saturating_sub(k_next));
                            let part_a = self.rows(a_next, most).part_a::<K>(k_next, terms);
                            let mut ahead_a = lines(&part_a, self.form == Form::Tn);
                            // SAFETY: the scratch has room for these panels and sums; the rest is the caller's promise.
                            unsafe {
                                part.pack_a::<K>(&place, pa.as_mut_ptr());
                                for j in (0..self.n).step_by(K::NR) {
                                    let kept = if panels == width { j * steps::<K>(place.terms) } else { 0 };
                                    let pb = pb.as_mut_ptr().wrapping_add(kept);
                                    if first == 0 {
                                        self.pack_b::<K>(j, &place, pb);
                                    }
                                    part.tiles::<K>(j, pa.as_ptr(), pb, &place, first == 0, &mut ahead_a);
                                }
                            }
                        }
                    }
                });
            });
        });
    }

    /// The unit's rows from `first` on, at most `most`, as a unit.
    fn rows(&self, first: usize, most: usize) -> Self {
        Self { i: self.i + first, m: most.min(self.m - first), ..*self }
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

    /// The unit's rows of `a` in `terms` terms from term `k0`.
    fn part_a<K: Kernel>(&self, k0: usize, terms: usize) -> Source<E> {
        let Mat { data, stride } = self.a;
        let start = if self.form == Form::Tn { k0 * stride + self.i } else { self.i * stride + k0 };
        let data = data.as_ptr().wrapping_add(start);
        Source { data, stride, terms, filled: filled::<K>(terms), lines: self.m, order: K::ORDER }
    }

    /// A panel of `width` columns of `b` from column `j` of the unit, in `terms` terms from term `k0`.
    fn part_b<K: Kernel>(&self, j: usize, width: usize, k0: usize, terms: usize) -> Source<E> {
        let Mat { data, stride } = self.b;
        let column = self.j + j;
        let start = if self.form == Form::Nt { column * stride + k0 } else { k0 * stride + column };
        let lines = width.min(self.n.saturating_sub(j));
        let data = data.as_ptr().wrapping_add(start);
        Source { data, stride, terms, filled: filled::<K>(terms), lines, order: K::ORDER }
    }

    /// Packs the unit's rows of `a`.
    ///
    /// # Safety
    /// `to` must have room for their panels.
    unsafe fn pack_a<K: Kernel>(&self, place: &Place, to: *mut K::Packed) {
        let source = self.part_a::<K>(place.k0, place.terms);
        // SAFETY: the part lies inside a, whose size was checked; room is the caller's promise.
        unsafe {
            if self.form == Form::Tn {
                K::pack_strided(source, Side::Left, to);
            } else {
                K::pack_contiguous(source, Side::Left, to);
            }
        }
    }

    /// Packs a panel of `b` from column `j` of the unit.
    ///
    /// # Safety
    /// `to` must have room for it.
    unsafe fn pack_b<K: Kernel>(&self, j: usize, place: &Place, to: *mut K::Packed) {
        let source = self.part_b::<K>(j, K::NR, place.k0, place.terms);
        // SAFETY: the part lies inside b, whose size was checked; room is the caller's promise.
        unsafe {
            if self.form == Form::Nt {
                K::pack_contiguous(source, Side::Right, to);
            } else {
                K::pack_strided(source, Side::Right, to);
            }
        }
    }

    /// All tiles of a panel's columns from column `j` of the unit, for one block of `k`; `packing` says that the next panel of
    /// `b` will be packed rather than found.
    ///
    /// # Safety
    /// Panels must be packed, and the target writable.
    unsafe fn tiles<K: Kernel>(
        &self,
        j: usize,
        pa: *const K::Packed,
        pb: *const K::Packed,
        place: &Place,
        packing: bool,
        ahead_a: &mut Lines,
    ) {
        let depth = steps::<K>(place.terms);
        let biased = place.block + 1 == place.blocks && !place.bias.is_null();
        let tiles = self.m.div_ceil(K::MR);
        let mut ahead_b = if packing {
            lines(&self.part_b::<K>(j + K::NR, K::NR, place.k0, place.terms), self.form != Form::Nt)
        } else {
            Lines::new(pb.wrapping_add(K::NR * depth), 0, 1, K::NR * depth)
        };
        let lines_b = ahead_b.left().div_ceil(tiles);
        let lines_a = ahead_a.left().div_ceil(tiles * (self.n - j).div_ceil(K::NR));
        for (panel, i) in (0..self.m).step_by(K::MR).enumerate() {
            ahead_a.next(lines_a, fetch_far);
            ahead_b.next(lines_b, fetch_far);
            // Scratch holds the tiles in the order in which they are computed.
            let partial = place.partial.wrapping_add((j / K::NR * tiles + panel) * K::MR * K::NR);
            let (start, store) = self.ends(i, j, partial, K::NR, place);
            let next = match start {
                Some((at, stride)) => (at.wrapping_add(K::MR * stride), stride),
                None => (partial.wrapping_add(K::MR * K::NR).cast_const(), K::NR),
            };
            let tile = Tile {
                steps: depth,
                a: pa.wrapping_add(panel * K::MR * depth),
                a_row: 1,
                a_step: K::MR,
                b: pb,
                start,
                bias: if biased { place.bias.wrapping_add(j) } else { std::ptr::null() },
                store,
                next,
                rows: K::MR.min(self.m - i),
                cols: K::NR.min(self.n - j),
            };
            // SAFETY: the caller's promise.
            unsafe { K::tile(&tile) }
        }
    }

    /// Where the sums of the tile at row `i`, column `j` of the unit start from and go to; `partial`, rows `width`
    /// apart, is its place between blocks.
    fn ends(
        &self,
        i: usize,
        j: usize,
        partial: *mut f32,
        width: usize,
        place: &Place,
    ) -> (Option<(*const f32, usize)>, Store) {
        let (start, store) = match self.target.store {
            Store::F32 { to, stride } => {
                let to = to.wrapping_add((self.i + i) * stride + self.j + j);
                (self.target.add.then_some((to.cast_const(), stride)), Store::F32 { to, stride })
            }
            Store::Bf16 { to, stride } => {
                (None, Store::Bf16 { to: to.wrapping_add((self.i + i) * stride + self.j + j), stride })
            }
        };
        let start = if place.block > 0 { Some((partial.cast_const(), width)) } else { start };
        if place.block + 1 < place.blocks {
            (start, Store::F32 { to: partial, stride: width })
        } else {
            (start, store)
        }
    }
}

/// Which block of `k` it is and where sums wait between blocks.
struct Place {
    block: usize,
    blocks: usize,
    /// First term of `k` of this block.
    k0: usize,
    /// Terms of `k` in this block.
    terms: usize,
    bias: *const f32,
    /// A tile's sums after those of the tile before.
    partial: *mut f32,
}

/// The lines of a part that will be packed soon: a row of memory for each term if it is `strided`, otherwise for each line.
fn lines<E: Element>(part: &Source<E>, strided: bool) -> Lines {
    let (rows, width) = if strided { (part.terms, part.lines) } else { (part.lines, part.terms) };
    Lines::new(part.data, part.stride, rows, width)
}

/// The address of a result of element type `E`.
fn store<E: Element>(data: &mut [E], stride: usize) -> Store {
    let to = data.as_mut_ptr();
    if is_bf16::<E>() { Store::Bf16 { to: to.cast(), stride } } else { Store::F32 { to: to.cast(), stride } }
}
