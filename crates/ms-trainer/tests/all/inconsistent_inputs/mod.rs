//! Inconsistent inputs: what ranks are given is changed, on all of them or on the last alone, and the comparison with one
//! rank must detect it.

use crate::page;
use crate::parity::{Case, run, run_slipped};
use crate::random_topologies::{Draw, Model, model, shape};
use ms_core::ops::Auxiliary;
use ms_core::{Dispatcher, Rng};
use ms_data::MicroBatch;
use ms_dist::ContextParallel;
use ms_trainer::parity::{Bounds, DivergenceInjector, ParityError, Shape, batches, compare};
use ms_trainer::{Routing, TrainConfig, UpdateRule};

/// Weighs tokens as if every rank averaged over those of its own that count, and ranks were averaged then (findings 3 and 9):
/// weights of a rank's tokens sum to the same on all.
fn by_own_tokens(case: &Case, steps: &mut [Vec<MicroBatch>]) {
    let cp = case.sizes.cp;
    let dp = case.world / (case.sizes.tp * cp * case.sizes.pp);
    for step in steps {
        // The rank of each token: among replicas by its micro-batch, in a ring by the chunk of its row; ranks have one chunk
        // from each end.
        let owner = |micro: usize, one: &MicroBatch, token: usize| {
            let length = one.tokens.len() / one.row_ends.len();
            let chunk = token % length * 2 * cp / length;
            (micro % dp) * cp + chunk.min(2 * cp - 1 - chunk)
        };
        let micro_batches = if case.per_token_loss { 0..1 } else { 0..step.len() };
        for first in micro_batches {
            let together = if case.per_token_loss { 0..step.len() } else { first..first + 1 };
            let mut own = vec![0.0f32; cp * dp];
            for micro in together.clone() {
                for (token, weight) in step[micro].loss_mask.iter().enumerate() {
                    own[owner(micro, &step[micro], token)] += weight;
                }
            }
            let (all, ranks) = (own.iter().sum::<f32>(), own.iter().filter(|&&n| n > 0.0).count() as f32);
            for micro in together {
                let weights = (0..step[micro].loss_mask.len()).map(|token| {
                    step[micro].loss_mask[token] * all
                        / (ranks * own[owner(micro, &step[micro], token)].max(1.0))
                });
                step[micro].loss_mask = weights.collect();
            }
        }
    }
}

/// What ranks may get wrong without an exchange: masks and positions cut in the wrong place (7452's finding 5), borders of
/// documents forgotten, factors of the ranks in a loss or an update, dropout drawn for other samples. The data or the
/// coefficients of the whole run on several ranks are changed, on all of them alike: whether the comparison notices it.
type SlipOfAll = fn(&mut Case, &mut Routing, &mut [Vec<MicroBatch>]);

const SLIPS: [(&str, Model, [usize; 5], SlipOfAll); 11] = [
    ("means over each rank's own tokens", Model::Sinks, [1, 2, 1, 1, 1], |case, _, steps| {
        by_own_tokens(case, steps);
    }),
    ("means over each rank's own tokens", Model::Latent, [1, 2, 1, 1, 1], |case, _, steps| {
        by_own_tokens(case, steps);
    }),
    ("means over each replica's own tokens", Model::Dense, [1, 1, 1, 2, 1], |case, _, steps| {
        by_own_tokens(case, steps);
    }),
    ("masks one token on", Model::Latent, [2, 1, 2, 1, 1], |_, _, steps| {
        steps[0][0].loss_mask.rotate_left(1);
    }),
    ("labels one token on", Model::Dense, [1, 2, 1, 1, 1], |_, _, steps| steps[0][0].labels.rotate_left(1)),
    ("positions one on", Model::Dense, [1, 2, 1, 1, 1], |_, _, steps| {
        steps[0][0].position_ids.iter_mut().skip(3).for_each(|p| *p += 1);
    }),
    ("documents that see each other", Model::Hybrid, [1, 2, 1, 1, 1], |_, _, steps| {
        let one = &mut steps[0][0];
        let ends: Vec<i32> = one.row_ends.iter().map(|&e| e as i32).collect();
        one.cu_seqlens = std::iter::once(0).chain(ends).collect();
    }),
    ("a loss of routers for each rank", Model::Experts, [2, 1, 1, 1, 1], |_, routing, _| {
        routing.auxiliary.experts *= 2.0;
    }),
    ("logits kept small by each rank", Model::Experts, [1, 2, 1, 1, 1], |_, routing, _| {
        routing.auxiliary.z *= 2.0;
    }),
    ("biases moved by each rank", Model::Latent, [1, 1, 1, 2, 1], |_, routing, _| {
        routing.bias_update_rate *= 100.0;
    }),
    ("dropout of other samples", Model::Dense, [2, 1, 1, 1, 1], |_, _, steps| {
        let one = &mut steps[0][0];
        one.samples = (1..=one.row_ends.len() as u64).collect();
    }),
];

/// A row of the page's tables of slips.
fn slipped(what: &str, kind: Model, sizes: [usize; 5], outcome: &Result<(), ParityError>) -> String {
    let seen = outcome.as_ref().err().map_or("nothing".into(), ParityError::what);
    let [tp, cp, pp, dp, ep] = sizes;
    format!("| {what} | {kind:?} | {tp}, {cp}, {pp}, {dp}, {ep} | {seen} |\n")
}

/// The head of such a table.
const SLIP_HEAD: &str = "| what slips | model | tp, cp, pp, dp, ep | first seen in |\n|---|---|---|---|\n";

#[test]
fn every_slip_without_an_exchange_is_noticed() {
    let mut rows = String::new();
    for (what, kind, sizes, slip) in SLIPS {
        let mut draw = Draw(Rng::named(5, what));
        let [tp, cp, pp, dp, ep] = sizes;
        let per_token_loss = what == "means over each replica's own tokens";
        let mut case = Case { dropout: 0.1, per_token_loss, ..Case::of(tp * cp * pp * dp, tp, cp, pp, ep) }
            .context(ContextParallel::Ring { window: 1 });
        let config = model(kind, &case, &mut draw).validate().unwrap();
        let auxiliary = Auxiliary { experts: 0.02, z: 1e-3, ..Auxiliary::default() };
        let mut routing = Routing { auxiliary, bias_update_rate: 1e-3, ..Routing::default() };
        let shape = Shape { packed: true, ..shape(&case, &mut draw) };
        let mut steps = batches(&config, shape, 3);
        let want = run(&config, &case.alone(), routing, &steps).unwrap();
        let sound = run(&config, &case, routing, &steps).unwrap();
        compare(&want, &sound, Bounds::of(case.dtype)).unwrap();
        slip(&mut case, &mut routing, &mut steps);
        let outcome =
            run(&config, &case, routing, &steps).and_then(|got| compare(&want, &got, Bounds::of(case.dtype)));
        let row = slipped(what, kind, sizes, &outcome);
        print!("{row}");
        rows += &row;
        assert!(outcome.is_err(), "{what} on {kind:?} {sizes:?} is not noticed");
    }
    page::write("slips", &format!("{SLIP_HEAD}{rows}"));
}

/// The same on one rank alone, the last: the others do what is right.
type OneSlip = fn(&mut TrainConfig, &mut [Vec<MicroBatch>]);

const SLIPS_OF_ONE: [(&str, Model, [usize; 5], OneSlip); 18] = [
    // A rank that takes other turns than those with which it exchanges tokens.
    ("passes in turn", Model::Experts, [1, 1, 1, 2, 2], |config, _| config.pipeline.overlap_passes = false),
    ("passes in turn", Model::Latent, [1, 1, 1, 2, 2], |config, _| config.pipeline.overlap_passes = false),
    ("masks one token on", Model::Dense, [1, 2, 1, 1, 1], |_, steps| steps[0][0].loss_mask.rotate_left(1)),
    ("masks one token on", Model::Latent, [2, 1, 1, 1, 1], |_, steps| steps[0][0].loss_mask.rotate_left(1)),
    ("masks one token on", Model::Sinks, [1, 1, 2, 1, 1], |_, steps| steps[0][0].loss_mask.rotate_left(1)),
    ("labels one token on", Model::Latent, [1, 2, 1, 1, 1], |_, steps| steps[0][0].labels.rotate_left(1)),
    ("labels one token on", Model::Dense, [2, 1, 1, 1, 1], |_, steps| steps[0][0].labels.rotate_left(1)),
    ("positions one on", Model::Dense, [1, 2, 1, 1, 1], |_, steps| {
        steps[0][0].position_ids.iter_mut().for_each(|p| *p += 1);
    }),
    ("documents that see each other", Model::Sinks, [2, 1, 1, 1, 1], |_, steps| {
        let one = &mut steps[0][0];
        let ends: Vec<i32> = one.row_ends.iter().map(|&e| e as i32).collect();
        one.cu_seqlens = std::iter::once(0).chain(ends).collect();
    }),
    ("a micro-batch of the other replica", Model::Dense, [1, 1, 1, 2, 1], |_, steps| {
        steps[0][1] = steps[0][0].clone();
    }),
    ("a loss of routers", Model::Experts, [2, 1, 1, 1, 1], |config, _| {
        config.routing.auxiliary.experts *= 2.0;
    }),
    ("logits kept small", Model::Experts, [1, 1, 1, 2, 2], |config, _| config.routing.auxiliary.z *= 2.0),
    ("biases moved", Model::Latent, [2, 1, 1, 1, 1], |config, _| config.routing.bias_update_rate *= 100.0),
    ("dropout of another seed", Model::Dense, [1, 2, 1, 1, 1], |config, _| config.seed += 1),
    // A mean over a rank's own tokens, where masks leave ranks unequal many (finding 3).
    ("losses of predictions", Model::Latent, [1, 2, 1, 1, 1], |config, _| config.loss.mtp_scale *= 1.1),
    ("losses of predictions", Model::Latent, [1, 1, 1, 2, 1], |config, _| config.loss.mtp_scale *= 1.1),
    ("another limit of the gradient's norm", Model::Hybrid, [1, 1, 1, 2, 1], |config, _| {
        config.optimizer.clip_grad *= 0.01;
    }),
    ("another rule of updates", Model::Experts, [1, 1, 2, 1, 1], |config, _| {
        config.optimizer.update = UpdateRule::Sgd { momentum: 0.5 };
    }),
];

#[test]
fn every_slip_of_one_rank_is_noticed() {
    let mut rows = String::new();
    for (what, kind, sizes, slip) in SLIPS_OF_ONE {
        let mut draw = Draw(Rng::named(6, what));
        let [tp, cp, pp, dp, ep] = sizes;
        let per_token_loss = what == "losses of predictions";
        let mut case = Case { dropout: 0.1, per_token_loss, ..Case::of(tp * cp * pp * dp, tp, cp, pp, ep) }
            .context(ContextParallel::Ring { window: 1 });
        if what == "passes in turn" {
            (case.overlap_passes, case.dispatcher) = (true, Dispatcher::AllToAll);
        }
        let config = model(kind, &case, &mut draw).validate().unwrap();
        let auxiliary = Auxiliary { experts: 0.02, z: 1e-3, ..Auxiliary::default() };
        let routing = Routing { auxiliary, bias_update_rate: 1e-3, ..Routing::default() };
        let shape = Shape { packed: true, ..shape(&case, &mut draw) };
        let steps = batches(&config, shape, 3);
        let want = run(&config, &case.alone(), routing, &steps).unwrap();
        let with = |slip: DivergenceInjector<'_>| {
            run_slipped(&config, &case, routing, &steps, slip)
                .and_then(|got| compare(&want, &got, Bounds::of(case.dtype)))
        };
        with(&|_, _, _| {}).unwrap();
        let outcome = with(&|rank, config, steps| {
            if rank + 1 == case.world {
                slip(config, steps);
            }
        });
        let row = slipped(what, kind, sizes, &outcome);
        print!("{row}");
        rows += &row;
        assert!(outcome.is_err(), "{what} on the last rank, {kind:?} {sizes:?}, is not noticed");
    }
    page::write("slips of one", &format!("{SLIP_HEAD}{rows}"));
}
