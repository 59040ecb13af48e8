//! A tiny model and data for it, and `ms-train` as a user runs it.

#![allow(dead_code)] // each test file uses its part

use assert_cmd::Command;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Tokens of a row.
pub(crate) const SEQ: usize = 16;

/// The program, without what the surroundings of the test would change.
pub(crate) fn ms_train() -> Command {
    let mut command = Command::cargo_bin("ms-train").unwrap();
    command.env_remove("MS_ISA").env("MS_NO_PROGRESS", "1");
    command
}

/// Flags of a one-layer model with 64 tokens, in batches of four.
pub(crate) fn model() -> impl Iterator<Item = &'static str> {
    "--num-layers 1 --hidden-size 16 --num-attention-heads 2 --ffn-hidden-size 16 --normalization RMSNorm --swiglu \
     --position-embedding-type rope --disable-bias-linear --vocab-size 64 --padded-vocab-size 64 --seq-length 16 \
     --max-position-embeddings 16 --micro-batch-size 4 --global-batch-size 4 --seed 7 --hidden-dropout 0 \
     --attention-dropout 0"
        .split_whitespace()
}

/// A file of ready samples for `iterations` batches of `batch` rows, whose tokens `token(row, place)` gives.
pub(crate) fn samples(
    dir: &Path,
    iterations: usize,
    batch: usize,
    token: impl Fn(usize, usize) -> i32,
) -> PathBuf {
    samples_of(dir, (iterations, batch, SEQ), token)
}

/// [`samples`], of any number of tokens a row.
pub(crate) fn samples_of(
    dir: &Path,
    (iterations, batch, length): (usize, usize, usize),
    token: impl Fn(usize, usize) -> i32,
) -> PathBuf {
    let rows = 0..iterations * batch;
    let bytes: Vec<u8> = rows
        .flat_map(|r| (0..=length).map(move |t| (r, t)))
        .flat_map(|(r, t)| token(r, t).to_le_bytes())
        .collect();
    let view = TensorView::new(Dtype::I32, vec![iterations, batch, length + 1], &bytes).unwrap();
    let path = dir.join("data.safetensors");
    std::fs::write(&path, safetensors::serialize([("tokens", view)], None).unwrap()).unwrap();
    path
}

/// Rows that count upwards.
pub(crate) fn counting(row: usize, place: usize) -> i32 {
    ((row * 13 + place * (1 + row % 3)) % 64) as i32
}

/// The lines of a file of metrics.
pub(crate) fn metrics(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// Standard error of a run that must end with `code`.
pub(crate) fn refused(command: &mut Command, code: i32) -> String {
    let done = command.assert().code(code);
    let message = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(!message.contains("panicked") && !message.contains("internal error"), "{message}");
    message
}

/// Copies Megatron's folders of an iteration from `save` to `alone`, as if there were no others, and names them.
pub(crate) fn for_megatron(save: &Path, iteration: u64, alone: &Path) -> Vec<String> {
    let name = format!("iter_{iteration:07}");
    let mut found = Vec::new();
    for folder in std::fs::read_dir(save.join(&name)).unwrap().map(|entry| entry.unwrap().path()) {
        let of_rank = folder.file_name().unwrap().to_string_lossy().into_owned();
        if !of_rank.starts_with("mp_rank_") {
            continue;
        }
        let to = alone.join(&name).join(&of_rank);
        std::fs::create_dir_all(&to).unwrap();
        for file in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()) {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        found.push(of_rank);
    }
    std::fs::write(alone.join("latest_checkpointed_iteration.txt"), iteration.to_string()).unwrap();
    found.sort();
    found
}
