//! Every model family compared with the logits of Hugging Face transformers, in one pass and token by token through the
//! cache.

#![allow(clippy::unwrap_used)] // tests

use ms_core::DType;
use ms_generate::{LoadedModel, Session};
use ms_testing::{assert_close, golden_model, read_golden};

struct Golden {
    model: LoadedModel,
    tokens: Vec<i32>,
    /// `[B, S, V]`.
    logits: Vec<f64>,
    seq: usize,
    tolerance: f64,
}

fn open(family: &str) -> Option<Golden> {
    let dir = golden_model(family)?;
    let golden: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("golden.json")).unwrap()).unwrap();
    let (reference, _) = read_golden(&dir.join("reference.safetensors"));
    let ids = &reference["input_ids"];
    let seq = ids.shape[1];
    let model = LoadedModel::open(&dir, DType::F32, ms_cpu::device(1).unwrap(), Some(seq));
    Some(Golden {
        model: model.unwrap_or_else(|e| panic!("{family}: {e}")),
        tokens: ids.i64().iter().map(|&t| t as i32).collect(),
        logits: reference["logits"].values.clone(),
        seq,
        tolerance: golden["suggested_atol_float32"].as_f64().unwrap(),
    })
}

fn check(family: &str) {
    let Some(g) = open(family) else { return };
    let borders: Vec<i32> = (0..=g.tokens.len() / g.seq).map(|b| (b * g.seq) as i32).collect();
    let got = g.model.logits(&g.tokens, &borders).unwrap_or_else(|e| panic!("{family}: {e}"));
    assert_close(family, &got, &g.logits, 0.0, g.tolerance);

    let row = g.logits.len() / g.tokens.len();
    let mut session = Session::new(&g.model, 1, g.seq);
    let tokens: Vec<u32> = g.tokens[..g.seq].iter().map(|&t| t as u32).collect();
    let first = g.seq / 2;
    for end in first..=g.seq {
        let got = if end == first {
            session.start(&[(0, &tokens[..first])])
        } else {
            session.next(&[(0, tokens[end - 1])])
        };
        // A beginning that turns otherwise than the whole gives what it gives alone.
        let alone = if g.model.model.is_short(end) && !g.model.model.is_short(g.seq) {
            let all = g.model.logits(&g.tokens[..end], &[0, end as i32]).unwrap();
            Some(all[all.len() - row..].to_vec())
        } else {
            None
        };
        let want = alone.as_deref().unwrap_or(&g.logits[(end - 1) * row..end * row]);
        assert_close(
            &format!("{family}, token {end} through the cache"),
            &got.unwrap()[0],
            want,
            0.0,
            g.tolerance,
        );
    }
    // Another sequence that begins like this one, after going back.
    let mut other = tokens[..first + 1].to_vec();
    other[first] = (other[first] + 1) % row as u32;
    let again = session.start(&[(0, &other)]).unwrap().swap_remove(0);
    let fresh = Session::new(&g.model, 1, g.seq).start(&[(0, &other)]).unwrap().swap_remove(0);
    assert_close(&format!("{family}, after going back"), &again, &fresh, 1e-4, 1e-4);
}

ms_testing::golden_model_tests!(check);
