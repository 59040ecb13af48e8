//! Attention over sequences shared by context-parallel ranks.
//!
//! First, neighbouring ranks exchange heads for tokens (Ulysses), so each has more tokens of fewer heads. Then the ranks of a
//! ring pass keys and values around, and each merges the attention of its queries over every block. Either step may be
//! missing. Masks follow from token positions within documents, so packed documents, windows and distance biases are correct
//! across rank boundaries.
//!
//! The backward pass visits the blocks in the same order. A block's gradient is sent to its owner as soon as it is computed,
//! and added there in the order in which ranks visit that block.

use crate::adaptive_attention::Blocks;
use crate::column_exchange::{self, ExchangeNames};
use crate::pieces::{PackedColumns, Piece, calls, packed};
use crate::{AxisGroup, Communicator, ContextParallel, HeadPartition, ParallelCtx, Pending, Result};
use ms_core::shard_state::{self, InputStates, OutputState, ShardState};
use ms_core::{
    Alibi, AttentionDropout, AttentionOptions, BackwardCx, Columns, Device, Digit, Grads, Graph, HeadLayout,
    Op, QkvRows, RingCachePolicy, Routes, Saved, Segment, Tensor, TensorSpec, Var, ops,
};
use std::sync::Arc;

/// How the tokens of a micro-batch are sharded over the ranks of a context-parallel group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSharding {
    /// The documents, in the order of the whole micro-batch.
    pub documents: Vec<Segment>,
    /// What each rank holds, in the order of its rows.
    pub pieces: Vec<Vec<Piece>>,
    /// Rows of each rank.
    pub rows: usize,
    /// Position of each token of the whole micro-batch, in its order.
    pub positions: Vec<i32>,
}

impl TokenSharding {
    /// The pieces of several ranks whose rows are concatenated.
    fn joined(&self, ranks: &[usize]) -> Vec<Piece> {
        let of = |(i, &rank): (usize, &usize)| {
            let shift = i * self.rows;
            self.pieces[rank].iter().map(move |p| Piece { row: p.row + shift, ..*p })
        };
        ranks.iter().enumerate().flat_map(of).collect()
    }

    /// Routes that bring the rows of `pieces`, which together are the whole micro-batch, into its order.
    fn in_order(&self, device: &Device, pieces: &[Piece]) -> ms_core::Result<Arc<Routes>> {
        let total: usize = self.documents.iter().map(|d| d.q_len).sum();
        device.routes("documents in order", [total, self.documents.len(), pieces.len()], &mut || {
            // The row at each place; each row is an "expert" of its own.
            let mut place_of = vec![0i32; total];
            for p in pieces {
                let first = self.documents[p.document].q_start + p.place;
                for i in 0..p.len {
                    place_of[p.row + i] = (first + i) as i32;
                }
            }
            Ok(Routes::new(&place_of, 1, total)?)
        })
    }

    /// [`TokenSharding::in_order`] for the rows of all ranks, one after the other.
    pub(crate) fn order_of_all(&self, device: &Device) -> ms_core::Result<Arc<Routes>> {
        self.in_order(device, &self.joined(&(0..self.pieces.len()).collect::<Vec<_>>()))
    }
}

/// Dropout for the queries of `pieces`; `dropout` has the random keys of the whole micro-batch, in order.
fn dropout_of(dropout: &AttentionDropout, pieces: &[Piece], sharding: &TokenSharding) -> AttentionDropout {
    let mut keys = vec![0; pieces.iter().map(|p| p.len).sum()];
    for p in pieces {
        let first = sharding.documents[p.document].q_start + p.place;
        keys[p.row..p.row + p.len].copy_from_slice(&dropout.keys[first..first + p.len]);
    }
    AttentionDropout { keys: keys.into(), ..*dropout }
}

/// [`dropout_of`] for each rank.
fn dropout_of_ranks(
    dropout: Option<&AttentionDropout>,
    ranks: &[Vec<Piece>],
    sharding: &TokenSharding,
) -> Vec<AttentionDropout> {
    dropout.into_iter().flat_map(|d| ranks.iter().map(|pieces| dropout_of(d, pieces, sharding))).collect()
}

/// The columns of keys and those of values in rows that contain both.
fn halves(h: HeadLayout) -> [Vec<Columns>; 2] {
    let (len, each) = (h.head_dim, 2 * h.head_dim);
    [0, len].map(|at| (0..h.groups).map(|g| Columns::Copy { start: g * each + at, len }).collect())
}

/// The columns of rows that contain both, from keys followed by values.
fn joined(h: HeadLayout) -> Vec<Columns> {
    let (len, all) = (h.head_dim, h.groups * h.head_dim);
    let of_group = |g| [Columns::Copy { start: g * len, len }, Columns::Copy { start: all + g * len, len }];
    (0..h.groups).flat_map(of_group).collect()
}

/// The order in which a rank of the ring visits other ranks' keys and values, and how it gets them.
struct RingSchedule<'a> {
    comm: &'a dyn Communicator,
    how: ContextParallel,
}

impl RingSchedule<'_> {
    /// Size of the window in which blocks circulate before they move on.
    fn window(&self) -> usize {
        self.how.window().clamp(1, self.comm.size())
    }

    /// The other ranks that process this rank's block at visit number `visit` of a [`RingSchedule::run`].
    fn readers(&self, visit: usize) -> Vec<usize> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        if matches!(self.how, ContextParallel::Gather) {
            return if visit == 0 { Vec::new() } else { vec![(rank + size - visit) % size] };
        }
        let w = self.window();
        let (round, step) = (visit / w, visit % w);
        let reader = (rank / w * w + round * w) % size + (rank % w + step) % w;
        if reader == rank { Vec::new() } else { vec![reader] }
    }

    /// Calls `attend(rank, keys and values of that rank)` once for every rank, around a ring in upstream's order. The next
    /// block is in transit while one is processed; if all are gathered, while the rank processes its own.
    fn run(&self, own: &Tensor, mut attend: impl FnMut(usize, &Tensor) -> Result<()>) -> Result<()> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        if matches!(self.how, ContextParallel::Gather) {
            let all = self.comm.all_gather("keys and values", own.clone())?;
            attend(rank, own)?;
            let (all, rows) = (all.wait()?, own.as_matrix().0);
            let mut others = (1..size).map(|visit| (rank + visit) % size);
            return others.try_for_each(|r| attend(r, &all.rows(r * rows, rows)?));
        }
        let w = self.window();
        let windows = size / w;
        let first = rank / w * w;
        // Inside a window to the next rank; between windows, to the rank at the same place in the next one.
        let inner = (first + (rank - first + 1) % w, first + (rank - first + w - 1) % w);
        let outer = ((rank + w) % size, (rank + size - w) % size);
        let exchange = |t: &Tensor, (to, from): (usize, usize), tag: u64| {
            self.comm.send("keys and values", t.clone(), to, tag)?;
            // A row has the same number of tokens on every rank.
            let known = (t.dtype(), t.shape());
            self.comm.recv_known("keys and values", (from, tag), known, t.arena())
        };
        let mut start = (rank, own.clone());
        for round in 0..windows {
            let next_round = (round + 1 < windows).then(|| exchange(&start.1, outer, 1)).transpose()?;
            let (mut block, mut kv) = start.clone();
            for step in 0..w {
                let next = (step + 1 < w).then(|| exchange(&kv, inner, 0)).transpose()?;
                attend(block, &kv)?;
                if let Some(next) = next {
                    let begin = block / w * w;
                    (block, kv) = (begin + (block - begin + w - 1) % w, next.wait()?);
                }
            }
            if let Some(next) = next_round {
                start = ((start.0 + size - w) % size, next.wait()?);
            }
        }
        Ok(())
    }
}

/// The saved blocks of a ring, in the order of visits, with their ranks; `None`: this rank's own.
type Kept = Vec<(usize, Option<Tensor>)>;

struct RingAttention {
    ranks: AxisGroup,
    how: ContextParallel,
    /// What each rank of the ring holds.
    pieces: Vec<Vec<Piece>>,
    heads: HeadLayout,
    options: AttentionOptions,
    /// Of the queries of each rank; empty: none.
    dropout: Vec<AttentionDropout>,
    qkv: Saved,
    out: Saved,
    lse: Tensor,
    /// What is saved of the keys and values of other ranks.
    cache: RingCachePolicy,
    /// Of each block.
    kept: Kept,
    /// Type and shape of the parameter, and its values.
    sinks: Option<(TensorSpec, Tensor)>,
}

impl RingAttention {
    /// Output `[T,N·D]` of the type of `qkv`, log-sum-exp `[N,T]`, and what `cache` saves of the visited blocks.
    fn forward(
        device: &Device,
        schedule: &RingSchedule<'_>,
        pieces: &[Vec<Piece>],
        qkv: &Tensor,
        heads: HeadLayout,
        options: &AttentionOptions,
        dropout: Option<&AttentionDropout>,
        cache: RingCachePolicy,
    ) -> Result<(Tensor, Tensor, Kept)> {
        let (tokens, width) = (qkv.as_matrix().0, heads.heads() * heads.head_dim);
        let columns = PackedColumns::new(heads);
        let wide = qkv.dtype().wide();
        let mut out = Tensor::zeros(device.arena(), wide, [tokens, width]);
        let none = vec![f64::NEG_INFINITY; heads.heads() * tokens];
        let mut lse = Tensor::from_reals(device.arena(), wide, [heads.heads(), tokens], &none)?;
        let (q, own) = (device.columns(qkv, &columns.q)?, device.columns(qkv, &columns.kv)?);
        let (rank, mut kept) = (schedule.comm.rank(), Vec::new());
        schedule.run(&own, |block, kv| {
            match cache {
                RingCachePolicy::Nothing => {}
                _ if block == rank => kept.push((block, None)),
                RingCachePolicy::Keys => kept.push((block, Some(device.columns(kv, &halves(heads)[0])?))),
                // A copy: the received tensor may be part of a gathered one, or the memory of the thread that sent it.
                RingCachePolicy::KeysAndValues => {
                    let len = kv.as_matrix().1;
                    kept.push((block, Some(device.columns(kv, &[Columns::Copy { start: 0, len }])?)));
                }
            }
            let rows = QkvRows::Apart { q: &q, kv };
            for segments in calls(&pieces[rank], &pieces[block], options) {
                let (part, part_lse) = device.attention(rows, heads, &segments, options, dropout)?;
                device.attention_merge(&mut out, &mut lse, &part, &part_lse)?;
            }
            Ok(())
        })?;
        Ok((device.cast(&out, qkv.dtype())?, lse, kept))
    }

    /// [`RingSchedule::run`] for the backward pass, in the same order, with the saved blocks.
    fn visit_again(
        &self,
        device: &Device,
        own: &Tensor,
        mut attend: impl FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<()> {
        let schedule = RingSchedule { comm: &**self.ranks, how: self.how };
        match self.cache {
            RingCachePolicy::Nothing => schedule.run(own, attend),
            RingCachePolicy::KeysAndValues => {
                self.kept.iter().try_for_each(|(block, kv)| attend(*block, kv.as_ref().unwrap_or(own)))
            }
            RingCachePolicy::Keys => {
                let [_, values] = halves(self.heads);
                let mut kept = self.kept.iter();
                schedule.run(&device.columns(own, &values)?, |block, values| match kept.next() {
                    Some((_, Some(keys))) => {
                        let both = device.concat(&[keys, values])?;
                        attend(block, &device.columns(&both, &joined(self.heads))?)
                    }
                    _ => attend(block, own),
                })
            }
        }
    }

    fn blocks<'a>(&'a self, device: &'a Device) -> Blocks<'a> {
        let Self { ranks, pieces, heads, options, dropout, .. } = self;
        Blocks { comm: &***ranks, arena: device.arena(), pieces, heads: *heads, options, dropout }
    }

    /// Gradient of the packed rows.
    fn gradient(&self, device: &Device, dout: &Tensor, out: &Tensor) -> Result<Tensor> {
        let qkv = self.qkv.get(device)?;
        if matches!(self.how, ContextParallel::Adaptive { .. }) {
            let (dq, dkv) = self.blocks(device).gradient(device, &qkv, (dout, out, &self.lse))?;
            return Ok(device.cast(&packed(device, self.heads, &dq, &dkv)?, qkv.dtype())?);
        }
        let (rank, wide) = (self.ranks.rank(), qkv.dtype().wide());
        let columns = PackedColumns::new(self.heads);
        let (q, own) = (device.columns(&qkv, &columns.q)?, device.columns(&qkv, &columns.kv)?);
        let add = |sum: &mut Option<Tensor>, x: Tensor| -> ms_core::Result<()> {
            match sum {
                None => *sum = Some(x),
                Some(sum) => device.add_assign(sum, &x)?,
            }
            Ok(())
        };
        let shape = [own.as_matrix().0, own.as_matrix().1];
        let zeros = || Tensor::zeros(device.arena(), wide, shape);
        let schedule = RingSchedule { comm: &**self.ranks, how: self.how };
        let name = "gradients of keys and values";
        let receive = |parts: Vec<Pending>, sum: &mut Option<Tensor>| -> Result<()> {
            parts.into_iter().try_for_each(|part| Ok(add(sum, part.wait()?)?))
        };
        // The gradient of this rank's own block, to which those from other ranks are added in ring order; the ones of a visit
        // arrive while the next is computed.
        let (mut dq, mut sum, mut coming, mut visit) = (None, None, Vec::new(), 0);
        self.visit_again(device, &own, |block, kv| {
            let rows = QkvRows::Apart { q: &q, kv };
            let mut dkv = None;
            for segments in calls(&self.pieces[rank], &self.pieces[block], &self.options) {
                let d = device.attention_backward(
                    dout,
                    rows,
                    out,
                    &self.lse,
                    self.heads,
                    &segments,
                    &self.options,
                    self.dropout.get(rank),
                )?;
                for (sum, d) in [&mut dq, &mut dkv].into_iter().zip(d.into_parts()) {
                    add(sum, device.cast(&d, wide)?)?;
                }
            }
            let dkv = dkv.unwrap_or_else(zeros);
            if block == rank {
                sum = Some(dkv);
            } else {
                self.ranks.send(name, dkv, block, 2)?;
            }
            let what = || (wide, shape.into());
            let readers = schedule.readers(visit).into_iter();
            let next = readers.map(|from| self.ranks.recv_known(name, (from, 2), what(), device.arena()));
            let next = next.collect::<Result<Vec<Pending>>>()?;
            visit += 1;
            receive(std::mem::replace(&mut coming, next), &mut sum)
        })?;
        receive(coming, &mut sum)?;
        let dq = match dq {
            Some(dq) => dq,
            None => Tensor::zeros(device.arena(), wide, [shape[0], self.heads.heads() * self.heads.head_dim]),
        };
        let dkv = sum.unwrap_or_else(zeros);
        Ok(device.cast(&packed(device, self.heads, &dq, &dkv)?, qkv.dtype())?)
    }
}

impl Op for RingAttention {
    fn name(&self) -> &'static str {
        "ring_attention"
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        let over = self.ranks.over;
        // Keys and values of the others arrive around the ring.
        let seen = usize::from(!over.contains(along));
        over.exchanged(along, &inputs[..1], &[ShardState::Tokens], ShardState::Tokens)?;
        shard_state::token_mixing(along, inputs, 0..seen)
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, mut dys: Grads) -> ms_core::Result<Grads> {
        let dout = dys.swap_remove(0).expect("a backward runs only where a gradient arrived");
        let out = self.out.get(cx.device)?;
        let dqkv = self.gradient(cx.device, &dout, &out)?;
        let Self { lse, sinks, .. } = *self;
        let dsinks = match sinks {
            Some((param, values)) => cx.weight_gradient(1, param, move |device, grad| {
                device.attention_sinks_backward(grad, &dout, &out, &lse, &values)
            })?,
            None => None,
        };
        Ok(vec![Some(dqkv), dsinks])
    }
}

/// Attention of prepared packed rows `qkv[T,(N+2G)D]` of a rank's tokens over the whole sequences that the ranks of a
/// context-parallel group share: `[T,N·D]`. `sinks[N]` is one extra score per head. Saves rows, output and log-sum-exp.
/// `dropout` has the random keys of the whole micro-batch, in order. `layer` is the number of the layer: for some layers the
/// keys and values of other ranks are saved ([`ParallelCtx::ring_cache`]).
///
/// # Errors
/// If a rank fails, or heads do not divide among the ranks that exchange them.
pub fn context_attention(
    g: &mut Graph,
    ctx: &ParallelCtx,
    qkv: &Var,
    heads: HeadLayout,
    sinks: Option<&Var>,
    sharding: &TokenSharding,
    options: AttentionOptions,
    dropout: Option<AttentionDropout>,
    layer: usize,
) -> Result<Var> {
    let cache = ctx.ring_cache.of_layer(layer);
    let u = ctx.ulysses.size();
    if u == 1 {
        let ranks: Vec<Vec<Piece>> = sharding.pieces.clone();
        let dropout = dropout_of_ranks(dropout.as_ref(), &ranks, sharding);
        return ring(g, ctx, qkv, heads, sinks, ranks, options, dropout, cache);
    }
    let shares = HeadPartition::new(heads, u);
    let (own, each) = (shares.own, shares.own.heads());
    let columns = |r: std::ops::Range<usize>| Columns::Copy { start: r.start, len: r.len() };
    let runs: Vec<Columns> = (0..u).flat_map(|rank| shares.packed(rank)).map(columns).collect();
    let sinks = sinks.map(|s| ops::part(g, s, ctx.ulysses.rank() * each, [each])).transpose()?;
    let options = AttentionOptions {
        alibi: options.alibi.map(|a| Alibi { first: a.first + ctx.ulysses.rank() * each, ..a }),
        ..options
    };
    let dropout =
        dropout.map(|d| AttentionDropout { first_head: d.first_head + ctx.ulysses.rank() * each, ..d });
    let apart = ops::columns(g, qkv, &runs.into())?;
    let gathered = exchange(g, &ctx.ulysses_group(), &apart, false)?;
    // The ranks that exchange heads are neighbours: ring rank `i` and its Ulysses ranks hold `i·u .. (i+1)·u`.
    let ring_size = ctx.ring.size();
    let of_ring: Vec<Vec<Piece>> =
        (0..ring_size).map(|i| sharding.joined(&(i * u..(i + 1) * u).collect::<Vec<_>>())).collect();
    let out = match ring_size {
        1 => {
            let order = sharding.in_order(g.device(), &of_ring[0])?;
            let rows = ops::dispatch(g, &gathered, &order)?;
            let documents: Arc<[Segment]> = sharding.documents.as_slice().into();
            let out = ops::attention(g, &rows, own, sinks.as_ref(), &documents, options, dropout)?;
            ops::restore(g, &out, &order)?
        }
        _ => {
            let dropout = dropout_of_ranks(dropout.as_ref(), &of_ring, sharding);
            ring(g, ctx, &gathered, own, sinks.as_ref(), of_ring, options, dropout, cache)?
        }
    };
    exchange(g, &ctx.ulysses_group(), &out, true)
}

/// Columns of a rank's tokens `[T, n·W]`, those of each of the `n` context-parallel ranks side by side, as this rank's
/// columns of all tokens in the order of their sequences, `[n·T, W]`: as a recurrent mixer needs them.
///
/// # Errors
/// If a rank fails.
pub fn to_sequences(g: &mut Graph, ctx: &ParallelCtx, x: &Var, sharding: &TokenSharding) -> Result<Var> {
    let order = sharding.order_of_all(g.device())?;
    let all = exchange(g, &ctx.cp_group(), x, false)?;
    Ok(ops::dispatch(g, &all, &order)?)
}

/// The inverse of [`to_sequences`]: `[n·T, W]` to `[T, n·W]`.
///
/// # Errors
/// If a rank fails.
pub fn to_shares(g: &mut Graph, ctx: &ParallelCtx, y: &Var, sharding: &TokenSharding) -> Result<Var> {
    let order = sharding.order_of_all(g.device())?;
    let all = ops::restore(g, y, &order)?;
    exchange(g, &ctx.cp_group(), &all, true)
}

fn exchange(g: &mut Graph, ranks: &AxisGroup, x: &Var, back: bool) -> Result<Var> {
    let names = ExchangeNames { forward: "heads for tokens", backward: "tokens for heads" };
    column_exchange::exchange(g, ranks, x, names, back)
}

fn ring(
    g: &mut Graph,
    ctx: &ParallelCtx,
    qkv: &Var,
    heads: HeadLayout,
    sinks: Option<&Var>,
    pieces: Vec<Vec<Piece>>,
    options: AttentionOptions,
    dropout: Vec<AttentionDropout>,
    cache: RingCachePolicy,
) -> Result<Var> {
    let device = g.device().clone();
    let comm = &ctx.ring;
    let schedule = RingSchedule { comm: &**comm, how: ctx.context };
    let (mut out, mut lse, kept) = match ctx.context {
        ContextParallel::Adaptive { .. } => {
            let (pieces, options, dropout) = (&pieces[..], &options, &dropout[..]);
            let blocks = Blocks { comm: &**comm, arena: device.arena(), pieces, heads, options, dropout };
            let (out, lse) = blocks.forward(&device, qkv.value())?;
            (device.cast(&out, qkv.value().dtype())?, lse, Vec::new())
        }
        _ => {
            let dropout = dropout.get(comm.rank());
            RingAttention::forward(&device, &schedule, &pieces, qkv.value(), heads, &options, dropout, cache)?
        }
    };
    let values = ops::join_sinks(&device, &mut out, &mut lse, sinks.map(Var::value))?;
    let none = g.constant(out.clone());
    let [out] = g.apply_keeping([out], &[qkv, sinks.unwrap_or(&none)], |[out]| {
        Box::new(RingAttention {
            ranks: ctx.ring_group(),
            how: ctx.context,
            pieces,
            heads,
            options,
            dropout,
            qkv: qkv.saved(),
            out: out.saved(),
            lse,
            cache,
            kept,
            sinks: sinks.map(|s| s.value().into()).zip(values),
        })
    });
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fabric as _;
    use crate::threads;

    /// What ranks visit is what plans print, and each knows who meets its block when.
    #[test]
    fn blocks_are_visited_in_the_order_that_is_planned() {
        let ring = |window| ContextParallel::Ring { window };
        for (size, how) in [(4, ring(1)), (4, ring(2)), (6, ring(3)), (3, ContextParallel::Gather)] {
            let visited = threads::run(size, |fabric| -> ms_core::Result<_> {
                let comm = fabric.group(&(0..size).collect::<Vec<_>>())?;
                let schedule = RingSchedule { comm: &*comm, how };
                let own = Tensor::from_slice(&ms_core::Arena::default(), [1, 1], &[comm.rank() as f64])?;
                let mut order = Vec::new();
                schedule.run(&own, |block, kv| {
                    assert_eq!(kv.as_slice::<f64>()?, [block as f64]);
                    order.push(block);
                    Ok(())
                })?;
                Ok((order, (0..size).map(|visit| schedule.readers(visit)).collect::<Vec<_>>()))
            })
            .unwrap();
            let orders: Vec<&Vec<usize>> = visited.iter().map(|(order, _)| order).collect();
            assert_eq!(orders, how.kv_order(size).unwrap().iter().collect::<Vec<_>>(), "{how:?}");
            for (rank, (_, readers)) in visited.iter().enumerate() {
                for (visit, readers) in readers.iter().enumerate() {
                    let meets = |other: &usize| *other != rank && orders[*other][visit] == rank;
                    assert_eq!(
                        *readers,
                        (0..size).filter(meets).collect::<Vec<_>>(),
                        "{how:?} {rank} {visit}"
                    );
                }
            }
        }
    }
}
