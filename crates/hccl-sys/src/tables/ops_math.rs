//! libopapi_math.so (9.x), libopapi.so: arithmetic, reductions, shapes.

use crate::types::*;
use std::ffi::c_int;

operators! {
    /// libopapi_math.so (9.x), libopapi.so: arithmetic, reductions, shapes.
    OpsMath
    aclnnAbs, aclnnAcosh, aclnnAsin, aclnnBitwiseNot, aclnnCeil, aclnnCosh, aclnnDigamma, aclnnErf, aclnnErfc,
    aclnnExp2, aclnnExp, aclnnExpSegsum, aclnnExpm1, aclnnFloor, aclnnGlobalAveragePool, aclnnGlobalMaxPool,
    aclnnIsFinite, aclnnIsNegInf, aclnnIsPosInf, aclnnLgamma, aclnnLog10, aclnnLog1p, aclnnLog, aclnnLogdet,
    aclnnLogicalNot, aclnnMax, aclnnMin, aclnnNeg, aclnnReal, aclnnReciprocal, aclnnRound, aclnnRsqrt,
    aclnnSignbit, aclnnSin, aclnnSinc, aclnnSinh, aclnnSqrt, aclnnSquare, aclnnTan, aclnnTanh, aclnnTrace,
    aclnnTrunc
        (self_: Tensor, out: TensorMut);
    aclnnAcos, aclnnAsinh, aclnnAtan, aclnnAtanh, aclnnCos, aclnnFrac(input: Tensor, out: TensorMut);
    aclnnAdd, aclnnRsub, aclnnSub(self_ other: Tensor, alpha: Scalar, out: TensorMut);
    aclnnAddLora(
        y x weightB indices weightAOptional: Tensor, layerIdx: i64, scale: f64, yOffset ySliceSize: i64,
        out: Tensor);
    aclnnAddN, aclnnMaxN, aclnnMinN, aclnnSum(tensors: Tensors, out: TensorMut);
    aclnnAddV3(self_: Scalar, other: Tensor, alpha: Scalar, out: TensorMut);
    aclnnAddcdiv(self_ tensor1 tensor2: Tensor, value: Scalar, out: Tensor);
    aclnnAddcmul(self_ tensor1 tensor2: Tensor, value: Scalar, out: TensorMut);
    aclnnAddr(self_ vec1 vec2: Tensor, betaOptional alphaOptional: Scalar, out: TensorMut);
    aclnnAdds, aclnnRsubs, aclnnSubs(self_: Tensor, other alpha: Scalar, out: TensorMut);
    aclnnAffineGrid(theta: Tensor, size: Ints, alignCorners: bool, out: TensorMut);
    aclnnAll, aclnnAny(self_: Tensor, dim: Ints, keepdim: bool, out: TensorMut);
    aclnnAmax, aclnnAmin, aclnnLogSumExp(self_: Tensor, dim: Ints, keepDim: bool, out: TensorMut);
    aclnnAminmaxAll(self_: Tensor, minOut maxOut: TensorMut);
    aclnnAminmaxDim(self_: Tensor, dim: i64, keepDim: bool, minOut maxOut: TensorMut);
    aclnnAminmax(self_: Tensor, dim: Ints, keepDim: bool, minOut maxOut: TensorMut);
    aclnnAmpUpdateScale(
        currentScale growthTracker foundInf: Tensor, growthFactor backoffFactor: f64, growthInterval: i64,
        updatedScale updatedGrowthTracker: Tensor);
    aclnnAngleV2, aclnnIsInf(x out: Tensor);
    aclnnArange, aclnnRange(start end step: Scalar, out: TensorMut);
    aclnnArgMax, aclnnArgMin(self_: Tensor, dim: i64, keepdim: bool, out: TensorMut);
    aclnnArgsort(self_: Tensor, dim: i64, descending: bool, out: TensorMut);
    aclnnAtan2, aclnnBitwiseAndTensor, aclnnBitwiseAndTensorOut, aclnnBitwiseOrTensor, aclnnBitwiseXorTensor,
    aclnnDiv, aclnnEqTensor, aclnnEqual, aclnnFloorDivide, aclnnFmodTensor, aclnnGcd, aclnnGeTensor,
    aclnnGtTensor, aclnnLeTensor, aclnnLogAddExp2, aclnnLogAddExp, aclnnLogicalAnd, aclnnLogicalOr,
    aclnnLogicalXor, aclnnLtTensor, aclnnMaximum, aclnnMinimum, aclnnMul, aclnnNeTensor,
    aclnnRemainderTensorTensor, aclnnXLogYTensor
        (self_ other: Tensor, out: TensorMut);
    aclnnBatchNormStats(input: Tensor, eps: f64, mean invstd: TensorMut);
    aclnnBernoulli(self_: Tensor, prob: Scalar, seed offset: i64, out: TensorMut);
    aclnnBernoulliTensor(self_ prob: Tensor, seed offset: i64, out: TensorMut);
    aclnnBincount(self_ weights: Tensor, minlength: i64, out: TensorMut);
    aclnnBitwiseAndScalar, aclnnBitwiseOrScalar, aclnnBitwiseXorScalar, aclnnDivs, aclnnEqScalar,
    aclnnFloorDivides, aclnnFmodScalar, aclnnGeScalar, aclnnGtScalar, aclnnLeScalar, aclnnLtScalar, aclnnMuls,
    aclnnNeScalar, aclnnRemainderTensorScalar, aclnnXLogYScalarOther
        (self_: Tensor, other: Scalar, out: TensorMut);
    aclnnCast, aclnnProd(self_: Tensor, dtype: i32, out: TensorMut);
    aclnnCat, aclnnStack(tensors: Tensors, dim: i64, out: TensorMut);
    aclnnCdistBackward(grad x1 x2 cdist: Tensor, p: f32, out: TensorMut);
    aclnnCdist(x1 x2: Tensor, p: f32, compute_mode: i64, out: TensorMut);
    aclnnChannelShuffle(self_: Tensor, groups: i64, out: TensorMut);
    aclnnChunkCat(tensors: Tensors, dim numChunks: i64, out: TensorMut);
    aclnnCircularPad2dBackward, aclnnCircularPad3dBackward, aclnnReflectionPad1dBackward,
    aclnnReflectionPad2dBackward, aclnnReflectionPad3dBackward, aclnnReplicationPad1dBackward,
    aclnnReplicationPad2dBackward, aclnnReplicationPad3dBackward
        (gradOutput self_: Tensor, padding: Ints, gradInput: TensorMut);
    aclnnCircularPad2d, aclnnCircularPad3d, aclnnReflectionPad1d, aclnnReflectionPad2d, aclnnReflectionPad3d,
    aclnnReplicationPad1d, aclnnReplicationPad2d, aclnnReplicationPad3d
        (self_: Tensor, padding: Ints, out: TensorMut);
    aclnnClamp, aclnnHardtanh(self_: Tensor, clipValueMin clipValueMax: Scalar, out: TensorMut);
    aclnnClampMax(self_: Tensor, clipValueMax: Scalar, out: TensorMut);
    aclnnClampMaxTensor(self_ max: Tensor, out: TensorMut);
    aclnnClampMin(self_: Tensor, clipValueMin: Scalar, out: TensorMut);
    aclnnClampMinTensor(self_ clipValueMin: Tensor, out: TensorMut);
    aclnnClampTensor(self_ clipValueMin clipValueMax: Tensor, out: TensorMut);
    aclnnCoalesceSparse(uniqueLen uniqueIndices indices values newIndicesOut newValuesOut: Tensor);
    aclnnComplex(real imag: Tensor, out: TensorMut);
    aclnnConfusionTranspose(x: Tensor, perm shape: Ints, transpose_first: bool, out: TensorMut);
    aclnnConstantPadNd(self_: Tensor, pad: Ints, value: Scalar, out: TensorMut);
    aclnnCummax, aclnnCummin(self_: Tensor, dim: i64, valuesOut indicesOut: TensorMut);
    aclnnCumprod(input: Tensor, dim: Scalar, dtype: i32, out: TensorMut);
    aclnnCumsum(self_: Tensor, dim: i64, dtype: i32, out: TensorMut);
    aclnnCumsumV2(self_: Tensor, dim: i64, exclusive reverse: bool, out: TensorMut);
    aclnnDiagFlat, aclnnDiag, aclnnTril, aclnnTriu(self_: Tensor, diagonal: i64, out: TensorMut);
    aclnnDivMod(self_ other: Tensor, mode: c_int, out: TensorMut);
    aclnnDivMods(self_: Tensor, other: Scalar, mode: c_int, out: TensorMut);
    aclnnDot(self_ tensor: Tensor, out: TensorMut);
    aclnnDropoutBackward(gradOutput mask: Tensor, scale: f64, out: TensorMut);
    aclnnDropoutDoMask(self_ mask: Tensor, prob: f64, out: TensorMut);
    aclnnDropoutGenMask(shape: Ints, prob: f64, seed offset: i64, out: TensorMut);
    aclnnDropoutGenMaskV2(shape: Ints, prob: f64, seed offset: i64, probDataType: i32, out: TensorMut);
    aclnnDropoutGenMaskV2Tensor(
        shape: Ints, prob: f64, seedTensor offsetTensor: Tensor, offset: i64, probDataType: i32,
        out: TensorMut);
    aclnnDropout(input: Tensor, p: f64, train: bool, seed offset: i64, out maskOut: TensorMut);
    aclnnDropoutV3(input optionalNoiseShape: Tensor, p: f64, seed offset: i64, out maskOut: TensorMut);
    aclnnDropoutV3Grad(gradY mask: Tensor, scale: f64, gradX: TensorMut);
    aclnnExpSegsumBackward(gradOutput gradSelf: Tensor, gradInput: TensorMut);
    aclnnExpand(self_: Tensor, size: Ints, out: TensorMut);
    aclnnEye(n m: i64, out: TensorMut);
    aclnnFlatten(self_: Tensor, axis: i64, out: TensorMut);
    aclnnGer(self_ vec2: Tensor, out: TensorMut);
    aclnnGroupedBiasAddGrad(gradY groupIdxOptional: Tensor, out: TensorMut);
    aclnnGroupedBiasAddGradV2(gradY groupIdxOptional: Tensor, groupIdxType: i64, out: TensorMut);
    aclnnHistc(self_: Tensor, bins: i64, min max: Scalar, out: TensorMut);
    aclnnIm2col(self_: Tensor, kernelSize dilation padding stride: Ints, out: Tensor);
    aclnnInplaceAcos, aclnnInplaceAsinh, aclnnInplaceAtan, aclnnInplaceAtanh, aclnnInplaceCos,
    aclnnInplaceFrac
        (inputRef: TensorMut);
    aclnnInplaceAcosh, aclnnInplaceAsin, aclnnInplaceCeil, aclnnInplaceCosh, aclnnInplaceErf,
    aclnnInplaceExp2, aclnnInplaceExp, aclnnInplaceExpm1, aclnnInplaceFloor, aclnnInplaceLog10,
    aclnnInplaceLog1p, aclnnInplaceLog, aclnnInplaceLogicalNot, aclnnInplaceNeg, aclnnInplaceRsqrt,
    aclnnInplaceSin, aclnnInplaceSinc, aclnnInplaceSinh, aclnnInplaceTanh, aclnnInplaceTrunc, aclnnInplaceZero
        (selfRef: TensorMut);
    aclnnInplaceAdd(selfRef other: Tensor, alpha: Scalar);
    aclnnInplaceAddV3(selfRef: Scalar, other: Tensor, alpha: Scalar);
    aclnnInplaceAddcdiv, aclnnInplaceAddcmul(selfRef tensor1 tensor2: Tensor, value: Scalar);
    aclnnInplaceAddr(selfRef: TensorMut, vec1 vec2: Tensor, betaOptional alphaOptional: Scalar);
    aclnnInplaceAdds(selfRef: Tensor, other alpha: Scalar);
    aclnnInplaceAtan2(selfRef other: TensorMut);
    aclnnInplaceBernoulli(selfRef: Tensor, prob: Scalar, seed offset: i64);
    aclnnInplaceBernoulliTensor(selfRef prob: Tensor, seed offset: i64);
    aclnnInplaceBitwiseAndScalar, aclnnInplaceEqScalar, aclnnInplaceLtScalar(selfRef: Tensor, other: Scalar);
    aclnnInplaceBitwiseAndTensor, aclnnInplaceEqTensor, aclnnInplaceGtTensor, aclnnInplaceLtTensor
        (selfRef other: Tensor);
    aclnnInplaceBitwiseAndTensorOut(self_ other: Tensor);
    aclnnInplaceBitwiseOrScalar, aclnnInplaceBitwiseXorScalar, aclnnInplaceDivs, aclnnInplaceFloorDivides,
    aclnnInplaceFmodScalar, aclnnInplaceGeScalar, aclnnInplaceGtScalar, aclnnInplaceLeScalar,
    aclnnInplaceMuls, aclnnInplaceNeScalar, aclnnInplaceRemainderTensorScalar, aclnnInplaceXLogYScalarOther
        (selfRef: TensorMut, other: Scalar);
    aclnnInplaceBitwiseOrTensor, aclnnInplaceBitwiseXorTensor, aclnnInplaceDiv, aclnnInplaceFloorDivide,
    aclnnInplaceFmodTensor, aclnnInplaceGeTensor, aclnnInplaceLeTensor, aclnnInplaceLogicalAnd,
    aclnnInplaceLogicalOr, aclnnInplaceMul, aclnnInplaceNeTensor, aclnnInplaceRemainderTensorTensor,
    aclnnInplaceXLogYTensor
        (selfRef: TensorMut, other: Tensor);
    aclnnInplaceClampMax(selfRef: Tensor, clipValueMax: Scalar);
    aclnnInplaceClampMaxTensor(selfRef: TensorMut, max: Tensor);
    aclnnInplaceClampMinTensor(selfRef: TensorMut, clipValueMin: Tensor);
    aclnnInplaceCopy(selfRef: TensorMut, src: Tensor);
    aclnnInplaceCumprod(input: TensorMut, dim: Scalar);
    aclnnInplaceDivMod(selfRef: TensorMut, other: Tensor, mode: c_int);
    aclnnInplaceDivMods(selfRef: TensorMut, other: Scalar, mode: c_int);
    aclnnInplaceErfc, aclnnInplaceLog2, aclnnInplaceOne, aclnnInplaceReciprocal, aclnnInplaceRound,
    aclnnInplaceTan
        (selfRef: Tensor);
    aclnnInplaceFillDiagonal(selfRef: TensorMut, fillValue: Scalar, wrap: bool);
    aclnnInplaceFillScalar(selfRef: TensorMut, value: Scalar);
    aclnnInplaceFillTensor(selfRef: TensorMut, value: Tensor);
    aclnnInplaceHardtanh(selfRef: TensorMut, clipValueMin clipValueMax: Scalar);
    aclnnInplaceLerp(selfRef: TensorMut, end weight: Tensor);
    aclnnInplaceLerps(selfRef: TensorMut, end: Tensor, weight: Scalar);
    aclnnInplaceMaskedFillScalar(selfRef: TensorMut, mask: Tensor, value: Scalar);
    aclnnInplaceMaskedFillTensor(selfRef: TensorMut, mask value: Tensor);
    aclnnInplaceNanToNum(selfRef: TensorMut, nan posinf neginf: f32);
    aclnnInplaceNormal(selfRef: Tensor, mean std: f32, seed offset: i64);
    aclnnInplaceNormalTensor(selfRef: Tensor, mean std: f32, seedTensor offsetTensor: Tensor, offset: i64);
    aclnnInplacePowTensorScalar(self_: Tensor, exponent: Scalar);
    aclnnInplacePowTensorTensor(self_ exponent: Tensor);
    aclnnInplaceRandom(selfRef: Tensor, from to seed offset: i64);
    aclnnInplaceRandomTensor(selfRef: Tensor, from to: i64, seedTensor offsetTensor: Tensor, offset: i64);
    aclnnInplaceRandomWithoutFromTo(selfRef: Tensor, seed offset: i64);
    aclnnInplaceRandomWithoutFromToTensor(selfRef seedTensor offsetTensor: Tensor, offset: i64);
    aclnnInplaceRoundDecimals(selfRef: TensorMut, decimals: i64);
    aclnnInplaceSqrt(self_: TensorMut);
    aclnnInplaceSub(selfRef: TensorMut, other: Tensor, alpha: Scalar);
    aclnnInplaceSubs(selfRef: TensorMut, other alpha: Scalar);
    aclnnInplaceTril(selfRef: Tensor, diagonal: i64);
    aclnnInplaceTriu(selfRef: TensorMut, diagonal: i64);
    aclnnInplaceUniform(selfRef: Tensor, from to: f64, seed offset: u64);
    aclnnInplaceUniformTensor(selfRef: Tensor, from to: f64, seedTensor offsetTensor: Tensor, offset: u64);
    aclnnIsClose(self_ other: Tensor, rtol atol: f64, equal_nan: bool, out: TensorMut);
    aclnnIsInScalarTensor(element: Scalar, testElements: Tensor, assumeUnique invert: bool, out: TensorMut);
    aclnnIsInTensorScalar(element: Tensor, testElement: Scalar, assumeUnique invert: bool, out: TensorMut);
    aclnnKlDiv(self_ target: Tensor, reduction: i64, logTarget: bool, out: TensorMut);
    aclnnLeftShift(self_ shiftBits: Tensor, out: TensorMut);
    aclnnLeftShifts(self_: Tensor, shiftBits: Scalar, out: TensorMut);
    aclnnLerp(self_ end weight: Tensor, out: TensorMut);
    aclnnLerps(self_ end: Tensor, weight: Scalar, out: TensorMut);
    aclnnLinalgCholesky(self_: Tensor, upper: bool, out: TensorMut);
    aclnnLinalgCross(self_ other: Tensor, dim: i64, out: TensorMut);
    aclnnLinalgQr(self_: Tensor, mode: i64, Q R: TensorMut);
    aclnnLinspace(start end: Scalar, steps: i64, out: TensorMut);
    aclnnLog2(self_ out: Tensor);
    aclnnLogSpace(start end: Scalar, steps: i64, base: f64, result: Tensor);
    aclnnMaskedScale(self_ mask: Tensor, scale: f32, out: TensorMut);
    aclnnMaskedSelect(self_ mask: Tensor, out: TensorMut);
    aclnnMatmulCompressDequant(
        x1 x2 compressIndex bias deqScale offsetW: Tensor, offsetX: c_int, compressInfo: Ints,
        out: TensorMut);
    aclnnMaxDim, aclnnMinDim(self_: Tensor, dim: i64, keepdim: bool, out indices: TensorMut);
    aclnnMaxV2(self_: Tensor, dims: Ints, keepDims noopWithEmptyDims: bool, out: TensorMut);
    aclnnMean, aclnnReduceNansum(self_: Tensor, dim: Ints, keepDim: bool, dtype: i32, out: TensorMut);
    aclnnMeanV2(self_: Tensor, dim: Ints, keepDim noopWithEmptyAxes: bool, out: TensorMut);
    aclnnMultinomial(self_: Tensor, numsamples: i64, replacement: bool, seed offset: i64, out: TensorMut);
    aclnnMultinomialTensor(
        self_: Tensor, numsamples: i64, replacement: bool, seedTensor offsetTensor: Tensor, offset: i64,
        out: TensorMut);
    aclnnNanToNum(self_: Tensor, nan posinf neginf: f32, out: TensorMut);
    aclnnNormalFloatFloat(mean std: f32, seed offset: i64, out: TensorMut);
    aclnnNormalFloatTensor(mean: f32, std: Tensor, seed offset: i64, out: TensorMut);
    aclnnNormalTensorFloat(mean: Tensor, std: f32, seed offset: i64, out: TensorMut);
    aclnnNormalTensorTensor(mean std: Tensor, seed offset: i64, out: TensorMut);
    aclnnNpuFormatCast(srcTensor: Tensor, dstTensor: TensorMut);
    aclnnOneHot(self_: Tensor, numClasses: c_int, onValue offValue: Tensor, axis: i64, out: TensorMut);
    aclnnPdistForward(self_: Tensor, pScalar: Scalar, out: TensorMut);
    aclnnPdist(self_: Tensor, p: f32, out: TensorMut);
    aclnnPermute(self_: Tensor, dims: Ints, out: TensorMut);
    aclnnPolar(input angle: Tensor, out: TensorMut);
    aclnnPowScalarTensor(self_: Scalar, exponent out: Tensor);
    aclnnPowTensorScalar(self_: Tensor, exponent: Scalar, out: Tensor);
    aclnnPowTensorTensor(self_ exponent: Tensor, out: TensorMut);
    aclnnPrecisionCompare(golden realdata: Tensor, out: TensorMut);
    aclnnPrecisionCompareV2(golden realdata: Tensor, detect_type: u32, out: TensorMut);
    aclnnProdDim(self_: Tensor, dim: i64, keepDim: bool, dtype: i32, out: TensorMut);
    aclnnQr(self_: Tensor, some: bool, Q R: TensorMut);
    aclnnRandperm(n seed offset: i64, out: TensorMut);
    aclnnReduceLogSum(data: Tensor, axes: Ints, keepDims noopWithEmptyAxes: bool, reduce: TensorMut);
    aclnnReduceSum(self_: Tensor, dims: Ints, keepDims: bool, dtype: i32, out: TensorMut);
    aclnnRemainderScalarTensor, aclnnXLogYScalarSelf(self_: Scalar, other: Tensor, out: TensorMut);
    aclnnRepeat(self_: Tensor, repeats: Ints, out: TensorMut);
    aclnnRightShift(input shiftBits: Tensor, out: TensorMut);
    aclnnRoll(x: Tensor, shifts dims: Ints, out: TensorMut);
    aclnnRoundDecimals(self_: Tensor, decimals: i64, out: TensorMut);
    aclnnSWhere(condition self_ other: Tensor, out: TensorMut);
    aclnnScale(x scale bias: Tensor, axis numAxes: i64, scaleFromBlob: bool, y: TensorMut);
    aclnnSearchSorted(sortedSequence self_: Tensor, outInt32 right: bool, sorter: Tensor, out: TensorMut);
    aclnnSearchSorteds
        (sortedSequence: Tensor, self_: Scalar, outInt32 right: bool, sorter: Tensor, out: TensorMut);
    aclnnSignBitsPack(self_: Tensor, size: i64, out: TensorMut);
    aclnnSignBitsUnpack(self_: Tensor, size: i64, dtype: i32, out: TensorMut);
    aclnnSign(self_: Tensor, result: TensorMut);
    aclnnSilentCheck(
        val: Tensor, inputGradRef sfdaRef stepRef: TensorMut, cMinSteps: i32, cThreshL1 cCoeffL1 cThreshL2
        cCoeffL2: f32, npuAsdDetect: i32, result: TensorMut);
    aclnnSilentCheckV2(
        val max: Tensor, avgRef inputGradRef stepRef: TensorMut, dstSize dstStride dstOffset: IntsMut,
        cThreshL1 cThreshL2 beta1: f32, npuAsdDetect: i32, result: TensorMut);
    aclnnSimThreadExponential(selfRef: TensorMut, count: i64, lambda: f64, seed offset: i64);
    aclnnSinkhorn(cost: Tensor, tol: Scalar, p: TensorMut);
    aclnnSlice(self_: Tensor, dim start end step: i64, out: TensorMut);
    aclnnSliceV2(self_: Tensor, starts ends axes steps: Ints, out: TensorMut);
    aclnnSlogdet(self_: Tensor, signOut logOut: TensorMut);
    aclnnSort(self_: Tensor, stable: bool, dim: i64, descending: bool, valuesOut indicesOut: TensorMut);
    aclnnSplitTensor(self_: Tensor, splitSections: u64, dim: i64, out: TensorsMut);
    aclnnSplitWithSize(self_: Tensor, splitSize: Ints, dim: i64, out: TensorsMut);
    aclnnStd, aclnnVarCorrection(self_: Tensor, dim: Ints, correction: i64, keepdim: bool, out: TensorMut);
    aclnnStdMeanCorrection
        (self_: Tensor, dim: Ints, correction: i64, keepdim: bool, stdOut meanOut: TensorMut);
    aclnnStridedSliceAssignV2(varRef: TensorMut, inputValue: Tensor, begin end strides axesOptional: Ints);
    aclnnStridedSlice(
        self_: Tensor, begin end strides: Ints, beginMask endMask ellipsisMask newAxisMask
        shrinkAxisMask: i64, out: TensorMut);
    aclnnSvd(input: Tensor, fullMatrices computeUV: bool, sigma u v: TensorMut);
    aclnnTanhBackward(gradOutput output: Tensor, gradInput: TensorMut);
    aclnnTransConvolutionWeight(weightIn: Tensor, transposed: bool, groups: i64, weightOut: TensorMut);
    aclnnTransMatmulWeight(mmWeightRef: TensorMut);
    aclnnTransformBiasRescaleQkv(qkv qkvBias: Tensor, numHeads: i64, qOut kOut vOut: Tensor);
    aclnnTriangularSolve(self_ A: Tensor, upper transpose unitriangular: bool, xOut mOut: TensorMut);
    aclnnUnfoldGrad(gradOut: Tensor, inputSizes: Ints, dim size step: i64, gradIn: Tensor);
    aclnnVar(self_: Tensor, dim: Ints, unbiased keepdim: bool, out: TensorMut);
    aclnnVarMean(self_: Tensor, dim: Ints, correction: i64, keepdim: bool, varOut meanOut: TensorMut);
    aclnnWeightQuantPreprocess(
        weight weightScale weightOffsetOptional biasOptional: Tensor, xDtype xScaleDtype: i32,
        kGroupSize: i64, outWeight outWeightScale outWeightOffsetOptional outBiasOptional: TensorMut);
    aclnnXlog1py(x y z: Tensor);
}
