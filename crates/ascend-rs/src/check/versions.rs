//! Versions of attention for training: sequences one after the other, biases, sinks, separate parts of queries and keys.

use super::attention::causal_mask;
use super::scores::{Pair, Parts, Sizes, attend};
use super::{Bench, Check, FLOATS, Given, gradient};
use crate::operator::View;
use crate::ops::{
    Attention, AttentionExtras, AttentionGradients, AttentionOptions, AttentionResults, BiasOptions,
    RopeGradients, RopeParts, SequenceEnds,
};
use crate::{Array, Result, ops};
use ms_core::DType;
use std::ffi::CStr;

/// Heads of queries, heads of keys, size of a head, of its part of its own, and the scale.
const N: usize = 4;
const G: usize = 2;
const D: usize = 16;
const R: usize = 8;
const SCALE: f64 = 0.25;

/// Causal attention of sequences that end at `ends`, over rows `[t,n,d]`.
struct Form {
    ends: Vec<usize>,
    /// By sequence, head, and query and key within the sequence; and whether the scale comes before it.
    bias: Option<(Vec<f64>, bool)>,
}

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

    fn forward(&self, parts: Parts<'_>) -> Vec<f64> {
        let (t, long) = (self.rows(), self.longest());
        let score = |pair: Pair, dot: f64| {
            let ((own, row), (other, col)) = (self.place(pair.i), self.place(pair.j));
            let bias = |values: &[f64]| values[((own * N + pair.n) * long + row) * long + col];
            match &self.bias {
                _ if other != own || col > row => None,
                None => Some(dot * SCALE),
                Some((values, true)) => Some(dot * SCALE + bias(values)),
                Some((values, false)) => Some((dot + bias(values)) * SCALE),
            }
        };
        attend(Sizes { b: 1, s: t, r: t, n: N, g: G, d: D }, parts, score).out
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

    fn attention(&self, input_layout: &'static CStr) -> Result<Attention<'_>> {
        Ok(Attention {
            query: self.q.view()?,
            key: self.k.view()?,
            value: self.v.view()?,
            head_num: N as i64,
            input_layout,
            scale_value: SCALE,
            options: AttentionOptions {
                pse_shift: maybe(self.shift.as_ref())?,
                atten_mask: Some(self.mask.view()?),
                sparse_mode: 2,
                ..Default::default()
            },
        })
    }

    fn sink(&self) -> Result<Option<View<'_>>> {
        maybe(self.sink.as_ref())
    }

    fn rope(&self) -> Result<RopeParts<'_>> {
        let (q, k) = self.rope.as_ref().map_or((None, None), |(q, k)| (Some(q), Some(k)));
        Ok(RopeParts { query_rope: maybe(q)?, key_rope: maybe(k)? })
    }

    fn bias(&self) -> BiasOptions<'static> {
        BiasOptions { pse_type: self.kind, ..Default::default() }
    }

    fn results(&self) -> Result<AttentionResults<'_>> {
        Ok(AttentionResults {
            softmax_max: self.max.view()?,
            softmax_sum: self.sum.view()?,
            softmax_out: Some(self.none.view()?),
            attention_out: self.out.view()?,
        })
    }

    fn gradients(&self) -> Result<AttentionGradients<'_>> {
        let [dq, dk, dv, ..] = &self.grads;
        let dpse = Some(self.none.view()?);
        Ok(AttentionGradients { dq: dq.view()?, dk: dk.view()?, dv: dv.view()?, dpse })
    }

    fn dsink(&self) -> Result<Option<View<'_>>> {
        self.grads[3].view().map(Some)
    }

    fn rope_gradients(&self) -> Result<RopeGradients<'_>> {
        let [.., dq, dk] = &self.grads;
        Ok(RopeGradients { dq_rope: Some(dq.view()?), dk_rope: Some(dk.view()?) })
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
fn padded(b: &mut Bench<'_>, version: usize) -> Result<()> {
    // Central differences of a loop over all pairs: the sequence stays short.
    let (batch, s) = (2, b.size.rows.min(4));
    let mask = causal_mask(b)?;
    let ends: Vec<usize> = (1..=batch).map(|i| i * s).collect();
    let kinds = [None, Some(0), Some(1), Some(2), Some(3)];
    for kind in [kinds[b.size.rows % kinds.len()], kinds[(b.size.rows + 2) % kinds.len()]] {
        let r = Run::new(b, &mask, &[batch, s], ends.clone(), kind, (version > 2, version > 3))?;
        run_padded(b, version, &r)?;
        r.compare(b, &format!("version {version} with bias {kind:?}"))?;
    }
    Ok(())
}

fn run_padded(b: &Bench<'_>, version: usize, r: &Run<'_>) -> Result<()> {
    let forward = (r.attention(c"BSND")?, r.sink()?, r.rope()?, r.bias(), r.results()?);
    let (of, sink, rope, bias, results) = forward.clone();
    let extras = AttentionExtras::default();
    match version {
        2 => ops::FlashAttentionScoreV2 { of, bias, results }.run(b.stream)?,
        3 => ops::FlashAttentionScoreV3 { of, sink, bias, results }.run(b.stream)?,
        _ => ops::FlashAttentionScoreV4 { of, sink, bias, rope, extras, results }.run(b.stream)?,
    }
    let (of, sink, rope, bias, results) = forward;
    let (dy, gradients, dsink) = (r.dy.view()?, r.gradients()?, r.dsink()?);
    match version {
        2 => ops::FlashAttentionScoreGradV2 { of, dy, bias, results, gradients }.run(b.stream),
        3 => ops::FlashAttentionScoreGradV3 { of, dy, sink, bias, results, gradients, dsink }.run(b.stream),
        _ => ops::FlashAttentionScoreGradV4 {
            of,
            dy,
            sink,
            d_scale_dy: None,
            d_scale_o: None,
            bias,
            rope,
            extras: AttentionExtras::default(),
            results,
            gradients,
            dsink,
            rope_gradients: r.rope_gradients()?,
        }
        .run(b.stream),
    }
}

/// All versions over sequences one after the other, one of them empty.
fn ragged(b: &mut Bench<'_>, version: usize) -> Result<()> {
    let places = super::ends(&[b.size.rows.min(4), 0, 1, 2]);
    let list: Vec<i64> = places.iter().map(|e| *e as i64).collect();
    let mask = causal_mask(b)?;
    // Versions 1 and 4 know of no slopes.
    let kind = if matches!(version, 1 | 4) { None } else { Some(2 + (version + b.size.rows) as i64 % 2) };
    let with = (version == 5, matches!(version, 3 | 5));
    let r = Run::new(b, &mask, &[places[3]], places, kind, with)?;
    run_ragged(b, version, &r, SequenceEnds { actual_seq_q_len: &list, actual_seq_kv_len: &list })?;
    r.compare(b, &format!("ragged version {version}"))
}

fn run_ragged(b: &Bench<'_>, version: usize, r: &Run<'_>, ends: SequenceEnds<'_>) -> Result<()> {
    let softmax_layout = c"same_as_input";
    let forward = (r.attention(c"TND")?, r.sink()?, r.rope()?, r.bias(), r.results()?);
    let (of, sink, rope, bias, results) = forward.clone();
    match version {
        1 => ops::FlashAttentionVarLenScore { of, ends, results }.run(b.stream)?,
        2 => ops::FlashAttentionVarLenScoreV2 { of, ends, bias, results }.run(b.stream)?,
        3 => ops::FlashAttentionVarLenScoreV3 { of, ends, rope, bias, results }.run(b.stream)?,
        4 => ops::FlashAttentionVarLenScoreV4 { of, ends, softmax_layout, results }.run(b.stream)?,
        _ => ops::FlashAttentionVarLenScoreV5 { of, sink, ends, rope, bias, softmax_layout, results }
            .run(b.stream)?,
    }
    let (of, sink, rope, bias, results) = forward;
    let (dy, gradients) = (r.dy.view()?, r.gradients()?);
    let (dsink, rope_gradients) = (r.dsink()?, r.rope_gradients()?);
    match version {
        1 => ops::FlashAttentionUnpaddingScoreGrad { of, dy, ends, results, gradients }.run(b.stream),
        2 => ops::FlashAttentionUnpaddingScoreGradV2 { of, dy, ends, bias, results, gradients }.run(b.stream),
        3 => ops::FlashAttentionUnpaddingScoreGradV3 {
            of,
            dy,
            ends,
            rope,
            bias,
            results,
            gradients,
            rope_gradients,
        }
        .run(b.stream),
        4 => ops::FlashAttentionUnpaddingScoreGradV4 { of, dy, ends, softmax_layout, results, gradients }
            .run(b.stream),
        _ => ops::FlashAttentionUnpaddingScoreGradV5 {
            of,
            dy,
            sink,
            ends,
            rope,
            bias,
            softmax_layout,
            results,
            gradients,
            dsink,
            rope_gradients,
        }
        .run(b.stream),
    }
}

pub(super) const CHECKS: &[Check] = &[
    Check::of(&["aclnnFlashAttentionScoreV2", "aclnnFlashAttentionScoreGradV2"], FLOATS, |b| padded(b, 2)),
    Check::of(&["aclnnFlashAttentionScoreV3", "aclnnFlashAttentionScoreGradV3"], FLOATS, |b| padded(b, 3)),
    Check::of(&["aclnnFlashAttentionScoreV4", "aclnnFlashAttentionScoreGradV4"], FLOATS, |b| padded(b, 4)),
    Check::of(&["aclnnFlashAttentionVarLenScore", "aclnnFlashAttentionUnpaddingScoreGrad"], FLOATS, |b| {
        ragged(b, 1)
    }),
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
