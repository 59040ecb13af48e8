//! Errors, modes, options.

use super::{answer, context::need, give, text};
use crate::report::{self, fail};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

static SATURATION: AtomicI32 = AtomicI32::new(1);
static TIMEOUT: AtomicU64 = AtomicU64::new(1_836);
static OPTIONS: Mutex<Option<HashMap<(u64, i32), i64>>> = Mutex::new(None);

pub(crate) fn aclGetRecentErrMsg() -> usize {
    report::recent_text()
}

pub(crate) fn aclrtGetLastError(_level: i32) -> i32 {
    report::last_error(true)
}

pub(crate) fn aclrtPeekAtLastError(_level: i32) -> i32 {
    report::last_error(false)
}

pub(crate) fn aclrtSetExceptionInfoCallback(_callback: usize) -> i32 {
    0
}

pub(crate) fn aclrtSetOpExecuteTimeOut(seconds: u32) -> i32 {
    TIMEOUT.store(u64::from(seconds), Ordering::Relaxed);
    0
}

pub(crate) fn aclrtSetOpExecuteTimeOutWithMs(_ms: u32) -> i32 {
    0
}

pub(crate) fn aclrtSetOpExecuteTimeOutV2(timeout: u64, actual: usize) -> i32 {
    answer(|| give(actual, timeout, "aclrtSetOpExecuteTimeOutV2"))
}

pub(crate) fn aclrtSetOpWaitTimeout(_seconds: u32) -> i32 {
    0
}

pub(crate) fn aclrtSetDeviceSatMode(mode: i32) -> i32 {
    answer(|| {
        if !(0..=1).contains(&mode) {
            return Err(fail(107_000, &format!("aclrtSetDeviceSatMode: expected 0 or 1, found {mode}")));
        }
        SATURATION.store(mode, Ordering::Relaxed);
        Ok(())
    })
}

pub(crate) fn aclrtGetDeviceSatMode(mode: usize) -> i32 {
    answer(|| give(mode, SATURATION.load(Ordering::Relaxed), "aclrtGetDeviceSatMode"))
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

pub(crate) fn aclrtSetSysParamOpt(which: i32, value: i64) -> i32 {
    answer(|| set_option(0, which, value, "aclrtSetSysParamOpt"))
}

pub(crate) fn aclrtGetSysParamOpt(which: i32, value: usize) -> i32 {
    answer(|| option(0, which, value, "aclrtGetSysParamOpt"))
}

pub(crate) fn aclrtCtxSetSysParamOpt(which: i32, value: i64) -> i32 {
    answer(|| {
        let (_, context) = need("aclrtCtxSetSysParamOpt")?;
        set_option(context, which, value, "aclrtCtxSetSysParamOpt")
    })
}

pub(crate) fn aclrtCtxGetSysParamOpt(which: i32, value: usize) -> i32 {
    answer(|| {
        let (_, context) = need("aclrtCtxGetSysParamOpt")?;
        option(context, which, value, "aclrtCtxGetSysParamOpt")
    })
}

pub(crate) fn aclrtResetOverflowStatus(stream: usize) -> i32 {
    answer(|| super::stream::resolve(stream, "aclrtResetOverflowStatus").map(drop))
}

/// Log lines of the program under test are its own business; they are checked for being strings, and kept in the trace.
pub(crate) fn aclAppLog(level: i32, func: usize, _file: usize, line: u32, format: usize) {
    if std::env::var_os("CANN_EMU_VERBOSE").is_some() {
        report::absent(&format!("log {level} {}:{line} {}", text(func), text(format)));
    }
}

pub(crate) fn aclmdlInitDump() -> i32 {
    0
}

pub(crate) fn aclmdlSetDump(_path: usize) -> i32 {
    0
}

pub(crate) fn aclmdlFinalizeDump() -> i32 {
    0
}

pub(crate) fn aclrtGetMemUceInfo(_device: i32, _array: usize, _size: u64, found: usize) -> i32 {
    answer(|| give(found, 0u64, "aclrtGetMemUceInfo"))
}

pub(crate) fn aclrtMemUceRepair(_device: i32, _array: usize, _size: u64) -> i32 {
    0
}
