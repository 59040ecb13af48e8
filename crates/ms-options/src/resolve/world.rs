//! The number of ranks of a run, and how long they wait for each other.

use crate::resolve::options::Options;
use crate::resolve::topology::{WorldSize, fewest_ranks};
use anyhow::Result;
use ms_cli::megatron::Given;
use ms_cli::refuse;
use std::time::Duration;

options! {
    /// How many ranks there are.
    pub struct World in "Parallelism" {
        /// Ranks of the run.
        pub ranks: Given<usize> = "--nproc-per-node", "number of ranks, which run as threads of this process", range = "[1,65536]", own = own_or("nproc_per_node", "1");
        minutes: Given<u64> = "--distributed-timeout-minutes", "if given: minutes after which a waiting rank reports what it waits for and the run ends", range = "[1,)", unset = Unset::Otherwise;
    }
}

impl World {
    /// How long ranks may wait for each other; `None`: as long as it takes.
    pub fn limit(&self) -> Option<Duration> {
        self.minutes.given().map(|minutes| Duration::from_secs(minutes.saturating_mul(60)))
    }
}

/// Most ranks that are started: they are threads.
pub const MOST_RANKS: usize = 1024;

/// The ranks of the run. One that is only `planned` has as many as torchrun has `launched`, or as few as its sizes
/// allow, where none are given.
///
/// # Errors
/// For more than a run can start, and sizes that no number of ranks fits.
pub(crate) fn ranks(o: &Options, planned: bool, launched: Option<usize>) -> Result<WorldSize> {
    let given = o.world.ranks.value;
    if o.world.ranks.is_given() || !planned {
        if given > MOST_RANKS && !planned {
            refuse!(
                "--nproc-per-node: expected at most {MOST_RANKS} in a run, whose ranks are threads, found {given}"
            );
        }
        let default = if o.world.ranks.is_given() { "" } else { " (the default)" };
        return Ok(WorldSize { ranks: given, said: format!("--nproc-per-node {given}{default}") });
    }
    if let Some(world) = launched {
        return Ok(WorldSize { ranks: world, said: format!("WORLD_SIZE {world}, a variable of torchrun,") });
    }
    let fewest = fewest_ranks(&o.parallelism, o.upstream)?;
    if fewest > 1 {
        tracing::warn!(
            "--nproc-per-node is not given: planned for {fewest} ranks, the fewest of these sizes"
        );
    }
    Ok(WorldSize { ranks: fewest, said: format!("{fewest} ranks, the fewest of these sizes,") })
}
