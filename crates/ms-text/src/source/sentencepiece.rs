//! SentencePiece's `.model`: a protobuf message, read field by field.
//!
//! Source: `sentencepiece_model.proto` (field numbers, defaults). The conversion to a `tokenizer.json` follows transformers'
//! converters, so that a folder with only `tokenizer.model` gives the ids of its fast tokenizer.

use super::base64;
use super::tiktoken::{MOST_MERGED, TOO_MANY_WAYS};
use crate::folder::FolderFacts;
use crate::vocabulary::AddedToken;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

const REPLACEMENT: &str = "\u{2581}";

/// What a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// How the model segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    Unigram,
    Bpe,
}

/// A SentencePiece model.
#[derive(Clone, Debug)]
pub(crate) struct SentencePiece {
    pub(crate) pieces: Vec<(String, f32, Kind)>,
    pub(crate) model: Model,
    pub(crate) charsmap: Vec<u8>,
    pub(crate) add_dummy_prefix: bool,
    pub(crate) remove_extra_whitespaces: bool,
    byte_fallback: bool,
    /// unk, bos, eos, pad; negative means there is none.
    ids: [i64; 4],
}

impl SentencePiece {
    /// Reads the message.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut out = Self {
            pieces: Vec::new(),
            model: Model::Unigram,
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            byte_fallback: false,
            ids: [0, 1, 2, -1],
        };
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(piece)) => {
                    let piece = self::piece(piece).map_err(|e| format!("piece {}: {e}", out.pieces.len()))?;
                    out.pieces.push(piece);
                }
                (2, Wire::Bytes(trainer)) => out.trainer(trainer)?,
                (3, Wire::Bytes(normalizer)) => out.normalizer(normalizer)?,
                _ => {}
            }
        }
        if out.pieces.is_empty() {
            return Err("it holds no pieces".into());
        }
        // SentencePiece itself loads no model that breaks these rules.
        let reserved = |kind: Kind| matches!(kind, Kind::Unknown | Kind::Control | Kind::Byte);
        let mut seen = HashSet::new();
        for (number, (text, score, kind)) in out.pieces.iter().enumerate() {
            if text.is_empty() || score.is_nan() {
                let what = if text.is_empty() { "it has no text" } else { "its score is not a number" };
                return Err(format!("piece {number}: {what}"));
            }
            if !seen.insert((reserved(*kind), text)) {
                return Err(format!("piece {number}: {text:?} is there twice"));
            }
        }
        Ok(out)
    }

    fn trainer(&mut self, bytes: &[u8]) -> Result<(), String> {
        for field in Fields(bytes) {
            match field? {
                (3, Wire::Number(1)) => self.model = Model::Unigram,
                (3, Wire::Number(2)) => self.model = Model::Bpe,
                (3, Wire::Number(other)) => {
                    return Err(format!("model type {other}: only unigram (1) and BPE (2) are read"));
                }
                (24, Wire::Number(1)) => return Err("white space as a suffix is not supported".into()),
                (35, Wire::Number(n)) => self.byte_fallback = n != 0,
                (number @ 40..=43, Wire::Number(n)) => self.ids[number as usize - 40] = n as i64,
                _ => {}
            }
        }
        Ok(())
    }

    fn normalizer(&mut self, bytes: &[u8]) -> Result<(), String> {
        for field in Fields(bytes) {
            match field? {
                (2, Wire::Bytes(map)) => self.charsmap = map.to_vec(),
                (3, Wire::Number(n)) => self.add_dummy_prefix = n != 0,
                (4, Wire::Number(n)) => self.remove_extra_whitespaces = n != 0,
                (5, Wire::Number(0)) => return Err("unescaped white space is not supported".into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Text of the begin, end, unknown and padding piece.
    pub(super) fn role(&self, which: Role) -> Option<&str> {
        let place = match which {
            Role::Unk => 0,
            Role::Bos => 1,
            Role::Eos => 2,
            Role::Pad => 3,
        };
        let id = usize::try_from(self.ids[place]).ok()?;
        self.pieces.get(id).map(|piece| piece.0.as_str())
    }

    /// The `tokenizer.json` value: of a model alone, or of a folder that says `facts` of it.
    ///
    /// In a folder texts of control pieces are special tokens. `legacy` puts the mark of a word's beginning before every
    /// stretch of text between special tokens, not only before the first. Llama's fast class does not look at how the model
    /// normalises, and it and the slow one without `legacy` ask the configuration, not the model, whether a text begins with a
    /// mark (transformers 4.51, `convert_slow_tokenizer.py`, `LlamaConverter`; `models/llama/tokenization_llama.py`).
    ///
    /// # Errors
    /// For byte-pair models whose pieces are made of each other in too many ways.
    pub(super) fn definition(&self, facts: Option<&FolderFacts>) -> Result<Value, String> {
        let (legacy, control) = (facts.is_none_or(|facts| facts.legacy), facts.is_some());
        let llama = facts.filter(|facts| facts.is_llama());
        let normalises = llama.is_none_or(|facts| facts.slow);
        let prefix = match llama {
            Some(facts) if !(facts.slow && facts.legacy) => facts.add_prefix_space.unwrap_or(true),
            _ => self.add_dummy_prefix,
        };
        let mut normalizers = Vec::new();
        if !self.charsmap.is_empty() && normalises {
            normalizers
                .push(json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(&self.charsmap)}));
        }
        if self.remove_extra_whitespaces && normalises {
            // The slow class without `legacy` puts a piece before a text that begins with a blank, and takes it off again.
            let left = legacy || llama.is_none();
            normalizers.push(json!({"type": "Strip", "strip_left": left, "strip_right": true}));
            normalizers.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
        }
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": REPLACEMENT});
        let mut pre_tokenizer = Value::Null;
        if !prefix && (legacy || llama.is_none()) {
            normalizers.push(replace);
        } else if legacy {
            normalizers.push(json!({"type": "Prepend", "prepend": REPLACEMENT}));
            normalizers.push(replace);
        } else {
            let scheme = if prefix { "first" } else { "never" };
            pre_tokenizer = json!({
                "type": "Metaspace", "replacement": REPLACEMENT, "prepend_scheme": scheme, "split": false
            });
        }
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": REPLACEMENT}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let added: Vec<Value> = self
            .pieces
            .iter()
            .zip(0u32..)
            .filter(|((_, _, kind), _)| match kind {
                Kind::UserDefined => true,
                Kind::Unknown | Kind::Control => control,
                Kind::Normal | Kind::Unused | Kind::Byte => false,
            })
            .map(|((text, _, kind), id)| {
                let special = *kind != Kind::UserDefined;
                AddedToken { special, ..AddedToken::special(text) }.json(id)
            })
            .collect();
        let normalizer = match normalizers.len() {
            0 => Value::Null,
            _ => json!({"type": "Sequence", "normalizers": normalizers}),
        };
        let model = match self.model {
            Model::Unigram => self.unigram(),
            Model::Bpe => self.bpe()?,
        };
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": decoders}, "model": model
        }))
    }

    fn has_bytes(&self) -> bool {
        self.byte_fallback || self.pieces.iter().any(|piece| piece.2 == Kind::Byte)
    }

    fn unigram(&self) -> Value {
        let vocab: Vec<Value> =
            self.pieces.iter().map(|(text, score, _)| json!([text, f64::from(*score)])).collect();
        let unk = self.pieces.iter().position(|piece| piece.2 == Kind::Unknown);
        json!({"type": "Unigram", "unk_id": unk, "vocab": vocab, "byte_fallback": self.has_bytes()})
    }

    /// Merges are not stored: every pair of pieces that makes a third is one, the likeliest third first.
    fn bpe(&self) -> Result<Value, String> {
        let ids: HashMap<&str, usize> =
            self.pieces.iter().enumerate().map(|(id, piece)| (piece.0.as_str(), id)).collect();
        let lengths: HashSet<usize> = ids.keys().map(|text| text.len()).collect();
        let mut merges: Vec<(f32, &str, &str)> = Vec::new();
        let bytes: usize = self.pieces.iter().map(|piece| piece.0.len() + 16).sum();
        let mut room = bytes.saturating_mul(MOST_MERGED);
        for (text, score, kind) in &self.pieces {
            if *kind != Kind::Normal {
                continue;
            }
            let mut ways: Vec<(usize, usize, usize)> = text
                .char_indices()
                .skip(1)
                // A long piece is not looked up at every place.
                .filter(|(at, _)| lengths.contains(at) && lengths.contains(&(text.len() - at)))
                .filter_map(|(at, _)| Some((*ids.get(&text[..at])?, *ids.get(&text[at..])?, at)))
                .collect();
            ways.sort_unstable();
            room = room.checked_sub(ways.len() * text.len()).ok_or(TOO_MANY_WAYS)?;
            merges.extend(ways.iter().map(|&(_, _, at)| (*score, &text[..at], &text[at..])));
        }
        let chars = |text: &str| text.chars().count();
        // Descending, and stable in what is equal.
        merges.sort_by(|a, b| {
            b.0.total_cmp(&a.0)
                .then_with(|| chars(b.1).cmp(&chars(a.1)))
                .then_with(|| chars(b.2).cmp(&chars(a.2)))
        });
        let vocab: Map<String, Value> =
            self.pieces.iter().enumerate().map(|(id, piece)| (piece.0.clone(), Value::from(id))).collect();
        let merges: Vec<Value> = merges.iter().map(|(_, left, right)| json!([left, right])).collect();
        Ok(json!({
            "type": "BPE", "dropout": null, "unk_token": self.role(Role::Unk), "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": self.has_bytes(), "ignore_merges": false,
            "vocab": vocab, "merges": merges
        }))
    }
}

/// A token with a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Unk,
    Bos,
    Eos,
    Pad,
}

fn piece(bytes: &[u8]) -> Result<(String, f32, Kind), String> {
    let (mut text, mut score, mut kind) = (String::new(), 0.0, Kind::Normal);
    for field in Fields(bytes) {
        match field? {
            (1, Wire::Bytes(bytes)) => {
                text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?.to_owned();
            }
            (2, Wire::Word(bits)) => score = f32::from_bits(bits),
            (3, Wire::Number(number)) => {
                kind = match number {
                    1 => Kind::Normal,
                    2 => Kind::Unknown,
                    3 => Kind::Control,
                    4 => Kind::UserDefined,
                    5 => Kind::Unused,
                    6 => Kind::Byte,
                    other => return Err(format!("unknown type {other}")),
                }
            }
            _ => {}
        }
    }
    Ok((text, score, kind))
}

/// A field's value as it stands in the message.
enum Wire<'a> {
    Number(u64),
    Word(u32),
    Bytes(&'a [u8]),
    Other,
}

/// Fields of a protobuf message, in file order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for place in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << (7 * place);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let count = usize::try_from(count).ok().filter(|&n| n <= self.0.len())?;
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Wire::Number(self.varint()?),
            1 => self.take(8).map(|_| Wire::Other)?,
            2 => {
                let count = self.varint()?;
                Wire::Bytes(self.take(count)?)
            }
            5 => Wire::Word(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "not a SentencePiece model, or cut short".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_of_a_model_is_an_error_or_a_smaller_model() {
        // Two pieces, "<unk>" (unknown) and "a" with score -1.
        let bytes = b"\x0a\x09\x0a\x05<unk>\x18\x02\x0a\x08\x0a\x01a\x15\x00\x00\x80\xbf";
        let model = SentencePiece::parse(bytes).unwrap();
        assert_eq!(model.pieces[1], ("a".into(), -1.0, Kind::Normal));
        assert_eq!(model.role(Role::Unk), Some("<unk>"));
        for end in 0..bytes.len() {
            if let Ok(model) = SentencePiece::parse(&bytes[..end]) {
                assert_eq!((end, model.pieces.len()), (11, 1));
            }
        }
    }

    #[test]
    fn pieces_without_a_text_or_a_score_and_those_that_are_there_twice_are_refused() {
        let refused = |bytes: &[u8]| SentencePiece::parse(bytes).unwrap_err();
        assert_eq!(refused(b"\x0a\x03\x0a\x01a\x0a\x03\x0a\x01a"), "piece 1: \"a\" is there twice");
        assert_eq!(refused(b"\x0a\x03\x0a\x01a\x0a\x00"), "piece 1: it has no text");
        assert_eq!(refused(b"\x0a\x08\x0a\x01a\x15\x00\x00\xc0\x7f"), "piece 0: its score is not a number");
        // A control piece may be spelt as a normal one.
        assert!(SentencePiece::parse(b"\x0a\x03\x0a\x01a\x0a\x05\x0a\x01a\x18\x03").is_ok());
    }

    #[test]
    fn a_piece_of_many_letters_is_not_looked_up_at_each_of_them() {
        let piece = |text: &str| (text.to_owned(), -1.0, Kind::Normal);
        let mut model = SentencePiece::parse(b"\x0a\x03\x0a\x01a\x12\x02\x18\x02").unwrap();
        model.pieces = ["a", "b", "ab", &"ab".repeat(200_000)].map(piece).into();
        assert_eq!(model.definition(None).unwrap()["model"]["merges"], json!([["a", "b"]]));
    }

    #[test]
    fn a_length_beyond_the_file_is_refused() {
        assert!(SentencePiece::parse(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f").is_err());
        assert!(SentencePiece::parse(b"").is_err());
    }
}
