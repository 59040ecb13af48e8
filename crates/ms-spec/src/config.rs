//! The normalised configuration of a decoder.

use crate::{Error, Result};
use ms_core::HeadLayout;
use serde::{Deserialize, Serialize};

/// What a decoder is made of, in terms of its mathematics; the dialects of `config.json` and of Megatron's flags
/// are read into this and written from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Family as Hugging Face's `model_type` names it: `llama`, `qwen2`, `qwen3`.
    pub family: String,
    /// Layers `L`.
    pub layers: usize,
    /// Hidden size `H`.
    pub hidden: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Rows of the embedding: `vocab`, padded so that it divides among tensor-parallel ranks.
    pub padded_vocab: usize,
    /// Query heads `N`.
    pub heads: usize,
    /// Key/value groups `G`.
    pub groups: usize,
    /// Head size `D`.
    pub head_dim: usize,
    /// Feed-forward size `F`.
    pub ffn: usize,
    /// Activation of the MLP.
    pub activation: Activation,
    /// Kind of normalisation.
    pub norm: NormKind,
    /// Added to the mean square (or variance) by every norm.
    pub norm_eps: f64,
    /// Which linear layers have a bias.
    pub bias: Biases,
    /// Per-head RMSNorm of queries and keys before the rotation.
    pub qk_norm: bool,
    /// Rotary position embedding.
    pub rope: Rope,
    /// A query sees at most this many of the latest keys.
    pub window: Option<usize>,
    /// Factor on attention scores; `D^-1/2` if absent.
    pub attention_scale: Option<f64>,
    /// Input and output embedding are one weight.
    pub tied: bool,
    /// Longest sequence the model is made for.
    pub max_position: usize,
    /// Deviation of initial weights.
    pub init_std: f64,
}

/// Activation of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `silu(gate) · up`.
    Swiglu,
}

impl Activation {
    /// Whether the first MLP layer holds `[gate; up]`.
    pub const fn is_gated(self) -> bool {
        match self {
            Self::Swiglu => true,
        }
    }
}

/// Kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// RMSNorm scaled by `w`.
    Rms,
    /// RMSNorm scaled by `1 + w`.
    RmsUnitOffset,
}

/// Which linear layers have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Biases {
    /// Projections to queries, keys and values.
    pub qkv: bool,
    /// Projection of the attention's output.
    pub out: bool,
    /// Both layers of the MLP.
    pub mlp: bool,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the frequencies (theta).
    pub base: f64,
    /// Share of each head that is rotated, from its first dimension.
    pub fraction: f64,
    /// Pairs are neighbours instead of halves.
    pub interleaved: bool,
    /// How frequencies are stretched for long contexts.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are stretched for long contexts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a smooth passage between.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are short.
        high_freq_factor: f64,
        /// Context length of the original training.
        original_max_position: usize,
    },
    /// YaRN.
    Yarn {
        /// Ratio of the context lengths.
        factor: f64,
        /// Rotations above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is interpolated.
        beta_slow: f64,
        /// Context length of the original training.
        original_max_position: usize,
        /// Factor on cosines and sines; `0.1 ln(factor) + 1` if absent.
        attention_factor: Option<f64>,
    },
}

impl ModelConfig {
    /// Elements of the rotated part of a head.
    pub fn rotary_dim(&self) -> usize {
        let dim = (self.head_dim as f64 * self.rope.fraction) as usize;
        dim - dim % 2
    }

    /// Factor on attention scores.
    pub fn scale(&self) -> f32 {
        self.attention_scale.unwrap_or_else(|| (self.head_dim as f64).powf(-0.5)) as f32
    }

    /// The heads that one of `tp` tensor-parallel ranks holds.
    pub fn head_layout(&self, tp: usize) -> HeadLayout {
        HeadLayout {
            groups: self.groups / tp,
            heads_per_group: self.heads / self.groups,
            head_dim: self.head_dim,
        }
    }

    /// The smallest multiple of `multiple * tp` that is at least `vocab`.
    ///
    /// # Source
    /// Megatron-LM core_r0.8.0, `megatron/training/tokenizer/tokenizer.py`, `_vocab_size_with_padding`.
    pub fn pad_vocab(vocab: usize, multiple: usize, tp: usize) -> usize {
        vocab.next_multiple_of((multiple * tp).max(1))
    }

    /// Checks that the numbers fit together and, for `tp` tensor-parallel ranks, divide.
    ///
    /// # Errors
    /// [`Error::Config`] naming the field, what would be legal and what is there.
    pub fn validate(&self, tp: usize) -> Result<()> {
        let positive = [
            ("num_layers", self.layers),
            ("hidden_size", self.hidden),
            ("vocab_size", self.vocab),
            ("num_attention_heads", self.heads),
            ("num_query_groups", self.groups),
            ("head_dim", self.head_dim),
            ("ffn_hidden_size", self.ffn),
        ];
        for (field, value) in positive {
            if value == 0 || value > 1 << 32 {
                return Err(Error::config(field, "a number from 1 to 2^32", value));
            }
        }
        if self.heads % self.groups != 0 {
            let expected = format!("a divisor of num_attention_heads {}", self.heads);
            return Err(Error::config("num_query_groups", expected, self.groups));
        }
        if self.head_dim % 2 != 0 || self.rotary_dim() == 0 {
            return Err(Error::config("head_dim", "an even number of rotated elements", self.head_dim));
        }
        if self.padded_vocab < self.vocab {
            let expected = format!("at least vocab_size {}", self.vocab);
            return Err(Error::config("padded_vocab_size", expected, self.padded_vocab));
        }
        let divided = [
            ("num_query_groups", self.groups),
            ("ffn_hidden_size", self.ffn),
            ("padded_vocab_size", self.padded_vocab),
        ];
        for (field, value) in divided {
            if tp == 0 || value % tp != 0 {
                let expected = format!("a multiple of the tensor-parallel size {tp}");
                return Err(Error::config(field, expected, value));
            }
        }
        Ok(())
    }
}
