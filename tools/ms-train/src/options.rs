//! What `ms-train` should do with a run; the run's own options are those of the library.

use ms_options::training::Purpose;

options! {
    /// What is done instead of a run.
    pub(crate) struct RunMode in "Configuration" {
        pub(crate) dry_run: bool = "--dry-run", "show the plan and write nothing", own = own_or("dry_run", "false");
        pub(crate) print_config: bool = "--print-config", "print every value and where it comes from, and stop", own = own_or("print_config", "false");
        pub(crate) level: u64 = "--optimization-level", "below 2: ignore the flags of upstream's level-2 features, with a warning; --explain lists them", group = "Parallelism", range = "[0,2]";
        pub(crate) fit: Option<String> = "--fit", "with --dry-run: list layouts for --nproc-per-node ranks that need at most this memory per rank, best first (such as 64GiB, 512MiB, 80GB)", own = own("fit");
    }
}

impl RunMode {
    /// What a run is resolved for; `parity`: to be compared with one rank.
    pub(crate) fn purpose(&self, parity: bool) -> Purpose {
        match (parity, self.dry_run, self.print_config) {
            (true, ..) => Purpose::Compare,
            (_, true, false) if self.fit.is_none() => Purpose::Plan,
            (_, true, _) => Purpose::Outline,
            (_, _, true) => Purpose::Show,
            _ => Purpose::Train,
        }
    }
}
