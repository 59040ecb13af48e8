//! Bytes that ranks send around the experts of a layer.

use crate::ModelConfig;
use ms_core::Dispatcher;

/// What determines how many bytes ranks send for experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertExchange {
    /// How tokens reach the ranks of their experts.
    pub dispatcher: Dispatcher,
    /// Tokens of a micro-batch that tensor-parallel ranks have together.
    pub tokens: usize,
    /// Bytes of an element of the stream.
    pub element_bytes: usize,
    /// Ranks that share a matrix.
    pub tp: usize,
    /// Ranks that share an expert.
    pub etp: usize,
    /// Ranks that share the experts.
    pub ep: usize,
    /// Whether tensor-parallel ranks share the tokens between matrices.
    pub sequence_parallel: bool,
}

/// Bytes that a rank sends for a layer of experts, forward and backward, by group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertBytes {
    /// To ranks with other experts.
    pub ep: usize,
    /// To ranks that share an expert.
    pub etp: usize,
    /// To ranks that together hold all experts, where those that share one are not all in one tensor-parallel group.
    pub tp_ep: usize,
    /// To ranks that share a matrix, where that is not the same; shared experts included.
    pub tp: usize,
}

impl ExpertExchange {
    /// For one micro-batch with an even load. Experts without weights are not covered, nor is an auxiliary loss, which sends
    /// a few more numbers.
    pub fn of_layer(&self, c: &ModelConfig) -> ExpertBytes {
        let Some(moe) = &c.moe else { return ExpertBytes::default() };
        let Self { tokens, element_bytes, tp, etp, ep, .. } = *self;
        let wide = element_bytes.max(4);
        // Gathering sends a rank's rows to all others; summing and sharing out is as much.
        let row = c.hidden * element_bytes;
        let gathered = |ranks: usize, bytes: usize| (ranks - 1) * bytes;
        // For replicated values: a shard is gathered, and the whole is summed.
        let share = tokens * row / tp;
        let sum = 2 * gathered(tp, share);
        // Shared experts are entered and left as dense layers are.
        let mut sent =
            ExpertBytes { tp: usize::from(moe.shared.is_some()) * 2 * sum, ..ExpertBytes::default() };
        let alike = etp == tp && !self.sequence_parallel;
        let own_share = if self.sequence_parallel { 0 } else { sum };
        // Tokens of a rank, and of those that share an expert.
        let (own, all) = (tokens / tp, tokens / tp * etp);
        let counts = 8 * moe.experts;
        // Beside gathered rows: weights; choices, and how many tokens there are.
        let numbers = |tokens: usize| tokens * moe.top_k * (2 * wide + 4) + 8;
        match self.dispatcher {
            Dispatcher::AllGather if !tp.is_multiple_of(etp) => {
                sent.tp += own_share;
                sent.tp_ep = gathered(ep * etp, 4 * own * row + numbers(own));
            }
            Dispatcher::AllGather => {
                if etp == tp {
                    sent.tp += 2 * sum;
                } else {
                    sent.tp += own_share;
                    sent.etp = 4 * gathered(etp, own * row);
                }
                // Rows in, and their sums back.
                sent.ep = gathered(ep, 4 * all * row + numbers(all));
            }
            Dispatcher::AllToAll => {
                sent.tp += own_share;
                let copies = own * moe.top_k;
                sent.ep = gathered(ep, (4 * copies * row + counts) / ep);
                sent.etp = gathered(etp, 4 * copies * row + counts);
            }
            Dispatcher::AllToAllSeq => {
                sent.tp += if alike { 2 * sum } else { own_share };
                let copies = all * moe.top_k;
                let columns = row / etp;
                sent.ep = gathered(ep, (4 * copies * columns + counts) / ep);
                sent.etp = gathered(etp, 4 * copies * columns);
                if !alike {
                    let logits = 2 * own * (moe.experts + moe.zero_experts) * wide;
                    sent.etp += gathered(etp, 4 * own * columns + logits);
                }
            }
        }
        sent
    }
}
