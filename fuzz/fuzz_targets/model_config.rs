//! A `config.json` of any text: refused, or a sound model whose parameters can be listed, counted and described again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_fuzz::{described, seed};

fn seeds() {
    let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
    for folder in std::fs::read_dir(models).into_iter().flatten().flatten() {
        if let Ok(bytes) = std::fs::read(folder.path().join("config.json")) {
            seed(&folder.file_name().to_string_lossy(), &bytes);
        }
    }
}

fuzz_target!(init: seeds(), |text: &str| {
    let Ok(json) = ms_spec::hf::parse_json(text) else { return };
    let Ok(config) = ms_spec::hf::read_config(&json) else { return };
    described(&config);
});
