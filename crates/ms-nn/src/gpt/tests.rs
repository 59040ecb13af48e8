//! What layers receive.

use super::*;
use half::bf16;
use ms_core::{ParamLayout, Rng};
use ms_spec::Scales;

/// The embedding of `ids` in bfloat16 by a model with `scales` and weights drawn from a fixed stream, and what it is by
/// definition: a product or a sum is rounded once, a factor not at all.
fn embedded(scales: Scales, position: Position, ids: &[i32]) -> (Vec<f64>, Vec<f64>) {
    embedded_at(NoiseSite::Embedding(0), false, scales, (scales, position, ids))
}

/// The same at another place, in one of the forms of prediction modules, with the factors `by`.
fn embedded_at(
    place: NoiseSite,
    mtp_hidden_first: bool,
    by: Scales,
    (scales, position, ids): (Scales, Position, &[i32]),
) -> (Vec<f64>, Vec<f64>) {
    let c = ModelConfig { scales, position, mtp_hidden_first, ..ModelConfig::tiny() };
    let device = ms_cpu::device(1).unwrap();
    let model = Gpt::new(&c, &device, c.max_positions).unwrap();
    let layout = Arc::new(ParamLayout::sequential(model.specs().iter().map(|s| s.shape)));
    let mut store = ParamStore::zeros(device.arena(), DType::Bf16, layout.clone());
    for (id, spec) in layout.ids().zip(model.specs()) {
        let mut values = vec![0f32; spec.shape.numel()];
        Rng::named(5, &spec.name).fill_normal(&mut values, 0.7);
        let values: Vec<f64> = values.into_iter().map(f64::from).collect();
        store.get_mut(id).unwrap().set_reals(&values).unwrap();
    }
    let places: Vec<i32> = (0..ids.len() as i32).collect();
    let batch = Batch::new(device.arena(), ids, &places, &[0, ids.len() as i32]).unwrap();
    let (mut g, ctx) = (Graph::inference(&device), ParallelCtx::single());
    let mut pass = Pass::new(&mut g, &store, &ctx, &batch);
    let got = model.embed(&mut pass, &batch.tokens, place).unwrap();
    let scales = by;

    let embedding = model.embedding.as_ref().unwrap();
    let table = |id| store.get(id).to_reals().unwrap();
    let (words, positions) = (table(embedding.table), embedding.positions.map(table));
    let round = |x: f32| bf16::from_f32(x).to_f32();
    let root = round((c.hidden as f32).sqrt());
    let mut want = Vec::new();
    for (t, &id) in ids.iter().enumerate() {
        for i in 0..c.hidden {
            let mut x = round(words[id as usize * c.hidden + i] as f32 * scales.embedding as f32);
            x = positions.as_ref().map_or(x, |p| round(x + p[t * c.hidden + i] as f32));
            x = round(x * scales.summed as f32);
            want.push(f64::from(if scales.root { round(x * root) } else { x }));
        }
    }
    (got.value().to_reals().unwrap(), want)
}

/// Upstream: the decoder multiplies by the root, and models of 2026 by `--scale-emb`; modules embed by themselves.
#[test]
fn prediction_modules_see_embeddings_without_the_root_of_the_width() {
    let ids: Vec<i32> = (0..32).collect();
    let all = Scales { embedding: 1.7, summed: 0.3, root: true, ..Scales::default() };
    for position in [Position::Rope, Position::Learned] {
        for (windows, by) in
            [(true, Scales { root: false, ..all }), (false, Scales { embedding: 1.7, ..Scales::default() })]
        {
            let (got, want) = embedded_at(NoiseSite::Embedding(1), windows, by, (all, position, &ids));
            assert_eq!(got, want, "{position:?} {windows}");
        }
    }
}

#[test]
fn factors_of_the_embedding_are_not_rounded_but_for_the_root() {
    let ids: Vec<i32> = (0..32).collect();
    let grok = Scales { embedding: 78.383_671_769_061_69, ..Scales::default() };
    let (got, want) = embedded(grok, Position::Rope, &ids);
    assert_eq!(got, want);
    let rounded = Scales { embedding: 78.5, ..grok };
    let (other, _) = embedded(rounded, Position::Rope, &ids);
    let changed = got.iter().zip(&other).filter(|(a, b)| a != b).count();
    assert!(changed > got.len() / 5, "{changed} of {}", got.len()); // of PyTorch's normal numbers 27 %

    // All at once; with learned positions two of them act on the sum.
    for position in [Position::Rope, Position::Learned] {
        let all = Scales { embedding: 1.7, summed: 0.3, root: true, ..Scales::default() };
        let (got, want) = embedded(all, position, &ids);
        assert_eq!(got, want, "{position:?}");
    }
}
