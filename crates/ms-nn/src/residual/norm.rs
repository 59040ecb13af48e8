//! The norms of a model: RMSNorm, RMSNorm with `1 + w`, LayerNorm.

use crate::params::Linear;
use crate::pass::Pass;
use ms_core::{Norm, Result, Tensor, Var, ops};
use ms_spec::Norm as Kind;
use std::ops::Range;

/// A model's kind of norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormShape {
    pub(crate) kind: Kind,
    pub(crate) eps: f64,
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

    /// Norm of rows sharded over tensor-parallel ranks, which have `columns`: the same number each, and every column on the
    /// same number of ranks (so their mean is that of the row); every rank holds the whole weight.
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
        let (dtype, width) = (x.value().dtype(), x.value().as_matrix().1);
        // What is added to a weight or taken from a row is not rounded before.
        let inner = if self.kind == Kind::Rms { dtype } else { dtype.wide() };
        let mut of_columns = |id| {
            let whole = pass.param(id);
            let whole = ops::cast(pass.g, &whole, inner)?;
            let part = |range: &Range<usize>| ops::part(pass.g, &whole, range.start, [1, range.len()]);
            let parts = columns.iter().map(part).collect::<Result<Vec<_>>>()?;
            let joined = ops::concat(pass.g, &parts.iter().collect::<Vec<_>>())?;
            ops::reshape(pass.g, &joined, [width])
        };
        let w = of_columns(ids.weight)?;
        let b = ids.bias.map(of_columns).transpose()?;
        let x = ops::cast(pass.g, x, inner)?;
        let y = match self.kind {
            Kind::Rms => pass.ctx.rms_norm_over_tp(pass.g, &x, &w, self.eps)?,
            Kind::RmsUnitOffset => {
                let ones = Tensor::from_reals(pass.g.device().arena(), inner, [width], &vec![1.0; width])?;
                let ones = pass.g.constant(ones);
                let w = ops::add(pass.g, &w, &ones)?;
                pass.ctx.rms_norm_over_tp(pass.g, &x, &w, self.eps)?
            }
            Kind::LayerNorm => pass.ctx.layer_norm_over_tp(pass.g, &x, &w, b.as_ref(), self.eps)?,
        };
        ops::cast(pass.g, &y, dtype)
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
pub(crate) fn unit_norm(pass: &mut Pass<'_>, x: &Var, eps: f64) -> Result<Var> {
    let (width, device) = (x.value().as_matrix().1, pass.g.device().clone());
    let ones = Tensor::from_reals(device.arena(), x.value().dtype(), [width], &vec![1.0; width])?;
    let ones = pass.g.constant(ones);
    ops::rms_norm(pass.g, x, &ones, Norm { eps, unit_offset: false })
}
