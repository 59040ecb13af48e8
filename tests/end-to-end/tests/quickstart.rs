//! The quickstart, at a smaller size: the whole life of a model through the real programs.

#![allow(clippy::unwrap_used)] // tests

mod programs;

use programs::{programs, text};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Text to train on: the sources of this workspace.
fn texts(root: &Path) -> Vec<PathBuf> {
    let mut files = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    let mut folders = vec![root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn quickstart(bin: &Path, out: &Path, more: &[&str]) -> Output {
    let root = ms_testing::workspace_root();
    Command::new("sh")
        .arg(root.join("examples/quickstart.sh"))
        .args(["--small", "--bin"])
        .arg(bin)
        .arg("--out")
        .arg(out)
        .args(more)
        .args(texts(&root))
        .env("MS_NO_PROGRESS", "1")
        .output()
        .unwrap()
}

#[test]
fn the_whole_life_of_a_small_model() {
    let bin = programs();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let first = quickstart(bin, &out, &[]);
    assert!(first.status.success(), "{}", text(&first));
    let said = text(&first);
    assert!(said.contains("the two Hugging Face folders are byte-identical"), "{said}");
    for file in [
        "tokenizer/tokenizer.json",
        "corpus_text_document.idx",
        "hf/model.safetensors",
        "scores/results.json",
    ] {
        assert!(out.join(file).is_file(), "{file} is missing: {said}");
    }
    let scores: Value =
        serde_json::from_slice(&std::fs::read(out.join("scores/results.json")).unwrap()).unwrap();
    assert_eq!(scores["question_n"].as_u64(), Some(49));
    let profile: Value = serde_json::from_slice(&std::fs::read(out.join("profile.json")).unwrap()).unwrap();
    let mfu = profile["mfu"].as_f64().unwrap();
    assert!(mfu > 0.0 && mfu.is_finite(), "{mfu}");
    assert_eq!(profile["ranks"].as_u64(), Some(2));

    // A second run keeps what is finished.
    let hf = std::fs::metadata(out.join("hf/model.safetensors")).unwrap().modified().unwrap();
    let second = quickstart(bin, &out, &[]);
    assert!(second.status.success(), "{}", text(&second));
    assert_eq!(text(&second).matches("done before, kept").count(), 10, "{}", text(&second));
    assert_eq!(std::fs::metadata(out.join("hf/model.safetensors")).unwrap().modified().unwrap(), hf);
}

#[test]
fn a_wrong_option_and_a_missing_file_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = ms_testing::workspace_root();
    let run = |args: &[&str]| {
        let script = root.join("examples/quickstart.sh");
        Command::new("sh").arg(script).args(args).current_dir(dir.path()).output().unwrap()
    };
    for (args, what) in [(&["--smal"][..], "--smal"), (&["no-such-file.txt"], "no-such-file.txt")] {
        let refused = run(args);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused).contains(what));
    }
}
