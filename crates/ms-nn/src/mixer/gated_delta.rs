//! Gated DeltaNet.

use super::{Section, TokenMixer, over_documents, remembered_in, wide};
use crate::cache::{LayerCache, LayerMemory};
use crate::params::{Linear, Scope};
use crate::pass::Pass;
use ms_core::{Activation, Columns, DeltaRule, HeadLayout, Norm, ParamId, Result, Var, ops};
use ms_dist::HeadPartition;
use ms_spec::{GatedDelta, ModelConfig, Role};
use std::sync::Arc;

/// Gated DeltaNet's mixer.
#[derive(Clone, Debug)]
pub(crate) struct GatedDeltaMixer {
    qkvz: Linear,
    ba: Linear,
    conv: Linear,
    a_log: ParamId,
    dt_bias: ParamId,
    norm: ParamId,
    out: Linear,
    sizes: GatedDelta,
    eps: f64,
    /// Columns of the projection by key head, as `[queries | keys | values | gates]`.
    unpack: Arc<[Columns]>,
    /// Columns of the small projection by key head, as `[strengths | decays]`.
    unpack_ba: Arc<[Columns]>,
}

impl GatedDeltaMixer {
    /// The mixer under `scope`, a layer's `self_attention`.
    pub(crate) fn new(scope: &Scope<'_>, c: &ModelConfig, sizes: &GatedDelta, tp: usize) -> Self {
        let (key_heads, value_heads) = (sizes.key_heads / tp, sizes.value_heads / tp);
        let sizes = &GatedDelta { key_heads, value_heads, ..*sizes };
        let GatedDelta { key_heads: g, value_heads, key_dim: k, value_dim, .. } = *sizes;
        let per_key = value_heads / g;
        let v = per_key * value_dim;
        let copy = |start, len| Columns::Copy { start, len };
        let row = 2 * k + 2 * v;
        let part = |offset: usize, len: usize| (0..g).map(move |i| copy(i * row + offset, len));
        let unpack = part(0, k).chain(part(k, k)).chain(part(2 * k, v)).chain(part(2 * k + v, v));
        let small = |offset: usize| (0..g).map(move |i| copy((2 * i + offset) * per_key, per_key));
        Self {
            qkvz: scope.linear(Role::InProjQkvz),
            ba: scope.linear(Role::InProjBa),
            conv: scope.linear(Role::Conv1d),
            a_log: scope.id(Role::ALog),
            dt_bias: scope.id(Role::DtBias),
            norm: scope.id(Role::Norm),
            out: scope.linear(Role::OutProj),
            sizes: *sizes,
            eps: c.norm_eps,
            unpack: unpack.collect(),
            unpack_ba: small(0).chain(small(1)).collect(),
        }
    }
}

impl TokenMixer for GatedDeltaMixer {
    fn forward(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, x: &Var) -> Result<Var> {
        let dtype = x.value().dtype();
        let s = &self.sizes;
        let (qk, values) = (s.qk_rows(), s.value_rows());
        let [all, ba] = pass.column_parallel(x, [self.qkvz, self.ba])?;
        let all = ops::columns(pass.g, &all, &self.unpack)?;
        let [qkv, z] = ops::split(pass.g, &all, [qk + values, values])?;
        let qkv = ops::cast(pass.g, &qkv, dtype.wide())?;
        let ba = ops::columns(pass.g, &ba, &self.unpack_ba)?;
        let ba = ops::cast(pass.g, &ba, dtype.wide())?;
        let [b, a] = ops::split(pass.g, &ba, [s.value_heads, s.value_heads])?;
        let beta = ops::activation(pass.g, &b, Activation::Sigmoid, false)?;
        let (a_log, dt_bias) = (wide(pass, self.a_log)?, wide(pass, self.dt_bias)?);
        let decay = ops::decay(pass.g, &a, &a_log, &dt_bias)?;
        let w = wide(pass, self.conv.weight)?;
        let (key_heads, value_heads, key_dim, value_dim) =
            (s.key_heads, s.value_heads, s.key_dim, s.value_dim);
        let layout =
            HeadLayout { groups: key_heads, heads_per_group: value_heads / key_heads, head_dim: key_dim };
        let (key, numbers) = (Section::Groups(layout), [Section::Heads(value_heads)]);
        let channels = [key, key, Section::Heads(values)];
        let inputs = [(&qkv, &channels[..]), (&decay, &numbers[..]), (&beta, &numbers[..])];
        let given = [(&w, &channels[..])];
        let y = over_documents(pass, cache, inputs, &given, |pass, cache, [qkv, decay, beta], w, share| {
            let key_heads = HeadPartition::new(layout, share.ranks).own.groups;
            let shape = DeltaRule { key_heads, value_heads: value_heads / share.ranks, key_dim, value_dim };
            let (qk, values) = (key_heads * key_dim, shape.value_heads * value_dim);
            let (slots, g, segments) = (pass.slots, &mut *pass.g, share.segments);
            remembered_in(slots, cache, |memory| {
                let (history, states) = memory.map_or((None, None), |(h, s)| (Some(h), Some(s)));
                let convolved = ops::convolution(g, &qkv, &w[0], None, history, segments)?;
                let [q, k, v] = ops::split(g, &convolved, [qk, qk, values])?;
                ops::delta_rule(g, [&q, &k, &v, &decay, &beta], states, segments, &shape)
            })
        })?;
        let y = ops::cast(pass.g, &y, dtype)?;
        let tokens = y.value().as_matrix().0;
        let heads = ops::reshape(pass.g, &y, [tokens * s.value_heads, s.value_dim])?;
        let scale = pass.param(self.norm);
        let normed = ops::rms_norm(pass.g, &heads, &scale, Norm { eps: self.eps, unit_offset: false })?;
        let normed = ops::reshape(pass.g, &normed, [tokens, values])?;
        let gated = ops::gate(pass.g, &normed, &z, Activation::Silu)?;
        pass.row_parallel(&gated, self.out)
    }

    fn memory(&self) -> LayerMemory {
        let s = &self.sizes;
        let history = [s.conv - 1, s.qk_rows() + s.value_rows()];
        LayerMemory::Recurrent { history, states: s.value_rows() * s.key_dim }
    }
}
