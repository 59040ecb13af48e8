//! Merging the attention of queries over different blocks of keys.

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
    cpu.for_each_row(tokens, step, (out, width), |t, row| {
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
    use crate::attention::{Heads, Options, Segment, forward};
    use crate::trial::{cpus, random, same_everywhere};
    use ms_testing::{Golden, assert_close, golden, read_golden};

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

    #[test]
    fn a_ring_of_two_blocks_joins_to_pytorchs_attention() {
        let path = golden("ops/ring_merge.safetensors");
        let (g, meta) = read_golden(&path);
        let (tokens, heads, groups, dim) = (8, 4, 2, 8);
        let per_group = heads / groups;
        // An earlier block of keys, which all queries see, then the queries' own.
        let scale = meta["scale"].parse().unwrap();
        let own = Options { scale, window: None, softcap: None, causal: true, alibi: None };
        let blocks = [("a", 0, Options { causal: false, ..own }), ("b", tokens, own)];
        // `[s,b,n,d]` as `[s,n·d]`, and `[b,n,s]` as `[n,s]`.
        let rows = |golden: &Golden, b: usize| -> Vec<f64> {
            let row = golden.shape[2] * golden.shape[3];
            golden.values.chunks_exact(row).skip(b).step_by(golden.shape[1]).flatten().copied().collect()
        };
        let statistics = |max: &str, sum: &str, b: usize| -> Vec<f64> {
            let at = b * heads * tokens;
            (at..at + heads * tokens).map(|i| g[max].values[i] + g[sum].values[i].ln()).collect()
        };
        for cpu in cpus(&[1, 2]) {
            for b in 0..2 {
                let [q, k, v] = ["q", "k", "v"]
                    .map(|name| rows(&g[name], b).into_iter().map(|x| x as f32).collect::<Vec<f32>>());
                let (mut out, mut lse) =
                    (vec![0f32; tokens * heads * dim], vec![f32::NEG_INFINITY; heads * tokens]);
                for (name, first, options) in blocks {
                    let of = |data, per_group: usize| Heads {
                        data,
                        offset: 0,
                        token_stride: groups * per_group * dim,
                        group_stride: per_group * dim,
                        head_stride: dim,
                    };
                    let segment =
                        Segment { q_start: 0, q_len: tokens, k_start: first, k_len: tokens, ahead: 0 };
                    let (mut part, mut part_lse) = (vec![0f32; out.len()], vec![0f32; lse.len()]);
                    forward(
                        &cpu,
                        &mut part,
                        Some(&mut part_lse),
                        of(&q[..], per_group),
                        of(&k[..], 1),
                        of(&v[..], 1),
                        groups,
                        per_group,
                        dim,
                        &[segment],
                        &options,
                        None,
                    )
                    .unwrap();
                    assert_close(name, &part, &rows(&g[&format!("out_{name}")], b), 1e-5, 1e-6);
                    let want = statistics(&format!("max_{name}"), &format!("sum_{name}"), b);
                    assert_close(name, &part_lse, &want, 1e-5, 1e-6);
                    merge(&cpu, &mut out, &mut lse, &part, &part_lse, heads).unwrap();
                }
                assert_close("out", &out, &rows(&g["out"], b), 1e-5, 1e-6);
                assert_close("lse", &lse, &statistics("softmax_max", "softmax_sum", b), 1e-5, 1e-6);
            }
        }
    }
}
