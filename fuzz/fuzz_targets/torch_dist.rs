//! A file in a distributed checkpoint that Megatron-Core or torch wrote: the first byte chooses the sample and the file.
//! `.metadata` and `common.pt` have any bytes; those of the chunks, most of which are elements, are changed in places.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{Scratch, golden, read_all, seed_of};
use std::sync::LazyLock;

/// One key for all layers, with optimizer state; one key for each layer, two ranks; and the forms of `tests/golden/README.md`.
const SAMPLES: [&str; 9] =
    ["dense", "experts", "buckets", "gathered", "flattened", "latent", "singletons", "stacked", "fsdp2"];
const FILES: [&str; 3] = [".metadata", "__0_0.distcp", "common.pt"];
/// How files of chunks end.
const CHUNKS: &str = ".distcp";

/// A file with other bytes at some places: three bytes say where, the fourth what.
fn changed(whole: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut out = whole.to_vec();
    for change in changes.chunks_exact(4) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize % whole.len();
        out[at] = change[3];
    }
    out
}

/// The files of a sample, with their names.
type Sample = Vec<(String, Vec<u8>)>;

static SCRATCH: LazyLock<(Scratch, Vec<Sample>)> = LazyLock::new(|| {
    let scratch = Scratch::new();
    let folder = |sample: &str| match sample {
        "fsdp2" => "torch_dist/fsdp2".to_owned(),
        sample => format!("torch_dist/{sample}/iter_0000003"),
    };
    let names = FILES.into_iter().chain(["__1_0.distcp", "config.json"]);
    let read = |sample: &str| -> Sample {
        let file = |name: &str| (name.to_owned(), golden(&format!("{}/{name}", folder(sample))));
        names.clone().map(file).filter(|(_, bytes)| !bytes.is_empty()).collect()
    };
    let samples = SAMPLES.map(read).into();
    for (sample, files) in SAMPLES.iter().zip(&samples) {
        let files: &Sample = files;
        files.iter().for_each(|(name, bytes)| drop(scratch.write(&format!("{sample}/{name}"), bytes)));
    }
    (scratch, samples)
});

fn seeds() {
    for (number, sample) in SCRATCH.1.iter().enumerate() {
        for (place, (name, bytes)) in sample.iter().enumerate().take(FILES.len()) {
            // Bytes that are there, at sixteen places.
            let kept: Vec<u8> = (0..16)
                .map(|part| part * bytes.len() / 16)
                .flat_map(|at| [at as u8, (at >> 8) as u8, (at >> 16) as u8, bytes[at]])
                .collect();
            let seed = if name.ends_with(CHUNKS) { &kept } else { bytes };
            seed_of((place * SAMPLES.len() + number) as u8, name, seed);
        }
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let (scratch, samples) = &*SCRATCH;
    let (number, place) = (usize::from(which) % SAMPLES.len(), usize::from(which) / SAMPLES.len());
    let files = &samples[number];
    let Some((file, whole)) = files.get(place % files.len().max(1)) else { return };
    let folder = scratch.path(SAMPLES[number]);
    let changed = if file.ends_with(CHUNKS) { &changed(whole, bytes) } else { bytes };
    scratch.write(&format!("{}/{file}", SAMPLES[number]), changed);
    let _ = ms_ckpt::layout::torch_dist::keys(&folder);
    if let Ok(checkpoint) = ms_ckpt::open(&folder) {
        read_all(&checkpoint);
    }
    scratch.write(&format!("{}/{file}", SAMPLES[number]), whole);
});
