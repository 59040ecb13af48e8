//! The examples of the libraries do what they say.

use std::path::Path;

#[path = "../../../crates/ms-spec/examples/describe.rs"]
mod describe;
#[path = "../../../crates/ms-ckpt/examples/list_tensors.rs"]
mod list_tensors;
#[path = "../../../crates/ms-kernels/examples/multiply.rs"]
mod multiply;
#[path = "../../../crates/ms-options/examples/train.rs"]
mod train;
#[path = "../../../crates/ms-text/examples/train_and_encode.rs"]
mod train_and_encode;
#[path = "../../../crates/ms-data/examples/write_and_read.rs"]
mod write_and_read;

use ms_kernels::{Arithmetic, matmul::Dims};

fn sample() -> std::path::PathBuf {
    ms_testing::workspace_root().join("tests/golden/models/aquila")
}

#[test]
fn a_dataset_is_written_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let documents = write_and_read::run(&folder.path().join("set")).unwrap();
    assert_eq!(documents, [vec![5, 6, 7, 8], vec![9, 10]]);
}

#[test]
fn a_tokenizer_is_trained_and_encodes() {
    let folder = tempfile::tempdir().unwrap();
    let pieces = train_and_encode::run(folder.path(), "the cat").unwrap();
    assert!(pieces.len() < "the cat".len() && pieces.concat().contains("the"), "{pieces:?}");
}

#[test]
fn a_model_is_described() {
    let json = std::fs::read_to_string(sample().join("config.json")).unwrap();
    let said = describe::run(&json).unwrap();
    assert!(said.starts_with("Aquila: 3 layers, 32 wide, 4 heads"), "{said}");
    assert!(describe::run("{}").is_err());
}

#[test]
fn a_checkpoint_is_listed() {
    let lines = list_tensors::run(&sample()).unwrap();
    assert!(lines.iter().any(|l| l.contains("linear_qkv.weight") && l.ends_with("bf16")), "{lines:?}");
    assert!(list_tensors::run(Path::new("no such folder")).is_err());
}

#[test]
fn a_model_is_trained_by_the_flags_that_the_example_shows() {
    let text = include_str!("../../../crates/ms-options/examples/train.rs");
    let (_, rest) = text.split_once("--example train -- ").unwrap();
    let (flags, _) = rest.split_once("```").unwrap();
    let flags = flags.split_whitespace().filter(|word| !matches!(*word, "//!" | "\\"));
    let outcomes = train::run(flags.map(str::to_owned)).unwrap();
    let ended: Vec<_> = outcomes.iter().map(|o| (o.iteration, o.last_loss.is_some())).collect();
    assert_eq!(ended, [(3, true), (3, true)], "both ranks: {outcomes:?}");
}

#[test]
fn products_have_the_same_bits_on_every_instruction_set() {
    for arithmetic in Arithmetic::ALL {
        let products = multiply::run(Dims { m: 7, n: 5, k: 100 }, arithmetic).unwrap();
        assert!(products.iter().all(|(_, c)| *c == products[0].1));
        assert!(products[0].1.iter().any(|x| *x != 0.0));
    }
}
