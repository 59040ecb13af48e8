//! `ms-preprocess` as a user runs it.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use assert_cmd::Command;
use std::path::{Path, PathBuf};

fn tool() -> Command {
    Command::cargo_bin("ms-preprocess").unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A folder with a small tokenizer and a few records.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = ms_text::bpe::Options { vocab_size: 300, ..Default::default() };
        let corpus = "some words and some more words. ".repeat(30);
        ms_text::bpe::train(&options, [corpus]).unwrap().write(dir.path().join("tok")).unwrap();
        let lines: String = (0..300).map(|i| format!("{{\"text\": \"some words {i}\"}}\n")).collect();
        std::fs::write(dir.path().join("in.jsonl"), lines).unwrap();
        let chats: Vec<_> = (0..40)
            .map(|i| {
                serde_json::json!({"conversations": [
                    {"from": "human", "value": format!("question {i} {}", "word ".repeat(i % 17))},
                    {"from": "gpt", "value": format!("answer {i}")}
                ]})
            })
            .collect();
        std::fs::write(dir.path().join("chats.json"), serde_json::to_vec(&chats).unwrap()).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, args: &[&str]) -> std::process::Output {
        tool()
            .current_dir(self.dir.path())
            .args(args)
            .args(["--tokenizer-name-or-path", "tok"])
            .output()
            .unwrap()
    }

    fn sets(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix))
            .map(|path| {
                (
                    path.file_name().unwrap().to_str().unwrap()[prefix.len()..].to_owned(),
                    std::fs::read(path).unwrap(),
                )
            })
            .collect();
        files.sort();
        files
    }
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_workers() {
    let bench = Bench::new();
    for workers in ["1", "2", "7"] {
        let prefix = format!("w{workers}");
        let run = bench.run(&[
            "--style",
            "pretrain",
            "--input",
            "in.jsonl",
            "--output-prefix",
            &prefix,
            "--append-eod",
            "--workers",
            workers,
        ]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        assert!(text(&run.stdout).contains("300 records"), "{}", text(&run.stdout));
    }
    assert_eq!(bench.sets("w1").len(), 2);
    assert_eq!(bench.sets("w1"), bench.sets("w2"));
    assert_eq!(bench.sets("w1"), bench.sets("w7"));
}

#[test]
fn parts_do_not_change_unpacked_bytes() {
    let bench = Bench::new();
    for (prefix, parts) in [("one", "1"), ("four", "4")] {
        let run = bench.run(&["--input", "in.jsonl", "--output-prefix", prefix, "--n-subs", parts]);
        assert!(run.status.success(), "{}", text(&run.stderr));
    }
    assert_eq!(bench.sets("one"), bench.sets("four"));
}

#[test]
fn an_existing_set_is_kept_unless_forced_or_called_as_upstream() {
    let bench = Bench::new();
    let style = ["--style", "pretrain", "--input", "in.jsonl", "--output-prefix", "x"];
    assert!(bench.run(&style).status.success());
    let run = bench.run(&style);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("exists already"), "{}", text(&run.stderr));
    assert!(bench.run(&[&style[..], &["--force"]].concat()).status.success());
    let upstream =
        ["--handler-name", "GeneralPretrainHandler", "--input", "in.jsonl", "--output-prefix", "x"];
    assert!(bench.run(&upstream).status.success());
}

#[test]
fn a_bad_record_is_named_and_nothing_is_written() {
    let bench = Bench::new();
    std::fs::write(bench.path("bad.jsonl"), "{\"text\": \"fine\"}\n{\"text\": null}\n").unwrap();
    let run = bench.run(&["--style", "pretrain", "--input", "bad.jsonl", "--output-prefix", "bad"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(
        text(&run.stderr).contains("bad.jsonl: record 2: text: missing or null"),
        "{}",
        text(&run.stderr)
    );
    assert_eq!(bench.sets("bad_").len(), 0, "no output and no temporary file");
}

#[test]
fn mistakes_are_usage_errors_with_a_hint() {
    let bench = Bench::new();
    let cases: [(&[&str], &str); 7] = [
        (
            &["--style", "sharegpt", "--input", "chats.json", "--output-prefix", "x"],
            "hint: pass --prompt-type",
        ),
        (&["--style", "pretrain", "--output-prefix", "x"], "no input"),
        (&["--style", "nonsense", "--input", "in.jsonl", "--output-prefix", "x"], "--style"),
        (&["--handler-name", "Nonsense", "--input", "in.jsonl", "--output-prefix", "x"], "unknown handler"),
        (
            &[
                "--style",
                "pretrain",
                "--pack",
                "--seq-length",
                "8",
                "--input",
                "in.jsonl",
                "--output-prefix",
                "x",
            ],
            "cannot be packed",
        ),
        (
            &["--style", "pretrain", "--split-sentences", "--input", "in.jsonl", "--output-prefix", "x"],
            "--split-sentences",
        ),
        (&["--inptu", "in.jsonl"], "--inptu"),
    ];
    for (args, want) in cases {
        let run = bench.run(args);
        assert_eq!(run.status.code(), Some(2), "{args:?}: {}", text(&run.stderr));
        assert!(text(&run.stderr).contains(want), "{args:?}: {}", text(&run.stderr));
    }
}

#[test]
fn print_args_shows_upstreams_names() {
    let run =
        tool().args(["--input", "a", "--workers", "4", "--append-eod", "--print-args"]).output().unwrap();
    let args: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(args, serde_json::json!({"input": "a", "workers": 4, "append_eod": true}));
}

#[test]
fn a_dry_run_names_the_outputs_and_writes_none() {
    let bench = Bench::new();
    let run = bench.run(&[
        "--style",
        "sharegpt",
        "--prompt-type",
        "qwen",
        "--input",
        "chats.json",
        "--output-prefix",
        "x",
        "--dry-run",
        "--json",
    ]);
    let plan: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(plan["outputs"][0], "x_packed_input_ids_document");
    assert_eq!(bench.sets("x_").len(), 0);
}

#[test]
fn whole_files_become_documents() {
    let bench = Bench::new();
    std::fs::write(bench.path("list"), "a.rs\nb.md\n").unwrap();
    std::fs::write(bench.path("a.rs"), "fn main() {}\n\nfn more() {}\n").unwrap();
    std::fs::write(bench.path("b.md"), b"bytes \xff\n").unwrap();
    let run = bench.run(&[
        "--style",
        "pretrain",
        "--documents",
        "files",
        "--files-from",
        "list",
        "--output-prefix",
        "x",
        "--json",
    ]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&report["records"], &report["outputs"][0]["sequences"]), (&2.into(), &2.into()));
}

#[test]
fn merging_joins_the_sets_of_a_folder() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("parts")).unwrap();
    for part in ["parts/a", "parts/b"] {
        assert!(bench.run(&["--input", "in.jsonl", "--output-prefix", part]).status.success());
    }
    let run =
        bench.run(&["--input", "parts", "--merge-group-keys", "text_document", "--output-prefix", "all"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let set = ms_data::indexed::IndexedDataset::open(bench.path("all_text_document")).unwrap();
    assert_eq!((set.len(), set.documents()), (600, 600));
}

#[test]
fn upstreams_command_lines_give_upstreams_bytes() {
    let Some(root) = ms_testing::shared("goldens/data") else { return };
    for name in [
        "pretrain-qwen-multikey-nsubs",
        "pack-alpaca-qwen-512",
        "messages-intern2-llama2",
        "head-alpaca-qwen-cutoff128",
    ] {
        let case = root.join(name);
        let spec: serde_json::Value =
            serde_json::from_slice(&std::fs::read(case.join("case.json")).unwrap()).unwrap();
        let args = spec["args"].as_array().or_else(|| spec["argv"].as_array()).unwrap();
        let out = tempfile::tempdir().unwrap();
        let shared = case.join("../../../");
        let words: Vec<String> = args
            .iter()
            .map(|word| word.as_str().unwrap())
            .map(|word| match word.split_once('/') {
                Some(("OUT", rest)) => out.path().join(rest).display().to_string(),
                Some(("data", _)) => shared.join(word).display().to_string(),
                _ => word.to_owned(),
            })
            .collect();
        let mut command = tool();
        command.args(&words);
        if name.starts_with("head-") {
            command.args(["--upstream", "head"]);
        }
        let run = command.output().unwrap();
        assert!(run.status.success(), "{name}: {}", text(&run.stderr));
        compare(&case, out.path(), name);
    }
}

fn compare(case: &Path, out: &Path, name: &str) {
    let mut files = 0;
    for path in std::fs::read_dir(case).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_some_and(|e| e == "bin" || e == "idx") {
            let got = std::fs::read(out.join(path.file_name().unwrap())).unwrap();
            assert!(got == std::fs::read(&path).unwrap(), "{name}: {} differs", path.display());
            files += 1;
        }
    }
    assert!(files >= 4, "{name}");
}
