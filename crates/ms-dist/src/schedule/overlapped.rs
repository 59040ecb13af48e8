//! Which forward and backward passes of a stage are overlapped.

use super::{Action, Order, Schedule};
use std::collections::BTreeSet;

impl Schedule {
    /// The same order, in which adjacent forward and backward passes of two micro-batches are overlapped: each runs while the
    /// other's tokens are in transit. A plain pipeline of several stages is left unchanged: a stage sends its output to the
    /// next just before that needs it, and overlapping would delay it.
    ///
    /// # Source
    /// MindSpeed (2026), `mindspeed/core/transformer/moe/moe_feature/fb_overlap`, `vpp_schedules.py` (one forward pass more
    /// comes before the first backward pass) and `no_pipelining_schedules.py`; DeepSeek, "`DualPipe`" (2025).
    #[must_use]
    pub fn with_overlapped_passes(mut self, order: Order) -> Self {
        let backward_first = match order {
            Order::Interleaved { .. } => true,
            Order::OneFOneB if self.stages.len() == 1 => true,
            Order::DualPipeV => false,
            Order::Random { seed } => seed.is_multiple_of(2),
            Order::OneFOneB | Order::ZeroBubble { .. } => return self,
        };
        self.overlapped = self.stages.iter().map(|actions| pairs(actions, backward_first)).collect();
        if matches!(order, Order::Random { .. }) && self.simulate().is_err() {
            // Not every order can be executed in this way.
            self.overlapped.iter_mut().for_each(BTreeSet::clear);
        }
        self
    }
}

/// The first actions of the pairs, by their numbers.
fn pairs(actions: &[Action], backward_first: bool) -> BTreeSet<usize> {
    let (mut pairs, mut at) = (BTreeSet::new(), 0);
    while let [first, second, ..] = &actions[at..] {
        let fits = match (first, second) {
            (Action::Backward { .. }, Action::Forward { .. }) => backward_first,
            (Action::Forward { .. }, Action::Backward { .. }) => !backward_first,
            _ => false,
        };
        if fits && first.pass().micro != second.pass().micro {
            pairs.insert(at);
            at += 1;
        }
        at += 1;
    }
    pairs
}
