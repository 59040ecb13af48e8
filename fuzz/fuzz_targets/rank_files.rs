//! A pickle of any bytes where one of PyTorch's files has its own, in an archive that is sound otherwise: a Megatron rank's
//! weights with their arguments and optimizer, a distributed optimizer's buffers, `pytorch_model.bin`, `common.pt` of a
//! distributed checkpoint; the first byte chooses. (`checkpoint` and `torch_dist` change the archives.)
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{Scratch, golden, pickle_of, read_all, seed_of, torch_archive};
use std::sync::LazyLock;

const MODEL: &str = "iter_0000001/mp_rank_00/model_optim_rng.pt";
const OPTIMIZER: &str = "iter_0000001/mp_rank_00/distrib_optim.pt";
const GATHERED: &str = "torch_dist/gathered/iter_0000003";

/// Folder and file.
const PLACES: [(&str, &str); 5] = [
    ("model", MODEL),
    ("described", MODEL),
    ("optimizer", OPTIMIZER),
    ("bin", "pytorch_model.bin"),
    ("dist", "iter_0000003/common.pt"),
];

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| {
    let scratch = Scratch::new();
    for folder in ["model", "described", "optimizer"] {
        scratch.write(&format!("{folder}/latest_checkpointed_iteration.txt"), b"1");
    }
    scratch.write("described/config.json", &golden("convert/mamba2_stages/hf/config.json"));
    scratch.write(&format!("optimizer/{MODEL}"), &golden(&format!("distrib_optim/{MODEL}")));
    scratch.write("bin/config.json", &golden("models/llama3_gqa/config.json"));
    scratch.write("dist/latest_checkpointed_iteration.txt", b"3");
    for file in [".metadata", "__0_0.distcp"] {
        scratch.write(&format!("dist/iter_0000003/{file}"), &golden(&format!("{GATHERED}/{file}")));
    }
    scratch
});

fn seeds() {
    let models = [
        ("distributed", format!("distrib_optim/{MODEL}")),
        ("grok", format!("models-by-arguments/grok/{MODEL}")),
        ("hybrid", format!("models-by-arguments/hybrid/{MODEL}")),
        (
            "lora",
            "convert/src/llama2_mha_lora_tp2pp2/iter_0000001/mp_rank_00_000/model_optim_rng.pt".to_owned(),
        ),
        ("stage", "convert/mamba2_stages/mg/iter_0000001/mp_rank_00_001/model_optim_rng.pt".to_owned()),
        ("like", "convert/pt_samples/train_like_proto4.pt".to_owned()),
    ];
    for (name, path) in models {
        let pickle = pickle_of(&golden(&path));
        seed_of(0, name, &pickle);
        seed_of(1, name, &pickle);
    }
    seed_of(2, "buffers", &pickle_of(&golden(&format!("distrib_optim/{OPTIMIZER}"))));
    seed_of(3, "tensors", &pickle_of(&golden("convert/pt_samples/tensors.pt")));
    seed_of(4, "common", &pickle_of(&golden(&format!("{GATHERED}/common.pt"))));
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let (folder, file) = PLACES[usize::from(which) % PLACES.len()];
    SCRATCH.write(&format!("{folder}/{file}"), &torch_archive(bytes));
    if let Ok(checkpoint) = ms_ckpt::open(&SCRATCH.path(folder)) {
        read_all(&checkpoint);
    }
});
