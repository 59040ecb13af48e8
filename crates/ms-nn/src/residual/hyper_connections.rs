//! Hyper-connections: several residual streams, of which a sublayer's input is taken and to which its output is given.
//!
//! Streams of a token lie one after the other, `[T,n·H]`. Weights are computed in f32 from weights of the store's type.

use super::unit_norm;
use crate::params::Scope;
use crate::pass::Pass;
use ms_core::{Columns, Mixing, ParamId, Result, Var, ops};
use ms_spec::{HyperConnections, ModelConfig, Role};

/// What weighs the streams of each token.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    fixed: ParamId,
    base: ParamId,
    scale: ParamId,
    mixing: Mixing,
    eps: f64,
}

impl Streams {
    /// The weights under `scope`: around a sublayer, or at the `end` of the streams.
    pub(crate) fn new(scope: &Scope<'_>, c: &ModelConfig, h: &HyperConnections, end: bool) -> Self {
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

    /// The input `[T,H]` of what follows, and the weights that [`Streams::expand`] needs, of streams `[T,n·H]`.
    pub(crate) fn collapse(&self, pass: &mut Pass<'_>, x: &Var) -> Result<(Var, Var)> {
        let wide = ops::cast(pass.g, x, x.value().dtype().wide())?;
        let normed = unit_norm(pass, &wide, self.eps)?;
        let [fixed, base, scale] = [self.fixed, self.base, self.scale].map(|id| Self::wide(pass, id));
        let mixes = ops::linear(pass.g, &normed, &fixed?, None)?;
        let w = ops::stream_weights(pass.g, &mixes, &base?, &scale?, &self.mixing)?;
        Ok((ops::collapse(pass.g, x, &w, &self.mixing)?, w))
    }

    /// Number of streams.
    pub(crate) fn count(&self) -> usize {
        self.mixing.streams
    }

    /// The streams after a sublayer that made `y[T,H]` of the streams `x[T,n·H]` with weights `w`.
    pub(crate) fn expand(&self, pass: &mut Pass<'_>, x: &Var, y: &Var, w: &Var) -> Result<Var> {
        ops::expand(pass.g, x, y, w, &self.mixing)
    }
}

/// `streams` streams, `[T,n·H]`, that all begin as `x[T,H]`.
pub(crate) fn spread(pass: &mut Pass<'_>, x: &Var, streams: usize) -> Result<Var> {
    let len = x.value().as_matrix().1;
    ops::columns(pass.g, x, &vec![Columns::Copy { start: 0, len }; streams].into())
}
