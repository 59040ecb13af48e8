//! Sampling of images at places that are data, and their windows as columns.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::Values;

/// A coordinate between -1 and 1 as a place of `n`, brought back inside by the padding mode (0 zeros, 1 border,
/// 2 reflection), and the slope of that.
fn place(v: f64, n: usize, mode: i64, corners: bool) -> (f64, f64) {
    let len = n as f64;
    let (at, slope) = if corners {
        ((v + 1.0) / 2.0 * (len - 1.0), (len - 1.0) / 2.0)
    } else {
        (((v + 1.0) * len - 1.0) / 2.0, len / 2.0)
    };
    let clamp = |at: f64, slope: f64| {
        if at <= 0.0 {
            (0.0, 0.0)
        } else if at >= len - 1.0 {
            (len - 1.0, 0.0)
        } else {
            (at, slope)
        }
    };
    match mode {
        1 => clamp(at, slope),
        2 => {
            let (low, high) = if corners { (0.0, len - 1.0) } else { (-0.5, len - 0.5) };
            let span = high - low;
            if span == 0.0 {
                return (0.0, 0.0);
            }
            let (far, sign) = if at < low { (low - at, -1.0) } else { (at - low, 1.0) };
            let (times, rest) = ((far / span).floor(), far % span);
            let (at, sign) = if times as i64 % 2 == 0 { (rest + low, sign) } else { (high - rest, -sign) };
            clamp(at, slope * sign)
        }
        _ => (at, slope),
    }
}

/// The neighbours of a place with weights and the slopes of these by y and by x.
type Neighbour = (usize, f64, f64, f64);

fn neighbours(y: f64, x: f64, h: usize, w: usize, mode: i64) -> Vec<Neighbour> {
    let inside = |r: f64, c: f64| r >= 0.0 && c >= 0.0 && r < h as f64 && c < w as f64;
    if mode == 1 {
        let (r, c) = (y.round_ties_even(), x.round_ties_even());
        return if inside(r, c) { vec![(r as usize * w + c as usize, 1.0, 0.0, 0.0)] } else { Vec::new() };
    }
    let (r, c) = (y.floor(), x.floor());
    let (a, b) = (y - r, x - c);
    [
        (r, c, (1.0 - a) * (1.0 - b), b - 1.0, a - 1.0),
        (r, c + 1.0, (1.0 - a) * b, -b, 1.0 - a),
        (r + 1.0, c, a * (1.0 - b), 1.0 - b, -a),
        (r + 1.0, c + 1.0, a * b, b, a),
    ]
    .into_iter()
    .filter(|(r, c, ..)| inside(*r, *c))
    .map(|(r, c, w0, dy, dx)| (r as usize * w + c as usize, w0, dy, dx))
    .collect()
}

struct Grid {
    n: usize,
    c: usize,
    h: usize,
    w: usize,
    points: usize,
    mode: i64,
    padding: i64,
    corners: bool,
}

impl Grid {
    fn new(k: &Call) -> Result<Grid, Fault> {
        let (d, g) = (&k.t("input")?.dims, &k.t("grid")?.dims);
        let mode = k.int("interpolationMode")?;
        if mode > 1 {
            return Err(Fault::from(format!("interpolationMode {mode} is not in the emulator")));
        }
        let (n, c, h, w) = (d[0] as usize, d[1] as usize, d[2] as usize, d[3] as usize);
        let points = (g[1] * g[2]) as usize;
        let (padding, corners) = (k.int("paddingMode")?, k.flag("alignCorners")?);
        Ok(Grid { n, c, h, w, points, mode, padding, corners })
    }

    /// The neighbours of a point with weights, and their slopes by the grid's y and x.
    fn at(&self, grid: &[f64], n: usize, p: usize) -> Vec<Neighbour> {
        let i = (n * self.points + p) * 2;
        let (x, sx) = place(grid[i], self.w, self.padding, self.corners);
        let (y, sy) = place(grid[i + 1], self.h, self.padding, self.corners);
        let all = neighbours(y, x, self.h, self.w, self.mode);
        all.into_iter().map(|(at, w, dy, dx)| (at, w, dy * sy, dx * sx)).collect()
    }
}

fn sample(k: &Call) -> Outcome {
    let g = Grid::new(k)?;
    let (x, grid) = (k.f("input")?, k.f("grid")?);
    let mut out = vec![0.0; g.n * g.c * g.points];
    for n in 0..g.n {
        for p in 0..g.points {
            for (at, w, ..) in g.at(&grid, n, p) {
                for c in 0..g.c {
                    out[(n * g.c + c) * g.points + p] += w * x[(n * g.c + c) * g.h * g.w + at];
                }
            }
        }
    }
    k.put("out", &Values::F(out))
}

fn sample_grad(k: &Call) -> Outcome {
    let g = Grid::new(k)?;
    let (x, grid, dy) = (k.f("input")?, k.f("grid")?, k.f("gradOutput")?);
    let (mut dx, mut dgrid) = (vec![0.0; x.len()], vec![0.0; grid.len()]);
    for n in 0..g.n {
        for p in 0..g.points {
            for (at, w, by_y, by_x) in g.at(&grid, n, p) {
                for c in 0..g.c {
                    let (d, i) = (dy[(n * g.c + c) * g.points + p], (n * g.c + c) * g.h * g.w + at);
                    dx[i] += w * d;
                    dgrid[(n * g.points + p) * 2] += by_x * d * x[i];
                    dgrid[(n * g.points + p) * 2 + 1] += by_y * d * x[i];
                }
            }
        }
    }
    k.put_opt("inputGrad", &Values::F(dx))?;
    k.put_opt("gridGrad", &Values::F(dgrid))
}

fn affine_grid(k: &Call) -> Outcome {
    let (theta, size, corners) = (k.f("theta")?, k.ints("size")?, k.flag("alignCorners")?);
    if size.len() != 4 {
        return Err(Fault::from(format!("size {size:?}: only images of two dimensions are in the emulator")));
    }
    let (n, h, w) = (size[0] as usize, size[2] as usize, size[3] as usize);
    let at = |i: usize, n: usize| {
        let (i, n) = (i as f64, n as f64);
        if !corners {
            (2.0 * i + 1.0) / n - 1.0
        } else if n > 1.0 {
            2.0 * i / (n - 1.0) - 1.0
        } else {
            0.0
        }
    };
    let one = |i: usize| {
        let (b, r, c, which) = (i / (h * w * 2), i / (w * 2) % h, i / 2 % w, i % 2);
        let t = &theta[(b * 2 + which) * 3..][..3];
        t[0] * at(c, w) + t[1] * at(r, h) + t[2]
    };
    k.put("out", &Values::F((0..n * h * w * 2).map(one).collect()))
}

/// Calls `f` with the place of every window's element in the columns and in the image.
fn columns(k: &Call, image: &[usize], mut f: impl FnMut(usize, usize)) -> Result<(), Fault> {
    let two = |name: &str| -> Result<[usize; 2], Fault> {
        let v = k.ints(name)?;
        Ok([v[0] as usize, *v.last().unwrap_or(&v[0]) as usize])
    };
    let (size, dilation, padding, stride) =
        (two("kernelSize")?, two("dilation")?, two("padding")?, two("stride")?);
    let [h, w] = [image[1], image[2]];
    let count = |d: usize, n: usize| (n + 2 * padding[d] - dilation[d] * (size[d] - 1) - 1) / stride[d] + 1;
    let (rows, cols) = (count(0, h), count(1, w));
    for c in 0..image[0] {
        for (i, j) in (0..size[0]).flat_map(|i| (0..size[1]).map(move |j| (i, j))) {
            for (r, q) in (0..rows).flat_map(|r| (0..cols).map(move |q| (r, q))) {
                let (y, x) = (r * stride[0] + i * dilation[0], q * stride[1] + j * dilation[1]);
                let (Some(y), Some(x)) = (y.checked_sub(padding[0]), x.checked_sub(padding[1])) else {
                    continue;
                };
                if y < h && x < w {
                    let row = (c * size[0] + i) * size[1] + j;
                    f(row * rows * cols + r * cols + q, (c * h + y) * w + x);
                }
            }
        }
    }
    Ok(())
}

fn im2col(k: &Call) -> Outcome {
    let (x, out) = (k.t("self")?, k.t("out")?);
    let d: Vec<usize> = x.dims.iter().map(|v| *v as usize).collect();
    let image = &d[d.len() - 3..];
    let (a, plane) = (k.f("self")?, image.iter().product::<usize>());
    let mut y = vec![0.0; out.numel()];
    let batch = a.len() / plane.max(1);
    let width = y.len() / batch.max(1);
    for n in 0..batch {
        columns(k, image, |col, at| y[n * width + col] = a[n * plane + at])?;
    }
    k.put("out", &Values::F(y))
}

fn col2im(k: &Call) -> Outcome {
    let out = k.t("out")?;
    let d: Vec<usize> = out.dims.iter().map(|v| *v as usize).collect();
    let image = &d[d.len() - 3..];
    let (g, plane) = (k.f("gradOutput")?, image.iter().product::<usize>());
    let mut dx = vec![0.0; out.numel()];
    let batch = dx.len() / plane.max(1);
    let width = g.len() / batch.max(1);
    for n in 0..batch {
        columns(k, image, |col, at| dx[n * plane + at] += g[n * width + col])?;
    }
    k.put("out", &Values::F(dx))
}

pub(super) static OPS: &[Row] = &[
    ("GridSampler2D", "input:FD grid:FD rank(input,4) rank(grid,4)", sample),
    ("GridSampler2DBackward", "gradOutput:FD null(inputGrad,gridGrad)", sample_grad),
    ("AffineGrid", "theta:F", affine_grid),
    ("Im2col", "self:FD out(out)", im2col),
    ("Im2colBackward", "gradOutput:FD", col2im),
];
