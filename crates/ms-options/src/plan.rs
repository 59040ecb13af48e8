//! The plan of a run without starting it: what its ranks hold, allocate and send.

mod communication;
pub(crate) mod layouts;
mod memory_estimate;
mod rehearse;
pub(crate) mod smart_swap;

use crate::resolve::Resolved;
use crate::resolve::stages::{activations, first_of_stage};
use crate::resolve::swap_choice::SwapChoice;
use anyhow::{Result, anyhow};
pub use layouts::Layouts;
use memory_estimate::MemoryEstimate;
pub use memory_estimate::check as check_memory;
use ms_cli::Usage;
use ms_core::{Axis, Grid, OptimizerSharding, ParamId, RankGroup};
use ms_dist::ContextParallel;
use ms_dist::buckets::{BucketPlan, Bucketing};
use ms_dist::schedule::{Action, Report, Schedule};
use ms_spec::{Item, PassBytes, PlacedParam, Placement, memory};
use ms_trainer::RecomputeTiming;
use ms_trainer::rehearsal::Rehearsal;
use rehearse::Stage;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The plan of a run: what `--dry-run` shows.
///
/// # Errors
/// If the model cannot be sharded for this grid.
pub fn plan(r: &Resolved) -> Result<Value> {
    let c = &r.config;
    let (grid, model) = (&r.topology.grid, &c.model);
    let placement = Placement::new(model, &c.pipeline.stages)?;
    let parameters = ms_spec::parameters(model);
    let stages: Vec<Vec<PlacedParam>> = (0..placement.stages()).map(|s| placement.params(model, s)).collect();
    let global = c.batch.running(c.batch.global, grid.size(Axis::Dp));
    let micro_batches = global / (c.batch.micro * grid.size(Axis::Dp));
    let (schedule_of_stages, report) = pipeline(r, &placement, micro_batches)?;
    let rehearsed = rehearse::stages(r, micro_batches, &(0..placement.stages()).collect::<Vec<_>>());
    let ranks = ranks(r, &placement, &stages, (&schedule_of_stages, &rehearsed))?;
    let most = |key: &str| ranks.iter().filter_map(|rank| rank[key].as_u64()).max().unwrap_or(0);
    Ok(json!({
        "parameters": parameters,
        "model_from": r.model_from,
        "world": r.world,
        "ranks_per_stage": r.world / grid.size(Axis::Pp),
        "threads_per_rank": r.threads_per_rank,
        "grid": grid.describe(),
        "groups": groups(&r.topology.listed),
        "layers_per_stage": (0..placement.stages()).map(|s| placement.layer_slots(s).len()).collect::<Vec<_>>(),
        "bubble": report.bubble_fraction,
        "pipeline": {
            "orders": (0..placement.stages()).map(|s| schedule_of_stages.text(s)).collect::<Vec<_>>(),
            "max_in_flight": report.max_in_flight,
            "bubble_fraction": report.bubble_fraction,
            "makespan": report.makespan,
        },
        "zero1": zero1(r, &stages[0])?,
        "cp": context(&r.topology.parallel.context, grid.size(Axis::Cp), c.seq_length),
        "iterations": c.train_iters,
        "micro_batches_per_iteration": micro_batches,
        "tokens_per_iteration": global * c.seq_length,
        "schedule": schedule(r),
        "flops_per_iteration": c.flops_per_sample * global as f64,
        "bytes_per_rank": {
            "weights": most("weight_bytes"),
            "gradients": most("grad_bytes"),
            "optimizer": most("optimizer_bytes"),
            "activations": most("activation_bytes"),
        },
        "memory": MemoryEstimate::of(r)?.to_json(),
        "notes": {
            "bytes_per_rank": "the most of any one rank; activations: the peak of an iteration, as rehearsed",
            "memory": "all ranks together, since they share this machine, by formula; activations: one forward pass of each rank, of \
                a stage's largest chunk; a run that needs more than is available is not started",
        },
        "communication_bytes_per_iteration": communication(r, &placement, &stages, (&rehearsed, micro_batches))?,
        "largest_rank": largest(&ranks),
        "smart_swap": r.smart_swap.as_ref().map(SwapChoice::to_json),
        "rehearsed_tensors": rehearsed.iter().flatten().map(Stage::tensors).sum::<u64>(),
        "rehearsed_as_if": rehearse::assumptions(r),
        "ranks": ranks,
    }))
}

/// Every group of ranks by name.
fn groups(grid: &Grid) -> Map<String, Value> {
    let listed = RankGroup::ALL.iter().filter(|group| **group != RankGroup::World);
    listed.map(|&group| (group.name().to_owned(), json!(grid.groups(group)))).collect()
}

/// The order of work, and what it costs on paper.
pub(crate) fn pipeline(
    r: &Resolved,
    placement: &Placement,
    micro_batches: usize,
) -> Result<(Schedule, Report)> {
    let (order, overlapped) = (r.config.pipeline.order, r.config.pipeline.overlap_passes);
    let schedule = order
        .schedule(&placement.order(), micro_batches, overlapped)
        .map_err(|e| Usage(format!("--global-batch-size: {e}")))?;
    let report = schedule.simulate().map_err(|e| anyhow!("the schedule cannot be executed: {e}"))?;
    Ok((schedule, report))
}

/// The flat buffers of rank 0, cut for the ranks that share the optimizer's state out. `shapes` lists parameters as
/// Megatron-core's modules register them, which is the order of [`ms_spec::params`]: of attention what projects the heads'
/// outputs (`linear_proj`) comes before what makes the heads (`linear_qkv`), since the base class makes it. Buffers take them
/// from the last to the first (`params`: first element, end and bucket of each; `rank_slices`: parameter, first element of it,
/// end, bucket, place in the rank's part).
fn zero1(r: &Resolved, held: &[PlacedParam]) -> Result<Vec<Value>> {
    let grid = &r.topology.grid;
    // What no gradient changes, such as the biases of routers, is no parameter there, and in no buffer.
    let held: Vec<PlacedParam> = held.iter().filter(|held| held.spec.trained()).cloned().collect();
    let placement = Placement::new(&r.config.model, &r.config.pipeline.stages)?;
    let shared = ms_trainer::shared_by_stages(&r.config.model, &placement);
    let mut bucketing = r.config.data_parallel.buckets;
    if grid.optimizer() == OptimizerSharding::Replicated {
        // Megatron then pads nothing; buffers here are padded all the same, for aligned loads.
        bucketing.multiple = Bucketing::WHOLE_MULTIPLE;
    }
    let buffers = ms_trainer::buffers(&held, &shared, grid, 0, bucketing)?;
    let describe = |b: ms_trainer::BufferSpec| {
        let dp = grid.optimizer().shards(grid.alike(b.experts));
        let plan = BucketPlan::new(&b.placed, dp, b.bucketing);
        let name = |i: usize| held[b.params[i]].spec.name.as_str();
        let bucket_of =
            |start: usize| plan.buckets.iter().position(|bucket| bucket.contains(&start)).unwrap_or(0);
        let params: Map<String, Value> = (0..b.params.len())
            .map(|i| {
                let start = plan.layout.start(ParamId(i as u32));
                let end = start + b.placed[i].shape.numel();
                (name(i).to_owned(), json!([start, end, bucket_of(start)]))
            })
            .collect();
        let slices = |rank: usize| -> Vec<Value> {
            let slices = plan.slices(rank).into_iter();
            slices.map(|s| json!([name(s.param), s.range.start, s.range.end, s.bucket, s.offset])).collect()
        };
        json!({
            "kind": if b.experts { "experts" } else { "dense" },
            "shapes": (0..b.params.len()).map(|i| json!([name(i), b.placed[i].shape.to_vec()])).collect::<Vec<_>>(),
            "dp": dp,
            "bucket_size": b.bucketing.size,
            "numel": plan.layout.numel(),
            "buckets": plan.buckets.iter().map(|r| [r.start, r.end]).collect::<Vec<_>>(),
            "params": params,
            "rank_slices": (0..dp).map(slices).collect::<Vec<_>>(),
        })
    };
    Ok(buffers.into_iter().map(describe).collect())
}

/// Which tokens context-parallel ranks hold, and the order in which they process other ranks' keys and values.
fn context(how: &ContextParallel, cp: usize, seq_length: usize) -> Value {
    let ring = cp / how.ulysses(cp).max(1);
    let mut cp_plan = json!({
        "chunks": how.chunks(cp),
        "chunk_tokens": seq_length / how.pieces(cp).max(1),
        "kv_order": how.kv_order(ring.max(1)),
    });
    if let ContextParallel::Adaptive { ulysses, .. } = *how {
        let groups = cp / ulysses.max(1);
        let causal: Vec<Vec<bool>> = (0..groups).map(|i| (0..groups).map(|j| j <= i).collect()).collect();
        cp_plan["tasks"] = json!(ContextParallel::adaptive_tasks(&causal));
    }
    cp_plan
}

/// Bytes of a rank's parameters.
fn of_rank(r: &Resolved, held: &[PlacedParam], rank: usize) -> Result<memory::Memory> {
    let c = &r.config;
    Ok(memory::of(held, &r.topology.grid, rank, c.element_bytes(), c.state_bytes())?)
}

/// The most that the passes of a stage save, and what is recomputed in a backward pass.
fn passes(r: &Resolved, placement: &Placement, stage: usize, schedule: &Schedule) -> PassBytes {
    let chunks = placement.stage(stage);
    let activations = activations(r, r.config.seq_length);
    let of_chunk = |k: usize| activations.of_items(&r.config.model, &chunks[k], (k, chunks.len()));
    let chunks: Vec<PassBytes> = (0..chunks.len()).map(of_chunk).collect();
    let ends = |chunk: usize| placement.stage(stage)[chunk].contains(&Item::Head);
    let beyond = match r.config.memory.recompute_timing {
        RecomputeTiming::InBubble => schedule.recomputed_in_bubble(stage, ends),
        RecomputeTiming::WithGradient | RecomputeTiming::InAdvance => BTreeSet::new(),
    };
    let stream = activations.input(&r.config.model);
    let mut most = PassBytes::default();
    let mut now = PassBytes::default();
    for action in &schedule.stages[stage] {
        let whole = chunks[action.pass().chunk];
        let pass = match beyond.contains(&action.pass()) {
            // The input is saved; the pass is recomputed as a whole.
            true => PassBytes { kept: stream, again: whole.kept, sent: 0 },
            false => whole,
        };
        match action {
            Action::Forward { .. } => {
                now.kept = now.kept.saturating_add(pass.kept);
                now.sent = now.sent.saturating_add(pass.sent);
            }
            // Gradients of weights that are deferred need what the products of the pass took.
            Action::Backward { .. } | Action::BackwardWeight { .. } => {
                now.kept = now.kept.saturating_sub(pass.kept);
                now.sent = now.sent.saturating_sub(pass.sent);
            }
            Action::BackwardInput { .. } => {}
        }
        most.kept = most.kept.max(now.kept);
        most.sent = most.sent.max(now.sent);
        most.again = most.again.max(pass.again);
    }
    most
}

/// Bytes that the first rank of a stage needs in all.
///
/// # Errors
/// If a parameter does not divide.
pub(crate) fn stage_bytes(
    r: &Resolved,
    placement: &Placement,
    held: &[PlacedParam],
    stage: usize,
    schedule: &Schedule,
) -> Result<usize> {
    let (held, passes) = (of_rank(r, held, first_of_stage(r, stage))?, passes(r, placement, stage, schedule));
    Ok(held.total().saturating_add(passes.kept).saturating_add(passes.again))
}

/// What each rank holds, in bytes.
fn ranks(
    r: &Resolved,
    placement: &Placement,
    stages: &[Vec<PlacedParam>],
    (schedule, rehearsed): (&Schedule, &[Option<Stage>]),
) -> Result<Vec<Value>> {
    let mut ranks = Vec::with_capacity(r.world);
    let passes: Vec<PassBytes> =
        (0..placement.stages()).map(|stage| passes(r, placement, stage, schedule)).collect();
    // Parts are equal: the ranks of a stage hold as many bytes.
    let held = (0..placement.stages()).map(|stage| of_rank(r, &stages[stage], first_of_stage(r, stage)));
    let held = held.collect::<Result<Vec<_>>>()?;
    for rank in 0..r.world {
        let stage = r.topology.grid.coord(rank, Axis::Pp);
        let (held, passes) = (held[stage], passes[stage]);
        let cp = r.topology.grid.coord(rank, Axis::Cp);
        let snapshot = memory_estimate::snapshot(&r.config, &r.topology.grid, rank, placement)?;
        let tried =
            |of: fn(&Rehearsal) -> Value| rehearsed[stage].as_ref().map(|tried| of(&tried.at(cp)[&snapshot]));
        ranks.push(json!({
            "rank": rank,
            "stage": stage,
            "layers": placement.layer_slots(stage),
            "parameters": held.elements,
            "weight_bytes": held.weights,
            "grad_bytes": held.gradients,
            "optimizer_bytes": held.master + held.moments,
            "activation_bytes": tried(|t| json!(t.pass_bytes)).unwrap_or(json!(passes.kept.saturating_add(passes.again))),
            "kept_bytes": tried(|t| json!(t.kept_bytes)).unwrap_or(json!(passes.kept)),
            "swapped_bytes": tried(|t| json!(t.host_bytes)).unwrap_or(json!(passes.sent)),
            "snapshot_bytes": snapshot,
            "peak_bytes": tried(|t| json!(t.peak_bytes)),
            "peak_block_bytes": tried(|t| json!(t.peak_block_bytes)),
            "largest_tensor_bytes": tried(|t| json!(t.largest_bytes)),
            "sent_bytes": tried(|t| json!(t.sent)),
        }));
    }
    Ok(ranks)
}

/// The rank that needs the most memory, among those whose runs could be rehearsed: the first of several.
fn largest(ranks: &[Value]) -> Value {
    let peak = |rank: &&Value| rank["peak_bytes"].as_u64();
    let Some(rank) = ranks.iter().rev().filter(|rank| peak(rank).is_some()).max_by_key(peak) else {
        return Value::Null;
    };
    let sent = rank["sent_bytes"].as_object().into_iter().flatten().filter_map(|(_, bytes)| bytes.as_u64());
    json!({
        "rank": rank["rank"],
        "stage": rank["stage"],
        "peak_bytes": rank["peak_bytes"],
        "sent_bytes": sent.sum::<u64>(),
    })
}

/// The most bytes that a rank of any stage sends in an iteration, by axis. As with memory, they come from a rehearsal, exact
/// with an even load of experts, or from formulas where that is not possible.
fn communication(
    r: &Resolved,
    placement: &Placement,
    held: &[Vec<PlacedParam>],
    (rehearsed, micro_batches): (&[Option<Stage>], usize),
) -> Result<Value> {
    let mut most = Map::new();
    let mut at_most = |sent: Value| {
        for (axis, bytes) in sent.as_object().into_iter().flatten() {
            let before = most.get(axis).and_then(Value::as_u64).unwrap_or(0);
            most.insert(axis.clone(), json!(before.max(bytes.as_u64().unwrap_or(0))));
        }
    };
    for (stage, tried) in rehearsed.iter().enumerate() {
        match tried {
            Some(tried) => {
                for cp in 0..r.topology.grid.size(Axis::Cp) {
                    for of_rank in tried.at(cp).values() {
                        at_most(sent(r, &held[stage], stage, of_rank)?);
                    }
                }
            }
            None => at_most(communication::of_stage(r, placement, held, stage, micro_batches)?),
        }
    }
    Ok(Value::Object(most))
}

/// The bytes that the first rank of a stage sends in an iteration, by axis.
fn sent(r: &Resolved, held: &[PlacedParam], stage: usize, first: &Rehearsal) -> Result<Value> {
    let of = |groups: &[RankGroup]| groups.iter().filter_map(|group| first.sent.get(group)).sum::<u64>();
    let (gradients, weights) = communication::of_data_parallelism(r, held, stage)?;
    Ok(json!({
        "dp_reduce_scatter": gradients,
        "dp_all_gather": weights,
        "tp": of(&[RankGroup::Tp]),
        "expert_tp": of(&[RankGroup::ExpertTp]),
        "pp": of(&[RankGroup::Pp, RankGroup::Embedding]),
        "cp": of(&[RankGroup::Cp, RankGroup::Ulysses, RankGroup::Ring]),
        "ep": of(&[RankGroup::Ep, RankGroup::TpEp]),
    }))
}

/// The schedule, in iterations of the full batch and with the rates that stand at its corners.
fn schedule(r: &Resolved) -> Value {
    let (c, s) = (&r.config, &r.config.schedule);
    let iterations = |samples: f64| samples / c.batch.global as f64;
    let last = c.train_samples.saturating_sub(c.batch.global as u64);
    json!({
        "lr_decay_style": s.style,
        "warmup_iterations": iterations(s.warmup),
        "decay_iterations": iterations(s.decay as f64),
        "first_lr": s.lr(0),
        "peak_lr": s.max_lr,
        "last_lr": s.lr(last),
        "min_lr": s.min_lr,
        "first_weight_decay": s.weight_decay(0),
        "last_weight_decay": s.weight_decay(last),
    })
}
