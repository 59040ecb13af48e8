//! How parameters map to the tensors of a distributed checkpoint: the keys that each may have, and which part of it a key
//! holds.

use std::ops::Range;

use ms_core::Partition;
use ms_spec::{Feed, ModelConfig, ParamSpec, Part, Place, Role, Section, Slot};

/// How the tensor of a key lies over a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyMapping {
    pub(crate) key: String,
    /// The first dimension counts layers; this one is meant.
    pub(crate) layer: Option<usize>,
    /// The key has one expert of the stack.
    pub(crate) expert: Option<usize>,
    /// Rows of the parameter (after the expert dimension) that the key has, if not all.
    pub(crate) rows: Option<Range<usize>>,
}

/// What [`KeyMapping`] makes of a parameter: the forms in which it may be stored, likeliest first. All keys of a form must
/// be there.
pub(crate) fn forms(spec: &ParamSpec, slot: usize, config: &ModelConfig) -> Vec<Vec<KeyMapping>> {
    let whole = |key: String, layer| vec![KeyMapping { key, layer, expert: None, rows: None }];
    let (what, layers) = (&spec.slot, "decoder.layers.");
    let prefixes: Vec<(String, Option<usize>)> = match (what.place, what.part) {
        (Place::Head, Part::Last) => {
            let alone = format!("{}{}", what.role.word(), what.ending());
            return vec![whole(spec.name.clone(), None), whole(alone, None)];
        }
        (Place::Embedding | Place::Head, _) => return vec![whole(spec.name.clone(), None)],
        (Place::Mtp(k), Part::Last) => {
            let own = format!("mtp.layers.{k}.final_layernorm{}", what.ending());
            return vec![whole(own, None), whole(spec.name.clone(), None)];
        }
        (Place::Mtp(_), _) if what.inside_module().is_empty() => {
            return vec![whole(spec.name.clone(), None)];
        }
        (Place::Mtp(k), _) => [what.inside_module(), "mtp_model_layer."]
            .map(|module| (format!("mtp.layers.{k}.{module}"), None))
            .to_vec(),
        (Place::Layer(_), _) => {
            vec![(layers.to_owned(), Some(slot)), (format!("{layers}{slot}."), None)]
        }
    };
    let mut all = Vec::new();
    for (prefix, layer) in &prefixes {
        for parts in inner_forms(spec, config) {
            let keyed = parts.into_iter().map(|mapping| KeyMapping {
                key: format!("{prefix}{}", mapping.key),
                layer: *layer,
                ..mapping
            });
            all.push(keyed.collect());
        }
    }
    all
}

/// The forms of a layer's parameter, without what stands before its name.
fn inner_forms(spec: &ParamSpec, config: &ModelConfig) -> Vec<Vec<KeyMapping>> {
    let plain = |key: String| KeyMapping { key, layer: None, expert: None, rows: None };
    let (what, inner) = (&spec.slot, spec.slot.inner());
    if what.part == Part::Experts {
        let (path, module) = (what.part.path(), format!("{}{}", what.role.word(), what.ending()));
        let rows = spec.shape[1];
        let halves = |key: &str, expert| {
            [("_w", 0..rows / 2), ("_v", rows / 2..rows)].map(|(half, range)| KeyMapping {
                key: format!("{key}{half}"),
                layer: None,
                expert,
                rows: Some(range),
            })
        };
        let all = format!("{path}.experts.{module}");
        let each = |name: &dyn Fn(usize) -> String| -> [Vec<KeyMapping>; 2] {
            let experts = 0..spec.shape[0];
            [
                experts.clone().map(|e| KeyMapping { expert: Some(e), ..plain(name(e)) }).collect(),
                experts.flat_map(|e| halves(&name(e), Some(e))).collect(),
            ]
        };
        let mut found = vec![vec![plain(all.clone())], halves(&all, None).to_vec()];
        found.extend(each(&|e| format!("{path}.experts.{e}.{module}")));
        found.extend(each(&|e| format!("{path}.experts.{module}{e}")));
        found.push(vec![plain(inner)]);
        return found;
    }
    let mut found = vec![vec![plain(inner.clone())]];
    found.extend(alternatives(what).map(|key| vec![plain(key)]));
    if what.role == Role::LinearFc1 {
        let rows = spec.shape[0];
        let half = |half: &str, range| KeyMapping { rows: Some(range), ..plain(format!("{inner}{half}")) };
        found.push(vec![half("_w", 0..rows / 2), half("_v", rows / 2..rows)]);
    }
    let sections = sections(spec).into_iter();
    let parts: Vec<KeyMapping> = sections
        .map(|(section, rows)| KeyMapping { rows: Some(rows), ..plain(format!("{inner}{section}")) })
        .collect();
    if !parts.is_empty() {
        found.push(parts);
    }
    let own = config.projection_sections();
    if what.is(Part::Attention, Role::LinearQkv) && !own.is_empty() {
        let part = |of: Section| KeyMapping {
            rows: Some(of.rows),
            ..plain(format!("self_attention.{}.weight", of.module))
        };
        found.push(own.into_iter().map(part).collect());
    }
    found
}

/// The sections of a state-space mixer's parameter, each of which has its own key: the key's suffix, and its rows. Empty for
/// any other parameter.
///
/// # Source
/// Megatron-Core 0.16.1, `sharded_state_dict` in `megatron/core/ssm/mamba_mixer.py`.
pub(crate) fn sections(spec: &ParamSpec) -> Vec<(&'static str, Range<usize>)> {
    let Partition::Sections { sizes, .. } = spec.partition else { return Vec::new() };
    let names: &[&str] = match (spec.slot.part, spec.slot.role) {
        (Part::StateSpace, Role::InProj) if !spec.slot.bias => &[".z", ".x", ".B", ".C", ".dt"],
        (Part::StateSpace, Role::Conv1d) => &[".x", ".B", ".C"],
        _ => return Vec::new(),
    };
    let mut start = 0;
    let section = |(&name, size)| {
        let rows = start..start + size;
        start = rows.end;
        (name, rows)
    };
    names.iter().zip(sizes).map(section).collect()
}

/// Modules within a layer, and what names may have instead of the module and the following dot: norms that are part of the
/// following module, and the names of MindSpeed-LLM v2.0.0.
const ALTERNATIVES: [(Part, Role, &str); 8] = [
    (Part::Layer, Role::InputLayernorm, "self_attention.linear_qkv.layer_norm_"),
    (Part::Layer, Role::PreMlpLayernorm, "mlp.linear_fc1.layer_norm_"),
    (Part::Layer, Role::Norm, "mixer.in_proj.layer_norm_"),
    (Part::Attention, Role::QLayernorm, "self_attention.linear_q_up_proj.layer_norm_"),
    (Part::Attention, Role::KvLayernorm, "self_attention.linear_kv_up_proj.layer_norm_"),
    (Part::Attention, Role::KvLayernorm, "self_attention.k_layernorm."),
    (Part::Attention, Role::LinearQUpProj, "self_attention.linear_qb."),
    (Part::Attention, Role::LinearKvUpProj, "self_attention.linear_kvb."),
];

/// Other names of a weight within its layer.
fn alternatives(what: &Slot) -> impl Iterator<Item = String> {
    let what = *what;
    let kind = if what.bias { "bias" } else { "weight" };
    let gate = what.is(Part::SharedExperts, Role::GateWeight);
    ALTERNATIVES
        .iter()
        .filter(move |(part, role, _)| what.half.is_none() && (what.part, what.role) == (*part, *role))
        .map(move |(.., theirs)| format!("{theirs}{kind}"))
        .chain(gate.then(|| "mlp.shared_expert_gate.weight".to_owned()))
}

/// The modules of the model that a checkpoint is written for; they decide the names of norms.
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
) -> KeyMapping {
    let what = &spec.slot;
    let Place::Layer(layer) = what.place else { return forms(spec, 0, config).swap_remove(0).swap_remove(0) };
    // Where the projection is several of Megatron's own modules, no norm is part of one.
    let one = config.projection_sections().is_empty();
    let fused = match what.role {
        Role::InputLayernorm => packed && one,
        Role::PreMlpLayernorm => match modules {
            Modules::TransformerEngine => config.layer(layer).feed == Feed::Dense,
            Modules::Local => one,
        },
        _ => false,
    };
    let inner = match alternatives(what).next().filter(|_| fused) {
        Some(alternative) => alternative,
        None => format!("{}{}", module(what), what.ending()),
    };
    let (prefix, layer) = in_layer(slot, stacked);
    KeyMapping { key: format!("{prefix}{inner}"), layer, expert: None, rows: None }
}

/// What stands before names within a layer at `slot`, and its number if layers stand in front.
pub(crate) fn in_layer(slot: usize, stacked: bool) -> (String, Option<usize>) {
    if stacked {
        ("decoder.layers.".to_owned(), Some(slot))
    } else {
        (format!("decoder.layers.{slot}."), None)
    }
}

/// The module of a weight within its layer, as written.
pub(crate) fn module(what: &Slot) -> String {
    match what.part {
        Part::Experts => format!("{}.experts.{}", what.part.path(), what.role.word()),
        _ => what.module(Role::word),
    }
}
