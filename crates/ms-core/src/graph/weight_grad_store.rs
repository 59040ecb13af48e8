//! Deferred weight gradients of a backward pass.

use crate::gradients::GradSink;
use crate::{Device, ParamId, Result, TensorMut};

/// Deferred work of a backward pass (zero-bubble schedules, overlap with the next exchange): one weight gradient, or a note
/// that a gradient is complete.
struct Deferred {
    param: ParamId,
    /// `None`: the gradient is complete.
    work: Option<WeightGrad>,
}

/// The work that a backward pass defers.
#[derive(Default)]
pub struct WeightGradStore {
    work: Vec<Deferred>,
    /// The only parameter whose gradient is deferred; `None`: all large gradients are.
    only: Option<ParamId>,
}

impl WeightGradStore {
    /// Empty; only the gradient of `param` will be deferred.
    pub fn of(param: ParamId) -> Self {
        Self { work: Vec::new(), only: Some(param) }
    }

    /// Whether a part of a gradient, or the note that it is complete, is deferred.
    pub(super) fn has(&self, param: ParamId) -> bool {
        self.work.iter().any(|work| work.param == param)
    }

    pub(super) fn takes(&self, param: ParamId) -> bool {
        self.only.is_none_or(|only| only == param)
    }

    /// Defers an addition to a gradient.
    pub(super) fn defer(
        &mut self,
        param: ParamId,
        work: impl FnOnce(&Device, TensorMut<'_>) -> Result<()> + Send + 'static,
    ) {
        self.work.push(Deferred { param, work: Some(Box::new(work)) });
    }

    /// Defers the note that a gradient is complete.
    pub(super) fn close(&mut self, param: ParamId) {
        self.work.push(Deferred { param, work: None });
    }

    /// Does the work, in the order in which it was deferred.
    ///
    /// # Errors
    /// As the kernels that do it.
    pub fn run(self, device: &Device, sink: &mut dyn GradSink) -> Result<()> {
        self.work.into_iter().try_for_each(|work| work.run(device, sink))
    }
}

/// Adds one weight gradient to the buffer it is given.
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

/// Takes a function that is called once.
pub(super) fn once<F>(work: &mut Option<F>) -> F {
    work.take().expect("a gradient is added once")
}
