//! An exchange that was begun, of which what arrives has still to be put together.

use crate::Pending;
use ms_core::{Device, Result, Tensor};

/// What is done to what arrives.
type Finish = Box<dyn FnOnce(&Device, Tensor) -> Result<Tensor> + Send>;

/// An exchange that was begun.
pub(crate) struct Arriving {
    pub(crate) pending: Pending,
    pub(crate) finish: Finish,
}

impl Arriving {
    pub(crate) fn as_it_is(pending: Pending) -> Self {
        Self { pending, finish: Box::new(|_, t| Ok(t)) }
    }

    pub(crate) fn wait(self, device: &Device) -> Result<Tensor> {
        (self.finish)(device, self.pending.wait()?)
    }
}
