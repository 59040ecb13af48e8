//! libascendcl.so, libacl_rt.so: process, tensors of the older interface.

use crate::types::*;
use std::ffi::{c_char, c_int, c_void};

functions! {
    /// libascendcl.so, libacl_rt.so: process, tensors of the older interface.
    Acl
    aclAppLog(logLevel: i32, func file: *const c_char, line: u32, fmt: *const c_char; ...) -> ();
    aclAppLogImpl
        (logLevel: i32, func file: *const c_char, line: u32, fmt: *const c_char, args: *mut c_void) -> ();
    aclCreateDataBuffer, aclCreateDataBufferImpl(data: *mut c_void, size: usize) -> *mut c_void;
    aclCreateIntArrayP(hostData: *const c_void, intArray: *mut *mut aclIntArray) -> ();
    aclCreateTensorDesc(dataType: i32, numDims: c_int, dims: *const i64, format: i32) -> *mut c_void;
    aclCreateTensorP(
        shape: *const c_void, deviceAddr: *mut *mut c_void, dataType: i32, tensor: *mut *mut aclTensor) -> ();
    aclDataTypeSize, aclDataTypeSizeImpl(dataType: i32) -> u64;
    aclDestroyDataBuffer, aclDestroyDataBufferImpl(dataBuffer: *const aclDataBuffer) -> i32;
    aclDestroyTensorDesc(desc: *const aclTensorDesc) -> ();
    aclFinalize, aclFinalizeImpl() -> i32;
    aclFinalizeCallbackRegister, aclFinalizeCallbackRegisterImpl
        (type_: i32, cbFunc: aclFinalizeCallbackFunc, userData: *mut c_void) -> i32;
    aclFinalizeCallbackUnRegister, aclFinalizeCallbackUnRegisterImpl
        (type_: i32, cbFunc: aclFinalizeCallbackFunc) -> i32;
    aclFinalizeReference, aclFinalizeReferenceImpl(refCount: *mut u64) -> i32;
    aclFloat16ToFloat, aclFloat16ToFloatImpl(value: u16) -> f32;
    aclFloatToFloat16, aclFloatToFloat16Impl(value: f32) -> u16;
    aclGetCannAttribute, aclGetCannAttributeImpl(cannAttr: i32, value: *mut i32) -> i32;
    aclGetCannAttributeList, aclGetCannAttributeListImpl
        (cannAttrList: *mut *const c_void, num: *mut usize) -> i32;
    aclGetCustomOpLibPath() -> *mut c_void;
    aclGetDataBufferAddr, aclGetDataBufferAddrImpl(dataBuffer: *const aclDataBuffer) -> *mut c_void;
    aclGetDataBufferSize, aclGetDataBufferSizeImpl(dataBuffer: *const aclDataBuffer) -> u32;
    aclGetDataBufferSizeV2, aclGetDataBufferSizeV2Impl(dataBuffer: *const aclDataBuffer) -> u64;
    aclGetDeviceCapability, aclGetDeviceCapabilityImpl
        (deviceId: u32, deviceInfo: i32, value: *mut i64) -> i32;
    aclGetRecentErrMsg, aclGetRecentErrMsgImpl() -> *mut c_void;
    aclGetTensorDescAddress(desc: *const aclTensorDesc) -> *mut c_void;
    aclGetTensorDescByIndex(desc: *mut aclTensorDesc, index: usize) -> *mut c_void;
    aclGetTensorDescDim(desc: *const aclTensorDesc, index: usize) -> i64;
    aclGetTensorDescDimRange(desc: *const aclTensorDesc, index dimRangeNum: usize, dimRange: *mut i64) -> i32;
    aclGetTensorDescDimV2(desc: *const aclTensorDesc, index: usize, dimSize: *mut i64) -> i32;
    aclGetTensorDescElementCount(desc: *const aclTensorDesc) -> u64;
    aclGetTensorDescFormat(desc: *const aclTensorDesc) -> i32;
    aclGetTensorDescName(desc: *mut aclTensorDesc) -> *mut c_void;
    aclGetTensorDescNumDims(desc: *const aclTensorDesc) -> u64;
    aclGetTensorDescSize(desc: *const aclTensorDesc) -> u64;
    aclGetTensorDescType(desc: *const aclTensorDesc) -> i32;
    aclInit, aclInitImpl(configPath: *const c_char) -> i32;
    aclInitCallbackRegister, aclInitCallbackRegisterImpl
        (type_: i32, cbFunc: aclInitCallbackFunc, userData: *mut c_void) -> i32;
    aclInitCallbackUnRegister, aclInitCallbackUnRegisterImpl(type_: i32, cbFunc: aclInitCallbackFunc) -> i32;
    aclRfft1D(
        workspace: *mut c_void, workspaceSize: u64, executor: *mut aclOpExecutor, stream: aclrtStream) -> i32;
    aclSetTensorConst(desc: *mut aclTensorDesc, dataBuffer: *mut c_void, length: usize) -> i32;
    aclSetTensorDescName(desc: *mut aclTensorDesc, name: *const c_char) -> ();
    aclSetTensorDynamicInput(desc: *mut aclTensorDesc, dynamicInputName: *const c_char) -> i32;
    aclSetTensorFormat(desc: *mut aclTensorDesc, format: i32) -> i32;
    aclSetTensorOriginFormat(desc: *mut aclTensorDesc, format: i32) -> i32;
    aclSetTensorOriginShape(desc: *mut aclTensorDesc, numDims: c_int, dims: *const i64) -> i32;
    aclSetTensorPlaceMent(desc: *mut aclTensorDesc, memType: i32) -> i32;
    aclSetTensorShape(desc: *mut aclTensorDesc, numDims: c_int, dims: *const i64) -> i32;
    aclSetTensorShapeRange(desc: *mut aclTensorDesc, dimsCount: usize, fn_2: *mut c_void) -> i32;
    aclSetTensorStorageFormat(desc: *mut aclTensorDesc, format: i32) -> i32;
    aclSetTensorStorageShape(desc: *mut aclTensorDesc, numDims: c_int, dims: *const i64) -> i32;
    aclSetTensorValueRange(desc: *mut aclTensorDesc, valueCount: usize, fn_2: *mut c_void) -> i32;
    aclStft(
        workspace: *mut c_void, workspaceSize: u64, executor: *mut aclOpExecutor, stream: aclrtStream) -> i32;
    aclTransTensorDescFormat
        (srcDesc: *const aclTensorDesc, dstFormat: i32, dstDesc: *mut *mut aclTensorDesc) -> i32;
    aclUpdateDataBuffer, aclUpdateDataBufferImpl
        (dataBuffer: *mut aclDataBuffer, data: *mut c_void, size: usize) -> i32;
    acllogRecord(moduleId level: i32, fmt: *const c_char; ...) -> ();
    acllogVaList(moduleId level: i32, fmt: *const c_char, list: va_list) -> ();
    aclplatformGetDeviceInfo(infoType: i32, value: *mut c_char, maxLen: u32) -> i32;
    aclplatformGetInstructionInfo
        (type_: i32, instruction: *const c_char, value: *mut c_char, maxLen: u32) -> i32;
    aclsysGetCANNVersion, aclsysGetCANNVersionImpl(name: i32, version: *mut aclCANNPackageVersion) -> i32;
    aclsysGetVersionNum, aclsysGetVersionNumImpl(pkgName: *mut c_char, versionNum: *mut i32) -> i32;
    aclsysGetVersionStr, aclsysGetVersionStrImpl(pkgName versionStr: *mut c_char) -> i32;
}
