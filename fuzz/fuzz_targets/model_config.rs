//! A `config.json` of any text: refused, or a sound model whose parameters can be listed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(json) = ms_spec::hf::parse_json(text) else { return };
    let Ok(config) = ms_spec::hf::read_config(&json) else { return };
    if config.layers <= 64 && config.moe.as_ref().is_none_or(|m| m.experts <= 1024) {
        assert!(!ms_spec::params(&config).is_empty());
        let _ = ms_spec::check_cut(&config, 2);
    }
});
