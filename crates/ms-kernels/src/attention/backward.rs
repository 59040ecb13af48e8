//! The blocked backward pass.
//!
//! A work unit is one group of one segment. For each head, block of queries and block of keys it recomputes the scores, then
//! `dv += pᵀ·do`, `dk += dsᵀ·q` and `dq += ds·k`, all on the transposed block. If there are few such units, each head is its
//! own unit; then `dk` and `dv` are stored per head in f32 and added in head order.

use std::marker::PhantomData;
use std::ops::Range;

use super::Dropout;
use super::blocks::{Left, Operands, Right, Rows, add_rows, lines, packed_block, packed_lines, packed_terms};
use super::body::{self, BK, BQ, LANES, Limits, STRIDE, Write};
use super::dropout::{Thin, Thinned, Thinning, thin_block};
use super::forward::{block_scores, head_rows, limits, store_rows};
use super::mask::Mask;
use super::{Heads, Options, QkvRows, Segment, Tilt};
use crate::cpu::Disjoint;
use crate::element::is_bf16;
use crate::matmul::driver::Ready;
use crate::matmul::kernel::{Kernel, Order, Side, steps};
use crate::memory::{Scratch, with_scratch};
use crate::narrow::instances::narrowing_instances;
use crate::qkv::Packed;
use crate::{Cpu, Element, Isa, lanes};

narrowing_instances! {
    fn gradient<P: Write, S: Write>(
        scores: &mut [f32], dp: &mut [f32], p_to: P, ds_to: S, columns: usize, limits: &[(u32, u32)],
        options: &Options, tilt: Tilt, lse: &[f32; BQ], delta: &[f32; BQ],
    ) = body::gradient;
}

/// Operands of a call whose sizes have been checked.
pub(super) struct Call<'a, E> {
    pub(super) cpu: &'a Cpu,
    /// Where gradients go.
    pub(super) to: QkvRows<Disjoint<'a, E>>,
    pub(super) dout: &'a [E],
    /// Queries, keys and values; their gradients stand in `to` as they do in their arrays.
    pub(super) heads: [Heads<'a, E>; 3],
    /// Rows of keys.
    pub(super) key_rows: usize,
    pub(super) out: &'a [E],
    pub(super) lse: &'a [f32],
    pub(super) shape: &'a Packed,
    pub(super) segments: &'a [Segment],
    pub(super) options: &'a Options,
    pub(super) dropout: Option<&'a Dropout<'a>>,
}

/// With at least this many groups and segments, each is a unit; with fewer, each of their heads is one.
const GROUPS: usize = 4;

/// Runs all heads.
pub(super) fn run<K: Kernel, E: Element>(call: &Call<'_, E>) {
    let shape = call.shape;
    let (heads, dim, per_group) = (shape.heads(), shape.head_dim, shape.heads_per_group);
    let units = call.segments.len() * shape.groups;
    // SAFETY: a `Cpu` is only made for an instruction set that this processor has.
    let ready = || unsafe { Ready::<K>::new() };
    if per_group == 1 || units >= GROUPS {
        call.cpu.for_each_unit(units, |u| {
            let _ready = ready();
            let (segment, group) = (&call.segments[u / shape.groups], u % shape.groups);
            with_scratch(Scratch::Sums, 2 * segment.k_len * dim, |sums: &mut [f32]| {
                let (dk, dv) = sums.split_at_mut(segment.k_len * dim);
                self::heads::<K, E>(call, segment, group * per_group..(group + 1) * per_group, dk, dv);
                store_keys(call, segment, group, dk, dv);
            });
        });
        return;
    }
    // Per head and key token: dk and dv.
    with_scratch(Scratch::Keys, heads * call.key_rows * 2 * dim, |partials: &mut [f32]| {
        let parts = Disjoint::new(partials);
        call.cpu.for_each_unit(call.segments.len() * heads, |u| {
            let _ready = ready();
            let (segment, n) = (&call.segments[u / heads], u % heads);
            let len = segment.k_len * dim;
            // SAFETY: a unit takes the keys of its segment, which no other has, for its head.
            let part = unsafe { parts.part((n * call.key_rows + segment.k_start) * 2 * dim, 2 * len) };
            let (dk, dv) = part.split_at_mut(len);
            self::heads::<K, E>(call, segment, n..n + 1, dk, dv);
        });
        call.cpu.for_each_unit(units, |u| {
            let (segment, group) = (&call.segments[u / shape.groups], u % shape.groups);
            let len = 2 * segment.k_len * dim;
            let start = |n: usize| (n * call.key_rows + segment.k_start) * 2 * dim;
            let first = group * per_group;
            // SAFETY: the parts of this segment and group belong to this unit.
            let sum = unsafe { parts.part(start(first), len) };
            for n in first + 1..first + per_group {
                // SAFETY: as above, and another head's part.
                let part = unsafe { parts.part(start(n), len) };
                for (s, p) in sum.iter_mut().zip(&*part) {
                    *s += p;
                }
            }
            let (dk, dv) = sum.split_at(len / 2);
            store_keys(call, segment, group, dk, dv);
        });
    });
}

/// Rows that are written together, while the next ones are prefetched.
const STORED: usize = 16;

/// Writes the gradients of a group's keys and values.
fn store_keys<E: Element>(call: &Call<'_, E>, segment: &Segment, group: usize, dk: &[f32], dv: &[f32]) {
    let (dim, place) = (call.shape.head_dim, call.to.keys());
    let [_, k, v] = call.heads;
    for (heads, sums, scale) in [(k, dk, call.options.scale), (v, dv, 1.0)] {
        let to = Rows { data: place.address(), stride: heads.token_stride, dim };
        let to = to.from(segment.k_start + STORED);
        for j in (0..segment.k_len).step_by(STORED) {
            let count = STORED.min(segment.k_len - j);
            to.from(j).at(heads.at(0, group, 0)).fetch(count);
            // SAFETY: a unit takes the keys and values of its group in its segment.
            let row = |i| unsafe { place.part(heads.at(segment.k_start + j + i, group, 0), dim) };
            let mut rows: [&mut [E]; STORED] =
                std::array::from_fn(|i| if i < count { row(i) } else { &mut [] });
            store_rows(call.cpu.isa(), &mut rows[..count], &sums[j * dim..], &[scale; STORED]);
        }
    }
}

/// Cuts `sizes` elements off the front of a slice, one after another.
fn cut<T, const N: usize>(mut slice: &mut [T], sizes: [usize; N]) -> [&mut [T]; N] {
    sizes.map(|size| {
        let (front, rest) = std::mem::take(&mut slice).split_at_mut(size);
        slice = rest;
        front
    })
}

/// Some heads of one group of one segment: `dq` goes to its place, `dk` and `dv` (`[k_len, dim]`) are overwritten.
fn heads<K: Kernel, E: Element>(
    call: &Call<'_, E>,
    segment: &Segment,
    heads: Range<usize>,
    dk: &mut [f32],
    dv: &mut [f32],
) {
    let (shape, dim) = (call.shape, call.shape.head_dim);
    let (isa, group) = (call.cpu.isa(), heads.start / shape.heads_per_group);
    let (k_len, mask) = (segment.k_len, Mask::new(segment, call.options));
    let [q_heads, k_heads, v_heads] = call.heads;
    let k_rows = head_rows(&k_heads, segment.k_start, group, 0, dim);
    let v_rows = head_rows(&v_heads, segment.k_start, group, 0, dim);
    let dq_to = call.to.queries();
    let width = shape.heads() * dim;
    let query_rows = |n: usize, q0: usize| {
        let row = |data: &[E]| data.as_ptr().wrapping_add((segment.q_start + q0) * width + n * dim);
        [
            head_rows(
                &q_heads,
                segment.q_start + q0,
                n / shape.heads_per_group,
                n % shape.heads_per_group,
                dim,
            ),
            Rows { data: row(call.dout), stride: width, dim },
            Rows { data: row(call.out), stride: width, dim },
        ]
    };
    dk.fill(0.0);
    dv.fill(0.0);
    let v_left = v_rows.in_place::<K>();
    let line_panels = if v_left.is_some() { 0 } else { lines(packed_lines::<K>(k_len, Side::Left, dim)) };
    let key_panels = Operands::<K, E>::room(k_rows, k_len);
    let q_lines = lines(packed_lines::<K>(BQ, Side::Right, dim));
    let q_terms = lines(packed_terms::<K>(BQ, Side::Right, dim));
    let sizes = [key_panels, line_panels, q_lines, q_lines, q_terms, q_terms];
    with_scratch(Scratch::Queries, sizes.iter().sum(), |scratch: &mut [K::Packed]| {
        let [k_panels, v_lines, q_panels, g_panels, q_rights, g_rights] = cut(scratch, sizes);
        // Keys are the right operand of `dq` too.
        let mut keys = Operands::<K, E>::new(k_rows, k_rows, k_len, k_panels);
        let v_left = v_left.unwrap_or_else(|| {
            // SAFETY: heads were checked to lie in the arrays; the scratch has room.
            unsafe { v_rows.pack_lines::<K>(k_len, Side::Left, v_lines.as_mut_ptr()) };
            Left::packed::<K>(v_lines.as_ptr(), steps::<K>(dim))
        });
        with_scratch(Scratch::Partials, 2 * BK * STRIDE + BQ * dim, |blocks: &mut [f32]| {
            let [p, ds, dq] = cut(blocks, [BK * STRIDE, BK * STRIDE, BQ * dim]);
            let blocks = segment.q_len.div_ceil(BQ);
            for (n, q0) in heads.flat_map(|n| (0..blocks).map(move |block| (n, block * BQ))) {
                let queries = BQ.min(segment.q_len - q0);
                let [q, g, y] = query_rows(n, q0);
                // The next head's may be another group's, or beyond the end: they are only prefetched.
                let next =
                    if q0 + BQ < segment.q_len { query_rows(n, q0 + BQ) } else { query_rows(n + 1, 0) };
                let to = q_heads.at(segment.q_start + q0, group, n % shape.heads_per_group);
                let dq_rows = Rows { data: dq_to.address(), stride: q_heads.token_stride, dim }.at(to);
                let thinning = call.dropout.map(|d| Thinning::new(d, segment, n, q0, queries));
                let (mut lse, mut delta) = ([0f32; BQ], [0f32; BQ]);
                let own = &call.lse[n * shape.tokens + segment.q_start + q0..][..queries];
                for (to, natural) in lse.iter_mut().zip(own) {
                    *to = natural * std::f32::consts::LOG2_E;
                }
                let pairs: [[&[E]; 2]; BQ] = std::array::from_fn(|i| match i < queries {
                    // SAFETY: rows of the checked arrays, which nobody writes.
                    true => unsafe { [g.from(i).first(), y.from(i).first()] },
                    false => [&[] as &[E]; 2],
                });
                lanes::dots(isa, &mut delta[..queries], &pairs);
                if queries < BQ {
                    // The columns past the last query are zero.
                    q_panels.fill(bytemuck::Zeroable::zeroed());
                    g_panels.fill(bytemuck::Zeroable::zeroed());
                }
                // SAFETY: as above.
                unsafe {
                    q.pack_lines::<K>(queries, Side::Right, q_panels.as_mut_ptr());
                    g.pack_lines::<K>(queries, Side::Right, g_panels.as_mut_ptr());
                    q.pack_terms::<K>(queries, Side::Right, q_rights.as_mut_ptr());
                    g.pack_terms::<K>(queries, Side::Right, g_rights.as_mut_ptr());
                }
                let block = Block {
                    mask: &mask,
                    q0,
                    queries,
                    q_right: Right { data: q_rights.as_ptr(), rows: queries, dim },
                    g_right: Right { data: g_rights.as_ptr(), rows: queries, dim },
                    after: [next[0], next[1], next[2], dq_rows],
                };
                dq.fill(0.0);
                let (first, last) = mask.keys(q0, q0 + queries);
                let mut edges: Limits = [(0, 0); BK];
                for k0 in (first / BK * BK..last).step_by(BK) {
                    let count = BK.min(k_len - k0);
                    let rows = limits::<K>(&mask, k0, count, q0, queries, &mut edges);
                    let columns = queries.next_multiple_of(LANES);
                    // SAFETY: the blocks have room for BK rows; heads were checked to lie in the arrays.
                    let k_right = unsafe {
                        let (left, edges) = (keys.keys(k0), &edges[..count]);
                        let fetch = |panel| keys.fetch_after(k0, panel);
                        block_scores::<K>(p.as_mut_ptr(), columns, edges, left, q_panels, dim, fetch);
                        let left = v_left.from::<K>(k0);
                        let fetch = |panel| v_rows.from(k0 + (panel + 2) * K::MR).fetch(K::MR);
                        block_scores::<K>(ds.as_mut_ptr(), columns, edges, left, g_panels, dim, fetch);
                        keys.values(k0)
                    };
                    let scores = Scores {
                        columns,
                        limits: &edges[..rows],
                        options: call.options,
                        tilt: Tilt::new(call.options, segment, n, k0, q0),
                        lse: &lse,
                        delta: &delta,
                        products: p,
                        gradients: ds,
                        thin: thinning.as_ref().map(|t| t.at(k0)),
                    };
                    let (dk, dv) = (&mut dk[k0 * dim..], &mut dv[k0 * dim..]);
                    let is_last = k0 + BK >= last;
                    scores.differentiate::<K, E>(isa, |left| {
                        block.products::<K>(k0, count, &left, k_right, dq, dk, dv, is_last);
                    });
                }
                let h = n % shape.heads_per_group;
                // SAFETY: a unit takes its own head's queries of its segment.
                let row = |i| unsafe { dq_to.part(q_heads.at(segment.q_start + q0 + i, group, h), dim) };
                let mut rows: [&mut [E]; BQ] =
                    std::array::from_fn(|i| if i < queries { row(i) } else { &mut [] });
                store_rows(isa, &mut rows[..queries], dq, &[call.options.scale; BQ]);
            }
        });
    });
}

/// A block's products of queries with keys, and of the output's gradient with values.
struct Scores<'a> {
    columns: usize,
    limits: &'a [(u32, u32)],
    options: &'a Options,
    tilt: Tilt,
    lse: &'a [f32; BQ],
    delta: &'a [f32; BQ],
    products: &'a mut [f32],
    gradients: &'a mut [f32],
    thin: Option<Thin<'a>>,
}

/// Left operands of the three products of a block: rows of probabilities, rows of gradients of scores, their columns.
struct Lefts<P> {
    p_along: Left<P>,
    ds_along: Left<P>,
    ds_down: Left<P>,
}

impl Scores<'_> {
    /// Forms probabilities and gradients of scores, which go to `p_to` and `ds_to`.
    ///
    /// With weights `w = m·p` of the values, the gradient with respect to `p` is `m` times that by `w`, and `dv` takes `w`.
    fn form<P: Write, S: Write>(&mut self, isa: Isa, p_to: P, ds_to: S) {
        let Self { columns, limits, options, tilt, lse, delta, thin, .. } = *self;
        let (p, ds) = (&mut *self.products, &mut *self.gradients);
        let Some(thin) = thin else {
            return gradient(isa, p, ds, p_to, ds_to, columns, limits, options, tilt, lse, delta);
        };
        thin_block(isa, ds, limits.len(), columns, thin);
        let p_to = Thinned { to: p_to, thin };
        gradient(isa, p, ds, p_to, ds_to, columns, limits, options, tilt, lse, delta);
    }

    /// Turns the block into probabilities and gradients of scores, and calls `work` with them as left operands.
    fn differentiate<K: Kernel, E: Element>(mut self, isa: Isa, work: impl FnOnce(Lefts<K::Packed>)) {
        if !is_bf16::<E>() {
            let (p_to, ds_to) = (body::InPlace, body::InPlace);
            self.form(isa, p_to, ds_to);
            return work(Lefts {
                p_along: Left::along::<K>(self.products.as_ptr()),
                ds_along: Left::along::<K>(self.gradients.as_ptr()),
                ds_down: Left::down::<K>(self.gradients.as_ptr()),
            });
        }
        if K::LEFT_IN_PLACE && K::TERMS == 1 {
            let left = |block: &[f32]| Left::along::<K>(block.as_ptr());
            if K::ORDER == Order::Natural {
                let (p_to, ds_to) =
                    (body::Rounded::<body::NoSwap>(PhantomData), body::Rounded::<body::NoSwap>(PhantomData));
                self.form(isa, p_to, ds_to);
                return work(Lefts {
                    p_along: left(self.products),
                    ds_along: left(self.gradients),
                    ds_down: Left::down::<K>(self.gradients.as_ptr()),
                });
            }
            return with_scratch(Scratch::Weights, BK * STRIDE, |down: &mut [f32]| {
                let (p_to, ds_to) =
                    (body::Rounded::<body::SwapColumns>(PhantomData), body::RoundedTwice(down));
                self.form(isa, p_to, ds_to);
                work(Lefts {
                    p_along: left(self.products),
                    ds_along: left(self.gradients),
                    ds_down: Left::down::<K>(down.as_ptr()),
                });
            });
        }
        let in_place = K::LEFT_IN_PLACE;
        // Two blocks of rows, and one of pairs where they are read.
        with_scratch(
            Scratch::Weights,
            BK * STRIDE + if in_place { BK / 2 * STRIDE } else { 0 },
            |room: &mut [u32]| {
                let (rows, pairs) = room.split_at_mut(BK * STRIDE);
                let (p, ds) = bytemuck::cast_slice_mut(rows).split_at_mut(BK * STRIDE);
                let p_to = body::Rows(p);
                if in_place {
                    let ds_to = body::RowsAndPairs(ds, pairs);
                    self.form(isa, p_to, ds_to);
                    return work(Lefts {
                        p_along: Left::pairs_along::<K>(p.as_ptr()),
                        ds_along: Left::pairs_along::<K>(ds.as_ptr()),
                        ds_down: Left::pairs_down::<K>(pairs.as_ptr()),
                    });
                }
                let ds_to = body::Rows(ds);
                self.form(isa, p_to, ds_to);
                let room = packed_block::<K>();
                with_scratch(Scratch::PanelsA, 3 * room, |panels: &mut [K::Packed]| {
                    let [p_along, ds_along, ds_down] = cut(panels, [room; 3]);
                    let rows =
                        |data: &[half::bf16]| Rows { data: data.as_ptr(), stride: STRIDE, dim: self.columns };
                    // SAFETY: the blocks have the rows, and panels have room for whole blocks.
                    unsafe {
                        rows(p).pack_lines::<K>(self.limits.len(), Side::Left, p_along.as_mut_ptr());
                        rows(ds).pack_lines::<K>(self.limits.len(), Side::Left, ds_along.as_mut_ptr());
                        rows(ds).pack_terms::<K>(self.limits.len(), Side::Left, ds_down.as_mut_ptr());
                    }
                    let (along, down) = (self.columns / K::TERMS, self.limits.len() / K::TERMS);
                    work(Lefts {
                        p_along: Left::packed::<K>(p_along.as_ptr(), along),
                        ds_along: Left::packed::<K>(ds_along.as_ptr(), along),
                        ds_down: Left::packed::<K>(ds_down.as_ptr(), down),
                    });
                });
            },
        );
    }
}

/// A block of queries and what it is multiplied with.
struct Block<'a, P, E> {
    mask: &'a Mask,
    q0: usize,
    queries: usize,
    q_right: Right<P>,
    g_right: Right<P>,
    /// Rows that are used or written after it.
    after: [Rows<E>; 4],
}

impl<P: Copy, E: Element> Block<'_, P, E> {
    /// Adds the block's share of the three gradients.
    fn products<K: Kernel<Packed = P>>(
        &self,
        k0: usize,
        count: usize,
        left: &Lefts<P>,
        k_right: Right<P>,
        dq: &mut [f32],
        dk: &mut [f32],
        dv: &mut [f32],
        is_last: bool,
    ) {
        let dim = k_right.dim;
        for j in (0..count).step_by(K::MR) {
            let rows = (j, K::MR.min(count - j));
            let (first, _) = self.mask.queries(k0 + j);
            let (_, end) = self.mask.queries(k0 + j + rows.1 - 1);
            let first = first.saturating_sub(self.q0);
            let end = end.saturating_sub(self.q0).min(self.queries);
            if first >= end {
                continue;
            }
            let to = |sums: &mut [f32]| (sums[j * dim..].as_mut_ptr(), dim);
            // SAFETY: dk and dv hold `count` rows from k0 on; the block holds these keys and queries.
            unsafe {
                add_rows::<K>(to(dv), true, left.p_along, rows, self.g_right, (first, end), 0);
                add_rows::<K>(to(dk), true, left.ds_along, rows, self.q_right, (first, end), 0);
            }
        }
        for i in (0..self.queries).step_by(K::MR) {
            let rows = (i, K::MR.min(self.queries - i));
            if is_last {
                self.after.into_iter().for_each(|after| after.from(i).fetch(rows.1));
            }
            let (first, end) = self.mask.keys(self.q0 + i, self.q0 + i + rows.1);
            let (first, end) = (first.max(k0), end.min(k0 + count));
            if first >= end {
                continue;
            }
            let to = (dq[i * dim..].as_mut_ptr(), dim);
            // SAFETY: dq holds the block's queries; the block holds these keys and queries.
            unsafe { add_rows::<K>(to, true, left.ds_down, rows, k_right, (first - k0, end - k0), 0) };
        }
    }
}
