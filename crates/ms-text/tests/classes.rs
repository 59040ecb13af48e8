//! What the files around a vocabulary, and the tokenizer's class, change in it.
//!
//! Values: transformers 4.43.2 and 4.57.6, `AutoTokenizer.from_pretrained(…)`, its `encode` and `len`.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_text::{GenerationPrompt, SpecialToken, Tokenizer};
use serde_json::{Value, json};

/// A small byte-level vocabulary with two added tokens, the second of them not special.
fn vocabulary() -> Value {
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": special})
    };
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(3, "<x>", true), added(6, "<z>", false)],
        "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "merges": ["Ġ a"], "vocab": {"a": 0, "b": 1, "Ġ": 2, "<x>": 3, "<": 4, "Ġa": 5,
            "<z>": 6, "y": 7, ">": 8, "<y>": 9, "x": 10}}
    })
}

/// The tokenizer of a folder of these files.
fn load(files: &[(&str, &Value)]) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    for (name, value) in files {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    Tokenizer::load(dir.path()).unwrap()
}

const TEXTS: [&str; 3] = ["a <x>b", "a <y>b <z> a", "a <w> <v>b"];

struct Case {
    config: Value,
    /// Another file, and what it holds.
    beside: (&'static str, Value),
    size: usize,
    /// Begin, end, padding, unknown token.
    roles: [Option<u32>; 4],
    ids: [&'static [u32]; 3],
    /// The tokens `a<x><z><y>` without special ones.
    plain: &'static str,
}

const ONE: &[u32] = &[0, 2, 3, 1];
const TWO: &[u32] = &[0, 2, 4, 7, 8, 1, 2, 6, 5];
const THREE: &[u32] = &[0, 2, 4, 8, 2, 4, 8, 1];

fn cases() -> Vec<Case> {
    let flags = |content: &str, lstrip: bool, special: bool| {
        json!({"content": content, "lstrip": lstrip, "rstrip": false, "normalized": false, "single_word": false,
               "special": special})
    };
    let class = |class: &str, more: Value| {
        let mut config = json!({"tokenizer_class": class});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let fast = |more: Value| class("PreTrainedTokenizerFast", more);
    let map = |value: Value| ("special_tokens_map.json", value);
    let none = || map(json!({}));
    vec![
        // The map wins over the configuration,
        Case {
            config: fast(json!({"eos_token": "<x>", "pad_token": "<x>"})),
            beside: map(json!({"eos_token": "<y>", "bos_token": flags("<w>", true, true)})),
            size: 12,
            roles: [Some(11), Some(9), Some(3), None],
            ids: [ONE, &[0, 2, 9, 1, 2, 6, 5], &[0, 11, 2, 4, 8, 1]],
            plain: "a<z>",
        },
        // unless that lists the added tokens, and then also how they match.
        Case {
            config: fast(json!({"eos_token": "<x>", "added_tokens_decoder":
                {"3": flags("<x>", true, true), "6": flags("<z>", false, false)}})),
            beside: map(json!({"eos_token": "<y>", "bos_token": "<w>"})),
            size: 11,
            roles: [None, Some(3), None, None],
            ids: [&[0, 3, 1], TWO, THREE],
            plain: "a<z><y>",
        },
        Case {
            config: fast(json!({"additional_special_tokens": ["<y>"]})),
            beside: map(json!({"additional_special_tokens": ["<w>", "<y>"]})),
            size: 12,
            roles: [None; 4],
            ids: [ONE, &[0, 2, 9, 1, 2, 6, 5], &[0, 2, 11, 2, 4, 8, 1]],
            plain: "a<z>",
        },
        // An added token with a role is special, unless the configuration's list leaves it out.
        Case {
            config: fast(json!({"eos_token": "<z>"})),
            beside: none(),
            size: 11,
            roles: [None, Some(6), None, None],
            ids: [ONE, TWO, THREE],
            plain: "a<y>",
        },
        Case {
            config: fast(
                json!({"eos_token": "<z>", "added_tokens_decoder": {"6": flags("<z>", false, false)}}),
            ),
            beside: none(),
            size: 11,
            roles: [None, Some(6), None, None],
            ids: [ONE, TWO, THREE],
            plain: "a<y>",
        },
        Case {
            config: fast(json!({"eos_token": "<z>", "added_tokens_decoder": {}})),
            beside: none(),
            size: 11,
            roles: [None, Some(6), None, None],
            ids: [ONE, TWO, THREE],
            plain: "a<z><y>",
        },
        Case {
            config: fast(json!({"eos_token": "<w>"})),
            beside: ("added_tokens.json", json!({"<v>": 12, "<w>": 11})),
            size: 13,
            roles: [None, Some(11), None, None],
            ids: [ONE, TWO, &[0, 2, 11, 2, 12, 1]],
            plain: "a<z><y>",
        },
        Case {
            config: fast(json!({"eos_token": "<x>", "split_special_tokens": true})),
            beside: none(),
            size: 11,
            roles: [None, Some(3), None, None],
            ids: [&[0, 2, 4, 10, 8, 1], TWO, THREE],
            plain: "a<z><y>",
        },
        // Names of the file's own (4.57; before, they were overlooked).
        Case {
            config: fast(json!({"extra_special_tokens":
                {"image_token": "<y>", "video_token": flags("<w>", true, true)}})),
            beside: none(),
            size: 12,
            roles: [None; 4],
            ids: [ONE, &[0, 2, 9, 1, 2, 6, 5], &[0, 11, 2, 4, 8, 1]],
            plain: "a<z>",
        },
        Case {
            config: fast(json!({"extra_special_tokens": {"image_token": "<v>"}, "eos_token": "<x>",
                "additional_special_tokens": ["<w>"]})),
            beside: none(),
            size: 13,
            roles: [None, Some(3), None, None],
            ids: [ONE, TWO, &[0, 2, 11, 2, 12, 1]],
            plain: "a<z><y>",
        },
        // Classes have tokens of their own, and say what stands around a text and whether it begins with a space.
        Case {
            config: class("GPT2Tokenizer", json!({"add_prefix_space": true})),
            beside: none(),
            size: 12,
            roles: [Some(11), Some(11), None, Some(11)],
            ids: [&[5, 2, 3, 2, 1], &[5, 2, 4, 7, 8, 1, 2, 6, 5], &[5, 2, 4, 8, 2, 4, 8, 1]],
            plain: "a<z><y>",
        },
        Case {
            config: class("GPTNeoXTokenizer", json!({"add_eos_token": true, "bos_token": "<x>"})),
            beside: none(),
            size: 12,
            roles: [Some(3), Some(11), None, Some(11)],
            ids: [&[0, 2, 3, 1, 11], &[0, 2, 4, 7, 8, 1, 2, 6, 5, 11], &[0, 2, 4, 8, 2, 4, 8, 1, 11]],
            plain: "a<z><y>",
        },
        Case {
            config: class(
                "LlamaTokenizer",
                json!({"bos_token": "<x>", "eos_token": "<y>", "unk_token": null}),
            ),
            beside: none(),
            size: 11,
            roles: [Some(3), Some(9), None, None],
            ids: [&[3, 0, 2, 3, 1], &[3, 0, 2, 9, 1, 2, 6, 5], &[3, 0, 2, 4, 8, 2, 4, 8, 1]],
            plain: "a<z>",
        },
        Case {
            config: class("BloomTokenizerFast", json!({"add_prefix_space": true})),
            beside: none(),
            size: 15,
            roles: [Some(11), Some(12), Some(14), Some(13)],
            ids: [&[5, 2, 3, 2, 1], &[5, 2, 4, 7, 8, 1, 2, 6, 5], &[5, 2, 4, 8, 2, 4, 8, 1]],
            plain: "a<z><y>",
        },
        Case {
            config: json!({}),
            beside: ("config.json", json!({"model_type": "qwen2"})),
            size: 12,
            roles: [None, Some(11), Some(11), Some(11)],
            ids: [ONE, TWO, THREE],
            plain: "a<z><y>",
        },
    ]
}

#[test]
fn special_tokens_are_those_of_transformers() {
    for case in cases() {
        let (name, beside) = &case.beside;
        let files =
            [("tokenizer.json", &vocabulary()), ("tokenizer_config.json", &case.config), (*name, beside)];
        let tokenizer = load(&files);
        let what = format!("{} with {name} {beside}", case.config);
        assert_eq!(tokenizer.vocab_size(), case.size, "{what}");
        let id = |token: Option<&SpecialToken>| token.map(|token| token.id);
        let roles = [tokenizer.bos(), tokenizer.eos(), tokenizer.pad(), tokenizer.unk()].map(id);
        assert_eq!(roles, case.roles, "{what}");
        for (text, want) in TEXTS.into_iter().zip(case.ids) {
            assert_eq!(tokenizer.encode_with_special(text).unwrap(), want, "{what}: {text}");
        }
        assert_eq!(tokenizer.decode(&[0, 3, 6, 9], true).unwrap(), case.plain, "{what}");
    }
}

#[test]
fn a_space_is_put_before_a_text_wherever_the_vocabulary_decides_it() {
    let mut vocabulary = vocabulary();
    let split = json!({"type": "Split", "pattern": {"Regex": "y"}, "behavior": "Isolated", "invert": false});
    let steps = json!([split, vocabulary["pre_tokenizer"]]);
    vocabulary["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": steps});
    let ids = |space: bool| {
        let config = json!({"tokenizer_class": "CohereTokenizerFast", "add_prefix_space": space});
        let files = [("tokenizer.json", &vocabulary), ("tokenizer_config.json", &config)];
        load(&files).encode_with_special(TEXTS[1]).unwrap()
    };
    assert_eq!(ids(true), [11, 5, 2, 4, 2, 7, 2, 8, 1, 2, 6, 5]);
    assert_eq!(ids(false), [11, 0, 2, 4, 7, 8, 1, 2, 6, 5]);
}

#[test]
fn templates_know_the_tokens_that_the_file_names() {
    let config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": {"image_token": "<y>"},
                        "chat_template": "{{ image_token }}{{ bos_token }}"});
    let tokenizer = load(&[("tokenizer.json", &vocabulary()), ("tokenizer_config.json", &config)]);
    let template = tokenizer.chat_template().unwrap();
    assert_eq!(template.render(&json!([]), None, GenerationPrompt::Omit).unwrap(), "<y>");
}
