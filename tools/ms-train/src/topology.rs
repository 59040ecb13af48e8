//! From flags to the grid of ranks, the stages and the order of work.

use anyhow::{Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::{Args, Upstream};
use ms_core::{Grid, GridRules, GridSizes};
use ms_dist::ContextParallel;
use ms_dist::schedule::Schedule;
use ms_spec::{ModelConfig, Placement, Stages};
use ms_trainer::{PipelineOrder, TrainConfig};

/// How a run is spread over ranks.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The ranks as the run uses them.
    pub grid: Grid,
    /// The ranks as upstream lists them; they differ where experts are spread over tensor-parallel ranks.
    pub listed: Grid,
    /// What each stage holds.
    pub stages: Stages,
    /// The order of work in the pipeline.
    pub order: PipelineOrder,
    /// Tensor-parallel ranks share the tokens between matrices.
    pub sequence_parallel: bool,
    /// How ranks share a sequence.
    pub context: ContextParallel,
    /// Whether the optimizer's state is shared out; where it is not, every rank of a plan holds all of it.
    pub distributed_optimizer: bool,
}

fn size(args: &Args, dest: &str) -> Result<usize> {
    Ok(args.size(dest)?.unwrap_or(1).max(1))
}

/// Numbers of a list such as `4,4,3`.
fn numbers(flag: &str, text: &str) -> Result<Vec<usize>> {
    let number = |word: &str| word.trim().parse::<usize>().ok();
    let all: Option<Vec<usize>> = text.split(',').map(number).collect();
    all.ok_or_else(|| {
        Usage(format!("{flag}: expected numbers with commas between them, found {text:?}")).into()
    })
}

/// Resolves the flags that spread a run over `world` ranks.
///
/// # Errors
/// If sizes do not fit together, or the model cannot be cut so.
pub fn resolve(args: &Args, world: usize, model: &ModelConfig, seq_length: usize) -> Result<Topology> {
    let (tp, cp, pp, ep) = (
        size(args, "tensor_model_parallel_size")?,
        size(args, "context_parallel_size")?,
        size(args, "pipeline_model_parallel_size")?,
        size(args, "expert_model_parallel_size")?,
    );
    let rules = match args.upstream() {
        Upstream::V2_0_0 => GridRules::V2,
        Upstream::Head => GridRules::Head,
    };
    let context = context(args, cp)?;
    let mut sizes = GridSizes {
        tp,
        cp,
        pp,
        ep,
        etp: args.size("expert_tensor_parallel_size")?,
        pp_before_dp: args.flag("use_tp_pp_dp_mapping"),
        ulysses: context.ulysses(cp),
    };
    let refused = |e: ms_core::Error| {
        Usage(format!(
            "--nproc-per-node {world} with --tensor-model-parallel-size {tp}, --context-parallel-size {cp}, \
                       --pipeline-model-parallel-size {pp}, --expert-model-parallel-size {ep}: {e}"
        ))
    };
    let listed = Grid::new(world, &sizes, rules).map_err(refused)?;
    if args.flag("moe_tp_extend_ep") {
        (sizes.ep, sizes.etp) = (ep * tp, Some(1));
    }
    let grid = Grid::new(world, &sizes, rules).map_err(refused)?;
    let stages = stages(args, pp, model)?;
    let order = order(args)?;
    let sequence_parallel = args.flag("sequence_parallel") && tp > 1;
    check(model, &grid, &stages, &context, sequence_parallel, seq_length, size(args, "micro_batch_size")?)?;
    let distributed_optimizer = args.flag("use_distributed_optimizer");
    Ok(Topology { grid, listed, stages, order, sequence_parallel, context, distributed_optimizer })
}

/// The fewest ranks that the given sizes allow.
///
/// # Errors
/// If a size is not a number.
pub(crate) fn fewest_ranks(args: &Args) -> Result<usize> {
    let (tp, cp, pp) = (
        size(args, "tensor_model_parallel_size")?,
        size(args, "context_parallel_size")?,
        size(args, "pipeline_model_parallel_size")?,
    );
    let (ep, etp) = (size(args, "expert_model_parallel_size")?, args.size("expert_tensor_parallel_size")?);
    // Of a stage: whole rows of dense ranks, and of ranks that share experts.
    let dense = tp.saturating_mul(cp);
    let experts = match (args.upstream(), args.flag("moe_tp_extend_ep")) {
        (Upstream::Head, false) => ep.saturating_mul(etp.unwrap_or(tp)),
        (Upstream::V2_0_0, false) | (_, true) => ep.saturating_mul(tp),
    };
    let stage = (dense..=dense.saturating_mul(experts.max(1)))
        .step_by(dense.max(1))
        .find(|ranks| ranks.is_multiple_of(experts.max(1)))
        .unwrap_or(dense);
    Ok(stage.saturating_mul(pp).max(1))
}

fn context(args: &Args, cp: usize) -> Result<ContextParallel> {
    let default = match args.upstream() {
        Upstream::V2_0_0 => "ulysses_cp_algo",
        Upstream::Head => "megatron_cp_algo",
    };
    let window = size(args, "cp_window_size")?;
    let algorithm = args.text("context_parallel_algo").unwrap_or(default);
    let ulysses = args.size("ulysses_degree_in_cp")?;
    Ok(match algorithm {
        "ulysses_cp_algo" | "mamba_cp_algo" => ContextParallel::Ulysses,
        "kvallgather_cp_algo" => ContextParallel::Gather,
        "hybrid_cp_algo" | "hybrid_adaptive_cp_algo" => {
            let Some(ulysses) = ulysses.filter(|u| cp == 1 || (*u > 1 && *u < cp && cp.is_multiple_of(*u)))
            else {
                bail!(Usage(format!(
                    "--ulysses-degree-in-cp: {algorithm} needs a degree above 1 that divides --context-parallel-size {cp} \
                     and is smaller, found {}",
                    ulysses.map_or("none".to_owned(), |u| u.to_string())
                )));
            };
            check_window(window, cp / ulysses, "the ring of hybrid_cp_algo")?;
            ContextParallel::Hybrid { ulysses, window }
        }
        "adaptive_cp_algo" => ContextParallel::Adaptive,
        _ => {
            check_window(window, cp, "--context-parallel-size")?;
            ContextParallel::Ring { window }
        }
    })
}

/// Checks that a ring of `ring` ranks divides into windows of `window` ranks, more than one of them.
fn check_window(window: usize, ring: usize, what: &str) -> Result<()> {
    if ring > 1 && (window >= ring.max(2) || !ring.is_multiple_of(window)) {
        bail!(Usage(format!(
            "--cp-window-size: expected a divisor of {what} {ring} below it, found {window}"
        )));
    }
    Ok(())
}

fn stages(args: &Args, pp: usize, model: &ModelConfig) -> Result<Stages> {
    let noop = args.text("noop_layers").map(|t| numbers("--noop-layers", t)).transpose()?.unwrap_or_default();
    // As upstream: a list of layers is passed over where there are empty slots.
    let layer_list = args
        .text("num_layer_list")
        .filter(|_| noop.is_empty() && pp > 1)
        .map(|t| numbers("--num-layer-list", t))
        .transpose()?;
    let slots = model.layers + noop.len();
    let dual_pipe = args.text("schedules_method") == Some("dualpipev");
    let mut layers_per_chunk =
        args.size("num_layers_per_virtual_pipeline_stage")?.filter(|&n| pp > 1 && n * pp != slots);
    if let Some(chunks) = args.size("num_virtual_stages_per_pipeline_rank")?.filter(|&n| n > 1 && pp > 1) {
        if !slots.is_multiple_of(chunks * pp) {
            bail!(Usage(format!(
                "--num-virtual-stages-per-pipeline-rank {chunks}: {slots} layers do not divide by {chunks} chunks of \
                 each of {pp} stages"
            )));
        }
        layers_per_chunk = Some(slots / (chunks * pp));
    }
    Ok(Stages { pp, layers_per_chunk, layer_list, noop, dual_pipe })
}

fn order(args: &Args) -> Result<PipelineOrder> {
    Ok(match args.text("schedules_method") {
        Some("dualpipev") => PipelineOrder::DualPipeV,
        Some("zero-bubble") => PipelineOrder::ZeroBubble,
        _ => PipelineOrder::Plain {
            group: args.size("microbatch_group_size_per_vp_stage")?,
            forwards_first: args.upstream() == Upstream::V2_0_0,
        },
    })
}

/// Checks that the pipeline's order of work exists for every number of micro-batches that the run will have.
///
/// # Errors
/// With the numbers that do not fit.
pub fn check_schedule(config: &TrainConfig, dp: usize) -> Result<()> {
    let placement = Placement::new(&config.model, &config.stages)?;
    let kind = config.order.kind(placement.stages(), placement.chunks());
    let global = config.batch.global;
    let (first, step) = config.batch.rampup.map_or((global, 1), |r| (r.0, r.1));
    for global in (first..=global).step_by(step.max(1)) {
        let refused = |e: &dyn std::fmt::Display| Usage(format!("--global-batch-size {global}: {e}"));
        let schedule = Schedule::new(kind, &placement.order(), global / (config.batch.micro * dp))
            .map_err(|e| refused(&e))?;
        schedule.simulate().map_err(|e| refused(&e))?;
    }
    Ok(())
}

/// Checks that the model can be spread so, before any rank starts.
///
/// # Errors
/// Names the flag whose size does not fit.
pub(crate) fn check(
    model: &ModelConfig,
    grid: &Grid,
    stages: &Stages,
    context: &ContextParallel,
    sequence_parallel: bool,
    seq_length: usize,
    micro: usize,
) -> Result<()> {
    use ms_core::Axis::{Cp, Ep, Tp};
    let usage = |flag: &str, e: &dyn std::fmt::Display| Usage(format!("{flag}: {e}"));
    let tp = grid.size(Tp);
    ms_spec::check_cut(model, tp).map_err(|e| usage("--tensor-model-parallel-size", &e))?;
    let etp = grid.expert().size(Tp);
    ms_spec::check_expert_cut(model, grid.size(Ep), etp)
        .map_err(|e| usage("--expert-model-parallel-size", &e))?;
    Placement::new(model, stages).map_err(|e| usage(placing_flag(stages, model.layers), &e))?;
    let cp = grid.size(Cp);
    ms_spec::check_context(model, tp, cp).map_err(|e| usage("--context-parallel-size", &e))?;
    if cp > 1 {
        let windowed = model.windowed.as_ref().map(|w| w.heads);
        for heads in std::iter::once(model.heads).chain(windowed) {
            context.check(heads / tp, cp, seq_length).map_err(|e| usage("--context-parallel-algo", &e))?;
        }
    }
    if model.moe.is_some() && !tp.is_multiple_of(etp) {
        bail!(Usage(format!(
            "--expert-tensor-parallel-size: expected a divisor of --tensor-model-parallel-size {tp}, found {etp}"
        )));
    }
    let tokens = seq_length / cp * micro;
    let spread = if sequence_parallel {
        Some("--sequence-parallel")
    } else {
        (model.moe.is_some() && etp != tp).then_some("whole experts on tensor-parallel ranks")
    };
    if let Some(what) = spread.filter(|_| !tokens.is_multiple_of(tp)) {
        bail!(Usage(format!(
            "{what}: {tokens} tokens of a micro-batch do not divide by --tensor-model-parallel-size {tp}"
        )));
    }
    Ok(())
}

/// The flag that stands in the way of a placement of layers.
fn placing_flag(stages: &Stages, layers: usize) -> &'static str {
    let Ok(slots) = stages.slots(layers) else { return "--noop-layers" };
    if stages.dual_pipe && (stages.layer_list.is_some() || stages.layers_per_chunk.is_some()) {
        return "--schedules-method";
    }
    if stages.layer_list.is_some() {
        return "--num-layer-list";
    }
    if !slots.len().is_multiple_of(stages.pp.max(1)) {
        return "--pipeline-model-parallel-size";
    }
    if stages.dual_pipe { "--schedules-method" } else { "--num-layers-per-virtual-pipeline-stage" }
}

/// Checks that rows filled up to a multiple of `multiple` tokens can be shared out as rows of the full length can.
///
/// # Errors
/// With the numbers that do not divide.
pub fn check_rows(topology: &Topology, multiple: usize, micro: usize) -> Result<()> {
    let (tp, cp) = (topology.grid.size(ms_core::Axis::Tp), topology.grid.size(ms_core::Axis::Cp));
    let pieces = if cp > 1 { topology.context.pieces(cp) } else { 1 };
    let spread = topology.sequence_parallel || topology.grid.expert().size(ms_core::Axis::Tp) != tp;
    let shares = pieces * if spread { tp } else { 1 };
    if !(multiple * micro).is_multiple_of(shares) || !multiple.is_multiple_of(pieces) {
        bail!(Usage(format!(
            "--pad-to-multiple-of: rows of unequal length need a multiple of {shares} tokens to be shared by tp {tp} and cp \
             {cp}, found {multiple}"
        )));
    }
    Ok(())
}
