//! Preprocessing relative to its own encoder: the same real text, the same threads, interleaved rounds.
//!
//! `cargo bench -p ms-data --bench preprocess [-- --quick] [--rounds N] [--alone] [--tokenizer DIR]... [--text FILE]...`
//!
//! Without `--text`, every line of every file of `../shared/data` except the tokenizers is a document; without `--tokenizer`,
//! the tokenizers of that folder are used. Three programs alternate: the encoder alone on documents in memory, the whole of
//! preprocessing (read JSON lines, encode, write `.bin` and `.idx`), and, on a small part of the text, the reference engine.
//! `--alone` runs only the first two, on one thread: many such rounds are more informative on a busy machine. Rates are
//! megabytes of text per second, by wall clock and by CPU time of the whole process; ratios are medians of the rounds; the
//! ratio of the minimum times is in brackets. Before anything is timed, both engines must have given the same ids on the
//! small part.

#![allow(clippy::print_stdout, missing_docs, clippy::unwrap_used)] // a benchmark reports on stdout, and may stop

use ms_data::handler::{Handler, HandlerOptions, RecordKind};
use ms_data::preprocess;
use ms_data::records::{Discovery, RecordReader};
use ms_data::sink::IndexedSink;
use ms_kernels::machine::process_cpu_seconds;
use ms_text::{Engine, Tokenizer};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Text that the reference engine, which is slow, also encodes; in bytes.
const SMALL: usize = 1 << 20;

struct Args {
    tokenizers: Vec<PathBuf>,
    texts: Vec<PathBuf>,
    rounds: usize,
    limit: usize,
    alone: bool,
}

fn args() -> Option<Args> {
    let mut out =
        Args { tokenizers: Vec::new(), texts: Vec::new(), rounds: 5, limit: usize::MAX, alone: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => (out.rounds, out.limit) = (2, 8 << 20),
            "--rounds" => out.rounds = words.next()?.parse().ok()?,
            "--alone" => out.alone = true,
            "--tokenizer" => out.tokenizers.push(words.next()?.into()),
            "--text" => out.texts.push(words.next()?.into()),
            _ => {}
        }
    }
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    if out.tokenizers.is_empty() {
        out.tokenizers =
            ["gpt2", "qwen", "llama3", "llama2"].map(|name| shared.join("tokenizers").join(name)).into();
    }
    if out.texts.is_empty() {
        files(&shared, &mut out.texts);
    }
    (!out.texts.is_empty() && out.tokenizers.iter().all(|dir| dir.exists())).then_some(out)
}

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "tokenizers") {
            files(&path, out);
        } else if path.extension().is_some_and(|e| ["json", "jsonl", "txt", "csv"].iter().any(|x| e == *x)) {
            out.push(path);
        }
    }
}

/// Rates of one measurement: bytes per second of wall clock and of CPU time.
#[derive(Clone, Copy)]
struct Rate {
    wall: f64,
    cpu: f64,
}

fn timed(bytes: usize, work: impl FnOnce()) -> Rate {
    let (clock, cpu) = (Instant::now(), process_cpu_seconds());
    work();
    let (wall, cpu) = (clock.elapsed().as_secs_f64(), process_cpu_seconds() - cpu);
    Rate { wall: bytes as f64 / wall / 1e6, cpu: bytes as f64 / cpu / 1e6 }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The best rate by CPU time.
fn best(rates: &[Rate]) -> f64 {
    rates.iter().map(|rate| rate.cpu).fold(0.0, f64::max)
}

fn encode_alone(tokenizer: &Tokenizer, documents: &[impl AsRef<str> + Sync], threads: usize) {
    std::thread::scope(|scope| {
        for part in documents.chunks(documents.len().div_ceil(threads)) {
            scope.spawn(move || {
                for text in part {
                    std::hint::black_box(tokenizer.encode_with_special(text.as_ref()).unwrap());
                }
            });
        }
    });
}

fn preprocess(handler: &Handler, input: &Path, out: &Path, workers: usize) {
    let files = Discovery::default().files(input).unwrap();
    let sink = Box::new(IndexedSink::create(&[out.to_path_buf()], None).unwrap());
    preprocess::run(RecordReader::new(files), handler, workers, None, sink, |_| ()).unwrap();
}

fn main() {
    let Some(args) = args() else {
        println!("no text or no tokenizer; pass --text FILE and --tokenizer DIR");
        return;
    };
    let mut documents = Vec::new();
    let mut bytes = 0;
    'files: for path in &args.texts {
        let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        for line in text.lines().filter(|line| !line.is_empty()) {
            bytes += line.len();
            documents.push(line.to_owned());
            if bytes > args.limit {
                break 'files;
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in.jsonl");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&input).unwrap());
    for text in &documents {
        writeln!(file, "{}", serde_json::json!({"text": text})).unwrap();
    }
    file.into_inner().unwrap();
    let part = documents.iter().scan(0, |sum, text| {
        *sum += text.len();
        (*sum <= SMALL).then_some(text)
    });
    let part: Vec<&String> = part.collect();
    let part_bytes: usize = part.iter().map(|text| text.len()).sum();
    println!(
        "{} documents, {:.1} MB; {} rounds; MB/s by the wall (by CPU time)",
        documents.len(),
        bytes as f64 / 1e6,
        args.rounds
    );
    for folder in &args.tokenizers {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let clock = Instant::now();
        let tokenizer = Tokenizer::load(folder).unwrap();
        let loading = clock.elapsed().as_secs_f64();
        let reference = Tokenizer::load_with(folder, Engine::Reference).unwrap();
        for text in &part {
            assert!(
                tokenizer.encode_with_special(text).unwrap() == reference.encode_with_special(text).unwrap()
            );
        }
        let handler = Handler::new(HandlerOptions::new(RecordKind::Pretrain), tokenizer).unwrap();
        let out = dir.path().join("out");
        let mut rows: Vec<(String, Vec<Rate>)> = Vec::new();
        for round in 0..args.rounds {
            let mut row = 0;
            let mut add = |label: String, rate: Rate| {
                if round == 0 {
                    rows.push((label, Vec::new()));
                }
                rows[row].1.push(rate);
                row += 1;
            };
            for &threads in if args.alone { &[1][..] } else { &[1, 2] } {
                let rate = timed(bytes, || encode_alone(handler.tokenizer(), &documents, threads));
                add(format!("encoder alone, {threads} threads"), rate);
                let rate = timed(bytes, || preprocess(&handler, &input, &out, threads));
                add(format!("preprocessing, {threads} workers"), rate);
            }
            if args.alone {
                continue;
            }
            let rate = timed(part_bytes, || {
                part.iter().for_each(|text| {
                    drop(std::hint::black_box(reference.encode_with_special(text).unwrap()));
                });
            });
            add("reference engine, small part".into(), rate);
            let rate = timed(part_bytes, || encode_alone(handler.tokenizer(), &part, 1));
            add("encoder alone, small part".into(), rate);
        }
        println!("{name} ({}, loaded in {loading:.2} s)", handler.tokenizer().engine_name().unwrap());
        for (label, rates) in &rows {
            let wall = median(rates.iter().map(|rate| rate.wall).collect());
            let cpu = median(rates.iter().map(|rate| rate.cpu).collect());
            println!("  {label:28} {wall:8.1} ({cpu:.1}, best {:.1})", best(rates));
        }
        let ratio = |a: usize, b: usize, of: fn(&Rate) -> f64| {
            median(rows[a].1.iter().zip(&rows[b].1).map(|(a, b)| of(a) / of(b)).collect())
        };
        let least = best(&rows[1].1) / best(&rows[0].1);
        if args.alone {
            println!(
                "  preprocessing / encoder {:.2} [{least:.2}] by CPU time",
                ratio(1, 0, |rate| rate.cpu)
            );
            continue;
        }
        println!(
            "  preprocessing / encoder {:.2} (1), {:.2} (2) by the wall, {:.2} [{least:.2}] by CPU time; 2 workers / 1 {:.2}; \
             encoder / reference {:.1} (small part)",
            ratio(1, 0, |rate| rate.wall),
            ratio(3, 2, |rate| rate.wall),
            ratio(1, 0, |rate| rate.cpu),
            ratio(3, 1, |rate| rate.wall),
            ratio(5, 4, |rate| rate.cpu),
        );
    }
}
