//! Deadlock detection: ranks that wait for each other in a cycle.
//!
//! A wait that lasts is recorded with the ranks it needs. A rank can proceed while its own thread is not waiting, or while
//! one of its waits needs only ranks that can proceed. All remaining ranks would wait forever, because a rank omitted an
//! operation that the others wait for, or runs it in another order.

use super::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// The condition for a wait to end.
pub(super) enum Needs {
    /// These ranks, by their numbers in the run, must act; if empty, it ends by itself.
    Ranks(Box<dyn Fn() -> Vec<usize> + Send>),
    /// Another thread of the same rank.
    OwnThreads,
}

/// A wait.
pub(super) struct Wait {
    /// The waiting rank, by its number in the run.
    pub(super) rank: usize,
    /// Whether the rank's own thread waits, so that it does nothing else.
    pub(super) own: bool,
    /// What is waited for.
    pub(super) at: String,
    pub(super) needs: Needs,
}

/// The waits of all ranks that have lasted a while.
#[derive(Default)]
pub(super) struct Waits(Mutex<(u64, BTreeMap<u64, Wait>)>);

/// A recorded wait.
pub(super) struct RecordedWait<'a> {
    waits: &'a Waits,
    number: u64,
}

impl Drop for RecordedWait<'_> {
    fn drop(&mut self) {
        lock(&self.waits.0).1.remove(&self.number);
    }
}

impl Waits {
    /// Records a wait until the result is dropped.
    pub(super) fn record(&self, wait: Wait) -> RecordedWait<'_> {
        let mut list = lock(&self.0);
        list.0 += 1;
        let number = list.0;
        list.1.insert(number, wait);
        RecordedWait { waits: self, number }
    }

    /// The number of deadlocked ranks, if any, and where they wait. Ranks that have `ended` are reported elsewhere.
    ///
    /// A rank with a recorded wait cannot act before the record is removed, which needs the list's lock, so the list does not
    /// change during the check.
    pub(super) fn deadlock(&self, ended: impl Fn(usize) -> bool) -> Option<(usize, String)> {
        let list = lock(&self.0);
        let mut stuck: BTreeSet<usize> = list.1.values().filter(|w| w.own).map(|w| w.rank).collect();
        stuck.retain(|rank| !ended(*rank));
        let threads = |rank: usize| list.1.values().filter(|w| w.rank == rank && !w.own).count();
        loop {
            let goes_on = list.1.values().find(|wait| {
                stuck.contains(&wait.rank)
                    && match &wait.needs {
                        Needs::Ranks(needed) => needed().iter().all(|rank| !stuck.contains(rank)),
                        Needs::OwnThreads => threads(wait.rank) == 0,
                    }
            });
            match goes_on {
                Some(wait) => stuck.remove(&wait.rank),
                None if stuck.is_empty() => return None,
                None => break,
            };
        }
        let mut places: Vec<(usize, String)> = Vec::new();
        for wait in list.1.values().filter(|w| stuck.contains(&w.rank)) {
            if let Needs::Ranks(needed) = &wait.needs {
                let needed: Vec<String> = needed().iter().map(ToString::to_string).collect();
                let (who, more) = (needed.join(", "), if needed.len() == 1 { "" } else { "s" });
                places.push((
                    wait.rank,
                    format!("rank {} is at {}, and needs rank{more} {who}", wait.rank, wait.at),
                ));
            }
        }
        places.sort();
        let places: Vec<String> = places.into_iter().map(|place| place.1).collect();
        Some((stuck.len(), places.join("; ")))
    }
}
