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

/// How a group of experts is judged when only some groups are open to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The sum of so many of its best experts: one (DeepSeek-V2), two (DeepSeek-V3).
    Best(usize),
    /// The sum of so many of its largest logits, as Megatron-LM does where the softmax is over what was chosen.
    BestLogits(usize),
    /// Not at all: every group stays and gives as many experts as any other (`MoGE`, Pangu Pro MoE).
    Alike,
}

/// A router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Score of an expert.
    pub score: RouterScore,
    /// Experts per token `K`.
    pub top_k: usize,
    /// Groups of experts, groups that stay open, and how groups are judged.
    pub groups: Option<(usize, usize, GroupScore)>,
    /// Weights are divided by their sum.
    pub normalise: bool,
    /// Factor of the weights.
    pub scale: f64,
}

/// What the auxiliary losses of a router know of the tokens of all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertLoad {
    /// What an expert's scores weigh, by how many tokens went to it or to its group: `[G,E]`, group of tokens after group.
    pub weights: Vec<f64>,
    /// The group of each token of this rank `[T]`; empty: all tokens are one group.
    pub group_of: Vec<u32>,
    /// Groups of tokens `G`.
    pub groups: usize,
    /// Added to the scores `[E]` before they are normalised; empty: nothing.
    pub bias: Vec<f64>,
    /// Scores are not normalised, whatever they are.
    pub undivided: bool,
    /// What the square of the logarithm of the sum of a token's exponentials weighs.
    pub z: f64,
}
