//! Joining, cutting, repeating, sorting, counting. Most formulas say where an element of the output comes from.

use super::maths::{along, truth};
use super::run::{Run, numel};
use super::{Cases, F32, FLOATS, WHOLE};
use crate::nn::tensor::Dtype;

const D: &[i64] = &[3, 5];

/// The element types that are only moved.
const MOVED: &[Dtype] = &[Dtype::F32, Dtype::Bf16, Dtype::I64, Dtype::Bool];

/// The places of a shape, in order.
pub(super) fn places(dims: &[i64]) -> Vec<Vec<i64>> {
    let mut all = vec![Vec::new()];
    for n in dims {
        all = all.iter().flat_map(|p| (0..*n).map(move |i| [p.clone(), vec![i]].concat())).collect();
    }
    all
}

/// The element of `x` at a place.
pub(super) fn at(x: &[f64], dims: &[i64], place: &[i64]) -> f64 {
    assert_eq!(dims.len(), place.len());
    x[place.iter().zip(dims).fold(0, |i, (p, n)| i * n + p) as usize]
}

/// The output `dims` whose element at `p` is that of `x` at `from(p)`.
fn taken(x: &[f64], dims: &[i64], out: &[i64], from: impl Fn(&[i64]) -> Vec<i64>) -> Vec<f64> {
    places(out).iter().map(|p| at(x, dims, &from(p))).collect()
}

fn any(r: &mut Run, name: &str, dims: &[i64]) -> Vec<f64> {
    match r.dtype {
        Dtype::Bool => r.whole(name, dims, Dtype::Bool, 0, 1),
        d if d.is_int() => r.whole(name, dims, d, -9, 9),
        _ => r.x(name, dims),
    }
}

/// Shape, wanted shape, and where each element comes from.
fn moves(
    c: &mut Cases,
    name: &'static str,
    dims: &'static [i64],
    out: &'static [i64],
    fill: impl Fn(&mut Run) -> &mut Run + 'static,
    from: impl Fn(&[i64]) -> Vec<i64> + 'static,
) {
    c.add(name, MOVED, move |r| {
        let first = if r.has("self") { "self" } else { "x" };
        let x = any(r, first, dims);
        fill(r);
        r.out("out", out, taken(&x, dims, out, &from));
    });
}

pub(super) fn cases(c: &mut Cases) {
    c.add("Stack", FLOATS, |r| {
        let all: Vec<Vec<f64>> = (0..3).map(|_| r.values(15)).collect();
        let given: Vec<(&[i64], Vec<f64>)> = all.iter().map(|v| (D, v.clone())).collect();
        let all = r.list("tensors", &given);
        let want = places(&[3, 3, 5]).iter().map(|p| at(&all[p[1] as usize], D, &[p[0], p[2]])).collect();
        r.n("dim", 1.0).out("out", &[3, 3, 5], want);
    });
    for name in ["SplitWithSize", "SplitTensor"] {
        c.add(name, FLOATS, move |r| {
            let x = r.x("self", D);
            let (a, b) = if name == "SplitTensor" {
                r.n("splitSections", 3.0);
                (3, 2)
            } else {
                r.ints("splitSize", &[1, 4]);
                (1, 4)
            };
            let left = taken(&x, D, &[3, a], <[i64]>::to_vec);
            let right = taken(&x, D, &[3, b], |p| vec![p[0], p[1] + a]);
            r.n("dim", 1.0).outs("out", &[(&[3, a], left), (&[3, b], right)]);
        });
    }
    moves(c, "SliceV2", &[7, 5], &[3, 5], |r| slice(r, &[1], &[6], &[0], &[2]), |p| vec![1 + 2 * p[0], p[1]]);
    moves(c, "SliceV2", &[7, 5], &[7, 2], |r| slice(r, &[-3], &[-1], &[1], &[1]), |p| vec![p[0], p[1] + 2]);
    moves(
        c,
        "SliceV2",
        &[7, 5],
        &[2, 2],
        |r| slice(r, &[1, 0], &[5, 4], &[0, 1], &[3, 2]),
        |p| vec![1 + 3 * p[0], 2 * p[1]],
    );
    moves(c, "Repeat", D, &[2, 6, 5], |r| r.ints("repeats", &[2, 2, 1]), |p| vec![p[1] % 3, p[2]]);
    moves(c, "Expand", &[3, 1], &[2, 3, 4], |r| r.ints("size", &[2, 3, 4]), |p| vec![p[1], 0]);
    moves(c, "Flip", D, D, |r| r.ints("dims", &[1]), |p| vec![p[0], 4 - p[1]]);
    moves(c, "Flip", D, D, |r| r.ints("dims", &[0, 1]), |p| vec![2 - p[0], 4 - p[1]]);
    moves(
        c,
        "Roll",
        D,
        D,
        |r| r.ints("shifts", &[1, -2]).ints("dims", &[0, 1]),
        |p| vec![(p[0] + 2) % 3, (p[1] + 2) % 5],
    );
    moves(
        c,
        "Roll",
        D,
        D,
        |r| r.ints("shifts", &[7]).ints("dims", &[]),
        |p| {
            let flat = (p[0] * 5 + p[1] + 8) % 15;
            vec![flat / 5, flat % 5]
        },
    );
    repeated(c);
    triangles(c);
    made(c);
    sets(c);
    c.add("ConstantPadNd", FLOATS, |r| {
        let x = r.x("self", D);
        r.ints("pad", &[1, 2, 0, 1]).s("value", 2.5);
        let inside = |p: &[i64]| p[0] < 3 && (1..6).contains(&p[1]);
        let one = |p: &Vec<i64>| if inside(p) { at(&x, D, &[p[0], p[1] - 1]) } else { 2.5 };
        r.out("out", &[4, 8], places(&[4, 8]).iter().map(one).collect());
    });
    c.add("UnfoldGrad", FLOATS, |r| {
        // Windows of 3, 2 apart, of a dimension of 7: of each element the sum over the windows that hold it.
        let g = r.x("gradOut", &[2, 3, 3]);
        r.ints("inputSizes", &[2, 7]).n("dim", 1.0).n("size", 3.0).n("step", 2.0);
        let of = |p: &Vec<i64>| -> f64 {
            (0..3)
                .filter(|w| (2 * w..2 * w + 3).contains(&p[1]))
                .map(|w| at(&g, &[2, 3, 3], &[p[0], w, p[1] - 2 * w]))
                .sum()
        };
        r.loose(2.0).out("gradIn", &[2, 7], places(&[2, 7]).iter().map(of).collect());
    });
    c.add("ChannelShuffle", FLOATS, |r| {
        let d = &[2, 6, 2];
        let x = r.x("self", d);
        // [groups, per] read as [per, groups].
        r.n("groups", 2.0).out("out", d, taken(&x, d, d, |p| vec![p[0], p[1] % 2 * 3 + p[1] / 2, p[2]]));
    });
    c.add("ChunkCat", F32, |r| {
        // [3,2] and [4,1] in two chunks of rows each, the first filled up to four rows.
        let (a, b) = (r.values(6), r.values(4));
        let all = r.list("tensors", &[(&[3, 2], a), (&[4, 1], b)]);
        let (a, b) = (&all[0], &all[1]);
        let want = [&a[0..4], &b[0..2], &[a[4], a[5], 0.0, 0.0], &b[2..4]].concat();
        r.n("dim", 0.0).n("numChunks", 2.0).out("out", &[2, 6], want);
    });
}

/// Elements and slices, each several times.
fn repeated(c: &mut Cases) {
    moves(
        c,
        "RepeatInterleaveInt",
        D,
        &[30],
        |r| r.n("repeats", 2.0).n("outputSize", 30.0),
        |p| vec![p[0] / 10, p[0] / 2 % 5],
    );
    moves(
        c,
        "RepeatInterleaveIntWithDim",
        D,
        &[3, 15],
        |r| r.n("repeats", 3.0).n("dim", 1.0).n("outputSize", 15.0),
        |p| vec![p[0], p[1] / 3],
    );
    moves(
        c,
        "RepeatInterleaveWithDim",
        D,
        &[4, 5],
        |r| {
            r.t("repeats", &[3], Dtype::I64, &[2.0, 0.0, 2.0]);
            r.n("dim", 0.0).n("outputSize", 4.0)
        },
        |p| vec![p[0] / 2 * 2, p[1]],
    );
    moves(
        c,
        "RepeatInterleave",
        &[4],
        &[6],
        |r| {
            r.t("repeats", &[4], Dtype::I64, &[1.0, 3.0, 0.0, 2.0]);
            r.n("outputSize", 6.0)
        },
        |p| vec![[0, 1, 1, 1, 3, 3][p[0] as usize]],
    );
    c.add("RepeatInterleaveTensor", WHOLE, |r| {
        r.t("repeats", &[4], r.dtype, &[1.0, 3.0, 0.0, 2.0]);
        r.n("outputSize", 6.0).out_as("out", &[6], Dtype::I64, vec![0.0, 1.0, 1.0, 1.0, 3.0, 3.0]);
    });
}

fn slice<'a>(r: &'a mut Run, starts: &[i64], ends: &[i64], axes: &[i64], steps: &[i64]) -> &'a mut Run {
    r.ints("starts", starts).ints("ends", ends).ints("axes", axes).ints("steps", steps)
}

fn triangles(c: &mut Cases) {
    for diagonal in [-1, 0, 2] {
        for (name, upper) in [("Tril", false), ("InplaceTril", false), ("InplaceTriu", true)] {
            c.add(name, FLOATS, move |r| {
                let d = &[2, 3, 5];
                let at = if r.has("selfRef") { "selfRef" } else { "self" };
                let x = r.x(at, d);
                r.n("diagonal", diagonal as f64);
                let kept = |p: &[i64]| {
                    let above = p[2] - p[1];
                    if upper { above >= diagonal } else { above <= diagonal }
                };
                let want = places(d)
                    .iter()
                    .zip(&x)
                    .map(|(p, v)| if kept(p) { *v } else { 0.0 })
                    .collect::<Vec<f64>>();
                if r.has("out") {
                    r.out("out", d, want)
                } else {
                    r.becomes("selfRef", want)
                };
            });
        }
    }
}

/// Tensors that are made of nothing but numbers.
fn made(c: &mut Cases) {
    c.add("Range", FLOATS, |r| {
        r.s("start", 1.5).s("end", 4.0).s("step", 0.5);
        r.out("out", &[6], vec![1.5, 2.0, 2.5, 3.0, 3.5, 4.0]);
    });
    c.add("Linspace", FLOATS, |r| {
        r.s("start", -1.0).s("end", 2.0).n("steps", 7.0);
        r.out("out", &[7], vec![-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0]);
    });
    c.add("LogSpace", FLOATS, |r| {
        r.s("start", -1.0).s("end", 2.0).n("steps", 4.0).n("base", 4.0);
        r.out("result", &[4], vec![0.25, 1.0, 4.0, 16.0]);
    });
    c.add("Eye", FLOATS, |r| {
        r.n("n", 2.0).n("m", 3.0).out("out", &[2, 3], vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    });
    c.add("OneHot", WHOLE, |r| {
        r.t("self", &[3], r.dtype, &[2.0, 0.0, 3.0]);
        r.t("onValue", &[1], r.dtype, &[5.0]);
        r.t("offValue", &[1], r.dtype, &[1.0]);
        let want = vec![1.0, 1.0, 5.0, 1.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0];
        r.n("numClasses", 4.0).n("axis", -1.0).out("out", &[3, 4], want);
    });
}

/// Sorting, unique values, counting, looking up.
fn sets(c: &mut Cases) {
    for descending in [false, true] {
        let order = move |l: &[f64]| -> Vec<usize> {
            let mut at: Vec<usize> = (0..l.len()).collect();
            at.sort_by(|a, b| if descending { l[*b].total_cmp(&l[*a]) } else { l[*a].total_cmp(&l[*b]) });
            at
        };
        for name in ["Sort", "Argsort"] {
            c.add(name, FLOATS, move |r| {
                let x = r.x("self", D);
                r.n("dim", 0.0).n("descending", truth(descending));
                let ranks = along(&x, D, 0, |l| order(l).iter().map(|i| *i as f64).collect());
                if name == "Argsort" {
                    r.out_as("out", D, Dtype::I64, ranks);
                    return;
                }
                r.n("stable", 1.0).out(
                    "valuesOut",
                    D,
                    along(&x, D, 0, |l| order(l).iter().map(|i| l[*i]).collect()),
                );
                r.out_as("indicesOut", D, Dtype::I64, ranks);
            });
        }
    }
    const X: [f64; 7] = [3.0, 1.0, 3.0, 2.0, 1.0, 3.0, 3.0];
    for name in ["Unique", "Unique2"] {
        c.add(name, &[Dtype::F32, Dtype::I64], move |r| {
            r.t("self", &[7], r.dtype, &X);
            r.n("sorted", 1.0).n("returnInverse", 1.0);
            r.found("valueOut", &[7], r.dtype, &[3], vec![1.0, 2.0, 3.0]);
            r.out_as("inverseOut", &[7], Dtype::I64, vec![2.0, 0.0, 2.0, 1.0, 0.0, 2.0, 2.0]);
            if name == "Unique2" {
                r.n("returnCounts", 1.0).found("countsOut", &[7], Dtype::I64, &[3], vec![2.0, 1.0, 4.0]);
            }
        });
    }
    c.add("UniqueConsecutive", &[Dtype::F32, Dtype::I64], |r| {
        r.t("self", &[7], r.dtype, &[3.0, 3.0, 1.0, 1.0, 1.0, 3.0, 2.0]);
        r.n("returnInverse", 1.0).n("returnCounts", 1.0).n("dim", 1000.0);
        r.found("valueOut", &[7], r.dtype, &[4], vec![3.0, 1.0, 3.0, 2.0]);
        r.out_as("inverseOut", &[7], Dtype::I64, vec![0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 3.0]);
        r.found("countsOut", &[7], Dtype::I64, &[4], vec![2.0, 3.0, 1.0, 1.0]);
    });
    c.add("UniqueDim", &[Dtype::F32, Dtype::I64], |r| {
        r.t("self", &[4, 2], r.dtype, &[2.0, 1.0, 1.0, 5.0, 2.0, 1.0, 1.0, 3.0]);
        r.n("sorted", 1.0).n("returnInverse", 1.0).n("dim", 0.0);
        r.found("valueOut", &[4, 2], r.dtype, &[3, 2], vec![1.0, 3.0, 1.0, 5.0, 2.0, 1.0]);
        r.out_as("inverseOut", &[4], Dtype::I64, vec![2.0, 1.0, 2.0, 0.0]);
        r.found("countsOut", &[4], Dtype::I64, &[3], vec![1.0, 1.0, 2.0]);
    });
    c.add("Bincount", WHOLE, |r| {
        r.t("self", &[5], r.dtype, &[1.0, 3.0, 1.0, 0.0, 1.0]);
        r.n("minlength", 6.0).out_as("out", &[6], Dtype::I64, vec![1.0, 3.0, 0.0, 1.0, 0.0, 0.0]);
    });
    c.add("Bincount", WHOLE, |r| {
        r.t("self", &[5], r.dtype, &[1.0, 3.0, 1.0, 0.0, 1.0]);
        r.t("weights", &[5], Dtype::F32, &[0.5, 1.0, 2.0, 4.0, 8.0]);
        r.n("minlength", 0.0).out_as("out", &[4], Dtype::F32, vec![4.0, 10.5, 0.0, 1.0]);
    });
    c.add("Histc", F32, |r| {
        r.t("self", &[7], r.dtype, &[-3.0, -1.0, -0.25, 0.0, 0.5, 1.0, 2.0]);
        r.n("bins", 4.0).s("min", -1.0).s("max", 1.0).out("out", &[4], vec![1.0, 1.0, 1.0, 2.0]);
    });
    for right in [false, true] {
        for name in ["SearchSorted", "SearchSorteds"] {
            c.add(name, FLOATS, move |r| {
                r.t("sortedSequence", &[5], r.dtype, &[-1.0, 0.5, 0.5, 1.0, 3.0]);
                r.n("outInt32", 0.0).n("right", truth(right));
                let of = |v: f64| if right { [0.0, 3.0, 5.0] } else { [0.0, 1.0, 5.0] }[((v + 2.0) / 2.5) as usize];
                if r.is_scalar("self") {
                    r.s("self", 0.5).out_as("out", &[], Dtype::I64, vec![of(0.5)]);
                } else {
                    let x = r.t("self", &[3], r.dtype, &[-2.0, 0.5, 4.0]);
                    r.out_as("out", &[3], Dtype::I64, x.iter().map(|v| of(*v)).collect());
                }
            });
        }
    }
    for invert in [0.0, 1.0] {
        c.add("IsInTensorScalar", FLOATS, move |r| {
            r.t("element", &[4], r.dtype, &[1.0, 2.5, -1.0, 2.5]);
            r.s("testElement", 2.5).n("invert", invert);
            let want = [0.0, 1.0, 0.0, 1.0].map(|v: f64| (v - invert).abs()).to_vec();
            r.out_as("out", &[4], Dtype::Bool, want);
        });
        c.add("IsInScalarTensor", FLOATS, move |r| {
            r.s("element", 2.5).n("invert", invert);
            r.t("testElements", &[3], r.dtype, &[1.0, 2.5, -1.0]);
            r.out_as("out", &[], Dtype::Bool, vec![1.0 - invert]);
        });
    }
    assert_eq!(numel(D), 15);
}
