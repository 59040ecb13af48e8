//! Multi-head latent attention in `config.json`, and the indexer of sparse attention.

use serde_json::{Value, json};

use crate::field::{Field, Writer};
use crate::fields::Fields;
use crate::sizes::{Attention, Indexer, Layer, Mla};
use crate::{ModelConfig, Result};

/// Latent attention of no size, to be read.
pub(super) const LATENT: Attention = Attention::Latent(Mla {
    q_rank: None,
    kv_rank: 0,
    nope: 0,
    rope: 0,
    value: 0,
    q_scale: 1.0,
    kv_scale: 1.0,
    normed: true,
    norm_eps: Some(NORM_EPS),
});

/// Epsilon of the latents' norms, for which no class has a field.
///
/// # Source
/// Hugging Face transformers 4.51 and 5.24, `q_a_layernorm` and `kv_a_layernorm` of `deepseek_v2`, `deepseek_v3`,
/// `deepseek_v32`, `glm_moe_dsa`, `longcat_flash` and `minicpm3`: made without an epsilon, so by the norm's default.
pub(super) const NORM_EPS: f64 = 1e-6;

pub(super) fn mla(c: &mut ModelConfig) -> Option<&mut Mla> {
    match &mut c.attention {
        Attention::Latent(mla) => Some(mla),
        _ => None,
    }
}

/// Its sizes.
pub(super) const MLA: &[Field] = &[
    Field::maybe_size("q_lora_rank", |c| Some(&mut mla(c)?.q_rank)),
    Field::size("kv_lora_rank", |c| Some(&mut mla(c)?.kv_rank)).needed(),
    Field::size("qk_nope_head_dim", |c| Some(&mut mla(c)?.nope)).needed(),
    Field::size("qk_rope_head_dim", |c| Some(&mut mla(c)?.rope)).needed(),
    Field::size("v_head_dim", |c| Some(&mut mla(c)?.value)).needed(),
    Field::told("num_key_value_heads", |c| json!(c.groups)),
    Field::then(|c| {
        c.groups = c.heads;
        c.head_dim = mla(c).map_or(0, |m| m.nope.saturating_add(m.rope));
    }),
    super::common::NO_DROPOUT,
];

fn index(c: &mut ModelConfig) -> Option<&mut Indexer> {
    c.indexer.as_mut()
}

/// The scorer that picks keys.
pub(super) const INDEXER: &[Field] = &[
    Field::size("index_n_heads", |c| Some(&mut index(c)?.heads)),
    Field::size("index_head_dim", |c| Some(&mut index(c)?.head_dim)),
    Field::size("index_topk", |c| Some(&mut index(c)?.top_k)),
    Field::flag("indexer_rope_interleave", |c| Some(&mut index(c)?.interleaved)),
];

/// Layers that have a scorer of their own; the others take the picks of the last one. Behind the experts, whose layers
/// are written first.
pub(super) const INDEX_OWNERS: Field = Field::rule(
    |f, c| {
        let owners = index_owners(f, c.layers)?;
        if owners.iter().any(|own| !own) {
            if c.pattern.is_empty() {
                c.pattern = vec![Layer::default(); c.layers];
            }
            for (layer, own) in c.pattern.iter_mut().zip(owners) {
                layer.borrows_index = !own;
            }
        }
        Ok(())
    },
    tell_owners,
);

fn index_owners(f: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = f.texts("indexer_types")? {
        return Ok(types.iter().map(|t| *t == "full").collect());
    }
    match f.get("index_topk_pattern") {
        Some(Value::String(pattern)) => return Ok(pattern.chars().map(|c| c == 'F').collect()),
        Some(Value::Array(kinds)) => return Ok(kinds.iter().map(|kind| kind == "full").collect()),
        _ => {}
    }
    let Some(freq) = f.size("index_topk_freq")?.filter(|&n| n > 0) else { return Ok(vec![true; layers]) };
    let skip = f.size("index_skip_topk_offset")?.unwrap_or(2);
    Ok((0..layers).map(|l| (l + 1).saturating_sub(skip) % freq == 0).collect())
}

fn tell_owners(c: &ModelConfig, w: &mut Writer) {
    let kind = |l| if c.layer(l).borrows_index { "shared" } else { "full" };
    if (0..c.layers).any(|l| c.layer(l).borrows_index) {
        w.set("indexer_types", (0..c.layers).map(kind).collect());
    }
}
