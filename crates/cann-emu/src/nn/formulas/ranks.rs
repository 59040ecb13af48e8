//! Operators that several ranks run together: each rank is a thread with a device and a stream of its own.
//!
//! Operands are small integers, so that products and sums are exact in every type and what is compared is which rank gets what.

use super::maths::{product, transpose, truth};
use super::quantised_ranks;
use super::run::{Run, noise};
use crate::api::hccl;
use crate::nn::tensor::Dtype;
use std::sync::Mutex;

/// A rank among those that run an operator.
pub(super) struct Rank {
    pub(super) me: usize,
    pub(super) ranks: usize,
    /// Names of its communicators: of all ranks, or along two axes of a grid.
    pub(super) groups: Vec<String>,
}

/// Integers from `low` to `high`, the same for one seed.
pub(super) fn whole(n: usize, seed: usize, low: i64, high: i64) -> Vec<f64> {
    noise(n, seed as u64 + 77, low as f64, high as f64 + 1.0).iter().map(|v| v.floor()).collect()
}

/// Σ over the ranks.
pub(super) fn total(ranks: usize, of: impl Fn(usize) -> Vec<f64>) -> Vec<f64> {
    (1..ranks).fold(of(0), |sum, rank| sum.iter().zip(of(rank)).map(|(s, v)| s + v).collect())
}

/// A residual with a sum added, and its norm by root mean square.
pub(super) fn normed(r: &mut Run, residual: &[f64], sum: &[f64], gamma: &[f64]) {
    let (n, sum): (_, Vec<f64>) = (gamma.len(), residual.iter().zip(sum).map(|(a, b)| a + b).collect());
    let row_norm = |row: &[f64]| {
        let q = (row.iter().map(|v| v * v).sum::<f64>() / n as f64 + 1e-5).sqrt();
        row.iter().zip(gamma).map(|(v, g)| v / q * g).collect::<Vec<f64>>()
    };
    let norm = sum.chunks(n).flat_map(row_norm).collect();
    if r.has("y") {
        r.out("y", &[2, 2, n as i64], sum);
    } else {
        r.becomes("residual", sum);
    }
    r.loose(2.0).out("normOut", &[2, 2, n as i64], norm);
}

const HALVES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

pub(super) type Fill = fn(&mut Run, &Rank);

/// An operator, how many ranks run it, whether along the axes of a grid, and what each is given and must get.
pub(super) struct Case(pub(super) &'static str, pub(super) usize, pub(super) bool, pub(super) Fill);

fn name_of(comm: usize) -> String {
    let mut text = [0u8; 128];
    assert_eq!(hccl::HcclGetCommName(comm, text.as_mut_ptr() as usize), 0);
    text.iter().take_while(|b| **b != 0).map(|b| *b as char).collect()
}

fn destroy(comm: usize) {
    let code = hccl::HcclCommDestroy(comm);
    assert!(code == 0 || hccl::HcclCommDestroy(comm) == 0);
}

/// Runs `f` on a thread for each rank; with a grid of two columns each rank has a communicator along either axis.
pub(super) fn with_ranks(ranks: usize, grid: bool, f: impl Fn(Rank) + Sync) -> Result<(), String> {
    let devices: Vec<i32> = (0..ranks as i32).collect();
    let mut comms = vec![0usize; ranks];
    let code = hccl::HcclCommInitAll(ranks as u32, devices.as_ptr() as usize, comms.as_mut_ptr() as usize);
    assert_eq!(code, 0, "HcclCommInitAll");
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for me in 0..ranks {
            let (f, failed, world) = (&f, &failed, comms[me]);
            scope.spawn(move || {
                assert_eq!(crate::api::aclrtSetDevice(me as i32), 0);
                let part = |along: Vec<u32>, id: u64| {
                    let (mut parent, mut comm) = (world, 0usize);
                    let at = along.iter().position(|r| *r as usize == me).unwrap();
                    let code = hccl::HcclCreateSubCommConfig(
                        &raw mut parent as usize,
                        along.len() as u32,
                        along.as_ptr() as usize,
                        id,
                        at as u32,
                        0,
                        &raw mut comm as usize,
                    );
                    assert_eq!(code, 0, "HcclCreateSubCommConfig");
                    comm
                };
                let column = (me as u32 % 2..ranks as u32).step_by(2).collect();
                let row = vec![me as u32 / 2 * 2, me as u32 / 2 * 2 + 1];
                let own = if grid { vec![part(column, 1), part(row, 2)] } else { vec![] };
                let named: &[usize] = if grid { &own } else { &[world] };
                let groups = named.iter().map(|c| name_of(*c)).collect();
                let run = || f(Rank { me, ranks, groups });
                if let Err(e) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                    let text = e.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| e.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                    failed.lock().unwrap().push(format!("rank {me}: {}", text.unwrap_or_default()));
                }
                own.into_iter().for_each(destroy);
            });
        }
    });
    comms.into_iter().for_each(destroy);
    let failed = failed.into_inner().unwrap();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// Runs every case of a kind of chip; the number of runs.
pub(super) fn run(a3: bool, wrong: &mut Vec<String>) -> usize {
    let mut runs = 0;
    let (cases, more): (_, &[Case]) = if a3 { (CASES_A3, &[]) } else { (CASES, quantised_ranks::CASES) };
    for Case(name, ranks, grid, fill) in cases.iter().chain(more) {
        for dtype in HALVES {
            runs += 1;
            let one = |rank: Rank| {
                let mut run = Run::new(name, dtype, false);
                fill(&mut run, &rank);
                assert!(run.finish());
            };
            if let Err(said) = with_ranks(*ranks, *grid, one) {
                wrong.push(format!("{name} in {dtype:?} on {ranks} ranks: {said}"));
            }
        }
    }
    runs + super::routes::run(a3, wrong) + super::wrong::run(a3, wrong)
}

/// The operators with cases here.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let all = CASES.iter().chain(CASES_A3).chain(quantised_ranks::CASES);
    all.map(|c| c.0).chain(super::routes::NAMES.iter().copied())
}

/// Σ over the ranks of products of parts of the inner dimension, and what each rank adds.
fn all_reduce(r: &mut Run, w: &Rank) {
    let (m, k, n) = (3, 16, 5);
    let x = |rank| whole(m * k, rank, -1, 1);
    let y = |rank| whole(k * n, 10 + rank, -1, 1);
    let bias = |rank| whole(n, 20 + rank, -3, 3);
    let more = |rank| whole(m * n, 30 + rank, -3, 3);
    let dtype = r.dtype;
    r.t("x1", &[m as i64, k as i64], dtype, &x(w.me));
    r.t("x2", &[k as i64, n as i64], dtype, &y(w.me));
    r.t("bias", &[n as i64], dtype, &bias(w.me));
    let extra = r.has("x3");
    if extra {
        r.t("x3", &[m as i64, n as i64], dtype, &more(w.me));
    }
    if r.has("commMode") {
        r.text("commMode", "");
    }
    let want = total(w.ranks, |rank| {
        let (p, b, e) = (product(&x(rank), &y(rank), m, k, n), bias(rank), more(rank));
        (0..m * n).map(|i| p[i] + b[i % n] + truth(extra) * e[i]).collect()
    });
    turn(r, w);
    r.out("output", &[m as i64, n as i64], want);
}

/// What all of these operators are given alike.
pub(super) fn turn(r: &mut Run, w: &Rank) {
    r.text("group", &w.groups[0]).n("commTurn", 0.0).n("streamMode", 1.0);
    if r.has("reduceOp") {
        r.text("reduceOp", "sum");
    }
}

fn all_reduce_norm(r: &mut Run, w: &Rank) {
    let (m, k, n) = (4, 16, 6);
    let x = |rank| whole(m * k, rank, -1, 1);
    let y = |rank| whole(k * n, 10 + rank, -1, 1);
    let dtype = r.dtype;
    r.t("x1", &[m as i64, k as i64], dtype, &x(w.me));
    r.t("x2", &[k as i64, n as i64], dtype, &y(w.me));
    let residual = r.t("residual", &[2, 2, n as i64], dtype, &whole(m * n, 50, -3, 3));
    let gamma = r.t("gamma", &[n as i64], dtype, &whole(n, 51, 1, 4));
    r.n("epsilon", 1e-5);
    let sum = total(w.ranks, |rank| product(&x(rank), &y(rank), m, k, n));
    turn(r, w);
    normed(r, &residual, &sum, &gamma);
}

/// Rows of all ranks times one matrix, which lies transposed in the operators' second form.
fn gather_product(r: &mut Run, w: &Rank) {
    let (m, k, n) = (3, 256, 5);
    let x = |rank| whole(m * k, rank, -1, 1);
    let y = whole(k * n, 10 + w.me, -1, 1);
    let dtype = r.dtype;
    r.t("x1", &[m as i64, k as i64], dtype, &x(w.me));
    r.t("x2", &[k as i64, n as i64], dtype, &y);
    let all: Vec<f64> = (0..w.ranks).flat_map(x).collect();
    if r.has("commMode") {
        r.text("commMode", "aiv");
    }
    turn(r, w);
    let rows = (m * w.ranks) as i64;
    r.out("output", &[rows, n as i64], product(&all, &y, m * w.ranks, k, n));
    r.out("gatherOut", &[rows, k as i64], all);
}

fn product_scatter(r: &mut Run, w: &Rank) {
    let (m, k, n) = (2 * w.ranks, 256, 5);
    let x = |rank| whole(m * k, rank, -1, 1);
    let y = |rank| whole(k * n, 10 + rank, -1, 1);
    let dtype = r.dtype;
    r.t("x1", &[m as i64, k as i64], dtype, &x(w.me));
    r.t("x2", &[k as i64, n as i64], dtype, &y(w.me));
    let sum = total(w.ranks, |rank| product(&x(rank), &y(rank), m, k, n));
    if r.has("commMode") {
        r.text("commMode", "aiv");
    }
    turn(r, w);
    r.out("output", &[2, n as i64], sum[w.me * 2 * n..(w.me + 1) * 2 * n].to_vec());
}

/// Rank j's rows are those j-th of every rank, side by side.
fn all_to_all_product(r: &mut Run, w: &Rank) {
    let (rows, h, n) = (2, 5, 3);
    let m = rows * w.ranks;
    let x = |rank| whole(m * h, rank, -1, 1);
    let dtype = r.dtype;
    r.t("x1", &[m as i64, h as i64], dtype, &x(w.me));
    let y = whole(h * w.ranks * n, 40, -1, 1);
    r.t("x2", &[n as i64, (h * w.ranks) as i64], dtype, &transpose(&y, h * w.ranks, n));
    r.n("transposeX2", 1.0).text("group", &w.groups[0]).ints("alltoAllAxesOptional", &[-2, -1]);
    let bias = whole(n, 41, -2, 2);
    r.t("biasOptional", &[n as i64], dtype, &bias);
    let mut wide = Vec::new();
    for row in 0..rows {
        for rank in 0..w.ranks {
            wide.extend_from_slice(&x(rank)[(w.me * rows + row) * h..][..h]);
        }
    }
    let want = product(&wide, &y, rows, h * w.ranks, n);
    r.out(
        "output",
        &[rows as i64, n as i64],
        want.iter().enumerate().map(|(i, v)| v + bias[i % n]).collect(),
    );
    r.out("alltoAllOutOptional", &[rows as i64, (h * w.ranks) as i64], wide);
}

/// Rank j gets the j-th part of every rank's columns.
fn product_all_to_all(r: &mut Run, w: &Rank) {
    let (m, h, part) = (3, 7, 2);
    let n = part * w.ranks;
    let x = |rank| whole(m * h, rank, -1, 1);
    let y = |rank| whole(h * n, 10 + rank, -1, 1);
    let dtype = r.dtype;
    r.t("x1", &[m as i64, h as i64], dtype, &x(w.me));
    r.t("x2", &[h as i64, n as i64], dtype, &y(w.me));
    r.text("group", &w.groups[0]);
    let mut want = Vec::new();
    for rank in 0..w.ranks {
        let c = product(&x(rank), &y(rank), m, h, n);
        (0..m).for_each(|row| want.extend_from_slice(&c[row * n + w.me * part..][..part]));
    }
    r.out("output", &[(m * w.ranks) as i64, part as i64], want);
}

fn groups_reduced(r: &mut Run, w: &Rank) {
    let (k, n, rows) = (6, 4, [2usize, 3]);
    let x = |rank| whole(5 * k, rank, -1, 1);
    let y = |rank, g: usize| whole(k * n, 10 * (g + 1) + rank, -1, 1);
    r.list("x", &[(&[5, k as i64], x(w.me))]);
    let shape = [k as i64, n as i64];
    r.list("weight", &[(&shape, y(w.me, 0)), (&shape, y(w.me, 1))]);
    r.ints("groupListOptional", &[2, 5]).n("splitItem", 3.0);
    let want = total(w.ranks, |rank| {
        let all = x(rank);
        let (first, second) = all.split_at(rows[0] * k);
        [product(first, &y(rank, 0), rows[0], k, n), product(second, &y(rank, 1), rows[1], k, n)].concat()
    });
    turn(r, w);
    r.outs("y", &[(&[5, n as i64], want)]);
}

fn gather_add(r: &mut Run, w: &Rank) {
    let a = |rank| whole(6, rank, -9, 9);
    let dtype = r.dtype;
    r.t("a", &[2, 3], dtype, &a(w.me));
    let rows = 2 * w.ranks as i64;
    let b = r.t("b", &[rows, 3], dtype, &whole(6 * w.ranks, 90 + w.me, -9, 9));
    let all: Vec<f64> = (0..w.ranks).flat_map(a).collect();
    r.text("group", &w.groups[0]).n("rankSize", w.ranks as f64);
    r.out("cOut", &[rows, 3], all.iter().zip(&b).map(|(a, b)| a + b).collect());
    r.out("gatherOutOut", &[rows, 3], all);
}

fn barrier(r: &mut Run, w: &Rank) {
    let dtype = r.dtype;
    let x = r.t("xRef", &[3], dtype, &whole(3, w.me, -9, 9));
    r.text("group", &w.groups[0]).n("worldSize", w.ranks as f64).becomes("xRef", x);
}

/// The sizes of the stacks: experts, ranks along either axis, and for each tokens, width, columns.
const STACK: (usize, usize, usize, usize, usize, usize) = (4, 2, 2, 3, 2, 3);

/// Tokens go to the ranks of their experts along the first axis; their parts, of rows or of columns, meet along the second.
fn stacks(r: &mut Run, w: &Rank, by_rows: bool) {
    let (e, ep, tp, c, h, m) = STACK;
    let (i, j) = (w.me / 2, w.me % 2);
    let x = |i: usize, j: usize| whole(e * c * h, 100 + i * tp + j, -1, 1);
    let wide = if by_rows { h } else { h * tp };
    let weight = whole(e / ep * wide * m, 200 + w.me, -1, 1);
    let dtype = r.dtype;
    r.t("x", &[e as i64, c as i64, h as i64], dtype, &x(i, j));
    r.t("weight", &[(e / ep) as i64, wide as i64, m as i64], dtype, &weight);
    r.text("groupEp", &w.groups[0]).text("groupTp", &w.groups[1]).n("epWorldSize", 2.0).n("tpWorldSize", 2.0);
    r.n("xShardType", truth(by_rows)).n("actType", 3.0);
    let (mut y2, mut y3) = (Vec::new(), Vec::new());
    for expert in 0..e / ep {
        let mut rows = Vec::new();
        for from in 0..ep {
            let token =
                |t: usize, token: usize| x(from, t)[((i * e / ep + expert) * c + token) * h..][..h].to_vec();
            if by_rows {
                (0..tp).for_each(|t| (0..c).for_each(|k| rows.extend(token(t, k))));
            } else {
                (0..c).for_each(|k| (0..tp).for_each(|t| rows.extend(token(t, k))));
            }
        }
        let n = rows.len() / wide;
        y3.extend(product(&rows, &weight[expert * wide * m..][..wide * m], n, wide, m));
        y2.extend(rows);
    }
    let n = (y3.len() / m / (e / ep)) as i64;
    let own = (e / ep) as i64;
    r.out("y1Out", &[own, n, m as i64], y3.iter().map(|v| v.max(0.0)).collect());
    r.out("y2OutOptional", &[own, n, wide as i64], y2).out("y3OutOptional", &[own, n, m as i64], y3);
}

fn stacks_back(r: &mut Run, w: &Rank, by_rows: bool) {
    let (e, ep, tp, c, m, h) = STACK;
    let (i, j) = (w.me / 2, w.me % 2);
    // Whole tokens of an expert: `full` rows from each rank along the first axis, of `width` columns.
    let (full, width) = if by_rows { (c * tp, h) } else { (c, h * tp) };
    let x = |i: usize, j: usize| whole(e / ep * ep * full * m, 300 + i * tp + j, -1, 1);
    let weight = |i: usize, j: usize| whole(e / ep * m * width, 400 + i * tp + j, -1, 1);
    let dtype = r.dtype;
    r.t("x", &[(e / ep) as i64, (ep * full) as i64, m as i64], dtype, &x(i, j));
    r.t("weight", &[(e / ep) as i64, m as i64, width as i64], dtype, &weight(i, j));
    r.text("groupEp", &w.groups[0]).text("groupTp", &w.groups[1]).n("epWorldSize", 2.0).n("tpWorldSize", 2.0);
    r.n("yShardType", truth(by_rows));
    let mut want = Vec::new();
    for expert in 0..e {
        let (at, own) = (expert / (e / ep), expert % (e / ep));
        let sum = total(tp, |t| {
            let rows = &x(at, t)[own * ep * full * m..][..ep * full * m];
            product(rows, &weight(at, t)[own * m * width..][..m * width], ep * full, m, width)
        });
        // The tokens of this rank's row of the grid, and of them this column's rows or columns.
        let mine = &sum[i * full * width..][..full * width];
        if by_rows {
            want.extend_from_slice(&mine[j * c * width..][..c * width]);
        } else {
            (0..full).for_each(|row| want.extend_from_slice(&mine[row * width + j * h..][..h]));
        }
    }
    r.out("out", &[e as i64, c as i64, h as i64], want);
}

/// Rows that rank `from` sends to expert `e` of rank `to`.
fn sent(from: usize, to: usize, e: usize) -> usize {
    (from + 2 * to + 3 * e) % 3
}

/// The sum of an operand's products beside the exchange.
fn beside(r: &mut Run, w: &Rank) {
    let (x, y) = (whole(2 * 3, 60 + w.me, -1, 1), whole(3 * 4, 61, -1, 1));
    let dtype = r.dtype;
    r.t("mmXOptional", &[2, 3], dtype, &x);
    r.t("mmWeightOptional", &[3, 4], dtype, &y);
    r.out("mmYOptional", &[2, 4], product(&x, &y, 2, 3, 4));
}

fn all_to_all_groups(r: &mut Run, w: &Rank) {
    let (experts, h, n) = (2, 4, 3);
    let row = |from: usize, to: usize, e: usize, i: usize| {
        whole(h, 1000 + ((from * 8 + to) * experts + e) * 3 + i, -1, 1)
    };
    let (mut send, mut recv, mut x) = (vec![], vec![], vec![]);
    for other in 0..w.ranks {
        for e in 0..experts {
            send.push(sent(w.me, other, e) as i64);
            recv.push(sent(other, w.me, e) as i64);
            (0..sent(w.me, other, e)).for_each(|i| x.extend(row(w.me, other, e, i)));
        }
    }
    let weight = whole(experts * h * n, 500 + w.me, -1, 1);
    let (mut rows, mut y) = (Vec::new(), Vec::new());
    for e in 0..experts {
        let mut mine = Vec::new();
        for from in 0..w.ranks {
            (0..sent(from, w.me, e)).for_each(|i| mine.extend(row(from, w.me, e, i)));
        }
        y.extend(product(&mine, &weight[e * h * n..][..h * n], mine.len() / h, h, n));
        rows.extend(mine);
    }
    let dtype = r.dtype;
    r.t("gmmX", &[(x.len() / h) as i64, h as i64], dtype, &x);
    r.t("gmmWeight", &[experts as i64, h as i64, n as i64], dtype, &weight);
    r.text("group", &w.groups[0]).n("epWorldSize", w.ranks as f64).ints("sendCounts", &send);
    r.ints("recvCounts", &recv).n("permuteOutFlag", 1.0);
    let came = (rows.len() / h) as i64;
    r.out("gmmY", &[came, n as i64], y).out("permuteOutOptional", &[came, h as i64], rows);
    beside(r, w);
}

fn groups_all_to_all(r: &mut Run, w: &Rank) {
    let (experts, h, n) = (2, 4, 3);
    let row = |from: usize, to: usize, e: usize, i: usize| {
        whole(h, 2000 + ((from * 8 + to) * experts + e) * 3 + i, -1, 1)
    };
    let weight = |rank: usize| whole(experts * h * n, 600 + rank, -1, 1);
    let (mut send, mut recv) = (vec![], vec![]);
    for other in 0..w.ranks {
        for e in 0..experts {
            // A rank sends rows of its own experts, and gets rows of the others'.
            send.push(sent(w.me, other, e) as i64);
            recv.push(sent(other, w.me, e) as i64);
        }
    }
    let mut x = Vec::new();
    for e in 0..experts {
        for other in 0..w.ranks {
            (0..sent(w.me, other, e)).for_each(|i| x.extend(row(w.me, other, e, i)));
        }
    }
    let mut y = Vec::new();
    for from in 0..w.ranks {
        for e in 0..experts {
            for i in 0..sent(from, w.me, e) {
                y.extend(product(&row(from, w.me, e, i), &weight(from)[e * h * n..][..h * n], 1, h, n));
            }
        }
    }
    let dtype = r.dtype;
    r.t("gmmX", &[(x.len() / h) as i64, h as i64], dtype, &x);
    let lies: Vec<f64> = weight(w.me).chunks(h * n).flat_map(|m| transpose(m, h, n)).collect();
    r.t("gmmWeight", &[experts as i64, n as i64, h as i64], dtype, &lies);
    r.text("group", &w.groups[0]).n("epWorldSize", w.ranks as f64).ints("sendCounts", &send);
    r.ints("recvCounts", &recv).n("transGmmWeight", 1.0);
    r.out("y", &[(y.len() / n) as i64, n as i64], y);
    beside(r, w);
}

const CASES: &[Case] = &[
    Case("MatmulAllReduce", 1, false, all_reduce),
    Case("MatmulAllReduce", 4, false, all_reduce),
    Case("MatmulAllReduceV2", 2, false, all_reduce),
    Case("MatmulAllReduceV3", 2, false, all_reduce),
    Case("MatmulAllReduceAddRmsNorm", 2, false, all_reduce_norm),
    Case("InplaceMatmulAllReduceAddRmsNorm", 4, false, all_reduce_norm),
    Case("AllGatherMatmul", 2, false, gather_product),
    Case("AllGatherMatmul", 8, false, gather_product),
    Case("AllGatherMatmulV2", 4, false, gather_product),
    Case("MatmulReduceScatter", 4, false, product_scatter),
    Case("MatmulReduceScatterV2", 2, false, product_scatter),
    Case("AlltoAllMatmul", 4, false, all_to_all_product),
    Case("AlltoAllMatmulV2", 2, false, all_to_all_product),
    Case("MatmulAlltoAll", 4, false, product_all_to_all),
    Case("MatmulAlltoAllV2", 2, false, product_all_to_all),
    Case("GroupedMatMulAllReduce", 2, false, groups_reduced),
    Case("AllGatherAdd", 2, false, gather_add),
    Case("DistributeBarrier", 3, false, barrier),
];

const CASES_A3: &[Case] = &[
    Case("AllGatherMatmul", 4, false, gather_product),
    Case("AlltoAllAllGatherBatchMatMul", 4, true, |r, w| stacks(r, w, false)),
    Case("AlltoAllAllGatherBatchMatMul", 4, true, |r, w| stacks(r, w, true)),
    Case("BatchMatMulReduceScatterAlltoAll", 4, true, |r, w| stacks_back(r, w, false)),
    Case("BatchMatMulReduceScatterAlltoAll", 4, true, |r, w| stacks_back(r, w, true)),
    Case("AlltoAllvGroupedMatMul", 8, false, all_to_all_groups),
    Case("AlltoAllvGroupedMatMulV2", 8, false, all_to_all_groups),
    Case("GroupedMatMulAlltoAllv", 8, false, groups_all_to_all),
    Case("GroupedMatMulAlltoAllvV2", 8, false, groups_all_to_all),
];
