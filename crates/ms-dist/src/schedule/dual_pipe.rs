//! DualPipeV: chunk 0 of each stage on the way down, chunk 1 on the way back, so that forward passes of one overlap with
//! backward passes of the other, and weight gradients fill the ends.

use super::{Action, PassId};
use std::collections::VecDeque;

/// Collects the actions of one stage; each kind of work takes micro-batches in order.
#[derive(Default)]
struct Lane {
    actions: Vec<Action>,
    forwards: [usize; 2],
    backwards: [usize; 2],
    put_off: VecDeque<PassId>,
}

impl Lane {
    fn forward(&mut self, chunk: usize) {
        self.actions.push(Action::Forward { micro: self.forwards[chunk], chunk });
        self.forwards[chunk] += 1;
    }

    fn backward(&mut self, chunk: usize) {
        self.actions.push(Action::Backward { micro: self.backwards[chunk], chunk });
        self.backwards[chunk] += 1;
    }

    fn backward_input(&mut self, chunk: usize) {
        let micro = self.backwards[chunk];
        self.actions.push(Action::BackwardInput { micro, chunk });
        self.put_off.push_back(PassId { micro, chunk });
        self.backwards[chunk] += 1;
    }

    fn weight(&mut self) {
        if let Some(PassId { micro, chunk }) = self.put_off.pop_front() {
            self.actions.push(Action::BackwardWeight { micro, chunk });
        }
    }
}

/// Stage `r` of `pp` with `m >= 2 pp - 1` micro-batches, the fewest that upstream takes.
///
/// # Source
/// DeepSeek, "`DualPipe`" (2025), the cut-in-half form; MindSpeed, `mindspeed/core/pipeline_parallel/dualpipev`.
pub(super) fn stage(r: usize, pp: usize, m: usize) -> Vec<Action> {
    let after = pp - r - 1;
    let mut lane = Lane::default();
    for _ in 0..2 * after {
        lane.forward(0);
    }
    for _ in 0..=r {
        lane.forward(0);
        lane.forward(1);
    }
    for _ in 0..after {
        lane.backward_input(1);
        lane.weight();
        lane.forward(1);
    }
    for _ in 0..m + r + 1 - 2 * pp {
        lane.forward(0);
        lane.backward(1);
        lane.forward(1);
        lane.backward(0);
    }
    for _ in 0..after {
        lane.backward(1);
        lane.forward(1);
        lane.backward(0);
    }
    // In the second half of what is left, weight gradients are deferred.
    let (left, mut put_off) = (r + 1, false);
    for i in 0..left {
        for chunk in [1, 0] {
            put_off |= i == left / 2 && usize::from(r.is_multiple_of(2)) != chunk;
            if put_off { lane.backward_input(chunk) } else { lane.backward(chunk) }
        }
    }
    for _ in 0..after {
        lane.weight();
        lane.backward_input(0);
    }
    while !lane.put_off.is_empty() {
        lane.weight();
    }
    lane.actions
}
