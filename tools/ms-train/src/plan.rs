//! `--dry-run`: what a run would be, without starting it.

use crate::resolve::Resolved;
use crate::room::Needs;
use anyhow::Result;
use ms_cli::megatron::Args;
use ms_core::Grid;
use serde_json::{Value, json};
use std::io::Write;

/// Prints the plan: a table, or one JSON object with `--json`.
///
/// # Errors
/// If the model cannot be cut for this grid.
pub(crate) fn print(args: &Args, resolved: &Resolved) -> Result<()> {
    let plan = plan(resolved)?;
    let mut out = std::io::stdout().lock();
    if args.flag("json") {
        writeln!(out, "{plan}")?;
        return Ok(());
    }
    for (key, value) in plan.as_object().into_iter().flatten() {
        match value {
            Value::Object(inner) => {
                writeln!(out, "{key}:")?;
                for (k, v) in inner {
                    writeln!(out, "  {k:<28} {v}")?;
                }
            }
            other => writeln!(out, "{key:<30} {other}")?,
        }
    }
    Ok(())
}

fn plan(r: &Resolved) -> Result<Value> {
    let c = &r.config;
    let specs = ms_spec::params(&c.model);
    let topo = Grid::data_parallel(r.world)?;
    let parameters: u64 = specs.iter().map(|s| s.shape.numel() as u64).sum();
    let local = parameters; // data-parallel ranks hold all weights
    let shard = local.div_ceil(r.world as u64);
    let weight_bytes = c.dtype.size() as u64;
    let exchanged = |bytes: u64| bytes * (r.world as u64 - 1) / r.world as u64;
    let micro_batches = c.batch.global / (c.batch.micro * r.world);
    Ok(json!({
        "parameters": parameters,
        "model_from": r.model_from,
        "ranks": r.world,
        "threads_per_rank": r.threads_per_rank,
        "grid": topo.describe(),
        "groups": {"dp": topo.groups("dp")},
        "layers_per_stage": [c.model.layers],
        "bubble": 0.0,
        "iterations": c.train_iters,
        "micro_batches_per_iteration": micro_batches,
        "tokens_per_iteration": c.batch.global * c.seq_length,
        "schedule": schedule(r),
        "flops_per_iteration": c.flops_per_sample * c.batch.global as f64,
        "bytes_per_rank": {
            "weights": local * weight_bytes,
            "gradients": local * 4,
            "master_weights": shard * 4,
            "optimizer_moments": shard * 8,
        },
        "memory": Needs::of(c, r.data.as_ref(), r.world).to_json(),
        "communication_bytes_per_iteration": {
            "dp_reduce_scatter": exchanged(local * 4),
            "dp_all_gather": exchanged(local * weight_bytes),
        },
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
