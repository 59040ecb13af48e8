//! Joining what queries saw in different blocks of keys.

use crate::error::{expect_len, expect_rows};
use crate::{Cpu, Element, Result, float};

/// Joins the output of one more block of keys to `out`, so that in the end it is the attention over all of them.
///
/// `w_i = exp(lse_i − max)`, `out = (out · w_1 + part · w_2) / (w_1 + w_2)`, `lse = max + ln(w_1 + w_2)`.
///
/// | arg        | shape     | dtype | meaning                                                        |
/// |------------|-----------|-------|----------------------------------------------------------------|
/// | `out`      | `[T,N·D]` | f32   | so far; changed                                                |
/// | `lse`      | `[N,T]`   | f32   | of the blocks so far, −infinity where there was none; changed  |
/// | `part`     | `[T,N·D]` | `E`   | output of [`super::forward`] over the block                    |
/// | `part_lse` | `[N,T]`   | f32   | its log-sum-exp                                                |
/// | `heads`    | -         | -     | `N`                                                            |
///
/// Sums in f32. Same bits for every thread count and instruction set.
///
/// # Errors
/// [`crate::Error::Shape`] if an operand does not fit.
///
/// # Source
/// Liu et al., arXiv:2310.01889, section 3; MindSpeed, `mindspeed/core/context_parallel/utils.py`, `forward_update`.
pub fn merge<E: Element>(
    cpu: &Cpu,
    out: &mut [f32],
    lse: &mut [f32],
    part: &[E],
    part_lse: &[f32],
    heads: usize,
) -> Result<()> {
    const OP: &str = "attention::merge";
    let tokens = expect_rows(OP, "lse", heads, lse.len())?;
    expect_len(OP, "part_lse", lse.len(), part_lse.len())?;
    expect_len(OP, "part", out.len(), part.len())?;
    let width = expect_rows(OP, "out", tokens.max(1), out.len())?;
    let dim = expect_rows(OP, "row of out", heads.max(1), width)?;
    let step = (16 * 1024 / width.max(1)).max(1);
    let before: &[f32] = lse;
    cpu.for_each_row(tokens, step, (out, width), (&mut [] as &mut [u8], 0), |t, row, _| {
        for n in 0..heads {
            let (a, b) = (before[n * tokens + t], part_lse[n * tokens + t]);
            if b == f32::NEG_INFINITY {
                continue;
            }
            let max = a.max(b);
            let (mut wa, mut wb) = (weight(a, max), weight(b, max));
            let sum = wa + wb;
            (wa, wb) = (wa / sum, wb / sum);
            for (o, p) in row[n * dim..][..dim].iter_mut().zip(&part[t * width + n * dim..]) {
                *o = *o * wa + p.to_f32() * wb;
            }
        }
    });
    for (a, &b) in lse.iter_mut().zip(part_lse) {
        let max = a.max(b);
        if b != f32::NEG_INFINITY {
            *a = (f64::from(max) + float::ln(f64::from(weight(*a, max) + weight(b, max)))) as f32;
        }
    }
    Ok(())
}

/// `exp(lse − max)`, 0 where nothing was seen.
fn weight(lse: f32, max: f32) -> f32 {
    if lse == f32::NEG_INFINITY { 0.0 } else { float::exp(lse - max) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{random, same_everywhere};
    use ms_testing::assert_close;

    #[test]
    fn blocks_join_to_the_softmax_over_all() {
        // Two blocks of one key each: the result is the weighted mean of their values.
        let (tokens, heads, dim) = (3, 2, 4);
        let size = tokens * heads * dim;
        let (a, b) = (random::<f32>(size, 1), random::<f32>(size, 2));
        let scores: Vec<Vec<f32>> = (3..5).map(|seed| random::<f32>(heads * tokens, seed)).collect();
        let (out, lse) = same_everywhere("merge", |cpu| {
            let mut out = vec![0f32; size];
            let mut lse = vec![f32::NEG_INFINITY; heads * tokens];
            merge(cpu, &mut out, &mut lse, &a, &scores[0], heads).unwrap();
            assert_eq!(out, a, "the first block is taken as it is");
            merge(cpu, &mut out, &mut lse, &b, &scores[1], heads).unwrap();
            // A block that nobody sees changes nothing.
            let (kept, hidden) = (out.clone(), vec![f32::NEG_INFINITY; heads * tokens]);
            merge(cpu, &mut out, &mut lse, &a, &hidden, heads).unwrap();
            assert_eq!(out, kept);
            (out, lse)
        });
        for t in 0..tokens {
            for n in 0..heads {
                let s = [0, 1].map(|i: usize| f64::from(scores[i][n * tokens + t]).exp());
                let at = t * heads * dim + n * dim;
                let want: Vec<f64> = (at..at + dim)
                    .map(|i| (f64::from(a[i]) * s[0] + f64::from(b[i]) * s[1]) / (s[0] + s[1]))
                    .collect();
                assert_close("out", &out[at..at + dim], &want, 1e-6, 1e-6);
                assert_close("lse", &[lse[n * tokens + t]], &[(s[0] + s[1]).ln()], 1e-6, 1e-6);
            }
        }
        assert!(merge(&Cpu::single(), &mut [0f32; 4], &mut [0f32; 3], &[0f32; 4], &[0f32; 3], 2).is_err());
    }
}
