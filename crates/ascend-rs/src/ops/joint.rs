//! Products fused with communication: a tensor-parallel linear layer as one operator instead of a product and a collective.
//! All ranks of the group make the same calls with equal shapes; `turns` is 0, `stream_mode` 1, `reduce` `sum`, `which` 0, as
//! documented.
//!
//! They need at least two ranks (a sum of products: one), so the checks of one device do not run them.

use super::Text;
use crate::comm::Comm;
use crate::operator::{Argument, Call, View};
use crate::{Result, Stream};

operators! {
    transformer {
    /// `out = Σ over the ranks of (a · b + bias)`, for weights cut by rows.
    aclnnMatmulAllReduce = fn matmul_all_reduce(a: View<'a>, b: View<'a>, bias: Option<View<'a>>, group: &'a Comm, reduce: Text, turns: i64, stream_mode: i64, out: View<'a>);
    /// `gathered` = all ranks' rows of `a`, `out = gathered · b`, for weights cut by columns and sequences cut over ranks.
    aclnnAllGatherMatmul = fn all_gather_matmul(a: View<'a>, b: View<'a>, bias: Option<View<'a>>, group: &'a Comm, which: i64, turns: i64, stream_mode: i64, out: View<'a>, gathered: View<'a>);
    /// `out` = this rank's rows of the sum over the ranks of `a · b`, for weights cut by rows and sequences cut over ranks.
    aclnnMatmulReduceScatter = fn matmul_reduce_scatter(a: View<'a>, b: View<'a>, bias: Option<View<'a>>, group: &'a Comm, reduce: Text, turns: i64, stream_mode: i64, out: View<'a>);
    }
}

/// Name, and whether the opened toolkit has both phases, of the operators of this module.
pub fn available(toolkit: &crate::Toolkit) -> Vec<(&'static str, bool)> {
    listed(toolkit)
}
