//! Further versions of attention for training: biases, sinks, separate parts of queries and keys.

use super::attention::causal_mask;
use super::{Bench, Check, FLOATS, Given, gradient};
use crate::operator::View;
use crate::{Array, Result, ops};
use ms_core::DType;

/// Heads of queries, heads of keys, size of a head, of its part of its own, and the scale.
const N: usize = 4;
const G: usize = 2;
const D: usize = 16;
const R: usize = 8;
const SCALE: f64 = 0.25;

/// Causal attention of sequences that end at `ends`, over rows `[t,n,d]`.
struct Form {
    ends: Vec<usize>,
    /// By head, query and key within their sequence, and sequence; and whether the scale comes before it.
    bias: Option<(Vec<f64>, bool)>,
}

/// Queries, keys, values, sinks, and the parts of queries and keys of their own; the last three may be empty.
type Parts<'a> = [&'a [f64]; 6];

impl Form {
    fn rows(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn longest(&self) -> usize {
        self.rows().max(1)
    }

    /// Sequence of a row, and its place there.
    fn place(&self, row: usize) -> (usize, usize) {
        let own = self.ends.iter().position(|e| row < *e).unwrap_or(0);
        (own, row - if own == 0 { 0 } else { self.ends[own - 1] })
    }

    fn forward(&self, [q, k, v, sink, qr, kr]: Parts<'_>) -> Vec<f64> {
        let (t, long) = (self.rows(), self.longest());
        let mut out = vec![0.0; t * N * D];
        for (i, n) in (0..t).flat_map(|i| (0..N).map(move |n| (i, n))) {
            let g = n / (N / G);
            let (own, at) = self.place(i);
            let dot = |a: &[f64], x: usize, b: &[f64], y: usize, w: usize| -> f64 {
                (0..w).map(|c| a[x * w + c] * b[y * w + c]).sum()
            };
            let score = |j: usize| -> Option<f64> {
                let (other, col) = self.place(j);
                if other != own || col > at {
                    return None;
                }
                let mut s = dot(q, i * N + n, k, j * G + g, D);
                if !qr.is_empty() {
                    s += dot(qr, i * N + n, kr, j * G + g, R);
                }
                Some(match &self.bias {
                    None => s * SCALE,
                    Some((values, outside)) => {
                        let b = values[((own * N + n) * long + at) * long + col];
                        if *outside { s * SCALE + b } else { (s + b) * SCALE }
                    }
                })
            };
            let weights: Vec<f64> = (0..t).map(|j| score(j).map_or(0.0, f64::exp)).collect();
            let sum: f64 = weights.iter().sum::<f64>() + sink.get(n).map_or(0.0, |s| s.exp());
            for (j, w) in weights.iter().enumerate() {
                for c in 0..D {
                    out[(i * N + n) * D + c] += w / sum * v[(j * G + g) * D + c];
                }
            }
        }
        out
    }
}

/// What a run of a version is given.
struct Run<'a> {
    form: Form,
    q: Given,
    k: Given,
    v: Given,
    dy: Given,
    sink: Option<Given>,
    rope: Option<(Given, Given)>,
    shift: Option<Given>,
    kind: i64,
    mask: &'a Given,
    max: Array,
    sum: Array,
    out: Array,
    none: Array,
    /// Gradients of queries, keys, values, sinks, and the parts of their own.
    grads: [Array; 6],
}

fn maybe(given: Option<&Given>) -> Result<Option<View<'_>>> {
    given.map(Given::view).transpose()
}

impl<'a> Run<'a> {
    /// `lead`: the dimensions before heads. `kind`: where the bias comes from, if there is one.
    fn new(
        b: &mut Bench<'_>,
        mask: &'a Given,
        lead: &[usize],
        ends: Vec<usize>,
        kind: Option<i64>,
        (with_sink, with_rope): (bool, bool),
    ) -> Result<Run<'a>> {
        let of = |n: usize, d: usize| [lead, &[n, d]].concat();
        let mut form = Form { ends, bias: None };
        let (q, k) = (b.random(&of(N, D))?, b.random(&of(G, D))?);
        let (v, dy) = (b.random(&of(G, D))?, b.random(&of(N, D))?);
        let sink = if with_sink {
            let values = b.noise(N);
            Some(b.give_as(DType::F32, &[N], &values)?)
        } else {
            None
        };
        let rope = if with_rope { Some((b.random(&of(N, R))?, b.random(&of(G, R))?)) } else { None };
        let (long, batch) = (form.longest(), form.ends.len());
        let shift = match kind {
            None => None,
            Some(kind @ 0..=1) => {
                // Padded layouts only: every sequence has the same rows.
                let s = lead[1];
                let given = b.random(&[batch, N, s, s])?;
                let at = |i: usize| {
                    let (own, row, col) = (i / (long * long), i / long % long, i % long);
                    if row < s && col < s { given.v[(own * s + row) * s + col] } else { 0.0 }
                };
                form.bias = Some(((0..batch * N * long * long).map(at).collect(), kind == 0));
                Some(given)
            }
            Some(kind) => {
                let slopes: Vec<f64> = (1..=N).map(|n| 0.5f64.powi(n as i32)).collect();
                let at = |i: usize| {
                    let (n, row, col) = (i / (long * long) % N, i / long % long, i % long);
                    let far = (row as f64 - col as f64).abs();
                    -slopes[n] * if kind == 3 { far.sqrt() } else { far }
                };
                form.bias = Some(((0..batch * N * long * long).map(at).collect(), true));
                Some(b.give_as(DType::F32, &[N], &slopes)?)
            }
        };
        let statistics = if lead.len() == 1 { vec![lead[0], N, 8] } else { vec![lead[0], N, lead[1], 8] };
        let grads = [
            b.empty(&of(N, D))?,
            b.empty(&of(G, D))?,
            b.empty(&of(G, D))?,
            b.empty_as(DType::F32, &[N])?,
            b.empty(&of(N, R))?,
            b.empty(&of(G, R))?,
        ];
        Ok(Run {
            form,
            sink,
            rope,
            shift,
            kind: kind.unwrap_or(1),
            mask,
            max: b.empty_as(DType::F32, &statistics)?,
            sum: b.empty_as(DType::F32, &statistics)?,
            out: b.empty(&of(N, D))?,
            none: b.empty(&[0])?,
            grads,
            q,
            k,
            v,
            dy,
        })
    }

    fn parts(&self) -> Parts<'_> {
        let empty: &[f64] = &[];
        let (qr, kr) = self.rope.as_ref().map_or((empty, empty), |(a, b)| (&a.v[..], &b.v[..]));
        [&self.q.v, &self.k.v, &self.v.v, self.sink.as_ref().map_or(empty, |s| &s.v), qr, kr]
    }

    /// Output and gradients against the formula.
    fn compare(&self, b: &mut Bench<'_>, what: &str) -> Result<()> {
        let parts = self.parts();
        b.near(what, &self.out, &self.form.forward(parts))?;
        for (at, got) in self.grads.iter().enumerate().filter(|(at, _)| !parts[*at].is_empty()) {
            let moved = |x: &[f64]| {
                let mut parts = parts;
                parts[at] = x;
                self.form.forward(parts)
            };
            let name = ["dq", "dk", "dv", "dsink", "dq of its own", "dk of its own"][at];
            // The gradient of a sink is a sum over all rows of values in the check's own type.
            let tolerance = super::tolerance(b.dtype);
            b.near_within(
                &format!("{what}: {name}"),
                got,
                &gradient(moved, parts[at], &self.dy.v),
                tolerance,
            )?;
        }
        Ok(())
    }
}

/// Versions 2 to 4 over padded sequences.
#[rustfmt::skip] // calls of thirty operands
fn padded(b: &mut Bench<'_>, version: usize) -> Result<()> {
    // Central differences of a loop over all pairs: the sequence stays short.
    let (batch, s) = (2, b.size.rows.min(4));
    let mask = causal_mask(b)?;
    let ends: Vec<usize> = (1..=batch).map(|i| i * s).collect();
    let kinds = [None, Some(0), Some(1), Some(2), Some(3)];
    for kind in [kinds[b.size.rows % kinds.len()], kinds[(b.size.rows + 2) % kinds.len()]] {
        let r = Run::new(b, &mask, &[batch, s], ends.clone(), kind, (version > 2, version > 3))?;
        let (st, n, layout, far) = (b.stream, N as i64, c"BSND", 65536);
        let (q, k, v) = (r.q.view()?, r.k.view()?, r.v.view()?);
        let (dy, m) = (r.dy.view()?, Some(r.mask.view()?));
        let (p, sink) = (maybe(r.shift.as_ref())?, maybe(r.sink.as_ref())?);
        let (qr, kr) = (maybe(r.rope.as_ref().map(|r| &r.0))?, maybe(r.rope.as_ref().map(|r| &r.1))?);
        let (max, sum, none, out) = (r.max.view()?, r.sum.view()?, Some(r.none.view()?), r.out.view()?);
        let [dq, dk, dv, ds, dqr, dkr] = &r.grads;
        let (dq, dk, dv) = (dq.view()?, dk.view()?, dv.view()?);
        let (ds, dqr, dkr) = (Some(ds.view()?), Some(dqr.view()?), Some(dkr.view()?));
        let (mx, sm, o) = (Some(max.clone()), Some(sum.clone()), Some(out.clone()));
        match version {
            2 => {
                ops::versions::attention_v2(st, q.clone(), k.clone(), v.clone(), p.clone(), None, None, m.clone(), None, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, r.kind, max.clone(), sum.clone(), none.clone(), out.clone())?;
                ops::versions::attention_grad_v2(st, q.clone(), k.clone(), v.clone(), dy.clone(), p.clone(), None, None, m.clone(), mx.clone(), sm.clone(), None, o.clone(), None, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, r.kind, dq.clone(), dk.clone(), dv.clone(), none.clone())?;
            }
            3 => {
                ops::versions::attention_v3(st, q.clone(), k.clone(), v.clone(), p.clone(), None, None, m.clone(), sink.clone(), None, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, r.kind, max.clone(), sum.clone(), none.clone(), out.clone())?;
                ops::versions::attention_grad_v3(st, q.clone(), k.clone(), v.clone(), dy.clone(), p.clone(), None, None, m.clone(), mx.clone(), sm.clone(), None, o.clone(), sink.clone(), None, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, r.kind, dq.clone(), dk.clone(), dv.clone(), none.clone(), ds.clone())?;
            }
            _ => {
                ops::versions::attention_v4(st, q.clone(), k.clone(), v.clone(), p.clone(), None, None, m.clone(), qr.clone(), kr.clone(), None, None, None, sink.clone(), None, None, None, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, 0, r.kind, c"", 0, 0, max.clone(), sum.clone(), none.clone(), out.clone())?;
                ops::versions::attention_grad_v4(st, q.clone(), k.clone(), v.clone(), dy.clone(), p.clone(), None, None, m.clone(), mx.clone(), sm.clone(), None, o.clone(), sink.clone(), qr.clone(), kr.clone(), None, None, None, None, None, None, None, None, None, None, SCALE, 1.0, far, far, n, layout, c"", 0, 2, r.kind, 0, 0, 0, dq.clone(), dk.clone(), dv.clone(), dqr.clone(), dkr.clone(), none.clone(), ds.clone())?;
            }
        }
        r.compare(b, &format!("version {version} with bias {kind:?}"))?;
    }
    Ok(())
}

/// Versions 2 to 5 over sequences one after the other, one of them empty.
#[rustfmt::skip] // calls of thirty operands
fn ragged(b: &mut Bench<'_>, version: usize) -> Result<()> {
    let lengths = [b.size.rows.min(4), 0, 1, 2];
    let mut ends = Vec::new();
    lengths.iter().fold(0, |at, n| {
        ends.push(at + n);
        at + n
    });
    let t = ends[3];
    let list: Vec<i64> = ends.iter().map(|e| *e as i64).collect();
    let e = Some(&list[..]);
    let mask = causal_mask(b)?;
    let kind = if version == 4 { None } else { Some(2 + (version + b.size.rows) as i64 % 2) };
    let r = Run::new(b, &mask, &[t], ends.clone(), kind, (version == 5, version == 3 || version == 5))?;
    let (st, n, layout, far) = (b.stream, N as i64, c"TND", 65536);
    let (q, k, v) = (r.q.view()?, r.k.view()?, r.v.view()?);
    let (dy, m) = (r.dy.view()?, Some(r.mask.view()?));
    let (p, sink) = (maybe(r.shift.as_ref())?, maybe(r.sink.as_ref())?);
    let (qr, kr) = (maybe(r.rope.as_ref().map(|r| &r.0))?, maybe(r.rope.as_ref().map(|r| &r.1))?);
    let (max, sum, none, out) = (r.max.view()?, r.sum.view()?, Some(r.none.view()?), r.out.view()?);
    let [dq, dk, dv, ds, dqr, dkr] = &r.grads;
    let (dq, dk, dv) = (dq.view()?, dk.view()?, dv.view()?);
    let (ds, dqr, dkr) = (Some(ds.view()?), Some(dqr.view()?), Some(dkr.view()?));
    let (mx, sm, o) = (Some(max.clone()), Some(sum.clone()), Some(out.clone()));
    match version {
        2 => {
            ops::versions::attention_ragged_v2(st, q.clone(), k.clone(), v.clone(), p.clone(), None, None, m.clone(), None, e, e, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, r.kind, max.clone(), sum.clone(), none.clone(), out.clone())?;
            ops::versions::attention_ragged_grad_v2(st, q.clone(), k.clone(), v.clone(), dy.clone(), p.clone(), None, None, m.clone(), mx.clone(), sm.clone(), None, o.clone(), None, e, e, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, r.kind, dq.clone(), dk.clone(), dv.clone(), none.clone())?;
        }
        3 => {
            ops::versions::attention_ragged_v3(st, q.clone(), qr.clone(), k.clone(), kr.clone(), v.clone(), p.clone(), None, None, m.clone(), None, e, e, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, r.kind, max.clone(), sum.clone(), none.clone(), out.clone())?;
            ops::versions::attention_ragged_grad_v3(st, q.clone(), qr.clone(), k.clone(), kr.clone(), v.clone(), dy.clone(), p.clone(), None, None, m.clone(), mx.clone(), sm.clone(), None, o.clone(), None, e, e, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, r.kind, dq.clone(), dqr.clone(), dk.clone(), dkr.clone(), dv.clone(), none.clone())?;
        }
        4 => {
            ops::versions::attention_ragged_v4(st, q.clone(), k.clone(), v.clone(), None, None, None, m.clone(), None, e, e, SCALE, 1.0, far, far, n, layout, 0, 2, c"same_as_input", max.clone(), sum.clone(), none.clone(), out.clone())?;
            ops::versions::attention_ragged_grad_v4(st, q.clone(), k.clone(), v.clone(), dy.clone(), None, None, None, m.clone(), mx.clone(), sm.clone(), None, o.clone(), None, e, e, SCALE, 1.0, far, far, n, layout, 0, 2, dq.clone(), dk.clone(), dv.clone(), none.clone(), c"same_as_input")?;
        }
        _ => {
            ops::versions::attention_ragged_v5(st, q.clone(), qr.clone(), k.clone(), kr.clone(), v.clone(), p.clone(), None, None, m.clone(), sink.clone(), None, e, e, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, r.kind, c"same_as_input", max.clone(), sum.clone(), none.clone(), out.clone())?;
            ops::versions::attention_ragged_grad_v5(st, q.clone(), qr.clone(), k.clone(), kr.clone(), v.clone(), dy.clone(), p.clone(), None, None, m.clone(), mx.clone(), sm.clone(), None, o.clone(), sink.clone(), None, e, e, None, None, SCALE, 1.0, far, far, n, layout, 0, 2, r.kind, c"same_as_input", dq.clone(), dqr.clone(), dk.clone(), dkr.clone(), dv.clone(), none.clone(), ds.clone())?;
        }
    }
    r.compare(b, &format!("ragged version {version}"))?;
    Ok(())
}

pub(super) const CHECKS: &[Check] = &[
    Check::of(&["aclnnFlashAttentionScoreV2", "aclnnFlashAttentionScoreGradV2"], FLOATS, |b| padded(b, 2)),
    Check::of(&["aclnnFlashAttentionScoreV3", "aclnnFlashAttentionScoreGradV3"], FLOATS, |b| padded(b, 3)),
    Check::of(&["aclnnFlashAttentionScoreV4", "aclnnFlashAttentionScoreGradV4"], FLOATS, |b| padded(b, 4)),
    Check::of(
        &["aclnnFlashAttentionVarLenScoreV2", "aclnnFlashAttentionUnpaddingScoreGradV2"],
        FLOATS,
        |b| ragged(b, 2),
    ),
    Check::of(
        &["aclnnFlashAttentionVarLenScoreV3", "aclnnFlashAttentionUnpaddingScoreGradV3"],
        FLOATS,
        |b| ragged(b, 3),
    ),
    Check::of(
        &["aclnnFlashAttentionVarLenScoreV4", "aclnnFlashAttentionUnpaddingScoreGradV4"],
        FLOATS,
        |b| ragged(b, 4),
    ),
    Check::of(
        &["aclnnFlashAttentionVarLenScoreV5", "aclnnFlashAttentionUnpaddingScoreGradV5"],
        FLOATS,
        |b| ragged(b, 5),
    ),
];
