//! Errors, modes, options.

use super::{context::need, give, text};
use crate::report::{self, fail};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

static SATURATION: AtomicI32 = AtomicI32::new(1);
static TIMEOUT: AtomicU64 = AtomicU64::new(1_836);
static OPTIONS: Mutex<Option<HashMap<(u64, i32), i64>>> = Mutex::new(None);

calls! {
    aclGetRecentErrMsg() -> usize = report::recent_text();
    aclrtGetLastError(_level: i32) -> i32 = report::last_error(true);
    aclrtPeekAtLastError(_level: i32) -> i32 = report::last_error(false);
    aclrtSetExceptionInfoCallback(_callback: usize) = Ok(());

    aclrtSetOpExecuteTimeOut(seconds: u32) = {
        TIMEOUT.store(u64::from(seconds), Ordering::Relaxed);
        Ok(())
    };

    aclrtSetOpExecuteTimeOutWithMs(_ms: u32) = Ok(());
    aclrtSetOpExecuteTimeOutV2(timeout: u64, actual: usize) = give(actual, timeout, CALL);
    aclrtSetOpWaitTimeout(_seconds: u32) = Ok(());

    aclrtSetDeviceSatMode(mode: i32) = {
        if !(0..=1).contains(&mode) {
            return Err(fail(107_000, &format!("{CALL}: expected 0 or 1, found {mode}")));
        }
        SATURATION.store(mode, Ordering::Relaxed);
        Ok(())
    };

    aclrtGetDeviceSatMode(mode: usize) = give(mode, SATURATION.load(Ordering::Relaxed), CALL);
}

fn set_option(scope: u64, option: i32, value: i64, call: &str) -> Result<(), i32> {
    if !(0..=2).contains(&option) {
        return Err(fail(107_000, &format!("{call}: expected an option of 0 to 2, found {option}")));
    }
    OPTIONS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default()
        .insert((scope, option), value);
    Ok(())
}

/// Whether determinism is asked for: by the process's option and by that of this thread's context.
pub(crate) fn is_deterministic() -> bool {
    let held = OPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let on = |scope| held.as_ref().and_then(|o| o.get(&(scope, 0))).is_some_and(|v| *v > 0);
    on(0) && super::current().is_some_and(|(_, context)| on(context))
}

fn option(scope: u64, option: i32, at: usize, call: &str) -> Result<(), i32> {
    let found = OPTIONS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default()
        .get(&(scope, option))
        .copied();
    match found {
        Some(value) => give(at, value, call),
        None => Err(fail(107_021, &format!("{call}: option {option} was not set"))),
    }
}

calls! {
    aclrtSetSysParamOpt(which: i32, value: i64) = set_option(0, which, value, CALL);
    aclrtGetSysParamOpt(which: i32, value: usize) = option(0, which, value, CALL);

    aclrtCtxSetSysParamOpt(which: i32, value: i64) = {
        let (_, context) = need(CALL)?;
        set_option(context, which, value, CALL)
    };

    aclrtCtxGetSysParamOpt(which: i32, value: usize) = {
        let (_, context) = need(CALL)?;
        option(context, which, value, CALL)
    };

    aclrtResetOverflowStatus(stream: usize) = super::stream::resolve(stream, CALL).map(drop);

    /// Log lines of the program under test are its own business; they are checked for being strings, and kept in the trace.
    aclAppLog(level: i32, func: usize, _file: usize, line: u32, format: usize) -> () = {
        if std::env::var_os("CANN_EMU_VERBOSE").is_some() {
            report::absent(&format!("log {level} {}:{line} {}", text(func), text(format)));
        }
    };

    aclmdlInitDump() = Ok(());
    aclmdlSetDump(_path: usize) = Ok(());
    aclmdlFinalizeDump() = Ok(());
    aclrtGetMemUceInfo(_device: i32, _array: usize, _size: u64, found: usize) = give(found, 0u64, CALL);
    aclrtMemUceRepair(_device: i32, _array: usize, _size: u64) = Ok(());
}
