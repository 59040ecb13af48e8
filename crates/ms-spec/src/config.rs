//! The normalised configuration.

use ms_core::DType;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, Rope};

/// Family of a model: decides Hugging Face's spelling of its configuration and tensors, not its mathematics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Llama 1 to 3 and what shares its classes.
    Llama,
    /// Mistral: a Llama, possibly with a sliding window.
    Mistral,
    /// Qwen1.5, Qwen2, Qwen2.5: biases in q, k and v.
    Qwen2,
    /// Qwen3: q and k are normalised per head.
    Qwen3,
}

/// Activation of the feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `silu(gate) * up`.
    Swiglu,
}

/// Kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// RMSNorm, scaled after the cast to the activation type.
    Rms,
}

/// Norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// None.
    None,
    /// Each head alone, before the rotation; one weight per element of a head.
    PerHead,
}

/// Which linear layers have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Biases {
    /// Query, key and value projections.
    pub qkv: bool,
    /// Attention output projection.
    pub out: bool,
    /// Both layers of the feed-forward network.
    pub mlp: bool,
}

/// A decoder-only transformer, pre-norm: `h += attn(norm(h)); h += mlp(norm(h))`.
///
/// Shape letters: `L` layers, `H` hidden, `F` ffn, `N` heads, `G` groups, `D` head size, `V` padded vocabulary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Spelling of configuration and tensors on the Hugging Face side.
    pub family: Family,
    /// `L`.
    pub layers: usize,
    /// `H`, width of the residual stream.
    pub hidden: usize,
    /// `F`, width of the feed-forward layer.
    pub ffn: usize,
    /// `N`, query heads.
    pub heads: usize,
    /// `G`, key/value heads; `N % G == 0`.
    pub groups: usize,
    /// `D`, elements of a head.
    pub head_dim: usize,
    /// Vocabulary of the tokenizer.
    pub vocab: usize,
    /// `V`: rows of the embedding; at least `vocab`.
    pub padded_vocab: usize,
    /// Longest position the model is made for, in tokens.
    pub max_positions: usize,
    /// Activation of the feed-forward layer.
    pub activation: Activation,
    /// Kind of norm.
    pub norm: Norm,
    /// Added to the mean square.
    pub norm_eps: f64,
    /// Which linear layers have biases.
    pub bias: Biases,
    /// Norm of queries and keys.
    pub qk_norm: QkNorm,
    /// Rotary position embedding.
    pub rope: Rope,
    /// A query sees only this many keys, itself included; `None`: all before it.
    pub sliding_window: Option<usize>,
    /// Whether the output layer is the embedding.
    pub tied: bool,
    /// Standard deviation of initial matrices.
    pub init_std: f64,
    /// Element type of the stored weights, if the source names one.
    pub dtype: Option<DType>,
    /// Token ids that the configuration names: beginning and end of a sequence.
    pub bos: Option<u64>,
    /// End of a sequence; several for some models.
    pub eos: Vec<u64>,
}

impl ModelConfig {
    /// Checks that the sizes fit together.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] naming the sizes.
    pub fn validate(self) -> Result<Self> {
        let sizes = [
            ("layers", self.layers),
            ("hidden size", self.hidden),
            ("ffn size", self.ffn),
            ("heads", self.heads),
            ("key/value heads", self.groups),
            ("head size", self.head_dim),
            ("vocabulary", self.vocab),
        ];
        // A limit far above any model, so that no product of two sizes can overflow.
        const MOST: usize = 1 << 28;
        for (name, size) in sizes {
            if size == 0 || size > MOST {
                return Err(Error::Inconsistent(format!("{name}: expected 1 to {MOST}, got {size}")));
            }
        }
        if !self.heads.is_multiple_of(self.groups) {
            let (n, g) = (self.heads, self.groups);
            return Err(Error::Inconsistent(format!("{n} query heads do not divide by {g} key/value heads")));
        }
        if self.padded_vocab < self.vocab || self.padded_vocab > MOST {
            let (p, v) = (self.padded_vocab, self.vocab);
            return Err(Error::Inconsistent(format!(
                "padded vocabulary {p} is smaller than the vocabulary {v}"
            )));
        }
        let rotated = self.rope.rotated(self.head_dim);
        if rotated == 0 || !rotated.is_multiple_of(2) {
            return Err(Error::Inconsistent(format!(
                "{rotated} rotated elements per head: expected an even number"
            )));
        }
        Ok(self)
    }

    /// Rows of the packed query, key and value projection: `(N + 2G) * D`.
    pub fn qkv_rows(&self) -> usize {
        (self.heads + 2 * self.groups) * self.head_dim
    }

    /// The vocabulary padded as Megatron does it: up to a multiple of `divisor * tp`.
    ///
    /// # Source
    /// Megatron-LM `core_r0.8.0`, `megatron/training/tokenizer/tokenizer.py`, `_vocab_size_with_padding`.
    pub fn padded(&self, divisor: usize, tp: usize) -> usize {
        self.vocab.next_multiple_of((divisor * tp).max(1))
    }
}
