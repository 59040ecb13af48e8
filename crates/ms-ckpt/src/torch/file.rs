//! An opened `.pt` file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ms_core::DType;

use super::read::{Node, TensorRef, unfold};
use super::{legacy, pickle};
use crate::strided::gather;
use crate::{Error, Mapped, Result};

/// An opened `.pt` file: plain data, and tensors that lie in the mapped bytes.
#[derive(Debug)]
pub struct TorchFile {
    file: Mapped,
    archive: Archive,
}

/// What a file, or a part of one, holds. Places count from its beginning.
#[derive(Debug)]
pub(crate) struct Archive {
    path: PathBuf,
    root: Node,
    storages: BTreeMap<String, Range<usize>>,
}

/// Where a tensor lies in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorView {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// First byte in the file.
    pub start: usize,
    /// Elements between neighbours along each dimension; `None`: row-major without gaps.
    pub strides: Option<Vec<usize>>,
}

impl Archive {
    /// Reads an archive that fills `bytes`, a part of the file at `path`.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::Pickle`] with what is wrong and where.
    pub(crate) fn within(path: &Path, bytes: &[u8]) -> Result<Self> {
        let malformed = |what: String| Error::malformed(path, what);
        let entries = ms_files::zip::entries(bytes).map_err(malformed)?;
        let pickled: Vec<&String> =
            entries.keys().filter(|n| n.split_once('/').is_some_and(|(_, f)| f == "data.pkl")).collect();
        let [name] = pickled[..] else {
            return Err(malformed(format!("{} entries named data.pkl, expected one", pickled.len())));
        };
        let prefix = name.trim_end_matches("data.pkl");
        let entry = |name: &str| entries.get(&format!("{prefix}{name}")).map(|r| &bytes[r.clone()]);
        if entry("version").is_none() {
            return Err(malformed("no version entry: not written by torch.save".to_owned()));
        }
        if entry("byteorder").is_some_and(|order| order != b"little") {
            return Err(malformed("big-endian storages are not supported".to_owned()));
        }
        let pickle = pickle::read(&bytes[entries[name].clone()]).map_err(|(offset, what)| Error::Pickle {
            path: path.to_owned(),
            offset,
            what,
        })?;
        let root = unfold(&pickle).map_err(malformed)?;
        let data = format!("{prefix}data/");
        let storages = entries
            .iter()
            .filter_map(|(n, r)| Some((n.strip_prefix(&data)?.to_owned(), r.clone())))
            .collect();
        Ok(Self { path: path.to_owned(), root, storages })
    }

    /// The saved object.
    pub(crate) fn root(&self) -> &Node {
        &self.root
    }

    /// The file that it is, or is a part of.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Finds a tensor's bytes.
    ///
    /// # Errors
    /// A storage that is missing or too short, or an element type that is not supported.
    pub(crate) fn view(&self, name: &str, tensor: &TensorRef) -> Result<TensorView> {
        let malformed = |what: String| Error::malformed(&self.path, format!("tensor {name}: {what}"));
        let dtype =
            tensor.dtype.ok_or_else(|| malformed(format!("dtype {} is not supported", tensor.dtype_name)))?;
        let storage = self.storages.get(&tensor.storage);
        let storage = storage.ok_or_else(|| malformed(format!("storage {} is missing", tensor.storage)))?;
        let need = tensor.storage_elements.checked_mul(dtype.size());
        if need.is_none_or(|n| n > storage.len()) {
            let (elements, bytes) = (tensor.storage_elements, storage.len());
            return Err(malformed(format!(
                "storage {} of {elements} elements has {bytes} bytes",
                tensor.storage
            )));
        }
        let mut dense = 1;
        let row_major = tensor.shape.iter().zip(&tensor.strides).rev().all(|(&n, &s)| {
            let fits = n <= 1 || s == dense;
            dense *= n;
            fits
        });
        Ok(TensorView {
            dtype,
            shape: tensor.shape.clone(),
            start: storage.start + tensor.offset * dtype.size(),
            strides: (!row_major && !tensor.shape.contains(&0)).then(|| tensor.strides.clone()),
        })
    }
}

impl TorchFile {
    /// Opens and checks a file, in the zip form or the form before it.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::Pickle`] with what is wrong and where.
    pub fn open(path: &Path) -> Result<Self> {
        let file = Mapped::open(path)?;
        let bytes = file.bytes();
        let archive = if bytes.starts_with(b"PK") {
            Archive::within(path, bytes)?
        } else {
            let (root, storages) = legacy::read(bytes).map_err(|(offset, what)| Error::Pickle {
                path: path.to_owned(),
                offset,
                what,
            })?;
            Archive { path: path.to_owned(), root, storages }
        };
        Ok(Self { file, archive })
    }

    /// The saved object.
    pub fn root(&self) -> &Node {
        self.archive.root()
    }

    pub(crate) fn archive(&self) -> &Archive {
        &self.archive
    }

    /// The mapped file.
    pub fn file(&self) -> &Mapped {
        &self.file
    }

    pub(crate) fn into_file(self) -> Mapped {
        self.file
    }

    /// Finds a tensor's bytes.
    ///
    /// # Errors
    /// A storage that is missing or too short, or an element type that is not supported.
    pub fn view(&self, name: &str, tensor: &TensorRef) -> Result<TensorView> {
        self.archive.view(name, tensor)
    }

    /// A tensor's elements in row-major order, little-endian.
    ///
    /// # Errors
    /// As [`TorchFile::view`]; a tensor of more bytes than the file, which should be read in parts instead.
    pub fn read(&self, name: &str, tensor: &TensorRef) -> Result<Vec<u8>> {
        let view = self.view(name, tensor)?;
        let elements: usize = view.shape.iter().product();
        let size = view.dtype.size();
        let bytes = self.file.bytes();
        if elements > bytes.len() / size {
            return Err(Error::malformed(
                self.file.path(),
                format!("tensor {name}: {elements} elements of a file of {} bytes", bytes.len()),
            ));
        }
        Ok(match &view.strides {
            None => bytes[view.start..view.start + elements * size].to_vec(),
            Some(strides) => {
                let mut out = Vec::new();
                gather(bytes, view.start, &view.shape, strides, size, 0..elements, &mut out);
                out
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::{Object, archive_of};

    #[test]
    fn a_view_of_more_elements_than_the_file_has_is_not_read_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pt");
        std::fs::write(&path, archive_of("archive", &Object::Scalar(0.5))).unwrap();
        let file = TorchFile::open(&path).unwrap();
        let Node::Tensor(scalar) = file.root() else { panic!("{:?}", file.root()) };
        let expanded = |n: usize| TensorRef { shape: vec![n], strides: vec![0], ..scalar.clone() };
        assert_eq!(file.read("x", &expanded(3)).unwrap(), 0.5f32.to_le_bytes().repeat(3));
        let refused = file.read("x", &expanded(1 << 29)).unwrap_err().to_string();
        assert!(refused.contains("tensor x: 536870912 elements of a file of"), "{refused}");
    }
}
