//! Long texts encoded in pieces, with the ids of the whole.
//!
//! Merging a word takes some forty times its length in memory, and a text without breaks is one word. Pairs merge by rank, so
//! a sequence of tokens is the encoding of its text exactly if every two neighbours are the encoding of theirs. Two encodings
//! may therefore be joined wherever the two tokens that meet also meet in an encoding of the text around the cut. This is
//! checked for every cut, so anything else that prevents one (words, normal forms, special tokens, whitespace that looks
//! ahead) is detected as well, and another position is tried.

use super::whole::{WHOLE, Whole};
use crate::Result;

/// Bytes of a piece.
pub(super) const PIECE: usize = 1 << 20;
/// Number of bytes after a cut that are examined.
pub(super) const AFTER: usize = 512;
/// Tokens before a cut that must come out the same.
pub(super) const TOKENS: usize = 64;
/// Tokens at the end of a piece that its end may have changed, and how many before them are tried as the last one.
pub(super) const UNSURE: usize = 16;
pub(super) const PLACES: usize = 256;

/// Encodes texts in pieces.
pub(super) struct Pieces {
    /// What is put before every piece but the first, for models that mark the beginning of a text, and its ids.
    front: Option<(&'static str, Vec<u32>)>,
}

impl Pieces {
    /// `marks`: whether the beginning of a text is encoded differently from its middle. `None` if pieces cannot be
    /// distinguished from the beginning of a text.
    pub(super) fn new(engine: &dyn Whole, marks: bool) -> Option<Self> {
        if !marks {
            return Some(Self { front: None });
        }
        // A line end is a token of its own in the models that mark the beginning of a text.
        let mut ids = Vec::new();
        engine.whole("\n", false, &mut ids).ok()?;
        Some(Self { front: Some(("\n", ids)) })
    }

    /// Appends the ids of `text`. False, and nothing appended, if there is no place to cut it.
    pub(super) fn encode_into(
        &self,
        engine: &dyn Whole,
        text: &str,
        size: usize,
        out: &mut Vec<u32>,
    ) -> Result<bool> {
        let length = out.len();
        let (mut from, mut expected, mut piece) = (0, None, size);
        loop {
            let rest = text.len() - from;
            let end = if rest <= 2 * piece { text.len() } else { boundary(text, from + piece) };
            let ids = self.ids(engine, &text[from..end], from)?;
            // The token that was seen after the last cut must begin the piece.
            let ids = ids.filter(|ids| expected.is_none_or(|first| ids.first() == Some(&first)));
            let Some(ids) = ids else {
                out.truncate(length);
                return Ok(false);
            };
            let cut =
                if end < text.len() { self.cut(engine, text, end, &ids)? } else { Some((ids.len(), end, 0)) };
            let Some((kept, at, next)) = cut else {
                // It may end in a long run of what cannot be cut: a longer one ends elsewhere.
                if 4 * piece > WHOLE {
                    out.truncate(length);
                    return Ok(false);
                }
                piece *= 2;
                continue;
            };
            out.extend_from_slice(&ids[..kept]);
            if at == text.len() {
                return Ok(true);
            }
            (from, expected, piece) = (at, Some(next), size);
        }
    }

    /// The ids of a part that begins at `from` in its text.
    fn ids(&self, engine: &dyn Whole, part: &str, from: usize) -> Result<Option<Vec<u32>>> {
        let mut ids = Vec::new();
        match self.front.as_ref().filter(|_| from > 0) {
            None => engine.whole(part, false, &mut ids)?,
            Some((front, own)) => {
                engine.whole(&format!("{front}{part}"), false, &mut ids)?;
                if !ids.starts_with(own) {
                    return Ok(None);
                }
                ids.drain(..own.len());
            }
        }
        Ok(Some(ids))
    }

    /// The text of some ids from the middle of a text.
    fn spell(&self, engine: &dyn Whole, ids: &[u32]) -> Result<Option<String>> {
        let Some((front, own)) = &self.front else { return engine.decode(ids, false).map(Some) };
        let whole = engine.decode(&[own, ids].concat(), false)?;
        Ok(whole.strip_prefix(front).map(str::to_owned))
    }

    /// Where a piece with these ids, whose text ends at `end`, may end instead: how many ids it has then, where the next one
    /// begins in the text, and with which id.
    fn cut(
        &self,
        engine: &dyn Whole,
        text: &str,
        end: usize,
        ids: &[u32],
    ) -> Result<Option<(usize, usize, u32)>> {
        let last = ids.len().saturating_sub(UNSURE);
        for kept in (1..last).rev().take(PLACES) {
            let Some(behind) = self.spell(engine, &ids[kept..])? else { continue };
            let at = end.saturating_sub(behind.len());
            if at == 0 || !text.is_char_boundary(at) || text[at..end] != behind {
                continue;
            }
            if let Some(next) = self.joins(engine, text, at, &ids[..kept])? {
                return Ok(Some((kept, at, next)));
            }
        }
        Ok(None)
    }

    /// The token after the cut at `at`, if the tokens `before` it and those after it are also those of the text around it.
    fn joins(&self, engine: &dyn Whole, text: &str, at: usize, before: &[u32]) -> Result<Option<u32>> {
        let last = &before[before.len().saturating_sub(TOKENS)..];
        let Some(spelled) = self.spell(engine, last)? else { return Ok(None) };
        let start = at.saturating_sub(spelled.len());
        // At the very beginning of a text it may be marked, which is not what is asked here.
        if start == 0 || !text.is_char_boundary(start) || text[start..at] != spelled {
            return Ok(None);
        }
        let end = boundary(text, (at + AFTER).min(text.len()));
        let around = self.ids(engine, &text[start..end], start)?;
        let (Some(around), Some(behind)) = (around, self.ids(engine, &text[at..end], at)?) else {
            return Ok(None);
        };
        let joined = around.strip_prefix(last).is_some_and(|rest| rest == behind);
        Ok(behind.first().copied().filter(|_| joined))
    }
}

/// The first place from `at` on where a character begins.
pub(super) fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}
