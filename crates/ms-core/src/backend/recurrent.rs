//! Device operations of recurrent layers.

use super::seam::seam;
use crate::{DeltaRule, Mamba3Shape, Result, Segment, StateSpace, Tensor};

seam! {
    /// Recurrent mixers, all f32. Segments must cover the tokens in order.
    pub trait RecurrentBackend;

    /// Causal depthwise convolution and SiLU of `x[T,C]` with taps `w[C,1,W]`. `history[S,W-1,C]` holds what precedes each
    /// segment and is replaced by what the next call needs.
    deferred fn convolution(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        history: Option<&mut Tensor>,
        segments: &[Segment],
    ) -> Result<Tensor> = |meta| meta.wide_like(x), fails "If shapes, element types or segments do not fit.";
    /// Gradients with respect to `x`, by `w` and by `b` (empty without).
    deferred fn convolution_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        segments: &[Segment],
    ) -> Result<[Tensor; 3]>
        = |meta| [meta.wide_like(x), meta.wide_like(w), meta.wide(&[b.map_or(0, Tensor::numel)])],
        fails "If shapes, element types or segments do not fit.";
    /// Mamba-2's scan of inputs `x[T,N·P]`, `b[T,G·S]`, `c[T,G·S]` and `dt[T,N]`, the step before bias and softplus, with weights
    /// `a_log`, `d` and `dt_bias`, `[N]` each; see [`StateSpace`]. `states[D,N,P,S]`, one for each segment, is read and replaced.
    deferred fn state_space(
        &self,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        states: Option<&mut Tensor>,
        segments: &[Segment],
        shape: &StateSpace,
    ) -> Result<Tensor> = |meta| meta.wide_like(inputs[0]),
        fails "If shapes, element types or segments do not fit.";
    /// Gradients with respect to the inputs and by the weights.
    deferred fn state_space_backward(
        &self,
        dy: &Tensor,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        segments: &[Segment],
        shape: &StateSpace,
    ) -> Result<([Tensor; 4], [Tensor; 3])>
        = |meta| (inputs.map(|t| meta.wide_like(t)), weights.map(|t| meta.wide_like(t))),
        fails "If shapes, element types or segments do not fit.";
    /// Mamba-3's scan of operands in the order of [`Mamba3Operands`](ms_operands::Mamba3Operands), which has their shapes,
    /// the last three empty if heads have no per-rank inputs. `memory` holds the state left by each document's last token
    /// `[D,N,·]` and the states `[D,N,P,S]`; both are read and replaced.
    deferred fn mamba3(
        &self,
        operands: [&Tensor; 15],
        memory: Option<[&mut Tensor; 2]>,
        segments: &[Segment],
        shape: &Mamba3Shape,
    ) -> Result<Tensor> = |meta| meta.wide_like(operands[0]),
        fails "If shapes, element types or segments do not fit.";
    /// Gradients with respect to the operands.
    deferred fn mamba3_backward(
        &self,
        dy: &Tensor,
        operands: [&Tensor; 15],
        segments: &[Segment],
        shape: &Mamba3Shape,
    ) -> Result<[Tensor; 15]> = |meta| operands.map(|t| meta.wide_like(t)),
        fails "If shapes, element types or segments do not fit.";
    /// The gated delta rule of inputs `q[T,G·K]` and `k[T,G·K]`, which are normalised to length 1, `v[T,N·V]`, `g[T,N]`, the
    /// logarithm of the decay, and `beta[T,N]`, the strength of writing; see [`DeltaRule`]. `states[D,N,K,V]` is read and
    /// replaced.
    deferred fn delta_rule(
        &self,
        inputs: [&Tensor; 5],
        states: Option<&mut Tensor>,
        segments: &[Segment],
        shape: &DeltaRule,
    ) -> Result<Tensor> = |meta| meta.wide_like(inputs[2]),
        fails "If shapes, element types or segments do not fit.";
    /// Gradients with respect to the inputs.
    deferred fn delta_rule_backward(
        &self,
        dy: &Tensor,
        inputs: [&Tensor; 5],
        segments: &[Segment],
        shape: &DeltaRule,
    ) -> Result<[Tensor; 5]> = |meta| inputs.map(|t| meta.wide_like(t)),
        fails "If shapes, element types or segments do not fit.";
    /// `g[T,N] = −exp(a_log[N]) · softplus(a[T,N] + dt_bias[N])`: the logarithm of a decay.
    deferred fn decay(&self, a: &Tensor, a_log: &Tensor, dt_bias: &Tensor) -> Result<Tensor>
        = |meta| meta.wide(&[a.as_matrix().0, a.as_matrix().1]);
    /// Gradients of [`RecurrentBackend::decay`] with respect to `a`, `a_log` and `dt_bias`.
    deferred fn decay_backward(
        &self,
        dy: &Tensor,
        a: &Tensor,
        a_log: &Tensor,
        dt_bias: &Tensor,
    ) -> Result<[Tensor; 3]> = |meta| [a, a_log, dt_bias].map(|t| meta.wide_like(t));
}
