//! From flags to a run: defaults, checkpoint, tokenizer and flags become one plain configuration.

pub(crate) mod batches;
pub(crate) mod checked;
pub(crate) mod checkpoint;
pub(crate) mod companions;
pub(crate) mod data;
pub(crate) mod fit;
pub(crate) mod given_flags;
pub(crate) mod inherited;
pub(crate) mod logging;
pub(crate) mod model;
pub(crate) mod options;
pub(crate) mod recompute;
pub(crate) mod routing;
pub(crate) mod samples;
pub(crate) mod schedule;
pub(crate) mod stage_layers;
pub(crate) mod stages;
pub(crate) mod swap_choice;
pub(crate) mod topology;
pub(crate) mod tp_overlap;
pub(crate) mod update;
pub(crate) mod world;

use crate::ModelFlags;
use anyhow::Result;
use data::DataConfig;
use model::model;
use ms_cli::megatron::{Given, Upstream};
use ms_cli::{Usage, refuse};
use ms_core::{Axis, DType, Grid, OptimizerSharding};
use ms_data::RowLayout;
use ms_dist::LinearOverlap;
use ms_dist::buckets::Bucketing;
use ms_spec::{ModelConfig, Placement, Position, Stages};
use ms_trainer::{
    BatchSizes, Checkpointing, DataParallelConfig, Dropout, LossConfig, MemoryConfig, OptimizerConfig,
    PipelineConfig, TrainConfig,
};
use options::Options;
use routing::routing;
use schedule::Extent;
use std::path::PathBuf;
use topology::{Topology, TopologyInputs, WorldSize};

options! {
    /// The element type.
    pub(crate) struct Precision in "Precision" {
        pub(crate) bf16: bool = "--bf16", "compute in bfloat16 with master weights in float32";
        pub(crate) fp16: bool = "--fp16", "weights in float16, computation in float32, dynamic loss scale";
        fp64: bool = "--fp64", "compute in float64 on the slow reference device: results agree to ten digits on any topology", own = own_or("fp64", "false");
    }
}

impl Precision {
    /// Checks that at most one type is given.
    ///
    /// # Errors
    /// If there are two.
    fn check(&self) -> Result<()> {
        for ((one, first), (other, second)) in [
            (("fp64", self.fp64), ("bf16", self.bf16)),
            (("fp64", self.fp64), ("fp16", self.fp16)),
            (("fp16", self.fp16), ("bf16", self.bf16)),
        ] {
            if first && second {
                refuse!("--{one}: cannot be combined with --{other}");
            }
        }
        Ok(())
    }

    /// The element type of weights.
    fn dtype(&self) -> DType {
        match (self.fp64, self.bf16, self.fp16) {
            (true, ..) => DType::F64,
            (_, true, _) => DType::Bf16,
            (_, _, true) => DType::F16,
            _ => DType::F32,
        }
    }
}

options! {
    /// What is dropped at random.
    pub(crate) struct DropoutOptions in "Model" {
        pub(crate) hidden: Given<f64> = "--hidden-dropout", "dropout after the embedding and after every sublayer, the same on any topology; 0 unless given", range = "[0,1)", unset = Unset::Otherwise;
        pub(crate) attention: Given<f64> = "--attention-dropout", "dropout of attention weights, the same on any topology; 0 unless given (not with attention that selects or pools its keys)", range = "[0,1)", unset = Unset::Otherwise;
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
    pub(crate) smart_swap: Option<swap_choice::SwapChoice>,
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
    o.precision.check()?;
    o.samples.check_stage()?;
    let world = world::ranks(o, planned, launched)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads_per_rank = o.compute.threads().unwrap_or((cores / world.ranks).max(1)).max(1);
    let seq_length = o.batches.seq_length()?;
    let missing = o.tokenizer.named().filter(|path| planned && !path.exists());
    if let Some(path) = missing {
        tracing::warn!(
            "--tokenizer-name-or-path: found nothing at {}; a plan continues without tokenizer and data",
            path.display()
        );
    }
    let adjusted = samples::tokenizer(&o.samples, o.tokenizer.named().filter(|_| missing.is_none()))?;
    let tokenizer = adjusted.as_ref().map(|adjusted| &adjusted.tokenizer);
    let (model, model_from) =
        trained_model(o, tokenizer.map(ms_text::Tokenizer::vocab_size), planned, seq_length)?;
    let topology = spread(o, purpose, &world, &model)?;
    let dp = topology.grid.size(Axis::Dp);
    let batch = o.batches.sizes(dp)?;
    let (train_iters, train_samples) =
        o.batches.length(&batch, o.upstream, o.logging.skip_train || planned)?;
    let extent = Extent {
        by_samples: o.batches.count_samples(),
        train_samples,
        skipped: o.logging.skip_train,
        planned,
    };
    let schedule = schedule::resolve(&o.rates, &extent, batch.global as u64)?;
    let untold = tokenizer.is_none() && o.samples.look_at_documents();
    let data = if planned && (missing.is_some() || !o.samples.are_named() || untold) {
        None // a plan needs no data
    } else {
        Some(samples::data(o, seq_length, batch.global, adjusted.as_ref(), &model)?)
    };
    if let Some(data) = data.as_ref().filter(|_| !planned) {
        fit::check(data, model.padded_vocab, tokenizer)?;
    }
    let routing = routing(&o.routers, &o.model_flags, o.upstream, topology.parallel.dispatcher, &model)?;
    let Spread { longest_row, tp_overlap, memory, pipeline, optimizer, data_parallel } =
        of_ranks(o, (&model, &topology), data.as_ref(), &batch)?;
    let loss = loss(o, &model, data.as_ref())?;
    let dropout = dropout(&o.dropout, &model)?;
    let checkpoint = checkpoint(o, planned, &model)?;
    let flops_per_sample = flops_per_sample(o.upstream, &model, seq_length);
    let config = TrainConfig {
        model,
        dtype: o.precision.dtype(),
        seq_length,
        longest_row,
        batch,
        train_iters,
        train_samples,
        skip_train: o.logging.skip_train,
        skipped_iterations: o.logging.skipped_iterations()?,
        seed: o.samples.seed,
        schedule,
        optimizer,
        loss,
        dropout,
        routing,
        memory,
        pipeline,
        data_parallel,
        tp_overlap,
        checks: o.logging.checks(optimizer.loss_scale),
        eval: o.logging.evaluation(),
        logging: o.logging.logging(),
        flops_per_sample,
        checkpoint,
        exit: o.logging.exit(),
        profile: o.logging.recorded(o.upstream)?,
        args: o.given.record.clone(),
    };
    let usage = |e: ms_trainer::Error| Usage(e.to_string());
    config.batch.validate(dp).map_err(usage)?;
    topology::check_schedule(&config, dp)?;
    if train_iters > 0 {
        config.schedule.validate().map_err(usage)?;
    }
    Ok(Resolved {
        config,
        data,
        world: world.ranks,
        topology,
        threads_per_rank,
        profile_dir: o.logging.profile_folder.clone(),
        profiled: o.logging.profiled_ranks(world.ranks)?,
        model_from,
        smart_swap: None,
    })
}

/// What of a configuration hangs on how the run is spread over ranks.
pub(crate) struct Spread {
    pub(crate) longest_row: usize,
    pub(crate) tp_overlap: LinearOverlap,
    pub(crate) memory: MemoryConfig,
    pub(crate) pipeline: PipelineConfig,
    pub(crate) optimizer: OptimizerConfig,
    pub(crate) data_parallel: DataParallelConfig,
}

/// What hangs on how a run of `batch` is spread over ranks.
///
/// # Errors
/// For what ranks cannot share so, and choices that exclude each other.
pub(crate) fn of_ranks(
    o: &Options,
    (model, topology): (&ModelConfig, &Topology),
    data: Option<&DataConfig>,
    batch: &BatchSizes,
) -> Result<Spread> {
    let longest_row = longest_row(data, topology, o.batches.seq_length()?, batch.micro)?;
    let tp_overlap = tp_overlap(o, topology, longest_row * batch.micro)?;
    let (tp, dp) = (topology.grid.size(Axis::Tp), topology.grid.size(Axis::Dp));
    tp_overlap::check_gathers(&o.tp_overlap, model, tp, topology.parallel.sequence_parallel)?;
    let memory = memory(o, model, topology)?;
    let pipeline = pipeline(o, model, topology, batch.global / (batch.micro * dp).max(1))?;
    let distributed = topology.grid.optimizer() != OptimizerSharding::Replicated;
    let optimizer = update::optimizer(&o.update, &o.precision, o.upstream, topology.stages.pp, distributed)?;
    let data_parallel = data_parallel(o, model, topology)?;
    Ok(Spread { longest_row, tp_overlap, memory, pipeline, optimizer, data_parallel })
}

/// The model, and where its shape came from: with as many prediction modules as flags say, and positions for rows of
/// `seq_length` tokens.
///
/// # Errors
/// If flags and checkpoint do not describe a model that can be trained so.
fn trained_model(
    o: &Options,
    tokens: Option<usize>,
    planned: bool,
    seq_length: usize,
) -> Result<(ModelConfig, String)> {
    let (mut model, model_from) = model(o, tokens, planned)?;
    model::check_open_experts(o, &model)?;
    positions(&o.model_flags, &mut model, seq_length)?;
    if let Some((modules, flag)) = o.model_training.modules() {
        if modules > model.mtp {
            refuse!("{flag}: expected at most {}, as the model has it, found {modules}", model.mtp);
        }
        model.mtp = modules;
    }
    model.mtp_hidden_first = o.model_training.scale_of_windows()?.is_some();
    Ok((model, model_from))
}

/// How `model` is spread over the ranks of `world`.
///
/// # Errors
/// If sizes do not fit, or ranks that are to be started cannot have this topology.
pub(crate) fn spread(
    o: &Options,
    purpose: Purpose,
    world: &WorldSize,
    model: &ModelConfig,
) -> Result<Topology> {
    let inputs = TopologyInputs {
        world,
        upstream: o.upstream,
        overlap_experts: o.expert_memory.overlaps(),
        stage_layers: &o.stage_layers,
        noop: o.model_flags.noop_layers(),
        seq_length: o.batches.seq_length()?,
        micro: o.batches.micro()?,
    };
    if o.upstream == Upstream::Head && model.moe.as_ref().and_then(|m| m.shared).is_some_and(|s| s.wide_gate)
    {
        refuse!(
            "--shared-expert-gate-output-dimension: newer upstreams make a gate for every element and never read it: expected 1, \
             or --upstream v2.0.0"
        );
    }
    let topology = topology::resolve(&o.parallelism, &inputs, model)?;
    if purpose.starts_ranks() {
        topology::check_run(&o.parallelism, &topology)?;
    }
    update::check_gathering(&o.update, &topology.grid, topology.stages.interleaved())?;
    Ok(topology)
}

/// Tokens of the longest row of `data`.
///
/// # Errors
/// If ranks cannot share rows that are padded so.
fn longest_row(
    data: Option<&DataConfig>,
    topology: &Topology,
    seq_length: usize,
    micro: usize,
) -> Result<usize> {
    let Some(RowLayout::Padded { multiple, .. }) = data.map(|data| data.layout) else {
        return Ok(seq_length);
    };
    topology::check_rows(topology, multiple, micro)?;
    Ok(seq_length.next_multiple_of(multiple))
}

/// What is recomputed and what is swapped.
///
/// # Errors
/// For choices that exclude each other.
fn memory(o: &Options, model: &ModelConfig, topology: &Topology) -> Result<MemoryConfig> {
    let (recompute, save_policy, recompute_timing) =
        recompute::resolve(&o.recompute, &o.expert_memory, (model, topology), o.upstream)?;
    Ok(MemoryConfig { recompute, save_policy, recompute_timing, swap_folder: o.logging.swap_folder() })
}

/// What stages hold, and in which order they work on the `micro_batches` of an iteration.
///
/// # Errors
/// For what upstream refuses.
fn pipeline(
    o: &Options,
    model: &ModelConfig,
    topology: &Topology,
    micro_batches: usize,
) -> Result<PipelineConfig> {
    let asked = recompute::passes::Asked {
        reduces: o.update.overlap_reduce,
        gathers: o.update.overlap_gather,
        extends: o.parallelism.extend_ep.value,
        micro_batches,
    };
    let stages = topology.stages.clone();
    Ok(PipelineConfig {
        overlap_passes: recompute::passes::resolve(
            &o.recompute,
            &o.expert_memory,
            &asked,
            (model, topology),
            o.upstream,
        )?,
        waits_at_borders: !o.parallelism.overlap_p2p && stages.pp > 1,
        defer_embedding_wgrad: update::defer_embedding_wgrad(&o.update, stages.pp)?,
        order: topology.order,
        stages,
    })
}

/// FLOPs of a sample as a version of upstream counts them.
pub(crate) fn flops_per_sample(upstream: Upstream, model: &ModelConfig, seq_length: usize) -> f64 {
    match upstream {
        Upstream::V2_0_0 => ms_spec::flops::v2_0_0(model, 1, seq_length),
        Upstream::Head => ms_spec::flops::head(model, 1, seq_length),
    }
}

/// The losses.
///
/// # Errors
/// If the model has nothing that one of them trains.
fn loss(o: &Options, model: &ModelConfig, data: Option<&DataConfig>) -> Result<LossConfig> {
    Ok(LossConfig {
        per_token: o.update.per_token,
        log_token_mean: o.upstream == Upstream::Head && (!o.samples.is_sft() || o.update.per_token),
        mtp_scale: o.model_training.scale_of_windows()?.unwrap_or(o.update.mtp_loss_scale),
        mtp_documents: data.is_none_or(|data| data.layout == RowLayout::Packed),
        indexer: update::indexer(&o.update, model)?,
    })
}

/// How gradients and new weights pass between data-parallel ranks.
///
/// # Errors
/// For what upstream refuses.
fn data_parallel(o: &Options, model: &ModelConfig, topology: &Topology) -> Result<DataParallelConfig> {
    let grid = &topology.grid;
    Ok(DataParallelConfig {
        buckets: Bucketing {
            size: bucket_size(o, (model, &topology.stages), grid)?,
            multiple: update::bucket_multiple(&o.update, grid),
        },
        overlap_grad_reduce: o.update.overlap_reduce,
        overlap_param_gather: o.update.overlap_gather,
        overlap_gather_with_step: o.update.overlap_gather_with_step,
        rounded_gradients: update::rounded_gradients(&o.update, &o.precision, o.upstream)?,
    })
}

/// What the run reads and writes; the checkpoint that it reads has the weights of `model`.
///
/// # Errors
/// If a folder is missing or is not what a flag says, or the checkpoint is of another model.
fn checkpoint(o: &Options, planned: bool, model: &ModelConfig) -> Result<Checkpointing> {
    let split = o.tp_overlap.split;
    let checkpoint =
        checkpoint::checkpointing(&o.checkpoint, &o.source, o.upstream, planned, (model, split))?;
    if !checkpoint.upcycling {
        checkpoint::check_model(&checkpoint, o.parallelism.extend_ep.value, &o.model_flags, model)?;
    }
    Ok(checkpoint)
}

/// What the ranks of `topology` that share a matrix compute beside their exchanges, with micro-batches of `tokens` tokens.
///
/// # Errors
/// If the tokens of a rank do not divide as they are to be cut.
fn tp_overlap(o: &Options, topology: &Topology, tokens: usize) -> Result<LinearOverlap> {
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

/// Rates of dropout: upstream's default is 0.1; here what is not given is not dropped, which the start says.
///
/// # Errors
/// If attention chooses its keys itself: upstream's kernels for it drop nothing.
fn dropout(o: &DropoutOptions, model: &ModelConfig) -> Result<Dropout> {
    let rate = |given: &Given<f64>| given.given().copied().unwrap_or(0.0);
    let (hidden, attention) = (rate(&o.hidden), rate(&o.attention));
    if attention > 0.0 && !model.drops_weights() {
        refuse!(
            "--attention-dropout: expected 0 for attention over picked or pooled keys, which drops nothing, found {attention}"
        );
    }
    Ok(Dropout { hidden, attention })
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
