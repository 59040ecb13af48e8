//! Schedules drawn at random from all executable ones.

use super::Action;
use ms_core::Rng;

/// How far a micro-batch has come at one place of the chain.
#[derive(Clone, Copy, Default)]
struct Progress {
    forward: bool,
    /// The gradient of what came in is there.
    backward: bool,
    /// Weight gradients were deferred.
    owes_weights: bool,
}

/// What every stage does: one action after the other is drawn among those whose inputs are there, a backward pass whole or in its
/// two halves, so no stage ever waits for ever.
pub(super) fn stages(chain: &[(usize, usize)], micro_batches: usize, seed: u64) -> Vec<Vec<Action>> {
    let pp = chain.iter().map(|c| c.0 + 1).max().unwrap_or(1);
    let mut rng = Rng::named(seed, "order of a pipeline");
    let mut below = |n: usize| ((rng.uniform() * n as f64) as usize).min(n - 1);
    let mut state = vec![vec![Progress::default(); micro_batches]; chain.len()];
    let mut stages = vec![Vec::new(); pp];
    loop {
        let mut open = Vec::new();
        for (at, &(stage, chunk)) in chain.iter().enumerate() {
            for micro in 0..micro_batches {
                let here = state[at][micro];
                if !here.forward && (at == 0 || state[at - 1][micro].forward) {
                    open.push((at, stage, Action::Forward { micro, chunk }));
                }
                let behind = at + 1 == chain.len() || state[at + 1][micro].backward;
                if here.forward && !here.backward && behind {
                    open.push((at, stage, Action::Backward { micro, chunk }));
                    open.push((at, stage, Action::BackwardInput { micro, chunk }));
                }
                if here.owes_weights {
                    open.push((at, stage, Action::BackwardWeight { micro, chunk }));
                }
            }
        }
        if open.is_empty() {
            return stages;
        }
        let (at, stage, action) = open[below(open.len())];
        stages[stage].push(action);
        let here = &mut state[at][action.place().0];
        match action {
            Action::Forward { .. } => here.forward = true,
            Action::Backward { .. } => here.backward = true,
            Action::BackwardInput { .. } => (here.backward, here.owes_weights) = (true, true),
            Action::BackwardWeight { .. } => here.owes_weights = false,
        }
    }
}
