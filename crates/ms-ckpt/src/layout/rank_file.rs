//! The contents of one rank's `.pt` file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ms_core::DType;

use crate::nf4::{self, Quantised};
use crate::stored::{Codes, Stored};
use crate::torch::{Node, TensorRef, TensorView, TorchFile};
use crate::{Error, Result};

/// Tensors by chunk and name: their places in the list of stored ones.
pub(super) type Tensors = BTreeMap<(usize, String), usize>;

/// Lists the tensors of one file by chunk and name, and the number of chunks. Levels of nested dictionaries are joined
/// by `/`.
pub(super) fn rank_file(
    torch: &TorchFile,
    path: &Path,
    file: usize,
    stored: &mut Vec<Stored>,
) -> Result<(Tensors, usize)> {
    let Node::Dict(top) = torch.root() else {
        return Err(Error::malformed(path, "the saved object is not a dictionary"));
    };
    let mut tensors = BTreeMap::new();
    let mut chunks = 0;
    let mut left = torch.file().bytes().len();
    for (key, node) in top {
        let Some(number) = key.strip_prefix("model") else { continue };
        let chunk = match number {
            "" => 0,
            n => match n.parse::<usize>() {
                Ok(chunk) if chunk < 1 << 12 => chunk,
                _ => continue,
            },
        };
        let Node::Dict(_) = node else {
            return Err(Error::malformed(path, format!("{key} is not a dictionary")));
        };
        chunks = chunks.max(chunk + 1);
        let mut flat = Vec::new();
        let counted = flatten(node, String::new(), &mut left, &mut flat);
        counted.ok_or_else(|| Error::malformed(path, format!("{key}: names of more bytes than the file")))?;
        let by_name: BTreeMap<&str, &TensorRef> = flat.iter().map(|(n, t)| (n.as_str(), *t)).collect();
        for (name, tensor) in &flat {
            if name.ends_with(EXTRA_STATE) || name.ends_with(".inv_freq") || belongs_to_codes(name, &by_name)
            {
                continue;
            }
            let mut view = torch.view(name, tensor)?;
            let quantised = quantised(torch, path, name, &by_name, &mut view)?;
            // The frozen weight under an adapter.
            let frozen = name.rsplit_once(BASE).filter(|(_, own)| !own.contains('.'));
            let name = frozen.map_or_else(|| name.clone(), |(module, own)| format!("{module}.{own}"));
            if tensors.insert((chunk, name.clone()), stored.len()).is_some() {
                return Err(Error::malformed(path, format!("tensor {name} occurs twice")));
            }
            let name = if number.is_empty() { name } else { format!("{key}/{name}") };
            stored.push(Stored { quantised, ..Stored::of(name, file, view) });
        }
    }
    match chunks {
        0 => Err(Error::malformed(path, "no `model` in the saved dictionary")),
        _ => Ok((tensors, chunks)),
    }
}

/// Extra state of Transformer Engine modules.
pub(super) const EXTRA_STATE: &str = "._extra_state";

/// What peft puts between a module with an adapter and the names of its own tensors.
const BASE: &str = ".base_layer.";

/// Ending of the tensor that describes 4-bit codes.
const STATE: &str = ".quant_state.bitsandbytes__nf4";

/// Whether a tensor is a part of another one's 4-bit form.
fn belongs_to_codes(name: &str, all: &BTreeMap<&str, &TensorRef>) -> bool {
    let endings = [STATE, ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"];
    let stem = endings.iter().find_map(|e| name.strip_suffix(e));
    stem.is_some_and(|stem| all.contains_key(format!("{stem}{STATE}").as_str()))
}

/// The 4-bit form of a tensor, if it has one; `view` then gets the type and shape of what the codes stand for.
fn quantised(
    torch: &TorchFile,
    path: &Path,
    name: &str,
    all: &BTreeMap<&str, &TensorRef>,
    view: &mut TensorView,
) -> Result<Option<Arc<Codes>>> {
    let Some(state) = all.get(format!("{name}{STATE}").as_str()) else { return Ok(None) };
    let wrong = |what: String| Error::malformed(path, format!("tensor {name}: {what}"));
    let part = |ending: &str, dtype: DType| {
        let key = format!("{name}{ending}");
        let tensor = all.get(key.as_str()).ok_or_else(|| wrong(format!("{key} is missing")))?;
        let found = torch.view(&key, tensor)?;
        if found.dtype == dtype && found.strides.is_none() {
            Ok((found.start, found.shape.iter().product::<usize>(), torch.read(&key, tensor)?))
        } else {
            Err(wrong(format!("{key}: expected {dtype}, got {}", found.dtype)))
        }
    };
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("exact chunk"))).collect()
    };
    let (dtype, shape, offset) = nf4::state(&torch.read(name, state)?).map_err(wrong)?;
    let elements: usize = shape.iter().product();
    let blocks = elements.div_ceil(nf4::BLOCK);
    let (absmax, have_blocks, _) = part(".absmax", DType::U8)?;
    let (_, have_nested, nested) = part(".nested_absmax", DType::F32)?;
    let (_, have_table, table) = part(".quant_map", DType::F32)?;
    let (_, have_map, map) = part(".nested_quant_map", DType::F32)?;
    let codes: usize = view.shape.iter().product();
    let have = (codes, have_blocks, have_nested, have_table, have_map);
    let want = (elements.div_ceil(2), blocks, blocks.div_ceil(256), 16, 256);
    if have != want || view.dtype != DType::U8 || view.strides.is_some() {
        return Err(wrong(format!("4-bit parts of sizes {have:?}, expected {want:?}")));
    }
    (view.dtype, view.shape) = (dtype, shape);
    let (nested, table, map) = (floats(&nested), floats(&table), floats(&map));
    Ok(Some(Arc::new(Codes::FourBit(Quantised { absmax, nested, table, map, offset }))))
}

/// The tensors of nested dictionaries. None entries are left by modules with extra state. `None` if the names, which all begin
/// with those of the dictionaries around them, have more than `left` bytes.
fn flatten<'a>(
    node: &'a Node,
    prefix: String,
    left: &mut usize,
    out: &mut Vec<(String, &'a TensorRef)>,
) -> Option<()> {
    match node {
        Node::Tensor(tensor) => out.push((prefix, tensor)),
        Node::Dict(entries) => {
            for (name, node) in entries {
                *left = left.checked_sub(prefix.len() + name.len())?;
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
                flatten(node, name, left, out)?;
            }
        }
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::{Object, archive_of};

    #[test]
    fn two_tensors_of_one_name_are_refused_unless_they_are_of_two_chunks() {
        const PLAIN: &str = "decoder.layers.0.mlp.linear_fc1.weight";
        const FROZEN: &str = "decoder.layers.0.mlp.linear_fc1.base_layer.weight";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model_optim_rng.pt");
        let listed = |chunks: &[(&str, &[&str])]| {
            let tensor = |name: &&str| ((*name).to_owned(), Object::Scalar(1.0));
            let chunk = |(key, names): &(&str, &[&str])| {
                ((*key).to_owned(), Object::Dict(names.iter().map(tensor).collect()))
            };
            let bytes = archive_of("archive", &Object::Dict(chunks.iter().map(chunk).collect()));
            std::fs::write(&path, bytes).unwrap();
            let found = rank_file(&TorchFile::open(&path).unwrap(), &path, 0, &mut Vec::new());
            found.map(|(tensors, _)| tensors.len()).map_err(|e| e.to_string())
        };
        let refused = Err(format!("{}: tensor {PLAIN} occurs twice", path.display()));
        // The frozen weight under an adapter goes by the name of a weight without one; `model` and `model0` are the first chunk.
        assert_eq!(listed(&[("model", &[PLAIN, FROZEN])]), refused);
        assert_eq!(listed(&[("model", &[PLAIN]), ("model0", &[PLAIN])]), refused);
        assert_eq!(listed(&[("model", &[FROZEN])]), Ok(1));
        assert_eq!(listed(&[("model0", &[PLAIN]), ("model1", &[PLAIN])]), Ok(2));
    }

    #[test]
    fn a_long_name_around_many_tensors_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model_optim_rng.pt");
        let listed = |around: usize| {
            let tensors = (0..500).map(|i| (format!("{i}"), Object::Scalar(1.0))).collect();
            let model = Object::Dict(vec![("a".repeat(around), Object::Dict(tensors))]);
            let file = Object::Dict(vec![("model".to_owned(), model)]);
            std::fs::write(&path, archive_of("archive", &file)).unwrap();
            let found = rank_file(&TorchFile::open(&path).unwrap(), &path, 0, &mut Vec::new());
            found.map(|(tensors, _)| tensors.len()).map_err(|e| e.to_string())
        };
        assert_eq!(listed(100), Ok(500));
        let refused = listed(10_000).unwrap_err();
        assert!(refused.contains("model: names of more bytes than the file"), "{refused}");
    }
}
