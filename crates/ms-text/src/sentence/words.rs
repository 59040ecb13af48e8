//! Words of a context, as Punkt tokenizes and classifies them.

use super::Edition;
use regex::Regex;

/// The kind of all numbers.
pub(super) const NUMBER: &str = "##number##";

/// Forms of words that need tables of characters.
#[derive(Debug)]
pub(super) struct Forms {
    number: Regex,
    initial: Regex,
}

impl Forms {
    pub(super) fn new(edition: Edition) -> Self {
        let form = |pattern: &str| Regex::new(pattern).expect("a fixed pattern");
        Self {
            number: form(r"^-?[.,]?\d[\d,.\-]*$"),
            // Letters, numbers that are not decimal digits, the underscore; or Unicode word characters except digits.
            initial: form(if edition < Edition::V3_10_4 {
                r"^[[\p{L}\p{N}_]--\p{Nd}]\.$"
            } else {
                r"^[\w--\d]\.$"
            }),
        }
    }
}

/// A word or mark and what is known of it.
#[derive(Debug)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    /// The word in lower case, or [`NUMBER`].
    kind: String,
    /// It ends a sentence, as far as its own form and then its neighbour say.
    pub(super) ends_sentence: bool,
    pub(super) abbreviation: bool,
    pub(super) ellipsis: bool,
}

impl<'a> Word<'a> {
    pub(super) fn new(text: &'a str, forms: &Forms) -> Self {
        let kind = if forms.number.is_match(text) { NUMBER.to_owned() } else { text.to_lowercase() };
        Self { text, kind, ends_sentence: false, abbreviation: false, ellipsis: false }
    }

    /// Whether it ends with a period.
    pub(super) fn period_final(&self) -> bool {
        self.text.ends_with('.')
    }

    /// Two or more periods and nothing else.
    pub(super) fn is_dots(&self) -> bool {
        self.text.len() > 1 && self.text.bytes().all(|b| b == b'.')
    }

    /// One letter and a period.
    pub(super) fn is_initial(&self, forms: &Forms) -> bool {
        forms.initial.is_match(self.text)
    }

    /// The kind without its last period; a period alone stays.
    pub(super) fn kind_without_period(&self) -> &str {
        self.kind.strip_suffix('.').filter(|stem| !stem.is_empty()).unwrap_or(&self.kind)
    }

    /// The kind, without its last period if that ends the sentence.
    pub(super) fn kind_in_sentence(&self) -> &str {
        if self.ends_sentence { self.kind_without_period() } else { &self.kind }
    }

    /// Whether it begins with an upper-case letter.
    pub(super) fn begins_upper(&self) -> bool {
        self.text.chars().next().is_some_and(char::is_uppercase)
    }

    /// Whether it begins with a lower-case letter.
    pub(super) fn begins_lower(&self) -> bool {
        self.text.chars().next().is_some_and(char::is_lowercase)
    }
}

/// The words of a line: marks of several characters, runs up to what cannot be inside a word, single marks.
pub(super) fn words(line: &str, edition: Edition) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c| edition.is_space(c));
        let first = rest.chars().next()?;
        let length = match marks(rest, edition) {
            Some(length) => length,
            None if begins_word(first) => word_length(rest, first, edition),
            None => first.len_utf8(),
        };
        let (word, after) = rest.split_at(length);
        rest = after;
        Some(word)
    })
}

fn word_length(text: &str, first: char, edition: Edition) -> usize {
    let mut chars = text.char_indices().skip_while(|(at, _)| *at < first.len_utf8());
    chars.find(|&(at, c)| ends_word(&text[at..], c, edition)).map_or(text.len(), |(at, _)| at)
}

/// Whether a word ends before `text`, which begins with `c`.
fn ends_word(text: &str, c: char, edition: Edition) -> bool {
    let parts = |text: &str, c: char| {
        edition.is_space(c) || never_in_word(c, edition) || marks(text, edition).is_some()
    };
    if c == ',' {
        let after = &text[1..];
        return after.chars().next().is_none_or(|next| parts(after, next));
    }
    parts(text, c)
}

/// Bytes of the mark of several characters that `text` begins with: two hyphens or more, two periods or more, three periods
/// or more with one white space between each.
fn marks(text: &str, edition: Edition) -> Option<usize> {
    let run = |mark: u8| text.bytes().take_while(|b| *b == mark).count();
    match text.as_bytes().first() {
        Some(b'-') if run(b'-') >= 2 => Some(run(b'-')),
        Some(b'.') if run(b'.') >= 2 => Some(run(b'.')),
        Some(b'.') => {
            let (mut end, mut periods) = (1, 1);
            loop {
                let mut chars = text[end..].chars();
                match (chars.next(), chars.next()) {
                    (Some(space), Some('.')) if edition.is_space(space) => {
                        end += space.len_utf8() + 1;
                        periods += 1;
                    }
                    _ => return (periods >= 3).then_some(end),
                }
            }
        }
        _ => None,
    }
}

/// Characters that end a word wherever they stand.
pub(super) fn never_in_word(c: char, edition: Edition) -> bool {
    matches!(c, ')' | '"' | ';' | '}' | ']' | '*' | ':' | '@' | '\'' | '(' | '{' | '[' | '?' | '!')
        || edition.is_typographic_quote(c)
}

fn begins_word(c: char) -> bool {
    !matches!(
        c,
        '(' | '"' | '`' | '{' | '[' | ':' | ';' | '&' | '#' | '*' | '@' | ')' | '}' | ']' | '-' | ','
    )
}
