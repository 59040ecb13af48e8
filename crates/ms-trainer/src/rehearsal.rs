//! Rehearsal: a rank's memory and traffic, found by running it without values.
//!
//! The rank's own engine runs two iterations on a device that only counts ([`Device::meta`]), among ranks that do not exist
//! ([`MetaFabric`]). Every model part, memory-saving option and schedule is therefore counted by the code that executes it.
//! Routers spread tokens evenly here.

use crate::{Engine, PipelineOrder, Result, TrainConfig};
use ms_core::{Axis, Device, Grid, RankGroup};
use ms_data::MicroBatch;
use ms_dist::{MetaFabric, ParallelCtx, ParallelOptions};
use std::collections::BTreeMap;

/// A rank's place, and how ranks share tokens.
#[derive(Clone, Copy, Debug)]
pub struct RankSetup<'a> {
    /// The ranks.
    pub grid: &'a Grid,
    /// Which of them.
    pub rank: usize,
    /// How they share tokens.
    pub parallel: ParallelOptions,
}

/// A rank's peak memory, and the bytes that it sends in an iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rehearsal {
    /// Most bytes that its tensors ask for at one time.
    pub peak_bytes: usize,
    /// The same in blocks as the arena gives them.
    pub peak_block_bytes: usize,
    /// Bytes of the largest tensor.
    pub largest_bytes: usize,
    /// Most bytes that forward passes keep for their backward.
    pub kept_bytes: usize,
    /// Peak bytes taken by forward and backward passes, in addition to weights, gradients and state.
    pub pass_bytes: usize,
    /// Most bytes that are with the host.
    pub host_bytes: u64,
    /// Bytes sent in an iteration, by group; groups of one rank are left out.
    pub sent: BTreeMap<RankGroup, u64>,
    /// Tensors that were made to find this out.
    pub tensors: u64,
}

/// A micro-batch of rows of one document each.
fn micro_batch(rows: usize, length: usize) -> MicroBatch {
    let total = rows * length;
    MicroBatch {
        ahead: Vec::new(),
        tokens: vec![0; total],
        labels: vec![0; total],
        loss_mask: vec![1.0; total],
        position_ids: (0..rows).flat_map(|_| 0..length as i32).collect(),
        cu_seqlens: (0..=rows).map(|r| (r * length) as i32).collect(),
        row_ends: (1..=rows).map(|r| r * length).collect(),
        samples: (0..rows as u64).collect(),
    }
}

/// How many micro-batches fill the pipeline once, so that the next ones repeat it, and how many show the most that `place`'s
/// stage keeps.
fn rounds(config: &TrainConfig, place: &RankSetup<'_>, micro_batches: usize) -> (usize, usize) {
    let (stages, stage) = (place.grid.size(Axis::Pp), place.grid.coord(place.rank, Axis::Pp));
    let chunks = config.pipeline.stages.interleaved() || config.pipeline.stages.dual_pipe;
    let (round, full) = match config.pipeline.order {
        // A stage holds as many passes as there are stages after it, and one more.
        PipelineOrder::Plain { .. } if !chunks => (1, stages - stage + 1),
        PipelineOrder::Plain { group, forwards_first } => {
            let group = group.unwrap_or(stages);
            // As many micro-batches as stages may be another order.
            let round = if forwards_first && group == stages { 2 * group } else { group };
            (round, round + group)
        }
        PipelineOrder::ZeroBubble { .. } if !chunks => (1, 2 * stages),
        PipelineOrder::ZeroBubble { group } => {
            let group = group.unwrap_or(stages);
            (group, 2 * group + stages)
        }
        PipelineOrder::DualPipeV => (2 * stages, 3 * stages),
        PipelineOrder::Random(_) => (micro_batches, micro_batches),
    };
    // What is deferred of the output layer gathers with micro-batches.
    let gathered = config
        .pipeline
        .defer_embedding_wgrad
        .map_or(0, |most| most.min(micro_batches).next_multiple_of(round.max(1)));
    (round.min(micro_batches), (full + gathered).min(micro_batches))
}

/// Tokens of a rank up to which rows are run at full length.
const MOST: usize = 1 << 13;

/// Linear extrapolation from two values, to `beyond` times their distance past the second.
fn stretched(few: usize, many: usize, beyond: usize) -> usize {
    many.saturating_add(many.saturating_sub(few).saturating_mul(beyond))
}

/// Runs `place`'s rank without values, with `micro_batches` micro-batches an iteration. If rows leave a rank more than some
/// thousand tokens, two shorter lengths are run and extrapolated: everything grows linearly with the tokens from there on.
///
/// # Errors
/// As the run itself: sizes that do not fit.
pub fn rehearse(config: &TrainConfig, place: &RankSetup<'_>, micro_batches: usize) -> Result<Rehearsal> {
    let size = |axis| place.grid.size(axis);
    let unit = 2 * size(Axis::Cp) * size(Axis::Tp);
    let (mut length, mut parts) = (config.longest_row, 1);
    while length * config.batch.micro / size(Axis::Cp) > MOST && length.is_multiple_of(4 * unit) {
        (length, parts) = (length / 2, parts * 2);
    }
    if parts == 1 {
        return rehearse_whole(config, place, micro_batches);
    }
    let of =
        |length| rehearse_whole(&TrainConfig { longest_row: length, ..config.clone() }, place, micro_batches);
    let (few, many) = (of(length / 2)?, of(length)?);
    // Behind the second length, in halves of it.
    let beyond = 2 * (parts - 1);
    let sent = many
        .sent
        .iter()
        .map(|(group, &bytes)| (*group, stretched(few.sent[group] as usize, bytes as usize, beyond) as u64));
    Ok(Rehearsal {
        peak_bytes: stretched(few.peak_bytes, many.peak_bytes, beyond),
        peak_block_bytes: stretched(few.peak_block_bytes, many.peak_block_bytes, beyond),
        largest_bytes: stretched(few.largest_bytes, many.largest_bytes, beyond),
        kept_bytes: stretched(few.kept_bytes, many.kept_bytes, beyond),
        pass_bytes: stretched(few.pass_bytes, many.pass_bytes, beyond),
        host_bytes: stretched(few.host_bytes as usize, many.host_bytes as usize, beyond) as u64,
        sent: sent.collect(),
        tensors: few.tensors + many.tensors,
    })
}

/// Runs `place`'s rank without values, with `micro_batches` micro-batches an iteration. If there are many, only as many as
/// fill the pipeline are run, in the second of two iterations: the others save no more, and what they send follows from the
/// difference of the two.
///
/// # Errors
/// As the run itself: sizes that do not fit.
fn rehearse_whole(config: &TrainConfig, place: &RankSetup<'_>, micro_batches: usize) -> Result<Rehearsal> {
    let (round, full) = rounds(config, place, micro_batches);
    let device = Device::meta(config.dtype);
    let fabric = MetaFabric::new(place.rank, place.grid.world());
    let ctx = ParallelCtx::new(place.grid.clone(), place.parallel, &fabric)?;
    let mut engine = Engine::new(config, device, ctx)?;
    let steps = vec![micro_batch(config.batch.micro, config.longest_row); full];
    let start = engine.sent_bytes();
    engine.step(1, &steps[..round], (1e-3, 0.1))?;
    let first = engine.sent_bytes();
    // From the first iteration, while the second runs.
    let _held = crate::saving::snapshot(config, &mut engine)?;
    engine.step(2, &steps, (1e-3, 0.1))?;
    engine.store.settle()?;
    let stats = engine.device.arena().stats();
    let in_all = |(group, bytes): (RankGroup, u64)| {
        let (few, many) = (first[&group] - start[&group], bytes - first[&group]);
        let rest = (micro_batches - full) as u64;
        (group, many + if rest > 0 { (many - few) / (full - round) as u64 * rest } else { 0 })
    };
    Ok(Rehearsal {
        peak_bytes: stats.peak_asked_bytes,
        peak_block_bytes: stats.peak_bytes,
        largest_bytes: stats.largest_bytes,
        kept_bytes: engine.kept_bytes(),
        pass_bytes: engine.pass_bytes(),
        host_bytes: engine.host_stats().map_or(0, |s| s.peak_bytes),
        sent: engine.sent_bytes().into_iter().map(in_all).collect(),
        tensors: stats.taken,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_core::{DType, GridRules};
    use ms_spec::ModelConfig;

    #[test]
    fn long_rows_take_what_two_shorter_ones_say() {
        let model = ModelConfig {
            layers: 2,
            hidden: 8,
            ffn: 16,
            heads: 2,
            groups: 1,
            head_dim: 4,
            vocab: 32,
            padded_vocab: 32,
            max_positions: 1 << 16,
            ..ModelConfig::default()
        };
        let sizes = ms_core::GridSizes { tp: 2, ..Default::default() };
        let grid = Grid::new(2, &sizes, GridRules::V2).unwrap();
        let config = TrainConfig::steps(model.validate().unwrap(), DType::Bf16, 1 << 15, 1);
        let place = RankSetup {
            grid: &grid,
            rank: 0,
            parallel: ParallelOptions { sequence_parallel: true, ..ParallelOptions::default() },
        };
        let (whole, stretched) =
            (rehearse_whole(&config, &place, 2).unwrap(), rehearse(&config, &place, 2).unwrap());
        assert_eq!(whole, Rehearsal { tensors: whole.tensors, ..stretched });
    }
}
