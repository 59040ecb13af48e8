//! The sample models.

use ms_spec::ModelConfig;
use ms_testing::{golden_model, golden_models};

/// Those that only Megatron's arguments describe.
const BY_ARGUMENTS: [&str; 3] = ["gpt4_moe", "grok", "hybrid"];

/// All sample models that there are here, by name, with positions for 64 tokens. None is passed over: one that cannot be read
/// fails the test.
pub(crate) fn samples() -> Vec<(String, ModelConfig)> {
    let mut names = golden_models();
    names.extend(BY_ARGUMENTS.map(str::to_owned));
    names.sort();
    let with_config = |name: String| {
        let c = config(&name);
        (name, c)
    };
    names.into_iter().map(with_config).collect()
}

fn config(name: &str) -> ModelConfig {
    let dir = golden_model(name).unwrap_or_else(|| panic!("{name}: no such sample"));
    let path = dir.join("config.json");
    let read = || {
        let text = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
        let json = ms_spec::hf::parse_json(&text).map_err(|e| e.to_string())?;
        ms_spec::hf::read_config(&json).map_err(|e| e.to_string())
    };
    let mut c = match BY_ARGUMENTS.contains(&name) {
        true => ms_ckpt::open(&dir).map(|checkpoint| checkpoint.config().clone()).map_err(|e| e.to_string()),
        false => read(),
    }
    .unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    c.max_positions = c.max_positions.max(64);
    c
}
