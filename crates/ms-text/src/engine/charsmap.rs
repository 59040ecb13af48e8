//! SentencePiece's normalisation: a table of replacements in the model, then whitespace.
//!
//! Source: sentencepiece `src/normalizer.cc`; the table is a double array of darts-clone (`darts.h`).

use super::LONGEST_PIECE;
use super::best_path::Trie;
use crate::source::{SentencePiece, charsmap, growth};

/// Stands for a space in pieces.
pub(super) const SPACE: &str = "\u{2581}";

/// Replacements of the longest prefix that the table knows.
struct Table {
    units: Vec<u32>,
    texts: Vec<u8>,
}

impl Table {
    /// # Errors
    /// For a table that is cut short, or puts longer texts for others than a normaliser may.
    fn parse(blob: &[u8]) -> Result<Self, String> {
        let (units, texts) = charsmap::parts(blob).ok_or("its table of characters is cut short")?;
        let longest = charsmap::longest(texts);
        if longest > growth::MOST {
            let most = growth::MOST;
            return Err(format!(
                "its table of characters has a text of {longest} bytes, at most {most} are taken"
            ));
        }
        let (units, _) = units.as_chunks::<4>();
        Ok(Self { units: units.iter().map(|b| u32::from_le_bytes(*b)).collect(), texts: texts.to_vec() })
    }

    /// The longest prefix in the table and what it becomes.
    fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let offset = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let mut at = offset(*self.units.first()?);
        let mut found = None;
        // A table that leads back to itself knows prefixes of any length.
        for (i, &byte) in text.iter().enumerate().take(LONGEST_PIECE) {
            at ^= u32::from(byte);
            let Some(&unit) = self.units.get(at as usize) else { break };
            if unit & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let value = self.units.get(at as usize).map(|unit| unit & !(1 << 31));
                found = value.map(|value| (i + 1, value as usize)).or(found);
            }
        }
        let (length, start) = found?;
        let rest = self.texts.get(start..)?;
        let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
        Some((length, &rest[..end]))
    }
}

/// The longest of some symbols at the beginning of a text.
pub(super) struct Symbols(Trie);

impl Symbols {
    /// # Errors
    /// If a symbol is longer than a piece may be.
    pub(super) fn new<'a>(symbols: impl Iterator<Item = (&'a str, u32)>) -> Result<Self, String> {
        Trie::new(symbols).map(Self)
    }

    /// Length of the symbol at the beginning of `text`, if there is one.
    pub(super) fn prefix(&self, text: &str) -> Option<usize> {
        let mut longest = None;
        self.0.prefixes(text.as_bytes(), |length, _| longest = Some(length));
        longest
    }
}

/// Brings a text into the form that pieces are spelled in.
pub(super) struct Normalizer {
    table: Option<Table>,
    dummy_prefix: bool,
    clean: bool,
}

impl Normalizer {
    pub(super) fn new(model: &SentencePiece) -> Result<Self, String> {
        let table = if model.charsmap.is_empty() { None } else { Some(Table::parse(&model.charsmap)?) };
        Ok(Self { table, dummy_prefix: model.add_dummy_prefix, clean: model.remove_extra_whitespaces })
    }

    pub(super) fn normalize(&self, text: &str, symbols: &Symbols) -> String {
        let mut rest = text;
        if self.clean {
            while !rest.is_empty() {
                let (bytes, used) = self.step(rest, symbols);
                if bytes != b" " {
                    break;
                }
                rest = &rest[used..];
            }
        }
        if rest.is_empty() {
            return String::new();
        }
        let mut out: Vec<u8> = Vec::with_capacity(rest.len() + rest.len() / 2);
        if self.dummy_prefix {
            out.extend_from_slice(SPACE.as_bytes());
        }
        let mut after_space = self.clean;
        while !rest.is_empty() {
            let (mut bytes, used) = self.step(rest, symbols);
            while after_space && bytes.first() == Some(&b' ') {
                bytes = &bytes[1..];
            }
            for &byte in bytes {
                if byte == b' ' {
                    out.extend_from_slice(SPACE.as_bytes());
                } else {
                    out.push(byte);
                }
            }
            if !bytes.is_empty() {
                after_space = bytes.last() == Some(&b' ');
            }
            rest = &rest[used..];
            after_space &= self.clean;
        }
        // A broken table could give bytes that are not text.
        let mut out =
            String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        if self.clean {
            let end = out.trim_end_matches(SPACE).len();
            out.truncate(end);
        }
        out
    }

    /// What the beginning of `text` becomes, and how much of it that is: a whole number of characters.
    fn step<'a>(&'a self, text: &'a str, symbols: &Symbols) -> (&'a [u8], usize) {
        if let Some(length) = symbols.prefix(text) {
            return (&text.as_bytes()[..length], length);
        }
        let known = self.table.as_ref().and_then(|table| table.longest(text.as_bytes()));
        match known {
            Some((length, bytes)) if text.is_char_boundary(length) => (bytes, length),
            _ => {
                let length = text.chars().next().map_or(0, char::len_utf8);
                (&text.as_bytes()[..length], length)
            }
        }
    }
}
