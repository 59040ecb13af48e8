//! Several processes of one launch: `cargo test -p ms-preprocess --features mpi`.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod bench;

use bench::{Bench, text};
use std::process::Command;

fn launch(bench: &Bench, ranks: &str, args: &[&str]) -> std::process::Output {
    Command::new("mpirun")
        // Test machines have few cores, and some run everything as root.
        .args(["--oversubscribe", "-n", ranks])
        .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
        .current_dir(bench.dir.path())
        .arg(assert_cmd::cargo::cargo_bin("ms-preprocess"))
        .args(args)
        .args(["--tokenizer-name-or-path", "tok"])
        .output()
        .unwrap()
}

#[test]
fn three_ranks_give_the_bytes_of_one_process() {
    let bench = Bench::new();
    let all = std::fs::read_to_string(bench.path("in.jsonl")).unwrap();
    let lines: Vec<&str> = all.lines().collect();
    for (i, part) in lines.chunks(70).enumerate() {
        // Duplicates across files are found by rank 0.
        std::fs::write(bench.path(&format!("part-{i}.jsonl")), part.join("\n") + "\n" + lines[0]).unwrap();
    }
    let args = [
        "--style",
        "pretrain",
        "--append-eod",
        "--dedup",
        "exact",
        "--input",
        "part-*.jsonl",
        "--output-prefix",
    ];
    let one = bench.run(&[&args[..], &["one"]].concat());
    assert!(one.status.success(), "{}", text(&one.stderr));
    let three = launch(&bench, "3", &[&args[..], &["three", "--json"]].concat());
    assert!(three.status.success(), "{}", text(&three.stderr));
    let report: serde_json::Value = serde_json::from_slice(&three.stdout).unwrap();
    assert_eq!((&report["records"], &report["duplicates"]), (&305.into(), &5.into()));
    assert_eq!(bench.sets("one").len(), 2);
    assert!(bench.sets("one") == bench.sets("three"));

    std::fs::write(bench.path("part-3.jsonl"), "{broken").unwrap();
    let failed = launch(&bench, "3", &[&args[..], &["failed"]].concat());
    assert!(!failed.status.success());
    // Whichever of them ends first takes the others with it: each says why.
    let said = text(&failed.stderr);
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("ms-preprocess: ")).collect();
    assert!(!lines.is_empty(), "{said}");
    for line in lines {
        assert!(line.contains("part-3.jsonl: record 1: not a JSON object"), "{said}");
    }
    assert!(bench.sets("failed").is_empty());
}
