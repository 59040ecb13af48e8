//! `ms-infer` as a user runs it.

#![allow(clippy::unwrap_used)] // tests

mod tiny;

use assert_cmd::Command;
use ms_ckpt::layout::mcore::{Experts, FileGrid, Spelling};
use ms_ckpt::{ArgsForm, Plan, Run, RunOptions};
use ms_core::GridSizes;
use ms_spec::Stages;
use ms_testing::{assert_close, golden_model, read_golden};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::path::Path;
use tiny::tiny_model;

fn ms_infer() -> Command {
    let mut command = Command::cargo_bin("ms-infer").unwrap();
    command.env_remove("MS_ISA").env("MS_NO_PROGRESS", "1");
    command
}

fn stderr(args: &[&str], code: i32) -> String {
    let failed = ms_infer().args(args).assert().code(code);
    String::from_utf8_lossy(&failed.get_output().stderr).into_owned()
}

fn write_ids(path: &Path, ids: &[i64], shape: [usize; 2]) {
    let bytes: Vec<u8> = ids.iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::I64, shape.to_vec(), &bytes).unwrap();
    std::fs::write(path, safetensors::serialize([("input_ids", view)], None).unwrap()).unwrap();
}

#[test]
fn logits_are_those_of_transformers_for_every_family() {
    let own = ["llama2_mha", "llama3_gqa", "mistral_swa", "qwen2", "qwen3"];
    let beside = ["shared/llama3_gqa", "shared/mistral_swa", "shared/qwen2", "shared/qwen3"];
    for family in own.into_iter().chain(beside) {
        let Some(model) = golden_model(family) else { continue };
        let (reference, _) = read_golden(&model.join("reference.safetensors"));
        let dir = tempfile::tempdir().unwrap();
        let (input, output) = (dir.path().join("ids.safetensors"), dir.path().join("logits.safetensors"));
        let ids = &reference["input_ids"];
        write_ids(&input, &ids.i64(), [ids.shape[0], ids.shape[1]]);
        let run = |dtype: &str| {
            let mut command = ms_infer();
            command.args(["logits", "--dtype", dtype, "--load"]).arg(&model).arg("--input").arg(&input);
            command.arg("--output").arg(&output).assert().success();
            read_golden(&output).0.remove("logits").unwrap()
        };
        let got = run("fp32");
        assert_eq!(got.shape, reference["logits"].shape);
        assert_close(family, &got.f32(), &reference["logits"].values, 0.0, 5e-4);
        // What is computed in f64 is written in f64.
        let got = run("fp64").values;
        assert_close(family, &got, &reference["logits"].values, 0.0, 5e-4);
        let digits = got.iter().filter(|&&v| v != f64::from(v as f32)).count();
        assert!(2 * digits > got.len(), "{family}: {digits} of {} have more digits than f32", got.len());
        // bf16 keeps 8 bits: single logits near zero may be off by their size, the whole may not.
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let (rounded, want) = (run("bf16").values, &reference["logits"].values);
        let error = norm(&mut rounded.iter().zip(want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied());
        assert!(error < 0.05, "{family} in bf16: relative error {error}");
    }
}

#[test]
fn files_that_do_not_say_how_experts_are_held_are_read_as_the_flag_says() {
    let mixtral = golden_model("mixtral").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("ids.safetensors"), dir.path().join("logits.safetensors"));
    write_ids(&input, &(3..19).collect::<Vec<i64>>(), [1, 16]);
    let source = ms_ckpt::open(&mixtral).unwrap();
    let shared = GridSizes { tp: 2, ep: 2, etp: Some(1), ..GridSizes::default() };
    let plan = Plan::mcore(
        source.config(),
        &FileGrid::new(&shared, Stages::default(), true).unwrap(),
        Spelling { experts: Experts::Grouped, ..Spelling::default() },
        ArgsForm::Absent,
        &|_| Ok(source.config().dtype.unwrap()),
        &Run::default(),
    );
    let written = dir.path().join("shared");
    let how = RunOptions { threads: 1, sync: false, replace: false };
    plan.unwrap().run(&source, &written, &how, &|_| ()).unwrap();
    std::fs::copy(mixtral.join("config.json"), written.join("config.json")).unwrap();
    let run = |load: &Path, more: &[&str]| {
        let mut command = ms_infer();
        command.args(["logits", "--dtype", "fp32", "--input"]).arg(&input).args(more);
        let done = command.arg("--load").arg(load).arg("--output").arg(&output).assert().success();
        let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        (read_golden(&output).0.remove("logits").unwrap().values, said)
    };
    let (want, _) = run(&mixtral, &[]);
    let (got, said) = run(&written, &["--moe-tp-extend-ep"]);
    assert!(got == want && !said.contains("--moe-tp-extend-ep"), "{said}");
    let (other, said) = run(&written, &[]);
    assert_eq!(said.matches("pass --moe-tp-extend-ep where they are read").count(), 1, "{said}");
    assert!(other != want);
}

#[test]
fn generation_streams_what_json_reports_and_a_seed_repeats_it() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let run = |extra: &[&str]| {
        let mut command = ms_infer();
        command.args(["generate", "--prompt", "Eight small programs", "--max-new-tokens", "20"]).args(extra);
        let done = command.arg("--load").arg(dir.path()).assert().success();
        String::from_utf8_lossy(&done.get_output().stdout).into_owned()
    };
    let sampled = ["--temperature", "1.0", "--top-k", "20", "--seed", "3"];
    let streamed = run(&sampled);
    let report: Value = serde_json::from_str(&run(&[&sampled[..], &["--json"]].concat())).unwrap();
    let text = format!("{}{}\n", report["prompt"].as_str().unwrap(), report["text"].as_str().unwrap());
    assert_eq!(streamed, text);
    assert!(report["tokens"].as_array().unwrap().len() <= 20);
    assert_eq!(run(&["--temperature", "0"]), run(&["--temperature", "0", "--seed", "99", "--threads", "3"]));
    assert_ne!(streamed, run(&["--temperature", "1.0", "--top-k", "20", "--seed", "4"]));
}

#[test]
fn without_a_task_all_of_upstreams_are_done_but_beam_search_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let run = |more: &[&str]| {
        let mut command = ms_infer();
        command.args(["--max-new-tokens", "4", "--prompt", "hello"]).args(more).arg("--load").arg(dir.path());
        let done = command.write_stdin("and\nquit\n").assert().success();
        let [out, said] = [&done.get_output().stdout, &done.get_output().stderr]
            .map(|t| String::from_utf8_lossy(t).into_owned());
        (out, said)
    };
    let (all, said) = run(&[]);
    assert!(said.contains("beam search"), "{said}");
    // Without the seconds, each is what its name alone gives.
    let lines = |text: &str| {
        text.lines().filter(|l| !l.starts_with("Elapsed")).map(str::to_owned).collect::<Vec<_>>()
    };
    let parts: Vec<String> =
        ["greedy", "do_sample", "chat"].iter().flat_map(|t| lines(&run(&["--task", t]).0)).collect();
    assert_eq!(lines(&all), parts);
    assert!(all.contains("== greedy ==") && all.contains("== do_sample =="), "{all}");
    // A template makes a turn of the prompt, as it does in a chat.
    let answer = |task: &str| run(&["--task", task, "--prompt-type", "qwen", "--temperature", "0"]);
    let ((greedy, said), (chat, _)) = (answer("greedy"), answer("chat"));
    let of_greedy = format!("\nModel:\n{}", chat.lines().next().unwrap());
    assert!(greedy.contains(&of_greedy) && !all.contains(&of_greedy), "{greedy}\n{chat}");
    assert!(!said.contains("--prompt-type"), "{said}");
}

#[test]
fn wrong_calls_are_refused_with_the_reason() {
    assert!(stderr(&["generate", "--prompt", "x"], 2).contains("--load"));
    assert!(stderr(&["genrate"], 2).contains("genrate"));
    assert!(stderr(&["generate", "--prompt", "x", "--load", "no-such-folder"], 1).contains("no-such-folder"));
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let load = dir.path().to_str().unwrap();
    assert!(stderr(&["generate", "--prompt", "x", "--load", load, "--top-p", "1.5"], 2).contains("top-p"));
    let input = dir.path().join("ids.safetensors");
    write_ids(&input, &[1, 2, 400, 3], [1, 4]);
    let args = ["logits", "--load", load, "--input", input.to_str().unwrap(), "--output", "out.safetensors"];
    let message = stderr(&args, 1);
    assert!(message.contains("400") && message.contains("300"), "{message}");
    assert!(!Path::new("out.safetensors").exists());
    std::fs::write(dir.path().join("model.safetensors"), b"short").unwrap();
    assert!(stderr(&["generate", "--prompt", "x", "--load", load], 1).contains("model.safetensors"));
}

#[test]
fn flags_of_another_command_are_refused_or_said_to_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let load = dir.path().to_str().unwrap();
    for (args, words) in [
        (
            &["generate", "--prompt", "Eight", "--output", "f"][..],
            "--output: generate does not read it; it belongs to logits",
        ),
        (&["generate", "--system", "Be brief."], "--system: generate does not read it; it belongs to chat"),
        (&["chat", "--no-echo"], "--no-echo: chat does not read it; it belongs to generate"),
        (
            &["--task", "greedy", "--json"],
            "--json: --task greedy does not read it; it belongs to generate, chat, logits",
        ),
        (&["logits", "--prompt", "Eight"], "--prompt: logits does not read it; it belongs to generate, chat"),
        (&["--task", "greedy", "--min-p", "0.1"], "--min-p: --task greedy does not read it"),
        (&["generate", "--task", "chat"], "--task: cannot be combined with the command generate"),
    ] {
        let failed = ms_infer().args(args).args(["--load", load]).assert().code(2);
        let said = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(said.contains(words), "{said}");
    }
    // Upstream's scripts have theirs in every call.
    let said = |args: &[&str]| {
        let done = ms_infer().args(args).args(["--load", load, "--max-new-tokens", "2"]).assert().success();
        String::from_utf8_lossy(&done.get_output().stderr).into_owned()
    };
    let prompt = ["--prompt", "Eight"];
    for (args, words) in [
        (
            &["generate", "--history-turns", "3"][..],
            "--history-turns has no effect in generate: it belongs to chat",
        ),
        (
            &["--task", "greedy", "--top-k", "5"],
            "--top-k has no effect in --task greedy: it belongs to generate, chat, --task do_sample",
        ),
        (&["generate", "--temperature", "0", "--top-k", "5"], "--top-k has no effect with --temperature 0"),
    ] {
        let said = said(&[args, &prompt].concat());
        assert!(said.contains(words), "{said}");
    }
    // A configuration file is for several commands.
    let file = dir.path().join("all.toml");
    std::fs::write(&file, "system = \"Be brief.\"\nno_echo = false\n").unwrap();
    assert!(
        !said(&["generate", "--prompt", "Eight", "--config", file.to_str().unwrap()]).contains("--system")
    );
    // What a task that runs, too, reads is no mistake.
    assert!(
        !said(&["--task", "greedy", "do_sample", "--top-k", "5", "--prompt", "Eight"]).contains("--top-k")
    );
}

#[test]
fn logits_say_what_they_wrote_and_what_the_model_is_not_made_for() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let [input, output] = ["ids.safetensors", "out.safetensors"].map(|name| dir.path().join(name));
    let run = |tokens: usize| {
        write_ids(&input, &vec![1; tokens], [1, tokens]);
        let mut command = ms_infer();
        command.arg("logits").arg("--load").arg(dir.path()).arg("--input").arg(&input);
        let done = command.arg("--output").arg(&output).arg("--json").assert().success();
        let [out, err] = [&done.get_output().stdout, &done.get_output().stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        (serde_json::from_str::<Value>(&out).unwrap(), err)
    };
    let (report, said) = run(4);
    assert_eq!(report["shape"], serde_json::json!([1, 4, 300]));
    assert_eq!(report["output"], output.display().to_string());
    assert!(!said.contains("longer"), "{said}");
    let (_, said) = run(260);
    assert!(said.contains("--input: sequences of 260 tokens are longer than the 256"), "{said}");
}

#[test]
fn logits_go_from_stdin_to_stdout_where_names_are_minus() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let [input, output] = ["ids.safetensors", "out.safetensors"].map(|name| dir.path().join(name));
    write_ids(&input, &[1, 2, 3], [1, 3]);
    let run = || {
        let mut command = ms_infer();
        // The command behind a flag, too.
        command.current_dir(dir.path()).args(["-q", "logits", "--load", "."]);
        command
    };
    run().arg("--input").arg(&input).arg("--output").arg(&output).assert().success();
    let piped = run().args(["--input", "-", "--output", "-"]).pipe_stdin(&input).unwrap().assert().success();
    assert!(piped.get_output().stdout == std::fs::read(&output).unwrap());
    assert!(!dir.path().join("-").exists());
    let refused = run().args(["--json", "--input", "-", "--output", "-"]).assert().code(2);
    let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(said.contains("--output -: the logits go to stdout, and so does what --json says"), "{said}");
    let refused = run().args(["--input", "-", "--output", "-"]).write_stdin("{}").assert().code(1);
    let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(said.contains("stdin: not a safetensors file"), "{said}");
}

/// Puts one value that is not a number into the weights of a model.
fn break_a_weight(dir: &Path) {
    let path = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
    // Its checksum would be the first to say so.
    std::fs::remove_file(dir.join(ms_ckpt::CHECKSUMS)).unwrap();
}

#[test]
fn a_weight_that_is_no_number_stops_every_command() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    break_a_weight(dir.path());
    let load = dir.path().to_str().unwrap();
    for rule in [&["--temperature", "0"][..], &["--temperature", "1"], &["--json"]] {
        let args = [&["generate", "--dtype", "fp32", "--prompt", "Eight", "--load", load][..], rule].concat();
        let message = stderr(&args, 1);
        assert!(message.contains("logits are not finite at token "), "{message}");
        assert!(message.contains(" of sequence 0"), "{message}");
    }
    let (input, output) = (dir.path().join("ids.safetensors"), dir.path().join("out.safetensors"));
    write_ids(&input, &[1, 2, 3, 4], [2, 2]);
    let message = stderr(
        &["logits", "--load", load, "--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()],
        1,
    );
    assert!(message.contains("logits are not finite at token 0 of sequence 0"), "{message}");
    assert!(!output.exists());
}

#[test]
fn numbers_of_a_configuration_that_nothing_can_be_computed_with_are_refused_by_their_name() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let path = dir.path().join("config.json");
    let sound = std::fs::read_to_string(&path).unwrap();
    let load = dir.path().to_str().unwrap();
    for (field, value) in
        [("rope_theta", "0"), ("rope_theta", "NaN"), ("rms_norm_eps", "-1e-6"), ("rms_norm_eps", "Infinity")]
    {
        let other = sound.replacen('{', &format!("{{\n  \"{field}\": {value},"), 1);
        // The later of two fields of one name wins, so the sound one goes.
        let mut lines: Vec<&str> = other.lines().collect();
        let second = lines.iter().rposition(|l| l.contains(&format!("\"{field}\""))).unwrap();
        if second > 1 {
            lines.remove(second);
        }
        std::fs::write(&path, lines.join("\n")).unwrap();
        let message = stderr(&["generate", "--prompt", "x", "--load", load], 1);
        assert!(message.contains(&format!("`{field}`: expected ")), "{field} {value}: {message}");
    }
}

#[test]
fn numbers_out_of_range_are_refused_by_the_flags_name() {
    for (flag, value) in [("--top-k", "-5"), ("--top-p", "1.5"), ("--temperature", "nan"), ("--threads", "0")]
    {
        let message = stderr(&["generate", "--prompt", "x", "--load", "x", &format!("{flag}={value}")], 2);
        assert!(message.contains(&format!("{flag}: expected ")), "{flag} {value}: {message}");
    }
}

#[test]
fn several_prompts_stop_texts_and_the_end_of_the_window() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let load = dir.path().to_str().unwrap();
    let run = |args: &[&str]| -> Vec<Value> {
        let mut command = ms_infer();
        command
            .args(["generate", "--dtype", "fp32", "--temperature", "0", "--json", "--load", load])
            .args(args);
        let done = command.assert().success();
        let out = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        out.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    };
    let two = run(&["--prompt", "Eight", "small", "-n", "8", "--ignore-eos"]);
    assert_eq!(two.iter().map(|r| r["prompt"].as_str().unwrap()).collect::<Vec<_>>(), ["Eight", "small"]);
    assert_eq!(two, {
        let again = run(&["--prompt", "Eight", "--prompt", "small", "--max-new-tokens", "8", "--ignore-eos"]);
        let timeless = |r: &Value, other: &Value| {
            let mut r = r.clone();
            for key in ["seconds_to_first_token", "tokens_per_second"] {
                r[key] = other[key].clone();
            }
            r
        };
        again.iter().zip(&two).map(|(r, o)| timeless(r, o)).collect::<Vec<_>>()
    });
    // -1 goes on until the window of 256 is full, which is no error.
    let whole = &run(&["--prompt", "Eight", "-n", "-1", "--ignore-eos"])[0];
    let tokens = |r: &Value| r["tokens"].as_array().unwrap().len() as u64;
    assert_eq!(whole["finish"], "length");
    assert_eq!(whole["prompt_tokens"].as_u64().unwrap() + tokens(whole), 257, "the last one needs no place");
    assert_eq!(run(&["--prompt", "Eight", "-n", "100000", "--ignore-eos"])[0]["tokens"], whole["tokens"]);
    // A text that occurs ends the answer and is not part of it.
    let text = whole["text"].as_str().unwrap();
    let stop: String = text.chars().skip(20).take(3).collect();
    let stopped = &run(&["--prompt", "Eight", "-n", "-1", "--ignore-eos", "--stop", &stop])[0];
    assert_eq!(stopped["finish"], "stop");
    assert_eq!(stopped["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    let stops = |ids: &Value| {
        std::fs::write(dir.path().join("generation_config.json"), format!("{{\"eos_token_id\": {ids}}}"))
            .unwrap();
    };
    stops(&serde_json::json!([0, -1, whole["tokens"][2]]));
    let ended = &run(&["--prompt", "Eight", "-n", "-1"])[0];
    assert!(ended["finish"] == "stop" && tokens(ended) <= 3, "{ended}");
    assert_eq!(run(&["--prompt", "Eight", "-n", "-1", "--ignore-eos"])[0]["tokens"], whole["tokens"]);
    stops(&"end".into());
    assert!(stderr(&["generate", "--prompt", "x", "--load", load], 1).contains("eos_token_id is a token or"));
    stops(&Value::Null);
    // Greedily the same tokens come again and again; a penalty changes that.
    assert_ne!(
        run(&["--prompt", "Eight", "-n", "40", "--repetition-penalty", "5"])[0]["tokens"],
        whole["tokens"]
    );
    let echoed = |extra: &[&str]| {
        let mut command = ms_infer();
        command.args(["generate", "--prompt", "Eight", "-n", "3", "--load", load]).args(extra);
        String::from_utf8_lossy(&command.assert().success().get_output().stdout).into_owned()
    };
    assert!(echoed(&[]).starts_with("Eight") && !echoed(&["--no-echo"]).starts_with("Eight"));
}

#[test]
fn wrong_numbers_and_prompts_are_known_before_anything_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path());
    let load = dir.path().to_str().unwrap();
    let long = "word ".repeat(2000);
    for (args, want) in [
        (&["--prompt", "Eight", "--min-p", "2"][..], "--min-p: expected"),
        (&["--prompt", "Eight", "--repetition-penalty", "0"], "--repetition-penalty: expected"),
        (&["--prompt", "Eight", &long], "the model's window 256"),
        (&["--prompt", "Eight", ""], "--prompt: it has no tokens"),
        (&["--task", "greedy", "--prompt", &long], "the model's window 256"),
        (&["--task", "greedy", "--prompt", ""], "--prompt: it has no tokens"),
        (&["--task", "greedy", "--prompt", "Eight", "nine"], "--prompt: greedy answers one, found 2"),
    ] {
        let command: &[&str] = if args[0] == "--task" { &[] } else { &["generate"] };
        let failed = ms_infer().args(command).args(["--load", load]).args(args).assert().code(2);
        let output = failed.get_output();
        assert!(output.stdout.is_empty());
        assert!(String::from_utf8_lossy(&output.stderr).contains(want), "{output:?}");
    }
    // Another model's tokenizer is found out before the prompt is echoed.
    let other = tempfile::tempdir().unwrap();
    let vocab: Vec<String> =
        (0..5000).map(|i| format!("\"t{i}\": {i}")).chain(["\"Ω\": 5000".into()]).collect();
    let vocab = vocab.join(", ");
    let json = format!(
        "{{\"version\": \"1.0\", \"model\": {{\"type\": \"BPE\", \"vocab\": {{{vocab}}}, \"merges\": []}}}}"
    );
    std::fs::write(other.path().join("tokenizer.json"), json).unwrap();
    let mut command = ms_infer();
    command.args(["generate", "--prompt", "Ω", "--load", load, "--tokenizer-name-or-path"]).arg(other.path());
    let failed = command.assert().code(1);
    let output = failed.get_output();
    assert!(
        output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).contains("token 5000 is not in")
    );
}

#[test]
fn a_name_of_a_hub_says_how_to_download() {
    let dir = tempfile::tempdir().unwrap();
    for words in
        ["generate --prompt x", "chat --prompt x", "logits --input ids.safetensors --output out.safetensors"]
    {
        let mut command = ms_infer();
        command.current_dir(dir.path()).args(words.split(' ')).args(["--load", "meta-llama/Llama-3.1-8B"]);
        let failed = command.assert().failure();
        let said = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        if words.starts_with("logits") {
            // The input is looked at first.
            assert!(said.contains("ids.safetensors"), "{said}");
        } else {
            assert!(
                said.contains("hint: names of a hub are not looked up: hf download meta-llama/Llama-3.1-8B"),
                "{said}"
            );
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_model_that_cannot_fit_is_refused_before_its_weights_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    tiny_model(&model);
    // The same model with a window of four million tokens: two layers of 16 elements, keys and values, in bf16.
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["max_position_embeddings"] = 4_000_000.into();
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    let run = |limit: u64, words: &[&str]| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("ulimit -v {limit}; exec \"$0\" \"$@\"")]);
        command.arg(assert_cmd::cargo::cargo_bin("ms-infer")).args(words).arg("--load").arg(&model);
        let done = command.output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (code, said) = run(700_000, &["generate", "--prompt", "a", "--max-new-tokens", "-1"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("memory: this run needs about ") && said.contains("--max-new-tokens"), "{said}");
    let (code, said) = run(2_000_000, &["generate", "--prompt", "a", "--max-new-tokens", "2"]);
    assert_eq!(code, Some(0), "{said}");
    // Logits of 400,000 tokens over a vocabulary of 300.
    let ids = dir.path().join("ids.safetensors");
    write_ids(&ids, &vec![1; 400_000], [1, 400_000]);
    let out = dir.path().join("logits.safetensors");
    let files = ["--input", ids.to_str().unwrap(), "--output", out.to_str().unwrap()];
    let (code, said) = run(1_500_000, &[&["logits"][..], &files].concat());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("memory: this run needs about "), "{said}");
    assert!(!out.exists());
}

#[test]
fn what_becomes_of_every_flag_is_explained() {
    let flags = "generate --explain --json --moe-router-load-balancing-type none --router-gating-in-fp32 \
                 --moe-expert-capacity-factor 1 --num-nextn-predict-layers 1 --lr 1";
    let done = ms_infer().args(flags.split_whitespace()).assert().success();
    let found: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let rows = found["flags"].as_array().unwrap();
    let row =
        |flag: &str| rows.iter().find(|r| r["flag"] == flag).unwrap_or_else(|| panic!("{flag}: {found}"));
    for (flag, status, note) in [
        ("--moe-router-load-balancing-type", "acts", "router and load-balancing loss"),
        ("--router-gating-in-fp32", "acts", "logits in float32"),
        ("--moe-expert-capacity-factor", "no effect", "no tokens are dropped in inference"),
        ("--num-nextn-predict-layers", "no effect", "generation predicts one token at a time"),
        ("--lr", "no effect", "acts in ms-train"),
    ] {
        let row = row(flag);
        assert!(row["status"] == status && row["note"].as_str().unwrap().contains(note), "{row}");
    }
    let refused =
        ms_infer().args(["--explain", "--use-torch-fsdp2", "--upstream", "head"]).assert().success();
    let text = String::from_utf8_lossy(&refused.get_output().stdout).into_owned();
    let is_refused = |line: &str| line.starts_with("refused") && line.contains("--use-torch-fsdp2");
    assert!(text.lines().any(is_refused), "{text}");
}

#[test]
fn flags_beside_a_checkpoint_win_or_are_refused_with_the_weight_that_they_contradict() {
    let model = golden_model("aquila").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let run = |flags: &[&str]| {
        let out = dir.path().join("out.safetensors");
        let mut command = assert_cmd::Command::cargo_bin("ms-infer").unwrap();
        command
            .args(["logits", "--load"])
            .arg(&model)
            .arg("--input")
            .arg(model.join("reference.safetensors"));
        let done = command.arg("--output").arg(&out).args(flags).output().unwrap();
        let bytes = done.status.success().then(|| std::fs::read(&out).unwrap());
        (done.status.code(), bytes, String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (_, plain, _) = run(&[]);
    let same = [
        "--num-layers",
        "3",
        "--hidden-size",
        "32",
        "--rotary-base",
        "10000",
        "--swiglu",
        "--norm-epsilon",
        "1e-6",
    ];
    assert_eq!(run(&same).1, plain, "what the checkpoint says itself");
    let checkpoint_wins = run(&["--use-checkpoint-args", "--rotary-base", "1000000"]);
    assert_eq!(checkpoint_wins.1, plain);
    for flags in [["--rotary-base", "1000000"], ["--norm-epsilon", "0.5"], ["--sliding-window", "2"]] {
        let (code, changed, said) = run(&flags);
        assert_eq!(code, Some(0), "{flags:?}: {said}");
        assert_ne!(changed, plain, "{flags:?} has no effect");
    }
    // Newer upstreams form yarn's factor of the lengths.
    let yarn = |version: &str, factor: &str| {
        let flags = format!(
            "--upstream {version} --rope-scaling-type yarn --max-position-embeddings 2048 --rope-scaling-factor {factor} \
             --rope-scaling-original-max-position-embeddings 16"
        );
        let (code, written, said) = run(&flags.split_whitespace().collect::<Vec<_>>());
        assert_eq!(code, Some(0), "{said}");
        written.unwrap()
    };
    assert_ne!(yarn("v2.0.0", "2"), yarn("v2.0.0", "128"));
    assert_eq!(yarn("head", "2"), yarn("v2.0.0", "128"));
    for (flags, says) in [
        (["--num-layers", "7"], "--num-layers 7: the model then has a weight decoder.layers.3."),
        (
            ["--hidden-size", "64"],
            "--hidden-size 64: the weight embedding.word_embeddings.weight is then [128, 64]",
        ),
        (
            ["--vocab-size", "5000"],
            "--vocab-size 5000: the model of --load has 128 tokens, and its embedding 128 rows",
        ),
    ] {
        let (code, _, said) = run(&flags);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(says), "{said}");
    }
}
