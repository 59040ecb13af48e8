//! libopapi_cv.so (9.x), libopapi.so: images.

use crate::types::*;
use std::ffi::{c_char, c_int, c_void};

operators! {
    /// libopapi_cv.so (9.x), libopapi.so: images.
    OpsCv
    aclnnBackgroundReplace(bkg: *const aclTensor, src: *const aclTensor, mask: *const aclTensor, out: *const aclTensor);
    aclnnBlendImagesCustom(rgb: *const aclTensor, alpha: *const aclTensor, frame: *const aclTensor, out: *const aclTensor);
    aclnnGridSampler2DBackward(gradOutput: *const aclTensor, input: *const aclTensor, grid: *const aclTensor, interpolationMode: i64, paddingMode: i64, alignCorners: bool, outputMask: *const aclBoolArray, inputGrad: *mut aclTensor, gridGrad: *mut aclTensor);
    aclnnGridSampler2D(input: *const aclTensor, grid: *const aclTensor, interpolationMode: i64, paddingMode: i64, alignCorners: bool, out: *mut aclTensor);
    aclnnGridSampler3DBackward(gradOutput: *const aclTensor, input: *const aclTensor, grid: *const aclTensor, interpolationMode: i64, paddingMode: i64, alignCorners: bool, outputMask: *const aclBoolArray, inputGrad: *mut aclTensor, gridGrad: *mut aclTensor);
    aclnnGridSampler3D(input: *const aclTensor, grid: *const aclTensor, interpolationMode: i64, paddingMode: i64, alignCorners: bool, out: *mut aclTensor);
    aclnnIm2colBackward(gradOutput: *const aclTensor, inputSize: *const aclIntArray, kernelSize: *const aclIntArray, dilation: *const aclIntArray, padding: *const aclIntArray, stride: *const aclIntArray, out: *mut aclTensor);
    aclnnIou(bBoxes: *const aclTensor, gtBoxes: *const aclTensor, mode: *const c_char, eps: f32, aligned: bool, overlap: *mut aclTensor);
    aclnnMrgbaCustom(rgb: *const aclTensor, alpha: *const aclTensor, out: *const aclTensor);
    aclnnNonMaxSuppression(boxes: *const aclTensor, scores: *const aclTensor, maxOutputBoxesPerClass: *mut aclIntArray, iouThreshold: *mut aclFloatArray, scoreThreshold: *mut aclFloatArray, centerPointBox: i32, selectedIndices: *mut aclTensor);
    aclnnResize(self_: *const aclTensor, scales: *const aclFloatArray, mode: *const c_char, out: *mut aclTensor);
    aclnnRoiAlign(self_: *const aclTensor, rois: *const aclTensor, batchIndices: *const aclTensor, mode: *const c_char, outputHeight: c_int, outputWidth: c_int, samplingRatio: c_int, spatialScale: f32, out: *mut aclTensor);
    aclnnRoiAlignV2Backward(gradOutput: *const aclTensor, boxes: *const aclTensor, inputShape: *const aclIntArray, pooledHeight: i64, pooledWidth: i64, spatialScale: f32, samplingRatio: i64, aligned: bool, gradInput: *mut aclTensor);
    aclnnRoiAlignV2(self_: *const aclTensor, boxes: *const aclTensor, pooledHeight: i64, pooledWidth: i64, spatialScale: f32, samplingRatio: i64, aligned: bool, out: *mut aclTensor);
    aclnnUpsampleBicubic2dAA(x: *const aclTensor, outputSize: *const aclIntArray, alignCorners: bool, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleBicubic2dAAGrad(gradOutput: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, alignCorners: bool, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleBicubic2dBackward(gradOut: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, alignCorners: bool, scalesH: f64, scalesW: f64, gradInput: *mut aclTensor);
    aclnnUpsampleBicubic2d(self_: *const aclTensor, outputSize: *const aclIntArray, alignCorners: bool, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleBilinear2dAABackward(gradOutput: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, alignCorners: bool, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleBilinear2dAA(input: *const aclTensor, outputSize: *const aclIntArray, alignCorners: bool, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleBilinear2dBackward(gradOut: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, alignCorners: bool, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleBilinear2dBackwardV2(gradOut: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, alignCorners: bool, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleBilinear2d(self_: *const aclTensor, outputSize: *const aclIntArray, alignCorners: bool, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleLinear1dBackward(gradOut: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, alignCorners: bool, scales: f64, out: *mut aclTensor);
    aclnnUpsampleLinear1d(self_: *const aclTensor, outputSize: *const aclIntArray, alignCorners: bool, scales: f64, out: *mut aclTensor);
    aclnnUpsampleNearest1dBackward(gradOut: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, scales: f64, out: *mut aclTensor);
    aclnnUpsampleNearest1d(self_: *const aclTensor, outputSize: *const aclIntArray, out: *mut aclTensor);
    aclnnUpsampleNearest1dV2(self_: *const aclTensor, outputSize: *const aclIntArray, scaleL: f32, out: *mut aclTensor);
    aclnnUpsampleNearest2dBackward(gradOut: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, scalesH: f64, scalesW: f64, gradInput: *mut aclTensor);
    aclnnUpsampleNearest2d(self_: *const aclTensor, outputSize: *const aclIntArray, out: *mut aclTensor);
    aclnnUpsampleNearest2dV2(self_: *const aclTensor, outputSize: *const aclIntArray, scalesH: f32, scalesW: f32, out: *mut aclTensor);
    aclnnUpsampleNearest3dBackward(gradOut: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, scalesD: f64, scalesH: f64, scalesW: f64, gradInput: *mut aclTensor);
    aclnnUpsampleNearest3d(self_: *const aclTensor, outputSize: *const aclIntArray, scalesD: f64, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleNearestExact1dBackward(gradOutput: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, scales: f64, out: *mut aclTensor);
    aclnnUpsampleNearestExact1d(self_: *const aclTensor, outputSize: *const aclIntArray, scales: f64, out: *mut aclTensor);
    aclnnUpsampleNearestExact2dBackward(gradOutput: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleNearestExact2d(self_: *const aclTensor, outputSize: *const aclIntArray, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleNearestExact3dBackward(gradOut: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, scalesD: f64, scalesH: f64, scalesW: f64, gradInput: *mut aclTensor);
    aclnnUpsampleNearestExact3d(self_: *const aclTensor, outputSize: *const aclIntArray, scalesD: f64, scalesH: f64, scalesW: f64, out: *mut aclTensor);
    aclnnUpsampleTrilinear3dBackward(gradOut: *const aclTensor, outputSize: *const aclIntArray, inputSize: *const aclIntArray, alignCorners: bool, scalesD: f64, scalesH: f64, scalesW: f64, gradInput: *mut aclTensor);
    aclnnUpsampleTrilinear3d(self_: *const aclTensor, outputSize: *const aclIntArray, alignCorners: bool, scalesD: f64, scalesH: f64, scalesW: f64, out: *mut aclTensor);
}
