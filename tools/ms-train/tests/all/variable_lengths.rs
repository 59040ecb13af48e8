//! Fine-tuning on rows of the batch's own length.

use assert_cmd::Command;
use ms_data::indexed::{IndexedWriter, TokenType};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

/// A tokenizer, and samples of these lengths.
fn samples(dir: &Path, lengths: impl IntoIterator<Item = usize>) {
    let lengths: Vec<usize> = lengths.into_iter().collect();
    let options = ms_text::bpe::Options { vocab_size: 280, ..Default::default() };
    ms_text::bpe::train(&options, ["words".to_owned()]).unwrap().write(dir.join("tok")).unwrap();
    type Column = (&'static str, fn(usize) -> i32);
    let columns: [Column; 3] = [
        ("input_ids", |t| (t * 7 % 60) as i32),
        ("attention_mask", |_| 1),
        ("labels", |t| (t * 7 % 60) as i32),
    ];
    for (key, value) in columns {
        let mut writer =
            IndexedWriter::create(dir.join(format!("set_packed_{key}_document")), TokenType::I32).unwrap();
        for &length in &lengths {
            writer.sequence(&(0..length).map(value).collect::<Vec<_>>()).unwrap();
            writer.end_document().unwrap();
        }
        writer.finish().unwrap();
    }
}

fn losses(dir: &Path, name: &str, flags: &str) -> Vec<f64> {
    let metrics = dir.join(name);
    let run = run(dir, &format!("--metrics-file {} {flags}", metrics.display()));
    assert!(run.status.success(), "{flags}: {}", String::from_utf8_lossy(&run.stderr));
    let text = std::fs::read_to_string(&metrics).unwrap();
    text.lines().filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["lm loss"].as_f64()).collect()
}

/// A run on the samples.
fn run(dir: &Path, flags: &str) -> Output {
    let common = "--num-layers 1 --hidden-size 32 --num-attention-heads 4 --ffn-hidden-size 64 --normalization RMSNorm \
        --swiglu --position-embedding-type rope --disable-bias-linear --max-position-embeddings 64 --padded-vocab-size 300 \
        --vocab-size 300 --micro-batch-size 4 --global-batch-size 4 --lr 1e-3 --min-lr 1e-3 --train-iters 5 --stage sft \
        --seed 7 --log-interval 1 --split 100,0,0 --eval-iters 0 --no-shuffle --prompt-type empty";
    Command::cargo_bin("ms-train")
        .unwrap()
        .env("MS_NO_PROGRESS", "1")
        .args(common.split_whitespace())
        .args(flags.split_whitespace())
        .args(["--data-path", &dir.join("set").display().to_string()])
        .args(["--tokenizer-name-or-path", &dir.join("tok").display().to_string()])
        .output()
        .unwrap()
}

#[test]
fn a_row_length_that_is_no_multiple_of_the_padding_trains_and_padding_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // 24 of 4 to 29 tokens; the first two of every micro-batch of four have 29.
    samples(dir.path(), (0..24).map(|row| if row % 4 < 2 { 29 } else { 4 + row % 20 }));
    // 29 tokens are filled up to 32, more than the 30 of a sample.
    let variable = losses(dir.path(), "a", "--seq-length 30 --variable-seq-lengths");
    assert_eq!(variable.len(), 5);
    assert!(variable.iter().all(|loss| loss.is_finite()));
    // Neither the amount of padding nor, as positions are relative, its side decides the loss.
    let close = |other: &[f64]| variable.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-4 * a.abs());
    let fixed = losses(dir.path(), "b", "--seq-length 30");
    assert!(close(&fixed), "{variable:?} {fixed:?}");
    let left =
        losses(dir.path(), "c", "--seq-length 30 --variable-seq-lengths --tokenizer-padding-side left");
    assert!(close(&left), "{variable:?} {left:?}");
    let wide = losses(dir.path(), "d", "--seq-length 30 --variable-seq-lengths --pad-to-multiple-of 25");
    assert!(close(&wide), "{variable:?} {wide:?}");
    // Rows that are packed elsewhere keep their length: 29, 29, 6 and 7 tokens.
    let ranks = "--nproc-per-node 2 --tp 2 --sequence-parallel";
    let odd = run(dir.path(), &format!("--seq-length 30 --reset-position-ids {ranks}")).stderr;
    let said = String::from_utf8_lossy(&odd);
    let expected =
        "--sequence-parallel: expected micro-batches whose tokens 2 ranks can share, found 71 tokens";
    assert!(said.contains(expected), "{said}");
    // A plan says that it takes every row for the longest, where rows differ.
    let assumed = |flags: &str| {
        let plan = run(dir.path(), &format!("--dry-run --json {flags}")).stdout;
        serde_json::from_slice::<Value>(&plan).unwrap()["rehearsed_as_if"].to_string()
    };
    assert!(assumed("--seq-length 30 --variable-seq-lengths").contains("every row is as long as it can be"));
    assert_eq!(assumed("--seq-length 30"), "[]");
    assert!(assumed("--seq-length 30 --reset-position-ids").contains("packed ones that are shorter"));
    // The shortest of them has 4 tokens.
    assert_eq!(assumed("--seq-length 4 --reset-position-ids"), "[]");
}

#[test]
fn a_row_that_ranks_cannot_share_is_named_before_the_first_iteration() {
    let dir = tempfile::tempdir().unwrap();
    samples(dir.path(), [8, 8, 8, 7]);
    let metrics = dir.path().join("metrics");
    let trained = |flags: &str, iterations: u32| {
        let rows = "--seq-length 8 --reset-position-ids --nproc-per-node 2 --micro-batch-size 1 --global-batch-size 1";
        let flags = format!("{rows} {flags} --train-iters {iterations} --metrics-file {}", metrics.display());
        let done = run(dir.path(), &flags);
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    for (flags, said) in [
        ("--context-parallel-size 2", "chunks for 2 ranks, found sample 3 of 7 tokens"),
        ("--tp 2 --sequence-parallel", "whose tokens 2 ranks can share, found 7 tokens of samples [3]"),
    ] {
        let (code, message) = trained(flags, 4);
        assert!(code == Some(1) && message.contains(said), "{message}");
        let done = std::fs::read_to_string(&metrics).unwrap_or_default();
        assert!(!done.contains("lm loss"), "{flags}: an iteration ran: {done}");
        // A row that the run does not take is in nobody's way.
        let (code, message) = trained(flags, 3);
        assert_eq!(code, Some(0), "{message}");
        std::fs::remove_file(&metrics).unwrap();
    }
    // In a permuted order, of more rows than the run takes.
    samples(dir.path(), [8, 8, 8, 8, 7, 8, 7]);
    for flags in ["--dataloader-type cyclic", "--dataloader-type cyclic --no-data-sharding"] {
        let flags = format!("--tp 2 --sequence-parallel {flags}");
        let (code, message) = trained(&flags, 6);
        assert!(code == Some(1) && message.contains("found 7 tokens of samples ["), "{flags}: {message}");
        let done = std::fs::read_to_string(&metrics).unwrap_or_default();
        assert!(!done.contains("lm loss"), "{flags}: an iteration ran: {done}");
    }
    // The last of seven fills no chunk of two data-parallel ranks, so that no shard has it.
    samples(dir.path(), [8, 8, 8, 8, 8, 8, 7]);
    let two = "--tp 2 --sequence-parallel --nproc-per-node 4 --global-batch-size 2 --dataloader-type cyclic";
    let (code, message) = trained(two, 4);
    assert_eq!(code, Some(0), "{message}");
}
