//! All-to-all between tokens and columns: each rank has either all columns of its own tokens, or its own columns of all
//! ranks' tokens.

use crate::pending_exchange::PendingExchange;
use crate::{AxisGroup, Communicator, Result};
use ms_core::shard_state::{InputStates, OutputState, ShardState};
use ms_core::{BackwardCx, Columns, Device, Digit, Grads, Graph, Op, Tensor, Var};

/// The names of the two directions of an exchange.
#[derive(Clone, Copy)]
pub(crate) struct ExchangeNames {
    pub(crate) forward: &'static str,
    pub(crate) backward: &'static str,
}

/// Moves between "this rank's tokens, all columns" `[T, n·W]`, the columns of each destination side by side, and "the tokens of
/// all ranks, this rank's columns" `[n·T, W]`.
struct ColumnExchange {
    ranks: AxisGroup,
    names: ExchangeNames,
    back: bool,
}

fn to_columns(
    device: &Device,
    comm: &dyn Communicator,
    name: &'static str,
    x: &Tensor,
) -> ms_core::Result<PendingExchange> {
    let (n, (rows, width)) = (comm.size(), x.as_matrix());
    let w = width / n;
    let mut stacked = Tensor::uninit(device.arena(), x.dtype(), [n * rows, w]);
    for j in 0..n {
        stacked.put(j * rows * w, &device.columns(x, &[Columns::Copy { start: j * w, len: w }])?)?;
    }
    Ok(PendingExchange::assembled(comm.all_to_all(name, stacked)?))
}

fn to_tokens(comm: &dyn Communicator, name: &'static str, x: &Tensor) -> ms_core::Result<PendingExchange> {
    let n = comm.size();
    let rows = x.as_matrix().0 / n;
    let finish = move |device: &Device, stacked: Tensor| {
        let parts = (0..n).map(|j| stacked.rows(j * rows, rows)).collect::<ms_core::Result<Vec<_>>>()?;
        device.concat(&parts.iter().collect::<Vec<_>>())
    };
    Ok(PendingExchange { pending: comm.all_to_all(name, x.clone())?, finish: Box::new(finish) })
}

impl ColumnExchange {
    fn begin(&self, device: &Device, x: &Tensor, back: bool) -> ms_core::Result<PendingExchange> {
        if back {
            to_tokens(&**self.ranks, self.names.backward, x)
        } else {
            to_columns(device, &**self.ranks, self.names.forward, x)
        }
    }
}

impl Op for ColumnExchange {
    fn name(&self) -> &'static str {
        self.names.forward
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        let (before, after) = if self.back {
            (ShardState::Sharded, ShardState::Tokens)
        } else {
            (ShardState::Tokens, ShardState::Sharded)
        };
        self.ranks.over.exchanged(along, inputs, &[before], after)
    }

    fn exchanges(&self) -> bool {
        self.ranks.overlap
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> ms_core::Result<Grads> {
        // The gradient goes in the opposite direction.
        self.ranks.exchange_gradients(cx, dys, |device, dy| self.begin(device, &dy, !self.back))
    }
}

/// A rank's tokens with the columns of all ranks side by side, `[T, n·W]`, as this rank's columns of all ranks' tokens,
/// `[n·T, W]`, in rank order; or, with `back`, the reverse.
///
/// # Errors
/// If a rank fails, or the columns or tokens do not divide.
pub(crate) fn exchange(
    g: &mut Graph,
    ranks: &AxisGroup,
    x: &Var,
    names: ExchangeNames,
    back: bool,
) -> Result<Var> {
    let op = ColumnExchange { ranks: ranks.clone(), names, back };
    let device = g.device().clone();
    let y = op.begin(&device, x.value(), back)?.wait(&device)?;
    Ok(g.apply(y, &[x], || Box::new(op)))
}
