//! Data throughput relative to the speed of copying the same bytes: `just bench-data`.
//!
//! Every case alternates with a copy of the same bytes, several times; the result is the ratio of the medians. Each case
//! checks its result before it is timed. `--quick` uses a tenth of the sizes; arguments select cases by name.
#![allow(clippy::print_stdout)] // a benchmark speaks

use ms_data::gpt::{BlendIndex, GptIndex};
use ms_data::handler::Row;
use ms_data::indexed::{IndexedDataset, IndexedWriter, TokenType, bin_path};
use ms_data::pack::{PackOptions, Packing, knapsack_bins, plan};
use ms_data::records::{Documents, RecordReader, discover};
use ms_data::sink::{PackedSink, Sink as _};
use ms_data::token_stream::{StreamInfo, TokenMap, TokenReader, TokenWriter};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

/// Times a case and its measure are run, in turn.
const ROUNDS: usize = 5;

struct Bench {
    quick: bool,
    words: Vec<String>,
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
    }

    fn size(&self, full: usize) -> usize {
        if self.quick { full / 10 } else { full }
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs both in turn; prints the case's speed and its ratio to a copy.
fn against_copy(name: &str, bytes: u64, mut case: impl FnMut(), mut copy: impl FnMut()) {
    let (mut of_case, mut of_copy) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_case.push(seconds(&mut case));
        of_copy.push(seconds(&mut copy));
    }
    let (case, copy) = (median(of_case), median(of_copy));
    let rate = |seconds: f64| bytes as f64 / 1e6 / seconds;
    println!("{name:28} {:8.0} MB/s   copy {:8.0} MB/s   ratio {:.2}", rate(case), rate(copy), copy / case);
}

/// Pseudo-random numbers; the same in every run.
fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    })
}

/// Copies a file and waits until it is on the disk, as all outputs do.
fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).expect("a copy");
    File::open(to).and_then(|file| file.sync_all()).expect("a sync");
}

fn merge(bench: &Bench, dir: &Path) {
    let tokens = bench.size(100_000_000);
    let prefix = dir.join("whole");
    let mut writer = IndexedWriter::create(&prefix, TokenType::I32).expect("a dataset");
    let document: Vec<i32> = (0..1000).collect();
    for _ in 0..tokens / 1000 {
        writer.sequence(&document).expect("a sequence");
        writer.end_document().expect("a document");
    }
    writer.finish().expect("a dataset");
    let set = IndexedDataset::open(&prefix).expect("a dataset");
    let bin = bin_path(&prefix);
    let run = || {
        let mut writer = IndexedWriter::create(dir.join("merged"), TokenType::I32).expect("a dataset");
        writer.append(&set).expect("a part");
        writer.finish().expect("a dataset");
    };
    run();
    assert_eq!(IndexedDataset::open(dir.join("merged")).expect("a dataset").tokens(), tokens as u64);
    against_copy("merge", tokens as u64 * 4, run, || copy(&bin, &dir.join("copied")));
}

/// A stream of instruction samples of 20 to 1000 tokens.
fn stream(bench: &Bench, path: &Path) -> u64 {
    let info = StreamInfo { style: "sharegpt".into(), packed_name: true, ..StreamInfo::default() };
    let columns = ["input_ids", "attention_mask", "labels"].map(str::to_owned);
    let out = BufWriter::new(File::create(path).expect("a file"));
    let mut writer = TokenWriter::new(out, "bench", &columns, &info).expect("a stream");
    for length in numbers(1).take(bench.size(200_000)) {
        let length = 20 + (length % 980) as usize;
        let row = vec![Some(vec![7; length]), Some(vec![1; length]), Some(vec![-100; length])];
        writer.push(Row::new(row)).expect("a row");
    }
    writer.finish().expect("a stream");
    path.metadata().expect("a file").len()
}

fn pack(bench: &Bench, dir: &Path) {
    let path = dir.join("samples.arrow");
    let bytes = stream(bench, &path);
    let columns = ["input_ids", "attention_mask", "labels"].map(str::to_owned);
    let prefixes = columns.clone().map(|key| dir.join(key));
    // As `ms-pack` does with files, and with a pipe.
    for (name, packing, mapped) in [
        ("pack, knapsack", Packing::Knapsack, true),
        ("pack, first fit", Packing::FirstFit { window: 64 }, true),
        ("pack, knapsack, piped", Packing::Knapsack, false),
        ("pack, first fit, piped", Packing::FirstFit { window: 64 }, false),
    ] {
        let run = || {
            let options = PackOptions { packing, ..PackOptions::new(4096, true, 0) };
            let mut sink = Box::new(PackedSink::create(&prefixes, &columns, options).expect("a sink"));
            if mapped {
                sink.pack_maps(&[TokenMap::open(&path).expect("a stream")]).expect("rows");
            } else {
                let reader = TokenReader::new(File::open(&path).expect("a stream"), "bench");
                sink.pack_stream(reader.expect("a stream")).expect("rows");
            }
            let summary = sink.finish().expect("a dataset");
            assert!(summary.fill.is_some_and(|fill| fill > 0.9));
        };
        against_copy(name, bytes, run, || copy(&path, &dir.join("copied")));
    }
}

fn knapsack(bench: &Bench) {
    let count = bench.size(10_000_000);
    let lengths: Vec<u32> = numbers(2).take(count).map(|n| (n % 4000) as u32).collect();
    let (mut bins, mut placed) = (0usize, 0usize);
    let took = seconds(|| {
        let keep = |bin: &[u32]| -> Result<(), std::convert::Infallible> {
            bins += 1;
            placed += bin.len();
            Ok(())
        };
        let Ok(()) = knapsack_bins(&lengths, 4095, keep);
    });
    assert_eq!(placed, count);
    println!("{:28} {count} lengths into {bins} rows in {took:.2} s", "knapsack");
    let all: Vec<usize> = lengths.iter().map(|&n| n as usize).collect();
    for (name, packing) in [
        ("first fit, window 256", Packing::FirstFit { window: 256 }),
        ("best fit, window 256", Packing::BestFit { window: 256 }),
        ("knapsack, fill", Packing::Knapsack),
    ] {
        let options = PackOptions { packing, ..PackOptions::new(4096, false, 0) };
        let mut counts = None;
        let took = seconds(|| counts = Some(plan(&all, &options)));
        let counts = counts.expect("a plan");
        println!("{name:28} {:.2} % full in {took:.2} s", 100.0 * counts.fill(4096));
    }
}

fn sample_index(bench: &Bench) {
    // Ten billion tokens in a million documents, rows of 4096.
    let documents = bench.size(1_000_000);
    let lengths: Vec<i32> = numbers(3).take(documents).map(|n| 5000 + (n % 10_000) as i32).collect();
    let tokens: u64 = lengths.iter().map(|&n| n as u64).sum();
    let mut index = None;
    let took = seconds(|| {
        index = GptIndex::build(0..documents, |i| lengths[i] as usize, 4096, None, 1234).ok();
    });
    let index = index.expect("an index");
    assert_eq!(index.len() as u64, (tokens - 1) / 4096);
    println!(
        "{:28} {:.1} billion tokens, {documents} documents, {} samples in {took:.2} s",
        "sample index",
        tokens as f64 / 1e9,
        index.len()
    );
    let size = bench.size(10_000_000);
    let took = seconds(|| {
        let blend = BlendIndex::weighted(&[0.5, 0.3, 0.15, 0.05], size);
        assert_eq!(blend.dataset.len(), size);
    });
    println!("{:28} {size} draws of 4 sets in {took:.2} s", "blend index");
}

fn reading(bench: &Bench, dir: &Path) {
    let path = dir.join("in.jsonl");
    let mut out = BufWriter::new(File::create(&path).expect("a file"));
    let text = "words of a text with \\n escapes, \\u00e9 and \\\"quotes\\\" ".repeat(20);
    let count = bench.size(200_000);
    for i in 0..count {
        writeln!(out, "{{\"id\": {i}, \"text\": \"{text}\"}}").expect("a line");
    }
    drop(out);
    let bytes = path.metadata().expect("a file").len();
    let files = discover(&path, Documents::Records).expect("a file");
    against_copy(
        "records of JSON lines",
        bytes,
        || assert_eq!(RecordReader::new(files.clone()).filter(Result::is_ok).count(), count),
        || copy(&path, &dir.join("copied")),
    );
    let parse = |record: ms_data::Result<ms_data::records::RawRecord>| record.and_then(|r| r.parse()).is_ok();
    against_copy(
        "parsed records",
        bytes,
        || assert_eq!(RecordReader::new(files.clone()).map(parse).filter(|&ok| ok).count(), count),
        || copy(&path, &dir.join("copied")),
    );
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let quick = words.iter().any(|word| word == "--quick");
    let bench = Bench { quick, words: words.into_iter().filter(|word| word != "--quick").collect() };
    let dir = tempfile::tempdir().expect("a folder");
    if bench.wants("merge") {
        merge(&bench, dir.path());
    }
    if bench.wants("pack") {
        pack(&bench, dir.path());
    }
    if bench.wants("knapsack") {
        knapsack(&bench);
    }
    if bench.wants("index") {
        sample_index(&bench);
    }
    if bench.wants("reading") {
        reading(&bench, dir.path());
    }
}
