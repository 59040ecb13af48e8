//! The reference engine: the stable `tokenizers` crate (0.23), which takes every `tokenizer.json`.

use super::long::{Long, Shape, check_whole};
use super::pieces::PIECE;
use super::whole::Whole;
use super::{Encode, encode_error};
use crate::{Error, Result};
use serde_json::Value;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Bytes from which on one text is encoded at a time: each of them takes some hundred bytes of memory.
const LARGE: usize = 256 << 10;

pub(super) struct ReferenceEngine {
    tokenizer: tokenizers::Tokenizer,
    pub(super) long: Long,
    /// Held by whoever encodes a large text.
    large: Mutex<()>,
}

impl ReferenceEngine {
    pub(super) fn new(path: &Path, definition: Value) -> Result<Self> {
        let failed = |reason: String| Error::Engine { path: path.into(), reason };
        let shape = Shape::of(&definition);
        let tokenizer = serde_json::from_value(definition).map_err(|e| failed(e.to_string()))?;
        let mut engine = Self { tokenizer, long: Long::none(), large: Mutex::new(()) };
        engine.long = Long::new(&engine, shape);
        Ok(engine)
    }

    /// The same with texts of special tokens inside a text as text, if that is so.
    pub(super) fn splitting_special(mut self, splits: bool) -> Self {
        self.tokenizer.set_encode_special_tokens(splits);
        self
    }
}

impl Whole for ReferenceEngine {
    fn whole(&self, text: &str, special: bool, out: &mut Vec<u32>) -> Result<()> {
        // A thread that panicked here left nothing inconsistent behind.
        let _alone = (text.len() >= LARGE).then(|| self.large.lock().unwrap_or_else(PoisonError::into_inner));
        let encoding = self.tokenizer.encode_fast(text, special).map_err(|e| encode_error(text.len(), &e))?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

impl Encode for ReferenceEngine {
    fn encode_into(&self, text: &str, special: bool, out: &mut Vec<u32>) -> Result<()> {
        if text.len() > 2 * PIECE && !special && self.long.encode_into(self, text, PIECE, out)? {
            return Ok(());
        }
        check_whole(text)?;
        self.whole(text, special, out)
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.tokenizer
            .decode(ids, skip_special)
            .map_err(|e| Error::Decode { count: ids.len(), reason: e.to_string() })
    }

    fn name(&self) -> &'static str {
        "tokenizers 0.23"
    }
}
