//! Plans for optimizer state in rank files: a file of flat buffers next to the weights, or tensors in the file of the
//! weights.

use std::path::Path;

use ms_core::DType;
use ms_spec::Slot;
use serde_json::{Map, Value, json};

use super::{Container, FilePlan, Run, Target};
use crate::layout::optimizer::buffer_order;
use crate::name::{Name, State};
use crate::optim::{BUFFERS, FILE, OptimizerParam, bucket_size, flat_places};
use crate::torch::{Key, Object};

/// A flat buffer: its elements, and where targets of the file lie in it. The gaps are zero.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub(super) numel: usize,
    /// First element, and number of the target.
    pub(super) parts: Vec<(usize, usize)>,
}

/// Number of the chunk of targets that are not part of a model dictionary.
pub(super) const BESIDE: usize = usize::MAX;

/// A parameter of a rank: the target that holds its weight, and how its optimizer sees it.
pub(super) struct Parameter<'a> {
    pub(super) target: &'a Target,
    pub(super) slot: Slot,
    pub(super) held: OptimizerParam,
}

/// The target of a state of a parameter.
fn state_target(parameter: &Parameter<'_>, state: State) -> Target {
    let name = Name::state(state, &parameter.slot);
    Target {
        name: name.to_string(),
        parameter: name,
        dtype: DType::F32,
        chunk: BESIDE,
        ..parameter.target.clone()
    }
}

impl Run {
    /// Whether state is written as Megatron's distributed optimizer has it. Unless the run says otherwise.
    pub(super) fn distributed(&self) -> bool {
        self.args.get("use_distributed_optimizer").and_then(Value::as_bool).unwrap_or(true)
    }

    /// The file of a distributed optimizer, next to the file of the weights at `path`.
    pub(super) fn flat_file(&self, path: &Path, parameters: &[Parameter<'_>], stage: usize) -> FilePlan {
        let mut tensors = Vec::new();
        let mut buffers: Vec<Buffer> = Vec::new();
        let all = parameters.iter().map(|p| p.held.numel).sum();
        let mut one = |mine: &[&Parameter<'_>]| {
            let mut object = vec![(Key::Text("buckets_coalesced"), Object::Plain(json!(true)))];
            let order = buffer_order(mine.iter().map(|p| &p.held));
            for (number, (chunk, dtype)) in order.into_iter().enumerate() {
                let inside: Vec<&&Parameter<'_>> =
                    mine.iter().filter(|p| (p.held.chunk, p.held.dtype) == (chunk, dtype)).collect();
                let list: Vec<&OptimizerParam> = inside.iter().map(|p| &p.held).collect();
                let (places, numel) = flat_places(&list, bucket_size(&self.args, (stage, chunk), all));
                let mut entries = Vec::new();
                for (state, name) in State::ADAM.into_iter().zip(BUFFERS) {
                    let mut parts: Vec<(usize, usize)> = Vec::new();
                    // Bytes come in the order of the buffer: the last parameter first.
                    for (place, parameter) in places.iter().zip(&inside).rev() {
                        parts.push((*place, tensors.len()));
                        tensors.push(state_target(parameter, state));
                    }
                    let tensor =
                        Object::Tensor { storage: buffers.len(), dtype: DType::F32, shape: vec![numel] };
                    entries.push((name.to_owned(), tensor));
                    buffers.push(Buffer { numel, parts });
                }
                entries.push(("numel_unpadded".to_owned(), Object::Plain(json!(numel))));
                let typed = Object::Keyed(vec![(Key::Types(dtype, DType::F32), Object::Dict(entries))]);
                object.push((Key::Int(number), typed));
            }
            Object::Keyed(object)
        };
        let object = match chain(parameters) {
            [all, None] => one(&all.unwrap_or_default()),
            chained => Object::List(
                chained
                    .iter()
                    .map(|mine| mine.as_ref().map_or(Object::Plain(Value::Null), |mine| one(mine)))
                    .collect(),
            ),
        };
        FilePlan {
            path: path.with_file_name(FILE),
            tensors,
            container: Container::Buffers { object, buffers },
        }
    }

    /// What the file of the weights says of the optimizer, and the tensors that go into it, numbered from `first` on.
    pub(super) fn beside_weights(
        &self,
        parameters: &[Parameter<'_>],
        first: usize,
    ) -> (Vec<(String, Object)>, Vec<Target>) {
        let mut tensors = Vec::new();
        let mut one = |mine: &[&Parameter<'_>]| -> Object {
            let groups = self.groups(mine.iter().map(|p| &p.held));
            if self.distributed() {
                let groups =
                    groups.into_iter().map(|(_, fields)| Object::Plain(Value::Object(fields))).collect();
                let inner = Object::Dict(vec![("param_groups".to_owned(), Object::List(groups))]);
                let inner = ("optimizer".to_owned(), inner);
                return Object::Dict([inner].into_iter().chain(self.grad_scaler()).collect());
            }
            let mut tensor = |parameter: &Parameter<'_>, state: State| {
                tensors.push(state_target(parameter, state));
                let shape = parameter.target.shape.clone();
                Object::Tensor { storage: first + tensors.len() - 1, dtype: DType::F32, shape }
            };
            let (mut states, mut masters, mut described) = (Vec::new(), Vec::new(), Vec::new());
            let mut half = false;
            for (key, mut fields) in groups {
                let of_group = mine.iter().filter(|p| self.group_of(&p.held) == key);
                let from = states.len();
                let mut wide = Vec::new();
                for parameter in of_group {
                    let moments = [State::ExpAvg, State::ExpAvgSq];
                    let moments = moments.map(|state| (state.word().to_owned(), tensor(parameter, state)));
                    states.push((Key::Int(states.len()), Object::Dict(moments.to_vec())));
                    if parameter.held.dtype != DType::F32 {
                        half = true;
                        wide.push(tensor(parameter, State::Master));
                    }
                }
                fields.insert("params".to_owned(), json!((from..states.len()).collect::<Vec<_>>()));
                described.push(Object::Plain(Value::Object(fields)));
                masters.push(Object::List(wide));
            }
            let inner = Object::Dict(vec![
                ("state".to_owned(), Object::Keyed(states)),
                ("param_groups".to_owned(), Object::List(described)),
            ]);
            // An optimizer of float32 weights is not wrapped.
            if half {
                let mut wrapped = vec![("optimizer".to_owned(), inner)];
                wrapped.extend(self.grad_scaler());
                wrapped.push(("fp32_from_fp16_params".to_owned(), Object::List(masters)));
                Object::Dict(wrapped)
            } else {
                inner
            }
        };
        let object = match chain(parameters) {
            [all, None] => one(&all.unwrap_or_default()),
            chained => Object::List(chained.iter().flatten().map(|mine| one(mine)).collect()),
        };
        let mut end = vec![("optimizer".to_owned(), object)];
        if !self.state["opt_param_scheduler"].is_null() {
            let schedule = Object::Plain(self.state["opt_param_scheduler"].clone());
            end.push(("opt_param_scheduler".to_owned(), schedule));
        }
        (end, tensors)
    }

    /// The groups that the run's state describes.
    fn known_groups(&self) -> &[Value] {
        self.state["optimizer"]["optimizer"]["param_groups"].as_array().map_or(&[], Vec::as_slice)
    }

    /// What decides the group of a parameter: its weight decay, and whether it has a learning rate of its own.
    fn group_of(&self, held: &OptimizerParam) -> (bool, bool) {
        (held.decay, held.words && self.known_groups().iter().any(is_decoupled))
    }

    /// Parameter groups in the order in which parameters ask for them, with the run's own numbers.
    pub(super) fn groups<'a>(
        &self,
        mine: impl Iterator<Item = &'a OptimizerParam>,
    ) -> Vec<((bool, bool), Map<String, Value>)> {
        let known = self.known_groups();
        let mut groups: Vec<((bool, bool), Map<String, Value>)> = Vec::new();
        for held in mine {
            let key @ (decay, decoupled) = self.group_of(held);
            if groups.iter().any(|g| g.0 == key) {
                continue;
            }
            let key_of = |g: &Value| (g["wd_mult"].as_f64().unwrap_or(1.0) != 0.0, is_decoupled(g));
            let found = known.iter().find(|g| key_of(g) == key).or_else(|| known.first());
            let mut fields = found.and_then(Value::as_object).cloned().unwrap_or_default();
            fields.remove("params");
            fields.insert("wd_mult".to_owned(), json!(if decay { 1.0 } else { 0.0 }));
            fields.entry("lr_mult").or_insert(json!(1.0));
            fields.insert("is_expert_parallel".to_owned(), json!(held.expert));
            fields.insert("is_decoupled_lr".to_owned(), json!(decoupled));
            groups.push((key, fields));
        }
        groups
    }
}

fn is_decoupled(group: &Value) -> bool {
    group["is_decoupled_lr"] == Value::Bool(true)
}

/// The parameters of each optimizer: one for all, or one for dense parameters and one for experts that other ranks do
/// not have.
fn chain<'a, 'b>(parameters: &'a [Parameter<'b>]) -> [Option<Vec<&'a Parameter<'b>>>; 2] {
    let of = |expert: bool| parameters.iter().filter(|p| p.held.expert == expert).collect::<Vec<_>>();
    if parameters.iter().any(|p| p.held.expert) {
        [Some(of(false)), Some(of(true))]
    } else {
        [Some(of(false)), None]
    }
}
