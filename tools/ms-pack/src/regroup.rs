//! `ms-pack merge` and `ms-pack split`: regrouping the documents of datasets into other files.

use crate::cli::{Merge, Split};
use crate::record;
use anyhow::{Result, bail};
use ms_cli::{Claim, Common, Interrupt, Usage};
use ms_data::indexed::{IndexedDataset, IndexedWriter, bin_path, idx_path, resolve, sets_in};
use ms_data::preprocess::Manifests;
use ms_data::sink::check_absent;
use serde_json::json;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub(crate) fn merge(args: &Merge, common: &Common, interrupt: &Interrupt) -> Result<()> {
    let parts = match &args.input {
        Some(folder) => sets_of(folder)?,
        None => args.parts.iter().map(|part| resolve(part)).collect::<ms_data::Result<_>>()?,
    };
    check_absent(std::slice::from_ref(&args.output_prefix), args.force)?;
    record::check_absent(&args.output_prefix, args.force)?;
    ms_cli::check_prefix(&args.output_prefix)?;
    parts.iter().try_for_each(|part| check_elsewhere(part, &args.output_prefix))?;
    // Damage must not get a new checksum.
    let mut manifests = Manifests::default();
    parts.iter().try_for_each(|part| record::check(part, &mut manifests))?;
    let tokenizer = record::common_tokenizer(&parts, &mut manifests)?;
    let _claim = Claim::new(&args.output_prefix, interrupt)?;
    interrupt.output(&args.output_prefix);
    let first = IndexedDataset::open(&parts[0])?;
    let mut writer = IndexedWriter::create(&args.output_prefix, first.token_type())?;
    drop(first);
    let bar = common.progress().bar(parts.len() as u64, "merging");
    for part in &parts {
        writer.append(&IndexedDataset::open(part)?)?;
        bar.inc(1);
    }
    let (sequences, tokens) = (writer.sequences(), writer.tokens());
    let done = writer.complete()?;
    record::forget(&args.output_prefix)?;
    done.publish(&mut Manifests::default())?;
    if let Some(tokenizer) = tokenizer {
        record::write_or_withdraw(
            &args.output_prefix,
            "merge",
            std::slice::from_ref(&args.output_prefix),
            &tokenizer,
        )?;
    }
    bar.finish_and_clear();
    let mut out = std::io::stdout().lock();
    let prefix = args.output_prefix.display().to_string();
    if common.json {
        let report =
            json!({"prefix": prefix, "parts": parts.len(), "sequences": sequences, "tokens": tokens});
        writeln!(out, "{report}")?;
    } else if !common.quiet {
        writeln!(out, "{prefix}: {} parts, {sequences} sequences, {tokens} tokens", parts.len())?;
    }
    Ok(())
}

/// Refuses an output that is an input.
fn check_elsewhere(input: &Path, output: &Path) -> Result<()> {
    match (std::fs::canonicalize(bin_path(input)), std::fs::canonicalize(bin_path(output))) {
        (Ok(a), Ok(b)) if a == b => {
            let path = output.display();
            Err(Usage(format!("--output-prefix {path}: it is an input too\nhint: write elsewhere")).into())
        }
        _ => Ok(()),
    }
}

/// The datasets of a folder by name; every index needs its tokens, and the reverse.
fn sets_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let sets = sets_in(folder)?;
    for set in &sets {
        for file in [bin_path(set), idx_path(set)] {
            if !file.exists() {
                bail!("{}: the other file of this dataset is there, this one is missing", file.display());
            }
        }
    }
    if sets.is_empty() {
        bail!("{}: no dataset in this folder", folder.display());
    }
    Ok(sets)
}

pub(crate) fn split(args: &Split, common: &Common, interrupt: &Interrupt) -> Result<()> {
    ms_cli::check_prefix(&args.output_prefix)?;
    let set = IndexedDataset::open(&args.input)?;
    let documents = set.documents();
    let parts: Vec<(String, Range<usize>)> = match (&args.split, args.parts) {
        (Some(shares), _) => {
            let ranges = ms_data::Split::parse(shares)
                .map_err(|e| ms_cli::Usage(format!("--split: {e}")))?
                .pretraining_ranges(documents);
            let names = ["train", "valid", "test"].map(str::to_owned);
            names.into_iter().zip(ranges).filter_map(|(name, range)| Some((name, range?))).collect()
        }
        (None, parts) => {
            let parts = parts.unwrap_or(1) as usize;
            let at = |k: usize| (documents as u128 * k as u128 / parts as u128) as usize;
            (0..parts).map(|k| (format!("{k:05}_of_{parts:05}"), at(k)..at(k + 1))).collect()
        }
    };
    let prefix_of = |name: &str| {
        let mut prefix = args.output_prefix.as_os_str().to_os_string();
        prefix.push("_");
        prefix.push(name);
        PathBuf::from(prefix)
    };
    let prefixes: Vec<PathBuf> = parts.iter().map(|(name, _)| prefix_of(name)).collect();
    check_absent(&prefixes, args.force)?;
    prefixes.iter().try_for_each(|prefix| record::check_absent(prefix, args.force))?;
    prefixes.iter().try_for_each(|prefix| check_elsewhere(set.prefix(), prefix))?;
    let mut manifests = Manifests::default();
    record::check(set.prefix(), &mut manifests)?;
    let tokenizer = record::common_tokenizer(&[set.prefix().to_owned()], &mut manifests)?;
    let _claim = Claim::new(&args.output_prefix, interrupt)?;
    interrupt.output(&args.output_prefix);
    let (mut done, mut manifests) = (Vec::with_capacity(parts.len()), Manifests::default());
    for ((_, range), prefix) in parts.into_iter().zip(&prefixes) {
        let part = part(&set, range, prefix, tokenizer.as_deref(), &mut manifests, interrupt);
        done.push(part.inspect_err(|_| record::withdraw(&prefixes[..done.len()]))?);
    }
    interrupt.keep(prefixes.iter().flat_map(|prefix| record::files_of(prefix)));
    let mut out = std::io::stdout().lock();
    for ((count, sequences, tokens), prefix) in done.into_iter().zip(prefixes) {
        let prefix = prefix.display().to_string();
        if common.json {
            let report =
                json!({"prefix": prefix, "documents": count, "sequences": sequences, "tokens": tokens});
            writeln!(out, "{report}")?;
        } else if !common.quiet {
            writeln!(out, "{prefix}: {count} documents, {sequences} sequences, {tokens} tokens")?;
        }
    }
    Ok(())
}

/// Writes some documents of a set as one of their own; how many documents, sequences and tokens it has.
fn part(
    set: &IndexedDataset,
    documents: Range<usize>,
    prefix: &Path,
    tokenizer: Option<&str>,
    manifests: &mut Manifests,
    interrupt: &Interrupt,
) -> Result<(usize, usize, u64)> {
    let count = documents.len();
    let mut writer = IndexedWriter::create(prefix, set.token_type())?;
    writer.append_documents(set, documents)?;
    let (sequences, tokens) = (writer.sequences(), writer.tokens());
    let done = writer.complete()?;
    // Until the last part is there.
    record::files_of(prefix).iter().for_each(|file| interrupt.file(file));
    record::forget(prefix)?;
    done.publish(manifests)?;
    if let Some(tokenizer) = tokenizer {
        record::write_or_withdraw(prefix, "split", &[prefix.to_owned()], tokenizer)?;
    }
    Ok((count, sequences, tokens))
}
