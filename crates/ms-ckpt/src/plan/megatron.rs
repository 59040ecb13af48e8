//! Plans of Megatron-core checkpoints, and of the sharded form with the same cut.

use std::collections::BTreeSet;
use std::path::PathBuf;

use ms_spec::{ModelConfig, ParamSpec, Place};
use serde_json::{Map, Value, json};

use super::{ArgsForm, Container, DTypeOf, FilePlan, Plan, Target, target};
use crate::layout::mcore::{Cut, Spelling, rank_path, rank_tensors};
use crate::layout::{Placement, Rank, TRACKER, iteration_name};
use crate::lens::Lens;
use crate::safetensors::make_header;
use crate::torch::Object;
use crate::{Error, Result};

impl Plan {
    /// A Megatron-core checkpoint, iteration 1, `config.padded_vocab` rows in vocabulary tensors.
    ///
    /// # Errors
    /// A cut that does not divide; what `dtype_of` returns.
    pub fn mcore(
        config: &ModelConfig,
        cut: &Cut,
        spelling: Spelling,
        args: ArgsForm,
        dtype_of: &DTypeOf<'_>,
    ) -> Result<Self> {
        Self::mcore_at(config, cut, spelling, args, dtype_of, 1, &Map::new())
    }

    /// The same for any iteration, with more arguments than the model's.
    pub(super) fn mcore_at(
        config: &ModelConfig,
        cut: &Cut,
        spelling: Spelling,
        args: ArgsForm,
        dtype_of: &DTypeOf<'_>,
        iteration: u64,
        more: &Map<String, Value>,
    ) -> Result<Self> {
        let mut fields = cut.args(config, spelling)?;
        fields.insert("iteration".to_owned(), json!(iteration));
        fields.extend(more.clone());
        let args = match args {
            ArgsForm::Namespace => Some(Object::Namespace(fields)),
            ArgsForm::Dict => Some(Object::Plain(Value::Object(fields))),
            ArgsForm::Absent => None,
        };
        cut.check(config)?;
        let placement = cut.placement(config.layers)?;
        let chunks = placement[0].len();
        let mut plan = Self::default();
        for rank in cut.ranks()? {
            let mut tensors = Vec::new();
            for local in rank_tensors(config, cut, &placement, spelling, rank)? {
                let dtype = dtype_of(&local.spec.name)?;
                let (chunk, nf4) =
                    (local.chunk, spelling.nf4 && is_linear(&local.spec) && !local.lens.transposed);
                tensors.push(Target { chunk, nf4, ..target(local.name, &local.spec, &local.lens, dtype) });
            }
            plan.files.push(FilePlan {
                path: rank_path(iteration, rank, cut),
                tensors,
                container: Container::Torch { args: args.clone(), chunks, iteration },
            });
        }
        plan.texts.push((TRACKER.into(), iteration.to_string().into_bytes()));
        Ok(plan)
    }

    /// This toolchain's sharded form, iteration 1, one file per tensor-parallel rank and stage.
    ///
    /// # Errors
    /// As [`Plan::mcore`].
    pub fn sharded(config: &ModelConfig, cut: &Cut, dtype_of: &DTypeOf<'_>) -> Result<Self> {
        let mut plan = Self::default();
        let mut tensors: Vec<Value> = Vec::new();
        let mut place: Map<String, Value> = Map::new();
        let folder = PathBuf::from(iteration_name(1));
        cut.check(config)?;
        let placement = cut.placement(config.layers)?;
        let specs = ms_spec::params(config);
        let mut written: BTreeSet<(&str, usize)> = BTreeSet::new();
        for (number, rank) in cut.ranks()?.into_iter().enumerate() {
            let name = format!("rank_{number:05}.safetensors");
            let mut list: Vec<Target> = Vec::new();
            for spec in specs.iter().filter(|s| holds(cut, &placement, rank, s.place)) {
                let position = cut.position(rank, spec.name.contains(".mlp.experts."));
                let region = spec.partition.region_on(&spec.name, &spec.shape, position);
                let region = region.map_err(|e| Error::Cut(e.to_string()))?;
                // One copy of what several ranks hold: that of the first.
                let start = region.runs().next().map_or(0, |r| r.0);
                if !written.insert((&spec.name, start)) {
                    continue;
                }
                let dtype = dtype_of(&spec.name)?;
                let part = json!({"file": name, "key": spec.name, "region": region});
                match place.get(&spec.name).and_then(Value::as_u64) {
                    Some(i) => {
                        tensors[i as usize]["parts"].as_array_mut().expect("made below").push(part);
                    }
                    None => {
                        place.insert(spec.name.clone(), json!(tensors.len()));
                        let shape = spec.shape.to_vec();
                        tensors.push(
                            json!({"name": spec.name, "shape": shape, "dtype": dtype, "parts": [part]}),
                        );
                    }
                }
                list.push(target(spec.name.clone(), spec, &Lens::plain(region), dtype));
            }
            let names: Vec<_> = list.iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone())).collect();
            let header = make_header(&names, &[("format", "ms-sharded")]);
            plan.files.push(FilePlan {
                path: folder.join(name),
                tensors: list,
                container: Container::Safetensors { header },
            });
        }
        let manifest = json!({
            "format": "ms-sharded", "version": 1, "iteration": 1, "config": config, "tensors": tensors,
            "state": {"args": cut.args(config, Spelling::default())?}
        });
        let text = serde_json::to_vec_pretty(&manifest).expect("plain JSON");
        plan.texts.push((folder.join(crate::sharded::MANIFEST), text));
        plan.texts.push((TRACKER.into(), b"1".to_vec()));
        Ok(plan)
    }
}

/// Whether a parameter is the weight of a linear layer that tensor-parallel ranks share: what 4-bit storage is for.
fn is_linear(spec: &ParamSpec) -> bool {
    let layer = matches!(spec.place, Place::Layer(_) | Place::Mtp(_));
    layer && spec.partition.is_cut() && spec.shape.len() > 1 && spec.name.contains(".linear_")
}

/// Whether a rank has the part of the model at `place`.
fn holds(cut: &Cut, placement: &Placement, rank: Rank, place: Place) -> bool {
    match place {
        Place::Embedding => rank.p == 0,
        Place::Layer(l) => placement[rank.p].iter().flatten().any(|slot| *slot == Some(l)),
        Place::Head | Place::Mtp(_) => rank.p == if cut.dual_pipe { 0 } else { cut.pp - 1 },
    }
}
