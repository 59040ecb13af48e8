//! The indexer loss of sparse attention: equal on sharded topologies and on one rank, checked by finite differences of the
//! reported loss, and without any effect on anything else.

use crate::parity::samples::{self, samples};
use crate::parity::{Case, run, same};
use ms_core::{DType, Grid, GridRules, GridSizes, ParamId, Rng};
use ms_data::MicroBatch;
use ms_dist::{ContextParallel, ParallelCtx, ParallelOptions, threads};
use ms_nn::{IndexerObjective, Recompute, SavePolicy, Swapped};
use ms_spec::{Activations, ModelConfig, Part, Placement, params};
use ms_trainer::parity::{Bounds, Found, Shape, batches, compare};
use ms_trainer::{Engine, IndexerTraining, LossConfig, OwnedPart, Routing, TrainConfig};
use std::collections::{BTreeMap, BTreeSet};

const OBJECTIVES: [IndexerObjective; 3] = [
    IndexerObjective::MindSpeed,
    IndexerObjective::Megatron { sparse: true },
    IndexerObjective::Megatron { sparse: false },
];

fn training(objective: IndexerObjective) -> IndexerTraining {
    IndexerTraining { objective, coeff: 0.7 }
}

/// The samples with indexers: of tokens, also such as later layers borrow the picks of, and of pooled entries.
fn picking() -> Vec<(String, ModelConfig)> {
    let with = |c: ModelConfig| ModelConfig { init_std: 0.2, ..c };
    let all: Vec<_> =
        samples().into_iter().filter(|(_, c)| c.indexer.is_some()).map(|(n, c)| (n, with(c))).collect();
    assert!(all.len() >= 3 && all.iter().any(|(_, c)| (0..c.layers).any(|l| c.layer(l).borrows_index)));
    all
}

/// The names of the weights of indexers.
fn of_indexers(c: &ModelConfig) -> BTreeSet<String> {
    let own = |part| matches!(part, Part::Indexer | Part::EntryIndexer | Part::EntryIndexerCompressor);
    params(c).into_iter().filter(|spec| own(spec.slot.part)).map(|spec| spec.name).collect()
}

fn found(c: &ModelConfig, case: &Case) -> Found {
    let steps = batches(c, Shape { rows: 2, length: 16, micro: 4, packed: true }, 2);
    run(c, case, Routing::default(), &steps).unwrap()
}

#[test]
fn every_topology_trains_indexers_as_one_rank_does() {
    let ulysses = |case: Case| case.context(ContextParallel::Ulysses);
    let cases = [
        Case::of(2, 2, 1, 1, 1),
        Case::of(2, 2, 1, 1, 1).sequence_parallel(),
        Case::of(2, 1, 2, 1, 1),
        Case::of(4, 2, 2, 1, 1).sequence_parallel(),
        ulysses(Case::of(2, 1, 2, 1, 1)),
        ulysses(Case::of(4, 2, 2, 1, 1)),
        Case::of(2, 1, 1, 2, 1),
        Case::of(2, 1, 1, 1, 2),
        Case::of(4, 2, 1, 2, 1).sequence_parallel(),
    ];
    let mut wrong = Vec::new();
    for (name, c) in picking() {
        // What one rank computes, the reference for every topology.
        let mut known: BTreeMap<String, Found> = BTreeMap::new();
        for (i, case) in cases.iter().enumerate() {
            let mut case = case.clone();
            if case.sizes.pp > 1 && !c.layers.is_multiple_of(2) {
                case.stages.layer_list = Some(vec![c.layers.div_ceil(2), c.layers / 2]);
            }
            for (k, objective) in OBJECTIVES.into_iter().enumerate() {
                // Each with both ways of weighing micro-batches somewhere.
                let per_token_loss = (i + k) % 2 == 1;
                let case = Case { indexer: Some(training(objective)), per_token_loss, ..case.clone() };
                let alone = case.alone();
                let want = known.entry(format!("{alone:?}")).or_insert_with(|| found(&c, &alone));
                let got = found(&c, &case);
                assert!(want.reports.iter().all(|r| r.indexer.is_some_and(|loss| loss > 1e-3)), "{name}");
                if let Err(e) = compare(want, &got, Bounds::of(DType::F64)) {
                    wrong.push(format!("{name}, {objective:?}, {:?}: {e}", case.sizes));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether the gradients of a step by each weight of an indexer are differences of the reported loss along a drawn direction:
/// what was looked at, and what is not so.
fn by_differences(
    c: &ModelConfig,
    objective: IndexerObjective,
    step: &[MicroBatch],
) -> (Vec<String>, Vec<String>) {
    let config = TrainConfig {
        loss: LossConfig { indexer: Some(training(objective)), ..LossConfig::default() },
        ..TrainConfig::steps(c.clone(), DType::F64, 16, 2)
    };
    let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let rank = |fabric: threads::ThreadFabric| -> ms_trainer::Result<_> {
        let grid = Grid::new(1, &GridSizes::default(), GridRules::V2)?;
        let ctx = ParallelCtx::new(grid, ParallelOptions::default(), &fabric)?;
        let mut engine = Engine::new(&config, ms_reference::device(), ctx)?;
        let reals = |o: OwnedPart| Ok((o.name, o.values.ready()?.to_reals()?));
        let owned = engine.owned_gradients(step)?.1.into_iter().map(reals);
        let gradients: BTreeMap<String, Vec<f64>> = owned.collect::<ms_core::Result<_>>()?;
        let names: Vec<String> = engine.model.specs().iter().map(|s| s.name.clone()).collect();
        let (mut looked, mut near, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        let of_indexers = of_indexers(c);
        for (i, name) in names.into_iter().enumerate().filter(|(_, name)| of_indexers.contains(name)) {
            let (id, gradient) = (ParamId(i as u32), &gradients[&name]);
            let before = engine.store.get(id).to_reals()?;
            let mut noise = vec![0f32; before.len()];
            Rng::named(3, &name).fill_normal(&mut noise, 1.0);
            let way: Vec<f64> = noise.iter().map(|&n| f64::from(n)).collect();
            // What is reported is a mean over layers.
            let mut along = |by: f64| -> ms_trainer::Result<f64> {
                let moved: Vec<f64> = before.iter().zip(&way).map(|(b, w)| b + by * w).collect();
                engine.store.get_mut(id)?.set_reals(&moved)?;
                Ok(engine.owned_gradients(step)?.0.indexer.unwrap() * c.layers as f64)
            };
            let want: f64 = way.iter().zip(gradient).map(|(w, g)| w * g).sum();
            let mut slopes = Vec::new();
            // So small a step that the same keys are picked and no score passes the kink of its ReLU; a smaller one where one
            // does, with more of the loss's rounding.
            for (by, rounding) in [(1e-6, 1e-9), (1e-7, 5e-9)] {
                let slope = (along(by)? - along(-by)?) / (2.0 * by);
                let bound = 1e-6 * want.abs().max(0.01 * norm(&way) * norm(gradient)) + rounding;
                slopes.push(slope);
                if (slope - want).abs() <= bound {
                    break;
                }
                near.push(name.clone());
            }
            along(0.0)?;
            if near.iter().filter(|n| **n == name).count() == slopes.len() {
                wrong.push(format!("{name}: {want:.9e}, differences say {slopes:?}"));
            }
            if norm(gradient) < 1e-5 {
                wrong.push(format!("{name}: the gradient is {}", norm(gradient)));
            }
            looked.push(name);
        }
        if near.len() > 2 {
            wrong.push(format!("too many weights have kinks so near: {near:?}"));
        }
        Ok((looked, wrong))
    };
    threads::run(1, rank).map_err(|(_, e)| e.to_string()).unwrap().remove(0)
}

#[test]
fn gradients_are_differences_of_the_reported_loss() {
    let made_up = [("picked".to_owned(), samples::picked()), ("pooled".to_owned(), samples::pooled())];
    let made_up = made_up.map(|(name, c)| (name, ModelConfig { init_std: 0.3, ..c }));
    let mut wrong = Vec::new();
    for (name, c) in made_up.into_iter().chain(picking()) {
        let steps = batches(&c, Shape { rows: 2, length: 16, micro: 2, packed: true }, 1);
        // Layers that pick themselves, with four weights or more each.
        let layers = (0..c.layers).filter(|&l| !c.layer(l).borrows_index);
        let pick =
            layers.filter(|&l| c.compressed().is_none() || c.layer(l).pooled.is_some_and(|p| p.picked));
        let least = 4 * pick.count();
        for objective in OBJECTIVES {
            let (looked, found) = by_differences(&c, objective, &steps[0]);
            assert!(least > 0 && looked.len() >= least, "{name}: {looked:?}");
            wrong.extend(found.into_iter().map(|found| format!("{name}, {objective:?}: {found}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_but_the_indexer_notices_its_loss() {
    for c in [samples::picked(), samples::pooled()] {
        // Rows of more keys than are picked: attention is that to picked keys with and without the loss.
        let steps = batches(&c, Shape { rows: 2, length: 24, micro: 2, packed: false }, 2);
        let of = |indexer| {
            let case = Case { indexer, ..Case::single() }.single_precision();
            run(&c, &case, Routing::default(), &steps).unwrap()
        };
        let (without, of_indexers) = (of(None), of_indexers(&c));
        for objective in OBJECTIVES {
            let with = of(Some(training(objective)));
            for (name, gradient) in &without.gradients {
                let moves = with.gradients[name].iter().any(|&d| d != 0.0);
                if of_indexers.contains(name) {
                    assert!(moves && gradient.iter().all(|&d| d == 0.0), "{name}");
                } else {
                    assert!(*gradient == with.gradients[name], "{name}");
                }
            }
            for (a, b) in without.reports.iter().zip(&with.reports) {
                assert_eq!((a.indexer, b.indexer.is_some()), (None, true));
            }
            // In the first step; then weights move with the norm of all gradients.
            assert_eq!(without.reports[0].loss, with.reports[0].loss);
        }
    }
}

#[test]
fn what_runs_again_or_leaves_the_device_changes_no_bit() {
    let none = SavePolicy::default();
    let all = usize::MAX;
    let save_policies = [
        SavePolicy { recompute_core_attention: true, ..none },
        SavePolicy { recompute_norms: all, ..none },
        SavePolicy { swapped: Swapped::ATTENTION, ..none },
        SavePolicy { recompute_operands: true, ..none },
        SavePolicy { recompute_attention: true, ..none },
        SavePolicy { swap_heads: true, ..none },
        SavePolicy {
            recompute_core_attention: true,
            recompute_norms: all,
            swapped: Swapped::ATTENTION,
            ..none
        },
    ];
    let cases = [
        Case::single(),
        Case::of(2, 2, 1, 1, 1).sequence_parallel(),
        Case::of(2, 1, 2, 1, 1),
        Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses),
        Case::of(4, 2, 1, 2, 1).sequence_parallel(),
    ];
    for c in [samples::picked(), samples::pooled()] {
        for (i, case) in cases.iter().enumerate() {
            let indexer = Some(training(OBJECTIVES[i % 3]));
            let case = Case { indexer, ..case.clone() }.single_precision();
            let plain = found(&c, &case);
            for recompute in [Recompute::Block(2), Recompute::Uniform(1), Recompute::Uniform(2)] {
                let what = format!("{recompute:?} {:?}", case.sizes);
                same(&what, &plain, &found(&c, &Case { recompute, ..case.clone() }));
            }
            for save_policy in save_policies {
                let latent = save_policy.recompute_operands
                    || save_policy.recompute_attention
                    || save_policy.swap_heads;
                if latent && c.mla().is_none() {
                    continue;
                }
                let what = format!("{save_policy:?} {:?}", case.sizes);
                same(&what, &plain, &found(&c, &Case { save_policy, ..case.clone() }));
            }
            let overlapped = Case { bucket_size: Some(300), overlap: true, ..case.clone() };
            same("sums beside the backward pass", &plain, &found(&c, &overlapped));
            same("three threads", &plain, &found(&c, &Case { threads: 3, ..case.clone() }));
        }
    }
}

/// What the plan says that the passes of a rank without stages keep, and send away.
fn planned(c: &ModelConfig, case: &Case) -> (usize, usize) {
    let activations = Activations {
        tokens: 64 / case.sizes.cp,
        row: 32 / case.sizes.cp,
        tp: case.sizes.tp,
        etp: case.sizes.tp,
        sequence_parallel: case.sequence_parallel,
        ulysses_and_ring: (case.sizes.ulysses, case.sizes.cp / case.sizes.ulysses),
        trains_indexer: case.indexer.is_some(),
        recompute: case.recompute,
        save_policy: case.save_policy,
        ..Activations::plain(64, case.dtype.size())
    };
    let placement = Placement::new(c, &case.stages).unwrap();
    let pass = activations.of_items(c, &placement.stage(0)[0], (0, 1));
    (pass.kept, pass.sent)
}

#[test]
fn what_trained_indexers_keep_is_planned() {
    let none = SavePolicy::default();
    let ways = [
        none,
        SavePolicy { recompute_core_attention: true, ..none },
        SavePolicy { recompute_norms: usize::MAX, ..none },
        SavePolicy { swapped: Swapped::ATTENTION, ..none },
    ];
    let cases = [
        Case::single(),
        Case::of(2, 2, 1, 1, 1),
        Case::of(2, 2, 1, 1, 1).sequence_parallel(),
        Case::of(2, 1, 2, 1, 1),
        Case::of(2, 1, 2, 1, 1).context(ContextParallel::Ulysses),
    ];
    let mut wrong = Vec::new();
    for (name, c) in [("picked", samples::picked()), ("pooled", samples::pooled())] {
        for (case, save_policy) in cases.iter().flat_map(|case| ways.map(|way| (case, way))) {
            // Attention to pooled entries has no core that is recomputed.
            if save_policy.recompute_core_attention && name == "pooled" {
                continue;
            }
            for (dtype, objective) in [(DType::F32, OBJECTIVES[0]), (DType::Bf16, OBJECTIVES[2])] {
                let indexer = Some(training(objective));
                let case = Case { dtype, save_policy, indexer, ..case.clone() };
                let steps = batches(&c, Shape { rows: 2, length: 32, micro: 1, packed: false }, 1);
                let bytes = run(&c, &case, Routing::default(), &steps).unwrap().bytes[0];
                let (kept, sent) = planned(&c, &case);
                for (what, planned, measured) in
                    [("keeps", kept, bytes.kept), ("sends", sent, bytes.host as usize)]
                {
                    let apart = (planned as f64 / measured.max(1) as f64 - 1.0).abs();
                    if planned != measured && apart > 0.02 {
                        let told = format!("{name}, {dtype}, {:?}, {save_policy:?}", case.sizes);
                        wrong.push(format!("{told}: {what} {measured}, planned were {planned}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
