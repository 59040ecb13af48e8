//! 1F1B (one forward, one backward): a stage holds at most as many micro-batches as there are stages after it, plus one.

use super::Action;

/// Stage `r` of `pp` with `m` micro-batches.
///
/// # Source
/// Narayanan et al., arXiv:2104.04473, section 2.2; Megatron-LM `core_r0.8.0`,
/// `megatron/core/pipeline_parallel/schedules.py`, `forward_backward_pipelining_without_interleaving`.
pub(super) fn stage(r: usize, pp: usize, m: usize) -> Vec<Action> {
    let warm = (pp - r - 1).min(m);
    let forward = |micro| Action::Forward { micro, chunk: 0 };
    let backward = |micro| Action::Backward { micro, chunk: 0 };
    let mut actions: Vec<Action> = (0..warm).map(forward).collect();
    for micro in warm..m {
        actions.extend([forward(micro), backward(micro - warm)]);
    }
    actions.extend((m - warm..m).map(backward));
    actions
}
