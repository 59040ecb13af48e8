//! The blocked forward pass.
//!
//! Keys and values are packed once per segment and group; a unit is a block of queries of one head.

use super::blocks::{Left, Right, Rows, add_rows, lines, packed_lines, packed_terms, scores};
use super::body::{self, BK, BQ, LANES, Limits, Running};
use super::mask::Mask;
use super::{Heads, Options, Segment, Tilt};
use crate::cpu::Disjoint;
use crate::isa::instances;
use crate::matmul::kernel::{Kernel, Side};
use crate::memory::{Scratch, with_scratch};
use crate::{Cpu, Element, float};

instances! {
    fn softmax(
        block: &mut [f32], columns: usize, limits: &[(u32, u32)], options: &Options, tilt: Tilt, run: &mut Running,
    ) = body::softmax;
    fn rescale(out: &mut [f32], width: usize, correction: &[f32]) = body::rescale;
}

/// Operands of a call whose sizes have been checked.
pub(super) struct Call<'a, E> {
    pub(super) cpu: &'a Cpu,
    pub(super) out: Disjoint<'a, E>,
    pub(super) lse: Option<Disjoint<'a, f32>>,
    pub(super) q: Heads<'a, E>,
    pub(super) k: Heads<'a, E>,
    pub(super) v: Heads<'a, E>,
    pub(super) tokens: usize,
    pub(super) groups: usize,
    pub(super) heads_per_group: usize,
    pub(super) dim: usize,
    pub(super) segments: &'a [Segment],
    pub(super) options: &'a Options,
}

/// Where a segment's packed keys and values stand.
fn pack_sizes<K: Kernel>(segment: &Segment, dim: usize) -> (usize, usize) {
    (lines(packed_lines::<K>(segment.k_len, Side::Left, dim)), lines(packed_terms::<K>(segment.k_len, dim)))
}

/// Runs all blocks of all heads.
pub(super) fn run<K: Kernel<Packed = f32>, E: Element>(call: &Call<'_, E>) {
    let (groups, dim) = (call.groups, call.dim);
    let heads = groups * call.heads_per_group;
    let segments = call.segments.len();
    let packed: usize =
        call.segments.iter().map(|s| pack_sizes::<K>(s, dim)).map(|(k, v)| groups * (k + v)).sum();
    let blocks: usize = call.segments.iter().map(|s| s.q_len.div_ceil(BQ)).sum();
    with_scratch(Scratch::Rows, segments + 2 * blocks, |table: &mut [u64]| {
        // Start of each segment's packs; then segment and first query of each block.
        let (starts, list) = table.split_at_mut(segments);
        let (mut start, mut entry) = (0, 0);
        for (s, segment) in call.segments.iter().enumerate() {
            starts[s] = start as u64;
            let (k, v) = pack_sizes::<K>(segment, dim);
            start += groups * (k + v);
            for first in (0..segment.q_len).step_by(BQ) {
                list[2 * entry] = s as u64;
                list[2 * entry + 1] = first as u64;
                entry += 1;
            }
        }
        let (starts, list) = (&*starts, &*list);
        with_scratch(Scratch::Keys, packed, |packs: &mut [f32]| {
            let shared = Disjoint::new(packs);
            call.cpu.for_each_unit(segments * groups, |u| {
                let (s, group) = (u / groups, u % groups);
                let segment = &call.segments[s];
                let (k, v) = pack_sizes::<K>(segment, dim);
                // SAFETY: a unit takes the packs of its segment and group; heads were checked to lie in the arrays.
                unsafe {
                    let part = shared.part(starts[s] as usize + group * (k + v), k + v);
                    let (keys, values) = part.split_at_mut(k);
                    head_rows(&call.k, segment.k_start, group, 0, dim).pack_lines::<K>(
                        segment.k_len,
                        Side::Left,
                        keys.as_mut_ptr(),
                    );
                    head_rows(&call.v, segment.k_start, group, 0, dim)
                        .pack_terms::<K>(segment.k_len, values.as_mut_ptr());
                }
            });
            let packs = &*packs;
            call.cpu.for_each_unit(blocks * heads, |u| {
                // Late blocks see the most keys: begin with them.
                let (block, n) = (blocks - 1 - u / heads, u % heads);
                let (s, first) = (list[2 * block] as usize, list[2 * block + 1] as usize);
                let group = n / call.heads_per_group;
                let (k, v) = pack_sizes::<K>(&call.segments[s], dim);
                let part = &packs[starts[s] as usize + group * (k + v)..][..k + v];
                attend::<K, E>(call, &call.segments[s], n, first, &part[..k], &part[k..]);
            });
        });
    });
}

/// The rows of a head from a token on.
pub(super) fn head_rows<E: Element>(
    heads: &Heads<'_, E>,
    token: usize,
    group: usize,
    head: usize,
    dim: usize,
) -> Rows<E> {
    let data = heads.data.as_ptr().wrapping_add(heads.at(token, group, head));
    Rows { data, stride: heads.token_stride, dim }
}

/// Visible columns of the rows of a key block, relative to the first query.
pub(super) fn limits(mask: &Mask, k0: usize, keys: usize, q0: usize, queries: usize, to: &mut Limits) {
    for (row, limit) in to.iter_mut().enumerate().take(keys) {
        let (first, end) = mask.queries(k0 + row);
        let clip = |v: usize| v.saturating_sub(q0).min(queries) as u32;
        *limit = (clip(first), clip(end));
    }
}

/// One block of queries of one head.
fn attend<K: Kernel<Packed = f32>, E: Element>(
    call: &Call<'_, E>,
    segment: &Segment,
    n: usize,
    q0: usize,
    keys: &[f32],
    values: &[f32],
) {
    let (isa, dim) = (call.cpu.isa(), call.dim);
    let queries = BQ.min(segment.q_len - q0);
    let columns = queries.next_multiple_of(LANES);
    let mask = Mask::new(segment, call.options);
    let (first_key, last_key) = mask.keys(q0, q0 + queries);
    let (group, head) = (n / call.heads_per_group, n % call.heads_per_group);
    let mut run = Running::new();
    let mut edges: Limits = [(0, 0); BK];
    let packed_queries = lines(packed_lines::<K>(columns, Side::Right, dim));
    with_scratch(Scratch::Queries, packed_queries + queries * dim, |scratch: &mut [f32]| {
        let (panels, sums) = scratch.split_at_mut(packed_queries);
        // The columns past the last query are zero.
        panels.fill(0.0);
        // SAFETY: heads were checked to lie in the arrays; the scratch has room.
        unsafe {
            head_rows(&call.q, segment.q_start + q0, group, head, dim).pack_lines::<K>(
                queries,
                Side::Right,
                panels.as_mut_ptr(),
            );
        }
        with_scratch(Scratch::Scores, BK * BQ, |block: &mut [f32]| {
            let depth = packed_lines::<K>(K::MR, Side::Left, dim);
            let mut started = false;
            for k0 in (first_key / BK * BK..last_key).step_by(BK) {
                let count = BK.min(segment.k_len - k0);
                limits(&mask, k0, count, q0, queries, &mut edges);
                let panel = keys.as_ptr().wrapping_add(k0 / K::MR * depth);
                // SAFETY: the block has room for BK rows of BQ columns, and BK is a multiple of MR.
                unsafe {
                    block_scores::<K>(block.as_mut_ptr(), columns, &edges[..count], panel, panels, dim);
                };
                let tilt = Tilt::new(call.options, segment, n, k0, q0);
                softmax(isa, block, columns, &edges[..count], call.options, tilt, &mut run);
                if started {
                    rescale(isa, sums, dim, &run.correction);
                }
                let right = Right { data: values.as_ptr(), rows: segment.k_len, dim };
                for i in (0..queries).step_by(K::MR) {
                    let rows = K::MR.min(queries - i);
                    let (from, to) = mask.keys(q0 + i, q0 + i + rows);
                    let (from, to) = (from.max(k0), to.min(k0 + count));
                    let c = (sums.as_mut_ptr().wrapping_add(i * dim), dim);
                    let data = block.as_ptr().wrapping_add(from.saturating_sub(k0) * BQ + i);
                    let left = Left { data, row_stride: 1, step_stride: BQ };
                    if from < to || !started {
                        // SAFETY: `sums` has the rows; block and values hold the keys `from..to`.
                        unsafe { add_rows::<K>(c, started, left, rows, right, from.min(to), to) };
                    }
                }
                started = true;
            }
            if !started {
                sums.fill(0.0);
            }
        });
        let heads = call.groups * call.heads_per_group;
        for i in 0..queries {
            let t = segment.q_start + q0 + i;
            let scale = if run.sum[i] > 0.0 { 1.0 / run.sum[i] } else { 0.0 };
            // SAFETY: segments share no query, and a unit takes its own queries of one head.
            let row = unsafe { call.out.part((t * heads + n) * dim, dim) };
            for d in 0..dim {
                row[d] = E::from_f32(sums[i * dim + d] * scale);
            }
            if let Some(lse) = &call.lse {
                let value = f64::from(run.max[i]) + float::ln(f64::from(run.sum[i]));
                // SAFETY: as above.
                (unsafe { lse.part(n * call.tokens + t, 1) })[0] = value as f32;
            }
        }
    });
}

/// Scores of a block of keys and queries; panels that the mask hides are left out.
///
/// # Safety
/// `block` must have room for the rows of `limits`, rounded up to `MR`, of `BQ` columns.
pub(super) unsafe fn block_scores<K: Kernel<Packed = f32>>(
    block: *mut f32,
    columns: usize,
    limits: &[(u32, u32)],
    keys: *const f32,
    queries: &[f32],
    dim: usize,
) {
    let (depth_k, depth_q) =
        (packed_lines::<K>(K::MR, Side::Left, dim), packed_lines::<K>(K::NR, Side::Right, dim));
    for (panel, rows) in limits.chunks(K::MR).enumerate() {
        let first = rows.iter().map(|r| r.0).min().unwrap_or(0) as usize;
        let end = rows.iter().map(|r| r.1).max().unwrap_or(0) as usize;
        for (q, c) in (0..columns).step_by(K::NR).enumerate() {
            if c >= end || c + K::NR <= first {
                continue;
            }
            let to = (block.wrapping_add(panel * K::MR * BQ + c), BQ);
            let (a, b) = (keys.wrapping_add(panel * depth_k), queries.as_ptr().wrapping_add(q * depth_q));
            // SAFETY: the tile lies in the block; panels are packed.
            unsafe { scores::<K>(to, a, b, dim) };
        }
    }
}
