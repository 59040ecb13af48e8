//! The decoder: embedding, layers, final norm, output layer.

mod recompute;
mod serving;
#[cfg(test)]
mod tests;

use crate::attention;
use crate::batch::NoiseSite;
use crate::layer::{Layer, ShardCoords};
use crate::params::{Linear, Table};
use crate::pass::{Carry, OverlappedPass, Pass};
use crate::predict::{Inputs, Predictor};
use crate::residual::{self, NormShape, ResidualEnd};
use crate::{Batch, Error, Result, rotary};
use ms_core::ops::{self, LossVar};
use ms_core::{Axis, DType, Device, Graph, Grid, Host, ParamId, ParamStore, Tensor, Var, VocabShare};
use ms_dist::{ContextParallel, ParallelCtx};
use ms_spec::{
    Block, Item, Mixer, ModelConfig, Norm, ParamSpec, Part, Place as Home, PlacedParam, Placement, Position,
    Recompute, Role, SavePolicy,
};
use std::sync::Arc;

/// The part of a decoder that one rank holds: parameter ids and rotary tables, no weights.
pub struct Gpt {
    config: ModelConfig,
    held: Vec<PlacedParam>,
    specs: Vec<ParamSpec>,
    embedding: Option<Embedding>,
    chunks: Vec<Chunk>,
    max_position: usize,
    /// Length up to which sequences use other rotary frequencies than longer ones; the tables hold the rows of the longer
    /// ones after theirs.
    short: Option<usize>,
    /// The end of the layers' residual, if it is not a sum.
    end: Option<Arc<dyn ResidualEnd>>,
    head: Option<Head>,
    norm: NormShape,
    predictors: Vec<Predictor>,
    recompute: Recompute,
    save_policy: SavePolicy,
    host: Option<Host>,
}

/// A run of layers that follow each other.
struct Chunk {
    layers: Vec<Arc<Layer>>,
    /// Whether the embedding is before them.
    begins: bool,
    /// Whether the output layer follows them.
    ends: bool,
}

/// From token to stream.
struct Embedding {
    table: ParamId,
    positions: Option<ParamId>,
    /// LayerNorm, whatever the model's norm is.
    norm: Option<Linear>,
}

/// From stream to logits.
struct Head {
    final_norm: Linear,
    output: Linear,
}

/// A rank's place, as far as it decides which part of a model it holds.
#[derive(Clone, Copy)]
pub struct RankPosition<'a> {
    /// The grid.
    pub grid: &'a Grid,
    /// The rank.
    pub rank: usize,
    /// What each stage holds.
    pub placement: &'a Placement,
    /// How ranks share a sequence.
    pub context: ContextParallel,
}

impl Gpt {
    /// The whole decoder that `config` describes, for up to `max_position` positions on `device`.
    ///
    /// Parameter `i` of a store for this model is entry `i` of [`Gpt::specs`].
    ///
    /// # Errors
    /// If the configuration is invalid or needs something that this version cannot compute.
    pub fn new(config: &ModelConfig, device: &Device, max_position: usize) -> Result<Self> {
        Self::up_to(config, device, max_position, max_position)
    }

    /// [`Gpt::new`] with positions for sequences of up to `longest` tokens alone, which rotate as those of `window` positions
    /// do: tables of a hundred thousand positions take longer to make than a short answer.
    ///
    /// # Errors
    /// As [`Gpt::new`].
    pub fn up_to(config: &ModelConfig, device: &Device, window: usize, longest: usize) -> Result<Self> {
        let (grid, placement) = (Grid::single(), Placement::whole(config));
        let position =
            RankPosition { grid: &grid, rank: 0, placement: &placement, context: ContextParallel::Gather };
        Self::with_tables(config, device, position, (window, longest.min(window)), true)
    }

    /// The part of the decoder that a rank holds.
    ///
    /// # Errors
    /// As [`Gpt::new`], and if the model cannot be sharded in this way.
    pub fn part(
        config: &ModelConfig,
        device: &Device,
        position: RankPosition<'_>,
        max_position: usize,
    ) -> Result<Self> {
        Self::with_tables(config, device, position, (max_position, max_position), false)
    }

    /// [`Gpt::part`] of a model with `window` positions, the first `longest` of which are used; `each_length` with tables for
    /// short sequences too where these turn otherwise.
    fn with_tables(
        config: &ModelConfig,
        device: &Device,
        position: RankPosition<'_>,
        (window, longest): (usize, usize),
        each_length: bool,
    ) -> Result<Self> {
        let tp = position.grid.dense().place(position.rank, Axis::Tp);
        ms_spec::check_cut(config, tp.size)?;
        ms_spec::check_expert_cut(
            config,
            position.grid.size(Axis::Ep),
            position.grid.expert().size(Axis::Tp),
        )?;
        let whole = position.context.sees_whole_documents();
        ms_spec::check_context(config, tp.size, position.grid.size(Axis::Cp), whole)?;
        if config.reward {
            return Err(Error::Unsupported {
                family: config.family,
                part: "a reward head: it is only converted",
            });
        }
        let stage = position.grid.coord(position.rank, Axis::Pp);
        let held = position.placement.params(config, stage);
        let specs: Vec<ParamSpec> = held.iter().map(|p| p.spec.clone()).collect();
        let (max_position, rotates) = positions(config, longest);
        let short = config.switches_behind(window).filter(|_| each_length && rotates);
        let both = std::iter::once((window, max_position)).chain(short.map(|n| (n, n.min(max_position))));
        let lengths: Vec<(usize, usize)> = both.collect();
        let rotary = |layer| rotates.then(|| rotary::tables(config, layer, device, &lengths)).transpose();
        let table = Table::new(&specs);
        let words = table.at(Home::Embedding, None, Part::Embedding);
        let behind = table.at(Home::Head, None, Part::Last);
        let output = behind.of(Part::Output);
        let attention = attention::builder(config, tp, &rotary)?;
        let halves: &[Option<usize>] =
            if config.block == Block::Shortcut { &[Some(0), Some(1)] } else { &[None] };
        let cut = ShardCoords { tp, etp: position.grid.expert().place(position.rank, Axis::Tp) };
        let mut predictors = Vec::new();
        let mut chunks = Vec::new();
        for items in position.placement.stage(stage) {
            let mut layers = Vec::new();
            for item in items {
                match *item {
                    Item::Layer { layer, .. } => {
                        for &half in halves {
                            let scope = table.at(Home::Layer(layer), half, Part::Layer);
                            layers.push(Arc::new(Layer::new(
                                &scope,
                                config,
                                (layer, half),
                                cut,
                                &*attention,
                            )?));
                        }
                    }
                    Item::Predictor(k) => {
                        predictors.push(Predictor::new(&table, config, k, cut, &*attention)?);
                    }
                    Item::Embedding | Item::Noop { .. } | Item::Head => {}
                }
            }
            let has = |item| items.contains(&item);
            chunks.push(Chunk { layers, begins: has(Item::Embedding), ends: has(Item::Head) });
        }
        let embedding = words.find(Role::WordEmbeddings).map(|table| Embedding {
            table,
            positions: words.find(Role::PositionEmbeddings),
            norm: words.find(Role::WordEmbeddingsNorm).map(|_| words.linear(Role::WordEmbeddingsNorm)),
        });
        let ends = chunks.iter().any(|c| c.ends);
        let head = ends.then(|| Head {
            final_norm: behind.of(Part::Last).linear(config.last_norm()),
            output: Linear {
                weight: if config.tied { words.id(Role::WordEmbeddings) } else { output.id(Role::Own) },
                bias: output.bias(Role::Own),
            },
        });
        Ok(Self {
            chunks,
            max_position,
            short,
            end: ends.then(|| residual::end(&behind, config)).flatten(),
            head,
            norm: NormShape { kind: config.norm, eps: config.norm_eps },
            embedding,
            predictors,
            recompute: Recompute::None,
            save_policy: SavePolicy::default(),
            host: None,
            config: config.clone(),
            held,
            specs,
        })
    }

    /// The same model with another choice of what is saved for the backward pass.
    pub fn with_recompute(self, recompute: Recompute) -> Self {
        Self { recompute, ..self }
    }

    /// The same model with layers that save less for the backward pass. What is to be swapped goes to `host`; without a
    /// `host` it stays on the device.
    pub fn with_save_policy(self, save_policy: SavePolicy, host: Option<Host>) -> Self {
        Self { save_policy, host, ..self }
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The parameter table; entry `i` is parameter `i`.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// The parameters with the chunk that each belongs to; in the order of [`Gpt::specs`].
    pub fn placed_params(&self) -> &[PlacedParam] {
        &self.held
    }

    /// Chunks of this rank.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Whether a micro-batch begins at `chunk`, and whether it ends there.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn ends(&self, chunk: usize) -> (bool, bool) {
        (self.chunks[chunk].begins, self.chunks[chunk].ends)
    }

    /// The number of distinct positions, which no sequence is longer than.
    pub fn max_position(&self) -> usize {
        self.max_position
    }

    /// Whether a sequence of `tokens` tokens uses other rotary frequencies than one of all positions: its cache contents are
    /// then of no use to a longer one.
    pub fn is_short(&self, tokens: usize) -> bool {
        self.short.is_some_and(|short| tokens <= short)
    }

    /// The position of the first token of a sequence that has `tokens` in the end: 0, or where the tables for short sequences
    /// begin.
    ///
    /// # Errors
    /// [`Error::Position`] if the model has too few.
    pub fn first_position(&self, tokens: usize) -> Result<usize> {
        let max = self.max_position;
        match tokens {
            _ if tokens > max => Err(Error::Position { position: tokens - 1, max }),
            _ if self.is_short(tokens) => Ok(max),
            _ => Ok(0),
        }
    }

    fn check(&self, batch: &Batch) -> Result<()> {
        let max = self.max_position + self.short.map_or(0, |short| short.min(self.max_position));
        if batch.max_position > max {
            return Err(Error::Position { position: batch.max_position - 1, max });
        }
        Ok(())
    }

    /// Waits for the weights at the places that are `wanted`, where they are in transit from other ranks.
    fn await_weights(&self, store: &ParamStore, wanted: impl Fn(Home) -> bool) -> Result<()> {
        if store.is_whole() {
            return Ok(());
        }
        let ids = self.specs.iter().enumerate().filter(|(_, spec)| wanted(spec.slot.place));
        ids.map(|(i, _)| ParamId(i as u32)).try_for_each(|id| Ok(store.arrived(id)?))
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
        let mut carry = None;
        for chunk in 0..self.chunks.len() {
            carry = Some(self.forward_chunk(g, store, ctx, batch, (chunk, carry), None)?);
        }
        let carry = carry.expect("a model has at least one chunk");
        let inputs: Vec<Inputs> = ahead.iter().cloned().map(Inputs::from).collect();
        self.finish(g, store, ctx, batch, (carry, &inputs), None)
    }

    /// The layers of `chunk`, applied to the output of an earlier chunk or to the embedding of the batch's tokens. While
    /// tokens are in transit to experts and back, the pass `beside` runs.
    ///
    /// # Errors
    /// If a token or position is outside the model, a rank fails, or what the chunk needs is not there.
    pub fn forward_chunk(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        ctx: &ParallelCtx,
        batch: &Batch,
        (chunk, carry): (usize, Option<Carry>),
        overlapped: Option<&dyn OverlappedPass>,
    ) -> Result<Carry> {
        self.check(batch)?;
        let place = (chunk, self.chunks.len());
        let recompute = self.recompute.of_chunk(place.0, place.1);
        let chunk = &self.chunks[chunk];
        let mut carry = match carry {
            Some(carry) => carry,
            None => {
                self.await_weights(store, |home| home == Home::Embedding)?;
                let mut pass = Pass::new(g, store, ctx, batch);
                let x = self.embed(&mut pass, &batch.tokens, NoiseSite::Embedding(0))?;
                Carry { stream: self.begin(&mut pass, x)?, shared_kv: None, picks: None }
            }
        };
        let recomputed = self.recomputed(recompute, chunk);
        let ways = (ctx, overlapped);
        carry = self.recomputed_layers(g, store, ways, batch, (chunk, recomputed), carry)?;
        let mut pass = Pass::new(g, store, ctx, batch);
        pass.resume(&carry);
        (pass.host, pass.overlapped) = (self.host.as_ref(), overlapped);
        let mut x = carry.stream;
        for (i, layer) in chunk.layers.iter().enumerate().skip(recomputed) {
            self.await_weights(store, |home| home == Home::Layer(layer.number()))?;
            pass.save_policy = self.save_policy.of_layer(self.recompute, i / self.halves(), place);
            x = layer.forward(&mut pass, None, &x)?;
        }
        Ok(pass.into_carry(x))
    }

    /// The normed states after the last layer, and those of the prediction modules, as in [`Gpt::forward_ahead`]; the pass
    /// `beside` runs as in [`Gpt::forward_chunk`].
    ///
    /// # Errors
    /// If a rank fails, or this one does not hold the end of the model.
    pub fn finish(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        ctx: &ParallelCtx,
        batch: &Batch,
        (carry, ahead): (Carry, &[Inputs]),
        overlapped: Option<&dyn OverlappedPass>,
    ) -> Result<(Var, Vec<Var>)> {
        if ahead.len() > self.predictors.len() {
            let (expected, found) = (self.predictors.len(), ahead.len());
            return Err(Error::Batch { what: "tokens ahead, at most", expected, found });
        }
        self.await_weights(store, |home| !matches!(home, Home::Layer(_)))?;
        let mut pass = Pass::new(g, store, ctx, batch);
        let mut x = self.end(&mut pass, carry.stream)?;
        let main = self.norm.apply(&mut pass, self.head()?.final_norm, &x)?;
        (pass.host, pass.overlapped) = (self.host.as_ref(), overlapped);
        let mut predictions = Vec::with_capacity(ahead.len());
        for (k, (module, inputs)) in self.predictors.iter().zip(ahead).enumerate() {
            let embedded = self.embed(&mut pass, &inputs.tokens, NoiseSite::Embedding(1 + k))?;
            pass.batch = inputs.batch.as_ref().unwrap_or(batch);
            let (next, normed) = module.forward(&mut pass, &self.save_policy, &embedded, &x)?;
            predictions.push(normed);
            x = next;
        }
        Ok((main, predictions))
    }

    /// The weights of the output layer, where this rank has it.
    pub fn output_weight(&self) -> Option<ParamId> {
        self.head.as_ref().map(|head| head.output.weight)
    }

    fn head(&self) -> Result<&Head> {
        self.head.as_ref().ok_or(Error::Elsewhere { what: "the output layer" })
    }

    /// The embedding `[T,H]` as what layers pass on, `[T,n·H]`.
    fn begin(&self, pass: &mut Pass<'_>, x: Var) -> Result<Var> {
        Ok(residual::spread(pass, &self.config, x)?)
    }

    /// The final state `[T,H]` from what the last layer passes on.
    fn end(&self, pass: &mut Pass<'_>, x: Var) -> Result<Var> {
        match &self.end {
            Some(end) => Ok(end.collapse(pass, &x)?),
            None => Ok(x),
        }
    }

    /// Entries of a chunk that make one layer of the model: two of a shortcut block.
    fn halves(&self) -> usize {
        if self.config.block == Block::Shortcut { 2 } else { 1 }
    }

    /// The stream of `tokens[T]`: this rank's share of it under sequence parallelism. What prediction modules see is not
    /// multiplied by the root of the width, and by the factor of the sum only in MindSpeed-LLM 2.0.0.
    ///
    /// # Source
    /// MindSpeed-LLM 2.0.0, `mindspeed_llm/core/transformer/transformer_block.py` (the root, in the decoder) and
    /// `mindspeed_llm/tasks/models/transformer/multi_token_predication.py`; 2026,
    /// `mindspeed_llm/core/transformer/multi_token_prediction.py`.
    fn embed(&self, pass: &mut Pass<'_>, tokens: &Tensor, place: NoiseSite) -> Result<Var> {
        let embedding = self.embedding.as_ref().ok_or(Error::Elsewhere { what: "the embedding" })?;
        let table = pass.param(embedding.table);
        let share = VocabShare { first: self.first_id(pass.ctx), whole: self.config.padded_vocab };
        let x = ops::embedding_share(pass.g, &table, tokens, share)?;
        let mut x = pass.ctx.leave_tp(pass.g, &x)?;
        if let Some(ids) = embedding.norm {
            let norm = NormShape { kind: Norm::LayerNorm, ..self.norm };
            x = norm.apply(pass, ids, &x)?;
        }
        let (scales, ahead) = (self.config.scales, !matches!(place, NoiseSite::Embedding(0)));
        x = ops::scale(pass.g, &x, scales.embedding)?;
        if let Some(positions) = embedding.positions {
            let table = pass.param(positions);
            let learned = ops::embedding(pass.g, &table, &pass.batch.positions)?;
            let learned = pass.ctx.share_tokens(pass.g, &learned)?;
            x = ops::add(pass.g, &x, &learned)?;
        }
        if !ahead || self.config.mtp_hidden_first {
            x = ops::scale(pass.g, &x, scales.summed)?;
        }
        if scales.root && !ahead {
            let root = (self.config.hidden as f64).sqrt();
            let rounded = match x.value().dtype() {
                DType::Bf16 => half::bf16::from_f32(root as f32).into(),
                _ => root,
            };
            x = ops::scale(pass.g, &x, rounded)?;
        }
        Ok(pass.dropout(x, place)?)
    }

    /// Id of the first row of this rank's share of the vocabulary.
    fn first_id(&self, ctx: &ParallelCtx) -> usize {
        ctx.tp.rank() * (self.config.padded_vocab / ctx.tp.size())
    }

    /// Calls `work` with the output layer.
    fn with_head<R>(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        group: Option<&dyn ops::VocabGroup>,
        work: impl FnOnce(&mut Graph, &ops::Head<'_>) -> Result<R>,
    ) -> Result<R> {
        let output = self.head()?.output;
        let mut w = g.param(store, output.weight);
        if self.config.unit_head_rows {
            w = ops::unit_rows(g, &w)?;
        }
        let bias = output.bias.map(|b| g.param(store, b));
        let head = ops::Head {
            w: &w,
            bias: bias.as_ref(),
            scale: self.config.scales.logits,
            softcap: self.config.logit_softcap,
            group,
            formed_later: false,
        };
        work(g, &head)
    }

    /// Cross entropy of the output layer on `hidden[T,H]` against `targets[T]`, all of the batch: see
    /// [`ops::linear_cross_entropy`].
    ///
    /// # Errors
    /// If shapes or targets do not fit, or a rank fails.
    pub fn loss(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        ctx: &ParallelCtx,
        hidden: &Var,
        targets: &Tensor,
        weights: &Tensor,
    ) -> Result<LossVar> {
        self.loss_formed((g, store, ctx), hidden, (targets, weights), false)
    }

    /// [`Gpt::loss`]; with `later`, the gradient of the output layer's weights is computed only when it is added.
    ///
    /// # Errors
    /// As [`Gpt::loss`].
    pub fn loss_formed(
        &self,
        (g, store, ctx): (&mut Graph, &ParamStore, &ParallelCtx),
        hidden: &Var,
        (targets, weights): (&Tensor, &Tensor),
        later: bool,
    ) -> Result<LossVar> {
        let group = ctx.vocabulary(self.first_id(ctx));
        let group = group.as_ref().map(|group| group as &dyn ops::VocabGroup);
        self.with_head(g, store, group, |g, head| {
            let head = ops::Head { formed_later: later, ..*head };
            Ok(ops::linear_cross_entropy(g, hidden, &head, targets, weights)?)
        })
    }

    /// Logits `[T,V]` (padded vocabulary) of `hidden[T,H]`.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn logits(&self, device: &Device, store: &ParamStore, hidden: &Tensor) -> Result<Tensor> {
        let mut g = Graph::inference(device);
        self.with_head(&mut g, store, None, |_, head| Ok(ops::logits(device, hidden, head)?))
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
