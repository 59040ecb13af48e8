//! `ms-pack` as a user runs it, alone and after `ms-preprocess`.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use assert_cmd::Command;
use ms_data::handler::{Handler, HandlerOptions, RecordKind};
use ms_data::indexed::IndexedDataset;
use ms_data::pack::PackOptions;
use ms_data::preprocess;
use ms_data::records::{Documents, RecordReader, discover};
use ms_data::sink::{IndexedSink, PackedSink, Sink, dataset_prefixes};
use ms_data::token_stream::{StreamInfo, TokenStreamSink};
use std::path::{Path, PathBuf};

fn tool() -> Command {
    Command::cargo_bin("ms-pack").unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A tokenizer, records, and the two ways from them to a dataset.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = ms_text::bpe::Options { vocab_size: 300, ..Default::default() };
        let corpus = "some words and some more words. ".repeat(30);
        ms_text::bpe::train(&options, [corpus]).unwrap().write(dir.path().join("tok")).unwrap();
        let chats: Vec<_> = (0..60)
            .map(|i| {
                serde_json::json!({"conversations": [
                    {"from": "human", "value": format!("question {i} {}", "word ".repeat(i * 7 % 31))},
                    {"from": "gpt", "value": format!("answer {i}")}
                ]})
            })
            .collect();
        std::fs::write(dir.path().join("chats.json"), serde_json::to_vec(&chats).unwrap()).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn handler(&self) -> Handler {
        let mut options = HandlerOptions::new(RecordKind::SharegptInstruction);
        options.prompt_type = Some("qwen".into());
        options.seq_length = Some(160);
        Handler::new(options, ms_text::Tokenizer::load(self.path("tok")).unwrap()).unwrap()
    }

    fn run_into(&self, handler: &Handler, sink: Box<dyn Sink + '_>) {
        let files = discover(&self.path("chats.json"), Documents::Records).unwrap();
        preprocess::run(RecordReader::new(files), handler, 2, None, sink, |_| ()).unwrap();
    }

    fn stream(&self) -> Vec<u8> {
        let handler = self.handler();
        let tokenizer = handler.tokenizer();
        let info = StreamInfo {
            style: "sharegpt".into(),
            tokenizer: tokenizer.content_hash().into(),
            vocab_size: tokenizer.vocab_size() as u64,
            eod: tokenizer.eod().unwrap() as i32,
            pad: tokenizer.pad_id().unwrap() as i32,
            seq_length: Some(160),
            packed_name: true,
        };
        let mut bytes = Vec::new();
        let sink = TokenStreamSink::new(&mut bytes, "test", handler.columns(), &info).unwrap();
        self.run_into(&handler, Box::new(sink));
        bytes
    }

    /// The dataset without a stream in between.
    fn direct(&self, prefix: &str, pack: Option<bool>) {
        let handler = self.handler();
        let prefixes = dataset_prefixes(&self.path(prefix), handler.columns(), true, handler.level());
        let pad = handler.tokenizer().pad_id().unwrap() as i32;
        let sink: Box<dyn Sink> = match pack {
            Some(neat) => {
                let options = PackOptions::new(160, neat, pad);
                Box::new(PackedSink::create(&prefixes, handler.columns(), options).unwrap())
            }
            None => Box::new(IndexedSink::create(&prefixes, Some(160)).unwrap()),
        };
        self.run_into(&handler, sink);
    }

    fn files(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        files(self.dir.path(), prefix)
    }
}

fn files(dir: &Path, prefix: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter_map(|path| {
            // A manifest names the program that made it: it is looked at elsewhere.
            let name = path.file_name()?.to_str()?.strip_prefix(prefix)?.to_owned();
            let name = (!name.ends_with(".manifest.json")).then_some(name)?;
            Some((name, std::fs::read(path).ok()?))
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_pipe_a_file_and_the_direct_way_give_the_same_bytes() {
    let bench = Bench::new();
    let stream = bench.stream();
    std::fs::write(bench.path("s.arrow"), &stream).unwrap();
    let cases: [(&str, &[&str], Option<bool>); 3] =
        [("plain", &[], Some(false)), ("neat", &["--neat-pack"], Some(true)), ("rows", &["--no-pack"], None)];
    for (name, flags, pack) in cases {
        let piped = bench.path(&format!("pipe-{name}"));
        let run = tool()
            .args(["--seq-length", "160", "--output-prefix"])
            .arg(&piped)
            .args(flags)
            .write_stdin(stream.clone())
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", text(&run.stderr));
        let from_file = bench.path(&format!("file-{name}"));
        let run = tool()
            .args(["pack", "--input"])
            .arg(bench.path("s.arrow"))
            .args(["--output-prefix"])
            .arg(&from_file)
            .args(flags)
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", text(&run.stderr));
        bench.direct(&format!("direct-{name}"), pack);
        let want = bench.files(&format!("direct-{name}"));
        assert_eq!(want.len(), 6);
        assert!(bench.files(&format!("pipe-{name}")) == want, "{name} through a pipe");
        assert!(bench.files(&format!("file-{name}")) == want, "{name} from a file");
    }
}

#[test]
fn a_cut_stream_is_refused_and_leaves_nothing() {
    let bench = Bench::new();
    let stream = bench.stream();
    for length in [0, 20, stream.len() / 2, stream.len() - 8, stream.len() - 1] {
        let run = tool()
            .args(["--seq-length", "160", "--output-prefix"])
            .arg(bench.path("cut"))
            .write_stdin(&stream[..length])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(1), "{length}");
        assert!(
            text(&run.stderr).contains("standard input: not a complete token stream"),
            "{}",
            text(&run.stderr)
        );
        assert!(bench.files("cut").is_empty());
    }
}

#[test]
fn a_stream_of_another_tokenizer_is_refused() {
    let bench = Bench::new();
    let other = bench.path("other");
    let options = ms_text::bpe::Options { vocab_size: 280, ..Default::default() };
    ms_text::bpe::train(&options, ["other text ".repeat(9)]).unwrap().write(&other).unwrap();
    let pack = |tokenizer: &Path| {
        let mut command = tool();
        command.args(["--seq-length", "160", "--tokenizer-name-or-path"]).arg(tokenizer);
        command.arg("--output-prefix").arg(bench.path("x")).write_stdin(bench.stream()).output().unwrap()
    };
    let run = pack(&other);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("made with another tokenizer"), "{}", text(&run.stderr));
    assert!(pack(&bench.path("tok")).status.success());
}

#[test]
fn merge_cat_info_and_verify_agree() {
    let bench = Bench::new();
    bench.direct("a", None);
    let part = bench.path("a_packed_input_ids_document");
    let all = bench.path("all");
    let merge = |force: bool| {
        let mut command = tool();
        command
            .arg("merge")
            .args([&part, &part])
            .arg("--output-prefix")
            .arg(&all)
            .args(force.then_some("--force"));
        command.output().unwrap()
    };
    assert!(merge(false).status.success());
    assert_eq!(merge(false).status.code(), Some(1), "it is there already");
    assert!(merge(true).status.success());
    let set = IndexedDataset::open(&part).unwrap();
    let info = tool().args(["--json", "-q", "--log-format", "json", "info"]).arg(&all).output().unwrap();
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!((&info["sequences"], &info["tokens"]), (&(set.len() * 2).into(), &(set.tokens() * 2).into()));
    let rows = tool().arg("cat").arg(&all).output().unwrap();
    assert_eq!(text(&rows.stdout).lines().count(), set.len() * 2);
    let row: serde_json::Value = serde_json::from_str(text(&rows.stdout).lines().next().unwrap()).unwrap();
    let mut ids = Vec::new();
    set.read(0, &mut ids).unwrap();
    assert_eq!(row["ids"], serde_json::json!(ids));
    assert!(tool().arg("verify").arg(&all).output().unwrap().status.success());
    let idx = bench.path("all.idx");
    let mut bytes = std::fs::read(&idx).unwrap();
    bytes[34] ^= 1;
    std::fs::write(&idx, bytes).unwrap();
    let run = tool().arg("verify").arg(&all).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("sequence 1 should start at byte"), "{}", text(&run.stderr));
}

/// Folders with sets, a tokenizer where upstream's command lines have it, and the folders of orders of them: of made-up tokens,
/// and upstream's own where they are.
fn sets_and_orders(dir: &Path) -> Vec<(PathBuf, PathBuf)> {
    let own = dir.join("goldens/data");
    ms_testing::write_data_sets(&own);
    std::fs::create_dir_all(dir.join("data/tokenizers")).unwrap();
    let options = ms_text::bpe::Options { vocab_size: 265, ..Default::default() };
    let trained = ms_text::bpe::train(&options, ["other".to_owned()]).unwrap();
    trained.write(dir.join("data/tokenizers/gpt2")).unwrap();
    let beside = ms_testing::shared("goldens/data").map(|root| (root.clone(), root.join("gptdataset")));
    std::iter::once((own, ms_testing::golden("data/gptdataset"))).chain(beside).collect()
}

#[test]
fn samples_shows_the_order_of_training() {
    let dir = tempfile::tempdir().unwrap();
    for (root, orders) in sets_and_orders(dir.path()) {
        shows_the_order(&root, &orders);
    }
}

fn shows_the_order(root: &Path, orders: &Path) {
    let spec = std::fs::read(orders.join("blend-weights/spec.json")).unwrap();
    let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
    let run = tool()
        .current_dir(root)
        .args([
            "samples",
            "--json",
            "--split",
            "949,51,0",
            "--seq-length",
            "64",
            "--seed",
            "1234",
            "--train-samples",
            "500",
            "--valid-samples",
            "20",
        ])
        .args(["--tokenizer-name-or-path", "../../data/tokenizers/gpt2", "--data-path"])
        .args([
            "0.3",
            "pretrain-gpt2-eod/c4_text_document",
            "0.7",
            "pretrain-llama3-empty-docs-eod/shk_text_document",
        ])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let got: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let want = &spec["splits"]["train"];
    assert_eq!(got["train"]["len"], want["len"]);
    assert_eq!(got["train"]["samples"][0]["tokens"], want["samples"][0]["tokens"]);
    assert_eq!(got["train"]["parts"][0]["epochs"], want["parts"][0]["num_epochs"]);
    assert_eq!(got["test"], serde_json::Value::Null);
}

#[test]
fn mistakes_are_usage_errors() {
    let bench = Bench::new();
    let run = |args: &[&str], code: i32| {
        let run = tool().args(args).write_stdin(bench.stream()).output().unwrap();
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(code), "{said}");
        said
    };
    assert!(run(&[], 2).contains("--output-prefix"));
    run(&["merge"], 2);
    assert_eq!(run(&["--foo"], 2), "ms-pack: unexpected argument '--foo' found\nhint: see '--help'\n");
    assert!(run(&["info", "no-such-set"], 1).contains("no-such-set.idx"));
    let said = run(&["--seq-length", "160", "--pad-id", "4000", "--output-prefix", "set"], 2);
    assert!(said.contains("--pad-id: expected a token of the stream's vocabulary, below"), "{said}");
    // A folder is no beginning of names, in any command.
    for words in [&["pack"][..], &["merge", "a", "b"], &["split", "a", "--split", "1,1,0"]] {
        let said = run(&[words, &["--output-prefix", "out/"]].concat(), 2);
        assert!(
            said.contains("--output-prefix out/: expected a path") && said.contains("hint: pass out/NAME"),
            "{said}"
        );
    }
}

fn json_of(run: &std::process::Output) -> serde_json::Value {
    assert!(run.status.success(), "{}", text(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

#[test]
fn streams_of_one_kind_follow_each_other_and_others_are_refused() {
    let bench = Bench::new();
    std::fs::write(bench.path("a.arrow"), bench.stream()).unwrap();
    let pack = |inputs: &[&str], prefix: &str| {
        let mut command = tool();
        command.current_dir(bench.dir.path()).args([
            "--seq-length",
            "160",
            "--json",
            "--output-prefix",
            prefix,
        ]);
        command.arg("--input").args(inputs).output().unwrap()
    };
    assert_eq!(json_of(&pack(&["a.arrow", "a.arrow"], "twice"))["rows"], 120);
    let other = |name: &str, columns: &[&str], info: &StreamInfo| {
        let columns: Vec<String> = columns.iter().map(|c| (*c).to_owned()).collect();
        let mut bytes = Vec::new();
        let sink = TokenStreamSink::new(&mut bytes, "test", &columns, info).unwrap();
        (Box::new(sink) as Box<dyn Sink>).finish().unwrap();
        std::fs::write(bench.path(name), bytes).unwrap();
    };
    let stream = bench.stream();
    let info = ms_data::token_stream::TokenReader::new(&stream[..], "test").unwrap().info().clone();
    other("text.arrow", &["text"], &info);
    let run = pack(&["a.arrow", "text.arrow"], "x");
    assert_eq!(run.status.code(), Some(1));
    assert!(
        text(&run.stderr).contains("text.arrow: its columns are text, those of the first"),
        "{}",
        text(&run.stderr)
    );
    let columns = ["input_ids", "attention_mask", "labels"];
    other("pad.arrow", &columns, &StreamInfo { pad: info.pad + 1, ..info.clone() });
    let run = pack(&["a.arrow", "pad.arrow"], "x");
    assert!(text(&run.stderr).contains("pad.arrow: its padding id is "), "{}", text(&run.stderr));
    other("tok.arrow", &columns, &StreamInfo { tokenizer: "ff".into(), ..info });
    let run = pack(&["a.arrow", "tok.arrow"], "x");
    assert!(text(&run.stderr).contains("tok.arrow: its tokenizer hash is ff"), "{}", text(&run.stderr));
    assert!(bench.files("x").is_empty());
}

#[test]
fn ways_of_packing_are_compared_and_keep_all_samples() {
    let bench = Bench::new();
    std::fs::write(bench.path("a.arrow"), bench.stream()).unwrap();
    let run = |args: &[&str]| {
        let mut command = tool();
        command.current_dir(bench.dir.path()).args(["--input", "a.arrow", "--seq-length", "160", "--json"]);
        json_of(&command.args(args).output().unwrap())
    };
    let plan = run(&["--dry-run", "--window", "4"]);
    for way in ["knapsack", "first-fit", "best-fit"] {
        let report = run(&["--packing", way, "--window", "4", "--output-prefix", way]);
        assert_eq!(report["outputs"][0]["sequences"], plan[way]["rows"], "{way}");
        assert_eq!(report["fill"], plan[way]["fill"], "{way}");
        assert_eq!((&report["packed"], &plan[way]["samples"]), (&60.into(), &60.into()), "{way}");
        let fill = plan[way]["fill"].as_f64().unwrap();
        assert!((0.6..1.0).contains(&fill), "{way}: {fill}");
    }
    run(&["--pad-to-multiple-of", "8", "--pad-id", "9", "--output-prefix", "eights", "--neat-pack"]);
    let mask = IndexedDataset::open(bench.path("eights_packed_attention_mask_document")).unwrap();
    let mut row = Vec::new();
    mask.read(0, &mut row).unwrap();
    for sample in 1..=row.iter().copied().max().unwrap() {
        assert!(row.iter().filter(|&&v| v == sample).count().is_multiple_of(8), "sample {sample}");
    }
}

#[test]
fn what_split_divides_merge_joins_again() {
    let bench = Bench::new();
    bench.direct("a", None);
    let whole = bench.path("a_packed_labels_document");
    std::fs::create_dir(bench.path("parts")).unwrap();
    let split = |args: &[&str]| {
        let run = tool()
            .current_dir(bench.dir.path())
            .arg("split")
            .arg(&whole)
            .args(args)
            .arg("--json")
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", text(&run.stderr));
        text(&run.stdout)
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect::<Vec<serde_json::Value>>()
    };
    let parts = split(&["--parts", "7", "--output-prefix", "parts/p"]);
    assert_eq!(parts.iter().map(|p| p["documents"].as_u64().unwrap()).sum::<u64>(), 60);
    assert_eq!(parts[6]["prefix"], "parts/p_00006_of_00007");
    let run = tool()
        .current_dir(bench.dir.path())
        .args(["merge", "--input", "parts", "--output-prefix", "joined"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    for suffix in ["bin", "idx"] {
        let joined = std::fs::read(bench.path(&format!("joined.{suffix}"))).unwrap();
        assert!(joined == std::fs::read(format!("{}.{suffix}", whole.display())).unwrap(), "{suffix}");
    }
    let shares = split(&["--split", "90,10", "--output-prefix", "s"]);
    assert_eq!((&shares[0]["documents"], &shares[1]["documents"], shares.len()), (&54.into(), &6.into(), 2));
    assert!(bench.path("s_valid.idx").exists() && !bench.path("s_test.idx").exists());
    std::fs::remove_file(bench.path("parts/p_00003_of_00007.bin")).unwrap();
    let run = tool()
        .current_dir(bench.dir.path())
        .args(["merge", "--input", "parts", "--output-prefix", "x"])
        .output()
        .unwrap();
    assert!(text(&run.stderr).contains("p_00003_of_00007.bin: the other file"), "{}", text(&run.stderr));
}

#[test]
fn verify_looks_at_all_keys_of_a_set_and_at_the_vocabulary() {
    let bench = Bench::new();
    bench.direct("a", Some(false));
    let verify =
        |args: &[&str]| tool().current_dir(bench.dir.path()).arg("verify").args(args).output().unwrap();
    let options = ms_text::bpe::Options { vocab_size: 265, ..Default::default() };
    ms_text::bpe::train(&options, ["other".to_owned()]).unwrap().write(bench.path("small")).unwrap();
    let run = verify(&["a", "--tokenizer-name-or-path", "small"]);
    assert!(text(&run.stderr).contains("but the tokenizer has 26"), "{}", text(&run.stderr));
    assert!(verify(&["a", "--tokenizer-name-or-path", "tok"]).status.success());
    let run = verify(&["a"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert_eq!(text(&run.stdout).lines().count(), 3);
    bench.direct("b", None);
    for suffix in ["bin", "idx"] {
        let name = |set: &str| bench.path(&format!("{set}_packed_attention_mask_document.{suffix}"));
        std::fs::copy(name("b"), name("a")).unwrap();
    }
    let run = verify(&["a"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("sequences in"), "{}", text(&run.stderr));
}

#[test]
fn index_files_are_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    for (root, _) in sets_and_orders(dir.path()) {
        writes_and_reads_index_files(&root);
    }
}

fn writes_and_reads_index_files(root: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let samples = || {
        let run = tool()
            .current_dir(root)
            .args(["samples", "--json", "--split", "100,0,0", "--seq-length", "1024", "--seed", "42"])
            .args(["--train-samples", "95", "--tokenizer-name-or-path", "../../data/tokenizers/gpt2"])
            .args(["--data-path", "pretrain-gpt2-eod/c4_text_document", "--data-cache-path"])
            .arg(dir.path())
            .output()
            .unwrap();
        json_of(&run)
    };
    let built = samples();
    let name = dir.path().join("f1bf83c53cb60ab2410481f87dcab282-GPTDataset-shuffle_index.npy");
    let written = std::fs::metadata(&name).unwrap().modified().unwrap();
    assert_eq!(samples(), built);
    assert_eq!(std::fs::metadata(&name).unwrap().modified().unwrap(), written, "it is read, not made again");
}

#[test]
fn every_dataset_says_which_tokenizer_it_was_made_with() {
    let bench = Bench::new();
    std::fs::write(bench.path("chats.tokens"), bench.stream()).unwrap();
    let run = |args: &[&str]| {
        let run = tool().current_dir(bench.dir.path()).args(args).output().unwrap();
        assert!(run.status.success(), "{}", text(&run.stderr));
    };
    let tokenizer = |name: &str| -> Option<String> {
        let bytes = std::fs::read(bench.path(name)).ok()?;
        let manifest: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        Some(manifest["tokenizer_sha256"].as_str().unwrap().to_owned())
    };
    let handler = bench.handler();
    let hash = Some(handler.tokenizer().content_hash().to_owned());
    for prefix in ["a", "b"] {
        run(&["pack", "--input", "chats.tokens", "--output-prefix", prefix]);
        assert_eq!(tokenizer(&format!("{prefix}.manifest.json")), hash);
    }
    let (a, b) = ("a_packed_input_ids_document", "b_packed_input_ids_document");
    run(&["merge", a, b, "--output-prefix", "both"]);
    assert_eq!(tokenizer("both.manifest.json"), hash);
    run(&["split", "both", "--parts", "2", "--output-prefix", "part"]);
    assert_eq!(tokenizer("part_00001_of_00002.manifest.json"), hash);
    // Of a set without a manifest nothing is known, and so of one that it is part of.
    std::fs::remove_file(bench.path("b.manifest.json")).unwrap();
    run(&["merge", a, b, "--output-prefix", "both", "--force"]);
    assert_eq!(tokenizer("both.manifest.json"), None);
}

#[test]
fn a_flipped_byte_is_found() {
    let bench = Bench::new();
    std::fs::write(bench.path("chats.tokens"), bench.stream()).unwrap();
    let run = |args: &[&str]| tool().current_dir(bench.dir.path()).args(args).output().unwrap();
    assert!(run(&["pack", "--input", "chats.tokens", "--output-prefix", "a"]).status.success());
    assert!(run(&["verify", "a_packed_input_ids_document"]).status.success());
    let path = bench.path("a_packed_input_ids_document.bin");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 8 * 4;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let done = run(&["verify", "a_packed_input_ids_document"]);
    let said = text(&done.stderr);
    assert!(
        !done.status.success() && said.contains("a_packed_input_ids_document.bin: its bytes are not"),
        "{said}"
    );
    // The stream itself: in any of its tokens.
    let mut stream = bench.stream();
    let middle = stream.len() / 8 * 4;
    stream[middle] ^= 1;
    std::fs::write(bench.path("chats.tokens"), stream).unwrap();
    for words in
        [&["verify", "chats.tokens"][..], &["pack", "--input", "chats.tokens", "--output-prefix", "b"]]
    {
        let done = run(words);
        let said = text(&done.stderr);
        assert!(
            !done.status.success()
                && said.contains("chats.tokens: ")
                && said.contains("its bytes are not those"),
            "{said}"
        );
    }
    assert!(bench.files("b").is_empty());
}

#[test]
fn a_set_has_the_same_names_in_every_command_and_others_are_listed() {
    let bench = Bench::new();
    let run = |args: &[&str]| tool().current_dir(bench.dir.path()).args(args).output().unwrap();
    std::fs::write(bench.path("chats.tokens"), bench.stream()).unwrap();
    assert!(run(&["pack", "--input", "chats.tokens", "--output-prefix", "a"]).status.success());
    // One set alone whose name goes on, and its files' names, are it.
    for ending in ["bin", "idx"] {
        let from = bench.path(&format!("a_packed_labels_document.{ending}"));
        std::fs::copy(from, bench.path(&format!("one_text_document.{ending}"))).unwrap();
    }
    let want = run(&["cat", "one_text_document"]).stdout;
    assert!(!want.is_empty());
    for name in ["one", "one_text", "one_text_document.bin", "one_text_document.idx"] {
        let done = run(&["cat", name]);
        assert!(done.status.success() && done.stdout == want, "{name}: {}", text(&done.stderr));
        let done = run(&["info", name]);
        assert!(done.status.success(), "info {name}: {}", text(&done.stderr));
        let done = run(&["verify", name]);
        assert!(done.status.success(), "verify {name}: {}", text(&done.stderr));
        let done = run(&["split", name, "--split", "1,1,0", "--output-prefix", "cut", "--force"]);
        assert!(done.status.success(), "split {name}: {}", text(&done.stderr));
        let done = run(&[
            "samples",
            "--data-path",
            name,
            "--split",
            "1,0,0",
            "--seq-length",
            "8",
            "--train-samples",
            "2",
        ]);
        assert!(done.status.success(), "samples {name}: {}", text(&done.stderr));
    }
    // Several: all of them are named.
    for words in [
        &["cat", "a"][..],
        &["samples", "--data-path", "a", "--split", "1,0,0", "--seq-length", "8", "--train-samples", "2"],
    ] {
        let done = run(words);
        let said = text(&done.stderr);
        assert!(!done.status.success(), "{said}");
        for key in ["attention_mask", "input_ids", "labels"] {
            assert!(said.contains(&format!("a_packed_{key}_document")), "{said}");
        }
    }
}
