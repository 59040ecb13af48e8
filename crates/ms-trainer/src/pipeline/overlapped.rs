//! Overlapped forward and backward passes of two micro-batches.
//!
//! The backward pass runs until it has sent its tokens to or from experts and would wait for those of others; then the
//! forward pass runs until it has done the same; then the backward pass again. So `attention(F)` overlaps with the wait of
//! `combine(B)`, `experts(B)` with `dispatch(F)`, `experts(F)` with `dispatch(B)`, and `attention(B)` with the wait of
//! `combine(F)`. Which of the two runs is decided by what they have recorded, never by time, so communicating ranks take the
//! same turns; and since each does what it would do alone, in its own order, no bit changes.

use super::{ActiveBackward, Iteration, PendingWork, span};
use crate::Result;
use ms_core::{BackwardPass, GradSink, WeightGradStore};
use ms_data::MicroBatch;
use ms_dist::schedule::{Action, PassId};
use ms_nn::OverlappedPass;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A backward pass that works where a forward pass waits, and what it defers.
struct OverlappedBackward<'a>(
    RefCell<(&'a mut BackwardPass, &'a mut dyn GradSink, Option<&'a mut WeightGradStore>)>,
);

impl OverlappedPass for OverlappedBackward<'_> {
    fn resume(&self) -> ms_core::Result<()> {
        let (backward, sink, deferred) = &mut *self.0.borrow_mut();
        backward.resume(*sink, deferred.as_deref_mut())
    }
}

impl Iteration<'_> {
    /// Executes two overlapped actions, a forward and a backward pass of two micro-batches.
    pub(super) fn act_overlapped(
        &mut self,
        actions: [Action; 2],
        micro_batches: &[MicroBatch],
        dropped: &BTreeSet<PassId>,
        pending: &mut PendingWork,
        sink: &mut dyn GradSink,
    ) -> Result<()> {
        let (mut to, mut fro) = (actions[0].pass(), actions[1].pass());
        if matches!(actions[0], Action::Backward { .. }) {
            (to, fro) = (fro, to);
        }
        let of = |pass: PassId| (&micro_batches[pass.micro], micro_batches.len());
        let drops = dropped.contains(&to);
        let live = pending.live() + usize::from(!drops) + usize::from(dropped.contains(&fro));
        let spans = actions.map(|action| span(action, live));
        let _under_way = spans.each_ref().map(|span| span.enter());
        let kept = pending.kept.remove(&fro).expect("the schedule was checked");
        let ActiveBackward { mut backward, input, output } = self.begin_backward(kept, of(fro), fro)?;
        let mut deferred = self.this.defers_embedding_wgrad(self.model, fro).map(WeightGradStore::of);
        backward.resume(sink, deferred.as_mut())?;
        let meanwhile = OverlappedBackward(RefCell::new((&mut backward, &mut *sink, deferred.as_mut())));
        let pass = self.forward(of(to), to, drops, Some(&meanwhile))?;
        pending.kept.insert(to, pass);
        let grads = backward.finish(sink, deferred.as_mut())?;
        pending.deferred.extend(deferred.map(|deferred| (fro, deferred)));
        drop(output);
        self.send_input_gradient(input.as_ref(), grads, fro)
    }
}
