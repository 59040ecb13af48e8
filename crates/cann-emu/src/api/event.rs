//! Events.

use super::context::need;
use super::give;
use super::stream::resolve;
use crate::handles;
use crate::knobs::knobs;
use crate::report::{self, broken, fail};
use crate::sched::{self, Event, Recorded};
use std::sync::{Arc, Mutex, PoisonError};

const TIME_LINE: u32 = 8;

fn create(event: usize, flag: u32, ex: bool, call: &str) -> Result<(), i32> {
    let (_, context) = need(call)?;
    if !ex {
        let count = handles::live_of("aclrtEvent")
            .iter()
            .filter(|(h, _)| handles::peek::<Event>(*h).is_some_and(|e| !e.ex))
            .count();
        if knobs().events <= count {
            return Err(fail(207_007, &format!("{call}: {count} events exist, which is the limit")));
        }
    }
    let handle = handles::make(Event { flag, ex, context, last: Mutex::new(None) }, call);
    give(event, handle, call)
}

calls! {
    aclrtCreateEvent(event: usize) = create(event, 0, false, CALL);
    aclrtCreateEventWithFlag(event: usize, flag: u32) = create(event, flag, false, CALL);
    aclrtCreateEventExWithFlag(event: usize, flag: u32) = create(event, flag, true, CALL);
}

fn get(event: usize, call: &str) -> Result<Arc<Event>, i32> {
    handles::get::<Event>(event, call, &report::STR_HANDLE, 107_017)
}

/// An event that is not of `aclrtCreateEventExWithFlag`.
fn get_limited(event: usize, call: &str) -> Result<Arc<Event>, i32> {
    let event = get(event, call)?;
    if event.ex {
        let message = format!("{call}: an event of aclrtCreateEventExWithFlag");
        return broken(&report::STR_EVENT_KIND, 107_000, &message);
    }
    Ok(event)
}

fn last(event: &Event) -> Option<Arc<Recorded>> {
    event.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

calls! {
    aclrtDestroyEvent(event: usize) =
        handles::destroy::<Event>(event, CALL, &report::STR_HANDLE, 107_017).map(drop);

    aclrtRecordEvent(event: usize, stream: usize) = {
        let stream = resolve(stream, CALL)?;
        let event = get(event, CALL)?;
        if event.context != stream.context {
            let message = &format!("{CALL}: the event belongs to another context than the stream");
            return broken(&report::STR_CONTEXT, 107_003, message);
        }
        let recorded = sched::record(stream.id)?;
        *event.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(recorded);
        Ok(())
    };

    aclrtResetEvent(event: usize, stream: usize) = {
        resolve(stream, CALL)?;
        let event = get_limited(event, CALL)?;
        // It stands as if it had not been recorded, from this place of the stream on; nothing waits for a reset.
        *event.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    };

    aclrtStreamWaitEvent(stream: usize, event: usize) = {
        let stream = resolve(stream, CALL)?;
        let event = get(event, CALL)?;
        match last(&event) {
            Some(recorded) => sched::await_event(stream.id, &recorded),
            None => Ok(()),
        }
    };

    aclrtStreamWaitEventWithTimeout(stream: usize, event: usize, _timeout: i32) -> i32 =
        aclrtStreamWaitEvent(stream, event);
}

/// Whether an event's recording has been reached; one without a recording reads complete only if it is of the unlimited kind.
fn reached(event: &Event) -> bool {
    last(event).map_or(event.ex, |r| {
        let done = sched::is_done(r.stream, Some(r.seq));
        if done {
            crate::race::synchronised(&r.clock);
        }
        done
    })
}

calls! {
    aclrtQueryEventStatus(event: usize, status: usize) =
        give(status, i32::from(reached(&*get(event, CALL)?)), CALL);

    aclrtQueryEvent(event: usize, status: usize) =
        give(status, i32::from(!reached(&*get(event, CALL)?)), CALL);

    aclrtQueryEventWaitStatus(event: usize, status: usize) =
        give(status, i32::from(!reached(&*get_limited(event, CALL)?)), CALL);
}

fn synchronise(event: usize, timeout: i32, call: &str) -> Result<(), i32> {
    let event = get(event, call)?;
    let Some(recorded) = last(&event) else { return Ok(()) };
    sched::synchronise(recorded.stream, Some(recorded.seq), timeout).map_err(|code| {
        if code == 507_046 { fail(507_047, &format!("{call}: not reached in time")) } else { code }
    })?;
    crate::race::synchronised(&recorded.clock);
    Ok(())
}

calls! {
    aclrtSynchronizeEvent(event: usize) = synchronise(event, -1, CALL);
    aclrtSynchronizeEventWithTimeout(event: usize, timeout: i32) = synchronise(event, timeout, CALL);
}

fn time(event: usize, call: &str) -> Result<u64, i32> {
    let event = get(event, call)?;
    if event.flag & TIME_LINE == 0 {
        let message =
            format!("{call}: the event was made without the timeline flag (8), found {}", event.flag);
        return broken(&report::STR_EVENT_KIND, 107_006, &message);
    }
    let at = last(&event).and_then(|r| *r.at_ns.lock().unwrap_or_else(PoisonError::into_inner));
    at.ok_or_else(|| fail(107_006, &format!("{call}: the event has not been reached")))
}

calls! {
    aclrtEventElapsedTime(ms: usize, start: usize, end: usize) = {
        let (a, b) = (time(start, CALL)?, time(end, CALL)?);
        if b < a {
            return Err(fail(107_007, &format!("{CALL}: the second event was reached before the first")));
        }
        give(ms, (b as f64 - a as f64) as f32 / 1e6, CALL)
    };

    aclrtEventGetTimestamp(event: usize, timestamp: usize) = give(timestamp, time(event, CALL)? / 1000, CALL);

    aclrtGetEventId(event: usize, id: usize) = {
        get(event, CALL)?;
        give(id, (event >> 6) as u32, CALL)
    };

    aclrtGetEventAvailNum(count: usize) = {
        let used = handles::live_of("aclrtEvent").len();
        give(count, knobs().events.saturating_sub(used) as u32, CALL)
    };
}
