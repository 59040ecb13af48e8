//! The choice of `--smart-swap`.

use ms_nn::Swapped;
use serde_json::{Value, json};

/// Parts that go to the file, and what they were chosen by.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// Bytes that a rank was to stay in.
    pub(crate) limit: usize,
    /// What the rank that takes most takes so, and what it would without.
    pub(crate) takes: usize,
    pub(crate) without: usize,
    pub(crate) swapped: Swapped,
    /// Whether the optimizer's state does, too.
    pub(crate) optimizer: bool,
}

impl Chosen {
    /// As `--dry-run` shows it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "limit_bytes": self.limit,
            "peak_block_bytes": self.takes,
            "without_bytes": self.without,
            "swapped": self.swapped.names(),
            "optimizer": self.optimizer,
        })
    }
}
