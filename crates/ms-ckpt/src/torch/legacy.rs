//! `torch.save` before the zip format: five consecutive pickles, then the storages.
//!
//! Magic number, protocol number, information about the writing machine, the object, the list of storage keys; then, for each
//! key in that order, the number of elements (i64) and the elements, little-endian.

use std::collections::BTreeMap;
use std::ops::Range;

use ms_core::DType;

use super::pickle::{Obj, Pickle, read as read_pickle};
use super::read::{Node, TensorRef, unfold};

const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const PROTOCOL: i64 = 1001;

type Fail = (usize, String);

/// Reads a whole file: the object, and the byte range of each storage.
pub(super) fn read(bytes: &[u8]) -> Result<(Node, BTreeMap<String, Range<usize>>), Fail> {
    let mut at = 0;
    let mut next = || -> Result<Pickle, Fail> {
        let pickle = read_pickle(&bytes[at..]).map_err(|(offset, what)| (at + offset, what))?;
        at += pickle.length;
        Ok(pickle)
    };
    let magic = next()
        .map_err(|(offset, what)| (offset, format!("neither a zip archive nor an old .pt file: {what}")))?;
    match &magic.objects[magic.root] {
        Obj::Big(number) if number.starts_with(&MAGIC) => {}
        _ => return Err((0, "no .pt file: the magic number is another".to_owned())),
    }
    let protocol = next()?;
    if protocol.objects[protocol.root] != Obj::Int(PROTOCOL) {
        return Err((0, format!("old .pt file of another protocol than {PROTOCOL}")));
    }
    next()?; // facts about the writing machine; byte order has always been little
    let object = next()?;
    let root = unfold(&object).map_err(|what| (0, what))?;
    let keys = next()?;
    let Obj::List(list) = &keys.objects[keys.root] else {
        return Err((at, "the storage keys are not a list".to_owned()));
    };
    let mut sizes = BTreeMap::new();
    element_sizes(&root, &mut sizes);
    let mut storages = BTreeMap::new();
    for &key in list {
        let Obj::Str(key) = &keys.objects[key] else {
            return Err((at, "a storage key is not a string".to_owned()));
        };
        let Some((count, _)) = bytes[at..].split_first_chunk::<8>() else {
            return Err((at, format!("storage {key}: the file ends before it")));
        };
        let count = usize::try_from(i64::from_le_bytes(*count)).ok();
        // A storage that no tensor uses has an unknown element size; nothing after it could be found.
        let size =
            *sizes.get(key.as_str()).ok_or_else(|| (at, format!("storage {key} belongs to no tensor")))?;
        let start = at + 8;
        let end = count
            .and_then(|n| n.checked_mul(size))
            .and_then(|n| n.checked_add(start))
            .filter(|&e| e <= bytes.len());
        let end = end.ok_or_else(|| (at, format!("storage {key}: its elements are outside the file")))?;
        storages.insert(key.clone(), start..end);
        at = end;
    }
    Ok((root, storages))
}

fn element_sizes<'a>(node: &'a Node, sizes: &mut BTreeMap<&'a str, usize>) {
    match node {
        Node::Tensor(TensorRef { storage, dtype, dtype_name, .. }) => {
            if let Some(size) = dtype.map(DType::size).or_else(|| other_size(dtype_name)) {
                sizes.insert(storage, size);
            }
        }
        Node::Dict(entries) => entries.iter().for_each(|(_, n)| element_sizes(n, sizes)),
        Node::List(items) => items.iter().for_each(|n| element_sizes(n, sizes)),
        Node::Plain(_) => {}
    }
}

/// Bytes of an element of types that are skipped over, not read.
fn other_size(name: &str) -> Option<usize> {
    Some(match name.trim_start_matches("torch.") {
        "uint16" => 2,
        "uint32" => 4,
        "uint64" | "complex64" => 8,
        "complex128" => 16,
        other if other.starts_with("float8") => 1,
        _ => return None,
    })
}
