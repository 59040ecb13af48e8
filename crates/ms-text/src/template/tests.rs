//! Templates compared with the upstream table.

use super::*;
use crate::bpe;
use serde_json::Value;

fn tokenizer() -> (tempfile::TempDir, Tokenizer) {
    let dir = tempfile::tempdir().unwrap();
    let options = bpe::Options { vocab_size: 300, min_frequency: 1 };
    bpe::train(&options, ["hello there, how are you".to_string()]).unwrap().write(dir.path()).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    (dir, tokenizer)
}

#[test]
fn the_table_equals_the_specification() {
    let Some(path) = ms_testing::shared("spec/data-templates.json") else { return };
    let spec: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut checked = 0;
    for (name, want) in spec["templates"].as_object().unwrap() {
        let got = Template::named(name).unwrap();
        let lists = [
            ("prefix", &got.prefix),
            ("system", &got.system),
            ("user", &got.user),
            ("assistant", &got.assistant),
            ("observation", &got.observation),
            ("function", &got.function),
            ("separator", &got.separator),
        ];
        for (field, pieces) in lists {
            let want: Vec<Piece> = want[field]
                .as_array()
                .unwrap()
                .iter()
                .map(|p| match (p["text"].as_str(), p["token"].as_str(), p["special"].as_str()) {
                    (Some(text), _, _) => Piece::Text(text.into()),
                    (_, Some(token), _) => Piece::Token(token.into()),
                    (_, _, Some("bos")) => Piece::Bos,
                    _ => Piece::Eos,
                })
                .collect();
            assert_eq!(pieces, &want, "{name} {field}");
        }
        assert_eq!(got.default_system, want["default_system"], "{name}");
        assert_eq!(serde_json::json!(got.stop_words), want["stop_words"], "{name}");
        assert_eq!(
            (got.efficient_eos, got.replace_eos),
            (want["efficient_eos"] == true, want["replace_eos"] == true),
            "{name}"
        );
        assert_eq!(got.head_only, want["since"] == "HEAD", "{name}");
        let algorithm = match got.algorithm {
            Algorithm::Basic => "basic",
            Algorithm::Llama2 => "llama2",
            Algorithm::LlamaFactory => "lf",
            Algorithm::Reasoning => "reasoning",
            Algorithm::DeepSeek4 => "deepseek4",
        };
        assert_eq!(algorithm, want["algorithm"], "{name}");
        if let Some(words) = want.get("thought_words") {
            assert_eq!(&serde_json::json!([got.thought_words.0, got.thought_words.1]), words, "{name}");
        }
        checked += 1;
    }
    assert_eq!(checked, Template::names().count());
}

#[test]
fn replacing_the_end_comes_before_padding_falls_back_to_it() {
    let (_dir, mut tokenizer) = tokenizer();
    let size = tokenizer.vocab_size();
    Template::named("llama3").unwrap().adjust(&mut tokenizer).unwrap();
    let eos = tokenizer.eos().unwrap();
    assert_eq!((eos.text.as_str(), eos.id as usize), ("<|eot_id|>", size), "added with the next free id");
    assert_eq!(tokenizer.pad().unwrap().text, "<|pad|>", "a padding token that exists stays");
    assert_eq!(tokenizer.vocab_size(), size + 1);
}

#[test]
fn each_piece_is_tokenized_on_its_own() {
    let (_dir, mut tokenizer) = tokenizer();
    let template = Template::named("qwen").unwrap();
    template.adjust(&mut tokenizer).unwrap();
    let messages = [Message::new(Role::User, "hello"), Message::new(Role::Assistant, "there")];
    let turns = template.encode(&tokenizer, &messages, "", "", usize::MAX).unwrap();
    assert_eq!(turns.len(), 1);
    let text = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
    assert_eq!(
        text(&turns[0].source),
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(text(&turns[0].target), "there<|im_end|>");
}

#[test]
fn an_unknown_template_lists_the_known_ones() {
    let error = Template::named("qwem").unwrap_err().to_string();
    assert!(error.contains("\"qwem\"") && error.contains("qwen_r1"), "{error}");
}

#[test]
fn a_users_file_wins_over_the_table_and_has_all_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.json");
    let json = r#"[{"name": "mine", "format_user": {"slots": [["bos_token"], "Q {{content}}", {"token": "<A>"}]}, "stop_words": ["<A>"]},
                   {"name": "qwen", "format_user": {"slots": ["one {{content}}"]}},
                   {"name": "qwen", "format_user": {"slots": ["other {{content}}"]}}]"#;
    std::fs::write(&path, json).unwrap();
    let mine = Template::from_file("mine", &path).unwrap();
    assert_eq!(mine.user, [Piece::Bos, Piece::Text("Q {{content}}".into()), Piece::Token("<A>".into())]);
    assert_eq!(mine.assistant, [Piece::Text("{{content}}".into()), Piece::Eos]);
    let changed = Template::from_file("qwen", &path).unwrap();
    assert_eq!(changed.user, [Piece::Text("other {{content}}".into())]);
    assert_ne!(changed, Template::named("qwen").unwrap());
    let error = Template::from_file("llama3", &path).unwrap_err().to_string();
    assert!(error.contains("\"llama3\"; known: mine, qwen, qwen in ") && error.contains("t.json"), "{error}");
    std::fs::write(&path, r#"[{"name": "mine", "format_user": {"slots": [7]}}]"#).unwrap();
    let error = Template::from_file("mine", &path).unwrap_err().to_string();
    assert!(error.contains("format_user.slots"), "{error}");
}

#[test]
fn a_users_file_names_classes_and_formats_of_tools_as_upstreams_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.json");
    let entries = serde_json::json!([
        {"name": "llama2"},
        {"name": "llama2_chat", "template_class": "Template"},
        {"name": "own4", "template_class": "DeepSeek4Template"},
        {"name": "qwen3", "template_class": "ReasoningTemplate", "format_tools": {"tool_format": "qwen"}},
        {"name": "bailing_mini", "format_tools": {"tool_format": "ling"}},
        {"name": "qwen", "format_tools": {"tool_format": "qwen"}},
        {"name": "chatml", "format_tools": {"tool_format": "default"}},
        {"name": "other", "template_class": "OtherTemplate"},
    ]);
    std::fs::write(&path, entries.to_string()).unwrap();
    let read = |name: &str| Template::from_file(name, &path).unwrap();
    let classes = ["llama2", "llama2_chat", "own4", "qwen3"].map(|name| read(name).algorithm);
    assert_eq!(classes, [Algorithm::Llama2, Algorithm::Basic, Algorithm::DeepSeek4, Algorithm::Reasoning]);
    let tools = ["llama2", "qwen3", "bailing_mini", "qwen", "chatml"].map(|name| read(name).tools);
    let none = ToolFormat::None;
    assert_eq!(tools, [ToolFormat::Default, ToolFormat::Qwen, ToolFormat::Qwen, none, none]);
    let error = Template::from_file("other", &path).unwrap_err().to_string();
    assert!(error.contains("OtherTemplate"), "{error}");
    let as_its_code_has_it = serde_json::json!([{"name": "qwen3", "format_tools": {"tool_format": "qwen3"}}]);
    std::fs::write(&path, as_its_code_has_it.to_string()).unwrap();
    assert_eq!(Template::from_file("qwen3", &path).unwrap().tools, ToolFormat::Qwen);
}

#[test]
fn a_users_file_may_have_a_system_text_in_parts_and_lists_have_places_for_what_they_show() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.json");
    let read = |entry: serde_json::Value| {
        std::fs::write(&path, serde_json::json!([entry]).to_string()).unwrap();
        Template::from_file("own", &path).map_err(|error| error.to_string())
    };
    let own = read(serde_json::json!({"name": "own", "default_system": ["You are ", "kind."]})).unwrap();
    assert_eq!(own.default_system, "You are kind.");
    for (field, slot, says) in [
        ("user", "no place", "format_user.slots: expected {{content}}"),
        ("function", "{{name}}", "format_function.slots: expected {{arguments}}"),
        ("separator", "{{content}}", "format_separator.slots: {{content}} has no value there"),
    ] {
        let entry = serde_json::json!({"name": "own", format!("format_{field}"): {"slots": [slot]}});
        let error = read(entry).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    let error = read(serde_json::json!({"name": "own", "replace_eos": true})).unwrap_err();
    assert!(error.contains("replace_eos: expected a first one of stop_words"), "{error}");
    assert!(
        read(serde_json::json!({"name": "own", "default_system": 7})).unwrap_err().contains("default_system")
    );
}

#[test]
fn a_call_is_filled_in_wherever_it_has_a_place() {
    let (_dir, tokenizer) = tokenizer();
    let mut template = Template::named("default").unwrap();
    template.function = vec![Piece::Text("{{name}}({{arguments}}) {{name}}".into())];
    let call = Message::new(Role::Function, r#"{"name": "f", "arguments": {"a": 1}}"#);
    let turns =
        template.encode(&tokenizer, &[Message::new(Role::User, "hi"), call], "", "", usize::MAX).unwrap();
    assert_eq!(tokenizer.decode(&turns[0].target, false).unwrap(), r#"f({"a": 1}) f"#);
}
