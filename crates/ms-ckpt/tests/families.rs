//! Any family, any legal sharding, in any direction: the same bytes.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::path::Path;

use ms_ckpt::layout::mcore::{Experts, FileGrid, FourBit, Hints, Spelling, Version};
use ms_ckpt::layout::torch_dist::Modules;
use ms_ckpt::sharded::{Piece, Writer};
use ms_ckpt::{ArgsForm, HfLayout, Plan, Run, RunOptions, Sharding, open, open_with};
use ms_core::{DType, GridSizes};
use ms_spec::{Block, ModelConfig, ParamSpec, Placement, Role, Stages, hf};
use ms_testing::{golden_model, golden_models, tree};
use proptest::prelude::*;
use serde_json::{Value, json};

const RUN: RunOptions = RunOptions { threads: 2, sync: false, replace: false };

/// Variants of families other than their samples: what `config.json` says in addition to the common sizes.
fn forms() -> Vec<Value> {
    let mla = json!({"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8});
    let deepseek = json!({
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": true
    });
    let with = |parts: &[&Value]| {
        let mut all = serde_json::Map::new();
        parts.iter().for_each(|p| all.extend(p.as_object().unwrap().clone()));
        Value::Object(all)
    };
    let moe = json!({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8});
    let longrope =
        json!({"rope_scaling": {"type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [1.0, 3.0]}});
    let named = |name: &str, rest: Value| with(&[&json!({"model_type": name}), &rest]);
    vec![
        named("llama", json!({"tie_word_embeddings": true})),
        named("mistral", json!({})),
        named("qwen2", json!({})),
        named("qwen3", json!({"head_dim": 6})),
        named("aquila", json!({})),
        named("internlm", json!({"bias": true})),
        named("internlm2", json!({})),
        named("internlm3", json!({"qkv_bias": true, "bias": true})),
        named("seed_oss", json!({"head_dim": 8})),
        named("baichuan", json!({"num_key_value_heads": 4})),
        named("qwen", json!({"num_key_value_heads": 4})),
        named("qwen2_moe", with(&[&moe, &json!({"shared_expert_intermediate_size": 12})])),
        named("qwen3_moe", with(&[&moe, &json!({"head_dim": 4, "mlp_only_layers": [2]})])),
        named(
            "qwen3_next",
            with(&[
                &moe,
                &json!({
                    "head_dim": 8, "shared_expert_intermediate_size": 8, "linear_num_key_heads": 2,
                    "linear_num_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 6,
                    "num_nextn_predict_layers": 1
                }),
            ]),
        ),
        named("mixtral", json!({"num_local_experts": 8, "num_experts_per_tok": 2})),
        named(
            "minimax_m2",
            json!({"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 8, "rotary_dim": 4}),
        ),
        named(
            "chatglm",
            json!({
                "num_layers": 4, "padded_vocab_size": 64, "ffn_hidden_size": 24, "kv_channels": 4,
                "multi_query_attention": true, "multi_query_group_num": 2, "add_qkv_bias": true
            }),
        ),
        named("glm", json!({"head_dim": 8})),
        named("glm4", json!({"head_dim": 8})),
        named(
            "glm4_moe",
            with(&[
                &deepseek,
                &json!({"use_qk_norm": true, "attention_bias": true, "num_nextn_predict_layers": 1}),
            ]),
        ),
        named(
            "glm_moe_dsa",
            with(&[
                &mla,
                &deepseek,
                &json!({
                    "index_n_heads": 2, "index_head_dim": 8, "index_topk_freq": 2, "index_skip_topk_offset": 1
                }),
            ]),
        ),
        named(
            "bailing_moe",
            with(&[
                &moe,
                &json!({
                    "num_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 8, "num_nextn_predict_layers": 1
                }),
            ]),
        ),
        named(
            "hunyuan",
            json!({"num_experts": 8, "moe_topk": 1, "num_shared_expert": 1, "use_cla": true, "use_qk_norm": true}),
        ),
        named(
            "hy_v3",
            with(&[
                &moe,
                &json!({
                    "num_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 8, "num_nextn_predict_layers": 1
                }),
            ]),
        ),
        named("phi3", longrope.clone()),
        named(
            "phimoe",
            with(&[
                &longrope,
                &json!({
                    "num_local_experts": 8, "num_experts_per_tok": 2, "attention_bias": true, "lm_head_bias": true
                }),
            ]),
        ),
        named("gemma", json!({"head_dim": 8})),
        named("gemma2", json!({"head_dim": 8})),
        named("minicpm", json!({"num_experts": 8, "num_experts_per_tok": 2})),
        named("granite", json!({"mlp_bias": true, "attention_bias": true, "residual_multiplier": 0.5})),
        named("olmo2", json!({})),
        named("minicpm3", mla.clone()),
        named("plm", with(&[&mla, &json!({"q_lora_rank": null, "hidden_act": "relu2"})])),
        named(
            "deepseek_v2",
            with(&[&mla, &deepseek, &json!({"q_lora_rank": null, "topk_method": "group_limited_greedy"})]),
        ),
        named("deepseek_v2", with(&[&mla, &deepseek, &json!({"q_lora_rank": null, "attention_bias": true})])),
        named("deepseek_v3", with(&[&mla, &deepseek, &json!({"num_nextn_predict_layers": 1})])),
        named("deepseek_v3", with(&[&mla, &deepseek, &json!({"first_k_dense_replace": 4})])),
        named("kimi_k2", with(&[&mla, &deepseek, &json!({"attention_bias": true})])),
        named("deepseek_v32", with(&[&mla, &deepseek, &json!({"index_n_heads": 2, "index_head_dim": 8})])),
        named(
            "deepseek_v4",
            json!({
                "num_key_value_heads": 1, "head_dim": 8, "qk_rope_head_dim": 4, "q_lora_rank": 12, "o_groups": 2,
                "o_lora_rank": 6, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 2, "sliding_window": 4,
                "hc_mult": 3, "compress_ratios": [0, 4, 128, 4, 0], "num_hash_layers": 1, "n_routed_experts": 8,
                "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1,
                "num_nextn_predict_layers": 1
            }),
        ),
        named("bloom", json!({"n_layer": 4, "n_head": 4, "num_key_value_heads": 4})),
        named(
            "gpt2",
            json!({"n_layer": 4, "n_head": 4, "n_embd": 16, "n_positions": 32, "num_key_value_heads": 4}),
        ),
        named("gpt_oss", json!({"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 8})),
        named(
            "longcat_flash",
            with(&[
                &mla,
                &json!({
                    "num_layers": 4, "ffn_hidden_size": 24, "expert_ffn_hidden_size": 8, "n_routed_experts": 8,
                    "zero_expert_num": 4, "moe_topk": 2
                }),
            ]),
        ),
        named(
            "step3p5",
            json!({
                "head_dim": 8, "num_attention_groups": 2, "sliding_window": 4, "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5],
                "rope_theta": [50000.0, 10000.0, 10000.0, 50000.0], "attention_other_setting": {"num_attention_heads": 8},
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                "moe_layers_enum": "1,3", "moe_num_experts": 8, "moe_top_k": 2, "moe_intermediate_size": 8,
                "share_expert_dim": 8, "swiglu_limits_shared": [0.0, 1.5, 0.0, null]
            }),
        ),
        named("mamba2", json!({"expand": 2, "head_dim": 4, "n_groups": 2, "state_size": 4})),
        named("mamba3", json!({"expand": 2, "head_dim": 4, "state_size": 8})),
        named(
            "mamba3",
            json!({"expand": 2, "head_dim": 4, "state_size": 8, "is_mimo": true, "mimo_rank": 2}),
        ),
    ]
}

/// The sample models of all families.
fn samples() -> Vec<String> {
    golden_models().into_iter().filter(|name| !name.starts_with("shared/")).collect()
}

/// How many models there are: forms with any number of layers, and samples with their own.
fn count() -> usize {
    forms().len() + samples().len()
}

fn config(number: usize, layers: usize) -> ModelConfig {
    let forms = forms();
    let Some(form) = forms.get(number) else {
        let folder = golden_model(&samples()[number - forms.len()]).unwrap();
        let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
        return hf::read_config(&hf::parse_json(&text).unwrap()).unwrap();
    };
    let mut json = json!({
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64
    });
    for (key, value) in form.as_object().unwrap() {
        json[key] = value.clone();
    }
    for key in ["num_hidden_layers", "num_layers", "n_layer"] {
        if json.get(key).is_some() {
            json[key] = json!(layers);
        }
    }
    hf::read_config(&json).unwrap_or_else(|e| panic!("{json}: {e}"))
}

/// How many of the first elements of a parameter are zero in Hugging Face: biases of queries that no latent is made of.
fn zeros(config: &ModelConfig, spec: &ParamSpec) -> usize {
    match config.mla() {
        Some(mla) if mla.q_rank.is_none() && spec.slot.bias && spec.slot.role == Role::LinearQkv => {
            config.heads * (mla.nope + mla.rope)
        }
        _ => 0,
    }
}

/// Writes a model whose every element says where it belongs.
fn make(dir: &Path, config: &ModelConfig) {
    ms_ckpt::write_hf(dir, config, DType::Bf16, false, &mut |spec| {
        let zeros = zeros(config, spec);
        let mut x = spec.name.bytes().fold(7u32, |h, b| h.wrapping_mul(31) ^ u32::from(b));
        if spec.integral {
            return Ok((0..spec.shape.numel()).flat_map(|i| ((i % 8) as f32).to_le_bytes()).collect());
        }
        Ok((0..spec.shape.numel())
            .flat_map(|i| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if i < zeros { [0; 2] } else { ((x >> 16) as u16 & 0xbfff).to_le_bytes() }
            })
            .collect())
    })
    .unwrap();
}

#[derive(Clone, Debug)]
struct Way {
    file_grid: FileGrid,
    spelling: Spelling,
    sharded: bool,
    distributed: bool,
}

/// A cut and spelling that the model allows, from free choices.
fn way(c: &ModelConfig, tp: usize, pp: usize, ep: usize, choice: u32) -> Way {
    let bit = |n: u32| choice >> n & 1 == 1;
    let tp = if ms_spec::check_cut(c, tp).is_ok() { tp } else { 1 };
    let ep = if c.moe.is_some() { ep } else { 1 };
    let experts = if bit(0) { Experts::Grouped } else { Experts::Sequential };
    let biased = c.moe.is_some() && c.bias.mlp;
    let te = bit(1);
    let experts = if biased && !te { Experts::Sequential } else { experts };
    let sizes = GridSizes { tp, ep, ..GridSizes::default() };
    let (sizes, extend_ep) = match (c.moe.is_some() && tp > 1, bit(2), bit(3)) {
        (true, true, _) if tp.is_multiple_of(ep) || ep.is_multiple_of(tp) => {
            (GridSizes { etp: Some(1), ..sizes }, false)
        }
        (true, false, true) if experts == Experts::Grouped => {
            (GridSizes { ep: ep * tp, etp: Some(1), ..sizes }, true)
        }
        _ => (sizes, false),
    };
    let fits =
        |s: &GridSizes| c.moe.is_none() || ms_spec::check_expert_cut(c, s.ep, s.etp.unwrap_or(s.tp)).is_ok();
    let alone = GridSizes { tp, ..GridSizes::default() };
    let (sizes, extend_ep) = match (fits(&sizes), fits(&alone)) {
        (true, _) => (sizes, extend_ep),
        (false, true) => (alone, false),
        (false, false) => (GridSizes { etp: Some(1), ..alone }, false),
    };
    let mut stages = Stages { pp, ..Stages::default() };
    match choice >> 8 & 3 {
        1 if pp > 1 => stages.dual_pipe = c.layers.is_multiple_of(2 * pp),
        2 if pp == 2 => stages.layer_list = Some(vec![1, c.layers - 1]),
        3 => stages.noop = (0..(pp - c.layers % pp) % pp).collect(),
        _ => {}
    }
    if Placement::new(c, &stages).is_err() {
        stages = Stages::default();
    }
    let file_grid = FileGrid::new(&sizes, stages, extend_ep).unwrap();
    let recurrent = c.mamba2.is_some() || c.mamba3.is_some() || c.gated_delta.is_some();
    let plain = c.moe.is_none() && c.mla().is_none() && !recurrent;
    let spelling = Spelling {
        version: if bit(4) { Version::V2_0_0 } else { Version::Head },
        transformer_engine: te,
        as_trained: te && bit(11),
        experts,
        split_heads: bit(5) && c.mla().is_some(),
        nf4: FourBit::None,
        legacy: bit(6) && plain && !te && c.block == Block::Pre,
    };
    let spelling =
        if spelling.split_heads { Spelling { version: Version::Head, ..spelling } } else { spelling };
    Way { file_grid, spelling, sharded: bit(7), distributed: bit(10) }
}

fn convert(from: &Path, to: &Path, way: &Way) {
    let hints = Hints::default();
    let source = open_with(from, None, &hints).unwrap_or_else(|e| panic!("{way:?}: {e}"));
    let c = source.config();
    let dtype = |name: &str| source.dtype(name);
    let (args, run) = (ArgsForm::Namespace, Run::default());
    let plan = match (way.sharded, way.distributed) {
        (true, false) => Plan::sharded(c, &way.file_grid, &dtype, &run),
        (true, true) => Plan::torch_dist(c, &way.file_grid, Modules::default(), args, &dtype, &run),
        (false, _) => Plan::mcore(c, &way.file_grid, way.spelling, args, &dtype, &run),
    };
    plan.unwrap_or_else(|e| panic!("{way:?}: {e}")).run(&source, to, &RUN, &|_| ()).unwrap();
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
}

#[test]
fn what_is_in_a_prediction_layer_beside_its_layer_has_the_names_of_the_family() {
    for (family, want) in [
        ("deepseek_v3", "eh_proj embed_tokens enorm hnorm shared_head.head shared_head.norm"),
        // Upstream's `configs/checkpoint/model_cfg.json` of 2026.
        ("bailing_moe", "eh_proj enorm final_layernorm hnorm"),
        ("hy_v3", "eh_proj enorm final_layernorm hnorm"),
    ] {
        let form =
            forms().iter().position(|f| f["model_type"] == family && f["num_nextn_predict_layers"] == 1);
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), &config(form.unwrap(), 2));
        let model = open(dir.path()).unwrap();
        let names = model.stored().map(|tensor| tensor.name);
        let own = names.filter_map(|name| name.strip_prefix("model.layers.2.")?.strip_suffix(".weight"));
        let layer = ["mlp.", "self_attn.", "attention.", "input_", "post_attention_"];
        let mut beside: Vec<&str> = own.filter(|name| !layer.iter().any(|l| name.starts_with(l))).collect();
        beside.sort_unstable();
        assert_eq!(beside.join(" "), want, "{family}");
    }
}

#[test]
fn dense_layers_alone_of_a_model_with_experts_come_back_from_ranks_with_whole_ones() {
    let all_dense = |form: &Value| form["first_k_dense_replace"] == 4;
    let c = config(forms().iter().position(all_dense).unwrap(), 2);
    let one = Way {
        file_grid: FileGrid::default(),
        spelling: Spelling::default(),
        sharded: false,
        distributed: false,
    };
    for (tp, ep, pp) in [(2, 2, 1), (2, 4, 1), (4, 2, 1), (2, 2, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        make(&path("hf"), &c);
        let sizes = GridSizes { tp, ep, etp: Some(1), ..GridSizes::default() };
        let file_grid = FileGrid::new(&sizes, Stages { pp, ..Stages::default() }, false).unwrap();
        convert(&path("hf"), &path("a"), &Way { file_grid, ..one.clone() });
        convert(&path("a"), &path("b"), &one);
        convert(&path("hf"), &path("direct"), &one);
        assert!(tree(&path("b")) == tree(&path("direct")), "tp {tp}, ep {ep}, pp {pp}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn every_family_goes_through_any_cut_and_back_byte_for_byte(
        model in 0..count(), layers in prop::sample::select(vec![2usize, 4]),
        first in (prop::sample::select(vec![1usize, 2]), 1usize..4, prop::sample::select(vec![1usize, 2, 4]), any::<u32>()),
        second in (prop::sample::select(vec![1usize, 2]), 1usize..3, prop::sample::select(vec![1usize, 2, 4]), any::<u32>()),
    ) {
        let c = config(model, layers);
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        make(&path("hf"), &c);
        let a = way(&c, first.0, first.1, first.2, first.3);
        let b = way(&c, second.0, second.1, second.2, second.3);
        convert(&path("hf"), &path("a"), &a);
        convert(&path("a"), &path("b"), &b);
        convert(&path("hf"), &path("direct"), &b);
        prop_assert!(tree(&path("b")) == tree(&path("direct")), "{:?} {:?}", a, b);
        let source = open(&path("b")).unwrap();
        let layout = HfLayout::find(&path("hf")).unwrap().unwrap();
        let dtype = |name: &str| source.dtype(name);
        let like = Plan::hf_like(source.config(), &layout, &dtype).unwrap().unwrap();
        like.run(&source, &path("again"), &RUN, &|_| ()).unwrap();
        for (name, bytes) in tree(&path("again")) {
            prop_assert!(bytes == std::fs::read(path("hf").join(&name)).unwrap(), "{:?} {:?}", a, b);
        }
    }
}

#[test]
fn every_family_is_written_by_layer_and_read_again() {
    for model in 0..count() {
        let c = config(model, 4);
        let dir = tempfile::tempdir().unwrap();
        make(&dir.path().join("hf"), &c);
        let source = open(&dir.path().join("hf")).unwrap();
        let plan = Plan::hf(source.config(), &|n| source.dtype(n), Sharding::PerLayer).unwrap();
        let out = dir.path().join("out");
        plan.run(&source, &out, &RUN, &|_| ()).unwrap();
        std::fs::copy(dir.path().join("hf/config.json"), out.join("config.json")).unwrap();
        let again = open(&out).unwrap();
        assert_eq!(again.config(), source.config());
        for spec in ms_spec::params(&c) {
            let whole = ms_core::Region::whole(&spec.shape);
            let (mut a, mut b) = (vec![0u8; 2 * spec.shape.numel()], vec![0u8; 2 * spec.shape.numel()]);
            source.read(&spec, &whole, DType::Bf16, &mut a).unwrap();
            again.read(&spec, &whole, DType::Bf16, &mut b).unwrap();
            assert!(a == b, "{:?}: {}", c.family, spec.name);
        }
    }
}

/// transformers 5.24, `DeepseekV2Attention`: `q_proj` is made without a bias, whatever `attention_bias` says.
#[test]
fn queries_that_no_latent_is_made_of_have_no_bias_in_hugging_face() {
    let biased = |c: &ModelConfig| c.mla().is_some_and(|m| m.q_rank.is_none()) && c.bias.qkv;
    let number = (0..forms().len()).find(|&n| biased(&config(n, 2))).unwrap();
    let c = config(number, 2);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    make(&path("hf"), &c);
    let source = open(&path("hf")).unwrap();
    let names: Vec<&str> = source.stored().map(|t| t.name).collect();
    assert!(names.contains(&"model.layers.1.self_attn.kv_a_proj_with_mqa.bias"));
    assert!(!names.contains(&"model.layers.1.self_attn.q_proj.bias"));
    // One that has learned of it has no form there, from memory and from files.
    let other = |spec: &ParamSpec| {
        let mut bytes = vec![0; 2 * spec.shape.numel()];
        if zeros(&c, spec) > 0 && spec.slot.place == ms_spec::Place::Layer(1) {
            bytes[2 * 5..][..2].copy_from_slice(&0x3f00u16.to_le_bytes()); // 0.5
        }
        Ok(bytes)
    };
    let refused = |e: &ms_ckpt::Error| {
        let said = e.to_string();
        assert!(
            said.contains("model.layers.1.self_attn.q_proj.bias") && said.contains("element 5 is 0.5"),
            "{said}"
        );
    };
    refused(&ms_ckpt::write_hf(&path("no"), &c, DType::Bf16, false, &mut |spec| other(spec)).unwrap_err());
    assert!(!path("no").exists());
    let specs = ms_spec::params(&c);
    let bytes: Vec<Vec<u8>> = specs.iter().map(|spec| other(spec).unwrap()).collect();
    let pieces: Vec<Piece<'_>> = specs
        .iter()
        .zip(&bytes)
        .map(|(spec, bytes)| Piece {
            name: &spec.name,
            shape: spec.shape,
            dtype: DType::Bf16,
            region: ms_core::Region::whole(&spec.shape),
            flat: None,
            bytes: bytes[..].into(),
        })
        .collect();
    let writer = Writer::create(&path("sharded"), 1).unwrap();
    writer.write_rank(0, &pieces).unwrap();
    writer.finish(&c, &Value::Null).unwrap();
    let source = open(&path("sharded")).unwrap();
    let plan = Plan::hf(source.config(), &|n| source.dtype(n), Sharding::PerLayer).unwrap();
    refused(&plan.run(&source, &path("no"), &RUN, &|_| ()).unwrap_err());
    assert!(!path("no").exists());
}
