//! Attention that picks or pools its keys, from flags, on context-parallel ranks.

use crate::tiny;
use crate::tiny::{ms_train, refused};
use serde_json::Value;
use std::path::Path;

/// Sample models: GLM-5, whose layers borrow picks of others, and DeepSeek-V4.
const MODELS: [&str; 2] = ["tests/golden/models/glm_moe_dsa", "tests/golden/models/deepseek_v4"];

const RUN: &str =
    "--seq-length 16 --micro-batch-size 1 --global-batch-size 4 --train-iters 2 --lr 1e-4 --no-load-optim";

fn command(word: &str, model: &str, flags: &str) -> assert_cmd::Command {
    let mut command = ms_train();
    command.args(word.split_whitespace());
    command.arg("--load").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(model));
    command.args(RUN.split(' ')).args(flags.split_whitespace());
    command
}

#[test]
fn a_model_of_any_size_is_compared_with_one_rank() {
    for (model, how) in MODELS.into_iter().flat_map(|m| ["kvallgather", "ulysses"].map(|how| (m, how))) {
        let flags = format!("--nproc-per-node 4 --cp 2 --tp 2 --context-parallel-algo {how}_cp_algo");
        let done = command("parity", model, &flags).arg("--json").assert().success();
        let found: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        assert_eq!(found["equal"], Value::Bool(true), "{model}: {found}");
        assert!(found["worst_gradient"]["relative"].as_f64().unwrap() < 1e-10, "{model}: {found}");
    }
}

#[test]
fn other_algorithms_are_refused_with_the_reason() {
    for model in MODELS {
        for how in ["megatron_cp_algo", "adaptive_cp_algo"] {
            let flags = format!("--nproc-per-node 2 --cp 2 --context-parallel-algo {how} --dry-run");
            let said = refused(&mut command("", model, &flags), 2);
            assert!(
                said.contains("--context-parallel-algo: ") && said.contains("kvallgather_cp_algo"),
                "{model} {how}: {said}"
            );
        }
    }
}

#[test]
fn layers_that_lend_run_again() {
    for model in [MODELS[0], "tests/golden/models/hunyuan_large"] {
        for how in ["uniform", "block"] {
            let again =
                format!("--recompute-granularity full --recompute-method {how} --recompute-num-layers 2");
            let done = command("parity", model, &format!("{again} --nproc-per-node 2 --pp 2"))
                .arg("--json")
                .assert()
                .success();
            let found: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
            assert_eq!(found["equal"], Value::Bool(true), "{model} {how}: {found}");
            let kept = |flags: &str| {
                let done = command("--dry-run --json", model, flags).assert().success();
                let plan: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
                plan["ranks"][0]["kept_bytes"].as_u64().unwrap_or_else(|| panic!("{plan}"))
            };
            assert!(kept(&again) < kept(""), "{model} {how}: nothing is given up");
        }
    }
}

#[test]
fn flags_say_which_loss_trains_indexers() {
    let dir = tempfile::tempdir().unwrap();
    let data = tiny::samples(dir.path(), 2, 4, tiny::counting);
    // What is logged, and the metrics of the first step.
    let run = |model: &str, flags: &str| {
        let file = dir.path().join("metrics.jsonl");
        let _ = std::fs::remove_file(&file);
        let mut command = command("", model, flags);
        command.arg("--data-path").arg(&data).arg("--metrics-file").arg(&file).args(["--log-interval", "1"]);
        let done = command.assert().success();
        let output = done.get_output();
        let logged = [&output.stdout[..], &output.stderr[..]].concat();
        let metrics = std::fs::read_to_string(file).unwrap();
        let first: Value = serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
        (String::from_utf8_lossy(&logged).into_owned(), first)
    };
    for model in MODELS {
        for (flags, name) in [
            ("", Some("dsa_indexer_loss")),
            ("--indexer-loss-coeff 0.25", Some("dsa_indexer_loss")),
            ("--indexer-loss-coeff 0", None),
            ("--dsa-indexer-loss-coeff 0.5", Some("indexer loss")),
            ("--dsa-indexer-loss-coeff 0.5 --dsa-indexer-use-sparse-loss", Some("indexer loss")),
            ("--dsa-indexer-loss-coeff 0", None),
        ] {
            if model == MODELS[1] && flags.contains("--dsa") {
                let said = refused(&mut command("", model, &format!("{flags} --dry-run")), 2);
                assert!(said.contains("--dsa-indexer-loss-coeff: Megatron-LM has no attention"), "{said}");
                continue;
            }
            let (logged, first) = run(model, flags);
            for known in ["dsa_indexer_loss", "indexer loss"] {
                let here = name == Some(known);
                assert_eq!(first.get(known).is_some(), here, "{model} {flags}: {first}");
                assert_eq!(logged.contains(&format!("| {known}: ")), here, "{model} {flags}: {logged}");
            }
        }
        let of = |flags: &str| run(model, flags).1["dsa_indexer_loss"].as_f64().unwrap();
        let (whole, quarter) = (of(""), of("--indexer-loss-coeff 0.25"));
        assert!(whole > 0.0 && (quarter / whole - 0.25).abs() < 1e-6, "{model}: {whole}, {quarter}");
    }
    let said = refused(&mut command("", MODELS[0], "--dsa-indexer-use-sparse-loss --dry-run"), 2);
    assert!(said.contains("--dsa-indexer-use-sparse-loss: needs --dsa-indexer-loss-coeff"), "{said}");
}

#[test]
fn every_loss_of_indexers_is_compared_with_one_rank() {
    for flags in
        ["--dsa-indexer-loss-coeff 0.5", "--dsa-indexer-loss-coeff 0.5 --dsa-indexer-use-sparse-loss"]
    {
        let cut = "--nproc-per-node 4 --tp 2 --pp 2 --sequence-parallel --calculate-per-token-loss";
        let done = command("parity", MODELS[0], &format!("{cut} {flags}")).arg("--json").assert().success();
        let found: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        assert_eq!(found["equal"], Value::Bool(true), "{flags}: {found}");
    }
}
