//! Written by `xtask/cann/generate.py` from the table of the interface; do not edit.

absent!(
    AclSetDynamicInputTensorAddr,
    emu_AclSetDynamicInputTensorAddr,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    AclSetDynamicOutputTensorAddr,
    emu_AclSetDynamicOutputTensorAddr,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(AclSetDynamicTensorAddr, emu_AclSetDynamicTensorAddr, i32, crate::report::unsupported_code(NAME));
absent!(AclSetInputTensorAddr, emu_AclSetInputTensorAddr, i32, crate::report::unsupported_code(NAME));
absent!(AclSetOutputTensorAddr, emu_AclSetOutputTensorAddr, i32, crate::report::unsupported_code(NAME));
absent!(AclSetTensorAddr, emu_AclSetTensorAddr, i32, crate::report::unsupported_code(NAME));
absent!(
    HcclCommActivateCommMemory,
    emu_HcclCommActivateCommMemory,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(HcclCommConfigInit, emu_HcclCommConfigInit, (), ());
absent!(
    HcclCommDeactivateCommMemory,
    emu_HcclCommDeactivateCommMemory,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(HcclCommDeregister, emu_HcclCommDeregister, i32, crate::report::unsupported_code(NAME));
absent!(HcclCommExchangeMem, emu_HcclCommExchangeMem, i32, crate::report::unsupported_code(NAME));
absent!(
    HcclCommInitRootInfoScalable,
    emu_HcclCommInitRootInfoScalable,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(HcclCommRegister, emu_HcclCommRegister, i32, crate::report::unsupported_code(NAME));
absent!(HcclCommSetMemoryRange, emu_HcclCommSetMemoryRange, i32, crate::report::unsupported_code(NAME));
absent!(HcclCommUnsetMemoryRange, emu_HcclCommUnsetMemoryRange, i32, crate::report::unsupported_code(NAME));
absent!(HcclCreateComResource, emu_HcclCreateComResource, i32, crate::report::unsupported_code(NAME));
absent!(HcclCreateOpResCtx, emu_HcclCreateOpResCtx, i32, crate::report::unsupported_code(NAME));
absent!(
    HcclGetAicpuOpStreamNotify,
    emu_HcclGetAicpuOpStreamNotify,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(HcclGetCommConfig, emu_HcclGetCommConfig, i32, crate::report::unsupported_code(NAME));
absent!(HcclGetRootInfoScalable, emu_HcclGetRootInfoScalable, i32, crate::report::unsupported_code(NAME));
absent!(HcclKfcAllocOpArgs, emu_HcclKfcAllocOpArgs, i32, crate::report::unsupported_code(NAME));
absent!(HcclKfcFreeOpArgs, emu_HcclKfcFreeOpArgs, i32, crate::report::unsupported_code(NAME));
absent!(HcclKfcOpArgsSetAlgConfig, emu_HcclKfcOpArgsSetAlgConfig, i32, crate::report::unsupported_code(NAME));
absent!(
    HcclKfcOpArgsSetCommEngine,
    emu_HcclKfcOpArgsSetCommEngine,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(HcclKfcOpArgsSetCount, emu_HcclKfcOpArgsSetCount, i32, crate::report::unsupported_code(NAME));
absent!(
    HcclKfcOpArgsSetDstDataType,
    emu_HcclKfcOpArgsSetDstDataType,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    HcclKfcOpArgsSetReduceType,
    emu_HcclKfcOpArgsSetReduceType,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    HcclKfcOpArgsSetSrcDataType,
    emu_HcclKfcOpArgsSetSrcDataType,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(HccnRpingAddTarget, emu_HccnRpingAddTarget, i32, crate::report::unsupported_code(NAME));
absent!(HccnRpingBatchPingStart, emu_HccnRpingBatchPingStart, i32, crate::report::unsupported_code(NAME));
absent!(HccnRpingBatchPingStop, emu_HccnRpingBatchPingStop, i32, crate::report::unsupported_code(NAME));
absent!(HccnRpingDeinit, emu_HccnRpingDeinit, i32, crate::report::unsupported_code(NAME));
absent!(HccnRpingGetPayload, emu_HccnRpingGetPayload, i32, crate::report::unsupported_code(NAME));
absent!(HccnRpingGetResult, emu_HccnRpingGetResult, i32, crate::report::unsupported_code(NAME));
absent!(HccnRpingGetTarget, emu_HccnRpingGetTarget, i32, crate::report::unsupported_code(NAME));
absent!(HccnRpingInit, emu_HccnRpingInit, i32, crate::report::unsupported_code(NAME));
absent!(HccnRpingRemoveTarget, emu_HccnRpingRemoveTarget, i32, crate::report::unsupported_code(NAME));
absent!(aclAppLogImpl, emu_aclAppLogImpl, (), ());
absent!(aclCreateDataBufferImpl, emu_aclCreateDataBufferImpl, usize, 0usize);
absent!(aclCreateGraphDumpOpt, emu_aclCreateGraphDumpOpt, usize, 0usize);
absent!(aclCreateIntArrayP, emu_aclCreateIntArrayP, (), ());
absent!(aclCreateTensorP, emu_aclCreateTensorP, (), ());
absent!(aclDataTypeSize, emu_aclDataTypeSize, u64, 0);
absent!(aclDataTypeSizeImpl, emu_aclDataTypeSizeImpl, u64, 0);
absent!(aclDestroyDataBufferImpl, emu_aclDestroyDataBufferImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclDestroyGraphDumpOpt, emu_aclDestroyGraphDumpOpt, i32, crate::report::unsupported_code(NAME));
absent!(aclDumpOpTensors, emu_aclDumpOpTensors, i32, crate::report::unsupported_code(NAME));
absent!(
    aclFinalizeCallbackRegister,
    emu_aclFinalizeCallbackRegister,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclFinalizeCallbackRegisterImpl,
    emu_aclFinalizeCallbackRegisterImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclFinalizeCallbackUnRegister,
    emu_aclFinalizeCallbackUnRegister,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclFinalizeCallbackUnRegisterImpl,
    emu_aclFinalizeCallbackUnRegisterImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclFinalizeImpl, emu_aclFinalizeImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclFinalizeReferenceImpl, emu_aclFinalizeReferenceImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclFloat16ToFloat, emu_aclFloat16ToFloat, f32, 0.0);
absent!(aclFloat16ToFloatImpl, emu_aclFloat16ToFloatImpl, f32, 0.0);
absent!(aclFloatToFloat16, emu_aclFloatToFloat16, u16, 0);
absent!(aclFloatToFloat16Impl, emu_aclFloatToFloat16Impl, u16, 0);
absent!(aclGenGraphAndDumpForOp, emu_aclGenGraphAndDumpForOp, i32, crate::report::unsupported_code(NAME));
absent!(aclGetCannAttributeImpl, emu_aclGetCannAttributeImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclGetCannAttributeListImpl,
    emu_aclGetCannAttributeListImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclGetCustomOpLibPath, emu_aclGetCustomOpLibPath, usize, 0usize);
absent!(aclGetDataBufferAddrImpl, emu_aclGetDataBufferAddrImpl, usize, 0usize);
absent!(aclGetDataBufferSize, emu_aclGetDataBufferSize, u32, 0);
absent!(aclGetDataBufferSizeImpl, emu_aclGetDataBufferSizeImpl, u32, 0);
absent!(aclGetDataBufferSizeV2Impl, emu_aclGetDataBufferSizeV2Impl, u64, 0);
absent!(
    aclGetDeviceCapabilityImpl,
    emu_aclGetDeviceCapabilityImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclGetRecentErrMsgImpl, emu_aclGetRecentErrMsgImpl, usize, 0usize);
absent!(aclGetTensorDescAddress, emu_aclGetTensorDescAddress, usize, 0usize);
absent!(aclGetTensorDescByIndex, emu_aclGetTensorDescByIndex, usize, 0usize);
absent!(aclGetTensorDescDim, emu_aclGetTensorDescDim, i64, 0);
absent!(aclGetTensorDescDimRange, emu_aclGetTensorDescDimRange, i32, crate::report::unsupported_code(NAME));
absent!(aclGetTensorDescElementCount, emu_aclGetTensorDescElementCount, u64, 0);
absent!(aclGetTensorDescName, emu_aclGetTensorDescName, usize, 0usize);
absent!(aclGetTensorDescSize, emu_aclGetTensorDescSize, u64, 0);
absent!(aclInitCallbackRegister, emu_aclInitCallbackRegister, i32, crate::report::unsupported_code(NAME));
absent!(
    aclInitCallbackRegisterImpl,
    emu_aclInitCallbackRegisterImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclInitCallbackUnRegister, emu_aclInitCallbackUnRegister, i32, crate::report::unsupported_code(NAME));
absent!(
    aclInitCallbackUnRegisterImpl,
    emu_aclInitCallbackUnRegisterImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclInitImpl, emu_aclInitImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclRfft1D, emu_aclRfft1D, i32, crate::report::unsupported_code(NAME));
absent!(aclRfft1DGetWorkspaceSize, emu_aclRfft1DGetWorkspaceSize, i32, crate::report::unsupported_code(NAME));
absent!(aclSetTensorConst, emu_aclSetTensorConst, i32, crate::report::unsupported_code(NAME));
absent!(aclSetTensorDynamicInput, emu_aclSetTensorDynamicInput, i32, crate::report::unsupported_code(NAME));
absent!(aclSetTensorOriginFormat, emu_aclSetTensorOriginFormat, i32, crate::report::unsupported_code(NAME));
absent!(aclSetTensorOriginShape, emu_aclSetTensorOriginShape, i32, crate::report::unsupported_code(NAME));
absent!(aclSetTensorShapeRange, emu_aclSetTensorShapeRange, i32, crate::report::unsupported_code(NAME));
absent!(aclSetTensorStorageFormat, emu_aclSetTensorStorageFormat, i32, crate::report::unsupported_code(NAME));
absent!(aclSetTensorStorageShape, emu_aclSetTensorStorageShape, i32, crate::report::unsupported_code(NAME));
absent!(aclSetTensorValueRange, emu_aclSetTensorValueRange, i32, crate::report::unsupported_code(NAME));
absent!(aclStft, emu_aclStft, i32, crate::report::unsupported_code(NAME));
absent!(aclStftGetWorkspaceSize, emu_aclStftGetWorkspaceSize, i32, crate::report::unsupported_code(NAME));
absent!(aclTransTensorDescFormat, emu_aclTransTensorDescFormat, i32, crate::report::unsupported_code(NAME));
absent!(aclUpdateDataBuffer, emu_aclUpdateDataBuffer, i32, crate::report::unsupported_code(NAME));
absent!(aclUpdateDataBufferImpl, emu_aclUpdateDataBufferImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    acldumpGetExceptionInfoPath,
    emu_acldumpGetExceptionInfoPath,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(acldumpGetPath, emu_acldumpGetPath, usize, 0usize);
absent!(acldumpRegCallback, emu_acldumpRegCallback, i32, crate::report::unsupported_code(NAME));
absent!(acldumpSaveExceptionInfo, emu_acldumpSaveExceptionInfo, i32, crate::report::unsupported_code(NAME));
absent!(acldumpUnregCallback, emu_acldumpUnregCallback, (), ());
absent!(aclgrphBuildFinalize, emu_aclgrphBuildFinalize, (), ());
absent!(acllogRecord, emu_acllogRecord, (), ());
absent!(aclmdlAddDatasetBuffer, emu_aclmdlAddDatasetBuffer, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlBundleGetModelId, emu_aclmdlBundleGetModelId, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlBundleGetModelNum, emu_aclmdlBundleGetModelNum, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlBundleLoadFromFile, emu_aclmdlBundleLoadFromFile, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlBundleLoadFromMem, emu_aclmdlBundleLoadFromMem, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlBundleUnload, emu_aclmdlBundleUnload, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlCreateAIPP, emu_aclmdlCreateAIPP, usize, 0usize);
absent!(aclmdlCreateAndGetOpDesc, emu_aclmdlCreateAndGetOpDesc, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlCreateConfigHandle, emu_aclmdlCreateConfigHandle, usize, 0usize);
absent!(aclmdlCreateDataset, emu_aclmdlCreateDataset, usize, 0usize);
absent!(aclmdlCreateDesc, emu_aclmdlCreateDesc, usize, 0usize);
absent!(aclmdlCreateExecConfigHandle, emu_aclmdlCreateExecConfigHandle, usize, 0usize);
absent!(aclmdlDestroyAIPP, emu_aclmdlDestroyAIPP, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlDestroyConfigHandle, emu_aclmdlDestroyConfigHandle, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlDestroyDataset, emu_aclmdlDestroyDataset, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlDestroyDesc, emu_aclmdlDestroyDesc, i32, crate::report::unsupported_code(NAME));
absent!(
    aclmdlDestroyExecConfigHandle,
    emu_aclmdlDestroyExecConfigHandle,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclmdlExecute, emu_aclmdlExecute, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlExecuteAsync, emu_aclmdlExecuteAsync, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlExecuteAsyncV2, emu_aclmdlExecuteAsyncV2, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlExecuteV2, emu_aclmdlExecuteV2, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlFinalizeDumpImpl, emu_aclmdlFinalizeDumpImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetAippDataSize, emu_aclmdlGetAippDataSize, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetAippType, emu_aclmdlGetAippType, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetCurOutputDims, emu_aclmdlGetCurOutputDims, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetDatasetBuffer, emu_aclmdlGetDatasetBuffer, usize, 0usize);
absent!(aclmdlGetDatasetNumBuffers, emu_aclmdlGetDatasetNumBuffers, u64, 0);
absent!(aclmdlGetDatasetTensorDesc, emu_aclmdlGetDatasetTensorDesc, usize, 0usize);
absent!(aclmdlGetDesc, emu_aclmdlGetDesc, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetDescFromFile, emu_aclmdlGetDescFromFile, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetDescFromMem, emu_aclmdlGetDescFromMem, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetDynamicBatch, emu_aclmdlGetDynamicBatch, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetDynamicHW, emu_aclmdlGetDynamicHW, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetFirstAippInfo, emu_aclmdlGetFirstAippInfo, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetInputDataType, emu_aclmdlGetInputDataType, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetInputDims, emu_aclmdlGetInputDims, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetInputDimsRange, emu_aclmdlGetInputDimsRange, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetInputDimsV2, emu_aclmdlGetInputDimsV2, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetInputDynamicDims, emu_aclmdlGetInputDynamicDims, i32, crate::report::unsupported_code(NAME));
absent!(
    aclmdlGetInputDynamicGearCount,
    emu_aclmdlGetInputDynamicGearCount,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclmdlGetInputFormat, emu_aclmdlGetInputFormat, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetInputIndexByName, emu_aclmdlGetInputIndexByName, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetInputNameByIndex, emu_aclmdlGetInputNameByIndex, usize, 0usize);
absent!(aclmdlGetInputSizeByIndex, emu_aclmdlGetInputSizeByIndex, u64, 0);
absent!(aclmdlGetNumInputs, emu_aclmdlGetNumInputs, u64, 0);
absent!(aclmdlGetNumOutputs, emu_aclmdlGetNumOutputs, u64, 0);
absent!(aclmdlGetOpAttr, emu_aclmdlGetOpAttr, usize, 0usize);
absent!(aclmdlGetOutputDataType, emu_aclmdlGetOutputDataType, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetOutputDims, emu_aclmdlGetOutputDims, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlGetOutputFormat, emu_aclmdlGetOutputFormat, i32, crate::report::unsupported_code(NAME));
absent!(
    aclmdlGetOutputIndexByName,
    emu_aclmdlGetOutputIndexByName,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclmdlGetOutputNameByIndex, emu_aclmdlGetOutputNameByIndex, usize, 0usize);
absent!(aclmdlGetOutputSizeByIndex, emu_aclmdlGetOutputSizeByIndex, u64, 0);
absent!(aclmdlGetTensorRealName, emu_aclmdlGetTensorRealName, usize, 0usize);
absent!(aclmdlInitDumpImpl, emu_aclmdlInitDumpImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlLoadFromFile, emu_aclmdlLoadFromFile, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlLoadFromFileWithMem, emu_aclmdlLoadFromFileWithMem, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlLoadFromFileWithQ, emu_aclmdlLoadFromFileWithQ, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlLoadFromMem, emu_aclmdlLoadFromMem, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlLoadFromMemWithMem, emu_aclmdlLoadFromMemWithMem, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlLoadFromMemWithQ, emu_aclmdlLoadFromMemWithQ, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlLoadWithConfig, emu_aclmdlLoadWithConfig, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlQueryExeOMDesc, emu_aclmdlQueryExeOMDesc, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlQuerySize, emu_aclmdlQuerySize, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlQuerySizeFromMem, emu_aclmdlQuerySizeFromMem, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIAbort, emu_aclmdlRIAbort, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIAbortImpl, emu_aclmdlRIAbortImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIBindStream, emu_aclmdlRIBindStream, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIBindStreamImpl, emu_aclmdlRIBindStreamImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIBuildBegin, emu_aclmdlRIBuildBegin, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIBuildBeginImpl, emu_aclmdlRIBuildBeginImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIBuildEnd, emu_aclmdlRIBuildEnd, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIBuildEndImpl, emu_aclmdlRIBuildEndImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRICaptureBegin, emu_aclmdlRICaptureBegin, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRICaptureBeginImpl, emu_aclmdlRICaptureBeginImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRICaptureEnd, emu_aclmdlRICaptureEnd, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRICaptureEndImpl, emu_aclmdlRICaptureEndImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclmdlRICaptureGetInfoImpl,
    emu_aclmdlRICaptureGetInfoImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclmdlRICaptureTaskGrpBegin,
    emu_aclmdlRICaptureTaskGrpBegin,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclmdlRICaptureTaskGrpBeginImpl,
    emu_aclmdlRICaptureTaskGrpBeginImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclmdlRICaptureTaskGrpEnd, emu_aclmdlRICaptureTaskGrpEnd, i32, crate::report::unsupported_code(NAME));
absent!(
    aclmdlRICaptureTaskGrpEndImpl,
    emu_aclmdlRICaptureTaskGrpEndImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclmdlRICaptureTaskUpdateBegin,
    emu_aclmdlRICaptureTaskUpdateBegin,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclmdlRICaptureTaskUpdateBeginImpl,
    emu_aclmdlRICaptureTaskUpdateBeginImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclmdlRICaptureTaskUpdateEnd,
    emu_aclmdlRICaptureTaskUpdateEnd,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclmdlRICaptureTaskUpdateEndImpl,
    emu_aclmdlRICaptureTaskUpdateEndImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclmdlRICaptureThreadExchangeModeImpl,
    emu_aclmdlRICaptureThreadExchangeModeImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclmdlRICaptureToModelRIBegin,
    emu_aclmdlRICaptureToModelRIBegin,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclmdlRICondHandleCreate, emu_aclmdlRICondHandleCreate, i32, crate::report::unsupported_code(NAME));
absent!(
    aclmdlRICondHandleGetCondPtr,
    emu_aclmdlRICondHandleGetCondPtr,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclmdlRIDebugJsonPrint, emu_aclmdlRIDebugJsonPrint, i32, crate::report::unsupported_code(NAME));
absent!(
    aclmdlRIDebugJsonPrintImpl,
    emu_aclmdlRIDebugJsonPrintImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclmdlRIDebugPrint, emu_aclmdlRIDebugPrint, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIDebugPrintImpl, emu_aclmdlRIDebugPrintImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIDestroy, emu_aclmdlRIDestroy, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIDestroyImpl, emu_aclmdlRIDestroyImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclmdlRIDestroyRegisterCallback,
    emu_aclmdlRIDestroyRegisterCallback,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclmdlRIDestroyUnregisterCallback,
    emu_aclmdlRIDestroyUnregisterCallback,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclmdlRIEndTask, emu_aclmdlRIEndTask, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIEndTaskImpl, emu_aclmdlRIEndTaskImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIExecute, emu_aclmdlRIExecute, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIExecuteAsync, emu_aclmdlRIExecuteAsync, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIExecuteAsyncImpl, emu_aclmdlRIExecuteAsyncImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIExecuteImpl, emu_aclmdlRIExecuteImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIGetId, emu_aclmdlRIGetId, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIGetName, emu_aclmdlRIGetName, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIGetNameImpl, emu_aclmdlRIGetNameImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIGetStreams, emu_aclmdlRIGetStreams, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIGetTasksByStream, emu_aclmdlRIGetTasksByStream, i32, crate::report::unsupported_code(NAME));
absent!(
    aclmdlRIKernelTaskGetAttribute,
    emu_aclmdlRIKernelTaskGetAttribute,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclmdlRISetName, emu_aclmdlRISetName, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRISetNameImpl, emu_aclmdlRISetNameImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRITaskDisable, emu_aclmdlRITaskDisable, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRITaskGetParams, emu_aclmdlRITaskGetParams, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRITaskGetSeqId, emu_aclmdlRITaskGetSeqId, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRITaskGetType, emu_aclmdlRITaskGetType, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRITaskSetParams, emu_aclmdlRITaskSetParams, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIUnbindStream, emu_aclmdlRIUnbindStream, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIUnbindStreamImpl, emu_aclmdlRIUnbindStreamImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlRIUpdate, emu_aclmdlRIUpdate, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlSetConfigOpt, emu_aclmdlSetConfigOpt, i32, crate::report::unsupported_code(NAME));
absent!(
    aclmdlSetDatasetTensorDesc,
    emu_aclmdlSetDatasetTensorDesc,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclmdlSetDumpImpl, emu_aclmdlSetDumpImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlSetDynamicBatchSize, emu_aclmdlSetDynamicBatchSize, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlSetDynamicHWSize, emu_aclmdlSetDynamicHWSize, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlSetExecConfigOpt, emu_aclmdlSetExecConfigOpt, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlSetInputAIPP, emu_aclmdlSetInputAIPP, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlSetInputDynamicDims, emu_aclmdlSetInputDynamicDims, i32, crate::report::unsupported_code(NAME));
absent!(aclmdlUnload, emu_aclmdlUnload, i32, crate::report::unsupported_code(NAME));
absent!(aclnnAicpuFinalize, emu_aclnnAicpuFinalize, (), ());
absent!(aclnnBatchMatMulWeightNZ, emu_aclnnBatchMatMulWeightNZ, i32, crate::report::unsupported_code(NAME));
absent!(
    aclnnCalculateConvolutionWeightSize,
    emu_aclnnCalculateConvolutionWeightSize,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclnnCalculateMatmulWeightSize,
    emu_aclnnCalculateMatmulWeightSize,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclnnCalculateMatmulWeightSizeV2,
    emu_aclnnCalculateMatmulWeightSizeV2,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclnnFlashAttentionUnpaddingScoreGradV5GetMaxWorkspaceSize,
    emu_aclnnFlashAttentionUnpaddingScoreGradV5GetMaxWorkspaceSize,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclnnFlashAttentionVarLenScoreV5GetMaxWorkspaceSize,
    emu_aclnnFlashAttentionVarLenScoreV5GetMaxWorkspaceSize,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclnnGetPytorchRandom, emu_aclnnGetPytorchRandom, i32, crate::report::unsupported_code(NAME));
absent!(
    aclnnMoeDistributeCombineSetupTeardownCalcOutputSize,
    emu_aclnnMoeDistributeCombineSetupTeardownCalcOutputSize,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclnnMoeDistributeDispatchSetupTeardownCalcOutputSize,
    emu_aclnnMoeDistributeDispatchSetupTeardownCalcOutputSize,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclnnNpuFormatCastCalculateSizeAndFormat,
    emu_aclnnNpuFormatCastCalculateSizeAndFormat,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclnnSetPytorchRandom, emu_aclnnSetPytorchRandom, i32, crate::report::unsupported_code(NAME));
absent!(aclnnTransQuantParam, emu_aclnnTransQuantParam, i32, crate::report::unsupported_code(NAME));
absent!(aclnnTransSparse4to2Para, emu_aclnnTransSparse4to2Para, i32, crate::report::unsupported_code(NAME));
absent!(aclopCast, emu_aclopCast, i32, crate::report::unsupported_code(NAME));
absent!(aclopCompile, emu_aclopCompile, i32, crate::report::unsupported_code(NAME));
absent!(aclopCreateHandle, emu_aclopCreateHandle, i32, crate::report::unsupported_code(NAME));
absent!(aclopCreateHandleForCast, emu_aclopCreateHandleForCast, i32, crate::report::unsupported_code(NAME));
absent!(aclopCreateKernel, emu_aclopCreateKernel, i32, crate::report::unsupported_code(NAME));
absent!(aclopDestroyHandle, emu_aclopDestroyHandle, (), ());
absent!(aclopExecWithHandle, emu_aclopExecWithHandle, i32, crate::report::unsupported_code(NAME));
absent!(aclopExecute, emu_aclopExecute, i32, crate::report::unsupported_code(NAME));
absent!(aclopExecuteV2, emu_aclopExecuteV2, i32, crate::report::unsupported_code(NAME));
absent!(aclopInferShape, emu_aclopInferShape, i32, crate::report::unsupported_code(NAME));
absent!(aclopLoad, emu_aclopLoad, i32, crate::report::unsupported_code(NAME));
absent!(aclopRegisterCompileFunc, emu_aclopRegisterCompileFunc, i32, crate::report::unsupported_code(NAME));
absent!(aclopSetAttrListDataType, emu_aclopSetAttrListDataType, i32, crate::report::unsupported_code(NAME));
absent!(aclopSetAttrListString, emu_aclopSetAttrListString, i32, crate::report::unsupported_code(NAME));
absent!(aclopSetCompileFlag, emu_aclopSetCompileFlag, i32, crate::report::unsupported_code(NAME));
absent!(aclopSetKernelArgs, emu_aclopSetKernelArgs, i32, crate::report::unsupported_code(NAME));
absent!(
    aclopSetKernelWorkspaceSizes,
    emu_aclopSetKernelWorkspaceSizes,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclopSetMaxOpQueueNum, emu_aclopSetMaxOpQueueNum, i32, crate::report::unsupported_code(NAME));
absent!(aclopSetModelDir, emu_aclopSetModelDir, i32, crate::report::unsupported_code(NAME));
absent!(aclopStartDumpArgs, emu_aclopStartDumpArgs, i32, crate::report::unsupported_code(NAME));
absent!(aclopStopDumpArgs, emu_aclopStopDumpArgs, i32, crate::report::unsupported_code(NAME));
absent!(
    aclopUnregisterCompileFunc,
    emu_aclopUnregisterCompileFunc,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclopUpdateParams, emu_aclopUpdateParams, i32, crate::report::unsupported_code(NAME));
absent!(aclplatformGetDeviceInfo, emu_aclplatformGetDeviceInfo, i32, crate::report::unsupported_code(NAME));
absent!(
    aclplatformGetInstructionInfo,
    emu_aclplatformGetInstructionInfo,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclprofCreateSubscribeConfig, emu_aclprofCreateSubscribeConfig, usize, 0usize);
absent!(
    aclprofDestroySubscribeConfig,
    emu_aclprofDestroySubscribeConfig,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclprofGetModelId, emu_aclprofGetModelId, u64, 0);
absent!(aclprofGetOpAttriValue, emu_aclprofGetOpAttriValue, usize, 0usize);
absent!(aclprofGetOpDescSize, emu_aclprofGetOpDescSize, i32, crate::report::unsupported_code(NAME));
absent!(aclprofGetOpDuration, emu_aclprofGetOpDuration, u64, 0);
absent!(aclprofGetOpEnd, emu_aclprofGetOpEnd, u64, 0);
absent!(aclprofGetOpFlag, emu_aclprofGetOpFlag, i32, crate::report::unsupported_code(NAME));
absent!(aclprofGetOpName, emu_aclprofGetOpName, i32, crate::report::unsupported_code(NAME));
absent!(aclprofGetOpNameLen, emu_aclprofGetOpNameLen, i32, crate::report::unsupported_code(NAME));
absent!(aclprofGetOpNum, emu_aclprofGetOpNum, i32, crate::report::unsupported_code(NAME));
absent!(aclprofGetOpStart, emu_aclprofGetOpStart, u64, 0);
absent!(aclprofGetOpType, emu_aclprofGetOpType, i32, crate::report::unsupported_code(NAME));
absent!(aclprofGetOpTypeLen, emu_aclprofGetOpTypeLen, i32, crate::report::unsupported_code(NAME));
absent!(aclprofModelSubscribe, emu_aclprofModelSubscribe, i32, crate::report::unsupported_code(NAME));
absent!(aclprofModelUnSubscribe, emu_aclprofModelUnSubscribe, i32, crate::report::unsupported_code(NAME));
absent!(aclprofRangePop, emu_aclprofRangePop, i32, crate::report::unsupported_code(NAME));
absent!(aclprofRangePushEx, emu_aclprofRangePushEx, i32, crate::report::unsupported_code(NAME));
absent!(aclprofStr2Id, emu_aclprofStr2Id, u64, 0);
absent!(aclrtActiveStream, emu_aclrtActiveStream, i32, crate::report::unsupported_code(NAME));
absent!(aclrtActiveStreamImpl, emu_aclrtActiveStreamImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtAllocBuf, emu_aclrtAllocBuf, i32, crate::report::unsupported_code(NAME));
absent!(aclrtAllocBufImpl, emu_aclrtAllocBufImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtAllocatorCreateDesc, emu_aclrtAllocatorCreateDesc, usize, 0usize);
absent!(aclrtAllocatorCreateDescImpl, emu_aclrtAllocatorCreateDescImpl, usize, 0usize);
absent!(aclrtAllocatorDestroyDesc, emu_aclrtAllocatorDestroyDesc, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtAllocatorDestroyDescImpl,
    emu_aclrtAllocatorDestroyDescImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtAllocatorGetByStream, emu_aclrtAllocatorGetByStream, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtAllocatorGetByStreamImpl,
    emu_aclrtAllocatorGetByStreamImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtAllocatorRegister, emu_aclrtAllocatorRegister, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtAllocatorRegisterImpl,
    emu_aclrtAllocatorRegisterImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtAllocatorSetAllocAdviseFuncToDesc,
    emu_aclrtAllocatorSetAllocAdviseFuncToDesc,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtAllocatorSetAllocAdviseFuncToDescImpl,
    emu_aclrtAllocatorSetAllocAdviseFuncToDescImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtAllocatorSetAllocFuncToDesc,
    emu_aclrtAllocatorSetAllocFuncToDesc,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtAllocatorSetAllocFuncToDescImpl,
    emu_aclrtAllocatorSetAllocFuncToDescImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtAllocatorSetFreeFuncToDesc,
    emu_aclrtAllocatorSetFreeFuncToDesc,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtAllocatorSetFreeFuncToDescImpl,
    emu_aclrtAllocatorSetFreeFuncToDescImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtAllocatorSetGetAddrFromBlockFuncToDesc,
    emu_aclrtAllocatorSetGetAddrFromBlockFuncToDesc,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtAllocatorSetGetAddrFromBlockFuncToDescImpl,
    emu_aclrtAllocatorSetGetAddrFromBlockFuncToDescImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtAllocatorSetObjToDesc,
    emu_aclrtAllocatorSetObjToDesc,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtAllocatorSetObjToDescImpl,
    emu_aclrtAllocatorSetObjToDescImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtAllocatorUnregister, emu_aclrtAllocatorUnregister, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtAllocatorUnregisterImpl,
    emu_aclrtAllocatorUnregisterImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtAppendBufChain, emu_aclrtAppendBufChain, i32, crate::report::unsupported_code(NAME));
absent!(aclrtAppendBufChainImpl, emu_aclrtAppendBufChainImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtBinaryGetDevAddress, emu_aclrtBinaryGetDevAddress, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtBinaryGetDevAddressImpl,
    emu_aclrtBinaryGetDevAddressImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtBinaryGetFunction, emu_aclrtBinaryGetFunction, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtBinaryGetFunctionByEntry,
    emu_aclrtBinaryGetFunctionByEntry,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtBinaryGetFunctionByEntryImpl,
    emu_aclrtBinaryGetFunctionByEntryImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtBinaryGetFunctionImpl,
    emu_aclrtBinaryGetFunctionImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtBinaryGetGlobal, emu_aclrtBinaryGetGlobal, i32, crate::report::unsupported_code(NAME));
absent!(aclrtBinaryLoad, emu_aclrtBinaryLoad, i32, crate::report::unsupported_code(NAME));
absent!(aclrtBinaryLoadFromData, emu_aclrtBinaryLoadFromData, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtBinaryLoadFromDataImpl,
    emu_aclrtBinaryLoadFromDataImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtBinaryLoadFromFile, emu_aclrtBinaryLoadFromFile, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtBinaryLoadFromFileImpl,
    emu_aclrtBinaryLoadFromFileImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtBinaryLoadImpl, emu_aclrtBinaryLoadImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtBinarySetExceptionCallback,
    emu_aclrtBinarySetExceptionCallback,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtBinaryUnLoad, emu_aclrtBinaryUnLoad, i32, crate::report::unsupported_code(NAME));
absent!(aclrtBinaryUnLoadImpl, emu_aclrtBinaryUnLoadImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtCacheLastTaskExtendInfo,
    emu_aclrtCacheLastTaskExtendInfo,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtCacheLastTaskOpInfo, emu_aclrtCacheLastTaskOpInfo, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtCacheLastTaskOpInfoImpl,
    emu_aclrtCacheLastTaskOpInfoImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtCheckArchCompatibility,
    emu_aclrtCheckArchCompatibility,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtCheckArchCompatibilityImpl,
    emu_aclrtCheckArchCompatibilityImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtCheckMemType, emu_aclrtCheckMemType, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCheckMemTypeImpl, emu_aclrtCheckMemTypeImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCmoAsyncImpl, emu_aclrtCmoAsyncImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCmoAsyncWithBarrier, emu_aclrtCmoAsyncWithBarrier, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtCmoAsyncWithBarrierImpl,
    emu_aclrtCmoAsyncWithBarrierImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtCmoAsyncWithDesc, emu_aclrtCmoAsyncWithDesc, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCmoAsyncWithDescImpl, emu_aclrtCmoAsyncWithDescImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCmoGetDescSize, emu_aclrtCmoGetDescSize, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCmoGetDescSizeImpl, emu_aclrtCmoGetDescSizeImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCmoSetDesc, emu_aclrtCmoSetDesc, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCmoSetDescImpl, emu_aclrtCmoSetDescImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCmoWaitBarrier, emu_aclrtCmoWaitBarrier, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCmoWaitBarrierImpl, emu_aclrtCmoWaitBarrierImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCntNotifyCreate, emu_aclrtCntNotifyCreate, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCntNotifyCreateImpl, emu_aclrtCntNotifyCreateImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCntNotifyDestroy, emu_aclrtCntNotifyDestroy, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCntNotifyDestroyImpl, emu_aclrtCntNotifyDestroyImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCntNotifyGetId, emu_aclrtCntNotifyGetId, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCntNotifyGetIdImpl, emu_aclrtCntNotifyGetIdImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCntNotifyRecord, emu_aclrtCntNotifyRecord, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCntNotifyRecordImpl, emu_aclrtCntNotifyRecordImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCntNotifyReset, emu_aclrtCntNotifyReset, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCntNotifyResetImpl, emu_aclrtCntNotifyResetImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtCntNotifyWaitWithTimeout,
    emu_aclrtCntNotifyWaitWithTimeout,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtCntNotifyWaitWithTimeoutImpl,
    emu_aclrtCntNotifyWaitWithTimeoutImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtCopyBufRef, emu_aclrtCopyBufRef, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCopyBufRefImpl, emu_aclrtCopyBufRefImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCreateBinary, emu_aclrtCreateBinary, usize, 0usize);
absent!(aclrtCreateBinaryImpl, emu_aclrtCreateBinaryImpl, usize, 0usize);
absent!(aclrtCreateContextImpl, emu_aclrtCreateContextImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtCreateEventExWithFlagImpl,
    emu_aclrtCreateEventExWithFlagImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtCreateEventImpl, emu_aclrtCreateEventImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtCreateEventWithFlagImpl,
    emu_aclrtCreateEventWithFlagImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtCreateGroupInfo, emu_aclrtCreateGroupInfo, usize, 0usize);
absent!(aclrtCreateGroupInfoImpl, emu_aclrtCreateGroupInfoImpl, usize, 0usize);
absent!(aclrtCreateLabel, emu_aclrtCreateLabel, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCreateLabelImpl, emu_aclrtCreateLabelImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCreateLabelList, emu_aclrtCreateLabelList, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCreateLabelListImpl, emu_aclrtCreateLabelListImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCreateNotify, emu_aclrtCreateNotify, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCreateNotifyImpl, emu_aclrtCreateNotifyImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCreateStreamConfigHandle, emu_aclrtCreateStreamConfigHandle, usize, 0usize);
absent!(aclrtCreateStreamImpl, emu_aclrtCreateStreamImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtCreateStreamV2, emu_aclrtCreateStreamV2, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtCreateStreamWithConfigImpl,
    emu_aclrtCreateStreamWithConfigImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtCtxGetCurrentDefaultStreamImpl,
    emu_aclrtCtxGetCurrentDefaultStreamImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtCtxGetFloatOverflowAddr,
    emu_aclrtCtxGetFloatOverflowAddr,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtCtxGetFloatOverflowAddrImpl,
    emu_aclrtCtxGetFloatOverflowAddrImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtCtxGetSysParamOptImpl,
    emu_aclrtCtxGetSysParamOptImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtCtxSetSysParamOptImpl,
    emu_aclrtCtxSetSysParamOptImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtDestroyBinary, emu_aclrtDestroyBinary, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyBinaryImpl, emu_aclrtDestroyBinaryImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyContextImpl, emu_aclrtDestroyContextImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyEventImpl, emu_aclrtDestroyEventImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyGroupInfo, emu_aclrtDestroyGroupInfo, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyGroupInfoImpl, emu_aclrtDestroyGroupInfoImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyLabel, emu_aclrtDestroyLabel, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyLabelImpl, emu_aclrtDestroyLabelImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyLabelList, emu_aclrtDestroyLabelList, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyLabelListImpl, emu_aclrtDestroyLabelListImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyNotify, emu_aclrtDestroyNotify, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDestroyNotifyImpl, emu_aclrtDestroyNotifyImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtDestroyStreamConfigHandle,
    emu_aclrtDestroyStreamConfigHandle,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtDestroyStreamForceImpl,
    emu_aclrtDestroyStreamForceImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtDestroyStreamImpl, emu_aclrtDestroyStreamImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtDeviceCanAccessPeerImpl,
    emu_aclrtDeviceCanAccessPeerImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtDeviceDisablePeerAccessImpl,
    emu_aclrtDeviceDisablePeerAccessImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtDeviceEnablePeerAccessImpl,
    emu_aclrtDeviceEnablePeerAccessImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtDeviceGetBareTgidImpl,
    emu_aclrtDeviceGetBareTgidImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtDeviceGetByPCIBusId, emu_aclrtDeviceGetByPCIBusId, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtDeviceGetHostAtomicCapabilities,
    emu_aclrtDeviceGetHostAtomicCapabilities,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtDeviceGetLimit, emu_aclrtDeviceGetLimit, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtDeviceGetP2PAtomicCapabilities,
    emu_aclrtDeviceGetP2PAtomicCapabilities,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtDeviceGetPCIBusId, emu_aclrtDeviceGetPCIBusId, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtDeviceGetStreamPriorityRange,
    emu_aclrtDeviceGetStreamPriorityRange,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtDeviceGetStreamPriorityRangeImpl,
    emu_aclrtDeviceGetStreamPriorityRangeImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtDeviceGetUuidImpl, emu_aclrtDeviceGetUuidImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDeviceL2CacheFlush, emu_aclrtDeviceL2CacheFlush, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtDevicePeerAccessStatusImpl,
    emu_aclrtDevicePeerAccessStatusImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtDeviceSetLimit, emu_aclrtDeviceSetLimit, i32, crate::report::unsupported_code(NAME));
absent!(aclrtDeviceTaskAbortImpl, emu_aclrtDeviceTaskAbortImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtEventElapsedTimeImpl, emu_aclrtEventElapsedTimeImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtEventGetTimestampImpl,
    emu_aclrtEventGetTimestampImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtExceptionInfoCallbackRegister,
    emu_aclrtExceptionInfoCallbackRegister,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(
    aclrtExceptionInfoCallbackUnregister,
    emu_aclrtExceptionInfoCallbackUnregister,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtFreeBuf, emu_aclrtFreeBuf, i32, crate::report::unsupported_code(NAME));
absent!(aclrtFreeBufImpl, emu_aclrtFreeBufImpl, i32, crate::report::unsupported_code(NAME));
absent!(aclrtFreeHostImpl, emu_aclrtFreeHostImpl, i32, crate::report::unsupported_code(NAME));
absent!(
    aclrtFreeHostWithDevSyncImpl,
    emu_aclrtFreeHostWithDevSyncImpl,
    i32,
    crate::report::unsupported_code(NAME)
);
absent!(aclrtFreeImpl, emu_aclrtFreeImpl, i32, crate::report::unsupported_code(NAME));
