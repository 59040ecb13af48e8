//! A fast parser of JSON objects whose values are all strings, as most records are.
//!
//! A general parser copies every string with an escape twice: into a growing buffer, then into a value. Here it is copied
//! once, and a string without escapes not at all if it is only looked at. Anything that is not a flat object of strings, or
//! is malformed in any way, is left to the general parser, whose errors are reported.

use memchr::memchr2;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The object that `bytes` hold, with equal keys as a parser treats them: the last value at the place of the first. `None` if
/// a value is not a text, or anything is not as it must be.
pub(super) fn object(bytes: &[u8]) -> Option<Map<String, Value>> {
    let mut out = Map::new();
    each(bytes, |key, value| {
        let mut value = value.into_owned();
        if value.capacity() > 2 * value.len() {
            value.shrink_to_fit();
        }
        out.insert(key.into_owned(), Value::String(value));
    })?;
    Some(out)
}

/// What [`object`] has under `key`, without the object; also `None` if it has nothing there.
pub(super) fn field<'b>(bytes: &'b [u8], key: &str) -> Option<Cow<'b, str>> {
    let mut found = None;
    each(bytes, |name, value| {
        if name == key {
            found = Some(value);
        }
    })?;
    found
}

/// Gives every key of an object of texts with its value to `take`; `None` if anything is not as it must be.
#[inline(always)]
fn each<'b>(bytes: &'b [u8], mut take: impl FnMut(Cow<'b, str>, Cow<'b, str>)) -> Option<()> {
    // Strings contain no control characters; between values only whitespace may, which is rare enough. All bytes are checked,
    // because a loop with an early exit is not vectorised.
    if bytes.iter().fold(u8::MAX, |least, &byte| least.min(byte)) < b' ' {
        return None;
    }
    let mut rest = std::str::from_utf8(bytes).ok()?.trim_matches(' ').strip_prefix('{')?.strip_suffix('}')?;
    loop {
        let key = text(&mut rest)?;
        rest = rest.trim_start_matches(' ').strip_prefix(':')?;
        take(key, text(&mut rest)?);
        rest = rest.trim_start_matches(' ');
        if rest.is_empty() {
            return Some(());
        }
        rest = rest.strip_prefix(',')?;
    }
}

/// Takes a text in quotes, and the blanks before it, off the front of `rest`.
fn text<'b>(rest: &mut &'b str) -> Option<Cow<'b, str>> {
    let inner = rest.trim_start_matches(' ').strip_prefix('"')?;
    let bytes = inner.as_bytes();
    let mut from = memchr2(b'"', b'\\', bytes)?;
    if bytes[from] == b'"' {
        *rest = &inner[from + 1..];
        return Some(Cow::Borrowed(&inner[..from]));
    }
    // An escape is never shorter than what it stands for, and most records have one long text.
    let mut out = String::with_capacity(inner.len());
    out.push_str(&inner[..from]);
    while bytes[from] == b'\\' {
        from += 1 + escaped(&inner[from + 1..], &mut out)?;
        let plain = memchr2(b'"', b'\\', &bytes[from..])?;
        out.push_str(&inner[from..from + plain]);
        from += plain;
    }
    *rest = &inner[from + 1..];
    Some(Cow::Owned(out))
}

/// Appends what the escape stands for whose letter is the first of `text`, and gives its length without the backslash.
fn escaped(text: &str, out: &mut String) -> Option<usize> {
    let (char, length) = match text.as_bytes().first()? {
        b'"' => ('"', 1),
        b'\\' => ('\\', 1),
        b'/' => ('/', 1),
        b'b' => ('\u{8}', 1),
        b'f' => ('\u{c}', 1),
        b'n' => ('\n', 1),
        b'r' => ('\r', 1),
        b't' => ('\t', 1),
        b'u' => match unit(text, 1)? {
            high @ 0xd800..0xdc00 => {
                let low =
                    text.as_bytes().get(5..7).filter(|next| next == b"\\u").and_then(|_| unit(text, 7))?;
                let low = low.checked_sub(0xdc00).filter(|&low| low < 0x400)?;
                (char::from_u32(0x10000 + ((high - 0xd800) << 10) + low)?, 11)
            }
            unit => (char::from_u32(unit)?, 5),
        },
        _ => return None,
    };
    out.push(char);
    Some(length)
}

/// The number of the four hexadecimal digits at `at`.
fn unit(text: &str, at: usize) -> Option<u32> {
    let digits = text.get(at..at + 4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What is given is what the general parser gives; true if anything is.
    fn agrees(bytes: &[u8]) -> bool {
        let Some(found) = object(bytes) else {
            assert_eq!(field(bytes, "a"), None);
            return false;
        };
        let want: Map<String, Value> = serde_json::from_slice(bytes).expect("the parser takes it too");
        assert_eq!(found, want, "{}", String::from_utf8_lossy(bytes));
        assert!(found.keys().eq(want.keys()), "the order of keys");
        for (key, value) in &want {
            assert_eq!(field(bytes, key).as_deref(), value.as_str());
        }
        assert_eq!(field(bytes, "no such key"), None);
        true
    }

    #[test]
    fn flat_objects_are_taken_and_others_left() {
        for json in [
            r#"{"text":"a"}"#,
            r#" { "a" : "b" , "c" : "" } "#,
            r#"{"text":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é😀\\"}"#,
            r#"{"a\u0062":"x","ab":"y","c":"z","ab":"w"}"#,
            r#"{"a":"\\\\\"","b":"\\\\"}"#,
        ] {
            assert!(agrees(json.as_bytes()), "{json}");
        }
        for json in [
            "",
            "{}",
            "{",
            "[]",
            r#"{"a":1}"#,
            r#"{"a":null,"b":"c"}"#,
            r#"{"a":"b"#,
            r#"{"a":"b"}}"#,
            r#"{"a":"b",}"#,
            r#"{"a":"b" "c":"d"}"#,
            r#"{"a" "b"}"#,
            r#"{"a":"\ud83d"}"#,
            r#"{"a":"\ud83d\u0041"}"#,
            r#"{"a":"\ude00"}"#,
            r#"{"a":"\u+123"}"#,
            r#"{"a":"\u12"}"#,
            r#"{"a":"\x"}"#,
            "{\"a\":\"\n\"}",
            "{\"a\":\"\x7f\t\"}",
            r#"{"a":"\"}"#,
            r#"{"a":"\ud83d\ude0"}"#,
            "{\"a\":\"\u{e9}\",\"b\":\"\\u\u{e9}\u{e9}\"}",
        ] {
            assert!(object(json.as_bytes()).is_none(), "{json}");
        }
        assert!(object(b"{\"a\":\"\xff\"}").is_none());
    }

    proptest! {
        /// Of any texts, written by the general writer or with every character as an escape.
        #[test]
        fn written_objects_come_back(pairs in prop::collection::vec((".{0,6}", any::<String>()), 1..5), all: bool) {
            let escape = |text: &str| text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect::<String>();
            let write = |text: &str| if all { format!("\"{}\"", escape(text)) } else { serde_json::json!(text).to_string() };
            let fields: Vec<String> = pairs.iter().map(|(key, text)| format!("{}: {}", write(key), write(text))).collect();
            let json = format!("{{{}}}", fields.join(" ,"));
            prop_assert!(agrees(json.as_bytes()));
        }

        /// Of bytes that are nearly an object, whatever is taken is what the parser takes.
        #[test]
        fn nothing_is_taken_that_the_parser_refuses(parts in prop::collection::vec(0usize..22, 0..24)) {
            const PARTS: [&str; 22] = [
                "{\"a\":\"", "\"}", "\"", "\\", "\\u", "d83d", "\\ude00", "{", "}", ":", ",", " ", "\",\"", "\":\"", "a",
                "0041", "\\\\", "\\\"", "n", "\u{e9}", "null", "\t",
            ];
            let body: String = parts.iter().map(|&part| PARTS[part]).collect();
            agrees(body.as_bytes());
            agrees(format!("{{\"a\":\"{body}\"}}").as_bytes());
        }
    }
}
