//! From flags to a run: defaults, checkpoint, tokenizer and flags become one plain configuration.

use crate::data::{DataConfig, DataKind, sft_options};
use crate::model::model;
use crate::routing::routing;
use crate::topology::Topology;
use anyhow::{Context, Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::{Args, Upstream};
use ms_core::DType;
use ms_data::gpt::{DataPaths, GptOptions, IndexCache};
use ms_data::sampler::SamplerKind;
use ms_data::sft::Order;
use ms_data::{Documents, Layout, Split};
use ms_spec::{ModelConfig, Position};
use ms_text::Tokenizer;
use ms_text::template::Template;
use ms_trainer::{
    Adam, BatchSizes, Checkpointing, Evaluation, Exit, LossScale, MegatronFiles, OptimizerForm, TrainConfig,
    UpdateRule,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run, ready to start.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What the loop is told.
    pub config: TrainConfig,
    /// Where its data comes from; absent only in a dry run that names none.
    pub data: Option<DataConfig>,
    /// Ranks, as threads of this process.
    pub world: usize,
    /// How the run is spread over them.
    pub topology: Topology,
    /// Threads of each rank's kernels.
    pub threads_per_rank: usize,
    /// Folder of traces.
    pub profile_dir: PathBuf,
    /// Where the model's shape came from, for messages.
    pub model_from: String,
}

/// An integer flag that must be given.
fn need(args: &Args, dest: &str, flag: &str) -> Result<usize> {
    Ok(args.size(dest)?.ok_or_else(|| Usage(format!("{flag} is required")))?)
}

pub(crate) fn number(args: &Args, dest: &str) -> f64 {
    args.float(dest).unwrap_or(0.0)
}

/// Most ranks that are started: they are threads.
pub(crate) const MOST_RANKS: usize = 1024;

/// Ranks of the run. One that is only `planned` has as few as its sizes allow, where none are given.
fn ranks(args: &Args, planned: bool) -> Result<usize> {
    let given = args.size("nproc_per_node")?.unwrap_or(1).max(1);
    if args.has("nproc_per_node") || !planned {
        if given > MOST_RANKS && !planned {
            bail!(Usage(format!(
                "--nproc-per-node: expected at most {MOST_RANKS} in a run, whose ranks are threads, found {given}"
            )));
        }
        return Ok(given);
    }
    let fewest = crate::topology::fewest_ranks(args)?;
    if fewest > 1 {
        tracing::warn!(
            "--nproc-per-node is not given: planned for {fewest} ranks, the fewest of these sizes"
        );
    }
    Ok(fewest)
}

/// Resolves the flags of a training run. One that is only `planned` needs no data and no number of iterations.
///
/// # Errors
/// If a flag is missing or wrong, or the checkpoint or tokenizer cannot be read.
pub fn resolve(args: &Args, planned: bool) -> Result<Resolved> {
    if args.text("device") == Some("npu") {
        bail!(Usage("--device npu: no NPU backend is part of this version; pass --device cpu".into()));
    }
    for (one, other) in [("fp64", "bf16"), ("fp64", "fp16"), ("fp16", "bf16")] {
        if args.flag(one) && args.flag(other) {
            bail!(Usage(format!(
                "--{one}: goes not with --{other}, which asks for another element type; leave one of them out"
            )));
        }
    }
    if let Some(stage) = args.text("stage").filter(|s| !matches!(*s, "pretrain" | "sft")) {
        bail!(Usage(format!(
            "--stage: expected pretrain or sft, found {stage}, which is not part of this version"
        )));
    }
    let world = ranks(args, planned)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads_per_rank = args.size("threads")?.unwrap_or((cores / world).max(1)).max(1);
    let seq_length = need(args, "seq_length", "--seq-length")?;
    let missing = args.text("tokenizer_name_or_path").or(args.text("tokenizer_model"));
    let missing = missing.filter(|path| planned && !Path::new(path).exists());
    let tokenizer = match missing {
        Some(path) => {
            tracing::warn!(
                "--tokenizer-name-or-path: found nothing at {path}; a plan goes on without tokenizer and data"
            );
            None
        }
        None => tokenizer(args)?,
    };
    let (mut model, model_from) = model(args, tokenizer.as_ref().map(|t| t.0.vocab_size()), planned)?;
    positions(args, &mut model, seq_length)?;
    if let Some(modules) = args.size("mtp_num_layers")?.filter(|_| args.has("mtp_num_layers")) {
        if modules > model.mtp {
            bail!(Usage(format!(
                "--mtp-num-layers: expected at most {}, as the model has it, found {modules}",
                model.mtp
            )));
        }
        model.mtp = modules;
    }

    let micro = need(args, "micro_batch_size", "--micro-batch-size")?;
    let topology = crate::topology::resolve(args, world, &model, seq_length)?;
    let adaptive =
        matches!(args.text("context_parallel_algo"), Some("adaptive_cp_algo" | "hybrid_adaptive_cp_algo"));
    if adaptive && topology.grid.size(ms_core::Axis::Cp) > 1 && !args.flag("dry_run") {
        bail!(Usage(
            "--context-parallel-algo: only --dry-run plans adaptive_cp_algo and hybrid_adaptive_cp_algo; pass megatron_cp_algo, ulysses_cp_algo, \
             hybrid_cp_algo or kvallgather_cp_algo"
                .into()
        ));
    }
    let dp = topology.grid.size(ms_core::Axis::Dp);
    let global = args.size("global_batch_size")?.unwrap_or(micro * dp);
    let batch = BatchSizes { micro, global, rampup: rampup(args)? };
    let (train_iters, train_samples) = match (args.size("train_iters")?, args.size("train_samples")?) {
        (Some(_), None) if batch.rampup.is_some() => {
            bail!(Usage("--rampup-batch-size goes with --train-samples, not with --train-iters".into()))
        }
        (Some(iters), None) => (iters as u64, (iters as u64).saturating_mul(global as u64)),
        (None, Some(samples)) => (iterations_for(&batch, samples as u64), samples as u64),
        (Some(_), Some(_)) => bail!(Usage("--train-iters and --train-samples: pass one of them".into())),
        (None, None) if args.flag("skip_train") || planned => (0, 0),
        (None, None) => bail!(Usage("--train-iters is required (or --train-samples)".into())),
    };
    let eval = Evaluation {
        interval: number(args, "eval_interval") as u64,
        iters: number(args, "eval_iters") as u64,
    };
    let schedule = crate::schedule::resolve(args, train_samples, global as u64, planned)?;
    let named = ["data_path", "train_data_path", "valid_data_path", "test_data_path"];
    let data = if planned && (missing.is_some() || !named.iter().any(|dest| args.has(dest))) {
        None // a plan needs no data
    } else {
        Some(data(args, seq_length, global, tokenizer.as_ref())?)
    };
    if let Some(data) = data.as_ref().filter(|_| !planned) {
        crate::fit::check(data, model.padded_vocab, tokenizer.as_ref().map(|t| &t.0))?;
    }
    let flops = match args.upstream() {
        Upstream::V2_0_0 => ms_spec::flops::v2_0_0(&model, 1, seq_length),
        Upstream::Head => ms_spec::flops::head(&model, 1, seq_length),
    };
    let start = number(args, "profile_step_start") as u64;
    let end = number(args, "profile_step_end") as u64;
    let routing = routing(args, &model)?;
    if let Some(moe) = model.moe.as_mut().filter(|_| args.flag("router_gating_in_fp32")) {
        moe.router.f32 = true;
    }
    if let Some(Layout::Padded { multiple, .. }) = data.as_ref().map(|data| data.layout) {
        crate::topology::check_rows(&topology, multiple, micro)?;
    }
    let longest_row = match data.as_ref().map(|data| data.layout) {
        Some(Layout::Padded { multiple, .. }) => seq_length.next_multiple_of(multiple),
        _ => seq_length,
    };
    let (recompute, keeping, replay) = crate::recompute::resolve(args, model.layers, &topology.stages)?;
    let loss_scale = loss_scale(args)?;
    let attention_dropout = attention_dropout(args, &model)?;
    let config = TrainConfig {
        model,
        dtype: match (args.flag("fp64"), args.flag("bf16"), args.flag("fp16")) {
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
        skip_train: args.flag("skip_train"),
        schedule,
        update: update_rule(args),
        optimizer_form: optimizer_form(args)?,
        loss_scale,
        clip_grad: number(args, "clip_grad"),
        per_token_loss: args.flag("calculate_per_token_loss"),
        log_token_mean: args.upstream() == Upstream::Head && !is_sft(args),
        recompute,
        keeping,
        replay,
        swap_folder: args.text("swap_dir").map_or_else(std::env::temp_dir, PathBuf::from),
        stages: topology.stages.clone(),
        order: topology.order,
        routing,
        mtp_loss_scale: number(args, "mtp_loss_scaling_factor"),
        hidden_dropout: dropout(args, "hidden_dropout"),
        attention_dropout,
        seed: number(args, "seed") as u64,
        bucket_size: bucket_size(args, dp * topology.grid.size(ms_core::Axis::Cp))?,
        overlap_grad_reduce: args.flag("overlap_grad_reduce"),
        overlap_param_gather: args.flag("overlap_param_gather"),
        // As upstream: what is no number tells a dynamic scale to fall.
        check_for_nan: args.flag("check_for_nan_in_loss_and_grad")
            && !matches!(loss_scale, LossScale::Dynamic { .. }),
        eval,
        log_interval: number(args, "log_interval") as u64,
        log_throughput: args.flag("log_throughput"),
        log_params_norm: args.flag("log_params_norm"),
        flops_per_sample: flops,
        checkpoint: checkpointing(args, planned)?,
        exit: Exit {
            interval: args.size("exit_interval")?.map(|n| n as u64),
            duration: args
                .float("exit_duration_in_mins")
                .map(|m| Duration::try_from_secs_f64(m.max(0.0) * 60.0).unwrap_or(Duration::MAX)),
        },
        metrics_file: args.text("metrics_file").map(PathBuf::from),
        tensorboard: args
            .text("tensorboard_dir")
            .map(|dir| (PathBuf::from(dir), number(args, "tensorboard_log_interval") as u64)),
        profile: args.flag("profile").then_some(start..end.max(start + 1)),
        args: args.given().clone(),
    };
    let usage = |e: ms_trainer::Error| Usage(e.to_string());
    config.batch.validate(dp).map_err(usage)?;
    crate::topology::check_schedule(&config, dp)?;
    if train_iters > 0 {
        config.schedule.validate().map_err(usage)?;
    }
    let profile_dir = PathBuf::from(args.text("profile_save_path").unwrap_or("profile_dir"));
    Ok(Resolved { config, data, world, topology, threads_per_rank, profile_dir, model_from })
}

/// A rate of dropout: upstream's default is 0.1; here what is not given is not dropped, which the start says.
fn dropout(args: &Args, dest: &str) -> f64 {
    if args.has(dest) { number(args, dest) } else { 0.0 }
}

/// The rate of dropout of attention's weights.
///
/// # Errors
/// If attention chooses its keys itself: upstream's kernels for it drop nothing.
fn attention_dropout(args: &Args, model: &ModelConfig) -> Result<f64> {
    let rate = dropout(args, "attention_dropout");
    if rate > 0.0 && (model.indexer.is_some() || model.compressed().is_some()) {
        bail!(Usage(format!(
            "--attention-dropout: expected 0 for attention over picked or pooled keys, which drops nothing, found {rate}"
        )));
    }
    Ok(rate)
}

/// Gives the model positions for rows of `seq_length` tokens, where it can have them.
///
/// # Errors
/// If `--max-position-embeddings` is smaller, which upstream refuses too, or a table of learned positions would have to
/// grow.
fn positions(args: &Args, model: &mut ModelConfig, seq_length: usize) -> Result<()> {
    if model.max_positions >= seq_length {
        return Ok(());
    }
    let has = model.max_positions;
    if args.has("max_position_embeddings") {
        bail!(Usage(format!(
            "--max-position-embeddings: expected at least --seq-length, which is {seq_length}, found {has}"
        )));
    }
    if model.position == Position::Learned {
        bail!(Usage(format!(
            "--seq-length: expected at most the {has} learned positions, found {seq_length}"
        )));
    }
    tracing::warn!("--seq-length {seq_length}: the model was made for {has} positions");
    model.max_positions = seq_length;
    Ok(())
}

fn is_sft(args: &Args) -> bool {
    args.text("stage") == Some("sft") || args.flag("is_instruction_dataset")
}

/// The tokenizer, adjusted by the prompt template if there is one; whether the template closes with one end token.
fn tokenizer(args: &Args) -> Result<Option<(Tokenizer, bool)>> {
    let Some(dir) = args.text("tokenizer_name_or_path").or(args.text("tokenizer_model")) else {
        return Ok(None);
    };
    let mut tokenizer = Tokenizer::load_kept(dir, ms_cli::tokenizer_cache().as_deref())
        .context("--tokenizer-name-or-path")?;
    let mut closing = false;
    match args.text("prompt_type") {
        Some(name) => {
            let template = match args.text("prompt_type_path") {
                Some(path) if Path::new(path).exists() => Template::from_file(name, Path::new(path))?,
                _ => Template::named(name)?,
            };
            template.adjust(&mut tokenizer)?;
            closing = template.efficient_eos;
        }
        None => {
            if tokenizer.pad().is_none() && tokenizer.eos().is_some() {
                tokenizer.pad_with_eos();
            }
        }
    }
    Ok(Some((tokenizer, closing)))
}

fn rampup(args: &Args) -> Result<Option<(usize, usize, u64)>> {
    let words = args.list("rampup_batch_size");
    if words.is_empty() {
        return Ok(None);
    }
    let numbers: Vec<usize> = words.iter().filter_map(|w| w.parse().ok()).collect();
    match numbers[..] {
        [start, increment, samples] if words.len() == 3 => Ok(Some((start, increment, samples as u64))),
        _ => bail!(Usage(format!(
            "--rampup-batch-size: expected start, increment and samples, found {words:?}"
        ))),
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

/// Megatron's rule: one bucket, unless gradients are reduced during the backward pass, or weights gathered beside the forward
/// pass.
fn bucket_size(args: &Args, dp: usize) -> Result<Option<usize>> {
    if !args.flag("overlap_grad_reduce") && !args.flag("overlap_param_gather") {
        return Ok(None);
    }
    Ok(Some(args.size("ddp_bucket_size")?.unwrap_or(40_000_000.max(1_000_000 * dp))))
}

fn checkpointing(args: &Args, planned: bool) -> Result<Checkpointing> {
    if args.flag("enable_hf2mg_convert") {
        let Some(load) = args.text("load") else {
            bail!(Usage(
                "--enable-hf2mg-convert: goes with --load, which names a Hugging Face folder".into()
            ));
        };
        if !planned && !Path::new(load).join("config.json").is_file() {
            bail!(Usage(format!(
                "--enable-hf2mg-convert: expected --load to be a Hugging Face folder, found no config.json in {load}"
            )));
        }
    }
    Ok(Checkpointing {
        load: args.text("load").map(PathBuf::from),
        load_step: args.size("ckpt_step")?.map(|n| n as u64),
        finetune: args.flag("finetune"),
        no_load_optim: args.has("no_load_optim"),
        exit_on_missing: args.flag("exit_on_missing_checkpoint"),
        save: args.text("save").map(PathBuf::from),
        save_interval: args.size("save_interval")?.unwrap_or(0) as u64,
        beside_training: args.flag("async_save"),
        keep_last: match args.size("keep_last")?.map(|n| n as u64) {
            Some(_) if !args.has("save") => bail!(Usage("--keep-last: goes with --save".into())),
            keep => keep,
        },
        no_save_optim: args.has("no_save_optim"),
        megatron_files: match args.text("ckpt_format").filter(|_| args.has("ckpt_format")) {
            Some("torch") => MegatronFiles::Ranks,
            Some("torch_dist") => MegatronFiles::Distributed,
            _ => MegatronFiles::Absent,
        },
        override_schedule: args.flag("override_opt_param_scheduler"),
        use_checkpoint_schedule: args.flag("use_checkpoint_opt_param_scheduler"),
    })
}

fn data(
    args: &Args,
    seq_length: usize,
    global: usize,
    tokenizer: Option<&(Tokenizer, bool)>,
) -> Result<DataConfig> {
    let paths = args.list("data_path");
    let seed = number(args, "seed") as u32;
    let split = || -> Result<Split> {
        let default = if is_sft(args) { "100,0,0" } else { "969, 30, 1" };
        let split = Split::parse(args.text("split").unwrap_or(default));
        split.map_err(|e| Usage(format!("--split: {e}")).into())
    };
    let ids = tokenizer.map(|(t, _)| Ok::<_, ms_text::Error>((t.eod()? as i32, t.pad_id()? as i32)));
    let resets = ["reset_position_ids", "reset_attention_mask", "eod_mask_loss"].map(|dest| args.flag(dest));
    let need_eod = || {
        let names = ["--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"];
        let given: Vec<&str> = names.into_iter().zip(resets).filter(|f| f.1).map(|f| f.0).collect();
        Usage(format!(
            "{}: need --tokenizer-name-or-path: it names the end-of-document token",
            given.join(", ")
        ))
    };
    let mut layout = Layout::Packed;
    let kind = if let [file] = paths.as_slice()
        && file.ends_with(".safetensors")
    {
        let [reset_position_ids, reset_attention_mask, eod_mask_loss] = resets;
        let documents = match ids.transpose()? {
            _ if !resets.contains(&true) => None,
            Some((eod, _)) => {
                Some(Documents { eod, reset_position_ids, reset_attention_mask, eod_mask_loss })
            }
            None => bail!(need_eod()),
        };
        DataKind::Safetensors { path: PathBuf::from(file), documents }
    } else if is_sft(args) {
        if paths.is_empty() {
            bail!(Usage("--data-path is required".into()));
        }
        let Some(ids) = ids else {
            bail!(Usage(
                "--tokenizer-name-or-path is required for fine-tuning: it names the end and padding tokens"
                    .into()
            ));
        };
        let (eos, pad) = ids?;
        let packed = (args.flag("reset_position_ids") || args.flag("reset_attention_mask"))
            .then(|| args.flag("neat_pack"));
        let closing = tokenizer.is_some_and(|t| t.1);
        if packed.is_none() {
            let variable = args.flag("variable_seq_lengths") || args.flag("no_pad_to_seq_lengths");
            let multiple =
                if variable { args.size("pad_to_multiple_of")?.unwrap_or(8).max(1) } else { seq_length };
            layout =
                Layout::Padded { multiple, pad, left: args.text("tokenizer_padding_side") == Some("left") };
        }
        let fill_to = args.flag("padded_samples").then_some(global as u64);
        let order = Order {
            seed,
            shuffle: !args.flag("no_shuffle"),
            fill_to,
            full_shuffle: args.flag("full_shuffle_instruction_dataset"),
        };
        let mut options = sft_options(seq_length, packed, closing, eos, order);
        // Upstream has these beside the data, whatever the folder of the other index files.
        options.index_files = args.text("data_cache_path").is_some();
        DataKind::Sft { paths, split: split()?, options }
    } else {
        let per_split = ["train_data_path", "valid_data_path", "test_data_path"].map(|dest| args.list(dest));
        let source = if !paths.is_empty() {
            DataPaths::Split { paths, split: split()? }
        } else if per_split.iter().any(|p| !p.is_empty()) {
            DataPaths::PerSplit(per_split)
        } else {
            bail!(Usage("--data-path is required (or --train-data-path)".into()));
        };
        if ids.is_none() && resets.contains(&true) {
            bail!(need_eod());
        }
        let ids = ids.transpose()?;
        let mut options = GptOptions::new(seq_length, seed, ids.map_or(-1, |i| i.0));
        options.pad = ids.map(|i| i.1);
        [options.reset_position_ids, options.reset_attention_mask, options.eod_mask_loss] = resets;
        let tokenizer = args.text("tokenizer_name_or_path").unwrap_or_default();
        options.cache = args.text("data_cache_path").map(|folder| IndexCache::new(folder, tokenizer));
        let upstream = match args.upstream() {
            Upstream::V2_0_0 => ms_data::Upstream::V2_0_0,
            Upstream::Head => ms_data::Upstream::Head,
        };
        DataKind::Gpt { paths: source, options, upstream }
    };
    let sampler = match args.text("dataloader_type").unwrap_or("single") {
        "cyclic" => SamplerKind::Cyclic,
        "single" => SamplerKind::Single,
        other => bail!(Usage(format!("--dataloader-type: expected single or cyclic, found {other}"))),
    };
    let stretch = args.float("fix_sub_seq_length").map_or(0, |n| n.max(0.0) as usize);
    let used = |&n: &usize| n <= seq_length && args.flag("reset_attention_mask");
    if stretch > 0 && !used(&stretch) {
        tracing::warn!(
            "--fix-sub-seq-length {stretch} changes nothing: it goes with --reset-attention-mask, up to --seq-length"
        );
    }
    let stretch = Some(stretch).filter(|n| *n > 0 && used(n));
    if let Some(tokens) = stretch {
        tracing::warn!(
            "--fix-sub-seq-length: every {tokens} tokens attend within themselves, so losses say nothing"
        );
    }
    Ok(DataConfig { kind, sampler, layout, stretch, ahead: 4 })
}

/// In which form the optimizer keeps its state.
///
/// # Errors
/// For what upstream refuses, and where a form needs another type of weights.
///
/// # Source
/// MindSpeed, `features_manager/memory/reuse_fp32_param.py` and `features_manager/optimizer/swap_optimizer_feature.py`.
fn optimizer_form(args: &Args) -> Result<OptimizerForm> {
    let [reuse, rounded, swap] =
        ["reuse_fp32_param", "o2_optimizer", "swap_optimizer"].map(|dest| args.flag(dest));
    for (given, flag) in [(reuse, "--reuse-fp32-param"), (rounded, "--o2-optimizer")] {
        if given && !args.flag("bf16") {
            bail!(Usage(format!("{flag}: goes with --bf16, of whose weights there is a copy in float32")));
        }
        if given && swap {
            bail!(Usage(format!("--swap-optimizer: goes not with {flag}; leave one of them out")));
        }
    }
    if rounded && args.text("optimizer") == Some("sgd") {
        bail!(Usage("--o2-optimizer: goes with --optimizer adam, whose moments it rounds".into()));
    }
    Ok(OptimizerForm {
        reuse,
        ties_to_even: args.flag("npu_deterministic") || args.flag("use_deter_comp"),
        rounded_moments: rounded,
        swapped: swap.then(|| number(args, "swap_optimizer_times") as usize),
    })
}

/// The factor of the loss: what `--loss-scale` says, and of float16 weights a dynamic one otherwise.
///
/// # Errors
/// A first factor below the least one, as Megatron refuses it.
fn loss_scale(args: &Args) -> Result<LossScale> {
    Ok(match args.float("loss_scale").filter(|&scale| scale != 0.0) {
        Some(scale) => LossScale::Constant(scale),
        None if args.flag("fp16") => {
            let (initial, min) = (number(args, "initial_loss_scale"), number(args, "min_loss_scale"));
            if min > initial {
                bail!(Usage(format!(
                    "--min-loss-scale: expected at most --initial-loss-scale {initial}, found {min}"
                )));
            }
            LossScale::Dynamic {
                initial,
                min,
                window: number(args, "loss_scale_window") as u64,
                hysteresis: number(args, "hysteresis") as u64,
            }
        }
        None => LossScale::None,
    })
}

/// `--optimizer` with its numbers.
fn update_rule(args: &Args) -> UpdateRule {
    match args.text("optimizer") {
        Some("sgd") => UpdateRule::Sgd { momentum: number(args, "sgd_momentum") },
        _ => UpdateRule::AdamW(Adam {
            beta1: number(args, "adam_beta1"),
            beta2: number(args, "adam_beta2"),
            eps: number(args, "adam_eps"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_growing_batch_are_counted_as_megatron_does() {
        // Batches of 4 up to sample 20, of 8 up to 44, of 12 up to 68, then of 16.
        let growing = BatchSizes { micro: 2, global: 16, rampup: Some((4, 4, 60)) };
        assert_eq!(iterations_for(&growing, 100), 5 + 3 + 2 + 2);
        assert_eq!(iterations_for(&BatchSizes { rampup: None, ..growing }, 100), 6);
    }
}
