//! The fast bodies, one row each.

use crate::Element;
use crate::float::exp_of;
use crate::narrow::{LANES, Narrow, exponentials, fetch, filled, widen, widen_two};
use crate::rms_norm::lane_sum;

const CHAINS: usize = 4;
const BLOCK: usize = CHAINS * LANES;

/// Maximum and sum of `exp(x − maximum)` of a row; (−infinity, 0) for an empty one.
#[inline(always)]
pub(super) fn statistics<E: Element>(logits: &[E]) -> (f32, f32) {
    let max = maximum(logits);
    (max, exponentials_sum::<E, false>(logits, max, &mut []))
}

#[inline(always)]
fn maximum<E: Element>(logits: &[E]) -> f32 {
    let (blocks, tail) = logits.as_chunks::<BLOCK>();
    let mut maxima = [f32::NEG_INFINITY; BLOCK];
    for b in blocks {
        for l in 0..BLOCK {
            let v = b[l].to_f32();
            maxima[l] = if v > maxima[l] { v } else { maxima[l] };
        }
    }
    for (l, v) in tail.iter().enumerate() {
        let v = v.to_f32();
        maxima[l] = if v > maxima[l] { v } else { maxima[l] };
    }
    maxima.iter().fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m })
}

/// Sum of `exp(x − max)`; if `KEEP`, each goes to `kept` too.
#[inline(always)]
fn exponentials_sum<E: Element, const KEEP: bool>(logits: &[E], max: f32, kept: &mut [f32]) -> f32 {
    let (blocks, tail) = logits.as_chunks::<BLOCK>();
    let (kept, kept_tail) = kept.as_chunks_mut::<BLOCK>();
    let mut sums = [0f32; BLOCK];
    for (n, b) in blocks.iter().enumerate() {
        // The row behind this one, for its maximum; there is time for it meanwhile.
        for line in b.as_chunks::<{ 2 * LANES }>().0 {
            fetch(line.as_ptr().wrapping_add(logits.len()));
        }
        let mut parts = [0f32; BLOCK];
        for l in 0..BLOCK {
            parts[l] = exp_of::<E>(b[l].to_f32() - max);
            sums[l] += parts[l];
        }
        if KEEP {
            kept[n] = parts;
        }
    }
    for (l, v) in tail.iter().enumerate() {
        let part = exp_of::<E>(v.to_f32() - max);
        sums[l] += part;
        if KEEP {
            kept_tail[l] = part;
        }
    }
    let mut lanes = [0f32; LANES];
    for chain in 0..CHAINS {
        for l in 0..LANES {
            lanes[l] += sums[chain * LANES + l];
        }
    }
    lane_sum(lanes)
}

/// [`statistics`], and then the gradient in place of a row that is whole: its exponentials are kept between the passes.
#[inline(always)]
pub(super) fn whole<E: Element>(
    how: impl Narrow,
    logits: &mut [E],
    kept: &mut [f32],
    target: Option<usize>,
    weight: f32,
) -> (f32, f32) {
    let max = maximum(logits);
    let sum = exponentials_sum::<E, true>(logits, max, kept);
    if weight == 0.0 {
        logits.fill(E::default());
        return (max, sum);
    }
    let factor = weight / sum;
    let (chunks, rest) = logits.as_chunks_mut::<{ 2 * LANES }>();
    let (parts, parts_rest) = kept.as_chunks::<{ 2 * LANES }>();
    for (chunk, parts) in chunks.iter_mut().zip(parts) {
        how.store_two(chunk, times_two(parts, factor), false);
    }
    if !rest.is_empty() {
        let mut last = [E::default(); 2 * LANES];
        how.store_two(&mut last, times_two(&filled(parts_rest), factor), false);
        rest.copy_from_slice(&last[..rest.len()]);
    }
    if let Some(id) = target {
        // Before rounding, so that a target with probability near 1 keeps its small gradient.
        logits[id] = E::from_f32(kept[id].mul_add(factor, -weight));
    }
    (max, sum)
}

#[inline(always)]
fn times(mut x: [f32; LANES], factor: f32) -> [f32; LANES] {
    for l in 0..LANES {
        x[l] *= factor;
    }
    x
}

#[inline(always)]
fn times_two(x: &[f32; 2 * LANES], factor: f32) -> [[f32; LANES]; 2] {
    let [first, second] = widen_two(x);
    [times(first, factor), times(second, factor)]
}

/// `x <- exp(x − max) · factor`.
#[inline(always)]
pub(super) fn gradient<E: Element>(how: impl Narrow, logits: &mut [E], max: f32, factor: f32) {
    let (chunks, rest) = logits.as_chunks_mut::<LANES>();
    let (fours, others) = chunks.as_chunks_mut::<CHAINS>();
    for [a, b, c, d] in fours {
        scaled(how, a, max, factor);
        scaled(how, b, max, factor);
        scaled(how, c, max, factor);
        scaled(how, d, max, factor);
    }
    for chunk in others {
        scaled(how, chunk, max, factor);
    }
    if !rest.is_empty() {
        let mut last = filled(rest);
        scaled(how, &mut last, max, factor);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[inline(always)]
fn scaled<E: Element>(how: impl Narrow, chunk: &mut [E; LANES], max: f32, factor: f32) {
    how.store(chunk, times(exponentials::<E>(widen(chunk), max), factor));
}
