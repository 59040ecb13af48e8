//! Chat data in common formats, inputs of which nothing remains, and protected outputs.

#![allow(clippy::unwrap_used)] // tests

mod bench;

use bench::{Bench, text};
use serde_json::{Value, json};
use std::path::Path;

fn write(path: &Path, records: &[Value]) {
    let lines: String = records.iter().map(|r| format!("{r}\n")).collect();
    std::fs::write(path, lines).unwrap();
}

/// Conversations of two turns, their parts under the given names.
fn chats(list: &str, role: &str, content: &str, speakers: [&str; 2]) -> Vec<Value> {
    (0..30)
        .map(|i| {
            json!({list: [
                {role: speakers[0], content: format!("question {i}")},
                {role: speakers[1], content: format!("answer {i}")}
            ]})
        })
        .collect()
}

#[test]
fn the_same_conversations_under_any_names_give_the_same_bytes() {
    let bench = Bench::new();
    write(&bench.path("classic.jsonl"), &chats("conversations", "from", "value", ["human", "gpt"]));
    write(&bench.path("modern.jsonl"), &chats("messages", "role", "content", ["user", "assistant"]));
    write(&bench.path("other.jsonl"), &chats("dialogue", "role", "content", ["user", "bot"]));
    let make = |style: &str, input: &str, prefix: &str, more: &[&str]| {
        let args = ["--style", style, "--prompt-type", "qwen", "--input", input, "--output-prefix", prefix];
        let run = bench.run(&[&args[..], more].concat());
        assert!(run.status.success(), "{style} {input}: {}", text(&run.stderr));
        (bench.sets(&format!("{prefix}_")), text(&run.stderr))
    };
    let (want, said) = make("sharegpt", "classic.jsonl", "a", &[]);
    assert!(!want.is_empty() && !said.contains("map-keys"), "{said}");
    let (found, said) = make("sharegpt", "modern.jsonl", "b", &[]);
    assert!(found == want && said.contains("messages of role and content"), "{said}");
    // What was found is what --map-keys would have said.
    let keys = r#"{"messages":"messages","tags":{"role_tag":"role","content_tag":"content","user_tag":"user",
        "assistant_tag":"assistant","system_tag":"system"}}"#;
    assert!(make("sharegpt", "modern.jsonl", "c", &["--map-keys", keys]).0 == want);
    assert!(make("sharegpt", "other.jsonl", "d", &[]).0 == want);
    // OpenAI's style, in both versions, and the style that looks by itself.
    let (openai, _) = make("openai", "modern.jsonl", "e", &["--upstream", "head"]);
    assert!(openai == want);
    assert!(make("openai", "modern.jsonl", "f", &[]).0 == openai);
    assert!(make("openai", "classic.jsonl", "g", &[]).0 == want);
    for (input, prefix, said_so) in [
        ("classic.jsonl", "h", "--style sharegpt: the first record has conversations of from and value"),
        ("modern.jsonl", "i", "--style openai: the first record has messages of role and content"),
        ("other.jsonl", "j", "--style sharegpt: the first record has dialogue of role and content"),
    ] {
        let (sets, said) = make("auto", input, prefix, &[]);
        assert!(sets == want && said.contains(said_so), "{said}");
    }
}

#[test]
fn records_of_other_styles_are_recognised() {
    let bench = Bench::new();
    let run = bench.run(&["--style", "auto", "--input", "in.jsonl", "--output-prefix", "x"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stderr).contains("--style pretrain: the first record has text"));
    write(&bench.path("odd.jsonl"), &[json!({"title": "a", "body": "b"})]);
    let run = bench.run(&["--style", "auto", "--input", "odd.jsonl", "--output-prefix", "y"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("title, body"), "{}", text(&run.stderr));
    std::fs::write(bench.path("cut.jsonl"), "{\"text\": \n").unwrap();
    let run = bench.run(&["--style", "auto", "--input", "cut.jsonl", "--output-prefix", "z"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("cut.jsonl: record 1"), "{}", text(&run.stderr));
}

#[test]
fn an_input_of_which_nothing_is_left_is_an_error_that_says_why() {
    let bench = Bench::new();
    let chat =
        [json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})];
    write(&bench.path("chat.jsonl"), &chat);
    write(&bench.path("alone.jsonl"), &[json!({"instruction": "a", "input": "", "output": ""})]);
    std::fs::write(bench.path("nothing.jsonl"), "").unwrap();
    write(&bench.path("blank.jsonl"), &[json!({"text": ""}), json!({"text": ""})]);
    let cases: [(&[&str], &[&str]); 6] = [
        (&["--style", "pretrain", "--input", "nothing.jsonl"], &["nothing.jsonl", "no record"]),
        (&["--style", "pretrain", "--input", "blank.jsonl"], &["blank.jsonl", "no record holds a token"]),
        (
            &["--style", "pretrain", "--input", "in.jsonl", "--filter", "chars>=1000"],
            &["300 were refused by --filter"],
        ),
        (
            &["--style", "pretrain", "--input", "in.jsonl", "--sample", "1e-9"],
            &["300 were left out by --sample"],
        ),
        (
            &["--style", "alpaca", "--prompt-type", "qwen", "--input", "chat.jsonl", "--on-error", "skip"],
            &[
                "1 could not be used",
                "the fields messages",
                "hint: it has messages of role and content: --style openai",
            ],
        ),
        (
            &["--style", "sharegpt-pretrain", "--upstream", "head", "--input", "nothing.jsonl"],
            &["there is no record in it"],
        ),
    ];
    for (args, want) in cases {
        let run = bench.run(&[args, &["--output-prefix", "none"]].concat());
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{args:?}: {said}");
        for part in want {
            assert!(said.contains(part), "{args:?}: {said}");
        }
        let left: Vec<_> = std::fs::read_dir(bench.dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.contains("none") && !name.contains("rejects"))
            .collect();
        assert!(left.is_empty(), "{args:?}: {left:?}");
    }
}

#[test]
fn records_of_another_style_are_an_error_with_the_style_that_reads_them() {
    let bench = Bench::new();
    write(&bench.path("alpaca.jsonl"), &[json!({"instruction": "a", "input": "", "output": "b"})]);
    write(&bench.path("odd.jsonl"), &[json!({"question": "a", "answer": "b"})]);
    let cases: [(&[&str], &str); 4] = [
        (
            &["openai", "--input", "alpaca.jsonl", "--prompt-type", "qwen"],
            "instruction and output: --style alpaca",
        ),
        (&["pretrain", "--input", "alpaca.jsonl"], "instruction and output: --style alpaca"),
        (&["sharegpt", "--input", "in.jsonl", "--prompt-type", "qwen"], "text: --style pretrain"),
        (&["pretrain", "--input", "odd.jsonl"], ": --json-keys names"),
    ];
    for (args, hint) in cases {
        let run = bench.run(&[&["--style"], args, &["--output-prefix", "none"]].concat());
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("record 1: ") && said.contains("missing or null"), "{args:?}: {said}");
        assert!(said.contains("hint: the first record has ") && said.contains(hint), "{args:?}: {said}");
    }
    let odd =
        ["--style", "alpaca", "--prompt-type", "qwen", "--input", "odd.jsonl", "--output-prefix", "none"];
    let run = bench.run(&odd);
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing is left") && said.contains("it has no answer"), "{said}");
    assert!(said.contains("the fields question, answer\nhint: --map-keys names"), "{said}");
}

#[test]
fn a_field_that_no_record_has_is_an_error_instead_of_an_empty_text() {
    let bench = Bench::new();
    write(
        &bench.path("odd.jsonl"),
        &[json!({"question": "a", "output": "b"}), json!({"question": "c", "output": "d"})],
    );
    write(
        &bench.path("late.jsonl"),
        &[json!({"instruction": "a", "output": "b"}), json!({"instruction": "c", "output": "d", "sys": "e"})],
    );
    let alpaca = ["--style", "alpaca", "--prompt-type", "qwen", "--input"];
    let cases: [(&[&str], Option<&str>); 5] = [
        (&["odd.jsonl"], Some("field instruction; the first one has question, output")),
        (&["late.jsonl", "--map-keys", r#"{"prompt": "qustion"}"#], Some("field qustion; ")),
        (&["late.jsonl", "--map-keys", r#"{"system": "system"}"#], Some("field system; ")),
        (&["odd.jsonl", "--map-keys", r#"{"prompt": "question", "query": ""}"#], None),
        (&["late.jsonl", "--map-keys", r#"{"system": "sys", "history": null}"#], None),
    ];
    for (i, (args, refusal)) in cases.into_iter().enumerate() {
        let prefix = format!("out{i}");
        let run = bench.run(&[&alpaca, args, &["--output-prefix", &prefix]].concat());
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(if refusal.is_some() { 2 } else { 0 }), "{args:?}: {said}");
        assert!(said.contains(refusal.unwrap_or_default()), "{args:?}: {said}");
    }
}

#[test]
fn a_large_share_that_is_left_out_is_said() {
    let bench = Bench::new();
    let mut records = chats("conversations", "from", "value", ["human", "gpt"]);
    for record in records.iter_mut().take(10) {
        record["conversations"].as_array_mut().unwrap().pop();
    }
    write(&bench.path("some.jsonl"), &records);
    let args =
        ["--style", "sharegpt", "--prompt-type", "qwen", "--input", "some.jsonl", "--output-prefix", "x"];
    let run = bench.run(&args);
    assert!(run.status.success());
    let said = text(&run.stderr);
    assert!(
        said.contains("10 of 30 records (33 %) were left out, the first because its last message"),
        "{said}"
    );
}

#[test]
fn folders_of_outputs_are_made() {
    let bench = Bench::new();
    let ways = [&[][..], &["--shuffle"], &["--resume"], &["--workers", "2", "--stats"]];
    for (number, more) in ways.into_iter().enumerate() {
        let prefix = format!("new{number}/folder/x");
        let args = ["--style", "pretrain", "--input", "in.jsonl", "--output-prefix", &prefix];
        let run = bench.run(&[&args[..], more].concat());
        assert!(run.status.success(), "{more:?}: {}", text(&run.stderr));
        assert!(bench.path(&format!("{prefix}_text_document.bin")).exists());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_run_leaves_nothing_and_one_that_was_killed_is_swept_up() {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    let bench = Bench::new();
    let parts = || -> Vec<String> {
        let entries = std::fs::read_dir(bench.path("new/folder")).into_iter().flatten();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".part") || name.ends_with(".lock")).collect()
    };
    let start = || {
        let mut command = ms_testing::heeding_signals(assert_cmd::cargo::cargo_bin("ms-preprocess"));
        command.current_dir(bench.dir.path()).args(["--style", "pretrain", "--input", "-"]);
        command.args(["--tokenizer-name-or-path", "tok", "--output-prefix", "new/folder/x", "--force"]);
        // Its input is a pipe that does not end, so it is at work however fast the machine is.
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"{\"text\": \"some words\"}\n").unwrap();
        let begun = Instant::now();
        while !parts().iter().any(|name| name.starts_with("x_text_document.bin.")) {
            assert!(begun.elapsed() < Duration::from_secs(600), "no output within ten minutes");
            std::thread::yield_now();
        }
        child
    };
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let mut child = start();
        Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
        let open = child.stdin.take();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        drop(open);
        assert_eq!(parts(), [] as [String; 0], "{name}");
        assert!(!bench.path("new").exists(), "{name}: folders that were made for nothing");
    }
    let mut child = start();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!parts().is_empty(), "a killed process cannot tidy up");
    let prefix = "new/folder/x";
    let run =
        bench.run(&["--style", "pretrain", "--input", "in.jsonl", "--output-prefix", prefix, "--force"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert_eq!(parts(), [] as [String; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_a_program_whose_error_nobody_reads() {
    use std::io::Write;
    use std::time::{Duration, Instant};
    let (unread, mut full) = std::io::pipe().unwrap();
    let stderr = full.try_clone().unwrap();
    let fill = std::thread::spawn(move || while full.write_all(&[b' '; 4096]).is_ok() {});
    let mut command = ms_testing::heeding_signals(assert_cmd::cargo::cargo_bin("ms-preprocess"));
    command.args(["--style", "pretrain", "--input", "missing", "--output-prefix", "x"]);
    std::thread::sleep(Duration::from_millis(200));
    let mut child = command.stderr(stderr).spawn().unwrap();
    drop(command);
    let threads = format!("/proc/{}/task", child.id());
    let listens = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "signals")
    };
    let begun = Instant::now();
    let soon = || begun.elapsed() < Duration::from_secs(60);
    while soon() && !std::fs::read_dir(&threads).unwrap().flatten().any(listens) {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it waits for a reader");
    std::process::Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    while soon() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(unread);
    fill.join().unwrap();
}

#[cfg(unix)]
#[test]
fn of_two_runs_into_one_dataset_the_second_is_refused() {
    let bench = Bench::new();
    let lock = std::fs::File::create(bench.path(".x.lock")).unwrap();
    lock.lock().unwrap();
    let run = bench.run(&["--style", "pretrain", "--input", "in.jsonl", "--output-prefix", "x"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("x: another process is writing it now"), "{}", text(&run.stderr));
}

#[test]
fn a_record_beyond_the_bound_is_an_error_that_names_the_bound() {
    let bench = Bench::new();
    let long = format!("{{\"text\": \"{}\"}}\n", "x".repeat(5000));
    std::fs::write(bench.path("long.jsonl"), format!("{{\"text\": \"short\"}}\n{long}")).unwrap();
    let args = ["--style", "pretrain", "--input", "long.jsonl", "--output-prefix"];
    assert!(bench.run(&[&args[..], &["a"]].concat()).status.success());
    let run = bench.run(&[&args[..], &["b", "--max-record-bytes", "1000"]].concat());
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("long.jsonl") && said.contains("longer than 1000 bytes"), "{said}");
    let run = bench.run(&[&args[..], &["c", "--max-record-bytes", "1000", "--on-error", "skip"]].concat());
    assert!(run.status.success(), "{}", text(&run.stderr));
    // A compressed file that unpacks to one endless record is read no further than the bound: not to where it is cut.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, b"{\"text\": \"").unwrap();
    std::io::Write::write_all(&mut packed, &vec![b' '; 100 << 20]).unwrap();
    let packed = packed.finish().unwrap();
    std::fs::write(bench.path("bomb.jsonl.gz"), &packed[..packed.len() * 9 / 10]).unwrap();
    let run = bench.run(&["--style", "pretrain", "--input", "bomb.jsonl.gz", "--output-prefix", "d"]);
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("longer than 67108864 bytes"), "{said}");
}

#[test]
fn a_folder_as_prefix_and_a_hubs_name_as_tokenizer_say_what_to_do() {
    let bench = Bench::new();
    let run = bench.run(&["--style", "pretrain", "--input", "in.jsonl", "--output-prefix", "out/"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("hint: pass out/NAME"), "{}", text(&run.stderr));
    let run = bench::tool()
        .current_dir(bench.dir.path())
        .args(["--style", "pretrain", "--input", "in.jsonl", "--output-prefix", "x"])
        .args(["--tokenizer-name-or-path", "Qwen/Qwen3-0.6B"])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("hint: names of a hub are not looked up"), "{}", text(&run.stderr));
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_that_cannot_fit_is_refused_with_what_to_lower() {
    let bench = Bench::new();
    let chat = chats("messages", "role", "content", ["user", "assistant"]);
    write(&bench.path("chats.jsonl"), &chat);
    // Files of many records, and a tokenizer, that take no room on the disk: only their beginning is looked at.
    let sparse = |name: &str, bytes: u64| {
        let file = std::fs::File::options().create(true).append(true).open(bench.path(name)).unwrap();
        file.set_len(bytes).unwrap();
    };
    write(&bench.path("many.jsonl"), &[chat.clone(), chat.clone(), chat].concat());
    sparse("many.jsonl", 4 << 30);
    let words = "long ".repeat(2 << 20);
    let turn = |role: &str| json!({"role": role, "content": words});
    write(&bench.path("long.jsonl"), &[json!({"messages": [turn("user"), turn("assistant")]})]);
    std::fs::create_dir(bench.path("large")).unwrap();
    sparse("large/tokenizer.json", 1 << 30);
    for (kilobytes, more, lower) in [
        (4_000_000, &["--workers", "1024"][..], "hint: lower --workers"),
        (4_000_000, &["--pack", "--seq-length", "268435456"], "hint: lower --seq-length"),
        (400_000, &["--pad-to-multiple-of", "16777216", "--upstream", "head"], "--pad-to-multiple-of"),
        (4_000_000, &["--shuffle", "--shuffle-memory", "5000"], "hint: lower --shuffle-memory"),
        (
            4_000_000,
            &["--dedup", "minhash", "--input", "many.jsonl"],
            "hint: lower the number of records that --dedup",
        ),
        (4_000_000, &["--workers", "40", "--input", "long.jsonl"], "hint: lower --workers"),
        (4_000_000, &["--tokenizer-name-or-path", "large"], "hint: lower the size of the tokenizer"),
    ] {
        let line = format!("ulimit -v {kilobytes}; exec \"$0\" \"$@\"");
        let mut command = std::process::Command::new("sh");
        command.current_dir(bench.path(".")).args(["-c", &line]);
        command.arg(assert_cmd::cargo::cargo_bin("ms-preprocess"));
        command.args(["--style", "openai", "--prompt-type", "qwen", "--input", "chats.jsonl"]);
        command.args(["--tokenizer-name-or-path", "tok", "--output-prefix", "out"]).args(more);
        let done = command.output().unwrap();
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains("memory: this run needs about ") && said.contains(lower), "{said}");
        assert!(bench.sets("out").is_empty());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_record_of_fifty_megabytes_without_spaces_is_encoded_in_pieces() {
    let bench = Bench::new();
    let mut line = b"{\"text\": \"".to_vec();
    line.extend((0..50u32 << 20).map(|n| b'a' + (n.wrapping_mul(2_654_435_761) >> 28) as u8));
    line.extend(b"\"}\n");
    std::fs::write(bench.path("long.jsonl"), &line).unwrap();
    let mut command = std::process::Command::new("sh");
    // Address space in KiB; as a whole this record takes two gigabytes.
    command.current_dir(bench.path(".")).args(["-c", "ulimit -v 1500000; exec \"$0\" \"$@\""]);
    command.arg(assert_cmd::cargo::cargo_bin("ms-preprocess")).env("MALLOC_ARENA_MAX", "2");
    command.args(["--style", "pretrain", "--input", "long.jsonl", "--tokenizer-name-or-path", "tok"]);
    let done = command.args(["--output-prefix", "out"]).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    // One row of as many tokens as it takes to spell it.
    let index = std::fs::read(bench.path("out_text_document.idx")).unwrap();
    let tokens = i32::from_le_bytes(index[34..38].try_into().unwrap());
    assert!(tokens > 5_000_000, "{tokens} tokens");
}

#[cfg(target_os = "linux")]
#[test]
fn long_texts_of_the_reference_engine_are_encoded_in_parts_and_what_cannot_be_cut_is_bounded() {
    let bench = Bench::new();
    let tokenizer = |name: &str, change: &dyn Fn(&mut Value)| {
        std::fs::create_dir(bench.path(name)).unwrap();
        let read = |file: &str| std::fs::read(bench.path("tok").join(file)).unwrap();
        let mut definition: Value = serde_json::from_slice(&read("tokenizer.json")).unwrap();
        change(&mut definition);
        std::fs::write(bench.path(name).join("tokenizer.json"), definition.to_string()).unwrap();
        std::fs::write(bench.path(name).join("tokenizer_config.json"), read("tokenizer_config.json"))
            .unwrap();
    };
    // The fast engine takes neither: an added token that is looked for in normalized text, and merges drawn at random.
    tokenizer("slow", &|definition| {
        definition["normalizer"] = json!({"type": "NFC"});
        let added = definition["added_tokens"].as_array_mut().unwrap();
        let mut row = added[0].clone();
        row["content"] = json!("<never>");
        row["normalized"] = json!(true);
        row["id"] = json!(added.iter().filter_map(|row| row["id"].as_u64()).max().unwrap().max(400) + 1);
        added.push(row);
    });
    tokenizer("drawn", &|definition| definition["model"]["dropout"] = json!(0.5));
    let words: String =
        (0..800_000u32).map(|n| format!("word{} ", n.wrapping_mul(2_654_435_761) >> 20)).collect();
    write(&bench.path("words.jsonl"), &[json!({"text": &words[..6 << 20]})]);
    write(&bench.path("long.jsonl"), &[json!({"text": "a".repeat(9 << 20)}), json!({"text": "some words"})]);
    let run = |tokenizer: &str, input: &str, prefix: &str, more: &[&str]| {
        let mut command = std::process::Command::new("sh");
        // Address space in KiB: the reference alone takes more for a text of this length as a whole.
        command.current_dir(bench.path(".")).args(["-c", "ulimit -v 1000000; exec \"$0\" \"$@\""]);
        command.arg(assert_cmd::cargo::cargo_bin("ms-preprocess")).env("MALLOC_ARENA_MAX", "2");
        command.args(["--style", "pretrain", "--input", input, "--tokenizer-name-or-path", tokenizer]);
        command.args(["--output-prefix", prefix]).args(more).output().unwrap()
    };
    for (tokenizer, prefix) in [("tok", "a"), ("slow", "b")] {
        let done = run(tokenizer, "words.jsonl", prefix, &[]);
        assert!(done.status.success(), "{}", text(&done.stderr));
    }
    assert!(bench.sets("a") == bench.sets("b"), "the ids of the fast engine and of the reference in parts");
    let done = run("drawn", "long.jsonl", "c", &[]);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("long.jsonl: record 1: cannot encode a text of 9437184 bytes"), "{said}");
    assert!(said.contains("at most 8388608 bytes are encoded as a whole"), "{said}");
    let done = run("drawn", "long.jsonl", "d", &["--on-error", "skip"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
}
