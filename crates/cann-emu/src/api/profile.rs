//! Profiling: the order of calls is enforced; what is written is a marker, not the real format.

use crate::handles::{self, Handled};
use crate::report::{self, broken, fail};
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
    broken(&report::PROF_ORDER, 148_047, &format!("{call}: expected {expected} before"))
}

calls! {
    aclprofInit(path: usize, length: u64) = {
        if path == 0 || length == 0 || length > 4096 {
            return Err(fail(100_000, &format!("{CALL}: expected a path of 1 to 4096 bytes, found {length}")));
        }
        // SAFETY: the interface asks for `length` readable bytes.
        let bytes = unsafe { std::slice::from_raw_parts(path as *const u8, length as usize) };
        let folder = std::path::PathBuf::from(String::from_utf8_lossy(bytes).into_owned());
        with(|s| {
            if s.path.is_some() {
                return Err(fail(148_047, &format!("{CALL}: a session exists")));
            }
            s.path = Some(folder);
            Ok(())
        })
    };

    aclprofFinalize() = {
        if with(|s| s.running.is_some()) {
            return order(CALL, "aclprofStop");
        }
        match with(|s| s.path.take()) {
            Some(_) => Ok(()),
            None => order(CALL, "aclprofInit"),
        }
    };

    aclprofCreateConfig(devices: usize, count: u32, _metrics: i32, _events: usize, _types: u64) -> usize = {
        if devices == 0 && count > 0 {
            fail(100_000, &format!("{CALL}: the list of devices is null"));
            return 0;
        }
        handles::make(Config, CALL)
    };

    aclprofDestroyConfig(config: usize) =
        handles::destroy::<Config>(config, CALL, &report::NN_HANDLE, 100_000).map(drop);

    aclprofSetConfig(_kind: i32, config: usize, length: u64) =
        if config == 0 || length == 0 { Err(fail(100_000, &format!("{CALL}: no value"))) } else { Ok(()) };

    aclprofStart(config: usize) = {
        handles::get::<Config>(config, CALL, &report::NN_HANDLE, 100_000)?;
        let Some(folder) = with(|s| s.path.clone()) else { return order(CALL, "aclprofInit") };
        if with(|s| s.running.is_some()) {
            return order(CALL, "aclprofStop of the running session");
        }
        with(|s| s.running = Some(config));
        let name = format!("PROF_000001_{:017}_EMULATOR", crate::sched::now_ns() / 1_000_000);
        let inner = folder.join(name).join("host");
        let written = std::fs::create_dir_all(&inner).and_then(|()| {
            std::fs::write(inner.join("cann_emu.marker"), "written by an emulator: no measurements\n")
        });
        written.map_err(|e| fail(148_047, &format!("{CALL}: {}: {e}", inner.display())))
    };

    aclprofStop(config: usize) =
        match with(|s| s.running.take()) {
            Some(started) if started == config => Ok(()),
            Some(_) => Err(fail(100_000, &format!("{CALL}: another configuration than that of aclprofStart"))),
            None => order(CALL, "aclprofStart"),
        };

    aclprofCreateStamp() -> usize = handles::make(Stamp, CALL);

    aclprofDestroyStamp(stamp: usize) -> () = {
        // The function answers nothing.
        let _ = handles::destroy::<Stamp>(stamp, CALL, &report::NN_HANDLE, 0);
    };

    aclprofSetStampTraceMessage(stamp: usize, _message: usize, _length: u32) =
        handles::get::<Stamp>(stamp, CALL, &report::NN_HANDLE, 100_000).map(drop);

    aclprofMark(stamp: usize) = handles::get::<Stamp>(stamp, CALL, &report::NN_HANDLE, 100_000).map(drop);

    aclprofMarkEx(_message: usize, _length: u64, stream: usize) =
        super::stream::resolve(stream, CALL).map(drop);

    aclprofPush(stamp: usize) = handles::get::<Stamp>(stamp, CALL, &report::NN_HANDLE, 100_000).map(drop);
    aclprofPop() = Ok(());

    aclprofRangeStart(stamp: usize, id: usize) = {
        handles::get::<Stamp>(stamp, CALL, &report::NN_HANDLE, 100_000)?;
        super::give(id, 1u32, CALL)
    };

    aclprofRangeStop(_id: u32) = Ok(());
    aclprofCreateStepInfo() -> usize = handles::make(Stamp, CALL);

    aclprofDestroyStepInfo(info: usize) -> () = {
        // The function answers nothing.
        let _ = handles::destroy::<Stamp>(info, CALL, &report::NN_HANDLE, 0);
    };

    aclprofGetStepTimestamp(info: usize, _tag: i32, stream: usize) = {
        handles::get::<Stamp>(info, CALL, &report::NN_HANDLE, 100_000)?;
        super::stream::resolve(stream, CALL).map(drop)
    };
}
