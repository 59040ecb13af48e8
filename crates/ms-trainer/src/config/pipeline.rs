//! What pipeline stages hold, and in which order they work.

use ms_core::Chain;
use ms_dist::schedule::{Impossible, Order, Schedule};
use ms_spec::Stages;

/// A run's pipeline; of one stage unless more are set.
#[derive(Clone, Debug, Default)]
pub struct PipelineConfig {
    /// What each stage holds.
    pub stages: Stages,
    /// The order of work.
    pub order: PipelineOrder,
    /// Forward passes overlap with backward passes of other micro-batches, so that each runs while the other's tokens are in
    /// transit to experts and back ([`Schedule::with_overlapped_passes`]); token exchanges then overlap with other work in all
    /// passes.
    pub overlap_passes: bool,
    /// Stages wait for each message as soon as it is available: the sender until it is received, the receiver before it
    /// starts anything else. Otherwise messages are in transit while both work.
    pub waits_at_borders: bool,
    /// For this many micro-batches of an iteration, the gradient of the output layer's weights is computed when the last
    /// stage has finished everything else, while other stages are still working.
    pub defer_embedding_wgrad: Option<usize>,
}

/// The order of work in a pipeline; with one stage it says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineOrder {
    /// One forward, one backward, interleaved where stages have several chunks.
    Plain {
        /// Micro-batches that pass a chunk before the next chunk runs; `None`: as many as stages.
        group: Option<usize>,
        /// All forwards come first where there are as many micro-batches as stages (`core_r0.8.0`).
        forwards_first: bool,
    },
    /// One forward, one backward, with weight gradients in the bubble; interleaved where stages have several chunks.
    ZeroBubble {
        /// As of [`PipelineOrder::Plain`].
        group: Option<usize>,
    },
    /// Chunks from both ends.
    DualPipeV,
    /// Any order that can be executed, drawn from this seed; for tests.
    Random(u64),
}

impl PipelineOrder {
    /// The schedule for as many stages and chunks.
    pub fn order(self, stages: usize, chunks: usize) -> Order {
        match self {
            Self::ZeroBubble { group } => Order::ZeroBubble { group: group.unwrap_or(stages) },
            Self::DualPipeV => Order::DualPipeV,
            Self::Random(seed) => Order::Random { seed },
            Self::Plain { group, forwards_first } if chunks > 1 => {
                Order::Interleaved { group: group.unwrap_or(stages), forwards_first }
            }
            Self::Plain { .. } => Order::OneFOneB,
        }
    }

    /// The schedule of the stages along `chain`, with overlapped passes where possible if configured
    /// ([`PipelineConfig::overlap_passes`]).
    ///
    /// # Errors
    /// [`Impossible`] with the numbers that do not fit.
    pub fn schedule(
        self,
        chain: &Chain,
        micro_batches: usize,
        overlap_passes: bool,
    ) -> Result<Schedule, Impossible> {
        let order = self.order(chain.stages(), chain.chunks());
        let schedule = Schedule::new(order, chain, micro_batches)?;
        Ok(if overlap_passes { schedule.with_overlapped_passes(order) } else { schedule })
    }
}

impl Default for PipelineOrder {
    fn default() -> Self {
        Self::Plain { group: None, forwards_first: true }
    }
}
