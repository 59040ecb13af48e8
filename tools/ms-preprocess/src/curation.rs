//! Flags that upstream does not have: which records are used, what is stored next to the dataset, and how a run resumes.

use crate::cli::Options;
use anyhow::Result;
use ms_cli::Usage;
use ms_cli::megatron::Args;
use ms_data::handler::RecordKind;
use ms_data::preprocess::{OnError, RecordSelection, file_sha256};
use ms_data::select::{Dedup, Filter, Sampling, Scope};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Flags that do not change what is written, or stand in the manifest in another form.
const NOT_SETTINGS: [&str; 20] = [
    "input",
    "files_from",
    "tokenizer_name_or_path",
    "sentence_model",
    "sentence_language",
    "output_prefix",
    "workers",
    "log_interval",
    "quiet",
    "verbose",
    "json",
    "log_format",
    "force",
    "dry_run",
    "print_args",
    "resume",
    "no_manifest",
    "rejects",
    "shuffle_memory",
    "upstream",
];

options! {
    /// Which records are taken, and what is kept beside the rows.
    pub(crate) struct CurationOptions in "Selection" {
        sample: Option<f64> = "--sample", "keep each record with this probability, by its position and --seed", range = "(0,1]", own = own("sample");
        filters: Vec<String> = "--filter", "conditions for records to keep: MEASURE>=X, MEASURE<=X, match:REGEX, not:REGEX", own = own("filter");
        filter_keys: Vec<String> = "--filter-key", "fields that --filter looks at (default: the tokenized fields, else all texts)", own = own("filter_key");
        dedup: Option<String> = "--dedup", "leave out duplicate records: exact (same bytes, at most 60 bytes of memory per record) or minhash (nearly the same phrases, 600 to 1200 bytes)", own = own_of("dedup", "null", "exact,minhash");
        dedup_threshold: f64 = "--dedup-threshold", "with --dedup minhash: estimated share of common phrases at which records are duplicates", range = "(0,1]", own = own_or("dedup_threshold", "0.8");
        dedup_keys: Vec<String> = "--dedup-key", "fields by which duplicates are compared (default: as --filter-key)", own = own("dedup_key");
        on_error: String = "--on-error", "what to do with an unusable record: stop or skip it", own = own_of("on_error", "\"stop\"", "stop,skip");
        shuffle: bool = "--shuffle", "shuffle the records, by --seed", own = own_or("shuffle", "false");
        shuffle_memory: usize = "--shuffle-memory", "megabytes of records that --shuffle keeps in memory; the rest goes to files beside the output", range = "[1,16777216]", own = own_or("shuffle_memory", "64");
        rejects: Option<PathBuf> = "--rejects", "file for skipped records, a JSON object per line (default: PREFIX.rejects.jsonl)", group = "Output", own = own("rejects");
        stats: bool = "--stats", "write statistics of sequence lengths to PREFIX.stats.json and PREFIX.stats.svg, and show them", group = "Output", own = own_or("stats", "false");
        resume: bool = "--resume", "keep finished input files in PREFIX.parts and continue from there", group = "Output", own = own_or("resume", "false");
        no_manifest: bool = "--no-manifest", "neither write nor check PREFIX.manifest.json", group = "Output", own = own_or("no_manifest", "false");
        pub(crate) force: bool = "--force", "replace an existing output", group = "Output", own = own_or("force", "false");
    }
}

/// What a run does besides tokenizing.
#[derive(Debug)]
pub(crate) struct Curation {
    /// Which records are taken.
    pub(crate) selection: RecordSelection,
    /// `--shuffle`: seed, and bytes to hold.
    pub(crate) shuffle: Option<(u64, usize)>,
    /// Where skipped records go.
    pub(crate) rejects: Option<PathBuf>,
    /// `--stats`.
    pub(crate) stats: bool,
    /// `--resume`.
    pub(crate) resume: bool,
    /// Whether a manifest is read and written.
    pub(crate) manifest: bool,
    /// `--force` on the line.
    pub(crate) force: bool,
    /// The flags that decide the bytes.
    pub(crate) settings: Map<String, Value>,
}

impl Curation {
    /// Resolves the flags. `prefix` is where files go, if they do.
    pub(crate) fn resolve(
        args: &Args,
        all: &Options,
        kind: RecordKind,
        json_keys: &[String],
        prefix: Option<&Path>,
    ) -> Result<Self> {
        let usage = |text: String| anyhow::Error::from(Usage(text));
        let flag = |error: ms_data::Error, name: &str| usage(format!("{name}: {error}"));
        let (o, seed) = (&all.curation, all.work.seed);
        let scope = |named: &[String]| {
            if !named.is_empty() {
                Scope::Fields(named.to_vec())
            } else if kind == RecordKind::Pretrain {
                Scope::Fields(json_keys.to_vec())
            } else {
                Scope::Texts
            }
        };
        let sampling = o.sample.map(|p| Sampling::new(p, seed)).transpose();
        let filters = o.filters.iter().map(|rule| Filter::parse(rule)).collect::<Result<Vec<_>, _>>();
        let filters = filters.map_err(|e| ms_data::Error::Options(format!("--filter: {e}")));
        let dedup = match o.dedup.as_deref() {
            None => Ok(None),
            Some("minhash") => Dedup::min_hash(o.dedup_threshold).map(Some),
            Some(_) => Ok(Some(Dedup::Exact)),
        };
        let skip = o.on_error == "skip";
        let selection = RecordSelection {
            sampling: sampling.map_err(|e| flag(e, "--sample"))?,
            filters: filters.map_err(|e| usage(e.to_string()))?,
            filter_scope: scope(&o.filter_keys),
            dedup: dedup.map_err(|e| flag(e, "--dedup-threshold"))?,
            dedup_scope: scope(&o.dedup_keys),
            on_error: if skip { OnError::Skip } else { OnError::Stop },
        };
        let shuffle = o.shuffle.then(|| (seed, o.shuffle_memory.max(1).saturating_mul(1_000_000)));
        let resume = o.resume;
        if resume && prefix.is_none() {
            return Err(usage("--resume needs --output-prefix: a stream cannot continue".into()));
        }
        if resume && shuffle.is_some() {
            return Err(usage("--resume works file by file, --shuffle on all records at once".into()));
        }
        if all.work.parts > 1 && !selection.takes_all() {
            return Err(usage(
                "--n-subs cuts the records by their number, which --sample, --filter, --dedup and --on-error skip change\nhint: leave it out; --workers shares the work".into(),
            ));
        }
        let rejects = o.rejects.clone();
        let rejects = rejects.or_else(|| prefix.map(|prefix| beside(prefix, "rejects.jsonl")));
        let mut settings: Map<String, Value> = args
            .record()
            .iter()
            .filter(|(dest, _)| !NOT_SETTINGS.contains(&dest.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        settings.insert("upstream".into(), args.upstream().name().into());
        for (name, path) in read_beside(all, kind) {
            if path.is_file() {
                settings.insert(name.into(), file_sha256(&path)?.into());
            }
        }
        settings.sort_keys();
        Ok(Self {
            selection,
            shuffle,
            rejects: rejects.filter(|_| skip),
            stats: o.stats,
            resume,
            manifest: !o.no_manifest,
            force: o.force,
            settings,
        })
    }
}

/// Files besides the inputs and the vocabulary that decide what is written, and their names among the settings.
fn read_beside(o: &Options, kind: RecordKind) -> Vec<(&'static str, PathBuf)> {
    let mut files = Vec::new();
    if o.vocabulary.kind.as_deref().is_none_or(|kind| kind == "PretrainedFromHF")
        && let Some(path) = &o.vocabulary.folder
    {
        let config = "tokenizer_config.json";
        let path = if path.is_file() { path.with_file_name(config) } else { path.join(config) };
        files.push(("tokenizer_config_sha256", path));
    }
    if let Some(path) = o.prompts.given_templates() {
        files.push(("prompt_type_path_sha256", path));
    }
    if kind == RecordKind::LlamaFactory
        && let Some(folder) = &o.reading.described
    {
        files.push(("dataset_info_sha256", folder.join("dataset_info.json")));
    }
    files
}

/// `PREFIX.WHAT`.
pub(crate) fn beside(prefix: &Path, what: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_os_string();
    name.push(".");
    name.push(what);
    name.into()
}
