//! A rank's place in a group, and how it waits for the others there.

use super::deadlock::{Needs, RecordedWait, Wait};
use super::{Hub, HubState, Shared, lock};
use crate::{Error, Result};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// How long a wait sleeps before it checks whether a rank of another group has failed, or ranks are deadlocked.
pub(super) const POLL: Duration = Duration::from_millis(50);

/// How often a wait yields before it sleeps: this avoids most wake-ups if there are more ranks than processors.
const YIELDS: usize = 64;

/// How long deadlock detection waits for further ranks to join the deadlock, so that they are named too.
const PATIENCE: Duration = Duration::from_millis(400);

/// A rank's place in a group.
#[derive(Clone)]
pub(super) struct GroupMember {
    pub(super) rank: usize,
    /// Ranks of the run.
    pub(super) world: usize,
    /// The ranks of the group, by their numbers in the run.
    pub(super) group: Arc<[usize]>,
    /// The rank's own thread.
    pub(super) thread: ThreadId,
    pub(super) hub: Arc<Hub>,
    pub(super) shared: Arc<Shared>,
}

impl GroupMember {
    /// Waits until `ready` or a failure: yields for a while, then sleeps. `at` says what is waited for and `needs` which
    /// ranks of the group must act first; both are called only for a wait that lasts.
    pub(super) fn wait_until(
        &self,
        ready: impl Fn(&HubState) -> bool,
        at: impl FnOnce() -> String,
        needs: impl Fn(&HubState) -> Vec<usize> + Send + 'static,
    ) -> Result<MutexGuard<'_, HubState>> {
        let sleep = || {
            let state = lock(&self.hub.state);
            let slept = self.hub.changed.wait_timeout_while(state, POLL, |state| !ready(state));
            slept.unwrap_or_else(PoisonError::into_inner).0
        };
        for _ in 0..YIELDS {
            let state = lock(&self.hub.state);
            if ready(&state) {
                return Ok(state);
            }
            drop(state);
            thread::yield_now();
        }
        let state = sleep();
        if ready(&state) {
            return Ok(state);
        }
        drop(state);
        let begun = Instant::now();
        let at = at();
        let (hub, group) = (self.hub.clone(), self.group.clone());
        let needed = move || needs(&lock(&hub.state)).into_iter().map(|rank| group[rank]).collect();
        let recorded = self.record(at.clone(), Needs::Ranks(Box::new(needed)));
        // A result is valid even if the rank that produced it has ended since the last check.
        let check = || match self.shared.check_group(&self.group) {
            Err(_) if ready(&lock(&self.hub.state)) => Ok(()),
            checked => checked,
        };
        loop {
            check()?;
            let over =
                |limit: &Duration| self.waits_since(begun).is_some_and(|since| since.elapsed() >= *limit);
            if let Some(limit) = self.shared.limit.filter(over) {
                let (rank, seconds) = (self.group[self.rank], limit.as_secs());
                let error = Error::TimedOut { rank, seconds, at };
                self.shared.fail(rank, error.to_string());
                return Err(error);
            }
            let living = |rank: &usize| !lock(&self.shared.ended).contains(rank);
            let deadlock = || self.shared.waits.deadlock(|rank| !living(&rank));
            // Ranks that wait for deadlocked ranks will record their waits soon, and are reported too.
            let patience = Instant::now();
            while deadlock().is_some_and(|(stuck, _)| stuck < (0..self.world).filter(living).count())
                && patience.elapsed() < PATIENCE
            {
                thread::sleep(POLL / 5);
                check()?;
            }
            if let Some((_, waits)) = deadlock() {
                let deadlock = Error::Deadlock { waits };
                self.shared.fail(self.group[self.rank], deadlock.to_string());
                return Err(deadlock);
            }
            // Notes and hubs are never locked in the opposite order.
            let done = ready(&sleep());
            if done {
                drop(recorded);
                // Only this wait removes what makes it ready.
                return Ok(lock(&self.hub.state));
            }
        }
    }

    /// Since when the rank waits for what this thread has waited for since `begun`; `None`: it has something else to do.
    fn waits_since(&self, begun: Instant) -> Option<Instant> {
        if thread::current().id() == self.thread {
            return Some(begun);
        }
        lock(&self.shared.joining).get(&self.group[self.rank]).map(|since| begun.max(*since))
    }

    /// Records a wait as long as the result lives.
    pub(super) fn record(&self, at: String, needs: Needs) -> RecordedWait<'_> {
        let own = thread::current().id() == self.thread;
        self.shared.waits.record(Wait { rank: self.group[self.rank], own, at, needs })
    }
}
