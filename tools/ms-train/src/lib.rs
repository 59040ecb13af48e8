//! `ms-train` trains a decoder with Megatron's and MindSpeed-LLM's flags: pretraining and supervised fine-tuning, on as many
//! ranks as `--nproc-per-node` says, each a thread of this process, or as many as `mpirun` starts (feature `mpi`).
//!
//! The meaning of flags is defined in [`ms_options::training`]; this package has the command line, the placement of ranks
//! (`ranks`), the output of a run (`report`, `plan`, `profile`) and early stopping (`keep`).

#[macro_use]
#[path = "../../../crates/ms-cli/src/megatron/macros.rs"]
mod macros;

mod fault_injection;
mod options;
mod parity;
mod plan;
mod profile;
mod ranks;
mod report;
mod safeguards;

use anyhow::Result;
use ms_cli::megatron::{Args, ConfigFile, Line, Program, parse_or_exit, take_words};
use ms_cli::{env_vars, refuse};
use ms_core::{Arena, DType, Tensor};
use ms_dist::{Fabric, ParallelCtx, ReduceOp};
use ms_kernels::Arithmetic;
use ms_kernels::choice::Choice;
use ms_options::training::{self, MOST_RANKS, Options, Purpose, Resolved};
use ms_trainer::{Hooks, Outcome, RankUsage};
use options::RunMode;
use ranks::Ranks;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

const ABOUT: &str = "Trains a decoder: pretraining and supervised fine-tuning, with Megatron's flags.

A run of two data-parallel ranks on this machine:
  ms-train --nproc-per-node 2 --load qwen3-0.6b --tokenizer-name-or-path qwen3-0.6b \\
      --data-path corpus_text_document --seq-length 1024 --micro-batch-size 1 --global-batch-size 8 \\
      --train-iters 100 --lr 1e-4 --bf16 --save out --save-interval 50

Whether the model trains on a topology as on one rank, made small and in f64 (any flags of a run):
  ms-train parity --nproc-per-node 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
      --load qwen3-0.6b --seq-length 1024 --micro-batch-size 1 --global-batch-size 8";

const ABOUT_PARITY: &str = "\
ms-train parity FLAGS: does the model of a run train on its topology as on one rank?

The flags are those of the run. The model is made small (fewer layers, heads, tokens and experts, as far as the topology lets it),
drawn from --seed, and trained a few steps in float64 on the ranks of the run, as threads, and on one rank. After the first step every
parameter's gradient is compared, after each the losses and norms; the first parameter whose gradient differs is named, and the
exit code is 1. Then ranks and flags are taken away one after another, as long as the case fails in the same way, up to 100 times,
and the smallest one is printed as a command. No data set is read and nothing is written; --json prints one object.

  ms-train parity --nproc-per-node 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
      --load qwen3-0.6b --seq-length 1024 --micro-batch-size 1 --global-batch-size 8

ms-train --help lists the flags.
";

const NOTHING_GIVEN: &str = "expected flags, found none

A run needs a model (--load DIR, or --num-layers and its other sizes), data (--data-path), --seq-length, --micro-batch-size,
--train-iters and --lr:
  ms-train --load DIR --data-path PREFIX --tokenizer-name-or-path DIR --seq-length N --micro-batch-size N --train-iters N --lr X
hint: ms-train -h lists the flags, ms-train --help says what each means";

/// The command line.
pub fn line() -> &'static Line {
    static LINE: OnceLock<Line> = OnceLock::new();
    LINE.get_or_init(|| {
        Line::new::<(ConfigFile, (RunMode, Options))>(Program::Train, "ms-train", ABOUT).with_help(&[
            ("--load", "folder of the checkpoint to start from"),
            (
                "--pretrained-checkpoint",
                "folder to load the weights from if --load has no checkpoint yet: training starts at iteration 0 with a new optimizer state",
            ),
            ("--threads", "number of threads of each rank"),
        ])
    })
}

/// The program.
///
/// # Errors
/// Whatever stops a run; the exit code follows from the kind of error.
pub fn main(interrupt: &ms_cli::Interrupt) -> Result<()> {
    let mut argv: Vec<OsString> = std::env::args_os().skip(1).collect();
    let asks = argv.first().is_some_and(|word| word == "help");
    let is_parity = |before: &[OsString], word: &str| before.is_empty() && word == "parity" && !asks;
    let parity = !take_words(line(), &mut argv, 0, is_parity)?.is_empty();
    if parity && argv.iter().any(|word| word == "--help" || word == "-h") {
        std::io::Write::write_all(&mut std::io::stdout().lock(), ABOUT_PARITY.as_bytes())?;
        return Ok(());
    }
    if argv.is_empty() && !parity {
        refuse!("{NOTHING_GIVEN}");
    }
    let mut args = parse_or_exit(line(), &argv)?;
    let run_mode: RunMode = args.read()?;
    args.keep_to_level(run_mode.level);
    if args.explains()? {
        return Ok(());
    }
    args.check()?;
    training::check(&args)?;
    let plans = parity || run_mode.dry_run || run_mode.print_config;
    let ranks = if plans { Ranks::Threads } else { Ranks::find(&mut args)? };
    ranks.finish(|ranks| begun(args, &run_mode, parity, ranks, interrupt))
}

/// What is done when it is known who takes part.
fn begun(
    mut args: Args,
    run_mode: &RunMode,
    parity: bool,
    ranks: &Ranks,
    interrupt: &ms_cli::Interrupt,
) -> Result<()> {
    let o: Options = args.read()?;
    let recorder = ms_trace::Recorder::new();
    report::start_logging(&args, ranks.reports(), o.logging.profile.then(|| recorder.clone()));
    let o = o.with_sizes_of_checkpoint(&mut args)?;
    let args = &args;
    args.say_notes();
    if run_mode.fit.is_some() && !run_mode.dry_run {
        refuse!("--fit: needs --dry-run, which plans and starts nothing");
    }
    if parity && run_mode.dry_run {
        refuse!("--dry-run: parity runs what it compares; leave one of them out");
    }
    let purpose = run_mode.purpose(parity);
    let launched = ranks::launched(&o.world, purpose)?;
    let resolved = match purpose {
        Purpose::Outline if !run_mode.print_config => training::outline(&o, launched)?,
        _ => training::resolve(&o, purpose, launched)?,
    };
    match purpose {
        Purpose::Compare if resolved.world > MOST_RANKS => refuse!(
            "--nproc-per-node: expected at most {MOST_RANKS} to compare, whose ranks are threads, found {}",
            resolved.world
        ),
        Purpose::Compare => parity::run(args, &resolved),
        _ if run_mode.print_config => report::print_config(args, &resolved),
        Purpose::Outline | Purpose::Plan => match &run_mode.fit {
            Some(limit) => plan::print_layouts(args, &o, &resolved, limit),
            None => plan::print(args, &resolved),
        },
        Purpose::Train | Purpose::Show => train(args, &o, &resolved, ranks, &recorder, interrupt),
    }
}

/// The choice of a rank: that of its machine, in an order of sums that all ranks have. Where machines differ that is the one
/// that needs no special instruction.
fn agreed(choice: Choice, ctx: &ParallelCtx, dtype: DType) -> Result<Choice> {
    let own = Arithmetic::ALL.map(|order| f64::from(u8::from(choice.arithmetic == order)));
    let own = Tensor::from_slice(&Arena::default(), [own.len()], &own)?;
    let ranks = ctx.world.all_reduce("arithmetic", own, ReduceOp::Sum)?.wait()?;
    if ranks.as_slice::<f64>()?.contains(&(ctx.world.size() as f64)) {
        return Ok(choice);
    }
    if ctx.rank == 0 && dtype == DType::Bf16 {
        tracing::warn!(
            "the ranks' machines are fastest at different orders of sums: all take `--arithmetic pair`"
        );
    }
    Ok(Choice { arithmetic: Arithmetic::Pair, ..choice })
}

/// Runs the ranks and reports how it ended.
fn train(
    args: &Args,
    o: &Options,
    resolved: &Resolved,
    ranks: &Ranks,
    recorder: &ms_trace::Recorder,
    interrupt: &ms_cli::Interrupt,
) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    ms_options::plan::check_memory(resolved)?;
    report::check(resolved)?;
    // The processes of a run write one folder together.
    let _claims =
        if ranks.is_first() { safeguards::prepare(&resolved.config, interrupt)? } else { Vec::new() };
    let choice = o.compute.arithmetic()?;
    let world = resolved.world;
    let observer = report::Console::new(args, resolved.config.train_iters);
    safeguards::listen(
        o.logging.handle_signal,
        interrupt,
        stop.clone(),
        observer.progress_so_far(),
        &resolved.config,
    );
    let started = std::time::Instant::now();
    let taken = OnceLock::new();
    let rank = |fabric: &dyn Fabric| -> Result<Outcome> {
        let ctx = fault_injection::plant(resolved.context(fabric)?)?;
        let choice = agreed(choice, &ctx, resolved.config.dtype)?;
        taken.get_or_init(|| choice);
        let job = std::env::var(env_vars::SLURM_JOB_ID).unwrap_or_default();
        let hooks = Hooks { stop: stop.clone(), recorder: Some(recorder.clone()), observer: &observer, job };
        resolved.train(ctx, choice, &hooks)
    };
    let outcome = ranks.run(world, o.world.limit(), rank)?;
    if !ranks.reports() {
        return Ok(());
    }
    observer.finish();
    let trace = match &resolved.config.profile {
        Some(_) => {
            let mut events = recorder.take();
            events.retain(|e| resolved.profiled.as_ref().is_none_or(|ranks| ranks.contains(&e.rank)));
            Some(profile::write(resolved, &events, *taken.get().unwrap_or(&choice))?)
        }
        None => None,
    };
    let summary = summary(resolved, &outcome, started.elapsed().as_secs_f64(), trace.as_deref());
    report::summary(args, &summary);
    Ok(())
}

fn summary(resolved: &Resolved, o: &Outcome, seconds: f64, trace: Option<&Path>) -> Value {
    let c = &resolved.config;
    let most = |of: fn(&RankUsage) -> u64| o.ranks.iter().map(of).max().unwrap_or(0);
    json!({
        "iteration": o.iteration,
        "consumed_samples": o.consumed_samples,
        "parameters": o.parameters,
        "ranks": resolved.world,
        "last_loss": o.last_loss,
        "validation_losses": o.validations.iter().map(|(i, l)| json!({"iteration": i, "loss": l})).collect::<Vec<_>>(),
        "test_loss": o.test_loss,
        "tokens_per_second": o.tokens_per_second,
        "tflops_per_second": o.tokens_per_second * c.flops_per_sample / c.seq_length as f64 / 1e12,
        "peak_tensor_bytes_per_rank": most(|r| r.peak_block_bytes),
        "peak_asked_bytes_per_rank": most(|r| r.peak_bytes),
        "largest_tensor_bytes": most(|r| r.largest_tensor_bytes),
        "kept_bytes_per_rank": most(|r| r.kept_bytes),
        "swapped_bytes_per_rank": most(|r| r.swapped_bytes),
        "snapshot_bytes_per_rank": most(|r| r.snapshot_bytes),
        "per_rank": o.ranks,
        "allocations_after_second_iteration": o.late_allocations,
        "seconds": seconds,
        "stopped": o.stopped,
        "weights_from": o.loaded.as_ref().map_or("random weights".to_owned(), |dir| dir.display().to_string()),
        "failed_saves": o.failed_saves,
        "save": c.checkpoint.save,
        "trace": trace,
    })
}
