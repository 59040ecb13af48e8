//! The command line of `ms-preprocess`: upstream's `preprocess_data.py`, and a few flags of our own.
//!
//! Here the flags are converted to the plain values that the run takes.

use crate::curation::{Curation, CurationOptions};
use crate::mixture::{Mixing, Mixture};
use crate::recognise::{self, Record, first_record, read_first};
use crate::sentences::{Sentences, splitter};
use anyhow::Result;
use ms_cli::megatron::{Args, Given, Line, Program, Upstream};
use ms_cli::{Usage, check_prefix, refuse};
use ms_data::handler::{FieldMap, HandlerOptions, RecordKind, described_sets};
use ms_data::records::{Discovery, Documents, Format, InputFile, file_list};
use ms_text::Tokenizer;
use ms_text::template::Effort;
use serde_json::Value;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The line that help begins with, and what follows it.
pub(crate) const ABOUT: &str = "\
Turns raw text and conversations into token datasets: .bin/.idx pairs, or an Arrow stream for ms-pack.
Takes the flags of preprocess_data.py unchanged.

Examples:
  ms-preprocess --style pretrain --input corpus.jsonl --tokenizer-name-or-path tok --append-eod --output-prefix data/corpus
  ms-preprocess --style sharegpt --prompt-type qwen --input chats.json --tokenizer-name-or-path tok | ms-pack --seq-length 512 --output-prefix data/chats
  find src -name '*.rs' | ms-preprocess --style pretrain --documents files --files-from - --tokenizer-name-or-path tok --output-prefix data/src";

options! {
    /// What is read.
    pub(crate) struct Reading in "Input" {
        input: Vec<String> = "--input", "files, folders and patterns to read (- for stdin)";
        files_from: Option<PathBuf> = "--files-from", "file with one path per line (- for stdin), instead of --input", own = own("files_from");
        documents: String = "--documents", "what a document is: a record, as the file type defines it, or a whole file", own = own_of("documents", "\"records\"", "records,files");
        format: Option<String> = "--input-format", "format of the input files, instead of what their names say", own = own_of("input_format", "null", "json,jsonl,txt,csv,tsv,parquet,arrow,feather,ipc");
        split: Option<String> = "--input-split", "read only files of this split, where folders or names tell splits apart (default: train)", own = own("input_split");
        most_bytes: usize = "--max-record-bytes", "maximum size of an uncompressed record; a larger one is an error (--on-error skip leaves it out)", range = "[1,1099511627776]", own = own_or("max_record_bytes", "67108864");
        style: Given<Option<String>> = "--style", "kind of records (alias of --handler-name); auto decides by the first record", own = own_of("style", "null", "auto,pretrain,general-instruction,alpaca,sharegpt,openai,pairwise,pairwise-sharegpt,prm,ppo,r1,r1-sharegpt,alpaca-pretrain,stackoverflow-pretrain,sharegpt-pretrain,llama-factory,hunyuan,belle,moss,moss-multi-turn,leetcode");
        handler: Option<String> = "--handler-name", "kind of records: name of upstream's handler";
        map_keys: Given<Option<Value>> = "--map-keys", "JSON object that renames fields";
        json_keys: Vec<String> = "--json-keys", "fields to tokenize";
        additional_keys: Vec<String> = "--dataset-additional-keys", "R1 records: names of further fields";
        placeholder: Option<String> = "--placeholder-token", "process reward records: token at which a step is judged";
        reward_tokens: Vec<String> = "--reward-tokens", "process reward records: tokens that are judgements";
        pub(crate) described: Option<PathBuf> = "--dataset-dir", "LlamaFactory: folder of dataset_info.json, whose datasets --input names";
        merge: Vec<String> = "--merge-group-keys", "merge the datasets of the --input folder whose names contain these words";
    }
}

options! {
    /// How records become text.
    pub(crate) struct Prompts in "Prompt" {
        template: Option<String> = "--prompt-type", "name of the prompt template";
        templates: Given<Option<PathBuf>> = "--prompt-type-path", "file of prompt templates";
        thinking: Option<String> = "--enable-thinking", "reasoning templates: train on thoughts (true), remove them (false), or take records as they are (none)";
        effort: Option<String> = "--reasoning-effort", "template deepseek4: ask for maximum effort; needs --enable-thinking true";
        drop_thinking: String = "--drop-thinking", "template deepseek4 with --reasoning-effort: leave out thoughts before the last question; without --reasoning-effort they are always left out, as in upstream";
    }
}

impl Prompts {
    /// The file of templates that a flag names; upstream's default is a file of its own.
    pub(crate) fn given_templates(&self) -> Option<PathBuf> {
        self.templates.given().cloned().flatten()
    }
}

options! {
    /// How text becomes tokens.
    pub(crate) struct Tokens in "Tokenizer" {
        pub(crate) kind: Option<String> = "--tokenizer-type", "kind of tokenizer";
        pub(crate) folder: Option<PathBuf> = "--tokenizer-name-or-path", "folder of the tokenizer";
        model: Option<PathBuf> = "--tokenizer-model", "SentencePiece model of GPTSentencePieceTokenizer";
        vocab: Option<PathBuf> = "--vocab-file", "vocab.json of GPT2BPETokenizer, vocab.txt of BertWordPiece";
        merges: Option<PathBuf> = "--merge-file", "merges.txt of GPT2BPETokenizer";
        fast: bool = "--tokenizer-not-use-fast", "token ids of the slow tokenizer class: with Llama's (not legacy) a text that starts with a space or an added token without a role has one token more; others are the same";
        append_eod: bool = "--append-eod", "append the end-of-document token to every document";
    }
}

options! {
    /// How the work is done, and where its result goes.
    pub(crate) struct Working in "Output" {
        prefix: Option<String> = "--output-prefix", "path of the dataset, without suffix";
        workers: usize = "--workers", "number of threads", range = "[1,1024]";
        pub(crate) parts: u64 = "--n-subs", "number of parts that the work is split into", range = "[1,65536]";
        pub(crate) seed: u64 = "--seed", "seed of sampling, shuffling and mixing", group = "Input", range = "[0,4294967295]";
        pub(crate) strict: bool = "--strict", "treat as errors what upstream does silently: records left out, replaced or cut, texts that vanish", group = "Input", own = own_or("strict", "false");
        planned: bool = "--dry-run", "show the plan and write nothing", group = "Configuration", own = own_or("dry_run", "false");
        seq_length: Option<usize> = "--seq-length", "tokens per sample", group = "Packing", range = "[1,268435456]";
        pack: bool = "--pack", "pack records into samples of --seq-length", group = "Packing";
        neat_pack: bool = "--neat-pack", "with --pack: attention stays inside a packed record", group = "Packing";
        pad_to_multiple: usize = "--pad-to-multiple-of", "pad documents to a multiple of this number of tokens", group = "Packing", range = "[1,16777216]";
    }
}

gathered_options! {
    /// A run, as the command line describes it.
    pub(crate) struct Options {
        pub(crate) upstream: Upstream,
        pub(crate) reading: Reading,
        pub(crate) prompts: Prompts,
        pub(crate) vocabulary: Tokens,
        pub(crate) work: Working,
        pub(crate) curation: CurationOptions,
        pub(crate) mixing: Mixing,
        pub(crate) sentences: Sentences,
    }
}

/// The command line.
pub fn line() -> &'static Line {
    static LINE: OnceLock<Line> = OnceLock::new();
    LINE.get_or_init(|| Line::new::<Options>(Program::Preprocess, "ms-preprocess", ABOUT))
}

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
    pub(crate) curation: Curation,
    /// It is shown and not done.
    pub(crate) planned: bool,
}

/// Where the tokenizer comes from.
#[derive(Debug)]
pub(crate) enum Vocabulary {
    /// A folder in Hugging Face's form, or a file of one; with the ids of the slow class, where they are others.
    Folder { path: PathBuf, slow: bool },
    /// Megatron's `GPT2BPETokenizer`.
    Gpt2 { vocab: PathBuf, merges: PathBuf },
    /// Megatron's `BertWordPiece` ones.
    Bert { vocab: PathBuf, lower_case: bool },
    /// Megatron's `GPTSentencePieceTokenizer`.
    SentencePiece(PathBuf),
}

impl Vocabulary {
    fn resolve(o: &Tokens) -> Result<Self> {
        let file = |path: &Option<PathBuf>, flag: &str, what: &str| {
            path.clone().ok_or_else(|| Usage(format!("{what} needs {flag}")))
        };
        Ok(match o.kind.as_deref().unwrap_or("PretrainedFromHF") {
            "GPT2BPETokenizer" => Self::Gpt2 {
                vocab: file(&o.vocab, "--vocab-file", "GPT2BPETokenizer")?,
                merges: file(&o.merges, "--merge-file", "GPT2BPETokenizer")?,
            },
            kind @ ("BertWordPieceLowerCase" | "BertWordPieceCase") => Self::Bert {
                vocab: file(&o.vocab, "--vocab-file", kind)?,
                lower_case: kind == "BertWordPieceLowerCase",
            },
            kind @ "GPTSentencePieceTokenizer" => {
                Self::SentencePiece(file(&o.model, "--tokenizer-model", kind)?)
            }
            "PretrainedFromHF" => {
                let missing = "no tokenizer\nhint: pass --tokenizer-name-or-path DIR";
                let path = o.folder.clone().ok_or_else(|| Usage(missing.to_owned()))?;
                Self::Folder { path, slow: !o.fast }
            }
            other => {
                refuse!(
                    "--tokenizer-type {other} is not supported\nhint: pass its folder in Hugging Face's form to \
                     --tokenizer-name-or-path"
                );
            }
        })
    }

    /// Reads it.
    pub(crate) fn load(&self) -> ms_text::Result<Tokenizer> {
        match self {
            Self::Folder { path, slow } => {
                let fast = Tokenizer::load_kept(path, ms_cli::tokenizer_cache().as_deref())?;
                Ok(if *slow { fast.as_slow() } else { fast })
            }
            Self::Gpt2 { vocab, merges } => Tokenizer::gpt2(vocab, merges),
            Self::Bert { vocab, lower_case } => Tokenizer::bert(vocab, *lower_case),
            Self::SentencePiece(path) => Tokenizer::sentencepiece(path),
        }
    }
}

impl Reading {
    /// The job of `--merge-group-keys`.
    fn merging(&self, prefix: Option<&str>, force: bool) -> Result<Job> {
        let [folder] = self.input.as_slice() else {
            refuse!("--merge-group-keys needs --input, a folder");
        };
        let Some(prefix) = prefix else { refuse!("--merge-group-keys needs --output-prefix") };
        Ok(Job::Merge { folder: folder.into(), words: self.merge.clone(), prefix: prefix.into(), force })
    }

    /// The files, folders and patterns that are named.
    fn paths(&self) -> Result<Vec<PathBuf>> {
        match (&self.input, &self.files_from) {
            (given, Some(_)) if !given.is_empty() => {
                refuse!("--input and --files-from exclude each other");
            }
            (_, Some(list)) => Ok(file_list(list)?),
            (given, None) if given.is_empty() => {
                refuse!(
                    "no input\nhint: pass --input with files, folders or patterns, or - for records on stdin"
                );
            }
            (given, None) => Ok(given.iter().map(PathBuf::from).collect()),
        }
    }

    /// How they are interpreted.
    fn discovery(&self) -> Result<Discovery> {
        Ok(Discovery {
            documents: if self.documents == "files" { Documents::Files } else { Documents::Records },
            format: self.format.as_deref().map(Format::named).transpose()?,
            split: self.split.clone(),
        })
    }

    /// The kind of records that is named; what `auto` is is seen when the files are known.
    fn kind(&self) -> Result<RecordKind> {
        let handler = self.handler.as_deref().filter(|name| !name.is_empty());
        let kind = match (self.style.value.as_deref(), handler) {
            (Some(_), Some(_)) => refuse!("--style and --handler-name exclude each other"),
            (Some("auto"), None) => Ok(RecordKind::Pretrain),
            (Some(style), None) => RecordKind::of_style(style),
            (None, name) => RecordKind::of_handler(name.unwrap_or_default()),
        };
        kind.map_err(|error| Usage(error.to_string()).into())
    }

    /// The files at `paths`, which name sets where records are of LlamaFactory's kind.
    fn sources(&self, kind: RecordKind, paths: &[PathBuf], how: &Discovery) -> Result<Sources> {
        let mut found = Sources::default();
        if kind == RecordKind::LlamaFactory {
            let Some(folder) = self.described.as_deref() else {
                refuse!(
                    "LlamaFactory's sets need --dataset-dir, the folder of dataset_info.json, and their names as --input"
                )
            };
            let given: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            // A path stands for the name at its end, as upstream has it.
            let names = given.iter().flat_map(|names| names.split(','));
            let names: Vec<&str> = names.map(|name| name.rsplit('/').next().unwrap_or(name).trim()).collect();
            for set in described_sets(folder, &names)? {
                let files = how.files(&set.path)?;
                found.fields.extend(std::iter::repeat_n(set.fields, files.len()));
                found.sets.push(found.inputs.len()..found.inputs.len() + files.len());
                found.inputs.extend(files);
            }
        } else {
            for path in paths {
                found.inputs.extend(how.files(path)?);
            }
        }
        found.inputs.iter_mut().for_each(|file| file.most_bytes = self.most_bytes);
        Ok(found)
    }

    /// The kind of records, and the `--map-keys` that their fields need: as the first record shows where flags leave it open.
    fn recognised(&self, kind: RecordKind, inputs: &[InputFile]) -> Result<(RecordKind, Option<Record>)> {
        if self.style.value.as_deref() == Some("auto") {
            let Some(record) = read_first(inputs) else {
                refuse!(
                    "--style auto looks at the first record of a file, and there is none\nhint: name the style"
                )
            };
            let record = record?;
            let found = recognise::style(&record).map_err(Usage)?;
            tracing::info!("--style {}: the first record has {}", found.kind.name(), found.words);
            return Ok((found.kind, found.map_keys));
        }
        if !self.map_keys.is_given()
            && let Some((keys, words)) = first_record(inputs).and_then(|r| recognise::messages(&r, kind))
        {
            let told = Value::Object(keys.clone());
            tracing::info!("the first record has {words}: read as with --map-keys '{told}'");
            return Ok((kind, Some(keys)));
        }
        Ok((kind, None))
    }

    /// How fields are renamed: as was `found`, where no flag says it.
    fn keys(&self, found: Option<Record>) -> Result<Option<Record>> {
        Ok(match &self.map_keys.value {
            None => found,
            Some(Value::Object(map)) => Some(map.clone()),
            Some(Value::String(json)) => match serde_json::from_str(json) {
                Ok(Value::Object(map)) => Some(map),
                _ => refuse!("--map-keys: expected a JSON object"),
            },
            Some(_) => refuse!("--map-keys: expected a JSON object"),
        })
    }
}

impl Working {
    /// Where the rows go. `piped` says that standard output is not a terminal.
    fn target(&self, piped: bool, force: bool) -> Result<Target> {
        Ok(match self.prefix.as_deref() {
            Some("-") | None if !piped => {
                refuse!(
                    "no output: a token stream is not written to a terminal\nhint: pass --output-prefix, or pipe into ms-pack"
                );
            }
            Some("-") | None => Target::Stream,
            Some(prefix) => Target::Files { prefix: prefix.into(), force },
        })
    }

    /// Checks that records of `kind` can be packed, if they are to be.
    fn check_packing(&self, kind: RecordKind, target: &Target) -> Result<()> {
        if self.neat_pack && !self.pack {
            refuse!("--neat-pack needs --pack");
        }
        if self.pack && *target == Target::Stream {
            refuse!("a stream is packed by ms-pack\nhint: leave --pack out and pass it to ms-pack");
        }
        if self.pack && self.seq_length.is_none() {
            refuse!("--pack needs --seq-length");
        }
        if self.pack && !kind.packable() {
            refuse!("{} records cannot be packed: only instruction records can", kind.name());
        }
        Ok(())
    }
}

/// The files that are read.
#[derive(Default)]
struct Sources {
    inputs: Vec<InputFile>,
    /// Of described sets, the fields of each file.
    fields: Vec<FieldMap>,
    /// The files of each described set.
    sets: Vec<Range<usize>>,
}

/// How records of `kind` become rows.
fn handler_options(
    o: &Options,
    kind: RecordKind,
    map_keys: Option<Record>,
    fields_of_files: Vec<FieldMap>,
) -> Result<HandlerOptions> {
    let (reading, work, head) = (&o.reading, &o.work, o.upstream == Upstream::Head);
    let mut options = HandlerOptions {
        prompt_type: o.prompts.template.clone(),
        prompt_type_path: o.prompts.given_templates(),
        map_keys,
        json_keys: reading.json_keys.clone(),
        append_eod: o.vocabulary.append_eod,
        seq_length: work.seq_length,
        neat_pack: work.neat_pack,
        additional_keys: reading.additional_keys.clone(),
        fields_of_files,
        upstream: if head { ms_data::Upstream::Head } else { ms_data::Upstream::V2_0_0 },
        strict: work.strict,
        ..HandlerOptions::new(kind)
    };
    if head {
        options.pad_to_multiple_of = work.pad_to_multiple;
        options.enable_thinking =
            o.prompts.thinking.as_deref().and_then(|word| word.to_ascii_lowercase().parse().ok());
        options.drop_thinking = o.prompts.drop_thinking != "false";
        options.reasoning_effort = match o.prompts.effort.as_deref() {
            None => None,
            Some(_) if options.enable_thinking != Some(true) => {
                refuse!("--reasoning-effort needs --enable-thinking true");
            }
            Some("max") => Some(Effort::Max),
            Some(_) => Some(Effort::High),
        };
    } else if let Some(token) = &reading.placeholder {
        options.placeholder_token = token.clone();
    }
    if kind == RecordKind::ProcessReward {
        options.reward_tokens = reading.reward_tokens.clone();
    }
    Ok(options)
}

/// Resolves the flags. `piped` says that standard output is not a terminal.
pub(crate) fn resolve(args: &Args, o: &Options, piped: bool) -> Result<Job> {
    let (reading, work) = (&o.reading, &o.work);
    let prefix = work.prefix.as_deref();
    if let Some(prefix) = prefix {
        check_prefix(Path::new(prefix))?;
    }
    // Upstream replaces what is there. Its argument lists are taken as they are; with --style it takes --force.
    let force = o.curation.force || !reading.style.is_given();
    if !reading.merge.is_empty() {
        return reading.merging(prefix, force);
    }
    let target = work.target(piped, force)?;
    let (paths, how) = (reading.paths()?, reading.discovery()?);
    let kind = reading.kind()?;
    let Sources { mut inputs, fields, sets } = reading.sources(kind, &paths, &how)?;
    let (kind, found_keys) = reading.recognised(kind, &inputs)?;
    let tokenizer = Vocabulary::resolve(&o.vocabulary)?;
    work.check_packing(kind, &target)?;
    let map_keys = reading.keys(found_keys)?;
    if fields.is_empty()
        && let Some(absent) = recognise::absent_field(&inputs, kind, map_keys.as_ref())
    {
        refuse!("{absent}");
    }
    let mut options = handler_options(o, kind, map_keys, fields)?;
    let parts = work.parts.max(1);
    if parts > 1 && inputs.iter().any(|file| file.path.as_os_str() == "-") {
        refuse!("--n-subs reads the input twice, which stdin does not allow");
    }
    let files = match &target {
        Target::Files { prefix, .. } => Some(prefix.as_path()),
        Target::Stream => None,
    };
    let mut curation = Curation::resolve(args, o, kind, &options.json_keys, files)?;
    let passes_over = curation.selection.passes_over();
    inputs.iter_mut().for_each(|file| file.passes_over = passes_over);
    if let Some(splitter) = splitter(&o.sentences, o.upstream, &target)? {
        curation.settings.insert("sentence_model_sha256".into(), splitter.content_hash().into());
        curation.settings.sort_keys();
        options.sentences = Some(Arc::new(splitter));
    }
    let mixture = Mixture::resolve(o, kind, sets)?;
    if mixture.is_some() && !curation.selection.takes_all() {
        refuse!(
            "--mix-strategy and --max-samples count records, which --sample, --filter, --dedup and --on-error skip change\nhint: make each set on its own, and ms-pack merge them"
        );
    }
    Ok(Job::Tokenize(Box::new(Tokenize {
        curation,
        options,
        tokenizer,
        inputs,
        target,
        pack: work.pack,
        workers: work.workers.max(1),
        parts,
        mixture,
        planned: work.planned,
    })))
}
