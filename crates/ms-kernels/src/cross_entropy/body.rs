//! The fast bodies, one row each.

use crate::Element;
use crate::element::is_bf16;
use crate::float::exp_below;
use crate::narrow::{LANES, Lanes, Narrow, filled, split_two};
use crate::prefetch::fetch_rows;
use crate::rms_norm::lane_sum;
use std::hint::black_box;

const CHAINS: usize = 4;
const TWO: usize = 2 * LANES;
const BLOCK: usize = CHAINS * LANES;

/// Maximum and sum of `exp(x − maximum)` of a row; (−infinity, 0) for an empty one.
#[inline(always)]
pub(super) fn statistics<E: Element>(how: impl Narrow, logits: &[E]) -> (f32, f32) {
    let max = maximum(logits);
    (max, exponentials_sum::<E, _, false>(how, logits, max, &mut []))
}

#[inline(always)]
fn maximum<E: Element>(logits: &[E]) -> f32 {
    let (blocks, tail) = logits.as_chunks::<BLOCK>();
    let mut maxima = [[f32::NEG_INFINITY; LANES]; CHAINS];
    for b in blocks {
        let [m0, m1, m2, m3] = maxima;
        let [x0, x1, x2, x3] = split_block(b);
        maxima = [larger(m0, x0), larger(m1, x1), larger(m2, x2), larger(m3, x3)];
    }
    let mut max = f32::NEG_INFINITY;
    for v in maxima.into_iter().flatten().chain(tail.iter().map(|v| v.to_f32())) {
        max = if v > max { v } else { max };
    }
    max
}

#[inline(always)]
fn larger(mut max: Lanes, x: Lanes) -> Lanes {
    for l in 0..LANES {
        max[l] = if x[l] > max[l] { x[l] } else { max[l] };
    }
    max
}

/// A block of elements as f32, taken apart as [`split_two`] does.
#[inline(always)]
fn split_block<E: Element>(block: &[E; BLOCK]) -> [Lanes; CHAINS] {
    let (halves, _) = block.as_chunks();
    let ([a, b], [c, d]) = (split_two(&halves[0]), split_two(&halves[1]));
    [a, b, c, d]
}

/// Where [`split_two`] puts an element.
#[inline(always)]
fn place<E: Element>(element: usize) -> usize {
    if !is_bf16::<E>() {
        return element;
    }
    let within = element % TWO;
    element - within + within % 2 * LANES + within / 2
}

/// Sum of `exp(x − max)`; if `KEEP`, each is also stored at its [`place`] in `kept`, those after the last block at their own.
#[inline(always)]
fn exponentials_sum<E: Element, N: Narrow, const KEEP: bool>(
    how: N,
    logits: &[E],
    max: f32,
    kept: &mut [f32],
) -> f32 {
    let (blocks, tail) = logits.as_chunks::<BLOCK>();
    let (kept, kept_tail) = kept.as_chunks_mut::<BLOCK>();
    let mut sums = [[0f32; LANES]; CHAINS];
    for (n, b) in blocks.iter().enumerate() {
        // The next row, for its maximum; there is time for it meanwhile.
        fetch_rows(b.as_ptr().wrapping_add(logits.len()), 0, 1, BLOCK);
        let [x0, x1, x2, x3] = split_block(b);
        let ([p0, p1], [p2, p3]) =
            (how.exponentials::<E>([x0, x1], max), how.exponentials::<E>([x2, x3], max));
        let [s0, s1, s2, s3] = sums;
        sums = [plus(s0, p0), plus(s1, p1), plus(s2, p2), plus(s3, p3)];
        if KEEP {
            kept[n].as_chunks_mut().0.copy_from_slice(&[p0, p1, p2, p3]);
        }
    }
    // Seen as arrays in memory the lanes stay in registers above.
    let sums = black_box(sums);
    let mut sums: [f32; BLOCK] = std::array::from_fn(|element| sums.as_flattened()[place::<E>(element)]);
    for (l, v) in tail.iter().enumerate() {
        let part = exp_below::<E>(v.to_f32() - max);
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

#[inline(always)]
fn plus(mut a: Lanes, b: Lanes) -> Lanes {
    for l in 0..LANES {
        a[l] += b[l];
    }
    a
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
    let sum = exponentials_sum::<E, _, true>(how, logits, max, kept);
    if weight == 0.0 {
        logits.fill(E::default());
        return (max, sum);
    }
    let (factor, how) = (weight / sum, how.of_results());
    let (blocks, rest) = logits.as_chunks_mut::<BLOCK>();
    let (parts, parts_rest) = kept.as_chunks::<BLOCK>();
    for (block, parts) in blocks.iter_mut().zip(parts) {
        let ((halves, _), (parts, _)) = (block.as_chunks_mut::<TWO>(), parts.as_chunks());
        how.store_split(&mut halves[0], [times(parts[0], factor), times(parts[1], factor)], false);
        how.store_split(&mut halves[1], [times(parts[2], factor), times(parts[3], factor)], false);
    }
    let first = blocks.len() * BLOCK;
    for (to, parts) in rest.chunks_mut(LANES).zip(parts_rest.chunks(LANES)) {
        let mut last = [E::default(); LANES];
        how.store(&mut last, times(filled(parts), factor));
        to.copy_from_slice(&last[..to.len()]);
    }
    if let Some(id) = target {
        // Before rounding, so that a target with probability near 1 keeps its small gradient.
        let part = kept[if id < first { place::<E>(id) } else { id }];
        logits[id] = E::from_f32(part.mul_add(factor, -weight));
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

/// `x <- exp(x − max) · factor`.
#[inline(always)]
pub(super) fn gradient<E: Element>(how: impl Narrow, logits: &mut [E], max: f32, factor: f32) {
    let how = how.of_results();
    let (chunks, rest) = logits.as_chunks_mut::<TWO>();
    for chunk in chunks {
        scaled(how, chunk, max, factor);
    }
    if !rest.is_empty() {
        let mut last = filled(rest);
        scaled(how, &mut last, max, factor);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[inline(always)]
fn scaled<E: Element>(how: impl Narrow, chunk: &mut [E; TWO], max: f32, factor: f32) {
    let parts = how.exponentials::<E>(split_two(chunk), max);
    how.store_split(chunk, [times(parts[0], factor), times(parts[1], factor)], false);
}
