//! DeepSeek-V4: names, integer tensors among the weights, and files of other programs.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::path::Path;

use ms_ckpt::layout::mcore::{Experts, FileGrid, Spelling};
use ms_ckpt::{ArgsForm, Checkpoint, HfLayout, Plan, Run, RunOptions, open};
use ms_core::{DType, GridSizes, Region};
use ms_spec::{ModelConfig, Stages, params};
use serde_json::{Map, Value};

const RUN: RunOptions = RunOptions { threads: 1, sync: false, replace: false };

fn sample() -> std::path::PathBuf {
    ms_testing::golden_model("deepseek_v4").unwrap()
}

/// Every parameter's values.
fn values(source: &Checkpoint) -> Vec<(String, Vec<u8>)> {
    let read = |spec: &ms_spec::ParamSpec| {
        let mut out = vec![0; 4 * spec.shape.numel()];
        source.read(spec, &Region::whole(&spec.shape), DType::F32, &mut out).unwrap();
        (spec.name.clone(), out)
    };
    params(source.config()).iter().map(read).collect()
}

/// The sample as `save_pretrained` of transformers 5.23 names its tensors.
fn respelled(to: &Path) {
    let bytes = std::fs::read(sample().join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let rename = |name: String| match name.as_str() {
        "__metadata__" | "head.weight" => name,
        "embed.weight" => "model.embed_tokens.weight".to_owned(),
        _ => {
            let name = name.replace("hc_head_", "hc_head.hc_").replace(".kv_norm.", ".norm.");
            format!("model.{name}")
        }
    };
    let header: Map<String, Value> = header.into_iter().map(|(name, v)| (rename(name), v)).collect();
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out.extend(&bytes[8 + length..]);
    std::fs::write(to.join("model.safetensors"), out).unwrap();
    std::fs::copy(sample().join("config.json"), to.join("config.json")).unwrap();
}

#[test]
fn names_that_transformers_writes_are_read_and_written_again() {
    let dir = tempfile::tempdir().unwrap();
    respelled(dir.path());
    let source = open(dir.path()).unwrap();
    assert_eq!(values(&source), values(&open(&sample()).unwrap()));
    let layout = HfLayout::find(dir.path()).unwrap().unwrap();
    let like = Plan::hf_like(source.config(), &layout, &|name| source.dtype(name)).unwrap().unwrap();
    like.run(&source, &dir.path().join("like"), &RUN, &|_| ()).unwrap();
    let bytes = |dir: &Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert!(bytes(dir.path()) == bytes(&dir.path().join("like")));
}

fn convert(to: &Path, file_grid: &FileGrid, experts: Experts) {
    let source = open(&sample()).unwrap();
    let spelling = Spelling { experts, ..Spelling::default() };
    let dtype = |name: &str| source.dtype(name);
    let plan =
        Plan::mcore(source.config(), file_grid, spelling, ArgsForm::Namespace, &dtype, &Run::default())
            .unwrap();
    plan.run(&source, to, &RUN, &|_| ()).unwrap();
}

#[test]
fn files_of_all_pairs_of_ranks_of_whole_experts_are_read() {
    // Upstream's converter of this family writes a file for every pair, but a run has only half of them.
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("mcore");
    let whole_experts = GridSizes { tp: 2, ep: 4, etp: Some(1), ..GridSizes::default() };
    convert(&to, &FileGrid::new(&whole_experts, Stages::default(), false).unwrap(), Experts::Grouped);
    let folder = |t: usize, e: usize| to.join(format!("iter_0000001/mp_rank_{t:02}_{e:03}"));
    for (t, e) in [(0, 1), (1, 0), (0, 3), (1, 2)] {
        assert!(!folder(t, e).exists());
        std::fs::create_dir(folder(t, e)).unwrap();
        let name = "model_optim_rng.pt";
        std::fs::copy(folder(1 - t, e).join(name), folder(t, e).join(name)).unwrap();
    }
    assert_eq!(values(&open(&to).unwrap()), values(&open(&sample()).unwrap()));
}

#[test]
fn megatrons_files_have_upstreams_names_and_the_table_stays_integers() {
    let config = open(&sample()).unwrap().config().clone();
    let config = ModelConfig { mtp: 1, ..config };
    let spelling = Spelling { experts: Experts::Grouped, ..Spelling::default() };
    let all = |_: &str| Ok(DType::Bf16);
    let plan =
        Plan::mcore(&config, &FileGrid::default(), spelling, ArgsForm::Namespace, &all, &Run::default())
            .unwrap();
    let of = |name: &str| plan.files[0].tensors.iter().find(|t| t.name == name);
    for (name, shape) in [
        ("embedding.word_embeddings.weight", vec![128, 32]),
        ("decoder.layers.0.attn_mhc.hc_fn.weight", vec![15, 96]),
        ("decoder.layers.0.mlp_mhc.hc_scale", vec![3]),
        ("decoder.layers.0.self_attention.attn_sink", vec![4]),
        ("decoder.layers.0.self_attention.linear_q.weight", vec![20, 32]),
        ("decoder.layers.0.self_attention.linear_q_up_proj.weight", vec![64, 20]),
        ("decoder.layers.0.self_attention.linear_kv.weight", vec![16, 32]),
        ("decoder.layers.0.self_attention.linear_o_down_proj.weight", vec![12, 32]),
        ("decoder.layers.0.self_attention.linear_o_up_proj.weight", vec![32, 12]),
        ("decoder.layers.1.self_attention.compressor.ape", vec![4, 32]),
        ("decoder.layers.1.self_attention.indexer.kv_compressor.wgate.weight", vec![16, 32]),
        ("decoder.layers.1.self_attention.indexer.weights_proj.weight", vec![4, 32]),
        ("decoder.layers.2.self_attention.compressor.norm.weight", vec![16]),
        ("decoder.layers.2.mlp.router.expert_bias", vec![8]),
        ("decoder.layers.0.mlp.router.tid2eid", vec![128, 3]),
        ("decoder.layers.0.mlp.experts.weight1", vec![32, 192]),
        ("final_layernorm.weight", vec![32]),
        ("hc_head.hc_fn.weight", vec![3, 96]),
        ("mtp.layers.0.eh_proj.weight", vec![32, 64]),
        ("mtp.layers.0.hc_head.hc_base", vec![3]),
        ("mtp.layers.0.transformer_layer.attn_mhc.hc_base", vec![15]),
        ("mtp.final_layernorms.0.weight", vec![32]),
    ] {
        let found = of(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(found.shape, shape, "{name}");
        assert_eq!(found.dtype, if name.ends_with("tid2eid") { DType::I64 } else { DType::Bf16 }, "{name}");
    }
    assert!(of("decoder.layers.0.mlp.router.expert_bias").is_none());
    assert!(of("decoder.layers.2.self_attention.indexer.wq_b.weight").is_none());
}
