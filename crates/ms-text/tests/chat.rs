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

/// Values: Jinja 3.1.6.
#[test]
fn slices_go_backwards_as_in_python() {
    for (source, want) in [
        ("{{ [][::-1] }}|{{ ''[::-1] }}|{{ ()[::-1] }}", "[]||()"),
        ("{{ [1, 2, 3][:0:-1] }}{{ [1, 2, 3][0:1:-1] }}{{ (1, 2, 3)[-9::-1] }}", "[3, 2][]()"),
        (
            "{% set n = -1 %}{{ ''[::n] }}{{ [1, 2, 3][::-n] }}{{ [1][::(-1)] }}{{ [1, 2][0:5:n] }}{{ (1, 2, 3, 4)[-9:9:n + 3] }}",
            "[1, 2, 3][1][](1, 3)",
        ),
        ("{% set n = -1 %}{{ 'abc'[n:9:-n] }}{{ [1, 2][5::n * 2] }}", "c[2]"),
        ("{{ 'abcd'[2::-2].upper() }}{{ messages[::-1][0].role }}", "CAassistant"),
        (
            "{% for m in messages[::-1] if m.role == 'user' %}{{ loop.index }}{{ m.role }}{% endfor %}",
            "1user",
        ),
    ] {
        let messages = json!([{"role": "user"}, {"role": "assistant"}]);
        let template = ChatTemplate::new(source).unwrap();
        assert_eq!(template.render(&messages, None, GenerationPrompt::Omit).unwrap(), want, "{source}");
    }
    for source in ["{{ [1][::-0] }}", "{{ nothing[::-1] }}"] {
        let template = ChatTemplate::new(source).unwrap();
        template.render(&json!([]), None, GenerationPrompt::Omit).expect_err(source);
    }
}
