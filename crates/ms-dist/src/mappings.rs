//! Tensor-parallel communication as operations of a graph.
//!
//! A model calls only [`ParallelCtx::enter_tp`] and [`ParallelCtx::leave_tp`], or layers that fuse the same communication
//! with their matrix products ([`ParallelCtx::column_parallel`], [`ParallelCtx::row_parallel`]). Groups of one rank record
//! nothing, so a model has no `if tp > 1`. Between the two calls each rank works with its own shard of the weights, and
//! gradients of replicated values are partial sums.
//!
//! # Source
//! Megatron-LM `core_r0.8.0`, `megatron/core/tensor_parallel/mappings.py`.

use crate::pending_exchange::PendingExchange;
use crate::{AxisGroup, Communicator, ParallelCtx, Pending, ReduceOp, volume};
use ms_core::shard_state::{self, InputStates, OutputState, ShardState, ShardStates};
use ms_core::{Axis, BackwardCx, Digit, Digits, Grads, Graph, Op, Result, Shape, Tensor, Var};

/// A communication applied to a value, and in the backward pass to its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    /// Nothing.
    Identity,
    /// The sum of all.
    AllReduce,
    /// All rows, in rank order.
    AllGather,
    /// This rank's rows of the sum.
    ReduceScatter,
    /// This rank's rows.
    Split,
}

impl Collective {
    pub(crate) fn apply(self, comm: &dyn Communicator, name: &'static str, t: Tensor) -> Result<Tensor> {
        Ok(self.begin(comm, name, t)?.wait()?)
    }

    /// Begins it.
    pub(crate) fn begin(self, comm: &dyn Communicator, name: &'static str, t: Tensor) -> Result<Pending> {
        let (rank, size) = (comm.rank(), comm.size());
        let rows = t.shape().first().copied().unwrap_or(0);
        let share = |t: &Tensor| -> Result<Shape> {
            volume::check_parts(name, rows, size)?;
            let mut dims = t.shape().to_vec();
            dims[0] = rows / size;
            Ok(Shape::new(&dims))
        };
        Ok(match self {
            Self::Identity => Pending::ready(t),
            Self::AllReduce => comm.all_reduce(name, t, ReduceOp::Sum)?,
            Self::AllGather => comm.all_gather(name, t)?,
            Self::ReduceScatter => {
                let shape = share(&t)?;
                let pending = comm.reduce_scatter(name, t)?;
                Pending::new(move || Ok(pending.wait()?.reshape(shape)?))
            }
            Self::Split => {
                let part = share(&t)?[0];
                Pending::ready(t.rows(rank * part, part)?)
            }
        })
    }
}

/// The sharding states of a value before and after this exchange.
fn states(forward: Collective, backward: Collective) -> Option<(ShardState, ShardState)> {
    use Collective::{AllGather, AllReduce, Identity, ReduceScatter, Split};
    Some(match (forward, backward) {
        (Identity, AllReduce) => (ShardState::Invariant, ShardState::Replicated),
        (AllReduce, Identity) => (ShardState::Partial, ShardState::Invariant),
        (AllGather, ReduceScatter) => (ShardState::Tokens, ShardState::Replicated),
        (ReduceScatter, AllGather) => (ShardState::Partial, ShardState::Tokens),
        (Split, AllGather) => (ShardState::Invariant, ShardState::Tokens),
        (AllGather, Split) => (ShardState::Tokens, ShardState::Invariant),
        _ => return None,
    })
}

struct Mapping {
    ranks: AxisGroup,
    name: &'static str,
    forward: Collective,
    backward: Collective,
}

impl Op for Mapping {
    fn name(&self) -> &'static str {
        self.name
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        let (before, after) = states(self.forward, self.backward).ok_or(shard_state::StateConflict)?;
        self.ranks.over.exchanged(along, inputs, &[before], after)
    }

    fn exchanges(&self) -> bool {
        self.ranks.overlap && !self.light()
    }

    fn light(&self) -> bool {
        matches!(self.backward, Collective::Identity | Collective::Split)
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        let Self { ranks, name, backward, .. } = *self;
        match backward {
            Collective::Identity => Ok(dys),
            Collective::Split => {
                let share = |dy: Tensor| backward.apply(&**ranks, name, dy);
                dys.into_iter().map(|dy| dy.map(share).transpose()).collect()
            }
            Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => ranks
                .exchange_gradients(cx, dys, |_, dy| {
                    Ok(PendingExchange::assembled(backward.begin(&**ranks, name, dy)?))
                }),
        }
    }
}

/// Applies an exchange to `x`, and another to its gradient. Groups of one rank record nothing.
pub(crate) fn map(
    g: &mut Graph,
    ranks: &AxisGroup,
    x: &Var,
    name: &'static str,
    (forward, backward): (Collective, Collective),
) -> Result<Var> {
    if ranks.size() == 1 {
        return Ok(x.clone());
    }
    let op = || -> Box<dyn Op> { Box::new(Mapping { ranks: ranks.clone(), name, forward, backward }) };
    if forward == Collective::Identity {
        return Ok(g.apply_through(x, op));
    }
    let y = forward.apply(&***ranks, name, x.value().clone())?;
    Ok(g.apply(y, &[x], op))
}

/// [`map`] of `x`, for which the exchange has already produced `y`.
pub(crate) fn map_received(
    g: &mut Graph,
    ranks: AxisGroup,
    (x, y): (&Var, Tensor),
    name: &'static str,
    (forward, backward): (Collective, Collective),
) -> Var {
    g.apply(y, &[x], || Box::new(Mapping { ranks, name, forward, backward }))
}

/// The exchanges for entering tensor parallelism: of the value, and of its gradient.
pub(crate) const fn enter_tp_collectives(sequence_parallel: bool) -> (Collective, Collective) {
    if sequence_parallel {
        (Collective::AllGather, Collective::ReduceScatter)
    } else {
        (Collective::Identity, Collective::AllReduce)
    }
}

/// The state rule for rows sent to the ranks of their experts, or back to those of their tokens.
pub(crate) fn sent(over: Digits, along: Digit, inputs: InputStates<'_>) -> OutputState {
    match *inputs {
        [None] => Ok(None),
        [Some(ShardState::Routed)] => {
            over.exchanged(along, inputs, &[ShardState::Routed], ShardState::Tokens)
        }
        _ => over.exchanged(along, inputs, &[ShardState::Tokens], ShardState::Routed),
    }
}

struct ExchangeRows {
    ranks: AxisGroup,
    sent: Vec<usize>,
    received: Vec<usize>,
}

impl Op for ExchangeRows {
    fn name(&self) -> &'static str {
        "exchange_rows"
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        sent(self.ranks.over, along, inputs)
    }

    fn exchanges(&self) -> bool {
        self.ranks.overlap
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        let Self { ranks, sent, received } = &*self;
        ranks.exchange_gradients(cx, dys, |_, dy| {
            Ok(PendingExchange::assembled(ranks.exchange_known_rows("exchange_rows", dy, received, sent)?))
        })
    }
}

/// Sends the next `send[r]` rows of `x[R,H]` to rank `r` and returns those received from all ranks in rank order,
/// `receive[r]` from rank `r`. Saves `receive`.
///
/// # Errors
/// If a rank fails or the rows do not add up.
pub fn exchange_rows(
    g: &mut Graph,
    ranks: &AxisGroup,
    x: &Var,
    send: &[usize],
    receive: &[usize],
) -> Result<Var> {
    if ranks.size() == 1 {
        return Ok(x.clone());
    }
    let y = ranks.exchange_known_rows("exchange_rows", x.value().clone(), send, receive)?.wait()?;
    let (sent, received) = (send.to_vec(), receive.to_vec());
    Ok(g.apply(y, &[x], || Box::new(ExchangeRows { ranks: ranks.clone(), sent, received })))
}

impl ParallelCtx {
    /// The sharding states of the residual stream between layers.
    pub fn stream_states(&self) -> ShardStates {
        let alike = if self.sequence_parallel { ShardState::Tokens } else { ShardState::Invariant };
        self.own_tokens_and(alike)
    }

    /// The sharding states of values of a rank's own heads.
    pub fn head_states(&self) -> ShardStates {
        self.own_tokens_and(ShardState::Sharded)
    }

    /// This state along tensor parallelism, sharded by tokens along other axes.
    fn own_tokens_and(&self, along_tp: ShardState) -> ShardStates {
        let of = |axis| self.digits.dense(axis);
        let tokens = ShardStates::default().with(of(Axis::Cp).or(of(Axis::Dp)), ShardState::Tokens);
        tokens.with(of(Axis::Tp), along_tp)
    }

    /// `x` as the input of column-parallel layers: all tokens, `[T,H]`. Its gradient is summed over the ranks. Under sequence
    /// parallelism `x` is a rank's shard `[T/tp,H]`.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn enter_tp(&self, g: &mut Graph, x: &Var) -> Result<Var> {
        map(g, &self.tp_group(), x, "enter_tp", enter_tp_collectives(self.sequence_parallel))
    }

    /// The sum over tensor-parallel ranks of their partial products `[T,H]`: whole, or under sequence parallelism this rank's
    /// shard `[T/tp,H]`.
    ///
    /// # Errors
    /// If a rank fails, or the tokens do not divide.
    pub fn leave_tp(&self, g: &mut Graph, y: &Var) -> Result<Var> {
        let how = if self.sequence_parallel {
            (Collective::ReduceScatter, Collective::AllGather)
        } else {
            (Collective::AllReduce, Collective::Identity)
        };
        map(g, &self.tp_group(), y, "leave_tp", how)
    }

    /// This rank's shard of the tokens of `x`, which is replicated over tensor-parallel ranks: under sequence parallelism
    /// `[T/tp,H]`, otherwise all.
    ///
    /// # Errors
    /// If a rank fails, or the tokens do not divide.
    pub fn share_tokens(&self, g: &mut Graph, x: &Var) -> Result<Var> {
        if self.sequence_parallel {
            map(g, &self.tp_group(), x, "share_tokens", (Collective::Split, Collective::AllGather))
        } else {
            Ok(x.clone())
        }
    }

    /// The sum over tensor-parallel ranks of their heads' results, without a gradient.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn sum_over_heads(&self, x: Tensor) -> Result<Tensor> {
        match self.tp.size() {
            1 => Ok(x),
            _ => Ok(Collective::AllReduce.apply(&*self.tp, "weights of heads", x)?),
        }
    }

    /// The values that [`ParallelCtx::enter_tp`] would return, without a gradient.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn all_tokens(&self, x: &Tensor) -> Result<Tensor> {
        if self.sequence_parallel && self.tp.size() > 1 {
            Ok(self.tp.all_gather("all_tokens", x.clone())?.wait()?)
        } else {
            Ok(x.clone())
        }
    }
}
