//! Few queries against many keys, as in decoding: keys and values are read once, in place and in the order of memory.
//!
//! A unit is a block of keys of a segment with all its groups and heads, for a token's heads stand beside each other in
//! memory: one head at a time would read a little of every page. Each unit leaves its maximum, sum and mix of values; they
//! are joined in the order of the blocks, whose length is fixed, so threads do not reach the bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod body;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod prefetch;
#[cfg(test)]
mod tests;

use std::ops::Range;

use super::forward::Call;
use super::mask::Mask;
use super::{Heads, Options, Segment, Tilt};
use crate::cpu::Disjoint;
use crate::element::is_bf16;
use crate::float;
use crate::isa::instances;
use crate::memory::{Scratch, with_scratch};
use crate::{Element, Isa};
use body::STEP;

/// Up to so many queries per segment it pays to leave keys unpacked.
pub(super) const MAX_QUERIES: usize = 4;

/// Keys of a block.
const KEYS: usize = 128;

/// Blocks that one thread joins for a segment.
const JOINED_ALONE: usize = 16;

/// What blocks of keys left of one query: each the heads' mixes, rows of `width`, then their maxima, then their sums.
#[derive(Clone, Copy)]
struct Parts<'a> {
    data: &'a [f32],
    /// Elements from one block to the next.
    stride: usize,
    count: usize,
    heads: usize,
    width: usize,
}

impl Parts<'_> {
    /// Mixes, maxima and sums of block `p`.
    #[inline(always)]
    fn of(&self, p: usize) -> (&[f32], &[f32], &[f32]) {
        let part = &self.data[p * self.stride..][..self.heads * (self.width + 2)];
        let (mixes, rest) = part.split_at(self.heads * self.width);
        let (maxima, sums) = rest.split_at(self.heads);
        (mixes, maxima, sums)
    }
}

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

    /// Whether there are keys, no more than a block has, and all of them lie inside the array.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    fn is_inside(&self) -> bool {
        let last = |n: usize, stride: usize| n.checked_sub(1).and_then(|n| n.checked_mul(stride));
        let end = last(self.count, self.token_stride)
            .zip(last(self.groups, self.group_stride))
            .and_then(|(token, group)| token.checked_add(group)?.checked_add(self.dim));
        self.count <= KEYS && end.is_some_and(|end| end <= self.data.len())
    }
}

instances! {
    fn wide_products<E: Element>(scores: &mut [f32], queries: &[[[f32; STEP / 2]; 2]], keys: Block<'_, E>) = body::products;
    fn exponentials(scores: &mut [f32], options: &Options, tilt: Tilt) -> (f32, f32) = body::exponentials;
    fn join_parts(mixed: &mut [f32], maxima: &mut [f32], sums: &mut [f32], first: usize, parts: Parts<'_>) = body::join;
    fn any_mix<E: Element>(sums: &mut [[f32; STEP / 2]], weights: &[f32], values: Block<'_, E>) = body::mix;
}

impl<'a, E: Element> Block<'a, E> {
    /// The same of bf16, if it is.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    fn pairs(self) -> Option<Block<'a, half::bf16>> {
        let Self { data, token_stride, group_stride, groups, heads_per_group, dim, count } = self;
        let data = is_bf16::<E>().then(|| bytemuck::cast_slice(data))?;
        Some(Block { data, token_stride, group_stride, groups, heads_per_group, dim, count })
    }
}

/// `scores[head, key] = query[head] · key`, rows of [`KEYS`], of which those after the block's keys are any; `queries` are rows
/// of whole steps. What is read after the keys starts at `next`.
fn products<E: Element>(isa: Isa, scores: &mut [f32], queries: &[E], keys: Block<'_, E>, next: &[E]) {
    #[cfg(target_arch = "x86_64")]
    if let (Some(keys), true) = (keys.pairs(), isa >= Isa::Avx512) {
        let (queries, next) = (bytemuck::cast_slice(queries), bytemuck::cast_slice(next));
        // SAFETY: a `Cpu` is only made for an instruction set that this processor has; rows are those of all heads.
        return unsafe {
            if isa >= Isa::Avx512Bf16 {
                avx512::dot_products(scores, queries, keys, next);
            } else {
                avx512::products(scores, queries, keys, next);
            }
        };
    }
    with_scratch(Scratch::Weights, queries.len(), |wide: &mut [f32]| {
        let wide = wide.as_chunks_mut().0.as_chunks_mut().0;
        for (wide, step) in wide.iter_mut().zip(queries.as_chunks().0) {
            *wide = body::halves(step);
        }
        #[cfg(target_arch = "x86_64")]
        if let (Some(keys), true) = (keys.pairs(), isa == Isa::Avx2) {
            // SAFETY: as above.
            return unsafe { avx2::products(scores, wide, keys, bytemuck::cast_slice(next)) };
        }
        #[cfg(target_arch = "aarch64")]
        if let (Some(keys), true) = (keys.pairs(), isa >= Isa::Neon) {
            // SAFETY: as above.
            return unsafe { neon::products(scores, wide, keys, bytemuck::cast_slice(next)) };
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = next;
        wide_products(isa, scores, wide, keys);
    });
}

/// `sums[head, d] = Σ_j weights[head, j] · values[j, group, d]` in the order of keys; `sums` are rows of whole steps. What is
/// read after the values starts at `next`.
fn mix<E: Element>(isa: Isa, sums: &mut [f32], weights: &[f32], values: Block<'_, E>, next: &[E]) {
    #[cfg(target_arch = "x86_64")]
    if let (Some(values), true) = (values.pairs(), isa >= Isa::Avx2) {
        let next = bytemuck::cast_slice(next);
        // SAFETY: as above.
        return unsafe {
            if isa >= Isa::Avx512 {
                avx512::mix(sums, weights, values, next);
            } else {
                avx2::mix(sums, weights, values, next);
            }
        };
    }
    #[cfg(target_arch = "aarch64")]
    if let (Some(values), true) = (values.pairs(), isa >= Isa::Neon) {
        // SAFETY: as above.
        return unsafe { neon::mix(sums, weights, values, bytemuck::cast_slice(next)) };
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = next;
    any_mix(isa, sums.as_chunks_mut().0, weights, values);
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
    let width = call.dim.next_multiple_of(STEP) + 2;
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
            // Many blocks are joined by several threads.
            let shares = if units > JOINED_ALONE { call.cpu.threads().min(heads) } else { 1 };
            call.cpu.for_each_unit(call.segments.len() * shares, |u| {
                let (s, share) = (u / shares, u % shares);
                let (segment, from) = (&call.segments[s], firsts[s] as usize);
                for i in 0..segment.q_len {
                    let data = &partials[((from * queries + i) * heads * width).min(partials.len())..];
                    let (stride, count) = (queries * heads * width, blocks(segment));
                    let parts = Parts { data, stride, count, heads, width: width - 2 };
                    join(call, segment, i, share * heads / shares..(share + 1) * heads / shares, parts);
                }
            });
        });
    });
}

/// One query of all heads against the block of keys from `first` on; `part` gets the heads' mixes, then maxima, then sums.
fn block<E: Element>(call: &Call<'_, E>, segment: &Segment, i: usize, first: usize, part: &mut [f32]) {
    let (isa, dim) = (call.cpu.isa(), call.dim);
    let heads = call.groups * call.heads_per_group;
    let padded = dim.next_multiple_of(STEP);
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
    with_scratch(Scratch::Queries, heads * padded, |queries: &mut [E]| {
        queries.fill(E::default());
        for (n, row) in queries.chunks_exact_mut(padded).enumerate() {
            let (group, head) = (n / heads_per_group, n % heads_per_group);
            row[..dim].copy_from_slice(&call.q.data[call.q.at(t, group, head)..][..dim]);
        }
        with_scratch(Scratch::Scores, heads * KEYS, |scores: &mut [f32]| {
            let (keys, values) = (&call.k.data[of(&call.k)..], &call.v.data[of(&call.v)..]);
            products(isa, scores, queries, taken(call.k, keys), values);
            for (n, scores) in scores.chunks_exact_mut(KEYS).enumerate() {
                let tilt = Tilt::new(call.options, segment, n, from, i);
                (maxima[n], sums[n]) = exponentials(isa, &mut scores[..count], call.options, tilt);
            }
            let following = keys.get(count * call.k.token_stride..).unwrap_or_default();
            mix(isa, mixes, scores, taken(call.v, values), following);
        });
    });
}

/// Joins what the blocks left of some heads of query `i` and writes their output.
fn join<E: Element>(call: &Call<'_, E>, segment: &Segment, i: usize, heads: Range<usize>, parts: Parts<'_>) {
    let (dim, t) = (call.dim, segment.q_start + i);
    let count = heads.len();
    with_scratch(Scratch::Queries, count * (parts.width + 2), |joined: &mut [f32]| {
        let (mixed, rest) = joined.split_at_mut(count * parts.width);
        let (maxima, sums) = rest.split_at_mut(count);
        join_parts(call.cpu.isa(), mixed, maxima, sums, heads.start, parts);
        for (index, n) in heads.enumerate() {
            let scale = if sums[index] > 0.0 { 1.0 / sums[index] } else { 0.0 };
            // SAFETY: segments share no query, and a unit takes its own heads of one segment.
            let row = unsafe { call.out.part((t * parts.heads + n) * dim, dim) };
            for (o, m) in row.iter_mut().zip(&mixed[index * parts.width..]) {
                *o = E::from_f32(*m * scale);
            }
            if let Some(lse) = &call.lse {
                let value = f64::from(maxima[index]) + float::ln(f64::from(sums[index]));
                // SAFETY: as above.
                (unsafe { lse.part(n * call.tokens + t, 1) })[0] = value as f32;
            }
        }
    });
}
