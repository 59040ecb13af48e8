//! Shrinking a model: the same parts, small enough for a few steps in f64.

use anyhow::{Context, Result};
use ms_spec::{Layer, ModelConfig, Moe, SharedExpert, Stages, Windowed};

/// How many ranks share what, and how many layers stay.
pub(super) struct Share {
    /// Ranks that share a matrix.
    pub(super) tp: usize,
    /// Ranks that exchange heads for tokens in attention.
    pub(super) ulysses: usize,
    /// Ranks that share a sequence.
    pub(super) cp: usize,
    /// Ranks that share the experts.
    pub(super) ep: usize,
    /// Layers.
    pub(super) layers: usize,
}

/// Stages of at most two layers in a slot list or chunk, and how many layers these have: one of each kind where there is room.
/// With empty slots, two slots a chunk or as many as that takes: a chunk that has some keeps one, at the end where it has one,
/// and a chunk without a layer has none.
///
/// # Errors
/// For an empty slot beyond the others.
pub(super) fn stages(c: &ModelConfig, s: &Stages, chunks: usize) -> ms_spec::Result<(Stages, usize)> {
    let mut kinds: Vec<Layer> = Vec::new();
    for layer in (0..c.layers).map(|l| c.layer(l)) {
        if !kinds.contains(&layer) {
            kinds.push(layer);
        }
    }
    if s.noop.is_empty() {
        let layer_list: Option<Vec<usize>> =
            s.layer_list.as_ref().map(|list| list.iter().map(|&n| n.min(2)).collect());
        let each = if s.layers_per_chunk.is_some() { 1 } else { kinds.len().div_ceil(chunks) };
        let least = if c.layers > chunks && s.layers_per_chunk.is_none() { 2 } else { 1 };
        let layers = layer_list.as_ref().map_or(chunks * each.max(least), |list| list.iter().sum());
        return Ok((
            Stages { layers_per_chunk: s.layers_per_chunk.map(|_| 1), layer_list, ..s.clone() },
            layers,
        ));
    }
    let slots = s.slots(c.layers)?;
    let empty = |chunk: &[Option<usize>], first: usize, size: usize| match chunk {
        all if all.iter().all(Option::is_none) => first..first + size,
        [None, ..] => first..first + 1,
        some if some.contains(&None) => first + size - 1..first + size,
        _ => first..first,
    };
    let mut size = 2;
    loop {
        let of_chunks = slots.chunks(slots.len().div_ceil(chunks)).enumerate();
        let noop: Vec<usize> = of_chunks.flat_map(|(i, chunk)| empty(chunk, i * size, size)).collect();
        let layers = chunks * size - noop.len();
        if layers >= kinds.len() {
            let layers_per_chunk = s.layers_per_chunk.map(|_| size);
            return Ok((Stages { layers_per_chunk, layer_list: None, noop, ..s.clone() }, layers));
        }
        size += 1;
    }
}

/// The model with fewer layers, heads and experts and narrower matrices. Sizes of heads stay, since frequencies and scales
/// depend on them.
///
/// # Errors
/// If the parts do not fit together at a small size.
pub(super) fn model(c: &ModelConfig, share: &Share) -> Result<ModelConfig> {
    let (tp, layers) = (share.tp, share.layers);
    let mut m = c.clone();
    m.pattern = kept_layers(c, layers);
    m.layers = layers;
    m.mtp = c.mtp.min(1);
    m.ffn = 16 * tp;
    (m.vocab, m.padded_vocab) = (60 * tp - 3, 60 * tp);
    m.max_positions = m.max_positions.min(1024);
    m.sliding_window = c.sliding_window.map(|w| w.min(5));
    (m.heads, m.groups) = heads(c.heads, c.groups, tp * share.ulysses);
    // What ranks and heads share, three ranks too.
    m.hidden = 32usize.next_multiple_of(lcm(2, m.heads));
    m.windowed = c.windowed.clone().map(|w| {
        let (heads, groups) = heads(w.heads, w.groups, tp * share.ulysses);
        Windowed { heads, groups, ..w }
    });
    m = m.with_small_parts(c, tp * share.ulysses);
    m.moe = c.moe.as_ref().map(|e| small_experts(e, share));
    // Wide enough that the gradients of all parts count, and not so wide that a state along the sequence explodes.
    m.init_std = if m.is_recurrent() { 0.05 } else { 0.2 };
    m.with_small_states(tp * share.cp).validate().context("the model made small")
}

/// Heads and groups that `by` ranks share, with one or two query heads to a group as the model has them. Groups that are
/// fewer than the ranks stay so.
fn heads(heads: usize, groups: usize, by: usize) -> (usize, usize) {
    let each = (heads / groups.max(1)).clamp(1, 2);
    if groups > 0 && groups < by && by.is_multiple_of(groups) { (by * each, groups) } else { (by * each, by) }
}

fn small_experts(e: &Moe, share: &Share) -> Moe {
    let groups = e.router.groups.map_or(1, |g| g.groups);
    let step = lcm(share.ep.max(1), groups);
    let experts = (2 * e.top_k).max(step).max(4).next_multiple_of(step);
    let shared = e.shared.map(|s| SharedExpert { ffn: 8 * share.tp, ..s });
    let experts = experts.min(e.experts.next_multiple_of(step));
    Moe { experts, ffn: 8 * share.tp, shared, ..e.clone() }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}

/// The first layer of each kind, and the first ones besides, in the order of the model.
fn kept_layers(c: &ModelConfig, layers: usize) -> Vec<Layer> {
    let mut kept: Vec<usize> = Vec::with_capacity(layers);
    for l in 0..c.layers {
        if !kept.iter().any(|&k| c.layer(k) == c.layer(l)) {
            kept.push(l);
        }
    }
    kept.truncate(layers);
    for l in 0..c.layers {
        if kept.len() < layers && !kept.contains(&l) {
            kept.push(l);
        }
    }
    kept.sort_unstable();
    // More slots than the model has layers: its last one again.
    kept.resize(layers, c.layers.saturating_sub(1));
    kept.into_iter().map(|l| c.layer(l)).collect()
}
