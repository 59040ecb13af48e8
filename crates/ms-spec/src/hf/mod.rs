//! Hugging Face `config.json`, in the dialects of transformers 4 and 5.

mod deepseek_v4;
mod fields;
mod mamba3;
mod moe;
mod read;
mod rope;
mod special;
mod step;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use fields::Fields;
pub(crate) use read::read_fields;
use serde_json::Value;
pub use write::write_config;

use crate::{Error, ModelConfig, Result};

const SOURCE: &str = "config.json";

/// Which transformers version's spelling is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dialect {
    /// `torch_dtype`, `rope_theta`, `rope_scaling`.
    #[default]
    V4,
    /// `dtype`, `rope_parameters`.
    V5,
}

/// Reads a configuration of one of the supported families.
///
/// # Errors
/// A missing or malformed field, a family or feature that is not supported, or sizes that do not fit.
pub fn read_config(json: &Value) -> Result<ModelConfig> {
    let map = json.as_object().ok_or_else(|| Error::Unsupported {
        source_name: SOURCE,
        what: "expected a JSON object".to_owned(),
    })?;
    read_fields(&Fields { source: SOURCE, map })
}

/// Parses JSON as Python writes it: the bare words `NaN`, `Infinity` and `-Infinity` become texts, which no field that
/// holds a number takes in silence.
///
/// # Errors
/// [`Error::Unsupported`] with the place of what is no JSON.
pub fn parse_json(text: &str) -> Result<Value> {
    let refused =
        |e: serde_json::Error| Error::Unsupported { source_name: SOURCE, what: format!("no JSON: {e}") };
    let first = match serde_json::from_str(text) {
        Ok(value) => return Ok(value),
        Err(e) => e,
    };
    let mut plain = String::with_capacity(text.len());
    let (mut rest, mut quoted) = (text, false);
    while let Some(c) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|w| !quoted && rest.starts_with(w));
        let taken = match word {
            Some(word) => {
                plain.extend(["\"", word, "\""]);
                word.len()
            }
            None if quoted && c == '\\' => {
                let escaped = rest.char_indices().nth(2).map_or(rest.len(), |(i, _)| i);
                plain.push_str(&rest[..escaped]);
                escaped
            }
            None => {
                quoted ^= c == '"';
                plain.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    serde_json::from_str(&plain).map_err(|_| refused(first))
}
