//! A tokenizer file of any bytes, as `tokenizer.json` and as a SentencePiece model; the first byte chooses. What loads
//! must encode any text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{Scratch, golden, seed_of};
use ms_text::Tokenizer;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fn seeds() {
    for name in ["bpe.model", "unigram.model", "words.model"] {
        seed_of(1, name, &golden(&format!("tokenizers/{name}")));
    }
    for (name, model) in [
        (
            "unigram",
            r#"{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["\u2581a",-1.5],["b",-2],["<0x41>",-9]],"byte_fallback":true}"#,
        ),
        (
            "pieces",
            r###"{"type":"WordPiece","unk_token":"<unk>","continuing_subword_prefix":"##","max_input_chars_per_word":9,"vocab":{"<unk>":0,"a":1,"##b":2}}"###,
        ),
        ("words", r#"{"type":"WordLevel","vocab":{"a":0,"<unk>":1},"unk_token":"<unk>"}"#),
    ] {
        let around = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{"type":"Sequence","normalizers":
            [{"type":"Replace","pattern":{"Regex":" +"},"content":"\u2581"},{"type":"Lowercase"}]},"pre_tokenizer":{"type":"Split","pattern":
            {"Regex":"\\s+(?!\\S)|\\p{L}+"},"behavior":"Isolated","invert":false},"post_processor":{"type":"TemplateProcessing","single":
            [{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{}},"decoder":{"type":"Metaspace","replacement":"\u2581",
            "prepend_scheme":"first","split":true},"model":"#;
        seed_of(0, name, format!("{around}{model}}}").as_bytes());
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let loaded = if which % 2 == 0 {
        SCRATCH.write("json/tokenizer.json", bytes);
        Tokenizer::load(SCRATCH.path("json"))
    } else {
        Tokenizer::sentencepiece(SCRATCH.write("tokenizer.model", bytes))
    };
    if let Ok(tokenizer) = loaded {
        let _ = tokenizer.encode("Hello, wörld 123 \u{1F600}\n\n  x");
    }
});
