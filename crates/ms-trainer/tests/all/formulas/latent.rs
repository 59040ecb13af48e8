//! What tensor-parallel ranks send in models with latent attention and prediction modules.

use super::{gathered, shared_out, summed};

/// Ranks that share the matrices of a model whose layers have dense MLPs, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrices {
    pub(crate) tp: usize,
    pub(crate) sequence_parallel: bool,
    /// Of a micro-batch.
    pub(crate) tokens: usize,
    pub(crate) hidden: usize,
    /// Bytes of an element.
    pub(crate) e: usize,
    /// Columns of the queries of all heads.
    pub(crate) queries: usize,
    /// Columns of latents of queries, where there are some, of those of keys and values, and of the rotated part of a key.
    /// Without them attention is plain.
    pub(crate) latents: Option<(Option<usize>, usize, usize)>,
}

impl Matrices {
    fn rows(&self, width: usize) -> usize {
        self.tokens * width * self.e
    }

    /// For rows that enter or leave, and their gradients in the other direction: one of the two is a sum if every rank has
    /// whole rows; token shards are gathered in one direction and reduce-scattered in the other.
    fn crossed(&self, width: usize) -> usize {
        if self.sequence_parallel {
            2 * shared_out(self.rows(width), self.tp)
        } else {
            summed(self.rows(width), self.tp)
        }
    }

    /// Of the input of a matrix whose rows the ranks share: shares of the tokens are gathered again for its gradient.
    fn entered(&self, width: usize) -> usize {
        let again = if self.sequence_parallel { shared_out(self.rows(width), self.tp) } else { 0 };
        self.crossed(width) + again
    }

    /// Of a layer in a micro-batch. Latents and the rotated part of keys are made by every rank, of its tokens, and enter in
    /// place of the stream; without a latent of queries the stream enters, and every rank makes the latents of keys and values of
    /// all tokens.
    ///
    /// # Source
    /// DeepSeek-V2, arXiv:2405.04434, section 2.1; Megatron-LM `core_v0.12.1`,
    /// `megatron/core/transformer/multi_latent_attention.py`, `get_query_key_value_tensors`.
    pub(crate) fn layer(&self) -> usize {
        let attention = match self.latents {
            Some((Some(queries), below, rotated)) => {
                self.entered(queries) + self.entered(below) + self.crossed(rotated)
            }
            _ => self.entered(self.hidden),
        };
        let network = self.entered(self.hidden) + self.crossed(self.hidden);
        attention + self.crossed(self.hidden) + network
    }

    /// Of the embedding, whose words the ranks share.
    pub(crate) fn embedding(&self) -> usize {
        self.crossed(self.hidden)
    }

    /// For the output layer and the loss: three numbers per token are exchanged in addition to its input.
    pub(crate) fn loss(&self) -> usize {
        self.crossed(self.hidden) + gathered(self.tokens * 3 * 4, self.tp)
    }

    /// Of a prediction module: it embeds, projects the two streams by columns, whose parts are put together, and has a layer and
    /// a loss of its own.
    ///
    /// # Source
    /// DeepSeek-V3, arXiv:2412.19437, section 2.2.
    pub(crate) fn module(&self) -> usize {
        let projected = self.entered(2 * self.hidden) + self.crossed(self.hidden);
        self.embedding() + projected + self.layer() + self.loss()
    }

    /// Gradient elements of a layer for which each rank has a partial sum: norms of the stream under sequence parallelism,
    /// and weights applied to token shards; without query latents, for the heads of one rank.
    fn summands_of_layer(&self) -> usize {
        let norms = 2 * self.hidden;
        let shared = if self.sequence_parallel { norms } else { 0 };
        shared
            + match self.latents {
                None => 0,
                Some((Some(queries), below, rotated)) if self.sequence_parallel => {
                    (queries + below + rotated) * self.hidden + queries + below
                }
                Some((Some(_), ..)) => 0,
                Some((None, below, rotated)) => (self.queries + below + rotated) * self.hidden + below,
            }
    }

    /// For an iteration: gradients for which each rank has a partial sum, unrounded, in a model with this many layers and
    /// modules.
    pub(crate) fn summands(&self, layers: usize, modules: usize) -> usize {
        // Two norms before a module's projection, one after its layer, and the one after the last layer.
        let norms = if self.sequence_parallel { (3 * modules + 1) * self.hidden } else { 0 };
        summed(4 * ((layers + modules) * self.summands_of_layer() + norms), self.tp)
    }
}
