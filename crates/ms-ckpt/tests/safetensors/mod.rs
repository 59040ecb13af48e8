//! A file of safetensors as a table, read and written by hand.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

/// A tensor of a safetensors file: type, shape, bytes.
pub(crate) type Tensor = (String, Vec<usize>, Vec<u8>);

/// The tensors of a file.
pub(crate) fn read(path: &Path) -> BTreeMap<String, Tensor> {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let data = &bytes[8 + length..];
    let tensor = |v: &Value| -> Tensor {
        let number = |v: &Value| v.as_u64().unwrap() as usize;
        let shape = v["shape"].as_array().unwrap().iter().map(number).collect();
        let (start, end) = (number(&v["data_offsets"][0]), number(&v["data_offsets"][1]));
        (v["dtype"].as_str().unwrap().to_owned(), shape, data[start..end].to_vec())
    };
    let entries = header.as_object().unwrap().iter().filter(|(k, _)| *k != "__metadata__");
    entries.map(|(name, v)| (name.clone(), tensor(v))).collect()
}

/// Writes a file of these tensors.
pub(crate) fn write(path: &Path, tensors: &BTreeMap<String, Tensor>) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (dtype, shape, bytes)) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let text = Value::Object(header).to_string();
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(text.as_bytes());
    file.extend_from_slice(&data);
    std::fs::write(path, file).unwrap();
}
