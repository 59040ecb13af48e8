//! SentencePiece's own segmentation, for the Megatron tokenizer types that use it directly.
//!
//! It differs from a converted `tokenizer.json`: pairs that give the same piece are merged from left to right, control pieces
//! never match, and adjacent unknown pieces count once.
//!
//! Source: sentencepiece 0.2.0 `src/{bpe_model,unigram_model,sentencepiece_processor}.cc`.

use super::Encode;
use super::best_path::{Scores, Trie, best_path};
use super::charsmap::{Normalizer, SPACE, Symbols};
use super::long::check_whole;
use super::pieces::{AFTER, PIECE, PLACES, TOKENS, UNSURE, boundary};
use super::whole::WHOLE;
use crate::Result;
use crate::source::{PieceKind, SentencePiece, SentencePieceModel};
use std::collections::{BinaryHeap, HashMap};

/// An unknown character costs this much more than the unlikeliest piece.
const UNKNOWN_PENALTY: f32 = 10.0;
/// Words up to this length are looked up again when they come again, in bytes.
const REMEMBERED: usize = 48;
/// So many of them at once.
const MOST_REMEMBERED: usize = 1 << 16;

pub(crate) struct SentencePieceEngine {
    pieces: Vec<(String, f32, PieceKind)>,
    normalizer: Normalizer,
    symbols: Symbols,
    /// Ids of the pieces that text may become.
    ids: HashMap<String, u32>,
    unknown: u32,
    /// Ids of the bytes, if the model falls back to them.
    bytes: Option<Box<[u32; 256]>>,
    dummy_prefix: bool,
    /// Whether blanks at the beginning are removed.
    clean: bool,
    /// Whether long texts can be cut: not where pieces are taken apart again into what some place of the whole text made
    /// them of.
    cuttable: bool,
    /// Bytes of the longest of a user's own pieces.
    longest_symbol: usize,
    model: Model,
}

enum Model {
    /// Whether no piece reaches over the beginning of a word.
    Bpe {
        by_words: bool,
    },
    Unigram {
        trie: Trie,
        unknown_score: f32,
        highest: f32,
    },
}

impl SentencePieceEngine {
    pub(crate) fn new(model: &SentencePiece) -> std::result::Result<Self, String> {
        let pieces = model.pieces.clone();
        let is_text =
            |kind: PieceKind| matches!(kind, PieceKind::Normal | PieceKind::UserDefined | PieceKind::Unused);
        let mut ids = HashMap::new();
        for ((text, _, kind), id) in pieces.iter().zip(0u32..) {
            if is_text(*kind) {
                ids.entry(text.clone()).or_insert(id);
            }
        }
        let unknown = pieces.iter().position(|piece| piece.2 == PieceKind::Unknown);
        let unknown = unknown.ok_or("it has no unknown piece")? as u32;
        let own = pieces.iter().zip(0u32..).filter(|(piece, _)| piece.2 == PieceKind::UserDefined);
        let symbols = Symbols::new(own.map(|(piece, id)| (piece.0.as_str(), id)))?;
        let segmentation = match model.model {
            SentencePieceModel::Bpe => {
                let over = |text: &str| text.trim_start_matches(SPACE).contains(SPACE);
                Model::Bpe { by_words: !ids.keys().any(|text| over(text)) }
            }
            SentencePieceModel::Unigram => {
                let scores = || pieces.iter().filter(|p| p.2 == PieceKind::Normal).map(|p| p.1);
                let lowest = scores().fold(f32::MAX, f32::min);
                let highest = scores().fold(f32::MIN_POSITIVE, f32::max);
                let known = pieces.iter().zip(0u32..).filter(|(piece, _)| is_text(piece.2));
                let trie = Trie::new(known.map(|(piece, id)| (piece.0.as_str(), id)))?;
                Model::Unigram { trie, unknown_score: lowest - UNKNOWN_PENALTY, highest }
            }
        };
        let unused = |piece: &(String, f32, PieceKind)| {
            piece.2 == PieceKind::Unused && piece.0.chars().nth(1).is_some()
        };
        let cuttable = !pieces.iter().any(unused);
        let own = pieces.iter().filter(|piece| piece.2 == PieceKind::UserDefined);
        let longest_symbol = own.map(|piece| piece.0.len()).max().unwrap_or(0);
        Ok(Self {
            cuttable,
            longest_symbol,
            normalizer: Normalizer::new(model)?,
            symbols,
            ids,
            unknown,
            bytes: byte_pieces(&pieces),
            dummy_prefix: model.add_dummy_prefix,
            clean: model.remove_extra_whitespaces,
            model: segmentation,
            pieces,
        })
    }

    fn bpe(&self, text: &str, by_words: bool, ids: &mut Ids<'_>) -> Result<()> {
        if !by_words {
            return self.long(text, PIECE, ids);
        }
        let mut seen: HashMap<&str, Vec<(&str, u32)>> = HashMap::new();
        for word in words(text) {
            if let Some(pieces) = seen.get(word) {
                pieces.iter().for_each(|(piece, id)| ids.push(piece, *id));
            } else if word.len() > REMEMBERED {
                self.long(word, PIECE, ids)?;
            } else {
                let mut pieces = Vec::new();
                self.merge(word, &mut pieces);
                pieces.iter().for_each(|(piece, id)| ids.push(piece, *id));
                if seen.len() >= MOST_REMEMBERED {
                    seen.clear();
                }
                seen.insert(word, pieces);
            }
        }
        Ok(())
    }

    /// Merges a text of any length, a long one in pieces of about `size` bytes that have the tokens of the whole.
    fn long(&self, text: &str, size: usize, ids: &mut Ids<'_>) -> Result<()> {
        let (length, after_unknown) = (ids.out.len(), ids.after_unknown);
        if self.cuttable && text.len() > 2 * size && self.in_pieces(text, size, ids) {
            return Ok(());
        }
        ids.out.truncate(length);
        ids.after_unknown = after_unknown;
        check_whole(text)?;
        let mut pieces = Vec::new();
        self.merge(text, &mut pieces);
        pieces.iter().for_each(|(piece, id)| ids.push(piece, *id));
        Ok(())
    }

    /// The ids of `text` by pieces; false if there is no place to cut it.
    ///
    /// The best pair is merged first, among equal ones the leftmost. So the merges on the left and on the right of a position
    /// are independent as long as no merge crosses it, and whether one ever does is decided only by the token before the
    /// position and the one after it, with or without equal scores: a position that no merge crosses in the surrounding text
    /// is one that no merge crosses in the whole.
    fn in_pieces(&self, text: &str, size: usize, ids: &mut Ids<'_>) -> bool {
        let mut tokens = Vec::new();
        let (mut from, mut expected, mut piece) = (0, None, size);
        loop {
            let end = if text.len() - from <= 2 * piece { text.len() } else { boundary(text, from + piece) };
            tokens.clear();
            self.merge(&text[from..end], &mut tokens);
            if expected.is_some_and(|first| tokens.first() != Some(&first)) {
                return false;
            }
            if end == text.len() {
                tokens.iter().for_each(|(piece, id)| ids.push(piece, *id));
                return true;
            }
            match self.cut(text, from..end, &tokens) {
                Some((kept, at, next)) => {
                    tokens[..kept].iter().for_each(|(piece, id)| ids.push(piece, *id));
                    (from, expected, piece) = (at, Some(next), size);
                }
                None if 4 * piece <= WHOLE => piece *= 2,
                None => return false,
            }
        }
    }

    /// Where a piece of `text` with these tokens may end instead: how many of them it then has, the position, and the token
    /// after it.
    fn cut<'t>(
        &self,
        text: &'t str,
        piece: std::ops::Range<usize>,
        tokens: &[(&str, u32)],
    ) -> Option<(usize, usize, (&'t str, u32))> {
        let last = tokens.len().saturating_sub(UNSURE);
        let mut at = piece.start + tokens[..last].iter().map(|token| token.0.len()).sum::<usize>();
        for kept in (TOKENS + 1..last).rev().take(PLACES) {
            at -= tokens[kept].0.len();
            if at + self.longest_symbol > piece.end {
                continue;
            }
            let before = &tokens[kept - TOKENS..kept];
            let start = at - before.iter().map(|token| token.0.len()).sum::<usize>();
            let end = boundary(text, at + AFTER);
            let (mut around, mut behind) = (Vec::new(), Vec::new());
            self.merge(&text[start..end], &mut around);
            self.merge(&text[at..end], &mut behind);
            if around.strip_prefix(before).is_some_and(|rest| rest == behind) {
                return Some((kept, at, *behind.first()?));
            }
        }
        None
    }

    /// Joins neighbours, the likeliest pair first and the leftmost of equals.
    fn merge<'t>(&self, text: &'t str, out: &mut Vec<(&'t str, u32)>) {
        struct Symbol {
            start: usize,
            end: usize,
            previous: usize,
            next: usize,
            whole: bool,
        }
        #[derive(PartialEq)]
        struct Pair {
            score: f32,
            left: usize,
            right: usize,
            size: usize,
        }
        impl Eq for Pair {}
        impl Ord for Pair {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
            }
        }
        impl PartialOrd for Pair {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }
        const NONE: usize = usize::MAX;
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let symbol = self.symbols.prefix(rest);
            let length = symbol.unwrap_or_else(|| rest.chars().next().map_or(1, char::len_utf8));
            let index = symbols.len();
            symbols.push(Symbol {
                start: at,
                end: at + length,
                previous: index.wrapping_sub(1),
                next: index + 1,
                whole: symbol.is_some(),
            });
            at += length;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut agenda = BinaryHeap::new();
        // Unused pieces are taken apart again into what they were made of.
        let mut made_of: HashMap<&str, (&str, &str)> = HashMap::new();
        let mut offer = |symbols: &[Symbol], agenda: &mut BinaryHeap<Pair>, left: usize, right: usize| {
            if left == NONE || right == NONE || symbols[left].whole || symbols[right].whole {
                return;
            }
            let (l, r) = (&symbols[left], &symbols[right]);
            let piece = &text[l.start..r.end];
            let Some(&id) = self.ids.get(piece) else { return };
            agenda.push(Pair { score: self.pieces[id as usize].1, left, right, size: piece.len() });
            if self.pieces[id as usize].2 == PieceKind::Unused {
                made_of.insert(piece, (&text[l.start..l.end], &text[r.start..r.end]));
            }
        };
        for right in 1..symbols.len() {
            offer(&symbols, &mut agenda, right - 1, right);
        }
        while let Some(Pair { left, right, size, .. }) = agenda.pop() {
            let length = |symbol: &Symbol| symbol.end - symbol.start;
            let (l, r) = (length(&symbols[left]), length(&symbols[right]));
            if l == 0 || r == 0 || l + r != size {
                continue;
            }
            symbols[left].end = symbols[right].end;
            let next = symbols[right].next;
            symbols[left].next = next;
            if next != NONE {
                symbols[next].previous = left;
            }
            symbols[right].end = symbols[right].start;
            let previous = symbols[left].previous;
            offer(&symbols, &mut agenda, previous, left);
            offer(&symbols, &mut agenda, left, next);
        }
        let mut index = if symbols.is_empty() { NONE } else { 0 };
        while index != NONE {
            let symbol = &symbols[index];
            self.put(&text[symbol.start..symbol.end], &made_of, out);
            index = symbol.next;
        }
    }

    fn put<'t>(
        &self,
        mut piece: &'t str,
        made_of: &HashMap<&'t str, (&'t str, &'t str)>,
        out: &mut Vec<(&'t str, u32)>,
    ) {
        // What stands to the right, the last first: a piece may be made of as many as it has letters.
        let mut later = Vec::new();
        loop {
            let id = self.ids.get(piece).copied();
            match (id, made_of.get(piece)) {
                (Some(id), Some((left, right))) if self.pieces[id as usize].2 == PieceKind::Unused => {
                    later.push(*right);
                    piece = left;
                }
                (id, _) => {
                    out.push((piece, id.unwrap_or(self.unknown)));
                    let Some(next) = later.pop() else { return };
                    piece = next;
                }
            }
        }
    }
}

/// Sums are compared in double precision, and kept in single: ties depend on it.
struct UnigramScores<'a> {
    pieces: &'a [(String, f32, PieceKind)],
    unknown: f32,
    highest: f32,
}

impl Scores for UnigramScores<'_> {
    fn piece(&self, id: u32, bytes: usize, so_far: f64) -> Option<f64> {
        let (_, score, kind) = &self.pieces[id as usize];
        match kind {
            PieceKind::Unused => None,
            PieceKind::UserDefined => Some(f64::from(bytes as f32 * self.highest) - 0.1 + so_far),
            _ => Some(f64::from(*score) + so_far),
        }
    }

    fn unknown(&self, so_far: f64) -> f64 {
        f64::from(self.unknown + so_far as f32)
    }

    fn kept(&self, score: f64) -> f64 {
        f64::from(score as f32)
    }
}

/// Ids of `<0x00>` to `<0xFF>`.
fn byte_pieces(pieces: &[(String, f32, PieceKind)]) -> Option<Box<[u32; 256]>> {
    let mut ids = Box::new([0u32; 256]);
    let mut found = 0;
    for ((text, _, kind), id) in pieces.iter().zip(0u32..) {
        if *kind == PieceKind::Byte
            && let Some(byte) = byte_of(text)
        {
            ids[byte as usize] = id;
            found += 1;
        }
    }
    (found == 256).then_some(ids)
}

fn byte_of(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

/// Cuts before every mark of a word's beginning that follows something else.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let marks = rest.len() - rest.trim_start_matches(SPACE).len();
        let end = rest[marks..].find(SPACE).map_or(rest.len(), |at| marks + at);
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

/// Appends ids; what is unknown counts once, however long it is, or falls back to its bytes.
struct Ids<'a> {
    engine: &'a SentencePieceEngine,
    after_unknown: bool,
    out: &'a mut Vec<u32>,
}

impl Ids<'_> {
    fn push(&mut self, piece: &str, id: u32) {
        let unknown = id == self.engine.unknown;
        match &self.engine.bytes {
            Some(bytes) if unknown => self.out.extend(piece.bytes().map(|b| bytes[b as usize])),
            _ if unknown && self.after_unknown => {}
            _ => self.out.push(id),
        }
        self.after_unknown = unknown;
    }
}

impl Encode for SentencePieceEngine {
    fn encode_into(&self, text: &str, _special: bool, out: &mut Vec<u32>) -> Result<()> {
        let normalized = self.normalizer.normalize(text, &self.symbols);
        let length = out.len();
        let mut ids = Ids { engine: self, after_unknown: false, out };
        match &self.model {
            Model::Bpe { by_words } => {
                if let Err(error) = self.bpe(&normalized, *by_words, &mut ids) {
                    ids.out.truncate(length);
                    return Err(error);
                }
            }
            Model::Unigram { trie, unknown_score, highest } => {
                let scores =
                    UnigramScores { pieces: &self.pieces, unknown: *unknown_score, highest: *highest };
                let unknown = self.unknown;
                best_path(&normalized, trie, &scores, |(piece, id)| ids.push(piece, id.unwrap_or(unknown)));
            }
        }
        Ok(())
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut out: Vec<u8> = Vec::with_capacity(ids.len() * 4);
        // The mark before the first piece with a text is no space: one mark, or all of them if blanks are removed.
        let (mut begins, mut marked) = (true, false);
        for id in ids {
            let Some((text, _, kind)) = self.pieces.get(*id as usize) else { continue };
            if let (PieceKind::Byte, Some(byte)) = (kind, byte_of(text)) {
                out.push(byte);
                continue;
            }
            begins &= !marked && out.is_empty();
            marked = false;
            if matches!(kind, PieceKind::Control | PieceKind::Unknown) && skip_special {
                continue;
            }
            let rest = text.strip_prefix(SPACE).filter(|_| begins && (self.dummy_prefix || self.clean));
            marked = rest.is_some() && !self.clean;
            out.extend_from_slice(rest.unwrap_or(text).replace(SPACE, " ").as_bytes());
        }
        // Every byte that is of no character is given up by itself.
        let given_up = |chunk: std::str::Utf8Chunk<'_>| "\u{FFFD}".repeat(chunk.invalid().len());
        Ok(out.utf8_chunks().map(|chunk| chunk.valid().to_owned() + &given_up(chunk)).collect())
    }

    fn name(&self) -> &'static str {
        "sentencepiece segmentation"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_ids_of_the_whole() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizers");
        let mut x = 5u32;
        let mut random = |n: u32| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) % n
        };
        let letters: String = (0..40_000).map(|_| char::from(b'a' + random(26) as u8)).collect();
        let few = ["the", "ing", "a", "é", "你", "▁", "  ", "<0x41>"];
        let mixed: String = (0..15_000).map(|_| few[random(8) as usize]).collect();
        let mut cut = 0;
        for name in ["bpe", "words"] {
            let bytes = std::fs::read(folder.join(format!("{name}.model"))).unwrap();
            let own = SentencePiece::parse(&bytes).unwrap();
            // The same model with many equal scores, and with all equal.
            for levels in [usize::MAX, 7, 1] {
                let mut model = own.clone();
                for (place, piece) in model.pieces.iter_mut().enumerate() {
                    piece.1 = if levels == usize::MAX { piece.1 } else { (place % levels) as f32 };
                }
                let engine = SentencePieceEngine::new(&model).unwrap();
                if !matches!(engine.model, Model::Bpe { .. }) {
                    continue;
                }
                for text in [letters.as_str(), mixed.as_str(), &"e".repeat(30_000), &"▁".repeat(20_000)] {
                    let mut whole = Vec::new();
                    engine.merge(text, &mut whole);
                    let (mut of_whole, mut of_pieces) = (Vec::new(), Vec::new());
                    let mut ids = Ids { engine: &engine, after_unknown: false, out: &mut of_whole };
                    whole.iter().for_each(|(piece, id)| ids.push(piece, *id));
                    let mut ids = Ids { engine: &engine, after_unknown: false, out: &mut of_pieces };
                    if engine.in_pieces(text, 4 << 10, &mut ids) {
                        assert!(of_whole == of_pieces, "{name} with {levels} scores");
                        cut += 1;
                    }
                }
            }
        }
        assert!(cut >= 12, "most of these texts are cut: {cut}");
    }

    #[test]
    fn a_model_that_takes_pieces_apart_again_is_not_cut_and_has_a_bound() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizers");
        let mut model = SentencePiece::parse(&std::fs::read(folder.join("bpe.model")).unwrap()).unwrap();
        let joined = model.pieces.iter_mut().rev().find(|piece| piece.0.chars().nth(1).is_some()).unwrap();
        joined.2 = PieceKind::Unused;
        let engine = SentencePieceEngine::new(&model).unwrap();
        assert!(!engine.cuttable);
        let mut out = vec![7];
        let error = engine.encode_into(&"e".repeat(WHOLE + 1), false, &mut out).unwrap_err().to_string();
        assert!(error.contains("at most 8388608 bytes are encoded as a whole"), "{error}");
        assert_eq!(out, [7]);
        engine.encode_into("eee", false, &mut out).unwrap();
        assert!(out.len() > 1);
    }
}
