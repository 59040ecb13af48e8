//! DeepSeek-V4 beyond its sample's logits: several sequences at once, packed or in a cache.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{DType, ParamId};
use ms_generate::LoadedModel;
use ms_testing::{assert_close, golden_model, read_golden};

fn open(dtype: DType) -> (LoadedModel, Vec<Vec<i32>>, f64) {
    let dir = golden_model("deepseek_v4").unwrap();
    let (reference, _) = read_golden(&dir.join("reference.safetensors"));
    let ids = &reference["input_ids"];
    let tokens: Vec<i32> = ids.i64().iter().map(|&t| t as i32).collect();
    let model = LoadedModel::open(&dir, dtype, ms_cpu::device(1).unwrap(), Some(32)).unwrap();
    let spread = reference["logits"].values.iter().fold(0f64, |m, v| m.max(v.abs()));
    (model, tokens.chunks(ids.shape[1]).map(<[i32]>::to_vec).collect(), spread)
}

#[test]
fn packed_sequences_do_not_see_each_other() {
    let (m, rows, _) = open(DType::F32);
    // The first is shorter than any window, the second completes one in the middle.
    let parts = [&rows[0][..3], &rows[1][..7], &rows[0][..], &rows[1][2..15]];
    let mut borders = vec![0i32];
    let mut want = Vec::new();
    for part in parts {
        borders.push(borders[borders.len() - 1] + part.len() as i32);
        want.extend(m.logits(part, &[0, part.len() as i32]).unwrap());
    }
    let got = m.logits(&parts.concat(), &borders).unwrap();
    assert_close("packed", &got, &want, 1e-5, 1e-5);
}

#[test]
fn sequences_grow_side_by_side_in_the_cache_by_any_number_of_tokens() {
    let (m, rows, _) = open(DType::F32);
    let whole: Vec<Vec<f64>> = rows.iter().map(|r| m.logits(r, &[0, r.len() as i32]).unwrap()).collect();
    let vocab = whole[0].len() / rows[0].len();
    let mut cache = m.model.cache(&m.device, DType::F32, 3, 20);
    let mut done = [0usize; 2];
    for (first, second) in [(1, 5), (2, 1), (6, 3), (1, 6), (5, 0), (1, 1)] {
        let mut new: Vec<(usize, &[i32])> = Vec::new();
        for (s, n) in [(1, second), (0, first)] {
            if n > 0 {
                // The sequences stand in slots 2 and 0, in this order.
                new.push((if s == 1 { 2 } else { 0 }, &rows[s][done[s]..done[s] + n]));
            }
        }
        let hidden = m.model.extend(&m.device, &m.store, &m.ctx, &mut cache, &new).unwrap();
        let got = m.logits_of(&hidden).unwrap();
        let mut at = 0;
        for (s, n) in [(1, second), (0, first)] {
            let want = &whole[s][done[s] * vocab..(done[s] + n) * vocab];
            assert_close(
                &format!("sequence {s} from {}", done[s]),
                &got[at..at + want.len()],
                want,
                1e-4,
                1e-4,
            );
            at += want.len();
            done[s] += n;
        }
    }
    assert_eq!(done, [16, 16]);
}

#[test]
fn bf16_stays_near_and_chooses_the_same_experts_of_hashed_layers() {
    let (m, rows, spread) = open(DType::Bf16);
    let (f, _, _) = open(DType::F32);
    let tokens = &rows[0][..4];
    let got = m.logits(tokens, &[0, 4]).unwrap();
    let want = f.logits(tokens, &[0, 4]).unwrap();
    let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f64, f64::max);
    assert!(far < 0.1 * spread, "{far} of {spread}");
    let table = m.model.specs().iter().position(|s| s.integral).unwrap();
    assert_eq!(m.store.get(ParamId(table as u32)).dtype(), DType::F32);
}
