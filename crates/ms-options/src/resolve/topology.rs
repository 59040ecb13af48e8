//! From flags to the grid of ranks, the stages and the schedule.

mod context;

use crate::resolve::stage_layers::{Sizes, StageLayerOptions};
use anyhow::Result;
use ms_cli::megatron::{Given, Upstream};
use ms_cli::{Usage, refuse};
use ms_core::{Dispatcher, Grid, GridRules, GridSizes, OptimizerSharding, RingCache, RingCachePolicy};
use ms_dist::{ContextParallel, ParallelOptions};
use ms_spec::{ModelConfig, Placement, Stages};
use ms_trainer::{PipelineConfig, PipelineOrder, TrainConfig};

options! {
    /// How a run is spread over ranks, as the flags say it.
    pub(crate) struct ParallelismOptions in "Parallelism" {
        pub(crate) tp: usize = "--tensor-model-parallel-size", "tensor-parallel size: number of ranks that share a weight matrix", range = "[1,65536]";
        cp: usize = "--context-parallel-size", "context-parallel size: number of ranks that share a sequence", range = "[1,65536]";
        pp: usize = "--pipeline-model-parallel-size", "pipeline-parallel size: number of stages that share the layers", range = "[1,65536]";
        pub(crate) ep: usize = "--expert-model-parallel-size", "expert-parallel size: number of ranks that share the experts", range = "[1,65536]";
        pub(crate) etp: Given<Option<usize>> = "--expert-tensor-parallel-size", "tensor-parallel size of experts (default: that of dense layers)", range = "[1,65536]";
        pub(crate) stages_first: Given<bool> = "--use-tp-pp-dp-mapping", "order of ranks: pipeline stages before data-parallel ranks", group = "Pipeline";
        pub(crate) extend_ep: Given<bool> = "--moe-tp-extend-ep", "distribute whole experts over tensor-parallel ranks too, instead of splitting them";
        pub(crate) extended: Given<bool> = "--moe-extended-tp", "v2.0.0: split every expert over all tensor- and expert-parallel ranks (needs the dispatcher allgather)", group = "Model families";
        pub(crate) sequence_parallel: bool = "--sequence-parallel", "sequence parallelism: tensor-parallel ranks share the tokens between matrix products";
        pub(crate) distributed_optimizer: bool = "--use-distributed-optimizer", "shard the optimizer state over data-parallel ranks, instead of keeping all of it on every rank";
        instances: usize = "--num-distributed-optimizer-instances", "number of copies of the optimizer state, each sharded over neighbouring ranks", group = "Memory", range = "[1,65536]";
        fsdp: bool = "--use-custom-fsdp", "needs --use-distributed-optimizer; --data-parallel-sharding-strategy decides what is sharded", group = "Memory";
        shared_out: String = "--data-parallel-sharding-strategy", "with --use-custom-fsdp: keep the whole optimizer state on every replica (no_shard) or shard it (optim); optim_grads and optim_grads_params are refused, since gradients and weights are not sharded", group = "Memory";
        pub(crate) context: Given<String> = "--context-parallel-algo", "context-parallel algorithm: megatron_cp_algo (ring), ulysses_cp_algo (all-to-all over heads), hybrid_cp_algo (both), kvallgather_cp_algo (gathered keys and values), mamba_cp_algo (as ulysses_cp_algo); v2.0.0 also adaptive_cp_algo and hybrid_adaptive_cp_algo";
        comm: Given<Vec<String>> = "--cp-comm-type", "Megatron's name for the context-parallel algorithm: p2p (ring), a2a (Ulysses), all_gather, or a2a+p2p, whose sizes are --hierarchical-context-parallel-sizes";
        levels: Vec<String> = "--hierarchical-context-parallel-sizes", "with --cp-comm-type a2a+p2p: number of ranks of the all-to-all (Ulysses) and of the ring", group = "Model families", range = "[1,65536]";
        gathers_heads: bool = "--use-ulysses-allgather-kv", "accepted with ulysses_cp_algo and --group-query-attention, as in upstream; each rank receives the keys and values of its own heads only", group = "Model families";
        pub(crate) window: Given<usize> = "--cp-window-size", "double ring: number of ranks of the inner ring", range = "[1,65536]";
        mask: String = "--attention-mask-type", "context-parallel ring: general gives each rank neighbouring tokens, causal gives it two chunks that balance the causal work; masks follow from documents and windows either way";
        old_mask: Option<String> = "--cp-attention-mask-type", "older spelling of --attention-mask-type";
        pub(crate) ulysses: Given<Option<usize>> = "--ulysses-degree-in-cp", "hybrid_cp_algo: number of ranks of an all-to-all (Ulysses) group", range = "[1,65536]";
        pub(crate) layer_list: Given<Option<String>> = "--num-layer-list", "number of layers of each stage, such as 4,4,3", group = "Pipeline";
        pub(crate) layers_per_chunk: Given<Option<usize>> = "--num-layers-per-virtual-pipeline-stage", "interleaved schedule: number of layers per chunk (virtual stage)", group = "Pipeline", range = "[1,16384]";
        pub(crate) chunks: Given<Option<usize>> = "--num-virtual-stages-per-pipeline-rank", "interleaved schedule: number of chunks (virtual stages) per stage, instead of layers per chunk", group = "Pipeline", range = "[1,16384]";
        pub(crate) order: Given<Option<String>> = "--schedules-method", "pipeline schedule: dualpipev (chunks from both ends) or zero-bubble (weight gradients fill the bubble)", group = "Pipeline";
        pub(crate) overlap_p2p: bool = "--no-overlap-p2p-communication", "stages wait for sends and receives instead of overlapping them with computation (upstream's non-interleaved schedules always do)", group = "Pipeline";
        overlap_p2p_flush: bool = "--overlap-p2p-communication-warmup-flush", "with --upstream head: overlap communication between stages in warm-up and flush too; always so here", group = "Pipeline";
        reschedules_only: bool = "--adaptive-cp-only-reschedule", "adaptive_cp_algo: keep the order of the tokens; by default tokens with the same mask are grouped where that needs fewer blocks of attention", group = "Model families";
        maps_tokens: bool = "--adaptive-cp-without-coarse", "adaptive_cp_algo: group single tokens; by default runs of tokens are grouped, about a thousand per sequence", group = "Model families";
        masks_of_code: bool = "--adaptive-cp-manually-set-mask-list", "not supported in training, as in upstream: with adaptive_cp_algo masks follow from documents and windows";
        ring_cache_policy: Option<String> = "--context-parallel-kv-cache-policy", "keep keys and values (full) or keys (half) of other ranks for the backward pass, instead of exchanging them again";
        cache_interval: usize = "--context-parallel-cache-interval", "with --context-parallel-kv-cache-policy: number of layers without a cache between two layers with one", range = "[0,16384]";
        pub(crate) dispatcher: String = "--moe-token-dispatcher-type", "how tokens reach experts: allgather (ranks gather all tokens); alltoall since core 0.12 and flex (ranks send their own tokens with all columns); alltoall_seq and alltoall of v2.0.0 (ranks send their columns of all tokens). A capacity needs an all-to-all dispatcher";
        pub(crate) group: Given<Option<usize>> = "--microbatch-group-size-per-virtual-pipeline-stage", "interleaved schedule: number of micro-batches that pass a chunk before the next chunk (default: number of stages)", group = "Pipeline", range = "[1,16777216]";
    }
}

impl ParallelismOptions {
    /// Sizes in the place of those given, and of flags that say more of these.
    pub(crate) fn set_sizes(&mut self, sizes: &GridSizes) {
        (self.tp, self.cp, self.pp, self.ep) = (sizes.tp, sizes.cp, sizes.pp, sizes.ep);
        (self.extend_ep.value, self.extended.value, self.etp.value) = (false, false, None);
        (self.window.value, self.ulysses.value) = (1, None);
        (self.layer_list.value, self.layers_per_chunk.value, self.chunks.value) = (None, None, None);
        self.group.value = None;
    }
}

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
    /// How ranks share tokens.
    pub parallel: ParallelOptions,
}

/// How many ranks there are, and what says so.
pub(crate) struct WorldSize {
    pub(crate) ranks: usize,
    pub(crate) said: String,
}

/// What else decides how a run is spread.
pub(crate) struct TopologyInputs<'a> {
    pub(crate) world: &'a WorldSize,
    pub(crate) upstream: Upstream,
    /// Shared experts work while tokens are on their way to the others.
    pub(crate) overlap_experts: bool,
    /// How stages share the layers, in other words than those of [`ParallelismOptions`].
    pub(crate) stage_layers: &'a StageLayerOptions,
    /// `--noop-layers`.
    pub(crate) noop: Option<&'a str>,
    pub(crate) seq_length: usize,
    pub(crate) micro: usize,
}

/// Numbers of a list such as `4,4,3`.
fn numbers(flag: &str, text: &str) -> Result<Vec<usize>> {
    let number = |word: &str| word.trim().parse::<usize>().ok();
    let all: Option<Vec<usize>> = text.split(',').map(number).collect();
    all.ok_or_else(|| {
        Usage(format!("{flag}: expected numbers with commas between them, found {text:?}")).into()
    })
}

/// Resolves the flags that spread a run over ranks.
///
/// # Errors
/// If sizes do not fit together, or the model cannot be cut so.
pub(crate) fn resolve(
    o: &ParallelismOptions,
    inputs: &TopologyInputs<'_>,
    model: &ModelConfig,
) -> Result<Topology> {
    let &TopologyInputs { upstream, seq_length, micro, .. } = inputs;
    let WorldSize { ranks: world, said } = inputs.world;
    let (tp, cp, pp, ep) = (o.tp, o.cp, o.pp, o.ep);
    let rules = match upstream {
        Upstream::V2_0_0 => GridRules::V2,
        Upstream::Head => GridRules::Head,
    };
    let context = context::context(o, cp)?;
    context::gathered_heads(o, cp, &context, model)?;
    let mut sizes = GridSizes {
        tp,
        cp,
        pp,
        ep,
        etp: o.etp.value,
        pp_before_dp: o.stages_first.value,
        ulysses: context.ulysses(cp),
    };
    let etp = sizes.etp.map_or(String::new(), |etp| format!(", --expert-tensor-parallel-size {etp}"));
    let mapping = if o.stages_first.value { ", --use-tp-pp-dp-mapping" } else { "" };
    let refused = |e: ms_core::Error| {
        Usage(format!(
            "{said} with --tensor-model-parallel-size {tp}, --context-parallel-size {cp}, \
                       --pipeline-model-parallel-size {pp}, --expert-model-parallel-size {ep}{etp}{mapping}: {e}"
        ))
    };
    let optimizer = optimizer_sharding(o)?;
    let parallel = |grid: Grid| {
        grid.with_optimizer(optimizer)
            .map_err(|e| Usage(format!("--num-distributed-optimizer-instances: {e}")))
    };
    let listed = parallel(Grid::new(*world, &sizes, rules).map_err(refused)?)?;
    let mut numbers = rules;
    if o.extend_ep.value {
        (sizes.ep, sizes.etp) = (ep * tp, Some(1));
        if sizes.ep > 1 && model.moe.is_none() {
            refuse!("--moe-tp-extend-ep: needs a model with experts (--num-experts)");
        }
    }
    if o.extended.value {
        check_extended(o, upstream)?;
        (sizes.ep, sizes.etp, numbers) = (1, Some(ep * tp), GridRules::Head);
    }
    if o.extend_ep.value || o.extended.value {
        let flag = if o.extended.value { "--moe-extended-tp" } else { "--moe-tp-extend-ep" };
        ms_spec::check_expert_cut(model, sizes.ep, sizes.etp.unwrap_or(tp)).map_err(|e| {
            Usage(format!(
                "{flag} with --tensor-model-parallel-size {tp} and --expert-model-parallel-size {ep}: {e}"
            ))
        })?;
    }
    let grid = parallel(Grid::new(*world, &sizes, numbers).map_err(refused)?)?;
    let stages = stages(o, inputs, model)?;
    check_messages(o, &stages)?;
    let order = order(o, upstream);
    let sequence_parallel = o.sequence_parallel && tp > 1;
    let dispatcher = match (o.dispatcher.as_str(), upstream) {
        _ if model.moe.is_none() => Dispatcher::default(),
        ("alltoall_seq", _) | ("alltoall", Upstream::V2_0_0) => Dispatcher::AllToAllSeq,
        ("alltoall" | "flex", _) => Dispatcher::AllToAll,
        _ => Dispatcher::AllGather,
    };
    check(model, &grid, &stages, &context, (sequence_parallel, dispatcher), seq_length, micro)?;
    let (ring_cache, overlap_experts) = (ring_cache(o, &context, model)?, inputs.overlap_experts);
    let parallel = ParallelOptions { sequence_parallel, context, ring_cache, dispatcher, overlap_experts };
    Ok(Topology { grid, listed, stages, order, parallel })
}

/// Checks what upstream refuses of what passes borders of stages.
///
/// # Source
/// Megatron-LM `core_r0.8.0` and `core_v0.12.1`, `megatron/training/arguments.py`, `validate_args`; `core_v0.12.1`,
/// `megatron/core/model_parallel_config.py`. Of two stages MindSpeed-LLM keeps layers per chunk from that check (v2.0.0,
/// `mindspeed_llm/training/arguments.py`, `_store_variables`).
fn check_messages(o: &ParallelismOptions, stages: &Stages) -> Result<()> {
    if !o.overlap_p2p && stages.interleaved() && o.pp < 3 && o.layers_per_chunk.value.is_none() {
        refuse!(
            "--no-overlap-p2p-communication: expected more than two stages where they have several chunks, as in upstream, or \
             --num-layers-per-virtual-pipeline-stage, found --pipeline-model-parallel-size {}",
            o.pp
        );
    }
    if o.overlap_p2p_flush && !(o.overlap_p2p && stages.interleaved()) {
        refuse!(
            "--overlap-p2p-communication-warmup-flush: expected stages of several chunks, and not --no-overlap-p2p-communication, as \
             upstream"
        );
    }
    Ok(())
}

/// Checks what goes with experts that all ranks of a group have a part of.
///
/// # Errors
/// As upstream, and beside whole experts on ranks.
///
/// # Source
/// MindSpeed `2.0.0_core_r0.8.0`, `mindspeed/core/transformer/transformer_config.py`.
fn check_extended(o: &ParallelismOptions, upstream: Upstream) -> Result<()> {
    let wrong = |what: String| Err(Usage(format!("--moe-extended-tp: {what}")).into());
    match (o.dispatcher.as_str(), upstream) {
        (_, Upstream::Head) => wrong(
            "Megatron-core 0.12 says it as --expert-tensor-parallel-size, and --expert-model-parallel-size 1"
                .into(),
        ),
        ("allgather", _) if o.extend_ep.value => wrong("cannot be combined with --moe-tp-extend-ep".into()),
        ("allgather", _) => Ok(()),
        (other, _) => {
            wrong(format!("expected --moe-token-dispatcher-type allgather, as in upstream, found {other}"))
        }
    }
}

/// Who keeps which part of the optimizer's state.
///
/// # Errors
/// As upstream: for instances of what is not distributed, and Megatron's own FSDP of what is not. For gradients or weights that
/// replicas are to share out.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/core/distributed/distributed_data_parallel.py`; `megatron/training/arguments.py`,
/// `validate_args`; `megatron/core/distributed/custom_fsdp/param_and_grad_buffer.py`: without shards every replica keeps all.
fn optimizer_sharding(o: &ParallelismOptions) -> Result<OptimizerSharding> {
    const STRATEGY: &str = "--data-parallel-sharding-strategy";
    let strategy = o.shared_out.as_str();
    if !matches!(strategy, "no_shard" | "optim") {
        refuse!(
            "{STRATEGY} {strategy}: gradients and weights are not sharded in this version; expected no_shard or optim, which shards \
                 the state of the optimizer"
        );
    }
    if o.fsdp && !o.distributed_optimizer {
        refuse!("--use-custom-fsdp: needs --use-distributed-optimizer, as in upstream");
    }
    let whole = o.fsdp && strategy == "no_shard";
    if whole && o.instances > 1 {
        refuse!("--num-distributed-optimizer-instances: expected {STRATEGY} optim, found no_shard");
    }
    match (o.distributed_optimizer && !whole, o.instances) {
        (true, instances) => Ok(OptimizerSharding::Instances(instances)),
        (false, 1) => Ok(OptimizerSharding::Replicated),
        (false, n) => refuse!(
            "--num-distributed-optimizer-instances: needs --use-distributed-optimizer, found {n} alone"
        ),
    }
}

/// Checks what only a run needs.
///
/// # Errors
/// If masks are to come from code that is not there.
pub(crate) fn check_run(o: &ParallelismOptions, topology: &Topology) -> Result<()> {
    if o.masks_of_code && o.cp > 1 && matches!(topology.parallel.context, ContextParallel::Adaptive { .. }) {
        refuse!(
            "--adaptive-cp-manually-set-mask-list: not supported in training, as in upstream: masks follow from documents and \
             windows\nhint: leave it out"
        );
    }
    Ok(())
}

impl Topology {
    /// Ranks that exchange heads for tokens, and those that pass keys and values around.
    pub(crate) fn ulysses_and_ring(&self) -> (usize, usize) {
        let cp = self.grid.size(ms_core::Axis::Cp);
        let ulysses = self.parallel.context.ulysses(cp).max(1);
        (ulysses, cp / ulysses)
    }
}

/// What layers keep of the keys and values of other ranks.
///
/// # Errors
/// As upstream: without other ranks, or with an interval that is as long as the model.
///
/// # Source
/// MindSpeed, `features_manager/context_parallel/context_parallel_kv_cache.py`.
fn ring_cache(o: &ParallelismOptions, context: &ContextParallel, model: &ModelConfig) -> Result<RingCache> {
    const POLICY: &str = "--context-parallel-kv-cache-policy";
    const INTERVAL: &str = "--context-parallel-cache-interval";
    let interval = o.cache_interval;
    let Some(policy) = o.ring_cache_policy.as_deref() else {
        if interval != 0 {
            refuse!("{INTERVAL}: needs {POLICY}, as in upstream");
        }
        return Ok(RingCache::default());
    };
    if o.cp == 1 {
        refuse!("{POLICY}: expected --context-parallel-size above 1, found 1");
    }
    if interval >= model.layers {
        refuse!("{INTERVAL}: expected less than the {} layers, found {interval}", model.layers);
    }
    match context {
        // Rows that are key and value of all heads are gathered nevertheless.
        ContextParallel::Ulysses if model.keys_by_head() => {
            tracing::warn!("{POLICY} has no effect with ulysses_cp_algo: what is exchanged once is kept");
            return Ok(RingCache::default());
        }
        ContextParallel::Adaptive { .. } => {
            tracing::warn!("{POLICY} has no effect with adaptive context parallelism, as in upstream");
            return Ok(RingCache::default());
        }
        ContextParallel::Ring { .. }
        | ContextParallel::Hybrid { .. }
        | ContextParallel::InOrder { .. }
        | ContextParallel::Gather
        | ContextParallel::Ulysses => {}
    }
    let kept = if policy == "half" { RingCachePolicy::Keys } else { RingCachePolicy::KeysAndValues };
    Ok(RingCache { policy: kept, interval })
}

/// Most ranks of a plan.
pub const MOST_PLANNED: usize = 65536;

/// The fewest ranks that the given sizes allow.
///
/// # Errors
/// If a size is not a number, or the ranks are too many.
pub(crate) fn fewest_ranks(o: &ParallelismOptions, upstream: Upstream) -> Result<usize> {
    let (tp, cp, pp, ep, etp) = (o.tp, o.cp, o.pp, o.ep, o.etp.value);
    // In a stage: whole rows of dense ranks, and of ranks that share experts.
    let dense = tp.saturating_mul(cp);
    let experts = match (upstream, o.extend_ep.value) {
        (Upstream::Head, false) => ep.saturating_mul(etp.unwrap_or(tp)),
        (Upstream::V2_0_0, false) | (_, true) => ep.saturating_mul(tp),
    };
    let (mut a, mut b) = (dense.max(1), experts.max(1));
    while b > 0 {
        (a, b) = (b, a % b);
    }
    let ranks = (dense / a).saturating_mul(experts).saturating_mul(pp).max(1);
    if ranks > MOST_PLANNED {
        refuse!("--nproc-per-node: expected at most {MOST_PLANNED}; these sizes need {ranks} ranks");
    }
    Ok(ranks)
}

fn stages(o: &ParallelismOptions, inputs: &TopologyInputs<'_>, model: &ModelConfig) -> Result<Stages> {
    let pp = o.pp;
    let mut noop = inputs.noop.map(|t| numbers("--noop-layers", t)).transpose()?.unwrap_or_default();
    // Upstream treats them as a set.
    noop.sort_unstable();
    noop.dedup();
    if o.layer_list.value.is_some() && !noop.is_empty() {
        tracing::warn!("--num-layer-list has no effect beside --noop-layers, as in upstream");
    }
    let layer_list = o
        .layer_list
        .value
        .as_deref()
        .filter(|_| noop.is_empty() && pp > 1)
        .map(|t| numbers("--num-layer-list", t))
        .transpose()?;
    let slots = model.layers + noop.len();
    let dual_pipe = o.order.value.as_deref() == Some("dualpipev");
    let other = match (&layer_list, dual_pipe) {
        (Some(list), _) if list.len() != pp => {
            refuse!("--num-layer-list: expected a number for each of {pp} stages, found {}", list.len())
        }
        (Some(_), _) => Some("--num-layer-list"),
        (None, true) => Some("--schedules-method dualpipev"),
        (None, false) => None,
    };
    let sizes = Sizes {
        pp,
        slots,
        per_chunk: o.layers_per_chunk.value.filter(|_| pp > 1),
        chunks: o.chunks.value.filter(|&n| n > 1 && pp > 1),
        noop: !noop.is_empty(),
        other,
    };
    if let Some(list) = inputs.stage_layers.list(&sizes, model)? {
        return Ok(Stages { pp, layers_per_chunk: None, layer_list: Some(list), noop, dual_pipe });
    }
    let mut layers_per_chunk = o.layers_per_chunk.value.filter(|&n| pp > 1 && n * pp != slots);
    if let Some(chunks) = o.chunks.value.filter(|&n| n > 1 && pp > 1) {
        if !slots.is_multiple_of(chunks * pp) {
            refuse!(
                "--num-virtual-stages-per-pipeline-rank {chunks}: {slots} layers are not divisible by {chunks} chunks of \
                 each of {pp} stages"
            );
        }
        layers_per_chunk = Some(slots / (chunks * pp));
    }
    Ok(Stages { pp, layers_per_chunk, layer_list, noop, dual_pipe })
}

fn order(o: &ParallelismOptions, upstream: Upstream) -> PipelineOrder {
    match o.order.value.as_deref() {
        Some("dualpipev") => PipelineOrder::DualPipeV,
        Some("zero-bubble") => PipelineOrder::ZeroBubble { group: o.group.value },
        _ => PipelineOrder::Plain { group: o.group.value, forwards_first: upstream == Upstream::V2_0_0 },
    }
}

/// Checks that the pipeline's order of work exists for every number of micro-batches that the run will have.
///
/// # Errors
/// With the numbers that do not fit.
pub(crate) fn check_schedule(config: &TrainConfig, dp: usize) -> Result<()> {
    let placement = Placement::new(&config.model, &config.pipeline.stages)?;
    let global = config.batch.global;
    let (first, step) = config.batch.rampup.map_or((global, 1), |r| (r.0, r.1));
    for global in (first..=global).step_by(step.max(1)) {
        let refused = |e: &dyn std::fmt::Display| Usage(format!("--global-batch-size {global}: {e}"));
        let micro_batches = global / (config.batch.micro * dp);
        let PipelineConfig { order, overlap_passes, .. } = config.pipeline;
        let schedule =
            order.schedule(&placement.order(), micro_batches, overlap_passes).map_err(|e| refused(&e))?;
        schedule.simulate().map_err(|e| refused(&e))?;
    }
    Ok(())
}

/// Layers of each of `pp` stages where they do not divide: the first stages have one more.
pub(crate) fn nearly_even(layers: usize, pp: usize) -> Vec<usize> {
    (0..pp).map(|stage| layers / pp + usize::from(stage < layers % pp)).collect()
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
    (sequence_parallel, dispatcher): (bool, Dispatcher),
    seq_length: usize,
    micro: usize,
) -> Result<()> {
    use ms_core::Axis::{Cp, Ep, Tp};
    let usage = |flag: &str, e: &dyn std::fmt::Display| Usage(format!("{flag}: {e}"));
    let tp = grid.size(Tp);
    ms_spec::check_cut(model, tp).map_err(|e| usage("--tensor-model-parallel-size", &e))?;
    let etp = grid.expert().size(Tp);
    if model.moe.is_none() && grid.size(Ep) > 1 {
        let found = grid.size(Ep);
        refuse!(
            "--expert-model-parallel-size: expected 1 for a model without experts (--num-experts), found {found}"
        );
    }
    ms_spec::check_expert_cut(model, grid.size(Ep), etp).map_err(|e| {
        let flag = match e {
            ms_spec::Error::Cut { axis: Tp, .. } if etp == tp => "--tensor-model-parallel-size",
            ms_spec::Error::Cut { axis: Tp, .. } => "--expert-tensor-parallel-size",
            _ => "--expert-model-parallel-size",
        };
        usage(flag, &e)
    })?;
    Placement::new(model, stages).map_err(|e| {
        let plain = Stages { pp: stages.pp, ..Stages::default() };
        if *stages == plain && stages.pp < model.layers && !model.layers.is_multiple_of(stages.pp) {
            let list: Vec<String> =
                nearly_even(model.layers, stages.pp).iter().map(ToString::to_string).collect();
            let e = format!("{e}\nhint: --num-layer-list {} splits them unevenly", list.join(","));
            usage(placing_flag(stages, model.layers), &e)
        } else {
            usage(placing_flag(stages, model.layers), &e)
        }
    })?;
    let cp = grid.size(Cp);
    let whole = context.sees_whole_documents();
    for (flag, whole) in [("--context-parallel-size", true), ("--context-parallel-algo", whole)] {
        ms_spec::check_context(model, tp, cp, whole).map_err(|e| usage(flag, &e))?;
    }
    if cp > 1 {
        let windowed = model.windowed.as_ref().map(|w| w.heads);
        for heads in std::iter::once(model.heads).chain(windowed) {
            context.check(heads / tp, cp, seq_length).map_err(|e| usage("--context-parallel-algo", &e))?;
        }
    }
    if model.moe.is_some() && dispatcher == Dispatcher::AllToAllSeq && !tp.is_multiple_of(etp) {
        refuse!(
            "--expert-tensor-parallel-size: expected a divisor of --tensor-model-parallel-size {tp}, whose ranks have the same \
             tokens to exchange for columns, found {etp}; allgather and Megatron-core 0.12's alltoall exchange whole rows"
        );
    }
    let tokens = seq_length / cp * micro;
    let spread = if sequence_parallel {
        Some("--sequence-parallel")
    } else if model.moe.is_some() && etp != tp {
        Some("experts cut otherwise than dense layers")
    } else {
        (dispatcher == Dispatcher::AllToAll).then_some("--moe-token-dispatcher-type alltoall")
    };
    if dispatcher == Dispatcher::AllToAllSeq && !model.hidden.is_multiple_of(etp) {
        refuse!(
            "--moe-token-dispatcher-type: {} columns are not divisible by the {etp} ranks that share an expert; allgather and \
             Megatron-core 0.12's alltoall (--upstream head) exchange whole rows",
            model.hidden
        );
    }
    if let Some(what) = spread.filter(|_| !tokens.is_multiple_of(tp)) {
        refuse!(
            "{what}: {tokens} tokens of a micro-batch are not divisible by --tensor-model-parallel-size {tp}"
        );
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
pub(crate) fn check_rows(topology: &Topology, multiple: usize, micro: usize) -> Result<()> {
    let (tp, cp) = (topology.grid.size(ms_core::Axis::Tp), topology.grid.size(ms_core::Axis::Cp));
    let pieces = if cp > 1 { topology.parallel.context.pieces(cp) } else { 1 };
    let spread = topology.parallel.sequence_parallel
        || topology.parallel.dispatcher == Dispatcher::AllToAll
        || topology.grid.expert().size(ms_core::Axis::Tp) != tp;
    let shares = pieces * if spread { tp } else { 1 };
    if !(multiple * micro).is_multiple_of(shares) || !multiple.is_multiple_of(pieces) {
        refuse!(
            "--pad-to-multiple-of: rows of unequal length need a multiple of {shares} tokens to be shared by tp {tp} and cp \
             {cp}, found {multiple}"
        );
    }
    Ok(())
}
