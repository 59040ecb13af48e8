//! AVX2 with fused multiply-add: tiles of 6 x 16 in twelve registers, operands widened to f32 in the panels.
//!
//! Processors where this is the best instance have a second-level cache of half a megabyte (Zen 2 and 3), earlier ones a
//! quarter: a block's rows of `a` take half of that.

use std::arch::x86_64::*;

use super::{Kernel, Side, Source, Store, Tile, by_rows, each_row, packing_by_width, portable};
use crate::Element;
use crate::element::is_bf16;
use crate::narrow::avx2::{to_bf16, widen};

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

pub(super) const MR: usize = 6;
pub(super) const NR: usize = 16;
/// Values of a register.
const VECTOR: usize = 8;
/// Steps that are written out in the loop over a panel.
const UNROLL: usize = 4;
/// Steps for each row of the next tile's sums that is fetched: all of them at once would wait for each other.
const STEPS_PER_ROW: usize = 16;
/// Steps that a panel of `a` is fetched ahead of its use: it comes from the second-level cache.
const AHEAD: usize = 16;
/// Terms of a strided operand that are packed at a time, as with AVX-512.
const STRIP: usize = super::avx512::pack::STRIP;

/// Sums of a tile where they start, in `$sums`: registers, which a function would put in memory.
macro_rules! start {
    ($tile:ident, $rows:ident, $sums:ident) => {
        if let Some((from, stride)) = $tile.start {
            if $tile.cols == NR {
                each_row!(I < $rows, {
                    let from = from.wrapping_add(I * stride);
                    $sums[I] = [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(NR / 2))];
                });
            } else {
                let narrow = portable::load_start($tile);
                each_row!(I < $rows, {
                    let from = narrow[I].as_ptr();
                    $sums[I] = [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(NR / 2))];
                });
            }
        }
    };
}
pub(super) use start;

/// Writes the sums of a tile, with its bias.
macro_rules! finish {
    ($tile:ident, $rows:ident, $sums:ident) => {
        if $tile.cols < NR {
            let mut narrow = [[0f32; NR]; MR];
            each_row!(I < $rows, {
                let to = narrow[I].as_mut_ptr();
                _mm256_storeu_ps(to, $sums[I][0]);
                _mm256_storeu_ps(to.add(NR / 2), $sums[I][1]);
            });
            portable::finish($tile, &mut narrow);
            return;
        }
        if !$tile.bias.is_null() {
            let bias = [_mm256_loadu_ps($tile.bias), _mm256_loadu_ps($tile.bias.add(NR / 2))];
            each_row!(I < $rows, {
                $sums[I] = [_mm256_add_ps($sums[I][0], bias[0]), _mm256_add_ps($sums[I][1], bias[1])];
            });
        }
        match $tile.store {
            Store::F32 { to, stride } => {
                each_row!(I < $rows, {
                    let to = to.wrapping_add(I * stride);
                    _mm256_storeu_ps(to, $sums[I][0]);
                    _mm256_storeu_ps(to.add(NR / 2), $sums[I][1]);
                });
            }
            Store::Bf16 { to, stride } => {
                each_row!(I < $rows, {
                    let to = to.wrapping_add(I * stride);
                    _mm256_storeu_si256(to.cast(), to_bf16($sums[I][0], $sums[I][1]));
                });
            }
        }
    };
}
pub(super) use finish;

/// The tile with `ROWS` rows; `PANEL` says that `a` is a panel.
///
/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const ROWS: usize, const PANEL: bool>(tile: &Tile<f32>) {
    let mut acc = [[_mm256_setzero_ps(); 2]; MR];
    // SAFETY: steps, panels, start and store are the caller's promise. Prefetches may point anywhere.
    unsafe {
        start!(tile, ROWS, acc);
        let (mut next, next_stride) = tile.next;
        let (mut a, mut b) = (tile.a, tile.b);
        let (a_row, a_step) = if PANEL { (1, MR) } else { (tile.a_row, tile.a_step) };
        let mut left = tile.steps;
        macro_rules! step {
            ($s:literal) => {{
                let b = b.add($s * NR);
                let bv = [_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(VECTOR))];
                each_row!(I < ROWS, {
                    let v = _mm256_broadcast_ss(&*a.add($s * a_step + I * a_row));
                    acc[I][0] = _mm256_fmadd_ps(v, bv[0], acc[I][0]);
                    acc[I][1] = _mm256_fmadd_ps(v, bv[1], acc[I][1]);
                });
            }};
        }
        while left >= STEPS_PER_ROW {
            _mm_prefetch::<_MM_HINT_T0>(next.cast());
            next = next.wrapping_add(next_stride);
            for _ in 0..STEPS_PER_ROW / UNROLL {
                if PANEL {
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD * MR).cast());
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD * MR + 16).cast());
                }
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                a = a.wrapping_add(UNROLL * a_step);
                b = b.wrapping_add(UNROLL * NR);
            }
            left -= STEPS_PER_ROW;
        }
        while left > 0 {
            step!(0);
            a = a.wrapping_add(a_step);
            b = b.wrapping_add(NR);
            left -= 1;
        }
        finish!(tile, ROWS, acc);
    }
}

/// # Safety
/// As for [`Kernel::tile`].
unsafe fn any_rows<const PANEL: bool>(tile: &Tile<f32>) {
    // SAFETY: the caller's promise.
    unsafe { by_rows!(tile, rows, PANEL) }
}

/// Transposes an 8 x 8 block of 32-bit elements.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn transpose(r: &mut [__m256i; 8]) {
    let mut t = *r;
    for i in 0..4 {
        t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    let mut u = t;
    for i in 0..2 {
        u[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for i in 0..4 {
        r[i] = _mm256_permute2x128_si256::<0x20>(u[i], u[4 + i]);
        r[4 + i] = _mm256_permute2x128_si256::<0x31>(u[i], u[4 + i]);
    }
}

/// Lines that are packed together into panels of `W`.
const fn group_lines<const W: usize>() -> usize {
    if W < VECTOR { W } else { VECTOR }
}

/// Stores a step of a group: as many lanes as a panel of `W` takes.
///
/// # Safety
/// The panel must have room for them.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_group<const W: usize>(to: *mut f32, v: __m256i) {
    const { assert!(W == 6 || W == 16, "a group fills a narrow panel or half of a wide one") };
    let v = _mm256_castsi256_ps(v);
    // SAFETY: the caller's promise.
    unsafe {
        if W == 6 {
            _mm_storeu_ps(to, _mm256_castps256_ps128(v));
            _mm_storel_pd(to.add(4).cast(), _mm_castps_pd(_mm256_extractf128_ps::<1>(v)));
        } else {
            _mm256_storeu_ps(to, v);
        }
    }
}

/// A register of elements from `from` on; `count` of them exist, the rest is zero.
///
/// # Safety
/// Those that exist must be readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_some<E: Element>(from: *const E, count: usize) -> __m256i {
    let mut some = [E::default(); 16];
    let all = size_of::<__m256i>() / size_of::<E>();
    // SAFETY: the caller's promise; there are sixteen elements' room, at least as many as a register has.
    unsafe {
        std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count.min(all));
        _mm256_loadu_si256(some.as_ptr().cast())
    }
}

/// # Safety
/// As for [`Kernel::pack_contiguous`], with `W` the width.
#[target_feature(enable = "avx2,fma")]
unsafe fn pack_contiguous<E: Element, const W: usize>(source: Source<E>, to: *mut f32) {
    let even = source.filled;
    // Pairs of bf16 are transposed together and widened afterwards: half the shuffles.
    let in_register = size_of::<__m256i>() / size_of::<E>();
    let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    for line in (0..source.lines.next_multiple_of(W)).step_by(group_lines::<W>()) {
        let exist = source.lines.saturating_sub(line).min(group_lines::<W>());
        let to = to.wrapping_add(line / W * W * even + line % W);
        for k in (0..even).step_by(in_register) {
            let from = source.data.wrapping_add(line * source.stride + k);
            let to = to.wrapping_add(k * W);
            let mut r = [_mm256_setzero_si256(); 8];
            // Written out where a block is whole: with a number of rows known only here the rows would be in memory.
            if exist == group_lines::<W>() && k + in_register <= source.terms {
                for i in 0..group_lines::<W>() {
                    // SAFETY: the line exists and has a register's terms more.
                    r[i] = unsafe { _mm256_loadu_si256(from.wrapping_add(i * source.stride).cast()) };
                }
            } else {
                let terms = source.terms.saturating_sub(k);
                for (i, r) in r.iter_mut().enumerate().take(exist) {
                    // SAFETY: the line exists and has the terms.
                    *r = unsafe { load_some(from.wrapping_add(i * source.stride), terms) };
                }
            }
            transpose(&mut r);
            let store = |q: usize, v: __m256i| {
                // SAFETY: the step is below `even`; the panels have room.
                unsafe { store_group::<W>(to.wrapping_add(source.order.position(q) * W), v) };
            };
            macro_rules! store_row {
                ($q:expr) => {
                    if is_bf16::<E>() {
                        store(2 * $q, _mm256_slli_epi32::<16>(r[$q]));
                        store(2 * $q + 1, _mm256_and_si256(r[$q], upper));
                    } else {
                        store($q, r[$q]);
                    }
                };
            }
            if k + in_register <= even {
                for q in 0..8 {
                    store_row!(q);
                }
            } else {
                for q in 0..(even - k) * 8 / in_register {
                    store_row!(q);
                }
            }
        }
    }
}

/// Eight elements as f32; `count` of them exist, the rest is zero.
///
/// # Safety
/// Those that exist must be readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_wide<E: Element>(from: *const E, count: usize) -> __m256 {
    let mut some = [E::default(); VECTOR];
    // SAFETY: the caller's promise.
    unsafe {
        let from = if count >= VECTOR {
            from
        } else {
            std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count);
            some.as_ptr()
        };
        if is_bf16::<E>() { widen(from.cast()) } else { _mm256_loadu_ps(from.cast()) }
    }
}

/// # Safety
/// As for [`Kernel::pack_strided`], with `W` the width.
#[target_feature(enable = "avx2,fma")]
unsafe fn pack_strided<E: Element, const W: usize>(source: Source<E>, to: *mut f32) {
    let even = source.filled;
    // A few terms at a time: the lines of memory that they touch stay in the first-level cache until all panels
    // have taken their elements.
    for k0 in (0..even).step_by(STRIP) {
        for line in (0..source.lines.next_multiple_of(W)).step_by(group_lines::<W>()) {
            let exist = source.lines.saturating_sub(line);
            let to = to.wrapping_add(line / W * W * even + line % W);
            for k in k0..even.min(k0 + STRIP) {
                let count = if k < source.terms { exist } else { 0 };
                // SAFETY: no more is read than exists; the step is below `even`; the panels have room.
                unsafe {
                    let v = load_wide(source.data.wrapping_add(k * source.stride + line), count);
                    let to = to.wrapping_add(source.order.position(k) * W);
                    store_group::<W>(to, _mm256_castps_si256(v));
                }
            }
        }
    }
}

impl Kernel for Avx2 {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 1;
    const DEPTH: usize = 256;
    const BLOCK_ROWS: usize = 252;
    type Packed = f32;

    packing_by_width!();

    unsafe fn tile(tile: &Tile<f32>) {
        // SAFETY: the caller's promise.
        unsafe {
            if tile.a_row == 1 && tile.a_step == MR {
                any_rows::<true>(tile);
            } else {
                any_rows::<false>(tile);
            }
        }
    }
}
