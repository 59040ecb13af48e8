//! Few queries of bf16 with AVX-512, in the order of [`super::body`].
//!
//! The scores of sixteen keys are computed at a time and their lanes summed together, across registers. Of values, a line of
//! several keys is split once into even and odd elements for all heads of its group. The keys that follow are prefetched
//! meanwhile: the processor does not recognise sixteen rows as one stream.

use std::arch::x86_64::*;

use half::bf16;

use super::body::STEP;
use super::{Block, KEYS};
use crate::matmul::kernel::avx512::pack::first32;

/// Twice: a second prefetch costs less than what the first one loses.
type Prefetch = super::prefetch::Prefetch<true>;

/// Keys whose scores are summed at once.
const ROWS: usize = 16;

/// Keys whose values are mixed at once: sums are loaded and stored once for all of them.
const AT_ONCE: usize = 8;

/// The sum of the sixteen lanes of each register, register `i` in lane `i`, each in the tree of `lane_sum`.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums(r: &[__m512; ROWS]) -> __m512 {
    // Lanes that are eight apart, then four: four registers with a quarter for each row.
    let mut four = [_mm512_setzero_ps(); 4];
    for (i, four) in four.iter_mut().enumerate() {
        let eight =
            |x, y| _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(x, y), _mm512_shuffle_f32x4::<0xee>(x, y));
        let (x, y) = (eight(r[i], r[i + 4]), eight(r[i + 8], r[i + 12]));
        *four = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(x, y), _mm512_shuffle_f32x4::<0xdd>(x, y));
    }
    let two = |x, y| _mm512_add_ps(_mm512_shuffle_ps::<0x44>(x, y), _mm512_shuffle_ps::<0xee>(x, y));
    let (x, y) = (two(four[0], four[1]), two(four[2], four[3]));
    _mm512_add_ps(_mm512_shuffle_ps::<0x88>(x, y), _mm512_shuffle_ps::<0xdd>(x, y))
}

/// A register of pairs as f32: the even elements and the odd ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn apart(pairs: __m512i) -> (__m512, __m512) {
    let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(odd))
}

/// Adds the products of pairs to `sum`, the odd ones first.
#[inline]
#[target_feature(enable = "avx512f")]
fn multiply(sum: __m512, query: __m512i, key: __m512i) -> __m512 {
    let ((query_even, query_odd), (key_even, key_odd)) = (apart(query), apart(key));
    _mm512_fmadd_ps(query_even, key_even, _mm512_fmadd_ps(query_odd, key_odd, sum))
}

/// [`multiply`] as one instruction.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn dot(sum: __m512, query: __m512i, key: __m512i) -> __m512 {
    // SAFETY: both types are 64 bytes of plain data.
    let pairs = |v: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(v) };
    _mm512_dpbf16_ps(sum, pairs(query), pairs(key))
}

/// Defines a function that fills `scores[head, key]`, rows of [`KEYS`], by adding terms with `$add`.
macro_rules! products {
    ($name:ident, $features:literal, $add:ident) => {
        /// `scores[head, key] = query[head] · key`, rows of [`KEYS`]; entries after the block's keys are any.
        ///
        /// # Panics
        /// If an operand is too short.
        ///
        /// # Safety
        /// The instruction set must be there.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(
            scores: &mut [f32],
            queries: &[bf16],
            keys: Block<'_, bf16>,
            next: &[bf16],
        ) {
            let (width, heads, per_group) =
                (keys.dim.next_multiple_of(STEP), keys.groups * keys.heads_per_group, keys.heads_per_group);
            assert!(scores.len() >= heads * KEYS && queries.len() >= heads * width && keys.is_inside());
            let (whole, tail) = (keys.dim / STEP * STEP, first32(keys.dim % STEP));
            let steps = keys.count.div_ceil(ROWS) * heads * keys.dim.div_ceil(STEP);
            let mut prefetch = Prefetch::new(keys, next, steps);
            for j in (0..keys.count).step_by(ROWS) {
                // The last key again where there are not sixteen more.
                let offsets: [usize; ROWS] =
                    std::array::from_fn(|u| (j + u).min(keys.count - 1) * keys.token_stride);
                for g in 0..keys.groups {
                    let start = keys.data.as_ptr().wrapping_add(g * keys.group_stride);
                    for n in g * per_group..(g + 1) * per_group {
                        // SAFETY: all rows of queries, keys and scores are there by the assertion; the mask holds what a
                        // row has after its whole steps.
                        unsafe {
                            let query = queries.as_ptr().add(n * width);
                            let mut acc = [_mm512_setzero_ps(); ROWS];
                            for d in (0..whole).step_by(STEP) {
                                prefetch.step();
                                let (query, at) = (_mm512_loadu_si512(query.add(d).cast()), start.add(d));
                                for u in 0..ROWS {
                                    acc[u] =
                                        $add(acc[u], query, _mm512_loadu_si512(at.add(offsets[u]).cast()));
                                }
                            }
                            if tail != 0 {
                                prefetch.step();
                                let query = _mm512_loadu_si512(query.add(whole).cast());
                                for u in 0..ROWS {
                                    let at = start.add(whole + offsets[u]);
                                    acc[u] = $add(acc[u], query, _mm512_maskz_loadu_epi16(tail, at.cast()));
                                }
                            }
                            _mm512_storeu_ps(scores.as_mut_ptr().add(n * KEYS + j), sums(&acc));
                        }
                    }
                }
            }
        }
    };
}

products!(products, "avx512f,avx512bw,avx512dq,avx512vl", multiply);
products!(dot_products, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", dot);

/// Adds the weighted values of `N` keys from `j` on to the sums of all heads, of each step the even elements before the odd ones.
///
/// # Safety
/// The instruction set must be there, values must be inside their array, and `sums` and `weights` have rows for all heads.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn add_keys<const N: usize>(
    sums: &mut [f32],
    weights: &[f32],
    values: Block<'_, bf16>,
    j: usize,
    prefetch: &mut Prefetch,
) {
    let width = values.dim.next_multiple_of(STEP);
    for g in 0..values.groups {
        let start = values.data.as_ptr().wrapping_add(j * values.token_stride + g * values.group_stride);
        for d in (0..values.dim).step_by(STEP) {
            prefetch.step();
            let mask = first32(values.dim - d);
            let mut parts = [(_mm512_setzero_ps(), _mm512_setzero_ps()); N];
            for u in 0..N {
                let at = start.wrapping_add(u * values.token_stride + d);
                // SAFETY: the mask holds a row's elements, which are there by the caller's promise.
                parts[u] = apart(unsafe { _mm512_maskz_loadu_epi16(mask, at.cast()) });
            }
            for n in g * values.heads_per_group..(g + 1) * values.heads_per_group {
                // SAFETY: rows of all heads, with room for whole steps, are the caller's promise.
                unsafe {
                    let (weights, to) =
                        (weights.as_ptr().add(n * KEYS + j), sums.as_mut_ptr().add(n * width + d));
                    let (mut even, mut odd) = (_mm512_loadu_ps(to), _mm512_loadu_ps(to.add(STEP / 2)));
                    for u in 0..N {
                        let weight = _mm512_set1_ps(*weights.add(u));
                        even = _mm512_fmadd_ps(weight, parts[u].0, even);
                        odd = _mm512_fmadd_ps(weight, parts[u].1, odd);
                    }
                    _mm512_storeu_ps(to, even);
                    _mm512_storeu_ps(to.add(STEP / 2), odd);
                }
            }
        }
    }
}

/// `sums[head, d] = Σ_j weights[head, j] · values[j, group, d]`, rows of whole steps.
///
/// # Panics
/// If an operand is too short.
///
/// # Safety
/// The instruction set must be there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn mix(sums: &mut [f32], weights: &[f32], values: Block<'_, bf16>, next: &[bf16]) {
    let heads = values.groups * values.heads_per_group;
    let width = values.dim.next_multiple_of(STEP);
    assert!(weights.len() >= heads * KEYS && sums.len() >= heads * width && values.is_inside());
    sums.fill(0.0);
    let whole = values.count / AT_ONCE * AT_ONCE;
    let steps = values.count.div_ceil(AT_ONCE) * values.groups * values.dim.div_ceil(STEP);
    let mut prefetch = Prefetch::new(values, next, steps);
    // SAFETY: asserted above.
    unsafe {
        for j in (0..whole).step_by(AT_ONCE) {
            add_keys::<AT_ONCE>(sums, weights, values, j, &mut prefetch);
        }
        for j in whole..values.count {
            add_keys::<1>(sums, weights, values, j, &mut prefetch);
        }
    }
    let lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
    for step in sums.as_chunks_mut::<STEP>().0 {
        let to = step.as_mut_ptr();
        // SAFETY: a step has room for two registers.
        unsafe {
            let (even, odd) = (_mm512_loadu_ps(to), _mm512_loadu_ps(to.add(STEP / 2)));
            _mm512_storeu_ps(to, _mm512_permutex2var_ps(even, lower, odd));
            _mm512_storeu_ps(to.add(STEP / 2), _mm512_permutex2var_ps(even, upper, odd));
        }
    }
}
