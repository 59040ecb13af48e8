//! Tensor names in Megatron's rank files, and how they store experts.

use ms_core::{Axis, DType, Region};
use ms_spec::{Attention, Feed, ModelConfig, ParamSpec, Part, Place, Role, Slot};

use super::file_grid::FileGrid;
use crate::checkpoint::HEAD;
use crate::lens::Lens;
use crate::optim::OptimizerParam;
use crate::{Error, Result};

/// Which spelling of tensor names is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Spelling {
    /// Version of upstream whose names are written.
    pub version: Version,
    /// Transformer Engine: the first norm of a layer is part of `linear_qkv`; the second of `linear_fc1` in the leading
    /// dense layers of a model of experts. (In other models head's converter leaves it its own name.)
    pub transformer_engine: bool,
    /// With Transformer Engine: as its modules register norms, which in attention with latents and with output gates stay
    /// apart, and in dense models are a part of every `linear_fc1`. Otherwise as head's converter names them. Specifications
    /// of single models (`--spec`) that keep norms apart with Transformer Engine, too, are not told from the usual one.
    ///
    /// # Source
    /// MindSpeed-LLM (2026), `mindspeed_llm/tasks/models/spec`; Megatron-LM `core_v0.12.1`,
    /// `megatron/core/models/gpt/gpt_layer_specs.py`.
    pub as_trained: bool,
    /// How experts are held.
    pub experts: Experts,
    /// The up-projections of latent attention are four matrices (`--mla-mm-split`).
    pub split_heads: bool,
    /// Nested dictionaries, as Megatron's legacy models have them.
    pub legacy: bool,
    /// What is stored as 4-bit codes (`--qlora-nf4`).
    pub nf4: FourBit,
}

/// The suffix after a module's name in the name of its weight.
const WEIGHT: &str = ".weight";

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

/// Which matrices a file holds as 4-bit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FourBit {
    /// None.
    #[default]
    None,
    /// Those of linear layers of the decoder that tensor-parallel ranks share.
    Shared,
    /// Those of all linear layers: also of ones that every rank holds, of prediction layers' joint projection and of the output.
    ///
    /// # Source
    /// MindSpeed-LLM 2.0.0, `examples/mcore/deepseek3/convert_ckpt_deepseek3.py`.
    All,
}

/// One tensor of a rank's file.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub(crate) chunk: usize,
    pub(crate) name: String,
    /// The module whose weight it is; `None` for biases, and for tensors that no module alone has.
    pub(crate) module: Option<String>,
    /// Another name under which it may be found: Transformer Engine's, whatever else a file looks like.
    pub(crate) also: Option<String>,
    pub(crate) spec: ParamSpec,
    pub(crate) lens: Lens,
    /// It is one of several tensors that divide the parameter's rows on the rank.
    pub(crate) split: bool,
    /// The same elements stand elsewhere: written for Megatron, not needed when read.
    pub(crate) copy: bool,
    /// The model's output layer is its embedding.
    pub(crate) tied: bool,
}

impl Local {
    /// The parameter as the rank's optimizer sees it, with a weight of type `dtype`.
    pub(crate) fn optimizer_param(&self, file_grid: &FileGrid, dtype: DType) -> OptimizerParam {
        OptimizerParam {
            chunk: self.chunk,
            dtype,
            numel: self.lens.shape.iter().product(),
            decay: OptimizerParam::decays(&self.spec.slot, &self.lens.shape),
            words: self.spec.slot.is_word_table(),
            expert: file_grid.has_apart(&self.spec.slot),
            shared: self.spec.slot == Slot::WORDS && self.tied && file_grid.size(Axis::Pp) > 1,
        }
    }
}

/// Names the tensors of ranks.
pub(crate) struct Speller<'a> {
    config: &'a ModelConfig,
    file_grid: &'a FileGrid,
    spelling: Spelling,
}

impl<'a> Speller<'a> {
    /// # Errors
    /// [`Error::Cut`] for a model that this spelling cannot express.
    pub(crate) fn new(config: &'a ModelConfig, file_grid: &'a FileGrid, spelling: Spelling) -> Result<Self> {
        let grouped = spelling.experts == Experts::Grouped && !spelling.transformer_engine;
        if grouped && config.moe.is_some() && config.bias.mlp {
            return Err(Error::Cut("grouped experts have no biases: write sequential ones".to_owned()));
        }
        let beyond = config.moe.is_some() || config.attention != Attention::Grouped || config.is_recurrent();
        if spelling.legacy && beyond {
            return Err(Error::Cut("the legacy layout only holds dense models".to_owned()));
        }
        if spelling.legacy && config.reward {
            return Err(Error::Cut("the legacy layout has no reward head".to_owned()));
        }
        let sequential = spelling.experts == Experts::Sequential;
        if sequential && config.moe.is_some() && file_grid.extend_ep() {
            return Err(Error::Cut(
                "experts shared out over tensor-parallel ranks are grouped: pass --moe-grouped-gemm"
                    .to_owned(),
            ));
        }
        Ok(Self { config, file_grid, spelling })
    }

    /// The same for names that experts have no part in, whatever the model is.
    pub(super) fn without_experts(
        config: &'a ModelConfig,
        file_grid: &'a FileGrid,
        spelling: Spelling,
    ) -> Self {
        Self { config, file_grid, spelling }
    }

    /// A tensor outside the layers, or the tensors of a layer at `slot`.
    pub(crate) fn locals(
        &self,
        spec: &ParamSpec,
        rank: usize,
        chunk: usize,
        slot: usize,
    ) -> Result<Vec<Local>> {
        let what = &spec.slot;
        let region = self.file_grid.region(spec, rank)?;
        let tied = self.config.tied;
        let local = |(module, ending): (String, &str), also, lens: Lens| Local {
            chunk,
            name: format!("{module}{ending}"),
            module: (ending == WEIGHT).then_some(module),
            also,
            spec: spec.clone(),
            lens,
            split: false,
            copy: false,
            tied,
        };
        if self.spelling.legacy {
            return Ok(vec![local((legacy(what, slot), ""), None, Lens::plain(region))]);
        }
        let prefix = match what.place {
            Place::Layer(_) => format!("decoder.layers.{slot}."),
            Place::Mtp(k) if self.v1() => format!("mtp_layers.{k}.{}", what.inside_module()),
            Place::Mtp(k) => format!("mtp.layers.{k}.{}", what.inside_module()),
            Place::Embedding | Place::Head => String::new(),
        };
        let inside = |(module, ending, lens): (String, &'static str, Lens)| {
            local((format!("{prefix}{module}"), ending), None, lens)
        };
        if what.part == Part::Experts {
            return Ok(self.spelling.experts(what, &region).into_iter().map(inside).collect());
        }
        if self.spelling.split_heads
            && let Some(parts) = self.split_up_projection(spec, &region)
        {
            let named = parts.into_iter().map(|(name, lens)| (what.module(|_| name), WEIGHT, lens));
            return Ok(named.map(inside).map(|local| Local { split: true, ..local }).collect());
        }
        // Without prediction layers the final norm is the decoder's; some files say so with them, too.
        let last = |within: bool| {
            let decoder = if within { "decoder." } else { "" };
            format!("{decoder}{}", what.role.word())
        };
        let ending = what.ending();
        let (name, also) = match (what.place, what.part) {
            (Place::Mtp(k), Part::Last) if self.v1() => {
                ((format!("mtp_layers.{k}.final_layernorm"), ending), None)
            }
            (Place::Mtp(_), Part::Last) => ((what.module_name(), ending), None),
            (_, Part::Last) => {
                let own = self.config.mtp == 0 && self.config.carried() == self.config.hidden;
                ((last(own), ending), Some(format!("{}{ending}", last(!own))))
            }
            _ => {
                let (module, ending) = self.module(what);
                // Of a norm's two names the other.
                let also = fused(what).map(|name| if name == module { what.inner() } else { name });
                ((format!("{prefix}{module}"), ending), also.map(|name| format!("{prefix}{name}")))
            }
        };
        Ok(vec![local(name, also, Lens::plain(region))])
    }

    /// Tensors that hold elements of others once more, in the chunk of the head.
    pub(crate) fn copies(&self, specs: &[ParamSpec], rank: usize, chunk: usize) -> Result<Vec<Local>> {
        let mut copies = Vec::new();
        if self.file_grid.size(Axis::Pp) == 1 {
            return Ok(copies);
        }
        let embedding = &specs[0];
        let mut push = |name: String| -> Result<()> {
            let mut local = self.locals(embedding, rank, chunk, 0)?.swap_remove(0);
            (local.name, local.module, local.also, local.copy) = (name, None, None, true);
            copies.push(local);
            Ok(())
        };
        if self.config.tied {
            // The last stage needs the embedding too; Megatron keeps it under another name.
            push(if self.spelling.legacy {
                "word_embeddings_for_head/weight".to_owned()
            } else {
                HEAD.name()
            })?;
        }
        match self.v1() {
            true => {
                (0..self.config.mtp).try_for_each(|k| push(format!("mtp_layers.{k}.{}", embedding.name)))?;
            }
            false if self.config.mtp > 0 => push(embedding.name.clone())?,
            false => {}
        }
        Ok(copies)
    }

    fn v1(&self) -> bool {
        self.spelling.version == Version::V2_0_0
    }

    /// The name of a parameter after its layer's number, in two parts: its module, and the rest.
    fn module(&self, what: &Slot) -> (String, &'static str) {
        let leading_dense =
            |l: usize| self.config.moe.is_some() && (0..=l).all(|i| self.config.layer(i).feed == Feed::Dense);
        // Norms of layers without a packed projection stand alone.
        let (c, as_trained) = (self.config, self.spelling.as_trained);
        let packed = || c.projection_sections().is_empty() && !c.scores.output_gate && !c.is_recurrent();
        let te = self.spelling.transformer_engine && c.projects_once();
        let te = te && (!as_trained || packed() && !c.block.norms_outputs());
        let fuses = match (what.role, what.place) {
            (Role::InputLayernorm, _) => te,
            (Role::PreMlpLayernorm, _) if as_trained && c.moe.is_none() => te,
            (Role::PreMlpLayernorm, Place::Layer(l)) => te && !what.bias && leading_dense(l),
            _ => false,
        };
        match fused(what) {
            Some(name) if fuses => (name, ""),
            _ if what.role == Role::GateWeight && self.v1() => ("mlp.shared_expert_gate".to_owned(), WEIGHT),
            _ if self.v1() => {
                let word = |role: Role| self.config.old_word(role).unwrap_or(role.word());
                (what.module(word), what.ending())
            }
            _ => (what.module(Role::word), what.ending()),
        }
    }

    /// The two matrices of a weight whose rows lie apart by what each head's are for.
    fn split_up_projection(&self, spec: &ParamSpec, region: &Region) -> Option<[(&'static str, Lens); 2]> {
        let [(one, first), (other, second)] = self.config.head_parts(spec.slot.role)?;
        let head = first + second;
        let heads = || region.ranges.iter().flat_map(|r| (r.start / head)..(r.end / head));
        let rows = |from: usize, to: usize| {
            let ranges = heads().map(|h| h * head + from..h * head + to);
            Lens::plain(Region::along(&spec.shape, 0, ranges))
        };
        Some([(one, rows(0, first)), (other, rows(first, head))])
    }
}

impl Spelling {
    /// A rank's experts, whose weight it holds in `region`: one by one, or all in one tensor. For each, the module within its
    /// layer, the rest of the name, and what the tensor holds.
    pub(super) fn experts(&self, what: &Slot, region: &Region) -> Vec<(String, &'static str, Lens)> {
        let (path, module, kind) = (what.part.path(), what.role.word(), what.ending());
        let all = region.lead.clone().unwrap_or_else(|| match region.dim {
            0 => region.ranges.first().cloned().unwrap_or(0..0),
            _ => 0..region.shape[0],
        });
        let te = self.transformer_engine;
        if self.experts == Experts::Grouped && !te {
            let local = region.local_shape();
            let (experts, rows, columns) = (local[0], local[1], local[2]);
            let (name, shape) = match what.role {
                Role::LinearFc1 => (format!("{path}.weight1"), vec![columns, experts * rows]),
                _ => (format!("{path}.weight2"), vec![experts * columns, rows]),
            };
            // Each expert's matrix is transposed; the stack is then given another shape without being moved.
            let lens = Lens { shape, ..Lens::turned(region.clone()) };
            return vec![(name, "", lens)];
        }
        let one = |(j, expert): (usize, usize)| {
            let (name, ending) = match self.experts {
                Experts::Grouped => (format!("{path}.{module}{kind}{j}"), ""),
                Experts::Sequential => (format!("{path}.local_experts.{j}.{module}"), kind),
            };
            let part = match region.dim {
                0 => Region::along(&region.shape, 0, std::iter::once(expert..expert + 1)),
                _ => Region { lead: Some(expert..expert + 1), ..region.clone() },
            };
            (name, ending, Lens::single(part))
        };
        all.enumerate().map(one).collect()
    }
}

/// The names of the embedding table in rank files: Megatron-core's, and the legacy layout's.
pub(super) fn words() -> [String; 2] {
    [Slot::WORDS.name(), legacy(&Slot::WORDS, 0)]
}

/// The name of a norm as part of the module that follows it, within its layer; only for whole layers.
fn fused(what: &Slot) -> Option<String> {
    let module = match what.role {
        Role::InputLayernorm => "self_attention.linear_qkv",
        Role::PreMlpLayernorm => "mlp.linear_fc1",
        _ => return None,
    };
    let kind = if what.bias { "bias" } else { "weight" };
    what.half.is_none().then(|| format!("{module}.layer_norm_{kind}"))
}

/// The place of a tensor in the nested dictionaries of a legacy model, levels joined by `/`; `slot` is its layer's number.
fn legacy(what: &Slot, slot: usize) -> String {
    let word = |role: Role| match role {
        Role::InputLayernorm => "input_norm",
        Role::PreMlpLayernorm => "post_attention_norm",
        Role::LinearQkv => "query_key_value",
        Role::LinearProj => "dense",
        Role::LinearFc1 => "dense_h_to_4h",
        Role::LinearFc2 => "dense_4h_to_h",
        Role::FinalLayernorm => "final_norm",
        _ => role.word(),
    };
    let (module, ending) = (word(what.role), what.ending());
    match (what.part, what.role, what.place) {
        (_, Role::WordEmbeddingsNorm, _) => format!("language_model/embedding/word_embeddings/norm{ending}"),
        (Part::Embedding, ..) => format!("language_model/embedding/{module}/{}", &ending[1..]),
        (Part::Last, ..) => format!("language_model/encoder/{module}{ending}"),
        (part, _, Place::Layer(_)) => {
            let path = part.path();
            let dot = if path.is_empty() { "" } else { "." };
            format!("language_model/encoder/layers.{slot}.{path}{dot}{module}{ending}")
        }
        (part, ..) => format!("language_model/{}/{}", part.path(), &ending[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::torch_dist::{Modules, written};
    use ms_spec::{Norm, hf};
    use std::collections::BTreeSet;

    /// The slot of a weight of layer 1 of a model.
    const fn slot(place: Place, part: Part, role: Role, bias: bool) -> Slot {
        Slot { place, part, half: None, role, bias }
    }

    #[test]
    fn legacy_names_are_places_in_nested_dictionaries() {
        let (layer, words) = (Place::Layer(1), Part::Embedding);
        for (slot, want) in [
            (Slot::WORDS, "language_model/embedding/word_embeddings/weight"),
            (
                slot(Place::Embedding, words, Role::PositionEmbeddings, false),
                "language_model/embedding/position_embeddings/weight",
            ),
            (
                slot(Place::Embedding, words, Role::WordEmbeddingsNorm, true),
                "language_model/embedding/word_embeddings/norm.bias",
            ),
            (
                slot(layer, Part::Layer, Role::InputLayernorm, false),
                "language_model/encoder/layers.3.input_norm.weight",
            ),
            (
                slot(layer, Part::Dense, Role::LinearFc1, false),
                "language_model/encoder/layers.3.mlp.dense_h_to_4h.weight",
            ),
            (
                slot(Place::Head, Part::Last, Role::FinalLayernorm, false),
                "language_model/encoder/final_norm.weight",
            ),
            (slot(Place::Head, Part::Output, Role::Own, false), "language_model/output_layer/weight"),
        ] {
            assert_eq!(legacy(&slot, 3), want);
        }
    }

    #[test]
    fn every_tensor_of_a_rank_has_a_name_of_its_own() {
        let plain = ModelConfig { norm: Norm::LayerNorm, mtp: 2, ..ModelConfig::tiny() };
        let folder = ms_testing::golden_model("longcat_flash").unwrap();
        let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
        let two_halves = hf::read_config(&hf::parse_json(&text).unwrap()).unwrap();
        let file_grid = FileGrid::default();
        for config in [plain, two_halves] {
            let specs = ms_spec::params(&config);
            for (version, split_heads) in
                [(Version::V2_0_0, false), (Version::Head, false), (Version::Head, true)]
            {
                let spelling = Spelling { version, split_heads, ..Spelling::default() };
                let speller = Speller::new(&config, &file_grid, spelling).unwrap();
                let mut seen = BTreeSet::new();
                for spec in &specs {
                    let (Place::Layer(slot) | Place::Mtp(slot)) = spec.slot.place else { continue };
                    for local in speller.locals(spec, 0, 0, slot).unwrap() {
                        assert!(seen.insert(local.name.clone()), "{version:?}: {} twice", local.name);
                    }
                    let key = written(spec, slot, false, false, &config, Modules::default()).key;
                    assert!(seen.insert(format!("key {key}")), "{version:?}: key {key} twice");
                }
                assert!(seen.len() > specs.len());
            }
        }
    }

    #[test]
    fn norms_are_found_as_parts_of_the_modules_behind_them() {
        let config = ModelConfig::tiny();
        let (file_grid, specs) = (FileGrid::default(), ms_spec::params(&config));
        let speller = Speller::new(&config, &file_grid, Spelling::default()).unwrap();
        let also = |name: &str| {
            let spec = specs.iter().find(|s| s.name == name).unwrap();
            speller.locals(spec, 0, 0, 1).unwrap().swap_remove(0).also
        };
        let fused = "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight";
        assert_eq!(also("decoder.layers.1.input_layernorm.weight").as_deref(), Some(fused));
        assert_eq!(also("decoder.final_layernorm.weight").as_deref(), Some("final_layernorm.weight"));
        assert_eq!(also("embedding.word_embeddings.weight"), None);
        let te = Spelling { transformer_engine: true, ..Spelling::default() };
        let speller = Speller::new(&config, &file_grid, te).unwrap();
        let norm = specs.iter().find(|s| s.name == "decoder.layers.1.input_layernorm.weight").unwrap();
        let local = speller.locals(norm, 0, 0, 1).unwrap().swap_remove(0);
        let names = (&*local.name, local.also.as_deref());
        assert_eq!(names, (fused, Some("decoder.layers.1.input_layernorm.weight")));
    }
}
