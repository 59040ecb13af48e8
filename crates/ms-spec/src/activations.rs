//! Bytes that forward passes keep for their backward.

mod mixers;

use crate::keeping::{LayerKeeping, Recompute};
use crate::kept::Activations;
use crate::sizes::{Attention, Block, Feed, Mixer, Mla, Norm, QkNorm};
use crate::{Item, ModelConfig};
use ms_core::{Dispatcher, KeptOfRing};

/// Bytes of one forward pass through a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassBytes {
    /// Kept until the backward pass.
    pub kept: usize,
    /// What the backward pass needs besides while it runs layers again.
    pub again: usize,
    /// Kept by the host.
    pub sent: usize,
}

/// A layer's part of it.
#[derive(Clone, Copy, Default)]
struct Layer {
    kept: usize,
    sent: usize,
}

/// Tokens of a rank around experts.
struct Tokens {
    /// That the router's inputs are of.
    entered: usize,
    /// That it routes.
    routed: usize,
    /// That it has the weights of.
    weighed: usize,
    /// As many whole rows come back for each choice.
    back: usize,
}

impl Activations {
    /// Of one forward pass through `items`, which are chunk `place.0` of the `place.1` chunks of a stage. Kept are the operands
    /// of every operation that has a backward; of layers that run again their input.
    ///
    /// Every part is counted as it is; of experts as if tokens were spread evenly over ranks and none
    /// returned its input. Sparse attention counts as dense where documents are not shared by ranks.
    pub fn of_items(&self, c: &ModelConfig, items: &[Item], place: (usize, usize)) -> PassBytes {
        // What is asked for may be absurd: the sum of fewer tokens, stretched, does not overflow.
        const MOST: usize = 1 << 12;
        // What a pass keeps whatever its tokens: gradients by the output layer, formed in the forward pass.
        let wide = self.element_bytes.max(4);
        let head = items.iter().filter(|i| matches!(i, Item::Head)).count();
        let uses = items.iter().filter(|i| matches!(i, Item::Head | Item::Predictor(_))).count();
        let fixed = uses * (c.padded_vocab / self.tp).saturating_mul(c.hidden).saturating_mul(wide);
        if self.tokens > MOST {
            let PassBytes { kept, again, sent } = Self { tokens: MOST, ..*self }.of_items(c, items, place);
            let stretched = |few: usize| (few as f64 * (self.tokens as f64 / MOST as f64)) as usize;
            let kept = stretched(kept - fixed).saturating_add(fixed);
            return PassBytes { kept, again: stretched(again), sent: stretched(sent) };
        }
        let streams = c.hyper.as_ref().map_or(1, |h| h.streams);
        let row = self.stream() * c.hidden * self.element_bytes;
        // What goes from layer to layer.
        let carried = row * streams;
        let end = c.hyper.as_ref().map_or(0, |h| self.streams(c, h, true));
        // A number for each token that a norm has seen.
        let rstd = self.stream() * wide;
        let is_layer = |item: &&Item| matches!(item, Item::Layer { .. });
        let numbers: Vec<usize> = items
            .iter()
            .filter_map(|item| match item {
                Item::Layer { layer, .. } => Some(*layer),
                _ => None,
            })
            .collect();
        let others = items.iter().filter(|i| !is_layer(i)).map(|item| match *item {
            // Ids and embedding of the tokens ahead; both normed, side by side; the module's layer; the stream before the last
            // norm, and what the output layer's second use leaves: gradients by its rows and by what is behind the norm.
            Item::Predictor(k) => {
                let layer = match self.keeping.predictor_layers_again {
                    true => carried,
                    false => self.predictor(c, k).kept,
                };
                let joined = if self.keeping.predictor_norms_again { 0 } else { 2 * row };
                let last = row + rstd + self.tokens * c.hidden * self.element_bytes;
                4 * self.tokens + row + 2 * rstd + joined + layer + last + end
            }
            // The stream before the last norm, and the gradient by all tokens of what is behind it.
            Item::Head => row + rstd + self.tokens * c.hidden * self.element_bytes + end,
            // Ids, and positions where attention sees them.
            Item::Embedding => {
                if c.has(Mixer::Attention) {
                    8 * self.tokens
                } else {
                    4 * self.tokens
                }
            }
            Item::Layer { .. } | Item::Noop { .. } => 0,
        });
        let mut sum = PassBytes { kept: others.fold(fixed, usize::saturating_add), ..PassBytes::default() };
        // What a chunk hands on stays until its gradient comes.
        if head == 0 {
            sum.kept = sum.kept.saturating_add(carried);
        }
        let full = self.recompute.of_chunk(place.0, place.1);
        let spared = usize::from(self.keeping.spare_last && head > 0).min(numbers.len());
        let count = full.layers(numbers.len()).min(numbers.len() - spared);
        let (again, whole) = numbers.split_at(count);
        // What came in goes to the host with what the first layer keeps, and stays for its gradient.
        if self.keeping.swap_attention && again.is_empty() && !items.contains(&Item::Embedding) {
            sum.kept = sum.kept.saturating_add(carried);
        }
        for (i, &number) in whole.iter().enumerate() {
            let keeping = self.keeping.of_layer(self.recompute, count + i, place);
            let layer = self.layer(c, number, keeping);
            sum.kept = sum.kept.saturating_add(layer.kept);
            sum.sent = sum.sent.saturating_add(layer.sent);
        }
        // Groups of layers that run again together, from the first on.
        let group = match full {
            Recompute::Uniform(n) => n.max(1),
            Recompute::None | Recompute::Block(_) | Recompute::BlockOfStage(_) => 1,
        };
        let inputs = again.len().div_ceil(group).saturating_mul(carried);
        // What came into the chunk stays for its gradient.
        let came = if again.is_empty() || items.contains(&Item::Embedding) { 0 } else { carried };
        let made = inputs - came.min(inputs);
        let (stays, leaves) = match (self.keeping.swap_inputs, self.keeping.inputs_shared) {
            (true, _) => (came, made),
            (false, true) => ((made / self.tp).saturating_add(came), 0),
            (false, false) => (inputs, 0),
        };
        sum.kept = sum.kept.saturating_add(stays);
        sum.sent = sum.sent.saturating_add(leaves);
        let of_layer = |l: &usize| self.layer(c, *l, LayerKeeping::default()).kept;
        let of_group = |g: &[usize]| g.iter().map(of_layer).fold(0, usize::saturating_add);
        let predictors = items.iter().filter_map(|item| match *item {
            Item::Predictor(k) => Some(self.predictor(c, k)),
            _ => None,
        });
        let (layers_again, mut most) = (self.keeping.predictor_layers_again, 0);
        for layer in predictors {
            most = most.max(if layers_again { layer.kept } else { 0 });
            sum.sent = sum.sent.saturating_add(if layers_again { 0 } else { layer.sent });
        }
        sum.again = again.chunks(group).map(of_group).max().unwrap_or(0).max(most);
        sum
    }

    /// What the layer of prediction module `k` keeps: all of it where it runs again as a whole.
    fn predictor(&self, c: &ModelConfig, k: usize) -> Layer {
        let keeping = match self.keeping.predictor_layers_again {
            true => LayerKeeping::default(),
            false => self.keeping.of_predictor(),
        };
        self.layer(c, c.layers + k, keeping)
    }

    /// Bytes of what comes into a chunk that is not the first.
    pub fn input(&self, c: &ModelConfig) -> usize {
        let streams = c.hyper.as_ref().map_or(1, |h| h.streams);
        self.stream().saturating_mul(c.hidden * streams).saturating_mul(self.element_bytes)
    }

    fn layer(&self, c: &ModelConfig, number: usize, keeping: LayerKeeping) -> Layer {
        let (element, wide) = (self.element_bytes, self.element_bytes.max(4));
        let row = self.stream() * c.hidden * element;
        let rstd = self.stream() * wide;
        // Behind a norm, all tokens again inside tensor parallelism.
        let whole = self.tokens * c.hidden * element;
        let kind = c.layer(number);
        // Of a sublayer without a norm its input is kept once.
        let bare = kind.mixer == Mixer::Mamba3;
        // What a sublayer takes, which layers that share out their outputs keep as ranks have it, and others (`copy`) as they
        // have gathered it. Behind a norm it stands beside the norm's own input, else it is the stream.
        let taken = |own: bool, copy: Option<usize>| {
            let copy = copy.filter(|_| self.sequence_parallel).unwrap_or(0);
            let own = own || !self.sequence_parallel;
            let behind = usize::from(own) * row + copy;
            match keeping.norms_again {
                true => row,
                false => usize::from(c.block.norms_inputs()) * row + behind,
            }
        };
        // Of a norm before a sublayer a number for each token, of one behind it its input, too.
        let norms =
            rstd * usize::from(c.block.norms_inputs()) + (row + rstd) * usize::from(c.block.norms_outputs());
        let weighed = c.hyper.as_ref().map_or(0, |h| self.streams(c, h, false));
        let (mut kept, mut sent) = (0, 0);
        if kind.mixer != Mixer::None {
            let (projected, attended, statistics) = self.mixer(c, number, keeping);
            let pooled = kind.mixer == Mixer::Attention && c.compressed().is_some();
            let input = match bare {
                // What ranks have gathered of it stands for it.
                true if self.sequence_parallel && !keeping.norms_again => whole,
                true => row,
                false => taken(!pooled, pooled.then_some(whole)),
            };
            let latent = kind.mixer == Mixer::Attention && c.mla().is_some();
            let (stays, leaves) = match (keeping.swap_attention, keeping.swap_latent_outputs && latent) {
                (true, _) => (0, input + projected + attended),
                (false, true) => (input + projected, attended),
                (false, false) => (input + projected + attended, 0),
            };
            (kept, sent) = (kept + stays, sent + leaves);
            kept += if bare { 0 } else { norms } + statistics + weighed;
        }
        let mixer = kept;
        if kind.feed != Feed::None {
            // A router takes tokens as they reach it; one of unrounded rows needs no rounded ones.
            let entered = self.of_experts().entered;
            let gathered = entered > self.stream();
            let input = match (&c.moe, kind.feed) {
                (Some(moe), Feed::Moe) if !keeping.network_again(kind.feed) => {
                    let again = keeping.experts_again && !self.exchanges_columns();
                    let routed = !(moe.router.f32 && element < wide) || again;
                    let beside = moe.shared.is_some() || c.block == Block::Shortcut;
                    let copy = (routed && gathered).then_some(entered * c.hidden * element);
                    match self.sequence_parallel || routed || beside {
                        true => taken(beside || (routed && !gathered), copy),
                        false => row,
                    }
                }
                _ => taken(true, None),
            };
            let network = self.network(c, number, keeping);
            kept += weighed + input + norms + network.kept;
            sent += network.sent;
        }
        if c.block == Block::Shortcut {
            // Two of everything, but the experts beside the first network take its input.
            let network = self.dense(c, keeping);
            kept += mixer + 2 * network + taken(true, None) + norms;
            sent *= 2;
        }
        Layer { kept, sent }
    }

    /// Rows before attention and behind it, and numbers for each token and head.
    fn mixer(&self, c: &ModelConfig, number: usize, keeping: LayerKeeping) -> (usize, usize, usize) {
        if let Some((rows, small)) = self.own_formula(c, number) {
            return (rows, 0, small);
        }
        let (element, wide) = (self.element_bytes, self.element_bytes.max(4));
        let inside = |width: usize| self.tokens * width / self.tp * element;
        let (heads, groups) = c.heads_of(number);
        let (projected, attended) = match &c.attention {
            Attention::Latent(mla) => {
                if keeping.latent_attention_again {
                    return (0, 0, 0);
                }
                let latents = mla.q_rank.unwrap_or(0) + mla.kv_rank;
                // Outputs, and their values unless these are taken of them again.
                let taken_again = keeping.swap_latent_outputs;
                let outputs = |dim: usize| inside(heads * (dim + if taken_again { 0 } else { mla.value }));
                // Before and behind their norms; queries, keys and values of one width; outputs, and their values.
                let dim = (mla.nope + mla.rope).max(mla.value);
                let behind = self.latent_tokens(mla) * latents * element;
                let picks = self.picks(c, number, keeping.core_attention_again);
                let (ulysses, ring) = self.ulysses_and_ring;
                if let Some(picks) = picks.filter(|_| ulysses == 1 && ring > 1) {
                    // Queries alone; of keys and values what other ranks gather.
                    let mine = self.tokens * (mla.kv_rank + mla.rope) * element;
                    let others =
                        if self.keeps_gathered(number) { (self.context_ranks() - 1) * mine } else { 0 };
                    let queries = self.latent_tokens(mla) * mla.q_rank.unwrap_or(0) * element;
                    let made = inside(if keeping.latents_up_again { 0 } else { heads * dim });
                    let rows = behind + queries + mine + others + made;
                    let attended = if keeping.core_attention_again { 0 } else { outputs(dim) };
                    let latents = 1 + usize::from(mla.q_rank.is_some());
                    let norms = self.latent_tokens(mla) * latents * wide;
                    return (rows, attended, norms + picks + self.tokens * heads / self.tp * wide);
                }
                // What they are formed again of besides: the key's shared part, and queries that no latents are made of.
                let own = if mla.q_rank.is_none() { inside(heads * (mla.nope + mla.rope)) } else { 0 };
                let shared = if keeping.norms_again { self.stream() } else { self.tokens };
                let made = match keeping.latents_up_again {
                    true => own + shared * mla.rope * element,
                    false => inside(3 * heads * dim),
                };
                (2 * behind + made, outputs(dim))
            }
            _ => {
                let width = (heads + 2 * groups) * c.head_dim;
                // The rotation's kernel norms packed rows; other norms take queries and keys apart.
                let raw = match c.qk_norm {
                    QkNorm::PerHead if c.norm == Norm::Rms => width,
                    QkNorm::None => 0,
                    _ => (heads + groups) * c.head_dim,
                };
                // What gates are made of, and what they leave.
                let gates = usize::from(c.scores.output_gate) * heads * c.value_dim()
                    + usize::from(c.scores.head_gate) * heads;
                let gated = if gates > 0 { heads * c.value_dim() } else { 0 };
                (inside(width + raw + gates), inside(heads * c.value_dim() + gated))
            }
        };
        let of_heads = |n: usize| self.tokens * n / self.tp * wide;
        let norms = match &c.attention {
            Attention::Latent(mla) => {
                let picks = self.picks(c, number, keeping.core_attention_again).unwrap_or(0);
                self.latent_tokens(mla) * (1 + usize::from(mla.q_rank.is_some())) * wide + picks
            }
            _ => match c.qk_norm {
                QkNorm::None => 0,
                QkNorm::WholeProjection => 2 * self.tokens * wide,
                _ => of_heads(heads + groups),
            },
        };
        match keeping.core_attention_again {
            true => (projected, 0, norms),
            false => (projected, attended, norms + of_heads(heads) + self.of_ring(c, number)),
        }
    }

    /// Bytes of the keys that queries have picked; `None`: none has. Layers that borrow picks refer to the same ones, but ranks
    /// that exchange heads for tokens gather those of all queries in each, unless attention runs `again`.
    fn picks(&self, c: &ModelConfig, number: usize, again: bool) -> Option<usize> {
        let indexer = c.indexer.as_ref().filter(|i| self.row * self.context_ranks() > i.top_k)?;
        let own = 4 * self.tokens * indexer.top_k;
        Some(match self.ulysses_and_ring.0 {
            ranks if ranks > 1 && !again => ranks * own,
            _ if c.layer(number).borrows_index => 0,
            _ => own,
        })
    }

    /// Bytes of the keys and values of other ranks that a layer of attention keeps.
    fn of_ring(&self, c: &ModelConfig, number: usize) -> usize {
        let (ulysses, ring) = self.ulysses_and_ring;
        let dim = match &c.attention {
            Attention::Latent(mla) => (mla.nope + mla.rope).max(mla.value),
            _ => c.head_dim,
        };
        // Where there are fewer heads of keys than ranks that exchange heads, these have one each.
        let groups = (c.heads_of(number).1 / self.tp).max(ulysses);
        let half = self.tokens * groups * dim * self.element_bytes;
        match self.ring_cache.of_layer(number) {
            KeptOfRing::Nothing => 0,
            KeptOfRing::Keys => (ring - 1) * half,
            KeptOfRing::KeysAndValues => (ring - 1) * 2 * half,
        }
    }

    /// Tokens that a rank makes latents of: its own, or where queries have none those of all ranks.
    fn latent_tokens(&self, mla: &Mla) -> usize {
        if mla.q_rank.is_some() { self.stream() } else { self.tokens }
    }

    /// Whether ranks exchange tokens for columns before they send them to experts.
    fn exchanges_columns(&self) -> bool {
        self.dispatcher == Dispatcher::AllToAllSeq && self.etp > 1
    }

    /// Tokens of the rank around experts.
    fn of_experts(&self) -> Tokens {
        let (own, sharing) = (self.tokens / self.tp, self.tokens / self.tp * self.etp);
        let alike = self.etp == self.tp && !self.sequence_parallel;
        match self.dispatcher {
            Dispatcher::AllGather if !self.tp.is_multiple_of(self.etp) => {
                Tokens { entered: own, routed: own, weighed: sharing * self.ep, back: own }
            }
            Dispatcher::AllGather => {
                Tokens { entered: sharing, routed: sharing, weighed: sharing * self.ep, back: sharing }
            }
            Dispatcher::AllToAll => Tokens { entered: own, routed: own, weighed: own, back: own },
            Dispatcher::AllToAllSeq => {
                let entered = if alike { sharing } else { own };
                Tokens { entered, routed: sharing, weighed: sharing, back: own }
            }
        }
    }

    fn network(&self, c: &ModelConfig, number: usize, keeping: LayerKeeping) -> Layer {
        if keeping.network_again(c.layer(number).feed) {
            return Layer::default();
        }
        let (element, wide) = (self.element_bytes, self.element_bytes.max(4));
        let inside = |width: usize| self.tokens * width / self.tp * element;
        // Before the activation, with the gate's half, and behind it.
        let inner = |ffn: usize, keeping: LayerKeeping| {
            let before = match (keeping.inner_again, c.activation.gated()) {
                (true, _) => 0,
                (false, true) => 2,
                (false, false) => 1,
            };
            inside((before + usize::from(!keeping.activations_again)) * ffn)
        };
        match (&c.moe, c.layer(number).feed) {
            (Some(moe), Feed::Moe) => {
                let tokens = self.of_experts();
                let scores = tokens.routed * (moe.experts + moe.zero_experts) * wide;
                // Experts and weights of each token; what goes into experts and what comes out of them.
                let picks = moe.top_k * (4 * tokens.routed + wide * tokens.weighed);
                let copies = |tokens: usize| tokens * moe.top_k * c.hidden * element;
                let (into, out) = (copies(self.tokens / self.tp * self.etp), copies(tokens.back));
                // Rows are formed again from the columns that ranks have exchanged tokens for.
                let columns =
                    usize::from(self.exchanges_columns()) * tokens.routed * (c.hidden / self.etp) * element;
                let (out, sent) = if keeping.swap_expert_outputs { (0, out) } else { (out, 0) };
                let rows = if keeping.experts_again { columns } else { into } + out;
                // Scores formed unrounded need the rows and the router so.
                let rounded = if moe.router.f32 && element < wide {
                    (tokens.entered + moe.experts + moe.zero_experts) * c.hidden * wide
                } else {
                    0
                };
                // A gate of the shared experts takes their output.
                let gate = moe.shared.filter(|s| s.gate).map_or(0, |s| {
                    let by = if s.wide_gate { c.hidden } else { 1 };
                    self.stream() * (c.hidden + by) * element
                });
                let shared = moe.shared.map_or(0, |s| inner(s.ffn, keeping.of_experts())) + gate;
                let routed = moe.top_k * inner(moe.ffn, keeping.of_routed_experts());
                let kept = scores + picks + rows + rounded + shared + routed;
                Layer { kept, sent }
            }
            _ => Layer { kept: self.dense(c, keeping), sent: 0 },
        }
    }

    /// What a dense network keeps behind its norm.
    fn dense(&self, c: &ModelConfig, keeping: LayerKeeping) -> usize {
        // Before the activation, with the gate's half, and behind it.
        let halves = if c.activation.gated() { 2 } else { 1 } + usize::from(!keeping.activations_again);
        self.tokens * halves * c.ffn / self.tp * self.element_bytes
    }
}
