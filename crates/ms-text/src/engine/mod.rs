//! The interface between this workspace and tokenizer engines.
//!
//! Two engines read the same `tokenizer.json` form, and `small` reads a form that is kept in a file and needs no parsing.
//! `pipeline` (the 1.0 line of the `tokenizers` crate, a rewrite) is tens of times faster on byte-level BPE and supports most
//! tokenizers; `reference` (0.23) supports all of them and is the reference for the other in tests. What is left to the
//! second is defined in one place: unsupported tokenizers in [`pipeline`]'s `refusal`, texts in the lists of `unicode`.

mod best_path;
mod charsmap;
mod cut;
mod decoding;
mod long;
mod pieces;
mod pipeline;
mod reference;
mod sentencepiece;
mod small;
mod unicode;
mod unigram;
mod whole;

pub(crate) use cut::Words;
pub(crate) use sentencepiece::SentencePieceEngine;
pub(crate) use small::{Parts, SmallEngine};

use crate::{Error, Result};
use serde_json::Value;
use std::cell::Cell;
use std::path::Path;
use std::sync::Once;

/// What an engine must do. Ids are positions in the vocabulary, added tokens included.
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

    /// Name and version, for reports.
    fn name(&self) -> &'static str;
}

/// Which engine encodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The fast one, and the reference for shapes that the fast one does not take.
    #[default]
    Fast,
    /// Always the reference.
    Reference,
}

/// An engine, and the ids that stand around every text that is encoded with special tokens.
pub(crate) struct BuiltEngine {
    pub(crate) engine: Box<dyn Encode>,
    /// `None` if what is added around a text could not be distinguished from it.
    around: Option<(Vec<u32>, Vec<u32>)>,
}

impl BuiltEngine {
    /// Builds an engine from a `tokenizer.json` value, which `definition` returns on each call. With `splits_special`, texts of
    /// special tokens inside a text stay text, for which the fast engine has no switch.
    pub(crate) fn new(
        path: &Path,
        which: Engine,
        splits_special: bool,
        definition: impl Fn() -> Result<Value>,
    ) -> Result<Self> {
        let definition = || {
            let definition = definition()?;
            check_pieces(path, &definition["model"])?;
            Ok(definition)
        };
        let engine: Box<dyn Encode> = if which == Engine::Fast && !splits_special {
            let definition_of_now = definition()?;
            let fast = || Ok(pipeline::PipelineEngine::new(path, definition_of_now));
            let failed = |reason| Error::Engine { path: path.into(), reason };
            match caught(fast, failed).unwrap_or_else(|error| Err(error.into_reason())) {
                Ok(engine) => Box::new(engine),
                Err(reason) => {
                    tracing::debug!(path = %path.display(), reason, "the reference engine encodes");
                    Box::new(reference::ReferenceEngine::new(path, definition()?)?)
                }
            }
        } else {
            Box::new(reference::ReferenceEngine::new(path, definition()?)?.splitting_special(splits_special))
        };
        let around = around(engine.as_ref());
        Ok(Self { engine, around })
    }

    /// An engine that puts nothing around a text.
    pub(crate) fn bare(engine: impl Encode + 'static) -> Self {
        Self { engine: Box::new(engine), around: Some(Default::default()) }
    }

    /// Whether the fast engine took the definition.
    pub(crate) fn is_fast(&self) -> bool {
        self.engine.name() == pipeline::NAME
    }

    /// The ids before and after every text that is encoded with special tokens, if they are known.
    pub(crate) fn around(&self) -> Option<[Vec<u32>; 2]> {
        self.around.clone().map(|(before, after)| [before, after])
    }

    pub(crate) fn encode_with_special(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let Some((before, after)) = &self.around else { return self.engine.encode_into(text, true, out) };
        out.extend_from_slice(before);
        self.engine.encode_into(text, false, out)?;
        out.extend_from_slice(after);
        Ok(())
    }
}

/// Longest piece of a vocabulary that engines keep as a tree, in bytes: they go down it by one call for each byte or letter, and
/// nothing stops them before the end of their stack.
const LONGEST_PIECE: usize = 1000;

/// Checks the lengths of pieces.
///
/// # Errors
/// [`Error::Engine`] for one that is longer than any that a text is made of.
fn check_pieces(path: &Path, model: &Value) -> Result<()> {
    if model["type"] != "Unigram" && model["type"] != "WordPiece" {
        return Ok(());
    }
    let scored = model["vocab"].as_array().into_iter().flatten().filter_map(|row| row[0].as_str());
    let named = model["vocab"].as_object().into_iter().flatten().map(|(piece, _)| piece.as_str());
    match scored.chain(named).map(str::len).max() {
        Some(bytes) if bytes > LONGEST_PIECE => {
            let reason =
                format!("model.vocab: expected pieces of at most {LONGEST_PIECE} bytes, found {bytes}");
            Err(Error::Engine { path: path.into(), reason })
        }
        _ => Ok(()),
    }
}

/// Post-processors put the same ids around every text: a probe finds them, so that no text takes the slow way. `None` if they do
/// not stand out, or the probe is no text for the model.
fn around(engine: &dyn Encode) -> Option<(Vec<u32>, Vec<u32>)> {
    let encode = |special| {
        let mut ids = Vec::new();
        let encode = || engine.encode_into("a", special, &mut ids);
        caught(encode, |reason| encode_error(1, &reason)).ok().map(|()| ids)
    };
    let (plain, framed) = (encode(false)?, encode(true)?);
    let mut places =
        (0..=framed.len().saturating_sub(plain.len())).filter(|&at| framed[at..].starts_with(&plain));
    let place = (!plain.is_empty()).then(|| (places.next(), places.next()));
    match place {
        Some((Some(at), None)) => Some((framed[..at].to_vec(), framed[at + plain.len()..].to_vec())),
        _ => None,
    }
}

thread_local! {
    /// Whether a panic becomes an error, so that it is not reported on its own.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Does work of an engine; at some texts and definitions engines stop with a panic, which becomes an error.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>, failed: impl FnOnce(String) -> Error) -> Result<T> {
    static SILENT: Once = Once::new();
    SILENT.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CAUGHT.get() {
                report(panic);
            }
        }));
    });
    let before = CAUGHT.replace(true);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    CAUGHT.set(before);
    done.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(failed(format!("internal error of the engine: {}", said.unwrap_or_default())))
    })
}

fn encode_error(bytes: usize, reason: &dyn std::fmt::Display) -> Error {
    Error::Encode { bytes, reason: reason.to_string() }
}

fn decode_error(count: usize, reason: &dyn std::fmt::Display) -> Error {
    Error::Decode { count, reason: reason.to_string() }
}
