//! The source files of a tokenizer, each converted to the form of `tokenizer.json`.

mod base64;
pub(crate) mod byte_level;
pub(crate) mod charsmap;
mod dialect;
mod frame;
mod gpt2;
pub(crate) mod growth;
mod placed;
mod sentencepiece;
mod tiktoken;

use crate::folder::FolderFacts;
use crate::{Error, Result};
use gpt2::{BertCode, Cut};
use sentencepiece::Role;
pub(crate) use sentencepiece::{Kind as PieceKind, Model as SentencePieceModel, SentencePiece};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use tiktoken::Family;

/// The bytes of a tokenizer and what they are.
pub(crate) struct Source {
    /// The file that errors name.
    pub(crate) path: PathBuf,
    form: Form,
}

enum Form {
    /// `tokenizer.json`.
    Json(Vec<u8>),
    /// SentencePiece's `tokenizer.model`, as transformers converts it.
    SentencePiece(Box<SentencePiece>, Vec<u8>),
    /// The same on its own: control pieces are no special tokens.
    BareSentencePiece(Box<SentencePiece>, Vec<u8>),
    /// tiktoken's rank file.
    Ranks(Vec<u8>, Family),
    /// `vocab.json` and `merges.txt`.
    Merges { vocab: Vec<u8>, merges: Vec<u8>, cut: Cut },
    /// `vocab.txt` of BERT.
    WordPiece { vocab: Vec<u8>, lower_case: bool, code: BertCode },
}

const FILES: &str = "tokenizer.json, tokenizer.model, *.tiktoken, vocab.json with merges.txt, vocab.txt";

impl Source {
    /// What a folder holds; the fast form wins over the others.
    pub(crate) fn of_folder(dir: &Path, facts: &FolderFacts) -> Result<Self> {
        let class = facts.class.as_str();
        if !facts.made_anew(dir)
            && let Some(bytes) = read(&dir.join("tokenizer.json"))?
        {
            return Ok(Self { path: dir.join("tokenizer.json"), form: Form::Json(bytes) });
        }
        for name in ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model"] {
            if let Some(bytes) = read(&dir.join(name))? {
                return Self::of_model(dir.join(name), bytes, class);
            }
        }
        if let Some(path) = rank_file(dir)? {
            let bytes = read(&path)?.unwrap_or_default();
            return Self::of_model(path, bytes, class);
        }
        if let (Some(vocab), Some(merges)) = (read(&dir.join("vocab.json"))?, read(&dir.join("merges.txt"))?)
        {
            let cut = if class.starts_with("Qwen2") {
                Cut::Qwen2
            } else {
                Cut::Gpt2 { add_prefix_space: facts.add_prefix_space.unwrap_or(false) }
            };
            return Ok(Self { path: dir.join("vocab.json"), form: Form::Merges { vocab, merges, cut } });
        }
        if let Some(vocab) = read(&dir.join("vocab.txt"))? {
            let (lower_case, code) = (facts.lower_case, BertCode::Transformers);
            return Ok(Self {
                path: dir.join("vocab.txt"),
                form: Form::WordPiece { vocab, lower_case, code },
            });
        }
        if !dir.is_dir() {
            let what = if dir.exists() { "expected a folder or a file" } else { "no such folder or file" };
            let source = std::io::Error::new(std::io::ErrorKind::NotFound, what);
            return Err(Error::Io { path: dir.into(), source });
        }
        Err(Error::NoTokenizer { path: dir.into(), looked_for: FILES })
    }

    /// A single file, whatever it is called.
    pub(crate) fn of_file(path: &Path, facts: &FolderFacts) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.into(), source })?;
        if path.extension().is_some_and(|e| e == "json") {
            return Ok(Self { path: path.into(), form: Form::Json(bytes) });
        }
        Self::of_model(path.into(), bytes, &facts.class)
    }

    /// GPT-2's two files.
    pub(crate) fn of_merges(vocab: &Path, merges: &Path) -> Result<Self> {
        let open =
            |path: &Path| std::fs::read(path).map_err(|source| Error::Io { path: path.into(), source });
        let form = Form::Merges {
            vocab: open(vocab)?,
            merges: open(merges)?,
            cut: Cut::Gpt2 { add_prefix_space: false },
        };
        Ok(Self { path: vocab.into(), form })
    }

    /// A SentencePiece model without anything around it.
    pub(crate) fn of_sentencepiece(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.into(), source })?;
        let model =
            SentencePiece::parse(&bytes).map_err(|reason| Error::Engine { path: path.into(), reason })?;
        Ok(Self { path: path.into(), form: Form::BareSentencePiece(Box::new(model), bytes) })
    }

    /// BERT's vocabulary.
    pub(crate) fn of_word_pieces(vocab: &Path, lower_case: bool) -> Result<Self> {
        let bytes = std::fs::read(vocab).map_err(|source| Error::Io { path: vocab.into(), source })?;
        let form = Form::WordPiece { vocab: bytes, lower_case, code: BertCode::Megatron };
        Ok(Self { path: vocab.into(), form })
    }

    fn of_model(path: PathBuf, bytes: Vec<u8>, class: &str) -> Result<Self> {
        if tiktoken::looks_like(&bytes) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            return Ok(Self { form: Form::Ranks(bytes, Family::of(class, name)), path });
        }
        match SentencePiece::parse(&bytes) {
            Ok(model) => Ok(Self { path, form: Form::SentencePiece(Box::new(model), bytes) }),
            Err(reason) => Err(Error::Engine { path, reason }),
        }
    }

    /// The SentencePiece model, if text is to be segmented by its own rules.
    pub(crate) fn sentencepiece(&self) -> Option<&SentencePiece> {
        match &self.form {
            Form::BareSentencePiece(model, _) => Some(model),
            _ => None,
        }
    }

    /// Whether it is a SentencePiece model in a folder.
    pub(crate) fn is_sentencepiece(&self) -> bool {
        matches!(self.form, Form::SentencePiece(..))
    }

    /// Whether the special tokens around a text are for the tokenizer's class to say, because the file does not.
    pub(crate) fn leaves_frame_to_class(&self) -> bool {
        !matches!(self.form, Form::Json(_))
    }

    /// Whether the file's own roles count before those that a class has.
    pub(crate) fn knows_its_roles(&self) -> bool {
        matches!(self.form, Form::Ranks(..))
    }

    /// Begin, end, padding and unknown token, as far as the file itself knows them.
    pub(crate) fn roles(&self) -> [Option<String>; 4] {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        match &self.form {
            Form::Json(_) => Default::default(),
            Form::SentencePiece(model, _) | Form::BareSentencePiece(model, _) => {
                [Role::Bos, Role::Eos, Role::Pad, Role::Unk].map(|role| owned(model.role(role)))
            }
            Form::Ranks(_, family) => {
                let [bos, eos, pad] = family.roles().map(owned);
                [bos, eos, pad, None]
            }
            Form::Merges { .. } => [None, owned(Some("<|endoftext|>")), None, None],
            Form::WordPiece { .. } => [None, None, owned(Some("[PAD]")), owned(Some("[UNK]"))],
        }
    }

    /// The `tokenizer.json` value, without truncation and padding: both are the business of whoever builds samples.
    pub(crate) fn definition(&self, facts: &FolderFacts) -> Result<Value> {
        let failed = |reason: String| Error::Engine { path: self.path.clone(), reason };
        let mut value = match &self.form {
            Form::Json(bytes) => serde_json::from_slice(bytes).map_err(|e| failed(e.to_string())).and_then(
                |value: Value| match value {
                    Value::Object(_) => Ok(as_class(value, facts)),
                    _ => Err(failed("expected a JSON object".into())),
                },
            )?,
            Form::SentencePiece(model, _) => model.definition(Some(facts)).map_err(failed)?,
            Form::BareSentencePiece(model, _) => model.definition(None).map_err(failed)?,
            Form::Ranks(bytes, family) => {
                tiktoken::definition(bytes, *family, &facts.added).map_err(failed)?
            }
            Form::Merges { vocab, merges, cut } => gpt2::definition(vocab, merges, *cut).map_err(failed)?,
            Form::WordPiece { vocab, lower_case, code } => {
                let unknown = facts.roles[3].as_ref().and_then(Option::as_deref).unwrap_or("[UNK]");
                as_class(gpt2::word_piece(vocab, *lower_case, unknown, *code).map_err(failed)?, facts)
            }
        };
        if self.is_sentencepiece() {
            placed::append(&mut value, facts.class_tokens);
        }
        if !matches!(self.form, Form::Json(_)) {
            placed::place(&mut value, &facts.added).map_err(failed)?;
        }
        for part in ["normalizer", "pre_tokenizer", "decoder"] {
            growth::check(&value[part]).map_err(|e| failed(format!("{part}: {e}")))?;
            dialect::translate(&mut value[part]);
        }
        frame::check(&value["post_processor"]).map_err(failed)?;
        value["truncation"] = Value::Null;
        value["padding"] = Value::Null;
        Ok(value)
    }

    /// Bytes of the files.
    pub(crate) fn size(&self) -> usize {
        match &self.form {
            Form::Json(bytes)
            | Form::SentencePiece(_, bytes)
            | Form::BareSentencePiece(_, bytes)
            | Form::Ranks(bytes, _) => bytes.len(),
            Form::Merges { vocab, merges, .. } => vocab.len() + merges.len(),
            Form::WordPiece { vocab, .. } => vocab.len(),
        }
    }

    /// What the files say, in bytes: for a fingerprint that no other tokenizer shares.
    pub(crate) fn digest(&self, digest: &mut Sha256) {
        let mut part = |kind: &str, bytes: &[u8]| {
            digest.update(format!("{kind} {}\n", bytes.len()));
            digest.update(bytes);
        };
        match &self.form {
            Form::Json(bytes) => part("json", bytes),
            Form::SentencePiece(_, bytes) => part("sentencepiece", bytes),
            Form::BareSentencePiece(_, bytes) => part("bare sentencepiece", bytes),
            Form::Ranks(bytes, family) => part(&format!("{family:?}"), bytes),
            Form::Merges { vocab, merges, cut } => {
                part(&format!("{cut:?}"), vocab);
                part("merges", merges);
            }
            Form::WordPiece { vocab, lower_case, .. } => part(&format!("words {lower_case}"), vocab),
        }
    }

    /// SHA-256 in hexadecimal: of `tokenizer.json` in canonical form (keys sorted, no white space), of the bytes of
    /// all other files.
    pub(crate) fn hash(&self) -> String {
        let mut digest = Sha256::new();
        match &self.form {
            Form::Json(bytes) => match serde_json::from_slice::<Value>(bytes) {
                Ok(mut value) => {
                    value.sort_all_objects();
                    digest.update(value.to_string());
                }
                // The engine has read it, so this does not happen; the bytes themselves are a fair answer.
                Err(_) => digest.update(bytes),
            },
            Form::SentencePiece(_, bytes) | Form::BareSentencePiece(_, bytes) | Form::Ranks(bytes, _) => {
                digest.update(bytes);
            }
            Form::Merges { vocab, merges, .. } => {
                digest.update(vocab);
                digest.update(merges);
            }
            Form::WordPiece { vocab, lower_case, .. } => {
                digest.update(vocab);
                digest.update([u8::from(*lower_case)]);
            }
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What a class changes in the definition that it reads.
///
/// # Source
/// transformers 4.43, `models/{gpt2,gpt_neox,roberta,bert,bloom,cohere}/tokenization_*_fast.py`.
fn as_class(mut definition: Value, facts: &FolderFacts) -> Value {
    if facts.adds_prefix_space() {
        begin_with_space(&mut definition["pre_tokenizer"]);
    }
    if facts.sets_prefix_space()
        && let Some(space) = definition["pre_tokenizer"].get_mut("add_prefix_space")
    {
        *space = facts.add_prefix_space.unwrap_or(false).into();
    }
    if facts.is_bert() && definition["normalizer"]["type"] == "BertNormalizer" {
        let normalizer = &mut definition["normalizer"];
        normalizer["lowercase"] = facts.lower_case.into();
        normalizer["strip_accents"] = facts.strip_accents.into();
        normalizer["handle_chinese_chars"] = facts.chinese_chars.unwrap_or(true).into();
    }
    definition
}

/// Has a pre-tokenizer and those inside it put a space before a text.
fn begin_with_space(step: &mut Value) {
    if let Some(space) = step.get_mut("add_prefix_space") {
        *space = true.into();
    }
    let inside = step.get_mut("pretokenizers").and_then(Value::as_array_mut);
    inside.into_iter().flatten().for_each(begin_with_space);
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(source) => Err(Error::Io { path: path.into(), source }),
    }
}

/// The first `*.tiktoken` by name.
fn rank_file(dir: &Path) -> Result<Option<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(None) };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| Error::Io { path: dir.into(), source })?.path();
        if path.extension().is_some_and(|e| e == "tiktoken") {
            files.push(path);
        }
    }
    Ok(files.into_iter().min())
}
