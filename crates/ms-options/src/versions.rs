//! What versions of upstream make of flags, each in its own way.

use crate::given::Given;
use ms_cli::megatron::Upstream;
use ms_spec::ModelConfig;
use serde_json::Value;

/// Flags beside a checkpoint's model as a version of upstream takes them: without those that its type of router, where it is
/// given, makes nothing of ([`unread_of_router`]), and at the head with yarn's factor formed of the lengths, unless attention is
/// latent.
///
/// # Source
/// MindSpeed-LLM (2026), `core/models/common/embeddings/rotary_pos_embedding.py`, `apply_yarn_scaling`.
pub(crate) fn given(upstream: Upstream, all: &[Given], config: &ModelConfig) -> Vec<Given> {
    const FACTOR: &str = "rope_scaling_factor";
    let mut given = all.to_vec();
    let of = |dest: &str| all.iter().find(|given| given.dest == dest).map(|given| &given.value);
    let kind = of("moe_router_load_balancing_type").and_then(Value::as_str);
    let divides = of("norm_topk_prob") == Some(&Value::Bool(true));
    let unread = unread_of_router(upstream, kind, divides);
    given.retain(|given| {
        let is_unread = unread.contains(&given.dest.as_str());
        if is_unread {
            say_unread(&given.flag, kind);
        }
        !is_unread
    });
    let yarn = of("rope_scaling_type").and_then(Value::as_str) == Some("yarn");
    if upstream == Upstream::V2_0_0 || !yarn || config.rotates_by_itself() {
        return given;
    }
    given.retain(|given| given.dest != FACTOR);
    let reach = of("max_position_embeddings").and_then(Value::as_f64).unwrap_or(config.max_positions as f64);
    let original = of("rope_scaling_original_max_position_embeddings").and_then(Value::as_f64);
    given.extend(original.map(|original| Given::new(FACTOR, None, &(reach / original).into())));
    given
}

/// Says that a flag of the router does nothing beside this type of it.
pub(crate) fn say_unread(flag: &str, kind: Option<&str>) {
    let kind = kind.unwrap_or_default();
    tracing::warn!("{flag} changes nothing: upstream's {kind} makes nothing of it in this version");
}

/// What this version of upstream makes nothing of beside the type of router. v2.0.0 scales, divides and groups where there is no
/// balance (`none`, `noaux_tc`) or a limit of groups; the others take the softmax as it is, and what is divided there hangs on
/// the score alone. The head divides what `aux_loss` has scaled by its sum.
///
/// # Source
/// MindSpeed-LLM 2.0.0 and its head (2026), `mindspeed_llm/core/transformer/moe/router.py`, `topk_router_routing`, and
/// `moe_utils.py`, `topk_softmax_with_capacity`; `mindspeed_llm/tasks/models/common/pai_megatron.py`; MindSpeed 2.0.0,
/// `mindspeed/core/transformer/moe/router.py`, `aux_loss_load_balancing`; Megatron-LM `core_r0.8.0`,
/// `megatron/core/transformer/moe/router.py`, `sinkhorn_load_balancing`.
pub(crate) fn unread_of_router(
    upstream: Upstream,
    kind: Option<&str>,
    divides: bool,
) -> &'static [&'static str] {
    const ALL: &[&str] = &[
        "routed_scaling_factor",
        "moe_router_topk_scaling_factor",
        "norm_topk_prob",
        "n_group",
        "topk_group",
        "moe_router_num_groups",
        "moe_router_group_topk",
        "moe_router_score_function",
    ];
    match (upstream, kind) {
        (
            Upstream::V2_0_0,
            Some("softmax_topk" | "aux_loss" | "pai_megatron_aux_loss" | "sinkhorn" | "sparsemixer_topk"),
        ) => ALL,
        (Upstream::V2_0_0, Some("none" | "noaux_tc")) => &ALL[2..3],
        (Upstream::Head, Some("aux_loss")) if divides => &ALL[..2],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_router_makes_nothing_of_is_left_out_beside_a_checkpoint() {
        let flags = [("norm_topk_prob", json!(true)), ("routed_scaling_factor", json!(2.5))];
        let left = |upstream, kind: Option<&str>| {
            let kind = kind.map(|kind| ("moe_router_load_balancing_type", json!(kind)));
            let all = kind.into_iter().chain(flags.clone());
            let all: Vec<Given> = all.map(|(dest, value)| Given::new(dest, None, &value)).collect();
            let left = given(upstream, &all, &ModelConfig::tiny());
            left.into_iter()
                .map(|given| given.dest)
                .filter(|dest| !dest.ends_with("type"))
                .collect::<Vec<_>>()
        };
        let (old, head) = (Upstream::V2_0_0, Upstream::Head);
        assert!(left(old, Some("aux_loss")).is_empty());
        assert_eq!(left(old, Some("none")), ["routed_scaling_factor"]);
        assert_eq!(left(old, Some("group_limited_greedy")), ["norm_topk_prob", "routed_scaling_factor"]);
        assert_eq!(left(head, Some("aux_loss")), ["norm_topk_prob"]);
        assert_eq!(left(old, None), ["norm_topk_prob", "routed_scaling_factor"]);
    }
}
