//! libopapi_cv.so (9.x), libopapi.so: images.

use crate::types::*;
use std::ffi::c_int;

operators! {
    /// libopapi_cv.so (9.x), libopapi.so: images.
    OpsCv
    aclnnBackgroundReplace(bkg src mask out: Tensor);
    aclnnBlendImagesCustom(rgb alpha frame out: Tensor);
    aclnnGridSampler2DBackward, aclnnGridSampler3DBackward(
        gradOutput input grid: Tensor, interpolationMode paddingMode: i64, alignCorners: bool,
        outputMask: Bools, inputGrad gridGrad: TensorMut);
    aclnnGridSampler2D, aclnnGridSampler3D
        (input grid: Tensor, interpolationMode paddingMode: i64, alignCorners: bool, out: TensorMut);
    aclnnIm2colBackward
        (gradOutput: Tensor, inputSize kernelSize dilation padding stride: Ints, out: TensorMut);
    aclnnIou(bBoxes gtBoxes: Tensor, mode: Text, eps: f32, aligned: bool, overlap: TensorMut);
    aclnnMrgbaCustom(rgb alpha out: Tensor);
    aclnnNonMaxSuppression(
        boxes scores: Tensor, maxOutputBoxesPerClass: IntsMut, iouThreshold scoreThreshold: FloatsMut,
        centerPointBox: i32, selectedIndices: TensorMut);
    aclnnResize(self_: Tensor, scales: Floats, mode: Text, out: TensorMut);
    aclnnRoiAlign(
        self_ rois batchIndices: Tensor, mode: Text, outputHeight outputWidth samplingRatio: c_int,
        spatialScale: f32, out: TensorMut);
    aclnnRoiAlignV2Backward(
        gradOutput boxes: Tensor, inputShape: Ints, pooledHeight pooledWidth: i64, spatialScale: f32,
        samplingRatio: i64, aligned: bool, gradInput: TensorMut);
    aclnnRoiAlignV2(
        self_ boxes: Tensor, pooledHeight pooledWidth: i64, spatialScale: f32, samplingRatio: i64,
        aligned: bool, out: TensorMut);
    aclnnUpsampleBicubic2dAA
        (x: Tensor, outputSize: Ints, alignCorners: bool, scalesH scalesW: f64, out: TensorMut);
    aclnnUpsampleBicubic2dAAGrad, aclnnUpsampleBilinear2dAABackward(
        gradOutput: Tensor, outputSize inputSize: Ints, alignCorners: bool, scalesH scalesW: f64,
        out: TensorMut);
    aclnnUpsampleBicubic2dBackward(
        gradOut: Tensor, outputSize inputSize: Ints, alignCorners: bool, scalesH scalesW: f64,
        gradInput: TensorMut);
    aclnnUpsampleBicubic2d, aclnnUpsampleBilinear2d
        (self_: Tensor, outputSize: Ints, alignCorners: bool, scalesH scalesW: f64, out: TensorMut);
    aclnnUpsampleBilinear2dAA
        (input: Tensor, outputSize: Ints, alignCorners: bool, scalesH scalesW: f64, out: TensorMut);
    aclnnUpsampleBilinear2dBackward, aclnnUpsampleBilinear2dBackwardV2(
        gradOut: Tensor, outputSize inputSize: Ints, alignCorners: bool, scalesH scalesW: f64,
        out: TensorMut);
    aclnnUpsampleLinear1dBackward
        (gradOut: Tensor, outputSize inputSize: Ints, alignCorners: bool, scales: f64, out: TensorMut);
    aclnnUpsampleLinear1d(self_: Tensor, outputSize: Ints, alignCorners: bool, scales: f64, out: TensorMut);
    aclnnUpsampleNearest1dBackward(gradOut: Tensor, outputSize inputSize: Ints, scales: f64, out: TensorMut);
    aclnnUpsampleNearest1d, aclnnUpsampleNearest2d(self_: Tensor, outputSize: Ints, out: TensorMut);
    aclnnUpsampleNearest1dV2(self_: Tensor, outputSize: Ints, scaleL: f32, out: TensorMut);
    aclnnUpsampleNearest2dBackward
        (gradOut: Tensor, outputSize inputSize: Ints, scalesH scalesW: f64, gradInput: TensorMut);
    aclnnUpsampleNearest2dV2(self_: Tensor, outputSize: Ints, scalesH scalesW: f32, out: TensorMut);
    aclnnUpsampleNearest3dBackward, aclnnUpsampleNearestExact3dBackward
        (gradOut: Tensor, outputSize inputSize: Ints, scalesD scalesH scalesW: f64, gradInput: TensorMut);
    aclnnUpsampleNearest3d, aclnnUpsampleNearestExact3d
        (self_: Tensor, outputSize: Ints, scalesD scalesH scalesW: f64, out: TensorMut);
    aclnnUpsampleNearestExact1dBackward
        (gradOutput: Tensor, outputSize inputSize: Ints, scales: f64, out: TensorMut);
    aclnnUpsampleNearestExact1d(self_: Tensor, outputSize: Ints, scales: f64, out: TensorMut);
    aclnnUpsampleNearestExact2dBackward
        (gradOutput: Tensor, outputSize inputSize: Ints, scalesH scalesW: f64, out: TensorMut);
    aclnnUpsampleNearestExact2d(self_: Tensor, outputSize: Ints, scalesH scalesW: f64, out: TensorMut);
    aclnnUpsampleTrilinear3dBackward(
        gradOut: Tensor, outputSize inputSize: Ints, alignCorners: bool, scalesD scalesH scalesW: f64,
        gradInput: TensorMut);
    aclnnUpsampleTrilinear3d
        (self_: Tensor, outputSize: Ints, alignCorners: bool, scalesD scalesH scalesW: f64, out: TensorMut);
}
