//! What Megatron's files call the tensors of a rank, and how they hold experts.

use ms_core::{DType, Region};
use ms_spec::{Feed, ModelConfig, ParamSpec, Place};

use super::cut::{Cut, Rank};
use crate::lens::Lens;
use crate::optim::Held;
use crate::{Error, Result};

/// Which spelling of tensor names is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Spelling {
    /// Version of upstream whose names are written.
    pub version: Version,
    /// Transformer Engine: the first norm of a layer is part of `linear_qkv`; the second of `linear_fc1` in the leading
    /// dense layers of a model of experts. (In other models head's converter leaves it its own name.)
    pub transformer_engine: bool,
    /// How experts are held.
    pub experts: Experts,
    /// The up-projections of latent attention are four matrices (`--mla-mm-split`).
    pub mla_split: bool,
    /// Nested dictionaries, as Megatron's legacy models have them.
    pub legacy: bool,
    /// Linear layers of the decoder are stored as 4-bit codes (`--qlora-nf4`).
    pub nf4: bool,
}

/// Version of upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Version {
    /// MindSpeed-LLM v2.0.0, both of its converters.
    V2_0_0,
    /// MindSpeed-LLM of 2026.
    #[default]
    Head,
}

/// How a file holds experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Experts {
    /// One module each.
    #[default]
    Sequential,
    /// All of a rank in `weight1` and `weight2`, transposed; with Transformer Engine one numbered key each.
    Grouped,
}

/// One tensor of a rank's file.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub(crate) chunk: usize,
    pub(crate) name: String,
    pub(crate) spec: ParamSpec,
    pub(crate) lens: Lens,
    /// The same elements stand elsewhere: written for Megatron, not needed when read.
    pub(crate) copy: bool,
    /// The model's output layer is its embedding.
    pub(crate) tied: bool,
}

impl Local {
    /// The parameter as the rank's optimizer sees it, with a weight of type `dtype`.
    pub(crate) fn held(&self, cut: &Cut, dtype: DType) -> Held {
        let embedding =
            self.spec.place == Place::Embedding && self.spec.name.ends_with("word_embeddings.weight");
        Held {
            chunk: self.chunk,
            dtype,
            numel: self.lens.shape.iter().product(),
            decay: Held::decays(&self.name, &self.lens.shape),
            words: self.spec.is_word_table(),
            // Only where each rank has experts of its own they are reduced apart.
            expert: cut.ep > 1 && self.spec.name.contains(".mlp.experts."),
            shared: embedding && self.tied && cut.pp > 1,
        }
    }
}

const OUTPUT: &str = "output_layer.weight";
const EMBEDDING: &str = "embedding.word_embeddings.weight";

/// Names the tensors of ranks.
pub(crate) struct Speller<'a> {
    config: &'a ModelConfig,
    cut: &'a Cut,
    spelling: Spelling,
}

impl<'a> Speller<'a> {
    /// # Errors
    /// [`Error::Cut`] for a model that this spelling has no words for.
    pub(crate) fn new(config: &'a ModelConfig, cut: &'a Cut, spelling: Spelling) -> Result<Self> {
        let grouped = spelling.experts == Experts::Grouped && !spelling.transformer_engine;
        if grouped && config.moe.is_some() && config.bias.mlp {
            return Err(Error::Cut("grouped experts have no biases: write sequential ones".to_owned()));
        }
        let recurrent = config.mamba2.is_some() || config.mamba3.is_some();
        if spelling.legacy && (config.moe.is_some() || config.mla().is_some() || recurrent) {
            return Err(Error::Cut("the legacy layout only holds dense models".to_owned()));
        }
        if spelling.legacy && config.reward {
            return Err(Error::Cut("the legacy layout has no reward head".to_owned()));
        }
        let sequential = spelling.experts == Experts::Sequential;
        if sequential && config.moe.is_some() && cut.expert_tp == super::cut::ExpertTp::Extend {
            return Err(Error::Cut(
                "experts shared out over tensor-parallel ranks are grouped: pass --moe-grouped-gemm"
                    .to_owned(),
            ));
        }
        Ok(Self { config, cut, spelling })
    }

    /// A tensor outside the layers, or the tensors of a layer at `slot`.
    pub(crate) fn locals(
        &self,
        spec: &ParamSpec,
        rank: Rank,
        chunk: usize,
        slot: usize,
    ) -> Result<Vec<Local>> {
        let prefix = match spec.place {
            Place::Layer(_) => format!("decoder.layers.{slot}."),
            Place::Mtp(k) if self.v1() => format!("mtp_layers.{k}."),
            Place::Mtp(k) => format!("mtp.layers.{k}."),
            Place::Embedding | Place::Head => String::new(),
        };
        let inner = spec.inner();
        let position = self.cut.position(rank, spec.name.contains(".mlp.experts."));
        let region = spec
            .partition
            .region_on(&spec.name, &spec.shape, position)
            .map_err(|e| Error::Cut(e.to_string()))?;
        let tied = self.config.tied;
        let local =
            |name: String, lens: Lens| Local { chunk, name, spec: spec.clone(), lens, copy: false, tied };
        let (transformer, layer_inner) = match inner.strip_prefix("transformer_layer.") {
            Some(rest) => ("transformer_layer.", rest),
            None => ("", inner),
        };
        if layer_inner.starts_with("mlp.experts.") {
            let named = self.experts(layer_inner, &region)?;
            return Ok(named
                .into_iter()
                .map(|(name, lens)| local(format!("{prefix}{transformer}{name}"), lens))
                .collect());
        }
        if self.spelling.mla_split
            && let Some(parts) = self.split_up_projection(layer_inner, spec, &region)
        {
            return Ok(parts
                .into_iter()
                .map(|(name, lens)| local(format!("{prefix}{transformer}self_attention.{name}.weight"), lens))
                .collect());
        }
        let name = match spec.place {
            Place::Mtp(k) if spec.name.starts_with("mtp.final_layernorms") => match self.v1() {
                true => format!("mtp_layers.{k}.final_layernorm.weight"),
                false => format!("mtp.final_layernorms.{k}.weight"),
            },
            Place::Head if self.config.mtp > 0 || self.config.hyper.is_some() => {
                spec.name.trim_start_matches("decoder.").to_owned()
            }
            _ => format!("{prefix}{transformer}{}", self.module(layer_inner, spec.place)),
        };
        let name = if self.spelling.legacy { legacy(&name) } else { name };
        Ok(vec![local(name, Lens::plain(region))])
    }

    /// Tensors that hold elements of others once more, in the chunk of the head.
    pub(crate) fn copies(&self, specs: &[ParamSpec], rank: Rank, chunk: usize) -> Result<Vec<Local>> {
        let mut copies = Vec::new();
        if self.cut.pp == 1 {
            return Ok(copies);
        }
        let embedding = &specs[0];
        let mut push = |name: String| -> Result<()> {
            let mut local = self.locals(embedding, rank, chunk, 0)?.swap_remove(0);
            (local.name, local.copy) = (name, true);
            copies.push(local);
            Ok(())
        };
        if self.config.tied && !self.cut.dual_pipe {
            // The last stage needs the embedding too; Megatron keeps it under another name.
            push(if self.spelling.legacy {
                "word_embeddings_for_head/weight".to_owned()
            } else {
                OUTPUT.to_owned()
            })?;
        }
        match self.v1() {
            true => (0..self.config.mtp).try_for_each(|k| push(format!("mtp_layers.{k}.{EMBEDDING}")))?,
            false if self.config.mtp > 0 => push(EMBEDDING.to_owned())?,
            false => {}
        }
        Ok(copies)
    }

    fn v1(&self) -> bool {
        self.spelling.version == Version::V2_0_0
    }

    /// The name of a layer's parameter, behind the layer's number.
    fn module(&self, inner: &str, place: Place) -> String {
        let leading_dense =
            |l: usize| self.config.moe.is_some() && (0..=l).all(|i| self.config.layer(i).feed == Feed::Dense);
        // Norms of layers without a packed projection stand alone.
        let te = self.spelling.transformer_engine && self.config.compressed().is_none();
        let name = match (inner, place) {
            ("input_layernorm.weight", _) if te => "self_attention.linear_qkv.layer_norm_weight",
            ("input_layernorm.bias", _) if te => "self_attention.linear_qkv.layer_norm_bias",
            ("pre_mlp_layernorm.weight", Place::Layer(l)) if te && leading_dense(l) => {
                "mlp.linear_fc1.layer_norm_weight"
            }
            ("mlp.shared_experts.gate_weight", _) if self.v1() => "mlp.shared_expert_gate.weight",
            _ if self.v1() && self.config.mla().is_some() => {
                return inner
                    .replace("linear_q_up_proj", "linear_qb")
                    .replace("linear_kv_up_proj", "linear_kvb")
                    .replace("kv_layernorm", "k_layernorm");
            }
            _ => inner,
        };
        name.to_owned()
    }

    /// The four matrices of latent attention that is split by what their rows are for.
    fn split_up_projection(
        &self,
        inner: &str,
        spec: &ParamSpec,
        region: &Region,
    ) -> Option<[(&'static str, Lens); 2]> {
        let m = self.config.mla()?;
        let (names, first, second) = match inner {
            "self_attention.linear_q_up_proj.weight" => {
                (["linear_qk_nope", "linear_qk_rope"], m.nope, m.rope)
            }
            "self_attention.linear_kv_up_proj.weight" => (["linear_kv_nope", "linear_v"], m.nope, m.value),
            _ => return None,
        };
        let head = first + second;
        let heads = || region.ranges.iter().flat_map(|r| (r.start / head)..(r.end / head));
        let rows = |from: usize, to: usize| {
            let ranges = heads().map(|h| h * head + from..h * head + to);
            Lens::plain(Region::along(&spec.shape, 0, ranges))
        };
        Some([(names[0], rows(0, first)), (names[1], rows(first, head))])
    }

    /// A rank's experts: one by one, or all in one tensor.
    fn experts(&self, inner: &str, region: &Region) -> Result<Vec<(String, Lens)>> {
        let rest = inner.strip_prefix("mlp.experts.").unwrap_or(inner);
        let Some((module, kind)) = rest.split_once('.') else {
            return Err(Error::Cut(format!("{inner}: no weight or bias")));
        };
        let all = region.lead.clone().unwrap_or_else(|| match region.dim {
            0 => region.ranges.first().cloned().unwrap_or(0..0),
            _ => 0..region.shape[0],
        });
        let te = self.spelling.transformer_engine;
        if self.spelling.experts == Experts::Grouped && !te {
            let local = region.local_shape();
            let (experts, rows, columns) = (local[0], local[1], local[2]);
            let (name, shape) = match module {
                "linear_fc1" => ("mlp.experts.weight1", vec![columns, experts * rows]),
                _ => ("mlp.experts.weight2", vec![experts * columns, rows]),
            };
            // Each expert's matrix is transposed; the stack is then given another shape without being moved.
            let lens = Lens { shape, ..Lens::turned(region.clone()) };
            return Ok(vec![(name.to_owned(), lens)]);
        }
        let one = |(j, expert): (usize, usize)| {
            let name = match self.spelling.experts {
                Experts::Grouped => format!("mlp.experts.{module}.{kind}{j}"),
                Experts::Sequential => format!("mlp.experts.local_experts.{j}.{module}.{kind}"),
            };
            let part = match region.dim {
                0 => Region::along(&region.shape, 0, std::iter::once(expert..expert + 1)),
                _ => Region { lead: Some(expert..expert + 1), ..region.clone() },
            };
            (name, Lens::single(part))
        };
        Ok(all.enumerate().map(one).collect())
    }
}

/// Other names under which a tensor may be found: Transformer Engine's, whatever else a file looks like.
pub(crate) fn alternative(name: &str) -> Option<String> {
    let pairs = [
        ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"),
        ("input_layernorm.bias", "self_attention.linear_qkv.layer_norm_bias"),
        ("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
        ("pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias"),
    ];
    if let Some((usual, other)) = pairs.iter().find(|(usual, _)| name.ends_with(usual)) {
        return Some(format!("{}{other}", name.strip_suffix(usual)?));
    }
    // Without prediction layers the final norm is the decoder's; some files say so with them, too.
    match name.strip_prefix("decoder.") {
        Some(rest) if rest.starts_with("final_") => Some(rest.to_owned()),
        None if name.starts_with("final_") => Some(format!("decoder.{name}")),
        _ => None,
    }
}

/// The place of a tensor in the nested dictionaries of a legacy model, levels joined by `/`.
fn legacy(name: &str) -> String {
    let name = name
        .replace("input_layernorm.", "input_norm.")
        .replace("pre_mlp_layernorm.", "post_attention_norm.")
        .replace("self_attention.linear_qkv.", "self_attention.query_key_value.")
        .replace("self_attention.linear_proj.", "self_attention.dense.")
        .replace("mlp.linear_fc1.", "mlp.dense_h_to_4h.")
        .replace("mlp.linear_fc2.", "mlp.dense_4h_to_h.")
        .replace("final_layernorm.", "final_norm.");
    if let Some(rest) = name.strip_prefix("decoder.") {
        return format!("language_model/encoder/{rest}");
    }
    let levels = match name.strip_prefix("embedding.") {
        Some(rest) => format!("embedding/{}", rest.replacen('.', "/", 1)),
        None => name.replacen('.', "/", 1),
    };
    format!("language_model/{levels}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_names_are_places_in_nested_dictionaries() {
        for (name, want) in [
            ("embedding.word_embeddings.weight", "language_model/embedding/word_embeddings/weight"),
            ("embedding.word_embeddings.norm.bias", "language_model/embedding/word_embeddings/norm.bias"),
            (
                "decoder.layers.3.mlp.linear_fc1.weight",
                "language_model/encoder/layers.3.mlp.dense_h_to_4h.weight",
            ),
            ("decoder.final_layernorm.weight", "language_model/encoder/final_norm.weight"),
            ("output_layer.weight", "language_model/output_layer/weight"),
        ] {
            assert_eq!(legacy(name), want);
        }
    }

    #[test]
    fn fused_norms_are_found_under_their_modules() {
        let found = alternative("decoder.layers.1.input_layernorm.weight").unwrap();
        assert_eq!(found, "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight");
        assert_eq!(alternative("decoder.final_layernorm.weight").unwrap(), "final_layernorm.weight");
        assert_eq!(alternative("output_layer.weight"), None);
    }
}
