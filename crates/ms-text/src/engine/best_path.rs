//! The most likely segmentation of a text by a model of scored pieces (Unigram), in three bytes of memory per byte of text.
//!
//! For every position, only the length of the last piece of the best path to it is kept, and its score as long as a piece can
//! still begin there. So a text of any length without breaks is segmented as a whole, with the sums it has as a whole: ties
//! are resolved as in the original, which cutting the text into pieces could not guarantee.
//!
//! Source: sentencepiece `src/unigram_model.cc`, `EncodeOptimized`.

use super::LONGEST_PIECE;
use std::collections::HashMap;

/// How a model adds up scores.
pub(super) trait Scores {
    /// Score of the way to the end of piece `id`, which has `bytes` bytes, from the score of its beginning; `None` if the
    /// piece is never used.
    fn piece(&self, id: u32, bytes: usize, so_far: f64) -> Option<f64>;

    /// The same for a character that no piece is.
    fn unknown(&self, so_far: f64) -> f64;

    /// A score in the precision in which it is kept.
    fn kept(&self, score: f64) -> f64;
}

/// A part of a segmentation: its text, and the piece that it is, if it is one.
pub(super) type Part<'t> = (&'t str, Option<u32>);

/// Gives the parts of the likeliest segmentation of `text` to `take`, in order. Of ways of equal score the one that was
/// found first stays, pieces being tried by their beginning and then by their length.
pub(super) fn best_path<'t>(
    text: &'t str,
    trie: &Trie,
    scores: &impl Scores,
    mut take: impl FnMut(Part<'t>),
) {
    let bytes = text.as_bytes();
    // Length of the last part of the best way to a place, the first place left out.
    let mut lengths = vec![0u16; bytes.len()];
    // Scores of the positions that the current piece can reach, as a ring.
    let mut reached = vec![0f64; trie.longest.max(4) + 1];
    let turns = reached.len();
    for (start, c) in text.char_indices() {
        let so_far = reached[start % turns];
        let mut single = false;
        let mut consider = |end: usize, score: f64, lengths: &mut [u16]| {
            let (length, old) = (&mut lengths[end - 1], &mut reached[end % turns]);
            if *length == 0 || score > *old {
                (*length, *old) = ((end - start) as u16, scores.kept(score));
            }
        };
        trie.prefixes(&bytes[start..], |length, id| {
            if let Some(score) = scores.piece(id, length, so_far) {
                consider(start + length, score, &mut lengths);
                single |= length == c.len_utf8();
            }
        });
        if !single {
            consider(start + c.len_utf8(), scores.unknown(so_far), &mut lengths);
        }
    }
    // Going backwards, the length of every piece is stored at its beginning; going forwards, pieces come in order.
    let mut end = bytes.len();
    let mut length = lengths.last().copied().unwrap_or(0);
    while end > 0 {
        let start = end - usize::from(length);
        let before = if start > 0 { lengths[start - 1] } else { 0 };
        lengths[start] = length;
        (end, length) = (start, before);
    }
    let mut start = 0;
    while start < bytes.len() {
        let end = start + usize::from(lengths[start]);
        let part = &text[start..end];
        let id = trie.get(part).filter(|id| scores.piece(*id, part.len(), 0.0).is_some());
        take((part, id));
        start = end;
    }
}

/// Texts and their ids, byte by byte.
pub(super) struct Trie {
    edges: HashMap<(u32, u8), u32>,
    ids: Vec<Option<u32>>,
    /// Bytes of the longest text.
    longest: usize,
}

impl Trie {
    /// Of equal texts the first counts.
    ///
    /// # Errors
    /// If a text is longer than a piece may be.
    pub(super) fn new<'a>(texts: impl Iterator<Item = (&'a str, u32)>) -> Result<Self, String> {
        let mut out = Self { edges: HashMap::new(), ids: vec![None], longest: 0 };
        for (text, id) in texts.filter(|(text, _)| !text.is_empty()) {
            if text.len() > LONGEST_PIECE {
                return Err(format!(
                    "piece {id} has {} bytes, at most {LONGEST_PIECE} are taken",
                    text.len()
                ));
            }
            out.longest = out.longest.max(text.len());
            let mut node = 0;
            for &byte in text.as_bytes() {
                let fresh = out.ids.len() as u32;
                node = *out.edges.entry((node, byte)).or_insert(fresh);
                if node == fresh {
                    out.ids.push(None);
                }
            }
            out.ids[node as usize].get_or_insert(id);
        }
        Ok(out)
    }

    /// Lengths and ids of all texts that `bytes` begin with, the shortest first.
    pub(super) fn prefixes(&self, bytes: &[u8], mut take: impl FnMut(usize, u32)) {
        let mut node = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            let Some(&next) = self.edges.get(&(node, byte)) else { return };
            node = next;
            if let Some(id) = self.ids[node as usize] {
                take(at + 1, id);
            }
        }
    }

    /// The id of a text.
    pub(super) fn get(&self, text: &str) -> Option<u32> {
        let step = |node: u32, byte: &u8| self.edges.get(&(node, *byte)).copied();
        let node = text.as_bytes().iter().try_fold(0, step)?;
        self.ids[node as usize]
    }
}
