//! The training loop.
//!
//! [`run`] trains one rank as a [`TrainConfig`] says: it takes micro-batches from a [`DataSource`], runs [`Engine::step`] on
//! them, reports in Megatron's log line, JSON lines and TensorBoard events, validates, saves and stops. The configuration is
//! resolved by the program; nothing here reads flags or the environment.
//!
//! Weights and activations are f32, bf16, fp16 (computed in f32) or, on the reference device, f64. By default gradients,
//! master weights and optimizer state are f32 (f64 for f64 weights); gradients can also be kept in bf16, the moments in fp16
//! or FP8 (E4M3) with scales, and master weights as halves or not at all, as the options say. Optimizer state is sharded over
//! the data-parallel ranks if the grid says so. `k` iterations, a checkpoint and `n - k` more give the same bits as `n`.

mod checkpoint;
mod config;
mod engine;
mod error;
mod halves;
mod indexers;
mod interval;
mod log_line;
mod losses;
mod lr_schedule;
mod optimizer;
mod owned;
pub mod parity;
mod pipeline;
mod reduction;
pub mod rehearsal;
mod repeat;
mod run;
mod saving;
mod scaled;
mod scaler;
mod shifted_batch;
mod spike_detector;
mod state;
mod token_shard;
mod upcycling;
mod usage;

pub use config::{
    Adam, BatchSizes, CapacityShares, Checkpointing, Checks, DataParallelConfig, Dropout, Evaluation, Exit,
    LoggingConfig, LossConfig, MegatronFiles, MemoryConfig, NonPersistent, OptimizerConfig, PipelineConfig,
    PipelineOrder, RecomputeTiming, Routing, TrainConfig, UpdateRule,
};
pub use engine::{Engine, ExpertReport, OwnedPart, StepReport};
pub use error::{Error, Result};
pub use indexers::IndexerTraining;
pub use log_line::LogLine;
pub use lr_schedule::{DecayStyle, Decoupled, LrSchedule, Rates, WeightDecayStyle, WsdStyle};
pub use optimizer::Optimizer;
pub use reduction::{BufferSpec, buffers, shared_by_stages};
pub use run::{Batches, DataSource, Hooks, Observer, Outcome, run};
pub use scaled::Stored;
pub use scaler::LossScale;
pub use state::OptimizerForm;
pub use usage::RankUsage;
