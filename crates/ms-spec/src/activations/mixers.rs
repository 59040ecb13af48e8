//! What mixers with a state, attention to pooled entries and hyper-connections keep, operation by operation.

use super::Activations;
use crate::parts::{Compressed, GatedDelta, HyperConnections, Mamba2, Mamba3};
use crate::{Mixer, ModelConfig};

/// Bytes that a mixer keeps behind its norm: rows, and small numbers of each token that stay where rows leave.
pub(super) type Kept = (usize, usize);

impl Activations {
    /// Of a layer whose mixer has a formula of its own; `None`: it is attention with heads.
    pub(super) fn special(&self, c: &ModelConfig, number: usize) -> Option<Kept> {
        match c.layer(number).mixer {
            Mixer::GatedDelta => c.gated_delta.as_ref().map(|g| self.gated_delta(g)),
            Mixer::Mamba2 => c.mamba2.as_ref().map(|m| self.mamba2(m)),
            Mixer::Mamba3 => c.mamba3.as_ref().map(|m| self.mamba3(m, c.hidden)),
            Mixer::Attention => c.compressed().map(|a| self.compressed(c, a, number)),
            _ => None,
        }
    }

    /// Bytes of an unrounded number, and of unrounded copies of `weights` parameters, which f32 and f64 need not make.
    fn wide(&self, weights: usize) -> (usize, usize) {
        let wide = self.element_bytes.max(4);
        (wide, if self.element_bytes < wide { weights * wide } else { 0 })
    }

    /// Queries, keys and values before and behind the convolution, strengths and decays with what they are made of; gates,
    /// outputs before and behind their norm, and gated.
    fn gated_delta(&self, g: &GatedDelta) -> Kept {
        let (qkv, values) = ((g.qk_rows() + g.value_rows()) / self.tp, g.value_rows() / self.tp);
        let heads = g.value_heads / self.tp;
        let (wide, weights) = self.wide(qkv * g.conv + 2 * heads);
        let rows = 2 * qkv * wide + 4 * values * self.element_bytes;
        (self.tokens * (rows + 4 * heads * wide) + weights, self.tokens * heads * wide)
    }

    /// What goes into the convolution and comes out of it, steps, gates, outputs and gated outputs unrounded; normed, and
    /// scaled.
    fn mamba2(&self, m: &Mamba2) -> Kept {
        let [inner, _, bc, _, heads] =
            Mamba2 { heads: m.heads / self.tp, groups: m.groups / self.tp, ..*m }.sections();
        let convolved = inner + 2 * bc;
        let biases = usize::from(m.conv_bias) * convolved;
        let (wide, weights) = self.wide(convolved * m.conv + biases + 3 * heads);
        let rows = (3 * inner + 2 * convolved + heads) * wide + 2 * inner * self.element_bytes;
        // The norm of each group has a weight of ones.
        let ones = inner * self.tp / m.groups * wide;
        (self.tokens * rows + weights + ones, self.tokens * (m.groups / self.tp) * wide)
    }

    /// All sections of the projection, keys and queries also normed, unrounded; outputs.
    fn mamba3(&self, m: &Mamba3, hidden: usize) -> Kept {
        let m = &Mamba3 { heads: m.heads / self.tp, ..*m };
        let sections: usize = m.sections().into_iter().sum();
        // The rows of the projection that ranks use of the whole.
        let projection = if self.tp > 1 { sections * hidden * self.element_bytes } else { 0 };
        let ranks = m.ranks.unwrap_or(1);
        let by_rank = if m.ranks.is_some() { 3 * ranks * m.inner() } else { 0 };
        let (wide, weights) = self.wide(2 * m.state + 2 * m.heads + 2 * m.heads * ranks * m.state + by_rank);
        let rows = (sections + 2 * m.keys()) * wide + m.inner() * self.element_bytes;
        (self.tokens * rows + weights + projection, self.tokens * 2 * ranks * wide)
    }

    /// The query latent before and behind its norm, queries before their norm and rotated, rows of keys, entries with what
    /// they are pooled from, outputs before and behind the rotation back, and of each group; the rows that a token sees. Ranks
    /// that share documents have all entries, and of others' rows what the layer is told to keep.
    fn compressed(&self, c: &ModelConfig, a: &Compressed, number: usize) -> Kept {
        let (tokens, element, dim) = (self.tokens, self.element_bytes, c.head_dim);
        let heads = c.heads / self.tp;
        let (wide, ones) = (element.max(4), dim * element);
        let outputs = a.out_groups / self.tp * a.out_rank;
        let mut rows = tokens * (2 * a.q_rank + 4 * heads * dim + 2 * dim + outputs) * element + ones;
        let mut norms = tokens * (1 + heads + 1) * wide;
        let (of_row, ranks) = (self.row.clamp(1, tokens.max(1)), self.context_ranks());
        let whole = of_row * ranks;
        let mut seen = c.sliding_window.unwrap_or(whole).min(whole);
        let gathered = if self.keeps_gathered(number) { (ranks - 1) * tokens * element } else { 0 };
        rows += gathered * dim;
        if let Some(pooled) = c.layer(number).pooled {
            let entries = tokens / of_row * (whole / pooled.ratio);
            let series = if pooled.picked { 2 } else { 1 };
            let (_, added) = self.wide(pooled.ratio * series * dim);
            // Of every entry its sums and its rotated row, and where it stands.
            rows += 2 * series * dim * (tokens * element + gathered);
            rows += entries * (2 * dim * element + 4) + added;
            norms += entries * wide;
            let all = whole / pooled.ratio;
            seen += match c.indexer.as_ref().filter(|_| pooled.picked) {
                Some(indexer) if indexer.top_k < all => indexer.top_k,
                _ => all,
            };
        }
        // The softmax's sums; sinks as they are computed with.
        let statistics = tokens * heads * wide + self.wide(heads).1;
        (rows, norms + statistics + tokens * seen * 4)
    }

    /// Around one sublayer, or where the streams `end`: the streams as they came, unrounded and normed, what they are weighed
    /// by before and behind the weights' own function, and what the sublayer made.
    pub(super) fn streams(&self, c: &ModelConfig, h: &HyperConnections, end: bool) -> usize {
        let all = h.streams * c.hidden;
        let weights = if end { h.streams } else { (2 + h.streams) * h.streams };
        let scales = if end { 1 } else { 3 };
        let (wide, copies) = self.wide(weights * all + weights + scales);
        let unrounded = if self.element_bytes < wide { all * wide } else { 0 };
        let made = if end { 0 } else { c.hidden * self.element_bytes };
        let row = all * self.element_bytes + unrounded + all * wide + wide + 2 * weights * wide + made;
        // The norm has a weight of ones.
        self.stream() * row + copies + all * wide
    }
}
