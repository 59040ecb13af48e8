//! The less common forms of Megatron-Core's distributed checkpoints, each from a sample that it wrote.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::path::PathBuf;

use ms_ckpt::layout::mcore::{FileGrid, Spelling};
use ms_ckpt::layout::torch_dist::{self, Modules};
use ms_ckpt::{ArgsForm, Checkpoint, Form, Plan, Run, RunOptions, open};
use ms_core::{DType, GridSizes, Region};
use ms_spec::Stages;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const RUN: RunOptions = RunOptions { threads: 1, sync: false, replace: false };

/// Two tensor-parallel ranks.
fn halves() -> FileGrid {
    FileGrid::new(&GridSizes { tp: 2, ..GridSizes::default() }, Stages::default(), false).unwrap()
}

fn golden(name: &str) -> PathBuf {
    ms_testing::workspace_root().join("tests/golden/torch_dist").join(name)
}

fn expected(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name).join("expected.json")).unwrap()).unwrap()
}

fn bytes(source: &Checkpoint, name: &str) -> Vec<u8> {
    let (shape, dtype) = source.tensors().find(|t| t.0 == name).map(|t| (*t.1, t.2)).unwrap();
    let mut out = vec![0; shape.numel() * dtype.size()];
    source.read_named(name, &Region::whole(&shape), None, dtype, &mut out).unwrap();
    out
}

/// The bytes of one of Megatron's parameters: a canonical one, one expert of a stack, or rows of a packed projection.
fn parameter(source: &Checkpoint, name: &str) -> Vec<u8> {
    if let Some((layer, rest)) = name.split_once(".local_experts.") {
        let (expert, module) = rest.split_once('.').unwrap();
        let all = bytes(source, &format!("{layer}.{module}"));
        let (e, n) = (expert.parse::<usize>().unwrap(), all.len() / 2);
        return all[e * n..(e + 1) * n].to_vec();
    }
    for (module, first) in [("linear_q_down_proj", true), ("linear_kv_down_proj", false)] {
        if name.contains(module) {
            let all = bytes(source, &name.replace(module, "linear_qkv"));
            // Six query rows of eight elements in bf16.
            return if first { all[..6 * 16].to_vec() } else { all[6 * 16..].to_vec() };
        }
    }
    bytes(source, name)
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn compare(source: &Checkpoint, want: &Value) -> (usize, usize) {
    let (weights, states) = (want["weights"].as_object().unwrap(), want["states"].as_object().unwrap());
    for (name, sha) in weights {
        assert_eq!(hash(&parameter(source, name)), sha.as_str().unwrap(), "{name}");
    }
    for (name, all) in states {
        for (state, sha) in all.as_object().unwrap() {
            let name = format!("optimizer.state.{state}.{name}");
            assert_eq!(hash(&bytes(source, &name)), sha.as_str().unwrap(), "{name}");
        }
    }
    (weights.len(), states.len())
}

#[test]
fn experts_and_halves_with_keys_of_their_own_are_read() {
    let source = open(&golden("singletons")).unwrap();
    assert_eq!((source.form(), source.config().moe.as_ref().unwrap().experts), (Form::TorchDist, 2));
    assert_eq!(compare(&source, &expected("singletons")), (21, 0));
}

#[test]
fn experts_of_all_layers_under_one_key_are_read() {
    assert_eq!(compare(&open(&golden("stacked")).unwrap(), &expected("stacked")), (21, 0));
}

#[test]
fn down_projections_of_latent_attention_that_are_apart_are_read() {
    let source = open(&golden("latent")).unwrap();
    assert_eq!(source.config().mla().unwrap().q_rank, Some(6));
    assert_eq!(compare(&source, &expected("latent")), (14, 0));
}

#[test]
fn optimizer_state_in_buckets_gathered_or_in_fragments_is_read() {
    for name in ["buckets", "gathered", "flattened"] {
        let source = open(&golden(name)).unwrap();
        assert!(source.has_optimizer(), "{name}");
        assert_eq!(compare(&source, &expected(name)), (9, 9), "{name}");
        let groups = &source.state()["optimizer"]["optimizer"]["param_groups"];
        assert_eq!(
            (groups[0]["step"].as_f64(), groups[1]["wd_mult"].as_f64()),
            (Some(1.0), Some(0.0)),
            "{name}"
        );
        assert_eq!(source.state()["opt_param_scheduler"]["num_steps"], 24);
    }
}

#[test]
fn buckets_become_flat_buffers_of_another_cut_and_come_back_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(&golden("buckets")).unwrap();
    let run = Run::of(&source);
    let dtype = |n: &str| source.dtype(n);
    let file_grid = halves();
    let plan =
        Plan::mcore(source.config(), &file_grid, Spelling::default(), ArgsForm::Namespace, &dtype, &run)
            .unwrap();
    plan.run(&source, &dir.path().join("tp2"), &RUN, &|_| ()).unwrap();
    let other = open(&dir.path().join("tp2")).unwrap();
    assert_eq!((other.form(), other.has_optimizer()), (Form::Mcore, true));
    for (name, ..) in source.tensors() {
        assert_eq!(bytes(&other, name), bytes(&source, name), "{name}");
    }
}

#[test]
fn keys_are_written_as_the_modules_of_the_sample_have_them() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(&golden("stacked")).unwrap();
    let keys = |folder: &std::path::Path| -> Vec<(String, Vec<usize>)> {
        torch_dist::keys(folder).unwrap().into_iter().map(|k| (k.name, k.shape)).collect()
    };
    for (modules, norm) in [
        (Modules::Local, "decoder.layers.mlp.linear_fc1.layer_norm_weight"),
        (Modules::TransformerEngine, "decoder.layers.pre_mlp_layernorm.weight"),
    ] {
        let to = dir.path().join(format!("{modules:?}"));
        let dtype = |n: &str| source.dtype(n);
        let (file_grid, run) = (FileGrid::default(), Run::default());
        let plan = Plan::torch_dist(source.config(), &file_grid, modules, ArgsForm::Namespace, &dtype, &run)
            .unwrap();
        plan.run(&source, &to, &RUN, &|_| ()).unwrap();
        let found = keys(&to);
        assert!(found.contains(&(norm.to_owned(), vec![2, 8])), "{found:?}");
        assert_eq!(found == keys(&golden("stacked")), modules == Modules::Local);
        assert_eq!(compare(&open(&to).unwrap(), &expected("stacked")), (21, 0));
    }
}

#[test]
fn keys_of_a_release_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (golden("buckets/iter_0000003/.metadata"), dir.path().join("release"));
    std::fs::create_dir(&to).unwrap();
    std::fs::copy(from, to.join(".metadata")).unwrap();
    std::fs::write(dir.path().join("latest_checkpointed_iteration.txt"), "release\n").unwrap();
    let keys = torch_dist::keys(dir.path()).unwrap();
    assert_eq!(keys, torch_dist::keys(&golden("buckets")).unwrap());
}

#[test]
fn a_sharded_transformers_model_is_read_with_its_moments() {
    let source = open(&golden("fsdp2")).unwrap();
    assert_eq!((source.form(), source.config().padded_vocab), (Form::TorchDist, 31));
    assert!(source.has_optimizer(), "weights that are float32 are the master weights");
    assert_eq!(source.state()["optimizer"]["optimizer"]["param_groups"][0]["step"], 1.0);
    let all = |prefix: &str, name: &str| bytes(&source, &format!("{prefix}{name}"));
    let layer = "decoder.layers.0.";
    for (name, want) in expected("fsdp2").as_object().unwrap() {
        for (kind, prefix) in [
            ("weight", ""),
            ("exp_avg", "optimizer.state.exp_avg."),
            ("exp_avg_sq", "optimizer.state.exp_avg_sq."),
        ] {
            let qkv = || all(prefix, &format!("{layer}self_attention.linear_qkv.weight"));
            let fc1 = || all(prefix, &format!("{layer}mlp.linear_fc1.weight"));
            // Two groups of two query heads, a key and a value, two rows of eight floats each.
            let rows = |of: &[usize]| -> Vec<u8> {
                let qkv = qkv();
                of.iter().flat_map(|r| qkv[r * 32..(r + 1) * 32].to_vec()).collect()
            };
            let got = match name.rsplit('.').nth(1).unwrap() {
                "q_proj" => rows(&[0, 1, 2, 3, 8, 9, 10, 11]),
                "k_proj" => rows(&[4, 5, 12, 13]),
                "v_proj" => rows(&[6, 7, 14, 15]),
                "gate_proj" => fc1()[..12 * 32].to_vec(),
                "up_proj" => fc1()[12 * 32..].to_vec(),
                "embed_tokens" => all(prefix, "embedding.word_embeddings.weight"),
                "lm_head" => all(prefix, "output_layer.weight"),
                "norm" => all(prefix, "decoder.final_layernorm.weight"),
                "o_proj" => all(prefix, &format!("{layer}self_attention.linear_proj.weight")),
                "down_proj" => all(prefix, &format!("{layer}mlp.linear_fc2.weight")),
                "input_layernorm" => all(prefix, &format!("{layer}input_layernorm.weight")),
                _ => all(prefix, &format!("{layer}pre_mlp_layernorm.weight")),
            };
            assert_eq!(want[kind], hash(&got), "{kind} of {name}");
        }
    }
}

#[test]
fn buckets_of_another_model_leave_the_weights_alone() {
    // The same folder, whose description now speaks of a bucket that is shorter than the parameters need.
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("iter_0000003");
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(golden("buckets/iter_0000003")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::write(folder.join(path.file_name().unwrap()), std::fs::read(&path).unwrap()).unwrap();
    }
    let metadata = folder.join(".metadata");
    let mut described = std::fs::read(&metadata).unwrap();
    // The last key of a bucket gets another name: it is missing then.
    let (from, to) = (b"bucket_idx_0.exp_avg_sq", b"bucket_idx_0.exp_avg_sQ");
    let mut at = 0;
    while let Some(found) = described[at..].windows(from.len()).position(|w| w == from) {
        described[at + found..at + found + from.len()].copy_from_slice(to);
        at += found + from.len();
    }
    std::fs::write(&metadata, &described).unwrap();
    let source = open(&folder).unwrap();
    assert!(!source.has_optimizer());
    assert_eq!(source.tensors().count(), 9);
    let spec = &ms_spec::params(source.config())[0];
    let mut values = vec![0; 4 * spec.shape.numel()];
    source.read(spec, &Region::whole(&spec.shape), DType::F32, &mut values).unwrap();
    assert!(values.iter().any(|x| *x != 0) && source.dtype(&spec.name).unwrap() == DType::Bf16);
}

#[test]
fn sections_of_state_space_mixers_have_keys_of_their_own() {
    let model = ms_testing::golden_model("mamba2").unwrap();
    let source = open(&model).unwrap();
    let config = source.config();
    let dir = tempfile::tempdir().unwrap();
    let (file_grid, run) = (halves(), Run::default());
    let dtype = |name: &str| source.dtype(name);
    let plan =
        Plan::torch_dist(config, &file_grid, Modules::default(), ArgsForm::Namespace, &dtype, &run).unwrap();
    plan.run(&source, dir.path(), &RUN, &|_| ()).unwrap();
    let keys = torch_dist::keys(dir.path()).unwrap();
    let [z, x, b, c, dt] = config.mamba2.unwrap().sections();
    for (name, rows) in [("z", z), ("x", x), ("B", b), ("C", c), ("dt", dt)] {
        let name = format!("decoder.layers.0.mixer.in_proj.weight.{name}");
        let key = keys.iter().find(|k| k.name == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!((&key.shape[..], key.chunks), (&[rows, config.hidden][..], 2), "{name}");
    }
    assert!(keys.iter().any(|k| k.name == "decoder.layers.0.mixer.conv1d.bias.B"));
    let back = open(dir.path()).unwrap();
    for part in ["in_proj.weight", "conv1d.weight", "conv1d.bias"] {
        let name = format!("decoder.layers.1.mixer.{part}");
        assert_eq!(bytes(&back, &name), bytes(&source, &name), "{name}");
    }
}
