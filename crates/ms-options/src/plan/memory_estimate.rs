//! Memory that a run needs, compared with what the machine has, before it starts.

use crate::resolve::Resolved;
use crate::resolve::data::{DataConfig, DataKind};
use anyhow::Result;
use ms_cli::{available_memory, too_little_memory};
use ms_core::{Axis, Grid};
use ms_data::gpt::{DataPaths, MockSequences};
use ms_data::indexed::IndexedDataset;
use ms_spec::{PlacedParam, Placement, memory};
use ms_trainer::TrainConfig;
use serde_json::{Value, json};

/// Bytes that a run needs, by what for, of all ranks together, since ranks are threads of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MemoryEstimate {
    weights: u64,
    gradients: u64,
    optimizer: u64,
    snapshot: u64,
    activations: u64,
    data: u64,
}

impl MemoryEstimate {
    /// Estimates them: weights, gradients and optimizer from the parameters of every rank, activations of one forward pass at
    /// a time, micro-batches read ahead and the order of samples. A pipeline holds more passes than one.
    ///
    /// # Errors
    /// If the model cannot be sharded for the run.
    pub(crate) fn of(r: &Resolved) -> Result<Self> {
        let c = &r.config;
        let grid = &r.topology.grid;
        let placement = Placement::new(&c.model, &c.pipeline.stages)?;
        let tokens = c.batch.micro.saturating_mul(c.longest_row);
        let mut needs = Self::default();
        let ranks = r.world / placement.stages();
        // Parts are equal: every rank of a stage needs what the first one does.
        let add = |sum: &mut u64, bytes: usize| *sum = sum.saturating_add(bytes.saturating_mul(ranks) as u64);
        for stage in 0..placement.stages() {
            let held = placement.params(&c.model, stage);
            // The state is sharded over the ranks whatever the flag says: that changes no value.
            let rank = crate::resolve::stages::first_of_stage(r, stage);
            let held = memory::of(&held, grid, rank, c.element_bytes(), c.state_bytes())?;
            let sizes = crate::resolve::stages::activations(r, c.longest_row);
            let chunks = placement.stage(stage);
            let of_chunk = |(k, items): (usize, &Vec<_>)| {
                let pass = sizes.of_items(&c.model, items, (k, chunks.len()));
                pass.kept.saturating_add(pass.again)
            };
            let kept = chunks.iter().enumerate().map(of_chunk).max().unwrap_or(0);
            add(&mut needs.weights, held.weights);
            add(&mut needs.gradients, held.gradients);
            add(&mut needs.optimizer, held.master.saturating_add(held.moments));
            add(&mut needs.activations, kept);
            // Tokens, labels, positions and mask of a micro-batch, and those read ahead.
            let ahead = r.data.as_ref().map_or(1, |d| d.ahead + 1);
            add(&mut needs.data, tokens.saturating_mul(16).saturating_mul(ahead));
        }
        for rank in 0..r.world {
            needs.snapshot = needs.snapshot.saturating_add(snapshot(c, grid, rank, &placement)? as u64);
        }
        needs.data = needs.data.saturating_add(order_bytes(c, r.data.as_ref()));
        Ok(needs)
    }

    pub(crate) fn total(&self) -> u64 {
        let parts =
            [self.weights, self.gradients, self.optimizer, self.snapshot, self.activations, self.data];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// As `--dry-run` shows them.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "weights": self.weights, "gradients": self.gradients, "optimizer": self.optimizer,
            "snapshot": self.snapshot, "activations": self.activations, "data": self.data, "total": self.total(),
            "available": available_memory(),
        })
    }

    /// What to lower: the flags of the largest part.
    fn advice(&self) -> &'static str {
        let parts = [
            (
                self.activations,
                "--micro-batch-size or --seq-length, or pass --recompute-granularity full --recompute-method uniform",
            ),
            (self.data, "--train-iters, --train-samples, --eval-iters or --seq-length"),
            (
                [self.gradients, self.optimizer, self.snapshot]
                    .into_iter()
                    .fold(self.weights, u64::saturating_add),
                "the size of the model, or pass --bf16",
            ),
        ];
        parts.iter().max_by_key(|part| part.0).map_or("", |part| part.1)
    }
}

/// Bytes that a rank holds for a checkpoint which is written while training goes on: its part of the weights, and copies of
/// the optimizer's unrounded state.
///
/// # Errors
/// If the model cannot be sharded for the run.
pub(crate) fn snapshot(c: &TrainConfig, grid: &Grid, rank: usize, placement: &Placement) -> Result<usize> {
    if !c.checkpoint.async_save || !c.checkpoint.writes() {
        return Ok(0);
    }
    let held = placement.params(&c.model, grid.coord(rank, Axis::Pp));
    // Of equal copies one is written.
    let dense = grid.coord(rank, Axis::Dp) == 0 && grid.coord(rank, Axis::Cp) == 0;
    let first = |p: &PlacedParam| {
        let (alike, tp) = if p.spec.of_experts() {
            (grid.expert().coord(rank, Axis::Dp) == 0, grid.expert().coord(rank, Axis::Tp))
        } else {
            (dense, grid.coord(rank, Axis::Tp))
        };
        let first_instance = grid.instance(rank, p.spec.of_experts()) == 0;
        let counts = !p.copy && first_instance && (p.spec.partition.axes().contains(&Axis::Tp) || tp == 0);
        (counts, counts && alike)
    };
    let of = |wanted: &dyn Fn(&PlacedParam) -> bool, (weight, master, moments)| {
        let held: Vec<PlacedParam> = held.iter().filter(|p| wanted(p)).cloned().collect();
        memory::of(&held, grid, rank, (weight, 0), (master, moments))
    };
    let weights = of(&|p| first(p).1, (c.dtype.size(), 0, 0))?.weights;
    if c.checkpoint.no_save_optim {
        return Ok(weights);
    }
    let wide = c.dtype.wide();
    let master = if c.dtype == wide { 0 } else { wide.size() };
    let state = of(&|p| first(p).0, (0, master, c.optimizer.update.state_names().len() * wide.size()))?;
    Ok(weights.saturating_add(state.master).saturating_add(state.moments))
}

/// Bytes of the order of samples that are built in memory: for every sample two places and a number, for every document
/// of every epoch a number.
fn order_bytes(config: &TrainConfig, data: Option<&DataConfig>) -> u64 {
    let Some(DataConfig { kind: DataKind::Gpt { paths, options, .. }, .. }) = data else {
        return 0;
    };
    let samples = crate::resolve::data::wanted(config).into_iter().fold(0, u64::saturating_add);
    let row = options.row_tokens as u64;
    if *paths == DataPaths::Mock {
        // Every split reads its third as often as it takes; one epoch of a split is put in order whole.
        let set = MockSequences::new(options.eod);
        let third = set.tokens() / 3;
        let rows = |n: u64| (n.saturating_mul(row) / third + 1).saturating_mul(third / row.max(1));
        let of_split = |n: u64| (rows(n).saturating_mul(20)).saturating_add(4 * set.sequences() as u64);
        return crate::resolve::data::wanted(config)
            .into_iter()
            .filter(|&n| n > 0)
            .map(of_split)
            .fold(0, u64::saturating_add);
    }
    let Ok(prefixes) = paths.prefixes() else { return 0 };
    let sets: Vec<IndexedDataset> = prefixes.iter().filter_map(|p| IndexedDataset::open(p).ok()).collect();
    let (documents, tokens) =
        sets.iter().fold((0u64, 0u64), |sum, set| (sum.0 + set.len() as u64, sum.1 + set.tokens()));
    let epochs = samples.saturating_mul(row) / tokens.max(1) + 1;
    samples.saturating_mul(16).saturating_add(epochs.saturating_mul(documents).saturating_mul(4))
}

/// Checks that the machine, or the control group of this process, has what the run needs.
///
/// # Errors
/// If it has not: needed, available, and what to lower.
pub fn check(r: &Resolved) -> Result<()> {
    let needs = MemoryEstimate::of(r)?;
    let (needed, Some(available)) = (needs.total(), available_memory()) else { return Ok(()) };
    if needed > available {
        return Err(too_little_memory(needed, available, needs.advice()));
    }
    Ok(())
}
