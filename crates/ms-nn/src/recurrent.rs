//! Recurrent mixers: Mamba2 and Gated DeltaNet. Their scans run in f32.

use crate::cache::LayerCache;
use crate::layer::Pass;
use crate::params::{Linear, Scope};
use ms_core::{Activation, DeltaRule, Norm, ParamId, Result, Run, Segment, StateSpace, Tensor, Var, ops};
use ms_dist::{to_sequences, to_shares};
use ms_spec::{GatedDelta, Mamba2, ModelConfig};
use std::sync::Arc;

/// A parameter, unrounded: f32, or f64.
pub(crate) fn wide(pass: &mut Pass<'_>, id: ParamId) -> Result<Var> {
    let w = pass.param(id);
    ops::cast(pass.g, &w, w.value().dtype().wide())
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

/// Channels of a mixer by heads, in sections that lie one after the other: context-parallel ranks each take their part of
/// every section and see whole sequences of it.
struct Sections<'a> {
    sizes: &'a [usize],
    ranks: usize,
}

impl Sections<'_> {
    /// Elements of one rank's part of every section.
    fn own(&self) -> Vec<usize> {
        self.sizes.iter().map(|n| n / self.ranks).collect()
    }

    /// The columns of `[T, Σ sizes]`, those of each rank side by side.
    fn by_rank(&self) -> Arc<[Run]> {
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
    fn weight(&self, pass: &mut Pass<'_>, w: &Var, rank: usize) -> Result<Var> {
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
        let x = pass.enter(x)?;
        let all = pass.linear(&x, self.input)?;
        let all = ops::cast(pass.g, &all, dtype.wide())?;
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
        let scan = |pass: &mut Pass<'_>,
                    cache,
                    (convolved, dt): (&Var, &Var),
                    (w, b): (&Var, Option<&Var>),
                    weights: &[Var; 3],
                    shape: &StateSpace,
                    segments: &Arc<[Segment]>| {
            let (inner, bc) = (shape.heads * shape.head_dim, shape.groups * shape.state);
            let (slots, g) = (pass.slots, &mut *pass.g);
            remembered_in(slots, cache, |memory| {
                let (history, states) = memory.map_or((None, None), |(h, s)| (Some(h), Some(s)));
                let convolved = ops::convolution(g, convolved, w, b, history, segments)?;
                let [x, b, c] = ops::split(g, &convolved, [inner, bc, bc])?;
                ops::state_space(g, [&x, &b, &c, dt], weights.each_ref(), states, segments, shape)
            })
        };
        let y = match pass.batch.spread.clone() {
            None => {
                let segments = pass.batch.segments.clone();
                scan(pass, cache, (&convolved, &dt), (&w, b.as_ref()), &weights, &shape, &segments)?
            }
            Some(spread) => {
                let (rank, ranks) = (pass.ctx.cp.rank(), pass.ctx.cp.size());
                let all = Sections { sizes: &[inner, bc, bc, heads], ranks };
                let (channels, by_head) =
                    (Sections { sizes: &[inner, bc, bc], ranks }, Sections { sizes: &[heads], ranks });
                let rows = ops::concat(pass.g, &[&convolved, &dt])?;
                let rows = ops::columns(pass.g, &rows, &all.by_rank())?;
                let rows = to_sequences(pass.g, pass.ctx, &rows, &spread)?;
                let own = channels.own().iter().sum::<usize>();
                let [convolved, dt] = ops::split(pass.g, &rows, [own, heads / ranks])?;
                let w = channels.weight(pass, &w, rank)?;
                let b = b.map(|b| channels.weight(pass, &b, rank)).transpose()?;
                let mut own = Vec::with_capacity(3);
                for weight in &weights {
                    own.push(by_head.weight(pass, weight, rank)?);
                }
                let own: [Var; 3] = own.try_into().expect("three weights by head");
                let shape = StateSpace { heads: heads / ranks, groups: m.groups / ranks, ..shape };
                let documents: Arc<[Segment]> = spread.documents.as_slice().into();
                let y = scan(pass, None, (&convolved, &dt), (&w, b.as_ref()), &own, &shape, &documents)?;
                to_shares(pass.g, pass.ctx, &y, &spread)?
            }
        };
        let gated = ops::gate(pass.g, &y, &z, Activation::Silu)?;
        // RMSNorm over each group, then a scale per channel.
        let tokens = gated.value().as_matrix().0;
        let width = inner / m.groups;
        let rows = ops::reshape(pass.g, &gated, [tokens * m.groups, width])?;
        let ones = Tensor::from_reals(pass.g.device().arena(), dtype.wide(), [width], &vec![1.0; width])?;
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
        let x = &pass.enter(x)?;
        let all = pass.linear(x, self.qkvz)?;
        let all = ops::columns(pass.g, &all, &self.unpack)?;
        let [qkv, z] = ops::split(pass.g, &all, [qk + values, values])?;
        let qkv = ops::cast(pass.g, &qkv, dtype.wide())?;
        let ba = pass.linear(x, self.ba)?;
        let ba = ops::columns(pass.g, &ba, &self.unpack_ba)?;
        let ba = ops::cast(pass.g, &ba, dtype.wide())?;
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
        let scan = |pass: &mut Pass<'_>,
                    cache,
                    [qkv, decay, beta]: [&Var; 3],
                    w: &Var,
                    shape: &DeltaRule,
                    segments: &Arc<[Segment]>| {
            let (qk, values) = (shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim);
            let (slots, g) = (pass.slots, &mut *pass.g);
            remembered_in(slots, cache, |memory| {
                let (history, states) = memory.map_or((None, None), |(h, s)| (Some(h), Some(s)));
                let convolved = ops::convolution(g, qkv, w, None, history, segments)?;
                let [q, k, v] = ops::split(g, &convolved, [qk, qk, values])?;
                ops::delta_rule(g, [&q, &k, &v, decay, beta], states, segments, shape)
            })
        };
        let y = match pass.batch.spread.clone() {
            None => {
                let segments = pass.batch.segments.clone();
                scan(pass, cache, [&qkv, &decay, &beta], &w, &shape, &segments)?
            }
            Some(spread) => {
                let (rank, ranks) = (pass.ctx.cp.rank(), pass.ctx.cp.size());
                let channels = Sections { sizes: &[qk / 2, qk / 2, values], ranks };
                let all = Sections { sizes: &[qk / 2, qk / 2, values, s.value_heads, s.value_heads], ranks };
                let rows = ops::concat(pass.g, &[&qkv, &decay, &beta])?;
                let rows = ops::columns(pass.g, &rows, &all.by_rank())?;
                let rows = to_sequences(pass.g, pass.ctx, &rows, &spread)?;
                let heads = s.value_heads / ranks;
                let own = channels.own().iter().sum::<usize>();
                let [qkv, decay, beta] = ops::split(pass.g, &rows, [own, heads, heads])?;
                let w = channels.weight(pass, &w, rank)?;
                let shape = DeltaRule { key_heads: s.key_heads / ranks, value_heads: heads, ..shape };
                let documents: Arc<[Segment]> = spread.documents.as_slice().into();
                let y = scan(pass, None, [&qkv, &decay, &beta], &w, &shape, &documents)?;
                to_shares(pass.g, pass.ctx, &y, &spread)?
            }
        };
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
