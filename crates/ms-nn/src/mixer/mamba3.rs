//! Mamba3's mixer. It runs in f32 between its two projections.

use super::{Mixer, Section, Sections, remembered_in, wide};
use crate::cache::{LayerCache, LayerMemory};
use crate::params::{Linear, Scope};
use crate::pass::Pass;
use ms_core::{HeadLayout, Mamba3Shape, Norm, ParamId, Result, Segment, TurnedPairs, Var, ops};
use ms_dist::{to_sequences, to_shares};
use ms_spec::{Mamba3, Role};
use std::sync::Arc;

/// Mamba3's mixer: the heads of one tensor-parallel rank. Each rank makes the keys, queries and angles that all heads share.
#[derive(Clone, Debug)]
pub(crate) struct Mamba3Mixer {
    /// Whole on every rank, which uses the rows of its heads and those that heads share.
    input: ParamId,
    /// Of keys and of queries.
    norms: [ParamId; 2],
    /// `dt_bias`, biases of keys and of queries, `D`.
    single: [ParamId; 4],
    /// Inputs, gates and outputs by rank.
    by_rank: Option<[ParamId; 3]>,
    out: Linear,
    /// Of the rank's heads.
    sizes: Mamba3,
    shape: Mamba3Shape,
}

/// The sections of the input projection: heads share keys, queries and angles.
fn sections(m: &Mamba3) -> [Section; 8] {
    let [z, x, b, c, dt, rate, trap, angle] = m.sections();
    let shared = |head_dim| Section::Groups(HeadLayout { groups: 1, heads_per_group: m.heads, head_dim });
    let [z, x, dt, rate, trap] = [z, x, dt, rate, trap].map(Section::Heads);
    [z, x, shared(b), shared(c), dt, rate, trap, shared(angle)]
}

impl Mamba3Mixer {
    /// The mixer under `scope`, a layer's `mixer`, on one of `tp` ranks.
    pub(crate) fn new(scope: &Scope<'_>, sizes: &Mamba3, tp: usize) -> Self {
        let sizes = Mamba3 { heads: sizes.heads / tp, ..*sizes };
        let shape = Mamba3Shape {
            heads: sizes.heads,
            head_dim: sizes.head_dim,
            state: sizes.state,
            ranks: sizes.ranks.unwrap_or(1),
            angles: sizes.angles,
            pairs: if sizes.ranks.is_some() { TurnedPairs::Halves } else { TurnedPairs::Neighbours },
            rate_floor: sizes.rate_floor,
        };
        Self {
            input: scope.id(Role::InProj),
            norms: [Role::BNorm, Role::CNorm].map(|role| scope.id(role)),
            single: [Role::DtBias, Role::BBias, Role::CBias, Role::D].map(|role| scope.id(role)),
            by_rank: sizes.ranks.map(|_| [Role::MimoX, Role::MimoZ, Role::MimoO].map(|role| scope.id(role))),
            out: scope.linear(Role::OutProj),
            sizes,
            shape,
        }
    }

    /// Each of a token's keys or queries alone, scaled to mean square 1 and by a weight.
    fn normed(&self, pass: &mut Pass<'_>, x: &Var, weight: ParamId) -> Result<Var> {
        let (tokens, width) = x.value().as_matrix();
        let rows = ops::reshape(pass.g, x, [tokens * self.shape.ranks, self.shape.state])?;
        let weight = wide(pass, weight)?;
        let norm = Norm { eps: Mamba3::KEY_NORM_EPS, unit_offset: false };
        let normed = ops::rms_norm(pass.g, &rows, &weight, norm)?;
        ops::reshape(pass.g, &normed, [tokens, width])
    }

    /// The scan of the sections' columns, whose `weights` are the single ones, then those by rank.
    fn scan(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        [z, x, b, c, dt, rate, trap, angle]: &[Var; 8],
        weights: &[Var],
        shape: &Mamba3Shape,
        segments: &Arc<[Segment]>,
    ) -> Result<Var> {
        let (single, by_rank) = weights.split_at(self.single.len());
        let single = [&single[0], &single[1], &single[2], &single[3]];
        let by_rank = self.by_rank.map(|_| [&by_rank[0], &by_rank[1], &by_rank[2]]);
        let (slots, g) = (pass.slots, &mut *pass.g);
        remembered_in(slots, cache, |memory| {
            let memory = memory.map(|(last, states)| [last, states]);
            ops::mamba3(g, [x, z, b, c, dt, rate, trap, angle], single, by_rank, memory, segments, shape)
        })
    }
}

impl Mixer for Mamba3Mixer {
    fn forward(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, x: &Var) -> Result<Var> {
        let (dtype, m) = (x.value().dtype(), &self.sizes);
        let x = pass.enter(x)?;
        let (rank, ranks) = (pass.ctx.tp.rank(), pass.ctx.tp.size());
        let all = sections(&Mamba3 { heads: m.heads * ranks, ..*m });
        let w = pass.param(self.input);
        let w = Sections { sections: &all, ranks }.weight(pass, &w, rank)?;
        let all = ops::linear(pass.g, &x, &w, None)?;
        let all = ops::cast(pass.g, &all, dtype.wide())?;
        let [z, x, b, c, dt, rate, trap, angle] = ops::split(pass.g, &all, m.sections())?;
        let b = self.normed(pass, &b, self.norms[0])?;
        let c = self.normed(pass, &c, self.norms[1])?;
        let mut weights = Vec::with_capacity(7);
        for id in self.single.into_iter().chain(self.by_rank.into_iter().flatten()) {
            weights.push(wide(pass, id)?);
        }
        let inputs = [z, x, b, c, dt, rate, trap, angle];
        let y = match pass.batch.spread.clone() {
            None => {
                let segments = pass.batch.segments.clone();
                self.scan(pass, cache, &inputs, &weights, &self.shape, &segments)?
            }
            Some(spread) => {
                let (rank, ranks) = (pass.ctx.cp.rank(), pass.ctx.cp.size());
                let all = sections(m);
                let rows = ops::concat(pass.g, &inputs.each_ref())?;
                let rows = ops::columns(pass.g, &rows, &Sections { sections: &all, ranks }.by_rank())?;
                let rows = to_sequences(pass.g, pass.ctx, &rows, &spread)?;
                let own = Mamba3 { heads: m.heads / ranks, ..*m };
                let inputs = ops::split(pass.g, &rows, own.sections())?;
                let by_head = Sections { sections: &[Section::Heads(m.heads)], ranks };
                let mut of_heads = Vec::with_capacity(weights.len());
                for weight in &weights {
                    of_heads.push(by_head.weight(pass, weight, rank)?);
                }
                let shape = Mamba3Shape { heads: own.heads, ..self.shape };
                let documents: Arc<[Segment]> = spread.documents.as_slice().into();
                let y = self.scan(pass, None, &inputs, &of_heads, &shape, &documents)?;
                to_shares(pass.g, pass.ctx, &y, &spread)?
            }
        };
        let y = ops::cast(pass.g, &y, dtype)?;
        pass.row_parallel(&y, self.out)
    }

    fn memory(&self) -> LayerMemory {
        let (last, states) = (self.shape.last(), self.shape.head_dim * self.shape.state);
        LayerMemory::Recurrent { history: [self.shape.heads, last], states: self.shape.heads * states }
    }
}
