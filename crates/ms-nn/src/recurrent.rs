//! Recurrent mixers: Mamba2 and Gated DeltaNet. Their scans run in f32.

use crate::cache::LayerCache;
use crate::layer::Pass;
use crate::params::{Linear, Scope};
use ms_core::{Activation, DType, DeltaRule, Norm, ParamId, Result, Run, StateSpace, Tensor, Var, ops};
use ms_spec::{GatedDelta, Mamba2, ModelConfig};
use std::sync::Arc;

/// A parameter as f32.
pub(crate) fn wide(pass: &mut Pass<'_>, id: ParamId) -> Result<Var> {
    let w = pass.param(id);
    ops::cast(pass.g, &w, DType::F32)
}

/// Runs `work` with the convolution's history and the scan's states of the segments at hand, if there is a cache, and
/// keeps what they become.
#[allow(clippy::needless_pass_by_value)] // an optional mutable reference is handed over
pub(crate) fn remembered_in(
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

/// Mamba2's mixer.
#[derive(Clone, Debug)]
pub(crate) struct StateSpaceMixer {
    input: Linear,
    conv: Linear,
    a_log: ParamId,
    d: ParamId,
    dt_bias: ParamId,
    norm: ParamId,
    out: Linear,
    sizes: Mamba2,
}

impl StateSpaceMixer {
    /// The mixer under `scope`, a layer's `mixer`.
    pub(crate) fn new(scope: &Scope<'_>, sizes: &Mamba2, tp: usize) -> Self {
        Self {
            input: scope.linear("in_proj"),
            conv: scope.linear("conv1d"),
            a_log: scope.id("A_log"),
            d: scope.id("D"),
            dt_bias: scope.id("dt_bias"),
            norm: scope.id("norm.weight"),
            out: scope.linear("out_proj"),
            sizes: Mamba2 { heads: sizes.heads / tp, groups: sizes.groups / tp, ..*sizes },
        }
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        x: &Var,
    ) -> Result<Var> {
        let dtype = x.value().dtype();
        let m = &self.sizes;
        let [inner, _, bc, _, heads] = m.sections();
        let x = pass.ctx.enter_tp(pass.g, x)?;
        let all = pass.linear(&x, self.input)?;
        let all = ops::cast(pass.g, &all, DType::F32)?;
        let [z, convolved, dt] = ops::split(pass.g, &all, [inner, inner + 2 * bc, heads])?;
        let (w, b) = (wide(pass, self.conv.weight)?, self.conv.bias.map(|b| wide(pass, b)).transpose()?);
        let weights = [wide(pass, self.a_log)?, wide(pass, self.d)?, wide(pass, self.dt_bias)?];
        let shape = StateSpace {
            heads,
            head_dim: m.head_dim,
            groups: m.groups,
            state: m.state,
            step_limit: (m.dt_limit.0 as f32, m.dt_limit.1.map_or(f32::INFINITY, |l| l as f32)),
        };
        let segments = pass.batch.segments.clone();
        let (slots, g) = (pass.slots, &mut *pass.g);
        let y = remembered_in(slots, cache, |memory| {
            let (history, states) = memory.map_or((None, None), |(h, s)| (Some(h), Some(s)));
            let convolved = ops::convolution(g, &convolved, &w, b.as_ref(), history, &segments)?;
            let [x, b, c] = ops::split(g, &convolved, [inner, bc, bc])?;
            ops::state_space(g, [&x, &b, &c, &dt], weights.each_ref(), states, &segments, &shape)
        })?;
        let gated = ops::gate(pass.g, &y, &z, Activation::Silu)?;
        // RMSNorm over each group, then a scale per channel.
        let tokens = gated.value().as_matrix().0;
        let width = inner / m.groups;
        let rows = ops::reshape(pass.g, &gated, [tokens * m.groups, width])?;
        let ones = Tensor::from_slice(pass.g.device().arena(), [width], &vec![1f32; width])?;
        let ones = pass.g.constant(ones);
        let normed =
            ops::rms_norm(pass.g, &rows, &ones, Norm { eps: m.norm_eps as f32, unit_offset: false })?;
        let normed = ops::reshape(pass.g, &normed, [tokens, inner])?;
        let normed = ops::cast(pass.g, &normed, dtype)?;
        let scale = pass.param(self.norm);
        let y = ops::scale_columns(pass.g, &normed, &scale)?;
        pass.row_parallel(&y, self.out)
    }
}

/// Gated DeltaNet's mixer.
#[derive(Clone, Debug)]
pub(crate) struct DeltaMixer {
    qkvz: Linear,
    ba: Linear,
    conv: Linear,
    a_log: ParamId,
    dt_bias: ParamId,
    norm: ParamId,
    out: Linear,
    sizes: GatedDelta,
    eps: f32,
    /// Columns of the projection by key head, as `[queries | keys | values | gates]`.
    unpack: Arc<[Run]>,
    /// Columns of the small projection by key head, as `[strengths | decays]`.
    unpack_ba: Arc<[Run]>,
}

impl DeltaMixer {
    /// The mixer under `scope`, a layer's `self_attention`.
    pub(crate) fn new(scope: &Scope<'_>, c: &ModelConfig, sizes: &GatedDelta, tp: usize) -> Self {
        let (key_heads, value_heads) = (sizes.key_heads / tp, sizes.value_heads / tp);
        let sizes = &GatedDelta { key_heads, value_heads, ..*sizes };
        let GatedDelta { key_heads: g, value_heads, key_dim: k, value_dim, .. } = *sizes;
        let per_key = value_heads / g;
        let v = per_key * value_dim;
        let copy = |start, len| Run::Copy { start, len };
        let row = 2 * k + 2 * v;
        let part = |offset: usize, len: usize| (0..g).map(move |i| copy(i * row + offset, len));
        let unpack = part(0, k).chain(part(k, k)).chain(part(2 * k, v)).chain(part(2 * k + v, v));
        let small = |offset: usize| (0..g).map(move |i| copy((2 * i + offset) * per_key, per_key));
        Self {
            qkvz: scope.linear("in_proj_qkvz"),
            ba: scope.linear("in_proj_ba"),
            conv: scope.linear("conv1d"),
            a_log: scope.id("A_log"),
            dt_bias: scope.id("dt_bias"),
            norm: scope.id("norm.weight"),
            out: scope.linear("out_proj"),
            sizes: *sizes,
            eps: c.norm_eps as f32,
            unpack: unpack.collect(),
            unpack_ba: small(0).chain(small(1)).collect(),
        }
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        x: &Var,
    ) -> Result<Var> {
        let dtype = x.value().dtype();
        let s = &self.sizes;
        let (qk, values) = (s.qk_rows(), s.value_rows());
        let x = &pass.ctx.enter_tp(pass.g, x)?;
        let all = pass.linear(x, self.qkvz)?;
        let all = ops::columns(pass.g, &all, &self.unpack)?;
        let [qkv, z] = ops::split(pass.g, &all, [qk + values, values])?;
        let qkv = ops::cast(pass.g, &qkv, DType::F32)?;
        let ba = pass.linear(x, self.ba)?;
        let ba = ops::columns(pass.g, &ba, &self.unpack_ba)?;
        let ba = ops::cast(pass.g, &ba, DType::F32)?;
        let [b, a] = ops::split(pass.g, &ba, [s.value_heads, s.value_heads])?;
        let beta = ops::activation(pass.g, &b, Activation::Sigmoid, false)?;
        let (a_log, dt_bias) = (wide(pass, self.a_log)?, wide(pass, self.dt_bias)?);
        let decay = ops::decay(pass.g, &a, &a_log, &dt_bias)?;
        let w = wide(pass, self.conv.weight)?;
        let shape = DeltaRule {
            key_heads: s.key_heads,
            value_heads: s.value_heads,
            key_dim: s.key_dim,
            value_dim: s.value_dim,
        };
        let segments = pass.batch.segments.clone();
        let (slots, g) = (pass.slots, &mut *pass.g);
        let y = remembered_in(slots, cache, |memory| {
            let (history, states) = memory.map_or((None, None), |(h, s)| (Some(h), Some(s)));
            let convolved = ops::convolution(g, &qkv, &w, None, history, &segments)?;
            let [q, k, v] = ops::split(g, &convolved, [qk / 2, qk / 2, values])?;
            ops::delta_rule(g, [&q, &k, &v, &decay, &beta], states, &segments, &shape)
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
}
