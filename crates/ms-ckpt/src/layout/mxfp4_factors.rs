//! Matching of MXFP4 codes and their factors.

use std::collections::BTreeMap;
use std::sync::Arc;

use ms_core::DType;

use crate::mxfp4::{BLOCK, Factors};
use crate::stored::{Codes, Stored};
use crate::{Error, Mapped, Result};

/// Puts a tensor of numbers in the place of every two of codes and factors in the list of names.
///
/// # Errors
/// [`Error::Malformed`] for codes without factors, or with factors of another shape or type.
pub(crate) fn pair(
    files: &[Mapped],
    stored: &mut Vec<Stored>,
    by_name: &mut BTreeMap<String, usize>,
) -> Result<()> {
    let codes: Vec<(String, usize)> = by_name
        .iter()
        .filter_map(|(name, &i)| Some((name.strip_suffix("_blocks")?.to_owned(), i)))
        .filter(|(_, i)| stored[*i].dtype == DType::U8 && stored[*i].shape.last() == Some(&(BLOCK / 2)))
        .collect();
    for (name, i) in codes {
        let [lead @ .., rows, blocks, _] = &stored[i].shape[..] else { continue };
        let shape = [lead, &[blocks.saturating_mul(BLOCK), *rows]].concat();
        let (file, start) = (stored[i].file, stored[i].start);
        let factors = by_name.remove(&format!("{name}_scales")).map(|s| &stored[s]);
        let in_order = stored[i].strides.is_none();
        let fit = |f: &&Stored| {
            in_order
                && f.dtype == DType::U8
                && f.strides.is_none()
                && f.shape[..] == stored[i].shape[..lead.len() + 2]
        };
        let Some(factors) = factors.filter(fit) else {
            let want = &stored[i].shape[..lead.len() + 2];
            let what = format!("tensor {name}_blocks: expected {name}_scales of bytes {want:?} beside it");
            return Err(Error::malformed(files[file].path(), what));
        };
        let codes = Codes::Factored(Factors { file: factors.file, start: factors.start });
        by_name.remove(&format!("{name}_blocks"));
        by_name.entry(name.clone()).or_insert(stored.len());
        let (dtype, quantised) = (DType::Bf16, Some(Arc::new(codes)));
        stored.push(Stored { name, file, dtype, shape, start, strides: None, quantised });
    }
    Ok(())
}
