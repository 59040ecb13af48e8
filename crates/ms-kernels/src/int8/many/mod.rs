//! Products of many rows with an 8-bit weight, in integers.
//!
//! Rows of `x` are rounded in the same way as for few rows. What a line of 64 terms adds to a sum is an integer, exact in any
//! order; one chain in f32 adds these integers, each times the line's scale of `x`, over ascending lines.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

use super::body::{LINE, ZERO, code, scale, scale_of};
use super::row_bytes;
use crate::cpu::Disjoint;
use crate::isa::instances;
use crate::matmul::Dims;
use crate::memory::{Scratch, with_scratch};
use crate::{Cpu, Element, Isa};

/// Lines whose codes a panel of the weight has: it stays in the first-level cache while rows of `x` pass.
const DEPTH: usize = 8;
/// Approximate number of rows of `x` per unit, for which its panels are packed.
const UNIT_ROWS: usize = 512;

/// The metadata of a line of a row of `x`, in addition to its codes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Rounded {
    scale: f32,
    /// What a weight whose codes stand with 128 for zero adds too much, negated.
    shift: i32,
}

/// Codes of a weight: rows of `width` bytes.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    bytes: &'a [u8],
    width: usize,
}

impl<'a> Rows<'a> {
    /// The codes of row `row` in line `line`; nothing after the last row.
    #[inline(always)]
    fn line(&self, row: usize, line: usize) -> Option<&'a [u8; LINE]> {
        self.bytes.get(row * self.width + line * LINE..)?.first_chunk()
    }
}

/// A tile of sums.
pub(super) struct Tile<'a, B: Body> {
    /// Codes of `x`: the panel's lines, of each line all rows.
    codes: &'a [B::Code],
    /// Distance to the next tile's: too far for the hardware prefetcher to guess.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    ahead: usize,
    /// The same lines' scales.
    rounded: &'a [Rounded],
    panel: &'a [B::Code],
    /// `[ROWS,COLS]`, added to.
    sums: &'a mut [f32],
}

impl<B: Body> Tile<'_, B> {
    /// Lines of the panel.
    fn depth(&self) -> usize {
        self.panel.len() / (B::COLS * LINE)
    }

    /// What a body may rely on where it reads by address.
    fn check(&self) {
        let depth = self.depth();
        assert!(self.codes.len() == depth * B::ROWS * LINE, "codes of all rows");
        assert!(self.rounded.len() == depth * B::ROWS, "scales of all rows");
        assert!(self.sums.len() == B::ROWS * B::COLS, "sums of a tile");
    }
}

/// How an instruction set forms a tile of sums.
pub(super) trait Body: Sized {
    /// Rows of `x` in a tile.
    const ROWS: usize;
    /// Rows of the weight in a tile.
    const COLS: usize;
    /// How a code is kept.
    type Code: Pod + Send + Sync;

    /// A code from -127 to 127.
    fn kept(code: i32) -> Self::Code;

    /// What a thread needs before its first tile.
    ///
    /// # Safety
    /// The instruction set must be there.
    unsafe fn begin() {}

    /// Gives back what [`Body::begin`] took.
    ///
    /// # Safety
    /// As for [`Body::begin`].
    unsafe fn end() {}

    /// The codes of the first [`Body::COLS`] rows of `weight` in the lines from `first` on, as many as `panel` has room for.
    ///
    /// # Safety
    /// As for [`Body::begin`].
    unsafe fn pack(panel: &mut [Self::Code], weight: Rows<'_>, first: usize);

    /// Adds the panel's lines to a tile of sums.
    ///
    /// # Safety
    /// As for [`Body::begin`], between `begin` and `end`.
    unsafe fn add(tile: &mut Tile<'_, Self>);
}

/// A thread that is prepared for the tiles of a body, until dropped.
struct Ready<B: Body>(PhantomData<B>);

impl<B: Body> Ready<B> {
    /// # Safety
    /// As for [`Body::begin`].
    unsafe fn new() -> Self {
        // SAFETY: the caller's promise; `drop` ends it.
        unsafe { B::begin() };
        Self(PhantomData)
    }
}

impl<B: Body> Drop for Ready<B> {
    fn drop(&mut self) {
        // SAFETY: begun by `new`.
        unsafe { B::end() }
    }
}

/// Rounds up to a line of `x`.
#[inline(always)]
fn round_line<E: Element>(codes: &mut [i32; LINE], x: &[E]) -> Rounded {
    let (scale, inverse) = scale(x);
    for (to, v) in codes.iter_mut().zip(x) {
        *to = code(*v, inverse);
    }
    Rounded { scale, shift: -ZERO * codes.iter().sum::<i32>() }
}

/// Rounds row `i` of a tile.
fn round_row<B: Body, E: Element>(isa: Isa, codes: &mut [B::Code], lines: &mut [Rounded], x: &[E], i: usize) {
    let lines = codes.chunks_exact_mut(B::ROWS * LINE).zip(lines.chunks_exact_mut(B::ROWS));
    for ((codes, rounded), x) in lines.zip(x.chunks(LINE)) {
        let mut whole = [0; LINE];
        rounded[i] = rounded_line(isa, &mut whole, x);
        for (to, code) in codes[i * LINE..].iter_mut().zip(whole) {
            *to = B::kept(code);
        }
    }
}

/// A row of the result.
#[inline(always)]
fn finish_row<E: Element>(y: &mut [E], sums: &[f32], scales: &[f32], bias: Option<&[E]>) {
    let scaled = sums.iter().zip(scales).map(|(sum, scale)| sum * scale);
    match bias {
        Some(bias) => {
            for ((y, sum), bias) in y.iter_mut().zip(scaled).zip(bias) {
                *y = E::from_f32(sum + bias.to_f32());
            }
        }
        None => y.iter_mut().zip(scaled).for_each(|(y, sum)| *y = E::from_f32(sum)),
    }
}

instances! {
    fn rounded_line<E: Element>(codes: &mut [i32; LINE], x: &[E]) -> Rounded = round_line;
    fn finished_row<E: Element>(y: &mut [E], sums: &[f32], scales: &[f32], bias: Option<&[E]>) = finish_row;
}

/// `y[M,N] = x[M,K] · w[N,K]ᵀ (+ bias[N])` by the body of the instruction set; sizes fit.
pub(super) fn linear<E: Element>(
    cpu: &Cpu,
    y: &mut [E],
    x: &[E],
    bytes: &[u8],
    bias: Option<&[E]>,
    dims: Dims,
) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the instruction sets are there: a `Cpu` is only made for one that this processor has.
        unsafe {
            if cpu.isa() >= Isa::Amx && amx::is_available() {
                return product::<amx::Amx, E>(cpu, y, x, bytes, bias, dims);
            }
            if cpu.isa() >= Isa::Avx512 && is_x86_feature_detected!("avx512vnni") {
                return product::<avx512::Vnni, E>(cpu, y, x, bytes, bias, dims);
            }
            if cpu.isa() >= Isa::Avx2 {
                return product::<avx2::Avx2, E>(cpu, y, x, bytes, bias, dims);
            }
        }
    }
    #[cfg(target_arch = "aarch64")]
    if cpu.isa() >= Isa::Neon && super::neon::is_available() {
        // SAFETY: as above.
        return unsafe { product::<neon::Sdot, E>(cpu, y, x, bytes, bias, dims) };
    }
    // SAFETY: plain loops need nothing.
    unsafe { product::<portable::Portable, E>(cpu, y, x, bytes, bias, dims) }
}

/// [`linear`] with a given body.
///
/// # Safety
/// The body's instruction set must be there.
pub(super) unsafe fn product<B: Body, E: Element>(
    cpu: &Cpu,
    y: &mut [E],
    x: &[E],
    bytes: &[u8],
    bias: Option<&[E]>,
    Dims { m, n, k }: Dims,
) {
    let (lines, width) = (k.div_ceil(LINE), row_bytes(k));
    // Padding rows of the last tile are zero. Rows of a tile are adjacent: a page apart, they would conflict in the
    // first-level cache.
    let (tiles, width_of_tile) = (m.div_ceil(B::ROWS), lines * B::ROWS);
    let step = UNIT_ROWS / B::ROWS;
    with_scratch(Scratch::PanelsA, tiles * width_of_tile * LINE, |codes: &mut [B::Code]| {
        with_scratch(Scratch::Keys, tiles * width_of_tile, |rounded: &mut [Rounded]| {
            let (of_tiles, scales) = ((&mut *codes, width_of_tile * LINE), (&mut *rounded, width_of_tile));
            cpu.for_each_row_of_both(tiles, 2, of_tiles, scales, |tile, codes, rounded| {
                codes.fill(B::kept(0));
                rounded.fill(Rounded::zeroed());
                for (i, x) in x.chunks_exact(k.max(1)).skip(tile * B::ROWS).take(B::ROWS).enumerate() {
                    round_row::<B, E>(cpu.isa(), codes, rounded, x, i);
                }
            });
            let (codes, rounded) = (&*codes, &*rounded);
            let panels = n.div_ceil(B::COLS);
            let y = Disjoint::new(y);
            cpu.for_each_unit(panels * tiles.div_ceil(step), |u| {
                let (first, col) = (u / panels * step, u % panels * B::COLS);
                let (tiles, cols) = (step.min(tiles - first), B::COLS.min(n - col));
                let weight = Rows { bytes: &bytes[col * width..][..cols * width], width };
                with_scratch(Scratch::Sums, tiles * B::ROWS * B::COLS, |sums: &mut [f32]| {
                    sums.fill(0.0);
                    // SAFETY: the caller's promise.
                    unsafe {
                        let _ready = Ready::<B>::new();
                        let rounded = &rounded[first * width_of_tile..];
                        add_lines::<B>(sums, &codes[first * width_of_tile * LINE..], rounded, lines, weight);
                    }
                    let mut scales = [0f32; 64];
                    for (scale, row) in scales.iter_mut().zip(weight.bytes.chunks_exact(width)) {
                        *scale = scale_of(row);
                    }
                    let bias = bias.map(|bias| &bias[col..][..cols]);
                    for (i, sums) in (first * B::ROWS..m).zip(sums.chunks_exact(B::COLS)) {
                        // SAFETY: a unit takes its own columns of its own rows.
                        let y = unsafe { y.part(i * n + col, cols) };
                        finished_row(cpu.isa(), y, sums, &scales, bias);
                    }
                });
            });
        });
    });
}

/// The sums of all lines: as many tiles as `sums` has, from the first of `codes` on.
///
/// # Safety
/// As for [`Body::add`].
unsafe fn add_lines<B: Body>(
    sums: &mut [f32],
    codes: &[B::Code],
    rounded: &[Rounded],
    lines: usize,
    weight: Rows<'_>,
) {
    with_scratch(Scratch::PanelsB, DEPTH * LINE * B::COLS, |panel: &mut [B::Code]| {
        for first in (0..lines).step_by(DEPTH) {
            let panel = &mut panel[..DEPTH.min(lines - first) * LINE * B::COLS];
            // SAFETY: the caller's promise.
            unsafe { B::pack(panel, weight, first) };
            let depth = panel.len() / (LINE * B::COLS);
            for (t, sums) in sums.chunks_exact_mut(B::ROWS * B::COLS).enumerate() {
                let (line, len) = ((t * lines + first) * B::ROWS, depth * B::ROWS);
                let (codes, rounded) = (&codes[line * LINE..][..len * LINE], &rounded[line..][..len]);
                let mut tile = Tile { codes, ahead: lines * B::ROWS * LINE, rounded, panel, sums };
                // SAFETY: the caller's promise.
                unsafe { B::add(&mut tile) };
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    thread_local!(static BEGUN: Cell<i32> = const { Cell::new(0) });

    struct Panics;

    impl Body for Panics {
        const ROWS: usize = 1;
        const COLS: usize = 1;
        type Code = i8;

        fn kept(code: i32) -> i8 {
            code as i8
        }

        unsafe fn begin() {
            BEGUN.set(BEGUN.get() + 1);
        }

        unsafe fn end() {
            BEGUN.set(BEGUN.get() - 1);
        }

        unsafe fn pack(_: &mut [i8], _: Rows<'_>, _: usize) {
            assert_ne!(BEGUN.get(), 1, "begun");
        }

        unsafe fn add(_: &mut Tile<'_, Self>) {}
    }

    #[test]
    fn a_unit_that_panics_gives_back_what_it_began_with() {
        let (cpu, mut y, bytes) = (Cpu::single(), [0f32], vec![0; row_bytes(1)]);
        let dims = Dims { m: 1, n: 1, k: 1 };
        // SAFETY: this body needs nothing.
        let run = || unsafe { product::<Panics, f32>(&cpu, &mut y, &[1.0], &bytes, None, dims) };
        catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(BEGUN.get(), 0);
    }
}
