//! Which parts say themselves what they keep.

use super::Activations;
use crate::{Mixer, ModelConfig};

/// Bytes that a mixer keeps behind its norm: rows, and small numbers of each token that stay where rows leave.
pub(crate) type Kept = (usize, usize);

impl Activations {
    /// Of a layer whose mixer has a formula of its own; `None`: it is attention with heads.
    pub(super) fn special(&self, c: &ModelConfig, number: usize) -> Option<Kept> {
        match c.layer(number).mixer {
            Mixer::GatedDelta => c.gated_delta.as_ref().map(|g| self.gated_delta(g)),
            Mixer::Mamba2 => c.mamba2.as_ref().map(|m| self.mamba2(m)),
            Mixer::Mamba3 => c.mamba3.as_ref().map(|m| self.mamba3(m, c.hidden)),
            Mixer::Attention => c.compressed().map(|a| self.compressed(c, a, number)),
            _ => None,
        }
    }

    /// Bytes of an unrounded number, and of unrounded copies of `weights` parameters, which f32 and f64 need not make.
    pub(crate) fn wide(&self, weights: usize) -> (usize, usize) {
        let wide = self.element_bytes.max(4);
        (wide, if self.element_bytes < wide { weights * wide } else { 0 })
    }
}
