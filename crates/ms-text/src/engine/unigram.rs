//! Long texts for a Unigram model of `tokenizer.json`, with the same ids as the engines.
//!
//! Both engines take some fifty bytes of memory for every byte of a word, and a text without breaks is one word.
//!
//! Source: `tokenizers` 0.23 `models/unigram/model.rs`.

use super::best_path::{Scores, Trie, best_path};
use serde_json::Value;

/// An unknown character costs this much more than the unlikeliest piece.
const UNKNOWN_PENALTY: f64 = 10.0;

pub(super) struct Unigram {
    trie: Trie,
    scores: Vec<f64>,
    unknown_score: f64,
    unknown: u32,
    /// Ids of the bytes, if the model falls back to them.
    bytes: Option<Box<[u32; 256]>>,
}

impl Unigram {
    /// The model of a definition; `None` if it is no Unigram model, or one whose ids are not fixed by this: without an
    /// unknown piece or some of the bytes it falls back to, with pieces that occur twice, or drawn at random.
    pub(super) fn of(model: &Value) -> Option<Self> {
        if model["type"] != "Unigram" || model["alpha"].as_f64().is_some_and(|alpha| alpha != 0.0) {
            return None;
        }
        let rows = model["vocab"].as_array()?;
        let row = |row: &'_ Value| Some((row.get(0)?.as_str()?.to_owned(), row.get(1)?.as_f64()?));
        let rows: Vec<(String, f64)> = rows.iter().map(row).collect::<Option<_>>()?;
        let unknown = u32::try_from(model["unk_id"].as_u64()?).ok()?;
        let texts: std::collections::HashSet<&str> = rows.iter().map(|row| row.0.as_str()).collect();
        if texts.len() != rows.len() || unknown as usize >= rows.len() {
            return None;
        }
        let trie = Trie::new(rows.iter().zip(0..).map(|(row, id)| (row.0.as_str(), id))).ok()?;
        let scores: Vec<f64> = rows.iter().map(|row| row.1).collect();
        let lowest = scores.iter().copied().fold(f64::INFINITY, |a, b| if b < a { b } else { a });
        let mut bytes = None;
        if model["byte_fallback"] == true {
            let mut ids = Box::new([0; 256]);
            for (byte, id) in ids.iter_mut().enumerate() {
                *id = trie.get(&format!("<0x{byte:02X}>"))?;
            }
            bytes = Some(ids);
        }
        Some(Self { bytes, unknown_score: lowest - UNKNOWN_PENALTY, unknown, trie, scores })
    }

    /// Appends the ids of a word of any length.
    pub(super) fn encode(&self, word: &str, out: &mut Vec<u32>) {
        // Unknown characters that follow each other are one part.
        let mut run: Option<(usize, usize)> = None;
        let mut at = 0;
        best_path(word, &self.trie, self, |(part, id)| {
            let start = at;
            at += part.len();
            match id.filter(|id| *id != self.unknown) {
                Some(id) => {
                    if let Some((from, to)) = run.take() {
                        self.unknown(&word[from..to], out);
                    }
                    out.push(id);
                }
                None => run = Some((run.map_or(start, |run| run.0), at)),
            }
        });
        if let Some((from, to)) = run {
            self.unknown(&word[from..to], out);
        }
    }

    fn unknown(&self, text: &str, out: &mut Vec<u32>) {
        match (self.trie.get(text), &self.bytes) {
            (Some(id), _) => out.push(id),
            (None, Some(bytes)) => out.extend(text.bytes().map(|byte| bytes[usize::from(byte)])),
            (None, None) => out.push(self.unknown),
        }
    }
}

impl Scores for Unigram {
    fn piece(&self, id: u32, _bytes: usize, so_far: f64) -> Option<f64> {
        Some(self.scores[id as usize] + so_far)
    }

    fn unknown(&self, so_far: f64) -> f64 {
        self.unknown_score + so_far
    }

    fn kept(&self, score: f64) -> f64 {
        score
    }
}
