//! How long normalisers and decoders may make a text.

use super::charsmap;
use serde_json::Value;

/// So many times as many characters: more than any published definition. Steps in a row multiply, so that a few bytes could make
/// any text fill memory.
pub(crate) const MOST: usize = 1 << 14;

/// Checks the steps of a part of a definition, however deep, and the tables of its `Precompiled` normalisers.
pub(super) fn check(part: &Value) -> Result<(), String> {
    let times = growth(part)?;
    if times > MOST {
        return Err(format!(
            "its steps can make a text {times} times as long, at most {MOST} times are taken"
        ));
    }
    Ok(())
}

/// Whether a pattern may find no character at all: between any two then. `\\d` and the like find one.
fn may_be_empty(pattern: &str) -> bool {
    let (mut rest, mut escaped) = (pattern.chars(), false);
    let special = |c: char| matches!(c, '*' | '?' | '{' | '|' | '^' | '$');
    pattern.is_empty()
        || rest.any(|c| {
            let place = std::mem::take(&mut escaped);
            escaped = !place && c == '\\';
            if place { matches!(c, 'b' | 'B' | 'A' | 'z' | 'Z' | 'G' | 'K' | 'Q') } else { special(c) }
        })
}

/// How many times as many characters the steps can make of a text.
fn growth(part: &Value) -> Result<usize, String> {
    let steps: Vec<&Value> = match part {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => return Ok(1),
    };
    // Whatever else such a part has.
    let table = part["precompiled_charsmap"].as_str().map_or(Ok(1), charsmap::check)?;
    let own = match part["type"].as_str() {
        _ if part["content"].is_string() && part["pattern"].is_object() => {
            let count = |text: &Value| text.as_str().map_or(0, |text| text.chars().count());
            let (content, text) = (count(&part["content"]), count(&part["pattern"]["String"]));
            match text {
                0 if may_be_empty(part["pattern"]["Regex"].as_str().unwrap_or_default()) => content + 1,
                text => content.div_ceil(text.max(1)),
            }
        }
        // Unicode's longest: U+FDFA and U+1F82; letters that have two more in lower case; ideographs between blanks.
        Some("NFKC" | "NFKD") => 18,
        Some("NFD" | "ByteLevel") => 4,
        Some("Lowercase" | "BertNormalizer") => 3,
        _ => 1,
    };
    let own = own.max(table);
    steps.into_iter().try_fold(own.max(1), |times, step| Ok(times.saturating_mul(growth(step)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::base64;
    use serde_json::json;

    #[test]
    fn steps_that_multiply_a_text_beyond_the_limit_are_refused() {
        let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let text = |pattern: &str| json!({"String": pattern});
        let regex = |pattern: &str| json!({"Regex": pattern});
        assert_eq!(growth(&replace(text(" "), "\u{2581}")), Ok(1));
        assert_eq!(growth(&replace(text("(c"), "(c)")), Ok(2));
        assert_eq!(growth(&replace(regex("[\u{622}\u{623}]"), "\u{627}")), Ok(1));
        assert_eq!(growth(&replace(regex(" {2,}"), " ")), Ok(2));
        assert_eq!(growth(&replace(regex(r"\s+"), "")), Ok(1));
        assert_eq!(growth(&replace(regex(r"(\.)\?"), "!")), Ok(1));
        assert_eq!(growth(&json!([{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "ByteLevel"}])), Ok(216));
        assert!(check(&json!(vec![json!({"type": "NFKD"}); 4])).is_err());
        assert!(check(&replace(text("a"), &"x".repeat(MOST))).is_ok());
        let refused = "its steps can make a text 32768 times as long, at most 16384 times are taken";
        for step in [replace(text("a"), "aa"), replace(regex(""), "a"), replace(regex(r"\b"), "a")] {
            let steps = |count| json!({"type": "Sequence", "normalizers": vec![step.clone(); count]});
            assert!(check(&steps(14)).is_ok());
            assert_eq!(check(&steps(15)).unwrap_err(), refused);
        }
    }

    #[test]
    fn a_table_counts_by_its_longest_text_wherever_it_stands() {
        let wrap = |length: usize| {
            let table =
                [&1024u32.to_le_bytes()[..], &[0; 1024], b"ab\0", &b"x".repeat(length), b"\0"].concat();
            let step = json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(&table)});
            json!({"type": "Sequence", "normalizers": [step]})
        };
        assert_eq!(growth(&wrap(1)), Ok(2));
        assert!(check(&wrap(MOST)).is_ok());
        let mut damaged = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
        assert!(check(&damaged).is_err());
        damaged["content"] = json!("x");
        damaged["pattern"] = json!({"String": "q"});
        assert!(check(&damaged).is_err());
        assert!(check(&wrap(MOST + 1)).unwrap_err().contains("16385 times as long"));
    }
}
