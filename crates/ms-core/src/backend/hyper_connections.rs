//! Device operations of hyper-connections.

use super::seam::seam;
use crate::{Mixing, Result, Tensor};

seam! {
    /// A residual with several streams `[T,n·H]`; weights are rows as described in [`Mixing`].
    pub trait HyperConnectionsBackend;

    /// Weights `[T,C]` f32 from `mixes[T,C]`, `base[C]` and `scale`, all f32.
    deferred fn stream_weights(
        &self,
        mixes: &Tensor,
        base: &Tensor,
        scale: &Tensor,
        mixing: &Mixing,
    ) -> Result<Tensor> = |meta| meta.wide_like(mixes);
    /// Gradients of [`HyperConnectionsBackend::stream_weights`] with respect to `mixes`, and by `base` and `scale` one after
    /// the other.
    deferred fn stream_weights_backward(
        &self,
        dw: &Tensor,
        mixes: &Tensor,
        base: &Tensor,
        scale: &Tensor,
        mixing: &Mixing,
    ) -> Result<(Tensor, Tensor)>
        = |meta| (meta.wide_like(mixes), meta.wide(&[base.numel() + scale.numel()]));
    /// The input of a sublayer, `[T,H]`, from streams `x[T,n·H]` and weights `w[T,C]`.
    deferred fn collapse(&self, x: &Tensor, w: &Tensor, mixing: &Mixing) -> Result<Tensor>
        = |meta| meta.with_width(x, x.as_matrix().1 / mixing.streams.max(1));
    /// Gradients of [`HyperConnectionsBackend::collapse`] with respect to `x` and `w`.
    deferred fn collapse_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        mixing: &Mixing,
    ) -> Result<(Tensor, Tensor)> = |meta| (meta.like(x), meta.wide_like(w));
    /// The streams `[T,n·H]` after a sublayer with output `y[T,H]`.
    deferred fn expand(&self, x: &Tensor, y: &Tensor, w: &Tensor, mixing: &Mixing) -> Result<Tensor>
        = |meta| meta.like(x);
    /// Gradients of [`HyperConnectionsBackend::expand`] with respect to `x`, `y` and `w`.
    deferred fn expand_backward(
        &self,
        dout: &Tensor,
        x: &Tensor,
        y: &Tensor,
        w: &Tensor,
        mixing: &Mixing,
    ) -> Result<[Tensor; 3]> = |meta| [meta.like(x), meta.like(y), meta.wide_like(w)];
}
