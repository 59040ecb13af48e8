//! Mixtures of the datasets of a `dataset_info.json`, and conversations as texts.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod bench;

use bench::{Bench, text};
use serde_json::{Value, json};

const HEAD: [&str; 8] = [
    "--upstream",
    "head",
    "--prompt-type",
    "empty",
    "--handler-name",
    "LlamaFactoryInstructionHandler",
    "--dataset-dir",
    ".",
];

/// Three sets of 4, 2 and 3 records; the second one also has a record without an answer.
fn bench() -> Bench {
    let bench = Bench::new();
    let mut info = serde_json::Map::new();
    for (name, letter, count) in [("a", 'a', 4), ("b", 'b', 2), ("c", 'c', 3)] {
        let record = |i: usize| json!({"instruction": format!("{letter}{i}"), "input": "", "output": "x"});
        let mut records: Vec<Value> = (0..count).map(record).collect();
        if name == "b" {
            records.insert(1, json!({"instruction": "left out", "input": "", "output": []}));
        }
        std::fs::write(bench.path(&format!("{name}.json")), serde_json::to_vec(&records).unwrap()).unwrap();
        info.insert(name.into(), json!({"file_name": format!("{name}.json")}));
    }
    std::fs::write(bench.path("dataset_info.json"), Value::Object(info).to_string()).unwrap();
    bench
}

/// The instructions of the records of a mixture, in order.
fn mixture(bench: &Bench, flags: &[&str]) -> Vec<String> {
    let prefix = format!("mix{}", flags.concat().replace([',', '.', ' ', '-'], ""));
    let args = [&HEAD[..], &["--input", "a,b,c", "--output-prefix", &prefix], flags].concat();
    let run = bench.run(&args);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let set =
        ms_data::indexed::IndexedDataset::open(bench.path(&format!("{prefix}_packed_input_ids_document")))
            .unwrap();
    let tokenizer = ms_text::Tokenizer::load(bench.path("tok")).unwrap();
    let row = |i| {
        let mut ids = Vec::new();
        set.read(i, &mut ids).unwrap();
        let ids: Vec<u32> = ids.into_iter().map(|id| id as u32).collect();
        let text = tokenizer.decode(&ids, true).unwrap();
        text.strip_suffix('x').unwrap_or(&text).to_owned()
    };
    (0..set.len()).map(row).collect()
}

#[test]
fn sets_follow_each_other_or_take_turns_without_the_records_that_are_left_out() {
    let bench = bench();
    assert_eq!(mixture(&bench, &[]), ["a0", "a1", "a2", "a3", "b0", "b1", "c0", "c1", "c2"]);
    // The second record of b counts among those that are read.
    assert_eq!(mixture(&bench, &["--max-samples", "2"]), ["a0", "a1", "b0", "c0", "c1"]);
    let under = mixture(&bench, &["--mix-strategy", "interleave_under"]);
    assert_eq!(under, ["a0", "b0", "c0", "a1", "b1", "c1"]);
    let over = mixture(&bench, &["--mix-strategy", "interleave_over"]);
    assert_eq!(over, ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b0", "c2", "a3", "b1", "c0"]);
}

#[test]
fn sets_are_drawn_as_numpy_draws_them() {
    let bench = bench();
    // datasets 5.2.0 with numpy 2.4.6, sets of 4, 2 and 3 rows.
    let drawn = |strategy: &str, seed: &str| {
        let flags = ["--mix-strategy", strategy, "--interleave-probs", "0.2, 0.5,0.3", "--seed", seed];
        mixture(&bench, &flags)
    };
    assert_eq!(drawn("interleave_under", "1234"), ["c0", "b0", "c1", "b1"]);
    assert_eq!(
        drawn("interleave_over", "7"),
        [
            "b0", "c0", "c1", "b1", "b0", "c2", "a0", "c0", "c1", "b1", "b0", "b1", "b0", "b1", "b0", "b1",
            "c2", "c0", "b0", "c1", "b1", "a1", "b0", "a2", "a3"
        ]
    );
    // Parts and workers change nothing.
    let args = ["--mix-strategy", "interleave_over", "--seed", "7", "--n-subs", "2", "--workers", "3"];
    let parts = mixture(&bench, &[&args[..], &["--interleave-probs", "0.2,0.5,0.3"]].concat());
    assert_eq!(parts, drawn("interleave_over", "7"));
}

#[test]
fn mixtures_that_make_no_sense_are_refused_and_other_styles_ignore_the_flags() {
    let bench = bench();
    let refuse = |flags: &[&str]| {
        let args = [&HEAD[..], &["--input", "a,b,c", "--output-prefix", "no"], flags].concat();
        let run = bench.run(&args);
        assert_eq!(run.status.code(), Some(2), "{}", text(&run.stderr));
        text(&run.stderr)
    };
    let turns = ["--mix-strategy", "interleave_under"];
    assert!(
        refuse(&[&turns[..], &["--interleave-probs", "0.5,0.5"]].concat())
            .contains("2 probabilities for 3 sets")
    );
    assert!(refuse(&[&turns[..], &["--interleave-probs", "a,b,c"]].concat()).contains("expected numbers"));
    assert!(refuse(&[&turns[..], &["--interleave-probs", "0.5,0.5,0.5"]].concat()).contains("add up to 1.5"));
    assert!(refuse(&["--max-samples", "0"]).contains("expected a number of at least 1"));
    assert!(refuse(&[&turns[..], &["--sample", "0.5"]].concat()).contains("count records"));
    assert!(refuse(&[&turns[..], &["--resume"]].concat()).contains("--mix-strategy"));
    let plain = ["--input", "in.jsonl", "--output-prefix"];
    assert!(bench.run(&[&plain[..], &["one"]].concat()).status.success());
    let run = bench.run(&[&plain[..], &["two", "--max-samples", "2"]].concat());
    assert!(
        run.status.success() && text(&run.stderr).contains("--max-samples acts only"),
        "{}",
        text(&run.stderr)
    );
    assert_eq!(bench.sets("one_"), bench.sets("two_"));
    let run = bench.run(&[&plain[..], &["three", "--max-samples", "2", "--strict"]].concat());
    assert_eq!(run.status.code(), Some(2));
}

#[test]
fn the_texts_of_a_conversation_become_one_document() {
    let bench = Bench::new();
    let records = [
        json!({"chat": [{"from": "human", "value": "words and "}, {"from": "gpt", "value": "more words"}]}),
        json!({"chat": []}),
        json!({"chat": [{"role": "user", "content": "words"}, {"role": "assistant", "value": null, "content": ""}]}),
    ];
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(bench.path("chat.jsonl"), lines).unwrap();
    let texts = ["words and more words", "", "words"].map(|text| format!("{}\n", json!({"chat": text})));
    std::fs::write(bench.path("texts.jsonl"), texts.concat()).unwrap();
    let args = |handler, input, prefix| {
        ["--upstream", "head", "--handler-name", handler, "--input", input, "--output-prefix", prefix]
    };
    let keys = ["--json-keys", "chat", "--append-eod"];
    let chats = args("SharegptPretrainHandler", "chat.jsonl", "chats");
    // Upstream's handler of conversations does not fill documents up.
    let run = bench.run(&[&chats[..], &keys, &["--pad-to-multiple-of", "8"]].concat());
    assert!(run.status.success(), "{}", text(&run.stderr));
    let run = bench.run(&[&args("GeneralPretrainHandler", "texts.jsonl", "texts")[..], &keys].concat());
    assert!(run.status.success(), "{}", text(&run.stderr));
    for end in ["bin", "idx"] {
        let read = |name: &str| std::fs::read(bench.path(&format!("{name}_chat_document.{end}"))).unwrap();
        assert_eq!(read("chats"), read("texts"), "{end}");
    }
    std::fs::write(bench.path("bad.jsonl"), "{\"chat\": [{\"from\": \"human\"}]}\n").unwrap();
    let run = bench.run(&[&args("SharegptPretrainHandler", "bad.jsonl", "bad")[..], &keys].concat());
    assert_eq!(run.status.code(), Some(1));
    assert!(
        text(&run.stderr).contains("message 1: expected a text as value or content"),
        "{}",
        text(&run.stderr)
    );
    let run = bench.run(&["--style", "sharegpt-pretrain", "--input", "chat.jsonl", "--output-prefix", "old"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("--upstream head"), "{}", text(&run.stderr));
}
