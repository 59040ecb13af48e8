//! The order of all accesses: a vector clock per stream, per event and for the host, or for each of its threads.
//!
//! Threads of a process synchronise by means that a library cannot see, so the host is one actor unless
//! `CANN_EMU_HOSTS=threads` says otherwise: what any thread has waited for, every thread knows. With that setting a thread knows
//! what it did and waited for itself, and what was submitted to a stream or event that it has waited for: for programs whose
//! threads share device memory by streams and events only. Clocks advance when work is submitted, so a finding does not depend
//! on when it runs.

use crate::knobs::knobs;
use crate::nn::tensor::View;
use crate::report::Site;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Times by actor; the host is actor 0, streams follow, host threads of their own stand behind [`THREADS`].
pub type Clock = HashMap<u64, u64>;

/// A range of device memory that a task touches.
#[derive(Clone, Debug)]
pub struct Access {
    /// First address.
    pub start: usize,
    /// Bytes up to the last one touched.
    pub len: usize,
    /// Whether it is written.
    pub write: bool,
    /// The elements, if there are gaps between them.
    pub view: Option<Arc<View>>,
}

#[derive(Clone, Debug)]
struct Record {
    access: Access,
    actor: u64,
    time: u64,
    what: Arc<str>,
}

#[derive(Default)]
struct State {
    clocks: HashMap<u64, Clock>,
    records: BTreeMap<usize, Vec<Record>>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
const HOST: u64 = 0;
/// Actors from here on are threads of the host.
const THREADS: u64 = 1 << 63;
static NEXT_THREAD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THREAD: u64 = THREADS + NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}

/// The actor that this thread is.
fn own() -> u64 {
    if knobs().hosts_apart { THREAD.with(|t| *t) } else { HOST }
}

/// Whether an actor is the host or one of its threads.
fn is_host(actor: u64) -> bool {
    actor == HOST || actor >= THREADS
}

fn name(actor: u64) -> String {
    match actor {
        HOST => "the host".to_owned(),
        a if a >= THREADS => format!("host thread {}", a - THREADS),
        a => format!("stream {a}"),
    }
}

const KEPT: usize = 20_000;

fn with<R>(f: impl FnOnce(&mut State) -> R) -> R {
    let mut guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    f(guard.get_or_insert_default())
}

fn join(into: &mut Clock, from: &Clock) {
    for (actor, time) in from {
        let mine = into.entry(*actor).or_insert(0);
        *mine = (*mine).max(*time);
    }
}

/// A task enters a stream: it comes after everything that the host knows and everything before it in the stream.
/// Gives messages for conflicting accesses without an order, and the stream's clock.
pub fn submit(stream: u64, accesses: &[Access], what: &str) -> Vec<String> {
    with(|state| {
        let host = state.clocks.get(&own()).cloned().unwrap_or_default();
        let clock = state.clocks.entry(stream).or_default();
        join(clock, &host);
        let time = clock.entry(stream).or_insert(0);
        *time += 1;
        let (time, clock) = (*time, clock.clone());
        state.access(stream, time, &clock, accesses, what)
    })
}

/// The host touches device memory itself, blocking.
pub fn host(accesses: &[Access], what: &str) -> Vec<String> {
    with(|state| {
        let me = own();
        let clock = state.clocks.entry(me).or_default();
        let time = clock.entry(me).or_insert(0);
        *time += 1;
        let (time, clock) = (*time, clock.clone());
        state.access(me, time, &clock, accesses, what)
    })
}

/// The clock of a stream as it stands: what an event records.
pub fn stamp(stream: u64) -> Clock {
    with(|state| {
        let host = state.clocks.get(&own()).cloned().unwrap_or_default();
        let clock = state.clocks.entry(stream).or_default();
        join(clock, &host);
        clock.clone()
    })
}

/// A stream waits for what a clock says.
pub fn wait(stream: u64, clock: &Clock) {
    with(|state| join(state.clocks.entry(stream).or_default(), clock));
}

/// The host has waited for what a clock says.
pub fn synchronised(clock: &Clock) {
    with(|state| join(state.clocks.entry(own()).or_default(), clock));
}

/// Forgets an allocation; a message if work that the host does not know to be done still uses it.
pub fn forget(start: usize, len: usize) -> Option<String> {
    with(|state| {
        let host = state.clocks.get(&own()).cloned().unwrap_or_default();
        let mut found = None;
        let records = state.records.remove(&start).unwrap_or_default();
        for r in &records {
            let known = host.get(&r.actor).copied().unwrap_or(0);
            if !is_host(r.actor) && r.time > known && r.access.start < start + len && found.is_none() {
                found = Some(format!("{} on {}", r.what, name(r.actor)));
            }
        }
        found
    })
}

impl State {
    fn access(
        &mut self,
        actor: u64,
        time: u64,
        clock: &Clock,
        accesses: &[Access],
        what: &str,
    ) -> Vec<String> {
        let mut found = Vec::new();
        let what: Arc<str> = Arc::from(Site::here(what).to_string());
        for access in accesses {
            if access.len == 0 {
                continue;
            }
            let Some(alloc) = crate::memory::find(access.start, 1) else { continue };
            let records = self.records.entry(alloc.start).or_default();
            let (from, to) = (access.start, access.start + access.len);
            records.retain(|r| {
                let (start, end) = (r.access.start, r.access.start + r.access.len);
                if end <= from || to <= start {
                    return true;
                }
                let ordered = r.actor == actor || r.time <= clock.get(&r.actor).copied().unwrap_or(0);
                if !ordered && (r.access.write || access.write) && touch(&r.access, access) {
                    let verb = |w: bool| if w { "writes" } else { "reads" };
                    found.push(format!(
                        "{what} on {} {} {} bytes at {:#x} while {} on {} {} {} bytes at {:#x}, and nothing orders the two",
                        name(actor),
                        verb(access.write),
                        access.len,
                        access.start,
                        r.what,
                        name(r.actor),
                        verb(r.access.write),
                        r.access.len,
                        r.access.start
                    ));
                    return false;
                }
                // A later, ordered write stands for everything that it covers; a read stands for earlier reads of its actor.
                let covered = access.view.is_none() && from <= start && end <= to;
                !(ordered && covered && (access.write || (!r.access.write && r.actor == actor)))
            });
            if records.len() >= KEPT {
                records.drain(..KEPT / 2);
            }
            records.push(Record { access: access.clone(), actor, time, what: Arc::clone(&what) });
        }
        found
    }
}

/// Whether two accesses have a byte in common.
fn touch(a: &Access, b: &Access) -> bool {
    if a.view.is_none() && b.view.is_none() {
        return true;
    }
    let bytes = |x: &Access| -> Vec<(usize, usize)> {
        match &x.view {
            None => vec![(x.start, x.start + x.len)],
            Some(view) => {
                let size = view.dtype.size();
                let mut list: Vec<(usize, usize)> =
                    view.addresses().into_iter().map(|at| (at, at + size)).collect();
                list.sort_unstable();
                list
            }
        }
    };
    let (a, b) = (bytes(a), bytes(b));
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        if a[i].1 <= b[j].0 {
            i += 1;
        } else if b[j].1 <= a[i].0 {
            j += 1;
        } else {
            return true;
        }
    }
    false
}
