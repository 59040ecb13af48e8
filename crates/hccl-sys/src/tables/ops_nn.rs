//! libopapi_nn.so (9.x), libopapi.so: norms, activations, losses, optimizers, recurrent cells, indices.

use crate::types::*;
use std::ffi::c_int;

operators! {
    /// libopapi_nn.so (9.x), libopapi.so: norms, activations, losses, optimizers, recurrent cells, indices.
    OpsNn
    aclnnAdaLayerNormBackward(
        gradOut input: Tensor, normalizedShape: Ints, rstd mean scale shift weightOptional
        biasOptional: Tensor, gradInputOut gradScaleOut gradShiftOut gradWeightOut gradBiasOut: TensorMut);
    aclnnAdaLayerNorm(x scale shift weightOptional biasOptional: Tensor, epsilon: f64, out: TensorMut);
    aclnnAdaLayerNormV2(
        x scale shift weightOptional biasOptional: Tensor, epsilon: f64, out meanOutOptional
        rstdOutOptional: TensorMut);
    aclnnAdaptiveAvgPool2dBackward, aclnnAdaptiveAvgPool3dBackward, aclnnHardsigmoidBackward,
    aclnnHardswishBackward, aclnnHardswishBackwardV2
        (gradOutput self_: Tensor, out: TensorMut);
    aclnnAdaptiveAvgPool2d, aclnnAdaptiveAvgPool3d(self_: Tensor, outputSize: Ints, out: TensorMut);
    aclnnAdaptiveMaxPool2dBackward, aclnnAdaptiveMaxPool3dBackward
        (gradOutput self_ indices: Tensor, gradInput: TensorMut);
    aclnnAdaptiveMaxPool2d, aclnnAdaptiveMaxPool3d
        (self_: Tensor, outputSize: Ints, outputOut indicesOut: TensorMut);
    aclnnAddLayerNorm(
        x1 x2 gamma beta biasOptional: Tensor, epsilon: f64, additionalOutput: bool, yOut meanOut rstdOut
        xOut: Tensor);
    aclnnAddLayerNormGrad(dy x1 x2 rstd mean gamma dsumOptional dxOut dgammaOut dbetaOut: Tensor);
    aclnnAddRelu(self_ other: Tensor, alpha: ScalarMut, out: TensorMut);
    aclnnAddRmsNormCast(x1 x2 gamma: Tensor, epsilon: f64, y1Out y2Out rstdOut xOut: Tensor);
    aclnnAddRmsNorm(x1 x2 gamma: Tensor, epsilon: f64, yOut rstdOut xOut: Tensor);
    aclnnAdvanceStep(
        inputTokens sampledTokenIds inputPositions seqLens slotMapping blockTables: Tensor, numSeqs numQueries
        blockSize: i64);
    aclnnAdvanceStepV2(
        inputTokens sampledTokenIds inputPositions seqLens slotMapping blockTables specToken
        acceptedNum: Tensor, numSeqs numQueries blockSize: i64);
    aclnnApplyAdam(
        varRef: TensorMut, m v beta1Power beta2Power lr beta1 beta2 epsilon grad: Tensor, useLocking
        useNesterov: bool);
    aclnnApplyAdamW(
        varRef mRef vRef: TensorMut, beta1Power beta2Power lr weightDecay beta1 beta2 eps grad
        maxGradNormOptional: Tensor, amsgrad maximize: bool);
    aclnnApplyAdamWV2(
        varRef mRef vRef maxGradNormOptionalRef: TensorMut, grad step: Tensor, lr beta1 beta2 weightDecay
        eps: f32, amsgrad maximize: bool);
    aclnnApplyFusedEmaAdam(
        grad: Tensor, varRef mRef vRef sRef: TensorMut, step: Tensor, lr emaDecay beta1 beta2 eps: f64,
        mode: i64, biasCorrection: bool, weightDecay: f64);
    aclnnApplyTopKTopP(logits p k: Tensor, out: TensorMut);
    aclnnAvgPool2dBackward(
        gradOutput self_: Tensor, kernelSize stride padding: Ints, ceilMode countIncludePad: bool,
        divisorOverride: i64, cubeMathType: i8, gradInput: TensorMut);
    aclnnAvgPool2d(
        self_: Tensor, kernelSize strides paddings: Ints, ceilMode countIncludePad: bool,
        divisorOverride: i64, cubeMathType: i8, out: TensorMut);
    aclnnAvgPool3dBackward(
        gradOuput self_: Tensor, kernelSize stride padding: Ints, ceilMode countIncludePad: bool,
        divisorOverride: i64, output: TensorMut);
    aclnnAvgPool3d(
        self_: Tensor, kernelSize stride padding: Ints, ceilMode countIncludePad: bool, divisorOverride: i64,
        out: TensorMut);
    aclnnBatchNormBackward(
        gradOut input weight runningMean runningVar saveMean saveInvstd: Tensor, training: bool, eps: f64,
        outputMask: Bools, gradInput gradWeight gradBias: TensorMut);
    aclnnBatchNormElemtBackward
        (gradOut input mean invstd weight sumDy sumDyXmu: Tensor, counter gradInput: TensorMut);
    aclnnBatchNormElemt(input weight bias: Tensor, mean invstd: TensorMut, eps: f64, output: TensorMut);
    aclnnBatchNormGatherStatsWithCounts(
        input mean invstd: Tensor, runningMean runningVar: TensorMut, momentum eps: f64, counts: Tensor,
        meanAll invstdAll: TensorMut);
    aclnnBatchNorm(
        input weight bias: Tensor, runningMean runningVar: TensorMut, training: bool, momentum eps: f64,
        output saveMean saveInvstd: TensorMut);
    aclnnBatchNormReduceBackward(
        gradOut input mean invstd weight: Tensor, inputG weightG biasG: bool, sumDy sumDyXmu gradWeight
        gradBias: TensorMut);
    aclnnBatchNormReduce(x: Tensor, sum squareSum: TensorMut);
    aclnnBidirectionLSTM(
        x initH initC wIh wHh bIhOptional bHhOptional wIhReverseOptional wHhReverseOptional bIhReverseOptional
        bHhReverseOptional: Tensor, numLayers: i64, isbias batchFirst bidirection: bool, yOut outputHOut
        outputCOut: Tensor);
    aclnnBidirectionLSTMV2(
        x initH initC wIh wHh bIhOptional bHhOptional wIhReverseOptional wHhReverseOptional bIhReverseOptional
        bHhReverseOptional batchSizeOptional: Tensor, numLayers: i64, isbias batchFirst bidirection
        packed: bool, yOut outputHOut outputCOut: Tensor);
    aclnnBinaryCrossEntropyBackward
        (gradOutput self_ target weightOptional: Tensor, reduction: i64, out: TensorMut);
    aclnnBinaryCrossEntropy(self_ target weight: Tensor, reduction: i64, out: TensorMut);
    aclnnBinaryCrossEntropyWithLogitsBackward
        (gradOutput self_ target weightOptional posWeightOptional: Tensor, reduction: i64, out: TensorMut);
    aclnnBinaryCrossEntropyWithLogits
        (self_ target weightOptional posWeightOptional: Tensor, reduction: i64, out: TensorMut);
    aclnnBinaryCrossEntropyWithLogitsTargetBackward(
        gradOutput self_ target weightOptional posWeightOptional: Tensor, reduction: i64,
        gradTarget: TensorMut);
    aclnnBucketize(self_ boundaries: Tensor, outInt32 right: bool, out: TensorMut);
    aclnnCelu(self_: Tensor, alpha: Scalar, out: TensorMut);
    aclnnChamferDistanceBackward
        (xyz1 xyz2 idx1 idx2 gradDist1 gradDist2: Tensor, gradXyz1 gradXyz2: TensorMut);
    aclnnClippedSwiglu
        (x groupIndexOptional: Tensor, dim: i64, alpha limit bias: f64, interleaved: bool, out: Tensor);
    aclnnClippedSwigluGrad(
        gradY x groupIndexOptional: Tensor, dim: i64, alpha limit bias: f64, interleaved: bool,
        gradXOut: Tensor);
    aclnnClippedSwigluV2(
        x groupIndexOptional: Tensor, dim: i64, alpha limit bias: f64, interleaved: bool, clampMode: i64,
        out: Tensor);
    aclnnCrossEntropyLoss(
        input target weightOptional: Tensor, reductionOptional: TextMut, ignoreIndex: i64, labelSmoothing
        lseSquareScaleForZloss: f64, returnZloss: bool, lossOut logProbOut zlossOut lseForZlossOut: Tensor);
    aclnnCrossEntropyLossGrad(
        gradLoss logProb target weightOptional gradZlossOptional lseForZlossOptional: Tensor,
        reductionOptional: TextMut, ignoreIndex: i64, labelSmoothing lseSquareScaleForZloss: f64,
        out: Tensor);
    aclnnCrossEntropySumExpAndIndexLogit(
        vocabParallelLogits target globalLogitsMax: Tensor, vocabStartIndex vocabEndIndex: i64,
        predictedLogitsOut sumExpLogitsOut expLogitsOut targetOffsetOut targetMaskOut: Tensor);
    aclnnCtcLossBackward(
        gradOut logProbs targets: Tensor, inputLengths targetLengths: Ints, negLogLikelihood logAlpha: Tensor,
        blank: i64, zeroInfinity: bool, out: TensorMut);
    aclnnCtcLoss(
        logProbs targets: Tensor, inputLengths targetlengths: Ints, blank: i64, zeroInfinity: bool,
        negLogLikelihoodOut logAlphaOut: TensorMut);
    aclnnDeepNorm(x gx beta gamma: Tensor, alpha epsilon: f64, meanOut rstdOut yOut: Tensor);
    aclnnDeepNormGrad(dy x gx gamma mean rstd: Tensor, alpha: f64, dxOut dgxOut dbetaOut dgammaOut: Tensor);
    aclnnDequantBias(x weightScale activateScaleOptional biasOptional: Tensor, outputDtype: i64, out: Tensor);
    aclnnEluBackward(
        gradOutput: Tensor, alpha scale inputScale: Scalar, isResult: bool, selfOrResult: Tensor,
        gradInput: TensorMut);
    aclnnElu(self_: Tensor, alpha scale inputScale: Scalar, out: TensorMut);
    aclnnEmbeddingBag(
        weight indices offsets: Tensor, scaleGradByFreq: bool, mode: i64, sparse: bool,
        perSampleWeights: Tensor, includeLastOffset: bool, paddingIdx: i64, output offset2bag bagSize
        maxIndices: TensorMut);
    aclnnEmbeddingDenseBackward
        (grad indices: Tensor, numWeights paddingIdx: u64, scaleGradByFreq: bool, out: Tensor);
    aclnnEmbedding(weight indices out: Tensor);
    aclnnEmbeddingRenorm(selfRef: TensorMut, indices: Tensor, maxNorm normType: f64);
    aclnnErfinv, aclnnFastGelu, aclnnGelu, aclnnHardsigmoid, aclnnInverse, aclnnLogSigmoid, aclnnMish,
    aclnnNanMedian, aclnnNonzero, aclnnNonzeroV2, aclnnSelu, aclnnSigmoid, aclnnSilu
        (self_: Tensor, out: TensorMut);
    aclnnExpandIntoJaggedPermute
        (permute inputOffset outputOffset: Tensor, outputSize: i64, outputPermuteOutOut: Tensor);
    aclnnFastBatchNormBackward(
        gradOut input weight runningMean runningVar saveMean saveInvstd: Tensor, training: bool, eps: f64,
        outputMask: Bools, version: c_int, gradInput gradWeight gradBias: TensorMut);
    aclnnFastGeluBackward, aclnnMishBackward, aclnnSiluBackward
        (gradOutput self_: Tensor, gradInput: TensorMut);
    aclnnFastLayerNorm, aclnnLayerNorm(
        input: Tensor, normalizedShape: Ints, weightOptional biasOptional: Tensor, eps: f64, out
        meanOutOptional rstdOutOptional: TensorMut);
    aclnnFatreluMul(input threshold out: Tensor);
    aclnnFlip(self_: Tensor, dims: Ints, out: TensorMut);
    aclnnForeachACosInplace, aclnnForeachLogInplace, aclnnForeachZeroInplace(x: Tensors);
    aclnnForeachAbs, aclnnForeachAcos, aclnnForeachAsin, aclnnForeachAtan, aclnnForeachCopy, aclnnForeachCos,
    aclnnForeachCosh, aclnnForeachErf, aclnnForeachErfc, aclnnForeachExp, aclnnForeachExpm1,
    aclnnForeachLog10, aclnnForeachLog1p, aclnnForeachLog2, aclnnForeachLog, aclnnForeachNeg,
    aclnnForeachReciprocal, aclnnForeachSigmoid, aclnnForeachSign, aclnnForeachSin, aclnnForeachSinh,
    aclnnForeachSqrt, aclnnForeachTan, aclnnForeachTanh
        (x out: Tensors);
    aclnnForeachAddList, aclnnForeachSubList(x1 x2: Tensors, alpha: Tensor, out: Tensors);
    aclnnForeachAddListInplace, aclnnForeachSubListInplace(x1 x2: Tensors, alpha: Tensor);
    aclnnForeachAddListV2, aclnnForeachSubListV2(x1 x2: Tensors, alpha: Scalar, out: TensorsMut);
    aclnnForeachAddScalar, aclnnForeachDivScalar, aclnnForeachMaximumScalar, aclnnForeachMinimumScalar,
    aclnnForeachMulScalar, aclnnForeachPowScalar, aclnnForeachSubScalar
        (x: Tensors, scalar: Tensor, out: Tensors);
    aclnnForeachAddScalarList, aclnnForeachDivScalarList, aclnnForeachMaximumScalarList,
    aclnnForeachMinimumScalarList, aclnnForeachMulScalarList, aclnnForeachPowScalarList,
    aclnnForeachSubScalarList
        (x: Tensors, scalars: Scalars, out: Tensors);
    aclnnForeachAddScalarV2, aclnnForeachDivScalarV2, aclnnForeachMaximumScalarV2,
    aclnnForeachMinimumScalarV2, aclnnForeachMulScalarV2, aclnnForeachPowScalarV2, aclnnForeachSubScalarV2
        (x: Tensors, scalar: Scalar, out: TensorsMut);
    aclnnForeachAddcdivList, aclnnForeachAddcdivScalarList, aclnnForeachAddcmulList,
    aclnnForeachAddcmulScalarList
        (x1 x2 x3: Tensors, scalars: Tensor, out: Tensors);
    aclnnForeachAddcdivScalar, aclnnForeachAddcmulScalar(x1 x2 x3: Tensors, scalar: Tensor, out: Tensors);
    aclnnForeachAddcdivScalarV2, aclnnForeachAddcmulScalarV2
        (x1 x2 x3: Tensors, scalar: Scalar, out: TensorsMut);
    aclnnForeachDivList, aclnnForeachMaximumList, aclnnForeachMinimumList, aclnnForeachMulList,
    aclnnForeachPowList
        (x1 x2 out: Tensors);
    aclnnForeachDivListInplace, aclnnForeachMulListInplace(x1 x2: Tensors);
    aclnnForeachLerpList(x1 x2 weight out: Tensors);
    aclnnForeachLerpScalar(x1 x2: Tensors, weight: Scalar, out: Tensors);
    aclnnForeachMulScalarInplace, aclnnForeachSubScalarInplace(x: Tensors, scalar: Tensor);
    aclnnForeachNonFiniteCheckAndUnscale(scaledGrads: Tensors, foundInf invScale: Tensor);
    aclnnForeachNorm(x: Tensors, scalar: Scalar, out: Tensors);
    aclnnForeachPowScalarAndTensor(scalar: Scalar, x out: Tensors);
    aclnnForeachRoundOffNumber(x: Tensors, roundMode: Tensor, out: Tensors);
    aclnnForeachRoundOffNumberV2(x: Tensors, roundMode: Scalar, out: TensorsMut);
    aclnnFusedAdamw(
        paramsRef grads expAvgsRef expAvgSqsRef maxExpAvgSqsRef stateSteps: Tensors, gradScaleOptional
        foundInfOptional: Tensor, lr beta1 beta2 weightDecay eps: f64, amsgrad maximize: bool);
    aclnnFusedCrossEntropyLossWithMaxSum(
        logitsMax sumExpLogits predictedLogits: Tensor, labelSmoothing: f32, inputOptional weightOptional
        vocabParallelLogitsOptional: Tensor, lossOut softMaxOutOptional: TensorMut);
    aclnnFusedLinearCrossEntropyLossGrad(
        grad input weight targetMask maskedTarget: Tensor, labelSmoothing: f32, logitsMaxOptional
        sumExpLogitsOptional softmaxOptional: Tensor, inputGradOut weightGradOut: TensorMut);
    aclnnFusedLinearOnlineMaxSum(
        input weight target: Tensor, vocabStartIndex vocabEndIndex: i64, logitsMaxLocalOut
        sumExpLogitsLocalOut predictedLogitsLocalOut targetMaskOut maskedTargetOut
        vocabParallelLogitsOutOptional: TensorMut);
    aclnnFusedSgd(
        paramsRef gradsRef momentumBufferListOptionalRef: Tensors, gradScaleOptional: Tensor, weightDecay
        momentum lr dampening: f32, nesterov maximize isFirstStep: bool);
    aclnnGRUBackward(
        input: Tensor, params: Tensors, hx dy dh: Tensor, r z n hn h: Tensors, batchSizes: Tensor,
        hasBias: bool, numLayers: i64, bidirection batchFirst: bool, dxOut dhPrevOut: TensorMut,
        dparamsOut: TensorsMut);
    aclnnGRU(
        input: Tensor, params: Tensors, hx batchSizes: Tensor, hasBias: bool, numLayers: i64, dropout: f64,
        train bidirection batchFirst: bool, output hy: TensorMut, rOut zOut nOut hnOut hOut: TensorsMut);
    aclnnGather, aclnnGatherV2, aclnnIndexSelect(self_: Tensor, dim: i64, index: Tensor, out: TensorMut);
    aclnnGatherNd(self_ indices: Tensor, negativeIndexSupport: bool, out: TensorMut);
    aclnnGatherV3(self_: Tensor, dim: i64, index: Tensor, batchDims mode: i64, out: TensorMut);
    aclnnGeGluBackward(gradOutput self_ gelu: Tensor, dim approximate: i64, gradInput: TensorMut);
    aclnnGeGlu(self_: Tensor, dim approximate: i64, out outGelu: TensorMut);
    aclnnGeGluV3Backward
        (gradOutput self_ gelu: Tensor, dim approximate: i64, activateLeft: bool, gradInput: TensorMut);
    aclnnGeGluV3(self_: Tensor, dim approximate: i64, activateLeft: bool, out outGelu: TensorMut);
    aclnnGeluBackward(gradOutput self_ gradInput: Tensor);
    aclnnGeluBackwardV2(gradOutput self_: Tensor, approximate: TextMut, gradInput: TensorMut);
    aclnnGeluMul(input: Tensor, approximateOptional: TextMut, out: Tensor);
    aclnnGeluV2(x: Tensor, approximate: i64, y: TensorMut);
    aclnnGemmaRmsNorm, aclnnRmsNorm(x gamma: Tensor, epsilon: f64, yOut rstdOut: Tensor);
    aclnnGluBackward(gradOut self_: Tensor, dim: i64, out: Tensor);
    aclnnGlu(self_: Tensor, dim: i64, out: Tensor);
    aclnnGroupNormBackward(
        gradOut input mean rstd gamma: Tensor, N C HxW group: i64, outputMask: Bools, gradInput gradGammaOut
        gradBetaOut: TensorMut);
    aclnnGroupNorm(self_ gamma beta: Tensor, N C HxW group: i64, eps: f64, out meanOut rstdOut: TensorMut);
    aclnnGroupNormSilu(self_ gamma beta: Tensor, group: i64, eps: f64, out meanOut rstdOut: TensorMut);
    aclnnGroupNormSiluV2
        (self_ gamma beta: Tensor, group: i64, eps: f64, activateSilu: bool, out meanOut rstdOut: TensorMut);
    aclnnGroupNormSwish(
        x gamma beta: Tensor, numGroups: i64, dataFormatOptional: TextMut, eps: f64, activateSwish: bool,
        swishScale: f64, yOut meanOut rstdOut: Tensor);
    aclnnGroupNormSwishGrad(
        dy mean rstd x gamma beta: Tensor, numGroups: i64, dataFormatOptional: TextMut, swishScale: f64,
        dgammaIsRequire dbetaIsRequire: bool, dxOut dgammaOut dbetaOut: Tensor);
    aclnnHardshrinkBackward(gradOutput self_: Tensor, lambd: Scalar, gradInput: TensorMut);
    aclnnHardshrink, aclnnSoftshrink(self_: Tensor, lambd: Scalar, out: TensorMut);
    aclnnHardswish, aclnnRelu(self_ out: Tensor);
    aclnnHardtanhBackward(gradOutput self_: Tensor, min max: Scalar, out: TensorMut);
    aclnnHeaviside(input values: Tensor, out: TensorMut);
    aclnnIndexAdd(self_: Tensor, dim: i64, index source: Tensor, alpha: Scalar, out: TensorMut);
    aclnnIndexAddV2(self_: Tensor, dim: i64, index source: Tensor, alpha: Scalar, mode: i64, out: TensorMut);
    aclnnIndexCopy(selfRef: TensorMut, dim: i64, index source: Tensor, outRef: TensorMut);
    aclnnIndexFill(self_: Tensor, dim: i64, index: Tensor, value: Scalar, out: TensorMut);
    aclnnIndexFillTensor(self_: Tensor, dim: i64, index: Ints, value: Scalar, out: TensorMut);
    aclnnIndex(self_: Tensor, indices: Tensors, out: TensorMut);
    aclnnIndexPutImpl(selfRef: TensorMut, indices: Tensors, values: Tensor, accumulate unsafe_: bool);
    aclnnInplaceAddRelu(selfRef: TensorMut, other: Tensor, alpha: ScalarMut);
    aclnnInplaceAddRmsNorm(x1Ref x2Ref: TensorMut, gamma: Tensor, epsilon: f64, rstdOut: Tensor);
    aclnnInplaceCelu(selfRef: TensorMut, alpha: Scalar);
    aclnnInplaceElu(selfRef: TensorMut, alpha scale inputScale: Scalar);
    aclnnInplaceErfinv(selfRef: Tensor);
    aclnnInplaceHardsigmoid, aclnnInplaceHardswish(self_: Tensor);
    aclnnInplaceIndexCopy(selfRef: TensorMut, dim: i64, index source: Tensor);
    aclnnInplaceIndexFill(selfRef: TensorMut, dim: i64, index: Tensor, value: Scalar);
    aclnnInplaceIndexFillTensor(selfRef: TensorMut, dim: i64, index: Ints, value: Scalar);
    aclnnInplaceLeakyRelu(selfRef: TensorMut, negativeSlope: Scalar);
    aclnnInplaceMaskedScatter(selfRef: TensorMut, mask source: Tensor);
    aclnnInplaceMish, aclnnInplaceRelu, aclnnInplaceSelu, aclnnInplaceSigmoid(selfRef: TensorMut);
    aclnnInplacePut(selfRef: TensorMut, index source: Tensor, accumulate: bool);
    aclnnInplaceRReluWithNoise(self_ noise: Tensor, lower upper: Scalar, training: bool, seed offset: i64);
    aclnnInplaceRenorm(selfRef: TensorMut, p: Scalar, dim: i64, maxNorm: Scalar);
    aclnnInplaceScatter(selfRef: TensorMut, dim: i64, index src: Tensor, reduce: i64);
    aclnnInplaceScatterReduce
        (selfRef: TensorMut, dim: i64, index src: Tensor, reduce: i64, includeSelf: bool);
    aclnnInplaceScatterUpdate(data: TensorMut, indices updates: Tensor, axis: i64);
    aclnnInplaceScatterValue(selfRef: TensorMut, dim: i64, index: Tensor, value: Scalar, reduce: i64);
    aclnnInplaceThreshold(selfRef: TensorMut, threshold value: Scalar);
    aclnnInstanceNorm(x gamma beta: Tensor, dataFormat: Text, eps: f64, y mean variance: TensorMut);
    aclnnKlDivBackward(gradOutput self_ target: Tensor, reduction: i64, logTarget: bool, out: TensorMut);
    aclnnKlDivTargetBackward
        (gradOutput self_ target: Tensor, reduction: i64, logTarget: bool, gradTarget: TensorMut);
    aclnnKthvalue(self_: Tensor, k dim: i64, keepdim: bool, valuesOut indicesOut: TensorMut);
    aclnnL1LossBackward(gradOutput self_ target: Tensor, reduction: i64, gradInput: TensorMut);
    aclnnL1Loss, aclnnMseLoss, aclnnMseLossOut, aclnnSoftMarginLoss
        (self_ target: Tensor, reduction: i64, out: TensorMut);
    aclnnLSTM(
        input: Tensor, params hx: Tensors, batchSizes: Tensor, hasBias: bool, numLayers: i64, dropout: f64,
        train bidirectional batchFirst: bool, output hy cy: TensorMut, iOut jOut fOut oOut hOut cOut
        tanhCOut: TensorsMut);
    aclnnLayerNormBackward(
        gradOut input: Tensor, normalizedShape: Ints, mean rstd weightOptional biasOptional: Tensor,
        outputMask: Bools, gradInputOut gradWeightOut gradBiasOut: TensorMut);
    aclnnLayerNormWithImplMode(
        input: Tensor, normalizedShape: Ints, weightOptional biasOptional: Tensor, eps: f64, out
        meanOutOptional rstdOutOptional: TensorMut, implMode: i32);
    aclnnLeakyReluBackward
        (gradOutput self_: Tensor, negativeSlope: Scalar, selfIsResult: bool, out: TensorMut);
    aclnnLeakyRelu(self_: Tensor, negativeSlope: Scalar, out: TensorMut);
    aclnnLinalgVectorNorm(self_: Tensor, ord: Scalar, dims: Ints, keepDims: bool, dtype: i32, out: TensorMut);
    aclnnLogSigmoidBackward(gradOutput self_ buffer: Tensor, gradInput: TensorMut);
    aclnnLogSigmoidForward(self_: Tensor, out buffer: TensorMut);
    aclnnLogSoftmaxBackward, aclnnSoftmaxBackward(gradOutput output: Tensor, dim: i64, out: TensorMut);
    aclnnLogSoftmax, aclnnSoftmax(self_: Tensor, dim: i64, out: TensorMut);
    aclnnLogit(input: Tensor, eps: f64, out: Tensor);
    aclnnLogitGrad(x dy: Tensor, eps: f64, out: Tensor);
    aclnnLstmBackward(
        input: Tensor, hx params: Tensors, dy dh dc: Tensor, i g f o h c tanhc: Tensors,
        batchSizesOptional: Tensor, hasBias: bool, numLayers: i64, dropout: f64, train bidirectional
        batchFirst: bool, outputMask: Bools, dxOut dhPrevOut dcPrevOut: TensorMut, dparamsOut: TensorsMut);
    aclnnMaskedSoftmaxWithRelPosBias
        (x attenMaskOptional relativePosBias: Tensor, scaleValue: f64, innerPrecisionMode: i64, out: Tensor);
    aclnnMaxPool2dWithIndicesBackward, aclnnMaxPool2dWithMaskBackward, aclnnMaxPool3dWithArgmaxBackward(
        gradOutput self_ indices: Tensor, kernelSize stride padding dilation: Ints, ceilMode: bool,
        gradInput: TensorMut);
    aclnnMaxPool2dWithIndices, aclnnMaxPool2dWithMask, aclnnMaxPool3dWithArgmax
        (self_: Tensor, kernelSize stride padding dilation: Ints, ceilMode: bool, out indices: TensorMut);
    aclnnMaxPool(
        self_: Tensor, kernelShape strides: Ints, autoPad: i64, pads dilations: Ints, ceilMode: i64,
        out: TensorMut);
    aclnnMaxUnpool2dBackward(gradOutput self_ indices: Tensor, outputSize: Ints, out: TensorMut);
    aclnnMaxUnpool2d(self_ indices: Tensor, outputSize: Ints, out: TensorMut);
    aclnnMaxUnpool3dBackward
        (gradOutput self_ indices: Tensor, outputSize stride padding: Ints, out: TensorMut);
    aclnnMaxUnpool3d(self_ indices: Tensor, outputSize stride padding: Ints, outRef: TensorMut);
    aclnnMedianDim, aclnnNanMedianDim
        (self_: Tensor, dim: i64, keepDim: bool, valuesOut indicesOut: TensorMut);
    aclnnMedian(self_: Tensor, valuesOut: TensorMut);
    aclnnModulateBackward(grad_output input scale shift grad_input grad_scale grad_shift: Tensor);
    aclnnModulate(self_ scaleOptional shiftOptional: Tensor, out: TensorMut);
    aclnnMseLossBackward, aclnnSoftMarginLossBackward
        (gradOutput self_ target: Tensor, reduction: i64, out: TensorMut);
    aclnnMultiScaleDeformableAttentionGrad(
        value spatialShape levelStartIndex location attnWeight gradOutput: Tensor, gradValue gradLocation
        gradAttnWeight: TensorMut);
    aclnnMultiScaleDeformableAttnFunction
        (value spatialShape levelStartIndex location attnWeight: Tensor, output: TensorMut);
    aclnnMultilabelMarginLoss(self_ target: Tensor, reduction: i64, out isTarget: TensorMut);
    aclnnNLLLoss2dBackward
        (gradOutput self_ target weight: Tensor, reduction ignoreIndex: i64, totalWeight out: TensorMut);
    aclnnNLLLoss2d, aclnnNLLLoss
        (self_ target weight: Tensor, reduction ignoreIndex: i64, out totalWeightOut: TensorMut);
    aclnnNLLLossBackward(
        gradOutput self_ target weight: Tensor, reduction ignoreIndex: i64, totalWeight: Tensor,
        out: TensorMut);
    aclnnNorm(self_: Tensor, pScalar: Scalar, dim: Ints, keepdim: bool, out: TensorMut);
    aclnnPreluBackward(gradOutput self_ weight: Tensor, gradInput gradWeight: TensorMut);
    aclnnPrelu(self_ weight: Tensor, out: TensorMut);
    aclnnRReluWithNoise
        (self_ noise: Tensor, lower upper: Scalar, training: bool, seed offset: i64, out: TensorMut);
    aclnnRenorm(self_: Tensor, p: Scalar, dim: i64, maxNorm: Scalar, out: TensorMut);
    aclnnRepeatInterleave(self_ repeats: Tensor, outputSize: i64, out: TensorMut);
    aclnnRepeatInterleaveGrad(yGrad repeats: Tensor, axis: i64, out: Tensor);
    aclnnRepeatInterleaveInt(self_: Tensor, repeats outputSize: i64, out: TensorMut);
    aclnnRepeatInterleaveIntWithDim(self_: Tensor, repeats dim outputSize: i64, out: TensorMut);
    aclnnRepeatInterleaveTensor(repeats: Tensor, outputSize: i64, out: TensorMut);
    aclnnRepeatInterleaveWithDim(self_ repeats: Tensor, dim outputSize: i64, out: TensorMut);
    aclnnRmsNormGrad(dy x rstd gamma dxOut dgammaOut: Tensor);
    aclnnScaledMaskedSoftmaxBackward
        (gradOutput y mask: Tensor, scale: f64, fixTriuMask: bool, out: TensorMut);
    aclnnScaledMaskedSoftmax(x mask: Tensor, scale: f64, fixedTriuMask: bool, y: TensorMut);
    aclnnScatterAdd(self_: Tensor, dim: i64, index src: Tensor, out: TensorMut);
    aclnnScatterDiv, aclnnScatterMax, aclnnScatterMin, aclnnScatterMul
        (varRef: TensorMut, indices updates: Tensor, useLocking: bool);
    aclnnScatter(self_: Tensor, dim: i64, index src: Tensor, reduce: i64, out: TensorMut);
    aclnnScatterList(var: TensorsMut, indices updates mask: Tensor, reduce: TextMut, axis: i64);
    aclnnScatterNd(data indices updates: Tensor, out: TensorMut);
    aclnnScatterNdUpdate, aclnnTfScatterAdd(varRef: TensorMut, indices updates: Tensor);
    aclnnScatterReduce
        (self_: Tensor, dim: i64, index src: Tensor, reduce: i64, includeSelf: bool, out: TensorMut);
    aclnnScatterValue(self_: Tensor, dim: i64, index: Tensor, value: Scalar, reduce: i64, out: TensorMut);
    aclnnSeluBackward(gradOutput result: Tensor, gradInput: TensorMut);
    aclnnShrink(self_: Tensor, lambd bias: Scalar, out: TensorMut);
    aclnnSigmoidBackward(gradOutput output: Tensor, gradInput: TensorMut);
    aclnnSituGlu(x: Tensor, dim: i64, beta linearBeta: f64, activateLeft: bool, out: Tensor);
    aclnnSituGluGrad(gradY x: Tensor, dim: i64, beta linearBeta: f64, activateLeft: bool, out: Tensor);
    aclnnSleep(cycles: Ints);
    aclnnSmoothL1LossBackward(gradOut self_ target: Tensor, reduction: i64, beta: f32, gradInput: TensorMut);
    aclnnSmoothL1Loss(self_ target: Tensor, reduction: i64, beta: f32, result: TensorMut);
    aclnnSoftmaxCrossEntropyWithLogits(features: Tensor, labels loss backprop: TensorMut);
    aclnnSoftplusBackward(gradOutput self_: Tensor, beta threshold: Scalar, gradInput: TensorMut);
    aclnnSoftplus(self_: Tensor, beta threshold: Scalar, out: TensorMut);
    aclnnSoftshrinkBackward(gradOutput self_: Tensor, lambda: Scalar, gradInput: TensorMut);
    aclnnSquaredRelu(input out: Tensor);
    aclnnSwiGlu(x: Tensor, dim: i64, out: Tensor);
    aclnnSwiGluGrad(yGrad x: Tensor, dim: i64, out: Tensor);
    aclnnSwigluGroup(x weightOptional groupIndexOptional: Tensor, clampLimit: f64, out: Tensor);
    aclnnSwigluGroupGrad(
        gradY x weightOptional yOriginOptional groupIndexOptional: Tensor, clampLimit: f32, gradXOut
        gradWeightOutOptional: TensorMut);
    aclnnSwishBackward(gradOutput self_: Tensor, betaOptional: Scalar, gradInput: TensorMut);
    aclnnSwish(self_: Tensor, betaOptional: Scalar, out: TensorMut);
    aclnnSyncBatchNormGatherStats(
        totalSum totalSquareSum sampleCount: Tensor, mean variance: TensorMut, momentum eps: f32, batchMean
        batchInvstd: TensorMut);
    aclnnTake(self_ index: Tensor, out: TensorMut);
    aclnnThnnFusedLstmCellBackward(
        gradHyOptional gradCOptional cx cy storage: Tensor, hasBias: bool, gradGatesOut gradCxOut
        gradBiasOut: TensorMut);
    aclnnThnnFusedLstmCell(
        inputGates hiddenGates cx inputBiasOptional hiddenBiasOptional: Tensor, hyOut cyOut
        storageOut: TensorMut);
    aclnnThresholdBackward(gradOutput self_: Tensor, threshold: Scalar, out: TensorMut);
    aclnnThreshold(self_: Tensor, threshold value: Scalar, out: TensorMut);
    aclnnTopKTopPSample(
        logits topK topP q: Tensor, eps: f64, isNeedLogits: bool, topKGuess: i64, logitsSelectIdx
        logitsTopKPSelect: Tensor);
    aclnnTopKTopPSampleV2(
        logits topK topP q minPs: Tensor, eps: f64, isNeedLogits: bool, topKGuess ksMax: i64, inputIsLogits
        isNeedSampleResult: bool, logitsSelectIdx logitsTopKPSelect logitsIdx logitsSortMasked: Tensor);
    aclnnTopk(self_: Tensor, k dim: i64, largest sorted: bool, valuesOut indicesOut: TensorMut);
    aclnnUnique2
        (self_: Tensor, sorted returnInverse returnCounts: bool, valueOut inverseOut countsOut: TensorMut);
    aclnnUniqueConsecutive
        (self_: Tensor, returnInverse returnCounts: bool, dim: i64, valueOut inverseOut countsOut: TensorMut);
    aclnnUniqueDim
        (self_: Tensor, sorted returnInverse: bool, dim: i64, valueOut inverseOut countsOut: TensorMut);
    aclnnUnique(self_: Tensor, sorted returnInverse: bool, valueOut inverseOut: TensorMut);
}
