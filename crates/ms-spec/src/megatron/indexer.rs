//! Megatron arguments of sparse attention: the indexer that picks keys, and which layers have their own.

use crate::attention_kind::Picks;
use crate::field::Field;
use crate::sizes::{Indexer, Layer};
use serde_json::json;

pub(super) const INDEXER: &[Field] = &[
    Field::rule(
        |f, c| {
            let picks = c.attention.kind().picks();
            // Upstream's complex form rotates halves of the indexer's keys, its other form adjacent elements.
            let interleaved = f.on("apply_rope_no_in_complex")? || picks == Some(Picks::Entries);
            if picks.is_some() && f.on("enable_dsa_indexer")? {
                c.indexer = Some(Indexer { heads: 64, head_dim: 128, top_k: 2048, interleaved });
            }
            Ok(())
        },
        |c, w| {
            let Some(indexer) = &c.indexer else { return };
            w.set("enable_dsa_indexer", json!(true));
            if indexer.interleaved && c.picks() != Some(Picks::Entries) {
                w.set("apply_rope_no_in_complex", json!(true));
            }
        },
    ),
    Field::size("index_n_heads", |c| Some(&mut c.indexer.as_mut()?.heads)),
    Field::size("index_head_dim", |c| Some(&mut c.indexer.as_mut()?.head_dim)),
    Field::size("index_topk", |c| Some(&mut c.indexer.as_mut()?.top_k)),
];

/// Which layers take the picks of the last one that has a scorer of its own. Behind all that lists layers.
///
/// # Source
/// MindSpeed-LLM (2026), `mindspeed_llm/tasks/models/transformer/multi_latent_attention.py`, `_resolve_dsa_source_and_end`.
pub(super) const OWNERS: Field = Field::rule(
    |f, c| {
        let freq = f.size("index_topk_freq")?.unwrap_or(1).max(1);
        let first = f.size("index_skip_topk_offset")?.unwrap_or(2).max(1);
        let pattern = f.text("index_topk_pattern")?;
        if c.picks() != Some(Picks::Tokens) {
            return Ok(());
        }
        let owners: Vec<bool> = match pattern {
            None => (0..c.layers).map(|l| (l + 1).saturating_sub(first).is_multiple_of(freq)).collect(),
            Some(text) => {
                let letters = text.chars().map(|letter| letter.to_ascii_uppercase());
                let owners: Vec<bool> =
                    letters.filter(|l| matches!(l, 'C' | 'F' | 'S')).map(|letter| letter != 'S').collect();
                if owners.len() != c.layers || owners.first() == Some(&false) {
                    return Err(f.wrong(
                        "index_topk_pattern",
                        "a C or S for each layer, C first",
                        &json!(text),
                    ));
                }
                owners
            }
        };
        if owners.iter().all(|own| *own) {
            return Ok(());
        }
        if c.pattern.is_empty() {
            c.pattern = vec![Layer::default(); c.layers];
        }
        for (layer, own) in c.pattern.iter_mut().zip(owners) {
            layer.borrows_index = !own;
        }
        Ok(())
    },
    |c, w| {
        if (0..c.layers).any(|l| c.layer(l).borrows_index) {
            let letter = |l| if c.layer(l).borrows_index { 'S' } else { 'C' };
            w.set("index_topk_pattern", json!((0..c.layers).map(letter).collect::<String>()));
        }
    },
);

#[cfg(test)]
mod tests {
    use crate::megatron::{from_args, to_args};
    use serde_json::{Value, json};

    fn dsa(more: &Value) -> Value {
        let mut args = json!({
            "num_layers": 7, "hidden_size": 16, "ffn_hidden_size": 32, "num_attention_heads": 2, "padded_vocab_size": 32,
            "max_position_embeddings": 32, "swiglu": true, "normalization": "RMSNorm", "position_embedding_type": "rope",
            "multi_latent_attention": true, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_head_dim": 4, "qk_pos_emb_head_dim": 4,
            "v_head_dim": 4, "enable_dsa_indexer": true, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4
        });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args
    }

    fn borrowers(more: &Value) -> crate::Result<Vec<usize>> {
        let args = dsa(more);
        let c = from_args(args.as_object().unwrap())?;
        let again = from_args(&to_args(&c))?;
        assert_eq!((again.pattern, again.indexer), (c.pattern.clone(), c.indexer));
        Ok((0..7).filter(|&l| c.layer(l).borrows_index).collect())
    }

    #[test]
    fn the_scorer_turns_neighbours_or_halves() {
        let of = |more: &Value| {
            let c = from_args(dsa(more).as_object().unwrap()).unwrap();
            assert_eq!(from_args(&to_args(&c)).unwrap().indexer, c.indexer);
            c.indexer.unwrap().interleaved
        };
        assert!(!of(&json!({})));
        assert!(of(&json!({"apply_rope_no_in_complex": true})));
    }

    #[test]
    fn layers_take_picks_of_earlier_ones_as_upstream_counts_them() {
        assert!(borrowers(&json!({})).unwrap().is_empty());
        // Layers from 1: 1 and 2 pick, then every third.
        assert_eq!(borrowers(&json!({"index_topk_freq": 3})).unwrap(), [2, 3, 5, 6]);
        let later = json!({"index_topk_freq": 2, "index_skip_topk_offset": 4});
        assert_eq!(borrowers(&later).unwrap(), [4, 6]);
        assert_eq!(borrowers(&json!({"index_topk_pattern": "C,S,f,s,s,C,C"})).unwrap(), [1, 3, 4]);
        for wrong in ["SCCCCCC", "CS", ""] {
            let said = borrowers(&json!({"index_topk_pattern": wrong})).unwrap_err().to_string();
            assert!(said.contains("index_topk_pattern"), "{said}");
        }
    }
}
