//! Which records are used and in which order: sampling, filters, deduplication, mixtures, shuffling.
//!
//! Everything here is deterministic: it depends on the records, their positions and the seed, not on threads or time.

mod dedup;
mod filter;
mod mix;
mod shuffle;

pub use dedup::{Dedup, DedupKey, Deduplicator};
pub use filter::Filter;
pub use mix::{Mix, mixed};
pub use shuffle::{Shuffle, shuffled};

use crate::records::RawRecord;
use crate::{Error, Reason, Result};
use ms_text::python_json;
use serde_json::{Map, Value};

/// `--sample p`: each record is taken with this probability, by its place and the seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    seed: u64,
    below: u64,
}

impl Sampling {
    /// Takes a share `p` of the records.
    ///
    /// # Errors
    /// [`Error::Options`] unless `0 < p <= 1`.
    pub fn new(p: f64, seed: u64) -> Result<Self> {
        if !(p > 0.0 && p <= 1.0) {
            return Err(Error::options(format!("a share of {p}: expected more than 0 and at most 1")));
        }
        // The conversion saturates, so that 1 takes all but one place in 2^64.
        Ok(Self { seed, below: (p * 2f64.powi(64)) as u64 })
    }

    /// Whether the record is taken.
    pub fn takes(&self, record: &RawRecord) -> bool {
        place_hash(self.seed, record.file, record.number) < self.below
    }
}

/// 64 random bits of a record's place.
fn place_hash(seed: u64, file: u32, number: u64) -> u64 {
    mix(mix(mix(seed) ^ u64::from(file)) ^ number)
}

/// The finaliser of splitmix64 (Steele, Lea and Flood, 2014): a bijection that looks random.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Which part of a record filters and duplicates look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All its texts, in the order of the record.
    #[default]
    Texts,
    /// These fields; a field that is not a text counts as its JSON.
    Fields(Vec<String>),
}

impl Scope {
    /// The text that is examined; parts are joined by line ends.
    ///
    /// # Errors
    /// The field that is missing or null.
    pub fn text(&self, record: &Map<String, Value>) -> std::result::Result<String, Reason> {
        let mut out = String::new();
        let mut push = |part: &str| {
            if !out.is_empty() {
                out.push('\n');
            }
            out.push_str(part);
        };
        match self {
            Self::Texts => record.values().for_each(|value| texts(value, &mut push)),
            Self::Fields(names) => {
                for name in names {
                    match record.get(name) {
                        None | Some(Value::Null) => return Err(Reason::missing(name)),
                        Some(Value::String(text)) => push(text),
                        Some(other) => push(&python_json::dumps(other, None)),
                    }
                }
            }
        }
        Ok(out)
    }
}

fn texts(value: &Value, push: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => push(text),
        Value::Array(items) => items.iter().for_each(|item| texts(item, push)),
        Value::Object(fields) => fields.values().for_each(|item| texts(item, push)),
        _ => {}
    }
}

/// Words of a text for comparisons: runs of letters and digits, and every character of a script without spaces.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.find(char::is_alphanumeric)?;
        rest = &rest[start..];
        let first = rest.chars().next()?;
        let end = if alone(first) {
            first.len_utf8()
        } else {
            rest.find(|c: char| !c.is_alphanumeric() || alone(c)).unwrap_or(rest.len())
        };
        let (word, behind) = rest.split_at(end);
        rest = behind;
        Some(word)
    })
}

/// Han, kana and Thai are written without spaces between words.
fn alone(c: char) -> bool {
    matches!(u32::from(c), 0x0e00..=0x0e7f | 0x3040..=0x30ff | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0x20000..=0x3ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Arc;

    fn record(file: u32, number: u64) -> RawRecord {
        RawRecord::of_json(Arc::from(Path::new("x")), file, number, number, b"{}".to_vec())
    }

    #[test]
    fn a_sample_is_a_share_that_depends_on_place_and_seed_alone() {
        let sampling = Sampling::new(0.25, 7).unwrap();
        let taken = |sampling: &Sampling, file| {
            (1..4001).filter(|&n| sampling.takes(&record(file, n))).collect::<Vec<_>>()
        };
        let first = taken(&sampling, 0);
        assert!((900..1100).contains(&first.len()), "{}", first.len());
        assert_eq!(first, taken(&sampling, 0));
        assert_ne!(first, taken(&sampling, 1));
        assert_ne!(first, taken(&Sampling::new(0.25, 8).unwrap(), 0));
        assert_eq!(taken(&Sampling::new(1.0, 7).unwrap(), 0).len(), 4000);
        // A smaller share is part of a larger one.
        let tenth = taken(&Sampling::new(0.1, 7).unwrap(), 0);
        assert!(tenth.iter().all(|n| first.contains(n)));
        assert!(Sampling::new(0.0, 7).is_err() && Sampling::new(1.5, 7).is_err());
    }

    #[test]
    fn the_scope_is_all_texts_or_named_fields() {
        let record: Map<String, Value> =
            serde_json::from_str(r#"{"a": "x", "n": 3, "m": [{"role": "user", "content": "y"}]}"#).unwrap();
        assert_eq!(Scope::Texts.text(&record).unwrap(), "x\nuser\ny");
        let fields = |names: &[&str]| Scope::Fields(names.iter().map(|n| (*n).to_owned()).collect());
        assert_eq!(fields(&["n", "a"]).text(&record).unwrap(), "3\nx");
        assert_eq!(fields(&["z"]).text(&record).unwrap_err(), Reason::missing("z"));
    }

    #[test]
    fn words_are_runs_of_letters_or_single_characters_of_scripts_without_spaces() {
        assert_eq!(
            words("It's a-b 42, 数据x!").collect::<Vec<_>>(),
            ["It", "s", "a", "b", "42", "数", "据", "x"]
        );
        assert_eq!(words(" .. ").count(), 0);
    }
}
