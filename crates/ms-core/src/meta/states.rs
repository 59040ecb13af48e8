//! Mixers with a state and hyper-connections without values.

use super::{MetaBackend, with_width};
use crate::{
    DeltaRule, HyperConnectionsBackend, Mamba3Shape, Mixing, RecurrentBackend, Result, Segment, StateSpace,
    Tensor,
};

impl RecurrentBackend for MetaBackend {
    fn convolution(
        &self,
        x: &Tensor,
        _: &Tensor,
        _: Option<&Tensor>,
        _: Option<&mut Tensor>,
        _: &[Segment],
    ) -> Result<Tensor> {
        Ok(self.wide_like(x))
    }

    fn convolution_backward(
        &self,
        _: &Tensor,
        x: &Tensor,
        w: &Tensor,
        b: Option<&Tensor>,
        _: &[Segment],
    ) -> Result<[Tensor; 3]> {
        Ok([self.wide_like(x), self.wide_like(w), self.wide(&[b.map_or(0, Tensor::numel)])])
    }

    fn state_space(
        &self,
        inputs: [&Tensor; 4],
        _: [&Tensor; 3],
        _: Option<&mut Tensor>,
        _: &[Segment],
        _: &StateSpace,
    ) -> Result<Tensor> {
        Ok(self.wide_like(inputs[0]))
    }

    fn state_space_backward(
        &self,
        _: &Tensor,
        inputs: [&Tensor; 4],
        weights: [&Tensor; 3],
        _: &[Segment],
        _: &StateSpace,
    ) -> Result<([Tensor; 4], [Tensor; 3])> {
        Ok((inputs.map(|t| self.wide_like(t)), weights.map(|t| self.wide_like(t))))
    }

    fn mamba3(
        &self,
        operands: [&Tensor; 15],
        _: Option<[&mut Tensor; 2]>,
        _: &[Segment],
        _: &Mamba3Shape,
    ) -> Result<Tensor> {
        Ok(self.wide_like(operands[0]))
    }

    fn mamba3_backward(
        &self,
        _: &Tensor,
        operands: [&Tensor; 15],
        _: &[Segment],
        _: &Mamba3Shape,
    ) -> Result<[Tensor; 15]> {
        Ok(operands.map(|t| self.wide_like(t)))
    }

    fn delta_rule(
        &self,
        inputs: [&Tensor; 5],
        _: Option<&mut Tensor>,
        _: &[Segment],
        _: &DeltaRule,
    ) -> Result<Tensor> {
        Ok(self.wide_like(inputs[2]))
    }

    fn delta_rule_backward(
        &self,
        _: &Tensor,
        inputs: [&Tensor; 5],
        _: &[Segment],
        _: &DeltaRule,
    ) -> Result<[Tensor; 5]> {
        Ok(inputs.map(|t| self.wide_like(t)))
    }

    fn decay(&self, a: &Tensor, _: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(self.uninit(self.wide, &with_width(a, a.as_matrix().1)))
    }

    fn decay_backward(
        &self,
        _: &Tensor,
        a: &Tensor,
        a_log: &Tensor,
        dt_bias: &Tensor,
    ) -> Result<[Tensor; 3]> {
        Ok([a, a_log, dt_bias].map(|t| self.wide_like(t)))
    }
}

impl HyperConnectionsBackend for MetaBackend {
    fn stream_weights(&self, mixes: &Tensor, _: &Tensor, _: &Tensor, _: &Mixing) -> Result<Tensor> {
        Ok(self.wide_like(mixes))
    }

    fn stream_weights_backward(
        &self,
        _: &Tensor,
        mixes: &Tensor,
        base: &Tensor,
        scale: &Tensor,
        _: &Mixing,
    ) -> Result<(Tensor, Tensor)> {
        Ok((self.wide_like(mixes), self.wide(&[base.numel() + scale.numel()])))
    }

    fn collapse(&self, x: &Tensor, _: &Tensor, mixing: &Mixing) -> Result<Tensor> {
        Ok(self.uninit(x.dtype(), &with_width(x, x.as_matrix().1 / mixing.streams.max(1))))
    }

    fn collapse_backward(&self, _: &Tensor, x: &Tensor, w: &Tensor, _: &Mixing) -> Result<(Tensor, Tensor)> {
        Ok((self.like(x), self.wide_like(w)))
    }

    fn expand(&self, x: &Tensor, _: &Tensor, _: &Tensor, _: &Mixing) -> Result<Tensor> {
        Ok(self.like(x))
    }

    fn expand_backward(
        &self,
        _: &Tensor,
        x: &Tensor,
        y: &Tensor,
        w: &Tensor,
        _: &Mixing,
    ) -> Result<[Tensor; 3]> {
        Ok([self.like(x), self.like(y), self.wide_like(w)])
    }
}
