//! Products of integers fused with communication, converted to floats before anything goes to another rank: the pages of
//! their own names.
//!
//! Weights of four bits, groups of products and the forms of later chips than A3 are not here.

use super::Row;
use super::exchange::{add_row, shapes, summed};
use super::fused::{add_norm, columns_all_to_all, wide_rows};
use super::matmul::{matmul_values, product, transposed};
use super::quantised::{Dequantisation, byte, in_steps, scales, widened};
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Dtype, Values};

/// Values of the one of these parameters that the operator has, if they are there.
fn maybe(k: &Call, names: &str) -> Result<Option<Vec<f64>>, Fault> {
    if names.split('|').any(|n| k.value(n).is_some()) { k.opt_f(names) } else { Ok(None) }
}

fn add(c: &mut [f64], more: Option<Vec<f64>>) {
    c.iter_mut().zip(more.unwrap_or_default()).for_each(|(c, v)| *c += v);
}

/// (x1·x2 + bias)·scale + x3 of this rank.
fn dequantised(k: &Call) -> Result<Vec<f64>, Fault> {
    let x2 = k.t("x2")?;
    let (mut c, _) = matmul_values(k, k.t("x1")?, x2)?;
    let dequantisation = Dequantisation {
        columns: scales(k, "dequantScale|x2Scale")?,
        rows: maybe(k, "pertokenScaleOptional|x1ScaleOptional")?,
        bias: maybe(k, "bias|biasOptional")?,
        before: true,
    };
    dequantisation.apply(&mut c, x2.dims[1] as usize);
    add(&mut c, maybe(k, "x3|x3Optional")?);
    Ok(c)
}

/// x1·((x2 + offset)·scale) + bias + x3 of this rank.
fn widely(k: &Call) -> Result<Vec<f64>, Fault> {
    let (x1, x2) = (k.f("x1")?, k.t("x2")?);
    let (inner, n) = (x2.dims[0] as usize, x2.dims[1] as usize);
    let wide = widened(k, x2, ["antiquantScale", "antiquantOffset"], k.int("antiquantGroupSize")?)?;
    let mut c = product(k, &x1, &wide, x1.len() / inner.max(1), inner, n, false);
    add_row(&mut c, k.opt_f("bias")?);
    add(&mut c, maybe(k, "x3")?);
    Ok(c)
}

/// Parts that go in eight bits by the first scale of their column, and sums of them that go so by the second.
fn summed_in_eight_bits(k: &Call, c: &[f64], first: &[f64], same: &str) -> Result<Vec<f64>, Fault> {
    let second = k.f("commQuantScale2Optional")?;
    let eight = |v: f64| byte(v.round_ties_even()) as f64;
    let part = |(i, v): (usize, &f64)| eight(v / first[i % first.len()]);
    let parts: Vec<f64> = c.iter().enumerate().map(part).collect();
    // Sums of eight bits from eight ranks are exact in f32.
    let sums = summed(k, &parts, Dtype::F32, same)?;
    let whole = |(i, v): (usize, &f64)| {
        let (a, b) = (first[i % first.len()], second[i % second.len()]);
        eight(v * (a / b)) * b
    };
    Ok(sums.iter().enumerate().map(whole).collect())
}

fn all_reduce(k: &Call) -> Outcome {
    let (c, same) = (dequantised(k)?, shapes(k, &["x1", "x2"])?);
    let sum = match maybe(k, "commQuantScale1Optional")? {
        Some(first) => summed_in_eight_bits(k, &c, &first, &same)?,
        None => summed(k, &c, k.t("output")?.dtype, &same)?,
    };
    k.put("output", &Values::F(sum))
}

fn all_reduce_wide(k: &Call) -> Outcome {
    let sum = summed(k, &widely(k)?, k.t("output")?.dtype, &shapes(k, &["x1", "x2"])?)?;
    k.put("output", &Values::F(sum))
}

/// The sum over the ranks of a product, the residual, and their norm.
fn normed(k: &Call, product: &[f64]) -> Outcome {
    add_norm(k, &summed(k, product, k.t("residual")?.dtype, &shapes(k, &["x1", "x2"])?)?)
}

/// Rows to all ranks as they are; each row of what comes is made eight bits by its largest element.
fn all_to_all_product(k: &Call) -> Outcome {
    let (wide, x2) = (wide_rows(k)?, transposed(k, "x2", "transposeX2")?);
    let (inner, n) = (x2.dims[0] as usize, x2.dims[1] as usize);
    let smooth = k.opt_f("x1ScaleOptional")?;
    let (mut rows, mut steps) = (Vec::with_capacity(wide.len()), Vec::new());
    for row in wide.chunks(inner.max(1)) {
        let factor = |i: usize| smooth.as_ref().map_or(1.0, |s| s[i]);
        let row: Vec<f64> = row.iter().enumerate().map(|(i, v)| v * factor(i)).collect();
        let (row, step) = in_steps(&row);
        rows.extend(row.into_iter().map(|v| v as f64));
        steps.push(step);
    }
    let w = x2.load(k.decl.name)?.floats();
    let mut c = product(k, &rows, &w, steps.len(), inner, n, false);
    let (columns, bias) = (k.f("x2Scale")?, k.opt_f("biasOptional")?);
    Dequantisation { columns, rows: Some(steps), bias, before: false }.apply(&mut c, n);
    k.put("output", &Values::F(c))?;
    k.put_opt("alltoAllOutOptional", &Values::F(wide))
}

fn product_all_to_all(k: &Call) -> Outcome {
    let x2 = transposed(k, "x2", "transposeX2")?;
    let (mut c, n) = (matmul_values(k, k.t("x1")?, &x2)?.0, x2.dims[1] as usize);
    let (columns, rows, bias) = (k.f("x2Scale")?, Some(k.f("x1Scale")?), k.opt_f("biasOptional")?);
    Dequantisation { columns, rows, bias, before: false }.apply(&mut c, n);
    columns_all_to_all(k, &c, n)
}

/// What the sums over the ranks of an A2 ask last; one round, and stop on failure.
macro_rules! summed_on_a2 {
    () => {
        "code(561003) chips(A2) code(161002) group(group>R) in(R,1|2|4|8) says(reduceOp,sum) in(commTurn,0) \
         in(streamMode,1)"
    };
}
/// What the sums of products ask, and what each adds: names of the bias, of what is added, of the scale of columns and its types.
macro_rules! sums {
    ($bias:literal $x3:literal $scale:literal $types:literal $($more:expr),*) => {
        clauses!(
            concat!("x1:8 x2:8 ", $bias, ":i ", $x3, ":H ", $scale, ":", $types, " output:H"),
            concat!("type(output,", $x3, ") null(", $bias, ",", $x3, ") out(output) contig(x1) turned(x2)"),
            "rank(x1,2..3) x1[.r,k] x2[k,n] in(k,1..65535) in(n,1..65535)",
            concat!($bias, "[n] ", $x3, "[.r,n] output[.r,n] ", $scale, "[.one,c] in(one.n,1) either(c,1,n)"),
            summed_on_a2!()
            $(, $more)*
        )
    };
}
/// Scales of rows, in f32.
macro_rules! scales_of_rows {
    ($name:literal) => {
        concat!($name, ":S ", $name, "[t] equal(t,r.n)")
    };
}
/// As above for weights alone of integers.
macro_rules! wide {
    ($($more:expr),*) => {
        clauses!(
            "x1:H x2:8 type(x1,antiquantScale,antiquantOffset,bias) null(bias,antiquantOffset) contig(x1)",
            "turned(x2) rank(x1,2..3) x1[.r,k] x2[k,n] in(k,1..65535) in(n,1..65535) bias[n]",
            "in(antiquantGroupSize,0|32..65535) multiple(antiquantGroupSize,32) let(K,k-1)",
            "atmost(antiquantGroupSize,K) let(G,K/antiquantGroupSize+1) default(G,1)",
            "antiquantScale[.g,c] equal(g.n,G) either(c,1,n) same(antiquantScale,antiquantOffset)",
            summed_on_a2!()
            $(, $more)*
        )
    };
}
/// A residual and the norm behind a sum.
macro_rules! residual {
    () => {
        "gamma[n] residual[b,s,n] equal(b*s,r.n) normOut[b,s,n] contig(residual,gamma) rank(residual,3)"
    };
}
/// Two scales of columns for what goes in eight bits.
macro_rules! scales_of_eight_bits {
    () => {
        clauses!(
            "type(output,commQuantScale1Optional,commQuantScale2Optional) commQuantScale1Optional[.u,n] \
             in(u.n,1)",
            "same(commQuantScale1Optional,commQuantScale2Optional)",
            "together(commQuantScale1Optional,commQuantScale2Optional)"
        )
    };
}
/// Products of integers with a norm behind their sum.
macro_rules! normed {
    ($out:literal) => {
        clauses!(
            "x1:8 x2:8 bias:i dequantScale:lub residual:H type(residual,gamma,normOut) null(bias)",
            "contig(x1,dequantScale) turned(x2) rank(x1,2..3) x1[.r,k] x2[k,n] in(k,1..65535) in(n,1..65535)",
            "bias[n] dequantScale[.one,c] in(one.n,1) either(c,1,n)",
            summed_on_a2!(),
            residual!(),
            $out
        )
    };
}
/// Kinds of exchanges between ranks of an A2.
macro_rules! all_to_all_on_a2 {
    () => {
        clauses!(
            "none(commScaleOptional,x1OffsetOptional,x2OffsetOptional)",
            "code(561003) chips(A2) code(161002) group(group>R) in(R,2|4|8)"
        )
    };
}
/// Rows of floats sent to all ranks in equal parts and a weight of integers.
macro_rules! all_to_all_rows {
    ($($more:literal)?) => {
        clauses!(
            "x1:H x2:8 x2Scale:S biasOptional:HS type(x1,output,alltoAllOutOptional,x1ScaleOptional)",
            "out(output) contig(x1,x2)",
            all_to_all_on_a2!(),
            "x1[m,h] in(transposeX1,0) multiple(m,R) x2^transposeX2[h*R,n] output[m/R,n]",
            "alltoAllOutOptional[m/R,h*R] biasOptional[n] x1ScaleOptional[h*R] x2Scale[n] in(x1QuantMode,7)",
            "in(x2QuantMode,2) in(commQuantMode,0) in(commQuantDtype,-1) in(groupSize,0) let(inner,h*R)",
            "multiple(inner,16) in(inner,1..35000) axes(alltoAllAxesOptional,-2,-1)"
            $(, $more)?
        )
    };
}
/// Columns of a product of integers sent to all ranks in equal parts; on A2 the bias must be there.
macro_rules! columns {
    ($($more:literal)?) => {
        clauses!(
            "x1:8 x2:8 x1Scale:S x2Scale:S biasOptional:HS output:H out(output) contig(x1,x2)",
            "together(x1Scale,biasOptional)",
            all_to_all_on_a2!(),
            "x1[m,h] in(h,1..65535) in(transposeX1,0) x2^transposeX2[h,n] multiple(n,R) output[m*R,n/R]",
            "biasOptional[n] x1Scale[m] x2Scale[n] in(x1QuantMode,3) in(x2QuantMode,2) in(commQuantMode,0)",
            "in(commQuantDtype,-1) in(groupSize,0) axes(alltoAllAxesOptional,-1,-2)"
            $(, $more)?
        )
    };
}

pub(super) static OPS: &[Row] = &[
    ("QuantMatmulAllReduce", sums!("bias" "x3" "dequantScale" "lub"), all_reduce),
    (
        "QuantMatmulAllReduceV2",
        sums!("biasOptional" "x3Optional" "dequantScale" "luF" scales_of_rows!("pertokenScaleOptional")),
        all_reduce,
    ),
    (
        "QuantMatmulAllReduceV3",
        sums!("biasOptional" "x3Optional" "dequantScale" "luF"
            scales_of_rows!("pertokenScaleOptional"), scales_of_eight_bits!()),
        all_reduce,
    ),
    (
        "QuantMatmulAllReduceV4",
        sums!("biasOptional" "x3Optional" "x2Scale" "luF"
            scales_of_rows!("x1ScaleOptional"), "in(groupSize,0) in(commQuantMode,0)", scales_of_eight_bits!()),
        all_reduce,
    ),
    (
        "QuantMatmulAllReduceV5",
        sums!("biasOptional" "x3Optional" "x2Scale" "luF"
            scales_of_rows!("x1ScaleOptional"), "in(groupSize,0) in(commQuantMode,0) says(commMode,ai_cpu)",
            scales_of_eight_bits!()),
        all_reduce,
    ),
    ("QuantMatmulAllReduceAddRmsNorm", normed!("type(residual,y) out(y,normOut) y[b,s,n]"), |k| {
        normed(k, &dequantised(k)?)
    }),
    ("InplaceQuantMatmulAllReduceAddRmsNorm", normed!("inout(residual) out(normOut)"), |k| {
        normed(k, &dequantised(k)?)
    }),
    (
        "WeightQuantMatmulAllReduce",
        wide!("type(x1,x3,output) null(x3) out(output) x3[.r,n] output[.r,n]"),
        all_reduce_wide,
    ),
    (
        "WeightQuantMatmulAllReduceV2",
        wide!("type(x1,x3,output) null(x3) out(output) x3[.r,n] output[.r,n] says(commMode,ai_cpu)"),
        all_reduce_wide,
    ),
    // The pages of these two and of those above differ in what an offset does, so there must be none.
    (
        "WeightQuantMatmulAllReduceAddRmsNorm",
        wide!(
            "none(antiquantOffset) type(x1,residual,gamma,y,normOut) out(y,normOut)",
            residual!(),
            "y[b,s,n]"
        ),
        |k| normed(k, &widely(k)?),
    ),
    (
        "InplaceWeightQuantMatmulAllReduceAddRmsNorm",
        wide!(
            "none(antiquantOffset) type(x1,residual,gamma,normOut) inout(residual) out(normOut)",
            residual!()
        ),
        |k| normed(k, &widely(k)?),
    ),
    ("AlltoAllQuantMatmul", all_to_all_rows!(), all_to_all_product),
    ("AlltoAllQuantMatmulV2", all_to_all_rows!("says(commMode,aiv)"), all_to_all_product),
    ("QuantMatmulAlltoAll", columns!(), product_all_to_all),
    ("QuantMatmulAlltoAllV2", columns!("says(commMode,aiv)"), product_all_to_all),
];
