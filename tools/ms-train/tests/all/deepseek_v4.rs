//! DeepSeek-V4 with the flags of upstream's script, made small.

use assert_cmd::Command;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::path::{Path, PathBuf};

const SEQ: usize = 32;

/// The script's flags except for sizes, cuts and paths.
fn model() -> Vec<&'static str> {
    "--upstream head --num-layers 4 --hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 4 --normalization RMSNorm \
     --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --max-position-embeddings 64 --padded-vocab-size 64 \
     --vocab-size 64 --seq-length 32 --micro-batch-size 2 --global-batch-size 4 --lr 5e-3 --min-lr 1e-4 \
     --lr-decay-style cosine --weight-decay 0.1 --clip-grad 1.0 --seed 7 --log-interval 1 --norm-epsilon 1e-6 --bf16 \
     --enable-mhc --hc-mult 3 --hc-sinkhorn-iters 6 --use-triton-mhc --use-fused-mhc --enable-dsa-indexer --index-n-heads 4 \
     --index-head-dim 8 --index-topk 2 --use-fused-lightning-indexer --use-sparse-flash-attn --multi-latent-attention \
     --qk-pos-emb-head-dim 4 --qk-head-dim 16 --q-lora-rank 20 --o-lora-rank 6 --kv-lora-rank 16 --v-head-dim 8 \
     --qk-layernorm --kv-compress --o-groups 2 --sliding-window-size 6 --original-seq-len 16 --rope-factor 4 \
     --compress-rope-theta 160000.0 --max-batch-size 4 --compress-ratios 0 4 8 4 0 --moe-grouped-gemm \
     --moe-token-dispatcher-type alltoall --moe-layer-freq 1 --first-k-dense-replace -1 --num-experts 8 \
     --moe-router-topk 3 --moe-ffn-hidden-size 12 --moe-router-load-balancing-type none --moe-router-group-topk 1 \
     --moe-router-num-groups 1 --moe-router-topk-scaling-factor 1.5 --seq-aux --moe-aux-loss-coeff 0.001 \
     --moe-router-score-function sqrtsoftplus --moe-router-enable-expert-bias --moe-shared-expert-intermediate-size 12 \
     --moe-router-dtype fp32 --n-hash-layers 2 --swiglu-limit 2.0 --mtp-num-layers 1 --mtp-loss-scaling-factor 0.3 \
     --beta-fast 32 --beta-slow 1 --rope-scaling-type yarn --rope-scaling-factor 40 --rope-scaling-mscale 1.0 \
     --rope-scaling-mscale-all-dim 1.0 --rope-scaling-original-max-position-embeddings 4096 \
     --position-embedding-type deepseek4 --use-flash-attn --use-mcore-models --transformer-impl local"
        .split_whitespace()
        .collect()
}

/// `iterations` global batches of 4 rows, each counting upwards from its own start.
fn samples(dir: &Path, iterations: usize) -> PathBuf {
    let row = |r: usize| (0..=SEQ).map(move |t| ((r * 13 + t * (1 + r % 3)) % 64) as i32);
    let bytes: Vec<u8> = (0..iterations * 4).flat_map(row).flat_map(i32::to_le_bytes).collect();
    let view = TensorView::new(Dtype::I32, vec![iterations, 4, SEQ + 1], &bytes).unwrap();
    let path = dir.join("data.safetensors");
    std::fs::write(&path, safetensors::serialize([("tokens", view)], None).unwrap()).unwrap();
    path
}

struct Run {
    dir: tempfile::TempDir,
    data: PathBuf,
}

impl Run {
    fn new(iterations: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = samples(dir.path(), iterations);
        Self { dir, data }
    }

    /// Trains under `name`, and returns the metrics of all iterations so far.
    fn train(&self, name: &str, iterations: &str, extra: &[&str]) -> Vec<Value> {
        let (save, file) = (self.dir.path().join(name), self.dir.path().join(format!("{name}.jsonl")));
        let mut command = Command::cargo_bin("ms-train").unwrap();
        command.env_remove("MS_ISA").env("MS_NO_PROGRESS", "1").args(model()).args(extra);
        command.args(["--train-iters", iterations]).arg("--data-path").arg(&self.data);
        command.arg("--save").arg(&save).arg("--load").arg(&save).arg("--metrics-file").arg(&file);
        command.assert().success();
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
        lines.filter(|m| m.get("grad norm").is_some()).collect()
    }
}

/// What a run reports, whose weights move by the loss of indexers (its coefficient is upstream's 1.0), too.
fn bits(metrics: &[Value]) -> Vec<[u64; 4]> {
    let names = ["lm loss", "mtp_1 loss", "dsa_indexer_loss", "grad norm"];
    let of = |m: &Value| names.map(|k| m[k].as_f64().unwrap().to_bits());
    metrics.iter().map(of).collect()
}

#[test]
fn it_trains_by_upstreams_flags_and_goes_on_bit_for_bit() {
    let run = Run::new(6);
    let whole = run.train("whole", "6", &["--nproc-per-node", "2"]);
    let first = run.train("parts", "6", &["--nproc-per-node", "2", "--exit-interval", "3"]);
    assert_eq!(first.len(), 3);
    let parts = run.train("parts", "6", &["--nproc-per-node", "2"]);
    assert_eq!(bits(&whole), bits(&parts));
    for name in ["lm loss", "mtp_1 loss"] {
        let at = |i: usize| whole[i][name].as_f64().unwrap();
        assert!(at(5) < at(0) - 0.1, "{name}: {} to {}", at(0), at(5));
    }

    // The checkpoint holds the table of experts as it began, and as integers in Megatron's files.
    let saved = ms_ckpt::open(&run.dir.path().join("whole")).unwrap();
    let specs = ms_spec::params(saved.config());
    let tables: Vec<_> = specs.iter().filter(|s| s.integral).collect();
    assert_eq!(tables.len(), 2);
    for spec in tables {
        let mut values = vec![0; 4 * spec.shape.numel()];
        saved.read(spec, &ms_core::Region::whole(&spec.shape), ms_core::DType::F32, &mut values).unwrap();
        let values = ms_testing::floats(&values);
        assert!(values.iter().enumerate().all(|(i, v)| *v == ((i / 3 + i % 3) % 8) as f32), "{}", spec.name);
    }
}

#[test]
fn recomputation_and_thread_count_do_not_change_a_bit() {
    let run = Run::new(2);
    let plain = bits(&run.train("plain", "2", &["--threads", "1"]));
    assert_eq!(plain, bits(&run.train("threads", "2", &["--threads", "3"])));
    let full =
        ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "2"];
    assert_eq!(plain, bits(&run.train("uniform", "2", &full)));
}
