//! Grouped-query attention.

use super::AttentionBuilder;
use super::training::AttentionProbe;
use crate::cache::{LayerCache, LayerMemory};
use crate::mixer::TokenMixer;
use crate::params::{Linear, Scope};
use crate::pass::Pass;
use crate::residual::NormShape;
use ms_core::{
    Activation, Alibi, AttentionDropout, AttentionOptions, AxisPlace, Columns, Error, Graph, HeadLayout,
    ParamId, QkvRows, Result, Rotary, Tensor, Var, ops,
};
use ms_dist::{
    ColumnExchange, HeadPartition, context_attention, picks_of_documents, to_sequences, to_shares,
};
use ms_spec::{Mixer, ModelConfig, Norm, Position, QkNorm, Role, Swapped};
use std::ops::Range;
use std::sync::Arc;

/// How queries, keys and values come out of the stream.
#[derive(Clone, Debug)]
enum Projection {
    /// One matrix; rows packed by group.
    Packed(Linear),
    /// A matrix each; with an output gate the queries' has `[query, gate]` per head.
    Separate { q: Linear, k: Linear, v: Linear },
    /// Queries alone; keys and values are those of the last layer with its own, before rotation and norms.
    Borrowed { q: Linear },
}

/// Attention of one layer.
#[derive(Clone, Debug)]
struct Attention {
    projection: Projection,
    qk_norm: Option<(Linear, Linear)>,
    out: Linear,
    /// To one number per head, whose sigmoid the head's output is multiplied by.
    head_gate: Option<Linear>,
    /// A score per head of a key whose value is zero.
    sinks: Option<ParamId>,
    options: AttentionOptions,
    shape: Arc<Grouped>,
}

/// What all layers share, or all of those with and all of those without the sliding window.
#[derive(Clone, Debug)]
struct Grouped {
    heads: HeadLayout,
    norm: NormShape,
    qk_norm: QkNorm,
    output_gate: bool,
    /// Some layers borrow keys and values.
    lends: bool,
    /// `None`: positions enter elsewhere.
    rotary: Option<Rotary>,
    /// Columns of `[queries | keys | values]` in packed order.
    pack: Arc<[Columns]>,
    /// The way back.
    unpack: Arc<[Columns]>,
    /// Columns of gated query projections: all queries, then all gates.
    gates_apart: Arc<[Columns]>,
    /// Queries, keys and values that ranks hand each other, where key/value heads do not divide among them.
    exchange: Option<Arc<ColumnExchange>>,
    /// Columns of the whole projections that the rank's queries and keys are.
    columns: [Vec<Range<usize>>; 2],
}

fn head_partition(c: &ModelConfig, layer: usize, ranks: usize) -> HeadPartition {
    let (all, groups) = c.heads_of(layer);
    let heads_per_group = all.checked_div(groups).unwrap_or(0);
    HeadPartition::new(HeadLayout { groups, heads_per_group, head_dim: c.head_dim }, ranks)
}

/// Columns of the packed rows that `layer` lends to later ones, on each of the `ranks` that share it.
pub fn shared_kv_columns(c: &ModelConfig, layer: usize, ranks: usize) -> usize {
    let own = head_partition(c, layer, ranks).own;
    (own.heads() + 2 * own.groups) * own.head_dim
}

/// What `rank` of the `ranks` that share a layer of grouped attention and the others hand each other between projections and
/// attention; `None`: nothing.
pub fn head_exchange(c: &ModelConfig, layer: usize, rank: usize, ranks: usize) -> Option<ColumnExchange> {
    let shares = head_partition(c, layer, ranks);
    if c.scores.output_gate { shares.of_projections(rank, ranks) } else { shares.of_packed(rank, ranks) }
}

impl Grouped {
    /// What `layer` and its like share.
    pub(crate) fn new(
        c: &ModelConfig,
        layer: usize,
        AxisPlace { coord: rank, size: ranks }: AxisPlace,
        rotary: Option<Rotary>,
    ) -> Self {
        let shares = head_partition(c, layer, ranks);
        let exchange = head_exchange(c, layer, rank, ranks);
        let heads = shares.own;
        let (g, m, d) = (heads.groups, heads.heads_per_group, heads.head_dim);
        let copy = |start, len| Columns::Copy { start, len };
        let keys = g * m * d;
        let pack =
            (0..g).flat_map(|i| [copy(i * m * d, m * d), copy(keys + i * d, d), copy(keys + (g + i) * d, d)]);
        let group = (m + 2) * d;
        let unpack = (0..g)
            .map(|i| copy(i * group, m * d))
            .chain((0..g).map(|i| copy(i * group + m * d, d)))
            .chain((0..g).map(|i| copy(i * group + (m + 1) * d, d)));
        let all = heads.heads();
        let queries = all * d * rank..all * d * (rank + 1);
        let gates_apart =
            (0..all).map(|n| copy(2 * n * d, d)).chain((0..all).map(|n| copy((2 * n + 1) * d, d)));
        Self {
            heads,
            norm: NormShape { kind: c.norm, eps: c.norm_eps },
            qk_norm: c.qk_norm,
            output_gate: c.scores.output_gate,
            lends: c.has(Mixer::SharedKv),
            rotary,
            pack: pack.collect(),
            unpack: unpack.collect(),
            gates_apart: gates_apart.collect(),
            exchange: exchange.map(Arc::new),
            columns: [vec![queries], shares.keys_of(rank)],
        }
    }

    /// Packed rows of the rank's heads, of what its projections made.
    fn own_heads(&self, pass: &mut Pass<'_>, made: Var) -> Result<Var> {
        match &self.exchange {
            Some(columns) => pass.ctx.exchange_columns(pass.g, &made, columns),
            None => Ok(made),
        }
    }
}

/// What all layers share, or those without and those with the sliding window.
#[derive(Debug)]
struct Kinds {
    all: Arc<Grouped>,
    windowed: Option<Arc<Grouped>>,
}

pub(super) fn builder(
    c: &ModelConfig,
    tp: AxisPlace,
    rotary: &super::Tables<'_>,
) -> crate::Result<Box<dyn AttentionBuilder>> {
    let like = |layer| Ok::<_, crate::Error>(Arc::new(Grouped::new(c, layer, tp, rotary(layer)?)));
    let first = |windowed| (0..c.layers).find(|&l| c.window(l).is_some() == windowed);
    let windowed = c.windowed.as_ref().and_then(|_| first(true));
    Ok(Box::new(Kinds { all: like(first(false).unwrap_or(0))?, windowed: windowed.map(like).transpose()? }))
}

impl AttentionBuilder for Kinds {
    fn layer(
        &self,
        scope: &Scope<'_>,
        c: &ModelConfig,
        number: usize,
        tp: AxisPlace,
    ) -> crate::Result<Arc<dyn TokenMixer>> {
        let shape = self.windowed.as_ref().filter(|_| c.window(number).is_some()).unwrap_or(&self.all);
        Ok(Arc::new(Attention::new(scope, c, number, tp, shape)))
    }
}

/// Scale, mask and penalty of a layer's scores.
pub(crate) fn score_options(c: &ModelConfig, layer: usize, tp: AxisPlace) -> AttentionOptions {
    AttentionOptions {
        scale: c.score_scale(),
        window: c.window(layer),
        softcap: c.scores.softcap,
        alibi: (c.position == Position::Alibi)
            .then(|| Alibi { heads: c.heads, first: tp.coord * c.heads / tp.size }),
    }
}

impl Attention {
    pub(crate) fn new(
        scope: &Scope<'_>,
        c: &ModelConfig,
        layer: usize,
        tp: AxisPlace,
        shape: &Arc<Grouped>,
    ) -> Self {
        let projection = if c.layer(layer).mixer == Mixer::SharedKv {
            Projection::Borrowed { q: scope.linear(Role::LinearQkv) }
        } else if c.scores.output_gate {
            let [q, k, v] = [Role::QProj, Role::KProj, Role::VProj].map(|role| scope.linear(role));
            Projection::Separate { q, k, v }
        } else {
            Projection::Packed(scope.linear(Role::LinearQkv))
        };
        let norms = || (scope.linear(Role::QLayernorm), scope.linear(Role::KLayernorm));
        Self {
            projection,
            qk_norm: (c.qk_norm != QkNorm::None).then(norms),
            out: scope.linear(Role::LinearProj),
            head_gate: c.scores.head_gate.then(|| scope.linear(Role::GProj)),
            sinks: scope.find(Role::Sinks),
            options: score_options(c, layer, tp),
            shape: shape.clone(),
        }
    }

    /// Packed rows, the output gate, and a number for each head that its output is gated by.
    fn project(&self, pass: &mut Pass<'_>, x: &Var) -> Result<(Var, Option<Var>, Option<Var>)> {
        let mut layers = match self.projection {
            Projection::Packed(qkv) => vec![qkv],
            Projection::Borrowed { q } => vec![q],
            Projection::Separate { q, k, v } => vec![q, k, v],
        };
        layers.extend(self.head_gate);
        let mut made = pass.swapping(Swapped::QKV, &[x], |pass| pass.columns_parallel(x, &layers))?;
        let head_gate = self.head_gate.and_then(|_| made.pop());
        let (packed, gate) = match &made[..] {
            [q, k, v] => self.packed_of(pass, [q.clone(), k.clone(), v.clone()])?,
            [q] if matches!(self.projection, Projection::Borrowed { .. }) => {
                let Some(shared_kv) = pass.shared_kv.clone() else {
                    return Err(Error::Range {
                        what: "keys and values of a layer before",
                        start: 0,
                        end: 1,
                        len: 0,
                    });
                };
                let [_, k, v] = self.apart(pass, &shared_kv)?;
                let all = ops::concat(pass.g, &[q, &k, &v])?;
                (ops::columns(pass.g, &all, &self.shape.pack)?, None)
            }
            _ => {
                let qkv = self.shape.own_heads(pass, made.remove(0))?;
                if self.shape.lends {
                    pass.shared_kv = Some(qkv.clone());
                }
                (qkv, None)
            }
        };
        Ok((packed, gate, head_gate))
    }

    /// Packed rows from separate queries, keys and values, and the output gate that is stored next to the queries.
    fn packed_of(&self, pass: &mut Pass<'_>, [mut q, k, v]: [Var; 3]) -> Result<(Var, Option<Var>)> {
        let mut gate = None;
        if self.shape.output_gate {
            let width = self.shape.heads.heads() * self.shape.heads.head_dim;
            let both = ops::columns(pass.g, &q, &self.shape.gates_apart)?;
            let [queries, gates] = ops::split(pass.g, &both, [width, width])?;
            (q, gate) = (queries, Some(gates));
        }
        let all = ops::concat(pass.g, &[&q, &k, &v])?;
        let packed = match self.shape.exchange {
            Some(_) => self.shape.own_heads(pass, all)?,
            None => ops::columns(pass.g, &all, &self.shape.pack)?,
        };
        Ok((packed, gate))
    }

    /// Norms and rotation of packed rows.
    fn prepare(&self, pass: &mut Pass<'_>, qkv: Var) -> Result<Var> {
        let shape = &*self.shape;
        let fused =
            shape.qk_norm == QkNorm::PerHead && shape.norm.kind == Norm::Rms && shape.rotary.is_some();
        let mut qkv = qkv;
        if matches!(shape.qk_norm, QkNorm::PerHead | QkNorm::WholeProjection) && !fused {
            qkv = self.norm_apart(pass, &qkv)?;
        }
        if let Some(rotary) = &shape.rotary {
            let scales = self.qk_norm.filter(|_| fused);
            let scales = scales.map(|(q, k)| (pass.param(q.weight), pass.param(k.weight)));
            let norm = scales.as_ref().map(|(q, k)| (q, k, shape.norm.eps));
            qkv = ops::prepare_qkv(pass.g, &qkv, shape.heads, norm, rotary, &pass.batch.positions)?;
        }
        if shape.qk_norm == QkNorm::PerHeadAfterRope {
            qkv = self.norm_apart(pass, &qkv)?;
        }
        Ok(qkv)
    }

    /// Queries `[T,N·D]`, keys and values `[T,G·D]` of packed rows.
    fn apart(&self, pass: &mut Pass<'_>, qkv: &Var) -> Result<[Var; 3]> {
        let HeadLayout { groups, head_dim, .. } = self.shape.heads;
        let (queries, keys) = (self.shape.heads.heads() * head_dim, groups * head_dim);
        let apart = ops::columns(pass.g, qkv, &self.shape.unpack)?;
        ops::split(pass.g, &apart, [queries, keys, keys])
    }

    /// Norms of queries and keys that the rotation's kernel does not know.
    fn norm_apart(&self, pass: &mut Pass<'_>, qkv: &Var) -> Result<Var> {
        let Some((q_norm, k_norm)) = self.qk_norm else { return Ok(qkv.clone()) };
        let shape = &*self.shape;
        let d = shape.heads.head_dim;
        let [q, k, v] = self.apart(pass, qkv)?;
        let (q, k) = if shape.qk_norm == QkNorm::WholeProjection {
            (
                shape.norm.apply_to_projection(pass, q_norm, &q, &shape.columns[0])?,
                shape.norm.apply_to_projection(pass, k_norm, &k, &shape.columns[1])?,
            )
        } else {
            (shape.norm.apply_to_heads(pass, q_norm, &q, d)?, shape.norm.apply_to_heads(pass, k_norm, &k, d)?)
        };
        let all = ops::concat(pass.g, &[&q, &k, &v])?;
        ops::columns(pass.g, &all, &shape.pack)
    }
}

impl TokenMixer for Attention {
    fn forward(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, x: &Var) -> Result<Var> {
        let (qkv, gate, head_gate) = self.project(pass, x)?;
        let qkv = self.prepare(pass, qkv)?;
        let (heads, sinks, options) = (self.shape.heads, self.sinks, self.options);
        let (site, first_head) = (pass.attention_site(), pass.ctx.tp.rank() * heads.heads());
        let core =
            CoreAttention { heads, sinks, options, site, first_head, picks: None, values: None, probe: None };
        let mut out = core.run(pass, cache, &qkv)?;
        if let Some(gate) = gate {
            out = ops::gate(pass.g, &out, &gate, Activation::Sigmoid)?;
        }
        if let Some(gate) = head_gate {
            let (tokens, width) = out.value().as_matrix();
            let heads = tokens * self.shape.heads.heads();
            let gate = ops::reshape(pass.g, &gate, [heads, 1])?;
            let apart = ops::reshape(pass.g, &out, [heads, self.shape.heads.head_dim])?;
            let gated = ops::gate(pass.g, &apart, &gate, Activation::Sigmoid)?;
            out = ops::reshape(pass.g, &gated, [tokens, width])?;
        }
        pass.swapping(Swapped::PROJ, &[&out], |pass| pass.row_parallel(&out, self.out))
    }

    fn memory(&self) -> LayerMemory {
        let heads = self.shape.heads;
        LayerMemory::Attention { width: heads.groups * heads.head_dim, index: None }
    }
}

/// Attention between the projections.
#[derive(Clone)]
pub(crate) struct CoreAttention {
    pub(crate) heads: HeadLayout,
    /// A score per head of a key whose value is zero.
    pub(crate) sinks: Option<ParamId>,
    pub(crate) options: AttentionOptions,
    /// Where its dropped weights are drawn.
    pub(crate) site: u64,
    /// The model's head that is the rank's first.
    pub(crate) first_head: usize,
    /// The keys that each token sees; `None`: all up to its own.
    pub(crate) picks: Option<Tensor>,
    /// Columns of the heads' outputs that are values; `None`: all.
    pub(crate) values: Option<Arc<[Columns]>>,
    /// One who sees how attention weighs what is picked, to train what picks it.
    pub(crate) probe: Option<Arc<AttentionProbe>>,
}

impl CoreAttention {
    /// The heads' outputs of prepared packed rows `qkv`, which attend over themselves, or over a cache that they join first. A
    /// layer may keep nothing but these rows, and run it again in the backward pass.
    pub(crate) fn run(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, qkv: &Var) -> Result<Var> {
        pass.swapping(Swapped::CORE, &[qkv], |pass| {
            if pass.save_policy.recompute_core_attention && pass.g.records() {
                self.run_recomputed(pass, qkv)
            } else {
                self.attend(pass, cache, qkv)
            }
        })
    }

    fn run_recomputed(&self, pass: &mut Pass<'_>, qkv: &Var) -> Result<Var> {
        let (this, store, ctx, batch) =
            (self.clone(), pass.store.clone(), pass.ctx.clone(), pass.batch.clone());
        let layer = pass.layer;
        let again = move |g: &mut Graph, qkv: &Var| {
            let mut pass = Pass { layer, ..Pass::new(g, &store, &ctx, &batch) };
            this.attend(&mut pass, None, qkv)
        };
        let out = ops::recompute(pass.g, qkv, qkv.shard_states(), again)?;
        pass.recomputed.push(out.clone());
        Ok(out)
    }

    fn attend(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, qkv: &Var) -> Result<Var> {
        let out = match &self.picks {
            Some(picks) => self.over_picked(pass, cache, qkv, picks)?,
            None => self.over_all(pass, cache, qkv)?,
        };
        match &self.values {
            Some(values) => pass.values_of(&out, values, false),
            None => Ok(out),
        }
    }

    fn over_all(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, qkv: &Var) -> Result<Var> {
        let Self { heads, options, site, first_head, .. } = *self;
        let sinks = self.sinks.map(|id| pass.param(id));
        let noise = pass.batch.noise.as_ref().filter(|c| c.attention_dropout > 0.0);
        let dropout = noise.map(|c| AttentionDropout {
            rate: c.attention_dropout,
            site,
            first_head,
            keys: c.all_keys.clone(),
        });
        if let Some(sharding) = &pass.batch.sharding {
            return Ok(context_attention(
                pass.g,
                pass.ctx,
                qkv,
                heads,
                sinks.as_ref(),
                sharding,
                options,
                dropout,
                pass.layer,
            )?);
        }
        let Some((keys, values)) = cache.and_then(LayerCache::keys_and_values) else {
            return ops::attention(
                pass.g,
                qkv,
                heads,
                sinks.as_ref(),
                &pass.batch.segments,
                options,
                dropout,
            );
        };
        let device = pass.g.device().clone();
        device.cache_append(keys, values, qkv.value(), heads, pass.places)?;
        let segments = &pass.batch.segments;
        let (mut out, mut lse) =
            device.attention_cached(qkv.value(), keys, values, heads, segments, &options)?;
        ops::join_sinks(&device, &mut out, &mut lse, sinks.as_ref().map(Var::value))?;
        Ok(pass.g.constant(out))
    }

    fn over_picked(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        qkv: &Var,
        picks: &Tensor,
    ) -> Result<Var> {
        let Self { heads, options, .. } = *self;
        if let Some(sharding) = pass.heads_for_tokens() {
            // Each has heads of all tokens, and what all queries have picked.
            let own = HeadLayout { groups: heads.groups / pass.ctx.cp.size(), ..heads };
            let rows = to_sequences(pass.g, pass.ctx, qkv, &sharding)?;
            let picks = picks_of_documents(pass.g.device(), pass.ctx, picks, &sharding)?;
            if let Some(probe) = &self.probe {
                probe.see_packed(pass, rows.value(), own, (&picks, options.scale, true))?;
            }
            let out = ops::attention_picked(pass.g, QkvRows::Packed(&rows), own, &picks, options)?;
            return Ok(to_shares(pass.g, pass.ctx, &out, &sharding)?);
        }
        let Some((keys, values)) = cache.and_then(LayerCache::keys_and_values) else {
            if let Some(probe) = &self.probe {
                probe.see_packed(pass, qkv.value(), heads, (picks, options.scale, false))?;
            }
            return ops::attention_picked(pass.g, QkvRows::Packed(qkv), heads, picks, options);
        };
        let device = pass.g.device().clone();
        device.cache_append(keys, values, qkv.value(), heads, pass.places)?;
        let (out, _) = device.attention_picked_cached(qkv.value(), (keys, values), heads, picks, &options)?;
        Ok(pass.g.constant(out))
    }
}
