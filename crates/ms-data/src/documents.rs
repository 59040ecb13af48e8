//! Document ends inside a row, and their effect on positions, attention and loss.

/// Upstream's three flags about documents inside a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documents {
    /// End-of-document id: the last token of a document.
    pub eod: i32,
    /// `--reset-position-ids`: positions restart after each end of document.
    pub reset_position_ids: bool,
    /// No attention across an end of document ([`crate::Upstream::keeps_documents_apart`]).
    pub reset_attention_mask: bool,
    /// `--eod-mask-loss`: no loss where the *input* is an end of document.
    pub eod_mask_loss: bool,
}

impl Documents {
    /// Marks the documents of a row of inputs: fills `position_ids`, sets `loss_mask` to 0 where it asks for that (both of
    /// the row's length), and returns the ends of stretches, the row's own among them. Tokens equal to `filler` have
    /// position 0 and are not counted.
    pub(crate) fn mark(
        self,
        tokens: &[i32],
        filler: Option<i32>,
        position_ids: &mut [i32],
        loss_mask: &mut [f32],
    ) -> Vec<i32> {
        let mut ends = Vec::new();
        let mut position = 0;
        for (i, &token) in tokens.iter().enumerate() {
            let is_filler = filler == Some(token);
            position_ids[i] = if is_filler { 0 } else { position };
            position += i32::from(!is_filler);
            if token != self.eod {
                continue;
            }
            if self.eod_mask_loss {
                loss_mask[i] = 0.0;
            }
            if self.reset_position_ids {
                position = 0;
            }
            if self.reset_attention_mask && i + 1 < tokens.len() {
                ends.push(i as i32 + 1);
            }
        }
        ends.push(tokens.len() as i32);
        ends
    }
}
