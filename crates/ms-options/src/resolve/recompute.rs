//! Activation memory: the flags of recomputation and of swapped attention.

pub(crate) mod passes;

use crate::resolve::topology::Topology;
use anyhow::Result;
use ms_cli::megatron::{Given, Upstream};
use ms_cli::refuse;
use ms_core::{Axis, Dispatcher};
use ms_nn::{Recompute, SavePolicy, Swapped};
use ms_spec::{ModelConfig, Stages};
use ms_trainer::RecomputeTiming;

options! {
    /// What is formed again, and what goes to a file.
    pub(crate) struct RecomputeOptions in "Memory" {
        granularity: Option<String> = "--recompute-granularity", "recompute whole layers (full) or parts of them (selective, see --recompute-modules)";
        method: Option<String> = "--recompute-method", "which layers are recomputed: groups of --recompute-num-layers (uniform) or the first --recompute-num-layers of a chunk (block)";
        layers: Option<usize> = "--recompute-num-layers", "number of layers to recompute, as --recompute-method says", range = "[1,16384]";
        of_stage: bool = "--enable-recompute-layers-per-pp-rank", "with --recompute-method block: --recompute-num-layers counts the layers of a stage, not of each of its chunks";
        activations: bool = "--recompute-activations", "alias of --recompute-granularity selective";
        modules: Given<Vec<String>> = "--recompute-modules", "with --recompute-granularity selective: core_attn (the default), layernorm, moe_act, mla_up_proj (as --recompute-mla-up-proj), mlp, moe";
        moe_layer: bool = "--moe-layer-recompute", "recompute experts; at head as --recompute-granularity selective --recompute-modules moe";
        activation_function: bool = "--recompute-activation-function", "recompute the outputs of activation functions";
        activation_function_layers: Option<usize> = "--recompute-activation-function-num-layers", "with --recompute-activation-function: number of layers, counted after the fully recomputed ones", range = "[0,16384]";
        norm: bool = "--recompute-norm", "recompute the outputs of the norms before attention and feed-forward";
        norm_layers: Option<usize> = "--recompute-norm-num-layers", "with --recompute-norm: number of layers, counted after the fully recomputed ones", range = "[0,16384]";
        operands: bool = "--recompute-mla-up-proj", "latent attention: recompute queries, keys and values from the latents";
        attention: bool = "--mla-zero-memory", "recompute latent attention except its output projection";
        swap_heads: bool = "--mla-swap-core-attn-out", "offload the attention outputs of latent attention to a file";
        inputs_shared: bool = "--distribute-saved-activations", "with --recompute-granularity full: shard the saved layer inputs over tensor-parallel ranks";
        swap_inputs: bool = "--swap-layer-input", "with --recompute-granularity full: offload the inputs of recomputed layers to a file";
        predictor_layers: bool = "--recompute-mtp-layer", "recompute the layers of MTP modules";
        predictor_norms: bool = "--recompute-mtp-norm", "recompute the outputs of the norms before the layers of MTP modules";
        in_advance: bool = "--recompute-in-advance", "recompute layers while their gradient is being received, in chunks of one layer; the model's last layer is not recomputed";
        in_bubble: bool = "--recompute-in-bubble", "recompute the forward passes beyond the pipeline's number of chunks while their gradient is being received";
        swap_attention: bool = "--swap-attention", "offload what attention and the norm before it (or --swap-modules) keep for the backward pass to a file; --recompute-num-layers then counts layers whose feed-forward is recomputed";
        swap_modules: Given<Option<String>> = "--swap-modules", "with --swap-attention: comma-separated parts of layers to offload: input_layernorm, self_attention (or of it linear_qkv, core_attention, linear_proj), pre_mlp_layernorm, mlp (or of it linear_fc1, linear_fc2, router, experts, shared_experts), post_attn_norm, post_mlp_layernorm; a name counts wherever it occurs in the text";
        pub(crate) smart: bool = "--smart-swap", "choose automatically what to offload to a file so that a rank fits --smart-swap-memory: nothing, attention, whole layers, or the optimizer state as well";
        pub(crate) smart_memory: Option<String> = "--smart-swap-memory", "with --smart-swap: memory per rank, such as 64GiB (default: this machine's memory in equal parts for its ranks)", own = own("smart_swap_memory");
    }
}

options! {
    /// What layers of experts keep less of.
    pub(crate) struct ExpertMemoryOptions in "Model families" {
        level: String = "--moe-zero-memory", "what experts keep for the backward pass: level0 recomputes their inputs (tokens are sent again) and activations, and offloads their outputs to a file; level1 also recomputes the inputs of activation functions. Needs --moe-alltoall-overlap-comm or --moe-fb-overlap";
        layers: Option<usize> = "--moe-zero-memory-num-layers", "number of first layers of a stage with --moe-zero-memory level1, the others have level0 (0: level1 in all)", range = "[0,16384]";
        pub(crate) overlapped: bool = "--moe-alltoall-overlap-comm", "compute shared experts while tokens are sent to the routed experts";
        overlapped_passes: bool = "--moe-fb-overlap", "overlap forward and backward passes of different micro-batches: one computes while the other's tokens are exchanged; with one stage, several chunks per stage, or dualpipev";
        outputs_away: bool = "--moe-unperm2-mem-optim-swap", "offload the outputs of experts to a file until the backward pass (part of what --moe-zero-memory does); needs --moe-fb-overlap";
        overlapped_gathering: bool = "--moe-allgather-overlap-comm", "compute shared experts while tokens are gathered for the routed experts";
        overlapped_shared: bool = "--moe-shared-expert-overlap", "compute shared experts while tokens are sent to the routed experts, as --moe-alltoall-overlap-comm";
        overlapped_fused: bool = "--moe-alltoall-mc2", "as --moe-shared-expert-overlap, which upstream's fused all-to-all kernel implies";
    }
}

impl ExpertMemoryOptions {
    /// Whether shared experts work while tokens are on their way.
    pub(crate) fn overlaps(&self) -> bool {
        self.overlapped
            || self.overlapped_passes
            || self.overlapped_gathering
            || self.overlapped_shared
            || self.overlapped_fused
    }

    /// In how many layers of a stage what goes into activation functions is formed again.
    fn inner(&self, layers: usize, stages: &Stages) -> Result<usize> {
        const FLAG: &str = "--moe-zero-memory-num-layers";
        let of_stage = layers / stages.pp.max(1);
        match self.layers {
            Some(_) if self.level == "disable" => {
                refuse!("{FLAG}: needs --moe-zero-memory, as in upstream")
            }
            Some(n) if n > of_stage => {
                refuse!("{FLAG}: expected at most the {of_stage} layers of a stage, found {n}")
            }
            Some(n) if n > 0 && self.level == "level1" => Ok(n),
            _ => Ok(if self.level == "level1" { usize::MAX } else { 0 }),
        }
    }

    /// What upstream refuses beside the fused kernel of exchange and product.
    ///
    /// # Source
    /// MindSpeed, `features_manager/moe/moe_alltoall_mc2.py`.
    fn check_fused(&self, dispatcher: Dispatcher, tp: usize, etp: usize) -> Result<()> {
        const FLAG: &str = "--moe-alltoall-mc2";
        if !self.overlapped_fused {
            return Ok(());
        }
        for (given, other) in [
            (self.overlapped, "--moe-alltoall-overlap-comm"),
            (self.overlapped_gathering, "--moe-allgather-overlap-comm"),
            (self.overlapped_passes, "--moe-fb-overlap"),
        ] {
            if given {
                refuse!("{FLAG}: cannot be combined with {other}, as in upstream");
            }
        }
        let (flag, found) = match dispatcher {
            Dispatcher::AllGather => refuse!(
                "{FLAG}: expected --moe-token-dispatcher-type alltoall or alltoall_seq, found allgather"
            ),
            Dispatcher::AllToAllSeq => ("--tensor-model-parallel-size", tp),
            Dispatcher::AllToAll => ("--expert-tensor-parallel-size", etp),
        };
        if found != 1 {
            refuse!("{FLAG}: expected {flag} 1, as in upstream, found {found}");
        }
        Ok(())
    }

    /// What upstream refuses.
    ///
    /// # Source
    /// MindSpeed, `features_manager/moe/moe_zero_memory.py`, `moe_alltoall_overlap.py` and `moe_allgather_overlap.py`.
    fn check(&self, full: Recompute, dispatcher: Dispatcher, upstream: Upstream) -> Result<()> {
        let gathers = dispatcher == Dispatcher::AllGather;
        // Head's passes beside each other take one dispatcher alone, which is checked with them.
        let passes = self.overlapped_passes && upstream == Upstream::V2_0_0;
        if (self.overlapped || passes) && gathers {
            let flag = if self.overlapped { "--moe-alltoall-overlap-comm" } else { "--moe-fb-overlap" };
            refuse!("{flag}: expected --moe-token-dispatcher-type alltoall or alltoall_seq, found allgather");
        }
        if self.overlapped_gathering && !gathers {
            refuse!(
                "--moe-allgather-overlap-comm: expected --moe-token-dispatcher-type allgather, found another"
            );
        }
        if self.level == "disable" {
            return Ok(());
        }
        if !self.overlapped && !self.overlapped_passes {
            refuse!(
                "--moe-zero-memory: needs --moe-alltoall-overlap-comm or --moe-fb-overlap, as in upstream"
            );
        }
        if full != Recompute::None {
            refuse!(
                "--moe-zero-memory: cannot be combined with --recompute-granularity full, under which layers keep only their input"
            );
        }
        Ok(())
    }
}

impl RecomputeOptions {
    /// Recomputes every layer by itself, whatever was given.
    pub(crate) fn set_uniform(&mut self) {
        self.granularity = Some("full".to_owned());
        (self.method, self.layers) = (Some("uniform".to_owned()), Some(1));
    }

    /// Recomputes no whole layer.
    pub(crate) fn clear(&mut self) {
        (self.granularity, self.method, self.layers) = (None, None, None);
    }
}

/// Resolves them for `model` on `stages`.
///
/// # Errors
/// For choices that exclude each other, as upstream refuses them.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `mindspeed_llm/training/arguments.py`, `validate_recompute_args`; MindSpeed,
/// `features_manager/pipeline_parallel/ripipe_schedules_feature.py`; Megatron-LM `core_r0.8.0` and `core_v0.12.1`,
/// `megatron/core/transformer/transformer_config.py`.
pub(crate) fn resolve(
    o: &RecomputeOptions,
    of_experts: &ExpertMemoryOptions,
    (model, topology): (&ModelConfig, &Topology),
    upstream: Upstream,
) -> Result<(Recompute, SavePolicy, RecomputeTiming)> {
    let (stages, dispatcher) = (&topology.stages, topology.parallel.dispatcher);
    // Upstream counts empty slots among the layers.
    let layers = stages.slots(model.layers).map_or(model.layers, |slots| slots.len());
    parts_that_are_there(o, model)?;
    let swapped = swapped(o, model, upstream);
    let modules = modules(o, model, upstream)?;
    let method = o.method.as_deref();
    let selective = o.granularity.as_deref() == Some("selective") || o.activations;
    let count = o.layers;
    if selective && count.is_some() {
        refuse!(
            "--recompute-num-layers: cannot be combined with --recompute-granularity selective, which is of all layers"
        );
    }
    let save_policy = SavePolicy {
        recompute_activations: partly(
            o,
            "--recompute-activation-function",
            (o.activation_function, o.activation_function_layers),
            layers,
            selective,
        )?,
        recompute_norms: partly(o, "--recompute-norm", (o.norm, o.norm_layers), layers, selective)?
            .max(modules.recompute_norms),
        inputs_shared: o.inputs_shared,
        swap_inputs: o.swap_inputs,
        recompute_predictor_layers: o.predictor_layers,
        recompute_predictor_norms: o.predictor_norms,
        swapped,
        recompute_networks: if o.swap_attention { count.unwrap_or(0) } else { 0 },
        recompute_experts: of_experts.level != "disable",
        swap_expert_outputs: of_experts.outputs_away,
        recompute_expert_inner: of_experts.inner(model.layers, stages)?,
        of_stage: o.of_stage,
        spare_last: o.in_advance,
        ..modules
    };
    if o.swap_attention && method == Some("uniform") {
        tracing::warn!(
            "--recompute-method uniform has no effect with --swap-attention: --recompute-num-layers counts the layers whose feed-forward is recomputed"
        );
    }
    let recompute_timing = recompute_timing(o, method, count, stages)?;
    // In swapped layers only the MLPs are recomputed, and in the bubble whole passes are.
    let whole = o.granularity.as_deref() == Some("full")
        && !o.swap_attention
        && recompute_timing != RecomputeTiming::InBubble;
    let full = match (whole, method) {
        (false, _) => Recompute::None,
        (true, Some("block")) if save_policy.of_stage => Recompute::BlockOfStage(count.unwrap_or(1)),
        (true, Some("block")) => Recompute::Block(count.unwrap_or(1)),
        (true, Some("uniform")) => Recompute::Uniform(count.unwrap_or(1)),
        (true, _) => {
            refuse!("--recompute-granularity full needs --recompute-method block or uniform")
        }
    };
    inputs(o, full, topology)?;
    of_experts.check(full, dispatcher, upstream)?;
    if model.moe.is_some() {
        let (tp, etp) = (topology.grid.size(Axis::Tp), topology.grid.expert().size(Axis::Tp));
        of_experts.check_fused(dispatcher, tp, etp)?;
    }
    let counted = matches!(full, Recompute::BlockOfStage(_))
        || save_policy.recompute_networks > 0
        || [save_policy.recompute_activations, save_policy.recompute_norms]
            .iter()
            .any(|&n| n > 0 && n < usize::MAX);
    if save_policy.of_stage && !counted {
        tracing::warn!(
            "--enable-recompute-layers-per-pp-rank has no effect without --recompute-method block or a number of layers"
        );
    }
    if o.in_advance && full == Recompute::None && !counted && !selective {
        tracing::warn!("--recompute-in-advance has no effect without --recompute-granularity full");
    }
    Ok((full, save_policy, recompute_timing))
}

/// Checks what keeps less of the inputs of layers that run again.
///
/// # Errors
/// As upstream, where there are no such layers or ranks.
fn inputs(o: &RecomputeOptions, full: Recompute, topology: &Topology) -> Result<()> {
    const FLAG: &str = "--distribute-saved-activations";
    if o.inputs_shared && topology.grid.size(Axis::Tp) == 1 {
        refuse!("{FLAG}: expected --tensor-model-parallel-size above 1, found 1");
    }
    if o.inputs_shared && topology.parallel.sequence_parallel {
        refuse!(
            "{FLAG}: cannot be combined with --sequence-parallel, under which ranks have a part each anyway"
        );
    }
    if o.inputs_shared && full == Recompute::None {
        refuse!("{FLAG}: needs --recompute-granularity full, as in upstream");
    }
    if o.swap_inputs && full == Recompute::None {
        tracing::warn!("--swap-layer-input has no effect without --recompute-granularity full");
    }
    Ok(())
}

/// Names that upstream's layers have, of what keeps nothing, or had in classes that came before.
const WITHOUT_VALUES: [&str; 4] =
    ["pre_cross_attn_layernorm", "cross_attention", "input_norm", "post_attention_norm"];

/// The parts that `--swap-modules` names, or those that upstream swaps where nothing is said. Names that no layer has are passed
/// over, as upstream has it.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `mindspeed_llm/training/arguments.py`, `_validate_recompute_args`; MindSpeed (2026),
/// `mindspeed/features_manager/memory/swap_attention.py`.
fn swapped(o: &RecomputeOptions, model: &ModelConfig, upstream: Upstream) -> Swapped {
    const FLAG: &str = "--swap-modules";
    let Some(text) = o.swap_modules.given().and_then(|text| text.as_deref()) else {
        let by_default = match upstream {
            Upstream::V2_0_0 => "input_layernorm,self_attention,pre_cross_attn_layernorm",
            Upstream::Head => "input_norm,self_attention,post_attention_norm",
        };
        return if o.swap_attention { Swapped::named_in(by_default) } else { Swapped::NONE };
    };
    if !o.swap_attention {
        return Swapped::NONE;
    }
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    for word in words.iter().filter(|word| !WITHOUT_VALUES.contains(word)) {
        if Swapped::named_in(word) == Swapped::NONE {
            tracing::warn!("{FLAG}: {word:?} names no part of a layer and is passed over, as in upstream");
        }
    }
    for (name, _) in Swapped::NAMES.iter().filter(|(name, _)| !words.contains(name)) {
        if let Some(word) = words.iter().find(|word| word.contains(name)) {
            tracing::warn!("{FLAG}: {name} stands in {word}, so it is swapped, too, as in upstream");
        }
    }
    let swapped = Swapped::named_in(text);
    let moe = model.moe.as_ref();
    for (part, name, there) in [
        (Swapped::ROUTER, "router", moe.is_some()),
        (Swapped::EXPERTS, "experts", moe.is_some()),
        (Swapped::SHARED_EXPERTS, "shared_experts", moe.is_some_and(|moe| moe.shared.is_some())),
        (Swapped::POST_MIXER_NORM, "post_attn_norm", model.block.norms_outputs()),
        (Swapped::POST_NETWORK_NORM, "post_mlp_layernorm", model.block.norms_outputs()),
        (Swapped::INPUT_NORM, "input_layernorm", model.block.norms_inputs()),
        (Swapped::NETWORK_NORM, "pre_mlp_layernorm", model.block.norms_inputs()),
    ] {
        if swapped.has(part) && !there {
            tracing::warn!("{FLAG}: no layer of the model has the part {name}; it is passed over");
        }
    }
    if swapped == Swapped::NONE {
        tracing::warn!("--swap-attention swaps nothing: {FLAG} {text} names no part of a layer");
    }
    swapped
}

/// Flags of latent attention, which the model may lack.
const UP: &str = "--recompute-mla-up-proj";
const ZERO_MEMORY: &str = "--mla-zero-memory";
const SWAP_HEADS: &str = "--mla-swap-core-attn-out";

/// Refuses what upstream refuses of latent attention, and says which flags are of parts that the model does not have.
///
/// # Source
/// MindSpeed-LLM (2026), `features_manager/transformer/multi_latent_attention/mla_feature.py`. What is formed again without
/// being split over exchanges needs one tensor-parallel rank there, and swapped outputs `dualpipev`; here neither does.
fn parts_that_are_there(o: &RecomputeOptions, model: &ModelConfig) -> Result<()> {
    if o.operands && o.attention {
        refuse!(
            "--recompute-mla-up-proj: cannot be combined with --mla-zero-memory, which recomputes all of it"
        );
    }
    let of_modules = || (model.mtp == 0).then(|| "prediction modules".to_owned());
    for (given, flag, lacks) in [
        (o.operands, UP, model.lacks_for(UP)),
        (o.attention, ZERO_MEMORY, model.lacks_for(ZERO_MEMORY)),
        (o.swap_heads, SWAP_HEADS, model.lacks_for(SWAP_HEADS)),
        (o.predictor_layers, "--recompute-mtp-layer", of_modules()),
        (o.predictor_norms, "--recompute-mtp-norm", of_modules()),
    ] {
        if let Some(part) = lacks.filter(|_| given) {
            tracing::warn!("{flag} has no effect: the model has no {part}");
        }
    }
    Ok(())
}

/// What runs again in every layer: `--recompute-granularity selective`, which `--recompute-modules` makes precise.
fn modules(o: &RecomputeOptions, model: &ModelConfig, upstream: Upstream) -> Result<SavePolicy> {
    let mut save_policy = SavePolicy {
        recompute_expert_networks: o.moe_layer,
        recompute_operands: o.operands,
        recompute_attention: o.attention,
        swap_heads: o.swap_heads,
        ..SavePolicy::default()
    };
    let head = upstream == Upstream::Head;
    if o.moe_layer && head && o.granularity.as_deref() == Some("full") {
        refuse!("--moe-layer-recompute: cannot be combined with --recompute-granularity full");
    }
    let selective = o.granularity.as_deref() == Some("selective") || o.activations || (head && o.moe_layer);
    let Some(named) = o.modules.given() else {
        save_policy.recompute_core_attention = selective;
        return Ok(save_policy);
    };
    if !selective {
        tracing::warn!("--recompute-modules has no effect without --recompute-granularity selective");
        return Ok(save_policy);
    }
    for module in named {
        match module.as_str() {
            "core_attn" => save_policy.recompute_core_attention = true,
            "layernorm" => save_policy.recompute_norms = usize::MAX,
            "moe_act" => save_policy.recompute_expert_activations = true,
            "mlp" => save_policy.recompute_dense_networks = true,
            "moe" => save_policy.recompute_expert_networks = true,
            "mla_up_proj" if model.lacks_for(UP).is_none() => save_policy.recompute_operands = true,
            "mla_up_proj" => {
                refuse!(
                    "--recompute-modules: mla_up_proj needs latent attention, which the model does not have"
                )
            }
            other => refuse!(
                "--recompute-modules: expected core_attn, layernorm, moe_act, mla_up_proj, mlp or moe, found {other}"
            ),
        }
    }
    Ok(save_policy)
}

/// How many layers form again what `flag` says.
fn partly(
    o: &RecomputeOptions,
    flag: &str,
    (on, count): (bool, Option<usize>),
    layers: usize,
    selective: bool,
) -> Result<usize> {
    if !on {
        return Ok(0);
    }
    let other = match (selective, o.method.as_deref()) {
        (true, _) => Some("--recompute-granularity selective"),
        (_, Some("uniform")) if !o.swap_attention => Some("--recompute-method uniform"),
        _ => None,
    };
    if let Some(other) = other {
        refuse!("{flag}: cannot be combined with {other}, as in upstream");
    }
    match count {
        None => Ok(usize::MAX),
        Some(n) if n > layers => {
            refuse!("{flag}-num-layers: expected at most the {layers} layers, found {n}")
        }
        Some(n) => Ok(n),
    }
}

fn recompute_timing(
    o: &RecomputeOptions,
    method: Option<&str>,
    count: Option<usize>,
    stages: &Stages,
) -> Result<RecomputeTiming> {
    let (advance, bubble) = (o.in_advance, o.in_bubble);
    for (given, flag) in [(advance, "--recompute-in-advance"), (bubble, "--recompute-in-bubble")] {
        if given && (stages.pp <= 1 || !stages.interleaved()) {
            refuse!(
                "{flag}: needs a pipeline of several chunks a stage; pass --num-layers-per-virtual-pipeline-stage"
            );
        }
    }
    if advance && method == Some("uniform") {
        refuse!("--recompute-in-advance: cannot be combined with --recompute-method uniform; pass block");
    }
    if advance && count.is_none_or(|n| n == 0) {
        refuse!("--recompute-in-advance: needs --recompute-num-layers");
    }
    if bubble && count.is_some_and(|n| n > 0) {
        refuse!(
            "--recompute-in-bubble: cannot be combined with --recompute-num-layers: whole passes are recomputed"
        );
    }
    Ok(match (advance, bubble) {
        (_, true) => RecomputeTiming::InBubble,
        // As upstream: chunks of more layers are not recomputed in advance; only their last layer is not recomputed.
        (true, _) if stages.layers_per_chunk == Some(1) => RecomputeTiming::InAdvance,
        _ => RecomputeTiming::WithGradient,
    })
}
