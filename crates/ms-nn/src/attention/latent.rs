//! Multi-head latent attention (DeepSeek), and the indexer of its sparse form.
//!
//! A head's query and key are put together with the rotated part in front, padded to the size of the larger of key and
//! value, and go through the same kernels as any other attention.

use super::grouped::{CoreAttention, frozen, score_options};
use crate::cache::LayerCache;
use crate::layer::Pass;
use crate::norm::NormShape;
use crate::params::{Linear, Scope};
use ms_core::{AttentionOptions, HeadLayout, IndexerInputs, Result, Rotary, Run, Tensor, Var, ops};
use ms_spec::{Mla, ModelConfig};
use std::sync::Arc;

/// Latent attention of one layer.
#[derive(Clone, Debug)]
pub(crate) struct Latent {
    down: Linear,
    q_norm: Option<Linear>,
    q_up: Option<Linear>,
    kv_norm: Linear,
    kv_up: Linear,
    out: Linear,
    indexer: Option<Indexer>,
    options: AttentionOptions,
    tp: (usize, usize),
    shape: Arc<LatentShape>,
}

/// What all layers share.
#[derive(Clone, Debug)]
pub(crate) struct LatentShape {
    sizes: Mla,
    heads: HeadLayout,
    norm: NormShape,
    rotary: Rotary,
    /// Columns of `[queries | keys and values | rotated key]` in packed order.
    pack: Arc<[Run]>,
    /// Columns of the heads' outputs that are values.
    values: Arc<[Run]>,
}

impl LatentShape {
    pub(crate) fn new(c: &ModelConfig, sizes: &Mla, tp: usize, rotary: Rotary) -> Self {
        let Mla { nope, rope, value, .. } = *sizes;
        let (n, key) = (c.heads / tp, nope + rope);
        let dim = key.max(value);
        let copy = |start, len| Run::Copy { start, len };
        let pad = |len| Run::Zero { len: dim - len };
        let (kv, shared) = (n * key, n * key + n * (nope + value));
        let pack = (0..n).flat_map(|i| {
            let (q, kv) = (i * key, kv + i * (nope + value));
            [
                copy(q + nope, rope),
                copy(q, nope),
                pad(key),
                copy(shared, rope),
                copy(kv, nope),
                pad(key),
                copy(kv + nope, value),
                pad(value),
            ]
        });
        Self {
            sizes: *sizes,
            heads: HeadLayout { groups: n, heads_per_group: 1, head_dim: dim },
            norm: NormShape { kind: c.norm, eps: c.norm_eps as f32 },
            rotary,
            pack: pack.collect(),
            values: (0..n).map(|i| copy(i * dim, value)).collect(),
        }
    }

    pub(crate) fn heads(&self) -> HeadLayout {
        self.heads
    }

    pub(crate) fn rotary(&self) -> &Rotary {
        &self.rotary
    }
}

impl Latent {
    pub(crate) fn new(
        scope: &Scope<'_>,
        c: &ModelConfig,
        layer: usize,
        tp: (usize, usize),
        shape: &Arc<LatentShape>,
    ) -> Self {
        let latent = shape.sizes.q_rank.is_some();
        let indexer = c.indexer.filter(|_| !c.layer(layer).borrows_index);
        Self {
            down: scope.linear("linear_qkv"),
            q_norm: latent.then(|| scope.linear("q_layernorm")),
            q_up: latent.then(|| scope.linear("linear_q_up_proj")),
            kv_norm: scope.linear("kv_layernorm"),
            kv_up: scope.linear("linear_kv_up_proj"),
            out: scope.linear("linear_proj"),
            indexer: indexer.map(|i| Indexer::new(&scope.under("dsa_indexer"), &i, shape)),
            options: score_options(c, layer, tp),
            tp,
            shape: shape.clone(),
        }
    }

    /// `[T,H]` to `[T,H]`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        mut cache: Option<&mut LayerCache>,
        x: &Var,
    ) -> Result<Var> {
        let shape = &*self.shape;
        let Mla { kv_rank, rope, nope, q_rank, q_scale, kv_scale, .. } = shape.sizes;
        let (rank, ranks) = self.tp;
        let (mut q, kv, shared);
        if let (Some(norm), Some(up), Some(q_rank)) = (self.q_norm, self.q_up, q_rank) {
            // Latents are made of this rank's tokens and normed; then they enter, narrower than the stream.
            let down = pass.linear(x, self.down)?;
            let [latent, below, key] = ops::split(pass.g, &down, [q_rank, kv_rank, rope])?;
            let latent = shape.norm.apply(pass, norm, &latent)?;
            let below = shape.norm.apply(pass, self.kv_norm, &below)?;
            let below = ops::scale(pass.g, &below, kv_scale)?;
            [q] = pass.column_parallel(&latent, [up])?;
            [kv] = pass.column_parallel(&below, [self.kv_up])?;
            shared = pass.enter(&key)?;
            if let Some(indexer) = &self.indexer {
                pass.picks = indexer.pick(pass, cache.as_deref_mut(), x, &latent)?;
            }
        } else {
            // Every rank makes the queries of all heads and goes on with its own.
            let width = shape.heads.groups * (nope + rope);
            let [down] = pass.column_parallel(x, [self.down])?;
            let parts = [rank * width, width, (ranks - 1 - rank) * width, kv_rank, rope];
            let [_, own, _, below, key] = ops::split(pass.g, &down, parts)?;
            if let Some(indexer) = &self.indexer {
                pass.picks = indexer.pick(pass, cache.as_deref_mut(), x, x)?;
            }
            let below = shape.norm.apply(pass, self.kv_norm, &below)?;
            let below = ops::scale(pass.g, &below, kv_scale)?;
            (q, kv, shared) = (own, pass.linear(&below, self.kv_up)?, key);
        }
        q = ops::scale(pass.g, &q, q_scale)?;
        let all = ops::concat(pass.g, &[&q, &kv, &shared])?;
        let packed = ops::columns(pass.g, &all, &shape.pack)?;
        let qkv = ops::prepare_qkv(pass.g, &packed, shape.heads, None, &shape.rotary, &pass.batch.positions)?;
        let core = CoreAttention {
            heads: shape.heads,
            sinks: None,
            options: self.options,
            site: pass.attention_site(),
            first_head: pass.ctx.tp.rank() * shape.heads.heads(),
            picks: pass.picks.clone(),
            values: Some(shape.values.clone()),
        };
        let out = core.run(pass, cache, &qkv)?;
        pass.row_parallel(&out, self.out)
    }
}

/// The scorer that picks the keys each query sees. It has no gradient from the model's loss.
#[derive(Clone, Debug)]
struct Indexer {
    queries: Linear,
    key: Linear,
    key_norm: Linear,
    weights: Linear,
    heads: HeadLayout,
    places: usize,
    rotary: Rotary,
    /// Zeros in the place of values.
    pack: Arc<[Run]>,
}

/// Eps of the indexer's LayerNorm.
const KEY_NORM_EPS: f32 = 1e-6;

impl Indexer {
    fn new(scope: &Scope<'_>, sizes: &ms_spec::Indexer, shape: &LatentShape) -> Self {
        let (n, d) = (sizes.heads, sizes.head_dim);
        let pack = [Run::Copy { start: 0, len: (n + 1) * d }, Run::Zero { len: d }];
        Self {
            queries: scope.linear("wq_b"),
            key: scope.linear("wk"),
            key_norm: scope.linear("k_norm"),
            weights: scope.linear("weights_proj"),
            heads: HeadLayout { groups: 1, heads_per_group: n, head_dim: d },
            places: sizes.top_k,
            rotary: Rotary { interleaved: sizes.interleaved, ..shape.rotary().clone() },
            pack: pack.into(),
        }
    }

    /// The picked keys `[T,P]`, or `None` where every query sees all its keys anyway.
    fn pick(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        x: &Var,
        latent: &Var,
    ) -> Result<Option<Tensor>> {
        let (n, d) = (self.heads.heads_per_group, self.heads.head_dim);
        let device = pass.g.device().clone();
        let tokens = pass.batch.len();
        // All tokens, where the rank has its share of them.
        let all = |rows: &Tensor| match rows.as_matrix().0 == tokens {
            true => Ok(rows.clone()),
            false => pass.ctx.all_tokens(rows),
        };
        let (x, latent) = (all(x.value())?, all(latent.value())?);
        let plain = |pass: &Pass<'_>, x: &Tensor, layer: Linear| {
            device.linear(x, frozen(pass, layer.weight).value(), None)
        };
        let q = plain(pass, &latent, self.queries)?;
        let k = plain(pass, &x, self.key)?;
        let (w, b) = (frozen(pass, self.key_norm.weight), self.key_norm.bias.map(|b| frozen(pass, b)));
        let (k, _) = device.layer_norm(&k, w.value(), b.as_ref().map(Var::value), KEY_NORM_EPS)?;
        let packed = device.columns(&device.concat(&[&q, &k])?, &self.pack)?;
        let (turned, _) =
            device.prepare_qkv(&packed, self.heads, None, &self.rotary, &pass.batch.positions)?;
        let turned = device.cast(&turned, x.dtype().wide())?;
        let q = device.columns(&turned, &[Run::Copy { start: 0, len: n * d }])?;
        let k = device.columns(&turned, &[Run::Copy { start: n * d, len: d }])?;
        let mut w = device.cast(&plain(pass, &x, self.weights)?, x.dtype().wide())?;
        if !w.is_unique() {
            w = device.columns(&w, &[Run::Copy { start: 0, len: n }])?;
        }
        device.scale(&mut w, f64::from(((n * d) as f32).powf(-0.5)))?;
        let pick = |k: &Tensor| {
            if pass.batch.segments.iter().all(|s| s.k_len <= self.places) {
                return Ok(None);
            }
            device.pick_keys(&IndexerInputs { q: &q, k, w: &w }, &pass.batch.segments, self.places).map(Some)
        };
        match cache.and_then(LayerCache::index_keys) {
            None => pick(&k),
            Some(kept) => {
                let width = d * kept.dtype().size();
                let rows = kept.bytes_mut()?;
                for (row, &place) in k.bytes().chunks_exact(width).zip(pass.places) {
                    rows[place * width..][..width].copy_from_slice(row);
                }
                pick(kept)
            }
        }
    }
}
