//! Upstream's own command lines, unchanged.

use super::{ms_convert, stdout, text};
use ms_testing::tree;
use std::path::Path;

#[test]
fn upstreams_argument_lists_work_unchanged() {
    let at = |relative: &str| ms_testing::converted_model(relative).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut ran = 0;
    let cases = [
        "v200_llama2_hf2mcore_tp2",
        "v200_llama2_hf2mcore_tp2pp2",
        "v200_llama2_hf2mcore_tp4pp2_vpp1",
        "v200_llama2_hf2mcore_pp2_dpp1_3",
        "v200_llama2_hf2mcore_pp2_noop1_5",
        "v200_vocab1003_hf2mcore_tp4",
        "v200_vocab1003_hf2mcore_tp2_div64",
        "v200_qwen2_tied_hf2mcore_tp2pp2_vpp1",
        "v200_llama2_mcore2hf",
        "v200_llama2_mcore2mcore_tp1pp4",
        "head_llama2_hf2mcore_tp2pp2",
        "head_qwen3_hf2mcore_tp2pp2",
        "head_qwen3_hf2mcore_te_pp2",
        "head_qwen3_mcore2hf",
        "head_magistral_hf2mcore_tp2pp2",
    ];
    for case in cases {
        // The repository has the cases of two models; the others are outside it.
        let Some(folder) = ms_testing::golden_or_shared(&format!("convert/{case}")) else { continue };
        let command = std::fs::read_to_string(folder.join("cmd.txt")).unwrap();
        let line = command.lines().find(|l| l.starts_with("python ")).unwrap().split('#').next().unwrap();
        let out = dir.path().join(case);
        let mut args: Vec<String> = Vec::new();
        for word in line.split_whitespace().skip(2) {
            let value = match word {
                "OUT" => text(&out).to_owned(),
                w if w.starts_with("OUTPUT_OF/") => text(&dir.path().join(&w[10..])).to_owned(),
                w if w.starts_with("COPY_OF/") => {
                    // The output folder of this one is the original model's.
                    std::fs::create_dir(&out).unwrap();
                    for (name, bytes) in tree(&at(&w[8..])) {
                        std::fs::write(out.join(name), bytes).unwrap();
                    }
                    text(&out).to_owned()
                }
                w if w.starts_with("models/") || w.starts_with("convert/") => text(&at(w)).to_owned(),
                w => w.to_owned(),
            };
            args.push(value);
        }
        if case.starts_with("head") {
            args.extend(["--upstream".to_owned(), "head".to_owned()]);
        }
        ms_convert(&args.iter().map(String::as_str).collect::<Vec<_>>()).success();
        let made = if case == "v200_llama2_mcore2hf" { out.join("mg2hf") } else { out };
        let manifest: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(folder.join("manifest.json")).unwrap()).unwrap();
        for name in manifest.as_object().unwrap().keys() {
            assert!(made.join(name).is_file(), "{case}: {name}");
        }
        // Values are compared tensor by tensor in ms-ckpt's tests; here, that the result opens.
        ms_convert(&["inspect", text(&made), "--json"]).success();
        ran += 1;
    }
    assert!(ran >= 10);
}

#[test]
fn the_scripts_for_deepseek_v3_work_with_their_own_flags() {
    // The repository's, of three layers, and the one that upstream converted, where it is.
    let own = ms_testing::golden("convert/src/deepseek_v3_predicting");
    let beside = ms_testing::shared("goldens/convert/src/deepseek_v3_mtp");
    for model in std::iter::once(own).chain(beside) {
        go_there_and_back_by_scripts(&model);
    }
}

fn go_there_and_back_by_scripts(model: &Path) {
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap();
    let layers = config["num_hidden_layers"].as_u64().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (mcore, hf) = (dir.path().join("mcore"), dir.path().join("hf"));
    // As examples/mcore/deepseek3 writes them, for a smaller model.
    let (slots, noop) = ((layers + layers % 2).to_string(), layers.to_string());
    let mut there = vec![
        "--moe-grouped-gemm",
        "--target-tensor-parallel-size",
        "2",
        "--target-pipeline-parallel-size",
        "2",
    ];
    there.extend([
        "--target-expert-parallel-size",
        "2",
        "--load-dir",
        text(model),
        "--save-dir",
        text(&mcore),
    ]);
    there.extend(["--num-layers", &slots, "--num-nextn-predict-layers", "1"]);
    if layers % 2 == 1 {
        there.extend(["--noop-layers", &noop]);
    }
    ms_convert(&there).success();
    // The script's output has no arguments, so the model is described where upstream has it too: next to it.
    std::fs::copy(model.join("config.json"), mcore.join("config.json")).unwrap();
    let mut back = vec![
        "--moe-grouped-gemm",
        "--source-tensor-parallel-size",
        "2",
        "--source-pipeline-parallel-size",
        "2",
    ];
    back.extend(["--source-expert-parallel-size", "2", "--load-dir", text(&mcore), "--save-dir", text(&hf)]);
    back.extend(["--num-layers", &slots, "--num-nextn-predict-layers", "1", "--ai-framework", "mindspore"]);
    ms_convert(&back).success();
    let said = stdout(&ms_convert(&["diff", text(model), text(&hf)]).success());
    assert!(said.contains("tensors are equal"), "{said}");
}
