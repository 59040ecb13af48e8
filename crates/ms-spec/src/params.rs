//! The table of parameters.

mod attention;
mod build;
mod feed;
mod mixer;

use ms_core::{Axis, Grid, Partition, Region, Shape};
use serde::{Deserialize, Serialize};

use crate::parts::{Block, Feed, Mixer, Position};
use crate::{ModelConfig, Norm, Result};
use build::Table;

/// Which part of the model a parameter belongs to; decides its pipeline stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Before the first layer.
    Embedding,
    /// In this layer, counted over the whole model.
    Layer(usize),
    /// After the last layer.
    Head,
    /// In this multi-token prediction layer, after the head.
    Mtp(usize),
}

/// Initial value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
    /// Uniform between `-bound` and `bound`.
    Uniform {
        /// The bound.
        bound: f64,
    },
    /// The logarithm of a uniform number.
    LogOfUniform {
        /// Smallest number.
        low: f64,
        /// Largest number.
        high: f64,
    },
    /// Element `(r, c)` of a matrix is `(r + c) % of`.
    RoundRobin {
        /// How many numbers there are.
        of: usize,
    },
    /// The inverse softplus of a number whose logarithm is uniform: the `dt` of a state-space layer.
    InverseSoftplus {
        /// Smallest number.
        low: f64,
        /// Largest number.
        high: f64,
    },
}

/// Ranks whose gradients of a parameter that each holds in full are only parts of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumGrad {
    /// None: every rank has the whole gradient, or its own piece of it.
    No,
    /// Along tensor parallel, always: each rank saw its own heads, or its own part of every expert. Of a weight of experts,
    /// along the ranks that share an expert.
    OverTp,
    /// Along tensor parallel, under sequence parallelism: each rank saw its own tokens.
    OverTpWithSequenceParallel,
}

/// One parameter of the whole model, before any cut.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Megatron-core's name, with layers counted over the whole model.
    pub name: String,
    /// Global shape; linear weights are `[out, in]`, those of experts `[E, out, in]`.
    pub shape: Shape,
    /// How ranks share it.
    pub partition: Partition,
    /// Part of the model.
    pub place: Place,
    /// Initial value.
    pub init: Init,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Whether gradients of equal copies must be summed.
    pub sum_grad_over: SumGrad,
    /// Whether a gradient changes it. The bias of a router is not trained: a rule updates it, and it stays float32.
    pub trained: bool,
    /// Whether it holds whole numbers, such as the table that says which experts a token goes to. Files hold them as
    /// integers; a program holds them as float32, whatever the type of the others.
    pub integral: bool,
}

/// Every parameter of a model, in Megatron-core's order.
///
/// - `linear_qkv` is packed by group: for each key/value head its query heads, its key, its value, `D` rows each. With
///   an output gate there are `q_proj` (per head: query, gate), `k_proj` and `v_proj` instead.
/// - Latent attention: `linear_qkv` is `[q_a; kv_a]` (`[q; kv_a]` without a query latent), then `q_layernorm`,
///   `kv_layernorm`, `linear_q_up_proj` (per head `[nope, rope]`), `linear_kv_up_proj` (per head `[key nope, value]`).
/// - `linear_fc1` is `[gate; up]` where there is a gate.
/// - Experts are stacked: `mlp.experts.linear_fc1.weight` is `[E, 2 Fe, H]`, `linear_fc2` `[E, H, Fe]`.
/// - Attention to pooled entries: `linear_q`, `q_layernorm`, `linear_q_up_proj`, `linear_kv`, `kv_layernorm`, `attn_sink`,
///   `linear_o_down_proj` (block by block), `linear_o_up_proj`; `compressor` and `indexer` where the layer has entries.
/// - Hyper-connections: `attn_mhc` and `mlp_mhc` of each layer, `hc_head` behind the last.
/// - Multi-token prediction layer `k`: `mtp.layers.k.{enorm,hnorm,eh_proj}`, `mtp.layers.k.transformer_layer.*`,
///   `mtp.final_layernorms.k`.
/// - A tied output layer is not listed. A reward model has `rm_head` (`[1, H]` and a bias) behind it.
///
/// # Source
/// Order and initial values: Megatron-LM `core_r0.8.0`, `megatron/core/transformer`: normal with `init_std`,
/// output projections with `init_std / sqrt(2 L)`; norms 1; biases 0. No decay for biases and 1-D parameters.
/// Names of what that version does not have: MindSpeed-LLM (2026), `mindspeed_llm/tasks/checkpoint`.
pub fn params(config: &ModelConfig) -> Vec<ParamSpec> {
    let c = config;
    let mut t = Table::new(c);
    t.at(Place::Embedding, "");
    t.matrix("embedding.word_embeddings.weight", [c.padded_vocab, c.hidden], Table::rows(1), t.std());
    if c.position == Position::Learned {
        let shape = [c.max_positions, c.hidden];
        t.matrix("embedding.position_embeddings.weight", shape, Partition::Replicated, t.std());
    }
    if c.embedding_norm {
        t.norm_of(
            Norm::LayerNorm,
            "embedding.word_embeddings.norm",
            c.hidden,
            SumGrad::OverTpWithSequenceParallel,
        );
    }
    for layer in 0..c.layers {
        t.at(Place::Layer(layer), &format!("decoder.layers.{layer}."));
        layer_params(&mut t, c, layer);
    }
    t.at(Place::Head, "");
    hyper_params(&mut t, c, "hc_head", true);
    let last = if c.mamba2.is_some() { "decoder.final_norm" } else { "decoder.final_layernorm" };
    t.norm(last, c.hidden);
    if !c.tied {
        t.matrix("output_layer.weight", [c.padded_vocab, c.hidden], Table::rows(1), t.std());
        t.list.last_mut().expect("just pushed").trained = !c.reward;
    }
    if c.bias.head {
        t.vector("output_layer.bias", c.padded_vocab, Table::rows(1), Init::Zeros, SumGrad::No);
    }
    if c.reward {
        t.matrix("rm_head.weight", [1, c.hidden], Table::columns(), t.std());
        t.whole_bias("rm_head.bias", 1);
    }
    for k in 0..c.mtp {
        t.at(Place::Mtp(k), &format!("mtp.layers.{k}."));
        t.norm("enorm", c.hidden);
        t.norm("hnorm", c.hidden);
        t.matrix("eh_proj.weight", [c.hidden, 2 * c.hidden], Table::rows(1), t.std());
        t.at(Place::Mtp(k), &format!("mtp.layers.{k}.transformer_layer."));
        layer_params(&mut t, c, c.layers + k);
        t.at(Place::Mtp(k), &format!("mtp.layers.{k}."));
        hyper_params(&mut t, c, "hc_head", true);
        t.at(Place::Mtp(k), "");
        t.norm(&format!("mtp.final_layernorms.{k}"), c.hidden);
    }
    t.list
}

fn layer_params(t: &mut Table<'_>, c: &ModelConfig, index: usize) {
    if c.block == Block::Shortcut {
        for half in 0..2 {
            t.norm(&format!("input_layernorm_{half}"), c.hidden);
            attention::params(t, c, index, &format!("self_attention_{half}"));
            t.norm(&format!("pre_mlp_layernorm_{half}"), c.hidden);
            feed::dense(t, c, &format!("mlps_{half}"), c.ffn);
        }
        feed::experts(t, c, false);
        return;
    }
    hyper_params(t, c, "attn_mhc", false);
    hyper_params(t, c, "mlp_mhc", false);
    let layer = c.layer(index);
    match layer.mixer {
        Mixer::Mamba2 => mixer::mamba2(t, c),
        Mixer::Mamba3 => mixer::mamba3(t, c),
        Mixer::None => {}
        Mixer::Attention | Mixer::SharedKv | Mixer::GatedDelta => {
            if c.block.norms_inputs() {
                t.norm("input_layernorm", c.hidden);
            }
            match layer.mixer {
                Mixer::GatedDelta => mixer::gated_delta(t, c),
                Mixer::SharedKv => attention::query_only(t, c),
                _ => attention::params(t, c, index, "self_attention"),
            }
            if c.block.norms_outputs() {
                t.norm("post_attn_norm", c.hidden);
            }
        }
    }
    if layer.feed == Feed::None {
        return;
    }
    if c.block.norms_inputs() {
        t.norm("pre_mlp_layernorm", c.hidden);
    }
    match layer.feed {
        Feed::Moe => feed::experts(t, c, layer.hashed),
        _ => feed::dense(t, c, "mlp", c.ffn),
    }
    if c.block.norms_outputs() {
        t.norm("post_mlp_layernorm", c.hidden);
    }
}

/// What weighs the streams of hyper-connections before and behind a sublayer, or at their `end`.
fn hyper_params(t: &mut Table<'_>, c: &ModelConfig, module: &str, end: bool) {
    let Some(h) = &c.hyper else { return };
    let (n, by_sequence) = (h.streams, SumGrad::OverTpWithSequenceParallel);
    let (rows, scales) = if end { (n, 1) } else { ((2 + n) * n, 3) };
    let whole = Partition::Replicated;
    t.vector(&format!("{module}.hc_base"), rows, whole, Init::Zeros, by_sequence);
    t.push(&format!("{module}.hc_fn.weight"), &[rows, n * c.hidden], whole, t.std(), by_sequence);
    t.vector(&format!("{module}.hc_scale"), scales, whole, Init::Ones, by_sequence);
}

/// The piece of a parameter that `rank` of a grid holds, by its tensor- and expert-parallel cut.
///
/// Stages are not looked at: which layers a rank has is a question of [`crate::Placement`].
///
/// # Errors
/// As [`Partition::region_on`].
pub fn local(spec: &ParamSpec, grid: &Grid, rank: usize) -> Result<Region> {
    let topology = if spec.of_experts() { grid.expert() } else { grid.dense() };
    let position = |axis| (topology.coord(rank, axis), topology.size(axis));
    Ok(spec.partition.region_on(&spec.name, &spec.shape, position)?)
}

impl ParamSpec {
    /// Whether it is the word embedding's table or the output layer's, which can have a learning rate of their own.
    pub fn is_word_table(&self) -> bool {
        matches!(self.name.as_str(), crate::placement::EMBEDDING | "output_layer.weight")
    }

    /// Whether experts share it out: the expert topology says who holds what and whose gradients are summed.
    pub fn of_experts(&self) -> bool {
        matches!(self.partition, Partition::Experts { .. } | Partition::Split { axis: Axis::Ep, .. })
    }
}
