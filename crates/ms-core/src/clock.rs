//! Progress of a delayed device, and host reads that came too early.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// The work of a delayed device, numbered. What it has written is tagged with the number of the work that wrote it, and is
/// visible to the host once that work has been waited for.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Work that was given to the device.
    given: AtomicU64,
    /// Work that was waited for.
    done: AtomicU64,
    /// Waits that had something to wait for.
    waits: AtomicU64,
    /// The number of the wait that is skipped; 0: none.
    deaf: u64,
    /// Threads that compute for the device now.
    at_work: Mutex<Vec<ThreadId>>,
    /// Source locations where values were read before they were available, and how often.
    early: Mutex<BTreeMap<String, usize>>,
}

impl Clock {
    /// A clock that skips the `deaf`-th wait, counted from 1.
    pub(crate) fn new(deaf: Option<u64>) -> Self {
        Self { deaf: deaf.unwrap_or(0), ..Self::default() }
    }

    /// Starts counting work of this thread for the device; it ends when the returned value is dropped.
    pub(crate) fn begin(&self) -> WorkGuard<'_> {
        self.next();
        lock(&self.at_work).push(thread::current().id());
        WorkGuard(self)
    }

    /// The number of one more piece of work.
    pub(crate) fn next(&self) -> u64 {
        self.given.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Waits for all work that was submitted, at the host's request.
    pub(crate) fn wait(&self) {
        if self.is_pending(self.given.load(Ordering::Relaxed))
            && self.waits.fetch_add(1, Ordering::Relaxed) + 1 != self.deaf
        {
            self.answer();
        }
    }

    /// All work that was given has been waited for: the device has answered with a number.
    pub(crate) fn answer(&self) {
        self.done.fetch_max(self.given.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether the results of the work with this number are not yet visible to the host.
    pub(crate) fn is_pending(&self, written: u64) -> bool {
        written > self.done.load(Ordering::Relaxed)
    }

    /// The number of the work that this thread does for the device; `None`: this is the host.
    pub(crate) fn work(&self) -> Option<u64> {
        let here = thread::current().id();
        lock(&self.at_work).contains(&here).then(|| self.given.load(Ordering::Relaxed))
    }

    /// Whether the host reads the results of the work with this number too early; if so, the location is recorded.
    pub(crate) fn is_early(&self, written: u64, place: &Location<'_>) -> bool {
        let early = self.is_pending(written) && self.work().is_none();
        if early {
            *lock(&self.early).entry(format!("{}:{}", place.file(), place.line())).or_default() += 1;
        }
        early
    }

    /// Locations of early reads, and how often each occurred.
    pub(crate) fn early(&self) -> Vec<(String, usize)> {
        lock(&self.early).iter().map(|(place, times)| (place.clone(), *times)).collect()
    }

    /// Waits that had something to wait for.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

/// A thread that computes for the device.
pub(crate) struct WorkGuard<'a>(&'a Clock);

impl Drop for WorkGuard<'_> {
    fn drop(&mut self) {
        let here = thread::current().id();
        let mut all = lock(&self.0.at_work);
        if let Some(at) = all.iter().rposition(|id| *id == here) {
            all.swap_remove(at);
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both are consistent between statements, so a panic elsewhere does not corrupt them.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
