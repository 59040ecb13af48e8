//! Mamba3: the embedding of upstream's class has more rows than its output layer.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::path::Path;

use ms_ckpt::{Checkpoint, open};
use ms_core::{DType, Region};
use ms_spec::params;
use serde_json::{Map, Value, json};

fn sample() -> std::path::PathBuf {
    ms_testing::golden_model("mamba3_mimo").unwrap()
}

/// Every parameter's values.
fn values(source: &Checkpoint) -> Vec<(String, Vec<u8>)> {
    let read = |spec: &ms_spec::ParamSpec| {
        let mut out = vec![0; 4 * spec.shape.numel()];
        source.read(spec, &Region::whole(&spec.shape), DType::F32, &mut out).unwrap();
        (spec.name.clone(), out)
    };
    params(source.config()).iter().map(read).collect()
}

/// The sample with `rows` rows in its embedding.
fn widened(to: &Path, rows: usize) {
    let bytes = std::fs::read(sample().join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut data = bytes[8 + length..].to_vec();
    let offset = |v: &Value, i: usize| v["data_offsets"][i].as_u64().unwrap() as usize;
    let end = offset(&header["model.embeddings.weight"], 1);
    let more = vec![0x40; (rows - 128) * 32 * 2];
    data.splice(end..end, more.iter().copied());
    for (name, tensor) in header.iter_mut().filter(|(name, _)| *name != "__metadata__") {
        let moved =
            |at: usize, begin: bool| if at > end || (begin && at == end) { at + more.len() } else { at };
        let (first, last) = (offset(tensor, 0), offset(tensor, 1));
        tensor["data_offsets"] = json!([moved(first, true), moved(last, false)]);
        if name == "model.embeddings.weight" {
            tensor["data_offsets"][1] = json!(last + more.len());
            tensor["shape"] = json!([rows, 32]);
        }
    }
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize(text.len().next_multiple_of(8), b' ');
    let out = [&(text.len() as u64).to_le_bytes()[..], &text, &data].concat();
    std::fs::write(to.join("model.safetensors"), out).unwrap();
    std::fs::copy(sample().join("config.json"), to.join("config.json")).unwrap();
}

#[test]
fn rows_of_the_embedding_that_stand_for_no_token_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    widened(dir.path(), 200);
    let wide = open(dir.path()).unwrap();
    assert_eq!((wide.config().vocab, wide.config().padded_vocab), (128, 128));
    assert_eq!(values(&wide), values(&open(&sample()).unwrap()));
}
