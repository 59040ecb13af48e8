//! Rotary position embedding of heads.

use crate::norm::rms_norm;
use crate::operand::{numbers, reals};
use crate::tape::Real;
use ms_core::{Error, HeadLayout, Result, Rotary, Tensor};

/// Rotary tables and the positions of the tokens.
pub(crate) struct Turn<'a> {
    cos: &'a [f64],
    sin: &'a [f64],
    positions: &'a [i32],
    dim: usize,
    interleaved: bool,
    /// Back instead of forth.
    pub(crate) inverse: bool,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(rotary: &'a Rotary, positions: &'a Tensor, inverse: bool) -> Result<Self> {
        let (cos, sin, positions) = (reals(&rotary.cos)?, reals(&rotary.sin)?, numbers(positions)?);
        let limit = if rotary.dim == 0 { usize::MAX } else { cos.len() / (rotary.dim / 2) };
        if let Some(&p) = positions.iter().find(|&&p| usize::try_from(p).map_or(true, |p| p >= limit)) {
            let start = p as usize;
            return Err(Error::Range { what: "positions", start, end: start.saturating_add(1), len: limit });
        }
        Ok(Self { cos, sin, positions, dim: rotary.dim, interleaved: rotary.interleaved, inverse })
    }

    /// Turns the elements `skip..skip + dim` of a head of token `t`: each pair `(a, b)` becomes
    /// `(a cos θ − b sin θ, b cos θ + a sin θ)`.
    pub(crate) fn head<R: Real>(&self, head: &mut [R], t: usize, skip: usize) {
        let half = self.dim / 2;
        let at = self.positions[t] as usize * half;
        let part = &mut head[skip..skip + self.dim];
        for i in 0..half {
            let (a, b) = if self.interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
            let (cos, sin) = (R::from(self.cos[at + i]), R::from(self.sin[at + i]));
            let sin = if self.inverse { -sin } else { sin };
            (part[a], part[b]) = (part[a] * cos - part[b] * sin, part[b] * cos + part[a] * sin);
        }
    }
}

/// Packed rows with the heads of queries and keys normed, if there are scales `(q, k, eps)`, and rotated.
pub(crate) fn prepare<R: Real>(
    x: &[R],
    heads: HeadLayout,
    norm: Option<(&[R], &[R], f64)>,
    turn: &Turn<'_>,
) -> Vec<R> {
    let (d, each) = (heads.head_dim, heads.heads_per_group + 2);
    let mut y = Vec::with_capacity(x.len());
    for (i, head) in x.chunks_exact(d).enumerate() {
        let (t, place) = (i / (heads.groups * each), i % each);
        let mut head = head.to_vec();
        if place + 1 < each {
            if let Some((q, k, eps)) = norm {
                head = rms_norm(&head, if place + 2 < each { q } else { k }, eps, 0.0);
            }
            turn.head(&mut head, t, 0);
        }
        y.extend(head);
    }
    y
}
