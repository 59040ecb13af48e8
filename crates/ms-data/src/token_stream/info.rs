//! The stream's schema metadata.

use std::collections::HashMap;

/// What a stream says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamInfo {
    /// Style of the records, such as `sharegpt`.
    pub style: String,
    /// [`ms_text::Tokenizer::content_hash`] of the tokenizer.
    pub tokenizer: String,
    /// Tokens of the vocabulary, those added by the prompt template included.
    pub vocab_size: u64,
    /// End-of-document id.
    pub eod: i32,
    /// Padding id.
    pub pad: i32,
    /// `--seq-length` of the producer, if any.
    pub seq_length: Option<u64>,
    /// Whether file names get `_packed`, as all but pretraining sets have it.
    pub packed_name: bool,
}

const VERSION: &str = "1";
/// Says that every message has a checksum, the schema itself included.
pub(super) const CHECKSUM: &str = "ms.checksum";

impl StreamInfo {
    pub(super) fn to_metadata(&self) -> HashMap<String, String> {
        let mut map = HashMap::from([
            ("ms.stream".to_owned(), VERSION.to_owned()),
            ("ms.style".to_owned(), self.style.clone()),
            ("ms.tokenizer.sha256".to_owned(), self.tokenizer.clone()),
            ("ms.vocab_size".to_owned(), self.vocab_size.to_string()),
            ("ms.eod".to_owned(), self.eod.to_string()),
            ("ms.pad".to_owned(), self.pad.to_string()),
            ("ms.packed_name".to_owned(), self.packed_name.to_string()),
            (CHECKSUM.to_owned(), "crc32c".to_owned()),
        ]);
        if let Some(length) = self.seq_length {
            map.insert("ms.seq_length".to_owned(), length.to_string());
        }
        map
    }

    pub(super) fn from_metadata(map: &HashMap<String, String>) -> Result<Self, String> {
        let text = |key: &str| map.get(key).ok_or_else(|| format!("its schema lacks the metadata {key}"));
        let version = text("ms.stream")?;
        if version != VERSION {
            return Err(format!("expected version {VERSION} of the stream, found {version:?}"));
        }
        fn number<T: std::str::FromStr>(key: &str, text: &str) -> Result<T, String> {
            text.parse().map_err(|_| format!("metadata {key}: {text:?} is not a number in range"))
        }
        Ok(Self {
            style: text("ms.style")?.clone(),
            tokenizer: text("ms.tokenizer.sha256")?.clone(),
            vocab_size: number("ms.vocab_size", text("ms.vocab_size")?)?,
            eod: number("ms.eod", text("ms.eod")?)?,
            pad: number("ms.pad", text("ms.pad")?)?,
            seq_length: map.get("ms.seq_length").map(|t| number("ms.seq_length", t)).transpose()?,
            packed_name: text("ms.packed_name")? == "true",
        })
    }
}
