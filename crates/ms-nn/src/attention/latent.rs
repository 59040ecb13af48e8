//! Multi-head latent attention (DeepSeek), and the indexer of its sparse form.
//!
//! Each head's query and key are assembled with the rotated part first, padded to the larger of the key and value sizes, and
//! use the same kernels as any other attention. If context-parallel ranks share a document and keys are picked, ranks gather
//! latents and rotated keys, which are much smaller than the keys and values of all heads, and each computes those of its own
//! heads for all tokens; or they exchange heads of queries, keys and values for tokens.

use super::AttentionBuilder;
use super::grouped::{CoreAttention, score_options};
use super::training::{AttentionProbe, Picked, Training};
use crate::batch::QuerySpan;
use crate::cache::{LayerCache, LayerMemory};
use crate::mixer::TokenMixer;
use crate::params::{Linear, Scope};
use crate::pass::Pass;
use crate::residual::NormShape;
use ms_core::{
    AttentionOptions, AxisPlace, Columns, Divergence, Graph, HeadLayout, IndexerInputs, QkvRows, Result,
    Rotary, Sight, Tensor, Var, ops,
};
use ms_dist::{GatheredRows, PendingEnterTp};
use ms_spec::{Mla, ModelConfig, Part, Role, Swapped};
use std::sync::{Arc, Mutex, PoisonError};

/// Latents that keys and values are made of.
static LATENTS: GatheredRows =
    GatheredRows { rows: "latents", again: "latents again", gradients: "gradients of latents" };

/// Parts of keys that all heads share.
static ROTATED_KEYS: GatheredRows = GatheredRows {
    rows: "rotated keys",
    again: "rotated keys again",
    gradients: "gradients of rotated keys",
};

/// Keys of indexers.
static KEYS_TO_PICK: GatheredRows = GatheredRows {
    rows: "keys to pick",
    again: "keys to pick again",
    gradients: "gradients of keys to pick",
};

/// Latent attention of one layer.
#[derive(Clone, Debug)]
struct Latent {
    down: Linear,
    q_norm: Option<Linear>,
    q_up: Option<Linear>,
    kv_norm: Option<Linear>,
    kv_up: Linear,
    out: Linear,
    indexer: Option<Indexer>,
    options: AttentionOptions,
    tp: AxisPlace,
    shape: Arc<LatentShape>,
}

/// What all layers share.
#[derive(Clone, Debug)]
struct LatentShape {
    sizes: Mla,
    heads: HeadLayout,
    norm: NormShape,
    rotary: Rotary,
    /// Columns of `[queries | keys and values | rotated key]` in packed order.
    pack: Arc<[Columns]>,
    /// Columns of the heads' outputs that are values.
    values: Arc<[Columns]>,
    /// Columns of queries in the order of a packed row.
    queries: Arc<[Columns]>,
    /// Columns of `[keys and values | rotated key]` arranged as a head's key followed by its value.
    keys_and_values: Arc<[Columns]>,
}

impl LatentShape {
    fn new(c: &ModelConfig, sizes: &Mla, tp: usize, rotary: Rotary) -> Self {
        let Mla { nope, rope, value, .. } = *sizes;
        let (n, key) = (c.heads / tp, nope + rope);
        let dim = key.max(value);
        let copy = |start, len| Columns::Copy { start, len };
        let pad = |len| Columns::Zero { len: dim - len };
        let query = |i| [copy(i * key + nope, rope), copy(i * key, nope), pad(key)];
        // `[keys and values | rotated key]` begins at `first`.
        let both = |i, first| {
            let (kv, shared) = (first + i * (nope + value), first + n * (nope + value));
            let key = [copy(shared, rope), copy(kv, nope), pad(key)];
            key.into_iter().chain([copy(kv + nope, value), pad(value)])
        };
        let pack = (0..n).flat_map(|i| query(i).into_iter().chain(both(i, n * key)));
        Self {
            sizes: *sizes,
            heads: HeadLayout { groups: n, heads_per_group: 1, head_dim: dim },
            norm: NormShape { kind: c.norm, eps: sizes.norm_eps.unwrap_or(c.norm_eps) },
            rotary,
            pack: pack.collect(),
            values: (0..n).map(|i| copy(i * dim, value)).collect(),
            queries: (0..n).flat_map(query).collect(),
            keys_and_values: (0..n).flat_map(|i| both(i, 0)).collect(),
        }
    }

    fn rotary(&self) -> &Rotary {
        &self.rotary
    }
}

pub(super) fn builder(
    c: &ModelConfig,
    sizes: &Mla,
    tp: usize,
    rotary: &super::Tables<'_>,
) -> crate::Result<Box<dyn AttentionBuilder>> {
    let part = "latent attention without rotary positions";
    let rotary = rotary(0)?.ok_or(crate::Error::Unsupported { family: c.family, part })?;
    Ok(Box::new(Arc::new(LatentShape::new(c, sizes, tp, rotary))))
}

impl AttentionBuilder for Arc<LatentShape> {
    fn layer(
        &self,
        scope: &Scope<'_>,
        c: &ModelConfig,
        number: usize,
        tp: AxisPlace,
    ) -> crate::Result<Arc<dyn TokenMixer>> {
        super::own_keys(c, number, "latent layers that share keys and values")?;
        Ok(Arc::new(Latent::new(scope, c, number, tp, self)))
    }
}

impl Latent {
    fn new(
        scope: &Scope<'_>,
        c: &ModelConfig,
        layer: usize,
        tp: AxisPlace,
        shape: &Arc<LatentShape>,
    ) -> Self {
        let (latent, normed) = (shape.sizes.q_rank.is_some(), shape.sizes.normed);
        let indexer = c.indexer.filter(|_| !c.layer(layer).borrows_index);
        Self {
            down: scope.linear(Role::LinearQkv),
            q_norm: (latent && normed).then(|| scope.linear(Role::QLayernorm)),
            q_up: latent.then(|| scope.linear(Role::LinearQUpProj)),
            kv_norm: normed.then(|| scope.linear(Role::KvLayernorm)),
            kv_up: scope.linear(Role::LinearKvUpProj),
            out: scope.linear(Role::LinearProj),
            indexer: indexer.map(|i| Indexer::new(&scope.of(Part::Indexer), &i, shape)),
            options: score_options(c, layer, tp),
            tp,
            shape: shape.clone(),
        }
    }

    /// [`Latent::attend`], saving only `x`.
    fn attend_again(&self, pass: &mut Pass<'_>, x: &Var) -> Result<Var> {
        let (this, store, ctx, batch) =
            (self.clone(), pass.store.clone(), pass.ctx.clone(), pass.batch.clone());
        let borrowed = pass.picks.clone().filter(|_| self.indexer.is_none());
        let layer = pass.layer;
        // What the first run picks is for later layers, too.
        let picked = Arc::new(Mutex::new(None));
        let picks = picked.clone();
        let again = move |g: &mut Graph, x: &Var| {
            let mut pass = Pass { layer, picks: borrowed.clone(), ..Pass::new(g, &store, &ctx, &batch) };
            let values = this.attend(&mut pass, None, x)?;
            *picks.lock().unwrap_or_else(PoisonError::into_inner) = pass.picks;
            Ok(values)
        };
        let values = ops::recompute(pass.g, x, pass.ctx.head_states(), again)?;
        pass.picks = picked.lock().unwrap_or_else(PoisonError::into_inner).take();
        pass.recomputed.push(values.clone());
        Ok(values)
    }

    /// The values of this rank's heads, `[T,N/tp·value]`.
    fn attend(&self, pass: &mut Pass<'_>, mut cache: Option<&mut LayerCache>, x: &Var) -> Result<Var> {
        let shape = &*self.shape;
        let Mla { kv_rank, rope, nope, q_rank, q_scale, kv_scale, .. } = shape.sizes;
        let AxisPlace { coord: rank, size: ranks } = self.tp;
        let (latent, mut below, shared);
        let mut training = None;
        let norm = |pass: &mut Pass<'_>, norm: Option<Linear>, x: &Var| match norm {
            Some(norm) => shape.norm.apply(pass, norm, x),
            None => Ok(x.clone()),
        };
        if let Some(q_rank) = q_rank {
            // Latents are made of this rank's tokens and normed; then they enter, narrower than the stream.
            let down = pass.swapping(Swapped::QKV, &[x], |pass| pass.linear(x, self.down))?;
            let [queries, low, key] = ops::split(pass.g, &down, [q_rank, kv_rank, rope])?;
            latent = norm(pass, self.q_norm, &queries)?;
            below = norm(pass, self.kv_norm, &low)?;
            shared = if pass.ctx.linears.overlap_gathers {
                SharedKey::OfOwnTokens(key)
            } else {
                SharedKey::Whole(pass.enter(&key)?)
            };
            if let Some(indexer) = &self.indexer {
                let picked = indexer.pick(pass, cache.as_deref_mut(), x, &latent)?;
                (pass.picks, training) = (picked.picks, picked.training);
            }
        } else {
            // Every rank computes the queries of all heads and continues with its own.
            let width = shape.heads.groups * (nope + rope);
            let [down] = pass.swapping(Swapped::QKV, &[x], |pass| pass.column_parallel(x, [self.down]))?;
            let parts = [rank * width, width, (ranks - 1 - rank) * width, kv_rank, rope];
            let [_, own, _, low, key] = ops::split(pass.g, &down, parts)?;
            if let Some(indexer) = &self.indexer {
                let picked = indexer.pick(pass, cache.as_deref_mut(), x, x)?;
                (pass.picks, training) = (picked.picks, picked.training);
            }
            below = norm(pass, self.kv_norm, &low)?;
            (latent, shared) = (ops::scale(pass.g, &own, q_scale)?, SharedKey::Whole(key));
        }
        below = ops::scale(pass.g, &below, kv_scale)?;
        let probe = training.as_ref().map(Training::probe);
        let values = self.attend_to(pass, cache, [&latent, &below], shared, probe.clone())?;
        match training.zip(probe) {
            Some((training, probe)) => training.tie(pass, &values, probe.take()),
            None => Ok(values),
        }
    }

    /// [`Latent::attend`] from the latents of queries, those of keys and values, and the part of keys that heads share.
    fn attend_to(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        [latent, below]: [&Var; 2],
        shared: SharedKey,
        probe: Option<Arc<AttentionProbe>>,
    ) -> Result<Var> {
        let shape = &*self.shape;
        let mut below = below.clone();
        let gathered = pass.batch.sharding.is_some() && pass.heads_for_tokens().is_none();
        if let (Some(picks), true) = (pass.picks.clone(), gathered) {
            if self.q_up.is_some() {
                below = pass.enter(&below)?;
            }
            let shared = shared.whole(pass)?;
            return self.over_documents(pass, latent, [&below, &shared], &picks, probe);
        }
        let (products, shared) = self.products(pass, [latent, &below], shared)?;
        let qkv = self.packed(pass, &products, &shared)?;
        let qkv = self.formed_again(pass, qkv, [latent, &below, &shared], Self::up);
        let core = CoreAttention {
            heads: shape.heads,
            sinks: None,
            options: self.options,
            site: pass.attention_site(),
            first_head: pass.ctx.tp.rank() * shape.heads.heads(),
            picks: pass.picks.clone(),
            values: Some(shape.values.clone()),
            probe,
        };
        core.run(pass, cache, &qkv)
    }

    /// Queries of latents, or those that have been made without.
    fn queries(&self, pass: &mut Pass<'_>, latent: &Var) -> Result<Var> {
        let Some(up) = self.q_up else { return Ok(latent.clone()) };
        let [q] = pass.column_parallel(latent, [up])?;
        ops::scale(pass.g, &q, self.shape.sizes.q_scale)
    }

    /// Queries, and keys and values without the part shared by the heads, computed from their latents; and that part for all
    /// tokens. If tokens are sharded, these can be gathered together, working on what has already arrived.
    ///
    /// # Source
    /// MindSpeed-LLM (2026), `mindspeed_llm/tasks/models/transformer/mla_up_proj_overlap_tp_comm.py`.
    fn products(
        &self,
        pass: &mut Pass<'_>,
        [latent, below]: [&Var; 2],
        shared: SharedKey,
    ) -> Result<([Var; 2], Var)> {
        let q_scale = self.shape.sizes.q_scale;
        if let Some(up) = self.q_up.filter(|_| pass.ctx.linears.overlap_gathers) {
            let [kv, q] = [pass.ctx.begin_enter_tp(below)?, pass.ctx.begin_enter_tp(latent)?];
            let key = shared.begin(pass)?;
            let kv = pass.column_parallel_entered(kv, self.kv_up)?;
            let q = pass.column_parallel_entered(q, up)?;
            let q = ops::scale(pass.g, &q, q_scale)?;
            return Ok(([q, kv], key.whole(pass)?));
        }
        let q = self.queries(pass, latent)?;
        let kv = if self.q_up.is_some() {
            pass.column_parallel(below, [self.kv_up])?.into_iter().next().expect("one layer")
        } else {
            pass.linear(below, self.kv_up)?
        };
        Ok(([q, kv], shared.whole(pass)?))
    }

    /// Prepared packed rows of what [`Latent::products`] gives.
    fn packed(&self, pass: &mut Pass<'_>, [q, kv]: &[Var; 2], shared: &Var) -> Result<Var> {
        let shape = &*self.shape;
        let all = ops::concat(pass.g, &[q, kv, shared])?;
        let packed = ops::columns(pass.g, &all, &shape.pack)?;
        ops::prepare_qkv(pass.g, &packed, shape.heads, None, &shape.rotary, &pass.batch.positions)
    }

    /// Prepared packed rows of latents of queries, those of keys and values, and the part of keys that heads share.
    fn up(&self, pass: &mut Pass<'_>, [latent, below, shared]: [&Var; 3]) -> Result<Var> {
        let (products, shared) = self.products(pass, [latent, below], SharedKey::Whole(shared.clone()))?;
        self.packed(pass, &products, &shared)
    }

    /// Queries over picked keys: prepared rows of them.
    fn prepared_queries(&self, pass: &mut Pass<'_>, [latent]: [&Var; 1]) -> Result<Var> {
        let (shape, positions) = (&*self.shape, pass.batch.positions.clone());
        let q = self.queries(pass, latent)?;
        let width = shape.sizes.nope + shape.sizes.rope;
        let q = ops::rotate_last(pass.g, &q, width, &shape.rotary, &positions, false)?;
        ops::columns(pass.g, &q, &shape.queries)
    }

    /// `made`, which `make` computes from `of`, and recomputes if values computed from latents are not saved.
    fn formed_again<const N: usize>(
        &self,
        pass: &mut Pass<'_>,
        made: Var,
        of: [&Var; N],
        make: fn(&Self, &mut Pass<'_>, [&Var; N]) -> Result<Var>,
    ) -> Var {
        if !pass.save_policy.recompute_operands || !pass.g.records() {
            return made;
        }
        let (this, store, ctx, batch) =
            (self.clone(), pass.store.clone(), pass.ctx.clone(), pass.batch.clone());
        let (layer, of) = (pass.layer, of.map(Var::saved));
        let made = made.recomputed_by(move |device| {
            let mut g = Graph::inference(device);
            let of = of.iter().map(|saved| Ok(g.constant(saved.get(device)?))).collect::<Result<Vec<_>>>()?;
            let mut pass = Pass { layer, ..Pass::new(&mut g, &store, &ctx, &batch) };
            Ok(make(&this, &mut pass, std::array::from_fn(|i| &of[i]))?.value().clone())
        });
        pass.recomputed.push(made.clone());
        made
    }

    /// The head outputs for this rank's queries, computed from `latent`, over picked keys of all tokens; each
    /// context-parallel rank has its share of latents `below[T,·]` and of keys `shared[T,·]` to be rotated. Nothing that
    /// covers all tokens is saved.
    fn over_documents(
        &self,
        pass: &mut Pass<'_>,
        latent: &Var,
        [below, shared]: [&Var; 2],
        picks: &Tensor,
        probe: Option<Arc<AttentionProbe>>,
    ) -> Result<Var> {
        let shape = &*self.shape;
        let (Mla { rope, .. }, positions) = (shape.sizes, pass.batch.positions.clone());
        let q = self.prepared_queries(pass, [latent])?;
        let q = self.formed_again(pass, q, [latent], Self::prepared_queries);
        let shared = ops::rotate_last(pass.g, shared, rope, &shape.rotary, &positions, false)?;
        let below = pass.rows_of_all(below, &LATENTS)?;
        let shared = pass.rows_of_all(&shared, &ROTATED_KEYS)?;
        let (weight, bias) = (self.kv_up.weight, self.kv_up.bias);
        let (weight, bias) = (pass.param(weight), bias.map(|b| pass.param(b)));
        let up = ops::linear(pass.g, &below, &weight, bias.as_ref())?;
        let kv = ops::concat(pass.g, &[&up, &shared])?;
        let mut kv = ops::columns(pass.g, &kv, &shape.keys_and_values)?;
        if pass.g.records() {
            let (below, shared, weight) = (below.saved(), shared.saved(), weight.saved());
            let (bias, pack) = (bias.map(|b| b.saved()), shape.keys_and_values.clone());
            kv = kv.recomputed_by(move |device| {
                let bias = bias.map(|b| b.get(device)).transpose()?;
                let up = device.linear(&below.get(device)?, &weight.get(device)?, bias.as_ref())?;
                device.columns(&device.concat(&[&up, &shared.get(device)?])?, &pack)
            });
            pass.recomputed.push(kv.clone());
        }
        let (heads, options) = (shape.heads, self.options);
        if let Some(probe) = probe {
            probe.see_apart(pass, [q.value(), kv.value()], heads, (picks, options.scale, false))?;
        }
        let mut out =
            ops::attention_picked(pass.g, QkvRows::Apart { q: &q, kv: &kv }, heads, picks, options)?;
        let again = pass.save_policy.recompute_core_attention && pass.g.records();
        if again {
            let (q, kv, picks) = (q.saved(), kv.saved(), picks.clone());
            out = out.recomputed_by(move |device| {
                let (q, kv) = (q.get(device)?, kv.get(device)?);
                Ok(device.attention_picked(QkvRows::Apart { q: &q, kv: &kv }, heads, &picks, &options)?.0)
            });
            pass.recomputed.push(out.clone());
        }
        pass.values_of(&out, &shape.values, again)
    }
}

/// The part of keys that heads share.
enum SharedKey {
    /// Of all tokens.
    Whole(Var),
    /// For the tokens that the rank holds between layers.
    OfOwnTokens(Var),
    /// On its way from ranks with shares of the tokens.
    Coming(Var, PendingEnterTp),
}

impl SharedKey {
    /// Begins to gather it.
    fn begin(self, pass: &Pass<'_>) -> Result<Self> {
        Ok(match self {
            Self::OfOwnTokens(key) => {
                let coming = pass.ctx.begin_enter_tp(&key)?;
                Self::Coming(key, coming)
            }
            other => other,
        })
    }

    /// It of all tokens.
    fn whole(self, pass: &mut Pass<'_>) -> Result<Var> {
        match self {
            Self::Whole(key) => Ok(key),
            Self::OfOwnTokens(key) => pass.enter(&key),
            Self::Coming(key, coming) => pass.finish_enter(&key, coming),
        }
    }
}

impl TokenMixer for Latent {
    fn forward(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, x: &Var) -> Result<Var> {
        let values = if pass.save_policy.recompute_attention && pass.g.records() {
            self.attend_again(pass, x)?
        } else {
            self.attend(pass, cache, x)?
        };
        pass.swapping(Swapped::PROJ, &[&values], |pass| pass.row_parallel(&values, self.out))
    }

    fn memory(&self) -> LayerMemory {
        let (heads, indexer) = (self.shape.heads, &self.indexer);
        let index = indexer.as_ref().map(|i| i.heads.head_dim);
        LayerMemory::Attention { width: heads.groups * heads.head_dim, index }
    }
}

/// The scorer that picks the keys each query sees. It has no gradient from the model's loss, and may have one of its own.
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
    pack: Arc<[Columns]>,
}

/// Eps of the indexer's LayerNorm.
const KEY_NORM_EPS: f64 = 1e-6;

impl Indexer {
    fn new(scope: &Scope<'_>, sizes: &ms_spec::Indexer, shape: &LatentShape) -> Self {
        let (n, d) = (sizes.heads, sizes.head_dim);
        let pack = [Columns::Copy { start: 0, len: (n + 1) * d }, Columns::Zero { len: d }];
        Self {
            queries: scope.linear(Role::WqB),
            key: scope.linear(Role::Wk),
            key_norm: scope.linear(Role::KNorm),
            weights: scope.linear(Role::WeightsProj),
            heads: HeadLayout { groups: 1, heads_per_group: n, head_dim: d },
            places: sizes.top_k,
            rotary: Rotary { interleaved: sizes.interleaved, ..shape.rotary().clone() },
            pack: pack.into(),
        }
    }

    /// Queries, keys of all tokens that ranks share, and weights of heads, unrounded; of an input and a latent of all tokens.
    fn operands(&self, pass: &mut Pass<'_>, x: &Var, latent: &Var) -> Result<[Var; 3]> {
        let (n, d) = (self.heads.heads_per_group, self.heads.head_dim);
        let q = pass.linear(latent, self.queries)?;
        let k = pass.linear(x, self.key)?;
        let (w, b) = (pass.param(self.key_norm.weight), self.key_norm.bias.map(|b| pass.param(b)));
        let k = ops::layer_norm(pass.g, &k, &w, b.as_ref(), KEY_NORM_EPS)?;
        let both = ops::concat(pass.g, &[&q, &k])?;
        let packed = ops::columns(pass.g, &both, &self.pack)?;
        let turned =
            ops::prepare_qkv(pass.g, &packed, self.heads, None, &self.rotary, &pass.batch.positions)?;
        let [q, mut k, _] = ops::split(pass.g, &turned, [n * d, d, d])?;
        if let Some(sharding) = pass.batch.sharding.clone() {
            k = KEYS_TO_PICK.gather(pass.g, pass.ctx, &k, &sharding)?;
        }
        let w = pass.linear(x, self.weights)?;
        let w = ops::cast(pass.g, &w, w.value().dtype().wide())?;
        let scale = super::indexer_scale(w.value(), n * d);
        Ok([q, k, ops::scale(pass.g, &w, scale)?])
    }

    /// The keys that it picks for each query, and what it is trained by, if it is.
    fn pick(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut LayerCache>,
        x: &Var,
        latent: &Var,
    ) -> Result<Picked> {
        let device = pass.g.device().clone();
        let (x, latent) = (pass.all_detached(x)?, pass.all_detached(latent)?);
        let trained = pass.batch.indexer_loss.clone().filter(|_| cache.is_none());
        let operands = if trained.is_some() && pass.g.records() {
            self.operands(pass, &x, &latent)?
        } else {
            let mut quiet = Graph::inference(&device);
            self.operands(&mut pass.quietly(&mut quiet), &x, &latent)?
        };
        let [q, k, w] = operands.each_ref().map(Var::value);
        let (q, k) = (device.cast(q, w.dtype())?, device.cast(k, w.dtype())?);
        let longest = pass.batch.documents()?.0.iter().map(|s| s.k_len).max().unwrap_or(0);
        // Keys after a query take part although they are masked: where scores are equal, the picks depend on how many there
        // are.
        let sights = |s: QuerySpan| {
            (0..s.len).map(move |t| Sight { start: s.start, seen: s.place + t + 1, all: s.keys })
        };
        let sights: Vec<Sight> = pass.batch.query_spans(pass.ctx).into_iter().flat_map(sights).collect();
        let best =
            |k: &Tensor, places: usize| device.pick_seen(&IndexerInputs { q: &q, k, w }, &sights, places);
        let Some(loss) = trained else {
            let k = match cache.and_then(LayerCache::index_keys) {
                None => &k,
                Some(kept) => {
                    kept.put_rows(&k, pass.places.iter().copied().zip(0..))?;
                    kept
                }
            };
            let picks = (longest > self.places).then(|| best(k, self.places)).transpose()?;
            return Ok(Picked { picks, training: None });
        };
        // Attention to all keys would not show its weights: each query picks those that it sees.
        let picks = best(&k, self.places.min(longest))?;
        if !pass.g.records() {
            return Ok(Picked { picks: Some(picks), training: None });
        }
        let all =
            (loss.objective.of_all() && longest > self.places).then(|| best(&k, longest)).transpose()?;
        let training = Training {
            operands: operands.clone(),
            picks: picks.clone(),
            all,
            divergence: Divergence::PICKED,
        };
        Ok(Picked { picks: Some(picks), training: Some(training) })
    }
}
