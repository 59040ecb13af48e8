//! The norms of a model: RMSNorm, RMSNorm with `1 + w`, LayerNorm.

use crate::layer::Pass;
use crate::params::Linear;
use ms_core::{Norm, Result, Tensor, Var, ops};
use ms_spec::Norm as Kind;
use std::ops::Range;

/// A model's kind of norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormShape {
    pub(crate) kind: Kind,
    pub(crate) eps: f32,
}

impl NormShape {
    pub(crate) fn rms(&self) -> Norm {
        Norm { eps: self.eps, unit_offset: self.kind == Kind::RmsUnitOffset }
    }

    /// Norm of the rows of `x`.
    pub(crate) fn apply(&self, pass: &mut Pass<'_>, ids: Linear, x: &Var) -> Result<Var> {
        let w = pass.param(ids.weight);
        match self.kind {
            Kind::LayerNorm => {
                let b = ids.bias.map(|b| pass.param(b));
                ops::layer_norm(pass.g, x, &w, b.as_ref(), self.eps)
            }
            Kind::Rms | Kind::RmsUnitOffset => ops::rms_norm(pass.g, x, &w, self.rms()),
        }
    }

    /// `(x + y, norm(x + y))`.
    pub(crate) fn apply_to_sum(
        &self,
        pass: &mut Pass<'_>,
        ids: Linear,
        x: &Var,
        y: &Var,
    ) -> Result<(Var, Var)> {
        if self.kind == Kind::LayerNorm {
            let sum = ops::add(pass.g, x, y)?;
            let normed = self.apply(pass, ids, &sum)?;
            return Ok((sum, normed));
        }
        let w = pass.param(ids.weight);
        ops::add_rms_norm(pass.g, x, y, &w, self.rms())
    }

    /// Norm of rows of which tensor-parallel ranks have `columns`, each as many and every column on as many ranks (their
    /// mean is then that of the row); every rank holds the whole weight.
    pub(crate) fn apply_to_projection(
        &self,
        pass: &mut Pass<'_>,
        ids: Linear,
        x: &Var,
        columns: &[Range<usize>],
    ) -> Result<Var> {
        if pass.ctx.tp.size() == 1 {
            return self.apply(pass, ids, x);
        }
        let w = pass.param(ids.weight);
        let part = |range: &Range<usize>| ops::part(pass.g, &w, range.start, [1, range.len()]);
        let parts = columns.iter().map(part).collect::<Result<Vec<_>>>()?;
        let w = ops::concat(pass.g, &parts.iter().collect::<Vec<_>>())?;
        let w = ops::reshape(pass.g, &w, [x.value().as_matrix().1])?;
        pass.ctx.rms_norm_over_tp(pass.g, x, &w, self.eps)
    }

    /// Norm of every head of `x[T,N·D]` by itself, with a weight per element of a head.
    pub(crate) fn apply_to_heads(
        &self,
        pass: &mut Pass<'_>,
        ids: Linear,
        x: &Var,
        dim: usize,
    ) -> Result<Var> {
        let (tokens, width) = x.value().as_matrix();
        let heads = ops::reshape(pass.g, x, [tokens * width / dim, dim])?;
        let normed = self.apply(pass, ids, &heads)?;
        ops::reshape(pass.g, &normed, [tokens, width])
    }
}

/// RMSNorm of the rows of `x` without a weight.
pub(crate) fn unit_norm(pass: &mut Pass<'_>, x: &Var, eps: f32) -> Result<Var> {
    let (width, device) = (x.value().as_matrix().1, pass.g.device().clone());
    let ones = Tensor::from_reals(device.arena(), x.value().dtype(), [width], &vec![1.0; width])?;
    let ones = pass.g.constant(ones);
    ops::rms_norm(pass.g, x, &ones, Norm { eps, unit_offset: false })
}
