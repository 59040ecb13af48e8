//! The lens between Hugging Face tensors and canonical ones.
//!
//! A Hugging Face tensor is always a selection of rows of a canonical tensor, so one table reads both ways:
//! rows of the packed `linear_qkv` by group, halves of `linear_fc1`, everything else whole.

use std::ops::Range;

use ms_core::Region;
use ms_spec::{ModelConfig, ParamSpec, Place};

/// A Hugging Face tensor and the rows of the canonical tensor that it holds, in its order.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) region: Region,
}

/// The Hugging Face tensors that make up one parameter, in the order in which `transformers` lists them.
pub(super) fn of(config: &ModelConfig, spec: &ParamSpec) -> Vec<Named> {
    let whole = |name: String| vec![Named { name, region: Region::whole(&spec.shape) }];
    let Place::Layer(layer) = spec.place else {
        return whole(match spec.name.as_str() {
            "embedding.word_embeddings.weight" => "model.embed_tokens.weight".to_owned(),
            "decoder.final_layernorm.weight" => "model.norm.weight".to_owned(),
            _ => "lm_head.weight".to_owned(),
        });
    };
    let inner = spec.name.splitn(4, '.').nth(3).expect("layer names are decoder.layers.N.rest");
    let (module, kind) = inner.rsplit_once('.').expect("parameter names end in .weight or .bias");
    let name = |rest: &str| format!("model.layers.{layer}.{rest}.{kind}");
    match module {
        "input_layernorm" => whole(name("input_layernorm")),
        "pre_mlp_layernorm" => whole(name("post_attention_layernorm")),
        "self_attention.linear_proj" => whole(name("self_attn.o_proj")),
        "self_attention.q_layernorm" => whole(name("self_attn.q_norm")),
        "self_attention.k_layernorm" => whole(name("self_attn.k_norm")),
        "mlp.linear_fc2" => whole(name("mlp.down_proj")),
        "mlp.linear_fc1" => {
            let half = spec.shape[0] / 2;
            vec![
                Named { name: name("mlp.gate_proj"), region: rows(spec, std::iter::once(0..half)) },
                Named { name: name("mlp.up_proj"), region: rows(spec, std::iter::once(half..2 * half)) },
            ]
        }
        "self_attention.linear_qkv" => {
            let (d, queries) = (config.head_dim, config.heads / config.groups);
            let group = (queries + 2) * d;
            let part =
                |from: usize, to: usize| (0..config.groups).map(move |g| g * group + from..g * group + to);
            vec![
                Named { name: name("self_attn.q_proj"), region: rows(spec, part(0, queries * d)) },
                Named {
                    name: name("self_attn.k_proj"),
                    region: rows(spec, part(queries * d, (queries + 1) * d)),
                },
                Named { name: name("self_attn.v_proj"), region: rows(spec, part((queries + 1) * d, group)) },
            ]
        }
        other => unreachable!("the parameter table has no module {other}"),
    }
}

fn rows(spec: &ParamSpec, ranges: impl Iterator<Item = Range<usize>>) -> Region {
    Region::along(&spec.shape, 0, ranges)
}
