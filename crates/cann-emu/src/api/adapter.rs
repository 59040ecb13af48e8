//! Functions that are missing from the published tables but linked by the vendor's PyTorch adapter; found by running it.

/// Functions of this module with their libraries, in all releases.
pub static SYMBOLS: [(&str, &str); 10] = [
    ("MsprofSysCycleTime", "libprofapi.so"),
    ("MsprofGetHashId", "libprofapi.so"),
    ("MsprofReportApi", "libprofapi.so"),
    ("MsprofReportCompactInfo", "libprofapi.so"),
    ("MsprofReportAdditionalInfo", "libprofapi.so"),
    ("halGetDeviceInfo", "libascend_hal.so"),
    ("halGetAPIVersion", "libascend_hal.so"),
    ("rtDevBinaryRegister", "libruntime.so"),
    ("rtFunctionRegister", "libruntime.so"),
    ("rtKernelLaunch", "libruntime.so"),
];

/// A counter in nanoseconds.
#[unsafe(no_mangle)]
pub extern "C" fn emu_MsprofSysCycleTime() -> u64 {
    crate::sched::now_ns()
}

/// FNV-1a of the text.
#[unsafe(no_mangle)]
pub extern "C" fn emu_MsprofGetHashId(text: usize, length: u64) -> u64 {
    (0..length as usize).fold(0xcbf2_9ce4_8422_2325, |hash: u64, i| {
        (hash ^ u64::from(super::take::<u8>(text, i))).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Reports are taken and thrown away.
#[unsafe(no_mangle)]
pub extern "C" fn emu_MsprofReportApi(_aging: u32, _data: usize) -> i32 {
    0
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn emu_MsprofReportCompactInfo(_aging: u32, _data: usize, _length: u32) -> i32 {
    0
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn emu_MsprofReportAdditionalInfo(_aging: u32, _data: usize, _length: u32) -> i32 {
    0
}

/// A property of the driver's list; all are 0 here but the frequency of the counter in MHz.
#[unsafe(no_mangle)]
pub extern "C" fn emu_halGetDeviceInfo(_device: u32, _module: i32, _info: i32, value: usize) -> i32 {
    super::answer(|| super::give(value, 1000i64, "halGetDeviceInfo"))
}

/// The driver's interface version.
#[unsafe(no_mangle)]
pub extern "C" fn emu_halGetAPIVersion(version: usize) -> i32 {
    super::answer(|| super::give(version, 0x7_2316i32, "halGetAPIVersion"))
}

/// Device binaries cannot run here.
#[unsafe(no_mangle)]
pub extern "C" fn emu_rtDevBinaryRegister(_binary: usize, _handle: usize) -> i32 {
    crate::report::unsupported_code("rtDevBinaryRegister")
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn emu_rtFunctionRegister(
    _handle: usize,
    _stub: usize,
    _name: usize,
    _device: usize,
    _mode: u32,
) -> i32 {
    crate::report::unsupported_code("rtFunctionRegister")
}

/// As above.
#[unsafe(no_mangle)]
pub extern "C" fn emu_rtKernelLaunch(
    _stub: usize,
    _blocks: u32,
    _args: usize,
    _size: u32,
    _desc: usize,
    _stream: usize,
) -> i32 {
    crate::report::unsupported_code("rtKernelLaunch")
}
