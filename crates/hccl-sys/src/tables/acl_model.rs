//! libascendcl.so: models, captured graphs, operators by type name.

use crate::types::*;
use std::ffi::{c_char, c_int, c_void};

functions! {
    /// libascendcl.so: models, captured graphs, operators by type name.
    AclModel
    aclgrphBuildFinalize() -> ();
    aclmdlAddDatasetBuffer(dataset: *mut aclmdlDataset, dataBuffer: *mut aclDataBuffer) -> i32;
    aclmdlBundleGetModelId(bundleId: u32, index: usize, modelId: *mut u32) -> i32;
    aclmdlBundleGetModelNum(bundleId: u32, modelNum: *mut usize) -> i32;
    aclmdlBundleLoadFromFile(modelPath: *const c_char, bundleId: *mut u32) -> i32;
    aclmdlBundleLoadFromMem(model: *const c_void, modelSize: usize, bundleId: *mut u32) -> i32;
    aclmdlBundleUnload(bundleId: u32) -> i32;
    aclmdlCreateAIPP(batchSize: u64) -> *mut c_void;
    aclmdlCreateAndGetOpDesc(
        deviceId streamId taskId: u32, opName: *mut c_char, opNameLen: usize,
        inputDesc: *mut *mut aclTensorDesc, numInputs: *mut usize, outputDesc: *mut *mut aclTensorDesc,
        numOutputs: *mut usize) -> i32;
    aclmdlCreateConfigHandle() -> *mut c_void;
    aclmdlCreateDataset() -> *mut c_void;
    aclmdlCreateDesc() -> *mut c_void;
    aclmdlCreateExecConfigHandle() -> *mut c_void;
    aclmdlDestroyAIPP(aippParmsSet: *const c_void) -> i32;
    aclmdlDestroyConfigHandle(handle: *mut c_void) -> i32;
    aclmdlDestroyDataset(dataset: *const aclmdlDataset) -> i32;
    aclmdlDestroyDesc(modelDesc: *mut aclmdlDesc) -> i32;
    aclmdlDestroyExecConfigHandle(handle: *const c_void) -> i32;
    aclmdlExecute(modelId: u32, input: *const aclmdlDataset, output: *mut aclmdlDataset) -> i32;
    aclmdlExecuteAsync
        (modelId: u32, input: *const aclmdlDataset, output: *mut aclmdlDataset, stream: aclrtStream) -> i32;
    aclmdlExecuteAsyncV2(
        modelId: u32, input: *const aclmdlDataset, output: *mut aclmdlDataset, stream: aclrtStream,
        handle: *const c_void) -> i32;
    aclmdlExecuteV2(
        modelId: u32, input: *const aclmdlDataset, output: *mut aclmdlDataset, stream: aclrtStream,
        handle: *const c_void) -> i32;
    aclmdlGetAippDataSize(batchSize: u64, size: *mut usize) -> i32;
    aclmdlGetAippType
        (modelId: u32, index: usize, type_: *mut c_void, dynamicAttachedDataIndex: *mut usize) -> i32;
    aclmdlGetCurOutputDims(modelDesc: *const aclmdlDesc, index: usize, dims: *mut c_void) -> i32;
    aclmdlGetDatasetBuffer(dataset: *const aclmdlDataset, index: usize) -> *mut c_void;
    aclmdlGetDatasetNumBuffers(dataset: *const aclmdlDataset) -> u64;
    aclmdlGetDatasetTensorDesc(dataset: *const aclmdlDataset, index: usize) -> *mut c_void;
    aclmdlGetDesc(modelDesc: *mut aclmdlDesc, modelId: u32) -> i32;
    aclmdlGetDescFromFile(modelDesc: *mut aclmdlDesc, modelPath: *const c_char) -> i32;
    aclmdlGetDescFromMem(modelDesc: *mut aclmdlDesc, model: *const c_void, modelSize: usize) -> i32;
    aclmdlGetDynamicBatch(modelDesc: *const aclmdlDesc, batch: *mut c_void) -> i32;
    aclmdlGetDynamicHW(modelDesc: *const aclmdlDesc, index: usize, hw: *mut c_void) -> i32;
    aclmdlGetFirstAippInfo(modelId: u32, index: usize, aippInfo: *mut c_void) -> i32;
    aclmdlGetInputDataType(modelDesc: *const aclmdlDesc, index: usize) -> i32;
    aclmdlGetInputDims(modelDesc: *const aclmdlDesc, index: usize, dims: *mut c_void) -> i32;
    aclmdlGetInputDimsRange(modelDesc: *const aclmdlDesc, index: usize, dimsRange: *mut c_void) -> i32;
    aclmdlGetInputDimsV2(modelDesc: *const aclmdlDesc, index: usize, dims: *mut c_void) -> i32;
    aclmdlGetInputDynamicDims
        (modelDesc: *const aclmdlDesc, index: usize, dims: *mut c_void, gearCount: usize) -> i32;
    aclmdlGetInputDynamicGearCount(modelDesc: *const aclmdlDesc, index: usize, gearCount: *mut usize) -> i32;
    aclmdlGetInputFormat(modelDesc: *const aclmdlDesc, index: usize) -> i32;
    aclmdlGetInputIndexByName(modelDesc: *const aclmdlDesc, name: *const c_char, index: *mut usize) -> i32;
    aclmdlGetInputNameByIndex(modelDesc: *const aclmdlDesc, index: usize) -> *mut c_void;
    aclmdlGetInputSizeByIndex(modelDesc: *mut aclmdlDesc, index: usize) -> u64;
    aclmdlGetNumInputs(modelDesc: *mut aclmdlDesc) -> u64;
    aclmdlGetNumOutputs(modelDesc: *mut aclmdlDesc) -> u64;
    aclmdlGetOpAttr(modelDesc: *mut aclmdlDesc, opName attr: *const c_char) -> *mut c_void;
    aclmdlGetOutputDataType(modelDesc: *const aclmdlDesc, index: usize) -> i32;
    aclmdlGetOutputDims(modelDesc: *const aclmdlDesc, index: usize, dims: *mut c_void) -> i32;
    aclmdlGetOutputFormat(modelDesc: *const aclmdlDesc, index: usize) -> i32;
    aclmdlGetOutputIndexByName(modelDesc: *const aclmdlDesc, name: *const c_char, index: *mut usize) -> i32;
    aclmdlGetOutputNameByIndex(modelDesc: *const aclmdlDesc, index: usize) -> *mut c_void;
    aclmdlGetOutputSizeByIndex(modelDesc: *mut aclmdlDesc, index: usize) -> u64;
    aclmdlGetTensorRealName(modelDesc: *const aclmdlDesc, name: *const c_char) -> *mut c_void;
    aclmdlLoadFromFile(modelPath: *const c_char, modelId: *mut u32) -> i32;
    aclmdlLoadFromFileWithMem(
        modelPath: *const c_char, modelId: *mut u32, workPtr: *mut c_void, workSize: usize,
        weightPtr: *mut c_void, weightSize: usize) -> i32;
    aclmdlLoadFromFileWithQ(
        modelPath: *const c_char, modelId: *mut u32, inputQ: *const u32, inputQNum: usize,
        outputQ: *const u32, outputQNum: usize) -> i32;
    aclmdlLoadFromMem(model: *const c_void, modelSize: usize, modelId: *mut u32) -> i32;
    aclmdlLoadFromMemWithMem(
        model: *const c_void, modelSize: usize, modelId: *mut u32, workPtr: *mut c_void, workSize: usize,
        weightPtr: *mut c_void, weightSize: usize) -> i32;
    aclmdlLoadFromMemWithQ(
        model: *const c_void, modelSize: usize, modelId: *mut u32, inputQ: *const u32, inputQNum: usize,
        outputQ: *const u32, outputQNum: usize) -> i32;
    aclmdlLoadWithConfig(handle: *const c_void, modelId: *mut u32) -> i32;
    aclmdlQueryExeOMDesc(fileName: *const c_char, mdlPartitionSize: *mut c_void) -> i32;
    aclmdlQuerySize(fileName: *const c_char, workSize weightSize: *mut usize) -> i32;
    aclmdlQuerySizeFromMem(model: *const c_void, modelSize: usize, workSize weightSize: *mut usize) -> i32;
    aclmdlRIAbort, aclmdlRIAbortImpl(modelRI: aclmdlRI) -> i32;
    aclmdlRIAddCondTask(params: aclmdlRICondTaskParams, stream: aclrtStream, flags: u32) -> i32;
    aclmdlRIBindStream, aclmdlRIBindStreamImpl(modelRI: aclmdlRI, stream: aclrtStream, flag: u32) -> i32;
    aclmdlRIBuildBegin, aclmdlRIBuildBeginImpl(modelRI: *mut aclmdlRI, flag: u32) -> i32;
    aclmdlRIBuildEnd, aclmdlRIBuildEndImpl(modelRI: aclmdlRI, reserve: *mut c_void) -> i32;
    aclmdlRICaptureBegin, aclmdlRICaptureBeginImpl(stream: aclrtStream, mode: i32) -> i32;
    aclmdlRICaptureEnd, aclmdlRICaptureEndImpl(stream: aclrtStream, modelRI: *mut aclmdlRI) -> i32;
    aclmdlRICaptureGetInfo, aclmdlRICaptureGetInfoImpl
        (stream: aclrtStream, status: *mut c_void, modelRI: *mut aclmdlRI) -> i32;
    aclmdlRICaptureTaskGrpBegin, aclmdlRICaptureTaskGrpBeginImpl(stream: aclrtStream) -> i32;
    aclmdlRICaptureTaskGrpEnd, aclmdlRICaptureTaskGrpEndImpl
        (stream: aclrtStream, handle: *mut aclrtTaskGrp) -> i32;
    aclmdlRICaptureTaskUpdateBegin, aclmdlRICaptureTaskUpdateBeginImpl
        (stream: aclrtStream, handle: aclrtTaskGrp) -> i32;
    aclmdlRICaptureTaskUpdateEnd, aclmdlRICaptureTaskUpdateEndImpl(stream: aclrtStream) -> i32;
    aclmdlRICaptureThreadExchangeMode, aclmdlRICaptureThreadExchangeModeImpl(mode: *mut c_void) -> i32;
    aclmdlRICaptureToModelRIBegin(stream: aclrtStream, modelRI: aclmdlRI, mode: i32) -> i32;
    aclmdlRICondHandleCreate
        (modelRI: aclmdlRI, defaultLaunchValue: u32, flag: i32, handle: *mut aclmdlRICondHandle) -> i32;
    aclmdlRICondHandleGetCondPtr(handle: aclmdlRICondHandle, ptr: *mut *mut u64) -> i32;
    aclmdlRIDebugJsonPrint, aclmdlRIDebugJsonPrintImpl
        (modelRI: aclmdlRI, path: *const c_char, flags: u32) -> i32;
    aclmdlRIDebugPrint, aclmdlRIDebugPrintImpl(modelRI: aclmdlRI) -> i32;
    aclmdlRIDestroy, aclmdlRIDestroyImpl(modelRI: aclmdlRI) -> i32;
    aclmdlRIDestroyRegisterCallback(modelRI: aclmdlRI, func: aclrtCallback, userData: *mut c_void) -> i32;
    aclmdlRIDestroyUnregisterCallback(modelRI: aclmdlRI, func: aclrtCallback) -> i32;
    aclmdlRIEndTask, aclmdlRIEndTaskImpl(modelRI: aclmdlRI, stream: aclrtStream) -> i32;
    aclmdlRIExecute, aclmdlRIExecuteImpl(modelRI: aclmdlRI, timeout: i32) -> i32;
    aclmdlRIExecuteAsync, aclmdlRIExecuteAsyncImpl(modelRI: aclmdlRI, stream: aclrtStream) -> i32;
    aclmdlRIGetId(modelRI: aclmdlRI, modelRIId: *mut u32) -> i32;
    aclmdlRIGetName, aclmdlRIGetNameImpl(modelRI: aclmdlRI, maxLen: u32, name: *mut c_char) -> i32;
    aclmdlRIGetStreams(modelRI: aclmdlRI, streams: *mut aclrtStream, numStreams: *mut u32) -> i32;
    aclmdlRIGetTasksByStream(stream: aclrtStream, tasks: *mut aclmdlRITask, numTasks: *mut u32) -> i32;
    aclmdlRIKernelTaskGetAttribute(task: aclmdlRITask, attrId: i32, attrValue: *mut c_void) -> i32;
    aclmdlRISetName, aclmdlRISetNameImpl(modelRI: aclmdlRI, name: *const c_char) -> i32;
    aclmdlRITaskDisable(task: aclmdlRITask) -> i32;
    aclmdlRITaskGetParams(task: aclmdlRITask, params: *mut c_void) -> i32;
    aclmdlRITaskGetSeqId(task: aclmdlRITask, id: *mut u32) -> i32;
    aclmdlRITaskGetType(task: aclmdlRITask, type_: *mut c_void) -> i32;
    aclmdlRITaskSetParams(task: aclmdlRITask, params: *mut c_void) -> i32;
    aclmdlRIUnbindStream, aclmdlRIUnbindStreamImpl(modelRI: aclmdlRI, stream: aclrtStream) -> i32;
    aclmdlRIUpdate(modelRI: aclmdlRI) -> i32;
    aclmdlSetConfigOpt(handle: *mut c_void, attr: i32, attrValue: *const c_void, valueSize: usize) -> i32;
    aclmdlSetDatasetTensorDesc
        (dataset: *mut aclmdlDataset, tensorDesc: *mut aclTensorDesc, index: usize) -> i32;
    aclmdlSetDynamicBatchSize(modelId: u32, dataset: *mut aclmdlDataset, index: usize, batchSize: u64) -> i32;
    aclmdlSetDynamicHWSize(modelId: u32, dataset: *mut aclmdlDataset, index: usize, height width: u64) -> i32;
    aclmdlSetExecConfigOpt(handle: *mut c_void, attr: i32, attrValue: *const c_void, valueSize: usize) -> i32;
    aclmdlSetInputAIPP
        (modelId: u32, dataset: *mut aclmdlDataset, index: usize, aippParmsSet: *const c_void) -> i32;
    aclmdlSetInputDynamicDims
        (modelId: u32, dataset: *mut aclmdlDataset, index: usize, dims: *const c_void) -> i32;
    aclmdlUnload(modelId: u32) -> i32;
    aclopCast(
        srcDesc: *const aclTensorDesc, srcBuffer: *const aclDataBuffer, dstDesc: *const aclTensorDesc,
        dstBuffer: *mut aclDataBuffer, truncate: u8, stream: aclrtStream) -> i32;
    aclopCreateAttr() -> *mut c_void;
    aclopCreateHandle(
        opType: *const c_char, numInputs: c_int, inputDesc: *mut *const aclTensorDesc, numOutputs: c_int,
        outputDesc: *mut *const aclTensorDesc, opAttr: *const aclopAttr, handle: *mut *mut c_void) -> i32;
    aclopCreateHandleForCast
        (srcDesc dstDesc: *mut aclTensorDesc, truncate: u8, handle: *mut *mut c_void) -> i32;
    aclopCreateKernel(
        opType kernelId kernelName: *const c_char, binData: *mut c_void, binSize: c_int, enginetype: i32,
        deallocator: aclDataDeallocator) -> i32;
    aclopDestroyAttr(attr: *const aclopAttr) -> ();
    aclopDestroyHandle(handle: *mut c_void) -> ();
    aclopExecWithHandle(
        handle: *mut c_void, numInputs: c_int, inputs: *mut *const aclDataBuffer, numOutputs: c_int,
        outputs: *mut *mut aclDataBuffer, stream: aclrtStream) -> i32;
    aclopExecute(
        opType: *const c_char, numInputs: c_int, inputDesc: *mut *const aclTensorDesc,
        inputs: *mut *const aclDataBuffer, numOutputs: c_int, outputDesc: *mut *const aclTensorDesc,
        outputs: *mut *mut aclDataBuffer, attr: *const aclopAttr, stream: aclrtStream) -> i32;
    aclopExecuteV2(
        opType: *const c_char, numInputs: c_int, inputDesc: *mut *mut aclTensorDesc,
        inputs: *mut *mut aclDataBuffer, numOutputs: c_int, outputDesc: *mut *mut aclTensorDesc,
        outputs: *mut *mut aclDataBuffer, attr: *mut aclopAttr, stream: aclrtStream) -> i32;
    aclopInferShape(
        opType: *const c_char, numInputs: c_int, inputDesc: *mut *mut aclTensorDesc,
        inputs: *mut *mut aclDataBuffer, numOutputs: c_int, outputDesc: *mut *mut aclTensorDesc,
        attr: *mut aclopAttr) -> i32;
    aclopLoad(model: *const c_void, modelSize: usize) -> i32;
    aclopRegisterCompileFunc(opType: *const c_char, func: aclopCompileFunc) -> i32;
    aclopSetAttrBool(attr: *mut aclopAttr, attrName: *const c_char, attrValue: u8) -> i32;
    aclopSetAttrDataType(attr: *mut aclopAttr, attrName: *const c_char, attrValue: i32) -> i32;
    aclopSetAttrFloat(attr: *mut aclopAttr, attrName: *const c_char, attrValue: f32) -> i32;
    aclopSetAttrInt(attr: *mut aclopAttr, attrName: *const c_char, attrValue: i64) -> i32;
    aclopSetAttrListBool
        (attr: *mut aclopAttr, attrName: *const c_char, numValues: c_int, values: *const u8) -> i32;
    aclopSetAttrListDataType
        (attr: *mut aclopAttr, attrName: *const c_char, numValues: c_int, values: *const c_void) -> i32;
    aclopSetAttrListFloat
        (attr: *mut aclopAttr, attrName: *const c_char, numValues: c_int, values: *const f32) -> i32;
    aclopSetAttrListInt
        (attr: *mut aclopAttr, attrName: *const c_char, numValues: c_int, values: *const i64) -> i32;
    aclopSetAttrListListInt(
        attr: *mut aclopAttr, attrName: *const c_char, numLists: c_int, numValues: *const c_int,
        values: *mut *const i64) -> i32;
    aclopSetAttrListString
        (attr: *mut aclopAttr, attrName: *const c_char, numValues: c_int, values: *mut *const c_char) -> i32;
    aclopSetAttrString(attr: *mut aclopAttr, attrName attrValue: *const c_char) -> i32;
    aclopSetKernelArgs(
        kernelDesc: *mut c_void, kernelId: *const c_char, blockDim: u32, args: *const c_void,
        argSize: u32) -> i32;
    aclopSetKernelWorkspaceSizes
        (kernelDesc: *mut c_void, numWorkspaces: c_int, workspaceSizes: *mut usize) -> i32;
    aclopSetMaxOpQueueNum(maxOpNum: u64) -> i32;
    aclopSetModelDir(modelDir: *const c_char) -> i32;
    aclopUnregisterCompileFunc(opType: *const c_char) -> i32;
    aclopUpdateParams(
        opType: *const c_char, numInputs: c_int, inputDesc: *mut *const aclTensorDesc, numOutputs: c_int,
        outputDesc: *mut *const aclTensorDesc, attr: *const aclopAttr) -> i32;
}
