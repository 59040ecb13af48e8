//! Products fused with communication: a tensor-parallel linear layer as one operator instead of a product and a collective.
//! All ranks of the group make the same calls with equal shapes.
//!
//! They need at least two ranks (a sum of products: one), so the checks of one device do not run them.

use super::{Maybe, Text};
use crate::comm::Comm;
use crate::operator::View;

options! {
    /// What a product whose results are summed over ranks may be told; other values than these are not documented.
    struct SumOptions<'a> {
        /// Added to the product of each rank.
        bias: Maybe<'a> = None,
        /// How results are reduced.
        reduce_op: Text = c"sum",
        /// Reserved.
        comm_turn: i64 = 0,
        /// Reserved.
        stream_mode: i64 = 1,
    }

    /// What a product of gathered rows may be told; other values than these are not documented.
    struct GatherOptions<'a> {
        /// Added to the product.
        bias: Maybe<'a> = None,
        /// Which operand is gathered: the first.
        gather_index: i64 = 0,
        /// Reserved.
        comm_turn: i64 = 0,
        /// Reserved.
        stream_mode: i64 = 1,
    }
}

operators! {
    experts {
    /// `output = Σ over the ranks of (x1 · x2 + bias)`, for weights cut by rows.
    aclnnMatmulAllReduce(
        x1, x2, options.bias, group, options.reduce_op, options.comm_turn, options.stream_mode, output,
    ) = struct MatmulAllReduce {
        x1: View<'a>,
        x2: View<'a>,
        group: &'a Comm,
        options: SumOptions<'a>,
        output: View<'a>,
    };

    /// `gather` = all ranks' rows of `x1`, `output = gather · x2`, for weights cut by columns and sequences cut over ranks.
    aclnnAllGatherMatmul(
        x1, x2, options.bias, group, options.gather_index, options.comm_turn, options.stream_mode, output, gather,
    ) = struct AllGatherMatmul {
        x1: View<'a>,
        x2: View<'a>,
        group: &'a Comm,
        options: GatherOptions<'a>,
        output: View<'a>,
        gather: View<'a>,
    };

    /// `output` = this rank's rows of the sum over the ranks of `x1 · x2`, for weights cut by rows and sequences cut over
    /// ranks.
    aclnnMatmulReduceScatter(
        x1, x2, options.bias, group, options.reduce_op, options.comm_turn, options.stream_mode, output,
    ) = struct MatmulReduceScatter {
        x1: View<'a>,
        x2: View<'a>,
        group: &'a Comm,
        options: SumOptions<'a>,
        output: View<'a>,
    };
    }
}

/// Name, and whether the opened toolkit has both phases, of the operators of this module.
pub fn available(toolkit: &crate::Toolkit) -> Vec<(&'static str, bool)> {
    listed(toolkit)
}
