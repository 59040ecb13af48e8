//! A folder to run the program in.
#![allow(dead_code)] // not every test uses all of it

use assert_cmd::Command;
use std::path::PathBuf;

pub(crate) fn tool() -> Command {
    Command::cargo_bin("ms-preprocess").unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A folder with a small tokenizer and a few records.
pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn run(&self, args: &[&str]) -> std::process::Output {
        tool()
            .current_dir(self.dir.path())
            .args(args)
            .args(["--tokenizer-name-or-path", "tok"])
            .output()
            .unwrap()
    }

    /// The dataset files whose names begin with `prefix`, by the rest of the name.
    pub(crate) fn sets(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "bin" || e == "idx"))
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
