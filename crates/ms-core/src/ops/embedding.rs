//! Token embedding.

use super::layout::op;
use super::only;
use crate::shard_state::{self, InputStates, OutputState, ShardState};
use crate::{BackwardCx, Digit, Graph, Op, Result, Tensor, Var, VocabShare};

struct Embedding {
    ids: Tensor,
    share: VocabShare,
}

fn of_rows(_: Digit, inputs: InputStates<'_>) -> OutputState {
    match inputs {
        // Rows of other ranks are zero.
        [Some(ShardState::Sharded)] => Ok(Some(ShardState::Partial)),
        // Each rank has the embeddings of its own tokens.
        [Some(ShardState::Replicated)] => Ok(Some(ShardState::Tokens)),
        _ => shard_state::nonlinear(inputs),
    }
}
op!(Embedding, "embedding", (of_rows), |op, cx, dy| {
    let Embedding { ids, share } = op;
    cx.accumulate(0, move |device, dtable| device.embedding_backward(dtable, &dy, &ids, share))?;
    Ok(vec![None])
});

/// Rows `ids[T]` (i32) of `table[V,H]`: `[T,H]`. Saves `ids`.
///
/// # Errors
/// If an id is outside the table.
pub fn embedding(g: &mut Graph, table: &Var, ids: &Tensor) -> Result<Var> {
    let share = VocabShare::all(table.value().as_matrix().0);
    embedding_share(g, table, ids, share)
}

/// [`embedding`] in a table that holds a `share` of the vocabulary: rows of ids that other ranks hold are zero.
///
/// # Errors
/// If an id is outside the vocabulary.
pub fn embedding_share(g: &mut Graph, table: &Var, ids: &Tensor, share: VocabShare) -> Result<Var> {
    let y = g.device().embedding(table.value(), ids, share)?;
    Ok(g.apply(y, &[table], || Box::new(Embedding { ids: ids.clone(), share })))
}
