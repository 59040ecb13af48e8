//! Sentence boundaries: candidates, the decision on each, and closing marks that belong to the preceding sentence.

use super::model::Model;
use super::trained::Context;
use super::words::{NUMBER, Word, never_in_word, words};
use super::{Edition, Rules, is_space, trim_end};
use std::ops::Range;

/// A period, question or exclamation mark that may end a sentence.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Where its match begins: at the mark, or at the word that it is in.
    start: usize,
    /// Where a sentence would end.
    end: usize,
    /// End of what follows and takes part in the decision.
    context_end: usize,
    /// Where the next sentence would begin.
    next: usize,
}

/// Spans of the sentences of a text.
pub(super) fn spans(text: &str, model: &Model, rules: Rules) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for_each_decision(text, rules, |candidate, context| {
        if has_inner_end(context, model, rules.edition) {
            pieces.push(start..candidate.end);
            start = candidate.next;
        }
    });
    pieces.push(start..trim_end(text).len());
    realign(text, &pieces, rules.edition)
}

/// Calls `decide` with each candidate and the text that decides on it: the word before it (from the last candidate, or the
/// last white space, on), the candidate, and what follows. Of candidates in one word only the last counts.
fn for_each_decision(text: &str, rules: Rules, mut decide: impl FnMut(Candidate, &str)) {
    let mut last: Option<(Candidate, usize)> = None;
    let (mut word_start, mut word_end) = (0, 0);
    let mut each = |candidate: Candidate| {
        // Only ASCII white space counts here, and none at the very beginning of what lies between two candidates.
        let space = text.as_bytes()[word_end..candidate.start]
            .iter()
            .rposition(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c))
            .filter(|&at| at > 0);
        let begin = space.map_or(word_start, |at| word_end + at + 1);
        if let Some((before, from)) = last.filter(|_| word_end <= begin) {
            decide(before, &text[from..before.context_end]);
        }
        (word_start, word_end) = (begin, candidate.start);
        last = Some((candidate, begin));
    };
    if rules.keep_newlines {
        candidates_with_space(text, rules.edition, &mut each);
    } else {
        candidates(text, rules.edition, &mut each);
    }
    if let Some((candidate, from)) = last {
        decide(candidate, &text[from..candidate.context_end]);
    }
}

/// Marks followed by another mark, or by white space and a word.
fn candidates(text: &str, edition: Edition, each: &mut impl FnMut(Candidate)) {
    for (start, _) in text.match_indices(['.', '?', '!']) {
        let end = start + 1;
        let Some(c) = text[end..].chars().next() else { return };
        if never_in_word(c, edition) {
            each(Candidate { start, end, context_end: end + c.len_utf8(), next: end });
        } else if edition.is_space(c) {
            let Some(next) = find(text, end, |c| !edition.is_space(c)) else { return };
            let context_end = find(text, next, |c| edition.is_space(c)).unwrap_or(text.len());
            each(Candidate { start, end, context_end, next });
        }
    }
}

/// The last mark of each word, with all white space after it; whatever follows may begin a sentence.
fn candidates_with_space(text: &str, edition: Edition, each: &mut impl FnMut(Candidate)) {
    let mut at = 0;
    while let Some(start) = find(text, at, |c| !edition.is_space(c)) {
        let word_end = find(text, start, |c| edition.is_space(c)).unwrap_or(text.len());
        let mut word = &text[start..word_end];
        at = word_end;
        while let Some(mark) = word.rfind(['.', '?', '!']) {
            let mark_end = start + mark + 1;
            // A mark that ends the text ends no sentence that another could follow: the one before it is tried.
            if let Some(end) = find(text, mark_end, |c| !edition.is_space(c)) {
                let c = text[end..].chars().next().unwrap_or_default();
                let context_end = if never_in_word(c, edition) {
                    end + c.len_utf8()
                } else {
                    find(text, end, |c| edition.is_space(c)).unwrap_or(text.len())
                };
                each(Candidate { start, end, context_end, next: end });
                at = end;
                break;
            }
            word = &word[..mark];
        }
    }
}

/// Where, from `from` on, the first such character is.
fn find(text: &str, from: usize, is: impl Fn(char) -> bool) -> Option<usize> {
    text[from..].find(is).map(|at| from + at)
}

/// Whether a word of the context that is not its last one ends a sentence.
fn has_inner_end(context: &str, model: &Model, edition: Edition) -> bool {
    let lines = context.split('\n').filter(|line| !line.chars().all(is_space));
    let all = lines.flat_map(|line| words(line, edition));
    let mut before: Option<Word<'_>> = None;
    for text in all {
        let mut word = Word::new(text, &model.forms);
        mark_by_form(&mut word, model);
        if let Some(mut before) = before.take() {
            mark_by_neighbour(&mut before, &word, model);
            if before.ends_sentence {
                return true;
            }
        }
        before = Some(word);
    }
    false
}

/// What a word's own form says. Source: Kiss and Strunk, section 3.
fn mark_by_form(word: &mut Word<'_>, model: &Model) {
    if matches!(word.text, "." | "?" | "!") {
        word.ends_sentence = true;
    } else if word.is_dots() {
        word.ellipsis = true;
    } else if let Some(stem) = word.text.strip_suffix('.').filter(|stem| !stem.ends_with('.')) {
        let stem = stem.to_lowercase();
        let last = stem.rsplit('-').next().unwrap_or_default();
        if model.is_abbreviation(&stem) || model.is_abbreviation(last) {
            word.abbreviation = true;
        } else {
            word.ends_sentence = true;
        }
    }
}

/// What the word after a period says. Source: Kiss and Strunk, section 4.
fn mark_by_neighbour(word: &mut Word<'_>, next: &Word<'_>, model: &Model) {
    if !word.period_final() {
        return;
    }
    let initial = word.is_initial(&model.forms);
    let next_kind = next.kind_in_sentence();
    // 4.1.2: two words that often stand together.
    if model.go_together(word.kind_without_period(), next_kind) {
        (word.ends_sentence, word.abbreviation) = (false, true);
        return;
    }
    let context = model.context(next_kind);
    let begins = begins_sentence(next, context);
    // 4.2: abbreviations and ellipses that end a sentence nevertheless.
    if (word.abbreviation || word.ellipsis)
        && !initial
        && (begins == Some(true) || (next.begins_upper() && model.is_starter(next_kind)))
    {
        word.ends_sentence = true;
        return;
    }
    // 4.3: initials and ordinals that end none.
    if (initial || word.kind_without_period() == NUMBER)
        && (begins == Some(false)
            || (begins.is_none() && initial && next.begins_upper() && !context.seen_lower()))
    {
        (word.ends_sentence, word.abbreviation) = (false, true);
    }
}

/// Whether the way a word is written says that it begins a sentence. Source: Kiss and Strunk, section 4.1.1.
fn begins_sentence(word: &Word<'_>, context: Context) -> Option<bool> {
    if matches!(word.text, ";" | ":" | "," | "." | "!" | "?") {
        return Some(false);
    }
    if word.begins_upper() && context.seen_lower() && !context.seen_upper_inside() {
        return Some(true);
    }
    if word.begins_lower() && (context.seen_upper() || !context.seen_lower_at_start()) {
        return Some(false);
    }
    None
}

/// Gives closing quotes and brackets at the beginning of a piece to the sentence before it; leaves out empty pieces.
fn realign(text: &str, pieces: &[Range<usize>], edition: Edition) -> Vec<Range<usize>> {
    let mut out = Vec::with_capacity(pieces.len());
    let mut given = 0;
    for (i, piece) in pieces.iter().enumerate() {
        let start = piece.start + given;
        given = 0;
        if let Some(after) = pieces.get(i + 1) {
            let following = text.get(after.clone()).unwrap_or_default();
            if let Some((closing, taken)) = closing_marks(following, edition) {
                out.push(start..after.start + closing);
                given = taken;
                continue;
            }
        }
        if start < piece.end {
            out.push(start..piece.end);
        }
    }
    out
}

/// Bytes of the closing marks that `text` begins with, without and with the white space after them; marks count if white space,
/// two hyphens or nothing follows.
fn closing_marks(text: &str, edition: Edition) -> Option<(usize, usize)> {
    let closes = |c: char| matches!(c, '"' | '\'' | ')' | ']' | '}') || edition.is_typographic_quote(c);
    let marks = find(text, 0, |c| !closes(c)).unwrap_or(text.len());
    let with_space = find(text, marks, |c| !edition.is_space(c)).unwrap_or(text.len());
    let counts = with_space > marks || marks == text.len() || text[marks..].starts_with("--");
    (marks > 0 && counts).then_some((marks, with_space))
}
