//! One iteration: forward and backward over the micro-batches, reduction, clipping, update.

use crate::ahead::{Ahead, ahead};
use crate::config::{Routing, TrainConfig};
use crate::optimizer::Optimizer;
use crate::{Error, Result};
use ms_core::ops::{self, Balance};
use ms_core::{DType, Device, GradBuffer, Graph, ParamId, ParamStore, Tensor};
use ms_data::MicroBatch;
use ms_dist::buckets::{BucketPlan, Placed};
use ms_dist::{Communicator, DataParallel, ParallelCtx, ReduceOp};
use ms_nn::{Batch, Gpt, LayerLoad, RouterLoad};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of a run on one rank: model, weights, gradients, optimizer.
pub struct Engine {
    /// Where it computes.
    pub device: Device,
    /// Its place among the ranks.
    pub ctx: ParallelCtx,
    /// The model.
    pub model: Gpt,
    /// The weights.
    pub store: ParamStore,
    /// The optimizer.
    pub optimizer: Optimizer,
    dp: DataParallel,
    grads: GradBuffer,
    clip_grad: f64,
    per_token_loss: bool,
    log_token_mean: bool,
    check_for_nan: bool,
    routing: Routing,
    mtp_loss_scale: f64,
    load: Arc<RouterLoad>,
}

/// What an iteration found.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The loss as logged.
    pub loss: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Tokens that counted in the loss, over all ranks.
    pub tokens: u64,
    /// The loss of each multi-token prediction module, without its factor.
    pub ahead: Vec<f64>,
    /// The load of the experts, if the model has some.
    pub experts: Option<ExpertReport>,
}

/// How tokens were spread over experts, over all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertReport {
    /// Load-balancing loss without its coefficient, mean over layers and micro-batches; 1 is perfect balance.
    pub balance: f64,
    /// Token copies that went to each expert, by layer.
    pub tokens: BTreeMap<usize, Vec<u64>>,
}

/// A loss summed up in two ways over micro-batches.
#[derive(Clone, Copy, Debug, Default)]
struct LossSums {
    /// Sum of micro-batch means.
    means: f64,
    /// Micro-batches.
    micro_batches: f64,
    /// Sum over tokens.
    nll: f64,
    /// Tokens that count.
    tokens: f64,
}

impl LossSums {
    fn add(&mut self, nll: &Tensor, mask: &[f32]) -> Result<()> {
        let (mut sum, mut tokens) = (0.0, 0.0);
        for (&n, &m) in nll.as_slice::<f32>()?.iter().zip(mask).filter(|(_, m)| **m != 0.0) {
            sum += f64::from(n) * f64::from(m);
            tokens += f64::from(m);
        }
        self.nll += sum;
        self.tokens += tokens;
        self.means += if tokens > 0.0 { sum / tokens } else { 0.0 };
        self.micro_batches += 1.0;
        Ok(())
    }

    fn over_ranks(self, device: &Device, comm: &dyn Communicator) -> Result<Self> {
        let mine = [self.means, self.micro_batches, self.nll, self.tokens];
        let sum = comm
            .all_reduce("loss", Tensor::from_slice(device.arena(), [4], &mine)?, ReduceOp::Sum)?
            .wait()?;
        let s = sum.as_slice::<f64>()?;
        Ok(Self { means: s[0], micro_batches: s[1], nll: s[2], tokens: s[3] })
    }

    fn value(&self, token_mean: bool) -> f64 {
        if token_mean { self.nll / self.tokens.max(1.0) } else { self.means / self.micro_batches.max(1.0) }
    }
}

impl Engine {
    /// A run's state with initial weights.
    ///
    /// # Errors
    /// If the model cannot be built on this grid of ranks.
    pub fn new(config: &TrainConfig, device: Device, ctx: ParallelCtx) -> Result<Self> {
        let tp = ctx.tp.size();
        let model =
            Gpt::new(&config.model, &device, tp, config.longest_row)?.with_recompute(config.recompute);
        let placed = model.specs().iter().map(|spec| {
            let shape = ms_spec::local(spec, &ctx.topo, ctx.rank)?.local_shape();
            Ok(Placed { shape, own_bucket: false })
        });
        let placed: Vec<Placed> = placed.collect::<Result<_>>()?;
        let plan = BucketPlan::new(&placed, ctx.dp_cp.size(), config.bucket_size);
        let mut store = ParamStore::zeros(device.arena(), config.dtype, plan.layout.clone());
        ms_nn::init_params(&mut store, model.specs(), config.seed, ctx.rank, &ctx.topo)?;
        let grads = GradBuffer::zeros(device.arena(), plan.layout.clone());
        let dp = DataParallel::new(ctx.dp_cp.clone(), plan);
        let optimizer = Optimizer::new(&device, &dp, ctx.dp_cp.rank(), model.specs(), &store, config.adam)?;
        let mut this = Self {
            device,
            ctx,
            model,
            store,
            optimizer,
            dp,
            grads,
            clip_grad: config.clip_grad,
            per_token_loss: config.per_token_loss,
            log_token_mean: config.log_token_mean || config.per_token_loss,
            check_for_nan: config.check_for_nan,
            routing: config.routing,
            mtp_loss_scale: config.mtp_loss_scale,
            load: Arc::default(),
        };
        this.publish_biases()?;
        Ok(this)
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
        lr: f64,
        weight_decay: f64,
    ) -> Result<StepReport> {
        self.device.fill_zero(self.grads.values_mut())?;
        let mut sums = LossSums::default();
        let mut ahead = vec![LossSums::default(); self.model.config().mtp];
        for mb in micro_batches {
            let _span = tracing::trace_span!(target: "ms_step", "forward-backward").entered();
            self.forward_backward(mb, micro_batches.len(), &mut sums, &mut ahead)?;
        }
        let _span = tracing::trace_span!(target: "ms_step", "optimizer").entered();
        let dp = self.ctx.dp_cp.clone();
        let sums = sums.over_ranks(&self.device, &*dp)?;
        let loss = sums.value(self.log_token_mean);
        if self.check_for_nan && !loss.is_finite() {
            return Err(self.not_finite(iteration, "the loss", loss));
        }
        let ahead = ahead.into_iter().map(|s| Ok(s.over_ranks(&self.device, &*dp)?.value(false)));
        let ahead = ahead.collect::<Result<_>>()?;
        let factor = if self.per_token_loss { 1.0 / sums.tokens.max(1.0) } else { 1.0 / dp.size() as f64 };
        let parts = self.dp.reduce_gradients(&self.device, &mut self.grads, factor as f32)?;
        let grad_norm = self.grad_norm(&parts)?;
        if self.check_for_nan && !grad_norm.is_finite() {
            return Err(self.not_finite(iteration, "the gradient norm", grad_norm));
        }
        let clip = if self.clip_grad > 0.0 { (self.clip_grad / (grad_norm + 1e-6)).min(1.0) } else { 1.0 };
        let experts = self.experts_report()?;
        if let Some(report) = &experts {
            self.move_expert_biases(report)?;
        }
        let dtype = self.store.dtype();
        let weights = self.optimizer.update(&self.device, &parts, clip as f32, (lr, weight_decay), dtype)?;
        self.dp.gather_weights(&mut self.store, weights)?;
        self.publish_biases()?;
        Ok(StepReport { loss, grad_norm, tokens: sums.tokens as u64, ahead, experts })
    }

    /// Puts the optimizer's master weights into the model, as after an update.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn publish_masters(&mut self) -> Result<()> {
        let weights = self.optimizer.weights(&self.device, self.store.dtype())?;
        self.dp.gather_weights(&mut self.store, weights)?;
        self.publish_biases()
    }

    /// Puts the f32 values of what no gradient moves, the routers' biases, into a model of a narrower type: each rank has
    /// its share of them among its master weights.
    fn publish_biases(&mut self) -> Result<()> {
        if self.dtype() == DType::F32 {
            return Ok(());
        }
        let specs = self.model.specs();
        let kept = |id: ParamId| !specs[id.0 as usize].trained;
        let mut shares: BTreeMap<u32, Vec<f32>> = BTreeMap::new();
        for (i, spec) in specs.iter().enumerate().filter(|(i, _)| kept(ParamId(*i as u32))) {
            shares.insert(i as u32, vec![0.0; spec.shape.numel()]);
        }
        for part in self.optimizer.parts(0) {
            let (id, range, values) = part?;
            if let Some(share) = shares.get_mut(&id.0) {
                share[range].copy_from_slice(values);
            }
        }
        for (id, share) in shares {
            let share =
                Tensor::from_slice(self.device.arena(), self.model.specs()[id as usize].shape, &share)?;
            let whole = self.ctx.dp_cp.all_reduce("router biases", share, ReduceOp::Sum)?.wait()?;
            self.store.set_wide(ParamId(id), whole)?;
        }
        Ok(())
    }

    /// Takes the model's weights as master weights, as after loading a model without optimizer state.
    ///
    /// # Errors
    /// Never in a sound program.
    pub fn adopt_weights(&mut self) -> Result<()> {
        self.optimizer.take_masters(&self.device, &self.dp, self.ctx.dp_cp.rank(), &self.store)?;
        self.publish_biases()
    }

    fn not_finite(&self, iteration: u64, what: &'static str, value: f64) -> Error {
        Error::NotFinite { iteration, rank: self.ctx.describe(), what, value }
    }

    /// What the routers reported since the last call, summed over data-parallel ranks.
    fn experts_report(&self) -> Result<Option<ExpertReport>> {
        let load = self.load.take();
        if load.is_empty() {
            return Ok(None);
        }
        // One vector for all layers: balance and passes, then the counts of each.
        let mut all = Vec::new();
        for LayerLoad { balance, passes, tokens } in load.values() {
            all.extend([*balance, *passes as f64]);
            all.extend(tokens.iter().map(|&n| n as f64));
        }
        let mine = Tensor::from_slice(self.device.arena(), [all.len()], &all)?;
        let sum = self.ctx.dp_cp.all_reduce("expert load", mine, ReduceOp::Sum)?.wait()?;
        let mut rest = sum.as_slice::<f64>()?;
        let (mut balance, mut passes, mut tokens) = (0.0, 0.0, BTreeMap::new());
        for (&layer, load) in &load {
            let (numbers, counts) = rest.split_at(2);
            let (counts, tail) = counts.split_at(load.tokens.len());
            (balance, passes, rest) = (balance + numbers[0], passes + numbers[1], tail);
            tokens.insert(layer, counts.iter().map(|&n| n as u64).collect());
        }
        let coeff = if self.routing.balance_coeff == 0.0 { 1.0 } else { self.routing.balance_coeff };
        Ok(Some(ExpertReport { balance: balance / passes.max(1.0) / coeff, tokens }))
    }

    /// Moves the biases of experts that got less than the mean up by one step, of those that got more down.
    ///
    /// # Source
    /// DeepSeek-V3, arXiv:2412.19437, section 2.1.2; Megatron-LM `core_v0.12.1`,
    /// `megatron/core/transformer/moe/moe_utils.py`, `get_updated_expert_bias`.
    fn move_expert_biases(&mut self, report: &ExpertReport) -> Result<()> {
        let rate = self.routing.bias_update_rate;
        if rate == 0.0 {
            return Ok(());
        }
        let specs = self.model.specs();
        let layers = self.model.config().layers;
        let layer_of = |name: &str| {
            let module = name.strip_suffix(".mlp.router.expert_bias")?;
            match module.strip_prefix("decoder.layers.") {
                Some(number) => number.parse::<usize>().ok(),
                None => {
                    let number = module.strip_prefix("mtp.layers.")?.strip_suffix(".transformer_layer")?;
                    Some(layers + number.parse::<usize>().ok()?)
                }
            }
        };
        self.optimizer.change_masters(|id, range, values| {
            let Some(counts) = layer_of(&specs[id.0 as usize].name).and_then(|l| report.tokens.get(&l))
            else {
                return;
            };
            let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
            for (value, e) in values.iter_mut().zip(range) {
                let behind = mean - counts.get(e).map_or(mean, |&n| n as f64);
                if behind != 0.0 {
                    *value += (rate * behind.signum()) as f32;
                }
            }
        })
    }

    fn batch(&self, mb: &MicroBatch) -> Result<(Batch, Tensor)> {
        let arena = self.device.arena();
        let batch = Batch::new(arena, &mb.tokens, &mb.position_ids, &mb.cu_seqlens)?;
        Ok((batch, Tensor::from_slice(arena, [mb.labels.len()], &mb.labels)?))
    }

    /// Weights `[T]` of the tokens in the loss that is optimised: `scale` times the mean over those that count, shared
    /// out over micro-batches, or with per-token loss their plain sum.
    fn loss_weights(&self, mask: &[f32], micro_batches: usize, scale: f64) -> Result<Tensor> {
        let counted: f64 = mask.iter().map(|&m| f64::from(m)).sum();
        let share = if self.per_token_loss { 1.0 } else { 1.0 / (counted.max(1.0) * micro_batches as f64) };
        let weights: Vec<f32> = mask.iter().map(|&m| (f64::from(m) * share * scale) as f32).collect();
        Ok(Tensor::from_slice(self.device.arena(), [weights.len()], &weights)?)
    }

    fn forward_backward(
        &mut self,
        mb: &MicroBatch,
        micro_batches: usize,
        sums: &mut LossSums,
        ahead_sums: &mut [LossSums],
    ) -> Result<()> {
        let (mut batch, labels) = self.batch(mb)?;
        let weights = self.loss_weights(&mb.loss_mask, micro_batches, 1.0)?;
        if self.model.config().moe.is_some() {
            let counted: f64 = mb.loss_mask.iter().map(|&m| f64::from(m)).sum();
            let grad_scale = if self.per_token_loss { counted } else { 1.0 / micro_batches as f64 };
            let coeff = self.routing.balance_coeff as f32;
            batch.balance = (coeff != 0.0).then_some(Balance { coeff, grad_scale: grad_scale as f32 });
            batch.load = Some(self.load.clone());
        }
        let device = self.device.clone();
        let ints = |values: &[i32]| Tensor::from_slice(device.arena(), [values.len()], values);
        let seen: Vec<Ahead> = ahead(mb, ahead_sums.len());
        let tokens = seen.iter().map(|a| ints(&a.tokens)).collect::<ms_core::Result<Vec<_>>>()?;
        let mut g = Graph::train(&device);
        let (hidden, predictions) =
            self.model.forward_ahead(&mut g, &self.store, &self.ctx, &batch, &tokens)?;
        let out = self.model.loss(&mut g, &self.store, &hidden, &labels, &weights)?;
        drop(hidden);
        sums.add(&out.nll, &mb.loss_mask)?;
        let mut loss = out.loss;
        let scale = self.mtp_loss_scale / seen.len().max(1) as f64;
        for ((hidden, a), sums) in predictions.into_iter().zip(&seen).zip(ahead_sums) {
            let weights = self.loss_weights(&a.loss_mask, micro_batches, scale)?;
            let out = self.model.loss(&mut g, &self.store, &hidden, &ints(&a.labels)?, &weights)?;
            sums.add(&out.nll, &a.loss_mask)?;
            loss = ops::add(&mut g, &loss, &out.loss)?;
        }
        let one = Tensor::from_slice(device.arena(), [1], &[1f32])?;
        g.backward(&loss, one, &[], &mut self.grads)?;
        Ok(())
    }

    fn grad_norm(&self, parts: &[Tensor]) -> Result<f64> {
        let squares =
            parts.iter().try_fold(0.0, |sum, p| Ok::<_, Error>(sum + self.device.sum_squares(p)?))?;
        self.root_of_sum(squares)
    }

    fn root_of_sum(&self, squares: f64) -> Result<f64> {
        let t = Tensor::from_slice(self.device.arena(), [1], &[squares])?;
        let sum = self.ctx.world.all_reduce("squared norm", t, ReduceOp::Sum)?.wait()?;
        Ok(sum.as_slice::<f64>()?[0].sqrt())
    }

    /// Norm of the master weights over all ranks.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn params_norm(&self) -> Result<f64> {
        let mut squares = 0.0;
        for part in self.optimizer.parts(0) {
            squares += part?.2.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>();
        }
        self.root_of_sum(squares)
    }

    /// The loss on micro-batches without changing anything, over all data-parallel ranks.
    ///
    /// # Errors
    /// If a rank fails or a batch is not sound.
    pub fn evaluate(&self, micro_batches: impl Iterator<Item = Result<MicroBatch>>) -> Result<f64> {
        let mut sums = LossSums::default();
        for mb in micro_batches {
            let mb = mb?;
            let (batch, labels) = self.batch(&mb)?;
            let mut g = Graph::inference(&self.device);
            let hidden = self.model.forward(&mut g, &self.store, &self.ctx, &batch)?;
            let weights = Tensor::from_slice(self.device.arena(), [mb.loss_mask.len()], &mb.loss_mask)?;
            let out = self.model.loss(&mut g, &self.store, &hidden, &labels, &weights)?;
            sums.add(&out.nll, &mb.loss_mask)?;
        }
        Ok(sums.over_ranks(&self.device, &*self.ctx.dp_cp)?.value(self.log_token_mean))
    }

    /// Element type of the weights.
    pub fn dtype(&self) -> DType {
        self.store.dtype()
    }
}
