//! A file of any bytes in a distributed checkpoint that Megatron-Core wrote: the first byte chooses the sample and the
//! file that is replaced.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::Scratch;
use std::sync::LazyLock;

macro_rules! sample {
    ($folder:literal, $($file:literal),+) => {
        [$(($file, include_bytes!(concat!("../../tests/golden/torch_dist/", $folder, "/iter_0000003/", $file)).as_slice())),+]
    };
}
/// One key for all layers, with optimizer state; one key for each layer, two ranks.
const SAMPLES: [(&str, [(&str, &[u8]); 3]); 2] = [
    ("dense", sample!("dense", ".metadata", "__0_0.distcp", "common.pt")),
    ("experts", sample!("experts", ".metadata", "__0_0.distcp", "common.pt")),
];
const SECOND_RANK: &[u8] = include_bytes!("../../tests/golden/torch_dist/experts/iter_0000003/__1_0.distcp");

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| {
    let scratch = Scratch::new();
    for (sample, files) in SAMPLES {
        for (file, bytes) in files {
            scratch.write(&format!("{sample}/{file}"), bytes);
        }
    }
    scratch.write("experts/__1_0.distcp", SECOND_RANK);
    scratch
});

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let (sample, files) = SAMPLES[usize::from(which) % 2];
    let (file, whole) = files[usize::from(which) / 2 % files.len()];
    SCRATCH.write(&format!("{sample}/{file}"), bytes);
    let folder = SCRATCH.path(sample);
    let _ = ms_ckpt::layout::torch_dist::keys(&folder);
    if let Ok(checkpoint) = ms_ckpt::open(&folder) {
        for (name, shape, dtype) in checkpoint.tensors().take(256) {
            if shape.numel() > 1 << 20 {
                continue;
            }
            let region = ms_core::Region::whole(shape);
            let mut values = vec![0; shape.numel() * dtype.size()];
            let _ = checkpoint.read_named(name, &region, None, dtype, &mut values);
        }
    }
    SCRATCH.write(&format!("{sample}/{file}"), whole);
});
