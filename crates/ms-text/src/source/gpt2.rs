//! `vocab.json` and `merges.txt` in GPT-2's format; and `vocab.txt` of BERT.

use super::byte_level;
use serde_json::{Map, Value, json};

/// How a vocabulary with merges cuts text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// GPT-2's pattern; with a space prepended to a text if requested.
    Gpt2 { add_prefix_space: bool },
    /// Qwen2's pattern after NFC.
    Qwen2,
}

/// The `tokenizer.json` value of a vocabulary and its merges.
pub(super) fn definition(vocab: &[u8], merges: &[u8], cut: Cut) -> Result<Value, String> {
    let vocab: Map<String, Value> =
        serde_json::from_slice(vocab).map_err(|e| format!("the vocabulary: {e}"))?;
    let text = std::str::from_utf8(merges).map_err(|e| format!("the merges: {e}"))?;
    let mut pairs = Vec::new();
    for (number, line) in text.split('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() || number == 0 && line.starts_with("#version") {
            continue;
        }
        let (left, right) = line
            .split_once(' ')
            .filter(|(_, right)| !right.contains(' '))
            .ok_or_else(|| format!("the merges: line {}: expected two pieces", number + 1))?;
        pairs.push(json!([left, right]));
    }
    let model = byte_level::bpe(Value::Object(vocab), pairs, false);
    Ok(match cut {
        Cut::Gpt2 { add_prefix_space } => byte_level::gpt2_definition(model, add_prefix_space),
        Cut::Qwen2 => byte_level::definition(model, byte_level::QWEN, true),
    })
}

/// Whose code reads BERT's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BertCode {
    /// BERT's own, as Megatron has it: pieces without blanks around them, words of up to 200 characters.
    Megatron,
    /// transformers': pieces are lines as they are, and longer words than 100 characters are unknown.
    Transformers,
}

/// The `tokenizer.json` value of a `WordPiece` vocabulary, one piece per line.
pub(super) fn word_piece(
    vocab: &[u8],
    lower_case: bool,
    unknown: &str,
    code: BertCode,
) -> Result<Value, String> {
    let text = std::str::from_utf8(vocab).map_err(|e| format!("the vocabulary: {e}"))?;
    let mut pieces = Map::new();
    for (id, line) in text.lines().enumerate() {
        let piece = if code == BertCode::Megatron { line.trim() } else { line };
        pieces.insert(piece.to_owned(), Value::from(id));
    }
    let word_chars = if code == BertCode::Megatron { 200 } else { 100 };
    if !pieces.contains_key(unknown) {
        return Err(format!("the vocabulary has no {unknown}"));
    }
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": lower_case, "lowercase": lower_case
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": null,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": word_chars, "vocab": pieces
        }
    }))
}
