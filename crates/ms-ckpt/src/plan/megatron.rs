//! Plans for Megatron-core checkpoints, and for the sharded form with the same ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ms_core::Shape;
use ms_spec::{ModelConfig, ParamSpec, Part, Place, Role};
use serde_json::{Value, json};

use super::optimizer::Parameter;
use super::{
    AdapterTensors, ArgsForm, Container, DTypeOf, FilePlan, Plan, Run, Target, parameter, target, type_of,
};
use crate::Result;
use crate::adapter;
use crate::iterations::{TRACKER, iteration_name};
use crate::layout::file_grid::FileGrid;
use crate::layout::rank_tensors::{rank_path, rank_tensors};
use crate::layout::spelling::{FourBit, Local, Spelling};
use crate::lens::Lens;
use crate::name::Name;
use crate::safetensors::make_header;

impl Plan {
    /// A Megatron-core checkpoint, `config.padded_vocab` rows in vocabulary tensors.
    ///
    /// # Errors
    /// A sharding that does not divide; what `dtype_of` returns.
    pub fn mcore(
        config: &ModelConfig,
        file_grid: &FileGrid,
        spelling: Spelling,
        args: ArgsForm,
        dtype_of: &DTypeOf<'_>,
        run: &Run,
    ) -> Result<Self> {
        let top = run.top(file_grid.args(config, spelling)?, args);
        file_grid.check(config)?;
        let placement = file_grid.placement(config)?;
        let chunks = placement.chunks();
        let mut plan = Self::default();
        for rank in file_grid.ranks() {
            let mut tensors = Vec::new();
            let mut held = Vec::new();
            for local in rank_tensors(config, file_grid, &placement, spelling, rank)? {
                let dtype = type_of(&local.spec, dtype_of)?;
                if run.optimizer && local.spec.trained() {
                    held.push((tensors.len(), local.spec.slot, local.optimizer_param(file_grid, dtype)));
                }
                let (chunk, nf4) =
                    (local.chunk, is_coded(&local.spec, spelling.nf4) && !local.lens.transposed);
                let adapter = run.adapters.get(&local.spec.slot).filter(|_| !local.copy);
                let adapter = adapter.map(|beside| adapter_targets(beside, &local, dtype_of)).transpose()?;
                // Under an adapter stands the frozen weight.
                let name = match (&adapter, &local.module) {
                    (Some(_), Some(module)) => format!("{module}.base_layer.weight"),
                    _ => local.name.clone(),
                };
                tensors.push(Target { chunk, nf4, ..target(name, &local.spec, &local.lens, dtype) });
                tensors.extend(adapter.into_iter().flatten());
            }
            let path = rank_path(run.iteration, rank, file_grid);
            let (mut end, mut beside, mut flat) = (Vec::new(), Vec::new(), None);
            if run.optimizer {
                let one = |(i, slot, held): (usize, _, _)| Parameter { target: &tensors[i], slot, held };
                let parameters: Vec<Parameter<'_>> = held.into_iter().map(one).collect();
                (end, beside) = run.beside_weights(&parameters, tensors.len());
                flat =
                    run.distributed().then(|| run.flat_file(&path, &parameters, file_grid.numbers(rank).p));
            }
            tensors.extend(beside);
            let container = Container::Torch { top: top.clone(), chunks, end };
            plan.files.push(FilePlan { path, tensors, container });
            plan.files.extend(flat);
        }
        plan.texts.push((TRACKER.into(), run.iteration.to_string().into_bytes()));
        Ok(plan)
    }

    /// This toolchain's sharded form, one file per tensor-parallel rank and stage.
    ///
    /// # Errors
    /// As [`Plan::mcore`].
    pub fn sharded(
        config: &ModelConfig,
        file_grid: &FileGrid,
        dtype_of: &DTypeOf<'_>,
        run: &Run,
    ) -> Result<Self> {
        let mut plan = Self::default();
        let mut tensors: Vec<Value> = Vec::new();
        let mut place: BTreeMap<String, usize> = BTreeMap::new();
        let folder = PathBuf::from(iteration_name(run.iteration));
        file_grid.check(config)?;
        let placement = file_grid.placement(config)?;
        let specs = ms_spec::params(config);
        let mut written: BTreeSet<(&str, usize)> = BTreeSet::new();
        for (number, rank) in file_grid.ranks().into_iter().enumerate() {
            let stage = file_grid.numbers(rank).p;
            let file = format!("rank_{number:05}.safetensors");
            let mut list: Vec<Target> = Vec::new();
            for spec in specs.iter().filter(|s| placement.holds(stage, s.slot.place)) {
                let region = file_grid.region(spec, rank)?;
                // One copy of what several ranks hold: that of the first.
                if !written.insert((&spec.name, region.first())) {
                    continue;
                }
                for (state, dtype) in run.tensors_of(spec, dtype_of)? {
                    let name = parameter(state, spec);
                    let part = json!({"file": file, "key": name, "region": region});
                    match place.get(&*name) {
                        Some(&i) => tensors[i]["parts"].as_array_mut().expect("made below").push(part),
                        None => {
                            place.insert(name.to_string(), tensors.len());
                            let shape = spec.shape.to_vec();
                            tensors
                                .push(json!({"name": name, "shape": shape, "dtype": dtype, "parts": [part]}));
                        }
                    }
                    let lens = Lens::plain(region.clone());
                    list.push(Target {
                        parameter: name.clone(),
                        ..target(name.to_string(), spec, &lens, dtype)
                    });
                }
            }
            let names: Vec<_> = list.iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone())).collect();
            let header = make_header(&names, &[("format", "ms-sharded")]);
            plan.files.push(FilePlan {
                path: folder.join(file),
                tensors: list,
                container: Container::Safetensors { header },
            });
        }
        let mut state = if run.state.is_object() { run.state.clone() } else { json!({}) };
        state["args"] = Value::Object(run.merged(file_grid.args(config, Spelling::default())?));
        let manifest = json!({
            "format": "ms-sharded", "version": 1, "iteration": run.iteration, "config": config, "tensors": tensors,
            "state": state
        });
        let text = serde_json::to_vec_pretty(&manifest).expect("plain JSON");
        plan.texts.push((folder.join(crate::sharded::MANIFEST), text));
        plan.texts.push((TRACKER.into(), run.iteration.to_string().into_bytes()));
        Ok(plan)
    }
}

/// The two matrices of an adapter, next to a rank's part of its parameter.
fn adapter_targets(beside: &AdapterTensors, local: &Local, dtype_of: &DTypeOf<'_>) -> Result<Vec<Target>> {
    let names = adapter::local_names(&local.name, local.module.as_deref());
    let parts = adapter::lenses(&local.spec, &local.lens, beside.rank);
    let one = |((name, parameter), (_, lens)): ((String, &Name), (Shape, Lens))| {
        let dtype = dtype_of(parameter)?;
        let made = target(name, &local.spec, &lens, dtype);
        Ok(Target { chunk: local.chunk, parameter: parameter.clone(), ..made })
    };
    names.into_iter().zip(&beside.matrices).zip(parts).map(one).collect()
}

/// Whether a parameter is stored as 4-bit codes.
fn is_coded(spec: &ParamSpec, which: FourBit) -> bool {
    let slot = &spec.slot;
    let linear = slot.role.is_linear() && matches!(slot.place, Place::Layer(_) | Place::Mtp(_));
    let matrix = spec.shape.len() > 1 && !slot.bias;
    match which {
        FourBit::None => false,
        FourBit::Shared => matrix && linear && spec.partition.is_cut(),
        FourBit::All => matrix && (linear || slot.role == Role::EhProj || slot.part == Part::Output),
    }
}
