//! Filters on records.

use super::words;
use crate::{Error, Result};
use Measure::{Text, Tokens};
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

/// What a rule measures.
#[derive(Clone, Copy, Debug)]
enum Measure {
    /// Tokens of the row's first column.
    Tokens,
    /// What a function says of a text.
    Text(fn(&str) -> f64),
}

/// Measures by their names, as rules spell them.
const MEASURES: [(&str, Measure); 16] = [
    ("bytes", Text(|text| text.len() as f64)),
    ("chars", Text(|text| chars(text) as f64)),
    ("words", Text(|text| words(text).count() as f64)),
    ("lines", Text(|text| text.lines().count() as f64)),
    ("tokens", Tokens),
    ("mean-word", Text(|text| share(words(text).map(chars).sum(), words(text).count()))),
    ("mean-line", Text(|text| share(text.lines().map(chars).sum(), text.lines().count()))),
    ("longest-line", Text(|text| text.lines().map(chars).max().unwrap_or(0) as f64)),
    ("letters", Text(|text| share_of(visible(text), |c| c.is_alphabetic()))),
    ("digits", Text(|text| share_of(visible(text), |c| c.is_numeric()))),
    ("upper", Text(|text| share_of(text.chars().filter(|c| c.is_alphabetic()), |c| c.is_uppercase()))),
    ("symbols", Text(|text| share_of(visible(text), |c| !c.is_alphanumeric()))),
    ("broken", Text(|text| share_of(visible(text), |c| c.is_control() || *c == char::REPLACEMENT_CHARACTER))),
    ("repeated-lines", Text(|text| repeated(text.lines().map(str::trim).filter(|line| !line.is_empty())))),
    ("repeated-words", Text(|text| repeated(words(text)))),
    ("repeated-phrases", Text(|text| repeated(words(text).collect::<Vec<_>>().windows(PHRASE)))),
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
        matches!(self.rule, Rule::AtLeast(Tokens, _) | Rule::AtMost(Tokens, _))
    }

    /// Whether a text keeps the rule; a rule about tokens is kept by every text.
    pub fn keeps(&self, text: &str) -> bool {
        match &self.rule {
            Rule::AtLeast(Tokens, _) | Rule::AtMost(Tokens, _) => true,
            Rule::AtLeast(Text(measure), least) => measure(text) >= *least,
            Rule::AtMost(Text(measure), most) => measure(text) <= *most,
            Rule::Matches(regex) => regex.is_match(text),
            Rule::MatchesNot(regex) => !regex.is_match(text),
        }
    }

    /// Whether a row of this many tokens passes the filter.
    pub fn keeps_tokens(&self, tokens: usize) -> bool {
        match self.rule {
            Rule::AtLeast(Tokens, least) => tokens as f64 >= least,
            Rule::AtMost(Tokens, most) => tokens as f64 <= most,
            _ => true,
        }
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn share_of(chars: impl Iterator<Item = char> + Clone, wanted: fn(&char) -> bool) -> f64 {
    share(chars.clone().filter(wanted).count(), chars.count())
}

fn visible(text: &str) -> impl Iterator<Item = char> + Clone {
    text.chars().filter(|c| !c.is_whitespace())
}

/// Share of the items that occurred before.
fn repeated<T: std::hash::Hash + Eq>(items: impl Iterator<Item = T>) -> f64 {
    let mut seen = HashSet::new();
    let (mut all, mut again) = (0usize, 0usize);
    for item in items {
        all += 1;
        again += usize::from(!seen.insert(item));
    }
    share(again, all)
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
