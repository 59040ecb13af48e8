//! Mixtures of experts in `config.json`.

use serde_json::Value;

use super::{Fields, deepseek_v4, step};
use crate::parts::{Feed, GroupLimit, GroupScore, Layer, Moe, Router, Score, SharedExpert};
use crate::{Family, ModelConfig, Result};

const PLAIN: Router = Router {
    score: Score::Softmax,
    bias: false,
    linear_bias: false,
    groups: None,
    renormalise: false,
    scale: 1.0,
    f32: false,
};

const EXPERTS: &[&str] = &["n_routed_experts", "num_experts", "num_local_experts"];
const TOP_K: &[&str] = &["num_experts_per_tok", "experts_per_token", "moe_topk"];

/// A number, or a list of equal ones.
fn same(f: &Fields<'_>, field: &'static str) -> Result<Option<usize>> {
    match f.get(field) {
        Some(v) if v.is_array() => {
            let list = f.sizes(field)?.unwrap_or_default();
            match list.split_first() {
                Some((first, rest)) if rest.iter().all(|n| n == first) => Ok(Some(*first)),
                _ => Err(f.wrong(field, "the same number for every layer", v)),
            }
        }
        _ => f.size(field),
    }
}

/// Reads the experts of the families that have some, and which layers have them.
pub(super) fn read(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    if c.family == Family::DeepseekV4 {
        c.moe = Some(deepseek_v4::experts(f)?);
        set_layers(c, vec![true; c.layers]);
        return Ok(());
    }
    if c.family == Family::Step3p5 {
        if f.flag("use_moe")?.unwrap_or(true) {
            c.moe = Some(step::experts(f, c)?);
            set_layers(c, which_layers(f, c.layers, 3)?);
        }
        return Ok(());
    }
    let renormalise = |default: bool| Ok::<_, crate::Error>(f.flag("norm_topk_prob")?.unwrap_or(default));
    let fe = same(f, "moe_intermediate_size")?.unwrap_or(c.ffn);
    let shared = |field| -> Result<Option<SharedExpert>> {
        let n = f.size(field)?.unwrap_or(0);
        Ok((n > 0).then_some(SharedExpert { ffn: n.saturating_mul(fe), gate: false }))
    };
    let gated_shared = || -> Result<Option<SharedExpert>> {
        let ffn = f.size("shared_expert_intermediate_size")?.filter(|&n| n > 0);
        Ok(ffn.map(|ffn| SharedExpert { ffn, gate: true }))
    };
    let groups = |by| -> Result<Option<GroupLimit>> {
        let limit = f.size_of(&["n_group", "num_expert_group"])?.zip(f.size_of(&["topk_group"])?);
        Ok(limit.filter(|l| l.0 > 1).map(|(groups, keep)| GroupLimit { groups, keep, by }))
    };
    let scale = || Ok::<_, crate::Error>(f.float("routed_scaling_factor")?.unwrap_or(1.0));
    let (router, ffn, shared) = match c.family {
        Family::Mixtral => (Router { score: Score::SoftmaxOfChosen, ..PLAIN }, c.ffn, None),
        Family::PhiMoe => {
            let jitter = f.float("router_jitter_noise")?.unwrap_or(0.01);
            (Router { score: Score::SparseMixer { jitter }, ..PLAIN }, c.ffn, None)
        }
        Family::GptOss => (Router { score: Score::SoftmaxOfChosen, linear_bias: true, ..PLAIN }, c.ffn, None),
        Family::MiniMaxM2 => {
            (Router { score: Score::Sigmoid, bias: true, renormalise: true, f32: true, ..PLAIN }, c.ffn, None)
        }
        Family::Qwen2Moe => (Router { renormalise: renormalise(false)?, ..PLAIN }, fe, gated_shared()?),
        Family::Qwen3Next => (Router { renormalise: renormalise(true)?, ..PLAIN }, fe, gated_shared()?),
        Family::Qwen3Moe => (Router { renormalise: renormalise(false)?, ..PLAIN }, fe, None),
        Family::MiniCpm => (Router { renormalise: true, ..PLAIN }, c.ffn, None),
        Family::HunyuanMoe => {
            // The class of transformers always has a shared expert and divides the weights by their sum; the
            // published code of Hunyuan-Large divides only where there is more than one.
            let native = f.text("model_type")? == Some("hunyuan_v1_moe");
            let n = same(f, "num_shared_expert")?.unwrap_or(usize::from(native));
            let mixed = f.flag("use_mixed_mlp_moe")?.unwrap_or(true);
            let shared =
                (mixed && n > 0).then_some(SharedExpert { ffn: n.saturating_mul(c.ffn), gate: false });
            let renormalise = native || same(f, "moe_topk")?.unwrap_or(1) > 1;
            (Router { renormalise, f32: true, ..PLAIN }, fe, shared)
        }
        Family::HyV3 => {
            let scale = f.float("router_scaling_factor")?.unwrap_or(1.0);
            let router = Router {
                score: Score::Sigmoid,
                bias: true,
                groups: groups(GroupScore::BestTwo)?,
                renormalise: f.flag("route_norm")?.unwrap_or(true),
                scale,
                f32: true,
                ..PLAIN
            };
            (router, fe, shared("num_shared_experts")?)
        }
        Family::Ling => {
            let score = match f.text("score_function")?.unwrap_or("sigmoid") {
                "sigmoid" => Score::Sigmoid,
                "softmax" => Score::Softmax,
                other => return Err(f.unsupported(format!("score function `{other}` is not supported"))),
            };
            let router = Router {
                score,
                bias: f.flag("moe_router_enable_expert_bias")?.unwrap_or(true),
                groups: groups(GroupScore::BestTwo)?,
                renormalise: renormalise(true)?,
                scale: scale()?,
                f32: f.text("router_dtype")?.is_none_or(|t| t == "fp32"),
                ..PLAIN
            };
            (router, fe, shared("num_shared_experts")?)
        }
        Family::DeepseekV2 => {
            let limited = f.text("topk_method")?.is_some_and(|m| m == "group_limited_greedy");
            let renormalise = renormalise(false)?;
            let router = Router {
                groups: if limited { groups(GroupScore::Best)? } else { None },
                renormalise,
                // The reference code scales or renormalises, never both.
                scale: if renormalise { 1.0 } else { scale()? },
                ..PLAIN
            };
            (router, fe, shared("n_shared_experts")?)
        }
        Family::LongCat => {
            let router = Router {
                bias: true,
                linear_bias: f.flag("router_bias")?.unwrap_or(false),
                renormalise: renormalise(false)?,
                scale: scale()?,
                f32: true,
                ..PLAIN
            };
            (router, f.need_of(&["expert_ffn_hidden_size", "moe_intermediate_size"])?, None)
        }
        Family::DeepseekV3 | Family::KimiK2 | Family::DeepseekV32 | Family::GlmMoeDsa | Family::Glm4Moe => {
            let router = Router {
                score: Score::Sigmoid,
                bias: true,
                groups: groups(GroupScore::BestTwo)?,
                renormalise: renormalise(true)?,
                scale: scale()?,
                f32: true,
                ..PLAIN
            };
            (router, fe, shared("n_shared_experts")?)
        }
        _ => return Ok(()),
    };
    let experts = match c.family {
        Family::HunyuanMoe => same(f, "num_experts")?,
        Family::MiniCpm => f.size("num_experts")?.filter(|&n| n > 1),
        _ => Some(f.need_of(EXPERTS)?),
    };
    let Some(experts) = experts.filter(|&n| n > 0) else { return Ok(()) };
    let top_k = match c.family {
        Family::HunyuanMoe => same(f, "moe_topk")?.unwrap_or(1),
        _ => f.need_of(TOP_K)?,
    };
    let zero_experts = match c.family {
        Family::LongCat => f.size("zero_expert_num")?.unwrap_or(0),
        _ => 0,
    };
    c.moe = Some(Moe { experts, top_k, ffn, router, shared, zero_experts });
    if c.family != Family::LongCat {
        set_layers(c, which_layers(f, c.layers, 0)?);
    }
    Ok(())
}

fn set_layers(c: &mut ModelConfig, experts: Vec<bool>) {
    if c.pattern.is_empty() {
        c.pattern = vec![Layer::default(); c.layers];
    }
    for (layer, moe) in c.pattern.iter_mut().zip(experts) {
        layer.feed = if moe { Feed::Moe } else { Feed::Dense };
    }
}

/// Which layers have experts, in any of the ways to say it; where nothing is said, those from `first` on.
fn which_layers(f: &Fields<'_>, layers: usize, first: usize) -> Result<Vec<bool>> {
    if let Some(types) = f.texts("mlp_layer_types")? {
        return Ok(types.iter().map(|t| *t == "sparse").collect());
    }
    let listed = match f.get("moe_layers_enum") {
        Some(Value::Array(_)) => f.sizes("moe_layers_enum")?,
        _ => f.text("moe_layers_enum")?.map(|t| t.split(',').filter_map(|n| n.trim().parse().ok()).collect()),
    };
    if let Some(listed) = listed {
        return Ok((0..layers).map(|l| listed.contains(&l)).collect());
    }
    let first = f.size("first_k_dense_replace")?.unwrap_or(first);
    let freq = f.size("moe_layer_freq")?.unwrap_or(1).max(1);
    let step = f.size("decoder_sparse_step")?.unwrap_or(1).max(1);
    let dense = f.sizes("mlp_only_layers")?.unwrap_or_default();
    Ok((0..layers)
        .map(|l| l >= first && l % freq == 0 && (l + 1) % step == 0 && !dense.contains(&l))
        .collect())
}
