//! Flags that need other flags: those without effect because the others are missing are reported.

use crate::resolve::Resolved;
use crate::resolve::options::Options;
use ms_cli::Usage;
use ms_cli::megatron::{Args, Upstream};
use ms_core::{DType, OptimizerSharding};
use ms_dist::ContextParallel;
use ms_spec::GroupScore;
use ms_spec::megatron::ROUTER_KIND;
use ms_trainer::{MegatronFiles, UpdateRule};
use std::collections::BTreeSet;

/// Flags for training experts; flags that describe experts are reported where the model is made.
const OF_EXPERTS: [&str; 4] =
    ["--moe-aux-loss-coeff", "--moe-expert-capacity-factor", "--moe-per-layer-logging", "--moe-z-loss-coeff"];

/// Flags by which shared experts work while tokens are in transit to others.
const BESIDE_EXPERTS: [&str; 4] = [
    "--moe-alltoall-mc2",
    "--moe-alltoall-overlap-comm",
    "--moe-allgather-overlap-comm",
    "--moe-shared-expert-overlap",
];

/// Flags that distribute layers over the stages of a pipeline, and set its schedule.
const OF_STAGES: [&str; 4] = [
    "--no-overlap-p2p-communication",
    "--num-layer-list",
    "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
];

/// Refuses a pair of flags with which upstream fails, although neither has an effect by itself.
///
/// # Errors
/// With both flags.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `mindspeed_llm/core/transformer/dot_product_attention.py`, whose fused attention has no scale by
/// layer.
pub(crate) fn check(args: &Args) -> Result<(), Usage> {
    const SCALED: &str = "--apply-query-key-layer-scaling";
    const FUSED: &str = "--use-flash-attn";
    let given: BTreeSet<&str> = args.written_flags().map(|(_, flag)| flag).collect();
    if [SCALED, FUSED].iter().all(|flag| given.contains(flag)) {
        Err(Usage(format!(
            "{SCALED}: cannot be combined with {FUSED}, with which upstream's attention fails; leave it out, the model is the same"
        )))
    } else {
        Ok(())
    }
}

/// Reports defaults that differ from upstream's.
pub(crate) fn say_defaults(o: &Options) {
    let silent = [(&o.dropout.hidden, "--hidden-dropout 0"), (&o.dropout.attention, "--attention-dropout 0")];
    let silent = silent.into_iter().filter(|(share, _)| !share.is_given() && share.value != 0.0);
    let silent: Vec<&str> = silent.map(|(_, says)| says).collect();
    if !silent.is_empty() {
        let says = silent.join(" ");
        tracing::warn!("dropout is 0 unless given (upstream's default: 0.1); pass {says} to say so");
    }
    let (saves, format) = (o.checkpoint.save.is_some(), &o.checkpoint.format);
    if saves && !format.is_given() {
        tracing::info!("checkpoints are sharded safetensors; upstream's default is --ckpt-format torch_dist");
    }
    let ours = |format: &str| matches!(format, "safetensors" | "torch" | "torch_dist");
    if let Some(format) = format.given().filter(|format| saves && !ours(format)) {
        tracing::warn!(
            "--ckpt-format {format}: checkpoints of ms-train are sharded safetensors, with --ckpt-format torch or \
             torch_dist also Megatron's files; ms-convert makes mcore or Hugging Face folders of them"
        );
    }
}

/// Reports which of the given flags have no effect because a flag that they need is missing.
pub(crate) fn say(o: &Options, r: &Resolved) {
    for (flag, with) in idle(&o.given.flags, o, r) {
        tracing::warn!("{flag} has no effect without {with}");
    }
    let c = &r.config;
    let saves = c.checkpoint.save.is_some() && c.checkpoint.megatron_files != MegatronFiles::Absent;
    let held = c.dtype != DType::F64 && matches!(c.optimizer.update, UpdateRule::AdamW(_));
    if saves && !held && !c.checkpoint.no_save_optim {
        let (why, format) =
            (if c.dtype == DType::F64 { "--fp64" } else { "--optimizer sgd" }, &o.checkpoint.format.value);
        tracing::warn!(
            "--ckpt-format {format}: Megatron's files are written without the state of the optimizer, as they have none of {why}; \
             the sharded checkpoint beside them has it"
        );
    }
}

/// The idle ones of the given flags, and what each of them needs.
fn idle(given: &BTreeSet<&'static str>, o: &Options, r: &Resolved) -> Vec<(&'static str, &'static str)> {
    const FULL: &str = "--recompute-granularity full";
    let context = &r.topology.parallel.context;
    let shared = r.topology.grid.size(ms_core::Axis::Cp) > 1;
    let rings = !matches!(
        context,
        ContextParallel::Ulysses | ContextParallel::Gather | ContextParallel::Adaptive { .. }
    );
    const ADAPTIVE: &str = "--context-parallel-algo adaptive_cp_algo or hybrid_adaptive_cp_algo";
    let adaptive = shared && matches!(context, ContextParallel::Adaptive { .. });
    let both = matches!(
        o.parallelism.context.given().map(String::as_str),
        Some("hybrid_cp_algo" | "hybrid_adaptive_cp_algo")
    );
    let one = |flag: &'static str, there: bool, with: &'static str| {
        (given.contains(flag) && !there).then_some((flag, with))
    };
    let beside = |flag: &'static str, with: &'static str| one(flag, given.contains(with), with);
    let swaps = given.contains("--swap-attention");
    let again =
        given.contains("--recompute-granularity") || given.contains("--enable-recompute-layers-per-pp-rank");
    let buckets = r.config.data_parallel.overlap_grad_reduce || r.config.data_parallel.overlap_param_gather;
    const BUCKETS: &str = "--overlap-grad-reduce or --overlap-param-gather";
    let c = &r.config.model;
    let kind = o.model_flags.word(ROUTER_KIND);
    let groups = c.moe.as_ref().and_then(|moe| moe.router.groups).filter(|_| o.model_flags.describe_all());
    let judged =
        groups.is_some_and(|g| matches!(g.by, GroupScore::Best(_))) && kind != Some("group_limited_greedy");
    let mut found: Vec<_> = [
        one(
            "--cp-window-size",
            shared && rings,
            "a ring: --context-parallel-algo megatron_cp_algo or hybrid_cp_algo",
        ),
        one(
            "--ulysses-degree-in-cp",
            shared && both,
            "--context-parallel-algo hybrid_cp_algo or hybrid_adaptive_cp_algo",
        ),
        one("--adaptive-cp-only-reschedule", adaptive, ADAPTIVE),
        one("--adaptive-cp-without-coarse", adaptive, ADAPTIVE),
        beside("--data-parallel-sharding-strategy", "--use-custom-fsdp"),
        one("--recompute-method", again || swaps, FULL),
        one("--recompute-num-layers", again || swaps, FULL),
        beside("--recompute-activation-function-num-layers", "--recompute-activation-function"),
        beside("--recompute-norm-num-layers", "--recompute-norm"),
        beside("--moe-zero-memory-num-layers", "--moe-zero-memory"),
        one(
            "--topk-softmax-in-fp32",
            o.upstream == Upstream::Head && judged,
            "--upstream head and groups of experts that are judged by scores",
        ),
        one("--neat-pack", o.samples.is_sft(), "--stage sft"),
        beside("--swap-modules", "--swap-attention"),
        beside("--smart-swap-memory", "--smart-swap"),
        one("--ddp-bucket-size", buckets, BUCKETS),
        one(
            "--ddp-pad-buckets-for-high-nccl-busbw",
            r.topology.grid.optimizer() != OptimizerSharding::Replicated,
            "--use-distributed-optimizer",
        ),
        one("--ddp-num-buckets", buckets, BUCKETS),
    ]
    .into_iter()
    .flatten()
    .collect();
    // Gradients of experts' weights overlap with exchanges in any case.
    let works = c.moe.as_ref().is_some_and(|moe| moe.shared.is_some())
        || given.contains("--moe-zero-memory")
        || given.contains("--moe-fb-overlap");
    const EXPERTS: &str = "experts: --num-experts";
    const STAGES: &str = "--pipeline-model-parallel-size above 1";
    let missing =
        if c.moe.is_some() { "an expert that all tokens pass: --n-shared-experts" } else { EXPERTS };
    found.extend(OF_STAGES.iter().filter_map(|flag| one(flag, r.topology.stages.pp > 1, STAGES)));
    found.extend(BESIDE_EXPERTS.iter().filter_map(|flag| one(flag, works, missing)));
    found.extend(OF_EXPERTS.iter().filter_map(|flag| one(flag, c.moe.is_some(), EXPERTS)));
    found
}
