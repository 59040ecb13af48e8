//! Streams and events: a queue and a worker per stream; the mode decides when the worker may continue.

use crate::handles::Handled;
use crate::knobs::{Mode, knobs, noise};
use crate::race::{self, Access, Clock};
use crate::report::{self, fail, violation};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a stream does in one step.
pub enum Work {
    /// Calls this; an error is the stream's error.
    Run(Box<dyn FnOnce() -> Result<(), i32> + Send>),
    /// Goes on once another stream has come this far.
    Await { stream: u64, seq: u64 },
    /// Notes the time.
    Stamp(Arc<Recorded>),
}

/// One recording of an event.
#[derive(Debug)]
pub struct Recorded {
    /// The stream it was recorded in.
    pub stream: u64,
    /// Its place there.
    pub seq: u64,
    /// Everything before it.
    pub clock: Clock,
    /// Nanoseconds since the process began, once it has been reached.
    pub at_ns: Mutex<Option<u64>>,
}

struct Task {
    seq: u64,
    work: Work,
}

#[derive(Default)]
struct Stream {
    queue: VecDeque<Task>,
    submitted: u64,
    done: u64,
    target: u64,
    error: Option<i32>,
    stop_on_failure: bool,
    gone: bool,
    worker: bool,
}

#[derive(Default)]
struct Sched {
    streams: HashMap<u64, Stream>,
    next: u64,
}

static SCHED: Mutex<Option<Sched>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();
static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

/// A stream as its handle holds it.
#[derive(Debug)]
pub struct StreamHandle {
    /// Its number, and its actor in the order of accesses.
    pub id: u64,
    /// Its device.
    pub device: u32,
    /// The context that made it.
    pub context: u64,
}
impl Handled for StreamHandle {
    const NAME: &'static str = "aclrtStream";
}

/// An event as its handle holds it.
#[derive(Debug)]
pub struct Event {
    /// Flags of creation.
    pub flag: u32,
    /// Of the kind that is not limited in number.
    pub ex: bool,
    /// The context that made it.
    pub context: u64,
    /// Its last recording.
    pub last: Mutex<Option<Arc<Recorded>>>,
}
impl Handled for Event {
    const NAME: &'static str = "aclrtEvent";
}

type Guard = MutexGuard<'static, Option<Sched>>;

fn lock() -> Guard {
    SCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(guard: Guard, until: Option<Instant>) -> Guard {
    match until {
        None => CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(end) => {
            let left = end.saturating_duration_since(Instant::now());
            CHANGED.wait_timeout(guard, left).map_or_else(|e| e.into_inner().0, |r| r.0)
        }
    }
}

/// Nanoseconds since the process first asked.
pub fn now_ns() -> u64 {
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// A new stream's number.
pub fn create() -> u64 {
    let mut guard = lock();
    let sched = guard.get_or_insert_default();
    sched.next += 1;
    let id = sched.next;
    sched.streams.insert(id, Stream::default());
    id
}

/// Sets what follows an error: later tasks are dropped, or run.
pub fn stop_on_failure(id: u64, on: bool) {
    if let Some(stream) = lock().get_or_insert_default().streams.get_mut(&id) {
        stream.stop_on_failure = on;
    }
}

/// Enters work into a stream after the checks of order. `what` names it in messages.
///
/// # Errors
/// The stream's error where it stops on failure, or the code of a violation.
pub fn submit(id: u64, accesses: &[Access], what: &str, work: Work) -> Result<u64, i32> {
    if let Some(code) = report::poisoned() {
        return Err(fail(code, &format!("{what}: the device failed with {code} before")));
    }
    for message in race::submit(id, accesses, what) {
        report::result(violation(&report::RACE, 507_015, &message))?;
    }
    enqueue(id, work)
}

fn enqueue(id: u64, work: Work) -> Result<u64, i32> {
    let mut guard = lock();
    let sched = guard.get_or_insert_default();
    let Some(stream) = sched.streams.get_mut(&id) else { return Err(fail(107_003, "the stream is gone")) };
    if stream.stop_on_failure
        && let Some(code) = stream.error
    {
        return Err(fail(code, "the stream stopped at an earlier failure"));
    }
    stream.submitted += 1;
    let seq = stream.submitted;
    stream.queue.push_back(Task { seq, work });
    if !stream.worker {
        stream.worker = true;
        let spawned = std::thread::Builder::new().name(format!("emu-stream-{id}")).spawn(move || serve(id));
        assert!(spawned.is_ok(), "cannot start the worker of a stream");
    }
    match knobs().mode {
        Mode::Lazy => {}
        Mode::Threads => {
            stream.target = seq;
            CHANGED.notify_all();
        }
        Mode::Eager => {
            drop(reach(guard, id, seq, None));
        }
    }
    Ok(seq)
}

/// Records an event: what it stands for.
pub fn record(id: u64) -> Result<Arc<Recorded>, i32> {
    let clock = race::stamp(id);
    let seq = {
        let mut guard = lock();
        guard.get_or_insert_default().streams.get(&id).map_or(0, |s| s.submitted + 1)
    };
    let recorded = Arc::new(Recorded { stream: id, seq, clock, at_ns: Mutex::new(None) });
    enqueue(id, Work::Stamp(Arc::clone(&recorded)))?;
    Ok(recorded)
}

/// A stream waits for an event's recording.
pub fn await_event(id: u64, recorded: &Recorded) -> Result<(), i32> {
    race::wait(id, &recorded.clock);
    if recorded.stream != id {
        enqueue(id, Work::Await { stream: recorded.stream, seq: recorded.seq })?;
    }
    Ok(())
}

/// Whether a stream has done everything up to a step; lets it go on if not.
pub fn is_done(id: u64, seq: Option<u64>) -> bool {
    let mut guard = lock();
    let Some(stream) = guard.get_or_insert_default().streams.get_mut(&id) else { return true };
    let seq = seq.unwrap_or(stream.submitted);
    stream.target = stream.target.max(seq);
    let done = stream.done >= seq;
    CHANGED.notify_all();
    done
}

/// Lets a stream go on up to a step without waiting.
pub fn force(id: u64, seq: u64) {
    let mut guard = lock();
    if let Some(stream) = guard.get_or_insert_default().streams.get_mut(&id) {
        stream.target = stream.target.max(seq);
        CHANGED.notify_all();
    }
}

fn reach(mut guard: Guard, id: u64, seq: u64, until: Option<Instant>) -> (Guard, bool) {
    loop {
        let Some(stream) = guard.get_or_insert_default().streams.get_mut(&id) else { return (guard, true) };
        if stream.done >= seq {
            return (guard, true);
        }
        if stream.target < seq {
            stream.target = seq;
            CHANGED.notify_all();
        }
        if until.is_some_and(|end| Instant::now() >= end) {
            return (guard, false);
        }
        guard = wait(guard, until);
    }
}

/// Waits for a stream, up to a step or to its end; then the host knows all of it.
///
/// # Errors
/// The stream's asynchronous error; 507046 when `timeout_ms` (if not negative) ends first.
pub fn synchronise(id: u64, seq: Option<u64>, timeout_ms: i32) -> Result<(), i32> {
    let until = (timeout_ms >= 0).then(|| Instant::now() + Duration::from_millis(timeout_ms as u64));
    let mut guard = lock();
    let (clock, end) = {
        let submitted = guard.get_or_insert_default().streams.get(&id).map_or(0, |s| s.submitted);
        (seq.is_none().then(|| race::stamp(id)), seq.unwrap_or(submitted))
    };
    let (mut guard, reached) = reach(guard, id, end, until);
    if !reached {
        return Err(fail(507_046, &format!("the stream was not done within {timeout_ms} ms")));
    }
    let error = guard.get_or_insert_default().streams.get_mut(&id).and_then(|s| s.error.take());
    drop(guard);
    if let Some(clock) = clock {
        race::synchronised(&clock);
    }
    match error.or_else(report::poisoned) {
        Some(code) => {
            Err(fail(code, &format!("work of the stream failed with {code} (reported asynchronously)")))
        }
        None => Ok(()),
    }
}

/// Whether everything submitted has been done.
pub fn idle(id: u64) -> bool {
    let mut guard = lock();
    guard.get_or_insert_default().streams.get(&id).is_none_or(|s| s.done >= s.submitted)
}

/// Ends a stream; what is queued is dropped.
pub fn destroy(id: u64) {
    let mut guard = lock();
    if let Some(stream) = guard.get_or_insert_default().streams.get_mut(&id) {
        stream.gone = true;
        stream.queue.clear();
        stream.done = stream.submitted;
        if !stream.worker {
            guard.get_or_insert_default().streams.remove(&id);
        }
    }
    CHANGED.notify_all();
}

/// Drops what is queued in a stream and marks it with an error.
pub fn abort(id: u64, code: i32) {
    let mut guard = lock();
    if let Some(stream) = guard.get_or_insert_default().streams.get_mut(&id) {
        stream.queue.clear();
        stream.done = stream.submitted;
        stream.error = Some(code);
    }
    CHANGED.notify_all();
}

fn serve(id: u64) {
    let mut guard = lock();
    loop {
        let Some(stream) = guard.get_or_insert_default().streams.get_mut(&id) else { return };
        if stream.gone {
            guard.get_or_insert_default().streams.remove(&id);
            CHANGED.notify_all();
            return;
        }
        if stream.queue.is_empty() || stream.done >= stream.target {
            guard = wait(guard, None);
            continue;
        }
        let Some(task) = stream.queue.pop_front() else { continue };
        let dropped = stream.stop_on_failure && stream.error.is_some();
        let mut outcome = Ok(());
        match task.work {
            Work::Await { stream: other, seq } => {
                guard = reach(guard, other, seq, None).0;
            }
            Work::Stamp(recorded) => {
                drop(guard);
                *recorded.at_ns.lock().unwrap_or_else(PoisonError::into_inner) = Some(now_ns());
                guard = lock();
            }
            Work::Run(run) => {
                drop(guard);
                if knobs().mode == Mode::Threads {
                    let micros = noise(id.wrapping_mul(7919) ^ task.seq) % 200;
                    if micros < 50 {
                        std::thread::sleep(Duration::from_micros(micros));
                    }
                }
                if !dropped && report::poisoned().is_none() {
                    outcome =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(Err(507_015));
                }
                guard = lock();
            }
        }
        if let Some(stream) = guard.get_or_insert_default().streams.get_mut(&id) {
            stream.done = stream.done.max(task.seq);
            if let Err(code) = outcome {
                stream.error = Some(code);
            }
        }
        CHANGED.notify_all();
    }
}
