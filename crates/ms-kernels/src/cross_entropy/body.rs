//! The fast bodies, one row each.

use crate::Element;
use crate::float::exp;
use crate::narrow::{LANES, Narrow, exponentials, filled, widen};
use crate::rms_norm::lane_sum;

const CHAINS: usize = 4;
const BLOCK: usize = CHAINS * LANES;

/// Maximum and sum of `exp(x − maximum)` of a row; (−infinity, 0) for an empty one.
#[inline(always)]
pub(super) fn statistics<E: Element>(logits: &[E]) -> (f32, f32) {
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
    let max = maxima.iter().fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m });
    let mut sums = [0f32; BLOCK];
    for b in blocks {
        for l in 0..BLOCK {
            sums[l] += exp(b[l].to_f32() - max);
        }
    }
    for (l, v) in tail.iter().enumerate() {
        sums[l] += exp(v.to_f32() - max);
    }
    let mut lanes = [0f32; LANES];
    for chain in 0..CHAINS {
        for l in 0..LANES {
            lanes[l] += sums[chain * LANES + l];
        }
    }
    (max, lane_sum(lanes))
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
    let mut x = exponentials(widen(chunk), max);
    for l in 0..LANES {
        x[l] *= factor;
    }
    how.store(chunk, x);
}
