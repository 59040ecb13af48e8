//! Flags that upstream lacks: which records are taken, what is kept beside the dataset, and how a run goes on.

use anyhow::Result;
use ms_cli::Usage;
use ms_cli::megatron::Args;
use ms_data::handler::Kind;
use ms_data::preprocess::{Intake, OnError, file_sha256};
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

/// What a run does besides tokenizing.
#[derive(Debug)]
pub(crate) struct Care {
    /// Which records are taken.
    pub(crate) intake: Intake,
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

impl Care {
    /// Resolves the flags. `prefix` is where files go, if they do.
    pub(crate) fn resolve(
        args: &Args,
        kind: Kind,
        json_keys: &[String],
        prefix: Option<&Path>,
    ) -> Result<Self> {
        let usage = |text: String| anyhow::Error::from(Usage(text));
        let flag = |error: ms_data::Error, name: &str| usage(format!("{name}: {error}"));
        let seed = args.int("seed").unwrap_or(1234) as u64;
        let scope = |dest: &str| {
            let named = args.list(dest);
            if !named.is_empty() {
                Scope::Fields(named)
            } else if kind == Kind::Pretrain {
                Scope::Fields(json_keys.to_vec())
            } else {
                Scope::Texts
            }
        };
        let sampling = args.float("sample").map(|p| Sampling::new(p, seed)).transpose();
        let filters =
            args.list("filter").iter().map(|rule| Filter::parse(rule)).collect::<Result<Vec<_>, _>>();
        let filters = filters.map_err(|e| ms_data::Error::Options(format!("--filter: {e}")));
        let dedup = match args.text("dedup") {
            None => Ok(None),
            Some("minhash") => Dedup::min_hash(args.float("dedup_threshold").unwrap_or(0.8)).map(Some),
            Some(_) => Ok(Some(Dedup::Exact)),
        };
        let skip = args.text("on_error") == Some("skip");
        let intake = Intake {
            sampling: sampling.map_err(|e| flag(e, "--sample"))?,
            filters: filters.map_err(|e| usage(e.to_string()))?,
            filter_scope: scope("filter_key"),
            dedup: dedup.map_err(|e| flag(e, "--dedup-threshold"))?,
            dedup_scope: scope("dedup_key"),
            on_error: if skip { OnError::Skip } else { OnError::Stop },
        };
        let shuffle = if args.flag("shuffle") {
            let megabytes = args.size("shuffle_memory")?.unwrap_or(64).max(1);
            Some((seed, megabytes.saturating_mul(1_000_000)))
        } else {
            None
        };
        let resume = args.flag("resume");
        if resume && prefix.is_none() {
            return Err(usage("--resume needs --output-prefix: a stream cannot go on".into()));
        }
        if resume && shuffle.is_some() {
            return Err(usage("--resume works file by file, --shuffle on all records at once".into()));
        }
        if args.size("n_subs")?.unwrap_or(1) > 1 && !intake.takes_all() {
            return Err(usage(
                "--n-subs cuts the records by their number, which --sample, --filter, --dedup and --on-error skip change\nhint: leave it out; --workers shares the work".into(),
            ));
        }
        let rejects = args.text("rejects").map(PathBuf::from);
        let rejects = rejects.or_else(|| prefix.map(|prefix| beside(prefix, "rejects.jsonl")));
        let mut settings: Map<String, Value> = args
            .given()
            .iter()
            .filter(|(dest, _)| !NOT_SETTINGS.contains(&dest.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        settings.insert("upstream".into(), args.upstream().name().into());
        for (name, path) in read_beside(args, kind) {
            if path.is_file() {
                settings.insert(name.into(), file_sha256(&path)?.into());
            }
        }
        settings.sort_keys();
        Ok(Self {
            intake,
            shuffle,
            rejects: rejects.filter(|_| skip),
            stats: args.flag("stats"),
            resume,
            manifest: !args.flag("no_manifest"),
            force: args.flag("force"),
            settings,
        })
    }
}

/// Files besides the inputs and the vocabulary that decide what is written, and their names among the settings.
fn read_beside(args: &Args, kind: Kind) -> Vec<(&'static str, PathBuf)> {
    let mut files = Vec::new();
    if args.text("tokenizer_type").is_none_or(|kind| kind == "PretrainedFromHF")
        && let Some(path) = args.text("tokenizer_name_or_path").map(Path::new)
    {
        let config = "tokenizer_config.json";
        let path = if path.is_file() { path.with_file_name(config) } else { path.join(config) };
        files.push(("tokenizer_config_sha256", path));
    }
    if args.has("prompt_type_path")
        && let Some(path) = args.text("prompt_type_path")
    {
        files.push(("prompt_type_path_sha256", path.into()));
    }
    if kind == Kind::LlamaFactory
        && let Some(folder) = args.text("dataset_dir")
    {
        files.push(("dataset_info_sha256", Path::new(folder).join("dataset_info.json")));
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
