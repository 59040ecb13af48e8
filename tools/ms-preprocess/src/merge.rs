//! `--merge-group-keys`: merges several datasets of a folder.

use crate::curation::beside;
use anyhow::{Context, Result, bail};
use ms_cli::megatron::Args;
use ms_cli::{Claim, Interrupt};
use ms_data::indexed::{IndexedDataset, IndexedWriter, bin_path, idx_path, sets_in};
use ms_data::preprocess::Manifest;
use ms_data::sink::check_absent;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

/// For each word, merges the sets of `folder` whose names hold it, in the order of their names, into `PREFIX_WORD`.
pub(crate) fn run(
    args: &Args,
    folder: &Path,
    words: &[String],
    prefix: &Path,
    force: bool,
    interrupt: &Interrupt,
) -> Result<()> {
    // As upstream, by their names without the ending: `a`, then `a-b`.
    let names = sets_in(folder).context("--merge-group-keys: --input")?;
    let _claim = Claim::new(prefix, interrupt)?;
    interrupt.output(prefix);
    // All of them are looked at before the first one is written.
    let mut merged = Vec::with_capacity(words.len());
    for word in words {
        let mut output = prefix.as_os_str().to_os_string();
        output.push("_");
        output.push(word);
        let output = PathBuf::from(output);
        check_absent(std::slice::from_ref(&output), force)?;
        let holds =
            |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains(word));
        let parts: Vec<&PathBuf> = names.iter().filter(holds).collect();
        if parts.is_empty() {
            bail!("{}: no dataset whose name holds {word:?}", folder.display());
        }
        if let Some(missing) = parts.iter().flat_map(|p| [bin_path(p), idx_path(p)]).find(|p| !p.exists()) {
            bail!("{}: this file of a dataset is missing", missing.display());
        }
        merged.push((output, parts));
    }
    let mut writers = Vec::with_capacity(merged.len());
    for (output, parts) in &merged {
        let mut writer = IndexedWriter::create(output, IndexedDataset::open(parts[0])?.token_type())?;
        for part in parts {
            writer.append(&IndexedDataset::open(part)?)?;
        }
        writers.push(writer);
    }
    let counts: Vec<_> = writers.iter().map(|writer| (writer.sequences(), writer.tokens())).collect();
    IndexedWriter::finish_all(writers, || {
        merged.iter().try_for_each(|(output, _)| Manifest::forget(&beside(output, "manifest.json")))
    })?;
    let mut out = std::io::stdout().lock();
    for ((output, parts), (sequences, tokens)) in merged.into_iter().zip(counts) {
        if args.json() {
            let output = output.display().to_string();
            writeln!(
                out,
                "{}",
                json!({"prefix": output, "parts": parts.len(), "sequences": sequences, "tokens": tokens})
            )?;
        } else if !args.quiet() {
            writeln!(
                out,
                "{}: {} parts, {sequences} sequences, {tokens} tokens",
                output.display(),
                parts.len()
            )?;
        }
    }
    Ok(())
}
