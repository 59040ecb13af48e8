//! Hyper-connections: a residual with several streams.

/// How the weights of streams are formed.
///
/// The weights of a token are one row of `2 n + n²` numbers: `pre[n]`, how the streams make the input; `post[n]`, how the output
/// joins each stream; `comb[n,n]`, how stream `j` goes on into stream `k`. Where streams only end, a row is `pre` alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixing {
    /// Streams `n`.
    pub streams: usize,
    /// Times that the rows and columns of `comb` are brought to sum 1; `None`: there is `pre` alone.
    pub rounds: Option<usize>,
    /// Added to `pre`, to `comb` and to the sums that it is divided by.
    pub eps: f64,
}

impl Mixing {
    /// Numbers of a token's row: `2 n + n²`, or `n` where there is `pre` alone.
    pub fn width(&self) -> usize {
        let n = self.streams;
        if self.rounds.is_some() { (2 + n) * n } else { n }
    }

    /// Factors: one for each of `pre`, `post`, `comb`.
    pub fn scales(&self) -> usize {
        if self.rounds.is_some() { 3 } else { 1 }
    }
}
