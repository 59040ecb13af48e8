//! Mixtures of experts in `config.json`.

use serde_json::{Value, json};

use crate::field::{Field, Writer};
use crate::fields::Fields;
use crate::sizes::{Feed, GroupLimit, GroupScore, Layer, Moe, Router, RouterDtype, Score, SharedExpert};
use crate::{ModelConfig, Result};

/// The router that most classes change something of.
pub(super) const ROUTER: Router = Router::plain(Score::Softmax);

/// The router of DeepSeek-V3 and those that follow it.
pub(super) const NOAUX: Router =
    Router { score: Score::Sigmoid, bias: true, renormalise: true, dtype: RouterDtype::F32, ..ROUTER };

/// Experts of no size, to be read.
pub(super) const fn experts(router: Router) -> Option<Moe> {
    Some(Moe { experts: 0, top_k: 0, ffn: 0, router, shared: None, zero_experts: 0 })
}

pub(super) fn moe(c: &mut ModelConfig) -> Option<&mut Moe> {
    c.moe.as_mut()
}

pub(super) fn router(c: &mut ModelConfig) -> Option<&mut Router> {
    c.moe.as_mut().map(|m| &mut m.router)
}

/// Experts with weights.
pub(super) const fn count(name: &'static str) -> Field {
    Field::size(name, |c| Some(&mut moe(c)?.experts))
        .or(&["n_routed_experts", "num_experts", "num_local_experts"])
        .needed()
}

/// After the number of experts: zero means a dense MLP.
pub(super) const NONE_WITHOUT: Field = Field::then(|c| c.moe = c.moe.take().filter(|m| m.experts > 0));

/// Experts of a token.
pub(super) const fn top_k(name: &'static str) -> Field {
    Field::size(name, |c| Some(&mut moe(c)?.top_k))
        .or(&["num_experts_per_tok", "experts_per_token", "moe_topk"])
        .needed()
}

/// Width of an expert; where nothing is said, that of dense layers.
pub(super) const WIDTH: Field =
    Field::same_size("moe_intermediate_size", |c| Some(&mut moe(c)?.ffn)).else_by(width_of_dense_layers);

/// Experts are as wide as dense layers.
pub(super) const DENSE_WIDTH: Field = Field::then(width_of_dense_layers);

fn width_of_dense_layers(c: &mut ModelConfig) {
    let ffn = c.ffn;
    moe(c).into_iter().for_each(|m| m.ffn = ffn);
}

/// Dense MLPs and shared experts of the class may have biases; routed experts do not.
pub(super) const PLAIN_NETWORKS: Field =
    Field::only("mlp_bias", false, "a bias in networks of a model with experts").read_only();

/// So many shared experts, each as wide as a routed one.
pub(super) const fn shared(name: &'static str) -> Field {
    Field::size_as(
        name,
        |c| c.moe.as_ref().map(|m| m.shared.map_or(0, |s| s.ffn / m.ffn.max(1))),
        |c, n| {
            if let Some(m) = moe(c) {
                m.shared = shared_of(n.saturating_mul(m.ffn), false);
            }
        },
    )
}

/// After [`shared`]: a file without the field has one shared expert, or two; null means none.
pub(super) const SHARED_1: Field = Field::reading(|f, c| shared_where_silent(f, c, 1));
pub(super) const SHARED_2: Field = Field::reading(|f, c| shared_where_silent(f, c, 2));

fn shared_where_silent(f: &Fields<'_>, c: &mut ModelConfig, n: usize) -> Result<()> {
    if let Some(m) = moe(c).filter(|_| !f.map.contains_key("n_shared_experts")) {
        m.shared = shared_of(n.saturating_mul(m.ffn), false);
    }
    Ok(())
}

/// One shared expert, as wide as a routed one.
pub(super) fn one_shared(c: &mut ModelConfig) {
    moe(c).into_iter().for_each(|m| m.shared = shared_of(m.ffn, false));
}

/// A shared expert with a gate, of this width where nothing is said.
pub(super) const GATED_SHARED_512: Field = GATED_SHARED.else_by(|c| gated_shared(c, 512));
pub(super) const GATED_SHARED_5632: Field = GATED_SHARED.else_by(|c| gated_shared(c, 5632));

const GATED_SHARED: Field = Field::size_as(
    "shared_expert_intermediate_size",
    |c| c.moe.as_ref().map(|m| m.shared.map_or(0, |s| s.ffn)),
    gated_shared,
);

fn gated_shared(c: &mut ModelConfig, ffn: usize) {
    moe(c).into_iter().for_each(|m| m.shared = shared_of(ffn, true));
}

/// `None` for a width of 0.
pub(super) fn shared_of(ffn: usize, gate: bool) -> Option<SharedExpert> {
    (ffn > 0).then_some(SharedExpert { ffn, gate, wide_gate: false })
}

pub(super) const RENORMALISE: Field = renormalise("norm_topk_prob");

pub(super) const fn renormalise(name: &'static str) -> Field {
    Field::flag(name, |c| Some(&mut router(c)?.renormalise))
}

pub(super) const SCALE: Field = scale("routed_scaling_factor");

pub(super) const fn scale(name: &'static str) -> Field {
    Field::float(name, |c| Some(&mut router(c)?.scale))
}

/// What MindSpeed-LLM's head calls DeepSeek-V3's way to choose.
pub(super) const NOAUX_WORDS: &[Field] =
    &[Field::told("topk_method", |_| json!("noaux_tc")), Field::told("scoring_func", |_| json!("sigmoid"))];

/// Groups of experts, of which the best are used, by the sum of their best two scores.
pub(super) const GROUPS: Field = Field::rule(|f, c| read_groups(f, c, GroupScore::Best(2)), write_groups);

/// The same, for classes that assume several where nothing is said.
pub(super) const GROUPS_ALWAYS: Field = Field::rule(
    |f, c| read_groups(f, c, GroupScore::Best(2)),
    |c, w| {
        let limit = c.moe.as_ref().and_then(|m| m.router.groups).map_or((1, 1), |g| (g.groups, g.keep));
        tell_groups(limit, w);
    },
);

/// A file may name one of both numbers, and leave the other to the class: one group where that assumes none. Null means no
/// groups.
pub(super) fn read_groups(f: &Fields<'_>, c: &mut ModelConfig, by: GroupScore) -> Result<()> {
    const COUNT: [&str; 2] = ["n_group", "num_expert_group"];
    let Some(router) = router(c) else { return Ok(()) };
    let said = |name: &&str| f.map.contains_key(*name);
    let (counted, kept) = (COUNT.iter().any(said), said(&"topk_group"));
    let assumed = router.groups;
    let groups = if counted { f.size_of(&COUNT)? } else { assumed.map(|g| g.groups) };
    let Some(groups) = groups.filter(|&n| n > 1) else {
        router.groups = None;
        return Ok(());
    };
    let keep = if kept { f.size("topk_group")? } else { Some(assumed.map_or(1, |g| g.keep)) };
    let keep = keep.ok_or_else(|| f.missing("topk_group"))?;
    router.groups = Some(GroupLimit { groups, keep, by });
    Ok(())
}

pub(super) fn write_groups(c: &ModelConfig, w: &mut Writer) {
    if let Some(g) = c.moe.as_ref().and_then(|m| m.router.groups) {
        tell_groups((g.groups, g.keep), w);
    }
}

fn tell_groups((groups, keep): (usize, usize), w: &mut Writer) {
    w.set("n_group", json!(groups));
    w.set("topk_group", json!(keep));
}

/// Experts in all layers but the first few; written where there are such.
pub(super) const LAYERS: Field = Field::rule(read_layers, |c, w| {
    let dense = dense_layers(c);
    match leading(&dense) {
        _ if dense.is_empty() => {}
        Some(first) => w.set("first_k_dense_replace", json!(first)),
        None => tell_kinds(c, w),
    }
});

/// The same, always written: classes assume that the first, or the first three, are dense where nothing is said.
pub(super) const LAYERS_ALWAYS: Field = Field::rule(read_layers, write_leading);
pub(super) const LAYERS_FROM_1: Field = Field::rule(|f, c| read_layers_from(f, c, 1), write_leading);
pub(super) const LAYERS_FROM_3: Field = Field::rule(|f, c| read_layers_from(f, c, 3), write_leading);

fn write_leading(c: &ModelConfig, w: &mut Writer) {
    match leading(&dense_layers(c)) {
        _ if c.moe.is_none() => {}
        Some(first) => w.set("first_k_dense_replace", json!(first)),
        None => tell_kinds(c, w),
    }
}

/// Layers by their kind's name; where nothing is said, the first is dense.
pub(super) const LAYERS_BY_NAME: Field = Field::rule(|f, c| read_layers_from(f, c, 1), tell_kinds);

/// The dense layers, listed.
pub(super) const LAYERS_BUT: Field = Field::rule(read_layers, |c, w| {
    w.set("decoder_sparse_step", json!(1));
    w.set("mlp_only_layers", json!(dense_layers(c)));
});

fn dense_layers(c: &ModelConfig) -> Vec<usize> {
    if c.moe.is_none() {
        return Vec::new();
    }
    (0..c.layers).filter(|&l| c.layer(l).feed != Feed::Moe).collect()
}

/// The number of these layers, if they are the first.
fn leading(dense: &[usize]) -> Option<usize> {
    dense.iter().enumerate().all(|(i, l)| i == *l).then_some(dense.len())
}

fn tell_kinds(c: &ModelConfig, w: &mut Writer) {
    let kind = |l| if c.layer(l).feed == Feed::Moe { "sparse" } else { "dense" };
    w.set("mlp_layer_types", (0..c.layers).map(kind).collect());
}

fn read_layers(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    read_layers_from(f, c, 0)
}

/// Which layers have experts, in any of the ways to say it; where nothing is said, those from `first` on.
pub(super) fn read_layers_from(f: &Fields<'_>, c: &mut ModelConfig, first: usize) -> Result<()> {
    if c.moe.is_some() {
        let layers = which_layers(f, c.layers, first)?;
        set_layers(c, &layers);
    }
    Ok(())
}

/// Gives layers experts, or dense MLPs.
pub(super) fn set_layers(c: &mut ModelConfig, experts: &[bool]) {
    if c.pattern.is_empty() {
        c.pattern = vec![Layer::default(); c.layers];
    }
    for (layer, moe) in c.pattern.iter_mut().zip(experts) {
        layer.feed = if *moe { Feed::Moe } else { Feed::Dense };
    }
}

/// The numbers of a text with commas between them.
fn listed_in(f: &Fields<'_>, text: &str) -> Result<Vec<usize>> {
    let wrong = || f.wrong("moe_layers_enum", "numbers with commas between them", &Value::from(text));
    let numbers = text.split(',').map(str::trim).filter(|number| !number.is_empty());
    numbers.map(|number| number.parse().map_err(|_| wrong())).collect()
}

fn which_layers(f: &Fields<'_>, layers: usize, first: usize) -> Result<Vec<bool>> {
    if let Some(types) = f.texts("mlp_layer_types")? {
        return Ok(types.iter().map(|t| *t == "sparse").collect());
    }
    let listed = match f.get("moe_layers_enum") {
        Some(Value::Array(_)) => f.sizes("moe_layers_enum")?,
        _ => f.text("moe_layers_enum")?.map(|text| listed_in(f, text)).transpose()?,
    };
    if let Some(listed) = listed {
        return Ok((0..layers).map(|l| listed.contains(&l)).collect());
    }
    let first = f.size_of(&["first_k_dense_replace", "moe_layer_num_skipped"])?.unwrap_or(first);
    let freq = f.size("moe_layer_freq")?.unwrap_or(1).max(1);
    let step = f.size("decoder_sparse_step")?.unwrap_or(1).max(1);
    let dense = f.sizes("mlp_only_layers")?.unwrap_or_default();
    Ok((0..layers)
        .map(|l| l >= first && l % freq == 0 && (l + 1) % step == 0 && !dense.contains(&l))
        .collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::hf::read_config;

    /// transformers 5.24: `n_group` and `topk_group` are 8 and 4 in `DeepseekV3Config`, 1 and 1 in `Glm4MoeConfig`.
    #[test]
    fn a_number_of_groups_without_the_other_is_that_and_what_the_class_assumes() {
        let read = |model_type: &str, more: serde_json::Value| {
            let mut file = json!({
                "model_type": model_type, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
                "v_head_dim": 8, "n_routed_experts": 16, "num_experts_per_tok": 2
            });
            for (name, value) in more.as_object().unwrap() {
                file[name] = value.clone();
            }
            let limit = |c: crate::ModelConfig| c.moe.unwrap().router.groups.map(|g| (g.groups, g.keep));
            read_config(&file).map(limit).map_err(|e| e.to_string())
        };
        assert_eq!(read("deepseek_v3", json!({})), Ok(Some((8, 4))));
        assert_eq!(read("deepseek_v3", json!({"topk_group": 2})), Ok(Some((8, 2))));
        assert_eq!(read("deepseek_v3", json!({"n_group": 16})), Ok(Some((16, 4))));
        assert_eq!(read("deepseek_v3", json!({"n_group": 1})), Ok(None));
        assert_eq!(read("deepseek_v3", json!({"n_group": null})), Ok(None));
        assert_eq!(read("glm4_moe", json!({"n_group": 4, "topk_group": 2})), Ok(Some((4, 2))));
        assert_eq!(read("glm4_moe", json!({"n_group": 4})), Ok(Some((4, 1))));
        let e = read("glm4_moe", json!({"n_group": 4, "topk_group": null})).unwrap_err();
        assert!(e.contains("field `topk_group` is missing"), "{e}");
    }

    /// transformers 5.24: the classes take null for false, and for whole heads.
    #[test]
    fn null_is_false_and_whole_heads_where_the_class_assumes_otherwise() {
        let mut file = json!({
            "model_type": "glm4_moe", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100,
            "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2
        });
        let read = |file: &serde_json::Value| {
            let c = read_config(file).unwrap();
            (c.moe.unwrap().router.renormalise, c.rope.fraction)
        };
        assert_eq!(read(&file), (true, 0.5));
        file["norm_topk_prob"] = json!(null);
        assert_eq!(read(&file), (false, 0.5));
        file["partial_rotary_factor"] = json!(null);
        assert_eq!(read(&file), (false, 1.0));
    }

    /// As published: `MoEGate` of `modeling_deepseek.py` divides only where several experts are chosen.
    #[test]
    fn the_weight_of_a_single_expert_of_deepseek_v2_is_scaled() {
        let mut file = json!({
            "model_type": "deepseek_v2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100,
            "num_attention_heads": 4, "n_routed_experts": 4, "kv_lora_rank": 8, "q_lora_rank": null, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8, "v_head_dim": 8, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
            "moe_intermediate_size": 16
        });
        for (top_k, divided, scale) in [(1, false, 2.5), (2, true, 1.0)] {
            file["num_experts_per_tok"] = json!(top_k);
            let router = read_config(&file).unwrap().moe.unwrap().router;
            assert_eq!((router.renormalise, router.scale), (divided, scale), "{top_k}");
        }
    }
}
