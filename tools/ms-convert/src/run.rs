//! Running a conversion: open, plan, show or copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::options::Options;
use anyhow::Context as _;
use ms_ckpt::layout::mcore::FileGrid;
use ms_ckpt::layout::peft;
use ms_ckpt::{Checkpoint, Form, HF_LAYOUT, HfLayout, Plan, Run, RunOptions, Sharding};
use ms_cli::megatron::Args;
use ms_cli::{ResultHint as _, Usage, refuse};
use ms_core::{Axis, DType};
use ms_spec::{ModelConfig, PlacementOption, hf};
use serde_json::{Value, json};

use crate::adapters;
use crate::companions::companions;
use crate::request::{OutputType, Request};
use crate::source::{LAYER_COUNTS, PREDICTORS, beside, check_form, check_reward, open, read_json};

/// Converts as asked.
///
/// # Errors
/// Anything that stops it; then nothing is written.
pub(crate) fn run(request: &Request, o: &Options, args: &Args) -> anyhow::Result<()> {
    say_what_is_not_cut(request, o);
    convert(request, o, args).map_err(|error| match culprit(&error, o) {
        Some(flag) => Usage(format!("{flag}: {}", ms_cli::said(&error))).into(),
        None => error,
    })
}

/// Names parallel sizes requested for an unsharded output.
fn say_what_is_not_cut(request: &Request, o: &Options) {
    if !matches!(request.to, Form::Hf | Form::Peft) {
        return;
    }
    let cut = &o.cutting;
    let sizes = [&cut.tp, &cut.pp, &cut.ep].map(|size| size.written.filter(|_| size.value > 1));
    let chunks = cut.layers_per_chunk.written;
    let lists =
        [cut.layer_list.as_ref().map(|_| "--num-layer-list"), cut.noop.as_ref().map(|_| "--noop-layers")];
    for flag in sizes.into_iter().chain([chunks]).chain(lists).flatten() {
        tracing::warn!("{flag} has no effect: a Hugging Face folder is not cut for ranks");
    }
}

/// The flag, as it was written, that asks for what a model does not allow: the model's errors speak of sizes alone.
fn culprit(error: &anyhow::Error, o: &Options) -> Option<String> {
    let cut = &o.cutting;
    let refused = error.chain().find_map(|error| match error.downcast_ref() {
        Some(ms_ckpt::Error::Share(refused) | ms_ckpt::Error::Unread(refused)) => Some(refused),
        _ => None,
    })?;
    let flag = match refused {
        ms_spec::Error::Cut { axis: Axis::Ep, .. } | ms_spec::Error::Rule { axis: Axis::Ep, .. }
            if cut.extend_ep =>
        {
            return Some(format!("--moe-tp-extend-ep with --tp {} and --ep {}", cut.tp.value, cut.ep.value));
        }
        ms_spec::Error::Cut { axis, ranks, .. } | ms_spec::Error::Rule { axis, ranks, .. } => match axis {
            Axis::Tp if cut.tp.value == *ranks => cut.tp.written,
            Axis::Tp => cut.etp.written,
            Axis::Ep => cut.ep.written,
            _ => None,
        },
        ms_spec::Error::Placement { option, .. } => match option {
            PlacementOption::Stages => cut.pp.written,
            PlacementOption::LayersPerChunk => cut.layers_per_chunk.written,
            PlacementOption::LayerList => cut.layer_list.as_ref().map(|_| "--num-layer-list"),
            PlacementOption::NoopLayers => cut.noop.as_ref().map(|_| "--noop-layers"),
        },
        _ => None,
    };
    flag.map(str::to_owned)
}

fn convert(request: &Request, o: &Options, args: &Args) -> anyhow::Result<()> {
    let request = &mut request.clone();
    let source = open(request)?;
    let request = &*request;
    check_form(&source, request)?;
    check_reward(&source, request)?;
    let (mut source, factor) = adapters::apply(source, request)?;
    if request.lora.alone {
        let fixed = match request.output_type {
            OutputType::Fixed(dtype) => Some(dtype),
            _ => None,
        };
        let plan = adapters::plan(&source, request, factor, fixed)?;
        return finish(&plan, &source, request, o, args);
    }
    let original = request.hf_config.clone().unwrap_or_else(|| source.root().to_owned());
    // A folder that holds a tokenizer only adds its files.
    let followed =
        request.hf_config.as_ref().map(|dir| dir.join("config.json")).filter(|path| path.is_file());
    let hf_json = match &followed {
        Some(path) => Some(read_json(path)?),
        None => source.config_json().cloned().or_else(|| beside(request)),
    };
    let mut config = target_config(&source, request, followed.as_deref().zip(hf_json.as_ref()))?;
    let said = hf_json.as_ref().and_then(|j| hf::read_config(j).ok());
    let config_type = said.as_ref().and_then(|c| c.dtype);
    // Rows are left out, or the checkpoint does not have them: nothing is laid out like the original, which has.
    let other_vocab = said.is_some_and(|c| c.vocab != config.vocab);
    if request.through_config_type && matches!(config_type, Some(DType::F16 | DType::Bf16)) {
        source = source.rounded_through(config_type);
    }
    let fixed = match request.output_type {
        OutputType::Same => None,
        OutputType::Fixed(dtype) => Some(dtype),
        OutputType::OfConfig => config_type,
    };
    // What describes the weights, here and in the files, names their type.
    config.dtype = fixed.or(config.dtype);
    let stored: BTreeMap<String, DType> = source.tensors().map(|(n, _, d)| (n.to_owned(), d)).collect();
    let dtype_of = |name: &str| match fixed {
        Some(dtype) => Ok(dtype),
        None => stored.get(name).copied().map_or_else(|| source.dtype(name), Ok),
    };
    // A model that only some layers are kept of, or that is changed otherwise, is not the one that was trained.
    let carries = request.optimizer && whole(request) && !matches!(request.to, Form::Hf | Form::Legacy);
    if let Some(name) = source.torn_state().filter(|_| carries) {
        let at = source.root().display();
        anyhow::bail!("{at}: only some ranks have {name}: --no-optim leaves the optimizer state behind");
    }
    let carried = carries && source.has_optimizer();
    if carried && request.to != Form::Sharded {
        tracing::info!(
            "random states are not converted: Megatron continues from this checkpoint with --no-load-rng"
        );
    }
    let run = if carried { Run::of(&source) } else { Run::default() };
    let run = adapters::keep(run, &source, request, factor)?;
    if matches!(request.to, Form::Mcore | Form::Legacy) {
        ms_spec::check_whole_heads(&config, request.sizes.tp).map_err(ms_ckpt::Error::Unread)?;
    }
    let file_grid = || FileGrid::new(&request.sizes, request.stages.clone(), request.extended == Some(true));
    let mut plan = match request.to {
        Form::Hf if other_vocab => Plan::hf(&config, &dtype_of, request.sharding)?,
        Form::Hf => plan_hf(&config, request, [&original, source.root()], &dtype_of)?,
        Form::Mcore | Form::Legacy => {
            Plan::mcore(&config, &file_grid()?, request.spelling, request.args_form, &dtype_of, &run)?
        }
        Form::Sharded => Plan::sharded(&config, &file_grid()?, &dtype_of, &run)?,
        Form::Peft => anyhow::bail!("an adapter's folder is written with --save-lora-to-hf"),
        Form::TorchDist => {
            let form = request.args_form;
            Plan::torch_dist(&config, &file_grid()?, request.modules, form, &dtype_of, &run)?
        }
    };
    add_companions(&mut plan, request, &source, &original, &config, hf_json, (fixed, other_vocab))?;
    finish(&plan, &source, request, o, args)
}

fn finish(
    plan: &Plan,
    source: &Checkpoint,
    request: &Request,
    o: &Options,
    args: &Args,
) -> anyhow::Result<()> {
    if o.writing.dry_run {
        return show(plan, source, request, args.json());
    }
    copy(plan, source, request, o, args)
}

/// Fields of `config.json` that count the tokens.
const VOCABULARIES: [&str; 2] = ["vocab_size", "padded_vocab_size"];

/// The model as it is written. `followed` is the configuration of an original folder.
fn target_config(
    source: &Checkpoint,
    request: &Request,
    followed: Option<(&Path, &Value)>,
) -> anyhow::Result<ModelConfig> {
    let mut config = source.config().clone();
    if let Some((path, json)) = followed {
        let other = hf::read_config(json).with_context(|| path.display().to_string())?;
        let mut other = other;
        if !whole(request) {
            (other.layers, other.pattern) = (config.layers, config.pattern.clone());
        }
        let sizes = |c: &ModelConfig| (c.layers, c.hidden, c.ffn, c.heads, c.groups, c.head_dim);
        if sizes(&other) != sizes(&config) {
            anyhow::bail!(
                "{} describes another model: (layers, hidden, ffn, heads, key/value heads, head size) {:?}, the checkpoint has {:?}",
                path.display(),
                sizes(&other),
                sizes(&config)
            );
        }
        config.vocab = other.vocab.min(config.padded_vocab);
        // What Megatron's arguments cannot say comes from the original.
        let ModelConfig { padded_vocab, vocab, mtp, tied, .. } = config;
        config = ModelConfig { padded_vocab, vocab, mtp, tied, ..other };
    }
    if let Some(vocab) = request.true_vocab {
        let rows = config.padded_vocab;
        anyhow::ensure!(vocab <= rows, "--true-vocab-size {vocab}: the checkpoint has {rows} rows");
        // Where the checkpoint says how many of its rows are tokens.
        if vocab < config.vocab && config.vocab < rows {
            let all = config.vocab;
            tracing::warn!(
                "--true-vocab-size {vocab}: the checkpoint has {all} tokens; the rows of those behind are left out"
            );
        }
        config.vocab = vocab;
    }
    if request.to != Form::Hf {
        // Without a stated vocabulary, rows that are there are kept, as upstream does.
        let rows = request.true_vocab.unwrap_or(config.padded_vocab);
        config.padded_vocab = match request.padded_vocab {
            Some(padded) if padded < config.vocab => {
                let all = config.vocab;
                refuse!("--padded-vocab-size {padded} is smaller than the vocabulary {all}")
            }
            Some(padded) => padded,
            None => rows.next_multiple_of(request.divisor * request.sizes.tp),
        };
    }
    Ok(config)
}

fn plan_hf(
    config: &ModelConfig,
    request: &Request,
    originals: [&Path; 2],
    dtype_of: &ms_ckpt::DTypeOf<'_>,
) -> anyhow::Result<Plan> {
    if matches!(request.sharding, Sharding::Bytes(_)) && whole(request) {
        for original in originals {
            let Some(layout) = HfLayout::find(original)? else { continue };
            match Plan::hf_like(config, &layout, dtype_of)? {
                Ok(plan) => return Ok(plan),
                Err(unlike) => {
                    tracing::warn!(
                        "the files of {} {unlike}; laid out by default instead",
                        original.display()
                    );
                }
            }
        }
    }
    Ok(Plan::hf(config, dtype_of, request.sharding)?)
}

/// Files that accompany the weights: copied unchanged, `config.json` created or corrected if needed.
fn add_companions(
    plan: &mut Plan,
    request: &Request,
    source: &Checkpoint,
    original: &Path,
    config: &ModelConfig,
    hf_json: Option<Value>,
    (fixed, other_vocab): (Option<DType>, bool),
) -> anyhow::Result<()> {
    for path in companions(original)? {
        let name = PathBuf::from(path.file_name().expect("files of a folder have names"));
        plan.copies.push((path, name));
    }
    let pretty = |value: &Value| {
        let mut text = serde_json::to_vec_pretty(value).expect("plain JSON");
        text.push(b'\n');
        text
    };
    match hf_json {
        // The arguments in the checkpoint describe what no class does.
        None if request.to != Form::Hf && config.family.model_type().is_none() => {}
        None => {
            // Slots without a layer are of the cut, not of the model.
            let model = ModelConfig { empty_slots: 0, ..config.clone() };
            let made = hf::write_config(&model, hf::Dialect::V4)?;
            plan.texts.push(("config.json".into(), pretty(&made)));
        }
        Some(mut json) => {
            let named = if json.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
            let said = hf::read_config(&json).ok();
            // The files may hold an output layer although the configuration ties it.
            let other_tie = said.as_ref().is_some_and(|c| c.tied != config.tied);
            let stated = said.and_then(|c| c.dtype);
            let count = LAYER_COUNTS.into_iter().find(|k| json.get(k).is_some());
            let count = count.unwrap_or("num_hidden_layers");
            // The numbers that change if fewer layers are kept.
            let mut counts = Vec::new();
            if request.to == Form::Hf || !whole(request) {
                counts.push((count, config.layers));
            }
            counts.extend(request.leading_dense.map(|n| ("first_k_dense_replace", n)));
            // Where layers are left out, so are prediction layers that the files do not have.
            let left_out = request.to == Form::Hf && request.layers.is_some() && config.mtp == 0;
            let other = left_out || (request.from == Form::Hf && request.mtp.is_some());
            counts.extend((other && json.get(PREDICTORS).is_some()).then_some((PREDICTORS, config.mtp)));
            let rows = VOCABULARIES.into_iter().filter(|key| other_vocab && json.get(key).is_some());
            counts.extend(rows.map(|key| (key, config.vocab)));
            counts.retain(|(key, n)| json.get(key).and_then(Value::as_u64) != Some(*n as u64));
            // Weights are written as elements, whatever they were read from.
            let codes = request.to == Form::Hf
                && json.as_object_mut().is_some_and(|fields| fields.remove("quantization_config").is_some());
            let other_type = fixed.is_some_and(|d| Some(d) != stated);
            if other_type || other_tie || codes || !counts.is_empty() {
                if other_tie {
                    json["tie_word_embeddings"] = json!(config.tied);
                }
                if let (true, Some(dtype)) = (other_type, fixed) {
                    json[named] = json!(match dtype {
                        DType::Bf16 => "bfloat16",
                        DType::F16 => "float16",
                        _ => "float32",
                    });
                }
                for (key, n) in counts {
                    json[key] = json!(n);
                }
                plan.copies.retain(|(_, to)| to != Path::new("config.json"));
                plan.texts.push(("config.json".into(), pretty(&json)));
            } else if !plan.copies.iter().any(|(_, to)| to == Path::new("config.json")) {
                // The companion files come from a tokenizer folder: the configuration is the source's own, unchanged.
                plan.copies.push((source.root().join("config.json"), "config.json".into()));
            }
        }
    }
    if request.to != Form::Hf
        && whole(request)
        && !other_vocab
        && let Some(layout) = HfLayout::find(source.root())?
    {
        plan.copies.retain(|(_, to)| to != Path::new(HF_LAYOUT));
        plan.texts.push((HF_LAYOUT.into(), serde_json::to_vec(&layout)?));
    }
    Ok(())
}

/// Whether all layers are kept.
fn whole(request: &Request) -> bool {
    request.layers.is_none() && request.leading_dense.is_none()
}

fn show(plan: &Plan, source: &Checkpoint, request: &Request, as_json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        let mut json = plan.to_json();
        json["save"] = json!(request.save);
        json["source_bytes"] = json!(source.bytes());
        json["memory_bytes"] = json!(plan.memory(workers()));
        writeln!(out, "{json}")?;
        return Ok(());
    }
    for file in &plan.files {
        writeln!(out, "{:>14}  {} ({} tensors)", file.bytes(), file.path.display(), file.tensors.len())?;
    }
    for (path, text) in &plan.texts {
        writeln!(out, "{:>14}  {}", text.len(), path.display())?;
    }
    for (from, to) in &plan.copies {
        writeln!(
            out,
            "{:>14}  {} (copy of {})",
            fs::metadata(from).map_or(0, |m| m.len()),
            to.display(),
            from.display()
        )?;
    }
    writeln!(out, "{:>14}  bytes of tensors into {}", plan.bytes(), request.save.display())?;
    writeln!(out, "{:>14}  bytes of memory at most", plan.memory(workers()))?;
    Ok(())
}

/// Checks that the output does not take the place of what is read: replacing it would remove the source.
fn check_apart(request: &Request, source: &Checkpoint, o: &Options) -> Result<(), Usage> {
    let save_flag = o.writing.save.written.unwrap_or("--save-dir");
    let save = absolute(&request.save);
    // Inside an iteration the output would be a part of what is read.
    let iterations = source.stored().filter(|t| t.file.is_relative()).filter_map(|t| {
        let mut parts = t.file.components();
        let first = parts.next()?;
        parts.next().map(|_| source.root().join(first))
    });
    for folder in iterations.collect::<BTreeSet<PathBuf>>() {
        if save.starts_with(absolute(&folder)) {
            let (save, folder) = (request.save.display(), folder.display());
            refuse!("{save_flag} {save} is inside {folder}, which is read\nhint: save elsewhere");
        }
    }
    let read = [
        (o.reading.load.written.unwrap_or("--load-dir"), Some(&request.load)),
        ("--lora-load", request.lora.load.as_ref()),
        ("--hf-cfg-dir", request.hf_config.as_ref()),
    ];
    for (flag, dir) in read {
        let Some(dir) = dir else { continue };
        if fs::canonicalize(dir).is_ok_and(|dir| dir.starts_with(&save)) {
            let (save, dir) = (request.save.display(), dir.display());
            refuse!("{save_flag} {save} would replace {flag} {dir}, which is read\nhint: save elsewhere");
        }
    }
    Ok(())
}

/// A path from the root on, links followed as far as it exists.
fn absolute(path: &Path) -> PathBuf {
    if let Ok(path) = fs::canonicalize(path) {
        return path;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => absolute(Path::new(".")).join(name),
        (Some(parent), Some(name)) => absolute(parent).join(name),
        _ => path.to_owned(),
    }
}

fn copy(plan: &Plan, source: &Checkpoint, request: &Request, o: &Options, args: &Args) -> anyhow::Result<()> {
    check_apart(request, source, o)?;
    if request.force
        && request.save.exists()
        && ms_ckpt::open(&request.save).is_err()
        && !peft::is_adapter(&request.save)
        && !is_empty(&request.save)
    {
        return Err(anyhow::anyhow!("{} is not a checkpoint and is not replaced", request.save.display()))
            .hint("remove it yourself, or save elsewhere");
    }
    if let Some(free) = ms_cli::free_bytes(&request.save).filter(|&free| free < plan.bytes()) {
        anyhow::bail!(
            "{} {}: the output takes {}, {} are free there",
            o.writing.save.written.unwrap_or("--save-dir"),
            request.save.display(),
            ms_cli::say_bytes(plan.bytes()),
            ms_cli::say_bytes(free)
        );
    }
    let start = Instant::now();
    let bar = args.progress().bytes(plan.bytes(), "converting");
    let options = RunOptions { threads: workers(), sync: request.sync, replace: request.force };
    // Damage must not get a new checksum.
    source.check_sums()?;
    ms_cli::make_parent(&request.save)?;
    let done = plan.run(source, &request.save, &options, &|n| bar.inc(n));
    bar.finish_and_clear();
    let written = match done {
        Err(e @ ms_ckpt::Error::Exists { .. }) => return Err(e).hint("--force replaces it"),
        other => other?,
    };
    if let Some(first) = &written.first {
        tracing::warn!(
            "{} of the values written are not finite, the first of them in {first}: a model with such weights computes nothing",
            written.not_finite
        );
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = plan.bytes() as f64 / seconds.max(1e-9);
    tracing::info!(
        "{} files, {:.1} MB in {seconds:.2} s ({:.2} GB/s): {}",
        plan.files.len(),
        plan.bytes() as f64 / 1e6,
        rate / 1e9,
        request.save.display()
    );
    if args.json() {
        let report = json!({
            "save": request.save, "files": plan.files.len(), "bytes": plan.bytes(), "seconds": seconds,
            "bytes_per_second": rate, "not_finite": written.not_finite
        });
        writeln!(std::io::stdout().lock(), "{report}")?;
    }
    Ok(())
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}
