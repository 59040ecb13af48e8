//! Counting the words of a corpus on all cores.

use super::Step;
use crate::engine::Words;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Bytes of a word from which on it is no word: text without any break, which merges would go through again and again.
pub(super) const LONGEST: usize = 1024;
/// Bytes that a thread takes at a time.
const BATCH: usize = 1 << 20;
/// Maximum bytes of a text without any break that are processed in one piece.
const PIECE: usize = 1 << 20;

/// How often each word occurs.
pub(super) type Counts = HashMap<Box<str>, u64>;

/// The words of all texts, and how many were too long to be counted.
pub(super) fn count<I>(
    texts: I,
    pre_tokenizer: &serde_json::Value,
    threads: usize,
    told: &(dyn Fn(Step) + Sync),
) -> Result<(Counts, u64), String>
where
    I: Iterator<Item = String> + Send,
{
    let source = Mutex::new(Source { texts, read: 0, rest: None });
    // A thread that panicked while it held the source takes the others down with it when they are joined.
    let next = || {
        let mut held = source.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = held.next();
        told(Step::Counting { bytes: held.read });
        batch
    };
    let work = || -> Result<(Counts, u64), String> {
        let mut words = Words::new(pre_tokenizer)?;
        let (mut counts, mut long) = (Counts::new(), 0);
        loop {
            let batch = next();
            if batch.is_empty() {
                return Ok((counts, long));
            }
            for piece in &batch {
                words.each(piece, |word| {
                    if word.len() > LONGEST {
                        long += 1;
                    } else if let Some(count) = counts.get_mut(word) {
                        *count += 1;
                    } else {
                        counts.insert(word.into(), 1);
                    }
                })?;
            }
        }
    };
    let found: Vec<_> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut all = vec![work()];
        all.extend(
            others.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
        );
        all
    });
    let (mut counts, mut long) = (Counts::new(), 0);
    for one in found {
        let (some, too_long) = one?;
        long += too_long;
        if counts.is_empty() {
            counts = some;
            continue;
        }
        for (word, count) in some {
            *counts.entry(word).or_default() += count;
        }
    }
    Ok((counts, long))
}

/// Texts, and what is left of a long one that threads share.
struct Source<I> {
    texts: I,
    /// Bytes handed out.
    read: u64,
    rest: Option<(String, usize)>,
}

impl<I: Iterator<Item = String>> Source<I> {
    /// Texts of about [`BATCH`] bytes, or a piece of a longer one; none at the end.
    fn next(&mut self) -> Vec<String> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH {
            let (text, from) = match self.rest.take() {
                Some(rest) => rest,
                None => match self.texts.next() {
                    Some(text) => (text, 0),
                    None => break,
                },
            };
            let piece = Pieces(&text[from..]).next().map_or(0, str::len);
            let end = from + piece;
            bytes += piece;
            if end == text.len() && from == 0 {
                batch.push(text);
            } else {
                batch.push(text[from..end].to_owned());
                self.rest = (end < text.len()).then_some((text, end));
            }
        }
        self.read += bytes as u64;
        batch
    }
}

/// A text in pieces that have the words of the whole: cut after a line end followed by a non-whitespace character, or before
/// a space that follows one, from [`PIECE`] bytes on. Only if a piece has no such place is it cut within a word, one that is
/// longer than [`LONGEST`].
struct Pieces<'a>(&'a str);

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0;
        if text.is_empty() {
            return None;
        }
        let at = if text.len() <= PIECE { text.len() } else { cut(text) };
        let (piece, rest) = text.split_at(at);
        self.0 = rest;
        Some(piece)
    }
}

fn cut(text: &str) -> usize {
    let bytes = text.as_bytes();
    let end = text.len().min(2 * PIECE);
    let breaks = |at: usize| {
        let (before, after) = (bytes[at - 1], bytes[at]);
        (before == b'\n' && after.is_ascii_graphic()) || (after == b' ' && before.is_ascii_graphic())
    };
    let natural = (PIECE..end).find(|&at| breaks(at));
    natural.unwrap_or_else(|| (PIECE..end).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_text_and_end_where_words_do() {
        let line = "Some words, 12 of them;  and   spaces\n\n\tindented\n";
        let text = line.repeat(4 * PIECE / line.len());
        let pieces: Vec<&str> = Pieces(&text).collect();
        assert!(pieces.len() >= 3);
        assert_eq!(pieces.concat(), text);
        let counted = |texts: Vec<String>| {
            count(texts.into_iter(), &super::super::pre_tokenizer(), 1, &|_| ()).unwrap()
        };
        let whole: Vec<String> = text.split_inclusive("indented\n").map(str::to_owned).collect();
        assert_eq!(counted(vec![text]), counted(whole));
    }

    #[test]
    fn a_text_without_breaks_is_cut_all_the_same_and_counts_as_too_long() {
        let text = "é".repeat(2 * PIECE);
        assert_eq!(Pieces(&text).map(str::len).sum::<usize>(), text.len());
        let (counts, long) = count([text].into_iter(), &super::super::pre_tokenizer(), 2, &|_| ()).unwrap();
        assert!(counts.is_empty() && long >= 2);
    }
}
