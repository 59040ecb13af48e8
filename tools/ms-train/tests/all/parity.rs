//! `ms-train parity`: the user's flags, the model shrunk, the topology compared with one rank.

use crate::tiny::{ms_train, refused};
use serde_json::{Value, json};

/// A model of a few billion parameters, by its flags alone.
const MODEL: &str = "--num-layers 28 --hidden-size 2048 --num-attention-heads 16 --group-query-attention --num-query-groups 8 \
    --ffn-hidden-size 6144 --normalization RMSNorm --swiglu --position-embedding-type rope --disable-bias-linear \
    --kv-channels 128 --qk-layernorm --vocab-size 151936 --padded-vocab-size 151936 --seq-length 4096 \
    --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --lr 1e-4";

const EXPERTS: &str = "--num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 768 --moe-aux-loss-coeff 0.001 \
    --moe-router-load-balancing-type aux_loss";

fn parity(flags: &str) -> Value {
    // The word may stand behind flags, too.
    let out = ms_train().args(["--json", "parity"]).args(flags.split_whitespace()).assert().success();
    serde_json::from_slice(&out.get_output().stdout).unwrap()
}

#[test]
fn a_large_model_is_compared_in_a_moment_on_any_topology() {
    for topology in [
        "--nproc-per-node 4 --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2",
        "--nproc-per-node 8 --tensor-model-parallel-size 2 --context-parallel-size 2 --context-parallel-algo megatron_cp_algo",
        "--upstream head --nproc-per-node 4 --cp 4 --context-parallel-algo megatron_cp_algo --context-parallel-kv-cache-policy half",
        "--nproc-per-node 4 --cp 4 --context-parallel-algo hybrid_adaptive_cp_algo --ulysses-degree-in-cp 2",
        "--nproc-per-node 4 --pipeline-model-parallel-size 4 --num-layer-list 8,8,6,6",
        "--nproc-per-node 4 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 7 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    ] {
        let found = parity(&format!("{MODEL} {topology}"));
        assert_eq!(found["equal"], Value::Bool(true), "{topology}: {found}");
        assert!(found["worst_gradient"]["relative"].as_f64().unwrap() < 1e-10, "{topology}: {found}");
    }
    // Three ranks share a width, too, also of what joins a prediction module's inputs.
    let three = "--nproc-per-node 3 --tp 3 --hidden-size 1536 --num-attention-heads 12 --num-query-groups 3 --padded-vocab-size 151938 \
        --mtp-num-layers 1";
    let found = parity(&format!("{MODEL} {three}"));
    assert_eq!(found["equal"], Value::Bool(true), "{found}");
    // Empty slots stay, at the ends of their chunks.
    for (noop, topology, slots) in [
        ("0,27", "--nproc-per-node 2 --pp 2", json!([0, 3])),
        ("5,22", "--nproc-per-node 2 --pp 2 --num-layers-per-virtual-pipeline-stage 7", json!([1, 7])),
        ("0,1,2,3,4,5,6", "--nproc-per-node 4 --pp 4", json!([0, 1])),
    ] {
        let found = parity(&format!("{MODEL} {topology} --noop-layers {noop}"));
        assert_eq!(found["equal"], Value::Bool(true), "{noop} {topology}: {found}");
        assert_eq!(found["model"]["empty_slots"], slots, "{noop} {topology}");
    }
    for how in ["allgather", "alltoall --moe-alltoall-overlap-comm --moe-zero-memory level1"] {
        let experts = "--nproc-per-node 4 --expert-model-parallel-size 4 --moe-token-dispatcher-type";
        let found = parity(&format!("{MODEL} {EXPERTS} {experts} {how}"));
        assert_eq!(found["equal"], Value::Bool(true), "{how}: {found}");
    }
}

/// As upstream's script of DeepSeek-V4 describes it, with four layers.
const POOLED: &str = "--num-layers 4 --hidden-size 4096 --ffn-hidden-size 4096 --num-attention-heads 64 --position-embedding-type deepseek4 \
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 129280 \
    --padded-vocab-size 129280 --seq-length 4096 --max-position-embeddings 163840 --micro-batch-size 1 --global-batch-size 8 --lr 1e-5 \
    --multi-latent-attention --qk-pos-emb-head-dim 64 --qk-head-dim 512 --q-lora-rank 1024 --o-lora-rank 1024 --kv-lora-rank 512 \
    --v-head-dim 128 --qk-layernorm --rope-scaling-factor 40 --rope-scaling-type yarn --rope-scaling-original-max-position-embeddings 4096 \
    --kv-compress --o-groups 8 --sliding-window-size 128 --compress-rope-theta 160000 --compress-ratios 0 0 4 128 \
    --enable-dsa-indexer --index-n-heads 64 --index-head-dim 128 --index-topk 512 --enable-mhc --hc-mult 4 --original-seq-len 65536 \
    --rope-factor 16 --num-experts 16 --moe-router-topk 6 --moe-ffn-hidden-size 2048 --moe-router-load-balancing-type none \
    --moe-router-score-function sqrtsoftplus --moe-router-enable-expert-bias --first-k-dense-replace -1 --n-hash-layers 3 \
    --moe-shared-expert-intermediate-size 2048 --upstream head";

#[test]
fn groups_of_outputs_are_as_many_as_ranks_can_share() {
    for topology in [
        "--nproc-per-node 2 --expert-model-parallel-size 2",
        "--nproc-per-node 2 --tensor-model-parallel-size 2 --sequence-parallel",
        "--nproc-per-node 4 --cp 2 --context-parallel-algo ulysses_cp_algo --pipeline-model-parallel-size 2",
    ] {
        let found = parity(&format!("{POOLED} {topology}"));
        assert_eq!(found["equal"], true, "{topology}: {found}");
    }
}

#[test]
fn rates_scales_and_the_seed_are_those_of_the_flags() {
    let losses = |flags: &str| {
        let found = parity(&format!("{MODEL} --nproc-per-node 2 --pipeline-model-parallel-size 2 {flags}"));
        assert_eq!(found["equal"], true, "{flags}: {found}");
        found["losses"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect::<Vec<_>>()
    };
    let plain = losses("");
    // The tables of words on their own way: the first step's loss is that of the weights as they were drawn.
    let decoupled = losses("--untie-embeddings-and-output-weights --decoupled-lr 1e-2 --decoupled-min-lr 0");
    let same = losses("--untie-embeddings-and-output-weights --decoupled-lr 1e-4 --decoupled-min-lr 0");
    assert_eq!(decoupled[0], same[0]);
    assert!((decoupled[1] - same[1]).abs() > 1e-6, "{decoupled:?} {same:?}");
    // A factor of the loss goes out again; other weights are other losses.
    let scaled = losses("--fp16 --loss-scale 1024");
    assert!(plain.iter().zip(&scaled).all(|(a, b)| (a - b).abs() < 1e-12), "{plain:?} {scaled:?}");
    assert!((losses("--seed 5")[0] - plain[0]).abs() > 1e-9);
    // Where experts are chosen, how clearly is said.
    let found = parity(&format!("{MODEL} {EXPERTS} --nproc-per-node 2 --expert-model-parallel-size 2"));
    assert!(found["least_routing_margin"].as_f64().unwrap() > 1e-6, "{found}");
    let mut command = ms_train();
    command.arg("parity").args(MODEL.split_whitespace()).args(EXPERTS.split_whitespace());
    let said = command.assert().success();
    let said = String::from_utf8_lossy(&said.get_output().stdout).into_owned();
    assert!(said.contains("the routers' choices are at least "), "{said}");
}

#[test]
fn the_first_gradient_that_differs_is_named() {
    let tp = "--nproc-per-node 2 --tensor-model-parallel-size 2";
    let spoilt = |fault: &str| {
        let mut command = ms_train();
        command.arg("parity").args(MODEL.split_whitespace()).args(tp.split_whitespace());
        let done = command.env("MS_PLANTED_FAULT", fault).assert().code(1);
        String::from_utf8_lossy(&done.get_output().stderr).into_owned()
    };
    // One product of one rank is twice what it should be: what precedes it in the model has another gradient, and after it
    // the MLP that it goes through.
    let said = spoilt("1 leave_tp 2 double");
    assert!(
        said.contains("differ: the gradient of ") && said.contains("of its norm, allowed are 1e-10"),
        "{said}"
    );
    // Only the gradient of one exchange: layers after it are correct.
    let last = said.lines().find(|line| line.contains("the gradient of ")).unwrap().to_owned();
    let said = spoilt("1 enter_tp 1 double");
    let first = said.lines().find(|line| line.contains("the gradient of ")).unwrap();
    println!("{last}\n{first}");
    assert!(first.contains("decoder.layers.1.") || first.contains("final_layernorm"), "{first}");
    let mut command = ms_train();
    command.arg("parity").args(MODEL.split_whitespace()).env("MS_PLANTED_FAULT", "1 leave_tp");
    assert!(refused(&mut command, 2).contains("MS_PLANTED_FAULT: expected RANK EXCHANGE TIME DEED"));
}

#[test]
fn a_case_that_fails_is_made_smaller_until_nothing_of_it_can_go() {
    let many = "--nproc-per-node 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \
        --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --bf16 --clip-grad 1.0 \
        --use-distributed-optimizer --overlap-grad-reduce";
    let failing = |line: &str, json: bool| {
        let mut command = ms_train();
        command.arg("parity").args(line.split_whitespace()).args(json.then_some("--json"));
        let done = command.env("MS_PLANTED_FAULT", "1 leave_tp 2 double").assert().code(1);
        done.get_output().clone()
    };
    let found: Value = serde_json::from_slice(&failing(&format!("{MODEL} {many}"), true).stdout).unwrap();
    assert_eq!(found["equal"], false);
    let command = found["smallest"]["command"].as_str().unwrap();
    println!("{found}");
    // Of ranks the two that exchange, and of flags those without which there is no model.
    let left = command.strip_prefix("ms-train parity ").unwrap();
    assert!(left.contains("--nproc-per-node 2") && left.contains("--tensor-model-parallel-size 2"), "{left}");
    for gone in [
        "--pipeline",
        "--recompute",
        "--bf16",
        "--clip-grad",
        "--overlap",
        "--swiglu",
        "--kv-channels",
        "--json",
    ] {
        assert!(!left.contains(gone), "{gone}: {left}");
    }
    assert!(found["smallest"]["runs"].as_u64().unwrap() < 100, "{found}");
    // The command does what was said of it, and is its own smallest case.
    let said = String::from_utf8_lossy(&failing(left, false).stderr).into_owned();
    assert!(said.contains(found["smallest"]["difference"].as_str().unwrap()), "{said}");
    assert!(said.trim_end().ends_with(&format!("  {command}")), "{said}");
}

#[test]
fn every_family_can_be_made_small_and_compared() {
    let axes = ["--tp 2", "--pp 2", "--cp 2 --context-parallel-algo ulysses_cp_algo", "--ep 2", ""];
    let mut seen = [0; 5];
    for (i, name) in ms_testing::golden_models().into_iter().enumerate() {
        let Some(dir) = ms_testing::golden_model(&name) else { continue };
        // The first from the family's own place on that its rules allow.
        let parity = |axis: &str| {
            let mut command = ms_train();
            command
                .args(["parity", "--json", "--seq-length", "32", "--micro-batch-size", "1", "--load"])
                .arg(&dir);
            command.args(["--nproc-per-node", "2"]).args(axis.split_whitespace());
            let out = command.assert().get_output().clone();
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            if out.status.code() == Some(2) {
                return Err(text);
            }
            assert!(out.status.success(), "{name}, {axis}: {text}");
            let found: Value = serde_json::from_slice(&out.stdout).unwrap();
            assert_eq!(found["equal"], Value::Bool(true), "{name}, {axis}: {found}");
            Ok(())
        };
        let compared = (i..i + axes.len()).map(|at| at % axes.len()).find(|&at| {
            let Err(said) = parity(axes[at]) else { return true };
            // Layers that do not divide evenly are distributed as the hint says.
            let hint = said.split('"').find_map(|words| words.strip_suffix(" splits them unevenly"));
            if let Some(list) = hint {
                return parity(&format!("{} {list}", axes[at])).is_ok();
            }
            println!("{name}, {}: {said}", axes[at]);
            assert!(said.contains("ms-train: --"), "{name}, {}: {said}", axes[at]);
            false
        });
        seen[compared.expect("copies need no rule")] += 1;
    }
    println!("{axes:?}: {seen:?}");
    assert!(seen.iter().all(|n| *n >= 5), "every axis has families: {axes:?}: {seen:?}");
}

#[test]
fn a_topology_that_a_run_would_refuse_is_refused() {
    let mut command = ms_train();
    command.arg("parity").args(MODEL.split_whitespace());
    command.args(["--nproc-per-node", "3", "--tensor-model-parallel-size", "3"]);
    let message = refused(&mut command, 2);
    assert!(message.contains("--tensor-model-parallel-size"), "{message}");
}
