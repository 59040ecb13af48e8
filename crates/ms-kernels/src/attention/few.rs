//! Few queries against many keys, as in decoding: keys and values are read once, in place.

use super::forward::Call;
use super::mask::Mask;
use super::{Options, Segment, Tilt};
use crate::Element;
use crate::float;
use crate::isa::instances;
use crate::memory::{Scratch, with_scratch};

/// Up to so many queries per segment it pays to leave keys unpacked.
pub(super) const MAX_QUERIES: usize = 4;

mod body {
    use super::{Options, Tilt};
    use crate::Element;
    use crate::float::{exp, tanh};
    use crate::rms_norm::lane_sum;

    const LANES: usize = 16;

    /// Scores of one query against keys `stride` apart; returns the largest.
    #[inline(always)]
    pub(super) fn scores<E: Element>(
        scores: &mut [f32],
        query: &[f32],
        keys: &[E],
        stride: usize,
        options: &Options,
        tilt: Tilt,
    ) -> f32 {
        let dim = query.len();
        let mut max = f32::NEG_INFINITY;
        for (j, score) in scores.iter_mut().enumerate() {
            let key = &keys[j * stride..][..dim];
            let mut acc = [0f32; LANES];
            let (blocks, tail) = key.as_chunks::<LANES>();
            for (n, b) in blocks.iter().enumerate() {
                let q = &query[n * LANES..][..LANES];
                for l in 0..LANES {
                    acc[l] = q[l].mul_add(b[l].to_f32(), acc[l]);
                }
            }
            let done = dim - tail.len();
            for (l, k) in tail.iter().enumerate() {
                acc[l] = query[done + l].mul_add(k.to_f32(), acc[l]);
            }
            let x = lane_sum(acc) * options.scale;
            *score = options.softcap.map_or(x, |cap| cap * tanh(x / cap)) + tilt.row(j).unwrap_or(0.0);
            max = if *score > max { *score } else { max };
        }
        max
    }

    /// Turns scores into `exp(score − max)` and returns their sum.
    #[inline(always)]
    pub(super) fn exponentials(scores: &mut [f32], max: f32) -> f32 {
        let mut acc = [0f32; LANES];
        let (blocks, tail) = scores.as_chunks_mut::<LANES>();
        for b in blocks {
            for l in 0..LANES {
                b[l] = exp(b[l] - max);
                acc[l] += b[l];
            }
        }
        for (l, x) in tail.iter_mut().enumerate() {
            *x = exp(*x - max);
            acc[l] += *x;
        }
        lane_sum(acc)
    }

    /// `sums[d] = Σ_j weights[j] · values[j, d]`.
    #[inline(always)]
    pub(super) fn mix<E: Element>(sums: &mut [f32], weights: &[f32], values: &[E], stride: usize) {
        sums.fill(0.0);
        let dim = sums.len();
        for (j, &w) in weights.iter().enumerate() {
            let value = &values[j * stride..][..dim];
            for d in 0..dim {
                sums[d] = w.mul_add(value[d].to_f32(), sums[d]);
            }
        }
    }
}

instances! {
    fn scores<E: Element>(
        to: &mut [f32], query: &[f32], keys: &[E], stride: usize, options: &Options, tilt: Tilt,
    ) -> f32 = body::scores;
    fn exponentials(scores: &mut [f32], max: f32) -> f32 = body::exponentials;
    fn mix<E: Element>(sums: &mut [f32], weights: &[f32], values: &[E], stride: usize) = body::mix;
}

/// Runs all heads of all segments, each of at most [`MAX_QUERIES`] queries.
pub(super) fn run<E: Element>(call: &Call<'_, E>) {
    let heads = call.groups * call.heads_per_group;
    call.cpu.for_each_unit(call.segments.len() * heads, |u| {
        let (segment, n) = (&call.segments[u / heads], u % heads);
        for i in 0..segment.q_len {
            query(call, segment, n, i);
        }
    });
}

/// One query of one head.
fn query<E: Element>(call: &Call<'_, E>, segment: &Segment, n: usize, i: usize) {
    let (isa, dim) = (call.cpu.isa(), call.dim);
    let heads = call.groups * call.heads_per_group;
    let (group, head) = (n / call.heads_per_group, n % call.heads_per_group);
    let (first, end) = Mask::new(segment, call.options).keys(i, i + 1);
    let t = segment.q_start + i;
    with_scratch(Scratch::Scores, 2 * dim + (end - first), |scratch: &mut [f32]| {
        let (wide, rest) = scratch.split_at_mut(dim);
        let (sums, weights) = rest.split_at_mut(dim);
        for (w, v) in wide.iter_mut().zip(&call.q.data[call.q.at(t, group, head)..]) {
            *w = v.to_f32();
        }
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
        sums.fill(0.0);
        if first < end {
            let keys = &call.k.data[call.k.at(segment.k_start + first, group, 0)..];
            let tilt = Tilt::new(call.options, segment, n, first, i);
            max = scores(isa, weights, wide, keys, call.k.token_stride, call.options, tilt);
            sum = exponentials(isa, weights, max);
            let values = &call.v.data[call.v.at(segment.k_start + first, group, 0)..];
            mix(isa, sums, weights, values, call.v.token_stride);
        }
        let scale = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        // SAFETY: segments share no query, and a unit takes one head of one segment.
        let row = unsafe { call.out.part((t * heads + n) * dim, dim) };
        for d in 0..dim {
            row[d] = E::from_f32(sums[d] * scale);
        }
        if let Some(lse) = &call.lse {
            let value = f64::from(max) + float::ln(f64::from(sum));
            // SAFETY: as above.
            (unsafe { lse.part(n * call.tokens + t, 1) })[0] = value as f32;
        }
    });
}
