//! Sparse attention: an indexer next to attention picks the keys that each query sees.

use serde_json::json;

use crate::attention_kind::Picks;
use crate::description::Description;
use crate::field::Field;
use crate::params::{SumGrad, Table};
use crate::part_flag::PartFlag;
use crate::saved_bytes::{Activations, SavedBytes};
use crate::sharding_rule::{AxisRule, NO_RING, ShardingRule, UNCONCERNED, nothing};
use crate::sizes::{Indexer, Layer, Norm};
use crate::{ModelConfig, Part, Role};

pub(crate) static PART: Description = Description {
    words: "sparse attention",
    there: |c| c.indexer.is_some(),
    rule: RULE,
    arguments: ARGUMENTS,
    flags: FLAGS,
    runs: ("--enable-dsa-indexer", &[]),
    wrapper: None,
    same_number: &[],
    sizes: |c| {
        let of = |i: Indexer| [i.heads, i.head_dim, i.top_k].map(|n| ("size of the indexer", n));
        c.indexer.map_or_else(Vec::new, |i| of(i).to_vec())
    },
    check: |_| Ok(()),
    shrink: |c, small, _| {
        small.indexer = c.indexer.map(|i| Indexer { heads: 2, top_k: i.top_k.min(4), ..i });
    },
};

#[rustfmt::skip] // a flag a line
const FLAGS: &[PartFlag] = &[
    PartFlag::new("--apply-rope-no-in-complex", "", "the indexer of --enable-dsa-indexer rotates neighbouring elements instead of the halves of a head"),
    PartFlag::new("--enable-dsa-indexer", "", "sparse attention: queries see the keys that an indexer selects (DSA)"),
    PartFlag::new("--index-head-dim", "[1,16384]", "sparse attention: head size of the indexer"),
    PartFlag::new("--index-n-heads", "[1,16384]", "sparse attention: number of heads of the indexer"),
    PartFlag::new("--index-skip-topk-offset", "[0,16384]", "sparse attention, with --index-topk-freq: number of first layers that all select keys themselves"),
    PartFlag::new("--index-topk", "[1,268435456]", "sparse attention: number of keys that the indexer selects"),
    PartFlag::new("--index-topk-freq", "[0,16384]", "sparse attention: every N-th layer selects keys, the layers after it reuse its selection"),
    PartFlag::new("--index-topk-pattern", "", "sparse attention: a letter per layer, C selects keys itself, S reuses the last selection"),
];

/// What Megatron's arguments say of it, but which layers have an indexer of their own.
const ARGUMENTS: &[Field] = &[
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
pub(crate) const OWNERS: Field = Field::rule(
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

/// How ranks share it.
const RULE: ShardingRule = ShardingRule {
    part: "sparse attention",
    tp: AxisRule::Shared("every rank scores all keys; what trains them is summed over heads of all ranks"),
    cp: AxisRule::WholeDocuments {
        how: "gathered: latents and the indexer's keys; queries pick among the keys of whole documents. Ulysses: heads for tokens, picks and the indexer's keys gathered",
        otherwise: NO_RING,
    },
    ep: UNCONCERNED,
    has: |c| c.indexer.is_some(),
    divides: nothing,
};

/// The weights of a layer's scorer, if it has one of its own, under attention's `module`.
pub(crate) fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize) {
    if let Some(i) = c.indexer.filter(|_| !c.layer(index).borrows_index) {
        // Queries of the scorer come from what those of attention do.
        let width = c.queries_of().unwrap_or(c.hidden);
        let whole = |t: &mut Table<'_>, role: Role, shape: [usize; 2]| {
            t.xavier(role, shape, SumGrad::No);
        };
        t.of(Part::Indexer);
        whole(t, Role::WqB, [i.heads * i.head_dim, width]);
        whole(t, Role::Wk, [i.head_dim, c.hidden]);
        // Every rank sees all tokens, and what all heads make of them.
        t.norm_of(Norm::LayerNorm, Role::KNorm, i.head_dim, SumGrad::No);
        whole(t, Role::WeightsProj, [i.heads, c.hidden]);
    }
}

impl Activations {
    /// Bytes of the keys that queries have picked; `None`: none has. Layers that borrow picks refer to the same ones, but ranks
    /// that exchange heads for tokens gather those of all queries in each, unless attention runs `again`.
    pub(crate) fn picks(&self, c: &ModelConfig, number: usize, again: bool) -> Option<usize> {
        let longest = self.row * self.context_ranks();
        let indexer = c.indexer.as_ref().filter(|i| longest > i.top_k || self.trains_indexer)?;
        let own = 4 * self.tokens * indexer.top_k.min(longest);
        Some(match self.ulysses_and_ring.0 {
            ranks if ranks > 1 && !again => ranks * own,
            _ if c.layer(number).borrows_index => 0,
            _ => own,
        })
    }

    /// What an indexer of tokens keeps while it is trained: keys before their norm with its statistics, and the gradients
    /// with respect to queries, keys of all tokens and weights of heads. Inputs are those of attention.
    pub(crate) fn indexer(&self, c: &ModelConfig, number: usize) -> SavedBytes {
        let own = |_: &&Indexer| self.trains_indexer && !c.layer(number).borrows_index;
        let Some(i) = c.indexer.as_ref().filter(own) else { return (0, 0) };
        let (tokens, element, wide) = (self.tokens, self.element_bytes, self.element_bytes.max(4));
        let keys = self.tokens * self.context_ranks();
        let gradients = (tokens * i.heads + keys) * i.head_dim * element + tokens * i.heads * wide;
        (tokens * i.head_dim * element, gradients + 2 * tokens * wide)
    }
}

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
