//! The blocked backward pass.
//!
//! A unit is one head of one segment. For each block of queries and keys it recomputes the scores, then
//! `dv += pᵀ·do`, `dk += dsᵀ·q` and `dq += ds·k`, all on the transposed block. With several heads per group their
//! `dk` and `dv` wait in f32 and are added in head order.

use super::blocks::{Left, Right, Rows, add_rows, lines, packed_lines, packed_terms};
use super::body::{self, BK, BQ, LANES, Limits};
use super::forward::{block_scores, head_rows, limits};
use super::mask::Mask;
use super::{Heads, Options, Segment, Tilt};
use crate::cpu::Disjoint;
use crate::isa::instances;
use crate::matmul::kernel::{Kernel, Side};
use crate::memory::{Scratch, with_scratch};
use crate::qkv::Packed;
use crate::{Cpu, Element};

instances! {
    fn gradient(
        scores: &mut [f32], dp: &mut [f32], columns: usize, limits: &[(u32, u32)], options: &Options,
        tilt: Tilt, lse: &[f32; BQ], delta: &[f32; BQ],
    ) = body::gradient;
}

/// Operands of a call whose sizes have been checked.
pub(super) struct Call<'a, E> {
    pub(super) cpu: &'a Cpu,
    pub(super) dqkv: Disjoint<'a, E>,
    pub(super) dout: &'a [E],
    pub(super) qkv: &'a [E],
    pub(super) out: &'a [E],
    pub(super) lse: &'a [f32],
    pub(super) shape: &'a Packed,
    pub(super) segments: &'a [Segment],
    pub(super) options: &'a Options,
}

/// Runs all heads.
pub(super) fn run<K: Kernel<Packed = f32>, E: Element>(call: &Call<'_, E>) {
    let shape = call.shape;
    let (heads, dim, per_group) = (shape.heads(), shape.head_dim, shape.heads_per_group);
    let shared = per_group > 1;
    // Per head and key token: dk and dv.
    let waiting = if shared { heads * shape.tokens * 2 * dim } else { 0 };
    with_scratch(Scratch::Keys, waiting, |partials: &mut [f32]| {
        let parts = Disjoint::new(partials);
        call.cpu.for_each_unit(call.segments.len() * heads, |u| {
            let (segment, n) = (&call.segments[u / heads], u % heads);
            let len = segment.k_len * dim;
            if shared {
                // SAFETY: a unit takes the keys of its segment, which no other has, for its head.
                let part = unsafe { parts.part((n * shape.tokens + segment.k_start) * 2 * dim, 2 * len) };
                let (dk, dv) = part.split_at_mut(len);
                head::<K, E>(call, segment, n, dk, dv);
            } else {
                with_scratch(Scratch::Sums, 2 * len, |part: &mut [f32]| {
                    let (dk, dv) = part.split_at_mut(len);
                    head::<K, E>(call, segment, n, dk, dv);
                    store_keys(call, segment, n, dk, dv);
                });
            }
        });
        if !shared {
            return;
        }
        call.cpu.for_each_unit(call.segments.len() * shape.groups, |u| {
            let (segment, group) = (&call.segments[u / shape.groups], u % shape.groups);
            let len = 2 * segment.k_len * dim;
            let start = |n: usize| (n * shape.tokens + segment.k_start) * 2 * dim;
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

/// Writes the gradients of a group's keys and values.
fn store_keys<E: Element>(call: &Call<'_, E>, segment: &Segment, group: usize, dk: &[f32], dv: &[f32]) {
    let (shape, dim) = (call.shape, call.shape.head_dim);
    let (k, v) = (Heads::keys(call.qkv, shape), Heads::values(call.qkv, shape));
    for (heads, sums) in [(k, dk), (v, dv)] {
        for j in 0..segment.k_len {
            // SAFETY: a unit takes the keys and values of its group in its segment.
            let row = unsafe { call.dqkv.part(heads.at(segment.k_start + j, group, 0), dim) };
            for d in 0..dim {
                row[d] = E::from_f32(sums[j * dim + d]);
            }
        }
    }
}

/// Cuts `sizes` elements off the front of a slice, one after another.
fn cut<const N: usize>(mut slice: &mut [f32], sizes: [usize; N]) -> [&mut [f32]; N] {
    sizes.map(|size| {
        let (front, rest) = std::mem::take(&mut slice).split_at_mut(size);
        slice = rest;
        front
    })
}

/// One head of one segment: `dq` goes to its place, `dk` and `dv` (`[k_len, dim]`) are overwritten.
fn head<K: Kernel<Packed = f32>, E: Element>(
    call: &Call<'_, E>,
    segment: &Segment,
    n: usize,
    dk: &mut [f32],
    dv: &mut [f32],
) {
    let (shape, dim) = (call.shape, call.shape.head_dim);
    let (group, h) = (n / shape.heads_per_group, n % shape.heads_per_group);
    let (k_len, mask) = (segment.k_len, Mask::new(segment, call.options));
    let k_rows = head_rows(&Heads::keys(call.qkv, shape), segment.k_start, group, 0, dim);
    let v_rows = head_rows(&Heads::values(call.qkv, shape), segment.k_start, group, 0, dim);
    let q_heads = Heads::queries(call.qkv, shape);
    let q_rows = head_rows(&q_heads, segment.q_start, group, h, dim);
    let width = shape.heads() * dim;
    let row = |data: &[E]| data.as_ptr().wrapping_add(segment.q_start * width + n * dim);
    let g_rows = Rows { data: row(call.dout), stride: width, dim };
    let y_rows = Rows { data: row(call.out), stride: width, dim };
    dk.fill(0.0);
    dv.fill(0.0);
    let line_panels = lines(packed_lines::<K>(k_len, Side::Left, dim));
    let term_panels = lines(packed_terms::<K>(k_len, dim));
    let q_lines = lines(packed_lines::<K>(BQ, Side::Right, dim));
    let q_terms = lines(packed_terms::<K>(BQ, dim));
    let sizes = [line_panels, line_panels, term_panels, q_lines, q_lines, q_terms, q_terms, lines(BQ * dim)];
    with_scratch(Scratch::Queries, sizes.iter().sum(), |scratch: &mut [f32]| {
        let [k_lines, v_lines, k_terms, q_panels, g_panels, q_rights, g_rights, dq] = cut(scratch, sizes);
        // SAFETY: heads were checked to lie in the arrays; the scratch has room.
        unsafe {
            k_rows.pack_lines::<K>(k_len, Side::Left, k_lines.as_mut_ptr());
            v_rows.pack_lines::<K>(k_len, Side::Left, v_lines.as_mut_ptr());
            k_rows.pack_terms::<K>(k_len, k_terms.as_mut_ptr());
        }
        with_scratch(Scratch::Scores, 2 * BK * BQ, |blocks: &mut [f32]| {
            let (p, ds) = blocks.split_at_mut(BK * BQ);
            for q0 in (0..segment.q_len).step_by(BQ) {
                let queries = BQ.min(segment.q_len - q0);
                let (g, y) = (g_rows.from(q0), y_rows.from(q0));
                let (mut lse, mut delta) = ([0f32; BQ], [0f32; BQ]);
                lse[..queries]
                    .copy_from_slice(&call.lse[n * shape.tokens + segment.q_start + q0..][..queries]);
                for (i, delta) in delta.iter_mut().enumerate().take(queries) {
                    // SAFETY: rows of the checked arrays.
                    *delta = unsafe { dot(g.from(i), y.from(i)) };
                }
                q_panels.fill(0.0);
                g_panels.fill(0.0);
                // SAFETY: as above.
                unsafe {
                    q_rows.from(q0).pack_lines::<K>(queries, Side::Right, q_panels.as_mut_ptr());
                    g.pack_lines::<K>(queries, Side::Right, g_panels.as_mut_ptr());
                    q_rows.from(q0).pack_terms::<K>(queries, q_rights.as_mut_ptr());
                    g.pack_terms::<K>(queries, g_rights.as_mut_ptr());
                }
                let block = Block {
                    mask: &mask,
                    q0,
                    queries,
                    q_right: Right { data: q_rights.as_ptr(), rows: queries, dim },
                    g_right: Right { data: g_rights.as_ptr(), rows: queries, dim },
                    k_right: Right { data: k_terms.as_ptr(), rows: k_len, dim },
                };
                dq.fill(0.0);
                let (first, last) = mask.keys(q0, q0 + queries);
                let mut edges: Limits = [(0, 0); BK];
                for k0 in (first / BK * BK..last).step_by(BK) {
                    let count = BK.min(k_len - k0);
                    limits(&mask, k0, count, q0, queries, &mut edges);
                    let edges = &edges[..count];
                    let columns = queries.next_multiple_of(LANES);
                    let panel = k0 / K::MR * packed_lines::<K>(K::MR, Side::Left, dim);
                    // SAFETY: the blocks have room for BK rows of BQ columns, and BK is a multiple of MR.
                    unsafe {
                        let keys = k_lines.as_ptr().wrapping_add(panel);
                        block_scores::<K>(p.as_mut_ptr(), columns, edges, keys, q_panels, dim);
                        let values = v_lines.as_ptr().wrapping_add(panel);
                        block_scores::<K>(ds.as_mut_ptr(), columns, edges, values, g_panels, dim);
                    }
                    let tilt = Tilt::new(call.options, segment, n, k0, q0);
                    gradient(call.cpu.isa(), p, ds, columns, edges, call.options, tilt, &lse, &delta);
                    block.products::<K>(k0, count, p, ds, dq, &mut dk[k0 * dim..], &mut dv[k0 * dim..]);
                }
                for i in 0..queries {
                    let at = q_heads.at(segment.q_start + q0 + i, group, h);
                    // SAFETY: a unit takes its own head's queries of its segment.
                    for (y, x) in unsafe { call.dqkv.part(at, dim) }.iter_mut().zip(&dq[i * dim..]) {
                        *y = E::from_f32(*x);
                    }
                }
            }
        });
    });
}

/// `Σ_d a·b` over two rows, in sixteen lanes.
///
/// # Safety
/// Both rows must be readable.
unsafe fn dot<E: Element>(a: Rows<E>, b: Rows<E>) -> f32 {
    // SAFETY: the caller's promise.
    let (a, b) =
        unsafe { (std::slice::from_raw_parts(a.data, a.dim), std::slice::from_raw_parts(b.data, b.dim)) };
    let mut acc = [0f32; 16];
    for (d, (a, b)) in a.iter().zip(b).enumerate() {
        acc[d % 16] += a.to_f32() * b.to_f32();
    }
    crate::rms_norm::lane_sum(acc)
}

/// A block of queries and what it is multiplied with.
struct Block<'a> {
    mask: &'a Mask,
    q0: usize,
    queries: usize,
    q_right: Right,
    g_right: Right,
    k_right: Right,
}

impl Block<'_> {
    /// Adds the block's share of the three gradients.
    fn products<K: Kernel<Packed = f32>>(
        &self,
        k0: usize,
        count: usize,
        p: &[f32],
        ds: &[f32],
        dq: &mut [f32],
        dk: &mut [f32],
        dv: &mut [f32],
    ) {
        let dim = self.k_right.dim;
        for j in (0..count).step_by(K::MR) {
            let rows = K::MR.min(count - j);
            let (first, _) = self.mask.queries(k0 + j);
            let (_, end) = self.mask.queries(k0 + j + rows - 1);
            let first = first.saturating_sub(self.q0);
            let end = end.saturating_sub(self.q0).min(self.queries);
            if first >= end {
                continue;
            }
            let at = j * BQ + first;
            let left = |data: &[f32]| Left { data: data[at..].as_ptr(), row_stride: BQ, step_stride: 1 };
            let to = |sums: &mut [f32]| (sums[j * dim..].as_mut_ptr(), dim);
            // SAFETY: dk and dv hold `count` rows from k0 on; the block holds these keys and queries.
            unsafe {
                add_rows::<K>(to(dv), true, left(p), rows, self.g_right, first, end);
                add_rows::<K>(to(dk), true, left(ds), rows, self.q_right, first, end);
            }
        }
        for i in (0..self.queries).step_by(K::MR) {
            let rows = K::MR.min(self.queries - i);
            let (first, end) = self.mask.keys(self.q0 + i, self.q0 + i + rows);
            let (first, end) = (first.max(k0), end.min(k0 + count));
            if first >= end {
                continue;
            }
            let left = Left { data: ds[(first - k0) * BQ + i..].as_ptr(), row_stride: 1, step_stride: BQ };
            let to = (dq[i * dim..].as_mut_ptr(), dim);
            // SAFETY: dq holds the block's queries; the block holds these keys and queries.
            unsafe { add_rows::<K>(to, true, left, rows, self.k_right, first, end) };
        }
    }
}
