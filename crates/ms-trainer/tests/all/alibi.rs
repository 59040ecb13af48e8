//! ALiBi where a rank's keys are not those of its queries: the same on ranks that share sequences, whatever they exchange.

use crate::parity::{Case, Fault, Wrong, run, run_with};
use ms_core::DType;
use ms_dist::{ContextParallel, TokenMapping};
use ms_spec::{ModelConfig, Position};
use ms_trainer::Routing;
use ms_trainer::parity::{Bounds, Shape, batches, compare};

/// Twelve heads, so that three ranks and four have several slopes each, and a rank's first is not that of all.
fn model(groups: usize, window: Option<usize>) -> ModelConfig {
    let position = Position::Alibi;
    ModelConfig { heads: 12, groups, position, sliding_window: window, ..ModelConfig::tiny() }
}

fn ways(cp: usize) -> Vec<ContextParallel> {
    let mut ways = vec![
        ContextParallel::Ring { window: 1 },
        ContextParallel::Gather,
        ContextParallel::Ulysses,
        ContextParallel::Adaptive { ulysses: 1, remap: TokenMapping::InOrder },
        ContextParallel::InOrder { ulysses: 1, window: 1 },
    ];
    if cp == 4 {
        ways.extend([
            ContextParallel::Ring { window: 2 },
            ContextParallel::Hybrid { ulysses: 2, window: 1 },
            ContextParallel::Adaptive { ulysses: 2, remap: TokenMapping::InOrder },
            ContextParallel::InOrder { ulysses: 2, window: 1 },
        ]);
    }
    ways
}

#[test]
fn distances_reach_over_the_borders_of_ranks() {
    for (cp, tp) in [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2)] {
        for context in ways(cp) {
            for (groups, window, packed) in [(12, None, false), (4, None, true), (6, Some(7), true)] {
                let c = model(groups, window);
                let case = Case::of(cp * tp, tp, cp, 1, 1).context(context);
                let case = if tp > 1 { case.sequence_parallel() } else { case };
                let steps = batches(&c, Shape { rows: 2, length: 24, micro: 2, packed }, 2);
                let want = run(&c, &case.alone(), Routing::default(), &steps).unwrap();
                let got = run(&c, &case, Routing::default(), &steps).unwrap();
                let same = compare(&want, &got, Bounds::of(DType::F64));
                same.unwrap_or_else(|e| {
                    panic!("{context:?} of {cp}, tp {tp}, {groups} groups, {packed}: {e}")
                });
            }
        }
    }
}

#[test]
fn other_positions_are_another_model() {
    // What the test above compares depends on distances, and on whose keys come.
    let c = model(12, None);
    let case = Case::of(3, 1, 3, 1, 1).context(ContextParallel::Ring { window: 1 });
    let steps = batches(&c, Shape { rows: 2, length: 24, micro: 2, packed: false }, 2);
    let want = run(&c, &case.alone(), Routing::default(), &steps).unwrap();
    let none = ModelConfig { position: Position::None, ..c.clone() };
    let without = run(&none, &case, Routing::default(), &steps).unwrap();
    assert!(compare(&want, &without, Bounds::of(DType::F64)).is_err());
    let fault = Fault { exchange: "keys and values", wrong: Wrong::Stale };
    let stale = run_with(&c, &case, Routing::default(), &steps, Some(fault)).unwrap();
    assert!(compare(&want, &stale, Bounds::of(DType::F64)).is_err());
}
