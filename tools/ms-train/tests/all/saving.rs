//! Asynchronous checkpoints.

#![cfg(unix)]

use crate::tiny;
use crate::tiny::{counting, metrics, model, ms_train, samples};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

fn train(dir: &Path, more: &str) -> assert_cmd::Command {
    let data = dir.join("data.safetensors");
    if !data.exists() {
        samples(dir, 8, 4, counting);
    }
    let mut command = ms_train();
    command.current_dir(dir).args(model());
    command.args(
        "--micro-batch-size 1 --lr 1e-3 --lr-decay-style constant --eval-iters 0 --log-interval 1".split(' '),
    );
    command.args("--override-opt_param-scheduler --data-path".split(' ')).arg(&data);
    command.args(more.split_whitespace());
    command
}

/// Every file of a checkpoint folder but what says how the run was called.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() {
            out.extend(files(&entry).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
            continue;
        }
        // The manifest's sum among them.
        if name == ms_ckpt::CHECKSUMS {
            continue;
        }
        let mut bytes = std::fs::read(entry).unwrap();
        if name == "manifest.json" {
            let mut manifest: Value = serde_json::from_slice(&bytes).unwrap();
            manifest["state"]["args"] = Value::Null;
            bytes = serde_json::to_vec(&manifest).unwrap();
        }
        out.insert(name, bytes);
    }
    out
}

#[test]
fn a_run_without_a_checkpoint_starts_from_pretrained_weights() {
    let dir = tempfile::tempdir().unwrap();
    let losses = |more: &str| -> Vec<(u64, f64)> {
        let file = dir.path().join("metrics");
        std::fs::remove_file(&file).ok();
        train(dir.path(), &format!("{more} --metrics-file metrics")).assert().success();
        metrics(&file)
            .iter()
            .map(|m| (m["iteration"].as_u64().unwrap(), m["lm loss"].as_f64().unwrap()))
            .collect()
    };
    losses("--train-iters 3 --save before --save-interval 3");
    let tuned = losses("--train-iters 2 --load before --finetune");
    assert_eq!(
        losses("--train-iters 2 --pretrained-checkpoint before --load run --save run --save-interval 2"),
        tuned
    );
    // Once there is a checkpoint, the run goes on from it.
    let on = losses("--train-iters 3 --pretrained-checkpoint before --load run");
    assert_eq!(on.iter().map(|m| m.0).collect::<Vec<_>>(), [3]);
    let said = tiny::refused(
        &mut train(dir.path(), "--train-iters 2 --pretrained-checkpoint nowhere --load none"),
        1,
    );
    assert!(said.contains("nowhere"), "{said}");
    // Another size than the checkpoint's is named by its flag, before anything begins and in a plan.
    for more in ["", "--dry-run"] {
        for (size, weight) in
            [("--ffn-hidden-size 24", "linear_fc1.weight"), ("--num-layers 2", "decoder.layers.1")]
        {
            let line = format!("--train-iters 4 --load before {size} {more}");
            let said = tiny::refused(&mut train(dir.path(), &line), 2);
            let flag = size.split(' ').next().unwrap();
            assert!(said.contains(flag) && said.contains(weight) && said.contains("--load"), "{said}");
        }
    }
}

#[test]
fn checkpoints_written_beside_training_have_the_bytes_of_others() {
    for flags in [
        "--nproc-per-node 4 --tp 2 --bf16",
        "--nproc-per-node 2 --overlap-grad-reduce --overlap-param-gather --use-distributed-optimizer --ddp-bucket-size 500",
        "--nproc-per-node 2 --pp 2 --num-layers 2 --bf16 --reuse-fp32-param",
        "--swap-optimizer",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let run = |more: &str| {
            let line = format!("{flags} --train-iters 7 --save-interval 2 {more}");
            let done = train(dir.path(), &line).assert().success();
            String::from_utf8(done.get_output().stdout.clone()).unwrap()
        };
        let at_once = run("--save at-once");
        let beside = run("--save beside --async-save");
        let (want, got) = (files(&dir.path().join("at-once")), files(&dir.path().join("beside")));
        assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{flags}");
        assert!(want.keys().any(|name| name == "iter_0000007/manifest.json"), "{want:?}");
        for (name, bytes) in &got {
            assert!(bytes == &want[name], "{flags}: {name}");
        }
        // An iteration is logged before the checkpoint of the one before it is there; at once it is the other way round.
        let place = |text: &str, what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
        for (out, later) in [(&beside, true), (&at_once, false)] {
            let (next, saved) = (place(out, "iteration        3/"), place(out, "saved iteration 2 to"));
            assert_eq!(saved > next, later, "{flags}: {out}");
            assert_eq!(out.matches("saved iteration").count(), 4, "{flags}: {out}");
        }
    }
}

#[test]
fn a_run_that_is_killed_while_it_writes_leaves_the_checkpoint_before() {
    // Ranks agree three times on a checkpoint: its folder is there, all parts are, the whole is.
    for (time, latest) in [(4, "2"), (5, "2"), (6, "4")] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = train(
            dir.path(),
            "--nproc-per-node 4 --tp 2 --train-iters 8 --save out --save-interval 2 --async-save --keep-last 1",
        );
        let killed = command.env("MS_PLANTED_FAULT", format!("0 saved {time} abort")).assert().failure();
        assert_eq!(killed.get_output().status.code(), None, "a signal ended it");
        let tracker = dir.path().join("out/latest_checkpointed_iteration.txt");
        assert_eq!(std::fs::read_to_string(tracker).unwrap().trim(), latest);
        // It is whole, and the run goes on over what is left of the other.
        let more = "--nproc-per-node 2 --train-iters 8 --load out --save out --save-interval 2 --async-save";
        let done = train(dir.path(), more).assert().success();
        let said = String::from_utf8(done.get_output().stdout.clone()).unwrap();
        assert!(said.contains(&format!("loaded out at iteration {latest}")), "{said}");
        assert!(said.contains("saved iteration 8"), "{said}");
    }
}

#[test]
fn only_the_last_checkpoints_stay_and_the_last_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--nproc-per-node 2 --train-iters 8 --save out --save-interval 1 --async-save --keep-last 2";
    train(dir.path(), line).assert().success();
    assert_eq!(iterations_in(&dir.path().join("out")), ["iter_0000007", "iter_0000008"]);
}

fn iterations_in(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.contains("iter_")).collect();
    names.sort();
    names
}

#[test]
fn a_run_that_is_broken_off_goes_on_from_the_newest_checkpoint_of_those_in_passing() {
    for beside in ["", "--async-save"] {
        let dir = tempfile::tempdir().unwrap();
        let said = |line: &str| {
            let done = train(dir.path(), line).assert().success();
            String::from_utf8(done.get_output().stdout.clone()).unwrap()
        };
        said("--nproc-per-node 2 --train-iters 8 --save whole --save-interval 4");
        let passing = format!(
            "--save-interval 4 --non-persistent-save-interval 1 --non-persistent-ckpt-type global {beside}"
        );
        let line = format!("--nproc-per-node 2 --train-iters 8 --load out --save out {passing}");
        // Ranks agree three times on each checkpoint: it ends when the sixth begins.
        let killed = train(dir.path(), &line).env("MS_PLANTED_FAULT", "0 saved 16 abort").assert().failure();
        assert_eq!(killed.get_output().status.code(), None, "a signal ended it");
        let out = dir.path().join("out");
        assert_eq!(iterations_in(&out), ["iter_0000004"]);
        let text = said(&line);
        assert!(text.contains("loaded out/non_persistent at iteration 5"), "{text}");
        assert!(text.contains("saved iteration 7 to out/non_persistent"), "{text}");
        assert_eq!(iterations_in(&out.join("non_persistent")), ["iter_0000007"]);
        let last = |folder: &str| files(&dir.path().join(folder).join("iter_0000008"));
        assert!(last("out") == last("whole"), "the run that was broken off ends with other bytes");
        // The kept one is newer now, and a requested iteration is taken from there.
        let text = said(&line);
        assert!(text.contains("loaded out at iteration 8"), "{text}");
        let text = said(&format!("{} --ckpt-step 4", line.replace("--save out", "--save again")));
        assert!(text.contains("loaded out at iteration 4"), "{text}");
        assert_eq!(iterations_in(&dir.path().join("again/non_persistent")), ["iter_0000007"]);
    }
    let dir = tempfile::tempdir().unwrap();
    for (flags, says) in [
        ("--save a --non-persistent-save-interval 1", "--non-persistent-ckpt-type global"),
        ("--non-persistent-save-interval 1 --non-persistent-ckpt-type global", "needs --save"),
        ("--save a --non-persistent-save-interval 1 --non-persistent-ckpt-type local", "expected global"),
        ("--save a --non-persistent-global-ckpt-dir b", "--non-persistent-ckpt-type global"),
        (
            "--save a --non-persistent-save-interval 1 --non-persistent-ckpt-type global --non-persistent-global-ckpt-dir a",
            "another folder",
        ),
        (
            "--save a --non-persistent-save-interval 1 --non-persistent-ckpt-type global --non-persistent-global-ckpt-dir ././a/",
            "another folder",
        ),
    ] {
        let said = tiny::refused(&mut train(dir.path(), &format!("--train-iters 2 {flags}")), 2);
        assert!(said.contains("--non-persistent") && said.contains(says), "{said}");
    }
}

#[test]
fn what_is_held_for_a_checkpoint_is_planned() {
    let dir = tempfile::tempdir().unwrap();
    for flags in ["", "--bf16", "--bf16 --reuse-fp32-param", "--nproc-per-node 2 --tp 2", "--no-save-optim"] {
        let line = format!(
            "{flags} --hidden-size 64 --ffn-hidden-size 128 --train-iters 3 --save out --save-interval 1 --async-save --json"
        );
        let json = |more: &str| -> Value {
            let done = train(dir.path(), &format!("{line} {more}")).assert().success();
            serde_json::from_slice(&done.get_output().stdout).unwrap()
        };
        let (plan, run) = (json("--dry-run"), json(""));
        let planned = plan["ranks"].as_array().unwrap().last().unwrap()["snapshot_bytes"].as_f64().unwrap();
        let held = run["snapshot_bytes_per_rank"].as_f64().unwrap();
        assert!(
            held > 0.0 && (planned - held).abs() / held < 0.02,
            "{flags}: planned {planned}, held {held}"
        );
        assert!(plan["memory"]["snapshot"].as_f64().unwrap() >= planned, "{flags}");
    }
}

#[test]
fn a_run_goes_on_however_the_optimizers_state_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let run = |form: &str, more: &str| -> Vec<f64> {
        let file = dir.path().join("m.jsonl");
        let _ = std::fs::remove_file(&file);
        let line = format!("--nproc-per-node 4 --bf16 --metrics-file m.jsonl {form} --train-iters {more}");
        train(dir.path(), &line).assert().success();
        let of = |row: &Value| ["lm loss", "grad norm"].map(|key| row[key].as_f64().unwrap());
        metrics(&file).iter().flat_map(of).collect()
    };
    let kept = "";
    let shared = "--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 500";
    let instances = "--use-distributed-optimizer --num-distributed-optimizer-instances 2";
    let whole = run(kept, "8");
    assert_eq!((run(shared, "8"), whole.len()), (whole.clone(), 8 * 2));
    for first in [kept, shared, instances] {
        run(first, "4 --save half");
        for then in [kept, shared, instances] {
            let rest = run(then, "8 --load half");
            assert_eq!(rest.len(), 4 * 2, "{first} and {then}");
            let pairs = rest.iter().zip(&whole[4 * 2..]);
            if first == instances || then == instances {
                // Sums inside an instance come first.
                let far = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs();
                assert!(pairs.map(far).all(|far| far < 1e-3), "{first} and {then}: {rest:?} {whole:?}");
            } else {
                assert!(pairs.clone().all(|(a, b)| a.to_bits() == b.to_bits()), "{first} and {then}");
            }
        }
        std::fs::remove_dir_all(dir.path().join("half")).unwrap();
    }
}

#[test]
fn jobs_note_their_progress_beside_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let run = |more: &str| {
        let line = format!("--log-progress --save out --save-interval 2 {more}");
        train(dir.path(), &line).assert().success();
        let text = std::fs::read_to_string(dir.path().join("out/progress.txt")).unwrap();
        text.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let first = run("--train-iters 4 --nproc-per-node 2");
    let said = |lines: &[Vec<String>]| lines.iter().map(|line| line[3].clone()).collect::<Vec<_>>();
    assert_eq!(said(&first), ["Starting job", "Saved checkpoint", "Saved checkpoint"]);
    for line in &first {
        assert!(line[1].starts_with("Job ID: ") && line[2] == "# GPUs: 2", "{line:?}");
        let digits: String = line[0].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(digits, "0000-00-00 00:00:00");
    }
    let iterations = |lines: &[Vec<String>]| -> Vec<String> {
        lines.iter().filter_map(|line| line.get(4).cloned()).collect()
    };
    assert_eq!(iterations(&first), ["Iteration: 2", "Iteration: 4"]);
    // Operations of one iteration, twice and four times.
    let operations = |line: &[String]| -> f64 {
        line[7].strip_prefix("Floating-point operations: ").unwrap().parse().unwrap()
    };
    assert!((operations(&first[2]) / operations(&first[1]) - 2.0).abs() < 0.01, "{first:?}");
    assert_eq!(first[1][8], "Tokens (in billions): 0.00");
    let second = run("--train-iters 6 --load out --nproc-per-node 1 --async-save");
    assert_eq!(second[..3], first);
    assert_eq!(
        said(&second[3..]),
        ["Starting job", "Saving async checkpoint", "Saved async checkpoint"],
        "{second:?}"
    );
    assert_eq!(iterations(&second[3..]), ["Iteration: 6", "Iteration: 6"]);
    assert!((operations(&second[4]) / operations(&first[1]) - 3.0).abs() < 0.01, "{second:?}");
}

#[test]
fn the_log_and_the_progress_file_tell_one_time() {
    let dir = tempfile::tempdir().unwrap();
    // Half past eleven hours before Greenwich: no machine's own zone.
    let line = "--log-progress --save out --save-interval 1 --train-iters 1";
    let done = train(dir.path(), line).env("TZ", "XXX-11:30").assert().success();
    let output = done.get_output();
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    let logged = said.lines().find(|line| line.contains("iteration        1/")).expect("a log line");
    let logged = &logged[logged.find('[').unwrap() + 1..logged.find(']').unwrap()];
    let progress = std::fs::read_to_string(dir.path().join("out/progress.txt")).unwrap();
    let times: Vec<&str> = progress.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert!(times[0] <= logged && logged <= times[1], "{logged}: {progress}");
}
