//! Step-3.5, whose published files have their own names for nearly every field, many of them per layer.
//!
//! # Source
//! The class `Step3p5ForCausalLM` published with the weights, as MindSpeed-LLM carries it
//! (`mindspeed_llm/fsdp2/models/step35`), and transformers 5.23, `models/step3p7`, whose text model is the same.

use serde_json::{Value, json};

use super::latent::NO_PREDICTION;
use crate::field::{Field, Writer};
use crate::hf::class::{Class, class};
use crate::hf::common::{ACTIVATION, GROUPS, QUERY_SCALAR, SIZES, WINDOW_LISTED, head_dim, window_kind};
use crate::hf::moe::{self, NOAUX, moe, read_layers_from, router, shared_of};
use crate::hf::tensors::{LLAMA_TENSORS, Tensors};
use crate::hf::{Fields, rope};
use crate::sizes::{Feed, Layer, Limits, RouterDtype, Score, Windowed};
use crate::{Family, ModelConfig, Norm, QkNorm, Result, Rope, RopeScaling};

/// The classes of this file. A model without a class gets the first one that can describe it.
pub(super) const CLASSES: &[Class] = &[STEP3P5];

/// Step-3.5: other heads and rotation in windowed layers, a gate per head, limited activations.
const STEP3P5: Class = class!(
    Family::new("Step3p5", &STEP3P5_TENSORS),
    ["step3p5"],
    "Step3p5ForCausalLM",
    |c| {
        c.qk_norm = QkNorm::PerHead;
        c.norm = Norm::RmsUnitOffset;
        c.head_dim = 128;
        c.max_positions = 128_000;
        c.norm_eps = 1e-5;
        c.moe = moe::experts(NOAUX);
        c.scores.head_gate = true;
    },
    &[
        SIZES,
        &[
            Field::told("max_seq_len", |c| json!(c.max_positions)),
            GROUPS.read_only(),
            Field::size("num_attention_groups", |c| Some(&mut c.groups)),
            head_dim("head_dim"),
            ACTIVATION,
            moe::PLAIN_NETWORKS,
            Field::flag_as(
                "zero_centered",
                |c| Some(c.norm == Norm::RmsUnitOffset),
                |c, centered| {
                    c.norm = if centered { Norm::RmsUnitOffset } else { Norm::Rms };
                },
            ),
            Field::told("use_qk_norm", |_| json!(true)),
            Field::flag("use_head_wise_attn_gate", |c| Some(&mut c.scores.head_gate)),
            QUERY_SCALAR.written_if(|c| c.scores.scale.is_some()),
            WINDOW_LISTED,
            Field::rule(attention, write_attention),
        ],
        EXPERTS,
        &[Field::rule(limits, write_limits), NO_PREDICTION],
    ],
    lacks
);

/// Experts, with their own field names.
const EXPERTS: &[Field] = &[
    Field::rule(
        |f, c| {
            if !f.on_unless_said("use_moe")? {
                c.moe = None;
            }
            Ok(())
        },
        |c, w| {
            if c.moe.is_some() {
                w.set("use_moe", json!(true));
            }
        },
    ),
    Field::size("moe_num_experts", |c| Some(&mut moe(c)?.experts))
        .or(&["moe_num_experts", "n_routed_experts", "num_local_experts"])
        .needed(),
    Field::size("moe_top_k", |c| Some(&mut moe(c)?.top_k)).or(&["moe_top_k", "num_experts_per_tok"]).needed(),
    Field::size("moe_intermediate_size", |c| Some(&mut moe(c)?.ffn)).needed(),
    Field::size_as(
        "share_expert_dim",
        |c| c.moe.as_ref().map(|m| m.shared.map_or(0, |s| s.ffn)),
        |c, ffn| moe(c).into_iter().for_each(|m| m.shared = shared_of(ffn, false)),
    )
    .or(&["share_expert_dim", "share_expert_dims"])
    .else_by(|c| {
        let shared = shared_of(c.ffn, false);
        moe(c).into_iter().for_each(|m| m.shared = shared);
    }),
    Field::rule(read_choice, write_choice),
    moe::scale("moe_router_scaling_factor"),
    Field::flag_as(
        "need_fp32_gate",
        |c| Some(c.moe.as_ref()?.router.dtype != RouterDtype::Model),
        |c, wide| {
            let dtype = if wide { RouterDtype::F32 } else { RouterDtype::Model };
            router(c).into_iter().for_each(|r| r.dtype = dtype);
        },
    ),
    Field::rule(
        |f, c| read_layers_from(f, c, 3),
        |c, w| {
            let sparse: Vec<String> =
                (0..c.layers).filter(|&l| c.layer(l).feed == Feed::Moe).map(|l| l.to_string()).collect();
            if c.moe.is_some() {
                w.set("moe_layers_enum", json!(sparse.join(",")));
            }
        },
    ),
];

/// A selection bias implies sigmoid scores, and these imply weights divided by their sum.
fn read_choice(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let bias = f.on_unless_said("use_moe_router_bias")?;
    let sigmoid = bias || f.text("moe_router_activation")? == Some("sigmoid");
    if let Some(r) = router(c) {
        r.score = if sigmoid { Score::Sigmoid } else { Score::Softmax };
        (r.bias, r.renormalise) = (bias, sigmoid);
    }
    Ok(())
}

fn write_choice(c: &ModelConfig, w: &mut Writer) {
    let Some(moe) = &c.moe else { return };
    let sigmoid = moe.router.score == Score::Sigmoid;
    w.set("moe_router_activation", json!(if sigmoid { "sigmoid" } else { "softmax" }));
    w.set("use_moe_router_bias", json!(moe.router.bias));
    w.set("norm_expert_weight", json!(moe.router.renormalise));
}

/// Heads and rotation by kind of layer. The window and `layer_types` are read.
fn attention(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    if f.get("use_rope_layers").and_then(Value::as_array).is_some_and(|l| l.iter().any(|v| v == false)) {
        return Err(f.unsupported("layers without rotation are not supported"));
    }
    let (mut heads, mut groups) = (f.size("num_sliding_attention_heads")?.unwrap_or(c.heads), c.groups);
    if let Some(other) = f.object("attention_other_setting")? {
        heads = other.size("num_attention_heads")?.unwrap_or(heads);
        groups = other.size("num_attention_groups")?.unwrap_or(groups);
        let dim = other.size_of(&["true_head_dim", "head_dim"])?.unwrap_or(c.head_dim);
        if dim != c.head_dim {
            let own = c.head_dim;
            return Err(f.unsupported(format!(
                "heads of {dim} in windowed layers and {own} in others are not supported"
            )));
        }
    }
    let (full, windowed): (Vec<usize>, Vec<usize>) = (0..c.layers).partition(|&l| c.window(l).is_none());
    let full_rope = rope_of(f, c, &full)?;
    let windowed_rope = rope_of(f, c, &windowed)?;
    c.rope = match (full_rope, &windowed_rope) {
        (Some(rope), _) => rope,
        (None, Some(rope)) => rope.clone(),
        (None, None) => return Ok(()),
    };
    if full.is_empty() {
        (c.heads, c.groups) = (heads, groups);
    } else if let Some(rope) = windowed_rope {
        let own = Windowed { heads, groups, rope };
        let same = Windowed { heads: c.heads, groups: c.groups, rope: c.rope.clone() };
        c.windowed = (own != same).then_some(own);
    }
    Ok(())
}

/// The rotation that all these layers have; `None` without layers.
fn rope_of(f: &Fields<'_>, c: &ModelConfig, layers: &[usize]) -> Result<Option<Rope>> {
    let Some((&first, rest)) = layers.split_first() else { return Ok(None) };
    let at = |layer| rope::read_layer(f, &c.rope, c.max_positions, layer, window_kind(c, layer));
    let rope = at(first)?;
    for &layer in rest {
        if at(layer)? != rope {
            let kind = window_kind(c, first);
            return Err(f.unsupported(format!(
                "layers {first} and {layer}, both of {kind}, have different rotations, which is not supported"
            )));
        }
    }
    Ok(Some(rope))
}

/// Limits of activations, layer by layer; 0 and null mean none. Layers after the last are for prediction.
fn limits(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let list = |field: &'static str| -> Result<Vec<Option<f64>>> {
        let Some(value) = f.get(field) else { return Ok(Vec::new()) };
        let want = "a list with a number or null for every layer";
        let entries =
            value.as_array().filter(|a| a.len() >= c.layers).ok_or_else(|| f.wrong(field, want, value))?;
        let limit = |v: &Value| match v {
            Value::Null => Ok(None),
            v => v.as_f64().map(|l| Some(l).filter(|&l| l != 0.0)).ok_or_else(|| f.wrong(field, want, value)),
        };
        entries.iter().map(limit).collect()
    };
    let (experts, dense) = (list("swiglu_limits")?, list("swiglu_limits_shared")?);
    let at = |list: &[Option<f64>], layer: usize| list.get(layer).copied().flatten();
    if c.pattern.is_empty() {
        c.pattern = vec![Layer::default(); c.layers];
    }
    for (l, layer) in c.pattern.iter_mut().enumerate() {
        // A dense layer has no routed experts to limit.
        let experts = at(&experts, l).filter(|_| layer.feed == Feed::Moe);
        layer.limits = Limits { experts, dense: at(&dense, l) };
    }
    Ok(())
}

fn write_limits(c: &ModelConfig, w: &mut Writer) {
    let limits = |of: fn(&Limits) -> Option<f64>| -> Value {
        (0..c.layers).map(|l| json!(of(&c.layer(l).limits).unwrap_or(0.0))).collect()
    };
    w.set("swiglu_limits", limits(|l| l.experts));
    w.set("swiglu_limits_shared", limits(|l| l.dense));
}

fn write_attention(c: &ModelConfig, w: &mut Writer) {
    let layers = || 0..c.layers;
    let windowed = layers().find(|&l| c.window(l).is_some());
    let (heads, groups) = c.heads_of(windowed.unwrap_or(0));
    w.set(
        "attention_other_setting",
        json!({
            "attention_type": "sliding_attention", "num_attention_heads": heads, "num_attention_groups": groups,
            "head_dim": c.head_dim, "true_head_dim": c.head_dim
        }),
    );
    w.set("rope_theta", layers().map(|l| json!(c.rope_of(l).base)).collect());
    w.set("partial_rotary_factors", layers().map(|l| json!(c.rope_of(l).fraction)).collect());
    // One kind of layer may be stretched.
    let stretched = layers().find_map(|l| Some((l, rope::scaling_object(c.rope_of(l))?)));
    if let Some((layer, scaling)) = stretched {
        let same = |l: &usize| c.rope_of(*l).scaling == c.rope_of(layer).scaling;
        if !layers().all(|l| same(&l)) {
            w.set("yarn_only_types", json!([window_kind(c, layer)]));
        }
        w.set("rope_scaling", Value::Object(scaling));
    } else {
        w.set("rope_scaling", Value::Null);
    }
}

fn lacks(c: &ModelConfig) -> Option<&'static str> {
    let other = c.windowed.as_ref().map(|w| &w.rope.scaling);
    let stretched = |s: &RopeScaling| *s != RopeScaling::None;
    let two = other.is_some_and(|o| stretched(o) && stretched(&c.rope.scaling) && *o != c.rope.scaling);
    two.then_some("two kinds of stretched rotation")
}

/// Step-3.5 has its experts parallel to the dense MLP, all in one tensor for each part.
const STEP3P5_TENSORS: Tensors = Tensors {
    parent: Some(&LLAMA_TENSORS),
    rows: &[
        ("head_gate", "model.layers.{L}.self_attn.g_proj.weight"),
        ("router", "model.layers.{L}.moe.gate.weight"),
        ("router_bias", "model.layers.{L}.moe.router_bias"),
        ("experts.gate.stacked", "model.layers.{L}.moe.gate_proj.weight"),
        ("experts.up.stacked", "model.layers.{L}.moe.up_proj.weight"),
        ("experts.down.stacked", "model.layers.{L}.moe.down_proj.weight"),
        ("shared.gate", "model.layers.{L}.share_expert.gate_proj.weight"),
        ("shared.up", "model.layers.{L}.share_expert.up_proj.weight"),
        ("shared.down", "model.layers.{L}.share_expert.down_proj.weight"),
    ],
};
