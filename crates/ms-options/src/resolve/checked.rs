//! Samples whose tokens are validated before they reach the model.

use ms_data::{Sample, Samples};
use std::sync::Arc;

/// Samples whose ids are checked against the rows of the embedding as they are read.
pub(crate) struct Checked {
    set: Arc<dyn Samples>,
    rows: usize,
    name: String,
}

impl Checked {
    /// The samples of `set`, which messages call `name`, for an embedding of `rows` rows.
    pub(crate) fn new(set: Arc<dyn Samples>, rows: usize, name: &str) -> Self {
        Self { set, rows, name: name.to_owned() }
    }

    fn check(&self, index: u64, sample: &Sample) -> ms_data::Result<()> {
        let legal = |id: i32| id >= 0 && (id as usize) < self.rows;
        let labels = sample.labels.iter().zip(&sample.loss_mask).filter(|l| *l.1 != 0.0).map(|l| l.0);
        if let Some(id) = sample.tokens.iter().chain(labels).find(|&&id| !legal(id)) {
            return Err(ms_data::Error::Input {
                path: self.name.clone().into(),
                reason: format!(
                    "sample {index} holds token {id}, the model's embedding has {} rows\nhint: was the set made with \
                     another tokenizer?",
                    self.rows
                ),
            });
        }
        sample.rejected.as_ref().map_or(Ok(()), |other| self.check(index, other))
    }
}

impl Samples for Checked {
    fn len(&self) -> u64 {
        self.set.len()
    }

    fn get(&self, index: u64) -> ms_data::Result<Sample> {
        let sample = self.set.get(index)?;
        self.check(index, &sample)?;
        Ok(sample)
    }

    fn row_tokens(&self, index: u64) -> Option<usize> {
        self.set.row_tokens(index)
    }
}
