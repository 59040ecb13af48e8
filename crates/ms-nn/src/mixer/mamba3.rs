//! Mamba3's mixer. It runs in f32 between its two projections.

use super::{remembered_in, wide};
use crate::cache::{LayerCache, LayerMemory};
use crate::layer::Pass;
use crate::params::{Linear, Scope};
use ms_core::{Norm, ParamId, Result, Trapezoid, TurnedPairs, Var, ops};
use ms_spec::Mamba3;

#[derive(Clone, Debug)]
pub(crate) struct Mamba3Mixer {
    input: Linear,
    /// Of keys and of queries.
    norms: [ParamId; 2],
    /// `dt_bias`, biases of keys and of queries, `D`.
    single: [ParamId; 4],
    /// Inputs, gates and outputs by rank.
    by_rank: Option<[ParamId; 3]>,
    out: Linear,
    sizes: Mamba3,
    shape: Trapezoid,
}

impl Mamba3Mixer {
    /// The mixer under `scope`, a layer's `mixer`.
    pub(crate) fn new(scope: &Scope<'_>, sizes: &Mamba3) -> Self {
        let shape = Trapezoid {
            heads: sizes.heads,
            head_dim: sizes.head_dim,
            state: sizes.state,
            ranks: sizes.ranks.unwrap_or(1),
            angles: sizes.angles,
            pairs: if sizes.ranks.is_some() { TurnedPairs::Halves } else { TurnedPairs::Neighbours },
            rate_floor: sizes.rate_floor as f32,
        };
        Self {
            input: scope.linear("in_proj"),
            norms: ["B_norm.weight", "C_norm.weight"].map(|name| scope.id(name)),
            single: ["dt_bias", "B_bias", "C_bias", "D"].map(|name| scope.id(name)),
            by_rank: sizes.ranks.map(|_| ["mimo_x", "mimo_z", "mimo_o"].map(|name| scope.id(name))),
            out: scope.linear("out_proj"),
            sizes: *sizes,
            shape,
        }
    }

    /// What it keeps of a sequence: what the last token left, and the states.
    pub(crate) fn memory(&self) -> LayerMemory {
        let (last, states) = (self.shape.last(), self.shape.head_dim * self.shape.state);
        LayerMemory::Recurrent { history: [self.shape.heads, last], states: self.shape.heads * states }
    }

    /// Each of a token's keys or queries alone, scaled to mean square 1 and by a weight.
    fn normed(&self, pass: &mut Pass<'_>, x: &Var, weight: ParamId) -> Result<Var> {
        let (tokens, width) = x.value().as_matrix();
        let rows = ops::reshape(pass.g, x, [tokens * self.shape.ranks, self.shape.state])?;
        let weight = wide(pass, weight)?;
        let norm = Norm { eps: Mamba3::KEY_NORM_EPS as f32, unit_offset: false };
        let normed = ops::rms_norm(pass.g, &rows, &weight, norm)?;
        ops::reshape(pass.g, &normed, [tokens, width])
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        x: &Var,
    ) -> Result<Var> {
        let dtype = x.value().dtype();
        let all = pass.linear(x, self.input)?;
        let all = ops::cast(pass.g, &all, all.value().dtype().wide())?;
        let [z, x, b, c, dt, rate, trap, angle] = ops::split(pass.g, &all, self.sizes.sections())?;
        let b = self.normed(pass, &b, self.norms[0])?;
        let c = self.normed(pass, &c, self.norms[1])?;
        let mut weights = Vec::with_capacity(7);
        for id in self.single.into_iter().chain(self.by_rank.into_iter().flatten()) {
            weights.push(wide(pass, id)?);
        }
        let (single, by_rank) = weights.split_at(self.single.len());
        let single = [&single[0], &single[1], &single[2], &single[3]];
        let by_rank = self.by_rank.map(|_| [&by_rank[0], &by_rank[1], &by_rank[2]]);
        let segments = pass.batch.segments.clone();
        let (slots, g) = (pass.slots, &mut *pass.g);
        let y = remembered_in(slots, cache, |memory| {
            let memory = memory.map(|(last, states)| [last, states]);
            let inputs = [&x, &z, &b, &c, &dt, &rate, &trap, &angle];
            ops::trapezoid(g, inputs, single, by_rank, memory, &segments, &self.shape)
        })?;
        let y = ops::cast(pass.g, &y, dtype)?;
        pass.linear(&y, self.out)
    }
}
