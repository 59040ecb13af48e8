//! Matrix products.

use super::Row;
use crate::knobs::{Numerics, knobs};
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

/// c[m,n] = a[m,k] · b[k,n], sums in f32 (f64 for doubles or as an oracle), in an order of the call's own unless
/// determinism is asked for.
pub(super) fn product(
    call: &Call,
    a: &[f64],
    b: &[f64],
    m: usize,
    k: usize,
    n: usize,
    wide: bool,
) -> Vec<f64> {
    let mut c = vec![0f64; m * n];
    if wide || knobs().numerics == Numerics::Oracle {
        for i in 0..m {
            for p in 0..k {
                let x = a[i * k + p];
                for j in 0..n {
                    c[i * n + j] += x * b[p * n + j];
                }
            }
        }
        return c;
    }
    let reversed = !call.fixed && crate::knobs::noise(call.serial) % 2 == 1;
    let b: Vec<f32> = b.iter().map(|v| *v as f32).collect();
    let mut row = vec![0f32; n];
    for i in 0..m {
        row.fill(0.0);
        for q in 0..k {
            let p = if reversed { k - 1 - q } else { q };
            let x = a[i * k + p] as f32;
            for (r, b) in row.iter_mut().zip(&b[p * n..(p + 1) * n]) {
                *r += x * b;
            }
        }
        for (o, v) in c[i * n..(i + 1) * n].iter_mut().zip(&row) {
            *o = f64::from(*v);
        }
    }
    c
}

/// A matrix, or its transposed one where a flag of that name says so.
pub(super) fn transposed(k: &Call, name: &str, flag: &str) -> Result<View, Fault> {
    let mut v = k.t(name)?.clone();
    if k.flag(flag)? {
        let n = v.dims.len();
        v.dims.swap(n - 2, n - 1);
        v.strides.swap(n - 2, n - 1);
    }
    Ok(v)
}

/// Products of stacks of matrices, broadcast over the leading dimensions; one-dimensional operands as PyTorch's matmul.
pub(super) fn matmul_values(call: &Call, a: &View, b: &View) -> Result<(Vec<f64>, Vec<i64>), Fault> {
    let (mut x, mut y) = (a.clone(), b.clone());
    if x.dims.len() == 1 {
        x.dims.insert(0, 1);
        x.strides.insert(0, 0);
    }
    if y.dims.len() == 1 {
        y.dims.push(1);
        y.strides.push(0);
    }
    let (m, k) = (x.dims[x.dims.len() - 2], x.dims[x.dims.len() - 1]);
    let (k2, n) = (y.dims[y.dims.len() - 2], y.dims[y.dims.len() - 1]);
    if k != k2 {
        return Err(Fault::from(format!("{:?} times {:?}", a.dims, b.dims)));
    }
    let lead = super::elementwise::common(&x.dims[..x.dims.len() - 2], &y.dims[..y.dims.len() - 2]);
    let full = |r: i64, c: i64| lead.iter().copied().chain([r, c]).collect::<Vec<i64>>();
    let (p, q) = (call.spread(&x, &full(m, k))?.floats(), call.spread(&y, &full(k, n))?.floats());
    let (m, k, n) = (m as usize, k as usize, n as usize);
    let count = lead.iter().product::<i64>() as usize;
    let wide = a.dtype.size() == 8;
    let mut c = Vec::with_capacity(count * m * n);
    for i in 0..count {
        c.extend(product(
            call,
            &p[i * m * k..(i + 1) * m * k],
            &q[i * k * n..(i + 1) * k * n],
            m,
            k,
            n,
            wide,
        ));
    }
    Ok((c, full(m as i64, n as i64)))
}

fn matmul(k: &Call) -> Outcome {
    let b = k.t("mat2|other|tensor|vec")?;
    let (c, _) = matmul_values(k, k.t("self")?, b)?;
    k.put("out", &Values::F(c))
}

/// β·self + α·(a · b)
fn addmm(k: &Call, a: &str, b: &str, sum_batches: bool) -> Outcome {
    let out = k.t("out|selfRef")?;
    let (mut c, dims) = matmul_values(k, k.t(a)?, k.t(b)?)?;
    if sum_batches {
        let n = out.numel();
        c = (0..n).map(|i| k.sum((0..dims[0] as usize).map(|b| c[b * n + i]))).collect();
    }
    let (alpha, beta) =
        (k.scalar("alpha|alphaOptional")?.value.f(0), k.scalar("beta|betaOptional")?.value.f(0));
    let s = k.spread(k.t("self|selfRef")?, &out.dims)?.floats();
    let v = c.iter().zip(&s).map(|(c, s)| alpha * c + if beta == 0.0 { 0.0 } else { beta * s });
    k.put_view(out, &Values::F(v.collect()))
}

fn addr(k: &Call) -> Outcome {
    let out = k.t("out|selfRef")?;
    let (a, b) = (k.f("vec1")?, k.f("vec2")?);
    let (alpha, beta) = (k.scalar("alphaOptional")?.value.f(0), k.scalar("betaOptional")?.value.f(0));
    let s = k.spread(k.t("self|selfRef")?, &out.dims)?.floats();
    let n = b.len();
    k.put_view(out, &Values::F((0..s.len()).map(|i| beta * s[i] + alpha * a[i / n] * b[i % n]).collect()))
}

fn gemm(k: &Call) -> Outcome {
    let side = |name: &str, flag: &str| -> Result<View, Fault> {
        let mut v = k.t(name)?.clone();
        if k.int(flag)? != 0 {
            v.dims.swap(0, 1);
            v.strides.swap(0, 1);
        }
        Ok(v)
    };
    let (c, dims) = matmul_values(k, &side("A", "transA")?, &side("B", "transB")?)?;
    let s = k.spread(k.t("C")?, &dims)?.floats();
    let (alpha, beta) = (k.num("alpha")?, k.num("beta")?);
    k.put("out", &Values::F(c.iter().zip(&s).map(|(c, s)| alpha * c + beta * s).collect()))
}

/// Each group's matrix and rows, from a list on the host or on the device: ends of the groups, their sizes, or pairs of both.
fn groups(k: &Call, rows: usize) -> Result<Vec<(usize, usize)>, Fault> {
    let list = match k.opt_ints("groupListOptional|groupList") {
        Ok(list) => list,
        Err(_) => {
            k.opt("groupListOptional|groupList")?.map(|v| v.load(k.decl.name)).transpose()?.map(Values::ints)
        }
    };
    let Some(list) = list else { return Ok(vec![(0, rows)]) };
    let kind = k.int("groupListType").unwrap_or(0);
    if kind == 2 {
        return Ok(list.as_chunks().0.iter().map(|[e, n]| (*e as usize, *n as usize)).collect());
    }
    let cumulative = kind == 0;
    let mut last = 0;
    Ok(list
        .into_iter()
        .map(|v| {
            let n = if cumulative { v - last } else { v };
            last = v;
            n.max(0) as usize
        })
        .enumerate()
        .collect())
}

/// Each group of rows with its own matrix; or each x with its own; or, for weight gradients, groups of the inner dimension.
fn grouped(k: &Call) -> Outcome {
    let (x, w, y) = (k.list("x")?, k.list("weight")?, k.list("y|out")?);
    let bias = k.list("biasOptional")?;
    let kind = k.int("groupType").unwrap_or(-1);
    for name in ["scaleOptional", "offsetOptional", "antiquantScaleOptional", "antiquantOffsetOptional"] {
        if k.list(name)?.iter().any(|v| v.numel() > 0) {
            return Err(Fault::from(format!("{name}: quantised products are not in the emulator")));
        }
    }
    let act = k.int("actType").unwrap_or(0);
    let finish = |v: f64| match act {
        1 => v.max(0.0),
        2 => super::special::gelu_tanh(v),
        5 => super::special::silu(v),
        _ => v,
    };
    if kind == 2 {
        // x is [m, k] by strides of a transposed [k, m]; groups cut k.
        let (a, b) = (x[0], w[0]);
        let (m, inner) = (a.dims[0] as usize, a.dims[1] as usize);
        let n = b.dims[b.dims.len() - 1] as usize;
        let (p, q) = (a.load(k.decl.name)?.floats(), b.load(k.decl.name)?.floats());
        let mut at = 0;
        let mut out = Vec::new();
        for (_, g) in groups(k, inner)? {
            let left: Vec<f64> =
                (0..m).flat_map(|i| p[i * inner + at..i * inner + at + g].to_vec()).collect();
            out.extend(product(k, &left, &q[at * n..(at + g) * n], m, g, n, false));
            at += g;
        }
        return k.put_view(y[0], &Values::F(out));
    }
    let stacked = w.len() == 1 && w[0].dims.len() == 3;
    if x.len() == 1 && (stacked || w.len() > 1) {
        let a = x[0];
        let (rows, inner) =
            (a.numel() / *a.dims.last().unwrap_or(&1) as usize, *a.dims.last().unwrap_or(&1) as usize);
        let v = a.load(k.decl.name)?.floats();
        let counts = groups(k, rows)?;
        let mut at = 0;
        let mut pieces: Vec<Vec<f64>> = Vec::new();
        for (e, g) in &counts {
            let (e, g) = (*e, g);
            let matrix = if stacked {
                let mut m = w[0].clone();
                m.offset += e as i64 * m.strides[0];
                m.dims.remove(0);
                m.strides.remove(0);
                m
            } else {
                w[e].clone()
            };
            let n = matrix.dims[1] as usize;
            let b = matrix.load(k.decl.name)?.floats();
            let mut c = product(k, &v[at * inner..(at + g) * inner], &b, *g, inner, n, false);
            let shift = match bias.len() {
                0 => None,
                1 => Some(bias[0].load(k.decl.name)?.floats()[e * n..(e + 1) * n].to_vec()),
                _ => Some(bias[e].load(k.decl.name)?.floats()),
            };
            for (i, v) in c.iter_mut().enumerate() {
                *v = finish(*v + shift.as_ref().map_or(0.0, |b| b[i % n]));
            }
            pieces.push(c);
            at += g;
        }
        if y.len() == 1 {
            let mut all = pieces.concat();
            // Rows behind the last group are not promised to hold anything.
            all.resize(y[0].numel(), f64::NAN);
            return k.put_view(y[0], &Values::F(all));
        }
        return y.iter().zip(pieces).try_for_each(|(y, c)| k.put_view(y, &Values::F(c)));
    }
    let mut all = Vec::new();
    for (i, (a, b)) in x.iter().zip(&w).enumerate() {
        let (mut c, dims) = matmul_values(k, a, b)?;
        let n = *dims.last().unwrap_or(&1) as usize;
        if let Some(b) = bias.get(i) {
            let b = b.load(k.decl.name)?.floats();
            c.iter_mut().enumerate().for_each(|(j, v)| *v += b[j % n]);
        }
        c.iter_mut().for_each(|v| *v = finish(*v));
        if y.len() == 1 && x.len() > 1 { all.extend(c) } else { k.put_view(y[i], &Values::F(c))? }
    }
    if all.is_empty() { Ok(()) } else { k.put_view(y[0], &Values::F(all)) }
}

/// y += xᵀ·w for each group of rows.
fn grouped_add(k: &Call) -> Outcome {
    let (x, w, y) = (k.t("x")?, k.t("weight")?, k.t("yRef")?);
    let (rows, n) = (w.dims[0] as usize, w.dims[1] as usize);
    let (a, b) = (x.load(k.decl.name)?.floats(), w.load(k.decl.name)?.floats());
    let turned = x.dims[0] as usize == rows;
    let list = k.load("groupList")?.ints();
    // One matrix a group, stacked in three dimensions or in two.
    let m = y.numel() / (list.len() * n).max(1);
    let mut v = y.load(k.decl.name)?.floats();
    let mut at = 0;
    for (e, end) in list.iter().enumerate() {
        let g = (*end as usize).saturating_sub(at);
        let left: Vec<f64> = (0..m)
            .flat_map(|i| {
                (0..g)
                    .map(|r| if turned { a[(at + r) * m + i] } else { a[i * rows + at + r] })
                    .collect::<Vec<_>>()
            })
            .collect();
        let c = product(k, &left, &b[at * n..(at + g) * n], m, g, n, false);
        v[e * m * n..(e + 1) * m * n].iter_mut().zip(&c).for_each(|(v, c)| *v += c);
        at += g;
    }
    k.put("yRef", &Values::F(v))
}

/// What the pages of grouped products have in common; `y` is the list of outputs.
macro_rules! gmm {
    ($y:literal $($more:literal)?) => {
        concat!(
            "x:FI weight:FI out(", $y, ") type(x,weight) long(x,1..128) long(weight,1..128) long(", $y, ",1..128) last(x,1..65535) ",
            "last(weight,1..65535) in(splitItem,0..3) one(", $y, ",splitItem,2|3) ", $($more)?
        )
    };
}

const AB: &str = "self:FDI";

pub(super) static OPS: &[Row] = &[
    ("Mm", "self:FDI mat2:FDI type(self,mat2) rank(self,2) rank(mat2,2) product(self,mat2>out)", matmul),
    (
        "Matmul",
        "self:FDI mat2:FDI type(self,mat2) rank(self,1..6) rank(mat2,1..6) product(self,mat2>out)",
        matmul,
    ),
    (
        "BatchMatMul",
        "self:FDI mat2:FDI type(self,mat2) rank(self,3) rank(mat2,3) product(self,mat2>out)",
        matmul,
    ),
    ("Mv", AB, matmul),
    ("Dot", AB, matmul),
    ("Addmm", "mat1:FDI mat2:FDI type(mat1,mat2) rank(mat1,2) rank(mat2,2) product(mat1,mat2>out)", |k| {
        addmm(k, "mat1", "mat2", false)
    }),
    ("InplaceAddmm", "mat1:FDI mat2:FDI", |k| addmm(k, "mat1", "mat2", false)),
    ("Addmv", "mat:FDI", |k| addmm(k, "mat", "vec", false)),
    (
        "Baddbmm",
        "batch1:FDI batch2:FDI type(batch1,batch2) rank(batch1,3) rank(batch2,3) product(batch1,batch2>out)",
        |k| addmm(k, "batch1", "batch2", false),
    ),
    ("InplaceBaddbmm", "batch1:FDI", |k| addmm(k, "batch1", "batch2", false)),
    ("Addbmm", "batch1:FDI", |k| addmm(k, "batch1", "batch2", true)),
    ("InplaceAddbmm", "batch1:FDI", |k| addmm(k, "batch1", "batch2", true)),
    ("Addr", "vec1:FDI", addr),
    ("InplaceAddr", "vec1:FDI", addr),
    ("Gemm", "A:F B:F rank(A,2) rank(B,2)", gemm),
    ("GroupedMatmul", gmm!("y"), grouped),
    ("GroupedMatmulV2", gmm!("y" "in(groupType,-1|0|2)"), grouped),
    (
        "GroupedMatmulV3",
        gmm!("y" "in(groupType,-1|0|2) groupListOptional:l rank(groupListOptional,1)"),
        grouped,
    ),
    (
        "GroupedMatmulV4",
        gmm!("out" "in(groupType,-1|0|2) in(groupListType,0|1|2) in(actType,0|1|2|4|5) groupListOptional:l rank(groupListOptional,1..2)"),
        grouped,
    ),
    (
        "GroupedMatmulV5",
        gmm!("out" "in(groupType,-1|0|2) in(groupListType,0|1|2) in(actType,0|1|2|4|5) groupListOptional:l rank(groupListOptional,1..2)"),
        grouped,
    ),
    (
        "GroupedMatmulAdd",
        "x:H type(x,weight) groupList:l yRef:S last(x,1..65535) last(weight,1..65535) code(561002) \
         in(groupType,2) rank(x,2) rank(weight,2)",
        grouped_add,
    ),
];
