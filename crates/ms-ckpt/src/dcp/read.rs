//! Reading `.metadata` and the chunks it describes. Classes are recognised by name and treated as records of fields.

use std::collections::BTreeMap;
use std::path::Path;

use ms_core::DType;

use super::METADATA;
use crate::torch::MAX_DIMS;
use crate::torch::pickle::{self, Id, Obj, Pickle};
use crate::torch::{Archive, Node, TensorView, torch_dtype};
use crate::{Error, Mapped, Result};

/// What a folder holds.
#[derive(Debug)]
pub(crate) struct Metadata {
    /// Tensors in the order of their keys.
    pub(crate) tensors: BTreeMap<String, Tensor>,
    /// Where the archives of other objects lie, by key.
    pub(crate) objects: BTreeMap<String, Chunk>,
}

/// A global tensor.
#[derive(Debug)]
pub(crate) struct Tensor {
    /// Element type; `None` for types this toolchain does not compute with.
    pub(crate) dtype: Option<DType>,
    pub(crate) dtype_name: String,
    pub(crate) size: Vec<usize>,
    pub(crate) chunks: Vec<Chunk>,
}

/// A box of a global tensor and the archive that holds it.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) offsets: Vec<usize>,
    pub(crate) sizes: Vec<usize>,
    /// File name in the folder.
    pub(crate) file: String,
    /// First byte of the archive.
    pub(crate) at: usize,
    /// Bytes of the archive.
    pub(crate) length: usize,
}

/// Whether a folder holds a distributed checkpoint.
pub(crate) fn is_folder(path: &Path) -> bool {
    path.join(METADATA).is_file()
}

type Fields<'a> = BTreeMap<&'a str, Id>;

struct Reader<'a> {
    pickle: &'a Pickle,
    path: &'a Path,
}

impl Metadata {
    /// Reads the description of a folder.
    ///
    /// # Errors
    /// A pickle that is damaged or asks for something that is not allowed; keys without a place or with several;
    /// boxes outside their tensor; chunks that share bytes: finding all of those would take longer than the files are large.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(METADATA);
        let file = Mapped::open(&path)?;
        let pickle = pickle::read(file.bytes()).map_err(|(offset, what)| Error::Pickle {
            path: path.clone(),
            offset,
            what,
        })?;
        Reader { pickle: &pickle, path: &path }.metadata()
    }
}

impl<'a> Reader<'a> {
    fn wrong(&self, what: impl Into<String>) -> Error {
        Error::malformed(self.path, what)
    }

    fn object(&self, id: Id) -> &'a Obj {
        &self.pickle.objects[id]
    }

    fn metadata(&self) -> Result<Metadata> {
        let root = self.pickle.root;
        let fields = match self.class(root) {
            Some("Metadata" | "MCoreMetadata") => self.fields(root)?,
            _ => return Err(self.wrong("the saved object is not a Metadata of torch.distributed.checkpoint")),
        };
        let described = self.entries(&fields, "state_dict_metadata")?;
        let places = self.entries(&fields, "storage_data")?;
        let mut placed: BTreeMap<(&str, Vec<usize>), (&str, usize, usize)> = BTreeMap::new();
        for &(index, info) in places {
            let index = self.fields(index)?;
            let key = self.text(self.field(&index, "fqn")?)?;
            let offset = match index.get("offset").map(|&id| self.object(id)) {
                None | Some(Obj::None) => Vec::new(),
                Some(_) => self.sizes(index["offset"])?,
            };
            let info = self.fields(info)?;
            let file = self.text(self.field(&info, "relative_path")?)?;
            if file.contains(['/', '\\']) || file.starts_with('.') {
                return Err(self.wrong(format!("{} is not a file name", short(file))));
            }
            if info.get("transform_descriptors").is_some_and(|&id| !self.is_empty(id)) {
                return Err(
                    self.wrong(format!("{}: chunks that are compressed are not supported", short(key)))
                );
            }
            let (at, length) = (self.field(&info, "offset")?, self.field(&info, "length")?);
            let place = (file, self.size(at)?, self.size(length)?);
            if placed.insert((key, offset), place).is_some() {
                return Err(self.wrong(format!("{}: a chunk has two places", short(key))));
            }
        }
        let (mut tensors, mut objects, mut taken) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        // Every chunk has a place of its own, so that a list which many keys share cannot make this long.
        for &(key, entry) in described {
            let key = self.text(key)?;
            if !matches!(self.class(entry), Some("TensorStorageMetadata")) {
                // An object, or a class of a later version.
                if let Some((file, at, length)) = placed.remove(&(key, Vec::new())) {
                    // Those of modules are not read, and lie in one place in what this toolchain writes.
                    if !key.contains("_extra_state") {
                        taken.push((file, at, length, key));
                    }
                    let (offsets, sizes) = (Vec::new(), Vec::new());
                    let chunk = Chunk { offsets, sizes, file: file.to_owned(), at, length };
                    objects.insert(key.to_owned(), chunk);
                }
                continue;
            }
            let fields = self.fields(entry)?;
            let (dtype, dtype_name) = self.dtype(self.field(&fields, "properties")?)?;
            let size = self.sizes(self.field(&fields, "size")?)?;
            let Obj::List(list) = self.object(self.field(&fields, "chunks")?) else {
                return Err(self.wrong(format!("{}: its chunks are not a list", short(key))));
            };
            let mut chunks = Vec::new();
            for &chunk in list {
                let fields = self.fields(chunk)?;
                let offsets = self.sizes(self.field(&fields, "offsets")?)?;
                let sizes = self.sizes(self.field(&fields, "sizes")?)?;
                let inside = offsets.len() == size.len()
                    && sizes.len() == size.len()
                    && (0..size.len())
                        .all(|d| offsets[d].checked_add(sizes[d]).is_some_and(|e| e <= size[d]));
                if !inside {
                    return Err(self.wrong(format!(
                        "{}: chunk of {sizes:?} at {offsets:?} is outside its tensor of {size:?}",
                        short(key)
                    )));
                }
                let place = placed.remove(&(key, offsets.clone()));
                let (file, at, length) = place.ok_or_else(|| {
                    self.wrong(format!("{}: the chunk at {offsets:?} has no place", short(key)))
                })?;
                taken.push((file, at, length, key));
                chunks.push(Chunk { offsets, sizes, file: file.to_owned(), at, length });
            }
            let tensor = Tensor { dtype, dtype_name, size, chunks };
            if tensors.insert(key.to_owned(), tensor).is_some() {
                return Err(self.wrong(format!("{} occurs twice", short(key))));
            }
        }
        taken.sort_unstable();
        for pair in taken.windows(2) {
            let [(file, at, length, key), (other_file, next, _, other)] = pair else { continue };
            if file == other_file && next - at < *length {
                let (key, other, file) = (short(key), short(other), short(file));
                return Err(self.wrong(format!("chunks of {key} and {other} share bytes of {file}")));
            }
        }
        Ok(Metadata { tensors, objects })
    }

    /// The last word of an object's class.
    fn class(&self, id: Id) -> Option<&'a str> {
        match self.object(id) {
            Obj::Call { function, .. } => function.rsplit('.').next(),
            _ => None,
        }
    }

    /// The fields of an object. A later version may have more than are known here.
    fn fields(&self, id: Id) -> Result<Fields<'a>> {
        let Obj::Call { state: Some(state), function, .. } = self.object(id) else {
            return Err(self.wrong("something is expected to be an object with fields and is none"));
        };
        let Obj::Dict(entries) = self.object(*state) else {
            return Err(self.wrong(format!("the fields of a {} are not a dictionary", short(function))));
        };
        if entries.len() > 64 {
            return Err(self.wrong(format!("a {} of {} fields", short(function), entries.len())));
        }
        entries.iter().map(|&(key, value)| Ok((self.text(key)?, value))).collect()
    }

    fn field(&self, fields: &Fields<'a>, name: &str) -> Result<Id> {
        fields.get(name).copied().ok_or_else(|| self.wrong(format!("an object without the field {name}")))
    }

    fn entries(&self, fields: &Fields<'a>, name: &str) -> Result<&'a [(Id, Id)]> {
        match self.object(self.field(fields, name)?) {
            Obj::Dict(entries) => Ok(entries),
            _ => Err(self.wrong(format!("{name} is not a dictionary"))),
        }
    }

    fn text(&self, id: Id) -> Result<&'a str> {
        match self.object(id) {
            Obj::Str(text) if text.len() <= 1 << 10 => Ok(text),
            Obj::Str(text) => Err(self.wrong(format!("a name of {} bytes", text.len()))),
            _ => Err(self.wrong("a name is not a string")),
        }
    }

    fn size(&self, id: Id) -> Result<usize> {
        match self.object(id) {
            Obj::Int(n) => usize::try_from(*n).map_err(|_| self.wrong(format!("a negative size {n}"))),
            _ => Err(self.wrong("a size is not an integer")),
        }
    }

    fn sizes(&self, id: Id) -> Result<Vec<usize>> {
        let items = match self.object(id) {
            Obj::Tuple(items) | Obj::List(items) => items,
            Obj::Call { function, args, .. } if function == "torch.Size" && args.len() == 1 => {
                match self.object(args[0]) {
                    Obj::Tuple(items) | Obj::List(items) => items,
                    _ => return Err(self.wrong("a torch.Size of something that is not a tuple")),
                }
            }
            _ => return Err(self.wrong("sizes are not a tuple")),
        };
        if items.len() > MAX_DIMS {
            return Err(self.wrong(format!("a tensor of {} dimensions", items.len())));
        }
        items.iter().map(|&i| self.size(i)).collect()
    }

    fn is_empty(&self, id: Id) -> bool {
        match self.object(id) {
            Obj::None => true,
            Obj::List(items) | Obj::Tuple(items) => items.is_empty(),
            _ => false,
        }
    }

    /// The type is the first part of the state that `TensorProperties` gives itself, or a field.
    fn dtype(&self, properties: Id) -> Result<(Option<DType>, String)> {
        let state = match self.object(properties) {
            Obj::Call { state: Some(state), .. } => self.object(*state),
            _ => return Err(self.wrong("a tensor without properties")),
        };
        let id = match state {
            Obj::Tuple(parts) => parts.first().copied(),
            Obj::Dict(_) => self.fields(properties)?.get("dtype").copied(),
            _ => None,
        };
        match id.map(|id| self.object(id)) {
            Some(Obj::Global(name) | Obj::Str(name)) if name.len() < 64 => {
                Ok((torch_dtype(name), name.clone()))
            }
            _ => Err(self.wrong("a tensor's properties name no type")),
        }
    }
}

/// The beginning of a name, for messages.
fn short(name: &str) -> String {
    name.chars().take(120).collect()
}

/// Reads the archive of a chunk. Places in it count from its first byte.
///
/// # Errors
/// A place outside the file, an archive that is damaged.
pub(crate) fn chunk_archive(file: &Mapped, key: &str, chunk: &Chunk) -> Result<Archive> {
    let bytes = file.bytes();
    let end = chunk.at.checked_add(chunk.length).filter(|&e| e <= bytes.len());
    let end = end.ok_or_else(|| {
        let (at, length, have) = (chunk.at, chunk.length, bytes.len());
        let what = format!("{}: bytes {at}+{length} are outside the file of {have}", short(key));
        Error::malformed(file.path(), what)
    })?;
    Archive::within(file.path(), &bytes[chunk.at..end])
}

/// Finds the elements of a chunk: the one tensor of its archive.
///
/// # Errors
/// A place outside the file, an archive that is damaged, a tensor of another type or shape than described.
pub(crate) fn chunk_view(file: &Mapped, key: &str, tensor: &Tensor, chunk: &Chunk) -> Result<TensorView> {
    let wrong = |what: String| Error::malformed(file.path(), format!("{}: {what}", short(key)));
    let archive = chunk_archive(file, key, chunk)?;
    let Node::Tensor(found) = archive.root() else {
        return Err(wrong("its archive holds no tensor".to_owned()));
    };
    let mut view = archive.view(key, found)?;
    if Some(view.dtype) != tensor.dtype || view.shape != chunk.sizes {
        return Err(wrong(format!(
            "expected {} {:?} at {:?}, got {} {:?}",
            short(&tensor.dtype_name),
            chunk.sizes,
            chunk.offsets,
            view.dtype,
            view.shape
        )));
    }
    view.start += chunk.at;
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::super::{WrittenChunk, WrittenTensor, metadata_pickle};
    use super::*;

    #[test]
    fn chunks_that_share_bytes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let read = |second: u64, objects: &[&str]| {
            let tensor = |key: &str, at| {
                let chunk =
                    WrittenChunk { offsets: vec![0], sizes: vec![4], file: "a".into(), at, length: 100 };
                WrittenTensor { key: key.into(), dtype: DType::F32, size: vec![4], chunks: vec![chunk] }
            };
            let objects: Vec<String> = objects.iter().map(|&key| key.to_owned()).collect();
            let pickle = metadata_pickle(&[tensor("x", 0), tensor("y", second)], &objects, ("b", 9));
            std::fs::write(dir.path().join(METADATA), pickle).unwrap();
            Metadata::read(dir.path())
        };
        assert_eq!(read(100, &["u", "v._extra_state", "w._extra_state"]).unwrap().tensors.len(), 2);
        for second in [0, 99] {
            let refused = read(second, &[]).unwrap_err().to_string();
            assert!(refused.contains("chunks of x and y share bytes of a"), "{refused}");
        }
        let refused = read(100, &["u", "v"]).unwrap_err().to_string();
        assert!(refused.contains("chunks of u and v share bytes of b"), "{refused}");
    }
}
