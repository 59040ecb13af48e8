//! The command line of `ms-preprocess`: upstream's `preprocess_data.py`, and a few flags of our own.
//!
//! The flags themselves are rows of ms-cli's table; here they become the plain values that the run takes.

use crate::care::Care;
use crate::mixture::Mixture;
use crate::recognise::{self, first_record};
use crate::sentences::splitter;
use anyhow::Result;
use ms_cli::megatron::{Args, Upstream};
use ms_cli::{Usage, check_prefix};
use ms_data::handler::{HandlerOptions, Kind, described_sets};
use ms_data::records::{Discovery, Documents, Format, InputFile, file_list};
use ms_text::Tokenizer;
use ms_text::template::Effort;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The line that help begins with, and what follows it.
pub(crate) const ABOUT: &str = "\
Turns raw text and conversations into token datasets: .bin/.idx pairs, or an Arrow stream for ms-pack.
Takes the flags of preprocess_data.py unchanged.

Examples:
  ms-preprocess --style pretrain --input corpus.jsonl --tokenizer-name-or-path tok --append-eod --output-prefix data/corpus
  ms-preprocess --style sharegpt --prompt-type qwen --input chats.json --tokenizer-name-or-path tok | ms-pack --seq-length 512 --output-prefix data/chats
  find src -name '*.rs' | ms-preprocess --style pretrain --documents files --files-from - --tokenizer-name-or-path tok --output-prefix data/src";

/// Where the rows go.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// File pairs with this prefix.
    Files { prefix: PathBuf, force: bool },
    /// Standard output.
    Stream,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Job {
    /// `--merge-group-keys`: for each word, merge the datasets of a folder whose names hold it.
    Merge { folder: PathBuf, words: Vec<String>, prefix: PathBuf, force: bool },
    /// Tokenize records.
    Tokenize(Box<Tokenize>),
}

/// A run over records.
#[derive(Debug)]
pub(crate) struct Tokenize {
    pub(crate) options: HandlerOptions,
    pub(crate) tokenizer: Vocabulary,
    pub(crate) inputs: Vec<InputFile>,
    pub(crate) target: Target,
    pub(crate) pack: bool,
    pub(crate) workers: usize,
    pub(crate) parts: u64,
    /// How the sets of a `dataset_info.json` become one, unless they just follow each other.
    pub(crate) mixture: Option<Mixture>,
    pub(crate) care: Care,
}

/// Where the tokenizer comes from.
#[derive(Debug)]
pub(crate) enum Vocabulary {
    /// A folder in Hugging Face's form, or a file of one.
    Folder(PathBuf),
    /// Megatron's `GPT2BPETokenizer`.
    Gpt2 { vocab: PathBuf, merges: PathBuf },
    /// Megatron's `BertWordPiece` ones.
    Bert { vocab: PathBuf, lower_case: bool },
    /// Megatron's `GPTSentencePieceTokenizer`.
    SentencePiece(PathBuf),
}

impl Vocabulary {
    fn resolve(args: &Args) -> Result<Self> {
        let file = |dest: &str, flag: &str, what: &str| {
            let path = args.text(dest).map(PathBuf::from);
            path.ok_or_else(|| Usage(format!("{what} needs {flag}")))
        };
        Ok(match args.text("tokenizer_type").unwrap_or("PretrainedFromHF") {
            "GPT2BPETokenizer" => Self::Gpt2 {
                vocab: file("vocab_file", "--vocab-file", "GPT2BPETokenizer")?,
                merges: file("merge_file", "--merge-file", "GPT2BPETokenizer")?,
            },
            kind @ ("BertWordPieceLowerCase" | "BertWordPieceCase") => Self::Bert {
                vocab: file("vocab_file", "--vocab-file", kind)?,
                lower_case: kind == "BertWordPieceLowerCase",
            },
            kind @ "GPTSentencePieceTokenizer" => {
                Self::SentencePiece(file("tokenizer_model", "--tokenizer-model", kind)?)
            }
            "PretrainedFromHF" => {
                let missing = "no tokenizer\nhint: pass --tokenizer-name-or-path DIR";
                let path = args.text("tokenizer_name_or_path");
                Self::Folder(path.ok_or_else(|| Usage(missing.to_owned()))?.into())
            }
            other => {
                let text = format!(
                    "--tokenizer-type {other} is not supported\nhint: pass its folder in Hugging Face's form to \
                     --tokenizer-name-or-path"
                );
                return Err(Usage(text).into());
            }
        })
    }

    /// Reads it.
    pub(crate) fn load(&self) -> ms_text::Result<Tokenizer> {
        match self {
            Self::Folder(path) => Tokenizer::load_kept(path, ms_cli::tokenizer_cache().as_deref()),
            Self::Gpt2 { vocab, merges } => Tokenizer::gpt2(vocab, merges),
            Self::Bert { vocab, lower_case } => Tokenizer::bert(vocab, *lower_case),
            Self::SentencePiece(path) => Tokenizer::sentencepiece(path),
        }
    }
}

/// Resolves the flags. `piped` says that standard output is not a terminal.
pub(crate) fn resolve(args: &Args, piped: bool) -> Result<Job> {
    let usage = |text: &str| anyhow::Error::from(Usage(text.to_owned()));
    let prefix = args.text("output_prefix");
    if let Some(prefix) = prefix {
        check_prefix(Path::new(prefix))?;
    }
    // Upstream replaces what is there. Its argument lists are taken as they are; with --style it takes --force.
    let force = args.flag("force") || !args.has("style");
    let merge = args.list("merge_group_keys");
    if !merge.is_empty() {
        let folder = args.text("input").ok_or_else(|| usage("--merge-group-keys needs --input, a folder"))?;
        let prefix = prefix.ok_or_else(|| usage("--merge-group-keys needs --output-prefix"))?;
        return Ok(Job::Merge { folder: folder.into(), words: merge, prefix: prefix.into(), force });
    }
    let target = match prefix {
        Some("-") | None if !piped => {
            return Err(usage(
                "no output: a token stream is not written to a terminal\nhint: pass --output-prefix, or pipe into ms-pack",
            ));
        }
        Some("-") | None => Target::Stream,
        Some(prefix) => Target::Files { prefix: prefix.into(), force },
    };
    let documents = match args.text("documents") {
        Some("files") => Documents::Files,
        _ => Documents::Records,
    };
    let paths: Vec<PathBuf> = match (args.list("input"), args.text("files_from")) {
        (given, Some(_)) if !given.is_empty() => {
            return Err(usage("--input and --files-from exclude each other"));
        }
        (_, Some(list)) => file_list(list.as_ref())?,
        (given, None) if given.is_empty() => {
            return Err(usage(
                "no input\nhint: pass --input with files, folders or patterns, or - for records on stdin",
            ));
        }
        (given, None) => given.into_iter().map(PathBuf::from).collect(),
    };
    let how = Discovery {
        documents,
        format: args.text("input_format").map(Format::named).transpose()?,
        split: args.text("input_split").map(str::to_owned),
    };
    let kind = match (args.text("style"), args.text("handler_name").filter(|name| !name.is_empty())) {
        (Some(_), Some(_)) => return Err(usage("--style and --handler-name exclude each other")),
        // What it is is seen when the files are known.
        (Some("auto"), None) => Ok(Kind::Pretrain),
        (Some(style), None) => Kind::of_style(style),
        (None, name) => Kind::of_handler(name.unwrap_or_default()),
    };
    let mut kind = kind.map_err(|error| usage(&error.to_string()))?;
    let mut inputs = Vec::new();
    let mut fields_of_files = Vec::new();
    let mut sets = Vec::new();
    if kind == Kind::LlamaFactory {
        let folder = args.text("dataset_dir").ok_or_else(|| {
            usage("LlamaFactory's sets need --dataset-dir, the folder of dataset_info.json, and their names as --input")
        })?;
        let given: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        // A path stands for the name at its end, as upstream has it.
        let names = given.iter().flat_map(|names| names.split(','));
        let names: Vec<&str> = names.map(|name| name.rsplit('/').next().unwrap_or(name).trim()).collect();
        for set in described_sets(folder.as_ref(), &names)? {
            let files = how.files(&set.path)?;
            fields_of_files.extend(std::iter::repeat_n(set.fields, files.len()));
            sets.push(inputs.len()..inputs.len() + files.len());
            inputs.extend(files);
        }
    } else {
        for path in &paths {
            inputs.extend(how.files(path)?);
        }
    }
    if let Some(most) = args.size("max_record_bytes")? {
        inputs.iter_mut().for_each(|file| file.most_bytes = most);
    }
    let mut found_keys = None;
    if args.text("style") == Some("auto") {
        let record = first_record(&inputs).ok_or_else(|| {
            usage("--style auto looks at the first record of a file, and there is none\nhint: name the style")
        })?;
        let found = recognise::style(&record).map_err(|text| usage(&text))?;
        tracing::info!("--style {}: the first record has {}", found.kind.name(), found.words);
        (kind, found_keys) = (found.kind, found.map_keys);
    } else if !args.has("map_keys")
        && let Some((keys, words)) = first_record(&inputs).and_then(|r| recognise::messages(&r, kind))
    {
        tracing::info!(
            "the first record has {words}: read as with --map-keys '{}'",
            serde_json::Value::Object(keys.clone())
        );
        found_keys = Some(keys);
    }
    let tokenizer = Vocabulary::resolve(args)?;
    let (pack, neat) = (args.flag("pack"), args.flag("neat_pack"));
    let seq_length = args.size("seq_length")?;
    if neat && !pack {
        return Err(usage("--neat-pack needs --pack"));
    }
    if pack && target == Target::Stream {
        return Err(usage("a stream is packed by ms-pack\nhint: leave --pack out and pass it to ms-pack"));
    }
    if pack && seq_length.is_none() {
        return Err(usage("--pack needs --seq-length"));
    }
    if pack && !kind.packable() {
        return Err(
            Usage(format!("{} records cannot be packed: only instruction records can", kind.name())).into()
        );
    }
    let map_keys = match args.value("map_keys") {
        None => found_keys,
        Some(serde_json::Value::Object(map)) => Some(map.clone()),
        Some(serde_json::Value::String(json)) => match serde_json::from_str(json) {
            Ok(serde_json::Value::Object(map)) => Some(map),
            _ => return Err(usage("--map-keys: expected a JSON object")),
        },
        Some(_) => return Err(usage("--map-keys: expected a JSON object")),
    };
    let head = args.upstream() == Upstream::Head;
    let mut options = HandlerOptions {
        prompt_type: args.text("prompt_type").map(str::to_owned),
        prompt_type_path: args
            .has("prompt_type_path")
            .then(|| args.text("prompt_type_path"))
            .flatten()
            .map(PathBuf::from),
        map_keys,
        json_keys: args.list("json_keys"),
        append_eod: args.flag("append_eod"),
        seq_length,
        neat_pack: neat,
        additional_keys: args.list("dataset_additional_keys"),
        fields_of_files,
        upstream: if head { ms_data::Upstream::Head } else { ms_data::Upstream::V2_0_0 },
        ..HandlerOptions::new(kind)
    };
    options.strict = args.flag("strict");
    if head {
        options.pad_to_multiple_of = args.size("pad_to_multiple_of")?.unwrap_or(1);
        options.enable_thinking =
            args.text("enable_thinking").and_then(|word| word.to_ascii_lowercase().parse().ok());
        options.drop_thinking = args.text("drop_thinking") != Some("false");
        options.reasoning_effort = match args.text("reasoning_effort") {
            None => None,
            Some(_) if options.enable_thinking != Some(true) => {
                return Err(usage("--reasoning-effort needs --enable-thinking true"));
            }
            Some("max") => Some(Effort::Max),
            Some(_) => Some(Effort::High),
        };
    } else if let Some(token) = args.text("placeholder_token") {
        options.placeholder_token = token.to_owned();
    }
    if kind == Kind::ProcessReward {
        options.reward_tokens = args.list("reward_tokens");
    }
    let parts = args.size("n_subs")?.unwrap_or(1).max(1) as u64;
    if parts > 1 && inputs.iter().any(|file| file.path.as_os_str() == "-") {
        return Err(usage("--n-subs reads the input twice, which stdin does not allow"));
    }
    let files = match &target {
        Target::Files { prefix, .. } => Some(prefix.as_path()),
        Target::Stream => None,
    };
    let mut care = Care::resolve(args, kind, &options.json_keys, files)?;
    if let Some(splitter) = splitter(args, &target)? {
        care.settings.insert("sentence_model_sha256".into(), splitter.content_hash().into());
        care.settings.sort_keys();
        options.sentences = Some(Arc::new(splitter));
    }
    let mixture = Mixture::resolve(args, kind, sets)?;
    if mixture.is_some() && !care.intake.takes_all() {
        return Err(usage(
            "--mix-strategy and --max-samples count records, which --sample, --filter, --dedup and --on-error skip change\nhint: make each set on its own, and ms-pack merge them",
        ));
    }
    Ok(Job::Tokenize(Box::new(Tokenize {
        care,
        options,
        tokenizer,
        inputs,
        target,
        pack,
        workers: args.size("workers")?.unwrap_or(1).max(1),
        parts,
        mixture,
    })))
}
