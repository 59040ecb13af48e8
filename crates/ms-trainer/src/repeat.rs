//! Repeated actions of a rehearsed iteration, which are counted instead of executed.
//!
//! On the meta device, a pass of one micro-batch takes and sends the same as that of another. Of the micro-batches that a
//! stage treats alike, one is executed and the others are counted like it. Also executed are those that meet something first
//! or last: weights gathered before the first pass, gradients reduced after the last one.

use ms_core::{ArenaUse, Device, Host, HostUse, RankGroup};
use ms_dist::ParallelCtx;
use ms_dist::schedule::{Action, PassId};
use std::collections::{BTreeMap, BTreeSet};

/// What an action took and sent.
#[derive(Clone, Debug, Default)]
struct Cost {
    arena: ArenaUse,
    host: HostUse,
    sent: BTreeMap<RankGroup, u64>,
}

impl Cost {
    /// The memory use of the rest of some work, given that of a part.
    fn without(&self, part: &Self) -> Self {
        let of_part = |group| part.sent.get(group).copied().unwrap_or(0);
        let sent = self.sent.iter().map(|(group, bytes)| (*group, bytes.saturating_sub(of_part(group))));
        let (arena, host) = (self.arena.without(part.arena), self.host.without(part.host));
        Self { arena, host, sent: sent.collect() }
    }
}

/// Where actions are done: device, ranks and host.
pub(crate) type On<'a> = (&'a Device, &'a ParallelCtx, Option<&'a Host>);

/// Which micro-batches are counted like which others, and what those took.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// For each micro-batch that is not executed, the one that stands for it.
    like: BTreeMap<usize, usize>,
    costs: BTreeMap<Action, Cost>,
    /// The use of overlapped pairs of actions, by kind.
    pairs: BTreeMap<[Action; 2], Cost>,
    /// The use of the last single action of each kind, if others are overlapped.
    alone: BTreeMap<Action, Cost>,
    with_pairs: bool,
    /// Bytes that the counted actions sent, by group.
    pub(crate) sent: BTreeMap<RankGroup, u64>,
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
    /// The repetitions among a stage's `actions`; those in `dropped` save only their input, and those at `beside` overlap
    /// with the next one.
    pub(crate) fn of(actions: &[Action], overlapped: &BTreeSet<usize>, dropped: &BTreeSet<PassId>) -> Self {
        // What is done with a micro-batch, and when.
        let mut done: BTreeMap<usize, Vec<(Action, bool, usize)>> = BTreeMap::new();
        let (mut first, mut last) = (BTreeMap::new(), BTreeMap::new());
        for (at, &action) in actions.iter().enumerate() {
            let micro = action.pass().micro;
            let kind = of_micro(action, 0);
            let drops = dropped.contains(&action.pass());
            done.entry(micro).or_default().push((kind, drops, at));
            first.entry(kind).or_insert(micro);
            last.insert(kind, micro);
        }
        let mut met: BTreeSet<usize> = first.into_values().chain(last.into_values()).collect();
        if !overlapped.is_empty() {
            // The first of its kind, overlapped or alone, shows what it takes; the second micro-batch shows what forward
            // passes take that do not gather weights.
            let (mut shown, mut at) = (BTreeSet::new(), 0);
            met.insert(1);
            while at < actions.len() {
                let together = &actions[at..=at + usize::from(overlapped.contains(&at))];
                if shown.insert(together.iter().map(|&a| of_micro(a, 0)).collect::<Vec<_>>()) {
                    met.extend(together.iter().map(|a| a.pass().micro));
                }
                at += together.len();
            }
            let like = done.keys().filter(|micro| !met.contains(micro)).map(|&micro| (micro, micro));
            return Self { like: like.collect(), with_pairs: true, ..Self::default() };
        }
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

    /// How many of `micro_batches` are worked on.
    pub(crate) fn worked(&self, micro_batches: usize) -> usize {
        micro_batches - self.like.len()
    }

    /// Counts `action` if another one stands for it.
    pub(crate) fn counted(&mut self, action: Action, device: &Device, host: Option<&Host>) -> bool {
        let Some(&model) = self.like.get(&action.pass().micro) else { return false };
        let cost = if self.with_pairs {
            self.alone[&of_micro(action, 0)].clone()
        } else {
            self.costs[&of_micro(action, model)].clone()
        };
        self.count(&cost, device, host);
        true
    }

    fn count(&mut self, cost: &Cost, device: &Device, host: Option<&Host>) {
        device.arena().count_again(&cost.arena);
        host.inspect(|host| host.count_again(&cost.host));
        for (&group, bytes) in &cost.sent {
            *self.sent.entry(group).or_default() += bytes;
        }
    }

    /// Executes two overlapped actions, unless other actions stand for them: `work` does both or, given one, only that one,
    /// which takes less at a time. What the other takes is then the difference.
    pub(crate) fn paired<E>(
        &mut self,
        pair: [Action; 2],
        on: On<'_>,
        work: impl FnOnce(Option<Action>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.with_pairs {
            return work(None);
        }
        let kinds = pair.map(|action| of_micro(action, 0));
        let counted = pair.map(|action| self.like.contains_key(&action.pass().micro));
        if counted == [false; 2] {
            let (done, cost) = taken(on, || work(None));
            self.pairs.entry(kinds).or_insert(cost);
            return done;
        }
        let both = self.pairs[&kinds].clone();
        if counted == [true; 2] {
            self.count(&both, on.0, on.2);
            return Ok(());
        }
        let (worked, kind) = if counted[0] { (pair[1], kinds[1]) } else { (pair[0], kinds[0]) };
        // What a backward pass gives back a forward pass takes, so the backward pass comes first.
        if matches!(worked, Action::Forward { .. }) {
            // A forward pass that was worked on alone may be the first, which gathers weights besides.
            let backward = if counted[0] { kinds[0] } else { kinds[1] };
            let rest = match self.alone.get(&backward) {
                Some(known) => known.clone(),
                None => both.without(self.alone.get(&kind).unwrap_or(&both)),
            };
            self.count(&rest, on.0, on.2);
            return work(Some(worked));
        }
        let (done, cost) = taken(on, || work(Some(worked)));
        self.count(&both.without(&cost), on.0, on.2);
        self.alone.insert(kind, cost);
        done
    }

    /// Does the `work` of `action`, and remembers what it took if it stands for others.
    pub(crate) fn measured<T>(&mut self, action: Action, on: On<'_>, work: impl FnOnce() -> T) -> T {
        let stands = self.like.values().any(|&model| model == action.pass().micro);
        if !stands && !self.with_pairs {
            return work();
        }
        let (done, cost) = taken(on, work);
        self.alone.insert(of_micro(action, 0), cost.clone());
        self.costs.insert(action, cost);
        done
    }
}

/// Does some `work`, and finds what it takes and sends.
fn taken<T>((device, ctx, host): On<'_>, work: impl FnOnce() -> T) -> (T, Cost) {
    let before = ctx.sent_bytes();
    let of_arena = || device.arena().measured(work);
    let ((done, arena), host) = match host {
        Some(host) => host.measured(of_arena),
        None => (of_arena(), HostUse::default()),
    };
    let sent = ctx.sent_bytes().into_iter().zip(before);
    let sent = sent.map(|((group, after), (_, before))| (group, after - before)).collect();
    (done, Cost { arena, host, sent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_core::Chain;
    use ms_dist::schedule::{Order, Schedule};

    fn repeats(order: Order, chain: &Chain, stage: usize, micro_batches: usize) -> Repeats {
        let schedule = Schedule::new(order, chain, micro_batches).unwrap();
        Repeats::of(&schedule.stages[stage], &schedule.overlapped[stage], &BTreeSet::new())
    }

    #[test]
    fn of_many_micro_batches_a_few_are_worked_at() {
        let (chain, v) = (Chain::new(8, 1, false), Chain::new(8, 2, true));
        for stage in 0..8 {
            // The first, one in the middle, the last.
            assert_eq!(repeats(Order::OneFOneB, &chain, stage, 100).worked(100), 3);
            // A micro-batch whose weight gradients are deferred is another kind.
            let few = repeats(Order::DualPipeV, &v, stage, 100).worked(100);
            assert!((3..=10).contains(&few), "{few}");
            assert_eq!(repeats(Order::DualPipeV, &v, stage, 1000).worked(1000), few);
        }
    }

    #[test]
    fn of_many_pairs_a_few_are_worked_at() {
        let (one, v, chunks) = (Chain::new(1, 1, false), Chain::new(8, 2, true), Chain::new(8, 2, false));
        let late = Order::Interleaved { group: 8, forwards_first: false };
        for (order, chain, most) in [(Order::OneFOneB, one, 6), (Order::DualPipeV, v, 20), (late, chunks, 20)]
        {
            for stage in 0..chain.stages() {
                let of = |many| {
                    let schedule = Schedule::new(order, &chain, many).unwrap().with_overlapped_passes(order);
                    let (actions, overlapped) = (&schedule.stages[stage], &schedule.overlapped[stage]);
                    let repeats = Repeats::of(actions, overlapped, &BTreeSet::new());
                    // The first such pair of overlapped actions is executed.
                    let mut shown = BTreeSet::new();
                    for &at in overlapped {
                        let pair = [actions[at], actions[at + 1]];
                        if shown.insert(pair.map(|action| of_micro(action, 0))) {
                            assert!(
                                pair.iter().all(|a| !repeats.like.contains_key(&a.pass().micro)),
                                "{pair:?}"
                            );
                        }
                    }
                    repeats.worked(many)
                };
                let few = of(104);
                println!("{order:?}, stage {stage}: {few} of 104");
                assert!(few <= most && of(1000) <= few + 2, "{order:?}, stage {stage}: {few}, {}", of(1000));
            }
        }
    }

    #[test]
    fn what_stands_for_others_comes_first() {
        let chain = Chain::new(4, 1, false);
        let mut repeated = 0;
        for seed in 0..20 {
            let schedule = Schedule::new(Order::Random { seed }, &chain, 12).unwrap();
            let actions = &schedule.stages[1];
            let repeats = Repeats::of(actions, &BTreeSet::new(), &BTreeSet::new());
            let at = |action: Action| actions.iter().position(|a| *a == action).unwrap();
            for &action in actions {
                if let Some(&model) = repeats.like.get(&action.pass().micro) {
                    assert!(at(of_micro(action, model)) < at(action));
                    assert!(!repeats.like.contains_key(&model));
                    repeated += 1;
                }
            }
        }
        assert!(repeated > 0);
    }
}
