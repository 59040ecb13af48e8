//! Hugging Face `config.json`, in the dialects of transformers 4 and 5.

mod class;
mod classes;
mod common;
mod latent;
mod moe;
mod rope;
pub(crate) mod tensors;
#[cfg(test)]
mod tests;

pub use crate::field::Dialect;
use crate::fields::Fields;
use serde_json::Value;

use crate::{Error, Family, ModelConfig, Result};

pub(crate) const SOURCE: &str = "config.json";

impl Family {
    /// `model_type` of the family's `config.json`; `None` for one without a Hugging Face class.
    pub fn model_type(self) -> Option<&'static str> {
        classes::all().filter(|c| c.family == self).map(class::Class::model_type).last()
    }

    /// Every family that has a Hugging Face class.
    pub fn all() -> impl Iterator<Item = Self> {
        let mut last = None;
        classes::all().map(|class| class.family).filter(move |family| last.replace(*family) != Some(*family))
    }

    /// The first whose Hugging Face class can say such a model; [`Family::MEGATRON`] if none can.
    pub(crate) fn of(c: &ModelConfig) -> Self {
        classes::all().find(|class| class.says(c)).map_or(Self::MEGATRON, |class| class.family)
    }
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
    read_fields(&Fields { source: SOURCE, map, asked: None })
}

/// Reads an object whose `model_type` names a class.
pub(crate) fn read_fields(f: &Fields<'_>) -> Result<ModelConfig> {
    let model_type = f.text("model_type")?.ok_or_else(|| f.missing("model_type"))?;
    let Some(class) = classes::all().find(|c| c.types.contains(&model_type)) else {
        let mut known: Vec<&str> = classes::all().map(|c| c.types[0]).collect();
        known.dedup();
        let known = known.join(", ");
        return Err(f.unsupported(format!("model type `{model_type}` is not supported; supported: {known}")));
    };
    class.read(f)
}

/// Writes a configuration that `transformers` reads.
///
/// # Errors
/// [`Error::Unsupported`] for a model of [`crate::Family::MEGATRON`], which no Hugging Face class describes, and for one with
/// parts that its family's class cannot express and the file would lose.
pub fn write_config(config: &ModelConfig, dialect: Dialect) -> Result<Value> {
    let classes = || classes::all().filter(|c| c.family == config.family);
    if let Some(class) = classes().find(|c| c.says(config)) {
        return class.write(config, dialect);
    }
    let what = match classes().last() {
        None => "no Hugging Face class describes this model".to_owned(),
        Some(class) => {
            class.write(config, dialect)?;
            let parts = class.leaves_out(config).unwrap_or_default().join(", ");
            format!("the configuration of {} has no words for this model's {parts}", class.name)
        }
    };
    let hint = "hint: pass a folder with the family's config.json";
    Err(Error::Unsupported { source_name: SOURCE, what: format!("{what}\n{hint}") })
}

/// Parses JSON as Python writes it: the bare literals `NaN`, `Infinity` and `-Infinity` become strings, which no numeric
/// field accepts silently.
///
/// # Errors
/// [`Error::Unsupported`] with the place of what is not JSON.
pub fn parse_json(text: &str) -> Result<Value> {
    // Whoever read the text knows its file.
    let refused = |e: serde_json::Error| Error::Unsupported { source_name: "no JSON", what: e.to_string() };
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
