//! Chat templates compared with transformers.
#![allow(clippy::unwrap_used)] // a test stops at an unsound input

use ms_text::{ChatTemplate, GenerationPrompt};
use serde_json::json;

#[test]
fn templates_have_the_texts_of_transformers() {
    let path = ms_testing::golden("chat/templates.json");
    let cases: Vec<(String, String)> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let messages = json!([{"role": "user", "content": "Hi there"}]);
    let mut wrong = Vec::new();
    for (source, want) in &cases {
        let got = ChatTemplate::new(source).and_then(|t| t.render(&messages, None, GenerationPrompt::Omit));
        match got {
            Ok(got) if got == *want => {}
            got => wrong.push(format!("{source:?}: expected {want:?}, got {got:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
