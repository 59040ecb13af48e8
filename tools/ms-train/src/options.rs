//! Every option of `ms-train`: each group stands in the file that reads it.

use crate::{beside, inherited, model, ranks, recompute, resolve, routing, schedule, shares, topology};
use ms_cli::megatron::Upstream;
use ms_options::{Compute, ModelFlags, Source, TokenizerFolder};

options! {
    /// What is done instead of a run.
    pub(crate) struct Doing in "Configuration" {
        pub(crate) dry_run: bool = "--dry-run", "show the plan and touch nothing", own = own_or("dry_run", "false");
        pub(crate) print_config: bool = "--print-config", "show every value and where it came from", own = own_or("print_config", "false");
        pub(crate) level: u64 = "--optimization-level", "below 2, flags of upstream's features of level 2 are passed over, with a warning; --explain says which those are", group = "Parallelism", range = "[0,2]";
        pub(crate) fit: Option<String> = "--fit", "--dry-run: layouts of --nproc-per-node ranks whose ranks each need at most this much memory, best first (64GiB, 512MiB, 80GB)", own = own("fit");
    }
}

gathered_options! {
    /// A training run, as the command line describes it.
    pub(crate) struct Options {
        pub(crate) upstream: Upstream,
        pub(crate) doing: Doing,
        pub(crate) world: ranks::World,
        pub(crate) compute: Compute,
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
        pub(crate) watching: resolve::Watching,
        pub(crate) samples: resolve::Samples,
        pub(crate) update: resolve::Update,
        pub(crate) keeping: resolve::Keeping,
    }
}
