//! Folders whose configuration ties the output layer to the embedding, but whose files hold both or the wrong one.

use std::collections::BTreeMap;
use std::path::Path;

use ms_core::DType;
use ms_spec::{ModelConfig, params};

use super::names::Names;
use crate::stored::Stored;
use crate::strided::gather;
use crate::{Error, Mapped, Result, cast};

/// Elements that are compared at a time.
const CHUNK: usize = 1 << 16;

/// Ties the output layer to the embedding only if the files do not hold a different one, and uses it as the embedding if that
/// is missing.
///
/// # Errors
/// A view of more elements than its file has bytes.
///
/// # Source
/// transformers 5.24, `PreTrainedModel.tie_weights` with `missing_keys`; 4.51 ties whatever the files hold.
pub(super) fn settle(
    path: &Path,
    config: &mut ModelConfig,
    files: &[Mapped],
    stored: &[Stored],
    by_name: &mut BTreeMap<String, usize>,
) -> Result<()> {
    if !config.tied {
        return Ok(());
    }
    let head = config.family.pattern("head").and_then(|name| Some((name, *by_name.get(name)?)));
    let Some((name, head)) = head else { return Ok(()) };
    let embedding = Names::new(config).of(&params(config).swap_remove(0))?.swap_remove(0).name;
    match by_name.get(&embedding) {
        None => {
            by_name.insert(embedding, head);
        }
        Some(&words) if !equal(files, &stored[words], &stored[head])? => {
            tracing::warn!(
                "{}: config.json says tie_word_embeddings, but {name} has other values than {embedding}; it is taken as an output layer of its own, as transformers 5 does (4 ties, and leaves it out)\nhint: say \"tie_word_embeddings\": false",
                path.display()
            );
            config.tied = false;
        }
        Some(_) => {}
    }
    Ok(())
}

/// Whether two tensors have the same shape and values.
fn equal(files: &[Mapped], a: &Stored, b: &Stored) -> Result<bool> {
    let place = |s: &Stored| (s.file, s.start, s.dtype, s.shape.clone(), s.strides.clone());
    if a.shape != b.shape {
        return Ok(false);
    }
    if place(a) == place(b) {
        return Ok(true);
    }
    let n: usize = a.shape.iter().product();
    for view in [a, b].into_iter().filter(|s| s.strides.is_some()) {
        let (name, file) = (&view.name, &files[view.file]);
        let bytes = file.bytes().len();
        if n > bytes {
            let what = format!("tensor {name}: {n} elements of a file of {bytes} bytes");
            return Err(Error::malformed(file.path(), what));
        }
    }
    let [mut left, mut right] = [Vec::new(), Vec::new()];
    Ok((0..n).step_by(CHUNK).all(|first| {
        let end = (first + CHUNK).min(n);
        read(files, a, first..end, &mut left);
        read(files, b, first..end, &mut right);
        if a.dtype == b.dtype && left == right {
            return true;
        }
        // Of several types, and where zeros have signs, values count.
        if ![a, b].iter().all(|s| cast::possible(s.dtype, DType::F64)) {
            return false;
        }
        let [left, right] = [(&left, a), (&right, b)].map(|(bytes, s)| {
            let mut wide = Vec::new();
            cast::cast(bytes, s.dtype, DType::F64, &mut wide);
            wide
        });
        let numbers = |bytes: &[u8]| -> Vec<f64> {
            bytes.as_chunks::<8>().0.iter().map(|&b| f64::from_le_bytes(b)).collect()
        };
        numbers(&left) == numbers(&right)
    }))
}

/// Elements `range` of a tensor, in its type.
fn read(files: &[Mapped], stored: &Stored, range: std::ops::Range<usize>, out: &mut Vec<u8>) {
    out.clear();
    let (bytes, size) = (files[stored.file].bytes(), stored.dtype.size());
    match (&stored.quantised, &stored.strides) {
        (Some(codes), _) => codes.read(files, stored, range.start, range.len(), out),
        (None, Some(strides)) => gather(bytes, stored.start, &stored.shape, strides, size, range, out),
        (None, None) => {
            out.extend_from_slice(&bytes[stored.start + range.start * size..stored.start + range.end * size]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::TensorView;

    #[test]
    fn views_of_more_elements_than_their_file_has_bytes_are_not_compared() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        std::fs::write(&path, [0; 8]).unwrap();
        let files = [Mapped::open(&path).unwrap()];
        let compared = |rows: usize| {
            let view = |start| TensorView {
                dtype: DType::F32,
                shape: vec![rows, 2],
                start,
                strides: Some(vec![0, 0]),
            };
            equal(&files, &Stored::of("words", 0, view(0)), &Stored::of("head", 0, view(4)))
        };
        assert!(compared(4).unwrap());
        let refused = compared(1 << 40).unwrap_err().to_string();
        assert!(refused.contains("tensor words: 2199023255552 elements of a file of 8 bytes"), "{refused}");
    }
}
