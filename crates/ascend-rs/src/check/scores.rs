//! Attention by its formula.

/// Sequences, queries and keys of each, heads of queries and of keys, size of a head.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) b: usize,
    pub(super) s: usize,
    pub(super) r: usize,
    pub(super) n: usize,
    pub(super) g: usize,
    pub(super) d: usize,
}

/// A query and a key: their sequence, the query's head, their places in the sequence.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub(super) b: usize,
    pub(super) n: usize,
    pub(super) i: usize,
    pub(super) j: usize,
}

/// Queries `[b,s,n,d]`, keys and values `[b,r,g,d]`, a sink a head, and parts of queries and keys of their own, which products
/// add; the last three may be empty.
pub(super) type Parts<'a> = [&'a [f64]; 6];

/// What the formula gives.
pub(super) struct Attended {
    /// `[b,s,n,d]`; zeros where a query sees nothing.
    pub(super) out: Vec<f64>,
    /// Logarithms of the sums of exponents `[b,n,s]`; infinite where a query sees nothing.
    pub(super) sums: Vec<f64>,
}

/// `score` makes a score of a pair's product, or says that the query does not see the key.
pub(super) fn attend(
    size: Sizes,
    [q, k, v, sink, q_own, k_own]: Parts<'_>,
    score: impl Fn(Pair, f64) -> Option<f64>,
) -> Attended {
    let Sizes { b: batch, s, r, n: heads, g: groups, d } = size;
    let own = q_own.len() / (batch * s * heads).max(1);
    let dot = |a: &[f64], x: usize, b: &[f64], y: usize, width: usize| -> f64 {
        (0..width).map(|c| a[x * width + c] * b[y * width + c]).sum()
    };
    let (mut out, mut sums) = (vec![0.0; q.len()], vec![f64::INFINITY; batch * heads * s]);
    for row in 0..batch * s * heads {
        let (b, i, n) = (row / (s * heads), row / heads % s, row % heads);
        let key = |j: usize| (b * r + j) * groups + n / (heads / groups);
        let weight = |j: usize| {
            let product = dot(q, row, k, key(j), d) + dot(q_own, row, k_own, key(j), own);
            score(Pair { b, n, i, j }, product).map_or(0.0, f64::exp)
        };
        let weights: Vec<f64> = (0..r).map(weight).collect();
        let seen: f64 = weights.iter().sum();
        if seen == 0.0 {
            continue;
        }
        let sum = seen + sink.get(n).map_or(0.0, |s| s.exp());
        sums[(b * heads + n) * s + i] = sum.ln();
        for (j, w) in weights.iter().enumerate() {
            for c in 0..d {
                out[row * d + c] += w / sum * v[key(j) * d + c];
            }
        }
    }
    Attended { out, sums }
}
