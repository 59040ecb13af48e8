//! Run state: everything in a training checkpoint other than the weights, passed into a plan.

use std::collections::BTreeMap;

use ms_core::DType;
use ms_spec::{ParamSpec, Slot};
use serde_json::{Map, Value, json};

use super::{ArgsForm, DTypeOf};
use crate::adapter::BLOCK_RANK;
use crate::checkpoint::Checkpoint;
use crate::name::{Name, State};
use crate::optim::OptimizerParam;
use crate::torch::{Key, Object};
use crate::{Error, Result};

/// What Megatron calls optimizer state that has the geometry of the weights.
pub(super) const SPACE: &str = "fully_sharded_model_space";

/// The argument that names the schedule of a pipeline.
const SCHEDULE: &str = "schedules_method";

/// The progress of a training run, written in addition to the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Iteration that the checkpoint is of.
    pub iteration: u64,
    /// Arguments of the run; those that describe the model and its cut are the plan's own.
    pub args: Map<String, Value>,
    /// Free state: parameter groups, schedule, whatever the writer kept. Null: none.
    pub state: Value,
    /// Whether the tensors of the optimizer are written.
    pub optimizer: bool,
    /// Adapters that are written in addition to the weights, by parameter.
    pub adapters: BTreeMap<Slot, AdapterTensors>,
}

/// An adapter of a whole parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterTensors {
    /// Global tensors `[r, in]` and `[out, r]`.
    pub matrices: [Name; 2],
    /// Its rank.
    pub rank: usize,
}

impl Default for Run {
    /// A converted model: iteration 1, without a run.
    fn default() -> Self {
        Self {
            iteration: 1,
            args: Map::new(),
            state: Value::Null,
            optimizer: false,
            adapters: BTreeMap::new(),
        }
    }
}

impl Run {
    /// The run of a checkpoint, with its optimizer state if it is complete for every trained parameter.
    pub fn of(source: &Checkpoint) -> Self {
        let mut args = source.args().clone();
        // Megatron stores among the arguments what our runs store separately.
        for key in ["consumed_train_samples", "consumed_valid_samples"] {
            if source.state()[key].is_u64() {
                args.insert(key.to_owned(), source.state()[key].clone());
            }
        }
        Self {
            iteration: source.iteration().max(1),
            args,
            state: source.state().clone(),
            optimizer: source.has_optimizer(),
            adapters: BTreeMap::new(),
        }
    }

    /// The same with the adapters of a source; Megatron's files hold them together with the weights.
    ///
    /// # Errors
    /// Projections that are one parameter here and have an adapter each: [`Checkpoint::with_joined_adapters`] makes one.
    pub fn with_adapters(mut self, source: &Checkpoint) -> Result<Self> {
        for (slot, parts) in &source.adapters {
            let parameter = slot.name();
            let [part] = &parts[..] else {
                let what =
                    format!("{parameter} has {} adapters, for rows of its own each: merge them", parts.len());
                return Err(Error::Cut(what));
            };
            if !part.rows.is_whole() {
                return Err(Error::Cut(format!(
                    "the adapter of {parameter} covers a part of its rows: merge it"
                )));
            }
            let shape = source.global(&part.a)?.shape;
            let rank = shape[shape.len() - 2];
            let matrices = [part.a.clone(), part.b.clone()];
            self.adapters.insert(*slot, AdapterTensors { matrices, rank });
        }
        if let Some(lora) = self.adapters.values().next() {
            self.args.insert("lora_r".to_owned(), json!(lora.rank));
            if let Some(rank) = source.args().get(BLOCK_RANK) {
                self.args.insert(BLOCK_RANK.to_owned(), rank.clone());
            }
        }
        Ok(self)
    }

    /// What is written of a parameter, itself first, and types.
    pub(super) fn tensors_of(
        &self,
        spec: &ParamSpec,
        dtype_of: &DTypeOf<'_>,
    ) -> Result<Vec<(Option<State>, DType)>> {
        let mut all = vec![(None, super::type_of(spec, dtype_of)?)];
        if self.optimizer && spec.trained() {
            all.extend(State::ADAM.map(|state| (Some(state), DType::F32)));
        }
        Ok(all)
    }

    /// The arguments of a file: the run's, with those of the plan in their place.
    pub(super) fn merged(&self, own: Map<String, Value>) -> Map<String, Value> {
        let mut fields = self.args.clone();
        // It says how stages hold layers; other schedules do not.
        if fields.get(SCHEDULE) == Some(&json!("dualpipev")) {
            fields.remove(SCHEDULE);
        }
        fields.extend(own);
        for key in ["consumed_train_samples", "consumed_valid_samples"] {
            if let Some(n) = self.args.get(key) {
                fields.insert(key.to_owned(), n.clone());
            }
        }
        fields.insert("iteration".to_owned(), json!(self.iteration));
        // Megatron then looks for neither in a distributed checkpoint (`load_checkpoint` of `training/checkpointing.py`).
        fields.insert("no_save_rng".to_owned(), json!(true));
        fields.insert("no_save_optim".to_owned(), json!(!self.optimizer));
        fields
    }

    /// The head of the dictionary that a Megatron file is.
    pub(super) fn top(&self, own: Map<String, Value>, form: ArgsForm) -> Vec<(String, Object)> {
        let fields = self.merged(own);
        let mut top = Vec::new();
        match form {
            ArgsForm::Namespace => top.push(("args".to_owned(), Object::Namespace(fields))),
            ArgsForm::Dict => top.push(("args".to_owned(), Object::Plain(Value::Object(fields)))),
            ArgsForm::Absent => {}
        }
        let operations = &self.state["num_floating_point_operations_so_far"];
        let operations = if operations.is_null() { json!(0) } else { operations.clone() };
        for (key, value) in [
            ("checkpoint_version", json!(3.0)),
            ("iteration", json!(self.iteration)),
            ("num_floating_point_operations_so_far", operations),
        ] {
            top.push((key.to_owned(), Object::Plain(value)));
        }
        top
    }

    /// What Megatron's optimizers keep of the loss's scale: nothing of one that stays.
    ///
    /// # Source
    /// Megatron-LM `core_r0.8.0`, `megatron/core/optimizer/grad_scaler.py`, `state_dict`.
    pub(super) fn grad_scaler(&self) -> Option<(String, Object)> {
        let fields = self.state["optimizer"]["grad_scaler"].as_object()?;
        let entry = |(key, value): (&String, &Value)| match (key.as_str(), value.as_f64()) {
            ("scale", Some(scale)) => (key.clone(), Object::Scalar(scale as f32)),
            _ => (key.clone(), Object::Plain(value.clone())),
        };
        Some(("grad_scaler".to_owned(), Object::Dict(fields.iter().map(entry).collect())))
    }

    /// Parameter groups, the loss's scale and the schedule, for the end of a dictionary whose tensors are elsewhere. Experts that
    /// other ranks do not have are a second optimizer's.
    pub(super) fn optimizer_objects(&self, held: &[OptimizerParam]) -> Vec<(String, Object)> {
        if !self.optimizer {
            return Vec::new();
        }
        let mut kept = Vec::new();
        if self.state["optimizer"].is_object() {
            let one = |experts: bool| {
                let groups = self.groups(held.iter().filter(|h| h.expert == experts)).into_iter();
                let groups = groups.map(|(_, fields)| Object::Plain(Value::Object(fields))).collect();
                let inner = Object::Dict(vec![("param_groups".to_owned(), Object::List(groups))]);
                let mut entries = vec![("optimizer".to_owned(), inner)];
                entries.extend(self.grad_scaler());
                entries.push(("param_state_sharding_type".to_owned(), Object::Plain(json!(SPACE))));
                Object::Dict(entries)
            };
            let both = || [false, true].map(|experts| (Key::Int(usize::from(experts)), one(experts)));
            let chained = held.iter().any(|h| h.expert);
            let object = if chained { Object::Keyed(both().into()) } else { one(false) };
            kept.push(("optimizer".to_owned(), object));
        }
        let schedule = &self.state["opt_param_scheduler"];
        if !schedule.is_null() {
            kept.push(("opt_param_scheduler".to_owned(), Object::Plain(schedule.clone())));
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::mcore::{FileGrid, Spelling};
    use ms_core::GridSizes;
    use ms_spec::{ModelConfig, Stages};

    #[test]
    fn files_of_other_stages_do_not_say_that_they_are_of_both_ends() {
        let merged = |dual_pipe: bool, method: &str| {
            let run = Run { args: Map::from_iter([(SCHEDULE.into(), json!(method))]), ..Run::default() };
            let stages = Stages { pp: 2, dual_pipe, ..Stages::default() };
            let config = ModelConfig { layers: 4, ..ModelConfig::tiny() };
            let file_grid =
                FileGrid::new(&GridSizes { pp: 2, ..GridSizes::default() }, stages, false).unwrap();
            run.merged(file_grid.args(&config, Spelling::default()).unwrap()).get(SCHEDULE).cloned()
        };
        assert_eq!(merged(false, "dualpipev"), None);
        assert_eq!(merged(true, "dualpipev"), Some(json!("dualpipev")));
        assert_eq!(merged(false, "zero-bubble"), Some(json!("zero-bubble")));
    }

    #[test]
    fn files_say_that_they_have_no_random_state() {
        for optimizer in [true, false] {
            let args = Map::from_iter([("no_save_rng".into(), json!(false))]);
            let merged = Run { args, optimizer, ..Run::default() }.merged(Map::new());
            assert_eq!(
                (&merged["no_save_rng"], &merged["no_save_optim"]),
                (&json!(true), &json!(!optimizer))
            );
        }
    }
}
