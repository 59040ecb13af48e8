//! The arguments of attention to pooled entries: upstream's flags for DeepSeek-V4, some of which have other meanings in latent
//! attention.
//!
//! # Source
//! MindSpeed-LLM (2026), `mindspeed_llm/tasks/models/transformer/deepseek4/csa.py`: which ratio is what kind of layer, and
//! which flags of the rotation count.

use serde_json::json;

use crate::field::Field;
use crate::sizes::{Attention, Compressed, HyperConnections, Layer, Pooled, Scores};
use crate::{ModelConfig, QkNorm, Rope, RopeScaling};

pub(super) const COMPRESSED: &[Field] = &[
    START,
    Field::size("qk_head_dim", |c| pooled(c).is_some().then_some(&mut c.head_dim))
        .or(&["qk_head_dim", "kv_lora_rank"])
        .needed(),
    Field::alias("kv_lora_rank", |c| c.compressed().map(|_| c.head_dim)),
    ROTATED,
    Field::float("rope_theta", |c| pooled(c).is_some().then_some(&mut c.rope.base)),
    Field::float("compress_rope_theta", |c| Some(&mut pooled(c)?.rope.base)),
    FAR,
    Field::size("q_lora_rank", |c| Some(&mut pooled(c)?.q_rank)).needed(),
    Field::size("o_groups", |c| Some(&mut pooled(c)?.out_groups)),
    Field::size("o_lora_rank", |c| Some(&mut pooled(c)?.out_rank)),
    Field::size("sliding_window_size", |c| {
        pooled(c)?;
        c.sliding_window.as_mut()
    }),
    HYPER,
    Field::size("hc_mult", |c| Some(&mut c.hyper.as_mut()?.streams)),
    Field::size("hc_sinkhorn_iters", |c| Some(&mut c.hyper.as_mut()?.rounds)),
    Field::float("hc_eps", |c| Some(&mut c.hyper.as_mut()?.eps)),
    LAYERS,
];

/// Sizes as upstream assumes them.
const START: Field = Field::rule(
    |f, c| {
        if !f.on("kv_compress")? {
            return Ok(());
        }
        c.rope = Rope { base: 10_000.0, fraction: 1.0, interleaved: true, scaling: RopeScaling::None };
        let rope = Rope { base: 40_000.0, ..c.rope.clone() };
        c.attention = Attention::Compressed(Compressed { q_rank: 0, out_groups: 8, out_rank: 1024, rope });
        (c.groups, c.qk_norm) = (1, QkNorm::None);
        c.scores = Scores { sinks: true, ..c.scores };
        c.sliding_window = Some(128);
        Ok(())
    },
    |c, w| {
        if c.compressed().is_some() {
            w.set("kv_compress", json!(true));
        }
    },
);

/// How much of a head is rotated, near and far.
const ROTATED: Field = Field::rule(
    |f, c| {
        let head_dim = c.head_dim;
        let Some(a) = pooled(c) else { return Ok(()) };
        let rotated = f.need_of(&["qk_pos_emb_head_dim", "qk_rope_head_dim"])?;
        let share = rotated as f64 / head_dim.max(1) as f64;
        let too_few = ((head_dim as f64 * share) as usize) < rotated;
        a.rope.fraction = if too_few { share.next_up() } else { share };
        c.rope.fraction = if too_few { share.next_up() } else { share };
        Ok(())
    },
    |c, w| {
        if c.compressed().is_some() {
            w.set("qk_pos_emb_head_dim", json!(c.rope.rotated(c.head_dim)));
        }
    },
);

/// The scaling of rotations of pooled entries.
const FAR: Field = Field::rule(
    |f, c| {
        let Some(a) = pooled(c) else { return Ok(()) };
        a.rope.scaling = match f.size("original_seq_len")?.unwrap_or(65_536) {
            0 => RopeScaling::None,
            original => RopeScaling::Yarn {
                factor: f.float("rope_factor")?.unwrap_or(4.0),
                beta_fast: f.float("beta_fast")?.unwrap_or(32.0),
                beta_slow: f.float("beta_slow")?.unwrap_or(1.0),
                original,
                mscale: None,
                attention_factor: Some(1.0),
                truncate: true,
            },
        };
        Ok(())
    },
    |c, w| match c.compressed().map(|a| &a.rope.scaling) {
        None => {}
        Some(&RopeScaling::Yarn { factor, beta_fast, beta_slow, original, .. }) => {
            w.set("rope_factor", json!(factor));
            w.set("beta_fast", json!(beta_fast));
            w.set("beta_slow", json!(beta_slow));
            w.set("original_seq_len", json!(original));
        }
        Some(_) => w.set("original_seq_len", json!(0)),
    },
);

const HYPER: Field = Field::rule(
    |f, c| {
        if pooled(c).is_some() && f.on("enable_mhc")? {
            c.hyper = Some(HyperConnections { streams: 4, rounds: 20, eps: 1e-6 });
        }
        Ok(())
    },
    |c, w| {
        if c.hyper.is_some() {
            w.set("enable_mhc", json!(true));
        }
    },
);

/// Which layers pool how much, and which choose experts by the token.
const LAYERS: Field = Field::rule(
    |f, c| {
        if pooled(c).is_none() {
            return Ok(());
        }
        let ratios = f.sizes("compress_ratios")?.unwrap_or_default();
        let hashed = f.size("n_hash_layers")?.unwrap_or(0);
        let layer = |l: usize| {
            let pooled = match ratios.get(l).copied().unwrap_or(0) {
                0 | 1 => None,
                ratio => Some(Pooled { ratio, picked: ratio == 4 }),
            };
            Layer { pooled, hashed: l < hashed, ..Layer::default() }
        };
        c.pattern = (0..c.layers).map(layer).collect();
        Ok(())
    },
    |c, w| {
        if c.compressed().is_none() {
            return;
        }
        let layers = || (0..c.layers).map(|l| c.layer(l));
        let ratios = layers().map(|l| l.pooled.map_or(0, |p| p.ratio));
        w.set("compress_ratios", ratios.chain((0..c.mtp).map(|_| 0)).collect());
        w.set("n_hash_layers", json!(layers().take_while(|l| l.hashed).count()));
    },
);

fn pooled(c: &mut ModelConfig) -> Option<&mut Compressed> {
    match &mut c.attention {
        Attention::Compressed(compressed) => Some(compressed),
        _ => None,
    }
}
