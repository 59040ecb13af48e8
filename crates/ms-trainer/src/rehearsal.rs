//! What a rank of a run takes and sends, found by running it without values.
//!
//! The rank's own engine works through two iterations on a device that only counts ([`Device::meta`]), among ranks that do not exist
//! ([`MetaFabric`]): every part of a model, way to keep less and schedule is counted by the code that executes it. Routers spread tokens
//! evenly here.

use crate::{Engine, Result, TrainConfig};
use ms_core::{DType, Device, Grid, Shape};
use ms_data::MicroBatch;
use ms_dist::{ContextParallel, Expected, MetaFabric, ParallelCtx};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A rank's place, and how ranks share tokens.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The ranks.
    pub grid: &'a Grid,
    /// Which of them.
    pub rank: usize,
    /// Tensor-parallel ranks share the tokens between matrices.
    pub sequence_parallel: bool,
    /// How ranks share a sequence.
    pub context: ContextParallel,
}

/// What a rank takes of memory at most, and sends in an iteration.
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
    /// Most bytes that are with the host.
    pub host_bytes: u64,
    /// Bytes sent in an iteration, by group; groups of one rank are left out.
    pub sent: BTreeMap<&'static str, u64>,
}

/// A micro-batch of rows of one document each.
fn micro_batch(rows: usize, length: usize) -> MicroBatch {
    let total = rows * length;
    MicroBatch {
        tokens: vec![0; total],
        labels: vec![0; total],
        loss_mask: vec![1.0; total],
        position_ids: (0..rows).flat_map(|_| 0..length as i32).collect(),
        cu_seqlens: (0..=rows).map(|r| (r * length) as i32).collect(),
        row_ends: (1..=rows).map(|r| r * length).collect(),
        samples: (0..rows as u64).collect(),
    }
}

/// How the messages between stages look.
fn borders(config: &TrainConfig, place: &Place<'_>, ctx_tp: usize, cp: usize) -> Expected {
    let tokens = config.batch.micro * config.longest_row / cp;
    let rows = if place.sequence_parallel { tokens / ctx_tp } else { tokens };
    let streams = config.model.hyper.as_ref().map_or(1, |h| h.streams);
    let dtype = if config.dtype == DType::F16 { DType::F32 } else { config.dtype };
    let stream = Shape::new(&[rows, config.model.hidden * streams]);
    Arc::new(move |name, tag| match name {
        // What layers borrow beside the stream is left out.
        "a border" | "gradients of a border" => {
            Some((dtype, if crate::pipeline::is_stream(tag) { stream } else { Shape::new(&[0]) }))
        }
        _ => None,
    })
}

/// Two iterations of `micro_batches` micro-batches.
fn iterations(config: &TrainConfig, place: &Place<'_>, micro_batches: usize) -> Result<Rehearsal> {
    use ms_core::Axis;
    let (tp, cp) = (place.grid.size(Axis::Tp), place.grid.size(Axis::Cp));
    let device = Device::meta(config.dtype);
    let expected = borders(config, place, tp, cp);
    let fabric = MetaFabric::new(place.rank, place.grid.world(), device.arena(), expected);
    let ctx = ParallelCtx::new(place.grid.clone(), place.sequence_parallel, place.context, &fabric)?;
    let mut engine = Engine::new(config, device, ctx)?;
    let steps = vec![micro_batch(config.batch.micro, config.longest_row); micro_batches];
    let mut before = BTreeMap::new();
    for iteration in 1..=2 {
        before = engine.ctx.sent_bytes().into_iter().collect();
        engine.step(iteration, &steps, 1e-3, 0.1)?;
    }
    engine.store.settle()?;
    let after = engine.ctx.sent_bytes().into_iter();
    let stats = engine.device.arena().stats();
    Ok(Rehearsal {
        peak_bytes: stats.peak_asked_bytes,
        peak_block_bytes: stats.peak_bytes,
        largest_bytes: stats.largest_bytes,
        kept_bytes: engine.kept_bytes(),
        host_bytes: engine.host_stats().map_or(0, |s| s.peak_bytes),
        sent: after.map(|(group, bytes)| (group, bytes - before[group])).collect(),
    })
}

/// Tries out `place`'s rank in a run of `micro_batches` micro-batches an iteration. Of many only so many are run as fill the pipeline
/// and one round more: what follows repeats them.
///
/// # Errors
/// As the run itself: sizes that do not fit.
pub fn rehearse(config: &TrainConfig, place: &Place<'_>, micro_batches: usize) -> Result<Rehearsal> {
    let stages = place.grid.size(ms_core::Axis::Pp);
    let group = match config.order {
        crate::PipelineOrder::Plain { group: Some(group), .. } => group.max(stages),
        _ => stages,
    };
    // Full: two rounds of every stage's chunks. The rest repeats in rounds of a group.
    let full = 2 * group;
    if micro_batches <= full + group {
        return iterations(config, place, micro_batches);
    }
    let rest = (micro_batches - full) % group;
    let (few, more) = (iterations(config, place, full + rest)?, iterations(config, place, full + rest + group)?);
    let rounds = ((micro_batches - full - rest) / group) as u64;
    let sent = few.sent.iter().map(|(name, bytes)| (*name, bytes + (more.sent[name] - bytes) * rounds)).collect();
    Ok(Rehearsal { sent, ..more })
}
