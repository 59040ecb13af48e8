//! Golden runs of pretraining and fine-tuning on at least ten sharded topologies each: losses and gradient norm of every
//! iteration.

use crate::tiny::{metrics, ms_train};
use serde_json::Value;

/// Topologies of dense models. Empty slots give the two layers four chunks.
const DENSE: [&str; 17] = [
    "--nproc-per-node 2 --tp 2",
    "--nproc-per-node 2 --tp 2 --sequence-parallel",
    "--nproc-per-node 2 --pp 2 --schedules-method zero-bubble",
    "--nproc-per-node 2 --pp 2 --noop-layers 1,2 --num-layers-per-virtual-pipeline-stage 1",
    "--nproc-per-node 2 --pp 2 --noop-layers 1,3 --schedules-method dualpipev",
    "--nproc-per-node 2 --pp 2 --noop-layers 1,2 --num-layers-per-virtual-pipeline-stage 1 --schedules-method zero-bubble",
    "--nproc-per-node 4 --use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 5000",
    "--nproc-per-node 2 --cp 2 --context-parallel-algo ulysses_cp_algo",
    "--nproc-per-node 4 --cp 4 --context-parallel-algo megatron_cp_algo --cp-window-size 2",
    "--nproc-per-node 4 --cp 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2",
    "--nproc-per-node 4 --tp 2 --pp 2 --sequence-parallel --recompute-granularity full --recompute-method block --recompute-num-layers 1",
    "--nproc-per-node 4 --cp 2 --context-parallel-algo kvallgather_cp_algo --tp 2",
    "--nproc-per-node 8 --tp 2 --cp 2 --context-parallel-algo megatron_cp_algo",
    "--nproc-per-node 4 --cp 4 --context-parallel-algo adaptive_cp_algo --adaptive-cp-only-reschedule",
    "--nproc-per-node 4 --cp 4 --context-parallel-algo hybrid_adaptive_cp_algo --ulysses-degree-in-cp 2",
    "--nproc-per-node 4 --cp 4 --context-parallel-algo megatron_cp_algo --attention-mask-type general",
    "--nproc-per-node 4 --cp 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2 --cp-attention-mask-type general",
];

const EXPERTS: [&str; 18] = [
    "--nproc-per-node 2 --tp 2 --sequence-parallel",
    "--nproc-per-node 2 --ep 2 --moe-token-dispatcher-type alltoall",
    "--nproc-per-node 4 --ep 4 --moe-token-dispatcher-type alltoall",
    "--nproc-per-node 4 --ep 2 --use-distributed-optimizer --moe-token-dispatcher-type alltoall",
    "--nproc-per-node 2 --pp 2 --noop-layers 1,2 --num-layers-per-virtual-pipeline-stage 1",
    "--nproc-per-node 2 --pp 2 --noop-layers 1,3 --schedules-method dualpipev",
    "--nproc-per-node 4 --pp 2 --ep 2 --moe-token-dispatcher-type alltoall",
    "--nproc-per-node 4 --tp 2 --ep 2 --sequence-parallel --moe-token-dispatcher-type alltoall",
    "--nproc-per-node 2 --cp 2 --ep 2 --context-parallel-algo megatron_cp_algo --moe-token-dispatcher-type alltoall",
    "--nproc-per-node 2 --tp 2 --moe-tp-extend-ep --sequence-parallel --moe-token-dispatcher-type alltoall",
    "--upstream head --nproc-per-node 2 --tp 2 --ep 2 --expert-tensor-parallel-size 1 --sequence-parallel \
     --moe-token-dispatcher-type alltoall",
    "--nproc-per-node 2 --ep 2 --moe-token-dispatcher-type allgather",
    "--nproc-per-node 4 --tp 2 --ep 2 --sequence-parallel --moe-token-dispatcher-type allgather --moe-extended-tp",
    "--nproc-per-node 4 --tp 2 --ep 2 --sequence-parallel --moe-token-dispatcher-type allgather --moe-allgather-overlap-comm",
    "--upstream head --nproc-per-node 4 --tp 2 --ep 2 --sequence-parallel --moe-token-dispatcher-type alltoall",
    "--upstream head --nproc-per-node 4 --tp 2 --ep 2 --sequence-parallel --moe-token-dispatcher-type alltoall_seq \
     --moe-alltoall-overlap-comm --moe-zero-memory level1 --moe-zero-memory-num-layers 1",
    "--upstream head --nproc-per-node 4 --tp 2 --expert-tensor-parallel-size 4 --moe-token-dispatcher-type allgather",
    "--upstream head --nproc-per-node 4 --ep 2 --expert-tensor-parallel-size 2 --moe-token-dispatcher-type alltoall",
];

/// Topologies of rows with several documents. Three micro-batches are too few for pipelines of several chunks; every row has as
/// many counted tokens, so that six of one row give the same means.
const DOCUMENTS: [&str; 11] = [
    "--nproc-per-node 2 --tp 2",
    "--nproc-per-node 6 --tp 2 --sequence-parallel",
    "--nproc-per-node 2 --pp 2",
    "--nproc-per-node 2 --pp 2 --schedules-method zero-bubble",
    "--nproc-per-node 2 --pp 2 --noop-layers 1,2 --num-layers-per-virtual-pipeline-stage 1 --micro-batch-size 1",
    "--nproc-per-node 2 --pp 2 --noop-layers 1,3 --schedules-method dualpipev --micro-batch-size 1",
    "--nproc-per-node 3 --use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 5000",
    "--nproc-per-node 2 --cp 2 --context-parallel-algo ulysses_cp_algo",
    "--nproc-per-node 4 --cp 4 --context-parallel-algo megatron_cp_algo --cp-window-size 2",
    "--nproc-per-node 4 --cp 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2",
    "--nproc-per-node 4 --tp 2 --cp 2 --context-parallel-algo kvallgather_cp_algo --sequence-parallel",
];

/// Topologies that do not change how many tokens a rank routes, on which an expert's capacity hangs. Three micro-batches of
/// the golden run's two rows leave one or three data-parallel ranks, among which four experts do not divide.
const CAPACITY: [&str; 10] = [
    "--nproc-per-node 2 --tp 2",
    "--nproc-per-node 2 --tp 2 --sequence-parallel",
    "--nproc-per-node 4 --tp 4",
    "--nproc-per-node 4 --tp 4 --sequence-parallel",
    "--nproc-per-node 2 --pp 2",
    "--nproc-per-node 2 --pp 2 --schedules-method zero-bubble",
    "--nproc-per-node 3 --use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 5000",
    "--nproc-per-node 6 --tp 2 --sequence-parallel",
    "--nproc-per-node 6 --pp 2",
    "--nproc-per-node 4 --tp 2 --pp 2 --sequence-parallel --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
];

/// A run in the repository, or a longer one outside it.
fn follows(case: &str, topologies: &[&str], more: &str) {
    follows_series(case, topologies, more, "steps_f64");
}

/// The same, by the iterations that its file has under `series`.
fn follows_series(case: &str, topologies: &[&str], more: &str, series: &str) {
    let Some(dir) = ms_testing::golden_or_shared(&format!("train/{case}")) else {
        assert!(case.contains("tiny"), "{case} is the repository's own");
        return;
    };
    let golden: Value = serde_json::from_slice(&std::fs::read(dir.join("golden.json")).unwrap()).unwrap();
    let config = &golden["config"];
    let number = |key: &str| config[key].to_string();
    let steps = golden[series].as_array().unwrap();
    let out = tempfile::tempdir().unwrap();
    // What the weights are in the end, as a model of Hugging Face's.
    let last = dir.join("final_fp32.safetensors");
    let last = (series == "steps_f64" && last.exists()).then(|| {
        let model = out.path().join("last");
        std::fs::create_dir(&model).unwrap();
        std::fs::copy(dir.join("config.json"), model.join("config.json")).unwrap();
        std::fs::copy(&last, model.join("model.safetensors")).unwrap();
        model
    });
    for (i, topology) in topologies.iter().enumerate() {
        let file = out.path().join(format!("{i}.jsonl"));
        // Goldens were made in float64. The repository's own runs are followed in it, of the longer ones some.
        let exact = !case.contains("tiny") || i % 6 == 0;
        let (bound, bound_of_norms, bound_of_weights) =
            if exact { (1e-11, 1e-11, 1e-6) } else { (2e-5, 1e-4, 1e-4) };
        let mut command = ms_train();
        command.arg("--load").arg(&dir).arg("--data-path").arg(dir.join("data.safetensors"));
        for (flag, key) in [
            ("--seq-length", "seq"),
            ("--train-iters", "iters"),
            ("--global-batch-size", "gbs"),
            ("--micro-batch-size", "mbs"),
            ("--lr", "lr"),
            ("--min-lr", "min_lr"),
            ("--weight-decay", "wd"),
            ("--adam-beta1", "b1"),
            ("--adam-beta2", "b2"),
            ("--adam-eps", "aeps"),
            ("--clip-grad", "clip"),
            ("--lr-warmup-fraction", "warm"),
        ] {
            command.args([flag, &number(key)]);
        }
        command.args([
            "--lr-decay-style",
            config["style"].as_str().unwrap(),
            "--make-vocab-size-divisible-by",
            "1",
        ]);
        command.args(exact.then_some("--fp64"));
        command.args(more.split_whitespace()).args(topology.split_whitespace());
        command.args(["--hidden-dropout", "0", "--attention-dropout", "0", "--eval-iters", "0"]);
        let saved = out.path().join(format!("saved {i}"));
        let last = last.as_ref().filter(|_| i % 3 == 0);
        if last.is_some() {
            command.arg("--save").arg(&saved).args(["--ckpt-format", "safetensors", "--no-save-optim"]);
        }
        command.arg("--metrics-file").arg(&file).assert().success();
        if let Some(last) = last {
            let mut all = 0;
            let (got, want) = (ms_ckpt::open(&saved).unwrap(), ms_ckpt::open(last).unwrap());
            let mut close = |c: ms_ckpt::Compared| {
                all += 1;
                match c.relation {
                    ms_ckpt::Relation::Equal => {}
                    ms_ckpt::Relation::Different { max_abs, .. } if max_abs < bound_of_weights => {}
                    other => panic!("{case} {topology}: {} in the end: {other:?}", c.name),
                }
            };
            got.compare(&want, &mut close).unwrap();
            assert!(all > 10, "{case} {topology}: {all} weights");
        }
        let rows = metrics(&file);
        assert_eq!(rows.len(), steps.len(), "{case} {topology}");
        for (row, step) in rows.iter().zip(steps) {
            let (loss, want) = (row["lm loss"].as_f64().unwrap(), step["lm_loss"].as_f64().unwrap());
            // Under the head's rules the logged loss is the mean over tokens.
            let want = if topology.contains("head") {
                step["lm_loss_token_mean"].as_f64().unwrap_or(want)
            } else {
                want
            };
            let at = &row["iteration"];
            assert!(
                (loss / want - 1.0).abs() < bound,
                "{case} {topology}: iteration {at}: loss {loss}, expected {want}"
            );
            if let Some(want) = step["load_balancing_loss"].as_f64().filter(|_| !topology.contains("head")) {
                let balance = row["load_balancing_loss"].as_f64().unwrap();
                assert!(
                    (balance / want - 1.0).abs() < bound,
                    "{case} {topology}: iteration {at}: load-balancing loss {balance}, expected {want}"
                );
            }
            let (norm, want) = (row["grad norm"].as_f64().unwrap(), step["grad_norm"].as_f64().unwrap());
            assert!(
                (norm / want - 1.0).abs() < bound_of_norms,
                "{case} {topology}: iteration {at}: norm {norm}, expected {want}"
            );
        }
    }
}

#[test]
fn pretraining() {
    for case in ["dense", "llama-tiny"] {
        follows(case, &DENSE, "");
    }
}

/// Gradients are means over the tokens of all micro-batches, the logged loss stays the mean over micro-batches.
#[test]
fn fine_tuning_by_tokens() {
    let some: Vec<&str> = DENSE.into_iter().step_by(3).chain(DENSE.into_iter().skip(1).step_by(4)).collect();
    let more = "--stage sft --finetune --calculate-per-token-loss";
    follows_series("llama-tiny-sft", &some, more, "steps_f64_calculate_per_token_loss");
}

#[test]
fn fine_tuning() {
    for case in ["masked", "llama-tiny-sft"] {
        follows(case, &DENSE, "--stage sft --finetune");
    }
}

#[test]
fn experts() {
    let more = "--moe-aux-loss-coeff 0.02 --moe-router-load-balancing-type aux_loss";
    for case in ["experts", "mixtral-tiny"] {
        follows(case, &EXPERTS, more);
    }
}

#[test]
fn documents_in_a_row() {
    for case in ["documents", "llama-tiny-eod"] {
        let Some(dir) = ms_testing::golden_or_shared(&format!("train/{case}")) else { continue };
        let tokenizer = format!("--tokenizer-name-or-path {}", dir.display());
        follows(case, &DOCUMENTS, &format!("--reset-position-ids --reset-attention-mask {tokenizer}"));
    }
}

#[test]
fn experts_with_a_capacity() {
    let more = "--moe-expert-capacity-factor 1.0 --moe-token-drop-policy probs --moe-token-dispatcher-type alltoall \
                --moe-aux-loss-coeff 0.02 --moe-router-load-balancing-type aux_loss";
    let all: Vec<&str> = [""].into_iter().chain(CAPACITY).collect();
    for case in ["capacity", "mixtral-tiny-capacity"] {
        follows(case, &all, more);
    }
}
