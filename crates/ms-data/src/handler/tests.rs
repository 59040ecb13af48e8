//! Handlers that no golden covers, tested against their rules; and what `--strict` refuses.

use super::*;
use ms_text::bpe;
use serde_json::json;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = bpe::Options { vocab_size: 300, min_frequency: 1 };
        bpe::train(&options, ["some words, and more words".to_string()]).unwrap().write(dir.path()).unwrap();
        Self { dir }
    }

    fn handler(&self, options: HandlerOptions) -> Handler {
        Handler::new(options, Tokenizer::load(self.dir.path()).unwrap()).unwrap()
    }
}

fn encode(handler: &Handler, record: Value) -> std::result::Result<Encoded, String> {
    let Value::Object(record) = record else { panic!("a record is an object") };
    handler.encode(&record).map_err(|reason| reason.to_string())
}

fn row(handler: &Handler, record: Value) -> Row {
    match encode(handler, record).unwrap() {
        Encoded::Row(row) => row,
        other => panic!("{other:?}"),
    }
}

fn text(handler: &Handler, column: &Option<Vec<i32>>) -> String {
    let ids: Vec<u32> = column.as_ref().unwrap().iter().filter(|id| **id >= 0).map(|id| *id as u32).collect();
    handler.tokenizer().decode(&ids, false).unwrap()
}

#[test]
fn an_alpaca_text_reads_none_where_a_field_is_missing() {
    let bench = Bench::new();
    let handler =
        bench.handler(HandlerOptions { append_eod: true, ..HandlerOptions::new(RecordKind::AlpacaPretrain) });
    assert_eq!(handler.columns(), ["text"]);
    let row = row(&handler, json!({"instruction": "do", "input": "this", "output": "done"}));
    let got = text(&handler, &row.columns[0]);
    assert!(got.ends_with("user's questions.USER: Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\ndo\n\n### Input:\nthis\n\n### Response: ASSISTANT: done<|endoftext|>"), "{got}");
    let row = super::tests::row(&handler, json!({"instruction": "do", "input": ""}));
    assert!(
        text(&handler, &row.columns[0])
            .ends_with("do\n\n###None\n\n### Response: ASSISTANT: None<|endoftext|>")
    );
}

#[test]
fn a_belle_text_is_cut_into_turns_and_the_output_takes_the_last_place() {
    let bench = Bench::new();
    let handler = bench.handler(HandlerOptions::new(RecordKind::BelleMultiTurn));
    let record = json!({"instruction": "Human: a \nAssistant: b\nHuman: c\nAssistant: ", "output": " d "});
    let row = row(&handler, record);
    let got = text(&handler, &row.columns[0]);
    assert!(
        got.ends_with("\n### Instruction:\na\n### Response:\nb\n### Instruction:\nc\n### Response:\nd\n"),
        "{got}"
    );
    assert_eq!(text(&handler, &row.columns[2]), "d\n", "the last answer alone is trained");
}

#[test]
fn moss_turns_become_sequences_of_one_document() {
    let bench = Bench::new();
    let handler = bench.handler(HandlerOptions::new(RecordKind::MossInstruction));
    let record = json!({"chat": {"turn_1": {"Human": "<|Human|>: a<eoh>\n", "MOSS": "<|MOSS|>: b<eom>\n"},
        "turn_2": {"Human": "<|Human|>: c<eoh>", "MOSS": "<|MOSS|>: d<eom>"}, "turn_3": null}});
    let Encoded::Rows(rows) = encode(&handler, record.clone()).unwrap() else { panic!() };
    assert_eq!(rows.iter().map(|row| row.continues).collect::<Vec<_>>(), [true, false]);
    let ends: Vec<_> = rows.iter().map(|row| text(&handler, &row.columns[2])).collect();
    assert_eq!(ends, ["b\n", "d\n"]);
    let handler = bench.handler(HandlerOptions::new(RecordKind::MossMultiTurn));
    let row = row(&handler, record);
    let (ids, labels) = (row.columns[0].as_ref().unwrap(), row.columns[2].as_ref().unwrap());
    let one = |text: &str| handler.tokenizer().encode(text).unwrap()[0] as i32;
    assert_eq!(*ids, [195, one("a"), 196, one("b"), 195, one("c"), 196, one("d"), 1]);
    assert_eq!(*labels, [1, -100, -100, one("b"), 1, -100, -100, one("d"), 1]);
}

#[test]
fn leetcode_problems_end_where_their_code_begins() {
    let bench = Bench::new();
    let handler = bench.handler(HandlerOptions::new(RecordKind::LeetcodePython));
    let record = json!({"code_with_problem": " two sums \n```py\nx", "code_only": "x = 1", "explanation_only": "because"});
    let row = row(&handler, record);
    assert!(
        text(&handler, &row.columns[0])
            .ends_with("### Instruction:\ntwo sums\n### Response:\nx = 1\nbecause\n")
    );
    assert_eq!(text(&handler, &row.columns[2]), "x = 1\nbecause\n");
}

#[test]
fn hunyuan_trains_from_each_opening_token_to_its_end() {
    let bench = Bench::new();
    let path = bench.dir.path().join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["additional_special_tokens"] = json!(["<|extra_0|>", "<|eos|>"]);
    config["chat_template"] = json!(
        "{% for m in messages %}{% if m.role == 'assistant' %}<|extra_0|>{{ m.content }}<|eos|>{% else %}{{ m.content }}|{% endif %}{% endfor %}"
    );
    std::fs::write(&path, config.to_string()).unwrap();
    let handler = bench.handler(HandlerOptions::new(RecordKind::Hunyuan));
    let say = |role: &str, value: &str| json!({"from": role, "value": value});
    let record = json!({"conversations": [say("system", "s"), say("human", "u"), say("gpt", "a"),
        say("system", ""), say("human", "v"), say("gpt", "b")]});
    let row = row(&handler, record);
    assert_eq!(text(&handler, &row.columns[0]), "s|u|<|extra_0|>a<|eos|>|v|<|extra_0|>b<|eos|>");
    assert_eq!(text(&handler, &row.columns[2]), "<|extra_0|>a<|eos|><|extra_0|>b<|eos|>");
    let broken = json!({"conversations": [say("human", "u"), say("gpt", "a"), say("gpt", "a")]});
    assert_eq!(encode(&handler, broken).unwrap(), Encoded::Dropped);
}

#[test]
fn what_upstream_does_in_silence_is_refused_with_its_reason() {
    let bench = Bench::new();
    let strict = |kind: RecordKind, seq_length| {
        let map_keys = json!({"messages": "conversations", "tools": "tools"}).as_object().cloned();
        bench.handler(HandlerOptions {
            prompt_type: Some("qwen".into()),
            strict: true,
            seq_length,
            map_keys: (kind == RecordKind::SharegptInstruction).then_some(map_keys).flatten(),
            ..HandlerOptions::new(kind)
        })
    };
    let say = |role: &str, value: Value| json!({"from": role, "value": value});
    let chat = |messages: Vec<Value>| json!({"conversations": messages});
    let handler = strict(RecordKind::SharegptInstruction, None);
    let error = |record: Value| encode(&handler, record).unwrap_err();
    assert!(
        error(chat(vec![say("gpt", "a".into()), say("human", "b".into())]))
            .contains("roles do not alternate")
    );
    assert!(error(chat(vec![say("human", "a".into())])).contains("leaves such a record out"));
    let null = chat(vec![
        say("human", Value::Null),
        say("gpt", "x".into()),
        say("human", "a".into()),
        say("gpt", "x".into()),
    ]);
    assert!(encode(&handler, null).is_err());
    assert!(error(chat(vec![say("human", "{{idx}}".into()), say("gpt", "x".into())])).contains("{{idx}}"));
    let call = vec![
        say("human", "a".into()),
        say("function_call", "x".into()),
        say("observation", "b".into()),
        say("gpt", "y".into()),
    ];
    assert!(error(chat(call)).contains("empty call"));
    let mut tools = chat(vec![say("human", "a".into()), say("gpt", "x".into())]);
    tools["tools"] = json!("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
    assert!(error(tools).contains("vanish"));
    let handler = strict(RecordKind::AlpacaInstruction, Some(20));
    let error = |record: Value| encode(&handler, record).unwrap_err();
    assert!(error(json!({"instruction": "a", "output": ["x", "y"]})).contains("empty conversation"));
    assert!(error(json!({"instruction": "a", "output": "x".repeat(40)})).contains("--seq-length 20"));
    let handler = strict(RecordKind::AlpacaPairwise, None);
    let record = json!({"instruction": "a", "chosen": ["x", "y"], "rejected": ["z", "w"]});
    assert!(encode(&handler, record).unwrap_err().contains("lists of answers"));
    let missing = HandlerOptions {
        prompt_type: Some("chatglm3".into()),
        strict: true,
        ..HandlerOptions::new(RecordKind::AlpacaInstruction)
    };
    let error = Handler::new(missing, Tokenizer::load(bench.dir.path()).unwrap()).err().unwrap().to_string();
    assert!(error.contains("[gMASK]"), "{error}");
}

#[test]
fn handlers_of_upstreams_head_ask_for_it() {
    let bench = Bench::new();
    // OpenAI's messages are taken in both versions.
    let options = HandlerOptions {
        prompt_type: Some("qwen".into()),
        ..HandlerOptions::new(RecordKind::OpenAiInstruction)
    };
    Handler::new(options, Tokenizer::load(bench.dir.path()).unwrap()).unwrap();
    let kind = RecordKind::of_handler("SharegptPretrainHandler").unwrap();
    let error =
        Handler::new(HandlerOptions::new(kind), Tokenizer::load(bench.dir.path()).unwrap()).err().unwrap();
    assert!(error.to_string().contains("--upstream head"), "{error}");
    assert!(RecordKind::of_handler("HuggingfaceEncoder").unwrap_err().to_string().contains("internal class"));
}

#[test]
fn a_text_keeps_what_looks_like_a_turns_number_only_with_llama2() {
    let bench = Bench::new();
    for (name, kept) in [("llama2", true), ("qwen", false)] {
        let options = HandlerOptions {
            prompt_type: Some(name.to_owned()),
            ..HandlerOptions::new(RecordKind::AlpacaInstruction)
        };
        let handler = bench.handler(options);
        let row = row(&handler, json!({"instruction": "turn {{idx}}!", "input": "", "output": "yes"}));
        let got = text(&handler, &row.columns[0]);
        assert_eq!(got.contains("turn {{idx}}!"), kept, "{name}: {got}");
        assert_eq!(got.contains("turn 0!"), !kept, "{name}: {got}");
    }
}

#[test]
fn earlier_thoughts_of_deepseek4_stay_only_where_an_effort_is_asked_for() {
    let bench = Bench::new();
    let handler = |kind, effort, drop_thinking| {
        bench.handler(HandlerOptions {
            prompt_type: Some("deepseek4".to_owned()),
            enable_thinking: Some(true),
            reasoning_effort: effort,
            drop_thinking,
            upstream: Upstream::Head,
            ..HandlerOptions::new(kind)
        })
    };
    let sample = |effort, drop_thinking| {
        let handler = handler(RecordKind::OpenAiInstruction, effort, drop_thinking);
        let messages = json!([
            {"role": "user", "content": "some"},
            {"role": "assistant", "content": "words", "reasoning_content": "first thought"},
            {"role": "user", "content": "more"},
            {"role": "assistant", "content": "and", "reasoning_content": "last thought"},
        ]);
        let row = row(&handler, json!({"messages": messages}));
        text(&handler, &row.columns[0]).contains("first thought")
    };
    // A thought in the text is one, whatever other messages have.
    let mixed = json!([
        {"role": "user", "content": "some"},
        {"role": "assistant", "content": "<think>first thought</think>words"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "and", "reasoning_content": "last thought"},
    ]);
    for drop_thinking in [false, true] {
        let handler = handler(RecordKind::OpenAiInstruction, Some(Effort::High), drop_thinking);
        let row = row(&handler, json!({"messages": mixed}));
        let text = text(&handler, &row.columns[0]);
        assert_eq!(text.contains("first thought"), !drop_thinking, "{text}");
    }
    assert!(sample(Some(Effort::High), false));
    assert!(!sample(Some(Effort::High), true));
    assert!(!sample(None, true));
    assert!(!sample(None, false), "upstream changes its template only beside an effort");
    for kind in [RecordKind::AlpacaPrompts, RecordKind::SharegptR1, RecordKind::AlpacaPairwise] {
        let template = handler(kind, Some(Effort::High), false).template.unwrap();
        assert!(template.drop_thinking, "{kind:?}: upstream changes its template for instructions only");
    }
}

#[test]
fn a_record_whose_answer_is_null_or_missing_is_left_out() {
    let bench = Bench::new();
    let handler = |kind| {
        bench.handler(HandlerOptions { prompt_type: Some("default".into()), ..HandlerOptions::new(kind) })
    };
    let handlers = [RecordKind::AlpacaInstruction, RecordKind::AlpacaPairwise].map(handler);
    for handler in &handlers {
        let record =
            json!({"instruction": "a", "input": "", "output": null, "chosen": null, "rejected": "c"});
        assert_eq!(encode(handler, record).unwrap(), Encoded::Dropped);
        assert_eq!(encode(handler, json!({"instruction": "a", "input": ""})).unwrap(), Encoded::Dropped);
    }
}

#[test]
fn every_judgement_is_one_of_the_reward_tokens() {
    let handler = Bench::new().handler(HandlerOptions {
        placeholder_token: "x".into(),
        reward_tokens: vec!["+".into(), "-".into()],
        ..HandlerOptions::new(RecordKind::ProcessReward)
    });
    let label = |values: Value| encode(&handler, json!({"input": "ax", "value": values}));
    let Ok(Encoded::Row(row)) = label(json!(["-", "+"])) else { panic!("it becomes a row") };
    let minus = handler.tokenizer().token_to_id("-").unwrap() as i32;
    assert_eq!(row.columns[1], Some(vec![crate::sft::IGNORED, minus]));
    assert!(label(json!(["-", "?"])).unwrap_err().contains("\"?\" is not among the reward tokens"));
    assert!(label(json!([])).unwrap_err().contains("fewer judgements"));
}
