//! Any model, resharded in any legal way any number of times, is the same model.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ms_ckpt::layout::hf;
use ms_ckpt::layout::mcore::{FileGrid, Spelling};
use ms_ckpt::layout::torch_dist::Modules;
use ms_ckpt::sharded::{Piece, Writer};
use ms_ckpt::{ArgsForm, Checkpoint, Form, HfLayout, Plan, Run, RunOptions, Sharding, Wanted, open};
use ms_core::{Axis, DType, Grid, GridRules, GridSizes, Region};
use ms_spec::{ModelConfig, ParamSpec, Stages, local, params};
use ms_testing::tree;
use proptest::prelude::*;

const RUN: RunOptions = RunOptions { threads: 2, sync: false, replace: false };

/// Distinct values for every element of a parameter, as finite bf16.
fn values(spec: &ParamSpec) -> Vec<u8> {
    let mut x = spec.name.bytes().fold(7u32, |h, b| h.wrapping_mul(31) ^ u32::from(b));
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((x >> 16) as u16 & 0xbfff).to_le_bytes()
    };
    (0..spec.shape.numel()).flat_map(|_| next()).collect()
}

fn weights(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    tree(dir)
        .into_iter()
        .filter(|(p, _)| p.extension().is_some_and(|e| e != "json" || p.ends_with(hf::INDEX)))
        .collect()
}

fn stored(source: &Checkpoint) -> impl Fn(&str) -> ms_ckpt::Result<DType> + use<> {
    let all: BTreeMap<String, DType> = source.tensors().map(|(n, _, d)| (n.to_owned(), d)).collect();
    move |name| Ok(all[name])
}

fn to_mcore(from: &Path, to: &Path, file_grid: &FileGrid, form: Form) {
    let source = open(from).unwrap();
    let mut config = source.config().clone();
    config.padded_vocab = config.padded_vocab.next_multiple_of(file_grid.grid().size(Axis::Tp));
    let dtype = stored(&source);
    let (args, run) = (ArgsForm::Namespace, Run::default());
    let plan = match form {
        Form::Sharded => Plan::sharded(&config, file_grid, &dtype, &run),
        Form::TorchDist => Plan::torch_dist(&config, file_grid, Modules::default(), args, &dtype, &run),
        _ => Plan::mcore(&config, file_grid, Spelling::default(), args, &dtype, &run),
    };
    let plan = plan.unwrap();
    plan.run(&source, to, &RUN, &|_| ()).unwrap();
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
}

fn some_config() -> impl Strategy<Value = ModelConfig> {
    (0usize..3, 1usize..3, 1usize..3, 1usize..4, any::<bool>(), 33usize..40).prop_map(
        |(family, layers, per_group, ffn, tied, vocab)| {
            let family = ["llama", "qwen2", "qwen3"][family];
            let json = serde_json::json!({
                "model_type": family, "num_hidden_layers": 4 * layers, "hidden_size": 8, "intermediate_size": 4 * ffn,
                "num_attention_heads": 4 * per_group, "num_key_value_heads": 4, "head_dim": 2, "vocab_size": vocab,
                "tie_word_embeddings": tied, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5
            });
            ms_spec::hf::read_config(&json).unwrap()
        },
    )
}

fn file_grid(tp: usize, stages: Stages) -> FileGrid {
    FileGrid::new(&GridSizes { tp, ..GridSizes::default() }, stages, false).unwrap()
}

/// Ranks for a model of `layers` layers, `layers` a multiple of 4.
fn some_spread(layers: usize) -> impl Strategy<Value = FileGrid> {
    let tp = prop::sample::select(vec![1usize, 2, 4]);
    (tp, 0usize..5, 1usize..4).prop_map(move |(tp, kind, at)| {
        let two = Stages { pp: 2, ..Stages::default() };
        let stages = match kind {
            0 => Stages::default(),
            1 => Stages { pp: 4, ..two },
            2 => Stages { layers_per_chunk: Some(1), ..two },
            3 => Stages { layer_list: Some(vec![at, layers - at]), ..two },
            _ => Stages { noop: vec![at, layers + 1], ..two },
        };
        file_grid(tp, stages)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn there_and_back_is_the_same_bytes_by_any_two_cuts(
        (config, a, b, form) in some_config().prop_flat_map(|c| {
            let (a, b) = (some_spread(c.layers), some_spread(c.layers));
            let form = prop::sample::select(vec![Form::Mcore, Form::Sharded, Form::TorchDist]);
            (Just(c), a, b, form)
        }),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        ms_ckpt::write_hf(&path("hf"), &config, DType::Bf16, false, &mut |spec| Ok(values(spec))).unwrap();
        to_mcore(&path("hf"), &path("a"), &a, form);
        to_mcore(&path("a"), &path("ab"), &b, Form::Mcore);
        to_mcore(&path("hf"), &path("b"), &b, Form::Mcore);
        // Padding depends on the sizes met on the way; where it does not, the files are equal.
        let padded = |name: &str| open(&path(name)).unwrap().config().padded_vocab;
        if padded("ab") == padded("b") {
            prop_assert!(weights(&path("ab")) == weights(&path("b")));
        }
        let source = open(&path("ab")).unwrap();
        prop_assert_eq!(source.config().vocab, config.vocab);
        let layout = HfLayout::find(&path("hf")).unwrap().unwrap();
        let plan = Plan::hf_like(source.config(), &layout, &stored(&source)).unwrap().unwrap();
        plan.run(&source, &path("back"), &RUN, &|_| ()).unwrap();
        prop_assert!(weights(&path("hf")) == weights(&path("back")));
    }

    #[test]
    fn a_folder_of_many_files_comes_back_as_it_was(config in some_config(), most in 200u64..3000) {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        ms_ckpt::write_hf(&path("one"), &config, DType::Bf16, false, &mut |spec| Ok(values(spec))).unwrap();
        let source = open(&path("one")).unwrap();
        let plan = Plan::hf(source.config(), &stored(&source), Sharding::Bytes(most)).unwrap();
        prop_assert!(plan.files.iter().all(|f| f.bytes() <= most || f.tensors.len() == 1));
        plan.run(&source, &path("many"), &RUN, &|_| ()).unwrap();
        std::fs::copy(path("one").join("config.json"), path("many").join("config.json")).unwrap();
        to_mcore(&path("many"), &path("mcore"), &file_grid(2, Stages { pp: 2, ..Stages::default() }), Form::Mcore);
        let layout = HfLayout::find(&path("many")).unwrap().unwrap();
        let source = open(&path("mcore")).unwrap();
        let plan = Plan::hf_like(source.config(), &layout, &stored(&source)).unwrap().unwrap();
        plan.run(&source, &path("back"), &RUN, &|_| ()).unwrap();
        prop_assert!(weights(&path("many")) == weights(&path("back")));
    }

    #[test]
    fn what_any_topology_saved_any_other_reads(
        config in some_config(), tp in prop::sample::select(vec![1usize, 2, 4]), dp in 1usize..4,
        read_tp in prop::sample::select(vec![1usize, 2, 4]), at in 0.0f64..1.0, len in 0.0f64..1.0,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let config = ModelConfig { padded_vocab: config.vocab.next_multiple_of(4), ..config };
        let specs = params(&config);
        let grid = |tp, world| Grid::new(world, &GridSizes { tp, ..GridSizes::default() }, GridRules::V2).unwrap();
        let write = grid(tp, tp * dp);
        let writer = Writer::create(dir.path(), 7).unwrap();
        for rank in 0..write.world() {
            let d = write.coord(rank, Axis::Dp);
            let mut held = Vec::new();
            for spec in &specs {
                let region = local(spec, &write, rank).unwrap();
                let mut bytes = vec![0; region.local_shape().numel() * 2];
                region.gather(&mut bytes, &values(spec), 2);
                // A distributed optimizer: data-parallel ranks share the elements of the local tensor.
                let n = region.local_shape().numel();
                let flat = n * d / dp..n * (d + 1) / dp;
                held.push((format!("exp_avg/{}", spec.name), spec, region.clone(), Some(flat.clone()), bytes[flat.start * 2..flat.end * 2].to_vec()));
                if d == 0 {
                    held.push((spec.name.clone(), spec, region, None, bytes));
                }
            }
            let pieces: Vec<Piece<'_>> = held.iter().map(|(name, spec, region, flat, bytes)| Piece {
                name, shape: spec.shape, dtype: DType::Bf16, region: region.clone(), flat: flat.clone(), bytes: bytes[..].into(),
            }).collect();
            writer.write_rank(rank, &pieces).unwrap();
        }
        let state = serde_json::json!({"consumed": 12, "args": {"lr": 0.1}});
        writer.finish(&config, &state).unwrap();

        let read = grid(read_tp, read_tp);
        let saved = open(dir.path()).unwrap();
        prop_assert_eq!((saved.iteration(), saved.state(), saved.config()), (7, &state, &config));
        for rank in 0..read_tp {
            for spec in &specs {
                let region = local(spec, &read, rank).unwrap();
                let n = region.local_shape().numel();
                let mut want = vec![0; n * 2];
                region.gather(&mut want, &values(spec), 2);
                let mut got = vec![0; n * 2];
                saved.read(spec, &region, DType::Bf16, &mut got).unwrap();
                prop_assert!(got == want, "{}", spec.name);
                let start = (n as f64 * at) as usize;
                let end = start + ((n - start) as f64 * len) as usize;
                let mut got = vec![0; (end - start) * 2];
                saved.read_named(&format!("exp_avg/{}", spec.name), &region, Some(start..end), DType::Bf16, &mut got).unwrap();
                prop_assert!(got == want[start * 2..end * 2], "exp_avg of {}", spec.name);
            }
        }
    }
}

fn small() -> ModelConfig {
    let json = serde_json::json!({
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 8,
        "num_attention_heads": 4, "vocab_size": 16
    });
    ms_spec::hf::read_config(&json).unwrap()
}

#[test]
fn a_checkpoint_with_a_gap_is_refused_and_never_appears() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::create(dir.path(), 1).unwrap();
    let region = Region::along(&[4, 2].into(), 0, std::iter::once(0..3));
    let piece = Piece {
        name: "w",
        shape: [4, 2].into(),
        dtype: DType::U8,
        region,
        flat: None,
        bytes: [0; 6][..].into(),
    };
    writer.write_rank(0, &[piece]).unwrap();
    let error = writer.finish(&small(), &serde_json::Value::Null).unwrap_err().to_string();
    assert!(error.ends_with("tensor w: no rank wrote element 6 of 8"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn elements_that_are_not_there_and_parts_that_contradict_each_other_are_found_in_every_type() {
    for dtype in [DType::F32, DType::Bf16, DType::I64, DType::I16, DType::U8, DType::Bool] {
        let dir = tempfile::tempdir().unwrap();
        let writer = Writer::create(dir.path(), 1).unwrap();
        let region = Region::whole(&[4, 2].into());
        let (size, bytes) = (dtype.size(), vec![1u8; 16 * dtype.size()]);
        let piece = |flat: std::ops::Range<usize>| Piece {
            name: "w",
            shape: [4, 2].into(),
            dtype,
            region: region.clone(),
            flat: Some(flat.clone()),
            bytes: bytes[..flat.len() * size].into(),
        };
        writer.write_rank(0, &[piece(0..3), piece(2..6), piece(5..8)]).unwrap();
        writer.finish(&small(), &serde_json::Value::Null).unwrap();
        let manifest = dir.path().join("iter_0000001/manifest.json");
        let text = std::fs::read_to_string(&manifest).unwrap();
        let verified = |drop: Option<usize>| {
            let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
            json["crc32c"] = serde_json::json!({});
            if let Some(part) = drop {
                json["tensors"][0]["parts"].as_array_mut().unwrap().remove(part);
            }
            std::fs::write(&manifest, json.to_string()).unwrap();
            let _ = std::fs::remove_file(manifest.with_file_name(ms_ckpt::CHECKSUMS));
            open(dir.path()).unwrap().verify().map_err(|e| e.to_string())
        };
        assert_eq!(verified(None).unwrap().unequal_copies, [], "{dtype}");
        let error = verified(Some(1)).unwrap_err();
        assert!(error.ends_with("tensor w: element 3 is not stored"), "{dtype}: {error}");
        let path = manifest.with_file_name("rank_00000.safetensors");
        let mut file = std::fs::read(&path).unwrap();
        // The first elements of the second part and of the third, which the parts before them have, too.
        for behind in [7, 3] {
            let at = file.len() - behind * size;
            file[at] ^= 1;
        }
        std::fs::write(&path, file).unwrap();
        let copies = verified(None).unwrap().unequal_copies;
        let name = "iter_0000001/rank_00000.safetensors";
        assert_eq!(copies, [("w".to_owned(), name.to_owned())], "{dtype}");
    }
}

#[test]
fn a_missing_or_misshapen_tensor_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let hf_dir = dir.path().join("hf");
    ms_ckpt::write_hf(&hf_dir, &small(), DType::Bf16, false, &mut |spec| Ok(values(spec))).unwrap();
    let config = hf_dir.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3")).unwrap();
    let error = open(&hf_dir).unwrap_err().to_string();
    assert!(error.ends_with("tensor model.layers.2.input_layernorm.weight is missing"), "{error}");
    std::fs::write(&config, text.replace("\"intermediate_size\": 8", "\"intermediate_size\": 9")).unwrap();
    let error = open(&hf_dir).unwrap_err().to_string();
    assert!(error.contains("mlp.gate_proj.weight: expected shape [9, 8], got [8, 8]"), "{error}");
}

#[test]
fn parts_come_to_their_places_and_of_missing_tensors_the_first_is_named() {
    let dir = tempfile::tempdir().unwrap();
    ms_ckpt::write_hf(dir.path(), &small(), DType::Bf16, false, &mut |spec| Ok(values(spec))).unwrap();
    let source = open(dir.path()).unwrap();
    let specs = params(source.config());
    let regions: Vec<Region> = specs.iter().map(|spec| Region::whole(&spec.shape)).collect();
    let mut places: Vec<Vec<u8>> = specs.iter().map(|spec| vec![0xff; 2 * spec.shape.numel()]).collect();
    // Every tensor in two parts, the second first.
    let parts = specs.iter().zip(&regions).zip(&mut places).flat_map(|((spec, region), place)| {
        let (n, third) = (spec.shape.numel(), spec.shape.numel() / 3);
        let (one, two) = place.split_at_mut(2 * third);
        [(third..n, two), (0..third, one)].map(|(flat, out)| Wanted {
            name: spec.name.clone(),
            region,
            flat: Some(flat),
            dtype: DType::Bf16,
            out,
        })
    });
    source.load(parts.collect()).unwrap();
    for (spec, place) in specs.iter().zip(&places) {
        assert_eq!(*place, values(spec), "{}", spec.name);
    }
    let mut names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
    (names[2], names[5]) = ("not.there".to_owned(), "nor.this".to_owned());
    let wanted = names.iter().zip(&regions).zip(&mut places).map(|((name, region), out)| Wanted {
        name: name.clone(),
        region,
        flat: None,
        dtype: DType::Bf16,
        out,
    });
    let error = source.load(wanted.collect()).unwrap_err().to_string();
    assert!(error.contains("not.there"), "{error}");
}

#[test]
fn a_changed_manifest_is_refused_or_read_but_never_out_of_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let config = small();
    let source = dir.path().join("hf");
    ms_ckpt::write_hf(&source, &config, DType::Bf16, false, &mut |spec| Ok(values(spec))).unwrap();
    let out = dir.path().join("sharded");
    to_mcore(&source, &out, &file_grid(2, Stages::default()), Form::Sharded);
    let manifest = out.join("iter_0000001/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    for (from, to) in [
        ("rank_00001.safetensors", "../secret.safetensors"),
        ("rank_00001.safetensors", "rank_00009.safetensors"),
        ("\"ms-sharded\"", "\"other\""),
        ("\"dtype\": \"bf16\"", "\"dtype\": \"f64\""),
        ("\"layers\": 2", "\"layers\": 200000000"),
        ("\"dim\": 0", "\"dim\": 7"),
        ("\"ranges\": [", "\"ranges\": [[0, 18446744073709551615], "),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&manifest, text.replace(from, to)).unwrap();
        match open(&out) {
            Err(_) => {}
            Ok(c) => {
                // Opens, because only what the model says changed: then the tensors are missing.
                assert!(
                    to.contains("200000000") && !c.has("decoder.layers.2.input_layernorm.weight"),
                    "{to}"
                );
            }
        }
    }
}

#[test]
fn a_manifest_names_checksums_of_its_own_folder_and_tensors_that_can_be_counted() {
    let dir = tempfile::tempdir().unwrap();
    let config = small();
    let source = dir.path().join("hf");
    ms_ckpt::write_hf(&source, &config, DType::Bf16, false, &mut |spec| Ok(values(spec))).unwrap();
    let out = dir.path().join("sharded");
    to_mcore(&source, &out, &file_grid(1, Stages::default()), Form::Sharded);
    let iteration = out.join("iter_0000001");
    let manifest = iteration.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let changed = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = serde_json::from_str(&text).unwrap();
        change(&mut json);
        std::fs::write(&manifest, json.to_string()).unwrap();
        open(&out)
    };
    let elsewhere = changed(&|json| json["crc32c"] = serde_json::json!({"../../hf/config.json": 1})).unwrap();
    let _ = std::fs::remove_file(iteration.join(ms_ckpt::CHECKSUMS));
    let refused = elsewhere.check_sums().unwrap_err().to_string();
    assert!(refused.contains("\"../../hf/config.json\" is not a file name"), "{refused}");
    let uncounted =
        serde_json::json!({"name": "x", "shape": [0, 1u64 << 62, 8], "dtype": "f32", "parts": []});
    let refused = changed(&|json| json["tensors"].as_array_mut().unwrap().push(uncounted.clone()));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("tensor x: too many elements: [0, 4611686018427387904, 8]"), "{refused}");
}
