//! Padding, resizing, sampling, windows as columns, convolutions: each dimension by itself where the map is a product.

use super::maths::{along_last, gradient, transposed, truth};
use super::run::{Run, numel};
use super::shape::{at, places};
use super::{Cases, F32, FLOATS};

/// `[2,2]` planes of one, two or three dimensions.
fn dims(n: usize, sizes: [i64; 3]) -> Vec<i64> {
    [&[2, 2], &sizes[3 - n..]].concat()
}

pub(super) fn cases(c: &mut Cases) {
    pads(c);
    for n in [1, 2, 3] {
        resizing(c, n);
    }
    grids(c);
    columns(c);
    convolutions(c);
}

/// What stands at place `i` of a line of `l` beyond its ends: the mirror image without the last element, or the last.
fn beyond(l: &[f64], i: i64, mirror: bool) -> f64 {
    let n = l.len() as i64;
    if !mirror {
        return l[i.clamp(0, n - 1) as usize];
    }
    // A wave of period 2·(n − 1).
    let t = i.rem_euclid(2 * (n - 1));
    l[if t < n { t } else { 2 * (n - 1) - t } as usize]
}

fn pads(c: &mut Cases) {
    for (kind, mirror) in [("Reflection", true), ("Replication", false)] {
        for n in [1usize, 2, 3] {
            // Before and behind each dimension, the first dimension last in the list.
            let by: Vec<[i64; 2]> = [[0, 1], [2, 1], [1, 2]][3 - n..].to_vec();
            let list: Vec<i64> = by.iter().rev().flatten().copied().collect();
            let map = move |x: &[f64], d: &[i64]| {
                along_last(x, d, n, |l, which| {
                    let [before, behind] = by[which];
                    (-before..l.len() as i64 + behind).map(|i| beyond(l, i, mirror)).collect()
                })
            };
            let (other, padding) = (map.clone(), list.clone());
            c.add(&format!("{kind}Pad{n}d"), FLOATS, move |r| {
                let d = dims(n, [3, 4, 3]);
                let x = r.x("self", &d);
                let (y, to) = map(&x, &d);
                r.ints("padding", &list).out("out", &to, y);
            });
            c.add(&format!("{kind}Pad{n}dBackward"), FLOATS, move |r| {
                let d = dims(n, [3, 4, 3]);
                let x = r.x("self", &d);
                let (_, to) = other(&x, &d);
                let g = r.x("gradOutput", &to);
                let dx = transposed(|x| other(x, &d).0, x.len(), &g);
                r.ints("padding", &padding).loose(2.0).out("gradInput", &d, dx);
            });
        }
    }
}

type Line = fn(&[f64], usize, bool) -> Vec<f64>;

/// The place in the input under the middle of output `o`, or with the corners on each other.
fn under(o: usize, from: usize, to: usize, corners: bool) -> f64 {
    if corners {
        return if to > 1 { o as f64 * (from - 1) as f64 / (to - 1) as f64 } else { 0.0 };
    }
    (o as f64 + 0.5) * from as f64 / to as f64 - 0.5
}

fn by_nearest(l: &[f64], to: usize, _: bool) -> Vec<f64> {
    (0..to).map(|o| l[o * l.len() / to]).collect()
}

fn by_exact(l: &[f64], to: usize, _: bool) -> Vec<f64> {
    (0..to).map(|o| l[(2 * o + 1) * l.len() / (2 * to)]).collect()
}

/// The broken line through the values, level beyond its ends.
fn by_line(l: &[f64], to: usize, corners: bool) -> Vec<f64> {
    let n = l.len();
    let value = |s: f64| {
        let s = s.clamp(0.0, n as f64 - 1.0);
        (0..n).map(|i| l[i] * (1.0 - (s - i as f64).abs()).max(0.0)).sum()
    };
    (0..to).map(|o| value(under(o, n, to, corners))).collect()
}

/// Keys, "Cubic Convolution Interpolation for Digital Image Processing" (1981), equation 15.
fn keys(x: f64, a: f64) -> f64 {
    let x = x.abs();
    match x {
        x if x < 1.0 => (a + 2.0) * x.powi(3) - (a + 3.0) * x.powi(2) + 1.0,
        x if x < 2.0 => a * x.powi(3) - 5.0 * a * x.powi(2) + 8.0 * a * x - 4.0 * a,
        _ => 0.0,
    }
}

fn by_cubic(l: &[f64], to: usize, corners: bool) -> Vec<f64> {
    let n = l.len() as i64;
    let value = |s: f64| (-4..n + 4).map(|i| beyond(l, i, false) * keys(s - i as f64, -0.75)).sum();
    (0..to).map(|o| value(under(o, l.len(), to, corners))).collect()
}

/// A kernel as wide as the outputs are apart, its weights made to sum to one.
fn smoothed(l: &[f64], to: usize, kernel: impl Fn(f64) -> f64) -> Vec<f64> {
    let wide = (l.len() as f64 / to as f64).max(1.0);
    let value = |s: f64| {
        let w: Vec<f64> = (0..l.len()).map(|i| kernel((i as f64 - s) / wide)).collect();
        w.iter().zip(l).map(|(w, v)| w * v).sum::<f64>() / w.iter().sum::<f64>()
    };
    (0..to).map(|o| value(under(o, l.len(), to, false))).collect()
}

fn by_smooth_line(l: &[f64], to: usize, _: bool) -> Vec<f64> {
    smoothed(l, to, |x| (1.0 - x.abs()).max(0.0))
}

fn by_smooth_cubic(l: &[f64], to: usize, _: bool) -> Vec<f64> {
    smoothed(l, to, |x| keys(x, -0.5))
}

/// Forward, backward, dimensions, the map of a line, whether corners can be laid on each other.
const SIZES: &[(&[&str], &[&str], usize, Line, bool)] = &[
    (&["UpsampleNearest1d", "UpsampleNearest1dV2"], &["UpsampleNearest1dBackward"], 1, by_nearest, false),
    (&["UpsampleNearest2d", "UpsampleNearest2dV2"], &["UpsampleNearest2dBackward"], 2, by_nearest, false),
    (&["UpsampleNearest3d"], &["UpsampleNearest3dBackward"], 3, by_nearest, false),
    (&["UpsampleNearestExact1d"], &["UpsampleNearestExact1dBackward"], 1, by_exact, false),
    (&["UpsampleNearestExact2d"], &["UpsampleNearestExact2dBackward"], 2, by_exact, false),
    (&["UpsampleNearestExact3d"], &["UpsampleNearestExact3dBackward"], 3, by_exact, false),
    (&["UpsampleLinear1d"], &["UpsampleLinear1dBackward"], 1, by_line, true),
    (
        &["UpsampleBilinear2d"],
        &["UpsampleBilinear2dBackward", "UpsampleBilinear2dBackwardV2"],
        2,
        by_line,
        true,
    ),
    (&["UpsampleTrilinear3d"], &["UpsampleTrilinear3dBackward"], 3, by_line, true),
    (&["UpsampleBicubic2d"], &["UpsampleBicubic2dBackward"], 2, by_cubic, true),
    (&["UpsampleBilinear2dAA"], &["UpsampleBilinear2dAABackward"], 2, by_smooth_line, false),
    (&["UpsampleBicubic2dAA"], &["UpsampleBicubic2dAAGrad"], 2, by_smooth_cubic, false),
];

fn resizing(c: &mut Cases, n: usize) {
    for (forward, backward, _, line, cornered) in SIZES.iter().filter(|s| s.2 == n) {
        for corners in [false, true].into_iter().filter(|c| !c || *cornered) {
            // Larger, smaller and both.
            for sizes in [[4, 5, 7], [3, 2, 2], [2, 7, 3]] {
                let from = dims(n, [3, 4, 5]);
                let target: Vec<i64> = sizes[3 - n..].to_vec();
                let to = dims(n, sizes);
                let map = {
                    let (from, target) = (from.clone(), target.clone());
                    move |x: &[f64]| along_last(x, &from, n, |l, i| line(l, target[i] as usize, corners)).0
                };
                for name in *forward {
                    let (from, to, target, map) = (from.clone(), to.clone(), target.clone(), map.clone());
                    c.add(name, FLOATS, move |r| {
                        let first = ["self", "input", "x"].into_iter().find(|n| r.has(n)).unwrap();
                        let x = r.x(first, &from);
                        if r.has("alignCorners") {
                            r.n("alignCorners", truth(corners));
                        }
                        r.ints("outputSize", &target).loose(2.0).out("out", &to, map(&x));
                    });
                }
                for name in *backward {
                    let (from, to, target, map) = (from.clone(), to.clone(), target.clone(), map.clone());
                    c.add(name, FLOATS, move |r| {
                        let first = if r.has("gradOut") { "gradOut" } else { "gradOutput" };
                        let g = r.x(first, &to);
                        if r.has("alignCorners") {
                            r.n("alignCorners", truth(corners));
                        }
                        let out = if r.has("gradInput") { "gradInput" } else { "out" };
                        r.ints("outputSize", &target).ints("inputSize", &from).loose(3.0);
                        r.out(out, &from, transposed(&map, numel(&from), &g));
                    });
                }
            }
        }
    }
}

/// A place from the grid's -1..1, and what is beyond the image: 0 nothing, 1 the border, 2 the mirror.
fn placed(v: f64, n: i64, beyond: i64, corners: bool) -> f64 {
    let (low, high) = if corners { (0.0, n as f64 - 1.0) } else { (-0.5, n as f64 - 0.5) };
    let mut s = low + (v + 1.0) / 2.0 * (high - low);
    if beyond == 2 {
        while s < low || s > high {
            s = if s < low { 2.0 * low - s } else { 2.0 * high - s };
        }
    }
    if beyond == 0 { s } else { s.clamp(0.0, n as f64 - 1.0) }
}

const IMAGE: &[i64] = &[2, 2, 3, 4];
const GRID: &[i64] = &[2, 2, 3, 2];

/// An image at the places of a grid, by hats (mode 0) or boxes.
fn sampled(x: &[f64], grid: &[f64], mode: i64, beyond: i64, corners: bool) -> Vec<f64> {
    let one = |p: &Vec<i64>| -> f64 {
        let v = |e: i64, n: i64| placed(at(grid, GRID, &[p[0], p[2], p[3], e]), n, beyond, corners);
        let (sx, sy) = (v(0, 4), v(1, 3));
        let near = |s: f64, i: i64| {
            if mode == 0 {
                (1.0 - (s - i as f64).abs()).max(0.0)
            } else {
                truth(s.round_ties_even() == i as f64)
            }
        };
        let all = (0..3).flat_map(|r| (0..4).map(move |q| (r, q)));
        all.map(|(r, q)| near(sy, r) * near(sx, q) * at(x, IMAGE, &[p[0], p[1], r, q])).sum()
    };
    places(&[2, 2, 2, 3]).iter().map(one).collect()
}

fn grids(c: &mut Cases) {
    for (mode, beyond, corners) in (0..12).map(|i| (i % 2, i / 2 % 3, i / 6 == 1)) {
        let given = move |r: &mut Run| {
            let x = r.x("input", IMAGE);
            let g = r.within("grid", GRID, -1.35, 1.45);
            r.n("interpolationMode", mode as f64)
                .n("paddingMode", beyond as f64)
                .n("alignCorners", truth(corners));
            (x, g)
        };
        c.add("GridSampler2D", F32, move |r| {
            let (x, g) = given(r);
            r.loose(4.0).out("out", &[2, 2, 2, 3], sampled(&x, &g, mode, beyond, corners));
        });
        c.add("GridSampler2DBackward", F32, move |r| {
            let (x, g) = given(r);
            let dy = r.x("gradOutput", &[2, 2, 2, 3]);
            r.bools("outputMask", &[true; 2]).loose(20.0);
            r.out("inputGrad", IMAGE, gradient(|x| sampled(x, &g, mode, beyond, corners), &x, &dy));
            // Boxes are level but at their edges.
            r.out("gridGrad", GRID, gradient(|g| sampled(&x, g, mode, beyond, corners), &g, &dy));
        });
    }
    for corners in [false, true] {
        c.add("AffineGrid", FLOATS, move |r| {
            let t = r.x("theta", &[2, 2, 3]);
            let v = |i: i64, n: i64| {
                let (i, n) = (i as f64, n as f64);
                if corners { -1.0 + 2.0 * i / (n - 1.0) } else { -1.0 + (2.0 * i + 1.0) / n }
            };
            let one = |p: &Vec<i64>| {
                let w = |e| at(&t, &[2, 2, 3], &[p[0], p[3], e]);
                w(0) * v(p[2], 4) + w(1) * v(p[1], 3) + w(2)
            };
            let d = &[2, 3, 4, 2];
            r.ints("size", &[2, 5, 3, 4]).n("alignCorners", truth(corners)).loose(2.0);
            r.out("out", d, places(d).iter().map(one).collect());
        });
    }
}

/// Windows of 2×3, 2 apart down and 1 across, with a gap of 2 across and a border of 1 above and below.
fn columns(c: &mut Cases) {
    const X: &[i64] = &[2, 2, 4, 6];
    const Y: &[i64] = &[2, 12, 6];
    let map = |x: &[f64]| -> Vec<f64> {
        let one = |p: &Vec<i64>| {
            let (ch, i, j) = (p[1] / 6, p[1] / 3 % 2, p[1] % 3);
            let (row, col) = (p[2] / 2 * 2 + i - 1, p[2] % 2 + 2 * j);
            if (0..4).contains(&row) { at(x, X, &[p[0], ch, row, col]) } else { 0.0 }
        };
        places(Y).iter().map(one).collect()
    };
    let sizes = |r: &mut Run| {
        r.ints("kernelSize", &[2, 3])
            .ints("dilation", &[1, 2])
            .ints("padding", &[1, 0])
            .ints("stride", &[2, 1]);
    };
    c.add("Im2col", FLOATS, move |r| {
        let x = r.x("self", X);
        sizes(r);
        r.out("out", Y, map(&x));
    });
    c.add("Im2colBackward", FLOATS, move |r| {
        let g = r.x("gradOutput", Y);
        sizes(r);
        r.ints("inputSize", &[4, 6]).loose(2.0).out("out", X, transposed(map, numel(X), &g));
    });
}

/// Strides, borders and gaps of the convolutions below.
struct Window {
    spatial: usize,
    groups: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
}

impl Window {
    /// `x` `[2,2·groups,4…]` and `w` `[3·groups,2,2…]` to `[2,3·groups,out…]`.
    fn of(&self, x: &[f64], w: &[f64], b: &[f64]) -> Vec<f64> {
        let (xd, wd, yd) = (self.x(), self.w(), self.y());
        let one = |p: &Vec<i64>| {
            let mut sum = b[p[1] as usize];
            for k in places(&wd[1..]) {
                let mut from = vec![p[0], p[1] / 3 * 2 + k[0]];
                from.extend(
                    (0..self.spatial)
                        .map(|d| p[d + 2] * self.stride - self.padding + k[d + 1] * self.dilation),
                );
                if from[2..].iter().all(|i| (0..4).contains(i)) {
                    sum += at(x, &xd, &from) * at(w, &wd, &[&[p[1]], &k[..]].concat());
                }
            }
            sum
        };
        places(&yd).iter().map(one).collect()
    }
    fn x(&self) -> Vec<i64> {
        [vec![2, 2 * self.groups], vec![4; self.spatial]].concat()
    }
    fn w(&self) -> Vec<i64> {
        [vec![3 * self.groups, 2], vec![2; self.spatial]].concat()
    }
    fn y(&self) -> Vec<i64> {
        let n = (4 + 2 * self.padding - self.dilation - 1) / self.stride + 1;
        [vec![2, 3 * self.groups], vec![n; self.spatial]].concat()
    }
    fn give(&self, r: &mut Run, transposed: bool) {
        let all = |v: i64| vec![v; self.spatial];
        r.ints("stride", &all(self.stride))
            .ints("padding", &all(self.padding))
            .ints("dilation", &all(self.dilation));
        r.n("transposed", truth(transposed))
            .ints("outputPadding", &all(0))
            .n("groups", self.groups as f64)
            .loose(4.0);
    }
}

fn convolutions(c: &mut Cases) {
    for (spatial, groups, stride, padding, dilation) in
        [(1, 1, 1, 1, 1), (1, 2, 1, 0, 2), (2, 1, 1, 1, 1), (2, 2, 1, 1, 1), (3, 1, 1, 0, 1), (2, 1, 2, 1, 2)]
    {
        let window = move || Window { spatial, groups, stride, padding, dilation };
        c.add("Convolution", F32, move |r| {
            let v = window();
            let (x, w, b) = (r.x("input", &v.x()), r.x("weight", &v.w()), r.x("bias", &[3 * groups]));
            v.give(r, false);
            r.out("output", &v.y(), v.of(&x, &w, &b));
        });
        c.add("ConvolutionBackward", F32, move |r| {
            let v = window();
            let (x, w, g) = (r.x("input", &v.x()), r.x("weight", &v.w()), r.x("gradOutput", &v.y()));
            let zero = vec![0.0; 3 * groups as usize];
            v.give(r, false);
            r.ints("biasSizes", &[3 * groups]).bools("outputMask", &[true; 3]);
            r.out("gradInput", &v.x(), transposed(|x| v.of(x, &w, &zero), x.len(), &g));
            r.out("gradWeight", &v.w(), transposed(|w| v.of(&x, w, &zero), w.len(), &g));
            let (none, flat) = (vec![0.0; x.len()], vec![0.0; w.len()]);
            r.out("gradBias", &[3 * groups], transposed(|b| v.of(&none, &flat, b), zero.len(), &g));
        });
        // The transpose of one is the gradient of the other by its input; nothing is lost where the windows fit.
        if stride == 1 {
            c.add("Convolution", F32, move |r| {
                let v = window();
                let (x, w) = (r.x("input", &v.y()), r.x("weight", &v.w()));
                let zero = vec![0.0; 3 * groups as usize];
                v.give(r, true);
                r.out("output", &v.x(), transposed(|x| v.of(x, &w, &zero), numel(&v.x()), &x));
            });
        }
    }
}
