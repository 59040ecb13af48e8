//! How routers are trained, from flags.

use crate::ModelFlags;
use anyhow::Result;
use ms_cli::megatron::{Given, Upstream};
use ms_cli::refuse;
use ms_core::Dispatcher;
use ms_core::ops::{Auxiliary, DropPolicy};
use ms_nn::Capacity;
use ms_spec::megatron::ROUTER_KIND;
use ms_spec::{GroupScore, ModelConfig, Score};
use ms_trainer::Routing;

options! {
    /// How routers are trained, as the flags say it.
    pub(crate) struct Routers in "Optimizer" {
        aux_loss: Given<f64> = "--moe-aux-loss-coeff", "coefficient of the load-balancing loss", range = "[0,)";
        pub(crate) balanced_groups: bool = "--moe-router-balanced-groups", "choose equally many of --moe-router-topk experts from each of --moe-router-num-groups groups (MoGE, as in Pangu Pro MoE)", own = own_or("moe_router_balanced_groups", "false");
        pub(crate) best_two: bool = "--topk-softmax-in-fp32", "head: rank groups of experts by their two best scores, as MindSpeed-LLM's own function does, instead of by as many as are chosen per group; scores are never rounded", group = "Model families";
        by_sequence: bool = "--seq-aux", "group_limited_greedy, noaux_tc, none: balance the load within each sequence";
        of_devices: f64 = "--moe-device-level-aux-loss-coeff", "group_limited_greedy: coefficient of the loss that balances the groups of experts", range = "[0,)", group = "Model families";
        of_tokens_sent: f64 = "--moe-comm-aux-loss-coeff", "group_limited_greedy: coefficient of the loss that balances the tokens sent to each group of experts", range = "[0,)", group = "Model families";
        z: Option<f64> = "--moe-z-loss-coeff", "coefficient of the router z-loss, which keeps logits small", range = "[0,)";
        jitters: bool = "--input-jitter", "v2.0.0: no jitter of router inputs, whatever --moe-input-jitter-eps says";
        fixed: bool = "--fix-router", "for benchmarks: use experts in turn; v2.0.0: with the weights of those the router chose; head: with their own weights, 0 where the router did not choose them";
        capacity: Option<f64> = "--moe-expert-capacity-factor", "expert capacity, as a multiple of an even share of the tokens", range = "(,)";
        drop: String = "--moe-token-drop-policy", "which tokens beyond the capacity are dropped: those with the lowest weights (probs) or the last (position)";
        fills: bool = "--moe-pad-expert-input-to-capacity", "needs --moe-expert-capacity-factor, as in upstream; no padding is computed, since nothing uses its outputs; head: expert biases do not change, since all experts count as equally loaded", group = "Model families";
        bias_update_rate: f64 = "--moe-router-bias-update-rate", "update rate of expert biases towards equal load", range = "[0,)";
    }
}

/// How routers are trained; the number of experts must be the model's.
pub(crate) fn routing(
    o: &Routers,
    flags: &ModelFlags,
    upstream: Upstream,
    dispatcher: Dispatcher,
    model: &ModelConfig,
) -> Result<Routing> {
    check_model(o, flags, model)?;
    let kind = flags.word(ROUTER_KIND);
    let (coeff, balance_by_sequence) = balance(o, kind)?;
    let auxiliary = auxiliary(o, kind, coeff, model)?;
    // v2.0.0's other flag switches it off.
    let switched_off = upstream == Upstream::V2_0_0 && !o.jitters;
    let jitter = if switched_off { 0.0 } else { flags.share("moe_input_jitter_eps").unwrap_or(0.0) };
    let fixed = o.fixed;
    if fixed {
        tracing::warn!("--fix-router: experts are used in turn, so losses are meaningless");
    }
    let capacity = capacity(o, kind, dispatcher, model)?;
    let bias_update_rate = bias_update_rate(o, upstream, capacity.is_some(), model);
    let of_softmax = |m: &ms_spec::Moe| matches!(m.router.score, Score::Softmax | Score::SoftmaxOfChosen);
    let unbalanced = matches!(kind, Some("none" | "noaux_tc"));
    let head = upstream == Upstream::Head;
    let single = model.moe.as_ref().is_some_and(|m| m.top_k == 1);
    Ok(Routing {
        auxiliary,
        balance_by_sequence,
        balance_biased: unbalanced && o.by_sequence && !model.moe.as_ref().is_some_and(of_softmax),
        // As upstream: this loss uses what the dispatcher receives.
        balance_of_taken: kind == Some("seq_aux_loss"),
        balance_of_filled: kind == Some("seq_aux_loss") && o.fills,
        balance_undivided: head && single && matches!(kind, None | Some("aux_loss" | "seq_aux_loss")),
        balance_by_tokens: head,
        jitter,
        fixed,
        fixed_by_expert: fixed && head,
        sinkhorn: kind == Some("sinkhorn"),
        capacity,
        capacity_shares: None,
        watch_margins: false,
        bias_update_rate,
        bias_of_taken: head,
    })
}

/// Checks that experts and their groups are as the model has them.
fn check_model(o: &Routers, flags: &ModelFlags, model: &ModelConfig) -> Result<()> {
    let (experts, top_k) = model.moe.as_ref().map_or((0, 0), |m| (m.experts, m.top_k));
    for (dest, flag, found) in
        [("num_experts", "--num-experts", experts), ("moe_router_topk", "--moe-router-topk", top_k)]
    {
        // As upstream: a model without experts has no routing.
        let idle = model.moe.is_none() && dest == "moe_router_topk";
        if let Some(given) = flags.number(dest).filter(|&n| n != found as u64 && !idle) {
            refuse!("{flag}: expected {found}, as the model has it, found {given}");
        }
    }
    let alike = model.moe.as_ref().and_then(|m| m.router.groups).is_some_and(|g| g.by == GroupScore::Alike);
    if o.balanced_groups && !alike {
        refuse!(
            "--moe-router-balanced-groups: expected --moe-router-num-groups of 2 or more and a model that is made from flags, or a \
             checkpoint of such a model; the model has none"
        );
    }
    Ok(())
}

/// The coefficient of the load-balancing loss of this `kind` of router, and whether the loss is that of each sequence.
fn balance(o: &Routers, kind: Option<&str>) -> Result<(f64, bool)> {
    let coeff = o.aux_loss.value;
    let (used, by_sequence) = match kind {
        None | Some("aux_loss" | "pai_megatron_aux_loss") => (coeff, false),
        Some("seq_aux_loss") => (coeff, true),
        Some("group_limited_greedy") => (coeff, o.by_sequence),
        // Upstream balances these by sequences alone.
        Some("none" | "noaux_tc") if o.by_sequence => (coeff, true),
        Some("sinkhorn") if coeff != 0.0 => refuse!(
            "--moe-aux-loss-coeff: expected 0 beside --moe-router-load-balancing-type sinkhorn, as in upstream, found {coeff}"
        ),
        Some("none" | "noaux_tc" | "softmax_topk" | "sinkhorn" | "sparsemixer_topk") => (0.0, false),
        Some(other) => refuse!(
            "--moe-router-load-balancing-type: expected aux_loss, seq_aux_loss, softmax_topk, sinkhorn, sparsemixer_topk, \
             group_limited_greedy, pai_megatron_aux_loss, noaux_tc or none, found {other}, which is not part of this version"
        ),
    };
    if coeff != 0.0 && used == 0.0 && o.aux_loss.is_given() {
        let kind = kind.unwrap_or_default();
        tracing::warn!("--moe-aux-loss-coeff {coeff}: {kind} has no load-balancing loss, as in upstream");
    }
    Ok((used, by_sequence))
}

/// The coefficients of all losses of a router; `experts` is that of the load of experts.
fn auxiliary(o: &Routers, kind: Option<&str>, experts: f64, model: &ModelConfig) -> Result<Auxiliary> {
    let grouped = model.moe.as_ref().is_some_and(|m| m.router.groups.is_some());
    let of_groups = |coeff: f64, flag: &str| -> Result<f64> {
        if coeff != 0.0 && kind != Some("group_limited_greedy") {
            refuse!(
                "{flag}: needs --moe-router-load-balancing-type group_limited_greedy, found {}",
                kind.unwrap_or("aux_loss")
            );
        }
        if coeff != 0.0 && !grouped {
            refuse!("{flag}: needs groups of experts, --n-group and --topk-group");
        }
        Ok(coeff)
    };
    Ok(Auxiliary {
        experts,
        devices: of_groups(o.of_devices, "--moe-device-level-aux-loss-coeff")?,
        communication: of_groups(o.of_tokens_sent, "--moe-comm-aux-loss-coeff")?,
        z: o.z.unwrap_or(0.0),
    })
}

/// How many tokens an expert takes at most, if that is limited.
fn capacity(
    o: &Routers,
    kind: Option<&str>,
    dispatcher: Dispatcher,
    model: &ModelConfig,
) -> Result<Option<Capacity>> {
    // As upstream: a negative factor means none.
    let capacity = o.capacity.filter(|&f| f >= 0.0).map(|factor| Capacity {
        factor,
        policy: match o.drop.as_str() {
            "position" => DropPolicy::Position,
            _ => DropPolicy::Weights,
        },
    });
    if o.fills && capacity.is_none() && model.moe.is_some() {
        refuse!(
            "--moe-pad-expert-input-to-capacity: needs --moe-expert-capacity-factor of 0 or more, as in upstream, found \
             none"
        );
    }
    if capacity.is_some() && dispatcher == Dispatcher::AllGather {
        refuse!(
            "--moe-expert-capacity-factor: expected --moe-token-dispatcher-type alltoall, as upstream does, found allgather"
        );
    }
    if capacity.is_some() && kind == Some("sinkhorn") {
        refuse!(
            "--moe-expert-capacity-factor: cannot be combined with --moe-router-load-balancing-type sinkhorn, as in upstream"
        );
    }
    Ok(capacity)
}

/// The update rate of expert biases. The head counts what experts keep after dropping; padded experts, whose tokens are
/// `limited`, have the same number each.
fn bias_update_rate(o: &Routers, upstream: Upstream, limited: bool, model: &ModelConfig) -> f64 {
    let biased = model.moe.as_ref().is_some_and(|m| m.router.bias);
    let rate = o.bias_update_rate;
    if upstream == Upstream::Head && limited && o.fills && biased && rate != 0.0 {
        tracing::warn!(
            "--moe-router-bias-update-rate {rate}: beside --moe-pad-expert-input-to-capacity biases stay, as upstream's head counts"
        );
        return 0.0;
    }
    rate
}
