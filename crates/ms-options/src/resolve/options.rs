//! Every option of a training run; each group is defined in the file that reads it.

use crate::resolve::{
    self, beside, checkpoint, inherited, model, recompute, routing, samples, schedule, shares, topology,
    update, world, written,
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
        pub(crate) made: model::Made,
        pub(crate) spread: topology::Spread,
        pub(crate) inherited: inherited::Inherited,
        pub(crate) shares: shares::Shares,
        pub(crate) beside: beside::Beside,
        pub(crate) again: recompute::Again,
        pub(crate) of_experts: recompute::OfExperts,
        pub(crate) rates: schedule::Rates,
        pub(crate) routers: routing::Routers,
        pub(crate) precision: resolve::Precision,
        pub(crate) batches: resolve::Batches,
        pub(crate) dropout: resolve::Dropout,
        /// What is said and measured.
        pub watching: resolve::Watching,
        pub(crate) samples: samples::Samples,
        pub(crate) update: update::Update,
        pub(crate) keeping: checkpoint::Keeping,
        pub(crate) written: written::Written,
    }
}
