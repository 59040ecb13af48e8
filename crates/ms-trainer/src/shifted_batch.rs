//! Inputs and targets of multi-token prediction modules: a micro-batch shifted by one or more tokens.

use ms_data::MicroBatch;
use std::borrow::Cow;

/// A micro-batch whose places were all moved on by one or more tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShiftedBatch<'a> {
    /// `[T]`.
    pub(crate) tokens: Vec<i32>,
    /// `[T]`.
    pub(crate) labels: Vec<i32>,
    /// `[T]`.
    pub(crate) loss_mask: Vec<f32>,
    /// The documents and positions of its tokens; `None`: those of the micro-batch.
    pub(crate) window: Option<Cow<'a, MicroBatch>>,
}

/// A row moved left by one, in place; zero comes in at its end.
fn roll<T: Copy + Default>(values: &mut [T], rows: &[usize]) {
    let mut start = 0;
    for &end in rows {
        let row = &mut values[start..end];
        if let Some(last) = row.len().checked_sub(1) {
            row.copy_within(1.., 0);
            row[last] = T::default();
        }
        start = end;
    }
}

/// The documents of rows of which only the ends of rows stay where they are when tokens are moved on by `by`; `None`: there
/// are no others. Positions are those of the micro-batch.
fn documents_ahead(mb: &MicroBatch, by: usize) -> Option<MicroBatch> {
    let (mut borders, mut start, mut moved) = (vec![0], 0, false);
    for &end in &mb.row_ends {
        for &border in mb.cu_seqlens.iter().filter(|&&b| (start + 1..end).contains(&(b as usize))) {
            // Of a document that is over before the row begins nothing is left.
            let border = (border as usize).saturating_sub(by).max(start) as i32;
            borders.extend(Some(border).filter(|b| borders.last() != Some(b)));
            moved = true;
        }
        borders.push(end as i32);
        start = end;
    }
    moved.then(|| MicroBatch {
        tokens: mb.tokens.clone(),
        position_ids: mb.position_ids.clone(),
        cu_seqlens: borders,
        row_ends: mb.row_ends.clone(),
        ..MicroBatch::default()
    })
}

/// The micro-batch as module 0, 1, ... of `depth` sees it: tokens, labels and mask shifted by 1, 2, ... tokens in each row.
/// Document boundaries inside a row do not stop the shift, as upstream; if rows consist of `documents`, attention's borders move
/// with the tokens. If the rows extend beyond what is trained, modules see that, and the mask is not shifted.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/core/transformer/multi_token_prediction.py`, `roll_tensor`; MindSpeed-LLM (2026),
/// `mindspeed_llm/core/transformer/multi_token_prediction.py`, `generate_mtp_batch_list_on_this_tp_rank`, whose borders attention
/// takes by `mtp_idx`; MindSpeed-LLM 2.0.0, `mindspeed_llm/core/models/gpt/gpt_model.py`.
pub(crate) fn shifted_batches(mb: &MicroBatch, depth: usize, documents: bool) -> Vec<ShiftedBatch<'_>> {
    let rows = &mb.row_ends;
    if !mb.ahead.is_empty() {
        return mb
            .ahead
            .iter()
            .take(depth)
            .map(|window| ShiftedBatch {
                tokens: window.tokens.clone(),
                labels: window.labels.clone(),
                loss_mask: mb.loss_mask.clone(),
                window: Some(Cow::Borrowed(window)),
            })
            .collect();
    }
    let mut now = ShiftedBatch {
        tokens: mb.tokens.clone(),
        labels: mb.labels.clone(),
        loss_mask: mb.loss_mask.clone(),
        window: None,
    };
    (1..=depth)
        .map(|by| {
            roll(&mut now.tokens, rows);
            roll(&mut now.labels, rows);
            roll(&mut now.loss_mask, rows);
            now.window = documents_ahead(mb, by).filter(|_| documents).map(Cow::Owned);
            now.clone()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(row_ends: &[usize], cu_seqlens: &[i32]) -> MicroBatch {
        let total = *cu_seqlens.last().unwrap();
        MicroBatch {
            ahead: Vec::new(),
            tokens: (1..=total).collect(),
            labels: (2..=total + 1).collect(),
            loss_mask: vec![1.0; total as usize],
            position_ids: vec![0; total as usize],
            cu_seqlens: cu_seqlens.to_vec(),
            row_ends: row_ends.to_vec(),
            samples: Vec::new(),
        }
    }

    #[test]
    fn rows_roll_across_documents_and_never_into_the_next_row() {
        let whole = batch(&[4, 8], &[0, 2, 4, 8]);
        let seen = shifted_batches(&whole, 2, true);
        assert_eq!(seen[0].tokens, [2, 3, 4, 0, 6, 7, 8, 0]);
        assert_eq!(seen[1].tokens, [3, 4, 0, 0, 7, 8, 0, 0]);
        assert_eq!(seen[1].labels, [4, 5, 0, 0, 8, 9, 0, 0]);
        assert_eq!(seen[1].loss_mask, [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn rows_may_have_any_length() {
        // The first row ends inside the second half, where a document also ends at the half.
        let whole = batch(&[5, 8], &[0, 4, 5, 8]);
        let seen = shifted_batches(&whole, 1, true);
        assert_eq!(seen[0].tokens, [2, 3, 4, 5, 0, 7, 8, 0]);
        assert_eq!(shifted_batches(&batch(&[1], &[0, 1]), 1, true)[0].tokens, [0]);
    }

    /// By hand from `generate_mtp_batch_list_on_this_tp_rank`, whose lengths of rows are alike.
    #[test]
    fn ends_of_documents_come_earlier_and_ends_of_rows_stay() {
        let whole = batch(&[6, 12], &[0, 3, 6, 7, 10, 12]);
        let ends = |batches: &[ShiftedBatch<'_>]| -> Vec<Vec<i32>> {
            batches.iter().filter_map(|b| b.window.as_ref()).map(|seen| seen.cu_seqlens.clone()).collect()
        };
        // The second row's first document, of one token, is over.
        assert_eq!(ends(&shifted_batches(&whole, 2, true)), [vec![0, 2, 6, 9, 12], vec![0, 1, 6, 8, 12]]);
        // Padding is no document.
        assert!(ends(&shifted_batches(&whole, 2, false)).is_empty());
        assert!(ends(&shifted_batches(&batch(&[6, 12], &[0, 6, 12]), 2, true)).is_empty());
    }

    #[test]
    fn windows_and_depth_losses_are_upstreams() {
        let (golden, _) = ms_testing::read_golden(&ms_testing::golden("ops/mtp_shift.safetensors"));
        let ints = |name: &str| -> Vec<i32> { golden[name].i64().iter().map(|&v| v as i32).collect() };
        let floats = |name: &str| golden[name].f32();
        let length = golden["roll.tokens0"].shape[1] as i32;
        let mb = MicroBatch {
            ahead: Vec::new(),
            tokens: ints("roll.tokens0"),
            labels: ints("roll.labels0"),
            loss_mask: floats("roll.loss_mask0"),
            position_ids: vec![0; 2 * length as usize],
            cu_seqlens: vec![0, length, 2 * length],
            row_ends: vec![length as usize, 2 * length as usize],
            samples: Vec::new(),
        };
        let seen = &shifted_batches(&mb, 1, true)[0];
        assert_eq!(seen.tokens, ints("roll.tokens1"));
        assert_eq!(seen.labels, ints("roll.labels1"));
        assert_eq!(seen.loss_mask, floats("roll.loss_mask1"));
        let counted: f32 = seen.loss_mask.iter().sum();
        assert_eq!(counted, floats("roll.num_tokens1")[0]);
    }
}
