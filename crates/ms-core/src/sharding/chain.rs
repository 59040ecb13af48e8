//! The chunks of a pipeline.

use std::ops::Deref;

/// A chunk of a pipeline stage, both counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageChunk {
    /// The stage.
    pub stage: usize,
    /// The chunk of the stage.
    pub chunk: usize,
}

/// The chunks of a pipeline in the order in which a micro-batch passes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    stages: usize,
    places: Vec<StageChunk>,
}

impl Chain {
    /// `chunks` chunks of each of `stages` stages: the first of all stages, then the second, and so on; each in the order of
    /// the stages, or with `v` every other one from the last stage back to the first.
    pub fn new(stages: usize, chunks: usize, v: bool) -> Self {
        let pass = |chunk: usize| {
            let back = v && chunk % 2 == 1;
            (0..stages).map(move |p| StageChunk { stage: if back { stages - 1 - p } else { p }, chunk })
        };
        Self { stages, places: (0..chunks).flat_map(pass).collect() }
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// Chunks of a stage.
    pub fn chunks(&self) -> usize {
        self.places.len() / self.stages.max(1)
    }

    /// The chunks of a stage, in this order.
    pub fn of_stage(&self, stage: usize) -> impl Iterator<Item = usize> {
        self.places.iter().filter(move |at| at.stage == stage).map(|at| at.chunk)
    }

    /// The place of a chunk of a stage.
    ///
    /// # Panics
    /// If the stage has no such chunk.
    pub fn position(&self, stage: usize, chunk: usize) -> usize {
        let here = StageChunk { stage, chunk };
        self.places.iter().position(|&at| at == here).expect("every chunk is in the chain")
    }
}

/// The places in order.
impl Deref for Chain {
    type Target = [StageChunk];

    fn deref(&self) -> &[StageChunk] {
        &self.places
    }
}
