//! What every program says about itself: help, version, completions, man page.

#![allow(clippy::unwrap_used)] // tests

mod programs;

use programs::{MODEL, program, text};

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
    assert!(say("ms-train", &["--help", "warmup"]).1.contains("\n  --lr-warmup-iters N"));
    assert!(say("ms-train", &["--help", "upstream"]).1.starts_with("Upstream flags accepted without effect"));
    for (name, word, flag) in [
        ("ms-tokenizer", "vocab", "train --vocab-size"),
        ("ms-pack", "seq-length", "pack --seq-length"),
        ("ms-profile", "micro", "schedule --micro-batches"),
    ] {
        let (code, about) = say(name, &["help", word]);
        assert!(code == Some(0) && about.contains(&format!("\n  {flag}")), "{about}");
        assert!(say(name, &["help", "xyzzy"]).1.contains("no flag is about that"), "{name}");
    }
    for name in ALL {
        assert!(say(name, &["--help"]).1.contains(&format!("{name} completions bash|zsh|fish")), "{name}");
    }
    assert_eq!(say("ms-infer", &["help", "xyzzy"]).0, Some(2));
    // What is nearly a flag or a value is guessed among those of the program.
    let (_, guess) = say("ms-infer", &["generate", "--max-new-token", "3"]);
    assert!(guess.contains("did you mean --max-new-tokens?"), "{guess}");
    let (_, guess) = say("ms-train", &["--lr-decay-style", "cosin"]);
    assert!(guess.contains("did you mean cosine?"), "{guess}");
    let (_, guess) = say("ms-eval", &["mmul", "--load", "x", "--data-path", "y"]);
    assert!(guess.contains("did you mean mmlu?"), "{guess}");
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

/// A command of every program that fails while it works, and what its message names.
const FAILING: [(&str, &str, &str); 8] = [
    ("ms-tokenizer", "info no-such-folder", "no-such-folder"),
    (
        "ms-preprocess",
        "--style pretrain --input none.jsonl --tokenizer-name-or-path tok --output-prefix x",
        "none.jsonl",
    ),
    ("ms-pack", "verify no-such-set", "no-such-set"),
    (
        "ms-train",
        "--load no-such-folder --data-path x --train-iters 1 --lr 1 --seq-length 8 --micro-batch-size 1",
        "no-such",
    ),
    ("ms-convert", "inspect no-such-folder", "no-such-folder"),
    ("ms-infer", "generate --prompt x --load no-such-folder", "no-such-folder"),
    ("ms-eval", "boolq --load no-such-folder --data-path no-such-data", "no-such-data"),
    ("ms-profile", "report no-such-folder", "no-such-folder"),
];

#[test]
fn a_failure_is_an_object_where_results_or_messages_are() {
    let dir = tempfile::tempdir().unwrap();
    for (name, words, names) in FAILING {
        for form in [&["--json"][..], &["--log-format", "json"], &["--log-format=json", "--quiet"]] {
            let output =
                program(name, dir.path()).args(words.split_whitespace()).args(form).output().unwrap();
            assert!(matches!(output.status.code(), Some(1 | 2)), "{name} {form:?}: {}", text(&output));
            assert!(output.stdout.is_empty(), "{name} {form:?}: {}", text(&output));
            let said = String::from_utf8(output.stderr.clone()).unwrap();
            let last = said.lines().last().unwrap_or_default();
            let line: serde_json::Value = serde_json::from_str(last).unwrap_or_else(|e| {
                panic!("{name} {form:?}: {e}: {}", text(&output));
            });
            assert_eq!(line["level"], "ERROR", "{name} {form:?}");
            assert!(line["message"].as_str().unwrap().contains(names), "{name} {form:?}: {line}");
        }
    }
}

/// A command of every program that works in the workshop, its output under the name OUT.
fn working() -> [(&'static str, String); 8] {
    let train = format!(
        "{MODEL} --tokenizer-name-or-path tok --data-path data_text_document --split 90,10,0 --train-iters 2 --eval-iters 0 \
         --lr 1e-3 --log-interval 1 --threads 1 --save OUT"
    );
    [
        ("ms-tokenizer", "train --vocab-size 280 --output OUT text.jsonl".to_owned()),
        (
            "ms-preprocess",
            "--style pretrain --input text.jsonl --tokenizer-name-or-path tok --output-prefix OUT".to_owned(),
        ),
        ("ms-pack", "verify data_text_document".to_owned()),
        ("ms-train", train),
        ("ms-convert", "hf mcore --load hf --save OUT".to_owned()),
        ("ms-infer", "generate --load hf --prompt some --max-new-tokens 2 --threads 1".to_owned()),
        ("ms-eval", "mmlu --load hf --data-path quiz --protocol harness --threads 1".to_owned()),
        ("ms-profile", "schedule --pipeline-model-parallel-size 2 --micro-batches 4".to_owned()),
    ]
}

#[test]
fn a_terminal_that_can_only_add_text_gets_no_colours_and_quiet_is_quiet() {
    let dir = programs::workshop();
    for (name, words) in working() {
        let words = words.replace("OUT", &format!("{name}-quiet"));
        let mut command = program(name, dir.path());
        let output = command
            .args(words.split_whitespace())
            .arg("--quiet")
            .env("TERM", "dumb")
            .env_remove("MS_NO_PROGRESS")
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {}", text(&output));
        // Warnings are said all the same.
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.lines().all(|line| line.contains("WARN")), "{name} --quiet: {said}");
        assert!(!text(&output).contains('\u{1b}'), "{name}: {}", text(&output));
    }
}

/// What a program prints on a terminal of its own: all of it, or with `messages` what goes to standard error alone.
#[cfg(target_os = "linux")]
fn on_a_terminal(name: &str, words: &str, term: &str, messages: bool, folder: &std::path::Path) -> String {
    let rest = if messages { " >/dev/null" } else { "" };
    let line = format!("{} {words}{rest}", programs::programs().join(name).display());
    let output = std::process::Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .current_dir(folder)
        .env("TERM", term)
        .env("RUST_BACKTRACE", "0")
        .env_remove("MS_NO_PROGRESS")
        .env_remove("NO_COLOR")
        .stdin(std::process::Stdio::null())
        .output()
        .expect("script(1), which every Debian has");
    let said = text(&output);
    assert!(output.status.success(), "{name} {words}: {said}");
    said
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_terminal_too_dumb_is_plain_quiet_is_quiet_and_messages_are_objects() {
    let dir = programs::workshop();
    let mut coloured = 0;
    for (name, words) in working() {
        let said = |term: &str, more: &str, messages: bool| {
            let out = format!("{name}-{}{messages}", more.replace([' ', '-'], ""));
            let words = words.replace("OUT", &format!("{out}{term}"));
            on_a_terminal(name, &format!("{words} {more}"), term, messages, dir.path())
        };
        let dumb = said("dumb", "", false);
        assert!(!dumb.contains('\u{1b}'), "{name}: {dumb:?}");
        // Nothing is drawn over.
        assert!(!dumb.replace("\r\n", "\n").contains('\r'), "{name}: {dumb:?}");
        coloured += usize::from(said("xterm", "", false).contains('\u{1b}'));
        for term in ["dumb", "xterm"] {
            let quiet = said(term, "--quiet", true);
            let lines = || quiet.lines().map(str::trim).filter(|line| !line.is_empty());
            assert!(lines().all(|line| line.contains("WARN")), "{name} --quiet: {quiet:?}");
            for more in ["--log-format json", "--log-format json --json"] {
                let messages = said(term, more, true);
                for line in messages.lines().map(str::trim).filter(|line| !line.is_empty()) {
                    let object = serde_json::from_str::<serde_json::Value>(line);
                    assert!(
                        object.is_ok_and(|o| o["level"].is_string()),
                        "{name} {more} on {term}: {line:?}"
                    );
                }
            }
        }
    }
    assert!(coloured > 0, "a terminal of other kinds does get colours or bars");
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_text_is_refused_by_every_program_in_the_same_words() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"bad\xff.jsonl");
    let flags = [
        ("ms-tokenizer", "train --vocab-size 300 --output x"),
        ("ms-preprocess", "--style pretrain --output-prefix x --input"),
        ("ms-pack", "verify"),
        ("ms-train", "--data-path"),
        ("ms-convert", "inspect"),
        ("ms-infer", "generate --load"),
        ("ms-eval", "mmlu --load"),
        ("ms-profile", "report"),
    ];
    for (program_name, words) in flags {
        let output = program(program_name, dir.path()).args(words.split(' ')).arg(name).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{program_name}: {}", text(&output));
        let said = text(&output);
        assert!(said.contains("argument \"bad\\xFF.jsonl\" is not UTF-8"), "{program_name}: {said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn standard_output_that_takes_nothing_is_named() {
    let dir = programs::workshop();
    for (name, words) in [
        ("ms-tokenizer", "encode --tokenizer tok text.jsonl"),
        ("ms-tokenizer", "--help"),
        ("ms-pack", "cat data_text_document"),
        ("ms-pack", "help rows"),
        ("ms-train", "--help"),
        ("ms-infer", "generate --load hf --prompt some -n 2"),
        ("ms-convert", "inspect hf"),
        ("ms-eval", "mmlu --load hf --data-path quiz --protocol harness"),
        (
            "ms-preprocess",
            "--style pretrain --input text.jsonl --tokenizer-name-or-path tok --output-prefix -",
        ),
        ("ms-profile", "schedule --pipeline-model-parallel-size 2 --micro-batches 4"),
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = program(name, dir.path()).args(words.split(' ')).stdout(full).output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{name} {words}: {said}");
        assert!(said.contains("standard output") || said.contains("stdout"), "{name} {words}: {said}");
    }
}
