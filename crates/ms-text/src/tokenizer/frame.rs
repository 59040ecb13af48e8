//! What stands around a text.

use super::SpecialToken;
use crate::folder::FolderFacts;
use crate::source::Source;
use serde_json::{Map, Value, json};

/// Whether a text gets a BOS before it and an EOS after it, where that is not the definition's to say.
pub(super) fn surround_of(source: &Source, facts: &FolderFacts) -> Option<(bool, bool)> {
    facts.surround.or(source.leaves_frame_to_class().then_some(facts.class_surround))
}

/// A post-processor that puts `before` and `eos` around every text.
pub(super) fn surround(before: &[SpecialToken], eos: Option<&SpecialToken>) -> Value {
    let mark = |token: &SpecialToken| json!({"SpecialToken": {"id": token.text, "type_id": 0}});
    let mut single: Vec<Value> = before.iter().map(mark).collect();
    single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
    single.extend(eos.map(mark));
    let mut pair = single.clone();
    pair.push(json!({"Sequence": {"id": "B", "type_id": 1}}));
    let tokens: Map<String, Value> = before
        .iter()
        .chain(eos)
        .map(|t| (t.text.clone(), json!({"id": t.text, "ids": [t.id], "tokens": [t.text]})))
        .collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
}
