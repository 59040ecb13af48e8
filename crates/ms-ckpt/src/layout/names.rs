//! The lens between Hugging Face tensors and canonical ones.
//!
//! A Hugging Face tensor is always a selection of a canonical tensor, possibly transposed, so one table reads both
//! ways: rows of the packed `linear_qkv` by group, halves of `linear_fc1`, one expert of a stack, everything else
//! whole.

use std::ops::Range;

use ms_core::Region;
use ms_spec::{Attention, Mixer, ModelConfig, ParamSpec, Place};

use super::schemes::{self, Scheme};
use crate::checkpoint::is_idle;
use crate::lens::Lens;
use crate::{Error, Result};

/// A Hugging Face tensor and the part of the canonical tensor that it holds.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) lens: Lens,
    /// Another name for elements that a first one holds too: only written, and read only if the first is missing.
    pub(crate) copy: bool,
}

/// Finds the Hugging Face tensors that make up one parameter, in the order in which `transformers` lists them.
pub(super) struct Names<'a> {
    config: &'a ModelConfig,
    scheme: &'static Scheme,
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
        Self { config, scheme: schemes::of(config.family) }
    }

    /// # Errors
    /// [`Error::NoName`] for a parameter that the family's class has no tensor for.
    pub(super) fn of(&self, spec: &ParamSpec) -> Result<Vec<Named>> {
        let found = self.find(spec);
        match found.is_empty() && !self.absent(spec) {
            true => Err(Error::NoName { parameter: spec.name.clone(), family: self.config.family }),
            false => Ok(found),
        }
    }

    /// Whether a reward model has no tensor for what only Megatron's class of it has.
    fn absent(&self, spec: &ParamSpec) -> bool {
        self.config.reward && is_idle(&spec.name)
    }

    fn find(&self, spec: &ParamSpec) -> Vec<Named> {
        if self.absent(spec) {
            return Vec::new();
        }
        let (module, kind) = match spec.name.rsplit_once('.') {
            Some((module, kind @ ("weight" | "bias"))) => (module, kind),
            _ => (spec.name.as_str(), ""),
        };
        let layers = self.config.layers;
        let (inner, at) = match spec.place {
            Place::Embedding | Place::Head => return self.outside(spec, module, kind),
            Place::Layer(layer) => {
                let inner = module.splitn(4, '.').nth(3).unwrap_or(module);
                (inner, At { layer, ..At::default() })
            }
            Place::Mtp(k) => {
                let at = At { layer: layers + k, ..At::default() };
                let inner = module.strip_prefix("mtp.").unwrap_or(module);
                let inner = inner.split_once('.').and_then(|(first, rest)| match first {
                    "layers" => rest.split_once('.').map(|(_, inner)| inner),
                    _ => Some("mtp.norm"),
                });
                match inner {
                    Some("eh_proj") if self.scheme.pattern("mtp.e_proj").is_some() => {
                        let half = spec.shape[1] / 2;
                        let columns = |range| Lens::plain(Region::along(&spec.shape, 1, [range]));
                        return [("mtp.e_proj", 0..half), ("mtp.h_proj", half..2 * half)]
                            .into_iter()
                            .filter_map(|(slot, range)| self.one(slot, kind, at, columns(range)))
                            .collect();
                    }
                    Some(part) if part.starts_with("hc_head.") => {
                        return self.whole(spec, &format!("mtp.{part}"), kind, at);
                    }
                    Some(part @ ("enorm" | "hnorm" | "eh_proj")) => {
                        return self.whole(spec, &format!("mtp.{part}"), kind, at);
                    }
                    Some("mtp.norm") => return self.whole(spec, "mtp.norm", kind, at),
                    Some(inner) => (inner.strip_prefix("transformer_layer.").unwrap_or(inner), at),
                    None => return Vec::new(),
                }
            }
        };
        // The halves of a layer with two: the number is the last character of the module's first word.
        let word = inner.split('.').next().unwrap_or(inner);
        let (at, name) = match word.rsplit_once('_').and_then(|(stem, n)| Some((stem, n.parse().ok()?))) {
            Some((stem, half @ 0..2)) => {
                let stem = if stem == "mlps" { "mlp" } else { stem };
                (At { half, ..at }, format!("{stem}{}", &inner[word.len()..]))
            }
            _ => (at, inner.to_owned()),
        };
        self.in_layer(spec, &name, kind, at)
    }

    /// Parameters before and after the layers.
    fn outside(&self, spec: &ParamSpec, module: &str, kind: &str) -> Vec<Named> {
        let at = At::default();
        let (slot, again) = match module {
            "embedding.word_embeddings" => ("embed", "mtp.embed"),
            "embedding.word_embeddings.norm" => return self.whole(spec, "embed_norm", kind, at),
            "embedding.position_embeddings" => return self.whole(spec, "positions", kind, at),
            "output_layer" => ("head", "mtp.head"),
            "rm_head" => {
                let lens = Lens::plain(Region::whole(&spec.shape));
                return vec![Named { name: "score.weight".to_owned(), lens, copy: false }];
            }
            _ if module.starts_with("hc_head.") => {
                return self.whole(spec, &format!("own.{module}"), kind, at);
            }
            _ => return self.whole(spec, "norm", kind, at),
        };
        let mut all = self.whole(spec, slot, kind, at);
        for k in 0..self.config.mtp {
            let at = At { layer: self.config.layers + k, ..at };
            all.extend(self.whole(spec, again, kind, at).into_iter().map(|n| Named { copy: true, ..n }));
        }
        if self.config.mtp > 0 && slot == "embed" && self.config.tied {
            for k in 0..self.config.mtp {
                let at = At { layer: self.config.layers + k, ..at };
                all.extend(
                    self.whole(spec, "mtp.head", kind, at).into_iter().map(|n| Named { copy: true, ..n }),
                );
            }
        }
        all
    }

    fn in_layer(&self, spec: &ParamSpec, module: &str, kind: &str, at: At) -> Vec<Named> {
        let c = self.config;
        let slot = match module {
            "input_layernorm" | "norm" => "norm1",
            "pre_mlp_layernorm" => "norm2",
            "post_attn_norm" => "post_attn_norm",
            "post_mlp_layernorm" => "post_mlp_norm",
            "self_attention.linear_proj" => "o",
            "self_attention.q_layernorm" if c.mla().is_some() => "q_a_norm",
            "self_attention.q_layernorm" => "q_norm",
            "self_attention.k_layernorm" => "k_norm",
            "self_attention.kv_layernorm" => "kv_a_norm",
            "self_attention.linear_q_up_proj" => "q_b",
            "self_attention.linear_kv_up_proj" => "kv_b",
            "self_attention.q_proj" => "q",
            "self_attention.k_proj" => "k",
            "self_attention.v_proj" => "v",
            "self_attention.g_proj" => "head_gate",
            "self_attention.sinks" => "sinks",
            "self_attention.linear_qkv" => return self.qkv(spec, kind, at),
            "mlp.linear_fc1" => return self.fc1(spec, ["gate_up", "gate", "up", "fc1"], kind, at),
            "mlp.linear_fc2" => "down",
            "mlp.shared_experts.linear_fc1" => {
                let slots = ["shared.gate_up", "shared.gate", "shared.up", "shared.fc1"];
                return self.fc1(spec, slots, kind, at);
            }
            "mlp.shared_experts.linear_fc2" => "shared.down",
            "mlp.shared_experts.gate_weight" => "shared_gate",
            "mlp.router" => "router",
            "mlp.router.expert_bias" => "router_bias",
            "mlp.experts.linear_fc1" | "mlp.experts.linear_fc2" => {
                return self.experts(spec, module.ends_with("fc1"), kind, at);
            }
            other => {
                let own = format!("own.{other}");
                if self.scheme.pattern(&own).is_some() {
                    return self.whole(spec, &own, kind, at);
                }
                let mixer = other.strip_prefix("mixer.").map(|rest| format!("ssm.{rest}"));
                let indexer =
                    other.strip_prefix("self_attention.dsa_indexer.").map(|rest| format!("dsa.{rest}"));
                let delta = other.strip_prefix("self_attention.").map(|rest| format!("gdn.{rest}"));
                let slot = mixer.or(indexer).or(delta).unwrap_or_default();
                return self.whole(spec, &slot, kind, at);
            }
        };
        self.whole(spec, slot, kind, at)
    }

    fn name(&self, slot: &str, kind: &str, at: At) -> Option<String> {
        let pattern = self.scheme.pattern(slot)?;
        // Layers behind the last may have names of their own.
        let ahead = at.layer.checked_sub(self.config.layers).zip(self.scheme.pattern("mtp.layer"));
        let pattern = match ahead {
            Some((k, own)) => {
                let layers = if pattern.starts_with("layers.") { "layers.{L}" } else { "model.layers.{L}" };
                pattern.replace(layers, own).replace("{K}", &k.to_string())
            }
            None => pattern.to_owned(),
        };
        let name = pattern
            .replace("{L}", &at.layer.to_string())
            .replace("{E}", &at.expert.to_string())
            .replace("{S}", &at.half.to_string());
        Some(match (kind, name.strip_suffix(".weight")) {
            ("bias", Some(stem)) => format!("{stem}.bias"),
            ("bias", None) => format!("{name}_bias"),
            _ => name,
        })
    }

    fn one(&self, slot: &str, kind: &str, at: At, lens: Lens) -> Option<Named> {
        Some(Named { name: self.name(slot, kind, at)?, lens, copy: false })
    }

    /// A tensor that holds all of the parameter, as it is or transposed.
    fn whole(&self, spec: &ParamSpec, slot: &str, kind: &str, at: At) -> Vec<Named> {
        let region = Region::whole(&spec.shape);
        let turned = match spec.shape.len() {
            2 => Lens::turned(region.clone()),
            _ => Lens::plain(region.clone()),
        };
        let turned = self.one(&format!("{slot}.T"), kind, at, turned);
        turned.or_else(|| self.one(slot, kind, at, Lens::plain(region))).into_iter().collect()
    }

    fn qkv(&self, spec: &ParamSpec, kind: &str, at: At) -> Vec<Named> {
        let c = self.config;
        if let Attention::Latent(m) = &c.attention {
            let queries = m.q_rank.unwrap_or(c.heads * (m.nope + m.rope));
            let slot = if m.q_rank.is_some() { "q_a" } else { "q" };
            return [(slot, 0..queries), ("kv_a", queries..spec.shape[0])]
                .into_iter()
                .filter_map(|(slot, range)| self.one(slot, kind, at, rows(spec, [range])))
                .collect();
        }
        if c.layer(at.layer).mixer == Mixer::SharedKv {
            return self.whole(spec, "q", kind, at);
        }
        let grouped = self.whole(spec, "qkv_grouped", kind, at);
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
            .one("qkv_cat", kind, at, Lens::plain(packed()))
            .or_else(|| self.one("qkv_cat.T", kind, at, turned(packed())));
        if let Some(cat) = cat {
            return vec![cat];
        }
        let named = ["q", "k", "v"].into_iter().zip(parts.clone());
        named.filter_map(|(slot, part)| self.one(slot, kind, at, rows(spec, part))).collect()
    }

    fn fc1(&self, spec: &ParamSpec, [both, gate, up, only]: [&str; 4], kind: &str, at: At) -> Vec<Named> {
        if !self.config.activation.gated() {
            return self.whole(spec, only, kind, at);
        }
        let packed = self.whole(spec, both, kind, at);
        if !packed.is_empty() {
            return packed;
        }
        let half = spec.shape[0] / 2;
        [(gate, 0..half), (up, half..2 * half)]
            .into_iter()
            .filter_map(|(slot, range)| self.one(slot, kind, at, rows(spec, [range])))
            .collect()
    }

    fn experts(&self, spec: &ParamSpec, first: bool, kind: &str, at: At) -> Vec<Named> {
        let gated = self.config.activation.gated();
        // All experts in one tensor, input-major; gate and up alternate.
        if self.scheme.pattern("experts.down").is_some() {
            let slot = if first { "experts.gate_up" } else { "experts.down" };
            let region = match first && gated {
                true => {
                    let half = spec.shape[1] / 2;
                    let alternating = (0..half).flat_map(|i| [i..i + 1, half + i..half + i + 1]);
                    Region { lead: Some(0..spec.shape[0]), ..Region::along(&spec.shape, 1, alternating) }
                }
                false => Region::whole(&spec.shape),
            };
            let lens = if spec.shape.len() == 3 { Lens::turned(region) } else { Lens::plain(region) };
            return self.one(slot, kind, at, lens).into_iter().collect();
        }
        // All experts in one tensor for each part.
        if self.scheme.pattern("experts.down.stacked").is_some() {
            let half = spec.shape[1] / 2;
            let parts = match first {
                true => vec![("experts.gate.stacked", 0..half), ("experts.up.stacked", half..2 * half)],
                false => vec![("experts.down.stacked", 0..spec.shape[1])],
            };
            let part = |(slot, range): (&str, Range<usize>)| {
                let lead = Some(0..spec.shape[0]);
                let region = Region { lead, ..Region::along(&spec.shape, 1, [range]) };
                self.one(slot, kind, at, Lens::plain(region))
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
                all.extend(self.one(slot, kind, at, Lens::single(region)));
            }
        }
        all
    }
}

fn rows(spec: &ParamSpec, ranges: impl IntoIterator<Item = Range<usize>>) -> Lens {
    Lens::plain(Region::along(&spec.shape, 0, ranges))
}
