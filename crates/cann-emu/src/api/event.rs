//! Events.

use super::context::need;
use super::stream::resolve;
use super::{answer, give};
use crate::handles;
use crate::knobs::knobs;
use crate::report::{self, fail, violation};
use crate::sched::{self, Event, Recorded};
use std::sync::{Arc, Mutex, PoisonError};

const TIME_LINE: u32 = 8;

fn create(event: usize, flag: u32, ex: bool, call: &str) -> i32 {
    answer(|| {
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
    })
}

pub(crate) fn aclrtCreateEvent(event: usize) -> i32 {
    create(event, 0, false, "aclrtCreateEvent")
}

pub(crate) fn aclrtCreateEventWithFlag(event: usize, flag: u32) -> i32 {
    create(event, flag, false, "aclrtCreateEventWithFlag")
}

pub(crate) fn aclrtCreateEventExWithFlag(event: usize, flag: u32) -> i32 {
    create(event, flag, true, "aclrtCreateEventExWithFlag")
}

fn get(event: usize, call: &str) -> Result<Arc<Event>, i32> {
    handles::get::<Event>(event, call, &report::STR_HANDLE, 107_017)
}

fn last(event: &Event) -> Option<Arc<Recorded>> {
    event.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub(crate) fn aclrtDestroyEvent(event: usize) -> i32 {
    answer(|| handles::destroy::<Event>(event, "aclrtDestroyEvent", &report::STR_HANDLE, 107_017).map(drop))
}

pub(crate) fn aclrtRecordEvent(event: usize, stream: usize) -> i32 {
    answer(|| {
        let stream = resolve(stream, "aclrtRecordEvent")?;
        let event = get(event, "aclrtRecordEvent")?;
        if event.context != stream.context {
            let message = "aclrtRecordEvent: the event belongs to another context than the stream";
            violation(&report::STR_CONTEXT, 107_003, message);
            return Err(107_003);
        }
        let recorded = sched::record(stream.id)?;
        *event.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(recorded);
        Ok(())
    })
}

pub(crate) fn aclrtResetEvent(event: usize, stream: usize) -> i32 {
    answer(|| {
        resolve(stream, "aclrtResetEvent")?;
        let event = get(event, "aclrtResetEvent")?;
        if event.ex {
            violation(
                &report::STR_EVENT_KIND,
                107_000,
                "aclrtResetEvent: an event of aclrtCreateEventExWithFlag",
            );
            return Err(107_000);
        }
        // It stands as if it had not been recorded, from this place of the stream on; nothing waits for a reset.
        *event.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    })
}

pub(crate) fn aclrtStreamWaitEvent(stream: usize, event: usize) -> i32 {
    answer(|| {
        let stream = resolve(stream, "aclrtStreamWaitEvent")?;
        let event = get(event, "aclrtStreamWaitEvent")?;
        match last(&event) {
            Some(recorded) => sched::await_event(stream.id, &recorded),
            None => Ok(()),
        }
    })
}

pub(crate) fn aclrtStreamWaitEventWithTimeout(stream: usize, event: usize, _timeout: i32) -> i32 {
    aclrtStreamWaitEvent(stream, event)
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

pub(crate) fn aclrtQueryEventStatus(event: usize, status: usize) -> i32 {
    answer(|| {
        let event = get(event, "aclrtQueryEventStatus")?;
        give(status, i32::from(reached(&event)), "aclrtQueryEventStatus")
    })
}

pub(crate) fn aclrtQueryEvent(event: usize, status: usize) -> i32 {
    answer(|| {
        let event = get(event, "aclrtQueryEvent")?;
        give(status, i32::from(!reached(&event)), "aclrtQueryEvent")
    })
}

pub(crate) fn aclrtQueryEventWaitStatus(event: usize, status: usize) -> i32 {
    answer(|| {
        let event = get(event, "aclrtQueryEventWaitStatus")?;
        if event.ex {
            violation(
                &report::STR_EVENT_KIND,
                107_000,
                "aclrtQueryEventWaitStatus: an event of aclrtCreateEventExWithFlag",
            );
            return Err(107_000);
        }
        give(status, i32::from(!reached(&event)), "aclrtQueryEventWaitStatus")
    })
}

fn synchronise(event: usize, timeout: i32, call: &str) -> i32 {
    answer(|| {
        let event = get(event, call)?;
        let Some(recorded) = last(&event) else { return Ok(()) };
        sched::synchronise(recorded.stream, Some(recorded.seq), timeout).map_err(|code| {
            if code == 507_046 { fail(507_047, &format!("{call}: not reached in time")) } else { code }
        })?;
        crate::race::synchronised(&recorded.clock);
        Ok(())
    })
}

pub(crate) fn aclrtSynchronizeEvent(event: usize) -> i32 {
    synchronise(event, -1, "aclrtSynchronizeEvent")
}

pub(crate) fn aclrtSynchronizeEventWithTimeout(event: usize, timeout: i32) -> i32 {
    synchronise(event, timeout, "aclrtSynchronizeEventWithTimeout")
}

fn time(event: usize, call: &str) -> Result<u64, i32> {
    let event = get(event, call)?;
    if event.flag & TIME_LINE == 0 {
        let message =
            format!("{call}: the event was made without the timeline flag (8), found {}", event.flag);
        violation(&report::STR_EVENT_KIND, 107_006, &message);
        return Err(107_006);
    }
    let at = last(&event).and_then(|r| *r.at_ns.lock().unwrap_or_else(PoisonError::into_inner));
    at.ok_or_else(|| fail(107_007, &format!("{call}: the event has not been reached")))
}

pub(crate) fn aclrtEventElapsedTime(ms: usize, start: usize, end: usize) -> i32 {
    answer(|| {
        let (a, b) = (time(start, "aclrtEventElapsedTime")?, time(end, "aclrtEventElapsedTime")?);
        give(ms, (b as f64 - a as f64) as f32 / 1e6, "aclrtEventElapsedTime")
    })
}

pub(crate) fn aclrtEventGetTimestamp(event: usize, timestamp: usize) -> i32 {
    answer(|| give(timestamp, time(event, "aclrtEventGetTimestamp")? / 1000, "aclrtEventGetTimestamp"))
}

pub(crate) fn aclrtGetEventId(event: usize, id: usize) -> i32 {
    answer(|| {
        get(event, "aclrtGetEventId")?;
        give(id, (event >> 6) as u32, "aclrtGetEventId")
    })
}

pub(crate) fn aclrtGetEventAvailNum(count: usize) -> i32 {
    answer(|| {
        let used = handles::live_of("aclrtEvent").len();
        give(count, knobs().events.saturating_sub(used) as u32, "aclrtGetEventAvailNum")
    })
}
