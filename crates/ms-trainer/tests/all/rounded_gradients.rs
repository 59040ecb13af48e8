//! Gradients kept in bf16: what is rounded, and when.

use crate::parity::{Case, run};
use half::bf16;
use ms_core::{DType, RankGroup};
use ms_data::MicroBatch;
use ms_spec::ModelConfig;
use ms_trainer::Routing;
use ms_trainer::parity::{Found, Shape, batches, worst};

/// Two micro-batches, both with tokens that count.
fn two() -> Vec<MicroBatch> {
    let shape = Shape { rows: 2, length: 16, micro: 3, packed: true };
    let mut all = batches(&ModelConfig::tiny(), shape, 1).remove(0);
    all.remove(1);
    all
}

fn found(case: &Case, micro_batches: &[MicroBatch]) -> Found {
    run(&ModelConfig::tiny(), case, Routing::default(), &[micro_batches.to_vec()]).unwrap()
}

fn rounded(x: f64) -> f64 {
    bf16::from_f32(x as f32).to_f64()
}

#[test]
fn each_gradient_is_rounded_when_it_is_added_and_so_is_the_sum() {
    let plain = Case { dtype: DType::Bf16, ..Case::single() };
    let kept = |case: &Case| Case { rounded_gradients: true, ..case.clone() };
    let both = two();
    let alone = [0, 1].map(|i| found(&plain, &both[i..=i]).gradients);
    let expect = |what: &str, got: &Found, want: &dyn Fn(&str, usize) -> f64| {
        for (name, got) in &got.gradients {
            for (i, &got) in got.iter().enumerate() {
                assert_eq!(got, want(name, i), "{what}: {name}, element {i}");
            }
        }
    };
    let of = |which: usize, name: &str, i: usize| alone[which][name][i];
    expect("one micro-batch", &found(&kept(&plain), &both[..1]), &|name, i| rounded(of(0, name, i)));
    // The loss of each of two is halved, which changes no digit.
    let sum = |name: &str, i: usize| {
        let halves = [0, 1].map(|which| rounded(of(which, name, i) / 2.0));
        rounded(halves[0] + halves[1])
    };
    expect("two micro-batches", &found(&kept(&plain), &both), &sum);
    // Ranks with one each sum what they have rounded.
    let ranks = Case { dtype: DType::Bf16, ..Case::of(2, 1, 1, 1, 1) };
    let of_ranks = found(&kept(&ranks), &both);
    expect("two ranks", &of_ranks, &sum);
    let sent = |found: &Found| found.sent[0][&RankGroup::DpCp] - 4 * 8;
    assert_eq!(sent(&found(&ranks, &both)), 2 * sent(&of_ranks), "half the bytes");
}

#[test]
fn they_do_not_depend_on_the_topology_but_for_their_rounding() {
    let single = Case { rounded_gradients: true, dtype: DType::F32, ..Case::single() };
    let want = found(&single, &two());
    for case in [
        Case::of(2, 2, 1, 1, 1).sequence_parallel(),
        Case { bucket_size: Some(300), overlap: true, ..Case::of(2, 1, 1, 1, 1) },
        Case { order: ms_trainer::PipelineOrder::ZeroBubble { group: None }, ..Case::of(2, 1, 1, 2, 1) },
    ] {
        let case = Case { rounded_gradients: true, dtype: DType::F32, ..case };
        let (name, apart) = worst(&want, &found(&case, &two()));
        assert!(apart < 0.01, "{case:?}: {name} differs by {apart}");
        // Ranks that share tokens sum gradients of norms that each has rounded; of two with a micro-batch each the sum is the
        // same.
        assert_eq!(apart > 0.0, case.sizes.tp > 1, "{case:?}: {name} differs by {apart}");
    }
}
