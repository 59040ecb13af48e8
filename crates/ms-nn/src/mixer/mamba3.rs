//! Mamba-3. It runs in f32 between its two projections.

use super::{Cut, Section, Sections, TokenMixer, over_documents, remembered_in, wide};
use crate::cache::{LayerCache, LayerMemory};
use crate::params::{Linear, Scope};
use crate::pass::Pass;
use ms_core::{HeadLayout, Mamba3Shape, Norm, ParamId, Result, TurnedPairs, Var, ops};
use ms_spec::{Mamba3, Role};

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
    /// For the rank's heads.
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
}

impl TokenMixer for Mamba3Mixer {
    fn forward(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, x: &Var) -> Result<Var> {
        let (dtype, m) = (x.value().dtype(), &self.sizes);
        let x = pass.enter(x)?;
        let (rank, ranks) = (pass.ctx.tp.rank(), pass.ctx.tp.size());
        let all = sections(&Mamba3 { heads: m.heads * ranks, ..*m });
        let w = pass.param(self.input);
        let w = Sections { sections: &all, ranks }.weight(pass, &w, rank)?;
        let all = ops::linear(pass.g, &x, &w, None)?;
        let all = ops::cast(pass.g, &all, dtype.wide())?;
        let mut inputs = ops::split(pass.g, &all, m.sections())?;
        for (keys, norm) in inputs[2..4].iter_mut().zip(self.norms) {
            *keys = self.normed(pass, keys, norm)?;
        }
        let mut weights = Vec::with_capacity(7);
        for id in self.single.into_iter().chain(self.by_rank.into_iter().flatten()) {
            weights.push(wide(pass, id)?);
        }
        let (of, heads) = (sections(m), [Section::Heads(m.heads)]);
        let inputs = std::array::from_fn(|i| (&inputs[i], std::slice::from_ref(&of[i])));
        let given: Vec<Cut<'_>> = weights.iter().map(|w| (w, &heads[..])).collect();
        let y =
            over_documents(pass, cache, inputs, &given, |pass, cache, inputs: [Var; 8], given, share| {
                let [z, x, b, c, dt, rate, trap, angle] = inputs.each_ref();
                let (single, by_rank) = given.split_at(self.single.len());
                let single = [&single[0], &single[1], &single[2], &single[3]];
                let by_rank = self.by_rank.map(|_| [&by_rank[0], &by_rank[1], &by_rank[2]]);
                let shape = Mamba3Shape { heads: m.heads / share.ranks, ..self.shape };
                let (slots, g, segments) = (pass.slots, &mut *pass.g, share.segments);
                remembered_in(slots, cache, |memory| {
                    let memory = memory.map(|(last, states)| [last, states]);
                    let inputs = [x, z, b, c, dt, rate, trap, angle];
                    ops::mamba3(g, inputs, single, by_rank, memory, segments, &shape)
                })
            })?;
        let y = ops::cast(pass.g, &y, dtype)?;
        pass.row_parallel(&y, self.out)
    }

    fn memory(&self) -> LayerMemory {
        let (last, states) = (self.shape.last(), self.shape.head_dim * self.shape.state);
        LayerMemory::Recurrent { history: [self.shape.heads, last], states: self.shape.heads * states }
    }
}
