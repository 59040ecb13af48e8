//! Upcycling a dense model to a mixture of experts (`--moe-use-upcycling`).

use crate::tiny::{counting, metrics, ms_train, refused, samples};
use serde_json::Value;
use std::path::Path;

const DENSE: &str = "--num-layers 2 --hidden-size 16 --num-attention-heads 4 --group-query-attention --num-query-groups 2 \
    --ffn-hidden-size 24 --normalization RMSNorm --swiglu --position-embedding-type rope \
    --vocab-size 64 --padded-vocab-size 64 --seq-length 16 --max-position-embeddings 16 --micro-batch-size 1 \
    --global-batch-size 8 --seed 7 --hidden-dropout 0 --attention-dropout 0 --lr 1e-2 --lr-decay-style constant \
    --init-method-std 0.2 --untie-embeddings-and-output-weights --fp64";

/// Weights of selected experts add up to 1, so that copies of one MLP are that MLP.
const EXPERTS: &str = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 24 --moe-router-load-balancing-type none \
    --moe-use-upcycling --upstream head";

fn train(dir: &Path, data: &Path, iters: usize, more: &[&str]) -> Vec<f64> {
    let file = dir.join("metrics.jsonl");
    let mut command = ms_train();
    command.args(DENSE.split_whitespace());
    command.args(more.iter().flat_map(|words| words.split_whitespace()));
    command.args(["--train-iters", &iters.to_string(), "--eval-iters", "0"]);
    command.arg("--data-path").arg(data).arg("--metrics-file").arg(&file).assert().success();
    let rows = metrics(&file);
    std::fs::remove_file(&file).unwrap();
    rows.iter().filter(|r: &&Value| r["iteration"].is_u64()).map(|r| r["lm loss"].as_f64().unwrap()).collect()
}

fn close(got: &[f64], want: &[f64]) -> bool {
    got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-10)
}

#[test]
fn experts_are_copies_of_the_dense_networks_on_every_topology() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 8, counting);
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (form, biases) in
        [("", ""), ("--ckpt-format torch_dist", "--disable-bias-linear"), ("--tp 2 --nproc-per-node 2", "")]
    {
        let plain = path(&format!("dense-{}{biases}", form.len()));
        let dense = train(dir.path(), &data, 4, &[biases]);
        let begun = train(dir.path(), &data, 2, &[biases, form, &format!("--save {plain}")]);
        assert!(close(&begun, &dense[..2]));
        let mut first: Option<Vec<f64>> = None;
        for (i, topology) in [
            "",
            "--nproc-per-node 2 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall",
            "--nproc-per-node 2 --tp 2 --sequence-parallel",
            "--nproc-per-node 4 --tp 2 --expert-model-parallel-size 2 --expert-tensor-parallel-size 1 --sequence-parallel \
             --moe-token-dispatcher-type alltoall",
            "--nproc-per-node 4 --pp 2",
        ]
        .into_iter()
        .enumerate()
        {
            let save = path(&format!("experts-{i}-{}{biases}", form.len()));
            let all = [biases, EXPERTS, topology, &format!("--load {plain} --save {save}")];
            let losses = train(dir.path(), &data, 3, &all);
            // Data goes on; the model is the dense one until routers and experts part.
            assert!((losses[0] - dense[2]).abs() < 1e-10, "{topology}: {} for {}", losses[0], dense[2]);
            match &first {
                None => first = Some(losses),
                Some(first) => assert!(close(&losses, first), "{form} {topology}: {losses:?}, expected {first:?}"),
            }
            check_weights(Path::new(&plain), Path::new(&save));
            let again = [biases, EXPERTS, topology, &format!("--load {plain} --save {save}")].join(" ");
            let mut command = ms_train();
            command.args(DENSE.split_whitespace()).args(again.split_whitespace()).args(["--train-iters", "3", "--data-path"]);
            let text = refused(command.arg(&data), 1);
            assert!(text.contains("has a checkpoint already"), "{text}");
        }
    }
}

/// Compares iteration 1, which was saved before training, with the dense model.
fn check_weights(dense: &Path, experts: &Path) {
    let read = |checkpoint: &ms_ckpt::Checkpoint, name: &str| -> Vec<u64> {
        let spec = ms_spec::params(checkpoint.config()).into_iter().find(|spec| spec.name == name).unwrap();
        let mut bytes = vec![0; spec.shape.numel() * 8];
        checkpoint
            .read(&spec, &ms_core::Region::whole(&spec.shape), ms_core::DType::F64, &mut bytes)
            .unwrap();
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    };
    let (dense, made) = (ms_ckpt::open(dense).unwrap(), ms_ckpt::open_iteration(experts, 1).unwrap());
    assert!(!made.has_optimizer());
    let mut copies = 0;
    for spec in ms_spec::params(made.config()) {
        let name = spec.name.replace("mlp.experts.", "mlp.");
        if name.contains("router") {
            assert!(read(&made, &spec.name).iter().any(|w| *w != 0));
            continue;
        }
        let (got, want) = (read(&made, &spec.name), read(&dense, &name));
        if name == spec.name {
            assert_eq!(got, want, "{name}");
            continue;
        }
        copies += 1;
        assert_eq!(got.len(), 4 * want.len(), "{name}");
        got.chunks_exact(want.len()).for_each(|expert| assert_eq!(expert, want, "{name}"));
    }
    assert!(copies >= 4, "{copies} weights of experts");
}

#[test]
fn what_makes_no_experts_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 6, 8, counting);
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let dense = path("dense");
    train(dir.path(), &data, 1, &[&format!("--save {dense}")]);
    let refuse = |more: &str, code: i32| {
        let mut command = ms_train();
        command.args(DENSE.split_whitespace()).args(more.split_whitespace()).args([
            "--train-iters",
            "3",
            "--data-path",
        ]);
        refused(command.arg(&data), code)
    };
    for (more, code, said) in [
        (format!("{EXPERTS} --load {dense}"), 2, "--moe-use-upcycling: needs --save"),
        (format!("{EXPERTS} --save {}", path("a")), 2, "--moe-use-upcycling: needs --load"),
        (
            format!("--moe-use-upcycling --upstream head --load {dense} --save {}", path("a")),
            2,
            "--moe-use-upcycling: expected a model with experts",
        ),
        (
            format!("{EXPERTS} --moe-shared-expert-intermediate-size 8 --load {dense} --save {}", path("a")),
            2,
            "a dense model has nothing for shared ones",
        ),
        (
            format!("{EXPERTS} --moe-ffn-hidden-size 12 --load {dense} --save {}", path("a")),
            1,
            "mlp.linear_fc1.weight",
        ),
        (format!("{EXPERTS} --load {} --save {}", path("nothing"), path("a")), 1, "a dense model"),
    ] {
        let text = refuse(&more, code);
        assert!(text.contains(said), "{more}: {text}");
    }
}
