//! Quantisation and products of integers: `ascend-abi.md`, section 8.10. Four-bit weights and groups of products are not here.

use super::Row;
use super::matmul::matmul_values;
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

fn byte(v: f64) -> i64 {
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

/// Each row by its largest element: scale = max|x|/127, y = round(x/scale).
fn dynamic(k: &Call) -> Outcome {
    let (x, smooth) = (k.f("x")?, k.opt_f("smoothScalesOptional")?);
    let n = *k.t("x")?.dims.last().unwrap_or(&1) as usize;
    let (mut y, mut scales) = (Vec::new(), Vec::new());
    for row in x.chunks(n.max(1)) {
        let row: Vec<f64> =
            row.iter().enumerate().map(|(i, v)| v * smooth.as_ref().map_or(1.0, |s| s[i])).collect();
        let scale = f64::from((row.iter().fold(0.0f64, |m, v| m.max(v.abs())) / 127.0) as f32);
        scales.push(scale);
        y.extend(row.iter().map(|v| if scale == 0.0 { 0 } else { byte((v / scale).round_ties_even()) }));
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
fn scales(k: &Call, name: &str) -> Result<Vec<f64>, Fault> {
    let v = k.t(name)?;
    if matches!(v.dtype, Dtype::U64 | Dtype::I64) {
        let bits = v.load(k.decl.name)?.ints();
        return Ok(bits.iter().map(|b| f64::from(f32::from_bits(*b as u32))).collect());
    }
    Ok(v.load(k.decl.name)?.floats())
}

fn turned(k: &Call, name: &str, flag: &str) -> Result<View, Fault> {
    let mut v = k.t(name)?.clone();
    if k.flag(flag)? {
        let n = v.dims.len();
        v.dims.swap(n - 2, n - 1);
        v.strides.swap(n - 2, n - 1);
    }
    Ok(v)
}

/// y = (x1·x2 + bias)·scale, by column and by row; a bias of floats comes behind the scales.
fn matmul(k: &Call) -> Outcome {
    let (a, b) = (turned(k, "x1", "transposeX1")?, turned(k, "x2", "transposeX2")?);
    let (mut c, dims) = matmul_values(k, &a, &b)?;
    let [.., m, n] = dims[..] else { return Err(Fault::from(format!("a product of {dims:?}"))) };
    let (m, n) = (m as usize, n as usize);
    // The newest form names them by operand.
    let newest = k.value("x2Scale").is_some();
    let scale = scales(k, "scale|x2Scale")?;
    let rows = match ["pertokenScaleOptional", "x1Scale"].into_iter().find(|n| k.value(n).is_some()) {
        Some(name) => k.opt_f(name)?,
        None => None,
    };
    if newest {
        for name in ["x1Offset", "yScale", "yOffset"] {
            if k.opt(name)?.is_some_and(|v| v.numel() > 0) {
                return Err(Fault::from(format!("{name} is not in the emulator")));
            }
        }
    }
    let offset = k.opt_f("offset|x2Offset")?;
    let before = k.opt("bias")?.is_some_and(|v| v.dtype == Dtype::I32);
    let bias = k.opt_f("bias")?;
    let out = k.t("out")?;
    for (i, v) in c.iter_mut().enumerate() {
        let add = bias.as_ref().map_or(0.0, |b| by_column(b, i % n));
        let row = rows.as_ref().map_or(1.0, |r| r[i / n % m]);
        *v = (*v + if before { add } else { 0.0 }) * by_column(&scale, i % n) * row;
        *v += if before { 0.0 } else { add };
    }
    match out.dtype {
        Dtype::I8 => {
            let shift = |i: usize| offset.as_ref().map_or(0.0, |o| by_column(o, i % n));
            let all = c.iter().enumerate().map(|(i, v)| byte((v + shift(i)).round_ties_even()));
            k.put("out", &Values::I(all.collect()))
        }
        _ => k.put("out", &Values::F(c)),
    }
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
    let [inner, n] = w.dims[..] else { return Err(Fault::from(format!("a weight of {:?}", w.dims))) };
    let (inner, n) = (inner as usize, n as usize);
    let group = match k.int("antiquantGroupSize")? {
        0 => inner.max(1),
        g => g as usize,
    };
    let (scale, offset, bias) =
        (k.f("antiquantScale")?, k.opt_f("antiquantOffsetOptional")?, k.opt_f("biasOptional")?);
    let by = |list: &[f64], r: usize, c: usize| {
        if list.len() == 1 { list[0] } else { list[(r / group * n + c) % list.len()] }
    };
    let q = w.load(k.decl.name)?.floats();
    let wide: Vec<f64> = (0..q.len())
        .map(|i| {
            let (r, c) = (i / n, i % n);
            (q[i] + offset.as_ref().map_or(0.0, |o| by(o, r, c))) * by(&scale, r, c)
        })
        .collect();
    let v = x.load(k.decl.name)?.floats();
    let mut y = super::matmul::product(k, &v, &wide, v.len() / inner.max(1), inner, n, false);
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
    ("QuantMatmulV3", "x1:I x2:I null(offset,bias)", matmul),
    ("QuantMatmulV4", "x1:I x2:I null(offset,bias)", matmul),
    ("QuantMatmulV5", "x1:I x2:I null(x1Scale,yScale,x1Offset,x2Offset,yOffset,bias)", matmul),
    ("WeightQuantBatchMatmulV2", "x:H antiquantScale:H out(y)", weight_only),
    ("WeightQuantBatchMatmulV3", "x:H antiquantScale:H out(y)", weight_only),
];
