//! Memory that inference needs, estimated before weights are read.

use ms_core::DType;
use ms_nn::Gpt;
use ms_spec::{Activations, Item, ModelConfig, Placement};

/// What a program is about to ask of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Tokens of the longest prompt; 0: not known.
    pub prompt: usize,
    /// New tokens at most; the model's window bounds both together.
    pub new: usize,
    /// Sequences with a place in the cache of keys and values; 0: none is kept.
    pub slots: usize,
    /// Rows of logits that are held until the end, and written out.
    pub rows: u64,
    /// Bytes that can still be taken; `None`: not known, so nothing is refused.
    pub available: Option<u64>,
}

/// Bytes that it needs, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Weights in the type they are computed in, and what every run takes.
    pub weights: u64,
    /// Keys, values and rotations of every token that a sequence may have.
    pub cache: u64,
    /// What one layer makes of the longest prompt, and a row of logits.
    pub activations: u64,
    /// Results.
    pub results: u64,
}

/// Bytes that a program takes in addition to what is counted: blocks are rounded to huge pages, heaps grow in steps.
const BESIDE: u64 = 32 << 20;

impl MemoryEstimate {
    /// Weights and rotations, which are made before anything else.
    pub(crate) fn before(
        config: &ModelConfig,
        dtype: DType,
        quantized: &dyn Fn(&ms_spec::ParamSpec) -> bool,
        (window, longest): (usize, usize),
    ) -> Self {
        let mut largest = 0;
        let elements = |spec: &ms_spec::ParamSpec| {
            if let (true, &[n, k]) = (quantized(spec), &spec.shape[..]) {
                // Each is read whole first.
                largest =
                    largest.max((n as u64).saturating_mul(k as u64).saturating_mul(dtype.size() as u64));
                return (n as u64).saturating_mul(ms_core::int8_row_bytes(k) as u64);
            }
            let size = if spec.trained() { dtype.size() } else { dtype.size() + 4 };
            (spec.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64))).saturating_mul(size as u64)
        };
        let weights = ms_spec::params(config).iter().map(elements).fold(0, u64::saturating_add);
        let weights = weights.saturating_add(largest);
        let short = config.switches_behind(window).map_or(0, |short| short.min(longest));
        let rows = longest.saturating_add(short);
        let tables = (rows as u64).saturating_mul(config.head_dim as u64).saturating_mul(8);
        Self { weights: weights.saturating_add(BESIDE), cache: tables, ..Self::default() }
    }

    /// Everything, once the model stands.
    pub(crate) fn with(self, model: &Gpt, dtype: DType, work: &MemoryRequest) -> Self {
        let config = model.config();
        let tokens = work.prompt.min(model.max_position()).max(1);
        let capacity = tokens.saturating_add(work.new).min(model.max_position());
        let sizes = Activations::plain(tokens, dtype.size());
        let layers = Placement::whole(config);
        let layers = layers.stage(0).iter().flatten().filter(|item| matches!(item, Item::Layer { .. }));
        let one = layers
            .map(|item| sizes.of_items(config, std::slice::from_ref(item), (0, 1)).kept)
            .max()
            .unwrap_or(0);
        // As bytes and as a file, in the type that is written; a row is computed in f64.
        let row = config.padded_vocab as u64 * 2 * dtype.wide().size() as u64;
        Self {
            cache: match work.slots {
                0 => self.cache,
                slots => self.cache.saturating_add(model.cache_bytes(dtype, slots, capacity)),
            },
            activations: (one as u64).saturating_add(row.max(config.padded_vocab as u64 * 24)),
            results: work.rows.saturating_mul(row),
            ..self
        }
    }

    /// The sum of all.
    pub fn total(&self) -> u64 {
        [self.weights, self.cache, self.activations, self.results].into_iter().fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_spec::RopeScaling;

    #[test]
    fn rotations_of_short_sequences_have_rows_of_their_own() {
        let mut config = ModelConfig::tiny();
        let of =
            |config: &ModelConfig, rows| MemoryEstimate::before(config, DType::F32, &|_| false, rows).cache;
        let (plain, factors) = (of(&config, (64, 64)), vec![1.0; config.head_dim / 2]);
        config.rope.scaling = RopeScaling::LongRope {
            short: factors.clone(),
            long: factors,
            original: 16,
            factor: 4.0,
            magnitude: None,
        };
        let row = config.head_dim as u64 * 8;
        assert_eq!(of(&config, (64, 64)), plain + 16 * row);
        assert_eq!(of(&config, (64, 10)), (10 + 10) * row, "what is used alone");
        // Where the window is no longer than short sequences, there is one table.
        assert_eq!(of(&config, (16, 16)), 16 * row);
    }
}
