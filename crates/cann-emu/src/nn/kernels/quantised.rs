//! Quantisation and products of integers: `ascend-abi.md`, section 8.10. Four-bit weights and groups of products are not here.

use super::Row;
use super::matmul::{matmul_values, product, transposed};
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Dtype, Values, View};

/// Half to even, as the device rounds.
fn rounded(v: f64, mode: &str) -> f64 {
    match mode {
        "floor" => v.floor(),
        "ceil" => v.ceil(),
        "trunc" => v.trunc(),
        _ => v.round_ties_even(),
    }
}

pub(super) fn byte(v: f64) -> i64 {
    v.clamp(-128.0, 127.0) as i64
}

/// A parameter of one value, or one a column.
fn by_column(values: &[f64], at: usize) -> f64 {
    if values.len() == 1 { values[0] } else { values[at % values.len()] }
}

/// y = round(x·scale + offset); with `sqrtMode` the scale is used twice.
fn quant(k: &Call) -> Outcome {
    if k.t("y")?.dtype != Dtype::I8 {
        return Err(Fault::from("only int8 is in the emulator".to_owned()));
    }
    let (x, scale, offset) = (k.f("x")?, k.f("scale")?, k.opt_f("offset")?);
    let (twice, mode) = (k.flag("sqrtMode")?, k.text("roundMode")?);
    let one = |(i, v): (usize, &f64)| {
        let s = by_column(&scale, i);
        let v = v * s * if twice { s } else { 1.0 } + offset.as_ref().map_or(0.0, |o| by_column(o, i));
        byte(rounded(v, mode))
    };
    k.put("y", &Values::I(x.iter().enumerate().map(one).collect()))
}

/// y = (x + offset)·scale.
fn anti_quant(k: &Call) -> Outcome {
    let (x, scale, offset, twice) = (k.f("x")?, k.f("scale")?, k.opt_f("offset")?, k.flag("sqrtMode")?);
    let one = |(i, v): (usize, &f64)| {
        let s = by_column(&scale, i);
        (v + offset.as_ref().map_or(0.0, |o| by_column(o, i))) * s * if twice { s } else { 1.0 }
    };
    k.put("y", &Values::F(x.iter().enumerate().map(one).collect()))
}

/// A row in eight bits by its largest element, and what one step stands for: max|x|/127.
pub(super) fn in_steps(row: &[f64]) -> (Vec<i64>, f64) {
    let top = row.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let step = f64::from((top / 127.0) as f32);
    let one = |v: &f64| if step == 0.0 { 0 } else { byte((v / step).round_ties_even()) };
    (row.iter().map(one).collect(), step)
}

/// Each row by its largest element.
fn dynamic(k: &Call) -> Outcome {
    let (x, smooth) = (k.f("x")?, k.opt_f("smoothScalesOptional")?);
    let n = *k.t("x")?.dims.last().unwrap_or(&1) as usize;
    let (mut y, mut scales) = (Vec::new(), Vec::new());
    for row in x.chunks(n.max(1)) {
        let row: Vec<f64> =
            row.iter().enumerate().map(|(i, v)| v * smooth.as_ref().map_or(1.0, |s| s[i])).collect();
        let (row, step) = in_steps(&row);
        scales.push(step);
        y.extend(row);
    }
    k.put("yOut", &Values::I(y))?;
    k.put("scaleOut", &Values::F(scales))
}

fn dynamic_v2(k: &Call) -> Outcome {
    let there = |name: &str| Ok::<_, Fault>(k.opt(name)?.is_some_and(|v| v.numel() > 0));
    if there("groupIndexOptional")? || there("offsetOut")? || k.t("yOut")?.dtype != Dtype::I8 {
        return Err(Fault::from("groups, offsets and types but int8 are not in the emulator"));
    }
    dynamic(k)
}

/// Bits of the scale without the last 13, with a mark; an offset of nine bits above.
fn packed(k: &Call) -> Outcome {
    let (scale, offset) = (k.f("scale")?, k.opt_f("offset")?);
    let one = |(i, v): (usize, &f64)| {
        let low = u64::from((*v as f32).to_bits() & 0xffff_e000) | 1 << 46;
        let high = offset.as_ref().map_or(0, |o| (by_column(o, i).round_ties_even() as i64 & 0x1ff) as u64);
        (low | high << 37) as i64
    };
    k.put("out", &Values::I(scale.iter().enumerate().map(one).collect()))
}

/// Scales, whether as numbers or packed.
pub(super) fn scales(k: &Call, name: &str) -> Result<Vec<f64>, Fault> {
    let v = k.t(name)?;
    if matches!(v.dtype, Dtype::U64 | Dtype::I64) {
        let bits = v.load(k.decl.name)?.ints();
        return Ok(bits.iter().map(|b| f64::from(f32::from_bits(*b as u32))).collect());
    }
    Ok(v.load(k.decl.name)?.floats())
}

/// How a product of integers becomes one of floats: (c + bias)·scale by column·scale by row; a bias of floats is
/// added after the scales.
pub(super) struct Dequantisation {
    pub(super) columns: Vec<f64>,
    pub(super) rows: Option<Vec<f64>>,
    pub(super) bias: Option<Vec<f64>>,
    /// Whether the bias is one of integers.
    pub(super) before: bool,
}

impl Dequantisation {
    /// Puts it to a product of `n` columns.
    pub(super) fn apply(&self, c: &mut [f64], n: usize) {
        for (i, v) in c.iter_mut().enumerate() {
            let add = self.bias.as_ref().map_or(0.0, |b| by_column(b, i % n));
            let row = self.rows.as_ref().map_or(1.0, |r| by_column(r, i / n));
            *v = (*v + if self.before { add } else { 0.0 }) * by_column(&self.columns, i % n) * row;
            *v += if self.before { 0.0 } else { add };
        }
    }
}

/// The product of two matrices of integers, its dequantisation, and how many columns it has.
fn dequantisation(k: &Call, (a, b): (&View, &View), columns: Vec<f64>) -> Result<(Vec<f64>, usize), Fault> {
    let (mut c, dims) = matmul_values(k, a, b)?;
    let n = *dims.last().ok_or("a product without dimensions")? as usize;
    let rows = ["pertokenScaleOptional", "x1Scale"].into_iter().find(|n| k.value(n).is_some());
    let rows = rows.map(|name| k.opt_f(name)).transpose()?.flatten();
    let before = k.opt("bias")?.is_some_and(|v| v.dtype == Dtype::I32);
    Dequantisation { columns, rows, bias: k.opt_f("bias")?, before }.apply(&mut c, n);
    Ok((c, n))
}

fn matmul(k: &Call) -> Outcome {
    if k.value("x2Scale").is_some() {
        for name in ["x1Offset", "yScale", "yOffset"] {
            if k.opt(name)?.is_some_and(|v| v.numel() > 0) {
                return Err(Fault::from(format!("{name} is not in the emulator")));
            }
        }
    }
    let (a, b) = (transposed(k, "x1", "transposeX1")?, transposed(k, "x2", "transposeX2")?);
    // The newest form names them by operand.
    let (c, n) = dequantisation(k, (&a, &b), scales(k, "scale|x2Scale")?)?;
    let offset = k.opt_f("offset|x2Offset")?;
    match k.t("out")?.dtype {
        Dtype::I8 => {
            let shift = |i: usize| offset.as_ref().map_or(0.0, |o| by_column(o, i % n));
            let all = c.iter().enumerate().map(|(i, v)| byte((v + shift(i)).round_ties_even()));
            k.put("out", &Values::I(all.collect()))
        }
        _ => k.put("out", &Values::F(c)),
    }
}

/// The first form: one scale, and no transposed operands.
fn matmul_by_number(k: &Call) -> Outcome {
    let (c, _) = dequantisation(k, (k.t("x1")?, k.t("x2")?), vec![k.num("deqScale")?])?;
    k.put("out", &Values::F(c))
}

/// The second form: packed scales, as many as the columns rounded up to 16.
fn matmul_by_columns(k: &Call) -> Outcome {
    let (a, b) = (transposed(k, "x1", "adjX1")?, transposed(k, "x2", "adjX2")?);
    let (c, _) = dequantisation(k, (&a, &b), scales(k, "deqScale")?)?;
    k.put("out", &Values::F(c))
}

/// (w + offset)·scale of a matrix of integers, with one scale for all, one a column, or one a column and group of rows.
pub(super) fn widened(k: &Call, w: &View, [scale, offset]: [&str; 2], group: i64) -> Result<Vec<f64>, Fault> {
    let [inner, n] = w.dims[..] else { return Err(Fault::from(format!("a weight of {:?}", w.dims))) };
    let group = if group == 0 { inner.max(1) as usize } else { group as usize };
    let (scale, offset, n) = (k.f(scale)?, k.opt_f(offset)?, n as usize);
    let by = |list: &[f64], i: usize| by_column(list, i / n / group * n + i % n);
    let q = w.load(k.decl.name)?.floats();
    let one = |(i, q): (usize, &f64)| (q + offset.as_ref().map_or(0.0, |o| by(o, i))) * by(&scale, i);
    Ok(q.iter().enumerate().map(one).collect())
}

/// y = x·((w + offset)·scale) + bias with one scale a column, or one a column and group of rows.
fn weight_only(k: &Call) -> Outcome {
    let (x, w) = (k.t("x")?, k.t("weight")?);
    if w.dtype != Dtype::I8 || k.opt("quantScaleOptional")?.is_some_and(|v| v.numel() > 0) {
        return Err(Fault::from(format!(
            "weights of {:?} or a quantised result are not in the emulator",
            w.dtype
        )));
    }
    let wide = widened(k, w, ["antiquantScale", "antiquantOffsetOptional"], k.int("antiquantGroupSize")?)?;
    let (inner, n) = (w.dims[0] as usize, w.dims[1] as usize);
    let (v, bias) = (x.load(k.decl.name)?.floats(), k.opt_f("biasOptional")?);
    let mut y = product(k, &v, &wide, v.len() / inner.max(1), inner, n, false);
    if let Some(b) = bias {
        y.iter_mut().enumerate().for_each(|(i, y)| *y += b[i % n]);
    }
    k.put("y", &Values::F(y))
}

pub(super) static OPS: &[Row] = &[
    ("AscendQuant", "x:F type(x,scale) null(offset,roundMode) out(y)", quant),
    ("AscendQuantV3", "x:F type(x,scale) null(offset,roundMode) out(y)", quant),
    ("AscendAntiQuant", "x:I null(offset) out(y)", anti_quant),
    ("DynamicQuant", "x:H scaleOut:S", dynamic),
    ("DynamicQuantV2", "x:H scaleOut:S null(offsetOut)", dynamic_v2),
    ("TransQuantParamV2", "scale:S null(offset)", packed),
    ("TransQuantParamV3", "scale:S null(offset)", packed),
    (
        "QuantMatmul",
        "x1:8 x2:8 bias:i out:H rank(x1,2..3) product(x1,x2>out) x1[.b,m,k] x2[.b,k,n] null(bias) bias[n]",
        matmul_by_number,
    ),
    (
        "QuantMatmulV2",
        "x1:8 x2:8 bias:i deqScale:u out:H rank(x1,2..3) rank(x2,2..3) x1^adjX1[.a,m,k] x2^adjX2[.b,k,n] \
         out[.c,m,n] null(bias) bias[n] deqScale[t] let(blocks,n+15) let(padded,blocks/16*16) \
         equal(t,padded) either(a.n,1,c.n) either(b.n,1,c.n) either(c.n,a.n,b.n)",
        matmul_by_columns,
    ),
    ("QuantMatmulV3", "x1:I x2:I null(offset,bias)", matmul),
    ("QuantMatmulV4", "x1:I x2:I null(offset,bias)", matmul),
    ("QuantMatmulV5", "x1:I x2:I null(x1Scale,yScale,x1Offset,x2Offset,yOffset,bias)", matmul),
    ("WeightQuantBatchMatmulV2", "x:H antiquantScale:H out(y)", weight_only),
    ("WeightQuantBatchMatmulV3", "x:H antiquantScale:H out(y)", weight_only),
];
