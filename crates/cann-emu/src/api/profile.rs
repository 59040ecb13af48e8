//! Profiling: the order of calls is enforced; what is written is a marker, not the real format.

use super::answer;
use crate::handles::{self, Handled};
use crate::report::{self, fail, violation};
use std::sync::{Mutex, PoisonError};

#[derive(Debug)]
struct Config;
impl Handled for Config {
    const NAME: &'static str = "aclprofConfig";
}
#[derive(Debug)]
struct Stamp;
impl Handled for Stamp {
    const NAME: &'static str = "aclprof stamp";
}

#[derive(Default)]
struct Session {
    path: Option<std::path::PathBuf>,
    running: Option<usize>,
}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

fn with<R>(f: impl FnOnce(&mut Session) -> R) -> R {
    f(SESSION.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

fn order(call: &str, expected: &str) -> Result<(), i32> {
    violation(&report::PROF_ORDER, 148_047, &format!("{call}: expected {expected} before"));
    Err(148_047)
}

pub(crate) fn aclprofInit(path: usize, length: u64) -> i32 {
    answer(|| {
        if path == 0 || length == 0 || length > 4096 {
            return Err(fail(
                100_000,
                &format!("aclprofInit: expected a path of 1 to 4096 bytes, found {length}"),
            ));
        }
        // SAFETY: the interface asks for `length` readable bytes.
        let bytes = unsafe { std::slice::from_raw_parts(path as *const u8, length as usize) };
        let folder = std::path::PathBuf::from(String::from_utf8_lossy(bytes).into_owned());
        with(|s| {
            if s.path.is_some() {
                return Err(fail(148_047, "aclprofInit: a session exists"));
            }
            s.path = Some(folder);
            Ok(())
        })
    })
}

pub(crate) fn aclprofFinalize() -> i32 {
    answer(|| {
        if with(|s| s.running.is_some()) {
            return order("aclprofFinalize", "aclprofStop");
        }
        match with(|s| s.path.take()) {
            Some(_) => Ok(()),
            None => order("aclprofFinalize", "aclprofInit"),
        }
    })
}

pub(crate) fn aclprofCreateConfig(
    devices: usize,
    count: u32,
    _metrics: i32,
    _events: usize,
    _types: u64,
) -> usize {
    if devices == 0 && count > 0 {
        fail(100_000, "aclprofCreateConfig: the list of devices is null");
        return 0;
    }
    handles::make(Config, "aclprofCreateConfig")
}

pub(crate) fn aclprofDestroyConfig(config: usize) -> i32 {
    answer(|| {
        handles::destroy::<Config>(config, "aclprofDestroyConfig", &report::NN_HANDLE, 100_000).map(drop)
    })
}

pub(crate) fn aclprofSetConfig(_kind: i32, config: usize, length: u64) -> i32 {
    if config == 0 || length == 0 { fail(100_000, "aclprofSetConfig: no value") } else { 0 }
}

pub(crate) fn aclprofStart(config: usize) -> i32 {
    answer(|| {
        handles::get::<Config>(config, "aclprofStart", &report::NN_HANDLE, 100_000)?;
        let Some(folder) = with(|s| s.path.clone()) else { return order("aclprofStart", "aclprofInit") };
        if with(|s| s.running.is_some()) {
            return order("aclprofStart", "aclprofStop of the running session");
        }
        with(|s| s.running = Some(config));
        let name = format!("PROF_000001_{:017}_EMULATOR", crate::sched::now_ns() / 1_000_000);
        let inner = folder.join(name).join("host");
        let written = std::fs::create_dir_all(&inner).and_then(|()| {
            std::fs::write(inner.join("cann_emu.marker"), "written by an emulator: no measurements\n")
        });
        written.map_err(|e| fail(148_047, &format!("aclprofStart: {}: {e}", inner.display())))
    })
}

pub(crate) fn aclprofStop(config: usize) -> i32 {
    answer(|| match with(|s| s.running.take()) {
        Some(started) if started == config => Ok(()),
        Some(_) => Err(fail(100_000, "aclprofStop: another configuration than that of aclprofStart")),
        None => order("aclprofStop", "aclprofStart"),
    })
}

pub(crate) fn aclprofCreateStamp() -> usize {
    handles::make(Stamp, "aclprofCreateStamp")
}

pub(crate) fn aclprofDestroyStamp(stamp: usize) {
    // The function answers nothing.
    let _ = handles::destroy::<Stamp>(stamp, "aclprofDestroyStamp", &report::NN_HANDLE, 0);
}

pub(crate) fn aclprofSetStampTraceMessage(stamp: usize, _message: usize, _length: u32) -> i32 {
    answer(|| {
        handles::get::<Stamp>(stamp, "aclprofSetStampTraceMessage", &report::NN_HANDLE, 100_000).map(drop)
    })
}

pub(crate) fn aclprofMark(stamp: usize) -> i32 {
    answer(|| handles::get::<Stamp>(stamp, "aclprofMark", &report::NN_HANDLE, 100_000).map(drop))
}

pub(crate) fn aclprofMarkEx(_message: usize, _length: u64, stream: usize) -> i32 {
    answer(|| super::stream::resolve(stream, "aclprofMarkEx").map(drop))
}

pub(crate) fn aclprofPush(stamp: usize) -> i32 {
    answer(|| handles::get::<Stamp>(stamp, "aclprofPush", &report::NN_HANDLE, 100_000).map(drop))
}

pub(crate) fn aclprofPop() -> i32 {
    0
}

pub(crate) fn aclprofRangeStart(stamp: usize, id: usize) -> i32 {
    answer(|| {
        handles::get::<Stamp>(stamp, "aclprofRangeStart", &report::NN_HANDLE, 100_000)?;
        super::give(id, 1u32, "aclprofRangeStart")
    })
}

pub(crate) fn aclprofRangeStop(_id: u32) -> i32 {
    0
}

pub(crate) fn aclprofCreateStepInfo() -> usize {
    handles::make(Stamp, "aclprofCreateStepInfo")
}

pub(crate) fn aclprofDestroyStepInfo(info: usize) {
    // The function answers nothing.
    let _ = handles::destroy::<Stamp>(info, "aclprofDestroyStepInfo", &report::NN_HANDLE, 0);
}

pub(crate) fn aclprofGetStepTimestamp(info: usize, _tag: i32, stream: usize) -> i32 {
    answer(|| {
        handles::get::<Stamp>(info, "aclprofGetStepTimestamp", &report::NN_HANDLE, 100_000)?;
        super::stream::resolve(stream, "aclprofGetStepTimestamp").map(drop)
    })
}
