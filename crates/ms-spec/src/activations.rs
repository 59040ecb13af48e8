//! Bytes that forward passes keep for their backward: a walk over a chunk and its layers. What a part keeps it says itself.

use crate::keeping::{LayerKeeping, Recompute};
use crate::kept::{Activations, Kept, Mixed};
use crate::sizes::{Block, Feed, Mixer};
use crate::{Item, ModelConfig};

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

impl Activations {
    /// Of one forward pass through `items`, which are chunk `place.0` of the `place.1` chunks of a stage. Kept are the operands
    /// of every operation that has a backward; of layers that run again their input.
    ///
    /// Every part is counted as it is; of experts as if tokens were spread evenly over ranks and none
    /// returned its input. Sparse attention counts as dense where documents are not shared by ranks.
    pub fn of_items(&self, c: &ModelConfig, items: &[Item], place: (usize, usize)) -> PassBytes {
        // What is asked for may be absurd: the sum of fewer tokens, stretched, does not overflow.
        const MOST: usize = 1 << 12;
        // What a pass keeps whatever its tokens.
        let head = items.iter().filter(|i| matches!(i, Item::Head)).count();
        let uses = items.iter().filter(|i| matches!(i, Item::Head | Item::Predictor(_))).count();
        let fixed = uses * self.output_gradient(c);
        if self.tokens > MOST {
            let PassBytes { kept, again, sent } = Self { tokens: MOST, ..*self }.of_items(c, items, place);
            let stretched = |few: usize| (few as f64 * (self.tokens as f64 / MOST as f64)) as usize;
            let kept = stretched(kept - fixed).saturating_add(fixed);
            return PassBytes { kept, again: stretched(again), sent: stretched(sent) };
        }
        // What goes from layer to layer.
        let streams = c.hyper.as_ref().map_or(1, |h| h.streams);
        let carried = self.stream_bytes(c) * streams;
        let is_layer = |item: &&Item| matches!(item, Item::Layer { .. });
        let numbers: Vec<usize> = items
            .iter()
            .filter_map(|item| match item {
                Item::Layer { layer, .. } => Some(*layer),
                _ => None,
            })
            .collect();
        let others = items.iter().filter(|i| !is_layer(i)).map(|item| match *item {
            Item::Predictor(k) => {
                let layer = match self.keeping.predictor_layers_again {
                    true => carried,
                    false => self.predictor(c, k).kept,
                };
                self.module(c) + layer
            }
            Item::Head => self.head(c),
            Item::Embedding => self.embedding(c),
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
            let Mixed { before: projected, behind: attended, statistics } = self.mixer(c, number, keeping);
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
            let entered = self.around_experts().entered;
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
            let (stays, leaves) = self.network(c, number, keeping);
            kept += weighed + input + norms + stays;
            sent += leaves;
        }
        if c.block == Block::Shortcut {
            // Two of everything, but the experts beside the first network take its input.
            let network = self.dense(c, c.ffn, keeping);
            kept += mixer + 2 * network + taken(true, None) + norms;
            sent *= 2;
        }
        Layer { kept, sent }
    }

    /// What the mixer of a layer keeps behind its norm.
    fn mixer(&self, c: &ModelConfig, number: usize, keeping: LayerKeeping) -> Mixed {
        let alone = |sizes: Option<Kept>| {
            let (before, statistics) = sizes.expect("validate: a mixer of a layer has its sizes");
            Mixed { before, behind: 0, statistics }
        };
        match c.layer(number).mixer {
            Mixer::GatedDelta => alone(c.gated_delta.as_ref().map(|g| self.gated_delta(g))),
            Mixer::Mamba2 => alone(c.mamba2.as_ref().map(|m| self.mamba2(m))),
            Mixer::Mamba3 => alone(c.mamba3.as_ref().map(|m| self.mamba3(m, c.hidden))),
            Mixer::Attention | Mixer::SharedKv => self.attention(c, number, keeping),
            Mixer::None => Mixed::default(),
        }
    }

    /// What the network of a layer keeps behind its norm: in memory, and with the host.
    fn network(&self, c: &ModelConfig, number: usize, keeping: LayerKeeping) -> (usize, usize) {
        let feed = c.layer(number).feed;
        match (&c.moe, feed) {
            _ if keeping.network_again(feed) => (0, 0),
            (Some(moe), Feed::Moe) => self.experts(c, moe, keeping),
            _ => (self.dense(c, c.ffn, keeping), 0),
        }
    }
}
