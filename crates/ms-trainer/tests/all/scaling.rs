//! float16 weights and loss scaling.

use crate::parity::{Case, run, small_experts};
use ms_core::DType;
use ms_core::ops::Auxiliary;
use ms_trainer::parity::{Bounds, Found, Shape, batches, compare};
use ms_trainer::{LossScale, Routing};

fn routing() -> Routing {
    let auxiliary = Auxiliary { experts: 0.02, ..Auxiliary::default() };
    Routing { auxiliary, bias_update_rate: 1e-3, ..Routing::default() }
}

fn half(loss_scale: LossScale, case: Case) -> Case {
    Case { dtype: DType::F16, loss_scale, ..case }
}

fn found(case: &Case, steps: usize) -> Found {
    let shape = Shape { rows: 2, length: 16, micro: 4, packed: true };
    run(&small_experts(), case, routing(), &batches(&small_experts(), shape, steps)).unwrap()
}

#[test]
fn a_constant_factor_that_is_a_power_of_two_changes_no_bit() {
    let plain = found(&Case::single().single_precision(), 3);
    let scaled = Case { loss_scale: LossScale::Constant(1024.0), ..Case::single() }.single_precision();
    let scaled = found(&scaled, 3);
    for (name, x) in &plain.gradients {
        assert!(x.iter().zip(&scaled.gradients[name]).all(|(x, y)| x.to_bits() == y.to_bits()), "{name}");
    }
    for (a, b) in plain.reports.iter().zip(&scaled.reports) {
        assert_eq!((a.loss, a.grad_norm, &a.experts), (b.loss, b.grad_norm, &b.experts));
        assert_eq!((a.loss_scale, b.loss_scale), (1.0, 1024.0));
    }
}

#[test]
fn float16_weights_train_on_any_topology_as_on_one_rank() {
    let rule = LossScale::Dynamic { initial: 1024.0, min: 1.0, window: 2, hysteresis: 2 };
    let alone = found(&half(rule, Case::single()), 6);
    assert!(alone.reports.iter().all(|r| !r.skipped), "{:?}", alone.reports);
    assert_eq!(alone.reports.last().unwrap().loss_scale, 1024.0 * 8.0);
    for case in [
        Case::of(2, 2, 1, 1, 1).sequence_parallel(),
        Case::of(2, 1, 1, 2, 1),
        Case::of(2, 1, 2, 1, 1),
        Case::of(4, 1, 1, 2, 2),
    ] {
        compare(&alone, &found(&half(rule, case), 6), Bounds::of(DType::F32)).unwrap();
    }
    // And near to what weights in float32 do.
    let single = found(&Case::single().single_precision(), 6);
    let last = |f: &Found| f.reports.last().unwrap().loss;
    assert!((last(&alone) - last(&single)).abs() < 0.02, "{} {}", last(&alone), last(&single));
    assert_ne!(last(&alone), last(&single));
}

#[test]
fn iterations_whose_gradients_overflow_change_nothing_but_the_scale() {
    let rule = LossScale::Dynamic { initial: 1e9, min: 1.0, window: 1000, hysteresis: 2 };
    let steps = {
        let shape = Shape { rows: 2, length: 16, micro: 4, packed: true };
        let mut steps = batches(&small_experts(), shape, 2);
        // The same step over and over: its loss changes with the weights alone.
        steps.truncate(2);
        vec![steps[1].clone(); 24]
    };
    for case in [Case::single(), Case::of(2, 2, 1, 1, 1), Case::of(4, 1, 1, 2, 2)] {
        let found = run(&small_experts(), &half(rule, case), Routing::default(), &steps).unwrap();
        let skipped = found.reports.iter().take_while(|r| r.skipped).count();
        assert!((2..20).contains(&skipped), "{skipped}");
        // One overflow is borne, then the scale halves each time.
        let scales: Vec<f64> = found.reports[..skipped].iter().map(|r| r.loss_scale).collect();
        assert!(scales.windows(2).all(|pair| pair[1] == pair[0] * 0.5), "{scales:?}");
        assert_eq!(scales[0], 1e9);
        let losses: Vec<f64> = found.reports.iter().map(|r| r.loss).collect();
        assert!(losses[..=skipped].iter().all(|&loss| loss == losses[0]), "{losses:?}");
        assert!(losses[skipped + 1] != losses[0] && *losses.last().unwrap() < losses[0], "{losses:?}");
    }
}
