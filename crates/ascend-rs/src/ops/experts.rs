//! Mixtures of experts: products of groups of rows in all versions, routing, permutation.

use super::{Maybe, MaybeList};
use crate::operator::View;

options! {
    /// What every version of grouped products may be told besides its operands.
    struct GroupedOptions<'a> {
        /// A row a group.
        bias: MaybeList<'a> = None,
        /// Scales of a quantised product.
        scale: MaybeList<'a> = None,
        /// Offsets of a quantised product.
        offset: MaybeList<'a> = None,
        /// Scales of quantised weights.
        antiquant_scale: MaybeList<'a> = None,
        /// Offsets of quantised weights.
        antiquant_offset: MaybeList<'a> = None,
    }

    /// What versions from the fourth on may be told of activations.
    struct GroupedActivation<'a> {
        /// Scales of the rows of a quantised product.
        per_token_scale: MaybeList<'a> = None,
        /// Reserved.
        activation_input: MaybeList<'a> = None,
        /// Reserved.
        activation_quant_scale: MaybeList<'a> = None,
        /// Reserved.
        activation_quant_offset: MaybeList<'a> = None,
        /// 0 none, 1 ReLU, 2 GELU by tanh, 4 fast GELU, 5 SiLU.
        act_type: i64 = 0,
        /// Reserved.
        activation_feature: MaybeList<'a> = None,
        /// Reserved.
        dyn_quant_scale: MaybeList<'a> = None,
    }
}

/// What products of groups are of, in all versions, and what they write.
#[derive(Clone, Debug)]
pub struct GroupedProducts<'a> {
    /// Rows, in one tensor or one for each group.
    pub x: Vec<View<'a>>,
    /// Matrices, in one tensor or one for each group.
    pub weight: Vec<View<'a>>,
    /// Biases, and what is quantised.
    pub options: GroupedOptions<'a>,
    /// Products, in one tensor or one for each group.
    pub y: Vec<View<'a>>,
}

/// How products are cut into groups, from the second version on.
#[derive(Clone, Copy, Debug)]
pub struct GroupedSplit {
    /// 0 and 1: `y` is a list; 2 and 3: one tensor.
    pub split_item: i64,
    /// What groups cut: -1 nothing, 0 the rows, 2 the dimension that is summed over.
    pub group_type: i64,
}

operators! {
    experts {
    /// Products of groups of rows with a matrix each; groups are cumulative rows on the host.
    aclnnGroupedMatmul(
        of.x, of.weight, of.options.bias, of.options.scale, of.options.offset, of.options.antiquant_scale,
        of.options.antiquant_offset, group_list, split_item, of.y,
    ) = struct GroupedMatmul {
        of: GroupedProducts<'a>,
        group_list: Option<&'a [i64]>,
        /// 0 and 1: `y` is a list; 2 and 3: one tensor.
        split_item: i64,
    };

    /// [`GroupedMatmul`] with a kind of groups.
    aclnnGroupedMatmulV2(
        of.x, of.weight, of.options.bias, of.options.scale, of.options.offset, of.options.antiquant_scale,
        of.options.antiquant_offset, group_list, split.split_item, split.group_type, of.y,
    ) = struct GroupedMatmulV2 {
        of: GroupedProducts<'a>,
        group_list: Option<&'a [i64]>,
        split: GroupedSplit,
    };

    /// [`GroupedMatmulV2`] with the groups on the device, in an i64 tensor.
    aclnnGroupedMatmulV3(
        of.x, of.weight, of.options.bias, of.options.scale, of.options.offset, of.options.antiquant_scale,
        of.options.antiquant_offset, group_list, split.split_item, split.group_type, of.y,
    ) = struct GroupedMatmulV3 {
        of: GroupedProducts<'a>,
        group_list: Maybe<'a>,
        split: GroupedSplit,
    };

    /// [`GroupedMatmulV3`] with an activation.
    aclnnGroupedMatmulV4(
        of.x, of.weight, of.options.bias, of.options.scale, of.options.offset, of.options.antiquant_scale,
        of.options.antiquant_offset, activation.per_token_scale, group_list, activation.activation_input,
        activation.activation_quant_scale, activation.activation_quant_offset, split.split_item, split.group_type,
        group_list_type, activation.act_type, of.y as out, activation.activation_feature, activation.dyn_quant_scale,
    ) = struct GroupedMatmulV4 {
        of: GroupedProducts<'a>,
        activation: GroupedActivation<'a>,
        group_list: Maybe<'a>,
        split: GroupedSplit,
        /// What `group_list` holds: 0 cumulative rows, 1 rows.
        group_list_type: i64,
    };

    /// [`GroupedMatmulV4`] with a tuning of its own.
    aclnnGroupedMatmulV5(
        of.x, of.weight, of.options.bias, of.options.scale, of.options.offset, of.options.antiquant_scale,
        of.options.antiquant_offset, activation.per_token_scale, group_list, activation.activation_input,
        activation.activation_quant_scale, activation.activation_quant_offset, split.split_item, split.group_type,
        group_list_type, activation.act_type, tuning_config, of.y as out, activation.activation_feature,
        activation.dyn_quant_scale,
    ) = struct GroupedMatmulV5 {
        of: GroupedProducts<'a>,
        activation: GroupedActivation<'a>,
        group_list: Maybe<'a>,
        split: GroupedSplit,
        /// What `group_list` holds: 0 cumulative rows, 1 rows.
        group_list_type: i64,
        tuning_config: Option<&'a [i64]>,
    };

    /// `y[g] += xᵀ · weight` over the rows of each group, in f32; groups end at cumulative rows.
    aclnnGroupedMatmulAdd(x, weight, group_list, y, transpose_x, transpose_weight, group_type) =
        struct GroupedMatmulAdd {
        x: View<'a>,
        weight: View<'a>,
        group_list: View<'a>,
        y: View<'a>,
        transpose_x: bool,
        transpose_weight: bool,
        /// 2: groups cut the dimension that is summed over.
        group_type: i64,
    };

    /// Softmax over experts and the `k` largest, with the numbers of their rows.
    aclnnMoeGatingTopKSoftmax(x, finished, k, y, expert_idx, row_idx) = struct MoeGatingTopKSoftmax {
        x: View<'a>,
        /// Rows that are left out.
        finished: Maybe<'a>,
        k: i64,
        y: View<'a>,
        expert_idx: View<'a>,
        row_idx: View<'a>,
    };

    /// Tokens in the order of their experts.
    aclnnMoeTokenPermute(tokens, indices, num_out_tokens, padded_mode, permute_tokens, sorted_indices) =
        struct MoeTokenPermute {
        tokens: View<'a>,
        /// Experts of each token.
        indices: View<'a>,
        /// How many rows are wanted; 0 for all.
        num_out_tokens: i64,
        /// Reserved: false.
        padded_mode: bool,
        permute_tokens: View<'a>,
        /// Where each copy of a token went.
        sorted_indices: View<'a>,
    };

    /// Gradient of [`MoeTokenPermute`].
    aclnnMoeTokenPermuteGrad(permuted_output_grad, sorted_indices, num_topk, padded_mode, out) =
        struct MoeTokenPermuteGrad {
        permuted_output_grad: View<'a>,
        sorted_indices: View<'a>,
        /// Experts of a token.
        num_topk: i64,
        /// Reserved: false.
        padded_mode: bool,
        out: View<'a>,
    };

    /// Tokens back in their order, summed over experts with weights.
    aclnnMoeTokenUnpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape, out) =
        struct MoeTokenUnpermute {
        permuted_tokens: View<'a>,
        sorted_indices: View<'a>,
        /// Weights of the experts.
        probs: Maybe<'a>,
        /// Reserved: false.
        padded_mode: bool,
        restore_shape: Option<&'a [i64]>,
        out: View<'a>,
    };

    /// Gradients of [`MoeTokenUnpermute`].
    aclnnMoeTokenUnpermuteGrad(
        permuted_tokens, unpermuted_tokens_grad, sorted_indices, probs, padded_mode, restore_shape, permuted_tokens_grad,
        probs_grad,
    ) = struct MoeTokenUnpermuteGrad {
        permuted_tokens: View<'a>,
        unpermuted_tokens_grad: View<'a>,
        sorted_indices: View<'a>,
        /// Weights of the experts.
        probs: Maybe<'a>,
        /// Reserved: false.
        padded_mode: bool,
        restore_shape: Option<&'a [i64]>,
        permuted_tokens_grad: View<'a>,
        probs_grad: Maybe<'a>,
    };

    /// Rows in the order of their experts, with the place of each copy and counts.
    aclnnMoeInitRoutingV2(
        x, expert_idx, active_num, expert_capacity, expert_num, drop_pad_mode, expert_tokens_count_or_cumsum_flag,
        expert_tokens_before_capacity_flag, expanded_x, expanded_row_idx, expert_tokens_count_or_cumsum,
        expert_tokens_before_capacity,
    ) = struct MoeInitRoutingV2 {
        x: View<'a>,
        expert_idx: View<'a>,
        /// How many rows are wanted; 0 for all.
        active_num: i64,
        /// Rows of each expert, where copies above are dropped.
        expert_capacity: i64,
        expert_num: i64,
        /// 0 keeps every copy, 1 fills each expert up to its capacity.
        drop_pad_mode: i64,
        /// What is counted: 0 nothing, 1 cumulative rows, 2 rows.
        expert_tokens_count_or_cumsum_flag: i64,
        expert_tokens_before_capacity_flag: bool,
        expanded_x: View<'a>,
        expanded_row_idx: View<'a>,
        expert_tokens_count_or_cumsum: Maybe<'a>,
        expert_tokens_before_capacity: Maybe<'a>,
    };

    /// Copies back to their tokens, with biases and weights of experts.
    aclnnMoeFinalizeRoutingV2(expanded_x, expanded_row_idx, x1, x2, bias, scales, expert_idx, drop_pad_mode, out) =
        struct MoeFinalizeRoutingV2 {
        expanded_x: View<'a>,
        expanded_row_idx: View<'a>,
        /// Added to the sum.
        x1: Maybe<'a>,
        /// Added to the sum, beside `x1`.
        x2: Maybe<'a>,
        /// A row an expert.
        bias: Maybe<'a>,
        /// Weights of the experts.
        scales: Maybe<'a>,
        expert_idx: Maybe<'a>,
        /// As [`MoeInitRoutingV2`] had it; 2 and 3 with the rows of one token side by side.
        drop_pad_mode: i64,
        out: View<'a>,
    };
    }
}
