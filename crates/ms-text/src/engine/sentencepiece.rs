//! SentencePiece's own segmentation, for the tokenizer types of Megatron that use it as it is.
//!
//! Not the same as a converted `tokenizer.json`: pairs that give the same piece are merged from left to right, control
//! pieces never match, and neighbouring unknown pieces count once.
//!
//! Source: sentencepiece `src/{bpe_model,unigram_model,sentencepiece_processor}.cc`.

use super::Encode;
use super::charsmap::{Normalizer, SPACE, Symbols};
use crate::Result;
use crate::source::{PieceKind, SentencePiece, SentencePieceModel};
use std::collections::{BinaryHeap, HashMap};

/// An unknown character costs this much more than the unlikeliest piece.
const UNKNOWN_PENALTY: f32 = 10.0;
/// Words up to this length are looked up again when they come again, in bytes.
const REMEMBERED: usize = 48;

pub(crate) struct SentencePieceEngine {
    pieces: Vec<(String, f32, PieceKind)>,
    normalizer: Normalizer,
    symbols: Symbols,
    /// Ids of the pieces that text may become.
    ids: HashMap<String, u32>,
    unknown: u32,
    /// Ids of the bytes, if the model falls back to them.
    bytes: Option<Box<[u32; 256]>>,
    strips_prefix: bool,
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
        let own = pieces.iter().filter(|piece| piece.2 == PieceKind::UserDefined);
        let symbols = Symbols::new(own.map(|piece| piece.0.as_str()));
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
                let trie = Trie::new(known.map(|(piece, id)| (piece.0.as_bytes(), id)));
                Model::Unigram { trie, unknown_score: lowest - UNKNOWN_PENALTY, highest }
            }
        };
        Ok(Self {
            normalizer: Normalizer::new(model)?,
            symbols,
            ids,
            unknown,
            bytes: byte_pieces(&pieces),
            strips_prefix: model.add_dummy_prefix,
            model: segmentation,
            pieces,
        })
    }

    fn bpe<'t>(&self, text: &'t str, by_words: bool, out: &mut Vec<(&'t str, u32)>) {
        if !by_words {
            return self.merge(text, out);
        }
        let mut seen: HashMap<&str, std::ops::Range<usize>> = HashMap::new();
        for word in words(text) {
            if let Some(range) = seen.get(word) {
                // The text of a piece only matters where it is unknown, so that of an equal word will do.
                out.extend_from_within(range.clone());
                continue;
            }
            let start = out.len();
            self.merge(word, out);
            if word.len() <= REMEMBERED {
                seen.insert(word, start..out.len());
            }
        }
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
        piece: &'t str,
        made_of: &HashMap<&'t str, (&'t str, &'t str)>,
        out: &mut Vec<(&'t str, u32)>,
    ) {
        let id = self.ids.get(piece).copied();
        match (id, made_of.get(piece)) {
            (Some(id), Some((left, right))) if self.pieces[id as usize].2 == PieceKind::Unused => {
                self.put(left, made_of, out);
                self.put(right, made_of, out);
            }
            (id, _) => out.push((piece, id.unwrap_or(self.unknown))),
        }
    }

    /// The likeliest segmentation, character by character.
    fn unigram<'t>(
        &self,
        text: &'t str,
        (trie, unknown_score, highest): (&Trie, f32, f32),
        out: &mut Vec<(&'t str, u32)>,
    ) {
        #[derive(Clone, Copy)]
        struct Best {
            score: f32,
            start: usize,
            id: u32,
        }
        let bytes = text.as_bytes();
        let mut best: Vec<Option<Best>> = vec![None; bytes.len() + 1];
        let consider = |start: usize, end: usize, score: f64, id: u32, best: &mut Vec<Option<Best>>| {
            // In double precision, and kept in single: ties depend on it.
            if best[end].is_none_or(|old| score > f64::from(old.score)) {
                best[end] = Some(Best { score: score as f32, start, id });
            }
        };
        for (start, c) in text.char_indices() {
            let so_far = if start == 0 { 0.0 } else { best[start].map_or(0.0, |b| b.score) };
            let mut single = false;
            let mut node = 0;
            for end in start + 1..=bytes.len() {
                let Some(next) = trie.step(node, bytes[end - 1]) else { break };
                node = next;
                let Some(id) = trie.ids[node as usize] else { continue };
                let (_, score, kind) = &self.pieces[id as usize];
                let sum = match kind {
                    PieceKind::Unused => continue,
                    PieceKind::UserDefined => {
                        f64::from((end - start) as f32 * highest) - 0.1 + f64::from(so_far)
                    }
                    _ => f64::from(*score) + f64::from(so_far),
                };
                consider(start, end, sum, id, &mut best);
                single |= end - start == c.len_utf8();
            }
            if !single {
                let end = start + c.len_utf8();
                consider(start, end, f64::from(unknown_score + so_far), self.unknown, &mut best);
            }
        }
        let first = out.len();
        let mut end = bytes.len();
        while end > 0 {
            let Some(step) = best[end] else { break };
            out.push((&text[step.start..end], step.id));
            end = step.start;
        }
        out[first..].reverse();
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

/// Texts and their ids, byte by byte.
struct Trie {
    edges: HashMap<(u32, u8), u32>,
    ids: Vec<Option<u32>>,
}

impl Trie {
    fn new<'a>(texts: impl Iterator<Item = (&'a [u8], u32)>) -> Self {
        let mut out = Self { edges: HashMap::new(), ids: vec![None] };
        for (text, id) in texts {
            let mut node = 0;
            for &byte in text {
                let fresh = out.ids.len() as u32;
                node = *out.edges.entry((node, byte)).or_insert(fresh);
                if node == fresh {
                    out.ids.push(None);
                }
            }
            out.ids[node as usize].get_or_insert(id);
        }
        out
    }

    fn step(&self, node: u32, byte: u8) -> Option<u32> {
        self.edges.get(&(node, byte)).copied()
    }
}

impl Encode for SentencePieceEngine {
    fn encode_into(&self, text: &str, _special: bool, out: &mut Vec<u32>) -> Result<()> {
        let normalized = self.normalizer.normalize(text, &self.symbols);
        let mut pieces = Vec::with_capacity(normalized.len() / 3);
        match &self.model {
            Model::Bpe { by_words } => self.bpe(&normalized, *by_words, &mut pieces),
            Model::Unigram { trie, unknown_score, highest } => {
                self.unigram(&normalized, (trie, *unknown_score, *highest), &mut pieces);
            }
        }
        let mut after_unknown = false;
        for (piece, id) in pieces {
            let unknown = id == self.unknown;
            match &self.bytes {
                Some(bytes) if unknown => out.extend(piece.bytes().map(|b| bytes[b as usize])),
                // What is unknown counts once, however long it is.
                _ if unknown && after_unknown => {}
                _ => out.push(id),
            }
            after_unknown = unknown;
        }
        Ok(())
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut out: Vec<u8> = Vec::with_capacity(ids.len() * 4);
        for id in ids {
            let Some((text, _, kind)) = self.pieces.get(*id as usize) else { continue };
            match (kind, byte_of(text)) {
                (PieceKind::Byte, Some(byte)) => out.push(byte),
                (PieceKind::Control | PieceKind::Unknown, _) if skip_special => {}
                _ => out.extend_from_slice(text.replace(SPACE, " ").as_bytes()),
            }
        }
        let text = match String::from_utf8(out) {
            Ok(text) => text,
            Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
        };
        Ok(match text.strip_prefix(' ') {
            Some(rest) if self.strips_prefix => rest.to_owned(),
            _ => text,
        })
    }

    fn name(&self) -> &'static str {
        "sentencepiece segmentation"
    }
}
