//! Ranks started by `mpirun`: HCCL's root information goes over MPI, the data over HCCL.

use crate::fabric::{compare, everything, options, over_threads};
use crate::{command, said, toolkit};
use ascend_rs::rendezvous::Over;
use ascend_rs::{Bootstrap, HcclFabric, Rendezvous};
use cann_emu::tree::Personality;
use ms_dist::Fabric;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;

/// One rank: every operation of the interface has the bits of the ranks that are threads.
pub fn one_of_ranks_that_mpi_starts() {
    // A rank that unwound would wait in MPI's end for the other.
    std::panic::set_hook(Box::new(|panic| {
        let _ = writeln!(std::io::stderr(), "{panic}");
        std::process::abort();
    }));
    let mpi = ms_dist::mpi::start().unwrap();
    let (rank, world) = (mpi.fabric().rank(), mpi.fabric().world());
    assert_eq!(world, 2, "mpirun starts two ranks");
    let everyone: Vec<usize> = (0..world).collect();
    let own = {
        let meeting: Arc<dyn Rendezvous> = Arc::new(Over::new(mpi.fabric().group(&everyone).unwrap()));
        let start = Bootstrap::RootInfo;
        let fabric = HcclFabric::new(&toolkit(), rank as i32, rank, world, meeting, start, options());
        let comm = fabric.group(&everyone).unwrap();
        let own = everything(&*comm).unwrap();
        comm.barrier().unwrap();
        own
    };
    let threads = over_threads(world, |fabric| everything(&*fabric.group(&everyone).unwrap()).unwrap());
    compare(&[own], &threads[rank..=rank]);
    println!("rank {rank} of {world} equals its thread");
    mpi.end(None);
}

#[test]
fn ranks_that_mpi_starts_meet_over_mpi() {
    for (personality, mode) in [(Personality::V91, "lazy"), (Personality::V81, "threads")] {
        let rank = command(personality, "one_of_ranks_that_mpi_starts", &[("CANN_EMU_MODE", mode)]);
        let mut mpirun = Command::new("mpirun");
        mpirun.args(["--oversubscribe", "-np", "2"]).arg(rank.get_program()).args(rank.get_args());
        mpirun.envs(rank.get_envs().filter_map(|(name, value)| Some((name, value?))));
        mpirun.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        let out = mpirun.output().expect("mpirun is installed: libopenmpi-dev, openmpi-bin");
        let text = said(&out);
        assert!(out.status.success(), "{text}");
        for rank in 0..2 {
            assert!(text.contains(&format!("rank {rank} of 2 equals its thread")), "{text}");
        }
    }
}
