//! Recurrent mixers, and what they share. Their scans run in f32.

mod gated_delta;
mod mamba2;
mod mamba3;

use crate::cache::LayerCache;
use crate::layer::Pass;
pub(crate) use gated_delta::GatedDeltaMixer;
pub(crate) use mamba2::Mamba2Mixer;
pub(crate) use mamba3::Mamba3Mixer;
use ms_core::{ParamId, Result, Run, Tensor, Var, ops};
use std::sync::Arc;

/// A parameter, unrounded: f32, or f64.
fn wide(pass: &mut Pass<'_>, id: ParamId) -> Result<Var> {
    let w = pass.param(id);
    ops::cast(pass.g, &w, w.value().dtype().wide())
}

/// Runs `work` with the convolution's history and the scan's states of the segments at hand, if there is a cache, and
/// keeps what they become.
#[allow(clippy::needless_pass_by_value)] // an optional mutable reference is handed over
fn remembered_in(
    slots: &[usize],
    cache: Option<&mut LayerCache>,
    work: impl FnOnce(Option<(&mut Tensor, &mut Tensor)>) -> Result<Var>,
) -> Result<Var> {
    let Some(LayerCache::Recurrent { history, states }) = cache else { return work(None) };
    let (mut h, mut s) = (history.gather(slots)?, states.gather(slots)?);
    let y = work(Some((&mut h, &mut s)))?;
    history.scatter(slots, &h)?;
    states.scatter(slots, &s)?;
    Ok(y)
}

/// Channels of a mixer by heads, in sections that lie one after the other: context-parallel ranks each take their part of
/// every section and see whole sequences of it.
pub(super) struct Sections<'a> {
    pub(super) sizes: &'a [usize],
    pub(super) ranks: usize,
}

impl Sections<'_> {
    /// Elements of one rank's part of every section.
    pub(super) fn own(&self) -> Vec<usize> {
        self.sizes.iter().map(|n| n / self.ranks).collect()
    }

    /// The columns of `[T, Σ sizes]`, those of each rank side by side.
    pub(super) fn by_rank(&self) -> Arc<[Run]> {
        let of_rank = |rank: usize| {
            let mut start = 0;
            self.sizes.iter().map(move |&size| {
                let len = size / self.ranks;
                start += size;
                Run::Copy { start: start - size + rank * len, len }
            })
        };
        (0..self.ranks).flat_map(of_rank).collect()
    }

    /// A rank's rows of a weight `[Σ sizes, W]`, of every section its part.
    pub(super) fn weight(&self, pass: &mut Pass<'_>, w: &Var, rank: usize) -> Result<Var> {
        let width = w.value().numel() / self.sizes.iter().sum::<usize>();
        let (mut start, mut parts) = (0, Vec::with_capacity(self.sizes.len()));
        for &size in self.sizes {
            let len = size / self.ranks;
            parts.push(ops::part(pass.g, w, (start + rank * len) * width, [1, len * width])?);
            start += size;
        }
        let joined = ops::concat(pass.g, &parts.iter().collect::<Vec<_>>())?;
        let mut shape = w.value().shape().to_vec();
        shape[0] = self.own().iter().sum();
        ops::reshape(pass.g, &joined, shape.as_slice())
    }
}
