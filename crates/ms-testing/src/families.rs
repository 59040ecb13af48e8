//! The tiny models with known logits: where they are and what they are called.

use crate::{golden_or_shared, shared, workspace_root};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The prefix of the names of larger samples of the same families, which are outside the repository.
const BESIDE: &str = "shared/";

/// Folder of a golden model: the repository's or, for a name that begins with `shared/`, the one among the shared reference
/// values (`None` if those are absent).
///
/// # Panics
/// If the repository has no such model.
pub fn golden_model(name: &str) -> Option<PathBuf> {
    if let Some(name) = name.strip_prefix(BESIDE) {
        return shared("goldens/models").map(|dir| dir.join(name));
    }
    let own = ["tests/golden/models", "tests/golden/models-by-arguments"]
        .map(|folder| workspace_root().join(folder).join(name));
    let own = own.into_iter().find(|dir| dir.is_dir());
    Some(own.unwrap_or_else(|| panic!("{name}: no such sample")))
}

/// The name of a golden model without the prefix of those outside the repository.
pub fn form_of(name: &str) -> &str {
    name.strip_prefix(BESIDE).unwrap_or(name)
}

/// A model that upstream's converters read, by its place among the reference values: those whose results are in the
/// repository, or those outside it, for which the repository has other models under the same names.
pub fn converted_model(relative: &str) -> Option<PathBuf> {
    let anew = relative.starts_with("models/") && relative != "models/llama2_mha";
    if anew { shared(&format!("goldens/{relative}")) } else { golden_or_shared(relative) }
}

/// The names of all folders of golden models that exist here, in order.
///
/// # Panics
/// If a folder cannot be listed.
pub fn golden_models() -> Vec<String> {
    let own = Some(workspace_root().join("tests/golden/models"));
    let folders = [("", own), (BESIDE, shared("goldens/models"))];
    let mut names = BTreeSet::new();
    for (prefix, dir) in folders.into_iter().filter_map(|(prefix, dir)| Some((prefix, dir?))) {
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let entry = entry.expect("a folder can be listed to its end");
            if entry.path().is_dir() {
                names.insert(format!("{prefix}{}", entry.file_name().to_string_lossy()));
            }
        }
    }
    // The repository has the same files.
    names.remove("shared/llama2_mha");
    names.into_iter().collect()
}

/// A test per golden model, each calling `$check(name)`, and one that none was forgotten.
#[macro_export]
macro_rules! golden_model_tests {
    ($check:ident) => {
        $crate::golden_model_names! { golden_model_tests $check }

        /// Larger samples of the same families, where they are.
        mod beside_the_project {
            $crate::golden_model_tests! {
                beside $check:
                baichuan_7b bloom chatglm3 deepseek_v2_lite deepseek_v3 deepseek_v32 gemma2 glm45_air glm4_0414 glm_9b_chat
                hy_v3 internlm2 ling_v2 llama3_gqa mamba2 minicpm3 minimax_m2 mistral_swa mixtral phi3_longrope phimoe
                qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next
            }
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
            for name in $crate::golden_models().iter().filter(|name| !name.starts_with("shared/")) {
                assert!(known.contains(&name.as_str()), "{name} is not tested");
            }
        }
    };
    (beside $check:ident: $($name:ident)*) => {
        $(#[test]
        fn $name() {
            super::$check(concat!("shared/", stringify!($name)));
        })*

        #[test]
        fn every_golden_model_is_tested() {
            let known = [$(concat!("shared/", stringify!($name))),*];
            for name in $crate::golden_models().iter().filter(|name| name.starts_with("shared/")) {
                assert!(known.contains(&name.as_str()), "{name} is not tested");
            }
        }
    };
}
