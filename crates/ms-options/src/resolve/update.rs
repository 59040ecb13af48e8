//! Optimizer options: how weights are updated, and the optimizer's parameters.

use super::Precision;
use anyhow::Result;
use ms_cli::megatron::Upstream;
use ms_cli::refuse;
use ms_core::{Grid, OptimizerSharding};
use ms_dist::buckets::Bucketing;
use ms_nn::IndexerObjective;
use ms_spec::ModelConfig;
use ms_trainer::{Adam, IndexerTraining, LossScale, OptimizerConfig, OptimizerForm, Stored, UpdateRule};

options! {
    /// The update rule, the form of its state, and the gradients it gets.
    pub(crate) struct Update in "Optimizer" {
        rule: String = "--optimizer", "update rule: AdamW or gradient descent with momentum";
        momentum: f64 = "--sgd-momentum", "with --optimizer sgd: momentum", range = "[0,1)";
        beta1: f64 = "--adam-beta1", "Adam: decay of the first moment", range = "[0,1)";
        beta2: f64 = "--adam-beta2", "Adam: decay of the second moment", range = "[0,1)";
        eps: f64 = "--adam-eps", "Adam: epsilon added to the root of the second moment", range = "(0,)";
        clip: f64 = "--clip-grad", "maximum gradient norm; 0 turns clipping off", range = "[0,)";
        pub(super) per_token: bool = "--calculate-per-token-loss", "average gradients over tokens instead of micro-batches; with --upstream head also the logged loss of fine-tuning";
        pub(super) mtp_loss_scale: f64 = "--mtp-loss-scaling-factor", "factor of the mean loss of the MTP modules", range = "[0,)";
        indexer_loss: f64 = "--indexer-loss-coeff", "coefficient of the indexer's loss by MindSpeed-LLM's formula, over the keys or pooled entries that it selects (0: the indexer is not trained)", group = "Model families", range = "[0,)";
        megatron_indexer_loss: Option<f64> = "--dsa-indexer-loss-coeff", "coefficient of the indexer's loss by Megatron-LM's formula, over all keys that a query sees, instead of --indexer-loss-coeff (0: the indexer is not trained)", group = "Model families", range = "[0,)", own = own("dsa_indexer_loss_coeff");
        megatron_indexer_sparse: bool = "--dsa-indexer-use-sparse-loss", "with --dsa-indexer-loss-coeff: the indexer's loss counts the selected keys only", group = "Model families", own = own_or("dsa_indexer_use_sparse_loss", "false");
        pub(super) overlap_reduce: bool = "--overlap-grad-reduce", "reduce gradients in buckets of --ddp-bucket-size over data-parallel ranks, each as soon as the last micro-batch has filled it, while the backward pass continues", group = "Parallelism";
        pub(super) overlap_gather: bool = "--overlap-param-gather", "gather updated weights while the next forward pass runs: a layer waits for its own buckets", group = "Parallelism";
        pub(super) overlap_gather_with_step: bool = "--overlap-param-gather-with-optimizer-step", "with --overlap-param-gather: send updated buckets of weights while the others are updated", group = "Pipeline";
        bucket: Option<usize> = "--ddp-bucket-size", "elements per gradient bucket", group = "Parallelism", range = "[1,)";
        wide_buckets: bool = "--ddp-pad-buckets-for-high-nccl-busbw", "end buckets of the distributed optimizer at multiples of 65536 elements instead of 128", group = "Checkpoint";
        buckets: Option<usize> = "--ddp-num-buckets", "number of gradient buckets, instead of --ddp-bucket-size", range = "[1,)";
        reuse: bool = "--reuse-fp32-param", "bf16: store the master weights as the bf16 weights and the lower halves of their float32 values", group = "Precision";
        rounded: bool = "--o2-optimizer", "bf16: keep the optimizer's moments in bfloat16, update them in float32", group = "Precision";
        rounded_gradients: bool = "--o2-gradient", "bf16: keep and reduce gradients in bfloat16 (v2.0.0: needs --no-gradient-accumulation-fusion)", group = "Precision";
        reduced_rounded: bool = "--grad-reduce-in-bf16", "with --upstream head: keep and reduce gradients in bfloat16, as --o2-gradient", group = "Precision";
        fused_gradients: bool = "--no-gradient-accumulation-fusion", "v2.0.0: required by --o2-gradient, as in upstream; has no effect otherwise", group = "Precision";
        ties_to_even: bool = "--use-deter-comp", "with --upstream head: as --npu-deterministic (v2.0.0 rounds weights as without it); sums are deterministic in any case", group = "Precision";
        npu_ties_to_even: bool = "--npu-deterministic", "with --reuse-fp32-param: round weights to even at ties; sums are deterministic in any case", group = "Precision";
        defer_embedding_wgrad: bool = "--defer-embedding-wgrad-compute", "defer the weight gradient of the output layer until the last stage has done everything else and other stages still compute; logit gradients are kept until then", group = "Pipeline";
        head_later_limit: usize = "--wgrad-deferral-limit", "with --defer-embedding-wgrad-compute: number of micro-batches whose output-layer weight gradient is deferred (0: all)", group = "Pipeline", range = "[0,1000000000]";
        swap: bool = "--swap-optimizer", "keep the optimizer state in a file and read it in parts", group = "Memory";
        pub(crate) swap_parts: usize = "--swap-optimizer-times", "with --swap-optimizer: number of parts in which the state is updated", group = "Memory", range = "[1,1000000]";
        swap_sizes: Vec<String> = "--virtual-optimizer", "as --swap-optimizer, if one of the given sizes (all, or gigabytes for every stage or for each) is above 0; the whole state is in the file", group = "Memory";
        aware: bool = "--use-precision-aware-optimizer", "keep gradients, master weights and moments in the types of --main-grads-dtype, --main-params-dtype, --exp-avg-dtype and --exp-avg-sq-dtype; types of 16 and 8 bits have a scale per parameter and rank", group = "Memory";
        main_grads: Option<String> = "--main-grads-dtype", "with --bf16: type of accumulated gradients; bf16 also reduces them in bfloat16 and rounds them after clipping", group = "Memory";
        main_params: Option<String> = "--main-params-dtype", "with --bf16 or --fp16: type of master weights; weights are rounded from their unrounded update", group = "Memory";
        exp_avg: Option<String> = "--exp-avg-dtype", "type of the first moments (fp8: 4 exponent bits)", group = "Memory";
        exp_avg_sq: Option<String> = "--exp-avg-sq-dtype", "type of the second moments", group = "Memory";
        accumulates_wide: bool = "--accumulate-allreduce-grads-in-fp32", "accumulate and reduce gradients in float32 (always on; cannot be combined with flags that ask for bfloat16 gradients)", group = "Precision";
        loss_scale: Option<f64> = "--loss-scale", "static loss scale (0 with --fp16: dynamic); in float32 only with --use-distributed-optimizer", group = "Precision", range = "[0,)";
        initial_scale: f64 = "--initial-loss-scale", "fp16: initial dynamic loss scale", group = "Precision", range = "(0,)";
        min_scale: f64 = "--min-loss-scale", "fp16: minimum loss scale", group = "Precision", range = "(0,)";
        scale_window: f64 = "--loss-scale-window", "fp16: iterations without an overflow before the loss scale is doubled", group = "Precision", range = "[1,)";
        hysteresis: u64 = "--hysteresis", "fp16: number of overflows before the loss scale is halved", group = "Precision", range = "[1,1000000]";
    }
}

/// What trains the indexers of a model that has some.
///
/// # Errors
/// If Megatron-LM's loss is asked for where Megatron-LM has none.
pub(super) fn indexer(o: &Update, model: &ModelConfig) -> Result<Option<IndexerTraining>> {
    const COEFF: &str = "--dsa-indexer-loss-coeff";
    if o.megatron_indexer_sparse && o.megatron_indexer_loss.is_none() {
        refuse!("--dsa-indexer-use-sparse-loss: needs {COEFF}, whose form it is");
    }
    if o.megatron_indexer_loss.is_some() && !model.keys_by_head() {
        refuse!(
            "{COEFF}: Megatron-LM has no attention to pooled entries and no loss of its indexer; --indexer-loss-coeff is \
             MindSpeed-LLM's"
        );
    }
    let (objective, coeff) = match o.megatron_indexer_loss {
        Some(coeff) => (IndexerObjective::Megatron { sparse: o.megatron_indexer_sparse }, coeff),
        None => (IndexerObjective::MindSpeed, o.indexer_loss),
    };
    let trains = model.indexer.is_some() && coeff > 0.0;
    Ok(trains.then_some(IndexerTraining { objective, coeff }))
}

/// Megatron's rule: one bucket, unless gradients are reduced during the backward pass, or weights gathered beside the forward
/// pass. `held` counts the elements that a rank of the first stage has.
pub(super) fn bucket_size(
    o: &Update,
    dp: usize,
    held: impl FnOnce() -> Result<usize>,
) -> Result<Option<usize>> {
    if o.bucket.is_some() && o.buckets.is_some() {
        refuse!("--ddp-num-buckets: cannot be combined with --ddp-bucket-size");
    }
    if !(o.overlap_reduce || o.overlap_gather) {
        return Ok(None);
    }
    Ok(Some(match (o.bucket, o.buckets) {
        (Some(elements), _) => elements,
        (None, Some(number)) => held()? / number,
        (None, None) => 40_000_000.max(1_000_000 * dp),
    }))
}

/// Of how many elements the length of a bucket is a multiple.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/core/distributed/param_and_grad_buffer.py`.
pub(super) fn bucket_multiple(o: &Update, grid: &Grid) -> usize {
    if o.wide_buckets && grid.optimizer() != OptimizerSharding::Replicated {
        Bucketing::WIDE_MULTIPLE
    } else {
        Bucketing::MULTIPLE
    }
}

/// Checks that there are weights to gather, and chunks to gather them for.
///
/// # Errors
/// As upstream: where every rank updates all of its weights, or stages have one chunk.
///
/// # Source
/// Megatron-LM `core_r0.8.0` and `core_v0.12.1`, `megatron/training/arguments.py`, `validate_args`.
pub(super) fn check_gathering(o: &Update, grid: &Grid, chunks: bool) -> Result<()> {
    const BESIDE: &str = "--overlap-param-gather-with-optimizer-step";
    for (missing, flag) in
        [(!o.overlap_gather, "--overlap-param-gather"), (!chunks, "--num-layers-per-virtual-pipeline-stage")]
    {
        if o.overlap_gather_with_step && missing {
            refuse!("{BESIDE}: needs {flag}, as in upstream");
        }
    }
    if o.overlap_gather && grid.optimizer() == OptimizerSharding::Replicated {
        refuse!(
            "--overlap-param-gather: needs --use-distributed-optimizer (with --use-custom-fsdp also \
             --data-parallel-sharding-strategy optim); without, every rank updates all of its weights and gathers none"
        );
    }
    Ok(())
}

/// How weights are updated: by which rule, in which form of its state, from which gradients.
///
/// # Errors
/// For what upstream refuses, and forms that need another type of weights.
pub(super) fn optimizer(
    o: &Update,
    precision: &Precision,
    upstream: Upstream,
    stages: usize,
    distributed: bool,
) -> Result<OptimizerConfig> {
    Ok(OptimizerConfig {
        loss_scale: loss_scale(o, precision, distributed)?,
        update: update_rule(o)?,
        form: optimizer_form(o, precision, upstream, stages, distributed)?,
        clip_grad: o.clip,
    })
}

/// In which form the optimizer keeps its state.
///
/// # Errors
/// For what upstream refuses, and where a form needs another type of weights.
///
/// # Source
/// MindSpeed, `features_manager/memory/reuse_fp32_param.py` and `features_manager/optimizer/swap_optimizer_feature.py`;
/// MindSpeed-LLM v2.0.0, `mindspeed_llm/training/arguments.py`, `_add_dummy_args`: `npu_deterministic`, by which weights are
/// rounded, is always false.
fn optimizer_form(
    o: &Update,
    precision: &Precision,
    upstream: Upstream,
    stages: usize,
    distributed: bool,
) -> Result<OptimizerForm> {
    let (reuse, rounded, swap) = (o.reuse, o.rounded, o.swap || swapped(&o.swap_sizes, stages)?);
    for (given, flag) in [(reuse, "--reuse-fp32-param"), (rounded, "--o2-optimizer")] {
        if given && !precision.bf16 {
            refuse!("{flag}: needs --bf16, of whose weights there is a copy in float32");
        }
    }
    if reuse && swap {
        refuse!("--swap-optimizer: cannot be combined with --reuse-fp32-param, as in upstream");
    }
    if rounded && o.rule == "sgd" {
        refuse!("--o2-optimizer: needs --optimizer adam, whose moments it rounds");
    }
    Ok(OptimizerForm {
        reuse,
        ties_to_even: o.npu_ties_to_even || (o.ties_to_even && upstream == Upstream::Head),
        rounded_moments: rounded,
        swapped: swap.then_some(o.swap_parts),
        stored: stored(o, precision, distributed)?,
    })
}

/// The types that the optimizer's state is kept in, where flags say so.
///
/// # Errors
/// For what upstream refuses, and what keeps the state in another way.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/core/optimizer/optimizer_config.py`; `TransformerEngine`, `FusedAdam`.
fn stored(o: &Update, precision: &Precision, distributed: bool) -> Result<Option<[Stored; 3]>> {
    const FLAG: &str = "--use-precision-aware-optimizer";
    let types = [
        ("--main-grads-dtype", &o.main_grads),
        ("--main-params-dtype", &o.main_params),
        ("--exp-avg-dtype", &o.exp_avg),
        ("--exp-avg-sq-dtype", &o.exp_avg_sq),
    ];
    if !o.aware {
        let other = types.iter().find(|(_, kind)| kind.as_deref().is_some_and(|kind| kind != "fp32"));
        if let Some((flag, kind)) = other {
            refuse!(
                "{flag}: needs {FLAG}, as in upstream, or fp32, found {}",
                kind.as_deref().unwrap_or_default()
            );
        }
        return Ok(None);
    }
    if o.rule == "sgd" {
        refuse!("{FLAG}: expected --optimizer adam, as in upstream, found sgd");
    }
    if !distributed {
        refuse!("{FLAG}: needs --use-distributed-optimizer, as in upstream");
    }
    if precision.fp64 {
        refuse!("{FLAG}: cannot be combined with --fp64, beside which nothing is kept in another type");
    }
    let others = [
        (o.reuse, "--reuse-fp32-param"),
        (o.rounded, "--o2-optimizer"),
        (o.swap || !o.swap_sizes.is_empty(), "--swap-optimizer"),
    ];
    if let Some((_, other)) = others.into_iter().find(|other| other.0) {
        refuse!("{FLAG}: cannot be combined with {other}, which says the state's form, too");
    }
    let narrow = precision.bf16 || precision.fp16;
    let of = |kind: &Option<String>| match kind.as_deref() {
        Some("fp16") => Stored::F16,
        Some("fp8") => Stored::F8,
        _ => Stored::Wide,
    };
    if of(&o.main_params) != Stored::Wide && !narrow {
        tracing::warn!("--main-params-dtype has no effect: weights in float32 are their own master weights");
    }
    Ok(Some([&o.main_params, &o.exp_avg, &o.exp_avg_sq].map(of)))
}

/// Whether `sizes`, those of `--virtual-optimizer`, ask for state outside of memory.
///
/// # Errors
/// For words that are no sizes, and another number of them than one or as many as `stages`, which upstream refuses, too.
///
/// # Source
/// MindSpeed, `features_manager/optimizer/virtual_optimizer.py` and `core/optimizer/virtual_optimizer/virtual_adam.py`.
fn swapped(sizes: &[String], stages: usize) -> Result<bool> {
    const FLAG: &str = "--virtual-optimizer";
    let size = |word: &String| match word.as_str() {
        "all" => Some(f64::INFINITY),
        word => word.parse::<f64>().ok().filter(|size| !size.is_nan()),
    };
    let Some(found) = sizes.iter().map(size).collect::<Option<Vec<f64>>>() else {
        refuse!("{FLAG}: expected all or gigabytes, found {}", sizes.join(" "));
    };
    if found.len() > 1 && found.len() != stages {
        refuse!("{FLAG}: expected one size, or one of each of {stages} stages, found {}", found.len());
    }
    Ok(found.iter().any(|&size| size > 0.0))
}

/// Whether gradients are kept in bfloat16.
///
/// # Errors
/// For what upstream refuses.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `mindspeed_llm/training/arguments.py`, `_validate_o2`; Megatron-LM `core_v0.12.1`,
/// `megatron/training/arguments.py`.
pub(super) fn rounded_gradients(o: &Update, precision: &Precision, upstream: Upstream) -> Result<bool> {
    let main = o.main_grads.as_deref() == Some("bf16");
    for (given, flag) in [
        (o.rounded_gradients, "--o2-gradient"),
        (o.reduced_rounded, "--grad-reduce-in-bf16"),
        (main, "--main-grads-dtype bf16"),
    ] {
        if given && !precision.bf16 {
            refuse!("{flag}: needs --bf16, whose gradients it rounds");
        }
    }
    if o.rounded_gradients && o.fused_gradients && upstream == Upstream::V2_0_0 {
        refuse!(
            "--o2-gradient: needs --no-gradient-accumulation-fusion, as in upstream, whose fused products add in float32"
        );
    }
    if main && o.accumulates_wide {
        refuse!(
            "--main-grads-dtype: expected fp32 beside --accumulate-allreduce-grads-in-fp32, as in upstream, found bf16"
        );
    }
    Ok(o.rounded_gradients || o.reduced_rounded || main)
}

/// The factor of the loss: what `--loss-scale` says, and of float16 weights a dynamic one otherwise.
///
/// # Errors
/// A first factor below the least one, as Megatron refuses it.
///
/// # Source
/// Megatron-LM `core_r0.8.0` and `core_v0.12.1`, `megatron/core/optimizer/__init__.py`.
fn loss_scale(o: &Update, precision: &Precision, distributed: bool) -> Result<LossScale> {
    Ok(match o.loss_scale.filter(|&scale| scale != 0.0) {
        Some(_) if !(precision.fp16 || precision.bf16 || distributed) => {
            tracing::warn!(
                "--loss-scale has no effect on weights in float32 without --use-distributed-optimizer, as in upstream"
            );
            LossScale::None
        }
        Some(scale) => LossScale::Constant(scale),
        None if precision.fp16 => {
            let (initial, min) = (o.initial_scale, o.min_scale);
            if min > initial {
                refuse!("--min-loss-scale: expected at most --initial-loss-scale {initial}, found {min}");
            }
            LossScale::Dynamic { initial, min, window: o.scale_window as u64, hysteresis: o.hysteresis }
        }
        None => LossScale::None,
    })
}

/// `--optimizer` with its numbers.
///
/// # Errors
/// For one that is not part of this version.
fn update_rule(o: &Update) -> Result<UpdateRule> {
    Ok(match o.rule.as_str() {
        "adam" => UpdateRule::AdamW(Adam { beta1: o.beta1, beta2: o.beta2, eps: o.eps }),
        "sgd" => UpdateRule::Sgd { momentum: o.momentum },
        other => {
            refuse!("--optimizer: expected adam or sgd, found {other}, which is not part of this version")
        }
    })
}

/// Of how many micro-batches the gradient of the output layer's weights is put off.
///
/// # Errors
/// For what upstream refuses.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/core/model_parallel_config.py`.
pub(super) fn defer_embedding_wgrad(o: &Update, stages: usize) -> Result<Option<usize>> {
    const FLAG: &str = "--defer-embedding-wgrad-compute";
    if !o.defer_embedding_wgrad {
        return Ok(None);
    }
    if stages == 1 {
        refuse!("{FLAG}: needs --pipeline-model-parallel-size of 2 or more, as in upstream");
    }
    if !o.fused_gradients {
        refuse!("{FLAG}: cannot be combined with --no-gradient-accumulation-fusion, as in upstream");
    }
    Ok(Some(if o.head_later_limit == 0 { usize::MAX } else { o.head_later_limit }))
}
