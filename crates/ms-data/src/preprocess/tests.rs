//! A single run, shards, several processes: the same bytes; and what is left out.

use super::shards::Shards;
use super::*;
use crate::handler::{HandlerOptions, RecordKind};
use crate::records::{Documents, FileDigest, InputFile, RecordReader, discover};
use crate::select::{Dedup, Filter, Sampling, Shuffle, shuffled};
use crate::sink::IndexedSink;
use crate::token_stream::StreamInfo;
use ms_text::Tokenizer;
use std::path::{Path, PathBuf};

struct Bench {
    dir: tempfile::TempDir,
    handler: Handler,
    files: Vec<InputFile>,
}

impl Bench {
    /// Three files of texts, with duplicates within and across, and a line that is broken.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = ms_text::bpe::Options { vocab_size: 280, ..Default::default() };
        ms_text::bpe::train(&options, ["words and more words".to_owned()])
            .unwrap()
            .write(dir.path().join("tok"))
            .unwrap();
        for (name, from) in [("a.jsonl", 0), ("b.jsonl", 150), ("c.jsonl", 300)] {
            let mut text = String::new();
            for i in from..from + 200 {
                text.push_str(&format!("{{\"text\": \"text {} of words\"}}\n", i % 330));
            }
            if name == "b.jsonl" {
                text.push_str("\n{\"text\": 3}\n{broken\n");
            }
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let tokenizer = Tokenizer::load(dir.path().join("tok")).unwrap();
        let options = HandlerOptions { append_eod: true, ..HandlerOptions::new(RecordKind::Pretrain) };
        let handler = Handler::new(options, tokenizer).unwrap();
        let files = discover(&dir.path().join("*.jsonl"), Documents::Records).unwrap();
        Self { dir, handler, files }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn output(&self, name: &str) -> Output<'static> {
        let sink = IndexedSink::create(&[self.path(name)], None).unwrap();
        let mut output = Output::new(Box::new(sink));
        output.keep_rejects(&self.path(&format!("{name}.rejects"))).unwrap();
        output
    }

    fn run(&self, name: &str, workers: usize, selection: &RecordSelection) -> Report {
        let mut output = self.output(name);
        run_into(
            RecordReader::new(self.files.clone()),
            &self.handler,
            workers,
            selection,
            &mut output,
            |_| (),
        )
        .unwrap();
        output.finish().unwrap().0
    }

    fn shards<'a>(&'a self, selection: &'a RecordSelection) -> Shards<'a> {
        let info = StreamInfo { style: "pretrain".into(), tokenizer: "x".into(), ..StreamInfo::default() };
        Shards::new(&self.path("work"), self.files.clone(), "settings".into(), &self.handler, selection, info)
            .unwrap()
    }

    fn bytes(&self, name: &str) -> Vec<Vec<u8>> {
        [".bin", ".idx", ".rejects"]
            .map(|end| std::fs::read(self.path(&format!("{name}{end}"))).unwrap())
            .to_vec()
    }
}

fn choosy(dedup: Dedup) -> RecordSelection {
    RecordSelection {
        sampling: Some(Sampling::new(0.9, 3).unwrap()),
        filters: vec![Filter::parse("not:text 7[0-9] ").unwrap(), Filter::parse("tokens>=2").unwrap()],
        dedup: Some(dedup),
        on_error: OnError::Skip,
        ..RecordSelection::default()
    }
}

#[test]
fn a_bad_record_stops_the_run_or_is_passed_over_with_its_line() {
    let bench = Bench::new();
    let records = || RecordReader::new(bench.files.clone());
    let mut output = bench.output("stop");
    let error =
        run_into(records(), &bench.handler, 2, &RecordSelection::default(), &mut output, |_| ()).unwrap_err();
    assert!(error.to_string().ends_with("b.jsonl: record 201: line 202: text: expected a text"), "{error}");
    drop(output);
    let report =
        bench.run("skip", 3, &RecordSelection { on_error: OnError::Skip, ..RecordSelection::default() });
    assert_eq!((report.records, report.rejected), (602, 2));
    let rejects = std::fs::read_to_string(bench.path("skip.rejects")).unwrap();
    let lines: Vec<Reject> = rejects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        lines.iter().map(|r| (r.record, r.line)).collect::<Vec<_>>(),
        [(201, Some(202)), (202, Some(203))]
    );
    assert!(
        lines[1].reason.starts_with("not a JSON object") && lines[1].file.ends_with("b.jsonl"),
        "{rejects}"
    );
}

#[test]
fn the_choice_of_records_does_not_depend_on_workers_or_shards() {
    for dedup in [Dedup::Exact, Dedup::min_hash(0.95).unwrap()] {
        let bench = Bench::new();
        let selection = choosy(dedup);
        let want = bench.run("one", 1, &selection);
        let left = want.records - want.unsampled - want.filtered - want.duplicates - want.rejected;
        assert!(
            want.unsampled > 30 && want.filtered > 10 && want.duplicates > 150 && want.rejected > 0,
            "{want:?}"
        );
        assert_eq!(crate::indexed::IndexedDataset::open(bench.path("one")).unwrap().len() as u64, left);
        assert_eq!(bench.run("five", 5, &selection), want);
        assert_eq!(bench.bytes("five"), bench.bytes("one"));

        // Two processes, the second of which dies after its first shard and comes back.
        let shards = bench.shards(&selection);
        let (first, second) = (shards.pending(0, 2).unwrap(), shards.pending(1, 2).unwrap());
        let mut all = [first.clone(), second.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
        first.iter().for_each(|&shard| shards.encode(shard, 2, |_| ()).unwrap());
        let error = shards.merge(&mut bench.output("early"), |_| ()).unwrap_err().to_string();
        assert!(error.contains("this shard is not complete"), "{error}");
        assert_eq!(bench.shards(&selection).pending(0, 1).unwrap(), second);
        second.iter().for_each(|&shard| shards.encode(shard, 1, |_| ()).unwrap());
        let mut output = bench.output("shards");
        shards.merge(&mut output, |_| ()).unwrap();
        assert_eq!(output.finish().unwrap().0, want);
        assert_eq!(bench.bytes("shards"), bench.bytes("one"));
        shards.remove().unwrap();
        assert!(!bench.path("work").exists());
    }
}

#[test]
fn a_record_that_cannot_be_used_is_an_error_whether_or_not_it_occurred_before() {
    let bench = Bench::new();
    let options = HandlerOptions {
        json_keys: vec!["text".into(), "more".into()],
        ..HandlerOptions::new(RecordKind::Pretrain)
    };
    let handler = Handler::new(options, Tokenizer::load(bench.path("tok")).unwrap()).unwrap();
    let mut text = String::new();
    for i in 0..400 {
        // From the second one on, all have the text of the first; the last one has no second text.
        let more = if i == 399 { "3".to_owned() } else { format!("\"more {i}\"") };
        text.push_str(&format!("{{\"text\": \"same\", \"more\": {more}}}\n"));
    }
    std::fs::write(bench.path("d.jsonl"), text).unwrap();
    let files = || discover(&bench.path("d.jsonl"), Documents::Records).unwrap();
    let selection = |on_error| RecordSelection {
        dedup: Some(Dedup::Exact),
        dedup_scope: crate::select::Scope::Fields(vec!["text".into()]),
        on_error,
        ..RecordSelection::default()
    };
    for workers in [1, 2, 3] {
        let run = |name: &str, selection: &RecordSelection| {
            let sink =
                IndexedSink::create(&[bench.path(name), bench.path(&format!("{name}2"))], None).unwrap();
            let mut output = Output::new(Box::new(sink));
            run_into(RecordReader::new(files()), &handler, workers, selection, &mut output, |_| ())
                .and_then(|()| output.finish())
        };
        let error = run("stop", &selection(OnError::Stop)).unwrap_err().to_string();
        assert!(error.ends_with("d.jsonl: record 400: more: expected a text"), "{error}");
        let (report, _) = run("skip", &selection(OnError::Skip)).unwrap();
        assert_eq!((report.records, report.duplicates, report.rejected), (400, 398, 1), "{workers} workers");
    }
}

/// Counts rows, and refuses them from the limit on.
struct Limited(u64, u64);

impl crate::sink::Sink for Limited {
    fn row(&mut self, _: Row) -> Result<()> {
        self.0 += 1;
        if self.0 > self.1 { Err(Error::options("full")) } else { Ok(()) }
    }

    fn end_part(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish_after(self: Box<Self>, _: &mut dyn FnMut() -> Result<()>) -> Result<Summary> {
        Ok(Summary { packed: self.0, ..Summary::default() })
    }
}

#[test]
fn the_first_error_in_input_order_ends_the_run_for_any_number_of_workers() {
    let bench = Bench::new();
    let records = || RecordReader::new(bench.files[..1].to_vec()).cycle_records(40);
    for workers in [1, 2, 4, 9] {
        let run = |limit, tail: Option<Error>| {
            let sink = Box::new(Limited(0, limit));
            let records = records().chain(tail.map(Err));
            run(records, &bench.handler, workers, None, sink, |_| ()).map(|(_, summary)| summary.packed)
        };
        assert_eq!(run(u64::MAX, None).unwrap(), 8000);
        // What the reader cannot read comes after all rows before it; what the sink refuses comes first.
        assert_eq!(run(u64::MAX, Some(Error::options("unread"))).unwrap_err().to_string(), "unread");
        assert_eq!(run(7999, Some(Error::options("unread"))).unwrap_err().to_string(), "full");
        assert_eq!(run(8000, Some(Error::options("unread"))).unwrap_err().to_string(), "unread");
    }
}

/// A list of records many times over.
trait CycleRecords {
    fn cycle_records(self, times: usize) -> impl Iterator<Item = Result<RawRecord>> + Send;
}

impl<I: Iterator<Item = Result<RawRecord>>> CycleRecords for I {
    fn cycle_records(self, times: usize) -> impl Iterator<Item = Result<RawRecord>> + Send {
        let all: Vec<RawRecord> = self.map(Result::unwrap).collect();
        (0..times).flat_map(move |_| all.clone()).map(Ok)
    }
}

#[test]
#[should_panic(expected = "a scoped thread panicked")]
fn a_panic_of_a_worker_ends_the_run_instead_of_hanging_it() {
    let bench = Bench::new();
    let first = std::sync::atomic::AtomicBool::new(true);
    let caller = std::thread::current().id();
    let encode = |_: &[RawRecord]| {
        // Not on the caller's thread, whose panic would pass through by itself.
        while std::thread::current().id() == caller && first.load(std::sync::atomic::Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert!(!first.swap(false, std::sync::atomic::Ordering::SeqCst), "a mistake");
        Ok(Chunk::default())
    };
    let records = RecordReader::new(bench.files.clone()).cycle_records(200);
    let _ = encode_all(records, 2, encode, |_| Ok(()));
}

#[test]
fn a_shard_is_done_again_when_its_input_changes() {
    let bench = Bench::new();
    let selection = RecordSelection { on_error: OnError::Skip, ..RecordSelection::default() };
    let shards = bench.shards(&selection);
    for shard in shards.pending(0, 1).unwrap() {
        shards.encode(shard, 1, |_| ()).unwrap();
    }
    assert_eq!(shards.pending(0, 1).unwrap(), Vec::<usize>::new());
    std::fs::write(bench.path("b.jsonl"), "{\"text\": \"new\"}\n").unwrap();
    assert_eq!(shards.pending(0, 1).unwrap(), [1]);
}

#[test]
fn notes_of_any_numbers_are_summed_up_and_streams_of_other_columns_refused() {
    let bench = Bench::new();
    let selection = choosy(Dedup::Exact);
    let shards = bench.shards(&selection);
    for shard in shards.pending(0, 1).unwrap() {
        shards.encode(shard, 1, |_| ()).unwrap();
    }
    let edit = |shard: usize, tokens: u64| {
        let path = bench.path(&format!("work/{shard:06}.json"));
        let mut note: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        note["report"]["tokens"] = tokens.into();
        note["report"]["records"] = u64::MAX.into();
        std::fs::write(path, note.to_string()).unwrap();
    };
    (0..3).for_each(|shard| edit(shard, 0));
    let mut output = bench.output("a");
    shards.merge(&mut output, |_| ()).unwrap();
    assert_eq!((output.report().records, output.report().tokens), (u64::MAX, 0));
    // A stream of a run that looked for no duplicates.
    let plain = RecordSelection { on_error: OnError::Skip, ..RecordSelection::default() };
    let kept = bench.path("work/000001.json");
    let note = std::fs::read(&kept).unwrap();
    bench.shards(&plain).encode(1, 1, |_| ()).unwrap();
    std::fs::write(kept, note).unwrap();
    let refused = shards.merge(&mut bench.output("b"), |_| ()).unwrap_err().to_string();
    assert!(refused.contains("000001.tokens") && refused.contains("columns"), "{refused}");
    assert!(refused.contains("continues, dedup key, found text, continues"), "{refused}");
}

#[test]
fn a_shuffled_run_holds_the_same_rows_in_another_order() {
    let bench = Bench::new();
    let selection = RecordSelection { on_error: OnError::Skip, ..RecordSelection::default() };
    bench.run("plain", 2, &selection);
    let shuffle = |name: &str, memory| {
        let how = Shuffle { seed: 1, memory, folder: bench.path("spill") };
        let mut output = bench.output(name);
        let records = shuffled(RecordReader::new(bench.files.clone()), how);
        run_into(records, &bench.handler, 2, &selection, &mut output, |_| ()).unwrap();
        output.finish().unwrap();
    };
    shuffle("held", 1 << 20);
    shuffle("spilled", 4000);
    assert_eq!(bench.bytes("held"), bench.bytes("spilled"));
    assert_ne!(bench.bytes("held")[0], bench.bytes("plain")[0]);
    let rows = |name: &str| {
        let set = crate::indexed::IndexedDataset::open(bench.path(name)).unwrap();
        let mut rows: Vec<Vec<i32>> = (0..set.len())
            .map(|i| {
                let mut row = Vec::new();
                set.read(i, &mut row).unwrap();
                row
            })
            .collect();
        rows.sort();
        rows
    };
    assert_eq!(rows("held"), rows("plain"));
}

#[test]
fn parts_that_upstream_puts_in_another_order_are_refused() {
    assert_eq!((rows_per_part(2500, 1000).ok(), rows_per_part(3001, 999).ok()), (None, None));
    let error = rows_per_part(1999, 1000).unwrap_err().to_string();
    assert!(error.starts_with("--n-subs 1000: expected at most 1000 parts with that of"), "{error}");
    assert!(error.contains("found 1999 (1999 records, 1 each): upstream"), "{error}");
    assert!(error.ends_with("\nhint: pass --n-subs 999") && rows_per_part(1999, 999).is_ok(), "{error}");
    let few = rows_per_part(3, 4).unwrap_err().to_string();
    assert!(few.starts_with("--n-subs 4: expected a record for each part, found 3 records"), "{few}");
    assert_eq!((rows_per_part(3000, 1000).unwrap(), rows_per_part(2996, 998).unwrap()), (3, 3));
}

#[test]
fn a_manifest_knows_what_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output, path) =
        (dir.path().join("in"), dir.path().join("out.bin"), dir.path().join("m.json"));
    std::fs::write(&input, "abc").unwrap();
    std::fs::write(&output, "xy").unwrap();
    let settings = |length: u64| {
        serde_json::Map::from_iter([("seq_length".to_owned(), serde_json::Value::from(length))])
    };
    let digest = |path: &Path| FileDigest {
        path: path.into(),
        bytes: 3,
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".into(), // of abc, FIPS 180-2
    };
    let mut made = Manifest::new("p 1".into(), settings(8), "t".into());
    made.inputs.push(InputRecord::new(&digest(&input)).unwrap());
    made.outputs.push(OutputRecord::new(&output).unwrap());
    assert_eq!(Manifest::standing(&path, &made).unwrap(), ManifestStatus::Absent);
    made.write(&path).unwrap();
    let differs = |wanted: &Manifest| match Manifest::standing(&path, wanted).unwrap() {
        ManifestStatus::Differs(what) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(Manifest::standing(&path, &made).unwrap(), ManifestStatus::UpToDate(Box::new(made.clone())));
    let other = Manifest { settings: settings(9), ..made.clone() };
    assert_eq!(differs(&other), "seq_length was 8, is 9");
    // Touched but the same; then changed in place; then gone from the outputs.
    std::fs::write(&input, "abc").unwrap();
    assert!(matches!(Manifest::standing(&path, &made).unwrap(), ManifestStatus::UpToDate(_)));
    std::fs::write(&input, "abd").unwrap();
    assert!(differs(&made).contains("has changed since"));
    std::fs::write(&input, "abc").unwrap();
    std::fs::write(&output, "xyz").unwrap();
    assert!(differs(&made).contains("is missing or has another size"));
}
