//! Rehearsal for the plan: one rank of every stage is run without values, to find what ranks allocate and send.

use crate::resolve::Resolved;
use ms_core::Axis;
use ms_data::RowLayout;
use ms_dist::ContextParallel;
use ms_trainer::LossScale;
use ms_trainer::rehearsal::{RankSetup, Rehearsal, rehearse};
use std::thread;

/// What the ranks of a stage take and send.
#[derive(Debug)]
pub(crate) struct Stage {
    /// For its first rank, which stands for all; if work is distributed by the mask, for the first rank at every place in the
    /// ring.
    places: Vec<Rehearsal>,
    /// Neighbouring context-parallel ranks at one place.
    at_place: usize,
}

impl Stage {
    /// What its rank at place `cp` of context parallelism takes and sends.
    pub(crate) fn of(&self, cp: usize) -> &Rehearsal {
        &self.places[cp / self.at_place % self.places.len()]
    }

    /// Tensors that were made to find this out, which is what it costs.
    pub(crate) fn tensors(&self) -> u64 {
        self.places.iter().map(|of| of.tensors).sum()
    }

    /// The most bytes that one of its ranks takes, in blocks of memory, and the most that one sends.
    pub(crate) fn most(&self) -> (usize, u64) {
        let peak = self.places.iter().map(|of| of.peak_block_bytes).max();
        let sent = self.places.iter().map(|of| of.sent.values().sum()).max();
        (peak.unwrap_or(0), sent.unwrap_or(0))
    }
}

/// What a rehearsal takes for granted.
pub(crate) fn assumptions(r: &Resolved) -> Vec<&'static str> {
    let mut all = Vec::new();
    if matches!(r.topology.parallel.context, ContextParallel::Adaptive { .. }) {
        all.push("every row is one document: of rows of several, ranks share out fewer blocks of attention");
    }
    let layout = r.data.as_ref().map(|data| data.layout);
    if matches!(layout, Some(RowLayout::Padded { multiple, .. }) if multiple < r.config.longest_row) {
        all.push(
            "every row is as long as it can be: shorter ones are padded only to the longest of their batch",
        );
    }
    if matches!(r.config.optimizer.loss_scale, LossScale::Dynamic { .. }) {
        all.push("no iteration is skipped: one whose gradients overflow gathers no weights and updates none");
    }
    if r.config.model.moe.is_some() {
        all.push("routers spread tokens evenly over experts");
    }
    all
}

/// For each of `stages`, what its ranks allocate and send in an iteration of `micro_batches` micro-batches; `None` if a run
/// with these flags would be refused.
pub(crate) fn stages(r: &Resolved, micro_batches: usize, stages: &[usize]) -> Vec<Option<Stage>> {
    let grid = &r.topology.grid;
    let (ulysses, ring) = r.topology.ulysses_and_ring();
    // Which blocks of attention a rank works on depends on its place, and on the masks of micro-batches.
    let places =
        if matches!(r.topology.parallel.context, ContextParallel::Adaptive { .. }) { ring } else { 1 };
    let of_place = |stage: usize, place: usize| {
        let here = |rank: &usize| {
            grid.coord(*rank, Axis::Pp) == stage && grid.coord(*rank, Axis::Cp) == place * ulysses
        };
        let rank = (0..r.world).find(here)?;
        let place = RankSetup { grid, rank, parallel: r.topology.parallel };
        let tried = rehearse(&r.config, &place, micro_batches);
        tried.inspect_err(|e| tracing::warn!("stage {stage} cannot be tried out: {e}")).ok()
    };
    let of_stage = |stage: usize| {
        let places = (0..places).map(|place| of_place(stage, place)).collect::<Option<_>>()?;
        Some(Stage { places, at_place: ulysses })
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(stages.len());
    thread::scope(|scope| {
        let of_stage = &of_stage;
        let work = |worker: usize| {
            scope.spawn(move || -> Vec<Option<Stage>> {
                stages.iter().skip(worker).step_by(workers).map(|&stage| of_stage(stage)).collect()
            })
        };
        let running: Vec<_> = (0..workers).map(work).collect();
        let mut all: Vec<Option<Stage>> = stages.iter().map(|_| None).collect();
        for (worker, done) in running.into_iter().enumerate() {
            let done = done.join().expect("a rehearsal reports what it finds");
            for (i, found) in done.into_iter().enumerate() {
                all[worker + i * workers] = found;
            }
        }
        all
    })
}
