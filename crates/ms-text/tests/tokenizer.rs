//! Tokenizer folders: trained ones, and the published ones among the shared references.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_text::{Detokenizer, GenerationPrompt, Tokenizer, bpe};
use proptest::prelude::*;
use std::path::Path;
use std::sync::OnceLock;

fn trained() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        write_trained(dir.path());
        Tokenizer::load(dir.path()).unwrap()
    })
}

fn write_trained(folder: &Path) {
    let text = "fn main() { let answer = 42; }\nThe quick brown fox jumps over the lazy dog.\n".repeat(8);
    let options = bpe::Options { vocab_size: 400, ..Default::default() };
    bpe::train(&options, [text]).unwrap().write(folder).unwrap();
}

#[test]
fn a_trained_folder_knows_its_special_tokens() {
    let t = trained();
    assert_eq!(t.token_to_id("<|pad|>"), Some(0));
    assert_eq!(t.eod().unwrap(), 1);
    assert_eq!(t.pad_id().unwrap(), 0);
    assert!(t.bos().is_none());
    assert_eq!(t.encode("<|im_start|>a<|im_end|>").unwrap(), [2, t.token_to_id("a").unwrap(), 3]);
    assert_eq!(t.stop_ids(), [1, 3]);
}

#[test]
fn training_twice_gives_the_same_bytes() {
    let texts = || (0..500).map(|i| format!("line {i} of {} some text, {}\n", i * 7 % 13, i % 5));
    let folder = || {
        let dir = tempfile::tempdir().unwrap();
        bpe::train(&bpe::Options { vocab_size: 320, ..Default::default() }, texts())
            .unwrap()
            .write(dir.path())
            .unwrap();
        (
            std::fs::read(dir.path().join("tokenizer.json")).unwrap(),
            std::fs::read(dir.path().join("tokenizer_config.json")).unwrap(),
        )
    };
    assert_eq!(folder(), folder());
}

#[test]
fn a_vocabulary_smaller_than_the_bytes_is_refused() {
    let error =
        bpe::train(&bpe::Options { vocab_size: 100, ..Default::default() }, ["x".to_string()]).err().unwrap();
    assert_eq!(
        error.to_string(),
        "cannot train a vocabulary of 100: 256 bytes and 4 special tokens need 260"
    );
}

#[test]
fn the_trained_chat_template_is_chatml() {
    let messages = serde_json::json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "?"}]);
    assert_eq!(
        trained().chat_template().unwrap().render(&messages, None, GenerationPrompt::Add).unwrap(),
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn a_chat_template_that_does_not_parse_is_named_by_its_file() {
    let dir = tempfile::tempdir().unwrap();
    write_trained(dir.path());
    let path = dir.path().join("tokenizer_config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["chat_template"] = "{% if %}".into();
    std::fs::write(&path, config.to_string()).unwrap();
    let said = || Tokenizer::load(dir.path()).unwrap().chat_template().err().unwrap().to_string();
    assert!(said().starts_with(&format!("{}: chat template: ", path.display())), "{}", said());
    let path = dir.path().join("chat_template.jinja");
    std::fs::write(&path, format!("{{{{ {}1 }}}}", "not ".repeat(501))).unwrap();
    assert!(
        said().starts_with(&format!("{}: chat template: expected at most", path.display())),
        "{}",
        said()
    );
}

#[test]
fn a_chat_template_gets_all_special_tokens_that_are_set() {
    let dir = tempfile::tempdir().unwrap();
    write_trained(dir.path());
    let path = dir.path().join("tokenizer_config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let asked = "{{ eos_token }} {{ pad_token }} {{ sep_token }} {{ cls_token }} {{ bos_token is defined }} \
                 {{ mask_token is defined }} {{ additional_special_tokens | join('+') }}";
    config["chat_template"] = asked.into();
    config["sep_token"] = "<|im_end|>".into();
    config["cls_token"] = serde_json::json!({"content": "<cls>"});
    config["additional_special_tokens"] = serde_json::json!(["<|im_start|>", {"content": "<tool>"}]);
    std::fs::write(&path, config.to_string()).unwrap();
    let template = Tokenizer::load(dir.path()).unwrap().chat_template().unwrap();
    assert_eq!(
        template.render(&serde_json::json!([]), None, GenerationPrompt::Omit).unwrap(),
        "<|endoftext|> <|pad|> <|im_end|> <cls> False False <|im_start|>+<tool>"
    );
    // As with transformers, a list of none is not set.
    config["additional_special_tokens"] = serde_json::json!([]);
    config["chat_template"] = "{{ additional_special_tokens is defined }}".into();
    std::fs::write(&path, config.to_string()).unwrap();
    let template = Tokenizer::load(dir.path()).unwrap().chat_template().unwrap();
    assert_eq!(template.render(&serde_json::json!([]), None, GenerationPrompt::Omit).unwrap(), "False");
}

#[test]
fn a_folder_without_a_tokenizer_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("no tokenizer in this folder (looked for tokenizer.json"), "{error}");
    std::fs::write(dir.path().join("tokenizer.model"), b"x").unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.model") && error.contains("SentencePiece"), "{error}");
    let error = Tokenizer::load(dir.path().join("absent")).unwrap_err().to_string();
    assert!(error.ends_with("absent: no such folder or file"), "{error}");
}

#[test]
fn broken_files_are_errors_that_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), b"{\"model\": 3}").unwrap();
    assert!(Tokenizer::load(dir.path()).unwrap_err().to_string().contains("tokenizer.json"));
    std::fs::write(dir.path().join("tokenizer_config.json"), b"[").unwrap();
    assert!(Tokenizer::load(dir.path()).unwrap_err().to_string().contains("tokenizer_config.json"));
}

/// A folder with this `tokenizer.json`.
fn of_definition(definition: &serde_json::Value) -> ms_text::Result<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), definition.to_string()).unwrap();
    Tokenizer::load(dir.path())
}

/// Ids as Python's `tokenizers` 0.23.3 gives them, with a warning.
#[test]
fn added_tokens_have_ids_in_the_order_of_the_file() {
    let row = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false})
    };
    let definition = serde_json::json!({"version": "1.0", "added_tokens": [row(3, "<y>"), row(5, ""), row(2, "<x>")],
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}});
    let tokenizer = of_definition(&definition).unwrap();
    assert_eq!(tokenizer.encode("a<x><y>").unwrap(), [0, 3, 2]);
    assert_eq!((tokenizer.token_to_id("<x>"), tokenizer.vocab_size()), (Some(3), 4));
}

#[test]
fn a_vocabulary_with_an_id_twice_is_refused_and_one_without_a_token_for_a_is_not() {
    let words = |vocab: serde_json::Value| serde_json::json!({"version": "1.0", "model": {"type": "WordLevel", "unk_token": "?", "vocab": vocab}});
    let error = of_definition(&words(serde_json::json!({"x": 0, "y": 0}))).unwrap_err().to_string();
    assert!(error.contains("model.vocab") && error.contains("once"), "{error}");
    let tokenizer = of_definition(&words(serde_json::json!({"x": 0, "y": 1}))).unwrap();
    assert_eq!(tokenizer.encode_with_special("y").unwrap(), [1]);
    assert!(tokenizer.encode("a").is_err());
}

#[test]
fn a_text_at_which_the_engine_stops_is_an_error() {
    let definition = serde_json::json!({"version": "1.0",
        "normalizer": {"type": "Strip", "strip_left": true, "strip_right": true},
        "added_tokens": [{"id": 2, "content": "\n", "single_word": false, "lstrip": false, "rstrip": true,
            "normalized": true, "special": false}],
        "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1}}});
    let tokenizer = of_definition(&definition).unwrap();
    let mut ids = vec![7];
    let error = tokenizer.encode_into("²s\n\u{2028}\u{1c}", &mut ids).unwrap_err().to_string();
    assert!(error.contains("internal error of the engine"), "{error}");
    assert_eq!(ids, [7]);
    assert_eq!(tokenizer.decode(&[], false).unwrap(), "");
}

#[test]
fn the_content_hash_ignores_layout_but_not_content() {
    let load = |text: &str| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), text).unwrap();
        Tokenizer::load(dir.path()).unwrap().content_hash().to_owned()
    };
    let a = r#"{"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}"#;
    let b = r#"{ "model": {"merges": [], "type": "BPE", "vocab": {"b": 1, "a": 0}}, "version": "1.0" }"#;
    let c = r#"{"version":"1.0","model":{"type":"BPE","vocab":{"a":1,"b":0},"merges":[]}}"#;
    assert_eq!(load(a), load(b));
    assert_ne!(load(a), load(c));
    assert_eq!(load(a).len(), 64);
}

#[test]
fn published_tokenizers_have_the_roles_and_sizes_upstream_counts() {
    let Some(root) = ms_testing::shared("data/tokenizers") else { return };
    type Row = (&'static str, usize, Option<u32>, u32, Option<u32>, &'static [u32]);
    let rows: [Row; 4] = [
        ("gpt2", 50257, Some(50256), 50256, None, &[15496, 995]),
        ("llama2", 32000, Some(1), 2, None, &[1, 15043, 3186]),
        ("llama3", 128256, Some(128000), 128001, None, &[128000, 9906, 1917]),
        ("qwen", 151669, None, 151643, Some(151643), &[9707, 1879]),
    ];
    for (name, size, bos, eos, pad, hello) in rows {
        let t = Tokenizer::load(root.join(name)).unwrap();
        assert_eq!(t.vocab_size(), size, "{name}");
        assert_eq!(t.bos().map(|x| x.id), bos, "{name}");
        assert_eq!(t.eod().unwrap(), eos, "{name}");
        assert_eq!(t.pad().map(|x| x.id), pad, "{name}");
        assert_eq!(t.encode_with_special("Hello world").unwrap(), hello, "{name}");
        let mut pieces = Detokenizer::new(&t, false);
        let mut text = String::new();
        for id in t.encode("naïve 汉字 🦀🦀 end").unwrap() {
            text.push_str(&pieces.push(id).unwrap().unwrap_or_default());
        }
        text.push_str(&pieces.finish().unwrap().unwrap_or_default());
        assert_eq!(text, "naïve 汉字 🦀🦀 end", "{name}");
    }
}

#[test]
fn the_published_chat_template_renders() {
    let Some(root) = ms_testing::shared("data/tokenizers") else { return };
    let t = Tokenizer::load(root.join("qwen")).unwrap();
    let Ok(template) = t.chat_template() else { return };
    let messages = serde_json::json!([{"role": "user", "content": "hi"}]);
    let text = template.render(&messages, None, GenerationPrompt::Add).unwrap();
    assert!(text.ends_with("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"), "{text:?}");
}

proptest! {
    #[test]
    fn any_text_survives_encoding_and_decoding(text in "\\PC{0,60}") {
        let t = trained();
        let ids = t.encode(&text).unwrap();
        prop_assert_eq!(t.decode(&ids, false).unwrap(), text);
    }

    #[test]
    fn streamed_pieces_join_to_the_decoded_text(ids in proptest::collection::vec(0u32..420, 0..60)) {
        let t = trained();
        let mut stream = Detokenizer::new(t, true);
        let mut text = String::new();
        for &id in &ids {
            text.push_str(&stream.push(id).unwrap().unwrap_or_default());
        }
        text.push_str(&stream.finish().unwrap().unwrap_or_default());
        // Broken bytes may be grouped into U+FFFD differently in pieces; everything else is equal.
        let plain = |s: &str| s.replace('\u{FFFD}', "");
        prop_assert_eq!(plain(&text), plain(&t.decode(&ids, true).unwrap()));
    }
}

#[test]
fn a_stream_behind_known_tokens_goes_on_where_their_text_ends() {
    let dir = tempfile::tempdir().unwrap();
    let json = r#"{"version": "1.0", "model": {"type": "BPE", "vocab": {"▁a": 0, "b": 1, "▁c": 2}, "merges": []},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}"#;
    std::fs::write(dir.path().join("tokenizer.json"), json).unwrap();
    let t = Tokenizer::load(dir.path()).unwrap();
    let text = |mut stream: Detokenizer<'_>, ids: &[u32]| -> String {
        ids.iter().filter_map(|&id| stream.push(id).unwrap()).collect()
    };
    assert_eq!(text(Detokenizer::new(&t, true), &[2, 1, 0]), "cb a");
    assert_eq!(text(Detokenizer::behind(&t, true, &[0, 1]), &[2, 1, 0]), " cb a");
    assert_eq!(text(Detokenizer::behind(&t, true, &[]), &[2, 1]), "cb");
    // Known tokens that end inside a character.
    let t = trained();
    let ids = t.encode("é!").unwrap();
    assert_eq!(text(Detokenizer::behind(t, true, &ids[..1]), &ids[1..]), "é!");
}

#[test]
fn what_was_given_up_as_no_character_is_not_given_twice() {
    let t = trained();
    // Three bytes, before them seven times the first of them: the eighth is given up, and then its character comes.
    let euro = t.encode("€x").unwrap();
    let ids = [vec![euro[0]; 7], euro].concat();
    let mut stream = Detokenizer::new(t, true);
    let mut text: String = ids.iter().filter_map(|&id| stream.push(id).unwrap()).collect();
    text.push_str(&stream.finish().unwrap().unwrap_or_default());
    assert_eq!(text, "\u{FFFD}".repeat(8) + "€x");
}

/// A folder of Llama's class with a vocabulary of this repository.
fn small_llama() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let model = ms_testing::golden("tokenizers/bpe.model");
    std::fs::copy(model, dir.path().join("tokenizer.model")).unwrap();
    let config = r#"{"tokenizer_class": "LlamaTokenizer", "legacy": false}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    dir
}

/// Values: transformers 4.57.6, `AutoTokenizer.from_pretrained(…, use_fast=False).encode(text, add_special_tokens=False)`.
#[test]
fn the_slow_class_of_llama_marks_texts_that_begin_with_a_blank() {
    let cases: [(&str, &[u32]); 9] = [
        (" a", &[632, 264]),
        ("a", &[264]),
        ("  both  ", &[632, 632, 289, 373, 645, 632, 632]),
        (" ", &[632, 632]),
        ("  ", &[632, 632, 632]),
        ("▁ a", &[632, 632, 264]),
        ("", &[]),
        ("\n x", &[632, 14, 632, 663]),
        (" <s> x", &[632, 632, 1, 632, 663]),
    ];
    let folder = small_llama();
    slow_class_gives(folder.path(), &cases);
    assert_eq!(Tokenizer::load(folder.path()).unwrap().encode(" a").unwrap(), [264]);
    // Before a token that has lost its role, too, as an end token has that a template replaces.
    let mut slow = Tokenizer::load(folder.path()).unwrap().as_slow();
    let before = slow.encode("</s> a").unwrap();
    slow.set_eos("<|im_end|>").unwrap();
    assert_eq!(slow.encode("</s> a").unwrap(), [&[632][..], &before].concat());
    assert_eq!(slow.encode("<|im_end|> a").unwrap()[1..], before[1..]);
    // Other classes have no other ids.
    let folder = tempfile::tempdir().unwrap();
    write_trained(folder.path());
    let load = || Tokenizer::load(folder.path()).unwrap();
    assert_eq!(load().as_slow().encode(" a").unwrap(), load().encode(" a").unwrap());
}

/// Values: transformers 4.51.3, `AutoTokenizer.from_pretrained(…, use_fast=False).encode(text, add_special_tokens=False)`.
#[test]
fn the_published_llama_has_the_same_slow_class() {
    let Some(folder) = ms_testing::shared("data/tokenizers/llama2") else { return };
    let cases: [(&str, &[u32]); 9] = [
        (" a", &[29871, 263]),
        ("a", &[263]),
        ("  both  ", &[259, 1716, 259]),
        (" ", &[259]),
        ("  ", &[1678]),
        ("▁ a", &[259, 263]),
        ("", &[]),
        ("\n x", &[29871, 13, 921]),
        (" <s> x", &[259, 1, 921]),
    ];
    slow_class_gives(&folder, &cases);
    let mut fast = Tokenizer::load(&folder).unwrap();
    assert_eq!(fast.encode(" a").unwrap(), [263]);
    fast.set_eos("<|im_end|>").unwrap();
    assert_eq!(fast.encode("</s>a").unwrap(), [2, 29874]);
    assert_eq!(fast.as_slow().encode("</s>a").unwrap(), [29871, 2, 29874]);
}

fn slow_class_gives(folder: &Path, cases: &[(&str, &[u32])]) {
    let slow = Tokenizer::load(folder).unwrap().as_slow();
    for &(text, want) in cases {
        assert_eq!(slow.encode(text).unwrap(), want, "{text:?}");
        assert_eq!(slow.encode_with_special(text).unwrap(), [&[1], want].concat(), "{text:?}");
    }
}
