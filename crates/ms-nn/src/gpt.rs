//! The decoder: embedding, layers, final norm, output layer.

use crate::attention::Grouped;
use crate::compressed::CompressedShape;
use crate::latent::LatentShape;
use crate::layer::{Layer, Pass, Shared};
use crate::norm::NormShape;
use crate::params::{Linear, Table};
use crate::predict::Predictor;
use crate::streams::Streams;
use crate::{Batch, Error, KvCache, Result, rotary};
use ms_core::ops::{self, LossVar};
use ms_core::{DType, Device, Graph, ParamId, ParamStore, Tensor, Var};
use ms_dist::ParallelCtx;
use ms_spec::{Attention, Block, Mixer, ModelConfig, Norm, ParamSpec, Position};
use std::sync::Arc;

/// Which layers keep only their input and run again in the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// None: everything a backward needs is kept.
    #[default]
    None,
    /// The first `n` layers, each by itself (`--recompute-method block`).
    Block(usize),
    /// All layers, in groups of `n` of which only the input is kept (`--recompute-method uniform`).
    Uniform(usize),
}

/// The structure of a decoder. Holds parameter ids and rotary tables, no weights.
pub struct Gpt {
    config: ModelConfig,
    specs: Vec<ParamSpec>,
    embedding: Embedding,
    layers: Vec<Arc<Layer>>,
    /// Entries of `layers` that make one layer of the model: two of a shortcut block.
    halves: usize,
    max_position: usize,
    /// The end of the residual's streams, where there are several.
    streams: Option<Streams>,
    final_norm: Linear,
    norm: NormShape,
    output: Linear,
    predictors: Vec<Predictor>,
    recompute: Recompute,
}

/// From token to stream.
struct Embedding {
    table: ParamId,
    positions: Option<ParamId>,
    /// LayerNorm, whatever the model's norm is.
    norm: Option<Linear>,
    scale: f64,
}

impl Gpt {
    /// The decoder that `config` describes, for up to `max_position` positions on `device`.
    ///
    /// Parameter `i` of a store for this model is entry `i` of [`Gpt::specs`].
    ///
    /// # Errors
    /// If the configuration is not sound or asks for something this version cannot compute.
    pub fn new(config: &ModelConfig, device: &Device, tp: usize, max_position: usize) -> Result<Self> {
        ms_spec::check_cut(config, tp)?;
        if let (true, Some(part)) = (tp > 1, config.beyond_plain()) {
            let part = if config.moe.is_some() { "experts on several tensor-parallel ranks" } else { part };
            return Err(Error::Unsupported { family: config.family, part });
        }
        if config.reward {
            return Err(Error::Unsupported {
                family: config.family,
                part: "a reward head: it is only converted",
            });
        }
        let specs = ms_spec::params(config);
        let (max_position, rotates) = positions(config, max_position);
        let rotary = |layer| {
            rotates.then(|| rotary::tables(config, layer, device, max_position, max_position)).transpose()
        };
        let table = Table::new(&specs);
        let whole = table.under("");
        let shared = match &config.attention {
            Attention::Grouped => {
                let like = |layer| Ok::<_, Error>(Arc::new(Grouped::new(config, layer, tp, rotary(layer)?)));
                let first = |windowed| (0..config.layers).find(|&l| config.window(l).is_some() == windowed);
                let windowed = config.windowed.as_ref().and_then(|_| first(true));
                Shared::Grouped(like(first(false).unwrap_or(0))?, windowed.map(like).transpose()?)
            }
            Attention::Latent(sizes) => {
                let rotary = rotary(0)?.ok_or(Error::Unsupported {
                    family: config.family,
                    part: "latent attention without rotary positions",
                })?;
                Shared::Latent(Arc::new(LatentShape::new(config, sizes, rotary)))
            }
            Attention::Compressed(sizes) => {
                let all = 0..config.layers + config.mtp;
                let first = |pooled| all.clone().find(|&l| config.layer(l).pooled.is_some() == pooled);
                let tables = |pooled| Ok::<_, Error>(first(pooled).map(rotary).transpose()?.flatten());
                let rotary = [tables(false)?, tables(true)?];
                Shared::Compressed(Arc::new(CompressedShape::new(config, sizes, rotary)))
            }
        };
        let shortcut = config.block == Block::Shortcut;
        let parts: &[Option<usize>] = if shortcut { &[Some(0), Some(1)] } else { &[None] };
        let layers = (0..config.layers)
            .flat_map(|l| parts.iter().map(move |&half| (l, half)))
            .map(|(l, half)| {
                let scope = table.under(format!("decoder.layers.{l}."));
                Layer::new(&scope, config, (l, half), (0, tp), &shared).map(Arc::new)
            })
            .collect::<Result<_>>()?;
        let predictors = (0..config.mtp)
            .map(|k| Predictor::new(&table, config, k, (0, tp), &shared))
            .collect::<Result<_>>()?;
        let embedding = Embedding {
            table: whole.id("embedding.word_embeddings.weight"),
            positions: whole.find("embedding.position_embeddings.weight"),
            norm: config.embedding_norm.then(|| whole.linear("embedding.word_embeddings.norm")),
            scale: config.scales.embedding,
        };
        let last = if config.mamba2.is_some() { "decoder.final_norm" } else { "decoder.final_layernorm" };
        let output = if config.tied { embedding.table } else { whole.id("output_layer.weight") };
        Ok(Self {
            layers,
            halves: parts.len(),
            max_position,
            streams: config.hyper.as_ref().map(|h| Streams::new(&table.under("hc_head."), config, h, true)),
            final_norm: whole.linear(last),
            norm: NormShape { kind: config.norm, eps: config.norm_eps as f32 },
            output: Linear { weight: output, bias: whole.find("output_layer.bias") },
            embedding,
            predictors,
            recompute: Recompute::None,
            config: config.clone(),
            specs,
        })
    }

    /// The same model with another choice of what is kept for the backward pass.
    pub fn with_recompute(self, recompute: Recompute) -> Self {
        Self { recompute, ..self }
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The parameter table; entry `i` is parameter `i`.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Positions that can be told apart.
    pub fn max_position(&self) -> usize {
        self.max_position
    }

    fn check(&self, batch: &Batch) -> Result<()> {
        let max = self.max_position();
        if batch.max_position > max {
            return Err(Error::Position { position: batch.max_position - 1, max });
        }
        Ok(())
    }

    /// Hidden states `[T,H]` after the final norm.
    ///
    /// # Errors
    /// If a token or position is outside the model, or a rank fails.
    pub fn forward(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        ctx: &ParallelCtx,
        batch: &Batch,
    ) -> Result<Var> {
        Ok(self.forward_ahead(g, store, ctx, batch, &[])?.0)
    }

    /// [`Gpt::forward`], and the hidden states `[T,H]` of the multi-token prediction modules: `ahead[k]` holds, at each
    /// place of the batch, the token `k + 1` places further on (`[T]`, i32), and the states of module `k` predict the
    /// token after that one. As many modules run as there are tokens.
    ///
    /// # Errors
    /// As [`Gpt::forward`]; [`Error::Batch`] for more tokens than the model has modules.
    pub fn forward_ahead(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        ctx: &ParallelCtx,
        batch: &Batch,
        ahead: &[Tensor],
    ) -> Result<(Var, Vec<Var>)> {
        self.check(batch)?;
        if ahead.len() > self.predictors.len() {
            let (expected, found) = (self.predictors.len(), ahead.len());
            return Err(Error::Batch { what: "tokens ahead, at most", expected, found });
        }
        let mut pass = Pass::new(g, store, ctx, batch);
        let mut x = self.embed(&mut pass, &batch.tokens)?;
        x = self.begin_streams(&mut pass, x)?;
        x = self.recomputed_layers(g, store, ctx, batch, x)?;
        let mut pass = Pass::new(g, store, ctx, batch);
        for layer in &self.layers[self.recomputed()..] {
            x = layer.forward(&mut pass, None, &x)?;
        }
        x = self.end_streams(&mut pass, x)?;
        let main = self.norm.apply(&mut pass, self.final_norm, &x)?;
        let mut predictions = Vec::with_capacity(ahead.len());
        for (module, tokens) in self.predictors.iter().zip(ahead) {
            let embedded = self.embed(&mut pass, tokens)?;
            let (next, normed) = module.forward(&mut pass, &embedded, &x)?;
            predictions.push(normed);
            x = next;
        }
        Ok((main, predictions))
    }

    /// The embedding `[T,H]` as every stream, `[T,n·H]`, where there are several.
    fn begin_streams(&self, pass: &mut Pass<'_>, x: Var) -> Result<Var> {
        match &self.streams {
            Some(streams) => Ok(streams.spread(pass, &x)?),
            None => Ok(x),
        }
    }

    /// What is taken of the streams behind the last layer, `[T,H]`.
    fn end_streams(&self, pass: &mut Pass<'_>, x: Var) -> Result<Var> {
        match &self.streams {
            Some(streams) => Ok(streams.collapse(pass, &x)?.0),
            None => Ok(x),
        }
    }

    /// How many of the first layers run again in the backward pass.
    fn recomputed(&self) -> usize {
        match self.recompute {
            Recompute::None => 0,
            Recompute::Block(n) => n.saturating_mul(self.halves).min(self.layers.len()),
            Recompute::Uniform(_) => self.layers.len(),
        }
    }

    /// Runs the layers of which only the input is kept.
    fn recomputed_layers(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        ctx: &ParallelCtx,
        batch: &Batch,
        mut x: Var,
    ) -> Result<Var> {
        let recomputed = self.recomputed();
        let borrows = |l| self.config.layer(l).borrows_index || self.config.layer(l).mixer == Mixer::SharedKv;
        if recomputed > 0 && (0..self.config.layers).any(borrows) {
            let part = "layers that borrow from earlier ones, which recomputation would lose";
            return Err(Error::Unsupported { family: self.config.family, part });
        }
        let group = match self.recompute {
            Recompute::Uniform(n) => n.max(1),
            _ => 1,
        };
        for layers in self.layers[..recomputed].chunks(group.saturating_mul(self.halves)) {
            let (layers, store, ctx) = (layers.to_vec(), store.clone(), ctx.clone());
            let batch = batch.clone();
            x = ops::recompute(
                g,
                &x,
                Arc::new(move |g, x| {
                    let mut pass = Pass::new(g, &store, &ctx, &batch);
                    layers.iter().try_fold(x.clone(), |x, layer| layer.forward(&mut pass, None, &x))
                }),
            )?;
        }
        Ok(x)
    }

    fn embed(&self, pass: &mut Pass<'_>, tokens: &Tensor) -> Result<Var> {
        let table = pass.param(self.embedding.table);
        let mut x = ops::embedding(pass.g, &table, tokens)?;
        let scale = match x.value().dtype() {
            // Rounded to the type of the stream first, as upstream does.
            DType::Bf16 => half::bf16::from_f64(self.embedding.scale).to_f32(),
            _ => self.embedding.scale as f32,
        };
        x = ops::scale(pass.g, &x, scale)?;
        if let Some(positions) = self.embedding.positions {
            let table = pass.param(positions);
            let learned = ops::embedding(pass.g, &table, &pass.batch.positions)?;
            x = ops::add(pass.g, &x, &learned)?;
        }
        if let Some(ids) = self.embedding.norm {
            let norm = NormShape { kind: Norm::LayerNorm, ..self.norm };
            x = norm.apply(pass, ids, &x)?;
        }
        Ok(x)
    }

    /// Calls `work` with the output layer.
    fn with_head<R>(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        work: impl FnOnce(&mut Graph, &ops::Head<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut w = g.param(store, self.output.weight);
        if self.config.unit_head_rows {
            w = ops::unit_rows(g, &w)?;
        }
        let bias = self.output.bias.map(|b| g.param(store, b));
        let head = ops::Head {
            w: &w,
            bias: bias.as_ref(),
            scale: self.config.scales.logits as f32,
            softcap: self.config.logit_softcap.map(|c| c as f32),
        };
        work(g, &head)
    }

    /// Cross entropy of the output layer on `hidden[T,H]`: see [`ops::linear_cross_entropy`].
    ///
    /// # Errors
    /// If shapes or targets do not fit.
    pub fn loss(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        hidden: &Var,
        targets: &Tensor,
        weights: &Tensor,
    ) -> Result<LossVar> {
        self.with_head(g, store, |g, head| Ok(ops::linear_cross_entropy(g, hidden, head, targets, weights)?))
    }

    /// Logits `[T,V]` (padded vocabulary) of `hidden[T,H]`.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn logits(&self, device: &Device, store: &ParamStore, hidden: &Tensor) -> Result<Tensor> {
        let mut g = Graph::inference(device);
        self.with_head(&mut g, store, |_, head| Ok(ops::logits(device, hidden, head)?))
    }

    /// An empty cache for `slots` sequences of up to `capacity` tokens.
    pub fn cache(&self, device: &Device, dtype: DType, slots: usize, capacity: usize) -> KvCache {
        let memories: Vec<_> = self.layers.iter().map(|l| l.memory()).collect();
        KvCache::new(device, dtype, &memories, slots, capacity)
    }

    /// Appends tokens to slots of the cache and returns the hidden states `[T,H]` of the new tokens, slot after
    /// slot in the order given. Prefill (many tokens) and decode (one) are the same call.
    ///
    /// # Errors
    /// If a sequence does not fit into its slot, or a token or position is outside the model.
    pub fn extend(
        &self,
        device: &Device,
        store: &ParamStore,
        ctx: &ParallelCtx,
        cache: &mut KvCache,
        new: &[(usize, &[i32])],
    ) -> Result<Tensor> {
        let before: Vec<usize> = new.iter().map(|&(slot, _)| cache.len(slot)).collect();
        let (batch, places) = cache.extend(device, new)?;
        let slots: Vec<usize> = new.iter().map(|&(slot, _)| slot).collect();
        let result = self.extend_layers(device, store, ctx, cache, &batch, (&places, &slots));
        if result.is_err() {
            for (&(slot, _), len) in new.iter().zip(before) {
                cache.truncate(slot, len);
            }
        }
        result
    }

    fn extend_layers(
        &self,
        device: &Device,
        store: &ParamStore,
        ctx: &ParallelCtx,
        cache: &mut KvCache,
        batch: &Batch,
        (places, slots): (&[usize], &[usize]),
    ) -> Result<Tensor> {
        self.check(batch)?;
        let mut g = Graph::inference(device);
        let mut pass = Pass { places, slots, ..Pass::new(&mut g, store, ctx, batch) };
        let mut x = self.embed(&mut pass, &batch.tokens)?;
        x = self.begin_streams(&mut pass, x)?;
        for (layer, kept) in self.layers.iter().zip(&mut cache.layers) {
            x = layer.forward(&mut pass, Some(kept), &x)?;
        }
        x = self.end_streams(&mut pass, x)?;
        Ok(self.norm.apply(&mut pass, self.final_norm, &x)?.value().clone())
    }
}

/// Positions that a model for `wanted` positions can tell apart, and whether it rotates.
fn positions(c: &ModelConfig, wanted: usize) -> (usize, bool) {
    match c.position {
        Position::Learned => (c.max_positions, false),
        Position::Rope => (wanted, c.has(Mixer::Attention)),
        Position::Alibi | Position::None => (wanted, false),
    }
}
