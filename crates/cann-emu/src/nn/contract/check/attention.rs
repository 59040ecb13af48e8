//! Masks and layouts of attention.

use super::{Facts, Holds, holds};
use crate::nn::tensor::View;

impl Facts<'_> {
    /// `covered(mode,mask)`, and `whole(mode,mask)` where the mask is not `needed`.
    pub(super) fn covered(&self, mode: &str, mask: &str, needed: bool) -> Holds {
        let Some(mode @ 2..=4) = self.number(mode) else { return Ok(()) };
        let dims = mask.split('|').find_map(|name| self.first(name)).map(|v| &v.dims);
        holds(dims.map_or(!needed, |d| d.ends_with(&[2048, 2048])), || {
            format!("sparseMode {mode} needs a mask of 2048 x 2048, found {dims:?}")
        })
    }

    /// `layout(q,layout,heads)`.
    pub(super) fn layout(&self, query: &str, layout: &str, heads: &str) -> Holds {
        match (self.first(query), self.text(layout), self.number(heads)) {
            (Some(view), Some(layout), Some(heads)) => letters_fit(query, view, layout, heads),
            _ => Ok(()),
        }
    }
}

/// A layout that a page names, as many dimensions as it has letters, and sizes within the pages' limits.
fn letters_fit(query: &str, view: &View, layout: &str, heads: i64) -> Holds {
    // Of two layouts separated by `_` the second is that of the output.
    let own = layout.split('_').next().unwrap_or(layout);
    let (rank, packed) = match own {
        "BSH" | "SBH" => (3, true),
        "BSND" | "BNSD" | "NBSD" => (4, false),
        "TND" | "NTD" => (3, false),
        _ => return Err(format!("layout {layout}: expected BSH, SBH, BSND, BNSD, NBSD, TND or NTD")),
    };
    let dims = &view.dims;
    if dims.len() != rank {
        return Err(format!("layout {layout}: expected {rank} dimensions of {query}, found {dims:?}"));
    }
    let last = dims[rank - 1];
    let (count, width) = match own.find('N') {
        Some(at) => (dims[at], last),
        None => (heads, if heads > 0 { last / heads } else { 0 }),
    };
    if heads <= 0 || heads > 256 || count != heads || (packed && last % heads != 0) {
        return Err(format!(
            "{query} {dims:?} in layout {layout} with {heads} heads: expected 1 to 256 that divide it"
        ));
    }
    if width > 768 {
        return Err(format!("{query} {dims:?}: heads of {width}, expected at most 768"));
    }
    Ok(())
}
