//! How much computation tensor-parallel linear layers overlap with communication.

use ms_core::FEW_ROWS;

/// What layers compute while their ranks exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearOverlap {
    /// Gradients of weights, while that of the layer's input is in transit, or what comes next in a backward pass: rows of
    /// experts, heads for tokens, gathered rows. Off, every exchange is waited for at once.
    pub weight_gradients: bool,
    /// Into how many pieces a product is cut whose exchange comes right before or behind it.
    pub pieces: Pieces,
    /// Products of latents of keys and values, while those of queries and the part of keys that heads share are gathered from
    /// ranks with shares of the tokens.
    pub beside_gathers: bool,
}

impl Default for LinearOverlap {
    fn default() -> Self {
        Self { weight_gradients: true, pieces: Pieces::Number(1), beside_gathers: false }
    }
}

/// Into how many pieces the rows of a product are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// So many where they can be, one where not.
    Number(usize),
    /// The most of 8, 4, 2 and 1 that can be.
    Finest,
}

impl Pieces {
    /// Of `rows` rows, which are `shares` ranks' shares: every piece has as many rows of each, and more than [`FEW_ROWS`].
    pub fn of(self, rows: usize, shares: usize) -> usize {
        let fits = |&n: &usize| n > 0 && rows.is_multiple_of(n * shares) && rows / n > FEW_ROWS;
        match self {
            Self::Number(n) => Some(n).filter(fits),
            Self::Finest => [8, 4, 2].into_iter().find(fits),
        }
        .unwrap_or(1)
    }
}
