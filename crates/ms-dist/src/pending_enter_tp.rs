//! Asynchronous entry into tensor parallelism: values are gathered while the rank computes something else.
//!
//! Values and gradients are those of [`ParallelCtx::enter_tp`] and [`ParallelCtx::column_parallel`]; only the wait is
//! deferred. Ranks start the exchanges in the same order and may wait for them in any order.

use crate::mappings::{Collective, enter_tp_collectives, map_received};
use crate::{ParallelCtx, Pending};
use ms_core::{Graph, Result, Tensor, Var};

const NAME: &str = "enter_tp";

/// A value being gathered to all ranks, if it is sharded by tokens.
pub struct PendingEnterTp {
    pub(crate) x: Var,
    /// `None`: every rank has all tokens.
    all: Option<Pending>,
}

impl PendingEnterTp {
    /// All tokens `[T,H]`, once they have arrived.
    pub(crate) fn wait(self) -> Result<(Var, Tensor)> {
        let all = match self.all {
            Some(pending) => pending.wait()?,
            None => self.x.value().clone(),
        };
        Ok((self.x, all))
    }
}

impl ParallelCtx {
    /// Starts gathering `x[T/tp,H]` for [`ParallelCtx::finish_enter_tp`] or [`ParallelCtx::column_parallel_entered`].
    ///
    /// # Errors
    /// If a rank fails.
    pub fn begin_enter_tp(&self, x: &Var) -> Result<PendingEnterTp> {
        let gathers =
            enter_tp_collectives(self.sequence_parallel).0 == Collective::AllGather && self.tp.size() > 1;
        let all = if gathers { Some(self.tp.all_gather(NAME, x.value().clone())?) } else { None };
        Ok(PendingEnterTp { x: x.clone(), all })
    }

    /// Completes [`ParallelCtx::enter_tp`] for a gather that was started.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn finish_enter_tp(&self, g: &mut Graph, x: PendingEnterTp) -> Result<Var> {
        let gathered = x.all.is_some();
        let (x, all) = x.wait()?;
        if gathered {
            Ok(map_received(
                g,
                self.tp_group(),
                (&x, all),
                NAME,
                enter_tp_collectives(self.sequence_parallel),
            ))
        } else {
            self.enter_tp(g, &x)
        }
    }
}
