//! Beam search against the same search without a cache, and against all texts.

#![allow(clippy::unwrap_used)] // tests

use ms_core::DType;
use ms_generate::{BeamSearch, Finish, Found, Limits, LoadedModel, Sampling, beam_search};
use ms_testing::golden_model;

const PROMPT: [u32; 5] = [3, 17, 40, 8, 21];

fn open(sample: &str) -> LoadedModel {
    let dir = golden_model(sample).unwrap();
    LoadedModel::open(&dir, DType::F32, ms_cpu::device(1).unwrap(), Some(32)).unwrap()
}

fn search(beams: usize, length_penalty: f64) -> BeamSearch {
    BeamSearch { beams, length_penalty, drawn: false, rule: Sampling::GREEDY }
}

/// Log-probabilities of every token after the prompt and `tokens`, computed from the beginning.
fn after(m: &LoadedModel, tokens: &[u32]) -> Vec<f64> {
    let all: Vec<i32> = PROMPT.iter().chain(tokens).map(|&t| t as i32).collect();
    let logits = m.logits(&all, &[0, all.len() as i32]).unwrap();
    let last = &logits[logits.len() - m.config().vocab..];
    let max = last.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = last.iter().map(|x| (x - max).exp()).sum();
    last.iter().map(|x| x - max - sum.ln()).collect()
}

/// The search as its description reads: `MindSpeed-LLM`'s, which ends when as many texts as there are beams are better than
/// anything that goes on.
fn described(m: &LoadedModel, beams: usize, penalty: f64, most: usize, end: u32) -> (Vec<u32>, f64) {
    let mut open = vec![(Vec::new(), 0.0)];
    let mut closed: Vec<(Vec<u32>, f64)> = Vec::new();
    for length in 1..=most {
        let score = |sum: f64| sum / (length as f64).powf(penalty);
        let mut all: Vec<(Vec<u32>, f64)> = Vec::new();
        for (tokens, sum) in &open {
            for (t, p) in after(m, tokens).into_iter().enumerate() {
                all.push(([&tokens[..], &[t as u32]].concat(), sum + p));
            }
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(2 * beams);
        let best = all[0].1;
        open.clear();
        for (rank, (tokens, sum)) in all.into_iter().enumerate() {
            if tokens.last() != Some(&end) {
                open.push((tokens, sum));
            } else if rank < beams {
                closed.push((tokens, score(sum)));
                closed.sort_by(|a, b| b.1.total_cmp(&a.1));
                closed.truncate(beams);
            }
            if open.len() == beams {
                break;
            }
        }
        if closed.len() == beams && closed[beams - 1].1 >= score(best) {
            break;
        }
        if length == most {
            closed.extend(open.drain(..).map(|(tokens, sum)| (tokens, score(sum))));
            closed.sort_by(|a, b| b.1.total_cmp(&a.1));
        }
    }
    closed.swap_remove(0)
}

#[test]
fn beams_over_a_cache_find_what_the_described_search_finds() {
    for sample in ["llama3_gqa", "mamba2", "qwen3_next", "deepseek_v32", "deepseek_v4", "phi3_longrope"] {
        let m = open(sample);
        // The likeliest first token ends texts: some end early.
        let first = after(&m, &[]);
        let end = (0..first.len()).max_by(|&a, &b| first[a].total_cmp(&first[b])).unwrap() as u32;
        for (beams, penalty, end) in
            [(1, 1.0, 127), (2, 1.0, end), (4, 0.7, end), (3, 0.0, end), (3, 2.0, 126)]
        {
            let limits = Limits { max_new_tokens: 14, stop_tokens: vec![end] };
            let Found { tokens, score, finish } =
                beam_search(&m, &PROMPT, &search(beams, penalty), &limits).unwrap();
            let (want, want_score) = described(&m, beams, penalty, 14, end);
            assert_eq!(tokens, want, "{sample} {beams} {penalty} {end}");
            assert!((score - want_score).abs() < 1e-4, "{sample}: {score} {want_score}");
            assert_eq!(finish == Finish::Stop, tokens.last() == Some(&end), "{sample}");
        }
    }
}

#[test]
fn as_many_beams_as_tokens_find_the_likeliest_text() {
    let m = open("llama3_gqa");
    let vocab = m.config().vocab as u32;
    let first = after(&m, &[]);
    let text = |t: u32| (after(&m, &[t]).into_iter().enumerate()).map(move |(u, p)| (vec![t, u as u32], p));
    let all = (0..vocab)
        .flat_map(|t| text(t).map(|(tokens, p)| (tokens, p + first[t as usize])).collect::<Vec<_>>());
    let (want, sum) = all.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let limits = Limits { max_new_tokens: 2, stop_tokens: vec![] };
    let found = beam_search(&m, &PROMPT, &search(vocab as usize, 1.0), &limits).unwrap();
    assert_eq!(found.tokens, want);
    assert!((found.score - sum / 2.0).abs() < 1e-4, "{} {sum}", found.score);
}

#[test]
fn drawn_beams_repeat_with_their_seed() {
    let m = open("llama3_gqa");
    let limits = Limits { max_new_tokens: 8, stop_tokens: vec![] };
    let with = |seed, rule: Sampling| {
        let search =
            BeamSearch { beams: 2, length_penalty: 1.0, drawn: true, rule: Sampling { seed, ..rule } };
        beam_search(&m, &PROMPT, &search, &limits).unwrap().tokens
    };
    let rule = Sampling { temperature: 1.0, top_k: 50, top_p: 0.95, ..Sampling::GREEDY };
    assert_eq!(with(3, rule), with(3, rule));
    assert!((0..8).any(|seed| with(seed, rule) != with(3, rule)));
    assert_eq!(with(3, Sampling::GREEDY), beam_search(&m, &PROMPT, &search(2, 1.0), &limits).unwrap().tokens);
    // A single token is left of each: the greedy text.
    let one = Sampling { top_k: 2, top_p: 1e-9, ..rule };
    let greedy = beam_search(&m, &PROMPT, &search(1, 1.0), &limits).unwrap().tokens;
    assert_eq!(with(3, one), greedy);
}
