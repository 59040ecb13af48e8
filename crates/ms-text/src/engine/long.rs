//! How a long text is encoded: in parts if its tokens allow it, otherwise as a whole up to a limit.

use super::encode_error;
use super::pieces::Pieces;
use super::whole::{WHOLE, Whole};
use crate::Result;
use serde_json::Value;

/// What a definition says of its parts.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Byte-pair merges that are not drawn at random: `pieces` holds.
    merges: bool,
    /// The beginning of a text is encoded in another way than its middle.
    marks: bool,
    words: Words,
}

/// Where no token reaches from one word to the next, whatever stands around them.
#[derive(Clone, Copy, PartialEq)]
enum Words {
    /// Nowhere that would be known.
    Unknown,
    /// Before a space that follows a letter, a digit or a visible ASCII character.
    Spaces,
    /// Also before a line end there, and after a Chinese full stop.
    Lines,
    /// Also between Chinese characters, each of which is a word.
    Characters,
}

impl Shape {
    pub(super) fn of(definition: &Value) -> Self {
        let model = &definition["model"];
        let random = ["dropout", "alpha"].iter().any(|name| model[name].as_f64().is_some_and(|p| p != 0.0));
        let marks = ["normalizer", "pre_tokenizer"].iter().any(|part| marks_the_beginning(&definition[part]));
        let words = match by_words(definition) {
            _ if random => Words::Unknown,
            Words::Unknown if separable(definition) => Words::Spaces,
            words => words,
        };
        Self { merges: model["type"] == "BPE" && !random, marks, words }
    }
}

/// Encodes long texts in parts.
pub(super) struct Long {
    /// `None` for models whose tokens depend on more than their neighbours.
    pieces: Option<Pieces>,
    words: Words,
}

impl Long {
    pub(super) fn new(engine: &dyn Whole, shape: Shape) -> Self {
        let pieces = shape.merges.then(|| Pieces::new(engine, shape.marks)).flatten();
        Self { pieces, words: shape.words }
    }

    /// For an engine that is not finished yet.
    pub(super) const fn none() -> Self {
        Self { pieces: None, words: Words::Unknown }
    }

    /// Appends the ids of `text`. False, and nothing appended, if there is no place to cut it.
    pub(super) fn encode_into(
        &self,
        engine: &dyn Whole,
        text: &str,
        size: usize,
        out: &mut Vec<u32>,
    ) -> Result<bool> {
        if let Some(pieces) = &self.pieces
            && pieces.encode_into(engine, text, size, out)?
        {
            return Ok(true);
        }
        by_parts(engine, self.words, text, size, out)
    }
}

/// Refuses what is too long to be encoded as a whole.
///
/// # Errors
/// [`crate::Error::Encode`].
pub(super) fn check_whole(text: &str) -> Result<()> {
    if text.len() <= WHOLE {
        return Ok(());
    }
    let reason = format!(
        "there is no place where it can be cut without changing its tokens, and at most {WHOLE} bytes are encoded as a whole"
    );
    Err(encode_error(text.len(), &reason))
}

/// Encodes parts of at least `size` bytes that end with a word.
fn by_parts(engine: &dyn Whole, words: Words, text: &str, size: usize, out: &mut Vec<u32>) -> Result<bool> {
    let (length, mut from) = (out.len(), 0);
    while text.len() - from > 2 * size {
        let most = text.len().min(from + WHOLE);
        let Some(at) = (from + size..most).find(|&at| words.end(text, at)) else {
            out.truncate(length);
            return Ok(false);
        };
        engine.whole(&text[from..at], false, out)?;
        from = at;
    }
    engine.whole(&text[from..], false, out)?;
    Ok(true)
}

impl Words {
    /// Whether a word ends at `at`.
    fn end(self, text: &str, at: usize) -> bool {
        let lines = matches!(self, Self::Lines | Self::Characters);
        let chinese = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
        if !text.is_char_boundary(at) {
            return false;
        }
        let (before, next) = (text[..at].chars().next_back(), text[at..].chars().next());
        match (before, next) {
            (Some(before), Some(' ')) if self != Self::Unknown => ends_one(before, lines),
            (Some(before), Some('\n')) if lines => ends_one(before, lines),
            (Some(before), Some(next)) => self == Self::Characters && chinese(before) && chinese(next),
            _ => false,
        }
    }
}

/// Whether a character is unchanged by any normalisation, so that whitespace after it ends a word.
fn ends_one(c: char, lines: bool) -> bool {
    c.is_ascii_graphic() || c.is_alphanumeric() || (lines && c == '\u{3002}')
}

pub(super) fn added_tokens(definition: &Value) -> impl Iterator<Item = &Value> {
    definition["added_tokens"].as_array().into_iter().flatten()
}

/// Whether a space begins at `at` after a visible ASCII character, or a line end after an ASCII letter.
pub(super) fn is_cut(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    match bytes[at] {
        b' ' => bytes[at - 1].is_ascii_graphic(),
        b'\n' => bytes[at - 1].is_ascii_alphabetic(),
        _ => false,
    }
}

/// Whether texts may be cut at every [`is_cut`]: a word always ends before a space, as the patterns of GPT-2 and its kin
/// have it, and nothing looks beyond.
pub(super) fn separable(definition: &Value) -> bool {
    let rules = steps(&definition["pre_tokenizer"], "pretokenizers");
    let cuts = |step: &Value| match step["type"].as_str() {
        Some("ByteLevel") => step["use_regex"] != false,
        Some("Split") => step["pattern"]["Regex"].as_str().is_some_and(|pattern| {
            pattern.contains("\\p{L}+") && pattern.contains("\\s+(?!\\S)") && step["behavior"] == "Isolated"
        }),
        _ => false,
    };
    let level = |step: &Value| step["type"] == "ByteLevel";
    let plain = |step: &Value| level(step) && step["add_prefix_space"] == false;
    let ends_alone = |row: &Value| {
        let text = row["content"].as_str().unwrap_or_default();
        row["lstrip"] != true && row["rstrip"] != true && !(1..text.len()).any(|at| is_cut(text, at))
    };
    rules.iter().any(cuts)
        && rules.iter().any(plain)
        && rules.iter().filter(|step| level(step)).all(plain)
        && steps(&definition["normalizer"], "normalizers").iter().all(is_local)
        && added_tokens(definition).all(ends_alone)
}

pub(super) fn steps<'a>(step: &'a Value, list: &str) -> &'a [Value] {
    match step[list].as_array() {
        Some(steps) => steps,
        None if step.is_null() => &[],
        None => std::slice::from_ref(step),
    }
}

/// Where every text may be cut because everything before the model works word by word, and no added token contains or touches
/// whitespace.
fn by_words(definition: &Value) -> Words {
    let cuts = steps(&definition["pre_tokenizer"], "pretokenizers");
    let at_lines = |step: &Value| {
        matches!(step["type"].as_str(), Some("Whitespace" | "WhitespaceSplit" | "BertPreTokenizer"))
    };
    let at_spaces = |step: &Value| at_lines(step) || step["type"] == "Metaspace" && step["split"] != false;
    let inside =
        |step: &Value| at_spaces(step) || ["Digits", "Punctuation"].iter().any(|kind| step["type"] == *kind);
    let alone = |row: &Value| {
        let text = row["content"].as_str().unwrap_or_default();
        let plain = text.is_ascii() || row["normalized"] != true;
        plain && !text.contains(char::is_whitespace) && row["lstrip"] != true && row["rstrip"] != true
    };
    let holds = cuts.iter().all(inside)
        && steps(&definition["normalizer"], "normalizers").iter().all(is_local)
        && added_tokens(definition).all(alone);
    let characters = steps(&definition["normalizer"], "normalizers")
        .iter()
        .any(|step| step["type"] == "BertNormalizer" && step["handle_chinese_chars"] == true);
    match cuts.first().filter(|_| holds) {
        Some(first) if at_lines(first) && characters => Words::Characters,
        Some(first) if at_lines(first) => Words::Lines,
        Some(first) if at_spaces(first) => Words::Spaces,
        _ => Words::Unknown,
    }
}

/// Whether a normalizer does to the two sides of such a cut what it does to the whole, and leaves the space a space.
fn is_local(step: &Value) -> bool {
    const FORMS: [&str; 9] =
        ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Nmt", "Precompiled"];
    if step["type"] != "Replace" {
        return step["type"].as_str().is_some_and(|kind| FORMS.contains(&kind));
    }
    let content = step["content"].as_str().unwrap_or_default();
    let space = matches!(content, " " | "\u{2581}");
    match (step["pattern"]["String"].as_str(), step["pattern"]["Regex"].as_str()) {
        (Some(" "), _) | (_, Some(" {2,}" | "\\s+" | " +")) => space,
        (Some(text), _) => !text.contains(char::is_whitespace) && !content.contains(char::is_whitespace),
        _ => false,
    }
}

/// Whether a step, or one inside it, puts something before a text.
pub(super) fn marks_the_beginning(step: &Value) -> bool {
    let inside = ["normalizers", "pretokenizers"].iter().filter_map(|list| step[list].as_array()).flatten();
    let own = matches!(step["type"].as_str(), Some("Metaspace" | "Prepend"));
    own || step["add_prefix_space"] == true || inside.into_iter().any(marks_the_beginning)
}

#[cfg(test)]
mod tests {
    use super::super::Encode;
    use super::super::pipeline::PipelineEngine;
    use super::super::reference::ReferenceEngine;
    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn added(content: &str, id: u32, normalized: bool) -> Value {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": normalized, "special": true})
    }

    /// A small trained byte-level model.
    fn trained() -> Value {
        let dir = tempfile::tempdir().unwrap();
        let text = "Hello there, how are you? 123 été 你好，世界 don't fed abc abc fed\n".repeat(9);
        let options = crate::bpe::Options { vocab_size: 320, ..Default::default() };
        crate::bpe::train(&options, [text]).unwrap().write(dir.path()).unwrap();
        let path = dir.path().join("tokenizer.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    /// Definitions of every kind of model, with whether their texts are cut.
    fn definitions() -> Vec<(&'static str, Value, bool)> {
        let words = json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 20,
            "vocab": {"[UNK]": 0, "fed": 1, "##abc": 2, "a": 3, "##a": 4, ",": 5, "你": 6, "é": 7, "##z": 8, "don": 9, "1": 10}});
        let unigram = json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [["<unk>", 0.0], ["▁", -2.1],
            ["▁fed", -3.3], ["abc", -2.57], ["a", -4.1], ["b", -4.53], ["▁a", -3.51], ["c", -3.23], ["fe", -3.37], ["f", -6.7], ["d", -6.11], ["z", -5.03]]});
        let level = json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "fed": 1, "abc": 2, "é": 3}});
        let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
        let sequence = |list: &str, steps: Value| json!({"type": "Sequence", list: steps});
        let bert = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true});
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        let with = |model: &Value, normalizer: Value, cut: Value, unknown: &str| {
            json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer,
                   "added_tokens": [added(unknown, 0, false)], "pre_tokenizer": cut, "post_processor": null, "decoder": null, "model": model})
        };
        let mut out = vec![
            ("word pieces", with(&words, bert, json!({"type": "BertPreTokenizer"}), "[UNK]"), true),
            ("words", with(&level, json!({"type": "NFKC"}), json!({"type": "Whitespace"}), "[UNK]"), true),
            (
                "scored pieces of words",
                with(
                    &unigram,
                    sequence("normalizers", json!([{"type": "NFKC"}, spaces])),
                    sequence(
                        "pretokenizers",
                        json!([{"type": "WhitespaceSplit"}, metaspace("always", true)]),
                    ),
                    "<unk>",
                ),
                true,
            ),
        ];
        for (name, scheme) in [("always", "always"), ("first", "first"), ("never", "never")] {
            out.push((name, with(&unigram, json!({"type": "NFKC"}), metaspace(scheme, true), "<unk>"), true));
        }
        let strip = json!({"type": "Strip", "strip_left": true, "strip_right": true});
        out.push(("stripped", with(&unigram, strip, metaspace("always", true), "<unk>"), false));
        out.push(("unbroken", with(&unigram, Value::Null, metaspace("first", false), "<unk>"), false));
        let mut spaced = with(&level, Value::Null, json!({"type": "Whitespace"}), "[UNK]");
        spaced["added_tokens"].as_array_mut().unwrap().push(added("d a", 4, false));
        out.push(("a token with a space", spaced, false));
        // The fast engine leaves these to the reference.
        let mut lower = trained();
        lower["normalizer"] = json!({"type": "Lowercase"});
        lower["added_tokens"].as_array_mut().unwrap().push(added("<M>", 320, true));
        out.push(("merges of lower case", lower, true));
        let mut formed = trained();
        formed["normalizer"] = json!({"type": "NFC"});
        formed["added_tokens"].as_array_mut().unwrap().push(added("<M>", 320, true));
        out.push(("merges of a normal form", formed, true));
        let mut drawn = trained();
        drawn["model"]["dropout"] = json!(0.5);
        out.push(("merges that are drawn", drawn, false));
        out
    }

    fn texts() -> [String; 4] {
        let mut x = 7u32;
        let mut random = |n: usize| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as usize % n
        };
        let pick = [
            "a", "fed", " ", " ", "  ", "é", "你好", "<m>", "<M>", "<unk>", "[UNK]", "abc", "e\u{301}", "\n",
            "zz", "don't", "X ", "1 2", "\t", "\u{a0}", ",", "_ ", "▁", "d a",
        ];
        let disputed = ["\u{a7ce}", "\u{11de3}", "\u{32ff}", " \u{1e5ee}"];
        let plain: String = (0..20_000).map(|_| pick[random(pick.len())]).collect();
        let rare: String = (0..20_000)
            .map(|i| if i % 997 == 0 { disputed[random(4)] } else { pick[random(pick.len())] })
            .collect();
        let chinese = ["你", "好", "界", "。", "a", "\n", "，"];
        let lines: String = (0..9_000).map(|_| chinese[random(7)]).collect();
        [plain, rare, "abc".repeat(9_000), lines]
    }

    #[test]
    fn parts_have_the_ids_of_the_whole() {
        let texts = texts();
        for (name, definition, cuts) in definitions() {
            let reference = ReferenceEngine::new(Path::new("t"), definition.clone()).unwrap();
            let fast = PipelineEngine::new(Path::new("t"), definition).ok();
            for (n, text) in texts.iter().enumerate() {
                let mut want = vec![7];
                reference.whole(text, false, &mut want).unwrap();
                let mut engines: Vec<(&dyn Whole, &Long)> = vec![(&reference, &reference.long)];
                engines.extend(fast.as_ref().map(|fast| (fast as &dyn Whole, &fast.long)));
                for (engine, long) in engines {
                    let mut ids = vec![7];
                    let cut = long.encode_into(engine, text, 2 << 10, &mut ids).unwrap();
                    // The last two texts have no spaces.
                    assert!(cut == cuts || n >= 2, "{name}: text {n} by {}", engine.name());
                    assert!(!cut || ids == want, "{name}: text {n} by {}", engine.name());
                    assert!(cut || n < 3 || !name.contains("word"), "{name}: lines by {}", engine.name());
                    assert!(cut || ids == [7], "{name}: nothing is left of what cannot be cut");
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_cut_has_a_bound_that_is_said() {
        for (name, definition, cuts) in definitions() {
            if cuts || name == "unbroken" || name == "stripped" {
                continue;
            }
            let engine = ReferenceEngine::new(Path::new("t"), definition).unwrap();
            let error = engine.encode_into(&"ab ".repeat(WHOLE / 3 + 1), false, &mut Vec::new());
            let said = error.unwrap_err().to_string();
            assert!(said.contains("at most 8388608 bytes are encoded as a whole"), "{name}: {said}");
        }
    }
}
