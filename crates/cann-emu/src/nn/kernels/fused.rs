//! Products fused with communication: `ascend-abi.md`, section 8.11. What they exchange is rounded to the type of the exchanged
//! tensor, as a product and a collective one after the other would.

use super::Row;
use super::exchange::{add_row, all_to_all, exchange, gathered, permuted, scattered, shapes, summed, times};
use super::matmul::{matmul_values, product, transposed};
use super::norm::rms;
use crate::hccl::wire::Kind;
use crate::nn::bytes::{decode, encode};
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Dtype, Values};

/// Σ over the ranks of x1·x2 + bias + x3.
fn reduced(k: &Call, dtype: Dtype) -> Result<Vec<f64>, Fault> {
    let (mut c, _) = matmul_values(k, k.t("x1")?, k.t("x2")?)?;
    add_row(&mut c, k.opt_f("bias")?);
    if k.value("x3").is_some()
        && let Some(x3) = k.opt_f("x3")?
    {
        c.iter_mut().zip(&x3).for_each(|(c, x)| *c += x);
    }
    summed(k, &c, dtype, &shapes(k, &["x1", "x2"])?)
}

fn all_reduce(k: &Call) -> Outcome {
    let c = reduced(k, k.t("output")?.dtype)?;
    k.put("output", &Values::F(c))
}

/// y = a sum over the ranks + residual, and its norm by root mean square.
pub(super) fn add_norm(k: &Call, sum: &[f64]) -> Outcome {
    let (residual, gamma, dtype) = (k.f("residual")?, k.f("gamma")?, k.t("residual")?.dtype);
    let y: Vec<f64> = sum.iter().zip(&residual).map(|(a, b)| a + b).collect();
    let y = decode(&encode(&y, dtype), dtype);
    let (norm, _) = rms(k, &y, &gamma, k.num("epsilon")?, 0.0);
    k.put("y|residual", &Values::F(y))?;
    k.put("normOut", &Values::F(norm))
}

fn all_reduce_norm(k: &Call) -> Outcome {
    add_norm(k, &reduced(k, k.t("residual")?.dtype)?)
}

fn gather_product(k: &Call) -> Outcome {
    let x1 = k.t("x1")?;
    let all = gathered(k, &k.f("x1")?, x1.dtype, &shapes(k, &["x1", "x2"])?)?;
    let mut c = times(k, &all, k.t("x2")?)?;
    add_row(&mut c, k.opt_f("bias")?);
    k.put("output", &Values::F(c))?;
    k.put_opt("gatherOut", &Values::F(all))
}

fn gather_add(k: &Call) -> Outcome {
    let all = gathered(k, &k.f("a")?, k.t("a")?.dtype, &shapes(k, &["a", "b"])?)?;
    let sum = all.iter().zip(&k.f("b")?).map(|(a, b)| a + b).collect();
    k.put("gatherOutOut", &Values::F(all))?;
    k.put("cOut", &Values::F(sum))
}

fn product_scatter(k: &Call) -> Outcome {
    let (mut c, _) = matmul_values(k, k.t("x1")?, k.t("x2")?)?;
    add_row(&mut c, k.opt_f("bias")?);
    let fixed = k.fixed || k.group("group")?.is_deterministic_by_hccl();
    let mine = scattered(k, "group", &c, k.t("output")?.dtype, &shapes(k, &["x1", "x2"])?, fixed)?;
    k.put("output", &Values::F(mine))
}

/// Rows of x1 to all ranks; of what comes the parts of a row beside one another.
pub(super) fn wide_rows(k: &Call) -> Result<Vec<f64>, Fault> {
    let (x1, ranks) = (k.t("x1")?, k.group("group")?.size as usize);
    let (rows, h) = (x1.dims[0] as usize, x1.dims[1] as usize);
    let all = all_to_all(k, "group", &k.f("x1")?, x1.dtype, &shapes(k, &["x1", "x2"])?)?;
    Ok(permuted(&all, &[ranks, rows / ranks, h], &[1, 0, 2]))
}

fn all_to_all_product(k: &Call) -> Outcome {
    let wide = wide_rows(k)?;
    let mut c = times(k, &wide, &transposed(k, "x2", "transposeX2")?)?;
    add_row(&mut c, k.opt_f("biasOptional")?);
    k.put("output", &Values::F(c))?;
    k.put_opt("alltoAllOutOptional", &Values::F(wide))
}

/// Columns of a product to all ranks; what comes stands below one another.
pub(super) fn columns_all_to_all(k: &Call, c: &[f64], columns: usize) -> Outcome {
    let (rows, ranks) = (k.t("x1")?.dims[0] as usize, k.group("group")?.size as usize);
    let parts = permuted(c, &[rows, ranks, columns / ranks], &[1, 0, 2]);
    let all = all_to_all(k, "group", &parts, k.t("output")?.dtype, &shapes(k, &["x1", "x2"])?)?;
    k.put("output", &Values::F(all))
}

fn product_all_to_all(k: &Call) -> Outcome {
    let x2 = transposed(k, "x2", "transposeX2")?;
    let mut c = times(k, &k.f("x1")?, &x2)?;
    add_row(&mut c, k.opt_f("biasOptional")?);
    columns_all_to_all(k, &c, x2.dims[1] as usize)
}

fn activated(kind: i64, v: f64) -> f64 {
    match kind {
        1 => super::special::gelu(v),
        2 => super::special::silu(v),
        3 => v.max(0.0),
        4 => v / (1.0 + (-1.702 * v.abs()).exp()) * (0.851 * (v - v.abs())).exp(),
        _ => v,
    }
}

/// Stacks of products: `x` (E, C, h) to the experts' ranks, parts of rows or columns from those that share an expert, the product
/// with `weight` (E/ep, H, M).
fn all_to_all_gather_stacks(k: &Call) -> Outcome {
    let (x, w) = (k.t("x")?, k.t("weight")?);
    let (ep, tp) = (k.group("groupEp")?.size as usize, k.group("groupTp")?);
    let [e, c, h] = [x.dims[0] as usize, x.dims[1] as usize, x.dims[2] as usize];
    let tps = tp.size as usize;
    let same = shapes(k, &["x", "weight"])?;
    // From every rank its tokens for each expert here.
    let here =
        permuted(&all_to_all(k, "groupEp", &k.f("x")?, x.dtype, &same)?, &[ep, e / ep, c, h], &[1, 0, 2, 3]);
    let reply = exchange(k, tp, (Kind::AllGather, x.dtype, true), &same, vec![], encode(&here, x.dtype))?;
    let all = decode(&reply.payload, x.dtype);
    let dims = [tps, e / ep, ep, c, h];
    let y2 = match k.int("xShardType")? {
        0 => permuted(&all, &dims, &[1, 2, 3, 0, 4]),
        _ => permuted(&all, &dims, &[1, 2, 0, 3, 4]),
    };
    let (inner, n) = (w.dims[1] as usize, w.dims[2] as usize);
    let weights = w.load(k.decl.name)?.floats();
    let bias = k.opt_f("biasOptional")?;
    let block = y2.len() / (e / ep);
    let mut y3 = Vec::new();
    for (i, rows) in y2.chunks(block).enumerate() {
        let mut c = product(k, rows, &weights[i * inner * n..][..inner * n], block / inner, inner, n, false);
        add_row(&mut c, bias.as_ref().map(|b| b[i * n..][..n].to_vec()));
        y3.extend(c);
    }
    let kind = k.int("actType")?;
    k.put("y1Out", &Values::F(y3.iter().map(|v| activated(kind, *v)).collect()))?;
    k.put_opt("y2OutOptional", &Values::F(y2))?;
    k.put_opt("y3OutOptional", &Values::F(y3))
}

/// The way back: the products of stacks, their sum over those that share an expert, the bias, and to the tokens' ranks.
fn stacks_scatter_all_to_all(k: &Call) -> Outcome {
    let (x, w) = (k.t("x")?, k.t("weight")?);
    let (ep, tp) = (k.group("groupEp")?.size as usize, k.group("groupTp")?.size as usize);
    let [e, rows, inner] = [x.dims[0] as usize, x.dims[1] as usize, x.dims[2] as usize];
    let n = w.dims[2] as usize;
    let same = shapes(k, &["x", "weight"])?;
    let (a, b) = (k.f("x")?, w.load(k.decl.name)?.floats());
    let mut c = Vec::new();
    for i in 0..e {
        c.extend(product(
            k,
            &a[i * rows * inner..][..rows * inner],
            &b[i * inner * n..][..inner * n],
            rows,
            inner,
            n,
            false,
        ));
    }
    let by_columns = k.int("yShardType")? == 0;
    let parts = match by_columns {
        true => permuted(&c, &[e, rows, tp, n / tp], &[2, 0, 1, 3]),
        false => permuted(&c, &[e, ep, tp, rows / ep / tp, n], &[2, 0, 1, 3, 4]),
    };
    let mut mine = scattered(k, "groupTp", &parts, x.dtype, &same, true)?;
    let (rows, n) = if by_columns { (rows, n / tp) } else { (rows / tp, n) };
    if let Some(bias) = k.opt_f("biasOptional")? {
        mine.iter_mut().enumerate().for_each(|(i, v)| *v += bias[i / (rows * n) * n + i % n]);
    }
    let out =
        all_to_all(k, "groupEp", &permuted(&mine, &[e, ep, rows / ep, n], &[1, 0, 2, 3]), x.dtype, &same)?;
    k.put("out", &Values::F(out))
}

/// The product beside the exchange, where one is asked for.
fn beside(k: &Call) -> Outcome {
    if k.opt("mmXOptional")?.is_some() {
        let c = times(k, &k.f("mmXOptional")?, &transposed(k, "mmWeightOptional", "transMmWeight")?)?;
        k.put("mmYOptional", &Values::F(c))?;
    }
    Ok(())
}

/// Blocks of rows in another order: block (i, j) of a table of `outer` by `inner` counts goes to (j, i).
fn reordered(values: &[f64], width: usize, counts: &[usize], inner: usize) -> Vec<f64> {
    let mut starts = Vec::with_capacity(counts.len());
    let mut at = 0;
    for n in counts {
        starts.push(at);
        at += n;
    }
    let outer = counts.len() / inner.max(1);
    let mut out = Vec::with_capacity(values.len());
    for j in 0..inner {
        for i in 0..outer {
            let b = i * inner + j;
            out.extend_from_slice(&values[starts[b] * width..(starts[b] + counts[b]) * width]);
        }
    }
    out
}

/// Rows of each group times its matrix.
fn by_group(k: &Call, x: &[f64], counts: &[usize]) -> Result<Vec<f64>, Fault> {
    let w = transposed(k, "gmmWeight", "transGmmWeight")?;
    let (inner, n) = (w.dims[1] as usize, w.dims[2] as usize);
    let weights = w.load(k.decl.name)?.floats();
    let (mut at, mut y) = (0, Vec::new());
    for (i, g) in counts.iter().enumerate() {
        let rows = &x[at * inner..(at + g) * inner];
        y.extend(product(k, rows, &weights[i * inner * n..][..inner * n], *g, inner, n, false));
        at += g;
    }
    Ok(y)
}

fn counts(k: &Call, name: &str) -> Result<Vec<usize>, Fault> {
    Ok(k.ints(name)?.into_iter().map(|v| v.max(0) as usize).collect())
}

/// Rows to the ranks by their counts for each rank and expert; what comes from rank r must be as many as were said.
fn rows_all_to_all(k: &Call, rows: &[f64], dtype: Dtype, width: usize) -> Result<Vec<f64>, Fault> {
    let comm = k.group("group")?;
    let (send, recv) = (counts(k, "sendCounts")?, counts(k, "recvCounts")?);
    let experts = send.len() / comm.size as usize;
    let size = width * dtype.size();
    let per_rank = |list: &[usize]| -> Vec<u64> {
        list.chunks(experts.max(1)).map(|c| (c.iter().sum::<usize>() * size) as u64).collect()
    };
    let same = format!("of {experts} experts a rank, rows of {width}");
    let reply =
        exchange(k, comm, (Kind::AllToAll, dtype, true), &same, per_rank(&send), encode(rows, dtype))?;
    let wanted = per_rank(&recv);
    if reply.pieces != wanted {
        let rank = (0..wanted.len()).find(|r| reply.pieces.get(*r) != Some(&wanted[*r])).unwrap_or(0);
        return Err(Fault::from(format!(
            "recvCounts say {} rows from rank {rank}, it sends {}",
            wanted[rank] as usize / size.max(1),
            reply.pieces.get(rank).map_or(0, |b| *b as usize / size.max(1))
        )));
    }
    Ok(decode(&reply.payload, dtype))
}

/// Tokens to their experts' ranks, there by expert, and each expert's product.
fn all_to_all_groups(k: &Call) -> Outcome {
    let x = k.t("gmmX")?;
    let width = x.dims[1] as usize;
    let recv = counts(k, "recvCounts")?;
    let experts = k.t("gmmWeight")?.dims[0] as usize;
    let came = rows_all_to_all(k, &k.f("gmmX")?, x.dtype, width)?;
    let rows = reordered(&came, width, &recv, experts);
    let per_expert: Vec<usize> = (0..experts).map(|e| recv.iter().skip(e).step_by(experts).sum()).collect();
    k.put("gmmY", &Values::F(by_group(k, &rows, &per_expert)?))?;
    if k.flag("permuteOutFlag")? {
        k.put("permuteOutOptional", &Values::F(rows))?;
    }
    beside(k)
}

/// Each expert's product, and the rows back to their tokens' ranks.
fn groups_all_to_all(k: &Call) -> Outcome {
    let x = k.t("gmmX")?;
    let send = counts(k, "sendCounts")?;
    let experts = k.t("gmmWeight")?.dims[0] as usize;
    let ranks = send.len() / experts.max(1);
    let per_expert: Vec<usize> = (0..experts).map(|e| send.iter().skip(e).step_by(experts).sum()).collect();
    let y = by_group(k, &k.f("gmmX")?, &per_expert)?;
    let width = k.t("y")?.dims[1] as usize;
    // Here the rows stand by expert and rank, on their way by rank and expert.
    let by_expert: Vec<usize> = (0..experts)
        .flat_map(|e| send.iter().skip(e).step_by(experts).copied().collect::<Vec<_>>())
        .collect();
    let rows = reordered(&y, width, &by_expert, ranks);
    k.put("y", &Values::F(rows_all_to_all(k, &rows, x.dtype, width)?))?;
    beside(k)
}

/// Sums over the ranks of each group's product: of rows of one x, or of an x for each group.
fn groups_reduced(k: &Call) -> Outcome {
    let (x, w, y, bias) = (k.list("x")?, k.list("weight")?, k.list("y")?, k.list("bias")?);
    let list = k.ints("groupListOptional")?;
    let mut all = Vec::new();
    let mut before = 0;
    for (i, matrix) in w.iter().enumerate() {
        let width = matrix.dims[0] as usize;
        let rows = if x.len() == 1 && w.len() > 1 {
            let end = *list.get(i).ok_or("groupListOptional is shorter than the list of weights")? as usize;
            let v = x[0].load(k.decl.name)?.floats();
            let part = v[before * width..end * width].to_vec();
            before = end;
            part
        } else {
            x[i].load(k.decl.name)?.floats()
        };
        let mut c = times(k, &rows, matrix)?;
        let shift =
            bias.get(i).map(|b| b.load(k.decl.name)).transpose()?.map(super::super::tensor::Values::floats);
        add_row(&mut c, shift);
        all.push(c);
    }
    let same: String = w.iter().map(|w| format!("weight {:?} ", w.dims)).collect();
    if y.len() == 1 {
        let sum = summed(k, &all.concat(), y[0].dtype, &same)?;
        return k.put_view(y[0], &Values::F(sum));
    }
    y.iter().zip(all).try_for_each(|(y, c)| {
        let sum = summed(k, &c, y.dtype, &same)?;
        k.put_view(y, &Values::F(sum))
    })
}

fn barrier(k: &Call) -> Outcome {
    exchange(k, k.group("group")?, (Kind::Barrier, Dtype::F32, true), "", vec![], vec![]).map(drop)
}

/// One round, and stop on failure.
macro_rules! one_round {
    () => {
        "in(commTurn,0) in(streamMode,1)"
    };
}
/// Sums over the ranks of an A2, of one at least.
macro_rules! summed_on_a2 {
    ($ranks:literal) => {
        concat!("code(561003) chips(A2) code(161002) group(group>R) ", $ranks, " says(reduceOp,sum)")
    };
}

/// What `MatmulAllReduceV2` asks, and what its third version adds.
macro_rules! all_reduce {
    ($($more:literal)*) => {
        clauses!(
            "x1:H type(x1,x2,bias,x3,output) null(bias,x3) out(output) contig(x1) turned(x2)",
            "x1[.s,k] x2[k,n] bias[n] x3[.s,n] output[.s,n] rank(x1,2..3)",
            summed_on_a2!("on(A2,R,1|2|4|8)"),
            $($more,)*
            one_round!()
        )
    };
}
/// What a sum with a norm behind it asks: types and roles, which tensors have the residual's shape, and what follows.
macro_rules! all_reduce_norm {
    ($types:literal, $shapes:literal) => {
        clauses!(
            $types,
            "contig(x1,residual,gamma) turned(x2) rank(x1,2..3) rank(residual,3)",
            "x1[.r,k] x2[k,n] bias[n] gamma[n] residual[b,s,n] equal(b*s,r.n)",
            $shapes,
            "in(k,1..2147483647)",
            summed_on_a2!("in(R,1|2|4|8)"),
            one_round!()
        )
    };
}
/// What `AlltoAllMatmul` asks, and what its second version adds.
macro_rules! all_to_all_product {
    ($($more:literal)?) => {
        clauses!(
            "x1:H type(x1,x2,output,alltoAllOutOptional) biasOptional:HS out(output,alltoAllOutOptional)",
            "contig(x1,x2) group(group>R) x1[m,h] in(transposeX1,0) multiple(m,R) x2^transposeX2[h*R,n]",
            "output[m/R,n] alltoAllOutOptional[m/R,h*R] biasOptional[n] on(A2,R,2|4|8) on(A3,R,2|4|8|16)",
            "on(A2,h*R,1..35000) on(A3,h*R,2..65535) axes(alltoAllAxesOptional,-2,-1)"
            $(, $more)?
        )
    };
}
/// What `MatmulAlltoAll` asks, and what its second version adds.
macro_rules! product_all_to_all {
    ($($more:literal)?) => {
        clauses!(
            "x1:H type(x1,x2,output) biasOptional:HS out(output) contig(x1,x2) group(group>R)",
            "x1[m,h] in(h,1..65535) in(transposeX1,0) x2^transposeX2[h,n] multiple(n,R) output[m*R,n/R]",
            "biasOptional[n] on(A2,R,2|4|8) on(A3,R,2|4|8|16) axes(alltoAllAxesOptional,-1,-2)"
            $(, $more)?
        )
    };
}

/// What `AlltoAllvGroupedMatMul` asks, and what its second version adds.
macro_rules! all_to_all_groups {
    ($($more:literal)*) => {
        clauses!(
            "gmmX:H type(gmmX,gmmWeight,mmXOptional,mmWeightOptional,gmmY,mmYOptional,permuteOutOptional)",
            "contig(gmmX,mmXOptional) turned(gmmWeight,mmWeightOptional)",
            "none(sendCountsTensorOptional,recvCountsTensorOptional) code(561003) chips(A3) code(161002) \
             group(group>R)",
            "equal(R,epWorldSize) in(epWorldSize,8|16|32|64|128) gmmX[t,h] gmmWeight^transGmmWeight[e,h,n] \
             in(e,1..48)",
            "in(e*R,1..384) count(sendCounts,e*R) count(recvCounts,e*R) each(sendCounts,0..2147483647)",
            "each(recvCounts,0..2147483647) gmmY[a,n] permuteOutOptional[a,h] gmmX[sendCounts,h] \
             gmmY[recvCounts,n]",
            "mmXOptional[b,g] mmWeightOptional^transMmWeight[g,q] mmYOptional[b,q]",
            "together(mmXOptional,mmWeightOptional,mmYOptional) in(h,1..65535)"
            $(, $more)*
        )
    };
}
/// What `GroupedMatMulAlltoAllv` asks, and what its second version adds.
macro_rules! groups_all_to_all {
    ($($more:literal)*) => {
        clauses!(
            "gmmX:H type(gmmX,gmmWeight,mmXOptional,mmWeightOptional,y,mmYOptional) contig(gmmX,mmXOptional)",
            "turned(gmmWeight,mmWeightOptional) none(sendCountsTensorOptional,recvCountsTensorOptional) \
             code(561003)",
            "chips(A3) code(161002) group(group>R) equal(R,epWorldSize) in(epWorldSize,8|16|32|64|128)",
            "gmmX[sendCounts,h] gmmWeight^transGmmWeight[e,h,n] in(e,1..32) in(e*R,1..256) \
             count(sendCounts,e*R)",
            "count(recvCounts,e*R) each(sendCounts,0..2147483647) each(recvCounts,0..2147483647) \
             y[recvCounts,n]",
            "mmXOptional[b,g] mmWeightOptional^transMmWeight[g,q] mmYOptional[b,q]",
            "together(mmXOptional,mmWeightOptional,mmYOptional) in(h,1..65535)"
            $(, $more)*
        )
    };
}

pub(super) static OPS: &[Row] = &[
    (
        "MatmulAllReduce",
        clauses!(
            "x1:H type(x1,x2,bias,output) null(bias) out(output) contig(x1) turned(x2)",
            "x1[.s,k] x2[k,n] bias[n] output[.s,n] rank(x1,2..3)",
            summed_on_a2!("on(A2,R,1|2|4|8)"),
            one_round!()
        ),
        all_reduce,
    ),
    ("MatmulAllReduceV2", all_reduce!(), all_reduce),
    ("MatmulAllReduceV3", all_reduce!("null(commMode) says(commMode,)"), all_reduce),
    (
        "MatmulAllReduceAddRmsNorm",
        all_reduce_norm!(
            "x1:H type(x1,x2,bias,residual,gamma,y,normOut) null(bias) out(y,normOut)",
            "y[b,s,n] normOut[b,s,n] same(y,residual)"
        ),
        all_reduce_norm,
    ),
    (
        "InplaceMatmulAllReduceAddRmsNorm",
        all_reduce_norm!(
            "x1:H type(x1,x2,bias,residual,gamma,normOut) null(bias) out(normOut) inout(residual)",
            "normOut[b,s,n]"
        ),
        all_reduce_norm,
    ),
    (
        "AllGatherMatmul",
        clauses!(
            "x1:H type(x1,x2,output,gatherOut) none(bias) null(gatherOut) out(output,gatherOut)",
            "contig(x1) turned(x2) group(group>R) x1[m,k] x2[k,n] output[m*R,n] in(k,256..65534)",
            "on(A2,R,2|4|8) on(A3,R,2|4|8|16|32) in(gatherIndex,0)",
            one_round!()
        ),
        gather_product,
    ),
    (
        "AllGatherMatmulV2",
        clauses!(
            "x1:H type(x1,x2,output,gatherOut) none(bias,x1Scale,x2Scale,quantScale)",
            "null(gatherOut,amaxOut) contig(x1) turned(x2) group(group>R)",
            "x1[m,k] x2[k,n] output[m*R,n] in(k,256..65534) in(R,2|4|8)",
            "in(gatherIndex,0) in(blockSize,0) in(groupSize,0) says(commMode,aiv)",
            one_round!()
        ),
        gather_product,
    ),
    (
        "MatmulReduceScatter",
        clauses!(
            "x1:H type(x1,x2,output) none(bias) out(output) contig(x1) turned(x2) group(group>R)",
            "x1[m,k] x2[k,n] multiple(m,R) output[m/R,n] in(k,256..65534)",
            "on(A2,R,2|4|8) on(A3,R,2|4|8|16|32) says(reduceOp,sum)",
            one_round!()
        ),
        product_scatter,
    ),
    (
        "MatmulReduceScatterV2",
        clauses!(
            "x1:H type(x1,x2,output) none(bias,x1Scale,x2Scale,quantScale) null(amaxOutOptional)",
            "contig(x1) turned(x2) group(group>R) x1[m,k] x2[k,n] multiple(m,R) output[m/R,n]",
            "in(k,256..65534) in(R,2|4|8) says(reduceOp,sum) in(blockSize,0) in(groupSize,0)",
            "says(commMode,aiv)",
            one_round!()
        ),
        product_scatter,
    ),
    ("AlltoAllMatmul", all_to_all_product!(), all_to_all_product),
    (
        "AlltoAllMatmulV2",
        all_to_all_product!("null(commMode) says(commMode,|ai_cpu|aiv|ccu)"),
        all_to_all_product,
    ),
    ("MatmulAlltoAll", product_all_to_all!(), product_all_to_all),
    (
        "MatmulAlltoAllV2",
        product_all_to_all!("null(commMode) says(commMode,|ai_cpu|aiv|ccu)"),
        product_all_to_all,
    ),
    (
        "AlltoAllAllGatherBatchMatMul",
        "x:H type(x,weight,y1Out,y2OutOptional,y3OutOptional) biasOptional:HS contig(x,weight) code(561003) \
         chips(A3) code(161002) group(groupEp>ep) group(groupTp>tp) in(ep,2|4|8|16|32) in(tp,2|4|8|16|32) \
         in(epWorldSize,2|4|8|16|32) equal(ep,epWorldSize) equal(tpWorldSize,tp) x[E,C,h] in(E,2..512) \
         multiple(E,ep) in(xShardType,0|1) let(rows,xShardType*tp+1-xShardType) let(H,h*tp/rows) \
         let(r,C*ep*rows) weight[E/ep,H,M] in(actType,0..4) in(H,1..65535) in(M,1..65535) in(E/ep,1..32) \
         biasOptional[E/ep,.one,M] in(one.n,1) y1Out[E/ep,r,M] y2OutOptional[E/ep,r,H] \
         y3OutOptional[E/ep,r,M]",
        all_to_all_gather_stacks,
    ),
    (
        "BatchMatMulReduceScatterAlltoAll",
        "x:H type(x,weight,out) biasOptional:HS contig(x) code(561003) chips(A3) code(161002) \
         group(groupEp>ep) group(groupTp>tp) in(ep,2|4|8|16|32) in(tp,2|4|8|16|32) equal(ep,epWorldSize) \
         equal(tpWorldSize,tp) x[e,r,m] weight[e,m,H] in(yShardType,0|1) in(e,1..32) in(m,1..65535) \
         in(H,1..65535) let(rows,yShardType*tp+1-yShardType) let(columns,tp/rows) multiple(r,ep*rows) \
         multiple(H,columns) biasOptional[e,.one,H/columns] in(one.n,1) out[e*ep,r/ep/rows,H/columns]",
        stacks_scatter_all_to_all,
    ),
    ("AlltoAllvGroupedMatMul", all_to_all_groups!(), all_to_all_groups),
    (
        "AlltoAllvGroupedMatMulV2",
        all_to_all_groups!("null(commMode) says(commMode,|ai_cpu|ccu)"),
        all_to_all_groups,
    ),
    ("GroupedMatMulAlltoAllv", groups_all_to_all!(), groups_all_to_all),
    (
        "GroupedMatMulAlltoAllvV2",
        groups_all_to_all!("null(commMode) says(commMode,|ai_cpu|ccu)"),
        groups_all_to_all,
    ),
    (
        "GroupedMatMulAllReduce",
        clauses!(
            "x:H weight:H bias:HS null(bias) out(y) contig(x,weight) rank(weight,2) long(weight,1..64)",
            "rank(x,2..6) rank(bias,1) code(561003) chips(A2) code(161002) group(group>R) in(R,2|4|8)",
            "in(splitItem,0..3) groups(x,weight,bias,groupListOptional>y) says(reduceOp,sum)",
            one_round!()
        ),
        groups_reduced,
    ),
    (
        "AllGatherAdd",
        "a:H type(a,b,cOut,gatherOutOut) contig(a,b) group(group>R) equal(R,rankSize) a[m,n] b[m*R,n] \
         cOut[m*R,n] gatherOutOut[m*R,n]",
        gather_add,
    ),
    ("DistributeBarrier", "xRef:FDIB meet(group>R) equal(R,worldSize)", barrier),
];
