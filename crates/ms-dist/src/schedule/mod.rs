//! Pipeline schedules as data.
//!
//! A [`Schedule`] lists the actions of every stage. [`Schedule::simulate`] finds deadlocks, the bubble and how many forward
//! passes a stage holds; the trainer executes the same list. Every schedule that the simulation accepts gives the same
//! gradients up to the order of sums.

mod dual_pipe;
mod interleaved;
mod one_f_one_b;
mod overlapped;
mod random;
mod rendezvous;
mod simulate;
mod zero_bubble;

pub use rendezvous::{Message, Rendezvous};
pub use simulate::{Deadlock, Report};

use ms_core::Chain;
use std::collections::BTreeSet;
use std::fmt;

/// One action of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// The forward pass of a micro-batch through a chunk.
    Forward {
        /// Micro-batch, from 0.
        micro: usize,
        /// Chunk of the stage, from 0.
        chunk: usize,
    },
    /// Its backward pass, weight gradients included.
    Backward {
        /// Micro-batch, from 0.
        micro: usize,
        /// Chunk of the stage, from 0.
        chunk: usize,
    },
    /// Its backward pass without the large weight gradients.
    BackwardInput {
        /// Micro-batch, from 0.
        micro: usize,
        /// Chunk of the stage, from 0.
        chunk: usize,
    },
    /// The weight gradients that [`Action::BackwardInput`] deferred.
    BackwardWeight {
        /// Micro-batch, from 0.
        micro: usize,
        /// Chunk of the stage, from 0.
        chunk: usize,
    },
}

/// Which pass an action is of: that of a micro-batch through a chunk of the stage, both counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PassId {
    /// The micro-batch.
    pub micro: usize,
    /// The chunk.
    pub chunk: usize,
}

impl Action {
    /// The pass that it is of.
    pub fn pass(&self) -> PassId {
        match *self {
            Self::Forward { micro, chunk }
            | Self::Backward { micro, chunk }
            | Self::BackwardInput { micro, chunk }
            | Self::BackwardWeight { micro, chunk } => PassId { micro, chunk },
        }
    }
}

impl fmt::Display for Action {
    /// `F3.1`: forward of micro-batch 3 through chunk 1; `B` backward, `I` and `W` its two halves.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self {
            Self::Forward { .. } => 'F',
            Self::Backward { .. } => 'B',
            Self::BackwardInput { .. } => 'I',
            Self::BackwardWeight { .. } => 'W',
        };
        let PassId { micro, chunk } = self.pass();
        write!(f, "{letter}{micro}.{chunk}")
    }
}

/// How the actions of a stage are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// 1F1B; one chunk per stage.
    OneFOneB,
    /// 1F1B, or several chunks per stage, with weight gradients deferred into the bubble (ZB-H1).
    ZeroBubble {
        /// Micro-batches that pass a chunk before the next chunk runs, where there are several; at least the stages.
        group: usize,
    },
    /// Interleaved 1F1B: several chunks per stage, micro-batches in groups.
    Interleaved {
        /// Micro-batches that pass a chunk before the next chunk runs; at least the stages.
        group: usize,
        /// All forwards come first where there are as many micro-batches as stages, as in Megatron-LM `core_r0.8.0`.
        forwards_first: bool,
    },
    /// DualPipeV: two chunks per stage that run from both ends.
    DualPipeV,
    /// Any executable order, drawn at random; for tests.
    Random {
        /// The seed: the same on every rank.
        seed: u64,
    },
}

/// The actions of every stage, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Actions by stage.
    pub stages: Vec<Vec<Action>>,
    /// By stage, the numbers of the actions that overlap with the next one ([`Schedule::with_overlapped_passes`]).
    pub overlapped: Vec<BTreeSet<usize>>,
    /// The chunks that a micro-batch passes.
    pub chain: Chain,
    /// Micro-batches.
    pub micro_batches: usize,
}

/// A schedule that cannot be made for these numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Impossible(String);

impl Schedule {
    /// The schedule of `order` for a pipeline whose micro-batches pass `chain`.
    ///
    /// # Errors
    /// [`Impossible`] with the numbers that do not fit.
    pub fn new(order: Order, chain: &Chain, micro_batches: usize) -> Result<Self, Impossible> {
        let (pp, chunks) = (chain.stages(), chain.chunks());
        let one_chunk = || match chunks {
            1 => Ok(()),
            n => Err(Impossible(format!("one forward, one backward: expected one chunk a stage, found {n}"))),
        };
        let stages = match order {
            Order::OneFOneB => {
                one_chunk()?;
                (0..pp).map(|r| one_f_one_b::stage(r, pp, micro_batches)).collect()
            }
            Order::ZeroBubble { group } => {
                let whole = match chunks {
                    1 => Order::OneFOneB,
                    _ => Order::Interleaved { group, forwards_first: false },
                };
                let whole = Self::new(whole, chain, micro_batches)?.stages.into_iter();
                whole.enumerate().map(|(r, actions)| zero_bubble::stage(r, actions)).collect()
            }
            Order::Interleaved { group, forwards_first } => {
                interleaved::check(pp, micro_batches, group)?;
                let shape = interleaved::Shape { pp, chunks, micro_batches, group, forwards_first };
                (0..pp).map(|r| interleaved::stage(r, &shape)).collect()
            }
            Order::DualPipeV => {
                let least = 2 * pp - 1;
                if chunks != 2 || micro_batches < least {
                    return Err(Impossible(format!(
                        "DualPipeV: expected two chunks a stage and at least {least} micro-batches, found {chunks} and \
                         {micro_batches}"
                    )));
                }
                (0..pp).map(|r| dual_pipe::stage(r, pp, micro_batches)).collect()
            }
            Order::Random { seed } => random::stages(chain, micro_batches, seed),
        };
        let stages: Vec<Vec<Action>> = stages;
        let overlapped = vec![BTreeSet::new(); stages.len()];
        Ok(Self { stages, overlapped, chain: chain.clone(), micro_batches })
    }

    /// A stage's actions as text, `F0.0 F1.0 B0.0 …`.
    pub fn text(&self, stage: usize) -> String {
        self.stages[stage].iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    /// The passes of a stage that start while as many others are live as the pipeline has chunks: those that save only their
    /// input when recomputation is placed in the bubble. A pass whose chunk is the last one, according to `ends`, is not
    /// among them: its backward follows at once.
    ///
    /// # Source
    /// MindSpeed, `mindspeed/core/pipeline_parallel/ripipe_schedules.py`: as many passes as a pipeline has chunks are kept
    /// live.
    pub fn recomputed_in_bubble(&self, stage: usize, ends: impl Fn(usize) -> bool) -> BTreeSet<PassId> {
        let (mut kept, mut beyond) = (0usize, BTreeSet::new());
        for action in &self.stages[stage] {
            let pass = action.pass();
            match action {
                Action::Forward { chunk, .. } if kept >= self.chain.len() && !ends(*chunk) => {
                    beyond.insert(pass);
                }
                Action::Forward { .. } => kept += 1,
                Action::Backward { .. } | Action::BackwardInput { .. } if !beyond.contains(&pass) => {
                    kept = kept.saturating_sub(1);
                }
                _ => {}
            }
        }
        beyond
    }
}

#[cfg(test)]
mod tests;
