//! Hugging Face folders whose files contradict their configuration.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::collections::BTreeMap;
use std::path::Path;

use assert_cmd::Command;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use serde_json::{Value, json};

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn read(dir: &Path) -> Tensors {
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let parsed = SafeTensors::deserialize(&bytes).unwrap();
    parsed.iter().map(|(n, t)| (n.to_owned(), (t.dtype(), t.shape().to_vec(), t.data().to_vec()))).collect()
}

fn write(dir: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(n, (d, s, x))| (n, TensorView::new(*d, s.clone(), x).unwrap()));
    serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
}

fn config(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap()
}

/// A folder with the weights of a sample, and `fields` in its configuration.
fn folder(dir: &Path, fields: &Value) {
    let sample = ms_testing::golden_model("qwen2_moe").unwrap();
    std::fs::create_dir(dir).unwrap();
    let mut json = config(&sample);
    json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    std::fs::write(dir.join("config.json"), json.to_string()).unwrap();
    std::fs::copy(sample.join("model.safetensors"), dir.join("model.safetensors")).unwrap();
}

/// Converts a folder; what was said.
fn convert(words: &[&str], load: &Path, save: &Path) -> String {
    let mut command = Command::cargo_bin("ms-convert").unwrap();
    let done = command.args(words).arg("--load").arg(load).arg("--save").arg(save).assert().success();
    String::from_utf8_lossy(&done.get_output().stderr).into_owned()
}

/// Converts a folder to Megatron's form and back; what was said on the way there.
fn there_and_back(hf: &Path, mcore: &Path, again: &Path) -> String {
    let said = convert(&["hf", "mcore"], hf, mcore);
    convert(&["mcore", "hf"], mcore, again);
    said
}

#[test]
fn another_type_is_named_by_what_describes_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    folder(&path("hf"), &json!({"torch_dtype": "bfloat16"}));
    for (dtype, name, stored) in [("fp16", "float16", Dtype::F16), ("fp32", "float32", Dtype::F32)] {
        let [mcore, again, bare] =
            ["mcore", "again", "bare"].map(|folder| path(&format!("{dtype} {folder}")));
        convert(&["hf", "mcore", "--dtype", dtype], &path("hf"), &mcore);
        assert_eq!(config(&mcore)["torch_dtype"], name);
        convert(&["mcore", "hf"], &mcore, &again);
        // Nor is there another type without the configuration.
        std::fs::remove_file(mcore.join("config.json")).unwrap();
        convert(&["mcore", "hf"], &mcore, &bare);
        for folder in [again, bare] {
            assert_eq!(config(&folder)["torch_dtype"], name, "{}", folder.display());
            assert!(read(&folder).values().all(|(found, ..)| *found == stored));
        }
    }
}

#[test]
fn an_output_layer_of_its_own_stays_although_the_configuration_ties_it() {
    let dir = tempfile::tempdir().unwrap();
    let [hf, mcore, again] = ["hf", "mcore", "again"].map(|name| dir.path().join(name));
    folder(&hf, &json!({"tie_word_embeddings": true}));
    std::fs::write(hf.join("results.json"), "{}").unwrap();
    std::fs::write(hf.join("special_tokens_map.json"), "{}").unwrap();
    let said = there_and_back(&hf, &mcore, &again);
    assert!(said.contains("lm_head.weight has other values than model.embed_tokens.weight"), "{said}");
    assert_eq!(read(&hf), read(&again));
    assert_eq!(config(&again)["tie_word_embeddings"], json!(false));
    // Of other files those of a model or a tokenizer go along.
    assert!(again.join("special_tokens_map.json").is_file() && !mcore.join("results.json").exists());

    // The same values, and the output layer alone: one matrix.
    let [same, alone] = ["same", "alone"].map(|name| dir.path().join(name));
    let mut tensors = read(&hf);
    let words = tensors["model.embed_tokens.weight"].clone();
    for dir in [&same, &alone] {
        folder(dir, &json!({"tie_word_embeddings": true}));
        tensors.insert("lm_head.weight".to_owned(), words.clone());
        write(dir, &tensors);
        tensors.remove("model.embed_tokens.weight");
    }
    for hf in [&same, &alone] {
        let [mcore, again] = ["mcore", "again"].map(|name| hf.with_extension(name));
        let said = there_and_back(hf, &mcore, &again);
        assert!(!said.contains("other values"), "{said}");
        assert_eq!(read(&again)["model.embed_tokens.weight"], words);
        assert_eq!(config(&again)["tie_word_embeddings"], json!(true));
    }
}

#[test]
fn parts_of_several_types_are_joined_in_one_that_holds_both() {
    let dir = tempfile::tempdir().unwrap();
    let [hf, mcore, again] = ["hf", "mcore", "again"].map(|name| dir.path().join(name));
    folder(&hf, &json!({}));
    let mut tensors = read(&hf);
    let up = "model.layers.0.self_attn.k_proj.weight";
    let (dtype, shape, data) = tensors[up].clone();
    assert_eq!(dtype, Dtype::BF16);
    // Numbers that bfloat16 does not have.
    let values: Vec<f32> = data
        .as_chunks::<2>()
        .0
        .iter()
        .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16) * 1.001)
        .collect();
    let wide: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensors.insert(up.to_owned(), (Dtype::F32, shape.clone(), wide.clone()));
    write(&hf, &tensors);
    there_and_back(&hf, &mcore, &again);
    assert_eq!(read(&again)[up], (Dtype::F32, shape, wide));
}

#[test]
fn a_tensor_is_not_taken_for_a_tied_output_layer_since_its_name_has_the_word() {
    let dir = tempfile::tempdir().unwrap();
    for (sample, foreign) in [
        (
            "bloom",
            ["transformer.h.0.head_scale.weight", "transformer.h.0.headed.bias", "score_head.attn.bias"],
        ),
        ("gemma", ["v_head.weight", "model.layers.0.heads.inv_freq_scale", "lm_head.bias"]),
    ] {
        let [hf, mcore, again] = ["hf", "mcore", "again"].map(|form| dir.path().join(sample).join(form));
        std::fs::create_dir_all(&hf).unwrap();
        let model = ms_testing::golden_model(sample).unwrap();
        std::fs::copy(model.join("config.json"), hf.join("config.json")).unwrap();
        let own = read(&model);
        let mut tensors = own.clone();
        for name in foreign {
            tensors.insert(name.to_owned(), (Dtype::F32, vec![2], vec![0; 8]));
        }
        // The output layer that is tied, a causal mask and frequencies are no loss.
        let embedding = own.iter().find(|(name, _)| name.contains("embed") && name.ends_with("s.weight"));
        tensors.insert("lm_head.weight".to_owned(), embedding.unwrap().1.clone());
        tensors.insert("model.layers.0.rotary_emb.inv_freq".to_owned(), (Dtype::F32, vec![2], vec![0; 8]));
        tensors.insert("h.0.attn.bias".to_owned(), (Dtype::U8, vec![1, 1, 2, 2], vec![0; 4]));
        write(&hf, &tensors);
        let said = there_and_back(&hf, &mcore, &again);
        let mut sorted = foreign;
        sorted.sort_unstable();
        let want = format!("left out, since they are not part of the model: {}\n", sorted.join(", "));
        assert!(said.contains(&want), "{sample}: {said}");
        assert_eq!(read(&again), own, "{sample}");
        // A folder that is laid out like the other says so, too.
        let like = dir.path().join(sample).join("like");
        let mut command = Command::cargo_bin("ms-convert").unwrap();
        let words = ["hf", "hf", "--dtype", "fp32", "--load"];
        let done = command.args(words).arg(&hf).arg("--save").arg(&like).assert().success();
        let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert!(
            said.contains(&want)
                && said.contains("which the model does not have; laid out by default instead"),
            "{said}"
        );
    }
}

#[test]
fn the_index_of_another_type_says_how_many_bytes_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let sample = ms_testing::golden_model("mixtral").unwrap();
    let index = |dir: &Path| std::fs::read_to_string(dir.join("model.safetensors.index.json")).unwrap();
    let converted = |name: &str, more: &[&str]| {
        let save = dir.path().join(name);
        let mut command = Command::cargo_bin("ms-convert").unwrap();
        command.args(["hf", "hf", "--load"]).arg(&sample).arg("--save").arg(&save).args(more);
        command.assert().success();
        index(&save)
    };
    assert_eq!(converted("same", &[]), index(&sample));
    let wide: Value = serde_json::from_str(&converted("wide", &["--dtype", "fp32"])).unwrap();
    let was: Value = serde_json::from_str(&index(&sample)).unwrap();
    assert_eq!(
        wide["metadata"]["total_size"].as_u64(),
        was["metadata"]["total_size"].as_u64().map(|n| 2 * n)
    );
    assert_eq!(wide["weight_map"], was["weight_map"]);
}

#[test]
fn rows_that_are_left_out_are_not_counted_in_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let sample = ms_testing::golden_model("qwen2_moe").unwrap();
    let whole = config(&sample)["vocab_size"].as_u64().unwrap();
    let convert = |words: [&str; 2], load: &Path, name: &str, more: &[&str]| {
        let save = dir.path().join(name);
        let mut command = Command::cargo_bin("ms-convert").unwrap();
        command.args(words).arg("--load").arg(load).arg("--save").arg(&save).args(more).assert().success();
        save
    };
    let rows = |folder: &Path| {
        let (says, has) =
            (config(folder)["vocab_size"].as_u64().unwrap(), &read(folder)["model.embed_tokens.weight"].1);
        assert_eq!(says, has[0] as u64);
        says
    };
    let fewer = ["--true-vocab-size", "100"];
    assert_eq!(rows(&convert(["hf", "hf"], &sample, "hf", &fewer)), 100);
    let mcore = convert(["hf", "mcore"], &sample, "mcore", &[]);
    assert_eq!(rows(&convert(["mcore", "hf"], &mcore, "whole", &[])), whole);
    assert_eq!(rows(&convert(["mcore", "hf"], &mcore, "cut", &fewer)), 100);
    let padded =
        convert(["hf", "mcore"], &sample, "padded", &[&fewer[..], &["--padded-vocab-size", "104"]].concat());
    assert_eq!(rows(&convert(["mcore", "hf"], &padded, "back", &[])), 100);
}

#[test]
fn the_folder_of_an_iteration_is_converted_by_its_name_alone() {
    let dir = tempfile::tempdir().unwrap();
    let sample = ms_testing::workspace_root().join("tests/golden/torch_dist");
    let run = |at: &Path, load: &str, save: &str| {
        let mut command = Command::cargo_bin("ms-convert").unwrap();
        command.current_dir(at).args(["torch_dist", "hf", "--load", load, "--save"]);
        command.arg(dir.path().join(save)).assert().success();
    };
    // One holds its config.json; the others are described by their arguments.
    for (load, save) in [("fsdp2", "a"), (".", "b"), ("../torch_dist/fsdp2", "c")] {
        run(&if load == "." { sample.join("fsdp2") } else { sample.clone() }, load, save);
        assert_eq!(read(&dir.path().join(save)), read(&dir.path().join("a")));
        assert_eq!(config(&dir.path().join(save))["model_type"], config(&sample.join("fsdp2"))["model_type"]);
    }
    run(&sample.join("dense"), "iter_0000003", "d");
    run(&sample, "dense", "e");
    assert_eq!(read(&dir.path().join("d")), read(&dir.path().join("e")));
}

#[test]
fn a_kept_layout_that_is_damaged_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let [hf, mcore, again] = ["hf", "mcore", "again"].map(|name| dir.path().join(name));
    folder(&hf, &json!({}));
    there_and_back(&hf, &mcore, &again);
    let kept = mcore.join("hf_layout.json");
    let sound: Value = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    let convert = |layout: &Value| {
        std::fs::write(&kept, layout.to_string()).unwrap();
        let mut command = Command::cargo_bin("ms-convert").unwrap();
        command.args(["mcore", "hf", "--force", "--load"]).arg(&mcore).arg("--save").arg(&again).assert()
    };
    for (at, value) in [(0, ""), (0, "../model.safetensors"), (0, "config.json"), (1, "{")] {
        let mut layout = sound.clone();
        layout["files"][0][at] = json!(value);
        let failed = convert(&layout).code(1);
        let said = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(said.contains("hf_layout.json"), "{value}: {said}");
    }
    // Bytes from behind to before: such a header is not kept.
    let mut layout = sound.clone();
    let mut header: Value = serde_json::from_str(sound["files"][0][1].as_str().unwrap()).unwrap();
    for (_, entry) in header.as_object_mut().unwrap().iter_mut().filter(|(name, _)| *name != "__metadata__") {
        entry["data_offsets"].as_array_mut().unwrap().reverse();
    }
    layout["files"][0][1] = json!(header.to_string());
    convert(&layout).success();
    assert_eq!(read(&hf), read(&again));
}
