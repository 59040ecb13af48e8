//! How routers are trained, from flags.

use crate::resolve::number;
use anyhow::{Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::{Args, Upstream};
use ms_core::ops::{Auxiliary, DropPolicy};
use ms_nn::Capacity;
use ms_spec::{ModelConfig, Score};
use ms_trainer::Routing;

/// How routers are trained; the number of experts must be the model's.
pub(crate) fn routing(args: &Args, model: &ModelConfig) -> Result<Routing> {
    let (experts, top_k) = model.moe.as_ref().map_or((0, 0), |m| (m.experts, m.top_k));
    for (dest, flag, found) in
        [("num_experts", "--num-experts", experts), ("moe_router_topk", "--moe-router-topk", top_k)]
    {
        if let Some(given) = args.size(dest)?.filter(|&n| args.has(dest) && n != found) {
            bail!(Usage(format!("{flag}: expected {found}, as the model has it, found {given}")));
        }
    }
    let coeff = number(args, "moe_aux_loss_coeff");
    let (kind, by_sequence) = (args.text("moe_router_load_balancing_type"), args.flag("seq_aux"));
    let unbalanced = matches!(kind, Some("none" | "noaux_tc"));
    let (experts_coeff, balance_by_sequence) = match kind {
        None | Some("aux_loss" | "pai_megatron_aux_loss") => (coeff, false),
        Some("seq_aux_loss") => (coeff, true),
        Some("group_limited_greedy") => (coeff, by_sequence),
        // Upstream balances these by sequences alone.
        Some(_) if unbalanced && by_sequence => (coeff, true),
        Some("none" | "noaux_tc" | "softmax_topk" | "sparsemixer_topk") => (0.0, false),
        Some(other) => bail!(Usage(format!(
            "--moe-router-load-balancing-type: expected aux_loss, seq_aux_loss, softmax_topk, sparsemixer_topk, \
             group_limited_greedy, pai_megatron_aux_loss, noaux_tc or none, found {other}, which is not part of this version"
        ))),
    };
    if coeff != 0.0 && experts_coeff == 0.0 && args.has("moe_aux_loss_coeff") {
        let kind = kind.unwrap_or_default();
        tracing::warn!("--moe-aux-loss-coeff {coeff}: {kind} has no load-balancing loss, as upstream");
    }
    let grouped = model.moe.as_ref().is_some_and(|m| m.router.groups.is_some());
    let of_groups = |dest: &str, flag: &str| -> Result<f64> {
        let coeff = number(args, dest);
        if coeff != 0.0 && kind != Some("group_limited_greedy") {
            bail!(Usage(format!(
                "{flag}: goes with --moe-router-load-balancing-type group_limited_greedy, found {}",
                kind.unwrap_or("aux_loss")
            )));
        }
        if coeff != 0.0 && !grouped {
            bail!(Usage(format!("{flag}: goes with groups of experts, --n-group and --topk-group")));
        }
        Ok(coeff)
    };
    let auxiliary = Auxiliary {
        experts: experts_coeff,
        devices: of_groups("moe_device_level_aux_loss_coeff", "--moe-device-level-aux-loss-coeff")?,
        communication: of_groups("moe_comm_aux_loss_coeff", "--moe-comm-aux-loss-coeff")?,
        z: number(args, "moe_z_loss_coeff"),
    };
    // v2.0.0's other flag switches it off.
    let switched_off = args.upstream() == Upstream::V2_0_0 && !args.flag("input_jitter");
    let jitter = if switched_off { 0.0 } else { number(args, "moe_input_jitter_eps") };
    let fixed = args.flag("fix_router");
    if fixed {
        tracing::warn!("--fix-router: experts are taken in turn, so losses say nothing");
    }
    // As upstream: a factor below zero is none.
    let capacity = args.float("moe_expert_capacity_factor").filter(|&f| f >= 0.0).map(|factor| Capacity {
        factor,
        policy: match args.text("moe_token_drop_policy") {
            Some("position") => DropPolicy::Position,
            _ => DropPolicy::Weights,
        },
    });
    if capacity.is_some() && args.text("moe_token_dispatcher_type").is_none_or(|t| t == "allgather") {
        bail!(Usage(
            "--moe-expert-capacity-factor: expected --moe-token-dispatcher-type alltoall, as upstream does, found allgather"
                .into()
        ));
    }
    let bias_update_rate = number(args, "moe_router_bias_update_rate");
    let of_softmax = |m: &ms_spec::Moe| matches!(m.router.score, Score::Softmax | Score::SoftmaxOfChosen);
    let balance_biased = unbalanced && by_sequence && !model.moe.as_ref().is_some_and(of_softmax);
    Ok(Routing {
        auxiliary,
        balance_by_sequence,
        balance_biased,
        jitter,
        fixed,
        capacity,
        watch_margins: false,
        bias_update_rate,
    })
}
