//! `ms-pack pack`: token streams to packed datasets.

use crate::cli::Pack;
use crate::{as_usage, record};
use anyhow::{Context, Result, bail};
use ms_cli::{Claim, Common, Interrupt, Usage, refuse};
use ms_data::handler::{RecordKind, Row};
use ms_data::pack::{PackOptions, Packing, plan};
use ms_data::sink::{IndexedSink, Level, PackedSink, Sink, check_absent, dataset_prefixes};
use ms_data::token_stream::{StreamInfo, TokenMap, TokenReader};
use ms_text::Tokenizer;
use serde_json::json;
use std::borrow::Cow;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::time::Instant;

/// A stream from a file or standard input.
pub(crate) fn open_stream(input: Option<&Path>) -> Result<TokenReader<Box<dyn Read>>> {
    let path = input.filter(|path| *path != Path::new("-"));
    let (name, reader): (String, Box<dyn Read>) = match path {
        Some(path) if path.is_dir() => bail!("{}: expected a file, found a folder", path.display()),
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
enum Streams {
    /// All of them are files.
    Mapped(Vec<TokenMap>),
    /// At least one is a pipe.
    Piped(Vec<TokenReader<Box<dyn Read>>>),
}

impl Streams {
    fn open(args: &Pack) -> Result<Self> {
        let streams = if !args.input.is_empty() && args.input.iter().all(|path| path.is_file()) {
            Self::Mapped(args.input.iter().map(|path| TokenMap::open(path)).collect::<ms_data::Result<_>>()?)
        } else if args.input.is_empty() {
            Self::Piped(vec![open_stream(None)?])
        } else {
            Self::Piped(args.input.iter().map(|path| open_stream(Some(path))).collect::<Result<_>>()?)
        };
        let heads = streams.heads();
        let ((columns, info), others) = heads.split_first().expect("at least one stream");
        for ((other_columns, other_info), path) in others.iter().zip(args.input.iter().skip(1)) {
            if other_columns != columns {
                bail!(
                    "{}: its columns are {}, those of the first stream are {}",
                    path.display(),
                    other_columns.join(", "),
                    columns.join(", ")
                );
            }
            if let Some((what, want, found)) = difference(info, other_info) {
                bail!("{}: its {what} is {found}, that of the first stream is {want}", path.display());
            }
        }
        Ok(streams)
    }

    /// Columns of the streams, and what they say of themselves.
    fn heads(&self) -> Vec<(&[String], &StreamInfo)> {
        match self {
            Self::Mapped(maps) => maps.iter().map(|map| (map.columns(), map.info())).collect(),
            Self::Piped(readers) => readers.iter().map(|reader| (reader.columns(), reader.info())).collect(),
        }
    }

    /// Lengths of the sequences of a column, in order.
    fn lengths(self, column: usize) -> Result<Vec<usize>> {
        let mut lengths = Vec::new();
        match self {
            Self::Mapped(maps) => {
                for map in &maps {
                    lengths.extend(map.rows().filter_map(|row| Some(map.sequence(row, column)?.len())));
                }
            }
            Self::Piped(readers) => {
                for row in readers.into_iter().flatten() {
                    lengths.extend(row?.columns[column].as_ref().map(Vec::len));
                }
            }
        }
        Ok(lengths)
    }

    /// All rows, one after the other.
    fn rows(self) -> Box<dyn Iterator<Item = ms_data::Result<Row>>> {
        match self {
            Self::Mapped(maps) => Box::new(maps.into_iter().flat_map(|map| {
                let places: Vec<_> = map.rows().collect();
                places.into_iter().map(move |place| {
                    let sequence = |column| map.sequence(place, column).map(Cow::into_owned);
                    Ok(Row::new((0..map.columns().len()).map(sequence).collect()))
                })
            })),
            Self::Piped(readers) => Box::new(readers.into_iter().flatten()),
        }
    }

    /// Packs all rows; returns their number.
    fn pack(self, sink: &mut PackedSink) -> Result<u64> {
        match self {
            Self::Mapped(maps) => {
                sink.pack_maps(&maps)?;
                Ok(maps.iter().map(TokenMap::len).sum())
            }
            Self::Piped(readers) => {
                let mut rows = 0;
                for reader in readers {
                    rows += sink.pack_stream(reader)?;
                }
                Ok(rows)
            }
        }
    }
}

/// Gives all rows to a sink; returns their number.
fn pour(rows: impl Iterator<Item = ms_data::Result<Row>>, sink: &mut dyn Sink) -> Result<u64> {
    let mut count = 0;
    for row in rows {
        sink.row(row?)?;
        count += 1;
    }
    Ok(count)
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
struct PackRequest {
    seq_length: Option<usize>,
    /// How to pack; `None` writes rows as they are.
    options: Option<PackOptions>,
}

impl PackRequest {
    fn new(args: &Pack, info: &StreamInfo) -> Result<Self> {
        let seq_length = args.seq_length.or(info.seq_length.map(|n| n as usize));
        let packable = RecordKind::of_style(&info.style).is_ok_and(RecordKind::packable);
        if args.neat_pack && !packable {
            refuse!("--neat-pack: {} records cannot be packed", info.style);
        }
        if !packable || args.no_pack {
            return Ok(Self { seq_length, options: None });
        }
        let row_tokens = seq_length.ok_or_else(|| {
            Usage("packing needs the length of a row\nhint: pass --seq-length N, or --no-pack".into())
        })?;
        if row_tokens < 2 {
            let what = "--seq-length: expected at least 2 tokens a row, a token and the one behind it, found";
            refuse!("{what} {row_tokens}");
        }
        let window = args.window as usize;
        let packing = match args.packing.as_str() {
            "first-fit" => Packing::FirstFit { window },
            "best-fit" => Packing::BestFit { window },
            _ => Packing::Knapsack,
        };
        if let Some(id) = args.pad_id.filter(|&id| id as u64 >= info.vocab_size) {
            let all = info.vocab_size;
            refuse!("--pad-id: expected a token of the stream's vocabulary, below {all}, found {id}");
        }
        let options = PackOptions {
            packing,
            multiple: args.pad_to_multiple_of as usize,
            ..PackOptions::new(row_tokens, args.neat_pack, args.pad_id.unwrap_or(info.pad))
        };
        Ok(Self { seq_length, options: Some(options) })
    }
}

pub(crate) fn run(args: &Pack, common: &Common, interrupt: &Interrupt) -> Result<()> {
    let started = Instant::now();
    let streams = Streams::open(args)?;
    let (columns, info) = (streams.heads()[0].0.to_vec(), streams.heads()[0].1.clone());
    if let Some(dir) = &args.tokenizer_name_or_path {
        let tokenizer = Tokenizer::load_kept(dir, ms_cli::tokenizer_cache().as_deref())?;
        if tokenizer.content_hash() != info.tokenizer {
            bail!(
                "the stream was made with another tokenizer: its hash is {}, that of {} is {}",
                info.tokenizer,
                dir.display(),
                tokenizer.content_hash()
            );
        }
    }
    let request = PackRequest::new(args, &info)?;
    if args.dry_run {
        return compare(streams, &columns, &request, args.window as usize, common);
    }
    let prefix = args.output_prefix.as_deref();
    let prefix = prefix.ok_or_else(|| Usage("no output\nhint: pass --output-prefix PREFIX".into()))?;
    ms_cli::check_prefix(prefix)?;
    let prefixes = dataset_prefixes(prefix, &columns, info.packed_name, Level::Document);
    check_absent(&prefixes, args.force)?;
    let _claim = Claim::new(prefix, interrupt)?;
    interrupt.output(prefix);
    let packing = request.options.is_some();
    let spinner = common.progress().spinner("packing");
    let (rows, sink): (u64, Box<dyn Sink>) = match request.options {
        Some(options) => {
            let mut sink = Box::new(PackedSink::create(&prefixes, &columns, options).map_err(as_usage)?);
            (streams.pack(&mut sink)?, sink)
        }
        None => {
            let mut sink = Box::new(IndexedSink::create(&prefixes, request.seq_length)?);
            (pour(streams.rows(), sink.as_mut())?, sink)
        }
    };
    let summary = sink.finish_after(&mut || record::forget(prefix))?;
    record::write_or_withdraw(prefix, "pack", &prefixes, &info.tokenizer)?;
    spinner.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let tokens = summary.outputs.first().map_or(0, |output| output.tokens);
    let sequences = summary.outputs.first().map_or(0, |output| output.sequences);
    if sequences == 0 && summary.too_long > 0 {
        let (name, long) = (prefix.display(), summary.too_long);
        tracing::warn!(
            "{name}: the dataset is empty: {long} samples are too long for --seq-length {}",
            request.seq_length.unwrap_or_default()
        );
    }
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
            "{}: {rows} samples, {sequences} sequences, {tokens} tokens{fill}{long}, in {seconds:.1} s",
            prefix.display()
        )?;
    }
    Ok(())
}

/// What every way of packing would give.
fn compare(
    streams: Streams,
    columns: &[String],
    request: &PackRequest,
    window: usize,
    common: &Common,
) -> Result<()> {
    let Some(options) = request.options else {
        refuse!("--dry-run compares ways of packing; these rows are not packed");
    };
    options.check().map_err(as_usage)?;
    let ids = columns.iter().position(|name| name == "input_ids").unwrap_or(0);
    let lengths = streams.lengths(ids)?;
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
