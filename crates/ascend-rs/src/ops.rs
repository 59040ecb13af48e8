//! The operators of a dense and a mixture-of-experts transformer, each with both phases on a stream.
//!
//! Shapes, element types and masks are those of the operators' documentation; what an operator refuses comes back as an error
//! with its own text and the shapes. Outputs are views too: the buffers keep the order of uses, whoever reads or writes.

use crate::operator::{Argument, Call, Number, View};
use crate::{Result, Stream};
use ms_core::DType;
use std::ffi::CStr;

macro_rules! operators {
    ($($table:ident { $($(#[$doc:meta])* $symbol:ident = fn $name:ident($($arg:ident: $t:ty),* $(,)?);)* })*) => {
        $($(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`crate::Error::Missing`] if the toolkit lacks it, [`crate::Error::Call`] if it refuses its operands.
            pub fn $name<'a>(stream: &'a Stream, $($arg: $t),*) -> Result<()> {
                let mut call = Call::new(stream, stringify!($symbol));
                $(call.note(stringify!($arg), &$arg);)*
                $(let $arg = Argument::pass($arg, &mut call)?;)*
                let functions = stream.0.context.toolkit.cann().$table.$symbol;
                // SAFETY: the published types, as the table declares them; handles live until `call` ends, texts forever.
                call.plan(functions, |first, size, executor| unsafe { first($($arg,)* size, executor) })?.run()
            }
        )*)*

        /// Name, and whether the opened toolkit has both phases, of the operators of this file.
        fn listed(toolkit: &crate::Toolkit) -> Vec<(&'static str, bool)> {
            vec![$($((stringify!($symbol), toolkit.cann().$table.$symbol.is_some()),)*)*]
        }
    };
}

pub mod inference;
pub mod joint;
pub mod versions;

/// Name, and whether the opened toolkit has both phases, of every operator of this module and those below it.
pub fn available(toolkit: &crate::Toolkit) -> Vec<(&'static str, bool)> {
    [listed(toolkit), versions::available(toolkit), inference::available(toolkit)].concat()
}

/// A C string that lives forever: names of layouts and reductions.
type Text = &'static CStr;

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
    /// `to = from`, strides and element types of their own.
    aclnnInplaceCopy = fn copy(to: View<'a>, from: View<'a>);
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
    /// Elements `start..end` in steps of `dim`.
    aclnnSlice = fn slice(x: View<'a>, dim: i64, start: i64, end: i64, step: i64, out: View<'a>);
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
    aclnnArange = fn arange(start: Number, end: Number, step: Number, out: View<'a>);
    /// Neither infinite nor a NaN.
    aclnnIsFinite = fn is_finite(x: View<'a>, out: View<'a>);
    }
    nn {
    /// `out = a · b` of matrices; `cube_math` as on the operator's page, 0 keeps the precision of the operands.
    aclnnMm = fn mm(a: View<'a>, b: View<'a>, out: View<'a>, cube_math: i8);
    /// `out = a · b` of 1 to 6 dimensions, batches broadcast.
    aclnnMatmul = fn matmul(a: View<'a>, b: View<'a>, out: View<'a>, cube_math: i8);
    /// `out[i] = a[i] · b[i]`.
    aclnnBatchMatMul = fn batch_matmul(a: View<'a>, b: View<'a>, out: View<'a>, cube_math: i8);
    /// Norm of order `order` over `dims`.
    aclnnLinalgVectorNorm = fn vector_norm(x: View<'a>, order: Number, dims: &[i64], keep_dims: bool, dtype: DType, out: View<'a>);
    /// Elements at `index` along `dim`.
    aclnnGather = fn gather(x: View<'a>, dim: i64, index: View<'a>, out: View<'a>);
    /// Whole slices at `index` along `dim`.
    aclnnIndexSelect = fn index_select(x: View<'a>, dim: i64, index: View<'a>, out: View<'a>);
    /// Rows of `weight` by index.
    aclnnEmbedding = fn embedding(weight: View<'a>, index: View<'a>, out: View<'a>);
    /// Gradient of [`embedding`] with respect to its weight.
    aclnnEmbeddingDenseBackward = fn embedding_backward(dy: View<'a>, index: View<'a>, rows: u64, padding: u64, by_frequency: bool, dweight: View<'a>);
    /// `y = x / rms(x) · gamma`; `rstd` in f32, one per row.
    aclnnRmsNorm = fn rms_norm(x: View<'a>, gamma: View<'a>, epsilon: f64, y: View<'a>, rstd: View<'a>);
    /// Gradients of [`rms_norm`]; `dgamma` in f32.
    aclnnRmsNormGrad = fn rms_norm_grad(dy: View<'a>, x: View<'a>, rstd: View<'a>, gamma: View<'a>, dx: View<'a>, dgamma: View<'a>);
    /// `y = (x − mean) · rstd · weight + bias` over the last dimensions `shape`.
    aclnnLayerNorm = fn layer_norm(x: View<'a>, shape: &[i64], weight: Option<View<'a>>, bias: Option<View<'a>>, epsilon: f64, y: View<'a>, mean: Option<View<'a>>, rstd: Option<View<'a>>);
    /// Gradients of [`layer_norm`]; `mask` says which of the three are wanted.
    aclnnLayerNormBackward = fn layer_norm_backward(dy: View<'a>, x: View<'a>, shape: &[i64], mean: View<'a>, rstd: View<'a>, weight: Option<View<'a>>, bias: Option<View<'a>>, mask: &[bool], dx: Option<View<'a>>, dweight: Option<View<'a>>, dbias: Option<View<'a>>);
    /// `silu(a) · b` of the two halves of `x` along `dim`.
    aclnnSwiGlu = fn swiglu(x: View<'a>, dim: i64, out: View<'a>);
    /// Gradient of [`swiglu`].
    aclnnSwiGluGrad = fn swiglu_grad(dy: View<'a>, x: View<'a>, dim: i64, dx: View<'a>);
    /// `x · sigmoid(x)`.
    aclnnSilu = fn silu(x: View<'a>, out: View<'a>);
    /// Gradient of [`silu`].
    aclnnSiluBackward = fn silu_backward(dy: View<'a>, x: View<'a>, dx: View<'a>);
    /// `x · Φ(x)`.
    aclnnGelu = fn gelu(x: View<'a>, out: View<'a>);
    /// Gradient of [`gelu`].
    aclnnGeluBackward = fn gelu_backward(dy: View<'a>, x: View<'a>, dx: View<'a>);
    /// Softmax along `dim`.
    aclnnSoftmax = fn softmax(x: View<'a>, dim: i64, out: View<'a>);
    /// Gradient of [`softmax`] from its output.
    aclnnSoftmaxBackward = fn softmax_backward(dy: View<'a>, y: View<'a>, dim: i64, dx: View<'a>);
    /// Logarithm of the softmax along `dim`.
    aclnnLogSoftmax = fn log_softmax(x: View<'a>, dim: i64, out: View<'a>);
    /// Gradient of [`log_softmax`] from its output.
    aclnnLogSoftmaxBackward = fn log_softmax_backward(dy: View<'a>, y: View<'a>, dim: i64, dx: View<'a>);
    /// Cross entropy of logits; the last two outputs are of the z-loss and may be empty.
    aclnnCrossEntropyLoss = fn cross_entropy(logits: View<'a>, target: View<'a>, weight: Option<View<'a>>, reduction: Text, ignore: i64, smoothing: f64, z_scale: f64, with_z: bool, loss: View<'a>, log_prob: View<'a>, z_loss: Option<View<'a>>, z_lse: Option<View<'a>>);
    /// Gradient of [`cross_entropy`] from its `log_prob`.
    aclnnCrossEntropyLossGrad = fn cross_entropy_grad(dloss: View<'a>, log_prob: View<'a>, target: View<'a>, weight: Option<View<'a>>, dz: Option<View<'a>>, z_lse: Option<View<'a>>, reduction: Text, ignore: i64, smoothing: f64, z_scale: f64, dlogits: View<'a>);
    /// Negative log likelihood of log probabilities; `reduction` 0 none, 1 mean, 2 sum.
    aclnnNLLLoss = fn nll_loss(log_prob: View<'a>, target: View<'a>, weight: View<'a>, reduction: i64, ignore: i64, loss: View<'a>, total_weight: View<'a>);
    /// Gradient of [`nll_loss`].
    aclnnNLLLossBackward = fn nll_loss_backward(dloss: View<'a>, log_prob: View<'a>, target: View<'a>, weight: View<'a>, reduction: i64, ignore: i64, total_weight: View<'a>, dx: View<'a>);
    /// One step of AdamW in place.
    aclnnApplyAdamWV2 = fn adamw(weight: View<'a>, m: View<'a>, v: View<'a>, max_norm: Option<View<'a>>, grad: View<'a>, step: View<'a>, lr: f32, beta1: f32, beta2: f32, decay: f32, epsilon: f32, amsgrad: bool, maximize: bool);
    /// Every tensor times a number.
    aclnnForeachMulScalarV2 = fn foreach_mul(x: Vec<View<'a>>, number: Number, out: Vec<View<'a>>);
    /// `out = x + alpha · y`, list by list.
    aclnnForeachAddListV2 = fn foreach_add(x: Vec<View<'a>>, y: Vec<View<'a>>, alpha: Number, out: Vec<View<'a>>);
    /// The norm of every tensor.
    aclnnForeachNorm = fn foreach_norm(x: Vec<View<'a>>, order: Number, out: Vec<View<'a>>);
    /// Gradients times `inv_scale`; `found_inf` becomes 1 if one is not finite.
    aclnnForeachNonFiniteCheckAndUnscale = fn unscale(grads: Vec<View<'a>>, found_inf: View<'a>, inv_scale: View<'a>);
    /// The `k` largest or smallest along `dim`, with their indices.
    aclnnTopk = fn topk(x: View<'a>, k: i64, dim: i64, largest: bool, sorted: bool, values: View<'a>, index: View<'a>);
    }
    transformer {
    /// Rotates pairs of features; `mode` 0 halves, 1 neighbours.
    aclnnRotaryPositionEmbedding = fn rotary(x: View<'a>, cos: View<'a>, sin: View<'a>, mode: i64, out: View<'a>);
    /// Gradients of [`rotary`].
    aclnnRotaryPositionEmbeddingGrad = fn rotary_grad(dy: View<'a>, cos: View<'a>, sin: View<'a>, x: Option<View<'a>>, mode: i64, dx: View<'a>, dcos: Option<View<'a>>, dsin: Option<View<'a>>);
    /// Rotates queries and keys in place.
    aclnnApplyRotaryPosEmb = fn rotary_in_place(query: View<'a>, key: View<'a>, cos: View<'a>, sin: View<'a>, layout: i64);
    /// Attention in a layout as `BSND`; masks hold 1 where a score is dropped, statistics come eight times each.
    aclnnFlashAttentionScore = fn attention(query: View<'a>, key: View<'a>, value: View<'a>, shift: Option<View<'a>>, drop_mask: Option<View<'a>>, padding_mask: Option<View<'a>>, mask: Option<View<'a>>, prefix: Option<&[i64]>, scale: f64, keep: f64, before: i64, after: i64, heads: i64, layout: Text, inner_precise: i64, sparse_mode: i64, softmax_max: View<'a>, softmax_sum: View<'a>, softmax_out: Option<View<'a>>, out: View<'a>);
    /// Gradients of [`attention`].
    aclnnFlashAttentionScoreGrad = fn attention_grad(query: View<'a>, key: View<'a>, value: View<'a>, dy: View<'a>, shift: Option<View<'a>>, drop_mask: Option<View<'a>>, padding_mask: Option<View<'a>>, mask: Option<View<'a>>, softmax_max: Option<View<'a>>, softmax_sum: Option<View<'a>>, softmax_in: Option<View<'a>>, out: Option<View<'a>>, prefix: Option<&[i64]>, scale: f64, keep: f64, before: i64, after: i64, heads: i64, layout: Text, inner_precise: i64, sparse_mode: i64, dq: View<'a>, dk: View<'a>, dv: View<'a>, dshift: Option<View<'a>>);
    /// Attention of sequences of different lengths one after the other (`TND`); lengths are cumulative without a leading zero.
    aclnnFlashAttentionVarLenScore = fn attention_ragged(query: View<'a>, key: View<'a>, value: View<'a>, shift: Option<View<'a>>, drop_mask: Option<View<'a>>, padding_mask: Option<View<'a>>, mask: Option<View<'a>>, prefix: Option<&[i64]>, ends_q: Option<&[i64]>, ends_kv: Option<&[i64]>, scale: f64, keep: f64, before: i64, after: i64, heads: i64, layout: Text, inner_precise: i64, sparse_mode: i64, softmax_max: View<'a>, softmax_sum: View<'a>, softmax_out: Option<View<'a>>, out: View<'a>);
    /// Gradients of [`attention_ragged`].
    aclnnFlashAttentionUnpaddingScoreGrad = fn attention_ragged_grad(query: View<'a>, key: View<'a>, value: View<'a>, dy: View<'a>, shift: Option<View<'a>>, drop_mask: Option<View<'a>>, padding_mask: Option<View<'a>>, mask: Option<View<'a>>, softmax_max: Option<View<'a>>, softmax_sum: Option<View<'a>>, softmax_in: Option<View<'a>>, out: Option<View<'a>>, prefix: Option<&[i64]>, ends_q: Option<&[i64]>, ends_kv: Option<&[i64]>, scale: f64, keep: f64, before: i64, after: i64, heads: i64, layout: Text, inner_precise: i64, sparse_mode: i64, dq: View<'a>, dk: View<'a>, dv: View<'a>, dshift: Option<View<'a>>);
    /// Products of groups of rows with a matrix each; the group list is an i64 tensor of cumulative rows (`list_type` 0) or rows
    /// (1).
    aclnnGroupedMatmulV4 = fn grouped_matmul(x: Vec<View<'a>>, weight: Vec<View<'a>>, bias: Option<Vec<View<'a>>>, scale: Option<Vec<View<'a>>>, offset: Option<Vec<View<'a>>>, anti_scale: Option<Vec<View<'a>>>, anti_offset: Option<Vec<View<'a>>>, token_scale: Option<Vec<View<'a>>>, groups: Option<View<'a>>, act_input: Option<Vec<View<'a>>>, act_scale: Option<Vec<View<'a>>>, act_offset: Option<Vec<View<'a>>>, split_item: i64, group_type: i64, list_type: i64, activation: i64, out: Vec<View<'a>>, act_out: Option<Vec<View<'a>>>, scale_out: Option<Vec<View<'a>>>);
    /// Softmax over experts and the `k` largest, with the numbers of their rows.
    aclnnMoeGatingTopKSoftmax = fn gating(x: View<'a>, finished: Option<View<'a>>, k: i64, y: View<'a>, expert: View<'a>, row: View<'a>);
    /// Tokens in the order of their experts.
    aclnnMoeTokenPermute = fn token_permute(tokens: View<'a>, expert: View<'a>, rows: i64, padded: bool, out: View<'a>, order: View<'a>);
    /// Tokens back in their order, summed over experts with weights.
    aclnnMoeTokenUnpermute = fn token_unpermute(tokens: View<'a>, order: View<'a>, weights: Option<View<'a>>, padded: bool, shape: Option<&[i64]>, out: View<'a>);
    /// Gradient of [`token_permute`].
    aclnnMoeTokenPermuteGrad = fn token_permute_grad(dy: View<'a>, order: View<'a>, k: i64, padded: bool, dx: View<'a>);
    /// Gradients of [`token_unpermute`].
    aclnnMoeTokenUnpermuteGrad = fn token_unpermute_grad(tokens: View<'a>, dy: View<'a>, order: View<'a>, weights: Option<View<'a>>, padded: bool, shape: Option<&[i64]>, dtokens: View<'a>, dweights: Option<View<'a>>);
    }
}
