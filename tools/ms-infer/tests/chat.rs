//! `ms-infer chat` as a user runs it.

#![allow(clippy::unwrap_used)] // tests

mod tiny;

use assert_cmd::Command;
use serde_json::Value;
use tiny::tiny_model;

fn ms_infer() -> Command {
    let mut command = Command::cargo_bin("ms-infer").unwrap();
    command.env_remove("MS_ISA").env("MS_NO_PROGRESS", "1");
    command
}

#[test]
fn a_scripted_chat_answers_each_turn() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let mut command = ms_infer();
    command.args(["chat", "--max-new-tokens", "6", "--json", "--load"]).arg(dir.path());
    let done = command.write_stdin("hello\n\nand again\nquit\nnot read\n").assert().success();
    let out = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    let turns: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(turns.iter().map(|t| t["user"].as_str().unwrap()).collect::<Vec<_>>(), ["hello", "and again"]);
}

#[test]
fn a_template_whose_tokens_the_model_does_not_have_is_named() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    // The vocabulary is that of the tokenizer without a token of the template.
    let failed = |template: &str| {
        let mut command = ms_infer();
        command
            .args(["chat", "-n", "4", "--prompt", "x", "--prompt-type", template, "--load"])
            .arg(dir.path());
        command.write_stdin("").assert().get_output().stderr.clone()
    };
    let said = |template: &str| String::from_utf8_lossy(&failed(template)).into_owned();
    assert!(said("llama3").contains("--prompt-type adds "), "{}", said("llama3"));
    assert!(!said("qwen").contains("--prompt-type adds"), "{}", said("qwen"));
}

#[test]
fn a_line_that_is_no_text_is_of_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let mut command = ms_infer();
    let failed = command
        .args(["chat", "-n", "4", "--load"])
        .arg(dir.path())
        .write_stdin(&b"\xff\n"[..])
        .assert()
        .code(1);
    let said = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(said.contains("ms-infer: standard input: stream did not contain valid UTF-8"), "{said}");
}

#[test]
fn a_chat_has_commands_and_a_first_turn_that_is_none() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let chat = |args: &[&str], lines: &str| {
        let mut command = ms_infer();
        command
            .args(["chat", "-n", "4", "--json", "--load"])
            .arg(dir.path())
            .args(args)
            .current_dir(dir.path());
        command.write_stdin(lines.to_owned()).assert()
    };
    let turns = |assert: assert_cmd::assert::Assert| -> Vec<String> {
        let out = String::from_utf8_lossy(&assert.success().get_output().stdout).into_owned();
        let user = |l: &str| serde_json::from_str::<Value>(l).unwrap()["user"].as_str().unwrap().to_owned();
        out.lines().map(user).collect()
    };
    assert_eq!(turns(chat(&["--prompt", "quit"], "and on\n/exit\nnot read\n")), ["quit", "and on"]);
    assert_eq!(turns(chat(&["--prompt", "one", "-"], "two\n/exit\n")), ["one", "two\n/exit\n"]);
    turns(chat(&[], "one\n/system Be brief.\ntwo\n/save talk.json\n/reset\nthree\n/save later.json\n"));
    let saved = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(dir.path().join(name)).unwrap()).unwrap()
    };
    let roles = |name: &str| -> Vec<String> {
        let saved = saved(name);
        let list = saved["messages"].as_array().unwrap().clone();
        list.iter().map(|m| m["role"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(roles("talk.json"), ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(roles("later.json"), ["system", "user", "assistant"]);
    let failed = chat(&[], "/restart\n").code(2);
    assert!(
        String::from_utf8_lossy(&failed.get_output().stderr).contains("/restart: expected /exit, /reset")
    );
    // A path is no command.
    assert_eq!(turns(chat(&[], "/etc/hosts is a file\n")), ["/etc/hosts is a file"]);
    // A conversation may grow beyond the window of 256 tokens: the oldest turns are forgotten, none is an error.
    let many = "some words that take their room in the window\n".repeat(20);
    assert_eq!(turns(chat(&["--history-turns", "100"], &many)).len(), 20);
    let failed = chat(&[], &"word ".repeat(400)).code(2);
    let said = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(said.contains("this turn has ") && said.contains("the model's window 256"), "{said}");
}

#[test]
fn a_chat_computes_what_is_new_and_generated_tokens_alone() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let mut command = ms_infer();
    command.args(["chat", "-n", "4", "--history-turns", "9", "--json", "--load"]).arg(dir.path());
    let done = command.write_stdin("some first words\nand some more\nand then the last\n").assert().success();
    let out = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    let turns: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let number = |turn: usize, name: &str| turns[turn][name].as_u64().unwrap();
    assert_eq!(turns.len(), 3, "{out}");
    // The first turn is computed whole; of its answer all but the last token, which nothing follows.
    assert_eq!(number(0, "computed_tokens"), number(0, "prompt_tokens") + number(0, "tokens") - 1);
    for turn in 1..3 {
        // At most what came to the conversation, its words of the template, and the answer, whose text may be cut into other
        // tokens when it is read again.
        let new = number(turn, "prompt_tokens") - number(turn - 1, "prompt_tokens");
        let computed = number(turn, "computed_tokens");
        assert!(computed < new + number(turn, "tokens"), "turn {turn}: {out}");
        assert!(computed < number(turn, "prompt_tokens"), "turn {turn}: {out}");
    }
}
