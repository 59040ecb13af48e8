//! Process, versions, capabilities.

use super::{context, give, give_text, text};
use crate::handles;
use crate::knobs::{Release, knobs};
use crate::memory;
use crate::report::{self, fail};
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static STARTED: AtomicU64 = AtomicU64::new(0);
static FINALISED: AtomicBool = AtomicBool::new(false);

/// What an end without a beginning is answered.
fn not_started(call: &str) -> i32 {
    if FINALISED.load(Ordering::Relaxed) {
        return fail(100_037, &format!("{call}: finalised before"));
    }
    fail(100_001, &format!("{call} without aclInit"))
}

/// The last user has finished.
fn finish() {
    FINALISED.store(true, Ordering::Relaxed);
    report_leaks();
    context::end_all();
}

calls! {
    aclInit(config: usize) = {
        if let Some(code) = report::fault("lost", CALL) {
            return Err(fail(code.parse().unwrap_or(507_008), &format!("{CALL}: no device (injected)")));
        }
        let path = text(config);
        if !path.is_empty() && !std::path::Path::new(&path).is_file() {
            return Err(fail(100_003, &format!("{CALL}: no file {path}")));
        }
        if STARTED.fetch_add(1, Ordering::Relaxed) > 0 {
            return Err(fail(100_002, "aclInit was called before"));
        }
        Ok(())
    };

    aclFinalize() = {
        if STARTED.swap(0, Ordering::Relaxed) == 0 {
            return Err(not_started(CALL));
        }
        finish();
        Ok(())
    };

    aclFinalizeReference(count: usize) = {
        let before = STARTED.load(Ordering::Relaxed);
        if before == 0 {
            return Err(not_started(CALL));
        }
        STARTED.store(before - 1, Ordering::Relaxed);
        if before == 1 {
            finish();
        }
        if count == 0 { Ok(()) } else { give(count, before - 1, CALL) }
    };
}

/// What is still held is written to the report; a program at its end is not stopped for it.
fn report_leaks() {
    for (_, made) in handles::live_of("aclOpExecutor") {
        report::note(&report::NN_LEAK, &format!("an executor of {made} never ran"));
    }
    let held = [
        (&report::RES_LEAK, &["aclrtStream", "aclrtEvent", "HcclComm"][..]),
        (
            &report::NN_KEPT,
            &[
                "aclTensor",
                "aclScalar",
                "aclIntArray",
                "aclFloatArray",
                "aclBoolArray",
                "aclTensorList",
                "aclScalarList",
            ],
        ),
    ];
    for (rule, kinds) in held {
        for kind in kinds {
            let mut left = handles::live_of(kind);
            left.retain(|(handle, _)| !context::is_default_stream(*handle));
            if let Some((_, made)) = left.first() {
                report::note(rule, &format!("{} {kind} left, the first made by {made}", left.len()));
            }
        }
    }
    let left = memory::leaks();
    if let Some(first) = left.first() {
        report::note(&report::RES_LEAK, &format!("{} device allocations left, one of {first}", left.len()));
    }
}

calls! {
    aclrtGetVersion(major: usize, minor: usize, patch: usize) = {
        let version = if knobs().release == Release::R81 { 13 } else { 17 };
        give(major, 1i32, CALL)?;
        give(minor, version, CALL)?;
        give(patch, 0i32, CALL)
    };
}

fn version_text() -> &'static str {
    if knobs().release == Release::R81 { "8.1.RC1" } else { "9.1.0" }
}

calls! {
    /// `aclCANNPackageVersion`: texts of 128, 64, 64, 64, 64 and 128 bytes.
    aclsysGetCANNVersion(_package: i32, version: usize) = {
        if version == 0 {
            return Err(fail(100_000, &format!("{CALL}: version is null")));
        }
        // SAFETY: the struct has 512 bytes by the interface.
        unsafe { std::ptr::write_bytes(version as *mut u8, 0, 512) };
        let parts: Vec<&str> = version_text().split('.').collect();
        give_text(version, 128, version_text());
        for (i, part) in parts.iter().enumerate().take(3) {
            give_text(version + 128 + 64 * i, 64, part);
        }
        Ok(())
    };

    aclsysGetVersionStr(_package: usize, version: usize) = {
        give_text(version, 64, version_text());
        Ok(())
    };

    aclrtGetSocName() -> usize = {
        static NAME: OnceLock<CString> = OnceLock::new();
        NAME.get_or_init(|| CString::new(knobs().soc.as_str()).unwrap_or_default()).as_ptr() as usize
    };

    aclrtGetRunMode(mode: usize) = give(mode, 1i32, CALL);
    aclrtQueryDeviceStatus(_device: i32, status: usize) = give(status, 0i32, CALL);

    aclGetDeviceCapability(_device: u32, which: i32, value: usize) = {
        let found: i64 = match which {
            0 => 20,
            1 => 40,
            2 => 192 << 20,
            other => return Err(fail(100_000, &format!("{CALL}: no property {other}"))),
        };
        give(value, found, CALL)
    };

    aclrtGetDeviceInfo(_device: u32, which: i32, value: usize) = {
        // Cores of both kinds, memory, cache.
        let found: i64 = match which {
            101 | 102 => 20,
            201 => 40,
            301 => knobs().hbm_bytes as i64,
            302 => 192 << 20,
            _ => 0,
        };
        give(value, found, CALL)
    };

    aclGetCannAttributeList(list: usize, count: usize) = {
        static ATTRIBUTES: [i32; 3] = [0, 1, 2];
        give(list, ATTRIBUTES.as_ptr() as usize, CALL)?;
        give(count, ATTRIBUTES.len(), CALL)
    };

    aclGetCannAttribute(which: i32, value: usize) =
        match which {
            0..=2 => give(value, 1i32, CALL),
            other => Err(fail(100_000, &format!("{CALL}: no attribute {other}"))),
        };

    /// Four rates, then a pointer that must be null.
    aclrtGetDeviceUtilizationRate(_device: i32, info: usize) = give(info, [0i32, 0, 0, 0], CALL);

    aclrtSetTsDevice(_device: i32) = Ok(());
    aclrtGetLogicDevIdByUserDevId(device: i32, logic: usize) = give(logic, device, CALL);
    aclrtGetPhyDevIdByLogicDevId(device: i32, physical: usize) = give(physical, device, CALL);

    aclrtGetDeviceResLimit(_device: i32, which: i32, value: usize) =
        give(value, if which == 0 { 20u32 } else { 40 }, CALL);

    aclrtGetStreamResLimit(_stream: usize, which: i32, value: usize) =
        give(value, if which == 0 { 20u32 } else { 40 }, CALL);

    aclrtGetResInCurrentThread(which: i32, value: usize) =
        give(value, if which == 0 { 20u32 } else { 40 }, CALL);

    aclrtDeviceGetBareTgid(pid: usize) = give(pid, std::process::id() as i32, CALL);

    /// 16 bytes, different for each device.
    aclrtDeviceGetUuid(device: i32, uuid: usize) =
        give(uuid, [0x4d53_0000_u64 + device as u64, 0x656d_7531], CALL);

    aclnnInit(_config: usize) = Ok(());
    aclnnFinalize() = Ok(());
}
