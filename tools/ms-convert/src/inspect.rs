//! `ms-convert inspect DIR`: the contents of a checkpoint.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use ms_ckpt::Checkpoint;
use ms_ckpt::layout::mcore::Hints;
use ms_ckpt::layout::torch_dist;
use ms_spec::{Place, params};
use serde_json::{Value, json};

/// Shows a checkpoint as a table, or as one JSON object.
///
/// # Errors
/// A folder that is not a checkpoint; a closed stdout.
pub(crate) fn run(dir: &Path, hints: &Hints, as_json: bool) -> anyhow::Result<()> {
    let checkpoint = match ms_ckpt::open_with(dir, None, hints) {
        Ok(checkpoint) => checkpoint,
        // The keys of a distributed checkpoint can be listed without knowing the model.
        Err(why) => match torch_dist::keys(dir) {
            Ok(keys) => return show_keys(dir, &keys, &why, as_json),
            Err(_) => return Err(why.into()),
        },
    };
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{}", describe(&checkpoint))?;
        return Ok(());
    }
    let shape = |s: &[usize]| s.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ");
    let mut last = None;
    // Chunks of a distributed checkpoint are known by tensor, not by file.
    let mut stored: Vec<_> = checkpoint.stored().collect();
    stored.sort_by_key(|t| t.file);
    for tensor in stored {
        if last != Some(tensor.file) {
            writeln!(out, "{}", tensor.file.display())?;
            last = Some(tensor.file);
        }
        writeln!(out, "  {:<64} {:>5}  {}", tensor.name, tensor.dtype.name(), shape(tensor.shape))?;
    }
    let c = checkpoint.config();
    writeln!(
        out,
        "\n{} checkpoint, iteration {}, {} files, {:.1} MB",
        checkpoint.form().name(),
        checkpoint.iteration(),
        files(&checkpoint),
        checkpoint.bytes() as f64 / 1e6
    )?;
    writeln!(
        out,
        "{:?}: {} layers, hidden {}, ffn {}, {} heads of {}, {} key/value heads, vocabulary {} ({} rows){}",
        c.family,
        c.layers,
        c.hidden,
        c.ffn,
        c.heads,
        c.head_dim,
        c.groups,
        c.vocab,
        c.padded_vocab,
        if c.tied { ", tied" } else { "" }
    )?;
    for (part, count) in counts(&checkpoint) {
        writeln!(out, "{count:>16}  parameters in {part}")?;
    }
    Ok(())
}

fn show_keys(
    dir: &Path,
    keys: &[torch_dist::Key],
    why: &ms_ckpt::Error,
    as_json: bool,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        let keys: Vec<Value> = keys
            .iter()
            .map(|k| json!({"name": k.name, "dtype": k.dtype, "shape": k.shape, "chunks": k.chunks}))
            .collect();
        writeln!(out, "{}", json!({"kind": "torch_dist", "keys": keys, "model": null}))?;
        return Ok(());
    }
    for key in keys {
        let shape = key.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ");
        writeln!(out, "  {:<64} {:>14}  {shape} ({} chunks)", key.name, key.dtype, key.chunks)?;
    }
    writeln!(out, "\ntorch_dist checkpoint, {} keys; its model is not known: {why}", keys.len())?;
    tracing::info!("{}: a config.json beside it would tell the model", dir.display());
    Ok(())
}

fn files(checkpoint: &Checkpoint) -> usize {
    checkpoint.stored().map(|t| t.file.to_owned()).collect::<std::collections::BTreeSet<_>>().len()
}

/// Parameters by part of the model, and their sum.
fn counts(checkpoint: &Checkpoint) -> Vec<(&'static str, usize)> {
    let mut parts: BTreeMap<u8, usize> = BTreeMap::new();
    for spec in params(checkpoint.config()) {
        let part = match spec.slot.place {
            Place::Embedding => 0,
            Place::Layer(_) => 1,
            Place::Head => 2,
            Place::Mtp(_) => 3,
        };
        *parts.entry(part).or_default() += spec.shape.numel();
        *parts.entry(4).or_default() += spec.shape.numel();
    }
    let name = |part: &u8| {
        ["the embedding", "the layers", "the head", "the prediction layers", "the model"][usize::from(*part)]
    };
    parts.iter().map(|(part, count)| (name(part), *count)).collect()
}

fn describe(checkpoint: &Checkpoint) -> Value {
    let stored: Vec<Value> = checkpoint
        .stored()
        .map(|t| json!({"file": t.file, "name": t.name, "dtype": t.dtype, "shape": t.shape}))
        .collect();
    let tensors: Vec<Value> = checkpoint
        .tensors()
        .map(|(name, shape, dtype)| json!({"name": name, "shape": shape.to_vec(), "dtype": dtype}))
        .collect();
    let parameters: serde_json::Map<String, Value> = counts(checkpoint)
        .into_iter()
        .map(|(part, n)| (part.trim_start_matches("the ").to_owned(), json!(n)))
        .collect();
    json!({
        "kind": checkpoint.form().name(), "iteration": checkpoint.iteration(), "bytes": checkpoint.bytes(),
        "config": checkpoint.config(), "parameters": parameters, "tensors": tensors, "stored": stored
    })
}
