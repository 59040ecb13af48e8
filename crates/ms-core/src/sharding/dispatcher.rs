//! How tokens reach the ranks that hold their experts.

/// How tokens reach the ranks that hold their experts, and how the outputs return.
///
/// The values are the same up to the order of sums; traffic and saved values differ. Below, a rank has `T` tokens of width
/// `H` inside tensor parallelism, `K` experts each; `e` ranks share the experts and `t` ranks each expert.
///
/// # Source
/// Megatron-LM `core_r0.8.0` and `core_v0.12.1`, `megatron/core/transformer/moe/token_dispatcher.py`; MindSpeed,
/// `mindspeed/core/transformer/moe/legacy_a2a_token_dispatcher.py`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatcher {
    /// The ranks gather all tokens, `[e·T,H]`, with their experts and weights; each takes the rows of its experts, and the
    /// ranks' weighted sums are reduce-scattered (`allgather`).
    #[default]
    AllGather,
    /// A rank routes its shard of the tokens, `[T/t,H]`, and sends a row for each choice to one of the ranks that share the
    /// expert; these gather the rows (`alltoall` of `core_v0.12.1`).
    AllToAll,
    /// Ranks that share experts route all their tokens and exchange tokens for columns, `[T,H/t]`; each sends its columns of a
    /// row for each choice, and those that share the expert gather the columns (`alltoall` of `core_r0.8.0`, `alltoall_seq`
    /// since).
    AllToAllSeq,
}

impl Dispatcher {
    /// How many of `tp` tensor-parallel ranks route the same tokens, where `etp` ranks share an expert: one where each sends
    /// its own, or where those that share an expert are not all in one tensor-parallel group and so have other tokens.
    pub fn router_copies(self, tp: usize, etp: usize) -> usize {
        match self {
            Self::AllGather | Self::AllToAllSeq if tp.is_multiple_of(etp) => etp,
            _ => 1,
        }
    }
}
