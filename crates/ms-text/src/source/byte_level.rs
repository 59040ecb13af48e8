//! GPT-2's stand-in characters for bytes, and the split patterns of byte-level vocabularies.

use serde_json::{Value, json};

/// Llama 3 and cl100k: numbers in groups of up to three digits.
pub(super) const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen: single digits.
pub(super) const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Kimi K2 (`tokenization_kimi.py`): runs of Han separately, case-aware words.
pub(super) const KIMI: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The character that stands for a byte: printable ones for themselves, the others counted up from U+0100.
pub(crate) fn stand_in(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + place).expect("U+0100 and the 67 after it are characters")
}

/// Normalizer, pre-tokenizer, post-processor and decoder around a byte-level BPE model that cuts by `pattern`.
pub(super) fn definition(model: Value, pattern: &str, nfc: bool) -> Value {
    let split =
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let mut out = frame(model);
    out["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
    if nfc {
        out["normalizer"] = json!({"type": "NFC"});
    }
    out
}

/// GPT-2's own cut, which the byte-level pre-tokenizer makes itself.
pub(super) fn gpt2_definition(model: Value, add_prefix_space: bool) -> Value {
    let mut out = frame(model);
    out["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": true});
    out
}

fn frame(model: Value) -> Value {
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    let mut out = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": bytes, "decoder": bytes
    });
    out["model"] = model;
    out
}

/// A BPE model. With `whole_words`, a word that is a token is that token whatever the merges say.
pub(crate) fn bpe(vocab: Value, merges: Vec<Value>, whole_words: bool) -> Value {
    let mut out = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": whole_words
    });
    // Moved in: they are most of a tokenizer.
    out["vocab"] = vocab;
    out["merges"] = Value::Array(merges);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_ins_are_those_of_gpt2() {
        assert_eq!([b' ', b'\n', b'a', 0, 0xAD, 0xFF].map(stand_in), ['Ġ', 'Ċ', 'a', 'Ā', 'Ń', 'ÿ']);
    }
}
