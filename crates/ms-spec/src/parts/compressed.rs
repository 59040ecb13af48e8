//! Attention to a window of tokens and to pooled entries of those far away (DeepSeek-V4).

use ms_core::{Axis, Partition};

use crate::kept::{Activations, Kept};
use crate::params::{Init, SumGrad, Table};
use crate::rule::{How, NO_RING, Rule, UNCONCERNED};
use crate::sizes::{Compressed, Pooled};
use crate::{ModelConfig, Part, Role};

/// How ranks share it.
pub(crate) const RULE: Rule = Rule {
    part: "attention to pooled entries",
    tp: How::Shared("heads and groups of outputs"),
    cp: How::WholeDocuments {
        how: "gathered: rows of tokens; every rank pools the windows of whole documents. Ulysses: heads of queries for tokens, the rest gathered",
        otherwise: NO_RING,
    },
    ep: UNCONCERNED,
    has: |c| c.compressed().is_some(),
    divides: |c, axis| match (axis, c.compressed()) {
        (Axis::Tp, Some(a)) => vec![("groups of outputs", a.out_groups)],
        _ => Vec::new(),
    },
};

/// Its weights, under `module`. Each rank's heads see the whole row of a token, and all entries.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize, a: &Compressed) {
    let (h, d, heads, whole) = (c.hidden, c.head_dim, c.heads, Partition::Replicated);
    t.of(Part::Attention);
    let (init, sum) = (t.std(), SumGrad::OverTp);
    t.vector(Role::AttnSink, heads, Table::rows(1), Init::Zeros, SumGrad::No);
    t.push(Role::LinearQ, &[a.q_rank, h], whole, init, sum);
    t.norm_of(c.norm, Role::QLayernorm, a.q_rank, sum);
    t.matrix(Role::LinearQUpProj, [heads * d, a.q_rank], Table::rows(1), init);
    t.push(Role::LinearKv, &[d, h], whole, init, sum);
    t.norm_of(c.norm, Role::KvLayernorm, d, sum);
    let blocks = [a.out_groups * a.out_rank, heads / a.out_groups * d];
    t.matrix(Role::LinearODownProj, blocks, Table::rows(1), init);
    t.matrix(Role::LinearOUpProj, [h, blocks[0]], Table::columns(), t.out_std());
    let Some(pooled) = c.layer(index).pooled else { return };
    let series = if pooled.picked { 2 } else { 1 };
    let compressor = |t: &mut Table<'_>, part: Part, dim: usize, sum: SumGrad| {
        t.of(part);
        t.push(Role::Ape, &[pooled.ratio, series * dim], whole, init, sum);
        t.list.last_mut().expect("just pushed").decay = false;
        t.norm_of(c.norm, Role::Norm, dim, sum);
        t.push(Role::Wgate, &[series * dim, h], whole, init, sum);
        t.push(Role::Wkv, &[series * dim, h], whole, init, sum);
    };
    compressor(t, Part::Compressor, d, sum);
    let Some(i) = c.indexer.filter(|_| pooled.picked) else { return };
    // Every rank sees all tokens, and what all heads make of entries.
    let alike = SumGrad::No;
    compressor(t, Part::EntryIndexerCompressor, i.head_dim, alike);
    t.of(Part::EntryIndexer);
    t.push(Role::WqB, &[i.heads * i.head_dim, a.q_rank], whole, init, alike);
    t.push(Role::WeightsProj, &[i.heads, h], whole, init, alike);
}

impl Activations {
    /// The query latent before and behind its norm, queries before their norm and rotated, rows of keys, entries with what
    /// they are pooled from, outputs before and behind the rotation back, and of each group; the rows that a token sees. Ranks
    /// that share documents have all entries, and of others' rows what the layer is told to keep.
    pub(crate) fn compressed(&self, c: &ModelConfig, a: &Compressed, number: usize) -> Kept {
        let (tokens, element, dim) = (self.tokens, self.element_bytes, c.head_dim);
        let heads = c.heads / self.tp;
        let (wide, ones) = (element.max(4), dim * element);
        let outputs = a.out_groups / self.tp * a.out_rank;
        let mut rows = tokens * (2 * a.q_rank + 4 * heads * dim + 2 * dim + outputs) * element + ones;
        let mut norms = tokens * (1 + heads + 1) * wide;
        let (of_row, ranks) = (self.row.clamp(1, tokens.max(1)), self.context_ranks());
        let whole = of_row * ranks;
        let mut seen = c.sliding_window.unwrap_or(whole).min(whole);
        rows += self.gathered(number) * dim;
        if let Some(pooled) = c.layer(number).pooled {
            for (kept, statistics) in
                [self.entries(number, pooled, dim), self.entry_indexer(c, number, pooled)]
            {
                rows += kept;
                norms += statistics;
            }
            let all = whole / pooled.ratio;
            seen += match c.indexer.as_ref().filter(|_| pooled.picked) {
                Some(indexer) if indexer.top_k < all => indexer.top_k,
                _ => all,
            };
        }
        // The softmax's sums; sinks as they are computed with.
        let statistics = tokens * heads * wide + self.wide(heads).1;
        // Ranks that exchange heads of queries for tokens have what all queries see.
        (rows, norms + statistics + tokens * self.ulysses_and_ring.0 * seen * 4)
    }

    /// Bytes of a column of other ranks' tokens that a layer keeps.
    fn gathered(&self, number: usize) -> usize {
        let others = (self.context_ranks() - 1) * self.tokens * self.element_bytes;
        if self.keeps_gathered(number) { others } else { 0 }
    }

    /// Entries of all tokens.
    pub(crate) fn number_of_entries(&self, ratio: usize) -> usize {
        let of_row = self.row.clamp(1, self.tokens.max(1));
        self.tokens / of_row * (of_row * self.context_ranks() / ratio)
    }

    /// What entries of `dim` elements are made of: rows and gates, of every entry its sums and its rotated row, and where it
    /// stands; of their norm a number each.
    pub(crate) fn entries(&self, number: usize, pooled: Pooled, dim: usize) -> Kept {
        let (entries, element) = (self.number_of_entries(pooled.ratio), self.element_bytes);
        let series = if pooled.picked { 2 } else { 1 };
        let (wide, added) = self.wide(pooled.ratio * series * dim);
        let rows = 2 * series * dim * (self.tokens * element + self.gathered(number));
        (rows + entries * (2 * dim * element + 4) + added, entries * wide)
    }
}
