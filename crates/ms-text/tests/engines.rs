//! The fast engine compared with the reference: the same ids and the same text, on everything.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_text::{Engine, Tokenizer, bpe};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Both engines of one folder.
struct Pair {
    name: String,
    fast: Tokenizer,
    reference: Tokenizer,
}

impl Pair {
    fn load(name: &str, dir: &Path) -> Self {
        let fast = Tokenizer::load(dir).unwrap();
        let reference = Tokenizer::load_with(dir, Engine::Reference).unwrap();
        assert_eq!(reference.engine_name().unwrap(), "tokenizers 0.23");
        Self { name: name.to_owned(), fast, reference }
    }

    fn agree(&self, text: &str) {
        for special in [false, true] {
            let encode = |t: &Tokenizer| if special { t.encode_with_special(text) } else { t.encode(text) };
            let (ids, want) = (encode(&self.fast).unwrap(), encode(&self.reference).unwrap());
            assert!(ids == want, "{}: {text:?}\n{ids:?}\n{want:?}", self.name);
            for skip in [false, true] {
                let (back, want) =
                    (self.fast.decode(&ids, skip).unwrap(), self.reference.decode(&ids, skip).unwrap());
                assert!(back == want, "{}: decoding {ids:?}\n{back:?}\n{want:?}", self.name);
            }
        }
    }
}

fn trained_dir() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let text = "Hello there, how are you? 123 été 你好，世界 don't <b>x</b>\n".repeat(9);
        bpe::train(&bpe::Options { vocab_size: 420, ..Default::default() }, [text])
            .unwrap()
            .write(dir.path())
            .unwrap();
        dir
    })
    .path()
}

fn shared() -> Option<PathBuf> {
    ms_testing::shared("data/tokenizers")
}

/// The published tokenizers among the shared references, or a trained one where they are absent.
fn pairs() -> &'static [Pair] {
    static PAIRS: OnceLock<Vec<Pair>> = OnceLock::new();
    PAIRS.get_or_init(|| {
        let mut out = vec![Pair::load("trained", trained_dir())];
        if let Some(root) = shared() {
            for name in ["gpt2", "llama2", "llama3", "qwen"] {
                let pair = Pair::load(name, &root.join(name));
                assert_eq!(pair.fast.engine_name().unwrap(), "tokenizers 1.0.0-rc.3", "{name}");
                out.push(pair);
            }
        }
        out
    })
}

/// Bits of text that have broken tokenizers: scripts of all planes, controls, white space of all kinds, long words,
/// texts of special tokens and parts of them, combining marks, what NFC and NFKC change.
fn piece() -> impl Strategy<Value = String> {
    let fixed = [
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\r",
        "\u{a0}",
        "\u{3000}",
        "\u{2028}",
        "\u{200b}",
        "\u{feff}",
        "\0",
        "\u{7f}",
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<s>",
        "</s>",
        "<unk>",
        "<|eot_id|>",
        "<|begin_of_text|>",
        "<|im_",
        "|>",
        "<|",
        "<0x0A>",
        "▁",
        "▁▁",
        "Ġ",
        "Ċ",
        "'s",
        "'S",
        "'ll",
        "’re",
        "don't",
        "I'M",
        "1",
        "12",
        "123",
        "1234567890",
        "٣",
        "Ⅷ",
        "½",
        "é",
        "e\u{301}",
        "\u{301}",
        "ﬁ",
        "ｆｕｌｌ",
        "가",
        "\u{1100}\u{1161}",
        "你好",
        "。",
        "日本語",
        "\u{33029}",
        "\u{11de3}",
        "\u{88f}",
        "😀",
        "👩\u{200d}👩\u{200d}👧",
        "🇩🇪",
        "\u{1F3FB}",
        "𝕏",
        "\u{10FFFF}",
        "\u{E000}",
        "ß",
        "İ",
        "ǆ",
        "Ω",
        "Å",
        "مرحبا",
        "שלום",
        "हिन्दी",
        "ไทย",
        "--",
        "...",
        "==",
        "{}",
        "#",
        "/*",
        "*/",
        "=>",
        "http://a.b/c?d=e&f",
        "_",
        "\\n",
    ];
    prop_oneof![
        8 => proptest::sample::select(fixed.to_vec()).prop_map(str::to_owned),
        4 => "[a-zA-Z]{1,12}",
        2 => any::<char>().prop_map(String::from),
        1 => (any::<char>(), 1usize..200).prop_map(|(c, n)| String::from(c).repeat(n)),
        1 => proptest::collection::vec(any::<u8>(), 0..24).prop_map(|b| String::from_utf8_lossy(&b).into_owned()),
        1 => "[a-z]{100,400}",
    ]
}

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(piece(), 0..24).prop_map(|pieces| pieces.concat())
}

/// Runs of characters with every 61st between them: what one Unicode version calls a letter and another one does not shows
/// next to an apostrophe, a letter, a digit, a mark.
#[test]
fn characters_of_all_planes_are_cut_alike() {
    // New in Unicode 17, letters and digits among them.
    let new = [
        0x88f..0x890,
        0xa7ce..0xa7f2,
        0x10940..0x1095a,
        0x11db0..0x11dea,
        0x1e6c0..0x1e700,
        0x323b0..0x323c0,
    ];
    let all = (0x80..0x0011_0000).step_by(61).chain(new.into_iter().flatten());
    let mut texts: Vec<String> =
        all.filter_map(char::from_u32).map(|c| format!("{c}'s a{c}b 1{c}2 {c}{c} .{c}.")).collect();
    // Marks and compositions that came with Unicode 11 to 17, in the other order and in parts.
    for mark in
        ['\u{301}', '\u{7fd}', '\u{89a}', '\u{1ac1}', '\u{1df8}', '\u{10d25}', '\u{1e134}', '\u{1e5ee}']
    {
        texts.push(format!("a{mark}\u{323} a\u{323}{mark} q\u{301}{mark}"));
    }
    texts.push(
        "\u{11938} \u{11935}\u{11930} \u{16121} \u{1611e}\u{1611e} \u{105d2}\u{307} \u{32ff} \u{10781}"
            .to_owned(),
    );
    for pair in pairs() {
        for text in &texts {
            assert_eq!(
                pair.fast.encode(text).unwrap(),
                pair.reference.encode(text).unwrap(),
                "{}: {}",
                pair.name,
                text.escape_unicode()
            );
        }
    }
}

/// Marks of Unicode 17, by the pattern of GPT-4o, for which they belong to words.
#[test]
fn new_marks_are_cut_alike() {
    let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
    let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
    let ends = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
    let pattern = [
        format!(r"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{ends}"),
        format!(r"[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{ends}"),
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+".to_owned(),
    ];
    let pair = variant("marks", |value| {
        value["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern.join("|").into();
        // A letter merges with the first byte of a mark, if it stands in the same word.
        let model = &mut value["model"];
        for (id, byte) in [(420, "á"), (421, "ð")] {
            model["vocab"][format!("a{byte}")] = id.into();
            model["merges"].as_array_mut().unwrap().push(json!(["a", byte]));
        }
    });
    assert_eq!(pair.fast.engine_name().unwrap(), "tokenizers 1.0.0-rc.3");
    for c in [0x1acf..0x1aec, 0x10efa..0x10efc, 0x11b60..0x11b68, 0x1e6e3..0x1e6f6].into_iter().flatten() {
        pair.agree(&format!("a{0}b 1{0}2 .{0}.", char::from_u32(c).unwrap()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn generated_text_gives_the_same_ids_and_the_same_text_again(text in text()) {
        for pair in pairs() {
            pair.agree(&text);
        }
    }

    #[test]
    fn tokens_added_in_memory_are_found_by_both(text in text(), names in proptest::collection::vec("[<a-c>| ]{1,4}", 1..4)) {
        let mut pair = Pair::load("added", trained_dir());
        for name in &names {
            prop_assert_eq!(pair.fast.add_special(name).unwrap(), pair.reference.add_special(name).unwrap());
        }
        pair.agree(&[text.as_str(), names[0].as_str(), "x", &names.concat(), " ", &text].concat());
    }
}

#[test]
fn shared_text_gives_the_same_ids() {
    let Some(root) = ms_testing::shared("data") else { return };
    let mut files = Vec::new();
    for folder in ["text", "sft", "preference", "prm"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|e| e != "md")));
    }
    files.sort();
    let mut bytes = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        // A part of each file: the reference is slow. `ms-tokenizer compare` looks at all of it.
        let parts = text.split_inclusive('\n').collect::<Vec<_>>();
        for line in parts.iter().step_by(parts.len().div_ceil(12)) {
            let end = (0..=line.len().min(6000)).rev().find(|&at| line.is_char_boundary(at)).unwrap();
            bytes += end;
            pairs().iter().for_each(|pair| pair.agree(&line[..end]));
        }
    }
    assert!(bytes > 100_000, "{bytes}");
}

#[test]
fn large_texts_for_the_reference_give_the_same_ids_on_any_number_of_threads() {
    // A letter of Unicode 17 at the end sends the whole text to the reference, one large text at a time.
    let text = format!("{} \u{a7ce}", "Hello there, how are you? ".repeat(11_000));
    assert!(text.len() > 256 << 10);
    let pair = &pairs()[0];
    let want = pair.reference.encode_with_special(&text).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..3).map(|_| scope.spawn(|| pair.fast.encode_with_special(&text).unwrap())).collect();
        threads.into_iter().for_each(|thread| assert!(thread.join().unwrap() == want));
    });
}

/// A trained tokenizer with one thing changed.
fn variant(name: &str, change: impl FnOnce(&mut Value)) -> Pair {
    let dir = tempfile::tempdir().unwrap();
    let mut value: Value =
        serde_json::from_slice(&std::fs::read(trained_dir().join("tokenizer.json")).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(dir.path().join("tokenizer.json"), value.to_string()).unwrap();
    Pair::load(name, dir.path())
}

fn added(content: &str, id: u32, flags: [bool; 5]) -> Value {
    let [single_word, lstrip, rstrip, normalized, special] = flags;
    json!({"id": id, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
           "normalized": normalized, "special": special})
}

const HARD: [&str; 8] = [
    "x <m> y",
    "x<m>y  <m>\n<m> <m><m>",
    " <M> HELLO été E\u{301}te\u{301} ﬁ ① ｆｕｌｌ",
    "lo<m>l <n> lol lo lolo <nn>",
    "a\u{a0}<m>\u{3000}b\t<m>\t",
    "<m",
    "",
    " ",
];

#[test]
fn added_tokens_match_alike_whatever_their_flags() {
    for bits in 0..32u32 {
        let flags = std::array::from_fn(|i| bits >> i & 1 == 1);
        let pair = variant(&format!("flags {flags:?}"), |value| {
            let list = value["added_tokens"].as_array_mut().unwrap();
            list.push(added("<m>", 420, flags));
            list.push(added("lo", 421, flags));
            list.push(added("<n", 422, flags));
            list.push(added("<nn>", 423, flags));
        });
        HARD.iter().for_each(|text| pair.agree(text));
    }
}

#[test]
fn normalizers_change_text_alike() {
    for normalizer in [
        json!({"type": "NFC"}),
        json!({"type": "NFD"}),
        json!({"type": "NFKC"}),
        json!({"type": "NFKD"}),
        json!({"type": "Lowercase"}),
        json!({"type": "StripAccents"}),
        json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        json!({"type": "Nmt"}),
        json!({"type": "Prepend", "prepend": "l"}),
        json!({"type": "Replace", "pattern": {"String": "l"}, "content": "LL"}),
        json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
        json!({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]}),
    ] {
        for normalized in [false, true] {
            let pair = variant(&normalizer.to_string(), |value| {
                value["normalizer"] = normalizer.clone();
                value["added_tokens"].as_array_mut().unwrap().push(added(
                    "<M>",
                    420,
                    [false, false, false, normalized, false],
                ));
            });
            HARD.iter().for_each(|text| pair.agree(text));
            pair.agree("A\u{30a} ẞ İstanbul \u{1e9b}\u{323} 가각 \u{0}\u{200b}\u{fffd}x 你好");
        }
    }
}

#[test]
fn other_models_and_cuts_encode_alike() {
    let words = json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 20,
        "vocab": {"[UNK]": 0, "hel": 1, "##lo": 2, "w": 3, "##orld": 4, ",": 5, "你": 6, "été": 7}});
    let unigram = json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [["<unk>", 0.0], ["▁", -2.0],
        ["▁hel", -3.0], ["lo", -2.5], ["l", -4.0], ["o", -4.5], ["▁w", -3.5], ["or", -3.2], ["ld", -3.3], ["h", -6.0], ["e", -6.0]]});
    let level =
        json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "hello": 1, "world": 2}});
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    for (name, model, cut, decoder) in [
        (
            "wordpiece",
            &words,
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        ),
        ("unigram always", &unigram, metaspace("always", true), metaspace("always", true)),
        ("unigram first", &unigram, metaspace("first", false), metaspace("first", false)),
        ("unigram never", &unigram, metaspace("never", true), metaspace("never", true)),
        ("wordlevel", &level, json!({"type": "Whitespace"}), Value::Null),
        ("wordlevel split", &level, json!({"type": "WhitespaceSplit"}), Value::Null),
        (
            "wordlevel digits",
            &level,
            json!({"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "Digits", "individual_digits": true}]}),
            Value::Null,
        ),
    ] {
        let pair = variant(name, |value| {
            value["model"] = model.clone();
            value["pre_tokenizer"] = cut;
            value["decoder"] = decoder;
            value["post_processor"] = Value::Null;
            value["added_tokens"] = json!([]);
        });
        for text in HARD.into_iter().chain([
            "hello, world",
            "hello  worldhello 你好 été",
            "hellow orld 12 a1b2",
            "▁hel▁ lo",
        ]) {
            pair.agree(text);
        }
    }
}

#[test]
fn a_shape_that_the_fast_engine_does_not_take_is_encoded_by_the_reference() {
    let pair = variant("dropout", |value| value["model"]["dropout"] = json!(0.0));
    assert_eq!(pair.fast.engine_name().unwrap(), "tokenizers 1.0.0-rc.3");
    let pair = variant("normalized", |value| {
        value["normalizer"] = json!({"type": "Lowercase"});
        value["added_tokens"].as_array_mut().unwrap().push(added(
            "<M>",
            420,
            [false, false, false, true, false],
        ));
    });
    assert_eq!(pair.fast.engine_name().unwrap(), "tokenizers 0.23");
}

/// Each of these was encoded or decoded otherwise by the fast engine, or stopped it.
#[test]
fn added_tokens_and_decoders_that_the_fast_engine_takes_otherwise_are_the_references() {
    let token = |content: &'static str, flags: [bool; 5]| {
        move |value: &mut Value| {
            value["added_tokens"].as_array_mut().unwrap().push(added(content, 420, flags));
        }
    };
    let [word, blanks, normalized] = [
        [true, false, false, false, false],
        [false, false, true, false, false],
        [false, false, false, true, false],
    ];
    let agree = |name: &str, change: &dyn Fn(&mut Value), text: &str| {
        let pair = variant(name, change);
        pair.agree(text);
        pair
    };
    let reference = "tokenizers 0.23";
    let words = agree("words", &token("é", word), "caféx é, éé²é ℡é");
    assert_eq!(words.fast.engine_name().unwrap(), reference);
    let before = agree(
        "before a text",
        &|value| {
            token("THE", normalized)(value);
            value["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        },
        "THETHE x THE",
    );
    assert_eq!(before.fast.engine_name().unwrap(), reference);
    let taken = agree(
        "blanks",
        &|value| {
            token("<m>", blanks)(value);
            value["added_tokens"].as_array_mut().unwrap().push(added("\n", 421, [false; 5]));
        },
        "a<m>\n\n<m> \nb",
    );
    assert_eq!(taken.fast.engine_name().unwrap(), reference);
    let nothing = json!({"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": ""}, "content": "x"}]});
    let replaced = variant("nothing", |value| value["normalizer"] = nothing);
    assert_eq!(replaced.fast.engine_name().unwrap(), reference);
    // Texts of added tokens in the byte alphabet, and a decoder that is not that of byte-level text.
    agree("letters", &token("Ġé", [false; 5]), "aĠéb");
    agree("another decoder", &|value| value["decoder"] = json!({"type": "Fuse"}), "été 你好");
}

/// Values: Python's `tokenizers` 0.23.3.
#[test]
fn patterns_are_read_as_pythons_tokenizers_reads_them() {
    let cases: [(&str, &[u32]); 3] =
        [("[ab]$", &[1, 2, 4, 2, 0]), ("^[ab]", &[1, 6, 1, 0]), ("[[:alpha:]]+", &[3, 7, 3, 7, 8, 9])];
    for (pattern, want) in cases {
        let pair = variant(pattern, |value| {
            let vocab = json!({"u": 0, "a": 1, "b": 2, "ab": 3, "\na": 4, "b\na": 5, "b\n": 6, "\n": 7, "δε": 8, "1": 9});
            value["model"] = json!({"type": "WordLevel", "unk_token": "u", "vocab": vocab});
            value["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
            (value["added_tokens"], value["decoder"], value["post_processor"]) =
                (json!([]), Value::Null, Value::Null);
        });
        assert_eq!(pair.fast.encode("ab\nab\nδε1").unwrap(), want, "{pattern}");
        pair.agree("ab\nab\nδε1");
    }
    // Every named class loads, and so does what it does not hold.
    for name in "alnum alpha blank cntrl digit graph lower print punct space upper word".split(' ') {
        for not in ["", "^"] {
            let pattern = format!("[[:{not}{name}:]]+");
            let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
            variant(&pattern, |value| value["pre_tokenizer"] = split).agree("ab\n δε1, B\u{7}");
        }
    }
    // No line begins at the end of a text.
    let begins = json!({"type": "Replace", "pattern": {"Regex": "^"}, "content": "X"});
    let pair = variant("^", |value| {
        value["model"] = json!({"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "Xa\n": 1}});
        value["normalizer"] = begins;
        ["pre_tokenizer", "decoder", "post_processor"].iter().for_each(|part| value[part] = Value::Null);
        value["added_tokens"] = json!([]);
    });
    assert_eq!(pair.fast.encode("a\n").unwrap(), [1]);
}

/// Each engine goes down a tree of pieces by one call for each byte or letter.
#[test]
fn a_piece_that_is_too_long_for_the_stack_is_refused_and_a_shorter_one_is_read() {
    let dir = tempfile::tempdir().unwrap();
    for kind in ["Unigram", "WordPiece"] {
        let load = |length: usize| {
            let long = "x".repeat(length);
            let vocab = match kind {
                "Unigram" => json!([["[UNK]", 0.0], ["a", -1.0], [long, -2.0]]),
                _ => json!({"[UNK]": 0, "a": 1, long: 2}),
            };
            let model = json!({"type": kind, "unk_id": 0, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": vocab});
            let definition = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
                "post_processor": null, "decoder": null, "truncation": null, "padding": null, "model": model});
            std::fs::write(dir.path().join("tokenizer.json"), definition.to_string()).unwrap();
            let engines = [Engine::Fast, Engine::Reference];
            engines.map(|engine| Tokenizer::load_with(dir.path(), engine).and_then(|t| t.encode("a")))
        };
        for encoded in load(1000) {
            assert_eq!(encoded.unwrap(), [1], "{kind}");
        }
        for encoded in load(1_000_000) {
            let error = encoded.unwrap_err().to_string();
            assert!(error.contains("pieces of at most 1000 bytes, found 1000000"), "{kind}: {error}");
        }
    }
}
