//! Interleaved 1F1B: several chunks per stage; groups of micro-batches pass the first chunks of all stages, then the second
//! chunks, and so on.

use super::{Action, Impossible};

/// What decides the order.
pub(super) struct Shape {
    pub(super) pp: usize,
    pub(super) chunks: usize,
    pub(super) micro_batches: usize,
    /// Micro-batches of a group.
    pub(super) group: usize,
    /// Whether all forwards come first where there are as many micro-batches as stages.
    pub(super) forwards_first: bool,
}

/// # Source
/// Megatron-LM `core_v0.12.1`, `schedules.py`: groups are at least the stages and at most the micro-batches.
pub(super) fn check(pp: usize, m: usize, group: usize) -> Result<(), Impossible> {
    let fits =
        |m: usize| m >= pp.max(group) && m.checked_rem(group).is_none_or(|rest| rest == 0 || rest >= pp);
    if group >= pp && fits(m) {
        return Ok(());
    }
    let near = if group >= pp {
        let fewer = (pp..m).rev().find(|&n| fits(n)).map(|n| format!("{n} or ")).unwrap_or_default();
        let more = (m + 1..=m.max(group) + pp).find(|&n| fits(n)).unwrap_or(pp);
        format!("; {fewer}{more} would do")
    } else {
        String::new()
    };
    Err(Impossible(format!(
        "interleaved stages: expected groups of at least {pp} micro-batches, the last one too, and at most all of them, found {m} \
         micro-batches in groups of {group}{near}"
    )))
}

/// Stage `r`.
///
/// # Source
/// Narayanan et al., arXiv:2104.04473, section 2.2; Megatron-LM `core_r0.8.0` and `core_v0.12.1`,
/// `megatron/core/pipeline_parallel/schedules.py`, `forward_backward_pipelining_with_interleaving`.
pub(super) fn stage(r: usize, s: &Shape) -> Vec<Action> {
    // (micro-batch, chunk) in the order of forward passes; backward passes take the chunks from the last.
    let mut passes = Vec::with_capacity(s.micro_batches * s.chunks);
    for first in (0..s.micro_batches).step_by(s.group) {
        let group = first..(first + s.group).min(s.micro_batches);
        passes.extend((0..s.chunks).flat_map(|chunk| group.clone().map(move |micro| (micro, chunk))));
    }
    let all = passes.len();
    let warm = if s.forwards_first && s.micro_batches == s.pp {
        all
    } else {
        ((s.pp - r - 1) * 2 + (s.chunks - 1) * s.group).min(all)
    };
    let forward = |k: usize| Action::Forward { micro: passes[k].0, chunk: passes[k].1 };
    let backward = |k: usize| Action::Backward { micro: passes[k].0, chunk: s.chunks - 1 - passes[k].1 };
    let mut actions: Vec<Action> = (0..warm).map(forward).collect();
    for k in warm..all {
        actions.extend([forward(k), backward(k - warm)]);
    }
    actions.extend((all - warm..all).map(backward));
    actions
}
