//! Sparse attention over keys that an indexer has picked for each query (DeepSeek's DSA).

pub mod indexer;
pub mod shared;
#[cfg(test)]
mod tests;
mod top;

use crate::attention::{Heads, QkvRows, check_lengths};
use crate::cpu::Disjoint;
use crate::error::expect_len;
use crate::float::ln;
use crate::isa::instances;
use crate::qkv::Packed;
use crate::{Cpu, Element, Error, Isa, Result, lanes};
pub use ms_operands::Sight;

/// Marks an unused place in a row of picks.
pub const NONE: i32 = -1;

/// Operands of the indexer: `score(t,s) = Σ_h w[t,h] · relu(q[t,h]·k[s])`.
#[derive(Clone, Copy, Debug)]
pub struct Indexer<'a> {
    /// Queries `[T,N·D]` f32.
    pub q: &'a [f32],
    /// Keys `[C,D]` f32, one head.
    pub k: &'a [f32],
    /// Weights of the heads, `[T,N]` f32, all factors included.
    pub w: &'a [f32],
    /// Heads `N`.
    pub heads: usize,
    /// Size of a head `D`.
    pub dim: usize,
}

/// `max(x, 0)`; NaN stays what it is, so that a broken key is picked and seen.
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// For each query the `P` keys with the highest scores, among those it sees.
///
/// `picks` is `[T,P]` i32: rising key rows, then [`NONE`] where there are fewer keys than places. Scores are often
/// equal, namely 0 where no head's product is positive; of equal scores those win that `torch.topk` on a CPU picks.
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
///
/// # Source
/// DeepSeek-V3.2-Exp report, eq. 1 and 2.
pub fn pick_seen(
    cpu: &Cpu,
    picks: &mut [i32],
    places: usize,
    indexer: &Indexer<'_>,
    sights: &[Sight],
) -> Result<()> {
    const OP: &str = "selected::pick_seen";
    let Indexer { q, k, w, heads, dim } = *indexer;
    let tokens = w.len().checked_div(heads).unwrap_or(0);
    expect_len(OP, "w", tokens * heads, w.len())?;
    expect_len(OP, "q", tokens * heads * dim, q.len())?;
    expect_len(OP, "picks", tokens * places, picks.len())?;
    expect_len(OP, "sights", tokens, sights.len())?;
    for s in sights {
        let want = s.start.saturating_add(s.all.max(s.seen)).saturating_mul(dim);
        if want > k.len() || s.seen > s.all {
            return Err(Error::Shape { op: OP, name: "k", want, got: k.len() });
        }
    }
    cpu.for_each_row(tokens, 4, (picks, places), |t, picks| {
        let s = &sights[t];
        let mut scores: Vec<(f32, usize)> = (0..s.seen)
            .map(|j| {
                let key = &k[(s.start + j) * dim..][..dim];
                let score = (0..heads).map(|h| {
                    let q = &q[(t * heads + h) * dim..][..dim];
                    let dot: f32 = q.iter().zip(key).map(|(a, b)| a * b).sum();
                    w[t * heads + h] * relu(dot)
                });
                (score.sum(), j)
            })
            .collect();
        // As in torch: keys that are not seen yet take part with a score of minus infinity.
        scores.extend((s.seen..s.all).map(|j| (f32::NEG_INFINITY, j)));
        let count = places.min(s.all);
        top::select(&mut scores, count);
        scores.truncate(count);
        scores.retain(|p| p.1 < s.seen);
        scores.sort_unstable_by_key(|p| p.1);
        picks.fill(NONE);
        for (p, (_, j)) in picks.iter_mut().zip(scores) {
            *p = (s.start + j) as i32;
        }
    });
    Ok(())
}

fn check_picks(op: &'static str, picks: &[i32], places: usize, tokens: usize, keys: usize) -> Result<()> {
    expect_len(op, "picks", tokens * places, picks.len())?;
    match picks.iter().position(|&p| p < NONE || p >= keys as i32) {
        None => Ok(()),
        Some(index) => {
            Err(Error::Range { op, name: "picks", index, value: picks[index].into(), limit: keys })
        }
    }
}

/// The picked rows of a query.
fn row(picks: &[i32], places: usize, t: usize) -> impl Iterator<Item = usize> + '_ {
    picks[t * places..][..places].iter().filter(|&&p| p != NONE).map(|&p| p as usize)
}

/// `scores = scale · query · key` for each of the picked `keys`.
fn score<'a, E: Element>(
    isa: Isa,
    query: &[E],
    keys: impl Iterator<Item = &'a [E]>,
    scores: &mut Vec<f32>,
    scale: f32,
) {
    scores.clear();
    scores.extend(keys.map(|key| scale * lanes::dot(isa, query, key)));
}

/// Exponentials of the scores less their maximum; that maximum, -infinity of none, and their sum.
fn soften<'a, E: Element>(
    isa: Isa,
    query: &[E],
    keys: impl Iterator<Item = &'a [E]>,
    scores: &mut Vec<f32>,
    scale: f32,
) -> (f32, f32) {
    score(isa, query, keys, scores, scale);
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    lanes::exponentials(isa, scores, max);
    (max, scores.iter().sum())
}

mod body {
    use crate::Element;

    /// What a key that was picked adds to the gradients of its query, of itself and of its value.
    #[inline(always)]
    pub(super) fn spread<E: Element>(
        [dq, dk, dv]: [&mut [f32]; 3],
        [query, key, dout]: [&[E]; 3],
        (ds, p): (f32, f32),
    ) {
        for (d, (query, key)) in query.iter().zip(key).enumerate() {
            dq[d] += ds * key.to_f32();
            dk[d] += ds * query.to_f32();
            dv[d] += p * dout[d].to_f32();
        }
    }
}

instances! {
    fn spread<E: Element>(to: [&mut [f32]; 3], rows: [&[E]; 3], by: (f32, f32)) = body::spread;
}

/// Attention of every query over its picked keys.
///
/// | arg      | shape    | dtype | meaning                                                     |
/// |----------|----------|-------|-------------------------------------------------------------|
/// | `out`    | `[T,N·D]`| `E`   | output; 0 for a query without picks                         |
/// | `lse`    | `[N,T]`  | f32   | log of each softmax's denominator, kept for [`backward`]    |
/// | `q`      | -        | `E`   | queries                                                     |
/// | `k`, `v` | -        | `E`   | keys and values, one head per group                         |
/// | `picks`  | `[T,P]`  | i32   | rows of keys, or [`NONE`]                                   |
///
/// Scores are multiplied by `scale`; the mask is the picks themselves.
///
/// # Errors
/// [`Error::Shape`] or [`Error::Range`] if an operand does not fit.
pub fn forward<E: Element>(
    cpu: &Cpu,
    out: &mut [E],
    lse: &mut [f32],
    q: Heads<'_, E>,
    k: Heads<'_, E>,
    v: Heads<'_, E>,
    (groups, heads_per_group, dim): (usize, usize, usize),
    picks: &[i32],
    places: usize,
    keys: usize,
    scale: f32,
) -> Result<()> {
    const OP: &str = "selected::forward";
    let heads = groups * heads_per_group;
    let tokens = crate::error::expect_rows(OP, "out", heads * dim, out.len())?;
    expect_len(OP, "lse", heads * tokens, lse.len())?;
    check_picks(OP, picks, places, tokens, keys)?;
    q.check(OP, "q", tokens, groups, heads_per_group, dim)?;
    k.check(OP, "k", keys, groups, 1, dim)?;
    v.check(OP, "v", keys, groups, 1, dim)?;
    let lse = Disjoint::new(lse);
    cpu.for_each_row(tokens * heads, 16, (out, dim), |at, out| {
        let (t, n) = (at / heads, at % heads);
        let (group, head) = (n / heads_per_group, n % heads_per_group);
        let query = &q.data[q.at(t, group, head)..][..dim];
        let keys = row(picks, places, t).map(|j| &k.data[k.at(j, group, 0)..][..dim]);
        let mut scores = Vec::with_capacity(places);
        let (max, sum) = soften(cpu.isa(), query, keys, &mut scores, scale);
        let share = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        let values = row(picks, places, t).map(|j| &v.data[v.at(j, group, 0)..][..dim]);
        let parts: Vec<(f32, &[E])> = scores.iter().map(|p| p * share).zip(values).collect();
        lanes::blend(cpu.isa(), out, &parts);
        // SAFETY: a unit takes its own heads of its own tokens.
        (unsafe { lse.part(n * tokens + t, 1) })[0] = (f64::from(max) + ln(f64::from(sum))) as f32;
    });
    Ok(())
}

/// Gradients of [`forward`] over rows; shapes as in [`crate::attention::backward`]. Keys that nobody picked get zeros.
///
/// # Errors
/// As [`forward`].
pub fn backward<E: Element>(
    cpu: &Cpu,
    rows: QkvRows<(&mut [E], &[E])>,
    dout: &[E],
    out: &[E],
    lse: &[f32],
    shape: &Packed,
    (picks, places): (&[i32], usize),
    scale: f32,
) -> Result<()> {
    const OP: &str = "selected::backward";
    let keys = check_lengths(OP, &rows, shape)?;
    let [q, k, v] = Heads::of(rows.as_ref().map(|(_, given)| *given), shape);
    let to = rows.map(|(to, _)| Disjoint::new(to));
    let (dq_to, dkv_to) = (to.queries(), to.keys());
    let (tokens, heads, dim) = (shape.tokens, shape.heads(), shape.head_dim);
    expect_len(OP, "dout", tokens * heads * dim, dout.len())?;
    expect_len(OP, "out", tokens * heads * dim, out.len())?;
    expect_len(OP, "lse", tokens * heads, lse.len())?;
    check_picks(OP, picks, places, tokens, keys)?;
    // A unit is one group: its keys' gradients are summed over its queries in order.
    cpu.for_each_unit(shape.groups, |group| {
        let (mut dk, mut dv) = (vec![0f32; keys * dim], vec![0f32; keys * dim]);
        let (mut dq, mut scores, isa) = (vec![0f32; dim], Vec::with_capacity(places), cpu.isa());
        for t in 0..tokens {
            for head in 0..shape.heads_per_group {
                let n = group * shape.heads_per_group + head;
                let query = &q.data[q.at(t, group, head)..][..dim];
                let at = (t * heads + n) * dim;
                let (dout, out) = (&dout[at..][..dim], &out[at..][..dim]);
                let delta = lanes::dot(isa, dout, out);
                dq.fill(0.0);
                let keys = row(picks, places, t).map(|j| &k.data[k.at(j, group, 0)..][..dim]);
                score(isa, query, keys, &mut scores, scale);
                lanes::exponentials(isa, &mut scores, lse[n * tokens + t]);
                for (j, &p) in row(picks, places, t).zip(&scores) {
                    let key = &k.data[k.at(j, group, 0)..][..dim];
                    let value = &v.data[v.at(j, group, 0)..][..dim];
                    let ds = p * (lanes::dot(isa, dout, value) - delta) * scale;
                    let sums = [&mut dq[..], &mut dk[j * dim..][..dim], &mut dv[j * dim..][..dim]];
                    spread(isa, sums, [query, key, dout], (ds, p));
                }
                // SAFETY: a unit takes the heads of its group.
                let to = unsafe { dq_to.part(q.at(t, group, head), dim) };
                to.iter_mut().zip(&dq).for_each(|(o, d)| *o = E::from_f32(*d));
            }
        }
        for (heads, sums) in [(k, &dk), (v, &dv)] {
            for t in 0..keys {
                // SAFETY: as above.
                let to = unsafe { dkv_to.part(heads.at(t, group, 0), dim) };
                to.iter_mut().zip(&sums[t * dim..]).for_each(|(o, d)| *o = E::from_f32(*d));
            }
        }
    });
    Ok(())
}
