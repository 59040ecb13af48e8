//! A kept tokenizer whose bytes are any behind a right magic and checksum: ignored, or it encodes any text and decodes any id.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{Scratch, seed};
use ms_text::{Tokenizer, bpe};
use std::path::PathBuf;
use std::sync::LazyLock;

const MAGIC: usize = 8;
const TEXTS: [&str; 2] = ["the cat sat, wörld 12 \u{1F600}\n  x</s>", "at at at"];

/// A small tokenizer with a field that is long enough for it to be worth keeping, and parsed sooner than white space, since
/// most inputs are ignored and it is built again; and the file that it is kept in.
static SCRATCH: LazyLock<(Scratch, PathBuf, Vec<u8>)> = LazyLock::new(|| {
    let scratch = Scratch::new();
    let folder = scratch.path("tokenizer");
    let options = bpe::Options { vocab_size: 270, ..bpe::Options::default() };
    let trained = bpe::train(&options, ["the cat sat on the mat".repeat(3)]).expect("a text");
    trained.write(&folder).expect("a folder");
    let file = folder.join("tokenizer.json");
    let json = std::fs::read(&file).expect("it was written");
    let mut json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    json["padding_of_this_file"] = "-".repeat(256 << 10).into();
    std::fs::write(&file, json.to_string()).expect("a small file");
    std::fs::create_dir(scratch.path("kept")).expect("a folder");
    Tokenizer::load_kept(&folder, Some(&scratch.path("kept"))).expect("a sound tokenizer");
    let mut found = std::fs::read_dir(scratch.path("kept")).expect("it was kept");
    let path = found.next().expect("a file").expect("a file").path();
    let bytes = std::fs::read(&path).expect("a file");
    (scratch, path, bytes)
});

fuzz_target!(init: seed("kept", &SCRATCH.2[MAGIC + 4..]), |bytes: &[u8]| {
    let (scratch, path, good) = &*SCRATCH;
    let crc = crc32c::crc32c(bytes).to_le_bytes();
    std::fs::write(path, [&good[..MAGIC], &crc, bytes].concat()).expect("a small file");
    let kept = scratch.path("kept");
    let tokenizer = Tokenizer::load_kept(scratch.path("tokenizer"), Some(&kept)).expect("the source is sound");
    for text in TEXTS {
        if let Ok(ids) = tokenizer.encode(text) {
            let _ = tokenizer.decode(&ids, true);
        }
    }
    for id in [0, 1, 255, 269, 270, 1 << 20, u32::MAX] {
        let _ = (tokenizer.decode(&[id], false), tokenizer.id_to_token(id));
    }
    let _ = (tokenizer.vocab_size(), tokenizer.eod(), tokenizer.token_to_id("at"));
});
