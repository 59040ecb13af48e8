//! How much computation tensor-parallel linear layers overlap with communication.

use ms_core::FEW_ROWS;

/// How linear layers overlap computation with communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearOverlap {
    /// Weight gradients, while the input gradient or the next exchange of the backward pass is in transit: rows of experts,
    /// heads for tokens, gathered rows. If false, every exchange is waited for at once.
    pub weight_gradients: bool,
    /// The number of pieces for a product directly preceded or followed by an exchange.
    pub pieces: Pieces,
    /// Products of key/value latents, while query latents and the shared part of keys are gathered from ranks with token
    /// shards.
    pub overlap_gathers: bool,
}

impl Default for LinearOverlap {
    fn default() -> Self {
        Self { weight_gradients: true, pieces: Pieces::Number(1), overlap_gathers: false }
    }
}

/// The number of pieces that the rows of a product are divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// This many if possible, otherwise one.
    Number(usize),
    /// The largest possible of 8, 4, 2 and 1.
    Finest,
}

impl Pieces {
    /// The number of pieces for `rows` rows, which are the shards of `shares` ranks: every piece has the same number of rows
    /// from each, and more than [`FEW_ROWS`].
    pub fn of(self, rows: usize, shares: usize) -> usize {
        let fits = |&n: &usize| n > 0 && rows.is_multiple_of(n * shares) && rows / n > FEW_ROWS;
        match self {
            Self::Number(n) => Some(n).filter(fits),
            Self::Finest => [8, 4, 2].into_iter().find(fits),
        }
        .unwrap_or(1)
    }
}
