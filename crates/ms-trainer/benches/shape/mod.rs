//! Shared by the training benchmarks: Llama shapes and a batch of tokens for them.

use ms_core::DType;
use ms_data::MicroBatch;
use ms_spec::{Family, Feed, Layer, ModelConfig, Moe, Router, Score};
use ms_trainer::TrainConfig;

pub(crate) const VOCAB: usize = 32000;

/// A model and a batch.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) groups: usize,
    /// Width of the feed-forward layers, with experts of each.
    pub(crate) ffn: usize,
    pub(crate) seq: usize,
    pub(crate) batch: usize,
    /// Number of experts, two per token; none with 0.
    pub(crate) experts: usize,
}

/// 25 M parameters.
pub(crate) const A: Size = Size {
    name: "A",
    hidden: 384,
    layers: 6,
    heads: 6,
    groups: 6,
    ffn: 1024,
    seq: 512,
    batch: 4,
    experts: 0,
};

impl Size {
    pub(crate) fn config(&self, dtype: DType) -> TrainConfig {
        let moe = (self.experts > 0).then(|| Moe {
            experts: self.experts,
            top_k: 2,
            ffn: self.ffn,
            router: Router::plain(Score::Softmax),
            shared: None,
            zero_experts: 0,
        });
        let feed = if moe.is_some() { Feed::Moe } else { Feed::Dense };
        let model = ModelConfig {
            family: Family::LLAMA,
            layers: self.layers,
            hidden: self.hidden,
            ffn: self.ffn,
            heads: self.heads,
            groups: self.groups,
            head_dim: self.hidden / self.heads,
            vocab: VOCAB,
            padded_vocab: VOCAB,
            max_positions: self.seq,
            norm_eps: 1e-5,
            tied: true,
            moe,
            pattern: vec![Layer { feed, ..Layer::default() }; self.layers],
            ..ModelConfig::default()
        };
        TrainConfig::steps(model, dtype, self.seq, self.batch)
    }

    pub(crate) fn micro_batch(&self) -> MicroBatch {
        let tokens = self.seq * self.batch;
        let id = |t: usize| ((t * 7919 + t / 13 * 104_729) % VOCAB) as i32;
        MicroBatch {
            ahead: Vec::new(),
            tokens: (0..tokens).map(id).collect(),
            labels: (1..=tokens).map(id).collect(),
            loss_mask: vec![1.0; tokens],
            position_ids: (0..tokens).map(|t| (t % self.seq) as i32).collect(),
            cu_seqlens: (0..=self.batch).map(|b| (b * self.seq) as i32).collect(),
            row_ends: (1..=self.batch).map(|b| b * self.seq).collect(),
            samples: Vec::new(),
        }
    }
}
