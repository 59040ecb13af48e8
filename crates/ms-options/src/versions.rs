//! Flags that upstream's versions interpret differently.

use crate::given::Given;
use anyhow::Result;
use ms_cli::megatron::Upstream;
use ms_cli::refuse;
use ms_spec::ModelConfig;
use ms_spec::megatron::{
    RENORMALISED, ROUTER_KIND, RotatedElements, SHARES, rotated_elements, with_rotated_elements,
};
use serde_json::{Map, Value};

/// Yarn's factor, which newer upstreams form of the lengths unless attention has a rotation of its own.
pub(crate) const YARN_FACTOR: &str = "rope_scaling_factor";

/// Flags on top of a checkpoint's model as a version of upstream interprets them: without those that have no effect with its
/// type of router, if given ([`unread_of_router`]), and at head with YaRN's factor computed from the lengths, unless
/// attention is latent. Also returns the flags left out.
///
/// # Source
/// MindSpeed-LLM (2026), `core/models/common/embeddings/rotary_pos_embedding.py`, `apply_yarn_scaling`.
pub(crate) fn given(upstream: Upstream, all: &[Given], config: &ModelConfig) -> (Vec<Given>, Vec<Given>) {
    let of = |dest: &str| all.iter().find(|given| given.dest == dest).map(|given| &given.value);
    let kind = of(ROUTER_KIND).and_then(Value::as_str);
    let divides = of("norm_topk_prob") == Some(&Value::Bool(true));
    let unread = unread_of_router(upstream, kind, divides);
    let (left_out, mut given): (Vec<_>, Vec<_>) =
        all.iter().cloned().partition(|given| unread.contains(&given.dest.as_str()));
    if divides_last(upstream, kind, divides) {
        given.push(Given::new(RENORMALISED, None, &true.into()));
    }
    turn(upstream, &mut given, config);
    let yarn = of("rope_scaling_type").and_then(Value::as_str) == Some("yarn");
    if upstream == Upstream::V2_0_0 || !yarn || config.rotates_by_itself() {
        return (given, left_out);
    }
    given.retain(|given| given.dest != YARN_FACTOR);
    let reach = of("max_position_embeddings").and_then(Value::as_f64).unwrap_or(config.max_positions as f64);
    let original = of("rope_scaling_original_max_position_embeddings").and_then(Value::as_f64);
    given.extend(original.map(|original| Given::new(YARN_FACTOR, None, &(reach / original).into())));
    (given, left_out)
}

/// Reports flags that have no effect on a checkpoint's model.
pub(crate) fn say_left_out(all: &[Given], left_out: &[Given]) {
    let kind = all.iter().find(|given| given.dest == ROUTER_KIND);
    left_out.iter().for_each(|given| say_unread(&given.flag, kind.and_then(|kind| kind.value.as_str())));
}

/// Whether this version of upstream divides weights by their sum at the end, including the weight of a single expert, which
/// is then always 1.
///
/// # Source
/// MindSpeed-LLM (2026), `mindspeed_llm/core/transformer/moe/router.py`, `topk_router_routing`, `aux_loss`.
pub(crate) fn divides_last(upstream: Upstream, kind: Option<&str>, divides: bool) -> bool {
    upstream == Upstream::Head && kind == Some("aux_loss") && divides
}

/// Replaces given rotary shares by what upstream rotates of a head. A model that is scaled in this way by itself keeps its
/// own share.
fn turn(upstream: Upstream, given: &mut Vec<Given>, config: &ModelConfig) {
    const KIND: &str = "rope_scaling_type";
    let own = ms_spec::megatron::to_args(config);
    let mut args = own.clone();
    args.retain(|dest, _| !SHARES.contains(&dest.as_str()));
    args.extend(given.iter().map(|given| (given.dest.clone(), given.value.clone())));
    let Some(rotated) = rotated_elements(&args, upstream == Upstream::Head) else { return };
    let (said, mut rest): (Vec<Given>, Vec<Given>) =
        std::mem::take(given).into_iter().partition(|given| SHARES.contains(&given.dest.as_str()));
    if rotated.unread {
        said.iter().for_each(|said| say_whole(&said.flag));
    }
    let flag = said.first().map_or("--rope-scaling-type", |said| &said.flag);
    if !rotated.unread || own.get(KIND) != args.get(KIND) {
        rest.push(Given::new(SHARES[0], Some(flag), &rotated.share().into()));
    }
    *given = rest;
}

/// [`turn`] of arguments that describe a model by themselves; `written`: how a flag was written, if it was.
///
/// # Errors
/// If upstream rotates more elements than a head has.
pub(crate) fn turn_args<'a>(
    upstream: Upstream,
    args: &mut Map<String, Value>,
    written: impl Fn(&str) -> Option<&'a str>,
) -> Result<()> {
    let Some(rotated) = rotated_elements(args, upstream == Upstream::Head) else { return Ok(()) };
    if rotated.unread {
        SHARES.into_iter().filter_map(written).for_each(say_whole);
    }
    let RotatedElements { elements, of, .. } = rotated;
    if elements > of {
        let rotates = args.get("position_embedding_type").and_then(Value::as_str) == Some("rope");
        if rotates {
            refuse!(
                "--kv-channels {of}: expected at least --hidden-size by --num-attention-heads, {elements}: so many elements of a head are turned by this version of upstream"
            );
        }
        return Ok(());
    }
    with_rotated_elements(args, rotated);
    Ok(())
}

fn say_whole(flag: &str) {
    tracing::warn!("{flag} has no effect: upstream's rotation of this --rope-scaling-type looks at no share");
}

/// Reports that a router flag has no effect with this type of router.
pub(crate) fn say_unread(flag: &str, kind: Option<&str>) {
    let kind = kind.unwrap_or_default();
    tracing::warn!("{flag} has no effect: upstream's {kind} makes nothing of it in this version");
}

/// The flags that have no effect in this version of upstream with this type of router. v2.0.0 scales, divides and groups if
/// there is no balancing (`none`, `noaux_tc`) or a group limit; the other types use the plain softmax, and division depends
/// only on the score function. The head divides according to `--norm-topk-prob` in `aux_loss`, divides the scaled weights by
/// their sum in `softmax_topk` and `group_limited_greedy`, and applies scaling and score functions in the types that use
/// Megatron's own function. In both versions, a group limit applies to softmax scores.
///
/// # Source
/// MindSpeed-LLM 2.0.0 and its head (2026), `mindspeed_llm/core/transformer/moe/router.py`, `topk_router_routing`, and
/// `moe_utils.py`, `topk_softmax_with_capacity`; `mindspeed_llm/tasks/models/common/pai_megatron.py`; MindSpeed 2.0.0,
/// `mindspeed/core/transformer/moe/router.py`, `aux_loss_load_balancing`; Megatron-LM `core_r0.8.0` and `core_v0.12.1`,
/// `megatron/core/transformer/moe/router.py`, `sinkhorn_load_balancing`, `seq_aux_loss_load_balancing`.
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
        (Upstream::Head, Some("pai_megatron_aux_loss" | "sinkhorn" | "sparsemixer_topk")) => ALL,
        (Upstream::V2_0_0, Some("none" | "noaux_tc")) | (Upstream::Head, Some("none" | "seq_aux_loss")) => {
            &ALL[2..3]
        }
        (_, Some("group_limited_greedy")) | (Upstream::Head, Some("softmax_topk")) => &ALL[7..],
        (Upstream::Head, Some("aux_loss")) if divides => &ALL[..2],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Rotated elements, computed by hand from both versions' `rotary_embedding_init_wrapper` and what it calls: hidden size
    /// 32, two heads.
    #[test]
    fn each_version_of_upstream_turns_a_share_of_its_own() {
        let (yarn, half) = (("rope_scaling_type", json!("yarn")), json!(0.5));
        let (percent, partial) = (("rotary_percent", half.clone()), ("partial_rotary_factor", half));
        let (wide, narrow) = (("kv_channels", json!(24)), ("kv_channels", json!(8)));
        let original = ("rope_scaling_original_max_position_embeddings", json!(16));
        let factors = json!([1, 2, 3, 4, 5, 6, 7, 8]);
        let long = ("rope_scaling_type", json!("longrope"));
        let (short_ones, long_ones) = (("short_factor", factors.clone()), ("long_factor", factors));
        let [mul, outer] = ["mul", "outer"].map(|kind| ("longrope_freqs_type", json!(kind)));
        let (old, head) = (Upstream::V2_0_0, Upstream::Head);
        for (version, said, want) in [
            (old, vec![&percent], Ok(8)),
            (old, vec![&percent, &yarn], Ok(16)),
            (old, vec![&wide, &yarn], Ok(16)),
            (old, vec![&wide], Ok(24)),
            (old, vec![&percent, &long, &outer, &short_ones, &long_ones], Ok(16)),
            (old, vec![&percent, &long, &mul, &short_ones, &long_ones], Ok(8)),
            (head, vec![&partial, &long, &outer, &short_ones, &long_ones], Ok(16)),
            (old, vec![&narrow, &yarn], Err(())),
            (head, vec![&percent, &partial, &yarn], Ok(16)),
            (head, vec![&wide, &percent, &yarn], Ok(24)),
            (head, vec![&percent, &partial], Ok(4)),
            (head, vec![&partial], Ok(8)),
            (head, vec![&percent], Ok(8)),
            (head, vec![&wide, &partial], Ok(12)),
        ] {
            let said = said.into_iter().chain([&original]);
            let mut args = json!({
                "num_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "ffn_hidden_size": 8, "padded_vocab_size": 8,
                "max_position_embeddings": 64, "position_embedding_type": "rope"
            });
            let plain = ms_spec::megatron::from_args(args.as_object().unwrap()).unwrap();
            let flags: Vec<Given> = said.map(|(dest, value)| Given::new(dest, None, value)).collect();
            let args = args.as_object_mut().unwrap();
            args.extend(flags.iter().map(|flag| (flag.dest.clone(), flag.value.clone())));
            let by_itself = turn_args(version, args, |_| None).map_err(|e| {
                assert!(e.to_string().starts_with("--kv-channels 8: "), "{e}");
            });
            let by_itself = by_itself.map(|()| ms_spec::megatron::from_args(args).unwrap().rotated());
            assert_eq!(by_itself, want, "{version:?} {flags:?}");
            if !flags.iter().any(|flag| flag.dest == "kv_channels") {
                let changed = crate::model::apply(&plain, &given(version, &flags, &plain).0).unwrap();
                assert_eq!(Ok(changed.rotated()), want, "{version:?} {flags:?} beside a checkpoint");
            }
        }
    }

    #[test]
    fn what_a_model_of_a_checkpoint_turns_under_its_own_yarn_stays() {
        let rope = ms_spec::Rope {
            fraction: 0.5,
            scaling: ms_spec::RopeScaling::Yarn {
                factor: 4.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original: 16,
                mscale: None,
                attention_factor: None,
                truncate: true,
            },
            ..ms_spec::Rope::plain(10_000.0)
        };
        let own = ModelConfig { rope, ..ModelConfig::tiny() };
        let flags = [("rope_scaling_type", json!("yarn")), ("rotary_percent", json!(0.25))];
        let flags = flags.map(|(dest, value)| Given::new(dest, None, &value));
        let (left, _) = given(Upstream::V2_0_0, &flags, &own);
        assert_eq!(left.iter().map(|given| &*given.dest).collect::<Vec<_>>(), ["rope_scaling_type"]);
        assert_eq!(crate::model::apply(&own, &left).unwrap(), own);
    }

    #[test]
    fn what_a_router_makes_nothing_of_is_left_out_beside_a_checkpoint() {
        let flags = [
            ("norm_topk_prob", json!(true)),
            ("routed_scaling_factor", json!(2.5)),
            ("moe_router_score_function", json!("sigmoid")),
        ];
        let left = |upstream, kind: Option<&str>| {
            let kind = kind.map(|kind| (ROUTER_KIND, json!(kind)));
            let all = kind.into_iter().chain(flags.clone());
            let all: Vec<Given> = all.map(|(dest, value)| Given::new(dest, None, &value)).collect();
            let (left, out) = given(upstream, &all, &ModelConfig::tiny());
            assert!(out.iter().all(|out| left.iter().all(|left| left.dest != out.dest)));
            let names = left.into_iter().map(|given| given.dest);
            names.filter(|dest| !dest.ends_with("type")).collect::<Vec<_>>()
        };
        let (old, head) = (Upstream::V2_0_0, Upstream::Head);
        assert!(left(old, Some("aux_loss")).is_empty());
        let [divided, scaled, scored] = flags.clone().map(|(dest, _)| dest);
        for unbalanced in [(old, "none"), (old, "noaux_tc"), (head, "none"), (head, "seq_aux_loss")] {
            assert_eq!(left(unbalanced.0, Some(unbalanced.1)), [scaled, scored], "{unbalanced:?}");
        }
        for softmax in [(old, "group_limited_greedy"), (head, "group_limited_greedy"), (head, "softmax_topk")]
        {
            assert_eq!(left(softmax.0, Some(softmax.1)), [divided, scaled], "{softmax:?}");
        }
        for kind in ["pai_megatron_aux_loss", "sinkhorn", "sparsemixer_topk"] {
            assert!(left(old, Some(kind)).is_empty() && left(head, Some(kind)).is_empty(), "{kind}");
        }
        assert_eq!(left(head, Some("aux_loss")), [divided, scored, RENORMALISED]);
        assert_eq!(left(old, None), [divided, scaled, scored]);
    }
}
