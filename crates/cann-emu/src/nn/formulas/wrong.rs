//! What first phases of operators of several ranks must refuse: operands that do not fit together.

use super::ranks::{Rank, with_ranks};
use super::run::Run;
use crate::nn::tensor::Dtype;

/// An operator, how many ranks call it, whether along the axes of a grid, the code and a part of the sentence that it must be
/// refused with, and what it is given.
struct Wrong(&'static str, usize, bool, i32, &'static str, fn(&mut Run, &Rank));

const SHAPES: i32 = 161_002;
const TILING: i32 = 561_002;

/// A tensor of the case's type, whatever it holds.
fn t(r: &mut Run, name: &str, dims: &[i64]) {
    let dtype = r.dtype;
    r.any(name, dims, dtype);
}

fn group(r: &mut Run, w: &Rank) {
    r.text("group", &w.groups[0]);
    if r.has("streamMode") {
        r.n("streamMode", 1.0).text("reduceOp", "sum");
    }
}

/// More rows of the residual than the product has.
fn residual(r: &mut Run, w: &Rank) {
    t(r, "x1", &[4, 16]);
    t(r, "x2", &[16, 6]);
    t(r, "residual", &[2, 3, 6]);
    t(r, "gamma", &[6]);
    if r.has("y") {
        t(r, "y", &[2, 3, 6]);
    }
    t(r, "normOut", &[2, 3, 6]);
    group(r, w);
}

/// Four rows of five dealt to two ranks and a matrix of these dimensions, which lies transposed.
fn deal(r: &mut Run, w: &Rank, dims: &[i64]) {
    t(r, "x1", &[4, 5]);
    t(r, "x2", dims);
    t(r, "output", &[2, 3]);
    r.n("transposeX2", 1.0);
    group(r, w);
}

/// Three rows of seven times a matrix of these dimensions.
fn columns(r: &mut Run, w: &Rank, dims: &[i64]) {
    t(r, "x1", &[3, 7]);
    t(r, "x2", dims);
    t(r, "output", &[6, 2]);
    group(r, w);
}

/// Two groups of rows of one tensor of five.
fn groups(r: &mut Run, w: &Rank, ends: &[i64], k: i64, rows: i64) {
    let none = |d: &[i64]| vec![0.0; d.iter().product::<i64>() as usize];
    let (x, a, b): (&[i64], &[i64], &[i64]) = (&[5, 6], &[6, 4], &[k, 4]);
    r.list("x", &[(x, none(x))]);
    r.list("weight", &[(a, none(a)), (b, none(b))]);
    let y: &[i64] = &[rows, 4];
    r.list("y", &[(y, none(y))]);
    r.ints("groupListOptional", ends).n("splitItem", 3.0);
    group(r, w);
}

/// Tokens of four columns to experts with matrices of five rows.
fn experts(r: &mut Run, w: &Rank) {
    let counts = vec![0; 2 * w.ranks];
    t(r, "gmmX", &[0, 4]);
    t(r, "gmmWeight", &[2, 5, 3]);
    let name = if r.has("gmmY") { "gmmY" } else { "y" };
    t(r, name, &[0, 3]);
    r.n("epWorldSize", w.ranks as f64).ints("sendCounts", &counts).ints("recvCounts", &counts);
    group(r, w);
}

/// Stacks of two experts a rank along both axes, two ranks each.
fn grid(r: &mut Run, w: &Rank) {
    r.text("groupEp", &w.groups[0]).text("groupTp", &w.groups[1]).n("epWorldSize", 2.0).n("tpWorldSize", 2.0);
}

fn stacks(r: &mut Run, w: &Rank, shard: f64, inner: i64) {
    grid(r, w);
    t(r, "x", &[4, 3, 2]);
    t(r, "weight", &[2, inner, 3]);
    t(r, "y1Out", &[2, 6, 3]);
    r.n("xShardType", shard);
}

fn stacks_back(r: &mut Run, w: &Rank, shard: f64, rows: i64, width: i64, out: &[i64]) {
    grid(r, w);
    t(r, "x", &[2, rows, 3]);
    t(r, "weight", &[2, 3, width]);
    t(r, "out", out);
    r.n("yShardType", shard);
}

/// Tokens to eight experts with so many shared ones on so many ranks.
fn routes(r: &mut Run, w: &Rank, shared: f64, on: f64) {
    let dtype = r.dtype;
    r.any("x", &[2, 1024], dtype).any("expertIds", &[2, 2], Dtype::I32).any("expandXOut", &[16, 1024], dtype);
    r.any("assistInfoForCombineOut", &[2048], Dtype::I32).any("expertTokenNumsOut", &[2], Dtype::I64);
    r.any("epRecvCountsOut", &[8], Dtype::I32).text("groupEp", &w.groups[0]);
    r.n("epWorldSize", w.ranks as f64).n("epRankId", w.me as f64).n("moeExpertNum", 8.0);
    r.n("sharedExpertNum", shared).n("sharedExpertRankNum", on).n("expertTokenNumsType", 1.0);
}

const WRONG: &[Wrong] = &[
    Wrong("MatmulAllReduceAddRmsNorm", 2, false, SHAPES, "b*s 6 and r.n 4 must be equal", residual),
    Wrong("InplaceMatmulAllReduceAddRmsNorm", 2, false, SHAPES, "b*s 6 and r.n 4 must be equal", residual),
    Wrong("AlltoAllMatmul", 2, false, SHAPES, "x2: expected [h*R,n]", |r, w| deal(r, w, &[3])),
    Wrong("AlltoAllMatmul", 2, false, SHAPES, "x2: expected [h*R,n] with h*R 10", |r, w| deal(r, w, &[3, 9])),
    Wrong("AlltoAllMatmulV2", 2, false, SHAPES, "x2: expected [h*R,n]", |r, w| deal(r, w, &[3])),
    Wrong("MatmulAlltoAll", 2, false, SHAPES, "x2: expected [h,n] with h 7", |r, w| columns(r, w, &[6, 4])),
    Wrong("MatmulAlltoAll", 2, false, SHAPES, "n: expected a multiple of R 2", |r, w| columns(r, w, &[7, 5])),
    Wrong("MatmulAlltoAllV2", 2, false, SHAPES, "x2: expected [h,n]", |r, w| columns(r, w, &[7])),
    Wrong("GroupedMatMulAllReduce", 2, false, SHAPES, "expected 2 ends of groups, the last 5", |r, w| {
        groups(r, w, &[5], 6, 5);
    }),
    Wrong("GroupedMatMulAllReduce", 2, false, SHAPES, "the last 5, found [2, 9]", |r, w| {
        groups(r, w, &[2, 9], 6, 5);
    }),
    Wrong("GroupedMatMulAllReduce", 2, false, SHAPES, "group 1: x has 6 columns", |r, w| {
        groups(r, w, &[2, 5], 7, 5);
    }),
    Wrong("GroupedMatMulAllReduce", 2, false, SHAPES, "y: expected 5 rows of 4, found [4, 4]", |r, w| {
        groups(r, w, &[2, 5], 6, 4);
    }),
];

const WRONG_A3: &[Wrong] = &[
    Wrong("AlltoAllvGroupedMatMul", 8, false, SHAPES, "gmmWeight: expected [e,h,n] with h 4", experts),
    Wrong("AlltoAllvGroupedMatMulV2", 8, false, SHAPES, "gmmWeight: expected [e,h,n] with h 4", experts),
    Wrong("GroupedMatMulAlltoAllv", 8, false, SHAPES, "gmmWeight: expected [e,h,n] with h 4", experts),
    Wrong("GroupedMatMulAlltoAllvV2", 8, false, SHAPES, "gmmWeight: expected [e,h,n] with h 4", experts),
    Wrong("AlltoAllAllGatherBatchMatMul", 4, true, SHAPES, "weight: expected [E/ep,H,M] with H 4", |r, w| {
        stacks(r, w, 0.0, 2);
    }),
    Wrong("AlltoAllAllGatherBatchMatMul", 4, true, SHAPES, "weight: expected [E/ep,H,M] with H 2", |r, w| {
        stacks(r, w, 1.0, 4);
    }),
    Wrong("BatchMatMulReduceScatterAlltoAll", 4, true, SHAPES, "multiple of columns 2, found 3", |r, w| {
        stacks_back(r, w, 0.0, 4, 3, &[4, 2, 1]);
    }),
    Wrong("BatchMatMulReduceScatterAlltoAll", 4, true, SHAPES, "multiple of ep*rows 4, found 6", |r, w| {
        stacks_back(r, w, 1.0, 6, 3, &[4, 1, 3]);
    }),
    Wrong("BatchMatMulReduceScatterAlltoAll", 4, true, SHAPES, "out: expected", |r, w| {
        stacks_back(r, w, 0.0, 4, 6, &[4, 2, 6]);
    }),
    // More shared experts than ranks for them, none for two ranks, and fewer ranks than none.
    Wrong("MoeDistributeDispatchV2", 4, false, TILING, "a multiple of sharedExpertNum 4, found 2", |r, w| {
        routes(r, w, 4.0, 2.0);
    }),
    Wrong("MoeDistributeDispatchV2", 4, false, TILING, "a multiple of sharedExpertNum 0, found 2", |r, w| {
        routes(r, w, 0.0, 2.0);
    }),
    Wrong("MoeDistributeDispatchV2", 4, false, TILING, "sharedExpertRankNum: expected 0..767", |r, w| {
        routes(r, w, 0.0, -4.0);
    }),
];

/// Calls all of a kind of chip; the number of calls.
pub(super) fn run(a3: bool, wrong: &mut Vec<String>) -> usize {
    let all = if a3 { WRONG_A3 } else { WRONG };
    for Wrong(name, ranks, grid, code, says, fill) in all {
        let one = |rank: Rank| {
            let mut run = Run::new(name, Dtype::F16, false);
            fill(&mut run, &rank);
            let said = run.refusal(*code);
            assert!(said.contains(says), "expected {says:?}, found {said}");
        };
        if let Err(said) = with_ranks(*ranks, *grid, one) {
            wrong.push(format!("{name} on {ranks} ranks must be refused: {said}"));
        }
    }
    all.len()
}
