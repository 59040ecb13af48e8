//! The stages of a resolved run, and what their passes save.

use crate::resolve::Resolved;
use ms_core::{Axis, DType};
use ms_spec::Activations;

/// The first rank of a stage.
pub(crate) fn first_of_stage(r: &Resolved, stage: usize) -> usize {
    (0..r.world).find(|&rank| r.topology.grid.coord(rank, Axis::Pp) == stage).unwrap_or(0)
}

/// What determines how much passes over rows of `length` tokens save.
pub(crate) fn activations(r: &Resolved, length: usize) -> Activations {
    let (c, grid) = (&r.config, &r.topology.grid);
    Activations {
        tokens: length.saturating_mul(c.batch.micro) / grid.size(Axis::Cp),
        row: length / grid.size(Axis::Cp),
        // float16 weights compute in float32.
        element_bytes: if c.dtype == DType::F16 { 4 } else { c.dtype.size() },
        tp: grid.size(Axis::Tp),
        sequence_parallel: r.topology.parallel.sequence_parallel,
        etp: grid.expert().size(Axis::Tp),
        ep: grid.size(Axis::Ep),
        dispatcher: r.topology.parallel.dispatcher,
        ulysses_and_ring: r.topology.ulysses_and_ring(),
        ring_cache: r.topology.parallel.ring_cache,
        trains_indexer: c.loss.indexer.is_some(),
        recompute: c.memory.recompute,
        save_policy: c.memory.save_policy,
    }
}
