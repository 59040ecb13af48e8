//! Every preprocessing case that upstream wrote, byte for byte.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_data::handler::{Handler, HandlerOptions, RecordKind};
use ms_data::pack::PackOptions;
use ms_data::records::{Documents, RecordReader, discover};
use ms_data::sink::{IndexedSink, PackedSink, Sink, dataset_prefixes};
use ms_data::{Upstream, preprocess};
use ms_text::Tokenizer;
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn every_case_gives_upstreams_bytes() {
    let Some(root) = ms_testing::shared("goldens/data") else { return };
    let mut cases: Vec<_> = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|case| case.join("case.json").exists());
    cases.sort();
    assert_eq!(cases.len(), 31);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            check(case, case.file_name().unwrap().to_str().unwrap());
        }
    };
    // A case that fails ends the scope, and the test.
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
}

/// Words after a flag, up to the next one.
fn after<'a>(line: &'a [String], flag: &str) -> Option<&'a [String]> {
    let at = line.iter().position(|word| word == flag)? + 1;
    let end = line[at..].iter().position(|word| word.starts_with("--")).map_or(line.len(), |n| at + n);
    Some(&line[at..end])
}

fn check(case: &Path, name: &str) {
    let command = std::fs::read_to_string(case.join("cmd.txt")).unwrap();
    let line = ms_testing::words(command.lines().nth(1).unwrap());
    let one = |flag: &str| after(&line, flag).map(|words| words[0].clone());
    let data = case.join("../../../");
    let number = |flag: &str| one(flag).map(|word| word.parse::<usize>().unwrap());
    let has = |flag: &str| line.iter().any(|word| word == flag);
    let mut options =
        HandlerOptions::new(RecordKind::of_handler(&one("--handler-name").unwrap_or_default()).unwrap());
    options.prompt_type = one("--prompt-type");
    options.map_keys = one("--map-keys").map(|json| serde_json::from_str(&json).unwrap());
    if let Some(keys) = after(&line, "--json-keys") {
        options.json_keys = keys.to_vec();
    }
    options.append_eod = has("--append-eod");
    options.seq_length = number("--seq-length");
    options.neat_pack = has("--neat-pack");
    options.pad_to_multiple_of = number("--pad-to-multiple-of").unwrap_or(1);
    options.additional_keys = after(&line, "--dataset-additional-keys").unwrap_or_default().to_vec();
    options.reward_tokens = after(&line, "--reward-tokens").unwrap_or_default().to_vec();
    options.enable_thinking = one("--enable-thinking").and_then(|word| word.parse().ok());
    options.upstream = if name.starts_with("head-") { Upstream::Head } else { Upstream::V2_0_0 };
    let tokenizer = Tokenizer::load(data.join(one("--tokenizer-name-or-path").unwrap())).unwrap();
    let handler = Handler::new(options, tokenizer).unwrap();

    let out = tempfile::tempdir().unwrap();
    let prefix = out.path().join(one("--output-prefix").unwrap().strip_prefix("OUT/").unwrap());
    let prefixes =
        dataset_prefixes(&prefix, handler.columns(), handler.kind().packed_name(), handler.level());
    let sink: Box<dyn Sink> = if has("--pack") {
        let options = PackOptions::new(
            handler.options().seq_length.unwrap(),
            has("--neat-pack"),
            handler.tokenizer().pad_id().unwrap() as i32,
        );
        Box::new(PackedSink::create(&prefixes, handler.columns(), options).unwrap())
    } else {
        Box::new(IndexedSink::create(&prefixes, handler.options().seq_length).unwrap())
    };
    let files = discover(&data.join(one("--input").unwrap()), Documents::Records).unwrap();
    let parts = number("--n-subs").map(|parts| {
        let rows = preprocess::count_rows(RecordReader::new(files.clone()), &handler).unwrap();
        preprocess::rows_per_part(rows, parts as u64).unwrap()
    });
    preprocess::run(RecordReader::new(files), &handler, 3, parts, sink, |_| ()).unwrap();

    let mut compared = 0;
    for want in std::fs::read_dir(case).unwrap().map(|entry| entry.unwrap().path()) {
        if want.extension().is_some_and(|e| e == "bin" || e == "idx") {
            let file = want.file_name().unwrap().to_str().unwrap();
            let got = std::fs::read(out.path().join(file)).unwrap_or_else(|e| panic!("{name}: {file}: {e}"));
            assert!(got == std::fs::read(&want).unwrap(), "{name}: {file} differs");
            compared += 1;
        }
    }
    assert_eq!(compared, prefixes.len() * 2, "{name}");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), compared, "{name}: nothing else is written");
    let spec: Value = serde_json::from_slice(&std::fs::read(case.join("case.json")).unwrap()).unwrap();
    assert!(spec.is_object());
}
