//! The arguments of multi-head latent attention.

use serde_json::{Value, json};

use crate::field::Field;
use crate::sizes::{Attention, Mla};
use crate::{ModelConfig, QkNorm};

pub(super) const LATENT: &[Field] = &[
    START,
    Field::maybe_size("q_lora_rank", |c| Some(&mut latent(c)?.q_rank)),
    Field::size("kv_lora_rank", |c| Some(&mut latent(c)?.kv_rank)).needed(),
    Field::size("qk_nope_head_dim", |c| Some(&mut latent(c)?.nope))
        .or(&["qk_nope_head_dim", "qk_head_dim"])
        .needed(),
    Field::alias("qk_head_dim", |c| Some(c.mla()?.nope)),
    Field::size("qk_rope_head_dim", |c| Some(&mut latent(c)?.rope))
        .or(&["qk_rope_head_dim", "qk_pos_emb_head_dim"])
        .needed(),
    Field::alias("qk_pos_emb_head_dim", |c| Some(c.mla()?.rope)),
    Field::size("v_head_dim", |c| Some(&mut latent(c)?.value)).needed(),
    Field::flag_as(
        "enable_mla_scale_q_lora",
        |c| (c.mla()?.q_scale != 1.0).then_some(true),
        |c, on| {
            let hidden = c.hidden;
            if let Some(m) = latent(c).filter(|_| on) {
                m.q_scale = root_share(hidden, m.q_rank);
            }
        },
    ),
    Field::flag_as(
        "enable_mla_scale_kv_lora",
        |c| (c.mla()?.kv_scale != 1.0).then_some(true),
        |c, on| {
            let hidden = c.hidden;
            if let Some(m) = latent(c).filter(|_| on) {
                m.kv_scale = root_share(hidden, Some(m.kv_rank));
            }
        },
    ),
    Field::reading(|f, c| {
        let normed = c.qk_norm != QkNorm::None;
        let Some(m) = latent(c) else { return Ok(()) };
        m.normed = normed; // --qk-layernorm names the norms of the latents
        let Mla { nope, rope, .. } = *m;
        c.qk_norm = QkNorm::None;
        (c.groups, c.head_dim) = (c.heads, nope.saturating_add(rope));
        c.rope.fraction = 1.0;
        // Upstream rotates neighbouring pairs in latent attention, except in MiniCPM3, which alone has scale_depth.
        c.rope.interleaved = f.float("scale_depth")?.is_none();
        Ok(())
    }),
];

/// Whether there is latent attention, in the words of both versions; attention to pooled entries is called so, too.
const START: Field = Field::rule(
    |f, c| {
        if (f.on("multi_head_latent_attention")? || f.on("multi_latent_attention")?)
            && !f.on("kv_compress")?
        {
            let (nope, rope, value) = (0, 0, 0);
            c.attention = Attention::Latent(Mla {
                q_rank: None,
                kv_rank: 0,
                nope,
                rope,
                value,
                q_scale: 1.0,
                kv_scale: 1.0,
                normed: true,
            });
        }
        Ok(())
    },
    |c, w| {
        w.set("multi_head_latent_attention", json!(c.mla().is_some()));
        if c.attention != Attention::Grouped {
            w.set("multi_latent_attention", json!(true));
        }
        // What has no latent attention says so.
        for name in ["qk_rope_head_dim", "qk_nope_head_dim", "q_lora_rank", "kv_lora_rank", "v_head_dim"] {
            w.set(name, Value::Null);
        }
    },
);

fn latent(c: &mut ModelConfig) -> Option<&mut Mla> {
    match &mut c.attention {
        Attention::Latent(mla) => Some(mla),
        _ => None,
    }
}

/// The root of how many times wider the stream is than the latent.
fn root_share(hidden: usize, rank: Option<usize>) -> f64 {
    rank.filter(|&r| r > 0).map_or(1.0, |r| (hidden as f64 / r as f64).sqrt())
}
