//! The reference engine: the stable `tokenizers` crate (0.23), which takes every `tokenizer.json`.

use super::{Encode, encode_error};
use crate::{Error, Result};
use serde_json::Value;
use std::path::Path;

pub(super) struct ReferenceEngine(tokenizers::Tokenizer);

impl ReferenceEngine {
    pub(super) fn new(path: &Path, definition: Value) -> Result<Self> {
        let failed = |reason: String| Error::Engine { path: path.into(), reason };
        let tokenizer = serde_json::from_value(definition).map_err(|e| failed(e.to_string()))?;
        Ok(Self(tokenizer))
    }
}

impl Encode for ReferenceEngine {
    fn encode_into(&self, text: &str, special: bool, out: &mut Vec<u32>) -> Result<()> {
        let encoding = self.0.encode_fast(text, special).map_err(|e| encode_error(text.len(), &e))?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.0
            .decode(ids, skip_special)
            .map_err(|e| Error::Decode { count: ids.len(), reason: e.to_string() })
    }

    fn name(&self) -> &'static str {
        "tokenizers 0.23"
    }
}
