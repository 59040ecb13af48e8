//! Rehearsal for the plan: one rank of every stage is run without values, to find what ranks allocate and send.

use crate::plan::memory_estimate::snapshot;
use crate::resolve::Resolved;
use crate::resolve::data::{DataConfig, DataKind};
use ms_core::Axis;
use ms_data::indexed::IndexedDataset;
use ms_data::{RowLayout, sft};
use ms_dist::ContextParallel;
use ms_spec::Placement;
use ms_trainer::LossScale;
use ms_trainer::rehearsal::{RankSetup, Rehearsal, rehearse};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::thread;

/// What the ranks of a stage take and send.
#[derive(Debug)]
pub(crate) struct Stage {
    /// For its first rank, which stands for all; if work is distributed by the mask, for the first rank at every place in the
    /// ring. At a place for the first rank with so many bytes of a snapshot.
    places: Vec<BTreeMap<usize, Rehearsal>>,
    /// Neighbouring context-parallel ranks at one place.
    at_place: usize,
}

impl Stage {
    /// What its ranks at place `cp` of context parallelism take and send, by the bytes of their snapshots.
    pub(crate) fn at(&self, cp: usize) -> &BTreeMap<usize, Rehearsal> {
        &self.places[cp / self.at_place % self.places.len()]
    }

    fn all(&self) -> impl Iterator<Item = &Rehearsal> {
        self.places.iter().flat_map(BTreeMap::values)
    }

    /// Tensors that were made to find this out, which is what it costs.
    pub(crate) fn tensors(&self) -> u64 {
        self.all().map(|of| of.tensors).sum()
    }

    /// The most bytes that one of its ranks takes, in blocks of memory, and the most that one sends.
    pub(crate) fn most(&self) -> (usize, u64) {
        let peak = self.all().map(|of| of.peak_block_bytes).max();
        let sent = self.all().map(|of| of.sent.values().sum()).max();
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
    if r.data.as_ref().is_some_and(|data| has_shorter_rows(data, r.config.longest_row)) {
        all.push("every row is as long as it can be: packed ones that are shorter are not padded");
    }
    if matches!(r.config.optimizer.loss_scale, LossScale::Dynamic { .. }) {
        all.push("no iteration is skipped: one whose gradients overflow gathers no weights and updates none");
    }
    if r.config.model.moe.is_some() {
        all.push("routers spread tokens evenly over experts");
    }
    all
}

/// Whether rows that were packed beforehand have fewer than `most` tokens.
fn has_shorter_rows(data: &DataConfig, most: usize) -> bool {
    let (RowLayout::Packed, DataKind::Sft { paths, options, .. }) = (data.layout, &data.kind) else {
        return false;
    };
    let sets = sft::input_prefixes(paths, options).unwrap_or_default();
    let shorter = |set: IndexedDataset| (0..set.len()).any(|row| set.length(row) < most);
    let opened = |prefix| ms_data::indexed::resolve(prefix).and_then(|prefix| IndexedDataset::open(&prefix));
    sets.iter().filter_map(|prefix| opened(prefix).ok()).any(shorter)
}

/// For each of `stages`, what its ranks allocate and send in an iteration of `micro_batches` micro-batches; `None` if a run
/// with these flags would be refused.
pub(crate) fn stages(r: &Resolved, micro_batches: usize, stages: &[usize]) -> Vec<Option<Stage>> {
    let grid = &r.topology.grid;
    let Ok(placement) = Placement::new(&r.config.model, &r.config.pipeline.stages) else {
        return stages.iter().map(|_| None).collect();
    };
    let (ulysses, ring) = r.topology.ulysses_and_ring();
    // Which blocks of attention a rank works on depends on its place, and on the masks of micro-batches.
    let places =
        if matches!(r.topology.parallel.context, ContextParallel::Adaptive { .. }) { ring } else { 1 };
    let of_place = |stage: usize, place: usize| {
        let here = |rank: &usize| {
            grid.coord(*rank, Axis::Pp) == stage && grid.coord(*rank, Axis::Cp) / ulysses % places == place
        };
        let mut of_snapshots = BTreeMap::new();
        for rank in (0..r.world).filter(here) {
            let Entry::Vacant(free) = of_snapshots.entry(snapshot(&r.config, grid, rank, &placement).ok()?)
            else {
                continue;
            };
            let place = RankSetup { grid, rank, parallel: r.topology.parallel };
            let tried = rehearse(&r.config, &place, micro_batches);
            free.insert(
                tried.inspect_err(|e| tracing::warn!("stage {stage} cannot be tried out: {e}")).ok()?,
            );
        }
        Some(of_snapshots)
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
