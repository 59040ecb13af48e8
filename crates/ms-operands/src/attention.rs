//! Attention operands: causal and window masks, distance biases, dropout of attention weights.

use crate::noise::Noise;

/// A document: queries `q_start..q_start+q_len` see keys of `k_start..k_start+k_len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First query token.
    pub q_start: usize,
    /// Query tokens.
    pub q_len: usize,
    /// First key token.
    pub k_start: usize,
    /// Key tokens.
    pub k_len: usize,
    /// Distance in tokens from the last key to the last query: 0 where the queries are the last tokens of the keys, as in
    /// training. Context-parallel ranks process blocks of keys that are further back, or later.
    pub ahead: i64,
}

impl Segment {
    /// A document whose tokens are both queries and keys, as in training.
    pub fn of(start: usize, len: usize) -> Self {
        Self { q_start: start, q_len: len, k_start: start, k_len: len, ahead: 0 }
    }
}

/// Arrays of queries, keys and values that attention reads, or that their gradients are written to.
///
/// With `G` groups of heads, `N` query heads and heads of `D` elements:
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkvRows<T> {
    /// `[T,(N+2G)·D]`: for each group its queries, its key, its value.
    Packed(T),
    /// Queries separate from keys and values, whose number of rows may differ.
    Apart {
        /// `[T,N·D]`.
        q: T,
        /// `[C,2·G·D]`: for each group the key, then the value.
        kv: T,
    },
}

impl<T> QkvRows<T> {
    /// The array that contains the queries.
    pub fn queries(&self) -> &T {
        match self {
            Self::Packed(rows) => rows,
            Self::Apart { q, .. } => q,
        }
    }

    /// The array that contains the keys and values.
    pub fn keys(&self) -> &T {
        match self {
            Self::Packed(rows) => rows,
            Self::Apart { kv, .. } => kv,
        }
    }

    /// References to the arrays.
    pub fn as_ref(&self) -> QkvRows<&T> {
        match self {
            Self::Packed(rows) => QkvRows::Packed(rows),
            Self::Apart { q, kv } => QkvRows::Apart { q, kv },
        }
    }

    /// Elements of a row of each array, with `groups` groups of `heads_per_group` query heads of `head_dim` elements.
    pub fn widths(&self, groups: usize, heads_per_group: usize, head_dim: usize) -> QkvRows<usize> {
        match self {
            Self::Packed(_) => QkvRows::Packed(groups * (heads_per_group + 2) * head_dim),
            Self::Apart { .. } => {
                QkvRows::Apart { q: groups * heads_per_group * head_dim, kv: 2 * groups * head_dim }
            }
        }
    }

    /// Maps each array.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> QkvRows<U> {
        match self {
            Self::Packed(rows) => QkvRows::Packed(f(rows)),
            Self::Apart { q, kv } => QkvRows::Apart { q: f(q), kv: f(kv) },
        }
    }

    /// Maps each array with a function that may fail.
    ///
    /// # Errors
    /// The first of `f`.
    pub fn try_map<U, E>(self, mut f: impl FnMut(T) -> Result<U, E>) -> Result<QkvRows<U>, E> {
        Ok(match self {
            Self::Packed(rows) => QkvRows::Packed(f(rows)?),
            Self::Apart { q, kv } => QkvRows::Apart { q: f(q)?, kv: f(kv)? },
        })
    }

    /// The arrays, queries first.
    pub fn into_parts(self) -> impl Iterator<Item = T> {
        let parts = match self {
            Self::Packed(rows) => [Some(rows), None],
            Self::Apart { q, kv } => [Some(q), Some(kv)],
        };
        parts.into_iter().flatten()
    }
}

/// Attention with linear biases: head `n` adds `−slope · (i + k_len − q_len + ahead − j)` to its scores.
///
/// # Source
/// Press et al., arXiv:2108.12409, section 3; slopes for numbers of heads that are not a power of two as in their code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alibi {
    /// Heads of the whole model.
    pub heads: usize,
    /// The model's head that is head 0 of this call.
    pub first: usize,
}

impl Alibi {
    /// Slope of head `n` of this call.
    ///
    /// With `m` the largest power of two that is at most the number of heads: `2^(−8(h+1)/m)` for the first `m`
    /// heads, then every other slope of `2m` heads.
    pub fn slope(&self, n: usize) -> f64 {
        let h = self.first + n;
        let m = if self.heads == 0 { 1 } else { 1 << self.heads.ilog2() };
        let exponent =
            if h < m { 8.0 * (h + 1) as f64 / m as f64 } else { 4.0 * (2 * (h - m) + 1) as f64 / m as f64 };
        2f64.powf(-exponent)
    }
}

/// Dropout of attention weights: after the softmax, each is set to 0 with probability `rate`, or else multiplied by
/// `1 / (1 - rate)`.
#[derive(Clone, Copy, Debug)]
pub struct Dropout<'a> {
    /// In `[0, 1)`.
    pub rate: f64,
    /// Number of the place in the model, below 2^32.
    pub site: u64,
    /// The model's head that is head 0 of the call.
    pub first_head: usize,
    /// Key of each query token of the call, `[T]`.
    pub keys: &'a [u64],
}

impl Dropout<'_> {
    /// The place of head `n` of the call: the head number is stored in the bits above the place number.
    #[inline]
    pub fn site_of(&self, n: usize) -> u64 {
        self.site | ((self.first_head + n) as u64 + 1) << 32
    }

    /// The factor of the weight of the key `distance` tokens before query token `t` in head `n`.
    #[inline]
    pub fn factor(&self, t: usize, n: usize, distance: i64) -> f64 {
        Noise::Dropout { rate: self.rate }.at(self.keys[t], self.site_of(n), distance as u64)
    }
}
