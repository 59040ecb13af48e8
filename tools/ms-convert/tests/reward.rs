//! Outcome reward models: the head is converted with the model, through any sharding and back.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::path::Path;

use assert_cmd::Command;
use ms_ckpt::torch::{Node, TorchFile};
use ms_core::DType;
use ms_spec::ModelConfig;
use serde_json::{Value, json};

fn config(tied: bool) -> ModelConfig {
    let json = json!({
        "model_type": "qwen2", "num_hidden_layers": 4, "hidden_size": 16, "intermediate_size": 24,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 36, "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16"
    });
    ModelConfig { reward: true, ..ms_spec::hf::read_config(&json).unwrap() }
}

/// A folder of `transformers`' class with one label.
fn model(dir: &Path, config: &ModelConfig) {
    let mut x = 7u32;
    ms_ckpt::write_hf(dir, config, DType::Bf16, false, &mut |spec| {
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((x >> 16) as u16 & 0xbfff).to_le_bytes()
        };
        Ok((0..spec.shape.numel()).flat_map(|_| next()).collect())
    })
    .unwrap();
}

fn convert(args: &str, load: &Path, save: &Path) -> assert_cmd::assert::Assert {
    let mut command = Command::cargo_bin("ms-convert").unwrap();
    command.args(args.split_whitespace()).arg("--load-dir").arg(load).arg("--save-dir").arg(save);
    command.assert()
}

/// The tensors of a rank file: name, shape, bytes.
fn tensors(file: &Path) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let torch = TorchFile::open(file).unwrap();
    let Some(Node::Dict(entries)) = torch.root().get("model") else { panic!("no model") };
    let mut all = Vec::new();
    for (name, node) in entries {
        let Node::Tensor(tensor) = node else { continue };
        let shape = torch.view(name, tensor).unwrap().shape;
        all.push((name.clone(), shape, torch.read(name, tensor).unwrap()));
    }
    all
}

#[test]
fn the_head_of_a_reward_model_is_cut_like_a_row_parallel_layer_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let hf = dir.path().join("hf");
    model(&hf, &config(false));
    let written: Value = serde_json::from_slice(&std::fs::read(hf.join("config.json")).unwrap()).unwrap();
    assert_eq!(written["architectures"], json!(["Qwen2ForSequenceClassification"]));
    assert_eq!(written["id2label"], json!({"0": "LABEL_0"}));
    let weights = std::fs::read(hf.join("model.safetensors")).unwrap();
    let parsed = safetensors::SafeTensors::deserialize(&weights).unwrap();
    assert!(parsed.tensor("lm_head.weight").is_err());
    let score = parsed.tensor("score.weight").unwrap();
    assert_eq!(score.shape(), [1, 16]);

    let mcore = dir.path().join("mcore");
    let upstream = "--use-mcore-models --model-type GPT --load-model-type hf --save-model-type mg --orm \
                    --model-type-hf llama2 --tokenizer-model x --params-dtype bf16 --add-qkv-bias \
                    --target-tensor-parallel-size 2 --target-pipeline-parallel-size 2";
    convert(upstream, &hf, &mcore).success();
    for t in 0..2 {
        let file = |p: usize| mcore.join(format!("iter_0000001/mp_rank_{t:02}_{p:03}/model_optim_rng.pt"));
        assert!(
            tensors(&file(0))
                .iter()
                .all(|(name, ..)| !name.starts_with("rm_head") && name != "output_layer.weight")
        );
        let last = tensors(&file(1));
        let find =
            |name: &str| last.iter().find(|x| x.0 == name).map(|x| (x.1.clone(), x.2.clone())).unwrap();
        assert_eq!(find("rm_head.weight"), (vec![1, 8], score.data()[t * 16..(t + 1) * 16].to_vec()));
        // What Hugging Face's class does not have is zero.
        assert_eq!(find("rm_head.bias"), (vec![1], vec![0; 2]));
        assert_eq!(find("output_layer.weight"), (vec![18, 16], vec![0; 18 * 16 * 2]));
    }
    convert("mcore hf --orm", &mcore, &dir.path().join("back")).success();
    assert_eq!(std::fs::read(dir.path().join("back/model.safetensors")).unwrap(), weights);
    // Through the other forms, in other cuts.
    for form in ["torch_dist --pp 2", "mcore --format safetensors --tp 2"] {
        let (other, back) = (dir.path().join(&form[..6]), dir.path().join(format!("{} back", &form[..6])));
        convert(&format!("mcore {form}"), &mcore, &other).success();
        convert("mcore hf", &other, &back).success();
        assert_eq!(std::fs::read(back.join("model.safetensors")).unwrap(), weights, "{form}");
    }
}

#[test]
fn a_tied_reward_model_has_no_output_layer_on_one_stage() {
    let dir = tempfile::tempdir().unwrap();
    let (hf, mcore) = (dir.path().join("hf"), dir.path().join("mcore"));
    model(&hf, &config(true));
    convert("hf mcore --orm", &hf, &mcore).success();
    let names: Vec<String> =
        tensors(&mcore.join("iter_0000001/mp_rank_00/model_optim_rng.pt")).into_iter().map(|x| x.0).collect();
    assert!(
        names.iter().any(|n| n == "rm_head.weight") && !names.iter().any(|n| n.starts_with("output_layer"))
    );
    convert("mcore hf", &mcore, &dir.path().join("back")).success();
    let weights = |folder: &str| std::fs::read(dir.path().join(folder).join("model.safetensors")).unwrap();
    assert_eq!(weights("hf"), weights("back"));
}

#[test]
fn what_is_no_reward_model_and_what_has_no_place_for_a_head_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, reward) = (dir.path().join("plain"), dir.path().join("reward"));
    model(&plain, &ModelConfig { reward: false, ..config(false) });
    model(&reward, &config(false));
    let message = |args: &str, from: &Path| {
        let out = convert(args, from, &dir.path().join("out")).code(1);
        assert!(!dir.path().join("out").exists());
        String::from_utf8_lossy(&out.get_output().stderr).into_owned()
    };
    let text = message("hf mcore --orm", &plain);
    assert!(text.contains("is not a reward model: there is no score.weight"), "{text}");
    let text = message("hf legacy --orm", &reward);
    assert!(text.contains("the legacy layout has no reward head"), "{text}");
}
