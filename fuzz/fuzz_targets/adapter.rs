//! An adapter folder: settings of any text and weights of any bytes behind them, as safetensors or as the pickle of
//! `adapter_model.bin`, for a small model; the first byte chooses. Merged, it is read as a whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_ckpt::layout::mcore::Hints;
use ms_ckpt::{Arithmetic, Checkpoint, Merge};
use ms_fuzz::{Scratch, golden, joined, parts, read_all, seed, torch_archive};
use std::sync::LazyLock;

const MODELS: [&str; 2] = ["llama3_gqa", "qwen3_moe"];
const SETTINGS: &str = r#"{"peft_type":"LORA","r":2,"lora_alpha":4,"bias":"none","init_lora_weights":true,
"target_modules":["q_proj","down_proj"],"task_type":"CAUSAL_LM","lora_dropout":0.0}"#;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| {
    let scratch = Scratch::new();
    for model in MODELS {
        for file in ["config.json", "model.safetensors"] {
            scratch.write(&format!("{model}/{file}"), &golden(&format!("models/{model}/{file}")));
        }
    }
    scratch
});

fn base(which: u8) -> Option<Checkpoint> {
    ms_ckpt::open(&SCRATCH.path(MODELS[usize::from(which) % MODELS.len()])).ok()
}

/// The pickle of a dictionary of such matrices.
fn pickled(tensors: &[(String, &str, Vec<usize>)]) -> Vec<u8> {
    let text = |s: &str| [b"X", &(s.len() as u32).to_le_bytes()[..], s.as_bytes()].concat();
    let two =
        |a: usize, b: usize| [b"J", &(a as u32).to_le_bytes()[..], b"J", &(b as u32).to_le_bytes()].concat();
    let mut out = b"\x80\x02}(".to_vec();
    for (key, (name, _, shape)) in tensors.iter().enumerate() {
        let (rows, columns) = (shape[0], shape[1]);
        out.extend(text(name));
        out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        out.extend(text("storage"));
        out.extend(b"ctorch\nFloatStorage\n");
        out.extend([text(&(key % 100).to_string()), text("cpu")].concat());
        out.extend([b"J", &((rows * columns) as u32).to_le_bytes()[..], b"tQK\0"].concat());
        out.extend([&two(rows, columns)[..], b"\x86", &two(columns, 1), b"\x86"].concat());
        out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    }
    out.extend(b"u.");
    out
}

fn seeds() {
    for (number, model) in MODELS.iter().enumerate() {
        let Some(base) = base(number as u8) else { continue };
        let mut tensors = Vec::new();
        for listed in base
            .stored()
            .filter(|t| t.name.ends_with("q_proj.weight") || t.name.ends_with("down_proj.weight"))
        {
            let module = listed.name.trim_end_matches(".weight");
            let name = |matrix: &str| format!("base_model.model.{module}.lora_{matrix}.weight");
            tensors.push((name("A"), "F32", vec![2, listed.shape[1]]));
            tensors.push((name("B"), "F32", vec![listed.shape[0], 2]));
        }
        let numel: usize = tensors.iter().map(|t| t.2.iter().product::<usize>()).sum();
        let mut file = Vec::new();
        let header = ms_files::safetensors::make_header(&tensors, &[]);
        ms_files::safetensors::write_header(&mut file, &header).expect("memory");
        file.resize(file.len() + 4 * numel, 0);
        let settings = SETTINGS.as_bytes();
        seed(model, &[&[number as u8], joined(&[settings, &file]).as_slice()].concat());
        let pickle = [&[number as u8 + 2], joined(&[settings, &pickled(&tensors)]).as_slice()].concat();
        seed(&format!("{model}-pickle"), &pickle);
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let [settings, weights] = parts(bytes);
    SCRATCH.write("adapter/adapter_config.json", settings);
    let (name, weights, other) = match which / MODELS.len() as u8 % 2 {
        0 => ("safetensors", weights.to_vec(), "bin"),
        _ => ("bin", torch_archive(weights), "safetensors"),
    };
    SCRATCH.write(&format!("adapter/adapter_model.{name}"), &weights);
    let _ = std::fs::remove_file(SCRATCH.path(&format!("adapter/adapter_model.{other}")));
    let Some(base) = base(which) else { return };
    let hints = Hints { model: Some(base.config().clone()), ..Hints::default() };
    let Ok(adapter) = ms_ckpt::open_with(&SCRATCH.path("adapter"), None, &hints) else { return };
    read_all(&adapter);
    let _ = adapter.adapter_rank();
    let both = base.with_adapter(adapter);
    let merge = Merge { scale: 2.0, arithmetic: Arithmetic::default() };
    if let Ok(merged) = both.merged(merge) {
        read_all(&merged);
    }
});
