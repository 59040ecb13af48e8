//! Long conversations, whose prefix is not computed again, and several prompts at once.

#![allow(clippy::unwrap_used)] // tests

mod tiny;

use assert_cmd::Command;
use serde_json::Value;

/// Configurations of a dense model, of one with latent attention and of two with states.
fn models() -> [(&'static str, Value); 4] {
    let sample = |name: &str| {
        let folder = ms_testing::golden_model(name).unwrap();
        let text = std::fs::read(folder.join("config.json")).unwrap();
        let mut json: Value = serde_json::from_slice(&text).unwrap();
        json["vocab_size"] = 300.into();
        json["max_position_embeddings"] = 4096.into();
        json
    };
    ["qwen3", "deepseek_v2", "mamba2", "qwen3_next"].map(|name| (name, sample(name)))
}

/// The conversation has room for 1024 tokens at first.
#[test]
fn a_conversation_that_grows_past_its_room_goes_on_from_what_was_computed() {
    for (name, json) in models() {
        let dir = tempfile::tempdir().unwrap();
        tiny::model_of(dir.path(), &json);
        let run = |lines: &str| {
            let mut command = Command::cargo_bin("ms-infer").unwrap();
            command.env("MS_NO_PROGRESS", "1").args(["chat", "-n", "8", "--history-turns", "9", "--json"]);
            command.args(["--max-position-embeddings", "4096", "--temperature", "0", "--ignore-eos"]);
            let done = command.arg("--load").arg(dir.path()).write_stdin(lines).assert().success();
            let out = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
            out.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
        };
        let long = "x ".repeat(330);
        let turns = run(&format!("{long}\nand some more\n{long}\n and the last\n"));
        let number = |turn: usize, what: &str| turns[turn][what].as_u64().unwrap();
        assert_eq!(turns.len(), 4, "{name}");
        assert!(number(1, "prompt_tokens") < 1000 && number(2, "prompt_tokens") > 1032, "{name}: {turns:?}");
        for turn in 1..4 {
            // What is new since the last turn's prompt and its reply, whose last token was not computed.
            let new = number(turn, "prompt_tokens") - number(turn - 1, "prompt_tokens") - 8;
            let computed = number(turn, "computed_tokens");
            assert_eq!(computed, new + 1 + 7, "{name}, turn {turn}: {turns:?}");
        }
    }
}

#[test]
fn a_prompt_beside_others_is_continued_as_alone() {
    let dir = tempfile::tempdir().unwrap();
    tiny::tiny_model(dir.path());
    let run = |prompts: &[&str], more: &[&str]| {
        let mut command = Command::cargo_bin("ms-infer").unwrap();
        command.env("MS_NO_PROGRESS", "1").args(["generate", "--max-new-tokens", "12", "--prompt"]);
        let done = command.args(prompts).args(more).arg("--load").arg(dir.path()).assert().success();
        String::from_utf8_lossy(&done.get_output().stdout).into_owned()
    };
    // Some begin alike.
    let prompts = ["Eight small programs", "Eight small", "Eight small programs and others", "a", "b"];
    let sampled: &[&str] = &["--temperature", "1.0", "--top-k", "20", "--seed", "3"];
    for rule in [&["--temperature", "0"][..], sampled, &["--temperature", "1.0", "--stop", "e", "t"]] {
        let reports = |prompts: &[&str], more: &[&str]| -> Vec<Value> {
            let out = run(prompts, &[rule, more, &["--json"]].concat());
            let lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
            lines
                .map(|mut report: Value| {
                    let report = report.as_object_mut().unwrap();
                    report.retain(|name, _| !name.starts_with("seconds") && name != "tokens_per_second");
                    Value::from(report.clone())
                })
                .collect()
        };
        let alone: Vec<Value> = prompts.iter().flat_map(|prompt| reports(&[prompt], &[])).collect();
        // Four and one: the last is in a slot that another prompt had; and one after the other in the same slot.
        for at_once in ["4", "1"] {
            assert_eq!(reports(&prompts, &["--prompts-at-once", at_once]), alone, "{rule:?}");
        }
        let text = |more: &[&str]| run(&prompts, &[rule, more].concat());
        assert_eq!(text(&["--prompts-at-once", "5"]), text(&[]), "{rule:?}");
    }
}
