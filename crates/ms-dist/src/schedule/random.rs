//! Schedules drawn at random from all executable ones.

use super::Action;
use ms_core::{Chain, Rng, StageChunk};

/// The progress of a micro-batch at one place of the chain.
#[derive(Clone, Copy, Default)]
struct Progress {
    forward: bool,
    /// The gradient of the input is available.
    backward: bool,
    /// Weight gradients were deferred.
    owes_weights: bool,
}

/// The actions of every stage: one after the other is drawn from those whose inputs are available, a backward pass whole or
/// in two halves, so no stage waits forever.
pub(super) fn stages(chain: &Chain, micro_batches: usize, seed: u64) -> Vec<Vec<Action>> {
    let mut rng = Rng::named(seed, "order of a pipeline");
    let mut below = |n: usize| ((rng.uniform() * n as f64) as usize).min(n - 1);
    let mut state = vec![vec![Progress::default(); micro_batches]; chain.len()];
    let mut stages = vec![Vec::new(); chain.stages()];
    loop {
        let mut open = Vec::new();
        for (at, &StageChunk { stage, chunk }) in chain.iter().enumerate() {
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
        let here = &mut state[at][action.pass().micro];
        match action {
            Action::Forward { .. } => here.forward = true,
            Action::Backward { .. } => here.backward = true,
            Action::BackwardInput { .. } => (here.backward, here.owes_weights) = (true, true),
            Action::BackwardWeight { .. } => here.owes_weights = false,
        }
    }
}
