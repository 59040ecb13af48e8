//! Activation memory: bytes that forward passes save for backward, summed over a chunk and its layers. Each part counts its
//! own.

use crate::attention_kind::AttentionKind;
use crate::description::Site;
use crate::save_policy::{LayerSavePolicy, Recompute};
use crate::saved_bytes::{Activations, MixerBytes};
use crate::sizes::{Block, Feed, Mixer};
use crate::swapped::Swapped;
use crate::{Item, ModelConfig};

/// Bytes of one forward pass through a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassBytes {
    /// Kept until the backward pass.
    pub kept: usize,
    /// What the backward pass needs in addition while it recomputes layers.
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

impl Layer {
    /// Adds `all` bytes, some of which are swapped out.
    fn add(&mut self, all: usize, leaving: usize) {
        self.kept += all - leaving;
        self.sent += leaving;
    }
}

/// Bytes of what comes into a sublayer.
#[derive(Clone, Copy, Default)]
struct SublayerInputBytes {
    /// As the norm before it takes it.
    norm: usize,
    /// As the sublayer takes it, of the rank's rows of the stream.
    own: usize,
    /// As it has gathered it.
    copy: usize,
}

impl Activations {
    /// Bytes of one forward pass through `items`, which are chunk `place.0` of the `place.1` chunks of a stage. Counted are
    /// the operands of every operation that has a backward; of recomputed layers, their input.
    ///
    /// Every part is counted exactly, except that experts are counted as if tokens were spread evenly over ranks and none
    /// returned its input, and sparse attention counts as dense where documents are not shared by ranks.
    pub fn of_items(&self, c: &ModelConfig, items: &[Item], place: (usize, usize)) -> PassBytes {
        // Requested sizes may be absurd: extrapolating from fewer tokens does not overflow.
        const MOST: usize = 1 << 12;
        // What a pass saves regardless of its tokens.
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
        let carried = self.input(c);
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
                let layer = if self.save_policy.recompute_predictor_layers {
                    carried
                } else {
                    self.predictor(c, k).kept
                };
                self.module(c) + layer
            }
            Item::Head => self.head(c),
            Item::Embedding => self.embedding(c),
            Item::Layer { .. } | Item::Noop { .. } => 0,
        });
        let mut sum = PassBytes { kept: others.fold(fixed, usize::saturating_add), ..PassBytes::default() };
        // What a chunk passes on stays until its gradient comes.
        if head == 0 {
            sum.kept = sum.kept.saturating_add(carried);
        }
        let full = self.recompute.of_chunk(place.0, place.1);
        let spared = usize::from(self.save_policy.spare_last && head > 0).min(numbers.len());
        let count = full.layers(numbers.len()).min(numbers.len() - spared);
        let (again, whole) = numbers.split_at(count);
        // What came in goes to the host with what the first layer keeps, and stays for its gradient.
        let leaves = whole.first().is_some_and(|&number| self.stream_leaves(c, number));
        if leaves && again.is_empty() && !items.contains(&Item::Embedding) {
            sum.kept = sum.kept.saturating_add(carried);
        }
        for (i, &number) in whole.iter().enumerate() {
            let save_policy = self.save_policy.of_layer(self.recompute, count + i, place);
            let layer = self.layer(c, number, save_policy);
            sum.kept = sum.kept.saturating_add(layer.kept);
            sum.sent = sum.sent.saturating_add(layer.sent);
        }
        // Groups of layers that are recomputed together, from the first on.
        let group = match full {
            Recompute::Uniform(n) => n.max(1),
            Recompute::None | Recompute::Block(_) | Recompute::BlockOfStage(_) => 1,
        };
        let inputs = again.len().div_ceil(group).saturating_mul(carried);
        // What came into the chunk stays for its gradient.
        let came = if again.is_empty() || items.contains(&Item::Embedding) { 0 } else { carried };
        let made = inputs - came.min(inputs);
        let (stays, leaves) = match (self.save_policy.swap_inputs, self.save_policy.inputs_shared) {
            (true, _) => (came, made),
            (false, true) => ((made / self.tp).saturating_add(came), 0),
            (false, false) => (inputs, 0),
        };
        sum.kept = sum.kept.saturating_add(stays);
        sum.sent = sum.sent.saturating_add(leaves);
        let of_layer = |l: &usize| self.layer(c, *l, LayerSavePolicy::default()).kept;
        let of_group = |g: &[usize]| g.iter().map(of_layer).fold(0, usize::saturating_add);
        let predictors = items.iter().filter_map(|item| match *item {
            Item::Predictor(k) => Some(self.predictor(c, k)),
            _ => None,
        });
        let (layers_again, mut most) = (self.save_policy.recompute_predictor_layers, 0);
        for layer in predictors {
            most = most.max(if layers_again { layer.kept } else { 0 });
            sum.sent = sum.sent.saturating_add(if layers_again { 0 } else { layer.sent });
        }
        sum.again = again.chunks(group).map(of_group).max().unwrap_or(0).max(most);
        sum
    }

    /// What the layer of prediction module `k` saves: everything while it is recomputed as a whole.
    fn predictor(&self, c: &ModelConfig, k: usize) -> Layer {
        let save_policy = if self.save_policy.recompute_predictor_layers {
            LayerSavePolicy::default()
        } else {
            self.save_policy.of_predictor()
        };
        self.layer(c, c.layers + k, save_policy)
    }

    /// Bytes of the input of a chunk other than the first.
    pub fn input(&self, c: &ModelConfig) -> usize {
        self.stream().saturating_mul(c.carried()).saturating_mul(self.element_bytes)
    }

    /// Whether what takes the stream at the beginning of a layer sends it to the host.
    fn stream_leaves(&self, c: &ModelConfig, number: usize) -> bool {
        let (kind, norms) = (c.layer(number), c.block.norms_inputs());
        let parts = match (kind.mixer, norms) {
            (Mixer::None, true) => Swapped::NETWORK_NORM,
            (Mixer::None, false) => Swapped::NETWORK.union(Swapped::FC1),
            (mixer, _) if mixer.norm().is_none() => Swapped::MIXER,
            (_, true) => Swapped::INPUT_NORM,
            (_, false) => Swapped::MIXER.union(Swapped::QKV),
        };
        self.save_policy.swapped.has(parts)
    }

    fn layer(&self, c: &ModelConfig, number: usize, save_policy: LayerSavePolicy) -> Layer {
        let mut sum = Layer::default();
        let kind = c.layer(number);
        let [around_mixer, around_network] =
            [Site::Mixer, Site::Network].map(|site| self.wrapper_bytes(c, site));
        let halves = if c.block == Block::Shortcut { 2 } else { 1 };
        if kind.mixer != Mixer::None {
            (0..halves).for_each(|_| self.mixed(c, number, save_policy, &mut sum));
            sum.kept += around_mixer;
        }
        if kind.feed != Feed::None {
            self.fed(c, number, save_policy, &mut sum);
            sum.kept += around_network;
        }
        // One dense MLP is parallel to the experts, another follows them.
        if c.block == Block::Shortcut {
            let (taken, norms) = (self.taken(c, save_policy, true, None), self.norms(c));
            let has = |parts| save_policy.swapped.has(parts);
            let of = |parts, bytes: usize| if has(parts) { bytes } else { 0 };
            sum.add(taken.norm, of(Swapped::NETWORK_NORM, taken.norm));
            let again = save_policy.recompute_dense_networks;
            let input = if again { Swapped::NETWORK } else { Swapped::NETWORK.union(Swapped::FC1) };
            sum.add(taken.own, of(input, taken.own));
            sum.kept += norms;
            if !again {
                let inner = self.dense(c, c.ffn, save_policy).times(2);
                sum.add(inner.all(), inner.leaving(has(Swapped::NETWORK), save_policy.swapped));
            }
        }
        sum
    }

    /// Norms around a sublayer: one number per token for a norm before it; for one after it, its input as well.
    fn norms(&self, c: &ModelConfig) -> usize {
        let rstd = self.stream() * self.element_bytes.max(4);
        let around = usize::from(c.block.norms_inputs()) + usize::from(c.block.norms_outputs());
        rstd * around
    }

    /// The input of a sublayer, which column-parallel sublayers save in sharded form, and others (`copy`) in gathered form.
    /// After a norm it is saved in addition to the norm's own input, otherwise it is the stream.
    fn taken(
        &self,
        c: &ModelConfig,
        save_policy: LayerSavePolicy,
        own: bool,
        copy: Option<usize>,
    ) -> SublayerInputBytes {
        let (row, norms) = (self.stream_bytes(c), usize::from(c.block.norms_inputs()));
        if save_policy.recompute_norms {
            return SublayerInputBytes { norm: norms * row, own: (1 - norms) * row, copy: 0 };
        }
        let copy = copy.filter(|_| self.sequence_parallel).unwrap_or(0);
        let own = own || !self.sequence_parallel;
        SublayerInputBytes { norm: norms * row, own: usize::from(own) * row, copy }
    }

    /// For the token-mixing sublayer.
    fn mixed(&self, c: &ModelConfig, number: usize, save_policy: LayerSavePolicy, sum: &mut Layer) {
        let kind = c.layer(number);
        let (row, swapped) = (self.stream_bytes(c), save_policy.swapped);
        // Behind a norm, all tokens again inside tensor parallelism.
        let whole = self.tokens * c.hidden * self.element_bytes;
        // The input of a sublayer without a norm is saved once.
        let bare = kind.mixer.norm().is_none();
        let mixed = self.mixer(c, number, save_policy);
        let attention = matches!(kind.mixer, Mixer::Attention | Mixer::SharedKv);
        let attention = attention.then(|| c.attention_kind(number));
        let gathers = attention.is_some_and(AttentionKind::keeps_gathered_input);
        let input = match bare {
            // What ranks have gathered of it stands for it.
            true if self.sequence_parallel && !save_policy.recompute_norms => {
                SublayerInputBytes { own: whole, ..SublayerInputBytes::default() }
            }
            true => SublayerInputBytes { own: row, ..SublayerInputBytes::default() },
            false => self.taken(c, save_policy, !gathers, gathers.then_some(whole)),
        };
        let projected = attention.is_some_and(|kind| kind.keeps_input(save_policy));
        let of = |parts, bytes: usize| if swapped.has(parts) { bytes } else { 0 };
        let by = if projected { Swapped::MIXER.union(Swapped::QKV) } else { Swapped::MIXER };
        sum.add(input.norm, of(Swapped::INPUT_NORM, input.norm));
        sum.add(input.own, of(by, input.own));
        sum.add(input.copy, of(Swapped::MIXER, input.copy));
        let outputs = attention.map_or(0, |kind| kind.leaving(save_policy, &mixed));
        let parts = Swapped::MIXER.union(Swapped::CORE).union(Swapped::PROJ);
        let leaving = match (swapped.has(parts), outputs) {
            (true, 0) => mixed.leaving(swapped),
            (true, _) => MixerBytes { after: 0, ..mixed }.leaving(swapped) + outputs,
            (false, outputs) => outputs,
        };
        sum.add(mixed.before + mixed.after, leaving);
        let after = usize::from(c.block.norms_outputs() && !bare) * row;
        sum.add(after, of(Swapped::POST_MIXER_NORM, after));
        sum.kept += mixed.statistics + if bare { 0 } else { self.norms(c) };
    }

    /// For the feed-forward sublayer; in shortcut blocks, that of the experts.
    fn fed(&self, c: &ModelConfig, number: usize, save_policy: LayerSavePolicy, sum: &mut Layer) {
        let element = self.element_bytes;
        let (row, feed, swapped) = (self.stream_bytes(c), c.layer(number).feed, save_policy.swapped);
        let of = |parts, bytes: usize| if swapped.has(parts) { bytes } else { 0 };
        let after = usize::from(c.block.norms_outputs()) * row;
        sum.add(after, of(Swapped::POST_NETWORK_NORM, after));
        sum.kept += self.norms(c);
        let moe = c.moe.as_ref().filter(|_| feed == Feed::Moe);
        let shortcut = c.block == Block::Shortcut;
        let Some(moe) = moe.filter(|_| !save_policy.recomputes_network(feed)) else {
            let input = self.taken(c, save_policy, true, None);
            sum.add(input.norm, of(Swapped::NETWORK_NORM, input.norm));
            // The dense MLP of a shortcut block takes it, too.
            let dense = if moe.is_some() {
                shortcut && !save_policy.recompute_dense_networks
            } else {
                !save_policy.recomputes_network(feed)
            };
            let by = if dense { Swapped::NETWORK.union(Swapped::FC1) } else { Swapped::NETWORK };
            sum.add(input.own, of(by, input.own));
            if dense && moe.is_none() {
                let inner = self.dense(c, c.ffn, save_policy);
                sum.add(inner.all(), inner.leaving(swapped.has(Swapped::NETWORK), swapped));
            }
            return;
        };
        // A router takes tokens as they reach it; one of unrounded rows needs no rounded ones.
        let entered = self.around_experts().entered;
        let gathered = entered > self.stream();
        let again = save_policy.recompute_experts && !self.exchanges_columns();
        let judged = moe.router.dtype.bytes(element) == element;
        let routed = judged || again;
        let beside = moe.shared.is_some() || shortcut;
        let copy = (routed && gathered).then_some(entered * c.hidden * element);
        let input = match self.sequence_parallel || routed || beside {
            true => self.taken(c, save_policy, beside || (routed && !gathered), copy),
            false if c.block.norms_inputs() => {
                SublayerInputBytes { norm: row, ..SublayerInputBytes::default() }
            }
            false => SublayerInputBytes { own: row, ..SublayerInputBytes::default() },
        };
        let mut own = Swapped::NETWORK;
        if moe.shared.is_some() {
            own = own.union(Swapped::SHARED_EXPERTS).union(Swapped::FC1);
        }
        if shortcut && !save_policy.recompute_dense_networks {
            own = own.union(Swapped::FC1);
        }
        if judged && input.copy == 0 {
            own = own.union(Swapped::ROUTER);
        }
        let gathered = if judged { Swapped::NETWORK.union(Swapped::ROUTER) } else { Swapped::NETWORK };
        sum.add(input.norm, of(Swapped::NETWORK_NORM, input.norm));
        sum.add(input.own, of(own, input.own));
        sum.add(input.copy, of(gathered, input.copy));
        let experts = self.experts(c, moe, save_policy);
        sum.add(experts.all(), experts.leaving(swapped));
    }

    /// What the mixer of a layer saves after its norm.
    fn mixer(&self, c: &ModelConfig, number: usize, save_policy: LayerSavePolicy) -> MixerBytes {
        match c.layer(number).mixer {
            Mixer::Attention | Mixer::SharedKv => c.attention_kind(number).kept(self, c, number, save_policy),
            other => c.recurrent(other).map_or_else(MixerBytes::default, |sizes| {
                let (before, statistics) = sizes.kept(self, c);
                MixerBytes { before, statistics, ..MixerBytes::default() }
            }),
        }
    }
}
