//! Forward and backward passes of an iteration, in the order of a schedule.
//!
//! A stage works through its list of actions. A chunk's output goes to the stage that holds the next chunk, or is put aside
//! if that is the same stage; gradients take the way back. Messages are tagged with the micro-batch and the position in the
//! chain, so they match in any order of actions that the simulation accepts.

mod boundary;
mod forward_only;
mod keys;
mod messages;
mod overlapped;
mod span;

use crate::config::{Dropout, PipelineConfig, RecomputeTiming, Routing, TrainConfig};
use crate::losses::{LossSums, Losses};
use crate::repeat::Repeats;
use crate::shifted_batch::shifted_batches;
use crate::token_shard::{TokenShard, places, share};
use crate::{Error, Result};
use boundary::BoundaryTensors;
use keys::keys;
use messages::{MessageShapes, MicroBatchSize};
use ms_core::ops::DropPolicy;
use ms_core::{
    BackwardPass, Chain, Device, GradSink, Graph, Host, ParamId, ParamStore, Tensor, Var, WeightGradStore,
    ops,
};
use ms_data::MicroBatch;
use ms_dist::ParallelCtx;
use ms_dist::schedule::{Action, PassId, Rendezvous};
use ms_nn::{
    AuxiliaryLoss, Batch, Carry, Gpt, IndexerLosses, Inputs, OverlappedPass, RouterLoad, TrainingNoise,
};
use ms_spec::{Mixer, ModelConfig, Placement};
use span::span;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

/// How a rank runs the micro-batches of an iteration.
pub(crate) struct Pipeline {
    config: Arc<TrainConfig>,
    chain: Chain,
    indexer_losses: Arc<IndexerLosses>,
    load: Arc<RouterLoad>,
    /// Whether chunks pass on more than the stream.
    sends_more: bool,
    messages: MessageShapes,
}

/// A forward pass that waits for its backward.
enum SavedPass {
    Pass(Box<Pass>),
    /// Only the input, if an earlier chunk made it: the pass is recomputed.
    Input(Box<Option<BoundaryTensors>>),
}

/// A forward pass with what its backward needs.
struct Pass {
    graph: Graph,
    /// What came in, where a chunk before made it.
    input: Option<Carry>,
    /// What was passed on, or the loss.
    output: Output,
}

enum Output {
    Activations(Carry),
    Loss(Var),
}

/// A backward pass that has begun: what is left of it, and the values at the borders of its chunk.
struct ActiveBackward {
    backward: BackwardPass,
    input: Option<Carry>,
    output: Output,
}

/// What a stage does in an iteration.
pub(crate) struct Work {
    actions: Vec<Action>,
    /// Numbers of the actions that overlap with the next one.
    overlapped: BTreeSet<usize>,
    /// What is waited for before each action, and after the last; empty: every message overlaps with other work.
    rendezvous: Vec<Vec<Rendezvous>>,
    /// Forward passes that save only their input.
    dropped: BTreeSet<PassId>,
    /// Actions that are not done but counted.
    pub(crate) repeats: Repeats,
}

/// What waits of an iteration: passes for their backward, and weight gradients that are deferred.
#[derive(Default)]
struct PendingWork {
    kept: BTreeMap<PassId, SavedPass>,
    deferred: BTreeMap<PassId, WeightGradStore>,
}

impl PendingWork {
    /// Number of forward passes with saved values other than their input.
    fn live(&self) -> usize {
        self.kept.values().filter(|kept| matches!(kept, SavedPass::Pass(_))).count() + self.deferred.len()
    }
}

/// The state of one iteration.
struct Iteration<'a> {
    this: &'a Pipeline,
    model: &'a Gpt,
    store: &'a ParamStore,
    ctx: &'a ParallelCtx,
    device: &'a Device,
    stage: usize,
    /// The iteration that is trained; `None`: losses alone are wanted.
    iteration: Option<u64>,
    /// Factor of all gradients.
    scale: f64,
    /// Whether the current pass leaves the gradient of the output layer's weights for later.
    defer_embedding_wgrad: bool,
    /// What goes from one chunk of this stage to another: by micro-batch, place in the chain it is for, and whether it is a
    /// gradient.
    local: BTreeMap<(usize, usize, bool), BoundaryTensors>,
    /// For each micro-batch.
    sizes: Vec<MicroBatchSize>,
    losses: Losses,
}

/// Tokens, labels and weights of a rank's share of a micro-batch.
struct Prepared {
    batch: Batch,
    labels: Tensor,
    weights: Tensor,
    share: TokenShard,
    ahead: Vec<Prediction>,
}

/// What a prediction module sees and must predict: the rank's share, and the mask of the whole micro-batch.
struct Prediction {
    inputs: Inputs,
    labels: Tensor,
    weights: Tensor,
    loss_mask: Vec<f32>,
}

fn sends_more_than_stream(c: &ModelConfig) -> bool {
    c.has(Mixer::SharedKv) || (0..c.layers).any(|l| c.layer(l).borrows_index)
}

impl Pipeline {
    /// What the loss of each prediction module is multiplied by.
    pub(crate) fn scale_of_predictions(&self) -> f64 {
        self.config.loss.mtp_scale / self.config.model.mtp.max(1) as f64
    }

    pub(crate) fn new(
        config: Arc<TrainConfig>,
        placement: &Placement,
        load: Arc<RouterLoad>,
        indexer_losses: Arc<IndexerLosses>,
    ) -> Self {
        let (sends_more, messages) =
            (sends_more_than_stream(&config.model), MessageShapes::new(&config, placement));
        Self { chain: placement.order(), indexer_losses, load, sends_more, messages, config }
    }

    /// The work of the stage of `ctx` in an iteration of this many micro-batches.
    ///
    /// # Errors
    /// If the order of work does not exist for them.
    pub(crate) fn work(
        &self,
        model: &Gpt,
        ctx: &ParallelCtx,
        device: &Device,
        micro_batches: usize,
    ) -> Result<Work> {
        let stage = ctx.pp.rank();
        let refused = |e: &dyn Display| Error::config("--global-batch-size", e.to_string(), micro_batches);
        let PipelineConfig { order, overlap_passes, waits_at_borders, .. } = self.config.pipeline;
        let mut schedule =
            order.schedule(&self.chain, micro_batches, overlap_passes).map_err(|e| refused(&e))?;
        let dropped = match self.config.memory.recompute_timing {
            RecomputeTiming::InBubble => schedule.recomputed_in_bubble(stage, |chunk| model.ends(chunk).1),
            RecomputeTiming::WithGradient | RecomputeTiming::InAdvance => BTreeSet::new(),
        };
        let rendezvous =
            waits_at_borders.then(|| schedule.rendezvous(stage)).transpose().map_err(|e| refused(&e))?;
        let rendezvous = rendezvous.unwrap_or_default();
        let (mut actions, overlapped) =
            (schedule.stages.swap_remove(stage), schedule.overlapped.swap_remove(stage));
        let of_loss = actions.iter().filter_map(|&action| match action {
            Action::Backward { micro, chunk }
                if self.defers_embedding_wgrad(model, action.pass()).is_some() =>
            {
                Some(Action::BackwardWeight { micro, chunk })
            }
            _ => None,
        });
        actions.extend(of_loss.collect::<Vec<_>>());
        // Overlapped passes that save only their input may all differ.
        let alike = rendezvous.is_empty() && (overlapped.is_empty() || dropped.is_empty());
        let repeats = if device.arena().is_meta() && alike {
            Repeats::of(&actions, &overlapped, &dropped)
        } else {
            Repeats::default()
        };
        Ok(Work { actions, overlapped, rendezvous, dropped, repeats })
    }

    /// Does `work` with the micro-batches of `iteration`, whose losses are multiplied by `scale`; gradients go to `sink`, losses
    /// stay on the stage that has them. Also returned are the most bytes that forward passes kept at one time.
    pub(crate) fn run(
        &self,
        (model, store, ctx): (&Gpt, &ParamStore, &ParallelCtx),
        (device, host): (&Device, Option<&Host>),
        (iteration, micro_batches, scale): (u64, &[MicroBatch], f64),
        work: &mut Work,
        sink: &mut dyn GradSink,
    ) -> Result<(Losses, usize)> {
        let mut run = self.begin(model, store, ctx, device, Some(iteration));
        run.scale = scale;
        run.sizes = micro_batches.iter().map(|mb| MicroBatchSize::of(mb, ctx)).collect();
        let mut pending = PendingWork::default();
        let Work { actions, overlapped, rendezvous, dropped, repeats } = work;
        let asked = || device.arena().stats().asked_bytes;
        let (before, mut kept_bytes) = (asked(), 0);
        let mut done = false;
        for (at, &action) in actions.iter().enumerate() {
            run.wait_for(rendezvous.get(at).filter(|_| !done))?;
            if std::mem::take(&mut done) {
                // Beside the one before.
            } else if overlapped.contains(&at) {
                let pair = [action, actions[at + 1]];
                repeats.paired(pair, (device, ctx, host), |alone| match alone {
                    Some(action) => run.act(action, micro_batches, dropped, &mut pending, sink),
                    None => run.act_overlapped(pair, micro_batches, dropped, &mut pending, sink),
                })?;
                done = true;
            } else if !repeats.counted(action, device, host) {
                repeats.measured(action, (device, ctx, host), || {
                    run.act(action, micro_batches, dropped, &mut pending, sink)
                })?;
            }
            if matches!(action, Action::Forward { .. }) {
                kept_bytes = kept_bytes.max(asked().saturating_sub(before));
            }
        }
        run.wait_for(rendezvous.get(actions.len()))?;
        Ok((run.losses, kept_bytes))
    }

    /// The weights whose gradient for a micro-batch is deferred until after everything else, if there are any in its chunk.
    fn defers_embedding_wgrad(&self, model: &Gpt, PassId { micro, chunk }: PassId) -> Option<ParamId> {
        let counts = self.config.pipeline.defer_embedding_wgrad.is_some_and(|most| micro < most)
            && model.ends(chunk).1;
        model.output_weight().filter(|_| counts)
    }

    fn begin<'a>(
        &'a self,
        model: &'a Gpt,
        store: &'a ParamStore,
        ctx: &'a ParallelCtx,
        device: &'a Device,
        iteration: Option<u64>,
    ) -> Iteration<'a> {
        Iteration {
            this: self,
            model,
            store,
            ctx,
            device,
            stage: ctx.pp.rank(),
            iteration,
            scale: 1.0,
            defer_embedding_wgrad: false,
            local: BTreeMap::new(),
            sizes: Vec::new(),
            losses: Losses { ahead: vec![LossSums::default(); self.config.model.mtp], ..Losses::default() },
        }
    }
}

impl Iteration<'_> {
    fn act(
        &mut self,
        action: Action,
        micro_batches: &[MicroBatch],
        dropped: &BTreeSet<PassId>,
        pending: &mut PendingWork,
        sink: &mut dyn GradSink,
    ) -> Result<()> {
        let id = action.pass();
        let of = (&micro_batches[id.micro], micro_batches.len());
        let drops = dropped.contains(&id);
        // Saved from here on, or recomputed here.
        let adds = match action {
            Action::Forward { .. } => !drops,
            Action::Backward { .. } | Action::BackwardInput { .. } => drops,
            Action::BackwardWeight { .. } => false,
        };
        let _span = span(action, pending.live() + usize::from(adds)).entered();
        let PendingWork { kept, deferred } = pending;
        match action {
            Action::Forward { .. } => {
                let pass = self.forward(of, id, drops, None)?;
                kept.insert(id, pass);
            }
            Action::Backward { .. } => {
                let pass = kept.remove(&id).expect("the schedule was checked");
                let mut deferred_wgrad =
                    self.this.defers_embedding_wgrad(self.model, id).map(WeightGradStore::of);
                self.backward(pass, of, id, sink, deferred_wgrad.as_mut())?;
                deferred.extend(deferred_wgrad.map(|deferred_wgrad| (id, deferred_wgrad)));
            }
            Action::BackwardInput { .. } => {
                let pass = kept.remove(&id).expect("the schedule was checked");
                let deferred = deferred.entry(id).or_default();
                self.backward(pass, of, id, sink, Some(deferred))?;
            }
            Action::BackwardWeight { .. } => {
                deferred.remove(&id).unwrap_or_default().run(self.device, sink)?;
            }
        }
        Ok(())
    }

    /// What a rank needs of a micro-batch.
    fn prepare(&self, mb: &MicroBatch, micro_batches: usize) -> Result<Prepared> {
        let (arena, config) = (self.device.arena(), &*self.this.config);
        let own = share(mb, self.ctx)?;
        let ints = |values: &[i32]| Tensor::from_slice(arena, [values.len()], values);
        let mut batch = own.batch(arena, mb)?;
        let weights = self.loss_weights(&mb.loss_mask, &own, micro_batches, 1.0)?;
        if self.model.config().moe.is_some() {
            let of_loss = match (config.loss.per_token, config.routing.balance_by_tokens) {
                (true, true) => mb.tokens.len() as f64,
                // Gradients of such a loss are summed over replicas, not their mean.
                (true, false) => 1.0 / (micro_batches * self.ctx.dp.size()) as f64,
                (false, _) => 1.0 / micro_batches as f64,
            };
            let grad_scale = of_loss * self.scale;
            let Routing { auxiliary: coefficients, balance_by_sequence: by_sequence, .. } = config.routing;
            batch.balance = coefficients.any().then(|| {
                let sequence_of: Arc<[u32]> =
                    if by_sequence { own.rows(mb).into() } else { Vec::new().into() };
                let sequences = if by_sequence { mb.row_ends.len() } else { 1 };
                let biased = config.routing.balance_biased;
                let of_taken = config.routing.balance_of_taken;
                let undivided = config.routing.balance_undivided;
                Arc::new(AuxiliaryLoss {
                    coefficients,
                    grad_scale,
                    biased,
                    undivided,
                    of_taken,
                    filled: config.routing.balance_of_filled,
                    sequence_of,
                    sequences,
                })
            });
            batch.capacity = config.routing.capacity;
            if let (Some(_), Some(shares)) = (batch.capacity, &config.routing.capacity_shares) {
                batch.capacity_shares = crate::token_shard::of_tokens(mb, shares)?.into();
            }
            if batch.capacity.is_some_and(|capacity| capacity.policy == DropPolicy::Position) {
                batch.places = own.take(&places(mb)).into();
            }
            let in_rows = || own.take(&(0..mb.tokens.len() as u32).collect::<Vec<_>>()).into();
            // Only while a step is made: what is validated goes where the scores are highest.
            batch.sinkhorn = config.routing.sinkhorn && self.iteration.is_some();
            batch.fixed_routes = config.routing.fixed.then(in_rows);
            batch.fixed_by_expert = config.routing.fixed_by_expert;
            batch.load = Some(self.this.load.clone());
        }
        if let Some(indexer) = config.loss.indexer.filter(|_| self.iteration.is_some()) {
            let passes = (mb.tokens.len(), micro_batches);
            let of_loss = (config.loss.per_token, self.scale);
            batch.indexer_loss = Some(indexer.of(passes, of_loss, &self.this.indexer_losses));
        }
        let Dropout { hidden: hidden_dropout, attention: attention_dropout } = config.dropout;
        let router_jitter = config.routing.jitter;
        let drawn = [hidden_dropout, attention_dropout, router_jitter].iter().any(|&x| x > 0.0);
        if let Some(iteration) = self.iteration.filter(|_| drawn) {
            let all_keys: Arc<[u64]> = keys(config.seed, iteration, mb).into();
            let keys = own.take(&all_keys);
            let noise = TrainingNoise { keys, all_keys, hidden_dropout, attention_dropout, router_jitter };
            batch.noise = Some(Arc::new(noise));
        }
        let scale = self.this.scale_of_predictions();
        let mut modules = Vec::with_capacity(config.model.mtp);
        for a in shifted_batches(mb, config.model.mtp, config.loss.mtp_documents) {
            let weights = self.loss_weights(&a.loss_mask, &own, micro_batches, scale)?;
            let tokens = ints(&own.take(&a.tokens))?;
            let labels = ints(&own.take(&a.labels))?;
            let seen = |w: &MicroBatch| -> Result<Batch> {
                let Batch { positions, segments, max_position, sharding, .. } = own.batch(arena, w)?;
                Ok(Batch { positions, segments, max_position, sharding, ..batch.clone() })
            };
            let inputs = Inputs { tokens, batch: a.window.as_deref().map(seen).transpose()? };
            modules.push(Prediction { inputs, labels, weights, loss_mask: a.loss_mask });
        }
        Ok(Prepared { batch, labels: ints(&own.take(&mb.labels))?, weights, share: own, ahead: modules })
    }

    /// Weights `[T]` of a rank's tokens in the loss that is optimised: `scale` times the mean over those that count in the
    /// whole micro-batch, divided by the number of micro-batches, or with per-token loss their plain sum.
    fn loss_weights(
        &self,
        mask: &[f32],
        share: &TokenShard,
        micro_batches: usize,
        scale: f64,
    ) -> Result<Tensor> {
        let counted: f64 = mask.iter().map(|&m| f64::from(m)).sum();
        let of = if self.this.config.loss.per_token {
            1.0
        } else {
            1.0 / (counted.max(1.0) * micro_batches as f64)
        };
        let weights: Vec<f64> = share.take(mask).iter().map(|&m| f64::from(m) * of * scale).collect();
        let wide = self.store.dtype().wide();
        Ok(Tensor::from_reals(self.device.arena(), wide, [weights.len()], &weights)?)
    }

    /// A forward pass through a chunk from `input` to its output or the loss.
    fn pass(
        &mut self,
        g: &mut Graph,
        (p, mb): (&Prepared, &MicroBatch),
        input: Option<BoundaryTensors>,
        chunk: usize,
        overlapped: Option<&dyn OverlappedPass>,
    ) -> Result<(Option<Carry>, Output)> {
        let input = input.map(|BoundaryTensors { stream, shared_kv, picks }| Carry {
            stream: g.input(stream).with_shard_states(self.ctx.stream_states()),
            shared_kv: shared_kv.map(|t| g.input(t).with_shard_states(self.ctx.head_states())),
            picks,
        });
        let (model, store, ctx) = (self.model, self.store, self.ctx);
        let carry = model.forward_chunk(g, store, ctx, &p.batch, (chunk, input.clone()), overlapped)?;
        if !model.ends(chunk).1 {
            if g.records() {
                // The next chunk takes it to be so.
                carry.stream.shard_states().assert_declared(ctx.stream_states(), "the stream at a border");
                let shared_kv = carry.shared_kv.iter();
                shared_kv.for_each(|v| {
                    v.shard_states().assert_declared(ctx.head_states(), "what is lent across a border");
                });
            }
            return Ok((input, Output::Activations(carry)));
        }
        let share = 1.0 / ctx.cp.size() as f64;
        let inputs: Vec<Inputs> = p.ahead.iter().map(|a| a.inputs.clone()).collect();
        let tokens = if g.records() { &inputs[..] } else { &[] };
        let (hidden, predictions) = model.finish(g, store, ctx, &p.batch, (carry, tokens), overlapped)?;
        let deferred = self.defer_embedding_wgrad;
        let out = model.loss_formed((g, store, ctx), &hidden, (&p.labels, &p.weights), deferred)?;
        drop(hidden);
        let counted = |mask: &[f32]| mask.iter().map(|&m| f64::from(m)).sum::<f64>();
        let mask = &mb.loss_mask;
        let sum = self.losses.main.add(&out.nll, &p.share.take(mask), counted(mask), share)?;
        self.losses.of_micro_batches.push(sum);
        let mut loss = out.loss;
        for ((hidden, a), sums) in predictions.into_iter().zip(&p.ahead).zip(&mut self.losses.ahead) {
            let out = model.loss_formed((g, store, ctx), &hidden, (&a.labels, &a.weights), deferred)?;
            sums.add(&out.nll, &p.share.take(&a.loss_mask), counted(&a.loss_mask), share)?;
            loss = ops::add(g, &loss, &out.loss)?;
        }
        Ok((input, Output::Loss(loss)))
    }

    /// A recorded pass of a micro-batch, one of this many.
    fn recorded(
        &mut self,
        (mb, micro_batches): (&MicroBatch, usize),
        input: Option<BoundaryTensors>,
        chunk: usize,
        overlapped: Option<&dyn OverlappedPass>,
    ) -> Result<Pass> {
        let prepared = self.prepare(mb, micro_batches)?;
        let mut graph = Graph::train(self.device);
        let (input, output) = self.pass(&mut graph, (&prepared, mb), input, chunk, overlapped)?;
        Ok(Pass { graph, input, output })
    }

    /// A forward pass, which saves only its input if it `drops` the rest. The pass `beside` runs while it waits.
    fn forward(
        &mut self,
        of: (&MicroBatch, usize),
        id @ PassId { micro, chunk }: PassId,
        drops: bool,
        overlapped: Option<&dyn OverlappedPass>,
    ) -> Result<SavedPass> {
        let input = self.input(micro, chunk)?;
        self.defer_embedding_wgrad = self.this.defers_embedding_wgrad(self.model, id).is_some();
        if !drops {
            let pass = self.recorded(of, input, chunk, overlapped)?;
            self.send_output(&pass.output, micro, chunk)?;
            return Ok(SavedPass::Pass(Box::new(pass)));
        }
        let (mb, micro_batches) = of;
        let prepared = self.prepare(mb, micro_batches)?;
        let mut graph = Graph::inference(self.device);
        let (_, output) = self.pass(&mut graph, (&prepared, mb), input.clone(), chunk, overlapped)?;
        self.send_output(&output, micro, chunk)?;
        Ok(SavedPass::Input(Box::new(input)))
    }

    fn backward(
        &mut self,
        kept: SavedPass,
        of: (&MicroBatch, usize),
        id: PassId,
        sink: &mut dyn GradSink,
        deferred: Option<&mut WeightGradStore>,
    ) -> Result<()> {
        let ActiveBackward { backward, input, output } = self.begin_backward(kept, of, id)?;
        let grads = backward.finish(sink, deferred)?;
        drop(output);
        self.send_input_gradient(input.as_ref(), grads, id)
    }

    /// A backward pass with its inputs, not yet started.
    fn begin_backward(
        &mut self,
        kept: SavedPass,
        of: (&MicroBatch, usize),
        id @ PassId { micro, chunk }: PassId,
    ) -> Result<ActiveBackward> {
        let at = self.position(chunk);
        self.defer_embedding_wgrad = self.this.defers_embedding_wgrad(self.model, id).is_some();
        let Pass { graph, input, output } = match kept {
            SavedPass::Pass(pass) => *pass,
            SavedPass::Input(input) => self.recorded(of, *input, chunk, None)?,
        };
        if self.this.config.memory.recompute_timing != RecomputeTiming::WithGradient
            && matches!(output, Output::Activations(_))
        {
            // While the gradient is in transit.
            graph.prepare_backward()?;
        }
        let mut roots = Vec::with_capacity(2);
        match &output {
            Output::Loss(loss) => {
                loss.assert_root("the loss");
                roots.push((
                    loss,
                    Tensor::from_reals(self.device.arena(), self.store.dtype().wide(), [1], &[self.scale])?,
                ));
            }
            Output::Activations(carry) => {
                let BoundaryTensors { stream, shared_kv, .. } = self.fetch(micro, at + 1, at, true)?;
                roots.push((&carry.stream, stream));
                roots.extend(carry.shared_kv.as_ref().zip(shared_kv));
            }
        }
        let wrt: Vec<&Var> = match &input {
            Some(carry) => std::iter::once(&carry.stream).chain(&carry.shared_kv).collect(),
            None => Vec::new(),
        };
        let backward = graph.begin_backward(roots, &wrt)?;
        Ok(ActiveBackward { backward, input, output })
    }

    /// Gives the gradients of a chunk's input to the chunk before.
    fn send_input_gradient(
        &mut self,
        input: Option<&Carry>,
        grads: Vec<Option<Tensor>>,
        PassId { micro, chunk }: PassId,
    ) -> Result<()> {
        let (at, mut grads) = (self.position(chunk), grads.into_iter());
        let Some(carry) = input else { return Ok(()) };
        let mut next = |of: &Var| -> Tensor {
            // A value that nothing used has a gradient of zeros.
            let zeros = || Tensor::zeros(self.device.arena(), of.value().dtype(), of.value().shape());
            grads.next().flatten().unwrap_or_else(zeros)
        };
        let stream = next(&carry.stream);
        let shared_kv = carry.shared_kv.as_ref().map(next);
        self.deliver(micro, at, at - 1, true, BoundaryTensors { stream, shared_kv, picks: None })
    }
}
