//! Process, versions, capabilities.

use super::{answer, context, give, give_text, text};
use crate::handles;
use crate::knobs::{Release, knobs};
use crate::memory;
use crate::report::{self, fail};
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static STARTED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn aclInit(config: usize) -> i32 {
    answer(|| {
        if let Some(code) = report::fault("lost", "aclInit") {
            return Err(fail(code.parse().unwrap_or(507_008), "aclInit: no device (injected)"));
        }
        let path = text(config);
        if !path.is_empty() && !std::path::Path::new(&path).is_file() {
            return Err(fail(100_003, &format!("aclInit: no file {path}")));
        }
        if STARTED.fetch_add(1, Ordering::Relaxed) > 0 {
            return Err(fail(100_002, "aclInit was called before"));
        }
        Ok(())
    })
}

pub(crate) fn aclFinalize() -> i32 {
    answer(|| {
        if STARTED.swap(0, Ordering::Relaxed) == 0 {
            return Err(fail(100_001, "aclFinalize without aclInit"));
        }
        report_leaks();
        context::end_all();
        Ok(())
    })
}

pub(crate) fn aclFinalizeReference(count: usize) -> i32 {
    answer(|| {
        let before = STARTED.load(Ordering::Relaxed);
        if before == 0 {
            return Err(fail(100_001, "aclFinalizeReference without aclInit"));
        }
        STARTED.store(before - 1, Ordering::Relaxed);
        if before == 1 {
            report_leaks();
            context::end_all();
        }
        if count == 0 { Ok(()) } else { give(count, before - 1, "aclFinalizeReference") }
    })
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

pub(crate) fn aclrtGetVersion(major: usize, minor: usize, patch: usize) -> i32 {
    answer(|| {
        let version = if knobs().release == Release::R81 { 13 } else { 17 };
        give(major, 1i32, "aclrtGetVersion")?;
        give(minor, version, "aclrtGetVersion")?;
        give(patch, 0i32, "aclrtGetVersion")
    })
}

fn version_text() -> &'static str {
    if knobs().release == Release::R81 { "8.1.RC1" } else { "9.1.0" }
}

/// `aclCANNPackageVersion`: texts of 128, 64, 64, 64, 64 and 128 bytes.
pub(crate) fn aclsysGetCANNVersion(_package: i32, version: usize) -> i32 {
    answer(|| {
        if version == 0 {
            return Err(fail(100_000, "aclsysGetCANNVersion: version is null"));
        }
        // SAFETY: the struct has 512 bytes by the interface.
        unsafe { std::ptr::write_bytes(version as *mut u8, 0, 512) };
        let parts: Vec<&str> = version_text().split('.').collect();
        give_text(version, 128, version_text());
        for (i, part) in parts.iter().enumerate().take(3) {
            give_text(version + 128 + 64 * i, 64, part);
        }
        Ok(())
    })
}

pub(crate) fn aclsysGetVersionStr(_package: usize, version: usize) -> i32 {
    give_text(version, 64, version_text());
    0
}

pub(crate) fn aclrtGetSocName() -> usize {
    static NAME: OnceLock<CString> = OnceLock::new();
    NAME.get_or_init(|| CString::new(knobs().soc.as_str()).unwrap_or_default()).as_ptr() as usize
}

pub(crate) fn aclrtGetRunMode(mode: usize) -> i32 {
    answer(|| give(mode, 1i32, "aclrtGetRunMode"))
}

pub(crate) fn aclrtQueryDeviceStatus(_device: i32, status: usize) -> i32 {
    answer(|| give(status, 0i32, "aclrtQueryDeviceStatus"))
}

pub(crate) fn aclGetDeviceCapability(_device: u32, which: i32, value: usize) -> i32 {
    answer(|| {
        let found: i64 = match which {
            0 => 20,
            1 => 40,
            2 => 192 << 20,
            other => return Err(fail(100_000, &format!("aclGetDeviceCapability: no property {other}"))),
        };
        give(value, found, "aclGetDeviceCapability")
    })
}

pub(crate) fn aclrtGetDeviceInfo(_device: u32, which: i32, value: usize) -> i32 {
    answer(|| {
        // Cores of both kinds, memory, cache.
        let found: i64 = match which {
            101 | 102 => 20,
            201 => 40,
            301 => knobs().hbm_bytes as i64,
            302 => 192 << 20,
            _ => 0,
        };
        give(value, found, "aclrtGetDeviceInfo")
    })
}

pub(crate) fn aclGetCannAttributeList(list: usize, count: usize) -> i32 {
    static ATTRIBUTES: [i32; 3] = [0, 1, 2];
    answer(|| {
        give(list, ATTRIBUTES.as_ptr() as usize, "aclGetCannAttributeList")?;
        give(count, ATTRIBUTES.len(), "aclGetCannAttributeList")
    })
}

pub(crate) fn aclGetCannAttribute(which: i32, value: usize) -> i32 {
    answer(|| match which {
        0..=2 => give(value, 1i32, "aclGetCannAttribute"),
        other => Err(fail(100_000, &format!("aclGetCannAttribute: no attribute {other}"))),
    })
}

/// Four rates, then a pointer that must be null.
pub(crate) fn aclrtGetDeviceUtilizationRate(_device: i32, info: usize) -> i32 {
    answer(|| give(info, [0i32, 0, 0, 0], "aclrtGetDeviceUtilizationRate"))
}

pub(crate) fn aclrtSetTsDevice(_device: i32) -> i32 {
    0
}

pub(crate) fn aclrtGetLogicDevIdByUserDevId(device: i32, logic: usize) -> i32 {
    answer(|| give(logic, device, "aclrtGetLogicDevIdByUserDevId"))
}

pub(crate) fn aclrtGetPhyDevIdByLogicDevId(device: i32, physical: usize) -> i32 {
    answer(|| give(physical, device, "aclrtGetPhyDevIdByLogicDevId"))
}

pub(crate) fn aclrtGetDeviceResLimit(_device: i32, which: i32, value: usize) -> i32 {
    answer(|| give(value, if which == 0 { 20u32 } else { 40 }, "aclrtGetDeviceResLimit"))
}

pub(crate) fn aclrtGetStreamResLimit(_stream: usize, which: i32, value: usize) -> i32 {
    answer(|| give(value, if which == 0 { 20u32 } else { 40 }, "aclrtGetStreamResLimit"))
}

pub(crate) fn aclrtGetResInCurrentThread(which: i32, value: usize) -> i32 {
    answer(|| give(value, if which == 0 { 20u32 } else { 40 }, "aclrtGetResInCurrentThread"))
}

pub(crate) fn aclrtDeviceGetBareTgid(pid: usize) -> i32 {
    answer(|| give(pid, std::process::id() as i32, "aclrtDeviceGetBareTgid"))
}

/// 16 bytes, different for each device.
pub(crate) fn aclrtDeviceGetUuid(device: i32, uuid: usize) -> i32 {
    answer(|| give(uuid, [0x4d53_0000_u64 + device as u64, 0x656d_7531], "aclrtDeviceGetUuid"))
}

pub(crate) fn aclnnInit(_config: usize) -> i32 {
    0
}

pub(crate) fn aclnnFinalize() -> i32 {
    0
}
