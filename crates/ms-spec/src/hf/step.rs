//! Step-3.5, whose published files have words of their own for nearly everything, many of them per layer.
//!
//! # Source
//! The class `Step3p5ForCausalLM` beside the published weights, as MindSpeed-LLM carries it
//! (`mindspeed_llm/fsdp2/models/step35`), and transformers 5.23, `models/step3p7`, whose text model is the same.

use serde_json::{Value, json};

use super::write::Writer;
use super::{Fields, rope};
use crate::family::Row;
use crate::parts::{Feed, Layer, Limits, Moe, Router, Score, SharedExpert, Windowed};
use crate::{Error, ModelConfig, Norm, Result, Rope};

/// The kind of attention of a layer, as `layer_types` has it.
fn kind(c: &ModelConfig, layer: usize) -> &'static str {
    if c.window(layer).is_some() { "sliding_attention" } else { "full_attention" }
}

/// Attention: heads and rotation by kind of layer. The window and `layer_types` are read.
pub(super) fn attention(f: &Fields<'_>, row: &Row, c: &mut ModelConfig) -> Result<()> {
    if let Some(groups) = f.size("num_attention_groups")? {
        c.groups = groups;
    }
    if !f.flag("zero_centered")?.unwrap_or(true) {
        c.norm = Norm::Rms;
    }
    c.scores.head_gate = f.flag("use_head_wise_attn_gate")?.unwrap_or(true);
    let scalar = f.float("query_pre_attn_scalar")?.filter(|&s| s != c.head_dim as f64);
    c.scores.scale = scalar.map(|s| s.powf(-0.5));
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
    let full_rope = rope_of(f, row, c, &full)?;
    let windowed_rope = rope_of(f, row, c, &windowed)?;
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
fn rope_of(f: &Fields<'_>, row: &Row, c: &ModelConfig, layers: &[usize]) -> Result<Option<Rope>> {
    let Some((&first, rest)) = layers.split_first() else { return Ok(None) };
    let at = |layer| rope::read_layer(f, row, c.max_positions, layer, kind(c, layer));
    let rope = at(first)?;
    for &layer in rest {
        if at(layer)? != rope {
            let kind = kind(c, first);
            return Err(f.unsupported(format!(
                "layers {first} and {layer}, both of {kind}, have different rotations, which is not supported"
            )));
        }
    }
    Ok(Some(rope))
}

/// The experts.
pub(super) fn experts(f: &Fields<'_>, c: &ModelConfig) -> Result<Moe> {
    let bias = f.flag("use_moe_router_bias")?.unwrap_or(true);
    let sigmoid = bias || f.text("moe_router_activation")? == Some("sigmoid");
    let router = Router {
        score: if sigmoid { Score::Sigmoid } else { Score::Softmax },
        bias,
        linear_bias: false,
        groups: None,
        renormalise: sigmoid,
        scale: f.float("moe_router_scaling_factor")?.unwrap_or(1.0),
        f32: f.flag("need_fp32_gate")?.unwrap_or(true),
    };
    let shared = f.size_of(&["share_expert_dim", "share_expert_dims"])?.unwrap_or(c.ffn);
    let need = |fields| f.need_of(fields);
    Ok(Moe {
        experts: need(&["moe_num_experts", "n_routed_experts", "num_local_experts"])?,
        top_k: need(&["moe_top_k", "num_experts_per_tok"])?,
        ffn: need(&["moe_intermediate_size"])?,
        router,
        shared: (shared > 0).then_some(SharedExpert { ffn: shared, gate: false }),
        zero_experts: 0,
    })
}

/// Limits of activations, layer by layer; 0 and null are none. Layers behind the last are for prediction.
pub(super) fn limits(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
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

/// Writes what the class has words of its own for.
pub(super) fn write(w: &mut Writer, c: &ModelConfig) {
    let layers = || 0..c.layers;
    w.set("num_attention_groups", json!(c.groups));
    w.set("max_seq_len", json!(c.max_positions));
    w.set("zero_centered", json!(c.norm == Norm::RmsUnitOffset));
    w.set("use_qk_norm", json!(true));
    w.set("use_head_wise_attn_gate", json!(c.scores.head_gate));
    if let Some(scale) = c.scores.scale {
        w.set("query_pre_attn_scalar", json!((scale.powi(-2) * 1e6).round() / 1e6));
    }
    w.set("sliding_window", json!(c.sliding_window));
    w.set("layer_types", layers().map(|l| kind(c, l)).collect());
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
            w.set("yarn_only_types", json!([kind(c, layer)]));
        }
        w.set("rope_scaling", Value::Object(scaling));
    } else {
        w.set("rope_scaling", Value::Null);
    }
    let limits = |of: fn(&Limits) -> Option<f64>| -> Value {
        layers().map(|l| json!(of(&c.layer(l).limits).unwrap_or(0.0))).collect()
    };
    w.set("swiglu_limits", limits(|l| l.experts));
    w.set("swiglu_limits_shared", limits(|l| l.dense));
    let Some(moe) = &c.moe else { return };
    let sparse: Vec<String> =
        layers().filter(|&l| c.layer(l).feed == Feed::Moe).map(|l| l.to_string()).collect();
    w.set("use_moe", json!(true));
    w.set("moe_layers_enum", json!(sparse.join(",")));
    w.set("moe_num_experts", json!(moe.experts));
    w.set("moe_top_k", json!(moe.top_k));
    w.set("moe_intermediate_size", json!(moe.ffn));
    w.set("share_expert_dim", json!(moe.shared.map_or(0, |s| s.ffn)));
    w.set(
        "moe_router_activation",
        json!(if moe.router.score == Score::Sigmoid { "sigmoid" } else { "softmax" }),
    );
    w.set("use_moe_router_bias", json!(moe.router.bias));
    w.set("moe_router_scaling_factor", json!(moe.router.scale));
    w.set("norm_expert_weight", json!(moe.router.renormalise));
    w.set("need_fp32_gate", json!(moe.router.f32));
}

/// Refuses what the class has no words for.
pub(super) fn check(c: &ModelConfig) -> Result<()> {
    let scalings: Vec<_> =
        [Some(&c.rope), c.windowed.as_ref().map(|w| &w.rope)].into_iter().flatten().collect();
    let stretched: Vec<_> = scalings.iter().filter(|r| rope::scaling_object(r).is_some()).collect();
    match stretched[..] {
        [a, b] if a.scaling != b.scaling => Err(Error::Unsupported {
            source_name: super::SOURCE,
            what: "two kinds of stretched rotation have no form in Step-3.5's configuration".to_owned(),
        }),
        _ => Ok(()),
    }
}
