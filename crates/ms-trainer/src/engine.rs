//! One iteration: forward and backward over the micro-batches, gradient reduction, clipping, update.

mod checks;
mod experts;
mod indexers;
mod norms;

use crate::config::TrainConfig;
use crate::lr_schedule::Rates;
use crate::optimizer::Optimizer;
use crate::pipeline::Pipeline;
use crate::reduction::{SharedGradients, data_parallel};
use crate::scaler::Scaler;
use crate::spike_detector::SpikeDetector;
use crate::{Error, Result};
use ms_core::ops::Auxiliary;
use ms_core::{Axis, DType, Device, Host, HostStats, ParamId, ParamStore, RankGroup, Tensor, UpdatedBy};
use ms_data::MicroBatch;
use ms_dist::{DataParallel, GradBuckets, ParallelCtx, ReduceOp, Reduction};
use ms_nn::{Gpt, IndexerLosses, RankPosition, RouterLoad};
use ms_spec::{ParamSpec, Placement};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of a run on one rank: its part of the model, weights, gradients, optimizer.
pub struct Engine {
    config: Arc<TrainConfig>,
    /// Where it computes.
    pub device: Device,
    /// Its place among the ranks.
    pub ctx: ParallelCtx,
    /// Its part of the model.
    pub model: Gpt,
    /// The weights.
    pub store: ParamStore,
    /// The optimizer.
    pub optimizer: Optimizer,
    pub(crate) dp: DataParallel,
    shared: SharedGradients,
    pipeline: Pipeline,
    grads: GradBuckets,
    /// For each parameter, how many passes of a micro-batch add to its gradient before its reduction over data-parallel ranks
    /// may start; `None`: all reductions start at the end.
    overlap: Option<Vec<usize>>,
    /// For each parameter, whether this rank's copy is the one that counts in norms and checkpoints.
    counts: Vec<bool>,
    scaler: Scaler,
    /// Losses of micro-batches, if they are checked.
    loss_spikes: Option<SpikeDetector>,
    /// Norms of this rank's gradients by bucket, if they are checked.
    grad_spikes: Option<SpikeDetector>,
    load: Arc<RouterLoad>,
    indexer_losses: Arc<IndexerLosses>,
    /// Where what leaves the device goes.
    host: Option<Host>,
    /// Most bytes that forward passes have kept.
    kept_bytes: usize,
    /// Peak bytes taken by passes, in addition to permanent memory.
    pass_bytes: usize,
    /// Bytes that actions have sent, by group, which were counted and not done.
    counted_bytes: BTreeMap<RankGroup, u64>,
}

/// The result of an iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The loss as logged.
    pub loss: f64,
    /// Norm of the gradient before clipping; 0 where the iteration was skipped.
    pub grad_norm: f64,
    /// Zeros among the gradients, where they are counted.
    pub zeros: Option<u64>,
    /// Whether gradients overflowed, so that nothing was updated.
    pub skipped: bool,
    /// The factor of the loss in the next iteration.
    pub loss_scale: f64,
    /// Tokens that counted in the loss, over all ranks.
    pub tokens: u64,
    /// The loss of each multi-token prediction module, without its factor.
    pub ahead: Vec<f64>,
    /// The loss of the indexers of sparse attention, with its coefficient, where they are trained.
    pub indexer: Option<f64>,
    /// The load of the experts, if the model has some.
    pub experts: Option<ExpertReport>,
}

/// How tokens were spread over experts, over all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertReport {
    /// Auxiliary losses without their coefficients, means over layers and micro-batches; of the balance of experts 1 is
    /// perfect.
    pub auxiliary: Auxiliary,
    /// The same of each layer.
    pub layers: BTreeMap<usize, Auxiliary>,
    /// Token copies that were meant for each expert, by layer.
    pub tokens: BTreeMap<usize, Vec<u64>>,
    /// Copies among those that each expert took, by layer.
    pub taken: BTreeMap<usize, Vec<u64>>,
    /// Copies that experts beyond their capacity did not take, over all layers.
    pub dropped: u64,
    /// The least by which what a router picked was ahead of what it did not, over all tokens and layers, where that is
    /// watched.
    pub margin: Option<f64>,
}

impl Engine {
    /// A run's state with initial weights.
    ///
    /// # Errors
    /// If the model cannot be built on this grid of ranks.
    pub fn new(config: &TrainConfig, device: Device, ctx: ParallelCtx) -> Result<Self> {
        let mut this = Self::blank(config, device, ctx)?;
        this.draw(config.seed)?;
        Ok(this)
    }

    /// A run's state without weights, which are zeros until they are drawn or loaded.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub(crate) fn blank(config: &TrainConfig, device: Device, mut ctx: ParallelCtx) -> Result<Self> {
        let config = Arc::new(config.clone());
        ctx.linears = config.tp_overlap;
        ctx.overlap_experts |= config.pipeline.overlap_passes;
        let placement = Placement::new(&config.model, &config.pipeline.stages)?;
        let position =
            RankPosition { grid: &ctx.grid, rank: ctx.rank, placement: &placement, context: ctx.context };
        let form = config.optimizer.form;
        let save_policy = config.memory.save_policy;
        let swaps = save_policy.sends() || form.swapped.is_some();
        let host = if device.arena().is_meta() {
            swaps.then(Host::meta)
        } else {
            swaps.then(|| Host::in_folder(&config.memory.swap_folder)).transpose()?
        };
        let model = Gpt::part(&config.model, &device, position, config.longest_row)?
            .with_recompute(config.memory.recompute)
            .with_save_policy(config.memory.save_policy, host.clone());
        let dp = data_parallel(&model, &ctx, &placement, config.data_parallel.buckets)?;
        let mut store =
            ParamStore::in_buckets(device.arena(), config.dtype, dp.layout().clone(), dp.bucket_ranges());
        store.set_updated_by(model.specs().iter().map(|s| s.updated_by));
        if cfg!(debug_assertions) {
            let states = |s: &ParamSpec| (s.name.clone(), s.shard_states(ctx.digits, ctx.sequence_parallel));
            store.set_shard_states(model.specs().iter().map(states));
        }
        let grads = GradBuckets::zeros(device.arena(), config.gradient_dtype(), &dp);
        let counts: Vec<bool> = model.placed_params().iter().map(|p| counts(p, &ctx)).collect();
        let of = (model.specs(), &counts[..]);
        let optimizer =
            Optimizer::new(&device, &dp, of, &store, config.optimizer.update, (form, host.as_ref()))?;
        let shared = SharedGradients::new(&model, &ctx, &placement);
        let load = if config.routing.watch_margins {
            Arc::new(RouterLoad::watching_margins())
        } else {
            Arc::default()
        };
        let indexer_losses = Arc::<IndexerLosses>::default();
        let overlap = config.data_parallel.overlap_grad_reduce.then(|| SharedGradients::passes(&model));
        Ok(Self {
            pipeline: Pipeline::new(config.clone(), &placement, load.clone(), indexer_losses.clone()),
            device,
            ctx,
            model,
            store,
            optimizer,
            dp,
            shared,
            grads,
            overlap,
            counts,
            scaler: config.optimizer.loss_scale.start(),
            loss_spikes: config
                .checks
                .spiky_loss
                .then(|| SpikeDetector::new("the loss of a micro-batch", "--check-for-spiky-loss")),
            grad_spikes: config
                .checks
                .large_grads
                .then(|| SpikeDetector::new("the norm of a bucket's gradients", "--check-for-large-grads")),
            load,
            indexer_losses,
            host,
            kept_bytes: 0,
            pass_bytes: 0,
            counted_bytes: BTreeMap::new(),
            config,
        })
    }

    /// Draws the weights that a run begins with.
    ///
    /// # Errors
    /// If a rank fails.
    pub(crate) fn draw(&mut self, seed: u64) -> Result<()> {
        self.draw_some(seed, |_| true)?;
        self.adopt_weights()
    }

    /// Draws those weights that are `wanted`, which are not master weights yet.
    ///
    /// # Errors
    /// If a graph still uses the weights.
    pub(crate) fn draw_some(&mut self, seed: u64, wanted: impl Fn(&ParamSpec) -> bool) -> Result<()> {
        if self.device.arena().is_meta() {
            return Ok(());
        }
        let place = (self.ctx.rank, &self.ctx.grid);
        Ok(ms_nn::init_params(&mut self.store, self.model.specs(), seed, place, wanted)?)
    }

    /// Runs the micro-batches of iteration `iteration` (from 1) and updates the weights.
    ///
    /// The loss of a micro-batch is the mean over its counted tokens; the gradient is that of the mean over
    /// micro-batches and data-parallel ranks, or with per-token loss that of the mean over all counted tokens.
    ///
    /// # Errors
    /// If a rank fails, or [`Error::NotFinite`].
    pub fn step(
        &mut self,
        iteration: u64,
        micro_batches: &[MicroBatch],
        rates: impl Into<Rates>,
    ) -> Result<StepReport> {
        let (parts, mut report) = self.gradients(iteration, micro_batches)?;
        let _span = tracing::trace_span!(target: "ms_step", "optimizer").entered();
        report.experts = self.experts_report()?;
        if let Some(experts) = &report.experts {
            // As upstream: with the gradients, whatever becomes of these.
            self.move_expert_biases(experts)?;
        }
        if self.config.optimizer.loss_scale.acts() {
            report.skipped = self.overflow(&parts)?;
            self.scaler.update(self.config.optimizer.loss_scale, report.skipped);
            report.loss_scale = self.scaler.scale;
            if report.skipped {
                if report.experts.is_some() {
                    self.publish_masters()?;
                }
                return Ok(report);
            }
        }
        report.grad_norm = self.grad_norm(&parts)?;
        let grad_norm = report.grad_norm;
        if self.config.checks.nan && !grad_norm.is_finite() {
            return Err(not_finite(&self.ctx, iteration, "the gradient norm", grad_norm));
        }
        report.zeros = self.config.logging.num_zeros.then(|| self.zeros(&parts)).transpose()?;
        let clip = if self.config.optimizer.clip_grad > 0.0 {
            (self.config.optimizer.clip_grad / (grad_norm + 1e-6)).min(1.0)
        } else {
            1.0
        };
        self.update((parts, clip), rates.into())?;
        self.publish_biases()?;
        Ok(report)
    }

    /// New weights from gradients times `clip`, gathered from the ranks that update them.
    fn update(&mut self, (parts, clip): (Vec<Tensor>, f64), rates: Rates) -> Result<()> {
        let order = self.dp.forward_order();
        let (mut gathering, mut waiting) = (self.dp.weight_gather(), Vec::with_capacity(order.len()));
        let updated = |bucket, part| {
            if self.config.data_parallel.overlap_gather_with_step {
                return Ok(gathering.begin(bucket, part)?);
            }
            waiting.push((bucket, part));
            Ok(())
        };
        self.optimizer.update(&self.device, (&parts, clip), rates, &mut self.store, order, updated)?;
        for (bucket, part) in waiting {
            gathering.begin(bucket, part)?;
        }
        gathering.announce(&mut self.store)?;
        if !self.config.data_parallel.overlap_param_gather {
            self.store.settle()?;
        }
        Ok(())
    }

    /// Forward and backward over the micro-batches: this rank's part of the reduced gradients, a tensor for each bucket,
    /// and the losses.
    fn gradients(
        &mut self,
        iteration: u64,
        micro_batches: &[MicroBatch],
    ) -> Result<(Vec<Tensor>, StepReport)> {
        self.grads.clear(&self.device)?;
        let (model, store, ctx, device) = (&self.model, &self.store, &self.ctx, &self.device);
        let mut work = self.pipeline.work(model, ctx, device, micro_batches.len())?;
        let passes = work.repeats.worked(micro_batches.len());
        let mut reduction = match &self.overlap {
            None => Reduction::at_the_end(&self.dp, &mut self.grads),
            Some(early) => Reduction::overlapped(&self.dp, &mut self.grads, |p| early[p.0 as usize] * passes),
        };
        let mut norms = Vec::new();
        if self.grad_spikes.is_some() {
            reduction = reduction.noting_norms(device, &mut norms);
        }
        let (losses, kept_bytes) = {
            let _span = tracing::trace_span!(target: "ms_step", "forward-backward").entered();
            let step = (iteration, micro_batches, self.scaler.scale);
            let on = (device, self.host.as_ref());
            // Weights that come meanwhile belong to none of the passes.
            let coming = store.pending_bytes();
            let run = || self.pipeline.run((model, store, ctx), on, step, &mut work, &mut reduction);
            let (done, taken) = device.arena().measured(run);
            self.pass_bytes = self.pass_bytes.max(taken.most_asked().saturating_sub(coming));
            done?
        };
        for (group, bytes) in work.repeats.sent {
            *self.counted_bytes.entry(group).or_default() += bytes;
        }
        reduction.passes_over()?;
        // What no layer has used.
        self.store.settle()?;
        self.kept_bytes = self.kept_bytes.max(kept_bytes);
        if let Some(usual) = self.loss_spikes.as_mut().filter(|_| !losses.of_micro_batches.is_empty()) {
            let mine = &losses.of_micro_batches;
            let mine = Tensor::from_slice(self.device.arena(), [mine.len()], mine)?;
            let sums = self.ctx.cp.all_reduce("losses of micro-batches", mine, ReduceOp::Sum)?.wait()?;
            usual.look(sums.ready()?.as_slice()?, iteration, || self.ctx.describe())?;
        }
        let losses = losses.over_ranks(&self.device, &self.ctx)?;
        let mut loss = losses.main.value(self.config.loss.log_token_mean);
        let mut of_predictions: Vec<f64> = losses.ahead.iter().map(|l| l.value(false)).collect();
        if self.config.model.mtp_hidden_first {
            let each = self.pipeline.scale_of_predictions();
            loss += losses.ahead.iter().map(|l| each * l.value(self.config.loss.log_token_mean)).sum::<f64>();
            of_predictions.clear();
        }
        if self.config.checks.nan && !loss.is_finite() {
            return Err(not_finite(&self.ctx, iteration, "the loss", loss));
        }
        let factor = if self.config.loss.per_token {
            1.0 / losses.main.tokens.max(1.0)
        } else {
            1.0 / self.ctx.dp.size() as f64
        } / self.scaler.scale;
        let mut parts = reduction.finish(&self.device, factor)?;
        if let Some(usual) = &mut self.grad_spikes {
            // As they are without the scale of the loss, which changes.
            norms.iter_mut().for_each(|norm| *norm /= self.scaler.scale);
            usual.look(&norms, iteration, || self.ctx.describe())?;
        }
        self.shared.reduce_parts(&self.device, &self.ctx, &self.dp, &mut parts)?;
        let report = StepReport {
            loss,
            grad_norm: 0.0,
            zeros: None,
            skipped: false,
            loss_scale: self.scaler.scale,
            tokens: losses.main.tokens as u64,
            ahead: of_predictions,
            indexer: self.indexer_loss(micro_batches.len())?,
            experts: None,
        };
        Ok((parts, report))
    }

    /// The gradients of the mean loss of `micro_batches` by every element that this rank owns and that counts: parameter,
    /// its elements, values; what is drawn is drawn as in the first iteration. Nothing is updated.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn owned_gradients(&mut self, micro_batches: &[MicroBatch]) -> Result<(StepReport, Vec<OwnedPart>)> {
        let (parts, mut report) = self.gradients(1, micro_batches)?;
        report.grad_norm = self.grad_norm(&parts)?;
        report.experts = self.experts_report()?;
        let mut owned = Vec::new();
        for slice in self.dp.slices().into_iter().filter(|s| self.counts[s.param]) {
            let values = parts[slice.bucket].slice_flat(slice.offset, [slice.range.len()])?;
            owned.push(self.owned(slice.param, slice.range, values)?);
        }
        Ok((report, owned))
    }

    fn owned(&self, param: usize, range: std::ops::Range<usize>, values: Tensor) -> Result<OwnedPart> {
        let spec = &self.model.specs()[param];
        let region = ms_spec::local(spec, &self.ctx.grid, self.ctx.rank)?;
        Ok(OwnedPart { name: spec.name.clone(), region, range, values })
    }

    /// The unrounded weights that this rank owns and that count.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn owned_weights(&self) -> Result<Vec<OwnedPart>> {
        // Ranks that own nothing of a bucket do not read it, so none may have to wait for it.
        self.store.settle()?;
        let parts = self.optimizer.parts(&self.device, &self.store, 0, |id| self.counts(id));
        let owned = |part: Result<_>| {
            let (id, range, values): (ParamId, _, _) = part?;
            self.owned(id.0 as usize, range, values)
        };
        parts.map(owned).collect()
    }

    /// How close the routers' choices are on a micro-batch of `iteration`, with the weights as they are: the least by which what
    /// was picked is ahead of what was not; infinite without routers, or where that is not watched. Nothing is updated.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn routing_margin(&self, iteration: u64, micro_batch: &MicroBatch) -> Result<f64> {
        let (model, store, ctx) = (&self.model, &self.store, &self.ctx);
        self.pipeline.try_out(model, store, ctx, &self.device, (iteration, micro_batch))?;
        self.indexer_losses.take()?;
        let margin = self.experts_report()?.and_then(|report| report.margin);
        Ok(margin.unwrap_or(f64::INFINITY))
    }

    /// Peak bytes of tensors that forward passes have saved for their backward, by requested block sizes.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Peak bytes of tensors taken by forward and backward passes, in addition to weights, gradients and state.
    pub fn pass_bytes(&self) -> usize {
        self.pass_bytes
    }

    /// Bytes sent so far, by group of ranks.
    pub(crate) fn sent_bytes(&self) -> BTreeMap<RankGroup, u64> {
        let counted = |group| self.counted_bytes.get(&group).copied().unwrap_or(0);
        self.ctx.sent_bytes().into_iter().map(|(group, bytes)| (group, bytes + counted(group))).collect()
    }

    /// Counters of the file that tensors are offloaded to, if any are.
    pub fn host_stats(&self) -> Option<HostStats> {
        self.host.as_ref().map(Host::stats)
    }

    /// Whether this rank's copy of parameter `id` is the one that counts in norms and checkpoints.
    pub fn counts(&self, id: ParamId) -> bool {
        self.counts[id.0 as usize]
    }

    /// Puts the optimizer's master weights into the model, as after an update.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn publish_masters(&mut self) -> Result<()> {
        let weights = self.optimizer.weights(&self.device, &self.store)?;
        self.dp.gather_weights(&mut self.store, weights)?;
        self.publish_biases()
    }

    /// Puts the f32 values of what no gradient moves, the routers' biases, into a model of a narrower type: each rank has
    /// its share of them among its master weights.
    fn publish_biases(&mut self) -> Result<()> {
        if self.dtype() == self.dtype().wide() {
            return Ok(());
        }
        let layout = self.store.layout().clone();
        let kept = |id: ParamId| self.store.updated_by(id) != UpdatedBy::Gradient;
        let mut shares: BTreeMap<u32, Vec<f32>> = layout
            .ids()
            .filter(|&id| kept(id))
            .map(|id| (id.0, vec![0.0; layout.shape(id).numel()]))
            .collect();
        for part in self.optimizer.parts(&self.device, &self.store, 0, kept) {
            let (id, range, values) = part?;
            if let Some(share) = shares.get_mut(&id.0).filter(|_| !values.is_meta()) {
                share[range].copy_from_slice(values.ready()?.as_slice()?);
            }
        }
        for (id, share) in shares {
            let share = Tensor::from_slice(self.device.arena(), layout.shape(ParamId(id)), &share)?;
            let whole = self.ctx.replicas.intra.all_reduce("router biases", share, ReduceOp::Sum)?.wait()?;
            self.store.set_wide(ParamId(id), whole)?;
        }
        Ok(())
    }

    /// Takes the model's weights as master weights, as after loading a model without optimizer state.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn adopt_weights(&mut self) -> Result<()> {
        self.optimizer.take_masters(&self.device, &self.dp, &self.store)?;
        self.publish_biases()
    }

    /// The factor of the loss with what it depends on.
    pub(crate) fn scaler(&self) -> Scaler {
        self.scaler
    }

    /// Goes on with a checkpoint's factor.
    pub(crate) fn set_scaler(&mut self, scaler: Scaler) {
        self.scaler = scaler;
    }

    /// The loss on micro-batches without changing anything, over all data-parallel ranks.
    ///
    /// # Errors
    /// If a rank fails or a batch is invalid.
    pub fn evaluate(&self, micro_batches: impl Iterator<Item = Result<MicroBatch>>) -> Result<f64> {
        let losses =
            self.pipeline.evaluate(&self.model, &self.store, &self.ctx, &self.device, micro_batches)?;
        Ok(losses.over_ranks(&self.device, &self.ctx)?.main.value(self.config.loss.log_token_mean))
    }

    /// Element type of the weights.
    pub fn dtype(&self) -> DType {
        self.store.dtype()
    }
}

/// A part of a parameter's gradient or weights.
#[derive(Clone, Debug)]
pub struct OwnedPart {
    /// The parameter.
    pub name: String,
    /// The rank's region of it.
    pub region: ms_core::Region,
    /// Elements of the region, in its local order.
    pub range: std::ops::Range<usize>,
    /// Their values, f32 or f64.
    pub values: Tensor,
}

/// Whether this rank's copy of a parameter is the one that counts: of equal copies the first along each axis that does not
/// cut it, of instances of the optimizer the first, and inside one each rank's own share.
fn counts(param: &ms_spec::PlacedParam, ctx: &ParallelCtx) -> bool {
    let spec = &param.spec;
    let (group, state) =
        if spec.of_experts() { (&ctx.etp, &ctx.expert_replicas) } else { (&ctx.tp, &ctx.replicas) };
    !param.copy && state.inter.rank() == 0 && (spec.partition.axes().contains(&Axis::Tp) || group.rank() == 0)
}

/// The largest float16.
const LARGEST_F16: f64 = 65504.0;

fn not_finite(ctx: &ParallelCtx, iteration: u64, what: &'static str, value: f64) -> Error {
    Error::NotFinite { iteration, rank: ctx.describe(), what, value }
}
