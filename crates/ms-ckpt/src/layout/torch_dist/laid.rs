//! How parameters lie in the tensors of a distributed checkpoint: the keys that each may have, and what of it a key holds.

use std::ops::Range;

use ms_spec::{Feed, ModelConfig, ParamSpec, Place};

/// How the tensor of a key lies over a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Laid {
    pub(crate) key: String,
    /// The first dimension counts layers; this one is meant.
    pub(crate) layer: Option<usize>,
    /// The key has one expert of the stack.
    pub(crate) expert: Option<usize>,
    /// Rows of the parameter (behind experts) that the key has, if not all.
    pub(crate) rows: Option<Range<usize>>,
}

/// What [`Laid`] makes of a parameter: the forms in which it may be stored, likeliest first. All keys of a form must
/// be there.
pub(crate) fn forms(spec: &ParamSpec, slot: usize, config: &ModelConfig) -> Vec<Vec<Laid>> {
    let whole = |key: String, layer| vec![Laid { key, layer, expert: None, rows: None }];
    let inner = spec.inner();
    let prefixes: Vec<(String, Option<usize>)> = match spec.place {
        Place::Embedding => return vec![whole(spec.name.clone(), None)],
        Place::Head if spec.name.starts_with("decoder.") => {
            let short = spec.name.trim_start_matches("decoder.").to_owned();
            return vec![whole(spec.name.clone(), None), whole(short, None)];
        }
        Place::Head => return vec![whole(spec.name.clone(), None)],
        Place::Mtp(k) if spec.name.starts_with("mtp.final_layernorms") => {
            let own = format!("mtp.layers.{k}.final_layernorm.weight");
            return vec![whole(own, None), whole(format!("mtp.final_layernorms.{k}.weight"), None)];
        }
        Place::Mtp(k) => match inner.strip_prefix("transformer_layer.") {
            None => return vec![whole(format!("mtp.layers.{k}.{inner}"), None)],
            Some(_) => ["transformer_layer.", "mtp_model_layer."]
                .map(|module| (format!("mtp.layers.{k}.{module}"), None))
                .to_vec(),
        },
        Place::Layer(_) => {
            vec![("decoder.layers.".to_owned(), Some(slot)), (format!("decoder.layers.{slot}."), None)]
        }
    };
    let inner = inner.strip_prefix("transformer_layer.").unwrap_or(inner);
    let mut all = Vec::new();
    for (prefix, layer) in &prefixes {
        for parts in inner_forms(spec, inner, config) {
            let keyed = parts.into_iter().map(|laid| Laid {
                key: format!("{prefix}{}", laid.key),
                layer: *layer,
                ..laid
            });
            all.push(keyed.collect());
        }
    }
    all
}

/// The forms of a layer's parameter, without what stands before its name.
fn inner_forms(spec: &ParamSpec, inner: &str, config: &ModelConfig) -> Vec<Vec<Laid>> {
    let plain = |key: String| Laid { key, layer: None, expert: None, rows: None };
    if let Some(module) = inner.strip_prefix("mlp.experts.") {
        let rows = spec.shape[1];
        let halves = |key: &str, expert| {
            [("_w", 0..rows / 2), ("_v", rows / 2..rows)].map(|(half, range)| Laid {
                key: format!("{key}{half}"),
                layer: None,
                expert,
                rows: Some(range),
            })
        };
        let all = format!("mlp.experts.experts.{module}");
        let each = |name: &dyn Fn(usize) -> String| -> [Vec<Laid>; 2] {
            let experts = 0..spec.shape[0];
            [
                experts.clone().map(|e| Laid { expert: Some(e), ..plain(name(e)) }).collect(),
                experts.flat_map(|e| halves(&name(e), Some(e))).collect(),
            ]
        };
        let mut found = vec![vec![plain(all.clone())], halves(&all, None).to_vec()];
        found.extend(each(&|e| format!("mlp.experts.experts.{e}.{module}")));
        found.extend(each(&|e| format!("mlp.experts.experts.{module}{e}")));
        found.push(vec![plain(inner.to_owned())]);
        return found;
    }
    let mut found = vec![vec![plain(inner.to_owned())]];
    for (ours, theirs) in ALTERNATIVES {
        if let Some(kind) = inner.strip_prefix(ours) {
            found.push(vec![plain(format!("{theirs}{kind}"))]);
        }
    }
    if inner.contains("linear_fc1.") {
        let rows = spec.shape[0];
        let half = |half: &str, range| Laid { rows: Some(range), ..plain(format!("{inner}{half}")) };
        found.push(vec![half("_w", 0..rows / 2), half("_v", rows / 2..rows)]);
    }
    let sections = sections(spec, config).into_iter();
    let parts: Vec<Laid> = sections
        .map(|(section, rows)| Laid { rows: Some(rows), ..plain(format!("{inner}{section}")) })
        .collect();
    if !parts.is_empty() {
        found.push(parts);
    }
    if let (Some(m), "self_attention.linear_qkv.weight") = (config.mla(), inner) {
        // Megatron's own modules of latent attention have one matrix for each half.
        let queries = m.q_rank.unwrap_or(config.heads * (m.nope + m.rope));
        let module = if m.q_rank.is_some() { "linear_q_down_proj" } else { "linear_q_proj" };
        let part = |module: &str, rows| Laid {
            rows: Some(rows),
            ..plain(format!("self_attention.{module}.weight"))
        };
        found.push(vec![part(module, 0..queries), part("linear_kv_down_proj", queries..spec.shape[0])]);
    }
    found
}

/// The sections of a state-space mixer's parameter, each of which has a key of its own: what follows the key, and its rows.
/// Empty for any other parameter.
///
/// # Source
/// Megatron-Core 0.16.1, `sharded_state_dict` in `megatron/core/ssm/mamba_mixer.py`.
pub(crate) fn sections(spec: &ParamSpec, config: &ModelConfig) -> Vec<(&'static str, Range<usize>)> {
    let Some(sizes) = config.mamba2.map(|m| m.sections()) else { return Vec::new() };
    let names = [".z", ".x", ".B", ".C", ".dt"];
    let which = match spec.inner() {
        "mixer.in_proj.weight" => 0..5,
        "mixer.conv1d.weight" | "mixer.conv1d.bias" => 1..4,
        _ => return Vec::new(),
    };
    let mut start = 0;
    let section = |i: usize| {
        let rows = start..start + sizes[i];
        start = rows.end;
        (names[i], rows)
    };
    which.map(section).collect()
}

/// Beginnings of names within a layer, and what they may be called instead: norms that are part of the module behind
/// them, and the words of MindSpeed-LLM v2.0.0.
const ALTERNATIVES: [(&str, &str); 9] = [
    ("input_layernorm.", "self_attention.linear_qkv.layer_norm_"),
    ("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"),
    ("norm.", "mixer.in_proj.layer_norm_"),
    ("self_attention.q_layernorm.", "self_attention.linear_q_up_proj.layer_norm_"),
    ("self_attention.kv_layernorm.", "self_attention.linear_kv_up_proj.layer_norm_"),
    ("self_attention.kv_layernorm.", "self_attention.k_layernorm."),
    ("self_attention.linear_q_up_proj.", "self_attention.linear_qb."),
    ("self_attention.linear_kv_up_proj.", "self_attention.linear_kvb."),
    ("mlp.shared_experts.gate_weight", "mlp.shared_expert_gate.weight"),
];

/// The modules of the model that a checkpoint is written for, which decide what norms are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Modules {
    /// Transformer Engine's: the second norm is a part of a dense layer's first matrix, and one of its own before experts.
    #[default]
    TransformerEngine,
    /// Megatron's own: both norms have the names of parts in every layer, except with latent attention, where they have
    /// their own in every layer.
    Local,
}

/// The key under which a parameter is written: as Megatron with these modules has it, with the first norm as a part of the
/// packed projection. `slot` is the number of the layer among all slots; `packed`: it has such a projection.
///
/// # Source
/// Megatron-Core 0.16.1, `sharded_state_dict_keys_map` in `megatron/core/models/gpt/gpt_layer_specs.py`.
pub(crate) fn written(
    spec: &ParamSpec,
    slot: usize,
    stacked: bool,
    packed: bool,
    config: &ModelConfig,
    modules: Modules,
) -> Laid {
    let Place::Layer(layer) = spec.place else { return forms(spec, 0, config).swap_remove(0).swap_remove(0) };
    let inner = spec.inner();
    let fused = match inner {
        _ if inner.starts_with("input_layernorm.") => packed && config.mla().is_none(),
        _ if !inner.starts_with("pre_mlp_layernorm.") => false,
        _ => match modules {
            Modules::TransformerEngine => config.layer(layer).feed == Feed::Dense,
            Modules::Local => config.mla().is_none(),
        },
    };
    let alternative = ALTERNATIVES.iter().find_map(|(ours, theirs)| {
        let kind = inner.strip_prefix(ours).filter(|_| fused)?;
        Some(format!("{theirs}{kind}"))
    });
    let inner = alternative.unwrap_or_else(|| inner.replace("mlp.experts.", "mlp.experts.experts."));
    let (prefix, layer) = match stacked {
        true => ("decoder.layers.".to_owned(), Some(slot)),
        false => (format!("decoder.layers.{slot}."), None),
    };
    Laid { key: format!("{prefix}{inner}"), layer, expert: None, rows: None }
}
