//! Which parts say themselves what they keep.

use crate::kept::{Activations, Kept};
use crate::{Mixer, ModelConfig};

impl Activations {
    /// Of a layer whose mixer has a formula of its own; `None`: it is attention with heads.
    pub(super) fn own_formula(&self, c: &ModelConfig, number: usize) -> Option<Kept> {
        match c.layer(number).mixer {
            Mixer::GatedDelta => c.gated_delta.as_ref().map(|g| self.gated_delta(g)),
            Mixer::Mamba2 => c.mamba2.as_ref().map(|m| self.mamba2(m)),
            Mixer::Mamba3 => c.mamba3.as_ref().map(|m| self.mamba3(m, c.hidden)),
            Mixer::Attention => c.compressed().map(|a| self.compressed(c, a, number)),
            _ => None,
        }
    }
}
