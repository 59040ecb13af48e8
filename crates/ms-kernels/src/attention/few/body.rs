//! Scores, weights and mixes of a block of keys, for any instruction set.

use super::{Block, KEYS, Options, Parts, Tilt};
use crate::Element;
use crate::element::is_bf16;
use crate::float::{exp, tanh};
use crate::rms_norm::lane_sum;
use std::hint::black_box;

/// Keys whose values are mixed at once: sums are loaded and stored once for all of them.
const AT_ONCE: usize = 4;

const LANES: usize = 16;
/// Elements of a step of a sum over the head size: one cache line of bf16. Rows of queries and of sums have whole steps.
pub(super) const STEP: usize = 2 * LANES;

pub(super) type Half = [f32; LANES];

/// A step in the order in which lane `l` takes its two terms: of f32, elements `l` and `l + 16`; of bf16, `2l + 1` and `2l`, as
/// the dot instruction does.
#[inline(always)]
pub(super) fn halves<E: Element>(step: &[E; STEP]) -> [Half; 2] {
    let (mut first, mut second) = ([0f32; LANES], [0f32; LANES]);
    for l in 0..LANES {
        let (a, b) = if is_bf16::<E>() { (2 * l + 1, 2 * l) } else { (l, l + LANES) };
        first[l] = step[a].to_f32();
        second[l] = step[b].to_f32();
    }
    [first, second]
}

/// Steps in rising order, each lane its two terms, then the lanes in a fixed tree.
#[inline(always)]
fn dot<E: Element>(query: &[[Half; 2]], key: &[E]) -> f32 {
    let mut acc = [0f32; LANES];
    let (blocks, tail) = key.as_chunks::<STEP>();
    let mut add = |q: &[Half; 2], step: &[E; STEP]| {
        let k = halves(step);
        for l in 0..LANES {
            acc[l] = q[1][l].mul_add(k[1][l], q[0][l].mul_add(k[0][l], acc[l]));
        }
    };
    for (q, step) in query.iter().zip(blocks) {
        add(q, step);
    }
    if !tail.is_empty() {
        add(&query[blocks.len()], &padded(tail));
    }
    // Seen as one array in memory the lanes stay in one register above; the compiler makes sixteen scalars of them
    // where it sees the tree.
    lane_sum(black_box(acc))
}

/// What ends early, filled up with zeros.
#[inline(always)]
fn padded<E: Element, const N: usize>(tail: &[E]) -> [E; N] {
    let mut whole = [E::default(); N];
    whole[..tail.len()].copy_from_slice(tail);
    whole
}

/// `scores[head, key] = query[head] · key`, rows of [`KEYS`]; queries are rows of steps in [`halves`].
#[inline(always)]
pub(super) fn products<E: Element>(scores: &mut [f32], queries: &[[Half; 2]], keys: Block<'_, E>) {
    let width = keys.dim.div_ceil(STEP);
    for j in 0..keys.count {
        for g in 0..keys.groups {
            let key = keys.row(j, g);
            for n in g * keys.heads_per_group..(g + 1) * keys.heads_per_group {
                scores[n * KEYS + j] = dot(&queries[n * width..][..width], key);
            }
        }
    }
}

/// Scales, caps and tilts the scores of a head, turns them into `exp(score − max)`; returns maximum and sum.
#[inline(always)]
pub(super) fn exponentials(scores: &mut [f32], options: &Options, tilt: Tilt) -> (f32, f32) {
    let mut max = [f32::NEG_INFINITY; LANES];
    for x in scores.iter_mut() {
        *x *= options.scale;
    }
    if let Some(cap) = options.softcap {
        for x in scores.iter_mut() {
            *x = cap * tanh(*x / cap);
        }
    }
    if tilt.row(0).is_some() {
        for (j, x) in scores.iter_mut().enumerate() {
            *x += tilt.row(j).unwrap_or(0.0);
        }
    }
    let (blocks, tail) = scores.as_chunks_mut::<LANES>();
    for b in blocks.iter() {
        for l in 0..LANES {
            max[l] = if b[l] > max[l] { b[l] } else { max[l] };
        }
    }
    let max =
        black_box(max).iter().chain(tail.iter()).fold(f32::NEG_INFINITY, |m, x| if *x > m { *x } else { m });
    let mut acc = [0f32; LANES];
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
    (max, lane_sum(black_box(acc)))
}

/// `sum += Σ_u weights[u] · rows[u]`, in the order of `u`.
#[inline(always)]
fn add_chunk<E: Element, const N: usize>(sum: &mut Half, weights: [f32; N], rows: [&[E; LANES]; N]) {
    for u in 0..N {
        for l in 0..LANES {
            sum[l] = weights[u].mul_add(rows[u][l].to_f32(), sum[l]);
        }
    }
}

/// Adds the weighted values of `N` keys from `j` on to the sums of all heads.
#[inline(always)]
fn add_keys<E: Element, const N: usize>(sums: &mut [Half], weights: &[f32], values: Block<'_, E>, j: usize) {
    let (width, whole) = (values.dim.next_multiple_of(STEP) / LANES, values.dim / LANES);
    let none = [E::default(); LANES];
    for g in 0..values.groups {
        let (mut rows, mut chunks) = ([&[] as &[E]; N], [&[] as &[[E; LANES]]; N]);
        for u in 0..N {
            rows[u] = values.row(j + u, g);
            chunks[u] = rows[u].as_chunks().0;
        }
        for n in g * values.heads_per_group..(g + 1) * values.heads_per_group {
            let mut w = [0f32; N];
            w.copy_from_slice(&weights[n * KEYS + j..][..N]);
            let sums = &mut sums[n * width..][..width];
            for (c, sum) in sums.iter_mut().enumerate().take(whole) {
                let mut at = [&none; N];
                for u in 0..N {
                    at[u] = &chunks[u][c];
                }
                add_chunk(sum, w, at);
            }
            if whole * LANES < values.dim {
                let mut tails = [[E::default(); LANES]; N];
                for u in 0..N {
                    tails[u] = padded(&rows[u][whole * LANES..]);
                }
                add_chunk(&mut sums[whole], w, tails.each_ref());
            }
        }
    }
}

/// `sums[head, d] = Σ_j weights[head, j] · values[j, group, d]`; rows of sums have whole steps.
#[inline(always)]
pub(super) fn mix<E: Element>(sums: &mut [Half], weights: &[f32], values: Block<'_, E>) {
    sums.fill([0.0; LANES]);
    let whole = values.count / AT_ONCE * AT_ONCE;
    for j in (0..whole).step_by(AT_ONCE) {
        add_keys::<E, AT_ONCE>(sums, weights, values, j);
    }
    for j in whole..values.count {
        add_keys::<E, 1>(sums, weights, values, j);
    }
}

/// The mixes of the heads from `first` on in all blocks, each by its share of the whole sum, in the order of the blocks; with the
/// wholes' maxima and sums. A query that sees nothing subtracts 0, for -inf - -inf is no number.
#[inline(always)]
pub(super) fn join(mixed: &mut [f32], maxima: &mut [f32], sums: &mut [f32], first: usize, parts: Parts<'_>) {
    maxima.fill(f32::NEG_INFINITY);
    for p in 0..parts.count {
        for (max, of) in maxima.iter_mut().zip(&parts.of(p).1[first..]) {
            *max = if *of > *max { *of } else { *max };
        }
    }
    sums.fill(0.0);
    mixed.fill(0.0);
    for p in 0..parts.count {
        let (mixes, of, own) = parts.of(p);
        let mixes = mixes[first * parts.width..].chunks_exact(parts.width);
        for (n, (mixed, mix)) in mixed.chunks_exact_mut(parts.width).zip(mixes).enumerate() {
            let shift = if maxima[n] == f32::NEG_INFINITY { 0.0 } else { maxima[n] };
            let share = exp(of[first + n] - shift);
            sums[n] = own[first + n].mul_add(share, sums[n]);
            for (m, x) in mixed.iter_mut().zip(mix) {
                *m = x.mul_add(share, *m);
            }
        }
    }
}
