//! Bytes that a rank's copy of the weights takes in training, by kind.

use ms_core::{Axis, Grid};
use serde::{Deserialize, Serialize};

use crate::parts::Feed;
use crate::{Item, ModelConfig, PlacedParam, Recompute, Result, local};

/// Bytes of one rank by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Elements of the weights that the rank holds, copies included.
    pub elements: usize,
    /// Weights that the forward pass reads.
    pub weights: usize,
    /// Accumulated gradients, float32 (beside float64 weights float64).
    pub gradients: usize,
    /// Float32 copy of the weights, when they are of a shorter type.
    pub master: usize,
    /// First and second moments, or momentum, float32 (beside float64 weights float64).
    pub moments: usize,
}

impl Memory {
    /// The sum of all kinds.
    pub fn total(&self) -> usize {
        [self.gradients, self.master, self.moments].into_iter().fold(self.weights, usize::saturating_add)
    }
}

/// Bytes that the parameters `held` take on `rank`, with weights of `weight_bytes` bytes and
/// `moments` numbers of the optimizer per element.
///
/// With `distributed_optimizer` the master copy and the moments are shared by the ranks that hold the same: data and
/// context parallel ranks, of experts the ranks with the same experts.
///
/// # Errors
/// A parameter that does not divide by the sizes of the grid.
pub fn of(
    held: &[PlacedParam],
    grid: &Grid,
    rank: usize,
    weight_bytes: usize,
    moments: usize,
    distributed_optimizer: bool,
) -> Result<Memory> {
    let mut memory = Memory::default();
    for PlacedParam { spec, .. } in held {
        let elements = local(spec, grid, rank)?.local_shape().numel();
        let share = match (distributed_optimizer, spec.of_experts()) {
            (false, _) => 1,
            (true, true) => grid.expert().size(Axis::Dp),
            (true, false) => grid.size(Axis::Dp) * grid.size(Axis::Cp),
        };
        let owned = elements.div_ceil(share);
        let add = |sum: &mut usize, count: usize, bytes: usize| {
            *sum = sum.saturating_add(count.saturating_mul(bytes));
        };
        add(&mut memory.elements, elements, 1);
        add(&mut memory.weights, elements, weight_bytes);
        // Gradients, master weights and moments are f32, or f64 beside f64 weights.
        let wide = weight_bytes.max(4);
        add(&mut memory.gradients, elements, wide);
        add(&mut memory.master, owned, if weight_bytes < wide { wide } else { 0 });
        add(&mut memory.moments, owned, moments * wide);
    }
    Ok(memory)
}

/// What decides the size of what a forward pass keeps for its backward.
#[derive(Clone, Copy, Debug)]
pub struct Activations {
    /// Tokens of a micro-batch on the rank.
    pub tokens: usize,
    /// Bytes of an element of the stream.
    pub element_bytes: usize,
    /// Ranks that share a matrix.
    pub tp: usize,
    /// Whether they share the tokens between matrices.
    pub sequence_parallel: bool,
}

impl Activations {
    /// Bytes that one forward pass through `items` keeps, and what its backward needs besides while it runs layers again. Kept
    /// are the operands of every operation that has a backward; of layers that run again their input. Mixers that are not
    /// attention count as attention of their projections' width.
    pub fn of_items(&self, c: &ModelConfig, items: &[Item], recompute: Recompute) -> (usize, usize) {
        // What is asked for may be absurd: the sum of fewer tokens, stretched, does not overflow.
        const MOST: usize = 1 << 12;
        // What a pass keeps whatever its tokens: gradients by the output layer, formed in the forward pass.
        let wide = self.element_bytes.max(4);
        let head = items.iter().filter(|i| matches!(i, Item::Head)).count();
        let fixed = head * (c.padded_vocab / self.tp).saturating_mul(c.hidden).saturating_mul(wide);
        if self.tokens > MOST {
            let (kept, again) = Self { tokens: MOST, ..*self }.of_items(c, items, recompute);
            let stretched = |few: usize| (few as f64 * (self.tokens as f64 / MOST as f64)) as usize;
            return (stretched(kept - fixed).saturating_add(fixed), stretched(again));
        }
        let stream = match self.sequence_parallel {
            true => self.tokens / self.tp,
            false => self.tokens,
        };
        let row = c.hidden * self.element_bytes;
        let inside = |width: usize| self.tokens * width / self.tp * self.element_bytes;
        let layer = |layer: usize| {
            let kind = c.layer(layer);
            let (heads, groups) = c.heads_of(layer);
            let width = (heads + 2 * groups) * c.head_dim;
            // The stream, its norm (whole again inside tensor parallelism), rows of queries, keys and values, the heads'
            // outputs and a number for each head and token.
            let mix = 2 * stream * row
                + self.tokens * row * usize::from(self.sequence_parallel)
                + inside(width)
                + inside(heads * c.value_dim())
                + self.tokens * heads / self.tp * wide;
            let gated = if c.activation.gated() { 3 } else { 2 };
            let copies = |ffn: usize, rows: usize| inside(gated * ffn) * rows;
            let feed = 2 * stream * row
                + match (&c.moe, kind.feed) {
                    (_, Feed::None) => 0,
                    (Some(moe), Feed::Moe) => {
                        copies(moe.ffn, moe.top_k)
                            + copies(moe.shared.map_or(0, |s| s.ffn), 1)
                            + 2 * self.tokens * moe.top_k * row
                            + self.tokens * (moe.experts + moe.zero_experts) * wide
                    }
                    _ => copies(c.ffn, 1),
                };
            mix + feed
        };
        let of = |item: &Item| match *item {
            Item::Layer { layer: l, .. } => layer(l),
            Item::Predictor(k) => layer(c.layers + k) + 4 * stream * row,
            // Gradients by the stream are formed in the forward pass, too.
            Item::Head => 3 * stream * row,
            Item::Embedding => self.tokens * wide,
            Item::Noop { .. } => 0,
        };
        let is_layer = |item: &&Item| matches!(item, Item::Layer { .. });
        let layers: Vec<usize> = items.iter().filter(is_layer).map(of).collect();
        let others: usize = items.iter().filter(|i| !is_layer(i)).map(of).fold(fixed, usize::saturating_add);
        let input = stream * row;
        // Groups of layers that run again together, from the first on.
        let (count, group) = match recompute {
            Recompute::None => (0, 1),
            Recompute::Block(n) | Recompute::BlockOfStage(n) => (n.min(layers.len()), 1),
            Recompute::Uniform(n) => (layers.len(), n.max(1)),
        };
        let (again, whole) = layers.split_at(count);
        let kept = whole.iter().fold(others, |sum, &l| sum.saturating_add(l));
        let inputs = again.len().div_ceil(group).saturating_mul(input);
        let most = again.chunks(group).map(|g| g.iter().fold(0, |s, &l| usize::saturating_add(s, l))).max();
        (kept.saturating_add(inputs), most.unwrap_or(0))
    }
}
