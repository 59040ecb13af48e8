//! The allow-list of names in pickles of checkpoints.

pub(crate) use ms_files::pickle::{Id, Obj, Pickle};

use ms_files::pickle::Allowed;

/// Functions that make tensors and plain data. Classes that upstream's programs keep in `args`, and those that describe a
/// distributed checkpoint, are enumerations and plain objects, kept as opaque data. Harmless names are listed one by one:
/// only as a name that is not can a harmful one be told, such as one that Python would run.
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
        "numpy.core.numeric._frombuffer",
        "numpy._core.numeric._frombuffer",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
        "numpy.ndarray",
        "numpy.dtype",
        "_codecs.encode",
        // The folder that a distributed checkpoint was saved to.
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        "pathlib._local.PosixPath",
        "pathlib._local.WindowsPath",
        // Arguments that are sets, such as the empty slots of a pipeline.
        "builtins.set",
        "__builtin__.set",
        "builtins.frozenset",
        "__builtin__.frozenset",
        // Other plain values, under the names of both versions of Python; no bytes at all are a call in protocol 2.
        "builtins.bytes",
        "__builtin__.bytes",
        "builtins.bytearray",
        "__builtin__.bytearray",
        "builtins.complex",
        "__builtin__.complex",
        "builtins.range",
        "__builtin__.xrange",
        "builtins.slice",
        "__builtin__.slice",
        "datetime.date",
        "datetime.datetime",
        "datetime.time",
        "datetime.timedelta",
        "datetime.timezone",
        "signal.Signals",
        "types.SimpleNamespace",
        // `_extra_state` of Transformer Engine's modules.
        "_io.BytesIO",
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
    hint: "\nhint: if you trust the file, load it with torch, delete that object (such as an entry of args) and save it again",
    protocols: (2, 5),
};

/// The pickle at the start of `bytes`.
///
/// # Errors
/// The byte offset and what is wrong there.
pub(crate) fn read(bytes: &[u8]) -> Result<Pickle, (usize, String)> {
    ms_files::pickle::read(bytes, &ALLOWED)
}
