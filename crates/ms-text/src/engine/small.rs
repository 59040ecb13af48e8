//! An engine that starts immediately: byte-pair merges over two sorted lists, which a file can hold as they are.
//!
//! The fast engine takes up to a second to build its tables, which pays off for megabytes of text but not for a prompt. This
//! one needs none: text is cut by the fast engine's own rules (built over an empty model, which costs nothing), and each word
//! is merged by looking up pairs. What it cannot encode is left to the other engines, and so is everything once a caller has
//! encoded [`ENOUGH`].

use super::unicode::Disputed;
use super::{check_pieces, decode_error, encode_error};
use crate::Result;
use crate::source::byte_level;
use crate::vocabulary::{AddedToken, Texts};
use fast_tokenizers::Decoder as _;
use fast_tokenizers::pipeline::{
    PipelineTokenizer, PreTokenizer as _, PreTokenizerScratch, Segment, SpecialSegmentIterator, normalize_all,
};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of text after which the engine with tables is worth its building, where nobody says how much there will be.
const ENOUGH: usize = 1 << 20;
/// Bytes of text that this engine encodes while the other one is built: of more than these it does better to encode none.
const AS_LONG: usize = 4 << 20;

/// The parts of a byte-pair model that encode small texts.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Parts {
    /// Which pairs of ids merge, ascending: left id in the high half, right id in the low one.
    pub(crate) pairs: Vec<u64>,
    /// For each pair: its rank in the high half, the id that it becomes in the low one.
    pub(crate) merged: Vec<u64>,
    /// A word that is a token stays whole, whatever the pairs say.
    pub(crate) whole_words: bool,
    /// Texts are spelled in the byte alphabet; otherwise in characters, with `<0xNN>` for bytes of unknown ones.
    pub(crate) byte_level: bool,
    /// The definition without its model, in the form the fast engine reads.
    pub(crate) frame: String,
    /// What stands before and after every text.
    pub(crate) around: [Vec<u32>; 2],
}

pub(crate) struct SmallEngine {
    parts: Parts,
    texts: Arc<Texts>,
    frame: PipelineTokenizer,
    /// Ids of added tokens as the frame numbers them, and as the tokenizer does.
    added: BTreeMap<u32, u32>,
    /// Added tokens by id: text, and whether it is special.
    contents: BTreeMap<u32, (String, bool)>,
    /// Id of every byte.
    bytes: [u32; 256],
    /// The byte that a letter of the byte alphabet stands for.
    letters: BTreeMap<char, u8>,
    disputed: Disputed,
    encoded: AtomicUsize,
    /// Bytes that are encoded here at most.
    enough: AtomicUsize,
    /// Name of the engine whose ids these are.
    stands_for: String,
}

impl Parts {
    /// The parts of a definition that the fast engine takes; `None` for models of another kind.
    pub(crate) fn of(definition: &Value, texts: &Texts, around: [Vec<u32>; 2]) -> Option<Self> {
        let model = &definition["model"];
        let affix = |name: &str| model[name].as_str().is_some_and(|text| !text.is_empty());
        if model["type"] != "BPE" || affix("continuing_subword_prefix") || affix("end_of_word_suffix") {
            return None;
        }
        if !super::decoding::is_plain(definition) {
            return None;
        }
        let frame = super::cut::frame(definition)?;
        let byte_level = frame["model"]["byte_level"] == true;
        if !byte_level && model["byte_fallback"] != true {
            return None;
        }
        let mut rows = BTreeMap::new();
        let mut joined = String::new();
        for (rank, row) in model["merges"].as_array()?.iter().enumerate() {
            let (left, right) = match row {
                Value::String(text) => text.split_once(' ')?,
                row => (row.get(0)?.as_str()?, row.get(1)?.as_str()?),
            };
            joined.clear();
            joined.extend([left, right]);
            let (left, right, whole) = (texts.id(left)?, texts.id(right)?, texts.id(&joined)?);
            rows.insert(u64::from(left) << 32 | u64::from(right), (rank as u64) << 32 | u64::from(whole));
        }
        let (pairs, merged) = rows.into_iter().unzip();
        let whole_words = model["ignore_merges"] == true;
        Some(Self { pairs, merged, whole_words, byte_level, frame: frame.to_string(), around })
    }
}

impl SmallEngine {
    /// An engine of these parts; `None` if they do not fit each other.
    pub(crate) fn new(
        parts: Parts,
        texts: Arc<Texts>,
        tokens: &[(u32, AddedToken)],
        stands_for: String,
    ) -> Option<Self> {
        let known = |id: u64| texts.spans.len() as u64 > id;
        let fits = parts.pairs.len() == parts.merged.len()
            && parts.pairs.is_sorted_by(|a, b| a < b)
            && parts.merged.iter().all(|value| known(value & 0xffff_ffff));
        if !fits {
            return None;
        }
        let definition: Value = serde_json::from_str(&parts.frame).ok()?;
        check_pieces(Path::new("a kept tokenizer"), &definition["model"]).ok()?;
        let disputed = Disputed::under(&definition["normalizer"]);
        drop(definition);
        let frame = fast_tokenizers::from_json(&parts.frame).ok()?;
        let vocabulary = frame.get_added_vocabulary();
        let mut added = BTreeMap::new();
        let mut contents = BTreeMap::new();
        for (id, token) in tokens {
            added.insert(vocabulary.token_to_id(&token.content)?, *id);
            contents.insert(*id, (token.content.clone(), token.special));
        }
        if !parts.around.iter().flatten().all(|id| known((*id).into()) || contents.contains_key(id)) {
            return None;
        }
        let mut bytes = [0; 256];
        let mut letters = BTreeMap::new();
        for (byte, id) in (0..=255u8).zip(&mut bytes) {
            let letter = byte_level::stand_in(byte);
            letters.insert(letter, byte);
            let text = if parts.byte_level { letter.to_string() } else { format!("<{byte:#04X}>") };
            // Bytes that are in no text need no token.
            match texts.id(&text) {
                Some(found) => *id = found,
                None if parts.byte_level && matches!(byte, 0xc0 | 0xc1 | 0xf5..) => {}
                None => return None,
            }
        }
        let (encoded, enough) = (AtomicUsize::new(0), AtomicUsize::new(ENOUGH));
        Some(Self {
            parts,
            texts,
            frame,
            added,
            contents,
            bytes,
            letters,
            disputed,
            encoded,
            enough,
            stands_for,
        })
    }

    /// Name and version of the engine whose ids these are.
    pub(crate) fn stands_for(&self) -> &str {
        &self.stands_for
    }

    /// Announces about how many bytes will be encoded: all of them here, or none.
    pub(crate) fn expect(&self, bytes: u64) {
        let all = usize::try_from(bytes).is_ok_and(|bytes| bytes <= AS_LONG);
        self.enough.store(if all { AS_LONG } else { 0 }, Ordering::Relaxed);
    }

    /// Appends the ids of `text` and says so, or leaves the text to another engine.
    pub(crate) fn encode_into(&self, text: &str, special: bool, out: &mut Vec<u32>) -> Result<bool> {
        // How much was encoded before decides nothing but speed, so its order among threads does not matter.
        let before = self.encoded.fetch_add(text.len(), Ordering::Relaxed);
        if before.saturating_add(text.len()) > self.enough.load(Ordering::Relaxed)
            || self.disputed.find(text).is_some()
        {
            return Ok(false);
        }
        let [front, back] = &self.parts.around;
        if special {
            out.extend_from_slice(front);
        }
        self.encode(text, out).map_err(|e| encode_error(text.len(), &e))?;
        if special {
            out.extend_from_slice(back);
        }
        Ok(true)
    }

    fn encode(&self, text: &str, out: &mut Vec<u32>) -> fast_tokenizers::Result<()> {
        let vocabulary = self.frame.get_added_vocabulary();
        let mut scratch = (PreTokenizerScratch::default(), Vec::new());
        for segment in SpecialSegmentIterator::new(text, vocabulary, false, false) {
            let (chunk, offset) = match segment {
                Segment::Text { text, input_offset } => (text, input_offset),
                Segment::SpecialToken(id) => {
                    out.extend(self.added.get(&id));
                    continue;
                }
            };
            let normalized = normalize_all(self.frame.get_normalizers(), chunk, offset)?;
            for segment in SpecialSegmentIterator::new(&normalized, vocabulary, true, false) {
                match segment {
                    Segment::SpecialToken(id) => out.extend(self.added.get(&id)),
                    Segment::Text { text, .. } => {
                        let (working, spans) = &mut scratch;
                        spans.clear();
                        self.frame.get_pre_tokenizer().pre_tokenize(text, working, spans)?;
                        for span in spans.iter() {
                            self.word(&text[span.range()], out);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the ids of one word.
    fn word(&self, word: &str, out: &mut Vec<u32>) {
        if let Some(id) = self.whole(word).filter(|_| self.parts.whole_words) {
            out.push(id);
            return;
        }
        let mut ids: Vec<u32> = Vec::with_capacity(word.len());
        if self.parts.byte_level {
            ids.extend(word.bytes().map(|byte| self.bytes[usize::from(byte)]));
        } else {
            let mut buffer = [0; 4];
            for c in word.chars() {
                let text = c.encode_utf8(&mut buffer);
                match self.texts.id(text) {
                    Some(id) => ids.push(id),
                    None => ids.extend(text.bytes().map(|byte| self.bytes[usize::from(byte)])),
                }
            }
        }
        self.merge(&mut ids);
        out.extend_from_slice(&ids);
    }

    fn whole(&self, word: &str) -> Option<u32> {
        if !self.parts.byte_level {
            return self.texts.id(word);
        }
        self.texts.id(&word.bytes().map(byte_level::stand_in).collect::<String>())
    }

    /// Merges the pair of the lowest rank, the first of several, until none is left.
    fn merge(&self, ids: &mut Vec<u32>) {
        let n = ids.len();
        // Neighbours by position; a position that was merged into the one before it points nowhere.
        let mut next: Vec<usize> = (1..=n).collect();
        let mut before: Vec<usize> = (0..n).map(|at| at.wrapping_sub(1)).collect();
        let mut heap = BinaryHeap::new();
        let rank = |ids: &[u32], left: usize, right: usize| {
            let key = u64::from(ids[left]) << 32 | u64::from(ids[right]);
            self.parts.pairs.binary_search(&key).ok().map(|at| self.parts.merged[at])
        };
        for at in 1..n {
            heap.extend(rank(ids, at - 1, at).map(|merged| Reverse((merged >> 32, at - 1, merged))));
        }
        while let Some(Reverse((_, left, merged))) = heap.pop() {
            let right = next[left];
            // A pair that changed since it was found is another pair now, and is in the heap as that.
            if right >= n || before[right] != left || rank(ids, left, right) != Some(merged) {
                continue;
            }
            ids[left] = merged as u32;
            next[left] = next[right];
            before[right] = usize::MAX;
            next[right] = usize::MAX;
            if next[left] < n {
                before[next[left]] = left;
                heap.extend(rank(ids, left, next[left]).map(|m| Reverse((m >> 32, left, m))));
            }
            if before[left] < n {
                let first = before[left];
                heap.extend(rank(ids, first, left).map(|m| Reverse((m >> 32, first, m))));
            }
        }
        let (mut at, mut kept) = (0, 0);
        while at < n {
            ids[kept] = ids[at];
            kept += 1;
            at = next[at];
        }
        ids.truncate(kept);
    }

    /// Text of `ids`, as the fast engine gives it; `None` if it is better asked itself.
    pub(crate) fn decode(&self, ids: &[u32], skip_special: bool) -> Result<Option<String>> {
        let token = |id: u32| match self.contents.get(&id) {
            Some((_, true)) if skip_special => None,
            Some((text, _)) => Some((text.as_str(), true)),
            None => self.texts.text(id).map(|text| (text, false)),
        };
        let tokens = ids.iter().filter_map(|&id| token(id));
        if self.parts.byte_level {
            let mut bytes = Vec::with_capacity(ids.len() * 4);
            for (text, plain) in tokens {
                if plain {
                    bytes.extend_from_slice(text.as_bytes());
                    continue;
                }
                for letter in text.chars() {
                    let Some(&byte) = self.letters.get(&letter) else { return Ok(None) };
                    bytes.push(byte);
                }
            }
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
        let tokens: Vec<String> = tokens.map(|(text, _)| text.to_owned()).collect();
        match self.frame.get_decoder() {
            Some(decoder) => decoder.decode(tokens).map(Some).map_err(|e| decode_error(ids.len(), &e)),
            None => Ok(Some(tokens.join(" "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Vocabulary;
    use serde_json::{Map, json};

    #[test]
    fn parts_that_do_not_fit_each_other_are_refused() {
        let letters: Map<String, Value> =
            (0..=255u8).map(|byte| (byte_level::stand_in(byte).to_string(), json!(byte))).collect();
        let level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let definition = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": level, "post_processor": null, "decoder": level,
            "model": byte_level::bpe(Value::Object(letters), Vec::new(), false)
        });
        let vocabulary = Vocabulary::of(Path::new("a"), &definition).unwrap();
        let engine = |change: &dyn Fn(&mut Parts)| {
            let mut parts = Parts::of(&definition, vocabulary.model(), Default::default()).unwrap();
            change(&mut parts);
            SmallEngine::new(parts, vocabulary.model().clone(), &[], String::new()).is_some()
        };
        assert!(engine(&|_| {}) && engine(&|parts| parts.around[0] = vec![255]));
        assert!(!engine(&|parts| parts.around[1] = vec![256]), "an id without a token");
        assert!(!engine(&|parts| parts.merged = vec![7]), "ranks of no pairs");
        // A model in the frame that would take the engine beyond its stack.
        let deep = json!({"type": "Unigram", "unk_id": 0, "vocab": [["a".repeat(2000), 0.0]], "byte_fallback": false});
        let in_frame = |parts: &mut Parts| {
            let mut frame: Value = serde_json::from_str(&parts.frame).unwrap();
            frame["model"] = deep.clone();
            parts.frame = frame.to_string();
        };
        assert!(!engine(&in_frame));
    }
}
