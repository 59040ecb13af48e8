//! `mpirun -np N ms-train`: ranks as processes compute the same as threads. Run by `just mpi`; without `mpirun` it fails.

#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of a test fail and speak like the test itself

mod machines;
#[path = "../../../crates/ms-trainer/tests/all/parity/mod.rs"]
mod parity;
#[allow(dead_code)] // a part of what the matrix of parity uses
#[path = "../../../crates/ms-trainer/tests/all/random_topologies/mod.rs"]
mod random_topologies;
mod rows;
mod tiny;

use machines::Machines;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};
use tiny::{counting, metrics, ms_train, samples, samples_of};

const MODEL: &str = "--num-layers 4 --hidden-size 16 --num-attention-heads 4 --group-query-attention --num-query-groups 2 \
    --ffn-hidden-size 16 --normalization RMSNorm --swiglu --position-embedding-type rope --disable-bias-linear \
    --vocab-size 64 --padded-vocab-size 64 --seq-length 16 --max-position-embeddings 16 --micro-batch-size 1 \
    --global-batch-size 8 --seed 7 --hidden-dropout 0 --attention-dropout 0 --lr 1e-2 --lr-decay-style constant \
    --init-method-std 0.2 --eval-iters 0";
/// Runs that are compared with threads; `MS_PARITY_SEED` draws others.
const ROWS: usize = 15;

/// `mpirun` over `ranks` processes of this machine.
fn mpirun(ranks: usize) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["--oversubscribe", "-np", &ranks.to_string()])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env_remove("MS_ISA")
        .env("MS_NO_PROGRESS", "1")
        .stdin(Stdio::null());
    command
}

fn program() -> PathBuf {
    assert_cmd::cargo::cargo_bin("ms-train")
}

/// The program over MPI, to its end; it must come within a minute.
fn finished(command: &mut Command) -> (Output, Duration) {
    let start = Instant::now();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("mpirun is installed: libopenmpi-dev, openmpi-bin");
    let readers = [reader(child.stdout.take().unwrap()), reader(child.stderr.take().unwrap())];
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("a run over MPI does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let [stdout, stderr] = readers.map(|reader| reader.join().unwrap());
    (Output { status, stdout, stderr }, start.elapsed())
}

fn reader(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Loss, norm and the rest of every iteration, without times.
fn iterations(path: &Path) -> Vec<Value> {
    let timed = ["seconds", "tokens per second", "tflops per second", "elapsed time per iteration (ms)"];
    let mut rows = metrics(path);
    for row in &mut rows {
        let row = row.as_object_mut().unwrap();
        let names: Vec<String> = row.keys().cloned().collect();
        for name in names.iter().filter(|name| {
            timed.contains(&name.as_str()) || name.contains("per_second") || name.contains("seconds")
        }) {
            row.remove(name);
        }
    }
    rows
}

/// Every file of a checkpoint.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() {
            out.extend(files(&entry).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            out.insert(name, std::fs::read(entry).unwrap());
        }
    }
    out
}

/// Two instances of the optimizer, whose second sums start where the first ones end, during the backward pass.
const INSTANCES: &str = "--num-layers 2 --hidden-size 16 --ffn-hidden-size 24 --num-attention-heads 2 --normalization RMSNorm \
     --swiglu --disable-bias-linear --position-embedding-type rope --vocab-size 64 --padded-vocab-size 64 --seq-length 24 \
     --max-position-embeddings 24 --micro-batch-size 2 --global-batch-size 24 --hidden-dropout 0 --attention-dropout 0 --bf16 \
     --lr 1e-2 --lr-decay-style constant --eval-iters 0 --use-distributed-optimizer --num-distributed-optimizer-instances 2 \
     --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 500";

/// Sinks and windows, for which there are no flags: the sample of GPT-OSS, which also has experts.
const SINKS: &str = "--tp 2 --sequence-parallel --ep 2 --moe-token-dispatcher-type alltoall --seq-length 24 --micro-batch-size 2 \
     --global-batch-size 24 --bf16 --lr 1e-2 --lr-decay-style constant --eval-iters 0 --use-distributed-optimizer";

/// Runs of `ms-train` that start with `mpirun` end as those of threads do: losses, norms and all else of every iteration, and
/// each tensor of the checkpoint.
fn same_bits(started: impl Fn(usize) -> Command, runs: impl IntoIterator<Item = (usize, String)>) {
    let dir = tempfile::tempdir().unwrap();
    let token = |row, place| counting(row, place) % rows::TOKENS;
    let data = samples_of(dir.path(), (4, rows::GLOBAL, rows::LENGTH), token);
    for (i, (ranks, flags)) in runs.into_iter().enumerate() {
        println!("{ranks} ranks: {flags}");
        let line = format!("{flags} --train-iters 4");
        let path = |what: &str| dir.path().join(format!("{what}-{i}"));
        let more = |what: &str| {
            [
                "--data-path".into(),
                data.clone(),
                "--metrics-file".into(),
                path(&format!("{what}.jsonl")),
                "--save".into(),
                path(what),
            ]
        };
        let ranks_flag = ranks.to_string();
        let mut threads = ms_train();
        threads.args(line.split_whitespace()).args(["--nproc-per-node", &ranks_flag]).args(more("threads"));
        threads.assert().success();
        let mut command = started(ranks);
        command.arg(program()).args(line.split_whitespace()).args(more("processes"));
        let (done, _) = finished(&mut command);
        assert!(done.status.success(), "{flags}: {}", text(&done));
        let (want, got) = (iterations(&path("threads.jsonl")), iterations(&path("processes.jsonl")));
        assert_eq!(want.len(), 4);
        assert_eq!(got, want, "{flags}");
        // One rank speaks.
        let said = text(&done);
        assert_eq!(said.matches("done: 4 iterations").count(), 1, "{said}");
        // A checkpoint of processes is whole: it is what threads write, weight for weight.
        let (want, got) = (files(&path("threads")), files(&path("processes")));
        assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{flags}");
        for (name, bytes) in got.iter().filter(|(name, _)| name.ends_with(".safetensors")) {
            assert!(bytes == &want[name], "{flags}: {name}");
        }
    }
}

/// `count` rows of the matrix, by the seed that `MS_PARITY_SEED` says.
fn drawn_rows(count: usize) -> Vec<(usize, String)> {
    let seed = std::env::var("MS_PARITY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("seed {seed}");
    // What flags exclude each other is the program's to say.
    let dir = tempfile::tempdir().unwrap();
    let token = |row, place| counting(row, place) % rows::TOKENS;
    let data = samples_of(dir.path(), (1, rows::GLOBAL, rows::LENGTH), token);
    rows::rows(seed, count, |ranks, line| {
        let mut planned = ms_train();
        planned.args(line.split_whitespace()).args(["--train-iters", "1", "--dry-run", "--nproc-per-node"]);
        planned.arg(ranks.to_string()).arg("--data-path").arg(&data);
        let done = planned.output().unwrap();
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            println!(
                "not taken: {}",
                said.lines().find(|line| line.starts_with("ms-train: ")).unwrap_or_default()
            );
        }
        done.status.success()
    })
}

#[test]
fn processes_give_the_bits_of_threads() {
    let sinks = ms_testing::golden_model("gpt_oss").expect("the sample stands in the repository");
    let sinks = format!("{SINKS} --load {}", sinks.display());
    same_bits(mpirun, drawn_rows(ROWS).into_iter().chain([(4, INSTANCES.to_owned()), (4, sinks)]));
}

#[test]
fn a_run_goes_on_from_what_processes_saved_and_indices_are_made_once() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("set");
    let mut writer =
        ms_data::indexed::IndexedWriter::create(&prefix, ms_data::indexed::TokenType::I32).unwrap();
    for document in 0..60 {
        writer.sequence(&(0..40).map(|place| counting(document, place)).collect::<Vec<_>>()).unwrap();
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
    let line = format!("{MODEL} --split 100,0,0 --train-iters 6 --tokenizer-type NullTokenizer");
    let more = |cache: &str| {
        ["--data-path".into(), prefix.clone(), "--data-cache-path".into(), dir.path().join(cache)]
    };
    let save = dir.path().join("save");
    let mut command = mpirun(4);
    command.arg(program()).args(line.split_whitespace()).args(more("a")).args(["--tp", "2"]);
    command.args(["--exit-interval", "3", "--save"]).arg(&save);
    let (done, _) = finished(&mut command);
    assert!(done.status.success(), "{}", text(&done));
    let modified = |cache: &str| {
        let folder = std::fs::read_dir(dir.path().join(cache)).unwrap();
        folder
            .map(|f| f.unwrap())
            .map(|f| (f.file_name(), f.metadata().unwrap().modified().unwrap()))
            .collect::<Vec<_>>()
    };
    let before = modified("a");
    assert!(!before.is_empty(), "the cache holds indices");
    let resumed = dir.path().join("resumed.jsonl");
    let mut command = mpirun(2);
    command.arg(program()).args(line.split_whitespace()).args(more("a")).arg("--load").arg(&save);
    let (done, _) = finished(command.arg("--metrics-file").arg(&resumed));
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!(modified("a"), before, "what is there is not made again");
    let straight = dir.path().join("straight.jsonl");
    let mut threads = ms_train();
    threads.args(line.split_whitespace()).args(more("b")).arg("--metrics-file").arg(&straight);
    threads.assert().success();
    let loss = |rows: &[Value]| rows.iter().map(|row| row["lm loss"].as_f64().unwrap()).collect::<Vec<_>>();
    let (got, want) = (loss(&iterations(&resumed)), loss(&iterations(&straight)));
    assert_eq!(got.len(), 3);
    for (got, want) in got.iter().zip(&want[3..]) {
        assert!((got - want).abs() < 2e-5, "{got} {want}");
    }
}

#[test]
fn a_rank_that_fails_ends_all_and_is_named_with_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 4, 8, counting);
    // The third of four processes has another file of data, which is not there.
    let line = |data: &Path| {
        let words = format!("{MODEL} --train-iters 4 --data-path")
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>();
        [words, vec![data.display().to_string()]].concat()
    };
    let mut command = mpirun(2);
    command.arg(program()).args(line(&data)).args([":", "-np", "1"]).arg(program());
    command
        .args(line(&dir.path().join("missing.safetensors")))
        .args([":", "-np", "1"])
        .arg(program())
        .args(line(&data));
    let (done, _) = finished(&mut command);
    let said = text(&done);
    assert!(!done.status.success(), "{said}");
    assert!(said.contains("missing.safetensors"), "{said}");
    assert!(said.contains("rank 2 failed: ") || said.contains("rank 2 of 4"), "{said}");
}

/// Four ranks of a run that saves each iteration; `victim` is killed. Returns how long all others live on, after checking the
/// messages; `None` where mpirun ended them before another rank had seen it. The iteration whose metrics were written last is
/// in `metrics.jsonl`.
fn killed(dir: &Path, victim: usize, topology: &str) -> Option<Duration> {
    let data = samples(dir, 200, 8, counting);
    let file = dir.join("metrics.jsonl");
    let mut command = mpirun(4);
    command
        .arg(program())
        .args(MODEL.split_whitespace())
        .args(["--train-iters", "200", "--data-path"])
        .arg(&data);
    command.args(topology.split_whitespace());
    command.args(["--save-interval", "1", "--save"]).arg(dir.join("save"));
    command.arg("--metrics-file").arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("mpirun is installed: libopenmpi-dev, openmpi-bin");
    let readers = [reader(child.stdout.take().unwrap()), reader(child.stderr.take().unwrap())];
    let start = Instant::now();
    while !file.exists() || metrics_so_far(&file) < 3 {
        assert!(
            start.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none(),
            "it trains"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let ranks = children(child.id());
    assert_eq!(ranks.len(), 4, "{ranks:?}");
    let killed = Command::new("kill").args(["-9", &ranks[victim].to_string()]).status().unwrap();
    assert!(killed.success());
    let start = Instant::now();
    while ranks.iter().any(living) {
        assert!(start.elapsed() < Duration::from_secs(20), "every rank ends");
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = start.elapsed();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "so does mpirun");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!child.wait().unwrap().success());
    let [_, said] = readers.map(|reader| String::from_utf8(reader.join().unwrap()).unwrap());
    assert!(said.contains(&format!("rank {victim}")) && said.contains("signal 9"), "{said}");
    // The others see it before mpirun ends anybody, unless the machine is busy.
    let [failed, gone] = [format!("rank {victim} failed: process "), format!(": rank {victim} is gone")];
    let seen = said.contains(&failed) || said.contains(&gone);
    println!("rank {victim} of {topology} killed: the others live on for {took:?}, said so: {seen}");
    seen.then_some(took)
}

#[test]
fn a_rank_that_is_killed_ends_all_and_is_named_and_fewer_go_on() {
    for (victim, topology) in [
        (2, "--tp 2"),
        (0, "--tp 2 --pp 2"),
        (3, "--cp 2 --use-distributed-optimizer --overlap-param-gather"),
    ] {
        // A machine that is busy with other tests has five tries at ending within a second.
        let mut tries = Vec::new();
        let dir = loop {
            let dir = tempfile::tempdir().unwrap();
            tries.push(killed(dir.path(), victim, topology));
            if tries.last().is_some_and(|took| took.is_some_and(|took| took < Duration::from_secs(1))) {
                break dir;
            }
            assert!(tries.len() < 5, "every rank ends within a second: {tries:?}");
        };
        fewer_go_on(dir.path());
    }
}

/// Two processes go on from what the run in `dir` saved before it ended.
fn fewer_go_on(dir: &Path) {
    let (data, save) = (dir.join("data.safetensors"), dir.join("save"));
    let file = dir.join("metrics.jsonl");
    // What was saved is whole, and two processes go on from it.
    let saved = std::fs::read_to_string(save.join("latest_checkpointed_iteration.txt")).unwrap();
    let saved: usize = saved.trim().parse().unwrap();
    assert!((2..200).contains(&saved) && saved + 1 >= metrics_so_far(&file), "{saved}");
    two_go_on(dir, &line_of(dir, &data, saved + 3), saved, &[]);
}

/// A run that fails: what it says, every rank having ended within a second of the deed that it notes. A machine that is busy has
/// three tries.
fn failed_at_once(fault: &str, command: impl Fn() -> Command) -> String {
    let mut least = Duration::MAX;
    for _ in 0..3 {
        let mut command = command();
        command.env("MS_PLANTED_FAULT", fault).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("mpirun is installed: libopenmpi-dev, openmpi-bin");
        let readers = [reader(child.stdout.take().unwrap()), reader(child.stderr.take().unwrap())];
        let (start, mut ranks, mut ended) = (Instant::now(), Vec::new(), None);
        // mpirun itself takes longer to end than its ranks.
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            let now = children(child.id());
            ranks = if now.len() > ranks.len() { now } else { ranks };
            if ended.is_none() && !ranks.is_empty() && !ranks.iter().any(living) {
                ended = Some(SystemTime::now());
            }
            if start.elapsed() > Duration::from_secs(60) {
                child.kill().unwrap();
                panic!("{fault}: a run over MPI does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let ended = ended.unwrap_or_else(SystemTime::now);
        let said: String = readers.map(|reader| String::from_utf8(reader.join().unwrap()).unwrap()).concat();
        assert!(!status.success(), "{said}");
        let end = said.find(" ms after 1970").unwrap_or_else(|| panic!("{fault}: no deed: {said}"));
        let deed = Duration::from_millis(said[..end].rsplit(' ').next().unwrap().parse().unwrap());
        let took = ended.duration_since(SystemTime::UNIX_EPOCH + deed).unwrap_or_default();
        if took < Duration::from_secs(1) {
            return said;
        }
        least = least.min(took);
    }
    panic!("{fault}: every rank ends within a second of it, found {least:?}");
}

/// Two processes go on from iteration `saved` of `dir/save`, and lose no more than threads that nothing happened to.
fn two_go_on(dir: &Path, line: &str, saved: usize, more: &[&str]) {
    let [on, straight] = ["on.jsonl", "straight.jsonl"].map(|name| dir.join(name));
    let mut command = mpirun(2);
    command.arg(program()).args(line.split_whitespace()).args(["--tp", "2", "--load"]).arg(dir.join("save"));
    let (done, _) = finished(command.args(more).arg("--metrics-file").arg(&on));
    assert!(done.status.success(), "{}", text(&done));
    let mut threads = ms_train();
    threads.args(line.split_whitespace()).arg("--metrics-file").arg(&straight).assert().success();
    let loss = |path: &Path| -> Vec<f64> {
        iterations(path).iter().map(|row| row["lm loss"].as_f64().unwrap()).collect()
    };
    let (on, straight) = (loss(&on), loss(&straight));
    assert_eq!(on.len(), straight.len() - saved);
    for (on, straight) in on.iter().zip(&straight[saved..]) {
        assert!((on - straight).abs() < 2e-5, "{on} {straight}");
    }
}

/// A run of eight iterations with `data` of `dir`.
fn line_of(dir: &Path, data: &Path, iterations: usize) -> String {
    assert!(!dir.display().to_string().contains(' '));
    format!(
        "{MODEL} --override-opt_param-scheduler --train-iters {iterations} --data-path {}",
        data.display()
    )
}

#[test]
fn a_disk_that_is_full_for_one_process_ends_all_and_what_was_saved_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 8, 8, counting);
    let save = dir.path().join("save");
    let line = |iterations| line_of(dir.path(), &data, iterations);
    let saving = format!("--tp 2 --save-interval 2 --save {}", save.display());
    let (done, _) =
        finished(mpirun(4).arg(program()).args(format!("{} {saving}", line(2)).split_whitespace()));
    assert!(done.status.success(), "{}", text(&done));
    for how in ["", "--async-save"] {
        // The second of four processes can write no file of more than four kilobytes; ranks that share memory do that in files.
        // The last process speaks of what it does; it is where the others are when ranks agree for the third time.
        let said = failed_at_once("3 saved 3 note", || {
            let words = format!("{} {saving} --load {} {how}", line(6), save.display());
            let words: Vec<&str> = words.split_whitespace().collect();
            let mut command = mpirun(1);
            command.args("--mca btl tcp,self".split(' ')).arg(program()).args(&words);
            command.args([":", "-np", "1", "sh", "-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]);
            command.arg(program()).args(&words).args([":", "-np", "2"]).arg(program()).args(&words);
            command
        });
        assert!(said.contains("iteration 4 was NOT saved: rank 1: "), "{said}");
        assert!(said.contains("rank_00001.safetensors") && said.contains("File too large"), "{said}");
        assert!(said.contains("rank 1 of 4: ") || said.contains("rank 1 could not write its part"), "{said}");
        let latest = std::fs::read_to_string(save.join("latest_checkpointed_iteration.txt")).unwrap();
        assert_eq!(latest.trim(), "2");
        let left = files(&save);
        assert!(
            left.keys().all(|name| !name.contains("0000004") && !name.contains("0000006")),
            "{:?}",
            left.keys()
        );
    }
    two_go_on(dir.path(), &line(8), 2, &[]);
}

#[test]
fn a_damaged_part_of_a_process_ends_all_and_an_older_checkpoint_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 8, 8, counting);
    let save = dir.path().join("save");
    let line = |iterations| line_of(dir.path(), &data, iterations);
    let saving = format!("--tp 2 --save-interval 2 --save {}", save.display());
    let (done, _) =
        finished(mpirun(4).arg(program()).args(format!("{} {saving}", line(4)).split_whitespace()));
    assert!(done.status.success(), "{}", text(&done));
    let shard = save.join("iter_0000004/rank_00001.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    for (damaged, word) in [
        (&whole[..whole.len() - 5], " are outside the data of "),
        (&flipped[..], "its bytes are not those that were written"),
    ] {
        std::fs::write(&shard, damaged).unwrap();
        // Before a rank opens a file of the checkpoint.
        let said = failed_at_once("3 arithmetic 1 note", || {
            let mut command = mpirun(4);
            let words = format!("{} --tp 2 --load {}", line(8), save.display());
            command.arg(program()).args(words.split_whitespace());
            command
        });
        assert!(said.contains("iter_0000004/rank_00001.safetensors: ") && said.contains(word), "{said}");
        assert!((0..4).any(|rank| said.contains(&format!("rank {rank} of 4: "))), "{said}");
        assert!(said.contains("--ckpt-step 2 loads"), "{said}");
    }
    two_go_on(dir.path(), &line(8), 2, &["--ckpt-step", "2"]);
}

#[test]
fn machines_that_reach_each_other_by_tcp_give_the_bits_of_threads() {
    let Some(machines) = Machines::new() else {
        eprintln!("left out: this machine does not allow network namespaces");
        return;
    };
    // A row of every kind of model on ranks that are on the two machines in turn, and the line with most exchanges.
    let line =
        format!("{MODEL} --tp 2 --pp 2 --global-batch-size 24 --seq-length 24 --max-position-embeddings 24");
    same_bits(
        |ranks| machines.mpirun(ranks),
        drawn_rows(random_topologies::MODELS.len()).into_iter().chain([(4, line)]),
    );
}

fn metrics_so_far(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// The processes that a process has started, in the order in which it did.
fn children(parent: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let mut all: Vec<u32> = list.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    all.sort_unstable();
    all
}

/// Whoever has ended may still be listed until somebody asks how.
fn living(pid: &u32) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    line.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

#[test]
fn launchers_that_contradict_mpi_and_flags_that_do_are_refused_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 1, 8, counting);
    let run = |more: &[&str], variables: &[(&str, &str)]| {
        let mut command = mpirun(2);
        for (name, value) in variables {
            command.args(["-x", &format!("{name}={value}")]);
        }
        command.arg(program()).args(MODEL.split_whitespace()).args(["--train-iters", "1", "--data-path"]);
        finished(command.arg(&data).args(more)).0
    };
    // A launcher that ends because a process has may lose the last words of that process, so it is asked again if there are none.
    let refused = |more: &[&str], variables: &[(&str, &str)], words: &str| {
        let mut said = String::new();
        for _ in 0..3 {
            let done = run(more, variables);
            said = text(&done);
            assert_eq!(done.status.code(), Some(2), "{said}");
            if said.contains(words) {
                break;
            }
        }
        assert_eq!(said.matches(words).count(), 1, "{said}");
    };
    refused(&["--nproc-per-node", "3"], &[], "--nproc-per-node: expected 2");
    let both = "RANK and WORLD_SIZE: expected 1 and 2, as MPI has it, found 0 and 3";
    refused(&[], &[("RANK", "0"), ("WORLD_SIZE", "3")], both);
    refused(&[], &[("LOCAL_RANK", "5")], "LOCAL_RANK: expected 1, as MPI has it, found 5");
    // What scripts for torchrun write is taken, and what it would set.
    let nowhere = [("MASTER_ADDR", "nowhere.invalid"), ("MASTER_PORT", "1")];
    let done = run(&["--nproc-per-node", "2"], &nowhere);
    assert!(done.status.success(), "{}", text(&done));
    let mut command = mpirun(2);
    let torch =
        "RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=2 LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=2";
    command.args(["sh", "-c", &format!("export {torch}; exec \"$0\" \"$@\"")]).arg(program());
    command.args(MODEL.split_whitespace()).args(["--train-iters", "1", "--data-path"]).arg(&data);
    let done = finished(&mut command).0;
    assert!(done.status.success(), "{}", text(&done));
}
