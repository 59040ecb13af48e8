//! A checkpoint file of any bytes, as safetensors, as `pytorch_model.bin` and as a Megatron rank file; the first byte
//! chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{Scratch, golden, read_all, seed_of};
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

fn seeds() {
    let shapes: [(&str, &str, &[usize]); 10] = [
        ("model.embed_tokens.weight", "F32", &[16, 8]),
        ("model.layers.0.self_attn.q_proj.weight", "BF16", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", "F8_E4M3", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight_scale_inv", "F32", &[1, 1]),
        ("model.layers.0.self_attn.v_proj.weight", "F16", &[8, 8]),
        ("model.layers.0.self_attn.o_proj.weight", "F64", &[8, 8]),
        ("model.layers.0.mlp.gate_proj.weight", "F32", &[16, 8]),
        ("model.layers.0.mlp.up_proj.weight", "F32", &[16, 8]),
        ("model.layers.0.mlp.down_proj.weight", "F32", &[8, 16]),
        ("model.norm.weight", "F32", &[8]),
    ];
    let norms =
        ["input_layernorm", "post_attention_layernorm"].map(|norm| format!("model.layers.0.{norm}.weight"));
    let norms = norms.into_iter().map(|name| (name, "F32", vec![8]));
    let tensors: Vec<_> = shapes
        .iter()
        .map(|(name, dtype, shape)| ((*name).to_owned(), *dtype, shape.to_vec()))
        .chain(norms)
        .collect();
    let size = |dtype: &str| ms_files::safetensors::element_size(dtype).expect("a type of files");
    let bytes: usize =
        tensors.iter().map(|(_, dtype, shape)| shape.iter().product::<usize>() * size(dtype)).sum();
    let mut file = Vec::new();
    ms_files::safetensors::write_header(&mut file, &ms_files::safetensors::make_header(&tensors, &[]))
        .expect("memory");
    file.resize(file.len() + bytes, 1);
    seed_of(0, "model", &file);
    seed_of(1, "zip", &golden("convert/pt_samples/tensors.pt"));
    seed_of(1, "old", &golden("convert/pt_samples/tensors_old_format.pt"));
    seed_of(2, "rank", &golden("convert/mamba2_stages/mg/iter_0000001/mp_rank_00_000/model_optim_rng.pt"));
    seed_of(2, "run", &golden("distrib_optim/iter_0000001/mp_rank_00/model_optim_rng.pt"));
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
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
    read_all(&checkpoint);
});
