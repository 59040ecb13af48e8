//! Elements that a pass over a micro-batch keeps for its backward pass, estimated.
//!
//! The estimate adds up the tensors that the operations of a layer save, from the sizes of the model. It leaves out small
//! ones (statistics of norms, log-sum-exps) and what is given back at once, and is meant for a decision: whether a run has
//! a chance in the memory there is.

use crate::{Feed, Mixer, ModelConfig};

/// Tokens whose logits are in memory at a time.
const LOGIT_ROWS: usize = 256;

/// Elements kept by layer `index` for every token.
fn of_layer(c: &ModelConfig, index: usize) -> u64 {
    let layer = c.layer(index);
    let (heads, _) = c.heads_of(index);
    let wide = |parts: &[usize]| parts.iter().map(|&n| n as u64).sum::<u64>();
    let mixer = match layer.mixer {
        Mixer::None => 0,
        // The norm's output, queries, keys and values before and after the rotation, the mixed values.
        Mixer::Attention | Mixer::SharedKv => match c.mla() {
            Some(mla) => {
                let latents = [mla.q_rank.unwrap_or(0), mla.kv_rank, mla.rope];
                let per_head = 2 * (mla.nope + mla.rope) + 2 * mla.value;
                wide(&latents) * 2 + wide(&[c.hidden, heads.saturating_mul(per_head)])
            }
            None => wide(&[c.hidden, c.qkv_rows(index), heads.saturating_mul(c.value_dim())]),
        },
        Mixer::GatedDelta => c.gated_delta.as_ref().map_or(0, |g| {
            let (keys, values) =
                (g.key_heads.saturating_mul(g.key_dim), g.value_heads.saturating_mul(g.value_dim));
            wide(&[c.hidden, 4 * keys, 6 * values])
        }),
        Mixer::Mamba2 => c.mamba2.as_ref().map_or(0, |m| {
            let (inner, states) = (m.heads.saturating_mul(m.head_dim), m.groups.saturating_mul(m.state));
            wide(&[c.hidden, 6 * inner, 4 * states])
        }),
        Mixer::Mamba3 => c.mamba3.as_ref().map_or(0, |m| {
            let (inner, states) = (m.heads.saturating_mul(m.head_dim), m.heads.saturating_mul(m.state));
            wide(&[c.hidden, 6 * inner, 4 * states])
        }),
    };
    let inner = if c.activation.gated() { 3u64 } else { 2 };
    let feed = match (layer.feed, &c.moe) {
        (Feed::None, _) => 0,
        (Feed::Moe, Some(moe)) => {
            // Every token's copy per chosen expert goes in and comes out.
            let chosen = moe.top_k as u64 * (2 * c.hidden as u64 + inner * moe.ffn as u64);
            let shared = moe.shared.map_or(0, |s| inner * s.ffn as u64);
            c.hidden as u64 + moe.experts as u64 + chosen + shared
        }
        _ => c.hidden as u64 + inner * c.ffn as u64,
    };
    // The two sums of the residual stream.
    mixer + feed + 2 * c.hidden as u64
}

/// Elements, in the type of the run, that a micro-batch of `tokens` tokens keeps in all layers, and the float32 elements
/// of the loss, as one sum: `(kept, of_loss)`. Layers for which `recomputed` is true keep only their input.
pub fn activations(c: &ModelConfig, tokens: usize, recomputed: impl Fn(usize) -> bool) -> (u64, u64) {
    let (mut kept, mut largest) = (c.hidden as u64, 0);
    for index in 0..c.layers.saturating_add(c.mtp) {
        let whole = of_layer(c, index);
        if recomputed(index) {
            kept = kept.saturating_add(c.hidden as u64);
            largest = largest.max(whole);
        } else {
            kept = kept.saturating_add(whole);
        }
    }
    let rows = tokens.min(LOGIT_ROWS) as u64;
    // Logits and their gradients, a chunk at a time; the gradient of the states before the output layer.
    let loss = rows.saturating_mul(2 * c.padded_vocab as u64);
    (kept.saturating_add(largest).saturating_mul(tokens as u64), loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_tokens_layers_and_width_keep_more_and_recomputation_keeps_less() {
        let small = ModelConfig { layers: 4, hidden: 64, ffn: 128, ..ModelConfig::default() };
        let none = |_: usize| false;
        let (kept, _) = activations(&small, 100, none);
        assert_eq!(activations(&small, 200, none).0, 2 * kept);
        assert!(activations(&ModelConfig { layers: 8, ..small.clone() }, 100, none).0 > kept);
        assert!(activations(&ModelConfig { ffn: 256, ..small.clone() }, 100, none).0 > kept);
        assert!(activations(&small, 100, |_| true).0 < kept);
    }
}
