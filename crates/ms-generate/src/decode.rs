//! The decoding loop.

use crate::{Error, LoadedModel, Result, Sampler, Sampling, Session};

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

/// Continues every prompt, all in one batch. `on_token(i, token)` is called for each new token of prompt `i` as soon as it is
/// chosen; returning `false` ends that sequence.
///
/// The text generated for a prompt is the same as if it were alone: attention never crosses sequences, every sequence draws
/// from the same random numbers as a single one, and up to eight rows of a product have the same bits as separately. Products
/// of experts, whose rows come from all sequences, and those of more than eight sequences may differ in the last bits, and
/// with weights of eight bits by what rounding the activations of few rows changes.
///
/// # Errors
/// If a prompt is empty or too long, a token is unknown, logits are not finite, or a kernel fails.
pub fn generate(
    m: &LoadedModel,
    prompts: &[Vec<u32>],
    rule: Sampling,
    limits: &Limits,
    on_token: impl FnMut(usize, u32) -> bool,
) -> Result<Vec<Generated>> {
    let room = |prompt: &Vec<u32>| room(m, prompt.len(), limits);
    let capacity = prompts.iter().map(room).max().unwrap_or(0);
    check(m, prompts)?;
    resume(&mut Session::new(m, prompts.len(), capacity), prompts, rule, limits, on_token)
}

/// Tokens that a prompt of `prompt` tokens and its continuation have at most.
fn room(m: &LoadedModel, prompt: usize, limits: &Limits) -> usize {
    prompt.saturating_add(limits.max_new_tokens).min(m.model.max_position())
}

/// Checks that every prompt can be continued.
fn check(m: &LoadedModel, prompts: &[Vec<u32>]) -> Result<()> {
    let max = m.model.max_position();
    for (index, prompt) in prompts.iter().enumerate() {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt { index });
        }
        if prompt.len() > max {
            return Err(Error::TooLong { prompt: prompt.len(), max });
        }
        let ids: Vec<i32> = prompt.iter().map(|&t| i32::try_from(t).unwrap_or(-1)).collect();
        m.check_tokens(&ids)?;
    }
    Ok(())
}

/// As [`generate`], prompt `i` in slot `i` of a session: what it has in common with the sequence there is not computed again.
///
/// # Errors
/// As [`generate`].
///
/// # Panics
/// If the session has fewer slots than there are prompts.
pub fn resume(
    session: &mut Session<'_>,
    prompts: &[Vec<u32>],
    rule: Sampling,
    limits: &Limits,
    mut on_token: impl FnMut(usize, u32) -> bool,
) -> Result<Vec<Generated>> {
    let m = session.model();
    check(m, prompts)?;
    let mut sequences = (0..prompts.len())
        .map(|_| {
            Ok(Sequence {
                sampler: Sampler::new(rule, 0)?,
                tokens: vec![],
                log_probability: 0.0,
                finish: None,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    if limits.max_new_tokens > 0 && !prompts.is_empty() {
        session.reserve(prompts.iter().map(|p| room(m, p.len(), limits)).max().unwrap_or(0))?;
        let mut active: Vec<usize> = (0..prompts.len()).collect();
        let starts: Vec<(usize, &[u32])> = prompts.iter().map(Vec::as_slice).enumerate().collect();
        let mut rows = session.start(&starts)?;
        loop {
            let mut new = Vec::with_capacity(active.len());
            for (&i, logits) in active.iter().zip(&mut rows) {
                let own = logits.clone();
                let occurred = prompts[i].iter().copied().chain(sequences[i].tokens.iter().copied());
                rule.penalise(logits, occurred);
                // The last token of a full window is chosen, but has no place to be continued from.
                let room = m.model.max_position() + 1 - prompts[i].len();
                let token = sequences[i].advance(logits, &own, limits, room, |t| on_token(i, t));
                new.push((i, token));
            }
            new.retain(|&(i, _)| sequences[i].finish.is_none());
            if new.is_empty() {
                break;
            }
            active = new.iter().map(|&(i, _)| i).collect();
            rows = session.next(&new)?;
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
        logits: &[f64],
        own: &[f64],
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
pub fn log_softmax(logits: &[f64], i: usize) -> f64 {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|&l| (l - max).exp()).sum();
    (logits[i] - max) - sum.ln()
}
