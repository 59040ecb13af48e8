//! Streams.

use super::context::{default_stream, is_default_stream, need};
use super::{answer, give};
use crate::handles;
use crate::race;
use crate::report::{self, fail, violation};
use crate::sched::{self, StreamHandle, Work};
use std::sync::Arc;

/// The stream of a handle, the default one for null; its context must be current.
pub(crate) fn resolve(handle: usize, call: &str) -> Result<Arc<StreamHandle>, i32> {
    let (device, context) = need(call)?;
    let handle = if handle == 0 { default_stream(context, device) } else { handle };
    let stream = handles::get::<StreamHandle>(handle, call, &report::STR_HANDLE, 107_017)?;
    if stream.context != context {
        let message =
            format!("{call}: the stream belongs to context {}, the current one is {context}", stream.context);
        violation(&report::STR_CONTEXT, 107_003, &message);
        return Err(107_003);
    }
    Ok(stream)
}

fn create(stream: usize, call: &str) -> i32 {
    answer(|| {
        let (device, context) = need(call)?;
        let handle = handles::make(StreamHandle { id: sched::create(), device, context }, call);
        give(stream, handle, call)
    })
}

pub(crate) fn aclrtCreateStream(stream: usize) -> i32 {
    create(stream, "aclrtCreateStream")
}

pub(crate) fn aclrtCreateStreamWithConfig(stream: usize, _priority: u32, _flag: u32) -> i32 {
    create(stream, "aclrtCreateStreamWithConfig")
}

fn destroy(stream: usize, force: bool, call: &str) -> i32 {
    answer(|| {
        need(call)?;
        if stream == 0 || is_default_stream(stream) {
            return Err(fail(107_000, &format!("{call}: the default stream cannot be destroyed")));
        }
        let found = handles::get::<StreamHandle>(stream, call, &report::STR_HANDLE, 107_017)?;
        if !force && !sched::idle(found.id) {
            let waited = sched::synchronise(found.id, None, -1);
            if crate::knobs::knobs().violation == crate::knobs::OnViolation::Abort {
                violation(&report::STR_BUSY, 0, &format!("{call}: the stream still had work"));
            }
            waited?;
        }
        sched::destroy(found.id);
        handles::destroy::<StreamHandle>(stream, call, &report::STR_HANDLE, 107_017)?;
        Ok(())
    })
}

pub(crate) fn aclrtDestroyStream(stream: usize) -> i32 {
    destroy(stream, false, "aclrtDestroyStream")
}

pub(crate) fn aclrtDestroyStreamForce(stream: usize) -> i32 {
    destroy(stream, true, "aclrtDestroyStreamForce")
}

pub(crate) fn aclrtSynchronizeStream(stream: usize) -> i32 {
    answer(|| sched::synchronise(resolve(stream, "aclrtSynchronizeStream")?.id, None, -1))
}

pub(crate) fn aclrtSynchronizeStreamWithTimeout(stream: usize, timeout: i32) -> i32 {
    answer(|| sched::synchronise(resolve(stream, "aclrtSynchronizeStreamWithTimeout")?.id, None, timeout))
}

fn all(timeout: i32, call: &str) -> i32 {
    answer(|| {
        let (device, _) = need(call)?;
        let mut outcome = Ok(());
        for (handle, _) in handles::live_of("aclrtStream") {
            if let Some(s) = handles::peek::<StreamHandle>(handle)
                && s.device == device
            {
                outcome = outcome.and(sched::synchronise(s.id, None, timeout));
            }
        }
        outcome
    })
}

pub(crate) fn aclrtSynchronizeDevice() -> i32 {
    all(-1, "aclrtSynchronizeDevice")
}

pub(crate) fn aclrtSynchronizeDeviceWithTimeout(timeout: i32) -> i32 {
    all(timeout, "aclrtSynchronizeDeviceWithTimeout")
}

pub(crate) fn aclrtStreamQuery(stream: usize, status: usize) -> i32 {
    answer(|| {
        let found = resolve(stream, "aclrtStreamQuery")?;
        let clock = race::stamp(found.id);
        let done = sched::is_done(found.id, None);
        if done {
            race::synchronised(&clock);
        }
        give(status, i32::from(!done), "aclrtStreamQuery")
    })
}

pub(crate) fn aclrtStreamGetId(stream: usize, id: usize) -> i32 {
    answer(|| give(id, resolve(stream, "aclrtStreamGetId")?.id as i32, "aclrtStreamGetId"))
}

pub(crate) fn aclrtStreamGetPriority(stream: usize, priority: usize) -> i32 {
    answer(|| {
        resolve(stream, "aclrtStreamGetPriority")?;
        give(priority, 0u32, "aclrtStreamGetPriority")
    })
}

pub(crate) fn aclrtStreamAbort(stream: usize) -> i32 {
    answer(|| {
        sched::abort(resolve(stream, "aclrtStreamAbort")?.id, 107_023);
        Ok(())
    })
}

pub(crate) fn aclrtDeviceTaskAbort(device: i32, _timeout: u32) -> i32 {
    answer(|| {
        for (handle, _) in handles::live_of("aclrtStream") {
            if let Some(s) = handles::peek::<StreamHandle>(handle)
                && s.device == device as u32
            {
                sched::abort(s.id, 107_022);
            }
        }
        Ok(())
    })
}

pub(crate) fn aclrtSetStreamFailureMode(stream: usize, mode: u64) -> i32 {
    answer(|| {
        sched::stop_on_failure(resolve(stream, "aclrtSetStreamFailureMode")?.id, mode == 1);
        Ok(())
    })
}

pub(crate) fn aclrtSetStreamOverflowSwitch(stream: usize, _flag: u32) -> i32 {
    answer(|| resolve(stream, "aclrtSetStreamOverflowSwitch").map(drop))
}

pub(crate) fn aclrtGetStreamOverflowSwitch(stream: usize, flag: usize) -> i32 {
    answer(|| {
        resolve(stream, "aclrtGetStreamOverflowSwitch")?;
        give(flag, 0u32, "aclrtGetStreamOverflowSwitch")
    })
}

pub(crate) fn aclrtSetStreamAttribute(stream: usize, _kind: i32, _value: usize) -> i32 {
    answer(|| resolve(stream, "aclrtSetStreamAttribute").map(drop))
}

pub(crate) fn aclrtGetStreamAvailableNum(count: usize) -> i32 {
    answer(|| {
        give(
            count,
            2048u32 - handles::live_of("aclrtStream").len().min(2048) as u32,
            "aclrtGetStreamAvailableNum",
        )
    })
}

/// A function of the program as a step of a stream.
fn call_host(stream: usize, function: usize, argument: usize, call: &str) -> Result<(), i32> {
    if function == 0 {
        return Err(fail(107_000, &format!("{call}: the function is null")));
    }
    let stream = resolve(stream, call)?;
    let clock = race::stamp(stream.id);
    let run = Box::new(move || {
        // What the function tells the host comes after what the stream did before.
        race::synchronised(&clock);
        // SAFETY: the interface asks for a function of this type.
        let f: extern "C" fn(usize) = unsafe { std::mem::transmute(function) };
        f(argument);
        Ok(())
    });
    sched::submit(stream.id, &[], call, Work::Run(run)).map(drop)
}

pub(crate) fn aclrtLaunchHostFunc(stream: usize, function: usize, argument: usize) -> i32 {
    answer(|| call_host(stream, function, argument, "aclrtLaunchHostFunc"))
}
