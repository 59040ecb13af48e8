//! Overlapped exchanges: sending rows to other ranks while this one works, as two operations of a graph.
//!
//! Whatever is computed between [`PendingRows::begin_exchange`] or [`PendingRows::begin_gather`] and [`PendingRows::finish`]
//! overlaps with the transfer of the rows; in the backward pass, with the transfer of their gradients.

use crate::AxisGroup;
use crate::expert_exchange::{begin_all_rows, begin_summed_rows, gathered};
use crate::mappings::sent;
use crate::pending_exchange::PendingExchange;
use ms_core::shard_state::{self, InputStates, OutputState};
use ms_core::{BackwardCx, Digit, Digits, Grads, Graph, Op, Result, Tensor, Var};
use std::sync::{Arc, Mutex, PoisonError};

/// Starts an exchange; its result may still have to be summed.
type Begin = Box<dyn FnOnce(Tensor) -> Result<PendingExchange> + Send>;

/// Gradients in transit back.
type PendingGradients = Arc<Mutex<Option<PendingExchange>>>;

/// The kind of exchange, and the digits of its ranks.
#[derive(Clone, Copy)]
enum RowExchange {
    Exchanged(Digits),
    Gathered(Digits),
}

/// The first half: in the backward pass it waits.
struct BeginRows {
    back: PendingGradients,
    /// Whether another pass may work until then.
    stops: bool,
}

impl Op for BeginRows {
    fn name(&self) -> &'static str {
        "leave for other ranks"
    }

    fn shard_state(&self, _: Digit, inputs: InputStates<'_>) -> OutputState {
        shard_state::additive(inputs)
    }

    fn waits(&self) -> bool {
        self.stops
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, _: Grads) -> Result<Grads> {
        let back = self.back.lock().unwrap_or_else(PoisonError::into_inner).take();
        let back = back.expect("the other half has begun the way back");
        Ok(vec![Some(back.wait(cx.device)?)])
    }
}

/// The second half: in the backward pass it starts the reverse exchange.
struct FinishRows {
    back: PendingGradients,
    begin: Begin,
    overlap: bool,
    placeholder: Tensor,
    kind: RowExchange,
}

impl Op for FinishRows {
    fn name(&self) -> &'static str {
        "arrive from other ranks"
    }

    fn shard_state(&self, along: Digit, inputs: InputStates<'_>) -> OutputState {
        match self.kind {
            RowExchange::Exchanged(over) => sent(over, along, inputs),
            RowExchange::Gathered(over) => gathered(over, along, inputs),
        }
    }

    fn exchanges(&self) -> bool {
        self.overlap
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, mut dys: Grads) -> Result<Grads> {
        let dy = dys.swap_remove(0).expect("a backward runs only where a gradient arrived");
        let begun = (self.begin)(dy)?;
        *self.back.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        cx.run_held_back()?;
        Ok(vec![Some(self.placeholder)])
    }
}

/// Rows that are in transit.
pub struct PendingRows {
    pending: PendingExchange,
    /// Stands for the rows in the graph until they arrive.
    placeholder: Var,
    back: PendingGradients,
    begin: Begin,
    overlap: bool,
    kind: RowExchange,
}

impl PendingRows {
    fn new(
        g: &mut Graph,
        x: &Var,
        (pending, begin): (PendingExchange, Begin),
        overlap: bool,
        kind: RowExchange,
    ) -> Self {
        let stops = matches!(kind, RowExchange::Exchanged(_));
        let back = PendingGradients::default();
        let placeholder = Tensor::zeros(g.device().arena(), x.value().dtype(), [0]);
        let placeholder = g.apply(placeholder, &[x], || Box::new(BeginRows { back: back.clone(), stops }));
        Self { pending, placeholder, back, begin, overlap, kind }
    }

    /// Starts [`crate::exchange_rows`]. A [`ms_core::BackwardPass`] stops at its backward, which all ranks reach, however many
    /// rows they have.
    ///
    /// # Errors
    /// If a rank failed or the rows do not add up.
    pub fn begin_exchange(
        g: &mut Graph,
        ranks: &AxisGroup,
        x: &Var,
        send: &[usize],
        receive: &[usize],
    ) -> Result<Self> {
        let pending = ranks.exchange_known_rows("exchange_rows", x.value().clone(), send, receive)?;
        let (comm, send, receive) = (ranks.comm.clone(), send.to_vec(), receive.to_vec());
        let begin = move |dy| {
            Ok(PendingExchange::assembled(comm.exchange_known_rows("exchange_rows", dy, &receive, &send)?))
        };
        Ok(Self::new(
            g,
            x,
            (PendingExchange::assembled(pending), Box::new(begin)),
            ranks.overlap,
            RowExchange::Exchanged(ranks.over),
        ))
    }

    /// Starts [`crate::gather_rows`].
    ///
    /// # Errors
    /// If a rank failed or the rows do not add up.
    pub fn begin_gather(g: &mut Graph, ranks: &AxisGroup, x: &Var, rows: &Arc<[usize]>) -> Result<Self> {
        let pending = begin_all_rows(&***ranks, "gather_rows", x.value().clone(), rows)?;
        let (comm, rows) = (ranks.comm.clone(), rows.clone());
        let begin = move |dy| begin_summed_rows(&*comm, "sum_rows", dy, &rows);
        Ok(Self::new(
            g,
            x,
            (PendingExchange::assembled(pending), Box::new(begin)),
            ranks.overlap,
            RowExchange::Gathered(ranks.over),
        ))
    }

    /// The rows, once they have arrived.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn finish(self, g: &mut Graph) -> Result<Var> {
        let device = g.device().clone();
        let y = self.pending.wait(&device)?;
        let Self { placeholder, back, begin, overlap, kind, .. } = self;
        Ok(g.apply(y, &[&placeholder], || {
            Box::new(FinishRows { back, begin, overlap, placeholder: placeholder.value().clone(), kind })
        }))
    }
}
