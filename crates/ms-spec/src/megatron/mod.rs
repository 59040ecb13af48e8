//! Megatron's arguments, from a command line or stored in a checkpoint.

mod experts;
mod rope;
mod shared_kv;
mod sizes;
mod spec;

pub use experts::{RENORMALISED, ROUTER_KIND};
pub use rope::{RotatedElements, SHARES, rotated_elements, with_rotated_elements};
use sizes::SOURCE;
pub use sizes::{noop_layers, with_empty_slots};
pub use spec::knows_layers;

use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::field::{Dialect, Field, Writer};
use crate::fields::Fields;
use crate::hf::read_fields;
pub use crate::part_flag::PartFlag;
use crate::parts::{PARTS, RECURRENCES, sparse};
use crate::sizes::{Activation, Position};
use crate::{Family, ModelConfig, Norm, Result};

/// All arguments that describe a model, in the order in which they are read: later ones may depend on earlier ones.
fn arguments() -> impl Iterator<Item = &'static Field> {
    let parts = PARTS.into_iter().map(|part| part.arguments);
    let states = RECURRENCES.into_iter().map(|kind| kind.arguments);
    let others: [&[Field]; 3] = [experts::EXPERTS, &[sparse::OWNERS], &[spec::SPEC]];
    let first = [sizes::SIZES, rope::ROPE].into_iter().chain(parts).chain([&[shared_kv::SHARED][..]]);
    first.chain(states).chain(others).flatten()
}

/// The flags that describe one part alone, as its file lists them.
pub fn part_flags() -> impl Iterator<Item = &'static PartFlag> {
    RECURRENCES.into_iter().map(|kind| kind.flags).chain(PARTS.into_iter().map(|part| part.flags)).flatten()
}

/// Arguments of one part that name the same number or choice, in groups.
pub fn same_number() -> impl Iterator<Item = &'static [&'static str]> {
    let states = RECURRENCES.into_iter().map(|kind| kind.same_number);
    states.chain(PARTS.into_iter().map(|part| part.same_number)).flatten().copied()
}

/// What Megatron assumes where nothing is said.
fn silent() -> ModelConfig {
    ModelConfig {
        activation: Activation::GeluTanh,
        norm: Norm::LayerNorm,
        norm_eps: 1e-5,
        position: Position::Learned,
        tied: true,
        ..ModelConfig::default()
    }
}

/// Reads a configuration from arguments by their `dest` names, whether given or defaults.
///
/// The arguments of head's converter (Hugging Face's field names) are understood too. `num_layers` counts empty slots
/// (`noop_layers`); the result does not.
///
/// # Errors
/// A missing or malformed argument, or a feature that is not supported.
pub fn from_args(args: &Map<String, Value>) -> Result<ModelConfig> {
    read(&Fields { source: SOURCE, map: args, asked: None }, None)
}

/// [`from_args`] for arguments stored in a checkpoint: those that a run of upstream saved mean what that version made of
/// them.
///
/// # Errors
/// As [`from_args`].
pub fn from_saved_args(args: &Map<String, Value>) -> Result<ModelConfig> {
    let Some(rotated) = rope::rotated_elements_in_run(args) else { return from_args(args) };
    let mut args = args.clone();
    with_rotated_elements(&mut args, rotated);
    from_args(&args)
}

/// [`from_args`] for a model of a known family. The family is found by reading and writing the model as each family does.
///
/// # Errors
/// As [`from_args`].
pub fn from_args_of(family: Family, args: &Map<String, Value>) -> Result<ModelConfig> {
    read(&Fields { source: SOURCE, map: args, asked: None }, Some(family))
}

/// The names of the arguments that [`from_args`] reads, whatever it does with them.
pub fn asked_args(args: &Map<String, Value>) -> BTreeSet<String> {
    let asked = RefCell::default();
    let _ = read(&Fields { source: SOURCE, map: args, asked: Some(&asked) }, None);
    asked.into_inner()
}

fn read(f: &Fields<'_>, family: Option<Family>) -> Result<ModelConfig> {
    if f.map.contains_key("num_hidden_layers") && !f.map.contains_key("ffn_hidden_size") {
        return read_fields(f);
    }
    let mut c = silent();
    for field in arguments() {
        field.read(f, &mut c)?;
    }
    sizes::leave_out_empty(f, &mut c)?;
    if let (true, Some(moe)) = (c.attention.kind().without_dense(), &c.moe) {
        c.ffn = moe.ffn; // there are experts alone
    }
    c.family = family.unwrap_or_else(|| Family::of(&ModelConfig { empty_slots: 0, ..c.clone() }));
    c.validate()
}

/// The arguments that a Megatron reader takes from a checkpoint to know the architecture.
///
/// The layout adds the sizes of the sharding (`tensor_model_parallel_size` and so on).
pub fn to_args(config: &ModelConfig) -> Map<String, Value> {
    let (mut config, mut silent) = (config.clone(), silent());
    let mut writer = Writer::new(Dialect::default());
    for field in arguments() {
        field.write(&mut config, &mut silent, &mut writer);
    }
    writer.out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::hf;

    #[test]
    fn a_configuration_survives_the_way_through_arguments() {
        for (family, extra) in [
            (
                "llama",
                json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}),
            ),
            ("qwen2", json!({"tie_word_embeddings": true, "num_key_value_heads": 2})),
            ("qwen3", json!({"head_dim": 32, "rope_theta": 1e6, "torch_dtype": "bfloat16"})),
        ] {
            let mut json = json!({
                "model_type": family, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100, "rms_norm_eps": 1e-6
            });
            for (key, value) in extra.as_object().unwrap() {
                json[key] = value.clone();
            }
            let config = hf::read_config(&json).unwrap();
            assert_eq!(from_args(&to_args(&config)).unwrap(), config, "{family}");
        }
    }

    /// By hand from both versions' `rotary_pos_embedding.py`: hidden size 32, two heads of 24.
    #[test]
    fn what_a_run_of_upstreams_turned_is_read_in_its_version() {
        let rotated = |more: serde_json::Value| {
            let mut args = json!({
                "num_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "ffn_hidden_size": 8, "kv_channels": 24,
                "padded_vocab_size": 8, "max_position_embeddings": 64, "position_embedding_type": "rope",
                "rotary_percent": 0.5, "rope_scaling_original_max_position_embeddings": 16
            });
            args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            from_saved_args(args.as_object().unwrap()).unwrap().rotated()
        };
        let (yarn, mul) = ("yarn", "mul");
        assert_eq!(rotated(json!({"longrope_freqs_type": mul})), 12);
        assert_eq!(rotated(json!({"longrope_freqs_type": mul, "rope_scaling_type": yarn})), 16);
        assert_eq!(
            rotated(json!({"longrope_freqs_type": mul, "rope_scaling_type": yarn, "beta_fast": 32})),
            24
        );
        let parts = json!({"longrope_freqs_type": mul, "beta_fast": 32, "partial_rotary_factor": 0.5});
        assert_eq!(rotated(parts), 6);
        let long = |kind: &str| {
            let factors = json!([1, 2, 3, 4, 5, 6]);
            rotated(json!({
                "longrope_freqs_type": kind, "rope_scaling_type": "longrope", "short_factor": factors, "long_factor": factors
            }))
        };
        assert_eq!((long("outer"), long("mul")), (24, 12));
        // Not from a run: a custom model, whose arguments say what is rotated.
        assert_eq!(rotated(json!({"rope_scaling_type": yarn})), 12);
    }

    #[test]
    fn empty_slots_are_not_layers() {
        let json = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
            "num_attention_heads": 4, "vocab_size": 100
        });
        let mut args = to_args(&hf::read_config(&json).unwrap());
        args.insert("noop_layers".into(), json!("1,5"));
        assert_eq!(from_args(&args).unwrap().layers, 4);
        // They are a set.
        args.insert("noop_layers".into(), json!("5, 1,5"));
        assert_eq!((noop_layers(&args).unwrap(), from_args(&args).unwrap().layers), (vec![1, 5], 4));
        args.insert("noop_layers".into(), json!("1;5"));
        assert!(from_args(&args).is_err());
        for (slots, words) in [
            ("1,6", "empty slots: expected numbers below that of layers, 6, found 6"),
            ("0,1,2,3,4,5", "all 6 layers are empty slots"),
        ] {
            args.insert("noop_layers".into(), json!(slots));
            let refused = from_args(&args).unwrap_err();
            assert_eq!(refused.to_string(), format!("model: {words}"));
            assert_eq!(refused.arg_names()[0], ["noop_layers"]);
        }
    }

    #[test]
    fn factors_that_are_given_together_multiply() {
        let scales = |position: &str, more: Value| {
            let mut args = json!({
                "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "vocab_size": 100,
                "position_embedding_type": position, "max_position_embeddings": 32
            });
            args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let c = from_args(args.as_object().unwrap()).unwrap();
            assert_eq!(from_args(&to_args(&c)).unwrap().scales, c.scales, "{more}");
            (c.scales.embedding, c.scales.summed, c.scales.root, c.scales.logits)
        };
        let all = json!({
            "scale_emb": 3.0, "embedding_multiplier_scale": 2.0, "input_embeds_norm": true,
            "dim_model_base": 8, "output_multiplier_scale": 0.5
        });
        // MindSpeed-LLM's own functions: rotary 6 √64, learned (2 word + position) 3 √64, logits 8/64/2.
        assert_eq!(scales("rope", all.clone()), (6.0, 1.0, true, 1.0 / 16.0));
        assert_eq!(scales("learned_absolute", all), (2.0, 3.0, true, 1.0 / 16.0));
        let two = json!({"input_embeds_norm": true, "embedding_multiplier_scale": 2.0});
        assert_eq!(scales("rope", two.clone()), (2.0, 1.0, true, 1.0));
        assert_eq!(scales("learned_absolute", two), (2.0, 1.0, true, 1.0));
        let none = json!({"embedding_multiplier_scale": 0.0, "output_multiplier_scale": 0.0});
        assert_eq!(scales("rope", none), (1.0, 1.0, false, 1.0));
    }

    #[test]
    fn what_goes_by_layers_counts_empty_slots_as_upstream_does() {
        let of = |flags: Value| {
            let mut args = json!({
                "num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "vocab_size": 100,
                "normalization": "RMSNorm", "swiglu": true, "position_embedding_type": "rope", "init_method_std": 0.2
            });
            args.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
            from_args(args.as_object().unwrap()).unwrap()
        };
        let experts = |more: Value| {
            let mut flags = json!({"num_experts": 4, "moe_router_topk": 2});
            flags.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let c = of(flags);
            (0..c.layers).map(|l| c.layer(l).feed == crate::Feed::Moe).collect::<Vec<_>>()
        };
        let first = json!({"first_k_dense_replace": 1, "moe_layer_freq": 1, "noop_layers": "0"});
        assert_eq!(experts(first), [true; 3]);
        let every_other = json!({"first_k_dense_replace": 0, "moe_layer_freq": 2, "noop_layers": "1"});
        assert_eq!(experts(every_other), [true, true, false]);
        let windowed = of(json!({"interleave_sliding_window": 8, "noop_layers": "0"}));
        assert_eq!((0..3).map(|l| windowed.layer(l).global).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(of(json!({"scale_depth": 1.4, "noop_layers": "0"})).scales.residual, 0.7);
        let std_of = |c: &ModelConfig| {
            let params = crate::params(c);
            let found = params.iter().find(|p| p.name.ends_with("linear_proj.weight")).unwrap();
            found.init
        };
        let one = of(json!({"noop_layers": "1,2,3"}));
        assert_eq!((one.layers, std_of(&one)), (1, crate::Init::Normal { std: 0.2 / 8f64.sqrt() }));

        // Models with different layers, in slots of which some are empty, are described by their arguments.
        let places = [vec![0], vec![1], vec![0, 2, 3], vec![6, 7]];
        for flags in [
            json!({}),
            json!({"num_experts": 4, "moe_router_topk": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1}),
            json!({"num_experts": 4, "moe_router_topk": 2, "first_k_dense_replace": 0, "moe_layer_freq": 2}),
            json!({"scale_depth": 1.4, "scale_emb": 12.0, "dim_model_base": 256}),
        ] {
            let c = of(flags);
            for empty in &places {
                let stages = crate::Stages { noop: empty.clone(), ..crate::Stages::default() };
                let Ok(slots) = stages.slots(c.layers) else { continue };
                let mut args = to_args(&with_empty_slots(&c, &slots));
                args.insert("noop_layers".into(), json!(empty));
                let again = from_args(&args).unwrap();
                assert_eq!(again, ModelConfig { empty_slots: empty.len(), ..c.clone() }, "{empty:?}");
            }
        }
    }

    #[test]
    fn the_magnitude_of_yarn_alone_counts() {
        let of = |more: Value| {
            let mut args = json!({
                "num_layers": 1, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "vocab_size": 100,
                "normalization": "RMSNorm", "swiglu": true, "position_embedding_type": "rope", "rope_scaling_type": "yarn",
                "rope_scaling_factor": 16.0, "rope_scaling_original_max_position_embeddings": 4
            });
            args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            from_args(args.as_object().unwrap()).unwrap()
        };
        let magnitude = |c: &ModelConfig| c.rope.frequencies(16, 64).magnitude;
        let ln = 16f64.ln();
        let plain = of(json!({}));
        assert!((magnitude(&plain) - (0.1 * ln + 1.0)).abs() < 1e-12);
        let five = of(json!({"rope_scaling_mscale": 5.0}));
        assert!((magnitude(&five) - (0.5 * ln + 1.0)).abs() < 1e-12);
        let both = of(json!({"rope_scaling_mscale": 5.0, "rope_scaling_mscale_all_dim": 2.0}));
        assert!((magnitude(&both) - (0.5 * ln + 1.0) / (0.2 * ln + 1.0)).abs() < 1e-12);
        for c in [plain, five, both] {
            let again = from_args(&to_args(&c)).unwrap();
            assert!((magnitude(&again) - magnitude(&c)).abs() < 1e-12);
        }
    }

    #[test]
    fn sizes_beyond_all_bounds_are_refused() {
        let json = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 100
        });
        let args = to_args(&hf::read_config(&json).unwrap());
        let mut wide = args.clone();
        wide.insert("hidden_size".into(), json!(1_u64 << 62));
        assert!(from_args(&wide).is_err());
        wide.insert("ffn_hidden_size".into(), json!(null));
        assert!(from_args(&wide).is_err());
        let mut shared = args;
        shared.insert("num_experts".into(), json!(4));
        shared.insert("n_shared_experts".into(), json!(1_u64 << 62));
        assert!(from_args(&shared).is_err());
    }

    #[test]
    fn what_is_not_supported_says_which_flag_would_do() {
        let mut args = to_args(
            &hf::read_config(&json!({
                "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 4, "vocab_size": 100
            }))
            .unwrap(),
        );
        args.insert("normalization".into(), json!("ScaleNorm"));
        assert_eq!(
            from_args(&args).unwrap_err().to_string(),
            "megatron arguments: normalization ScaleNorm is not supported; pass --normalization RMSNorm"
        );
        args.insert("normalization".into(), json!("RMSNorm"));
        args.insert("add_position_embedding".into(), json!(false));
        assert!(from_args(&args).is_ok());
        args.insert("position_embedding_type".into(), json!("learned_absolute"));
        args.insert("use_rotary_position_embeddings".into(), json!(false));
        let said = from_args(&args).unwrap_err().to_string();
        assert!(said.contains("--no-position-embedding beside learned positions"), "{said}");
    }

    #[test]
    fn flags_that_choose_the_same_thing_are_ranked_as_upstream_ranks_them_or_refused() {
        let of = |flags: Value| {
            let mut args = json!({
                "num_layers": 2, "hidden_size": 96, "num_attention_heads": 2, "padded_vocab_size": 32,
                "max_position_embeddings": 32, "add_bias_linear": false
            });
            args.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
            from_args(args.as_object().unwrap())
        };
        let feed = |flags: Value| of(flags).map(|c| (c.activation, c.ffn)).unwrap();
        assert_eq!(feed(json!({"swiglu": true})), (Activation::Swiglu, 256));
        // A gate by GELU wins, and the usual width stays that of SwiGLU.
        assert_eq!(feed(json!({"swiglu": true, "geglu": true})), (Activation::GegluErf, 256));
        assert_eq!(feed(json!({"geglu": true})), (Activation::GegluErf, 384));
        assert_eq!(feed(json!({"swiglu": true, "gelu_tanh": true})), (Activation::GegluTanh, 256));
        assert_eq!(feed(json!({"geglu": true, "gelu_tanh": true})), (Activation::GegluTanh, 384));
        assert_eq!(feed(json!({"squared_relu": true})), (Activation::ReluSquared, 384));
        assert_eq!(feed(json!({})), (Activation::GeluErf, 384));
        assert_eq!(feed(json!({"add_bias_linear": true})), (Activation::GeluTanh, 384));
        let refused = |flags: Value, says: &[&str]| {
            let said = of(flags).unwrap_err().to_string();
            assert!(says.iter().all(|flag| said.contains(flag)), "{said}");
        };
        refused(json!({"swiglu": true, "squared_relu": true}), &["--squared-relu", "--swiglu"]);
        refused(json!({"geglu": true, "squared_relu": true}), &["--squared-relu", "--geglu"]);
        refused(json!({"gelu_tanh": true, "openai_gelu": true}), &["--gelu-tanh", "--openai-gelu"]);
        refused(json!({"swiglu": true, "openai_gelu": true}), &["--openai-gelu", "--swiglu"]);
        refused(json!({"swiglu": true, "geglu": true, "swiglu_limit": 7.0}), &["--swiglu-limit", "--geglu"]);
        let scaled = |kind: Value, factor: f64| {
            of(json!({
                "position_embedding_type": "rope", "rope_scaling_type": kind, "rotary_seq_len_interpolation_factor": factor
            }))
        };
        let linear = crate::RopeScaling::Linear { factor: 2.0 };
        assert_eq!(scaled(Value::Null, 2.0).unwrap().rope.scaling, linear);
        assert_eq!(scaled(json!("plm"), 2.0).unwrap().rope.scaling, linear);
        let said = scaled(json!("dynamic"), 2.0).unwrap_err().to_string();
        let names = ["--rotary-seq-len-interpolation-factor 2", "--rope-scaling-type dynamic"];
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
    }

    /// Angles at position 20 that v2.0.0's `RotaryEmbedding` (Megatron-LM `core_r0.8.0`) and MindSpeed-LLM's wrappers of it print
    /// under PyTorch 2.15: hidden size 32, two heads.
    #[test]
    fn positions_are_divided_beside_what_stretches_frequencies() {
        let of = |kind: &str, factor: f64| {
            let args = json!({
                "num_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "ffn_hidden_size": 8, "padded_vocab_size": 8,
                "max_position_embeddings": 64, "position_embedding_type": "rope", "rope_scaling_type": kind,
                "rope_scaling_factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "rope_scaling_original_max_position_embeddings": 16,
                "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5], "short_factor": [1, 1, 1, 1, 1, 1, 1, 1],
                "rotary_seq_len_interpolation_factor": factor
            });
            let config = from_args(args.as_object().unwrap()).unwrap();
            assert_eq!(from_args(&to_args(&config)).unwrap(), config, "{kind}");
            config
        };
        let llama3 = [
            6.36619758605957,
            0.7905694246292114,
            0.25,
            0.07905694842338562,
            0.02499999850988388,
            0.007905694656074047,
            0.002500000176951289,
            0.0007905694656074047,
        ];
        let yarn = [&[10.0], &llama3[1..]].concat();
        let longrope = [
            10.0,
            2.108185291290283,
            0.5,
            0.12649111449718475,
            0.03333333507180214,
            0.00903507973998785,
            0.002500000176951289,
            0.0007027284591458738,
        ];
        for (kind, want) in [("llama3", &llama3[..]), ("yarn", &yarn), ("longrope", &longrope)] {
            let config = of(kind, 2.0);
            let got = config.frequencies(0, 32).inv_freq;
            assert_eq!(got.len(), want.len(), "{kind}");
            for (got, want) in got.iter().map(|f| 20.0 * f).zip(want) {
                assert!((got - want).abs() < 1e-6 * want, "{kind}: {got} {want}");
            }
            assert_eq!(config.frequencies(0, 32).magnitude, of(kind, 1.0).frequencies(0, 32).magnitude);
        }
        // No Hugging Face class can express it.
        let mut llama = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 100
        });
        llama["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16
        });
        let mut config = hf::read_config(&llama).unwrap();
        config.rope.divided = 2.0;
        let said = hf::write_config(&config, hf::Dialect::V4).unwrap_err().to_string();
        assert!(said.contains("rope"), "{said}");
    }

    #[test]
    fn scripts_of_upstream_describe_their_models() {
        // The flags of v2.0.0's DeepSeek-V3 script, as far as they describe the model.
        let args = json!({
            "num_layers": 61, "hidden_size": 7168, "ffn_hidden_size": 18432, "num_attention_heads": 128,
            "vocab_size": 129_280, "multi_head_latent_attention": true, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128, "qk_layernorm": true, "num_experts": 256,
            "moe_router_topk": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3,
            "moe_layer_freq": 1, "moe_router_load_balancing_type": "noaux_tc", "n_group": 8, "topk_group": 4,
            "routed_scaling_factor": 2.5, "norm_topk_prob": true, "moe_router_score_function": "sigmoid",
            "swiglu": true, "normalization": "RMSNorm", "position_embedding_type": "rope",
            "untie_embeddings_and_output_weights": true, "num_nextn_predict_layers": 1
        });
        let c = from_args(args.as_object().unwrap()).unwrap();
        assert_eq!(c.family.model_type(), Some("deepseek_v3"));
        let total: usize = crate::params(&c).iter().map(|p| p.shape.numel()).sum();
        // 671 billion, and 11.5 of the prediction layer, whose embedding and output layer are the model's.
        assert_eq!(total / 1_000_000_000, 682);
        assert!(c.rope.interleaved && c.moe.unwrap().router.bias);
    }

    #[test]
    fn layers_of_experts_are_told_by_a_number_or_by_lists() {
        let json = json!({
            "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 4, "vocab_size": 100, "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32
        });
        let args = to_args(&hf::read_config(&json).unwrap());
        let layers = |freq: Value| -> Result<Vec<bool>> {
            let mut args = args.clone();
            args.insert("moe_layer_freq".into(), freq);
            let c = from_args(&args)?;
            Ok((0..4).map(|l| c.layer(l).feed == crate::Feed::Moe).collect())
        };
        assert_eq!(layers(json!("1")).unwrap(), [true; 4]);
        assert_eq!(layers(json!("2")).unwrap(), [true, false, true, false]);
        assert_eq!(layers(json!("([0]*1 + [1,0,1])")).unwrap(), [false, true, false, true]);
        assert_eq!(layers(json!([0, 0, 1, 1])).unwrap(), [false, false, true, true]);
        for wrong in ["[1]*5", "[1]*99999999999", "[x]", "1.5", "__import__('os')"] {
            assert!(layers(json!(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn groups_that_give_as_many_experts_each_are_read_and_written() {
        let args = json!({
            "num_layers": 2, "hidden_size": 16, "ffn_hidden_size": 32, "num_attention_heads": 2, "padded_vocab_size": 32,
            "max_position_embeddings": 32, "swiglu": true, "normalization": "RMSNorm", "num_experts": 8, "moe_router_topk": 4,
            "moe_router_pre_softmax": true, "moe_router_num_groups": 2, "moe_router_balanced_groups": true
        });
        let args = args.as_object().unwrap();
        let config = from_args(args).unwrap();
        let groups = config.moe.as_ref().unwrap().router.groups.unwrap();
        assert_eq!((groups.groups, groups.keep, groups.by), (2, 2, crate::GroupScore::Alike));
        assert_eq!(from_args(&to_args(&config)).unwrap().moe, config.moe);
        let mut odd = args.clone();
        odd.insert("moe_router_topk".into(), json!(3));
        let said = from_args(&odd).and_then(crate::ModelConfig::validate).unwrap_err().to_string();
        assert!(said.contains("experts per token") && said.contains('3'), "{said}");
    }

    #[test]
    fn the_script_of_deepseek_v4_describes_the_published_model() {
        // The flags of head's script for DeepSeek-V4-Flash, as far as they describe the model.
        let ratios: Vec<usize> =
            [0, 0].into_iter().chain((0..42).map(|l| if l % 2 == 0 { 4 } else { 128 })).collect();
        let mut args = json!({
            "num_layers": 44, "noop_layers": "43", "hidden_size": 4096, "ffn_hidden_size": 4096,
            "num_attention_heads": 64, "padded_vocab_size": 129_280, "vocab_size": 129_280, "enable_mhc": true,
            "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "enable_dsa_indexer": true, "index_n_heads": 64,
            "index_head_dim": 128, "index_topk": 512, "multi_latent_attention": true, "qk_pos_emb_head_dim": 64,
            "qk_head_dim": 512, "q_lora_rank": 1024, "o_lora_rank": 1024, "kv_lora_rank": 512, "v_head_dim": 128,
            "qk_layernorm": true, "kv_compress": true, "o_groups": 8, "sliding_window_size": 128
        });
        let more = json!({
            "original_seq_len": 65_536, "rope_factor": 16, "compress_rope_theta": 160_000.0, "rope_theta": 10_000.0,
            "compress_ratios": ratios, "moe_layer_freq": "1", "first_k_dense_replace": -1, "num_experts": 256,
            "moe_router_topk": 6, "moe_ffn_hidden_size": 2048, "moe_router_load_balancing_type": "none",
            "moe_router_group_topk": 1, "moe_router_num_groups": 1, "moe_router_topk_scaling_factor": 1.5,
            "moe_router_score_function": "sqrtsoftplus", "moe_router_enable_expert_bias": true,
            "moe_shared_expert_intermediate_size": 2048, "moe_router_dtype": "fp32", "n_hash_layers": 3,
            "swiglu_limit": 10.0, "mtp_num_layers": 1, "beta_fast": 32, "beta_slow": 1, "rope_scaling_type": "yarn",
            "rope_scaling_factor": 40.0, "rope_scaling_mscale": 1.0, "rope_scaling_mscale_all_dim": 1.0,
            "swiglu": true, "normalization": "RMSNorm", "norm_epsilon": 1e-6, "position_embedding_type": "deepseek4",
            "untie_embeddings_and_output_weights": true, "max_position_embeddings": 163_840
        });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let c = from_args(args.as_object().unwrap()).unwrap();
        assert_eq!((c.family.model_type(), c.layers, c.mtp), (Some("deepseek_v4"), 43, 1));
        let params = crate::params(&c);
        let total = |mtp: bool| -> usize {
            let part =
                params.iter().filter(|p| mtp == matches!(p.slot.place, crate::Place::Mtp(_)) && p.trained());
            part.map(|p| p.shape.numel()).sum()
        };
        // 284 billion, as published.
        assert_eq!(total(false) / 1_000_000_000, 284);
        assert_eq!(total(true) / 1_000_000_000, 6);
        assert_eq!(c.layer(2).pooled, Some(crate::Pooled { ratio: 4, picked: true }));
        assert_eq!((c.layer(3).pooled.unwrap().ratio, c.layer(1).pooled), (128, None));
        assert!(c.layer(2).hashed && !c.layer(3).hashed && c.window(43) == Some(128));
        assert_eq!((c.rope_of(0).base, c.rope_of(2).base, c.rotated()), (1e4, 1.6e5, 64));

        // The same model as its configuration in the published form.
        let published = json!({
            "model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": 4096, "head_dim": 512,
            "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1, "vocab_size": 129_280,
            "q_lora_rank": 1024, "qk_rope_head_dim": 64, "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128,
            "compress_ratios": args["compress_ratios"], "compress_rope_theta": 160_000, "rope_theta": 10_000,
            "rope_scaling": {
                "type": "yarn", "factor": 16, "original_max_position_embeddings": 65_536, "beta_fast": 32,
                "beta_slow": 1
            },
            "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "index_n_heads": 64, "index_head_dim": 128,
            "index_topk": 512, "num_hash_layers": 3, "n_routed_experts": 256, "n_shared_experts": 1,
            "num_experts_per_tok": 6, "moe_intermediate_size": 2048, "scoring_func": "sqrtsoftplus",
            "routed_scaling_factor": 1.5, "norm_topk_prob": true, "swiglu_limit": 10.0, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "num_nextn_predict_layers": 1, "max_position_embeddings": 163_840
        });
        assert_eq!(
            (c.empty_slots, hf::read_config(&published).unwrap()),
            (1, ModelConfig { empty_slots: 0, ..c })
        );
    }
}
