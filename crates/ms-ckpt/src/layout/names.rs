//! The lens between Hugging Face tensors and canonical ones.
//!
//! A Hugging Face tensor is always a selection of a canonical tensor, possibly transposed, so one table serves both
//! directions: rows of the packed `linear_qkv` by group, halves of `linear_fc1`, one expert of a stack, everything else
//! whole.

use std::ops::Range;

use ms_core::Region;
use ms_spec::{Mixer, ModelConfig, ParamSpec, Part, Place, Role, Section, Slot};

use crate::checkpoint::is_idle;
use crate::lens::Lens;
use crate::{Error, Result};

/// A Hugging Face tensor and the part of the canonical tensor that it holds.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    /// The module whose weight it is, if it is one's.
    pub(crate) module: Option<String>,
    pub(crate) lens: Lens,
    /// Another name for elements that a first one holds too: only written, and read only if the first is missing.
    pub(crate) copy: bool,
    /// The class has no such tensor: these elements are zeros there.
    pub(crate) absent: bool,
}

/// Finds the Hugging Face tensors that make up one parameter, in the order in which `transformers` lists them.
pub(super) struct Names<'a> {
    config: &'a ModelConfig,
}

/// Where a name's placeholders point.
#[derive(Clone, Copy, Default)]
struct At {
    layer: usize,
    expert: usize,
    half: usize,
}

impl<'a> Names<'a> {
    pub(super) fn new(config: &'a ModelConfig) -> Self {
        Self { config }
    }

    /// # Errors
    /// [`Error::NoName`] for a parameter that the family's class has no tensor for.
    pub(super) fn of(&self, spec: &ParamSpec) -> Result<Vec<Named>> {
        let found = self.find(spec);
        if found.is_empty() && !self.absent(spec) {
            Err(Error::NoName { parameter: spec.name.clone(), family: self.config.family })
        } else {
            Ok(found)
        }
    }

    /// Whether a reward model has no tensor for what only Megatron's class of it has.
    fn absent(&self, spec: &ParamSpec) -> bool {
        self.config.reward && is_idle(&spec.slot)
    }

    fn find(&self, spec: &ParamSpec) -> Vec<Named> {
        if self.absent(spec) {
            return Vec::new();
        }
        let (what, layers) = (&spec.slot, self.config.layers);
        let at = |layer| At { layer, half: what.half.unwrap_or(0), expert: 0 };
        match (what.place, what.part) {
            (Place::Embedding | Place::Head, _) => self.outside(spec),
            (Place::Mtp(k), Part::Last) => self.whole(spec, "mtp.norm", at(layers + k)),
            (Place::Mtp(k), _) if what.inside_module().is_empty() => {
                let joint = what.role == Role::EhProj;
                if joint && self.config.family.pattern("mtp.e_proj").is_some() {
                    let half = spec.shape[1] / 2;
                    let columns = |range| Lens::plain(Region::along(&spec.shape, 1, [range]));
                    return [("mtp.e_proj", 0..half), ("mtp.h_proj", half..2 * half)]
                        .into_iter()
                        .filter_map(|(slot, range)| self.one(slot, false, at(layers + k), columns(range)))
                        .collect();
                }
                self.whole(spec, &format!("mtp.{}", what.module(Role::word)), at(layers + k))
            }
            (Place::Mtp(k), _) => self.in_layer(spec, at(layers + k)),
            (Place::Layer(layer), _) => self.in_layer(spec, at(layer)),
        }
    }

    /// Parameters before and after the layers.
    fn outside(&self, spec: &ParamSpec) -> Vec<Named> {
        let (what, at) = (&spec.slot, At::default());
        let (slot, again) = match (what.part, what.role) {
            (Part::Embedding, Role::WordEmbeddings) => ("embed", "mtp.embed"),
            (Part::Embedding, Role::WordEmbeddingsNorm) => return self.whole(spec, "embed_norm", at),
            (Part::Embedding, _) => return self.whole(spec, "positions", at),
            (Part::Output, _) => ("head", "mtp.head"),
            (Part::Reward, _) => {
                let lens = Lens::plain(Region::whole(&spec.shape));
                let module = Some("score".to_owned());
                return vec![Named {
                    name: "score.weight".to_owned(),
                    module,
                    lens,
                    copy: false,
                    absent: false,
                }];
            }
            (Part::Last, _) => return self.whole(spec, "norm", at),
            _ => return self.whole(spec, &format!("own.{}", what.module(Role::word)), at),
        };
        let mut all = self.whole(spec, slot, at);
        for k in 0..self.config.mtp {
            let at = At { layer: self.config.layers + k, ..at };
            all.extend(self.whole(spec, again, at).into_iter().map(|n| Named { copy: true, ..n }));
        }
        if self.config.mtp > 0 && slot == "embed" && self.config.tied {
            for k in 0..self.config.mtp {
                let at = At { layer: self.config.layers + k, ..at };
                all.extend(self.whole(spec, "mtp.head", at).into_iter().map(|n| Named { copy: true, ..n }));
            }
        }
        all
    }

    fn in_layer(&self, spec: &ParamSpec, at: At) -> Vec<Named> {
        use {Part as P, Role as R};
        let c = self.config;
        let Slot { part, role, .. } = spec.slot;
        let slot = match (part, role) {
            (P::Layer, R::InputLayernorm | R::Norm) => "norm1",
            (P::Layer, R::PreMlpLayernorm) => "norm2",
            (P::Layer, R::PostAttnNorm) => "post_attn_norm",
            (P::Layer, R::PostMlpLayernorm) => "post_mlp_norm",
            (P::Attention, R::LinearProj) => "o",
            (P::Attention, R::QLayernorm) if c.queries_of().is_some() => "q_a_norm",
            (P::Attention, R::QLayernorm) => "q_norm",
            (P::Attention, R::KLayernorm) => "k_norm",
            (P::Attention, R::KvLayernorm) => "kv_a_norm",
            (P::Attention, R::LinearQUpProj) => "q_b",
            (P::Attention, R::LinearKvUpProj) => "kv_b",
            (P::Attention, R::QProj) => "q",
            (P::Attention, R::KProj) => "k",
            (P::Attention, R::VProj) => "v",
            (P::Attention, R::GProj) => "head_gate",
            (P::Attention, R::Sinks) => "sinks",
            (P::Attention, R::LinearQkv) => return self.qkv(spec, at),
            (P::Dense, R::LinearFc1) => return self.fc1(spec, ["gate_up", "gate", "up", "fc1"], at),
            (P::Dense, R::LinearFc2) => "down",
            (P::SharedExperts, R::LinearFc1) => {
                let slots = ["shared.gate_up", "shared.gate", "shared.up", "shared.fc1"];
                return self.fc1(spec, slots, at);
            }
            (P::SharedExperts, R::LinearFc2) => "shared.down",
            (P::SharedExperts, _) => "shared_gate",
            (P::Router, R::Own) => "router",
            (P::Router, R::ExpertBias) => "router_bias",
            (P::Experts, _) => return self.experts(spec, role == R::LinearFc1, at),
            _ => {
                let own = Slot { half: None, ..spec.slot }.module(Role::word);
                return self.whole(spec, &format!("own.{own}"), at);
            }
        };
        self.whole(spec, slot, at)
    }

    /// The name of a tensor, and the module whose weight it is.
    fn name(&self, slot: &str, bias: bool, at: At) -> Option<(String, Option<String>)> {
        let pattern = self.config.family.pattern(slot)?;
        // Layers after the last may have names of their own.
        let ahead = at.layer.checked_sub(self.config.layers).zip(self.config.family.pattern("mtp.layer"));
        let pattern = match ahead {
            Some((k, own)) => {
                let put = |pattern: String, layers: &str| pattern.replace(layers, own);
                let pattern = ["model.layers.{L}", "layers.{L}"].into_iter().fold(pattern.to_owned(), put);
                pattern.replace("{K}", &k.to_string())
            }
            None => pattern.to_owned(),
        };
        let name = pattern
            .replace("{L}", &at.layer.to_string())
            .replace("{E}", &at.expert.to_string())
            .replace("{S}", &at.half.to_string());
        let module = name.strip_suffix(".weight").map(str::to_owned);
        Some(match (bias, module) {
            (true, Some(module)) => (format!("{module}.bias"), None),
            (true, None) => (format!("{name}_bias"), None),
            (false, module) => (name, module),
        })
    }

    fn one(&self, slot: &str, bias: bool, at: At, lens: Lens) -> Option<Named> {
        let (name, module) = self.name(slot, bias, at)?;
        let absent = bias && self.config.family.without_bias(slot);
        Some(Named { name, module, lens, copy: false, absent })
    }

    /// A tensor that holds the whole parameter, possibly transposed.
    fn whole(&self, spec: &ParamSpec, slot: &str, at: At) -> Vec<Named> {
        let (region, bias) = (Region::whole(&spec.shape), spec.slot.bias);
        let turned = match spec.shape.len() {
            2 => Lens::turned(region.clone()),
            _ => Lens::plain(region.clone()),
        };
        let turned = self.one(&format!("{slot}.T"), bias, at, turned);
        turned.or_else(|| self.one(slot, bias, at, Lens::plain(region))).into_iter().collect()
    }

    fn qkv(&self, spec: &ParamSpec, at: At) -> Vec<Named> {
        let (c, bias) = (self.config, spec.slot.bias);
        let sections = c.projection_sections();
        if !sections.is_empty() {
            let one = |of: Section| self.one(of.slot, bias, at, rows(spec, [of.rows]));
            return sections.into_iter().filter_map(one).collect();
        }
        if c.layer(at.layer).mixer == Mixer::SharedKv {
            return self.whole(spec, "q", at);
        }
        let grouped = self.whole(spec, "qkv_grouped", at);
        if !grouped.is_empty() {
            return grouped;
        }
        let (heads, groups) = c.heads_of(at.layer);
        let (d, queries) = (c.head_dim, heads / groups);
        let group = (queries + 2) * d;
        let part = |from: usize, to: usize| (0..groups).map(move |g| g * group + from..g * group + to);
        let parts =
            [part(0, queries * d), part(queries * d, (queries + 1) * d), part((queries + 1) * d, group)];
        let packed = || Region::along(&spec.shape, 0, parts.iter().cloned().flatten());
        let turned = |region| if spec.shape.len() == 2 { Lens::turned(region) } else { Lens::plain(region) };
        let cat = self
            .one("qkv_cat", bias, at, Lens::plain(packed()))
            .or_else(|| self.one("qkv_cat.T", bias, at, turned(packed())));
        if let Some(cat) = cat {
            return vec![cat];
        }
        let named = ["q", "k", "v"].into_iter().zip(parts.clone());
        named.filter_map(|(slot, part)| self.one(slot, bias, at, rows(spec, part))).collect()
    }

    fn fc1(&self, spec: &ParamSpec, [both, gate, up, only]: [&str; 4], at: At) -> Vec<Named> {
        if !self.config.activation.gated() {
            return self.whole(spec, only, at);
        }
        let packed = self.whole(spec, both, at);
        if !packed.is_empty() {
            return packed;
        }
        let half = spec.shape[0] / 2;
        [(gate, 0..half), (up, half..2 * half)]
            .into_iter()
            .filter_map(|(slot, range)| self.one(slot, spec.slot.bias, at, rows(spec, [range])))
            .collect()
    }

    fn experts(&self, spec: &ParamSpec, first: bool, at: At) -> Vec<Named> {
        let (gated, bias) = (self.config.activation.gated(), spec.slot.bias);
        // All experts in one tensor, input-major; gate and up alternate.
        if self.config.family.pattern("experts.down").is_some() {
            let slot = if first { "experts.gate_up" } else { "experts.down" };
            let region = if first && gated {
                let half = spec.shape[1] / 2;
                let alternating = (0..half).flat_map(|i| [i..i + 1, half + i..half + i + 1]);
                Region { lead: Some(0..spec.shape[0]), ..Region::along(&spec.shape, 1, alternating) }
            } else {
                Region::whole(&spec.shape)
            };
            let lens = if spec.shape.len() == 3 { Lens::turned(region) } else { Lens::plain(region) };
            return self.one(slot, bias, at, lens).into_iter().collect();
        }
        // All experts in one tensor for each part.
        if self.config.family.pattern("experts.down.stacked").is_some() {
            let half = spec.shape[1] / 2;
            let parts = if first {
                vec![("experts.gate.stacked", 0..half), ("experts.up.stacked", half..2 * half)]
            } else {
                vec![("experts.down.stacked", 0..spec.shape[1])]
            };
            let part = |(slot, range): (&str, Range<usize>)| {
                let lead = Some(0..spec.shape[0]);
                let region = Region { lead, ..Region::along(&spec.shape, 1, [range]) };
                self.one(slot, bias, at, Lens::plain(region))
            };
            return parts.into_iter().filter_map(part).collect();
        }
        let mut all = Vec::new();
        for expert in 0..spec.shape[0] {
            let at = At { expert, ..at };
            let half = spec.shape[1] / 2;
            let parts: &[(&str, Range<usize>)] = match (first, gated) {
                (true, true) => &[("expert.gate", 0..half), ("expert.up", half..2 * half)],
                (true, false) => &[("expert.fc1", 0..spec.shape[1])],
                (false, _) => &[("expert.down", 0..spec.shape[1])],
            };
            for (slot, range) in parts {
                let lead = Some(expert..expert + 1);
                let region = Region { lead, ..Region::along(&spec.shape, 1, [range.clone()]) };
                all.extend(self.one(slot, bias, at, Lens::single(region)));
            }
        }
        all
    }
}

fn rows(spec: &ParamSpec, ranges: impl IntoIterator<Item = Range<usize>>) -> Lens {
    Lens::plain(Region::along(&spec.shape, 0, ranges))
}
