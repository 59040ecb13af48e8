//! The router of a mixture of experts.

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RouterScore {
    /// Softmax over all experts.
    Softmax,
    /// Logistic function of each logit.
    Sigmoid,
    /// `sqrt(softplus(logit))` (DeepSeek-V4).
    SqrtSoftplus,
    /// Phi-3.5-MoE's SparseMixer in evaluation mode, top 2: each pick has its own softmax over the experts whose
    /// logit is within `2 · jitter` of the best, relative to the larger magnitude.
    SparseMixer {
        /// `router_jitter_noise`.
        jitter: f64,
    },
}

/// How groups of experts are scored when a token may use only some groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The sum of its best scores: of one expert (DeepSeek-V2), of two (DeepSeek-V3).
    Best(usize),
    /// The sum of this many of its largest logits, as in Megatron-LM if the softmax is over the selected experts.
    BestLogits(usize),
    /// No score: every group is used and provides the same number of experts (`MoGE`, Pangu Pro MoE).
    Alike,
}

/// A router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Score of an expert.
    pub score: RouterScore,
    /// Experts per token `K`.
    pub top_k: usize,
    /// Number of groups of experts, number of groups a token may use, and how groups are scored.
    pub groups: Option<(usize, usize, GroupScore)>,
    /// Weights are divided by their sum.
    pub normalise: bool,
    /// Factor of the weights.
    pub scale: f64,
}

/// Statistics over the tokens of all ranks for the auxiliary losses of a router.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertLoad {
    /// The weight of an expert's scores, from the number of tokens routed to it or to its group: `[G,E]`, one token group
    /// after another.
    pub weights: Vec<f64>,
    /// The group of each token of this rank `[T]`; empty: all tokens are one group.
    pub group_of: Vec<u32>,
    /// Groups of tokens `G`.
    pub groups: usize,
    /// Added to the scores `[E]` before they are normalised; empty: nothing.
    pub bias: Vec<f64>,
    /// Scores are not normalised, whatever they are.
    pub undivided: bool,
    /// The weight of the z-loss: the square of the logarithm of the sum of a token's exponentials.
    pub z: f64,
}
