//! `ms-eval` as a user runs it.

#![allow(clippy::unwrap_used)] // tests

use assert_cmd::Command;
use serde_json::Value;
use std::path::Path;

fn ms_eval() -> Command {
    let mut command = Command::cargo_bin("ms-eval").unwrap();
    command.env_remove("MS_ISA").env("MS_NO_PROGRESS", "1");
    command
}

/// A model folder of random weights and a byte-level tokenizer without a chat template in use.
fn tiny_model(dir: &Path) {
    let text =
        "What is one plus one? A. two B. three C. four D. five Answer: A The following are multiple choice";
    let options = ms_text::bpe::Options { vocab_size: 280, ..Default::default() };
    let json = serde_json::json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 280, "max_position_embeddings": 512,
    });
    let config = ms_spec::hf::read_config(&json).unwrap();
    let mut weights = |spec: &ms_spec::ParamSpec| {
        let mut values = vec![1f32; spec.shape.numel()];
        if spec.shape.len() == 2 {
            ms_core::Rng::named(5, &spec.name).fill_normal(&mut values, 0.3);
        }
        Ok(values.iter().flat_map(|v| v.to_le_bytes()).collect())
    };
    ms_ckpt::write_hf(dir, &config, ms_core::DType::F32, true, &mut weights).unwrap();
    // After the weights: writing a model replaces its folder.
    ms_text::bpe::train(&options, [text.to_owned()]).unwrap().write(dir).unwrap();
}

fn quiz(dir: &Path) {
    for (folder, rows) in [("dev", 5), ("test", 7)] {
        std::fs::create_dir_all(dir.join(folder)).unwrap();
        for subject in ["easy_sums", "hard_sums"] {
            let row = |i: usize| {
                format!("What is {i} plus {i}?,{},{},{},{},{}\n", 2 * i, i, i + 1, 0, ["A", "A", "B"][i % 3])
            };
            let text: String = (0..rows).map(row).collect();
            std::fs::write(dir.join(folder).join(format!("{subject}_{folder}.csv")), text).unwrap();
        }
    }
}

#[test]
fn what_changes_nothing_is_said_and_two_ways_to_name_a_task_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (dir.path().join("model"), dir.path().join("quiz"));
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    quiz(&data);
    let run = |args: &[&str]| {
        let mut command = ms_eval();
        command.args(args).arg("--load").arg(&model).arg("--data-path").arg(&data).assert()
    };
    let said = |args: &[&str]| {
        let done = run(args).success();
        String::from_utf8_lossy(&done.get_output().stderr).into_owned()
    };
    let harness = said(&["mmlu", "--protocol", "harness", "--max-new-tokens", "3", "--no-chat-template"]);
    assert!(harness.contains("--max-new-tokens has no effect: mmlu is scored by likelihood"), "{harness}");
    assert!(harness.contains("--no-chat-template has no effect: mmlu's prompts are plain"), "{harness}");
    assert!(!said(&["mmlu", "--max-new-tokens", "1"]).contains("has no effect"));
    let behind = run(&["--json", "-q", "mmlu", "--max-new-tokens", "1"]).success();
    let report: Value = serde_json::from_slice(&behind.get_output().stdout).unwrap();
    assert_eq!(report["question_n"].as_u64(), Some(14));
    let failed = run(&["mmlu", "--task", "boolq"]).code(2);
    let said = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(said.contains("--task: cannot be combined with the command mmlu"), "{said}");
}

#[test]
fn a_score_is_a_table_a_report_and_one_line_per_question() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (dir.path().join("model"), dir.path().join("quiz"));
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    quiz(&data);
    for extra in [&["--protocol", "harness"][..], &["--max-new-tokens", "1", "--no-chat-template"]] {
        let out = dir.path().join(extra[1]);
        let mut command = ms_eval();
        command.args(["mmlu", "--dtype", "fp32"]).args(extra).arg("--load").arg(&model);
        let done = command.arg("--data-path").arg(&data).arg("--output").arg(&out).assert().success();
        let table = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        assert!(table.contains("easy_sums") && table.contains("total"), "{table}");
        let results: Value =
            serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap();
        assert_eq!(results["question_n"].as_u64(), Some(14));
        let samples = std::fs::read_to_string(out.join("samples.jsonl")).unwrap();
        let samples: Vec<Value> = samples.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let right = samples.iter().filter(|s| s["right"] == true).count() as u64;
        assert_eq!((samples.len(), Some(right)), (14, results["correct"].as_u64()));
        assert_eq!(samples[0]["id"], "easy_sums/0");
        for s in &samples {
            assert_eq!(s["right"] == true, s["picked"] == s["gold"]);
        }
    }
    // Upstream's spelling, any number of threads: the same answers.
    let again = dir.path().join("again");
    let mut command = ms_eval();
    command
        .args(["--task", "mmlu", "--dtype", "fp32", "--protocol", "harness", "--threads", "3", "--load"])
        .arg(&model);
    command.arg("--task-data-path").arg(data.join("test")).arg("--output").arg(&again).assert().success();
    let samples = |folder: &Path| std::fs::read(folder.join("samples.jsonl")).unwrap();
    assert_eq!(samples(&again), samples(&dir.path().join("harness")));
}

#[test]
fn missing_data_and_unknown_tasks_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str], code: i32| {
        let failed = ms_eval().args(args).assert().code(code);
        String::from_utf8_lossy(&failed.get_output().stderr).into_owned()
    };
    assert!(run(&["chess", "--load", "x"], 2).contains("chess"));
    assert!(run(&["mmlu", "--load", "x"], 2).contains("--data-path"));
    let empty = dir.path().to_str().unwrap();
    assert!(run(&["mmlu", "--load", "x", "--data-path", empty], 1).contains("_test.csv"));
}

#[test]
fn a_weight_that_is_no_number_is_no_score() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (dir.path().join("model"), dir.path().join("quiz"));
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    quiz(&data);
    let weights = model.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&weights, bytes).unwrap();
    // Its checksum would be the first to say so.
    std::fs::remove_file(model.join(ms_ckpt::CHECKSUMS)).unwrap();
    for extra in [&["--protocol", "harness"][..], &["--no-chat-template"]] {
        let out = dir.path().join("scores");
        let mut command = ms_eval();
        command.args(["mmlu", "--dtype", "fp32", "--load"]).arg(&model).arg("--data-path").arg(&data);
        let failed = command.args(extra).arg("--output").arg(&out).assert().code(1);
        let message = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(message.contains("question easy_sums/0"), "{message}");
        assert!(message.contains("logits are not finite at token "), "{message}");
        assert!(!out.exists());
    }
    // Where scores cannot be written nothing is computed.
    let mut command = ms_eval();
    command.args(["mmlu", "--dtype", "fp32", "--load"]).arg(&model).arg("--data-path").arg(&data);
    let failed = command.arg("--output").arg(model.join("config.json")).assert().code(1);
    let message = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(message.contains("config.json: expected a folder, found a file"), "{message}");
}

#[test]
fn log_likelihoods_are_those_of_the_harness_item_by_item() {
    let Some(root) = ms_testing::shared("goldens/eval/loglikelihood") else { return };
    let golden: Value = serde_json::from_slice(&std::fs::read(root.join("golden.json")).unwrap()).unwrap();
    let tokenizer =
        ms_testing::shared("data/tokenizers").unwrap().join(golden["tokenizer"].as_str().unwrap());
    let mut seen = 0;
    for task in golden["tasks"].as_object().unwrap().values() {
        let mut command = ms_eval();
        command
            .args([
                task["task"].as_str().unwrap(),
                "--protocol",
                "harness",
                "--dtype",
                "fp32",
                "--json",
                "--load",
            ])
            .arg(root.join("model"));
        command.arg("--tokenizer-name-or-path").arg(&tokenizer);
        command.arg("--data-path").arg(root.join("data").join(task["data"].as_str().unwrap()));
        command.args(task["flags"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()));
        let done = command.assert().success();
        let got: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        assert_eq!(got["acc"].as_f64(), task["acc"].as_f64());
        assert_eq!(got["acc_norm"].as_f64(), task["acc_norm"].as_f64());
        let (items, want) = (got["items"].as_array().unwrap(), task["items"].as_array().unwrap());
        assert_eq!(items.len(), want.len());
        for (item, want) in items.iter().zip(want) {
            for (a, b) in item["loglikelihood"]
                .as_array()
                .unwrap()
                .iter()
                .zip(want["loglikelihood"].as_array().unwrap())
            {
                let off = (a.as_f64().unwrap() - b.as_f64().unwrap()).abs();
                assert!(off <= 1e-4, "{}: off by {off:e}", want["id"]);
            }
            assert_eq!((&item["picked"], &item["gold"]), (&want["picked"], &want["gold"]), "{}", want["id"]);
            seen += 1;
        }
    }
    assert_eq!(seen, 15 + 15 + 12 + 10);
}

#[test]
fn white_space_around_a_question_does_not_change_its_score_under_the_harness() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (dir.path().join("model"), dir.path().join("quiz"));
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    quiz(&data);
    let items = || {
        let mut command = ms_eval();
        command.args(["mmlu", "--protocol", "harness", "--num-fewshot", "1", "--json", "--load"]).arg(&model);
        let done = command.arg("--data-path").arg(&data).assert().success();
        let got: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        got["items"].clone()
    };
    let plain = items();
    for file in ["dev/easy_sums_dev.csv", "test/easy_sums_test.csv"] {
        let text = std::fs::read_to_string(data.join(file)).unwrap();
        let spaced = text.replace("What is", "  What is").replace("?,", "?\t ,");
        assert_ne!(text, spaced);
        std::fs::write(data.join(file), spaced).unwrap();
    }
    assert_eq!(items(), plain);
}

/// Two questions of each benchmark that comes as JSON lines.
fn lines(dir: &Path) {
    std::fs::create_dir_all(dir.join("dev")).unwrap();
    let yes_or_no = |q: &str, answer: bool| serde_json::json!({"passage": "Snow is white.", "question": q, "answer": answer});
    let rows = [yes_or_no("is snow white", true), yes_or_no("is snow black", false)];
    std::fs::write(dir.join("dev/dev.jsonl"), rows.map(|r| format!("{r}\n")).concat()).unwrap();
    let how = |gold: usize| serde_json::json!({"query": "What is one", "choices": ["plus one?", "two", "B.", "A"], "gold": gold});
    std::fs::write(dir.join("hellaswag.jsonl"), format!("{}\n{}\n", how(0), how(3))).unwrap();
}

#[test]
fn every_benchmark_of_a_command_has_its_object_and_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data, out) = (dir.path().join("model"), dir.path().join("data"), dir.path().join("out"));
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    lines(&data);
    let mut command = ms_eval();
    command.args(["--task", "boolq", "hellaswag", "--protocol", "harness", "--json", "--load"]).arg(&model);
    let done = command.arg("--data-path").arg(&data).arg("--output").arg(&out).assert().failure();
    // One folder for both: boolq's rows are looked for in hellaswag's file, which says so by its line.
    let message = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(message.contains("hellaswag.jsonl: line 1: expected text under "), "{message}");
    assert!(!out.exists());
    let run = |words: &[&str], path: &Path| {
        let mut command = ms_eval();
        command.args(words).args(["--json", "--load"]).arg(&model).arg("--data-path").arg(path);
        let done = command.arg("--output").arg(&out).assert().success();
        serde_json::from_slice::<Value>(&done.get_output().stdout).unwrap()
    };
    let got = run(&["hellaswag", "--protocol", "harness", "--max-eval-samples", "1"], &data);
    assert_eq!((got["question_n"].as_u64(), got["items"][0]["gold"].as_u64()), (Some(1), Some(0)));
    assert!(got["acc_norm"].is_number());
    let mut command = ms_eval();
    command.args(["hellaswag", "--protocol", "harness", "--max-eval-samples", "1", "--load"]).arg(&model);
    let done = command.arg("--data-path").arg(&data).assert().success();
    let table = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    assert!(table.contains("acc = 0/1=0.0\n") || table.contains("acc = 1/1=1.0\n"), "{table}");
    // MindSpeed-LLM's way: the likelier of Yes and No, which is no log-likelihood of a whole answer.
    let got = run(&["boolq", "--no-chat-template"], &data.join("dev"));
    assert_eq!((got["question_n"].as_u64(), got.get("items"), got.get("acc_norm")), (Some(2), None, None));
    let samples = std::fs::read_to_string(out.join("samples.jsonl")).unwrap();
    for (line, gold) in samples.lines().zip(["T", "F"]) {
        let sample: Value = serde_json::from_str(line).unwrap();
        let all: Vec<f64> =
            sample["output"].as_str().unwrap().split([' ', ',']).filter_map(|w| w.parse().ok()).collect();
        assert_eq!((all.len(), sample["gold"].as_str()), (2, Some(gold)));
        assert_eq!(sample["picked"], if all[1] >= all[0] { "T" } else { "F" });
    }
}

#[test]
fn two_benchmarks_write_into_folders_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data, out) = (dir.path().join("model"), dir.path().join("data"), dir.path().join("out"));
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    lines(&data);
    std::fs::rename(data.join("hellaswag.jsonl"), dir.path().join("elsewhere")).unwrap();
    let mut command = ms_eval();
    command.args(["boolq", "boolq", "--protocol", "harness", "--json", "--load"]).arg(&model);
    let done = command.arg("--data-path").arg(&data).arg("--output").arg(&out).assert().success();
    assert_eq!(String::from_utf8_lossy(&done.get_output().stdout).lines().count(), 2);
    assert!(out.join("boolq/results.json").is_file() && !out.join("results.json").exists());
}

#[test]
fn a_benchmark_is_refused_where_it_has_no_meaning() {
    let refused = |words: &[&str], says: &str| {
        let failed = ms_eval().args(words).args(["--load", "x", "--data-path", "y"]).assert().code(2);
        let message = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(message.contains(says), "{message}");
    };
    refused(&["hellaswag"], "pass --protocol harness");
    refused(&["cmmlu"], "pass --protocol harness");
    refused(&["ceval"], "pass --protocol harness");
    refused(
        &["boolq", "--protocol", "harness", "--num-fewshot", "3"],
        "--num-fewshot: boolq has no solved examples",
    );
}

#[test]
fn a_prompt_beyond_the_window_loses_its_beginning_under_the_harness() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (dir.path().join("model"), dir.path().join("data"));
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    std::fs::create_dir(&data).unwrap();
    // Single letters without merges: one token each, and a window of 512.
    let items = |front: &str| {
        let row = serde_json::json!({
            "query": format!("{front}{}", "x".repeat(600)), "choices": ["zz", "z", "q", "qq"], "gold": 0,
        });
        std::fs::write(data.join("val.jsonl"), format!("{row}\n")).unwrap();
        let mut command = ms_eval();
        command
            .args(["hellaswag", "--protocol", "harness", "--dtype", "fp32", "--json", "--load"])
            .arg(&model);
        let done = command.arg("--data-path").arg(&data).assert().success();
        serde_json::from_slice::<Value>(&done.get_output().stdout).unwrap()
    };
    let (plain, other) = (items(""), items("jjjjjjj"));
    assert_eq!(plain["overlong_prompts"], 1);
    assert_eq!(plain["items"], other["items"]);
}

#[test]
fn an_end_token_stands_for_an_empty_prompt_under_the_harness() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (dir.path().join("model"), dir.path().join("data"));
    std::fs::create_dir_all(&data).unwrap();
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    let items = |query: &str| {
        let row = serde_json::json!({"query": query, "choices": ["one", "two", "B.", "A"], "gold": 0});
        std::fs::write(data.join("val.jsonl"), format!("{row}\n")).unwrap();
        let mut command = ms_eval();
        command.args(["hellaswag", "--protocol", "harness", "--json", "--load"]).arg(&model);
        let done = command.arg("--data-path").arg(&data).assert().success();
        serde_json::from_slice::<Value>(&done.get_output().stdout).unwrap()["items"].clone()
    };
    // The tokenizer has no token that begins texts.
    assert_eq!(items(""), items("<|endoftext|>"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_model_that_cannot_fit_is_refused_before_its_weights_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (dir.path().join("model"), dir.path().join("quiz"));
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    quiz(&data);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -v 300000; exec \"$0\" \"$@\""]).arg(assert_cmd::cargo::cargo_bin("ms-eval"));
    // A generated answer may have as many tokens as the flag says: its keys and values have places from the start.
    command.args(["mmlu", "--no-chat-template", "--max-new-tokens", "2000000", "--load"]).arg(&model);
    let done = command.arg("--data-path").arg(&data).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("memory: this run needs about ") && said.contains("--max-new-tokens"), "{said}");
}

#[test]
fn a_flag_that_contradicts_a_weight_is_refused_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (dir.path().join("model"), dir.path().join("quiz"));
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    quiz(&data);
    let mut command = assert_cmd::Command::cargo_bin("ms-eval").unwrap();
    command.args(["mmlu", "--no-chat-template", "--num-layers", "4", "--load"]).arg(&model);
    let done = command.arg("--data-path").arg(&data).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("--num-layers 4: the model then has a weight decoder.layers.1."), "{said}");
}

#[test]
fn chinese_benchmarks_are_scored_by_log_likelihood() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    for (task, split, [asked, solved]) in [
        ("cmmlu", "test", ["college_law.csv", "college_law.csv"]),
        ("ceval", "val", ["law_val.csv", "law_dev.csv"]),
    ] {
        let data = dir.path().join(task);
        let text = "id,Question,A,B,C,D,Answer\n0,一,a,b,c,d,C\n1,二,a,b,c,d,A\n";
        for (folder, file) in [(split, asked), ("dev", solved)] {
            std::fs::create_dir_all(data.join(folder)).unwrap();
            std::fs::write(data.join(folder).join(file), text).unwrap();
        }
        for shots in ["0", "2"] {
            let mut command = ms_eval();
            command
                .args([task, "--protocol", "harness", "--num-fewshot", shots, "--json", "--load"])
                .arg(&model);
            let done = command.arg("--data-path").arg(&data).assert().success();
            let got: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
            assert_eq!((got["question_n"].as_u64(), got["items"][0]["gold"].as_u64()), (Some(2), Some(2)));
            assert_eq!(got["acc"], got["acc_norm"], "every choice has one character");
        }
        // Without the flag there are five solved examples, and these files have two.
        let mut command = ms_eval();
        command.args([task, "--protocol", "harness", "--load"]).arg(&model);
        let failed = command.arg("--data-path").arg(&data).assert().failure();
        let message = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(message.contains("expected 5 solved examples, found 2"), "{message}");
        // The solved examples alone: they are no questions behind themselves.
        let mut command = ms_eval();
        command.args([task, "--protocol", "harness", "--num-fewshot", "1", "--load"]).arg(&model);
        let failed = command.arg("--data-path").arg(data.join("dev")).assert().failure();
        let message = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(message.contains("other questions than the 1 solved examples"), "{message}");
    }
}

#[test]
fn what_becomes_of_every_flag_is_explained() {
    let flags = "mmlu --explain --json --moe-router-load-balancing-type none --num-nextn-predict-layers 1 --lr 1 \
                 --max-new-tokens 3";
    let done = ms_eval().args(flags.split_whitespace()).assert().success();
    let found: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let rows = found["flags"].as_array().unwrap();
    for (flag, status, note) in [
        ("--moe-router-load-balancing-type", "acts", "router and load-balancing loss"),
        ("--num-nextn-predict-layers", "no effect", "generation predicts one token at a time"),
        ("--lr", "no effect", "acts in ms-train"),
        ("--max-new-tokens", "acts", "tokens to generate"),
    ] {
        let row = rows.iter().find(|r| r["flag"] == flag).unwrap_or_else(|| panic!("{flag}: {found}"));
        assert!(row["status"] == status && row["note"].as_str().unwrap().contains(note), "{row}");
    }
    let refused = ms_eval().args(["--explain", "--use-torch-fsdp2", "--upstream", "head"]).assert().success();
    let text = String::from_utf8_lossy(&refused.get_output().stdout).into_owned();
    let is_refused = |line: &str| line.starts_with("refused") && line.contains("--use-torch-fsdp2");
    assert!(text.lines().any(is_refused), "{text}");
}
