//! `ms-pack pack`: streams into packed datasets.

use crate::as_usage;
use crate::cli::Pack;
use anyhow::{Context, Result, bail};
use ms_cli::{Common, Usage};
use ms_data::handler::Kind;
use ms_data::pack::{PackOptions, Packing, plan};
use ms_data::sink::{IndexedSink, PackedSink, Sink, check_absent, dataset_prefixes};
use ms_data::token_stream::{StreamInfo, TokenReader};
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

/// The streams of a run, which must be of one kind.
fn open_streams(args: &Pack) -> Result<Vec<TokenReader<Box<dyn Read>>>> {
    let mut streams = Vec::new();
    if args.input.is_empty() {
        streams.push(open_stream(None)?);
    }
    for path in &args.input {
        streams.push(open_stream(Some(path))?);
    }
    let (first, others) = streams.split_first().expect("at least one stream");
    for (stream, path) in others.iter().zip(args.input.iter().skip(1)) {
        if stream.columns() != first.columns() {
            bail!(
                "{}: its columns are {}, those of the first stream are {}",
                path.display(),
                stream.columns().join(", "),
                first.columns().join(", ")
            );
        }
        if let Some((what, want, found)) = difference(first.info(), stream.info()) {
            bail!("{}: its {what} is {found}, that of the first stream is {want}", path.display());
        }
    }
    Ok(streams)
}

/// What streams of one run must have in common.
fn difference(a: &StreamInfo, b: &StreamInfo) -> Option<(&'static str, String, String)> {
    let length = |info: &StreamInfo| info.seq_length.map_or("none".to_owned(), |n| n.to_string());
    [
        ("style", a.style.clone(), b.style.clone()),
        ("tokenizer hash", a.tokenizer.clone(), b.tokenizer.clone()),
        ("vocabulary size", a.vocab_size.to_string(), b.vocab_size.to_string()),
        ("end-of-document id", a.eod.to_string(), b.eod.to_string()),
        ("padding id", a.pad.to_string(), b.pad.to_string()),
        ("--seq-length", length(a), length(b)),
    ]
    .into_iter()
    .find(|(_, a, b)| a != b)
}

/// What the flags ask of the rows of a stream.
struct Wish {
    seq_length: Option<usize>,
    /// How to pack; `None` writes rows as they are.
    options: Option<PackOptions>,
}

impl Wish {
    fn new(args: &Pack, info: &StreamInfo) -> Result<Self> {
        let seq_length = args.seq_length.or(info.seq_length.map(|n| n as usize));
        let packable = Kind::of_style(&info.style).is_ok_and(Kind::packable);
        if args.neat_pack && !packable {
            return Err(Usage(format!("--neat-pack: {} records cannot be packed", info.style)).into());
        }
        if !packable || args.no_pack {
            return Ok(Self { seq_length, options: None });
        }
        let row_tokens = seq_length.ok_or_else(|| {
            Usage("packing needs the length of a row\nhint: pass --seq-length N, or --no-pack".into())
        })?;
        let window = args.window as usize;
        let packing = match args.packing.as_str() {
            "first-fit" => Packing::FirstFit { window },
            "best-fit" => Packing::BestFit { window },
            _ => Packing::Knapsack,
        };
        let options = PackOptions {
            packing,
            multiple: args.pad_to_multiple_of as usize,
            ..PackOptions::new(row_tokens, args.neat_pack, args.pad_id.unwrap_or(info.pad))
        };
        Ok(Self { seq_length, options: Some(options) })
    }
}

pub(crate) fn run(args: &Pack, common: &Common) -> Result<()> {
    let started = Instant::now();
    let streams = open_streams(args)?;
    let (columns, info) = (streams[0].columns().to_vec(), streams[0].info().clone());
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
    let wish = Wish::new(args, &info)?;
    if args.dry_run {
        return compare(streams, &columns, &wish, args.window as usize, common);
    }
    let prefix = args.output_prefix.as_deref();
    let prefix = prefix.ok_or_else(|| Usage("no output\nhint: pass --output-prefix PREFIX".into()))?;
    let prefixes = dataset_prefixes(prefix, &columns, info.packed_name);
    check_absent(&prefixes, args.force)?;
    let packing = wish.options.is_some();
    let mut sink: Box<dyn Sink> = match wish.options {
        Some(options) => Box::new(PackedSink::create(&prefixes, &columns, options).map_err(as_usage)?),
        None => Box::new(IndexedSink::create(&prefixes, wish.seq_length)?),
    };
    let spinner = common.progress().spinner("packing");
    let mut rows = 0u64;
    for row in streams.into_iter().flatten() {
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
            "fill": summary.fill, "outputs": outputs, "seconds": seconds,
        });
        writeln!(out, "{report}")?;
    } else if !common.quiet {
        let long =
            if summary.too_long > 0 { format!(", {} too long", summary.too_long) } else { String::new() };
        let fill = summary.fill.map_or(String::new(), |fill| format!(", {:.2} % full", 100.0 * fill));
        writeln!(
            out,
            "{}: {rows} rows, {sequences} sequences, {tokens} tokens{fill}{long}, in {seconds:.1} s",
            prefix.display()
        )?;
    }
    Ok(())
}

/// What every way of packing would give.
fn compare(
    streams: Vec<TokenReader<Box<dyn Read>>>,
    columns: &[String],
    wish: &Wish,
    window: usize,
    common: &Common,
) -> Result<()> {
    let Some(options) = wish.options else {
        return Err(Usage("--dry-run compares ways of packing; these rows are not packed".into()).into());
    };
    options.check().map_err(as_usage)?;
    let ids = columns.iter().position(|name| name == "input_ids").unwrap_or(0);
    let mut lengths = Vec::new();
    for row in streams.into_iter().flatten() {
        lengths.extend(row?.columns[ids].as_ref().map(Vec::len));
    }
    let mut out = std::io::stdout().lock();
    let ways = [
        ("knapsack", Packing::Knapsack),
        ("first-fit", Packing::FirstFit { window }),
        ("best-fit", Packing::BestFit { window }),
    ];
    let mut all = serde_json::Map::new();
    for (name, packing) in ways {
        let counts = plan(&lengths, &PackOptions { packing, ..options });
        let fill = counts.fill(options.row_tokens);
        if common.json {
            let value = json!({
                "rows": counts.rows, "fill": fill, "samples": counts.samples, "tokens": counts.tokens,
                "dropped": counts.dropped, "cut": counts.cut,
            });
            all.insert(name.into(), value);
        } else {
            writeln!(
                out,
                "{name:9} {} rows of {} tokens, {:.2} % full; {} samples, {} left out, {} cut",
                counts.rows,
                options.row_tokens,
                100.0 * fill,
                counts.samples,
                counts.dropped,
                counts.cut
            )?;
        }
    }
    if common.json {
        writeln!(out, "{}", serde_json::Value::Object(all))?;
    }
    Ok(())
}
