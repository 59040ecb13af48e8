//! Scaled dot-product attention with grouped key/value heads, over several documents at once.
//!
//! `out[i] = Σ_j softmax_j(cap(scale · q_i·k_j)) · v_j` over the keys `j` that query `i` of a [`Segment`] may see: all, or
//! with `causal` those with `j <= i + k_len − q_len + ahead`, or with a window the last few of these. No score matrix is
//! stored: blocks of scores are computed, used and discarded.

mod backward;
mod blocks;
mod body;
mod dropout;
mod few;
mod forward;
mod mask;
mod merge;
#[cfg(test)]
mod reference;
mod rows;
#[cfg(test)]
mod tests;

pub use merge::merge;
pub use ms_operands::{Alibi, Dropout, QkvRows, Segment};
pub(crate) use rows::check_lengths;

use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::matmul::kernel::with_kernel;
use crate::qkv::Packed;
use crate::{Cpu, Element, Error, Result};

/// Heads of queries, keys or values inside a larger array: element `(token, group, head, d)` is
/// `data[offset + token·token_stride + group·group_stride + head·head_stride + d]`.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a, E> {
    /// The array.
    pub data: &'a [E],
    /// Where token 0, group 0, head 0 starts.
    pub offset: usize,
    /// Elements from one token to the next.
    pub token_stride: usize,
    /// Elements from one group to the next.
    pub group_stride: usize,
    /// Elements from one head of a group to the next; unused for keys and values.
    pub head_stride: usize,
}

impl<'a, E: Element> Heads<'a, E> {
    /// The query heads of packed rows.
    pub fn queries(data: &'a [E], shape: &Packed) -> Self {
        Self::packed(data, shape, 0)
    }
    /// The key heads of packed rows.
    pub fn keys(data: &'a [E], shape: &Packed) -> Self {
        Self::packed(data, shape, shape.heads_per_group * shape.head_dim)
    }
    /// The value heads of packed rows.
    pub fn values(data: &'a [E], shape: &Packed) -> Self {
        Self::packed(data, shape, (shape.heads_per_group + 1) * shape.head_dim)
    }
    fn packed(data: &'a [E], shape: &Packed, offset: usize) -> Self {
        let (token_stride, group_stride) = (shape.width(), shape.group_width());
        Self { data, offset, token_stride, group_stride, head_stride: shape.head_dim }
    }

    /// Queries, keys and values of `rows`.
    pub fn of(rows: QkvRows<&'a [E]>, shape: &Packed) -> [Self; 3] {
        let d = shape.head_dim;
        let (each, both) = (shape.heads_per_group * d, 2 * d);
        let apart = |data, offset, group_stride: usize| {
            let token_stride = shape.groups * group_stride;
            Self { data, offset, token_stride, group_stride, head_stride: d }
        };
        match rows {
            QkvRows::Packed(rows) => {
                [Self::queries(rows, shape), Self::keys(rows, shape), Self::values(rows, shape)]
            }
            QkvRows::Apart { q, kv } => [apart(q, 0, each), apart(kv, 0, both), apart(kv, d, both)],
        }
    }

    /// First element of a head of a token.
    pub(crate) fn at(&self, token: usize, group: usize, head: usize) -> usize {
        self.offset + token * self.token_stride + group * self.group_stride + head * self.head_stride
    }

    /// Checks that every element of `tokens` tokens lies inside the array.
    pub(crate) fn check(
        &self,
        op: &'static str,
        name: &'static str,
        tokens: usize,
        groups: usize,
        heads: usize,
        dim: usize,
    ) -> Result<()> {
        if tokens == 0 || groups == 0 || heads == 0 {
            return Ok(());
        }
        let last = (tokens - 1)
            .checked_mul(self.token_stride)
            .and_then(|n| n.checked_add((groups - 1).checked_mul(self.group_stride)?))
            .and_then(|n| n.checked_add((heads - 1).checked_mul(self.head_stride)?))
            .and_then(|n| n.checked_add(self.offset)?.checked_add(dim));
        match last {
            Some(want) if want <= self.data.len() => Ok(()),
            want => Err(Error::Shape { op, name, want: want.unwrap_or(usize::MAX), got: self.data.len() }),
        }
    }
}

/// Scale, mask and cap of the scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Factor of the scores, usually `1/sqrt(D)`.
    pub scale: f32,
    /// With `Some(w)`, a query sees only keys with `i + k_len − q_len + ahead − j < w`, itself included.
    pub window: Option<usize>,
    /// With `Some(c)`, a score `s` becomes `c · tanh(s / c)`.
    pub softcap: Option<f32>,
    /// A query sees only keys with `j <= i + k_len − q_len + ahead`.
    pub causal: bool,
    /// A penalty by distance, added to scores.
    pub alibi: Option<Alibi>,
}

/// The part of [`Alibi`] that one head adds in one block: `slope · (base + row − column)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tilt {
    slope: f32,
    base: f32,
}

impl Tilt {
    /// Of head `n`, where row 0 is key `key` and column 0 the query `query` of the segment.
    pub(crate) fn new(options: &Options, segment: &Segment, n: usize, key: usize, query: usize) -> Self {
        let slope = options.alibi.map_or(0.0, |a| a.slope(n) as f32);
        let position = (query + segment.k_len) as f64 - segment.q_len as f64 + segment.ahead as f64;
        Self { slope, base: (key as f64 - position) as f32 }
    }

    /// Whether nothing is added.
    #[inline(always)]
    fn is_level(&self) -> bool {
        self.slope == 0.0
    }

    /// What is added in a row, less `slope · column`; `None` if nothing is.
    #[inline(always)]
    fn row(&self, row: usize) -> Option<f32> {
        (self.slope != 0.0).then_some(self.slope * (self.base + row as f32))
    }
}

/// Whether query `i` of `s` sees key `j` of `l`: the rule that [`mask`] turns into ranges.
#[cfg(test)]
pub(crate) fn visible(i: usize, j: usize, s: usize, l: usize, ahead: i64, o: &Options) -> bool {
    let (at, j) = ((i + l) as i64 - s as i64 + ahead, j as i64);
    (!o.causal || j <= at) && o.window.is_none_or(|w| at - j < w as i64)
}

/// Checks that segments do not overlap and end inside the arrays.
fn check_segments(
    op: &'static str,
    segments: &[Segment],
    q_tokens: usize,
    keys_apart: bool,
) -> Result<usize> {
    let (mut q_end, mut k_end, mut k_last) = (0, 0, 0);
    for (index, s) in segments.iter().enumerate() {
        if s.q_start < q_end {
            return Err(Error::Segments { op, name: "query", index, start: s.q_start, end: q_end });
        }
        if keys_apart && s.k_start < k_end {
            return Err(Error::Segments { op, name: "key", index, start: s.k_start, end: k_end });
        }
        q_end = s.q_start.saturating_add(s.q_len);
        k_end = s.k_start.saturating_add(s.k_len);
        k_last = k_last.max(k_end);
    }
    if q_end > q_tokens {
        return Err(Error::Shape { op, name: "segments' query tokens", want: q_tokens, got: q_end });
    }
    Ok(k_last)
}

/// Attention of every query head of every segment.
///
/// | arg        | shape   | dtype | meaning                                                           |
/// |------------|---------|-------|-------------------------------------------------------------------|
/// | `out`      | `[T,N·D]`| `E`  | output; tokens outside every segment keep their contents          |
/// | `lse`      | `[N,T]` | f32   | log of each softmax's denominator, kept for [`backward`]          |
/// | `q`        | -       | `E`   | queries; `N = groups · heads_per_group`, head `n` uses group `n / heads_per_group` |
/// | `k`, `v`   | -       | `E`   | keys and values, one head per group                               |
/// | `segments` | -       | -     | documents, rising in query tokens                                 |
///
/// A query that sees no key gets output 0 and log-sum-exp −infinity. Scores, log-sum-exps and sums are f32. Products of f32
/// are summed in order of the head's elements, and of the keys within blocks of 192; those of bf16 in the order of the
/// [`Cpu`]'s [`crate::Arithmetic`], and the weights of the values are rounded to bf16 after their sum was taken, as
/// flash-attention does. With at most four queries a segment and no dropout weights are f32 for both types; products sum in
/// sixteen lanes of the head's elements, of bf16 pair after pair, the odd one first, and keys in blocks of 128, which are
/// joined in their order.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit, [`Error::Segments`] if two segments share a query.
///
/// # Source
/// Dao et al., arXiv:2205.14135, algorithm 1; mask aligned to the last key as in flash-attention 2.1, where also the rounding
/// of weights is.
pub fn forward<E: Element>(
    cpu: &Cpu,
    out: &mut [E],
    lse: Option<&mut [f32]>,
    q: Heads<'_, E>,
    k: Heads<'_, E>,
    v: Heads<'_, E>,
    groups: usize,
    heads_per_group: usize,
    head_dim: usize,
    segments: &[Segment],
    options: &Options,
    dropout: Option<&Dropout<'_>>,
) -> Result<()> {
    const OP: &str = "attention::forward";
    let heads = groups * heads_per_group;
    let tokens = crate::error::expect_rows(OP, "out", heads * head_dim, out.len())?;
    if let Some(dropout) = dropout {
        expect_len(OP, "dropout's keys", tokens, dropout.keys.len())?;
    }
    if let Some(lse) = &lse {
        expect_len(OP, "lse", heads * tokens, lse.len())?;
    }
    let keys = check_segments(OP, segments, tokens, false)?;
    let queries = segments.last().map_or(0, |s| s.q_start + s.q_len);
    q.check(OP, "q", queries, groups, heads_per_group, head_dim)?;
    k.check(OP, "k", keys, groups, 1, head_dim)?;
    v.check(OP, "v", keys, groups, 1, head_dim)?;
    if heads * head_dim == 0 || segments.is_empty() {
        return Ok(());
    }
    let call = forward::Call {
        cpu,
        out: Disjoint::new(out),
        lse: lse.map(Disjoint::new),
        q,
        k,
        v,
        tokens,
        groups,
        heads_per_group,
        dim: head_dim,
        segments,
        options,
        dropout,
    };
    if dropout.is_none() && segments.iter().all(|s| s.q_len <= few::MAX_QUERIES) {
        few::run(&call);
    } else {
        with_kernel!(cpu, E, K => forward::run::<K, E>(&call));
    }
    Ok(())
}

/// Gradients of [`forward`] over rows.
///
/// | arg    | shape           | dtype | meaning                                                          |
/// |--------|-----------------|-------|------------------------------------------------------------------|
/// | `rows` | see [`QkvRows`] | `E`   | output (0 outside every segment), and what the forward call read |
/// | `dout` | `[T,N·D]`       | `E`   | gradient of `out`                                                |
/// | `out`  | `[T,N·D]`       | `E`   | output of the forward call                                       |
/// | `lse`  | `[N,T]`         | f32   | from the forward call                                            |
///
/// `shape` counts the queries. Where `out` and `lse` are of more keys than those in `rows`, the gradients are these keys'
/// share of them, and those of queries a partial sum. Scores are recomputed from `lse`. Gradients are summed in f32 and
/// rounded once; between the products, probabilities and gradients of scores of bf16 tensors are rounded to bf16.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit, [`Error::Segments`] if two segments share a token.
pub fn backward<E: Element>(
    cpu: &Cpu,
    rows: QkvRows<(&mut [E], &[E])>,
    dout: &[E],
    out: &[E],
    lse: &[f32],
    shape: &Packed,
    segments: &[Segment],
    options: &Options,
    dropout: Option<&Dropout<'_>>,
) -> Result<()> {
    const OP: &str = "attention::backward";
    shape.check(OP)?;
    let (tokens, heads, dim) = (shape.tokens, shape.heads(), shape.head_dim);
    let key_rows = check_lengths(OP, &rows, shape)?;
    expect_len(OP, "dout", tokens * heads * dim, dout.len())?;
    expect_len(OP, "out", tokens * heads * dim, out.len())?;
    expect_len(OP, "lse", tokens * heads, lse.len())?;
    if let Some(dropout) = dropout {
        expect_len(OP, "dropout's keys", tokens, dropout.keys.len())?;
    }
    let keys = check_segments(OP, segments, tokens, true)?;
    if keys > key_rows {
        return Err(Error::Shape { op: OP, name: "segments' key tokens", want: key_rows, got: keys });
    }
    let covered = |len: fn(&Segment) -> usize| segments.iter().map(len).sum::<usize>();
    let whole = covered(|s| s.q_len) == tokens && covered(|s| s.k_len) == key_rows;
    let heads = Heads::of(rows.as_ref().map(|(_, given)| *given), shape);
    let to = rows.map(|(to, _)| {
        if !whole {
            crate::elementwise::zero(cpu, to);
        }
        Disjoint::new(to)
    });
    if shape.width() == 0 || segments.is_empty() {
        return Ok(());
    }
    let call = backward::Call { cpu, to, dout, heads, key_rows, out, lse, shape, segments, options, dropout };
    with_kernel!(cpu, E, K => backward::run::<K, E>(&call));
    Ok(())
}
