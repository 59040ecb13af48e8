//! Patterns in the dialect of Oniguruma, which Python's `tokenizers` reads them by, in that of the engines' own crates.
//!
//! In the former `^` and `$` match at every line, and named classes such as `[[:alpha:]]` hold the letters of all scripts. A
//! character of a word is no joiner, and outside of brackets also one of the fractions and raised digits of Latin-1.

use serde_json::Value;
use std::borrow::Cow;

/// Translates every pattern in a part of a definition, however deep.
pub(super) fn translate(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            if let Some(Value::String(pattern)) = fields.get_mut("Regex")
                && let Cow::Owned(other) = translated(pattern)
            {
                *pattern = other;
            }
            fields.values_mut().for_each(translate);
        }
        Value::Array(items) => items.iter_mut().for_each(translate),
        _ => {}
    }
}

/// What a named class holds, without brackets; `None` for a name that is none.
fn named(name: &str) -> Option<&'static str> {
    Some(match name {
        "alnum" => r"\p{Alphabetic}\p{Nd}",
        "alpha" => r"\p{Alphabetic}",
        "blank" => r"\p{Zs}\t",
        "cntrl" => r"\p{Cc}",
        "digit" => r"\p{Nd}",
        "graph" => r"[^\s\p{Cc}\p{Cn}]",
        "lower" => r"\p{Lowercase}",
        "print" => r"[^\p{Cc}\p{Cn}\p{Zl}\p{Zp}]",
        "punct" => r"\p{P}\p{S}",
        "space" => r"\s",
        "upper" => r"\p{Uppercase}",
        "word" => WORD,
        _ => return None,
    })
}

/// What `\w` holds in brackets.
const WORD: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}";
/// What it holds besides elsewhere.
const LATIN: &str = "²³¹¼-¾";

/// What an escape is, where the two dialects differ.
fn escaped(letter: Option<char>, in_brackets: bool) -> Option<String> {
    let word = format!("[{WORD}{LATIN}]");
    Some(match (letter?, in_brackets) {
        ('w', true) => WORD.to_owned(),
        ('W', true) => format!("[^{WORD}]"),
        ('w', false) => word,
        ('W', false) => format!("[^{WORD}{LATIN}]"),
        ('b', false) => format!("(?:(?<={word})(?!{word})|(?<!{word})(?={word}))"),
        ('B', false) => format!("(?:(?<={word})(?={word})|(?<!{word})(?!{word}))"),
        ('R', false) => r"(?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}])".to_owned(),
        ('N', false) => r"[^\n]".to_owned(),
        _ => return None,
    })
}

/// What `^` is: no line begins at the end of a text.
const LINE_BEGINS: &str = r"(?:\A|(?m:^)(?!\z))";
/// What `$` is.
const LINE_ENDS: &str = "(?m:$)";

fn translated(pattern: &str) -> Cow<'_, str> {
    let (mut out, mut rest, mut depth) = (String::new(), pattern, 0usize);
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        match c {
            '\\' => {
                let letter = rest[1..].chars().next();
                length += letter.map_or(0, char::len_utf8);
                if let (Some('p' | 'P'), Some(behind)) = (letter, rest[length..].strip_prefix("{^")) {
                    out.push_str(if letter == Some('p') { r"\P{" } else { r"\p{" });
                    rest = behind;
                    continue;
                }
                if let Some(other) = escaped(letter, depth > 0) {
                    out.push_str(&other);
                    rest = &rest[length..];
                    continue;
                }
            }
            '^' | '$' if depth == 0 => {
                out.push_str(if c == '^' { LINE_BEGINS } else { LINE_ENDS });
                rest = &rest[1..];
                continue;
            }
            '[' if depth > 0 && rest.starts_with("[:") => {
                let others = |c: char| c != '^' && !c.is_ascii_alphabetic();
                let name = &rest[2..rest[2..].find(others).map_or(rest.len(), |end| end + 2)];
                let closed = rest[2 + name.len()..].starts_with(":]");
                let plain = name.strip_prefix('^').unwrap_or(name);
                if let Some(holds) = named(plain).filter(|_| closed) {
                    if name.starts_with('^') {
                        out.extend(["[^", holds, "]"]);
                    } else {
                        out.push_str(holds);
                    }
                    rest = &rest[name.len() + 4..];
                    continue;
                }
                depth += 1;
            }
            '[' => {
                depth += 1;
                // A bracket that comes first is no end.
                let first = rest[1..].strip_prefix('^').map_or(1, |_| 2);
                length = first + usize::from(rest[first..].starts_with(']'));
            }
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    if out == pattern { Cow::Borrowed(pattern) } else { Cow::Owned(out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_dialects_read_alike_stays() {
        for pattern in [
            r"'s|'t| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}]?\p{L}+|\$\^|[]^$]|[^]$]|[a-c&&[^b$]]|[[a:]x]",
            "",
        ] {
            assert!(matches!(translated(pattern), Cow::Borrowed(_)), "{pattern}");
        }
    }

    #[test]
    fn lines_and_named_classes_are_spelt_out() {
        for (pattern, want) in [
            (r"\s+$", r"\s+(?m:$)"),
            (r"^a|[^b]^", &format!("{LINE_BEGINS}a|[^b]{LINE_BEGINS}")),
            (r"\p{^L}[\P{^Han}]\N", r"\P{L}[\p{Han}][^\n]"),
            ("[[:alpha:]_]+$", r"[\p{Alphabetic}_]+(?m:$)"),
            ("[^[:^digit:][:odd:]]", r"[^[^\p{Nd}][:odd:]]"),
            (r"\w+|[^\w\W]\\w", &format!(r"[{WORD}{LATIN}]+|[^{WORD}[^{WORD}]]\\w")),
        ] {
            assert_eq!(translated(pattern), want);
        }
    }
}
