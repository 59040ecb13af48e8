//! Mixtures of experts: routing, permutation, products by group.

use super::{Bench, Check, FLOATS, gradient};
use crate::{Result, ops};
use ms_core::DType;

/// Experts of the checks, and how many a token goes to.
const EXPERTS: usize = 5;
const K: usize = 2;

fn gating(b: &mut Bench<'_>) -> Result<()> {
    let m = b.size.rows;
    // Scores that differ clearly, also when rounded.
    let values: Vec<f64> = (0..m * EXPERTS).map(|i| ((i * 3 + i / EXPERTS) % EXPERTS) as f64 * 0.5).collect();
    let x = b.give(&[m, EXPERTS], &values)?;
    let (y, expert, row) =
        (b.empty(&[m, K])?, b.empty_as(DType::I32, &[m, K])?, b.empty_as(DType::I32, &[m, K])?);
    ops::gating(b.stream, x.view()?, None, K as i64, y.view()?, expert.view()?, row.view()?)?;
    let (mut weights, mut chosen, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (i, scores) in x.v.chunks(EXPERTS).enumerate() {
        let sum: f64 = scores.iter().map(|v| v.exp()).sum();
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        for (j, e) in order[..K].iter().enumerate() {
            weights.push(scores[*e].exp() / sum);
            chosen.push(*e as f64);
            rows.push((j * m + i) as f64);
        }
    }
    b.near("weights", &y, &weights)?;
    b.near("experts", &expert, &chosen)?;
    b.near("rows", &row, &rows)
}

/// Where each copy of a token goes when copies are sorted by expert, in the tokens' order within each.
fn places(expert: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..expert.len()).collect();
    order.sort_by_key(|i| expert[*i] as usize);
    let mut place = vec![0; expert.len()];
    order.iter().enumerate().for_each(|(at, i)| place[*i] = at);
    place
}

fn permutation(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let x = b.random(&[m, n])?;
    let list: Vec<f64> = (0..m * K).map(|i| ((i * 3 + i / K) % EXPERTS) as f64).collect();
    let expert = b.give_as(DType::I64, &[m, K], &list)?;
    let (sorted, order) = (b.empty(&[m * K, n])?, b.empty_as(DType::I32, &[m * K])?);
    ops::token_permute(b.stream, x.view()?, expert.view()?, 0, false, sorted.view()?, order.view()?)?;
    let place = places(&list);
    let permute = |x: &[f64]| -> Vec<f64> {
        let mut out = vec![0.0; m * K * n];
        for (i, p) in place.iter().enumerate() {
            out[p * n..(p + 1) * n].copy_from_slice(&x[i / K * n..(i / K + 1) * n]);
        }
        out
    };
    b.near("permuted", &sorted, &permute(&x.v))?;
    b.near("places", &order, &place.iter().map(|p| *p as f64).collect::<Vec<_>>())?;
    let (dy, dx) = (b.random(&[m * K, n])?, b.empty(&[m, n])?);
    ops::token_permute_grad(b.stream, dy.view()?, order.view()?, K as i64, false, dx.view()?)?;
    b.near("its gradient", &dx, &gradient(permute, &x.v, &dy.v))?;
    let (tokens, weights) = (b.random(&[m * K, n])?, b.random(&[m, K])?);
    let back = b.empty(&[m, n])?;
    let (stream, w) = (b.stream, Some(weights.view()?));
    ops::token_unpermute(stream, tokens.view()?, order.view()?, w, false, None, back.view()?)?;
    let unpermute = |tokens: &[f64], weights: &[f64]| -> Vec<f64> {
        let copy = |i: usize, k: usize| weights[i / n * K + k] * tokens[place[i / n * K + k] * n + i % n];
        (0..m * n).map(|i| (0..K).map(|k| copy(i, k)).sum()).collect()
    };
    b.near("back", &back, &unpermute(&tokens.v, &weights.v))?;
    let dy = b.random(&[m, n])?;
    let (dtokens, dweights) = (b.empty(&[m * K, n])?, b.empty(&[m, K])?);
    ops::token_unpermute_grad(
        stream,
        tokens.view()?,
        dy.view()?,
        order.view()?,
        Some(weights.view()?),
        false,
        None,
        dtokens.view()?,
        Some(dweights.view()?),
    )?;
    b.near("gradient by tokens", &dtokens, &gradient(|t| unpermute(t, &weights.v), &tokens.v, &dy.v))?;
    b.near("gradient by weights", &dweights, &gradient(|w| unpermute(&tokens.v, w), &weights.v, &dy.v))
}

fn grouped(b: &mut Bench<'_>) -> Result<()> {
    let (m, k, n) = (b.size.rows, b.size.columns, 6);
    let (x, w) = (b.random(&[m, k])?, b.random(&[EXPERTS, k, n])?);
    // One group without rows, and all others of one.
    let mut counts = [0usize; EXPERTS];
    (0..m).for_each(|r| counts[if r % 3 == 0 { 0 } else { 2 + r % (EXPERTS - 2) }] += 1);
    let list: Vec<f64> = counts.iter().map(|c| *c as f64).collect();
    let groups = b.give_as(DType::I64, &[EXPERTS], &list)?;
    let y = b.empty(&[m, n])?;
    ops::grouped_matmul(
        b.stream,
        vec![x.view()?],
        vec![w.view()?],
        None,
        None,
        None,
        None,
        None,
        None,
        Some(groups.view()?),
        None,
        None,
        None,
        3,
        0,
        1,
        0,
        vec![y.view()?],
        None,
        None,
    )?;
    let owner: Vec<usize> = counts.iter().enumerate().flat_map(|(e, c)| std::iter::repeat_n(e, *c)).collect();
    let want: Vec<f64> = (0..m * n)
        .map(|i| {
            let (r, c) = (i / n, i % n);
            (0..k).map(|p| x.v[r * k + p] * w.v[(owner[r] * k + p) * n + c]).sum()
        })
        .collect();
    b.near("y", &y, &want)
}

pub(super) const CHECKS: &[Check] = &[
    Check { operators: &["aclnnMoeGatingTopKSoftmax"], dtypes: FLOATS, run: gating },
    Check {
        operators: &[
            "aclnnMoeTokenPermute",
            "aclnnMoeTokenPermuteGrad",
            "aclnnMoeTokenUnpermute",
            "aclnnMoeTokenUnpermuteGrad",
        ],
        dtypes: FLOATS,
        run: permutation,
    },
    Check { operators: &["aclnnGroupedMatmulV4"], dtypes: FLOATS, run: grouped },
];
