//! Sessions: sequences in a KV cache with prefix reuse.

use crate::model::check_finite;
use crate::{Error, LoadedModel, Result};
use ms_core::Tensor;
use ms_nn::KvCache;

/// Several sequences over one cache, each in a slot of its own. A sequence that begins like the last one of its slot computes
/// only what comes after the common beginning: the solved examples of a benchmark, or the earlier turns of a chat as long as
/// none is dropped, are computed once. With recurrent states or pooled entries, which cannot be rolled back, this requires
/// that the sequence extends all of the last one's tokens; otherwise all of it is computed.
pub struct Session<'a> {
    model: &'a LoadedModel,
    cache: KvCache,
    /// The tokens of each slot.
    tokens: Vec<Vec<u32>>,
    /// The number of the sequence in each slot, and of the next one.
    numbers: Vec<usize>,
    next: usize,
    computed: u64,
}

impl<'a> Session<'a> {
    /// A session of `slots` sequences with room for `capacity` tokens each.
    pub fn new(model: &'a LoadedModel, slots: usize, capacity: usize) -> Self {
        let cache = model.model.cache(&model.device, model.store.dtype(), slots, capacity.max(1));
        let (tokens, numbers) = (vec![Vec::new(); slots], vec![0; slots]);
        Self { model, cache, tokens, numbers, next: 0, computed: 0 }
    }

    /// The model.
    pub fn model(&self) -> &'a LoadedModel {
        self.model
    }

    /// Tokens that went through the model so far.
    pub fn computed(&self) -> u64 {
        self.computed
    }

    /// Makes room for `capacity` tokens in every slot. A cache that is too small gets twice its size, at least, as far as the
    /// model's window allows, and holds what it held.
    ///
    /// # Errors
    /// If rows cannot be moved.
    pub fn reserve(&mut self, capacity: usize) -> Result<()> {
        let has = self.cache.capacity();
        if has < capacity {
            let window = self.model.model.max_position();
            self.cache.grow(capacity.max(has.saturating_mul(2).min(window)))?;
        }
        Ok(())
    }

    /// Clears every slot, for sequences that must have the bits that they have alone: a shared prefix was computed together
    /// with other rows.
    pub fn forget(&mut self) {
        for (slot, tokens) in self.tokens.iter_mut().enumerate() {
            self.cache.truncate(slot, 0);
            tokens.clear();
        }
    }

    /// Makes `tokens` the sequence of each named slot and returns the logits after their last tokens, in f64 whatever they
    /// were computed in.
    ///
    /// Sequences go through the model one at a time, so that none affects the others.
    ///
    /// # Errors
    /// If a sequence is empty, too long or has unknown tokens, or logits are not finite.
    pub fn start(&mut self, sequences: &[(usize, &[u32])]) -> Result<Vec<Vec<f64>>> {
        let mut last = Vec::with_capacity(sequences.len());
        for (index, &(slot, tokens)) in sequences.iter().enumerate() {
            if tokens.is_empty() {
                return Err(Error::EmptyPrompt { index });
            }
            (self.numbers[slot], self.next) = (self.next, self.next + 1);
            let shared = self.tokens[slot].iter().zip(tokens).take_while(|(a, b)| a == b).count();
            // The last token is computed again even if it is known: its logits are wanted.
            let kept = self.keep(slot, shared.min(tokens.len() - 1), tokens.len());
            let hidden = self.extend(&[(slot, &tokens[kept..])])?;
            last.push(hidden.rows(tokens.len() - kept - 1, 1)?);
        }
        let slots: Vec<usize> = sequences.iter().map(|s| s.0).collect();
        self.logits(&slots, &rows(self.model, &last)?)
    }

    /// Appends a token to each named slot and returns the logits after it.
    ///
    /// # Errors
    /// If a sequence gets too long, a token is unknown, or logits are not finite.
    pub fn next(&mut self, tokens: &[(usize, u32)]) -> Result<Vec<Vec<f64>>> {
        let slots: Vec<usize> = tokens.iter().map(|t| t.0).collect();
        let hidden = if slots.iter().any(|&slot| self.turns_at(slot, self.tokens[slot].len() + 1)) {
            let mut last = Vec::with_capacity(tokens.len());
            for &(slot, token) in tokens {
                let mut sequence = self.tokens[slot].clone();
                sequence.push(token);
                let kept = self.keep(slot, sequence.len() - 1, sequence.len());
                let hidden = self.extend(&[(slot, &sequence[kept..])])?;
                last.push(hidden.rows(sequence.len() - kept - 1, 1)?);
            }
            rows(self.model, &last)?
        } else {
            let new: Vec<(usize, &[u32])> =
                tokens.iter().map(|(slot, token)| (*slot, std::slice::from_ref(token))).collect();
            self.extend(&new)?
        };
        self.logits(&slots, &hidden)
    }

    /// Whether the sequence of a slot uses other rotary frequencies once it has `tokens` tokens.
    fn turns_at(&self, slot: usize, tokens: usize) -> bool {
        let model = &self.model.model;
        model.is_short(self.tokens[slot].len()) != model.is_short(tokens)
    }

    /// Forgets what follows the first `shared` tokens of a slot whose sequence will have `tokens`, and everything if its
    /// rotary frequencies change. Returns how many tokens are left.
    fn keep(&mut self, slot: usize, shared: usize, tokens: usize) -> usize {
        let shared = if self.turns_at(slot, tokens) { 0 } else { shared };
        let kept = self.cache.truncate(slot, shared);
        self.tokens[slot].truncate(kept);
        kept
    }

    /// Hidden states of new tokens, in the order of the slots.
    fn extend(&mut self, new: &[(usize, &[u32])]) -> Result<Tensor> {
        let m = self.model;
        let ids: Vec<Vec<i32>> =
            new.iter().map(|(_, t)| t.iter().map(|&t| i32::try_from(t).unwrap_or(-1)).collect()).collect();
        ids.iter().try_for_each(|ids| m.check_tokens(ids))?;
        let step: Vec<(usize, &[i32])> =
            new.iter().zip(&ids).map(|((slot, _), ids)| (*slot, &ids[..])).collect();
        let hidden = m.model.extend(&m.device, &m.store, &m.ctx, &mut self.cache, &step)?;
        for &(slot, tokens) in new {
            self.tokens[slot].extend_from_slice(tokens);
            self.computed += tokens.len() as u64;
        }
        Ok(hidden)
    }

    /// Logits after the last token of each slot, from one row of hidden states each: one product for all.
    fn logits(&self, slots: &[usize], hidden: &Tensor) -> Result<Vec<Vec<f64>>> {
        let logits = self.model.logits_of(hidden)?;
        let rows = slots.iter().zip(logits.chunks_exact(self.model.config().vocab));
        rows.map(|(&slot, row)| {
            check_finite(row, self.numbers[slot], self.tokens[slot].len() - 1)?;
            Ok(row.to_vec())
        })
        .collect()
    }
}

/// Rows under each other.
fn rows(m: &LoadedModel, rows: &[Tensor]) -> Result<Tensor> {
    let [first, others @ ..] = rows else {
        return Ok(Tensor::zeros(m.device.arena(), m.store.dtype(), [0, 0]));
    };
    if others.is_empty() {
        return Ok(first.clone());
    }
    let mut all = Tensor::uninit(m.device.arena(), first.dtype(), [rows.len(), first.shape()[1]]);
    for (to, row) in rows.iter().enumerate() {
        all.put_rows(row, [(to, 0)])?;
    }
    Ok(all)
}
