//! libascendcl.so, libacl_rt.so: devices, streams, events, memory.

use crate::types::*;
use std::ffi::{c_char, c_int, c_void};

functions! {
    /// libascendcl.so, libacl_rt.so: devices, streams, events, memory.
    AclRuntime
    aclrtActiveStream, aclrtActiveStreamImpl(activeStream stream: aclrtStream) -> i32;
    aclrtAllocBuf, aclrtAllocBufImpl(buf: *mut aclrtMbuf, size: usize) -> i32;
    aclrtAllocatorCreateDesc, aclrtAllocatorCreateDescImpl() -> *mut c_void;
    aclrtAllocatorDestroyDesc, aclrtAllocatorDestroyDescImpl(allocatorDesc: aclrtAllocatorDesc) -> i32;
    aclrtAllocatorGetByStream, aclrtAllocatorGetByStreamImpl(
        stream: aclrtStream, allocatorDesc: *mut aclrtAllocatorDesc, allocator: *mut aclrtAllocator,
        allocFunc: *mut aclrtAllocatorAllocFunc, freeFunc: *mut aclrtAllocatorFreeFunc,
        allocAdviseFunc: *mut aclrtAllocatorAllocAdviseFunc,
        getAddrFromBlockFunc: *mut aclrtAllocatorGetAddrFromBlockFunc) -> i32;
    aclrtAllocatorRegister, aclrtAllocatorRegisterImpl
        (stream: aclrtStream, allocatorDesc: aclrtAllocatorDesc) -> i32;
    aclrtAllocatorSetAllocAdviseFuncToDesc, aclrtAllocatorSetAllocAdviseFuncToDescImpl
        (allocatorDesc: aclrtAllocatorDesc, func: aclrtAllocatorAllocAdviseFunc) -> i32;
    aclrtAllocatorSetAllocFuncToDesc, aclrtAllocatorSetAllocFuncToDescImpl
        (allocatorDesc: aclrtAllocatorDesc, func: aclrtAllocatorAllocFunc) -> i32;
    aclrtAllocatorSetFreeFuncToDesc, aclrtAllocatorSetFreeFuncToDescImpl
        (allocatorDesc: aclrtAllocatorDesc, func: aclrtAllocatorFreeFunc) -> i32;
    aclrtAllocatorSetGetAddrFromBlockFuncToDesc, aclrtAllocatorSetGetAddrFromBlockFuncToDescImpl
        (allocatorDesc: aclrtAllocatorDesc, func: aclrtAllocatorGetAddrFromBlockFunc) -> i32;
    aclrtAllocatorSetObjToDesc, aclrtAllocatorSetObjToDescImpl
        (allocatorDesc: aclrtAllocatorDesc, allocator: aclrtAllocator) -> i32;
    aclrtAllocatorUnregister, aclrtAllocatorUnregisterImpl(stream: aclrtStream) -> i32;
    aclrtAppendBufChain, aclrtAppendBufChainImpl(headBuf buf: aclrtMbuf) -> i32;
    aclrtBinaryGetDevAddress, aclrtBinaryGetDevAddressImpl
        (binHandle: aclrtBinHandle, binAddr: *mut *mut c_void, binSize: *mut usize) -> i32;
    aclrtBinaryGetFunction, aclrtBinaryGetFunctionImpl
        (binHandle: aclrtBinHandle, kernelName: *const c_char, funcHandle: *mut aclrtFuncHandle) -> i32;
    aclrtBinaryGetFunctionByEntry, aclrtBinaryGetFunctionByEntryImpl
        (binHandle: aclrtBinHandle, funcEntry: u64, funcHandle: *mut aclrtFuncHandle) -> i32;
    aclrtBinaryGetGlobal
        (binHandle: aclrtBinHandle, name: *const c_char, dptr: *mut *mut c_void, size: *mut usize) -> i32;
    aclrtBinaryLoad, aclrtBinaryLoadImpl(binary: aclrtBinary, binHandle: *mut aclrtBinHandle) -> i32;
    aclrtBinaryLoadFromData, aclrtBinaryLoadFromDataImpl
        (data: *const c_void, length: usize, options: *const c_void, binHandle: *mut aclrtBinHandle) -> i32;
    aclrtBinaryLoadFromFile, aclrtBinaryLoadFromFileImpl
        (binPath: *const c_char, options: *mut c_void, binHandle: *mut aclrtBinHandle) -> i32;
    aclrtBinarySetExceptionCallback
        (binHandle: aclrtBinHandle, callback: aclrtOpExceptionCallback, userData: *mut c_void) -> i32;
    aclrtBinaryUnLoad, aclrtBinaryUnLoadImpl(binHandle: aclrtBinHandle) -> i32;
    aclrtCacheLastTaskExtendInfo(extendInfoPtr: *const c_char, infoSize: usize) -> i32;
    aclrtCacheLastTaskOpInfo, aclrtCacheLastTaskOpInfoImpl(infoPtr: *const c_void, infoSize: usize) -> i32;
    aclrtCheckArchCompatibility, aclrtCheckArchCompatibilityImpl
        (socVersion: *const c_char, canCompatible: *mut i32) -> i32;
    aclrtCheckMemType, aclrtCheckMemTypeImpl
        (addrList: *mut *mut c_void, size memType: u32, checkResult: *mut u32, reserve: u32) -> i32;
    aclrtCmoAsync, aclrtCmoAsyncImpl(src: *mut c_void, size: usize, cmoType: i32, stream: aclrtStream) -> i32;
    aclrtCmoAsyncWithBarrier, aclrtCmoAsyncWithBarrierImpl
        (src: *mut c_void, size: usize, cmoType: i32, barrierId: u32, stream: aclrtStream) -> i32;
    aclrtCmoAsyncWithDesc, aclrtCmoAsyncWithDescImpl
        (cmoDesc: *mut c_void, cmoType: i32, stream: aclrtStream, reserve: *const c_void) -> i32;
    aclrtCmoGetDescSize, aclrtCmoGetDescSizeImpl(size: *mut usize) -> i32;
    aclrtCmoSetDesc, aclrtCmoSetDescImpl(cmoDesc src: *mut c_void, size: usize) -> i32;
    aclrtCmoWaitBarrier, aclrtCmoWaitBarrierImpl
        (taskInfo: *mut c_void, stream: aclrtStream, flag: u32) -> i32;
    aclrtCntNotifyCreate, aclrtCntNotifyCreateImpl(cntNotify: *mut aclrtCntNotify, flag: u64) -> i32;
    aclrtCntNotifyDestroy, aclrtCntNotifyDestroyImpl(cntNotify: aclrtCntNotify) -> i32;
    aclrtCntNotifyGetId, aclrtCntNotifyGetIdImpl(cntNotify: aclrtCntNotify, notifyId: *mut u32) -> i32;
    aclrtCntNotifyRecord, aclrtCntNotifyRecordImpl
        (cntNotify: aclrtCntNotify, stream: aclrtStream, info: *mut c_void) -> i32;
    aclrtCntNotifyReset, aclrtCntNotifyResetImpl(cntNotify: aclrtCntNotify, stream: aclrtStream) -> i32;
    aclrtCntNotifyWaitWithTimeout, aclrtCntNotifyWaitWithTimeoutImpl
        (cntNotify: aclrtCntNotify, stream: aclrtStream, info: *mut c_void) -> i32;
    aclrtCopyBufRef, aclrtCopyBufRefImpl(buf: aclrtMbuf, newBuf: *mut aclrtMbuf) -> i32;
    aclrtCreateBinary, aclrtCreateBinaryImpl(data: *const c_void, dataLen: usize) -> *mut c_void;
    aclrtCreateContext, aclrtCreateContextImpl(context: *mut aclrtContext, deviceId: i32) -> i32;
    aclrtCreateEvent, aclrtCreateEventImpl(event: *mut aclrtEvent) -> i32;
    aclrtCreateEventExWithFlag, aclrtCreateEventExWithFlagImpl(event: *mut aclrtEvent, flag: u32) -> i32;
    aclrtCreateEventWithFlag, aclrtCreateEventWithFlagImpl(event: *mut aclrtEvent, flag: u32) -> i32;
    aclrtCreateGroupInfo, aclrtCreateGroupInfoImpl() -> *mut c_void;
    aclrtCreateLabel, aclrtCreateLabelImpl(label: *mut aclrtLabel) -> i32;
    aclrtCreateLabelList, aclrtCreateLabelListImpl
        (labels: *mut aclrtLabel, num: usize, labelList: *mut aclrtLabelList) -> i32;
    aclrtCreateNotify, aclrtCreateNotifyImpl(notify: *mut aclrtNotify, flag: u64) -> i32;
    aclrtCreateStream, aclrtCreateStreamImpl(stream: *mut aclrtStream) -> i32;
    aclrtCreateStreamConfigHandle() -> *mut c_void;
    aclrtCreateStreamV2(stream: *mut aclrtStream, handle: *const c_void) -> i32;
    aclrtCreateStreamWithConfig, aclrtCreateStreamWithConfigImpl
        (stream: *mut aclrtStream, priority flag: u32) -> i32;
    aclrtCtxGetCurrentDefaultStream, aclrtCtxGetCurrentDefaultStreamImpl(stream: *mut aclrtStream) -> i32;
    aclrtCtxGetFloatOverflowAddr, aclrtCtxGetFloatOverflowAddrImpl(overflowAddr: *mut *mut c_void) -> i32;
    aclrtCtxGetSysParamOpt, aclrtCtxGetSysParamOptImpl(opt: i32, value: *mut i64) -> i32;
    aclrtCtxSetSysParamOpt, aclrtCtxSetSysParamOptImpl(opt: i32, value: i64) -> i32;
    aclrtDestroyBinary, aclrtDestroyBinaryImpl(binary: aclrtBinary) -> i32;
    aclrtDestroyContext, aclrtDestroyContextImpl(context: aclrtContext) -> i32;
    aclrtDestroyEvent, aclrtDestroyEventImpl(event: aclrtEvent) -> i32;
    aclrtDestroyGroupInfo, aclrtDestroyGroupInfoImpl(groupInfo: *mut c_void) -> i32;
    aclrtDestroyLabel, aclrtDestroyLabelImpl(label: aclrtLabel) -> i32;
    aclrtDestroyLabelList, aclrtDestroyLabelListImpl(labelList: aclrtLabelList) -> i32;
    aclrtDestroyNotify, aclrtDestroyNotifyImpl(notify: aclrtNotify) -> i32;
    aclrtDestroyStream, aclrtDestroyStreamImpl(stream: aclrtStream) -> i32;
    aclrtDestroyStreamConfigHandle(handle: *mut c_void) -> i32;
    aclrtDestroyStreamForce, aclrtDestroyStreamForceImpl(stream: aclrtStream) -> i32;
    aclrtDeviceCanAccessPeer, aclrtDeviceCanAccessPeerImpl
        (canAccessPeer: *mut i32, deviceId peerDeviceId: i32) -> i32;
    aclrtDeviceDisablePeerAccess, aclrtDeviceDisablePeerAccessImpl(peerDeviceId: i32) -> i32;
    aclrtDeviceEnablePeerAccess, aclrtDeviceEnablePeerAccessImpl(peerDeviceId: i32, flags: u32) -> i32;
    aclrtDeviceGetBareTgid, aclrtDeviceGetBareTgidImpl(pid: *mut i32) -> i32;
    aclrtDeviceGetByPCIBusId(pciBusId: *const c_char, deviceId: *mut i32) -> i32;
    aclrtDeviceGetHostAtomicCapabilities
        (capabilities: *mut u32, operations: *const c_void, count: u32, deviceId: i32) -> i32;
    aclrtDeviceGetLimit(limit: i32, value: *mut usize) -> i32;
    aclrtDeviceGetP2PAtomicCapabilities
        (capabilities: *mut u32, operations: *const c_void, count: u32, srcDeviceId dstDeviceId: i32) -> i32;
    aclrtDeviceGetPCIBusId(deviceId: i32, pciBusId: *mut c_char, len: i32) -> i32;
    aclrtDeviceGetStreamPriorityRange, aclrtDeviceGetStreamPriorityRangeImpl
        (leastPriority greatestPriority: *mut i32) -> i32;
    aclrtDeviceGetUuid, aclrtDeviceGetUuidImpl(deviceId: i32, uuid: *mut c_void) -> i32;
    aclrtDeviceL2CacheFlush(rsv: *mut c_void) -> i32;
    aclrtDevicePeerAccessStatus, aclrtDevicePeerAccessStatusImpl
        (deviceId peerDeviceId: i32, status: *mut i32) -> i32;
    aclrtDeviceSetLimit(limit: i32, value: usize) -> i32;
    aclrtDeviceTaskAbort, aclrtDeviceTaskAbortImpl(deviceId: i32, timeout: u32) -> i32;
    aclrtEventElapsedTime, aclrtEventElapsedTimeImpl(ms: *mut f32, startEvent endEvent: aclrtEvent) -> i32;
    aclrtEventGetTimestamp, aclrtEventGetTimestampImpl(event: aclrtEvent, timestamp: *mut u64) -> i32;
    aclrtExceptionInfoCallbackRegister(callback: aclrtExceptionInfoCallback) -> i32;
    aclrtExceptionInfoCallbackUnregister(callback: aclrtExceptionInfoCallback) -> i32;
    aclrtFree, aclrtFreeImpl(devPtr: *mut c_void) -> i32;
    aclrtFreeBuf, aclrtFreeBufImpl(buf: aclrtMbuf) -> i32;
    aclrtFreeHost, aclrtFreeHostImpl(hostPtr: *mut c_void) -> i32;
    aclrtFreeHostWithDevSync, aclrtFreeHostWithDevSyncImpl(hostPtr: *mut c_void) -> i32;
    aclrtFreePhysical, aclrtFreePhysicalImpl(handle: aclrtDrvMemHandle) -> i32;
    aclrtFreeWithDevSync, aclrtFreeWithDevSyncImpl(devPtr: *mut c_void) -> i32;
    aclrtFunctionGetAvailDynUbufPerBlock(func: *mut c_void, flags: u32, dynamicUbufSize: *mut usize) -> i32;
    aclrtFunctionGetBinary(funcHandle: aclrtFuncHandle, binHandle: *mut aclrtBinHandle) -> i32;
    aclrtFunctionGetParamCount(func: *const c_void, paramCount: *mut usize) -> i32;
    aclrtFunctionGetParamInfo
        (func: *const c_void, paramIndex: usize, paramOffset paramSize: *mut usize) -> i32;
    aclrtGetAllGroupInfo, aclrtGetAllGroupInfoImpl(groupInfo: *mut c_void) -> i32;
    aclrtGetArgsFromExceptionInfo
        (info: *const c_void, devArgsPtr: *mut *mut c_void, devArgsLen: *mut u32) -> i32;
    aclrtGetBufChainNum, aclrtGetBufChainNumImpl(headBuf: aclrtMbuf, num: *mut u32) -> i32;
    aclrtGetBufData, aclrtGetBufDataImpl(buf: aclrtMbuf, dataPtr: *mut *mut c_void, size: *mut usize) -> i32;
    aclrtGetBufDataLen, aclrtGetBufDataLenImpl(buf: aclrtMbuf, len: *mut usize) -> i32;
    aclrtGetBufFromChain, aclrtGetBufFromChainImpl
        (headBuf: aclrtMbuf, index: u32, buf: *mut aclrtMbuf) -> i32;
    aclrtGetBufUserData, aclrtGetBufUserDataImpl
        (buf: aclrtMbuf, dataPtr: *mut c_void, size offset: usize) -> i32;
    aclrtGetCurrentContext, aclrtGetCurrentContextImpl(context: *mut aclrtContext) -> i32;
    aclrtGetDevice, aclrtGetDeviceImpl(deviceId: *mut i32) -> i32;
    aclrtGetDeviceCapability, aclrtGetDeviceCapabilityImpl
        (deviceId devFeatureType: i32, value: *mut i32) -> i32;
    aclrtGetDeviceCount, aclrtGetDeviceCountImpl(count: *mut u32) -> i32;
    aclrtGetDeviceIdFromExceptionInfo, aclrtGetDeviceIdFromExceptionInfoImpl(info: *const c_void) -> u32;
    aclrtGetDeviceInfo, aclrtGetDeviceInfoImpl(deviceId: u32, attr: i32, value: *mut i64) -> i32;
    aclrtGetDeviceResLimit, aclrtGetDeviceResLimitImpl(deviceId type_: i32, value: *mut u32) -> i32;
    aclrtGetDeviceSatMode, aclrtGetDeviceSatModeImpl(mode: *mut c_void) -> i32;
    aclrtGetDeviceUtilizationRate, aclrtGetDeviceUtilizationRateImpl
        (deviceId: i32, utilizationInfo: *mut aclrtUtilizationInfo) -> i32;
    aclrtGetDevicesTopo, aclrtGetDevicesTopoImpl(deviceId otherDeviceId: u32, value: *mut u64) -> i32;
    aclrtGetErrorCodeFromExceptionInfo, aclrtGetErrorCodeFromExceptionInfoImpl(info: *const c_void) -> u32;
    aclrtGetErrorVerbose, aclrtGetErrorVerboseImpl(deviceId: i32, errorInfo: *mut c_void) -> i32;
    aclrtGetEventAvailNum, aclrtGetEventAvailNumImpl(eventCount: *mut u32) -> i32;
    aclrtGetEventId, aclrtGetEventIdImpl(event: aclrtEvent, eventId: *mut u32) -> i32;
    aclrtGetFloatOverflowStatus, aclrtGetFloatOverflowStatusImpl
        (outputAddr: *mut c_void, outputSize: u64, stream: aclrtStream) -> i32;
    aclrtGetFuncBySymbol(symbol: *const c_void, funcHandle: *mut aclrtFuncHandle) -> i32;
    aclrtGetFuncHandleFromExceptionInfo(info: *const c_void, func: *mut aclrtFuncHandle) -> i32;
    aclrtGetFunctionAddr, aclrtGetFunctionAddrImpl
        (funcHandle: aclrtFuncHandle, aicAddr aivAddr: *mut *mut c_void) -> i32;
    aclrtGetFunctionAttribute, aclrtGetFunctionAttributeImpl
        (funcHandle: aclrtFuncHandle, attrType: i32, attrValue: *mut i64) -> i32;
    aclrtGetFunctionName, aclrtGetFunctionNameImpl
        (funcHandle: aclrtFuncHandle, maxLen: u32, name: *mut c_char) -> i32;
    aclrtGetFunctionSize(funcHandle: aclrtFuncHandle, aicSize aivSize: *mut usize) -> i32;
    aclrtGetGroupCount, aclrtGetGroupCountImpl(count: *mut u32) -> i32;
    aclrtGetGroupInfoDetail, aclrtGetGroupInfoDetailImpl(
        groupInfo: *const c_void, groupIndex attr: i32, attrValue: *mut c_void, valueLen: usize,
        paramRetSize: *mut usize) -> i32;
    aclrtGetHardwareSyncAddr, aclrtGetHardwareSyncAddrImpl(addr: *mut *mut c_void) -> i32;
    aclrtGetLastError, aclrtGetLastErrorImpl(level: i32) -> i32;
    aclrtGetLogicDevIdByPhyDevId, aclrtGetLogicDevIdByPhyDevIdImpl
        (phyDevId: i32, logicDevId: *mut i32) -> i32;
    aclrtGetLogicDevIdByUserDevId, aclrtGetLogicDevIdByUserDevIdImpl
        (userDevid: i32, logicDevId: *mut i32) -> i32;
    aclrtGetMemInfo, aclrtGetMemInfoImpl(attr: i32, free total: *mut usize) -> i32;
    aclrtGetMemUceInfo, aclrtGetMemUceInfoImpl
        (deviceId: i32, memUceInfoArray: *mut aclrtMemUceInfo, arraySize: usize, retSize: *mut usize) -> i32;
    aclrtGetMemUsageInfo, aclrtGetMemUsageInfoImpl
        (deviceId: i32, memUsageInfo: *mut c_void, inputNum: usize, outputNum: *mut usize) -> i32;
    aclrtGetMemcpyDescSize, aclrtGetMemcpyDescSizeImpl(kind: i32, descSize: *mut usize) -> i32;
    aclrtGetNotifyId, aclrtGetNotifyIdImpl(notify: aclrtNotify, notifyId: *mut u32) -> i32;
    aclrtGetOpExecuteTimeout, aclrtGetOpExecuteTimeoutImpl(timeoutMs: *mut u32) -> i32;
    aclrtGetOpTimeOutInterval, aclrtGetOpTimeOutIntervalImpl(interval: *mut u64) -> i32;
    aclrtGetOverflowStatus, aclrtGetOverflowStatusImpl
        (outputAddr: *mut c_void, outputSize: usize, stream: aclrtStream) -> i32;
    aclrtGetPhyDevIdByLogicDevId, aclrtGetPhyDevIdByLogicDevIdImpl
        (logicDevId: i32, phyDevId: *mut i32) -> i32;
    aclrtGetPhyDevIdByUserDevId(userDevId: i32, phyDevId: *mut i32) -> i32;
    aclrtGetPrimaryCtxState, aclrtGetPrimaryCtxStateImpl
        (deviceId: i32, flags: *mut u32, active: *mut i32) -> i32;
    aclrtGetResInCurrentThread, aclrtGetResInCurrentThreadImpl(type_: i32, value: *mut u32) -> i32;
    aclrtGetRunMode, aclrtGetRunModeImpl(runMode: *mut c_void) -> i32;
    aclrtGetSocName, aclrtGetSocNameImpl() -> *mut c_void;
    aclrtGetStreamAttribute, aclrtGetStreamAttributeImpl
        (stream: aclrtStream, stmAttrType: i32, value: *mut c_void) -> i32;
    aclrtGetStreamAvailableNum, aclrtGetStreamAvailableNumImpl(streamCount: *mut u32) -> i32;
    aclrtGetStreamIdFromExceptionInfo, aclrtGetStreamIdFromExceptionInfoImpl(info: *const c_void) -> u32;
    aclrtGetStreamOverflowSwitch, aclrtGetStreamOverflowSwitchImpl
        (stream: aclrtStream, flag: *mut u32) -> i32;
    aclrtGetStreamResLimit, aclrtGetStreamResLimitImpl
        (stream: aclrtStream, type_: i32, value: *mut u32) -> i32;
    aclrtGetSymbolAddress(symbol: *const c_void, devPtr: *mut *mut c_void) -> i32;
    aclrtGetSymbolSize(symbol: *const c_void, size: *mut usize) -> i32;
    aclrtGetSysParamOpt, aclrtGetSysParamOptImpl(opt: i32, value: *mut i64) -> i32;
    aclrtGetTaskIdFromExceptionInfo, aclrtGetTaskIdFromExceptionInfoImpl(info: *const c_void) -> u32;
    aclrtGetThreadIdFromExceptionInfo, aclrtGetThreadIdFromExceptionInfoImpl(info: *const c_void) -> u32;
    aclrtGetThreadLastTaskId, aclrtGetThreadLastTaskIdImpl(taskId: *mut u32) -> i32;
    aclrtGetUserDevIdByLogicDevId, aclrtGetUserDevIdByLogicDevIdImpl
        (logicDevId: i32, userDevid: *mut i32) -> i32;
    aclrtGetUserDevIdByPhyDevId(phyDevId: i32, userDevId: *mut i32) -> i32;
    aclrtGetVersion, aclrtGetVersionImpl(majorVersion minorVersion patchVersion: *mut i32) -> i32;
    aclrtHostGetDevicePointer, aclrtHostGetDevicePointerImpl
        (pHost: *mut c_void, pDevice: *mut *mut c_void, flag: u32) -> i32;
    aclrtHostMemMapCapabilities(deviceId: u32, hacType: i32, capabilities: *mut c_void) -> i32;
    aclrtHostRegister, aclrtHostRegisterImpl
        (ptr: *mut c_void, size: u64, type_: i32, devPtr: *mut *mut c_void) -> i32;
    aclrtHostRegisterV2, aclrtHostRegisterV2Impl(ptr: *mut c_void, size: u64, flag: u32) -> i32;
    aclrtHostUnregister, aclrtHostUnregisterImpl(ptr: *mut c_void) -> i32;
    aclrtIpcGetEventHandle, aclrtIpcGetEventHandleImpl
        (event: aclrtEvent, handle: *mut aclrtIpcEventHandle) -> i32;
    aclrtIpcMemClose, aclrtIpcMemCloseImpl(key: *const c_char) -> i32;
    aclrtIpcMemGetExportKey, aclrtIpcMemGetExportKeyImpl
        (devPtr: *mut c_void, size: usize, key: *mut c_char, len: usize, flags: u64) -> i32;
    aclrtIpcMemImportByKey, aclrtIpcMemImportByKeyImpl
        (devPtr: *mut *mut c_void, key: *const c_char, flags: u64) -> i32;
    aclrtIpcMemImportPidInterServer, aclrtIpcMemImportPidInterServerImpl
        (key: *const c_char, serverPids: *mut c_void, num: usize) -> i32;
    aclrtIpcMemSetAttr, aclrtIpcMemSetAttrImpl(key: *const c_char, type_: i32, attr: u64) -> i32;
    aclrtIpcMemSetImportPid, aclrtIpcMemSetImportPidImpl
        (key: *const c_char, pid: *mut i32, num: usize) -> i32;
    aclrtIpcOpenEventHandle, aclrtIpcOpenEventHandleImpl
        (handle: aclrtIpcEventHandle, event: *mut aclrtEvent) -> i32;
    aclrtKernelArgsAppend, aclrtKernelArgsAppendImpl(
        argsHandle: aclrtArgsHandle, param: *mut c_void, paramSize: usize,
        paramHandle: *mut aclrtParamHandle) -> i32;
    aclrtKernelArgsAppendPlaceHolder, aclrtKernelArgsAppendPlaceHolderImpl
        (argsHandle: aclrtArgsHandle, paramHandle: *mut aclrtParamHandle) -> i32;
    aclrtKernelArgsFinalize, aclrtKernelArgsFinalizeImpl(argsHandle: aclrtArgsHandle) -> i32;
    aclrtKernelArgsGetHandleMemSize, aclrtKernelArgsGetHandleMemSizeImpl
        (funcHandle: aclrtFuncHandle, memSize: *mut usize) -> i32;
    aclrtKernelArgsGetMemSize, aclrtKernelArgsGetMemSizeImpl
        (funcHandle: aclrtFuncHandle, userArgsSize: usize, actualArgsSize: *mut usize) -> i32;
    aclrtKernelArgsGetPlaceHolderBuffer, aclrtKernelArgsGetPlaceHolderBufferImpl(
        argsHandle: aclrtArgsHandle, paramHandle: aclrtParamHandle, dataSize: usize,
        bufferAddr: *mut *mut c_void) -> i32;
    aclrtKernelArgsInit, aclrtKernelArgsInitImpl
        (funcHandle: aclrtFuncHandle, argsHandle: *mut aclrtArgsHandle) -> i32;
    aclrtKernelArgsInitByUserMem, aclrtKernelArgsInitByUserMemImpl(
        funcHandle: aclrtFuncHandle, argsHandle: aclrtArgsHandle, userHostMem: *mut c_void,
        actualArgsSize: usize) -> i32;
    aclrtKernelArgsParaUpdate, aclrtKernelArgsParaUpdateImpl(
        argsHandle: aclrtArgsHandle, paramHandle: aclrtParamHandle, param: *mut c_void,
        paramSize: usize) -> i32;
    aclrtLaunchCallback, aclrtLaunchCallbackImpl
        (fn_: aclrtCallback, userData: *mut c_void, blockType: i32, stream: aclrtStream) -> i32;
    aclrtLaunchHostFunc, aclrtLaunchHostFuncImpl
        (stream: aclrtStream, fn_: aclrtHostFunc, args: *mut c_void) -> i32;
    aclrtLaunchKernel, aclrtLaunchKernelImpl(
        funcHandle: aclrtFuncHandle, blockDim: u32, argsData: *const c_void, argsSize: usize,
        stream: aclrtStream) -> i32;
    aclrtLaunchKernelV2, aclrtLaunchKernelV2Impl(
        funcHandle: aclrtFuncHandle, blockDim: u32, argsData: *const c_void, argsSize: usize,
        cfg: *mut c_void, stream: aclrtStream) -> i32;
    aclrtLaunchKernelWithArgsArray(
        func: *mut c_void, numBlocks: u32, stream: aclrtStream, cfg: *mut c_void,
        args: *mut *mut c_void) -> i32;
    aclrtLaunchKernelWithConfig, aclrtLaunchKernelWithConfigImpl(
        funcHandle: aclrtFuncHandle, blockDim: u32, stream: aclrtStream, cfg: *mut c_void,
        argsHandle: aclrtArgsHandle, reserve: *mut c_void) -> i32;
    aclrtLaunchKernelWithHostArgs, aclrtLaunchKernelWithHostArgsImpl(
        funcHandle: aclrtFuncHandle, blockDim: u32, stream: aclrtStream, cfg hostArgs: *mut c_void,
        argsSize: usize, placeHolderArray: *mut c_void, placeHolderNum: usize) -> i32;
    aclrtLaunchSIMTKernelWithArgsArray(
        func: *mut c_void, gridDim blockDim: dim3, dynUbufSize: usize, stream: aclrtStream, cfg: *mut c_void,
        args: *mut *mut c_void) -> i32;
    aclrtLaunchSIMTKernelWithHostArgs(
        func: *mut c_void, gridDim blockDim: dim3, dynUbufSize: usize, stream: aclrtStream, cfg
        hostArgs: *mut c_void, argsSize: usize, placeHolderArray: *mut c_void, placeHolderNum: usize) -> i32;
    aclrtMalloc, aclrtMallocImpl(devPtr: *mut *mut c_void, size: usize, policy: i32) -> i32;
    aclrtMallocAlign32, aclrtMallocAlign32Impl(devPtr: *mut *mut c_void, size: usize, policy: i32) -> i32;
    aclrtMallocCached, aclrtMallocCachedImpl(devPtr: *mut *mut c_void, size: usize, policy: i32) -> i32;
    aclrtMallocForTaskScheduler, aclrtMallocForTaskSchedulerImpl
        (devPtr: *mut *mut c_void, size: usize, policy: i32, cfg: *mut c_void) -> i32;
    aclrtMallocHost, aclrtMallocHostImpl(hostPtr: *mut *mut c_void, size: usize) -> i32;
    aclrtMallocHostWithCfg, aclrtMallocHostWithCfgImpl
        (ptr: *mut *mut c_void, size: u64, cfg: *mut c_void) -> i32;
    aclrtMallocPhysical, aclrtMallocPhysicalImpl
        (handle: *mut aclrtDrvMemHandle, size: usize, prop: *const aclrtPhysicalMemProp, flags: u64) -> i32;
    aclrtMallocWithCfg, aclrtMallocWithCfgImpl
        (devPtr: *mut *mut c_void, size: usize, policy: i32, cfg: *mut c_void) -> i32;
    aclrtMapMem, aclrtMapMemImpl
        (virPtr: *mut c_void, size offset: usize, handle: aclrtDrvMemHandle, flags: u64) -> i32;
    aclrtMemAllocManaged(ptr: *mut *mut c_void, size: u64, flag: u32) -> i32;
    aclrtMemExportToShareableHandle, aclrtMemExportToShareableHandleImpl
        (handle: aclrtDrvMemHandle, handleType: i32, flags: u64, shareableHandle: *mut u64) -> i32;
    aclrtMemExportToShareableHandleV2, aclrtMemExportToShareableHandleV2Impl
        (handle: aclrtDrvMemHandle, flags: u64, shareType: i32, shareableHandle: *mut c_void) -> i32;
    aclrtMemFlush, aclrtMemFlushImpl(devPtr: *mut c_void, size: usize) -> i32;
    aclrtMemGetAccess, aclrtMemGetAccessImpl
        (virPtr: *mut c_void, location: *mut aclrtMemLocation, flag: *mut u64) -> i32;
    aclrtMemGetAddressRange(ptr: *mut c_void, pbase: *mut *mut c_void, psize: *mut usize) -> i32;
    aclrtMemGetAllocationGranularity, aclrtMemGetAllocationGranularityImpl
        (prop: *mut aclrtPhysicalMemProp, option: i32, granularity: *mut usize) -> i32;
    aclrtMemGetAllocationPropertiesFromHandle, aclrtMemGetAllocationPropertiesFromHandleImpl
        (handle: aclrtDrvMemHandle, prop: *mut aclrtPhysicalMemProp) -> i32;
    aclrtMemImportFromShareableHandle, aclrtMemImportFromShareableHandleImpl
        (shareableHandle: u64, deviceId: i32, handle: *mut aclrtDrvMemHandle) -> i32;
    aclrtMemImportFromShareableHandleV2, aclrtMemImportFromShareableHandleV2Impl
        (shareableHandle: *mut c_void, shareType: i32, flags: u64, handle: *mut aclrtDrvMemHandle) -> i32;
    aclrtMemInvalidate, aclrtMemInvalidateImpl(devPtr: *mut c_void, size: usize) -> i32;
    aclrtMemManagedAdvise(ptr: *const c_void, size: u64, advise: i32, location: aclrtMemLocation) -> i32;
    aclrtMemManagedGetAttr
        (attribute: i32, ptr: *const c_void, size: usize, data: *mut c_void, dataSize: usize) -> i32;
    aclrtMemManagedGetAttrs(
        attributes: *mut c_void, numAttributes: usize, ptr: *const c_void, size: usize,
        data: *mut *mut c_void, dataSizes: *mut usize) -> i32;
    aclrtMemManagedPrefetchAsync
        (ptr: *const c_void, size: usize, location: aclrtMemLocation, flags: u32, stream: aclrtStream) -> i32;
    aclrtMemManagedPrefetchBatchAsync(
        ptrs: *mut *const c_void, sizes: *mut usize, count: usize, prefetchLocs: *mut aclrtMemLocation,
        prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: u64, stream: aclrtStream) -> i32;
    aclrtMemMapNoAccess
        (virPtr: *mut c_void, size offset: usize, handle: aclrtDrvMemHandle, flags: u64) -> i32;
    aclrtMemMapSelectedLink(virPtrDst: *mut c_void, size: usize, virPtrSrc: *mut c_void, linkIdx: u32) -> i32;
    aclrtMemMapSetLink(handle: aclrtDrvMemHandle, adviceLink: i32) -> i32;
    aclrtMemP2PMap(devPtr: *mut c_void, size: usize, dstDevId: i32, flags: u64) -> i32;
    aclrtMemPoolCreate(memPool: *mut aclrtMemPool, poolProps: *const c_void) -> i32;
    aclrtMemPoolDestroy(memPool: aclrtMemPool) -> i32;
    aclrtMemPoolFreeAsync(ptr: *mut c_void, stream: aclrtStream) -> i32;
    aclrtMemPoolGetAttr(memPool: aclrtMemPool, attr: i32, value: *mut c_void) -> i32;
    aclrtMemPoolMallocAsync
        (ptr: *mut *mut c_void, size: usize, memPool: aclrtMemPool, stream: aclrtStream) -> i32;
    aclrtMemPoolSetAttr(memPool: aclrtMemPool, attr: i32, value: *mut c_void) -> i32;
    aclrtMemPoolTrimTo(memPool: aclrtMemPool, minBytesToKeep: usize) -> i32;
    aclrtMemRetainAllocationHandle, aclrtMemRetainAllocationHandleImpl
        (virPtr: *mut c_void, handle: *mut aclrtDrvMemHandle) -> i32;
    aclrtMemSetAccess, aclrtMemSetAccessImpl
        (virPtr: *mut c_void, size: usize, desc: *mut c_void, count: usize) -> i32;
    aclrtMemSetPidToShareableHandle, aclrtMemSetPidToShareableHandleImpl
        (shareableHandle: u64, pid: *mut i32, pidNum: usize) -> i32;
    aclrtMemSetPidToShareableHandleV2, aclrtMemSetPidToShareableHandleV2Impl
        (shareableHandle: *mut c_void, shareType: i32, pid: *mut i32, pidNum: usize) -> i32;
    aclrtMemUceRepair, aclrtMemUceRepairImpl
        (deviceId: i32, memUceInfoArray: *mut aclrtMemUceInfo, arraySize: usize) -> i32;
    aclrtMemcpy, aclrtMemcpyImpl
        (dst: *mut c_void, destMax: usize, src: *const c_void, count: usize, kind: i32) -> i32;
    aclrtMemcpy2d, aclrtMemcpy2dImpl
        (dst: *mut c_void, dpitch: usize, src: *const c_void, spitch width height: usize, kind: i32) -> i32;
    aclrtMemcpy2dAsync, aclrtMemcpy2dAsyncImpl(
        dst: *mut c_void, dpitch: usize, src: *const c_void, spitch width height: usize, kind: i32,
        stream: aclrtStream) -> i32;
    aclrtMemcpyAsync, aclrtMemcpyAsyncImpl(
        dst: *mut c_void, destMax: usize, src: *const c_void, count: usize, kind: i32,
        stream: aclrtStream) -> i32;
    aclrtMemcpyAsyncWithCondition, aclrtMemcpyAsyncWithConditionImpl(
        dst: *mut c_void, destMax: usize, src: *const c_void, count: usize, kind: i32,
        stream: aclrtStream) -> i32;
    aclrtMemcpyAsyncWithDesc, aclrtMemcpyAsyncWithDescImpl
        (desc: *mut c_void, kind: i32, stream: aclrtStream) -> i32;
    aclrtMemcpyAsyncWithOffset(
        dst: *mut *mut c_void, destMax dstDataOffset: usize, src: *mut *const c_void, count
        srcDataOffset: usize, kind: i32, stream: aclrtStream) -> i32;
    aclrtMemcpyAsyncWithOffsetImpl(
        dst: *mut *mut c_void, destMax: usize, dstDataOffset: u64, src: *mut *const c_void, count
        srcDataOffset: usize, kind: i32, stream: aclrtStream) -> i32;
    aclrtMemcpyBatch, aclrtMemcpyBatchImpl(
        dsts: *mut *mut c_void, destMaxs: *mut usize, srcs: *mut *mut c_void, sizes: *mut usize,
        numBatches: usize, attrs: *mut c_void, attrsIndexes: *mut usize, numAttrs: usize,
        failIndex: *mut usize) -> i32;
    aclrtMemcpyBatchAsync, aclrtMemcpyBatchAsyncImpl(
        dsts: *mut *mut c_void, destMaxs: *mut usize, srcs: *mut *mut c_void, sizes: *mut usize,
        numBatches: usize, attrs: *mut c_void, attrsIndexes: *mut usize, numAttrs: usize,
        failIndex: *mut usize, stream: aclrtStream) -> i32;
    aclrtMemcpyBatchAsyncV2(
        dsts: *mut *mut c_void, destMaxs: *mut usize, srcs: *mut *mut c_void, sizes: *mut usize,
        numBatches: usize, attrs: *mut c_void, attrsIndexes: *mut usize, numAttrs: usize,
        stream: aclrtStream) -> i32;
    aclrtMemcpyBatchV2(
        dsts: *mut *mut c_void, destMaxs: *mut usize, srcs: *mut *mut c_void, sizes: *mut usize,
        numBatches: usize, attrs: *mut c_void, attrsIndexes: *mut usize, numAttrs: usize) -> i32;
    aclrtMemcpyFromSymbol
        (dst: *mut c_void, dstMax: usize, symbol: *const c_void, count offset: usize, kind: i32) -> i32;
    aclrtMemcpyFromSymbolAsync(
        dst: *mut c_void, dstMax: usize, symbol: *const c_void, count offset: usize, kind: i32,
        stream: aclrtStream) -> i32;
    aclrtMemcpyToSymbol(symbol src: *const c_void, count offset: usize, kind: i32) -> i32;
    aclrtMemcpyToSymbolAsync
        (symbol src: *const c_void, count offset: usize, kind: i32, stream: aclrtStream) -> i32;
    aclrtMemset, aclrtMemsetImpl(devPtr: *mut c_void, maxCount: usize, value: i32, count: usize) -> i32;
    aclrtMemsetAsync, aclrtMemsetAsyncImpl
        (devPtr: *mut c_void, maxCount: usize, value: i32, count: usize, stream: aclrtStream) -> i32;
    aclrtMemsetD32(ptr: *mut c_void, memSize: usize, value: u32, N: usize) -> i32;
    aclrtMemsetD32Async(ptr: *mut c_void, memSize: usize, value: u32, N: usize, stream: aclrtStream) -> i32;
    aclrtNotifyBatchReset, aclrtNotifyBatchResetImpl(notifies: *mut aclrtNotify, num: usize) -> i32;
    aclrtNotifyGetExportKey, aclrtNotifyGetExportKeyImpl
        (notify: aclrtNotify, key: *mut c_char, len: usize, flags: u64) -> i32;
    aclrtNotifyImportByKey, aclrtNotifyImportByKeyImpl
        (notify: *mut aclrtNotify, key: *const c_char, flags: u64) -> i32;
    aclrtNotifySetImportPid, aclrtNotifySetImportPidImpl
        (notify: aclrtNotify, pid: *mut i32, num: usize) -> i32;
    aclrtNotifySetImportPidInterServer, aclrtNotifySetImportPidInterServerImpl
        (notify: aclrtNotify, serverPids: *mut c_void, num: usize) -> i32;
    aclrtNpuClearFloatOverFlowStatus, aclrtNpuClearFloatOverFlowStatusImpl
        (checkMode: u32, stream: aclrtStream) -> i32;
    aclrtNpuGetFloatOverFlowStatus, aclrtNpuGetFloatOverFlowStatusImpl
        (outputAddr: *mut c_void, outputSize: u64, checkMode: u32, stream: aclrtStream) -> i32;
    aclrtPeekAtLastError, aclrtPeekAtLastErrorImpl(level: i32) -> i32;
    aclrtPersistentTaskClean, aclrtPersistentTaskCleanImpl(stream: aclrtStream) -> i32;
    aclrtPointerGetAttributes, aclrtPointerGetAttributesImpl
        (ptr: *const c_void, attributes: *mut aclrtPtrAttributes) -> i32;
    aclrtProcessHostFunc(timeout: i32) -> i32;
    aclrtProcessReport, aclrtProcessReportImpl(timeout: i32) -> i32;
    aclrtProfTrace, aclrtProfTraceImpl(userdata: *mut c_void, length: i32, stream: aclrtStream) -> i32;
    aclrtQueryDeviceStatus, aclrtQueryDeviceStatusImpl(deviceId: i32, deviceStatus: *mut c_void) -> i32;
    aclrtQueryEvent, aclrtQueryEventImpl(event: aclrtEvent, status: *mut c_void) -> i32;
    aclrtQueryEventStatus, aclrtQueryEventStatusImpl(event: aclrtEvent, status: *mut c_void) -> i32;
    aclrtQueryEventWaitStatus, aclrtQueryEventWaitStatusImpl(event: aclrtEvent, status: *mut c_void) -> i32;
    aclrtRandomNumAsync, aclrtRandomNumAsyncImpl
        (taskInfo: *const c_void, stream: aclrtStream, reserve: *mut c_void) -> i32;
    aclrtRecordEvent, aclrtRecordEventImpl(event: aclrtEvent, stream: aclrtStream) -> i32;
    aclrtRecordEventWithFlag(event: aclrtEvent, stream: aclrtStream, flag: u32) -> i32;
    aclrtRecordNotify, aclrtRecordNotifyImpl(notify: aclrtNotify, stream: aclrtStream) -> i32;
    aclrtReduceAsync, aclrtReduceAsyncImpl(
        dst: *mut c_void, src: *const c_void, count: u64, kind type_: i32, stream: aclrtStream,
        reserve: *mut c_void) -> i32;
    aclrtRegDeviceStateCallback, aclrtRegDeviceStateCallbackImpl
        (regName: *const c_char, callback: aclrtDeviceStateCallback, args: *mut c_void) -> i32;
    aclrtRegStreamStateCallback, aclrtRegStreamStateCallbackImpl
        (regName: *const c_char, callback: aclrtStreamStateCallback, args: *mut c_void) -> i32;
    aclrtRegisterCpuFunc, aclrtRegisterCpuFuncImpl
        (handle: aclrtBinHandle, funcName kernelName: *const c_char, funcHandle: *mut aclrtFuncHandle) -> i32;
    aclrtReleaseMemAddress, aclrtReleaseMemAddressImpl(virPtr: *mut c_void) -> i32;
    aclrtRepairError, aclrtRepairErrorImpl(deviceId: i32, errorInfo: *const c_void) -> i32;
    aclrtReserveMemAddress, aclrtReserveMemAddressImpl
        (virPtr: *mut *mut c_void, size alignment: usize, expectPtr: *mut c_void, flags: u64) -> i32;
    aclrtReserveMemAddressNoUCMemory
        (virPtr: *mut *mut c_void, size alignment: usize, expectPtr: *mut c_void, flags: u64) -> i32;
    aclrtResetDevice, aclrtResetDeviceImpl(deviceId: i32) -> i32;
    aclrtResetDeviceForce, aclrtResetDeviceForceImpl(deviceId: i32) -> i32;
    aclrtResetDeviceResLimit, aclrtResetDeviceResLimitImpl(deviceId: i32) -> i32;
    aclrtResetDeviceWithoutTsdVXXImpl(deviceId: i32) -> i32;
    aclrtResetEvent, aclrtResetEventImpl(event: aclrtEvent, stream: aclrtStream) -> i32;
    aclrtResetFloatOverflowStatus, aclrtResetFloatOverflowStatusImpl(stream: aclrtStream) -> i32;
    aclrtResetOverflowStatus, aclrtResetOverflowStatusImpl(stream: aclrtStream) -> i32;
    aclrtResetStreamResLimit, aclrtResetStreamResLimitImpl(stream: aclrtStream) -> i32;
    aclrtSetBufDataLen, aclrtSetBufDataLenImpl(buf: aclrtMbuf, len: usize) -> i32;
    aclrtSetBufUserData, aclrtSetBufUserDataImpl
        (buf: aclrtMbuf, dataPtr: *const c_void, size offset: usize) -> i32;
    aclrtSetCurrentContext, aclrtSetCurrentContextImpl(context: aclrtContext) -> i32;
    aclrtSetDevice, aclrtSetDeviceImpl(deviceId: i32) -> i32;
    aclrtSetDeviceResLimit, aclrtSetDeviceResLimitImpl(deviceId type_: i32, value: u32) -> i32;
    aclrtSetDeviceSatMode, aclrtSetDeviceSatModeImpl(mode: i32) -> i32;
    aclrtSetDeviceTaskAbortCallback, aclrtSetDeviceTaskAbortCallbackImpl
        (regName: *const c_char, callback: aclrtDeviceTaskAbortCallback, args: *mut c_void) -> i32;
    aclrtSetDeviceWithoutTsdVXXImpl(deviceId: i32) -> i32;
    aclrtSetExceptionInfoCallback, aclrtSetExceptionInfoCallbackImpl
        (callback: aclrtExceptionInfoCallback) -> i32;
    aclrtSetGroup, aclrtSetGroupImpl(groupId: i32) -> i32;
    aclrtSetLabel, aclrtSetLabelImpl(label: aclrtLabel, stream: aclrtStream) -> i32;
    aclrtSetMemcpyDesc, aclrtSetMemcpyDescImpl(
        desc: *mut c_void, kind: i32, srcAddr dstAddr: *mut c_void, count: usize, config: *mut c_void) -> i32;
    aclrtSetOpExecuteTimeOut, aclrtSetOpExecuteTimeOutImpl(timeout: u32) -> i32;
    aclrtSetOpExecuteTimeOutV2, aclrtSetOpExecuteTimeOutV2Impl(timeout: u64, actualTimeout: *mut u64) -> i32;
    aclrtSetOpExecuteTimeOutWithMs, aclrtSetOpExecuteTimeOutWithMsImpl(timeout: u32) -> i32;
    aclrtSetOpWaitTimeout, aclrtSetOpWaitTimeoutImpl(timeout: u32) -> i32;
    aclrtSetStreamAttribute, aclrtSetStreamAttributeImpl
        (stream: aclrtStream, stmAttrType: i32, value: *mut c_void) -> i32;
    aclrtSetStreamConfigOpt
        (handle: *mut c_void, attr: i32, attrValue: *const c_void, valueSize: usize) -> i32;
    aclrtSetStreamFailureMode, aclrtSetStreamFailureModeImpl(stream: aclrtStream, mode: u64) -> i32;
    aclrtSetStreamOverflowSwitch, aclrtSetStreamOverflowSwitchImpl(stream: aclrtStream, flag: u32) -> i32;
    aclrtSetStreamResLimit, aclrtSetStreamResLimitImpl(stream: aclrtStream, type_: i32, value: u32) -> i32;
    aclrtSetSysParamOpt, aclrtSetSysParamOptImpl(opt: i32, value: i64) -> i32;
    aclrtSetTsDevice, aclrtSetTsDeviceImpl(tsId: i32) -> i32;
    aclrtSnapShotCallbackRegister(stage: i32, callback: aclrtSnapShotCallBack, args: *mut c_void) -> i32;
    aclrtSnapShotCallbackUnregister(stage: i32, callback: aclrtSnapShotCallBack) -> i32;
    aclrtSnapShotProcessBackup(pid: c_int, args: *mut c_void) -> i32;
    aclrtSnapShotProcessBackupImpl() -> i32;
    aclrtSnapShotProcessLock(pid: c_int, reserve: *mut c_void) -> i32;
    aclrtSnapShotProcessLockImpl() -> i32;
    aclrtSnapShotProcessRestore(pid: c_int, args: *mut c_void) -> i32;
    aclrtSnapShotProcessRestoreImpl() -> i32;
    aclrtSnapShotProcessUnlock(pid: c_int, reserve: *mut c_void) -> i32;
    aclrtSnapShotProcessUnlockImpl() -> i32;
    aclrtStreamAbort, aclrtStreamAbortImpl(stream: aclrtStream) -> i32;
    aclrtStreamGetFlags, aclrtStreamGetFlagsImpl(stream: aclrtStream, flags: *mut u32) -> i32;
    aclrtStreamGetId, aclrtStreamGetIdImpl(stream: aclrtStream, streamId: *mut i32) -> i32;
    aclrtStreamGetPriority, aclrtStreamGetPriorityImpl(stream: aclrtStream, priority: *mut u32) -> i32;
    aclrtStreamQuery, aclrtStreamQueryImpl(stream: aclrtStream, status: *mut c_void) -> i32;
    aclrtStreamStop, aclrtStreamStopImpl(stream: aclrtStream) -> i32;
    aclrtStreamWaitEvent, aclrtStreamWaitEventImpl(stream: aclrtStream, event: aclrtEvent) -> i32;
    aclrtStreamWaitEventWithFlag(stream: aclrtStream, event: aclrtEvent, timeout flag: u32) -> i32;
    aclrtStreamWaitEventWithTimeout, aclrtStreamWaitEventWithTimeoutImpl
        (stream: aclrtStream, event: aclrtEvent, timeout: i32) -> i32;
    aclrtSubscribeHostFunc(hostFuncThreadId: u64, exeStream: aclrtStream) -> i32;
    aclrtSubscribeReport, aclrtSubscribeReportImpl(threadId: u64, stream: aclrtStream) -> i32;
    aclrtSwitchLabelByIndex, aclrtSwitchLabelByIndexImpl
        (ptr: *mut c_void, maxValue: u32, labelList: aclrtLabelList, stream: aclrtStream) -> i32;
    aclrtSwitchStream, aclrtSwitchStreamImpl(
        leftValue: *mut c_void, cond: i32, rightValue: *mut c_void, dataType: i32, trueStream falseStream
        stream: aclrtStream) -> i32;
    aclrtSynchronizeDevice, aclrtSynchronizeDeviceImpl() -> i32;
    aclrtSynchronizeDeviceWithTimeout, aclrtSynchronizeDeviceWithTimeoutImpl(timeout: i32) -> i32;
    aclrtSynchronizeEvent, aclrtSynchronizeEventImpl(event: aclrtEvent) -> i32;
    aclrtSynchronizeEventWithTimeout, aclrtSynchronizeEventWithTimeoutImpl
        (event: aclrtEvent, timeout: i32) -> i32;
    aclrtSynchronizeStream, aclrtSynchronizeStreamImpl(stream: aclrtStream) -> i32;
    aclrtSynchronizeStreamWithTimeout, aclrtSynchronizeStreamWithTimeoutImpl
        (stream: aclrtStream, timeout: i32) -> i32;
    aclrtTaskUpdateAsync, aclrtTaskUpdateAsyncImpl
        (taskStream: aclrtStream, taskId: u32, info: *mut c_void, execStream: aclrtStream) -> i32;
    aclrtUnSubscribeHostFunc(hostFuncThreadId: u64, exeStream: aclrtStream) -> i32;
    aclrtUnSubscribeReport, aclrtUnSubscribeReportImpl(threadId: u64, stream: aclrtStream) -> i32;
    aclrtUnmapMem, aclrtUnmapMemImpl(virPtr: *mut c_void) -> i32;
    aclrtUnuseStreamResInCurrentThread, aclrtUnuseStreamResInCurrentThreadImpl(stream: aclrtStream) -> i32;
    aclrtUseStreamResInCurrentThread, aclrtUseStreamResInCurrentThreadImpl(stream: aclrtStream) -> i32;
    aclrtValueWait, aclrtValueWaitImpl
        (devAddr: *mut c_void, value: u64, flag: u32, stream: aclrtStream) -> i32;
    aclrtValueWrite, aclrtValueWriteImpl
        (devAddr: *mut c_void, value: u64, flag: u32, stream: aclrtStream) -> i32;
    aclrtWaitAndResetNotify, aclrtWaitAndResetNotifyImpl
        (notify: aclrtNotify, stream: aclrtStream, timeout: u32) -> i32;
}
