//! Element-wise operators, shapes, reductions, products, norms, activations, the optimizer.

use super::Maybe;
use crate::operator::{Number, View};
use ms_core::DType;

operators! {
    math {
    /// `out = x + alpha · y`, broadcast.
    aclnnAdd = fn add(x: View<'a>, y: View<'a>, alpha: Number, out: View<'a>);

    /// `out = x + alpha · number`.
    aclnnAdds = fn add_number(x: View<'a>, number: Number, alpha: Number, out: View<'a>);

    /// `out = x − alpha · y`, broadcast.
    aclnnSub = fn sub(x: View<'a>, y: View<'a>, alpha: Number, out: View<'a>);

    /// `out = x · y`, broadcast.
    aclnnMul = fn mul(x: View<'a>, y: View<'a>, out: View<'a>);

    /// `out = x · number`.
    aclnnMuls = fn mul_number(x: View<'a>, number: Number, out: View<'a>);

    /// `out = x / y`, true division, broadcast.
    aclnnDiv = fn div(x: View<'a>, y: View<'a>, out: View<'a>);

    /// `out = x / number`.
    aclnnDivs = fn div_number(x: View<'a>, number: Number, out: View<'a>);

    /// `out = x` in element type `dtype`.
    aclnnCast = fn cast(x: View<'a>, dtype: DType, out: View<'a>);

    /// Writes the elements of `from` to `to`, strides and element types of their own.
    aclnnInplaceCopy(to as self_, from as src) = struct InplaceCopy { to: View<'a>, from: View<'a> };

    /// `x = 0`.
    aclnnInplaceZero = fn zero(x: View<'a>);

    /// `x = number`.
    aclnnInplaceFillScalar = fn fill(x: View<'a>, number: Number);

    /// `out = eˣ`.
    aclnnExp = fn exp(x: View<'a>, out: View<'a>);

    /// `out = √x`.
    aclnnSqrt = fn sqrt(x: View<'a>, out: View<'a>);

    /// `out = 1/√x`.
    aclnnRsqrt = fn rsqrt(x: View<'a>, out: View<'a>);

    /// `out = −x`.
    aclnnNeg = fn neg(x: View<'a>, out: View<'a>);

    /// Sums over `dims`.
    aclnnReduceSum = fn sum(x: View<'a>, dims: &[i64], keep_dims: bool, dtype: DType, out: View<'a>);

    /// Means over `dims`.
    aclnnMean = fn mean(x: View<'a>, dims: &[i64], keep_dims: bool, dtype: DType, out: View<'a>);

    /// Largest values over `dims`.
    aclnnAmax = fn amax(x: View<'a>, dims: &[i64], keep_dims: bool, out: View<'a>);

    /// Tensors one after the other along `dim`.
    aclnnCat = fn cat(tensors: Vec<View<'a>>, dim: i64, out: View<'a>);

    /// Elements `start..end` of dimension `dim` in steps.
    aclnnSlice(x as self_, dim, start, end, step, out) = struct Slice {
        x: View<'a>,
        dim: i64,
        start: i64,
        end: i64,
        step: i64,
        out: View<'a>,
    };

    /// Dimensions in another order, contiguous.
    aclnnPermute = fn permute(x: View<'a>, dims: &[i64], out: View<'a>);

    /// `out = condition ? x : y`, broadcast.
    aclnnSWhere = fn select(condition: View<'a>, x: View<'a>, y: View<'a>, out: View<'a>);

    /// `x = number` where `mask`.
    aclnnInplaceMaskedFillScalar = fn masked_fill(x: View<'a>, mask: View<'a>, number: Number);

    /// Index of the largest element along `dim`.
    aclnnArgMax = fn arg_max(x: View<'a>, dim: i64, keep_dim: bool, out: View<'a>);

    /// The part on and above a diagonal, zeros elsewhere.
    aclnnTriu = fn triu(x: View<'a>, diagonal: i64, out: View<'a>);

    /// `start, start + step, …` up to `end`.
    aclnnArange(start, end, step, out) = struct Arange { start: Number, end: Number, step: Number, out: View<'a> };

    /// Neither infinite nor a NaN.
    aclnnIsFinite = fn is_finite(x: View<'a>, out: View<'a>);
    }

    products {
    /// `out = a · b` of matrices; `cube_math` as on the operator's page, 0 keeps the precision of the operands.
    aclnnMm = fn mm(a: View<'a>, b: View<'a>, out: View<'a>, cube_math: i8);

    /// `out = a · b` of 1 to 6 dimensions, batches broadcast.
    aclnnMatmul = fn matmul(a: View<'a>, b: View<'a>, out: View<'a>, cube_math: i8);

    /// `out[i] = a[i] · b[i]`.
    aclnnBatchMatMul = fn batch_matmul(a: View<'a>, b: View<'a>, out: View<'a>, cube_math: i8);
    }

    nn {
    /// Norm of order `order` over `dims`.
    aclnnLinalgVectorNorm =
        fn vector_norm(x: View<'a>, order: Number, dims: &[i64], keep_dims: bool, dtype: DType, out: View<'a>);

    /// Elements at `index` along `dim`.
    aclnnGather = fn gather(x: View<'a>, dim: i64, index: View<'a>, out: View<'a>);

    /// Whole slices at `index` along `dim`.
    aclnnIndexSelect = fn index_select(x: View<'a>, dim: i64, index: View<'a>, out: View<'a>);

    /// Rows of `weight` by index.
    aclnnEmbedding = fn embedding(weight: View<'a>, index: View<'a>, out: View<'a>);

    /// Gradient of [`embedding`] with respect to its weight.
    aclnnEmbeddingDenseBackward(grad, indices, num_weights, padding_idx, scale_grad_by_freq, out) =
        struct EmbeddingDenseBackward {
        grad: View<'a>,
        indices: View<'a>,
        /// Rows of the weight.
        num_weights: u64,
        /// The index whose gradient is left out; [`u64::MAX`] for none.
        padding_idx: u64,
        scale_grad_by_freq: bool,
        out: View<'a>,
    };

    /// `y = x / rms(x) · gamma`; `rstd` in f32, one per row.
    aclnnRmsNorm = fn rms_norm(x: View<'a>, gamma: View<'a>, epsilon: f64, y: View<'a>, rstd: View<'a>);

    /// Gradients of [`rms_norm`].
    aclnnRmsNormGrad(dy, x, rstd, gamma, dx, dgamma) = struct RmsNormGrad {
        dy: View<'a>,
        x: View<'a>,
        rstd: View<'a>,
        gamma: View<'a>,
        dx: View<'a>,
        /// In f32, whatever `gamma` is.
        dgamma: View<'a>,
    };

    /// `out = (input − mean) · rstd · weight + bias` over the last dimensions.
    aclnnLayerNorm(input, normalized_shape, weight, bias, eps, out, mean, rstd) = struct LayerNorm {
        input: View<'a>,
        /// The last dimensions, over which a row goes.
        normalized_shape: &'a [i64],
        weight: Maybe<'a>,
        bias: Maybe<'a>,
        eps: f64,
        out: View<'a>,
        mean: Maybe<'a>,
        rstd: Maybe<'a>,
    };

    /// Gradients of [`LayerNorm`].
    aclnnLayerNormBackward(
        grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask, grad_input, grad_weight, grad_bias,
    ) = struct LayerNormBackward {
        grad_out: View<'a>,
        input: View<'a>,
        normalized_shape: &'a [i64],
        mean: View<'a>,
        rstd: View<'a>,
        weight: Maybe<'a>,
        bias: Maybe<'a>,
        /// Which of the three gradients are wanted.
        output_mask: &'a [bool],
        grad_input: Maybe<'a>,
        grad_weight: Maybe<'a>,
        grad_bias: Maybe<'a>,
    };

    /// `silu(a) · b` of the two halves of `x` along `dim`.
    aclnnSwiGlu = fn swiglu(x: View<'a>, dim: i64, out: View<'a>);

    /// Gradient of [`swiglu`].
    aclnnSwiGluGrad(y_grad, x, dim, out) = struct SwiGluGrad {
        y_grad: View<'a>,
        x: View<'a>,
        dim: i64,
        out: View<'a>,
    };

    /// `x · sigmoid(x)`.
    aclnnSilu = fn silu(x: View<'a>, out: View<'a>);

    /// Gradient of [`silu`].
    aclnnSiluBackward(grad_output, x as self_, grad_input) = struct SiluBackward {
        grad_output: View<'a>,
        x: View<'a>,
        grad_input: View<'a>,
    };

    /// `x · Φ(x)`.
    aclnnGelu = fn gelu(x: View<'a>, out: View<'a>);

    /// Gradient of [`gelu`].
    aclnnGeluBackward(grad_output, x as self_, grad_input) = struct GeluBackward {
        grad_output: View<'a>,
        x: View<'a>,
        grad_input: View<'a>,
    };

    /// One step of AdamW in place.
    aclnnApplyAdamWV2(var, m, v, max_grad_norm, grad, step, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize) =
        struct ApplyAdamWV2 {
        /// The weights.
        var: View<'a>,
        m: View<'a>,
        v: View<'a>,
        /// With `amsgrad` only.
        max_grad_norm: Maybe<'a>,
        grad: View<'a>,
        /// One element on the device: how many steps have been taken.
        step: View<'a>,
        lr: f32,
        beta1: f32,
        beta2: f32,
        weight_decay: f32,
        eps: f32,
        amsgrad: bool,
        maximize: bool,
    };

    /// Every tensor times a number.
    aclnnForeachMulScalarV2 = fn foreach_mul(x: Vec<View<'a>>, number: Number, out: Vec<View<'a>>);

    /// `out = x + alpha · y`, list by list.
    aclnnForeachAddListV2 =
        fn foreach_add(x: Vec<View<'a>>, y: Vec<View<'a>>, alpha: Number, out: Vec<View<'a>>);

    /// The norm of every tensor.
    aclnnForeachNorm = fn foreach_norm(x: Vec<View<'a>>, order: Number, out: Vec<View<'a>>);

    /// Multiplies gradients by a number, in place, and looks for one that is not finite.
    aclnnForeachNonFiniteCheckAndUnscale(scaled_grads, found_inf, inv_scale) =
        struct ForeachNonFiniteCheckAndUnscale {
        scaled_grads: Vec<View<'a>>,
        /// Becomes 1 if a gradient is not finite.
        found_inf: View<'a>,
        inv_scale: View<'a>,
    };

    /// The `k` largest or smallest along `dim`, with their indices.
    aclnnTopk(x as self_, k, dim, largest, sorted, values, indices) = struct Topk {
        x: View<'a>,
        k: i64,
        dim: i64,
        largest: bool,
        sorted: bool,
        values: View<'a>,
        indices: View<'a>,
    };
    }
}
