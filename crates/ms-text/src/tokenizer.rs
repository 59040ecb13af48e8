//! The tokenizer of a Hugging Face folder.

mod frame;
mod named;
mod special;

use crate::cache::{self, CachedTokenizer, Facts};
use crate::engine::{self, BuiltEngine, Engine, Parts, SentencePieceEngine, SmallEngine};
use crate::folder::{self, FolderFacts};
use crate::source::Source;
use crate::vocabulary::{AddedToken, Vocabulary};
use crate::{ChatTemplate, Error, Result};
use frame::surround_of;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// SentencePiece's mark of a word's beginning.
const MARK: char = '\u{2581}';

/// Bytes of a vocabulary from which on its form in memory is kept: smaller ones are read in a few milliseconds.
const WORTH_KEEPING: usize = 256 << 10;

/// A token with a role: its text and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    /// As it stands in text, such as `<|endoftext|>`.
    pub text: String,
    /// Position in the vocabulary.
    pub id: u32,
}

/// A tokenizer in memory: the engine, the roles of its special tokens, its chat template.
///
/// Share it between threads by reference; encoding takes `&self`.
pub struct Tokenizer {
    source: Source,
    facts: FolderFacts,
    which: Engine,
    vocabulary: Vocabulary,
    /// Built on first use: fitting a tokenizer to a template adds tokens, and engines cannot be changed.
    built: OnceLock<std::result::Result<BuiltEngine, String>>,
    /// What encodes until the engine is worth building; only a tokenizer that was kept has it.
    small: Option<SmallEngine>,
    path: PathBuf,
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
    pad: Option<SpecialToken>,
    unk: Option<SpecialToken>,
    surround: Option<(bool, bool)>,
    hash: OnceLock<String>,
    /// Whether the beginning of a text is marked in any case.
    marks_all: bool,
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
    /// Loads a folder: its vocabulary (`tokenizer.json`; else SentencePiece's `tokenizer.model`, a tiktoken rank file,
    /// `vocab.json` with `merges.txt`, `vocab.txt`), and where present `tokenizer_config.json`, `special_tokens_map.json`,
    /// `chat_template.jinja`. A path to a `tokenizer.json` stands for its folder; one to another file is that file, read with
    /// the configuration next to it.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`], [`Error::Io`], [`Error::Json`], [`Error::Field`], [`Error::Engine`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(path, Engine::Fast)
    }

    /// [`Tokenizer::load`] with a choice of engine; all engines give the same ids.
    ///
    /// # Errors
    /// Those of [`Tokenizer::load`].
    pub fn load_with(path: impl AsRef<Path>, which: Engine) -> Result<Self> {
        let (dir, source, facts) = Self::open(path.as_ref())?;
        Self::new(&dir, source, facts, which)
    }

    /// [`Tokenizer::load`], which keeps large vocabularies in the folder `kept` in a form that loads at once, and looks
    /// there first. What it finds there is checked; a file that is damaged is written anew, and a folder that cannot be
    /// written does no harm.
    ///
    /// # Errors
    /// Those of [`Tokenizer::load`].
    pub fn load_kept(path: impl AsRef<Path>, kept: Option<&Path>) -> Result<Self> {
        let (dir, source, facts) = Self::open(path.as_ref())?;
        let Some(folder) = kept.filter(|_| source.size() >= WORTH_KEEPING) else {
            return Self::new(&dir, source, facts, Engine::Fast);
        };
        let mut digest = Sha256::new();
        digest.update(format!("{} {facts:?}\n", env!("CARGO_PKG_VERSION")));
        source.digest(&mut digest);
        let fingerprint: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let file = folder.join(format!("{fingerprint}.tok"));
        if let Some(found) = cache::read(&file, &fingerprint) {
            match Self::of_kept(&dir, source, facts, found) {
                Ok(out) => return Ok(out),
                Err(rest) => {
                    let (source, facts) = *rest;
                    return Self::new(&dir, source, facts, Engine::Fast);
                }
            }
        }
        let out = Self::new(&dir, source, facts, Engine::Fast)?;
        out.keep(&file, fingerprint);
        Ok(out)
    }

    /// A tokenizer as it was kept; what it is made from comes back if the parts do not fit each other.
    fn of_kept(
        dir: &Path,
        source: Source,
        facts: FolderFacts,
        kept: CachedTokenizer,
    ) -> std::result::Result<Self, Box<(Source, FolderFacts)>> {
        let texts = Arc::new(kept.texts);
        let small =
            || Ok(SmallEngine::new(kept.parts, texts.clone(), &kept.header.added, kept.header.engine));
        let failed = |reason| Error::Engine { path: dir.into(), reason };
        let small = engine::caught(small, failed).ok().flatten();
        let Some((small, vocabulary)) = small.zip(Vocabulary::of_parts(texts, kept.header.added)) else {
            return Err(Box::new((source, facts)));
        };
        let surround = surround_of(&source, &facts);
        let [bos, eos, pad, unk] = kept
            .header
            .roles
            .map(|text| text.and_then(|text| Some(SpecialToken { id: vocabulary.id(&text)?, text })));
        let hash = OnceLock::from(kept.header.content_hash);
        let (path, small) = (dir.into(), Some(small));
        Ok(Self { surround, facts, path, small, bos, eos, pad, unk, hash, ..Self::with(source, vocabulary) })
    }

    /// Writes what [`Tokenizer::load_kept`] reads.
    fn keep(&self, file: &Path, fingerprint: String) {
        let definition = self.source.definition(&self.facts).and_then(|definition| self.fitted(definition));
        let (Ok(definition), Ok(built)) = (definition, self.built()) else { return };
        if !built.is_fast() {
            return;
        }
        let texts = self.vocabulary.model();
        let Some(parts) = built.around().and_then(|around| Parts::of(&definition, texts, around)) else {
            return;
        };
        let text = |token: &Option<SpecialToken>| token.as_ref().map(|token| token.text.clone());
        let facts = Facts {
            fingerprint,
            content_hash: self.content_hash().to_owned(),
            engine: built.engine.name().to_owned(),
            roles: [text(&self.bos), text(&self.eos), text(&self.pad), text(&self.unk)],
            added: self.vocabulary.added().to_vec(),
        };
        cache::write(file, facts, texts, &parts);
    }

    /// The folder of a path, what it holds and what it says of it.
    fn open(path: &Path) -> Result<(PathBuf, Source, FolderFacts)> {
        if looks_like_a_hubs(path) && !path.exists() {
            return Err(Error::HubName { path: path.into() });
        }
        let mut dir = path;
        if path.is_file() {
            dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        }
        let facts = folder::read(dir)?;
        let source = if path.is_file() && path.file_name().is_some_and(|name| name != "tokenizer.json") {
            Source::of_file(path, &facts)?
        } else {
            Source::of_folder(dir, &facts)?
        };
        Ok((dir.into(), source, facts))
    }

    /// Megatron's `GPT2BPETokenizer`: `vocab.json` and `merges.txt`. Texts of special tokens inside a text stay text.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Engine`]; [`Error::MissingToken`] if there is no `<|endoftext|>`.
    pub fn gpt2(vocab: impl AsRef<Path>, merges: impl AsRef<Path>) -> Result<Self> {
        let source = Source::of_merges(vocab.as_ref(), merges.as_ref())?;
        let mut out = Self::bare(vocab.as_ref(), source)?;
        out.eos = Some(out.require("<|endoftext|>", "GPT2BPETokenizer")?);
        Ok(out)
    }

    /// Megatron's `GPTSentencePieceTokenizer`: a SentencePiece model alone, segmented by its own rules. Nothing is put
    /// around a text, and texts of control pieces such as `</s>` stay text.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Engine`].
    pub fn sentencepiece(model: impl AsRef<Path>) -> Result<Self> {
        let source = Source::of_sentencepiece(model.as_ref())?;
        let [bos, eos, pad, unk] = source.roles();
        let mut out = Self::bare(model.as_ref(), source)?;
        let role = |text: Option<String>| {
            text.and_then(|text| Some(SpecialToken { id: out.vocabulary.id(&text)?, text }))
        };
        (out.bos, out.eos, out.pad, out.unk) = (role(bos), role(eos), role(pad), role(unk));
        Ok(out)
    }

    /// Megatron's `BertWordPieceLowerCase` and `BertWordPieceCase`: `vocab.txt`. `[EOS]` ends a document and `[BOS]`
    /// begins one; both are added if the vocabulary lacks them. Texts of special tokens inside a text stay text.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Engine`]; [`Error::MissingToken`] if there is no `[PAD]`.
    pub fn bert(vocab: impl AsRef<Path>, lower_case: bool) -> Result<Self> {
        let source = Source::of_word_pieces(vocab.as_ref(), lower_case)?;
        let mut out = Self::bare(vocab.as_ref(), source)?;
        out.pad = Some(out.require("[PAD]", "BertWordPiece")?);
        out.unk = Some(out.require("[UNK]", "BertWordPiece")?);
        let mut add = |text: &str| {
            let id =
                out.vocabulary.id(text).unwrap_or_else(|| out.vocabulary.add(AddedToken::special(text)).0);
            SpecialToken { text: text.into(), id }
        };
        out.bos = Some(add("[BOS]"));
        out.eos = Some(add("[EOS]"));
        Ok(out)
    }

    fn bare(path: &Path, source: Source) -> Result<Self> {
        let facts = FolderFacts::default();
        let vocabulary = Vocabulary::of(&source.path, &source.definition(&facts)?)?;
        Ok(Self { path: path.into(), ..Self::with(source, vocabulary) })
    }

    fn require(&self, text: &str, wanted_by: &str) -> Result<SpecialToken> {
        let id = self.vocabulary.id(text);
        let id = id.ok_or_else(|| Error::MissingToken { what: text.into(), wanted_by: wanted_by.into() })?;
        Ok(SpecialToken { text: text.into(), id })
    }

    fn new(dir: &Path, source: Source, facts: FolderFacts, which: Engine) -> Result<Self> {
        let definition = source.definition(&facts)?;
        let vocabulary = Vocabulary::of(&source.path, &definition)?;
        let surround = surround_of(&source, &facts);
        let mut out = Self { surround, facts, which, path: dir.into(), ..Self::with(source, vocabulary) };
        out.name_tokens();
        let value = out.fitted(definition)?;
        out.built = OnceLock::from(Ok(out.build(Some(value))?));
        Ok(out)
    }

    fn with(source: Source, vocabulary: Vocabulary) -> Self {
        Self {
            path: source.path.clone(),
            source,
            facts: FolderFacts::default(),
            which: Engine::Fast,
            vocabulary,
            built: OnceLock::new(),
            small: None,
            bos: None,
            eos: None,
            pad: None,
            unk: None,
            surround: None,
            hash: OnceLock::new(),
            marks_all: false,
        }
    }

    /// Builds the engine; `first` is the definition if it is at hand.
    fn build(&self, first: Option<Value>) -> Result<BuiltEngine> {
        if let Some(model) = self.source.sentencepiece() {
            let engine = SentencePieceEngine::new(model)
                .map_err(|reason| Error::Engine { path: self.source.path.clone(), reason })?;
            return Ok(BuiltEngine::bare(engine));
        }
        let first = std::cell::Cell::new(first);
        let splits = self.facts.splits_special;
        let definition = || match first.take() {
            Some(definition) => Ok(definition),
            None => self.fitted(self.source.definition(&self.facts)?),
        };
        engine::caught(
            || BuiltEngine::new(&self.source.path, self.which, splits, definition),
            |reason| Error::Engine { path: self.source.path.clone(), reason },
        )
    }

    fn built(&self) -> Result<&BuiltEngine> {
        let built = self.built.get_or_init(|| self.build(None).map_err(Error::into_reason));
        built
            .as_ref()
            .map_err(|reason| Error::Engine { path: self.source.path.clone(), reason: reason.clone() })
    }

    /// Builds the engine now, if tokens were added since it was built. Encoding does so by itself; before several
    /// threads begin it is better done once. A kept tokenizer needs it only for much text, and builds it then.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn ready(&self) -> Result<()> {
        if self.small.is_some() {
            return Ok(());
        }
        self.built().map(|_| ())
    }

    /// Announces about how many bytes of text will be encoded. It changes no ids: for much text, the slow engine of a cached
    /// tokenizer, which starts immediately, is skipped; for little text, the other engine is not built.
    pub fn expect(&self, bytes: u64) {
        if let Some(small) = &self.small {
            small.expect(bytes);
        }
    }

    /// Name and version of the engine that encodes.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn engine_name(&self) -> Result<&str> {
        match &self.small {
            Some(small) => Ok(small.stands_for()),
            None => Ok(self.built()?.engine.name()),
        }
    }

    /// The same with the ids of transformers' slow class (`use_fast=False`), where they are others: Llama's without `legacy`
    /// has the mark of a word's beginning before a text that begins with a blank or an added token without a role, too, and
    /// Llama's normalises as a SentencePiece model in the folder says.
    #[must_use]
    pub fn as_slow(mut self) -> Self {
        if self.source.is_sentencepiece() && self.facts.is_llama() {
            self.facts.slow = true;
            (self.built, self.small) = (OnceLock::new(), None);
        }
        // Engines whose normaliser marks every text are like the slow class already.
        let first = || {
            let definition = self.source.definition(&self.facts);
            definition.is_ok_and(|definition| definition["pre_tokenizer"]["prepend_scheme"] == "first")
        };
        Self { marks_all: self.facts.slow_marks_all && first(), ..self }
    }

    /// The text with the mark that the slow class puts before it and engines do not.
    fn marked<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.marks_all && (text.starts_with([' ', MARK]) || self.begins_without_role(text)) {
            Cow::Owned(format!("{MARK}{text}"))
        } else {
            Cow::Borrowed(text)
        }
    }

    /// Ids of `text` alone, without what the tokenizer puts around a whole text.
    ///
    /// # Errors
    /// [`Error::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.encode_into(text, &mut ids)?;
        Ok(ids)
    }

    /// Ids of `text` with the tokenizer's own special tokens (a BOS for Llama; nothing for GPT-2 or Qwen).
    ///
    /// # Errors
    /// [`Error::Encode`].
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.caught(text, &mut ids, |text, ids| {
            if !self.encode_small(text, true, ids)? {
                self.built()?.encode_with_special(text, ids)?;
            }
            Ok(())
        })?;
        Ok(ids)
    }

    /// Appends the ids of `text` to `out`: [`Tokenizer::encode`] without a new vector.
    ///
    /// # Errors
    /// [`Error::Encode`].
    pub fn encode_into(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        self.caught(text, out, |text, out| {
            if self.encode_small(text, false, out)? {
                return Ok(());
            }
            self.built()?.engine.encode_into(text, false, out)
        })
    }

    /// Encodes `text` as an engine sees it, or appends nothing.
    fn caught(
        &self,
        text: &str,
        out: &mut Vec<u32>,
        encode: impl FnOnce(&str, &mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        let (length, marked) = (out.len(), self.marked(text));
        let failed = |reason| Error::Encode { bytes: text.len(), reason };
        let done = engine::caught(|| encode(&marked, out), failed);
        done.inspect_err(|_| out.truncate(length))
    }

    fn encode_small(&self, text: &str, special: bool, out: &mut Vec<u32>) -> Result<bool> {
        match &self.small {
            Some(small) => small.encode_into(text, special, out),
            None => Ok(false),
        }
    }

    /// Text of `ids`; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`Error::Decode`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        // Some decoders look at the last token without looking whether there is one.
        if ids.iter().all(|&id| self.vocabulary.is_silent(id, skip_special)) {
            return Ok(String::new());
        }
        let decode = || {
            if let Some(small) = &self.small
                && let Some(text) = small.decode(ids, skip_special)?
            {
                return Ok(text);
            }
            self.built()?.engine.decode(ids, skip_special)
        };
        engine::caught(decode, |reason| Error::Decode { count: ids.len(), reason })
    }

    /// Number of tokens as upstream counts them: the vocabulary and the added tokens. Not padded.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// Id of the token with exactly this text.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.vocabulary.id(token)
    }

    /// The token as the vocabulary spells it.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.vocabulary.text(id).map(str::to_owned)
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
    /// as the vocabulary has them.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.eos.iter().map(|t| t.id).collect();
        // GLM's begin the next turn.
        const TURNS: [&str; 6] =
            ["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>", "<|user|>", "<|observation|>"];
        for text in TURNS {
            ids.extend(self.token_to_id(text));
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The chat template as text.
    pub fn chat_template_source(&self) -> Option<&str> {
        self.facts.chat_template.as_ref().map(|(_, text)| text.as_str())
    }

    /// The chat template, ready to render, with this tokenizer's special tokens: `bos_token` and its like, and the list
    /// `additional_special_tokens`, as far as they are set.
    ///
    /// # Source
    /// transformers 4.43, `tokenization_utils_base.py`, `apply_chat_template` and `special_tokens_map`.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`], [`Error::ChatFile`].
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        let Some((file, source)) = &self.facts.chat_template else {
            return Err(Error::NoChatTemplate { path: self.path.clone() });
        };
        let mut template = ChatTemplate::new(source).map_err(|error| match error {
            Error::Chat { reason } => Error::ChatFile { path: self.path.join(file), reason },
            other => other,
        })?;
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
        let more = self.facts.more_roles.iter().map(|(name, text)| (*name, text));
        for (name, text) in more.chain(self.facts.extra.iter().map(|(name, text)| (name.as_str(), text))) {
            template.set_global(name, text);
        }
        if !self.facts.additional.is_empty() {
            template.set_global_list("additional_special_tokens", &self.facts.additional);
        }
        Ok(template)
    }

    /// SHA-256 in hexadecimal, over `tokenizer.json` in canonical form (keys sorted, no white space): equal for two
    /// files that differ in layout only. Of other vocabularies, over the files. Tokens added in memory do not change it.
    pub fn content_hash(&self) -> &str {
        self.hash.get_or_init(|| self.source.hash())
    }
}

/// Whether a path could be a name of a model hub: `owner/name`.
fn looks_like_a_hubs(path: &Path) -> bool {
    let word = |text: &str| {
        !text.is_empty()
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && !text.starts_with('.')
    };
    let text = path.to_str().unwrap_or_default();
    text.split_once('/').is_some_and(|(owner, name)| word(owner) && word(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_bytes_decide_which_engine_begins() {
        let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let options = crate::bpe::Options { vocab_size: 300, ..Default::default() };
        crate::bpe::train(&options, ["some words".to_owned()]).unwrap().write(folder.path()).unwrap();
        // Trailing blanks, so that it is large enough to be cached.
        let json = std::fs::File::options().append(true).open(folder.path().join("tokenizer.json"));
        std::io::Write::write_all(&mut json.unwrap(), &[b' '; WORTH_KEEPING]).unwrap();
        let load = || Tokenizer::load_kept(folder.path(), Some(cache.path())).unwrap();
        let (want, text) = (load().encode("some words").unwrap(), "word ".repeat(1 << 18));
        for (bytes, tables) in [(Some(1 << 30), true), (Some(text.len() as u64), false), (None, true)] {
            let kept = load();
            bytes.inspect(|&bytes| kept.expect(bytes));
            assert_eq!(kept.encode("some words").unwrap(), want);
            let first = kept.built.get().is_some();
            assert_eq!(first, bytes == Some(1 << 30), "{bytes:?}: what is encoded first");
            kept.encode(&text).unwrap();
            assert_eq!(kept.built.get().is_some(), tables, "{bytes:?}: more than a megabyte");
        }
    }
}
