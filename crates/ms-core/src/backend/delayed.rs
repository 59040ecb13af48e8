//! A delayed device: it computes as another device does, but the host sees no result before it has waited for it.
//!
//! Every block of tensor memory is tagged with the number of the work that last wrote it. Waiting ([`Tensor::ready`],
//! [`Backend::synchronize`]) makes visible everything written so far. Until then the host reads bytes of ones (NaN as
//! floating-point numbers), and the source location of the read is recorded. Copies between tensors of one device are device
//! work, and host writes reach the device in order, as on a device with a queue.

use crate::clock::Clock;
use crate::{Arena, Backend, DType, Device, Result, Routes};
use std::sync::Arc;

/// A device around another that defers everything it does.
#[derive(Debug)]
pub(crate) struct Delayed<B> {
    inner: B,
}

impl Device {
    /// A device that computes as `inner` and defers everything. Of the waits with pending work it skips the `deaf`-th,
    /// counted from 1, if given. Early host reads are in [`Device::early`].
    pub fn delayed(inner: impl Backend + 'static, deaf: Option<u64>) -> Self {
        inner.arena().delay(Clock::new(deaf));
        Self::new(Delayed { inner })
    }

    /// Source locations that read values of a delayed device before they were available, and how often.
    pub fn early(&self) -> Vec<(String, usize)> {
        self.arena().clock().map(Clock::early).unwrap_or_default()
    }

    /// How often a delayed device was waited for while it had work.
    pub fn waits(&self) -> u64 {
        self.arena().clock().map_or(0, Clock::waits)
    }
}

impl<B: Backend> Delayed<B> {
    fn clock(&self) -> &Clock {
        self.inner.arena().clock().expect("a delayed device has a clock")
    }

    /// Work that the device does some time after it was submitted.
    pub(crate) fn deferred<T>(&self, work: impl FnOnce(&B) -> T) -> T {
        let _at_work = self.clock().begin();
        work(&self.inner)
    }

    /// Work whose result is returned to the host at once.
    pub(crate) fn blocking<T>(&self, work: impl FnOnce(&B) -> T) -> T {
        let answer = self.deferred(work);
        self.clock().answer();
        answer
    }
}

impl<B: Backend> Backend for Delayed<B> {
    fn name(&self) -> String {
        format!("delayed {}", self.inner.name())
    }

    fn arithmetic(&self) -> String {
        self.inner.arithmetic()
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }

    fn table_dtype(&self) -> DType {
        self.inner.table_dtype()
    }

    fn routes(
        &self,
        name: &'static str,
        sizes: [usize; 3],
        make: &mut dyn FnMut() -> Result<Routes>,
    ) -> Result<Arc<Routes>> {
        self.inner.routes(name, sizes, make)
    }

    fn synchronize(&self) -> Result<()> {
        self.clock().wait();
        self.inner.synchronize()
    }
}
