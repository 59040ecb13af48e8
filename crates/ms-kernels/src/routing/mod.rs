//! The router of a mixture of experts: which experts a token goes to, and with what weights.

mod real;
#[cfg(test)]
mod tests;

use crate::cpu::Disjoint;
use crate::error::{expect_len, expect_rows};
use crate::{Cpu, Error, Result};
pub use ms_operands::{ExpertLoad as Load, GroupScore, Router, RouterScore as Score};
pub use real::Real;

/// Checks that the router can pick among this many experts.
fn check(router: &Router, op: &'static str, experts: usize) -> Result<()> {
    let open = match router.groups {
        Some((groups, keep, judge)) => {
            if groups == 0 || !experts.is_multiple_of(groups) {
                return Err(Error::Size {
                    op,
                    name: "groups",
                    want: "a divisor of the experts",
                    got: groups,
                });
            }
            if keep == 0 || keep > groups {
                return Err(Error::Size {
                    op,
                    name: "open groups",
                    want: "1 to the number of groups",
                    got: keep,
                });
            }
            if judge == GroupScore::Alike && (keep != groups || !router.top_k.is_multiple_of(groups)) {
                return Err(Error::Size {
                    op,
                    name: "top_k",
                    want: "a multiple of the groups, of which all stay, that give as many experts each",
                    got: router.top_k,
                });
            }
            experts / groups * keep
        }
        None => experts,
    };
    if router.top_k == 0 || router.top_k > open {
        return Err(Error::Size {
            op,
            name: "top_k",
            want: "1 to the experts that are open",
            got: router.top_k,
        });
    }
    if matches!(router.score, Score::SparseMixer { .. }) && (router.top_k != 2 || experts < 2) {
        return Err(Error::Size { op, name: "top_k", want: "2 for a sparse mixer", got: router.top_k });
    }
    Ok(())
}

/// Index of the largest of `values` among those `open`; the first of equals. NaN is above all numbers, as in torch: an expert
/// with a broken score is picked and seen, not passed over.
fn best<R: Real>(values: &[R], open: impl Fn(usize) -> bool) -> Option<usize> {
    let is_nan = |v: R| v.partial_cmp(&v).is_none();
    let mut found: Option<usize> = None;
    for (e, &v) in values.iter().enumerate() {
        if open(e) && found.is_none_or(|b| v > values[b] || (is_nan(v) && !is_nan(values[b]))) {
            found = Some(e);
        }
    }
    found
}

fn softmax<R: Real>(out: &mut [R], logits: &[R], open: impl Fn(usize) -> bool) {
    let max =
        logits.iter().enumerate().filter(|(e, _)| open(*e)).fold(R::NEG_INFINITY, |m, (_, &v)| m.max(v));
    let mut sum = R::ZERO;
    for (e, o) in out.iter_mut().enumerate() {
        *o = if open(e) { (logits[e] - max).exp() } else { R::ZERO };
        sum += *o;
    }
    for o in out {
        *o /= sum;
    }
}

fn scores<R: Real>(out: &mut [R], logits: &[R], kind: Score) {
    match kind {
        Score::Softmax => softmax(out, logits, |_| true),
        Score::Sigmoid => out.iter_mut().zip(logits).for_each(|(o, &l)| *o = l.sigmoid()),
        Score::SqrtSoftplus => out.iter_mut().zip(logits).for_each(|(o, &l)| *o = l.softplus().sqrt()),
        Score::SparseMixer { .. } => {}
    }
}

/// Whether the experts whose softmax the pick of `best` shares include `e`.
fn mixes<R: Real>(logits: &[R], best: usize, e: usize, jitter: f64) -> bool {
    let max = logits[best];
    // The distance of the best itself is 0, also if all logits are 0 and there is nothing to be relative to.
    e == best || (max - logits[e]) / logits[e].abs().max(max.abs()) <= R::of(2.0) * R::of(jitter)
}

/// The sum of the `count` best scores of a group, from the best on; of all, if there are no more.
fn worth<R: Real>(group: &[R], count: usize) -> R {
    let mut taken = vec![false; group.len()];
    let mut sum = R::ZERO;
    for _ in 0..count {
        let Some(next) = best(group, |e| !taken[e]) else { break };
        taken[next] = true;
        sum += group[next];
    }
    sum
}

/// Routes one token.
fn pick<R: Real>(
    router: &Router,
    logits: &[R],
    bias: Option<&[R]>,
    score: &mut [R],
    choice: &mut [R],
) -> Vec<(usize, R)> {
    let experts = logits.len();
    if let Score::SparseMixer { jitter } = router.score {
        let first = best(logits, |_| true).expect("two experts at least");
        softmax(score, logits, |e| mixes(logits, first, e, jitter));
        let one = (first, score[first]);
        let second = best(logits, |e| e != first).expect("two experts at least");
        softmax(score, logits, |e| e != first && mixes(logits, second, e, jitter));
        return vec![one, (second, score[second])];
    }
    scores(score, logits, router.score);
    for e in 0..experts {
        choice[e] = score[e] + bias.map_or(R::ZERO, |b| b[e]);
    }
    let mut open = vec![true; experts];
    // Experts of one group, and how many of them are picked at most.
    let (size, most) = match router.groups {
        Some((groups, _, GroupScore::Alike)) => (experts / groups, router.top_k / groups),
        Some((groups, keep, GroupScore::Best(count) | GroupScore::BestLogits(count))) => {
            let size = experts / groups;
            let by_logits = matches!(router.groups, Some((.., GroupScore::BestLogits(_))));
            let by = if by_logits { logits } else { &*choice };
            let judged: Vec<R> = by.chunks_exact(size).map(|group| worth(group, count)).collect();
            let mut kept = vec![false; groups];
            for _ in 0..keep {
                let g = best(&judged, |g| !kept[g]).expect("no more groups are kept than there are");
                kept[g] = true;
            }
            open.iter_mut().enumerate().for_each(|(e, o)| *o = kept[e / size]);
            (size, size)
        }
        None => (experts, experts),
    };
    let mut taken = vec![0; experts / size];
    let mut picks = Vec::with_capacity(router.top_k);
    for _ in 0..router.top_k {
        let e = best(choice, |e| open[e] && taken[e / size] < most);
        let e = e.expect("no more experts are picked than are open");
        open[e] = false;
        taken[e / size] += 1;
        picks.push((e, score[e]));
    }
    if router.normalise {
        let sum = picks.iter().map(|p| p.1).sum::<R>() + R::of(1e-20);
        picks.iter_mut().for_each(|p| p.1 /= sum);
    }
    picks.iter_mut().for_each(|p| p.1 *= R::of(router.scale));
    picks
}

const STEP: usize = 64;

/// Picks `K` experts for every token.
///
/// | arg       | shape         | dtype | meaning                                              |
/// |-----------|---------------|-------|------------------------------------------------------|
/// | `experts` | `[T,K]`       | i32   | output: experts, best first                          |
/// | `weights` | `[T,K]`       | `R`   | output: their weights                                |
/// | `logits`  | `[T,E]`       | `R`   | output of the router's linear layer                  |
/// | `bias`    | `[E]` or none | `R`   | added to scores for the choice, not for the weights  |
///
/// Of equal scores the expert with the lower number wins.
///
/// # Errors
/// [`Error::Shape`] or [`Error::Size`] if an operand or the router does not fit.
///
/// # Source
/// DeepSeek-V3, arXiv:2412.19437, section 2.1.2; Liu et al., arXiv:2409.12136 (SparseMixer-v2); Tang et al., arXiv:2505.21411
/// (`MoGE`).
pub fn forward<R: Real>(
    cpu: &Cpu,
    experts: &mut [i32],
    weights: &mut [R],
    logits: &[R],
    bias: Option<&[R]>,
    count: usize,
    router: &Router,
) -> Result<()> {
    const OP: &str = "routing::forward";
    check(router, OP, count)?;
    let tokens = expect_rows(OP, "logits", count, logits.len())?;
    let k = router.top_k;
    expect_len(OP, "experts", tokens * k, experts.len())?;
    expect_len(OP, "weights", tokens * k, weights.len())?;
    if let Some(bias) = bias {
        expect_len(OP, "bias", count, bias.len())?;
    }
    cpu.for_each_row_of_both(tokens, STEP, (experts, k), (weights, k), |t, experts, weights| {
        let (mut score, mut choice) = (vec![R::ZERO; count], vec![R::ZERO; count]);
        let picks = pick(router, &logits[t * count..][..count], bias, &mut score, &mut choice);
        for (i, (e, w)) in picks.into_iter().enumerate() {
            (experts[i], weights[i]) = (e as i32, w);
        }
    });
    Ok(())
}

/// The weights of experts that were chosen otherwise, by a table for instance: `weights[T,K]` of `experts[T,K]`.
///
/// # Errors
/// As [`forward`]; [`Error::Range`] if an expert does not exist; [`Error::Size`] for a sparse mixer, whose weights depend
/// on how experts are chosen.
pub fn weigh<R: Real>(
    cpu: &Cpu,
    weights: &mut [R],
    experts: &[i32],
    logits: &[R],
    count: usize,
    router: &Router,
) -> Result<()> {
    const OP: &str = "routing::weigh";
    check(router, OP, count)?;
    if matches!(router.score, Score::SparseMixer { .. }) {
        return Err(Error::Size {
            op: OP,
            name: "chosen experts",
            want: "none for a sparse mixer",
            got: count,
        });
    }
    let tokens = expect_rows(OP, "logits", count, logits.len())?;
    let k = router.top_k;
    expect_len(OP, "experts", tokens * k, experts.len())?;
    expect_len(OP, "weights", tokens * k, weights.len())?;
    check_experts(OP, experts, count)?;
    cpu.for_each_row(tokens, STEP, (weights, k), |t, weights| {
        let mut score = vec![R::ZERO; count];
        scores(&mut score, &logits[t * count..][..count], router.score);
        for (w, &e) in weights.iter_mut().zip(&experts[t * k..]) {
            *w = score[e as usize];
        }
        if router.normalise {
            let sum = weights.iter().copied().sum::<R>() + R::of(1e-20);
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        weights.iter_mut().for_each(|w| *w *= R::of(router.scale));
    });
    Ok(())
}

/// Gradient of the weights of [`forward`] or [`weigh`] by `logits`; which experts are picked has no gradient.
///
/// | arg        | shape   | dtype | meaning                     |
/// |------------|---------|-------|-----------------------------|
/// | `dlogits`  | `[T,E]` | `R`   | output                      |
/// | `dweights` | `[T,K]` | `R`   | gradient of the weights     |
/// | `experts`  | `[T,K]` | i32   | from the forward call       |
/// | `logits`   | `[T,E]` | `R`   | input of the forward call   |
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit, [`Error::Range`] if an expert does not exist.
pub fn backward<R: Real>(
    cpu: &Cpu,
    dlogits: &mut [R],
    dweights: &[R],
    experts: &[i32],
    logits: &[R],
    count: usize,
    router: &Router,
) -> Result<()> {
    const OP: &str = "routing::backward";
    check(router, OP, count)?;
    let tokens = expect_rows(OP, "logits", count, logits.len())?;
    let k = router.top_k;
    expect_len(OP, "dlogits", logits.len(), dlogits.len())?;
    expect_len(OP, "dweights", tokens * k, dweights.len())?;
    expect_len(OP, "experts", tokens * k, experts.len())?;
    check_experts(OP, experts, count)?;
    cpu.for_each_row(tokens, STEP, (dlogits, count), |t, dlogits| {
        let picked = &experts[t * k..][..k];
        gradient(router, dlogits, &dweights[t * k..][..k], picked, &logits[t * count..][..count]);
    });
    Ok(())
}

pub(crate) fn check_experts(op: &'static str, experts: &[i32], count: usize) -> Result<()> {
    match experts.iter().position(|&e| e < 0 || e as usize >= count) {
        None => Ok(()),
        Some(index) => {
            Err(Error::Range { op, name: "experts", index, value: experts[index].into(), limit: count })
        }
    }
}

fn gradient<R: Real>(router: &Router, dlogits: &mut [R], dweights: &[R], picked: &[i32], logits: &[R]) {
    dlogits.fill(R::ZERO);
    let mut score = vec![R::ZERO; logits.len()];
    if let Score::SparseMixer { jitter } = router.score {
        for (i, &e) in picked.iter().enumerate() {
            let (e, first) = (e as usize, picked[0] as usize);
            softmax(&mut score, logits, |o| (i == 0 || o != first) && mixes(logits, e, o, jitter));
            for (o, d) in dlogits.iter_mut().enumerate() {
                *d += dweights[i] * score[e] * (if o == e { R::ONE } else { R::ZERO } - score[o]);
            }
        }
        return;
    }
    scores(&mut score, logits, router.score);
    // By the scores of the picks: through scale and division by the sum.
    let sum = picked.iter().map(|&e| score[e as usize]).sum::<R>() + R::of(1e-20);
    let along: R = picked.iter().zip(dweights).map(|(&e, &d)| d * score[e as usize] / sum).sum();
    for (&e, &d) in picked.iter().zip(dweights) {
        dlogits[e as usize] = R::of(router.scale) * if router.normalise { (d - along) / sum } else { d };
    }
    through_score(dlogits, &score, logits, router.score);
}

/// Turns the gradient by scores, in place, into the gradient with respect to logits.
fn through_score<R: Real>(d: &mut [R], score: &[R], logits: &[R], kind: Score) {
    match kind {
        Score::Softmax => {
            let along: R = d.iter().zip(score).map(|(&d, &s)| d * s).sum();
            d.iter_mut().zip(score).for_each(|(d, &s)| *d = s * (*d - along));
        }
        Score::Sigmoid => d.iter_mut().zip(score).for_each(|(d, &s)| *d *= s * (R::ONE - s)),
        Score::SqrtSoftplus => {
            for ((d, s), &l) in d.iter_mut().zip(score).zip(logits) {
                *d *= l.sigmoid() / (R::of(2.0) * s.max(R::MIN_POSITIVE));
            }
        }
        Score::SparseMixer { .. } => {}
    }
}

/// How experts share the load, for the auxiliary loss and for logs.
///
/// `counts[e]` tokens went to expert `e`.
///
/// # Errors
/// [`Error::Range`] if an expert does not exist.
pub fn counts(experts: &[i32], counts: &mut [u32]) -> Result<()> {
    check_experts("routing::counts", experts, counts.len())?;
    counts.fill(0);
    experts.iter().for_each(|&e| counts[e as usize] += 1);
    Ok(())
}

/// The auxiliary losses of a router, and their gradient added to `dlogits`.
///
/// `loss = Σ_g Σ_e weights[g,e] · Σ_{t in g} p[t,e] + z · Σ_t ln(Σ_e exp(logits[t,e]))²` with `p` the scores plus `bias`,
/// normalised to sum 1 where they are not a softmax, unless they are to stay undivided. The load-balancing loss of Switch
/// Transformer, `coeff · E / (N² K) · Σ_e counts[e] · Σ_t p[t,e]`, has the weights `coeff · E / (N² K) · counts`; with a
/// group for each sequence it is the mean of the sequences' losses. Of tokens that ranks share, the ranks' losses and
/// gradients are partial sums. The gradient is that of `grad_scale · loss`.
///
/// | arg       | shape   | dtype | meaning                                        |
/// |-----------|---------|-------|------------------------------------------------|
/// | `dlogits` | `[T,E]` | `R`   | added to; empty if no gradient is wanted       |
/// | `logits`  | `[T,E]` | `R`   | output of the router's linear layer            |
/// | `load`    | -       | -     | weights, groups, bias and factor of the z-loss |
///
/// # Errors
/// [`Error::Shape`] if an operand does not fit.
///
/// # Source
/// Fedus et al., arXiv:2101.03961, eq. 4; Megatron-LM `core_r0.8.0` `megatron/core/transformer/moe/moe_utils.py`,
/// `switch_load_balancing_loss_func`; by sequences `core_v0.12.1`, `sequence_load_balancing_loss_func`; z-loss: Zoph et al.,
/// arXiv:2202.08906, eq. 5.
pub fn balance<R: Real>(
    cpu: &Cpu,
    dlogits: &mut [R],
    logits: &[R],
    load: &Load,
    router: &Router,
    grad_scale: f64,
) -> Result<R> {
    const OP: &str = "routing::balance";
    let groups = load.groups;
    let count = load.weights.len().checked_div(groups).unwrap_or(0);
    let tokens = expect_rows(OP, "logits", count, logits.len())?;
    expect_len(OP, "weights", groups * count, load.weights.len())?;
    if !load.bias.is_empty() {
        expect_len(OP, "bias", count, load.bias.len())?;
    }
    if !dlogits.is_empty() {
        expect_len(OP, "dlogits", logits.len(), dlogits.len())?;
    }
    if !load.group_of.is_empty() {
        expect_len(OP, "group_of", tokens, load.group_of.len())?;
    }
    for (index, &g) in load.group_of.iter().enumerate() {
        if g as usize >= groups {
            return Err(Error::Range { op: OP, name: "group_of", index, value: i64::from(g), limit: groups });
        }
    }
    let group = |t: usize| load.group_of.get(t).map_or(0, |&g| g as usize);
    let kind = match router.score {
        Score::SparseMixer { .. } => Score::Softmax,
        kind => kind,
    };
    let normalise = kind != Score::Softmax && !load.undivided;
    let mut sums = vec![R::ZERO; groups * count];
    R::sum_rows(cpu, &mut sums, tokens, |t, sum| {
        let mut p = vec![R::ZERO; count];
        scores(&mut p, &logits[t * count..][..count], kind);
        p.iter_mut().zip(&load.bias).for_each(|(p, &b)| *p += R::of(b));
        let total = if normalise { p.iter().copied().sum::<R>() + R::of(1e-20) } else { R::ONE };
        sum[group(t) * count..][..count].iter_mut().zip(&p).for_each(|(s, &p)| *s += p / total);
    });
    let of_group = |g: usize| {
        let (sums, weights) = (&sums[g * count..][..count], &load.weights[g * count..][..count]);
        sums.iter().zip(weights).map(|(&s, w)| s.into() * w).sum::<f64>()
    };
    let mut loss = (0..groups).map(of_group).sum::<f64>();
    if load.z != 0.0 {
        let mut squares = [R::ZERO];
        R::sum_rows(cpu, &mut squares, tokens, |t, sum| {
            let z = log_sum_exp(&logits[t * count..][..count]);
            sum[0] += z * z;
        });
        loss += load.z * squares[0].into();
    }
    let (loss, grad_scale) = (R::of(loss), R::of(grad_scale));
    if dlogits.is_empty() {
        return Ok(loss);
    }
    let out = Disjoint::new(dlogits);
    cpu.for_each_unit(tokens.div_ceil(STEP), |u| {
        for t in u * STEP..tokens.min((u + 1) * STEP) {
            let weights = &load.weights[group(t) * count..][..count];
            let logits = &logits[t * count..][..count];
            let (mut p, mut d) = (vec![R::ZERO; count], vec![R::ZERO; count]);
            scores(&mut p, logits, kind);
            d.iter_mut().zip(weights).for_each(|(d, &w)| *d = grad_scale * R::of(w));
            if normalise {
                let mut q = p.clone();
                q.iter_mut().zip(&load.bias).for_each(|(q, &b)| *q += R::of(b));
                let total = q.iter().copied().sum::<R>() + R::of(1e-20);
                let along: R = d.iter().zip(&q).map(|(&d, &q)| d * q / total).sum();
                d.iter_mut().for_each(|d| *d = (*d - along) / total);
            }
            through_score(&mut d, &p, logits, kind);
            if load.z != 0.0 {
                let z = log_sum_exp(logits);
                let factor = grad_scale * R::of(2.0 * load.z) * z;
                d.iter_mut().zip(logits).for_each(|(d, &l)| *d += factor * (l - z).exp());
            }
            // SAFETY: a unit takes its own rows.
            let row = unsafe { out.part(t * count, count) };
            row.iter_mut().zip(&d).for_each(|(o, &d)| *o += d);
        }
    });
    Ok(loss)
}

/// `ln(Σ exp(x))`.
fn log_sum_exp<R: Real>(x: &[R]) -> R {
    let most = x.iter().copied().fold(R::NEG_INFINITY, R::max);
    most + x.iter().map(|&x| (x - most).exp()).sum::<R>().ln()
}
