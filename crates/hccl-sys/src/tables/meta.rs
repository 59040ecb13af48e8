//! libnnopbase.so: tensors, scalars, lists, executors of the operator library.

use crate::types::*;
use std::ffi::{c_char, c_int, c_void};

functions! {
    /// libnnopbase.so: tensors, scalars, lists, executors of the operator library.
    NnMeta
    AclSetDynamicInputTensorAddr(
        executor: *mut aclOpExecutor, irIndex relativeIndex: usize, tensors: *mut aclTensorList,
        addr: *mut c_void) -> i32;
    AclSetDynamicOutputTensorAddr(
        executor: *mut aclOpExecutor, irIndex relativeIndex: usize, tensors: *mut aclTensorList,
        addr: *mut c_void) -> i32;
    AclSetDynamicTensorAddr(
        executor: *mut aclOpExecutor, irIndex relativeIndex: usize, tensors: *mut aclTensorList,
        addr: *mut c_void) -> i32;
    AclSetInputTensorAddr
        (executor: *mut aclOpExecutor, index: usize, tensor: *mut aclTensor, addr: *mut c_void) -> i32;
    AclSetOutputTensorAddr
        (executor: *mut aclOpExecutor, index: usize, tensor: *mut aclTensor, addr: *mut c_void) -> i32;
    AclSetTensorAddr
        (executor: *mut aclOpExecutor, index: usize, tensor: *mut aclTensor, addr: *mut c_void) -> i32;
    aclCreateBoolArray(value: *const bool, size: u64) -> *mut c_void;
    aclCreateFloatArray(value: *const f32, size: u64) -> *mut c_void;
    aclCreateIntArray(value: *const i64, size: u64) -> *mut c_void;
    aclCreateScalar(value: *mut c_void, dataType: i32) -> *mut c_void;
    aclCreateScalarList(value: *mut *const aclScalar, size: u64) -> *mut c_void;
    aclCreateTensor(
        viewDims: *const i64, viewDimsNum: u64, dataType: i32, stride: *const i64, offset: i64, format: i32,
        storageDims: *const i64, storageDimsNum: u64, tensorData: *mut c_void) -> *mut c_void;
    aclCreateTensorList(value: *mut *const aclTensor, size: u64) -> *mut c_void;
    aclDestroyAclOpExecutor(executor: *mut aclOpExecutor) -> i32;
    aclDestroyBoolArray(array: *const aclBoolArray) -> i32;
    aclDestroyFloatArray(array: *const aclFloatArray) -> i32;
    aclDestroyIntArray(array: *const aclIntArray) -> i32;
    aclDestroyScalar(scalar: *const aclScalar) -> i32;
    aclDestroyScalarList(array: *const aclScalarList) -> i32;
    aclDestroyTensor(tensor: *const aclTensor) -> i32;
    aclDestroyTensorList(array: *const aclTensorList) -> i32;
    aclDumpOpTensors(
        opType opName: *const c_char, tensors: *mut *mut aclTensor, inputTensorNum outputTensorNum: usize,
        stream: aclrtStream) -> i32;
    aclGetBoolArraySize(array: *const aclBoolArray, size: *mut u64) -> i32;
    aclGetDataType(tensor: *const aclTensor, dataType: *mut c_void) -> i32;
    aclGetFloatArraySize(array: *const aclFloatArray, size: *mut u64) -> i32;
    aclGetFormat(tensor: *const aclTensor, format: *mut c_void) -> i32;
    aclGetIntArraySize(array: *const aclIntArray, size: *mut u64) -> i32;
    aclGetRawTensorAddr(tensor: *const aclTensor, addr: *mut *mut c_void) -> i32;
    aclGetScalarListSize(scalarList: *const aclScalarList, size: *mut u64) -> i32;
    aclGetStorageShape(tensor: *const aclTensor, storageDims: *mut *mut i64, storageDimsNum: *mut u64) -> i32;
    aclGetTensorListSize(tensorList: *const aclTensorList, size: *mut u64) -> i32;
    aclGetViewOffset(tensor: *const aclTensor, offset: *mut i64) -> i32;
    aclGetViewShape(tensor: *const aclTensor, viewDims: *mut *mut i64, viewDimsNum: *mut u64) -> i32;
    aclGetViewStrides(tensor: *const aclTensor, stridesValue: *mut *mut i64, stridesNum: *mut u64) -> i32;
    aclInitTensor(
        tensor: *mut aclTensor, viewDims: *const i64, viewDimsNum: u64, dataType: i32,
        stride: *const i64, offset: i64, format: i32, storageDims: *const i64, storageDimsNum: u64,
        tensorDataAddr: *mut c_void) -> i32;
    aclRfft1DGetWorkspaceSize(
        self_: *const aclTensor, n dim norm: i64, out: *mut aclTensor, workspaceSize: *mut u64,
        executor: *mut *mut aclOpExecutor) -> i32;
    aclSetAclOpExecutorRepeatable(executor: *mut aclOpExecutor) -> i32;
    aclSetDynamicInputTensorAddr(
        executor: *mut aclOpExecutor, irIndex relativeIndex: usize, tensors: *mut aclTensorList,
        addr: *mut c_void) -> i32;
    aclSetDynamicOutputTensorAddr(
        executor: *mut aclOpExecutor, irIndex relativeIndex: usize, tensors: *mut aclTensorList,
        addr: *mut c_void) -> i32;
    aclSetDynamicTensorAddr(
        executor: *mut aclOpExecutor, irIndex relativeIndex: usize, tensors: *mut aclTensorList,
        addr: *mut c_void) -> i32;
    aclSetInputTensorAddr
        (executor: *mut aclOpExecutor, index: usize, tensor: *mut aclTensor, addr: *mut c_void) -> i32;
    aclSetOutputTensorAddr
        (executor: *mut aclOpExecutor, index: usize, tensor: *mut aclTensor, addr: *mut c_void) -> i32;
    aclSetRawTensorAddr(tensor: *mut aclTensor, addr: *mut c_void) -> i32;
    aclSetTensorAddr
        (executor: *mut aclOpExecutor, index: usize, tensor: *mut aclTensor, addr: *mut c_void) -> i32;
    aclStftGetWorkspaceSize(
        self_ windowOptional: *const aclTensor, out: *mut aclTensor, nFft hopLength winLength: i64, normalized
        onesided returnComplex: bool, workspaceSize: *mut u64, executor: *mut *mut aclOpExecutor) -> i32;
    aclnnAicpuFinalize() -> ();
    aclnnBatchMatMulWeightNZ(
        workspace: *mut c_void, workspaceSize: u64, executor: *mut aclOpExecutor, stream: aclrtStream) -> i32;
    aclnnCalculateConvolutionWeightSize(
        tensorShape: *const aclIntArray, transposed: bool, groups: i64, dataType: i32,
        weightTensorSize: *mut u64) -> i32;
    aclnnCalculateMatmulWeightSize(tensorShape: *const aclIntArray, weightTensorSize: *mut u64) -> i32;
    aclnnCalculateMatmulWeightSizeV2
        (tensorShape: *const aclIntArray, dataType: i32, weightTensorSize: *mut u64) -> i32;
    aclnnFinalize() -> i32;
    aclnnFlashAttentionUnpaddingScoreGradV5GetMaxWorkspaceSize(
        query queryRope keyIn keyInRope value dy pseShiftOptional dropMaskOptional paddingMaskOptional
        attenMaskOptional softmaxMaxOptional softmaxSumOptional softmaxInOptional attentionInOptional
        sinkInOptional: *const aclTensor, prefixOptional actualSeqQLenOptional actualSeqKvLenOptional
        qStartIdxOptional kvStartIdxOptional: *const aclIntArray, scaleValue keepProb: f64, preTokens
        nextTokens headNum: i64, inputLayout: *mut c_char, innerPrecise sparseMode pseType: i64,
        softmaxInLayout: *mut c_char, dqOut dqRopeOut dkOut dkRopeOut dvOut dpseOut
        dsinkOut: *const aclTensor, workspaceSize: *mut u64, executor: *mut *mut aclOpExecutor) -> i32;
    aclnnFlashAttentionVarLenScoreV5GetMaxWorkspaceSize(
        query queryRope key keyRope value realShiftOptional dropMaskOptional paddingMaskOptional
        attenMaskOptional sinkOptional: *const aclTensor, prefixOptional actualSeqQLenOptional
        actualSeqKvLenOptional qStartIdxOptional kvStartIdxOptional: *const aclIntArray, scaleValue
        keepProb: f64, preTokens nextTokens headNum: i64, inputLayout: *mut c_char, innerPrecise sparseMode
        pseType: i64, softmaxOutLayout: *mut c_char, softmaxMaxOut softmaxSumOut softmaxOutOut
        attentionOutOut: *const aclTensor, workspaceSize: *mut u64, executor: *mut *mut aclOpExecutor) -> i32;
    aclnnGetPytorchRandom() -> i32;
    aclnnInit(configPath: *const c_char) -> i32;
    aclnnMoeDistributeCombineSetupTeardownCalcOutputSize(
        expandX expertIds assistInfoForCombine: *const aclTensor, groupEp: *const c_char, epWorldSize epRankId
        moeExpertNum expertSharedType sharedExpertNum sharedExpertRankNum globalBs commQuantMode
        commType: i64, commAlg: *const c_char, tokenMsgSize commCmdInfoOutSize: *mut u64) -> i32;
    aclnnMoeDistributeDispatchSetupTeardownCalcOutputSize(
        x expertIds scalesOptional xActiveMaskOptional: *const aclTensor, groupEp: *const c_char, epWorldSize
        epRankId moeExpertNum expertShardType sharedExpertNum sharedExpertRankNum quantMode globalBs
        expertTokenNumsType commType: i64, commAlg: *const c_char, tokenMsgSize expandIdxOutSize
        assistInfoForCombineOutSize commCmdInfoOutSize: *mut u64) -> i32;
    aclnnNpuFormatCastCalculateSizeAndFormat(
        srcTensor: *const aclTensor, dstFormat additionalDtype: c_int, dstShape: *mut *mut i64,
        dstShapeSize: *mut u64, actualFormat: *mut c_int) -> i32;
    aclnnSetPytorchRandom(pytorchRandom: i32) -> i32;
    aclnnTransQuantParam(
        scaleArray: *const f32, scaleSize: u64, offsetArray: *const f32, offsetSize: u64,
        quantParam: *mut *mut u64, quantParamSize: *mut u64) -> i32;
    aclnnTransSparse4to2Para(
        weight: *const i8, shape: *mut aclIntArray, sparseWeight: *mut *mut i8,
        sparseWeightDims: *mut *mut i64, sparseWeightDimsNum: *mut u64, index: *mut *mut u8,
        indexDims: *mut *mut i64, indexDimsNum: *mut u64) -> i32;
}
