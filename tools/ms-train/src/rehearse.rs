//! What ranks take and send, for the plan: one rank of every stage is tried out without values.

use crate::resolve::Resolved;
use ms_core::Axis;
use ms_dist::ContextParallel;
use ms_trainer::rehearsal::{Place, Rehearsal, rehearse};
use std::thread;

/// Of each of `stages` what its first rank takes and sends in an iteration of `micro_batches` micro-batches; `None` where a run
/// of these flags would be refused, or ranks share sequences as masks have it.
pub(crate) fn stages(r: &Resolved, micro_batches: usize, stages: &[usize]) -> Vec<Option<Rehearsal>> {
    let grid = &r.topology.grid;
    // Which blocks of attention a rank works at hangs on the masks of micro-batches.
    if matches!(r.topology.context, ContextParallel::Adaptive { .. }) {
        return vec![None; stages.len()];
    }
    let of_stage = |stage: usize| {
        let rank = (0..r.world).find(|&rank| grid.coord(rank, Axis::Pp) == stage)?;
        let (sequence_parallel, context) = (r.topology.sequence_parallel, r.topology.context);
        let (dispatcher, overlap_experts) = (r.topology.dispatcher, r.topology.overlap_experts);
        let ring_cache = r.topology.ring_cache;
        let place = Place { grid, rank, sequence_parallel, context, ring_cache, dispatcher, overlap_experts };
        let tried = rehearse(&r.config, &place, micro_batches);
        tried.inspect_err(|e| tracing::warn!("stage {stage} cannot be tried out: {e}")).ok()
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(stages.len());
    thread::scope(|scope| {
        let of_stage = &of_stage;
        let work = |worker: usize| {
            scope.spawn(move || -> Vec<Option<Rehearsal>> {
                stages.iter().skip(worker).step_by(workers).map(|&stage| of_stage(stage)).collect()
            })
        };
        let running: Vec<_> = (0..workers).map(work).collect();
        let mut all = vec![None; stages.len()];
        for (worker, done) in running.into_iter().enumerate() {
            let done = done.join().expect("a rehearsal reports what it finds");
            for (i, found) in done.into_iter().enumerate() {
                all[worker + i * workers] = found;
            }
        }
        all
    })
}
