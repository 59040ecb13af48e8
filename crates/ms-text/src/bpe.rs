//! Training of a byte-level BPE vocabulary and the folder that holds it.

use crate::{Error, Result};
use serde_json::json;
use std::path::Path;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, Model, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer as Engine};

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
}

/// Trains on `texts`. The result depends on the texts and the options alone.
///
/// # Errors
/// [`Error::Train`] if the vocabulary is too small for the byte alphabet, or the engine fails.
pub fn train<I>(options: &Options, texts: I) -> Result<Trained>
where
    I: IntoIterator<Item = String>,
    I::IntoIter: Send,
{
    let failed = |reason: String| Error::Train { vocab_size: options.vocab_size, reason };
    let least = 256 + SPECIAL_TOKENS.len();
    if options.vocab_size < least {
        return Err(failed(format!("256 bytes and {} special tokens need {least}", SPECIAL_TOKENS.len())));
    }
    let mut engine = Engine::new(BPE::default());
    let split = Split::new(SplitPattern::Regex(WORDS.into()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| failed(e.to_string()))?;
    let bytes = ByteLevel::new(false, true, false);
    engine.with_pre_tokenizer(Some(PreTokenizerWrapper::Sequence(Sequence::new(vec![
        split.into(),
        bytes.into(),
    ]))));
    engine.with_decoder(Some(ByteLevel::default()));
    engine.with_post_processor(Some(ByteLevel::new(true, false, true)));
    let trainer = BpeTrainerBuilder::new()
        .vocab_size(options.vocab_size)
        .min_frequency(options.min_frequency)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(SPECIAL_TOKENS.iter().map(|t| AddedToken::from(*t, true).normalized(false)).collect())
        .build();
    let mut trainer = tokenizers::models::TrainerWrapper::from(trainer);
    engine.train(&mut trainer, texts.into_iter()).map_err(|e| failed(e.to_string()))?;
    Ok(Trained { engine, options: options.clone() })
}

impl Trained {
    /// Number of tokens; smaller than asked for if the texts hold too few different pairs.
    pub fn vocab_size(&self) -> usize {
        self.engine.get_vocab_size(true)
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json` (roles of the special tokens, ChatML template) into
    /// `dir`, which is made if missing. Each file appears whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, dir: impl AsRef<Path>) -> Result<()> {
        let dir = dir.as_ref();
        std::fs::create_dir_all(dir).map_err(|source| Error::Io { path: dir.into(), source })?;
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
        write_whole(&dir.join("tokenizer_config.json"), &format!("{config:#}\n"))?;
        write_whole(&dir.join("tokenizer.json"), &tokenizer)
    }
}

/// Writes under another name in the same folder, syncs, renames.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_extension(format!("{}.part", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&temporary)?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|source| {
        // Best effort: the error that matters is the one being returned.
        let _ = std::fs::remove_file(&temporary);
        Error::Io { path: path.into(), source }
    })
}
