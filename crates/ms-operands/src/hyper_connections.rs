//! Hyper-connections: a residual with several streams.

/// How the weights of streams are computed.
///
/// The weights of a token are one row of `2 n + n²` numbers: `pre[n]`, how the input is mixed from the streams; `post[n]`,
/// how the output is added to each stream; `comb[n,n]`, how stream `j` continues in stream `k`. At the end of the model a row
/// is `pre` alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixing {
    /// Streams `n`.
    pub streams: usize,
    /// How many times the rows and columns of `comb` are normalised to sum 1; `None`: there is only `pre`.
    pub rounds: Option<usize>,
    /// Added to `pre`, to `comb` and to the sums that it is divided by.
    pub eps: f64,
}

impl Mixing {
    /// Width of a token's row: `2 n + n²`, or `n` if there is only `pre`.
    pub fn width(&self) -> usize {
        let n = self.streams;
        if self.rounds.is_some() { (2 + n) * n } else { n }
    }

    /// Factors: one for each of `pre`, `post`, `comb`.
    pub fn scales(&self) -> usize {
        if self.rounds.is_some() { 3 } else { 1 }
    }
}
