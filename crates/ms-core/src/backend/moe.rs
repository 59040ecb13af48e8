//! Mixtures of experts of a device.

use super::delayed::seam;
use crate::{ExpertLoad, Result, Router, Routes, Tensor, TensorMut};

seam! {
    /// Mixtures of experts. `K` experts per token of `E`.
    pub trait MoeBackend;

    /// Experts `[T,K]` i32 and weights `[T,K]` f32 of tokens with router logits `[T,E]` f32; `bias[E]` f32 takes part
    /// in the choice.
    ///
    /// # Errors
    /// If shapes or element types do not fit, or the router cannot pick `K` of `E`.
    later fn route(&self, logits: &Tensor, bias: Option<&Tensor>, router: &Router) -> Result<(Tensor, Tensor)>;
    /// Weights `[T,K]` f32 of experts `[T,K]` i32 that were chosen otherwise, with router logits `[T,E]` f32.
    ///
    /// # Errors
    /// As [`MoeBackend::route`], and if an expert does not exist.
    later fn weigh(&self, experts: &Tensor, logits: &Tensor, router: &Router) -> Result<Tensor>;
    /// Gradient of the weights by the logits.
    ///
    /// # Errors
    /// As [`MoeBackend::route`].
    later fn route_backward(
        &self,
        dweights: &Tensor,
        experts: &Tensor,
        logits: &Tensor,
        router: &Router,
    ) -> Result<Tensor>;
    /// The load-balancing loss of the tokens with router logits `[T,E]` f32, and `grad_scale` times its gradient added to
    /// `dlogits` if given; see [`ExpertLoad`].
    ///
    /// # Errors
    /// As [`MoeBackend::route`].
    answer fn balance(
        &self,
        dlogits: Option<&mut Tensor>,
        logits: &Tensor,
        load: &ExpertLoad,
        router: &Router,
        grad_scale: f64,
    ) -> Result<f64>;
    /// A row of `x[T,H]` for every copy that is taken, sorted by expert: `[R,H]`, of which `R` is `T·K` where all are.
    ///
    /// # Errors
    /// If shapes do not fit.
    later fn dispatch(&self, x: &Tensor, routes: &Routes) -> Result<Tensor>;
    /// Gradient of [`MoeBackend::dispatch`].
    ///
    /// # Errors
    /// If shapes do not fit.
    later fn dispatch_backward(&self, dy: &Tensor, routes: &Routes) -> Result<Tensor>;
    /// The weighted sum of each token's copies that are taken: `[T,H]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn combine(&self, x: &Tensor, weights: &Tensor, routes: &Routes) -> Result<Tensor>;
    /// Gradients of [`MoeBackend::combine`] by rows and weights.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn combine_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        weights: &Tensor,
        routes: &Routes,
    ) -> Result<(Tensor, Tensor)>;
    /// Each expert's rows of `x[R,K]` through its matrix of `w[E,N,K]`, plus its row of `bias[E,N]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn expert_linear(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>, routes: &Routes)
    -> Result<Tensor>;
    /// Gradient of [`MoeBackend::expert_linear`] by `x`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn expert_linear_dx(&self, dy: &Tensor, w: &Tensor, routes: &Routes) -> Result<Tensor>;
    /// Gradient by `w`, added in f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn expert_linear_dw(&self, dw: TensorMut<'_>, dy: &Tensor, x: &Tensor, routes: &Routes) -> Result<()>;
    /// Gradient by `bias`, added in f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn expert_linear_db(&self, db: TensorMut<'_>, dy: &Tensor, routes: &Routes) -> Result<()>;
}
