//! A checkpoint file of any bytes, as safetensors, as `pytorch_model.bin` and as a Megatron rank file; the first byte
//! chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::Scratch;
use std::sync::LazyLock;

const CONFIG: &str = r#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":8,
"intermediate_size":16,"num_attention_heads":2,"num_hidden_layers":1,"vocab_size":16,"rms_norm_eps":1e-5,
"max_position_embeddings":32,"hidden_act":"silu","tie_word_embeddings":true}"#;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| {
    let scratch = Scratch::new();
    for folder in ["safetensors", "bin"] {
        scratch.write(&format!("{folder}/config.json"), CONFIG.as_bytes());
    }
    scratch.write("mcore/latest_checkpointed_iteration.txt", b"1");
    scratch
});
const FILES: [(&str, &str); 3] = [
    ("safetensors", "model.safetensors"),
    ("bin", "pytorch_model.bin"),
    ("mcore", "iter_0000001/mp_rank_00/model_optim_rng.pt"),
];

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let (folder, file) = FILES[usize::from(which) % FILES.len()];
    SCRATCH.write(&format!("{folder}/{file}"), bytes);
    let Ok(checkpoint) = ms_ckpt::open(&SCRATCH.path(folder)) else { return };
    for spec in ms_spec::params(checkpoint.config()).iter().take(64) {
        if spec.shape.numel() > 1 << 20 {
            continue;
        }
        let whole = ms_core::Region::whole(&spec.shape);
        let mut values = vec![0; 4 * spec.shape.numel()];
        let _ = checkpoint.read(spec, &whole, ms_core::DType::F32, &mut values);
    }
});
