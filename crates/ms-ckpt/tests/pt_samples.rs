//! The `.pt` reader on files that PyTorch wrote, and on hostile ones.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::collections::BTreeMap;
use std::path::Path;

use ms_ckpt::Error;
use ms_ckpt::torch::{Node, TorchFile};
use proptest::prelude::*;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn walk(file: &TorchFile, path: &str, node: &Node, out: &mut BTreeMap<String, (Vec<u64>, String)>) {
    match node {
        Node::Tensor(t) => {
            // Types without a counterpart here are refused by name; the others are read.
            if let Ok(view) = file.view(path, t) {
                let shape = view.shape.iter().map(|&n| n as u64).collect();
                out.insert(path.to_owned(), (shape, hash(&file.read(path, t).unwrap())));
            }
        }
        Node::Dict(entries) => entries.iter().for_each(|(k, v)| walk(file, &format!("{path}/{k}"), v, out)),
        Node::List(items) => {
            for (i, v) in items.iter().enumerate() {
                walk(file, &format!("{path}/{i}"), v, out);
            }
        }
        Node::Plain(_) => {}
    }
}

#[test]
fn tensors_with_strides_views_sharing_and_every_type_are_read() {
    let dir = ms_testing::golden("convert/pt_samples");
    for (sample, expected) in [
        ("tensors.pt", "tensors.expected.json"),
        ("tensors_old_format.pt", "tensors.expected.json"),
        ("train_like_proto2.pt", "train_like.expected.json"),
        ("train_like_proto4.pt", "train_like.expected.json"),
    ] {
        let file = TorchFile::open(&dir.join(sample)).unwrap();
        let mut got = BTreeMap::new();
        walk(&file, "", file.root(), &mut got);
        let want: Value =
            serde_json::from_str(&std::fs::read_to_string(dir.join(expected)).unwrap()).unwrap();
        let mut compared = 0;
        for (name, want) in want.as_object().unwrap() {
            let Some(dtype) = want["dtype"].as_str() else { continue };
            let Some((shape, hash)) = got.get(name) else {
                assert!(
                    dtype.starts_with("float8") || dtype.starts_with("complex"),
                    "{sample}: {name} ({dtype}) is missing"
                );
                continue;
            };
            assert_eq!(Value::from(shape.clone()), want["shape"], "{sample}: {name}");
            assert_eq!(hash, want["sha256"].as_str().unwrap(), "{sample}: {name}");
            compared += 1;
        }
        println!("{sample}: {compared} tensors");
        assert!(compared > 5);
    }
}

#[test]
fn hostile_files_are_refused_with_what_and_where() {
    let dir = ms_testing::golden("convert/pt_samples");
    for sample in ["unsafe_reduce.pt", "unsafe_eval.pt"] {
        let error = TorchFile::open(&dir.join(sample)).unwrap_err();
        assert!(matches!(error, Error::Pickle { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(sample) && text.contains("is refused"), "{text}");
    }
}

fn open_bytes(dir: &Path, bytes: &[u8]) -> Option<TorchFile> {
    let path = dir.join("changed.pt");
    std::fs::write(&path, bytes).unwrap();
    TorchFile::open(&path).ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn changed_or_cut_files_never_panic(at in any::<prop::sample::Index>(), value in any::<u8>(), cut in 0usize..300, head in any::<bool>()) {
        let samples = ms_testing::golden("convert/pt_samples");
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = std::fs::read(samples.join("tensors.pt")).unwrap();
        // Half of the changes hit the pickle and the headers near the start, half the directory at the end.
        let window = bytes.len().min(4000);
        let i = at.index(window);
        let i = if head { i } else { bytes.len() - 1 - i };
        bytes[i] = value;
        bytes.truncate(bytes.len() - if value % 2 == 0 { cut } else { 0 });
        if let Some(file) = open_bytes(dir.path(), &bytes) {
            let mut all = BTreeMap::new();
            walk(&file, "", file.root(), &mut all);
        }
    }
}
