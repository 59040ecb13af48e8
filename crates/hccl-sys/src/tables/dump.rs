//! libascend_dump.so: dumps.

use std::ffi::{c_char, c_void};

functions! {
    /// libascend_dump.so: dumps.
    AclDump
    acldumpGetExceptionInfoPath(path: *mut c_char, maxLen: usize) -> i32;
    acldumpGetPath(dumpType: i32) -> *mut c_void;
    acldumpRegCallback(fn_0: *mut c_void, flag: i32) -> i32;
    acldumpSaveExceptionInfo
        (fileName userTag: *const c_char, tensors: *const c_void, tensorCount: usize) -> i32;
    acldumpUnregCallback() -> ();
    aclmdlFinalizeDump, aclmdlFinalizeDumpImpl() -> i32;
    aclmdlInitDump, aclmdlInitDumpImpl() -> i32;
    aclmdlSetDump, aclmdlSetDumpImpl(dumpCfgPath: *const c_char) -> i32;
    aclopStartDumpArgs(dumpType: u32, path: *const c_char) -> i32;
    aclopStopDumpArgs(dumpType: u32) -> i32;
}
