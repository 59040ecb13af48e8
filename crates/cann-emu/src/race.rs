//! The order of all accesses: a vector clock per stream, per event, for the host, and for each of its threads.
//!
//! Threads of a process synchronise by means that a library cannot see, so two sets of clocks are kept. In one, the host is a
//! single actor: whatever one thread has waited for, every thread knows. Accesses that are unordered there are a race. In the
//! other, each thread is an actor of its own, which knows what it did and waited for itself, and what was submitted to a
//! stream or event that it has waited for. Accesses that are unordered only there may be ordered by a lock of the program;
//! they are a line of the report, or a race with `CANN_EMU_HOSTS=threads`. Clocks advance when work is submitted, so a
//! finding does not depend on when it runs.

use crate::knobs::knobs;
use crate::nn::tensor::View;
use crate::report::{self, Site};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Times by actor; the host is actor 0, streams follow, host threads of their own stand behind [`THREADS`].
type Times = HashMap<u64, u64>;

/// What came before, in both books.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    joint: Times,
    apart: Times,
}

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

/// One book: the clocks of all actors, and who touched what.
#[derive(Default)]
struct Book {
    clocks: HashMap<u64, Times>,
    records: BTreeMap<usize, Vec<Record>>,
}

#[derive(Default)]
struct State {
    joint: Book,
    apart: Book,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
const HOST: u64 = 0;
/// Actors from here on are threads of the host.
const THREADS: u64 = 1 << 63;
static NEXT_THREAD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THREAD: u64 = THREADS + NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}

/// The actor that this thread is where threads are apart.
fn own() -> u64 {
    THREAD.with(|t| *t)
}

/// Whether somebody reads what threads apart do.
fn heard() -> bool {
    knobs().hosts_apart || knobs().report.is_some()
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

fn join(into: &mut Times, from: &Times) {
    for (actor, time) in from {
        let mine = into.entry(*actor).or_insert(0);
        *mine = (*mine).max(*time);
    }
}

/// What is a race, of what both books found: what only threads apart do is noted, or a race too if that was asked for.
fn judged(joint: Vec<String>, apart: Vec<String>) -> Vec<String> {
    if !joint.is_empty() {
        return joint;
    }
    if knobs().hosts_apart {
        return apart;
    }
    for message in apart {
        report::note(&report::RACE_THREADS, &message);
    }
    Vec::new()
}

/// A task enters a stream: it comes after everything that the host knows and everything before it in the stream.
/// Gives messages for conflicting accesses without an order.
pub fn submit(stream: u64, accesses: &[Access], what: &str) -> Vec<String> {
    let (joint, apart) = with(|state| {
        let joint = state.joint.submit(HOST, stream, accesses, what);
        (joint, if heard() { state.apart.submit(own(), stream, accesses, what) } else { Vec::new() })
    });
    judged(joint, apart)
}

/// The host touches device memory itself, blocking.
pub fn host(accesses: &[Access], what: &str) -> Vec<String> {
    let (joint, apart) = with(|state| {
        let joint = state.joint.host(HOST, accesses, what);
        (joint, if heard() { state.apart.host(own(), accesses, what) } else { Vec::new() })
    });
    judged(joint, apart)
}

/// The clock of a stream as it stands: what an event records.
pub fn stamp(stream: u64) -> Clock {
    with(|state| Clock {
        joint: state.joint.stamp(HOST, stream),
        apart: if heard() { state.apart.stamp(own(), stream) } else { Times::new() },
    })
}

/// A stream waits for what a clock says.
pub fn wait(stream: u64, clock: &Clock) {
    with(|state| {
        join(state.joint.clocks.entry(stream).or_default(), &clock.joint);
        join(state.apart.clocks.entry(stream).or_default(), &clock.apart);
    });
}

/// The host has waited for what a clock says.
pub fn synchronised(clock: &Clock) {
    with(|state| {
        join(state.joint.clocks.entry(HOST).or_default(), &clock.joint);
        join(state.apart.clocks.entry(own()).or_default(), &clock.apart);
    });
}

/// Forgets an allocation; a message if work that the host does not know to be done still uses it.
pub fn forget(start: usize, len: usize) -> Option<String> {
    let (joint, apart) =
        with(|state| (state.joint.forget(HOST, start, len), state.apart.forget(own(), start, len)));
    judged(joint.into_iter().collect(), apart.into_iter().collect()).pop()
}

impl Book {
    fn submit(&mut self, host: u64, stream: u64, accesses: &[Access], what: &str) -> Vec<String> {
        let known = self.clocks.get(&host).cloned().unwrap_or_default();
        let clock = self.clocks.entry(stream).or_default();
        join(clock, &known);
        let time = clock.entry(stream).or_insert(0);
        *time += 1;
        let (time, clock) = (*time, clock.clone());
        self.access(stream, time, &clock, accesses, what)
    }

    fn host(&mut self, me: u64, accesses: &[Access], what: &str) -> Vec<String> {
        let clock = self.clocks.entry(me).or_default();
        let time = clock.entry(me).or_insert(0);
        *time += 1;
        let (time, clock) = (*time, clock.clone());
        self.access(me, time, &clock, accesses, what)
    }

    fn stamp(&mut self, host: u64, stream: u64) -> Times {
        let known = self.clocks.get(&host).cloned().unwrap_or_default();
        let clock = self.clocks.entry(stream).or_default();
        join(clock, &known);
        clock.clone()
    }

    fn forget(&mut self, host: u64, start: usize, len: usize) -> Option<String> {
        let known = self.clocks.get(&host).cloned().unwrap_or_default();
        let records = self.records.remove(&start).unwrap_or_default();
        let in_flight = |r: &&Record| {
            !is_host(r.actor)
                && r.time > known.get(&r.actor).copied().unwrap_or(0)
                && r.access.start < start + len
        };
        records.iter().find(in_flight).map(|r| format!("{} on {}", r.what, name(r.actor)))
    }

    fn access(
        &mut self,
        actor: u64,
        time: u64,
        clock: &Times,
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
