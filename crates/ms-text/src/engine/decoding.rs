//! Which definitions the engines for speed decode as the reference does.

use super::long::{added_tokens, steps};
use crate::source::byte_level;
use serde_json::Value;

/// Whether the decoder of a byte-level model is that of byte-level text and leaves all added tokens as they are; other models
/// are decoded by the same code.
///
/// The reference puts added tokens through the decoder like all others, and asks nobody but the decoder how text is spelled.
pub(super) fn is_plain(definition: &Value) -> bool {
    let level = |step: &Value| step["type"] == "ByteLevel";
    let cuts = steps(&definition["pre_tokenizer"], "pretokenizers");
    let forms = steps(&definition["normalizer"], "normalizers");
    if !cuts.iter().chain(forms).any(level) {
        return !level(&definition["decoder"]) && strips_once(&definition["decoder"]);
    }
    let letters: Vec<char> = (0..=255).map(byte_level::stand_in).collect();
    // A token with another letter in it is left as it is.
    let stays = |text: &str| {
        text.chars().all(|c| c.is_ascii_graphic()) || text.chars().any(|c| !letters.contains(&c))
    };
    level(&definition["decoder"])
        && added_tokens(definition).all(|row| row["content"].as_str().is_some_and(stays))
}

/// Whether a decoder strips only the text that it has joined before: the engines strip single tokens in different ways.
fn strips_once(decoder: &Value) -> bool {
    let mut fused = false;
    steps(decoder, "decoders").iter().all(|step| {
        fused |= step["type"] == "Fuse";
        step["type"] != "Sequence" && (fused || step["type"] != "Strip")
    })
}
