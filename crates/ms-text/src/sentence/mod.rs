//! Sentence splitting, as NLTK's Punkt does it.
//!
//! A [`SentenceSplitter`] is a trained model (abbreviations, collocations across a period, sentence starters, and the case in
//! which words were seen where) and the rules that apply it. The user provides the model: the folder `punkt_tab/LANGUAGE` of
//! NLTK's data, or one of the older pickles. Training is not included.
//!
//! Spans are those of NLTK for the same model: `crates/ms-text/tests/sentences.rs` compares them. Letters added to Unicode
//! after Python's tables were made can differ.
//!
//! # Source
//! Kiss and Strunk, Computational Linguistics 32 (2006), sections 4.1 to 4.3; behaviour of NLTK 3.8 to 3.10.

mod boundaries;
mod model;
mod pickle;
mod trained;
mod words;

#[cfg(test)]
mod tests;

use crate::Result;
use model::Model;
pub use model::find_model;
use std::ops::Range;
use std::path::Path;

/// The version of the rules: NLTK changed them twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Edition {
    /// NLTK 3.8 to 3.10.1: `"` and `'` are the only quotation marks.
    #[default]
    V3_8,
    /// NLTK 3.10.2 and 3.10.3: also `‘ ’ “ ” « »`.
    V3_10_2,
    /// NLTK from 3.10.4 on: also Unicode's classes of characters instead of Python's.
    V3_10_4,
}

impl Edition {
    fn is_typographic_quote(self, c: char) -> bool {
        self >= Self::V3_10_2 && matches!(c, '\u{2018}' | '\u{2019}' | '\u{201c}' | '\u{201d}' | '«' | '»')
    }

    /// White space between words.
    fn is_space(self, c: char) -> bool {
        if self < Self::V3_10_4 { is_space(c) } else { c.is_whitespace() }
    }
}

/// How sentences are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Sentences keep the white space that follows them, line breaks above all. Source: the language variables of
    /// Megatron-LM's `preprocess_data.py --keep-newlines`.
    pub keep_newlines: bool,
    /// The version of the rules.
    pub edition: Edition,
}

/// A trained model and the rules that apply it; shared between threads.
#[derive(Debug)]
pub struct SentenceSplitter {
    model: Model,
    rules: Rules,
}

impl SentenceSplitter {
    /// Reads a model: a folder of `punkt_tab`, or a pickle of the older `punkt`, which is read through a list of what it may
    /// hold and never executed.
    ///
    /// # Errors
    /// [`crate::Error::Io`]; [`crate::Error::SentenceModel`] if it is not a model.
    pub fn load(path: &Path, rules: Rules) -> Result<Self> {
        Ok(Self { model: Model::load(path, rules.edition)?, rules })
    }

    /// SHA-256 of the model's files, in hexadecimal.
    pub fn content_hash(&self) -> &str {
        self.model.content_hash()
    }

    /// Spans of the sentences, in bytes and in order. White space between them, and at the end of the text, belongs to none
    /// unless the rules keep it. A text that begins with white space keeps that in its first sentence.
    pub fn spans(&self, text: &str) -> Vec<Range<usize>> {
        boundaries::spans(text, &self.model, self.rules)
    }
}

/// White space to Python's texts: Unicode's, and the four separators that Unicode does not count as such.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// The text without white space at its end.
fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}
