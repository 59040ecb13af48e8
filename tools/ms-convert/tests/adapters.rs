//! Adapters and 4-bit weights, through the program.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

mod made;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use made::{ms_convert, text};
use ms_core::{DType, Region};
use serde_json::json;

fn values(dir: &Path) -> BTreeMap<String, Vec<f32>> {
    let checkpoint = ms_ckpt::open(dir).unwrap();
    let read = |spec: ms_spec::ParamSpec| {
        let mut v = vec![0; 4 * spec.shape.numel()];
        checkpoint.read(&spec, &Region::whole(&spec.shape), DType::F32, &mut v).unwrap();
        (spec.name, ms_testing::floats(&v))
    };
    ms_spec::params(checkpoint.config()).into_iter().map(read).collect()
}

fn make_model(dir: &Path) {
    make_model_of(dir, "llama", &json!({}));
}

fn make_model_of(dir: &Path, family: &str, more: &serde_json::Value) {
    let mut json = json!({
        "model_type": family, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64
    });
    json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    made::model(dir, &json);
}

#[test]
fn an_adapter_merges_alike_from_megatrons_files_and_from_a_peft_folder() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let base = ms_testing::golden("models/llama2_mha");
    let adapter = ms_testing::golden("convert/src/llama2_mha_lora_tp2pp2");
    ms_convert(&[
        "hf",
        "mcore",
        "--load",
        text(&base),
        "--save",
        text(&path("mcore")),
        "--tp",
        "4",
        "--dtype",
        "bf16",
    ])
    .success();
    // The adapter alone, in Hugging Face's names; then merged from there and from the original, into both forms.
    let (mcore, save) = (path("mcore"), path("peft"));
    let mut alone = vec!["mcore", "hf", "--load", text(&mcore), "--save", text(&save), "--lora-load"];
    alone.extend([text(&adapter), "--lora-alpha", "10", "--save-lora-to-hf"]);
    ms_convert(&alone).success();
    // An adapter is replaced like any output, but not by itself.
    alone.push("--force");
    ms_convert(&alone).success();
    alone[7] = text(&save);
    ms_convert(&alone).code(2);
    let settings: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(save.join("adapter_config.json")).unwrap()).unwrap();
    assert_eq!((&settings["r"], &settings["lora_alpha"]), (&json!(4), &json!(10)));
    assert_eq!(
        settings["target_modules"],
        json!(["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"])
    );
    let merged: Vec<BTreeMap<String, Vec<f32>>> =
        [(&adapter, "mcore"), (&path("peft"), "mcore"), (&path("peft"), "hf")]
            .iter()
            .enumerate()
            .map(|(i, (from, to))| {
                let out = path(&format!("merged{i}"));
                ms_convert(&[
                    "mcore",
                    to,
                    "--load",
                    text(&path("mcore")),
                    "--save",
                    text(&out),
                    "--lora-load",
                    text(from),
                    "--lora-r",
                    "4",
                    "--lora-alpha",
                    "10",
                ])
                .success();
                values(&out)
            })
            .collect();
    assert!(merged[0] == merged[1] && merged[0] == merged[2]);
    let plain = values(&path("mcore"));
    let changed = plain.iter().filter(|(name, v)| merged[0][*name] != **v).count();
    assert_eq!(changed, 4 * 4, "four modules of four layers");
    // An adapter of another rank or for other modules than the command line says is refused.
    let refused = |more: &[&str], want: &str| {
        let adapter = path("peft");
        let (load, save) = (path("mcore"), path("no"));
        let mut args =
            vec!["mcore", "hf", "--load", text(&load), "--save", text(&save), "--lora-load", text(&adapter)];
        args.extend_from_slice(more);
        let assert = ms_convert(&args).code(1);
        let message = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(message.contains(want), "{message}");
    };
    refused(&["--lora-r", "8"], "the adapters have rank 4");
    refused(&["--lora-target-modules", "linear_qkv"], "is not among --lora-target-modules");
}

#[test]
fn weights_kept_as_four_bit_codes_come_back_nearly_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    make_model(&path("hf"));
    ms_convert(&[
        "hf",
        "mcore",
        "--load",
        text(&path("hf")),
        "--save",
        text(&path("nf4")),
        "--tp",
        "2",
        "--qlora-nf4",
    ])
    .success();
    ms_convert(&["mcore", "hf", "--load", text(&path("nf4")), "--save", text(&path("back"))]).success();
    let (want, got) = (values(&path("hf")), values(&path("back")));
    for (name, want) in &want {
        let got = &got[name];
        let worst = want.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Values up to 0.5: half the widest gap of the table, the error of a scale, and bf16.
        let linear = name.contains(".linear_");
        assert!(worst <= if linear { 0.09 } else { 0.0 }, "{name}: {worst}");
        assert_eq!(want == got, !linear, "{name}");
    }
}

/// Projections that are parameters of their own here: rows and columns.
const WHOLE: [(&str, usize, usize); 2] = [("self_attn.o_proj", 64, 64), ("mlp.down_proj", 64, 128)];
/// Projections that are parts of a parameter.
const PARTS: [(&str, usize, usize); 4] = [
    ("self_attn.q_proj", 64, 64),
    ("self_attn.v_proj", 32, 64),
    ("mlp.gate_proj", 128, 64),
    ("mlp.up_proj", 128, 64),
];

/// A peft folder with adapters of these modules.
fn make_adapter(dir: &Path, modules: &[(&str, usize, usize)]) {
    use safetensors::tensor::{Dtype, TensorView};
    let mut all = Vec::new();
    for layer in 0..4 {
        for &(module, rows, columns) in modules {
            for (matrix, shape) in [("lora_A", vec![2, columns]), ("lora_B", vec![rows, 2])] {
                // An expert's number tells its values from the others'.
                let salt: usize = module.bytes().filter(u8::is_ascii_digit).map(usize::from).sum();
                let bytes: Vec<u8> = (0..shape.iter().product::<usize>())
                    .flat_map(|i| (((i * 7 + layer * 3 + rows + salt) % 11) as f32 / 64.0).to_le_bytes())
                    .collect();
                all.push((
                    format!("base_model.model.model.layers.{layer}.{module}.{matrix}.weight"),
                    shape,
                    bytes,
                ));
            }
        }
    }
    let views = all.iter().map(|(n, s, b)| (n.clone(), TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("adapter_model.safetensors"), safetensors::serialize(views, None).unwrap())
        .unwrap();
    let names: BTreeSet<&str> = modules.iter().map(|m| m.0.rsplit('.').next().unwrap()).collect();
    let settings = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": names});
    std::fs::write(dir.join("adapter_config.json"), settings.to_string()).unwrap();
}

/// Two peft folders hold the same tensors.
fn same_adapters(want: &Path, got: &Path) {
    let bytes = |folder: &Path| std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let (want, got) = (bytes(want), bytes(got));
    let (want, got) = (
        safetensors::SafeTensors::deserialize(&want).unwrap(),
        safetensors::SafeTensors::deserialize(&got).unwrap(),
    );
    assert_eq!(want.len(), got.len());
    for (name, tensor) in want.tensors() {
        let other = got.tensor(&name).unwrap();
        assert_eq!(
            (tensor.shape(), tensor.dtype(), tensor.data()),
            (other.shape(), other.dtype(), other.data()),
            "{name}"
        );
    }
}

#[test]
fn adapters_that_are_kept_beside_the_weights_merge_alike_after_any_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    make_model(&path("hf"));
    make_adapter(&path("peft"), &WHOLE);
    let to = |name: &str| -> Vec<String> { vec!["--save".to_owned(), text(&path(name)).to_owned()] };
    let run = |args: &[&str], save: &str, more: &[&str]| {
        let args: Vec<String> = args.iter().chain(more).map(|a| (*a).to_owned()).chain(to(save)).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        ms_convert(&args).success();
    };
    let (hf, peft) = (path("hf"), path("peft"));
    run(&["hf", "hf", "--load", text(&hf), "--lora-load", text(&peft)], "merged", &[]);
    run(
        &["hf", "mcore", "--load", text(&hf), "--lora-load", text(&peft)],
        "a",
        &["--keep-adapters", "--tp", "2"],
    );
    let a = path("a");
    run(&["mcore", "mcore", "--load", text(&a)], "b", &["--keep-adapters", "--tp", "1", "--pp", "2"]);
    let b = path("b");
    let file =
        ms_ckpt::torch::TorchFile::open(&b.join("iter_0000001/mp_rank_00_001/model_optim_rng.pt")).unwrap();
    let model = file.root().get("model").unwrap();
    for name in ["base_layer.weight", "lora_A.default.weight", "lora_B.default.weight"] {
        assert!(model.get(&format!("decoder.layers.1.mlp.linear_fc2.{name}")).is_some(), "{name}");
    }
    assert_eq!(file.root().get("args").unwrap().get("lora_r").unwrap().to_json(), 2);
    for from in [&a, &b] {
        let out = format!("{}-merged", from.file_name().unwrap().to_str().unwrap());
        run(&["mcore", "hf", "--load", text(from)], &out, &[]);
        assert_eq!(values(&path(&out)), values(&path("merged")));
    }
    assert_ne!(values(&path("merged")), values(&hf));
}

#[test]
fn adapters_of_projections_are_kept_as_one_of_the_packed_parameter_and_come_apart_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    make_model(&path("hf"));
    make_adapter(&path("peft"), &[&WHOLE[..1], &PARTS].concat());
    let (hf, peft, kept) = (path("hf"), path("peft"), path("kept"));
    let convert = |args: &[&str], save: &Path| {
        let all: Vec<&str> = args.iter().copied().chain(["--save", text(save)]).collect();
        ms_convert(&all).success();
    };
    convert(&["hf", "hf", "--load", text(&hf), "--lora-load", text(&peft)], &path("merged"));
    let with = ["--lora-load", text(&peft), "--keep-adapters", "--tp", "2"];
    convert(&[&["hf", "mcore", "--load", text(&hf)][..], &with].concat(), &kept);
    let file =
        ms_ckpt::torch::TorchFile::open(&kept.join("iter_0000001/mp_rank_01/model_optim_rng.pt")).unwrap();
    let model = file.root().get("model").unwrap();
    for (name, shape) in [
        ("self_attention.linear_qkv.lora_A", [6usize, 64]),
        ("self_attention.linear_qkv.lora_B", [64, 6]),
        ("self_attention.linear_proj.lora_A", [6, 32]),
        ("mlp.linear_fc1.lora_B", [128, 6]),
    ] {
        let name = format!("decoder.layers.2.{name}.default.weight");
        let Some(ms_ckpt::torch::Node::Tensor(tensor)) = model.get(&name) else { panic!("{name}") };
        assert_eq!(file.view(&name, tensor).unwrap().shape, shape, "{name}");
    }
    let args = file.root().get("args").unwrap();
    let arg = |name: &str| args.get(name).unwrap().to_json();
    assert_eq!(
        (arg("lora_r"), arg("lora_alpha"), arg("ms_lora_block_rank")),
        (json!(6), json!(24.0), json!(2))
    );
    // Merged from there: the same sum.
    convert(&["mcore", "hf", "--load", text(&kept)], &path("kept-merged"));
    assert_eq!(values(&path("kept-merged")), values(&path("merged")));
    // And taken apart, from another cut: the same bytes and settings.
    convert(&["mcore", "mcore", "--load", text(&kept), "--keep-adapters", "--pp", "2"], &path("moved"));
    convert(&["mcore", "hf", "--load", text(&path("moved")), "--save-lora-to-hf"], &path("apart"));
    same_adapters(&path("peft"), &path("apart"));
    let settings: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path("apart/adapter_config.json")).unwrap()).unwrap();
    assert_eq!((&settings["r"], &settings["lora_alpha"]), (&json!(2), &json!(8)));
    assert_eq!(settings["target_modules"], json!(["gate_proj", "o_proj", "q_proj", "up_proj", "v_proj"]));
}

#[test]
fn adapters_of_experts_are_written_under_each_experts_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let experts =
        json!({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16});
    make_model_of(&path("hf"), "qwen3_moe", &experts);
    let modules: Vec<(String, usize, usize)> = (0..4)
        .flat_map(|e| [("gate_proj", 32, 64), ("up_proj", 32, 64), ("down_proj", 64, 32)].map(|m| (e, m)))
        .map(|(e, (module, rows, columns))| (format!("mlp.experts.{e}.{module}"), rows, columns))
        .collect();
    let named: Vec<(&str, usize, usize)> = modules.iter().map(|(m, r, c)| (m.as_str(), *r, *c)).collect();
    make_adapter(&path("peft"), &[&WHOLE[..1], &named].concat());
    let (hf, peft) = (path("hf"), path("peft"));
    let convert = |args: &[&str], save: &Path| {
        let all: Vec<&str> = args.iter().copied().chain(["--save", text(save)]).collect();
        ms_convert(&all)
    };
    convert(&["hf", "hf", "--load", text(&hf), "--lora-load", text(&peft)], &path("merged")).success();
    assert_ne!(values(&path("merged")), values(&hf));
    let with = ["hf", "mcore", "--load", text(&hf), "--lora-load", text(&peft), "--keep-adapters"];
    for (kept, more) in [
        ("single", &["--tp", "2", "--ep", "2"][..]),
        ("grouped", &["--tp", "2", "--ep", "2", "--moe-grouped-gemm"]),
        ("numbered", &["--ep", "2", "--moe-grouped-gemm", "--transformer-impl", "transformer_engine"]),
    ] {
        convert(&[&with[..], more].concat(), &path(kept)).success();
        let merged = path(&format!("{kept}-merged"));
        convert(&["mcore", "hf", "--load", text(&path(kept))], &merged).success();
        assert_eq!(values(&merged), values(&path("merged")), "{kept}");
    }
    // In Megatron's files: experts 2 and 3, rows of gate and up by halves, a rank for each of the two.
    let file = path("single/iter_0000001/mp_rank_01_001/model_optim_rng.pt");
    let file = ms_ckpt::torch::TorchFile::open(&file).unwrap();
    let model = file.root().get("model").unwrap();
    for (name, shape) in [
        ("linear_fc1.lora_A", [4usize, 64]),
        ("linear_fc1.lora_B", [32, 4]),
        ("linear_fc2.lora_A", [4, 16]),
        ("linear_fc2.lora_B", [64, 4]),
    ] {
        let name = format!("decoder.layers.2.mlp.experts.local_experts.1.{name}.default.weight");
        let Some(ms_ckpt::torch::Node::Tensor(tensor)) = model.get(&name) else { panic!("{name}") };
        assert_eq!(file.view(&name, tensor).unwrap().shape, shape, "{name}");
    }
    // Alone again, from another cut: the same bytes.
    let single = path("single");
    let moved = ["mcore", "mcore", "--load", text(&single), "--keep-adapters", "--ep", "4"];
    convert(&moved, &path("moved")).success();
    let alone = |from: &str| {
        convert(&["mcore", "hf", "--load", text(&path(from)), "--save-lora-to-hf"], &path("apart"))
    };
    alone("moved").success();
    same_adapters(&peft, &path("apart"));
    let settings = std::fs::read(path("apart/adapter_config.json")).unwrap();
    let settings: serde_json::Value = serde_json::from_slice(&settings).unwrap();
    assert_eq!(settings["target_modules"], json!(["down_proj", "gate_proj", "o_proj", "up_proj"]));
    // Of grouped experts upstream writes none.
    let refused = alone("grouped").code(1);
    let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(said.contains("decoder.layers.0.mlp.experts.weight1_lora_a"), "{said}");
    // One of the experts without an adapter is named.
    let all_but_one: Vec<_> = named.iter().filter(|m| !m.0.contains("experts.2.up")).copied().collect();
    make_adapter(&path("less"), &all_but_one);
    let refused =
        convert(&["hf", "hf", "--load", text(&hf), "--lora-load", text(&path("less"))], &path("no")).code(1);
    let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(said.contains("no adapter of model.layers.0.mlp.experts.2.up_proj"), "{said}");
}

#[test]
fn an_adapter_of_another_rank_than_its_settings_say_is_not_merged() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    make_model(&path("hf"));
    make_adapter(&path("peft"), &WHOLE);
    let (hf, peft, settings) = (path("hf"), path("peft"), path("peft/adapter_config.json"));
    let refused = |more: &serde_json::Value, want: &str| {
        let mut all: serde_json::Value = serde_json::from_slice(&std::fs::read(&settings).unwrap()).unwrap();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let kept = std::fs::read(&settings).unwrap();
        std::fs::write(&settings, all.to_string()).unwrap();
        let save = path("no");
        let args = ["hf", "hf", "--load", text(&hf), "--lora-load", text(&peft), "--save", text(&save)];
        let assert = ms_convert(&args).code(1);
        std::fs::write(&settings, kept).unwrap();
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains(want), "{said}");
        assert!(!save.exists());
    };
    refused(&json!({"r": 64}), "has rank 2, but adapter_config.json says r 64");
    refused(&json!({"init_lora_weights": "pissa"}), "init_lora_weights is \"pissa\": only plain LoRA");
}
