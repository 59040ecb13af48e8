//! Upstream's command lines through the program produce upstream's bytes.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use assert_cmd::Command;
use std::path::Path;

/// Cases that are also run shard by shard: dropped samples, packs, pairs.
const BY_SHARDS: [&str; 3] =
    ["pretrain-gpt2-seqlen-skip", "neatpack-alpaca-zh-llama3-248", "pairwise-alpaca-qwen"];

#[test]
fn upstreams_command_lines_give_upstreams_bytes() {
    let Some(root) = ms_testing::shared("goldens/data") else { return };
    let mut cases: Vec<_> = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|case| case.join("cmd.txt").exists());
    cases.sort();
    // Two at a time: most of a case is reading its tokenizer.
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    check(case, case.file_name().unwrap().to_str().unwrap());
                }
            });
        }
    });
    assert!(cases.len() >= 31, "{}", cases.len());
}

/// Runs the case in a folder of its own, through files and through shards.
fn check(case: &Path, name: &str) {
    let command = std::fs::read_to_string(case.join("cmd.txt")).unwrap();
    // The first line says what follows, the first word of the second one is upstream's program.
    let line = command.lines().find(|line| line.contains("--input")).unwrap();
    let line = ms_testing::words(line);
    let start = line.iter().position(|word| word.starts_with("--")).unwrap();
    for resume in [false, true] {
        if resume && !BY_SHARDS.contains(&name) {
            continue;
        }
        let out = tempfile::tempdir().unwrap();
        let shared = case.join("../../../");
        let words = line[start..].iter().map(|word| match word.split_once('/') {
            Some(("OUT", rest)) => out.path().join(rest).display().to_string(),
            Some(("data", _)) => shared.join(word).display().to_string(),
            _ => word.clone(),
        });
        let mut command = Command::cargo_bin("ms-preprocess").unwrap();
        command.args(words);
        if name.starts_with("head-") {
            command.args(["--upstream", "head"]);
        }
        if resume {
            command.arg("--resume");
        }
        let run = command.output().unwrap();
        assert!(run.status.success(), "{name}: {}", String::from_utf8_lossy(&run.stderr));
        let mut files = 0;
        for path in std::fs::read_dir(case).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|e| e == "bin" || e == "idx") {
                let got = std::fs::read(out.path().join(path.file_name().unwrap())).unwrap();
                assert!(got == std::fs::read(&path).unwrap(), "{name}: {} differs", path.display());
                files += 1;
            }
        }
        assert!(files >= 2, "{name}");
    }
}

/// Values: transformers 4.57.6, Llama's slow and fast class; upstream uses the slow one with this flag.
#[test]
fn the_slow_class_is_taken_with_its_flag_alone() {
    let dir = tempfile::tempdir().unwrap();
    let llama = dir.path().join("llama");
    std::fs::create_dir(&llama).unwrap();
    std::fs::copy(ms_testing::golden("tokenizers/bpe.model"), llama.join("tokenizer.model")).unwrap();
    let config = r#"{"tokenizer_class": "LlamaTokenizer", "legacy": false}"#;
    std::fs::write(llama.join("tokenizer_config.json"), config).unwrap();
    let input = dir.path().join("in.jsonl");
    std::fs::write(&input, "{\"text\": \" a\"}\n").unwrap();
    let ids = |name: &str, flags: &[&str]| -> Vec<u8> {
        let prefix = dir.path().join(name);
        Command::cargo_bin("ms-preprocess")
            .unwrap()
            .args(["--style", "pretrain", "--input"])
            .arg(&input)
            .arg("--tokenizer-name-or-path")
            .arg(&llama)
            .arg("--output-prefix")
            .arg(&prefix)
            .args(flags)
            .assert()
            .success();
        std::fs::read(dir.path().join(format!("{name}_text_document.bin"))).unwrap()
    };
    let bytes = |ids: &[i32]| -> Vec<u8> { ids.iter().flat_map(|id| id.to_le_bytes()).collect() };
    assert_eq!(ids("fast", &[]), bytes(&[1, 264]));
    assert_eq!(ids("slow", &["--tokenizer-not-use-fast"]), bytes(&[1, 632, 264]));
}
