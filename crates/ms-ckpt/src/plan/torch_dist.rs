//! Plans for Megatron's distributed checkpoints: global tensors in chunks, as the ranks of a given sharding would write them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use ms_core::Region;
use ms_spec::{ModelConfig, ParamSpec, Part, Place, Role, Slot};
use serde_json::json;

use super::run::SPACE;
use super::{ArgsForm, Container, DTypeOf, FilePlan, Plan, Run, parameter, target, type_of};
use crate::Result;
use crate::dcp::{self, WrittenChunk, WrittenTensor};
use crate::iterations::{TRACKER, iteration_name};
use crate::layout::file_grid::FileGrid;
use crate::layout::spelling::Spelling;
use crate::layout::torch_dist;
use crate::layout::torch_dist::Modules;
use crate::lens::Lens;
use crate::optim::OptimizerParam;
use crate::torch::{Object, archive_bytes, archive_of};

/// The file of objects that are not tensors.
const OBJECTS: &str = "__0_1.distcp";

impl Plan {
    /// Megatron's distributed form (`torch_dist`): one file per rank. The ranks determine the chunks, not the keys.
    ///
    /// Layers are stacked under one key unless they differ. For modules that keep extra state, such as Transformer Engine's,
    /// an empty one is written, without which Megatron would not load the folder.
    ///
    /// # Errors
    /// A sharding that does not divide; what `dtype_of` returns.
    pub fn torch_dist(
        config: &ModelConfig,
        file_grid: &FileGrid,
        modules: Modules,
        args: ArgsForm,
        dtype_of: &DTypeOf<'_>,
        run: &Run,
    ) -> Result<Self> {
        file_grid.check(config)?;
        let placement = file_grid.placement(config)?;
        let slots = file_grid.slots(config.layers)?;
        let specs = ms_spec::params(config);
        let keys = Keys::new(&specs, config, &slots, modules);
        let held = |spec: &ParamSpec| {
            let dtype = type_of(spec, dtype_of)?;
            Ok(OptimizerParam::of_model(spec, dtype, file_grid.has_apart(&spec.slot)))
        };
        let held = specs.iter().filter(|s| s.trained()).map(held).collect::<Result<Vec<_>>>()?;
        let chained = held.iter().any(|h| h.expert);
        let mut plan = Self::default();
        let folder = PathBuf::from(iteration_name(run.iteration));
        let mut tensors: BTreeMap<String, WrittenTensor> = BTreeMap::new();
        let mut seen: BTreeSet<(String, Vec<usize>)> = BTreeSet::new();
        for (number, rank) in file_grid.ranks().into_iter().enumerate() {
            let stage = file_grid.numbers(rank).p;
            let file = format!("__{number}_0.distcp");
            let (mut list, mut at) = (Vec::new(), 0);
            for spec in specs.iter().filter(|s| placement.holds(stage, s.slot.place)) {
                let region = file_grid.region(spec, rank)?;
                let (key, layer) = keys.of(spec);
                let mut sections = torch_dist::sections(spec);
                if sections.is_empty() {
                    sections.push(("", 0..usize::MAX));
                }
                for (state, dtype) in run.tensors_of(spec, dtype_of)? {
                    let number = usize::from(file_grid.has_apart(&spec.slot));
                    let chain = if chained { format!("chained_{number}.") } else { String::new() };
                    let prefix = state.map_or_else(String::new, |state| chain + &state.prefix());
                    // A chunk is a box: the halves of a gated layer are two.
                    let boxes = region.ranges.iter().flat_map(|range| {
                        sections.iter().map(move |s| (s, range.start.max(s.1.start)..range.end.min(s.1.end)))
                    });
                    for ((section, rows), range) in boxes.filter(|(_, range)| !range.is_empty()) {
                        let key = format!("{prefix}{key}{section}");
                        let part = Region { ranges: vec![range], ..region.clone() };
                        let (mut offsets, sizes) = boxed(&part, layer);
                        offsets[usize::from(layer.is_some()) + region.dim] -= rows.start;
                        if !seen.insert((key.clone(), offsets.clone())) {
                            continue;
                        }
                        let mut target = target(key.clone(), spec, &Lens::plain(part), dtype);
                        target.parameter = parameter(state, spec);
                        target.shape.clone_from(&sizes);
                        let length = archive_bytes("archive", &target.archived(), &[target.bytes()]);
                        let written = tensors.entry(key.clone()).or_insert_with(|| WrittenTensor {
                            key: key.clone(),
                            dtype,
                            size: keys.size(spec, layer, rows),
                            chunks: Vec::new(),
                        });
                        written.chunks.push(WrittenChunk { offsets, sizes, file: file.clone(), at, length });
                        at += length;
                        list.push(target);
                    }
                }
            }
            if !list.is_empty() {
                let container = Container::Chunks;
                plan.files.push(FilePlan { path: folder.join(file), tensors: list, container });
            }
        }
        let tensors: Vec<WrittenTensor> = tensors.into_values().collect();
        let extra = dcp::extra_state();
        let objects = keys.extra_states(&specs);
        let metadata = dcp::metadata_pickle(&tensors, &objects, (OBJECTS, extra.len() as u64));
        let transformer_engine = modules == Modules::TransformerEngine;
        let spelling = Spelling { transformer_engine, ..Spelling::default() };
        let mut common = run.top(file_grid.args(config, spelling)?, args);
        let content = json!({
            "non_homogeneous_layers": !keys.stacked, "singleton_local_shards": false,
            "distrib_optim_sharding_type": SPACE
        });
        common.push(("content_metadata".to_owned(), Object::Plain(content)));
        common.extend(run.optimizer_objects(&held));
        for (name, bytes) in [
            (dcp::METADATA, metadata),
            (dcp::BACKEND, dcp::backend_json()),
            (dcp::COMMON, archive_of("common", &Object::Dict(common))),
            (OBJECTS, extra),
        ] {
            plan.texts.push((folder.join(name), bytes));
        }
        plan.texts.push((TRACKER.into(), run.iteration.to_string().into_bytes()));
        Ok(plan)
    }
}

/// The keys of a model's parameters.
struct Keys<'a> {
    config: &'a ModelConfig,
    slots: &'a [Option<usize>],
    modules: Modules,
    /// All layers have the same parameters, and share their keys.
    stacked: bool,
    /// Layers with a packed projection, which their first norm is a part of.
    packed: BTreeSet<usize>,
}

impl<'a> Keys<'a> {
    fn new(
        specs: &[ParamSpec],
        config: &'a ModelConfig,
        slots: &'a [Option<usize>],
        modules: Modules,
    ) -> Self {
        let mut layers: BTreeMap<usize, Vec<(Slot, &[usize])>> = BTreeMap::new();
        let mut packed = BTreeSet::new();
        for spec in specs {
            let Place::Layer(layer) = spec.slot.place else { continue };
            if spec.slot.half.is_none() && spec.slot.is(Part::Attention, Role::LinearQkv) {
                packed.insert(layer);
            }
            let anywhere = Slot { place: Place::Layer(0), ..spec.slot };
            layers.entry(layer).or_default().push((anywhere, &spec.shape[..]));
        }
        let same = layers.values().all(|l| Some(l) == layers.values().next());
        let stacked = same && config.stacks_layers();
        Self { config, slots, modules, stacked, packed }
    }

    /// The key of a parameter, and the layer's number if layers stand in front.
    fn of(&self, spec: &ParamSpec) -> (String, Option<usize>) {
        let packed = matches!(spec.slot.place, Place::Layer(l) if self.packed.contains(&l));
        let mapping =
            torch_dist::written(spec, self.slot_of(spec), self.stacked, packed, self.config, self.modules);
        (mapping.key, mapping.layer)
    }

    /// The number of a parameter's layer among all slots.
    fn slot_of(&self, spec: &ParamSpec) -> usize {
        match spec.slot.place {
            Place::Layer(layer) => self.slots.iter().position(|s| *s == Some(layer)).unwrap_or(layer),
            _ => 0,
        }
    }

    /// The key's own sizes: of `rows` of a parameter, which are all or a section.
    fn size(&self, spec: &ParamSpec, layer: Option<usize>, rows: &Range<usize>) -> Vec<usize> {
        let mut size = spec.shape.to_vec();
        if let Some(first) = size.first_mut() {
            *first = rows.len().min(*first);
        }
        if layer.is_some() {
            size.insert(0, self.slots.len());
        }
        size
    }

    /// Keys of the extra state of every linear module of the layers, and of attention itself.
    fn extra_states(&self, specs: &[ParamSpec]) -> Vec<String> {
        let mut keys = BTreeSet::new();
        for spec in specs.iter().filter(|s| matches!(s.slot.place, Place::Layer(_))) {
            let what = &spec.slot;
            if what.bias || !what.role.is_linear() {
                continue;
            }
            let (prefix, layer) = torch_dist::in_layer(self.slot_of(spec), self.stacked);
            let experts = if what.part == Part::Experts { spec.shape[0] } else { 1 };
            let (at, of) = layer.map_or((0, 1), |l| (l, self.slots.len()));
            let mut push = |module: String| match experts {
                1 => drop(keys.insert(format!("{module}._extra_state/shard_{at}_{of}"))),
                n => (0..n).for_each(|e| {
                    let shard = match layer {
                        Some(_) => format!("shard_{at}.{e}_{of}.{n}"),
                        None => format!("shard_{e}_{n}"),
                    };
                    keys.insert(format!("{module}._extra_state/{shard}"));
                }),
            };
            push(format!("{prefix}{}", torch_dist::module(what)));
            if what.is(Part::Attention, Role::LinearProj) {
                push(format!("{prefix}{}", what.module(|_| "core_attention")));
            }
        }
        keys.into_iter().collect()
    }
}

/// Where a region of one range lies in the key's tensor, and its sizes there.
fn boxed(region: &Region, layer: Option<usize>) -> (Vec<usize>, Vec<usize>) {
    let mut sizes = region.local_shape().to_vec();
    let mut offsets = vec![0; sizes.len()];
    if let Some(first) = offsets.get_mut(region.dim) {
        *first = region.ranges[0].start;
    }
    if let (Some(lead), Some(first)) = (&region.lead, offsets.first_mut()) {
        *first = lead.start;
    }
    if let Some(layer) = layer {
        sizes.insert(0, 1);
        offsets.insert(0, layer);
    }
    (offsets, sizes)
}
