//! Adapters: where they come from, and what happens to them.

use anyhow::Context as _;
use ms_ckpt::layout::mcore::Hints;
use ms_ckpt::{Checkpoint, Form, Merge, Plan, Run};
use ms_cli::ResultHint as _;
use ms_core::DType;
use serde_json::Value;

use crate::request::{Lora, Request};

/// Adds the adapters of a request to the source: merged into the weights, or kept to be written alone or with them. Also
/// returns the factor of their scale when they are joined or separated.
///
/// # Errors
/// Adapters that are missing, of another model or of another size than the command line says.
pub(crate) fn apply(source: Checkpoint, request: &Request) -> anyhow::Result<(Checkpoint, f64)> {
    let lora = &request.lora;
    let mut alpha = alpha_of(&source);
    let source = match &lora.load {
        None => source,
        Some(dir) => {
            let hints = Hints { model: Some(source.config().clone()), ..Hints::default() };
            let adapter = ms_ckpt::open_with(dir, None, &hints).context("--lora-load")?;
            anyhow::ensure!(
                adapter.adapted().next().is_some(),
                "--lora-load: {} has no adapters",
                dir.display()
            );
            alpha = alpha_of(&adapter).or(alpha);
            source.with_adapter(adapter)
        }
    };
    let inside = source.adapted().next().is_some();
    if !inside {
        anyhow::ensure!(!lora.alone, "--save-lora-to-hf: there are no adapters");
        anyhow::ensure!(!lora.kept, "--keep-adapters: there are no adapters");
        return Ok((source, 1.0));
    }
    let rank = source.adapter_rank().context("the adapters have different ranks")?;
    check(&source, lora, rank)?;
    if lora.alone || lora.kept {
        if let Some(name) = source.grouped_adapter().filter(|_| lora.alone) {
            return Err(anyhow::anyhow!(
                "--save-lora-to-hf: expected an adapter of each expert, found {name} of several, which upstream refuses, too"
            ))
            .hint("merge it (without --save-lora-to-hf), or write it beside the weights with --keep-adapters");
        }
        let source =
            if lora.alone { source.with_parted_adapters()? } else { source.with_joined_adapters()? };
        let now = source.adapter_rank().context("the adapters have different ranks")?;
        if now > rank {
            tracing::info!(
                "adapters of projections are joined: rank {now} instead of {rank}, with the same sum"
            );
        }
        return Ok((source, now as f64 / rank as f64));
    }
    let Some(alpha) = lora.alpha.or(alpha) else {
        return Err(anyhow::anyhow!("the checkpoint does not say how its adapters are scaled"))
            .hint("pass --lora-alpha, the number it was trained with");
    };
    let count = source.adapted().count();
    tracing::info!("merging {count} adapters of rank {rank}, scaled by {}", alpha / rank as f64);
    let merge = Merge { scale: alpha / rank as f64, arithmetic: lora.arithmetic };
    Ok((source.merged(merge)?, 1.0))
}

/// The run of a plan that keeps adapters in addition to the weights: with them, and how they are scaled.
///
/// # Errors
/// Another form than Megatron-core's, or adapters that its files have no place for.
pub(crate) fn keep(run: Run, source: &Checkpoint, request: &Request, factor: f64) -> anyhow::Result<Run> {
    if !request.lora.kept {
        return Ok(run);
    }
    if request.to != Form::Mcore {
        return Err(anyhow::anyhow!("--keep-adapters writes Megatron-core files"))
            .hint("ms-convert mcore mcore …");
    }
    let mut run = run.with_adapters(source)?;
    if let Some(alpha) = scale(source, request)? {
        run.args.insert("lora_alpha".to_owned(), Value::from(alpha * factor));
    }
    Ok(run)
}

/// What adapters are scaled with: as given, or as they say themselves.
fn scale(source: &Checkpoint, request: &Request) -> anyhow::Result<Option<f64>> {
    let said = match &request.lora.load {
        Some(dir) => {
            let hints = Hints { model: Some(source.config().clone()), ..Hints::default() };
            alpha_of(&ms_ckpt::open_with(dir, None, &hints)?)
        }
        None => alpha_of(source),
    };
    Ok(request.lora.alpha.or(said))
}

/// `lora_alpha` among the arguments of a checkpoint.
fn alpha_of(checkpoint: &Checkpoint) -> Option<f64> {
    checkpoint.args().get("lora_alpha").and_then(Value::as_f64)
}

fn check(source: &Checkpoint, lora: &Lora, rank: usize) -> anyhow::Result<()> {
    if let Some(given) = lora.rank {
        anyhow::ensure!(given == rank, "--lora-r {given}: the adapters have rank {rank}");
    }
    if lora.targets.is_empty() {
        return Ok(());
    }
    for slot in source.adapted() {
        // A module is meant by the end of its name, as in peft.
        let module = format!(".{}", slot.module_name());
        let meant = |target: &str| module.ends_with(&format!(".{target}"));
        anyhow::ensure!(
            lora.targets.iter().any(|t| meant(t) || meant(legacy(t))),
            "{} has an adapter, but its module is not among --lora-target-modules {}",
            slot.name(),
            lora.targets.join(" ")
        );
    }
    Ok(())
}

/// Megatron-core's name of a module of the legacy models.
fn legacy(module: &str) -> &str {
    match module {
        "query_key_value" => "linear_qkv",
        "dense" => "linear_proj",
        "dense_h_to_4h" => "linear_fc1",
        "dense_4h_to_h" => "linear_fc2",
        other => other,
    }
}

/// The plan of a peft folder with a source's adapters.
///
/// # Errors
/// Adapters without a scale, or that peft has no form for.
pub(crate) fn plan(
    source: &Checkpoint,
    request: &Request,
    factor: f64,
    dtype: Option<DType>,
) -> anyhow::Result<Plan> {
    anyhow::ensure!(request.to == Form::Hf, "--save-lora-to-hf writes a Hugging Face folder");
    let Some(alpha) = scale(source, request)? else {
        return Err(anyhow::anyhow!("the checkpoint does not say how its adapters are scaled"))
            .hint("pass --lora-alpha, the number it was trained with");
    };
    Ok(Plan::peft(source, alpha * factor, dtype)?)
}
