//! libopapi_nn.so (9.x), libopapi.so: matrix products, convolutions, quantisation.

use crate::types::*;
use std::ffi::c_int;

operators! {
    /// libopapi_nn.so (9.x), libopapi.so: matrix products, convolutions, quantisation.
    OpsProducts
    aclnnAdaLayerNormQuant(
        x scale shift weightOptional biasOptional smoothScalesOptional: Tensor, epsilon: f64, quantMode: Text,
        out quantScale quantOffsetOptional: TensorMut);
    aclnnAddLayerNormQuant(
        x1 x2 gamma beta biasOptional scales1Optional scales2Optional zeroPoints1Optional
        zeroPoints2Optional: Tensor, quantMode: Text, epsilon: f64, additionalOutput divMode: bool, y1Out
        y2Out xOut outScales1Out outScales2Out: TensorMut);
    aclnnAddLayerNormQuantV2(
        x1 x2 gamma beta biasOptional scales1Optional scales2Optional zeroPoints1Optional
        zeroPoints2Optional: Tensor, quantMode: Text, epsilon: f64, additionalOutput divMode: bool, y1Out
        y2Out xOut layernormRes outScales1Out outScales2Out: TensorMut);
    aclnnAddRmsNormDynamicMxQuant(
        x1 x2 gamma beta: Tensor, epsilon: f64, scaleAlg: i64, roundMode: TextMut, dstType: i64,
        outputRstd: bool, yOut xOut mxscaleOut rstdOut: TensorMut);
    aclnnAddRmsNormDynamicQuant(
        x1 x2 gamma smoothScale1Optional smoothScale2Optional: Tensor, epsilon: f64, y1Out y2Out xOut
        scale1Out scale2Out: Tensor);
    aclnnAddRmsNormDynamicQuantV2(
        x1 x2 gamma smoothScale1Optional smoothScale2Optional betaOptional: Tensor, epsilon: f64,
        outputMask: Bools, y1Out y2Out xOut scale1Out scale2Out: TensorMut);
    aclnnAddRmsNormQuant(
        x1 x2 gamma scales1 scales2Optional zeroPoints1Optional zeroPoints2Optional: Tensor, axis: i64,
        epsilon: f64, divMode: bool, y1Out y2Out xOut: Tensor);
    aclnnAddRmsNormQuantV2(
        x1 x2 gamma scales1 scales2Optional zeroPoints1Optional zeroPoints2Optional betaOptional: Tensor,
        axis: i64, epsilon: f64, divMode: bool, y1Out y2Out xOut rmsNormOut: TensorMut);
    aclnnAddbmm, aclnnBaddbmm
        (self_ batch1 batch2: Tensor, beta alpha: Scalar, out: TensorMut, cubeMathType: i8);
    aclnnAddmm, aclnnAddmmWeightNz
        (self_ mat1 mat2: Tensor, beta alpha: Scalar, out: TensorMut, cubeMathType: i8);
    aclnnAddmv(self_ mat vec: Tensor, alpha beta: Scalar, out: TensorMut, cubeMathType: i8);
    aclnnAntiMxQuant(x mxscale: Tensor, axis dstType: i64, y: Tensor);
    aclnnApplyAdamWQuant(
        varRef: TensorMut, grad: Tensor, mRef vRef: TensorMut, qmapM qmapV: Tensor, absmaxMRef
        absmaxVRef: TensorMut, step: Tensor, lr beta1 beta2 weightDecay eps gnormScale: f64,
        quantModeOptional: TextMut, blockSize: i64);
    aclnnAscendAntiQuant(x scale offset: Tensor, dstType: i64, sqrtMode: bool, y: Tensor);
    aclnnAscendQuant(x scale offset: Tensor, sqrtMode: bool, roundMode: Text, dstType: i32, y: Tensor);
    aclnnAscendQuantV3(x scale offset: Tensor, sqrtMode: bool, roundMode: Text, dstType axis: i32, y: Tensor);
    aclnnBatchMatMul, aclnnBatchMatMulWeightNz, aclnnMatmul, aclnnMatmulWeightNz, aclnnMm
        (self_ mat2: Tensor, out: TensorMut, cubeMathType: i8);
    aclnnBatchMatmulQuant(x1 x2 quantParam bias: Tensor, transposeX1 transposeX2: bool, out: TensorMut);
    aclnnConvDepthwise2d(
        self_ weight: Tensor, kernelSize: Ints, bias: Tensor, stride padding dilation: Ints, out: TensorMut,
        cubeMathType: i8);
    aclnnConvTbcBackward(
        self_ input weight bias: Tensor, pad: i64, cubeMathType: i8, gradInput gradWeight
        gradBias: TensorMut);
    aclnnConvTbc(self_ weight bias: Tensor, pad: i64, output: TensorMut, cubeMathType: i8);
    aclnnConvertWeightToINT4Pack(weight: Tensor, weightInt4Pack: TensorMut);
    aclnnConvolutionBackward(
        gradOutput input weight: Tensor, biasSizes stride padding dilation: Ints, transposed: bool,
        outputPadding: Ints, groups: c_int, outputMask: Bools, cubeMathType: i8, gradInput gradWeight
        gradBias: TensorMut);
    aclnnConvolution(
        input weight bias: Tensor, stride padding dilation: Ints, transposed: bool, outputPadding: Ints,
        groups: i64, output: TensorMut, cubeMathType: i8);
    aclnnDeformableConv2dBackward(
        input gradOutput offsetOut weight offset: Tensor, kernelSize stride padding dilation: Ints, groups
        deformableGroups: i64, modulated: bool, gradInput gradWeight gradOffset gradBias: TensorMut);
    aclnnDeformableConv2d(
        x weight offset biasOptional: Tensor, kernelSize stride padding dilation: Ints, groups
        deformableGroups: i64, modulated: bool, out deformOutOptional: TensorMut);
    aclnnDequantSituQuant(
        x weightScaleOptional activationScaleOptional biasOptional quantScaleOptional quantOffsetOptional
        groupIndexOptional: Tensor, beta linearBeta: f32, activateLeft: bool, quantTypeOptional: TextMut, yOut
        yScaleOut: Tensor);
    aclnnDequantSwigluQuant(
        x weightScaleOptional activationScaleOptional biasOptional quantScaleOptional quantOffsetOptional
        groupIndexOptional: Tensor, activateLeft: bool, quantModeOptional: TextMut, yOut scaleOut: Tensor);
    aclnnDequantSwigluQuantV2(
        x weightScaleOptional activationScaleOptional biasOptional quantScaleOptional quantOffsetOptional
        groupIndexOptional: Tensor, activateLeft: bool, quantModeOptional: TextMut, dstType: i64,
        roundModeOptional: TextMut, activateDim swigluMode: i64, clampLimit gluAlpha gluBias: f64, yOut
        scaleOut: Tensor);
    aclnnDualLevelQuantMatmulWeightNz(
        x1 x2 x1Level0Scale x2Level0Scale x1Level1Scale x2Level1Scale optionalBias: Tensor, transposeX1
        transposeX2: bool, level0GroupSize level1GroupSize: i64, out: TensorMut);
    aclnnDynamicBlockMxQuant(
        x: Tensor, roundModeOptional: TextMut, dstType scaleAlg: i64, dstTypeMax: f64, yOut scale1Out
        scale2Out: Tensor);
    aclnnDynamicBlockQuant(
        x: Tensor, minScale: f64, roundModeOptional: TextMut, dstType rowBlockSize colBlockSize: i64, yOut
        scaleOut: Tensor);
    aclnnDynamicBlockQuantV2(
        x: Tensor, minScale: f64, roundModeOptional: TextMut, dstType rowBlockSize colBlockSize: i64,
        dstTypeMax: f64, yOut scaleOut: Tensor);
    aclnnDynamicDualLevelMxQuant(
        x smoothScaleOptional: Tensor, roundModeOptional: TextMut, level0BlockSize level1BlockSize: i64, yOut
        level0ScaleOut level1ScaleOut: Tensor);
    aclnnDynamicMxQuant(
        x: Tensor, axis: i64, roundModeOptional: TextMut, dstType blocksize scaleAlg: i64, yOut
        mxscaleOut: TensorMut);
    aclnnDynamicMxQuantV2(
        x: Tensor, axis: i64, roundModeOptional: TextMut, dstType blocksize scaleAlg: i64, dstTypeMax: f64,
        yOut mxscaleOut: Tensor);
    aclnnDynamicMxQuantV3(
        x: Tensor, axis: i64, roundModeOptional: TextMut, dstType blocksize scaleAlg: i64, dstTypeMax
        maxLowBound: f64, yOut mxscaleOut: Tensor);
    aclnnDynamicMxQuantWithDualAxis(
        x: Tensor, roundModeOptional: TextMut, dstType scaleAlg: i64, y1Out mxscale1Out y2Out
        mxscale2Out: Tensor);
    aclnnDynamicMxQuantWithDualAxisV2(
        x: Tensor, roundModeOptional: TextMut, dstType scaleAlg: i64, dstTypeMax: f64, y1Out mxscale1Out y2Out
        mxscale2Out: Tensor);
    aclnnDynamicQuant(x smoothScalesOptional yOut scaleOut: Tensor);
    aclnnDynamicQuantV2
        (x smoothScalesOptional groupIndexOptional: Tensor, dstType: i64, yOut scaleOut offsetOut: Tensor);
    aclnnDynamicQuantV3(
        x smoothScalesOptional groupIndexOptional: Tensor, dstType: i64, isSymmetrical: bool, quantMode: Text,
        yOut scaleOut offsetOut: Tensor);
    aclnnDynamicQuantV4(
        x smoothScalesOptional groupIndexOptional: Tensor, dstType: i64, isSymmetrical: bool, quantMode: Text,
        dstTypeMax: f32, yOut scaleOut offsetOut: Tensor);
    aclnnEinsum(tensors: Tensors, equation: Text, output: TensorMut);
    aclnnFakeQuantPerChannelAffineCachemask
        (self_ scale zeroPoint: Tensor, axis quantMin quantMax: i64, out mask: TensorMut);
    aclnnFakeQuantPerTensorAffineCachemask
        (self_ scale zeroPoint: Tensor, fakeQuantEnbled: f32, quantMin quantMax: i64, out mask: TensorMut);
    aclnnFlatQuant(x kroneckerP1 kroneckerP2: Tensor, clipRatio: f64, out quantScale: TensorMut);
    aclnnFlatQuantV2(x kroneckerP1 kroneckerP2: Tensor, clipRatio dstTypeMax: f64, out quantScale: TensorMut);
    aclnnFlatQuantV3(
        x kroneckerP1 kroneckerP2 groupListOptional: Tensor, clipRatio dstTypeMax: f64, groupListType: i64,
        out quantScale: TensorMut);
    aclnnFusedMatmul(x1 x2 bias x3: Tensor, fusedOpType: Text, cubeMathType: i8, y: Tensor);
    aclnnFusedQuantMatmul, aclnnFusedQuantMatmulWeightNz(
        x1 x2 x1Scale x2Scale yScaleOptional x1OffsetOptional x2OffsetOptional yOffsetOptional biasOptional
        x3Optional: Tensor, fusedOpType: Text, groupSizeOptional: i64, out: TensorMut);
    aclnnGeluQuant(
        self_ inputScaleOptional inputOffsetOptional: Tensor, approximate quantMode roundMode: Text,
        dstType: i64, y outScaleOptional: Tensor);
    aclnnGemm(A B C: Tensor, alpha beta: f32, transA transB: i64, out: TensorMut, cubeMathType: i8);
    aclnnGroupNormSiluQuant(
        self_ gamma beta quantScale: Tensor, group: i64, eps: f64, activateSilu: bool, out meanOut
        rstdOut: TensorMut);
    aclnnGroupQuant(x scale groupIndex offsetOptional: Tensor, dstType: i32, y: TensorMut);
    aclnnGroupedDynamicBlockQuant(
        x groupList: Tensor, minScale: f64, roundModeOptional: TextMut, dstType rowBlockSize colBlockSize
        groupListType: i64, yOut scaleOut: Tensor);
    aclnnGroupedDynamicBlockQuantV2(
        x groupList: Tensor, minScale: f64, roundModeOptional: TextMut, dstType rowBlockSize colBlockSize
        groupListType: i64, dstTypeMax: f64, yOut scaleOut: Tensor);
    aclnnGroupedDynamicMxQuant
        (x groupIndex: Tensor, roundMode: Text, dstType blocksize: i64, y mxscale: Tensor);
    aclnnGroupedDynamicMxQuantV2(
        x groupIndex: Tensor, roundMode: Text, dstType blocksize scaleAlg: i64, dstTypeMax: f64, y
        mxscale: Tensor);
    aclnnGroupedDynamicMxQuantWithDualAxis(
        x groupIndex: Tensor, roundModeOptional: TextMut, scaleAlg dstDtype: i64, maxDtypeValue: f64, y1Out
        y1ScaleOut y2Out y2ScaleOut: Tensor);
    aclnnGroupedQuantMax(x scale groupList: Tensor, roundMode: Text, dstType: i64, y amax: Tensor);
    aclnnInplaceAddbmm(selfRef: TensorMut, batch1 batch2: Tensor, beta alpha: Scalar, cubeMathType: i8);
    aclnnInplaceAddmm(selfRef mat1 mat2: Tensor, beta alpha: Scalar, cubeMathType: i8);
    aclnnInplaceBaddbmm(selfRef batch1 batch2: Tensor, beta alpha: Scalar, cubeMathType: i8);
    aclnnInplaceQuantScatter(
        selfRef: TensorMut, indices updates quantScales quantZeroPoints: Tensor, axis quantAxis
        reduction: i64);
    aclnnInplaceQuantScatterV2(
        selfRef: TensorMut, indices updates quantScales quantZeroPoints: Tensor, axis quantAxis
        reduction: i64, roundMode: Text);
    aclnnLayerNormQuant(
        x gammma beta scale zeroPointsOptional: Tensor, quantMode: c_int, epsilon: f64, res
        scaleOut: TensorMut);
    aclnnMatmulCompress(x weight bias compressIndex: Tensor, out: TensorMut);
    aclnnMatmulEmuSplitWeight(x wHigh wLow y: Tensor, wLowScale: f32, yDtype: i8);
    aclnnMv(self_ vec: Tensor, out: TensorMut, cubeMathType: i8);
    aclnnMxToBlockMxQuant(x mxscale: Tensor, dstType: i64, y scale1 scale2: Tensor);
    aclnnQuantBatchMatmulInplaceAdd(
        x1 x2 x1ScaleOptional x2Scale: Tensor, yRef: TensorMut, transposeX1 transposeX2: bool,
        groupSize: i64);
    aclnnQuantConvolution, aclnnQuantConvolutionWeightNz(
        input weight bias scale offset: Tensor, stride padding dilation: Ints, transposed: bool,
        outputPadding: Ints, groups: i64, offsetx: i32, roundMode: Text, output: TensorMut);
    aclnnQuantMatmulActivationQuantWeightNz(
        x1 x2 x1ScaleOptional x2Scale biasOptional: Tensor, transposeX1 transposeX2: bool, groupSize: i64,
        activationType quantMode roundMode: Text, scaleAlg: i64, dstTypeMax: f64, yOut yScaleOut: TensorMut);
    aclnnQuantMatmulDequant(
        x weight weightScale biasOptional xScaleOptional xOffsetOptional smoothScaleOptional: Tensor,
        xQuantMode: TextMut, transposeWeight: bool, out: Tensor);
    aclnnQuantMatmul(x1 x2 bias: Tensor, deqScale: f32, out: TensorMut);
    aclnnQuantMatmulReduceSumWeightNz(
        x1 x2 x1Scale x2Scale yScale x1Offset x2Offset yOffset bias: Tensor, transposeX1 transposeX2: bool,
        groupSize: i64, dims: Ints, keepDims: bool, out: TensorMut);
    aclnnQuantMatmulV2(x1 x2 bias deqScale: Tensor, adjX1 adjX2: bool, out: TensorMut);
    aclnnQuantMatmulV3(x1 x2 scale offset bias: Tensor, transposeX1 transposeX2: bool, out: Tensor);
    aclnnQuantMatmulV4
        (x1 x2 scale offset pertokenScaleOptional bias: Tensor, transposeX1 transposeX2: bool, out: Tensor);
    aclnnQuantMatmulV5, aclnnQuantMatmulWeightNz(
        x1 x2 x1Scale x2Scale yScale x1Offset x2Offset yOffset bias: Tensor, transposeX1 transposeX2: bool,
        groupSize: i64, out: TensorMut);
    aclnnQuantMax(x scale: Tensor, roundMode: TextMut, dstType: i64, y amax: Tensor);
    aclnnQuantize(x scales zeroPoints: Tensor, dtype axis: i32, out: TensorMut);
    aclnnQuantizedBatchNorm(
        input mean var: Tensor, inputScale inputZeroPoint outputScale outputZeroPoint: Scalar, weight
        bias: TensorMut, epsilon: f32, output: TensorMut);
    aclnnRmsNormDynamicMxQuant(
        x gamma beta: Tensor, epsilon: f64, scaleAlg: i64, roundMode: TextMut, dstType: i64, outputRstd: bool,
        yOut mxscaleOut rstdOut: TensorMut);
    aclnnRmsNormDynamicQuant(
        x gamma smoothScalesOptional betaOptional: Tensor, epsilon: f64, dstType: i64, yOut scaleOut: Tensor);
    aclnnRmsNormGradQuant(
        dy x rstd gamma scalesX offsetXOptional: Tensor, quantMode: Text, divMode: bool, dxOut
        dgammaOut: TensorMut);
    aclnnRmsNormQuant(x gamma beta scale offset: Tensor, epsilon: f64, y: TensorMut);
    aclnnRmsNormQuantV3
        (x gamma scale offset beta: Tensor, epsilon: f64, divMode outputRstd: bool, y rstd: TensorMut);
    aclnnRotateQuant(
        x rotation alpha: Tensor, axis: i64, roundMode: TextMut, scaleAlg: i64, dstTypeMax: f64, trans: bool,
        yOut scaleOut: TensorMut);
    aclnnSituMxQuant(
        x: Tensor, beta linearBeta: f32, activateLeft: bool, axis dstType: i64, roundModeOptional: TextMut,
        yOut yScaleOut: Tensor);
    aclnnSparse4to2QuantMatmulWeightNz
        (x sparseWeight index xScale sparseWeightScale biasOptional: Tensor, out: TensorMut);
    aclnnSwiGluQuant(
        x smoothScalesOptional offsetsOptional groupIndexOptional: Tensor, activateLeft: bool,
        quantModeOptional: TextMut, yOut scaleOut: Tensor);
    aclnnSwiGluQuantV2(
        x smoothScalesOptional offsetsOptional groupIndexOptional: Tensor, activateLeft: bool,
        quantModeOptional: TextMut, groupListType dstType: i64, yOut scaleOut: Tensor);
    aclnnSwigluBackwardMxQuantWithDualAxis(
        x yGrad groupIndexOptional: Tensor, activateLeft: bool, roundModeOptional: TextMut, scaleAlg
        dstDtype: i64, maxDtypeValue: f64, y1Out mxscale1Out y2Out mxscale2Out: Tensor);
    aclnnSwigluGroupQuant(
        x weightOptional groupIndexOptional scaleOptional: Tensor, dstType quantMode blockSize: i64,
        roundScale: bool, clampLimit dstTypeMax: f64, outputOrigin: bool, yOut yScaleOut yOriginOut: Tensor);
    aclnnSwigluGroupQuantGrad(
        gradY x weightOptional yOriginOptional groupIndexOptional: Tensor, clampLimit: f64, gradXOut
        gradWeightOutOptional: Tensor);
    aclnnSwigluMxQuant(
        x groupIndexOptional: Tensor, activateDim: i64, activateLeft: bool, swigluMode: i64, clampLimit
        gluAlpha gluBias: f64, groupMode axis dstType: i64, roundModeOptional: TextMut, scaleAlg: i64,
        maxDtypeValue: f64, yOut mxscaleOut: Tensor);
    aclnnSwigluMxQuantWithDualAxis(
        x groupIndexOptional: Tensor, activateLeft: bool, roundModeOptional: TextMut, scaleAlg dstType: i64,
        maxDtypeValue: f64, y1Out mxscale1Out y2Out mxscale2Out: Tensor);
    aclnnTransQuantParamV2(scale offset out: Tensor);
    aclnnTransQuantParamV3(scale offset: Tensor, roundMode: i64, out: Tensor);
    aclnnTransposeBatchMatMul, aclnnTransposeBatchMatMulWeightNz(
        x1 x2 bias scale: Tensor, permX1 permX2 permY: Ints, cubeMathType: i8, batchSplitFactor: i32,
        out: TensorMut);
    aclnnTransposeQuantBatchMatMul, aclnnTransposeQuantBatchMatMulWeightNz(
        x1 x2 bias x1Scale x2Scale: Tensor, dtype: i32, groupSize: i64, permX1 permX2 permY: Ints,
        batchSplitFactor: i32, out: TensorMut);
    aclnnWeightQuantBatchMatmul(
        x1 x2 diagonalMatrix deqOffset deqScale addOffset mulScale bias: Tensor, transposeX1
        transposeX2: bool, antiquantScale antiquantOffset: f32, out: TensorMut);
    aclnnWeightQuantBatchMatmulNz, aclnnWeightQuantBatchMatmulV2(
        x weight antiquantScale antiquantOffsetOptional quantScaleOptional quantOffsetOptional
        biasOptional: Tensor, antiquantGroupSize: c_int, y: Tensor);
    aclnnWeightQuantBatchMatmulV3(
        x weight antiquantScale antiquantOffsetOptional quantScaleOptional quantOffsetOptional
        biasOptional: Tensor, antiquantGroupSize innerPrecise: c_int, y: Tensor);
}
