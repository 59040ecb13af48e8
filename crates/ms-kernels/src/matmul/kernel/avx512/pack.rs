//! Packing with AVX-512.
//!
//! A panel of six lines is written as whole registers: sixteen steps of six lines are six registers, each made with three
//! permutations of two lines and two blends. The earlier version, one masked store of six lanes per step, took twice the time
//! on Zen 4.

use std::arch::x86_64::*;

use super::super::{Order, Source};
use crate::Element;
use crate::element::is_bf16;

/// Lines of a narrow panel.
pub(in super::super) const SIX: usize = 6;
/// Terms of a strided operand that are packed at a time; even.
/// Few enough for rows a power of two apart to fit the ways of one cache set.
pub(in super::super) const STRIP: usize = 8;

/// A mask of the first `n` of 16 lanes.
#[inline(always)]
pub(crate) fn first(n: usize) -> __mmask16 {
    if n >= 16 { 0xffff } else { (1u16 << n) - 1 }
}

/// A mask of the first `n` of 32 lanes.
#[inline(always)]
pub(crate) fn first32(n: usize) -> __mmask32 {
    if n >= 32 { u32::MAX } else { (1u32 << n) - 1 }
}

/// Up to sixteen elements as f32; lanes outside the mask are zero and not read.
///
/// # Safety
/// The elements of the mask must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load<E: Element>(from: *const E, mask: __mmask16) -> __m512 {
    // SAFETY: masked loads touch the mask's elements only, which the caller vouches for; E is bf16 or f32.
    unsafe {
        if is_bf16::<E>() {
            let half = _mm256_maskz_loadu_epi16(mask, from.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
        } else {
            _mm512_maskz_loadu_ps(mask, from.cast())
        }
    }
}

/// Sixteen terms from term `k` on of up to `N` lines from `line` on, as f32; zeros where there is nothing.
///
/// # Safety
/// The source must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn lines<E: Element, const N: usize>(source: &Source<E>, line: usize, k: usize) -> [__m512i; N] {
    let exist = source.lines.saturating_sub(line).min(N);
    let from = source.data.wrapping_add(line * source.stride + k);
    let mut r = [_mm512_setzero_si512(); N];
    // SAFETY: the lines exist and have the mask's terms.
    unsafe {
        // Written out where a block is whole: with a number of rows known only here the rows would be in memory.
        if exist == N && k + 16 <= source.terms {
            for i in 0..N {
                r[i] = _mm512_castps_si512(load(from.wrapping_add(i * source.stride), 0xffff));
            }
        } else {
            let terms = first(source.terms.saturating_sub(k));
            for i in 0..exist {
                r[i] = _mm512_castps_si512(load(from.wrapping_add(i * source.stride), terms));
            }
        }
    }
    r
}

/// Thirty-two terms from term `k` on, as sixteen pairs, of up to `N` lines from `line` on; zeros where there is nothing.
///
/// # Safety
/// The source must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn pairs<const N: usize>(
    source: &Source<u16>,
    line: usize,
    k: usize,
) -> [__m512i; N] {
    let exist = source.lines.saturating_sub(line).min(N);
    let from = source.data.wrapping_add(line * source.stride + k);
    let mut r = [_mm512_setzero_si512(); N];
    // SAFETY: the lines exist and have the mask's terms; a prefetch of any address is harmless.
    unsafe {
        if exist == N && k + 32 <= source.terms {
            for i in 0..N {
                let from = from.wrapping_add(i * source.stride);
                r[i] = _mm512_loadu_si512(from.cast());
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(32).cast());
            }
        } else {
            let terms = first32(source.terms.saturating_sub(k));
            for i in 0..exist {
                r[i] = _mm512_maskz_loadu_epi16(terms, from.wrapping_add(i * source.stride).cast());
            }
        }
    }
    r
}

/// Transposes a 16 x 16 block of 32-bit elements.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn transpose(r: &mut [__m512i; 16]) {
    let mut t = *r;
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    let mut u = t;
    for i in 0..4 {
        u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    let mut v = u;
    for i in 0..4 {
        v[i] = _mm512_shuffle_i32x4::<0x88>(u[i], u[4 + i]);
        v[4 + i] = _mm512_shuffle_i32x4::<0xdd>(u[i], u[4 + i]);
        v[8 + i] = _mm512_shuffle_i32x4::<0x88>(u[8 + i], u[12 + i]);
        v[12 + i] = _mm512_shuffle_i32x4::<0xdd>(u[8 + i], u[12 + i]);
    }
    for i in 0..8 {
        r[i] = _mm512_shuffle_i32x4::<0x88>(v[i], v[8 + i]);
        r[8 + i] = _mm512_shuffle_i32x4::<0xdd>(v[i], v[8 + i]);
    }
}

/// How `N` registers of a panel of six are assembled from six registers, one per line.
pub(in super::super) struct Six<const N: usize> {
    /// Lanes of a pair of lines; those of its second line from 16 on.
    lanes: [[i32; 16]; N],
    /// Lanes that are of the second and of the third pair of lines.
    pairs: [[__mmask16; 2]; N],
    /// How far to the left a lane is shifted to be an f32.
    shifts: [[i32; 16]; N],
}

impl<const N: usize> Six<N> {
    /// Steps that have `TERMS` terms of `order` in a lane of a line; 1 or 2 terms.
    const fn new(order: Order, terms: usize) -> Self {
        let mut six = Self { lanes: [[0; 16]; N], pairs: [[0; 2]; N], shifts: [[0; 16]; N] };
        let mut element = 0;
        while element < N * 16 {
            let (register, lane) = (element / 16, element % 16);
            let (step, line) = (element / SIX, element % SIX);
            let term = if matches!(order, Order::Swapped) { step ^ 1 } else { step };
            six.lanes[register][lane] = (term / terms + line % 2 * 16) as i32;
            if line >= 2 {
                six.pairs[register][line / 2 - 1] |= 1 << lane;
            }
            six.shifts[register][lane] = if term % terms + 1 < terms { 16 } else { 0 };
            element += 1;
        }
        six
    }

    /// Register `i` of the panel.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn register(&self, i: usize, lines: &[__m512i; SIX]) -> __m512i {
        let [second, third] = self.pairs[i];
        // SAFETY: sixteen numbers.
        let lanes = unsafe { _mm512_loadu_si512(self.lanes[i].as_ptr().cast()) };
        let of = |pair: usize| _mm512_permutex2var_epi32(lines[2 * pair], lanes, lines[2 * pair + 1]);
        _mm512_mask_mov_epi32(_mm512_mask_mov_epi32(of(0), second, of(1)), third, of(2))
    }

    /// [`Self::register`] of lines of two bf16 a lane, one of them as f32.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn widened(&self, i: usize, lines: &[__m512i; SIX]) -> __m512i {
        // SAFETY: sixteen numbers.
        let shifts = unsafe { _mm512_loadu_si512(self.shifts[i].as_ptr().cast()) };
        let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        _mm512_and_si512(_mm512_sllv_epi32(self.register(i, lines), shifts), upper)
    }
}

/// Stores what of sixteen elements belongs to `left` more.
///
/// # Safety
/// There must be room for this many.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_some(to: *mut i32, v: __m512i, left: usize) {
    // SAFETY: the caller's promise; the mask leaves out what does not belong.
    unsafe {
        if left >= 16 {
            _mm512_storeu_si512(to.cast(), v);
        } else {
            _mm512_mask_storeu_epi32(to, first(left), v);
        }
    }
}

/// Packs lines of pairs to panels of six pairs.
///
/// # Safety
/// As for [`super::super::Kernel::pack_contiguous`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn pairs_to_six(source: Source<u16>, to: *mut u32) {
    const STEPS: Six<SIX> = Six::new(Order::Natural, 1);
    let steps = source.filled / 2;
    for line in (0..source.lines).step_by(SIX) {
        for p in (0..steps).step_by(16) {
            let to = to.wrapping_add(line * steps + p * SIX).cast::<i32>();
            // SAFETY: the caller's promise; steps from `p` on are below `steps`.
            unsafe {
                let r = pairs::<SIX>(&source, line, 2 * p);
                for i in 0..SIX {
                    store_some(
                        to.wrapping_add(16 * i),
                        STEPS.register(i, &r),
                        ((steps - p) * SIX).saturating_sub(16 * i),
                    );
                }
            }
        }
    }
}

/// Packs lines to panels of six f32.
///
/// # Safety
/// As for [`super::super::Kernel::pack_contiguous`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn lines_to_six<E: Element>(source: Source<E>, to: *mut f32) {
    const NATURAL: Six<SIX> = Six::new(Order::Natural, 1);
    const SWAPPED: Six<SIX> = Six::new(Order::Swapped, 1);
    const NATURAL_PAIRS: Six<{ 2 * SIX }> = Six::new(Order::Natural, 2);
    const SWAPPED_PAIRS: Six<{ 2 * SIX }> = Six::new(Order::Swapped, 2);
    let natural = source.order == Order::Natural;
    let steps = source.filled;
    for line in (0..source.lines).step_by(SIX) {
        let to = to.wrapping_add(line * steps).cast::<i32>();
        // SAFETY: the caller's promise; steps from `k` on are below `steps`.
        unsafe {
            if is_bf16::<E>() {
                let (source, six) = (source.bits(), if natural { &NATURAL_PAIRS } else { &SWAPPED_PAIRS });
                for k in (0..steps).step_by(32) {
                    let r = pairs::<SIX>(&source, line, k);
                    for i in 0..2 * SIX {
                        let at = k * SIX + 16 * i;
                        store_some(to.wrapping_add(at), six.widened(i, &r), (steps * SIX).saturating_sub(at));
                    }
                }
            } else {
                let six = if natural { &NATURAL } else { &SWAPPED };
                for k in (0..steps).step_by(16) {
                    let r = lines::<E, SIX>(&source, line, k);
                    for i in 0..SIX {
                        let at = k * SIX + 16 * i;
                        store_some(
                            to.wrapping_add(at),
                            six.register(i, &r),
                            (steps * SIX).saturating_sub(at),
                        );
                    }
                }
            }
        }
    }
}

/// Stores up to four steps of a panel of six, which stand from lane `SIX · panel` on.
///
/// # Safety
/// There must be room for `steps` of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn store_four(to: *mut i32, rows: &[__m512i; 4], panel: usize, steps: usize) {
    let two = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 0, 0, 0, 0);
    let two = _mm512_add_epi32(two, _mm512_set1_epi32((panel * SIX) as i32));
    let joined = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19);
    let (front, back) =
        (_mm512_permutex2var_epi32(rows[0], two, rows[1]), _mm512_permutex2var_epi32(rows[2], two, rows[3]));
    let whole = _mm512_permutex2var_epi32(front, joined, back);
    let rest = _mm512_castsi512_si256(_mm512_alignr_epi32::<4>(back, back));
    // SAFETY: the caller's promise.
    unsafe {
        if steps >= 4 {
            _mm512_storeu_si512(to.cast(), whole);
            _mm256_storeu_si256(to.wrapping_add(16).cast(), rest);
        } else {
            _mm512_mask_storeu_epi32(to, first(steps * SIX), whole);
            if steps == 3 {
                _mm_storel_epi64(to.wrapping_add(16).cast(), _mm256_castsi256_si128(rest));
            }
        }
    }
}

/// Packs strided terms to panels of six f32.
///
/// # Safety
/// As for [`super::super::Kernel::pack_strided`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn terms_to_six<E: Element>(source: Source<E>, to: *mut f32) {
    let steps = source.filled;
    // A few terms at a time: the lines of memory that they touch stay in the first-level cache until all panels
    // have taken their elements.
    for k0 in (0..steps).step_by(STRIP) {
        for line in (0..source.lines).step_by(2 * SIX) {
            let exist = first((source.lines - line).min(2 * SIX));
            for k in (k0..steps.min(k0 + STRIP)).step_by(4) {
                let mut rows = [_mm512_setzero_si512(); 4];
                for i in 0..4 {
                    let term = source.order.position(k + i);
                    let mask = if term < source.terms { exist } else { 0 };
                    // SAFETY: the mask holds existing elements only.
                    rows[i] = _mm512_castps_si512(unsafe {
                        load(source.data.wrapping_add(term * source.stride + line), mask)
                    });
                }
                let to = to.wrapping_add(line * steps + k * SIX).cast::<i32>();
                // SAFETY: steps from `k` on are below `steps`; the panels have room.
                unsafe {
                    store_four(to, &rows, 0, steps - k);
                    if line + SIX < source.lines {
                        store_four(to.wrapping_add(SIX * steps), &rows, 1, steps - k);
                    }
                }
            }
        }
    }
}

/// Packs lines to panels of `W` f32, a multiple of sixteen.
///
/// # Safety
/// As for [`super::super::Kernel::pack_contiguous`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn lines_to_panels<E: Element, const W: usize>(source: Source<E>, to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        if is_bf16::<E>() {
            bf16_lines_to_panels::<W>(source.bits(), to);
        } else {
            f32_lines_to_panels::<E, W>(source, to);
        }
    }
}

/// # Safety
/// As for [`lines_to_panels`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn f32_lines_to_panels<E: Element, const W: usize>(source: Source<E>, to: *mut f32) {
    let steps = source.filled;
    for line in (0..source.lines.next_multiple_of(W)).step_by(16) {
        let to = to.wrapping_add(line / W * W * steps + line % W);
        for k in (0..steps).step_by(16) {
            // SAFETY: the caller's promise.
            let mut r = unsafe { lines::<E, 16>(&source, line, k) };
            transpose(&mut r);
            let store = |q: usize, v: __m512i| {
                let to = to.wrapping_add((k + source.order.position(q)) * W);
                // SAFETY: the step is below `steps`, which is a multiple of two; the panels have room.
                unsafe { _mm512_storeu_si512(to.cast(), v) };
            };
            if k + 16 <= steps {
                for q in 0..16 {
                    store(q, r[q]);
                }
            } else {
                for q in 0..steps - k {
                    store(q, r[q]);
                }
            }
        }
    }
}

/// Pairs of terms are transposed together and widened afterwards, so that whole cache lines are read and half the
/// shuffles do.
///
/// # Safety
/// As for [`lines_to_panels`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn bf16_lines_to_panels<const W: usize>(source: Source<u16>, to: *mut f32) {
    let steps = source.filled;
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    for line in (0..source.lines.next_multiple_of(W)).step_by(16) {
        let to = to.wrapping_add(line / W * W * steps + line % W);
        for k in (0..steps).step_by(32) {
            // SAFETY: the caller's promise.
            let mut r = unsafe { pairs::<16>(&source, line, k) };
            transpose(&mut r);
            let store = |q: usize, pair: __m512i| {
                let (odd, even) = (_mm512_and_si512(pair, upper), _mm512_slli_epi32::<16>(pair));
                let (a, b) = if source.order == Order::Swapped { (odd, even) } else { (even, odd) };
                let to = to.wrapping_add((k + 2 * q) * W);
                // SAFETY: steps k + 2q and the next are below `steps`; the panels have room.
                unsafe {
                    _mm512_storeu_si512(to.cast(), a);
                    _mm512_storeu_si512(to.wrapping_add(W).cast(), b);
                }
            };
            if k + 32 <= steps {
                for q in 0..16 {
                    store(q, r[q]);
                }
            } else {
                for q in 0..(steps - k) / 2 {
                    store(q, r[q]);
                }
            }
        }
    }
}

/// Packs strided terms to panels of `W` f32, a multiple of sixteen.
///
/// # Safety
/// As for [`super::super::Kernel::pack_strided`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn terms_to_panels<E: Element, const W: usize>(source: Source<E>, to: *mut f32) {
    let steps = source.filled;
    for k0 in (0..steps).step_by(STRIP) {
        for line in (0..source.lines.next_multiple_of(W)).step_by(16) {
            let exist = first(source.lines.saturating_sub(line).min(16));
            let to = to.wrapping_add(line / W * W * steps + line % W);
            for k in k0..steps.min(k0 + STRIP) {
                let mask = if k < source.terms { exist } else { 0 };
                // SAFETY: the mask holds existing elements only; the step is below `steps`; the panels have room.
                unsafe {
                    let v = load(source.data.wrapping_add(k * source.stride + line), mask);
                    _mm512_storeu_ps(to.wrapping_add(source.order.position(k) * W), v);
                }
            }
        }
    }
}
