//! Filters on records.

use super::words;
use crate::{Error, Result};
use regex::Regex;
use std::collections::HashSet;

/// One `--filter` rule.
#[derive(Clone, Debug)]
pub struct Filter {
    rule: Rule,
}

#[derive(Clone, Debug)]
enum Rule {
    AtLeast(Measure, f64),
    AtMost(Measure, f64),
    Matches(Regex),
    MatchesNot(Regex),
}

/// What a rule measures of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Bytes,
    Chars,
    Words,
    Lines,
    Tokens,
    MeanWord,
    MeanLine,
    LongestLine,
    Letters,
    Digits,
    Upper,
    Symbols,
    Broken,
    RepeatedLines,
    RepeatedWords,
    RepeatedPhrases,
}

/// Names of measures, as rules spell them.
const MEASURES: [(&str, Measure); 16] = [
    ("bytes", Measure::Bytes),
    ("chars", Measure::Chars),
    ("words", Measure::Words),
    ("lines", Measure::Lines),
    ("tokens", Measure::Tokens),
    ("mean-word", Measure::MeanWord),
    ("mean-line", Measure::MeanLine),
    ("longest-line", Measure::LongestLine),
    ("letters", Measure::Letters),
    ("digits", Measure::Digits),
    ("upper", Measure::Upper),
    ("symbols", Measure::Symbols),
    ("broken", Measure::Broken),
    ("repeated-lines", Measure::RepeatedLines),
    ("repeated-words", Measure::RepeatedWords),
    ("repeated-phrases", Measure::RepeatedPhrases),
];

/// Words of a phrase.
const PHRASE: usize = 5;

impl Filter {
    /// Parses `MEASURE>=X`, `MEASURE<=X`, `match:REGEX` or `not:REGEX`.
    ///
    /// Counts: `bytes`, `chars`, `words`, `lines`, `tokens` (of the row's first column). Lengths in characters: `mean-word`,
    /// `mean-line`, `longest-line`. Shares from 0 to 1: `letters`, `digits`, `symbols` and `broken` (control characters and
    /// U+FFFD) of the non-whitespace characters; `upper` of the letters; `repeated-lines`, `repeated-words` and
    /// `repeated-phrases` (of five words), those that occurred before in the same text.
    ///
    /// # Errors
    /// [`Error::Options`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |reason: String| Error::options(format!("filter {text:?}: {reason}"));
        let regex = |pattern: &str| Regex::new(pattern).map_err(|e| bad(e.to_string()));
        let rule = if let Some(pattern) = text.strip_prefix("match:") {
            Rule::Matches(regex(pattern)?)
        } else if let Some(pattern) = text.strip_prefix("not:") {
            Rule::MatchesNot(regex(pattern)?)
        } else {
            let at_least = text.split_once(">=");
            let (name, number) = at_least
                .or_else(|| text.split_once("<="))
                .ok_or_else(|| bad("expected MEASURE>=X, MEASURE<=X, match:REGEX or not:REGEX".into()))?;
            let measure = MEASURES.iter().find(|row| row.0 == name.trim()).ok_or_else(|| {
                let known: Vec<_> = MEASURES.iter().map(|row| row.0).collect();
                bad(format!("unknown measure {name:?}; known: {}", known.join(", ")))
            })?;
            let number: f64 =
                number.trim().parse().map_err(|_| bad(format!("{number:?} is not a number")))?;
            if at_least.is_some() {
                Rule::AtLeast(measure.1, number)
            } else {
                Rule::AtMost(measure.1, number)
            }
        };
        Ok(Self { rule })
    }

    /// Whether it is about tokens, not about text.
    pub fn of_tokens(&self) -> bool {
        matches!(self.rule, Rule::AtLeast(Measure::Tokens, _) | Rule::AtMost(Measure::Tokens, _))
    }

    /// Whether a text keeps the rule; a rule about tokens is kept by every text.
    pub fn keeps(&self, text: &str) -> bool {
        match &self.rule {
            Rule::AtLeast(Measure::Tokens, _) | Rule::AtMost(Measure::Tokens, _) => true,
            Rule::AtLeast(measure, least) => measure.of(text) >= *least,
            Rule::AtMost(measure, most) => measure.of(text) <= *most,
            Rule::Matches(regex) => regex.is_match(text),
            Rule::MatchesNot(regex) => !regex.is_match(text),
        }
    }

    /// Whether a row of this many tokens passes the filter.
    pub fn keeps_tokens(&self, tokens: usize) -> bool {
        match self.rule {
            Rule::AtLeast(Measure::Tokens, least) => tokens as f64 >= least,
            Rule::AtMost(Measure::Tokens, most) => tokens as f64 <= most,
            _ => true,
        }
    }
}

impl Measure {
    fn of(self, text: &str) -> f64 {
        let share = |part: usize, whole: usize| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let visible = || text.chars().filter(|c| !c.is_whitespace());
        let share_of = |wanted: fn(&char) -> bool| share(visible().filter(wanted).count(), visible().count());
        match self {
            Self::Bytes => text.len() as f64,
            Self::Chars => text.chars().count() as f64,
            Self::Words => words(text).count() as f64,
            Self::Lines => text.lines().count() as f64,
            Self::Tokens => f64::NAN,
            Self::MeanWord => share(words(text).map(|w| w.chars().count()).sum(), words(text).count()),
            Self::MeanLine => share(text.lines().map(|l| l.chars().count()).sum(), text.lines().count()),
            Self::LongestLine => text.lines().map(|l| l.chars().count()).max().unwrap_or(0) as f64,
            Self::Letters => share_of(|c| c.is_alphabetic()),
            Self::Digits => share_of(|c| c.is_numeric()),
            Self::Symbols => share_of(|c| !c.is_alphanumeric()),
            Self::Broken => share_of(|c| c.is_control() || *c == char::REPLACEMENT_CHARACTER),
            Self::Upper => {
                let letters = || text.chars().filter(|c| c.is_alphabetic());
                share(letters().filter(|c| c.is_uppercase()).count(), letters().count())
            }
            Self::RepeatedLines => {
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                repeated(lines)
            }
            Self::RepeatedWords => repeated(words(text)),
            Self::RepeatedPhrases => {
                let all: Vec<&str> = words(text).collect();
                repeated(all.windows(PHRASE))
            }
        }
    }
}

/// Share of the items that occurred before.
fn repeated<T: std::hash::Hash + Eq>(items: impl Iterator<Item = T>) -> f64 {
    let mut seen = HashSet::new();
    let (mut all, mut again) = (0usize, 0usize);
    for item in items {
        all += 1;
        again += usize::from(!seen.insert(item));
    }
    if all == 0 { 0.0 } else { again as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps(rule: &str, text: &str) -> bool {
        Filter::parse(rule).unwrap().keeps(text)
    }

    #[test]
    fn every_measure_has_the_value_its_description_says() {
        let text = "Ab 1!\nAb 1!\n数据";
        let cases = [
            ("bytes", 18.0),
            ("chars", 14.0),
            ("words", 6.0),
            ("lines", 3.0),
            ("mean-word", 8.0 / 6.0),
            ("mean-line", 4.0),
            ("longest-line", 5.0),
            ("letters", 6.0 / 10.0),
            ("digits", 2.0 / 10.0),
            ("symbols", 2.0 / 10.0),
            ("broken", 0.0),
            ("upper", 2.0 / 6.0),
            ("repeated-lines", 1.0 / 3.0),
            ("repeated-words", 2.0 / 6.0),
            ("repeated-phrases", 0.0),
        ];
        for (name, value) in cases {
            assert!(keeps(&format!("{name}>={}", value - 1e-9), text), "{name} at least {value}");
            assert!(keeps(&format!("{name}<={}", value + 1e-9), text), "{name} at most {value}");
            assert!(!keeps(&format!("{name}<={}", value - 1e-6), text), "{name} not below {value}");
        }
        assert!(keeps("repeated-phrases>=0.5", &"one two three four five ".repeat(9)));
        assert!(!keeps("broken<=0", "a\u{fffd}"));
    }

    #[test]
    fn patterns_are_searched_for_and_tokens_are_counted_later() {
        assert!(keeps("match:(?i)rust", "in Rust"));
        assert!(!keeps("not:https?://", "see http://x"));
        let tokens = Filter::parse("tokens<=10").unwrap();
        assert!(tokens.of_tokens() && tokens.keeps("anything"));
        assert!(tokens.keeps_tokens(10) && !tokens.keeps_tokens(11));
    }

    #[test]
    fn a_wrong_rule_is_named() {
        for rule in ["chars", "letter>=1", "chars>=x", "match:("] {
            let error = Filter::parse(rule).unwrap_err().to_string();
            assert!(error.starts_with(&format!("filter {rule:?}: ")), "{error}");
        }
    }
}
