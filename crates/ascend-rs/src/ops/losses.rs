//! Softmax and losses.

use super::{Maybe, Text};
use crate::operator::View;

options! {
    /// What the cross entropy may be told besides its operands, and its gradient with it.
    struct CrossEntropyOptions<'a> {
        /// Weights of the classes.
        weight: Maybe<'a> = None,
        /// `mean`, `sum` or `none`.
        reduction: Text = c"mean",
        /// The target of rows that do not count.
        ignore_index: i64 = -100,
        /// Share of the target that all classes get.
        label_smoothing: f64 = 0.0,
        /// Reserved for the z-loss.
        lse_square_scale_for_zloss: f64 = 0.0,
    }
}

operators! {
    nn {
    /// Softmax along `dim`.
    aclnnSoftmax = fn softmax(x: View<'a>, dim: i64, out: View<'a>);

    /// Gradient of [`softmax`] from its output.
    aclnnSoftmaxBackward(grad_output, output, dim, out) = struct SoftmaxBackward {
        grad_output: View<'a>,
        output: View<'a>,
        dim: i64,
        out: View<'a>,
    };

    /// Logarithm of the softmax along `dim`.
    aclnnLogSoftmax = fn log_softmax(x: View<'a>, dim: i64, out: View<'a>);

    /// Gradient of [`log_softmax`] from its output.
    aclnnLogSoftmaxBackward(grad_output, output, dim, out) = struct LogSoftmaxBackward {
        grad_output: View<'a>,
        output: View<'a>,
        dim: i64,
        out: View<'a>,
    };

    /// Cross entropy of logits.
    aclnnCrossEntropyLoss(
        input, target, options.weight, options.reduction, options.ignore_index, options.label_smoothing,
        options.lse_square_scale_for_zloss, return_zloss, loss, log_prob, zloss, lse_for_zloss,
    ) = struct CrossEntropyLoss {
        input: View<'a>,
        target: View<'a>,
        options: CrossEntropyOptions<'a>,
        /// Reserved: false.
        return_zloss: bool,
        loss: View<'a>,
        /// Logarithms of the probabilities, for the gradient.
        log_prob: View<'a>,
        /// Reserved for the z-loss: empty.
        zloss: Maybe<'a>,
        /// Reserved for the z-loss: empty.
        lse_for_zloss: Maybe<'a>,
    };

    /// Gradient of [`CrossEntropyLoss`] from its `log_prob`.
    aclnnCrossEntropyLossGrad(
        grad_loss, log_prob, target, options.weight, grad_zloss, lse_for_zloss, options.reduction, options.ignore_index,
        options.label_smoothing, options.lse_square_scale_for_zloss, out,
    ) = struct CrossEntropyLossGrad {
        grad_loss: View<'a>,
        log_prob: View<'a>,
        target: View<'a>,
        options: CrossEntropyOptions<'a>,
        /// Reserved for the z-loss.
        grad_zloss: Maybe<'a>,
        /// Reserved for the z-loss.
        lse_for_zloss: Maybe<'a>,
        out: View<'a>,
    };

    /// Negative log likelihood of log probabilities.
    aclnnNLLLoss(x as self_, target, weight, reduction, ignore_index, out, total_weight) = struct NLLLoss {
        /// Logarithms of probabilities.
        x: View<'a>,
        target: View<'a>,
        /// Weights of the classes.
        weight: View<'a>,
        /// 0 none, 1 mean, 2 sum.
        reduction: i64,
        ignore_index: i64,
        out: View<'a>,
        total_weight: View<'a>,
    };

    /// Gradient of [`NLLLoss`].
    aclnnNLLLossBackward(grad_output, x as self_, target, weight, reduction, ignore_index, total_weight, out) =
        struct NLLLossBackward {
        grad_output: View<'a>,
        /// Logarithms of probabilities.
        x: View<'a>,
        target: View<'a>,
        /// Weights of the classes.
        weight: View<'a>,
        /// 0 none, 1 mean, 2 sum.
        reduction: i64,
        ignore_index: i64,
        /// As the forward operator gave it.
        total_weight: View<'a>,
        out: View<'a>,
    };
    }
}
