//! A micro-batch: packed tokens, and where sequences begin in them.

use crate::{AuxiliaryLoss, Capacity, Error, IndexerLoss, Result, RouterLoad};
use ms_core::{Arena, Segment, Tensor};
use ms_dist::{ParallelCtx, TokenSharding};
use std::sync::Arc;

/// Tokens of one forward pass, packed: `T` tokens of one or more sequences, one after the other.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Token ids `[T]`, i32.
    pub tokens: Tensor,
    /// Position of each token in its sequence `[T]`, i32.
    pub positions: Tensor,
    /// The sequences: attention never crosses their borders.
    pub segments: Arc<[Segment]>,
    /// One past the highest position.
    pub max_position: usize,
    /// How the sequences are spread over context-parallel ranks; `None`: this rank has all of each.
    pub sharding: Option<Arc<TokenSharding>>,
    /// The auxiliary loss of routers, where a model has them.
    pub balance: Option<Arc<AuxiliaryLoss>>,
    /// What trains the indexers of sparse attention; `None`: nothing does.
    pub indexer_loss: Option<Arc<IndexerLoss>>,
    /// How many copies an expert takes; `None`: all that come.
    pub capacity: Option<Capacity>,
    /// For each token `[T]`, the share of the batch in which it is counted for that, if one rank stands for several; empty:
    /// all are counted together.
    pub capacity_shares: Arc<[u32]>,
    /// The place of each token `[T]` among those of the whole micro-batch, in upstream's order: the first of every sequence,
    /// then the second ones. Experts with a capacity that take the first copies go by it; empty: as they stand here.
    pub places: Arc<[u32]>,
    /// Experts are chosen so that tokens spread evenly over them (Sinkhorn), not by their scores alone.
    pub sinkhorn: bool,
    /// Experts are taken in turn, by each token's place `[T]` in the whole micro-batch; `None`: as routers choose.
    pub fixed_routes: Option<Arc<[u32]>>,
    /// Those have the weights that routers give them, 0 where they are not chosen, instead of the weights of what is chosen.
    pub fixed_by_expert: bool,
    /// Where routers report.
    pub load: Option<Arc<RouterLoad>>,
    /// What is drawn at random in training; `None`: nothing.
    pub noise: Option<Arc<TrainingNoise>>,
}

/// What is drawn at random in training, by counters: each token has a key, whichever rank holds it, and each place of the
/// model a number, so any topology and any second run of a pass draws the same.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingNoise {
    /// Of each token of the batch `[T]`.
    pub keys: Vec<u64>,
    /// Of each token of the whole micro-batch, in its order, where ranks share it; else the same.
    pub all_keys: Arc<[u64]>,
    /// Rate of dropout of attention's weights.
    pub attention_dropout: f64,
    /// Dropout rate after the embedding and after every sublayer.
    pub hidden_dropout: f64,
    /// Half the width of the factors that a router's inputs are multiplied by.
    pub router_jitter: f64,
}

/// Places of the model where something is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoiseSite {
    /// Behind the embedding; of a prediction module one more than its number.
    Embedding(usize),
    /// Behind a layer's mixer.
    Mixer(usize),
    /// After its MLP.
    Network(usize),
    /// Before its router.
    Router(usize),
}

impl NoiseSite {
    pub(crate) fn site(self) -> u64 {
        let (layer, kind) = match self {
            Self::Embedding(n) => (n, 0),
            Self::Mixer(n) => (n, 1),
            Self::Network(n) => (n, 2),
            Self::Router(n) => (n, 3),
        };
        4 * layer as u64 + kind
    }
}

/// A run of queries of one document, and where the document's keys are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuerySpan {
    /// First row.
    pub(crate) row: usize,
    /// Queries.
    pub(crate) len: usize,
    /// Number of the document among [`Batch::documents`].
    pub(crate) document: usize,
    /// Where the run begins in its document.
    pub(crate) place: usize,
    /// Row of the document's first key.
    pub(crate) start: usize,
    /// Keys of the document.
    pub(crate) keys: usize,
}

impl Batch {
    /// A batch of whole sequences. `cu_seqlens` holds the first token of each sequence and, last, `T`.
    ///
    /// # Errors
    /// [`Error::Batch`] if the lengths contradict each other.
    pub fn new(arena: &Arena, tokens: &[i32], positions: &[i32], cu_seqlens: &[i32]) -> Result<Self> {
        let found = positions.len();
        if found != tokens.len() {
            return Err(Error::Batch { what: "positions", expected: tokens.len(), found });
        }
        let last = cu_seqlens.last().copied().unwrap_or(-1);
        if last != tokens.len() as i32 || cu_seqlens[0] != 0 {
            let found = usize::try_from(last).unwrap_or(0);
            return Err(Error::Batch { what: "end of the last sequence", expected: tokens.len(), found });
        }
        let mut segments = Vec::with_capacity(cu_seqlens.len() - 1);
        for pair in cu_seqlens.windows(2) {
            let Some(len) = pair[1].checked_sub(pair[0]).filter(|&n| n >= 0) else {
                let (expected, found) = (pair[0] as usize, pair[1].max(0) as usize);
                return Err(Error::Batch { what: "start of the next sequence, at least", expected, found });
            };
            let (start, len) = (pair[0] as usize, len as usize);
            if len > 0 {
                segments.push(Segment { q_start: start, q_len: len, k_start: start, k_len: len, ahead: 0 });
            }
        }
        Self::from_segments(arena, tokens, positions, segments)
    }

    /// A batch of equally long sequences with positions from 0.
    ///
    /// # Errors
    /// [`Error::Batch`] if the tokens do not divide into sequences of `seq_length`.
    pub fn uniform(arena: &Arena, tokens: &[i32], seq_length: usize) -> Result<Self> {
        if seq_length == 0 || !tokens.len().is_multiple_of(seq_length) {
            let expected = seq_length;
            return Err(Error::Batch {
                what: "tokens, a multiple of the length",
                expected,
                found: tokens.len(),
            });
        }
        let positions: Vec<i32> = (0..tokens.len()).map(|t| (t % seq_length) as i32).collect();
        let borders: Vec<i32> = (0..=tokens.len() / seq_length).map(|s| (s * seq_length) as i32).collect();
        Self::new(arena, tokens, &positions, &borders)
    }

    pub(crate) fn from_segments(
        arena: &Arena,
        tokens: &[i32],
        positions: &[i32],
        segments: Vec<Segment>,
    ) -> Result<Self> {
        let max_position = positions.iter().copied().max().map_or(0, |p| p.max(0) as usize + 1);
        Ok(Self {
            tokens: Tensor::from_slice(arena, [tokens.len()], tokens)?,
            positions: Tensor::from_slice(arena, [positions.len()], positions)?,
            segments: segments.into(),
            max_position,
            sharding: None,
            balance: None,
            indexer_loss: None,
            capacity: None,
            capacity_shares: Arc::default(),
            places: Arc::default(),
            sinkhorn: false,
            fixed_routes: None,
            fixed_by_expert: false,
            load: None,
            noise: None,
        })
    }

    /// The tokens of a rank that shares the sequences with others.
    ///
    /// # Errors
    /// [`Error::Batch`] if their number is not what `sharding` says.
    pub fn shared(
        arena: &Arena,
        tokens: &[i32],
        positions: &[i32],
        sharding: Arc<TokenSharding>,
    ) -> Result<Self> {
        if let Some(found) = [tokens.len(), positions.len()].into_iter().find(|&n| n != sharding.rows) {
            return Err(Error::Batch {
                what: "tokens of a context-parallel rank",
                expected: sharding.rows,
                found,
            });
        }
        Ok(Self { sharding: Some(sharding), ..Self::from_segments(arena, tokens, positions, Vec::new())? })
    }

    /// The documents whose keys this rank's queries may see, and the position of each of their rows: those of the batch, or with
    /// [`Batch::sharding`] those of the whole micro-batch.
    pub(crate) fn documents(&self) -> ms_core::Result<(&[Segment], &[i32])> {
        Ok(match &self.sharding {
            Some(sharding) => (&sharding.documents, &sharding.positions),
            None => (&self.segments, self.positions.as_slice::<i32>()?),
        })
    }

    /// The runs of documents that this rank has queries of, in the order of its rows.
    pub(crate) fn query_spans(&self, ctx: &ParallelCtx) -> Vec<QuerySpan> {
        match &self.sharding {
            None => self
                .segments
                .iter()
                .enumerate()
                .map(|(document, s)| QuerySpan {
                    row: s.q_start,
                    len: s.q_len,
                    document,
                    place: s.k_len - s.q_len,
                    start: s.k_start,
                    keys: s.k_len,
                })
                .collect(),
            Some(sharding) => sharding.pieces[ctx.cp.rank()]
                .iter()
                .map(|p| {
                    let document = &sharding.documents[p.document];
                    QuerySpan {
                        row: p.row,
                        len: p.len,
                        document: p.document,
                        place: p.place,
                        start: document.k_start,
                        keys: document.k_len,
                    }
                })
                .collect(),
        }
    }

    /// Tokens `T`.
    pub fn len(&self) -> usize {
        self.tokens.numel()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
