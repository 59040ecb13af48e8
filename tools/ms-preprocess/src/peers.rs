//! The processes of one launch: this one alone, or those of `mpirun` and `srun` (feature `mpi`).

/// The processes that share a run.
pub(crate) trait Peers {
    /// Number of this process, from 0.
    fn rank(&self) -> usize;
    /// Number of processes.
    fn size(&self) -> usize;
    /// Whether all processes say yes; all wait for each other.
    fn all(&self, yes: bool) -> bool;
}

/// This process alone.
struct Alone;

impl Peers for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all(&self, yes: bool) -> bool {
        yes
    }
}

/// The processes of the launch that this process belongs to.
#[cfg(not(feature = "mpi"))]
pub(crate) fn peers() -> Box<dyn Peers> {
    Box::new(Alone)
}

/// The processes of the launch that this process belongs to.
#[cfg(feature = "mpi")]
pub(crate) fn peers() -> Box<dyn Peers> {
    mpi::initialize()
        .map_or_else(|| Box::new(Alone) as Box<dyn Peers>, |universe| Box::new(launch::Launch { universe }))
}

#[cfg(feature = "mpi")]
mod launch {
    use super::Peers;
    use mpi::collective::SystemOperation;
    use mpi::traits::{Communicator as _, CommunicatorCollectives as _};

    /// The processes of an MPI launch; MPI ends with this value.
    pub(super) struct Launch {
        pub(super) universe: mpi::environment::Universe,
    }

    impl Peers for Launch {
        fn rank(&self) -> usize {
            self.universe.world().rank() as usize
        }

        fn size(&self) -> usize {
            self.universe.world().size() as usize
        }

        fn all(&self, yes: bool) -> bool {
            let mut all = 0u8;
            self.universe.world().all_reduce_into(&u8::from(yes), &mut all, SystemOperation::min());
            all == 1
        }
    }
}
