//! Resuming from Megatron's files alone: their progress, and training without an optimizer state.

use crate::tiny::{counting, metrics, model, ms_train, refused, samples};
use assert_cmd::Command;
use ms_ckpt::layout::mcore::{FileGrid, Spelling};
use ms_ckpt::{ArgsForm, Plan, Run, RunOptions};
use serde_json::Value;
use std::path::Path;

/// Copies what Megatron wrote of an iteration, as if there was nothing else.
fn alone(save: &Path, iteration: u64, to: &Path) {
    let name = format!("iter_{iteration:07}");
    copy(&save.join(&name), &to.join(&name));
    std::fs::write(to.join("latest_checkpointed_iteration.txt"), iteration.to_string()).unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        let own = ["manifest.json", "ms-checksums.json"].contains(&&*name) || name.ends_with(".safetensors");
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to.join(name)),
            false if own => {}
            false => drop(std::fs::copy(entry.path(), to.join(name)).unwrap()),
        }
    }
}

const RATES: &str = "--lr 1e-2 --min-lr 1e-3 --lr-decay-style linear --lr-warmup-iters 4 --lr-decay-iters 20";

#[test]
fn the_scale_of_a_float16_run_goes_on_from_megatrons_files_as_if_uninterrupted() {
    const HALF: &str = "--fp16 --initial-loss-scale 67108864 --loss-scale-window 3 --hysteresis 2";
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    samples(dir, 12, 4, counting);
    let run = |flags: &str| {
        let mut command = run(dir, &format!("{HALF} {flags}"));
        let done = command.args(["--train-iters", "12", "--metrics-file", "m.jsonl"]).assert().success();
        assert!(!String::from_utf8_lossy(&done.get_output().stderr).contains("no loss scale"), "{flags}");
        metrics(&dir.join("m.jsonl"))
    };
    let whole = run("");
    let skipped: Vec<bool> = whole.iter().map(|l| l["skipped"] == true).collect();
    let scales: Vec<f64> = whole.iter().map(|l| l["loss scale"].as_f64().unwrap()).collect();
    assert!(skipped[..2] == [true; 2] && skipped.contains(&false), "{skipped:?}");
    // Stopped while overflows are borne, between skipped iterations, and inside a window that grows.
    for cut in [1, 2, 9] {
        let mut seen = Vec::new();
        for (i, flags) in [
            "--ckpt-format torch",
            "--ckpt-format torch --use-distributed-optimizer",
            "--ckpt-format torch_dist --use-distributed-optimizer",
        ]
        .into_iter()
        .enumerate()
        {
            let (save, load) = (format!("save{cut}-{i}"), format!("load{cut}-{i}"));
            run(&format!("{flags} --save {save} --exit-interval {cut}"));
            alone(&dir.join(&save), cut as u64, &dir.join(&load));
            let files = ms_ckpt::open(&dir.join(&load)).unwrap();
            let scaler = &files.state()["optimizer"]["grad_scaler"];
            assert_eq!(scaler["scale"].as_f64().unwrap(), scales[cut - 1], "{flags}, {cut}: {scaler}");
            seen.push(scaler.clone());
            let rest = run(&format!("--load {load}"));
            assert_eq!(rest.len(), 12 - cut, "{flags}, {cut}");
            for (a, b) in whole[cut..].iter().zip(&rest) {
                for key in
                    ["lm loss", "grad norm", "loss scale", "skipped", "learning rate", "consumed samples"]
                {
                    assert_eq!(a[key], b[key], "{flags}, {cut}: {key} of {a} and {b}");
                }
            }
        }
        assert!(seen.iter().all(|scaler| *scaler == seen[0]), "{cut}: {seen:?}");
    }
    // Of a scale that stays an optimizer of Megatron's keeps an empty dictionary.
    run("--loss-scale 1024 --ckpt-format torch --save constant --exit-interval 1");
    alone(&dir.join("constant"), 1, &dir.join("files"));
    let files = ms_ckpt::open(&dir.join("files")).unwrap();
    assert_eq!(files.state()["optimizer"]["grad_scaler"], serde_json::json!({}));
}

/// A run up to iteration 5 in `dir`, where the samples are.
fn run(dir: &Path, flags: &str) -> Command {
    // A run that goes on adds its lines to those of the file.
    let _ = std::fs::remove_file(dir.join("m.jsonl"));
    let mut command = ms_train();
    command.current_dir(dir).args(model()).args(RATES.split(' ')).args(flags.split_whitespace());
    command.args("--train-iters 5 --log-interval 1 --eval-iters 0 --data-path data.safetensors".split(' '));
    command
}

/// Iteration, samples consumed and learning rate of each line of a run, and what it said.
fn lines(dir: &Path, flags: &str) -> (Vec<(u64, u64, f64)>, String) {
    let done = run(dir, flags).args(["--metrics-file", "m.jsonl"]).assert().success();
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    let line = |m: &Value| {
        let (rate, count) = (m["learning rate"].as_f64()?, |key: &str| m[key].as_u64());
        Some((count("iteration")?, count("consumed samples")?, rate))
    };
    (metrics(&dir.join("m.jsonl")).iter().filter_map(line).collect(), said)
}

#[test]
fn a_run_of_megatrons_goes_on_without_its_optimizer_only_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    samples(dir, 5, 4, counting);
    let (whole, _) = lines(dir, "");
    assert_eq!(whole.iter().map(|l| (l.0, l.1)).collect::<Vec<_>>(), [1, 2, 3, 4, 5].map(|i| (i, 4 * i)));
    for (i, (flags, lost)) in [
        ("--ckpt-format torch --no-save-optim", None),
        ("--ckpt-format torch --bf16 --no-save-optim", None),
        ("--ckpt-format torch --use-distributed-optimizer", Some("mp_rank_00/distrib_optim.pt")),
        ("--ckpt-format torch_dist --no-save-optim", None),
    ]
    .into_iter()
    .enumerate()
    {
        let (save, load) = (format!("save{i}"), format!("load{i}"));
        run(dir, &format!("{flags} --save {save} --exit-interval 2")).assert().success();
        alone(&dir.join(&save), 2, &dir.join(&load));
        if let Some(lost) = lost {
            std::fs::remove_file(dir.join(&load).join("iter_0000002").join(lost)).unwrap();
        }
        let message = refused(&mut run(dir, &format!("--load {load}")), 1);
        let said = format!(
            "{load}: state of the optimizer: expected exp_avg and exp_avg_sq of every trained parameter"
        );
        assert!(message.contains(&said) && message.contains("the checkpoint has no "), "{flags}: {message}");
        assert!(message.contains("--no-load-optim to continue at iteration 2"), "{flags}: {message}");
        // Upstream's schedule is loaded with the optimizer, or begins anew with it.
        let (rest, _) = lines(dir, &format!("--load {load} --no-load-optim"));
        let want = [(3, 12, whole[0].2), (4, 16, whole[1].2), (5, 20, whole[2].2)];
        assert_eq!(rest, want, "{flags}");
        let (anew, said) = lines(dir, &format!("--load {load} --finetune"));
        assert_eq!(anew, whole, "{flags}");
        assert!(!said.contains("weights without state"), "{flags}: {said}");
    }
    // Where the state is there, it may be left.
    run(dir, "--ckpt-format torch --save full --exit-interval 2").assert().success();
    alone(&dir.join("full"), 2, &dir.join("files"));
    for load in ["full", "files"] {
        assert_eq!(lines(dir, &format!("--load {load}")).0, whole[2..], "{load}");
        let (rest, _) = lines(dir, &format!("--load {load} --no-load-optim"));
        assert_eq!(rest, [(3, 12, whole[0].2), (4, 16, whole[1].2), (5, 20, whole[2].2)], "{load}");
    }
}

#[test]
fn converted_weights_begin_at_0_and_without_the_optimizer_at_the_iteration_of_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    samples(dir, 5, 4, counting);
    run(dir, "--save run --exit-interval 1 --no-save-optim").assert().success();
    // As a converter writes weights: iteration 1, and no samples.
    let source = ms_ckpt::open(&dir.join("run")).unwrap();
    let file_grid = FileGrid::new(&ms_core::GridSizes::default(), ms_spec::Stages::default(), false).unwrap();
    let (spelling, dtype) = (Spelling::default(), |name: &str| source.dtype(name));
    let plan =
        Plan::mcore(source.config(), &file_grid, spelling, ArgsForm::Namespace, &dtype, &Run::default());
    let options = RunOptions { threads: 1, sync: false, replace: false };
    plan.unwrap().run(&source, &dir.join("model"), &options, &|_| ()).unwrap();
    let numbers = |flags: &str| {
        let (lines, said) = lines(dir, flags);
        (lines.iter().map(|l| (l.0, l.1)).collect::<Vec<_>>(), said)
    };
    let warning = "model: weights without state of an optimizer and without samples behind them";
    let from_0: Vec<_> = (1..=5).map(|i| (i, 4 * i)).collect();
    let (plain, said) = numbers("--load model");
    assert!(plain == from_0 && said.contains(warning), "{plain:?} {said}");
    let (finetuned, said) = numbers("--load model --finetune");
    assert!(finetuned == from_0 && !said.contains(warning), "{finetuned:?} {said}");
    let (without, said) = numbers("--load model --no-load-optim --no-load-rng");
    assert_eq!(without, (2..=5).map(|i| (i, 4 * (i - 1))).collect::<Vec<_>>(), "as upstream");
    assert!(!said.contains(warning), "{said}");
    // A release is of no iteration.
    std::fs::rename(dir.join("model/iter_0000001"), dir.join("model/release")).unwrap();
    std::fs::write(dir.join("model/latest_checkpointed_iteration.txt"), "release").unwrap();
    for flags in ["--load model", "--load model --no-load-optim"] {
        let (lines, said) = numbers(flags);
        assert!(lines == from_0 && !said.contains(warning), "{flags}: {lines:?} {said}");
    }
}
