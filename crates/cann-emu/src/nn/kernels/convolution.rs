//! Convolutions of one to three spatial dimensions, their transposes and gradients.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

/// A convolution of `[N, groups·ci, in…]` with `[groups·co, ci, k…]` to `[N, groups·co, out…]`.
struct Shape {
    batch: usize,
    groups: usize,
    co: usize,
    ci: usize,
    input: Vec<usize>,
    output: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
}

fn sizes(dims: &[i64]) -> Vec<usize> {
    dims.iter().map(|d| *d as usize).collect()
}

/// A list with an entry for each spatial dimension; one entry stands for all.
fn each(k: &Call, name: &str, spatial: usize) -> Result<Vec<i64>, Fault> {
    let list = k.ints(name)?;
    match list.len() {
        n if n == spatial => Ok(list),
        1 => Ok(vec![list[0]; spatial]),
        _ => Err(Fault::from(format!("{name} {list:?} of {spatial} spatial dimensions"))),
    }
}

/// Every coordinate within `dims`, in order.
pub(super) fn walk(dims: &[usize], mut f: impl FnMut(&[usize])) {
    let mut at = vec![0; dims.len()];
    if dims.contains(&0) {
        return;
    }
    loop {
        f(&at);
        let mut d = dims.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            at[d] += 1;
            if at[d] < dims[d] {
                break;
            }
            at[d] = 0;
        }
    }
}

impl Shape {
    /// `wide` is the tensor that the windows run over, `narrow` the one with an element for each window.
    fn new(k: &Call, wide: &View, narrow: &View, weight: &View) -> Result<Shape, Fault> {
        let spatial = weight.dims.len().saturating_sub(2);
        if spatial == 0 || wide.dims.len() != spatial + 2 || narrow.dims.len() != spatial + 2 {
            return Err(Fault::from(format!("{:?} with {:?} and {:?}", wide.dims, weight.dims, narrow.dims)));
        }
        let groups = k.int("groups")?.max(1) as usize;
        let (w, x, y) = (sizes(&weight.dims), sizes(&wide.dims), sizes(&narrow.dims));
        if x[1] != w[1] * groups || y[1] != w[0] || !w[0].is_multiple_of(groups) || x[0] != y[0] {
            return Err(Fault::from(format!("{x:?} by {w:?} in {groups} groups to {y:?}")));
        }
        Ok(Shape {
            batch: x[0],
            groups,
            co: w[0] / groups,
            ci: w[1],
            input: x[2..].to_vec(),
            output: y[2..].to_vec(),
            kernel: w[2..].to_vec(),
            stride: each(k, "stride", spatial)?,
            padding: each(k, "padding", spatial)?,
            dilation: each(k, "dilation", spatial)?,
        })
    }

    /// Calls `f` with the places of every product: in the narrow tensor, in the wide one, in the weight.
    fn products(&self, mut f: impl FnMut(usize, usize, usize)) {
        let area = |d: &[usize]| d.iter().product::<usize>();
        let (wide, narrow, window) = (area(&self.input), area(&self.output), area(&self.kernel));
        // Pairs of places in the planes, the same for every pair of channels.
        let mut pairs = Vec::new();
        let (mut o, mut t) = (0, 0);
        walk(&self.output, |out| {
            t = 0;
            walk(&self.kernel, |tap| {
                let mut place = Some(0usize);
                for d in 0..out.len() {
                    let at =
                        out[d] as i64 * self.stride[d] - self.padding[d] + tap[d] as i64 * self.dilation[d];
                    place = place
                        .filter(|_| at >= 0 && at < self.input[d] as i64)
                        .map(|p| p * self.input[d] + at as usize);
                }
                if let Some(p) = place {
                    pairs.push((o, p, t));
                }
                t += 1;
            });
            o += 1;
        });
        for n in 0..self.batch {
            for c in 0..self.groups * self.co {
                let g = c / self.co;
                for i in 0..self.ci {
                    let y = (n * self.groups * self.co + c) * narrow;
                    let x = (n * self.groups * self.ci + g * self.ci + i) * wide;
                    let w = (c * self.ci + i) * window;
                    pairs.iter().for_each(|(o, p, t)| f(y + o, x + p, w + t));
                }
            }
        }
    }
}

fn forward(k: &Call) -> Outcome {
    let (x, w, out) = (k.t("input")?, k.t("weight")?, k.t("output")?);
    let (a, b) = (k.f("input")?, k.f("weight")?);
    let mut y = vec![0.0; out.numel()];
    if k.flag("transposed")? {
        Shape::new(k, out, x, w)?.products(|narrow, wide, tap| y[wide] += a[narrow] * b[tap]);
    } else {
        Shape::new(k, x, out, w)?.products(|narrow, wide, tap| y[narrow] += a[wide] * b[tap]);
    }
    if let Some(bias) = k.opt_f("bias")? {
        let plane = sizes(&out.dims[2..]).iter().product::<usize>().max(1);
        y.iter_mut().enumerate().for_each(|(i, v)| *v += bias[i / plane % bias.len()]);
    }
    k.put("output", &Values::F(y))
}

fn backward(k: &Call) -> Outcome {
    let (dy, x, w) = (k.t("gradOutput")?, k.t("input")?, k.t("weight")?);
    let (g, a, b) = (k.f("gradOutput")?, k.f("input")?, k.f("weight")?);
    let mask = k.bools("outputMask")?;
    let wanted = |i: usize| mask.get(i).copied().unwrap_or(true);
    let (mut dx, mut dw) = (vec![0.0; a.len()], vec![0.0; b.len()]);
    if k.flag("transposed")? {
        Shape::new(k, dy, x, w)?.products(|narrow, wide, tap| {
            dx[narrow] += g[wide] * b[tap];
            dw[tap] += g[wide] * a[narrow];
        });
    } else {
        Shape::new(k, x, dy, w)?.products(|narrow, wide, tap| {
            dx[wide] += g[narrow] * b[tap];
            dw[tap] += g[narrow] * a[wide];
        });
    }
    if wanted(0) {
        k.put_opt("gradInput", &Values::F(dx))?;
    }
    if wanted(1) {
        k.put_opt("gradWeight", &Values::F(dw))?;
    }
    if wanted(2) && k.opt("gradBias")?.is_some() {
        let channels = dy.dims[1] as usize;
        let plane = sizes(&dy.dims[2..]).iter().product::<usize>().max(1);
        let mut db = vec![0.0; channels];
        g.iter().enumerate().for_each(|(i, v)| db[i / plane % channels] += v);
        k.put_opt("gradBias", &Values::F(db))?;
    }
    Ok(())
}

pub(super) static OPS: &[Row] = &[
    (
        "Convolution",
        "input:F weight:F type(input,weight) rank(input,3..5) rank(weight,3..5) null(bias)",
        forward,
    ),
    (
        "ConvolutionBackward",
        "gradOutput:F input:F weight:F type(input,weight) rank(input,3..5) null(biasSizes,gradInput,gradWeight,gradBias)",
        backward,
    ),
];
