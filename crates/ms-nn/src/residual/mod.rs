//! Residual connections: norms before and after a layer's parts, and the streams that they read and write.

mod hyper_connections;
mod norm;

pub(crate) use norm::{NormShape, unit_norm};

use crate::params::Scope;
use crate::pass::Pass;
use hyper_connections::Streams;
use ms_core::{Result, Var};
use ms_spec::{ModelConfig, Part};
use std::fmt::Debug;
use std::sync::Arc;

/// What a sublayer takes its input of and gives its output to, where that is not a sum with one stream.
pub(crate) trait Residual: Debug + Send + Sync {
    /// The input `[T,H]` of the sublayer, of what layers pass on, `[T,n·H]`, and what [`Residual::expand`] needs.
    fn collapse(&self, pass: &mut Pass<'_>, x: &Var) -> Result<(Var, Var)>;

    /// The stream after a sublayer that computed `y[T,H]` from `x[T,n·H]`.
    fn expand(&self, pass: &mut Pass<'_>, x: &Var, y: &Var, w: &Var) -> Result<Var>;
}

/// The ends of such a residual.
pub(crate) trait ResidualEnd: Debug + Send + Sync {
    /// What layers begin with, `[T,n·H]`, of `x[T,H]`.
    fn spread(&self, pass: &mut Pass<'_>, x: &Var) -> Result<Var>;

    /// The final state `[T,H]` from what the last layer passes on.
    fn collapse(&self, pass: &mut Pass<'_>, x: &Var) -> Result<Var>;
}

/// The residuals around mixer and MLP of a layer whose parameters are in `scope`; `None`: outputs are added to the stream.
pub(crate) fn around(scope: &Scope<'_>, c: &ModelConfig) -> Option<[Arc<dyn Residual>; 2]> {
    let h = c.hyper.as_ref()?;
    let of = |part| -> Arc<dyn Residual> { Arc::new(Streams::new(&scope.of(part), c, h, false)) };
    Some([Part::MixerStreams, Part::FeedStreams].map(of))
}

/// The end of the residual after the last layer whose parameters are in `scope`.
pub(crate) fn end(scope: &Scope<'_>, c: &ModelConfig) -> Option<Arc<dyn ResidualEnd>> {
    let h = c.hyper.as_ref()?;
    Some(Arc::new(Streams::new(&scope.of(Part::LastStreams), c, h, true)))
}

/// What layers begin with, `[T,n·H]`, of an embedding `x[T,H]`.
pub(crate) fn spread(pass: &mut Pass<'_>, c: &ModelConfig, x: Var) -> Result<Var> {
    match &c.hyper {
        Some(h) => hyper_connections::spread(pass, &x, h.streams),
        None => Ok(x),
    }
}
