//! Few queries against many keys, as in decoding: keys and values are read once, in place and in the order of memory.
//!
//! A unit is a block of keys of a segment with all its groups and heads, for a token's heads stand beside each other in
//! memory: one head at a time would read a little of every page. Each unit leaves its maximum, sum and mix of values; they
//! are joined in the order of the blocks, whose length is fixed, so threads do not reach the bits.

use super::forward::Call;
use super::mask::Mask;
use super::{Heads, Options, Segment, Tilt};
use crate::Element;
use crate::cpu::Disjoint;
use crate::float;
use crate::isa::instances;
use crate::memory::{Scratch, with_scratch};

/// Up to so many queries per segment it pays to leave keys unpacked.
pub(super) const MAX_QUERIES: usize = 4;

/// Keys of a block.
const KEYS: usize = 128;

/// Lanes of a sum over the head size.
const LANES: usize = 16;

type Chunk = [f32; LANES];

/// The key or value heads of a block: where they start and how they lie.
#[derive(Clone, Copy)]
struct Block<'a, E> {
    data: &'a [E],
    token_stride: usize,
    group_stride: usize,
    groups: usize,
    heads_per_group: usize,
    dim: usize,
    /// Keys of the block.
    count: usize,
}

impl<E: Element> Block<'_, E> {
    /// Elements of a token's group.
    #[inline(always)]
    fn row(&self, token: usize, group: usize) -> &[E] {
        &self.data[token * self.token_stride + group * self.group_stride..][..self.dim]
    }
}

mod body {
    use super::{Block, KEYS, LANES, Options, Tilt};
    use crate::Element;
    use crate::float::{exp, tanh};
    use crate::rms_norm::lane_sum;
    use std::hint::black_box;

    /// Keys whose values are mixed at once: sums are loaded and stored once for all of them.
    const AT_ONCE: usize = 4;

    /// Lane `l` of each chunk in rising order, then the lanes in a fixed tree.
    #[inline(always)]
    fn dot<E: Element>(query: &[[f32; LANES]], key: &[E]) -> f32 {
        let mut acc = [0f32; LANES];
        let (blocks, tail) = key.as_chunks::<LANES>();
        for (q, b) in query.iter().zip(blocks) {
            for l in 0..LANES {
                acc[l] = q[l].mul_add(b[l].to_f32(), acc[l]);
            }
        }
        if !tail.is_empty() {
            let (q, b) = (&query[blocks.len()], padded(tail));
            for l in 0..LANES {
                acc[l] = q[l].mul_add(b[l].to_f32(), acc[l]);
            }
        }
        // Seen as one array in memory the lanes stay in one register above; the compiler makes sixteen scalars of them
        // where it sees the tree.
        lane_sum(black_box(acc))
    }

    /// A chunk that ends early, filled up with zeros.
    #[inline(always)]
    fn padded<E: Element>(tail: &[E]) -> [E; LANES] {
        let mut chunk = [E::default(); LANES];
        chunk[..tail.len()].copy_from_slice(tail);
        chunk
    }

    /// `scores[head, key] = query[head] · key`, rows of [`KEYS`]; queries are padded to whole chunks.
    #[inline(always)]
    pub(super) fn products<E: Element>(scores: &mut [f32], queries: &[[f32; LANES]], keys: Block<'_, E>) {
        let width = keys.dim.div_ceil(LANES);
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
        for row in scores.chunks(LANES) {
            for (m, x) in max.iter_mut().zip(row) {
                *m = if *x > *m { *x } else { *m };
            }
        }
        let max = max.iter().fold(f32::NEG_INFINITY, |m, x| if *x > m { *x } else { m });
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
        (max, lane_sum(acc))
    }

    /// `sum += Σ_u weights[u] · rows[u]`, in the order of `u`.
    #[inline(always)]
    fn add_chunk<E: Element, const N: usize>(
        sum: &mut [f32; LANES],
        weights: [f32; N],
        rows: [&[E; LANES]; N],
    ) {
        for u in 0..N {
            for l in 0..LANES {
                sum[l] = weights[u].mul_add(rows[u][l].to_f32(), sum[l]);
            }
        }
    }

    /// Adds the weighted values of `N` keys from `j` on to the sums of all heads.
    #[inline(always)]
    fn add_keys<E: Element, const N: usize>(
        sums: &mut [[f32; LANES]],
        weights: &[f32],
        values: Block<'_, E>,
        j: usize,
    ) {
        let (width, whole) = (values.dim.div_ceil(LANES), values.dim / LANES);
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
                if whole < width {
                    let mut tails = [[E::default(); LANES]; N];
                    for u in 0..N {
                        tails[u] = padded(&rows[u][whole * LANES..]);
                    }
                    add_chunk(&mut sums[whole], w, tails.each_ref());
                }
            }
        }
    }

    /// `sums[head, d] = Σ_j weights[head, j] · values[j, group, d]`; sums are padded to whole chunks.
    #[inline(always)]
    pub(super) fn mix<E: Element>(sums: &mut [[f32; LANES]], weights: &[f32], values: Block<'_, E>) {
        sums.fill([0.0; LANES]);
        let whole = values.count / AT_ONCE * AT_ONCE;
        for j in (0..whole).step_by(AT_ONCE) {
            add_keys::<E, AT_ONCE>(sums, weights, values, j);
        }
        for j in whole..values.count {
            add_keys::<E, 1>(sums, weights, values, j);
        }
    }
}

instances! {
    fn products<E: Element>(scores: &mut [f32], queries: &[Chunk], keys: Block<'_, E>) = body::products;
    fn exponentials(scores: &mut [f32], options: &Options, tilt: Tilt) -> (f32, f32) = body::exponentials;
    fn mix<E: Element>(sums: &mut [Chunk], weights: &[f32], values: Block<'_, E>) = body::mix;
}

/// Runs all segments, each of at most [`MAX_QUERIES`] queries.
pub(super) fn run<E: Element>(call: &Call<'_, E>) {
    let heads = call.groups * call.heads_per_group;
    // Keys that some query of a segment sees, and how many blocks they make.
    let sight = |s: &Segment| Mask::new(s, call.options).keys(0, s.q_len);
    let blocks = |s: &Segment| {
        let (first, end) = sight(s);
        end.saturating_sub(first).div_ceil(KEYS)
    };
    let units: usize = call.segments.iter().map(blocks).sum();
    // Of each head of each query a unit leaves its mix of values, maximum and sum.
    let width = call.dim.next_multiple_of(LANES) + 2;
    let queries = call.segments.iter().map(|s| s.q_len).max().unwrap_or(0);
    with_scratch(Scratch::Rows, 2 * units + call.segments.len(), |table: &mut [u64]| {
        let (list, firsts) = table.split_at_mut(2 * units);
        let mut unit = 0;
        for (s, segment) in call.segments.iter().enumerate() {
            firsts[s] = unit as u64;
            for b in 0..blocks(segment) {
                list[2 * unit] = s as u64;
                list[2 * unit + 1] = (sight(segment).0 + b * KEYS) as u64;
                unit += 1;
            }
        }
        let (list, firsts) = (&*list, &*firsts);
        with_scratch(Scratch::Sums, units * queries * heads * width, |partials: &mut [f32]| {
            let parts = Disjoint::new(partials);
            call.cpu.for_each_unit(units, |u| {
                let (segment, first) = (&call.segments[list[2 * u] as usize], list[2 * u + 1] as usize);
                // SAFETY: a unit takes its own partial results.
                let part = unsafe { parts.part(u * queries * heads * width, queries * heads * width) };
                for (i, part) in part.chunks_exact_mut(heads * width).enumerate().take(segment.q_len) {
                    block(call, segment, i, first, part);
                }
            });
            let partials = &*partials;
            call.cpu.for_each_unit(call.segments.len(), |s| {
                let segment = &call.segments[s];
                let from = firsts[s] as usize;
                let of = |u: usize, i: usize| &partials[(u * queries + i) * heads * width..][..heads * width];
                for i in 0..segment.q_len {
                    join(call, segment, i, &(from..from + blocks(segment)).map(|u| of(u, i)));
                }
            });
        });
    });
}

/// One query of all heads against the block of keys from `first` on; `part` gets the heads' mixes, then maxima, then sums.
fn block<E: Element>(call: &Call<'_, E>, segment: &Segment, i: usize, first: usize, part: &mut [f32]) {
    let (isa, dim) = (call.cpu.isa(), call.dim);
    let heads = call.groups * call.heads_per_group;
    let padded = dim.next_multiple_of(LANES);
    let (mixes, rest) = part.split_at_mut(heads * padded);
    let (maxima, sums) = rest.split_at_mut(heads);
    let (seen, end) = Mask::new(segment, call.options).keys(i, i + 1);
    let (from, end) = (first.max(seen), end.min(first + KEYS));
    if from >= end {
        mixes.fill(0.0);
        maxima.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        return;
    }
    let t = segment.q_start + i;
    let of = |heads: &Heads<'_, E>| heads.at(segment.k_start + from, 0, 0);
    let rows = |heads: &Heads<'_, E>| (heads.token_stride, heads.group_stride);
    let (groups, heads_per_group, count) = (call.groups, call.heads_per_group, end - from);
    let taken = |heads: Heads<'_, E>, data| {
        let (token_stride, group_stride) = rows(&heads);
        Block { data, token_stride, group_stride, groups, heads_per_group, dim, count }
    };
    with_scratch(Scratch::Scores, heads * (padded + KEYS), |scratch: &mut [f32]| {
        let (wide, scores) = scratch.split_at_mut(heads * padded);
        wide.fill(0.0);
        for (n, wide) in wide.chunks_exact_mut(padded).enumerate() {
            let (group, head) = (n / heads_per_group, n % heads_per_group);
            for (w, v) in wide.iter_mut().zip(&call.q.data[call.q.at(t, group, head)..][..dim]) {
                *w = v.to_f32();
            }
        }
        products(isa, scores, wide.as_chunks().0, taken(call.k, &call.k.data[of(&call.k)..]));
        for (n, scores) in scores.chunks_exact_mut(KEYS).enumerate() {
            let tilt = Tilt::new(call.options, segment, n, from, i);
            (maxima[n], sums[n]) = exponentials(isa, &mut scores[..count], call.options, tilt);
        }
        mix(isa, mixes.as_chunks_mut().0, scores, taken(call.v, &call.v.data[of(&call.v)..]));
    });
}

/// Joins what the blocks left of one query and writes its output.
fn join<'p, E: Element>(
    call: &Call<'_, E>,
    segment: &Segment,
    i: usize,
    parts: &(impl Iterator<Item = &'p [f32]> + Clone),
) {
    let (dim, padded) = (call.dim, call.dim.next_multiple_of(LANES));
    let heads = call.groups * call.heads_per_group;
    let t = segment.q_start + i;
    for n in 0..heads {
        let max = parts
            .clone()
            .map(|p| p[heads * padded + n])
            .fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m });
        // A query that sees nothing subtracts 0, for -inf - -inf is no number.
        let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let share = |p: &[f32]| float::exp(p[heads * padded + n] - shift);
        let sum = parts.clone().fold(0f32, |sum, p| p[heads * (padded + 1) + n].mul_add(share(p), sum));
        let scale = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        // SAFETY: segments share no query, and a unit takes one segment.
        let row = unsafe { call.out.part((t * heads + n) * dim, dim) };
        with_scratch(Scratch::Queries, dim, |mixed: &mut [f32]| {
            mixed.fill(0.0);
            for p in parts.clone() {
                let share = share(p);
                for (m, x) in mixed.iter_mut().zip(&p[n * padded..][..dim]) {
                    *m = x.mul_add(share, *m);
                }
            }
            for (o, m) in row.iter_mut().zip(mixed) {
                *o = E::from_f32(*m * scale);
            }
        });
        if let Some(lse) = &call.lse {
            let value = f64::from(max) + float::ln(f64::from(sum));
            // SAFETY: as above.
            (unsafe { lse.part(n * call.tokens + t, 1) })[0] = value as f32;
        }
    }
}
