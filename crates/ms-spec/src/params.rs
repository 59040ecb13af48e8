//! The parameter table.

use crate::ModelConfig;
use ms_core::{Axis, Partition, Region, Result, Shape, Topology};

/// Everything that is known of a weight before it has a value.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Canonical name: Megatron-core's, layers counted over the whole model.
    pub name: String,
    /// Global shape; linear weights are `[out, in]`.
    pub shape: Shape,
    /// How tensor-parallel ranks share it.
    pub partition: Partition,
    /// Where in the model it is used.
    pub place: Place,
    /// Its initial distribution.
    pub init: Init,
    /// Whether weight decay applies: not to one-dimensional weights and biases.
    pub decay: bool,
    /// Every tensor-parallel rank holds all of it but sees only its part of the heads, so gradients are summed.
    pub sum_grad_over_tp: bool,
}

/// Where in the model a weight is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before the first layer.
    Embedding,
    /// In this layer, counted from 0 over the whole model.
    Layer(usize),
    /// After the last layer.
    Head,
}

/// Distribution of initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with mean 0 and this deviation.
    Normal(f64),
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
}

impl ParamSpec {
    /// The part that `rank` of `topo` holds.
    ///
    /// # Errors
    /// If a dimension does not divide among the ranks.
    pub fn local(&self, rank: usize, topo: &Topology) -> Result<Region> {
        let axis = self.partition.axis().unwrap_or(Axis::Tp);
        self.partition.region(&self.name, &self.shape, topo.coord(rank, axis), topo.size(axis))
    }
}

/// Every weight of a model, in the order in which Megatron registers them.
///
/// # Source
/// Names and order: Megatron-LM core_r0.8.0, `megatron/core/models/gpt`. Initial deviations:
/// `megatron/training/arguments.py` and `megatron/core/utils.py`: `std` for all matrices, `std / sqrt(2 L)` for the
/// two that write to the residual stream.
pub fn params(cfg: &ModelConfig) -> Vec<ParamSpec> {
    let (h, f, d) = (cfg.hidden, cfg.ffn, cfg.head_dim);
    let std = Init::Normal(cfg.init_std);
    let residual_std = Init::Normal(cfg.init_std / (2.0 * cfg.layers as f64).sqrt());
    let norm = match cfg.norm {
        crate::NormKind::Rms => Init::Ones,
        crate::NormKind::RmsUnitOffset => Init::Zeros,
    };
    let rows = Partition::Split { axis: Axis::Tp, dim: 0, blocks: 1 };
    let cols = Partition::Split { axis: Axis::Tp, dim: 1, blocks: 1 };
    let gated =
        Partition::Split { axis: Axis::Tp, dim: 0, blocks: if cfg.activation.is_gated() { 2 } else { 1 } };
    let fc1 = if cfg.activation.is_gated() { 2 * f } else { f };
    let packed = (cfg.heads + 2 * cfg.groups) * d;

    let mut table = Vec::new();
    let mut add = |place: Place, name: String, shape: &[usize], partition: Partition, init: Init| {
        table.push(ParamSpec {
            sum_grad_over_tp: name.ends_with("q_layernorm.weight") || name.ends_with("k_layernorm.weight"),
            decay: shape.len() > 1,
            name,
            shape: Shape::new(shape),
            partition,
            place,
            init,
        });
    };
    let whole = Partition::Replicated;
    add(Place::Embedding, "embedding.word_embeddings.weight".into(), &[cfg.padded_vocab, h], rows, std);
    for l in 0..cfg.layers {
        let place = Place::Layer(l);
        let name = |part: &str| format!("decoder.layers.{l}.{part}");
        add(place, name("input_layernorm.weight"), &[h], whole, norm);
        add(place, name("self_attention.linear_proj.weight"), &[h, cfg.heads * d], cols, residual_std);
        if cfg.bias.out {
            add(place, name("self_attention.linear_proj.bias"), &[h], whole, Init::Zeros);
        }
        add(place, name("self_attention.linear_qkv.weight"), &[packed, h], rows, std);
        if cfg.bias.qkv {
            add(place, name("self_attention.linear_qkv.bias"), &[packed], rows, Init::Zeros);
        }
        if cfg.qk_norm {
            add(place, name("self_attention.q_layernorm.weight"), &[d], whole, norm);
            add(place, name("self_attention.k_layernorm.weight"), &[d], whole, norm);
        }
        add(place, name("pre_mlp_layernorm.weight"), &[h], whole, norm);
        add(place, name("mlp.linear_fc1.weight"), &[fc1, h], gated, std);
        if cfg.bias.mlp {
            add(place, name("mlp.linear_fc1.bias"), &[fc1], gated, Init::Zeros);
        }
        add(place, name("mlp.linear_fc2.weight"), &[h, f], cols, residual_std);
        if cfg.bias.mlp {
            add(place, name("mlp.linear_fc2.bias"), &[h], whole, Init::Zeros);
        }
    }
    add(Place::Head, "decoder.final_layernorm.weight".into(), &[h], whole, norm);
    if !cfg.tied {
        add(Place::Head, "output_layer.weight".into(), &[cfg.padded_vocab, h], rows, std);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, Biases, NormKind, Rope, RopeScaling};

    fn config() -> ModelConfig {
        ModelConfig {
            family: "qwen3".into(),
            layers: 2,
            hidden: 8,
            vocab: 10,
            padded_vocab: 12,
            heads: 4,
            groups: 2,
            head_dim: 4,
            ffn: 6,
            activation: Activation::Swiglu,
            norm: NormKind::Rms,
            norm_eps: 1e-6,
            bias: Biases::default(),
            qk_norm: true,
            rope: Rope { base: 1e4, fraction: 1.0, interleaved: false, scaling: RopeScaling::None },
            window: None,
            attention_scale: None,
            tied: true,
            max_position: 32,
            init_std: 0.02,
        }
    }

    #[test]
    fn the_table_of_a_small_model_is_complete() {
        let cfg = config();
        let table = params(&cfg);
        assert_eq!(table.len(), 1 + 2 * 8 + 1);
        let total: usize = table.iter().map(|p| p.shape.numel()).sum();
        let layer = 8 + 8 * 16 + 32 * 8 + 4 + 4 + 8 + 12 * 8 + 8 * 6;
        assert_eq!(total, 12 * 8 + 2 * layer + 8);
        let untied = params(&ModelConfig { tied: false, ..cfg });
        assert_eq!(untied.last().unwrap().name, "output_layer.weight");
        assert!(untied.iter().all(|p| p.decay == (p.shape.len() == 2)));
    }

    #[test]
    fn tensor_parallel_parts_make_the_whole() {
        let topo = Topology::new(&[(Axis::Tp, 2)]).unwrap();
        for p in params(&config()) {
            let parts: usize = (0..2).map(|r| p.local(r, &topo).unwrap().local_shape().numel()).sum();
            let copies = if p.partition == Partition::Replicated { 2 } else { 1 };
            assert_eq!(parts, copies * p.shape.numel(), "{}", p.name);
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        let e = ModelConfig { groups: 3, ..config() }.validate(1).unwrap_err().to_string();
        assert!(e.contains("num_query_groups") && e.contains('4') && e.contains('3'), "{e}");
        assert!(config().validate(2).is_ok() && config().validate(4).is_err());
    }
}
