//! Deferred weight gradients of a backward pass.

use crate::gradients::GradSink;
use crate::{Device, ParamId, Result, TensorMut};

/// What a backward pass put off (zero-bubble schedules, exchanges that come next): one weight gradient, or the word that there
/// are no more of one.
struct Deferred {
    param: ParamId,
    /// `None`: nothing more is added to the gradient.
    work: Option<WeightGrad>,
}

/// What a backward pass puts off.
#[derive(Default)]
pub struct Later {
    work: Vec<Deferred>,
    /// Of which parameter alone; `None`: of all whose gradients are large.
    only: Option<ParamId>,
}

impl Later {
    /// Nothing yet, and in the end what is added to the gradient of `param` alone.
    pub fn of(param: ParamId) -> Self {
        Self { work: Vec::new(), only: Some(param) }
    }

    /// Whether something of a gradient, or the word that it is all, is among it.
    pub(super) fn has(&self, param: ParamId) -> bool {
        self.work.iter().any(|work| work.param == param)
    }

    pub(super) fn takes(&self, param: ParamId) -> bool {
        self.only.is_none_or(|only| only == param)
    }

    /// Puts off what is added to a gradient.
    pub(super) fn put_off(
        &mut self,
        param: ParamId,
        work: impl FnOnce(&Device, TensorMut<'_>) -> Result<()> + Send + 'static,
    ) {
        self.work.push(Deferred { param, work: Some(Box::new(work)) });
    }

    /// Puts off the word that nothing more is added to a gradient.
    pub(super) fn close(&mut self, param: ParamId) {
        self.work.push(Deferred { param, work: None });
    }

    /// Does the work, in the order in which it was put off.
    ///
    /// # Errors
    /// As the kernels that do it.
    pub fn run(self, device: &Device, sink: &mut dyn GradSink) -> Result<()> {
        self.work.into_iter().try_for_each(|work| work.run(device, sink))
    }
}

/// Adds one weight gradient into the buffer it is given.
type WeightGrad = Box<dyn FnOnce(&Device, TensorMut<'_>) -> Result<()> + Send>;

impl Deferred {
    fn run(self, device: &Device, sink: &mut dyn GradSink) -> Result<()> {
        let mut work = self.work;
        if work.is_none() {
            return sink.finished(self.param);
        }
        sink.add(self.param, &mut |grad| once(&mut work)(device, grad))
    }
}

/// What is called once.
pub(super) fn once<F>(work: &mut Option<F>) -> F {
    work.take().expect("a gradient is added once")
}
