//! Simulation: what a schedule costs, without running it.

use super::{Action, PassId, Schedule};
use std::collections::BTreeSet;

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Time until the last stage is done, in forwards of a chunk.
    pub makespan: f64,
    /// Share of the time of all stages in which they wait, from 0 to 1.
    pub bubble_fraction: f64,
    /// By stage, the largest number of live forward passes ([`Schedule::in_flight`]).
    pub max_in_flight: Vec<usize>,
    /// By stage, when each of its actions begins and ends, in forwards of a chunk.
    pub spans: Vec<Vec<(f64, f64)>>,
}

/// A schedule that cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deadlock {
    /// Every stage waits for another one, or forever.
    #[error("stage {stage} waits for ever before {action}, its action {index}")]
    Waits {
        /// The first stage that waits.
        stage: usize,
        /// The action that it cannot start.
        action: String,
        /// The number of that action, from 0.
        index: usize,
    },
    /// Work is missing or done twice.
    #[error(
        "stage {stage}: micro-batch {micro} passes chunk {chunk} {found} times {direction}, expected once"
    )]
    Incomplete {
        /// The stage.
        stage: usize,
        /// The micro-batch.
        micro: usize,
        /// The chunk.
        chunk: usize,
        /// `forward` or `backward`.
        direction: &'static str,
        /// How often it is done.
        found: usize,
    },
}

/// Time of an action in forwards of a chunk.
fn cost(action: Action) -> f64 {
    match action {
        Action::Backward { .. } => 2.0,
        Action::Forward { .. } | Action::BackwardInput { .. } | Action::BackwardWeight { .. } => 1.0,
    }
}

impl Schedule {
    /// Simulates the schedule: a forward of a chunk takes 1, a backward 2 (one for inputs, one for weights), a transfer
    /// nothing.
    ///
    /// # Errors
    /// [`Deadlock`] if a stage would wait forever, or work is missing or done twice.
    pub fn simulate(&self) -> Result<Report, Deadlock> {
        self.simulate_lengths(|_, _| 1.0)
    }

    /// [`Schedule::simulate`] with chunks whose duration is given by `length` of their stage and number.
    ///
    /// # Errors
    /// As [`Schedule::simulate`].
    pub fn simulate_lengths(&self, length: impl Fn(usize, usize) -> f64) -> Result<Report, Deadlock> {
        let cost = |stage: usize, action: Action| cost(action) * length(stage, action.pass().chunk);
        self.check_complete()?;
        let (links, m) = (self.chain.len(), self.micro_batches);
        let cell = |position: usize, micro: usize| position * m + micro;
        let (mut forward_end, mut backward_end) = (vec![f64::NAN; links * m], vec![f64::NAN; links * m]);
        let mut next = vec![0usize; self.stages.len()];
        let mut clock = vec![0f64; self.stages.len()];
        let mut spans: Vec<Vec<(f64, f64)>> =
            self.stages.iter().map(|a| Vec::with_capacity(a.len())).collect();
        loop {
            let mut moved = false;
            for (stage, actions) in self.stages.iter().enumerate() {
                while next[stage] < actions.len() {
                    let first = next[stage];
                    // Overlapped passes start and end together.
                    let together =
                        &actions[first..=first + usize::from(self.overlapped[stage].contains(&first))];
                    let ready = |&action: &Action| {
                        let PassId { micro, chunk } = action.pass();
                        let at = self.chain.position(stage, chunk);
                        let here = cell(at, micro);
                        match action {
                            Action::Forward { .. } if at == 0 => 0.0,
                            Action::Forward { .. } => forward_end[cell(at - 1, micro)],
                            Action::BackwardWeight { .. } => backward_end[here],
                            // Not before its own forward, nor before the backward of the next chunk.
                            _ if forward_end[here].is_nan() || at + 1 == links => forward_end[here],
                            _ => backward_end[cell(at + 1, micro)],
                        }
                    };
                    let ready: Vec<f64> = together.iter().map(ready).collect();
                    if ready.iter().any(|at| at.is_nan()) {
                        break;
                    }
                    let begin = ready.into_iter().fold(clock[stage], f64::max);
                    let end = begin + together.iter().map(|&action| cost(stage, action)).sum::<f64>();
                    clock[stage] = end;
                    for action in together {
                        let PassId { micro, chunk } = action.pass();
                        let here = cell(self.chain.position(stage, chunk), micro);
                        spans[stage].push((begin, end));
                        match action {
                            Action::Forward { .. } => forward_end[here] = end,
                            // The next stage may begin as soon as the gradient of its output is there.
                            Action::Backward { .. } | Action::BackwardInput { .. } => {
                                backward_end[here] = end;
                            }
                            Action::BackwardWeight { .. } => {}
                        }
                    }
                    next[stage] += together.len();
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        for (stage, actions) in self.stages.iter().enumerate() {
            if let Some(action) = actions.get(next[stage]) {
                let action = action.to_string();
                return Err(Deadlock::Waits { stage, action, index: next[stage] });
            }
        }
        let makespan = clock.iter().copied().fold(0.0, f64::max);
        let all =
            self.stages.iter().enumerate().flat_map(|(stage, all)| all.iter().map(move |&a| (stage, a)));
        let most = |stage| self.in_flight(stage, &BTreeSet::new()).into_iter().max().unwrap_or(0);
        let busy: f64 = all.map(|(stage, action)| cost(stage, action)).sum();
        Ok(Report {
            makespan,
            bubble_fraction: if makespan > 0.0 {
                1.0 - busy / self.stages.len() as f64 / makespan
            } else {
                0.0
            },
            max_in_flight: (0..self.stages.len()).map(most).collect(),
            spans,
        })
    }

    /// The number of live forward passes during each action of a stage: a pass is live from its forward to the end of its
    /// backward, including a separate weight-gradient action, which needs the inputs of the pass's products and the gradients
    /// of their outputs. Two overlapped actions count for both. Passes that save `only_inputs`
    /// count during their backward, once they have been recomputed.
    pub fn in_flight(&self, stage: usize, only_inputs: &BTreeSet<PassId>) -> Vec<usize> {
        let mut kept = BTreeSet::new();
        let mut all: Vec<usize> = Vec::with_capacity(self.stages[stage].len());
        let overlapped = &self.overlapped[stage];
        for (at, action) in self.stages[stage].iter().enumerate() {
            let pass = action.pass();
            let last = matches!(action, Action::Backward { .. } | Action::BackwardWeight { .. });
            let forward = matches!(action, Action::Forward { .. });
            let own = |pass: &PassId, forward: bool| {
                usize::from(!(kept.contains(pass) || forward && only_inputs.contains(pass)))
            };
            let second = at > 0 && overlapped.contains(&(at - 1));
            let partner = if overlapped.contains(&at) { self.stages[stage].get(at + 1) } else { None };
            let of_partner = partner.map_or(0, |p| own(&p.pass(), matches!(p, Action::Forward { .. })));
            let now = kept.len() + own(&pass, forward) + of_partner;
            all.push(if second { all[at - 1] } else { now });
            if last {
                kept.remove(&pass);
            } else if !(forward && only_inputs.contains(&pass)) {
                kept.insert(pass);
            }
        }
        all
    }

    fn check_complete(&self) -> Result<(), Deadlock> {
        for (stage, actions) in self.stages.iter().enumerate() {
            for chunk in self.chain.of_stage(stage) {
                let mut counts = vec![[0usize; 3]; self.micro_batches];
                for action in actions.iter().filter(|a| a.pass().chunk == chunk) {
                    let Some(count) = counts.get_mut(action.pass().micro) else {
                        let micro = action.pass().micro;
                        let direction = "in all";
                        return Err(Deadlock::Incomplete { stage, micro, chunk, direction, found: 1 });
                    };
                    match action {
                        Action::Forward { .. } => count[0] += 1,
                        Action::Backward { .. } => {
                            count[1] += 1;
                            count[2] += 1;
                        }
                        Action::BackwardInput { .. } => count[1] += 1,
                        Action::BackwardWeight { .. } => count[2] += 1,
                    }
                }
                for (micro, count) in counts.into_iter().enumerate() {
                    for (direction, found) in ["forward", "backward", "for weights"].into_iter().zip(count) {
                        if found != 1 {
                            return Err(Deadlock::Incomplete { stage, micro, chunk, direction, found });
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
