//! `--reuse-fp32-param`, `--o2-optimizer`, `--o2-gradient`, `--swap-optimizer` and `--decoupled-lr`, as a user gives them.

use crate::tiny::{counting, metrics, model, ms_train, refused, samples};
use serde_json::Value;
use std::path::Path;

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
        ("halves", "--reuse-fp32-param --npu-deterministic", 10.0 / 12.0),
        ("swapped", "--swap-optimizer --swap-optimizer-times 8", 0.0),
    ] {
        let (said, same) = run(dir.path(), &data, name, more);
        assert_eq!(lines, same, "{more}");
        assert_eq!(optimizer(&planned(more)), all * part, "{more}");
        // What the plan saves is saved where the run takes most, but for the copies of a part, which are much of so small a
        // model.
        let saved = (peak(&plain) - peak(&said)) / (all * (1.0 - part));
        assert!(saved > 0.4 && saved < 1.3, "{more}: {saved} of the plan: {} {}", peak(&plain), peak(&said));
    }
    let (_, rounded) = run(dir.path(), &data, "rounded", "--o2-optimizer");
    assert!(lines[0] == rounded[0] && lines[5] != rounded[5], "{lines:?} {rounded:?}");
    assert_eq!(optimizer(&planned("--o2-optimizer")), all * 8.0 / 12.0);
    let swap = "--o2-optimizer --swap-optimizer --swap-optimizer-times 8";
    let (said, same) = run(dir.path(), &data, "rounded-away", swap);
    assert_eq!(rounded, same);
    assert_eq!(optimizer(&planned(swap)), 0.0);
    let (here, _) = run(dir.path(), &data, "rounded-here", "--o2-optimizer");
    let saved = (peak(&here) - peak(&said)) / (all * 8.0 / 12.0);
    assert!(saved > 0.4 && saved < 1.3, "{saved} of the plan: {} {}", peak(&here), peak(&said));
    // Of 12 bytes of an element 8 are in the file.
    let away = |run: &Value| run["swapped_bytes_per_rank"].as_f64().unwrap();
    let (wide, _) = run(dir.path(), &data, "wide-away", "--swap-optimizer --swap-optimizer-times 8");
    assert_eq!(away(&said), away(&wide) * 8.0 / 12.0);
    let both = planned("--o2-optimizer --reuse-fp32-param");
    assert_eq!(optimizer(&both), all * 6.0 / 12.0);
}

#[test]
fn gradients_in_bfloat16_take_half_of_what_others_do() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 4, counting);
    let o2 = "--o2-gradient --no-gradient-accumulation-fusion";
    let gradients = |more: &str| planned(more)["bytes_per_rank"]["gradients"].as_f64().unwrap();
    assert_eq!(gradients(o2), gradients("") / 2.0);
    assert_eq!(gradients("--upstream head --grad-reduce-in-bf16"), gradients("") / 2.0);
    let sent = |more: &str| {
        let two = format!("--nproc-per-node 2 --global-batch-size 8 {more}");
        planned(&two)["communication_bytes_per_iteration"]["dp_reduce_scatter"].as_f64().unwrap()
    };
    assert_eq!(sent(o2), sent("") / 2.0);
    let (plain, lines) = run(dir.path(), &data, "plain", "");
    let (said, rounded) = run(dir.path(), &data, "rounded", o2);
    // The first forward pass is the same; the norm of what is rounded is not.
    assert_eq!(lines[0][0], rounded[0][0]);
    assert_ne!(lines[0][1], rounded[0][1]);
    let loss = |lines: &[[Value; 2]]| lines[5][0].as_f64().unwrap();
    assert!((loss(&lines) - loss(&rounded)).abs() < 0.02, "{lines:?} {rounded:?}");
    let peak = |run: &Value| run["peak_tensor_bytes_per_rank"].as_f64().unwrap();
    let saved = (peak(&plain) - peak(&said)) / gradients(o2);
    assert!(saved > 0.3 && saved < 1.3, "{saved} of the plan: {} {}", peak(&plain), peak(&said));
}

#[test]
fn a_checkpoint_of_state_with_the_host_takes_no_more_memory_than_a_part_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 4, counting);
    let peak = |run: &Value| run["peak_tensor_bytes_per_rank"].as_f64().unwrap();
    let (parts, all) = (32.0, planned("")["bytes_per_rank"]["optimizer"].as_f64().unwrap());
    let swap = format!("--swap-optimizer --swap-optimizer-times {parts}");
    let save = |name: &str| format!("--save {}", dir.path().join(name).display());
    let (without, _) = run(dir.path(), &data, "without", &swap);
    let (with, _) = run(dir.path(), &data, "with", &format!("{swap} {}", save("swapped")));
    let more = peak(&with) - peak(&without);
    assert!(more <= all / parts && peak(&with) < all, "{more} of {all} bytes more in {parts} parts");
    // While training goes on it is held as a whole.
    let beside = format!("{swap} --async-save --save-interval 2 {}", save("held"));
    let (held, _) = run(dir.path(), &data, "held", &beside);
    assert!(peak(&held) > all, "{} of {all}", peak(&held));
    let file = |name: &str| {
        std::fs::read(dir.path().join(name).join("iter_0000006/rank_00000.safetensors")).unwrap()
    };
    assert!(file("swapped") == file("held"), "the same bytes");
}

#[test]
fn a_rate_of_its_own_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 4, counting);
    let rates = "--decoupled-lr 4e-2 --decoupled-min-lr 1e-2 --lr-decay-style linear --lr-warmup-iters 2 --min-lr 1e-3";
    let (_, lines) = run(dir.path(), &data, "whole", rates);
    let own = |name: &str| -> Vec<[f64; 2]> {
        let lines = metrics(&dir.path().join(format!("{name}.jsonl")));
        let number = |line: &Value, key: &str| line[key].as_f64().unwrap();
        lines.iter().map(|l| [number(l, "learning rate"), number(l, "decoupled learning rate")]).collect()
    };
    // Up to the largest in two iterations, and down to the smallest in the other four.
    for (i, [lr, decoupled]) in own("whole").into_iter().enumerate() {
        let share = if i <= 2 { i as f64 / 2.0 } else { 1.0 - (i as f64 - 2.0) / 4.0 };
        let of = |max: f64, min: f64| if i <= 2 { max * share } else { min + share * (max - min) };
        assert!(
            (lr - of(1e-2, 1e-3)).abs() < 1e-12 && (decoupled - of(4e-2, 1e-2)).abs() < 1e-12,
            "{i}: {lr} {decoupled}"
        );
    }
    let (_, others) =
        run(dir.path(), &data, "one-rate", "--lr-decay-style linear --lr-warmup-iters 2 --min-lr 1e-3");
    assert!(lines[0] == others[0] && lines[5] != others[5]);
    let save = dir.path().join("saved");
    run(dir.path(), &data, "first", &format!("{rates} --save {} --exit-interval 3", save.display()));
    let (_, rest) = run(dir.path(), &data, "then", &format!("{rates} --load {}", save.display()));
    assert_eq!(lines[3..], rest);
    // Another rate is another schedule.
    let mut command = ms_train();
    command.args(model()).args(RUN.split_whitespace()).args(rates.split_whitespace());
    command.args(["--decoupled-lr", "5e-2", "--load"]).arg(&save).arg("--data-path").arg(&data);
    let message = refused(&mut command, 1);
    assert!(message.contains("schedule, decoupled"), "{message}");
}

#[test]
fn a_checkpoint_says_nothing_of_the_form_it_came_from() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 4, counting);
    let (_, lines) = run(dir.path(), &data, "plain", "");
    let forms = ["", "--reuse-fp32-param --npu-deterministic", "--swap-optimizer"];
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
    // With the host or not.
    for (i, (from, then)) in
        [("", " --swap-optimizer"), (" --swap-optimizer", ""), (" --swap-optimizer", " --swap-optimizer")]
            .into_iter()
            .enumerate()
    {
        let save = dir.path().join(format!("saved-rounded{i}"));
        let first = format!("--o2-optimizer{from} --save {} --exit-interval 2", save.display());
        run(dir.path(), &data, &format!("first-rounded{i}"), &first);
        let more = format!("--o2-optimizer{then} --load {}", save.display());
        let (_, rest) = run(dir.path(), &data, &format!("then-rounded{i}"), &more);
        assert_eq!(lines[2..], rest, "saved with `{from}`, resumed with `{then}`");
    }
}

#[test]
fn forms_that_do_not_go_together_are_refused_by_the_flags_name() {
    for (flags, flag) in [
        ("--reuse-fp32-param", "--reuse-fp32-param"),
        ("--o2-optimizer", "--o2-optimizer"),
        ("--bf16 --reuse-fp32-param --swap-optimizer", "--swap-optimizer"),
        ("--bf16 --o2-optimizer --optimizer sgd", "--o2-optimizer"),
        ("--swap-optimizer --swap-optimizer-times 0", "--swap-optimizer-times"),
        ("--o2-gradient --no-gradient-accumulation-fusion", "--o2-gradient"),
        ("--bf16 --o2-gradient", "--o2-gradient"),
        ("--upstream head --grad-reduce-in-bf16", "--grad-reduce-in-bf16"),
    ] {
        let mut command = ms_train();
        command.args(model()).args(["--dry-run", "--train-iters", "2", "--lr", "1e-3"]);
        let message = refused(command.args(flags.split_whitespace()), 2);
        assert!(message.starts_with(&format!("ms-train: {flag}: ")), "{flags}: {message}");
    }
}
