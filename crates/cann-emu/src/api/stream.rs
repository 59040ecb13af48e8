//! Streams.

use super::context::{default_stream, is_default_stream, need};
use super::give;
use crate::handles;
use crate::race;
use crate::report::{self, broken, fail, violation};
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
        return broken(&report::STR_CONTEXT, 107_003, &message);
    }
    Ok(stream)
}

fn create(stream: usize, call: &str) -> Result<(), i32> {
    let (device, context) = need(call)?;
    let handle = handles::make(StreamHandle { id: sched::create(), device, context }, call);
    give(stream, handle, call)
}

calls! {
    aclrtCreateStream(stream: usize) = create(stream, CALL);
    aclrtCreateStreamWithConfig(stream: usize, _priority: u32, _flag: u32) = create(stream, CALL);
}

fn destroy(stream: usize, force: bool, call: &str) -> Result<(), i32> {
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
}

calls! {
    aclrtDestroyStream(stream: usize) = destroy(stream, false, CALL);
    aclrtDestroyStreamForce(stream: usize) = destroy(stream, true, CALL);
    aclrtSynchronizeStream(stream: usize) = sched::synchronise(resolve(stream, CALL)?.id, None, -1);

    aclrtSynchronizeStreamWithTimeout(stream: usize, timeout: i32) =
        sched::synchronise(resolve(stream, CALL)?.id, None, timeout);
}

fn all(timeout: i32, call: &str) -> Result<(), i32> {
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
}

calls! {
    aclrtSynchronizeDevice() = all(-1, CALL);
    aclrtSynchronizeDeviceWithTimeout(timeout: i32) = all(timeout, CALL);

    aclrtStreamQuery(stream: usize, status: usize) = {
        let found = resolve(stream, CALL)?;
        let clock = race::stamp(found.id);
        let done = sched::is_done(found.id, None);
        if done {
            race::synchronised(&clock);
        }
        give(status, i32::from(!done), CALL)
    };

    aclrtStreamGetId(stream: usize, id: usize) = give(id, resolve(stream, CALL)?.id as i32, CALL);

    aclrtStreamGetPriority(stream: usize, priority: usize) = {
        resolve(stream, CALL)?;
        give(priority, 0u32, CALL)
    };

    aclrtStreamAbort(stream: usize) = {
        sched::abort(resolve(stream, CALL)?.id, 107_023);
        Ok(())
    };

    aclrtDeviceTaskAbort(device: i32, _timeout: u32) = {
        for (handle, _) in handles::live_of("aclrtStream") {
            if let Some(s) = handles::peek::<StreamHandle>(handle)
                && s.device == device as u32
            {
                sched::abort(s.id, 107_022);
            }
        }
        Ok(())
    };

    aclrtSetStreamFailureMode(stream: usize, mode: u64) = {
        sched::stop_on_failure(resolve(stream, CALL)?.id, mode == 1);
        Ok(())
    };

    aclrtSetStreamOverflowSwitch(stream: usize, _flag: u32) = resolve(stream, CALL).map(drop);

    aclrtGetStreamOverflowSwitch(stream: usize, flag: usize) = {
        resolve(stream, CALL)?;
        give(flag, 0u32, CALL)
    };

    aclrtSetStreamAttribute(stream: usize, _kind: i32, _value: usize) = resolve(stream, CALL).map(drop);

    aclrtGetStreamAvailableNum(count: usize) =
        give(count, 2048u32 - handles::live_of("aclrtStream").len().min(2048) as u32, CALL);
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

calls! {
    aclrtLaunchHostFunc(stream: usize, function: usize, argument: usize) =
        call_host(stream, function, argument, CALL);
}
