//! Attention over nearby tokens and pooled entries of distant ones.

use crate::Reference;
use crate::indexer;
use crate::operand::{add_to, expect, reals};
use crate::picked::{rows_of, softmax};
use crate::rotary::Turn;
use crate::tape::{Real, dot, gradient, sum};
use ms_core::{
    CompressedBackend, Divergence, Error, HeadLayout, IndexerInputs, Pooling, Result, Rotary, Sight, Tensor,
    TensorMut, Window,
};

/// Row, place in its window and first column of each slot that an entry is made of: the window before, if it overlaps, then
/// its own.
fn slots(shape: &Pooling, window: &Window) -> Vec<(usize, usize, usize)> {
    let own = if shape.overlap { shape.dim } else { 0 };
    let of = |first: usize, column: usize| (0..shape.ratio).map(move |i| (first + i, i, column));
    let before = window.before.filter(|_| shape.overlap).into_iter().flat_map(|first| of(first, 0));
    before.chain(of(window.own, own)).collect()
}

/// `out[w,d] = Σ_s softmax_s(gate[s,d] + ape[s,d]) · kv[s,d]`.
fn pool<R: Real>(kv: &[R], gate: &[R], ape: &[R], windows: &[Window], shape: &Pooling) -> Vec<R> {
    let width = shape.width();
    let mut out = Vec::with_capacity(windows.len() * shape.dim);
    for window in windows {
        let slots = slots(shape, window);
        for d in 0..shape.dim {
            let scores: Vec<R> =
                slots.iter().map(|(row, i, c)| gate[row * width + c + d] + ape[i * width + c + d]).collect();
            let max = scores.iter().map(|s| s.value()).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<R> = scores.into_iter().map(|s| (s - R::from(max)).exp()).collect();
            let mixed = sum(weights.iter().zip(&slots).map(|(&w, (row, _, c))| w * kv[row * width + c + d]));
            out.push(mixed / sum(weights));
        }
    }
    out
}

fn check(kv: &Tensor, windows: &[Window], shape: &Pooling) -> Result<()> {
    let rows = kv.as_matrix().0;
    let firsts = windows.iter().flat_map(|w| std::iter::once(w.own).chain(w.before));
    for start in firsts {
        let end = start.saturating_add(shape.ratio);
        if end > rows {
            return Err(Error::Range { what: "rows of a window", start, end, len: rows });
        }
    }
    Ok(())
}

/// Rows of `near`, followed by those of `far`.
struct Shared<'a> {
    near: &'a [f64],
    far: &'a [f64],
    dim: usize,
}

impl Shared<'_> {
    fn rows(&self) -> usize {
        (self.near.len() + self.far.len()) / self.dim.max(1)
    }

    fn row(&self, j: usize) -> &[f64] {
        let (at, near) = (j * self.dim, self.near.len());
        if at < near { &self.near[at..at + self.dim] } else { &self.far[at - near..at - near + self.dim] }
    }
}

impl CompressedBackend for Reference {
    fn rotate_last(
        &self,
        x: &Tensor,
        head_dim: usize,
        rotary: &Rotary,
        positions: &Tensor,
        inverse: bool,
    ) -> Result<Tensor> {
        let turn = Turn::new(rotary, positions, inverse)?;
        let heads = x.as_matrix().1 / head_dim.max(1);
        let mut y = reals(x)?.to_vec();
        for (i, head) in y.chunks_exact_mut(head_dim).enumerate() {
            turn.head(head, i / heads, head_dim - rotary.dim);
        }
        self.give_as(x, &y)
    }

    fn pool_windows(
        &self,
        kv: &Tensor,
        gate: &Tensor,
        ape: &Tensor,
        windows: &[Window],
        shape: &Pooling,
    ) -> Result<Tensor> {
        expect("pool_windows", "gate", gate, &kv.shape())?;
        check(kv, windows, shape)?;
        let out = pool(reals(kv)?, reals(gate)?, reals(ape)?, windows, shape);
        self.give(&[windows.len(), shape.dim], &out)
    }

    fn pool_windows_backward(
        &self,
        mut dape: TensorMut<'_>,
        dout: &Tensor,
        kv: &Tensor,
        gate: &Tensor,
        ape: &Tensor,
        windows: &[Window],
        shape: &Pooling,
    ) -> Result<(Tensor, Tensor)> {
        check(kv, windows, shape)?;
        let [dkv, dgate, by_ape] =
            gradient([reals(kv)?, reals(gate)?, reals(ape)?], reals(dout)?, |[kv, gate, ape]| {
                pool(kv, gate, ape, windows, shape)
            });
        add_to("pool_windows_backward", &mut dape, &by_ape)?;
        Ok((self.give_as(kv, &dkv)?, self.give_as(gate, &dgate)?))
    }

    fn pick_seen(&self, inputs: &IndexerInputs<'_>, sights: &[Sight], places: usize) -> Result<Tensor> {
        self.picks(inputs, sights, places)
    }

    fn attention_weights(
        &self,
        q: &Tensor,
        k: &Tensor,
        heads: HeadLayout,
        picks: &Tensor,
        scale: f64,
    ) -> Result<Tensor> {
        self.give_as(picks, &indexer::attention_weights(q, k, heads, picks, scale)?)
    }

    fn indexer_loss(
        &self,
        inputs: &IndexerInputs<'_>,
        picks: &Tensor,
        attention: &Tensor,
        divergence: Divergence,
        factor: f64,
    ) -> Result<(Tensor, [Tensor; 3])> {
        expect("indexer_loss", "attention", attention, &picks.shape())?;
        let ((tokens, heads), (keys, dim)) = (inputs.w.as_matrix(), inputs.k.as_matrix());
        let rows = (0..tokens).map(|t| rows_of(picks, t, keys)).collect::<Result<Vec<_>>>()?;
        let operands = [reals(inputs.q)?, reals(inputs.k)?, reals(inputs.w)?];
        let (attention, sizes) = (reals(attention)?, (heads, dim));
        let loss = indexer::loss(operands, &rows, attention, sizes, divergence);
        let [dq, dk, dw] = gradient(operands, &[factor], |operands| {
            vec![indexer::loss(operands, &rows, attention, sizes, divergence)]
        });
        let gradients =
            [self.give_as(inputs.q, &dq)?, self.give_as(inputs.k, &dk)?, self.give_as(inputs.w, &dw)?];
        Ok((self.give(&[1], &[loss])?, gradients))
    }

    fn attention_shared(
        &self,
        q: &Tensor,
        near: &Tensor,
        far: &Tensor,
        picks: &Tensor,
        scale: f64,
    ) -> Result<(Tensor, Tensor)> {
        let ((tokens, width), dim) = (q.as_matrix(), near.as_matrix().1);
        let keys = Shared { near: reals(near)?, far: reals(far)?, dim };
        let heads = width / dim.max(1);
        let (mut out, mut lse) = (vec![0.0; tokens * width], vec![f64::NEG_INFINITY; heads * tokens]);
        for t in 0..tokens {
            let rows = rows_of(picks, t, keys.rows())?;
            for n in 0..heads {
                let at = (t * heads + n) * dim;
                let query = &reals(q)?[at..at + dim];
                let scores: Vec<f64> = rows.iter().map(|&j| scale * dot(query, keys.row(j))).collect();
                let (p, denominator) = softmax(&scores);
                lse[n * tokens + t] = denominator;
                for (p, &j) in p.iter().zip(&rows) {
                    out[at..at + dim].iter_mut().zip(keys.row(j)).for_each(|(o, k)| *o += p * k);
                }
            }
        }
        Ok((self.give(&[tokens, width], &out)?, self.give(&[heads, tokens], &lse)?))
    }

    fn attention_shared_backward(
        &self,
        dout: &Tensor,
        q: &Tensor,
        near: &Tensor,
        far: &Tensor,
        out: &Tensor,
        lse: &Tensor,
        picks: &Tensor,
        scale: f64,
    ) -> Result<[Tensor; 3]> {
        let ((tokens, width), dim) = (q.as_matrix(), near.as_matrix().1);
        let keys = Shared { near: reals(near)?, far: reals(far)?, dim };
        let heads = width / dim.max(1);
        let (mut dq, mut dkeys) = (vec![0.0; tokens * width], vec![0.0; keys.rows() * dim]);
        for t in 0..tokens {
            for n in 0..heads {
                let head = (t * heads + n) * dim..(t * heads + n + 1) * dim;
                let (dout, query) = (&reals(dout)?[head.clone()], &reals(q)?[head.clone()]);
                let along = dot(dout, &reals(out)?[head.clone()]);
                for j in rows_of(picks, t, keys.rows())? {
                    let key = keys.row(j);
                    let p = (scale * dot(query, key) - reals(lse)?[n * tokens + t]).exp();
                    let ds = p * (dot(dout, key) - along) * scale;
                    for d in 0..dim {
                        dq[head.start + d] += ds * key[d];
                        // A row is key and value at once.
                        dkeys[j * dim + d] += ds * query[d] + p * dout[d];
                    }
                }
            }
        }
        let (of_near, of_far) = dkeys.split_at(keys.near.len());
        Ok([self.give_as(q, &dq)?, self.give_as(near, of_near)?, self.give_as(far, of_far)?])
    }
}
