//! A tokenizer folder of any texts: the first byte chooses the form of its vocabulary (`tokenizer.json`, tiktoken's ranks of
//! three families, GPT-2's two files, BERT's, a model of which one is made anew), then come the vocabulary, the merges or what
//! else stands beside it, and `tokenizer_config.json`, with 0xFF between them. What loads encodes any text, streams what it
//! decodes, and takes a prompt template's tokens.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{Scratch, golden, joined, parts, seed_of};
use ms_text::template::Template;
use ms_text::{Detokenizer, Tokenizer};
use std::sync::LazyLock;

/// What each form's file is called, with that of the merges.
const FORMS: [(&str, &str); 9] = [
    ("tokenizer.json", ""),
    ("qwen.tiktoken", ""),
    ("tiktoken.model", ""),
    ("tokenizer.model", ""),
    ("vocab.json", "merges.txt"),
    ("vocab.txt", ""),
    ("tokenizer.json", "special_tokens_map.json"),
    ("tokenizer.model", "tokenizer.json"),
    ("tokenizer.json", "added_tokens.json"),
];
const JSON: &str = r#"{"version":"1.0","added_tokens":[{"id":5,"content":"</s>","single_word":false,"lstrip":false,
"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"ByteLevel",
"add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel"},
"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,
"fuse_unk":false,"byte_fallback":false,"vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"Ġa":4},"merges":[["a","b"],["Ġ","a"]]}}"#;
const CONFIG: &str = r#"{"tokenizer_class":"LlamaTokenizer","bos_token":"<s>","eos_token":{"content":"</s>"},
"unk_token":null,"pad_token":"","additional_special_tokens":["<|x|>"],"add_bos_token":true,"add_eos_token":false,
"added_tokens_decoder":{"6":{"content":"<t>","special":true}},"do_lower_case":false,"legacy":false,
"chat_template":"{% for m in messages %}{{ m.content }}{% endfor %}"}"#;
const TEXTS: [&str; 3] = ["Hello, wörld 123 \u{1F600}\n\n  x", "abab a</s><t> \u{0}\u{1b}é", ""];

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fn seeds() {
    let seed = |form, name: &str, vocab: &[u8], merges: &[u8]| {
        seed_of(form, name, &joined(&[vocab, merges, CONFIG.as_bytes()]));
    };
    seed(0, "json", JSON.as_bytes(), b"");
    let ranks = golden("tokenizers/small.tiktoken");
    let few: Vec<&[u8]> = ranks.split_inclusive(|byte| *byte == b'\n').take(300).collect();
    (1..4).for_each(|form| seed(form, "ranks", &few.concat(), b""));
    seed(4, "merges", br#"{"a":0,"b":1,"ab":2,"<|endoftext|>":3}"#, b"#version: 0.2\na b\n");
    seed(5, "pieces", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\n##lo\nw\n##ö\n".as_bytes(), b"");
    seed(6, "map", JSON.as_bytes(), br#"{"eos_token":"</s>","cls_token":{"content":"[CLS]"}}"#);
    let anew = br#"{"tokenizer_class":"LlamaTokenizer","add_prefix_space":true,"legacy":false}"#;
    seed_of(7, "anew", &joined(&[&golden("tokenizers/bpe.model"), JSON.as_bytes(), anew]));
    let named = br#"{"</s>":5,"<t>":6,"<far>":9}"#;
    seed_of(8, "named", &joined(&[JSON.as_bytes(), named, br#"{"eos_token":"</s>"}"#]));
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let (name, second) = FORMS[usize::from(which) % FORMS.len()];
    let [vocab, merges, config] = parts(bytes);
    let folder = SCRATCH.path("folder");
    let _ = std::fs::remove_dir_all(&folder);
    SCRATCH.write(&format!("folder/{name}"), vocab);
    if !second.is_empty() {
        SCRATCH.write(&format!("folder/{second}"), merges);
    }
    if !config.is_empty() {
        SCRATCH.write("folder/tokenizer_config.json", config);
    }
    let mut loaded = vec![Tokenizer::load(&folder)];
    match name {
        "vocab.json" => loaded.push(Tokenizer::gpt2(folder.join(name), folder.join(second))),
        "vocab.txt" => loaded.push(Tokenizer::bert(folder.join(name), which % 2 == 0)),
        _ => {}
    }
    for mut tokenizer in loaded.into_iter().flatten() {
        for text in TEXTS {
            let Ok(ids) = tokenizer.encode_with_special(text) else { continue };
            let _ = tokenizer.decode(&ids, false);
            let mut stream = Detokenizer::new(&tokenizer, true);
            if ids.iter().all(|&id| stream.push(id).is_ok()) {
                let _ = stream.finish();
            }
        }
        let _ = (tokenizer.eod(), tokenizer.pad_id(), tokenizer.stop_ids(), tokenizer.chat_template());
        if Template::named("qwen").expect("it is in the table").adjust(&mut tokenizer).is_ok() {
            let _ = tokenizer.encode("<|im_end|>ab");
        }
    }
});
