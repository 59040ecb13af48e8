//! Shapes of messages between stages, which the receiver knows in advance.

use crate::TrainConfig;
use ms_core::{DType, Shape, StageChunk};
use ms_data::MicroBatch;
use ms_dist::ParallelCtx;
use ms_nn::shared_kv_columns;
use ms_spec::{Item, Mixer, ModelConfig, Picks, Placement};

/// Parts of a border: the stream, and what later layers borrow, values and picks.
pub(super) const PARTS: usize = 3;

/// A part of what passes a border of chunks.
#[derive(Clone, Copy)]
pub(super) struct MessagePart {
    /// 0: the stream, 1: what layers lend, 2: picks.
    pub(super) part: usize,
    /// The place in the chain that the border is before.
    pub(super) before: usize,
    /// In the backward direction.
    pub(super) gradient: bool,
}

/// What of a micro-batch decides about sizes.
#[derive(Clone, Copy)]
pub(super) struct MicroBatchSize {
    /// Tokens of a rank before tensor-parallel ranks share them.
    tokens: usize,
    /// For the longest document.
    longest: usize,
}

impl MicroBatchSize {
    /// That of the share in `mb` of a rank of `ctx`: all that share a row have equally many tokens of it.
    pub(super) fn of(mb: &MicroBatch, ctx: &ParallelCtx) -> Self {
        let lengths = mb.cu_seqlens.windows(2).map(|b| (b[1] - b[0]) as usize);
        Self { tokens: mb.tokens.len() / ctx.cp.size(), longest: lengths.max().unwrap_or(0) }
    }
}

/// Element types and shapes of all that passes borders.
pub(super) struct MessageShapes {
    model: ModelConfig,
    dtype: DType,
    /// Layers before each place of the chain.
    before: Vec<usize>,
}

impl MessageShapes {
    pub(super) fn new(config: &TrainConfig, placement: &Placement) -> Self {
        let layers = |&StageChunk { stage, chunk }: &StageChunk| {
            let items = placement.stage(stage)[chunk].iter();
            items.filter(|item| matches!(item, Item::Layer { .. })).count()
        };
        let mut before = vec![0];
        before.extend(placement.order().iter().map(layers).scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        }));
        // Float16 weights are computed with wide.
        let dtype = if config.dtype == DType::F16 { config.dtype.wide() } else { config.dtype };
        Self { model: config.model.clone(), dtype, before }
    }

    /// Type and shape of a part of a micro-batch's message on a rank of `ctx`; `trains`: indexers have a loss of their own.
    pub(super) fn like(
        &self,
        MessagePart { part, before, gradient }: MessagePart,
        MicroBatchSize { tokens, longest }: MicroBatchSize,
        ctx: &ParallelCtx,
        trains: bool,
    ) -> (DType, Shape) {
        let nothing = Shape::new(&[0]);
        let before = self.before[before];
        match part {
            0 => {
                let rows = if ctx.sequence_parallel { tokens / ctx.tp.size() } else { tokens };
                (self.dtype, Shape::new(&[rows, self.model.carried()]))
            }
            1 => {
                let columns = self.lender(before).map(|l| shared_kv_columns(&self.model, l, ctx.tp.size()));
                (self.dtype, columns.map_or(nothing, |n| Shape::new(&[tokens, n])))
            }
            _ => {
                // Every query picks, unless it sees all that there is and picks train nothing.
                let most = self.model.indexer.as_ref().map(|i| i.top_k);
                let most =
                    most.filter(|&n| self.model.picks() == Some(Picks::Tokens) && (trains || n < longest));
                let picks = most.filter(|_| !gradient && before > 0).map(|n| n.min(longest));
                (DType::I32, picks.map_or(nothing, |n| Shape::new(&[tokens, n])))
            }
        }
    }

    /// The last of this many layers that lends its keys and values to later ones, if there is one.
    fn lender(&self, before: usize) -> Option<usize> {
        let lends = |l: &usize| self.model.layer(*l).mixer == Mixer::Attention;
        (0..before).rev().find(lends).filter(|_| self.model.has(Mixer::SharedKv))
    }
}
