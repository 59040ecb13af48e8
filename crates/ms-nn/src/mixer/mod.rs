//! Token mixers: the trait of a layer's mixer, and what the recurrent kinds share. Their scans run in f32.

mod gated_delta;
mod mamba2;
mod mamba3;

use crate::cache::{LayerCache, LayerMemory};
use crate::params::Scope;
use crate::pass::Pass;
use gated_delta::GatedDeltaMixer;
use mamba2::Mamba2Mixer;
use mamba3::Mamba3Mixer;
use ms_core::{Columns, HeadLayout, ParamId, Result, Segment, Tensor, Var, ops};
use ms_dist::{HeadPartition, to_sequences, to_shares};
use ms_spec::{Mixer, ModelConfig, Part};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// What mixes the tokens of a layer: attention of some kind, or a recurrence.
pub(crate) trait TokenMixer: Debug + Send + Sync {
    /// `[T,H]` to `[T,H]`. What later tokens need of these joins `cache`, where there is one.
    fn forward(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, x: &Var) -> Result<Var>;

    /// What it keeps of a slot's tokens.
    fn memory(&self) -> LayerMemory;
}

/// The mixer of this kind on one of `tp` ranks, if it is one with a state; `scope` has the parameters of its layer.
pub(crate) fn recurrent(
    kind: Mixer,
    scope: &Scope<'_>,
    c: &ModelConfig,
    tp: usize,
) -> Option<Arc<dyn TokenMixer>> {
    const VALID: &str = "a validated model has its mixers' sizes";
    let of = |part| scope.of(part);
    Some(match kind {
        Mixer::Attention | Mixer::SharedKv | Mixer::None => return None,
        Mixer::GatedDelta => {
            let sizes = c.gated_delta.as_ref().expect(VALID);
            Arc::new(GatedDeltaMixer::new(&of(Part::GatedDelta), c, sizes, tp))
        }
        Mixer::Mamba2 => {
            Arc::new(Mamba2Mixer::new(&of(Part::StateSpace), c.mamba2.as_ref().expect(VALID), tp))
        }
        Mixer::Mamba3 => {
            Arc::new(Mamba3Mixer::new(&of(Part::StateSpace), c.mamba3.as_ref().expect(VALID), tp))
        }
    })
}

/// A parameter, unrounded: f32, or f64.
fn wide(pass: &mut Pass<'_>, id: ParamId) -> Result<Var> {
    let w = pass.param(id);
    ops::cast(pass.g, &w, w.value().dtype().wide())
}

/// Runs `work` with the convolution's history and the scan's states of the current segments, if there is a cache, and keeps
/// what they become.
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

/// What a scan takes, values of tokens `[T,W]` or a weight `[W,any]`, and the sections of its channels.
type Cut<'a> = (&'a Var, &'a [Section]);

/// What a rank scans.
struct Share<'a> {
    /// Ranks that share the heads.
    ranks: usize,
    /// Its documents.
    segments: &'a Arc<[Segment]>,
}

/// Runs `scan` with inputs and weights of all heads or, where ranks share sequences, over whole documents of this rank's heads,
/// of whose outputs it then has those of its tokens.
fn over_documents<const N: usize>(
    pass: &mut Pass<'_>,
    cache: Option<&mut LayerCache>,
    inputs: [Cut<'_>; N],
    weights: &[Cut<'_>],
    scan: impl FnOnce(&mut Pass<'_>, Option<&mut LayerCache>, [Var; N], Vec<Var>, Share<'_>) -> Result<Var>,
) -> Result<Var> {
    let Some(sharding) = pass.batch.sharding.clone() else {
        let (segments, weights) = (pass.batch.segments.clone(), weights.iter().map(|(w, _)| (*w).clone()));
        let share = Share { ranks: 1, segments: &segments };
        return scan(pass, cache, inputs.map(|(x, _)| x.clone()), weights.collect(), share);
    };
    let (rank, ranks) = (pass.ctx.cp.rank(), pass.ctx.cp.size());
    let all: Vec<Section> = inputs.iter().flat_map(|(_, sections)| sections.iter().copied()).collect();
    let rows = ops::concat(pass.g, &inputs.map(|(x, _)| x))?;
    let rows = ops::columns(pass.g, &rows, &Sections { sections: &all, ranks }.by_rank())?;
    let rows = to_sequences(pass.g, pass.ctx, &rows, &sharding)?;
    let own = ops::split(pass.g, &rows, inputs.map(|(_, sections)| Sections { sections, ranks }.own()))?;
    let mut of_heads = Vec::with_capacity(weights.len());
    for (weight, sections) in weights {
        of_heads.push(Sections { sections, ranks }.weight(pass, weight, rank)?);
    }
    let segments: Arc<[Segment]> = sharding.documents.as_slice().into();
    let y = scan(pass, None, own, of_heads, Share { ranks, segments: &segments })?;
    Ok(to_shares(pass.g, pass.ctx, &y, &sharding)?)
}

/// A section of a mixer's channels.
#[derive(Clone, Copy)]
pub(super) enum Section {
    /// So many channels by heads: ranks take equal parts.
    Heads(usize),
    /// Channels that the heads of a group share. A rank takes those of its heads: whole groups, or copies where groups do not
    /// divide among the ranks.
    Groups(HeadLayout),
}

impl Section {
    fn size(self) -> usize {
        match self {
            Self::Heads(size) => size,
            Self::Groups(all) => all.groups * all.head_dim,
        }
    }

    /// The channels that `rank` of `ranks` takes.
    fn of(self, rank: usize, ranks: usize) -> Vec<Range<usize>> {
        match self {
            Self::Heads(size) => std::iter::once(rank * size / ranks..(rank + 1) * size / ranks).collect(),
            Self::Groups(all) => HeadPartition::new(all, ranks).keys_of(rank),
        }
    }
}

/// Channels of a mixer in sections that lie one after the other: context-parallel ranks each take their part of every section
/// and see whole sequences of it.
pub(super) struct Sections<'a> {
    pub(super) sections: &'a [Section],
    pub(super) ranks: usize,
}

impl Sections<'_> {
    /// Channels of all ranks together, each counted once.
    fn size(&self) -> usize {
        self.sections.iter().map(|s| s.size()).sum()
    }

    /// The channels that `rank` takes of all sections.
    fn of(&self, rank: usize) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.sections.iter().flat_map(move |section| {
            let first = start;
            start += section.size();
            section.of(rank, self.ranks).into_iter().map(move |part| first + part.start..first + part.end)
        })
    }

    /// Channels that one rank takes: as many for each.
    pub(super) fn own(&self) -> usize {
        self.of(0).map(|part| part.len()).sum()
    }

    /// The columns of `[T, W]`, those of each rank side by side.
    pub(super) fn by_rank(&self) -> Arc<[Columns]> {
        let run = |part: Range<usize>| Columns::Copy { start: part.start, len: part.len() };
        (0..self.ranks).flat_map(|rank| self.of(rank).map(run)).collect()
    }

    /// A rank's rows of a weight `[W, any]`, of every section its part; of one rank the weight itself.
    pub(super) fn weight(&self, pass: &mut Pass<'_>, w: &Var, rank: usize) -> Result<Var> {
        if self.ranks == 1 {
            return Ok(w.clone());
        }
        let width = w.value().numel() / self.size();
        let mut parts = Vec::new();
        for part in self.of(rank) {
            parts.push(ops::part(pass.g, w, part.start * width, [1, part.len() * width])?);
        }
        let joined = ops::concat(pass.g, &parts.iter().collect::<Vec<_>>())?;
        let mut shape = w.value().shape().to_vec();
        shape[0] = self.own();
        ops::reshape(pass.g, &joined, shape.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The columns that each rank gets, one number a column.
    fn by_rank(sections: &[Section], ranks: usize) -> Vec<Vec<usize>> {
        let sections = Sections { sections, ranks };
        let column = |run: &Columns| match *run {
            Columns::Copy { start, len } => start..start + len,
            Columns::Zero { .. } => 0..0,
        };
        let all: Vec<usize> = sections.by_rank().iter().flat_map(column).collect();
        assert_eq!(all.len(), ranks * sections.own());
        all.chunks(sections.own()).map(<[usize]>::to_vec).collect()
    }

    #[test]
    fn ranks_take_the_channels_of_their_heads_and_of_the_groups_these_share() {
        // Six heads of one channel, in groups that have two channels each.
        let of = |groups: usize, ranks| {
            let layout = HeadLayout { groups, heads_per_group: 6 / groups, head_dim: 2 };
            by_rank(&[Section::Heads(6), Section::Groups(layout)], ranks)
        };
        assert_eq!(of(2, 2), [vec![0, 1, 2, 6, 7], vec![3, 4, 5, 8, 9]]);
        // All ranks have a copy of the one group.
        assert_eq!(of(1, 3), [vec![0, 1, 6, 7], vec![2, 3, 6, 7], vec![4, 5, 6, 7]]);
        // Groups of two heads on ranks of three: every head has a copy of its own.
        assert_eq!(of(3, 2), [vec![0, 1, 2, 6, 7, 6, 7, 8, 9], vec![3, 4, 5, 8, 9, 10, 11, 10, 11]]);
    }
}
