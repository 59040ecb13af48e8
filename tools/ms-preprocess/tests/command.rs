//! `ms-preprocess` as a user runs it.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod bench;

use bench::{Bench, text, tool};

#[test]
fn the_bytes_do_not_depend_on_the_number_of_workers() {
    let bench = Bench::new();
    for workers in ["1", "2", "7"] {
        let prefix = format!("w{workers}");
        let run = bench.run(&[
            "--style",
            "pretrain",
            "--input",
            "in.jsonl",
            "--output-prefix",
            &prefix,
            "--append-eod",
            "--workers",
            workers,
        ]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        assert!(text(&run.stdout).contains("300 records"), "{}", text(&run.stdout));
    }
    assert_eq!(bench.sets("w1").len(), 2);
    assert_eq!(bench.sets("w1"), bench.sets("w2"));
    assert_eq!(bench.sets("w1"), bench.sets("w7"));
}

#[test]
fn parts_do_not_change_unpacked_bytes() {
    let bench = Bench::new();
    for (prefix, parts) in [("one", "1"), ("four", "4")] {
        let run = bench.run(&["--input", "in.jsonl", "--output-prefix", prefix, "--n-subs", parts]);
        assert!(run.status.success(), "{}", text(&run.stderr));
    }
    assert_eq!(bench.sets("one"), bench.sets("four"));
}

#[test]
fn an_existing_set_is_kept_unless_forced_or_called_as_upstream() {
    let bench = Bench::new();
    let style = ["--style", "pretrain", "--input", "in.jsonl", "--output-prefix", "x"];
    let made = bench.run(&style);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let run = bench.run(&[&style[..], &["--append-eod"]].concat());
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("append_eod was not given, is true"), "{}", text(&run.stderr));
    std::fs::remove_file(bench.path("x.manifest.json")).unwrap();
    let run = bench.run(&style);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("exists already"), "{}", text(&run.stderr));
    assert!(bench.run(&[&style[..], &["--force"]].concat()).status.success());
    let upstream =
        ["--handler-name", "GeneralPretrainHandler", "--input", "in.jsonl", "--output-prefix", "x"];
    assert!(bench.run(&upstream).status.success());
}

#[test]
fn a_bad_record_is_named_and_nothing_is_written() {
    let bench = Bench::new();
    std::fs::write(bench.path("bad.jsonl"), "{\"text\": \"fine\"}\n{\"text\": null}\n").unwrap();
    let run = bench.run(&["--style", "pretrain", "--input", "bad.jsonl", "--output-prefix", "bad"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(
        text(&run.stderr).contains("bad.jsonl: record 2: text: missing or null"),
        "{}",
        text(&run.stderr)
    );
    assert_eq!(bench.sets("bad_").len(), 0, "no output and no temporary file");
}

#[test]
fn mistakes_are_usage_errors_with_a_hint() {
    let bench = Bench::new();
    let cases: [(&[&str], &str); 7] = [
        (
            &["--style", "sharegpt", "--input", "chats.json", "--output-prefix", "x"],
            "hint: pass --prompt-type",
        ),
        (&["--style", "pretrain", "--output-prefix", "x"], "no input"),
        (&["--style", "nonsense", "--input", "in.jsonl", "--output-prefix", "x"], "--style"),
        (&["--handler-name", "Nonsense", "--input", "in.jsonl", "--output-prefix", "x"], "unknown handler"),
        (
            &[
                "--style",
                "pretrain",
                "--pack",
                "--seq-length",
                "8",
                "--input",
                "in.jsonl",
                "--output-prefix",
                "x",
            ],
            "cannot be packed",
        ),
        (&["--style", "pretrain", "--split-sentences", "--input", "in.jsonl"], "no place in a token stream"),
        (&["--inptu", "in.jsonl"], "--inptu"),
    ];
    for (args, want) in cases {
        let run = bench.run(args);
        assert_eq!(run.status.code(), Some(2), "{args:?}: {}", text(&run.stderr));
        assert!(text(&run.stderr).contains(want), "{args:?}: {}", text(&run.stderr));
    }
}

#[test]
fn print_args_shows_upstreams_names() {
    let run =
        tool().args(["--input", "a", "--workers", "4", "--append-eod", "--print-args"]).output().unwrap();
    let args: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(args, serde_json::json!({"input": "a", "workers": 4, "append_eod": true}));
}

#[test]
fn a_dry_run_names_the_outputs_and_writes_none() {
    let bench = Bench::new();
    let run = bench.run(&[
        "--style",
        "sharegpt",
        "--prompt-type",
        "qwen",
        "--input",
        "chats.json",
        "--output-prefix",
        "x",
        "--dry-run",
        "--json",
    ]);
    let plan: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(plan["outputs"][0], "x_packed_input_ids_document");
    assert_eq!(bench.sets("x_").len(), 0);
}

#[test]
fn whole_files_become_documents() {
    let bench = Bench::new();
    std::fs::write(bench.path("list"), "a.rs\nb.md\n").unwrap();
    std::fs::write(bench.path("a.rs"), "fn main() {}\n\nfn more() {}\n").unwrap();
    std::fs::write(bench.path("b.md"), b"bytes \xff\n").unwrap();
    let run = bench.run(&[
        "--style",
        "pretrain",
        "--documents",
        "files",
        "--files-from",
        "list",
        "--output-prefix",
        "x",
        "--json",
    ]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&report["records"], &report["outputs"][0]["sequences"]), (&2.into(), &2.into()));
}

#[test]
fn merging_joins_the_sets_of_a_folder() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("parts")).unwrap();
    for part in ["parts/a", "parts/b"] {
        assert!(bench.run(&["--input", "in.jsonl", "--output-prefix", part]).status.success());
    }
    let run =
        bench.run(&["--input", "parts", "--merge-group-keys", "text_document", "--output-prefix", "all"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let set = ms_data::indexed::IndexedDataset::open(bench.path("all_text_document")).unwrap();
    assert_eq!((set.len(), set.documents()), (600, 600));
    // A name that begins with another whole one comes after it.
    for ending in ["bin", "idx"] {
        let moved = |from: &str, to: &str| {
            std::fs::rename(bench.path(&format!("{from}.{ending}")), bench.path(&format!("{to}.{ending}")))
                .unwrap();
        };
        moved("parts/b_text_document", "parts/a_text_document-2");
    }
    std::fs::write(bench.path("short.jsonl"), "{\"text\": \"words\"}\n").unwrap();
    assert!(bench.run(&["--input", "short.jsonl", "--output-prefix", "parts/a", "--force"]).status.success());
    assert!(
        bench
            .run(&["--input", "parts", "--merge-group-keys", "text_document", "--output-prefix", "two"])
            .status
            .success()
    );
    let first = |prefix: &str| ms_data::indexed::IndexedDataset::open(bench.path(prefix)).unwrap().length(0);
    assert_eq!(first("two_text_document"), first("parts/a_text_document"));
    assert_ne!(first("two_text_document"), first("parts/a_text_document-2"));
    // What systems put beside files is no dataset, and a dataset with such a name is one.
    for name in [".DS_Store", "._a_text_document.bin", "._b_text_document.bin", "._b_text_document.idx"] {
        std::fs::write(bench.path("parts").join(name), b"no dataset").unwrap();
    }
    for ending in ["bin", "idx"] {
        let from = bench.path(&format!("parts/a_text_document.{ending}"));
        std::fs::copy(from, bench.path(&format!("parts/.a_text_document.{ending}"))).unwrap();
    }
    let words = ["--input", "parts", "--merge-group-keys", "text_document", "--output-prefix", "hidden"];
    let run = bench.run(&words);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let set = ms_data::indexed::IndexedDataset::open(bench.path("hidden_text_document")).unwrap();
    assert_eq!(set.len(), 302);
    // Of what is replaced the manifest goes, too.
    let manifest = bench.path("hidden_text_document.manifest.json");
    std::fs::write(&manifest, "{}").unwrap();
    assert!(bench.run(&words).status.success() && !manifest.exists());
    assert!(bench.run(&["--input", "in.jsonl", "--output-prefix", "hidden", "--force"]).status.success());
    assert!(bench.path("hidden.manifest.json").exists());
    assert!(bench.run(&words).status.success() && !bench.path("hidden.manifest.json").exists());
    // Half a dataset is not passed over, whichever half it is.
    for [gone, ending] in [["parts/a_text_document.idx", "idx"], ["parts/a_text_document.bin", "bin"]] {
        let kept = bench.path("kept");
        std::fs::rename(bench.path(gone), &kept).unwrap();
        let run = bench.run(&[
            "--input",
            "parts",
            "--merge-group-keys",
            "text_document",
            "--output-prefix",
            "half",
        ]);
        assert!(!run.status.success());
        let message = text(&run.stderr);
        assert!(
            message.contains(&format!("a_text_document.{ending}: this file of a dataset is missing")),
            "{message}"
        );
        std::fs::rename(&kept, bench.path(gone)).unwrap();
    }
    // A word without a dataset is told before anything is merged.
    let words = ["--merge-group-keys", "text_document", "image_document", "--output-prefix", "some"];
    let run = bench.run(&[&["--input", "parts"], &words[..]].concat());
    assert!(!run.status.success() && text(&run.stderr).contains("image_document"), "{}", text(&run.stderr));
    assert!(!bench.path("some_text_document.idx").exists());
    // So is a broken one of the second word.
    std::fs::write(bench.path("parts/a_other_document.bin"), b"").unwrap();
    std::fs::write(bench.path("parts/a_other_document.idx"), b"no index").unwrap();
    let words = ["--merge-group-keys", "text_document", "other_document", "--output-prefix", "some"];
    let run = bench.run(&[&["--input", "parts"], &words[..]].concat());
    assert!(!run.status.success() && text(&run.stderr).contains("a_other_document"), "{}", text(&run.stderr));
    assert!(bench.sets("some").is_empty());
}

#[test]
fn described_sets_give_the_rows_of_their_styles_one_after_the_other() {
    let bench = Bench::new();
    let alpaca: Vec<_> =
        (0..5).map(|i| serde_json::json!({"q": format!("question {i}"), "a": "words"})).collect();
    std::fs::write(bench.path("alpaca.json"), serde_json::to_vec(&alpaca).unwrap()).unwrap();
    let info = serde_json::json!({
        "chats": {"file_name": "chats.json", "formatting": "sharegpt"},
        "questions": {"file_name": "alpaca.json", "columns": {"prompt": "q", "response": "a"}},
    });
    std::fs::write(bench.path("dataset_info.json"), info.to_string()).unwrap();
    let head = ["--upstream", "head", "--prompt-type", "qwen"];
    let described = [
        "--handler-name",
        "LlamaFactoryInstructionHandler",
        "--dataset-dir",
        ".",
        "--input",
        "chats,questions",
        "--output-prefix",
        "both",
    ];
    let run = bench.run(&[&head[..], &described].concat());
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stdout).contains("45 records"), "{}", text(&run.stdout));
    let ids =
        |prefix: &str| std::fs::read(bench.path(&format!("{prefix}_packed_input_ids_document.bin"))).unwrap();
    let chats = ["--style", "sharegpt", "--input", "chats.json", "--output-prefix", "one"];
    let questions = [
        "--style",
        "alpaca",
        "--map-keys",
        r#"{"prompt": "q", "response": "a", "query": ""}"#,
        "--input",
        "alpaca.json",
        "--output-prefix",
        "two",
    ];
    for args in [&chats[..], &questions[..]] {
        let run = bench.run(&[&head[..], args].concat());
        assert!(run.status.success(), "{}", text(&run.stderr));
    }
    assert_eq!(ids("both"), [ids("one"), ids("two")].concat());
}

#[test]
fn strict_refuses_a_record_with_its_number_and_reason() {
    let bench = Bench::new();
    let odd = r#"[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
                  {"conversations": [{"from": "gpt", "value": "a"}, {"from": "human", "value": "b"}]}]"#;
    std::fs::write(bench.path("odd.json"), odd).unwrap();
    let args =
        ["--style", "sharegpt", "--prompt-type", "qwen", "--input", "odd.json", "--output-prefix", "odd"];
    let run = bench.run(&args);
    assert!(run.status.success() && text(&run.stdout).contains("1 dropped"), "{}", text(&run.stdout));
    let run = bench.run(&[&args[..], &["--strict", "--force"]].concat());
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("record 2: its roles do not alternate"), "{}", text(&run.stderr));
}

#[test]
fn tools_that_a_template_leaves_out_are_spoken_of_once() {
    let bench = Bench::new();
    let chat = |tools: &str| {
        let messages = r#"[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]"#;
        format!(r#"{{"conversations": {messages}, "tools": {tools}}}"#)
    };
    let tools = r#""[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]""#;
    std::fs::write(bench.path("tools.json"), format!("[{0},{0},{1}]", chat(tools), chat("null"))).unwrap();
    let args = ["--style", "sharegpt", "--prompt-type", "qwen", "--map-keys", r#"{"tools": "tools"}"#];
    let run = bench.run(&[&args[..], &["--input", "tools.json", "--output-prefix", "tools"]].concat());
    let said = text(&run.stderr);
    assert!(run.status.success() && said.matches("the template qwen describes").count() == 1, "{said}");
}

#[test]
fn megatrons_own_tokenizers_take_their_files_from_flags() {
    let bench = Bench::new();
    std::fs::write(bench.path("vocab.txt"), "[PAD]\n[UNK]\nsome\nwords\n##1\n").unwrap();
    let run = tool()
        .current_dir(bench.dir.path())
        .args([
            "--input",
            "in.jsonl",
            "--output-prefix",
            "bert",
            "--tokenizer-type",
            "BertWordPieceLowerCase",
        ])
        .args(["--vocab-file", "vocab.txt", "--append-eod"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let bytes = std::fs::read(bench.path("bert_text_document.bin")).unwrap();
    // "some words 0": the number is not in the vocabulary; [BOS] and [EOS] were added after it.
    let first: Vec<i32> = bytes[..16].chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(first, [2, 3, 1, 6]);
    let run = tool()
        .current_dir(bench.dir.path())
        .args(["--input", "in.jsonl", "--output-prefix", "gpt", "--tokenizer-type", "GPT2BPETokenizer"])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("GPT2BPETokenizer needs --vocab-file"), "{}", text(&run.stderr));
}

#[test]
fn what_becomes_of_every_flag_is_explained_and_nothing_is_read() {
    let said = |more: &str| {
        let flags = "--explain --append-eod --workers 2 --log-interval 5 --input missing.jsonl";
        let run = tool().args(flags.split_whitespace()).args(more.split_whitespace()).output().unwrap();
        assert!(run.status.success(), "{}", text(&run.stderr));
        text(&run.stdout)
    };
    let table = said("--hf-datasets-params x");
    for (flag, status, note) in [
        ("--append-eod", "acts", "append the end-of-document token to every document"),
        ("--workers", "acts", "threads"),
        ("--log-interval", "no effect", "progress is shown on a terminal"),
        ("--hf-datasets-params", "refused", "data comes from local files"),
    ] {
        let line =
            table.lines().find(|line| line.contains(flag)).unwrap_or_else(|| panic!("{flag}: {table}"));
        assert!(line.starts_with(status) && line.contains(note), "{line}");
    }
    let rows: serde_json::Value = serde_json::from_str(&said("--json")).unwrap();
    let row = rows["flags"].as_array().unwrap().iter().find(|row| row["flag"] == "--log-interval").unwrap();
    assert_eq!(row["status"], "no effect", "{row}");
}
