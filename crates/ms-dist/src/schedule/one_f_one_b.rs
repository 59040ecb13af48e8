//! One forward, one backward: a stage keeps at most as many micro-batches as there are stages behind it, and one.

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

/// The same order of forwards and input gradients; the weight gradients of micro-batch `i` follow the input gradients of
/// micro-batch `i + r`, so that the first stage, which waits least, puts nothing off. What is
/// put off needs what its products took, so every stage keeps something of as many micro-batches as the first one.
///
/// # Source
/// Qi et al., arXiv:2401.10241, section 2.1, schedule ZB-H1.
pub(super) fn zero_bubble_stage(r: usize, pp: usize, m: usize) -> Vec<Action> {
    let mut actions = Vec::with_capacity(3 * m);
    let mut done = 0;
    for action in stage(r, pp, m) {
        match action {
            Action::Backward { micro, chunk } => {
                actions.push(Action::BackwardInput { micro, chunk });
                if micro >= r {
                    actions.push(Action::BackwardWeight { micro: done, chunk });
                    done += 1;
                }
            }
            other => actions.push(other),
        }
    }
    actions.extend((done..m).map(|micro| Action::BackwardWeight { micro, chunk: 0 }));
    actions
}
