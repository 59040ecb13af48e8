//! The resolved configuration of a run.

mod batch_sizes;
mod checkpointing;
mod optimizer;
mod pipeline;

use crate::indexers::IndexerTraining;
use crate::lr_schedule::{DecayStyle, LrSchedule, WeightDecayStyle, WsdStyle};
use ms_core::DType;
use ms_core::ops::Auxiliary;
use ms_dist::buckets::Bucketing;
use ms_dist::{ContextParallel, LinearOverlap};
use ms_nn::{Capacity, Recompute, SavePolicy};
use ms_spec::ModelConfig;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

pub use batch_sizes::BatchSizes;
pub use checkpointing::{Checkpointing, MegatronFiles, NonPersistent};
pub use optimizer::{Adam, OptimizerConfig, UpdateRule};
pub use pipeline::{PipelineConfig, PipelineOrder};

/// A run's settings: plain numbers, resolved once by the program; no part of the library reads flags,
/// environment or files to find them.
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// The model.
    pub model: ModelConfig,
    /// Element type of weights and activations: f32, bf16, or f64 on the reference device; f16 weights are computed with in
    /// f32. Master weights and optimizer state are f32 (f64 for f64) unless [`OptimizerConfig::form`] is a narrower one.
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
    /// Iterations, by how many are done before them, whose samples are passed over without an update.
    pub skipped_iterations: BTreeSet<u64>,
    /// Seed of initial weights and of what is drawn at random in training.
    pub seed: u64,
    /// Learning rate and weight decay.
    pub schedule: LrSchedule,
    /// How weights are updated.
    pub optimizer: OptimizerConfig,
    /// What is minimised.
    pub loss: LossConfig,
    /// What is dropped at random.
    pub dropout: Dropout,
    /// How routers are trained, where the model has experts.
    pub routing: Routing,
    /// Where activations stay between the passes.
    pub memory: MemoryConfig,
    /// What pipeline stages hold and in which order they work.
    pub pipeline: PipelineConfig,
    /// How gradients and new weights pass between data-parallel ranks.
    pub data_parallel: DataParallelConfig,
    /// What layers inside tensor parallelism compute while their ranks exchange.
    pub tp_overlap: LinearOverlap,
    /// What ends the run as broken.
    pub checks: Checks,
    /// Validation.
    pub eval: Evaluation,
    /// What is written of the run while it goes on.
    pub logging: LoggingConfig,
    /// Model FLOPs of one sample, forward and backward, for the throughput.
    pub flops_per_sample: f64,
    /// Checkpoints.
    pub checkpoint: Checkpointing,
    /// When to stop before `train_iters`.
    pub exit: Exit,
    /// Iterations that are recorded: `start..end`, counted from 0.
    pub profile: Option<std::ops::Range<u64>>,
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
            skipped_iterations: BTreeSet::new(),
            seed: 1,
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
            optimizer: OptimizerConfig::default(),
            loss: LossConfig::default(),
            dropout: Dropout::default(),
            routing: Routing::default(),
            memory: MemoryConfig::default(),
            pipeline: PipelineConfig::default(),
            data_parallel: DataParallelConfig::default(),
            tp_overlap: LinearOverlap::default(),
            checks: Checks { nan: true, ..Checks::NONE },
            eval: Evaluation { interval: 0, iters: 0 },
            logging: LoggingConfig::default(),
            checkpoint: Checkpointing::default(),
            exit: Exit::default(),
            profile: None,
            args: Map::new(),
        }
    }

    /// Bytes per element of the master weights and of the rest of the optimizer state on the device.
    pub fn state_bytes(&self) -> (usize, usize) {
        self.optimizer.form.bytes(self.dtype, self.optimizer.update.state_names().len())
    }

    /// Bytes per element of the weights and of the gradients.
    pub fn element_bytes(&self) -> (usize, usize) {
        (self.dtype.size(), self.gradient_dtype().size())
    }

    /// Element type of the gradients that are kept.
    pub fn gradient_dtype(&self) -> DType {
        if self.data_parallel.rounded_gradients { DType::Bf16 } else { self.dtype.wide() }
    }
}

/// The losses of a run, and how they are averaged.
#[derive(Clone, Copy, Debug)]
pub struct LossConfig {
    /// Gradients are averaged over tokens instead of micro-batches.
    pub per_token: bool,
    /// The logged loss is a mean over tokens (pretraining by `core_v0.12.1`, and fine-tuning where gradients are) instead of one
    /// over micro-batches (`core_r0.8.0`).
    pub log_token_mean: bool,
    /// Factor of the mean loss of multi-token prediction modules, where the model has some.
    pub mtp_scale: f64,
    /// Rows consist of documents, and what a prediction module sees of one ends as many tokens earlier as it looks ahead.
    pub mtp_documents: bool,
    /// The loss that trains the indexers of sparse attention, where the model has some; `None`: they stay as they are.
    pub indexer: Option<IndexerTraining>,
}

impl Default for LossConfig {
    fn default() -> Self {
        Self { per_token: false, log_token_mean: false, mtp_scale: 0.1, mtp_documents: true, indexer: None }
    }
}

/// Rates of dropout during training.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dropout {
    /// After the embedding and after every sublayer.
    pub hidden: f64,
    /// Of attention's weights.
    pub attention: f64,
}

/// Where activations stay between the passes: on the device, nowhere (recomputed) or in a file (swapped).
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Which layers are recomputed in the backward pass.
    pub recompute: Recompute,
    /// Which activations the other layers do not save.
    pub save_policy: SavePolicy,
    /// When passes are recomputed.
    pub recompute_timing: RecomputeTiming,
    /// Folder of the files to which activations and optimizer state are swapped.
    pub swap_folder: PathBuf,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            recompute: Recompute::None,
            save_policy: SavePolicy::default(),
            recompute_timing: RecomputeTiming::default(),
            swap_folder: PathBuf::from("."),
        }
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

/// How gradients and new weights pass between data-parallel ranks.
#[derive(Clone, Copy, Debug)]
pub struct DataParallelConfig {
    /// How gradients are divided into buckets.
    pub buckets: Bucketing,
    /// Buckets are summed over ranks as soon as their gradients are final, while the backward pass still runs.
    pub overlap_grad_reduce: bool,
    /// New weights are gathered from the ranks that update them while the next forward pass runs; a layer waits for its own.
    pub overlap_param_gather: bool,
    /// A bucket's new weights are gathered as soon as they are computed, while those of other buckets still are.
    pub overlap_gather_with_step: bool,
    /// Gradients are kept in bf16, of bf16 weights: every micro-batch's is rounded when it is added (`--o2-gradient`).
    pub rounded_gradients: bool,
}

impl Default for DataParallelConfig {
    fn default() -> Self {
        Self {
            buckets: Bucketing { size: None, multiple: Bucketing::MULTIPLE },
            overlap_grad_reduce: false,
            overlap_param_gather: false,
            overlap_gather_with_step: false,
            rounded_gradients: false,
        }
    }
}

/// What ends a run as broken.
#[derive(Clone, Copy, Debug)]
pub struct Checks {
    /// A loss or gradient norm that is not a number.
    pub nan: bool,
    /// A micro-batch whose loss is ten times the largest of the first hundred.
    pub spiky_loss: bool,
    /// Gradients, of a bucket on one rank, whose norm is ten times the largest of the first hundred.
    pub large_grads: bool,
    /// Different weights on ranks that should have the same: iterations between comparisons; 0: never compared.
    pub replicas_interval: u64,
}

impl Checks {
    /// Nothing is checked.
    pub const NONE: Self = Self { nan: false, spiky_loss: false, large_grads: false, replicas_interval: 0 };
}

/// What is written of a run while it goes on.
#[derive(Clone, Debug)]
pub struct LoggingConfig {
    /// Iterations between log lines.
    pub interval: u64,
    /// TFLOP/s in the log line.
    pub throughput: bool,
    /// The progress of jobs is written to `progress.txt` next to checkpoints.
    pub progress: bool,
    /// Norm of the weights in the log line.
    pub params_norm: bool,
    /// Zeros among the gradients in the log line.
    pub num_zeros: bool,
    /// The auxiliary losses of each layer's router are written in addition to their means.
    pub layers: bool,
    /// Where one JSON object per iteration goes; validations go to the same name with `.validation.jsonl`.
    pub metrics_file: Option<PathBuf>,
    /// Folder of TensorBoard event files, and iterations between points.
    pub tensorboard: Option<(PathBuf, u64)>,
}

impl Default for LoggingConfig {
    fn default() -> Self {
        Self {
            interval: 1,
            throughput: false,
            progress: false,
            params_norm: false,
            num_zeros: false,
            layers: false,
            metrics_file: None,
            tensorboard: None,
        }
    }
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
    /// With [`LossConfig::per_token`], auxiliary losses count once for each token of a micro-batch, masked ones too, as a
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

/// When to stop early.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exit {
    /// Save and stop at a multiple of this iteration.
    pub interval: Option<u64>,
    /// Save and stop after this time.
    pub duration: Option<Duration>,
}
