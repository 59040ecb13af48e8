//! PyTorch's `.pt` container: a ZIP archive of stored entries, with a pickle that describes the objects, and raw storages.
//!
//! Reading executes nothing: the pickle is interpreted into plain data with an allow-list of classes and functions; a call of
//! anything else is an error. Sizes and offsets come from the central directory and are checked before use. Files are written
//! so that `torch.load` accepts them, also with `mmap=True`.

mod file;
mod legacy;
pub(crate) mod pickle;
mod read;
mod types;
mod write;

pub(crate) use file::Archive;
pub use file::{TensorView, TorchFile};
pub(crate) use read::MAX_DIMS;
pub use read::{Node, TensorRef};
pub(crate) use types::{torch_dtype, type_name};
pub(crate) use write::{Key, Object, Writer, archive_bytes, archive_of, int as put_int, text as put_text};
