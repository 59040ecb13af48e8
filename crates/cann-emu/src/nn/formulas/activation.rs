//! Activations: the function, and its slope by differences.

use super::maths::{along, erf, gradient, map, phi, sigmoid, slope, softplus, truth, zip};
use super::{Cases, F32, FLOATS, WIDE};

const D: &[i64] = &[3, 5];

type Named = &'static [(&'static str, f64)];

/// Name, scalars, whether there is a form in place, the function of an element and the scalars.
const PLAIN: &[(&str, Named, bool, fn(f64, &[f64]) -> f64)] = &[
    ("Elu", &[("alpha", 0.75), ("scale", 1.25), ("inputScale", 0.5)], true, elu),
    ("Celu", &[("alpha", 0.75)], true, |x, s| if x > 0.0 { x } else { s[0] * ((x / s[0]).exp() - 1.0) }),
    ("Selu", &[], true, |x, _| {
        1.050_700_987_355_480_5 * if x > 0.0 { x } else { 1.673_263_242_354_377_2 * (x.exp() - 1.0) }
    }),
    ("LeakyRelu", &[("negativeSlope", 0.125)], true, |x, s| x.max(s[0] * x)),
    ("Threshold", &[("threshold", 0.25), ("value", 3.0)], true, |x, s| if x > s[0] { x } else { s[1] }),
    ("Hardtanh", &[("clipValueMin", -0.5), ("clipValueMax", 0.75)], true, |x, s| x.min(s[1]).max(s[0])),
    ("Hardsigmoid", &[], true, |x, _| ((x + 3.0) / 6.0).clamp(0.0, 1.0)),
    ("Hardswish", &[], true, |x, _| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
    ("Hardshrink", &[("lambd", 0.5)], false, |x, s| if x >= -s[0] && x <= s[0] { 0.0 } else { x }),
    ("Softshrink", &[("lambd", 0.5)], false, |x, s| x.signum() * (x.abs() - s[0]).max(0.0)),
    ("Softplus", &[("beta", 2.0), ("threshold", 3.0)], false, soft),
    ("Mish", &[], true, mish),
    ("LogSigmoid", &[], false, |x, _| sigmoid(x).ln()),
    ("FastGelu", &[], false, fast),
];

fn elu(x: f64, s: &[f64]) -> f64 {
    s[1] * if x > 0.0 { x } else { s[0] * ((x * s[2]).exp() - 1.0) }
}
fn mish(x: f64, _: &[f64]) -> f64 {
    x * softplus(x).tanh()
}
/// x·σ(1.702·x), as its page has it.
fn fast(x: f64, _: &[f64]) -> f64 {
    x * sigmoid(1.702 * x)
}
fn soft(x: f64, s: &[f64]) -> f64 {
    if x * s[0] > s[1] { x } else { softplus(x * s[0]) / s[0] }
}
fn gelu(x: f64) -> f64 {
    x * phi(x)
}
fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

/// Name, scalars, the output's name, the function whose slope it is.
const SLOPES: &[(&str, Named, &str, fn(f64, &[f64]) -> f64)] = &[
    ("LeakyReluBackward", &[("negativeSlope", 0.125)], "out", |x, s| x.max(s[0] * x)),
    ("ThresholdBackward", &[("threshold", 0.25)], "out", |x, s| if x > s[0] { x } else { 3.0 }),
    ("HardtanhBackward", &[("min", -0.5), ("max", 0.75)], "out", |x, s| x.min(s[1]).max(s[0])),
    ("HardsigmoidBackward", &[], "out", |x, _| ((x + 3.0) / 6.0).clamp(0.0, 1.0)),
    ("HardswishBackward", &[], "out", |x, _| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
    ("HardswishBackwardV2", &[], "out", |x, _| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
    ("HardshrinkBackward", &[("lambd", 0.5)], "gradInput", |x, s| if x.abs() <= s[0] { 0.0 } else { x }),
    ("SoftshrinkBackward", &[("lambda", 0.5)], "gradInput", |x, s| x.signum() * (x.abs() - s[0]).max(0.0)),
    ("SoftplusBackward", &[("beta", 2.0), ("threshold", 3.0)], "gradInput", soft),
    ("MishBackward", &[], "gradInput", mish),
    ("FastGeluBackward", &[], "gradInput", fast),
    ("LogSigmoidBackward", &[], "gradInput", |x, _| sigmoid(x).ln()),
];

pub(super) fn cases(c: &mut Cases) {
    for (name, scalars, in_place, f) in PLAIN {
        let numbers: Vec<f64> = scalars.iter().map(|s| s.1).collect();
        let wide = numbers.clone();
        c.add(name, FLOATS, move |r| {
            let x = r.within("self", D, -4.0, 4.0);
            scalars.iter().for_each(|(n, v)| {
                r.s(n, *v);
            });
            r.out("out", D, map(&x, |x| f(x, &wide)));
        });
        if *in_place {
            c.add(&format!("Inplace{name}"), FLOATS, move |r| {
                let at = if r.has("selfRef") { "selfRef" } else { "self" };
                let x = r.within(at, D, -4.0, 4.0);
                scalars.iter().for_each(|(n, v)| {
                    r.s(n, *v);
                });
                r.becomes(at, map(&x, |x| f(x, &numbers)));
            });
        }
    }
    for (name, scalars, out, f) in SLOPES {
        let numbers: Vec<f64> = scalars.iter().map(|s| s.1).collect();
        c.add(name, FLOATS, move |r| {
            // No kink closer than the differences reach.
            let x = r.t("self", D, r.dtype, &(0..15).map(|i| f64::from(i) * 0.53 - 3.7).collect::<Vec<_>>());
            let g = r.x("gradOutput", D);
            scalars.iter().for_each(|(n, v)| {
                r.s(n, *v);
            });
            r.loose(2.0).out(out, D, zip(&g, &x, |g, x| g * slope(|x| f(x, &numbers), x)));
        });
    }
    // By the result of the function.
    c.add("SigmoidBackward", FLOATS, |r| {
        let (g, y) = (r.x("gradOutput", D), r.within("output", D, 0.1, 0.9));
        r.out("gradInput", D, zip(&g, &y, |g, y| g * slope(sigmoid, (y / (1.0 - y)).ln())));
    });
    c.add("TanhBackward", FLOATS, |r| {
        let (g, y) = (r.x("gradOutput", D), r.within("output", D, -0.9, 0.9));
        r.out("gradInput", D, zip(&g, &y, |g, y| g * slope(f64::tanh, y.atanh())));
    });
    for result in [false, true] {
        c.add("EluBackward", FLOATS, move |r| {
            let s = [0.75, 1.25, 0.5];
            let given = r.within("selfOrResult", D, -0.8, 2.0);
            let x = map(&given, |v| {
                if !result {
                    v
                } else if v > 0.0 {
                    v / s[1]
                } else {
                    (v / (s[1] * s[0]) + 1.0).ln() / s[2]
                }
            });
            let g = r.x("gradOutput", D);
            r.s("alpha", s[0]).s("scale", s[1]).s("inputScale", s[2]).n("isResult", truth(result));
            // Apart from the kink, where one side's slope is wanted.
            let by =
                |x: f64| if x > 0.0 { s[1] } else { slope(|x| s[1] * s[0] * ((x * s[2]).exp() - 1.0), x) };
            r.loose(2.0).out("gradInput", D, zip(&g, &x, |g, x| g * by(x)));
        });
    }
    for approximate in [0, 1] {
        let f = if approximate == 1 { gelu_tanh } else { gelu };
        c.add("GeluV2", FLOATS, move |r| {
            let x = r.x("x", D);
            r.n("approximate", f64::from(approximate)).out("y", D, map(&x, f));
        });
        c.add("GeluBackwardV2", FLOATS, move |r| {
            let (g, x) = (r.x("gradOutput", D), r.x("self", D));
            r.text("approximate", if approximate == 1 { "tanh" } else { "none" });
            r.out("gradInput", D, zip(&g, &x, |g, x| g * slope(f, x)));
        });
    }
    c.add("LogSigmoidForward", FLOATS, |r| {
        let x = r.x("self", D);
        r.out("out", D, map(&x, |x| sigmoid(x).ln())).out("buffer", D, map(&x, |x| (-x.abs()).exp()));
    });
    c.add("Prelu", FLOATS, |r| {
        let d = &[2, 3, 4];
        let (x, w) = (r.x("self", d), r.x("weight", &[3]));
        r.out("out", d, prelu(&x, &w));
    });
    c.add("PreluBackward", WIDE, |r| {
        let d = &[2, 3, 4];
        let (x, w, g) = (r.x("self", d), r.x("weight", &[3]), r.x("gradOutput", d));
        r.out("gradInput", d, gradient(|x| prelu(x, &w), &x, &g));
        r.out("gradWeight", &[3], gradient(|w| prelu(&x, w), &w, &g));
    });
    rrelu(c);
    c.add("Logit", FLOATS, |r| {
        let x = r.within("input", D, 0.0, 1.0);
        r.n("eps", 0.125).out("out", D, map(&x, |x| logit(x, 0.125)));
    });
    c.add("LogitGrad", FLOATS, |r| {
        let x = r.t("x", D, r.dtype, &(0..15).map(|i| 0.03 + f64::from(i) * 0.0625).collect::<Vec<_>>());
        let g = r.x("dy", D);
        r.n("eps", 0.125).out("out", D, zip(&g, &x, |g, x| g * slope(|x| logit(x, 0.125), x)));
    });
    gated(c);
}

fn logit(x: f64, eps: f64) -> f64 {
    let x = x.clamp(eps, 1.0 - eps);
    2.0 * (2.0 * x - 1.0).atanh()
}

fn prelu(x: &[f64], w: &[f64]) -> Vec<f64> {
    (0..24).map(|i| if x[i] > 0.0 { x[i] } else { w[i / 4 % 3] * x[i] }).collect()
}

fn rrelu(c: &mut Cases) {
    for name in ["RReluWithNoise", "InplaceRReluWithNoise"] {
        for training in [false, true] {
            c.add(name, F32, move |r| {
                let x = r.x("self", D);
                r.s("lower", 0.125).s("upper", 0.375).n("training", truth(training)).n("seed", 7.0);
                let noise = r.x("noise", D);
                if !training {
                    let y = map(&x, |x| if x > 0.0 { x } else { 0.25 * x });
                    if r.has("out") {
                        r.out("out", D, y)
                    } else {
                        r.becomes("self", y)
                    };
                    return;
                }
                if r.has("out") {
                    r.any("out", D, r.dtype);
                } else {
                    r.wanted_any("self");
                }
                let (y, given) = (if r.has("out") { "out" } else { "self" }, x);
                r.wanted_any("noise");
                r.check(move |all| {
                    assert_ne!(all["noise"], noise);
                    let mut slopes = std::collections::BTreeSet::new();
                    for ((x, y), s) in given.iter().zip(&all[y]).zip(&all["noise"]) {
                        assert!((y - x * s).abs() < 1e-6, "{y} is not {x} times {s}");
                        if *x > 0.0 {
                            assert_eq!(*s, 1.0);
                        } else {
                            assert!((0.125..=0.375).contains(s), "{s}");
                            slopes.insert(s.to_bits());
                        }
                    }
                    assert!(slopes.len() > 1, "the slopes are drawn");
                });
            });
        }
    }
}

/// The halves of the last dimension through `f`.
fn halves(x: &[f64], d: &[i64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    along(x, d, d.len() - 1, |line| {
        let h = line.len() / 2;
        (0..h).map(|i| f(line[i], line[h + i])).collect()
    })
}

fn gated(c: &mut Cases) {
    const X: &[i64] = &[3, 6];
    const Y: &[i64] = &[3, 3];
    c.add("Glu", FLOATS, |r| {
        let x = r.x("self", X);
        r.n("dim", -1.0).out("out", Y, halves(&x, X, |a, b| a * sigmoid(b)));
    });
    c.add("Glu", FLOATS, |r| {
        let x = r.x("self", &[4, 3]);
        let y = along(&x, &[4, 3], 0, |l| vec![l[0] * sigmoid(l[2]), l[1] * sigmoid(l[3])]);
        r.n("dim", 0.0).out("out", &[2, 3], y);
    });
    c.add("GluBackward", FLOATS, |r| {
        let (x, g) = (r.x("self", X), r.x("gradOut", Y));
        let dx = gradient(|x| halves(x, X, |a, b| a * sigmoid(b)), &x, &g);
        r.n("dim", -1.0).loose(2.0).out("out", X, dx);
    });
    for (name, left) in [("GeGlu", false), ("GeGluV3", false), ("GeGluV3", true)] {
        for approximate in [0, 1] {
            let act = if approximate == 1 { gelu_tanh } else { gelu };
            let f = move |a, b| if left { act(a) * b } else { a * act(b) };
            c.add(name, FLOATS, move |r| {
                let x = r.x("self", X);
                r.n("dim", -1.0).n("approximate", f64::from(approximate));
                if r.has("activateLeft") {
                    r.n("activateLeft", truth(left));
                }
                r.out("out", Y, halves(&x, X, f));
                r.out("outGelu", Y, halves(&x, X, |a, b| act(if left { a } else { b })));
            });
            let backward = name.to_owned() + "Backward";
            c.add(&backward, FLOATS, move |r| {
                let (x, g) = (r.x("self", X), r.x("gradOutput", Y));
                r.n("dim", -1.0).n("approximate", f64::from(approximate));
                if r.has("activateLeft") {
                    r.n("activateLeft", truth(left));
                }
                let h = halves(&x, X, |a, b| act(if left { a } else { b }));
                r.t("gelu", Y, r.dtype, &h);
                r.loose(2.0).out("gradInput", X, gradient(|x| halves(x, X, f), &x, &g));
            });
        }
    }
    // Known values hold the formulas' own special functions to the ground.
    assert!((erf(1.0) - 0.842_700_792_949_714_9).abs() < 1e-12);
}
