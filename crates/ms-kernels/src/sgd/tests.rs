//! Every instance compared with the formula, over several steps.

use super::{Hyper, step};
use crate::trial::{random, same_everywhere};
use crate::{Cpu, Error};
use ms_testing::assert_close;

#[test]
fn every_instance_meets_the_formula() {
    let (len, hyper) = (40_003, Hyper { lr: 0.05, momentum: 0.9, weight_decay: 0.1 });
    let start = random::<f32>(len, 1);
    let gradients: Vec<Vec<f32>> = (0..4).map(|t| random::<f32>(len, 2 + t)).collect();
    let got = same_everywhere("sgd", |cpu| {
        let (mut p, mut m) = (start.clone(), vec![0f32; len]);
        for g in &gradients {
            step(cpu, &mut p, &mut m, g, 0.5, &hyper).unwrap();
        }
        p
    });
    let want: Vec<f64> = (0..len)
        .map(|i| {
            let (mut p, mut m) = (f64::from(start[i]), 0.0);
            for g in &gradients {
                m = hyper.momentum * m + 0.5 * f64::from(g[i]) + hyper.weight_decay * p;
                p -= hyper.lr * m;
            }
            p
        })
        .collect();
    assert_close("weights", &got, &want, 1e-5, 1e-6);
}

#[test]
fn operands_of_other_lengths_are_refused() {
    let hyper = Hyper { lr: 0.1, momentum: 0.0, weight_decay: 0.0 };
    let e = step(&Cpu::single(), &mut [0.0; 3], &mut [0.0; 2], &[0.0; 3], 1.0, &hyper).unwrap_err();
    assert!(matches!(e, Error::Shape { name: "m", .. }), "{e}");
}
