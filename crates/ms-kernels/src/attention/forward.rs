//! The blocked forward pass.
//!
//! A work unit is a group of a segment with all its heads, if there are enough such units; otherwise a block of queries of
//! one head, after keys and values have been packed.

use std::marker::PhantomData;

use super::Dropout;
use super::blocks::{Left, Operands, Rows, add_rows, packed_block, packed_lines, scores};
use super::body::{self, BK, BQ, LANES, Limits, Running, STRIDE, Write};
use super::dropout::{Thin, Thinned, Thinning};
use super::mask::Mask;
use super::{Heads, Options, Segment, Tilt};
use crate::cpu::Disjoint;
use crate::element::is_bf16;
use crate::isa::instances;
use crate::matmul::driver::Ready;
use crate::matmul::kernel::{Kernel, Order, Side, filled};
use crate::memory::{Scratch, with_scratch};
use crate::narrow::instances::narrowing_instances;
use crate::{Cpu, Element, Isa};

narrowing_instances! {
    fn softmax<W: Write>(
        block: &mut [f32], to: W, columns: usize, limits: &[(u32, u32)], options: &Options, tilt: Tilt,
        run: &mut Running,
    ) = body::softmax;
    fn scaled<E: Element>(to: &mut [&mut [E]], sums: &[f32], scales: &[f32]) = body::store_rows;
}
instances! {
    fn rescale(out: &mut [f32], width: usize, correction: &[f32]) = body::rescale;
    fn finish(lse: &mut [f32; BQ], scales: &mut [f32; BQ], run: &Running, factor: f32) = body::finish;
}

/// Writes rows of sums, each times its scale.
pub(super) fn store_rows<E: Element>(isa: Isa, to: &mut [&mut [E]], sums: &[f32], scales: &[f32]) {
    scaled(isa, to, sums, scales);
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
    pub(super) dropout: Option<&'a Dropout<'a>>,
}

/// Runs all blocks of all heads.
pub(super) fn run<K: Kernel, E: Element>(call: &Call<'_, E>) {
    let units = call.segments.len() * call.groups;
    if call.cpu.threads() == 1 || units >= UNITS_PER_THREAD * call.cpu.threads() {
        by_groups::<K, E>(call);
    } else {
        by_blocks::<K, E>(call);
    }
}

/// With at least this many groups of segments per thread, each is a unit.
const UNITS_PER_THREAD: usize = 4;

/// A unit is a group of a segment, whose keys and values stay near.
fn by_groups<K: Kernel, E: Element>(call: &Call<'_, E>) {
    let groups = call.groups;
    call.cpu.for_each_unit(call.segments.len() * groups, |u| {
        let (segment, group) = (&call.segments[u / groups], u % groups);
        // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
        let _ready = unsafe { Ready::<K>::new() };
        let (keys, values) = call.rows(segment, group);
        let room = Operands::<K, E>::room(keys, segment.k_len);
        with_scratch(Scratch::Keys, room, |room: &mut [K::Packed]| {
            let mut operands = Operands::new(keys, values, segment.k_len, room);
            let first = group * call.heads_per_group;
            for n in first..first + call.heads_per_group {
                for q0 in (0..segment.q_len).step_by(BQ) {
                    let next = match (q0 + BQ < segment.q_len, n + 1 < first + call.heads_per_group) {
                        (true, _) => call.queries(segment, n).from(q0 + BQ),
                        (false, true) => call.queries(segment, n + 1),
                        (false, false) if group + 1 < groups => call.queries(segment, n + 1),
                        _ => call.queries(&call.segments[(u / groups + 1).min(call.segments.len() - 1)], 0),
                    };
                    attend::<K, E>(call, segment, n, q0, &mut operands, next);
                }
            }
        });
    });
}

/// A unit is a block of queries of a head; keys and values are packed before.
fn by_blocks<K: Kernel, E: Element>(call: &Call<'_, E>) {
    let groups = call.groups;
    let heads = groups * call.heads_per_group;
    let segments = call.segments.len();
    let size = |s: &Segment, group| Operands::<K, E>::room(call.rows(s, group).0, s.k_len);
    let most = |s: &Segment| (0..groups).map(|group| size(s, group)).max().unwrap_or(0);
    let packed: usize = call.segments.iter().map(|s| groups * most(s)).sum();
    let blocks: usize = call.segments.iter().map(|s| s.q_len.div_ceil(BQ)).sum();
    with_scratch(Scratch::Rows, segments + 2 * blocks, |table: &mut [u64]| {
        // Start of each segment's packs; then segment and first query of each block.
        let (starts, list) = table.split_at_mut(segments);
        let (mut start, mut entry) = (0, 0);
        for (s, segment) in call.segments.iter().enumerate() {
            starts[s] = start as u64;
            start += groups * most(segment);
            for first in (0..segment.q_len).step_by(BQ) {
                list[2 * entry] = s as u64;
                list[2 * entry + 1] = first as u64;
                entry += 1;
            }
        }
        let (starts, list) = (&*starts, &*list);
        with_scratch(Scratch::Keys, packed, |packs: &mut [K::Packed]| {
            let shared = Disjoint::new(packs);
            call.cpu.for_each_unit(segments * groups, |u| {
                let (s, group) = (u / groups, u % groups);
                let segment = &call.segments[s];
                let (keys, values) = call.rows(segment, group);
                // SAFETY: a unit takes the packs of its segment and group; heads were checked to lie in the arrays.
                unsafe {
                    let most = most(segment);
                    let part = shared.part(starts[s] as usize + group * most, most);
                    Operands::<K, E>::new(keys, values, segment.k_len, part).pack();
                }
            });
            let packs = &*packs;
            call.cpu.for_each_unit(blocks * heads, |u| {
                // Late blocks see the most keys: begin with them.
                let (block, n) = (blocks - 1 - u / heads, u % heads);
                let (s, first) = (list[2 * block] as usize, list[2 * block + 1] as usize);
                let (segment, group) = (&call.segments[s], n / call.heads_per_group);
                let most = most(segment);
                let part = &packs[starts[s] as usize + group * most..][..most];
                let (keys, values) = call.rows(segment, group);
                let mut operands = Operands::<K, E>::shared(keys, values, segment.k_len, part);
                // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
                let _ready = unsafe { Ready::<K>::new() };
                let next = call.queries(segment, (n + 1) % heads).from(first);
                attend::<K, E>(call, segment, n, first, &mut operands, next);
            });
        });
    });
}

impl<E: Element> Call<'_, E> {
    /// Keys and values of a group.
    fn rows(&self, segment: &Segment, group: usize) -> (Rows<E>, Rows<E>) {
        let rows = |heads| head_rows(heads, segment.k_start, group, 0, self.dim);
        (rows(&self.k), rows(&self.v))
    }

    /// Queries of a head.
    fn queries(&self, segment: &Segment, n: usize) -> Rows<E> {
        head_rows(&self.q, segment.q_start, n / self.heads_per_group, n % self.heads_per_group, self.dim)
    }
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

/// Visible columns of the rows of a key block, relative to the first query; rows that only fill up a step see nothing.
/// Returns how many rows that are.
pub(super) fn limits<K: Kernel>(
    mask: &Mask,
    k0: usize,
    keys: usize,
    q0: usize,
    queries: usize,
    to: &mut Limits,
) -> usize {
    let rows = filled::<K>(keys);
    // Both ends rise from key to key.
    if mask.queries(k0 + keys - 1).0 <= q0 && mask.queries(k0).1 >= q0 + queries {
        to[..keys].fill((0, queries as u32));
        to[keys..rows].fill((0, 0));
        return rows;
    }
    mask.limits(k0, q0, queries, &mut to[..keys]);
    to[keys..rows].fill((0, 0));
    rows
}

/// One block of queries of one head; `next` are those that are used after it.
fn attend<K: Kernel, E: Element>(
    call: &Call<'_, E>,
    segment: &Segment,
    n: usize,
    q0: usize,
    operands: &mut Operands<'_, K, E>,
    next: Rows<E>,
) {
    let (isa, dim) = (call.cpu.isa(), call.dim);
    let queries = BQ.min(segment.q_len - q0);
    let columns = queries.next_multiple_of(LANES);
    let mask = Mask::new(segment, call.options);
    let (first_key, last_key) = mask.keys(q0, q0 + queries);
    let heads = call.groups * call.heads_per_group;
    let tokens = segment.q_start + q0..segment.q_start + q0 + queries;
    let out = Rows { data: call.out.address().wrapping_add(n * dim), stride: heads * dim, dim };
    let mut run = Running::new();
    let mut edges: Limits = [(0, 0); BK];
    let tilt = |k0: usize| Tilt::new(call.options, segment, n, k0, q0);
    let thinning = call.dropout.map(|d| Thinning::new(d, segment, n, q0, queries));
    let packed_queries = packed_lines::<K>(columns, Side::Right, dim);
    with_scratch(Scratch::Queries, packed_queries, |panels: &mut [K::Packed]| {
        if columns > queries {
            // The columns past the last query are zero.
            panels.fill(bytemuck::Zeroable::zeroed());
        }
        // SAFETY: heads were checked to lie in the arrays; the scratch has room.
        unsafe {
            call.queries(segment, n).from(q0).pack_lines::<K>(queries, Side::Right, panels.as_mut_ptr());
        }
        with_scratch(Scratch::Partials, BK * STRIDE + queries * dim, |scratch: &mut [f32]| {
            let (block, sums) = scratch.split_at_mut(BK * STRIDE);
            let mut started = false;
            for k0 in (first_key / BK * BK..last_key).step_by(BK) {
                let count = BK.min(segment.k_len - k0);
                let rows = limits::<K>(&mask, k0, count, q0, queries, &mut edges);
                // SAFETY: heads were checked to lie in the arrays; the block has room for BK rows.
                unsafe {
                    let (keys, edges) = (operands.keys(k0), &edges[..count]);
                    let fetch = |panel| {
                        operands.fetch_after(k0, panel);
                        let i = panel * K::MR;
                        if k0 + BK >= last_key && i < queries {
                            next.from(i).fetch(K::MR.min(queries - i));
                        }
                    };
                    block_scores::<K>(block.as_mut_ptr(), columns, edges, keys, panels, dim, fetch);
                };
                let thin = thinning.as_ref().map(|t| t.at(k0));
                let block = Block { columns, limits: &edges[..rows], scores: &mut *block, thin };
                block.weights::<K, E, _>(isa, call.options, tilt(k0), &mut run, |left, run| {
                    if started {
                        rescale(isa, sums, dim, &run.correction);
                    }
                    // SAFETY: as above.
                    let right = unsafe { operands.values(k0) };
                    for i in (0..queries).step_by(K::MR) {
                        let rows = K::MR.min(queries - i);
                        if k0 + BK >= last_key {
                            out.from(tokens.start + i).fetch(rows);
                        }
                        let (from, to) = mask.keys(q0 + i, q0 + i + rows);
                        let (from, to) = (from.max(k0), to.min(k0 + count));
                        let c = (sums[i * dim..].as_mut_ptr(), dim);
                        if from < to || !started {
                            let terms = if from < to { (from - k0, to - k0) } else { (0, 0) };
                            // SAFETY: `sums` has the rows; block and values hold the keys `from..to`.
                            unsafe { add_rows::<K>(c, started, left, (i, rows), right, terms, 0) };
                        }
                    }
                });
                started = true;
            }
            if !started {
                sums.fill(0.0);
            }
            let (mut lse, mut scales) = ([0f32; BQ], [0f32; BQ]);
            finish(isa, &mut lse, &mut scales, &run, body::factor(call.options, &tilt(0)));
            // SAFETY: segments share no query, and a unit takes its own queries of one head.
            let part = |at, len| unsafe { call.out.part(at, len) };
            let mut rows: [&mut [E]; BQ] = std::array::from_fn(|i| match i < queries {
                true => part((tokens.start + i) * heads * dim + n * dim, dim),
                false => &mut [],
            });
            scaled(isa, &mut rows[..queries], sums, &scales);
            if let Some(to) = &call.lse {
                // SAFETY: as above.
                let to = unsafe { to.part(n * call.tokens + tokens.start, queries) };
                to.copy_from_slice(&lse[..queries]);
            }
        });
    });
}

/// A block of scores, with what its rows see and which of its weights count.
struct Block<'a> {
    columns: usize,
    limits: &'a [(u32, u32)],
    scores: &'a mut [f32],
    thin: Option<Thin<'a>>,
}

impl Block<'_> {
    /// Turns the scores into weights, which go to `to`.
    fn soften<W: Write>(&mut self, isa: Isa, to: W, options: &Options, tilt: Tilt, run: &mut Running) {
        let (columns, limits) = (self.columns, self.limits);
        match self.thin {
            None => softmax(isa, self.scores, to, columns, limits, options, tilt, run),
            Some(thin) => {
                softmax(isa, self.scores, Thinned { to, thin }, columns, limits, options, tilt, run);
            }
        }
    }

    /// Turns the scores into weights and calls `work` with them as the left operand of a product over keys.
    fn weights<K: Kernel, E: Element, R>(
        mut self,
        isa: Isa,
        options: &Options,
        tilt: Tilt,
        run: &mut Running,
        work: impl FnOnce(Left<K::Packed>, &mut Running) -> R,
    ) -> R {
        if !is_bf16::<E>() {
            self.soften(isa, body::InPlace, options, tilt, run);
            return work(Left::down::<K>(self.scores.as_ptr()), run);
        }
        if K::LEFT_IN_PLACE && K::TERMS == 2 {
            return with_scratch(Scratch::Weights, BK / 2 * STRIDE, |pairs: &mut [u32]| {
                self.soften(isa, body::Pairs(pairs), options, tilt, run);
                work(Left::pairs_down::<K>(pairs.as_ptr()), run)
            });
        }
        if K::LEFT_IN_PLACE {
            if K::ORDER == Order::Swapped {
                let to = body::Rounded::<body::SwapRows>(PhantomData);
                self.soften(isa, to, options, tilt, run);
            } else {
                let to = body::Rounded::<body::NoSwap>(PhantomData);
                self.soften(isa, to, options, tilt, run);
            }
            return work(Left::down::<K>(self.scores.as_ptr()), run);
        }
        with_scratch(Scratch::Weights, BK * STRIDE, |rows: &mut [half::bf16]| {
            self.soften(isa, body::Rows(rows), options, tilt, run);
            with_scratch(Scratch::PanelsA, packed_block::<K>(), |panels: &mut [K::Packed]| {
                let block = Rows { data: rows.as_ptr(), stride: STRIDE, dim: self.columns };
                // SAFETY: the block has the rows, and panels have room for a whole one.
                unsafe { block.pack_terms::<K>(self.limits.len(), Side::Left, panels.as_mut_ptr()) };
                work(Left::packed::<K>(panels.as_ptr(), self.limits.len() / K::TERMS), run)
            })
        })
    }
}

/// Bytes of queries that are multiplied with a panel of keys after another: half of a first-level cache of 32 kB.
const NEAR: usize = 16 << 10;

/// Scores of a block of keys and queries; panels that the mask hides are left out. `before` is called before each panel.
///
/// # Safety
/// `block` must have room for the rows of `limits`, of which at most `columns` columns are used; `keys` must
/// be as many rows of `dim` elements, and `queries` the packed panels of `columns` rows.
pub(super) unsafe fn block_scores<K: Kernel>(
    block: *mut f32,
    columns: usize,
    limits: &[(u32, u32)],
    keys: Left<K::Packed>,
    queries: &[K::Packed],
    dim: usize,
    before: impl Fn(usize),
) {
    let depth = packed_lines::<K>(K::NR, Side::Right, dim);
    // Panels of queries that stay in the first-level cache while those of keys pass by.
    let near = (NEAR / size_of_val(&queries[..depth])).max(1) * K::NR;
    for (part, (panel, rows)) in
        (0..columns).step_by(near).flat_map(|c| limits.chunks(K::MR).enumerate().map(move |p| (c, p)))
    {
        if part == 0 {
            before(panel);
        }
        let first = rows.iter().map(|r| r.0).min().unwrap_or(0) as usize;
        let end = rows.iter().map(|r| r.1).max().unwrap_or(0) as usize;
        for c in (part..columns.min(part + near)).step_by(K::NR) {
            let q = c / K::NR;
            // No row of the panel sees a column where the first of all stands behind the last.
            if first >= end || c >= end || c + K::NR <= first {
                continue;
            }
            // A tile of fewer rows reads all columns of a panel.
            let step = if rows.len() == K::MR { K::COLUMN_STEP } else { K::NR };
            let skipped = first.saturating_sub(c) / step * step;
            let cols = K::NR.min((end - c).next_multiple_of(K::COLUMN_STEP)) - skipped;
            let to = (block.wrapping_add(panel * K::MR * STRIDE + c + skipped), STRIDE);
            let b = queries.as_ptr().wrapping_add(q * depth + skipped);
            // SAFETY: the tile lies in the block; keys are readable and queries packed.
            unsafe { scores::<K>(to, keys, (panel * K::MR, rows.len()), b, dim, cols) };
        }
    }
}
