//! Samples under other configurations against Hugging Face transformers (`tests/golden/models/changed.py`).

#![allow(clippy::unwrap_used)] // tests

use std::collections::BTreeMap;

use ms_core::DType;
use ms_generate::LoadedModel;
use ms_testing::{assert_close, golden, golden_model};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Case {
    model: String,
    /// In place of what `config.json` says.
    fields: BTreeMap<String, Value>,
    /// Factors of weights, by a part of their names; powers of two, so that bfloat16 holds the products.
    scaled: BTreeMap<String, f32>,
    tokens: Vec<i32>,
    /// Of the last token: `[V]`.
    logits: Vec<f64>,
}

/// Writes the folder of a case.
fn write(case: &Case, from: &std::path::Path, to: &std::path::Path) {
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    config.as_object_mut().unwrap().extend(case.fields.clone());
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_at_mut(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let (header, data) = rest.split_at_mut(length);
    let tensors: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    for (name, tensor) in &tensors {
        let Some((_, factor)) = case.scaled.iter().find(|(part, _)| name.contains(*part)) else { continue };
        assert_eq!(tensor["dtype"], "BF16", "{name}");
        let [start, end] = [0, 1].map(|i| tensor["data_offsets"][i].as_u64().unwrap() as usize);
        for v in data[start..end].as_chunks_mut::<2>().0 {
            *v = half::bf16::from_f32(half::bf16::from_le_bytes(*v).to_f32() * factor).to_le_bytes();
        }
    }
    std::fs::write(to.join("model.safetensors"), bytes).unwrap();
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
