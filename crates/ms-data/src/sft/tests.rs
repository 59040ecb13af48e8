//! Order, items and batches of fine-tuning datasets compared with upstream's.

use super::*;
use crate::indexed::{IndexedWriter, TokenType};
use crate::{Loader, LoaderConfig, RowLayout, Samples, Split};
use ms_text::template::shares;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

fn ints(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect()
}

fn wide(values: &[i32]) -> Vec<i64> {
    values.iter().map(|&v| v.into()).collect()
}

#[test]
fn every_golden_order_item_and_batch_is_reproduced() {
    let Some(root) = ms_testing::shared("goldens/data") else { return };
    let mut cases: Vec<_> =
        std::fs::read_dir(root.join("sftdataset")).unwrap().map(|e| e.unwrap().path()).collect();
    cases.sort();
    assert_eq!(cases.len(), 8);
    for case in cases {
        check_case(&root, &case);
    }
}

/// Orders depend on how many sequences there are. The items, which are from other people's texts, are kept outside the
/// repository.
#[test]
fn every_golden_order_is_reproduced_of_as_many_made_up_sequences() {
    let specs = std::fs::read(ms_testing::golden("data/sftdataset.json")).unwrap();
    let specs: Value = serde_json::from_slice(&specs).unwrap();
    assert_eq!(specs.as_object().unwrap().len(), 8);
    for (name, spec) in specs.as_object().unwrap() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join(spec["data"].as_str().unwrap());
        std::fs::create_dir_all(data.parent().unwrap()).unwrap();
        let ends = ["input_ids", "labels"];
        let pairs = ["chosen", "rejected"].map(|which| ends.map(|end| format!("{which}_{end}"))).concat();
        let keys = [&ends.map(str::to_owned)[..], &["attention_mask".to_owned()], &pairs[..]].concat();
        for key in keys {
            let prefix = super::dataset::column_prefix(&data, &key);
            let mut writer = IndexedWriter::create(prefix, TokenType::I32).unwrap();
            for _ in 0..spec["sequences"].as_u64().unwrap() {
                writer.sequence(&[1, 2]).unwrap();
                writer.end_document().unwrap();
            }
            writer.finish().unwrap();
        }
        let options = options_of(spec, 0, false);
        let sizes = std::array::from_fn(|k| spec["sizes"][k].as_u64().unwrap());
        let split = Split::parse(spec["split"].as_str().unwrap()).unwrap();
        let sets = SftDataset::open(&data, &split, sizes, &options).unwrap();
        check_index_files(name, dir.path(), spec, &split, sizes, &options);
        for (split, set) in ["train", "valid", "test"].iter().zip(&sets) {
            let want = &spec["splits"][split]["shuffle_index"];
            match set {
                Some(set) => assert_eq!(set.order(), ints(want), "{name} {split}"),
                None => assert!(want.is_null(), "{name} {split}"),
            }
        }
    }
}

/// What a case's arguments say of its sets.
fn options_of(spec: &Value, eos: i32, closing: bool) -> SftOptions {
    let args = &spec["args"];
    let flag = |key: &str| args[key] == true;
    let form = if flag("is_pairwise_dataset") {
        Form::Pairs
    } else if flag("reset_position_ids") {
        Form::Packed { neat: flag("neat_pack"), restart: true }
    } else if flag("cut_max_seqlen") || args["stage"] == "prm" {
        Form::CutAtEnd
    } else {
        Form::Conversation { closing }
    };
    SftOptions {
        row_tokens: spec["seq_length"].as_u64().unwrap() as usize,
        form,
        eos,
        order: Order {
            seed: spec["seed"].as_u64().unwrap() as u32,
            shuffle: !flag("no_shuffle"),
            fill_to: flag("padded_samples").then_some(8),
            full_shuffle: false,
        },
        negative_ids_as_upstream: true,
        index_files: false,
    }
}

fn check_case(root: &Path, case: &Path) {
    let name = case.file_name().unwrap().to_str().unwrap();
    let spec: Value = serde_json::from_slice(&std::fs::read(case.join("spec.json")).unwrap()).unwrap();
    let mut tokenizer = ms_text::Tokenizer::load(root.join(spec["tokenizer"].as_str().unwrap())).unwrap();
    let template = spec["prompt_type"].as_str().map(|t| ms_text::template::Template::named(t).unwrap());
    if let Some(template) = &template {
        template.adjust(&mut tokenizer).unwrap();
    }
    let closing = template.is_some_and(|t| t.efficient_eos);
    let options = options_of(&spec, tokenizer.eod().unwrap() as i32, closing);
    let form = options.form;
    let sizes = std::array::from_fn(|k| spec["sizes"][k].as_u64().unwrap());
    let split = Split::parse(spec["split"].as_str().unwrap()).unwrap();
    let sets = SftDataset::open(root.join(spec["data"].as_str().unwrap()), &split, sizes, &options).unwrap();
    check_index_files(name, root, &spec, &split, sizes, &options);
    for (which, split) in ["train", "valid", "test"].iter().enumerate() {
        let want = &spec["splits"][split];
        let Some(set) = &sets[which] else {
            assert!(want.is_null(), "{name} {split}");
            continue;
        };
        assert_eq!(set.order(), ints(&want["shuffle_index"]), "{name} {split} order");
        for (i, item) in want["items"].as_array().unwrap().iter().enumerate() {
            let got = set.item(i as u64).unwrap();
            let at = format!("{name} {split} item {i}");
            let prefix = if form == Form::Pairs { "chosen_" } else { "" };
            let list = |key: &str| ints(&item[format!("{prefix}{key}")]);
            assert_eq!(wide(&got.input_ids), list("input_ids"), "{at}");
            assert_eq!(wide(&got.labels), list("labels"), "{at} labels");
            assert_eq!(wide(&got.attention_mask), list("attention_mask"), "{at} mask");
            if let Some(positions) = &got.position_ids {
                assert_eq!(wide(positions), list("position_ids"), "{at} positions");
            }
            if let Some((ids, labels)) = &got.rejected {
                assert_eq!(wide(ids), ints(&item["rejected_input_ids"]), "{at} rejected");
                assert_eq!(wide(labels), ints(&item["rejected_labels"]), "{at} rejected labels");
            }
        }
    }
    check_batch(name, &spec["collated"], sets[0].clone().unwrap(), options.row_tokens);
}

/// Orders are in files next to the data under upstream's names, and are read from there if possible.
fn check_index_files(
    name: &str,
    root: &Path,
    spec: &Value,
    split: &Split,
    sizes: [u64; 3],
    options: &SftOptions,
) {
    let dir = tempfile::tempdir().unwrap();
    let data = root.join(spec["data"].as_str().unwrap());
    for entry in std::fs::read_dir(data.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "bin" || e == "idx") {
            std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let prefix = dir.path().join(data.file_name().unwrap());
    let options = SftOptions { index_files: true, ..options.clone() };
    let open = || SftDataset::open(&prefix, split, sizes, &options).unwrap();
    let built = open()[0].clone().unwrap();
    let mut files: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.ends_with(".npy"))
        .collect();
    files.sort();
    assert_eq!(serde_json::json!(files), spec["index_files"], "{name}");
    let file = files.iter().find(|n| n.contains("_train_")).unwrap();
    let path = dir.path().join(file);
    let sound = std::fs::read(&path).unwrap();
    let array = crate::npy::Array::open(&path).unwrap();
    assert_eq!(array.values().collect::<Vec<_>>(), ints(&spec["splits"]["train"]["shuffle_index"]), "{name}");
    // Another order of the same sequences is accepted, an invalid one is not.
    let end = sound.len();
    let mut other = sound.clone();
    let (front, last) = other.split_at_mut(end - 8);
    let start = front.len() - 8;
    front[start..].swap_with_slice(last);
    std::fs::write(&path, &other).unwrap();
    let n = built.order().len();
    assert_eq!(open()[0].as_ref().unwrap().order()[n - 1], built.order()[n - 2], "{name}");
    let twice = other[end - 8..].to_vec();
    other[end - 16..end - 8].copy_from_slice(&twice);
    std::fs::write(&path, &other).unwrap();
    assert_eq!(open()[0].as_ref().unwrap().order(), built.order(), "{name}");
}

/// The first micro-batch against upstream's collated one, whose labels are not shifted.
fn check_batch(name: &str, want: &Value, set: Arc<SftDataset>, row_tokens: usize) {
    let config = LoaderConfig {
        micro_batch_size: want["micro_batch_size"].as_u64().unwrap() as usize,
        layout: RowLayout::Padded {
            multiple: row_tokens,
            pad: want["pad_token_id"].as_i64().unwrap() as i32,
            left: want["padding_side"] == "left",
        },
        ..LoaderConfig::default()
    };
    let batch = Loader::new(set, &config).unwrap().next().unwrap().unwrap();
    let rows = |key: &str| want["batch"][key].as_array().unwrap().iter().map(ints).collect::<Vec<_>>();
    let (ids, labels) = (rows("input_ids"), rows("labels"));
    assert_eq!(batch.tokens.len(), batch.row_ends.len() * row_tokens, "{name}");
    for row in 0..batch.row_ends.len() {
        let span = row * row_tokens..(row + 1) * row_tokens;
        assert_eq!(wide(&batch.tokens[span.clone()]), ids[row], "{name} row {row}");
        for i in 0..row_tokens - 1 {
            let (label, mask) = (batch.labels[span.start + i], batch.loss_mask[span.start + i]);
            let want = labels[row][i + 1];
            assert_eq!(mask != 0.0, want != -100, "{name} row {row} position {i}");
            assert!(mask == 0.0 || i64::from(label) == want, "{name} row {row} position {i}");
        }
    }
}

#[test]
fn a_cut_conversation_keeps_its_own_tokens() {
    // Two turns of a template with a closing end of sequence (9): prompt 1 2 3, answer 4; prompt 5 6, answer 7 8, closing 9.
    let ids = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let labels = [-100, -100, -100, 4, 9, -100, 7, 8, 9];
    let (got, got_labels) = cut_turns(&ids, &labels, 7, true, false);
    assert!(got.iter().all(|&id| id > 0), "{got:?}");
    assert_eq!(got.len(), got_labels.len());
    assert_eq!(*got.last().unwrap(), 9);
    let (upstream, _) = cut_turns(&ids, &labels, 7, true, true);
    assert!(upstream.contains(&-100), "upstream's defect: {upstream:?}");
}

#[test]
fn short_answers_and_short_prompts_are_kept_whole() {
    assert_eq!(shares(100, 10, 64), (54, 10));
    assert_eq!(shares(10, 100, 64), (10, 54));
    assert_eq!(shares(100, 100, 64), (32, 32));
    assert_eq!(shares(3, 4, 64), (3, 4));
}

#[test]
fn columns_that_disagree_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (key, sequences) in [("input_ids", 2), ("labels", 1)] {
        let mut writer =
            IndexedWriter::create(dir.path().join(format!("p_packed_{key}_document")), TokenType::I32)
                .unwrap();
        (0..sequences).for_each(|_| writer.sequence(&[1, 2]).unwrap());
        writer.end_document().unwrap();
        writer.finish().unwrap();
    }
    let options = SftOptions {
        row_tokens: 8,
        form: Form::Conversation { closing: false },
        eos: 0,
        order: Order::shuffled(1),
        negative_ids_as_upstream: false,
        index_files: false,
    };
    let error = SftDataset::open(dir.path().join("p"), &Split::only(0), [4, 0, 0], &options)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("number of sequences: expected 2, found 1"), "{error}");
}

#[test]
fn rows_are_shifted_and_end_with_their_last_segment() {
    let row = super::row(vec![1, 2, 3, 4], &[-100, 2, -100, 4], Some((vec![0, 1, 0, 1], vec![2])));
    assert_eq!(row.labels, [2, 0, 4, 0]);
    assert_eq!(row.loss_mask, [1.0, 0.0, 1.0, 0.0]);
    assert_eq!(row.segment_ends, [2, 4]);
}

/// By hand from `decoder_packed_mtf_dataset.py` of MindSpeed-LLM's head (2026): `actual_seq_len` and `position_ids` of a row
/// of three samples, the last of which is padding, that end with token 9.
#[test]
fn samples_of_a_pack_attend_apart_where_positions_count_through_the_row() {
    let dir = tempfile::tempdir().unwrap();
    let columns = [
        ("input_ids", [5, 9, 5, 6, 9, 7, 9, 9]),
        ("labels", [-100, 9, -100, 6, 9, -100, -100, -100]),
        ("attention_mask", [1, 1, 2, 2, 2, 2, 0, 0]),
    ];
    for (key, values) in columns {
        let prefix = super::dataset::column_prefix(&dir.path().join("a"), key);
        let mut writer = IndexedWriter::create(prefix, TokenType::I32).unwrap();
        writer.sequence(&values).unwrap();
        writer.end_document().unwrap();
        writer.finish().unwrap();
    }
    let through: &[i32] = &[0, 1, 2, 3, 4, 5, 6, 7];
    for (neat, restart, positions, ends) in [
        (false, true, &[0, 1, 0, 1, 2, 0, 1, 0][..], &[2, 5, 7, 8][..]),
        (false, false, through, &[2, 5, 7, 8]),
        (true, true, &[0, 1, 0, 1, 2, 3, 0, 0], &[2, 6, 7, 8]),
        (true, false, through, &[2, 6, 7, 8]),
    ] {
        let options = SftOptions {
            row_tokens: 8,
            form: Form::Packed { neat, restart },
            eos: 9,
            order: Order { shuffle: false, ..Order::shuffled(1) },
            negative_ids_as_upstream: false,
            index_files: false,
        };
        let split = Split::parse("100,0,0").unwrap();
        let [set, _, _] = SftDataset::open(dir.path().join("a"), &split, [1, 0, 0], &options).unwrap();
        let row = set.unwrap().get(0).unwrap();
        assert_eq!((&row.position_ids[..], &row.segment_ends[..]), (positions, ends), "{neat} {restart}");
    }
}

#[test]
fn a_blend_of_fine_tuning_sets_follows_the_weights_and_a_full_shuffle_mixes_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let set = |name: &str, count: i32| {
        for key in ["input_ids", "labels"] {
            let prefix = super::dataset::column_prefix(&dir.path().join(name), key);
            let mut writer = IndexedWriter::create(prefix, TokenType::I32).unwrap();
            for i in 0..count {
                writer.sequence(&[count, i, 1]).unwrap();
                writer.end_document().unwrap();
            }
            writer.finish().unwrap();
        }
        dir.path().join(name).display().to_string()
    };
    let (a, b) = (set("a", 10), set("b", 30));
    let options = SftOptions {
        row_tokens: 8,
        form: Form::Conversation { closing: false },
        eos: 0,
        order: Order::shuffled(1),
        negative_ids_as_upstream: false,
        index_files: false,
    };
    let split = Split::parse("100,0,0").unwrap();
    let counts = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        let [train, valid, _] = build(&words, &split, [200, 10, 0], &options).unwrap();
        assert!(valid.is_none());
        let train = train.unwrap();
        let first = (0..train.len()).filter(|&i| train.get(i).unwrap().tokens[0] == 10).count();
        (train.len(), first)
    };
    assert_eq!(counts(&["0.5", &a, "0.5", &b]), (200, 100));
    assert_eq!(counts(&[&a, &b]), (200, 50), "by their sequences");
    assert_eq!(counts(&[&b]), (210, 0), "whole epochs of a single set");

    let open = |full_shuffle: bool| {
        let order = Order { full_shuffle, ..Order::shuffled(1) };
        // The names of index files do not say that an order is fully shuffled, so there are none.
        let options = SftOptions { order, index_files: full_shuffle, ..options.clone() };
        SftDataset::open(&a, &split, [30, 0, 0], &options).unwrap()[0].clone().unwrap()
    };
    let (plain, full) = (open(false), open(true));
    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    assert!(names.into_iter().all(|path| path.extension().is_none_or(|end| end != "npy")));
    let epoch = |set: &SftDataset| {
        let mut first = set.order()[..10].to_vec();
        first.sort_unstable();
        first
    };
    assert_eq!(epoch(&plain), (0..10).collect::<Vec<_>>());
    assert_ne!(epoch(&full), (0..10).collect::<Vec<_>>());
    let mut all = [plain.order().to_vec(), full.order().to_vec()];
    all.iter_mut().for_each(|order| order.sort_unstable());
    assert_eq!(all[0], all[1]);
}

#[test]
fn samples_of_a_pack_may_have_any_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let set = dir.path().join("set");
    for (key, tokens) in [
        ("input_ids", [5, 6, 7, 8, 9]),
        ("labels", [5; 5]),
        ("attention_mask", [i32::MAX, i32::MIN, 3, i32::MAX, -1]),
    ] {
        let mut writer =
            IndexedWriter::create(super::dataset::column_prefix(&set, key), TokenType::I32).unwrap();
        writer.sequence(&tokens).unwrap();
        writer.end_document().unwrap();
        writer.finish().unwrap();
    }
    let options = SftOptions {
        row_tokens: 8,
        form: Form::Packed { neat: true, restart: true },
        eos: 0,
        order: Order::shuffled(1),
        negative_ids_as_upstream: false,
        index_files: false,
    };
    let sets = SftDataset::open(&set, &Split::parse("1").unwrap(), [1, 0, 0], &options).unwrap();
    // Sample 3, the two tokens of the other, padding: without counting to two thousand millions.
    assert_eq!(sets[0].as_ref().unwrap().get(0).unwrap().position_ids, [0, 0, 1, 0, 0]);
}

#[test]
fn a_set_that_is_too_small_to_fill_a_batch_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let set = dir.path().join("set");
    for key in ["input_ids", "labels"] {
        let mut writer =
            IndexedWriter::create(super::dataset::column_prefix(&set, key), TokenType::I32).unwrap();
        for _ in 0..3 {
            writer.sequence(&[1, 2]).unwrap();
            writer.end_document().unwrap();
        }
        writer.finish().unwrap();
    }
    let filled = |batch: u64| {
        let options = SftOptions {
            row_tokens: 8,
            form: Form::CutAtEnd,
            eos: 0,
            order: Order { fill_to: Some(batch), ..Order::shuffled(1) },
            negative_ids_as_upstream: false,
            index_files: false,
        };
        let sets = SftDataset::open(&set, &Split::parse("1").unwrap(), [1, 0, 0], &options);
        sets.map(|sets| sets[0].as_ref().unwrap().order().len()).map_err(|e| e.to_string())
    };
    assert_eq!(filled(6), Ok(6));
    let refused = filled(8).unwrap_err();
    assert!(
        refused.contains("--padded-samples: filling a batch of 8 takes sequences 0 to 4")
            && refused.ends_with("set has 3"),
        "{refused}"
    );
}
