//! The program behind `ms-preprocess`.

mod cli;
mod merge;

use anyhow::Result;
use cli::{ABOUT, Job, Target, Tokenize, resolve};
use ms_cli::Usage;
use ms_cli::megatron::{Args, Program, parse_or_exit};
use ms_data::handler::Handler;
use ms_data::pack::PackOptions;
use ms_data::preprocess::{self, Report};
use ms_data::records::RecordReader;
use ms_data::sink::{IndexedSink, PackedSink, Sink, Summary, check_absent, dataset_prefixes};
use ms_data::token_stream::{StreamInfo, TokenStreamSink};
use ms_text::Tokenizer;
use serde_json::json;
use std::io::{BufWriter, IsTerminal, Write};
use std::time::Instant;

/// Parses the command line and does what it says.
///
/// # Errors
/// What went wrong; [`Usage`] for a command line that makes no sense.
pub fn run() -> Result<()> {
    let argv: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    let args = parse_or_exit(Program::Preprocess, "ms-preprocess", ABOUT, &argv)?;
    args.check()?;
    args.start_logging();
    match resolve(&args, !std::io::stdout().is_terminal())? {
        Job::Merge { folder, words, prefix, force } => merge::run(&args, &folder, &words, &prefix, force),
        Job::Tokenize(job) => tokenize(&args, &job),
    }
}

/// Mistakes in options are mistakes of the command line.
fn as_usage(error: ms_data::Error) -> anyhow::Error {
    match error {
        ms_data::Error::Options(text) => Usage(text).into(),
        other => other.into(),
    }
}

fn tokenize(args: &Args, job: &Tokenize) -> Result<()> {
    let started = Instant::now();
    let tokenizer = Tokenizer::load(&job.tokenizer)?;
    let handler = Handler::new(job.options.clone(), tokenizer).map_err(as_usage)?;
    if args.has("tokenizer_not_use_fast") {
        tracing::warn!(
            "--tokenizer-not-use-fast: tokenizer.json is used; a slow tokenizer can differ from it in rare texts"
        );
    }
    if args.flag("dry_run") {
        return plan(args, job, &handler);
    }
    let part_rows = if job.parts > 1 {
        let rows = preprocess::count_rows(RecordReader::new(job.inputs.clone()), &handler)?;
        Some(preprocess::rows_per_part(rows, job.parts).map_err(as_usage)?)
    } else {
        None
    };
    let sink = open_sink(job, &handler)?;
    let total: u64 = job.inputs.iter().filter_map(|file| Some(file.path.metadata().ok()?.len())).sum();
    let bar = args.progress().bytes(total, "tokenizing");
    let reader = RecordReader::new(job.inputs.clone());
    let (report, summary) = preprocess::run(reader, &handler, job.workers, part_rows, sink, |report| {
        bar.set_position(report.bytes);
    })?;
    bar.finish_and_clear();
    if report.replaced > 0 {
        tracing::warn!(
            "{} records are no conversation and were replaced by an empty one, as upstream does",
            report.replaced
        );
    }
    finish(args, job, &report, &summary, started.elapsed().as_secs_f64())
}

fn open_sink(job: &Tokenize, handler: &Handler) -> Result<Box<dyn Sink>> {
    let (columns, options) = (handler.columns(), handler.options());
    let pad = handler.tokenizer().pad_id().map(|id| id as i32);
    match &job.target {
        Target::Stream => {
            let tokenizer = handler.tokenizer();
            let info = StreamInfo {
                style: handler.kind().name().to_owned(),
                tokenizer: tokenizer.content_hash().to_owned(),
                vocab_size: tokenizer.vocab_size() as u64,
                eod: tokenizer.eod()? as i32,
                pad: pad?,
                seq_length: options.seq_length.map(|n| n as u64),
                packed_name: handler.kind().packed_name(),
            };
            let out = BufWriter::with_capacity(1 << 20, std::io::stdout());
            Ok(Box::new(TokenStreamSink::new(out, "standard output", columns, &info)?))
        }
        Target::Files { prefix, force } => {
            let prefixes = dataset_prefixes(prefix, columns, handler.kind().packed_name());
            check_absent(&prefixes, *force)?;
            match options.seq_length.filter(|_| job.pack) {
                None => Ok(Box::new(IndexedSink::create(&prefixes, options.seq_length)?)),
                Some(row_tokens) => {
                    let pack = PackOptions { row_tokens, neat: options.neat_pack, pad: pad? };
                    Ok(Box::new(PackedSink::create(&prefixes, columns, pack).map_err(as_usage)?))
                }
            }
        }
    }
}

/// What would be done.
fn plan(args: &Args, job: &Tokenize, handler: &Handler) -> Result<()> {
    let files: Vec<String> = job.inputs.iter().map(|file| file.path.display().to_string()).collect();
    let bytes: u64 = job.inputs.iter().filter_map(|file| Some(file.path.metadata().ok()?.len())).sum();
    let outputs: Vec<String> = match &job.target {
        Target::Stream => vec!["-".into()],
        Target::Files { prefix, .. } => {
            dataset_prefixes(prefix, handler.columns(), handler.kind().packed_name())
                .iter()
                .map(|prefix| prefix.display().to_string())
                .collect()
        }
    };
    let mut out = std::io::stdout().lock();
    if args.flag("json") {
        writeln!(
            out,
            "{}",
            json!({"style": handler.kind().name(), "inputs": files, "bytes": bytes, "outputs": outputs})
        )?;
    } else {
        writeln!(out, "{} records of {} files, {bytes} bytes", handler.kind().name(), files.len())?;
        outputs.iter().try_for_each(|output| writeln!(out, "writes {output}"))?;
    }
    Ok(())
}

/// The last line, on stdout unless that carries the stream.
fn finish(args: &Args, job: &Tokenize, report: &Report, summary: &Summary, seconds: f64) -> Result<()> {
    let outputs: Vec<_> = summary
        .outputs
        .iter()
        .map(|o| json!({"prefix": o.prefix.display().to_string(), "sequences": o.sequences, "tokens": o.tokens}))
        .collect();
    let mut line = if args.flag("json") {
        json!({
            "records": report.records, "bytes": report.bytes, "tokens": report.tokens, "dropped": report.dropped,
            "replaced": report.replaced, "too_long": summary.too_long, "packed": summary.packed, "outputs": outputs,
            "seconds": seconds,
        })
        .to_string()
    } else {
        let mut text = format!(
            "{} records, {:.1} MB, {} tokens in {seconds:.1} s ({:.2} MB/s)",
            report.records,
            report.bytes as f64 / 1e6,
            report.tokens,
            report.bytes as f64 / 1e6 / seconds
        );
        for (count, what) in
            [(report.dropped, "dropped"), (report.replaced, "replaced"), (summary.too_long, "too long")]
        {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text
    };
    line.push('\n');
    if job.target == Target::Stream {
        if !args.flag("quiet") {
            std::io::stderr().lock().write_all(line.as_bytes())?;
        }
    } else if args.flag("json") || !args.flag("quiet") {
        std::io::stdout().lock().write_all(line.as_bytes())?;
    }
    Ok(())
}
