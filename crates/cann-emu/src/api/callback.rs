//! Callbacks: functions of the program as steps of a stream, run by the thread that subscribed to the stream and processes
//! reports.

use super::stream::resolve;
use crate::race;
use crate::report::fail;
use crate::sched::{self, Work};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const BLOCK: i32 = 1;

/// A callback whose turn has come.
struct Due {
    run: Box<dyn FnOnce() + Send>,
    done: Arc<Mutex<bool>>,
}

#[derive(Default)]
struct Callbacks {
    /// Threads by the stream that they subscribed to.
    threads: HashMap<u64, u64>,
    due: HashMap<u64, VecDeque<Due>>,
}

static CALLBACKS: Mutex<Option<Callbacks>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Option<Callbacks>> {
    CALLBACKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_done(flag: &Mutex<bool>) -> bool {
    *flag.lock().unwrap_or_else(PoisonError::into_inner)
}

calls! {
    aclrtLaunchCallback(function: usize, data: usize, block: i32, stream: usize) = {
        if function == 0 {
            return Err(fail(107_000, &format!("{CALL}: the function is null")));
        }
        let stream = resolve(stream, CALL)?;
        let Some(thread) = lock().get_or_insert_default().threads.get(&stream.id).copied() else {
            let text = format!("{CALL}: no thread subscribed to the stream by aclrtSubscribeReport");
            return Err(fail(107_015, &text));
        };
        let clock = race::stamp(stream.id);
        let step = Box::new(move || {
            let done = Arc::new(Mutex::new(false));
            let run = Box::new(move || {
                // What the function tells the host comes after what the stream did before.
                race::synchronised(&clock);
                // SAFETY: the interface asks for a function of this type.
                let f: extern "C" fn(usize) = unsafe { std::mem::transmute(function) };
                f(data);
            });
            let mut guard = lock();
            let due = Due { run, done: Arc::clone(&done) };
            guard.get_or_insert_default().due.entry(thread).or_default().push_back(due);
            CHANGED.notify_all();
            while block == BLOCK && !is_done(&done) {
                guard = CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            Ok(())
        });
        sched::submit(stream.id, &[], CALL, Work::Run(step)).map(drop)
    };

    aclrtSubscribeReport(thread: u64, stream: usize) = {
        let stream = resolve(stream, CALL)?;
        let mut guard = lock();
        let threads = &mut guard.get_or_insert_default().threads;
        if threads.contains_key(&stream.id) {
            return Err(fail(107_011, &format!("{CALL}: a thread has subscribed to the stream before")));
        }
        threads.insert(stream.id, thread);
        Ok(())
    };

    aclrtUnSubscribeReport(thread: u64, stream: usize) = {
        let stream = resolve(stream, CALL)?;
        let mut guard = lock();
        let threads = &mut guard.get_or_insert_default().threads;
        match threads.get(&stream.id) {
            Some(found) if *found == thread => {
                threads.remove(&stream.id);
                Ok(())
            }
            _ => Err(fail(107_011, &format!("{CALL}: the thread has not subscribed to the stream"))),
        }
    };

    /// Runs the next callback of this thread; waits for it `timeout` milliseconds, for ever if that is -1.
    aclrtProcessReport(timeout: i32) = {
        // SAFETY: a plain call.
        let me = unsafe { libc::pthread_self() } as u64;
        let until = (timeout >= 0).then(|| Instant::now() + Duration::from_millis(timeout as u64));
        let mut guard = lock();
        let due = loop {
            let callbacks = guard.get_or_insert_default();
            if let Some(due) = callbacks.due.get_mut(&me).and_then(VecDeque::pop_front) {
                break due;
            }
            if !callbacks.threads.values().any(|t| *t == me) {
                return Err(fail(107_012, &format!("{CALL}: this thread has subscribed to no stream")));
            }
            guard = match until {
                None => CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(end) if Instant::now() >= end => {
                    return Err(fail(107_019, &format!("{CALL}: no callback came in time")));
                }
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    CHANGED.wait_timeout(guard, left).map_or_else(|e| e.into_inner().0, |r| r.0)
                }
            };
        };
        drop(guard);
        (due.run)();
        *due.done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        drop(lock());
        CHANGED.notify_all();
        Ok(())
    };
}
