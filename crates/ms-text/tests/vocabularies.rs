//! Vocabularies in forms other than `tokenizer.json`, compared with the programs they come from.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_text::{Detokenizer, Tokenizer, bpe};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Written by `tests/golden/tokenizers/make_tokenizer_goldens.py`.
fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizers")
}

fn cases(name: &str) -> Vec<(String, Vec<u32>)> {
    let all: Value = serde_json::from_slice(&std::fs::read(goldens().join("cases.json")).unwrap()).unwrap();
    let cases: Vec<(String, Vec<u32>)> = serde_json::from_value(all[name].clone()).unwrap();
    assert_eq!(cases.len(), 20);
    cases
}

#[test]
fn sentencepiece_models_give_sentencepieces_own_ids() {
    for name in ["words", "unigram", "bpe"] {
        let tokenizer = Tokenizer::sentencepiece(goldens().join(format!("{name}.model"))).unwrap();
        for (text, want) in cases(name) {
            let got = tokenizer.encode(&text).unwrap();
            assert_eq!(got, want, "{name}: {text:?}");
            assert_eq!(tokenizer.encode_with_special(&text).unwrap(), want, "nothing stands around a text");
        }
        assert_eq!(tokenizer.eos().unwrap().text, "</s>");
        assert_eq!(
            tokenizer.encode("</s>").unwrap().iter().find(|id| **id == tokenizer.eod().unwrap()),
            None
        );
    }
}

#[test]
fn sentencepiece_text_comes_back() {
    let tokenizer = Tokenizer::sentencepiece(goldens().join("bpe.model")).unwrap();
    for (text, ids) in cases("bpe") {
        // A mark of a word's beginning in the text itself cannot be told from a space.
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text.replace('▁', " "));
    }
}

/// Values: sentencepiece 0.2.0 and 0.2.3, `decode`.
#[test]
fn sentencepieces_own_decoding_leaves_out_marks_at_the_beginning() {
    let cases: [(&str, &[&str], &str); 5] = [
        ("bpe", &["▁", "▁a"], " a"),
        ("bpe", &["▁a", "▁", "▁a"], "a  a"),
        ("words", &["▁", "▁a", "▁", "▁a"], "a  a"),
        ("bpe", &["<0xE3>", "<0x91>", "a"], "\u{FFFD}\u{FFFD}a"),
        ("bpe", &["<0xE3>", "<0x81>", "<0x82>"], "あ"),
    ];
    for (model, pieces, want) in cases {
        let tokenizer = Tokenizer::sentencepiece(goldens().join(format!("{model}.model"))).unwrap();
        let ids: Vec<u32> = pieces.iter().map(|piece| tokenizer.token_to_id(piece).unwrap()).collect();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), want, "{model} {pieces:?}");
        let mut stream = Detokenizer::new(&tokenizer, false);
        let mut text: String = ids.iter().filter_map(|&id| stream.push(id).unwrap()).collect();
        text.push_str(&stream.finish().unwrap().unwrap_or_default());
        assert_eq!(text, want, "{model} {pieces:?}, piece by piece");
    }
}

/// Values: transformers 4.43.2, 4.57.6 and 5.24, `AutoTokenizer.from_pretrained(…)`.
#[test]
fn a_folder_with_berts_vocabulary_is_read_by_berts_class() {
    let dir = tempfile::tempdir().unwrap();
    let long = ["x".repeat(100), "y".repeat(101)];
    let lines =
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ete", "été", "Hel", "hel", &long[0], &long[1]];
    std::fs::write(dir.path().join("vocab.txt"), lines.join("\n")).unwrap();
    let text = format!("Hel été [MASK]你 {}", long.join(" "));
    for (config, want) in [
        (json!({}), vec![2, 8, 5, 4, 1, 9, 1, 3]),
        (json!({"tokenizer_class": "BertTokenizer", "do_lower_case": false}), vec![2, 7, 6, 4, 1, 9, 1, 3]),
        (json!({"tokenizer_class": "BertTokenizer", "strip_accents": false}), vec![2, 8, 6, 4, 1, 9, 1, 3]),
    ] {
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        assert_eq!(load(&dir).encode_with_special(&text).unwrap(), want, "{config}");
        assert_eq!(load(&dir).vocab_size(), 11, "{config}");
    }
}

#[test]
fn a_rank_file_gives_tiktokens_ids() {
    let tokenizer = Tokenizer::load(goldens().join("small.tiktoken")).unwrap();
    for (text, want) in cases("tiktoken") {
        assert_eq!(tokenizer.encode(&text).unwrap(), want, "{text:?}");
        assert_eq!(tokenizer.decode(&want, false).unwrap(), text);
    }
    assert_eq!(tokenizer.eos().unwrap().text, "<|end_of_text|>");
    let first = 600;
    assert_eq!(tokenizer.bos().unwrap().id, first, "special tokens follow the ranks");
    assert_eq!(tokenizer.vocab_size(), 600 + 256);
    assert_eq!(tokenizer.encode_with_special("x").unwrap().len(), 1);
}

#[test]
fn qwens_rank_file_has_qwens_special_tokens() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(goldens().join("small.tiktoken"), dir.path().join("qwen.tiktoken")).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert_eq!(tokenizer.encode("<|im_start|>").unwrap(), [601]);
    assert_eq!(tokenizer.token_to_id("<|extra_204|>"), Some(600 + 3 + 204));
    assert_eq!(tokenizer.eod().unwrap(), 600);
    // NFC comes first.
    assert_eq!(tokenizer.encode("e\u{301}").unwrap(), tokenizer.encode("é").unwrap());
}

#[test]
fn kimis_rank_file_takes_its_names_from_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(goldens().join("small.tiktoken"), dir.path().join("tiktoken.model")).unwrap();
    let config = r#"{"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
        "added_tokens_decoder": {"600": {"content": "[BOS]", "special": true}, "601": {"content": "[EOS]", "special": true}}}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert_eq!((tokenizer.bos().unwrap().id, tokenizer.eod().unwrap()), (600, 601));
    assert_eq!(tokenizer.token_to_id("<|reserved_token_602|>"), Some(602));
    let han = tokenizer.encode("你好a").unwrap();
    assert_eq!(tokenizer.decode(&han, false).unwrap(), "你好a");
}

#[test]
fn a_folder_with_a_model_alone_encodes_as_its_tokenizer_json() {
    let Some(shared) = ms_testing::shared("data/tokenizers/llama2") else { return };
    let dir = tempfile::tempdir().unwrap();
    for name in ["tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"] {
        std::fs::copy(shared.join(name), dir.path().join(name)).unwrap();
    }
    let (model, json) = (Tokenizer::load(dir.path()).unwrap(), Tokenizer::load(&shared).unwrap());
    assert_eq!(model.vocab_size(), json.vocab_size());
    assert_eq!((model.bos(), model.eos(), model.unk()), (json.bos(), json.eos(), json.unk()));
    for (text, _) in cases("bpe").into_iter().chain([("<s>a</s> b".to_owned(), Vec::new())]) {
        assert_eq!(
            model.encode_with_special(&text).unwrap(),
            json.encode_with_special(&text).unwrap(),
            "{text:?}"
        );
    }
    let own = Tokenizer::sentencepiece(shared.join("tokenizer.model")).unwrap();
    let text = "Plain text is segmented alike, with numbers 12345 and  spaces.";
    assert_eq!(own.encode(text).unwrap(), json.encode(text).unwrap());
}

/// Values: transformers 4.51.3, `AutoTokenizer.from_pretrained(…, use_fast=…).encode(text, add_special_tokens=False)`.
#[test]
fn llamas_fast_class_asks_the_configuration_and_the_slow_one_the_model() {
    const TEXTS: [&str; 3] = ["a  b ", "ﬁ ①", "</s> x"];
    type Ids = [&'static [u32]; 3];
    const MARKED: Ids =
        [&[268, 259, 340, 259], &[259, 242, 175, 132, 259, 229, 148, 163], &[2, 259, 259, 424]];
    const FIRST: Ids = [MARKED[0], MARKED[1], &[2, 259, 424]];
    const PLAIN: Ids = [&[313, 259, 340, 259], &[242, 175, 132, 259, 229, 148, 163], &[2, 259, 424]];
    const SLOW: Ids = [&[268, 340], &[308, 346, 341], &[2, 259, 424]];
    const SLOW_PLAIN: Ids = [&[313, 340], &[344, 346, 341], &[2, 259, 424]];
    let cases = [
        (r#""legacy": true"#, MARKED, SLOW),
        (r#""legacy": true, "add_prefix_space": false"#, PLAIN, SLOW),
        (r#""legacy": false"#, FIRST, SLOW),
        (r#""legacy": false, "add_prefix_space": false"#, PLAIN, SLOW_PLAIN),
    ];
    for (config, fast, slow) in cases {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(goldens().join("unigram.model"), dir.path().join("tokenizer.model")).unwrap();
        let config = format!(r#"{{"tokenizer_class": "LlamaTokenizer", {config}}}"#);
        std::fs::write(dir.path().join("tokenizer_config.json"), &config).unwrap();
        for (text, want) in TEXTS.into_iter().zip(fast) {
            assert_eq!(Tokenizer::load(dir.path()).unwrap().encode(text).unwrap(), want, "{config} {text:?}");
        }
        for (text, want) in TEXTS.into_iter().zip(slow) {
            let slow = Tokenizer::load(dir.path()).unwrap().as_slow();
            assert_eq!(slow.encode(text).unwrap(), want, "slow, {config} {text:?}");
        }
    }
}

#[test]
fn vocabulary_and_merges_encode_as_their_tokenizer_json() {
    let Some(shared) = ms_testing::shared("data/tokenizers/gpt2") else { return };
    let (vocab, merges) = (shared.join("vocab.json"), shared.join("merges.txt"));
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(&vocab, dir.path().join("vocab.json")).unwrap();
    std::fs::copy(&merges, dir.path().join("merges.txt")).unwrap();
    let (own, folder) = (Tokenizer::gpt2(&vocab, &merges).unwrap(), Tokenizer::load(dir.path()).unwrap());
    let json = Tokenizer::load(&shared).unwrap();
    for (text, _) in cases("bpe") {
        let want = json.encode(&text).unwrap();
        assert_eq!(own.encode(&text).unwrap(), want, "{text:?}");
        assert_eq!(folder.encode(&text).unwrap(), want, "{text:?}");
    }
    assert_eq!((own.eod().unwrap(), own.vocab_size()), (50256, 50257));
    assert!(
        own.encode("<|endoftext|>").unwrap().len() > 1,
        "Megatron's own tokenizer knows no special tokens in text"
    );
}

#[test]
fn bert_pieces_are_the_longest_ones_after_cleaning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocab.txt");
    std::fs::write(&path, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhel\n##lo\nworld\n,\n你\nete\nHel\n").unwrap();
    let lower = Tokenizer::bert(&path, true).unwrap();
    assert_eq!(lower.encode("HELLO, été world你x").unwrap(), [5, 6, 8, 10, 7, 9, 1]);
    let cased = Tokenizer::bert(&path, false).unwrap();
    assert_eq!(cased.encode("Hello hello").unwrap(), [11, 6, 5, 6]);
    assert_eq!((cased.bos().unwrap().id, cased.eod().unwrap(), cased.pad_id().unwrap()), (12, 13, 0));
    assert_eq!(cased.encode_with_special("world").unwrap(), [7]);
}

#[test]
fn broken_vocabularies_are_errors_that_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let model = std::fs::read(goldens().join("bpe.model")).unwrap();
    for end in (1..model.len()).step_by(97) {
        let path = write("cut.model", &model[..end]);
        // A cut may fall between two pieces; what is left is then a smaller model, or one without an unknown piece.
        let _ = Tokenizer::sentencepiece(&path).and_then(|t| t.encode("some text"));
    }
    let path = write("bad.tiktoken", b"aGk= 0\nnot base64 1\n");
    let error = Tokenizer::load(&path).unwrap_err().to_string();
    assert!(error.contains("bad.tiktoken") && error.contains("line 2"), "{error}");
    let path = write("far.tiktoken", b"aGk= 0\naGk= 99999999\n");
    assert!(Tokenizer::load(&path).unwrap_err().to_string().contains("out of range"));
    let vocab = write("vocab.json", b"{\"a\": 0}");
    let merges = write("merges.txt", b"#version: 0.2\na b c\n");
    let error = Tokenizer::gpt2(&vocab, &merges).unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn an_engine_is_built_again_when_tokens_are_added() {
    let dir = tempfile::tempdir().unwrap();
    let options = bpe::Options { vocab_size: 270, ..Default::default() };
    bpe::train(&options, ["a b c d e f".to_string()]).unwrap().write(dir.path()).unwrap();
    let mut tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert!(tokenizer.encode("<new>").unwrap().len() > 1);
    let id = tokenizer.add_special("<new>").unwrap();
    assert_eq!(id as usize, tokenizer.vocab_size() - 1);
    assert_eq!(tokenizer.encode("<new>").unwrap(), [id]);
    assert_eq!(tokenizer.decode(&[id], false).unwrap(), "<new>");
    assert_eq!(tokenizer.decode(&[id], true).unwrap(), "");
    assert_eq!(tokenizer.add_special("<new>").unwrap(), id);
}

/// A folder with a vocabulary of this repository and a configuration.
fn folder(vocabulary: &str, config: &Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(goldens().join(vocabulary), dir.path().join("tokenizer.model")).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    dir
}

fn load(dir: &tempfile::TempDir) -> Tokenizer {
    Tokenizer::load(dir.path()).unwrap()
}

/// `InternLM2Tokenizer` names reserved pieces so, and its published converter replaces them.
#[test]
fn added_tokens_have_the_ids_that_the_configuration_says() {
    for name in ["bpe", "unigram"] {
        let model = format!("{name}.model");
        let plain = load(&folder(&model, &json!({"tokenizer_class": "InternLM2Tokenizer"})));
        let size = plain.vocab_size() as u32;
        // A piece of several letters, and two places behind the pieces with a gap.
        let reserved = (300..size).find(|&id| plain.id_to_token(id).unwrap().chars().count() > 4).unwrap();
        let (behind, last) = (size + 3, size + 7);
        let token = |content: &str| json!({"content": content, "special": true});
        let config = json!({
            "tokenizer_class": "InternLM2Tokenizer",
            "added_tokens_decoder": {
                reserved.to_string(): token("<|im_end|>"), behind.to_string(): token("<|im_start|>"),
                last.to_string(): token("<|plugin|>")
            }
        });
        let tokenizer = load(&folder(&model, &config));
        let ids = tokenizer.encode("<|im_start|><|im_end|><|plugin|>").unwrap();
        assert_eq!(ids, [behind, reserved, last], "{name}");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<|im_start|><|im_end|><|plugin|>", "{name}");
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), "", "{name}");
        let reserved = plain.id_to_token(reserved).unwrap();
        for (text, _) in cases(name) {
            if !text.contains(reserved.trim_start_matches('▁')) {
                assert_eq!(
                    tokenizer.encode(&text).unwrap(),
                    plain.encode(&text).unwrap(),
                    "{name}: {text:?}"
                );
            }
        }
        let far = json!({"added_tokens_decoder": {"4000000000": token("<|im_end|>")}});
        let error = Tokenizer::load(folder(&model, &far).path()).unwrap_err().to_string();
        assert!(error.contains("added_tokens_decoder") && error.contains("4000000000"), "{error}");
    }
}

#[test]
fn a_token_of_the_vocabulary_that_the_configuration_adds_is_matched_whole() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, json: &Value| std::fs::write(dir.path().join(name), json.to_string()).unwrap();
    let model = json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": []});
    write("tokenizer.json", &json!({"version": "1.0", "model": model}));
    assert_eq!(load(&dir).encode("aba").unwrap(), [0, 1, 0]);
    write("tokenizer_config.json", &json!({"added_tokens_decoder": {"2": {"content": "ab"}}}));
    assert_eq!((load(&dir).encode("aba").unwrap(), load(&dir).vocab_size()), (vec![2, 0], 3));
}

/// `tokenization_chatglm.py`, published with ChatGLM3: nine tokens behind the pieces, two of them before every text.
#[test]
fn chatglms_class_knows_tokens_that_its_model_does_not() {
    let plain = load(&folder("bpe.model", &json!({})));
    let first = plain.vocab_size() as u32;
    let mut config = json!({"tokenizer_class": "ChatGLMTokenizer"});
    let tokenizer = load(&folder("bpe.model", &config));
    let place = |tokenizer: &Tokenizer, text: &str| tokenizer.token_to_id(text).unwrap() - first;
    assert_eq!([place(&tokenizer, "[gMASK]"), place(&tokenizer, "<|observation|>")], [1, 8]);
    assert_eq!((tokenizer.vocab_size() as u32, tokenizer.pad_id().unwrap()), (first + 9, 0));
    let text = "philosophy <|user|>";
    let ids = plain.encode(text).unwrap();
    assert_eq!(tokenizer.encode(text).unwrap(), ids, "they are in no text");
    assert_eq!(tokenizer.encode_with_special(text).unwrap(), [&[first + 1, first + 3], &ids[..]].concat());
    // A later file names some of them, which then are.
    config["added_tokens_decoder"] =
        json!({(first + 6).to_string(): {"content": "<|user|>", "special": true}});
    let named = load(&folder("bpe.model", &config));
    assert_eq!(named.encode("<|user|>").unwrap(), [first + 6]);
    assert_eq!(place(&named, "<|observation|>"), 8);
}

/// `tokenization_chatglm.py`, published with GLM-4: tokens after the ranks are those of the configuration.
#[test]
fn glm4s_rank_file_has_the_tokens_of_its_configuration() {
    let names = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>"];
    let decoder = names
        .iter()
        .zip(600..)
        .map(|(name, id): (_, u32)| (id.to_string(), json!({"content": name, "special": true})));
    let config = json!({
        "tokenizer_class": "ChatGLM4Tokenizer", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "added_tokens_decoder": decoder.collect::<serde_json::Map<_, _>>()
    });
    let tokenizer = load(&folder("small.tiktoken", &config));
    assert_eq!(
        (tokenizer.eod().unwrap(), tokenizer.pad_id().unwrap(), tokenizer.vocab_size()),
        (600, 600, 608)
    );
    assert_eq!(tokenizer.bos(), None);
    assert_eq!(tokenizer.encode("[gMASK]<sop><|user|>").unwrap(), [602, 604, 607]);
    let x = tokenizer.encode("x").unwrap();
    assert_eq!(tokenizer.encode_with_special("x").unwrap(), [&[602, 604], &x[..]].concat());
}

/// `tokenization_hy.py`, published with Hunyuan-Large: digits one by one, 210 tokens after the ranks.
#[test]
fn hunyuans_rank_file_has_its_own_tokens() {
    let tokenizer = load(&folder("small.tiktoken", &json!({"tokenizer_class": "HYTokenizer"})));
    let ids = ["<|endoftext|>", "<|startoftext|>", "<|pad|>", "<|extra_0|>"];
    assert_eq!(ids.map(|text| tokenizer.token_to_id(text)), [600, 601, 604, 605].map(Some));
    assert_eq!(
        (tokenizer.bos().unwrap().id, tokenizer.eod().unwrap(), tokenizer.vocab_size()),
        (601, 600, 810)
    );
    assert_eq!(tokenizer.encode("12").unwrap(), ["1", "2"].map(|digit| tokenizer.encode(digit).unwrap()[0]));
}

#[test]
fn a_rank_files_own_roles_count_before_those_of_the_models_class() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(goldens().join("small.tiktoken"), dir.path().join("tokenizer.model")).unwrap();
    let load = |config: Value| {
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let t = load(&dir);
        (t.encode_with_special("hello").unwrap(), t.eos().unwrap().id, t.unk().is_some(), t.vocab_size())
    };
    // The class puts a begin token before a text, which is the file's.
    let (ids, eos, unk, size) = load(json!({"model_type": "llama"}));
    let (plain, own_eos, own_unk, own_size) = load(json!({}));
    assert_eq!(ids, [&[600], &plain[..]].concat());
    assert_eq!((eos, unk, size), (own_eos, own_unk, own_size));
    assert_eq!(size, 856);
}

#[test]
fn a_rank_files_own_tokens_keep_their_ids_beside_those_of_the_configuration() {
    let token = |content: &str| json!({"content": content, "special": true});
    let qwen = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    for (id, size) in [(603, 808), (808, 809), (820, 821)] {
        let decoder = json!({id.to_string(): token("<img>")});
        let config = json!({"tokenizer_class": "QWenTokenizer", "added_tokens_decoder": decoder});
        let tokenizer = load(&folder("small.tiktoken", &config));
        assert_eq!(tokenizer.encode(&(qwen.concat() + "<img>")).unwrap(), [600, 601, 602, id]);
        assert_eq!(tokenizer.vocab_size(), size, "one more than the last id");
    }
    let decoder = json!({"856": token("<pad>")});
    let llama = load(&folder("small.tiktoken", &json!({"added_tokens_decoder": decoder})));
    assert_eq!(llama.encode("<|begin_of_text|><|end_of_text|><pad>").unwrap(), [600, 601, 856]);
    // A rank that is not there moves none of the tokens behind.
    let dir = folder("small.tiktoken", &json!({"tokenizer_class": "QWenTokenizer"}));
    let path = dir.path().join("tokenizer.model");
    let lines = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = lines.lines().filter(|line| !line.ends_with(" 590")).collect();
    assert_eq!(lines.len(), 599);
    std::fs::write(&path, lines.join("\n")).unwrap();
    assert_eq!(load(&dir).encode(&qwen.concat()).unwrap(), [600, 601, 602]);
}

#[test]
fn a_file_that_no_engine_takes_is_named_once() {
    let dir = tempfile::tempdir().unwrap();
    let broken = json!({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}});
    std::fs::write(dir.path().join("tokenizer.json"), broken.to_string()).unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err().to_string();
    assert_eq!(error.matches("tokenizer.json: not a tokenizer that can be loaded: ").count(), 1, "{error}");
}

#[test]
fn a_configuration_that_gives_an_id_twice_is_refused() {
    let plain = load(&folder("bpe.model", &json!({})));
    let (first, second) =
        (plain.id_to_token(400).unwrap().to_owned(), plain.id_to_token(401).unwrap().to_owned());
    for (decoder, want) in [
        (
            json!({"400": {"content": "<q>"}, "401": {"content": first}}),
            [format!("{first:?}"), "400".to_owned()],
        ),
        (
            json!({"400": {"content": first}, "0401": {"content": second}}),
            ["0401".to_owned(), "a token id".to_owned()],
        ),
    ] {
        let dir = folder("bpe.model", &json!({"added_tokens_decoder": decoder}));
        let error = Tokenizer::load(dir.path()).unwrap_err().to_string();
        assert!(want.iter().all(|want| error.contains(want)), "{error}");
    }
    // A vocabulary that claims high ids has no places in between to fill.
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("vocab.json", r#"{"a": 0, "b": 4000000000}"#);
    write("merges.txt", "");
    write("tokenizer_config.json", r#"{"added_tokens_decoder": {"4000000001": {"content": "<q>"}}}"#);
    let error = Tokenizer::load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("400000000"), "{error}");
}

#[test]
fn classes_put_a_begin_token_before_a_text_unless_the_configuration_says_not_to() {
    for class in ["InternLMTokenizer", "InternLM2Tokenizer", "BaichuanTokenizer"] {
        let mut config = json!({"tokenizer_class": class});
        assert_eq!(load(&folder("bpe.model", &config)).encode_with_special("a").unwrap()[0], 1, "{class}");
        config["add_bos_token"] = json!(false);
        assert_ne!(load(&folder("bpe.model", &config)).encode_with_special("a").unwrap()[0], 1, "{class}");
    }
}
