//! The decoder with a KV cache: only new tokens are computed.

use super::Gpt;
use crate::batch::NoiseSite;
use crate::layer::Layer;
use crate::pass::Pass;
use crate::{Batch, KvCache, Result};
use ms_core::{DType, Device, Graph, ParamStore, Tensor};
use ms_dist::ParallelCtx;
use std::sync::Arc;

impl Gpt {
    /// The layers of all chunks.
    fn layers(&self) -> impl Iterator<Item = &Arc<Layer>> {
        self.chunks.iter().flat_map(|c| &c.layers)
    }

    /// An empty cache for `slots` sequences of up to `capacity` tokens.
    pub fn cache(&self, device: &Device, dtype: DType, slots: usize, capacity: usize) -> KvCache {
        let memories: Vec<_> = self.layers().map(|l| l.memory()).collect();
        KvCache::new(device, dtype, &memories, slots, capacity)
    }

    /// Bytes of [`Gpt::cache`], without making one.
    pub fn cache_bytes(&self, dtype: DType, slots: usize, capacity: usize) -> u64 {
        self.layers().map(|l| l.memory().bytes(dtype, slots, capacity)).fold(0, u64::saturating_add)
    }

    /// Appends tokens to slots of the cache and returns the hidden states `[T,H]` of the new tokens, slot after
    /// slot in the order given. Prefill (many tokens) and decode (one) are the same call. What a slot holds must have been
    /// appended while [`Gpt::is_short`] said the same of its sequence.
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
        let (batch, places) = cache.extend(device, new, |tokens| self.first_position(tokens))?;
        let slots: Vec<usize> = new.iter().map(|&(slot, _)| slot).collect();
        let result = self.extend_layers(device, store, ctx, cache, &batch, (&places, &slots));
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
        (places, slots): (&[usize], &[usize]),
    ) -> Result<Tensor> {
        self.check(batch)?;
        let mut g = Graph::inference(device);
        let mut pass = Pass { places, slots, ..Pass::new(&mut g, store, ctx, batch) };
        let mut x = self.embed(&mut pass, &batch.tokens, NoiseSite::Embedding(0))?;
        x = self.begin(&mut pass, x)?;
        for (layer, kept) in self.layers().zip(&mut cache.layers) {
            x = layer.forward(&mut pass, Some(kept), &x)?;
        }
        x = self.end(&mut pass, x)?;
        Ok(self.norm.apply(&mut pass, self.head()?.final_norm, &x)?.value().clone())
    }
}
