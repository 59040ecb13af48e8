//! The seam between this workspace and a tokenizer engine, and the engine that is used today.

use crate::{Error, Result};
use std::path::Path;
use tokenizers::{AddedToken, PostProcessorWrapper};

/// What an engine must do. Ids are positions in the vocabulary, added tokens included.
///
/// The engine in use is the `tokenizers` crate (0.23); a faster one can be put behind this trait.
pub trait Encode: Send + Sync {
    /// Appends the ids of `text` to `out`. Texts of special tokens inside `text` become those tokens.
    /// `special` adds what the tokenizer itself puts around a text (a BOS at the start for Llama).
    ///
    /// # Errors
    /// [`Error::Encode`].
    fn encode_into(&self, text: &str, special: bool, out: &mut Vec<u32>) -> Result<()>;

    /// Text of `ids`; bytes that are not UTF-8 become U+FFFD. Ids outside the vocabulary give nothing.
    ///
    /// # Errors
    /// [`Error::Decode`].
    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String>;

    /// Id of the token with exactly this text.
    fn token_to_id(&self, token: &str) -> Option<u32>;

    /// The token as the vocabulary spells it (byte-level vocabularies use stand-in characters).
    fn id_to_token(&self, id: u32) -> Option<String>;

    /// Number of tokens, added ones included.
    fn vocab_size(&self) -> usize;

    /// Makes `token` special: matched whole inside any text, not normalised, no spaces stripped.
    /// A token that the vocabulary lacks gets the next free id. Returns its id.
    ///
    /// # Errors
    /// [`Error::AddToken`].
    fn add_special(&mut self, token: &str) -> Result<u32>;
}

/// The `tokenizers` crate.
pub(crate) struct HfEngine(tokenizers::Tokenizer);

/// How an added token matches, as `added_tokens_decoder` of `tokenizer_config.json` gives it.
#[derive(serde::Deserialize, Clone, Debug)]
pub(crate) struct AddedTokenRow {
    pub(crate) content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl HfEngine {
    pub(crate) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut engine = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|e| Error::Engine { path: path.into(), reason: e.to_string() })?;
        // A file may ask for truncation or padding; both are the business of whoever builds samples.
        engine
            .with_truncation(None)
            .map_err(|e| Error::Engine { path: path.into(), reason: e.to_string() })?
            .with_padding(None);
        Ok(Self(engine))
    }

    pub(crate) fn add_row(&mut self, row: &AddedTokenRow) -> Result<()> {
        let token = AddedToken::from(row.content.clone(), row.special)
            .lstrip(row.lstrip)
            .rstrip(row.rstrip)
            .single_word(row.single_word)
            .normalized(row.normalized);
        self.0
            .add_tokens([token])
            .map_err(|e| Error::AddToken { token: row.content.clone(), reason: e.to_string() })?;
        Ok(())
    }

    /// Puts `bos` before and `eos` after every text that is encoded with specials.
    pub(crate) fn surround(&mut self, bos: Option<(&str, u32)>, eos: Option<(&str, u32)>) -> Result<()> {
        let mark = |t: &str| serde_json::json!({"SpecialToken": {"id": t, "type_id": 0}});
        let mut single = Vec::new();
        let mut tokens = serde_json::Map::new();
        single.extend(bos.map(|(t, _)| mark(t)));
        single.push(serde_json::json!({"Sequence": {"id": "A", "type_id": 0}}));
        single.extend(eos.map(|(t, _)| mark(t)));
        for (text, id) in bos.into_iter().chain(eos) {
            tokens.insert(text.into(), serde_json::json!({"id": text, "ids": [id], "tokens": [text]}));
        }
        let mut pair = single.clone();
        pair.push(serde_json::json!({"Sequence": {"id": "B", "type_id": 1}}));
        let json = serde_json::json!({
            "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens
        });
        let processor: PostProcessorWrapper = serde_json::from_value(json)
            .map_err(|e| Error::AddToken { token: "bos/eos".into(), reason: e.to_string() })?;
        self.0.with_post_processor(Some(processor));
        Ok(())
    }
}

impl Encode for HfEngine {
    fn encode_into(&self, text: &str, special: bool, out: &mut Vec<u32>) -> Result<()> {
        let encoding = self
            .0
            .encode_fast(text, special)
            .map_err(|e| Error::Encode { bytes: text.len(), reason: e.to_string() })?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.0
            .decode(ids, skip_special)
            .map_err(|e| Error::Decode { count: ids.len(), reason: e.to_string() })
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    fn vocab_size(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    fn add_special(&mut self, token: &str) -> Result<u32> {
        let failed = |reason: String| Error::AddToken { token: token.into(), reason };
        self.0
            .add_special_tokens([AddedToken::from(token.to_owned(), true).normalized(false)])
            .map_err(|e| failed(e.to_string()))?;
        self.0.token_to_id(token).ok_or_else(|| failed("the engine did not take it".into()))
    }
}
