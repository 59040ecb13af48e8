//! Beam search.

use crate::decode::{check, room};
use crate::{Finish, Limits, LoadedModel, Result, Sampler, Sampling, Session};
use ms_core::Rng;

/// How beams are searched.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `mindspeed_llm/inference/text_generation/generation.py`, `beam_search_and_return_on_first_stage`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamSearch {
    /// Beams, at least one.
    pub beams: usize,
    /// Power of a text's length by which its log-probability is divided.
    pub length_penalty: f64,
    /// Continuations are drawn instead of the likeliest taken.
    pub drawn: bool,
    /// What logits go through before: the cuts only where `top_k` is above 1 and `top_p` above 0. With a temperature of 0
    /// nothing is divided, cut or drawn.
    pub rule: Sampling,
}

/// A text that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The new tokens, a stop token included.
    pub tokens: Vec<u32>,
    /// Log-probability by the divided and cut logits, over a power of the number of tokens.
    pub score: f64,
    /// Why it ended.
    pub finish: Finish,
}

/// A text that goes on: its new tokens and their log-probability.
#[derive(Clone, Default)]
struct Beam {
    tokens: Vec<u32>,
    sum: f64,
}

/// A continuation: log-probability of the whole, beam, token.
type Candidate = (f64, usize, u32);

/// The best continuation of a prompt that beam search finds.
///
/// # Errors
/// As [`crate::generate`].
pub fn beam_search(m: &LoadedModel, prompt: &[u32], search: &BeamSearch, limits: &Limits) -> Result<Found> {
    check(m, std::slice::from_ref(&prompt.to_vec()))?;
    // The last token of a full window is chosen, but has no place to be continued from.
    let most = limits.max_new_tokens.min(m.model.max_position() + 1 - prompt.len());
    let nothing = Found { tokens: Vec::new(), score: 0.0, finish: Finish::Length };
    if most == 0 {
        return Ok(nothing);
    }
    let (width, rule) = (search.beams.max(1), search.rule);
    let plain = rule.temperature == 0.0;
    let cut = rule.top_k > 1 && rule.top_p > 0.0 && !plain;
    let (top_k, top_p) = if cut { (rule.top_k, rule.top_p) } else { (0, 0.0) };
    let (temperature, min_p) = if plain { (1.0, 0.0) } else { (rule.temperature, rule.min_p) };
    let mut sampler = Sampler::new(Sampling { temperature, top_k, top_p, min_p, ..rule }, 0)?;
    let mut rng = (search.drawn && !plain).then(|| Rng::new(rule.seed, 0));
    let stops = &limits.stop_tokens;
    let mut session = Session::new(m, width, room(m, prompt.len(), limits));
    let mut rows = session.start(&[(0, prompt)])?;
    let (mut beams, mut found) = (vec![Beam::default()], Vec::new());
    let mut from = vec![0; width];
    loop {
        let length = beams[0].tokens.len() + 1;
        let score = |sum: f64| sum / (length as f64).powf(search.length_penalty);
        let mut all: Vec<Candidate> = Vec::new();
        for (b, (beam, row)) in beams.iter().zip(&mut rows).enumerate() {
            rule.penalise(row, prompt.iter().chain(&beam.tokens).copied());
            let weights = sampler.weigh(row);
            let total: f64 = weights.iter().map(|w| w.1).sum();
            let possible = weights.iter().filter(|w| w.1 > 0.0);
            all.extend(possible.map(|&(token, w)| (beam.sum + (w / total).ln(), b, token)));
        }
        // As many that do not end a text as there are beams.
        let picked = pick(all, width * (1 + stops.len().max(1)), rng.as_mut());
        let best = picked.iter().map(|c| c.0).fold(f64::NEG_INFINITY, f64::max);
        let mut next = Vec::with_capacity(width);
        for (rank, (sum, b, token)) in picked.into_iter().enumerate() {
            let mut tokens = beams[b].tokens.clone();
            tokens.push(token);
            if !stops.contains(&token) {
                from[next.len()] = b;
                next.push(Beam { tokens, sum });
            } else if rank < width {
                keep(&mut found, width, Found { tokens, score: score(sum), finish: Finish::Stop });
            }
            if next.len() == width {
                break;
            }
        }
        let worst = found.iter().map(|f| f.score).fold(f64::INFINITY, f64::min);
        if next.is_empty() || found.len() == width && worst >= score(best) {
            break;
        }
        beams = next;
        if length == most {
            for Beam { tokens, sum } in beams {
                keep(&mut found, width, Found { tokens, score: score(sum), finish: Finish::Length });
            }
            break;
        }
        session.rearrange(&from)?;
        let last = |(i, beam): (usize, &Beam)| (i, *beam.tokens.last().expect("a beam has a token by now"));
        rows = session.next(&beams.iter().enumerate().map(last).collect::<Vec<_>>())?;
    }
    // Of equal ones the first.
    Ok(found.into_iter().rev().max_by(|a, b| a.score.total_cmp(&b.score)).unwrap_or(nothing))
}

/// Adds a text to the best `width` ones.
fn keep(found: &mut Vec<Found>, width: usize, text: Found) {
    found.push(text);
    if found.len() > width {
        let scores = found.iter().enumerate().rev().min_by(|a, b| a.1.score.total_cmp(&b.1.score));
        let worst = scores.map_or(0, |(i, _)| i);
        found.remove(worst);
    }
}

/// The likeliest `count` candidates, or as many drawn by their probabilities. Where they have all of the probability, as
/// those of a single beam, the likeliest are taken in either case, as upstream does.
fn pick(mut all: Vec<Candidate>, count: usize, rng: Option<&mut Rng>) -> Vec<Candidate> {
    let mass: f64 = all.iter().map(|c| c.0.exp()).sum();
    if let (Some(rng), true) = (rng, mass > 1e-5 && mass < 1.0 - 1e-9) {
        let mut weights: Vec<f64> = all.iter().map(|c| c.0.exp()).collect();
        let mut drawn = Vec::with_capacity(count);
        while drawn.len() < count {
            let mut rest = rng.uniform() * weights.iter().sum::<f64>();
            let mut possible = weights.iter().enumerate().filter(|w| *w.1 > 0.0);
            let Some((last, _)) = possible.clone().next_back() else { break };
            let hit = possible.find(|w| {
                rest -= w.1;
                rest < 0.0
            });
            let i = hit.map_or(last, |(i, _)| i);
            weights[i] = 0.0;
            drawn.push(all[i]);
        }
        return drawn;
    }
    all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_drawn_by_their_probabilities_and_each_once() {
        let p = [0.1, 0.4, 0.2, 0.05];
        let all: Vec<Candidate> =
            p.iter().enumerate().map(|(i, p): (usize, &f64)| (p.ln(), 0, i as u32)).collect();
        let mut rng = Rng::new(7, 0);
        let mut first = [0; 4];
        for _ in 0..10_000 {
            let mut drawn: Vec<u32> = pick(all.clone(), 3, Some(&mut rng)).iter().map(|c| c.2).collect();
            first[drawn[0] as usize] += 1;
            drawn.sort_unstable();
            drawn.dedup();
            assert_eq!(drawn.len(), 3);
        }
        for (count, p) in first.iter().zip(p) {
            assert!((f64::from(*count) / 1e4 - p / 0.75).abs() < 0.02, "{first:?}");
        }
        let likeliest: Vec<u32> = pick(all.clone(), 3, None).iter().map(|c| c.2).collect();
        assert_eq!(likeliest, [1, 2, 0]);
        assert_eq!(pick(all, 9, Some(&mut rng)).len(), 4);
        // All of the probability: nothing is drawn.
        let whole: Vec<Candidate> =
            [0.25f64, 0.75].iter().enumerate().map(|(i, p)| (p.ln(), 0, i as u32)).collect();
        assert!((0..50).all(|_| pick(whole.clone(), 2, Some(&mut rng))[0].2 == 1));
    }
}
