//! Optional checks of a run, and iterations that it skips.

use crate::tiny::{SEQ, counting, metrics, model, ms_train, refused, samples};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const GLOBAL: usize = 4;

/// What a run of this many iterations writes to standard output, and its metrics.
fn run(dir: &Path, iterations: usize, more: &str) -> (String, Vec<Value>) {
    let data = samples(dir, iterations, GLOBAL, counting);
    let metrics_file = dir.join("m.jsonl");
    let _ = std::fs::remove_file(&metrics_file);
    let mut command = ms_train();
    command.args(model()).args(["--lr", "1e-3", "--log-interval", "1", "--eval-iters", "0"]);
    command.args(["--train-iters", &iterations.to_string(), "--metrics-file"]).arg(&metrics_file);
    let done = command.args(more.split_whitespace()).arg("--data-path").arg(data).assert().success();
    let said = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    (said, metrics(&metrics_file))
}

#[test]
fn zeros_of_gradients_are_those_of_tokens_that_did_not_come_on_any_topology() {
    let dir = tempfile::tempdir().unwrap();
    let seen: BTreeSet<i32> = (0..GLOBAL).flat_map(|r| (0..SEQ).map(move |t| counting(r, t))).collect();
    // Rows of the embedding, sixteen numbers each.
    let zeros = (64 - seen.len()) * 16;
    assert!(zeros > 0);
    let flags = "--untie-embeddings-and-output-weights --log-num-zeros-in-grad --micro-batch-size 1";
    for more in [
        "",
        "--nproc-per-node 2",
        "--nproc-per-node 2 --tensor-model-parallel-size 2 --sequence-parallel",
        "--nproc-per-node 2 --context-parallel-size 2",
        "--nproc-per-node 2 --pipeline-model-parallel-size 2 --num-layers 2",
    ] {
        let (said, lines) = run(dir.path(), 1, &format!("{flags} {more}"));
        assert_eq!(lines[0]["num zeros"], zeros, "{more}");
        assert!(said.contains(&format!(" num zeros: {zeros}.0 | number of skipped")), "{more}: {said}");
    }
    let (said, lines) = run(dir.path(), 1, "");
    assert!(!said.contains("num zeros") && lines[0].get("num zeros").is_none());
}

#[test]
fn biases_of_routers_count_neither_as_zeros_nor_in_the_norm_of_weights() {
    let dir = tempfile::tempdir().unwrap();
    let of = |more: &str| {
        let experts =
            "--num-experts 4 --moe-router-load-balancing-type none --moe-router-score-function sigmoid";
        let (said, _) =
            run(dir.path(), 1, &format!("{experts} --log-num-zeros-in-grad --log-params-norm {more}"));
        let from = said.find(" num zeros:").unwrap();
        said[from..].lines().next().unwrap().to_owned()
    };
    assert_eq!(of("--moe-router-enable-expert-bias --moe-router-bias-update-rate 10"), of(""));
}

#[test]
fn a_batch_that_does_not_divide_is_lowered_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    // A decay schedule counts the requested batches.
    let two = "--nproc-per-node 2 --micro-batch-size 1 --lr-decay-style constant";
    let (_, plain) = run(dir.path(), 3, &format!("{two} --global-batch-size 4"));
    let lowered = format!("{two} --global-batch-size 5");
    let (said, lines) = run(dir.path(), 3, &format!("{lowered} --decrease-batch-size-if-needed"));
    for key in ["lm loss", "grad norm", "consumed samples", "global batch size"] {
        let column = |lines: &[Value]| lines.iter().map(|l| l[key].clone()).collect::<Vec<_>>();
        assert!(column(&plain).iter().all(|value| !value.is_null()), "{key}: {plain:?}");
        assert_eq!(column(&lines), column(&plain), "{key}");
    }
    assert!(said.contains(" consumed samples:           12 | skipped samples:            3 |"), "{said}");
    let data = samples(dir.path(), 3, GLOBAL, counting);
    let mut command = ms_train();
    command.args(model()).args(["--lr", "1e-3", "--train-iters", "3", "--data-path"]).arg(data);
    let said = refused(command.args(lowered.split_whitespace()), 2);
    assert!(
        said.contains("--global-batch-size: expected a multiple of") && said.contains("found 5"),
        "{said}"
    );
}

#[test]
fn iterations_that_are_passed_over_take_their_samples_and_leave_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let decay = "--lr-decay-style linear --min-lr 1e-5 --lr-decay-iters 4";
    let (_, plain) = run(dir.path(), 4, decay);
    let (said, lines) = run(dir.path(), 4, &format!("{decay} --iterations-to-skip 1 2"));
    let column = |lines: &[Value], key: &str| lines.iter().map(|l| l[key].clone()).collect::<Vec<_>>();
    assert_eq!(column(&lines, "iteration"), [1, 4]);
    assert_eq!(column(&lines, "consumed samples"), [4, 16]);
    // Only iterations with an update move the schedule.
    assert_eq!(column(&lines, "learning rate"), column(&plain[..2], "learning rate"));
    assert_eq!(lines[0]["lm loss"], plain[0]["lm loss"]);
    assert_ne!(lines[1]["lm loss"], plain[3]["lm loss"]);
    assert!(said.contains(" consumed samples:           16 | skipped samples:            8 |"), "{said}");
}

#[test]
fn replicas_are_compared_when_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let every = "--nproc-per-node 2 --micro-batch-size 2 --check-weight-hash-across-dp-replicas-interval 2";
    for more in ["", "--overlap-grad-reduce --overlap-param-gather --use-distributed-optimizer"] {
        let (said, _) = run(dir.path(), 3, &format!("{every} {more}"));
        let after: Vec<&str> = said.lines().filter(|l| l.contains("Weight hashes match")).collect();
        assert_eq!(after.len(), 2, "{said}");
        assert!(after[0].contains("after 0 iterations") && after[1].contains("after 2 iterations"), "{said}");
    }
}

#[test]
fn a_trace_holds_the_ranks_that_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let ranks = |more: &str| -> BTreeSet<usize> {
        // The first iteration.
        let steps = if more.contains("head") { [1, 2] } else { [0, 1] };
        let [start, end] = steps.map(|step| step.to_string());
        let steps = format!("--profile-step-start {start} --profile-step-end {end}");
        let flags = format!("--nproc-per-node 2 --micro-batch-size 2 --json --profile {steps}");
        let save = dir.path().join("p");
        let (said, _) = run(dir.path(), 1, &format!("{flags} --profile-save-path {} {more}", save.display()));
        let report: Value = serde_json::from_str(&said).unwrap();
        let events = ms_trace::chrome::read(Path::new(report["trace"].as_str().unwrap())).unwrap();
        events.iter().map(|e| e.rank).collect()
    };
    assert_eq!(ranks("--upstream v2.0.0"), [0, 1].into());
    assert_eq!(ranks("--upstream head"), [0].into());
    assert_eq!(ranks("--upstream head --profile-ranks -1"), [0, 1].into());
    assert_eq!(ranks("--profile-ranks 1"), [1].into());
    let mut command = ms_train();
    command.args(model()).args(["--dry-run", "--profile-ranks", "1"]);
    assert!(refused(&mut command, 2).contains("--profile-ranks: expected -1 or ranks below 1, found 1"));
    let mut command = ms_train();
    command.args(model()).args("--dry-run --upstream head --profile --profile-step-start 0".split(' '));
    assert!(refused(&mut command, 2).contains("--profile-step-start: expected at least 1, found 0"));
}

#[test]
fn a_loss_or_a_gradient_far_from_the_first_hundred_stops_the_run_on_any_topology() {
    /// Iterations to learn from first, then those checked; each gives at least a gradient norm and a loss.
    const LEARNT: usize = 40;
    const CALM: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    // One row again and again, and in the end another one.
    let strange = (LEARNT + CALM) * GLOBAL;
    let token = |row: usize, place: usize| if row < strange { place } else { 63 - place } as i32;
    let data = samples(dir.path(), LEARNT + CALM + 1, GLOBAL, token);
    let save = dir.path().join("learnt");
    let command = |more: &str| {
        let mut command = ms_train();
        command.args(model()).args(["--num-layers", "2", "--micro-batch-size", "1", "--eval-iters", "0"]);
        command.args([
            "--lr",
            "1e-2",
            "--lr-decay-style",
            "constant",
            "--log-interval",
            "1",
            "--untie-embeddings-and-output-weights",
        ]);
        command.args(["--train-iters", &(LEARNT + CALM + 1).to_string()]).args(more.split_whitespace());
        command.arg("--data-path").arg(&data);
        command
    };
    let first = format!("--exit-interval {LEARNT}");
    command(&first).arg("--save").arg(&save).assert().success();
    let last = LEARNT + CALM + 1;
    for (topology, ranks) in [
        ("", ["rank 0", "rank 0"]),
        ("--nproc-per-node 2", ["rank ", "rank "]),
        ("--nproc-per-node 2 --tp 2 --sequence-parallel", ["rank ", "rank "]),
        // A loss is the last stage's.
        ("--nproc-per-node 2 --pp 2", ["rank 1", "rank "]),
    ] {
        let checks = [("--check-for-spiky-loss", "the loss"), ("--check-for-large-grads", "gradients")];
        for ((flag, what), rank) in checks.into_iter().zip(ranks) {
            let mut command = command(&format!("{topology} {flag} --use-distributed-optimizer"));
            command.arg("--load").arg(&save);
            let said = refused(&mut command, 1);
            for part in [format!("iteration {last}"), rank.to_owned(), what.to_owned(), flag.to_owned()] {
                assert!(said.contains(&part), "{topology} {flag}: {part}: {said}");
            }
        }
        // Without them it goes on.
        command(topology).arg("--load").arg(&save).assert().success();
    }
}
