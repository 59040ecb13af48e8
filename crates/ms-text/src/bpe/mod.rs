//! Training of a byte-level BPE vocabulary and the folder that holds it.

mod merges;
#[cfg(test)]
mod tests;
mod words;

use crate::source::byte_level::stand_in;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Model, PreTokenizerWrapper, Tokenizer as Engine};

/// The special tokens of a trained vocabulary, in id order from 0.
///
/// Padding has id 0 and is not the end of text: Megatron's GPT dataset replaces padding by id 0 and masks it
/// (data rules, "pad == eos" defect), which must not touch ends of documents.
pub const SPECIAL_TOKENS: [&str; 4] = ["<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Where text is cut before pairs are merged: words with one leading separator, single digits, runs of
/// punctuation, line ends, spaces. The pattern that Qwen2's tokenizer.json carries; engines have fast paths for it.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// ChatML, with one system message when the conversation brings none: nothing is added.
const CHAT_TEMPLATE: &str = "{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
";

/// What to train.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of tokens, the 256 bytes and [`SPECIAL_TOKENS`] included; at least 260.
    pub vocab_size: usize,
    /// A pair that occurs fewer times is not merged.
    pub min_frequency: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { vocab_size: 32_000, min_frequency: 2 }
    }
}

/// A trained vocabulary, not yet written.
pub struct Trained {
    engine: Engine,
    options: Options,
    too_long: u64,
}

/// How far training is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Words are counted.
    Counting {
        /// Bytes of text so far.
        bytes: u64,
    },
    /// Pairs are merged.
    Merging {
        /// Merges so far.
        done: u64,
        /// Merges that a vocabulary of the wanted size has.
        of: u64,
    },
}

/// Trains on `texts` with the threads that the machine offers. The result depends on the texts and the options alone.
///
/// # Errors
/// [`Error::Train`] if the vocabulary is too small for the byte alphabet, or the engine fails.
pub fn train<I>(options: &Options, texts: I) -> Result<Trained>
where
    I: IntoIterator<Item = String>,
    I::IntoIter: Send,
{
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    train_with(options, texts, threads, &|_| ())
}

/// [`train`] with a number of threads, and someone to tell how far it is.
///
/// # Errors
/// Those of [`train`].
pub fn train_with<I>(
    options: &Options,
    texts: I,
    threads: usize,
    told: &(dyn Fn(Step) + Sync),
) -> Result<Trained>
where
    I: IntoIterator<Item = String>,
    I::IntoIter: Send,
{
    let failed = |reason: String| Error::Train { vocab_size: options.vocab_size, reason };
    let least = 256 + SPECIAL_TOKENS.len();
    if options.vocab_size < least {
        return Err(failed(format!("256 bytes and {} special tokens need {least}", SPECIAL_TOKENS.len())));
    }
    let (counts, too_long) =
        words::count(texts.into_iter(), &pre_tokenizer(), threads.max(1), told).map_err(failed)?;
    // Special tokens first, then the letters that stand for bytes, in the order of their code points.
    let mut letters: Vec<(char, u8)> = (0..=255u8).map(|byte| (stand_in(byte), byte)).collect();
    letters.sort_unstable();
    let mut tokens: Vec<String> = SPECIAL_TOKENS.map(str::to_owned).to_vec();
    let mut byte_ids = [0; 256];
    for (letter, byte) in letters {
        byte_ids[usize::from(byte)] = tokens.len() as u32;
        tokens.push(letter.into());
    }
    let found = merges::find(
        counts,
        &byte_ids,
        &mut tokens,
        options.vocab_size,
        options.min_frequency,
        threads.max(1),
        told,
    );
    let model = model(&tokens, &found).map_err(failed)?;
    Ok(Trained { engine: engine(model).map_err(failed)?, options: options.clone(), too_long })
}

/// The model of these tokens and merges; of two merges of one pair the later one counts.
fn model(tokens: &[String], merges: &[merges::Merge]) -> std::result::Result<BPE, String> {
    let last: HashMap<[u32; 2], usize> =
        merges.iter().enumerate().map(|(at, (pair, _))| (*pair, at)).collect();
    let text = |id: u32| tokens[id as usize].clone();
    let kept = merges.iter().enumerate().filter(|(at, (pair, _))| last[pair] == *at);
    let pairs: Vec<(String, String)> = kept.map(|(_, (pair, _))| (text(pair[0]), text(pair[1]))).collect();
    let vocabulary: Vocab = tokens.iter().cloned().zip(0..).collect();
    BPE::builder().vocab_and_merges(vocabulary, pairs).build().map_err(|e| e.to_string())
}

/// Words by [`WORDS`], spelled in the byte alphabet.
fn pre_tokenizer() -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
    ]})
}

/// A tokenizer around a model.
fn engine(model: BPE) -> std::result::Result<Engine, String> {
    let mut engine = Engine::new(model);
    let pre_tokenizer: PreTokenizerWrapper =
        serde_json::from_value(pre_tokenizer()).map_err(|e| e.to_string())?;
    engine.with_pre_tokenizer(Some(pre_tokenizer));
    engine.with_decoder(Some(ByteLevel::default()));
    engine.with_post_processor(Some(ByteLevel::new(true, false, true)));
    let special: Vec<AddedToken> =
        SPECIAL_TOKENS.iter().map(|t| AddedToken::from(*t, true).normalized(false)).collect();
    engine.add_special_tokens(special).map_err(|e| e.to_string())?;
    Ok(engine)
}

impl Trained {
    /// Number of tokens; fewer than requested if the texts contain too few different pairs.
    pub fn vocab_size(&self) -> usize {
        self.engine.get_vocab_size(true)
    }

    /// Runs of text without a break that were left out because they are longer than a word can be (1024 bytes).
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json` (roles of the special tokens, ChatML template) into
    /// `dir`, which is made if missing. Each file appears whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, dir: impl AsRef<Path>) -> Result<()> {
        let dir = dir.as_ref();
        let tokenizer = self
            .engine
            .to_string(true)
            .map_err(|e| Error::Train { vocab_size: self.options.vocab_size, reason: e.to_string() })?;
        let added: serde_json::Map<String, serde_json::Value> = SPECIAL_TOKENS
            .iter()
            .filter_map(|text| Some((self.engine.get_model().token_to_id(text)?, text)))
            .map(|(id, text)| {
                let row = json!({
                    "content": text, "lstrip": false, "normalized": false, "rstrip": false,
                    "single_word": false, "special": true
                });
                (id.to_string(), row)
            })
            .collect();
        let config = json!({
            "add_prefix_space": false,
            "added_tokens_decoder": added,
            "bos_token": null,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": false,
            "eos_token": "<|endoftext|>",
            "model_max_length": 32768,
            "pad_token": "<|pad|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": null
        });
        // The configuration first: a folder is complete once its tokenizer.json is there.
        let config = format!("{config:#}\n");
        let [first, last] = ["tokenizer_config.json", "tokenizer.json"].map(|name| dir.join(name));
        let files = [(&*first, config.as_bytes()), (&*last, tokenizer.as_bytes())];
        ms_files::write_files(&files).map_err(|e| Error::Io { path: e.path, source: e.source })
    }
}
