//! Special tokens set by the user: end of sequence, padding, and added tokens.

use super::{SpecialToken, Tokenizer};
use crate::vocabulary::AddedToken;
use crate::{Error, Result};
use std::sync::OnceLock;

impl Tokenizer {
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
        let id = self.add_special(text)?;
        self.eos = Some(SpecialToken { text: text.into(), id });
        Ok(id)
    }

    /// Makes `text` the padding token, added to the vocabulary if missing.
    ///
    /// # Errors
    /// [`Error::AddToken`].
    pub fn set_pad(&mut self, text: &str) -> Result<u32> {
        let id = self.add_special(text)?;
        self.pad = Some(SpecialToken { text: text.into(), id });
        Ok(id)
    }

    /// Registers a special token, added to the vocabulary with the next free id if missing.
    ///
    /// # Errors
    /// [`Error::AddToken`].
    pub fn add_special(&mut self, text: &str) -> Result<u32> {
        if text.is_empty() {
            return Err(Error::AddToken { token: text.into(), reason: "a token needs a text".into() });
        }
        let (id, changed) = self.vocabulary.add(AddedToken::special(text));
        if changed {
            self.built = OnceLock::new();
            self.small = None;
        }
        Ok(id)
    }
}
