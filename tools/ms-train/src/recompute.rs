//! What passes keep: the flags of recomputation and of swapped attention.

use anyhow::{Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::Args;
use ms_nn::{Keeping, Recompute};
use ms_spec::Stages;
use ms_trainer::Replay;

/// Resolves them for a model of `layers` layers on `stages`.
///
/// # Errors
/// For choices that exclude each other, as upstream refuses them.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `mindspeed_llm/training/arguments.py`, `validate_recompute_args`; MindSpeed,
/// `features_manager/pipeline_parallel/ripipe_schedules_feature.py`; Megatron-LM `core_r0.8.0`,
/// `megatron/core/transformer/transformer_config.py`.
pub(crate) fn resolve(args: &Args, layers: usize, stages: &Stages) -> Result<(Recompute, Keeping, Replay)> {
    let method = args.text("recompute_method");
    let selective =
        args.text("recompute_granularity") == Some("selective") || args.flag("recompute_activations");
    let count = args.size("recompute_num_layers")?;
    if selective && count.is_some() {
        bail!(Usage(
            "--recompute-num-layers: goes not with --recompute-granularity selective, which is of all layers"
                .into()
        ));
    }
    let keeping = Keeping {
        core_attention_again: selective,
        activations_again: partly(args, "--recompute-activation-function", layers, selective)?,
        norms_again: partly(args, "--recompute-norm", layers, selective)?,
        swap_attention: args.flag("swap_attention"),
        networks_again: if args.flag("swap_attention") { count.unwrap_or(0) } else { 0 },
        of_stage: args.flag("enable_recompute_layers_per_pp_rank"),
        spare_last: args.flag("recompute_in_advance"),
    };
    if keeping.swap_attention && method == Some("uniform") {
        tracing::warn!(
            "--recompute-method uniform changes nothing beside --swap-attention: --recompute-num-layers counts the layers whose networks run again"
        );
    }
    let replay = replay(args, method, count, stages)?;
    // Of swapped layers the networks alone run again, and in the bubble whole passes do.
    let whole = args.text("recompute_granularity") == Some("full")
        && !keeping.swap_attention
        && replay != Replay::InBubble;
    let full = match (whole, method) {
        (false, _) => Recompute::None,
        (true, Some("block")) if keeping.of_stage => Recompute::BlockOfStage(count.unwrap_or(1)),
        (true, Some("block")) => Recompute::Block(count.unwrap_or(1)),
        (true, Some("uniform")) => Recompute::Uniform(count.unwrap_or(1)),
        (true, _) => {
            bail!(Usage("--recompute-granularity full needs --recompute-method block or uniform".into()))
        }
    };
    let counted = matches!(full, Recompute::BlockOfStage(_))
        || keeping.networks_again > 0
        || [keeping.activations_again, keeping.norms_again].iter().any(|&n| n > 0 && n < usize::MAX);
    if keeping.of_stage && !counted {
        tracing::warn!(
            "--enable-recompute-layers-per-pp-rank changes nothing without --recompute-method block or a number of layers"
        );
    }
    if args.flag("recompute_in_advance") && full == Recompute::None && !counted && !selective {
        tracing::warn!("--recompute-in-advance changes nothing without --recompute-granularity full");
    }
    Ok((full, keeping, replay))
}

/// How many layers form again what `flag` says.
fn partly(args: &Args, flag: &str, layers: usize, selective: bool) -> Result<usize> {
    let dest = flag.trim_start_matches("--").replace('-', "_");
    if !args.flag(&dest) {
        return Ok(0);
    }
    let other = match (selective, args.text("recompute_method")) {
        (true, _) => Some("--recompute-granularity selective"),
        (_, Some("uniform")) if !args.flag("swap_attention") => Some("--recompute-method uniform"),
        _ => None,
    };
    if let Some(other) = other {
        bail!(Usage(format!("{flag}: goes not with {other}, as upstream has it; leave one of them out")));
    }
    match args.size(&format!("{dest}_num_layers"))? {
        None => Ok(usize::MAX),
        Some(n) if n > layers => {
            bail!(Usage(format!("{flag}-num-layers: expected at most the {layers} layers, found {n}")))
        }
        Some(n) => Ok(n),
    }
}

fn replay(args: &Args, method: Option<&str>, count: Option<usize>, stages: &Stages) -> Result<Replay> {
    let (advance, bubble) = (args.flag("recompute_in_advance"), args.flag("recompute_in_bubble"));
    for (given, flag) in [(advance, "--recompute-in-advance"), (bubble, "--recompute-in-bubble")] {
        if given && (stages.pp <= 1 || stages.layers_per_chunk.is_none()) {
            bail!(Usage(format!(
                "{flag}: goes with a pipeline of several chunks a stage; pass --num-layers-per-virtual-pipeline-stage"
            )));
        }
    }
    if advance && method == Some("uniform") {
        bail!(Usage("--recompute-in-advance: goes not with --recompute-method uniform; pass block".into()));
    }
    if advance && count.is_none_or(|n| n == 0) {
        bail!(Usage("--recompute-in-advance: needs --recompute-num-layers".into()));
    }
    if bubble && count.is_some_and(|n| n > 0) {
        bail!(Usage(
            "--recompute-in-bubble: goes not with --recompute-num-layers: whole passes run again".into()
        ));
    }
    Ok(match (advance, bubble) {
        (_, true) => Replay::InBubble,
        // As upstream: chunks of more layers do not run again in advance, only their last layer is spared.
        (true, _) if stages.layers_per_chunk == Some(1) => Replay::InAdvance,
        _ => Replay::WithGradient,
    })
}
