//! Random numbers: their generator is the emulator's own, so the tests cover what holds for any generator: bounds, moments,
//! the same numbers for one seed and offset, others for another.

use super::maths::truth;
use super::run::Run;
use super::{Cases, F32};
use crate::nn::tensor::Dtype;

const N: i64 = 4000;

fn seeded(r: &mut Run, seed: i64) {
    if r.has("seedTensor") {
        r.t("seedTensor", &[1], Dtype::I64, &[seed as f64]);
        r.t("offsetTensor", &[1], Dtype::I64, &[8.0]);
        r.n("offset", 4.0);
    } else {
        r.n("seed", seed as f64).n("offset", 12.0);
    }
}

fn moments(v: &[f64]) -> (f64, f64) {
    let mean = v.iter().sum::<f64>() / v.len() as f64;
    (mean, v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64)
}

/// Mean, variance and the share of neighbours that rise, each within a few standard errors.
fn like(v: &[f64], mean: f64, var: f64, discrete: bool) {
    let (m, s) = moments(v);
    let n = v.len() as f64;
    assert!((m - mean).abs() < 5.0 * (var / n).sqrt() + 1e-9, "mean {m}, expected {mean}");
    assert!((s - var).abs() < 0.12 * var + 1e-9, "variance {s}, expected {var}");
    if !discrete {
        let rising = v.windows(2).filter(|w| w[1] > w[0]).count() as f64 / n;
        assert!((rising - 0.5).abs() < 0.04, "{rising} of the neighbours rise");
    }
}

pub(super) fn cases(c: &mut Cases) {
    for name in ["InplaceUniform", "InplaceUniformTensor"] {
        c.add(name, F32, |r| {
            r.t("selfRef", &[N], r.dtype, &vec![9.0; N as usize]);
            seeded(r, 3);
            r.n("from", -1.0).n("to", 2.0).wanted_any("selfRef").check(|all| {
                let v = &all["selfRef"];
                assert!(v.iter().all(|x| (-1.0..2.0).contains(x)));
                like(v, 0.5, 0.75, false);
            });
        });
    }
    for name in ["InplaceNormal", "InplaceNormalTensor"] {
        c.add(name, F32, |r| {
            r.t("selfRef", &[N], r.dtype, &vec![9.0; N as usize]);
            seeded(r, 3);
            r.n("mean", 1.0)
                .n("std", 0.5)
                .wanted_any("selfRef")
                .check(|all| like(&all["selfRef"], 1.0, 0.25, false));
        });
    }
    for name in ["NormalFloatFloat", "NormalFloatTensor", "NormalTensorFloat", "NormalTensorTensor"] {
        c.add(name, F32, |r| {
            let (mean, std) = (r.is_tensor("mean"), r.is_tensor("std"));
            let halves = |a: f64, b: f64| (0..N).map(|i| if i < N / 2 { a } else { b }).collect::<Vec<f64>>();
            if mean {
                r.t("mean", &[N], r.dtype, &halves(1.0, -3.0));
            } else {
                r.n("mean", 1.0);
            }
            if std {
                r.t("std", &[N], r.dtype, &halves(0.5, 2.0));
            } else {
                r.n("std", 0.5);
            }
            seeded(r, 3);
            r.any("out", &[N], Dtype::F32).check(move |all| {
                let (a, b) = all["out"].split_at(N as usize / 2);
                like(a, 1.0, 0.25, false);
                like(b, if mean { -3.0 } else { 1.0 }, if std { 4.0 } else { 0.25 }, false);
            });
        });
    }
    for name in ["InplaceRandom", "InplaceRandomTensor"] {
        c.add(name, &[Dtype::I64, Dtype::F32], |r| {
            r.t("selfRef", &[N], r.dtype, &vec![99.0; N as usize]);
            seeded(r, 3);
            r.n("from", -2.0).n("to", 3.0).wanted_any("selfRef").check(|all| {
                let v = &all["selfRef"];
                assert!(v.iter().all(|x| [-2.0, -1.0, 0.0, 1.0, 2.0].contains(x)));
                like(v, 0.0, 2.0, true);
            });
        });
    }
    c.add("Randperm", &[Dtype::I64], |r| {
        seeded(r, 3);
        r.n("n", 500.0).any("out", &[500], Dtype::I64).check(|all| {
            let mut v = all["out"].clone();
            let rising = v.windows(2).filter(|w| w[1] > w[0]).count();
            assert!((200..300).contains(&rising), "{rising} of 500 rise");
            v.sort_by(f64::total_cmp);
            assert!(v.iter().enumerate().all(|(i, x)| i as f64 == *x), "every number once");
        });
    });
    drawn(c);
    dropped(c);
    chances(c);
    repeats(c);
}

/// Classes by their weights, with and without being put back.
fn drawn(c: &mut Cases) {
    for name in ["Multinomial", "MultinomialTensor"] {
        c.add(name, F32, |r| {
            r.t("self", &[4], r.dtype, &[1.0, 0.0, 3.0, 4.0]);
            seeded(r, 3);
            r.n("numsamples", N as f64).n("replacement", 1.0).any("out", &[N], Dtype::I64).check(|all| {
                let share = |k: f64| all["out"].iter().filter(|v| **v == k).count() as f64 / N as f64;
                for (k, want) in [(0.0, 0.125), (1.0, 0.0), (2.0, 0.375), (3.0, 0.5)] {
                    assert!((share(k) - want).abs() < 0.04, "class {k}: {}", share(k));
                }
            });
        });
        c.add(name, F32, |r| {
            r.t("self", &[2, 4], r.dtype, &[1.0, 0.0, 3.0, 4.0, 1.0, 1.0, 1.0, 1.0]);
            seeded(r, 3);
            r.n("numsamples", 3.0).n("replacement", 0.0).any("out", &[2, 3], Dtype::I64).check(|all| {
                let mut first = all["out"][..3].to_vec();
                first.sort_by(f64::total_cmp);
                assert_eq!(first, [0.0, 2.0, 3.0], "all that have a weight, each once");
                let mut second = all["out"][3..].to_vec();
                second.sort_by(f64::total_cmp);
                second.dedup();
                assert_eq!(second.len(), 3);
            });
        });
    }
}

fn bits(bytes: &[f64]) -> Vec<bool> {
    bytes.iter().flat_map(|b| (0..8).map(move |i| *b as u8 >> i & 1 == 1)).collect()
}

/// Masks of bits, ones for what is kept.
fn dropped(c: &mut Cases) {
    for name in ["DropoutGenMask", "DropoutGenMaskV2", "DropoutGenMaskV2Tensor"] {
        c.add(name, F32, |r| {
            seeded(r, 3);
            r.ints("shape", &[N]).n("prob", 0.25).any("out", &[N / 8], Dtype::U8).check(|all| {
                let kept = bits(&all["out"]).iter().filter(|b| **b).count() as f64 / N as f64;
                assert!((kept - 0.75).abs() < 0.04, "{kept} are kept");
            });
        });
    }
    c.add("DropoutDoMask", super::FLOATS, |r| {
        let x = r.x("self", &[16]);
        r.t("mask", &[2], Dtype::U8, &[0b0101_0011 as f64, 0b1000_0001 as f64]);
        let kept = |i: usize| [0, 1, 4, 6, 8, 15].contains(&i);
        r.n("prob", 0.25).out("out", &[16], (0..16).map(|i| truth(kept(i)) * x[i] / 0.75).collect());
    });
    c.add("DropoutV3", F32, |r| {
        let x: Vec<f64> = (0..N).map(|i| 1.0 + (i % 7) as f64).collect();
        r.t("input", &[N], r.dtype, &x);
        seeded(r, 3);
        r.n("p", 0.25).any("out", &[N], Dtype::F32).any("maskOut", &[N / 8], Dtype::U8).check(move |all| {
            let kept = bits(&all["maskOut"]);
            for ((y, x), kept) in all["out"].iter().zip(&x).zip(&kept) {
                let want = truth(*kept) * x / 0.75;
                assert!((y - want).abs() < 1e-5, "{y}, wanted {want}");
            }
            let share = kept.iter().filter(|b| **b).count() as f64 / N as f64;
            assert!((share - 0.75).abs() < 0.04, "{share} are kept");
        });
    });
}

fn chances(c: &mut Cases) {
    for name in ["InplaceBernoulli", "InplaceBernoulliTensor", "Bernoulli", "BernoulliTensor"] {
        c.add(name, F32, |r| {
            let place = r.has("selfRef");
            r.t(if place { "selfRef" } else { "self" }, &[N], r.dtype, &vec![0.5; N as usize]);
            if r.is_scalar("prob") {
                r.s("prob", 0.25);
            } else {
                r.t("prob", &[N], r.dtype, &vec![0.25; N as usize]);
            }
            seeded(r, 3);
            if place {
                r.wanted_any("selfRef");
            } else {
                r.any("out", &[N], Dtype::F32);
            }
            r.check(move |all| {
                let v = &all[if place { "selfRef" } else { "out" }];
                assert!(v.iter().all(|x| *x == 0.0 || *x == 1.0));
                like(v, 0.25, 0.1875, true);
            });
        });
    }
}

/// One seed and offset give one sequence, another seed another, whether they come as numbers or as tensors.
fn repeats(c: &mut Cases) {
    use std::cell::RefCell;
    use std::rc::Rc;
    let first: Rc<RefCell<Option<Vec<f64>>>> = Rc::default();
    for (name, seed, same) in
        [("InplaceUniform", 3, true), ("InplaceUniformTensor", 3, true), ("InplaceUniform", 4, false)]
    {
        let first = first.clone();
        c.add(name, F32, move |r| {
            r.x("selfRef", &[64]);
            seeded(r, seed);
            let first = first.clone();
            r.n("from", 0.0).n("to", 1.0).wanted_any("selfRef").check(move |all| {
                let known = first.borrow_mut().get_or_insert_with(|| all["selfRef"].clone()).clone();
                assert_eq!(known == all["selfRef"], same, "seed {seed}");
            });
        });
    }
}
