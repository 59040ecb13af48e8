//! Training compared with the trainer of the `tokenizers` crate: the same files.

use super::*;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainerBuilder;

/// The same vocabulary by the reference's own trainer.
fn reference(options: &Options, texts: &[String]) -> String {
    let mut engine = engine(BPE::default()).unwrap();
    let trainer = BpeTrainerBuilder::new()
        .vocab_size(options.vocab_size)
        .min_frequency(options.min_frequency)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(SPECIAL_TOKENS.iter().map(|t| AddedToken::from(*t, true).normalized(false)).collect())
        .build();
    engine.train(&mut TrainerWrapper::from(trainer), texts.iter().cloned()).unwrap();
    engine.to_string(true).unwrap()
}

fn same(options: &Options, texts: &[String]) {
    let want = reference(options, texts);
    for threads in [1, 2, 3] {
        let trained = train_with(options, texts.to_vec(), threads, &|_| ()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        trained.write(dir.path()).unwrap();
        let got = std::fs::read_to_string(dir.path().join("tokenizer.json")).unwrap();
        assert!(got == want, "{options:?}, {threads} threads");
    }
}

#[test]
fn vocabularies_are_those_of_the_reference() {
    // Runs of one letter make pairs that overlap; many ties; text in several scripts.
    let text =
        "aaaa aaaaa aaa baaab abab ababab don't DON'T 1234 naïve été 你好，世界  \n\n\tx = y;  // z\r\n";
    let mixed: Vec<String> =
        (0..60).map(|n| format!("{text}{} {}", "ab".repeat(n % 7), text.repeat(n % 3))).collect();
    for (vocab_size, min_frequency) in [(260, 2), (300, 1), (420, 2), (900, 3), (5000, 0)] {
        same(&Options { vocab_size, min_frequency }, &mixed);
    }
    same(&Options { vocab_size: 300, min_frequency: 2 }, &[]);
}

#[test]
fn real_text_gives_the_vocabulary_of_the_reference() {
    let Some(dir) = ms_testing::shared("data/text") else { return };
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if let Ok(text) = std::fs::read_to_string(&path) {
            texts.push(text.chars().take(400_000).collect());
        }
    }
    assert!(!texts.is_empty());
    same(&Options { vocab_size: 4_000, min_frequency: 2 }, &texts);
}

#[test]
fn whoever_asks_is_told_how_far_it_is() {
    let told = std::sync::Mutex::new(Vec::new());
    let text = "some words that are merged ".repeat(40);
    let options = Options { vocab_size: 1_200, min_frequency: 1 };
    let trained = train_with(&options, [text.clone()], 1, &|step| told.lock().unwrap().push(step)).unwrap();
    let told = told.into_inner().unwrap();
    assert_eq!(told[0], Step::Counting { bytes: text.len() as u64 });
    let done = trained.vocab_size() as u64 - 260;
    assert_eq!(told.last(), Some(&Step::Merging { done, of: 940 }));
}
