//! A tokenizer file of any bytes, as `tokenizer.json` and as a SentencePiece model; the first byte chooses. What loads
//! must encode any text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::Scratch;
use ms_text::Tokenizer;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fuzz_target!(|bytes: &[u8]| {
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
