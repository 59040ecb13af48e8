//! Devices and contexts: current per thread, counted per process.

use super::give;
use crate::handles::{self, Handled};
use crate::knobs::knobs;
use crate::report::{self, fail};
use crate::sched::{Event, StreamHandle};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A context as its handle holds it.
#[derive(Debug)]
pub struct Context {
    pub(crate) id: u64,
    pub(crate) device: u32,
}
impl Handled for Context {
    const NAME: &'static str = "aclrtContext";
}

#[derive(Clone, Copy)]
struct Default_ {
    handle: usize,
    id: u64,
    count: u32,
}

thread_local! {
    static CURRENT: Cell<Option<(u32, u64, usize)>> = const { Cell::new(None) };
}

#[derive(Default)]
struct Contexts {
    next: u64,
    defaults: HashMap<u32, Default_>,
    streams: HashMap<u64, usize>,
    alive: Vec<u64>,
}

static CONTEXTS: Mutex<Option<Contexts>> = Mutex::new(None);

fn with<R>(f: impl FnOnce(&mut Contexts) -> R) -> R {
    f(CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Device and context of this thread.
pub(crate) fn now() -> Option<(u32, u64)> {
    CURRENT.with(Cell::get).filter(|(_, id, _)| with(|c| c.alive.contains(id))).map(|(d, id, _)| (d, id))
}

/// As [`now`], or the error of a thread without a device.
pub(crate) fn need(call: &str) -> Result<(u32, u64), i32> {
    if let Some(code) = report::poisoned() {
        return Err(fail(code, &format!("{call}: the device failed with {code} before")));
    }
    now().ok_or_else(|| {
        fail(107_002, &format!("{call}: no current context; aclrtSetDevice was not called on this thread"))
    })
}

/// The default stream of a context, as a handle.
pub(crate) fn default_stream(context: u64, device: u32) -> usize {
    if let Some(found) = with(|c| c.streams.get(&context).copied()) {
        return found;
    }
    let id = crate::sched::create();
    let handle = handles::make(crate::sched::StreamHandle { id, device, context }, "aclrtSetDevice");
    with(|c| *c.streams.entry(context).or_insert(handle))
}

pub(crate) fn is_default_stream(handle: usize) -> bool {
    with(|c| c.streams.values().any(|h| *h == handle))
}

pub(super) fn visible() -> u32 {
    std::env::var("ASCEND_RT_VISIBLE_DEVICES").ok().filter(|v| !v.trim().is_empty()).map_or(
        knobs().devices,
        |v| {
            v.split(',').filter(|p| p.trim().parse::<u32>().is_ok_and(|n| n < knobs().devices)).count() as u32
        },
    )
}

/// The number of one more context.
fn new_context() -> u64 {
    with(|c| {
        c.next += 1;
        c.alive.push(c.next);
        c.next
    })
}

calls! {
    aclrtGetDeviceCount(count: usize) = give(count, visible(), CALL);

    aclrtSetDevice(device: i32) = {
        if let Some(code) = report::fault("lost", CALL) {
            let text = format!("{CALL}: lost heartbeat of the device (injected)");
            return Err(fail(code.parse().unwrap_or(507_010), &text));
        }
        if device < 0 || device as u32 >= visible() {
            let last = visible().max(1) - 1;
            let text = format!("{CALL}: expected a device of 0 to {last}, found {device}");
            return Err(fail(107_001, &text));
        }
        let device = device as u32;
        let known = with(|c| {
            c.defaults.get_mut(&device).map(|d| {
                d.count += 1;
                *d
            })
        });
        let default = match known {
            Some(d) => d,
            None => {
                let id = new_context();
                let handle = handles::make(Context { id, device }, CALL);
                let mine = Default_ { handle, id, count: 1 };
                let d = with(|c| {
                    let d = c.defaults.entry(device).and_modify(|d| d.count += 1).or_insert(mine);
                    let d = *d;
                    if d.id != id {
                        c.alive.retain(|alive| *alive != id);
                    }
                    d
                });
                if d.id != id {
                    // Another thread was first.
                    handles::destroy::<Context>(handle, CALL, &report::STR_HANDLE, 107_000)?;
                }
                d
            }
        };
        CURRENT.with(|c| c.set(Some((device, default.id, default.handle))));
        Ok(())
    };
}

fn reset(device: i32, force: bool, call: &str) -> Result<(), i32> {
    let device = device as u32;
    // Counting and removing are one step: a thread that sets the device meanwhile gets a new context.
    let last = with(|c| {
        let d = c.defaults.get_mut(&device)?;
        d.count = d.count.saturating_sub(1);
        if d.count > 0 && !force {
            return Some(None);
        }
        let d = *d;
        c.defaults.remove(&device);
        c.alive.retain(|id| *id != d.id);
        Some(Some(d))
    });
    let Some(last) = last else {
        return Err(fail(107_001, &format!("{call}: device {device} was not set")));
    };
    if let Some(d) = last {
        end_of(d.id, device, call);
        handles::destroy::<Context>(d.handle, call, &report::STR_HANDLE, 107_000)?;
    }
    Ok(())
}

/// What a context owns ends with it: streams, events and memory.
fn end_of(context: u64, device: u32, call: &str) {
    with(|c| c.streams.remove(&context));
    let streams: Vec<(usize, u64)> = handles::live_of("aclrtStream")
        .into_iter()
        .filter_map(|(handle, _)| Some((handle, handles::peek::<StreamHandle>(handle)?)))
        .filter(|(_, s)| s.context == context)
        .map(|(handle, s)| (handle, s.id))
        .collect();
    for (_, id) in &streams {
        // Errors were reported at synchronisations; the end of the context waits only.
        let _ = crate::sched::synchronise(*id, None, -1);
    }
    for (handle, id) in streams {
        crate::sched::destroy(id);
        // It was alive a moment ago, and may be no more.
        let _ = handles::destroy::<StreamHandle>(handle, call, &report::STR_HANDLE, 107_017);
    }
    for (handle, _) in handles::live_of("aclrtEvent") {
        if handles::peek::<Event>(handle).is_some_and(|e| e.context == context) {
            let _ = handles::destroy::<Event>(handle, call, &report::STR_HANDLE, 107_017);
        }
    }
    crate::memory::free_all(device, context, call);
}

calls! {
    aclrtResetDevice(device: i32) = reset(device, false, CALL);
    aclrtResetDeviceForce(device: i32) = reset(device, true, CALL);

    aclrtGetDevice(device: usize) = {
        let (id, _) = need(CALL)?;
        give(device, id as i32, CALL)
    };

    aclrtCreateContext(context: usize, device: i32) = {
        if device < 0 || device as u32 >= visible() {
            return Err(fail(107_001, &format!("{CALL}: no device {device}")));
        }
        let device = device as u32;
        let id = new_context();
        let handle = handles::make(Context { id, device }, CALL);
        CURRENT.with(|c| c.set(Some((device, id, handle))));
        give(context, handle, CALL)
    };

    aclrtDestroyContext(context: usize) = {
        let gone = handles::destroy::<Context>(context, CALL, &report::STR_HANDLE, 107_000)?;
        end_of(gone.id, gone.device, CALL);
        with(|c| c.alive.retain(|id| *id != gone.id));
        Ok(())
    };

    aclrtSetCurrentContext(context: usize) = {
        let found = handles::get::<Context>(context, CALL, &report::STR_HANDLE, 107_000)?;
        CURRENT.with(|c| c.set(Some((found.device, found.id, context))));
        Ok(())
    };

    aclrtGetCurrentContext(context: usize) = {
        need(CALL)?;
        let handle = CURRENT.with(Cell::get).map_or(0, |c| c.2);
        give(context, handle, CALL)
    };

    aclrtCtxGetCurrentDefaultStream(stream: usize) = {
        let (device, context) = need(CALL)?;
        give(stream, default_stream(context, device), CALL)
    };

    aclrtGetPrimaryCtxState(device: i32, flags: usize, active: usize) = {
        let on = with(|c| c.defaults.contains_key(&(device as u32)));
        if flags != 0 {
            give(flags, 0u32, CALL)?;
        }
        give(active, i32::from(on), CALL)
    };
}

/// Every context and default stream ends; what is left of handles is dead.
pub(crate) fn end_all() {
    let defaults: Vec<Default_> = with(|c| c.defaults.drain().map(|(_, d)| d).collect());
    for d in defaults {
        with(|c| c.alive.retain(|id| *id != d.id));
        // Already destroyed is fine here.
        let _ = handles::peek::<Context>(d.handle)
            .map(|_| handles::destroy::<Context>(d.handle, "aclFinalize", &report::STR_HANDLE, 107_000));
    }
}
