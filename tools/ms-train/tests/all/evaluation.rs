//! When a run validates, and on which samples.

use crate::tiny::{model, ms_train};
use ms_data::indexed::{IndexedWriter, TokenType};
use serde_json::Value;
use std::path::Path;

/// The summary of a run of four iterations, validated on a batch of a set of its own.
fn summary(dir: &Path, flags: &str) -> Value {
    let mut command = ms_train();
    command.current_dir(dir).args(model()).args(["--lr", "1e-2", "--train-iters", "4", "--eval-iters", "1"]);
    command.args(["--train-data-path", "train", "--valid-data-path", "valid", "--json"]);
    let done = command.args(flags.split_whitespace()).assert().success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

fn validations(summary: &Value) -> Vec<(u64, f64)> {
    let one = |v: &Value| (v["iteration"].as_u64().unwrap(), v["loss"].as_f64().unwrap());
    summary["validation_losses"].as_array().unwrap().iter().map(one).collect()
}

fn data(dir: &Path) {
    for (name, step) in [("train", 7), ("valid", 11)] {
        let mut writer = IndexedWriter::create(dir.join(name), TokenType::U16).unwrap();
        for d in 0..40 {
            let tokens: Vec<i32> = (0..40).map(|t| (d * step + t * (1 + d % 5)) % 64).collect();
            writer.sequence(&tokens).unwrap();
            writer.end_document().unwrap();
        }
        writer.finish().unwrap();
    }
}

/// Megatron-LM `core_r0.8.0`, `megatron/training/training.py`: `train` validates after the last iteration too, `pretrain` once
/// more on the samples that follow; `build_train_valid_test_data_loaders` begins at the first sample with `--skip-train`.
#[test]
fn the_last_iteration_is_validated_twice_and_without_training_the_first_samples_count() {
    let dir = tempfile::tempdir().unwrap();
    data(dir.path());
    let often = validations(&summary(dir.path(), "--eval-interval 2 --save save"));
    let iterations: Vec<u64> = often.iter().map(|v| v.0).collect();
    assert_eq!(iterations, [2, 4, 4]);
    // The same weights on other samples.
    assert_ne!(often[1].1, often[2].1);
    let once = validations(&summary(dir.path(), "--eval-interval 3"));
    assert_eq!(once.last().map(|v| v.1), Some(often[1].1), "the second batch of samples: {once:?} {often:?}");
    let first = validations(&summary(dir.path(), "--eval-interval 9"));
    assert_eq!(first.len(), 1);
    assert_eq!(validations(&summary(dir.path(), "--eval-interval 2 --load save --skip-train")), first);
}

/// As Megatron's, whose validations read on where the last one stopped.
#[test]
fn samples_by_which_a_batch_is_lowered_are_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    data(dir.path());
    let of = |batch: &str| {
        let two = "--nproc-per-node 2 --micro-batch-size 1 --lr-decay-style constant --eval-interval 2";
        validations(&summary(dir.path(), &format!("{two} --global-batch-size {batch}")))
    };
    assert_eq!(of("5 --decrease-batch-size-if-needed"), of("4"));
}

#[test]
fn no_minutes_are_no_limit() {
    let dir = tempfile::tempdir().unwrap();
    data(dir.path());
    let run = summary(dir.path(), "--exit-duration-in-mins 0");
    assert_eq!((run["iteration"].as_u64(), run["stopped"].is_null()), (Some(4), true), "{run}");
}
