//! Conversions compared with the output of upstream's converters, tensor by tensor.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

mod manifest;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use manifest::json;
use ms_ckpt::layout::mcore::{FileGrid, Hints, Spelling};
use ms_ckpt::{ArgsForm, HfLayout, Plan, Relation, Run, RunOptions, Sharding, open, open_with};
use ms_core::{DType, GridSizes};
use ms_spec::{ModelConfig, Placement, Stages};
use ms_testing::golden;
use serde_json::Value;

const RUN: RunOptions = RunOptions { threads: 2, sync: false, replace: false };

/// Compares every file of a case's manifest with that in `out`.
fn compare(case: &Path, out: &Path) -> usize {
    for name in json(&case.join("manifest.json")).as_object().unwrap().keys() {
        assert!(out.join(name).is_file(), "{}: {name}", case.display());
    }
    let (wrong, count) = manifest::compare(case, out);
    assert!(wrong.is_empty(), "{}: {}", case.display(), wrong.join("\n"));
    count
}

/// The folder of a case, in the repository or outside it.
fn manifest_of(case: &str) -> PathBuf {
    ms_testing::golden_or_shared(&format!("convert/{case}")).unwrap()
}

struct Case {
    name: &'static str,
    source: &'static str,
    tp: usize,
    stages: Stages,
    dtype: Option<DType>,
    divisor: usize,
    spelling: Spelling,
}

fn case(name: &'static str, source: &'static str, tp: usize, pp: usize) -> Case {
    let v2 = name.starts_with("head");
    Case {
        name,
        source,
        tp,
        stages: Stages { pp, ..Stages::default() },
        dtype: (!v2).then_some(DType::Bf16),
        divisor: 1,
        spelling: Spelling::default(),
    }
}

fn convert(source: &Path, case: &Case, out: &Path) -> ModelConfig {
    let source = open(source).unwrap();
    let mut config = source.config().clone();
    config.padded_vocab = config.padded(case.divisor, case.tp);
    let dtype = |name: &str| case.dtype.map_or_else(|| source.dtype(name), Ok);
    let sizes = GridSizes { tp: case.tp, ..GridSizes::default() };
    let file_grid = FileGrid::new(&sizes, case.stages.clone(), false).unwrap();
    let plan = Plan::mcore(&config, &file_grid, case.spelling, ArgsForm::Namespace, &dtype, &Run::default())
        .unwrap();
    plan.run(&source, out, &RUN, &|_| ()).unwrap();
    config
}

#[test]
fn hugging_face_to_megatron_equals_upstreams_converters() {
    let (llama, vocab1003, qwen2, qwen3) =
        ("models/llama2_mha", "convert/src/llama_vocab1003", "models/qwen2", "models/qwen3");
    let mut cases = vec![
        case("v200_llama2_hf2mcore_tp2", llama, 2, 1),
        case("v200_llama2_hf2mcore_tp2pp2", llama, 2, 2),
        case("v200_llama2_hf2mcore_tp4pp2_vpp1", llama, 4, 2),
        case("v200_llama2_hf2mcore_pp2_dpp1_3", llama, 1, 2),
        case("v200_llama2_hf2mcore_pp2_noop1_5", llama, 1, 2),
        case("v200_vocab1003_hf2mcore_tp4", vocab1003, 4, 1),
        case("v200_vocab1003_hf2mcore_tp2_div64", vocab1003, 2, 1),
        case("v200_qwen2_tied_hf2mcore_tp2pp2_vpp1", qwen2, 2, 2),
        case("head_llama2_hf2mcore_tp2pp2", llama, 2, 2),
        case("head_qwen3_hf2mcore_tp2pp2", qwen3, 2, 2),
        case("head_qwen3_hf2mcore_te_pp2", qwen3, 1, 2),
        case("head_magistral_hf2mcore_tp2pp2", "models/mistral_swa", 2, 2),
    ];
    cases[0].dtype = Some(DType::F16);
    cases[2].stages.layers_per_chunk = Some(1);
    cases[3].stages.layer_list = Some(vec![1, 3]);
    cases[4].stages.noop = vec![1, 5];
    cases[6].divisor = 64;
    cases[7].stages.layers_per_chunk = Some(1);
    cases[10].spelling.transformer_engine = true;
    let mut ran = 0;
    for case in cases {
        // The repository has two of the models; the others are outside it.
        let Some(source) = ms_testing::converted_model(case.source) else { continue };
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        convert(&source, &case, &out);
        let count = compare(&manifest_of(case.name), &out);
        println!("{}: {count} tensors", case.name);
        assert!(count > 20);
        ran += 1;
    }
    assert!(ran >= 8);
}

#[test]
fn megatron_to_hugging_face_and_to_other_cuts_equals_upstreams_converters() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let stored = |source: &ms_ckpt::Checkpoint| {
        let dtypes: BTreeMap<String, DType> = source.tensors().map(|(n, _, d)| (n.to_owned(), d)).collect();
        move |name: &str| Ok(dtypes[name])
    };

    if let Some(qwen3) = ms_testing::converted_model("models/qwen3") {
        convert(&qwen3, &case("head", "", 2, 2), &path("qwen3"));
        let source = open(&path("qwen3")).unwrap();
        let plan = Plan::hf(source.config(), &stored(&source), Sharding::PerLayer).unwrap();
        plan.run(&source, &path("qwen3_hf"), &RUN, &|_| ()).unwrap();
        assert!(compare(&manifest_of("head_qwen3_mcore2hf"), &path("qwen3_hf")) > 20);
    }

    convert(&golden("models/llama2_mha"), &case("v200", "", 2, 2), &path("llama2"));
    let source = open(&path("llama2")).unwrap();
    let plan = Plan::hf(source.config(), &|_| Ok(DType::F16), Sharding::Bytes(1 << 40)).unwrap();
    plan.run(&source, &path("llama2_hf"), &RUN, &|_| ()).unwrap();
    assert!(compare(&manifest_of("v200_llama2_mcore2hf"), &path("llama2_hf")) > 20);

    convert(&path("llama2"), &case("v200", "", 1, 4), &path("llama2_pp4"));
    assert!(compare(&manifest_of("v200_llama2_mcore2mcore_tp1pp4"), &path("llama2_pp4")) > 20);
}

#[test]
fn upstreams_own_files_are_read_whatever_wrote_them() {
    for name in ["v200_llama2_hf2mcore_tp2", "head_llama2_hf2mcore_tp2pp2"] {
        let original = open(&golden("models/llama2_mha")).unwrap();
        let theirs = open(&golden(&format!("convert/{name}/output"))).unwrap();
        assert_eq!(theirs.iteration(), 1);
        assert_eq!(theirs.config().layers, 4);
        for spec in ms_spec::params(original.config()) {
            let whole = ms_core::Region::whole(&spec.shape);
            let [a, b] = [&original, &theirs].map(|source| {
                let mut out = vec![0; 4 * spec.shape.numel()];
                source.read(&spec, &whole, DType::F32, &mut out).unwrap();
                out
            });
            assert_eq!(a, b, "{name}: {}", spec.name);
        }
    }
}

/// The files of a folder, without their checksums.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = ms_testing::tree(dir);
    all.remove(Path::new(ms_ckpt::CHECKSUMS));
    all
}

#[test]
fn a_hugging_face_folder_comes_back_byte_for_byte() {
    let names = ["llama2_mha", "llama3_gqa", "mistral_swa", "qwen2", "qwen3"];
    let beside = names[1..].iter().map(|name| format!("shared/{name}"));
    for model in names.iter().map(|name| (*name).to_owned()).chain(beside) {
        let Some(original) = ms_testing::golden_model(&model) else { continue };
        let dir = tempfile::tempdir().unwrap();
        let layout = HfLayout::find(&original).unwrap().unwrap();
        convert(&original, &case("head", "", 2, 2), &dir.path().join("mcore"));
        let source = open(&dir.path().join("mcore")).unwrap();
        let dtypes: BTreeMap<String, DType> = source.tensors().map(|(n, _, d)| (n.to_owned(), d)).collect();
        let dtype = |name: &str| Ok(dtypes[name]);
        let like = Plan::hf_like(source.config(), &layout, &dtype).unwrap().unwrap();
        like.run(&source, &dir.path().join("like"), &RUN, &|_| ()).unwrap();
        // These samples were written by save_pretrained: a folder made anew is the same, too.
        let anew = Plan::hf(source.config(), &dtype, Sharding::Bytes(1 << 40)).unwrap();
        anew.run(&source, &dir.path().join("anew"), &RUN, &|_| ()).unwrap();
        let want = std::fs::read(original.join("model.safetensors")).unwrap();
        for made in ["like", "anew"] {
            let got = files(&dir.path().join(made));
            assert_eq!(got.len(), 1);
            assert!(got[Path::new("model.safetensors")] == want, "{model}: {made}");
        }
    }
}

#[test]
fn every_sample_model_is_read_and_written_again_byte_for_byte() {
    let names = ms_testing::golden_models();
    let mut models: Vec<PathBuf> = names.iter().filter_map(|name| ms_testing::golden_model(name)).collect();
    models.push(golden("convert/src/deepseek_v3_predicting"));
    models.extend(ms_testing::shared("goldens/convert/src/deepseek_v3_mtp"));
    for model in models {
        let source = open(&model).unwrap_or_else(|e| panic!("{}: {e}", model.display()));
        let dir = tempfile::tempdir().unwrap();
        let dtypes: BTreeMap<String, DType> = source.tensors().map(|(n, _, d)| (n.to_owned(), d)).collect();
        let dtype = |name: &str| Ok(dtypes[name]);
        let Some(layout) = HfLayout::find(&model).unwrap() else { continue };
        let like = Plan::hf_like(source.config(), &layout, &dtype).unwrap();
        let like = like.unwrap_or_else(|unlike| panic!("{}: files {unlike}", model.display()));
        like.run(&source, &dir.path().join("like"), &RUN, &|_| ()).unwrap();
        for (name, bytes) in files(&dir.path().join("like")) {
            assert!(
                bytes == std::fs::read(model.join(&name)).unwrap(),
                "{}: {}",
                model.display(),
                name.display()
            );
        }
    }
}

#[test]
fn every_sample_model_goes_through_megatrons_files_and_comes_back_byte_for_byte() {
    for name in ms_testing::golden_models() {
        let model = ms_testing::golden_model(&name).unwrap();
        let Some(layout) = HfLayout::find(&model).unwrap() else { continue };
        let config = open(&model).unwrap().config().clone();
        let tp = if ms_spec::check_cut(&config, 2).is_ok() { 2 } else { 1 };
        for (tp, pp) in [(1, 1), (tp, 2)] {
            let stages = Stages { pp, ..Stages::default() };
            let pp = if Placement::new(&config, &stages).is_ok() { pp } else { 1 };
            let dir = tempfile::tempdir().unwrap();
            convert(&model, &case("head", "", tp, pp), &dir.path().join("mcore"));
            std::fs::copy(model.join("config.json"), dir.path().join("mcore/config.json")).unwrap();
            let source =
                open(&dir.path().join("mcore")).unwrap_or_else(|e| panic!("{name} tp {tp} pp {pp}: {e}"));
            let dtype = |n: &str| source.dtype(n);
            let like = Plan::hf_like(source.config(), &layout, &dtype).unwrap();
            let like = like.unwrap_or_else(|unlike| panic!("{name}: files {unlike}"));
            like.run(&source, &dir.path().join("like"), &RUN, &|_| ()).unwrap();
            for (file, bytes) in files(&dir.path().join("like")) {
                let want = std::fs::read(model.join(&file)).unwrap();
                assert!(bytes == want, "{name} tp {tp} pp {pp}: {}", file.display());
            }
        }
    }
}

#[test]
fn prediction_layers_that_are_counted_but_not_there_are_left_out() {
    let model = ms_testing::golden_model("kimi_k2").unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(model.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let mut config = json(&model.join("config.json"));
    config["num_nextn_predict_layers"] = Value::from(1);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    assert_eq!(open(dir.path()).unwrap().config(), open(&model).unwrap().config());
    // Layers of something other than the model have numbers of their own.
    let bytes = std::fs::read(model.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let (header, data) = bytes[8..].split_at(length);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    header["vision.layers.90.norm.weight"] =
        serde_json::json!({"dtype": "U8", "shape": [8], "data_offsets": [data.len(), data.len() + 8]});
    let header = header.to_string();
    let all = [&header.len().to_le_bytes()[..], header.as_bytes(), data, &[0; 8]].concat();
    std::fs::write(dir.path().join("model.safetensors"), all).unwrap();
    assert_eq!(open(dir.path()).unwrap().config(), open(&model).unwrap().config());
}

#[test]
fn what_arguments_cannot_say_comes_back_from_a_file_of_ours_without_its_configuration() {
    for name in ["gpt_oss", "glm_moe_dsa", "hunyuan_large", "longcat_flash", "internlm3", "step3p5"] {
        let model = ms_testing::golden_model(name).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let config = convert(&model, &case("head", "", 1, 1), dir.path());
        assert_eq!(open(dir.path()).unwrap().config(), &config, "{name}");
    }
}

/// Its files say nothing of the cut, and every stage has both ends (`tests/golden/convert/mamba2_stages/make.py`).
#[test]
fn stages_of_upstreams_converter_of_mamba2_are_told_from_ranks_of_experts() {
    let source = open(&golden("convert/mamba2_stages/hf")).unwrap();
    let hints = Hints { model: Some(source.config().clone()), ..Hints::default() };
    let stages = open_with(&golden("convert/mamba2_stages/mg"), None, &hints).unwrap();
    let mut seen = 0;
    source
        .compare(&stages, &mut |one| {
            assert_eq!(one.relation, Relation::Equal, "{}", one.name);
            seen += 1;
        })
        .unwrap();
    assert_eq!(seen, source.tensors().count());
}
