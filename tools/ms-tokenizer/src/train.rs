//! `ms-tokenizer train`.

use crate::cli::Train;
use anyhow::{Context, Result, bail};
use ms_cli::{Claim, Common, Interrupt, Usage, refuse};
use ms_data::records::{Documents, Format, InputFile, RecordReader, discover, file_list};
use ms_text::bpe::Step;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

pub(crate) fn run(args: &Train, common: &Common, interrupt: &Interrupt) -> Result<()> {
    let target = args.output.join("tokenizer.json");
    if target.exists() && !args.force {
        return Err(ms_data::Error::Exists { path: target }.into());
    }
    let files = files(args)?;
    if files.is_empty() {
        return Err(
            Usage("no file to train on\nhint: name files or folders, or pass --files-from".into()).into()
        );
    }
    let _claim = Claim::folder(&args.output, interrupt)?;
    for file in ["tokenizer", "tokenizer_config"] {
        interrupt.output(&args.output.join(file));
    }
    let options =
        ms_text::bpe::Options { vocab_size: args.vocab_size as usize, min_frequency: args.min_frequency };
    let started = Instant::now();
    let bar = common.progress().spinner("reading");
    let bytes = Arc::new(AtomicU64::new(0));
    // The trainer takes an iterator of texts; the first error ends it and is handled afterwards.
    let failure = Arc::new(Mutex::new(None));
    let texts = {
        let (bytes, failure, key) = (bytes.clone(), failure.clone(), args.json_key.clone());
        RecordReader::new(files.clone()).map_while(move |record| {
            let text = record.and_then(|record| {
                bytes.fetch_add(record.size() as u64, Ordering::Relaxed);
                let object = record.parse()?;
                let key = if record.format == Format::Json { key.as_str() } else { "text" };
                match object.get(key) {
                    Some(Value::String(text)) => Ok(text.clone()),
                    _ => Err(record.error(format!("{key}: expected a text"))),
                }
            });
            text.map_err(|error| *failure.lock().expect("no thread panics while holding it") = Some(error))
                .ok()
        })
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let trained = ms_text::bpe::train_with(&options, texts, threads, &|step| {
        bar.set_message(match step {
            Step::Counting { bytes } => format!("counting words: {:.1} MB", bytes as f64 / 1e6),
            Step::Merging { done, of } => format!("merging pairs: {done} of {of}"),
        });
    });
    let trained = trained.map_err(|error| match error {
        ms_text::Error::Train { vocab_size, reason } => {
            Usage(format!("--vocab-size {vocab_size}: {reason}")).into()
        }
        other => anyhow::Error::new(other),
    })?;
    if let Some(error) = failure.lock().expect("no thread panics while holding it").take() {
        return Err(error.into());
    }
    let bytes = bytes.load(Ordering::Relaxed);
    if bytes == 0 {
        bail!("{} files hold no text", files.len());
    }
    trained.write(&args.output)?;
    bar.finish_and_clear();
    if trained.too_long() > 0 {
        tracing::warn!(
            "{} runs of text without a break are longer than 1024 bytes; they were left out",
            trained.too_long()
        );
    }
    let seconds = started.elapsed().as_secs_f64();
    let mut out = std::io::stdout().lock();
    if common.json {
        let report = json!({
            "output": args.output.display().to_string(), "vocab_size": trained.vocab_size(),
            "files": files.len(), "bytes": bytes, "seconds": seconds, "too_long": trained.too_long(),
        });
        writeln!(out, "{report}")?;
    } else if !common.quiet {
        writeln!(
            out,
            "{}: {} tokens from {} files, {:.1} MB, in {seconds:.1} s",
            args.output.display(),
            trained.vocab_size(),
            files.len(),
            bytes as f64 / 1e6,
        )?;
    }
    if trained.vocab_size() < args.vocab_size as usize {
        tracing::warn!(
            "the text gives only {} tokens of the {} asked for",
            trained.vocab_size(),
            args.vocab_size
        );
    }
    Ok(())
}

/// Named files and those of lists; records of JSON files, all others as a whole.
fn files(args: &Train) -> Result<Vec<InputFile>> {
    let mut paths = args.files.clone();
    let named = paths.len();
    if let Some(list) = &args.files_from {
        let listed = file_list(list).context("--files-from")?;
        if listed.is_empty() && paths.is_empty() {
            refuse!("--files-from {}: it names no file", list.display());
        }
        paths.extend(listed);
    }
    let mut files = Vec::new();
    for (place, path) in paths.into_iter().enumerate() {
        let found = discover(&path, Documents::Files).with_context(|| match &args.files_from {
            Some(list) if place >= named => format!("--files-from {}", list.display()),
            _ => "an input".to_owned(),
        })?;
        files.extend(found.into_iter().map(|file| {
            let json = file.path.extension().is_some_and(|e| e == "json" || e == "jsonl");
            InputFile { format: if json { Format::Json } else { file.format }, ..file }
        }));
    }
    Ok(files)
}
