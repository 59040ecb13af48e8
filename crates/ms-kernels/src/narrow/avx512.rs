//! AVX-512: exponentials written out, and rounding with the processor's instruction where it has one.

use std::arch::asm;
use std::arch::x86_64::*;

use half::bf16;

use super::{LANES, Lanes, Narrow, Plain, Two, lies_in_lines};
use crate::Element;
use crate::element::is_bf16;
use crate::float::short;

/// Rounds in registers of sixteen lanes, inside a unit of a [`crate::Cpu`], where denormals count as zero: with
/// `vcvtneps2bf16` if `CONVERTS`; otherwise in six operations, or in four if `RESULTS`, see [`Narrow::of_results`].
#[derive(Clone, Copy)]
pub(crate) struct Wide<const CONVERTS: bool, const RESULTS: bool>(());

impl<const CONVERTS: bool> Wide<CONVERTS, false> {
    /// # Safety
    /// The processor must have AVX-512, and its BF16 if `CONVERTS`, for as long as the value lives.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

impl<const CONVERTS: bool, const RESULTS: bool> Wide<CONVERTS, RESULTS> {
    /// Sixteen values as `bf16::from_f32` of [`Element`] rounds them, each in the upper half of its lane; the lower halves hold
    /// anything.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn upper(values: __m512) -> __m512i {
        let (one, half) = (_mm512_set1_epi32(1), _mm512_set1_epi32(0x7fff));
        if RESULTS {
            let bits = _mm512_castps_si512(values);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), one);
            return _mm512_add_epi32(_mm512_add_epi32(bits, half), odd);
        }
        let quiet: __m512;
        // A product with one makes a denormal zero and a NaN quiet. Written so because a compiler knows better.
        // SAFETY: the instruction reads two registers and writes one.
        unsafe {
            asm!("vmulps {}, {}, {}", out(zmm_reg) quiet, in(zmm_reg) values, in(zmm_reg) _mm512_set1_ps(1.0),
                options(pure, nomem, nostack, preserves_flags));
        }
        let bits = _mm512_castps_si512(quiet);
        let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(quiet, quiet);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), one);
        _mm512_add_epi32(bits, _mm512_maskz_add_epi32(number, odd, half))
    }

    /// The same of two rows, the first row's in the lower halves.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn pairs(first: __m512, second: __m512) -> __m512i {
        let (first, second) = (_mm512_srli_epi32::<16>(Self::upper(first)), Self::upper(second));
        _mm512_mask_blend_epi16(0xaaaa_aaaa, first, second)
    }

    /// Two rows one after the other.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn converted(first: __m512, second: __m512) -> __m512i {
        // SAFETY: plain data of the same size.
        unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first)) }
    }
}

/// The places of [`Two::pairs`] in two rows one after the other, or the reverse.
const fn order(pairs: bool) -> [u16; 2 * LANES] {
    let mut order = [0; 2 * LANES];
    let mut l = 0;
    while l < 2 * LANES {
        order[l] = if pairs { l / 2 + l % 2 * LANES } else { l % LANES * 2 + l / LANES } as u16;
        l += 1;
    }
    order
}

/// Sixteen-bit words in another order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn ordered(words: __m512i, order: &[u16; 2 * LANES]) -> __m512i {
    // SAFETY: the order is as large as a register.
    _mm512_permutexvar_epi16(unsafe { _mm512_loadu_si512(order.as_ptr().cast()) }, words)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn register(values: &Lanes) -> __m512 {
    // SAFETY: there are sixteen.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// Stores a register. In assembly, because the compiler splits a store that it understands into sixteen scattered ones, over
/// several blocks.
///
/// # Safety
/// There must be room for it.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn stored(to: *mut f32, values: __m512) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vmovups [{}], {}", in(reg) to, in(zmm_reg) values, options(nostack, preserves_flags));
    }
}

/// What [`crate::float::exp_below`] of bf16 and [`crate::float::sigmoid_short`] have in common: `2^(y · scale)`. Written out
/// because the compiler made vector code of it for some polynomials and not for others.
#[inline]
#[target_feature(enable = "avx512f")]
fn powers(y: __m512, scale: f32) -> __m512 {
    let (scale, shift) = (_mm512_set1_ps(scale), _mm512_set1_ps(short::SHIFT));
    let t = _mm512_fmadd_ps(y, scale, shift);
    let r = _mm512_fmadd_ps(y, scale, _mm512_sub_ps(shift, t));
    let [highest, lower @ ..] = short::COEFFICIENTS;
    let mut p = _mm512_set1_ps(highest);
    for c in lower {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    }
    let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(t));
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent))
}

/// [`crate::float::exp_below`] of bf16, of `x − shift`.
#[inline]
#[target_feature(enable = "avx512f")]
fn exponentials(x: __m512, shift: f32) -> __m512 {
    // Of NaN the second operand comes, which it is.
    let y = _mm512_max_ps(_mm512_set1_ps(short::LEAST), _mm512_sub_ps(x, _mm512_set1_ps(shift)));
    powers(y, std::f32::consts::LOG2_E)
}

/// [`crate::float::sigmoid_short`].
#[inline]
#[target_feature(enable = "avx512f")]
fn sigmoids(x: __m512) -> __m512 {
    let bound = |bound| _mm512_castps_si512(_mm512_set1_ps(bound));
    let bits = _mm512_min_epi32(_mm512_castps_si512(x), bound(short::MOST_GATE));
    let y = _mm512_castsi512_ps(_mm512_min_epu32(bits, bound(short::LEAST_GATE)));
    let one = _mm512_set1_ps(1.0);
    _mm512_div_ps(one, _mm512_add_ps(one, powers(y, -std::f32::consts::LOG2_E)))
}

impl<const CONVERTS: bool, const RESULTS: bool> Narrow for Wide<CONVERTS, RESULTS> {
    const BESIDE: bool = true;

    #[inline(always)]
    fn of_results(self) -> impl Narrow {
        Wide::<CONVERTS, true>(())
    }

    #[inline(always)]
    fn narrow(self, values: Lanes) -> [bf16; LANES] {
        // SAFETY: who made the value has the instructions; both results are 32 bytes of plain data.
        unsafe {
            if CONVERTS {
                std::mem::transmute::<__m256bh, [bf16; LANES]>(_mm512_cvtneps_pbh(register(&values)))
            } else {
                let words = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(Self::upper(register(&values))));
                std::mem::transmute::<__m256i, [bf16; LANES]>(words)
            }
        }
    }

    #[inline(always)]
    fn two(self, first: Lanes, second: Lanes) -> Two {
        const PAIRS: [u16; 2 * LANES] = order(true);
        const ROWS: [u16; 2 * LANES] = order(false);
        // SAFETY: who made the value has the instructions; all results are plain data of the same size.
        unsafe {
            let (first, second) = (register(&first), register(&second));
            let (rows, pairs) = if CONVERTS {
                let rows = Self::converted(first, second);
                (rows, ordered(rows, &PAIRS))
            } else {
                let pairs = Self::pairs(first, second);
                (ordered(pairs, &ROWS), pairs)
            };
            let [first, second] = std::mem::transmute::<__m512i, [[bf16; LANES]; 2]>(rows);
            Two { first, second, pairs: std::mem::transmute::<__m512i, [u32; LANES]>(pairs) }
        }
    }

    #[inline(always)]
    fn store<E: Element>(self, to: &mut [E; LANES], values: Lanes) {
        if is_bf16::<E>() {
            bytemuck::cast_slice_mut(to).copy_from_slice(&self.narrow(values));
        } else {
            // SAFETY: who made the value has the instructions; elements that are not bf16 are f32, and there are sixteen.
            unsafe { stored(to.as_mut_ptr().cast(), register(&values)) }
        }
    }

    #[inline(always)]
    fn store_two<E: Element>(self, to: &mut [E; 2 * LANES], values: [Lanes; 2], past: bool) {
        assert!(!past || lies_in_lines(to), "an aligned place");
        if is_bf16::<E>() {
            let Two { first, second, .. } = self.two(values[0], values[1]);
            return self.store_words(bytemuck::cast_slice_mut(to), bytemuck::cast([first, second]), past);
        }
        let to = to.as_mut_ptr();
        // SAFETY: who made the value has the instructions; the place is as large as what is stored, and aligned where it must be.
        unsafe {
            for (half, values) in values.iter().enumerate() {
                let to = to.wrapping_add(half * LANES).cast();
                if past { _mm512_stream_ps(to, register(values)) } else { stored(to, register(values)) }
            }
        }
    }

    #[inline(always)]
    fn store_words(self, to: &mut [bf16], pairs: [u32; LANES], past: bool) {
        assert!(to.len() == 2 * LANES && (!past || lies_in_lines(to)), "a place for them, aligned");
        if past {
            // SAFETY: who made the value has the instructions; the place is as large as what is stored, and aligned.
            unsafe {
                _mm512_stream_si512(to.as_mut_ptr().cast(), _mm512_loadu_si512(pairs.as_ptr().cast()));
            }
        } else {
            to.copy_from_slice(bytemuck::cast_slice(&pairs));
        }
    }

    #[inline(always)]
    fn exponentials<E: Element>(self, x: [Lanes; 2], shift: f32) -> [Lanes; 2] {
        if !is_bf16::<E>() {
            return Plain.exponentials::<E>(x, shift);
        }
        // SAFETY: who made the value has the instructions; plain data of the same size.
        unsafe {
            let both = [exponentials(register(&x[0]), shift), exponentials(register(&x[1]), shift)];
            std::mem::transmute::<[__m512; 2], [Lanes; 2]>(both)
        }
    }

    #[inline(always)]
    fn sigmoids<E: Element>(self, x: [Lanes; 2]) -> [Lanes; 2] {
        if !is_bf16::<E>() {
            return Plain.sigmoids::<E>(x);
        }
        // SAFETY: as above.
        unsafe {
            let both = [sigmoids(register(&x[0])), sigmoids(register(&x[1]))];
            std::mem::transmute::<[__m512; 2], [Lanes; 2]>(both)
        }
    }

    #[inline(always)]
    fn fence(self) {
        // SAFETY: orders stores and does nothing else.
        unsafe { _mm_sfence() };
    }
}
