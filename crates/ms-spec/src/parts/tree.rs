//! A model as a tree of parts, and the parameter table as a walk over it.

use crate::description::Site;
use crate::params::{ParamSpec, Table};
use crate::parts::{self, dense, ends, experts, grouped, prediction};
use crate::sizes::{Block, Feed, Mixer};
use crate::{ModelConfig, Part, Place, Role};

/// Every parameter of a model, in Megatron-core's order.
///
/// - `linear_qkv` is packed by group: for each key/value head its query heads, its key, its value, `D` rows each. With an
///   output gate there are `q_proj` (per head: query, gate), `k_proj` and `v_proj` instead.
/// - Latent attention: `linear_qkv` is `[q_a; kv_a]` (`[q; kv_a]` without a query latent), then `q_layernorm`,
///   `kv_layernorm`, `linear_q_up_proj` (per head `[nope, rope]`), `linear_kv_up_proj` (per head `[key nope, value]`).
/// - `linear_fc1` is `[gate; up]` where there is a gate.
/// - Experts are stacked: `mlp.experts.linear_fc1.weight` is `[E, 2 Fe, H]`, `linear_fc2` `[E, H, Fe]`.
/// - Attention to pooled entries: `linear_q`, `q_layernorm`, `linear_q_up_proj`, `linear_kv`, `kv_layernorm`, `attn_sink`,
///   `linear_o_down_proj` (block by block), `linear_o_up_proj`; `compressor` and `indexer` where the layer has entries.
/// - Hyper-connections: `attn_mhc` and `mlp_mhc` of each layer, `hc_head` after the last.
/// - Multi-token prediction layer `k`: `mtp.layers.k.{enorm,hnorm,eh_proj}`, `mtp.layers.k.transformer_layer.*`,
///   `mtp.final_layernorms.k`.
/// - A tied output layer is not listed. A reward model has `rm_head` (`[1, H]` and a bias) after it.
///
/// # Source
/// Order and initial values: Megatron-LM `core_r0.8.0`, `megatron/core/transformer`: normal with `init_std`, output
/// projections with `init_std / sqrt(2 L)`; norms 1; biases 0. No decay for biases and 1-D parameters. Names of what that
/// version does not have: MindSpeed-LLM (2026), `mindspeed_llm/tasks/checkpoint`.
pub fn params(config: &ModelConfig) -> Vec<ParamSpec> {
    let c = config;
    let mut t = Table::new(c);
    ends::embedding(&mut t, c);
    for layer in 0..c.layers {
        t.at(Place::Layer(layer), Part::Layer);
        layer_params(&mut t, c, layer);
    }
    ends::head(&mut t, c);
    for k in 0..c.mtp {
        prediction::before(&mut t, c, k);
        layer_params(&mut t, c, c.layers + k);
        prediction::behind(&mut t, c, k);
    }
    t.list
}

/// Parameters of the whole model, without the biases that follow the load of experts, which are no parameters of upstream's
/// modules.
pub fn parameters(config: &ModelConfig) -> u64 {
    let trained = params(config).into_iter().filter(|spec| spec.updated_by != ms_core::UpdatedBy::ExpertLoad);
    trained.map(|spec| spec.shape.numel() as u64).sum()
}

fn layer_params(t: &mut Table<'_>, c: &ModelConfig, index: usize) {
    if c.block == Block::Shortcut {
        for half in 0..2 {
            t.half(Some(half));
            layer_norm(t, c, Role::InputLayernorm);
            c.attention.kind().params(t, c, index);
            layer_norm(t, c, Role::PreMlpLayernorm);
            dense::params(t, c, Part::Dense, c.ffn);
        }
        t.half(None);
        experts::params(t, c, false);
        return;
    }
    parts::params_around(t, c, Site::Mixer);
    parts::params_around(t, c, Site::Network);
    let layer = c.layer(index);
    let norm = layer.mixer.norm();
    if let Some(role) = norm.filter(|_| c.block.norms_inputs()) {
        layer_norm(t, c, role);
    }
    match layer.mixer {
        Mixer::None => {}
        Mixer::Attention => c.attention.kind().params(t, c, index),
        Mixer::SharedKv => grouped::query_only(t, c),
        other => c.recurrent(other).expect("the others have a state").params(t, c),
    }
    if norm.is_some() && c.block.norms_outputs() {
        layer_norm(t, c, Role::PostAttnNorm);
    }
    if layer.feed == Feed::None {
        return;
    }
    if c.block.norms_inputs() {
        layer_norm(t, c, Role::PreMlpLayernorm);
    }
    match layer.feed {
        Feed::Moe => experts::params(t, c, layer.hashed),
        _ => dense::params(t, c, Part::Dense, c.ffn),
    }
    if c.block.norms_outputs() {
        layer_norm(t, c, Role::PostMlpLayernorm);
    }
}

/// A norm of the stream, around what is in the layer.
fn layer_norm(t: &mut Table<'_>, c: &ModelConfig, role: Role) {
    t.of(Part::Layer);
    t.norm(role, c.hidden);
}
