//! Several sequences in one cache: each as it is alone, to the bit, and nothing computed twice.

#![allow(clippy::unwrap_used)] // tests

use ms_core::DType;
use ms_generate::{
    Error, Generated, Limits, LoadedModel, MemoryRequest, Sampling, Session, generate, log_softmax, resume,
};
use ms_spec::{Position, RopeScaling};

const LIMITS: Limits = Limits { max_new_tokens: 4, stop_tokens: Vec::new() };

fn open(family: &str, dtype: DType) -> LoadedModel {
    let dir = ms_testing::golden_model(family).unwrap();
    LoadedModel::open(&dir, dtype, ms_cpu::device(2).unwrap(), Some(32))
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

#[test]
fn a_cache_that_grows_holds_what_it_held() {
    for family in ms_testing::golden_models() {
        let model = open(&family, DType::F32);
        let [first, second] = [prompt(&model, 12, 0), prompt(&model, 9, 1)];
        let run = |room: usize, later: Option<usize>| {
            let mut session = Session::new(&model, 2, room);
            session.start(&[(0, &first[..7]), (1, &second[..6])]).unwrap();
            later.iter().for_each(|&room| session.reserve(room).unwrap());
            let mut logits = session.start(&[(0, &first), (1, &second)]).unwrap();
            logits.extend(session.next(&[(1, 5), (0, 6)]).unwrap());
            (session.computed(), logits)
        };
        let want = run(20, None);
        // At least twice the room is made.
        assert!(want == run(7, Some(20)) && want == run(7, Some(9)), "{family}");
        // Where frequencies do not switch with the length, what is new alone.
        let switches = model.model.is_short(7) != model.model.is_short(12);
        assert!(switches || want.0 == 23, "{family}: {} tokens", want.0);
    }
}

/// One token at a time through the cache, compared with the definition over the whole sequence: to twelve digits, where f32
/// has seven.
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

/// Sequences of a session, token by token, compared with a model made for exactly their length.
#[test]
fn a_sequence_turns_by_the_frequencies_of_its_own_length() {
    let source = ms_ckpt::open(&ms_testing::golden_model("qwen3").unwrap()).unwrap();
    let mut config = source.config().clone();
    let pairs = config.head_dim / 2;
    config.rope.scaling = RopeScaling::LongRope {
        short: vec![1.2; pairs],
        long: (0..pairs).map(|i| 2.0 + i as f64).collect(),
        original: 6,
        factor: 5.0,
        magnitude: None,
    };
    let made_for = |positions: usize| {
        let device = ms_reference::device();
        LoadedModel::load(&source, &config, DType::F64, None, device, Some(positions), None).unwrap()
    };
    let m = made_for(32);
    let mut session = Session::new(&m, 2, 16);
    let mut sequences = [prompt(&m, 4, 0), prompt(&m, 5, 1)];
    let is_close = |got: &[Vec<f64>], sequences: &[Vec<u32>]| {
        for (got, tokens) in got.iter().zip(sequences) {
            let ids: Vec<i32> = tokens.iter().map(|&t| t as i32).collect();
            let borders = [0, ids.len() as i32];
            for alone in [made_for(ids.len()), made_for(32)] {
                let want = alone.logits(&ids, &borders).unwrap();
                let want = &want[want.len() - got.len()..];
                let apart = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(apart < 1e-9, "{} tokens: {apart}", ids.len());
            }
        }
    };
    is_close(&session.start(&[(0, &sequences[0]), (1, &sequences[1])]).unwrap(), &sequences);
    for step in 0..5 {
        let next = [(0, 3 + step), (1, 9 - step)];
        next.iter().for_each(|&(slot, token)| sequences[slot].push(token));
        is_close(&session.next(&next).unwrap(), &sequences);
    }
    // Nine tokens and ten; back to a beginning of one, which is short again.
    let computed = session.computed();
    sequences[0].truncate(5);
    is_close(&session.start(&[(0, &sequences[0])]).unwrap(), &sequences[..1]);
    assert_eq!(session.computed() - computed, 5, "none of a long sequence's tokens serve a short one");
    // Other frequencies do not go unseen.
    let longer = made_for(32).logits(&[1, 2, 3, 4, 5, 6, 7], &[0, 7]).unwrap();
    let shorter = made_for(32).logits(&[1, 2, 3, 4, 5, 6], &[0, 6]).unwrap();
    assert!(longer.iter().zip(&shorter).any(|(a, b)| (a - b).abs() > 1e-3));
}

/// A model whose prompts are known has positions for them and their continuations alone, of the same window.
#[test]
fn positions_that_no_sequence_reaches_are_not_made() {
    let work = MemoryRequest { prompt: 5, new: LIMITS.max_new_tokens, slots: 2, rows: 0, available: None };
    for family in ms_testing::golden_models() {
        let source = ms_ckpt::open(&ms_testing::golden_model(&family).unwrap()).unwrap();
        let own = source.config().rope.scaling.clone();
        let pairs = source.config().head_dim / 2;
        let long = |original| RopeScaling::LongRope {
            short: vec![1.2; pairs],
            long: (0..pairs).map(|i| 2.0 + i as f64).collect(),
            original,
            factor: 5.0,
            magnitude: None,
        };
        let dynamic = RopeScaling::Dynamic { factor: 3.0, original: 4 };
        for scaling in [own, long(6), long(20), dynamic] {
            let mut config = source.config().clone();
            config.rope.scaling = scaling;
            let load = |work| {
                let device = ms_cpu::device(2).unwrap();
                LoadedModel::load(&source, &config, DType::F32, None, device, Some(32), work).unwrap()
            };
            let (whole, part) = (load(None), load(Some(work)));
            let made = if config.position == Position::Learned { config.max_positions } else { 5 + 4 };
            assert_eq!(part.model.max_position(), made, "{family}");
            let prompts = [prompt(&whole, 5, 0), prompt(&whole, 3, 1)];
            let answer = |m: &LoadedModel| {
                bits(&generate(m, &prompts, Sampling::GREEDY, &LIMITS, |_, _| true).unwrap())
            };
            assert_eq!(answer(&part), answer(&whole), "{family}, {:?}", config.rope.scaling);
            let longer = [prompt(&whole, made + 1, 0)];
            let refused = generate(&part, &longer, Sampling::GREEDY, &LIMITS, |_, _| true);
            assert!(matches!(refused, Err(Error::TooLong { max, .. }) if max == made), "{family}");
        }
    }
}

#[test]
fn a_chat_computes_its_turns_once() {
    let mut anew = false;
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
        // Of every turn: what was added, and its answer except for the last token, which nothing follows.
        let answer = LIMITS.max_new_tokens as u64 - 1;
        let mut want = [3 + answer, 1 + 2 + answer, 1 + 2 + answer];
        // The turn that leaves the length of short sequences, at its beginning or with a token of its answer, computes all that
        // was there before anew.
        match model.config().rope.switches_behind() {
            Some(8) => want[1] += 6,
            Some(16) => want[2] += 16,
            _ => {}
        }
        anew |= want.iter().any(|&n| n > 6);
        let computed: Vec<u64> = said.iter().map(|s| s.0).collect();
        assert_eq!(computed, want, "{family}: {said:?}");
    }
    assert!(anew, "a sample leaves the length of short sequences");
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
