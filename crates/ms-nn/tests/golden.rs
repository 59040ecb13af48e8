//! The decoder compared with other programs: logits of `transformers`, losses and gradient norms of PyTorch.
//!
//! Weights are read and packed here in the simplest way, independently of `ms-ckpt`, so that a mistake in either shows.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{DType, Device, GradBuffer, Graph, ParamId, ParamLayout, ParamStore, Tensor};
use ms_dist::ParallelCtx;
use ms_nn::{Batch, Gpt};
use ms_spec::{ModelConfig, params};
use ms_testing::{Golden, assert_close, golden_model, golden_or_shared, read_golden};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

type Weights = BTreeMap<String, Golden>;

/// The rows of per-head weights, packed by key/value group: its query heads, its key head, its value head.
fn pack_qkv(c: &ModelConfig, [q, k, v]: [&Golden; 3]) -> Vec<f32> {
    let rows = |t: &Golden, head: usize, heads: usize| {
        let len = t.values.len() / (c.groups * heads);
        t.f32()[head * len..(head + 1) * len].to_vec()
    };
    let n = c.heads / c.groups;
    (0..c.groups)
        .flat_map(|g| {
            let queries = (0..n).flat_map(move |i| rows(q, g * n + i, n));
            queries.chain(rows(k, g, 1)).chain(rows(v, g, 1)).collect::<Vec<_>>()
        })
        .collect()
}

/// The weight with canonical name `name` out of a Hugging Face checkpoint.
fn canonical(c: &ModelConfig, hf: &Weights, name: &str) -> Vec<f32> {
    let get = |n: &str| hf.get(n).unwrap_or_else(|| panic!("the golden has {n}"));
    let Some(rest) = name.strip_prefix("decoder.layers.") else {
        let hf_name = match name {
            "embedding.word_embeddings.weight" => "model.embed_tokens.weight",
            "decoder.final_layernorm.weight" => "model.norm.weight",
            "output_layer.weight" => "lm_head.weight",
            other => panic!("no rule for {other}"),
        };
        return get(hf_name).f32();
    };
    let (layer, part) = rest.split_once('.').expect("a layer number");
    let of = |n: &str| get(&format!("model.layers.{layer}.{n}"));
    let (module, kind) = part.rsplit_once('.').expect("weight or bias");
    match module {
        "self_attention.linear_qkv" => {
            pack_qkv(c, ["q_proj", "k_proj", "v_proj"].map(|p| of(&format!("self_attn.{p}.{kind}"))))
        }
        "mlp.linear_fc1" => {
            [of(&format!("mlp.gate_proj.{kind}")).f32(), of(&format!("mlp.up_proj.{kind}")).f32()].concat()
        }
        _ => {
            let hf_module = match module {
                "input_layernorm" => "input_layernorm",
                "pre_mlp_layernorm" => "post_attention_layernorm",
                "self_attention.linear_proj" => "self_attn.o_proj",
                "self_attention.q_layernorm" => "self_attn.q_norm",
                "self_attention.k_layernorm" => "self_attn.k_norm",
                "mlp.linear_fc2" => "mlp.down_proj",
                other => panic!("no rule for {other}"),
            };
            of(&format!("{hf_module}.{kind}")).f32()
        }
    }
}

struct Loaded {
    device: Device,
    model: Gpt,
    store: ParamStore,
    layout: Arc<ParamLayout>,
}

fn load(dir: &Path, dtype: DType, max_position: usize) -> Loaded {
    let json = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let config = ms_spec::hf::read_config(&json).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|p| {
            p.file_name().unwrap().to_string_lossy().starts_with("model")
                && p.extension().unwrap() == "safetensors"
        })
        .collect();
    files.sort();
    let hf: Weights = files.iter().flat_map(|f| read_golden(f).0).collect();
    let device = ms_cpu::device(1).unwrap();
    let model = Gpt::new(&config, &device, max_position).unwrap();
    let layout = Arc::new(ParamLayout::sequential(model.specs().iter().map(|s| s.shape)));
    let mut store = ParamStore::zeros(device.arena(), DType::F32, layout.clone());
    for (i, spec) in params(&config).iter().enumerate() {
        let values = canonical(&config, &hf, &spec.name);
        let mut view = store.get_mut(ParamId(i as u32)).unwrap();
        view.as_mut_slice::<f32>().unwrap().copy_from_slice(&values);
    }
    if dtype != DType::F32 {
        let values = device.cast(store.values(), dtype).unwrap();
        store = ParamStore::zeros(device.arena(), dtype, layout.clone());
        store.replace(0, values).unwrap();
    }
    Loaded { device, model, store, layout }
}

fn logits(m: &Loaded, ids: &[i32], seq: usize) -> Vec<f32> {
    let ctx = ParallelCtx::single();
    let batch = Batch::uniform(m.device.arena(), ids, seq).unwrap();
    let mut g = Graph::inference(&m.device);
    let hidden = m.model.forward(&mut g, &m.store, &ctx, &batch).unwrap();
    m.model.logits(&m.device, &m.store, hidden.value()).unwrap().to_f32_vec().unwrap()
}

#[test]
fn logits_are_those_of_transformers() {
    let own = ["llama2_mha", "llama3_gqa", "qwen2", "qwen3"];
    for family in own.into_iter().chain(["shared/llama3_gqa", "shared/qwen2", "shared/qwen3"]) {
        let Some(dir) = golden_model(family) else { continue };
        let (reference, _) = read_golden(&dir.join("reference.safetensors"));
        let (ids, want) = (&reference["input_ids"], &reference["logits"]);
        let seq = *ids.shape.last().unwrap();
        let tokens: Vec<i32> = ids.i64().iter().map(|&t| t as i32).collect();
        let m = load(&dir, DType::F32, seq);
        assert_close(family, &logits(&m, &tokens, seq), &want.values, 0.0, 5e-4);

        // The same tokens through the cache: a prefill, then one token at a time.
        let vocab = want.shape[2];
        let mut cache = m.model.cache(&m.device, DType::F32, 1, seq);
        let ctx = ParallelCtx::single();
        let mut got = Vec::new();
        let first = seq / 2;
        for chunk in std::iter::once(&tokens[..first]).chain(tokens[first..seq].chunks(1)) {
            let hidden = m.model.extend(&m.device, &m.store, &ctx, &mut cache, &[(0, chunk)]).unwrap();
            got.extend(m.model.logits(&m.device, &m.store, &hidden).unwrap().to_f32_vec().unwrap());
        }
        assert_close(&format!("{family}, cached"), &got, &want.values[..seq * vocab], 0.0, 5e-4);
        assert!(m.model.extend(&m.device, &m.store, &ctx, &mut cache, &[(0, &[1])]).is_err());
    }
}

#[test]
fn the_first_training_step_has_the_golden_loss_and_gradient_norm() {
    for case in ["dense", "masked", "llama-tiny", "llama-tiny-sft"] {
        let Some(dir) = golden_or_shared(&format!("train/{case}")) else {
            assert!(case.contains("tiny"), "{case} is the repository's own");
            continue;
        };
        let golden: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join("golden.json")).unwrap()).unwrap();
        let (data, _) = read_golden(&dir.join("data.safetensors"));
        let (tokens, mask) = (&data["tokens"], &data["loss_mask"]);
        let (gbs, width) = (tokens.shape[1], tokens.shape[2]);
        let (seq, mbs) = (width - 1, golden["config"]["mbs"].as_u64().unwrap() as usize);
        let m = load(&dir, DType::F32, seq);
        let ctx = ParallelCtx::single();
        let mut grads = GradBuffer::zeros(m.device.arena(), DType::F32, m.layout.clone());
        let mut loss = 0.0;
        for rows in (0..gbs).step_by(mbs) {
            let row = |r: usize| {
                tokens.i64()[r * width..(r + 1) * width].iter().map(|&t| t as i32).collect::<Vec<_>>()
            };
            let inputs: Vec<i32> = (rows..rows + mbs).flat_map(|r| row(r)[..seq].to_vec()).collect();
            let labels: Vec<i32> = (rows..rows + mbs).flat_map(|r| row(r)[1..].to_vec()).collect();
            let mask = mask.f32()[rows * seq..(rows + mbs) * seq].to_vec();
            let counted: f32 = mask.iter().sum();
            let weights: Vec<f32> = mask.iter().map(|m| m / counted / (gbs / mbs) as f32).collect();
            let arena = m.device.arena();
            let batch = Batch::uniform(arena, &inputs, seq).unwrap();
            let labels = Tensor::from_slice(arena, [labels.len()], &labels).unwrap();
            let weights = Tensor::from_slice(arena, [weights.len()], &weights).unwrap();
            let mut g = Graph::train(&m.device);
            let hidden = m.model.forward(&mut g, &m.store, &ctx, &batch).unwrap();
            let out = m.model.loss(&mut g, &m.store, &ctx, &hidden, &labels, &weights).unwrap();
            loss += f64::from(out.loss.value().as_slice::<f32>().unwrap()[0]);
            let one = Tensor::from_slice(arena, [1], &[1f32]).unwrap();
            g.backward(&out.loss, one, &[], &mut grads).unwrap();
        }
        let norm = m.device.sum_squares(grads.values()).unwrap().value().sqrt();
        let want = &golden["steps_f64"][0];
        let (want_loss, want_norm) = (want["lm_loss"].as_f64().unwrap(), want["grad_norm"].as_f64().unwrap());
        assert!((loss - want_loss).abs() < 2e-5, "{case}: loss {loss}, want {want_loss}");
        assert!((norm / want_norm - 1.0).abs() < 1e-4, "{case}: gradient norm {norm}, want {want_norm}");
    }
}
