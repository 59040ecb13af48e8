//! Plans of Megatron-core checkpoints, and of the sharded form with the same cut.

use std::path::PathBuf;

use ms_spec::ModelConfig;
use serde_json::{Map, Value, json};

use super::{ArgsForm, Container, DTypeOf, FilePlan, Plan, Target, target};
use crate::Result;
use crate::layout::mcore::{Cut, Spelling, rank_path, rank_tensors};
use crate::layout::{TRACKER, iteration_name};
use crate::safetensors::make_header;
use crate::torch::Object;

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
        let mut fields = cut.args(config)?;
        fields.insert("iteration".to_owned(), json!(iteration));
        fields.extend(more.clone());
        let args = match args {
            ArgsForm::Namespace => Some(Object::Namespace(fields)),
            ArgsForm::Dict => Some(Object::Plain(Value::Object(fields))),
            ArgsForm::Absent => None,
        };
        let chunks = cut.placement(config.layers)?[0].len();
        let mut plan = Self::default();
        for p in 0..cut.pp {
            for t in 0..cut.tp {
                let mut tensors = Vec::new();
                for local in rank_tensors(config, cut, spelling, t, p)? {
                    let dtype = dtype_of(&local.spec.name)?;
                    tensors.push(Target {
                        chunk: local.chunk,
                        ..target(local.name, &local.spec, &crate::lens::Lens::plain(local.region), dtype)
                    });
                }
                plan.files.push(FilePlan {
                    path: rank_path(iteration, t, p, cut.pp),
                    tensors,
                    container: Container::Torch { args: args.clone(), chunks, iteration },
                });
            }
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
        for p in 0..cut.pp {
            for t in 0..cut.tp {
                let name = format!("rank_{:05}.safetensors", p * cut.tp + t);
                let mut list: Vec<Target> = Vec::new();
                for local in rank_tensors(config, cut, Spelling::Local, t, p)? {
                    let spec = &local.spec;
                    // One copy of what several ranks hold; the tied output layer is the embedding.
                    let first = spec.partition.is_cut() || t == 0;
                    if !first || (config.tied && local.name == "output_layer.weight") {
                        continue;
                    }
                    let dtype = dtype_of(&spec.name)?;
                    let part = json!({"file": name, "key": spec.name, "region": local.region});
                    match place.get(&spec.name).and_then(Value::as_u64) {
                        Some(i) => {
                            let parts = tensors[i as usize]["parts"].as_array_mut().expect("made below");
                            parts.push(part);
                        }
                        None => {
                            place.insert(spec.name.clone(), json!(tensors.len()));
                            let shape = spec.shape.to_vec();
                            tensors.push(
                                json!({"name": spec.name, "shape": shape, "dtype": dtype, "parts": [part]}),
                            );
                        }
                    }
                    list.push(target(
                        spec.name.clone(),
                        spec,
                        &crate::lens::Lens::plain(local.region),
                        dtype,
                    ));
                }
                let names: Vec<_> = list.iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone())).collect();
                let header = make_header(&names, &[("format", "ms-sharded")]);
                plan.files.push(FilePlan {
                    path: folder.join(name),
                    tensors: list,
                    container: Container::Safetensors { header },
                });
            }
        }
        let manifest = json!({
            "format": "ms-sharded", "version": 1, "iteration": 1, "config": config, "tensors": tensors,
            "state": {"args": cut.args(config)?}
        });
        let text = serde_json::to_vec_pretty(&manifest).expect("plain JSON");
        plan.texts.push((folder.join(crate::sharded::MANIFEST), text));
        plan.texts.push((TRACKER.into(), b"1".to_vec()));
        Ok(plan)
    }
}
