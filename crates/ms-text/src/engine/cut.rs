//! Pre-tokenization: how a definition cuts text into words, by the fast engine's own rules over an empty model.

use crate::source::byte_level;
use fast_tokenizers::pipeline::{PipelineTokenizer, PreTokenizer as _, PreTokenizerScratch, Span};
use serde_json::{Value, json};

/// A definition with a model of bytes and nothing else, in the form the fast engine reads; `None` if it reads it not.
pub(super) fn frame(definition: &Value) -> Option<Value> {
    let mut frame = definition.clone();
    let letters = (0..=255u8).map(|byte| (byte_level::stand_in(byte).to_string(), json!(byte)));
    let model = &mut frame["model"];
    model["vocab"] = Value::Object(letters.collect());
    model["merges"] = json!([]);
    model["unk_token"] = Value::Null;
    model["byte_fallback"] = json!(false);
    model["ignore_merges"] = json!(false);
    fast_tokenizers::canonicalize_value(&mut frame).ok()?;
    Some(frame)
}

/// Cuts texts into words.
pub(crate) struct Words {
    frame: PipelineTokenizer,
    scratch: PreTokenizerScratch,
    spans: Vec<Span>,
}

impl Words {
    /// By a pre-tokenizer of `tokenizer.json`'s form over byte-level text.
    pub(crate) fn new(pre_tokenizer: &Value) -> std::result::Result<Self, String> {
        let definition = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null, "model": byte_level::bpe(json!({}), Vec::new(), false)
        });
        let frame = frame(&definition).ok_or("the pre-tokenizer has another form than the engine takes")?;
        let frame = fast_tokenizers::from_json(&frame.to_string()).map_err(|e| e.to_string())?;
        Ok(Self { frame, scratch: PreTokenizerScratch::default(), spans: Vec::new() })
    }

    /// Gives every word of `text` to `take`.
    pub(crate) fn each(&mut self, text: &str, mut take: impl FnMut(&str)) -> std::result::Result<(), String> {
        self.spans.clear();
        let rules = self.frame.get_pre_tokenizer();
        rules.pre_tokenize(text, &mut self.scratch, &mut self.spans).map_err(|e| e.to_string())?;
        self.spans.iter().for_each(|span| take(&text[span.range()]));
        Ok(())
    }
}
