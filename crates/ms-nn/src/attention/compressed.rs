//! Attention to a window of tokens and to pooled entries of distant ones (DeepSeek-V4).
//!
//! One row per token is both key and value of all heads. Its last elements are rotated, so the heads' outputs are rotated
//! back by the query's position. The indexer that picks entries gets no gradient from the model's loss, and may have a loss
//! of its own.
//!
//! # Source
//! transformers 5.23, `models/deepseek_v4/modeling_deepseek_v4.py`. Where MindSpeed-LLM (2026,
//! `mindspeed_llm/tasks/models/transformer/deepseek4`) differs, this follows transformers: upstream also rotates the
//! indexer's queries and entries by a Hadamard matrix, which leaves scores unchanged. The loss that trains the indexer is
//! upstream's.

use super::AttentionBuilder;
use super::entries::{Compressor, Entries};
use super::training::{Picked, Training};
use crate::batch::QuerySpan;
use crate::cache::{LayerCache, LayerMemory, PoolCache};
use crate::mixer::TokenMixer;
use crate::params::{Linear, Scope};
use crate::pass::Pass;
use crate::residual::{NormShape, unit_norm};
use ms_core::{
    AxisPlace, DType, Divergence, Graph, HeadLayout, IndexerInputs, ParamId, Pooling, Result, Rotary,
    Segment, Sight, Tensor, Var, ops,
};
use ms_dist::{GatheredRows, picks_of_documents, to_sequences, to_shares};
use ms_spec::{Compressed, ModelConfig, Part, Pooled, Role};
use std::sync::Arc;

/// Rows that are key and value of all heads.
static ROWS: GatheredRows = GatheredRows {
    rows: "rows of tokens",
    again: "rows of tokens again",
    gradients: "gradients of rows of tokens",
};

/// What all layers share.
#[derive(Clone, Debug)]
struct CompressedShape {
    sizes: Compressed,
    heads: usize,
    dim: usize,
    window: usize,
    scale: f64,
    norm: NormShape,
    /// Rotation of layers that see a window alone, and of the others; `None` where there are no such layers.
    rotary: [Option<Rotary>; 2],
}

impl CompressedShape {
    fn new(c: &ModelConfig, sizes: &Compressed, tp: usize, rotary: [Option<Rotary>; 2]) -> Self {
        Self {
            sizes: Compressed { out_groups: sizes.out_groups / tp, ..sizes.clone() },
            heads: c.heads / tp,
            dim: c.head_dim,
            window: c.sliding_window.unwrap_or(usize::MAX),
            scale: c.score_scale(),
            norm: NormShape { kind: c.norm, eps: c.norm_eps },
            rotary,
        }
    }
}

pub(super) fn builder(
    c: &ModelConfig,
    sizes: &Compressed,
    tp: usize,
    rotary: &super::Tables<'_>,
) -> crate::Result<Box<dyn AttentionBuilder>> {
    let all = 0..c.layers + c.mtp;
    let first = |pooled| all.clone().find(|&l| c.layer(l).pooled.is_some() == pooled);
    let tables = |pooled| Ok::<_, crate::Error>(first(pooled).map(rotary).transpose()?.flatten());
    let rotary = [tables(false)?, tables(true)?];
    Ok(Box::new(Arc::new(CompressedShape::new(c, sizes, tp, rotary))))
}

impl AttentionBuilder for Arc<CompressedShape> {
    fn layer(
        &self,
        scope: &Scope<'_>,
        c: &ModelConfig,
        number: usize,
        _: AxisPlace,
    ) -> crate::Result<Arc<dyn TokenMixer>> {
        super::own_keys(c, number, "layers with pooled entries that share keys and values")?;
        Ok(Arc::new(CompressedAttention::new(scope, c, number, self)))
    }
}

/// Attention of one layer.
#[derive(Clone, Debug)]
struct CompressedAttention {
    q_down: Linear,
    q_norm: Linear,
    q_up: Linear,
    kv: Linear,
    kv_norm: Linear,
    out_down: Linear,
    out_up: Linear,
    sinks: ParamId,
    compressor: Option<Compressor>,
    indexer: Option<Indexer>,
    rotary: Rotary,
    shape: Arc<CompressedShape>,
}

impl CompressedAttention {
    /// The attention of `layer`; its rotary tables are there.
    fn new(scope: &Scope<'_>, c: &ModelConfig, layer: usize, shape: &Arc<CompressedShape>) -> Self {
        let pooled = c.layer(layer).pooled;
        let rotary = shape.rotary[usize::from(pooled.is_some())].clone();
        let rotary = rotary.expect("tables are made for every kind of layer that the model has");
        let compressor = pooled.map(|p| {
            Compressor::new(&scope.of(Part::Compressor), pooling(p, shape.dim), shape.norm, &rotary)
        });
        let indexer = pooled.filter(|p| p.picked).map(|p| {
            let sizes = c.indexer.as_ref().expect("a validated model of picked entries has an indexer");
            Indexer::new(&scope.of(Part::EntryIndexer), sizes, p, shape.norm, &rotary)
        });
        Self {
            q_down: scope.linear(Role::LinearQ),
            q_norm: scope.linear(Role::QLayernorm),
            q_up: scope.linear(Role::LinearQUpProj),
            kv: scope.linear(Role::LinearKv),
            kv_norm: scope.linear(Role::KvLayernorm),
            out_down: scope.linear(Role::LinearODownProj),
            out_up: scope.linear(Role::LinearOUpProj),
            sinks: scope.id(Role::AttnSink),
            compressor,
            indexer,
            rotary,
            shape: shape.clone(),
        }
    }

    /// Rows of the entries that each token sees, and what the indexer is trained by, if it is.
    fn seen(
        &self,
        pass: &mut Pass<'_>,
        index: Option<&mut PoolCache>,
        x: &Var,
        down: &Var,
        entries: &Entries,
    ) -> Result<(Vec<Vec<i32>>, Option<Training>)> {
        let ratio = self.compressor.as_ref().map_or(1, |c| c.shape().ratio);
        let sights = sights(&pass.batch.query_spans(pass.ctx), &entries.documents, ratio);
        let mut training = None;
        if let Some(indexer) = &self.indexer {
            let picked = indexer.pick(pass, index, x, down, ratio)?;
            training = picked.training;
            if let Some(picked) = picked.picks {
                if picked.arena().is_meta() {
                    return Ok((Vec::new(), training));
                }
                // Entries of the indexer and of the layer are numbered alike.
                let places = picked.dim(1);
                let rows = picked.ready()?.as_slice::<i32>()?.chunks_exact(places.max(1));
                let rows = rows.map(|row| row.iter().copied().filter(|&e| e >= 0).collect());
                return Ok((rows.collect(), training));
            }
        }
        if pass.g.device().arena().is_meta() {
            return Ok((Vec::new(), training));
        }
        let all = sights.iter().map(|s| (s.start..s.start + s.seen).map(|e| e as i32).collect());
        Ok((all.collect(), training))
    }

    /// The rows that each token sees, `[T,P]`: those of its window, then entries, which count on from `rows`.
    fn picks(&self, pass: &Pass<'_>, rows: usize, seen: &[Vec<i32>]) -> Result<Tensor> {
        // As many as the last token of some document sees, so that all ranks have as many.
        let entries = |tokens: usize| {
            let all = self.compressor.as_ref().map_or(0, |c| tokens / c.shape().ratio);
            self.indexer.as_ref().map_or(all, |indexer| all.min(indexer.places))
        };
        let sees = |s: &Segment| self.shape.window.min(s.k_len) + entries(s.k_len);
        let places = pass.batch.documents()?.0.iter().map(sees).max().unwrap_or(0).max(1);
        let arena = pass.g.device().arena();
        if arena.is_meta() {
            return Ok(Tensor::uninit(arena, DType::I32, [pass.batch.len(), places]));
        }
        let mut all: Vec<Vec<i32>> = Vec::with_capacity(seen.len());
        for s in pass.batch.query_spans(pass.ctx) {
            for t in 0..s.len {
                let last = s.place + t;
                let first = (last + 1).saturating_sub(self.shape.window);
                let near = (first..=last).map(|p| (s.start + p) as i32);
                let far = seen[s.row + t].iter().map(|&e| rows as i32 + e);
                all.push(near.chain(far).collect());
            }
        }
        let fill = |row: &Vec<i32>| {
            row.iter().copied().chain(std::iter::repeat_n(-1, places - row.len())).collect::<Vec<i32>>()
        };
        let flat: Vec<i32> = all.iter().flat_map(fill).collect();
        Tensor::from_slice(arena, [all.len(), places], &flat)
    }
}

impl TokenMixer for CompressedAttention {
    #[allow(clippy::needless_pass_by_value)] // an optional mutable reference is handed over
    fn forward(&self, pass: &mut Pass<'_>, cache: Option<&mut LayerCache>, x: &Var) -> Result<Var> {
        let shape = &*self.shape;
        let (dim, positions) = (shape.dim, pass.batch.positions.clone());
        let x = &pass.enter(x)?;
        let down = pass.linear(x, self.q_down)?;
        let down = shape.norm.apply(pass, self.q_norm, &down)?;
        let q = pass.linear(&down, self.q_up)?;
        let (tokens, width) = q.value().as_matrix();
        let q = ops::reshape(pass.g, &q, [tokens * shape.heads, dim])?;
        let q = unit_norm(pass, &q, shape.norm.eps)?;
        let q = ops::reshape(pass.g, &q, [tokens, width])?;
        let q = ops::rotate_last(pass.g, &q, dim, &self.rotary, &positions, false)?;
        let row = pass.linear(x, self.kv)?;
        let row = shape.norm.apply(pass, self.kv_norm, &row)?;
        let row = ops::rotate_last(pass.g, &row, dim, &self.rotary, &positions, false)?;
        let (near, [pool, index]) = match cache {
            Some(LayerCache::Rows { rows, pools }) => {
                rows.put_rows(row.value(), pass.places.iter().copied().zip(0..))?;
                let [pool, index] = &mut **pools;
                (pass.g.constant(rows.clone()), [pool.as_mut(), index.as_mut()])
            }
            _ => (pass.rows_of_all(&row, &ROWS)?, [None, None]),
        };
        let (far, (seen, training)) = match &self.compressor {
            Some(compressor) => {
                let entries = compressor.forward(pass, pool, x)?;
                let seen = self.seen(pass, index, x, &down, &entries)?;
                (entries.rows, seen)
            }
            None => {
                let empty = Tensor::zeros(pass.g.device().arena(), near.value().dtype(), [0, dim]);
                (pass.g.constant(empty), (vec![Vec::new(); tokens], None))
            }
        };
        let picks = self.picks(pass, near.value().as_matrix().0, &seen)?;
        let sinks = pass.param(self.sinks);
        let mut out = match pass.heads_for_tokens() {
            None => ops::attention_shared(pass.g, &q, [&near, &far], &picks, Some(&sinks), shape.scale)?,
            Some(sharding) => {
                let (ctx, each) = (pass.ctx, shape.heads / pass.ctx.cp.size());
                let q = to_sequences(pass.g, ctx, &q, &sharding)?;
                let sinks = ops::part(pass.g, &sinks, ctx.cp.rank() * each, [each])?;
                let picks = picks_of_documents(pass.g.device(), ctx, &picks, &sharding)?;
                let out =
                    ops::attention_shared(pass.g, &q, [&near, &far], &picks, Some(&sinks), shape.scale)?;
                to_shares(pass.g, ctx, &out, &sharding)?
            }
        };
        if let Some(training) = training {
            let heads = HeadLayout { groups: 1, heads_per_group: shape.heads, head_dim: dim };
            let device = pass.g.device();
            let of_heads =
                device.attention_weights(q.value(), far.value(), heads, training.keys(), shape.scale)?;
            out = training.tie(pass, &out, of_heads)?;
        }
        let out = ops::rotate_last(pass.g, &out, dim, &self.rotary, &positions, true)?;
        let down = pass.param(self.out_down.weight);
        let out = ops::grouped_linear(pass.g, &out, &down, shape.sizes.out_groups)?;
        pass.row_parallel(&out, self.out_up)
    }

    fn memory(&self) -> LayerMemory {
        let pools = [
            self.compressor.as_ref().map(Compressor::shape),
            self.indexer.as_ref().map(|i| i.compressor.shape()),
        ];
        LayerMemory::Rows { width: self.shape.dim, pools }
    }
}

fn pooling(p: Pooled, dim: usize) -> Pooling {
    Pooling { ratio: p.ratio, dim, overlap: p.picked }
}

/// The entries of windows that are complete at each token.
fn sights(query_spans: &[QuerySpan], entries: &[(usize, usize)], ratio: usize) -> Vec<Sight> {
    let of = |s: &QuerySpan| {
        let (place, (start, all)) = (s.place, entries[s.document]);
        (0..s.len).map(move |t| Sight { start, seen: (place + t + 1) / ratio, all })
    };
    query_spans.iter().flat_map(of).collect()
}

/// The scorer that picks the entries each query sees, with entries of its own.
#[derive(Clone, Debug)]
struct Indexer {
    queries: Linear,
    weights: Linear,
    compressor: Compressor,
    heads: usize,
    places: usize,
    rotary: Rotary,
}

impl Indexer {
    fn new(
        scope: &Scope<'_>,
        sizes: &ms_spec::Indexer,
        pooled: Pooled,
        norm: NormShape,
        rotary: &Rotary,
    ) -> Self {
        let shape = pooling(pooled, sizes.head_dim);
        Self {
            queries: scope.linear(Role::WqB),
            weights: scope.linear(Role::WeightsProj),
            compressor: Compressor::new(&scope.of(Part::EntryIndexerCompressor), shape, norm, rotary),
            heads: sizes.heads,
            places: sizes.top_k,
            rotary: rotary.clone(),
        }
    }

    /// Queries and weights of heads, unrounded, and entries.
    fn operands(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut PoolCache>,
        x: &Var,
        down: &Var,
    ) -> Result<([Var; 2], Entries)> {
        let (n, d) = (self.heads, self.compressor.shape().dim);
        let entries = self.compressor.forward(pass, cache, x)?;
        let q = pass.linear(down, self.queries)?;
        let q = ops::rotate_last(pass.g, &q, d, &self.rotary, &pass.batch.positions, false)?;
        let w = pass.linear(x, self.weights)?;
        let w = ops::cast(pass.g, &w, w.value().dtype().wide())?;
        let scale = super::indexer_scale(w.value(), n * d);
        Ok(([q, ops::scale(pass.g, &w, scale)?], entries))
    }

    /// The entries that it picks for each query, `None` where every query sees all its entries anyway; and what it is trained by,
    /// if it is.
    fn pick(
        &self,
        pass: &mut Pass<'_>,
        cache: Option<&mut PoolCache>,
        x: &Var,
        down: &Var,
        ratio: usize,
    ) -> Result<Picked> {
        let cached = cache.is_some();
        let most = pass.batch.documents()?.0.iter().map(|s| s.k_len / ratio).max().unwrap_or(0);
        let few = most <= self.places;
        let trained = pass.batch.indexer_loss.clone().filter(|_| !cached && most > 0 && pass.g.records());
        let device = pass.g.device().clone();
        let (x, down) = (x.detached(), down.detached());
        if few && trained.is_none() {
            if cached {
                // For later tokens.
                let mut quiet = Graph::inference(&device);
                self.compressor.forward(&mut pass.quietly(&mut quiet), cache, &x)?;
            }
            return Ok(Picked::default());
        }
        let ([q, w], entries) = if trained.is_some() {
            self.operands(pass, cache, &x, &down)?
        } else {
            let mut quiet = Graph::inference(&device);
            self.operands(&mut pass.quietly(&mut quiet), cache, &x, &down)?
        };
        let operands = [q, entries.rows, w];
        let [q, k, w] = operands.each_ref().map(Var::value);
        let (q, k) = (device.cast(q, w.dtype())?, device.cast(k, w.dtype())?);
        let sights = sights(&pass.batch.query_spans(pass.ctx), &entries.documents, ratio);
        let best = |places: usize| device.pick_seen(&IndexerInputs { q: &q, k: &k, w }, &sights, places);
        let picks = (!few).then(|| best(self.places)).transpose()?;
        let Some(loss) = trained else { return Ok(Picked { picks, training: None }) };
        let of_loss = picks.clone().map_or_else(|| best(most), Ok)?;
        let all = (loss.objective.of_all() && !few).then(|| best(most)).transpose()?;
        let training = Training { operands, picks: of_loss, all, divergence: Divergence::POOLED };
        Ok(Picked { picks, training: Some(training) })
    }
}
