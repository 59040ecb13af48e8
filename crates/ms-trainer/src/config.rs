//! The resolved configuration of a run.

use crate::indexers::IndexerTraining;
use crate::lr_schedule::{DecayStyle, LrSchedule, WeightDecayStyle, WsdStyle};
use crate::scaler::LossScale;
use crate::state::OptimizerForm;
use crate::{Error, Result};
use ms_ckpt::layout::mcore::Spelling;
use ms_core::DType;
use ms_core::ops::Auxiliary;
use ms_dist::buckets::Bucketing;
use ms_dist::schedule::{Impossible, Order};
use ms_dist::{ContextParallel, LinearOverlap};
use ms_nn::{Capacity, Recompute, SavePolicy};
use ms_spec::{ModelConfig, Stages};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// A run's settings: plain numbers, resolved once by the program; no part of the library reads flags,
/// environment or files to find them.
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// The model.
    pub model: ModelConfig,
    /// Element type of weights and activations: f32, bf16, or f64 on the reference device; f16 weights are computed with in
    /// f32. Master weights and optimizer state are f32 (f64 for f64) unless [`Self::optimizer_form`] chooses a narrower form.
    pub dtype: DType,
    /// Tokens of a sample.
    pub seq_length: usize,
    /// Tokens of the longest row that the data gives: [`TrainConfig::seq_length`], unless rows are padded to a multiple that
    /// does not divide it. The model is made for this many positions.
    pub longest_row: usize,
    /// Batch sizes.
    pub batch: BatchSizes,
    /// Iterations of the run.
    pub train_iters: u64,
    /// Samples of the run: what the training set is made for.
    pub train_samples: u64,
    /// Only validate and test.
    pub skip_train: bool,
    /// Learning rate and weight decay.
    pub schedule: LrSchedule,
    /// The update rule of the optimizer.
    pub update: UpdateRule,
    /// The form in which the optimizer stores its state.
    pub optimizer_form: OptimizerForm,
    /// The factor on the loss before the backward pass.
    pub loss_scale: LossScale,
    /// Largest gradient norm; 0 turns clipping off.
    pub clip_grad: f64,
    /// Gradients are averaged over tokens instead of micro-batches.
    pub per_token_loss: bool,
    /// The logged loss is a mean over tokens (pretraining by `core_v0.12.1`, and fine-tuning where gradients are) instead of one
    /// over micro-batches (`core_r0.8.0`).
    pub log_token_mean: bool,
    /// Which layers are recomputed in the backward pass.
    pub recompute: Recompute,
    /// Which activations the other layers do not save.
    pub save_policy: SavePolicy,
    /// When passes are recomputed.
    pub recompute_timing: RecomputeTiming,
    /// Folder of the files to which goes what leaves the device.
    pub swap_folder: PathBuf,
    /// What each pipeline stage holds.
    pub stages: Stages,
    /// The order of work in a pipeline.
    pub order: PipelineOrder,
    /// Forward passes overlap with backward passes of other micro-batches, so that each runs while the other's tokens are in
    /// transit to experts and back ([`ms_dist::schedule::Schedule::with_overlapped_passes`]); token exchanges then overlap with
    /// other work in all passes.
    pub overlap_passes: bool,
    /// Stages wait for each message as soon as it is available: the sender until it is received, the receiver before it
    /// starts anything else. Otherwise messages are in transit while both work.
    pub waits_at_borders: bool,
    /// For this many micro-batches of an iteration, the gradient of the output layer's weights is computed when the last
    /// stage has finished everything else, while other stages are still working.
    pub defer_embedding_wgrad: Option<usize>,
    /// How routers are trained, where the model has experts.
    pub routing: Routing,
    /// Dropout rate after the embedding and after every sublayer, during training.
    pub hidden_dropout: f64,
    /// Rate of dropout of attention's weights, while it is trained.
    pub attention_dropout: f64,
    /// Seed of initial weights and of what is drawn at random in training.
    pub seed: u64,
    /// Elements of a gradient bucket; `None`: one bucket.
    pub bucket_size: Option<usize>,
    /// A bucket is padded to a multiple of this many elements, and of the number of ranks that share it.
    pub bucket_multiple: usize,
    /// Buckets are summed over ranks as soon as their gradients are final, while the backward pass still runs.
    pub overlap_grad_reduce: bool,
    /// New weights are gathered from the ranks that update them while the next forward pass runs; a layer waits for its own.
    pub overlap_param_gather: bool,
    /// A bucket's new weights are gathered as soon as they are computed, while those of other buckets still are.
    pub overlap_gather_with_step: bool,
    /// What layers inside tensor parallelism compute while their ranks exchange.
    pub tp_overlap: LinearOverlap,
    /// Gradients are kept in bf16, of bf16 weights: every micro-batch's is rounded when it is added (`--o2-gradient`).
    pub rounded_gradients: bool,
    /// Stop when a loss or gradient norm is not a number.
    pub check_for_nan: bool,
    /// End the run at a micro-batch whose loss is ten times the largest of the first hundred.
    pub check_for_spiky_loss: bool,
    /// End the run at gradients, of a bucket on one rank, whose norm is ten times the largest of the first hundred.
    pub check_for_large_grads: bool,
    /// Validation.
    pub eval: Evaluation,
    /// Iterations between log lines.
    pub log_interval: u64,
    /// TFLOP/s in the log line.
    pub log_throughput: bool,
    /// The progress of jobs is written to `progress.txt` next to checkpoints.
    pub log_progress: bool,
    /// Norm of the weights in the log line.
    pub log_params_norm: bool,
    /// Zeros among the gradients in the log line.
    pub log_num_zeros: bool,
    /// The auxiliary losses of each layer's router are written in addition to their means.
    pub log_layers: bool,
    /// Iterations after which ranks that should have the same weights compare them; 0: never.
    pub compare_replicas: u64,
    /// Iterations, by how many are done before them, whose samples are passed over without an update.
    pub skipped_iterations: BTreeSet<u64>,
    /// Model FLOPs of one sample, forward and backward, for the throughput.
    pub flops_per_sample: f64,
    /// Checkpoints.
    pub checkpoint: Checkpointing,
    /// When to stop before `train_iters`.
    pub exit: Exit,
    /// Where one JSON object per iteration goes; validations go to the same name with `.validation.jsonl`.
    pub metrics_file: Option<PathBuf>,
    /// Folder of TensorBoard event files, and iterations between points.
    pub tensorboard: Option<(PathBuf, u64)>,
    /// Iterations that are recorded: `start..end`, counted from 0.
    pub profile: Option<std::ops::Range<u64>>,
    /// Factor of the mean loss of multi-token prediction modules, where the model has some.
    pub mtp_loss_scale: f64,
    /// The loss that trains the indexers of sparse attention, where the model has some; `None`: they stay as they are.
    pub indexer: Option<IndexerTraining>,
    /// The flags as given, for the checkpoint.
    pub args: Map<String, Value>,
}

impl TrainConfig {
    /// A run of single steps for a program that calls [`crate::Engine::step`] itself: micro-batches of `batch` samples of
    /// `seq_length` tokens, one an iteration, constant learning rate, nothing validated, logged or saved.
    pub fn steps(model: ModelConfig, dtype: DType, seq_length: usize, batch: usize) -> Self {
        Self {
            flops_per_sample: ms_spec::flops::v2_0_0(&model, 1, seq_length),
            model,
            dtype,
            seq_length,
            longest_row: seq_length,
            batch: BatchSizes { micro: batch, global: batch, rampup: None, lowered: false },
            train_iters: 0,
            train_samples: 0,
            skip_train: false,
            schedule: LrSchedule {
                init_lr: 0.0,
                max_lr: 1e-3,
                min_lr: 1e-3,
                warmup: 0.0,
                decay: 1,
                style: DecayStyle::Constant,
                wsd_decay: 0,
                wsd_style: WsdStyle::Linear,
                start_weight_decay: 0.1,
                end_weight_decay: 0.1,
                weight_decay_samples: 0,
                weight_decay_style: WeightDecayStyle::Constant,
                decoupled: None,
            },
            update: UpdateRule::AdamW(Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8 }),
            optimizer_form: OptimizerForm::default(),
            loss_scale: LossScale::None,
            clip_grad: 1.0,
            per_token_loss: false,
            log_token_mean: false,
            recompute: Recompute::None,
            save_policy: SavePolicy::default(),
            recompute_timing: RecomputeTiming::default(),
            swap_folder: PathBuf::from("."),
            stages: Stages::default(),
            order: PipelineOrder::default(),
            overlap_passes: false,
            waits_at_borders: false,
            defer_embedding_wgrad: None,
            routing: Routing::default(),
            mtp_loss_scale: 0.1,
            indexer: None,
            hidden_dropout: 0.0,
            attention_dropout: 0.0,
            seed: 1,
            bucket_size: None,
            bucket_multiple: Bucketing::MULTIPLE,
            overlap_grad_reduce: false,
            overlap_param_gather: false,
            overlap_gather_with_step: false,
            tp_overlap: LinearOverlap::default(),
            rounded_gradients: false,
            check_for_nan: true,
            check_for_spiky_loss: false,
            check_for_large_grads: false,
            eval: Evaluation { interval: 0, iters: 0 },
            log_interval: 1,
            log_throughput: false,
            log_progress: false,
            log_params_norm: false,
            log_num_zeros: false,
            log_layers: false,
            compare_replicas: 0,
            skipped_iterations: BTreeSet::new(),
            checkpoint: Checkpointing::default(),
            exit: Exit::default(),
            metrics_file: None,
            tensorboard: None,
            profile: None,
            args: Map::new(),
        }
    }
}

impl TrainConfig {
    /// How gradients are divided into buckets.
    pub fn bucketing(&self) -> Bucketing {
        Bucketing { size: self.bucket_size, multiple: self.bucket_multiple }
    }

    /// Bytes per element of the master weights and of the rest of the optimizer state on the device.
    pub fn state_bytes(&self) -> (usize, usize) {
        self.optimizer_form.bytes(self.dtype, self.update.state_names().len())
    }

    /// Bytes per element of the weights and of the gradients.
    pub fn element_bytes(&self) -> (usize, usize) {
        (self.dtype.size(), self.gradient_dtype().size())
    }

    /// Element type of the gradients that are kept.
    pub fn gradient_dtype(&self) -> DType {
        if self.rounded_gradients { DType::Bf16 } else { self.dtype.wide() }
    }
}

/// Batch sizes, in samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSizes {
    /// Samples of one forward pass.
    pub micro: usize,
    /// Samples of one iteration.
    pub global: usize,
    /// The global batch grows: first size, increment, samples over which it grows (`--rampup-batch-size`).
    pub rampup: Option<(usize, usize, u64)>,
    /// Batches that do not divide among the data-parallel ranks are lowered to the next size that does.
    pub lowered: bool,
}

impl BatchSizes {
    /// The samples of a global batch of `global` that `dp` data-parallel ranks work on.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `megatron/core/num_microbatches_calculator.py`, `current_running_global_batch_size`.
    pub fn running(&self, global: usize, dp: usize) -> usize {
        let unit = (self.micro * dp).max(1);
        if self.lowered { global / unit * unit } else { global }
    }

    /// Checks that the batches divide among `dp` data-parallel ranks.
    ///
    /// # Errors
    /// [`Error::Config`] naming the flag.
    pub fn validate(&self, dp: usize) -> Result<()> {
        let unit = self.micro * dp;
        let divides = |size: usize| match self.lowered {
            true => size >= unit,
            false => size.is_multiple_of(unit),
        };
        if self.micro == 0 || self.global == 0 || !divides(self.global) {
            let wanted = if self.lowered { "no less than" } else { "a multiple of" };
            let expected = format!(
                "{wanted} --micro-batch-size {} x {dp} data-parallel ranks (of --nproc-per-node)",
                self.micro
            );
            return Err(Error::config("--global-batch-size", expected, self.global));
        }
        if let Some((start, increment, samples)) = self.rampup {
            let legal = divides(start)
                && increment > 0
                && (self.lowered || increment.is_multiple_of(unit))
                && start > 0
                && start <= self.global
                && (self.global - start).is_multiple_of(increment)
                && samples > 0;
            if !legal {
                let expected = format!(
                    "start, increment and samples, sizes {} that lead to the global batch {}",
                    if self.lowered { format!("from {unit} on") } else { format!("multiples of {unit}") },
                    self.global
                );
                return Err(Error::config(
                    "--rampup-batch-size",
                    expected,
                    format!("{start} {increment} {samples}"),
                ));
            }
        }
        Ok(())
    }

    /// The global batch after `consumed` samples.
    ///
    /// # Source
    /// Megatron-LM `core_r0.8.0`, `megatron/core/num_microbatches_calculator.py`.
    pub fn global_at(&self, consumed: u64) -> usize {
        match self.rampup {
            Some((start, increment, samples)) if consumed <= samples && start < self.global => {
                let steps = (self.global - start) / increment;
                let per_step = samples as f64 / steps as f64;
                let done = (consumed as f64 / per_step) as usize;
                (start + done * increment).min(self.global)
            }
            _ => self.global,
        }
    }
}

/// The order of work in a pipeline; without one it says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineOrder {
    /// One forward, one backward, interleaved where stages have several chunks.
    Plain {
        /// Micro-batches that pass a chunk before the next chunk runs; `None`: as many as stages.
        group: Option<usize>,
        /// All forwards come first where there are as many micro-batches as stages (`core_r0.8.0`).
        forwards_first: bool,
    },
    /// One forward, one backward, with weight gradients in the bubble; interleaved where stages have several chunks.
    ZeroBubble {
        /// As of [`PipelineOrder::Plain`].
        group: Option<usize>,
    },
    /// Chunks from both ends.
    DualPipeV,
    /// Any order that can be executed, drawn from this seed; for tests.
    Random(u64),
}

impl PipelineOrder {
    /// The schedule for as many stages and chunks.
    pub fn order(self, stages: usize, chunks: usize) -> Order {
        match self {
            Self::ZeroBubble { group } => Order::ZeroBubble { group: group.unwrap_or(stages) },
            Self::DualPipeV => Order::DualPipeV,
            Self::Random(seed) => Order::Random { seed },
            Self::Plain { group, forwards_first } if chunks > 1 => {
                Order::Interleaved { group: group.unwrap_or(stages), forwards_first }
            }
            Self::Plain { .. } => Order::OneFOneB,
        }
    }
}

impl PipelineOrder {
    /// The schedule of the stages along `chain`, with overlapped passes where possible if configured
    /// ([`TrainConfig::overlap_passes`]).
    ///
    /// # Errors
    /// [`Impossible`] with the numbers that do not fit.
    pub fn schedule(
        self,
        chain: &[(usize, usize)],
        micro_batches: usize,
        overlap_passes: bool,
    ) -> std::result::Result<ms_dist::schedule::Schedule, Impossible> {
        let stages = chain.iter().map(|place| place.0 + 1).max().unwrap_or(1);
        let order = self.order(stages, chain.len() / stages);
        let schedule = ms_dist::schedule::Schedule::new(order, chain, micro_batches)?;
        Ok(if overlap_passes { schedule.with_overlapped_passes(order) } else { schedule })
    }
}

impl Default for PipelineOrder {
    fn default() -> Self {
        Self::Plain { group: None, forwards_first: true }
    }
}

/// When a pipeline stage recomputes activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecomputeTiming {
    /// When its gradient has come.
    #[default]
    WithGradient,
    /// Before a stage waits for the gradient (`--recompute-in-advance`).
    InAdvance,
    /// As [`RecomputeTiming::InAdvance`], and forward passes beyond as many as the pipeline has chunks keep only what came in
    /// (`--recompute-in-bubble`).
    InBubble,
}

/// An update rule of the optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpdateRule {
    /// AdamW.
    AdamW(Adam),
    /// Gradient descent with momentum.
    Sgd {
        /// Share of the momentum that stays.
        momentum: f64,
    },
}

impl UpdateRule {
    /// Names of the state tensors other than the master weights, as in checkpoints.
    pub fn state_names(self) -> &'static [&'static str] {
        match self {
            Self::AdamW(_) => &["exp_avg", "exp_avg_sq"],
            Self::Sgd { .. } => &["momentum_buffer"],
        }
    }
}

/// AdamW's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
}

/// How the routers of a mixture of experts are trained.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Routing {
    /// The auxiliary losses.
    pub auxiliary: Auxiliary,
    /// Each sequence has its own load-balancing losses, which are averaged.
    pub balance_by_sequence: bool,
    /// Load is balanced by scores to which the experts' biases are added.
    pub balance_biased: bool,
    /// Of copies that experts with a capacity do not take nothing is counted.
    pub balance_of_taken: bool,
    /// In micro-batches of one sequence, experts with a capacity count as having that many copies, as if padded.
    pub balance_of_filled: bool,
    /// Load is balanced by scores that are not divided by their sum, where they are not a softmax.
    pub balance_undivided: bool,
    /// With [`TrainConfig::per_token_loss`], auxiliary losses count once for each token of a micro-batch, masked ones too, as a
    /// sum over tokens does (Megatron 0.12); else they weigh one through the micro-batches (0.8).
    pub balance_by_tokens: bool,
    /// Half the width of the factors that a router's inputs are multiplied by while it is trained.
    pub jitter: f64,
    /// Experts are taken in turn, whatever routers choose (`--fix-router`).
    pub fixed: bool,
    /// Those weigh what routers give them, nothing where they are not chosen (upstream's head); else what is chosen (v2.0.0).
    pub fixed_by_expert: bool,
    /// Experts are chosen so that tokens spread evenly over them (`sinkhorn`).
    pub sinkhorn: bool,
    /// How many copies of tokens an expert takes; `None`: all that come.
    pub capacity: Option<Capacity>,
    /// That is counted over shares of the tokens, as these ranks route them: on one rank, to compare it with them.
    pub capacity_shares: Option<CapacityShares>,
    /// The margins of the routers' choices are measured and reported ([`crate::ExpertReport::margin`]).
    pub watch_margins: bool,
    /// Step of the experts' biases towards equal load, for routers that have such biases.
    pub bias_update_rate: f64,
    /// Load is then what experts with a capacity take, not what is meant for them.
    pub bias_of_taken: bool,
}

/// How ranks share the tokens of a micro-batch that they route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityShares {
    /// How they share sequences.
    pub context: ContextParallel,
    /// Ranks that share sequences.
    pub cp: usize,
    /// Parts of each of their shares that others route.
    pub parts: usize,
}

/// Validation during and after training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// Iterations between validations; 0: only at the end.
    pub interval: u64,
    /// Global batches of one validation; 0: none.
    pub iters: u64,
}

/// Where checkpoints come from and go to.
#[derive(Clone, Debug, Default)]
pub struct Checkpointing {
    /// Folder to start from, with `latest_checkpointed_iteration.txt`, or a Hugging Face folder.
    pub load: Option<PathBuf>,
    /// Iteration to load instead of the last.
    pub load_step: Option<u64>,
    /// Weights only: iteration 0, fresh optimizer.
    pub finetune: bool,
    /// The folder has a dense model, whose MLPs are copied to experts; the resulting model is saved before the first
    /// iteration.
    pub upcycling: bool,
    /// No optimizer state is read.
    pub no_load_optim: bool,
    /// A missing checkpoint is an error instead of a fresh start.
    pub exit_on_missing: bool,
    /// Folder to write to.
    pub save: Option<PathBuf>,
    /// Iterations between checkpoints; 0: only at the end.
    pub save_interval: u64,
    /// Checkpoints are copied and written while training goes on.
    pub async_save: bool,
    /// Checkpoints that stay in the folder; older ones go once a newer one is complete. `None`: all stay.
    pub keep_last: Option<u64>,
    /// Checkpoints between those, for a run that is broken off.
    pub non_persistent: Option<NonPersistent>,
    /// Weights only.
    pub no_save_optim: bool,
    /// In which of Megatron's forms weights are written a second time.
    pub megatron_files: MegatronFiles,
    /// What those call their tensors.
    pub spelling: Spelling,
    /// The flags' schedule wins over the checkpoint's.
    pub override_schedule: bool,
    /// The checkpoint's schedule wins over the flags'.
    pub use_checkpoint_schedule: bool,
}

impl Checkpointing {
    /// Whether any checkpoint is written.
    pub fn writes(&self) -> bool {
        self.save.is_some() || self.non_persistent.is_some()
    }
}

/// Checkpoints of which only the newest is kept (Megatron's non-persistent ones). Only this program reads them: they have no
/// files for Megatron.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonPersistent {
    /// Their folder.
    pub dir: PathBuf,
    /// Iterations between them; where one is due for [`Checkpointing::save`], too, that one is written alone.
    pub interval: u64,
}

/// Files for Megatron, in the folder of a checkpoint of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MegatronFiles {
    /// None.
    #[default]
    Absent,
    /// A folder and a `.pt` file for each rank (`--ckpt-format torch`).
    Ranks,
    /// Chunks of global tensors (`--ckpt-format torch_dist`).
    Distributed,
}

/// When to stop early.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exit {
    /// Save and stop at a multiple of this iteration.
    pub interval: Option<u64>,
    /// Save and stop after this time.
    pub duration: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_batch_reaches_its_size_in_steps() {
        let sizes = BatchSizes { micro: 2, global: 16, rampup: Some((4, 4, 60)), lowered: false };
        sizes.validate(2).unwrap();
        let at: Vec<usize> = [0, 19, 20, 40, 60, 61].map(|n| sizes.global_at(n)).to_vec();
        assert_eq!(at, [4, 4, 8, 12, 16, 16]);
        assert!(sizes.validate(3).is_err());
        assert!(BatchSizes { rampup: Some((3, 4, 60)), ..sizes }.validate(1).is_err());
        // Of batches that do not divide among three ranks what does is worked on.
        assert!(sizes.validate(3).is_err());
        let lowered = BatchSizes { lowered: true, rampup: Some((8, 4, 60)), ..sizes };
        assert!(lowered.validate(3).is_ok() && lowered.validate(5).is_err());
        assert_eq!([8, 12, 16].map(|global| lowered.running(global, 3)), [6, 12, 12]);
        assert_eq!(sizes.running(16, 3), 16);
    }
}
