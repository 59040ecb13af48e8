//! Sizes and choices of the parts that a model is composed of. Everything derived from them is in the part's own file in
//! `parts`.

mod experts;

use serde::{Deserialize, Serialize};

use crate::Rope;
pub use experts::*;

/// Activation of the feed-forward layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `silu(gate) * up`.
    Swiglu,
    /// `gelu_tanh(gate) * up`.
    GegluTanh,
    /// `gelu(gate) * up`, by the error function.
    GegluErf,
    /// `gelu_tanh(x)`, no gate.
    GeluTanh,
    /// `gelu(x)` by the error function, no gate.
    GeluErf,
    /// `relu(x)^2`, no gate.
    ReluSquared,
    /// `(up + 1) * gate * sigmoid(alpha * gate)` with `gate` clamped from above and `up` to both sides.
    SwigluClamped {
        /// Slope inside the sigmoid.
        alpha: f64,
        /// The limit.
        limit: f64,
    },
    /// `silu(gate) * up` with `gate` clamped from above and `up` to both sides, before the product.
    SwigluBounded {
        /// The limit.
        limit: f64,
    },
}

impl Activation {
    /// Whether `linear_fc1` is `[gate; up]`.
    pub fn gated(self) -> bool {
        matches!(
            self,
            Self::Swiglu
                | Self::GegluTanh
                | Self::GegluErf
                | Self::SwigluClamped { .. }
                | Self::SwigluBounded { .. }
        )
    }
}

/// Kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// RMSNorm, scaled after the cast to the activation type.
    Rms,
    /// RMSNorm scaled by `1 + w` in float32, cast last. `w` starts at 0.
    RmsUnitOffset,
    /// LayerNorm with weight and bias.
    LayerNorm,
}

/// Norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// None.
    None,
    /// Each head alone, before the rotation; one weight per element of a head.
    PerHead,
    /// Each head alone, after the rotation.
    PerHeadAfterRope,
    /// All heads of a token together, before the rotation; `[N * D]` and `[G * D]` weights.
    WholeProjection,
}

/// Which linear layers have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Biases {
    /// Query, key and value projections; of multi-head latent attention: the projections to the latents.
    pub qkv: bool,
    /// Attention output projection.
    pub out: bool,
    /// Both linear layers of the MLP, and those of every expert.
    pub mlp: bool,
    /// Output layer.
    #[serde(default)]
    pub head: bool,
}

/// How a token's position enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// Queries and keys are rotated: [`crate::Rope`].
    #[default]
    Rope,
    /// Scores get `slope * key position`, one slope per head: Press et al., arXiv:2108.12409.
    Alibi,
    /// A learned vector per position is added to the embedding.
    Learned,
    /// Not at all: the layers are recurrent.
    None,
}

/// How queries, keys and values are made.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// By one projection each; `heads / groups` query heads share a key and a value.
    #[default]
    Grouped,
    /// Through low-rank latents.
    Latent(Mla),
    /// One row of a token is key and value of all heads; tokens far away are seen as pooled entries.
    Compressed(Compressed),
}

/// Attention of DeepSeek-V4.
///
/// `q = q_b norm(q_a x)`, each head then normed without a weight; one row `norm(kv x)` is key and value of all heads. The
/// last elements of queries and rows are rotated; those of the heads' outputs are rotated back. Heads form groups whose
/// outputs are projected separately, then together. Layers with [`Layer::pooled`] also see entries of distant tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compressed {
    /// Width of the query latent.
    pub q_rank: usize,
    /// Groups of heads whose outputs are projected apart.
    pub out_groups: usize,
    /// What each group's outputs are projected to.
    pub out_rank: usize,
    /// Rotation in layers with pooled entries; [`crate::ModelConfig::rope`] is that of the others.
    pub rope: Rope,
}

/// Pooled entries that a layer sees; each is computed from a window of tokens.
///
/// `entry = norm(sum_s softmax_s(gate x_s + ape_s) kv x_s)`, rotated as a token at the window's start. A query sees an entry
/// when the window is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooled {
    /// Tokens of a window.
    pub ratio: usize,
    /// An entry is made of the window before, too, and an indexer with entries of its own picks those that a query sees.
    pub picked: bool,
}

/// Hyper-connections: the residual has several streams, from which each sublayer's input is mixed with weights computed per
/// token, and to which its output is distributed.
///
/// # Source
/// Zhu et al., arXiv:2409.19606; with the matrix between streams made doubly stochastic: DeepSeek-V4.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HyperConnections {
    /// Streams.
    pub streams: usize,
    /// Times that rows and columns of the matrix between streams are brought to sum 1.
    pub rounds: usize,
    /// Added to weights and sums.
    pub eps: f64,
}

/// Multi-head latent attention.
///
/// `c_q = norm(q_a x)`, `c_kv, k_rope = kv_a x`, `q = q_b c_q`, `k_nope, v = kv_b norm(c_kv)`; a head's query and key
/// are `[nope, rope]`, the rotated part of the key being shared by all heads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mla {
    /// Width of the query latent; `None`: queries are projected directly.
    pub q_rank: Option<usize>,
    /// Width of the key/value latent.
    pub kv_rank: usize,
    /// Elements of a query and key head that are not rotated.
    pub nope: usize,
    /// Elements of a query and key head that are rotated.
    pub rope: usize,
    /// Elements of a value head.
    pub value: usize,
    /// Queries are multiplied by this (LongCat: `sqrt(H / q_rank)`).
    pub q_scale: f64,
    /// The normed key/value latent is multiplied by this (LongCat: `sqrt(H / kv_rank)`).
    pub kv_scale: f64,
    /// Latents have norms; without them only Megatron's arguments describe a model (no `--qk-layernorm`).
    #[serde(default = "with_norms")]
    pub normed: bool,
    /// Epsilon of these norms; `None`: that of the layers' norms, as in Megatron's modules. Hugging Face classes fix it,
    /// regardless of their layers' norms.
    #[serde(default)]
    pub norm_eps: Option<f64>,
}

fn with_norms() -> bool {
    true
}

/// Sparse attention: a small scorer picks the keys that each query sees.
///
/// `score(t,s) = sum_h w_h(t) relu(q_h(t) . k(s) / sqrt(D_i))`, `w = weights_proj(x) / sqrt(heads)`; the `top_k` best
/// causal keys stay. Queries come from the query latent, the key from `layer_norm(wk x)` with eps 1e-6; the first
/// [`Mla::rope`] elements of both are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Indexer {
    /// Heads of the scorer.
    pub heads: usize,
    /// Elements of a head, `D_i`.
    pub head_dim: usize,
    /// Keys that each query sees.
    pub top_k: usize,
    /// Whether rotated pairs are neighbours.
    pub interleaved: bool,
}

/// How attention scores are transformed.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Scores {
    /// `q . k` is multiplied by this; `None`: `D^-0.5`. See [`crate::ModelConfig::score_scale`].
    pub scale: Option<f64>,
    /// `c * tanh(x / c)` before the mask.
    pub softcap: Option<f64>,
    /// A learned score per head takes part in the softmax, without a value.
    pub sinks: bool,
    /// The heads' outputs are multiplied by `sigmoid(gate)`; the query projection has `2 D` rows per head, query
    /// then gate.
    pub output_gate: bool,
    /// Each head's output is multiplied by `sigmoid(gate)`, one number per head from a projection of its own.
    pub head_gate: bool,
}

/// What layers with sliding-window attention have instead of the model's own settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Windowed {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub groups: usize,
    /// Rotary position embedding.
    pub rope: Rope,
}

/// Limits of a layer's gated activations: `min(silu(gate), limit) * clamp(up, -limit, limit)`.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// In the routed experts.
    pub experts: Option<f64>,
    /// In the dense MLP, and in the shared expert.
    pub dense: Option<f64>,
}

/// Gated DeltaNet: `S = exp(g) S; S += k (beta (v - S^T k))^T; o = S^T q`, per value head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedDelta {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query and key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Width of the causal convolution, in tokens.
    pub conv: usize,
}

impl GatedDelta {
    /// Rows of queries and keys together: `2 * key_heads * key_dim`.
    pub fn qk_rows(&self) -> usize {
        2 * self.key_heads * self.key_dim
    }

    /// Rows of all values: `value_heads * value_dim`.
    pub fn value_rows(&self) -> usize {
        self.value_heads * self.value_dim
    }
}

/// Mamba2: `h = exp(dt A) h + dt x B^T; y = h C + D x`, per head.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mamba2 {
    /// Heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Groups of heads that share `B` and `C`.
    pub groups: usize,
    /// Width of the state, per element of a head.
    pub state: usize,
    /// Width of the causal convolution, in tokens.
    pub conv: usize,
    /// Tokens of a block in the blocked form.
    pub chunk: usize,
    /// Biases of the projections.
    pub bias: bool,
    /// Bias of the convolution.
    pub conv_bias: bool,
    /// `dt` is clamped to this range; `None`: no upper limit.
    pub dt_limit: (f64, Option<f64>),
    /// Range of the initial `dt`.
    pub dt_init: (f64, f64),
    /// The residual stream of Hugging Face's class is in float32. Only its file says so: layers add in the model's type, as
    /// Megatron's do.
    pub residual_f32: bool,
    /// Epsilon of the norm after the gate. Megatron's mixer fixes it, regardless of the layers' norms.
    #[serde(default = "Mamba2::megatron_norm_eps")]
    pub norm_eps: f64,
}

impl Mamba2 {
    /// The epsilon of Megatron's mixer.
    ///
    /// # Source
    /// Megatron-core 0.16, `megatron/core/ssm/mamba_mixer.py`: the arguments of its norm.
    pub fn megatron_norm_eps() -> f64 {
        1e-5
    }

    /// Rows of `x` and of `z`: `heads * head_dim`.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Blocks of rows of the input projection: `z`, `x`, `B`, `C`, `dt`.
    pub fn sections(&self) -> [usize; 5] {
        let bc = self.groups * self.state;
        [self.inner(), self.inner(), bc, bc, self.heads]
    }
}

/// Mamba3: `h_t = a_t (h_{t-1} + dt_t (1 - l_t) v_{t-1} k_{t-1}^T) + dt_t l_t v_t k_t^T; y = h q + D v`, per head; keys and
/// queries are rotated by accumulated angles, and have a norm and a bias per head.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mamba3 {
    /// Heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Width of the state, per element of a head; elements of a key.
    pub state: usize,
    /// Keys, queries, inputs and outputs of a head (MIMO); `None`: one (SISO), and no weights for several.
    pub ranks: Option<usize>,
    /// Pairs of elements of a key that are rotated.
    pub angles: usize,
    /// Least rate of decay.
    pub rate_floor: f64,
    /// Range of the initial `dt`.
    pub dt_init: (f64, f64),
}

impl Mamba3 {
    /// Added to the mean square in the norms of keys and queries.
    pub const KEY_NORM_EPS: f64 = 1e-5;

    /// Rows of `x` and of `z`: `heads * head_dim`.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all keys of a token.
    pub fn keys(&self) -> usize {
        self.ranks.unwrap_or(1) * self.state
    }

    /// Blocks of rows of the input projection: `z`, `x`, `B`, `C`, `dt`, the rate of decay, the weight of a step's end,
    /// angles.
    pub fn sections(&self) -> [usize; 8] {
        let one = self.heads;
        [self.inner(), self.inner(), self.keys(), self.keys(), one, one, one, self.angles]
    }
}

/// Constant factors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scales {
    /// On the word embedding.
    pub embedding: f64,
    /// On the sum of word and position embeddings.
    pub summed: f64,
    /// That sum is multiplied by the root of the hidden size, too, which is rounded to the type of the activations first;
    /// not where prediction modules embed.
    pub root: bool,
    /// On what a sublayer adds to the residual stream.
    pub residual: f64,
    /// On the logits.
    pub logits: f64,
}

impl Default for Scales {
    fn default() -> Self {
        Self { embedding: 1.0, summed: 1.0, root: false, residual: 1.0, logits: 1.0 }
    }
}

/// What a layer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Layer {
    /// What mixes tokens.
    pub mixer: Mixer,
    /// What follows.
    pub feed: Feed,
    /// Sees all keys, although the model has a sliding window.
    pub global: bool,
    /// Takes the indexer's choice of the last layer that has an indexer.
    pub borrows_index: bool,
    /// Entries of distant tokens that are visible in addition to the window.
    pub pooled: Option<Pooled>,
    /// Experts are those that a table has for the token, not those that the router finds best.
    pub hashed: bool,
    /// Limits of its activations.
    pub limits: Limits,
}

/// The mixer of a layer: attention or a recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Attention.
    #[default]
    Attention,
    /// Attention to keys and values of the layer before; it only has a query projection.
    SharedKv,
    /// Gated DeltaNet.
    GatedDelta,
    /// Mamba2.
    Mamba2,
    /// Mamba3; there is no norm before it.
    Mamba3,
    /// Nothing: the layer is a feed-forward layer.
    None,
}

/// The feed-forward part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feed {
    /// One MLP.
    #[default]
    Dense,
    /// Mixture of experts.
    Moe,
    /// Nothing.
    None,
}

/// How the sublayers of a layer follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// `h += mixer(norm(h)); h += feed(norm(h))`.
    #[default]
    Pre,
    /// `h += norm(mixer(norm(h))); h += norm(feed(norm(h)))`.
    Sandwich,
    /// `h += norm(mixer(h)); h += norm(feed(h))` (`OLMo` 2).
    Post,
    /// Two attentions and two dense MLPs, with the experts parallel to the second half (LongCat): `h += a0(n(h)); y = n(h); m
    /// = moe(y); h += f0(y); h += a1(n(h)); h += f1(n(h)) + m`.
    Shortcut,
}

impl Block {
    /// Whether a sublayer's input is normed (pre-norm).
    pub fn norms_inputs(self) -> bool {
        self != Self::Post
    }

    /// Whether a sublayer's output is normed before it is added to the residual stream (post-norm).
    pub fn norms_outputs(self) -> bool {
        matches!(self, Self::Sandwich | Self::Post)
    }
}
