//! Overlapped exchanges: sending rows to other ranks while this one works, as two operations of a graph.
//!
//! Whatever is computed between [`InFlight::send`] or [`InFlight::gather`] and [`InFlight::arrive`] overlaps with the
//! transfer of the rows; in the backward pass, with the transfer of their gradients.

use crate::Among;
use crate::arriving::Arriving;
use crate::expert_exchange::{begin_all_rows, begin_summed_rows, gathered};
use crate::mappings::sent;
use ms_core::hold::{self, Held, Holds};
use ms_core::{BackwardCx, Digit, Digits, Grads, Graph, Op, Result, Tensor, Var};
use std::sync::{Arc, Mutex, PoisonError};

/// Starts an exchange; its result may still have to be summed.
type Begin = Box<dyn FnOnce(Tensor) -> Result<Arriving> + Send>;

/// Gradients in transit back.
type Back = Arc<Mutex<Option<Arriving>>>;

/// The kind of exchange, and the digits of its ranks.
#[derive(Clone, Copy)]
enum How {
    Sent(Digits),
    Gathered(Digits),
}

/// The first half: in the backward pass it waits.
struct Leave {
    back: Back,
    /// Whether another pass may work until then.
    stops: bool,
}

impl Op for Leave {
    fn name(&self) -> &'static str {
        "leave for other ranks"
    }

    fn hold(&self, _: Digit, inputs: Holds<'_>) -> Held {
        hold::added(inputs)
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
struct Arrive {
    back: Back,
    begin: Begin,
    beside: bool,
    mark: Tensor,
    how: How,
}

impl Op for Arrive {
    fn name(&self) -> &'static str {
        "arrive from other ranks"
    }

    fn hold(&self, along: Digit, inputs: Holds<'_>) -> Held {
        match self.how {
            How::Sent(over) => sent(over, along, inputs),
            How::Gathered(over) => gathered(over, along, inputs),
        }
    }

    fn exchanges(&self) -> bool {
        self.beside
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, mut dys: Grads) -> Result<Grads> {
        let dy = dys.swap_remove(0).expect("a backward runs only where a gradient arrived");
        let begun = (self.begin)(dy)?;
        *self.back.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        cx.work_meanwhile()?;
        Ok(vec![Some(self.mark)])
    }
}

/// Rows that are in transit.
pub struct InFlight {
    arriving: Arriving,
    /// Stands for the rows in the graph until they arrive.
    mark: Var,
    back: Back,
    begin: Begin,
    beside: bool,
    how: How,
}

impl InFlight {
    fn new(g: &mut Graph, x: &Var, (arriving, begin): (Arriving, Begin), beside: bool, how: How) -> Self {
        let stops = matches!(how, How::Sent(_));
        let back = Back::default();
        let mark = Tensor::zeros(g.device().arena(), x.value().dtype(), [0]);
        let mark = g.apply(mark, &[x], || Box::new(Leave { back: back.clone(), stops }));
        Self { arriving, mark, back, begin, beside, how }
    }

    /// Starts [`crate::exchange_rows`]. A [`ms_core::Walk`] stops at its backward, which all ranks reach, however many rows
    /// they have.
    ///
    /// # Errors
    /// If a rank failed or the rows do not add up.
    pub fn send(g: &mut Graph, ranks: &Among, x: &Var, send: &[usize], receive: &[usize]) -> Result<Self> {
        let pending = ranks.exchange_known_rows("exchange_rows", x.value().clone(), send, receive)?;
        let (comm, send, receive) = (ranks.comm.clone(), send.to_vec(), receive.to_vec());
        let begin = move |dy| {
            Ok(Arriving::as_it_is(comm.exchange_known_rows("exchange_rows", dy, &receive, &send)?))
        };
        Ok(Self::new(
            g,
            x,
            (Arriving::as_it_is(pending), Box::new(begin)),
            ranks.beside,
            How::Sent(ranks.over),
        ))
    }

    /// Starts [`crate::gather_rows`].
    ///
    /// # Errors
    /// If a rank failed or the rows do not add up.
    pub fn gather(g: &mut Graph, ranks: &Among, x: &Var, rows: &Arc<[usize]>) -> Result<Self> {
        let pending = begin_all_rows(&***ranks, "gather_rows", x.value().clone(), rows)?;
        let (comm, rows) = (ranks.comm.clone(), rows.clone());
        let begin = move |dy| begin_summed_rows(&*comm, "sum_rows", dy, &rows);
        Ok(Self::new(
            g,
            x,
            (Arriving::as_it_is(pending), Box::new(begin)),
            ranks.beside,
            How::Gathered(ranks.over),
        ))
    }

    /// The rows, once they have arrived.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn arrive(self, g: &mut Graph) -> Result<Var> {
        let device = g.device().clone();
        let y = self.arriving.wait(&device)?;
        let Self { mark, back, begin, beside, how, .. } = self;
        Ok(g.apply(y, &[&mark], || Box::new(Arrive { back, begin, beside, mark: mark.value().clone(), how })))
    }
}
