//! Rounding to bf16 with AVX2 operations: seven for eight values, four if neither denormals nor odd NaN occur.

use std::arch::asm;
use std::arch::x86_64::*;

use half::bf16;

use super::{LANES, Lanes, Narrow, Plain, Two, lies_in_lines};
use crate::Element;
use crate::element::is_bf16;
use crate::float::{LEAST_POWER, POWER_COEFFICIENTS, short};

/// Rounds with AVX2, inside a unit of a [`crate::Cpu`], where denormals count as zero; if `RESULTS`, as
/// [`Narrow::of_results`] says.
#[derive(Clone, Copy)]
pub(crate) struct Rounded<const RESULTS: bool>(());

impl Rounded<false> {
    /// # Safety
    /// The processor must have AVX2, for as long as the value lives.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

impl<const RESULTS: bool> Rounded<RESULTS> {
    /// [`round`], or [`round_result`].
    #[inline]
    #[target_feature(enable = "avx2")]
    fn rounded(values: __m256) -> __m256i {
        if RESULTS { round_result(values) } else { round(values) }
    }

    /// The same without what is in the lower halves.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn cut(values: &Lanes) -> Lanes {
        let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
        let [first, second] = registers(values);
        let first = _mm256_and_si256(Self::rounded(first), upper);
        let second = _mm256_and_si256(Self::rounded(second), upper);
        // SAFETY: plain data of the same size.
        unsafe { std::mem::transmute::<[__m256i; 2], Lanes>([first, second]) }
    }
}

/// Eight values as `bf16::from_f32` of [`Element`] rounds them, each in the upper half of its lane; the lower halves hold
/// anything. Denormals are zero where arithmetic treats them so.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn round(values: __m256) -> __m256i {
    let one = _mm256_set1_ps(1.0);
    let quiet: __m256;
    // A product with one makes a denormal zero and a NaN quiet. Written so because a compiler knows better.
    // SAFETY: the instruction reads two registers and writes one.
    unsafe {
        asm!("vmulps {}, {}, {}", out(ymm_reg) quiet, in(ymm_reg) values, in(ymm_reg) one,
            options(pure, nomem, nostack, preserves_flags));
    }
    let bits = _mm256_castps_si256(quiet);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(quiet, quiet));
    let half = _mm256_andnot_si256(nan, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    _mm256_add_epi32(bits, half)
}

/// [`round`] of what is neither a denormal nor a NaN whose lower half is set.
#[inline]
#[target_feature(enable = "avx2")]
fn round_result(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd)
}

/// The upper halves of the lanes of both, those of `low` in the lower halves.
#[inline]
#[target_feature(enable = "avx2")]
fn beside(low: __m256i, high: __m256i) -> __m256i {
    _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(low), high)
}

/// Sixteen values rounded to bf16.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn to_bf16(first: __m256, second: __m256) -> __m256i {
    upper_halves(round(first), round(second))
}

/// The upper halves of the lanes, in order.
#[inline]
#[target_feature(enable = "avx2")]
fn upper_halves(first: __m256i, second: __m256i) -> __m256i {
    let (first, second) = (_mm256_srli_epi32::<16>(first), _mm256_srli_epi32::<16>(second));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(first, second))
}

/// The values, with a barrier: nothing further is computed before all of them are available. The processor looks ahead over
/// some sixty operations, which is two exponentials: it must find several of them interleaved, but the compiler would place
/// them one after another.
#[inline]
#[target_feature(enable = "avx2")]
fn together(mut values: [__m256; 4]) -> [__m256; 4] {
    let [a, b, c, d] = &mut values;
    // SAFETY: no instruction at all.
    unsafe {
        asm!(
            "/* {} {} {} {} */",
            inout(ymm_reg) * a,
            inout(ymm_reg) * b,
            inout(ymm_reg) * c,
            inout(ymm_reg) * d,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    values
}

/// What [`crate::float::exp_below`] of bf16 and [`crate::float::sigmoid_short`] have in common: `2^(y · scale)`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn powers(y: [__m256; 4], scale: f32) -> [__m256; 4] {
    let (scale, shift) = (_mm256_set1_ps(scale), _mm256_set1_ps(short::SHIFT));
    let (mut t, mut r) = (y, y);
    for i in 0..4 {
        t[i] = _mm256_fmadd_ps(y[i], scale, shift);
    }
    t = together(t);
    for i in 0..4 {
        r[i] = _mm256_fmadd_ps(y[i], scale, _mm256_sub_ps(shift, t[i]));
    }
    scaled_polynomials(t, together(r), short::COEFFICIENTS)
}

/// The polynomials of `r`, highest power first, times two to the whole number in the low mantissa bits of `t`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn scaled_polynomials<const N: usize>(t: [__m256; 4], r: [__m256; 4], coefficients: [f32; N]) -> [__m256; 4] {
    let mut p = [_mm256_set1_ps(coefficients[0]); 4];
    for c in &coefficients[1..] {
        for i in 0..4 {
            p[i] = _mm256_fmadd_ps(p[i], r[i], _mm256_set1_ps(*c));
        }
        p = together(p);
    }
    for i in 0..4 {
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(t[i]));
        p[i] = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p[i]), exponent));
    }
    together(p)
}

/// [`crate::float::exp2`] or, with its coefficients, [`crate::float::exp2_short`].
#[inline]
#[target_feature(enable = "avx2,fma")]
fn powers_of_two<const N: usize>(x: [__m256; 4], coefficients: [f32; N]) -> [__m256; 4] {
    let (least, shift) = (_mm256_set1_ps(LEAST_POWER), _mm256_set1_ps(short::SHIFT));
    let (mut y, mut t, mut r) = (x, x, x);
    for i in 0..4 {
        // Of NaN the second operand comes, which it is.
        y[i] = _mm256_max_ps(least, x[i]);
    }
    y = together(y);
    for i in 0..4 {
        t[i] = _mm256_add_ps(y[i], shift);
    }
    t = together(t);
    for i in 0..4 {
        r[i] = _mm256_sub_ps(y[i], _mm256_sub_ps(t[i], shift));
    }
    scaled_polynomials(t, together(r), coefficients)
}

/// [`crate::float::exp_below`] of bf16, of `x − shift`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn exponentials(mut x: [__m256; 4], shift: f32) -> [__m256; 4] {
    let (shift, least) = (_mm256_set1_ps(shift), _mm256_set1_ps(short::LEAST));
    for x in &mut x {
        // Of NaN the second operand comes, which it is.
        *x = _mm256_max_ps(least, _mm256_sub_ps(*x, shift));
    }
    powers(together(x), std::f32::consts::LOG2_E)
}

/// [`crate::float::sigmoid_short`].
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sigmoids(mut x: [__m256; 4]) -> [__m256; 4] {
    let most = _mm256_castps_si256(_mm256_set1_ps(short::MOST_GATE));
    let least = _mm256_castps_si256(_mm256_set1_ps(short::LEAST_GATE));
    for x in &mut x {
        let bits = _mm256_min_epi32(_mm256_castps_si256(*x), most);
        *x = _mm256_castsi256_ps(_mm256_min_epu32(bits, least));
    }
    let mut p = powers(together(x), -std::f32::consts::LOG2_E);
    let one = _mm256_set1_ps(1.0);
    for p in &mut p {
        *p = _mm256_div_ps(one, _mm256_add_ps(one, *p));
    }
    together(p)
}

/// The four registers of two rows.
#[inline]
#[target_feature(enable = "avx2")]
fn registers_of_two(values: &[Lanes; 2]) -> [__m256; 4] {
    let ([a, b], [c, d]) = (registers(&values[0]), registers(&values[1]));
    [a, b, c, d]
}

/// Eight bf16 as f32.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn widen(from: *const u16) -> __m256 {
    // SAFETY: the caller's promise.
    let half = unsafe { _mm_loadu_si128(from.cast()) };
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)))
}

/// The two registers of sixteen values.
#[inline]
#[target_feature(enable = "avx2")]
fn registers(values: &Lanes) -> [__m256; 2] {
    // SAFETY: there are sixteen.
    unsafe { [_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))] }
}

impl<const RESULTS: bool> Narrow for Rounded<RESULTS> {
    #[inline(always)]
    fn of_results(self) -> impl Narrow {
        Rounded::<true>(())
    }

    #[inline(always)]
    fn narrow(self, values: Lanes) -> [bf16; LANES] {
        // SAFETY: who made the value has the instructions; both results are 32 bytes of plain data.
        unsafe {
            let [first, second] = registers(&values);
            let narrow = upper_halves(Self::rounded(first), Self::rounded(second));
            std::mem::transmute::<__m256i, [bf16; LANES]>(narrow)
        }
    }

    #[inline(always)]
    fn store_two<E: Element>(self, to: &mut [E; 2 * LANES], values: [Lanes; 2], past: bool) {
        assert!(!past || lies_in_lines(to), "an aligned place");
        if is_bf16::<E>() {
            let rows = [self.narrow(values[0]), self.narrow(values[1])];
            return self.store_words(bytemuck::cast_slice_mut(to), bytemuck::cast(rows), past);
        }
        let to = to.as_mut_ptr().cast::<f32>();
        if past {
            // SAFETY: who made the value has the instructions; the place is as large as what is stored, and aligned.
            unsafe {
                for (half, values) in values.iter().enumerate() {
                    let [first, second] = registers(values);
                    _mm256_stream_ps(to.add(half * LANES), first);
                    _mm256_stream_ps(to.add(half * LANES + 8), second);
                }
            }
        } else {
            // SAFETY: the place is as large as what is stored.
            unsafe { to.cast::<[Lanes; 2]>().write_unaligned(values) };
        }
    }

    #[inline(always)]
    fn round<E: Element>(self, values: Lanes) -> Lanes {
        // SAFETY: who made the value has the instructions.
        if is_bf16::<E>() { unsafe { Self::cut(&values) } } else { values }
    }

    #[inline(always)]
    fn round_two<E: Element>(self, values: [Lanes; 2]) -> [Lanes; 2] {
        [self.round::<E>(values[0]), self.round::<E>(values[1])]
    }

    #[inline(always)]
    fn round_split<E: Element>(self, values: [Lanes; 2]) -> [Lanes; 2] {
        self.round_two::<E>(values)
    }

    #[inline(always)]
    fn store_words(self, to: &mut [bf16], pairs: [u32; LANES], past: bool) {
        assert!(to.len() == 2 * LANES && (!past || lies_in_lines(to)), "a place for them, aligned");
        if past {
            // SAFETY: who made the value has the instructions; the place is as large as what is stored, and aligned.
            unsafe {
                for half in 0..2 {
                    let words = _mm256_loadu_si256(pairs.as_ptr().add(8 * half).cast());
                    _mm256_stream_si256(to.as_mut_ptr().add(LANES * half).cast(), words);
                }
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
        unsafe { std::mem::transmute::<[__m256; 4], [Lanes; 2]>(exponentials(registers_of_two(&x), shift)) }
    }

    #[inline(always)]
    fn powers_of_two<E: Element>(self, x: [Lanes; 2]) -> [Lanes; 2] {
        // SAFETY: as above.
        unsafe {
            let x = registers_of_two(&x);
            let powers = match is_bf16::<E>() {
                true => powers_of_two(x, short::COEFFICIENTS),
                false => powers_of_two(x, POWER_COEFFICIENTS),
            };
            std::mem::transmute::<[__m256; 4], [Lanes; 2]>(powers)
        }
    }

    #[inline(always)]
    fn sigmoids<E: Element>(self, x: [Lanes; 2]) -> [Lanes; 2] {
        if !is_bf16::<E>() {
            return Plain.sigmoids::<E>(x);
        }
        // SAFETY: as above.
        unsafe { std::mem::transmute::<[__m256; 4], [Lanes; 2]>(sigmoids(registers_of_two(&x))) }
    }

    #[inline(always)]
    fn fence(self) {
        // SAFETY: orders stores and does nothing else.
        unsafe { _mm_sfence() };
    }

    #[inline(always)]
    fn two(self, first: Lanes, second: Lanes) -> Two {
        // SAFETY: who made the value has the instructions; all results are plain data of the same size.
        unsafe {
            let ([a, b], [c, d]) = (registers(&first), registers(&second));
            let pairs =
                [beside(Self::rounded(a), Self::rounded(c)), beside(Self::rounded(b), Self::rounded(d))];
            Two {
                first: self.narrow(first),
                second: self.narrow(second),
                pairs: std::mem::transmute::<[__m256i; 2], [u32; LANES]>(pairs),
            }
        }
    }
}
