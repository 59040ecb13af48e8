//! Classes with multi-head latent attention.

use serde_json::{Value, json};

use super::scaled::{MINICPM_SCALES, minicpm};
use crate::field::Field;
use crate::hf::class::{Class, class};
use crate::hf::common::{ACTIVATION, BIAS, MLP_BIAS, NAMES, Names, SIZES, heads, sizes};
use crate::hf::latent::{INDEX_OWNERS, INDEXER, LATENT, MLA, mla};
use crate::hf::moe::{
    GROUPS_ALWAYS, LAYERS, LAYERS_ALWAYS, LAYERS_FROM_3, NOAUX, NOAUX_WORDS, NONE_WITHOUT, PLAIN_NETWORKS,
    RENORMALISE, ROUTER, SCALE, SHARED_1, SHARED_2, WIDTH, count, experts, moe, read_groups, router, shared,
    top_k, write_groups,
};
use crate::hf::rope::{INTERLEAVED_ROPE, ROPE};
use crate::hf::tensors::{EXPERTS_TENSORS, Tensors};
use crate::sizes::{Activation, Block, GroupLimit, GroupScore, Indexer, Router, RouterDtype};
use crate::{Family, ModelConfig, Rope};

/// The classes of this file. A model without a class gets the first one that can describe it.
pub(super) const CLASSES: &[Class] =
    &[MINICPM3, PLM, DEEPSEEK_V2, DEEPSEEK_V3, KIMI_K2, DEEPSEEK_V32, GLM_MOE_DSA, LONGCAT];

/// Latent attention with neighbouring pairs rotated.
fn deepseek(c: &mut ModelConfig) {
    c.rope = Rope { interleaved: true, ..Rope::plain(10_000.0) };
    c.attention = LATENT;
}

/// PLM: latent attention, squared ReLU.
const PLM: Class = class!(
    Family::new("Plm", &PLM_TENSORS),
    ["plm"],
    "PLMForCausalLM",
    |c| {
        deepseek(c);
        c.tied = true;
        c.activation = Activation::ReluSquared;
    },
    &[SIZES, INTERLEAVED_ROPE, &[ACTIVATION, BIAS], MLA],
);

/// MiniCPM3: latent attention.
const MINICPM3: Class = class!(
    Family::new("MiniCpm3", &DEEPSEEK_TENSORS),
    ["minicpm3"],
    "MiniCPM3ForCausalLM",
    |c| {
        minicpm(c);
        c.max_positions = 32_768;
        c.norm_eps = 1e-5;
        c.init_std = 0.1;
        c.attention = LATENT;
    },
    &[
        SIZES,
        ROPE,
        &[ACTIVATION, BIAS, MLP_BIAS],
        &[MLA[0], MLA[1], MLA[2], MLA[3], MLA[4].else_by(values_of_equal_heads), MLA[5], MLA[6], MLA[7]],
        MINICPM_SCALES,
        &[Field::reading(|f, c| {
            let null = |name| f.map.get(name).is_some_and(Value::is_null);
            if null("scale_depth") {
                c.scales.residual = 1.0;
            }
            if null("dim_model_base") {
                c.scales.logits = 1.0;
            }
            Ok(())
        })],
    ],
);

/// Published files do not name the size of a value.
///
/// # Source
/// `MiniCPMAttention` of `modeling_minicpm.py`, published with the weights, and transformers 5.24, `MiniCPM3Config`.
fn values_of_equal_heads(c: &mut ModelConfig) {
    let size = c.hidden / c.heads.max(1);
    mla(c).into_iter().for_each(|m| m.value = size);
}

/// The best groups are those of the best expert, if the file says so; weights are scaled or, if there are several, divided by
/// their sum, never both.
const V2_CHOICE: &[Field] = &[
    Field::rule(
        |f, c| match f.text("topk_method")? {
            Some("group_limited_greedy") if c.moe.is_some() => {
                f.need_of(&["n_group", "num_expert_group"])?;
                f.need("topk_group")?;
                read_groups(f, c, GroupScore::Best(1))
            }
            _ => Ok(()),
        },
        |c, w| {
            let limited = c.moe.as_ref().is_some_and(|m| m.router.groups.is_some());
            w.set("topk_method", json!(if limited { "group_limited_greedy" } else { "greedy" }));
            write_groups(c, w);
        },
    ),
    Field::told("scoring_func", |_| json!("softmax")),
    RENORMALISE,
    SCALE,
    Field::then(|c| {
        if let Some(m) = moe(c) {
            m.router.renormalise &= m.top_k > 1;
            m.router.scale = if m.router.renormalise { 1.0 } else { m.router.scale };
        }
    }),
];

/// `DeepSeek`'s experts: their number and width.
const EXPERTS: &[Field] = &[
    count("n_routed_experts"),
    NONE_WITHOUT,
    top_k("num_experts_per_tok"),
    WIDTH,
    shared("n_shared_experts"),
];

/// DeepSeek-V2, V2-Lite, V2.5.
const DEEPSEEK_V2: Class = class!(
    Family::new("DeepseekV2", &DEEPSEEK_TENSORS),
    ["deepseek_v2"],
    "DeepseekV2ForCausalLM",
    |c| {
        deepseek(c);
        c.moe = experts(ROUTER);
    },
    &[SIZES, ROPE, &[ACTIVATION, BIAS, PLAIN_NETWORKS], MLA, EXPERTS, &[SHARED_2], V2_CHOICE, &[LAYERS],],
);

/// How DeepSeek-V3 chooses and weighs.
const V3_CHOICE: &[Field] = &[SHARED_1, GROUPS_ALWAYS, RENORMALISE, SCALE, LAYERS_FROM_3];

/// What transformers' classes assume of it.
const V3_ROUTER: Router =
    Router { groups: Some(GroupLimit { groups: 8, keep: 4, by: GroupScore::Best(2) }), scale: 2.5, ..NOAUX };

/// DeepSeek-V3 and R1.
const DEEPSEEK_V3: Class = class!(
    Family::new("DeepseekV3", &DEEPSEEK_TENSORS),
    ["deepseek_v3"],
    "DeepseekV3ForCausalLM",
    |c| {
        deepseek(c);
        c.max_positions = 4096;
        c.moe = experts(V3_ROUTER);
    },
    &[SIZES, INTERLEAVED_ROPE, &[ACTIVATION, BIAS], MLA, EXPERTS, V3_CHOICE, NOAUX_WORDS],
);

/// A class published with the weights, which has no defaults for groups and dense layers.
const KIMI_K2: Class = class!(
    Family::new("KimiK2", &DEEPSEEK_TENSORS),
    ["kimi_k2"],
    DEEPSEEK_V3.name,
    |c| {
        deepseek(c);
        c.max_positions = 131_072;
        c.moe = experts(NOAUX);
    },
    &[
        SIZES,
        INTERLEAVED_ROPE,
        &[ACTIVATION, BIAS],
        MLA,
        EXPERTS,
        &[GROUPS_ALWAYS, RENORMALISE, SCALE, LAYERS_ALWAYS],
        NOAUX_WORDS,
    ],
);

/// Sparse attention with this scorer, where nothing is said.
fn sparse(c: &mut ModelConfig, heads: usize, interleaved: bool) {
    deepseek(c);
    c.indexer = Some(Indexer { heads, head_dim: 128, top_k: 2048, interleaved });
    c.moe = experts(V3_ROUTER);
}

/// DeepSeek-V3.2: sparse attention.
const DEEPSEEK_V32: Class = class!(
    Family::new("DeepseekV32", &DEEPSEEK_TENSORS),
    ["deepseek_v32"],
    "DeepseekV32ForCausalLM",
    |c| {
        sparse(c, 64, false);
        c.max_positions = 163_840;
    },
    &[SIZES, ROPE, &[ACTIVATION, BIAS], MLA, INDEXER, EXPERTS, V3_CHOICE, NOAUX_WORDS],
    |c| (0..c.layers).any(|l| c.layer(l).borrows_index).then_some("picks that layers share")
);

/// GLM-5: latent and sparse attention.
const GLM_MOE_DSA: Class = class!(
    Family::new("GlmMoeDsa", &DEEPSEEK_TENSORS),
    ["glm_moe_dsa"],
    "GlmMoeDsaForCausalLM",
    |c| {
        sparse(c, 32, true);
        c.max_positions = 202_752;
        c.norm_eps = 1e-5;
        c.moe = experts(Router { groups: None, ..V3_ROUTER });
    },
    &[SIZES, ROPE, &[ACTIVATION, BIAS], MLA, INDEXER, EXPERTS, V3_CHOICE, NOAUX_WORDS, &[INDEX_OWNERS],],
);

const LONGCAT_NAMES: Names = Names { layers: "num_layers", ffn: "ffn_hidden_size", ..NAMES };

/// Files say both: the second counts the halves of a layer.
const LONGCAT_LAYERS: Field = Field::rule(
    |f, c| {
        let halves = f.size("num_hidden_layers")?;
        let layers = f.size("num_layers")?.or(halves.map(|halves| halves / 2));
        c.layers = layers.or(f.size("n_layer")?).ok_or_else(|| f.missing("num_layers"))?;
        Ok(())
    },
    |c, w| w.set("num_layers", json!(c.layers)),
);

const LONGCAT_SIZES: &[Field] = {
    let [vocab, _, hidden, eps, positions, bounds] = sizes(LONGCAT_NAMES);
    &[vocab, LONGCAT_LAYERS, hidden, eps, positions, bounds]
};

/// LongCat-Flash: shortcut blocks, zero experts.
const LONGCAT: Class = class!(
    Family::new("LongCat", &LONGCAT_TENSORS),
    ["longcat_flash"],
    "LongcatFlashForCausalLM",
    |c| {
        deepseek(c);
        c.norm_eps = 1e-5;
        c.max_positions = 131_072;
        c.rope.base = 1e7;
        c.block = Block::Shortcut;
        c.moe = experts(Router { bias: true, scale: 6.0, dtype: RouterDtype::F32, ..ROUTER });
    },
    &[
        LONGCAT_SIZES,
        &heads(LONGCAT_NAMES),
        ROPE,
        &[ACTIVATION, BIAS],
        MLA,
        &[
            // What transformers' class calls it.
            Field::told("head_dim", |c| json!(c.mla().map(|m| m.rope))),
            Field::flag_as("mla_scale_q_lora", |c| c.mla().map(|m| m.q_scale != 1.0), scale_queries)
                .else_by(|c| scale_queries(c, true)),
            Field::flag_as("mla_scale_kv_lora", |c| c.mla().map(|m| m.kv_scale != 1.0), scale_keys)
                .else_by(|c| scale_keys(c, true)),
        ],
        &[
            count("n_routed_experts"),
            NONE_WITHOUT,
            top_k("moe_topk"),
            Field::size("expert_ffn_hidden_size", |c| Some(&mut moe(c)?.ffn))
                .or(&["expert_ffn_hidden_size", "moe_intermediate_size"])
                .needed(),
            Field::size("zero_expert_num", |c| Some(&mut moe(c)?.zero_experts)),
            Field::told("zero_expert_type", |_| json!("identity")),
            RENORMALISE,
            SCALE,
            Field::flag("router_bias", |c| Some(&mut router(c)?.linear_bias)),
            NO_PREDICTION,
        ],
    ],
);

/// Its prediction layers are not those of the others, and are left out.
pub(super) const NO_PREDICTION: Field = Field::then(|c| c.mtp = 0);

/// The root of the width over a latent's.
fn latent_scale(hidden: usize, rank: Option<usize>, on: bool) -> f64 {
    rank.filter(|_| on).map_or(1.0, |rank| (hidden as f64 / rank.max(1) as f64).sqrt())
}

fn scale_queries(c: &mut ModelConfig, on: bool) {
    let hidden = c.hidden;
    mla(c).into_iter().for_each(|m| m.q_scale = latent_scale(hidden, m.q_rank, on));
}

fn scale_keys(c: &mut ModelConfig, on: bool) {
    let hidden = c.hidden;
    mla(c).into_iter().for_each(|m| m.kv_scale = latent_scale(hidden, Some(m.kv_rank), on));
}

/// Queries without a latent have no bias, whatever `attention_bias` says.
///
/// # Source
/// `q_proj` of `deepseek_v2`, `deepseek_v3` and `minicpm3` in Hugging Face transformers 4.51 and 5.24, and of the published
/// classes.
const NO_QUERY_BIAS: (&str, &str) = ("q.bias", "");

const DEEPSEEK_TENSORS: Tensors = Tensors {
    parent: Some(&EXPERTS_TENSORS),
    rows: &[
        NO_QUERY_BIAS,
        ("q_a", "model.layers.{L}.self_attn.q_a_proj.weight"),
        ("q_a_norm", "model.layers.{L}.self_attn.q_a_layernorm.weight"),
        ("q_b", "model.layers.{L}.self_attn.q_b_proj.weight"),
        ("kv_a", "model.layers.{L}.self_attn.kv_a_proj_with_mqa.weight"),
        ("kv_a_norm", "model.layers.{L}.self_attn.kv_a_layernorm.weight"),
        ("kv_b", "model.layers.{L}.self_attn.kv_b_proj.weight"),
        ("own.self_attention.dsa_indexer.wq_b", "model.layers.{L}.self_attn.indexer.wq_b.weight"),
        ("own.self_attention.dsa_indexer.wk", "model.layers.{L}.self_attn.indexer.wk.weight"),
        ("own.self_attention.dsa_indexer.k_norm", "model.layers.{L}.self_attn.indexer.k_norm.weight"),
        (
            "own.self_attention.dsa_indexer.weights_proj",
            "model.layers.{L}.self_attn.indexer.weights_proj.weight",
        ),
    ],
};

const PLM_TENSORS: Tensors =
    Tensors { parent: Some(&DEEPSEEK_TENSORS), rows: &[("fc1", "model.layers.{L}.mlp.up_proj.weight")] };

/// LongCat's layers have two halves: `{S}`.
const LONGCAT_TENSORS: Tensors = Tensors {
    parent: Some(&EXPERTS_TENSORS),
    rows: &[
        NO_QUERY_BIAS,
        ("norm1", "model.layers.{L}.input_layernorm.{S}.weight"),
        ("norm2", "model.layers.{L}.post_attention_layernorm.{S}.weight"),
        ("q", "model.layers.{L}.self_attn.{S}.q_proj.weight"),
        ("q_a", "model.layers.{L}.self_attn.{S}.q_a_proj.weight"),
        ("q_a_norm", "model.layers.{L}.self_attn.{S}.q_a_layernorm.weight"),
        ("q_b", "model.layers.{L}.self_attn.{S}.q_b_proj.weight"),
        ("kv_a", "model.layers.{L}.self_attn.{S}.kv_a_proj_with_mqa.weight"),
        ("kv_a_norm", "model.layers.{L}.self_attn.{S}.kv_a_layernorm.weight"),
        ("kv_b", "model.layers.{L}.self_attn.{S}.kv_b_proj.weight"),
        ("o", "model.layers.{L}.self_attn.{S}.o_proj.weight"),
        ("gate", "model.layers.{L}.mlps.{S}.gate_proj.weight"),
        ("up", "model.layers.{L}.mlps.{S}.up_proj.weight"),
        ("down", "model.layers.{L}.mlps.{S}.down_proj.weight"),
        ("router", "model.layers.{L}.mlp.router.classifier.weight"),
        ("router_bias", "model.layers.{L}.mlp.router.e_score_correction_bias"),
    ],
};
