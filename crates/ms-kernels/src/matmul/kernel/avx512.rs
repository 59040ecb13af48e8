//! AVX-512 without the bf16 dot: tiles of 6 x 64 in 24 registers, operands widened to f32 in the panels.
//!
//! A step is ten loads for 24 multiply-adds, and few instructions are what counts where the issue slots are short:
//! on a virtual Ice Lake 24 multiply-adds with as many no-operations took half as long again as without. With `b` in
//! the first-level cache and `a` in the second 6 x 64 and 8 x 48 reached 89 % of the peak there, 14 x 32 and 12 x 32
//! 81 %; 8 x 48 divides fewer model sizes. Steps are unrolled for the same reason. Broadcasts folded into the
//! multiply-add were a third slower, for each use loads again.

use std::arch::x86_64::*;

use super::{Kernel, Order, Side, Source, Store, Tile};
use crate::Element;
use crate::element::is_bf16;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

pub(super) const MR: usize = 6;
pub(super) const NR: usize = 64;
/// Registers across a tile.
pub(super) const VECTORS: usize = NR / 16;
/// Steps that are written out in the loop over a panel.
const UNROLL: usize = 4;
/// Steps for each row of the next tile's sums that is fetched: all of them at once would wait for each other.
const STEPS_PER_ROW: usize = 16;
/// Steps that a panel of `a` is fetched ahead of its use: it comes from the second-level cache.
const AHEAD: usize = 8;
/// Terms of a strided operand that are packed at a time; even.
/// Few enough for rows a power of two apart to fit the ways of one cache set.
pub(super) const STRIP: usize = 8;

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
pub(super) use each_row;

/// A mask of the first `n` of 16 lanes.
#[inline(always)]
pub(super) fn first(n: usize) -> __mmask16 {
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

/// Rounds to bf16, to nearest even; under flush-to-zero there is no denormal to treat.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn to_bf16(v: __m512) -> __m256i {
    let bits = _mm512_castps_si512(v);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
    let all = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000));
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(all))
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

/// Lines that are packed together into panels of `W`: as many panels as share a register of sixteen lanes.
#[inline(always)]
pub(super) const fn group_lines<const W: usize>() -> usize {
    if W < 16 { 16 / W * W } else { 16 }
}

/// Stores a step of a group: lanes `p·W..` to panel `p`; a panel wider than the group takes all lanes. Of two panels
/// the second is left out unless `both`.
///
/// # Safety
/// The panels, `panel` elements apart, must have room for the lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store_group<const W: usize>(to: *mut i32, v: __m512i, both: bool, panel: usize) {
    const { assert!(W >= 16 || (W > 5 && W < 8), "a group is one wide panel or two narrow ones") };
    // SAFETY: the masks select the lanes of a panel; the second one's address is set back by as many.
    unsafe {
        if W >= 16 {
            _mm512_storeu_si512(to.cast(), v);
            return;
        }
        let lanes: __mmask16 = (1 << W) - 1;
        _mm512_mask_storeu_epi32(to, lanes, v);
        if both {
            _mm512_mask_storeu_epi32(to.wrapping_add(panel).wrapping_sub(W), lanes << W, v);
        }
    }
}

/// # Safety
/// As for [`Kernel::pack_contiguous`], with `W` the width.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_contiguous<E: Element, const W: usize>(source: Source<E>, to: *mut f32) {
    let even = source.filled;
    for line in (0..source.lines.next_multiple_of(W)).step_by(group_lines::<W>()) {
        let exist = source.lines.saturating_sub(line).min(group_lines::<W>());
        let both = source.lines > line + W;
        let to = to.wrapping_add(line / W * W * even + line % W);
        for k in (0..even).step_by(16) {
            let from = source.data.wrapping_add(line * source.stride + k);
            let to = to.wrapping_add(k * W);
            let store = |q: usize, v: __m512i| {
                let to = to.wrapping_add(source.order.position(q) * W).cast();
                // SAFETY: the step is below `even`, which is a multiple of two; the panels have room.
                unsafe { store_group::<W>(to, v, both, W * even) };
            };
            let mut r = [_mm512_setzero_si512(); 16];
            // Written out where a block is whole: with a number of rows known only here the rows would be in memory.
            if exist == group_lines::<W>() && k + 16 <= source.terms {
                for i in 0..group_lines::<W>() {
                    // SAFETY: the line exists and has sixteen more terms.
                    r[i] = _mm512_castps_si512(unsafe { load(from.wrapping_add(i * source.stride), 0xffff) });
                }
                transpose(&mut r);
                for q in 0..16 {
                    store(q, r[q]);
                }
            } else {
                let terms = first(source.terms.saturating_sub(k));
                for i in 0..exist {
                    // SAFETY: line `line + i` exists and has the mask's terms.
                    r[i] = _mm512_castps_si512(unsafe { load(from.wrapping_add(i * source.stride), terms) });
                }
                transpose(&mut r);
                for q in 0..(even - k).min(16) {
                    store(q, r[q]);
                }
            }
        }
    }
}

/// [`pack_contiguous`] for bf16: pairs of terms are transposed together and widened afterwards, so that whole cache
/// lines are read and half the shuffles do.
///
/// # Safety
/// As for [`Kernel::pack_contiguous`], with `W` the width.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_contiguous_bf16<const W: usize>(source: Source<u16>, to: *mut f32) {
    let even = source.filled;
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    for line in (0..source.lines.next_multiple_of(W)).step_by(group_lines::<W>()) {
        let exist = source.lines.saturating_sub(line).min(group_lines::<W>());
        let both = source.lines > line + W;
        let to = to.wrapping_add(line / W * W * even + line % W);
        for k in (0..even).step_by(32) {
            let from = source.data.wrapping_add(line * source.stride + k);
            let full = exist == group_lines::<W>() && k + 32 <= source.terms;
            let mut r = [_mm512_setzero_si512(); 16];
            // SAFETY: lines from `line` on exist and have the terms; a prefetch of any address is harmless.
            unsafe {
                if full {
                    for i in 0..group_lines::<W>() {
                        let from = from.wrapping_add(i * source.stride);
                        r[i] = _mm512_loadu_si512(from.cast());
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(64).cast());
                    }
                } else {
                    let terms = first32(source.terms.saturating_sub(k));
                    for i in 0..exist {
                        r[i] = _mm512_maskz_loadu_epi16(terms, from.wrapping_add(i * source.stride).cast());
                    }
                }
            }
            transpose(&mut r);
            let store = |q: usize, pair: __m512i| {
                let (odd, even_term) = (_mm512_and_si512(pair, upper), _mm512_slli_epi32::<16>(pair));
                let (a, b) = if source.order == Order::Swapped { (odd, even_term) } else { (even_term, odd) };
                let to = to.wrapping_add((k + 2 * q) * W).cast::<i32>();
                // SAFETY: steps k + 2q and the next are below `even`; the panels have room.
                unsafe {
                    store_group::<W>(to, a, both, W * even);
                    store_group::<W>(to.wrapping_add(W), b, both, W * even);
                }
            };
            if full {
                for q in 0..16 {
                    store(q, r[q]);
                }
            } else {
                for q in 0..((even - k) / 2).min(16) {
                    store(q, r[q]);
                }
            }
        }
    }
}

/// [`Kernel::pack_contiguous`] to panels of `W`.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn lines_to_panels<E: Element, const W: usize>(source: Source<E>, to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        if is_bf16::<E>() {
            pack_contiguous_bf16::<W>(source.bits(), to);
        } else {
            pack_contiguous::<E, W>(source, to);
        }
    }
}

/// # Safety
/// As for [`Kernel::pack_strided`], with `W` the width.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn pack_strided<E: Element, const W: usize>(source: Source<E>, to: *mut f32) {
    let even = source.filled;
    // A few terms at a time: the lines of memory that they touch stay in the first-level cache until all panels
    // have taken their elements.
    for k0 in (0..even).step_by(STRIP) {
        for line in (0..source.lines.next_multiple_of(W)).step_by(group_lines::<W>()) {
            let exist = first(source.lines.saturating_sub(line).min(group_lines::<W>()));
            let both = source.lines > line + W;
            let to = to.wrapping_add(line / W * W * even + line % W);
            for k in k0..even.min(k0 + STRIP) {
                let mask = if k < source.terms { exist } else { 0 };
                // SAFETY: the mask holds existing elements only; the step is below `even`; the panels have room.
                unsafe {
                    let v = load(source.data.wrapping_add(k * source.stride + line), mask);
                    let to = to.wrapping_add(source.order.position(k) * W).cast();
                    store_group::<W>(to, _mm512_castps_si512(v), both, W * even);
                }
            }
        }
    }
}

/// Masks of the columns of a tile, sixteen at a time.
#[inline(always)]
pub(super) fn column_masks(cols: usize) -> [__mmask16; VECTORS] {
    [
        first(cols),
        first(cols.saturating_sub(16)),
        first(cols.saturating_sub(32)),
        first(cols.saturating_sub(48)),
    ]
}

/// Sums of a row where they start.
///
/// # Safety
/// The masked elements must be readable.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_row(from: *const f32, mask: [__mmask16; VECTORS]) -> [__m512; VECTORS] {
    let mut row = [_mm512_setzero_ps(); VECTORS];
    for j in 0..VECTORS {
        // SAFETY: the mask leaves out what must not be read.
        row[j] = unsafe { _mm512_maskz_loadu_ps(mask[j], from.wrapping_add(16 * j)) };
    }
    row
}

/// Adds a bias to each finished row.
///
/// # Safety
/// `bias` must be null or hold `NR` values.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_bias(acc: &mut [[__m512; VECTORS]; MR], bias: *const f32) {
    if bias.is_null() {
        return;
    }
    for j in 0..VECTORS {
        // SAFETY: a bias that is not null has NR values.
        let bias = unsafe { _mm512_loadu_ps(bias.add(16 * j)) };
        for i in 0..MR {
            acc[i][j] = _mm512_add_ps(acc[i][j], bias);
        }
    }
}

/// Fetches a row of a tile's sums into the first-level cache.
#[inline(always)]
pub(super) fn fetch_row(at: *const f32) {
    for j in 0..VECTORS {
        // SAFETY: a prefetch may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(16 * j).cast()) };
    }
}

/// The tile with `ROWS` rows; `PANEL` says that `a` is a panel.
///
/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn rows<const ROWS: usize, const PANEL: bool>(tile: &Tile<f32>) {
    let mut acc = [[_mm512_setzero_ps(); VECTORS]; MR];
    let mask = column_masks(tile.cols);
    // SAFETY: masks keep loads and stores inside the columns that exist; steps, panels, start and store are the
    // caller's promise. Prefetches may point anywhere.
    unsafe {
        if let Some((from, stride)) = tile.start {
            each_row!(I < ROWS, {
                acc[I] = load_row(from.wrapping_add(I * stride), mask);
            });
        }
        let (mut next, next_stride) = tile.next;
        let (mut a, mut b) = (tile.a, tile.b);
        let (a_row, a_step) = if PANEL { (1, MR) } else { (tile.a_row, tile.a_step) };
        let mut left = tile.steps;
        macro_rules! step {
            ($s:literal) => {{
                let b = b.add($s * NR);
                let bv = [
                    _mm512_loadu_ps(b),
                    _mm512_loadu_ps(b.add(16)),
                    _mm512_loadu_ps(b.add(32)),
                    _mm512_loadu_ps(b.add(48)),
                ];
                each_row!(I < ROWS, {
                    let v = _mm512_set1_ps(*a.add($s * a_step + I * a_row));
                    acc[I][0] = _mm512_fmadd_ps(v, bv[0], acc[I][0]);
                    acc[I][1] = _mm512_fmadd_ps(v, bv[1], acc[I][1]);
                    acc[I][2] = _mm512_fmadd_ps(v, bv[2], acc[I][2]);
                    acc[I][3] = _mm512_fmadd_ps(v, bv[3], acc[I][3]);
                });
            }};
        }
        if PANEL {
            while left >= STEPS_PER_ROW {
                fetch_row(next);
                next = next.wrapping_add(next_stride);
                for _ in 0..STEPS_PER_ROW / UNROLL {
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD * MR).cast());
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD * MR + 16).cast());
                    step!(0);
                    step!(1);
                    step!(2);
                    step!(3);
                    a = a.add(UNROLL * MR);
                    b = b.add(UNROLL * NR);
                }
                left -= STEPS_PER_ROW;
            }
        } else {
            while left >= UNROLL {
                fetch_row(next);
                next = next.wrapping_add(next_stride);
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                a = a.add(UNROLL * a_step);
                b = b.add(UNROLL * NR);
                left -= UNROLL;
            }
        }
        while left > 0 {
            step!(0);
            a = a.wrapping_add(a_step);
            b = b.wrapping_add(NR);
            left -= 1;
        }
        add_bias(&mut acc, tile.bias);
        match tile.store {
            Store::F32 { to, stride } => {
                each_row!(I < ROWS, {
                    let at = to.wrapping_add(I * stride);
                    for j in 0..VECTORS {
                        _mm512_mask_storeu_ps(at.wrapping_add(16 * j), mask[j], acc[I][j]);
                    }
                });
            }
            Store::Bf16 { to, stride } => {
                each_row!(I < ROWS, {
                    let at = to.wrapping_add(I * stride).cast::<i16>();
                    for j in 0..VECTORS {
                        _mm256_mask_storeu_epi16(at.wrapping_add(16 * j), mask[j], to_bf16(acc[I][j]));
                    }
                });
            }
        }
    }
}

/// # Safety
/// As for [`Kernel::tile`].
unsafe fn any_rows<const PANEL: bool>(tile: &Tile<f32>) {
    // SAFETY: the caller's promise.
    unsafe {
        match tile.rows {
            1 => rows::<1, PANEL>(tile),
            2 => rows::<2, PANEL>(tile),
            3 => rows::<3, PANEL>(tile),
            4 => rows::<4, PANEL>(tile),
            5 => rows::<5, PANEL>(tile),
            _ => rows::<6, PANEL>(tile),
        }
    }
}

impl Kernel for Avx512 {
    const MR: usize = MR;
    const NR: usize = NR;
    const TERMS: usize = 1;
    const DEPTH: usize = 128;
    type Packed = f32;

    #[inline(always)]
    fn fetch(at: *const i8) {
        // SAFETY: a prefetch may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at) };
    }

    unsafe fn pack_contiguous<E: Element>(source: Source<E>, side: Side, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match side {
                Side::Left => lines_to_panels::<E, MR>(source, to),
                Side::Right => lines_to_panels::<E, NR>(source, to),
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
