//! Attention on the CPU.

use super::{CpuBackend, expect, ids, op_span, size, with_float};
use ms_core::{
    AttentionBackend, AttentionDropout, AttentionOptions, DType, Error, HeadLayout, QkNorm, QkvRows, Result,
    Rotary, Scalar, Segment, Tensor, TensorMut,
};
use ms_kernels::attention::{self, Heads, Options};
use ms_kernels::qkv::{self, Packed};
use ms_kernels::{rope, selected, sinks};

fn packed(heads: HeadLayout, tokens: usize) -> Packed {
    Packed { tokens, groups: heads.groups, heads_per_group: heads.heads_per_group, head_dim: heads.head_dim }
}

pub(super) fn rotary(r: &Rotary) -> Result<rope::Rotary<'_>> {
    Ok(rope::Rotary {
        cos: r.cos.as_slice()?,
        sin: r.sin.as_slice()?,
        dim: r.dim,
        interleaved: r.interleaved,
    })
}

fn options(o: &AttentionOptions) -> Options {
    Options {
        scale: o.scale as f32,
        window: o.window,
        softcap: o.softcap.map(|c| c as f32),
        causal: true,
        alibi: o.alibi,
    }
}

/// The arrays of rows.
fn slices<E: Scalar>(rows: QkvRows<&Tensor>) -> Result<QkvRows<&[E]>> {
    rows.try_map(|rows| rows.as_slice::<E>())
}

fn norm_weights<'a, E: Scalar>(norm: Option<&QkNorm<'a>>) -> Result<Option<qkv::QkNorm<'a, E>>> {
    norm.map(|n| Ok(qkv::QkNorm { q_weight: n.q.as_slice()?, k_weight: n.k.as_slice()?, eps: n.eps as f32 }))
        .transpose()
}

/// Floating-point operations of causal attention: two products over the visible keys.
fn forward_flops(heads: HeadLayout, segments: &[Segment]) -> usize {
    let visible = |s: &Segment| s.q_len * (s.k_len - s.q_len.min(s.k_len)) + s.q_len * (s.q_len + 1) / 2;
    4 * heads.heads() * heads.head_dim * segments.iter().map(visible).sum::<usize>()
}

/// Bytes of the cached keys and values that the segments read.
fn read_bytes(heads: HeadLayout, segments: &[Segment], x: &Tensor) -> usize {
    let keys: usize = segments.iter().map(|s| s.k_len).sum();
    2 * keys * heads.groups * heads.head_dim * x.dtype().size()
}

/// Bytes of rows.
fn rows_size(rows: QkvRows<&Tensor>) -> usize {
    rows.into_parts().map(|rows| size(&[rows])).sum()
}

/// Arrays for gradients, shaped like the arrays they belong to.
fn pairs<'a, E: Scalar>(
    to: &'a mut QkvRows<Tensor>,
    rows: QkvRows<&'a Tensor>,
) -> Result<QkvRows<(&'a mut [E], &'a [E])>> {
    let pair = |to: &'a mut Tensor, rows: &'a Tensor| -> Result<_> {
        Ok((to.as_mut_slice::<E>()?, rows.as_slice::<E>()?))
    };
    match (to, rows) {
        (QkvRows::Packed(to), rows) => Ok(QkvRows::Packed(pair(to, rows.queries())?)),
        (QkvRows::Apart { q: dq, kv: dkv }, rows) => {
            Ok(QkvRows::Apart { q: pair(dq, rows.queries())?, kv: pair(dkv, rows.keys())? })
        }
    }
}

impl CpuBackend {
    /// Attention over picked keys with this many rows; `like` has the queries, and this many bytes are read.
    fn over_picked<E: Scalar + ms_kernels::Element>(
        &self,
        like: &Tensor,
        [q, k, v]: [Heads<'_, E>; 3],
        heads: HeadLayout,
        (picks, rows, bytes): (&Tensor, usize, usize),
        o: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> {
        let ((tokens, places), d) = (picks.as_matrix(), heads.head_dim);
        let mut out = self.uninit(like.dtype(), &[tokens, heads.heads() * d]);
        let mut lse = self.uninit(DType::F32, &[heads.heads(), tokens]);
        op_span!("attention_picked", 4 * picks.numel() * heads.heads() * d, bytes + size(&[picks, &out]));
        let (to, sums) = (out.as_mut_slice()?, lse.as_mut_slice()?);
        let sizes = (heads.groups, heads.heads_per_group, d);
        selected::forward(&self.cpu, to, sums, q, k, v, sizes, ids(picks)?, places, rows, o.scale as f32)?;
        Ok((out, lse))
    }
}

impl AttentionBackend for CpuBackend {
    fn prepare_qkv(
        &self,
        x: &Tensor,
        heads: HeadLayout,
        norm: Option<&QkNorm<'_>>,
        tables: &Rotary,
        positions: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let tokens = x.as_matrix().0;
        expect("prepare_qkv", "qkv", x, x.dtype(), &[tokens, heads.packed_width()])?;
        expect("prepare_qkv", "positions", positions, DType::I32, &[tokens])?;
        op_span!("prepare_qkv", 6 * x.numel(), 2 * size(&[x]));
        let rows = if norm.is_some() { tokens * (heads.heads() + heads.groups) } else { 0 };
        let mut rstd = self.uninit(DType::F32, &[rows]);
        let mut out = self.uninit(x.dtype(), &[tokens, heads.packed_width()]);
        with_float!(x.dtype(), "prepare_qkv", E => {
            qkv::forward(
                &self.cpu,
                out.as_mut_slice::<E>()?,
                rstd.as_mut_slice()?,
                x.as_slice()?,
                &packed(heads, tokens),
                norm_weights(norm)?.as_ref(),
                ids(positions)?,
                &rotary(tables)?,
            )?;
        });
        Ok((out, rstd))
    }

    fn prepare_qkv_backward(
        &self,
        mut d: Tensor,
        x: &Tensor,
        rstd: &Tensor,
        heads: HeadLayout,
        norm: Option<&QkNorm<'_>>,
        dnorm: Option<(&mut Tensor, &mut Tensor)>,
        tables: &Rotary,
        positions: &Tensor,
    ) -> Result<Tensor> {
        let tokens = d.as_matrix().0;
        expect("prepare_qkv_backward", "dprepared", &d, d.dtype(), &[tokens, heads.packed_width()])?;
        if !d.is_unique() {
            d = d.copied()?;
        }
        op_span!("prepare_qkv_backward", 6 * d.numel(), 3 * size(&[&d]));
        let (dq, dk): (&mut [f32], &mut [f32]) = match dnorm {
            Some((dq, dk)) => (dq.as_mut_slice()?, dk.as_mut_slice()?),
            None => (&mut [], &mut []),
        };
        with_float!(d.dtype(), "prepare_qkv_backward", E => {
            // Without a norm the kernel does not read the unprepared rows.
            let x: &[E] = if norm.is_some() { x.as_slice()? } else { &[] };
            qkv::backward(
                &self.cpu,
                d.as_mut_slice::<E>()?,
                x,
                rstd.as_slice()?,
                &packed(heads, tokens),
                norm_weights(norm)?.as_ref(),
                dq,
                dk,
                ids(positions)?,
                &rotary(tables)?,
            )?;
        });
        Ok(d)
    }

    fn attention(
        &self,
        rows: QkvRows<&Tensor>,
        heads: HeadLayout,
        segments: &[Segment],
        o: &AttentionOptions,
        dropout: Option<&AttentionDropout>,
    ) -> Result<(Tensor, Tensor)> {
        let (tokens, _) = heads.check_rows("attention", rows)?;
        let dtype = rows.queries().dtype();
        let mut out = self.uninit(dtype, &[tokens, heads.heads() * heads.head_dim]);
        let mut lse = self.uninit(DType::F32, &[heads.heads(), tokens]);
        if segments.iter().map(|s| s.q_len).sum::<usize>() < tokens {
            out.bytes_mut()?.fill(0);
            lse.as_mut_slice::<f32>()?.fill(f32::NEG_INFINITY);
        }
        op_span!("attention", forward_flops(heads, segments), rows_size(rows) + size(&[&out, &lse]));
        with_float!(dtype, "attention", E => {
            let [q, k, v] = Heads::of(slices::<E>(rows)?, &packed(heads, tokens));
            let (out, lse) = (out.as_mut_slice()?, lse.as_mut_slice()?);
            let (g, n, d) = (heads.groups, heads.heads_per_group, heads.head_dim);
            let (options, dropout) = (options(o), dropout.map(AttentionDropout::view));
            let dropout = dropout.as_ref();
            attention::forward(&self.cpu, out, Some(lse), q, k, v, g, n, d, segments, &options, dropout)?;
        });
        Ok((out, lse))
    }

    fn attention_backward(
        &self,
        dout: &Tensor,
        rows: QkvRows<&Tensor>,
        out: &Tensor,
        lse: &Tensor,
        heads: HeadLayout,
        segments: &[Segment],
        o: &AttentionOptions,
        dropout: Option<&AttentionDropout>,
    ) -> Result<QkvRows<Tensor>> {
        let (tokens, _) = heads.check_rows("attention_backward", rows)?;
        let dtype = rows.queries().dtype();
        expect("attention_backward", "dout", dout, dtype, &[tokens, heads.heads() * heads.head_dim])?;
        let mut to = rows.map(|rows| self.uninit(dtype, &rows.shape()));
        op_span!(
            "attention_backward",
            forward_flops(heads, segments) * 5 / 2,
            2 * rows_size(rows) + size(&[dout, out, lse])
        );
        with_float!(dtype, "attention_backward", E => {
            attention::backward(
                &self.cpu,
                pairs::<E>(&mut to, rows)?,
                dout.as_slice()?,
                out.as_slice()?,
                lse.as_slice()?,
                &packed(heads, tokens),
                segments,
                &options(o),
                dropout.map(AttentionDropout::view).as_ref(),
            )?;
        });
        Ok(to)
    }

    fn attention_merge(
        &self,
        out: &mut Tensor,
        lse: &mut Tensor,
        part: &Tensor,
        part_lse: &Tensor,
    ) -> Result<()> {
        let (heads, tokens) = lse.as_matrix();
        let width = out.as_matrix().1;
        expect("attention_merge", "part", part, part.dtype(), &[tokens, width])?;
        expect("attention_merge", "part_lse", part_lse, DType::F32, &[heads, tokens])?;
        op_span!("attention_merge", 4 * out.numel(), 2 * size(&[out, lse]) + size(&[part]));
        with_float!(part.dtype(), "attention_merge", E => {
            let (out, lse) = (out.as_mut_slice()?, lse.as_mut_slice()?);
            attention::merge(&self.cpu, out, lse, part.as_slice::<E>()?, part_lse.as_slice()?, heads)?;
            Ok(())
        })
    }

    fn attention_sinks(&self, out: &mut Tensor, lse: &mut Tensor, sinks: &Tensor) -> Result<()> {
        op_span!("attention_sinks", 2 * out.numel(), 2 * size(&[out, lse]));
        with_float!(out.dtype(), "attention_sinks", E => {
            let (out, lse) = (out.as_mut_slice::<E>()?, lse.as_mut_slice()?);
            sinks::forward(&self.cpu, out, lse, sinks.as_slice()?)?;
            Ok(())
        })
    }

    fn attention_sinks_backward(
        &self,
        mut dsinks: TensorMut<'_>,
        dout: &Tensor,
        out: &Tensor,
        lse: &Tensor,
        sinks: &Tensor,
    ) -> Result<()> {
        expect("attention_sinks_backward", "dout", dout, out.dtype(), &out.shape())?;
        op_span!("attention_sinks_backward", 2 * out.numel(), size(&[dout, out, lse]));
        with_float!(out.dtype(), "attention_sinks_backward", E => {
            let (dsinks, dout, out) = (dsinks.as_mut_slice()?, dout.as_slice::<E>()?, out.as_slice()?);
            sinks::backward(&self.cpu, dsinks, dout, out, lse.as_slice()?, sinks.as_slice()?)?;
            Ok(())
        })
    }

    fn attention_cached(
        &self,
        x: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        heads: HeadLayout,
        segments: &[Segment],
        o: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> {
        let (tokens, places, width) = (x.as_matrix().0, keys.as_matrix().0, heads.groups * heads.head_dim);
        expect("attention_cached", "qkv", x, x.dtype(), &[tokens, heads.packed_width()])?;
        expect("attention_cached", "keys", keys, x.dtype(), &[places, width])?;
        expect("attention_cached", "values", values, x.dtype(), &[places, width])?;
        let mut out = self.uninit(x.dtype(), &[tokens, heads.heads() * heads.head_dim]);
        let mut lse = self.uninit(DType::F32, &[heads.heads(), tokens]);
        op_span!(
            "attention_cached",
            forward_flops(heads, segments),
            size(&[x, &out]) + read_bytes(heads, segments, x)
        );
        with_float!(x.dtype(), "attention_cached", E => {
            let q = Heads::queries(x.as_slice::<E>()?, &packed(heads, tokens));
            let d = heads.head_dim;
            let cached = |data| Heads { data, offset: 0, token_stride: width, group_stride: d, head_stride: d };
            let (k, v) = (cached(keys.as_slice::<E>()?), cached(values.as_slice::<E>()?));
            let (g, n) = (heads.groups, heads.heads_per_group);
            let (out, lse) = (out.as_mut_slice()?, lse.as_mut_slice()?);
            attention::forward(&self.cpu, out, Some(lse), q, k, v, g, n, d, segments, &options(o), None)?;
        });
        Ok((out, lse))
    }

    fn attention_picked(
        &self,
        rows: QkvRows<&Tensor>,
        heads: HeadLayout,
        picks: &Tensor,
        o: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> {
        let (tokens, keys) = heads.check_rows("attention_picked", rows)?;
        with_float!(rows.queries().dtype(), "attention_picked", E => {
            let operands = Heads::of(slices::<E>(rows)?, &packed(heads, tokens));
            self.over_picked(rows.queries(), operands, heads, (picks, keys, rows_size(rows)), o)
        })
    }

    fn attention_picked_backward(
        &self,
        dout: &Tensor,
        rows: QkvRows<&Tensor>,
        out: &Tensor,
        lse: &Tensor,
        heads: HeadLayout,
        picks: &Tensor,
        o: &AttentionOptions,
    ) -> Result<QkvRows<Tensor>> {
        let (tokens, _) = heads.check_rows("attention_picked_backward", rows)?;
        let (places, width) = (picks.as_matrix().1, heads.heads() * heads.head_dim);
        let dtype = rows.queries().dtype();
        expect("attention_picked_backward", "dout", dout, dtype, &[tokens, width])?;
        let mut to = rows.map(|rows| self.uninit(dtype, &rows.shape()));
        op_span!(
            "attention_picked_backward",
            10 * picks.numel() * width,
            2 * rows_size(rows) + size(&[dout, out])
        );
        with_float!(dtype, "attention_picked_backward", E => {
            selected::backward(
                &self.cpu,
                pairs::<E>(&mut to, rows)?,
                dout.as_slice()?,
                out.as_slice()?,
                lse.as_slice()?,
                &packed(heads, tokens),
                (ids(picks)?, places),
                o.scale as f32,
            )?;
        });
        Ok(to)
    }

    fn attention_picked_cached(
        &self,
        x: &Tensor,
        (keys, values): (&Tensor, &Tensor),
        heads: HeadLayout,
        picks: &Tensor,
        o: &AttentionOptions,
    ) -> Result<(Tensor, Tensor)> {
        const OP: &str = "attention_picked_cached";
        let (tokens, rows) = (x.as_matrix().0, keys.as_matrix().0);
        let (d, width) = (heads.head_dim, heads.groups * heads.head_dim);
        expect(OP, "qkv", x, x.dtype(), &[tokens, heads.packed_width()])?;
        expect(OP, "keys", keys, x.dtype(), &[rows, width])?;
        expect(OP, "values", values, x.dtype(), &[rows, width])?;
        with_float!(x.dtype(), "attention_picked_cached", E => {
            let apart = |data| Heads { data, offset: 0, token_stride: width, group_stride: d, head_stride: d };
            let q = Heads::queries(x.as_slice::<E>()?, &packed(heads, tokens));
            let operands = [q, apart(keys.as_slice::<E>()?), apart(values.as_slice::<E>()?)];
            self.over_picked(x, operands, heads, (picks, rows, size(&[x, keys, values])), o)
        })
    }

    fn cache_append(
        &self,
        keys: &mut Tensor,
        values: &mut Tensor,
        x: &Tensor,
        heads: HeadLayout,
        places: &[usize],
    ) -> Result<()> {
        let (rows, width) = (keys.as_matrix().0, heads.groups * heads.head_dim);
        expect("cache_append", "qkv", x, keys.dtype(), &[places.len(), heads.packed_width()])?;
        expect("cache_append", "values", values, keys.dtype(), &[rows, width])?;
        if let Some(&place) = places.iter().find(|&&p| p >= rows) {
            return Err(Error::Range { what: "cache places", start: place, end: place + 1, len: rows });
        }
        op_span!("cache_append", 0, 4 * places.len() * width * x.dtype().size());
        let size = x.dtype().size();
        let (d, group) = (heads.head_dim * size, (heads.heads_per_group + 2) * heads.head_dim * size);
        let (source, row) = (x.bytes(), heads.packed_width() * size);
        for (which, cache) in [(0, keys), (1, values)] {
            let cache = cache.bytes_mut()?;
            for (t, &place) in places.iter().enumerate() {
                for g in 0..heads.groups {
                    let from = t * row + g * group + (heads.heads_per_group + which) * d;
                    let to = (place * heads.groups + g) * d;
                    cache[to..to + d].copy_from_slice(&source[from..from + d]);
                }
            }
        }
        Ok(())
    }
}
