//! Shrinking a failing case: flags and ranks are removed one after another, as long as the case still fails.

use super::{both, bounds, small};
use crate::ranks;
use anyhow::{Result, ensure};
use ms_cli::megatron::Args;
use ms_options::training::{self, MOST_RANKS, Options, Purpose};
use ms_trainer::parity::{ParityError, Shape, Trial, compare};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Maximum number of cases that are run.
const MOST_RUNS: usize = 100;

/// The number of ranks.
const RANKS: &str = "--nproc-per-node";

/// Flags that multiply the number of ranks a run needs.
const SIZES: [&str; 5] = [
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
    "--tensor-model-parallel-size",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
];

/// Flags that are not part of a case: how results are printed, and sources whose values are in other flags by now.
const ASIDE: [&str; 6] =
    ["json", "quiet", "verbose", "log_format", "config", "use_mp_args_from_checkpoint_args"];

/// Flags that are never removed: the version of the flags, and the number of ranks, which is only reduced.
const KEPT: [&str; 2] = ["upstream", "nproc_per_node"];

/// A step towards a smaller case.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// A size is replaced by one of its divisors, and the number of ranks is divided by the same factor.
    Size(&'static str, usize),
    /// The flag whose value has this name is removed.
    Without(String),
}

/// The smallest failing case that was found.
pub(super) struct Smallest {
    command: String,
    apart: ParityError,
    runs: usize,
}

impl Smallest {
    /// The text printed after the error.
    pub(super) fn said(&self) -> String {
        let Self { command, apart, runs } = self;
        let whole = if *runs < MOST_RUNS { "the smallest case" } else { "the smallest case so far" };
        format!("\n{whole} that fails, found in {runs} runs ({apart}):\n  {command}")
    }

    /// The same as JSON.
    pub(super) fn json(&self) -> Value {
        json!({"command": self.command, "difference": self.apart.to_string(), "runs": self.runs})
    }
}

/// Shrinks the case of `args` on `ranks` ranks, which fails with `apart`.
pub(super) fn of(args: &Args, ranks: usize, apart: &ParityError) -> Smallest {
    let mut args = args.clone();
    ASIDE.iter().for_each(|dest| drop(args.forget(dest)));
    set(&mut args, RANKS, ranks);
    // Keyed by the run that a case describes: cases that differ only in flags without effect are run once.
    let (mut known, mut found) = (BTreeMap::new(), apart.clone());
    let fails = |args: &Args| {
        // Warnings about intermediate cases are of no use to the user, and neither are panics of their ranks.
        let quiet = tracing::subscriber::NoSubscriber::default();
        tracing::subscriber::with_default(quiet, || {
            let Ok((trial, shape)) = trial(args) else { return false };
            let runs = known.len();
            let outcome = known.entry(format!("{trial:?} {shape:?}"));
            if runs == MOST_RUNS && matches!(outcome, Entry::Vacant(_)) {
                return false;
            }
            let outcome = outcome.or_insert_with(|| {
                both(&trial, shape).and_then(|(want, got)| compare(&want, &got, bounds())).err()
            });
            let same = outcome.as_ref().filter(|other| kind(other) == kind(apart));
            same.inspect(|other| found.clone_from(other)).is_some()
        })
    };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let args = shrink(args, steps, after, fails);
    std::panic::set_hook(hook);
    Smallest { command: format!("ms-train parity {}", args.to_shell()), apart: found, runs: known.len() }
}

/// The run that a case describes.
fn trial(args: &Args) -> Result<(Trial, Shape)> {
    args.check()?;
    training::check(args)?;
    let o: Options = args.read()?;
    let launched = ranks::launched(&o.world, Purpose::Compare)?;
    let resolved = training::resolve(&o, Purpose::Compare, launched)?;
    ensure!(resolved.world <= MOST_RANKS, "more ranks than are compared");
    small(&resolved)
}

/// The kind of failure, regardless of its numbers.
fn kind(apart: &ParityError) -> u8 {
    match apart {
        ParityError::Failed { .. } => 0,
        ParityError::Ownership { .. } => 1,
        ParityError::Gradient { .. } | ParityError::Step { .. } => 2,
        ParityError::Close { .. } => 3,
    }
}

/// Applies every step that leaves a failing case, repeatedly, until no step does.
fn shrink<C, S>(
    mut case: C,
    steps: impl Fn(&C) -> Vec<S>,
    after: impl Fn(&C, &S) -> Option<C>,
    mut fails: impl FnMut(&C) -> bool,
) -> C {
    loop {
        let mut smaller = false;
        for step in steps(&case) {
            if let Some(next) = after(&case, &step).filter(&mut fails) {
                (case, smaller) = (next, true);
            }
        }
        if !smaller {
            return case;
        }
    }
}

fn dest(flag: &str) -> String {
    flag.trim_start_matches('-').replace('-', "_")
}

fn size(args: &Args, flag: &str) -> usize {
    args.record().get(&dest(flag)).and_then(Value::as_u64).map_or(1, |n| n as usize)
}

/// Sets a size; a size of 1 is the default and its flag is removed. The number of ranks is always explicit.
fn set(args: &mut Args, flag: &str, to: usize) {
    match to {
        1 if flag != RANKS => drop(args.forget(&dest(flag))),
        _ => args.settle(flag, to.into()),
    }
}

/// The steps from a case: sizes before flags, and for each size the largest reduction first.
fn steps(args: &Args) -> Vec<Step> {
    let divisors = |flag: &'static str| {
        let n = size(args, flag);
        (1..n).filter(move |d| n.is_multiple_of(*d)).map(move |d| Step::Size(flag, d))
    };
    let flags =
        args.record().keys().filter(|dest| !KEPT.contains(&dest.as_str())).cloned().map(Step::Without);
    SIZES.into_iter().chain([RANKS]).flat_map(divisors).chain(flags).collect()
}

/// The case after a step, if the step is possible.
fn after(args: &Args, step: &Step) -> Option<Args> {
    let mut next = args.clone();
    match step {
        Step::Without(dest) => drop(next.forget(dest)?),
        &Step::Size(flag, to) => {
            let (n, ranks) = (size(args, flag), size(args, RANKS));
            let fewer = ranks * to / n;
            if to >= n || !n.is_multiple_of(to) || fewer * n != ranks * to {
                return None;
            }
            set(&mut next, flag, to);
            set(&mut next, RANKS, fewer);
        }
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_cli::megatron::parse;

    #[test]
    fn what_is_needed_to_fail_stays_and_nothing_else() {
        let mut tried = 0;
        let fails = |case: &Vec<u32>| {
            tried += 1;
            [3, 7].iter().all(|n| case.contains(n)) && (case.contains(&5) || !case.contains(&6))
        };
        let without = |case: &Vec<u32>, n: &u32| Some(case.iter().copied().filter(|m| m != n).collect());
        // 5 can go once 6 has gone, in a second round.
        assert_eq!(shrink((1..=9).collect(), Vec::clone, without, fails), [3, 7]);
        assert!(tried <= 9 + 3 + 2, "{tried}");
    }

    #[test]
    fn ranks_and_flags_are_taken_away_in_one_order() {
        let line = "--tp 4 --upstream head --bf16 --pipeline-model-parallel-size 2 --nproc-per-node 32 --sequence-parallel --load 'a b' --cp 2";
        let words = ["a b"].into_iter().cycle();
        let words = line
            .split(' ')
            .filter(|w| *w != "b'")
            .zip(words)
            .map(|(w, name)| if w == "'a" { name } else { w });
        let args = parse(crate::line(), words).unwrap();
        assert_eq!(args.to_shell(), line);
        let smallest = |fails: &dyn Fn(&Args) -> bool| shrink(args.clone(), steps, after, fails).to_shell();
        let copies = |args: &Args| {
            let sizes = SIZES.iter().map(|flag| size(args, flag)).product::<usize>();
            size(args, RANKS) as f64 / sizes as f64
        };
        let wide = |args: &Args| size(args, "--tensor-model-parallel-size") > 1 && copies(args) >= 1.0;
        let two = "--tensor-model-parallel-size 2 --upstream head --nproc-per-node 2";
        assert_eq!(smallest(&wide), two);
        let shared = |args: &Args| wide(args) && args.record().contains_key("sequence_parallel");
        assert_eq!(smallest(&shared), format!("{two} --sequence-parallel"));
        // Copies of a model that is read from a folder.
        let read = |args: &Args| copies(args) > 1.0 && args.record().contains_key("load");
        assert_eq!(smallest(&read), "--upstream head --nproc-per-node 2 --load 'a b'");
        assert_eq!(smallest(&|_| true), "--upstream head --nproc-per-node 1");
    }
}
