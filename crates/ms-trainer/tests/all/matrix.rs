//! Random models on random topologies: every gradient, loss and norm as on one rank, to ten digits on the reference device
//! and to float32 precision on the kernels, where a second run with more threads has the same bits; and injected faults, each
//! of which must be detected.
//!
//! `MS_PARITY=all` runs every choice of sizes up to eight ranks for every model, 20 steps each, and as many more as it takes
//! for every pair of values to occur; without it some thirty small ones, chosen for their pairs, and one each on seven and
//! eight ranks, run three steps. `MS_PARITY_SEED` draws others; `MS_PARITY_ONLY=17,90` takes those with these numbers in a
//! full run.

use crate::page;
use crate::parity::{Case, alone_routing, apart, other_bits, rehearsed, run};
use crate::random_topologies::pairs::Pairs;
use crate::random_topologies::{Draw, MODELS, Run, sizes};
use ms_core::{DType, Dispatcher, Rng};
use ms_dist::ContextParallel;
use ms_trainer::Routing;
use ms_trainer::parity::{Bounds, Found, ParityError, compare};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What a run that equals one rank's has shown besides.
struct Shown {
    /// The least margins of routers in f64 and f32.
    margins: [f64; 2],
    /// An expert got no token.
    without_tokens: bool,
    /// What ranks sent was counted and is what a rehearsal says.
    counted: bool,
    /// How often weights and micro-batches were drawn again until float32 was steady on one rank.
    again: u64,
}

/// By how much the choices of routers must be ahead of others, so that rounding picks the same experts on every topology.
const MARGIN: f64 = 1e-4;
/// What micro-batches are drawn for in f64, on one rank: rounding to f32 takes a little of it.
pub(crate) const DRAWN_APART: f64 = 1.2e-4;
/// How often a micro-batch is drawn at most.
pub(crate) const TRIES: usize = 10_000;

/// By how much the norms of one rank in f32 may differ from its norms in f64. Where a norm divides by what is nearly zero a
/// single token takes digits of a whole gradient, on one rank as on many.
const STEADY: f64 = 2e-6;
/// How often weights and micro-batches are drawn for that at most.
const DRAWINGS: u64 = 20;

/// The largest difference of the norms of gradients, relative to them or to one.
fn unsteady(wide: &Found, single: &Found) -> f64 {
    let pairs = wide.reports.iter().zip(&single.reports);
    pairs.map(|(w, s)| (w.grad_norm - s.grad_norm).abs() / w.grad_norm.max(1.0)).fold(0.0, f64::max)
}

/// The bounds of a type, with every difference relative to the value itself, however small it is.
fn strict(dtype: DType) -> Bounds {
    Bounds { floor: 0.0, gradient_floor: 0.0, ..Bounds::of(dtype) }
}

/// Compares a run with one rank over `count` steps in f64 and, `also_single`, in f32.
fn check(drawn: &Run, count: usize, also_single: bool) -> Result<Shown, String> {
    let Run { kind, sizes, case, config, routing, shape } = drawn;
    let what = format!("{kind:?} (tp, cp, pp, dp, ep) {sizes:?} {case:?} {routing:?} {shape:?}");
    let config = config.clone().validate().map_err(|e| format!("{what}: {e}"))?;
    let told = |e: ParityError| format!("{what}: {e}");
    let routing = Routing { watch_margins: true, ..*routing };
    let least = |found: &Found| {
        let margins = found.reports.iter().filter_map(|r| r.experts.as_ref()?.margin);
        margins.fold(f64::INFINITY, f64::min)
    };
    let of_one = alone_routing(&config, case, routing, (shape.length, shape.rows)).map_err(told)?;
    // Of weights with which float32 is steady on one rank.
    let mut steady = None;
    for again in 0..DRAWINGS {
        let case = Case { seed: case.seed + 1000 * again, ..case.clone() };
        let steps = apart(&config, &case, routing, (*shape, count), (DRAWN_APART, TRIES)).map_err(told)?;
        let want = run(&config, &case.alone(), of_one, &steps).map_err(told)?;
        let single = if also_single {
            Some(run(&config, &case.clone().single_precision().alone(), of_one, &steps).map_err(told)?)
        } else {
            None
        };
        if single.as_ref().is_none_or(|single| unsteady(&want, single) <= STEADY) {
            steady = Some((again, case, steps, want, single));
            break;
        }
    }
    let (again, case, steps, want, single) = steady.ok_or_else(|| {
        format!("{what}: with none of {DRAWINGS} weights are the norms of one rank in f32 within {STEADY:e} of its norms in f64")
    })?;
    let case = &case;
    let mut margins = [least(&want), f64::INFINITY];
    let got = run(&config, case, routing, &steps).map_err(told)?;
    compare(&want, &got, strict(case.dtype)).map_err(told)?;
    let loads = want.reports.iter().filter_map(|r| r.experts.as_ref());
    let without_tokens = loads.flat_map(|e| e.tokens.values().flatten()).any(|&n| n == 0);
    // What goes from rank to rank depends on routers where each token is sent to its experts.
    let counted = match (&config.moe, case.dispatcher) {
        // Nor is the work for packed documents distributed like that for a rehearsal's rows.
        _ if matches!(case.context, ContextParallel::Adaptive { .. }) && shape.packed => false,
        (None, _) => true,
        // How often a choice is balanced depends on values, too, and how many copies have experts with weights.
        (Some(moe), dispatcher) => {
            let all_come = dispatcher == Dispatcher::AllGather;
            !routing.sinkhorn && (all_come || (case.sizes.ep == 1 && moe.zero_experts == 0))
        }
    };
    if counted {
        for (rank, planned) in rehearsed(&config, case, routing, *shape).map_err(told)?.iter().enumerate() {
            let sent = &got.step_sent[rank];
            if planned.sent != *sent {
                return Err(format!("{what}: rank {rank} sent {sent:?}, planned were {:?}", planned.sent));
            }
        }
    }
    if let Some(want) = single {
        let case = case.clone().single_precision();
        let told = |e: ParityError| format!("in f32: {what}: {e}");
        margins[1] = least(&want);
        let got = run(&config, &case, routing, &steps).map_err(told)?;
        let bounds = Bounds { gradient: 2e-5, norm: 2e-5, routers_of_all_steps: true, ..strict(case.dtype) };
        compare(&want, &got, bounds).map_err(told)?;
        let threads = 2 + case.seed as usize % 3;
        let second = run(&config, &Case { threads, ..case }, routing, &steps).map_err(told)?;
        if let Some(differs) = other_bits(&got, &second) {
            return Err(format!("{what}: a second run, of {threads} threads: {differs}"));
        }
    }
    Ok(Shown { margins, without_tokens, counted, again })
}

/// Additional draws of every choice of sizes; those with new pairs of values are run.
const VARIANTS: usize = 8;
/// Those of a full run at first; then as many more as there are, again and again, until a doubling brings no new pair.
const VARIANTS_OF_ALL: usize = 48;
/// More are not drawn.
const MOST: usize = 4000;
/// Runs of the short form.
const FEW: usize = 48;

/// Runs, by kind; the pairs of values that occur in them, of how many drawings of each choice, and choices that a rule refuses.
pub(crate) struct Drawn {
    pub(crate) runs: Vec<Run>,
    seen: Pairs,
    drawings: usize,
    refused: usize,
}

/// What `MS_PARITY_SEED` says.
pub(crate) fn seed() -> u64 {
    std::env::var("MS_PARITY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// Whether all runs are requested.
pub(crate) fn all() -> bool {
    std::env::var("MS_PARITY").is_ok_and(|v| v == "all")
}

/// The runs of the full form or of the short one.
pub(crate) fn drawn(seed: u64, all: bool) -> Drawn {
    let choices = |variants: std::ops::RangeInclusive<usize>| {
        let each = MODELS.into_iter().flat_map(|kind| sizes().into_iter().map(move |s| (kind, s)));
        each.flat_map(move |(kind, s)| variants.clone().map(move |v| Run::draw(kind, s, (seed, v))))
    };
    let refused = choices(0..=0).filter(Option::is_none).count();
    let mut drawings = if all { VARIANTS_OF_ALL } else { VARIANTS };
    let pool: Vec<Run> = choices(0..=drawings).flatten().collect();
    let mut seen = Pairs::default();
    let runs = if all {
        let mut runs: Vec<Run> = choices(0..=0).flatten().collect();
        runs.iter().for_each(|run| seen.add(run));
        runs.extend(seen.covering(pool, usize::MAX));
        loop {
            let new = seen.covering(choices(drawings + 1..=2 * drawings).flatten(), usize::MAX);
            drawings *= 2;
            println!("{drawings} drawings of each choice: {} runs more", new.len());
            if new.is_empty() {
                break;
            }
            assert!(drawings < MOST, "pairs of values come to an end");
            runs.extend(new);
        }
        runs
    } else {
        // Six ranks and fewer: these have to run in a minute on two cores.
        let (small, larger): (Vec<Run>, Vec<Run>) =
            pool.into_iter().filter(|run| run.ranks() > 1).partition(|run| run.ranks() < 7);
        // What ranks without experts send is counted.
        let (experts, others): (Vec<Run>, Vec<Run>) =
            small.into_iter().partition(|run| run.config.moe.is_some());
        let mut runs = seen.covering(others, FEW / 2);
        runs.extend(seen.covering(experts, FEW - FEW / 2));
        // And one each of the largest numbers of ranks.
        runs.extend([7, 8].iter().filter_map(|&n| larger.iter().find(|run| run.ranks() == n).cloned()));
        runs
    };
    let runs =
        MODELS.iter().flat_map(|&kind| runs.iter().filter(move |run| run.kind == kind)).cloned().collect();
    Drawn { runs, seen, drawings, refused }
}

#[test]
fn any_topology_trains_as_one_rank() {
    let (seed, all) = (seed(), all());
    let mut single = Draw(Rng::named(seed, "also in f32"));
    let Drawn { runs, seen, drawings, refused } = drawn(seed, all);
    // Some of them alone, by their numbers, to look into what differs.
    let only: Option<BTreeSet<usize>> = std::env::var("MS_PARITY_ONLY")
        .ok()
        .map(|list| list.split(',').filter_map(|n| n.trim().parse().ok()).collect());
    let (mut wrong, mut rows, mut done) = (Vec::new(), String::new(), 0);
    let (mut least, mut without_tokens, mut counted) = ([f64::INFINITY; 2], 0, 0);
    let (mut again, mut most_again) = (0, 0);
    let wanted = |number: usize| only.as_ref().is_none_or(|only| only.contains(&number));
    let steps = if all { 20 } else { 3 };
    let to_do: Vec<(usize, &Run, bool)> = (1..)
        .zip(&runs)
        .filter(|(number, _)| wanted(*number))
        .map(|(number, drawn)| (number, drawn, all || single.below(4) == 0))
        .collect();
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some(&(number, drawn, also_single)) = to_do.get(next.fetch_add(1, Ordering::Relaxed)) {
            if only.is_some() {
                eprintln!("{number}: {drawn:?}");
            }
            let (started, outcome) = (Instant::now(), check(drawn, steps, also_single));
            if all {
                let said = outcome.as_ref().err().map_or("equal", String::as_str);
                let (seconds, kind, sizes) = (started.elapsed().as_secs_f32(), drawn.kind, drawn.sizes);
                eprintln!("{number} of {}: {kind:?} {sizes:?}, {seconds:.1} s: {said}", runs.len());
            }
            outcomes.lock().unwrap().insert(number, outcome);
        }
    };
    // Ranks of one run wait for each other much of the time.
    let workers = if all { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut outcomes = outcomes.into_inner().unwrap();
    for kind in MODELS {
        let (mut equal, before) = (0, wrong.len());
        for _ in runs.iter().filter(|run| run.kind == kind) {
            done += 1;
            let Some(outcome) = outcomes.remove(&done) else { continue };
            match outcome {
                Ok(shown) => {
                    equal += 1;
                    least
                        .iter_mut()
                        .zip(shown.margins)
                        .for_each(|(least, margin)| *least = least.min(margin));
                    without_tokens += usize::from(shown.without_tokens);
                    counted += usize::from(shown.counted);
                    again += usize::from(shown.again > 0);
                    most_again = shown.again.max(most_again);
                }
                Err(e) => wrong.push(e),
            }
        }
        rows += &format!("| {kind:?} | {equal} | {} |\n", wrong.len() - before);
    }
    println!(
        "seed {seed}: {} runs, {} differ; {refused} choices are refused by a rule",
        runs.len(),
        wrong.len()
    );
    println!("pairs of values: {}; bytes counted in {counted} runs", seen.len());
    println!("an expert got no token in {without_tokens} runs");
    println!("weights were drawn again for {again} runs, at most {most_again} times");
    println!("least margin of the routers' choices: {:.1e} in f64, {:.1e} in f32", least[0], least[1]);
    if all {
        let head = "| model | runs equal to one rank's | differ |\n|---|---|---|\n";
        let said = format!(
            "\nSeed {seed}. {refused} choices have experts' ranks without experts. {} pairs of values occur: all of {drawings} drawings \
             of each choice of sizes, of which the second half brought no pair that the first did not have. In {counted} runs what every rank \
             sent was counted and is, to the byte, what a rehearsal without values says. Experts without tokens occur in {without_tokens}. \
             For {again} runs weights were drawn again, at most {most_again} times, until float32 was steady on one rank. \
             Least margin of the routers' choices: {:.1e} in float64, {:.1e} in float32.\n",
            seen.len(),
            least[0],
            least[1]
        );
        if only.is_none() {
            page::write("runs", &format!("{head}{rows}{said}"));
        }
    }
    assert!(wrong.is_empty(), "seed {seed}: {} of {} differ:\n{}", wrong.len(), runs.len(), wrong.join("\n"));
    assert!(least.iter().all(|&margin| margin > MARGIN), "{least:?}");
    for rare in ["positions: Alibi", "experts without weights: true", "lent true", "chunks a stage: 3"] {
        assert!(seen.have(rare), "{rare} occurs");
    }
    let enough = runs.len() >= 30 && counted >= 15 && without_tokens >= 3;
    assert!(enough || only.is_some(), "{counted}, {without_tokens}");
}
