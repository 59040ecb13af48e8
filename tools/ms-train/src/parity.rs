//! `ms-train parity`: whether the user's model trains on the user's topology as on one rank.
//!
//! The model is shrunk, keeping its parts and their order. A few steps run in f64 on threads, on the topology and on one
//! rank, and every gradient, loss and norm is compared. If they differ, the smallest failing case is searched for.

mod shrink;
mod smallest;

use anyhow::{Result, bail};
use ms_cli::megatron::Args;
use ms_core::{Axis, DType};
use ms_dist::ParallelCtx;
use ms_dist::buckets::Bucketing;
use ms_options::training::Resolved;
use ms_spec::Placement;
use ms_trainer::parity::{Bounds, Found, ParityError, Shape, Trial, batches, compare, worst};
use ms_trainer::{
    Checks, DataParallelConfig, LossConfig, OptimizerConfig, OptimizerForm, PipelineConfig, PipelineOrder,
    Rates, Routing, TrainConfig,
};
use serde_json::json;
use std::io::Write;

/// Steps that are compared.
const STEPS: usize = 3;

/// By how much the routers' choices must be ahead of others, so that rounding of float64 moves none; and how often a micro-batch
/// is drawn for that at most.
const MARGIN: f64 = 1e-6;
const TRIES: usize = 100;

/// How far the two may be apart.
fn bounds() -> Bounds {
    Bounds::of(DType::F64)
}

/// The steps on one rank, and on the ranks of `trial`.
fn both(trial: &Trial, shape: Shape) -> Result<(Found, Found), ParityError> {
    let device = || Ok(ms_reference::device());
    let steps = match trial.config.model.moe {
        Some(_) => trial.batches_apart(&device, shape, STEPS, (MARGIN, TRIES))?,
        None => batches(&trial.config.model, shape, STEPS),
    };
    tracing::info!("one rank, {STEPS} steps in f64");
    let want = trial.alone().run(&device, &steps, None)?;
    tracing::info!("{} ranks, {STEPS} steps in f64", trial.grid.world());
    let planted = |ctx: ParallelCtx| crate::fault_injection::plant(ctx).expect("the variable was looked at");
    Ok((want, trial.run(&device, &steps, Some(&planted))?))
}

/// Runs the comparison and prints what it found.
///
/// # Errors
/// If a rank fails, or with the first thing that differs, and the smallest case that still fails.
pub(crate) fn run(args: &Args, r: &Resolved) -> Result<()> {
    crate::fault_injection::check()?;
    let (trial, shape) = small(r)?;
    let topology = trial.grid.describe();
    let (want, got) = both(&trial, shape).or_else(|apart| -> Result<_> {
        if let ParityError::Close { .. } = apart {
            return Err(apart.into());
        }
        tracing::warn!("{topology} of {} ranks: {apart}; looking for the smallest case that fails", r.world);
        bail!("{apart}{}", smallest::of(args, r.world, &apart).said())
    })?;
    let (name, relative) = worst(&want, &got);
    let margins = want.reports.iter().filter_map(|r| r.experts.as_ref()?.margin);
    let margin = margins.reduce(f64::min);
    let outcome = compare(&want, &got, bounds()).map_err(|apart| {
        tracing::warn!(
            "{topology} of {} ranks: {apart}; looking for the smallest case that differs",
            r.world
        );
        let smallest = smallest::of(args, r.world, &apart);
        (apart, smallest)
    });
    let model = &trial.config.model;
    let mut out = std::io::stdout().lock();
    if args.json() {
        let apart = outcome.as_ref().err();
        let found = json!({
            "equal": outcome.is_ok(),
            "difference": apart.map(|(apart, _)| apart.to_string()),
            "smallest": apart.map(|(_, smallest)| smallest.json()),
            "topology": topology,
            "ranks": r.world,
            "steps": STEPS,
            "parameters": want.gradients.len(),
            "worst_gradient": {"name": name, "relative": relative},
            "least_routing_margin": margin,
            "losses": want.reports.iter().map(|s| s.loss).collect::<Vec<_>>(),
            "model": {"layers": model.layers, "empty_slots": trial.config.pipeline.stages.noop, "hidden": model.hidden, "heads": model.heads, "vocab": model.vocab},
        });
        writeln!(out, "{found}")?;
    } else if outcome.is_ok() {
        writeln!(
            out,
            "equal: {topology} of {} ranks and one rank, {} parameters, {STEPS} steps in f64 \
             (the model made small: {} layers of {})\nlargest difference of a gradient: {relative:.1e} of its norm ({name}){}",
            r.world,
            want.gradients.len(),
            model.layers,
            model.hidden,
            margin.map_or_else(String::new, |m| format!(
                "\nthe routers' choices are at least {m:.1e} ahead of the others"
            )),
        )?;
    }
    match outcome {
        Ok(()) => Ok(()),
        Err((apart, smallest)) => {
            bail!("{topology} of {} ranks and one rank differ: {apart}{}", r.world, smallest.said())
        }
    }
}

/// The run of the flags, made small, and the shape of its micro-batches.
fn small(r: &Resolved) -> Result<(Trial, Shape)> {
    let c = &r.config;
    let grid = r.topology.grid.clone();
    let size = |axis| grid.size(axis);
    let (tp, cp, pp) = (size(Axis::Tp), size(Axis::Cp), size(Axis::Pp));
    let placement = Placement::new(&c.model, &c.pipeline.stages)?;
    let chunks = placement.stages() * placement.chunks();
    let (stages, layers) = shrink::stages(&c.model, &c.pipeline.stages, chunks)?;
    let share = shrink::Share {
        tp,
        ulysses: r.topology.parallel.context.ulysses(cp),
        cp,
        ep: size(Axis::Ep),
        layers,
    };
    let model = shrink::model(&c.model, &share)?;
    // Rows that every rank can have an equal part of.
    let pieces = r.topology.parallel.context.pieces(cp).max(1);
    let part = (2 * cp * tp).next_multiple_of(pieces);
    let length = part * 16usize.div_ceil(part);
    let dp = size(Axis::Dp);
    // Two rounds of the pipeline; of groups of micro-batches as many as that has.
    let order = match c.pipeline.order {
        PipelineOrder::Plain { group, forwards_first } => {
            PipelineOrder::Plain { group: group.map(|n| n.min(2 * pp)), forwards_first }
        }
        order => order,
    };
    let group = match order {
        PipelineOrder::Plain { group: Some(group), .. } if stages.interleaved() => group,
        _ => pp,
    };
    let micro = (2 * pp).next_multiple_of(group.max(1)) * dp;
    let config = TrainConfig {
        pipeline: PipelineConfig { stages, order, ..c.pipeline },
        memory: c.memory.clone(),
        optimizer: OptimizerConfig {
            // In float64 there are no halves to keep, and nothing is rounded.
            form: OptimizerForm { swapped: c.optimizer.form.swapped, ..OptimizerForm::default() },
            ..c.optimizer
        },
        loss: LossConfig { log_token_mean: false, ..c.loss },
        routing: Routing { watch_margins: true, ..c.routing },
        dropout: c.dropout,
        seed: c.seed,
        data_parallel: DataParallelConfig {
            buckets: Bucketing::of(c.data_parallel.buckets.size.map(|_| 300)),
            rounded_gradients: false,
            ..c.data_parallel
        },
        tp_overlap: c.tp_overlap,
        checks: Checks::NONE,
        ..TrainConfig::steps(model, DType::F64, length, c.batch.micro.min(2))
    };
    // Large enough to move a small model, in the proportion given by the flags.
    let lr = 1e-3;
    let decoupled = c.schedule.decoupled.filter(|_| c.schedule.max_lr > 0.0);
    let decoupled_lr = decoupled.map(|d| lr * d.max_lr / c.schedule.max_lr);
    let rates = Rates { lr, decoupled_lr, weight_decay: 0.1 };
    let shape = Shape { rows: c.batch.micro.min(2), length, micro, packed: true };
    Ok((Trial { config, grid, parallel: r.topology.parallel, rates }, shape))
}
