//! Zero bubble: forward passes and input gradients in the order of another schedule, with waiting time filled by weight
//! gradients of earlier micro-batches.

use super::Action;
use std::collections::VecDeque;

/// Stage `r`, from its unsplit order `whole`: the weight gradients of a pass follow the input gradients of the `r`-th pass
/// after it, so the first stage, which waits least, defers nothing. Deferred gradients need the inputs of their products, so
/// this keeps every stage at no more live passes than the first one. With interleaved chunks, too, a third of the bubble
/// remains.
///
/// # Source
/// Qi et al., arXiv:2401.10241, section 2.1, schedule ZB-H1, for one chunk a stage; the same rule for several is ours.
pub(super) fn stage(r: usize, whole: Vec<Action>) -> Vec<Action> {
    let mut actions = Vec::with_capacity(2 * whole.len());
    let mut put_off = VecDeque::with_capacity(r + 1);
    for action in whole {
        let Action::Backward { micro, chunk } = action else {
            actions.push(action);
            continue;
        };
        actions.push(Action::BackwardInput { micro, chunk });
        put_off.push_back(Action::BackwardWeight { micro, chunk });
        if put_off.len() > r {
            actions.extend(put_off.pop_front());
        }
    }
    actions.extend(put_off);
    actions
}
