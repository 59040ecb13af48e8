//! Actions of an iteration that repeat others, where nothing has a value.
//!
//! On a device without values a pass of one micro-batch takes and sends what the same pass of another one does, so of the
//! micro-batches that a stage treats alike one is worked at and the others are counted like it. Worked at are also those that
//! meet something first or last: weights that are gathered before the first pass, gradients that are summed behind the last one.

use ms_core::{ArenaUse, Device, Host, HostUse};
use ms_dist::ParallelCtx;
use ms_dist::schedule::Action;
use std::collections::{BTreeMap, BTreeSet};

/// What an action took and sent.
#[derive(Clone, Debug, Default)]
struct Cost {
    arena: ArenaUse,
    host: HostUse,
    sent: BTreeMap<&'static str, u64>,
}

/// Which micro-batches are counted like which others, and what those took.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// Of each micro-batch that is not worked at the one that stands for it.
    like: BTreeMap<usize, usize>,
    costs: BTreeMap<Action, Cost>,
    /// Bytes that the counted actions sent, by group.
    pub(crate) sent: BTreeMap<&'static str, u64>,
}

/// The same action of another micro-batch.
fn of_micro(action: Action, micro: usize) -> Action {
    match action {
        Action::Forward { chunk, .. } => Action::Forward { micro, chunk },
        Action::Backward { chunk, .. } => Action::Backward { micro, chunk },
        Action::BackwardInput { chunk, .. } => Action::BackwardInput { micro, chunk },
        Action::BackwardWeight { chunk, .. } => Action::BackwardWeight { micro, chunk },
    }
}

impl Repeats {
    /// The repetitions among a stage's `actions`, of which `dropped` keep only what came in.
    pub(crate) fn of(actions: &[Action], dropped: &BTreeSet<(usize, usize)>) -> Self {
        // What is done with a micro-batch, and when.
        let mut done: BTreeMap<usize, Vec<(Action, bool, usize)>> = BTreeMap::new();
        let (mut first, mut last) = (BTreeMap::new(), BTreeMap::new());
        for (at, &action) in actions.iter().enumerate() {
            let (micro, _) = action.place();
            let kind = of_micro(action, 0);
            done.entry(micro).or_default().push((kind, dropped.contains(&action.place()), at));
            first.entry(kind).or_insert(micro);
            last.insert(kind, micro);
        }
        let met: BTreeSet<usize> = first.into_values().chain(last.into_values()).collect();
        let mut models: BTreeMap<Vec<(Action, bool)>, usize> = BTreeMap::new();
        let mut like = BTreeMap::new();
        for (&micro, work) in done.iter().filter(|(micro, _)| !met.contains(micro)) {
            let class = work.iter().map(|&(kind, dropped, _)| (kind, dropped)).collect();
            let model = *models.entry(class).or_insert(micro);
            // What it took must be known by then.
            let later = || work.iter().zip(&done[&model]).all(|(this, that)| this.2 > that.2);
            if model != micro && later() {
                like.insert(micro, model);
            }
        }
        Self { like, ..Self::default() }
    }

    /// How many of `micro_batches` are worked at.
    pub(crate) fn worked(&self, micro_batches: usize) -> usize {
        micro_batches - self.like.len()
    }

    /// Counts `action` if another one stands for it.
    pub(crate) fn counted(&mut self, action: Action, device: &Device, host: Option<&Host>) -> bool {
        let Some(&model) = self.like.get(&action.place().0) else { return false };
        let cost = &self.costs[&of_micro(action, model)];
        device.arena().count_again(&cost.arena);
        host.inspect(|host| host.count_again(&cost.host));
        for (group, bytes) in &cost.sent {
            *self.sent.entry(group).or_default() += bytes;
        }
        true
    }

    /// Does the `work` of `action`, and remembers what it took if it stands for others.
    pub(crate) fn measured<T>(
        &mut self,
        action: Action,
        (device, ctx, host): (&Device, &ParallelCtx, Option<&Host>),
        work: impl FnOnce() -> T,
    ) -> T {
        if !self.like.values().any(|&model| model == action.place().0) {
            return work();
        }
        let before = ctx.sent_bytes();
        let of_arena = || device.arena().measured(work);
        let ((done, arena), host) = match host {
            Some(host) => host.measured(of_arena),
            None => (of_arena(), HostUse::default()),
        };
        let sent = ctx.sent_bytes().into_iter().zip(before);
        let sent = sent.map(|((group, after), (_, before))| (group, after - before)).collect();
        self.costs.insert(action, Cost { arena, host, sent });
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_dist::schedule::{Kind, Schedule};

    fn repeats(kind: Kind, chain: &[(usize, usize)], stage: usize, micro_batches: usize) -> Repeats {
        let schedule = Schedule::new(kind, chain, micro_batches).unwrap();
        Repeats::of(&schedule.stages[stage], &BTreeSet::new())
    }

    #[test]
    fn of_many_micro_batches_a_few_are_worked_at() {
        let chain: Vec<(usize, usize)> = (0..8).map(|stage| (stage, 0)).collect();
        let v: Vec<(usize, usize)> = (0..8).map(|s| (s, 0)).chain((0..8).rev().map(|s| (s, 1))).collect();
        for stage in 0..8 {
            // The first, one in the middle, the last.
            assert_eq!(repeats(Kind::OneFOneB, &chain, stage, 100).worked(100), 3);
            // Whose weight gradients are put off is another kind of micro-batch.
            let few = repeats(Kind::DualPipeV, &v, stage, 100).worked(100);
            assert!((3..=10).contains(&few), "{few}");
            assert_eq!(repeats(Kind::DualPipeV, &v, stage, 1000).worked(1000), few);
        }
    }

    #[test]
    fn what_stands_for_others_comes_first() {
        let chain: Vec<(usize, usize)> = (0..4).map(|stage| (stage, 0)).collect();
        let mut repeated = 0;
        for seed in 0..20 {
            let schedule = Schedule::new(Kind::Drawn { seed }, &chain, 12).unwrap();
            let actions = &schedule.stages[1];
            let repeats = Repeats::of(actions, &BTreeSet::new());
            let at = |action: Action| actions.iter().position(|a| *a == action).unwrap();
            for &action in actions {
                if let Some(&model) = repeats.like.get(&action.place().0) {
                    assert!(at(of_micro(action, model)) < at(action));
                    assert!(!repeats.like.contains_key(&model));
                    repeated += 1;
                }
            }
        }
        assert!(repeated > 0);
    }
}
