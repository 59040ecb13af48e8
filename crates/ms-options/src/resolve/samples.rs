//! Where samples come from, and the tokenizer that they were made with.

mod fine_tuning;

use crate::resolve::data::{DataConfig, DataKind};
use crate::resolve::options::Options;
use anyhow::{Context, Result, bail};
use ms_cli::megatron::{Given, Upstream};
use ms_cli::{Usage, refuse};
use ms_data::gpt::{DataPaths, GptOptions, IndexCache};
use ms_data::sampler::SamplerKind;
use ms_data::{Documents, RowLayout, Split};
use ms_spec::{ModelConfig, Position};
use ms_text::Tokenizer;
use ms_text::template::Template;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

options! {
    /// What is trained on, in which order and form.
    pub(crate) struct Samples in "Data" {
        stage: Option<String> = "--stage", "what to train: pretrain (the default) or sft, supervised fine-tuning", group = "Task";
        instructions: bool = "--is-instruction-dataset", "the dataset is a packed instruction set";
        pub(super) seed: u64 = "--seed", "seed of initial weights, data order and dropout", range = "[0,4294967295]";
        paths: Given<Vec<String>> = "--data-path", "dataset prefix, weights and prefixes in turn, or a .safetensors file of samples";
        train_paths: Given<Vec<String>> = "--train-data-path", "dataset for training only";
        valid_paths: Given<Vec<String>> = "--valid-data-path", "dataset for validation only", group = "Evaluation";
        test_paths: Given<Vec<String>> = "--test-data-path", "dataset for testing only", group = "Evaluation";
        paths_file: Option<PathBuf> = "--data-args-path", "text file with the values of --data-path";
        split_paths_file: Option<PathBuf> = "--per-split-data-args-path", "JSON file with the lists of datasets for train, valid and test";
        mock: bool = "--mock-data", "for benchmarks: artificial sequences, as Megatron makes them, instead of a dataset";
        extra_tokens: usize = "--vocab-extra-ids", "number of special tokens <extra_id_0>, <extra_id_1>, ... added after the tokenizer's own", group = "Model families", range = "[0,65536]";
        special_tokens: Vec<String> = "--tokenizer-kwargs", "v2.0.0: pairs of a name (eos_token, pad_token) and the token to use instead of the one in the tokenizer's files", group = "Model families";
        tokenizer_type: Option<String> = "--tokenizer-type", "NullTokenizer: no tokenizer, documents end with the token after --vocab-size; otherwise the tokenizer's own files decide";
        split: Option<String> = "--split", "shares of training, validation and test data (default: 969, 30, 1, also in fine-tuning)";
        cache: Option<PathBuf> = "--data-cache-path", "folder of index files in upstream's format (default: indices are built in memory)";
        sampler: Option<String> = "--dataloader-type", "order of the samples";
        sharded: bool = "--no-data-sharding", "with --dataloader-type cyclic: data-parallel ranks take turns in one permutation of all samples, instead of each having its own share";
        no_shuffle: bool = "--no-shuffle", "take samples in file order";
        full_shuffle: bool = "--full-shuffle-instruction-dataset", "shuffle the samples of all epochs of an instruction dataset together";
        fill: bool = "--padded-samples", "fill the last global batch with repeated samples";
        reset_positions: bool = "--reset-position-ids", "positions restart after each document (head: with learned positions or --reset-attention-mask; v2.0.0: attention does not cross, either); in fine-tuning with v2.0.0: samples are packed";
        reset_attention: bool = "--reset-attention-mask", "attention stays inside a document; in fine-tuning with --upstream head: samples are packed";
        mask_eod: bool = "--eod-mask-loss", "no loss on end-of-document tokens";
        stretch: i64 = "--fix-sub-seq-length", "for benchmarks: with --reset-attention-mask, treat every N tokens as a document (-1: off)", range = "[-1,268435456]";
        cut_at_end: bool = "--cut-max-seqlen", "cut samples that are longer than --seq-length at their end, instead of shortening every turn";
        uncut: bool = "--no-cut-token", "refused where samples could be longer than --seq-length, since longer ones are always cut";
        neat_pack: bool = "--neat-pack", "the dataset was packed with --neat-pack: attention stays inside a sample";
        variable: bool = "--variable-seq-lengths", "v2.0.0: pad batches only to their longest sample (head: --no-pad-to-seq-lengths)";
        no_pad: bool = "--no-pad-to-seq-lengths", "do not pad samples to --seq-length";
        pad_to_multiple: Option<usize> = "--pad-to-multiple-of", "pad variable lengths to a multiple of this", range = "[1,16777216]";
        padding_side: Option<String> = "--tokenizer-padding-side", "side on which instruction samples are padded: left or right";
        template: Option<String> = "--prompt-type", "name of the prompt template";
        templates: Option<PathBuf> = "--prompt-type-path", "file of prompt templates";
    }
}

impl Samples {
    /// Whether samples are instructions with answers.
    pub(crate) fn is_sft(&self) -> bool {
        self.stage.as_deref() == Some("sft") || self.instructions
    }

    /// Refuses stages that are not part of this version, and sides that rows do not have.
    ///
    /// # Errors
    /// For those.
    pub(super) fn check_stage(&self) -> Result<()> {
        if let Some(stage) = self.stage.as_deref().filter(|s| !matches!(*s, "pretrain" | "sft")) {
            refuse!("--stage: expected pretrain or sft, found {stage}, which is not part of this version");
        }
        if let Some(side) = self.padding_side.as_deref().filter(|side| !matches!(*side, "left" | "right")) {
            refuse!("--tokenizer-padding-side: expected left or right, found {side}");
        }
        Ok(())
    }

    /// Whether rows are made with the tokens that end documents, which a tokenizer names.
    pub(super) fn look_at_documents(&self) -> bool {
        self.is_sft() || self.mock || self.reset_positions || self.reset_attention || self.mask_eod
    }

    /// Whether there is no tokenizer, and one token behind those of `--vocab-size` ends documents.
    pub(crate) fn have_no_words(&self) -> bool {
        self.tokenizer_type.as_deref() == Some("NullTokenizer")
    }

    /// Whether a flag names data.
    pub(super) fn are_named(&self) -> bool {
        !self.source().is_empty()
    }

    /// Data for all splits, and for each.
    fn lists(&self) -> [&Given<Vec<String>>; 4] {
        [&self.paths, &self.train_paths, &self.valid_paths, &self.test_paths]
    }

    /// The words of `--data-path`, and datasets of training, validation and test, from the line or from files.
    ///
    /// # Errors
    /// If both name some, or a file is not of its form.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `megatron/training/utils.py`, `get_blend_and_blend_per_split`, and `arguments.py`.
    fn named(&self) -> Result<(Vec<String>, [Vec<String>; 3])> {
        let each = [&self.train_paths, &self.valid_paths, &self.test_paths];
        let read = |flag: &str, path: &Path| -> Result<String> {
            std::fs::read_to_string(path).with_context(|| format!("{flag} {}", path.display()))
        };
        let mut paths = self.paths.value.clone();
        if let Some(file) = &self.paths_file {
            if self.paths.is_given() {
                refuse!("--data-args-path: cannot be combined with --data-path, which says the same");
            }
            paths = read("--data-args-path", file)?.split_whitespace().map(str::to_owned).collect();
            if paths.is_empty() {
                bail!("{}: expected datasets, found none", self.source());
            }
        }
        let mut of_splits = each.map(|paths| paths.value.clone());
        if let Some(file) = &self.split_paths_file {
            const FLAG: &str = "--per-split-data-args-path";
            if each.iter().any(|paths| paths.is_given()) {
                refuse!("{FLAG}: cannot be combined with --train-data-path and its like, which say the same");
            }
            let name = file.display();
            let form =
                || format!(r#"{FLAG} {name}: expected {{"train": [..], "valid": [..], "test": [..]}}"#);
            let all: BTreeMap<String, Vec<Word>> =
                serde_json::from_str(&read(FLAG, file)?).with_context(form)?;
            if let Some(other) = all.keys().find(|key| !SPLITS.contains(&key.as_str())) {
                bail!("{}, found {other}", form());
            }
            let words = |split: &str| all.get(split).into_iter().flatten().map(ToString::to_string).collect();
            of_splits = SPLITS.map(words);
            if of_splits.iter().all(Vec::is_empty) {
                bail!("{}, found no dataset", form());
            }
        }
        Ok((paths, of_splits))
    }

    /// The flags that name the data, and the files if those do.
    fn source(&self) -> String {
        let file = |flag, file: &Option<PathBuf>| Some(format!("{flag} {}", file.as_ref()?.display()));
        let files = [
            file("--data-args-path", &self.paths_file),
            file("--per-split-data-args-path", &self.split_paths_file),
            self.mock.then(|| "--mock-data".to_owned()),
        ];
        let given = PATHS.iter().zip(self.lists()).filter(|(_, paths)| paths.is_given());
        let flags = given.map(|(flag, _)| (*flag).to_owned()).chain(files.into_iter().flatten());
        flags.collect::<Vec<_>>().join(", ")
    }

    /// Shares of training, validation and test data.
    fn shares(&self) -> Result<Split> {
        let split = Split::parse(self.split.as_deref().unwrap_or("969, 30, 1"));
        split.map_err(|e| Usage(format!("--split: {e}")).into())
    }

    /// Checks that sequences can be made up, and says which flags then have no effect; `named`: other flags name data.
    fn check_mock(&self, upstream: Upstream, named: bool, ends: bool) -> Result<()> {
        if named && upstream == Upstream::Head {
            refuse!("--mock-data: cannot be combined with --data-path and its like");
        }
        if !named && !ends {
            refuse!(
                "--mock-data: needs --tokenizer-name-or-path, or --tokenizer-type NullTokenizer with --vocab-size: artificial \
                 sequences end with the end of document"
            );
        }
        if named {
            tracing::warn!(
                "--mock-data has no effect: MindSpeed-LLM 2.0.0 takes the data that other flags name"
            );
        } else if self.split.is_some() {
            tracing::warn!(
                "--split has no effect with --mock-data: upstream cuts artificial data into thirds"
            );
        }
        Ok(())
    }

    /// The order of samples.
    fn sampler(&self) -> Result<SamplerKind> {
        Ok(match self.sampler.as_deref().unwrap_or("single") {
            "cyclic" if self.sharded => SamplerKind::Cyclic,
            "cyclic" => SamplerKind::CyclicInTurns,
            "single" => SamplerKind::Single,
            other => refuse!("--dataloader-type: expected single or cyclic, found {other}"),
        })
    }

    /// Every how many tokens of a row are treated as a document, if they are.
    fn stretch(&self, seq_length: usize) -> Option<usize> {
        let tokens = usize::try_from(self.stretch).ok().filter(|&n| n > 0)?;
        if tokens > seq_length || !self.reset_attention {
            tracing::warn!(
                "--fix-sub-seq-length {tokens} has no effect: it needs --reset-attention-mask, up to --seq-length"
            );
            return None;
        }
        tracing::warn!(
            "--fix-sub-seq-length: every {tokens} tokens attend within themselves, so losses are meaningless"
        );
        Some(tokens)
    }
}

/// Whether the positions of pretraining data restart after each document.
///
/// # Source
/// MindSpeed-LLM's head (2026), `core/models/common/embeddings/rotary_pos_embedding.py`, `apply_rotary_pos_emb_thd`: rotations
/// look at the positions of rows whose attention is cut alone.
fn restart_positions(o: &Samples, upstream: Upstream, model: &ModelConfig) -> bool {
    let seen = upstream == Upstream::V2_0_0 || o.reset_attention || model.position == Position::Learned;
    if o.reset_positions && !seen && !o.is_sft() {
        tracing::warn!(
            "--reset-position-ids has no effect: upstream's head looks at positions beside --reset-attention-mask alone, unless they are \
             learned"
        );
    }
    o.reset_positions && seen
}

/// The flags of [`Samples::lists`].
const PATHS: [&str; 4] = ["--data-path", "--train-data-path", "--valid-data-path", "--test-data-path"];

/// Keys of `--per-split-data-args-path`.
const SPLITS: [&str; 3] = ["train", "valid", "test"];

/// A weight or a prefix.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Number(serde_json::Number),
}

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// A tokenizer, adjusted by the prompt template if there is one.
pub(super) struct Adjusted {
    pub(super) tokenizer: Tokenizer,
    /// The template closes with one end token.
    closing: bool,
}

/// The tokenizer of a folder, if one is named.
pub(super) fn tokenizer(o: &Samples, folder: Option<&Path>) -> Result<Option<Adjusted>> {
    let Some(dir) = folder else { return Ok(None) };
    let mut tokenizer = Tokenizer::load_kept(dir, ms_cli::tokenizer_cache().as_deref())
        .context("--tokenizer-name-or-path")?;
    for id in 0..o.extra_tokens {
        tokenizer.add_special(&format!("<extra_id_{id}>"))?;
    }
    replace_special(&mut tokenizer, &o.special_tokens)?;
    let mut closing = false;
    match o.template.as_deref() {
        Some(name) => {
            let template = match &o.templates {
                Some(path) => Template::from_file(name, path)?,
                None => Template::named(name)?,
            };
            template.adjust(&mut tokenizer)?;
            closing = template.efficient_eos;
        }
        None => {
            if tokenizer.pad().is_none() && tokenizer.eos().is_some() {
                tokenizer.pad_with_eos();
            }
        }
    }
    Ok(Some(Adjusted { tokenizer, closing }))
}

/// Gives tokens other parts, as pairs of the part's name and the token say.
///
/// # Errors
/// For a name without a token, and parts that training has nothing for.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `mindspeed_llm/training/tokenizer/tokenizer.py`, `build_tokenizer`.
fn replace_special(tokenizer: &mut Tokenizer, pairs: &[String]) -> Result<()> {
    const FLAG: &str = "--tokenizer-kwargs";
    for pair in pairs.chunks(2) {
        match pair {
            [part, token] if part == "eos_token" => drop(tokenizer.set_eos(token)?),
            [part, token] if part == "pad_token" => drop(tokenizer.set_pad(token)?),
            [part, _] => {
                refuse!("{FLAG}: expected eos_token or pad_token and a token each, found {part}")
            }
            _ => refuse!("{FLAG}: expected pairs of a name and a token, found {} words", pairs.len()),
        }
    }
    Ok(())
}

/// The tokens that a run needs besides those of texts.
#[derive(Clone, Copy)]
struct Ends {
    /// Ends documents.
    eod: i32,
    /// Fills rows; a tokenizer has it.
    pad: Option<i32>,
}

/// Those that a tokenizer or a flag says, if there is one: an error if the tokenizer does not.
fn ends(all: &Options, tokenizer: Option<&Tokenizer>) -> Option<ms_text::Result<Ends>> {
    let named = tokenizer.map(|t| Ok(Ends { eod: t.eod()? as i32, pad: Some(t.pad_id()? as i32) }));
    let counted = || all.model_flags.tokens().filter(|_| all.samples.have_no_words());
    named.or_else(|| counted().map(|end| Ok(Ends { eod: end as i32, pad: None })))
}

/// The id of filling in documents (`--pad-to-multiple-of` of `ms-preprocess`), where it is told from tokens: the first that the
/// vocabulary does not have. Without a tokenizer, the `end` of documents is the last that it has.
///
/// # Source
/// MindSpeed (2026), `core/transformer/flash_attention/reset_attention_mask/utils.py`, `eod_gptdataset_getitem`.
fn filler(all: &Options, tokenizer: Option<&Tokenizer>, end: Option<i32>) -> Option<i32> {
    let size = tokenizer.map(|tokenizer| tokenizer.vocab_size() as i32).or(end.map(|end| end + 1));
    size.filter(|_| all.upstream == Upstream::Head && all.samples.reset_attention)
}

/// What starts anew at the end of a document: positions, attention, and whether its token has no loss.
type Resets = [bool; 3];

/// That the flags of these have no token to act at.
fn need_eod(resets: Resets) -> Usage {
    let names = ["--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"];
    let given: Vec<&str> = names.into_iter().zip(resets).filter(|f| f.1).map(|f| f.0).collect();
    Usage(format!("{}: need --tokenizer-name-or-path: it names the end-of-document token", given.join(", ")))
}

/// The version of upstream by its data.
fn upstream_of(o: &Options) -> ms_data::Upstream {
    match o.upstream {
        Upstream::V2_0_0 => ms_data::Upstream::V2_0_0,
        Upstream::Head => ms_data::Upstream::Head,
    }
}

/// The data of a run of `model` in rows of `seq_length` tokens and batches of `global`.
///
/// # Errors
/// If flags contradict each other, or need a tokenizer that is not there.
pub(super) fn data(
    all: &Options,
    seq_length: usize,
    global: usize,
    adjusted: Option<&Adjusted>,
    model: &ModelConfig,
) -> Result<DataConfig> {
    let o = &all.samples;
    // Rows for multi-token prediction extend beyond what is trained.
    let beyond = all.model_training.windows;
    let seq_length = seq_length + beyond;
    let (paths, per_split) = o.named()?;
    let tokenizer = adjusted.map(|adjusted| &adjusted.tokenizer);
    let ids = ends(all, tokenizer);
    let resets = [restart_positions(o, all.upstream, model), o.reset_attention, o.mask_eod];
    let (kind, layout) = if let [file] = paths.as_slice()
        && file.ends_with(".safetensors")
    {
        (stored_samples(all, file, resets, ids)?, RowLayout::Packed)
    } else if o.is_sft() {
        let closing = adjusted.is_some_and(|adjusted| adjusted.closing);
        fine_tuning::rows(all, paths, seq_length, global, ids, closing)?
    } else {
        let end = ids.as_ref().and_then(|ids| ids.as_ref().ok()).map(|ids| ids.eod);
        let filler = filler(all, tokenizer, end);
        (pretraining(all, paths, per_split, seq_length, resets, ids, filler)?, RowLayout::Packed)
    };
    let (sampler, stretch) = (o.sampler()?, o.stretch(seq_length));
    Ok(DataConfig { kind, flag: o.source(), sampler, layout, stretch, ahead: 4, beyond })
}

/// Samples that stand in a file as they are taken.
fn stored_samples(
    all: &Options,
    file: &str,
    resets: Resets,
    ids: Option<ms_text::Result<Ends>>,
) -> Result<DataKind> {
    let [reset_position_ids, reset_attention, eod_mask_loss] = resets;
    let reset_attention_mask = upstream_of(all).keeps_documents_apart(reset_position_ids, reset_attention);
    let documents = match ids.transpose()? {
        _ if !resets.contains(&true) => None,
        Some(Ends { eod, .. }) => {
            Some(Documents { eod, reset_position_ids, reset_attention_mask, eod_mask_loss })
        }
        None => bail!(need_eod(resets)),
    };
    Ok(DataKind::Safetensors { path: PathBuf::from(file), documents })
}

/// Texts in rows that are filled, from `paths`, from those of each split or made up.
fn pretraining(
    all: &Options,
    paths: Vec<String>,
    per_split: [Vec<String>; 3],
    seq_length: usize,
    resets: Resets,
    ids: Option<ms_text::Result<Ends>>,
    filler: Option<i32>,
) -> Result<DataKind> {
    let o = &all.samples;
    let of_splits = per_split.iter().any(|p| !p.is_empty());
    if o.mock {
        o.check_mock(all.upstream, !paths.is_empty() || of_splits, ids.is_some())?;
    }
    let source = if !paths.is_empty() {
        DataPaths::Split { paths, split: o.shares()? }
    } else if of_splits {
        DataPaths::PerSplit(per_split)
    } else if o.mock {
        DataPaths::Mock
    } else {
        refuse!("--data-path is required (or --train-data-path, or --mock-data)");
    };
    if ids.is_none() && resets.contains(&true) {
        bail!(need_eod(resets));
    }
    let ids = ids.transpose()?;
    let mut options = GptOptions::new(seq_length, o.seed as u32, ids.map_or(-1, |ids| ids.eod));
    (options.pad, options.filler) = (ids.and_then(|ids| ids.pad), filler);
    [options.reset_position_ids, options.reset_attention_mask, options.eod_mask_loss] = resets;
    let tokenizer = all.tokenizer.as_upstream_says();
    options.cache = o.cache.as_ref().map(|folder| IndexCache::new(folder, tokenizer));
    Ok(DataKind::Gpt { paths: source, options, upstream: upstream_of(all) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_a_part_and_a_token_replace_what_the_tokenizers_files_say() {
        let dir = tempfile::tempdir().unwrap();
        let (vocab, merges) = (dir.path().join("vocab.json"), dir.path().join("merges.txt"));
        std::fs::write(&vocab, r#"{"a": 0, "b": 1, "<|endoftext|>": 2, "<|other|>": 3}"#).unwrap();
        std::fs::write(&merges, "#version: 0.2\n").unwrap();
        let replaced = |pairs: &[&str]| {
            let mut tokenizer = Tokenizer::gpt2(&vocab, &merges).unwrap();
            let pairs: Vec<String> = pairs.iter().map(|s| (*s).to_owned()).collect();
            replace_special(&mut tokenizer, &pairs).map(|()| tokenizer)
        };
        let tokenizer = replaced(&["eos_token", "<|other|>", "pad_token", "<|new|>"]).unwrap();
        assert_eq!(
            (tokenizer.eod().unwrap(), tokenizer.pad_id().unwrap(), tokenizer.vocab_size()),
            (3, 4, 5)
        );
        for (pairs, words) in
            [(&["eos_token"][..], "found 1 words"), (&["use_fast", "true"][..], "found use_fast")]
        {
            let said = replaced(pairs).err().unwrap().to_string();
            assert!(said.starts_with("--tokenizer-kwargs: expected") && said.contains(words), "{said}");
        }
    }
}
