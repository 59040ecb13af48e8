//! What a training checkpoint holds beside the weights, on its way into a plan.

use ms_core::DType;
use ms_spec::ParamSpec;
use serde_json::{Map, Value, json};

use super::{ArgsForm, DTypeOf};
use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::optim::STATES;
use crate::torch::Object;

/// Where a training run stands: what is written beside the weights.
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
}

impl Default for Run {
    /// A converted model: iteration 1, no run behind it.
    fn default() -> Self {
        Self { iteration: 1, args: Map::new(), state: Value::Null, optimizer: false }
    }
}

impl Run {
    /// The run that a checkpoint is of, with its optimizer if that is there for every trained parameter.
    pub fn of(source: &Checkpoint) -> Self {
        Self {
            iteration: source.iteration().max(1),
            args: source.args().clone(),
            state: source.state().clone(),
            optimizer: source.has_optimizer(),
        }
    }

    /// What is written of a parameter: beginnings of names, and types.
    pub(super) fn tensors_of(
        &self,
        spec: &ParamSpec,
        dtype_of: &DTypeOf<'_>,
    ) -> Result<Vec<(String, DType)>> {
        let mut all = vec![(String::new(), dtype_of(&spec.name)?)];
        if self.optimizer && spec.trained {
            all.extend(STATES.map(|s| (format!("optimizer.state.{s}."), DType::F32)));
        }
        Ok(all)
    }

    /// The arguments of a file: the run's, with those of the plan in their place.
    pub(super) fn merged(&self, own: Map<String, Value>) -> Map<String, Value> {
        let mut fields = self.args.clone();
        fields.extend(own);
        for key in ["consumed_train_samples", "consumed_valid_samples"] {
            if let Some(n) = self.args.get(key) {
                fields.insert(key.to_owned(), n.clone());
            }
        }
        fields.insert("iteration".to_owned(), json!(self.iteration));
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

    /// Parameter groups and schedule, for the end of a dictionary without tensors.
    pub(super) fn optimizer_objects(&self) -> Vec<(String, Object)> {
        if !self.optimizer {
            return Vec::new();
        }
        let kept = ["optimizer", "opt_param_scheduler"].into_iter();
        kept.filter(|key| !self.state[*key].is_null())
            .map(|key| (key.to_owned(), Object::Plain(self.state[key].clone())))
            .collect()
    }
}
