//! Plain loops that run on any processor.

use half::bf16;

use super::{Kernel, Side, Source, Store, Tile};
use crate::Element;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

const MR: usize = 6;
const NR: usize = 16;

/// Sums of a tile, from where they start.
///
/// # Safety
/// As for [`Kernel::tile`].
#[inline(always)]
pub(super) unsafe fn load_start<P>(tile: &Tile<P>) -> [[f32; NR]; MR] {
    let mut sums = [[0f32; NR]; MR];
    if let Some((from, stride)) = tile.start {
        for (i, row) in sums.iter_mut().enumerate().take(tile.rows) {
            // SAFETY: `rows` rows of `cols` values are readable by the caller's promise.
            let from = unsafe { std::slice::from_raw_parts(from.add(i * stride), tile.cols) };
            row[..tile.cols].copy_from_slice(from);
        }
    }
    sums
}

/// Writes the sums of a tile.
///
/// # Safety
/// As for [`Kernel::tile`].
#[inline(always)]
pub(super) unsafe fn finish<P>(tile: &Tile<P>, sums: &mut [[f32; NR]; MR]) {
    if !tile.bias.is_null() {
        for row in sums.iter_mut() {
            for (j, v) in row.iter_mut().enumerate() {
                // SAFETY: a bias that is not null has NR values.
                *v += unsafe { *tile.bias.add(j) };
            }
        }
    }
    for (i, row) in sums.iter().enumerate().take(tile.rows) {
        match tile.store {
            Store::F32 { to, stride } => {
                // SAFETY: `rows` rows of `cols` values are writable by the caller's promise.
                let to = unsafe { std::slice::from_raw_parts_mut(to.add(i * stride), tile.cols) };
                to.copy_from_slice(&row[..tile.cols]);
            }
            Store::Bf16 { to, stride } => {
                let mut rounded = [bf16::ZERO; NR];
                for j in 0..NR {
                    rounded[j] = <bf16 as Element>::from_f32(row[j]);
                }
                // SAFETY: as above.
                let to = unsafe { std::slice::from_raw_parts_mut(to.add(i * stride), tile.cols) };
                to.copy_from_slice(&rounded[..tile.cols]);
            }
        }
    }
}

/// # Safety
/// As for [`Kernel::pack_contiguous`].
#[inline(always)]
pub(super) unsafe fn pack_contiguous<E: Element>(source: Source<E>, width: usize, to: *mut f32) {
    let even = source.filled;
    for (panel, first) in (0..source.lines).step_by(width).enumerate() {
        // SAFETY: the caller gives room for every panel.
        let to = unsafe { std::slice::from_raw_parts_mut(to.add(panel * width * even), even * width) };
        let lines = width.min(source.lines - first);
        if lines < width || even != source.terms {
            to.fill(0.0);
        }
        for i in 0..lines {
            // SAFETY: a line holds `terms` elements.
            let line = unsafe {
                std::slice::from_raw_parts(source.data.add((first + i) * source.stride), source.terms)
            };
            for (k, v) in line.iter().enumerate() {
                to[source.order.position(k) * width + i] = v.to_f32();
            }
        }
    }
}

/// # Safety
/// As for [`Kernel::pack_strided`].
#[inline(always)]
pub(super) unsafe fn pack_strided<E: Element>(source: Source<E>, width: usize, to: *mut f32) {
    let even = source.filled;
    for (panel, first) in (0..source.lines).step_by(width).enumerate() {
        // SAFETY: the caller gives room for every panel.
        let to = unsafe { std::slice::from_raw_parts_mut(to.add(panel * width * even), even * width) };
        let lines = width.min(source.lines - first);
        if lines < width || even != source.terms {
            to.fill(0.0);
        }
        for k in 0..source.terms {
            // SAFETY: a term holds `lines` elements.
            let line =
                unsafe { std::slice::from_raw_parts(source.data.add(k * source.stride + first), lines) };
            for (v, x) in to[source.order.position(k) * width..][..lines].iter_mut().zip(line) {
                *v = x.to_f32();
            }
        }
    }
}

impl Kernel for Portable {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 1;
    const DEPTH: usize = 384;
    type Packed = f32;

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { pack_contiguous(source, side.width::<Self>(), to) }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { pack_strided(source, side.width::<Self>(), to) }
    }

    unsafe fn tile(tile: &Tile<f32>) {
        // SAFETY: the caller's promise covers the start, the panels and the store; rows of `a` past `rows` are
        // not read.
        unsafe {
            let mut sums = load_start(tile);
            for p in 0..tile.steps {
                let b = std::slice::from_raw_parts(tile.b.add(p * NR), NR);
                for (i, row) in sums.iter_mut().enumerate().take(tile.rows) {
                    let a = *tile.a.add(i * tile.a_row + p * tile.a_step);
                    for j in 0..NR {
                        row[j] = a.mul_add(b[j], row[j]);
                    }
                }
            }
            finish(tile, &mut sums);
        }
    }
}
