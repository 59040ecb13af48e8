//! The decoding loop.

use crate::model::check_finite;
use crate::{Error, LoadedModel, Result, Sampler, Sampling};

/// When a sequence ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// New tokens at most; no sequence gets longer than the model's window, whatever this says.
    pub max_new_tokens: usize,
    /// Tokens that end a sequence; they are part of the result.
    pub stop_tokens: Vec<u32>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// It ran into its limit, or the model's window is full.
    Length,
    /// It produced a stop token.
    Stop,
    /// The caller did not want more.
    Cancelled,
}

/// A finished sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The new tokens, a stop token included.
    pub tokens: Vec<u32>,
    /// Sum of the log-probabilities of the new tokens under the model itself (temperature 1, no cut).
    pub log_probability: f64,
    /// Why it ended.
    pub finish: Finish,
}

/// Continues every prompt, all in one batch. `on_token(i, token)` is called for each new token of prompt `i` as
/// soon as it is chosen; returning `false` ends that sequence.
///
/// What is generated for a prompt does not depend on the other prompts of the batch beyond rounding of the
/// products: attention never crosses sequences and every sequence draws from a stream of its own.
///
/// # Errors
/// If a prompt is empty or too long, a token is unknown, logits are not finite, or a kernel fails.
pub fn generate(
    m: &LoadedModel,
    prompts: &[Vec<u32>],
    rule: Sampling,
    limits: &Limits,
    mut on_token: impl FnMut(usize, u32) -> bool,
) -> Result<Vec<Generated>> {
    let max = m.model.max_position();
    let prompts: Vec<Vec<i32>> =
        prompts.iter().map(|p| p.iter().map(|&t| i32::try_from(t).unwrap_or(-1)).collect()).collect();
    let mut capacity = 0;
    for (index, prompt) in prompts.iter().enumerate() {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt { index });
        }
        if prompt.len() > max {
            return Err(Error::TooLong { prompt: prompt.len(), max });
        }
        m.check_tokens(prompt)?;
        capacity = capacity.max(prompt.len().saturating_add(limits.max_new_tokens).min(max));
    }
    let mut sequences = (0..prompts.len())
        .map(|i| {
            Ok(Sequence {
                sampler: Sampler::new(rule, i as u64)?,
                tokens: vec![],
                log_probability: 0.0,
                finish: None,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let asked = prompts;
    let known: Vec<usize> = asked.iter().map(Vec::len).collect();
    if limits.max_new_tokens > 0 && !asked.is_empty() {
        let mut cache = m.model.cache(&m.device, m.store.dtype(), asked.len(), capacity);
        let mut active: Vec<usize> = (0..asked.len()).collect();
        let mut new: Vec<Vec<i32>> = asked.clone();
        while !active.is_empty() {
            let step: Vec<(usize, &[i32])> = active.iter().map(|&i| (i, new[i].as_slice())).collect();
            let hidden = m.model.extend(&m.device, &m.store, &m.ctx, &mut cache, &step)?;
            // Only the last token of each sequence is continued from.
            let mut end = 0;
            let mut last = Vec::with_capacity(active.len());
            for (_, tokens) in &step {
                end += tokens.len();
                last.push(hidden.rows(end - 1, 1)?);
            }
            for (&i, hidden) in active.iter().zip(&last) {
                let mut logits = m.logits_of(hidden)?;
                check_finite(&logits, i, known[i] + sequences[i].tokens.len() - 1)?;
                let own = logits.clone();
                let occurred = asked[i].iter().map(|&t| t as u32).chain(sequences[i].tokens.iter().copied());
                rule.penalise(&mut logits, occurred);
                // The last token of a full window is chosen, but has no place to be continued from.
                let room = max + 1 - known[i];
                let token = sequences[i].advance(&logits, &own, limits, room, |t| on_token(i, t));
                new[i] = vec![token as i32];
            }
            active.retain(|&i| sequences[i].finish.is_none());
        }
    }
    Ok(sequences
        .into_iter()
        .map(|s| Generated {
            tokens: s.tokens,
            log_probability: s.log_probability,
            finish: s.finish.unwrap_or(Finish::Length),
        })
        .collect())
}

struct Sequence {
    sampler: Sampler,
    tokens: Vec<u32>,
    log_probability: f64,
    finish: Option<Finish>,
}

impl Sequence {
    /// Takes the next token by `logits`; `own` are the model's, before anything was done to them.
    fn advance(
        &mut self,
        logits: &[f32],
        own: &[f32],
        limits: &Limits,
        room: usize,
        on_token: impl FnOnce(u32) -> bool,
    ) -> u32 {
        let token = self.sampler.choose(logits);
        self.log_probability += log_softmax(own, token as usize);
        self.tokens.push(token);
        let go_on = on_token(token);
        self.finish = if limits.stop_tokens.contains(&token) {
            Some(Finish::Stop)
        } else if !go_on {
            Some(Finish::Cancelled)
        } else if self.tokens.len() >= limits.max_new_tokens.min(room) {
            Some(Finish::Length)
        } else {
            None
        };
        token
    }
}

/// Log-probability of entry `i` under the softmax of `logits`.
pub fn log_softmax(logits: &[f32], i: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    f64::from(logits[i] - max) - sum.ln()
}
