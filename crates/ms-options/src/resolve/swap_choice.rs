//! The choice of `--smart-swap`.

use ms_nn::Swapped;
use serde_json::{Value, json};

/// Parts that are swapped to the file, and what the choice is based on.
#[derive(Clone, Debug)]
pub(crate) struct SwapChoice {
    /// The limit on a rank's memory in bytes.
    pub(crate) limit: usize,
    /// Bytes needed by the rank that needs most, with this choice and without swapping.
    pub(crate) takes: usize,
    pub(crate) without: usize,
    pub(crate) swapped: Swapped,
    /// Whether the optimizer's state is swapped, too.
    pub(crate) optimizer: bool,
}

impl SwapChoice {
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
