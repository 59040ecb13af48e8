//! Device operations of mixtures of experts.

use super::seam::seam;
use crate::{ExpertLoad, Result, Router, Routes, Tensor, TensorMut};

seam! {
    /// Mixtures of experts. `K` experts per token of `E`.
    pub trait MoeBackend;

    /// Experts `[T,K]` i32 and weights `[T,K]` f32 of tokens with router logits `[T,E]` f32; `bias[E]` f32 affects the choice
    /// only.
    deferred fn route(&self, logits: &Tensor, bias: Option<&Tensor>, router: &Router) -> Result<(Tensor, Tensor)>
        = |meta| {
            let (tokens, count) = logits.as_matrix();
            let numbers: Vec<i32> = (0..tokens * router.top_k).map(|i| (i % count.max(1)) as i32).collect();
            let experts = Tensor::from_slice(&meta.arena, [tokens, router.top_k], &numbers)?;
            (experts, meta.uninit(logits.dtype(), &[tokens, router.top_k]))
        }, fails "If shapes or element types do not fit, or the router cannot pick `K` of `E`.";
    /// Weights `[T,K]` f32 of experts `[T,K]` i32 that were chosen by other means, with router logits `[T,E]` f32.
    deferred fn weigh(&self, experts: &Tensor, logits: &Tensor, router: &Router) -> Result<Tensor>
        = |meta| meta.uninit(logits.dtype(), &[logits.as_matrix().0, router.top_k]),
        fails "As [`MoeBackend::route`], and if an expert does not exist.";
    /// Gradient of the weights by the logits.
    deferred fn route_backward(
        &self,
        dweights: &Tensor,
        experts: &Tensor,
        logits: &Tensor,
        router: &Router,
    ) -> Result<Tensor> = |meta| meta.like(logits), fails "As [`MoeBackend::route`].";
    /// The load-balancing loss of the tokens with router logits `[T,E]` f32, and `grad_scale` times its gradient added to
    /// `dlogits` if given; see [`ExpertLoad`].
    blocking fn balance(
        &self,
        dlogits: Option<&mut Tensor>,
        logits: &Tensor,
        load: &ExpertLoad,
        router: &Router,
        grad_scale: f64,
    ) -> Result<f64>, fails "As [`MoeBackend::route`].";
    /// A row of `x[T,H]` for every copy that is not dropped, sorted by expert: `[R,H]`, where `R` is `T·K` if none is
    /// dropped.
    deferred fn dispatch(&self, x: &Tensor, routes: &Routes) -> Result<Tensor>
        = |meta| meta.uninit(x.dtype(), &[routes.copies.len(), x.as_matrix().1]),
        fails "If shapes do not fit.";
    /// Gradient of [`MoeBackend::dispatch`].
    deferred fn dispatch_backward(&self, dy: &Tensor, routes: &Routes) -> Result<Tensor>
        = |meta| meta.uninit(dy.dtype(), &[routes.tokens(), dy.as_matrix().1]), fails "If shapes do not fit.";
    /// The weighted sum of each token's copies, except dropped ones: `[T,H]`.
    deferred fn combine(&self, x: &Tensor, weights: &Tensor, routes: &Routes) -> Result<Tensor>
        = |meta| meta.uninit(x.dtype(), &[routes.tokens(), x.as_matrix().1]);
    /// Gradients of [`MoeBackend::combine`] with respect to rows and weights.
    deferred fn combine_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        weights: &Tensor,
        routes: &Routes,
    ) -> Result<(Tensor, Tensor)> = |meta| (meta.like(x), meta.wide_like(weights));
    /// Each expert's rows of `x[R,K]` through its matrix of `w[E,N,K]`, plus its row of `bias[E,N]`.
    deferred fn expert_linear(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>, routes: &Routes)
    -> Result<Tensor> = |meta| meta.uninit(x.dtype(), &[routes.copies.len(), w.dim(1)]);
    /// Gradient of [`MoeBackend::expert_linear`] with respect to `x`.
    deferred fn expert_linear_dx(&self, dy: &Tensor, w: &Tensor, routes: &Routes) -> Result<Tensor>
        = |meta| meta.uninit(dy.dtype(), &[routes.copies.len(), w.dim(2)]);
    /// Gradient with respect to `w`, added in f32.
    deferred fn expert_linear_dw(&self, dw: TensorMut<'_>, dy: &Tensor, x: &Tensor, routes: &Routes) -> Result<()>;
    /// Gradient with respect to `bias`, added in f32.
    deferred fn expert_linear_db(&self, db: TensorMut<'_>, dy: &Tensor, routes: &Routes) -> Result<()>;
}
