//! Mixtures of experts, through the program.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

mod made;

use std::collections::BTreeMap;
use std::path::Path;

use assert_cmd::Command;
use made::text;
use ms_testing::tree;
use serde_json::{Value, json};

fn ms_convert(args: &[&str]) -> assert_cmd::assert::Assert {
    Command::cargo_bin("ms-convert").unwrap().args(args).arg("--no-sync").assert()
}

/// DeepSeek-V3 in small, with its three leading dense layers and its prediction layer.
fn deepseek3(dir: &Path) {
    made::model(
        dir,
        &json!({
            "model_type": "deepseek_v3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6,
            "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64, "q_lora_rank": 16, "kv_lora_rank": 16,
            "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 3,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 16,
            "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
            "num_nextn_predict_layers": 1, "max_position_embeddings": 64
        }),
    );
}

/// The names of all tensors in the files of a folder.
fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        ms_ckpt::open(dir).unwrap().stored().map(|tensor| tensor.name.to_owned()).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn grouped_experts_move_to_any_cut_as_if_they_came_from_the_original() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    deepseek3(&path("deepseek3"));
    let mixtral = ms_testing::golden_model("mixtral").unwrap();
    let wide = [("1", "1"), ("4", "1"), ("1", "4"), ("2", "2"), ("2", "1"), ("4", "4")];
    let narrow = [("1", "1"), ("1", "2"), ("1", "4"), ("2", "2"), ("2", "1"), ("2", "4")];
    for (model, hf, cuts) in [("deepseek3", path("deepseek3"), wide), ("mixtral", mixtral, narrow)] {
        for (form, flags) in [
            ("v2", &["--upstream", "v2.0.0"][..]),
            ("te", &["--upstream", "head", "--transformer-impl", "transformer_engine"]),
        ] {
            let convert = |from: &str, load: &Path, save: &Path, (tp, ep): (&str, &str)| {
                let cut = ["--tp", tp, "--ep", ep, "--moe-grouped-gemm", "--save", text(save)];
                ms_convert(&[&[from, "mcore", "--load", text(load)], &cut[..], flags].concat()).success();
            };
            let of = |(tp, ep): (&str, &str)| path(&format!("{model}-{form}-{tp}-{ep}"));
            [0, 2, 3, 4, 5].into_iter().for_each(|i| convert("hf", &hf, &of(cuts[i]), cuts[i]));
            for (from, to) in [(0, 3), (2, 4), (3, 5), (5, 0)] {
                let moved = path("moved");
                convert("mcore", &of(cuts[from]), &moved, cuts[to]);
                let (want, got) = (tree(&of(cuts[to])), tree(&moved));
                assert_eq!(want.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>());
                for (file, bytes) in &want {
                    assert!(got[file] == *bytes, "{model} {form} {:?} {:?} {file:?}", cuts[from], cuts[to]);
                }
                std::fs::remove_dir_all(&moved).unwrap();
            }
        }
    }
}

#[test]
fn how_experts_are_to_be_shared_out_says_nothing_of_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: String| dir.path().join(name);
    let mixtral = ms_testing::golden_model("mixtral").unwrap();
    for modules in ["local", "transformer_engine"] {
        let grouped = ["--tp", "2", "--moe-grouped-gemm", "--transformer-impl", modules];
        let convert = |from: &str, load: &Path, name: &str, more: &[&str]| {
            let save = path(format!("{modules}-{name}"));
            let args = [&[from, "mcore", "--load", text(load), "--save", text(&save)], &grouped[..], more];
            ms_convert(&args.concat()).success();
            ms_convert(&["diff", text(&mixtral), text(&save)]).success();
            save
        };
        let cut = convert("hf", &mixtral, "cut", &[]);
        let whole = convert("mcore", &cut, "whole", &["--moe-tp-extend-ep"]);
        // As upstream's arguments have it.
        let said = ms_ckpt::open(&whole).unwrap().args()["expert_tensor_parallel_size"].clone();
        assert_eq!(said, 2);
        convert("mcore", &whole, "again", &[]);
        // Nor where the files do not say it.
        let unsaid = convert("hf", &mixtral, "unsaid", &["--no-args"]);
        convert("mcore", &unsaid, "of-unsaid", &["--moe-tp-extend-ep"]);
    }
    // Of a model without experts it says nothing at all.
    let dense = ms_testing::golden_model("qwen2").unwrap();
    let [cut, again] = ["dense", "dense-again"].map(|name| path(name.to_owned()));
    ms_convert(&["hf", "mcore", "--load", text(&dense), "--save", text(&cut), "--tp", "2", "--no-args"])
        .success();
    let hinted = ["mcore", "hf", "--load", text(&cut), "--save", text(&again), "--moe-tp-extend-ep"];
    ms_convert(&hinted).success();
    ms_convert(&["diff", text(&dense), text(&again)]).success();
}

#[test]
fn experts_shared_out_are_found_where_files_tell_and_else_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let mixtral = ms_testing::golden_model("mixtral").unwrap();
    let (cut, hf) = (dir.path().join("cut"), dir.path().join("hf"));
    let one_key_each = ["--transformer-impl", "transformer_engine", "--upstream", "head"];
    let extended = "--moe-tp-extend-ep";
    // Grouped experts as parts of all and as fewer whole ones have the same shapes; with a key each their number tells, and
    // so do four experts that eight ranks cannot share out.
    for (form, ep, written, read, right, warned) in [
        (&[][..], "2", &[][..], &[][..], true, true),
        (&[], "2", &[extended], &[], false, true),
        (&[], "2", &[extended], &[extended], true, false),
        (&[], "4", &[], &[], true, false),
        (&[], "4", &[], &[extended], true, false),
        (&one_key_each, "2", &[], &[], true, false),
        (&one_key_each, "2", &[], &[extended], true, false),
        (&one_key_each, "2", &[extended], &[], true, false),
        (&one_key_each, "2", &[extended], &[extended], true, false),
    ] {
        let from = ["hf", "mcore", "--load", text(&mixtral), "--save", text(&cut), "--no-args"];
        let sizes = ["--tp", "2", "--ep", ep, "--moe-grouped-gemm", "--force"];
        ms_convert(&[&from[..], &sizes, form, written].concat()).success();
        let to = ["mcore", "hf", "--load", text(&cut), "--save", text(&hf), "--force"];
        let case = format!("{form:?} {ep} {written:?} {read:?}");
        let said = ms_convert(&[&to[..], read].concat()).success();
        let said = String::from_utf8_lossy(&said.get_output().stderr).into_owned();
        let times = said.matches("pass --moe-tp-extend-ep where they are read").count();
        assert_eq!(times, usize::from(warned), "{case}: {said}");
        ms_convert(&["diff", text(&mixtral), text(&hf)]).code(i32::from(!right));
    }
    // Experts that cannot be cut so are shared out.
    let odd = dir.path().join("odd");
    let width = json!({
        "model_type": "mixtral", "hidden_size": 16, "intermediate_size": 21, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
        "max_position_embeddings": 64
    });
    made::model(&odd, &width);
    let from = ["hf", "mcore", "--load", text(&odd), "--save", text(&cut), "--no-args", "--force"];
    let sizes = ["--tp", "2", "--ep", "2", "--moe-grouped-gemm", extended];
    ms_convert(&[&from[..], &sizes].concat()).success();
    let to = ["mcore", "hf", "--load", text(&cut), "--save", text(&hf), "--force"];
    let said = ms_convert(&to).success();
    assert!(!String::from_utf8_lossy(&said.get_output().stderr).contains(extended));
    ms_convert(&["diff", text(&odd), text(&hf)]).success();
    // Files with arguments say it.
    let from =
        ["hf", "mcore", "--load", text(&mixtral), "--save", text(&cut), "--tp", "2", "--moe-grouped-gemm"];
    ms_convert(&[&from[..], &["--force"]].concat()).success();
    let said = ms_convert(&["verify", text(&cut)]).success();
    assert!(!String::from_utf8_lossy(&said.get_output().stderr).contains(extended));
    // Arguments without it are those of a program that does not have it, whatever the flag says.
    for name in tree(&cut).into_keys() {
        let file = cut.join(&name);
        if name.ends_with(ms_ckpt::CHECKSUMS) {
            std::fs::remove_file(file).unwrap();
        } else if file.extension().is_some_and(|ending| ending == "pt") {
            let mut bytes = std::fs::read(&file).unwrap();
            let at = bytes.windows(16).position(|w| w == b"moe_tp_extend_ep").unwrap();
            bytes[at..][..16].copy_from_slice(b"unknown_argument");
            std::fs::write(file, bytes).unwrap();
        }
    }
    let to = ["mcore", "hf", "--load", text(&cut), "--save", text(&hf), "--force", extended];
    ms_convert(&to).success();
    ms_convert(&["diff", text(&mixtral), text(&hf)]).success();
    ms_convert(&[&from[..], &["--no-args", "--force"]].concat()).success();
    let said = ms_convert(&["verify", text(&cut)]).success();
    assert!(String::from_utf8_lossy(&said.get_output().stderr).contains(extended));
}

#[test]
fn the_scripts_for_deepseek_v3_keep_the_layers_that_they_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    deepseek3(&path("hf"));
    let script = |load: &str, save: &str, flags: &str| {
        let (load, save) = (path(load), path(save));
        let flags: Vec<&str> = flags.split_whitespace().collect();
        ms_convert(&[&["--load-dir", text(&load), "--save-dir", text(&save)], &flags[..]].concat()).success();
    };
    // Eight slots, two of them empty, and no prediction layer, which was not requested.
    script("hf", "all", "--num-layers 8 --noop-layers 6,7 --target-pipeline-parallel-size 2");
    let of = |name: &str| -> BTreeMap<String, usize> {
        let mut layers = BTreeMap::new();
        for name in names(&path(name)) {
            let layer = name.split(".self_attention").next().unwrap().to_owned();
            *layers.entry(layer).or_default() += usize::from(name.contains("linear_qkv.weight"));
        }
        layers.retain(|_, n| *n > 0);
        layers
    };
    assert_eq!(of("all").len(), 4, "{:?}", of("all")); // slots 0 to 3 of the first stage, 0 and 1 of the second
    assert!(names(&path("all")).iter().all(|name| !name.starts_with("mtp")));
    // The first of the dense layers and the two after the third: the fourth and fifth of the model.
    script("hf", "few", "--num-layers 3 --first-k-dense-replace 1");
    let config: Value = serde_json::from_slice(&std::fs::read(path("few/config.json")).unwrap()).unwrap();
    let counts = ["num_hidden_layers", "first_k_dense_replace", "num_nextn_predict_layers"];
    assert_eq!(counts.map(|key| config[key].as_u64().unwrap()), [3, 1, 0]);
    let few = ms_ckpt::open(&path("few")).unwrap();
    let whole = ms_ckpt::open(&path("hf")).unwrap();
    for (here, there) in [(0, 0), (1, 3), (2, 4)] {
        let read = |checkpoint: &ms_ckpt::Checkpoint, layer: usize| {
            let name = format!("decoder.layers.{layer}.self_attention.linear_proj.weight");
            let spec = ms_spec::params(checkpoint.config()).into_iter().find(|s| s.name == name).unwrap();
            let mut values = vec![0; 4 * spec.shape.numel()];
            let whole = ms_core::Region::whole(&spec.shape);
            checkpoint.read(&spec, &whole, ms_core::DType::F32, &mut values).unwrap();
            values
        };
        assert_eq!(read(&few, here), read(&whole, there), "layer {here}");
    }
    // Upstream leaves the configuration as it was, which says more layers than the files have, and a prediction layer: the flags
    // say how many are there, of the other script and of the general converter.
    script("hf", "four", "--num-layers 4 --target-tensor-parallel-size 2");
    std::fs::copy(path("hf/config.json"), path("four/config.json")).unwrap();
    script("four", "back4", "--source-tensor-parallel-size 2 --num-layers 4");
    let (four, hf, general) = (path("four"), path("hf"), path("general"));
    std::fs::remove_file(path("four/config.json")).unwrap();
    let folders = ["--load", text(&four), "--hf-cfg-dir", text(&hf), "--save", text(&general)];
    ms_convert(&[&["mcore", "hf", "--upstream", "head", "--num-layers", "4"], &folders[..]].concat())
        .success();
    for name in ["back4", "general"] {
        let config: Value =
            serde_json::from_slice(&std::fs::read(path(name).join("config.json")).unwrap()).unwrap();
        assert_eq!(counts.map(|key| config[key].as_u64().unwrap()), [4, 3, 0], "{name}");
        let back = ms_ckpt::open(&path(name)).unwrap();
        let specs = ms_spec::params(back.config());
        for spec in specs.iter().filter(|spec| spec.name.contains(".layers.3.")) {
            let whole_spec =
                ms_spec::params(whole.config()).into_iter().find(|s| s.name == spec.name).unwrap();
            let read = |checkpoint: &ms_ckpt::Checkpoint, spec: &ms_spec::ParamSpec| {
                let mut values = vec![0; 4 * spec.shape.numel()];
                let region = ms_core::Region::whole(&spec.shape);
                checkpoint.read(spec, &region, ms_core::DType::F32, &mut values).unwrap();
                values
            };
            assert_eq!(read(&back, spec), read(&whole, &whole_spec), "{name}: {}", spec.name);
        }
    }
    // What the flags do not fit either is said of them.
    let wrong =
        [&["mcore", "hf", "--upstream", "head", "--num-layers", "5", "--force"], &folders[..]].concat();
    let said = ms_convert(&wrong).code(1);
    let said = String::from_utf8_lossy(&said.get_output().stderr).into_owned();
    assert!(said.contains("4 layers are there, the model has 5"), "{said}");
    // And back, as the other script writes: a file for each layer with experts, the dense ones in the first.
    script("hf", "mtp", "--num-layers 6 --num-nextn-predict-layers 1 --target-tensor-parallel-size 2");
    script("mtp", "back", "--source-tensor-parallel-size 2 --num-layers 6 --num-nextn-predict-layers 1");
    let index = std::fs::read(path("back/model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let file = |name: &str| index["weight_map"][name].as_str().unwrap().to_owned();
    for (name, want) in [
        ("model.embed_tokens.weight", 1),
        ("model.layers.0.mlp.down_proj.weight", 1),
        ("model.layers.3.mlp.gate.weight", 1),
        ("model.layers.4.mlp.experts.7.up_proj.weight", 2),
        ("model.layers.5.input_layernorm.weight", 3),
        ("lm_head.weight", 3),
        ("model.layers.6.eh_proj.weight", 4),
    ] {
        assert_eq!(file(name), format!("model-{want:05}-of-000004.safetensors"), "{name}");
    }
    ms_convert(&["diff", text(&path("hf")), text(&path("back"))]).success();
}

#[test]
fn the_script_for_deepseek_v3_stores_all_linear_layers_as_codes() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    deepseek3(&path("hf"));
    let codes = |save: &str, args: &[&str]| {
        let (load, save) = (path("hf"), path(save));
        let folders = ["--load-dir", text(&load), "--save-dir", text(&save), "--qlora-nf4"];
        ms_convert(&[args, &folders].concat()).success();
        let file = save.join("iter_0000001/mp_rank_00/model_optim_rng.pt");
        let file = ms_ckpt::torch::TorchFile::open(&file).unwrap();
        let model = file.root().get("model").unwrap();
        let stems = [
            "decoder.layers.0.self_attention.linear_qkv.weight",
            "decoder.layers.3.mlp.experts.local_experts.0.linear_fc1.weight",
            "mtp_layers.0.eh_proj.weight",
            "output_layer.weight",
            "decoder.layers.3.mlp.router.weight",
            "embedding.word_embeddings.weight",
        ];
        stems.map(|stem| model.get(&format!("{stem}.absmax")).is_some())
    };
    let script = ["--num-layers", "6", "--num-nextn-predict-layers", "1"];
    assert_eq!(codes("script", &script), [true, true, true, true, false, false]);
    // The general converter: those that ranks share alone.
    let general = ["hf", "mcore", "--upstream", "v2.0.0", "--num-nextn-predict-layers", "1"];
    assert_eq!(codes("general", &general), [false, true, false, false, false, false]);
}

#[test]
fn what_a_layout_has_no_words_for_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [mixtral, biased] = ["mixtral", "gpt_oss"].map(|name| ms_testing::golden_model(name).unwrap());
    for (load, args, said) in [
        (&mixtral, "hf legacy", "the legacy layout only holds dense models"),
        (
            &biased,
            "hf mcore --upstream v2.0.0 --moe-grouped-gemm",
            "grouped experts have no biases: write sequential ones",
        ),
        (
            &mixtral,
            "hf mcore --tp 2 --moe-tp-extend-ep",
            "experts shared out over tensor-parallel ranks are grouped: pass --moe-grouped-gemm",
        ),
    ] {
        let save = dir.path().join("out");
        let args: Vec<&str> = args.split(' ').chain(["--load", text(load), "--save", text(&save)]).collect();
        let done = ms_convert(&args).code(1);
        let message = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert!(message.contains(said), "{args:?}: {message}");
        assert!(!save.exists(), "{args:?}");
    }
}
