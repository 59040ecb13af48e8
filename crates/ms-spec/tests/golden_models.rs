//! The parameter table compared with real models and upstream's own checkpoints.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::collections::BTreeMap;

use ms_core::{Grid, GridRules, GridSizes};
use ms_spec::{Family, Init, ModelConfig, Role, check_cut, hf, local, megatron, params};
use ms_testing::golden;
use proptest::prelude::*;
use serde_json::{Value, json};

fn read(path: &std::path::Path) -> Value {
    hf::parse_json(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The folders of all sample models.
fn samples() -> Vec<std::path::PathBuf> {
    let mut models: Vec<_> =
        ms_testing::golden_models().iter().filter_map(|name| ms_testing::golden_model(name)).collect();
    models.sort();
    models
}

/// Elements of every tensor in a safetensors folder.
fn elements(model: &std::path::Path) -> usize {
    let mut total = 0;
    for entry in std::fs::read_dir(model).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("model") || !name.ends_with(".safetensors") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        for (name, tensor) in header.as_object().unwrap() {
            if name != "__metadata__" {
                let shape = tensor["shape"].as_array().unwrap();
                total += shape.iter().map(|n| n.as_u64().unwrap() as usize).product::<usize>();
            }
        }
    }
    total
}

fn tensor_parallel(tp: usize) -> Grid {
    Grid::new(tp, &GridSizes { tp, ..GridSizes::default() }, GridRules::V2).unwrap()
}

#[test]
fn parameter_counts_equal_those_of_the_sample_models() {
    let mut compared = 0;
    for model in samples() {
        let want = elements(&model);
        if want == 0 {
            continue; // a folder of .bin files: the conversion tests read those
        }
        let config = hf::read_config(&read(&model.join("config.json"))).unwrap();
        let got: usize = params(&config).iter().map(|p| p.shape.numel()).sum();
        assert_eq!(got, want, "{}", model.display());
        compared += 1;
    }
    assert!(compared >= 20);
}

#[test]
fn what_is_no_bias_and_has_two_dimensions_decays() {
    // Megatron-LM core_v0.12.1, `megatron/core/optimizer/__init__.py`, `_get_param_groups`.
    for model in samples() {
        let config = hf::read_config(&read(&model.join("config.json"))).unwrap();
        for spec in params(&config).iter().filter(|spec| !spec.integral) {
            // One bias of every expert, which upstream's are apart.
            let vector = spec.shape.len() == 1 || spec.name.ends_with(".bias");
            assert_eq!(spec.decay, !vector, "{} {}", model.display(), spec.name);
        }
    }
}

#[test]
fn modules_that_upstream_draws_uniformly_begin_so() {
    let xavier = [
        ".linear_qkv.weight",
        ".linear_q.weight",
        ".linear_kv.weight",
        ".wq_b.weight",
        ".wk.weight",
        ".weights_proj.weight",
        ".wkv.weight",
        ".wgate.weight",
        ".hc_fn.weight",
    ];
    let mut found = vec![0; xavier.len() + 2];
    for name in ["deepseek_v2", "deepseek_v32", "deepseek_v4", "qwen2_moe", "mamba2"] {
        let config = hf::read_config(&read(&golden("models").join(name).join("config.json"))).unwrap();
        for spec in params(&config) {
            let sum = spec.shape.iter().sum::<usize>() as f64;
            if config.mla().is_none() && spec.name.ends_with("linear_qkv.weight") {
                continue;
            }
            let bound = if let Some(i) = xavier.iter().position(|end| spec.name.ends_with(end)) {
                found[i] += 1;
                (6.0 / sum).sqrt() // torch.nn.init.xavier_uniform_
            } else if spec.name.ends_with("shared_experts.gate_weight") {
                found[xavier.len()] += 1;
                (config.hidden as f64).sqrt().recip() // torch.nn.Linear
            } else if spec.name.ends_with("conv1d.bias") {
                found[xavier.len() + 1] += 1;
                (config.mamba2.as_ref().unwrap().conv as f64).sqrt().recip() // torch.nn.Conv1d
            } else {
                continue;
            };
            let Init::Uniform { bound: got } = spec.init else { panic!("{name}: {}", spec.name) };
            assert!((got - bound).abs() < 1e-12, "{name}: {}", spec.name);
        }
    }
    assert!(found.iter().all(|&n| n > 0), "{found:?}");
}

#[test]
fn what_changes_a_parameter_follows_from_what_it_is() {
    use ms_core::UpdatedBy;
    let mut found = BTreeMap::new();
    for model in samples() {
        let config = hf::read_config(&read(&model.join("config.json"))).unwrap();
        for spec in params(&config) {
            let want = match spec.slot.role {
                Role::ExpertBias => UpdatedBy::ExpertLoad,
                Role::Tid2Eid => UpdatedBy::Nothing,
                _ => UpdatedBy::Gradient,
            };
            assert_eq!(spec.updated_by, want, "{}: {}", model.display(), spec.name);
            assert_eq!(spec.integral, spec.slot.role == Role::Tid2Eid, "{}", spec.name);
            *found.entry(format!("{want:?}")).or_insert(0) += 1;
        }
    }
    assert_eq!(found.len(), 3, "{found:?}");
}

/// What two releases of transformers save for the same arguments, and a file that says the arguments alone, describe one
/// model: the reader knows both dialects, and assumes of silence what the class does.
#[test]
fn files_of_two_releases_of_transformers_and_silent_ones_are_read_alike() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/configs");
    let [old, new] =
        ["transformers-4.57.6.json", "transformers-5.23.0.json"].map(|name| read(&folder.join(name)));
    let model = |json: &Value| {
        let mut c = hf::read_config(json).unwrap_or_else(|e| panic!("{json}: {e}"));
        // Only the newer release says how many prediction layers there are, whether or not there are weights for them.
        (c.mtp, c.dtype, c.bos, c.eos) = (0, None, None, Vec::new());
        c
    };
    for (model_type, case) in new.as_object().unwrap() {
        let said = model(&case["saved"]);
        assert_eq!(model(&case["given"]), said, "{model_type}: a silent file");
        if let Some(before) = old.get(model_type) {
            assert_eq!(model(&before["saved"]), said, "{model_type}: transformers 4");
        }
    }
    assert!(new.as_object().unwrap().len() >= 30);
}

#[test]
fn every_family_reads_back_what_it_writes_in_both_dialects() {
    for model in samples() {
        let config = hf::read_config(&read(&model.join("config.json"))).unwrap();
        for dialect in [hf::Dialect::V4, hf::Dialect::V5] {
            let mut back = hf::read_config(&hf::write_config(&config, dialect).unwrap()).unwrap();
            // The only numbers that pass through a root and a square.
            for (b, c) in [
                (&mut back.scales.residual, config.scales.residual),
                (&mut back.scales.logits, config.scales.logits),
            ] {
                assert!((*b - c).abs() <= 1e-12 * c, "{}", model.display());
                *b = c;
            }
            assert_eq!(back, config, "{} {dialect:?}", model.display());
        }
    }
}

#[test]
fn the_cut_names_and_shapes_equal_those_of_upstreams_checkpoint() {
    for (case, model, padded, files) in [
        ("v200_llama2_hf2mcore_tp2", "models/llama2_mha", 1000, 2),
        ("v200_vocab1003_hf2mcore_tp4", "convert/src/llama_vocab1003", 1004, 4),
    ] {
        let mut config = hf::read_config(&read(&golden(model).join("config.json"))).unwrap();
        assert_eq!(config.padded(1, files), padded);
        config.padded_vocab = padded;
        let topology = tensor_parallel(files);
        let manifest = read(&golden("convert").join(case).join("manifest.json"));
        for rank in 0..files {
            let file =
                &manifest[format!("iter_0000001/mp_rank_{rank:02}/model_optim_rng.pt")]["model"]["tensors"];
            let want: Vec<(String, Value)> =
                file.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v["shape"].clone())).collect();
            let got: Vec<(String, Value)> = params(&config)
                .iter()
                .map(|p| (p.name.clone(), json!(local(p, &topology, rank).unwrap().local_shape().to_vec())))
                .collect();
            assert_eq!(got, want, "{case}: names, order and shapes");
        }
    }
}

#[test]
fn the_arguments_of_both_converters_describe_the_source_model() {
    let source = hf::read_config(&read(&golden("models/llama2_mha/config.json"))).unwrap();
    for case in ["v200_llama2_hf2mcore_tp2", "head_llama2_hf2mcore_tp2pp2"] {
        let args = read(&golden("convert").join(case).join("args_namespace.json"));
        let mut config = megatron::from_args(args.as_object().unwrap()).unwrap();
        // Token ids are not among the arguments of a training run.
        (config.bos, config.eos) = (source.bos, source.eos.clone());
        assert_eq!(config, source, "{case}");
    }
}

#[test]
fn every_family_survives_the_way_through_megatrons_arguments() {
    // Upstream has no flags for these: clamped gates, borrowed picks of keys, windowed layers of their own,
    // trapezoidal mixers, norms of outputs alone.
    let without_flags = ["gpt_oss", "glm_moe_dsa", "step3p5", "mamba3", "mamba3_mimo", "olmo2"];
    for model in samples().iter().filter(|m| without_flags.iter().all(|name| !m.ends_with(name))) {
        let config = hf::read_config(&read(&model.join("config.json"))).unwrap();
        let back = megatron::from_args(&megatron::to_args(&config)).unwrap();
        // Not among Megatron's arguments: the class, token ids, and what a class has without a flag.
        let mut want = ModelConfig { unit_head_rows: false, ..config.clone() };
        (want.family, want.bos, want.eos) = (back.family, None, Vec::new());
        if let (Some(w), Some(b)) = (&mut want.moe, &back.moe) {
            w.router.linear_bias = b.router.linear_bias;
        }
        // Upstream has one flag for norms of heads of queries and keys; layers that share keys tell Hunyuan's from the others'.
        let shares = config.has(ms_spec::Mixer::SharedKv);
        if want.qk_norm == ms_spec::QkNorm::PerHeadAfterRope && !shares {
            want.qk_norm = ms_spec::QkNorm::PerHead;
        }
        // They have the layers' epsilon for norms of latents, too; classes fix it.
        if let ms_spec::Attention::Latent(mla) = &mut want.attention {
            assert_eq!(mla.norm_eps.take(), Some(1e-6));
        }
        want.scales.residual = back.scales.residual;
        assert!((back.scales.residual - config.scales.residual).abs() < 1e-12);
        if want.mamba2.is_some() {
            (want.dtype, want.ffn) = (back.dtype, back.ffn);
        }
        assert_eq!(back, want, "{}", model.display());
    }
}

fn some_config() -> impl Strategy<Value = ModelConfig> {
    (1usize..4, 1usize..4, 1usize..4, 1usize..4, 0usize..3, any::<bool>(), 0usize..3).prop_map(
        |(layers, groups, per_group, ffn, dim, tied, family)| {
            let family = ["llama", "qwen2", "qwen3"][family];
            let json = json!({
                "model_type": family, "num_hidden_layers": layers, "hidden_size": 8 * groups,
                "intermediate_size": 4 * ffn, "num_attention_heads": 4 * groups * per_group,
                "num_key_value_heads": 4 * groups, "head_dim": 2 << dim, "vocab_size": 40, "tie_word_embeddings": tied
            });
            hf::read_config(&json).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn the_pieces_of_all_ranks_cover_every_parameter_once(config in some_config(), tp in prop::sample::select(vec![1usize, 2, 4])) {
        check_cut(&config, tp).unwrap();
        let topology = tensor_parallel(tp);
        for spec in params(&config) {
            let mut seen = vec![0u8; spec.shape.numel()];
            for rank in 0..tp {
                for (start, len) in local(&spec, &topology, rank).unwrap().runs() {
                    seen[start..start + len].iter_mut().for_each(|n| *n += 1);
                }
            }
            let times = if !spec.partition.axes().is_empty() { 1 } else { tp as u8 };
            prop_assert!(seen.iter().all(|&n| n == times), "{}", spec.name);
        }
    }

    #[test]
    fn every_name_is_there_once_and_vectors_have_no_decay(config in some_config()) {
        let mut names = BTreeMap::new();
        for spec in params(&config) {
            prop_assert!(names.insert(spec.name.clone(), ()).is_none());
            prop_assert_eq!(spec.decay, spec.shape.len() == 2);
        }
        prop_assert_eq!(names.contains_key("output_layer.weight"), !config.tied);
    }
}

#[test]
fn whatever_a_field_holds_is_refused_or_gives_sizes_that_can_be_counted() {
    let values = [
        json!(0),
        json!(1),
        json!(3),
        json!(1u64 << 28),
        json!(1u64 << 62),
        json!(-1),
        json!(0.5),
        json!(null),
        json!("x"),
        json!([]),
        json!([1u64 << 28]),
        json!({}),
    ];
    for model in samples() {
        let whole = read(&model.join("config.json"));
        for field in whole.as_object().unwrap().keys() {
            for value in &values {
                let mut changed = whole.clone();
                changed[field] = value.clone();
                let Ok(config) = hf::read_config(&changed) else { continue };
                for spec in params(&config) {
                    let numel = spec.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
                    assert!(numel.is_some(), "{}: {field} = {value}: {}", model.display(), spec.name);
                }
            }
        }
    }
}

#[test]
fn models_that_no_class_describes_have_no_family_and_survive_their_arguments() {
    for name in ["gpt4_moe", "grok", "hybrid"] {
        let path = ms_testing::golden_model(name).unwrap().join("args.json");
        let args: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let config = megatron::from_args(args.as_object().unwrap()).unwrap();
        assert_eq!(config.family, Family::MEGATRON, "{name}");
        assert_eq!(megatron::from_args(&megatron::to_args(&config)).unwrap(), config, "{name}");
        assert!(hf::write_config(&config, hf::Dialect::V4).is_err(), "{name}");
    }
}
