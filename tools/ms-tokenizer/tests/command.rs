//! `ms-tokenizer` as a user runs it.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use assert_cmd::Command;
use std::path::Path;

fn tool() -> Command {
    Command::cargo_bin("ms-tokenizer").unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn train(dir: &Path) -> String {
    let corpus = dir.join("corpus");
    std::fs::create_dir_all(corpus.join("deep")).unwrap();
    std::fs::write(corpus.join("a.md"), "# Title\n\nSome words, some more words.\n".repeat(20)).unwrap();
    std::fs::write(corpus.join("deep/b.rs"), "fn main() { let words = 1; }\n".repeat(20)).unwrap();
    std::fs::write(corpus.join("c.jsonl"), "{\"text\": \"words in a record\"}\n").unwrap();
    let folder = dir.join("tok");
    let run = tool().args(["train", "--vocab-size", "280", "-o"]).args([&folder, &corpus]).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    folder.display().to_string()
}

#[test]
fn a_trained_folder_encodes_and_decodes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = train(dir.path());
    let ids = tool().args(["encode", "--tokenizer", &folder]).write_stdin("Some words, é").output().unwrap();
    assert!(ids.status.success(), "{}", text(&ids.stderr));
    for stdin in [&[][..], &["-"]] {
        let mut decode = tool();
        let back = decode
            .args(["decode", "-t", &folder])
            .args(stdin)
            .write_stdin(ids.stdout.clone())
            .output()
            .unwrap();
        assert_eq!(text(&back.stdout), "Some words, é\n");
    }
    let mixed = tool().args(["decode", "-t", &folder, "5", "-"]).write_stdin("5").output().unwrap();
    assert_eq!((mixed.status.code(), text(&mixed.stderr).contains("-: expected it alone")), (Some(2), true));
    let into = tool().args(["train", "--vocab-size", "280", "-o", "-", &folder]).output().unwrap();
    assert_eq!((into.status.code(), text(&into.stderr).contains("./- names it")), (Some(2), true));
    let json =
        tool().args(["encode", "--lines", "--json", "-t", &folder]).write_stdin("a\nb\n").output().unwrap();
    assert_eq!(text(&json.stdout).lines().count(), 2);
    assert!(text(&json.stdout).starts_with("{\"ids\":["));
}

#[test]
fn info_names_the_special_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let folder = train(dir.path());
    let run = tool().args(["info", &folder, "--json"]).output().unwrap();
    let info: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(info["vocab_size"], 280);
    assert_eq!(info["eos"]["text"], "<|endoftext|>");
    assert_eq!(info["pad"]["id"], 0);
    assert_eq!(info["chat_template"], true);
    assert_eq!(info["sha256"].as_str().unwrap().len(), 64);
}

#[test]
fn an_existing_tokenizer_is_replaced_only_with_force() {
    let dir = tempfile::tempdir().unwrap();
    let folder = train(dir.path());
    let corpus = dir.path().join("corpus");
    let again = |force: &[&str]| {
        tool()
            .args(["train", "--vocab-size", "280", "-o", &folder])
            .arg(&corpus)
            .args(force)
            .output()
            .unwrap()
    };
    let run = again(&[]);
    assert_eq!(run.status.code(), Some(1));
    assert!(
        text(&run.stderr).contains("exists already") && text(&run.stderr).contains("--force"),
        "{}",
        text(&run.stderr)
    );
    assert!(again(&["--force"]).status.success());
}

#[test]
fn mistakes_are_explained() {
    let run = tool().args(["train", "--vocab-size", "280", "-o", "x"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("no file to train on"), "{}", text(&run.stderr));
    let run = tool().args(["info", "no-such-folder"]).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("no-such-folder"), "{}", text(&run.stderr));
    let run = tool().args(["trian"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
}

#[test]
fn help_shows_examples() {
    let run = tool().arg("--help").output().unwrap();
    assert!(run.status.success());
    assert!(text(&run.stdout).contains("Examples:"), "{}", text(&run.stdout));
}

#[test]
fn compare_finds_the_same_ids_in_both_engines() {
    let dir = tempfile::tempdir().unwrap();
    let folder = train(dir.path());
    let file = dir.path().join("mixed.txt");
    std::fs::write(&file, b"Some words\n\xff\xfe broken \xe4\xbd bytes\n<|im_start|>x<|im_end|>\n\n")
        .unwrap();
    let run = tool().args(["compare", "--json", "--tokenizer", &folder]).arg(&file).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((report["lines"].as_u64(), report["differing"].as_u64()), (Some(4), Some(0)));
    assert_ne!(report["engine"], report["reference"]);
}

#[test]
fn a_large_tokenizer_is_kept_in_a_form_that_loads_at_once_and_the_variable_switches_that_off() {
    let Some(folder) = ms_testing::shared("data/tokenizers/gpt2") else { return };
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let encode = |variable: &Path| {
        let mut command = tool();
        command.env("MS_TOKENIZER_CACHE", variable).args(["encode", "-t"]).arg(&folder);
        let run = command.write_stdin("Hello there, 你好 <|endoftext|>").output().unwrap();
        assert!(run.status.success(), "{}", text(&run.stderr));
        text(&run.stdout)
    };
    let plain = encode(Path::new("off"));
    assert!(!cache.exists() && !Path::new("off").exists());
    for _ in 0..2 {
        assert_eq!(encode(&cache), plain);
    }
    let files: Vec<_> = std::fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    let good = std::fs::read(&files[0]).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    std::fs::write(&files[0], bad).unwrap();
    assert_eq!(encode(&cache), plain);
    assert!(std::fs::read(&files[0]).unwrap() == good, "a damaged file is written anew");
    // A cache that cannot be written is no error.
    assert_eq!(encode(&files[0].join("below a file")), plain);
}

#[test]
fn training_is_bounded_on_a_word_of_fifty_megabytes() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = dir.path().join("corpus.txt");
    let mut bytes = "some words before it ".repeat(200).into_bytes();
    bytes.extend((0..50u32 << 20).map(|n| b'a' + (n.wrapping_mul(2_654_435_761) >> 28) as u8));
    std::fs::write(&corpus, &bytes).unwrap();
    let folder = dir.path().join("tok");
    let started = std::time::Instant::now();
    let mut command = std::process::Command::new("sh");
    // Address space in KiB: the text three times over, and what a program takes anyway.
    command.args(["-c", "ulimit -v 1500000; exec \"$0\" \"$@\""]).arg(env!("CARGO_BIN_EXE_ms-tokenizer"));
    command.args(["train", "--vocab-size", "300", "-o"]).arg(&folder).arg(&corpus);
    let run = command.output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stderr).contains("longer than 1024 bytes"), "{}", text(&run.stderr));
    assert!(folder.join("tokenizer.json").is_file());
    assert!(started.elapsed().as_secs() < 600, "{:?}", started.elapsed());
}

#[test]
fn without_a_command_the_help_page_keeps_its_form() {
    let shown = |command: &mut Command, code: i32| {
        let done = command.output().unwrap();
        assert_eq!(done.status.code(), Some(code));
        String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
    };
    let bare = shown(&mut tool(), 2);
    assert_eq!(bare, shown(tool().arg("-h"), 0));
    assert!(bare.contains("\nUsage: ") && bare.contains("\n  encode "), "{bare}");
    let unknown = shown(tool().arg("--foo"), 2);
    assert_eq!(unknown, "ms-tokenizer: unexpected argument '--foo' found\nhint: see '--help'\n");
}
