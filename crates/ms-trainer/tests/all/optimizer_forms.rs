//! Forms of optimizer state: their memory, and that they train equally well.

use crate::parity::{Case, run, small_experts};
use ms_core::DType;
use ms_core::ops::Auxiliary;
use ms_trainer::parity::{Bounds, Found, Shape, batches, compare};
use ms_trainer::{OptimizerForm, Routing, Stored, UpdateRule};

fn found(case: &Case) -> Found {
    let auxiliary = Auxiliary { experts: 0.02, ..Auxiliary::default() };
    let routing = Routing { auxiliary, bias_update_rate: 1e-3, ..Routing::default() };
    let shape = Shape { rows: 2, length: 16, micro: 4, packed: true };
    run(&small_experts(), case, routing, &batches(&small_experts(), shape, 6)).unwrap()
}

const REUSE: OptimizerForm =
    OptimizerForm { reuse: true, ties_to_even: true, rounded_moments: false, swapped: None, stored: None };

fn cases() -> [Case; 4] {
    [Case::single(), Case::of(2, 1, 1, 1, 1), Case::of(4, 2, 1, 1, 2), Case::of(2, 1, 1, 2, 1)]
        .map(|case| Case { dtype: DType::Bf16, bucket_size: Some(500), ..case })
}

#[test]
fn state_with_the_host_or_in_halves_trains_to_the_same_bits_and_takes_less() {
    let swapped = |times| OptimizerForm { swapped: Some(times), ..OptimizerForm::default() };
    for case in cases() {
        let sgd = UpdateRule::Sgd { momentum: 0.9 };
        for case in [case.clone(), Case { update: sgd, ..case }] {
            let plain = found(&case);
            let [state, ..] = plain.bytes.iter().map(|b| b.optimizer).collect::<Vec<_>>()[..] else {
                panic!("there is a rank")
            };
            let kept = 1 + case.update.state_names().len();
            for form in [swapped(1), swapped(7), swapped(1000)] {
                let away = found(&Case { form, ..case.clone() });
                assert_eq!(plain.reports, away.reports, "{form:?}: {case:?}");
                assert_eq!((away.bytes[0].optimizer, away.bytes[0].host), (0, state as u64));
            }
            // Rounded moments are so with the host, too, and take half of what others do there.
            if kept == 3 {
                let rounded = OptimizerForm { rounded_moments: true, ..OptimizerForm::default() };
                let here = found(&Case { form: rounded, ..case.clone() });
                for parts in [1, 7] {
                    let form = OptimizerForm { swapped: Some(parts), ..rounded };
                    let away = found(&Case { form, ..case.clone() });
                    assert_eq!(here.reports, away.reports, "{form:?}: {case:?}");
                    assert_eq!(away.bytes[0].optimizer, 0);
                    assert_eq!(away.bytes[0].host, here.bytes[0].optimizer as u64, "{form:?}: {case:?}");
                }
                assert_ne!(plain.reports, here.reports, "moments are rounded");
            }
            // Ties to even: the weights are those of a cast.
            let halves = found(&Case { form: REUSE, ..case.clone() });
            assert_eq!(plain.reports, halves.reports, "{case:?}");
            let less = state / kept / 2;
            // A bit of each element says where its tie went; biases of a router are kept whole besides.
            let bits = state / kept / 4 / 8;
            assert!((bits..=bits + 72).contains(&(halves.bytes[0].optimizer - (state - less))), "{case:?}");
        }
    }
}

#[test]
fn ties_away_from_zero_and_rounded_moments_train_nearly_alike() {
    for case in cases() {
        let plain = found(&case);
        let last = |f: &Found| f.reports.last().unwrap().loss;
        for form in [
            OptimizerForm { ties_to_even: false, ..REUSE },
            OptimizerForm { rounded_moments: true, ..OptimizerForm::default() },
            OptimizerForm { rounded_moments: true, ..REUSE },
        ] {
            let other = found(&Case { form, ..case.clone() });
            // Each moment is off by 2^-9 of itself at most, an update by less than 2^-8: of the 1.8 that the loss goes up and
            // down in these steps that is 7e-3.
            assert!(
                (last(&plain) - last(&other)).abs() < 1e-2,
                "{form:?}: {} {}",
                last(&plain),
                last(&other)
            );
            if form.rounded_moments {
                assert_ne!(last(&plain), last(&other), "moments are rounded: {case:?}");
                let state = |f: &Found| f.bytes[0].optimizer;
                assert!(state(&other) <= state(&plain) * 2 / 3 + 64);
            }
        }
    }
}

#[test]
fn rounded_moments_do_not_depend_on_the_topology() {
    let form = OptimizerForm { rounded_moments: true, ..OptimizerForm::default() };
    let single = Case { form, dtype: DType::F32, ..Case::single() };
    for case in [Case::of(2, 1, 1, 1, 1), Case::of(2, 2, 1, 1, 1)] {
        let case = Case { form, dtype: DType::F32, ..case };
        compare(&found(&single), &found(&case), Bounds { norm: 1e-3, ..Bounds::of(DType::F32) }).unwrap();
    }
}

#[test]
fn nobody_waits_alone_for_weights_on_their_way() {
    // One of two ranks owns the routers' biases, and reads them while weights are gathered during the forward pass.
    for bucket in [64, 500] {
        let case = Case {
            dtype: DType::Bf16,
            bucket_size: Some(bucket),
            overlap: true,
            form: REUSE,
            ..Case::of(2, 1, 1, 1, 1)
        };
        let gathered = Case { overlap_gather: true, overlap_gather_with_step: true, ..case.clone() };
        assert_eq!(found(&case).reports, found(&gathered).reports, "{bucket}");
    }
}

fn stored(kept: [Stored; 3]) -> OptimizerForm {
    OptimizerForm { stored: Some(kept), ..OptimizerForm::default() }
}

#[test]
fn state_in_narrow_types_trains_nearly_alike_and_takes_its_bytes() {
    use Stored::{F8, F16, Wide};
    for case in cases() {
        let plain = found(&case);
        // Nothing narrow: the same bits, whatever the grouping.
        assert_eq!(
            plain.reports,
            found(&Case { form: stored([Wide; 3]), ..case.clone() }).reports,
            "{case:?}"
        );
        let last = |f: &Found| f.reports.last().unwrap().loss;
        for (kept, bytes) in
            [([F16; 3], 6), ([Wide, F16, Wide], 10), ([Wide, F8, F8], 6), ([F16, F8, F16], 5)]
        {
            let other = found(&Case { form: stored(kept), ..case.clone() });
            let apart = (last(&plain) - last(&other)).abs();
            assert!(apart < 1e-2 && apart != 0.0, "{kept:?}: {} {}", last(&plain), last(&other));
            let [state, narrow] = [&plain, &other].map(|f| f.bytes[0].optimizer);
            let want = state / 12 * bytes;
            // Biases of routers are kept whole besides.
            assert!((want..=want + 64).contains(&narrow), "{kept:?}: {narrow} bytes, expected {want}");
        }
    }
}

#[test]
fn narrow_state_of_whole_parameters_does_not_depend_on_the_topology() {
    // Stages own whole parameters, so scales are one rank's.
    let form = stored([Stored::Wide, Stored::F8, Stored::F16]);
    let single = Case { form, dtype: DType::F32, ..Case::single() };
    let case = Case { form, dtype: DType::F32, ..Case::of(2, 1, 1, 2, 1) };
    compare(&found(&single), &found(&case), Bounds::of(DType::F32)).unwrap();
    // Where ranks own parts each has a scale of its own: 11 bits of the largest element are kept.
    let form = stored([Stored::Wide, Stored::F16, Stored::F16]);
    let single = Case { form, dtype: DType::F32, ..Case::single() };
    for case in [
        Case::of(2, 1, 1, 1, 1),
        Case::of(2, 2, 1, 1, 1),
        Case::of(2, 1, 2, 1, 1),
        Case::of(4, 2, 1, 1, 2),
        Case::of(4, 1, 2, 1, 4),
    ] {
        let case = Case { form, dtype: DType::F32, ..case };
        compare(&found(&single), &found(&case), Bounds { norm: 1e-3, ..Bounds::of(DType::F32) }).unwrap();
    }
}
