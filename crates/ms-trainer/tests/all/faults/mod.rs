//! Faults injected into communication, one at a time, each of which must be detected.

use crate::matrix::{DRAWN_APART, TRIES, all, drawn, seed};
use crate::page;
use crate::parity::{Case, Fault, Wrong, alone_routing, apart, run, run_noted, run_with};
use crate::random_topologies::{Draw, MODELS, Model, Run, model, shape};
use ms_core::ops::Auxiliary;
use ms_core::{Dispatcher, Rng};
use ms_dist::{ContextParallel, TokenMapping};
use ms_nn::{IndexerObjective, Recompute};
use ms_spec::ModelConfig;
use ms_trainer::parity::{Bounds, batches, compare};
use ms_trainer::{IndexerTraining, Routing};
use std::collections::{BTreeMap, BTreeSet};

/// Faults and the kind of run that must detect them. Those after the first 32 are of the kinds that Megatron-LM's issue 7452
/// and related ones report for combinations of parallelism: norms of replicated values counted wrongly, losses and counts
/// computed by each rank for itself, gradients of shared weights that are not summed, exchanges of the previous pass.
const FAULTS: [(&str, Wrong, Model, [usize; 5]); 100] = [
    ("enter_tp", Wrong::Missing, Model::Dense, [2, 1, 1, 1, 1]),
    ("enter_tp", Wrong::Twice, Model::Dense, [2, 1, 1, 1, 1]),
    ("leave_tp", Wrong::Missing, Model::Dense, [2, 1, 1, 1, 1]),
    ("leave_tp", Wrong::Twice, Model::Experts, [2, 1, 1, 1, 1]),
    ("shared heads", Wrong::Reversed, Model::Dense, [4, 1, 1, 1, 1]),
    ("shared heads", Wrong::Stale, Model::Dense, [4, 1, 1, 1, 1]),
    ("loss statistics", Wrong::Twice, Model::Dense, [2, 1, 1, 1, 1]),
    ("loss statistics", Wrong::Stale, Model::Dense, [2, 1, 1, 1, 1]),
    ("shared gradients", Wrong::Missing, Model::Dense, [1, 1, 2, 1, 1]),
    ("shared gradients", Wrong::Twice, Model::Dense, [1, 1, 2, 1, 1]),
    ("shared gradients", Wrong::Missing, Model::Latent, [2, 1, 1, 1, 1]),
    ("shared gradients", Wrong::Missing, Model::Hybrid, [2, 1, 1, 1, 1]),
    ("gradients", Wrong::Missing, Model::Dense, [1, 1, 1, 2, 1]),
    ("gradients", Wrong::Twice, Model::Dense, [1, 1, 1, 2, 1]),
    ("gradients", Wrong::Missing, Model::Experts, [1, 1, 1, 2, 2]),
    ("weights", Wrong::Reversed, Model::Dense, [1, 1, 1, 2, 1]),
    ("weights", Wrong::Stale, Model::Dense, [1, 1, 1, 2, 1]),
    ("a border", Wrong::Stale, Model::Dense, [1, 1, 2, 1, 1]),
    ("gradients of a border", Wrong::Stale, Model::Dense, [1, 1, 2, 1, 1]),
    ("gradients of a border", Wrong::Twice, Model::Sinks, [1, 1, 3, 1, 1]),
    ("keys and values", Wrong::Stale, Model::Dense, [1, 3, 1, 1, 1]),
    ("gradients of keys and values", Wrong::Twice, Model::Dense, [1, 2, 1, 1, 1]),
    ("gradients of keys and values", Wrong::Stale, Model::Sinks, [1, 2, 1, 1, 1]),
    ("heads for tokens", Wrong::Reversed, Model::Dense, [1, 2, 1, 1, 1]),
    ("tokens for heads", Wrong::Reversed, Model::Dense, [1, 2, 1, 1, 1]),
    ("exchange_rows", Wrong::Twice, Model::Experts, [1, 1, 1, 2, 2]),
    // Rows of the overlapped pass: what it has exchanged just before.
    ("exchange_rows", Wrong::Stale, Model::Experts, [1, 1, 1, 2, 2]),
    ("exchange_rows", Wrong::Stale, Model::Latent, [1, 2, 1, 1, 2]),
    ("rows per expert", Wrong::Reversed, Model::Experts, [1, 1, 1, 2, 2]),
    ("tokens per expert", Wrong::Missing, Model::Experts, [1, 2, 1, 1, 1]),
    ("expert load", Wrong::Missing, Model::Latent, [1, 1, 1, 2, 1]),
    ("squared norm", Wrong::Missing, Model::Dense, [2, 1, 1, 1, 1]),
    ("loss", Wrong::Missing, Model::Dense, [1, 1, 1, 2, 1]),
    ("loss", Wrong::Twice, Model::Dense, [1, 1, 2, 1, 1]),
    // The norm of sinks, which ranks share by heads, and of experts on ranks of their own (7452's finding 8; PR 5916).
    ("squared norm", Wrong::Missing, Model::Sinks, [2, 1, 1, 1, 1]),
    ("squared norm", Wrong::Missing, Model::Experts, [1, 1, 1, 2, 2]),
    ("squared norm", Wrong::Twice, Model::Latent, [1, 1, 2, 1, 1]),
    // Losses that each context-parallel rank has for itself (finding 9).
    ("loss", Wrong::Missing, Model::Sinks, [1, 2, 1, 1, 1]),
    // Routers that count tokens twice or for themselves (finding 10).
    ("tokens per expert", Wrong::Twice, Model::Experts, [1, 2, 1, 1, 1]),
    ("expert load", Wrong::Twice, Model::Latent, [1, 1, 1, 2, 1]),
    // The output norm of a delta net, whose weight all ranks hold and see some heads of (finding 11).
    ("shared gradients", Wrong::Twice, Model::Hybrid, [2, 1, 1, 1, 1]),
    ("shared gradients", Wrong::Stale, Model::Hybrid, [2, 1, 1, 1, 1]),
    // Logits or labels of another rank's share of the vocabulary (findings 1 and 2).
    ("loss statistics", Wrong::Stale, Model::Latent, [3, 1, 1, 1, 1]),
    // Values of another replica or of the pass before (finding 4: inputs of recomputed layers, of which each rank keeps a
    // part).
    ("inputs of layers", Wrong::Stale, Model::Latent, [2, 1, 1, 1, 1]),
    ("inputs of layers", Wrong::Reversed, Model::Dense, [2, 1, 1, 1, 1]),
    ("leave_tp", Wrong::Stale, Model::Dense, [2, 1, 1, 1, 1]),
    ("enter_tp", Wrong::Stale, Model::Latent, [2, 1, 1, 1, 1]),
    ("heads for tokens", Wrong::Stale, Model::Hybrid, [1, 2, 1, 1, 1]),
    ("gradients", Wrong::Stale, Model::Sinks, [1, 1, 1, 2, 1]),
    ("gradients", Wrong::Twice, Model::Experts, [1, 1, 1, 2, 2]),
    // Inputs of column-parallel layers, gathered a second time for the gradients of their weights.
    ("gathered again", Wrong::Reversed, Model::Dense, [2, 1, 1, 1, 1]),
    ("gathered again", Wrong::Stale, Model::Latent, [2, 1, 1, 1, 1]),
    // The ways of tokens to experts.
    ("gather_rows", Wrong::Reversed, Model::Experts, [1, 1, 1, 2, 2]),
    ("sum_rows", Wrong::Missing, Model::Experts, [1, 1, 1, 2, 2]),
    ("sum_rows", Wrong::Stale, Model::Latent, [1, 2, 1, 1, 2]),
    ("choices", Wrong::Reversed, Model::Experts, [1, 1, 1, 2, 2]),
    ("tokens for columns", Wrong::Reversed, Model::Experts, [2, 1, 1, 1, 1]),
    ("columns for tokens", Wrong::Reversed, Model::Experts, [2, 1, 1, 1, 1]),
    ("router logits", Wrong::Reversed, Model::Experts, [2, 1, 1, 1, 1]),
    // Blocks of attention that other ranks work on.
    ("queries", Wrong::Twice, Model::Dense, [1, 4, 1, 1, 1]),
    ("outputs of queries", Wrong::Stale, Model::Dense, [1, 4, 1, 1, 1]),
    ("gradients of queries", Wrong::Twice, Model::Dense, [1, 4, 1, 1, 1]),
    // What is gathered of documents for queries that pick keys or see pooled entries.
    ("latents", Wrong::Reversed, Model::Picked, [1, 2, 1, 1, 1]),
    ("latents", Wrong::Twice, Model::Picked, [2, 2, 1, 1, 1]),
    ("latents", Wrong::Stale, Model::Picked, [1, 3, 1, 1, 1]),
    ("rotated keys", Wrong::Reversed, Model::Picked, [1, 2, 1, 1, 1]),
    ("rotated keys", Wrong::Stale, Model::Picked, [1, 2, 1, 1, 1]),
    ("keys to pick", Wrong::Reversed, Model::Picked, [1, 2, 1, 1, 1]),
    ("keys to pick", Wrong::Stale, Model::Picked, [1, 3, 1, 1, 1]),
    ("rows of tokens", Wrong::Reversed, Model::Pooled, [1, 2, 1, 1, 1]),
    ("rows of tokens", Wrong::Twice, Model::Pooled, [1, 3, 1, 1, 1]),
    ("rows of tokens", Wrong::Stale, Model::Pooled, [2, 2, 1, 1, 1]),
    ("rows to pool", Wrong::Reversed, Model::Pooled, [1, 2, 1, 1, 1]),
    ("rows to pool", Wrong::Stale, Model::Pooled, [1, 3, 1, 1, 1]),
    ("gates of rows", Wrong::Reversed, Model::Pooled, [1, 2, 1, 1, 1]),
    ("gates of rows", Wrong::Twice, Model::Pooled, [1, 2, 1, 1, 1]),
    // Ranks that exchange heads of their queries for tokens.
    ("picks", Wrong::Reversed, Model::Picked, [1, 2, 1, 1, 1]),
    ("picks", Wrong::Stale, Model::Picked, [1, 4, 1, 1, 1]),
    ("picks", Wrong::Reversed, Model::Pooled, [1, 2, 1, 1, 1]),
    ("heads for tokens", Wrong::Reversed, Model::Picked, [1, 2, 1, 1, 1]),
    ("tokens for heads", Wrong::Stale, Model::Pooled, [2, 2, 1, 1, 1]),
    // Of the backward pass alone.
    ("latents again", Wrong::Reversed, Model::Picked, [1, 2, 1, 1, 1]),
    ("rotated keys again", Wrong::Stale, Model::Picked, [1, 2, 1, 1, 1]),
    ("gradients of latents", Wrong::Twice, Model::Picked, [1, 2, 1, 1, 1]),
    ("gradients of rotated keys", Wrong::Stale, Model::Picked, [2, 2, 1, 1, 1]),
    ("rows of tokens again", Wrong::Reversed, Model::Pooled, [1, 2, 1, 1, 1]),
    ("gradients of rows of tokens", Wrong::Twice, Model::Pooled, [1, 3, 1, 1, 1]),
    ("rows to pool again", Wrong::Reversed, Model::Pooled, [1, 2, 1, 1, 1]),
    ("gradients of rows to pool", Wrong::Twice, Model::Pooled, [1, 2, 1, 1, 1]),
    ("gates of rows again", Wrong::Reversed, Model::Pooled, [1, 2, 1, 1, 1]),
    ("gradients of gates of rows", Wrong::Twice, Model::Pooled, [1, 3, 1, 1, 1]),
    // What trains indexers: attention's weights of all heads, and the gradients of their keys.
    ("weights of heads", Wrong::Missing, Model::Picked, [2, 1, 1, 1, 1]),
    ("weights of heads", Wrong::Stale, Model::Pooled, [2, 1, 1, 1, 1]),
    ("weights of attention", Wrong::Missing, Model::Picked, [1, 2, 1, 1, 1]),
    ("weights of attention", Wrong::Stale, Model::Picked, [1, 2, 1, 1, 1]),
    ("gradients of keys to pick", Wrong::Twice, Model::Picked, [1, 2, 1, 1, 1]),
    ("gradients of keys to pick", Wrong::Stale, Model::Picked, [2, 2, 1, 1, 1]),
    ("all_tokens", Wrong::Reversed, Model::Picked, [2, 1, 1, 1, 1]),
    ("loss of indexers", Wrong::Missing, Model::Picked, [1, 2, 1, 1, 1]),
    ("loss of indexers", Wrong::Twice, Model::Pooled, [1, 1, 2, 1, 1]),
];

/// Exchanges that do not occur if nothing trains the indexers.
const OF_TRAINED_INDEXERS: [&str; 5] = [
    "weights of heads",
    "weights of attention",
    "gradients of keys to pick",
    "all_tokens",
    "loss of indexers",
];

#[test]
fn every_planted_fault_is_noticed() {
    let (mut unnoticed, mut found) = (Vec::new(), String::new());
    for (exchange, wrong, kind, sizes) in FAULTS {
        let [tp, cp, pp, dp, ep] = sizes;
        let mut case = Case::of(tp * cp * pp * dp, tp, cp, pp, ep);
        case.dispatcher = match exchange {
            "exchange_rows" | "rows per expert" => Dispatcher::AllToAll,
            "tokens for columns" | "columns for tokens" | "router logits" => Dispatcher::AllToAllSeq,
            _ => Dispatcher::AllGather,
        };
        if exchange == "inputs of layers" {
            case.recompute = Recompute::Uniform(1);
            case.save_policy.inputs_shared = true;
        }
        case.overlap_passes = exchange == "exchange_rows" && wrong == Wrong::Stale;
        case.sequence_parallel =
            matches!(exchange, "gathered again" | "all_tokens") || case.dispatcher == Dispatcher::AllToAllSeq;
        if OF_TRAINED_INDEXERS.contains(&exchange) {
            case.indexer = Some(IndexerTraining { objective: IndexerObjective::MindSpeed, coeff: 0.5 });
        }
        let ulysses =
            matches!(exchange, "heads for tokens" | "tokens for heads" | "picks" | "weights of attention");
        case = case.context(if ulysses {
            ContextParallel::Ulysses
        } else if matches!(kind, Model::Picked | Model::Pooled) {
            ContextParallel::Gather
        } else if exchange.ends_with("queries") {
            ContextParallel::Adaptive { ulysses: 1, remap: TokenMapping::InOrder }
        } else {
            ContextParallel::Ring { window: 1 }
        });
        // The first drawing of a model whose ranks exchange it.
        let exchanges = |c: &ModelConfig| match (exchange, kind) {
            ("shared heads", _) => !c.groups.is_multiple_of(tp),
            ("shared gradients", Model::Hybrid) => c.gated_delta.is_some(),
            _ => true,
        };
        let drawn = |seed| {
            let mut draw = Draw(Rng::named(seed, exchange));
            (model(kind, &case, &mut draw), draw)
        };
        let (config, mut draw) = (3..50).map(drawn).find(|(c, _)| exchanges(c)).unwrap();
        let config = config.validate().unwrap();
        let auxiliary = Auxiliary { experts: 0.02, ..Auxiliary::default() };
        let routing = Routing { auxiliary, bias_update_rate: 1e-3, ..Routing::default() };
        let steps = batches(&config, shape(&case, &mut draw), 3);
        let want = run(&config, &case.alone(), routing, &steps).unwrap();
        let sound = run(&config, &case, routing, &steps).unwrap();
        compare(&want, &sound, Bounds::of(case.dtype)).unwrap();
        let fault = Fault { exchange, wrong };
        let outcome = run_with(&config, &case, routing, &steps, Some(fault))
            .and_then(|got| compare(&want, &got, Bounds::of(case.dtype)));
        match outcome {
            Ok(()) => unnoticed.push(format!("{exchange} {wrong:?} on {kind:?} {sizes:?}")),
            Err(e) => {
                println!("{exchange} {wrong:?}: {kind:?} {sizes:?}: {e}");
                let [tp, cp, pp, dp, ep] = sizes;
                let what = e.what();
                found += &format!(
                    "| {exchange} | {wrong:?} | {kind:?} | {tp}, {cp}, {pp}, {dp}, {ep} | {what} |\n"
                );
            }
        }
    }
    let head = "| exchange | what goes wrong | model | tp, cp, pp, dp, ep | first seen in |\n|---|---|---|---|---|\n";
    page::write("faults", &format!("{head}{found}"));
    assert!(unnoticed.is_empty(), "{} faults are not noticed:\n{}", unnoticed.len(), unnoticed.join("\n"));
}

/// Looks for a drawn run that notices each fault of the drawn kinds of models: runs of few ranks come first, each with every
/// fault of what its ranks exchange that none before it has noticed. All of it goes by the numbers of the full form.
fn noticed_by(runs: &[Run], enough: usize) -> BTreeMap<(&'static str, Wrong), (usize, String)> {
    let kinds: BTreeSet<_> = FAULTS
        .iter()
        .filter(|(_, _, kind, _)| MODELS.contains(kind))
        .map(|(exchange, wrong, ..)| (*exchange, *wrong))
        .collect();
    let mut noticed = BTreeMap::new();
    let mut order: Vec<(usize, &Run)> = (1..).zip(runs).filter(|(_, run)| run.ranks() > 1).collect();
    order.sort_by_key(|(number, run)| (run.ranks(), *number));
    for (number, drawn) in order {
        if noticed.len() >= enough.min(kinds.len()) {
            break;
        }
        let Run { case, config, routing, shape, .. } = drawn;
        let config = config.clone().validate().unwrap();
        let routing = Routing { watch_margins: true, ..*routing };
        let of_one = alone_routing(&config, case, routing, (shape.length, shape.rows)).unwrap();
        let steps = apart(&config, case, routing, (*shape, 3), (DRAWN_APART, TRIES)).unwrap();
        let want = run(&config, &case.alone(), of_one, &steps).unwrap();
        let (sound, exchanged) = run_noted(&config, case, routing, &steps).unwrap();
        compare(&want, &sound, Bounds::of(case.dtype)).unwrap();
        for &(exchange, wrong) in kinds.iter().filter(|(exchange, _)| exchanged.contains(*exchange)) {
            if noticed.contains_key(&(exchange, wrong)) {
                continue;
            }
            let outcome = run_with(&config, case, routing, &steps, Some(Fault { exchange, wrong }))
                .and_then(|got| compare(&want, &got, Bounds::of(case.dtype)));
            if let Err(e) = outcome {
                println!("{exchange} {wrong:?}: run {number}: {e}");
                noticed.insert((exchange, wrong), (number, e.what()));
            }
        }
    }
    let missing: Vec<_> = kinds.iter().filter(|kind| !noticed.contains_key(*kind)).collect();
    assert!(noticed.len() >= enough.min(kinds.len()), "no drawn run notices {missing:?}");
    noticed
}

/// Faults that the short form looks for.
const FEW: usize = 25;

#[test]
fn drawn_runs_notice_planted_faults() {
    let enough = if all() { usize::MAX } else { FEW };
    let runs = drawn(seed(), all()).runs;
    let mut rows = String::new();
    for ((exchange, wrong), (number, seen)) in noticed_by(&runs, enough) {
        let Run { kind, sizes: [tp, cp, pp, dp, ep], .. } = runs[number - 1];
        rows += &format!(
            "| {exchange} | {wrong:?} | {number}: {kind:?} | {tp}, {cp}, {pp}, {dp}, {ep} | {seen} |\n"
        );
    }
    if all() {
        let head = "| exchange | what goes wrong | run | tp, cp, pp, dp, ep | first seen in |\n|---|---|---|---|---|\n";
        page::write("faults of runs", &format!("{head}{rows}"));
    }
}
