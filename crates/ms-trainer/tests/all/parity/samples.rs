//! The sample models, and small ones with sparse attention.

use ms_spec::{
    Attention, Compressed, Feed, GatedDelta, Indexer, Layer, Mamba2, Mixer, Mla, ModelConfig, Moe, Pooled,
    QkNorm, Rope, Router, RouterDtype, Score, Scores, SharedExpert,
};
use ms_testing::{golden_model, golden_models};

/// Those that only Megatron's arguments describe.
const BY_ARGUMENTS: [&str; 3] = ["gpt4_moe", "grok", "hybrid"];

/// All sample models that there are here, by name, with positions for 64 tokens. None is passed over: one that cannot be read
/// fails the test.
pub(crate) fn samples() -> Vec<(String, ModelConfig)> {
    let mut names = golden_models();
    names.extend(BY_ARGUMENTS.map(str::to_owned));
    names.sort();
    let with_config = |name: String| {
        let c = config(&name);
        (name, c)
    };
    names.into_iter().map(with_config).collect()
}

fn config(name: &str) -> ModelConfig {
    let dir = golden_model(name).unwrap_or_else(|| panic!("{name}: no such sample"));
    let path = dir.join("config.json");
    let read = || {
        let text = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
        let json = ms_spec::hf::parse_json(&text).map_err(|e| e.to_string())?;
        ms_spec::hf::read_config(&json).map_err(|e| e.to_string())
    };
    let mut c = match BY_ARGUMENTS.contains(&name) {
        true => ms_ckpt::open(&dir).map(|checkpoint| checkpoint.config().clone()).map_err(|e| e.to_string()),
        false => read(),
    }
    .unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    c.max_positions = c.max_positions.max(64);
    c
}

/// Latent attention with heads of eight columns, two of which are rotated.
pub(crate) const MLA: Mla = Mla {
    q_rank: Some(16),
    kv_rank: 8,
    nope: 6,
    rope: 2,
    value: 8,
    q_scale: 1.0,
    kv_scale: 1.0,
    normed: true,
    norm_eps: None,
};

/// Four heads of a state-space model, two of which share a group.
pub(crate) const MAMBA2: Mamba2 = Mamba2 {
    heads: 4,
    head_dim: 8,
    groups: 2,
    state: 6,
    conv: 3,
    chunk: 8,
    bias: false,
    conv_bias: true,
    dt_limit: (0.0, None),
    dt_init: (0.001, 0.1),
    residual_f32: false,
    norm_eps: 1e-5,
};

/// Four layers of grouped attention.
pub(crate) fn dense() -> ModelConfig {
    ModelConfig { layers: 4, hidden: 32, ffn: 48, head_dim: 8, ..ModelConfig::tiny() }
}

/// The same with latent attention.
pub(crate) fn latent() -> ModelConfig {
    ModelConfig { attention: Attention::Latent(MLA), groups: 4, ..dense() }
}

/// Experts with a router of unrounded scores, and one that all tokens pass.
pub(crate) fn experts() -> ModelConfig {
    let router = Router { dtype: RouterDtype::F32, ..Router::plain(Score::SoftmaxOfChosen) };
    let shared = Some(SharedExpert { ffn: 16, gate: false, wide_gate: false });
    let moe = Moe { experts: 4, top_k: 2, ffn: 24, router, shared, zero_experts: 0 };
    let pattern = vec![Layer { feed: Feed::Moe, ..Layer::default() }; 4];
    ModelConfig { moe: Some(moe), pattern, qk_norm: QkNorm::PerHead, ..dense() }
}

/// Queries pick among more keys than they see.
pub(crate) fn picked() -> ModelConfig {
    let indexer = Indexer { heads: 2, head_dim: 8, top_k: 8, interleaved: false };
    ModelConfig { indexer: Some(indexer), ..latent() }
}

/// A window, and in addition pooled entries, picked or all.
pub(crate) fn pooled() -> ModelConfig {
    let rope = Rope { fraction: 0.5, interleaved: true, ..dense().rope };
    let layer = |picked, ratio| Layer { pooled: Some(Pooled { ratio, picked }), ..Layer::default() };
    ModelConfig {
        groups: 1,
        sliding_window: Some(6),
        rope: rope.clone(),
        scores: Scores { sinks: true, ..Scores::default() },
        attention: Attention::Compressed(Compressed { q_rank: 16, out_groups: 2, out_rank: 8, rope }),
        indexer: Some(Indexer { heads: 2, head_dim: 8, top_k: 3, interleaved: true }),
        pattern: vec![layer(true, 4), layer(false, 8), Layer::default(), layer(true, 2)],
        ..dense()
    }
}

/// Delta nets, with one layer of attention in two.
pub(crate) fn delta_nets() -> ModelConfig {
    let sizes = GatedDelta { key_heads: 2, value_heads: 4, key_dim: 8, value_dim: 6, conv: 3 };
    ModelConfig { gated_delta: Some(sizes), ..every_other(Mixer::GatedDelta) }
}

/// Mamba2, with one layer of attention in two.
pub(crate) fn states() -> ModelConfig {
    ModelConfig { mamba2: Some(MAMBA2), ..every_other(Mixer::Mamba2) }
}

fn every_other(mixer: Mixer) -> ModelConfig {
    let layer = |mixer| Layer { mixer, ..Layer::default() };
    let pattern = [mixer, Mixer::Attention, mixer, Mixer::Attention].map(layer).to_vec();
    ModelConfig { pattern, norm_eps: 1e-4, ..dense() }
}

/// Sinks, and a window in one layer of two.
pub(crate) fn sinks() -> ModelConfig {
    ModelConfig {
        scores: Scores { sinks: true, ..Scores::default() },
        sliding_window: Some(5),
        pattern: (0..4).map(|l| Layer { global: l % 2 == 1, ..Layer::default() }).collect(),
        ..dense()
    }
}
