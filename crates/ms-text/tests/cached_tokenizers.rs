//! Cached tokenizers: the same ids and texts as those that were parsed.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_text::{Tokenizer, bpe};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

/// A tokenizer as it is read, and as it is kept.
struct Pair {
    read: Tokenizer,
    kept: Tokenizer,
}

/// Writes a tokenizer trained on `text`, with trailing blanks, so that it is large enough to be cached.
fn train(text: &str, folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let options = bpe::Options { vocab_size: 420, ..Default::default() };
    bpe::train(&options, [text.repeat(9)]).unwrap().write(folder).unwrap();
    let file = folder.join("tokenizer.json");
    write_large(&file, &std::fs::read_to_string(&file).unwrap());
}

fn write_large(file: &Path, json: &str) {
    std::fs::write(file, json.to_owned() + &" ".repeat(300_000)).unwrap();
}

const TEXT: &str = "Hello there, how are you? 123 été 你好，世界 don't <b>x</b>\n";

/// A trained tokenizer, and the published ones among the shared references.
fn pairs() -> &'static [Pair] {
    static PAIRS: std::sync::OnceLock<Vec<Pair>> = std::sync::OnceLock::new();
    PAIRS.get_or_init(|| {
        let (cache, trained) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        train(TEXT, trained.path());
        let mut folders = vec![trained.path().to_owned()];
        if let Some(root) = ms_testing::shared("data/tokenizers") {
            folders.extend(["gpt2", "llama2", "llama3", "qwen"].map(|name| root.join(name)));
        }
        let mut all = Vec::new();
        for (n, dir) in folders.iter().enumerate() {
            let read = Tokenizer::load_kept(dir, Some(cache.path())).unwrap();
            assert_eq!(files(cache.path()).len(), n + 1, "{} is kept", dir.display());
            let kept = Tokenizer::load_kept(dir, Some(cache.path())).unwrap();
            assert_eq!(files(cache.path()).len(), n + 1, "{} is kept once", dir.display());
            for t in [&read, &kept] {
                // A kept one shows by the fields it has no need to build.
                t.ready().unwrap();
            }
            assert_eq!(read.engine_name().unwrap(), kept.engine_name().unwrap());
            assert_eq!(read.content_hash(), kept.content_hash());
            assert_eq!(format!("{read:?}"), format!("{kept:?}"));
            assert_eq!((read.unk(), read.stop_ids()), (kept.unk(), kept.stop_ids()));
            for id in (0..read.vocab_size() as u32 + 2).step_by(97) {
                assert_eq!(read.id_to_token(id), kept.id_to_token(id));
            }
            all.push(Pair { read, kept });
        }
        all
    })
}

fn agree(text: &str) {
    for Pair { read, kept } in pairs() {
        let ids = read.encode(text).unwrap();
        assert!(ids == kept.encode(text).unwrap(), "{read:?}: {text:?}");
        assert_eq!(read.encode_with_special(text).unwrap(), kept.encode_with_special(text).unwrap());
        for skip in [false, true] {
            assert_eq!(read.decode(&ids, skip).unwrap(), kept.decode(&ids, skip).unwrap(), "{text:?}");
        }
    }
}

#[test]
fn texts_have_the_same_ids() {
    for text in [
        "",
        " ",
        "a",
        "Hello, world! 12345 don't DON'T   \n\n\t x",
        "<|endoftext|><|im_start|>user\nhi<|im_end|>",
        "<s>[INST] x [/INST]</s>",
        "<|begin_of_text|><|eot_id|> a",
        "naïve e\u{301}te 你好，世界 🤷‍♂️ \u{0}\u{7f}",
        "▁ ▁▁ Ġ Ċ <0x0A> <unk>",
        "\u{a7cf}x \u{1acf}",
        "ab".repeat(3000).as_str(),
        " \r\n \u{a0}\u{3000}z",
    ] {
        agree(text);
    }
    if let Some(dir) = ms_testing::shared("data/text") {
        for path in files(&dir) {
            let text = std::fs::read_to_string(path).unwrap();
            text.lines().take(150).for_each(agree);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_text_has_the_same_ids(text in "(\\PC|[ a-zA-Z0-9<|>_'\n]){0,60}") {
        agree(&text);
    }

    #[test]
    fn any_ids_have_the_same_text(ids in proptest::collection::vec(0u32..160_000, 0..30)) {
        for Pair { read, kept } in pairs() {
            for skip in [false, true] {
                prop_assert_eq!(read.decode(&ids, skip).unwrap(), kept.decode(&ids, skip).unwrap());
            }
        }
    }
}

#[test]
fn much_text_goes_to_the_engine_with_tables_and_keeps_its_ids() {
    let text = "Some words, and then some more of them. ".repeat(20_000);
    for Pair { read, kept } in pairs() {
        let want = read.encode(&text).unwrap();
        for _ in 0..3 {
            assert!(want == kept.encode(&text).unwrap());
        }
    }
}

#[test]
fn added_tokens_are_added_to_a_kept_tokenizer_too() {
    let (cache, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(TEXT, folder.path());
    let load = || Tokenizer::load_kept(folder.path(), Some(cache.path())).unwrap();
    let (mut read, mut kept) = (load(), load());
    assert_eq!(files(cache.path()).len(), 1);
    let id = read.vocab_size() as u32;
    for t in [&mut read, &mut kept] {
        assert_eq!(t.add_special("<|new|>").unwrap(), id);
        assert_eq!(t.encode("a<|new|>b").unwrap()[1], id);
    }
    assert_eq!(read.encode("x<|new|>").unwrap(), kept.encode("x<|new|>").unwrap());
}

#[test]
fn another_tokenizer_json_is_another_file_and_a_damaged_one_is_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let [cache, folder, another] = ["deep/cache", "one", "another"].map(|name| dir.path().join(name));
    train(TEXT, &folder);
    train("Other words than those of the first\n", &another);
    let ids = |t: &Tokenizer| t.encode("Hello there, world").unwrap();
    let first = Tokenizer::load_kept(&folder, Some(&cache)).unwrap();
    let file = files(&cache).remove(0);
    let good = std::fs::read(&file).unwrap();
    let damaged: [&dyn Fn() -> Vec<u8>; 4] = [
        &|| good[..good.len() / 2].to_vec(),
        &Vec::new,
        &|| {
            let mut bytes = good.clone();
            bytes[good.len() / 3] ^= 16;
            bytes
        },
        &|| b"something else".repeat(1000),
    ];
    for bytes in damaged {
        std::fs::write(&file, bytes()).unwrap();
        let again = Tokenizer::load_kept(&folder, Some(&cache)).unwrap();
        assert_eq!(ids(&again), ids(&first));
        assert!(std::fs::read(&file).unwrap() == good, "written anew");
    }
    // Another tokenizer's file under this one's name.
    Tokenizer::load_kept(&another, Some(&cache)).unwrap();
    let other = files(&cache).into_iter().find(|p| *p != file).unwrap();
    std::fs::copy(&other, &file).unwrap();
    assert_eq!(ids(&Tokenizer::load_kept(&folder, Some(&cache)).unwrap()), ids(&first));
    assert!(std::fs::read(&file).unwrap() == good);
    // One merge less: another fingerprint, other ids.
    let text = std::fs::read_to_string(folder.join("tokenizer.json")).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["model"]["merges"].as_array_mut().unwrap().remove(0);
    write_large(&folder.join("tokenizer.json"), &value.to_string());
    let changed = Tokenizer::load_kept(&folder, Some(&cache)).unwrap();
    assert_eq!(files(&cache).len(), 3);
    assert_eq!(ids(&changed), ids(&Tokenizer::load(&folder).unwrap()));
    // A folder that cannot be one does no harm.
    let none = Tokenizer::load_kept(&folder, Some(&file.join("x"))).unwrap();
    assert_eq!(ids(&none), ids(&changed));
}
