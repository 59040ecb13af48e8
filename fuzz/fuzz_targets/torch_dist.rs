//! A file of any bytes in a distributed checkpoint that Megatron-Core or torch wrote: the first byte chooses the sample and
//! the file that is replaced.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{Scratch, golden, read_all, seed_of};
use std::sync::LazyLock;

/// One key for all layers, with optimizer state; one key for each layer, two ranks; and the forms of `tests/golden/README.md`.
const SAMPLES: [&str; 9] =
    ["dense", "experts", "buckets", "gathered", "flattened", "latent", "singletons", "stacked", "fsdp2"];
const FILES: [&str; 3] = [".metadata", "__0_0.distcp", "common.pt"];

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
            seed_of((place * SAMPLES.len() + number) as u8, name, bytes);
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
    scratch.write(&format!("{}/{file}", SAMPLES[number]), bytes);
    let _ = ms_ckpt::layout::torch_dist::keys(&folder);
    if let Ok(checkpoint) = ms_ckpt::open(&folder) {
        read_all(&checkpoint);
    }
    scratch.write(&format!("{}/{file}", SAMPLES[number]), whole);
});
