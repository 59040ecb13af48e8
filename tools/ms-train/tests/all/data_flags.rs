//! Alternative flags for the data, its order, and the handling of samples that are too long.

use crate::tiny::{metrics, model, ms_train, refused};
use ms_data::indexed::{IndexedWriter, TokenType};
use std::path::Path;

/// A set of `documents` rows of tokens that `token(document, place)` gives.
fn write(prefix: &Path, documents: usize, length: usize, token: impl Fn(usize, usize) -> i32) {
    let mut writer = IndexedWriter::create(prefix, TokenType::I32).unwrap();
    for d in 0..documents {
        writer.sequence(&(0..length).map(|t| token(d, t)).collect::<Vec<i32>>()).unwrap();
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
}

fn text(dir: &Path, name: &str, step: usize) {
    write(&dir.join(name), 40, 40, |d, t| ((d * 7 + t * step) % 64) as i32);
}

fn command(dir: &Path, flags: &str) -> assert_cmd::Command {
    let mut command = ms_train();
    command.current_dir(dir).args(model());
    command.args(["--lr", "1e-2", "--train-iters", "3", "--eval-iters", "0"]).args(flags.split_whitespace());
    command
}

fn losses(dir: &Path, flags: &str) -> Vec<f64> {
    let _ = std::fs::remove_file(dir.join("m.jsonl"));
    command(dir, flags).args(["--metrics-file", "m.jsonl"]).assert().success();
    metrics(&dir.join("m.jsonl")).iter().map(|line| line["lm loss"].as_f64().unwrap()).collect()
}

#[test]
fn files_name_the_datasets_that_flags_would_name() {
    let dir = tempfile::tempdir().unwrap();
    text(dir.path(), "a", 1);
    text(dir.path(), "b", 3);
    std::fs::write(dir.path().join("blend.txt"), "0.7 a\n0.3   b\n").unwrap();
    let blend = losses(dir.path(), "--data-path 0.7 a 0.3 b");
    assert_eq!(losses(dir.path(), "--data-args-path blend.txt"), blend);
    let splits = r#"{"train": [0.7, "a", "0.3", "b"], "valid": ["b"], "test": null}"#;
    std::fs::write(dir.path().join("splits.json"), splits.replace("null", "[]")).unwrap();
    let each = losses(dir.path(), "--train-data-path 0.7 a 0.3 b --valid-data-path b");
    assert_eq!(losses(dir.path(), "--per-split-data-args-path splits.json"), each);
    for (flags, code, why) in [
        ("--data-args-path blend.txt --data-path a", 2, "cannot be combined with --data-path"),
        (
            "--per-split-data-args-path splits.json --train-data-path a",
            2,
            "cannot be combined with --train-data-path",
        ),
        ("--data-args-path none.txt", 1, "--data-args-path none.txt"),
        ("--per-split-data-args-path blend.txt", 1, "expected {\"train\": [..]"),
    ] {
        let message = refused(&mut command(dir.path(), flags), code);
        assert!(message.contains(why), "{flags}: {message}");
    }
    // What they name is theirs.
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("none.txt", "nowhere");
    write("none.json", r#"{"train": ["a"], "valid": ["nowhere"]}"#);
    write("mixed.txt", "0.7 a b a");
    write("empty.txt", " \n");
    write("empty.json", r#"{"train": []}"#);
    for (flags, whose, why) in [
        ("--data-args-path none.txt", "--data-args-path none.txt: ", "nowhere.idx"),
        ("--data-args-path mixed.txt", "--data-args-path mixed.txt: 0.7 a b a: expected every second", ""),
        ("--data-args-path empty.txt", "--data-args-path empty.txt: expected datasets, found none", ""),
        ("--per-split-data-args-path none.json", "--per-split-data-args-path none.json: ", "nowhere.idx"),
        (
            "--per-split-data-args-path empty.json",
            "--per-split-data-args-path empty.json: expected {",
            "no dataset",
        ),
        (
            "--train-data-path a --test-data-path nowhere",
            "--train-data-path, --test-data-path: ",
            "nowhere.idx",
        ),
        ("--data-path nowhere", "--data-path: ", "nowhere.idx"),
    ] {
        let message = refused(&mut command(dir.path(), flags), 1);
        assert!(message.contains(whose) && message.contains(why), "{flags}: {message}");
    }
    std::fs::write(dir.path().join("splits.json"), r#"{"training": ["a"]}"#).unwrap();
    let message = refused(&mut command(dir.path(), "--per-split-data-args-path splits.json"), 1);
    assert!(message.contains("found training"), "{message}");
}

#[test]
fn filling_between_documents_is_no_token_where_upstreams_head_tells_them_apart() {
    let dir = tempfile::tempdir().unwrap();
    let set = |name: &str, filler: i32| {
        write(&dir.path().join(name), 40, 20, |d, t| match t {
            19 => 62,
            12.. => filler,
            _ => ((d * 7 + t) % 62) as i32,
        });
    };
    // The vocabulary is 0 to 61 and the end of a document.
    set("filled", 63);
    set("zeros", 0);
    let flags = "--upstream head --vocab-size 62 --tokenizer-type NullTokenizer --data-path";
    let plain = losses(dir.path(), &format!("{flags} filled"));
    let apart = "--reset-position-ids --reset-attention-mask";
    let filled = losses(dir.path(), &format!("{flags} filled {apart}"));
    let zeros = losses(dir.path(), &format!("{flags} zeros {apart}"));
    assert!(filled != zeros && filled != plain, "{filled:?} {zeros:?} {plain:?}");
    // Where the embedding has no row for it, either.
    let small = format!("{flags} filled --padded-vocab-size 63");
    assert_eq!(losses(dir.path(), &format!("{small} {apart}")).len(), 3);
    assert!(refused(&mut command(dir.path(), &small), 1).contains("holds token 63"));
}

#[test]
fn ranks_that_take_samples_in_turns_have_the_batches_of_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    text(dir.path(), "a", 5);
    let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5 * a.abs());
    let cyclic = "--data-path a --dataloader-type cyclic";
    let two = format!("{cyclic} --nproc-per-node 2 --micro-batch-size 2");
    let one = losses(dir.path(), &format!("{cyclic} --no-data-sharding"));
    assert!(close(&one, &losses(dir.path(), &format!("{two} --no-data-sharding"))));
    assert!(!close(&one, &losses(dir.path(), &two)));
}

/// Conversations of a question that is not trained on and an answer.
fn conversations(dir: &Path, name: &str, length: usize) {
    type Column = (&'static str, fn(usize) -> i32);
    let columns: [Column; 3] = [
        ("input_ids", |t| 1 + (t * 7 % 60) as i32),
        ("attention_mask", |_| 1),
        ("labels", |t| if t < 8 { -100 } else { 1 + (t * 7 % 60) as i32 }),
    ];
    for (key, value) in columns {
        write(&dir.join(format!("{name}_packed_{key}_document")), 40, length, |_, t| value(t));
    }
}

#[test]
fn samples_that_are_too_long_lose_their_end_where_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let options = ms_text::bpe::Options { vocab_size: 280, ..Default::default() };
    ms_text::bpe::train(&options, ["words".to_owned()]).unwrap().write(dir.path().join("tok")).unwrap();
    conversations(dir.path(), "long", 29);
    conversations(dir.path(), "cut", 16);
    let sft = "--stage sft --tokenizer-name-or-path tok --vocab-size 300 --padded-vocab-size 300 --prompt-type empty \
               --split 100,0,0 --no-shuffle";
    let cut = losses(dir.path(), &format!("{sft} --data-path cut"));
    // Without --split a few of a thousand are for validation: one of these forty.
    conversations(dir.path(), "more", 16);
    let words = format!("{} --data-path more --eval-iters 1 --json", sft.replace("--split 100,0,0", ""));
    let done = command(dir.path(), &words).assert().success();
    let summary: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(summary["validation_losses"].as_array().map(Vec::len), Some(1), "{summary}");
    assert_eq!(losses(dir.path(), &format!("{sft} --data-path long --cut-max-seqlen")), cut);
    assert_ne!(losses(dir.path(), &format!("{sft} --data-path long")), cut);
    let message = refused(&mut command(dir.path(), &format!("{sft} --data-path long --no-cut-token")), 2);
    assert!(message.contains("--no-cut-token: rows have at most --seq-length tokens"), "{message}");
    // Packs lose their ends, too.
    let packs = format!("{sft} --reset-position-ids --data-path long");
    let said = String::from_utf8(command(dir.path(), &packs).assert().success().get_output().stderr.clone())
        .unwrap();
    let what = "40 of 40 packs are longer than 16 tokens (--seq-length; up to 29) and lose their ends";
    assert!(said.contains(what), "{said}");
    let message = refused(&mut command(dir.path(), &format!("{packs} --no-cut-token")), 2);
    let what = "expected packs of at most 16 tokens (--seq-length), found 40 of 40 packs with up to 29";
    assert!(message.contains("--no-cut-token: ") && message.contains(what), "{message}");
    let fitting = format!("{sft} --reset-position-ids --data-path cut");
    let said =
        String::from_utf8(command(dir.path(), &fitting).assert().success().get_output().stderr.clone())
            .unwrap();
    assert!(!said.contains("lose their ends"), "{said}");
    assert_eq!(losses(dir.path(), &format!("{fitting} --no-cut-token")), losses(dir.path(), &fitting));
}
