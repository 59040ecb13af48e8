//! Samples with changed configurations compared with Hugging Face transformers (`tests/golden/models/changed.py`).

#![allow(clippy::unwrap_used)] // tests

use std::collections::BTreeMap;

use ms_core::DType;
use ms_generate::LoadedModel;
use ms_testing::{assert_close, golden, golden_model};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Case {
    model: String,
    /// In place of what `config.json` says.
    fields: BTreeMap<String, Value>,
    /// Factors of weights, by a part of their names; powers of two, so that bfloat16 holds the products.
    scaled: BTreeMap<String, f32>,
    /// Modules of every layer that get a bias: [`BIAS`], repeated.
    biased: Vec<String>,
    tokens: Vec<i32>,
    /// Of the last token: `[V]`.
    logits: Vec<f64>,
}

const BIAS: [f32; 5] = [-0.5, -0.25, 0.125, 0.25, 0.5];

/// Writes the folder of a case.
fn write(case: &Case, from: &std::path::Path, to: &std::path::Path) {
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    config.as_object_mut().unwrap().extend(case.fields.clone());
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let mut data = bytes.split_off(8);
    let length = u64::from_le_bytes(bytes.try_into().unwrap()) as usize;
    let header: Vec<u8> = data.drain(..length).collect();
    let mut tensors: BTreeMap<String, Value> = serde_json::from_slice(&header).unwrap();
    for (name, tensor) in &tensors {
        let Some((_, factor)) = case.scaled.iter().find(|(part, _)| name.contains(*part)) else { continue };
        assert_eq!(tensor["dtype"], "BF16", "{name}");
        let [start, end] = [0, 1].map(|i| tensor["data_offsets"][i].as_u64().unwrap() as usize);
        for v in data[start..end].as_chunks_mut::<2>().0 {
            *v = half::bf16::from_f32(half::bf16::from_le_bytes(*v).to_f32() * factor).to_le_bytes();
        }
    }
    for (name, tensor) in tensors.clone() {
        let Some(module) = name.strip_suffix(".weight") else { continue };
        if case.biased.iter().any(|biased| module.ends_with(&format!(".{biased}"))) {
            let rows = tensor["shape"][0].as_u64().unwrap() as usize;
            let bias = BIAS.iter().cycle().take(rows).flat_map(|&x| half::bf16::from_f32(x).to_le_bytes());
            let start = data.len();
            data.extend(bias);
            let (name, offsets) = (format!("{module}.bias"), [start, data.len()]);
            tensors.insert(name, json!({"dtype": "BF16", "shape": [rows], "data_offsets": offsets}));
        }
    }
    let header = serde_json::to_vec(&tensors).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(to.join("model.safetensors"), file).unwrap();
}

#[test]
fn samples_under_other_configurations_have_the_logits_of_transformers() {
    let cases: Vec<Case> =
        serde_json::from_slice(&std::fs::read(golden("models/changed.json")).unwrap()).unwrap();
    for case in &cases {
        let dir = tempfile::tempdir().unwrap();
        write(case, &golden_model(&case.model).unwrap(), dir.path());
        let what = format!("{} {:?}", case.model, case.fields);
        let model =
            LoadedModel::open(dir.path(), DType::F32, ms_cpu::device(1).unwrap(), Some(case.tokens.len()));
        let model = model.unwrap_or_else(|e| panic!("{what}: {e}"));
        let all = model.logits(&case.tokens, &[0, case.tokens.len() as i32]).unwrap();
        let last = &all[all.len() - case.logits.len()..];
        assert_close(&what, last, &case.logits, 0.0, 1e-3);
    }
}

/// GPT-2 and Bloom are published as models without an output layer, any model may be saved as one: names begin behind the
/// module that it is in the others.
#[test]
fn weights_without_the_name_of_the_base_module_are_found() {
    for (sample, base) in [
        ("gpt2", "transformer."),
        ("bloom", "transformer."),
        ("llama3_gqa", "model."),
        ("mamba2", "backbone."),
    ] {
        let (from, dir) = (golden_model(sample).unwrap(), tempfile::tempdir().unwrap());
        std::fs::copy(from.join("config.json"), dir.path().join("config.json")).unwrap();
        let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
        let bare = header.replace(&format!("\"{base}"), "\"");
        assert_ne!(bare, header, "{sample}");
        let file = [&bytes[..8], format!("{bare:length$}").as_bytes(), &bytes[8 + length..]].concat();
        std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
        let logits = |folder: &std::path::Path| {
            let model = LoadedModel::open(folder, DType::F32, ms_cpu::device(1).unwrap(), Some(8));
            let model = model.unwrap_or_else(|e| panic!("{sample}: {e}"));
            model.logits(&[1, 2, 3, 4, 5, 6, 7, 8], &[0, 8]).unwrap()
        };
        assert_eq!(logits(dir.path()), logits(&from), "{sample}");
    }
}
