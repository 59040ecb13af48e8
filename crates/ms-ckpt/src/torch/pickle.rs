//! The allow-list of names in pickles of checkpoints.

pub(crate) use ms_files::pickle::{Id, Obj, Pickle};

use ms_files::pickle::Allowed;

/// Functions that make tensors and plain data. Classes that upstream's programs keep in `args`, and those that describe a
/// distributed checkpoint, are enumerations and plain objects, kept as opaque data.
const ALLOWED: Allowed = Allowed {
    calls: &[
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state",
        // A tensor with attributes of Python's, such as Megatron's master weights.
        "torch._tensor._rebuild_from_type_v2",
        // A tensor of an Ascend processor, and how it lay there.
        "torch_npu.utils.storage._rebuild_npu_tensor",
        "torch_npu.npu._format.Format",
        "torch.Size",
        "torch.device",
        "torch.serialization._get_layout",
        "collections.OrderedDict",
        "collections.defaultdict",
        "argparse.Namespace",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
        "numpy.ndarray",
        "numpy.dtype",
        "_codecs.encode",
        // The folder that a distributed checkpoint was saved to.
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        // Arguments that are sets, such as the empty slots of a pipeline.
        "builtins.set",
        "__builtin__.set",
        "builtins.frozenset",
        "__builtin__.frozenset",
    ],
    prefixes: &[
        "megatron.core.",
        "megatron.training.",
        "mindspeed.",
        "mindspeed_llm.",
        "torch.distributed.checkpoint.metadata.",
        "torch.distributed.checkpoint.filesystem.",
        "torch.distributed.checkpoint.planner.",
        "torch.distributed._shard.sharded_tensor.metadata.",
    ],
    protocols: (2, 5),
};

/// The pickle at the start of `bytes`.
///
/// # Errors
/// The byte offset and what is wrong there.
pub(crate) fn read(bytes: &[u8]) -> Result<Pickle, (usize, String)> {
    ms_files::pickle::read(bytes, &ALLOWED)
}
