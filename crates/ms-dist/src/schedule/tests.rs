//! Schedules compared with Megatron's, costs with the papers', and schedules that cannot be executed.

use super::*;
use proptest::prelude::*;
use serde_json::Value;

fn chain(pp: usize, chunks: usize, dual: bool) -> Chain {
    Chain::new(pp, chunks, dual)
}

#[test]
fn orders_bubble_and_memory_are_megatrons() {
    let path = ms_testing::golden("topology/pipeline_orders.json");
    let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for case in cases.as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap() as usize;
        let (pp, vpp, m) = (number("pp"), number("vpp"), number("num_microbatches"));
        let order = match vpp {
            1 => Order::OneFOneB,
            _ => Order::Interleaved { group: pp, forwards_first: case["version"] == "0.8" },
        };
        let schedule = Schedule::new(order, &chain(pp, vpp, false), m).unwrap();
        let orders: Vec<Value> = (0..pp).map(|s| schedule.text(s).into()).collect();
        assert_eq!(Value::from(orders), case["ops"], "{case}");
        let report = schedule.simulate().unwrap();
        assert_eq!(report.makespan, case["makespan_f1_b2"].as_f64().unwrap());
        assert!((report.bubble_fraction - case["bubble_fraction"].as_f64().unwrap()).abs() < 1e-12);
        assert_eq!(Value::from(report.max_in_flight), case["max_in_flight"]);
    }
}

#[test]
fn one_forward_one_backward_has_the_order_of_the_paper() {
    let s = Schedule::new(Order::OneFOneB, &chain(2, 1, false), 4).unwrap();
    assert_eq!(s.text(0), "F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 B3.0");
    assert_eq!(s.text(1), "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0");
    let report = s.simulate().unwrap();
    assert_eq!((report.makespan, report.max_in_flight), (15.0, vec![2, 1]));
    assert!((report.bubble_fraction - 0.2).abs() < 1e-12);
}

#[test]
fn interleaved_stages_wait_less_and_keep_more() {
    let s = Schedule::new(Order::Interleaved { group: 2, forwards_first: false }, &chain(2, 2, false), 4)
        .unwrap();
    assert_eq!(s.text(0), "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
    let report = s.simulate().unwrap();
    assert_eq!(report.max_in_flight, [5, 3]);
    assert!((report.bubble_fraction - 1.0 / 9.0).abs() < 1e-12);
}

#[test]
fn weight_gradients_put_off_shorten_the_bubble_and_keep_as_much_as_the_first_stage() {
    for (pp, m) in [(2, 4), (3, 6), (4, 8), (4, 12), (8, 16)] {
        let plain = Schedule::new(Order::OneFOneB, &chain(pp, 1, false), m).unwrap().simulate().unwrap();
        let zero = Schedule::new(Order::ZeroBubble { group: pp }, &chain(pp, 1, false), m)
            .unwrap()
            .simulate()
            .unwrap();
        assert!(zero.makespan < plain.makespan, "pp {pp}: {} and {}", zero.makespan, plain.makespan);
        assert_eq!(zero.max_in_flight, vec![plain.max_in_flight[0]; pp]);
        // A third of the bubble: (p - 1)(F + B - W) with F = B = W = 1 against (p - 1)(F + B + W).
        assert_eq!(zero.makespan - 3.0 * m as f64, (pp - 1) as f64, "pp {pp}");
    }
}

#[test]
fn weight_gradients_of_interleaved_chunks_fill_the_bubble_too() {
    for (pp, chunks, m, group) in [(2, 2, 4, 2), (3, 2, 6, 3), (4, 2, 8, 4), (4, 3, 8, 8), (8, 2, 16, 8)] {
        let chain = chain(pp, chunks, false);
        let of = |order| Schedule::new(order, &chain, m).unwrap();
        let whole = of(Order::Interleaved { group, forwards_first: false }).simulate().unwrap();
        let split = of(Order::ZeroBubble { group });
        let zero = split.simulate().unwrap();
        let work = (3 * m * chunks) as f64;
        assert_eq!(whole.makespan - work, 3.0 * (pp - 1) as f64, "pp {pp}, {chunks} chunks");
        assert_eq!(zero.makespan - work, (pp - 1) as f64, "pp {pp}, {chunks} chunks");
        assert_eq!(zero.max_in_flight[0], whole.max_in_flight[0]);
        assert!(zero.max_in_flight.iter().all(|&n| n <= zero.max_in_flight[0]), "{:?}", zero.max_in_flight);
    }
    let two = Schedule::new(Order::ZeroBubble { group: 2 }, &chain(2, 2, false), 2).unwrap();
    assert_eq!(two.text(0), "F0.0 F1.0 F0.1 F1.1 I0.1 W0.1 I1.1 W1.1 I0.0 W0.0 I1.0 W1.0");
    assert_eq!(two.text(1), "F0.0 F1.0 F0.1 I0.1 F1.1 I1.1 W0.1 I0.0 W1.1 I1.0 W0.0 W1.0");
}

#[test]
fn dual_pipe_waits_less_than_interleaved_stages() {
    for (pp, m) in [(2, 4), (2, 7), (3, 6), (4, 8), (4, 20), (8, 16)] {
        let dual = Schedule::new(Order::DualPipeV, &chain(pp, 2, true), m).unwrap().simulate().unwrap();
        let plain = Schedule::new(Order::OneFOneB, &chain(pp, 1, false), m).unwrap();
        // A stage of one chunk has twice the layers: twice the time.
        let plain = 2.0 * plain.simulate().unwrap().makespan;
        assert!(dual.makespan < plain, "pp {pp}, {m} micro-batches: {} and {plain}", dual.makespan);
        assert!(dual.max_in_flight.iter().all(|&n| n <= 2 * pp + 1), "{:?}", dual.max_in_flight);
    }
}

/// The order with overlapped passes.
fn overlapped(order: Order, chain: &Chain, m: usize) -> Schedule {
    Schedule::new(order, chain, m).unwrap().with_overlapped_passes(order)
}

#[test]
fn passes_of_two_micro_batches_go_beside_each_other() {
    let pairs = |s: &Schedule, stage: usize| -> Vec<String> {
        let of = |&at: &usize| format!("{} {}", s.stages[stage][at], s.stages[stage][at + 1]);
        s.overlapped[stage].iter().map(of).collect()
    };
    let alone = overlapped(Order::OneFOneB, &chain(1, 1, false), 4);
    assert_eq!(pairs(&alone, 0), ["B0.0 F1.0", "B1.0 F2.0", "B2.0 F3.0"]);
    assert_eq!(alone.simulate().unwrap().max_in_flight, [2]);
    let late = Order::Interleaved { group: 2, forwards_first: false };
    let interleaved = overlapped(late, &chain(2, 2, false), 4);
    // As many forward passes come first as upstream's, one more than without.
    assert_eq!(pairs(&interleaved, 0), ["B0.1 F3.0", "B1.1 F2.1", "B0.0 F3.1"]);
    assert_eq!(interleaved.simulate().unwrap().max_in_flight, [6, 4]);
    let dual = overlapped(Order::DualPipeV, &chain(2, 2, true), 5);
    assert_eq!(
        pairs(&dual, 1),
        ["F2.0 B0.1", "F2.1 B0.0", "F3.0 B1.1", "F3.1 B1.0", "F4.0 B2.1", "F4.1 B2.0"]
    );
    // Nobody waits for a forward pass that ends together with an overlapped backward pass if two stages are two passes apart.
    for (pp, chunks, m) in [(2, 2, 8), (4, 2, 16), (4, 4, 32), (8, 2, 32)] {
        let order = Order::Interleaved { group: pp, forwards_first: false };
        let plain = Schedule::new(order, &chain(pp, chunks, false), m).unwrap().simulate().unwrap();
        let paired = overlapped(order, &chain(pp, chunks, false), m).simulate().unwrap();
        assert!(
            paired.makespan <= plain.makespan + 2.0 * pp as f64,
            "{} {}",
            paired.makespan,
            plain.makespan
        );
    }
    for (pp, m) in [(2, 8), (4, 16), (8, 32)] {
        let plain = Schedule::new(Order::DualPipeV, &chain(pp, 2, true), m).unwrap().simulate().unwrap();
        let paired = overlapped(Order::DualPipeV, &chain(pp, 2, true), m).simulate().unwrap();
        assert!(
            paired.makespan <= plain.makespan + 2.0 * pp as f64,
            "{} {}",
            paired.makespan,
            plain.makespan
        );
        // All but what fills and empties the pipeline.
        let many = paired_share(&overlapped(Order::DualPipeV, &chain(pp, 2, true), m));
        assert!(many > 0.5, "{many}");
    }
    // A stage of a plain pipeline would wait for the next one in every round: it has no pairs.
    for order in [Order::OneFOneB, Order::ZeroBubble { group: 4 }] {
        let s = overlapped(order, &chain(4, 1, false), 8);
        assert!(s.overlapped.iter().all(BTreeSet::is_empty), "{:?}", s.overlapped);
    }
}

/// The share of a schedule's forward passes that overlap with backward passes.
fn paired_share(s: &Schedule) -> f64 {
    let pairs: usize = s.overlapped.iter().map(BTreeSet::len).sum();
    pairs as f64 / (s.chain.len() * s.micro_batches) as f64
}

#[test]
fn an_order_that_waits_for_ever_is_named() {
    let mut s = Schedule::new(Order::OneFOneB, &chain(2, 1, false), 2).unwrap();
    s.stages[1].swap(0, 1); // backward before forward
    assert_eq!(s.simulate().unwrap_err().to_string(), "stage 0 waits for ever before B0.0, its action 2");
    let mut s = Schedule::new(Order::OneFOneB, &chain(2, 1, false), 2).unwrap();
    s.stages[0].pop();
    let message = s.simulate().unwrap_err().to_string();
    assert_eq!(message, "stage 0: micro-batch 1 passes chunk 0 0 times backward, expected once");
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let refused =
        |order, chunks, m| Schedule::new(order, &chain(4, chunks, false), m).unwrap_err().to_string();
    assert!(refused(Order::OneFOneB, 2, 8).contains("found 2"));
    assert!(refused(Order::Interleaved { group: 4, forwards_first: true }, 2, 6).contains("6 micro-batches"));
    assert!(refused(Order::DualPipeV, 2, 6).contains("at least 7"));
    // Megatron-LM core_v0.12.1: "microbatch_group_size_per_vp_stage must be between [pipeline_parallel_size, num_microbatches]".
    let large = refused(Order::Interleaved { group: 9, forwards_first: false }, 2, 8);
    assert!(large.contains("8 micro-batches in groups of 9; 9 would do"), "{large}");
    assert!(refused(Order::ZeroBubble { group: 9 }, 2, 8).contains("groups of 9"));
    assert!(
        Schedule::new(Order::Interleaved { group: 8, forwards_first: false }, &chain(4, 2, false), 8).is_ok()
    );
}

proptest! {
    #[test]
    fn every_schedule_can_be_executed(pp in 1usize..9, more in 0usize..12, chunks in 1usize..5, extra in 0usize..3) {
        let m = 2 * pp - 1 + more;
        for order in [Order::OneFOneB, Order::ZeroBubble { group: 4 }] {
            let s = Schedule::new(order, &chain(pp, 1, false), m).unwrap();
            prop_assert!(s.simulate().is_ok());
        }
        let group = pp + extra;
        for forwards_first in [false, true] {
            let order = Order::Interleaved { group, forwards_first };
            if let Ok(s) = Schedule::new(order, &chain(pp, chunks, false), m) {
                prop_assert!(s.simulate().is_ok(), "{:?}", s.simulate());
                let s = s.with_overlapped_passes(order);
                prop_assert!(s.simulate().is_ok(), "{:?}", s.simulate());
            }
        }
        let s = Schedule::new(Order::DualPipeV, &chain(pp, 2, true), m).unwrap();
        prop_assert!(s.simulate().is_ok(), "{:?}", s.simulate());
        let s = s.with_overlapped_passes(Order::DualPipeV);
        prop_assert!(s.simulate().is_ok(), "{:?}", s.simulate());
    }

    #[test]
    fn every_drawn_order_can_be_executed(pp in 1usize..6, m in 1usize..8, chunks in 1usize..4, seed: u64, dual: bool) {
        let chain = chain(pp, if dual { 2 } else { chunks }, dual);
        let s = Schedule::new(Order::Random { seed }, &chain, m).unwrap();
        prop_assert!(s.simulate().is_ok(), "{:?}", s.simulate());
        prop_assert_eq!(handed_over(&s), Ok(()));
        // Each forward, and each backward whole or as two halves.
        let halves = s.stages.iter().flatten().filter(|a| matches!(a, Action::BackwardWeight { .. })).count();
        prop_assert_eq!(s.stages.iter().map(Vec::len).sum::<usize>(), 2 * chain.len() * m + halves);
    }
}

/// Goes through what stages do where both sides of a message wait for each other.
fn handed_over(s: &Schedule) -> Result<(), String> {
    let mut programs: Vec<Vec<(Option<Rendezvous>, Option<Action>)>> = Vec::new();
    for (stage, actions) in s.stages.iter().enumerate() {
        let between = s.rendezvous(stage).unwrap();
        assert_eq!(between.len(), actions.len() + 1);
        let mut program = Vec::new();
        for (at, rendezvous) in between.into_iter().enumerate() {
            program.extend(rendezvous.into_iter().map(|what| (Some(what), None)));
            program.extend(actions.get(at).map(|&action| (None, Some(action))));
        }
        program.reverse();
        programs.push(program);
    }
    let (mut there, mut sent) = (BTreeSet::new(), BTreeSet::new());
    while programs.iter().any(|program| !program.is_empty()) {
        let mut moved = false;
        for stage in 0..programs.len() {
            while let Some(&step) = programs[stage].last() {
                if let (_, Some(action)) = step {
                    let PassId { micro, chunk } = action.pass();
                    let at = s.chain.position(stage, chunk);
                    let (from, to) = match action {
                        Action::Forward { .. } => (at.checked_sub(1), Some(at + 1)),
                        Action::BackwardWeight { .. } => (None, None),
                        _ => (Some(at + 1), at.checked_sub(1)),
                    };
                    let inside = |place: &usize| *place < s.chain.len();
                    if let Some(from) = from.filter(inside) {
                        let message = Message { micro, from, to: at };
                        let own = s.chain[from].stage == stage && sent.contains(&message);
                        if !own && !there.contains(&message) {
                            return Err(format!(
                                "stage {stage} begins {action} before it has taken {message:?}"
                            ));
                        }
                    }
                    sent.extend(to.filter(inside).map(|to| Message { micro, from: at, to }));
                } else if let (Some(Rendezvous::WaitSent(message)), _) = step {
                    let other = &mut programs[s.chain[message.to].stage];
                    if other.last() != Some(&(Some(Rendezvous::Receive(message)), None)) {
                        break;
                    }
                    other.pop();
                    assert!(sent.contains(&message) && there.insert(message), "{message:?}");
                } else {
                    break;
                }
                programs[stage].pop();
                moved = true;
            }
        }
        if !moved {
            return Err(format!("all wait: {:?}", programs.iter().map(|p| p.last()).collect::<Vec<_>>()));
        }
    }
    // Whatever is for another stage was taken there.
    match sent.iter().find(|m| s.chain[m.from].stage != s.chain[m.to].stage && !there.contains(*m)) {
        Some(message) => Err(format!("{message:?} was not taken")),
        None => Ok(()),
    }
}

#[test]
fn stages_that_wait_for_each_other_never_wait_in_a_circle() {
    for (pp, m) in [(1, 3), (2, 4), (3, 6), (4, 8), (4, 12)] {
        let orders = [
            (Order::OneFOneB, chain(pp, 1, false)),
            (Order::ZeroBubble { group: pp }, chain(pp, 1, false)),
            (Order::Interleaved { group: pp, forwards_first: false }, chain(pp, 2, false)),
            (Order::Interleaved { group: pp, forwards_first: true }, chain(pp, 3, false)),
            (Order::ZeroBubble { group: pp }, chain(pp, 2, false)),
            (Order::DualPipeV, chain(pp, 2, true)),
        ];
        for (order, chain) in orders {
            let s = Schedule::new(order, &chain, m).unwrap();
            assert_eq!(handed_over(&s), Ok(()), "{order:?}, {pp} stages, {m} micro-batches");
            let overlapped = s.with_overlapped_passes(order);
            let between = (0..pp).map(|stage| overlapped.rendezvous(stage).unwrap());
            // Nothing comes between overlapped passes.
            for (stage, between) in between.enumerate() {
                assert!(
                    overlapped.overlapped[stage].iter().all(|at| between[at + 1].is_empty()),
                    "{order:?}"
                );
            }
        }
    }
}

#[test]
fn in_a_pipeline_of_chunks_the_first_stages_pass_on_what_they_do_not_keep() {
    let order = Order::Interleaved { group: 4, forwards_first: false };
    let schedule = Schedule::new(order, &chain(4, 2, false), 8).unwrap();
    for stage in 0..4 {
        let beyond = schedule.recomputed_in_bubble(stage, |chunk| (stage, chunk) == (3, 1));
        // A stage warms up with this many passes and holds one more.
        let live = (4 - stage - 1) * 2 + 4 + 1;
        assert_eq!(schedule.simulate().unwrap().max_in_flight[stage], live);
        assert_eq!(beyond.is_empty(), live <= 8, "stage {stage}: {beyond:?}");
    }
    assert!(schedule.recomputed_in_bubble(0, |_| true).is_empty());
}
