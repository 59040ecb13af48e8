//! Hugging Face folders whose experts are 4-bit codes with a power of two per 32 of them, as gpt-oss is published.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::collections::BTreeMap;
use std::path::Path;

use ms_ckpt::open;
use ms_core::{DType, Region};
use serde_json::{Value, json};

mod safetensors;

use safetensors::{Tensor, read, write};

const FILE: &str = "model.safetensors";
const EXPERTS: usize = 4;
const HIDDEN: usize = 32;
const WIDTH: usize = 64;

/// Two copies of a sample: its experts as codes, and as the numbers that the codes stand for.
fn folders(root: &Path) -> BTreeMap<String, Tensor> {
    let model = ms_testing::golden_model("gpt_oss").unwrap();
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap();
    config["intermediate_size"] = json!(WIDTH);
    let mut codes = read(&model.join("model.safetensors"));
    let mut plain = codes.clone();
    let mut x = 7u32;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 16) as u8
    };
    // 1-bit sign, 2-bit exponent with bias 1, 1-bit mantissa: section 5.3.3 of the format.
    let number = |code: u8| {
        let (exponent, mantissa) = (i32::from(code >> 1 & 3), f64::from(code & 1));
        let size =
            if exponent == 0 { mantissa / 2.0 } else { (1.0 + mantissa / 2.0) * 2f64.powi(exponent - 1) };
        if code & 8 == 0 { size } else { -size }
    };
    for layer in 0..3 {
        for (name, rows, columns) in [("gate_up_proj", 2 * WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)] {
            let name = format!("model.layers.{layer}.mlp.experts.{name}");
            let all = EXPERTS * rows * columns;
            let four: Vec<u8> = (0..all).map(|_| next() & 15).collect();
            let factors: Vec<u8> = (0..all / 32).map(|_| 120 + next() % 9).collect();
            let mut numbers = vec![0; 2 * all];
            for (i, &code) in four.iter().enumerate() {
                let (e, row, column) = (i / columns / rows, i / columns % rows, i % columns);
                let value = number(code) * 2f64.powi(i32::from(factors[i / 32]) - 127);
                let at = 2 * ((e * columns + column) * rows + row);
                numbers[at..at + 2].copy_from_slice(&half::bf16::from_f64(value).to_le_bytes());
            }
            plain.insert(name.clone(), ("BF16".into(), vec![EXPERTS, columns, rows], numbers));
            let bytes = four.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
            let blocks = vec![EXPERTS, rows, columns / 32, 16];
            codes.remove(&name);
            codes.insert(format!("{name}_scales"), ("U8".into(), blocks[..3].to_vec(), factors));
            codes.insert(format!("{name}_blocks"), ("U8".into(), blocks, bytes));
            let bias = ("BF16".to_owned(), vec![EXPERTS, rows], vec![0; 2 * EXPERTS * rows]);
            for tensors in [&mut codes, &mut plain] {
                tensors.insert(format!("{name}_bias"), bias.clone());
            }
        }
    }
    for (folder, tensors) in [("codes", &codes), ("plain", &plain)] {
        let folder = root.join(folder);
        std::fs::create_dir(&folder).unwrap();
        write(&folder.join(FILE), tensors);
        if folder.ends_with("codes") {
            config["quantization_config"] = json!({"quant_method": "mxfp4"});
        }
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    }
    codes
}

#[test]
fn codes_are_read_as_the_numbers_they_stand_for() {
    let dir = tempfile::tempdir().unwrap();
    folders(dir.path());
    let [codes, plain] = ["codes", "plain"].map(|folder| open(&dir.path().join(folder)).unwrap());
    for spec in ms_spec::params(plain.config()) {
        assert_eq!(codes.dtype(&spec.name).unwrap(), plain.dtype(&spec.name).unwrap(), "{}", spec.name);
        // All of it, and the part of a rank.
        let half = std::iter::once(0..spec.shape[0].div_ceil(2));
        for region in [Region::whole(&spec.shape), Region::along(&spec.shape, 0, half)] {
            let [a, b] = [&codes, &plain].map(|source| {
                let mut out = vec![0; 4 * region.local_shape().numel()];
                source.read(&spec, &region, DType::F32, &mut out).unwrap();
                out
            });
            assert!(a == b, "{}", spec.name);
        }
    }
}

#[test]
fn codes_without_their_factors_are_refused_with_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensors = folders(dir.path());
    let folder = dir.path().join("codes");
    let name = "model.layers.1.mlp.experts.down_proj";
    let mut factors = tensors.remove(&format!("{name}_scales")).unwrap();
    let refused = |tensors: &BTreeMap<String, Tensor>| {
        write(&folder.join(FILE), tensors);
        open(&folder).unwrap_err().to_string()
    };
    let want = format!("tensor {name}_blocks: expected {name}_scales of bytes [4, 32, 2] beside it");
    let message = refused(&tensors);
    assert!(message.contains(&want), "{message}");
    factors.1 = vec![4, 64];
    tensors.insert(format!("{name}_scales"), factors);
    let message = refused(&tensors);
    assert!(message.contains(&want), "{message}");
    // Nothing of a size that no memory has.
    tensors.insert(format!("{name}_blocks"), ("U8".to_owned(), vec![0, 1, 1 << 60, 16], Vec::new()));
    assert!(refused(&tensors).contains(&format!("tensor {name}_blocks")));
}

#[test]
fn a_factor_of_255_is_no_number() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensors = folders(dir.path());
    let name = "model.layers.0.mlp.experts.down_proj_scales";
    tensors.get_mut(name).unwrap().2[0] = 255;
    write(&dir.path().join("codes").join(FILE), &tensors);
    let codes = open(&dir.path().join("codes")).unwrap();
    let is_nan = |spec: &ms_spec::ParamSpec| {
        let region = Region::whole(&spec.shape);
        let mut out = vec![0; 4 * region.local_shape().numel()];
        codes.read(spec, &region, DType::F32, &mut out).unwrap();
        out.chunks(4).filter(|v| f32::from_le_bytes((*v).try_into().unwrap()).is_nan()).count()
    };
    let counts: Vec<usize> = ms_spec::params(codes.config()).iter().map(is_nan).filter(|n| *n > 0).collect();
    assert_eq!(counts, [32]);
}
