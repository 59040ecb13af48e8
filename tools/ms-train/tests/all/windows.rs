//! Multi-token prediction of MindSpeed-LLM 2.0.0, with its flags: rows that extend beyond what is trained, one loss.

use crate::tiny::{counting, metrics, model, ms_train, refused, samples};
use std::path::Path;

/// Rows of twelve tokens and four more, in float64.
const RUN: &str = "--num-layers 2 --micro-batch-size 1 --global-batch-size 8 --lr 1e-2 --fp64 --eval-iters 0 \
    --init-method-std 0.2 --seq-length 12 --untie-embeddings-and-output-weights";
const WINDOWS: &str = "--num-nextn-predict-layers 4 --share-mtp-embedding-and-output-weight";

fn command(dir: &Path, flags: &str) -> assert_cmd::Command {
    let mut command = ms_train();
    command.current_dir(dir).args(model()).args(RUN.split_whitespace()).args(flags.split_whitespace());
    command.args("--data-path data.safetensors --train-iters 3".split_whitespace());
    command
}

/// Losses and norms of the gradient.
fn numbers(dir: &Path, flags: &str) -> Vec<[f64; 2]> {
    let file = dir.join("m.jsonl");
    let _ = std::fs::remove_file(&file);
    let done = command(dir, &format!("{flags} --metrics-file m.jsonl")).assert().success();
    let said = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    assert!(!said.contains("mtp_1 loss"), "there is one loss: {said}");
    let of = |key: &str, row: &serde_json::Value| row[key].as_f64().unwrap();
    metrics(&file).iter().map(|row| [of("lm loss", row), of("grad norm", row)]).collect()
}

#[test]
fn windows_are_trained_alike_on_every_topology() {
    let dir = tempfile::tempdir().unwrap();
    samples(dir.path(), 3, 8, counting);
    let one = numbers(dir.path(), WINDOWS);
    for way in [
        "--nproc-per-node 2 --tp 2 --sequence-parallel",
        "--nproc-per-node 2 --pp 2",
        "--nproc-per-node 2 --pp 2 --schedules-method zero-bubble --recompute-mtp-norm",
        "--nproc-per-node 4 --use-distributed-optimizer",
        "--nproc-per-node 2 --cp 2 --context-parallel-algo megatron_cp_algo",
        "--nproc-per-node 2 --cp 2 --context-parallel-algo ulysses_cp_algo --recompute-mtp-layer",
    ] {
        let many = numbers(dir.path(), &format!("{way} {WINDOWS}"));
        for (got, want) in many.iter().flatten().zip(one.iter().flatten()) {
            assert!((got - want).abs() < 1e-10 * want.abs(), "{way}: {got}, expected {want}");
        }
    }
    // The factor is v2.0.0's own, and its value without the flag.
    assert_eq!(numbers(dir.path(), &format!("{WINDOWS} --mtp-loss-scale 0.3")), one);
    assert_ne!(numbers(dir.path(), &format!("{WINDOWS} --mtp-loss-scale 0.2")), one);
}

/// Documents end where row and place are a multiple of five; ranks may group them, for the rows as they are trained.
#[test]
fn ranks_hold_the_same_tokens_of_all_windows() {
    let dir = tempfile::tempdir().unwrap();
    samples(
        dir.path(),
        3,
        8,
        |row, place| if (row * 3 + place) % 5 == 0 { 63 } else { counting(row, place) % 63 },
    );
    let documents =
        "--vocab-size 63 --tokenizer-type NullTokenizer --reset-position-ids --reset-attention-mask";
    let one = numbers(dir.path(), &format!("{WINDOWS} {documents}"));
    for way in [
        "--cp 4 --nproc-per-node 4 --context-parallel-algo adaptive_cp_algo --adaptive-cp-without-coarse",
        "--cp 2 --nproc-per-node 2 --context-parallel-algo megatron_cp_algo",
    ] {
        let many = numbers(dir.path(), &format!("{way} {WINDOWS} {documents}"));
        for (got, want) in many.iter().flatten().zip(one.iter().flatten()) {
            assert!((got - want).abs() < 1e-10 * want.abs(), "{way}: {got}, expected {want}");
        }
    }
}

#[test]
fn what_goes_not_with_windows_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    samples(dir.path(), 3, 8, counting);
    for (flags, wanted, code) in [
        ("--num-nextn-predict-layers 4", "needs --share-mtp-embedding-and-output-weight", 2),
        (
            "--num-nextn-predict-layers 3 --share-mtp-embedding-and-output-weight",
            "expected samples of 15 tokens (--seq-length, and --num-nextn-predict-layers more), found 16",
            1,
        ),
    ] {
        let said = refused(&mut command(dir.path(), flags), code);
        assert!(said.contains(wanted), "{flags}: {said}");
    }
}

#[test]
fn parity_looks_at_windows() {
    for topology in [
        "--nproc-per-node 4 --tp 2 --pp 2",
        "--nproc-per-node 2 --cp 2 --context-parallel-algo megatron_cp_algo",
    ] {
        let mut command = ms_train();
        command
            .arg("parity")
            .args(model())
            .args(RUN.split_whitespace())
            .args(WINDOWS.replace('4', "2").split_whitespace());
        command.args(topology.split(' ')).args(["--json"]);
        let done = command.assert().success();
        let found: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        assert_eq!(found["equal"], true, "{found}");
        // The reported loss has those of the modules in it.
        let mut plain = ms_train();
        plain.arg("parity").args(model()).args(RUN.split_whitespace()).args(["--mtp-num-layers", "2"]);
        let done = plain.args(topology.split(' ')).args(["--json"]).assert().success();
        let rolled: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        let loss = |found: &serde_json::Value| found["losses"][0].as_f64().unwrap();
        assert!(loss(&found) > loss(&rolled) * 1.2, "{found} {rolled}");
    }
}
