//! Mamba2.

use super::{Cut, Section, TokenMixer, over_documents, remembered_in, wide};
use crate::cache::{LayerCache, LayerMemory};
use crate::params::{Linear, Scope};
use crate::pass::Pass;
use ms_core::{Activation, HeadLayout, Norm, ParamId, Result, StateSpace, Tensor, Var, ops};
use ms_dist::HeadPartition;
use ms_spec::{Mamba2, Role};

/// Mamba2's mixer.
#[derive(Clone, Debug)]
pub(crate) struct Mamba2Mixer {
    input: Linear,
    conv: Linear,
    a_log: ParamId,
    d: ParamId,
    dt_bias: ParamId,
    norm: ParamId,
    out: Linear,
    sizes: Mamba2,
}

impl Mamba2Mixer {
    /// The mixer under `scope`, a layer's `mixer`.
    pub(crate) fn new(scope: &Scope<'_>, sizes: &Mamba2, tp: usize) -> Self {
        Self {
            input: scope.linear(Role::InProj),
            conv: scope.linear(Role::Conv1d),
            a_log: scope.id(Role::ALog),
            d: scope.id(Role::D),
            dt_bias: scope.id(Role::DtBias),
            norm: scope.id(Role::Norm),
            out: scope.linear(Role::OutProj),
            sizes: Mamba2 { heads: sizes.heads / tp, groups: sizes.groups / tp, ..*sizes },
        }
    }
}

impl TokenMixer for Mamba2Mixer {
    fn forward(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, x: &Var) -> Result<Var> {
        let dtype = x.value().dtype();
        let m = &self.sizes;
        let [inner, _, bc, _, heads] = m.sections();
        let [all] = pass.column_parallel(x, [self.input])?;
        let all = ops::cast(pass.g, &all, dtype.wide())?;
        let [z, convolved, dt] = ops::split(pass.g, &all, [inner, inner + 2 * bc, heads])?;
        let (w, b) = (wide(pass, self.conv.weight)?, self.conv.bias.map(|b| wide(pass, b)).transpose()?);
        let weights = [wide(pass, self.a_log)?, wide(pass, self.d)?, wide(pass, self.dt_bias)?];
        let shape = StateSpace {
            heads,
            head_dim: m.head_dim,
            groups: m.groups,
            state: m.state,
            step_limit: (m.dt_limit.0, m.dt_limit.1.unwrap_or(f64::INFINITY)),
        };
        let layout = HeadLayout { groups: m.groups, heads_per_group: heads / m.groups, head_dim: m.state };
        let (shared, numbers) = (Section::Groups(layout), [Section::Heads(heads)]);
        let channels = [Section::Heads(inner), shared, shared];
        let by_channel = [Some(&w), b.as_ref()].into_iter().flatten().map(|w| (w, &channels[..]));
        let given: Vec<Cut<'_>> = by_channel.chain(weights.iter().map(|w| (w, &numbers[..]))).collect();
        let inputs = [(&convolved, &channels[..]), (&dt, &numbers[..])];
        let y = over_documents(pass, cache, inputs, &given, |pass, cache, [convolved, dt], given, share| {
            let (conv, own) = given.split_at(given.len() - 3);
            let groups = HeadPartition::new(layout, share.ranks).own.groups;
            let shape = StateSpace { heads: heads / share.ranks, groups, ..shape };
            let (inner, bc) = (shape.heads * shape.head_dim, shape.groups * shape.state);
            let (slots, g, segments) = (pass.slots, &mut *pass.g, share.segments);
            remembered_in(slots, cache, |memory| {
                let (history, states) = memory.map_or((None, None), |(h, s)| (Some(h), Some(s)));
                let convolved = ops::convolution(g, &convolved, &conv[0], conv.get(1), history, segments)?;
                let [x, b, c] = ops::split(g, &convolved, [inner, bc, bc])?;
                ops::state_space(g, [&x, &b, &c, &dt], [&own[0], &own[1], &own[2]], states, segments, &shape)
            })
        })?;
        let gated = ops::gate(pass.g, &y, &z, Activation::Silu)?;
        // RMSNorm over each group, then a scale per channel.
        let tokens = gated.value().as_matrix().0;
        let width = inner / m.groups;
        let rows = ops::reshape(pass.g, &gated, [tokens * m.groups, width])?;
        let ones = Tensor::from_reals(pass.g.device().arena(), dtype.wide(), [width], &vec![1.0; width])?;
        let ones = pass.g.constant(ones);
        let normed = ops::rms_norm(pass.g, &rows, &ones, Norm { eps: m.norm_eps, unit_offset: false })?;
        let normed = ops::reshape(pass.g, &normed, [tokens, inner])?;
        let normed = ops::cast(pass.g, &normed, dtype)?;
        let scale = pass.param(self.norm);
        let y = ops::scale_columns(pass.g, &normed, &scale)?;
        pass.row_parallel(&y, self.out)
    }

    fn memory(&self) -> LayerMemory {
        let [inner, _, bc, _, _] = self.sizes.sections();
        let history = [self.sizes.conv - 1, inner + 2 * bc];
        LayerMemory::Recurrent { history, states: inner * self.sizes.state }
    }
}
