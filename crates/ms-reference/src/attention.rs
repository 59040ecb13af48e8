//! Attention: preparation of heads, softmax over visible keys, merging of blocks, sinks, caches.

use crate::Reference;
use crate::norm::reciprocal_root_mean_square;
use crate::operand::{expect, reals};
use crate::picked::{pick, rows_of, softmax};
use crate::rotary::{Turn, prepare};
use crate::tape::{Real, dot, gradient};
use ms_core::{
    AttentionBackend, AttentionDropout, AttentionOptions, Error, HeadLayout, IndexerInputs, QkNorm, QkvRows,
    Result, Rotary, Segment, Sight, Tensor, TensorMut,
};

/// Heads inside rows: element `d` of head `h` of group `g` of token `t` is `data[t·row + offset + g·group + h·dim + d]`.
#[derive(Clone, Copy)]
struct View {
    row: usize,
    offset: usize,
    group: usize,
    dim: usize,
}

impl View {
    /// Queries, keys and values of packed rows.
    fn packed(heads: HeadLayout) -> [Self; 3] {
        let (row, dim, n) = (heads.packed_width(), heads.head_dim, heads.heads_per_group);
        [0, n, n + 1].map(|first| Self { row, offset: first * dim, group: (n + 2) * dim, dim })
    }

    /// Rows that hold one head of each group.
    fn apart(heads: HeadLayout) -> Self {
        Self { row: heads.groups * heads.head_dim, offset: 0, group: heads.head_dim, dim: heads.head_dim }
    }

    /// Rows of queries alone.
    fn queries(heads: HeadLayout) -> Self {
        let group = heads.heads_per_group * heads.head_dim;
        Self { row: heads.groups * group, offset: 0, group, dim: heads.head_dim }
    }

    /// Rows with a key followed by a value for each group.
    fn both(heads: HeadLayout) -> [Self; 2] {
        let (row, dim) = (2 * heads.groups * heads.head_dim, heads.head_dim);
        [0, dim].map(|offset| Self { row, offset, group: 2 * dim, dim })
    }

    fn at(&self, t: usize, group: usize, head: usize) -> std::ops::Range<usize> {
        let start = t * self.row + self.offset + group * self.group + head * self.dim;
        start..start + self.dim
    }
}

/// Where queries, keys and values are.
struct Operands<'a> {
    heads: HeadLayout,
    queries: (&'a [f64], View),
    keys: (&'a [f64], View),
    values: (&'a [f64], View),
}

impl<'a> Operands<'a> {
    fn of(rows: QkvRows<&'a Tensor>, heads: HeadLayout) -> Result<Self> {
        let [q, k, v] = match rows {
            QkvRows::Packed(_) => View::packed(heads),
            QkvRows::Apart { .. } => {
                let [k, v] = View::both(heads);
                [View::queries(heads), k, v]
            }
        };
        let (queries, keys) = (reals(rows.queries())?, reals(rows.keys())?);
        Ok(Self { heads, queries: (queries, q), keys: (keys, k), values: (keys, v) })
    }

    fn cached(rows: &'a Tensor, keys: &'a Tensor, values: &'a Tensor, heads: HeadLayout) -> Result<Self> {
        let ([q, ..], view) = (View::packed(heads), View::apart(heads));
        let queries = (reals(rows)?, q);
        Ok(Self { heads, queries, keys: (reals(keys)?, view), values: (reals(values)?, view) })
    }

    fn query(&self, t: usize, n: usize) -> &'a [f64] {
        let per = self.heads.heads_per_group;
        &self.queries.0[self.queries.1.at(t, n / per, n % per)]
    }

    fn key(&self, row: usize, n: usize) -> &'a [f64] {
        &self.keys.0[self.keys.1.at(row, n / self.heads.heads_per_group, 0)]
    }

    fn value(&self, row: usize, n: usize) -> &'a [f64] {
        &self.values.0[self.values.1.at(row, n / self.heads.heads_per_group, 0)]
    }
}

/// A key that a query sees: its row, and how far the query is ahead of it.
#[derive(Clone, Copy)]
struct Seen {
    row: usize,
    distance: f64,
}

/// The keys that query `i` of a segment sees: not those after it, nor those further back than the window.
fn seen(s: &Segment, i: usize, o: &AttentionOptions) -> Vec<Seen> {
    let at = (i + s.k_len) as i64 - s.q_len as i64 + s.ahead;
    let visible = |j: &usize| {
        let distance = at - *j as i64;
        distance >= 0 && o.window.is_none_or(|w| distance < w as i64)
    };
    let key = |j: usize| Seen { row: s.k_start + j, distance: (at - j as i64) as f64 };
    (0..s.k_len).filter(visible).map(key).collect()
}

/// Score of a query and a key, and its slope by the scaled product: `cap(scale · q·k) − slope · distance`.
fn score(q: &[f64], k: &[f64], n: usize, distance: f64, o: &AttentionOptions) -> (f64, f64) {
    let raw = o.scale * dot(q, k);
    let tilt = o.alibi.map_or(0.0, |a| -a.slope(n) * distance);
    match o.softcap {
        None => (raw + tilt, 1.0),
        Some(cap) => {
            let t = (raw / cap).tanh();
            (cap * t + tilt, 1.0 - t * t)
        }
    }
}

/// Queries with what they see: token and keys.
type Queries = Vec<(usize, Vec<Seen>)>;

fn queries(segments: &[Segment], tokens: usize, keys: usize, o: &AttentionOptions) -> Result<Queries> {
    for s in segments {
        let (q_end, k_end) = (s.q_start.saturating_add(s.q_len), s.k_start.saturating_add(s.k_len));
        for (what, start, end, len) in [
            ("queries of a segment", s.q_start, q_end, tokens),
            ("keys of a segment", s.k_start, k_end, keys),
        ] {
            if end > len {
                return Err(Error::Range { what, start, end, len });
            }
        }
    }
    let of = |s: &Segment| (0..s.q_len).map(|i| (s.q_start + i, seen(s, i, o))).collect::<Vec<_>>();
    Ok(segments.iter().flat_map(of).collect())
}

fn picked(picks: &Tensor, keys: usize) -> Result<Queries> {
    let near = |row: usize| Seen { row, distance: 0.0 };
    (0..picks.dim(0)).map(|t| Ok((t, rows_of(picks, t, keys)?.into_iter().map(near).collect()))).collect()
}

/// Multiply-adds of one product of every query with every key that it sees.
fn pairs(queries: &Queries, heads: HeadLayout) -> usize {
    queries.iter().map(|(_, seen)| seen.len()).sum::<usize>() * heads.heads() * heads.head_dim
}

/// What the weight of a key is multiplied by.
fn thinned(dropout: Option<&AttentionDropout>, t: usize, n: usize, s: &Seen) -> f64 {
    dropout.map_or(1.0, |d| d.view().factor(t, n, s.distance as i64))
}

/// `out[t,n] = Σ_j m_j · softmax_j(score) · v_j`, `m` the factors of dropout, and the log of each denominator.
fn attend(
    x: &Operands<'_>,
    queries: &Queries,
    tokens: usize,
    o: &AttentionOptions,
    dropout: Option<&AttentionDropout>,
) -> (Vec<f64>, Vec<f64>) {
    let (heads, d) = (x.heads.heads(), x.heads.head_dim);
    let (mut out, mut lse) = (vec![0.0; tokens * heads * d], vec![f64::NEG_INFINITY; heads * tokens]);
    for (t, seen) in queries {
        for n in 0..heads {
            let of = |s: &Seen| score(x.query(*t, n), x.key(s.row, n), n, s.distance, o).0;
            let (p, denominator) = softmax(&seen.iter().map(of).collect::<Vec<_>>());
            lse[n * tokens + t] = denominator;
            let out = &mut out[(t * heads + n) * d..][..d];
            for (p, s) in p.iter().zip(seen) {
                let p = thinned(dropout, *t, n, s) * p;
                out.iter_mut().zip(x.value(s.row, n)).for_each(|(o, v)| *o += p * v);
            }
        }
    }
    (out, lse)
}

/// Gradients with respect to queries, keys and values, each in rows as its operand's with zeros elsewhere, with the output
/// and denominators of all the keys that the softmax ran over, which may be more than those at hand.
fn attend_backward(
    dout: &[f64],
    x: &Operands<'_>,
    (out, lse): (&[f64], &[f64]),
    queries: &Queries,
    o: &AttentionOptions,
    dropout: Option<&AttentionDropout>,
) -> [Vec<f64>; 3] {
    let (heads, d, per) = (x.heads.heads(), x.heads.head_dim, x.heads.heads_per_group);
    let tokens = lse.len() / heads.max(1);
    let [mut dq, mut dk, mut dv] = [x.queries.0, x.keys.0, x.values.0].map(|rows| vec![0.0; rows.len()]);
    let add =
        |to: &mut [f64], factor: f64, row: &[f64]| to.iter_mut().zip(row).for_each(|(t, r)| *t += factor * r);
    for (t, seen) in queries {
        for n in 0..heads {
            let at = (t * heads + n) * d;
            let (dout, q) = (&dout[at..at + d], x.query(*t, n));
            let along = dot(dout, &out[at..at + d]);
            for s in seen {
                let (k, v) = (x.key(s.row, n), x.value(s.row, n));
                let (score, slope) = score(q, k, n, s.distance, o);
                let p = (score - lse[n * tokens + t]).exp();
                let m = thinned(dropout, *t, n, s);
                let ds = p * (m * dot(dout, v) - along) * slope * o.scale;
                add(&mut dq[x.queries.1.at(*t, n / per, n % per)], ds, k);
                add(&mut dk[x.keys.1.at(s.row, n / per, 0)], ds, q);
                add(&mut dv[x.values.1.at(s.row, n / per, 0)], m * p, dout);
            }
        }
    }
    [dq, dk, dv]
}

/// The sum of gradients in rows of one kind.
fn together(parts: &[Vec<f64>]) -> Vec<f64> {
    let mut sum = vec![0.0; parts[0].len()];
    parts.iter().for_each(|part| sum.iter_mut().zip(part).for_each(|(s, x)| *s += x));
    sum
}

impl Reference {
    /// Gradients with respect to queries, keys and values as those of `rows`.
    fn by_rows(&self, rows: QkvRows<&Tensor>, [dq, dk, dv]: [Vec<f64>; 3]) -> Result<QkvRows<Tensor>> {
        Ok(match rows {
            QkvRows::Packed(qkv) => QkvRows::Packed(self.give_as(qkv, &together(&[dq, dk, dv]))?),
            QkvRows::Apart { q, kv } => {
                QkvRows::Apart { q: self.give_as(q, &dq)?, kv: self.give_as(kv, &together(&[dk, dv]))? }
            }
        })
    }

    fn given(&self, heads: HeadLayout, (out, lse): (Vec<f64>, Vec<f64>)) -> Result<(Tensor, Tensor)> {
        let n = heads.heads();
        let tokens = lse.len() / n.max(1);
        Ok((self.give(&[tokens, n * heads.head_dim], &out)?, self.give(&[n, tokens], &lse)?))
    }

    /// `[T,places]` picks.
    pub(crate) fn picks(
        &self,
        inputs: &IndexerInputs<'_>,
        sights: &[Sight],
        places: usize,
    ) -> Result<Tensor> {
        Tensor::from_slice(&self.arena, [sights.len(), places], &pick(inputs, sights, places)?)
    }
}

impl AttentionBackend for Reference {
    fn prepare_qkv(
        &self,
        qkv: &Tensor,
        heads: HeadLayout,
        norm: Option<&QkNorm<'_>>,
        rotary: &Rotary,
        positions: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        expect("prepare_qkv", "qkv", qkv, &[positions.numel(), heads.packed_width()])?;
        let turn = Turn::new(rotary, positions, false)?;
        let scales = norm.map(|n| Ok::<_, Error>((reals(n.q)?, reals(n.k)?, n.eps))).transpose()?;
        let y = prepare(reals(qkv)?, heads, scales, &turn);
        let mut rstd = Vec::new();
        if let Some(norm) = norm {
            let (d, each) = (heads.head_dim, heads.heads_per_group + 2);
            let all = reals(qkv)?.chunks_exact(d).enumerate().filter(|(i, _)| i % each + 1 < each);
            rstd.extend(all.map(|(_, head)| reciprocal_root_mean_square(head, norm.eps)));
        }
        Ok((self.give_as(qkv, &y)?, self.give(&[rstd.len()], &rstd)?))
    }

    fn prepare_qkv_backward(
        &self,
        dprepared: Tensor,
        qkv: &Tensor,
        _rstd: &Tensor,
        heads: HeadLayout,
        norm: Option<&QkNorm<'_>>,
        dnorm: Option<(&mut Tensor, &mut Tensor)>,
        rotary: &Rotary,
        positions: &Tensor,
    ) -> Result<Tensor> {
        let Some(norm) = norm else {
            // Without a norm the gradient is the rotation back.
            let back = Turn::new(rotary, positions, true)?;
            return self.give_as(&dprepared, &prepare(reals(&dprepared)?, heads, None, &back));
        };
        let turn = Turn::new(rotary, positions, false)?;
        let [dx, dq, dk] =
            gradient([reals(qkv)?, reals(norm.q)?, reals(norm.k)?], reals(&dprepared)?, |[x, q, k]| {
                prepare(x, heads, Some((q, k, norm.eps)), &turn)
            });
        if let Some((to_q, to_k)) = dnorm {
            for (to, d) in [(to_q, dq), (to_k, dk)] {
                to.as_mut_slice::<f64>()?.iter_mut().zip(&d).for_each(|(t, d)| *t += d);
            }
        }
        self.give_as(qkv, &dx)
    }

    fn attention(
        &self,
        rows: QkvRows<&Tensor>,
        heads: HeadLayout,
        segments: &[Segment],
        options: &AttentionOptions,
        dropout: Option<&AttentionDropout>,
    ) -> Result<(Tensor, Tensor)> {
        let (tokens, keys) = heads.check_rows("attention", rows)?;
        let queries = queries(segments, tokens, keys, options)?;
        // Scores, and sums of values.
        self.worked(2 * pairs(&queries, heads));
        self.given(heads, attend(&Operands::of(rows, heads)?, &queries, tokens, options, dropout))
    }

    fn attention_backward(
        &self,
        dout: &Tensor,
        rows: QkvRows<&Tensor>,
        out: &Tensor,
        lse: &Tensor,
        heads: HeadLayout,
        segments: &[Segment],
        options: &AttentionOptions,
        dropout: Option<&AttentionDropout>,
    ) -> Result<QkvRows<Tensor>> {
        let (tokens, keys) = heads.check_rows("attention_backward", rows)?;
        let queries = queries(segments, tokens, keys, options)?;
        // Scores again, gradients of weights, and sums for queries, keys and values.
        self.worked(5 * pairs(&queries, heads));
        let (operands, kept) = (Operands::of(rows, heads)?, (reals(out)?, reals(lse)?));
        self.by_rows(rows, attend_backward(reals(dout)?, &operands, kept, &queries, options, dropout))
    }

    fn attention_merge(
        &self,
        out: &mut Tensor,
        lse: &mut Tensor,
        part: &Tensor,
        part_lse: &Tensor,
    ) -> Result<()> {
        let (heads, tokens) = lse.as_matrix();
        expect("attention_merge", "part", part, &out.shape())?;
        let d = out.as_matrix().1 / heads.max(1);
        let (out, lse) = (out.as_mut_slice::<f64>()?, lse.as_mut_slice::<f64>()?);
        for (i, &b) in reals(part_lse)?.iter().enumerate().filter(|(_, b)| **b != f64::NEG_INFINITY) {
            let (n, t, a) = (i / tokens, i % tokens, lse[i]);
            let both = a.max(b) + ((a - a.max(b)).exp() + (b - a.max(b)).exp()).ln();
            let at = (t * heads + n) * d;
            for (o, p) in out[at..at + d].iter_mut().zip(&reals(part)?[at..at + d]) {
                *o = *o * (a - both).exp() + p * (b - both).exp();
            }
            lse[i] = both;
        }
        Ok(())
    }

    fn attention_sinks(&self, out: &mut Tensor, lse: &mut Tensor, sinks: &Tensor) -> Result<()> {
        let (heads, tokens) = lse.as_matrix();
        expect("attention_sinks", "sinks", sinks, &[heads])?;
        let d = out.as_matrix().1 / heads.max(1);
        let (out, lse) = (out.as_mut_slice::<f64>()?, lse.as_mut_slice::<f64>()?);
        for (i, lse) in lse.iter_mut().enumerate() {
            let (n, t) = (i / tokens, i % tokens);
            let sink = reals(sinks)?[n];
            let share = Real::sigmoid(*lse - sink);
            out[(t * heads + n) * d..][..d].iter_mut().for_each(|o| *o *= share);
            *lse = if *lse == f64::NEG_INFINITY { sink } else { *lse + Real::softplus(sink - *lse) };
        }
        Ok(())
    }

    fn attention_sinks_backward(
        &self,
        mut dsinks: TensorMut<'_>,
        dout: &Tensor,
        out: &Tensor,
        lse: &Tensor,
        sinks: &Tensor,
    ) -> Result<()> {
        let (heads, tokens) = lse.as_matrix();
        let d = out.as_matrix().1 / heads.max(1);
        let (dout, out, lse, sinks) = (reals(dout)?, reals(out)?, reals(lse)?, reals(sinks)?);
        let dsinks = dsinks.as_mut_slice::<f64>()?;
        for (i, lse) in lse.iter().enumerate() {
            let (n, t) = (i / tokens, i % tokens);
            let at = (t * heads + n) * d;
            dsinks[n] -= (sinks[n] - lse).exp() * dot(&dout[at..at + d], &out[at..at + d]);
        }
        Ok(())
    }

    fn attention_cached(
        &self,
        qkv: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        heads: HeadLayout,
        segments: &[Segment],
        options: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> {
        let (tokens, places) = (qkv.as_matrix().0, keys.as_matrix().0);
        let queries = queries(segments, tokens, places, options)?;
        self.given(
            heads,
            attend(&Operands::cached(qkv, keys, values, heads)?, &queries, tokens, options, None),
        )
    }

    fn attention_picked(
        &self,
        rows: QkvRows<&Tensor>,
        heads: HeadLayout,
        picks: &Tensor,
        options: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> {
        let (tokens, keys) = heads.check_rows("attention_picked", rows)?;
        let operands = Operands::of(rows, heads)?;
        self.given(heads, attend(&operands, &picked(picks, keys)?, tokens, &plain(options), None))
    }

    fn attention_picked_backward(
        &self,
        dout: &Tensor,
        rows: QkvRows<&Tensor>,
        out: &Tensor,
        lse: &Tensor,
        heads: HeadLayout,
        picks: &Tensor,
        options: &AttentionOptions,
    ) -> Result<QkvRows<Tensor>> {
        let (_, keys) = heads.check_rows("attention_picked_backward", rows)?;
        let queries = picked(picks, keys)?;
        let (operands, kept) = (Operands::of(rows, heads)?, (reals(out)?, reals(lse)?));
        self.by_rows(rows, attend_backward(reals(dout)?, &operands, kept, &queries, &plain(options), None))
    }

    fn attention_picked_cached(
        &self,
        qkv: &Tensor,
        (keys, values): (&Tensor, &Tensor),
        heads: HeadLayout,
        picks: &Tensor,
        options: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> {
        let (tokens, rows) = (qkv.as_matrix().0, keys.as_matrix().0);
        let operands = Operands::cached(qkv, keys, values, heads)?;
        self.given(heads, attend(&operands, &picked(picks, rows)?, tokens, &plain(options), None))
    }

    fn cache_append(
        &self,
        keys: &mut Tensor,
        values: &mut Tensor,
        qkv: &Tensor,
        heads: HeadLayout,
        places: &[usize],
    ) -> Result<()> {
        let rows = keys.as_matrix().0;
        if let Some(&place) = places.iter().find(|&&p| p >= rows) {
            return Err(Error::Range { what: "cache places", start: place, end: place + 1, len: rows });
        }
        let [_, k, v] = View::packed(heads);
        let apart = View::apart(heads);
        for (cache, view) in [(keys, k), (values, v)] {
            let cache = cache.as_mut_slice::<f64>()?;
            for (t, &place) in places.iter().enumerate() {
                for g in 0..heads.groups {
                    cache[apart.at(place, g, 0)].copy_from_slice(&reals(qkv)?[view.at(t, g, 0)]);
                }
            }
        }
        Ok(())
    }
}

/// Scores of picked keys are scaled and nothing else.
fn plain(o: &AttentionOptions) -> AttentionOptions {
    AttentionOptions { scale: o.scale, window: None, softcap: None, alibi: None }
}
