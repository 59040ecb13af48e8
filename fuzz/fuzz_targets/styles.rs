//! A record of any JSON through every kind of handler with a template of every kind; the first byte chooses, or `MS_FUZZ_STYLE`
//! names the only handler.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_data::Upstream;
use ms_data::handler::{Handler, HandlerOptions, RecordKind};
use ms_fuzz::{Scratch, seed_of};
use ms_text::Tokenizer;
use std::sync::LazyLock;

/// A vocabulary of single letters, with the tokens that Hunyuan's records need: enough for every template.
const TOKENIZER: &str = r#"{"version":"1.0","added_tokens":[{"id":3,"content":"</s>","single_word":false,
"lstrip":false,"rstrip":false,"normalized":false,"special":true},{"id":4,"content":"<|extra_0|>","single_word":false,
"lstrip":false,"rstrip":false,"normalized":false,"special":true},{"id":5,"content":"<|eos|>","single_word":false,
"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":null,
"post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"<unk>":2},"unk_token":"<unk>"}}"#;

const CONFIG: &str = r#"{"eos_token":"</s>","unk_token":"<unk>","chat_template":
"{% for m in messages %}{% if m.role == 'assistant' %}<|extra_0|>{{ m.content }}<|eos|>{% else %}{{ m.content }}|{% endif %}{% endfor %}"}"#;

const STYLES: [&str; 20] = [
    "pretrain",
    "general-instruction",
    "alpaca",
    "sharegpt",
    "pairwise",
    "pairwise-sharegpt",
    "prm",
    "ppo",
    "r1",
    "r1-sharegpt",
    "alpaca-pretrain",
    "stackoverflow-pretrain",
    "sharegpt-pretrain",
    "openai",
    "llama-factory",
    "hunyuan",
    "belle",
    "moss-multi-turn",
    "moss",
    "leetcode",
];

/// A prompt template of each algorithm, and of each form of tools.
const TEMPLATES: [&str; 5] = ["qwen", "qwen3", "deepseek4", "llama2", "qwen_lf"];

static HANDLERS: LazyLock<Vec<Handler>> = LazyLock::new(|| {
    let scratch = Scratch::new();
    scratch.write("tokenizer.json", TOKENIZER.as_bytes());
    scratch.write("tokenizer_config.json", CONFIG.as_bytes());
    let tokenizer = || Tokenizer::load(scratch.path("")).expect("the vocabulary above is sound");
    let only = std::env::var("MS_FUZZ_STYLE").ok();
    let styles = STYLES.into_iter().filter(|style| only.as_deref().is_none_or(|only| only == *style));
    let kinds = styles.map(|style| RecordKind::of_style(style).expect("a style of `ms-preprocess`"));
    let kinds: Vec<RecordKind> = kinds.collect();
    let handler = |kind: RecordKind, template: &str| {
        let mut options = HandlerOptions::new(kind);
        options.upstream = Upstream::Head;
        options.prompt_type = Some(template.into());
        options.reward_tokens = vec!["a".into(), "b".into()];
        let mut plain = options.clone();
        plain.prompt_type = None;
        let made = Handler::new(options, tokenizer()).or_else(|_| Handler::new(plain, tokenizer()));
        made.unwrap_or_else(|e| panic!("{}: {e}", kind.name()))
    };
    TEMPLATES.iter().flat_map(|template| kinds.iter().map(move |kind| handler(*kind, template))).collect()
});

const RECORDS: [&str; 8] = [
    r#"{"text":"a b","prompt":"a","query":"b","response":"ab","instruction":"a","input":"b","output":"a","system":"b",
        "history":[["a","b"],["b","a"]]}"#,
    r#"{"conversations":[{"from":"system","value":"a"},{"from":"human","value":"a"},{"from":"gpt","value":"b"},
        {"from":"human","value":"<think>a</think>"},{"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{}}"},
        {"from":"observation","value":"a"},{"from":"gpt","value":"b"}],"tools":"[]","system":"a"}"#,
    r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"a","tool_calls":
        [{"id":"1","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"b","tool_call_id":"1"}],
        "tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"type":"string"}}}}}]}"#,
    r#"{"chosen":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"rejected":"a","prompt":"b",
        "conversations":[{"from":"human","value":"a"}]}"#,
    r#"{"chosen":{"from":"gpt","value":"a"},"rejected":{"from":"gpt","value":"b"},"conversations":[{"from":"human","value":"a"}]}"#,
    r#"{"input":"a b a","value":["a","b"],"label":"a b a","question":"a","answer":"b","problem":"a","solution":"b"}"#,
    r#"{"chat":{"turn_1":{"Human":"<|Human|>: a<eoh>\n","Inner Thoughts":"<|Inner Thoughts|>: None<eot>\n","Commands":
        "<|Commands|>: None<eoc>\n","Tool Responses":"<|Results|>: None<eor>\n","MOSS":"<|MOSS|>: b<eom>\n"}},"num_turns":1,
        "meta_instruction":"a","plain_text":"[Human]: a<eoh>[MOSS]: b<eom>"}"#,
    r#"{"code_with_data":"a","explanation_only":"b","title":"a","answers":[{"content":"b"}],"content":"a"}"#,
];

fn seeds() {
    for number in 0..(STYLES.len() * TEMPLATES.len()) as u8 {
        for (place, record) in RECORDS.iter().enumerate() {
            seed_of(number, &place.to_string(), record.as_bytes());
        }
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let Ok(serde_json::Value::Object(record)) = serde_json::from_slice(bytes) else { return };
    let handlers = &*HANDLERS;
    assert!(!handlers.is_empty());
    let handler = &handlers[usize::from(which) % handlers.len()];
    let _ = handler.keeps(&record, 0);
    let _ = handler.encode(&record);
});
