//! Models without attention: trained from Hugging Face files, and resumed.

use assert_cmd::Command;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::path::{Path, PathBuf};

const SEQ: usize = 32;

/// `iterations` global batches of 4 rows, each counting upwards from its own start.
fn samples(dir: &Path, iterations: usize) -> PathBuf {
    let row = |r: usize| (0..=SEQ).map(move |t| ((r * 13 + t * (1 + r % 3)) % 64) as i32);
    let bytes: Vec<u8> = (0..iterations * 4).flat_map(row).flat_map(i32::to_le_bytes).collect();
    let view = TensorView::new(Dtype::I32, vec![iterations, 4, SEQ + 1], &bytes).unwrap();
    let path = dir.join("data.safetensors");
    std::fs::write(&path, safetensors::serialize([("tokens", view)], None).unwrap()).unwrap();
    path
}

/// Trains from `load`, and returns the metrics of the iterations that `file` tells of.
fn train(data: &Path, load: &Path, save: &Path, file: &Path, extra: &[&str]) -> Vec<Value> {
    let flags = "--seq-length 32 --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 --min-lr 1e-4 --train-iters 6 \
                 --lr-decay-style cosine --clip-grad 1.0 --seed 7 --log-interval 1";
    let mut command = Command::cargo_bin("ms-train").unwrap();
    command.env_remove("MS_ISA").env("MS_NO_PROGRESS", "1").args(flags.split_whitespace()).args(extra);
    command.arg("--data-path").arg(data).arg("--load").arg(load).arg("--save").arg(save);
    command.arg("--metrics-file").arg(file).assert().success();
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    lines.filter(|m| m.get("grad norm").is_some()).collect()
}

#[test]
fn mamba3_trains_on_two_ranks_and_goes_on_bit_for_bit() {
    for name in ["mamba3", "mamba3_mimo"] {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (model, data) = (ms_testing::golden_model(name).unwrap(), samples(dir.path(), 6));
        let two = ["--nproc-per-node", "2"];
        let half = ["--nproc-per-node", "2", "--exit-interval", "3"];
        let whole = train(&data, &model, &path("whole"), &path("whole.jsonl"), &two);
        let first = train(&data, &model, &path("parts"), &path("first.jsonl"), &half);
        let second = train(&data, &path("parts"), &path("parts"), &path("second.jsonl"), &two);
        assert_eq!((first.len(), second.len()), (3, 3));
        let bits = |m: &Value| ["lm loss", "grad norm"].map(|key| m[key].as_f64().unwrap().to_bits());
        let want: Vec<_> = whole.iter().map(bits).collect();
        assert_eq!(first.iter().chain(&second).map(bits).collect::<Vec<_>>(), want, "{name}");
        let loss = |i: usize| whole[i]["lm loss"].as_f64().unwrap();
        assert!(loss(5) < loss(0) - 0.1, "{name}: {} to {}", loss(0), loss(5));
    }
}
