//! A run over records: in one go, or shard by shard.

use crate::as_usage;
use crate::cli::{Target, Tokenize};
use crate::curation::beside;
use crate::processes::{Processes, processes, together};
use anyhow::{Result, bail};
use ms_cli::megatron::Args;
use ms_cli::{Claim, Interrupt, Usage, refuse};
use ms_data::handler::Handler;
use ms_data::indexed::{bin_path, idx_path};
use ms_data::pack::PackOptions;
use ms_data::preprocess::shards::Shards;
use ms_data::preprocess::{
    self, InputRecord, Lengths, Manifest, ManifestStatus, Output, OutputRecord, Report, count_rows,
    rows_per_part,
};
use ms_data::records::{FileDigest, RawRecord, RecordReader};
use ms_data::select::{Shuffle, shuffled};
use ms_data::sink::{IndexedSink, PackedSink, Sink, Summary, check_absent, dataset_prefixes};
use ms_data::token_stream::{StreamInfo, TokenStreamSink};
use serde_json::{Value, json};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Width of the drawn histogram's bars, in characters.
const BAR_WIDTH: usize = 48;

pub(crate) fn tokenize(args: &Args, job: &Tokenize, interrupt: &Interrupt) -> Result<()> {
    let started = Instant::now();
    crate::memory_estimate::check(job)?;
    let tokenizer = job.tokenizer.load()?;
    let handler = Handler::new(job.options.clone(), tokenizer).map_err(as_usage)?;
    if let Some(bytes) = crate::memory_estimate::input_bytes(job) {
        handler.tokenizer().expect(bytes);
    }
    if job.planned {
        return plan(args, job, &handler);
    }
    let processes = processes();
    let manifest_path = match &job.target {
        Target::Files { prefix, .. } if job.curation.manifest => Some(beside(prefix, "manifest.json")),
        _ => None,
    };
    if let Some(path) = &manifest_path
        && !job.curation.force
        && path.exists()
    {
        match Manifest::standing(path, &wanted_manifest(job, &handler))? {
            ManifestStatus::Absent => {}
            ManifestStatus::UpToDate(made) => {
                return if processes.rank() == 0 { up_to_date(args, path, &made) } else { Ok(()) };
            }
            ManifestStatus::Differs(what) => {
                if matches!(job.target, Target::Files { force: false, .. }) {
                    bail!(
                        "{}: the dataset is another: {what}\nhint: pass --force to replace it",
                        path.display()
                    );
                }
                tracing::info!("the dataset is made again: {what}");
            }
        }
    }
    // Several processes that share the work write one dataset together.
    let _claim = match &job.target {
        Target::Files { prefix, .. } if processes.size() == 1 => {
            let claim = Claim::new(prefix, interrupt)?;
            interrupt.output(prefix);
            Some(claim)
        }
        _ => None,
    };
    let result = if job.curation.resume || processes.size() > 1 {
        by_shards(args, job, &handler, processes.as_ref())
    } else {
        std::thread::scope(|scope| {
            if manifest_path.is_some() && job.workers > 1 {
                // Only the manifest needs the hash: nobody waits for it before the end.
                scope.spawn(|| handler.tokenizer().content_hash().len());
            }
            in_one_go(args, job, &handler).map(Some)
        })
    };
    let Some(done) = result? else { return Ok(()) };
    let described = || -> Result<()> {
        let stats = match &job.target {
            Target::Files { prefix, .. } => write_stats(prefix, &done)?,
            Target::Stream => Vec::new(),
        };
        match &manifest_path {
            Some(path) => write_manifest(path, wanted_manifest(job, &handler), &done, stats),
            None => Ok(()),
        }
    };
    if let Err(error) = described() {
        withdraw(job, &done.summary);
        return Err(error);
    }
    finish(args, job, &done, started.elapsed().as_secs_f64())
}

/// Removes a dataset whose description cannot be written, with all that was written beside it: it is not finished, and the next
/// run would find it in its way.
fn withdraw(job: &Tokenize, summary: &Summary) {
    let Target::Files { prefix, .. } = &job.target else { return };
    let sets = summary.outputs.iter().flat_map(|set| [idx_path(&set.prefix), bin_path(&set.prefix)]);
    let stats = stats_paths(prefix).into_iter().filter(|_| job.curation.stats);
    for file in sets.chain(stats).chain(job.curation.rejects.clone()) {
        let _ = std::fs::remove_file(file);
    }
}

type Records = Box<dyn Iterator<Item = ms_data::Result<RawRecord>> + Send>;

/// What a run came to.
struct Done {
    report: Report,
    summary: Summary,
    lengths: Option<Lengths>,
    inputs: Vec<InputRecord>,
}

/// All records through one pipeline.
fn in_one_go(args: &Args, job: &Tokenize, handler: &Handler) -> Result<Done> {
    let part_rows = if job.parts > 1 {
        let rows = match &job.mixture {
            Some(mixture) => count_rows(mixture.records(&job.inputs, handler)?, handler)?,
            None => count_rows(RecordReader::new(job.inputs.clone()), handler)?,
        };
        Some(rows_per_part(rows, job.parts).map_err(as_usage)?)
    } else {
        None
    };
    let mut output = open_output(job, handler)?;
    output.part_rows = part_rows;
    let bar = args.progress().bytes(total_bytes(job), "tokenizing");
    let digests: Arc<Mutex<Vec<FileDigest>>> = Arc::default();
    let reader: Records = match &job.mixture {
        Some(mixture) => mixture.records(&job.inputs, handler).map_err(as_usage)?,
        None if job.curation.manifest && matches!(job.target, Target::Files { .. }) => {
            Box::new(RecordReader::new(job.inputs.clone()).with_digests(Arc::clone(&digests)))
        }
        None => Box::new(RecordReader::new(job.inputs.clone())),
    };
    let records: Records = match job.curation.shuffle {
        None => reader,
        Some((seed, memory)) => {
            // What the sample leaves out need not be written anywhere.
            let sampling = job.curation.selection.sampling;
            let taken = reader.filter(move |record| {
                record.as_ref().map_or(true, |record| sampling.is_none_or(|sampling| sampling.takes(record)))
            });
            let folder = match &job.target {
                Target::Files { prefix, .. } => {
                    beside(prefix, &format!("shuffle.{}.part", std::process::id()))
                }
                Target::Stream => std::env::temp_dir().join(format!("ms-preprocess.{}", std::process::id())),
            };
            Box::new(shuffled(taken, Shuffle { seed, memory, folder }))
        }
    };
    preprocess::run_into(records, handler, job.workers, &job.curation.selection, &mut output, |report| {
        bar.set_position(report.bytes);
    })?;
    bar.finish_and_clear();
    let lengths = output.lengths().cloned();
    crate::empty::check(output.report(), output.rows(), handler, &job.inputs)?;
    let mut digests = std::mem::take(&mut *digests.lock().unwrap_or_else(PoisonError::into_inner));
    if job.mixture.is_some() {
        // Its files are read in parts, or several times.
        digests = job.inputs.iter().map(|file| FileDigest::of(&file.path)).collect::<ms_data::Result<_>>()?;
    }
    let inputs = input_records(job, &digests)?;
    let (report, summary) = output.finish_after(&mut || forget_manifest(job))?;
    Ok(Done { report, summary, lengths, inputs })
}

/// Every input file on its own, then all together on process 0; `None` on the others.
fn by_shards(
    args: &Args,
    job: &Tokenize,
    handler: &Handler,
    processes: &dyn Processes,
) -> Result<Option<Done>> {
    let Target::Files { prefix, .. } = &job.target else {
        refuse!("several processes need --output-prefix: they cannot share a stream");
    };
    if job.curation.shuffle.is_some() {
        return Err(
            Usage("several processes work file by file, --shuffle on all records at once".into()).into()
        );
    }
    if job.parts > 1 || job.mixture.is_some() {
        let text = "a run by shards takes all records of its files in order, which --n-subs, --mix-strategy and --max-samples exclude";
        return Err(Usage(text.into()).into());
    }
    // What is in the way is known before the work.
    let opened = if processes.rank() == 0 { open_output(job, handler).map(Some) } else { Ok(None) };
    let opened = together(processes, opened)?;
    let settings =
        format!("{} {}", Value::Object(job.curation.settings.clone()), handler.tokenizer().content_hash());
    let info = stream_info(handler)?;
    let work = || -> Result<Shards<'_>> {
        let folder = beside(prefix, "parts");
        let shards =
            Shards::new(&folder, job.inputs.clone(), settings, handler, &job.curation.selection, info)
                .map_err(as_usage)?;
        let pending = shards.pending(processes.rank(), processes.size())?;
        let total: u64 =
            pending.iter().filter_map(|&i| Some(job.inputs[i].path.metadata().ok()?.len())).sum();
        let bar = args.progress().bytes(total, "tokenizing");
        let mut before = 0;
        for &shard in &pending {
            let mut bytes = 0;
            shards.encode(shard, job.workers, |report| {
                bytes = report.bytes;
                bar.set_position(before + bytes);
            })?;
            before += bytes;
            tracing::debug!("shard {} of {} is complete", shard + 1, shards.len());
        }
        bar.finish_and_clear();
        Ok(shards)
    };
    let shards = together(processes, work())?;
    let merged = match opened {
        None => Ok(None),
        Some(mut output) => {
            let bar = args.progress().bar(shards.len() as u64, "merging");
            shards
                .merge(&mut output, |done| bar.set_position(done as u64))
                .map_err(anyhow::Error::from)
                .and_then(|digests| {
                    bar.finish_and_clear();
                    let lengths = output.lengths().cloned();
                    crate::empty::check(output.report(), output.rows(), handler, &job.inputs)?;
                    let inputs = input_records(job, &digests)?;
                    let (report, summary) = output.finish_after(&mut || forget_manifest(job))?;
                    shards.remove().inspect_err(|_| withdraw(job, &summary))?;
                    Ok(Some(Done { report, summary, lengths, inputs }))
                })
        }
    };
    together(processes, merged)
}

fn total_bytes(job: &Tokenize) -> u64 {
    job.inputs.iter().filter_map(|file| Some(file.path.metadata().ok()?.len())).sum()
}

fn input_records(job: &Tokenize, digests: &[FileDigest]) -> Result<Vec<InputRecord>> {
    if digests.is_empty() {
        return Ok(vec![
            InputRecord::stdin();
            usize::from(job.inputs.iter().any(|i| i.path == Path::new("-")))
        ]);
    }
    Ok(digests.iter().map(InputRecord::new).collect::<ms_data::Result<_>>()?)
}

/// The manifest that this run would write, as far as it is known before.
fn wanted_manifest(job: &Tokenize, handler: &Handler) -> Manifest {
    let program = format!("ms-preprocess {}", env!("CARGO_PKG_VERSION"));
    let hash = handler.tokenizer().content_hash().to_owned();
    let mut manifest = Manifest::new(program, job.curation.settings.clone(), hash);
    manifest.inputs = job
        .inputs
        .iter()
        .map(|file| InputRecord { path: file.path.display().to_string(), ..InputRecord::stdin() })
        .collect();
    manifest
}

/// [`Manifest::forget`] of the manifest of the dataset that is about to be replaced.
fn forget_manifest(job: &Tokenize) -> ms_data::Result<()> {
    let Target::Files { prefix, .. } = &job.target else { return Ok(()) };
    Manifest::forget(&beside(prefix, "manifest.json"))
}

/// Files of `--stats`.
fn stats_paths(prefix: &Path) -> [PathBuf; 2] {
    [beside(prefix, "stats.json"), beside(prefix, "stats.svg")]
}

/// Writes what `--stats` counted; returns the files.
fn write_stats(prefix: &Path, done: &Done) -> Result<Vec<PathBuf>> {
    let Some(lengths) = &done.lengths else { return Ok(Vec::new()) };
    let [json, svg] = stats_paths(prefix);
    let title = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (numbers, picture) = (format!("{:#}\n", lengths.to_json(0.0)), lengths.to_svg(&title));
    ms_files::write_files(&[(&json, numbers.as_bytes()), (&svg, picture.as_bytes())])?;
    Ok(vec![json, svg])
}

fn write_manifest(path: &Path, mut manifest: Manifest, done: &Done, stats: Vec<PathBuf>) -> Result<()> {
    manifest.inputs.clone_from(&done.inputs);
    manifest.report = done.report;
    let mut outputs: Vec<PathBuf> = done
        .summary
        .outputs
        .iter()
        .flat_map(|output| [bin_path(&output.prefix), idx_path(&output.prefix)])
        .collect();
    outputs.extend(stats);
    manifest.outputs = outputs.iter().map(|path| OutputRecord::new(path)).collect::<ms_data::Result<_>>()?;
    Ok(manifest.write(path)?)
}

fn up_to_date(args: &Args, path: &Path, made: &Manifest) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json() {
        let report = json!({"up_to_date": true, "manifest": path.display().to_string(), "records": made.report.records, "tokens": made.report.tokens});
        writeln!(out, "{report}")?;
    } else if !args.quiet() {
        writeln!(out, "up to date: {} says that nothing has changed", path.display())?;
    }
    Ok(())
}

fn stream_info(handler: &Handler) -> Result<StreamInfo> {
    let tokenizer = handler.tokenizer();
    Ok(StreamInfo {
        style: handler.kind().name().to_owned(),
        tokenizer: tokenizer.content_hash().to_owned(),
        vocab_size: tokenizer.vocab_size() as u64,
        eod: tokenizer.eod()? as i32,
        pad: tokenizer.pad_id()? as i32,
        seq_length: handler.options().seq_length.map(|n| n as u64),
        packed_name: handler.kind().packed_name(),
    })
}

fn open_output(job: &Tokenize, handler: &Handler) -> Result<Output<'static>> {
    check_beside_absent(job)?;
    let mut output = Output::new(open_sink(job, handler)?);
    if let Some(path) = &job.curation.rejects {
        output.keep_rejects(path)?;
    }
    if job.curation.stats {
        let limit = handler.options().seq_length.map(|n| n as u64);
        output.keep_lengths(Lengths::new(handler.columns(), limit));
    }
    Ok(output)
}

/// Refuses to replace the files next to the dataset, as [`check_absent`] does for its own.
fn check_beside_absent(job: &Tokenize) -> Result<()> {
    let (prefix, force) = match &job.target {
        Target::Files { prefix, force } => (Some(prefix), *force),
        Target::Stream => (None, job.curation.force),
    };
    let stats = prefix.filter(|_| job.curation.stats).map(|prefix| stats_paths(prefix));
    match stats.into_iter().flatten().chain(job.curation.rejects.clone()).find(|path| !force && path.exists())
    {
        Some(path) => Err(ms_data::Error::Exists { path }.into()),
        None => Ok(()),
    }
}

fn open_sink(job: &Tokenize, handler: &Handler) -> Result<Box<dyn Sink>> {
    let (columns, options) = (handler.columns(), handler.options());
    match &job.target {
        Target::Stream => {
            let info = stream_info(handler)?;
            let out = BufWriter::with_capacity(1 << 20, std::io::stdout());
            Ok(Box::new(TokenStreamSink::new(out, "standard output", columns, &info)?))
        }
        Target::Files { prefix, force } => {
            let prefixes = dataset_prefixes(prefix, columns, handler.kind().packed_name(), handler.level());
            check_absent(&prefixes, *force)?;
            match options.seq_length.filter(|_| job.pack) {
                None => Ok(Box::new(IndexedSink::create(&prefixes, options.seq_length)?)),
                Some(row_tokens) => {
                    let pad = handler.tokenizer().pad_id()? as i32;
                    let pack = PackOptions::new(row_tokens, options.neat_pack, pad);
                    Ok(Box::new(PackedSink::create(&prefixes, columns, pack).map_err(as_usage)?))
                }
            }
        }
    }
}

/// What would be done.
fn plan(args: &Args, job: &Tokenize, handler: &Handler) -> Result<()> {
    let files: Vec<String> = job.inputs.iter().map(|file| file.path.display().to_string()).collect();
    let bytes = total_bytes(job);
    let memory = crate::memory_estimate::Estimate::of(job).bytes();
    let outputs: Vec<String> = match &job.target {
        Target::Stream => vec!["-".into()],
        Target::Files { prefix, .. } => {
            dataset_prefixes(prefix, handler.columns(), handler.kind().packed_name(), handler.level())
                .iter()
                .map(|prefix| prefix.display().to_string())
                .collect()
        }
    };
    let mut out = std::io::stdout().lock();
    if args.json() {
        writeln!(
            out,
            "{}",
            json!({"style": handler.kind().name(), "inputs": files, "bytes": bytes, "outputs": outputs, "memory": memory})
        )?;
    } else {
        writeln!(out, "{} records of {} files, {bytes} bytes", handler.kind().name(), files.len())?;
        outputs.iter().try_for_each(|output| writeln!(out, "writes {output}"))?;
        writeln!(out, "takes about {} of memory", ms_cli::say_bytes(memory))?;
    }
    Ok(())
}

/// The final message, on stdout unless that carries the stream.
fn finish(args: &Args, job: &Tokenize, done: &Done, seconds: f64) -> Result<()> {
    let Done { report, summary, lengths, .. } = done;
    let outputs: Vec<_> = summary
        .outputs
        .iter()
        .map(|o| json!({"prefix": o.prefix.display().to_string(), "sequences": o.sequences, "tokens": o.tokens}))
        .collect();
    if report.replaced > 0 {
        tracing::warn!(
            "{} records are not a conversation and were replaced by an empty one, as upstream does",
            report.replaced
        );
    }
    if report.rejected > 0 {
        let kept =
            job.curation.rejects.as_ref().map_or(String::new(), |path| format!("; see {}", path.display()));
        tracing::warn!("{} records could not be used and were skipped{kept}", report.rejected);
    }
    let mut text = if args.json() {
        let mut object = json!({
            "records": report.records, "bytes": report.bytes, "tokens": report.tokens, "dropped": report.dropped,
            "replaced": report.replaced, "unsampled": report.unsampled, "filtered": report.filtered,
            "duplicates": report.duplicates, "rejected": report.rejected, "too_long": summary.too_long,
            "packed": summary.packed, "outputs": outputs, "seconds": seconds,
        });
        if let Some(lengths) = lengths {
            object["stats"] = lengths.to_json(seconds);
        }
        object.to_string()
    } else {
        let mut text = format!(
            "{} records, {:.1} MB, {} tokens in {seconds:.1} s ({:.2} MB/s)",
            report.records,
            report.bytes as f64 / 1e6,
            report.tokens,
            report.bytes as f64 / 1e6 / seconds
        );
        for (count, what) in [
            (report.dropped, "dropped"),
            (report.replaced, "replaced"),
            (report.unsampled, "not in the sample"),
            (report.filtered, "filtered"),
            (report.duplicates, "duplicates"),
            (report.rejected, "rejected"),
            (summary.too_long, "too long"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        if let Some(lengths) = lengths {
            text.push('\n');
            text.push_str(lengths.draw(BAR_WIDTH, seconds).trim_end());
        }
        text
    };
    text.push('\n');
    if job.target == Target::Stream {
        if !args.quiet() {
            args.say_aside(text.trim_end());
        }
    } else if args.json() || !args.quiet() {
        std::io::stdout().lock().write_all(text.as_bytes())?;
    }
    Ok(())
}
