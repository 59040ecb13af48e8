//! Hyper-connections: several residual streams, from which a sublayer's input is mixed and to which its output is
//! distributed.
//!
//! The streams of a token are contiguous, `[T,n·H]`. Mixing weights are computed in f32 from weights of the store's type.

use super::{Residual, ResidualEnd, unit_norm};
use crate::params::Scope;
use crate::pass::Pass;
use ms_core::{Columns, Mixing, ParamId, Result, Var, ops};
use ms_spec::{HyperConnections, ModelConfig, Role};

/// What weighs the streams of each token.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    fixed: ParamId,
    base: ParamId,
    scale: ParamId,
    mixing: Mixing,
    eps: f64,
}

impl Streams {
    /// The weights under `scope`: around a sublayer, or at the `end` of the streams.
    pub(super) fn new(scope: &Scope<'_>, c: &ModelConfig, h: &HyperConnections, end: bool) -> Self {
        Self {
            fixed: scope.id(Role::HcFn),
            base: scope.id(Role::HcBase),
            scale: scope.id(Role::HcScale),
            mixing: Mixing { streams: h.streams, rounds: (!end).then_some(h.rounds), eps: h.eps },
            eps: c.norm_eps,
        }
    }

    fn wide(pass: &mut Pass<'_>, id: ParamId) -> Result<Var> {
        let w = pass.param(id);
        ops::cast(pass.g, &w, w.value().dtype().wide())
    }

    /// What follows is given `[T,H]`, and the weights that [`Residual::expand`] needs, of streams `[T,n·H]`.
    fn weighed(&self, pass: &mut Pass<'_>, x: &Var) -> Result<(Var, Var)> {
        let wide = ops::cast(pass.g, x, x.value().dtype().wide())?;
        let normed = unit_norm(pass, &wide, self.eps)?;
        let [fixed, base, scale] = [self.fixed, self.base, self.scale].map(|id| Self::wide(pass, id));
        let mixes = ops::linear(pass.g, &normed, &fixed?, None)?;
        let w = ops::stream_weights(pass.g, &mixes, &base?, &scale?, &self.mixing)?;
        Ok((ops::collapse(pass.g, x, &w, &self.mixing)?, w))
    }
}

impl Residual for Streams {
    fn collapse(&self, pass: &mut Pass<'_>, x: &Var) -> Result<(Var, Var)> {
        self.weighed(pass, x)
    }

    fn expand(&self, pass: &mut Pass<'_>, x: &Var, y: &Var, w: &Var) -> Result<Var> {
        ops::expand(pass.g, x, y, w, &self.mixing)
    }
}

impl ResidualEnd for Streams {
    fn spread(&self, pass: &mut Pass<'_>, x: &Var) -> Result<Var> {
        spread(pass, x, self.mixing.streams)
    }

    fn collapse(&self, pass: &mut Pass<'_>, x: &Var) -> Result<Var> {
        Ok(self.weighed(pass, x)?.0)
    }
}

/// `streams` streams, `[T,n·H]`, that all begin as `x[T,H]`.
pub(super) fn spread(pass: &mut Pass<'_>, x: &Var, streams: usize) -> Result<Var> {
    let len = x.value().as_matrix().1;
    ops::columns(pass.g, x, &vec![Columns::Copy { start: 0, len }; streams].into())
}
