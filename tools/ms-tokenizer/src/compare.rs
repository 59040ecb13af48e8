//! `ms-tokenizer compare`.

use crate::cli::Compare;
use anyhow::{Context, Result, bail};
use ms_cli::Common;
use ms_text::{Engine, Tokenizer};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};

/// Differences that are shown.
const SHOWN: u64 = 5;

pub(crate) fn run(args: &Compare, common: &Common) -> Result<()> {
    let fast = Tokenizer::load(&args.folder.tokenizer)?;
    let reference = Tokenizer::load_with(&args.folder.tokenizer, Engine::Reference)?;
    let total = args.files.iter().filter_map(|path| Some(path.metadata().ok()?.len())).sum();
    let bar = common.progress().bytes(total, "comparing");
    let (mut bytes, mut lines, mut tokens, mut differing) = (0u64, 0u64, 0u64, 0u64);
    let mut line = Vec::new();
    for path in &args.files {
        let name = || path.display().to_string();
        let mut reader = BufReader::with_capacity(1 << 20, File::open(path).with_context(name)?);
        for number in 1u64.. {
            line.clear();
            let count = reader.read_until(b'\n', &mut line).with_context(name)?;
            if count == 0 {
                break;
            }
            let text = match record_text(&line) {
                Some(text) => text.into(),
                None => String::from_utf8_lossy(&line),
            };
            let encode = |tokenizer: &Tokenizer| {
                if args.special { tokenizer.encode_with_special(&text) } else { tokenizer.encode(&text) }
            };
            let (ids, want) = (encode(&fast)?, encode(&reference)?);
            if ids != want {
                differing += 1;
                if differing <= SHOWN {
                    let at = ids.iter().zip(&want).take_while(|(a, b)| a == b).count();
                    tracing::warn!(
                        "{}: line {number}: from token {at} on: {:?}, the reference gives {:?}",
                        path.display(),
                        &ids[at..ids.len().min(at + 8)],
                        &want[at..want.len().min(at + 8)]
                    );
                }
            }
            bytes += count as u64;
            lines += 1;
            tokens += want.len() as u64;
            bar.set_position(bytes);
        }
    }
    bar.finish_and_clear();
    let mut out = std::io::stdout().lock();
    if common.json {
        let report = json!({
            "engine": fast.engine_name()?, "reference": reference.engine_name()?, "bytes": bytes, "lines": lines,
            "tokens": tokens, "differing": differing,
        });
        writeln!(out, "{report}")?;
    } else if !common.quiet {
        writeln!(
            out,
            "{lines} lines, {:.1} MB, {tokens} tokens: {differing} lines differ between {} and {}",
            bytes as f64 / 1e6,
            fast.engine_name()?,
            reference.engine_name()?
        )?;
    }
    if differing > 0 {
        bail!("{differing} of {lines} lines differ");
    }
    Ok(())
}

/// The text of a line that is a record, line ends and all; any other line is a text itself.
fn record_text(line: &[u8]) -> Option<String> {
    match serde_json::from_slice(line).ok()? {
        Value::Object(mut record) => match record.remove("text")? {
            Value::String(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}
