//! Learning rates and weight decays as the program uses them: whole columns of its metrics compared with Megatron's.

use crate::tiny::{counting, metrics, model, ms_train, refused, samples};
use serde_json::Value;

/// Learning rate and weight decay of every iteration of a run with these flags in addition to those of the model.
fn columns(iterations: usize, batch: usize, flags: &[String]) -> [Vec<f64>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("metrics.jsonl");
    let mut command = ms_train();
    command.args(model()).args(["--global-batch-size", &batch.to_string()]).args(flags);
    command.arg("--data-path").arg(samples(dir.path(), iterations, batch, counting));
    command.arg("--metrics-file").arg(&file).args(["--eval-iters", "0"]).assert().success();
    ["learning rate", "weight decay"]
        .map(|column| metrics(&file).iter().map(|line| line[column].as_f64().unwrap()).collect())
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn close(name: &str, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (got - want).abs() <= 1e-15 + 1e-14 * want.abs(),
            "{name}: iteration {}: {got:e}, want {want:e}",
            i + 1
        );
    }
}

#[test]
fn whole_columns_are_those_of_megatrons_scheduler() {
    let path = ms_testing::workspace_root().join("tests/golden/schedules/schedules.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let batch = golden["global_batch_size"].as_u64().unwrap() as usize;
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 15);
    for case in cases {
        let flags: Vec<String> =
            case["flags"].as_array().unwrap().iter().map(|f| f.as_str().unwrap().to_owned()).collect();
        let (lr, decay) = (numbers(&case["lr"]), numbers(&case["weight_decay"]));
        let [got_lr, got_decay] = columns(lr.len() + 1, batch, &flags);
        let name = case["name"].as_str().unwrap();
        close(&format!("{name}: learning rate"), &got_lr, &lr);
        close(&format!("{name}: weight decay"), &got_decay, &decay);
    }
}

#[test]
fn whole_columns_are_those_of_the_shared_schedules() {
    let path = ms_testing::golden("ops/lr_schedules.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let number = |key: &str| golden[key].as_u64().unwrap() as usize;
    for (name, curve) in golden["curves"].as_object().unwrap() {
        let style = name.split_once('-').filter(|s| s.0 == "WSD");
        let mut flags = format!(
            "--lr {} --min-lr {} --train-iters {} --lr-decay-iters {} --lr-warmup-iters {} --lr-decay-style {}",
            golden["lr"],
            golden["min_lr"],
            number("train_iters"),
            number("lr_decay_iters"),
            number("lr_warmup_iters"),
            style.map_or(name.as_str(), |s| s.0)
        );
        if let Some((_, last)) = style {
            flags += &format!(
                " --lr-wsd-decay-style {last} --lr-wsd-decay-iters {}",
                number("lr_wsd_decay_iters")
            );
        }
        let flags: Vec<String> = flags.split(' ').map(str::to_owned).collect();
        let [lr, decay] = columns(number("train_iters"), number("global_batch_size"), &flags);
        // The golden has one value more: the rate after the last iteration.
        close(name, &lr, &numbers(curve)[..lr.len()]);
        close(name, &decay, &vec![0.01; lr.len()]);
    }
}

/// Megatron-LM `core_r0.8.0`, `megatron/training/training.py`: `training_log` has the rate that the step left behind.
#[test]
fn tensorboard_gets_the_next_rate_as_the_log_line_does() {
    let dir = tempfile::tempdir().unwrap();
    let board = dir.path().join("board");
    let mut command = ms_train();
    command.args(model()).args("--train-iters 2 --lr 1e-2 --lr-warmup-iters 1 --eval-iters 0".split(' '));
    command.arg("--data-path").arg(samples(dir.path(), 2, 4, counting)).arg("--tensorboard-dir").arg(&board);
    let done = command.args(["--log-interval", "1"]).assert().success();
    let said = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    assert!(said.contains("learning rate: 1.000000E-02"), "{said}");
    let file = std::fs::read_dir(&board).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(file).unwrap();
    // A point is the series' name and, after a key of one byte, its float32.
    let tag = b"learning-rate";
    let ends = bytes.windows(tag.len()).enumerate().filter(|w| w.1 == tag).map(|w| w.0 + tag.len() + 1);
    let points: Vec<f32> = ends.map(|at| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())).collect();
    assert_eq!(points, [1e-2, 0.0]);
}

#[test]
fn lengths_of_the_other_kind_and_contradictions_are_refused() {
    let run = |flags: &str| refused(ms_train().args(model()).args(["--dry-run"]).args(flags.split(' ')), 2);
    for (flags, said) in [
        ("--train-iters 9 --lr 1 --lr-warmup-samples 3", "--lr-warmup-samples needs --train-samples"),
        ("--train-samples 90 --lr 1 --lr-warmup-iters 3", "--lr-warmup-iters needs --train-iters"),
        ("--train-samples 90 --lr 1 --lr-decay-iters 3", "pass --lr-decay-samples"),
        (
            "--train-iters 9 --lr 1 --lr-warmup-iters 9",
            "--lr-warmup-iters: expected less than the 9 iterations",
        ),
        (
            "--train-samples 90 --lr 1 --lr-warmup-samples 91",
            "--lr-warmup-samples: expected less than the 90 samples",
        ),
        ("--train-iters 9 --lr 1 --lr-warmup-iters 2 --lr-warmup-fraction 0.1", "pass one of them"),
        ("--train-iters 9 --lr 1 --lr-decay-style WSD", "--lr-wsd-decay-iters is required"),
        ("--train-iters 9 --lr 1 --start-weight-decay 0.1", "--start-weight-decay needs"),
        ("--train-iters 9 --lr 1 --weight-decay-incr-style linear", "need --start-weight-decay"),
        (
            "--train-iters 9 --lr 1 --weight-decay-incr-style linear --start-weight-decay 1 --end-weight-decay 0.5",
            "--end-weight-decay: expected at least",
        ),
        ("--train-iters 9 --lr 1e-3 --min-lr 1e-2", "--min-lr"),
    ] {
        let message = run(flags);
        assert!(message.contains(said), "{flags}: {message}");
    }
}

#[test]
fn a_dry_run_shows_the_schedule() {
    let flags =
        "--dry-run --json --train-iters 20 --lr 1e-3 --min-lr 1e-4 --lr-warmup-iters 4 --lr-decay-iters 16";
    let done = ms_train().args(model()).args(flags.split(' ')).assert().success();
    let plan: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let schedule = &plan["schedule"];
    assert_eq!(schedule["lr_decay_style"], "linear");
    for (key, want) in [
        ("warmup_iterations", 4.0),
        ("decay_iterations", 16.0),
        ("first_lr", 0.0),
        ("peak_lr", 1e-3),
        ("last_lr", 1e-4),
    ] {
        assert_eq!(schedule[key].as_f64(), Some(want), "{key}");
    }
}
