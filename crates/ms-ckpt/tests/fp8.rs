//! Hugging Face folders whose matrices are 8-bit codes with a scale per block.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::collections::BTreeMap;
use std::path::Path;

use ms_ckpt::layout::mcore::{FileGrid, Spelling};
use ms_ckpt::{ArgsForm, Plan, Run, RunOptions, Sharding, open};
use ms_core::{DType, GridSizes, Region};
use ms_spec::Stages;
use serde_json::{Value, json};

mod safetensors;

use safetensors::{Tensor, read, write};

const RUN: RunOptions = RunOptions { threads: 2, sync: false, replace: false };
const BLOCK: [usize; 2] = [8, 16];

/// What a code times its scale is, worked out from bits in binary64.
fn product(code: u8, scale: f32) -> half::bf16 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
    let size =
        if exponent == 0 { mantissa * 2f64.powi(-6) } else { (1.0 + mantissa) * 2f64.powi(exponent - 7) };
    let signed = if code & 0x80 == 0 { size } else { -size };
    half::bf16::from_f32((signed * f64::from(scale)) as f32)
}

/// Two copies of a sample: its matrices as codes, and as the numbers that the codes stand for.
fn folders(root: &Path, scale_type: &str) {
    let model = ms_testing::golden_model("kimi_k2").unwrap();
    let config: Value = serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap();
    let (mut codes, mut plain) = (read(&model.join("model.safetensors")), BTreeMap::new());
    let mut x = 7u32;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        x >> 16
    };
    for (name, tensor) in codes.clone() {
        if !name.ends_with("_proj.weight") {
            plain.insert(name, tensor);
            continue;
        }
        let (_, shape, _) = tensor;
        let blocks = [shape[0].div_ceil(BLOCK[0]), shape[1].div_ceil(BLOCK[1])];
        // Few bits, so that the product is the same in binary32 and binary64.
        let scales: Vec<f32> =
            (0..blocks[0] * blocks[1]).map(|_| (1 + next() % 127) as f32 / 1024.0).collect();
        let elements: Vec<u8> =
            (0..shape[0] * shape[1]).map(|_| (next() % 126) as u8 | (next() as u8 & 0x80)).collect();
        let numbers = elements.iter().enumerate().flat_map(|(i, &code)| {
            let (row, column) = (i / shape[1], i % shape[1]);
            product(code, scales[row / BLOCK[0] * blocks[1] + column / BLOCK[1]]).to_le_bytes()
        });
        plain.insert(name.clone(), ("BF16".into(), shape.clone(), numbers.collect()));
        let bytes = scales.iter().flat_map(|&s| match scale_type {
            "BF16" => half::bf16::from_f32(s).to_le_bytes().to_vec(),
            _ => s.to_le_bytes().to_vec(),
        });
        codes.insert(format!("{name}_scale_inv"), (scale_type.into(), blocks.to_vec(), bytes.collect()));
        codes.insert(name, ("F8_E4M3".into(), shape, elements));
    }
    for (folder, tensors) in [("codes", &codes), ("plain", &plain)] {
        std::fs::create_dir(root.join(folder)).unwrap();
        write(&root.join(folder).join("model.safetensors"), tensors);
        let mut config = config.clone();
        if folder == "codes" {
            config["quantization_config"] = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": BLOCK, "activation_scheme": "dynamic"});
        }
        std::fs::write(root.join(folder).join("config.json"), config.to_string()).unwrap();
    }
}

#[test]
fn codes_are_read_as_the_numbers_they_stand_for() {
    for scale_type in ["F32", "BF16"] {
        let dir = tempfile::tempdir().unwrap();
        folders(dir.path(), scale_type);
        let (codes, plain) =
            (open(&dir.path().join("codes")).unwrap(), open(&dir.path().join("plain")).unwrap());
        for spec in ms_spec::params(plain.config()) {
            let whole = Region::whole(&spec.shape);
            assert_eq!(codes.dtype(&spec.name).unwrap(), plain.dtype(&spec.name).unwrap(), "{}", spec.name);
            let [a, b] = [&codes, &plain].map(|source| {
                let mut out = vec![0; 4 * spec.shape.numel()];
                source.read(&spec, &whole, DType::F32, &mut out).unwrap();
                out
            });
            assert!(a == b, "{scale_type} {}", spec.name);
        }
    }
}

#[test]
fn a_folder_of_codes_converts_to_the_bytes_of_a_folder_of_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    folders(dir.path(), "F32");
    for from in ["codes", "plain"] {
        let source = open(&path(from)).unwrap();
        let dtype = |n: &str| source.dtype(n);
        let sizes = GridSizes { tp: 2, ..GridSizes::default() };
        let file_grid = FileGrid::new(&sizes, Stages::default(), false).unwrap();
        let mcore = Plan::mcore(
            source.config(),
            &file_grid,
            Spelling::default(),
            ArgsForm::Namespace,
            &dtype,
            &Run::default(),
        )
        .unwrap();
        mcore.run(&source, &path(&format!("{from}-mcore")), &RUN, &|_| ()).unwrap();
        let hf = Plan::hf(source.config(), &dtype, Sharding::Bytes(1 << 40)).unwrap();
        hf.run(&source, &path(&format!("{from}-hf")), &RUN, &|_| ()).unwrap();
    }
    for file in [
        "mcore/iter_0000001/mp_rank_00/model_optim_rng.pt",
        "mcore/iter_0000001/mp_rank_01/model_optim_rng.pt",
        "hf/model.safetensors",
    ] {
        let of = |from: &str| std::fs::read(path(&format!("{from}-{file}"))).unwrap();
        assert!(of("codes") == of("plain"), "{file}");
    }
}

#[test]
fn codes_without_their_scales_are_refused_with_the_name() {
    let dir = tempfile::tempdir().unwrap();
    folders(dir.path(), "F32");
    let folder = dir.path().join("codes");
    let file = folder.join("model.safetensors");
    let name = "model.layers.0.mlp.down_proj.weight";
    let refused = |tensors: &BTreeMap<String, Tensor>| {
        write(&file, tensors);
        open(&folder).unwrap_err().to_string()
    };
    let mut tensors = read(&file);
    let scales = tensors.remove(&format!("{name}_scale_inv")).unwrap();
    let message = refused(&tensors);
    assert!(message.contains(&format!("{name}: 8-bit elements without {name}_scale_inv")), "{message}");
    let (dtype, shape, bytes) = scales;
    tensors.insert(format!("{name}_scale_inv"), (dtype, vec![shape[0] * shape[1]], bytes));
    let message = refused(&tensors);
    assert!(message.contains("expected float32 or bfloat16 [4, 3]"), "{message}");
    let (_, shape, bytes) = tensors[name].clone();
    tensors.insert(name.to_owned(), ("F8_E5M2".into(), shape, bytes));
    let message = refused(&tensors);
    assert!(message.contains("dtype F8_E5M2 is not supported"), "{message}");
    std::fs::write(
        folder.join("config.json"),
        std::fs::read_to_string(folder.join("config.json")).unwrap().replace("\"fp8\"", "\"gptq\""),
    )
    .unwrap();
    folders_again(&folder);
    let message = open(&folder).unwrap_err().to_string();
    assert!(
        message.contains("quantization_config") && message.contains("expected quant_method fp8"),
        "{message}"
    );
}

/// Puts sound weights back.
fn folders_again(folder: &Path) {
    let dir = tempfile::tempdir().unwrap();
    folders(dir.path(), "F32");
    std::fs::copy(dir.path().join("codes/model.safetensors"), folder.join("model.safetensors")).unwrap();
}

/// Only the type says that a matrix is of codes.
#[test]
fn a_block_size_that_is_not_given_is_128() {
    let dir = tempfile::tempdir().unwrap();
    folders(dir.path(), "F32");
    let folder = dir.path().join("codes");
    let mut tensors = read(&folder.join("model.safetensors"));
    for (name, (_, shape, bytes)) in &mut tensors {
        if name.ends_with("_scale_inv") {
            (*shape, *bytes) = (vec![1, 1], 0.5f32.to_le_bytes().to_vec());
        }
    }
    write(&folder.join("model.safetensors"), &tensors);
    let text = std::fs::read(folder.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    config.as_object_mut().unwrap().remove("quantization_config");
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let source = open(&folder).unwrap();
    let spec =
        ms_spec::params(source.config()).into_iter().find(|s| s.name.ends_with("0.mlp.linear_fc2.weight"));
    let spec = spec.unwrap();
    let mut out = vec![0u8; 2 * spec.shape.numel()];
    source.read(&spec, &Region::whole(&spec.shape), DType::Bf16, &mut out).unwrap();
    let (_, _, codes) = &tensors["model.layers.0.mlp.down_proj.weight"];
    let want: Vec<u8> = codes.iter().flat_map(|&c| product(c, 0.5).to_le_bytes()).collect();
    assert_eq!(out, want);
}
