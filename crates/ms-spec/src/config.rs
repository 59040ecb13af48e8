//! The normalised model configuration.

use ms_core::DType;
use serde::{Deserialize, Serialize};

use crate::sizes::{
    Activation, Attention, Biases, Block, Feed, GatedDelta, HyperConnections, Indexer, Layer, Mamba2, Mamba3,
    Mixer, Moe, Norm, Position, QkNorm, Scales, Scores, Windowed,
};
use crate::{Family, Rope};

/// A decoder-only model.
///
/// The struct holds what every model has; parts that only some have are optional and described in their own types.
/// Shape letters: `L` layers, `H` hidden, `F` ffn, `N` heads, `G` groups, `D` head size, `V` padded vocabulary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Spelling of configuration and tensors on the Hugging Face side.
    pub family: Family,
    /// `L`, without those of multi-token prediction.
    pub layers: usize,
    /// `H`, width of the residual stream.
    pub hidden: usize,
    /// `F`, width of a dense feed-forward layer.
    pub ffn: usize,
    /// `N`, query heads.
    pub heads: usize,
    /// `G`, key/value heads; `N % G == 0`. Equal to `N` for latent attention.
    pub groups: usize,
    /// `D`, elements of a query head; `nope + rope` for latent attention.
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
    /// How positions enter.
    #[serde(default)]
    pub position: Position,
    /// Rotary position embedding; only used with [`Position::Rope`].
    pub rope: Rope,
    /// A query sees only this many keys, itself included, except in [`Layer::global`] layers; `None`: all before it.
    pub sliding_window: Option<usize>,
    /// Where layers with the window differ from the others; see [`ModelConfig::heads_of`], [`ModelConfig::rope_of`].
    #[serde(default)]
    pub windowed: Option<Windowed>,
    /// How queries, keys and values are made.
    #[serde(default)]
    pub attention: Attention,
    /// What attention scores go through.
    #[serde(default)]
    pub scores: Scores,
    /// Sparse attention.
    #[serde(default)]
    pub indexer: Option<Indexer>,
    /// Sizes of the Gated DeltaNet layers.
    #[serde(default)]
    pub gated_delta: Option<GatedDelta>,
    /// Sizes of the Mamba2 layers.
    #[serde(default)]
    pub mamba2: Option<Mamba2>,
    /// Sizes of the Mamba3 layers.
    #[serde(default)]
    pub mamba3: Option<Mamba3>,
    /// The mixture of experts of [`Feed::Moe`] layers.
    #[serde(default)]
    pub moe: Option<Moe>,
    /// The parts of each layer; empty: attention and a dense MLP in every layer. See [`ModelConfig::layer`].
    #[serde(default)]
    pub pattern: Vec<Layer>,
    /// How sublayers follow each other.
    #[serde(default)]
    pub block: Block,
    /// Several residual streams.
    #[serde(default)]
    pub hyper: Option<HyperConnections>,
    /// LayerNorm after the embedding.
    #[serde(default)]
    pub embedding_norm: bool,
    /// Rows of the output layer are scaled to length 1.
    #[serde(default)]
    pub unit_head_rows: bool,
    /// Constant factors.
    #[serde(default)]
    pub scales: Scales,
    /// `c * tanh(x / c)` on the logits.
    #[serde(default)]
    pub logit_softcap: Option<f64>,
    /// Multi-token prediction layers.
    #[serde(default)]
    pub mtp: usize,
    /// These layers are trained as in MindSpeed-LLM 2.0.0: the states come before the embedding in what they project (`eh_proj`),
    /// rows are longer by as many tokens as there are layers, which see windows of them, and the reported loss is the sum of all.
    #[serde(default)]
    pub mtp_hidden_first: bool,
    /// A linear layer scores the last hidden state with one number (an outcome reward model): what an output layer holds
    /// is not used.
    #[serde(default)]
    pub reward: bool,
    /// Whether the output layer is the embedding.
    pub tied: bool,
    /// Standard deviation of initial matrices.
    pub init_std: f64,
    /// Slots without a layer that count as layers where the initial values of matrices go by their number (`--noop-layers`).
    #[serde(default)]
    pub empty_slots: usize,
    /// Element type of the stored weights, if the source names one.
    pub dtype: Option<DType>,
    /// Token ids that the configuration names: beginning and end of a sequence.
    pub bos: Option<u64>,
    /// End of a sequence; several for some models.
    pub eos: Vec<u64>,
}

impl Default for ModelConfig {
    /// A plain Llama of size 0, to fill in: `ModelConfig { layers: 2, ..ModelConfig::default() }`.
    fn default() -> Self {
        Self {
            family: Family::LLAMA,
            layers: 0,
            hidden: 0,
            ffn: 0,
            heads: 0,
            groups: 0,
            head_dim: 0,
            vocab: 0,
            padded_vocab: 0,
            max_positions: 2048,
            activation: Activation::Swiglu,
            norm: Norm::Rms,
            norm_eps: 1e-6,
            bias: Biases::default(),
            qk_norm: QkNorm::None,
            position: Position::Rope,
            rope: Rope::plain(10_000.0),
            sliding_window: None,
            windowed: None,
            attention: Attention::Grouped,
            scores: Scores::default(),
            indexer: None,
            gated_delta: None,
            mamba2: None,
            mamba3: None,
            moe: None,
            pattern: Vec::new(),
            block: Block::Pre,
            hyper: None,
            embedding_norm: false,
            unit_head_rows: false,
            scales: Scales::default(),
            logit_softcap: None,
            mtp: 0,
            mtp_hidden_first: false,
            reward: false,
            tied: false,
            init_std: 0.02,
            empty_slots: 0,
            dtype: None,
            bos: None,
            eos: Vec::new(),
        }
    }
}

impl ModelConfig {
    /// A Llama of two layers for tests and examples: grouped-query attention, sizes that two ranks can divide, and weights
    /// wide enough that every part matters.
    ///
    /// ```
    /// use ms_spec::{ModelConfig, params};
    /// let config = ModelConfig { layers: 4, ..ModelConfig::tiny() }.validate()?;
    /// assert_eq!(params(&config).iter().map(|p| p.shape.numel()).sum::<usize>(), 8848);
    /// # Ok::<(), ms_spec::Error>(())
    /// ```
    pub fn tiny() -> Self {
        Self {
            layers: 2,
            hidden: 16,
            ffn: 24,
            heads: 4,
            groups: 2,
            head_dim: 4,
            vocab: 32,
            padded_vocab: 32,
            max_positions: 64,
            init_std: 0.3,
            ..Self::default()
        }
    }

    /// The parts of layer `index`. Multi-token prediction layers follow the others.
    pub fn layer(&self, index: usize) -> Layer {
        match self.pattern.get(index) {
            Some(layer) => *layer,
            None if index < self.layers || self.pattern.is_empty() => Layer::default(),
            // A prediction layer is one of full attention, or, where no layer has that, of a window alone, with the
            // feed-forward part of the last layer.
            None => Layer {
                feed: self.pattern[self.pattern.len() - 1].feed,
                global: self.attention.kind().sees_all(),
                ..Layer::default()
            },
        }
    }

    /// Keys that a query of layer `index` sees, itself included; `None`: all before it.
    pub fn window(&self, index: usize) -> Option<usize> {
        self.sliding_window.filter(|_| !self.layer(index).global)
    }

    /// Query heads and key/value heads of layer `index`.
    pub fn heads_of(&self, index: usize) -> (usize, usize) {
        let own = self.windowed.as_ref().filter(|_| self.window(index).is_some());
        own.map_or((self.heads, self.groups), |w| (w.heads, w.groups))
    }

    /// Whether a layer has this mixer.
    pub fn has(&self, mixer: Mixer) -> bool {
        (0..self.layers.min(self.pattern.len().max(1))).any(|l| self.layer(l).mixer == mixer)
    }

    /// Whether a layer has this feed-forward part.
    pub fn has_feed(&self, feed: Feed) -> bool {
        let shortcut = self.block == Block::Shortcut && feed == Feed::Dense;
        shortcut || (0..self.layers.min(self.pattern.len().max(1))).any(|l| self.layer(l).feed == feed)
    }

    /// Rows of the packed query, key and value projection of layer `index`: `(N + 2G) * D`.
    pub fn qkv_rows(&self, index: usize) -> usize {
        let (heads, groups) = self.heads_of(index);
        (heads + 2 * groups) * self.head_dim
    }

    /// The vocabulary padded as Megatron does it: up to a multiple of `divisor * tp`.
    ///
    /// # Source
    /// Megatron-LM `core_r0.8.0`, `megatron/training/tokenizer/tokenizer.py`, `_vocab_size_with_padding`.
    pub fn padded(&self, divisor: usize, tp: usize) -> usize {
        self.vocab.next_multiple_of((divisor * tp).max(1))
    }
}
