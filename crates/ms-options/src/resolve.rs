//! From flags to a run: defaults, checkpoint, tokenizer and flags become one plain configuration.

pub(crate) mod checked;
pub(crate) mod checkpoint;
pub(crate) mod chosen;
pub(crate) mod companions;
pub(crate) mod data;
pub(crate) mod fit;
pub(crate) mod inherited;
pub(crate) mod model;
pub(crate) mod options;
pub(crate) mod recompute;
pub(crate) mod routing;
pub(crate) mod samples;
pub(crate) mod schedule;
pub(crate) mod shares;
pub(crate) mod stages;
pub(crate) mod topology;
pub(crate) mod tp_overlap;
pub(crate) mod update;
pub(crate) mod world;
pub(crate) mod written;

use crate::ModelFlags;
use anyhow::Result;
use data::DataConfig;
use model::model;
use ms_cli::megatron::{Given, Upstream};
use ms_cli::{Usage, refuse};
use ms_core::{Axis, DType, Grid, OptimizerSharding};
use ms_data::RowLayout;
use ms_dist::LinearOverlap;
use ms_spec::{ModelConfig, Placement, Position, Stages};
use ms_trainer::{BatchSizes, Evaluation, Exit, LossScale, TrainConfig};
use options::Options;
use routing::routing;
use schedule::Extent;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use topology::{Topology, TopologyInputs};

options! {
    /// The element type.
    pub(crate) struct Precision in "Precision" {
        pub(crate) bf16: bool = "--bf16", "compute in bfloat16 with master weights in float32";
        pub(crate) fp16: bool = "--fp16", "weights in float16, computation in float32, dynamic loss scale";
        fp64: bool = "--fp64", "compute in float64 on the slow reference device: results agree to ten digits on any topology", own = own_or("fp64", "false");
    }
}

options! {
    /// How much is trained on.
    pub(crate) struct Batches in "Batch" {
        micro: Option<usize> = "--micro-batch-size", "samples per forward pass", range = "[1,16777216]";
        pub(crate) global: Option<usize> = "--global-batch-size", "samples per iteration (default: micro-batch size x data-parallel size)", range = "[1,16777216]";
        rampup: Vec<String> = "--rampup-batch-size", "ramp up the global batch size: START INCREMENT SAMPLES";
        lowered: bool = "--decrease-batch-size-if-needed", "lower a global batch size that data-parallel ranks cannot share evenly to the next that they can; --train-iters and schedules stay as given";
        pub(crate) seq_length: Option<usize> = "--seq-length", "tokens per sample", range = "[1,268435456]";
        iters: Option<u64> = "--train-iters", "number of iterations to train", range = "[0,1000000000000]";
        samples: Given<Option<u64>> = "--train-samples", "number of samples to train, instead of --train-iters", range = "[0,1000000000000]";
    }
}

options! {
    /// What is dropped at random.
    pub(crate) struct Dropout in "Model" {
        pub(crate) hidden: Given<f64> = "--hidden-dropout", "dropout after the embedding and after every sublayer, the same on any topology; 0 unless given", range = "[0,1)", unset = Unset::Otherwise;
        pub(crate) attention: Given<f64> = "--attention-dropout", "dropout of attention weights, the same on any topology; 0 unless given (not with attention that selects or pools its keys)", range = "[0,1)", unset = Unset::Otherwise;
    }
}

options! {
    /// What is said and measured of a run, and when it ends early.
    pub struct LoggingOptions in "Logging" {
        interval: u64 = "--log-interval", "iterations between log lines", range = "[1,)";
        throughput: bool = "--log-throughput", "TFLOP/s per rank in the log line";
        progress: bool = "--log-progress", "with --save: record starts of jobs and, at each checkpoint, throughput, operations and tokens in progress.txt";
        params_norm: bool = "--log-params-norm", "norm of the weights in the log line";
        num_zeros: bool = "--log-num-zeros-in-grad", "number of zeros among the gradients in the log line";
        layers: bool = "--moe-per-layer-logging", "write each layer's auxiliary router losses to the metrics file and TensorBoard", group = "Optimizer";
        compare_replicas: Option<u64> = "--check-weight-hash-across-dp-replicas-interval", "iterations between bitwise comparisons of weights over data-parallel ranks; also before the first iteration", range = "[1,1000000000000]";
        skipped: Vec<String> = "--iterations-to-skip", "iterations, by the number done before them, whose samples are skipped without an update", group = "Batch", range = "[0,9223372036854775807]";
        metrics_file: Option<PathBuf> = "--metrics-file", "file for metrics: a JSON object per iteration", own = own("metrics_file");
        tensorboard: Option<PathBuf> = "--tensorboard-dir", "folder for TensorBoard event files";
        tensorboard_interval: u64 = "--tensorboard-log-interval", "iterations between TensorBoard points", range = "[1,)";
        check_for_nan: bool = "--no-check-for-nan-in-loss-and-grad", "continue when a loss or gradient is not a number";
        spiky_loss: bool = "--check-for-spiky-loss", "stop at a micro-batch loss of at least ten times the largest of the first hundred", group = "Learning rate";
        large_grads: bool = "--check-for-large-grads", "stop at a gradient norm (of a bucket on a rank) of at least ten times the largest of the first hundred", group = "Optimizer";
        eval_interval: u64 = "--eval-interval", "iterations between validations", group = "Evaluation", range = "[0,1000000000000]";
        eval_iters: u64 = "--eval-iters", "number of batches per validation", group = "Evaluation", range = "[0,1000000000000]";
        skip_train: bool = "--skip-train", "validate and test only", group = "Evaluation";
        exit_interval: Option<u64> = "--exit-interval", "save and stop at an iteration that is a multiple of this", group = "Checkpoint", range = "[0,1000000000000]";
        exit_minutes: Option<f64> = "--exit-duration-in-mins", "save and stop after this many minutes", group = "Checkpoint", range = "[0,)";
        /// Whether SIGTERM ends the run with a checkpoint.
        pub handle_signal: bool = "--exit-signal-handler", "save and stop on SIGTERM", group = "Checkpoint";
        /// Whether a trace is recorded.
        pub profile: bool = "--profile", "record a trace", group = "Profiling";
        profile_start: u64 = "--profile-step-start", "first iteration to record", group = "Profiling", range = "[0,1000000000000]";
        profile_end: u64 = "--profile-step-end", "iteration at which recording ends; it is not recorded", group = "Profiling", range = "[0,1000000000000]";
        profile_ranks: Given<Vec<String>> = "--profile-ranks", "ranks to record (-1 or nothing: all)", group = "Profiling", range = "[-1,65535]";
        profile_folder: PathBuf = "--profile-save-path", "folder for traces", group = "Profiling";
        swap_folder: Option<PathBuf> = "--swap-dir", "folder for the files of --swap-attention and --swap-optimizer (default: the system's temporary folder)", group = "Memory", own = own("swap_dir");
    }
}

/// What a run is resolved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It starts.
    Train,
    /// Its values are shown.
    Show,
    /// A few steps of it, made small, are compared with those of one rank.
    Compare,
    /// It is planned: what its ranks would hold, take and send.
    Plan,
    /// It is planned but for what `--smart-swap` would choose, since layouts of its ranks are still to be found.
    Outline,
}

impl Purpose {
    /// Whether there need not be all that a run reads.
    pub fn is_planned(self) -> bool {
        matches!(self, Self::Compare | Self::Plan | Self::Outline)
    }

    /// Whether its topology has to be one that ranks can have here.
    fn starts_ranks(self) -> bool {
        !matches!(self, Self::Plan | Self::Outline)
    }

    /// Whether `--smart-swap` chooses.
    pub(crate) fn chooses_swaps(self) -> bool {
        matches!(self, Self::Train | Self::Compare | Self::Plan)
    }
}

/// A run, ready to start.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What the loop is told.
    pub config: TrainConfig,
    /// Where its data comes from; absent only in a dry run that names none.
    pub(crate) data: Option<DataConfig>,
    /// Ranks, as threads of this process.
    pub world: usize,
    /// How the run is spread over them.
    pub topology: Topology,
    /// Threads of each rank's kernels.
    pub threads_per_rank: usize,
    /// Folder of traces.
    pub profile_dir: PathBuf,
    /// Ranks in them; `None`: all.
    pub profiled: Option<Vec<usize>>,
    /// Where the model's shape came from, for messages.
    pub model_from: String,
    /// What `--smart-swap` has chosen.
    pub(crate) smart_swap: Option<chosen::Chosen>,
}

/// A number that must be given.
fn need(value: Option<usize>, flag: &str) -> Result<usize> {
    Ok(value.ok_or_else(|| Usage(format!("{flag} is required")))?)
}

/// Resolves the flags of a training run.
///
/// # Errors
/// If a flag is missing or wrong, or the checkpoint or tokenizer cannot be read.
pub(crate) fn resolve(o: &Options, purpose: Purpose, launched: Option<usize>) -> Result<Resolved> {
    let planned = purpose.is_planned();
    o.compute.check_device()?;
    if !planned {
        o.source.check_pretrained()?;
    }
    let p = &o.precision;
    for ((one, first), (other, second)) in [
        (("fp64", p.fp64), ("bf16", p.bf16)),
        (("fp64", p.fp64), ("fp16", p.fp16)),
        (("fp16", p.fp16), ("bf16", p.bf16)),
    ] {
        if first && second {
            refuse!("--{one}: cannot be combined with --{other}");
        }
    }
    o.samples.check_stage()?;
    let (world, said) = world::ranks(o, planned, launched)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads_per_rank = o.compute.threads().unwrap_or((cores / world).max(1)).max(1);
    let seq_length = need(o.batches.seq_length, "--seq-length")?;
    let missing = o.tokenizer.named().filter(|path| planned && !path.exists());
    let tokenizer = match missing {
        Some(path) => {
            tracing::warn!(
                "--tokenizer-name-or-path: found nothing at {}; a plan continues without tokenizer and data",
                path.display()
            );
            None
        }
        None => samples::tokenizer(&o.samples, o.tokenizer.named())?,
    };
    let (mut model, model_from) = model(o, tokenizer.as_ref().map(|t| t.0.vocab_size()), planned)?;
    positions(&o.model_flags, &mut model, seq_length)?;
    if let Some((modules, flag)) = o.model_training.modules() {
        if modules > model.mtp {
            refuse!("{flag}: expected at most {}, as the model has it, found {modules}", model.mtp);
        }
        model.mtp = modules;
    }
    let scale_of_windows = o.model_training.scale_of_windows()?;
    model.mtp_hidden_first = scale_of_windows.is_some();

    let micro = need(o.batches.micro, "--micro-batch-size")?;
    let noop = o.model_flags.noop_layers();
    let overlap_experts = o.expert_memory.overlaps();
    let (upstream, shares) = (o.upstream, &o.shares);
    let inputs =
        TopologyInputs { world: (world, &said), upstream, overlap_experts, shares, noop, seq_length, micro };
    if upstream == Upstream::Head && model.moe.as_ref().and_then(|m| m.shared).is_some_and(|s| s.wide_gate) {
        refuse!(
            "--shared-expert-gate-output-dimension: newer upstreams make a gate for every element and never read it: expected 1, \
             or --upstream v2.0.0"
        );
    }
    let topology = topology::resolve(&o.parallelism, &inputs, &model)?;
    if purpose.starts_ranks() {
        topology::check_run(&o.parallelism, &topology)?;
    }
    update::check_gathering(&o.update, &topology.grid, topology.stages.interleaved())?;
    let dp = topology.grid.size(ms_core::Axis::Dp);
    let global = o.batches.global.unwrap_or(micro * dp);
    let batch = BatchSizes { micro, global, rampup: rampup(&o.batches.rampup)?, lowered: o.batches.lowered };
    let (train_iters, train_samples) = match (o.batches.iters, o.batches.samples.value) {
        (Some(_), None) if batch.rampup.is_some() => {
            refuse!("--rampup-batch-size needs --train-samples instead of --train-iters")
        }
        (Some(iters), None) => (iters, iters.saturating_mul(global as u64)),
        (None, Some(samples)) => (iterations_for(&batch, samples), samples),
        (Some(_), Some(_)) => refuse!("--train-iters and --train-samples: pass one of them"),
        (None, None) if o.logging.skip_train || planned => (0, 0),
        (None, None) => refuse!("--train-iters is required (or --train-samples)"),
    };
    let w = &o.logging;
    let eval = Evaluation { interval: w.eval_interval, iters: w.eval_iters };
    let by_samples = o.batches.samples.is_given();
    let extent = Extent { by_samples, train_samples, skipped: w.skip_train, planned };
    let schedule = schedule::resolve(&o.rates, &extent, global as u64)?;
    let untold = tokenizer.is_none() && o.samples.look_at_documents();
    let data = if planned && (missing.is_some() || !o.samples.are_named() || untold) {
        None // a plan needs no data
    } else {
        Some(samples::data(o, seq_length, global, tokenizer.as_ref())?)
    };
    if let Some(data) = data.as_ref().filter(|_| !planned) {
        fit::check(data, model.padded_vocab, tokenizer.as_ref().map(|t| &t.0))?;
    }
    let flops = match o.upstream {
        Upstream::V2_0_0 => ms_spec::flops::v2_0_0(&model, 1, seq_length),
        Upstream::Head => ms_spec::flops::head(&model, 1, seq_length),
    };
    let (start, end) = (w.profile_start, w.profile_end);
    let routing = routing(&o.routers, &o.model_flags, o.upstream, topology.parallel.dispatcher, &model)?;
    if let Some(RowLayout::Padded { multiple, .. }) = data.as_ref().map(|data| data.layout) {
        topology::check_rows(&topology, multiple, micro)?;
    }
    let longest_row = match data.as_ref().map(|data| data.layout) {
        Some(RowLayout::Padded { multiple, .. }) => seq_length.next_multiple_of(multiple),
        _ => seq_length,
    };
    let tp_overlap = tp_overlap(o, &topology, longest_row * micro)?;
    let shares = (topology.grid.size(Axis::Tp), topology.parallel.sequence_parallel);
    tp_overlap::check_gathers(&o.tp_overlap, &model, shares)?;
    let (recompute, save_policy, recompute_timing) =
        recompute::resolve(&o.recompute, &o.expert_memory, (&model, &topology), o.upstream)?;
    let asked = recompute::passes::Asked {
        reduces: o.update.overlap_reduce,
        gathers: o.update.overlap_gather,
        extends: o.parallelism.extend_ep.value,
        micro_batches: batch.global / (micro * dp).max(1),
    };
    let overlap_passes =
        recompute::passes::resolve(&o.recompute, &o.expert_memory, &asked, (&model, &topology), o.upstream)?;
    let indexer = update::indexer(&o.update, &model)?;
    let loss_scale = update::loss_scale(&o.update, p)?;
    let attention_dropout = attention_dropout(&o.dropout, &model)?;
    let bucket_size = bucket_size(o, (&model, &topology.stages), &topology.grid)?;
    let checkpoint = checkpoint::checkpointing(
        &o.checkpoint,
        &o.source,
        o.upstream,
        planned,
        (&model, o.tp_overlap.split),
    )?;
    if !checkpoint.upcycling {
        checkpoint::check_model(&checkpoint, &o.model_flags, &model)?;
    }
    let config = TrainConfig {
        model,
        dtype: match (p.fp64, p.bf16, p.fp16) {
            (true, ..) => DType::F64,
            (_, true, _) => DType::Bf16,
            (_, _, true) => DType::F16,
            _ => DType::F32,
        },
        seq_length,
        longest_row,
        batch,
        train_iters,
        train_samples,
        skip_train: w.skip_train,
        schedule,
        update: update::update_rule(&o.update),
        optimizer_form: update::optimizer_form(
            &o.update,
            p,
            (topology.stages.pp, topology.grid.optimizer() != OptimizerSharding::Replicated),
        )?,
        loss_scale,
        clip_grad: o.update.clip,
        per_token_loss: o.update.per_token,
        log_token_mean: o.upstream == Upstream::Head && (!o.samples.is_sft() || o.update.per_token),
        recompute,
        save_policy,
        recompute_timing,
        swap_folder: w.swap_folder.clone().unwrap_or_else(std::env::temp_dir),
        stages: topology.stages.clone(),
        order: topology.order,
        overlap_passes,
        waits_at_borders: !o.parallelism.overlap_p2p && topology.stages.pp > 1,
        defer_embedding_wgrad: update::defer_embedding_wgrad(&o.update, topology.stages.pp)?,
        routing,
        mtp_loss_scale: scale_of_windows.unwrap_or(o.update.mtp_loss_scale),
        indexer,
        hidden_dropout: rate(&o.dropout.hidden),
        attention_dropout,
        seed: o.samples.seed,
        bucket_size,
        bucket_multiple: update::bucket_multiple(&o.update, &topology.grid),
        overlap_grad_reduce: o.update.overlap_reduce,
        overlap_param_gather: o.update.overlap_gather,
        overlap_gather_with_step: o.update.overlap_gather_with_step,
        tp_overlap,
        rounded_gradients: update::rounded_gradients(&o.update, p, o.upstream)?,
        // As upstream: a non-finite value makes a dynamic scale fall.
        check_for_nan: w.check_for_nan && !matches!(loss_scale, LossScale::Dynamic { .. }),
        check_for_spiky_loss: w.spiky_loss,
        check_for_large_grads: w.large_grads,
        eval,
        log_interval: w.interval,
        log_throughput: w.throughput,
        log_progress: w.progress,
        log_params_norm: w.params_norm,
        log_num_zeros: w.num_zeros,
        log_layers: w.layers,
        compare_replicas: w.compare_replicas.unwrap_or(0),
        skipped_iterations: skipped(&w.skipped)?,
        flops_per_sample: flops,
        checkpoint,
        exit: Exit {
            interval: w.exit_interval,
            duration: w
                .exit_minutes
                .map(|m| Duration::try_from_secs_f64(m.max(0.0) * 60.0).unwrap_or(Duration::MAX)),
        },
        metrics_file: w.metrics_file.clone(),
        tensorboard: w.tensorboard.clone().map(|dir| (dir, w.tensorboard_interval)),
        profile: w.profile.then_some(start..end.max(start + 1)),
        args: o.written.record.clone(),
    };
    let usage = |e: ms_trainer::Error| Usage(e.to_string());
    config.batch.validate(dp).map_err(usage)?;
    topology::check_schedule(&config, dp)?;
    if train_iters > 0 {
        config.schedule.validate().map_err(usage)?;
    }
    let (profile_dir, profiled) = (w.profile_folder.clone(), profiled(&w.profile_ranks, world)?);
    let smart_swap = None;
    Ok(Resolved {
        config,
        data,
        world,
        topology,
        threads_per_rank,
        profile_dir,
        profiled,
        model_from,
        smart_swap,
    })
}

/// What the ranks of `topology` that share a matrix compute beside their exchanges, with micro-batches of `tokens` tokens.
///
/// # Errors
/// If the tokens of a rank do not divide as they are to be cut.
pub(crate) fn tp_overlap(o: &Options, topology: &Topology, tokens: usize) -> Result<LinearOverlap> {
    let (tp, all) = (topology.grid.size(Axis::Tp), tokens / topology.grid.size(Axis::Cp));
    let tokens = tp_overlap::Tokens { all, tp, shared: topology.parallel.sequence_parallel };
    tp_overlap::resolve(&o.tp_overlap, o.upstream, &tokens)
}

/// Elements of a bucket of gradients among the ranks of `grid`; `None`: all are one bucket.
///
/// # Errors
/// For two flags that say it.
pub(crate) fn bucket_size(
    o: &Options,
    (model, stages): (&ModelConfig, &Stages),
    grid: &Grid,
) -> Result<Option<usize>> {
    let held = || -> Result<usize> {
        let held = Placement::new(model, stages)?.params(model, 0);
        Ok(ms_spec::memory::of(&held, grid, 0, (0, 0), (0, 0))?.elements)
    };
    update::bucket_size(&o.update, grid.size(Axis::Dp) * grid.size(Axis::Cp), held)
}

/// A rate of dropout: upstream's default is 0.1; here what is not given is not dropped, which the start says.
fn rate(dropout: &Given<f64>) -> f64 {
    dropout.given().copied().unwrap_or(0.0)
}

/// The rate of dropout of attention's weights.
///
/// # Errors
/// If attention chooses its keys itself: upstream's kernels for it drop nothing.
fn attention_dropout(o: &Dropout, model: &ModelConfig) -> Result<f64> {
    let rate = rate(&o.attention);
    if rate > 0.0 && !model.drops_weights() {
        refuse!(
            "--attention-dropout: expected 0 for attention over picked or pooled keys, which drops nothing, found {rate}"
        );
    }
    Ok(rate)
}

/// Gives the model positions for rows of `seq_length` tokens, where it can have them.
///
/// # Errors
/// If `--max-position-embeddings` is smaller, which upstream refuses too, or a table of learned positions would have to
/// grow.
fn positions(flags: &ModelFlags, model: &mut ModelConfig, seq_length: usize) -> Result<()> {
    if model.max_positions >= seq_length {
        return Ok(());
    }
    let has = model.max_positions;
    if flags.written("max_position_embeddings").is_some() {
        refuse!(
            "--max-position-embeddings: expected at least --seq-length, which is {seq_length}, found {has}"
        );
    }
    if model.position == Position::Learned {
        refuse!("--seq-length: expected at most the {has} learned positions, found {seq_length}");
    }
    tracing::warn!("--seq-length {seq_length}: the model was made for {has} positions");
    model.max_positions = seq_length;
    Ok(())
}

/// The iterations that are passed over.
fn skipped(words: &[String]) -> Result<BTreeSet<u64>> {
    let number = |word: &String| word.parse().ok();
    words.iter().map(number).collect::<Option<_>>().ok_or_else(|| {
        Usage(format!("--iterations-to-skip: expected numbers of at least 0, found {}", words.join(" ")))
            .into()
    })
}

/// The ranks of a trace; `None`: all.
fn profiled(ranks: &Given<Vec<String>>, world: usize) -> Result<Option<Vec<usize>>> {
    let Some(words) = ranks.given().filter(|words| !words.iter().any(|word| word == "-1")) else {
        return Ok(None);
    };
    let number = |word: &String| word.parse().ok().filter(|&rank| rank < world);
    words.iter().map(number).collect::<Option<_>>().map(Some).ok_or_else(|| {
        let found = words.join(" ");
        Usage(format!("--profile-ranks: expected -1 or ranks below {world}, found {found}")).into()
    })
}

fn rampup(words: &[String]) -> Result<Option<(usize, usize, u64)>> {
    if words.is_empty() {
        return Ok(None);
    }
    let numbers: Vec<usize> = words.iter().filter_map(|w| w.parse().ok()).collect();
    match numbers[..] {
        [start, increment, samples] if words.len() == 3 => Ok(Some((start, increment, samples as u64))),
        _ => refuse!("--rampup-batch-size: expected start, increment and samples, found {words:?}"),
    }
}

/// Iterations that take `samples` samples: while the batch grows, and then at its full size; a rest that does not fill
/// a batch is left out.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/training/training.py`, `update_train_iters`.
fn iterations_for(batch: &BatchSizes, samples: u64) -> u64 {
    let (mut consumed, mut iterations) = (0, 0);
    if let Some((_, _, growing)) = batch.rampup {
        while consumed <= growing {
            consumed += batch.global_at(consumed).max(1) as u64;
            iterations += 1;
        }
    }
    iterations + samples.saturating_sub(consumed) / batch.global.max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_growing_batch_are_counted_as_megatron_does() {
        // Batches of 4 up to sample 20, of 8 up to 44, of 12 up to 68, then of 16.
        let growing = BatchSizes { micro: 2, global: 16, rampup: Some((4, 4, 60)), lowered: false };
        assert_eq!(iterations_for(&growing, 100), 5 + 3 + 2 + 2);
        assert_eq!(iterations_for(&BatchSizes { rampup: None, ..growing }, 100), 6);
    }
}
