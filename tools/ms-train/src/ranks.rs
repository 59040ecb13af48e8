//! Where the ranks of a run are: threads of this process, or processes started by `mpirun`.

use anyhow::{Result, anyhow};
use ms_cli::megatron::Args;
use ms_cli::{env_vars, refuse};
use ms_dist::Fabric;
use ms_dist::threads::{self, RankFailure};
use ms_options::training::{MOST_PLANNED, Purpose, World};
use std::time::Duration;

/// How this process takes part in a run.
pub(crate) enum Ranks {
    /// It is the whole run.
    Threads,
    /// It is one rank.
    #[cfg(feature = "mpi")]
    Process(ms_dist::mpi::MpiRun),
}

/// What launchers say of this process.
#[derive(Debug, Default)]
struct LauncherEnv {
    /// Processes that a launcher of MPI started.
    mpi: Option<usize>,
    /// From torchrun's variables, if they are set.
    rank: Option<usize>,
    world: Option<usize>,
    rank_here: Option<usize>,
    world_here: Option<usize>,
}

/// Where MPI has put a process: its number and how many there are, in the run and on its machine.
#[cfg_attr(not(any(feature = "mpi", test)), allow(dead_code))] // without MPI there is nothing to compare
#[derive(Clone, Copy, Debug)]
struct MpiPosition {
    rank: usize,
    world: usize,
    rank_here: usize,
    world_here: usize,
}

impl LauncherEnv {
    /// By the variables of Open MPI and of launchers with PMI, and those of torchrun. The rendezvous address (`MASTER_ADDR`,
    /// `MASTER_PORT`) is not needed: MPI knows.
    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| variable(name).and_then(|text| text.trim().parse().ok());
        let mpi = env_vars::OF_MPI.into_iter().find_map(number);
        let [rank, world, rank_here, world_here] =
            [env_vars::RANK, env_vars::WORLD_SIZE, env_vars::LOCAL_RANK, env_vars::LOCAL_WORLD_SIZE]
                .map(number);
        Self { mpi, rank, world, rank_here, world_here }
    }

    /// Whether MPI is to be begun; for a build without it that is an error where there are several processes.
    fn wants_mpi(&self, built: bool) -> Result<bool> {
        match (self.mpi, self.world) {
            (Some(size), _) if built => Ok(size >= 1),
            (Some(size), _) if size > 1 => refuse!(
                "{size} processes were started under MPI, which this ms-train was built without\nhint: cargo install \
                 --path tools/ms-train --features mpi; or --nproc-per-node {size} for ranks that are threads"
            ),
            (None, Some(size)) if size > 1 => {
                let rank = self.rank.map_or_else(String::new, |rank| format!(" of RANK {rank}"));
                refuse!(
                    "a WORLD_SIZE {size}{rank} is set, as torchrun sets it, but nothing here speaks between its \
                     processes: ranks are threads of one process, or processes under MPI\nhint: --nproc-per-node {size} \
                     without torchrun; or mpirun -np {size} ms-train, built with --features mpi"
                )
            }
            _ => Ok(false),
        }
    }

    /// torchrun's variables must say what MPI says.
    #[cfg_attr(not(any(feature = "mpi", test)), allow(dead_code))]
    fn agree(&self, placed: MpiPosition) -> Result<()> {
        let all = [
            ("RANK", self.rank, placed.rank),
            ("WORLD_SIZE", self.world, placed.world),
            ("LOCAL_RANK", self.rank_here, placed.rank_here),
            ("LOCAL_WORLD_SIZE", self.world_here, placed.world_here),
        ];
        let wrong: Vec<(&str, usize, usize)> = all
            .into_iter()
            .filter_map(|(name, found, placed)| Some((name, placed, found.filter(|n| *n != placed)?)))
            .collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let list = |word: fn(&(&str, usize, usize)) -> String| {
            wrong.iter().map(word).collect::<Vec<_>>().join(" and ")
        };
        refuse!(
            "{}: expected {}, as MPI has it, found {}",
            list(|w| w.0.to_owned()),
            list(|w| w.1.to_string()),
            list(|w| w.2.to_string())
        )
    }
}

/// The ranks that torchrun would have started, where its variable is set: what is planned under it is a plan for them.
///
/// # Errors
/// If the variable is not a number of ranks.
fn world_of_torchrun() -> Result<Option<usize>> {
    let Ok(text) = std::env::var(env_vars::WORLD_SIZE) else { return Ok(None) };
    match text.trim().parse() {
        Ok(world) if (1..=MOST_PLANNED).contains(&world) => Ok(Some(world)),
        _ => refuse!(
            "the variable WORLD_SIZE: expected a number of ranks up to {MOST_PLANNED}, found {text:?}"
        ),
    }
}

/// The ranks that torchrun would have started, for a plan whose flags do not say how many there are.
///
/// # Errors
/// As [`world_of_torchrun`].
pub(crate) fn launched(asked: &World, purpose: Purpose) -> Result<Option<usize>> {
    if asked.ranks.is_given() || !purpose.is_planned() { Ok(None) } else { world_of_torchrun() }
}

impl Ranks {
    /// Begins MPI if this process is one of its ranks, and puts the number of ranks into the flags.
    ///
    /// # Errors
    /// If launchers say what this build cannot do, or what contradicts the flags.
    pub(crate) fn find(args: &mut Args) -> Result<Self> {
        world_of_torchrun()?;
        let surroundings = LauncherEnv::of(|name| std::env::var(name).ok());
        if !surroundings.wants_mpi(cfg!(feature = "mpi"))? {
            return Ok(Self::Threads);
        }
        Self::begin(args, &surroundings)
    }

    #[cfg(not(feature = "mpi"))]
    fn begin(_: &mut Args, _: &LauncherEnv) -> Result<Self> {
        Ok(Self::Threads)
    }

    #[cfg(feature = "mpi")]
    fn begin(args: &mut Args, surroundings: &LauncherEnv) -> Result<Self> {
        let run = ms_dist::mpi::start()?;
        let (rank, size) = (run.fabric().rank(), run.fabric().world());
        let (rank_here, here) = run.place_here();
        let placed = MpiPosition { rank, world: size, rank_here, world_here: here };
        let ready = surroundings.agree(placed).and_then(|()| {
            let asked = args.read::<World>()?;
            asked.limit().into_iter().for_each(|limit| run.wait_at_most(limit));
            match asked.ranks.given() {
                Some(&given) if given != size && given != here && given != 1 => refuse!("--nproc-per-node: expected {size}, the processes that MPI started, found {given}; it may be left out"),
                _ => {}
            }
            args.settle("--nproc-per-node", size.into());
            if args.read::<ms_options::Compute>()?.threads().is_none() {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                args.settle("--threads", (cores / here).max(1).into());
            }
            Ok(())
        });
        let ranks = Self::Process(run);
        match ready {
            Ok(()) => Ok(ranks),
            Err(e) => ranks.finish(|_| Err(e)),
        }
    }

    /// Whether this process makes what a run makes once: claims, and indices of data.
    pub(crate) fn is_first(&self) -> bool {
        match self {
            Self::Threads => true,
            #[cfg(feature = "mpi")]
            Self::Process(run) => run.fabric().rank() == 0,
        }
    }

    /// Whether this process says what happens: the last rank's does, as Megatron has it.
    pub(crate) fn reports(&self) -> bool {
        match self {
            Self::Threads => true,
            #[cfg(feature = "mpi")]
            Self::Process(run) => run.fabric().rank() + 1 == run.fabric().world(),
        }
    }

    /// Runs `rank` on every rank that this process has, `world` in all, and returns the last one's result. Ranks that are threads
    /// wait for each other at most as long as `limit` says.
    ///
    /// # Errors
    /// The error of the rank that failed first, with its number.
    pub(crate) fn run<T: Send>(
        &self,
        world: usize,
        limit: Option<Duration>,
        rank: impl Fn(&dyn Fabric) -> Result<T> + Sync,
    ) -> Result<T> {
        let named = |number: usize| format!("rank {number} of {world}");
        match self {
            Self::Threads => {
                let outcomes = threads::run_within(world, limit, |fabric| rank(&fabric)).map_err(
                    |(number, failure)| match failure {
                        RankFailure::Error(e) if world == 1 => e,
                        RankFailure::Error(e) => e.context(named(number)),
                        RankFailure::Panic(message) => {
                            anyhow!("{}: internal error: {message}", named(number))
                        }
                        failure @ RankFailure::Unstarted(_) => anyhow!(
                            "{}: {failure}\nhint: fewer ranks (--nproc-per-node), or a higher limit of threads (ulimit -u)",
                            named(number)
                        ),
                    },
                )?;
                outcomes.into_iter().next_back().ok_or_else(|| anyhow!("a run has at least one rank"))
            }
            #[cfg(feature = "mpi")]
            Self::Process(run) => rank(run.fabric()).map_err(|e| e.context(named(run.fabric().rank()))),
        }
    }

    /// Does `work`, and ends this process's part in the run: other processes hear of a failure, and its reason.
    pub(crate) fn finish<T>(self, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&self)));
        match self {
            Self::Threads => {}
            #[cfg(feature = "mpi")]
            Self::Process(run) => {
                let said = reason_of(&done);
                // A mistake in the command line is the same on all ranks: one of them says it.
                let silent = run.fabric().rank() + 1 != run.fabric().world()
                    && matches!(&done, Ok(Err(e)) if e.downcast_ref::<ms_cli::Usage>().is_some());
                run.end(said.as_deref());
                if silent {
                    std::process::exit(2);
                }
            }
        }
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Why a rank ends, if it does not end well.
#[cfg(feature = "mpi")]
fn reason_of<T>(done: &std::thread::Result<Result<T>>) -> Option<String> {
    match done {
        Ok(Ok(_)) => None,
        Ok(Err(e)) => Some(ms_cli::said(e)),
        Err(_) => Some("internal error: it panicked".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surroundings(pairs: &[(&str, &str)]) -> LauncherEnv {
        LauncherEnv::of(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned()))
    }

    #[test]
    fn launchers_are_understood() {
        let torch = [("RANK", "2"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "2"), ("MASTER_ADDR", "localhost")];
        let mpi = [("OMPI_COMM_WORLD_SIZE", "4")];
        assert!(!surroundings(&[]).wants_mpi(true).unwrap() && !surroundings(&[]).wants_mpi(false).unwrap());
        assert!(surroundings(&mpi).wants_mpi(true).unwrap());
        for built in [true, false] {
            let said = surroundings(&torch).wants_mpi(built).unwrap_err().to_string();
            assert!(said.contains("WORLD_SIZE 4") && said.contains("mpirun -np 4"), "{said}");
        }
        let said = surroundings(&mpi).wants_mpi(false).unwrap_err().to_string();
        assert!(
            said.contains("4 processes were started under MPI") && said.contains("--features mpi"),
            "{said}"
        );
        // A run of one process needs nobody.
        assert!(!surroundings(&[("RANK", "0"), ("WORLD_SIZE", "1")]).wants_mpi(false).unwrap());
        assert!(!surroundings(&[("OMPI_COMM_WORLD_SIZE", "1")]).wants_mpi(false).unwrap());
        // Its size alone is enough to know that there are others.
        assert!(surroundings(&torch[1..2]).wants_mpi(true).is_err());
        let both = surroundings(&[torch[0], torch[1], torch[2], torch[3], mpi[0]]);
        let placed = MpiPosition { rank: 2, world: 4, rank_here: 2, world_here: 4 };
        both.agree(placed).unwrap();
        let said = |placed| both.agree(placed).unwrap_err().to_string();
        assert_eq!(said(MpiPosition { rank: 1, ..placed }), "RANK: expected 1, as MPI has it, found 2");
        assert_eq!(
            said(MpiPosition { rank: 1, world: 8, rank_here: 0, world_here: 1 }),
            "RANK and WORLD_SIZE and LOCAL_RANK: expected 1 and 8 and 0, as MPI has it, found 2 and 4 and 2"
        );
        let here = surroundings(&[("LOCAL_WORLD_SIZE", "2"), mpi[0]]);
        assert!(here.agree(placed).unwrap_err().to_string().starts_with("LOCAL_WORLD_SIZE: expected 4"));
    }
}
