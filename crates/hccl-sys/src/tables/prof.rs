//! libmsprofiler.so: profiling.

use crate::types::*;
use std::ffi::{c_char, c_void};

functions! {
    /// libmsprofiler.so: profiling.
    AclProf
    aclprofCreateConfig(
        deviceIdList: *mut u32, deviceNums: u32, aicoreMetrics: i32, aicoreEvents: *const c_void,
        dataTypeConfig: u64) -> *mut c_void;
    aclprofCreateStamp() -> *mut c_void;
    aclprofCreateStepInfo() -> *mut c_void;
    aclprofCreateSubscribeConfig(timeInfoSwitch: i8, aicoreMetrics: i32, fd: *mut c_void) -> *mut c_void;
    aclprofDestroyConfig(profilerConfig: *const aclprofConfig) -> i32;
    aclprofDestroyStamp(stamp: *mut c_void) -> ();
    aclprofDestroyStepInfo(stepinfo: *mut aclprofStepInfo) -> ();
    aclprofDestroySubscribeConfig(profSubscribeConfig: *const c_void) -> i32;
    aclprofFinalize() -> i32;
    aclprofGetModelId(opInfo: *const c_void, opInfoLen: usize, index: u32) -> u64;
    aclprofGetOpAttriValue(opInfo: *const c_void, opInfoLen: usize, index: u32, attri: i32) -> *mut c_void;
    aclprofGetOpDescSize(opDescSize: *mut usize) -> i32;
    aclprofGetOpDuration(opInfo: *const c_void, opInfoLen: usize, index: u32) -> u64;
    aclprofGetOpEnd(opInfo: *const c_void, opInfoLen: usize, index: u32) -> u64;
    aclprofGetOpFlag(opInfo: *const c_void, opInfoLen: usize, index: u32) -> i32;
    aclprofGetOpName
        (opInfo: *const c_void, opInfoLen: usize, index: u32, opName: *mut c_char, opNameLen: usize) -> i32;
    aclprofGetOpNameLen(opInfo: *const c_void, opInfoLen: usize, index: u32, opNameLen: *mut usize) -> i32;
    aclprofGetOpNum(opInfo: *const c_void, opInfoLen: usize, opNumber: *mut u32) -> i32;
    aclprofGetOpStart(opInfo: *const c_void, opInfoLen: usize, index: u32) -> u64;
    aclprofGetOpType
        (opInfo: *const c_void, opInfoLen: usize, index: u32, opType: *mut c_char, opTypeLen: usize) -> i32;
    aclprofGetOpTypeLen(opInfo: *const c_void, opInfoLen: usize, index: u32, opTypeLen: *mut usize) -> i32;
    aclprofGetStepTimestamp(stepInfo: *mut aclprofStepInfo, tag: i32, stream: aclrtStream) -> i32;
    aclprofInit(profilerResultPath: *const c_char, length: usize) -> i32;
    aclprofMark(stamp: *mut c_void) -> i32;
    aclprofMarkEx(msg: *const c_char, msgLen: usize, stream: aclrtStream) -> i32;
    aclprofModelSubscribe(modelId: u32, profSubscribeConfig: *const c_void) -> i32;
    aclprofModelUnSubscribe(modelId: u32) -> i32;
    aclprofPop() -> i32;
    aclprofPush(stamp: *mut c_void) -> i32;
    aclprofRangePop() -> i32;
    aclprofRangePushEx(attr: *mut c_void) -> i32;
    aclprofRangeStart(stamp: *mut c_void, rangeId: *mut u32) -> i32;
    aclprofRangeStop(rangeId: u32) -> i32;
    aclprofSetConfig(configType: i32, config: *const c_char, configLength: usize) -> i32;
    aclprofSetStampTraceMessage(stamp: *mut c_void, msg: *const c_char, msgLen: u32) -> i32;
    aclprofStart(profilerConfig: *const aclprofConfig) -> i32;
    aclprofStop(profilerConfig: *const aclprofConfig) -> i32;
    aclprofStr2Id(message: *const c_char) -> u64;
}
