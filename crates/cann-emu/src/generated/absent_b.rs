//! Written by `xtask/cann/generate.py` from the table of the interface; do not edit.

absent!(aclrtFreePhysicalImpl, emu_aclrtFreePhysicalImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtFreeWithDevSyncImpl, emu_aclrtFreeWithDevSyncImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtFunctionGetAvailDynUbufPerBlock,
    emu_aclrtFunctionGetAvailDynUbufPerBlock,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtFunctionGetBinary, emu_aclrtFunctionGetBinary, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtFunctionGetParamCount,
    emu_aclrtFunctionGetParamCount,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtFunctionGetParamInfo, emu_aclrtFunctionGetParamInfo, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetAllGroupInfo, emu_aclrtGetAllGroupInfo, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetAllGroupInfoImpl, emu_aclrtGetAllGroupInfoImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetArgsFromExceptionInfo,
    emu_aclrtGetArgsFromExceptionInfo,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetBufChainNum, emu_aclrtGetBufChainNum, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetBufChainNumImpl, emu_aclrtGetBufChainNumImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetBufData, emu_aclrtGetBufData, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetBufDataImpl, emu_aclrtGetBufDataImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetBufDataLen, emu_aclrtGetBufDataLen, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetBufDataLenImpl, emu_aclrtGetBufDataLenImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetBufFromChain, emu_aclrtGetBufFromChain, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetBufFromChainImpl, emu_aclrtGetBufFromChainImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetBufUserData, emu_aclrtGetBufUserData, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetBufUserDataImpl, emu_aclrtGetBufUserDataImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetCurrentContextImpl,
    emu_aclrtGetCurrentContextImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetDeviceCapability, emu_aclrtGetDeviceCapability, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetDeviceCapabilityImpl,
    emu_aclrtGetDeviceCapabilityImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetDeviceCountImpl, emu_aclrtGetDeviceCountImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetDeviceIdFromExceptionInfo, emu_aclrtGetDeviceIdFromExceptionInfo, u32, 0);
absent!(aclrtGetDeviceIdFromExceptionInfoImpl, emu_aclrtGetDeviceIdFromExceptionInfoImpl, u32, 0);
absent!(aclrtGetDeviceImpl, emu_aclrtGetDeviceImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetDeviceInfoImpl, emu_aclrtGetDeviceInfoImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetDeviceResLimitImpl,
    emu_aclrtGetDeviceResLimitImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetDeviceSatModeImpl, emu_aclrtGetDeviceSatModeImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetDeviceUtilizationRateImpl,
    emu_aclrtGetDeviceUtilizationRateImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetDevicesTopo, emu_aclrtGetDevicesTopo, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetDevicesTopoImpl, emu_aclrtGetDevicesTopoImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetErrorCodeFromExceptionInfo, emu_aclrtGetErrorCodeFromExceptionInfo, u32, 0);
absent!(aclrtGetErrorCodeFromExceptionInfoImpl, emu_aclrtGetErrorCodeFromExceptionInfoImpl, u32, 0);
absent!(aclrtGetErrorVerbose, emu_aclrtGetErrorVerbose, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetErrorVerboseImpl, emu_aclrtGetErrorVerboseImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetEventAvailNumImpl, emu_aclrtGetEventAvailNumImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetEventIdImpl, emu_aclrtGetEventIdImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetFloatOverflowStatus,
    emu_aclrtGetFloatOverflowStatus,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetFloatOverflowStatusImpl,
    emu_aclrtGetFloatOverflowStatusImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetFuncBySymbol, emu_aclrtGetFuncBySymbol, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetFuncHandleFromExceptionInfo,
    emu_aclrtGetFuncHandleFromExceptionInfo,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetFunctionAddr, emu_aclrtGetFunctionAddr, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetFunctionAddrImpl, emu_aclrtGetFunctionAddrImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetFunctionAttribute, emu_aclrtGetFunctionAttribute, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetFunctionAttributeImpl,
    emu_aclrtGetFunctionAttributeImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetFunctionName, emu_aclrtGetFunctionName, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetFunctionNameImpl, emu_aclrtGetFunctionNameImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetFunctionSize, emu_aclrtGetFunctionSize, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetGroupCount, emu_aclrtGetGroupCount, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetGroupCountImpl, emu_aclrtGetGroupCountImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetGroupInfoDetail, emu_aclrtGetGroupInfoDetail, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetGroupInfoDetailImpl,
    emu_aclrtGetGroupInfoDetailImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetHardwareSyncAddr, emu_aclrtGetHardwareSyncAddr, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetHardwareSyncAddrImpl,
    emu_aclrtGetHardwareSyncAddrImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetLastErrorImpl, emu_aclrtGetLastErrorImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetLogicDevIdByPhyDevId,
    emu_aclrtGetLogicDevIdByPhyDevId,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetLogicDevIdByPhyDevIdImpl,
    emu_aclrtGetLogicDevIdByPhyDevIdImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetLogicDevIdByUserDevIdImpl,
    emu_aclrtGetLogicDevIdByUserDevIdImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetMemInfoImpl, emu_aclrtGetMemInfoImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetMemUceInfoImpl, emu_aclrtGetMemUceInfoImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetMemUsageInfoImpl, emu_aclrtGetMemUsageInfoImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetMemcpyDescSize, emu_aclrtGetMemcpyDescSize, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetMemcpyDescSizeImpl,
    emu_aclrtGetMemcpyDescSizeImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetNotifyId, emu_aclrtGetNotifyId, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetNotifyIdImpl, emu_aclrtGetNotifyIdImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetOpExecuteTimeout, emu_aclrtGetOpExecuteTimeout, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetOpExecuteTimeoutImpl,
    emu_aclrtGetOpExecuteTimeoutImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetOpTimeOutInterval, emu_aclrtGetOpTimeOutInterval, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetOpTimeOutIntervalImpl,
    emu_aclrtGetOpTimeOutIntervalImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetOverflowStatus, emu_aclrtGetOverflowStatus, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetOverflowStatusImpl,
    emu_aclrtGetOverflowStatusImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetPhyDevIdByLogicDevIdImpl,
    emu_aclrtGetPhyDevIdByLogicDevIdImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetPhyDevIdByUserDevId,
    emu_aclrtGetPhyDevIdByUserDevId,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetPrimaryCtxStateImpl,
    emu_aclrtGetPrimaryCtxStateImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetResInCurrentThreadImpl,
    emu_aclrtGetResInCurrentThreadImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetRunModeImpl, emu_aclrtGetRunModeImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetSocNameImpl, emu_aclrtGetSocNameImpl, usize, 0usize);
absent!(aclrtGetStreamAttribute, emu_aclrtGetStreamAttribute, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetStreamAttributeImpl,
    emu_aclrtGetStreamAttributeImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetStreamAvailableNumImpl,
    emu_aclrtGetStreamAvailableNumImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetStreamIdFromExceptionInfo, emu_aclrtGetStreamIdFromExceptionInfo, u32, 0);
absent!(aclrtGetStreamIdFromExceptionInfoImpl, emu_aclrtGetStreamIdFromExceptionInfoImpl, u32, 0);
absent!(
    aclrtGetStreamOverflowSwitchImpl,
    emu_aclrtGetStreamOverflowSwitchImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetStreamResLimitImpl,
    emu_aclrtGetStreamResLimitImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetSymbolAddress, emu_aclrtGetSymbolAddress, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetSymbolSize, emu_aclrtGetSymbolSize, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetSysParamOptImpl, emu_aclrtGetSysParamOptImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtGetTaskIdFromExceptionInfo, emu_aclrtGetTaskIdFromExceptionInfo, u32, 0);
absent!(aclrtGetTaskIdFromExceptionInfoImpl, emu_aclrtGetTaskIdFromExceptionInfoImpl, u32, 0);
absent!(aclrtGetThreadIdFromExceptionInfo, emu_aclrtGetThreadIdFromExceptionInfo, u32, 0);
absent!(aclrtGetThreadIdFromExceptionInfoImpl, emu_aclrtGetThreadIdFromExceptionInfoImpl, u32, 0);
absent!(aclrtGetThreadLastTaskId, emu_aclrtGetThreadLastTaskId, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtGetThreadLastTaskIdImpl,
    emu_aclrtGetThreadLastTaskIdImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetUserDevIdByLogicDevId,
    emu_aclrtGetUserDevIdByLogicDevId,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetUserDevIdByLogicDevIdImpl,
    emu_aclrtGetUserDevIdByLogicDevIdImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtGetUserDevIdByPhyDevId,
    emu_aclrtGetUserDevIdByPhyDevId,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtGetVersionImpl, emu_aclrtGetVersionImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtHostGetDevicePointer, emu_aclrtHostGetDevicePointer, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtHostGetDevicePointerImpl,
    emu_aclrtHostGetDevicePointerImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtHostMemMapCapabilities,
    emu_aclrtHostMemMapCapabilities,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtHostRegisterImpl, emu_aclrtHostRegisterImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtHostRegisterV2Impl, emu_aclrtHostRegisterV2Impl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtHostUnregisterImpl, emu_aclrtHostUnregisterImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtIpcGetEventHandle, emu_aclrtIpcGetEventHandle, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtIpcGetEventHandleImpl,
    emu_aclrtIpcGetEventHandleImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtIpcMemClose, emu_aclrtIpcMemClose, i32, crate::report::unsupported_code(NAME));
absent!(aclrtIpcMemCloseImpl, emu_aclrtIpcMemCloseImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtIpcMemGetExportKey, emu_aclrtIpcMemGetExportKey, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtIpcMemGetExportKeyImpl,
    emu_aclrtIpcMemGetExportKeyImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtIpcMemImportByKey, emu_aclrtIpcMemImportByKey, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtIpcMemImportByKeyImpl,
    emu_aclrtIpcMemImportByKeyImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtIpcMemImportPidInterServer,
    emu_aclrtIpcMemImportPidInterServer,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtIpcMemImportPidInterServerImpl,
    emu_aclrtIpcMemImportPidInterServerImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtIpcMemSetAttr, emu_aclrtIpcMemSetAttr, i32, crate::report::unsupported_code(NAME));
absent!(aclrtIpcMemSetAttrImpl, emu_aclrtIpcMemSetAttrImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtIpcMemSetImportPid, emu_aclrtIpcMemSetImportPid, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtIpcMemSetImportPidImpl,
    emu_aclrtIpcMemSetImportPidImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtKernelArgsAppend, emu_aclrtKernelArgsAppend, i32, crate::report::unsupported_code(NAME));
absent!(aclrtKernelArgsAppendImpl, emu_aclrtKernelArgsAppendImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtKernelArgsAppendPlaceHolder,
    emu_aclrtKernelArgsAppendPlaceHolder,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtKernelArgsAppendPlaceHolderImpl,
    emu_aclrtKernelArgsAppendPlaceHolderImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtKernelArgsFinalize, emu_aclrtKernelArgsFinalize, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtKernelArgsFinalizeImpl,
    emu_aclrtKernelArgsFinalizeImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtKernelArgsGetHandleMemSize,
    emu_aclrtKernelArgsGetHandleMemSize,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtKernelArgsGetHandleMemSizeImpl,
    emu_aclrtKernelArgsGetHandleMemSizeImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtKernelArgsGetMemSize, emu_aclrtKernelArgsGetMemSize, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtKernelArgsGetMemSizeImpl,
    emu_aclrtKernelArgsGetMemSizeImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtKernelArgsGetPlaceHolderBuffer,
    emu_aclrtKernelArgsGetPlaceHolderBuffer,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtKernelArgsGetPlaceHolderBufferImpl,
    emu_aclrtKernelArgsGetPlaceHolderBufferImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtKernelArgsInit, emu_aclrtKernelArgsInit, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtKernelArgsInitByUserMem,
    emu_aclrtKernelArgsInitByUserMem,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtKernelArgsInitByUserMemImpl,
    emu_aclrtKernelArgsInitByUserMemImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtKernelArgsInitImpl, emu_aclrtKernelArgsInitImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtKernelArgsParaUpdate, emu_aclrtKernelArgsParaUpdate, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtKernelArgsParaUpdateImpl,
    emu_aclrtKernelArgsParaUpdateImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtLaunchCallbackImpl, emu_aclrtLaunchCallbackImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtLaunchHostFuncImpl, emu_aclrtLaunchHostFuncImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtLaunchKernel, emu_aclrtLaunchKernel, i32, crate::report::unsupported_code(NAME));
absent!(aclrtLaunchKernelImpl, emu_aclrtLaunchKernelImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtLaunchKernelV2, emu_aclrtLaunchKernelV2, i32, crate::report::unsupported_code(NAME));
absent!(aclrtLaunchKernelV2Impl, emu_aclrtLaunchKernelV2Impl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtLaunchKernelWithArgsArray,
    emu_aclrtLaunchKernelWithArgsArray,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtLaunchKernelWithConfig,
    emu_aclrtLaunchKernelWithConfig,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtLaunchKernelWithConfigImpl,
    emu_aclrtLaunchKernelWithConfigImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtLaunchKernelWithHostArgs,
    emu_aclrtLaunchKernelWithHostArgs,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtLaunchKernelWithHostArgsImpl,
    emu_aclrtLaunchKernelWithHostArgsImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMallocAlign32Impl, emu_aclrtMallocAlign32Impl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMallocCachedImpl, emu_aclrtMallocCachedImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMallocForTaskScheduler,
    emu_aclrtMallocForTaskScheduler,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMallocForTaskSchedulerImpl,
    emu_aclrtMallocForTaskSchedulerImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMallocHostImpl, emu_aclrtMallocHostImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMallocHostWithCfgImpl,
    emu_aclrtMallocHostWithCfgImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMallocImpl, emu_aclrtMallocImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMallocPhysicalImpl, emu_aclrtMallocPhysicalImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMallocWithCfgImpl, emu_aclrtMallocWithCfgImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMapMemImpl, emu_aclrtMapMemImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemAllocManaged, emu_aclrtMemAllocManaged, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMemExportToShareableHandle,
    emu_aclrtMemExportToShareableHandle,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemExportToShareableHandleImpl,
    emu_aclrtMemExportToShareableHandleImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemExportToShareableHandleV2,
    emu_aclrtMemExportToShareableHandleV2,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemExportToShareableHandleV2Impl,
    emu_aclrtMemExportToShareableHandleV2Impl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMemFlushImpl, emu_aclrtMemFlushImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemGetAccess, emu_aclrtMemGetAccess, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemGetAccessImpl, emu_aclrtMemGetAccessImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemGetAddressRange, emu_aclrtMemGetAddressRange, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMemGetAllocationGranularityImpl,
    emu_aclrtMemGetAllocationGranularityImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemGetAllocationPropertiesFromHandle,
    emu_aclrtMemGetAllocationPropertiesFromHandle,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemGetAllocationPropertiesFromHandleImpl,
    emu_aclrtMemGetAllocationPropertiesFromHandleImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemImportFromShareableHandle,
    emu_aclrtMemImportFromShareableHandle,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemImportFromShareableHandleImpl,
    emu_aclrtMemImportFromShareableHandleImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemImportFromShareableHandleV2,
    emu_aclrtMemImportFromShareableHandleV2,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemImportFromShareableHandleV2Impl,
    emu_aclrtMemImportFromShareableHandleV2Impl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMemInvalidateImpl, emu_aclrtMemInvalidateImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemManagedGetAttr, emu_aclrtMemManagedGetAttr, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemManagedGetAttrs, emu_aclrtMemManagedGetAttrs, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMemManagedPrefetchBatchAsync,
    emu_aclrtMemManagedPrefetchBatchAsync,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMemMapNoAccess, emu_aclrtMemMapNoAccess, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemMapSelectedLink, emu_aclrtMemMapSelectedLink, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemMapSetLink, emu_aclrtMemMapSetLink, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemP2PMap, emu_aclrtMemP2PMap, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemPoolCreate, emu_aclrtMemPoolCreate, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemPoolDestroy, emu_aclrtMemPoolDestroy, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemPoolFreeAsync, emu_aclrtMemPoolFreeAsync, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemPoolGetAttr, emu_aclrtMemPoolGetAttr, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemPoolMallocAsync, emu_aclrtMemPoolMallocAsync, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemPoolSetAttr, emu_aclrtMemPoolSetAttr, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemPoolTrimTo, emu_aclrtMemPoolTrimTo, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMemRetainAllocationHandle,
    emu_aclrtMemRetainAllocationHandle,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemRetainAllocationHandleImpl,
    emu_aclrtMemRetainAllocationHandleImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMemSetAccess, emu_aclrtMemSetAccess, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemSetAccessImpl, emu_aclrtMemSetAccessImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMemSetPidToShareableHandle,
    emu_aclrtMemSetPidToShareableHandle,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemSetPidToShareableHandleImpl,
    emu_aclrtMemSetPidToShareableHandleImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemSetPidToShareableHandleV2,
    emu_aclrtMemSetPidToShareableHandleV2,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemSetPidToShareableHandleV2Impl,
    emu_aclrtMemSetPidToShareableHandleV2Impl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMemUceRepairImpl, emu_aclrtMemUceRepairImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemcpy2dAsyncImpl, emu_aclrtMemcpy2dAsyncImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemcpy2dImpl, emu_aclrtMemcpy2dImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemcpyAsyncImpl, emu_aclrtMemcpyAsyncImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMemcpyAsyncWithConditionImpl,
    emu_aclrtMemcpyAsyncWithConditionImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMemcpyAsyncWithDesc, emu_aclrtMemcpyAsyncWithDesc, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMemcpyAsyncWithDescImpl,
    emu_aclrtMemcpyAsyncWithDescImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemcpyAsyncWithOffset,
    emu_aclrtMemcpyAsyncWithOffset,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtMemcpyAsyncWithOffsetImpl,
    emu_aclrtMemcpyAsyncWithOffsetImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMemcpyBatchAsyncImpl, emu_aclrtMemcpyBatchAsyncImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemcpyBatchAsyncV2, emu_aclrtMemcpyBatchAsyncV2, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemcpyBatchImpl, emu_aclrtMemcpyBatchImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemcpyBatchV2, emu_aclrtMemcpyBatchV2, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemcpyFromSymbol, emu_aclrtMemcpyFromSymbol, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMemcpyFromSymbolAsync,
    emu_aclrtMemcpyFromSymbolAsync,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMemcpyImpl, emu_aclrtMemcpyImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemcpyToSymbol, emu_aclrtMemcpyToSymbol, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemcpyToSymbolAsync, emu_aclrtMemcpyToSymbolAsync, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemsetAsyncImpl, emu_aclrtMemsetAsyncImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemsetD32, emu_aclrtMemsetD32, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemsetD32Async, emu_aclrtMemsetD32Async, i32, crate::report::unsupported_code(NAME));
absent!(aclrtMemsetImpl, emu_aclrtMemsetImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtNotifyBatchReset, emu_aclrtNotifyBatchReset, i32, crate::report::unsupported_code(NAME));
absent!(aclrtNotifyBatchResetImpl, emu_aclrtNotifyBatchResetImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtNotifyGetExportKey, emu_aclrtNotifyGetExportKey, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtNotifyGetExportKeyImpl,
    emu_aclrtNotifyGetExportKeyImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtNotifyImportByKey, emu_aclrtNotifyImportByKey, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtNotifyImportByKeyImpl,
    emu_aclrtNotifyImportByKeyImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtNotifySetImportPid, emu_aclrtNotifySetImportPid, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtNotifySetImportPidImpl,
    emu_aclrtNotifySetImportPidImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtNotifySetImportPidInterServer,
    emu_aclrtNotifySetImportPidInterServer,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtNotifySetImportPidInterServerImpl,
    emu_aclrtNotifySetImportPidInterServerImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtNpuClearFloatOverFlowStatus,
    emu_aclrtNpuClearFloatOverFlowStatus,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtNpuClearFloatOverFlowStatusImpl,
    emu_aclrtNpuClearFloatOverFlowStatusImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtNpuGetFloatOverFlowStatus,
    emu_aclrtNpuGetFloatOverFlowStatus,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtNpuGetFloatOverFlowStatusImpl,
    emu_aclrtNpuGetFloatOverFlowStatusImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtPeekAtLastErrorImpl, emu_aclrtPeekAtLastErrorImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtPersistentTaskClean, emu_aclrtPersistentTaskClean, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtPersistentTaskCleanImpl,
    emu_aclrtPersistentTaskCleanImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtPointerGetAttributesImpl,
    emu_aclrtPointerGetAttributesImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtProcessHostFunc, emu_aclrtProcessHostFunc, i32, crate::report::unsupported_code(NAME));
absent!(aclrtProcessReportImpl, emu_aclrtProcessReportImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtProfTrace, emu_aclrtProfTrace, i32, crate::report::unsupported_code(NAME));
absent!(aclrtProfTraceImpl, emu_aclrtProfTraceImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtQueryDeviceStatusImpl,
    emu_aclrtQueryDeviceStatusImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtQueryEventImpl, emu_aclrtQueryEventImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtQueryEventStatusImpl, emu_aclrtQueryEventStatusImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtQueryEventWaitStatusImpl,
    emu_aclrtQueryEventWaitStatusImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtRandomNumAsync, emu_aclrtRandomNumAsync, i32, crate::report::unsupported_code(NAME));
absent!(aclrtRandomNumAsyncImpl, emu_aclrtRandomNumAsyncImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtRecordEventImpl, emu_aclrtRecordEventImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtRecordEventWithFlag, emu_aclrtRecordEventWithFlag, i32, crate::report::unsupported_code(NAME));
absent!(aclrtRecordNotify, emu_aclrtRecordNotify, i32, crate::report::unsupported_code(NAME));
absent!(aclrtRecordNotifyImpl, emu_aclrtRecordNotifyImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtReduceAsync, emu_aclrtReduceAsync, i32, crate::report::unsupported_code(NAME));
absent!(aclrtReduceAsyncImpl, emu_aclrtReduceAsyncImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtRegDeviceStateCallback,
    emu_aclrtRegDeviceStateCallback,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtRegDeviceStateCallbackImpl,
    emu_aclrtRegDeviceStateCallbackImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtRegStreamStateCallback,
    emu_aclrtRegStreamStateCallback,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtRegStreamStateCallbackImpl,
    emu_aclrtRegStreamStateCallbackImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtRegisterCpuFunc, emu_aclrtRegisterCpuFunc, i32, crate::report::unsupported_code(NAME));
absent!(aclrtRegisterCpuFuncImpl, emu_aclrtRegisterCpuFuncImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtReleaseMemAddressImpl,
    emu_aclrtReleaseMemAddressImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtRepairError, emu_aclrtRepairError, i32, crate::report::unsupported_code(NAME));
absent!(aclrtRepairErrorImpl, emu_aclrtRepairErrorImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtReserveMemAddressImpl,
    emu_aclrtReserveMemAddressImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtReserveMemAddressNoUCMemory,
    emu_aclrtReserveMemAddressNoUCMemory,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtResetDeviceForceImpl, emu_aclrtResetDeviceForceImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtResetDeviceImpl, emu_aclrtResetDeviceImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtResetDeviceResLimit, emu_aclrtResetDeviceResLimit, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtResetDeviceResLimitImpl,
    emu_aclrtResetDeviceResLimitImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtResetDeviceWithoutTsdVXXImpl,
    emu_aclrtResetDeviceWithoutTsdVXXImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtResetEventImpl, emu_aclrtResetEventImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtResetFloatOverflowStatus,
    emu_aclrtResetFloatOverflowStatus,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtResetFloatOverflowStatusImpl,
    emu_aclrtResetFloatOverflowStatusImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtResetOverflowStatusImpl,
    emu_aclrtResetOverflowStatusImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtResetStreamResLimit, emu_aclrtResetStreamResLimit, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtResetStreamResLimitImpl,
    emu_aclrtResetStreamResLimitImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSetBufDataLen, emu_aclrtSetBufDataLen, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSetBufDataLenImpl, emu_aclrtSetBufDataLenImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSetBufUserData, emu_aclrtSetBufUserData, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSetBufUserDataImpl, emu_aclrtSetBufUserDataImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSetCurrentContextImpl,
    emu_aclrtSetCurrentContextImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSetDeviceImpl, emu_aclrtSetDeviceImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSetDeviceResLimit, emu_aclrtSetDeviceResLimit, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSetDeviceResLimitImpl,
    emu_aclrtSetDeviceResLimitImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSetDeviceSatModeImpl, emu_aclrtSetDeviceSatModeImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSetDeviceTaskAbortCallback,
    emu_aclrtSetDeviceTaskAbortCallback,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSetDeviceTaskAbortCallbackImpl,
    emu_aclrtSetDeviceTaskAbortCallbackImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSetDeviceWithoutTsdVXXImpl,
    emu_aclrtSetDeviceWithoutTsdVXXImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSetExceptionInfoCallbackImpl,
    emu_aclrtSetExceptionInfoCallbackImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSetGroup, emu_aclrtSetGroup, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSetGroupImpl, emu_aclrtSetGroupImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSetLabel, emu_aclrtSetLabel, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSetLabelImpl, emu_aclrtSetLabelImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSetMemcpyDesc, emu_aclrtSetMemcpyDesc, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSetMemcpyDescImpl, emu_aclrtSetMemcpyDescImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSetOpExecuteTimeOutImpl,
    emu_aclrtSetOpExecuteTimeOutImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSetOpExecuteTimeOutV2Impl,
    emu_aclrtSetOpExecuteTimeOutV2Impl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSetOpExecuteTimeOutWithMsImpl,
    emu_aclrtSetOpExecuteTimeOutWithMsImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSetOpWaitTimeoutImpl, emu_aclrtSetOpWaitTimeoutImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSetStreamAttributeImpl,
    emu_aclrtSetStreamAttributeImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSetStreamConfigOpt, emu_aclrtSetStreamConfigOpt, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSetStreamFailureModeImpl,
    emu_aclrtSetStreamFailureModeImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSetStreamOverflowSwitchImpl,
    emu_aclrtSetStreamOverflowSwitchImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSetStreamResLimit, emu_aclrtSetStreamResLimit, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSetStreamResLimitImpl,
    emu_aclrtSetStreamResLimitImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSetSysParamOptImpl, emu_aclrtSetSysParamOptImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSetTsDeviceImpl, emu_aclrtSetTsDeviceImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSnapShotCallbackRegister,
    emu_aclrtSnapShotCallbackRegister,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSnapShotCallbackUnregister,
    emu_aclrtSnapShotCallbackUnregister,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSnapShotProcessBackup,
    emu_aclrtSnapShotProcessBackup,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSnapShotProcessBackupImpl,
    emu_aclrtSnapShotProcessBackupImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSnapShotProcessLock, emu_aclrtSnapShotProcessLock, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSnapShotProcessLockImpl,
    emu_aclrtSnapShotProcessLockImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSnapShotProcessRestore,
    emu_aclrtSnapShotProcessRestore,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSnapShotProcessRestoreImpl,
    emu_aclrtSnapShotProcessRestoreImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSnapShotProcessUnlock,
    emu_aclrtSnapShotProcessUnlock,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSnapShotProcessUnlockImpl,
    emu_aclrtSnapShotProcessUnlockImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtStreamAbortImpl, emu_aclrtStreamAbortImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtStreamGetFlags, emu_aclrtStreamGetFlags, i32, crate::report::unsupported_code(NAME));
absent!(aclrtStreamGetFlagsImpl, emu_aclrtStreamGetFlagsImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtStreamGetIdImpl, emu_aclrtStreamGetIdImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtStreamGetPriorityImpl,
    emu_aclrtStreamGetPriorityImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtStreamQueryImpl, emu_aclrtStreamQueryImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtStreamStop, emu_aclrtStreamStop, i32, crate::report::unsupported_code(NAME));
absent!(aclrtStreamStopImpl, emu_aclrtStreamStopImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtStreamWaitEventImpl, emu_aclrtStreamWaitEventImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtStreamWaitEventWithFlag,
    emu_aclrtStreamWaitEventWithFlag,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtStreamWaitEventWithTimeoutImpl,
    emu_aclrtStreamWaitEventWithTimeoutImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSubscribeHostFunc, emu_aclrtSubscribeHostFunc, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSubscribeReportImpl, emu_aclrtSubscribeReportImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSwitchLabelByIndex, emu_aclrtSwitchLabelByIndex, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSwitchLabelByIndexImpl,
    emu_aclrtSwitchLabelByIndexImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSwitchStream, emu_aclrtSwitchStream, i32, crate::report::unsupported_code(NAME));
absent!(aclrtSwitchStreamImpl, emu_aclrtSwitchStreamImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSynchronizeDeviceImpl,
    emu_aclrtSynchronizeDeviceImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSynchronizeDeviceWithTimeoutImpl,
    emu_aclrtSynchronizeDeviceWithTimeoutImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtSynchronizeEventImpl, emu_aclrtSynchronizeEventImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtSynchronizeEventWithTimeoutImpl,
    emu_aclrtSynchronizeEventWithTimeoutImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSynchronizeStreamImpl,
    emu_aclrtSynchronizeStreamImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtSynchronizeStreamWithTimeoutImpl,
    emu_aclrtSynchronizeStreamWithTimeoutImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtTaskUpdateAsync, emu_aclrtTaskUpdateAsync, i32, crate::report::unsupported_code(NAME));
absent!(aclrtTaskUpdateAsyncImpl, emu_aclrtTaskUpdateAsyncImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtUnSubscribeHostFunc, emu_aclrtUnSubscribeHostFunc, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtUnSubscribeReportImpl,
    emu_aclrtUnSubscribeReportImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtUnmapMemImpl, emu_aclrtUnmapMemImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtUnuseStreamResInCurrentThread,
    emu_aclrtUnuseStreamResInCurrentThread,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtUnuseStreamResInCurrentThreadImpl,
    emu_aclrtUnuseStreamResInCurrentThreadImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtUseStreamResInCurrentThread,
    emu_aclrtUseStreamResInCurrentThread,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtUseStreamResInCurrentThreadImpl,
    emu_aclrtUseStreamResInCurrentThreadImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtValueWait, emu_aclrtValueWait, i32, crate::report::unsupported_code(NAME));
absent!(aclrtValueWaitImpl, emu_aclrtValueWaitImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtValueWrite, emu_aclrtValueWrite, i32, crate::report::unsupported_code(NAME));
absent!(aclrtValueWriteImpl, emu_aclrtValueWriteImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtWaitAndResetNotify, emu_aclrtWaitAndResetNotify, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtWaitAndResetNotifyImpl,
    emu_aclrtWaitAndResetNotifyImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclsysGetCANNVersionImpl, emu_aclsysGetCANNVersionImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclsysGetVersionNum, emu_aclsysGetVersionNum, i32, crate::report::unsupported_code(NAME));
absent!(aclsysGetVersionNumImpl, emu_aclsysGetVersionNumImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclsysGetVersionStrImpl, emu_aclsysGetVersionStrImpl, i32, crate::report::unsupported_code(NAME));
absent!(acltdtAddDataItem, emu_acltdtAddDataItem, i32, crate::report::unsupported_code(NAME));
absent!(acltdtAddQueueRoute, emu_acltdtAddQueueRoute, i32, crate::report::unsupported_code(NAME));
absent!(acltdtAllocBuf, emu_acltdtAllocBuf, i32, crate::report::unsupported_code(NAME));
absent!(acltdtAppendBufChain, emu_acltdtAppendBufChain, i32, crate::report::unsupported_code(NAME));
absent!(acltdtAttachQueue, emu_acltdtAttachQueue, i32, crate::report::unsupported_code(NAME));
absent!(acltdtBindQueueRoutes, emu_acltdtBindQueueRoutes, i32, crate::report::unsupported_code(NAME));
absent!(acltdtCleanChannel, emu_acltdtCleanChannel, i32, crate::report::unsupported_code(NAME));
absent!(acltdtCopyBufRef, emu_acltdtCopyBufRef, i32, crate::report::unsupported_code(NAME));
absent!(acltdtCreateChannel, emu_acltdtCreateChannel, usize, 0usize);
absent!(acltdtCreateChannelWithCapacity, emu_acltdtCreateChannelWithCapacity, usize, 0usize);
absent!(acltdtCreateDataItem, emu_acltdtCreateDataItem, usize, 0usize);
absent!(acltdtCreateDataset, emu_acltdtCreateDataset, usize, 0usize);
absent!(acltdtCreateQueue, emu_acltdtCreateQueue, i32, crate::report::unsupported_code(NAME));
absent!(acltdtCreateQueueAttr, emu_acltdtCreateQueueAttr, usize, 0usize);
absent!(acltdtCreateQueueRoute, emu_acltdtCreateQueueRoute, usize, 0usize);
absent!(acltdtCreateQueueRouteList, emu_acltdtCreateQueueRouteList, usize, 0usize);
absent!(acltdtCreateQueueRouteQueryInfo, emu_acltdtCreateQueueRouteQueryInfo, usize, 0usize);
absent!(acltdtDequeue, emu_acltdtDequeue, i32, crate::report::unsupported_code(NAME));
absent!(acltdtDequeueData, emu_acltdtDequeueData, i32, crate::report::unsupported_code(NAME));
absent!(acltdtDestroyChannel, emu_acltdtDestroyChannel, i32, crate::report::unsupported_code(NAME));
absent!(acltdtDestroyDataItem, emu_acltdtDestroyDataItem, i32, crate::report::unsupported_code(NAME));
absent!(acltdtDestroyDataset, emu_acltdtDestroyDataset, i32, crate::report::unsupported_code(NAME));
absent!(acltdtDestroyQueue, emu_acltdtDestroyQueue, i32, crate::report::unsupported_code(NAME));
absent!(acltdtDestroyQueueAttr, emu_acltdtDestroyQueueAttr, i32, crate::report::unsupported_code(NAME));
absent!(acltdtDestroyQueueRoute, emu_acltdtDestroyQueueRoute, i32, crate::report::unsupported_code(NAME));
absent!(
    acltdtDestroyQueueRouteList,
    emu_acltdtDestroyQueueRouteList,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    acltdtDestroyQueueRouteQueryInfo,
    emu_acltdtDestroyQueueRouteQueryInfo,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(acltdtEnqueue, emu_acltdtEnqueue, i32, crate::report::unsupported_code(NAME));
absent!(acltdtEnqueueData, emu_acltdtEnqueueData, i32, crate::report::unsupported_code(NAME));
absent!(acltdtFreeBuf, emu_acltdtFreeBuf, i32, crate::report::unsupported_code(NAME));
absent!(acltdtGetBufChainNum, emu_acltdtGetBufChainNum, i32, crate::report::unsupported_code(NAME));
absent!(acltdtGetBufData, emu_acltdtGetBufData, i32, crate::report::unsupported_code(NAME));
absent!(acltdtGetBufDataLen, emu_acltdtGetBufDataLen, i32, crate::report::unsupported_code(NAME));
absent!(acltdtGetBufFromChain, emu_acltdtGetBufFromChain, i32, crate::report::unsupported_code(NAME));
absent!(acltdtGetBufUserData, emu_acltdtGetBufUserData, i32, crate::report::unsupported_code(NAME));
absent!(acltdtGetDataAddrFromItem, emu_acltdtGetDataAddrFromItem, usize, 0usize);
absent!(acltdtGetDataItem, emu_acltdtGetDataItem, usize, 0usize);
absent!(acltdtGetDataSizeFromItem, emu_acltdtGetDataSizeFromItem, u64, 0);
absent!(acltdtGetDataTypeFromItem, emu_acltdtGetDataTypeFromItem, i32, crate::report::unsupported_code(NAME));
absent!(acltdtGetDatasetName, emu_acltdtGetDatasetName, usize, 0usize);
absent!(acltdtGetDatasetSize, emu_acltdtGetDatasetSize, u64, 0);
absent!(acltdtGetDimNumFromItem, emu_acltdtGetDimNumFromItem, u64, 0);
absent!(acltdtGetDimsFromItem, emu_acltdtGetDimsFromItem, i32, crate::report::unsupported_code(NAME));
absent!(acltdtGetQueueAttr, emu_acltdtGetQueueAttr, i32, crate::report::unsupported_code(NAME));
absent!(acltdtGetQueueRoute, emu_acltdtGetQueueRoute, i32, crate::report::unsupported_code(NAME));
absent!(acltdtGetQueueRouteNum, emu_acltdtGetQueueRouteNum, u64, 0);
absent!(acltdtGetQueueRouteParam, emu_acltdtGetQueueRouteParam, i32, crate::report::unsupported_code(NAME));
absent!(
    acltdtGetSliceInfoFromItem,
    emu_acltdtGetSliceInfoFromItem,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    acltdtGetTensorTypeFromItem,
    emu_acltdtGetTensorTypeFromItem,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(acltdtGrantQueue, emu_acltdtGrantQueue, i32, crate::report::unsupported_code(NAME));
absent!(acltdtQueryChannelSize, emu_acltdtQueryChannelSize, i32, crate::report::unsupported_code(NAME));
absent!(acltdtQueryQueueRoutes, emu_acltdtQueryQueueRoutes, i32, crate::report::unsupported_code(NAME));
absent!(acltdtReceiveTensor, emu_acltdtReceiveTensor, i32, crate::report::unsupported_code(NAME));
absent!(acltdtSendTensor, emu_acltdtSendTensor, i32, crate::report::unsupported_code(NAME));
absent!(acltdtSetBufDataLen, emu_acltdtSetBufDataLen, i32, crate::report::unsupported_code(NAME));
absent!(acltdtSetBufUserData, emu_acltdtSetBufUserData, i32, crate::report::unsupported_code(NAME));
absent!(acltdtSetQueueAttr, emu_acltdtSetQueueAttr, i32, crate::report::unsupported_code(NAME));
absent!(
    acltdtSetQueueRouteQueryInfo,
    emu_acltdtSetQueueRouteQueryInfo,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(acltdtStopChannel, emu_acltdtStopChannel, i32, crate::report::unsupported_code(NAME));
absent!(acltdtUnbindQueueRoutes, emu_acltdtUnbindQueueRoutes, i32, crate::report::unsupported_code(NAME));
absent!(HcclSetCommConfig, emu_HcclSetCommConfig, i32, crate::report::unsupported_code(NAME));
absent!(acllogVaList, emu_acllogVaList, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIAddCondTask, emu_aclmdlRIAddCondTask, i32, crate::report::unsupported_code(NAME));
absent!(aclrtIpcOpenEventHandle, emu_aclrtIpcOpenEventHandle, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtIpcOpenEventHandleImpl,
    emu_aclrtIpcOpenEventHandleImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtLaunchSIMTKernelWithArgsArray,
    emu_aclrtLaunchSIMTKernelWithArgsArray,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtLaunchSIMTKernelWithHostArgs,
    emu_aclrtLaunchSIMTKernelWithHostArgs,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtMemManagedAdvise, emu_aclrtMemManagedAdvise, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtMemManagedPrefetchAsync,
    emu_aclrtMemManagedPrefetchAsync,
    i32,
    crate::report::unsupported_code(NAME)
);
