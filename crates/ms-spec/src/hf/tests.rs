//! The readers, family by family, on small files.

use ms_core::DType;
use serde_json::{Value, json};

use super::*;
use crate::{Biases, QkNorm};

fn minimal(model_type: &str) -> Value {
    json!({
        "model_type": model_type, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100
    })
}

#[test]
fn families_fill_in_what_the_file_leaves_out() {
    let llama = read_config(&minimal("llama")).unwrap();
    assert_eq!((llama.groups, llama.head_dim, llama.bias), (4, 16, Biases::default()));
    let qwen2 = read_config(&minimal("qwen2")).unwrap();
    assert_eq!(qwen2.bias, Biases { qkv: true, ..Biases::default() });
    let qwen3 = read_config(&minimal("qwen3")).unwrap();
    assert_eq!((qwen3.head_dim, qwen3.qk_norm), (128, QkNorm::PerHead));
    let seed = |head_dim: Value| {
        let mut file = minimal("seed_oss");
        file["head_dim"] = head_dim;
        read_config(&file).unwrap().head_dim
    };
    assert_eq!((seed(json!(12)), seed(Value::Null)), (12, 16));
    assert_eq!(read_config(&minimal("mistral")).unwrap().sliding_window, Some(4096));
}

/// transformers 5.24: `n_shared_experts` of `DeepseekV2Config`, `DeepseekV3Config` and `Glm4MoeConfig`,
/// `shared_expert_intermediate_size` of `Qwen2MoeConfig` and `Qwen3NextConfig`.
#[test]
fn classes_have_shared_experts_where_the_file_is_silent() {
    for (sample, field, width) in [
        ("deepseek_v2_lite", "n_shared_experts", None),
        ("deepseek_v3", "n_shared_experts", None),
        ("deepseek_v32", "n_shared_experts", None),
        ("glm_moe_dsa", "n_shared_experts", None),
        ("glm45_air", "n_shared_experts", None),
        ("qwen2_moe", "shared_expert_intermediate_size", Some(5632)),
        ("qwen3_next", "shared_expert_intermediate_size", Some(512)),
    ] {
        let mut json = sample_config(sample);
        json.as_object_mut().unwrap().remove(field);
        let moe = read_config(&json).unwrap().moe.unwrap();
        let experts = if sample.starts_with("deepseek_v2") { 2 } else { 1 };
        assert_eq!(moe.shared.map(|s| s.ffn), Some(width.unwrap_or(experts * moe.ffn)), "{sample}");
    }
    let mut json = sample_config("deepseek_v3");
    json["n_shared_experts"] = json!(null);
    assert_eq!(read_config(&json).unwrap().moe.unwrap().shared, None, "as the published class reads null");
}

#[test]
fn an_empty_object_of_rope_is_silence() {
    let mut json = sample_config("gpt_oss");
    let object = json.as_object_mut().unwrap();
    object.remove("rope_parameters");
    let silent = read_config(&Value::Object(object.clone())).unwrap().rope.scaling;
    assert!(matches!(silent, crate::RopeScaling::Yarn { .. }), "{silent:?}");
    json["rope_scaling"] = json!({});
    assert_eq!(read_config(&json).unwrap().rope.scaling, silent);
}

fn sample_config(name: &str) -> Value {
    let path = ms_testing::golden_model(name).unwrap().join("config.json");
    parse_json(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn both_dialects_of_rope_and_dtype_are_read() {
    let mut old = minimal("llama");
    old["rope_theta"] = json!(5e5);
    old["torch_dtype"] = json!("bfloat16");
    old["rope_scaling"] = json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let mut new = minimal("llama");
    new["dtype"] = json!("bfloat16");
    new["rope_parameters"] = json!({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let (old, new) = (read_config(&old).unwrap(), read_config(&new).unwrap());
    assert_eq!(old, new);
    assert_eq!(old.dtype, Some(DType::Bf16));
    assert_eq!(old.rope.base, 5e5);
}

#[test]
fn a_yarn_factor_over_all_dims_acts_on_latent_scores_without_the_other() {
    let file = sample_config("deepseek_v3");
    let of = |more: Value| {
        let mut json = file.clone();
        json.as_object_mut().unwrap().remove("rope_parameters");
        json["rope_scaling"] = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
        json["rope_scaling"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read_config(&json).unwrap()
    };
    let numbers = |c: &ModelConfig| {
        let plain = read_config(&file).unwrap();
        let plain = ModelConfig { rope: crate::Rope::plain(1e4), ..plain }.score_scale();
        (c.score_scale() / plain, c.rope.frequencies(8, 16).magnitude)
    };
    // transformers 5, `modeling_deepseek_v3.py`, `yarn_apply_mscale`, and `modeling_rope_utils.py`,
    // `_compute_yarn_parameters`: 0.1 ln 4 + 1 is 1.138629, with 0.5 for 1 it is 1.069315.
    for (more, scores, magnitude) in [
        (json!({"mscale_all_dim": 1.0}), 1.296_477, 1.138_629),
        (json!({"mscale_all_dim": 0.5, "attention_factor": 1.5}), 1.143_434, 1.5),
        (json!({"mscale": 1.0}), 1.0, 1.138_629),
        (json!({"mscale": 1.0, "mscale_all_dim": 0.5}), 1.143_434, 1.064_821),
        (json!({}), 1.0, 1.138_629),
    ] {
        let c = of(more.clone());
        let close = |(a, b): (f64, f64)| (a - scores).abs() < 1e-5 && (b - magnitude).abs() < 1e-5;
        assert!(close(numbers(&c)), "{more} {:?}", numbers(&c));
        for dialect in [Dialect::V4, Dialect::V5] {
            assert_eq!(read_config(&write_config(&c, dialect).unwrap()).unwrap(), c, "{more} {dialect:?}");
        }
        let again = crate::megatron::from_args(&crate::megatron::to_args(&c)).unwrap();
        assert!(close(numbers(&again)), "{more} {:?}", numbers(&again));
    }
}

#[test]
fn what_is_written_reads_back_in_both_dialects() {
    for family in ["llama", "mistral", "qwen2", "qwen3"] {
        let mut json = minimal(family);
        json["rope_scaling"] =
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        json["eos_token_id"] = json!([2, 3]);
        json["torch_dtype"] = json!("float16");
        let config = read_config(&json).unwrap();
        for dialect in [Dialect::V4, Dialect::V5] {
            assert_eq!(
                read_config(&write_config(&config, dialect).unwrap()).unwrap(),
                config,
                "{family} {dialect:?}"
            );
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let message = |json: Value| read_config(&json).unwrap_err().to_string();
    let unknown = message(minimal("lstm"));
    assert!(
        unknown.starts_with("config.json: model type `lstm` is not supported; supported: llama, qwen2, ")
    );
    let mut json = minimal("llama");
    json["num_key_value_heads"] = json!(3);
    assert_eq!(message(json), "model: 4 query heads are not divisible by 3 key/value heads");
    let mut json = minimal("llama");
    json["hidden_size"] = json!("wide");
    assert_eq!(
        message(json),
        "config.json: field `hidden_size`: expected a whole number below 2^64, got \"wide\""
    );
    let mut json = sample_config("mixtral");
    json.as_object_mut().unwrap().remove("num_local_experts");
    assert_eq!(message(json), "config.json: field `num_local_experts` is missing");
    let mut json = minimal("mistral");
    json["sliding_window"] = json!(0);
    assert_eq!(message(json), "config.json: field `sliding_window`: expected null or at least 1, got 0");
    let mut json = sample_config("gpt_oss");
    json["layer_types"][0] = json!("attention");
    let said = message(json);
    assert!(said.contains("expected full_attention or sliding_attention for each layer, got"), "{said}");
    let mut json = sample_config("deepseek_v2");
    let mut without = json.clone();
    without.as_object_mut().unwrap().remove("n_group");
    assert_eq!(message(without), "config.json: field `n_group` is missing");
    json["mlp_bias"] = json!(true);
    assert_eq!(
        message(json),
        "config.json: field `mlp_bias`: expected false, got true; a bias in networks of a model with experts is not \
         supported"
    );
    for (name, field, given) in [
        ("deepseek_v4", "norm_topk_prob", false),
        ("qwen3", "is_causal", false),
        ("gemma2", "use_bidirectional_attention", true),
    ] {
        let mut json = sample_config(name);
        json[field] = json!(given);
        let said = message(json);
        assert!(said.contains(&format!("field `{field}`: expected {}, got {given}", !given)), "{said}");
    }
    let mut json = minimal("llama");
    json.as_object_mut().unwrap().remove("vocab_size");
    assert_eq!(message(json), "config.json: field `vocab_size` is missing");
}

#[test]
fn python_writes_infinity_as_a_bare_word() {
    let json =
        parse_json(r#"{"a": [0.0, Infinity], "b": "Infinity \" NaN", "c": NaN, "d": -Infinity}"#).unwrap();
    assert_eq!(json, json!({"a": [0.0, "Infinity"], "b": "Infinity \" NaN", "c": "NaN", "d": "-Infinity"}));
    assert!(parse_json("{\"a\": Infinite}").is_err());
    assert!(parse_json("{\"a\": \"").is_err());
}

#[test]
fn numbers_that_a_model_cannot_compute_with_are_refused_by_the_fields_name() {
    let refused = |field: &str, value: Value| {
        let mut json = minimal("llama");
        json[field] = value;
        read_config(&json).unwrap_err().to_string()
    };
    for base in [json!(0), json!(-1.0), json!("NaN")] {
        let said = refused("rope_theta", base.clone());
        assert_eq!(said, format!("config.json: field `rope_theta`: expected a number above 0, got {base}"));
    }
    assert!(
        refused("rms_norm_eps", json!(-1e-6)).contains("`rms_norm_eps`: expected a number of at least 0")
    );
    assert!(refused("initializer_range", json!(-0.02)).contains("`initializer_range`"));
    let stretched = json!({"rope_type": "linear", "factor": 0.0});
    assert!(refused("rope_scaling", stretched).contains("`factor`: expected a number above 0"));
}

#[test]
fn layers_differ_where_the_file_says_so() {
    let mut qwen2 = minimal("qwen2");
    qwen2["use_sliding_window"] = json!(true);
    qwen2["max_window_layers"] = json!(1);
    let c = read_config(&qwen2).unwrap();
    assert_eq!((c.window(0), c.window(1)), (None, Some(4096)));
    let mut gemma = minimal("gemma2");
    gemma["hidden_activation"] = json!("gelu_pytorch_tanh");
    let c = read_config(&gemma).unwrap();
    assert_eq!(c.activation, crate::Activation::GegluTanh);
    assert_eq!((c.window(0), c.window(1), c.head_dim), (Some(4096), None, 256));
    // The older name says `gelu` and means the same; the newer one means it.
    gemma["hidden_act"] = json!("gelu");
    assert_eq!(read_config(&gemma).unwrap(), c);
    gemma["hidden_activation"] = json!("gelu");
    let exact = read_config(&gemma).unwrap();
    assert_eq!((exact.activation, exact.family), (crate::Activation::GegluErf, c.family));
    assert_eq!(read_config(&write_config(&exact, Dialect::default()).unwrap()).unwrap(), exact);
    assert_eq!(c.score_scale(), 0.0625);
}

#[test]
fn a_hostile_number_of_layers_is_refused_before_anything_is_listed() {
    let mut json = minimal("qwen2_moe");
    json["num_hidden_layers"] = json!(1u64 << 40);
    assert!(read_config(&json).unwrap_err().to_string().contains("layers: expected 1 to"));
}

#[test]
fn numbers_that_transformers_wants_as_integers_are_written_so() {
    let mut gemma = minimal("gemma2");
    gemma["query_pre_attn_scalar"] = json!(24);
    let mut minicpm = minimal("minicpm");
    minicpm["dim_model_base"] = json!(28);
    for (json, field) in [(gemma, "query_pre_attn_scalar"), (minicpm, "dim_model_base")] {
        let written = write_config(&read_config(&json).unwrap(), Dialect::V5).unwrap();
        assert!(written[field].is_i64(), "{field}: {}", written[field]);
        assert_eq!(written[field], json[field]);
    }
}

#[test]
fn biases_of_internlm3_are_read_in_both_spellings() {
    let read = |fields: Value| {
        let mut json = minimal("internlm3");
        json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        read_config(&json).unwrap().bias
    };
    let all = Biases { qkv: true, out: true, mlp: true, head: false };
    assert_eq!(read(json!({"attention_bias": true, "mlp_bias": true})), all);
    assert_eq!(read(json!({"qkv_bias": true, "bias": true})), all);
    assert_eq!(read(json!({"qkv_bias": true, "bias": false})), Biases { qkv: true, ..Biases::default() });
    assert_eq!(read(json!({})), Biases::default());
}

#[test]
fn halves_of_longcats_layers_are_not_layers() {
    let mut json = minimal("longcat_flash");
    let sizes = json!({
        "num_layers": 3, "num_hidden_layers": 6, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "moe_topk": 2, "zero_expert_num": 2,
        "expert_ffn_hidden_size": 8, "ffn_hidden_size": 16
    });
    json.as_object_mut().unwrap().extend(sizes.as_object().unwrap().clone());
    assert_eq!(read_config(&json).unwrap().layers, 3);
    json.as_object_mut().unwrap().remove("num_layers");
    assert_eq!(read_config(&json).unwrap().layers, 3);
}

#[test]
fn a_model_that_its_class_cannot_say_is_not_written() {
    let mut c = read_config(&minimal("llama")).unwrap();
    c.qk_norm = QkNorm::PerHead;
    c.rope.interleaved = true;
    let said = write_config(&c, Dialect::V5).unwrap_err().to_string();
    assert!(said.contains("LlamaForCausalLM has no words for this model's qk_norm, rope"), "{said}");
    // The first class that can.
    let c = crate::megatron::from_args(&crate::megatron::to_args(&c)).unwrap();
    assert_eq!(c.family, crate::Family::MEGATRON);
    let c = crate::ModelConfig { rope: crate::Rope::plain(10_000.0), ..c };
    let c = crate::megatron::from_args(&crate::megatron::to_args(&c)).unwrap();
    assert_eq!(c.family.model_type(), Some("qwen3"));
}

#[test]
fn every_class_is_found_by_its_name_and_speaks_for_its_family() {
    let all: Vec<_> = classes::all().collect();
    for (i, class) in all.iter().enumerate() {
        assert_eq!(class.silent().family, class.family, "{}", class.name);
        let before = &all[..i];
        assert!(before.iter().all(|c| (c.name, c.types) != (class.name, class.types)), "{}", class.name);
    }
    // Those of one family stand together, and a family is found again by what files of ours call it.
    let families: Vec<_> = crate::Family::all().collect();
    assert_eq!(families.len(), 46);
    for (i, family) in families.iter().chain([&crate::Family::MEGATRON]).enumerate() {
        assert!(!families[..i].contains(family), "{family:?} stands in two places");
        let word = serde_json::to_value(family).unwrap();
        assert_eq!(serde_json::from_value::<crate::Family>(word).unwrap(), *family);
    }
    let unknown = serde_json::from_value::<crate::Family>(json!("lama")).unwrap_err().to_string();
    assert!(unknown.contains("unknown family `lama`"), "{unknown}");
    for (model_type, word) in
        [("internlm2", "intern_lm2"), ("minimax_m2", "mini_max_m2"), ("deepseek_v32", "deepseek_v32")]
    {
        let family = families.iter().find(|family| family.model_type() == Some(model_type)).unwrap();
        assert_eq!(serde_json::to_value(family).unwrap(), word, "manifests of earlier versions say so");
    }
}

#[test]
fn granite_and_olmo2_are_read_and_written() {
    let mut json = minimal("granite");
    // A silent file means factors of 1: scores are then not divided by anything.
    assert_eq!(read_config(&json).unwrap().score_scale(), 1.0);
    let factors = json!({
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "logits_scaling": 6.0
    });
    json.as_object_mut().unwrap().extend(factors.as_object().unwrap().clone());
    let granite = read_config(&json).unwrap();
    assert_eq!((granite.scales.embedding, granite.scales.logits), (12.0, 1.0 / 6.0));
    let olmo2 = read_config(&minimal("olmo2")).unwrap();
    assert_eq!((olmo2.block, olmo2.qk_norm), (crate::Block::Post, QkNorm::WholeProjection));
    for config in [granite.clone(), olmo2] {
        for dialect in [Dialect::V4, Dialect::V5] {
            assert_eq!(read_config(&write_config(&config, dialect).unwrap()).unwrap(), config);
        }
    }
    let args = crate::megatron::to_args(&granite);
    let back = crate::megatron::from_args(&args).unwrap();
    assert_eq!((back.family, back.scales, back.scores), (granite.family, granite.scales, granite.scores));
}

#[test]
fn hunyuans_two_classes_weigh_a_single_expert_differently() {
    let moe = |model_type: &str, top_k: usize| {
        let mut json = minimal(model_type);
        let experts = json!({
            "num_experts": 4, "moe_topk": [top_k, top_k], "moe_intermediate_size": [48, 48], "num_shared_expert": [1, 1]
        });
        json.as_object_mut().unwrap().extend(experts.as_object().unwrap().clone());
        read_config(&json).unwrap().moe.unwrap()
    };
    assert!(moe("hunyuan_v1_moe", 1).router.renormalise);
    assert!(!moe("hunyuan", 1).router.renormalise);
    assert!(moe("hunyuan", 2).router.renormalise);
    assert_eq!((moe("hunyuan", 2).ffn, moe("hunyuan", 2).shared.unwrap().ffn), (48, 96));
}

#[test]
fn mamba3_has_the_sizes_of_its_class_where_the_file_is_silent() {
    let read = |more: &[(&str, Value)]| {
        let mut json =
            json!({"model_type": "mamba3", "hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 100});
        more.iter().for_each(|(key, value)| json[*key] = value.clone());
        read_config(&json)
    };
    let plain = read(&[]).unwrap();
    let m = plain.mamba3.unwrap();
    assert_eq!((m.heads, m.head_dim, m.state, m.ranks, m.angles), (4, 64, 128, None, 32));
    assert_eq!(m.sections(), [256, 256, 128, 128, 4, 4, 4, 32]);
    assert_eq!((plain.norm_eps, plain.init_std), (1e-5, 0.1));
    let wide = read(&[("is_mimo", json!(true)), ("rope_fraction", json!(1.0))]).unwrap();
    let m = wide.mamba3.unwrap();
    assert_eq!((m.ranks, m.angles, m.keys()), (Some(4), 64, 512));
    for config in [plain, wide] {
        let back = read_config(&write_config(&config, Dialect::V5).unwrap()).unwrap();
        assert_eq!(back, config);
        // Megatron cannot express it: without its config.json such a model is not read.
        assert!(crate::megatron::from_args(&crate::megatron::to_args(&config)).is_err());
        assert!(crate::check_cut(&config, 4).is_ok() && crate::check_cut(&config, 8).is_err());
    }
    for (field, value, says) in [
        ("is_outproj_norm", json!(true), "a norm before the output projection"),
        ("ngroups", json!(2), "several groups of keys"),
        ("rope_fraction", json!(0.25), "rope_fraction 0.25"),
        ("head_dim", json!(96), "heads of 96"),
        ("state_size", json!(0), "size of the trapezoidal mixer"),
    ] {
        let error = read(&[(field, value)]).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// transformers 5.24: every class that is there, tried with each kind of stretching.
#[test]
fn classes_that_rotate_whole_heads_overlook_a_share_of_them() {
    let file = |model_type: &str, more: Value| {
        let mut json = minimal(model_type);
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json
    };
    let linear = json!({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5});
    let inside = json!({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5});
    let [beside, inside, stretched] = [
        json!({"partial_rotary_factor": 0.5}),
        json!({"rope_parameters": inside}),
        json!({"rope_scaling": linear}),
    ];
    for class in
        ["llama", "qwen2", "qwen3", "mistral", "olmo2", "seed_oss", "gemma", "gemma2", "granite", "internlm3"]
    {
        for plain in [&beside, &inside] {
            let c = read_config(&file(class, plain.clone())).unwrap();
            assert_eq!(c.rope.fraction, 1.0, "{class}");
        }
        let said = read_config(&file(class, stretched.clone())).unwrap_err().to_string();
        assert!(said.contains("partial_rotary_factor 0.5: the class rotates whole heads"), "{class}: {said}");
        let mut c = read_config(&file(class, json!({}))).unwrap();
        c.rope.fraction = 0.5;
        let said = write_config(&c, Dialect::V5).unwrap_err().to_string();
        assert!(said.contains("has no words for this model's rope.fraction"), "{class}: {said}");
    }
    for class in ["glm", "glm4", "phi3"] {
        for given in [&beside, &inside, &stretched] {
            let c = read_config(&file(class, given.clone())).unwrap();
            assert_eq!(c.rope.fraction, 0.5, "{class}");
            if class == "phi3" && given == &stretched {
                let said = write_config(&c, Dialect::V5).unwrap_err().to_string();
                assert!(said.contains("stretched by other means than longrope"), "{said}");
                continue;
            }
            for dialect in [Dialect::V4, Dialect::V5] {
                assert_eq!(read_config(&write_config(&c, dialect).unwrap()).unwrap(), c, "{class}");
            }
        }
    }
}

/// transformers 5.24, `MiniMaxM2Config`, and the published class, which has the number alone.
#[test]
fn a_share_of_heads_counts_before_a_number_of_elements() {
    let mut json = minimal("minimax_m2");
    for (name, value) in [("head_dim", 16), ("num_local_experts", 4), ("num_experts_per_tok", 2)] {
        json[name] = json!(value);
    }
    let fraction = |json: &Value| read_config(json).unwrap().rope.fraction;
    assert_eq!(fraction(&json), 1.0);
    json["rotary_dim"] = json!(4);
    assert_eq!(fraction(&json), 0.25);
    json["partial_rotary_factor"] = json!(0.5);
    assert_eq!(fraction(&json), 0.5);
    let written = write_config(&read_config(&json).unwrap(), Dialect::V4).unwrap();
    assert_eq!((&written["rotary_dim"], fraction(&written)), (&json!(8), 0.5));
}

/// Megatron's `--rotary-percent` becomes a class that can express it.
#[test]
fn a_llama_that_rotates_a_part_of_its_heads_is_written_as_phi3() {
    let mut c = read_config(&minimal("llama")).unwrap();
    c.rope.fraction = 0.5;
    let args = crate::megatron::to_args(&c);
    assert_eq!(args["rotary_percent"], json!(0.5));
    let c = crate::megatron::from_args(&args).unwrap();
    assert_eq!(c.family.model_type(), Some("phi3"));
    let written = write_config(&c, Dialect::V4).unwrap();
    assert_eq!(written["partial_rotary_factor"], json!(0.5));
    // The class pads with a token that so small a vocabulary does not have.
    assert_eq!(written.get("pad_token_id"), Some(&Value::Null));
    let biased = crate::ModelConfig { bias: Biases { qkv: true, out: true, ..Biases::default() }, ..c };
    let biased = crate::megatron::from_args(&crate::megatron::to_args(&biased)).unwrap();
    assert_eq!(biased.family, crate::Family::MEGATRON);
}

#[test]
fn a_list_of_layers_with_experts_that_is_none_is_refused() {
    let mut json = sample_config("step3p5");
    let experts = |json: &Value| {
        let c = read_config(json).map_err(|e| e.to_string())?;
        Ok::<_, String>((0..c.layers).filter(|&l| c.layer(l).feed == crate::Feed::Moe).collect::<Vec<_>>())
    };
    assert_eq!(experts(&json), Ok(vec![2, 3, 4]));
    json["moe_layers_enum"] = json!(" 3, 4,");
    assert_eq!(experts(&json), Ok(vec![3, 4]));
    json["moe_layers_enum"] = json!("2,three,4");
    let refused = experts(&json).unwrap_err();
    assert!(refused.contains("moe_layers_enum") && refused.contains("2,three,4"), "{refused}");
}

/// Published: 32768 positions, trained for 8192, stretched behind them.
#[test]
fn the_window_of_the_first_qwen_ends_where_its_class_stretches() {
    let mut json = sample_config("qwen1");
    (json["seq_length"], json["max_position_embeddings"]) = (json!(16), json!(64));
    let window = |json: &Value| read_config(json).unwrap().max_positions;
    assert_eq!(window(&json), 16);
    json["use_logn_attn"] = json!(false);
    assert_eq!(window(&json), 16);
    json["use_dynamic_ntk"] = json!(false);
    assert_eq!(window(&json), 64);
}

/// Published: `MiniCPM3-4B`, whose file has neither the size of a value nor a tied output layer.
#[test]
fn fields_that_published_files_of_minicpm3_lack_follow_from_others() {
    let mut json = sample_config("minicpm3");
    let whole = read_config(&json).unwrap();
    for name in ["v_head_dim", "tie_word_embeddings", "num_key_value_heads"] {
        json.as_object_mut().unwrap().remove(name);
    }
    assert_eq!(read_config(&json).unwrap(), whole);
    // transformers 5.24, `MiniCPM3Config`: null is a factor of 1.
    (json["scale_depth"], json["dim_model_base"]) = (Value::Null, Value::Null);
    let scales = read_config(&json).unwrap().scales;
    assert_eq!((scales.residual, scales.logits), (1.0, 1.0));
    json["mlp_bias"] = json!(true);
    assert!(read_config(&json).unwrap().bias.mlp);
}

/// Published: `internlm-7b` and `internlm-20b`.
#[test]
fn the_first_internlm_rotates_by_an_object_of_its_own() {
    let mut json = sample_config("internlm");
    json["rotary"] = json!({"base": 50_000, "type": "dynamic"});
    let c = read_config(&json).unwrap();
    assert_eq!(c.rope, crate::Rope::plain(50_000.0));
    let written = write_config(&c, Dialect::V4).unwrap();
    assert_eq!(written["rotary"], json!({"base": 50_000.0, "type": "dynamic"}));
    assert_eq!(read_config(&written).unwrap(), c);
    json["rotary"]["type"] = json!("linear");
    let said = read_config(&json).unwrap_err().to_string();
    assert!(said.contains("rotary type `linear` is not supported; supported: origin, dynamic"), "{said}");
}

/// transformers 5.24, `MistralConfig` and `MinistralConfig`.
#[test]
fn windows_of_some_layers_are_ministrals() {
    let mut json = minimal("ministral");
    json["layer_types"] = json!(["full_attention", "sliding_attention"]);
    let c = read_config(&json).unwrap();
    assert_eq!((c.window(0), c.window(1)), (None, Some(4096)));
    let args = crate::megatron::to_args(&c);
    for written in [write_config(&c, Dialect::V5).unwrap(), write_config(&c, Dialect::V4).unwrap()] {
        assert_eq!(written["model_type"], "ministral");
        assert_eq!(read_config(&written).unwrap(), c);
    }
    json["layer_types"] = json!(["sliding_attention", "sliding_attention"]);
    let all = read_config(&json).unwrap();
    assert_eq!(all, read_config(&minimal("mistral")).unwrap());
    assert_eq!(write_config(&all, Dialect::V5).unwrap()["model_type"], "mistral");
    assert!(args.get("interleave_sliding_window").is_some());
    for class in ["mistral", "phi3"] {
        let mut json = minimal(class);
        (json["sliding_window"], json["layer_types"]) =
            (json!(8), json!(["full_attention", "sliding_attention"]));
        let said = read_config(&json).unwrap_err().to_string();
        assert!(
            said.contains("`layer_types`: expected sliding_attention in all layers, got"),
            "{class}: {said}"
        );
        json["sliding_window"] = Value::Null;
        assert_eq!(read_config(&json).unwrap().sliding_window, None);
    }
}

#[test]
fn kinds_of_layers_are_read_in_every_spelling() {
    let mut json = sample_config("glm_moe_dsa");
    let whole = read_config(&json).unwrap();
    json.as_object_mut().unwrap().remove("indexer_types");
    for pattern in [json!("FFSF"), json!(["full", "full", "shared", "full"])] {
        json["index_topk_pattern"] = pattern;
        assert_eq!(read_config(&json).unwrap(), whole);
    }
    // `HunYuanDecoderLayer` of `modeling_hunyuan.py`, published with the weights of Hunyuan-Large.
    let mut json = sample_config("hunyuan_large");
    json["moe_layer_num_skipped"] = json!(1);
    let c = read_config(&json).unwrap();
    assert_eq!([0, 1].map(|l| c.layer(l).feed), [crate::Feed::Dense, crate::Feed::Moe]);
    for sample in ["hy_v3", "step3p5"] {
        let mut json = sample_config(sample);
        json["mlp_bias"] = json!(true);
        let said = read_config(&json).unwrap_err().to_string();
        assert!(said.contains("field `mlp_bias`: expected false, got true"), "{said}");
    }
}
