//! Megatron arguments of mixtures of experts.

use serde_json::{Value, json};

use crate::field::{Field, Writer};
use crate::fields::Fields;
use crate::sizes::{Feed, GroupLimit, GroupScore, Layer, Moe, Router, RouterDtype, Score, SharedExpert};
use crate::{ModelConfig, Result};

/// How a router chooses and balances its load.
pub const ROUTER_KIND: &str = "moe_router_load_balancing_type";

/// Every group of experts gives as many, which upstream has no argument for.
const BALANCED_GROUPS: &str = "moe_router_balanced_groups";

/// How many of its best experts a group is judged by, where upstream's arguments say something else: see [`judged_by`].
const GROUPS_BY: &str = "moe_router_groups_by";

/// Experts of a token where nothing is said.
const USUAL_TOP_K: usize = 2;

pub(super) const EXPERTS: &[Field] = &[
    START,
    Field::size("moe_router_topk", |c| Some(&mut c.moe.as_mut()?.top_k)),
    Field::size("moe_ffn_hidden_size", |c| Some(&mut c.moe.as_mut()?.ffn))
        .or(&["moe_ffn_hidden_size", "moe_intermediate_size"]),
    Field::alias("moe_intermediate_size", |c| Some(c.moe.as_ref()?.ffn)),
    ROUTER,
    SHARED,
    Field::size("num_zero_experts", |c| Some(&mut c.moe.as_mut()?.zero_experts))
        .written_if(|c| c.moe.as_ref().is_some_and(|moe| moe.zero_experts > 0)),
    LAYERS,
];

/// Whether weights of chosen experts are divided by their sum, where upstream always divides or never does.
pub const RENORMALISED: &str = "moe_router_renormalised";

/// Weights of chosen experts are scaled where upstream either divides them by their sum or scales them.
const SCALED: &str = "moe_router_renormalised_and_scaled";

/// Whether there are experts; what has none says so.
const START: Field = Field::rule(
    |f, c| {
        let router = Router::plain(Score::SoftmaxOfChosen);
        c.moe = f.size("num_experts")?.filter(|&n| n > 0).map(|experts| Moe {
            experts,
            top_k: USUAL_TOP_K,
            ffn: c.ffn,
            router,
            shared: None,
            zero_experts: 0,
        });
        Ok(())
    },
    |c, w| {
        w.set("num_experts", json!(c.moe.as_ref().map(|moe| moe.experts)));
        for name in ["n_shared_experts", "moe_intermediate_size", "first_k_dense_replace", "moe_layer_freq"] {
            w.set(name, Value::Null);
        }
    },
);

const ROUTER: Field = Field::rule(
    |f, c| {
        if let Some(moe) = &mut c.moe {
            moe.router = router(f)?;
        }
        Ok(())
    },
    write_router,
);

fn router(f: &Fields<'_>) -> Result<Router> {
    let kind = f.text(ROUTER_KIND)?.unwrap_or("aux_loss");
    let by_score = match f.text("moe_router_score_function")?.unwrap_or("softmax") {
        "sigmoid" => Some(Score::Sigmoid),
        "sqrtsoftplus" => Some(Score::SqrtSoftplus),
        _ => None,
    };
    let noaux = kind == "noaux_tc";
    let chosen = f.size("moe_router_topk")?.unwrap_or(USUAL_TOP_K);
    let score = match (kind, by_score) {
        ("sparsemixer_topk", _) => {
            Score::SparseMixer { jitter: f.float("moe_input_jitter_eps")?.unwrap_or(0.01) }
        }
        // The number of selected experts determines their weights, regardless of other score arguments.
        ("sinkhorn", _) if chosen == 1 => Score::Sigmoid,
        ("sinkhorn", _) => Score::Softmax,
        (_, Some(score)) => score,
        ("noaux_tc", None) => Score::Sigmoid,
        ("softmax_topk" | "group_limited_greedy" | "pai_megatron_aux_loss", None) => Score::Softmax,
        _ if f.on("moe_router_pre_softmax")? => Score::Softmax,
        _ => Score::SoftmaxOfChosen,
    };
    let groups = f.size_of(&["moe_router_num_groups", "n_group"])?;
    let keep = f.size_of(&["moe_router_group_topk", "topk_group"])?;
    let alike = f.on(BALANCED_GROUPS)?;
    let (by, limited) = match kind {
        _ if alike => (GroupScore::Alike, true),
        "group_limited_greedy" => (GroupScore::Best(1), true),
        // These choose in ways of their own.
        "softmax_topk" | "pai_megatron_aux_loss" | "sparsemixer_topk" | "sinkhorn" => {
            (GroupScore::Best(2), false)
        }
        _ => (GroupScore::Best(judged_by(f, kind, chosen, keep)?), true),
    };
    let keep = if alike { groups } else { keep };
    let renormalise = match f.get(RENORMALISED) {
        Some(told) => told == &Value::Bool(true),
        None => renormalises(kind, score, chosen).unwrap_or(f.on("norm_topk_prob")?),
    };
    let scaled = scales(kind, renormalise, chosen) || f.on(SCALED)?;
    let scale = f.float_of(&["moe_router_topk_scaling_factor", "routed_scaling_factor"])?;
    let groups = groups.zip(keep).filter(|g| g.0 > 1 && limited);
    Ok(Router {
        score,
        bias: noaux || (f.on("moe_router_enable_expert_bias")? && chooses_by_bias(kind, score)),
        linear_bias: false,
        groups: groups.map(|(groups, keep)| GroupLimit { groups, keep, by }),
        renormalise,
        scale: scale.filter(|_| scaled).unwrap_or(1.0),
        dtype: match f.text("moe_router_dtype")? {
            Some("fp64") => RouterDtype::F64,
            Some("fp32") => RouterDtype::F32,
            _ if noaux || f.on("router_gating_in_fp32")? => RouterDtype::F32,
            _ => RouterDtype::Model,
        },
    })
}

/// Whether upstream divides the weights of `chosen` experts by their sum, whatever `--norm-topk-prob` says; `None`: as it says.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/core/transformer/moe/moe_utils.py`, and MindSpeed-LLM 2.0.0,
/// `mindspeed_llm/core/transformer/moe/moe_utils.py`, `topk_softmax_with_capacity`, and `router.py`,
/// `group_limited_greedy_topKgating`.
fn renormalises(kind: &str, score: Score, chosen: usize) -> Option<bool> {
    match (kind, score) {
        ("sinkhorn", _) => Some(false),
        ("group_limited_greedy", _) if chosen == 1 => Some(false),
        (_, Score::Sigmoid | Score::SqrtSoftplus) => Some(chosen > 1),
        _ => None,
    }
}

/// How many of its best experts upstream scores a group by: v2.0.0 two; the head as many of the `chosen` ones as a used group
/// provides, unless `--topk-softmax-in-fp32` or layers that look up their experts in a table select MindSpeed-LLM's own
/// function. The head's arguments are recognised by that flag, which v2.0.0 does not have.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/core/transformer/moe/moe_utils.py`, `group_limited_topk`; MindSpeed-LLM (2026),
/// `mindspeed_llm/core/transformer/moe/moe_utils.py`, the function of that name, and `router.py`, `topk_router_routing`.
fn judged_by(f: &Fields<'_>, kind: &str, chosen: usize, keep: Option<usize>) -> Result<usize> {
    if let Some(told) = f.size(GROUPS_BY)? {
        return Ok(told);
    }
    let looked_up = kind == "none" && f.size("n_hash_layers")?.unwrap_or(0) > 0;
    let megatrons = f.get("topk_softmax_in_fp32") == Some(&Value::Bool(false)) && !looked_up;
    Ok(keep.filter(|&keep| megatrons && keep > 0).map_or(2, |keep| chosen / keep))
}

/// Whether upstream scales the weights of `chosen` experts.
///
/// # Source
/// MindSpeed-LLM 2.0.0, `mindspeed_llm/core/transformer/moe/router.py`, `group_limited_greedy_topKgating`; its head has the same.
fn scales(kind: &str, renormalise: bool, chosen: usize) -> bool {
    !(kind == "group_limited_greedy" && renormalise && chosen > 1)
}

/// Whether upstream adds the biases of `--moe-router-enable-expert-bias` to the scores by which it chooses: to those of a softmax
/// only where that type says it.
fn chooses_by_bias(kind: &str, score: Score) -> bool {
    match score {
        Score::Sigmoid | Score::SqrtSoftplus => kind != "sinkhorn",
        Score::Softmax => kind == "softmax_topk",
        Score::SoftmaxOfChosen | Score::SparseMixer { .. } => false,
    }
}

fn write_router(c: &ModelConfig, w: &mut Writer) {
    let Some(Moe { router: r, top_k, .. }) = &c.moe else { return };
    let kind = match (r.score, r.groups.map(|g| g.by)) {
        (Score::SparseMixer { jitter }, _) => {
            w.set("moe_input_jitter_eps", json!(jitter));
            "sparsemixer_topk"
        }
        (Score::Softmax, Some(GroupScore::Best(1))) => "group_limited_greedy",
        (Score::Softmax, Some(GroupScore::Best(_))) => "none",
        (Score::Softmax, _) => "softmax_topk",
        _ => "none",
    };
    let score = match r.score {
        Score::Sigmoid => "sigmoid",
        Score::SqrtSoftplus => "sqrtsoftplus",
        _ => "softmax",
    };
    w.set(ROUTER_KIND, json!(kind));
    w.set("moe_router_score_function", json!(score));
    w.set("moe_router_pre_softmax", json!(r.score == Score::Softmax));
    w.set("moe_router_enable_expert_bias", json!(r.bias));
    w.set("norm_topk_prob", json!(r.renormalise));
    if renormalises(kind, r.score, *top_k).is_some_and(|upstreams| upstreams != r.renormalise) {
        w.set(RENORMALISED, json!(r.renormalise));
    }
    if r.scale != 1.0 && !scales(kind, r.renormalise, *top_k) {
        w.set(SCALED, json!(true));
    }
    w.set("routed_scaling_factor", json!(r.scale));
    w.set("moe_router_topk_scaling_factor", json!(r.scale));
    match r.dtype {
        RouterDtype::Model => {}
        RouterDtype::F32 => w.set("moe_router_dtype", json!("fp32")),
        RouterDtype::F64 => w.set("moe_router_dtype", json!("fp64")),
    }
    let Some(g) = r.groups else { return };
    for name in ["n_group", "moe_router_num_groups"] {
        w.set(name, json!(g.groups));
    }
    for name in ["topk_group", "moe_router_group_topk"] {
        w.set(name, json!(g.keep));
    }
    match g.by {
        GroupScore::Alike => w.set(BALANCED_GROUPS, json!(true)),
        GroupScore::Best(2) => {}
        GroupScore::Best(1) if kind == "group_limited_greedy" => {}
        GroupScore::Best(count) => w.set(GROUPS_BY, json!(count)),
    }
}

const SHARED: Field = Field::rule(
    |f, c| {
        let Some(moe) = &mut c.moe else { return Ok(()) };
        let counted = f.size("n_shared_experts")?.map(|n| n.saturating_mul(moe.ffn));
        let ffn = f.size("moe_shared_expert_intermediate_size")?.or(counted).filter(|&n| n > 0);
        let gate = f.on("shared_expert_gate")?;
        let wide_gate = gate
            && match f.size("shared_expert_gate_output_dimension")?.unwrap_or(1) {
                1 => false,
                n if n == c.hidden => true,
                n => {
                    let expected = "1 or the hidden size, as in upstream";
                    return Err(f.wrong("shared_expert_gate_output_dimension", expected, &json!(n)));
                }
            };
        moe.shared = ffn.map(|ffn| SharedExpert { ffn, gate, wide_gate });
        Ok(())
    },
    |c, w| {
        w.set("shared_expert_gate", json!(false));
        let Some((moe, shared)) = c.moe.as_ref().and_then(|moe| Some((moe, moe.shared.as_ref()?))) else {
            return;
        };
        // Upstream's converter of 2026 asks of this alone whether there are any; the width counts.
        w.set("n_shared_experts", json!(shared.ffn.div_ceil(moe.ffn.max(1))));
        w.set("moe_shared_expert_intermediate_size", json!(shared.ffn));
        w.set("shared_expert_gate", json!(shared.gate));
        if shared.wide_gate {
            w.set("shared_expert_gate_output_dimension", json!(c.hidden));
        }
    },
);

/// Which layers have experts. Behind all that lists layers.
const LAYERS: Field = Field::rule(
    |f, c| {
        if c.moe.is_none() {
            return Ok(());
        }
        // Upstream's script of DeepSeek-V4 says -1: none.
        let first = f.float("first_k_dense_replace")?.map_or(0, |n| n.max(0.0) as usize);
        let (freq, listed) = layer_freq(f, c.layers)?;
        if c.pattern.is_empty() {
            c.pattern = vec![Layer::default(); c.layers];
        }
        for (l, layer) in c.pattern.iter_mut().enumerate() {
            let here = listed.as_ref().map_or(l % freq == 0, |list| list.get(l).copied().unwrap_or(true));
            layer.feed = if l >= first && here { Feed::Moe } else { Feed::Dense };
        }
        Ok(())
    },
    |c, w| {
        if c.moe.is_none() {
            return;
        }
        let sparse: Vec<bool> = (0..c.layers).map(|l| c.layer(l).feed == Feed::Moe).collect();
        let first = sparse.iter().take_while(|s| !**s).count();
        w.set("first_k_dense_replace", json!(first));
        let after = sparse[first..].iter().all(|s| *s);
        let list: Vec<u8> = sparse.iter().map(|&s| u8::from(s)).collect();
        w.set("moe_layer_freq", if after { json!(1) } else { json!(list) });
    },
);
/// Every how many layers there are experts, or which layers have some. Head's flag is text: a number, or lists that are
/// repeated and joined, as in `[0]*3+[1]*58`.
fn layer_freq(f: &Fields<'_>, layers: usize) -> Result<(usize, Option<Vec<bool>>)> {
    const FIELD: &str = "moe_layer_freq";
    let text = match f.get(FIELD) {
        Some(value @ Value::Array(list)) => {
            let sparse = |item: &Value| match item {
                Value::Number(n) => Ok(n.as_f64() != Some(0.0)),
                Value::Bool(sparse) => Ok(*sparse),
                _ => Err(f.wrong(FIELD, "a number, or a list of them", value)),
            };
            return Ok((1, Some(list.iter().map(sparse).collect::<Result<_>>()?)));
        }
        Some(Value::String(text)) => text,
        // As Python's remainder has it, a negative number is as good as a positive one.
        Some(Value::Number(n)) if n.is_i64() => {
            return Ok((n.as_i64().map_or(1, i64::unsigned_abs).max(1) as usize, None));
        }
        _ => return Ok((f.size(FIELD)?.unwrap_or(1).max(1), None)),
    };
    if let Ok(freq) = text.trim().parse::<i64>() {
        return Ok((freq.unsigned_abs().max(1) as usize, None));
    }
    let wrong = || f.wrong(FIELD, "a number, or lists such as [0]*3+[1]*58", &Value::from(text.as_str()));
    let plain: String = text.chars().filter(|c| !c.is_whitespace() && !matches!(c, '(' | ')')).collect();
    let mut all = Vec::new();
    for term in plain.split('+') {
        let (list, times) = term.split_once('*').unwrap_or((term, "1"));
        let (list, times) = if list.starts_with('[') { (list, times) } else { (times, list) };
        let inner = list.strip_prefix('[').and_then(|l| l.strip_suffix(']')).ok_or_else(wrong)?;
        let part: Vec<bool> = inner
            .split(',')
            .map(|n| n.parse::<usize>().map(|n| n > 0).map_err(|_| wrong()))
            .collect::<Result<_>>()?;
        let times: usize = times.parse().map_err(|_| wrong())?;
        if part.len().saturating_mul(times).saturating_add(all.len()) > layers {
            return Err(wrong());
        }
        all.extend(part.repeat(times));
    }
    Ok((1, Some(all)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::megatron::{from_args, to_args};

    fn of(flags: &Value) -> Router {
        let mut args = json!({
            "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "padded_vocab_size": 32,
            "max_position_embeddings": 32, "num_experts": 8, "moe_router_topk": 2
        });
        args.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
        let config = from_args(args.as_object().unwrap()).unwrap();
        assert_eq!(from_args(&to_args(&config)).unwrap().moe, config.moe, "{flags}");
        config.moe.unwrap().router
    }

    #[test]
    fn a_list_says_by_numbers_or_truth_values_which_layers_have_experts() {
        let sparse = |list: Value| {
            let map = json!({ "moe_layer_freq": list }).as_object().unwrap().clone();
            let listed = layer_freq(&Fields { source: "args", map: &map, asked: None }, 4);
            listed.map(|(_, listed)| listed).map_err(|e| e.to_string())
        };
        assert_eq!(sparse(json!([0, 1, 0.0, -2])), Ok(Some(vec![false, true, false, true])));
        assert_eq!(sparse(json!([false, true])), Ok(Some(vec![false, true])));
        assert!(sparse(json!([0, "0"])).unwrap_err().contains("moe_layer_freq"));
    }

    #[test]
    fn weights_are_divided_by_their_sum_where_upstream_divides_them() {
        for (flags, divides) in [
            (json!({"moe_router_score_function": "sigmoid"}), true),
            (json!({"moe_router_score_function": "sigmoid", "moe_router_load_balancing_type": "none"}), true),
            (
                json!({"moe_router_score_function": "sigmoid", "moe_router_load_balancing_type": "noaux_tc"}),
                true,
            ),
            (
                json!({"moe_router_score_function": "sigmoid", "moe_router_topk": 1, "norm_topk_prob": true}),
                false,
            ),
            (json!({"moe_router_load_balancing_type": "softmax_topk"}), false),
            (json!({"moe_router_load_balancing_type": "softmax_topk", "norm_topk_prob": true}), true),
            (json!({"moe_router_load_balancing_type": "sinkhorn", "norm_topk_prob": true}), false),
            (
                json!({"moe_router_load_balancing_type": "group_limited_greedy", "moe_router_topk": 1, "norm_topk_prob": true}),
                false,
            ),
            // As a model of another source has it.
            (json!({"moe_router_score_function": "sigmoid", RENORMALISED: false}), false),
        ] {
            assert_eq!(of(&flags).renormalise, divides, "{flags}");
        }
    }

    #[test]
    fn groups_limit_where_upstream_looks_at_them() {
        let with = |more: Value| {
            let mut flags = json!({"moe_router_num_groups": 4, "moe_router_group_topk": 2});
            flags.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(&flags).groups.map(|g| g.by)
        };
        assert_eq!(with(json!({})), Some(GroupScore::Best(2)));
        assert_eq!(with(json!({"moe_router_pre_softmax": true})), Some(GroupScore::Best(2)));
        assert_eq!(with(json!({"moe_router_score_function": "sigmoid"})), Some(GroupScore::Best(2)));
        assert_eq!(with(json!({"moe_router_load_balancing_type": "softmax_topk"})), None);
    }

    #[test]
    fn groups_are_judged_by_as_many_as_that_version_of_upstream_does() {
        let with = |more: Value| {
            let mut flags = json!({
                "num_experts": 16, "moe_router_num_groups": 4, "moe_router_group_topk": 2, "moe_router_topk": 6
            });
            flags.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(&flags).groups.unwrap().by
        };
        // Without the head's flag they are v2.0.0's arguments.
        assert_eq!(with(json!({})), GroupScore::Best(2));
        assert_eq!(with(json!({"topk_softmax_in_fp32": false})), GroupScore::Best(3));
        assert_eq!(with(json!({"topk_softmax_in_fp32": true})), GroupScore::Best(2));
        let looked_up = |kind: &str| {
            with(
                json!({"topk_softmax_in_fp32": false, "n_hash_layers": 1, "moe_router_load_balancing_type": kind}),
            )
        };
        assert_eq!((looked_up("none"), looked_up("aux_loss")), (GroupScore::Best(2), GroupScore::Best(3)));
        let greedy =
            json!({"topk_softmax_in_fp32": false, "moe_router_load_balancing_type": "group_limited_greedy"});
        assert_eq!(with(greedy), GroupScore::Best(1));
    }

    #[test]
    fn groups_survive_the_way_through_arguments_however_they_are_judged() {
        for score in ["sigmoid", "softmax"] {
            for (pre, count) in [(false, 1), (false, 2), (false, 3), (true, 1), (true, 2), (true, 3)] {
                let args = json!({
                    "num_layers": 2, "hidden_size": 16, "ffn_hidden_size": 32, "num_attention_heads": 2, "padded_vocab_size": 32,
                    "max_position_embeddings": 32, "swiglu": true, "normalization": "RMSNorm", "num_experts": 12,
                    "moe_router_topk": 6, "moe_router_num_groups": 4, "moe_router_group_topk": 2, GROUPS_BY: count,
                    "moe_router_score_function": score, "moe_router_pre_softmax": pre
                });
                let config = crate::megatron::from_args(args.as_object().unwrap()).unwrap();
                let router = &config.moe.as_ref().unwrap().router;
                assert_eq!(router.groups.unwrap().by, GroupScore::Best(count));
                let again = crate::megatron::from_args(&crate::megatron::to_args(&config)).unwrap();
                assert_eq!(again.moe, config.moe, "{score} {pre} {count}");
            }
        }
    }

    #[test]
    fn what_is_chosen_of_few_groups_is_divided_or_scaled() {
        let with = |more: Value| {
            let mut flags = json!({
                "moe_router_load_balancing_type": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                "routed_scaling_factor": 2.5
            });
            flags.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(&flags).scale
        };
        assert_eq!(with(json!({})), 2.5);
        assert_eq!(with(json!({"norm_topk_prob": true})), 1.0);
        assert_eq!(with(json!({"norm_topk_prob": true, "moe_router_topk": 1})), 2.5);
        // As a model of another source has it.
        assert_eq!(with(json!({"norm_topk_prob": true, SCALED: true})), 2.5);
    }

    #[test]
    fn biases_take_part_where_upstream_adds_them_to_the_scores() {
        let with = |more: Value| {
            let mut flags = json!({"moe_router_enable_expert_bias": true});
            flags.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(&flags).bias
        };
        assert!(with(json!({"moe_router_score_function": "sigmoid"})));
        assert!(with(json!({"moe_router_load_balancing_type": "softmax_topk"})));
        assert!(!with(json!({})));
        assert!(!with(json!({"moe_router_pre_softmax": true, "moe_router_load_balancing_type": "none"})));
    }
}
