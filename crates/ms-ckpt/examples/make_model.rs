//! Writes a model of random bf16 weights as a Hugging Face folder: the input of `just bench-convert`.
//!
//! ```sh
//! cargo run --release -p ms-ckpt --example make_model -- FOLDER
//! ```

use std::path::PathBuf;

use ms_core::DType;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).ok_or("expected a folder to write")?;
    let json = serde_json::json!({
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000, "torch_dtype": "bfloat16"
    });
    let config = ms_spec::hf::read_config(&json)?;
    ms_ckpt::write_hf(&folder, &config, DType::Bf16, false, &mut |spec| {
        let mut x = spec.name.bytes().fold(7u64, |h, b| h.wrapping_mul(31) ^ u64::from(b));
        Ok((0..spec.shape.numel())
            .flat_map(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Sign and fraction are random, the exponent is that of values around 0.02.
                ((x >> 48) as u16 & 0x807f | 0x3c80).to_le_bytes()
            })
            .collect())
    })?;
    Ok(())
}
