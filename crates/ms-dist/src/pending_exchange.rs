//! An exchange in progress whose received parts have yet to be assembled.

use crate::{AxisGroup, Pending};
use ms_core::{BackwardCx, Device, Grads, Result, Tensor};

/// Assembles what arrives.
type Finish = Box<dyn FnOnce(&Device, Tensor) -> Result<Tensor> + Send>;

/// An exchange in progress.
pub(crate) struct PendingExchange {
    pub(crate) pending: Pending,
    pub(crate) finish: Finish,
}

impl PendingExchange {
    pub(crate) fn assembled(pending: Pending) -> Self {
        Self { pending, finish: Box::new(|_, t| Ok(t)) }
    }

    pub(crate) fn wait(self, device: &Device) -> Result<Tensor> {
        (self.finish)(device, self.pending.wait()?)
    }
}

impl AxisGroup {
    /// Exchanges gradients as `begin` does, and computes held-back weight gradients meanwhile.
    pub(crate) fn exchange_gradients(
        &self,
        cx: &mut BackwardCx<'_>,
        dys: Grads,
        begin: impl Fn(&Device, Tensor) -> Result<PendingExchange>,
    ) -> Result<Grads> {
        let mut back = |dy: Tensor| {
            let pending = begin(cx.device, dy)?;
            cx.run_held_back()?;
            pending.wait(cx.device)
        };
        dys.into_iter().map(|dy| dy.map(&mut back).transpose()).collect()
    }
}
