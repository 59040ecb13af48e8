//! Everything that the ranks of a dense model send in an iteration, group by group.

use super::{Buffer, Chunks, Heads, LOSSES, gathered, shared_out, summed};
use ms_core::RankGroup;
use std::collections::BTreeMap;

/// A dense model with RMSNorm, gated MLPs and no biases, and how ranks share it. Heads, MLP columns and vocabulary divide
/// evenly among tensor-parallel ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) ffn: usize,
    pub(crate) of: Heads,
    pub(crate) head_dim: usize,
    pub(crate) vocab: usize,
    /// The output layer's weights are those of the embedding.
    pub(crate) tied: bool,
    /// Ranks along tensor, context, pipeline and data parallelism.
    pub(crate) ranks: [usize; 4],
    /// Of the context-parallel ranks those that exchange heads for tokens; the others are a ring.
    pub(crate) ulysses: usize,
    pub(crate) sequence_parallel: bool,
    pub(crate) chunks: Chunks,
    /// Elements at which a bucket ends.
    pub(crate) bucket: Option<usize>,
    /// Tokens of a micro-batch, and micro-batches of a data-parallel rank.
    pub(crate) tokens: usize,
    pub(crate) micro: usize,
    /// Bytes of an element.
    pub(crate) e: usize,
}

/// A piece of the model: whether the embedding is in it, its layers, whether the end is in it.
type Chunk = (bool, usize, bool);

impl Dense {
    /// What each chunk of `stage` holds.
    fn chunks(&self, stage: usize) -> Vec<Chunk> {
        let pp = self.ranks[2];
        match self.chunks {
            Chunks::InTurn(v) => {
                let of = |k| (k == 0 && stage == 0, self.layers / pp / v, k + 1 == v && stage + 1 == pp);
                (0..v).map(of).collect()
            }
            Chunks::BothWays => {
                let each = self.layers / pp / 2;
                vec![(stage == 0, each, false), (false, each, stage == 0)]
            }
        }
    }

    /// Elements of the parameters of a chunk, in Megatron's order; those of norms are marked.
    fn params(&self, (begins, layers, ends): Chunk) -> Vec<(usize, bool)> {
        let (h, tp) = (self.hidden, self.ranks[0]);
        let words = (self.vocab / tp * h, false);
        let columns = (self.of.heads + 2 * self.of.groups) * self.head_dim / tp;
        let layer = [
            (h, true),
            (h * self.of.heads * self.head_dim / tp, false),
            (columns * h, false),
            (h, true),
            (2 * self.ffn / tp * h, false),
            (h * self.ffn / tp, false),
        ];
        let mut all = if begins { vec![words] } else { Vec::new() };
        all.extend(std::iter::repeat_n(layer, layers).flatten());
        if ends {
            all.push((h, true));
            // Of one stage the tied table stands at the beginning.
            if !self.tied || self.ranks[2] > 1 {
                all.push(words);
            }
        }
        all
    }

    /// Of every rank, by group; groups in which nothing is sent are left out. Along tensor parallelism every sublayer is
    /// entered and left, forward and backward; the embedding is left and the loss entered. Whole rows are summed; with
    /// sequence parallelism they are gathered on entry and reduce-scattered on exit, the input is gathered again for weight
    /// gradients, and gradients of norms are summed by their owners. So are those of a tied embedding, which the first and
    /// the last stage hold: only what a rank owns of it, where upstream sums all of it.
    ///
    /// # Source
    /// Megatron-LM, arXiv:1909.08053, section 3; sequence parallelism: arXiv:2205.05198, section 4.2.2. The three numbers of
    /// a token for the loss: `megatron/core/tensor_parallel/cross_entropy.py`. Sum of tied tables: Megatron-LM `core_r0.8.0`,
    /// `megatron/core/distributed/finalize_model_grads.py`, `_allreduce_embedding_grads`.
    pub(crate) fn sent(&self) -> Vec<BTreeMap<RankGroup, u64>> {
        let world = self.ranks.iter().product();
        (0..world).map(|rank| self.of_rank(rank)).collect()
    }

    fn of_rank(&self, rank: usize) -> BTreeMap<RankGroup, u64> {
        let [tp, cp, pp, dp] = self.ranks;
        let (c, d, stage) = (rank / tp % cp, rank / tp / cp % dp, rank / tp / cp / dp);
        let tokens = self.tokens / cp;
        let stream = tokens * self.hidden * self.e;
        let n = dp * cp;
        let (u, ring) = (self.ulysses, cp / self.ulysses);
        let own = Heads { heads: self.of.heads / tp, groups: self.of.groups / tp };
        let (mut of_tp, mut of_dp) = (0, summed(LOSSES, n));
        let (mut layers, mut of_table) = (0, 0);
        for (k, chunk) in self.chunks(stage).into_iter().enumerate() {
            let (begins, here, ends) = chunk;
            layers += here;
            let crossing = if self.sequence_parallel { shared_out(stream, tp) } else { summed(stream, tp) };
            let sublayer = if self.sequence_parallel { 5 } else { 2 };
            // Where all ranks have whole rows, these leave the embedding, and their gradients the loss, in one direction alone.
            let end = if self.sequence_parallel { 2 } else { 1 };
            of_tp += self.micro * crossing * (2 * here * sublayer + usize::from(begins) * end);
            if ends {
                of_tp += self.micro * (crossing * end + gathered(tokens * 3 * 4, tp));
            }
            let params = self.params(chunk);
            let sizes: Vec<usize> = params.iter().map(|p| p.0).collect();
            let words: Vec<usize> = if self.tied && pp > 1 {
                begins.then_some(0).into_iter().chain(ends.then(|| sizes.len() - 1)).collect()
            } else {
                Vec::new()
            };
            let limit = self.bucket.filter(|_| k == 0 && stage == 0);
            let buffer = Buffer::new(&sizes, &words, n, limit);
            let (sums, weights) = buffer.sent(4, self.e);
            of_dp += sums + weights;
            of_table += words.iter().map(|&i| buffer.owned(i, sizes[i], d * cp + c) * 4).sum::<usize>();
            if self.sequence_parallel {
                let norms = params.iter().enumerate().filter(|(_, p)| p.1);
                let mine: usize = norms.map(|(i, p)| buffer.owned(i, p.0, d * cp + c)).sum();
                // One sum for all chunks.
                self.check_one_chunk();
                of_tp += summed(mine * 4, tp);
            }
        }
        let of_layers = self.micro * layers;
        let borders = self.micro * self.chunks.messages(stage, pp) * self.border(stream);
        let world = tp * n * pp;
        let of = [
            (RankGroup::Tp, of_tp),
            (RankGroup::Ulysses, of_layers * own.ulysses(tokens, self.head_dim, u, self.e)),
            (RankGroup::Ring, of_layers * own.ring(tokens, self.head_dim, (u, ring), self.e)),
            (RankGroup::DpCp, of_dp),
            (RankGroup::Pp, borders + summed(LOSSES, pp)),
            (RankGroup::Embedding, summed(of_table, 2)),
            // The norm of the gradient: the 70 digits of a sum without rounding, and two counts.
            (RankGroup::World, summed(8 * 72, world)),
        ];
        of.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(group, bytes)| (group, bytes as u64)).collect()
    }

    /// With sequence parallelism each rank passes on its tokens.
    fn border(&self, stream: usize) -> usize {
        if self.sequence_parallel { stream / self.ranks[0] } else { stream }
    }

    fn check_one_chunk(&self) {
        assert_eq!(self.chunks, Chunks::InTurn(1), "sums of norms round once for a stage");
    }
}
