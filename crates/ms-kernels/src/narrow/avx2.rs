//! Rounding to bf16 in the operations that AVX2 has: seven for eight values.

use std::arch::asm;
use std::arch::x86_64::*;

use half::bf16;

use super::{LANES, Lanes, Narrow, Two, lies_in_lines};
use crate::Element;
use crate::element::is_bf16;

/// Rounds with AVX2, inside a unit of a [`crate::Cpu`], where denormals count as zero.
#[derive(Clone, Copy)]
pub(crate) struct Rounded(());

impl Rounded {
    /// # Safety
    /// The processor must have AVX2, for as long as the value lives.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
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
    let (first, second) = (_mm256_srli_epi32::<16>(round(first)), _mm256_srli_epi32::<16>(round(second)));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(first, second))
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

impl Narrow for Rounded {
    #[inline(always)]
    fn narrow(self, values: Lanes) -> [bf16; LANES] {
        // SAFETY: who made the value has the instructions; both results are 32 bytes of plain data.
        unsafe {
            let [first, second] = registers(&values);
            std::mem::transmute::<__m256i, [bf16; LANES]>(to_bf16(first, second))
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
    fn fence(self) {
        // SAFETY: orders stores and does nothing else.
        unsafe { _mm_sfence() };
    }

    #[inline(always)]
    fn two(self, first: Lanes, second: Lanes) -> Two {
        // SAFETY: who made the value has the instructions; all results are plain data of the same size.
        unsafe {
            let ([a, b], [c, d]) = (registers(&first), registers(&second));
            let pairs = [beside(round(a), round(c)), beside(round(b), round(d))];
            Two {
                first: self.narrow(first),
                second: self.narrow(second),
                pairs: std::mem::transmute::<[__m256i; 2], [u32; LANES]>(pairs),
            }
        }
    }
}
