//! What every program answers about itself.

#![allow(clippy::unwrap_used)] // tests

mod programs;

use programs::{program, text};

const ALL: [&str; 8] = [
    "ms-tokenizer",
    "ms-preprocess",
    "ms-pack",
    "ms-train",
    "ms-convert",
    "ms-infer",
    "ms-eval",
    "ms-profile",
];

#[test]
fn every_program_has_completions_a_man_page_help_and_a_version() {
    let dir = tempfile::tempdir().unwrap();
    for name in ALL {
        let say = |args: &[&str]| {
            let output = program(name, dir.path()).args(args).output().unwrap();
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{name} {args:?}: {}",
                text(&output)
            );
            String::from_utf8(output.stdout).unwrap()
        };
        for shell in ["bash", "zsh", "fish"] {
            assert!(say(&["completions", shell]).contains(name), "{name} {shell}");
        }
        assert!(say(&["man"]).starts_with(".ie") || say(&["man"]).contains(".TH"), "{name}");
        assert!(say(&["-h"]).lines().count() <= say(&["--help"]).lines().count(), "{name}");
        assert!(say(&["--version"]).starts_with(name));
        say(&["help"]);
        let refused = program(name, dir.path()).args(["completions", "tcsh"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{name}");
    }
}

#[test]
fn help_is_folded_and_searched() {
    let dir = tempfile::tempdir().unwrap();
    let say = |name: &str, args: &[&str]| {
        let output = program(name, dir.path()).args(args).output().unwrap();
        (output.status.code(), text(&output))
    };
    let (_, whole) = say("ms-train", &["--help"]);
    assert!(whole.contains("--help model") && !whole.contains("\n  --kv-lora-rank"));
    assert!(say("ms-train", &["--help", "model"]).1.contains("\n  --kv-lora-rank"));
    let (code, about) = say("ms-infer", &["help", "stop"]);
    assert!(code == Some(0) && about.contains("  --stop TEXT.."), "{about}");
    assert_eq!(say("ms-infer", &["help", "xyzzy"]).0, Some(2));
    // What is nearly a flag or a value is guessed among those of the program.
    let (_, guess) = say("ms-infer", &["generate", "--max-new-token", "3"]);
    assert!(guess.contains("did you mean --max-new-tokens?"), "{guess}");
    let (_, guess) = say("ms-train", &["--lr-decay-style", "cosin"]);
    assert!(guess.contains("did you mean cosine?"), "{guess}");
}

#[test]
fn errors_are_json_where_messages_are() {
    let dir = tempfile::tempdir().unwrap();
    for name in ALL {
        let output =
            program(name, dir.path()).args(["--log-format", "json", "--no-such-flag"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        let line: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap_or_else(|e| {
            panic!("{name}: {e}: {}", text(&output));
        });
        assert_eq!(line["level"], "ERROR", "{name}");
        assert!(line["message"].as_str().unwrap().contains("--no-such-flag"), "{name}: {line}");
    }
}
