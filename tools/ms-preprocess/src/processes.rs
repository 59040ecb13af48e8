//! The processes of one launch: this one alone, or those of `mpirun` and `srun` (feature `mpi`).

use anyhow::{Result, bail};

/// The processes that share a run.
pub(crate) trait Processes {
    /// Number of this process, from 0.
    fn rank(&self) -> usize;
    /// Number of processes.
    fn size(&self) -> usize;
    /// The first process that reports a failure, and its message. All wait for each other and get the same.
    fn failure(&self, mine: Option<String>) -> Option<(usize, String)>;
}

/// What this process came to, or why it cannot go on where another one failed.
///
/// A launcher ends all processes with the first one, so each of them says what the failed one would.
pub(crate) fn together<T>(processes: &dyn Processes, mine: Result<T>) -> Result<T> {
    let failure = processes.failure(mine.as_ref().err().map(ms_cli::said));
    match failure {
        Some((rank, reason)) if mine.is_ok() => bail!("process {rank} failed: {reason}"),
        _ => mine,
    }
}

/// This process alone.
struct Alone;

impl Processes for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn failure(&self, mine: Option<String>) -> Option<(usize, String)> {
        mine.map(|reason| (0, reason))
    }
}

/// The processes of the launch that this process belongs to.
#[cfg(not(feature = "mpi"))]
pub(crate) fn processes() -> Box<dyn Processes> {
    Box::new(Alone)
}

/// The processes of the launch that this process belongs to.
#[cfg(feature = "mpi")]
pub(crate) fn processes() -> Box<dyn Processes> {
    mpi::initialize().map_or_else(
        || Box::new(Alone) as Box<dyn Processes>,
        |universe| Box::new(launch::Launch { universe }),
    )
}

#[cfg(feature = "mpi")]
mod launch {
    use super::Processes;
    use mpi::traits::{Communicator as _, CommunicatorCollectives as _, Root as _};

    /// The processes of an MPI launch; MPI ends with this value.
    pub(super) struct Launch {
        pub(super) universe: mpi::environment::Universe,
    }

    impl Processes for Launch {
        fn rank(&self) -> usize {
            self.universe.world().rank() as usize
        }

        fn size(&self) -> usize {
            self.universe.world().size() as usize
        }

        fn failure(&self, mine: Option<String>) -> Option<(usize, String)> {
            let world = self.universe.world();
            // A failure without a message is one, too: its length counts from 1.
            let length = mine.as_ref().map_or(0, |text| text.len() as u64 + 1);
            let mut lengths = vec![0u64; self.size()];
            world.all_gather_into(&length, &mut lengths);
            let first = lengths.iter().position(|length| *length > 0)?;
            let mut text = mine.unwrap_or_default().into_bytes();
            text.resize(lengths[first] as usize - 1, 0);
            world.process_at_rank(first as i32).broadcast_into(&mut text);
            Some((first, String::from_utf8_lossy(&text).into_owned()))
        }
    }
}
