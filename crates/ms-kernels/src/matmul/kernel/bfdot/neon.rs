//! `bfmmla`: 6 x 16 sums in twenty-four registers of 2 x 2.
//!
//! A packed element is four terms of a row or column, a register two of them: two rows times two columns are one instruction.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::{MR, NR, VECTORS, finish, load, start, store};
use super::super::{Kernel, Order, Side, Source, Store, Tile, by_rows, each_row, portable};
use super::GRANULE;
use crate::Element;
use crate::prefetch::fetch;

#[derive(Clone, Copy)]
pub(crate) struct Bfmmla;

/// Terms of a packed element.
const TERMS: usize = GRANULE;
/// Rows of a register of sums, and its columns.
const TWO: usize = 2;
/// Steps for each row of the next tile's sums that is fetched.
const STEPS_PER_ROW: usize = 8;
/// Steps that a panel of `a` is fetched ahead of its use.
const AHEAD: usize = 8;
/// Terms of a strided operand that are packed at a time.
const STRIP: usize = 32;

/// A bf16 instruction on sums in f32 and two registers of eight bf16.
macro_rules! instruction {
    ($name:ident, $code:literal) => {
        #[inline]
        #[target_feature(enable = "neon,bf16")]
        fn $name(mut sums: float32x4_t, a: uint64x2_t, b: uint64x2_t) -> float32x4_t {
            // SAFETY: reads three registers and writes one.
            unsafe {
                asm!($code, inlateout(vreg) sums, in(vreg) a, in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags));
            }
            sums
        }
    };
}

instruction!(bfmmla, "bfmmla {0:v}.4s, {1:v}.8h, {2:v}.8h");
#[cfg(test)]
instruction!(bfdot, "bfdot {0:v}.4s, {1:v}.8h, {2:v}.8h");

/// What `bfdot` and `bfmmla` make of numbers.
///
/// # Safety
/// The processor must have the instructions.
#[cfg(test)]
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn both(sums: [f32; 4], a: [half::bf16; 8], b: [half::bf16; 8]) -> [[f32; 4]; 2] {
    let mut results = [[0f32; 4]; 2];
    // SAFETY: arrays and registers have 16 bytes.
    unsafe {
        let (start, a, b) =
            (vld1q_f32(sums.as_ptr()), vld1q_u64(a.as_ptr().cast()), vld1q_u64(b.as_ptr().cast()));
        vst1q_f32(results[0].as_mut_ptr(), bfdot(start, a, b));
        vst1q_f32(results[1].as_mut_ptr(), bfmmla(start, a, b));
    }
    results
}

/// Runs `rounds` rounds of products from registers; returns how many operations that was.
///
/// # Safety
/// The processor must have the instruction.
#[target_feature(enable = "neon,bf16")]
pub(crate) unsafe fn register_loop(rounds: usize) -> f64 {
    const CHAINS: usize = 24;
    // bf16 of about 1e-3.
    let a = vdupq_n_u64(std::hint::black_box(0x3a83_3a83_3a83_3a83));
    let mut sums = [vdupq_n_f32(1.0); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = bfmmla(*sum, a, a);
        }
    }
    std::hint::black_box(sums);
    (rounds * CHAINS * 4 * TERMS * 2) as f64
}

/// Rows of four columns each, as registers of two rows and two columns.
#[inline]
#[target_feature(enable = "neon")]
fn crossed(first: float32x4_t, second: float32x4_t) -> [float32x4_t; 2] {
    let (first, second) = (vreinterpretq_u64_f32(first), vreinterpretq_u64_f32(second));
    [vreinterpretq_f32_u64(vtrn1q_u64(first, second)), vreinterpretq_f32_u64(vtrn2q_u64(first, second))]
}

/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "neon,bf16")]
unsafe fn rows<const ROWS: usize>(tile: &Tile<u64>) {
    let mut sums = [[vdupq_n_f32(0.0); VECTORS]; MR];
    // SAFETY: steps, panels, start and store are the caller's promise; a panel has all its rows. Fetches may point anywhere.
    unsafe {
        start!(tile, ROWS, sums);
        let mut squares = [[vdupq_n_f32(0.0); NR / TWO]; MR / TWO];
        for i in 0..MR / TWO {
            for v in 0..VECTORS {
                [squares[i][2 * v], squares[i][2 * v + 1]] = crossed(sums[TWO * i][v], sums[TWO * i + 1][v]);
            }
        }
        let (mut next, next_stride) = tile.next;
        let (mut a, mut b) = (tile.a, tile.b);
        for step in 0..tile.steps {
            if step % STEPS_PER_ROW == 0 {
                fetch(next);
                next = next.wrapping_add(next_stride);
            }
            fetch(a.wrapping_add(AHEAD * MR));
            let av: [uint64x2_t; MR / TWO] = std::array::from_fn(|i| vld1q_u64(a.add(TWO * i)));
            for j in 0..NR / TWO {
                let bv = vld1q_u64(b.add(TWO * j));
                for i in 0..ROWS.div_ceil(TWO) {
                    squares[i][j] = bfmmla(squares[i][j], av[i], bv);
                }
            }
            a = a.wrapping_add(MR);
            b = b.wrapping_add(NR);
        }
        for i in 0..MR / TWO {
            for v in 0..VECTORS {
                [sums[TWO * i][v], sums[TWO * i + 1][v]] = crossed(squares[i][2 * v], squares[i][2 * v + 1]);
            }
        }
        finish!(tile, ROWS, sums);
    }
}

/// Eight bytes of four terms from `from` on; `count` of them exist, the rest is zero.
///
/// # Safety
/// Those that exist must be readable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_some(from: *const u16, count: usize) -> uint16x4_t {
    let mut some = [0u16; 4];
    // SAFETY: the caller's promise.
    unsafe {
        if count >= 4 {
            return vld1_u16(from);
        }
        std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count);
        vld1_u16(some.as_ptr())
    }
}

/// # Safety
/// As for [`Kernel::pack_contiguous`], with `W` the width.
#[target_feature(enable = "neon")]
unsafe fn pack_contiguous<const W: usize>(source: Source<u16>, to: *mut u64) {
    let steps = source.filled / TERMS;
    for line in 0..source.lines.next_multiple_of(W) {
        let to = to.wrapping_add(line / W * W * steps + line % W);
        let from = source.data.wrapping_add(line * source.stride);
        let terms = if line < source.lines { source.terms } else { 0 };
        for step in 0..steps {
            let k = step * TERMS;
            // SAFETY: the line has the terms; the step is one of the panel's, which has room.
            unsafe {
                let v = load_some(from.wrapping_add(k), terms.saturating_sub(k));
                vst1_u64(to.wrapping_add(step * W), vreinterpret_u64_u16(v));
            }
        }
    }
}

/// # Safety
/// As for [`Kernel::pack_strided`], with `W` the width.
#[target_feature(enable = "neon")]
unsafe fn pack_strided<const W: usize>(source: Source<u16>, to: *mut u64) {
    let steps = source.filled / TERMS;
    for k0 in (0..source.filled).step_by(STRIP) {
        let mut line = 0;
        while line < source.lines.next_multiple_of(W) {
            let group = 4.min(W - line % W);
            let exist = source.lines.saturating_sub(line).min(group);
            let to = to.wrapping_add(line / W * W * steps + line % W);
            for k in (k0..source.filled.min(k0 + STRIP)).step_by(TERMS) {
                let mut r = [vdup_n_u16(0); TERMS];
                for (t, r) in r.iter_mut().enumerate().take(source.terms.saturating_sub(k)) {
                    // SAFETY: the term exists for these lines.
                    *r =
                        unsafe { load_some(source.data.wrapping_add((k + t) * source.stride + line), exist) };
                }
                let pairs = |a, b| [vzip1_u16(a, b), vzip2_u16(a, b)].map(|v| vreinterpret_u32_u16(v));
                let ([first, third], [second, fourth]) = (pairs(r[0], r[1]), pairs(r[2], r[3]));
                let two = |a, b| {
                    vcombine_u64(vreinterpret_u64_u32(vzip1_u32(a, b)), vreinterpret_u64_u32(vzip2_u32(a, b)))
                };
                let to = to.wrapping_add(k / TERMS * W);
                // SAFETY: the step is one of the panel's, which has room for the group's lines.
                unsafe {
                    vst1q_u64(to, two(first, second));
                    if group > 2 {
                        vst1q_u64(to.wrapping_add(2), two(third, fourth));
                    }
                }
            }
            line += group;
        }
    }
}

impl Kernel for Bfmmla {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = TERMS;
    const GRANULE: usize = GRANULE;
    const ORDER: Order = Order::Natural;
    const DEPTH: usize = 128;
    const BLOCK_ROWS: usize = 252;
    const LEFT_IN_PLACE: bool = false;
    type Packed = u64;

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut u64) {
        // SAFETY: the caller's promise.
        unsafe {
            match side {
                Side::Left => pack_contiguous::<MR>(source.bits(), to),
                Side::Right => pack_contiguous::<NR>(source.bits(), to),
            }
        }
    }

    unsafe fn pack_strided<E: Element>(source: Source<E>, side: Side, to: *mut u64) {
        // SAFETY: the caller's promise.
        unsafe {
            match side {
                Side::Left => pack_strided::<MR>(source.bits(), to),
                Side::Right => pack_strided::<NR>(source.bits(), to),
            }
        }
    }

    unsafe fn tile(tile: &Tile<u64>) {
        // SAFETY: the caller's promise.
        unsafe { by_rows!(tile, rows) }
    }
}
