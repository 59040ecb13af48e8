//! Expert-parallel communication as operations of a graph.
//!
//! A model calls [`ParallelCtx::enter_experts`] and [`ParallelCtx::leave_experts`], just as it calls the pair for dense
//! layers. Which tokens and columns are present between the two, and who routes which tokens, follows from the
//! [`Dispatcher`].

use crate::column_exchange::{self, ExchangeNames};
use crate::mappings::{Collective, map};
use crate::pending_exchange::PendingExchange;
use crate::{AxisGroup, Communicator, ParallelCtx, Pending, volume};
use ms_core::shard_state::{InputStates, OutputState, ShardState, ShardStates};
use ms_core::{
    BackwardCx, Columns, Device, Digit, Digits, Dispatcher, Grads, Graph, Op, Result, Tensor, Var, ops,
};
use std::ops::Range;
use std::sync::Arc;

/// The tensors of all ranks, concatenated along the first dimension, `rows[r]` from rank `r`, without a gradient.
///
/// # Errors
/// If a rank fails or the rows do not add up.
pub fn all_rows(comm: &dyn Communicator, name: &'static str, t: Tensor, rows: &[usize]) -> Result<Tensor> {
    Ok(begin_all_rows(comm, name, t, rows)?.wait()?)
}

/// Begins [`all_rows`].
///
/// # Errors
/// If a rank failed or the rows do not add up.
pub fn begin_all_rows(
    comm: &dyn Communicator,
    name: &'static str,
    t: Tensor,
    rows: &[usize],
) -> Result<Pending> {
    if rows.iter().all(|&n| n == rows[0]) {
        return Ok(comm.all_gather(name, t)?);
    }
    let (size, mine) = (comm.size(), t.shape().first().copied().unwrap_or(0));
    let mut dims = t.shape().to_vec();
    dims[0] = size * mine;
    let mut each = Tensor::uninit(t.arena(), t.dtype(), dims.as_slice());
    for rank in 0..size {
        each.put(rank * t.numel(), &t)?;
    }
    Ok(comm.all_to_all_rows(name, each, &vec![mine; size])?)
}

/// Starts the reduce-scatter of all ranks' `t`, in which rank `r` gets the next `rows[r]` rows. Added in rank order,
/// unrounded.
pub(crate) fn begin_summed_rows(
    comm: &dyn Communicator,
    name: &'static str,
    t: Tensor,
    rows: &[usize],
) -> Result<PendingExchange> {
    let (mine, width, size) = (rows[comm.rank()], t.as_matrix().1, comm.size());
    if rows.iter().all(|&n| n == rows[0]) {
        let pending = comm.reduce_scatter(name, t)?;
        return Ok(PendingExchange { pending, finish: Box::new(move |_, sum| sum.reshape([mine, width])) });
    }
    let dtype = t.dtype();
    let pending = comm.all_to_all_rows(name, t, rows)?;
    let finish = move |device: &Device, parts: Tensor| -> Result<Tensor> {
        let mut sum = device.cast(&parts.rows(0, mine)?, dtype.wide())?;
        for rank in 1..size {
            sum = device.add(&sum, &device.cast(&parts.rows(rank * mine, mine)?, dtype.wide())?)?;
        }
        device.cast(&sum, dtype)
    };
    Ok(PendingExchange { pending, finish: Box::new(finish) })
}

/// The state rule for gathered rows, or columns of rows.
pub(crate) fn gathered(over: Digits, along: Digit, inputs: InputStates<'_>) -> OutputState {
    over.exchanged(along, inputs, &[ShardState::Tokens, ShardState::Sharded], ShardState::Replicated)
}

struct RowsOfAll {
    ranks: AxisGroup,
    rows: Arc<[usize]>,
    names: ExchangeNames,
    /// Whether the rows were gathered, so that gradients are summed.
    gathered: bool,
}

impl RowsOfAll {
    fn begin(&self, t: Tensor, gather: bool) -> Result<PendingExchange> {
        if gather {
            Ok(PendingExchange::assembled(begin_all_rows(&**self.ranks, self.names.forward, t, &self.rows)?))
        } else {
            begin_summed_rows(&**self.ranks, self.names.backward, t, &self.rows)
        }
    }
}

impl Op for RowsOfAll {
    fn name(&self) -> &'static str {
        if self.gathered { self.names.forward } else { self.names.backward }
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        if self.gathered {
            gathered(self.ranks.over, along, inputs)
        } else {
            self.ranks.over.exchanged(along, inputs, &[ShardState::Partial], ShardState::Tokens)
        }
    }

    fn exchanges(&self) -> bool {
        self.ranks.overlap
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        self.ranks.exchange_gradients(cx, dys, |_, dy| self.begin(dy, !self.gathered))
    }
}

fn rows_of_all(
    g: &mut Graph,
    ranks: &AxisGroup,
    x: &Var,
    rows: &Arc<[usize]>,
    gathered: bool,
) -> Result<Var> {
    if ranks.size() == 1 {
        return Ok(x.clone());
    }
    if rows.iter().all(|&n| n == 0) {
        // No rank has a row of it.
        return Ok(x.clone().with_shard_states(ShardStates::default()));
    }
    let names = ExchangeNames { forward: "gather_rows", backward: "sum_rows" };
    let op = RowsOfAll { ranks: ranks.clone(), rows: rows.clone(), names, gathered };
    let y = op.begin(x.value().clone(), gathered)?.wait(g.device())?;
    Ok(g.apply(y, &[x], || Box::new(op)))
}

/// The rows of all ranks in rank order; rank `r` brings `rows[r]`. Gradients are summed over the ranks.
///
/// # Errors
/// If a rank fails or the rows do not add up.
pub fn gather_rows(g: &mut Graph, ranks: &AxisGroup, x: &Var, rows: &Arc<[usize]>) -> Result<Var> {
    rows_of_all(g, ranks, x, rows, true)
}

/// This rank's rows of the sum over the ranks of `x`, which has `rows[r]` rows for rank `r`: the inverse of [`gather_rows`].
///
/// # Errors
/// If a rank fails or the rows do not add up.
pub fn sum_rows(g: &mut Graph, ranks: &AxisGroup, x: &Var, rows: &Arc<[usize]>) -> Result<Var> {
    rows_of_all(g, ranks, x, rows, false)
}

const COLUMNS: ExchangeNames =
    ExchangeNames { forward: "tokens for columns", backward: "columns for tokens" };

impl ParallelCtx {
    /// Whether experts are sharded like dense layers, so that ranks that share a matrix also share every expert.
    fn experts_like_dense(&self) -> bool {
        self.etp.size() == self.tp.size()
    }

    /// Whether tensor-parallel ranks contribute the same tokens to an exchange with experts; each then selects and places
    /// columns locally.
    fn alike(&self) -> bool {
        self.experts_like_dense() && !self.sequence_parallel
    }

    /// Whether ranks that share an expert are not all in one tensor-parallel group: each then routes its own tokens, and with
    /// an all-gather, the tokens of all ranks that together hold the experts are gathered.
    pub fn experts_across_dense(&self) -> bool {
        !self.tp.size().is_multiple_of(self.etp.size())
    }

    /// This rank's share of the tokens of `x`.
    fn own_tokens(&self, g: &mut Graph, x: &Var) -> Result<Var> {
        if self.sequence_parallel {
            Ok(x.clone())
        } else {
            map(g, &self.tp_group(), x, "share_tokens", (Collective::Split, Collective::AllGather))
        }
    }

    /// The inverse of [`ParallelCtx::own_tokens`].
    fn all_own_tokens(&self, g: &mut Graph, y: &Var) -> Result<Var> {
        if self.sequence_parallel {
            Ok(y.clone())
        } else {
            map(g, &self.tp_group(), y, "all_tokens", (Collective::AllGather, Collective::Split))
        }
    }

    /// `x` as input of routers and experts. With an all-gather dispatcher, all tokens of the ranks that share an expert; if
    /// experts are sharded less than dense layers, or ranks send their own tokens, each tensor-parallel rank first takes its
    /// share of the tokens. Gradients with respect to replicated weights are partial sums.
    ///
    /// # Errors
    /// If a rank fails, or the tokens do not divide.
    pub fn enter_experts(&self, g: &mut Graph, x: &Var) -> Result<Var> {
        match self.dispatcher {
            Dispatcher::AllGather if self.experts_like_dense() => self.enter_tp(g, x),
            Dispatcher::AllGather if self.experts_across_dense() => self.own_tokens(g, x),
            Dispatcher::AllGather => {
                let own = self.own_tokens(g, x)?;
                map(
                    g,
                    &self.etp_group(),
                    &own,
                    "enter_experts",
                    (Collective::AllGather, Collective::ReduceScatter),
                )
            }
            Dispatcher::AllToAllSeq if self.alike() => self.enter_tp(g, x),
            Dispatcher::AllToAll | Dispatcher::AllToAllSeq => self.own_tokens(g, x),
        }
    }

    /// The inverse of [`ParallelCtx::enter_experts`]. With an all-gather dispatcher, partial products of the ranks that share
    /// an expert are summed.
    ///
    /// # Errors
    /// If a rank fails, or the tokens do not divide.
    pub fn leave_experts(&self, g: &mut Graph, y: &Var) -> Result<Var> {
        match self.dispatcher {
            Dispatcher::AllGather if self.experts_like_dense() => self.leave_tp(g, y),
            Dispatcher::AllGather if self.experts_across_dense() => self.all_own_tokens(g, y),
            Dispatcher::AllGather => {
                let y = map(
                    g,
                    &self.etp_group(),
                    y,
                    "leave_experts",
                    (Collective::ReduceScatter, Collective::AllGather),
                )?;
                self.all_own_tokens(g, &y)
            }
            Dispatcher::AllToAllSeq if self.alike() => self.leave_tp(g, y),
            Dispatcher::AllToAll | Dispatcher::AllToAllSeq => self.all_own_tokens(g, y),
        }
    }

    /// How many tensor-parallel ranks route the same tokens.
    pub fn router_copies(&self) -> usize {
        self.dispatcher.router_copies(self.tp.size(), self.etp.size())
    }

    /// `copies` neighbouring ranks' share of `0..tokens`.
    fn share_of(&self, copies: usize, tokens: usize) -> Range<usize> {
        let tp = self.tp.size();
        if copies == tp {
            return 0..tokens;
        }
        let part = tokens / tp;
        let first = self.tp.rank() / copies * copies * part;
        first..first + copies * part
    }

    /// Which of the tokens `0..tokens` of a batch this rank routes.
    pub fn routed_tokens(&self, tokens: usize) -> Range<usize> {
        self.share_of(self.router_copies(), tokens)
    }

    /// The tokens out of `0..tokens` of a batch for which this rank's router computes logits, before
    /// [`ParallelCtx::all_logits`].
    pub fn router_tokens(&self, tokens: usize) -> Range<usize> {
        if self.dispatcher == Dispatcher::AllToAllSeq && !self.alike() {
            self.share_of(1, tokens)
        } else {
            self.routed_tokens(tokens)
        }
    }

    /// The logits of all tokens that this rank routes, gathered from those that each rank has computed.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn all_logits(&self, g: &mut Graph, logits: &Var) -> Result<Var> {
        if self.dispatcher == Dispatcher::AllToAllSeq && !self.alike() {
            map(
                g,
                &self.etp_group(),
                logits,
                "router logits",
                (Collective::AllGather, Collective::ReduceScatter),
            )
        } else {
            Ok(logits.clone())
        }
    }

    /// The columns, for the tokens that this rank routes, of the result of [`ParallelCtx::enter_experts`]: `[T,H]` to
    /// `[T,H/t]` where `t` ranks exchange tokens for columns, else all.
    ///
    /// # Errors
    /// If a rank fails, or columns do not divide.
    pub fn expert_columns(&self, g: &mut Graph, x: &Var) -> Result<Var> {
        let ranks = self.etp.size();
        if self.dispatcher != Dispatcher::AllToAllSeq || ranks == 1 {
            return Ok(x.clone());
        }
        let width = x.value().as_matrix().1;
        volume::check_parts(COLUMNS.forward, width, ranks)?;
        if self.alike() {
            let len = width / ranks;
            let own = ops::columns(g, x, &[Columns::Copy { start: self.etp.rank() * len, len }].into())?;
            return Ok(own.resharded(
                "own columns",
                self.etp_group().over,
                ShardState::Replicated,
                ShardState::Sharded,
            ));
        }
        Ok(column_exchange::exchange(g, &self.etp_group(), x, COLUMNS, false)?)
    }

    /// The inverse of [`ParallelCtx::expert_columns`], for [`ParallelCtx::leave_experts`].
    ///
    /// # Errors
    /// If a rank fails.
    pub fn whole_rows(&self, g: &mut Graph, y: &Var) -> Result<Var> {
        let (rank, ranks) = (self.etp.rank(), self.etp.size());
        if self.dispatcher != Dispatcher::AllToAllSeq || ranks == 1 {
            return Ok(y.clone());
        }
        if self.alike() {
            let len = y.value().as_matrix().1;
            let place = [
                Columns::Zero { len: rank * len },
                Columns::Copy { start: 0, len },
                Columns::Zero { len: (ranks - 1 - rank) * len },
            ];
            // A part padded with zeros is a partial sum of the whole.
            let placed = ops::columns(g, y, &place.into())?;
            return Ok(placed.resharded(
                "columns among zeros",
                self.etp_group().over,
                ShardState::Sharded,
                ShardState::Partial,
            ));
        }
        Ok(column_exchange::exchange(g, &self.etp_group(), y, COLUMNS, true)?)
    }
}
