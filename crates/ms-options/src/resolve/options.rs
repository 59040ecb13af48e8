//! Every option of a training run; each group is defined in the file that reads it.

use crate::resolve::{
    self, batches, checkpoint, given_flags, inherited, logging, model, recompute, routing, samples, schedule,
    stage_layers, topology, tp_overlap, update, world,
};
use crate::{Compute, ModelFlags, Source, TokenizerFolder};
use ms_cli::megatron::Upstream;

gathered_options! {
    /// A training run, as the command line describes it.
    pub struct Options {
        pub(crate) upstream: Upstream,
        /// How many ranks there are.
        pub world: world::World,
        /// Where and how ranks compute.
        pub compute: Compute,
        pub(crate) source: Source,
        pub(crate) model_flags: ModelFlags,
        pub(crate) tokenizer: TokenizerFolder,
        pub(crate) model_training: model::ModelTrainingOptions,
        pub(crate) parallelism: topology::ParallelismOptions,
        pub(crate) inherited: inherited::Inherited,
        pub(crate) stage_layers: stage_layers::StageLayerOptions,
        pub(crate) tp_overlap: tp_overlap::TpOverlap,
        pub(crate) recompute: recompute::RecomputeOptions,
        pub(crate) expert_memory: recompute::ExpertMemoryOptions,
        pub(crate) rates: schedule::Rates,
        pub(crate) routers: routing::Routers,
        pub(crate) precision: resolve::Precision,
        pub(crate) batches: batches::Batches,
        pub(crate) dropout: resolve::DropoutOptions,
        /// What is said and measured.
        pub logging: logging::LoggingOptions,
        pub(crate) samples: samples::Samples,
        pub(crate) update: update::Update,
        pub(crate) checkpoint: checkpoint::CheckpointOptions,
        pub(crate) given: given_flags::GivenFlags,
    }
}
