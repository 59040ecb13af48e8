//! `--fp16`: skipped iterations, the scale in the log and in checkpoints.

use crate::tiny::{counting, metrics, model, ms_train, refused, samples};
use serde_json::Value;
use std::path::Path;

const HALF: &str = "--fp16 --initial-loss-scale 67108864 --loss-scale-window 3 --hysteresis 2 --lr 1e-2 --min-lr 1e-3 \
                    --lr-decay-style linear --lr-warmup-iters 4 --lr-decay-iters 20 --log-interval 1 --eval-iters 0";

/// The metrics of a run up to iteration `last`, and its log.
fn run(dir: &Path, data: &Path, name: &str, last: &str, more: &str) -> (Vec<Value>, String) {
    let file = dir.join(format!("{name}.jsonl"));
    let mut command = ms_train();
    command.args(model()).args(HALF.split_whitespace()).args(more.split_whitespace());
    command.args(["--train-iters", last, "--data-path"]).arg(data).arg("--metrics-file").arg(&file);
    let done = command.assert().success();
    let text = String::from_utf8_lossy(&done.get_output().stdout).into_owned()
        + &String::from_utf8_lossy(&done.get_output().stderr);
    (metrics(&file), text)
}

#[test]
fn skipped_iterations_consume_samples_and_wait_with_the_schedule() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 12, 4, counting);
    let (lines, log) = run(dir.path(), &data, "plain", "12", "");
    let skipped: Vec<bool> = lines.iter().map(|l| l["skipped"].as_bool().unwrap()).collect();
    let count = skipped.iter().take_while(|s| **s).count();
    assert!((2..9).contains(&count), "{skipped:?}");
    let scale: Vec<f64> = lines.iter().map(|l| l["loss scale"].as_f64().unwrap()).collect();
    let mut at = 67_108_864.0;
    for (i, &now) in scale[..count].iter().enumerate() {
        at *= if i == 0 { 1.0 } else { 0.5 };
        assert_eq!(now, at, "{scale:?}");
    }
    // After the window the scale has doubled.
    assert_eq!(scale[count + 2], 2.0 * at, "{scale:?}");
    // Samples go on, the schedule waits: the first iteration that is not skipped trains with the rate of the first.
    let consumed: Vec<u64> = lines.iter().map(|l| l["consumed samples"].as_u64().unwrap()).collect();
    assert_eq!(consumed, (1..=12).map(|i| 4 * i).collect::<Vec<u64>>());
    let rate = |i: usize| lines[i]["learning rate"].as_f64().unwrap();
    assert_eq!((rate(count), rate(count + 1)), (0.0, 0.0025), "{skipped:?}");
    assert!(lines[0]["grad norm"].is_null() && lines[count]["grad norm"].is_number());
    let line = log.lines().find(|l| l.contains("iteration        1/")).unwrap();
    assert!(line.contains("| loss scale: 67108864.0 | number of skipped iterations:   1 |"), "{line}");
    assert!(!line.contains("lm loss"), "{line}");
    // Stopped and resumed: the same lines to the bit, among them the scale with what it depends on.
    for cut in ["1", "4", "9"] {
        let save = dir.path().join(format!("save{cut}"));
        let saved = format!("--save {0} --load {0}", save.display());
        run(dir.path(), &data, &format!("first{cut}"), "12", &format!("{saved} --exit-interval {cut}"));
        let (rest, _) = run(dir.path(), &data, &format!("rest{cut}"), "12", &saved);
        let from = lines.len() - rest.len();
        assert_eq!(from, cut.parse::<usize>().unwrap());
        for (a, b) in lines[from..].iter().zip(&rest) {
            for key in ["lm loss", "grad norm", "loss scale", "skipped", "learning rate", "consumed samples"]
            {
                assert_eq!(a[key], b[key], "{key} of {a} and {b}");
            }
        }
    }
}

#[test]
fn a_scale_that_stays_acts_where_upstreams_optimizer_has_one() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4, 4, counting);
    let file = dir.path().join("m.jsonl");
    for (flags, want) in [(None, 1.0), (Some("--use-distributed-optimizer"), 8.0), (Some("--bf16"), 8.0)] {
        let _ = std::fs::remove_file(&file);
        let mut command = ms_train();
        command.args(model()).args("--loss-scale 8 --train-iters 1 --lr 1e-3 --eval-iters 0".split(' '));
        command.args(flags).arg("--data-path").arg(&data).arg("--metrics-file").arg(&file);
        let done = command.args(["--log-interval", "1"]).assert().success();
        let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert_eq!(metrics(&file)[0]["loss scale"], want, "{flags:?}");
        assert_eq!(said.contains("--loss-scale has no effect"), flags.is_none(), "{said}");
    }
}

#[test]
fn losses_that_are_no_numbers_are_counted_where_iterations_are_skipped_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4, 4, counting);
    let (lines, log) = run(
        dir.path(),
        &data,
        "broken",
        "4",
        "--lr 1e6 --init-method-std 1 --lr-warmup-iters 0 --initial-loss-scale 16",
    );
    let nan: Vec<bool> = lines.iter().map(|l| l["skipped"] == true && l["lm loss"].is_null()).collect();
    assert!(nan.contains(&true), "{log}");
    for (i, nan) in nan.into_iter().enumerate() {
        let line = log.lines().find(|l| l.contains(&format!("iteration        {}/", i + 1))).unwrap();
        assert!(line.contains(&format!("number of nan iterations:   {} |", u8::from(nan))), "{line}");
    }
}

#[test]
fn float16_halves_the_bytes_of_weights_and_goes_with_no_other_type() {
    let bytes = |flags: &str| -> Value {
        let mut command = ms_train();
        command.args(model()).args(["--dry-run", "--json", "--train-iters", "2", "--lr", "1e-3"]);
        command.args(flags.split_whitespace());
        let plan: Value = serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap();
        plan["bytes_per_rank"].clone()
    };
    let (half, single, brain) = (bytes("--fp16"), bytes(""), bytes("--bf16"));
    assert_eq!(half["weights"], brain["weights"]);
    assert_eq!(half["optimizer"], brain["optimizer"]);
    // Computed in float32, with float32 copies of the current weights.
    let [of_half, of_single] = [&half, &single].map(|of| of["activations"].as_u64().unwrap());
    let copies = 2 * half["weights"].as_u64().unwrap();
    assert!((of_single..=of_single + copies).contains(&of_half), "{of_half} {of_single}");
    for (flags, flag) in [("--fp16 --bf16", "--fp16"), ("--fp64 --fp16", "--fp64")] {
        let mut command = ms_train();
        command.args(model()).args(["--dry-run", "--train-iters", "2", "--lr", "1e-3"]);
        let message = refused(command.args(flags.split_whitespace()), 2);
        assert!(message.starts_with(&format!("ms-train: {flag}: cannot be combined with")), "{message}");
    }
}
