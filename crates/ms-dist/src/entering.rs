//! Asynchronous entry into tensor parallelism: values are gathered while the rank computes something else.
//!
//! Values and gradients are those of [`ParallelCtx::enter_tp`] and [`ParallelCtx::column_parallel`]; only the wait is
//! deferred. Ranks start the exchanges in the same order and may wait for them in any order.

use crate::mappings::{Exchange, arrived, entering};
use crate::{ParallelCtx, Pending};
use ms_core::{Graph, Result, Tensor, Var};

const NAME: &str = "enter_tp";

/// A value being gathered to all ranks, if it is sharded by tokens.
pub struct Entering {
    pub(crate) x: Var,
    /// `None`: every rank has all tokens.
    all: Option<Pending>,
}

impl Entering {
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
    /// Starts gathering `x[T/tp,H]` for [`ParallelCtx::entered`] or [`ParallelCtx::column_parallel_of`].
    ///
    /// # Errors
    /// If a rank fails.
    pub fn begin_entering(&self, x: &Var) -> Result<Entering> {
        let gathers = entering(self.sequence_parallel).0 == Exchange::Gather && self.tp.size() > 1;
        let all = match gathers {
            true => Some(self.tp.all_gather(NAME, x.value().clone())?),
            false => None,
        };
        Ok(Entering { x: x.clone(), all })
    }

    /// Completes [`ParallelCtx::enter_tp`] for a gather that was started.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn entered(&self, g: &mut Graph, x: Entering) -> Result<Var> {
        let gathered = x.all.is_some();
        let (x, all) = x.wait()?;
        match gathered {
            true => Ok(arrived(g, self.among_tp(), (&x, all), NAME, entering(self.sequence_parallel))),
            false => self.enter_tp(g, &x),
        }
    }
}
