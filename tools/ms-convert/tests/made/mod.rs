//! Synthetic models, and the program as a user runs it.

#![allow(dead_code)] // each test file uses its part

use std::path::Path;

use assert_cmd::Command;
use ms_core::DType;

pub(crate) fn ms_convert(args: &[&str]) -> assert_cmd::assert::Assert {
    Command::cargo_bin("ms-convert").unwrap().args(args).assert()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a model in bf16 as `config.json` describes it, with values between -0.5 and 0.5 that fall by each weight's name.
pub(crate) fn model(dir: &Path, config: &serde_json::Value) {
    let config = ms_spec::hf::read_config(config).unwrap();
    ms_ckpt::write_hf(dir, &config, DType::Bf16, false, &mut |spec| {
        let mut x = spec.name.bytes().fold(7u32, |h, b| h.wrapping_mul(31) ^ u32::from(b));
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (x >> 8) as f32 / 16_777_216.0 - 0.5;
            ((value.to_bits() >> 16) as u16).to_le_bytes()
        };
        Ok((0..spec.shape.numel()).flat_map(|_| next()).collect())
    })
    .unwrap();
}
