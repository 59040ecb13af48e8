//! The loss that trains an indexer next to the attention whose keys it picks.

use super::layout::op;
use super::only;
use crate::shard_state::{self, InputStates, OutputState, ShardState, StateConflict};
use crate::{BackwardCx, Digit, Divergence, Graph, IndexerInputs, Op, Result, Tensor, Var};

/// The target of an indexer.
#[derive(Clone, Copy)]
pub struct IndexerTarget<'a> {
    /// Keys of each query `[T,P]`, rows or -1.
    pub picks: &'a Tensor,
    /// Attention's weights for them, summed over all heads, `[T,P]` unrounded; detached.
    pub attention: &'a Tensor,
    /// The divergence between the two.
    pub divergence: Divergence,
    /// The factor of a query's divergence in the loss.
    pub factor: f64,
}

struct IndexerLoss {
    /// Gradients of queries, keys and head weights.
    gradients: [Tensor; 3],
}

fn of_output(along: Digit, inputs: InputStates<'_>) -> OutputState {
    let [of_out, indexer @ ..] = inputs else { return Err(StateConflict) };
    match shard_state::token_mixing(along, indexer, 1..2)? {
        // Every rank trains the indexer on its own tokens, and with values that tensor-parallel ranks have in common.
        None | Some(ShardState::Constant | ShardState::Invariant | ShardState::Tokens) => Ok(*of_out),
        Some(_) => Err(StateConflict),
    }
}
op!(IndexerLoss, "indexer_loss", (of_output), |op, _cx, dy| {
    let [dq, dk, dw] = op.gradients;
    Ok(vec![Some(dy), Some(dq), Some(dk), Some(dw)])
});

/// Returns `out`, an output of the layer, unchanged. Its backward pass sends the gradients of a loss to the indexer's queries
/// `q[T,N·D]`, keys `k[C,D]` and head weights `w[T,N]` (unrounded): `factor` times the sum over queries of the divergence
/// between the softmax of the indexer's scores and `target.attention`. Also returns that sum itself, without the factor:
/// `[1]`, unrounded. Saves the gradients, in the types of their values.
///
/// # Errors
/// If shapes, element types or picks do not fit.
///
/// # Source
/// DeepSeek-V3.2-Exp report, eq. 3 and 4. Megatron-LM (2026) and MindSpeed-LLM (2026) attach the loss to attention's output
/// in the same way (`DSAIndexerLossAutoScaler`).
pub fn indexer_loss(
    g: &mut Graph,
    out: &Var,
    [q, k, w]: [&Var; 3],
    target: IndexerTarget<'_>,
) -> Result<(Var, Tensor)> {
    let (device, wide) = (g.device().clone(), w.value().dtype());
    let (loss, [dq, dk, dw]) = {
        let (q, k) = (device.cast(q.value(), wide)?, device.cast(k.value(), wide)?);
        let inputs = IndexerInputs { q: &q, k: &k, w: w.value() };
        let IndexerTarget { picks, attention, divergence, factor } = target;
        device.indexer_loss(&inputs, picks, attention, divergence, factor)?
    };
    let gradients = [device.cast(&dq, q.value().dtype())?, device.cast(&dk, k.value().dtype())?, dw];
    let out = g.apply_through_with(out, &[q, k, w], || Box::new(IndexerLoss { gradients }));
    Ok((out, loss))
}
