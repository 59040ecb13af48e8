//! Every model family against the logits of Hugging Face transformers, whole and token by token through the cache.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{DType, Device};
use ms_generate::{LoadedModel, Session};
use ms_testing::{assert_close, read_golden, sample_model, sample_models};

struct Golden {
    model: LoadedModel,
    tokens: Vec<i32>,
    /// `[B, S, V]`.
    logits: Vec<f64>,
    seq: usize,
    tolerance: f64,
}

fn open(family: &str) -> Option<Golden> {
    let dir = sample_model(family)?;
    let golden: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("golden.json")).unwrap()).unwrap();
    let (reference, _) = read_golden(&dir.join("reference.safetensors"));
    let ids = &reference["input_ids"];
    let seq = ids.shape[1];
    let model = LoadedModel::open(&dir, DType::F32, Device::cpu(1).unwrap(), Some(seq));
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
    let mut session = Session::new(&g.model, g.seq);
    let tokens: Vec<u32> = g.tokens[..g.seq].iter().map(|&t| t as u32).collect();
    let first = g.seq / 2;
    for end in first..=g.seq {
        let got =
            if end == first { session.prefill(&tokens[..first]) } else { session.next(tokens[end - 1]) };
        let want = &g.logits[(end - 1) * row..end * row];
        assert_close(
            &format!("{family}, token {end} through the cache"),
            &got.unwrap(),
            want,
            0.0,
            g.tolerance,
        );
    }
    // Another sequence that begins like this one, after going back.
    let mut other = tokens[..first + 1].to_vec();
    other[first] = (other[first] + 1) % row as u32;
    let again = session.prefill(&other).unwrap();
    let fresh = Session::new(&g.model, g.seq).prefill(&other).unwrap();
    let fresh: Vec<f64> = fresh.iter().map(|&v| f64::from(v)).collect();
    assert_close(&format!("{family}, after going back"), &again, &fresh, 1e-4, 1e-4);
}

/// Samples with a part that cannot be computed yet: refused by name, never computed wrongly.
const NOT_COMPUTED: &[&str] = &["gpt_oss", "hunyuan_large", "longcat_flash"];

#[test]
fn models_with_parts_that_cannot_be_computed_are_refused_by_name() {
    for name in NOT_COMPUTED {
        let dir = sample_model(name).unwrap();
        let Err(refused) = LoadedModel::open(&dir, DType::F32, Device::cpu(1).unwrap(), None) else {
            panic!("{name} opens")
        };
        assert!(refused.to_string().contains("cannot be computed yet"), "{name}: {refused}");
    }
}

macro_rules! families {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        #[test]
        fn every_family_that_has_a_golden_is_tested() {
            let known = [$(stringify!($name)),*];
            for name in sample_models().keys().map(String::as_str) {
                assert!(known.contains(&name) || NOT_COMPUTED.contains(&name), "{name} is not tested");
            }
        }
    };
}

families! {
    aquila baichuan2_13b baichuan2_7b baichuan_13b baichuan_7b bloom chatglm3 deepseek_v2 deepseek_v2_lite deepseek_v3
    deepseek_v32 gemma gemma2 glm45_air glm4_0414 glm_9b_chat glm_moe_dsa gpt2 hunyuan_v1_moe hy_v3 internlm internlm2
    internlm3 kimi_k2 ling_v2 llama2_mha llama3_gqa mamba2 minicpm minicpm3 minicpm_moe minimax_m2 mistral_swa mixtral
    phi3_longrope phimoe plm qwen1 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next seed_oss
}
