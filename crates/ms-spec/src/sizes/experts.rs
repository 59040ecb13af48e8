//! Sizes and choices of a mixture of experts and its router.

use serde::{Deserialize, Serialize};

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moe {
    /// `E`, experts with weights.
    pub experts: usize,
    /// `K`, experts per token.
    pub top_k: usize,
    /// `Fe`, width of an expert.
    pub ffn: usize,
    /// How experts are chosen and weighted.
    pub router: Router,
    /// A shared expert, which every token passes through.
    pub shared: Option<SharedExpert>,
    /// Experts without weights, after the others, that return their input.
    pub zero_experts: usize,
}

/// A feed-forward layer parallel to the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedExpert {
    /// Its width; of several shared experts: the sum.
    pub ffn: usize,
    /// Its output is multiplied by `sigmoid(gate . x)`.
    pub gate: bool,
    /// The gate is a number for each element of the output instead of one for all of them.
    #[serde(default)]
    pub wide_gate: bool,
}

/// From a token's router logits to experts and weights.
///
/// `s = score(logits)`; the choice is made by `s`, plus a bias per expert where there is one, within the best groups
/// where there are some; the weights are `s` of the chosen, divided by their sum (`+ 1e-20`) if `renormalise`, times
/// `scale`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Router {
    /// The score.
    pub score: Score,
    /// A bias per expert (float32, not trained by gradients) takes part in the choice, not in the weights.
    pub bias: bool,
    /// The linear layer of the router has a trained bias.
    pub linear_bias: bool,
    /// Experts are chosen within the best groups.
    pub groups: Option<GroupLimit>,
    /// Weights are divided by their sum.
    pub renormalise: bool,
    /// Weights are multiplied by this.
    pub scale: f64,
    /// What logits, scores and weights are computed in.
    pub dtype: RouterDtype,
}

/// The type that a router computes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterDtype {
    /// Logits in the model's, what comes of them in float32.
    #[default]
    Model,
    /// Float32.
    F32,
    /// Float64.
    F64,
}

impl RouterDtype {
    /// Bytes of the type in which a model with elements of `element` bytes computes its logits.
    pub(crate) fn bytes(self, element: usize) -> usize {
        match self {
            Self::Model => element,
            Self::F32 => element.max(4),
            Self::F64 => 8,
        }
    }
}

impl Router {
    /// Takes the best scores as they are.
    pub const fn plain(score: Score) -> Self {
        Self {
            score,
            bias: false,
            linear_bias: false,
            groups: None,
            renormalise: false,
            scale: 1.0,
            dtype: RouterDtype::Model,
        }
    }
}

/// Score of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Softmax over the chosen experts' logits.
    SoftmaxOfChosen,
    /// Sigmoid of each logit.
    Sigmoid,
    /// Square root of the softplus of each logit.
    SqrtSoftplus,
    /// Sparsemixer: each of two experts is chosen and weighted by a softmax over the logits that are near the largest.
    SparseMixer {
        /// Half the relative distance within which a logit takes part.
        jitter: f64,
    },
}

/// Only experts of the best groups can be chosen, or as many of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimit {
    /// Groups of neighbouring experts.
    pub groups: usize,
    /// Groups that stay.
    pub keep: usize,
    /// What makes a group good.
    pub by: GroupScore,
}

/// Score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", from = "WrittenScore")]
pub enum GroupScore {
    /// The sum of its best scores (with bias): of one expert (DeepSeek-V2), two (DeepSeek-V3) or, in Megatron-LM, as many as
    /// a used group provides on average.
    Best(usize),
    /// None: all groups stay, and each gives as many experts as any other (`MoGE`, Pangu Pro MoE).
    Alike,
}

/// How a [`GroupScore`] is written, and how it was.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenScore {
    Counted { best: usize },
    Word(ScoreWord),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScoreWord {
    Best,
    BestTwo,
    Alike,
}

impl From<WrittenScore> for GroupScore {
    fn from(written: WrittenScore) -> Self {
        match written {
            WrittenScore::Counted { best } => Self::Best(best),
            WrittenScore::Word(ScoreWord::Best) => Self::Best(1),
            WrittenScore::Word(ScoreWord::BestTwo) => Self::Best(2),
            WrittenScore::Word(ScoreWord::Alike) => Self::Alike,
        }
    }
}
