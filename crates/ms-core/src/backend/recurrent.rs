//! Recurrent layers of a device.

use super::delayed::seam;
use crate::{DeltaRule, Mamba3Shape, Result, Segment, StateSpace, Tensor};

seam! {
    /// Recurrent mixers, all f32. Segments must cover the tokens in order.
    pub trait RecurrentBackend;

    /// Causal depthwise convolution and SiLU of `x[T,C]` with taps `w[C,1,W]`. `history[S,W-1,C]` is what came
    /// before each segment and is replaced by what the next call needs.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    later fn convolution(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        history: Option<&mut Tensor>,
        segments: &[Segment],
    ) -> Result<Tensor>;
    /// Gradients by `x`, by `w` and by `b` (empty without).
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    later fn convolution_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        segments: &[Segment],
    ) -> Result<[Tensor; 3]>;
    /// Mamba-2's scan of inputs `x[T,N·P]`, `b[T,G·S]`, `c[T,G·S]` and `dt[T,N]`, the step before bias and softplus, with weights
    /// `a_log`, `d` and `dt_bias`, `[N]` each; see [`StateSpace`]. `states[D,N,P,S]`, one for each segment, is read and replaced.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    later fn state_space(
        &self,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        states: Option<&mut Tensor>,
        segments: &[Segment],
        shape: &StateSpace,
    ) -> Result<Tensor>;
    /// Gradients by the inputs and by the weights.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    later fn state_space_backward(
        &self,
        dy: &Tensor,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        segments: &[Segment],
        shape: &StateSpace,
    ) -> Result<([Tensor; 4], [Tensor; 3])>;
    /// Mamba-3's scan of operands in the order of [`Mamba3Operands`](ms_operands::Mamba3Operands), which has their shapes,
    /// the last three empty where heads have no inputs by rank. `memory` is what each document's last token left `[D,N,·]`
    /// and the states `[D,N,P,S]`; both are read and replaced.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    later fn mamba3(
        &self,
        operands: [&Tensor; 15],
        memory: Option<[&mut Tensor; 2]>,
        segments: &[Segment],
        shape: &Mamba3Shape,
    ) -> Result<Tensor>;
    /// Gradients by the operands.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    later fn mamba3_backward(
        &self,
        dy: &Tensor,
        operands: [&Tensor; 15],
        segments: &[Segment],
        shape: &Mamba3Shape,
    ) -> Result<[Tensor; 15]>;
    /// The gated delta rule of inputs `q[T,G·K]` and `k[T,G·K]`, which are brought to length 1, `v[T,N·V]`, `g[T,N]`, the
    /// logarithm of the decay, and `beta[T,N]`, the strength of writing; see [`DeltaRule`]. `states[D,N,K,V]` is read and
    /// replaced.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    later fn delta_rule(
        &self,
        inputs: [&Tensor; 5],
        states: Option<&mut Tensor>,
        segments: &[Segment],
        shape: &DeltaRule,
    ) -> Result<Tensor>;
    /// Gradients by the inputs.
    ///
    /// # Errors
    /// If shapes, element types or segments do not fit.
    later fn delta_rule_backward(
        &self,
        dy: &Tensor,
        inputs: [&Tensor; 5],
        segments: &[Segment],
        shape: &DeltaRule,
    ) -> Result<[Tensor; 5]>;
    /// `g[T,N] = −exp(a_log[N]) · softplus(a[T,N] + dt_bias[N])`: the logarithm of a decay.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn decay(&self, a: &Tensor, a_log: &Tensor, dt_bias: &Tensor) -> Result<Tensor>;
    /// Gradients of [`RecurrentBackend::decay`] by `a`, `a_log` and `dt_bias`.
    ///
    /// # Errors
    /// If shapes or element types do not fit.
    later fn decay_backward(
        &self,
        dy: &Tensor,
        a: &Tensor,
        a_log: &Tensor,
        dt_bias: &Tensor,
    ) -> Result<[Tensor; 3]>;
}
