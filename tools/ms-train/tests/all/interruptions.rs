//! No work of a run is lost: folders that cannot be written, two writers, signals, invalid checkpoints.

use crate::tiny::{counting, model, ms_train, refused, samples};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn train(dir: &Path, iterations: u32, extra: &[&str]) -> assert_cmd::Command {
    let mut command = ms_train();
    command.current_dir(dir).args(model()).args(["--lr", "1e-3", "--eval-iters", "0", "--data-path"]);
    command
        .arg(samples(dir, iterations as usize, 4, counting))
        .args(["--train-iters", &iterations.to_string()]);
    command.args(extra);
    command
}

/// A run in the background, once its first metrics are written.
fn started(dir: &Path, extra: &[&str]) -> Child {
    let data = samples(dir, 20_000, 4, counting);
    let mut command = ms_testing::heeding_signals(assert_cmd::cargo::cargo_bin("ms-train"));
    command.current_dir(dir).args(model()).args(["--lr", "1e-3", "--train-iters", "20000", "--data-path"]);
    command.arg(data).args(["--metrics-file", "m.jsonl", "--log-interval", "1"]).args(extra);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while !std::fs::read_to_string(dir.join("m.jsonl")).is_ok_and(|t| t.lines().count() > 2) {
        assert!(start.elapsed() < Duration::from_secs(600), "no iteration within ten minutes");
        std::thread::yield_now();
    }
    child
}

#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

#[cfg(unix)]
fn ended(child: Child) -> (Option<i32>, String) {
    let done = child.wait_with_output().unwrap();
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn a_folder_that_cannot_be_written_stops_before_the_first_iteration() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"x").unwrap();
    for save in ["file", "file/below"] {
        let message = refused(&mut train(dir.path(), 2, &["--save", save, "--metrics-file", "m.jsonl"]), 1);
        assert!(message.contains(&format!("--save {save}")), "{message}");
        assert!(!dir.path().join("m.jsonl").exists(), "an iteration ran");
    }
}

#[test]
fn a_run_that_saves_nothing_says_so_once() {
    let dir = tempfile::tempdir().unwrap();
    let said = |extra: &[&str]| {
        let done = train(dir.path(), 2, extra).assert().success();
        String::from_utf8_lossy(&done.get_output().stderr).into_owned()
    };
    assert_eq!(said(&[]).matches("no --save").count(), 1);
    // What killed runs have left goes, whichever iterations it is of.
    let out = dir.path().join("new/folder/out");
    // A conversion's are not theirs.
    let kept = ".iter_0000002_hf.partial";
    for left in [".iter_0000009.partial/half", ".iter_0000001.removed/half", &format!("{kept}/half")] {
        std::fs::create_dir_all(out.join(left)).unwrap();
    }
    assert!(!said(&["--save", "new/folder/out"]).contains("no --save"));
    let entries =
        std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let entries: std::collections::BTreeSet<_> = entries.collect();
    assert!(entries.iter().eq([kept, "iter_0000002", "latest_checkpointed_iteration.txt"]), "{entries:?}");
}

#[cfg(unix)]
#[test]
fn of_two_runs_into_one_folder_the_second_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = started(dir.path(), &["--save", "out"]);
    let other = tempfile::tempdir().unwrap();
    let save = dir.path().join("out");
    let message = refused(train(other.path(), 2, &["--save"]).arg(&save), 1);
    assert!(message.contains("another process is writing it now"), "{message}");
    first.kill().unwrap();
    first.wait().unwrap();
    // The lock of a process that was killed holds nobody up.
    train(other.path(), 2, &["--save"]).arg(&save).assert().success();
}

#[cfg(unix)]
#[test]
fn the_first_interrupt_saves_where_it_is_asked_to_and_else_says_what_is_lost() {
    for name in ["INT", "TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let run = started(dir.path(), &["--save", "out", "--exit-signal-handler"]);
        signal(&run, name);
        let (code, said) = ended(run);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("saving and stopping"), "{said}");
        let latest =
            std::fs::read_to_string(dir.path().join("out/latest_checkpointed_iteration.txt")).unwrap();
        assert!(latest.trim().parse::<u64>().unwrap() > 2);
    }
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let dir = tempfile::tempdir().unwrap();
        let run = started(dir.path(), &["--save", "out"]);
        signal(&run, name);
        let (code, said) = ended(run);
        assert_eq!(code, Some(128 + number), "{said}");
        assert!(said.contains("iterations since the start are lost"), "{said}");
        assert!(!dir.path().join("out/.lock").exists());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_second_interrupt_ends_the_run_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let run = started(dir.path(), &["--save", "out", "--exit-signal-handler"]);
    // A stopped process hears both when it goes on.
    signal(&run, "STOP");
    signal(&run, "INT");
    signal(&run, "TERM");
    signal(&run, "CONT");
    let (code, said) = ended(run);
    assert!(matches!(code, Some(130 | 143)), "{code:?}: {said}");
}

#[test]
fn what_is_no_checkpoint_is_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), 4, &["--save", "out", "--save-interval", "2"]).assert().success();
    let load = |what: &str, more: &[&str]| {
        let mut command = train(dir.path(), 6, &["--load", what, "--override-opt_param-scheduler"]);
        command.args(more);
        command
    };
    let message = refused(&mut load("data.safetensors", &[]), 1);
    assert!(message.contains("expected a folder, found a file"), "{message}");
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    for nothing in ["empty", "typo"] {
        let done = load(nothing, &[]).assert().success();
        let out = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        assert!(
            out.contains("starting from random weights") && out.contains(", from random weights"),
            "{out}"
        );
        assert!(String::from_utf8_lossy(&done.get_output().stderr).contains("no checkpoint there"));
    }
    let tracker = dir.path().join("out/latest_checkpointed_iteration.txt");
    std::fs::remove_file(&tracker).unwrap();
    let message = refused(&mut load("out", &[]), 1);
    assert!(message.contains("hint: --ckpt-step 4 loads that one"), "{message}");
    let done = load("out", &["--ckpt-step", "4", "--json"]).assert().success();
    let report: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!((&report["iteration"], &report["weights_from"]), (&6.into(), &"out".into()));
    // A damaged newest one names the others.
    std::fs::write(&tracker, "4").unwrap();
    let shard = dir.path().join("out/iter_0000004/rank_00000.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    let message = refused(&mut load("out", &[]), 1);
    assert!(message.contains("rank_00000.safetensors"), "{message}");
    assert!(message.contains("hint: --ckpt-step 2 loads the one before, which is whole"), "{message}");
}

#[cfg(unix)]
#[test]
fn a_checkpoint_that_could_not_be_written_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let run = |iterations: &str, extra: &[&str]| {
        let mut command = train(dir.path(), 4, extra);
        command.args(["--train-iters", iterations, "--save", "out", "--save-interval", "1", "--json"]);
        command
    };
    // The name of the second checkpoint's folder under construction is taken by a file: it cannot be made.
    std::fs::create_dir(dir.path().join("out")).unwrap();
    let blocked = dir.path().join("out").join(under_construction("iter_0000002"));
    std::fs::write(&blocked, b"x").unwrap();
    let done = run("4", &["--nproc-per-node", "2", "--micro-batch-size", "2"]).assert().success();
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(said.contains("iteration 2 was NOT saved"), "{said}");
    let report: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!((&report["failed_saves"], &report["iteration"]), (&1.into(), &4.into()));
    assert!(dir.path().join("out/iter_0000004").is_dir() && !dir.path().join("out/iter_0000002").exists());
    // At the end there is no later time: the run fails.
    std::fs::remove_dir_all(dir.path().join("out")).unwrap();
    std::fs::create_dir(dir.path().join("out")).unwrap();
    std::fs::write(&blocked, b"x").unwrap();
    let message = refused(&mut run("2", &[]), 1);
    assert!(message.contains("iteration 2 was NOT saved"), "{message}");
}

fn under_construction(name: &str) -> String {
    format!(".{name}.partial")
}

#[test]
fn a_flipped_byte_in_a_checkpoint_is_found_when_it_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), 4, &["--save", "out", "--save-interval", "2"]).assert().success();
    let shard = dir.path().join("out/iter_0000004/rank_00000.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 0x10;
    std::fs::write(&shard, bytes).unwrap();
    let message = refused(train(dir.path(), 6, &["--load", "out"]).arg("--override-opt_param-scheduler"), 1);
    assert!(message.contains("rank_00000.safetensors"), "{message}");
    assert!(message.contains("not those that were written"), "{message}");
    assert!(message.contains("--ckpt-step 2 loads"), "{message}");
}

/// Every file below `dir` that holds a checkpoint's bytes, but for that of the checksums themselves.
fn files_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let all = entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] });
    all.filter(|path| !path.ends_with(ms_ckpt::CHECKSUMS)).collect()
}

#[test]
fn what_is_damaged_of_a_checkpoint_in_two_forms_is_found_whichever_is_read() {
    for format in ["torch", "torch_dist"] {
        let dir = tempfile::tempdir().unwrap();
        let more = ["--save", "out", "--save-interval", "2", "--ckpt-format", format];
        train(dir.path(), 4, &more).assert().success();
        let load = || {
            let mut command = train(dir.path(), 4, &["--load", "out"]);
            command.arg("--override-opt_param-scheduler");
            command
        };
        load().assert().success();
        let files = files_below(&dir.path().join("out/iter_0000004"));
        assert!(files.len() > 2, "{files:?}");
        for file in files {
            let (name, bytes) = (file.file_name().unwrap().to_str().unwrap(), std::fs::read(&file).unwrap());
            let mut flipped = bytes.clone();
            flipped[bytes.len() / 2] ^= 0x01;
            for damaged in [Some(&flipped[..]), Some(&bytes[..bytes.len() - 1]), None] {
                match damaged {
                    Some(bytes) => std::fs::write(&file, bytes).unwrap(),
                    // Without the manifest it is another program's checkpoint.
                    None if name == "manifest.json" => continue,
                    None => std::fs::remove_file(&file).unwrap(),
                }
                let done = load().assert();
                let message = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
                assert_eq!(done.get_output().status.code(), Some(1), "{format}, {name}: {message}");
                assert!(message.contains(name), "{format}, {name}: {message}");
            }
            std::fs::write(&file, bytes).unwrap();
        }
        load().assert().success();
    }
}

#[test]
fn a_flipped_byte_in_a_dataset_is_found_before_the_first_iteration() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("text");
    let mut writer =
        ms_data::indexed::IndexedWriter::create(&prefix, ms_data::indexed::TokenType::U16).unwrap();
    for d in 0..20 {
        writer.sequence(&(0..40).map(|t| (d * 7 + t) % 64).collect::<Vec<i32>>()).unwrap();
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
    let bin = prefix.with_extension("bin");
    let mut manifest = ms_data::preprocess::Manifest::new("x".into(), serde_json::Map::new(), String::new());
    manifest.outputs = vec![ms_data::preprocess::OutputRecord::new(&bin).unwrap()];
    manifest.write(&dir.path().join("text.manifest.json")).unwrap();
    let run = || {
        let mut command = train(dir.path(), 2, &["--data-path"]);
        command.arg(&prefix);
        command
    };
    run().assert().success();
    let mut bytes = std::fs::read(&bin).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&bin, bytes).unwrap();
    let message = refused(&mut run(), 1);
    assert!(message.contains("text.bin: its bytes are not those that were written"), "{message}");
}

#[test]
fn only_the_last_checkpoints_stay_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let save = ["--save", "out", "--save-interval", "2", "--keep-last", "2"];
    train(dir.path(), 7, &save).assert().success();
    let mut kept: Vec<String> = std::fs::read_dir(dir.path().join("out"))
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("iter_"))
        .collect();
    kept.sort();
    assert_eq!(kept, ["iter_0000006", "iter_0000007"]);
    // What stays is whole.
    let on = ["--load", "out", "--save", "out", "--keep-last", "1", "--override-opt_param-scheduler"];
    train(dir.path(), 9, &on).assert().success();
    let left = std::fs::read_dir(dir.path().join("out")).unwrap();
    assert_eq!(left.filter(|e| e.as_ref().unwrap().path().is_dir()).count(), 1);
    let message = refused(&mut train(dir.path(), 2, &["--save", "out2", "--keep-last", "0"]), 2);
    assert!(message.contains("--keep-last"), "{message}");
    let message = refused(&mut train(dir.path(), 2, &["--keep-last", "1"]), 2);
    assert!(message.contains("--keep-last: needs --save"), "{message}");
}
