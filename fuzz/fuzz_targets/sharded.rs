//! A file of any bytes in a checkpoint of this toolchain: the manifest, the checksums next to it, the tracker, a rank's
//! tensors; the first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_ckpt::sharded::{Piece, Writer};
use ms_core::{DType, Region};
use ms_fuzz::{Scratch, read_all, seed_of};
use ms_spec::ModelConfig;
use std::sync::LazyLock;

const FILES: [&str; 4] = [
    "iter_0000001/manifest.json",
    "iter_0000001/ms-checksums.json",
    "latest_checkpointed_iteration.txt",
    "iter_0000001/rank_00001.safetensors",
];

/// A model in float32 of which each of two ranks has half of every parameter: rows of some, elements of others; and moments.
static SCRATCH: LazyLock<(Scratch, [Vec<u8>; 4])> = LazyLock::new(|| {
    let scratch = Scratch::new();
    let config = ModelConfig {
        layers: 1,
        hidden: 8,
        ffn: 8,
        vocab: 8,
        padded_vocab: 8,
        heads: 2,
        ..ModelConfig::tiny()
    };
    let config = config.validate().expect("a sound model");
    let specs = ms_spec::params(&config);
    let writer = Writer::create(&scratch.path("run"), 1).expect("a folder");
    let zeros = vec![0; 1 << 16];
    for rank in 0..2 {
        let mut pieces = Vec::new();
        for (number, spec) in specs.iter().enumerate() {
            let (rows, numel) = (spec.shape[0], spec.shape.numel());
            let (region, flat, elements) = match number % 2 {
                0 => {
                    let half = rank * rows / 2..(rank + 1) * rows / 2;
                    (Region::along(&spec.shape, 0, std::iter::once(half)), None, numel / 2)
                }
                _ => (Region::whole(&spec.shape), Some(rank * numel / 2..(rank + 1) * numel / 2), numel / 2),
            };
            let bytes = (&zeros[..4 * elements]).into();
            let (shape, dtype) = (spec.shape, DType::F32);
            pieces.push(Piece { name: &spec.name, shape, dtype, region, flat, bytes });
        }
        writer.write_rank(rank, &pieces).expect("a small file");
    }
    let state = serde_json::json!({"args": {"iteration": 1, "hidden_size": 8}, "optimizer": {"step": 1}});
    writer.finish(&config, &state).expect("all was written");
    let files =
        FILES.map(|file| std::fs::read(scratch.path(&format!("run/{file}"))).expect("it was written"));
    (scratch, files)
});

fn seeds() {
    for (number, (name, bytes)) in FILES.iter().zip(&SCRATCH.1).enumerate() {
        seed_of(number as u8, &name.replace('/', "-"), bytes);
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let (scratch, files) = &*SCRATCH;
    let number = usize::from(which) % FILES.len();
    let file = format!("run/{}", FILES[number]);
    scratch.write(&file, bytes);
    if let Ok(checkpoint) = ms_ckpt::open(&scratch.path("run")) {
        read_all(&checkpoint);
    }
    scratch.write(&file, &files[number]);
});
