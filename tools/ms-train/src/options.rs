//! What `ms-train` should do with a run; the run's own options are those of the library.

use ms_options::training::Purpose;

options! {
    /// What is done instead of a run.
    pub(crate) struct Doing in "Configuration" {
        pub(crate) dry_run: bool = "--dry-run", "show the plan and touch nothing", own = own_or("dry_run", "false");
        pub(crate) print_config: bool = "--print-config", "show every value and where it came from", own = own_or("print_config", "false");
        pub(crate) level: u64 = "--optimization-level", "below 2, flags of upstream's features of level 2 are passed over, with a warning; --explain says which those are", group = "Parallelism", range = "[0,2]";
        pub(crate) fit: Option<String> = "--fit", "--dry-run: layouts of --nproc-per-node ranks whose ranks each need at most this much memory, best first (64GiB, 512MiB, 80GB)", own = own("fit");
    }
}

impl Doing {
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
