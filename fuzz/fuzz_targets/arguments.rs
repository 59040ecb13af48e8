//! Megatron's arguments as a checkpoint stores them, any JSON object, and a whole model as one of our manifests has it; the first
//! byte chooses. Refused, or a sound model that can be described again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{described, golden, pickle_of, seed_of};
use ms_spec::{ModelConfig, megatron};
use serde_json::{Map, Value, json};

fn seeds() {
    let names = [
        "deepseek_v3",
        "deepseek_v4",
        "qwen3_moe",
        "qwen3_next",
        "mamba2",
        "mamba3",
        "gpt_oss",
        "llama3_gqa",
    ];
    for name in names.into_iter().chain(["step3p5", "longcat_flash", "gemma2", "minimax_m2", "hunyuan_large"])
    {
        let text = String::from_utf8(golden(&format!("models/{name}/config.json"))).unwrap_or_default();
        let config = ms_spec::hf::parse_json(&text).and_then(|json| ms_spec::hf::read_config(&json));
        let Ok(config) = config else { continue };
        seed_of(0, name, Value::Object(megatron::to_args(&config)).to_string().as_bytes());
        seed_of(1, name, serde_json::to_string(&config).expect("a plain struct").as_bytes());
    }
    for name in ["grok", "hybrid"] {
        let file = golden(&format!("models-by-arguments/{name}/iter_0000001/mp_rank_00/model_optim_rng.pt"));
        let dir = std::env::temp_dir().join(format!("ms-fuzz-{name}-{}.pt", std::process::id()));
        if pickle_of(&file).is_empty() || std::fs::write(&dir, file).is_err() {
            continue;
        }
        if let Ok(file) = ms_ckpt::torch::TorchFile::open(&dir) {
            let args = file.root().get("args").map_or(json!({}), ms_ckpt::torch::Node::to_json);
            seed_of(0, name, args.to_string().as_bytes());
        }
        let _ = std::fs::remove_file(dir);
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    if which % 2 == 1 {
        if let Ok(Ok(config)) = serde_json::from_slice::<ModelConfig>(bytes).map(ModelConfig::validate) {
            described(&config);
        }
        return;
    }
    let Ok(args) = serde_json::from_slice::<Map<String, Value>>(bytes) else { return };
    let _ = (megatron::asked_args(&args), megatron::noop_layers(&args));
    for config in [megatron::from_args(&args), megatron::from_saved_args(&args)].into_iter().flatten() {
        described(&config);
    }
});
