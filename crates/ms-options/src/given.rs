//! Flags that describe a model, as defined in the table and as given.

use serde_json::Value;

/// Flags that name one number or choice of the model. What else there is of a group must not stand before the one that is given.
const SAME_NUMBER: [&[&str]; 10] = [
    &["gelu_tanh", "geglu", "squared_relu", "openai_gelu", "swiglu"],
    &["position_embedding_type", "use_rotary_position_embeddings", "add_position_embedding"],
    &["rotary_base", "rope_theta"],
    &["scale_emb", "embedding_multiplier_scale", "input_embeds_norm"],
    &["dim_model_base", "output_multiplier_scale"],
    &["moe_ffn_hidden_size", "moe_intermediate_size"],
    &["moe_router_num_groups", "n_group"],
    &["moe_router_group_topk", "topk_group"],
    &["moe_router_topk_scaling_factor", "routed_scaling_factor"],
    &["moe_shared_expert_intermediate_size", "n_shared_experts"],
];

/// All such groups, those of one part with them.
pub(crate) fn same_number() -> impl Iterator<Item = &'static [&'static str]> {
    SAME_NUMBER.into_iter().chain(ms_spec::megatron::same_number())
}

/// A name without what head puts before those of flags that it is about to give up.
pub(crate) fn plain(dest: &str) -> &str {
    dest.strip_prefix("deprecated_").unwrap_or(dest)
}

/// A flag that describes the model: Megatron's name, how it was written, its value.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) dest: String,
    pub(crate) flag: String,
    pub(crate) value: Value,
}

impl Given {
    pub(crate) fn new(dest: &str, written: Option<&str>, value: &Value) -> Self {
        let dest = plain(dest);
        let flag = written.map_or_else(|| format!("--{}", dest.replace('_', "-")), str::to_owned);
        Self { dest: dest.to_owned(), flag, value: value.clone() }
    }

    /// As it is written, with its value.
    pub(crate) fn written(&self) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match &self.value {
            Value::Bool(_) => self.flag.clone(),
            Value::Array(list) => {
                format!("{} {}", self.flag, list.iter().map(text).collect::<Vec<_>>().join(" "))
            }
            value => format!("{} {}", self.flag, text(value)),
        }
    }
}

/// What there is to know of a flag that describes the model.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) flag: &'static str,
    /// What it is when it is not given; null: nothing.
    pub(crate) default: Value,
    pub(crate) choices: Vec<&'static str>,
}
