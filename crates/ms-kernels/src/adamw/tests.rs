//! Every instance against the reference, the goldens and each other.

use half::bf16;
use ms_testing::{assert_close, golden, read_golden};

use super::{Hyper, reference, step};
use crate::trial::{cpus, random, same_everywhere};
use crate::{Cpu, Element, Error};

fn numbers(text: &str) -> Vec<f64> {
    text.trim_matches(['[', ']', '(', ')']).split(',').map(|v| v.trim().parse().unwrap()).collect()
}

#[test]
fn pytorch_goldens_of_five_steps_are_met() {
    let path = golden("ops/adamw.safetensors");
    let (g, meta) = read_golden(&path);
    let (lrs, betas) = (numbers(&meta["lr"]), numbers(&meta["betas"]));
    let (eps, decay) = (meta["eps"].parse().unwrap(), meta["weight_decay"].parse::<f64>().unwrap());
    for cpu in cpus(&[1]) {
        for (which, weight_decay) in [(0, decay), (1, 0.0)] {
            let mut p = g[&format!("p{which}.init")].f32();
            let (mut m, mut v) = (vec![0f32; p.len()], vec![0f32; p.len()]);
            for t in 1..=5u64 {
                let gradient = g[&format!("step{t}.g{which}")].f32();
                let clip = g[&format!("step{t}.clip_coeff")].values[0] as f32;
                let lr = lrs[(t as usize - 1).min(lrs.len() - 1)];
                let hyper = Hyper { lr, beta1: betas[0], beta2: betas[1], eps, weight_decay, step: t };
                step(&cpu, &mut p, &mut m, &mut v, &gradient, clip.min(1.0), None, &hyper).unwrap();
                let want = |name: &str| &g[&format!("step{t}.{name}{which}")].values;
                assert_close(&format!("p{which} after step {t}"), &p, want("p"), 1e-5, 1e-6);
                if t == 1 || t == 5 {
                    assert_close("m", &m, want("m"), 1e-5, 1e-8);
                    assert_close("v", &v, want("v"), 1e-5, 1e-8);
                    assert_close("p f64", &p, &g[&format!("step{t}.p{which}_f64")].values, 1e-5, 1e-6);
                }
            }
        }
    }
}

#[test]
fn every_instance_meets_the_formula_and_the_model_gets_rounded_weights() {
    let len = 40_003;
    let hyper = Hyper { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 3 };
    let (p0, m0, g) = (random::<f32>(len, 1), random::<f32>(len, 2), random::<f32>(len, 3));
    let v0: Vec<f32> = random::<f32>(len, 4).iter().map(|v| v * v).collect();
    let (p, m, v, model) = same_everywhere("adamw", |cpu| {
        let (mut p, mut m, mut v) = (p0.clone(), m0.clone(), v0.clone());
        let mut model = vec![bf16::ZERO; len];
        step(cpu, &mut p, &mut m, &mut v, &g, 0.5, Some(&mut model), &hyper).unwrap();
        let (mut p2, mut m2, mut v2) = (p0.clone(), m0.clone(), v0.clone());
        step(cpu, &mut p2, &mut m2, &mut v2, &g, 0.5, None, &hyper).unwrap();
        assert!(p == p2 && m == m2 && v == v2, "the model's copy has no effect else");
        (p, m, v, model)
    });
    for i in 0..len {
        let (mut wp, mut wm, mut wv) = (f64::from(p0[i]), f64::from(m0[i]), f64::from(v0[i]));
        reference::step(&mut wp, &mut wm, &mut wv, 0.5 * f64::from(g[i]), &hyper);
        assert_close("p, m, v", &[p[i], m[i], v[i]], &[wp, wm, wv], 1e-5, 1e-6);
        assert_eq!(model[i], <bf16 as Element>::from_f32(p[i]));
    }
}

#[test]
fn operands_of_different_lengths_are_errors() {
    let (mut p, mut m, mut v) = ([1f32; 4], [0f32; 4], [0f32; 4]);
    let hyper = Hyper { lr: 0.1, beta1: 0.9, beta2: 0.9, eps: 1e-8, weight_decay: 0.0, step: 1 };
    let cpu = Cpu::single();
    let error = step(&cpu, &mut p, &mut m, &mut v, &[1.0; 3], 1.0, None, &hyper).unwrap_err();
    assert_eq!(error, Error::Shape { op: "adamw::step", name: "g", want: 4, got: 3 });
    assert_eq!(p, [1.0; 4], "nothing was touched");
}
