//! Parameter gradients: the buffer that holds them and the sink that operations accumulate into.

use crate::{Arena, DType, ParamId, ParamLayout, Result, Tensor, TensorMut};
use std::sync::Arc;

/// Receives parameter gradients as soon as they are computed. Data parallelism is implemented behind this trait.
pub trait GradSink {
    /// Adds to the gradient of `p`: calls `work` once with a buffer to add to, in [`crate::DType::wide`] of the weight's
    /// type. The buffer is the gradient itself or, if gradients are kept rounded, zeros. For a frozen parameter `work` is not
    /// called.
    ///
    /// # Errors
    /// As `work`; if the gradient buffer is in use elsewhere.
    fn add(&mut self, p: ParamId, work: &mut dyn FnMut(TensorMut<'_>) -> Result<()>) -> Result<()>;

    /// Called when the running backward pass will add nothing more to the gradient of `p`, or when what it deferred has been
    /// added.
    ///
    /// # Errors
    /// If what follows from that fails, such as the start of a sum over ranks.
    fn finished(&mut self, _p: ParamId) -> Result<()> {
        Ok(())
    }
}

/// The main gradients of one model copy, in the type [`DType::wide`] and the layout of its weights.
#[derive(Debug)]
pub struct GradBuffer {
    layout: Arc<ParamLayout>,
    values: Tensor,
}

impl GradBuffer {
    /// A buffer of zeros for weights of type `dtype`.
    pub fn zeros(arena: &Arena, dtype: DType, layout: Arc<ParamLayout>) -> Self {
        let values = Tensor::zeros(arena, dtype.wide(), [layout.numel()]);
        Self { layout, values }
    }

    /// The whole buffer.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The whole buffer, writable.
    pub fn values_mut(&mut self) -> &mut Tensor {
        &mut self.values
    }

    /// The gradient of one parameter.
    ///
    /// # Panics
    /// If there is no such parameter.
    pub fn get(&self, id: ParamId) -> Tensor {
        let (start, shape) = (self.layout.start(id), self.layout.shape(id));
        self.values.slice_flat(start, shape).expect("the layout was checked against the buffer")
    }

    /// The gradient of one parameter, writable.
    ///
    /// # Errors
    /// [`crate::Error::Shared`] while another tensor uses the buffer.
    pub fn whole(&mut self, id: ParamId) -> Result<TensorMut<'_>> {
        let (start, shape) = (self.layout.start(id), self.layout.shape(id));
        self.values.view_mut(start, shape)
    }
}

impl GradSink for GradBuffer {
    fn add(&mut self, p: ParamId, work: &mut dyn FnMut(TensorMut<'_>) -> Result<()>) -> Result<()> {
        work(self.whole(p)?)
    }
}
