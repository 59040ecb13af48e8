//! Optimizer state of a training checkpoint.
//!
//! In a checkpoint of any form, each state tensor of a parameter is a global tensor of its own ([`State`](crate::State)) with
//! the parameter's shape, so it is sharded, copied and read like a weight. Megatron's rank files hold the states as flat
//! buffers ([`flat_places`]) or tensor by tensor.

use ms_core::DType;
use ms_spec::{ParamSpec, Slot};
use serde_json::{Map, Value, json};

use crate::cast::{cast, possible};
use crate::torch::{Archive, Node, TensorRef, TorchFile};
use crate::{Error, Result};

/// What the flat buffers of a distributed optimizer call what AdamW keeps.
pub(crate) const BUFFERS: [&str; 3] = ["param", "exp_avg", "exp_avg_sq"];

/// Name of a distributed optimizer's file, next to the weights of a rank.
pub(crate) const FILE: &str = "distrib_optim.pt";

/// A Megatron file's run state other than tensors and `args`: iteration, schedule and, if it has an optimizer, parameter
/// groups and the loss scale.
///
/// # Errors
/// A scale that is not one number.
pub(crate) fn run_state(torch: &TorchFile) -> Result<Value> {
    let (root, mut state) = (torch.root(), Map::new());
    for key in ["iteration", "num_floating_point_operations_so_far", "opt_param_scheduler"] {
        if let Some(node) = root.get(key) {
            state.insert(key.to_owned(), node.to_json());
        }
    }
    if let Some(node) = root.get("optimizer") {
        let chain = chained(node);
        let groups = chain.iter().copied().filter_map(groups_of).flatten();
        let groups: Vec<Value> = groups.map(Node::to_json).collect();
        let mut optimizer = json!({"optimizer": {"param_groups": groups}});
        // The loss is multiplied by the first one's.
        if let Some(scaler) = chain.iter().find_map(|one| one.get(SCALER)) {
            optimizer[SCALER] = grad_scaler(torch.archive(), torch.file().bytes(), scaler)?;
        }
        state.insert("optimizer".to_owned(), optimizer);
    }
    Ok(Value::Object(state))
}

/// Where an optimizer keeps the scale of the loss.
pub(crate) const SCALER: &str = "grad_scaler";

/// What is kept of the loss's scale, in which tensors are single numbers; `bytes` are those that places in the archive count
/// from.
///
/// # Errors
/// A tensor of another shape, or one that is not numeric.
pub(crate) fn grad_scaler(archive: &Archive, bytes: &[u8], node: &Node) -> Result<Value> {
    let Node::Dict(entries) = node else { return Ok(node.to_json()) };
    let field = |(key, node): &(String, Node)| match node {
        Node::Tensor(tensor) => {
            Ok((key.clone(), json!(number(archive, bytes, &format!("optimizer/{SCALER}/{key}"), tensor)?)))
        }
        plain => Ok((key.clone(), plain.to_json())),
    };
    entries.iter().map(field).collect::<Result<Map<String, Value>>>().map(Value::Object)
}

/// The number that a tensor of one element holds.
fn number(archive: &Archive, bytes: &[u8], name: &str, tensor: &TensorRef) -> Result<f64> {
    let view = archive.view(name, tensor)?;
    if view.shape.iter().product::<usize>() != 1 || !possible(view.dtype, DType::F64) {
        let what = format!("tensor {name}: expected one number, got {} {:?}", view.dtype, view.shape);
        return Err(Error::malformed(archive.path(), what));
    }
    let mut wide = Vec::new();
    cast(&bytes[view.start..view.start + view.dtype.size()], view.dtype, DType::F64, &mut wide);
    Ok(f64::from_le_bytes(wide.try_into().expect("eight bytes")))
}

/// The optimizers of a file: of a chain, which distributed checkpoints number, or the only one.
fn chained(node: &Node) -> Vec<&Node> {
    match node {
        Node::Dict(entries) if entries.iter().all(|(key, _)| key.parse::<usize>().is_ok()) => {
            entries.iter().map(|(_, one)| one).collect()
        }
        other => optimizers(other),
    }
}

/// The optimizers of a chain, or the only one.
pub(crate) fn optimizers(node: &Node) -> Vec<&Node> {
    match node {
        Node::List(items) => items.iter().collect(),
        one => vec![one],
    }
}

/// The dictionary of parameter groups and states: Megatron wraps it once unless weights are float32.
pub(crate) fn inner(optimizer: &Node) -> &Node {
    optimizer.get("optimizer").unwrap_or(optimizer)
}

/// The parameter groups of one optimizer.
fn groups_of(optimizer: &Node) -> Option<Vec<&Node>> {
    match inner(optimizer).get("param_groups")? {
        Node::List(groups) => Some(groups.iter().collect()),
        _ => None,
    }
}

/// A parameter of a rank, as its optimizer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OptimizerParam {
    /// Chunk of the model on this rank.
    pub(crate) chunk: usize,
    /// Element type of the weight.
    pub(crate) dtype: DType,
    /// Elements on this rank.
    pub(crate) numel: usize,
    /// It has weight decay: neither a bias nor a vector.
    pub(crate) decay: bool,
    /// It is a vocabulary matrix, which can have its own learning rate.
    pub(crate) words: bool,
    /// It belongs to experts that other ranks do not have.
    pub(crate) expert: bool,
    /// It is shared with another stage, and has a bucket of its own.
    pub(crate) shared: bool,
}

impl OptimizerParam {
    /// A parameter of the whole model, without a chunk and a size; `expert`: other ranks do not have it.
    pub(crate) fn of_model(spec: &ParamSpec, dtype: DType, expert: bool) -> Self {
        let (decay, words) = (Self::decays(&spec.slot, &spec.shape), spec.slot.is_word_table());
        Self { chunk: 0, dtype, numel: 0, decay, words, expert, shared: false }
    }

    /// Whether a parameter of this local shape decays.
    ///
    /// # Source
    /// Megatron-LM `core_r0.8.0`, `megatron/core/optimizer/__init__.py`, `_get_param_groups`.
    pub(crate) fn decays(what: &Slot, shape: &[usize]) -> bool {
        !(what.bias && what.role.is_module()) && shape.len() > 1
    }
}

/// Bucket size for a rank that holds `held` elements in all; `None`: one bucket for everything.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/distributed/distributed_data_parallel.py`: buckets only with overlapped
/// reduction, on the first stage, for the first chunk; their number: `core_v0.12.1`, `megatron/training/training.py`,
/// `get_model`.
pub(crate) fn bucket_size(
    args: &Map<String, Value>,
    (stage, chunk): (usize, usize),
    held: usize,
) -> Option<usize> {
    let overlapped = args.get("overlap_grad_reduce").and_then(Value::as_bool).unwrap_or(false);
    let size = |name: &str| args.get(name).and_then(Value::as_u64).map(|n| n as usize);
    let dp = size("data_parallel_size").unwrap_or(1);
    let by_number = size("ddp_num_buckets").and_then(|number| held.checked_div(number));
    let most = size("ddp_bucket_size").or(by_number).unwrap_or(40_000_000.max(dp.saturating_mul(1_000_000)));
    (overlapped && stage == 0 && chunk == 0).then_some(most)
}

/// Every parameter starts at a multiple of this many elements.
const PARAM_ALIGNMENT: usize = 64;

/// Where parameters, in registration order, lie in the flat buffer of a file, and its length: from the last to the
/// first, each at a multiple of 64 elements of its bucket. The gaps between parameters are in the file, the padding at
/// the end of a bucket is not, so the data-parallel size leaves no trace.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/distributed/param_and_grad_buffer.py`, and `get_parameter_state_dp_zero` of
/// `megatron/core/optimizer/distrib_optimizer.py`.
pub(crate) fn flat_places(params: &[&OptimizerParam], bucket_size: Option<usize>) -> (Vec<usize>, usize) {
    let mut places = vec![0; params.len()];
    // Elements of the buckets that are closed, and of the open one.
    let (mut closed, mut at) = (0usize, 0usize);
    for (place, param) in places.iter_mut().zip(params).rev() {
        let mut start = at.next_multiple_of(PARAM_ALIGNMENT);
        if param.shared && start > 0 {
            closed += start;
            start = 0;
        }
        *place = closed + start;
        at = start + param.numel;
        if param.shared || bucket_size.is_some_and(|size| at >= size) {
            closed += at;
            at = 0;
        }
    }
    (places, closed + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(numel: usize, shared: bool) -> OptimizerParam {
        OptimizerParam {
            chunk: 0,
            dtype: DType::Bf16,
            numel,
            decay: true,
            words: false,
            expert: false,
            shared,
        }
    }

    #[test]
    fn parameters_lie_from_the_last_to_the_first_without_the_padding_of_buckets() {
        let params = [held(100, false), held(70, false), held(10, false)];
        let list: Vec<&OptimizerParam> = params.iter().collect();
        assert_eq!(flat_places(&list, None), (vec![192, 64, 0], 292));
        // The bucket of the last two closes at 134 elements; the first begins a new one right after.
        assert_eq!(flat_places(&list, Some(120)), (vec![134, 64, 0], 234));
        let tied = [held(100, true), held(70, false), held(10, false)];
        let list: Vec<&OptimizerParam> = tied.iter().collect();
        assert_eq!(flat_places(&list, None), (vec![192, 64, 0], 292));
    }

    #[test]
    fn buckets_are_only_met_where_megatron_makes_several() {
        let mut args = Map::new();
        let size = |args: &Map<String, Value>, stage, chunk| bucket_size(args, (stage, chunk), 1000);
        assert_eq!(size(&args, 0, 0), None);
        args.insert("overlap_grad_reduce".into(), json!(true));
        args.insert("data_parallel_size".into(), json!(64));
        assert_eq!(size(&args, 0, 0), Some(64_000_000));
        assert_eq!((size(&args, 1, 0), size(&args, 0, 1)), (None, None));
        args.insert("ddp_num_buckets".into(), json!(3));
        assert_eq!((size(&args, 0, 0), size(&args, 1, 0)), (Some(333), None));
        args.insert("ddp_bucket_size".into(), json!(7));
        assert_eq!(size(&args, 0, 0), Some(7));
    }
}
