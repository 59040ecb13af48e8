//! The table of parameters.

use ms_core::{Axis, Partition, Region, Shape, Topology};
use serde::{Deserialize, Serialize};

use crate::{Error, ModelConfig, QkNorm, Result};

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
}

/// Ranks whose gradients of a parameter that each holds in full are only parts of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumGrad {
    /// None: every rank has the whole gradient, or its own piece of it.
    No,
    /// Along tensor parallel, always: each rank saw its own heads.
    OverTp,
    /// Along tensor parallel, under sequence parallelism: each rank saw its own tokens.
    OverTpWithSequenceParallel,
}

/// One parameter of the whole model, before any cut.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Megatron-core's name, with layers counted over the whole model.
    pub name: String,
    /// Global shape; linear weights are `[out, in]`.
    pub shape: Shape,
    /// How tensor-parallel ranks share it.
    pub partition: Partition,
    /// Part of the model.
    pub place: Place,
    /// Initial value.
    pub init: Init,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Whether gradients of equal copies must be summed.
    pub sum_grad_over: SumGrad,
}

/// Every parameter of a model, in Megatron-core's order.
///
/// `linear_qkv` is packed by group: for each key/value head its query heads, its key, its value, `D` rows each.
/// `linear_fc1` is `[gate; up]`. A tied output layer is not listed.
///
/// # Source
/// Order and initial values: Megatron-LM `core_r0.8.0`, `megatron/core/transformer`: normal with `init_std`,
/// output projections with `init_std / sqrt(2 L)`; norms 1; biases 0. No decay for biases and 1-D parameters.
pub fn params(config: &ModelConfig) -> Vec<ParamSpec> {
    let c = config;
    let (h, f, d) = (c.hidden, c.ffn, c.head_dim);
    let std = Init::Normal { std: c.init_std };
    let out_std = Init::Normal { std: c.init_std / (2.0 * c.layers as f64).sqrt() };
    let rows = |blocks| Partition::Split { axis: Axis::Tp, dim: 0, blocks };
    let columns = Partition::Split { axis: Axis::Tp, dim: 1, blocks: 1 };
    let matrix = |name: String, shape: [usize; 2], partition, place, init| ParamSpec {
        name,
        shape: shape.into(),
        partition,
        place,
        init,
        decay: true,
        sum_grad_over: SumGrad::No,
    };
    let vector = |name: String, size: usize, partition, place, init, sum_grad_over| ParamSpec {
        name,
        shape: [size].into(),
        partition,
        place,
        init,
        decay: false,
        sum_grad_over,
    };
    let norm =
        |name: String, size, place, sum| vector(name, size, Partition::Replicated, place, Init::Ones, sum);

    let mut all = vec![matrix(
        "embedding.word_embeddings.weight".into(),
        [c.padded_vocab, h],
        rows(1),
        Place::Embedding,
        std,
    )];
    for layer in 0..c.layers {
        let at = Place::Layer(layer);
        let name = |rest: &str| format!("decoder.layers.{layer}.{rest}");
        let by_sequence = SumGrad::OverTpWithSequenceParallel;
        all.push(norm(name("input_layernorm.weight"), h, at, by_sequence));
        all.push(matrix(name("self_attention.linear_proj.weight"), [h, c.heads * d], columns, at, out_std));
        if c.bias.out {
            let bias = name("self_attention.linear_proj.bias");
            all.push(vector(bias, h, Partition::Replicated, at, Init::Zeros, by_sequence));
        }
        all.push(matrix(name("self_attention.linear_qkv.weight"), [c.qkv_rows(), h], rows(1), at, std));
        if c.bias.qkv {
            let bias = name("self_attention.linear_qkv.bias");
            all.push(vector(bias, c.qkv_rows(), rows(1), at, Init::Zeros, SumGrad::No));
        }
        if c.qk_norm == QkNorm::PerHead {
            all.push(norm(name("self_attention.q_layernorm.weight"), d, at, SumGrad::OverTp));
            all.push(norm(name("self_attention.k_layernorm.weight"), d, at, SumGrad::OverTp));
        }
        all.push(norm(name("pre_mlp_layernorm.weight"), h, at, by_sequence));
        all.push(matrix(name("mlp.linear_fc1.weight"), [2 * f, h], rows(2), at, std));
        if c.bias.mlp {
            all.push(vector(name("mlp.linear_fc1.bias"), 2 * f, rows(2), at, Init::Zeros, SumGrad::No));
        }
        all.push(matrix(name("mlp.linear_fc2.weight"), [h, f], columns, at, out_std));
        if c.bias.mlp {
            let bias = name("mlp.linear_fc2.bias");
            all.push(vector(bias, h, Partition::Replicated, at, Init::Zeros, by_sequence));
        }
    }
    let by_sequence = SumGrad::OverTpWithSequenceParallel;
    all.push(norm("decoder.final_layernorm.weight".into(), h, Place::Head, by_sequence));
    if !c.tied {
        all.push(matrix("output_layer.weight".into(), [c.padded_vocab, h], rows(1), Place::Head, std));
    }
    all
}

/// Checks that a model can be cut by `tp` ranks: heads stay whole and everything divides.
///
/// # Errors
/// [`Error::Cut`] naming what does not divide.
pub fn check_cut(config: &ModelConfig, tp: usize) -> Result<()> {
    let sizes = [
        ("key/value heads", config.groups),
        ("ffn size", config.ffn),
        ("padded vocabulary", config.padded_vocab),
    ];
    for (what, size) in sizes {
        if tp == 0 || size % tp != 0 {
            return Err(Error::Cut { what, size, axis: Axis::Tp, ranks: tp });
        }
    }
    Ok(())
}

/// The piece of a parameter that `rank` of a grid holds, by its tensor-parallel cut.
///
/// Stages are not looked at: which layers a rank has is a question of placement.
///
/// # Errors
/// As [`Partition::region`].
pub fn local(spec: &ParamSpec, topology: &Topology, rank: usize) -> Result<Region> {
    let axis = spec.partition.axis().unwrap_or(Axis::Tp);
    let (coord, size) = (topology.coord(rank, axis), topology.size(axis));
    Ok(spec.partition.region(&spec.name, &spec.shape, coord, size)?)
}
