//! `ms-pack pack` and `ms-pack merge`.

use crate::as_usage;
use crate::cli::{Merge, Pack};
use anyhow::{Context, Result, bail};
use ms_cli::{Common, Usage};
use ms_data::handler::Kind;
use ms_data::indexed::{IndexedDataset, IndexedWriter};
use ms_data::pack::PackOptions;
use ms_data::sink::{IndexedSink, PackedSink, Sink, check_absent, dataset_prefixes};
use ms_data::token_stream::TokenReader;
use ms_text::Tokenizer;
use serde_json::json;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::time::Instant;

/// A stream from a file or standard input.
pub(crate) fn open_stream(input: Option<&Path>) -> Result<TokenReader<Box<dyn Read>>> {
    let path = input.filter(|path| *path != Path::new("-"));
    let (name, reader): (String, Box<dyn Read>) = match path {
        Some(path) => {
            let file = File::open(path).with_context(|| path.display().to_string())?;
            (path.display().to_string(), Box::new(file))
        }
        None if input.is_none() && std::io::stdin().is_terminal() => {
            return Err(
                Usage("no input\nhint: pipe ms-preprocess into it, or pass --input FILE".into()).into()
            );
        }
        None => ("standard input".into(), Box::new(std::io::stdin())),
    };
    Ok(TokenReader::new(reader, &name)?)
}

pub(crate) fn run(args: &Pack, common: &Common) -> Result<()> {
    let started = Instant::now();
    let prefix = args.output_prefix.as_deref();
    let prefix = prefix.ok_or_else(|| Usage("no output\nhint: pass --output-prefix PREFIX".into()))?;
    let stream = open_stream(args.input.as_deref())?;
    let (columns, info) = (stream.columns().to_vec(), stream.info().clone());
    if let Some(dir) = &args.tokenizer_name_or_path {
        let tokenizer = Tokenizer::load(dir)?;
        if tokenizer.content_hash() != info.tokenizer {
            bail!(
                "the stream was made with another tokenizer: its hash is {}, that of {} is {}",
                info.tokenizer,
                dir.display(),
                tokenizer.content_hash()
            );
        }
    }
    let prefixes = dataset_prefixes(prefix, &columns, info.packed_name);
    check_absent(&prefixes, args.force)?;
    let seq_length = args.seq_length.or(info.seq_length.map(|n| n as usize));
    let packable = Kind::of_style(&info.style).is_ok_and(Kind::packable);
    if args.neat_pack && !packable {
        return Err(Usage(format!("--neat-pack: {} records cannot be packed", info.style)).into());
    }
    let packing = packable && !args.no_pack;
    let mut sink: Box<dyn Sink> = if packing {
        let row_tokens = seq_length.ok_or_else(|| {
            Usage("packing needs the length of a row\nhint: pass --seq-length N, or --no-pack".into())
        })?;
        let options = PackOptions { row_tokens, neat: args.neat_pack, pad: info.pad };
        Box::new(PackedSink::create(&prefixes, &columns, options).map_err(as_usage)?)
    } else {
        Box::new(IndexedSink::create(&prefixes, seq_length)?)
    };
    let spinner = common.progress().spinner("packing");
    let mut rows = 0u64;
    for row in stream {
        sink.row(row?)?;
        rows += 1;
    }
    let summary = sink.finish()?;
    spinner.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let tokens = summary.outputs.first().map_or(0, |output| output.tokens);
    let sequences = summary.outputs.first().map_or(0, |output| output.sequences);
    let mut out = std::io::stdout().lock();
    if common.json {
        let outputs: Vec<_> = summary
            .outputs
            .iter()
            .map(|o| json!({"prefix": o.prefix.display().to_string(), "sequences": o.sequences, "tokens": o.tokens}))
            .collect();
        let report = json!({
            "rows": rows, "too_long": summary.too_long, "packed": summary.packed, "packing": packing,
            "outputs": outputs, "seconds": seconds,
        });
        writeln!(out, "{report}")?;
    } else if !common.quiet {
        let long =
            if summary.too_long > 0 { format!(", {} too long", summary.too_long) } else { String::new() };
        writeln!(
            out,
            "{}: {rows} rows, {sequences} sequences, {tokens} tokens{long}, in {seconds:.1} s",
            prefix.display()
        )?;
    }
    Ok(())
}

pub(crate) fn merge(args: &Merge, common: &Common) -> Result<()> {
    check_absent(std::slice::from_ref(&args.output_prefix), args.force)?;
    let first = IndexedDataset::open(&args.parts[0])?;
    let mut writer = IndexedWriter::create(&args.output_prefix, first.token_type())?;
    let bar = common.progress().bar(args.parts.len() as u64, "merging");
    for part in &args.parts {
        writer.append(&IndexedDataset::open(part)?)?;
        bar.inc(1);
    }
    let (sequences, tokens) = (writer.sequences(), writer.tokens());
    writer.finish()?;
    bar.finish_and_clear();
    let mut out = std::io::stdout().lock();
    let prefix = args.output_prefix.display().to_string();
    if common.json {
        let report =
            json!({"prefix": prefix, "parts": args.parts.len(), "sequences": sequences, "tokens": tokens});
        writeln!(out, "{report}")?;
    } else if !common.quiet {
        writeln!(out, "{prefix}: {} parts, {sequences} sequences, {tokens} tokens", args.parts.len())?;
    }
    Ok(())
}
