//! Token embedding.

use super::only;
use crate::{BackwardCx, Graph, Op, Result, Tensor, Var};

struct Embedding {
    ids: Tensor,
}

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let (dy, ids) = (only(dys), self.ids);
        cx.accumulate(0, move |device, dtable| device.embedding_backward(dtable, &dy, &ids))?;
        Ok(vec![None])
    }
}

/// Rows `ids[T]` (i32) of `table[V,H]`: `[T,H]`. Keeps `ids`.
///
/// # Errors
/// If an id is outside the table.
pub fn embedding(g: &mut Graph, table: &Var, ids: &Tensor) -> Result<Var> {
    let y = g.device().embedding(table.value(), ids)?;
    Ok(g.apply(y, &[table], || Box::new(Embedding { ids: ids.clone() })))
}
