//! What a layer's attention has, whichever kind it is of.

use ms_core::KeptOfRing;

use crate::keeping::LayerKeeping;
use crate::kept::{Activations, Mixed};
use crate::params::{Init, SumGrad, Table};
use crate::parts::{compressed, grouped, latent, sparse};
use crate::sizes::{Attention, Mixer};
use crate::{ModelConfig, Part, Role};

/// The weights of a layer's attention, of any kind, under `module`.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize) {
    if let Attention::Compressed(sizes) = &c.attention {
        return compressed::params(t, c, index, sizes);
    }
    t.of(Part::Attention);
    let heads = c.heads_of(index).0;
    let columns = [c.hidden, heads * c.value_dim()];
    t.matrix(Role::LinearProj, columns, Table::columns(), t.out_std());
    if c.bias.out {
        t.whole_bias(Role::LinearProj, c.hidden);
    }
    match &c.attention {
        Attention::Latent(mla) => latent::params(t, c, mla),
        Attention::Compressed(_) => unreachable!("returned above"),
        Attention::Grouped => grouped::params(t, c, index),
    }
    if c.scores.head_gate {
        t.matrix(Role::GProj, [heads, c.hidden], Table::rows(1), t.std());
    }
    if c.scores.sinks {
        t.vector(Role::Sinks, heads, Table::rows(1), Init::Zeros, SumGrad::No);
    }
    sparse::params(t, c, index);
}

/// FLOPs of a token, whose query sees `keys` keys, forward and backward, as attention of its kind counts them.
pub(crate) fn flops(c: &ModelConfig, keys: f64) -> f64 {
    match c.mla() {
        Some(m) => latent::flops(c, m, keys),
        None => grouped::flops(c, keys),
    }
}

impl Activations {
    /// Of a layer's attention behind its norm.
    pub(crate) fn attention(&self, c: &ModelConfig, number: usize, keeping: LayerKeeping) -> Mixed {
        match &c.attention {
            Attention::Compressed(sizes) if c.layer(number).mixer == Mixer::Attention => {
                let (before, statistics) = self.compressed(c, sizes, number);
                Mixed { before, statistics, ..Mixed::default() }
            }
            Attention::Latent(mla) => self.latent(c, mla, number, keeping),
            _ => self.grouped(c, number, keeping),
        }
    }

    /// What the softmax leaves of heads of `dim` elements, unless it runs again: its sums, and others' keys and values.
    pub(crate) fn softmax(&self, c: &ModelConfig, number: usize, dim: usize, keeping: LayerKeeping) -> usize {
        if keeping.core_attention_again {
            return 0;
        }
        self.tokens * c.heads_of(number).0 / self.tp * self.element_bytes.max(4)
            + self.of_ring(c, number, dim)
    }

    /// Bytes of the keys and values of other ranks that a layer of attention keeps.
    fn of_ring(&self, c: &ModelConfig, number: usize, dim: usize) -> usize {
        let (ulysses, ring) = self.ulysses_and_ring;
        // Where there are fewer heads of keys than ranks that exchange heads, these have one each.
        let groups = (c.heads_of(number).1 / self.tp).max(ulysses);
        let half = self.tokens * groups * dim * self.element_bytes;
        match self.ring_cache.of_layer(number) {
            KeptOfRing::Nothing => 0,
            KeptOfRing::Keys => (ring - 1) * half,
            KeptOfRing::KeysAndValues => (ring - 1) * 2 * half,
        }
    }
}
