//! What an operation does in a backward pass with the gradients of its inputs.

use super::later::once;
use super::{GradSink, Graph, Later, Like, Var, Walk};
use crate::{Device, ParamId, Result, Tensor, TensorMut};

/// What an operation may use in its backward.
pub struct BackwardCx<'a> {
    /// The device the graph ran on.
    pub device: &'a Device,
    pub(super) sink: &'a mut dyn GradSink,
    pub(super) params: Vec<Option<ParamId>>,
    /// Whether the input was computed by an operation of this graph.
    pub(super) computed: Vec<bool>,
    pub(super) later: Option<&'a mut Later>,
    /// Gradients of weights that are held back until an exchange has begun.
    pub(super) held: &'a mut Later,
    /// Whether such an exchange comes next.
    pub(super) holds: bool,
    /// What is gone through behind the operation.
    pub(super) inner: Option<Walk>,
}

impl BackwardCx<'_> {
    /// Adds the gradient of input `k`, a parameter, to its main gradient: now, while ranks exchange what comes next, or later
    /// when the schedule separates input gradients from weight gradients. Does nothing if the input is not a trained parameter.
    ///
    /// # Errors
    /// As `work`.
    pub fn accumulate(
        &mut self,
        k: usize,
        work: impl FnOnce(&Device, TensorMut<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let Some(param) = self.params[k] else { return Ok(()) };
        if let Some(later) = self.later.as_deref_mut().filter(|later| later.takes(param)) {
            later.put_off(param, work);
            return Ok(());
        }
        if self.holds {
            self.held.put_off(param, work);
            return Ok(());
        }
        self.work_before(param)?;
        let (device, mut work) = (self.device, Some(work));
        self.sink.add(param, &mut |grad| once(&mut work)(device, grad))
    }

    /// The gradient of weight `k`, of the shape and type of `weight`: for a parameter as
    /// [`BackwardCx::accumulate`], for a weight that was itself computed from others as a tensor to return.
    ///
    /// # Errors
    /// As `work`.
    pub fn weight_gradient(
        &mut self,
        k: usize,
        weight: impl Into<Like>,
        work: impl FnOnce(&Device, TensorMut<'_>) -> Result<()> + Send + 'static,
    ) -> Result<Option<Tensor>> {
        if !self.computed[k] {
            return self.accumulate(k, work).map(|()| None);
        }
        let Like { dtype, shape } = weight.into();
        let mut sum = Tensor::zeros(self.device.arena(), dtype.wide(), shape);
        work(self.device, sum.whole_mut()?)?;
        self.device.cast(&sum, dtype).map(Some)
    }

    /// Like [`BackwardCx::accumulate`], at once, for small gradients that a fused kernel forms together with the input's, which
    /// `work` returns. It is given nothing for a frozen or non-parameter input.
    ///
    /// # Errors
    /// As `work`; if the gradient buffer is in use elsewhere.
    pub fn with_gradient<T>(
        &mut self,
        k: usize,
        work: impl FnOnce(Option<TensorMut<'_>>) -> Result<T>,
    ) -> Result<T> {
        let (mut work, mut made) = (Some(work), None);
        if let Some(param) = self.params[k] {
            self.work_before(param)?;
            self.sink.add(param, &mut |grad| {
                made = Some(once(&mut work)(Some(grad))?);
                Ok(())
            })?;
        }
        made.map_or_else(|| once(&mut work)(None), Ok)
    }

    /// Sums have one order: what is held back of a parameter's gradient comes before more of it.
    fn work_before(&mut self, param: ParamId) -> Result<()> {
        if self.held.has(param) { self.work_meanwhile() } else { Ok(()) }
    }

    /// Does what was held back: an exchange has begun that takes time.
    ///
    /// # Errors
    /// As the kernels that do it.
    pub fn work_meanwhile(&mut self) -> Result<()> {
        std::mem::take(self.held).run(self.device, self.sink)
    }

    /// Has the backward of an inner graph done next, before any other operation's; recomputation needs it. Its gradients by `wrt`
    /// are those by the operation's inputs, in their order, in the place of what the operation returns; they are added to what
    /// has come to these inputs before.
    ///
    /// # Errors
    /// If a gradient has not the shape of its root.
    pub fn backward_inner(&mut self, graph: Graph, roots: Vec<(&Var, Tensor)>, wrt: &[&Var]) -> Result<()> {
        self.inner = Some(graph.walk_back(roots, wrt)?);
        Ok(())
    }
}
