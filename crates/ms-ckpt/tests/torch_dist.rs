//! Distributed checkpoints: those written by Megatron-Core are read, and damaged folders are refused.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::path::{Path, PathBuf};

use ms_ckpt::layout::mcore::{FileGrid, Hints};
use ms_ckpt::layout::torch_dist::{self, Modules};
use ms_ckpt::{ArgsForm, Checkpoint, Form, Plan, Run, RunOptions, open, open_with};
use ms_core::{DType, GridSizes, Region};
use ms_spec::Stages;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const RUN: RunOptions = RunOptions { threads: 1, sync: false, replace: false };

/// Two tensor-parallel ranks.
fn halves() -> FileGrid {
    FileGrid::new(&GridSizes { tp: 2, ..GridSizes::default() }, Stages::default(), false).unwrap()
}

fn golden(name: &str) -> PathBuf {
    ms_testing::workspace_root().join("tests/golden/torch_dist").join(name)
}

fn bytes(source: &Checkpoint, name: &str) -> Vec<u8> {
    let (shape, dtype) = source.tensors().find(|t| t.0 == name).map(|t| (*t.1, t.2)).unwrap();
    let mut out = vec![0; shape.numel() * dtype.size()];
    source.read_named(name, &Region::whole(&shape), None, dtype, &mut out).unwrap();
    out
}

/// The canonical tensors that a key holds, one for each layer that it stacks.
fn canonical(key: &str, layers: usize) -> Vec<String> {
    let name = key
        .replace("self_attention.linear_qkv.layer_norm_", "input_layernorm.")
        .replace("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")
        .replace("experts.experts", "experts");
    match name.split_once("decoder.layers.") {
        Some((before, rest)) if !rest.starts_with(|c: char| c.is_ascii_digit()) => {
            (0..layers).map(|l| format!("{before}decoder.layers.{l}.{rest}")).collect()
        }
        _ => vec![name],
    }
}

fn compare(source: &Checkpoint, expected: &Value) -> usize {
    let mut seen = 0;
    for (key, want) in expected.as_object().unwrap().iter().filter(|(k, _)| !k.contains("_extra_state")) {
        let names = canonical(key, source.config().layers);
        seen += names.len();
        let all: Vec<u8> = names.iter().flat_map(|name| bytes(source, name)).collect();
        let hash: String = Sha256::digest(&all).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(want["sha256"], hash, "{key}");
    }
    assert_eq!(seen, source.tensors().count(), "every tensor was compared");
    seen
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn what_megatron_core_wrote_is_read_element_by_element() {
    for (name, tensors, experts) in [("dense", 36, false), ("experts", 10, true)] {
        let source = open(&golden(name)).unwrap();
        assert_eq!((source.form(), source.iteration()), (Form::TorchDist, 3));
        assert_eq!(source.config().moe.is_some(), experts);
        assert_eq!(compare(&source, &read_json(&golden(name).join("expected.json"))), tensors, "{name}");
        assert_eq!(source.has_optimizer(), !experts);
    }
    let state = open(&golden("dense")).unwrap().state().clone();
    assert_eq!(state["optimizer"]["optimizer"]["param_groups"][0]["step"], 3);
    assert_eq!(state["opt_param_scheduler"]["num_steps"], 24);
}

#[test]
fn a_folder_without_a_whole_description_is_read_with_a_configuration() {
    let folder = ms_testing::golden("convert/torch_dist_tp2");
    let without = open(&folder).unwrap_err().to_string();
    assert!(without.contains("num_attention_heads"), "{without}");
    let config = json!({
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 128,
        "torch_dtype": "bfloat16"
    });
    let source = open_with(&folder, None, &Hints { config: Some(config), ..Hints::default() }).unwrap();
    compare(&source, &read_json(&folder.join("expected.json"))["tensors"]);
    assert_eq!(torch_dist::keys(&folder).unwrap().len(), 9);
}

#[test]
fn optimizer_state_goes_through_another_cut_and_form_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(&golden("dense")).unwrap();
    let run = Run::of(&source);
    assert!(run.optimizer);
    let dtype = |n: &str| source.dtype(n);
    let file_grid = halves();
    let plan =
        Plan::torch_dist(source.config(), &file_grid, Modules::default(), ArgsForm::Namespace, &dtype, &run)
            .unwrap();
    plan.run(&source, &dir.path().join("tp2"), &RUN, &|_| ()).unwrap();
    Plan::sharded(source.config(), &file_grid, &dtype, &run)
        .unwrap()
        .run(&source, &dir.path().join("sharded"), &RUN, &|_| ())
        .unwrap();
    for (name, kind) in [("tp2", Form::TorchDist), ("sharded", Form::Sharded)] {
        let other = open(&dir.path().join(name)).unwrap();
        assert_eq!((other.form(), other.iteration(), other.has_optimizer()), (kind, 3, true));
        assert_eq!(other.state()["opt_param_scheduler"], source.state()["opt_param_scheduler"]);
        for (tensor, ..) in source.tensors() {
            assert_eq!(bytes(&other, tensor), bytes(&source, tensor), "{name}: {tensor}");
        }
    }
}

/// A copy of the dense sample that can be damaged.
fn copy(dir: &Path) -> PathBuf {
    let to = dir.join("iter_0000003");
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(golden("dense/iter_0000003")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::write(to.join(path.file_name().unwrap()), std::fs::read(&path).unwrap()).unwrap();
    }
    to
}

#[test]
fn damaged_folders_are_refused_with_what_and_where() {
    let dir = tempfile::tempdir().unwrap();
    let folder = copy(dir.path());
    let message = || open(&folder).unwrap_err().to_string();
    let chunks = folder.join("__0_0.distcp");
    let whole = std::fs::read(&chunks).unwrap();
    std::fs::write(&chunks, &whole[..whole.len() / 2]).unwrap();
    assert!(message().contains("are outside the file of"), "{}", message());
    std::fs::write(&chunks, &whole).unwrap();
    assert!(open(&folder).is_ok());

    let metadata = folder.join(".metadata");
    let described = std::fs::read(&metadata).unwrap();
    for len in (0..described.len()).step_by(997) {
        std::fs::write(&metadata, &described[..len]).unwrap();
        assert!(open(&folder).is_err(), "{len} bytes");
    }
    // A class that would do something is refused by its name.
    let class = b"torch.distributed.checkpoint.metadata";
    let at = described.windows(class.len()).position(|w| w == class).unwrap();
    let mut hostile = described.clone();
    hostile[at..at + class.len()].copy_from_slice(b"subprocess.Popen.checkpoint.metadata.");
    std::fs::write(&metadata, &hostile).unwrap();
    assert!(message().contains("is refused: not on the list of allowed functions"), "{}", message());
    // A chunk elsewhere than in the folder.
    let file = b"__0_0.distcp";
    let at = described.windows(file.len()).position(|w| w == file).unwrap();
    let mut outside = described.clone();
    outside[at..at + file.len()].copy_from_slice(b"../../passwd");
    std::fs::write(&metadata, &outside).unwrap();
    assert!(message().contains("is not a file name"), "{}", message());
}

#[test]
fn weights_of_the_folder_are_those_of_its_chunks_whatever_the_type_asked_for() {
    let source = open(&golden("dense")).unwrap();
    let spec =
        ms_spec::params(source.config()).into_iter().find(|s| s.name == "output_layer.weight").unwrap();
    let region = Region::along(&spec.shape, 0, std::iter::once(3..5));
    let (mut wide, mut narrow) = (vec![0u8; 64], vec![0u8; 32]);
    source.read(&spec, &region, DType::F32, &mut wide).unwrap();
    source.read(&spec, &region, DType::Bf16, &mut narrow).unwrap();
    let want: Vec<u8> = narrow.chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]).collect();
    assert_eq!(wide, want);
}
