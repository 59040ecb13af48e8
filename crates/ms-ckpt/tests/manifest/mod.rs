//! Files of a conversion compared with the manifest of upstream's: names, types, shapes and hashes of tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ms_ckpt::torch::{Node, TorchFile};
use ms_ckpt::{Mapped, safetensors};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Tensor name to dtype, shape and hash.
pub(crate) type Tensors = BTreeMap<String, (String, Vec<u64>, String)>;

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn flatten(file: &TorchFile, node: &Node, name: String, out: &mut Tensors) {
    match node {
        Node::Tensor(tensor) => {
            let view = file.view(&name, tensor).unwrap();
            let shape = view.shape.iter().map(|&n| n as u64).collect();
            let bytes = file.read(&name, tensor).unwrap();
            out.insert(name, (view.dtype.name().into(), shape, hash(&bytes)));
        }
        Node::Dict(entries) => {
            for (key, node) in entries {
                flatten(file, node, if name.is_empty() { key.clone() } else { format!("{name}/{key}") }, out);
            }
        }
        _ => {}
    }
}

pub(crate) fn torch_tensors(path: &Path) -> Tensors {
    let file = TorchFile::open(path).unwrap();
    let Node::Dict(top) = file.root() else { panic!() };
    let mut all = Tensors::new();
    for (key, node) in top.iter().filter(|(k, _)| k.starts_with("model")) {
        flatten(&file, node, key.clone(), &mut all);
    }
    all
}

pub(crate) fn safetensors_tensors(path: &Path) -> Tensors {
    let file = Mapped::open(path).unwrap();
    let header = safetensors::read_header(&file).unwrap();
    let entry = |t: &safetensors::Entry| {
        let shape = t.shape.iter().map(|&n| n as u64).collect();
        (
            t.name.clone(),
            (safetensors::dtype(&t.dtype).unwrap().name().into(), shape, hash(&file.bytes()[t.start..t.end])),
        )
    };
    header.tensors.iter().map(entry).collect()
}

fn expected(tensors: &Value, prefix: &str) -> Tensors {
    let entry = |(name, t): (&String, &Value)| {
        let shape = t["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let name = format!("{prefix}{name}");
        (name, (t["dtype"].as_str().unwrap().into(), shape, t["sha256"].as_str().unwrap().into()))
    };
    tensors.as_object().unwrap().iter().map(entry).collect()
}

/// Tensors that differ from the manifest, and how many were compared.
pub(crate) fn compare(case: &Path, out: &Path) -> (Vec<String>, usize) {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (name, file) in json(&case.join("manifest.json")).as_object().unwrap() {
        let (got, want) = if name.ends_with(".pt") {
            let parts =
                file.as_object().unwrap().iter().filter(|(k, v)| k.starts_with("model") && v.is_object());
            let want: Tensors = parts.flat_map(|(k, v)| expected(&v["tensors"], &format!("{k}/"))).collect();
            (torch_tensors(&out.join(name)), want)
        } else if name == "model.safetensors" && !out.join(name).exists() {
            // Ours has the files of the original folder, upstream's only one.
            let files = std::fs::read_dir(out).unwrap().map(|e| e.unwrap().path());
            let files = files.filter(|p| p.extension().is_some_and(|e| e == "safetensors"));
            (files.flat_map(|p| safetensors_tensors(&p)).collect(), expected(&file["tensors"], ""))
        } else if name.ends_with(".safetensors") {
            (safetensors_tensors(&out.join(name)), expected(&file["tensors"], ""))
        } else {
            assert!(out.join(name).is_file(), "{}: {name}", case.display());
            continue;
        };
        let names: BTreeSet<&String> = got.keys().chain(want.keys()).collect();
        count += want.len();
        for tensor in names {
            if got.get(tensor) != want.get(tensor) {
                wrong.push(format!(
                    "{name}: {tensor}: got {:?}, want {:?}",
                    got.get(tensor),
                    want.get(tensor)
                ));
            }
        }
    }
    (wrong, count)
}
