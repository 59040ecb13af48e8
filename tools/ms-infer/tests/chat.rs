//! Long conversations: what was computed once is not computed again.

#![allow(clippy::unwrap_used)] // tests

mod tiny;

use assert_cmd::Command;
use serde_json::{Value, json};

/// Configurations of a dense model, of one with latent attention and of two with states.
fn models() -> [(&'static str, Value); 4] {
    let sample = |name: &str, more: Value| {
        let folder = ms_testing::golden_model(name).unwrap();
        let text = std::fs::read(folder.join("config.json")).unwrap();
        let mut json: Value = serde_json::from_slice(&text).unwrap();
        json["vocab_size"] = 300.into();
        json["max_position_embeddings"] = 4096.into();
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json
    };
    ["qwen3", "deepseek_v2", "mamba2", "qwen3_next"].map(|name| (name, sample(name, json!({}))))
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
            // What is new since the last turn's prompt and its reply, of which the last token was not computed.
            let new = number(turn, "prompt_tokens") - number(turn - 1, "prompt_tokens") - 8;
            let computed = number(turn, "computed_tokens");
            assert_eq!(computed, new + 1 + 7, "{name}, turn {turn}: {turns:?}");
        }
    }
}
