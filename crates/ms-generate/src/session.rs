//! One sequence at a time, reusing what it shares with the one before.

use crate::model::check_finite;
use crate::{Error, LoadedModel, Result};
use ms_nn::KvCache;

/// A single sequence over a cache. A new sequence that begins like the last one computes only what differs: the
/// solved examples of a benchmark, or the earlier turns of a chat, are computed once.
pub struct Session<'a> {
    model: &'a LoadedModel,
    cache: KvCache,
    tokens: Vec<u32>,
    /// Sequences so far.
    count: usize,
}

impl<'a> Session<'a> {
    /// A session with room for `capacity` tokens.
    pub fn new(model: &'a LoadedModel, capacity: usize) -> Self {
        let cache = model.model.cache(&model.device, model.store.dtype(), 1, capacity.max(1));
        Self { model, cache, tokens: Vec::new(), count: 0 }
    }

    /// Makes `tokens` the sequence and returns the logits after its last token.
    ///
    /// # Errors
    /// If the sequence is empty, too long or has unknown tokens, or the logits are not finite.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt { index: 0 });
        }
        self.count += 1;
        let shared = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last token is computed again even if it is known: its logits are wanted.
        let kept = self.cache.truncate(0, shared.min(tokens.len() - 1));
        self.tokens.truncate(kept);
        self.extend(&tokens[kept..])
    }

    /// Appends one token and returns the logits after it.
    ///
    /// # Errors
    /// If the sequence gets too long, the token is unknown, or the logits are not finite.
    pub fn next(&mut self, token: u32) -> Result<Vec<f32>> {
        self.extend(&[token])
    }

    fn extend(&mut self, new: &[u32]) -> Result<Vec<f32>> {
        let m = self.model;
        let ids: Vec<i32> = new.iter().map(|&t| i32::try_from(t).unwrap_or(-1)).collect();
        m.check_tokens(&ids)?;
        let hidden = m.model.extend(&m.device, &m.store, &m.ctx, &mut self.cache, &[(0, &ids)])?;
        self.tokens.extend_from_slice(new);
        let logits = m.logits_of(&hidden.rows(ids.len() - 1, 1)?)?;
        check_finite(&logits, self.count.saturating_sub(1), self.tokens.len() - 1)?;
        Ok(logits)
    }
}
