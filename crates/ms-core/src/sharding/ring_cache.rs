//! Which keys and values received in ring attention a rank keeps for backward.

/// What is kept of the keys and values of other ranks, so that the backward pass need not ask for it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptOfRing {
    /// Nothing: they come again.
    #[default]
    Nothing,
    /// The keys: values come again (`half`).
    Keys,
    /// Both: nothing comes again (`full`).
    KeysAndValues,
}

/// What layers keep of the keys and values of other ranks.
///
/// # Source
/// MindSpeed, `mindspeed/core/context_parallel/ring_context_parallel/context_parallel_kv_cache.py`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCache {
    /// What is kept.
    pub kept: KeptOfRing,
    /// Layers without between two layers with it.
    pub interval: usize,
}

impl RingCache {
    /// What layer `layer`, counted from 0 over the whole model, keeps.
    pub fn of_layer(&self, layer: usize) -> KeptOfRing {
        match layer.is_multiple_of(self.interval + 1) {
            true => self.kept,
            false => KeptOfRing::Nothing,
        }
    }
}
