//! `--reuse-fp32-param`, `--o2-optimizer` and `--swap-optimizer`, as a user asks for them.

#![allow(clippy::unwrap_used)] // tests

mod tiny;

use serde_json::Value;
use std::path::Path;
use tiny::{counting, metrics, model, ms_train, refused, samples};

const RUN: &str =
    "--bf16 --hidden-size 64 --ffn-hidden-size 192 --num-layers 2 --train-iters 6 --lr 1e-2 --eval-iters 0";

/// What a run says of itself, and its losses and norms.
fn run(dir: &Path, data: &Path, name: &str, more: &str) -> (Value, Vec<[Value; 2]>) {
    let file = dir.join(format!("{name}.jsonl"));
    let mut command = ms_train();
    command.args(model()).args(RUN.split_whitespace()).args(more.split_whitespace());
    command.args(["--json", "--data-path"]).arg(data).arg("--metrics-file").arg(&file);
    let done = command.assert().success();
    let lines = metrics(&file).into_iter().map(|l| [l["lm loss"].clone(), l["grad norm"].clone()]);
    (serde_json::from_slice(&done.get_output().stdout).unwrap(), lines.collect())
}

fn planned(more: &str) -> Value {
    let mut command = ms_train();
    command.args(model()).args(RUN.split_whitespace()).args(more.split_whitespace());
    let done = command.args(["--dry-run", "--json"]).assert().success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

#[test]
fn state_in_halves_or_with_the_host_gives_the_same_lines_and_takes_what_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 4, counting);
    let (plain, lines) = run(dir.path(), &data, "plain", "");
    let optimizer = |plan: &Value| plan["bytes_per_rank"]["optimizer"].as_f64().unwrap();
    let peak = |run: &Value| run["peak_tensor_bytes_per_rank"].as_f64().unwrap();
    let all = optimizer(&planned(""));
    for (name, more, part) in [
        ("halves", "--reuse-fp32-param --use-deter-comp", 10.0 / 12.0),
        ("swapped", "--swap-optimizer --swap-optimizer-times 8", 0.0),
    ] {
        let (said, same) = run(dir.path(), &data, name, more);
        assert_eq!(lines, same, "{more}");
        assert_eq!(optimizer(&planned(more)), all * part, "{more}");
        // What the plan saves is saved where the run takes most, but for the copies of a part, which are much of so small a model.
        let saved = (peak(&plain) - peak(&said)) / (all * (1.0 - part));
        assert!(saved > 0.4 && saved < 1.3, "{more}: {saved} of the plan: {} {}", peak(&plain), peak(&said));
    }
    let (_, rounded) = run(dir.path(), &data, "rounded", "--o2-optimizer");
    assert!(lines[0] == rounded[0] && lines[5] != rounded[5], "{lines:?} {rounded:?}");
    assert_eq!(optimizer(&planned("--o2-optimizer")), all * 8.0 / 12.0);
    let both = planned("--o2-optimizer --reuse-fp32-param");
    assert_eq!(optimizer(&both), all * 6.0 / 12.0);
}

#[test]
fn a_checkpoint_says_nothing_of_the_form_it_came_from() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 4, counting);
    let (_, lines) = run(dir.path(), &data, "plain", "");
    let forms = ["", "--reuse-fp32-param --use-deter-comp", "--swap-optimizer"];
    for (i, first) in forms.into_iter().enumerate() {
        let save = dir.path().join(format!("save{i}"));
        run(
            dir.path(),
            &data,
            &format!("first{i}"),
            &format!("{first} --save {} --exit-interval 3", save.display()),
        );
        for (j, then) in forms.into_iter().enumerate() {
            let more = format!("{then} --load {}", save.display());
            let (_, rest) = run(dir.path(), &data, &format!("then{i}{j}"), &more);
            assert_eq!(lines[3..], rest, "saved with `{first}`, resumed with `{then}`");
        }
    }
    // Rounded moments go on as they were.
    let (_, lines) = run(dir.path(), &data, "rounded", "--o2-optimizer");
    let save = dir.path().join("saved-rounded");
    let first = format!("--o2-optimizer --save {} --exit-interval 2", save.display());
    run(dir.path(), &data, "first-rounded", &first);
    let (_, rest) =
        run(dir.path(), &data, "then-rounded", &format!("--o2-optimizer --load {}", save.display()));
    assert_eq!(lines[2..], rest);
}

#[test]
fn forms_that_do_not_go_together_are_refused_by_the_flags_name() {
    for (flags, flag) in [
        ("--reuse-fp32-param", "--reuse-fp32-param"),
        ("--o2-optimizer", "--o2-optimizer"),
        ("--bf16 --reuse-fp32-param --swap-optimizer", "--swap-optimizer"),
        ("--bf16 --o2-optimizer --swap-optimizer", "--swap-optimizer"),
        ("--bf16 --o2-optimizer --optimizer sgd", "--o2-optimizer"),
        ("--swap-optimizer --swap-optimizer-times 0", "--swap-optimizer-times"),
    ] {
        let mut command = ms_train();
        command.args(model()).args(["--dry-run", "--train-iters", "2", "--lr", "1e-3"]);
        let message = refused(command.args(flags.split_whitespace()), 2);
        assert!(message.starts_with(&format!("ms-train: {flag}: ")), "{flags}: {message}");
    }
}
