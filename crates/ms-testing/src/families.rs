//! The tiny models with known logits: where they live and what they are called.

use crate::{shared, workspace_root};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Folder of a golden model: in the repository, or among the shared reference values (`None` where those are absent).
pub fn golden_model(family: &str) -> Option<PathBuf> {
    let own = ["tests/golden/models", "tests/golden/models-by-arguments"]
        .map(|folder| workspace_root().join(folder).join(family));
    let own = own.into_iter().find(|dir| dir.is_dir());
    own.or_else(|| shared("goldens/models").map(|dir| dir.join(family)))
}

/// The names of all folders of golden models that exist here, in order.
///
/// # Panics
/// If a folder cannot be listed.
pub fn golden_models() -> Vec<String> {
    let folders = [Some(workspace_root().join("tests/golden/models")), shared("goldens/models")];
    let entries = folders.into_iter().flatten().flat_map(|dir| {
        let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        entries.map(|entry| entry.expect("a folder can be listed to its end")).filter(|e| e.path().is_dir())
    });
    let names: BTreeSet<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.into_iter().collect()
}

/// A test per golden model, each calling `$check(name)`, and one that none was forgotten.
#[macro_export]
macro_rules! golden_model_tests {
    ($check:ident) => {
        $crate::golden_model_tests! {
            $check:
            aquila baichuan2_13b baichuan2_7b baichuan_13b baichuan_7b bloom chatglm3 deepseek_v2 deepseek_v2_lite
            deepseek_v3 deepseek_v32 deepseek_v4 gemma gemma2 glm45_air glm4_0414 glm_9b_chat glm_moe_dsa gpt2 gpt_oss
            granite hunyuan_large hunyuan_v1_moe hy_v3 internlm internlm2 internlm3 kimi_k2 ling_v2 llama2_mha llama3_gqa
            longcat_flash mamba2 mamba3 mamba3_mimo minicpm minicpm3 minicpm_moe minimax_m2 mistral_swa mixtral
            olmo2 phi3_longrope phimoe plm qwen1 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next seed_oss step3p5
        }

        /// Models that only Megatron's arguments describe.
        mod described_by_arguments {
            #[test]
            fn grok() {
                super::$check("grok");
            }

            #[test]
            fn gpt4_moe() {
                super::$check("gpt4_moe");
            }

            #[test]
            fn hybrid() {
                super::$check("hybrid");
            }
        }
    };
    ($check:ident: $($name:ident)*) => {
        $(#[test]
        fn $name() {
            $check(stringify!($name));
        })*

        #[test]
        fn every_golden_model_is_tested() {
            let known = [$(stringify!($name)),*];
            for name in $crate::golden_models() {
                assert!(known.contains(&name.as_str()), "{name} is not tested");
            }
        }
    };
}
