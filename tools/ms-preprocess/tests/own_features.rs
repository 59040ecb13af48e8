//! Features that upstream does not have: other inputs, choosing records, statistics, manifests, resuming.
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod bench;

use bench::{Bench, text};
use serde_json::Value;

const PRETRAIN: [&str; 2] = ["--style", "pretrain"];

fn json(run: &std::process::Output) -> Value {
    assert!(run.status.success(), "{}", text(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

fn run(bench: &Bench, args: &[&str]) -> Value {
    json(&bench.run(&[&PRETRAIN[..], args, &["--json"]].concat()))
}

#[test]
fn several_files_patterns_and_pipes_give_the_same_set() {
    let bench = Bench::new();
    let all = std::fs::read_to_string(bench.path("in.jsonl")).unwrap();
    let lines: Vec<&str> = all.lines().collect();
    std::fs::write(bench.path("part-1.jsonl"), lines[..100].join("\n")).unwrap();
    let csv: String = lines[100..].iter().map(|line| line[10..line.len() - 2].to_owned() + "\n").collect();
    std::fs::write(bench.path("part-2.csv"), format!("text\n{csv}")).unwrap();
    run(&bench, &["--input", "in.jsonl", "--output-prefix", "whole"]);
    assert_eq!(
        run(&bench, &["--input", "part-1.jsonl", "part-2.csv", "--output-prefix", "two"])["records"],
        300
    );
    run(&bench, &["--input", "part-*", "--output-prefix", "pattern"]);
    let piped = bench::tool()
        .current_dir(bench.dir.path())
        .args(["--input", "-", "--output-prefix", "piped", "--tokenizer-name-or-path", "tok"])
        .write_stdin(all.clone())
        .output()
        .unwrap();
    assert!(piped.status.success(), "{}", text(&piped.stderr));
    for other in ["two", "pattern", "piped"] {
        assert_eq!(bench.sets(other).len(), 2);
        assert!(bench.sets(other) == bench.sets("whole"), "{other}");
    }
    let upstream = bench.run(&["--input", "part-1.jsonl", "part-2.csv", "--print-args"]);
    assert_eq!(upstream.status.code(), Some(2));
    assert!(
        text(&upstream.stderr).contains("upstream takes one file or folder"),
        "{}",
        text(&upstream.stderr)
    );
}

#[test]
fn the_same_command_again_does_nothing_and_a_changed_input_is_noticed() {
    let bench = Bench::new();
    let args = ["--input", "in.jsonl", "--output-prefix", "x"];
    assert_eq!(run(&bench, &args)["up_to_date"], Value::Null);
    assert_eq!(run(&bench, &args)["up_to_date"], true);
    assert_eq!(run(&bench, &[&args[..], &["--workers", "3"]].concat())["up_to_date"], true);
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(bench.path("x.manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["inputs"][0]["path"], "in.jsonl");
    assert_eq!(manifest["inputs"][0]["sha256"].as_str().unwrap().len(), 64);
    assert_eq!(
        (&manifest["report"]["records"], &manifest["settings"]["style"]),
        (&300.into(), &"pretrain".into())
    );
    // One byte, with the size and the time of before; then another text.
    let sound = std::fs::read(bench.path("in.jsonl")).unwrap();
    let before = std::fs::metadata(bench.path("in.jsonl")).unwrap().modified().unwrap();
    let mut changed = sound.clone();
    let letter = changed.iter().rposition(u8::is_ascii_alphabetic).unwrap();
    changed[letter] ^= 2;
    std::fs::write(bench.path("in.jsonl"), changed).unwrap();
    let file = std::fs::File::options().write(true).open(bench.path("in.jsonl")).unwrap();
    file.set_modified(before).unwrap();
    let refused = bench.run(&[&PRETRAIN[..], &args].concat());
    let said = text(&refused.stderr);
    assert!(
        refused.status.code() == Some(1) && said.contains("the input in.jsonl has changed since"),
        "{said}"
    );
    std::fs::write(bench.path("in.jsonl"), sound).unwrap();
    assert_eq!(run(&bench, &args)["up_to_date"], true);
    std::fs::write(bench.path("in.jsonl"), "{\"text\": \"other\"}\n").unwrap();
    let refused = bench.run(&[&PRETRAIN[..], &args].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("the input in.jsonl has changed since"),
        "{}",
        text(&refused.stderr)
    );
    assert_eq!(run(&bench, &[&args[..], &["--force"]].concat())["records"], 1);
    // Called as upstream, it is made again without being asked.
    std::fs::write(bench.path("in.jsonl"), "{\"text\": \"a\"}\n{\"text\": \"b\"}\n").unwrap();
    assert_eq!(json(&bench.run(&[&args[..], &["--json"]].concat()))["records"], 2);
}

#[test]
fn records_are_chosen_by_sample_filter_and_first_occurrence() {
    let bench = Bench::new();
    let twice = std::fs::read_to_string(bench.path("in.jsonl")).unwrap().repeat(2);
    std::fs::write(bench.path("twice.jsonl"), twice + "{\"text\": 1}\n\n{]\n").unwrap();
    let args = [
        "--input",
        "twice.jsonl",
        "--dedup",
        "exact",
        "--filter",
        "not:words 7",
        "chars<=13",
        "--on-error",
        "skip",
        "--stats",
        "--output-prefix",
        "x",
    ];
    let report = run(&bench, &args);
    // 11 of 300 begin with 7, and 200 of the others have three digits.
    assert_eq!((&report["filtered"], &report["rejected"]), (&(2 * (11 + 200)).into(), &2.into()));
    assert_eq!((&report["duplicates"], &report["stats"]["rows"]), (&89.into(), &89.into()));
    let rejects = std::fs::read_to_string(bench.path("x.rejects.jsonl")).unwrap();
    let lines: Vec<Value> = rejects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&lines[0]["line"], &lines[1]["line"], &lines[1]["record"]),
        (&601.into(), &603.into(), &602.into())
    );
    let stats: Value = serde_json::from_slice(&std::fs::read(bench.path("x.stats.json")).unwrap()).unwrap();
    assert_eq!(stats["rows"], 89);
    assert!(std::fs::read_to_string(bench.path("x.stats.svg")).unwrap().starts_with("<svg "));

    let sampled = run(&bench, &["--input", "in.jsonl", "--sample", "0.3", "--output-prefix", "s"]);
    let left_out = sampled["unsampled"].as_u64().unwrap();
    assert!((180..240).contains(&left_out), "{left_out}");
    let drawn = bench.run(&["--style", "pretrain", "--input", "in.jsonl", "--stats", "--output-prefix", "d"]);
    assert!(text(&drawn.stdout).contains("tokens of a row: ") && text(&drawn.stdout).contains('█'));
}

#[test]
fn files_beside_the_set_are_kept_without_force_and_its_manifest_goes_with_it() {
    let bench = Bench::new();
    let args = ["--input", "in.jsonl", "--stats", "--output-prefix", "x"];
    std::fs::write(bench.path("x.stats.json"), "mine").unwrap();
    let refused = bench.run(&[&PRETRAIN[..], &args].concat());
    assert!(text(&refused.stderr).contains("x.stats.json: exists already"), "{}", text(&refused.stderr));
    assert_eq!(std::fs::read(bench.path("x.stats.json")).unwrap(), b"mine");
    run(&bench, &[&args[..], &["--force"]].concat());
    assert!(bench.path("x.manifest.json").exists());
    std::fs::remove_file(bench.path("x.stats.svg")).unwrap();
    run(&bench, &[&args[..], &["--force", "--no-manifest"]].concat());
    assert!(bench.path("x.stats.svg").exists() && !bench.path("x.manifest.json").exists());
}

#[test]
fn the_manifest_of_a_set_that_is_not_replaced_stays() {
    let bench = Bench::new();
    let index = bench.path("x_text_document.idx");
    for more in [&[][..], &["--resume"]] {
        run(&bench, &["--input", "in.jsonl", "--output-prefix", "x", "--force"]);
        std::fs::remove_file(&index).unwrap();
        std::fs::create_dir(&index).unwrap();
        let args = ["--style", "pretrain", "--input", "in.jsonl", "--output-prefix", "x", "--force"];
        let failed = bench.run(&[&args[..], more].concat());
        assert!(text(&failed.stderr).contains("x_text_document.idx"), "{}", text(&failed.stderr));
        assert!(bench.path("x.manifest.json").exists(), "{more:?}");
        std::fs::remove_dir(&index).unwrap();
    }
}

#[test]
fn of_a_set_that_cannot_be_described_nothing_stays() {
    let bench = Bench::new();
    std::fs::write(bench.path("broken.jsonl"), "{\"text\": \"some words\"}\n{\n").unwrap();
    std::fs::create_dir(bench.path("x.stats.svg")).unwrap();
    let args =
        ["--input", "broken.jsonl", "--on-error", "skip", "--stats", "--force", "--output-prefix", "x"];
    let failed = bench.run(&[&PRETRAIN[..], &args].concat());
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("x.stats.svg"), "{}", text(&failed.stderr));
    let names = std::fs::read_dir(bench.path(".")).unwrap().map(|e| e.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with('x')).collect();
    assert_eq!(left, ["x.stats.svg"]);
}

#[test]
fn a_shuffled_set_depends_on_the_seed_and_not_on_the_memory() {
    let bench = Bench::new();
    let shuffled = |name: &str, more: &[&str]| {
        run(&bench, &[&["--input", "in.jsonl", "--shuffle", "--output-prefix", name], more].concat());
        bench.sets(name)
    };
    let a = shuffled("a", &[]);
    run(&bench, &["--input", "in.jsonl", "--output-prefix", "plain"]);
    assert!(a != bench.sets("plain"));
    assert!(a == shuffled("b", &["--shuffle-memory", "1", "--workers", "2"]));
    assert!(a != shuffled("c", &["--seed", "7"]));
}

#[test]
fn an_interrupted_run_goes_on_after_its_last_complete_file() {
    let bench = Bench::new();
    let all = std::fs::read_to_string(bench.path("in.jsonl")).unwrap();
    let lines: Vec<&str> = all.lines().collect();
    for (i, part) in lines.chunks(100).enumerate() {
        std::fs::write(bench.path(&format!("part-{i}.jsonl")), part.join("\n")).unwrap();
    }
    run(&bench, &["--input", "part-*.jsonl", "--output-prefix", "whole"]);
    let sound = std::fs::read(bench.path("part-2.jsonl")).unwrap();
    std::fs::write(bench.path("part-2.jsonl"), "{broken").unwrap();
    let args =
        ["--style", "pretrain", "--input", "part-*.jsonl", "--output-prefix", "x", "--resume", "--json"];
    assert_eq!(bench.run(&args).status.code(), Some(1));
    assert!(bench.path("x.parts/000000.json").exists() && bench.path("x.parts/000001.json").exists());
    assert!(bench.sets("x_").is_empty());
    std::fs::write(bench.path("part-2.jsonl"), sound).unwrap();
    // What is complete is not read again: another file of the same size and time is not noticed.
    let kept = std::fs::metadata(bench.path("x.parts/000001.tokens")).unwrap().modified().unwrap();
    let report = json(&bench.run(&args));
    assert_eq!(report["records"], 300);
    assert!(bench.sets("x_") == bench.sets("whole_"));
    assert!(!bench.path("x.parts").exists(), "the work folder goes away ({kept:?})");
}

#[test]
fn what_excludes_each_other_is_refused_with_a_hint() {
    let bench = Bench::new();
    let cases: [(&[&str], &str); 6] = [
        (&["--shuffle", "--resume"], "--resume works file by file"),
        (&["--n-subs", "2", "--dedup", "exact"], "hint: leave it out"),
        (&["--filter", "letter>=1"], "unknown measure"),
        (&["--sample", "2"], "--sample: expected a number above 0 to 1, found 2"),
        (&["--dedup", "minhash", "--dedup-threshold", "0.1"], "--dedup-threshold"),
        (&["--input-format", "xml"], "--input-format"),
    ];
    for (args, want) in cases {
        let run = bench
            .run(&[&["--style", "pretrain", "--input", "in.jsonl", "--output-prefix", "x"], args].concat());
        assert_eq!(run.status.code(), Some(2), "{args:?}: {}", text(&run.stderr));
        assert!(text(&run.stderr).contains(want), "{args:?}: {}", text(&run.stderr));
    }
}
