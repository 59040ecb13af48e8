//! Few queries of bf16 with NEON, in the order of [`super::body`].
//!
//! Four keys meet a head at once, and their lanes are summed together, across registers; of values, eight elements of several
//! keys are widened once for all heads of their group.

use std::arch::aarch64::*;

use half::bf16;

use super::body::{Half, STEP};
use super::{Block, KEYS};

type Prefetch = super::prefetch::Prefetch<false>;

/// Keys whose scores are summed at once, and whose values are mixed at once.
const AT_ONCE: usize = 4;

/// Lanes of a register.
const VECTOR: usize = 4;

/// Elements of bf16 in a register.
const EIGHT: usize = 2 * VECTOR;

/// Registers of a step.
const QUARTERS: usize = STEP / EIGHT;

/// The sums of sixteen lanes each, in the tree of `lane_sum`.
#[inline]
#[target_feature(enable = "neon")]
fn sums(lanes: [[float32x4_t; QUARTERS]; AT_ONCE]) -> float32x4_t {
    let [a, b, c, d] = lanes.map(|[a, b, c, d]| vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d)));
    let two = |x, y| {
        let (x, y) = (vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y));
        let (low, high) = (vtrn1q_f64(x, y), vtrn2q_f64(x, y));
        vaddq_f32(vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high))
    };
    vpaddq_f32(two(a, b), two(c, d))
}

/// Eight elements from `at` on, of which `count` exist; the others are zero.
///
/// # Safety
/// Those that exist must be readable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(at: *const bf16, count: usize) -> uint16x8_t {
    let mut some = [bf16::ZERO; EIGHT];
    // SAFETY: the caller's promise.
    unsafe {
        if count >= EIGHT {
            return vld1q_u16(at.cast());
        }
        std::ptr::copy_nonoverlapping(at, some.as_mut_ptr(), count);
        vld1q_u16(some.as_ptr().cast())
    }
}

/// `scores[head, key] = query[head] · key`, rows of [`KEYS`]; entries after the block's keys are any. Queries are rows of steps
/// as [`super::body::halves`] has them.
///
/// # Panics
/// If an operand is too short.
#[target_feature(enable = "neon")]
pub(super) fn products(scores: &mut [f32], queries: &[[Half; 2]], keys: Block<'_, bf16>, next: &[bf16]) {
    let (steps, per_group) = (keys.dim.div_ceil(STEP), keys.heads_per_group);
    let heads = keys.groups * per_group;
    assert!(scores.len() >= heads * KEYS && queries.len() >= heads * steps && keys.is_inside());
    let upper = vdupq_n_u32(0xffff_0000);
    let mut prefetch = Prefetch::new(keys, next, keys.count.div_ceil(AT_ONCE) * heads);
    for j in (0..keys.count).step_by(AT_ONCE) {
        // The last key again where there are not four more.
        let offsets: [usize; AT_ONCE] =
            std::array::from_fn(|u| (j + u).min(keys.count - 1) * keys.token_stride);
        for g in 0..keys.groups {
            let start = keys.data.as_ptr().wrapping_add(g * keys.group_stride);
            for n in g * per_group..(g + 1) * per_group {
                prefetch.step();
                let mut lanes = [[vdupq_n_f32(0.0); QUARTERS]; AT_ONCE];
                for (step, [odd, even]) in queries[n * steps..][..steps].iter().enumerate() {
                    for q in 0..QUARTERS {
                        let exist = keys.dim.saturating_sub(step * STEP + q * EIGHT);
                        // SAFETY: rows of keys are there by the assertion, and a step of a query has sixteen lanes twice.
                        unsafe {
                            let odd = vld1q_f32(odd.as_ptr().add(q * VECTOR));
                            let even = vld1q_f32(even.as_ptr().add(q * VECTOR));
                            for u in 0..AT_ONCE {
                                let at = start.wrapping_add(offsets[u] + step * STEP + q * EIGHT);
                                let pairs = vreinterpretq_u32_u16(load(at, exist));
                                let (e, o) = (vshlq_n_u32::<16>(pairs), vandq_u32(pairs, upper));
                                let sum = vfmaq_f32(lanes[u][q], odd, vreinterpretq_f32_u32(o));
                                lanes[u][q] = vfmaq_f32(sum, even, vreinterpretq_f32_u32(e));
                            }
                        }
                    }
                }
                // SAFETY: a row of scores is a multiple of four keys.
                unsafe { vst1q_f32(scores.as_mut_ptr().add(n * KEYS + j), sums(lanes)) };
            }
        }
    }
}

/// Adds the weighted values of `N` keys from `j` on to the sums of all heads.
///
/// # Safety
/// Values must be inside their array, and `sums` and `weights` have rows for all heads.
#[inline]
#[target_feature(enable = "neon")]
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
        for d in (0..values.dim).step_by(EIGHT) {
            let mut parts = [[vdupq_n_f32(0.0); 2]; N];
            for u in 0..N {
                // SAFETY: a row's elements are there by the caller's promise.
                let eight = unsafe { load(start.wrapping_add(u * values.token_stride + d), values.dim - d) };
                parts[u] = [vshll_n_u16::<16>(vget_low_u16(eight)), vshll_high_n_u16::<16>(eight)]
                    .map(|v| vreinterpretq_f32_u32(v));
            }
            for n in g * values.heads_per_group..(g + 1) * values.heads_per_group {
                // SAFETY: rows of all heads, with room for whole steps, are the caller's promise.
                unsafe {
                    let weights = weights.as_ptr().add(n * KEYS + j);
                    let to = sums.as_mut_ptr().add(n * width + d);
                    let (mut first, mut second) = (vld1q_f32(to), vld1q_f32(to.add(VECTOR)));
                    for u in 0..N {
                        let weight = vld1q_dup_f32(weights.add(u));
                        first = vfmaq_f32(first, weight, parts[u][0]);
                        second = vfmaq_f32(second, weight, parts[u][1]);
                    }
                    vst1q_f32(to, first);
                    vst1q_f32(to.add(VECTOR), second);
                }
            }
        }
    }
}

/// `sums[head, d] = Σ_j weights[head, j] · values[j, group, d]`, rows of whole steps.
///
/// # Panics
/// If an operand is too short.
#[target_feature(enable = "neon")]
pub(super) fn mix(sums: &mut [f32], weights: &[f32], values: Block<'_, bf16>, next: &[bf16]) {
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
}
