//! A chat template of any text: refused, or it is rendered, or says why not, in bounded time and memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{golden, seed};
use ms_text::{ChatTemplate, GenerationPrompt};
use serde_json::{Value, json};

/// Longest template, so that slow ones are slow for a reason.
const LONGEST: usize = 4096;

fn seeds() {
    let all: Vec<Value> = serde_json::from_slice(&golden("chat/templates.json")).unwrap_or_default();
    for (number, case) in all.iter().enumerate() {
        if let Some(text) = case[0].as_str().filter(|text| text.len() <= LONGEST) {
            seed(&number.to_string(), text.as_bytes());
        }
    }
    seed(
        "methods",
        b"{{ 'a b'.center(9).split()[0] ~ 'x'.zfill(3) ~ '%5d|%s' % (3, 'y') ~ ([1]*2)|tojson(indent=2) }}",
    );
    seed("loops", b"{% for i in range(3) %}{% if i is divisibleby 2 %}{% continue %}{% endif %}{{ loop.index }}{% endfor %}");
    seed(
        "macros",
        b"{% macro m(x, y=2) %}{{ x|upper }}{{ y }}{% endmacro %}{{ m('a') }}{% set ns = namespace(n=0) %}",
    );
}

fuzz_target!(init: seeds(), |text: &str| {
    if text.len() > LONGEST {
        return;
    }
    let Ok(mut template) = ChatTemplate::new(text) else { return };
    template.set_global("bos_token", "<s>");
    template.set_global("eos_token", "</s>");
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi \u{1F600}"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f",
            "arguments": {"a": 1.5, "b": [null, true]}}}]},
        {"role": "tool", "content": "3", "name": "f"},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let _ = template.render(&messages, Some(&tools), GenerationPrompt::Add);
    let _ = template.render(&json!([]), None, GenerationPrompt::Omit);
});
