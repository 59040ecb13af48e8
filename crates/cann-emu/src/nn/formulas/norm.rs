//! Norms by row, by group, by channel.

use super::maths::{along, gradient, map, zip};
use super::run::{Run, rounded};
use super::{Cases, F32, FLOATS};
use crate::nn::tensor::Dtype;

const EPS: f64 = 0.0078125;

/// Each row of 5 by its root mean square.
fn rms(x: &[f64], gamma: &[f64]) -> Vec<f64> {
    let size = |r: &[f64]| (r.iter().map(|v| v * v).sum::<f64>() / 5.0 + EPS).sqrt();
    x.chunks(5).flat_map(|r| zip(r, gamma, |v, g| v * g / size(r))).collect()
}

fn rstd(x: &[f64]) -> Vec<f64> {
    x.chunks(5).map(|r| 1.0 / (r.iter().map(|v| v * v).sum::<f64>() / 5.0 + EPS).sqrt()).collect()
}

fn mean(v: &[f64]) -> f64 {
    v.iter().sum::<f64>() / v.len() as f64
}

fn variance(v: &[f64]) -> f64 {
    mean(&map(v, |x| x * x)) - mean(v).powi(2)
}

pub(super) fn cases(c: &mut Cases) {
    c.add("GemmaRmsNorm", FLOATS, |r| {
        let (x, g) = (r.x("x", &[3, 5]), r.x("gamma", &[5]));
        r.n("epsilon", EPS).loose(2.0).out("yOut", &[3, 5], rms(&x, &map(&g, |g| 1.0 + g)));
        r.out_as("rstdOut", &[3, 1], Dtype::F32, rstd(&x));
    });
    for name in ["AddRmsNorm", "InplaceAddRmsNorm", "AddRmsNormCast"] {
        c.add(name, FLOATS, move |r| {
            let place = name.starts_with("Inplace");
            let (a, b) = if place { ("x1Ref", "x2Ref") } else { ("x1", "x2") };
            let (x, y, g) = (r.x(a, &[3, 5]), r.x(b, &[3, 5]), r.x("gamma", &[5]));
            let sum = rounded(&zip(&x, &y, |a, b| a + b), r.dtype);
            let want = rms(&sum, &g);
            r.n("epsilon", EPS).loose(2.0).out_as("rstdOut", &[3, 1], Dtype::F32, rstd(&sum));
            if place {
                r.becomes(a, want).becomes(b, sum);
            } else if name == "AddRmsNorm" {
                r.out("yOut", &[3, 5], want).out("xOut", &[3, 5], sum);
            } else {
                r.out_as("y1Out", &[3, 5], Dtype::F32, want.clone());
                r.out("y2Out", &[3, 5], want).out("xOut", &[3, 5], sum);
            }
        });
    }
    c.add("FastLayerNorm", FLOATS, |r| {
        let (x, w, b) = (r.x("input", &[3, 5]), r.x("weightOptional", &[5]), r.x("biasOptional", &[5]));
        r.ints("normalizedShape", &[5]).n("eps", EPS).loose(3.0);
        let scale = |l: &[f64]| 1.0 / (variance(l) + EPS).sqrt();
        let y =
            along(&x, &[3, 5], 1, |l| (0..5).map(|i| (l[i] - mean(l)) * scale(l) * w[i] + b[i]).collect());
        r.out("out", &[3, 5], y).out("meanOutOptional", &[3, 1], x.chunks(5).map(mean).collect());
        r.out("rstdOutOptional", &[3, 1], x.chunks(5).map(scale).collect());
    });
    groups(c);
    batches(c);
    shares(c);
}

/// `[2,6,3]` in groups of two channels.
fn by_group(x: &[f64], w: &[f64], b: &[f64]) -> Vec<f64> {
    let all = x.chunks(6).enumerate().flat_map(|(g, part)| {
        let scale = 1.0 / (variance(part) + EPS).sqrt();
        (0..6).map(move |i| {
            let ch = g % 3 * 2 + i / 3;
            (part[i] - mean(part)) * scale * w[ch] + b[ch]
        })
    });
    all.collect()
}

fn groups(c: &mut Cases) {
    const D: &[i64] = &[2, 6, 3];
    let sizes = |r: &mut Run| {
        r.n("N", 2.0).n("C", 6.0).n("HxW", 3.0).n("group", 3.0).loose(4.0);
    };
    let means = |x: &[f64]| x.chunks(6).map(mean).collect::<Vec<f64>>();
    let scales = |x: &[f64]| x.chunks(6).map(|p| 1.0 / (variance(p) + EPS).sqrt()).collect::<Vec<f64>>();
    c.add("GroupNorm", FLOATS, move |r| {
        let (x, w, b) = (r.x("self", D), r.x("gamma", &[6]), r.x("beta", &[6]));
        sizes(r);
        r.n("eps", EPS).out("out", D, by_group(&x, &w, &b));
        r.out("meanOut", &[2, 3], means(&x)).out("rstdOut", &[2, 3], scales(&x));
    });
    c.add("GroupNormBackward", F32, move |r| {
        let (x, w, g) = (r.x("input", D), r.x("gamma", &[6]), r.x("gradOut", D));
        r.t("mean", &[2, 3], r.dtype, &means(&x));
        r.t("rstd", &[2, 3], r.dtype, &scales(&x));
        sizes(r);
        let b = vec![0.0; 6];
        r.bools("outputMask", &[true; 3]);
        r.out("gradInput", D, gradient(|x| by_group(x, &w, &b), &x, &g));
        r.out("gradGammaOut", &[6], gradient(|w| by_group(&x, w, &b), &w, &g));
        r.out("gradBetaOut", &[6], gradient(|b| by_group(&x, &w, b), &b, &g));
    });
}

const X: &[i64] = &[3, 2, 2, 2];

/// The values of a channel.
fn channel(x: &[f64], ch: usize) -> Vec<f64> {
    (0..24).filter(|i| i / 4 % 2 == ch).map(|i| x[i]).collect()
}

fn by(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    (0..2).map(|ch| f(&channel(x, ch))).collect()
}

fn normal(x: &[f64], mean: &[f64], scale: &[f64], w: &[f64], b: &[f64]) -> Vec<f64> {
    let ch = |i: usize| i / 4 % 2;
    (0..24).map(|i| (x[i] - mean[ch(i)]) * scale[ch(i)] * w[ch(i)] + b[ch(i)]).collect()
}

fn scale(v: &[f64]) -> f64 {
    1.0 / (variance(v) + EPS).sqrt()
}

/// Normalisation by channel over the batch, in training and not.
fn batches(c: &mut Cases) {
    for training in [true, false] {
        let of = move |x: &[f64], m: &[f64], v: &[f64], w: &[f64], b: &[f64]| {
            if training {
                return normal(x, &by(x, mean), &by(x, scale), w, b);
            }
            normal(x, m, &map(v, |v| 1.0 / (v + EPS).sqrt()), w, b)
        };
        c.add("BatchNorm", FLOATS, move |r| {
            let (x, w, b) = (r.x("input", X), r.x("weight", &[2]), r.x("bias", &[2]));
            let (m, v) = (r.x("runningMean", &[2]), r.within("runningVar", &[2], 0.5, 2.0));
            r.n("training", f64::from(u8::from(training))).n("momentum", 0.25).n("eps", EPS).loose(4.0);
            r.out("output", X, of(&x, &m, &v, &w, &b));
            if training {
                r.out("saveMean", &[2], by(&x, mean)).out("saveInvstd", &[2], by(&x, scale));
                r.becomes("runningMean", zip(&m, &by(&x, mean), |o, n| 0.75 * o + 0.25 * n));
                // The running one is that of a sample.
                let open = by(&x, |v| variance(v) * 12.0 / 11.0);
                r.becomes("runningVar", zip(&v, &open, |o, n| 0.75 * o + 0.25 * n));
            }
        });
        c.add("BatchNormBackward", F32, move |r| {
            let (x, w, g) = (r.x("input", X), r.x("weight", &[2]), r.x("gradOut", X));
            let (m, v) = (r.x("runningMean", &[2]), r.within("runningVar", &[2], 0.5, 2.0));
            if training {
                r.t("saveMean", &[2], Dtype::F32, &by(&x, mean));
                r.t("saveInvstd", &[2], Dtype::F32, &by(&x, scale));
            }
            r.n("training", f64::from(u8::from(training)))
                .n("eps", EPS)
                .bools("outputMask", &[true; 3])
                .loose(10.0);
            let b = [0.0; 2];
            r.out("gradInput", X, gradient(|x| of(x, &m, &v, &w, &b), &x, &g));
            r.out("gradWeight", &[2], gradient(|w| of(&x, &m, &v, w, &b), &w, &g));
            r.out("gradBias", &[2], gradient(|b| of(&x, &m, &v, &w, b), &b, &g));
        });
    }
}

/// The parts that ranks do each on their share, and the part that joins them.
fn shares(c: &mut Cases) {
    c.add("BatchNormReduce", FLOATS, |r| {
        let x = r.x("x", X);
        r.loose(4.0).out_as("sum", &[2], Dtype::F32, by(&x, |v| v.iter().sum()));
        r.out_as("squareSum", &[2], Dtype::F32, by(&x, |v| v.iter().map(|x| x * x).sum()));
    });
    c.add("BatchNormStats", FLOATS, |r| {
        let x = r.x("input", X);
        r.n("eps", EPS).loose(4.0).out_as("mean", &[2], Dtype::F32, by(&x, mean));
        r.out_as("invstd", &[2], Dtype::F32, by(&x, scale));
    });
    // Two ranks with 12 and 4 elements of each channel, and the statistics of all 16.
    let parts =
        |r: &mut Run| -> [Vec<Vec<f64>>; 2] { std::array::from_fn(|_| vec![r.values(12), r.values(4)]) };
    let joined = |ch: &[Vec<f64>]| ch.concat();
    let running = |r: &mut Run, names: [&'static str; 2], all: &[Vec<f64>; 2]| {
        let (m, v) = (r.x(names[0], &[2]), r.within(names[1], &[2], 0.5, 2.0));
        r.n("momentum", 0.25).n("eps", EPS).loose(10.0);
        let of = |f: &dyn Fn(&[f64]) -> f64| all.iter().map(|c| f(c)).collect::<Vec<f64>>();
        r.becomes(names[0], zip(&m, &of(&mean), |o, n| 0.75 * o + 0.25 * n));
        r.becomes(names[1], zip(&v, &of(&|c| variance(c) * 16.0 / 15.0), |o, n| 0.75 * o + 0.25 * n));
        (of(&mean), of(&scale))
    };
    c.add("BatchNormGatherStatsWithCounts", F32, move |r| {
        let p = parts(r);
        let table = |f: &dyn Fn(&[f64]) -> f64| vec![f(&p[0][0]), f(&p[1][0]), f(&p[0][1]), f(&p[1][1])];
        r.x("input", X);
        r.t("mean", &[2, 2], Dtype::F32, &table(&mean));
        r.t("invstd", &[2, 2], Dtype::F32, &table(&scale));
        r.t("counts", &[2], Dtype::F32, &[12.0, 4.0]);
        let (m, s) = running(r, ["runningMean", "runningVar"], &[joined(&p[0]), joined(&p[1])]);
        r.out("meanAll", &[2], m).out("invstdAll", &[2], s);
    });
    c.add("SyncBatchNormGatherStats", F32, move |r| {
        let p = parts(r);
        let table = |f: &dyn Fn(&[f64]) -> f64| vec![f(&p[0][0]), f(&p[1][0]), f(&p[0][1]), f(&p[1][1])];
        r.t("totalSum", &[2, 2], Dtype::F32, &table(&|v| v.iter().sum()));
        r.t("totalSquareSum", &[2, 2], Dtype::F32, &table(&|v| v.iter().map(|x| x * x).sum()));
        r.t("sampleCount", &[2], Dtype::I32, &[12.0, 4.0]);
        let (m, s) = running(r, ["mean", "variance"], &[joined(&p[0]), joined(&p[1])]);
        r.out("batchMean", &[2], m).out("batchInvstd", &[2], s);
    });
    let element = |r: &mut Run| {
        let (x, w) = (r.x("input", X), r.x("weight", &[2]));
        (x, w, r.x("mean", &[2]), r.within("invstd", &[2], 0.5, 2.0))
    };
    c.add("BatchNormElemt", FLOATS, move |r| {
        let (x, w, m, s) = element(r);
        let b = r.x("bias", &[2]);
        r.n("eps", EPS).loose(2.0).out("output", X, normal(&x, &m, &s, &w, &b));
    });
    c.add("BatchNormReduceBackward", F32, move |r| {
        let (x, _, m, s) = element(r);
        let g = r.x("gradOut", X);
        r.n("inputG", 1.0).n("weightG", 1.0).n("biasG", 1.0).loose(4.0);
        let moved: Vec<f64> = (0..24).map(|i| g[i] * (x[i] - m[i / 4 % 2])).collect();
        let (dy, dy_x) = (by(&g, |v| v.iter().sum()), by(&moved, |v| v.iter().sum()));
        r.out("gradWeight", &[2], zip(&dy_x, &s, |d, s| d * s)).out("gradBias", &[2], dy.clone());
        r.out("sumDy", &[2], dy).out("sumDyXmu", &[2], dy_x);
    });
    c.add("BatchNormElemtBackward", F32, |r| {
        // With the sums of one rank alone it is the gradient of the whole.
        let (x, w, g) = (r.x("input", X), r.x("weight", &[2]), r.x("gradOut", X));
        let (m, s) =
            (r.t("mean", &[2], Dtype::F32, &by(&x, mean)), r.t("invstd", &[2], Dtype::F32, &by(&x, scale)));
        assert_eq!(s.len(), 2);
        let moved: Vec<f64> = (0..24).map(|i| g[i] * (x[i] - m[i / 4 % 2])).collect();
        r.t("sumDy", &[2], Dtype::F32, &by(&g, |v| v.iter().sum()));
        r.t("sumDyXmu", &[2], Dtype::F32, &by(&moved, |v| v.iter().sum()));
        r.t("counter", &[1], Dtype::I32, &[12.0]);
        let of = |x: &[f64]| normal(x, &by(x, mean), &by(x, scale), &w, &[0.0; 2]);
        r.loose(10.0).out("gradInput", X, gradient(of, &x, &g));
    });
}
