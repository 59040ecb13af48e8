//! `--smart-swap`: values to swap out of a rank's memory are chosen by the memory that ranks need.
//!
//! Upstream watches the allocations of the first steps and swaps whatever makes the rest fit the device. Here the plan knows
//! the memory of ranks before they start: combinations of swaps are rehearsed without values, in the order of the bytes they
//! write to the file, and the first one that fits is used. None of them changes a bit.
//!
//! # Source
//! MindSpeed (2026), `docs/zh/features/smart_swap.md` and `mindspeed/core/memory/smart_swap/swap_policy_config.py`, whose
//! preferences are activations first, and the optimizer's state besides.

use crate::plan::layouts::{binary, bytes};
use crate::plan::{self, rehearse};
use crate::resolve::Resolved;
use crate::resolve::recompute::RecomputeOptions;
use crate::resolve::swap_choice::SwapChoice;
use anyhow::Result;
use ms_cli::{available_memory, refuse};
use ms_core::Axis;
use ms_nn::{Recompute, SavePolicy, Swapped};
use ms_spec::{PlacedParam, Placement};
use ms_trainer::OptimizerForm;

const FLAG: &str = "--smart-swap";
const LIMIT: &str = "--smart-swap-memory";

/// Says what was chosen.
fn say(chosen: &SwapChoice) {
    let mut parts = chosen.swapped.names();
    if chosen.optimizer {
        parts.push("the optimizer's state");
    }
    let parts = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
    let [takes, limit, without] =
        [chosen.takes, chosen.limit, chosen.without].map(|bytes| binary(bytes as u64));
    tracing::info!(
        "{FLAG}: {parts} goes to the file: a rank takes {takes} of {limit} ({without} as the other flags have it)"
    );
}

/// Ways to swap more than the flags say, each more than those before.
fn ways(r: &Resolved, parts: usize) -> Vec<(SavePolicy, OptimizerForm)> {
    let (save_policy, form) = (r.config.memory.save_policy, r.config.optimizer.form);
    let with = |parts: Swapped| SavePolicy {
        swapped: save_policy.swapped.union(parts),
        swap_inputs: save_policy.swap_inputs || r.config.memory.recompute != Recompute::None,
        ..save_policy
    };
    let all = Swapped::ATTENTION.union(Swapped::NETWORK_NORM).union(Swapped::NETWORK);
    let behind = if r.config.model.block.norms_outputs() {
        Swapped::POST_MIXER_NORM.union(Swapped::POST_NETWORK_NORM)
    } else {
        Swapped::NONE
    };
    let mut ways =
        vec![(save_policy, form), (with(Swapped::ATTENTION), form), (with(all.union(behind)), form)];
    // State that stands in the weights or in types of its own does not leave.
    if form.swapped.is_none() && !form.reuse && form.stored.is_none() {
        ways.push((with(all.union(behind)), OptimizerForm { swapped: Some(parts), ..form }));
    }
    ways
}

/// The memory of the rank that needs most: by rehearsal, or by formula if a stage cannot be rehearsed.
fn most(r: &Resolved) -> Result<usize> {
    let (c, grid) = (&r.config, &r.topology.grid);
    let placement = Placement::new(&c.model, &c.pipeline.stages)?;
    let micro_batches =
        c.batch.running(c.batch.global, grid.size(Axis::Dp)) / (c.batch.micro * grid.size(Axis::Dp));
    let all: Vec<usize> = (0..placement.stages()).collect();
    let tried = rehearse::stages(r, micro_batches, &all);
    let (schedule, _) = plan::pipeline(r, &placement, micro_batches)?;
    let mut most = 0;
    for (stage, tried) in tried.iter().enumerate() {
        let takes = match tried {
            Some(tried) => tried.most().0,
            None => {
                let held: Vec<PlacedParam> = placement.params(&c.model, stage);
                plan::stage_bytes(r, &placement, &held, stage, &schedule)?
            }
        };
        most = most.max(takes);
    }
    Ok(most)
}

/// Chooses what is swapped, if requested; the optimizer state in this many parts.
///
/// # Errors
/// For an invalid size, and one that no combination of swaps fits.
pub(crate) fn choose(r: &mut Resolved, o: &RecomputeOptions, parts: usize) -> Result<()> {
    if !o.smart {
        return Ok(());
    }
    let ranks = r.world.max(1);
    let limit = match &o.smart_memory {
        Some(text) => Some(bytes(LIMIT, text)?),
        None => available_memory().map(|all| usize::try_from(all).unwrap_or(usize::MAX) / ranks),
    };
    let Some(limit) = limit else {
        refuse!("{FLAG}: this machine does not say how much memory it has; pass {LIMIT}");
    };
    let ways = ways(r, parts);
    let last = ways.len() - 1;
    let mut without = None;
    for (i, (save_policy, form)) in ways.into_iter().enumerate() {
        (r.config.memory.save_policy, r.config.optimizer.form) = (save_policy, form);
        let takes = most(r)?;
        let without = *without.get_or_insert(takes);
        if takes > limit && i < last {
            continue;
        }
        if takes > limit {
            let text = format!(
                "{LIMIT}: with all swapped that can be a rank still takes {}, more than {}",
                binary(takes as u64),
                binary(limit as u64)
            );
            if o.smart_memory.is_some() {
                refuse!("{text}\nhint: --fit proposes layouts of the ranks");
            }
            tracing::warn!("{text}, this machine's share of a rank");
        }
        let (swapped, optimizer) = (save_policy.swapped, form.swapped.is_some());
        let chosen = SwapChoice { limit, takes, without, swapped, optimizer };
        say(&chosen);
        r.smart_swap = Some(chosen);
        return Ok(());
    }
    Ok(())
}
