//! The tokenizer of a Hugging Face folder.

use crate::engine::{Encode, HfEngine};
use crate::{ChatTemplate, Error, Result, folder};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// A token with a role: its text and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    /// As it stands in text, such as `<|endoftext|>`.
    pub text: String,
    /// Position in the vocabulary.
    pub id: u32,
}

/// A tokenizer folder in memory: the engine, the roles of its special tokens, its chat template.
///
/// Share it between threads by reference; encoding takes `&self`.
pub struct Tokenizer {
    engine: Box<dyn Encode>,
    path: PathBuf,
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
    pad: Option<SpecialToken>,
    unk: Option<SpecialToken>,
    chat_template: Option<String>,
    source: Arc<[u8]>,
    hash: OnceLock<String>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("path", &self.path)
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("pad", &self.pad)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Loads a folder: `tokenizer.json`, and where present `tokenizer_config.json`,
    /// `special_tokens_map.json`, `chat_template.jinja`. A path to a `tokenizer.json` itself stands for its folder.
    ///
    /// # Errors
    /// [`Error::NoTokenizerJson`], [`Error::Io`], [`Error::Json`], [`Error::Field`], [`Error::Engine`].
    pub fn load(dir: impl AsRef<Path>) -> Result<Self> {
        let mut dir = dir.as_ref();
        if dir.file_name().is_some_and(|n| n == "tokenizer.json") && dir.is_file() {
            dir = dir.parent().unwrap_or(Path::new("."));
        }
        let path = dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound if dir.is_dir() => Error::NoTokenizerJson {
                path: dir.into(),
                hint: if dir.join("tokenizer.model").exists() {
                    "\nhint: it holds a SentencePiece tokenizer.model, which is not read; save the fast tokenizer beside it"
                } else {
                    ""
                },
            },
            std::io::ErrorKind::NotFound => Error::Io { path: dir.into(), source },
            _ => Error::Io { path: path.clone(), source },
        })?;
        let facts = folder::read(dir)?;
        let mut engine = HfEngine::from_bytes(&path, &bytes)?;
        for (_, row) in &facts.added {
            if engine.token_to_id(&row.content).is_none() {
                engine.add_row(row)?;
            }
        }
        let mut role = |text: &Option<String>| -> Result<Option<SpecialToken>> {
            let Some(text) = text else { return Ok(None) };
            let id = match engine.token_to_id(text) {
                Some(id) => id,
                None => engine.add_special(text)?,
            };
            Ok(Some(SpecialToken { text: text.clone(), id }))
        };
        let bos = role(&facts.bos)?;
        let eos = role(&facts.eos)?;
        let unk = role(&facts.unk)?;
        let pad = role(&facts.pad)?;
        for text in facts.more_special {
            role(&Some(text))?;
        }
        if let Some((add_bos, add_eos)) = facts.surround {
            let mark = |add: bool, token: &Option<SpecialToken>| {
                token.clone().filter(|_| add).map(|t| (t.text, t.id))
            };
            let (b, e) = (mark(add_bos, &bos), mark(add_eos, &eos));
            engine.surround(
                b.as_ref().map(|(t, i)| (t.as_str(), *i)),
                e.as_ref().map(|(t, i)| (t.as_str(), *i)),
            )?;
        }
        Ok(Self {
            engine: Box::new(engine),
            path: dir.into(),
            bos,
            eos,
            pad,
            unk,
            chat_template: facts.chat_template,
            source: bytes.into(),
            hash: OnceLock::new(),
        })
    }

    /// The folder it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ids of `text` alone, without what the tokenizer puts around a whole text.
    ///
    /// # Errors
    /// [`Error::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.engine.encode_into(text, false, &mut ids)?;
        Ok(ids)
    }

    /// Ids of `text` with the tokenizer's own special tokens (a BOS for Llama; nothing for GPT-2 or Qwen).
    ///
    /// # Errors
    /// [`Error::Encode`].
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.engine.encode_into(text, true, &mut ids)?;
        Ok(ids)
    }

    /// Appends the ids of `text` to `out`: [`Tokenizer::encode`] without a new vector.
    ///
    /// # Errors
    /// [`Error::Encode`].
    pub fn encode_into(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        self.engine.encode_into(text, false, out)
    }

    /// Text of `ids`; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`Error::Decode`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.engine.decode(ids, skip_special)
    }

    /// Number of tokens as upstream counts them: the vocabulary and the added tokens. Not padded.
    pub fn vocab_size(&self) -> usize {
        self.engine.vocab_size()
    }

    /// Id of the token with exactly this text.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.engine.token_to_id(token)
    }

    /// The token as the vocabulary spells it.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.engine.id_to_token(id)
    }

    /// Beginning-of-sequence token.
    pub fn bos(&self) -> Option<&SpecialToken> {
        self.bos.as_ref()
    }

    /// End-of-sequence token.
    pub fn eos(&self) -> Option<&SpecialToken> {
        self.eos.as_ref()
    }

    /// Padding token, if the folder names one or [`Tokenizer::pad_with_eos`] chose one.
    pub fn pad(&self) -> Option<&SpecialToken> {
        self.pad.as_ref()
    }

    /// Token for what the vocabulary lacks.
    pub fn unk(&self) -> Option<&SpecialToken> {
        self.unk.as_ref()
    }

    /// End-of-document id in Megatron's sense: the end-of-sequence token.
    ///
    /// # Errors
    /// [`Error::MissingToken`] if there is none; upstream refuses such a tokenizer too.
    pub fn eod(&self) -> Result<u32> {
        self.eos.as_ref().map(|t| t.id).ok_or_else(|| Error::MissingToken {
            what: "end-of-sequence".into(),
            wanted_by: self.path.display().to_string(),
        })
    }

    /// Id used to fill up samples.
    ///
    /// # Errors
    /// [`Error::MissingToken`] if there is none.
    pub fn pad_id(&self) -> Result<u32> {
        self.pad.as_ref().map(|t| t.id).ok_or_else(|| Error::MissingToken {
            what: "padding".into(),
            wanted_by: self.path.display().to_string(),
        })
    }

    /// Ids after which generation stops: the end-of-sequence token and the usual end-of-turn tokens, as far
    /// as the vocabulary has them as added tokens.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.eos.iter().map(|t| t.id).collect();
        for text in ["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>"] {
            ids.extend(self.token_to_id(text));
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// If there is no padding token, the end-of-sequence token takes its place, as upstream does.
    pub fn pad_with_eos(&mut self) {
        if self.pad.is_none() {
            self.pad.clone_from(&self.eos);
        }
    }

    /// Makes `text` the end-of-sequence token, added to the vocabulary if missing.
    ///
    /// # Errors
    /// [`Error::AddToken`].
    pub fn set_eos(&mut self, text: &str) -> Result<u32> {
        let id = self.engine.add_special(text)?;
        self.eos = Some(SpecialToken { text: text.into(), id });
        Ok(id)
    }

    /// Registers a special token, added to the vocabulary with the next free id if missing.
    ///
    /// # Errors
    /// [`Error::AddToken`].
    pub fn add_special(&mut self, text: &str) -> Result<u32> {
        self.engine.add_special(text)
    }

    /// The chat template as text.
    pub fn chat_template_source(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// The chat template, ready to render, with this tokenizer's `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`], [`Error::Chat`].
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        let source =
            self.chat_template.as_deref().ok_or_else(|| Error::NoChatTemplate { path: self.path.clone() })?;
        let mut template = ChatTemplate::new(source)?;
        for (name, token) in [
            ("bos_token", &self.bos),
            ("eos_token", &self.eos),
            ("pad_token", &self.pad),
            ("unk_token", &self.unk),
        ] {
            if let Some(token) = token {
                template.set_global(name, &token.text);
            }
        }
        Ok(template)
    }

    /// SHA-256 over `tokenizer.json` in canonical form (keys sorted, no white space), in hexadecimal: equal for
    /// two files that differ in layout only. Tokens added in memory do not change it.
    pub fn content_hash(&self) -> &str {
        self.hash.get_or_init(|| {
            let canonical = match serde_json::from_slice::<serde_json::Value>(&self.source) {
                Ok(mut value) => {
                    value.sort_all_objects();
                    value.to_string().into_bytes()
                }
                // The engine has read it, so this does not happen; the bytes themselves are a fair answer.
                Err(_) => self.source.to_vec(),
            };
            Sha256::digest(&canonical).iter().map(|byte| format!("{byte:02x}")).collect()
        })
    }
}
