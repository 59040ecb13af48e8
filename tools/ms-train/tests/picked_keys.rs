//! Attention that picks or pools its keys, by flags, on ranks that share sequences.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod tiny;

use serde_json::Value;
use std::path::Path;
use tiny::{ms_train, refused};

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
