//! Attention over a window of nearby tokens and pooled entries of distant ones.

/// Sizes of a pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Tokens of a window.
    pub ratio: usize,
    /// Elements of an entry, `D`.
    pub dim: usize,
    /// Entries also use the preceding window; rows are `[D for the next window | D for this window]`.
    pub overlap: bool,
}

impl Pooling {
    /// Columns of a row: `D`, or `2 D` with overlap.
    pub fn width(&self) -> usize {
        if self.overlap { 2 * self.dim } else { self.dim }
    }
}

/// Where the rows of a window's tokens begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First row of the window itself.
    pub own: usize,
    /// First row of the preceding window; `None`: there is none, or no overlap.
    pub before: Option<usize>,
}

/// The visible range of a query: the keys that it may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Row of the first visible key.
    pub start: usize,
    /// Number of visible keys.
    pub seen: usize,
    /// Number of all keys, including those that it does not see yet.
    pub all: usize,
}
