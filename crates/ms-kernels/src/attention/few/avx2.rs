//! Few queries of bf16 with AVX2, in the order of [`super::body`].
//!
//! Eight keys meet a head at once, half of their lanes after the other, and their lanes are summed together, across registers;
//! of values, half a line of several keys is split once into even and odd elements for all heads of its group.

use std::arch::x86_64::*;

use half::bf16;

use super::body::{Half, STEP};
use super::{Block, KEYS};

/// Once: a second prefetch of each line costs more than it gains.
type Prefetch = super::prefetch::Prefetch<false>;

/// Keys whose scores are summed at once.
const ROWS: usize = 8;

/// Keys whose values are mixed at once: sums are loaded and stored once for all of them.
const AT_ONCE: usize = 4;

/// Elements of a register of pairs.
const PAIRS: usize = STEP / 2;

/// Lanes of a register.
const LANES: usize = PAIRS / 2;

/// The sum of sixteen lanes, of which each register holds eight sums of two that are eight apart; register `i` in lane `i`,
/// each in the tree of `lane_sum`.
#[inline]
#[target_feature(enable = "avx2")]
fn sums(r: &[__m256; ROWS]) -> __m256 {
    let mut four = [_mm256_setzero_ps(); 4];
    for (i, four) in four.iter_mut().enumerate() {
        let (x, y) = (r[i], r[i + 4]);
        let (low, high) = (_mm256_permute2f128_ps::<0x20>(x, y), _mm256_permute2f128_ps::<0x31>(x, y));
        *four = _mm256_add_ps(low, high);
    }
    let two = |x, y| _mm256_add_ps(_mm256_shuffle_ps::<0x44>(x, y), _mm256_shuffle_ps::<0xee>(x, y));
    let (x, y) = (two(four[0], four[1]), two(four[2], four[3]));
    _mm256_add_ps(_mm256_shuffle_ps::<0x88>(x, y), _mm256_shuffle_ps::<0xdd>(x, y))
}

/// Pairs from `at` on, of which `count` elements exist, as f32: the even elements and the odd ones.
///
/// # Safety
/// Those that exist must be readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn apart(at: *const bf16, count: usize) -> (__m256, __m256) {
    let mut some = [bf16::ZERO; PAIRS];
    // SAFETY: the caller's promise.
    let pairs = unsafe {
        let at = if count >= PAIRS {
            at
        } else {
            std::ptr::copy_nonoverlapping(at, some.as_mut_ptr(), count);
            some.as_ptr()
        };
        _mm256_loadu_si256(at.cast())
    };
    let odd = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
    (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(odd))
}

/// `scores[head, key] = query[head] · key`, rows of [`KEYS`]; entries after the block's keys are any. Queries are rows of steps
/// as [`super::body::halves`] has them.
///
/// # Panics
/// If an operand is too short.
///
/// # Safety
/// The instruction set must be there.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn products(
    scores: &mut [f32],
    queries: &[[Half; 2]],
    keys: Block<'_, bf16>,
    next: &[bf16],
) {
    let (steps, per_group) = (keys.dim.div_ceil(STEP), keys.heads_per_group);
    let heads = keys.groups * per_group;
    assert!(scores.len() >= heads * KEYS && queries.len() >= heads * steps && keys.is_inside());
    let mut prefetch = Prefetch::new(keys, next, keys.count.div_ceil(ROWS) * heads);
    for j in (0..keys.count).step_by(ROWS) {
        // The last key again where there are not eight more.
        let offsets: [usize; ROWS] = std::array::from_fn(|u| (j + u).min(keys.count - 1) * keys.token_stride);
        for g in 0..keys.groups {
            let start = keys.data.as_ptr().wrapping_add(g * keys.group_stride);
            for n in g * per_group..(g + 1) * per_group {
                let query = &queries[n * steps..][..steps];
                let mut lanes = [_mm256_setzero_ps(); ROWS];
                prefetch.step();
                for half in 0..2 {
                    let mut acc = [_mm256_setzero_ps(); ROWS];
                    for (step, query) in query.iter().enumerate() {
                        let d = step * STEP + half * PAIRS;
                        if d >= keys.dim {
                            break;
                        }
                        let (odd, even) = (&query[0][half * LANES..], &query[1][half * LANES..]);
                        // SAFETY: rows of keys are there by the assertion, and a step of a query has sixteen lanes twice.
                        unsafe {
                            let (odd, even) = (_mm256_loadu_ps(odd.as_ptr()), _mm256_loadu_ps(even.as_ptr()));
                            let exist = keys.dim - d;
                            if exist >= PAIRS {
                                for u in 0..ROWS {
                                    let (e, o) = apart(start.add(d + offsets[u]), PAIRS);
                                    acc[u] = _mm256_fmadd_ps(even, e, _mm256_fmadd_ps(odd, o, acc[u]));
                                }
                            } else {
                                for u in 0..ROWS {
                                    let (e, o) = apart(start.add(d + offsets[u]), exist);
                                    acc[u] = _mm256_fmadd_ps(even, e, _mm256_fmadd_ps(odd, o, acc[u]));
                                }
                            }
                        }
                    }
                    for u in 0..ROWS {
                        lanes[u] = _mm256_add_ps(lanes[u], acc[u]);
                    }
                }
                // SAFETY: a row of scores is a multiple of eight keys.
                unsafe { _mm256_storeu_ps(scores.as_mut_ptr().add(n * KEYS + j), sums(&lanes)) };
            }
        }
    }
}

/// Adds the weighted values of `N` keys from `j` on to the sums of all heads, of each half step the even elements before the odd
/// ones.
///
/// # Safety
/// The instruction set must be there, values must be inside their array, and `sums` and `weights` have rows for all heads.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_keys<const N: usize>(
    sums: &mut [f32],
    weights: &[f32],
    values: Block<'_, bf16>,
    j: usize,
    prefetch: &mut Prefetch,
) {
    let width = values.dim.next_multiple_of(STEP);
    for g in 0..values.groups {
        prefetch.step();
        let start = values.data.as_ptr().wrapping_add(j * values.token_stride + g * values.group_stride);
        for d in (0..values.dim).step_by(PAIRS) {
            let mut parts = [(_mm256_setzero_ps(), _mm256_setzero_ps()); N];
            for u in 0..N {
                // SAFETY: a row's elements are there by the caller's promise.
                parts[u] = unsafe { apart(start.wrapping_add(u * values.token_stride + d), values.dim - d) };
            }
            for n in g * values.heads_per_group..(g + 1) * values.heads_per_group {
                // SAFETY: rows of all heads, with room for whole steps, are the caller's promise.
                unsafe {
                    let (weights, to) =
                        (weights.as_ptr().add(n * KEYS + j), sums.as_mut_ptr().add(n * width + d));
                    let (mut even, mut odd) = (_mm256_loadu_ps(to), _mm256_loadu_ps(to.add(LANES)));
                    for u in 0..N {
                        let weight = _mm256_broadcast_ss(&*weights.add(u));
                        even = _mm256_fmadd_ps(weight, parts[u].0, even);
                        odd = _mm256_fmadd_ps(weight, parts[u].1, odd);
                    }
                    _mm256_storeu_ps(to, even);
                    _mm256_storeu_ps(to.add(LANES), odd);
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
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn mix(sums: &mut [f32], weights: &[f32], values: Block<'_, bf16>, next: &[bf16]) {
    let heads = values.groups * values.heads_per_group;
    let width = values.dim.next_multiple_of(STEP);
    assert!(weights.len() >= heads * KEYS && sums.len() >= heads * width && values.is_inside());
    sums.fill(0.0);
    let whole = values.count / AT_ONCE * AT_ONCE;
    let steps = values.count.div_ceil(AT_ONCE) * values.groups;
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
    for pairs in sums.as_chunks_mut::<PAIRS>().0 {
        let to = pairs.as_mut_ptr();
        // SAFETY: there is room for two registers.
        unsafe {
            let (even, odd) = (_mm256_loadu_ps(to), _mm256_loadu_ps(to.add(LANES)));
            let (low, high) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
            _mm256_storeu_ps(to, _mm256_permute2f128_ps::<0x20>(low, high));
            _mm256_storeu_ps(to.add(LANES), _mm256_permute2f128_ps::<0x31>(low, high));
        }
    }
}
