//! Hyper-connections of a device.

use super::delayed::seam;
use crate::{Mixing, Result, Tensor};

seam! {
    /// A residual of several streams `[T,n·H]`; weights are rows as [`Mixing`] says.
    pub trait HyperConnectionsBackend;

    /// Weights `[T,C]` f32 of `mixes[T,C]`, `base[C]` and `scale`, all f32.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn stream_weights(
        &self,
        mixes: &Tensor,
        base: &Tensor,
        scale: &Tensor,
        mixing: &Mixing,
    ) -> Result<Tensor>;
    /// Gradients of [`HyperConnectionsBackend::stream_weights`] by `mixes`, and by `base` and `scale` one behind the other.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn stream_weights_backward(
        &self,
        dw: &Tensor,
        mixes: &Tensor,
        base: &Tensor,
        scale: &Tensor,
        mixing: &Mixing,
    ) -> Result<(Tensor, Tensor)>;
    /// The input of a sublayer, `[T,H]`, of streams `x[T,n·H]` and weights `w[T,C]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn collapse(&self, x: &Tensor, w: &Tensor, mixing: &Mixing) -> Result<Tensor>;
    /// Gradients of [`HyperConnectionsBackend::collapse`] by `x` and `w`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn collapse_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        mixing: &Mixing,
    ) -> Result<(Tensor, Tensor)>;
    /// The streams `[T,n·H]` after a sublayer that made `y[T,H]`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn expand(&self, x: &Tensor, y: &Tensor, w: &Tensor, mixing: &Mixing) -> Result<Tensor>;
    /// Gradients of [`HyperConnectionsBackend::expand`] by `x`, `y` and `w`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn expand_backward(
        &self,
        dout: &Tensor,
        x: &Tensor,
        y: &Tensor,
        w: &Tensor,
        mixing: &Mixing,
    ) -> Result<[Tensor; 3]>;
}
