//! Faults in a program's environment: full disks, closed pipes, two writers, kills, little memory, invalid files. No panic,
//! no abort, no hang, nothing half-written, and a message that names the flag or the file. `just adversary`.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // tests

mod programs;

use programs::{MODEL, misbehaviour, program, programs, run, text, within_patience, workshop};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A command line of every program that writes, with its output as `OUT`.
const WRITERS: [(&str, &str); 8] = [
    ("ms-tokenizer", "train --vocab-size 280 --force --output OUT text.jsonl"),
    (
        "ms-preprocess",
        "--style pretrain --input text.jsonl --tokenizer-name-or-path tok --append-eod --stats --force --output-prefix OUT",
    ),
    ("ms-pack", "pack --input chats.tokens --force --output-prefix OUT"),
    ("ms-pack", "merge data_text_document data_text_document --force --output-prefix OUT"),
    ("ms-pack", "split data_text_document --split 1,1,0 --force --output-prefix OUT"),
    ("ms-train", "TRAIN --train-iters 3 --save-interval 1 --save OUT"),
    ("ms-convert", "hf mcore --load hf --force --save OUT"),
    ("ms-eval", "mmlu --load hf --data-path quiz --protocol harness --output OUT"),
];

fn line(words: &str, out: &str) -> Vec<String> {
    let train = format!(
        "{MODEL} --tokenizer-name-or-path tok --data-path data_text_document --split 90,10,0 --eval-iters 0 --lr 1e-3"
    );
    words.replace("TRAIN", &train).replace("OUT", out).split_whitespace().map(str::to_owned).collect()
}

/// Names below a folder that are temporary: what is left of work that did not end.
fn leftovers(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(".part") {
                found.push(name);
            } else if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

#[test]
fn a_full_disk_is_an_error_that_names_the_output() {
    let dir = workshop();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    // A small disk of its own, where mounting is allowed; elsewhere a file that every write to fails stands in.
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(&disk)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    if !mounted {
        println!("skipped: a small disk cannot be mounted here");
        return;
    }
    let filler = disk.join("filler");
    let (mut complaints, mut failed) = (Vec::new(), std::collections::BTreeSet::new());
    // Little room, and more and more of it: a run may fail at its first byte and at its last file.
    for ((name, words), kilobytes) in WRITERS.into_iter().flat_map(|w| [60, 52, 44, 36, 20].map(|n| (w, n))) {
        std::fs::write(&filler, vec![1u8; kilobytes << 10]).unwrap();
        let out = "disk/out";
        let mut command = program(name, dir.path());
        let done = within_patience(command.args(line(words, out)), dir.path(), "full");
        let wrong = misbehaviour(done.as_ref());
        let done = done.filter(|_| wrong.is_none());
        complaints.extend(wrong.map(|wrong| format!("{name} {words}: {wrong}")));
        if let Some(done) = done.filter(|done| !done.status.success()) {
            failed.insert(words);
            let said = text(&done);
            let names = said.contains("disk/") || said.contains("--save");
            if done.status.code() != Some(1) || !names {
                complaints.push(format!("{name} {words}: {:?}, {said}", done.status.code()));
            }
            // Of what is one file or some that belong together nothing has its name; checkpoints before it stay.
            let parts =
                std::fs::read_dir(&disk).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            let parts: Vec<String> =
                parts.filter(|part| part.starts_with("out") && name != "ms-train").collect();
            let folder =
                parts == ["out"] && std::fs::read_dir(disk.join("out")).is_ok_and(|mut d| d.next().is_none());
            if !parts.is_empty() && !folder {
                complaints
                    .push(format!("{name} {words}, {kilobytes} kB taken: {parts:?} is there after {said}"));
            }
        }
        let left = leftovers(&disk);
        if !left.is_empty() {
            complaints.push(format!("{name} {words}: left {left:?}"));
        }
        for path in std::fs::read_dir(&disk).unwrap().map(|e| e.unwrap().path()) {
            let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
    }
    if failed.len() != WRITERS.len() {
        complaints.push(format!("only these met a full disk: {failed:?}"));
    }
    assert!(Command::new("umount").arg(&disk).status().unwrap().success());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_file_that_may_not_grow_is_an_error_that_names_the_output() {
    let dir = workshop();
    for (name, words) in WRITERS {
        let words = line(words, "limited").join(" ");
        let command = format!("ulimit -f 1; exec {} {words}", programs().join(name).display());
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).current_dir(dir.path()).env("MS_NO_PROGRESS", "1");
        let done = shell.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).output().unwrap();
        let said = text(&done);
        assert_eq!(done.status.code(), Some(1), "{name} {words}: {:?}, {said}", done.status);
        assert!(said.contains("limited") && said.contains("File too large"), "{name} {words}: {said}");
        let left = leftovers(dir.path());
        assert!(left.is_empty(), "{name} {words}: left {left:?}");
    }
}

#[test]
fn a_closed_pipe_ends_a_program_quietly() {
    let dir = workshop();
    for (name, words) in [
        ("ms-pack", "cat data_text_document"),
        ("ms-tokenizer", "encode --tokenizer tok --lines text.jsonl"),
        (
            "ms-preprocess",
            "--style pretrain --input text.jsonl --tokenizer-name-or-path tok --output-prefix -",
        ),
        ("ms-infer", "generate --load hf --prompt some -n 8"),
        ("ms-train", "--help"),
        ("ms-convert", "inspect hf"),
    ] {
        let command = format!("{} {words} | true", programs().join(name).display());
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-c", &command]).current_dir(dir.path()).env("MS_NO_PROGRESS", "1");
        let done = within_patience(shell.stdin(Stdio::null()), dir.path(), "pipe");
        let wrong = misbehaviour(done.as_ref());
        assert!(wrong.is_none(), "{name} {words}: {wrong:?}");
        assert!(done.unwrap().status.success(), "{name} {words}");
    }
}

#[test]
fn killed_at_any_time_a_program_leaves_whole_outputs_and_goes_on() {
    let dir = workshop();
    for (name, words) in WRITERS.into_iter().filter(|w| w.0 != "ms-eval") {
        for wait in [5u64, 20, 40, 80, 160] {
            let mut command = program(name, dir.path());
            let mut child = command
                .args(line(words, "killed"))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(wait));
            let _ = child.kill();
            child.wait().unwrap();
        }
        run(name, dir.path(), &line(words, "killed").join(" "));
        let left = leftovers(dir.path());
        assert!(left.is_empty(), "{name} {words}: left {left:?}");
        for path in std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.trim_start_matches('.').starts_with("killed") {
                let _ =
                    if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            }
        }
    }
}

#[test]
fn a_training_that_is_killed_again_and_again_arrives() {
    let dir = workshop();
    let words = "TRAIN --train-iters 40 --save-interval 1 --save again --load again";
    let begun = Instant::now();
    let mut wait = 60;
    loop {
        let mut command = program("ms-train", dir.path());
        let mut child =
            command.args(line(words, "")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let patience = Instant::now();
        let done = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if patience.elapsed() > Duration::from_millis(wait) {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        if let Some(status) = done {
            assert!(status.success());
            break;
        }
        // A slow machine needs longer to get anywhere at all.
        wait += 40;
        assert!(begun.elapsed() < Duration::from_secs(300), "it does not arrive");
    }
    let tracker = dir.path().join("again/latest_checkpointed_iteration.txt");
    assert_eq!(std::fs::read_to_string(tracker).unwrap().trim(), "40");
}

#[test]
fn little_memory_is_said_and_nothing_aborts() {
    let dir = workshop();
    for kilobytes in [400_000, 700_000] {
        for (name, words) in WRITERS {
            let words = line(words, "small").join(" ");
            let command = format!("ulimit -v {kilobytes}; exec {} {words}", programs().join(name).display());
            let mut shell = Command::new("sh");
            shell.args(["-c", &command]).current_dir(dir.path()).env("MS_NO_PROGRESS", "1");
            shell.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
            let done = within_patience(&mut shell, dir.path(), "memory");
            let wrong = misbehaviour(done.as_ref());
            assert!(wrong.is_none(), "{kilobytes} kB: {name} {words}: {wrong:?}");
        }
    }
}

#[test]
fn files_that_are_none_are_named() {
    let dir = workshop();
    let broken: [(&str, Vec<u8>); 5] = [
        ("empty", Vec::new()),
        ("zeros", vec![0; 4096]),
        ("noise", (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()),
        ("brace", b"{".to_vec()),
        ("deep", b"[".repeat(100_000)),
    ];
    // A file of every kind that is read, and a program that reads it.
    let readers = [
        ("data_text_document.idx", "ms-pack", "info data_text_document".to_owned()),
        ("data_text_document.bin", "ms-pack", "verify data_text_document".to_owned()),
        ("chats.tokens", "ms-pack", "pack --input chats.tokens --force --output-prefix broken".to_owned()),
        ("tok/tokenizer.json", "ms-tokenizer", "info tok".to_owned()),
        ("hf/config.json", "ms-infer", "generate --load hf --prompt some -n 2".to_owned()),
        ("hf/model.safetensors", "ms-convert", "hf mcore --load hf --force --save broken".to_owned()),
        ("trained/iter_0000002/manifest.json", "ms-convert", "verify trained".to_owned()),
        ("trained/iter_0000002/rank_00000.safetensors", "ms-convert", "verify trained".to_owned()),
        ("trained/latest_checkpointed_iteration.txt", "ms-convert", "inspect trained".to_owned()),
        (
            "text.jsonl",
            "ms-preprocess",
            "--style pretrain --input text.jsonl --tokenizer-name-or-path tok --force --output-prefix broken"
                .to_owned(),
        ),
        (
            "quiz/test/sums_test.csv",
            "ms-eval",
            "mmlu --load hf --data-path quiz --protocol harness".to_owned(),
        ),
    ];
    for (file, name, words) in readers {
        let path = dir.path().join(file);
        let sound = std::fs::read(&path).unwrap();
        for (what, bytes) in &broken {
            std::fs::write(&path, bytes).unwrap();
            let mut command = program(name, dir.path());
            let done = within_patience(command.args(words.split_whitespace()), dir.path(), "broken");
            let wrong = misbehaviour(done.as_ref());
            assert!(wrong.is_none(), "{what} {file}: {name} {words}: {wrong:?}");
            let done = done.unwrap();
            let said = text(&done);
            // An empty tracker's folder may be opened as another kind of folder; all else is an error.
            assert!(!done.status.success(), "{what} {file}: {name} {words}: {said}");
            let stem = Path::new(file).file_stem().unwrap().to_string_lossy().into_owned();
            let folder =
                Path::new(file).components().next().unwrap().as_os_str().to_string_lossy().into_owned();
            assert!(said.contains(&stem) || said.contains(&folder), "{what} {file}: {name} {words}: {said}");
        }
        std::fs::write(&path, sound).unwrap();
    }
}
