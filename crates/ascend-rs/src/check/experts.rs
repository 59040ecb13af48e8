//! Mixtures of experts: routing, permutation, grouped products.

use super::{Bench, Check, FLOATS, Given, gradient};
use crate::ops::{GroupedActivation, GroupedOptions, GroupedProducts, GroupedSplit};
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
    ops::MoeGatingTopKSoftmax {
        x: x.view()?,
        finished: None,
        k: K as i64,
        y: y.view()?,
        expert_idx: expert.view()?,
        row_idx: row.view()?,
    }
    .run(b.stream)?;
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
    ops::MoeTokenPermute {
        tokens: x.view()?,
        indices: expert.view()?,
        num_out_tokens: 0,
        padded_mode: false,
        permute_tokens: sorted.view()?,
        sorted_indices: order.view()?,
    }
    .run(b.stream)?;
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
    ops::MoeTokenPermuteGrad {
        permuted_output_grad: dy.view()?,
        sorted_indices: order.view()?,
        num_topk: K as i64,
        padded_mode: false,
        out: dx.view()?,
    }
    .run(b.stream)?;
    b.near("its gradient", &dx, &gradient(permute, &x.v, &dy.v))?;
    let (tokens, weights) = (b.random(&[m * K, n])?, b.random(&[m, K])?);
    let back = b.empty(&[m, n])?;
    ops::MoeTokenUnpermute {
        permuted_tokens: tokens.view()?,
        sorted_indices: order.view()?,
        probs: Some(weights.view()?),
        padded_mode: false,
        restore_shape: None,
        out: back.view()?,
    }
    .run(b.stream)?;
    let unpermute = |tokens: &[f64], weights: &[f64]| -> Vec<f64> {
        let copy = |i: usize, k: usize| weights[i / n * K + k] * tokens[place[i / n * K + k] * n + i % n];
        (0..m * n).map(|i| (0..K).map(|k| copy(i, k)).sum()).collect()
    };
    b.near("back", &back, &unpermute(&tokens.v, &weights.v))?;
    let dy = b.random(&[m, n])?;
    let (dtokens, dweights) = (b.empty(&[m * K, n])?, b.empty(&[m, K])?);
    ops::MoeTokenUnpermuteGrad {
        permuted_tokens: tokens.view()?,
        unpermuted_tokens_grad: dy.view()?,
        sorted_indices: order.view()?,
        probs: Some(weights.view()?),
        padded_mode: false,
        restore_shape: None,
        permuted_tokens_grad: dtokens.view()?,
        probs_grad: Some(dweights.view()?),
    }
    .run(b.stream)?;
    b.near("gradient by tokens", &dtokens, &gradient(|t| unpermute(t, &weights.v), &tokens.v, &dy.v))?;
    b.near("gradient by weights", &dweights, &gradient(|w| unpermute(&tokens.v, w), &weights.v, &dy.v))
}

/// Rows of groups, one of them empty; the first version's matrices as a list, the others' in one tensor `[e,k,n]`.
fn grouped(b: &mut Bench<'_>, version: usize) -> Result<()> {
    let (m, k, n) = (b.size.rows, b.size.columns, 6);
    let mut counts = [0usize; EXPERTS];
    (0..m).for_each(|r| counts[if r % 3 == 0 { 0 } else { 2 + r % (EXPERTS - 2) }] += 1);
    let ends: Vec<i64> = super::ends(&counts).into_iter().map(|e| e as i64).collect();
    let owner: Vec<usize> = counts.iter().enumerate().flat_map(|(e, c)| std::iter::repeat_n(e, *c)).collect();
    let (x, w) = (b.random(&[m, k])?, b.random(&[EXPERTS, k, n])?);
    let y = b.empty(&[m, n])?;
    // The fourth version is told the rows of groups, all others where they end.
    let told = |e: usize| if version == 4 { counts[e] as f64 } else { ends[e] as f64 };
    let groups = b.give_as(DType::I64, &[EXPERTS], &(0..EXPERTS).map(told).collect::<Vec<_>>())?;
    let apart: Vec<_> =
        (0..EXPERTS).map(|e| b.give(&[k, n], &w.v[e * k * n..(e + 1) * k * n])).collect::<Result<_>>()?;
    let of = GroupedProducts {
        x: vec![x.view()?],
        weight: if version == 1 {
            apart.iter().map(Given::view).collect::<Result<_>>()?
        } else {
            vec![w.view()?]
        },
        options: GroupedOptions::default(),
        y: vec![y.view()?],
    };
    let split = GroupedSplit { split_item: 3, group_type: 0 };
    let (group_list, activation) = (Some(groups.view()?), GroupedActivation::default());
    match version {
        1 => {
            let split_item = split.split_item;
            ops::GroupedMatmul { of, group_list: Some(&ends), split_item }.run(b.stream)?;
        }
        2 => ops::GroupedMatmulV2 { of, group_list: Some(&ends), split }.run(b.stream)?,
        3 => ops::GroupedMatmulV3 { of, group_list, split }.run(b.stream)?,
        4 => ops::GroupedMatmulV4 { of, activation, group_list, split, group_list_type: 1 }.run(b.stream)?,
        _ => {
            let (group_list_type, tuning_config) = (0, None);
            ops::GroupedMatmulV5 { of, activation, group_list, split, group_list_type, tuning_config }
                .run(b.stream)?;
        }
    }
    let product =
        |i: usize| (0..k).map(|p| x.v[i / n * k + p] * w.v[(owner[i / n] * k + p) * n + i % n]).sum();
    b.near("y", &y, &(0..m * n).map(product).collect::<Vec<f64>>())
}

fn grouped_add(b: &mut Bench<'_>) -> Result<()> {
    let (t, m, n) = (b.size.rows, b.size.columns, 3);
    let ends = [t / 2, t / 2, t];
    let owner = |r: usize| usize::from(r >= ends[0]) * 2;
    let (x, w, before) = (b.random(&[t, m])?, b.random(&[t, n])?, b.noise(3 * m * n));
    let y = b.give_as(DType::F32, &[3 * m, n], &before)?;
    let groups = b.give_as(DType::I64, &[3], &ends.map(|e| e as f64))?;
    ops::GroupedMatmulAdd {
        x: x.view()?,
        weight: w.view()?,
        group_list: groups.view()?,
        y: y.view()?,
        transpose_x: true,
        transpose_weight: false,
        group_type: 2,
    }
    .run(b.stream)?;
    let at = |i: usize| {
        let (e, r, c) = (i / (m * n), i / n % m, i % n);
        y.v[i] + (0..t).filter(|p| owner(*p) == e).map(|p| x.v[p * m + r] * w.v[p * n + c]).sum::<f64>()
    };
    b.near("y", &y.a, &(0..3 * m * n).map(at).collect::<Vec<f64>>())
}

/// Rows by expert and back, as inference does it.
fn routing(b: &mut Bench<'_>) -> Result<()> {
    let (m, n) = (b.size.rows, b.size.columns);
    let x = b.random(&[m, n])?;
    let list: Vec<f64> = (0..m * K).map(|i| ((i * 3 + i / K) % EXPERTS) as f64).collect();
    let expert = b.give_as(DType::I32, &[m, K], &list)?;
    let (sorted, row) = (b.empty(&[m * K, n])?, b.empty_as(DType::I32, &[m * K])?);
    let counts = b.empty_as(DType::I32, &[EXPERTS])?;
    ops::MoeInitRoutingV2 {
        x: x.view()?,
        expert_idx: expert.view()?,
        active_num: 0,
        expert_capacity: 0,
        expert_num: EXPERTS as i64,
        drop_pad_mode: 0,
        expert_tokens_count_or_cumsum_flag: 2,
        expert_tokens_before_capacity_flag: false,
        expanded_x: sorted.view()?,
        expanded_row_idx: row.view()?,
        expert_tokens_count_or_cumsum: Some(counts.view()?),
        expert_tokens_before_capacity: None,
    }
    .run(b.stream)?;
    let place = places(&list);
    let mut want = vec![0.0; m * K * n];
    for (i, p) in place.iter().enumerate() {
        want[p * n..(p + 1) * n].copy_from_slice(&x.v[i / K * n..(i / K + 1) * n]);
    }
    b.near("rows", &sorted, &want)?;
    b.near("places", &row, &place.iter().map(|p| *p as f64).collect::<Vec<_>>())?;
    let count = |e: usize| list.iter().filter(|l| **l as usize == e).count() as f64;
    b.near("counts", &counts, &(0..EXPERTS).map(count).collect::<Vec<_>>())?;
    let (y, bias, scales) = (b.random(&[m * K, n])?, b.random(&[EXPERTS, n])?, b.random(&[m, K])?);
    let (first, second, out) = (b.random(&[m, n])?, b.random(&[m, n])?, b.empty(&[m, n])?);
    // Mode 0 counts copies by their number, then by token.
    let turned: Vec<f64> = (0..m * K).map(|i| place[i % m * K + i / m] as f64).collect();
    let turned = b.give_as(DType::I32, &[m * K], &turned)?;
    ops::MoeFinalizeRoutingV2 {
        expanded_x: y.view()?,
        expanded_row_idx: turned.view()?,
        x1: Some(first.view()?),
        x2: Some(second.view()?),
        bias: Some(bias.view()?),
        scales: Some(scales.view()?),
        expert_idx: Some(expert.view()?),
        drop_pad_mode: 0,
        out: out.view()?,
    }
    .run(b.stream)?;
    let at = |i: usize| {
        let (t, c) = (i / n, i % n);
        let copy = |j: usize| {
            let e = list[t * K + j] as usize;
            scales.v[t * K + j] * (y.v[place[t * K + j] * n + c] + bias.v[e * n + c])
        };
        first.v[i] + second.v[i] + (0..K).map(copy).sum::<f64>()
    };
    b.near("back", &out, &(0..m * n).map(at).collect::<Vec<f64>>())
}

pub(super) const CHECKS: &[Check] = &[
    Check::of(&["aclnnMoeGatingTopKSoftmax"], FLOATS, gating),
    Check::of(
        &[
            "aclnnMoeTokenPermute",
            "aclnnMoeTokenPermuteGrad",
            "aclnnMoeTokenUnpermute",
            "aclnnMoeTokenUnpermuteGrad",
        ],
        FLOATS,
        permutation,
    ),
    Check::of(&["aclnnGroupedMatmul"], FLOATS, |b| grouped(b, 1)),
    Check::of(&["aclnnGroupedMatmulV2"], FLOATS, |b| grouped(b, 2)),
    Check::of(&["aclnnGroupedMatmulV3"], FLOATS, |b| grouped(b, 3)),
    Check::of(&["aclnnGroupedMatmulV4"], FLOATS, |b| grouped(b, 4)),
    Check::of(&["aclnnGroupedMatmulV5"], FLOATS, |b| grouped(b, 5)),
    Check::of(&["aclnnGroupedMatmulAdd"], &[DType::F16, DType::Bf16], grouped_add),
    Check::of(&["aclnnMoeInitRoutingV2", "aclnnMoeFinalizeRoutingV2"], FLOATS, routing),
];
