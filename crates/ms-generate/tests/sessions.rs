//! Several sequences over one cache: each as it is alone, to the bit, and nothing computed twice.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{DType, Device};
use ms_generate::{Generated, Limits, LoadedModel, Sampling, Session, generate, log_softmax, resume};

const LIMITS: Limits = Limits { max_new_tokens: 4, stop_tokens: Vec::new() };

fn open(family: &str, dtype: DType) -> LoadedModel {
    let dir = ms_testing::golden_model(family).unwrap();
    LoadedModel::open(&dir, dtype, Device::cpu(2).unwrap(), Some(32))
        .unwrap_or_else(|e| panic!("{family}: {e}"))
}

/// A prompt of `n` tokens.
fn prompt(model: &LoadedModel, n: usize, seed: u32) -> Vec<u32> {
    let vocab = model.config().vocab as u32;
    (0..n as u32).map(|i| (i * 31 + seed * 17 + 3) % vocab).collect()
}

/// What must be the same to the bit.
fn bits(generated: &[Generated]) -> Vec<(Vec<u32>, u64)> {
    generated.iter().map(|g| (g.tokens.clone(), g.log_probability.to_bits())).collect()
}

/// What may differ by rounding: attention of few new tokens sums in another order than that of a whole prompt.
fn close(got: &[Generated], want: &[Generated], what: &str) {
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.tokens, want.tokens, "{what}");
        let difference = (got.log_probability - want.log_probability).abs();
        assert!(difference < 1e-4, "{what}: {} and {}", got.log_probability, want.log_probability);
    }
}

#[test]
fn a_batch_is_its_sequences_bit_for_bit() {
    for family in ms_testing::golden_models() {
        for dtype in [DType::F32, DType::Bf16] {
            let model = open(&family, dtype);
            let prompts: Vec<Vec<u32>> =
                [5, 1, 3].iter().zip(0..).map(|(&n, seed)| prompt(&model, n, seed)).collect();
            let together = generate(&model, &prompts, Sampling::GREEDY, &LIMITS, |_, _| true).unwrap();
            for (i, prompt) in prompts.iter().enumerate() {
                let alone =
                    generate(&model, std::slice::from_ref(prompt), Sampling::GREEDY, &LIMITS, |_, _| true);
                let (alone, together) = (alone.unwrap(), &together[i..=i]);
                if model.config().moe.is_none() {
                    assert_eq!(bits(&alone), bits(together), "{family} {dtype}, prompt {i}");
                } else {
                    // The rows of an expert are those of all sequences: sums of their products may differ in the last bits.
                    close(&alone, together, &format!("{family} {dtype}, prompt {i}"));
                }
            }
        }
    }
}

/// A token at a time through the cache, beside the definition over the whole sequence: twelve digits, of which f32 has seven.
#[test]
fn in_f64_log_likelihoods_have_the_digits_of_f64() {
    for family in ["aquila", "qwen3", "mixtral"] {
        let dir = ms_testing::golden_model(family).unwrap();
        let m = LoadedModel::open(&dir, DType::F64, ms_reference::device(), Some(32)).unwrap();
        let tokens = prompt(&m, 9, 1);
        let mut session = Session::new(&m, 1, 32);
        let mut logits = session.start(&[(0, &tokens[..1])]).unwrap().swap_remove(0);
        let mut got = 0.0;
        for &token in &tokens[1..] {
            got += log_softmax(&logits, token as usize);
            logits = session.next(&[(0, token)]).unwrap().swap_remove(0);
        }
        let ids: Vec<i32> = tokens.iter().map(|&t| t as i32).collect();
        let (positions, borders): (Vec<i32>, _) = ((0..8).collect(), [0, 8]);
        let batch = ms_nn::Batch::new(m.device.arena(), &ids[..8], &positions, &borders).unwrap();
        let mut g = ms_core::Graph::inference(&m.device);
        let hidden = m.model.forward(&mut g, &m.store, &m.ctx, &batch).unwrap();
        let all = m.model.logits(&m.device, &m.store, hidden.value()).unwrap().to_reals().unwrap();
        let row = m.config().padded_vocab;
        let want: f64 = all
            .chunks(row)
            .zip(&ids[1..])
            .map(|(of, &next)| {
                let of = &of[..m.config().vocab];
                of[next as usize] - of.iter().map(|l| l.exp()).sum::<f64>().ln()
            })
            .sum();
        assert!((got - want).abs() < 1e-12 * want.abs(), "{family}: {got:.16} and {want:.16}");
        let rounded: f64 = all
            .chunks(row)
            .zip(&ids[1..])
            .map(|(of, &next)| {
                let of: Vec<f64> = of[..m.config().vocab].iter().map(|&l| f64::from(l as f32)).collect();
                log_softmax(&of, next as usize)
            })
            .sum();
        assert!((rounded - want).abs() > 1e-10 * want.abs(), "{family}: f32 has as many digits");
    }
}

#[test]
fn a_chat_computes_its_turns_once() {
    for family in ms_testing::golden_models() {
        let model = open(&family, DType::F32);
        let mut session = Session::new(&model, 1, 32);
        let mut history = prompt(&model, 3, 0);
        let mut said = Vec::new();
        for turn in 1..4 {
            let before = session.computed();
            let got =
                resume(&mut session, std::slice::from_ref(&history), Sampling::GREEDY, &LIMITS, |_, _| true);
            let got = got.unwrap();
            let fresh =
                generate(&model, std::slice::from_ref(&history), Sampling::GREEDY, &LIMITS, |_, _| true);
            close(&got, &fresh.unwrap(), &format!("{family}, turn {turn}"));
            said.push((session.computed() - before, history.len()));
            history.extend(&got[0].tokens);
            history.extend(prompt(&model, 2, turn));
        }
        // Of every turn: what was added, and its answer but for the last token, which nothing follows.
        let answer = LIMITS.max_new_tokens as u64 - 1;
        let computed: Vec<u64> = said.iter().map(|s| s.0).collect();
        assert_eq!(computed, [3 + answer, 1 + 2 + answer, 1 + 2 + answer], "{family}: {said:?}");
    }
}

#[test]
fn a_session_that_runs_out_of_room_gets_more_and_answers_the_same() {
    let model = open("aquila", DType::F32);
    let mut session = Session::new(&model, 2, 1);
    for n in [1, 4, 9] {
        let prompts = vec![prompt(&model, n, 1), prompt(&model, n + 1, 2)];
        let got = resume(&mut session, &prompts, Sampling::GREEDY, &LIMITS, |_, _| true).unwrap();
        let fresh = generate(&model, &prompts, Sampling::GREEDY, &LIMITS, |_, _| true).unwrap();
        close(&got, &fresh, &format!("{n} tokens"));
    }
}
