//! The decoder: embedding, layers, final norm, output layer.

use crate::layer::{self, LayerCache, LayerIds, LayerShape};
use crate::{Batch, Error, KvCache, Result};
use ms_core::ops::{self, LossVar};
use ms_core::{
    AttentionOptions, DType, Device, Graph, HeadLayout, Norm, ParamId, ParamStore, Rotary, Tensor, Var,
};
use ms_dist::ParallelCtx;
use ms_spec::{ModelConfig, ParamSpec, QkNorm};
use std::collections::HashMap;
use std::sync::Arc;

/// Which layers keep only their input and run again in the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// None: everything a backward needs is kept.
    #[default]
    None,
    /// The first `n` layers, each by itself (`--recompute-method block`).
    Block(usize),
    /// All layers, in groups of `n` of which only the input is kept (`--recompute-method uniform`).
    Uniform(usize),
}

/// The structure of a decoder. Holds parameter ids and rotary tables, no weights.
pub struct Gpt {
    config: ModelConfig,
    specs: Vec<ParamSpec>,
    embedding: ParamId,
    layers: Vec<Arc<LayerIds>>,
    shape: Arc<LayerShape>,
    final_norm: ParamId,
    output: ParamId,
    recompute: Recompute,
}

impl Gpt {
    /// The decoder that `config` describes, with rotary tables for `max_position` positions on `device`.
    ///
    /// Parameter `i` of a store for this model is entry `i` of [`Gpt::specs`].
    ///
    /// # Errors
    /// If the configuration is not sound or asks for something this version cannot compute.
    pub fn new(config: &ModelConfig, device: &Device, tp: usize, max_position: usize) -> Result<Self> {
        if let Some(part) = config.beyond_plain() {
            return Err(Error::Unsupported { family: config.family, part });
        }
        ms_spec::check_cut(config, tp)?;
        let specs = ms_spec::params(config);
        let by_name: HashMap<&str, ParamId> =
            specs.iter().enumerate().map(|(i, s)| (s.name.as_str(), ParamId(i as u32))).collect();
        let id =
            |name: &str| *by_name.get(name).expect("the parameter table holds every weight of the model");
        let layer = |l: usize| {
            let of = |part: &str| id(&format!("decoder.layers.{l}.{part}"));
            let bias = |on: bool, part: &str| on.then(|| of(part));
            let qk = || (of("self_attention.q_layernorm.weight"), of("self_attention.k_layernorm.weight"));
            Arc::new(LayerIds {
                input_norm: of("input_layernorm.weight"),
                qkv: of("self_attention.linear_qkv.weight"),
                qkv_bias: bias(config.bias.qkv, "self_attention.linear_qkv.bias"),
                qk_norm: (config.qk_norm == QkNorm::PerHead).then(qk),
                proj: of("self_attention.linear_proj.weight"),
                proj_bias: bias(config.bias.out, "self_attention.linear_proj.bias"),
                mlp_norm: of("pre_mlp_layernorm.weight"),
                fc1: of("mlp.linear_fc1.weight"),
                fc1_bias: bias(config.bias.mlp, "mlp.linear_fc1.bias"),
                fc2: of("mlp.linear_fc2.weight"),
                fc2_bias: bias(config.bias.mlp, "mlp.linear_fc2.bias"),
            })
        };
        let embedding = id("embedding.word_embeddings.weight");
        let shape = LayerShape {
            heads: HeadLayout {
                groups: config.groups / tp,
                heads_per_group: config.heads / config.groups,
                head_dim: config.head_dim,
            },
            norm: Norm { eps: config.norm_eps as f32, unit_offset: false },
            rotary: rotary_tables(config, device, max_position)?,
            attention: AttentionOptions {
                scale: (config.head_dim as f64).powf(-0.5) as f32,
                window: config.sliding_window,
                softcap: None,
                alibi: None,
            },
        };
        Ok(Self {
            embedding,
            layers: (0..config.layers).map(layer).collect(),
            shape: Arc::new(shape),
            final_norm: id("decoder.final_layernorm.weight"),
            output: if config.tied { embedding } else { id("output_layer.weight") },
            recompute: Recompute::None,
            config: config.clone(),
            specs,
        })
    }

    /// The same model with another choice of what is kept for the backward pass.
    pub fn with_recompute(self, recompute: Recompute) -> Self {
        Self { recompute, ..self }
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The parameter table; entry `i` is parameter `i`.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// The heads this rank holds.
    pub fn heads(&self) -> HeadLayout {
        self.shape.heads
    }

    /// Positions the rotary tables cover.
    pub fn max_position(&self) -> usize {
        self.shape.rotary.cos.dim(0)
    }

    fn check(&self, batch: &Batch) -> Result<()> {
        let max = self.max_position();
        if batch.max_position > max {
            return Err(Error::Position { position: batch.max_position - 1, max });
        }
        Ok(())
    }

    /// Hidden states `[T,H]` after the final norm.
    ///
    /// # Errors
    /// If a token or position is outside the model, or a rank fails.
    pub fn forward(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        ctx: &ParallelCtx,
        batch: &Batch,
    ) -> Result<Var> {
        self.check(batch)?;
        let table = g.param(store, self.embedding);
        let mut x = ops::embedding(g, &table, &batch.tokens)?;
        let group = match self.recompute {
            Recompute::None => 0,
            Recompute::Block(_) => 1,
            Recompute::Uniform(n) => n.max(1),
        };
        let recomputed = match self.recompute {
            Recompute::None => 0,
            Recompute::Block(n) => n.min(self.layers.len()),
            Recompute::Uniform(_) => self.layers.len(),
        };
        for layers in self.layers[..recomputed].chunks(group.max(1)) {
            let (layers, shape, store, ctx) =
                (layers.to_vec(), self.shape.clone(), store.clone(), ctx.clone());
            let batch = batch.clone();
            x = ops::recompute(
                g,
                &x,
                Arc::new(move |g, x| {
                    layers.iter().try_fold(x.clone(), |x, ids| {
                        layer::forward(g, &store, &ctx, (ids, &shape), &batch, None, &x)
                    })
                }),
            )?;
        }
        for ids in &self.layers[recomputed..] {
            x = layer::forward(g, store, ctx, (ids, &self.shape), batch, None, &x)?;
        }
        self.final_norm(g, store, &x)
    }

    fn final_norm(&self, g: &mut Graph, store: &ParamStore, x: &Var) -> Result<Var> {
        let w = g.param(store, self.final_norm);
        Ok(ops::rms_norm(g, x, &w, self.shape.norm)?)
    }

    /// Cross entropy of the output layer on `hidden[T,H]`: see [`ops::linear_cross_entropy`].
    ///
    /// # Errors
    /// If shapes or targets do not fit.
    pub fn loss(
        &self,
        g: &mut Graph,
        store: &ParamStore,
        hidden: &Var,
        targets: &Tensor,
        weights: &Tensor,
    ) -> Result<LossVar> {
        let w = g.param(store, self.output);
        Ok(ops::linear_cross_entropy(g, hidden, &ops::Head::plain(&w), targets, weights)?)
    }

    /// Logits `[T,V]` (padded vocabulary) of `hidden[T,H]`.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn logits(&self, device: &Device, store: &ParamStore, hidden: &Tensor) -> Result<Tensor> {
        Ok(device.linear(hidden, &store.get(self.output), None)?)
    }

    /// An empty cache for `slots` sequences of up to `capacity` tokens.
    pub fn cache(&self, device: &Device, dtype: DType, slots: usize, capacity: usize) -> KvCache {
        KvCache::new(device, dtype, self.layers.len(), self.shape.heads, slots, capacity)
    }

    /// Appends tokens to slots of the cache and returns the hidden states `[T,H]` of the new tokens, slot after
    /// slot in the order given. Prefill (many tokens) and decode (one) are the same call.
    ///
    /// # Errors
    /// If a sequence does not fit into its slot, or a token or position is outside the model.
    pub fn extend(
        &self,
        device: &Device,
        store: &ParamStore,
        ctx: &ParallelCtx,
        cache: &mut KvCache,
        new: &[(usize, &[i32])],
    ) -> Result<Tensor> {
        let before: Vec<usize> = new.iter().map(|&(slot, _)| cache.len(slot)).collect();
        let (batch, places) = cache.extend(device, new)?;
        let result = self.extend_layers(device, store, ctx, cache, &batch, &places);
        if result.is_err() {
            for (&(slot, _), len) in new.iter().zip(before) {
                cache.truncate(slot, len);
            }
        }
        result
    }

    fn extend_layers(
        &self,
        device: &Device,
        store: &ParamStore,
        ctx: &ParallelCtx,
        cache: &mut KvCache,
        batch: &Batch,
        places: &[usize],
    ) -> Result<Tensor> {
        self.check(batch)?;
        let mut g = Graph::inference(device);
        let table = g.param(store, self.embedding);
        let mut x = ops::embedding(&mut g, &table, &batch.tokens)?;
        let kept = cache.keys.iter_mut().zip(&mut cache.values);
        for (ids, (keys, values)) in self.layers.iter().zip(kept) {
            let cache = LayerCache { keys, values, places };
            x = layer::forward(&mut g, store, ctx, (ids, &self.shape), batch, Some(cache), &x)?;
        }
        Ok(self.final_norm(&mut g, store, &x)?.value().clone())
    }
}

/// Cosines and sines `[max_position, R/2]` f32. Angles are formed in f32, as `transformers` does.
fn rotary_tables(config: &ModelConfig, device: &Device, max_position: usize) -> Result<Rotary> {
    let frequencies = config.frequencies(max_position);
    let pairs = frequencies.inv_freq.len();
    let table = |value: fn(f64) -> f64| {
        let mut values = Vec::with_capacity(max_position * pairs);
        for p in 0..max_position {
            let angles = frequencies.inv_freq.iter().map(|&f| p as f32 * f as f32);
            values.extend(angles.map(|a| (value(f64::from(a)) * frequencies.magnitude) as f32));
        }
        Tensor::from_slice(device.arena(), [max_position, pairs], &values)
    };
    Ok(Rotary {
        cos: table(f64::cos)?,
        sin: table(f64::sin)?,
        dim: 2 * pairs,
        interleaved: config.rope.interleaved,
    })
}
