//! Which keys and values received in ring attention a rank keeps for backward.

/// Which received keys and values are saved, so that the backward pass need not request them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingCachePolicy {
    /// Nothing: they are sent again.
    #[default]
    Nothing,
    /// The keys: values are sent again (`half`).
    Keys,
    /// Both: nothing is sent again (`full`).
    KeysAndValues,
}

/// What layers save of the keys and values of other ranks.
///
/// # Source
/// MindSpeed, `mindspeed/core/context_parallel/ring_context_parallel/context_parallel_kv_cache.py`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCache {
    /// What is saved.
    pub policy: RingCachePolicy,
    /// Layers without between two layers with it.
    pub interval: usize,
}

impl RingCache {
    /// What layer `layer`, counted from 0 over the whole model, keeps.
    pub fn of_layer(&self, layer: usize) -> RingCachePolicy {
        if layer.is_multiple_of(self.interval + 1) { self.policy } else { RingCachePolicy::Nothing }
    }
}
