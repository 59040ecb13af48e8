//! Faults in a run of several ranks: a rank that dies, an exchange that one leaves out, a full disk, a damaged checkpoint.
//! Every rank ends, the message says who and why, only unsaved work is lost, and the run resumes with fewer ranks.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod tiny;

use std::path::Path;
use std::time::{Duration, SystemTime};
use tiny::{counting, metrics, model, ms_train, samples};

/// No run of this file takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Within this time of a fault every rank has ended.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Before the first rank opens a file of a checkpoint.
const LOADING: &str = "0 arithmetic 1 note";

/// A run of `ranks` in `dir` up to `iterations` of eight.
fn train(dir: &Path, ranks: &str, iterations: &str, more: &str) -> assert_cmd::Command {
    let data = dir.join("data.safetensors");
    if !data.exists() {
        samples(dir, 8, 4, counting);
    }
    let mut command = ms_train();
    command.current_dir(dir).timeout(PATIENCE).args(model());
    command.args("--micro-batch-size 1 --lr 1e-3 --lr-decay-style constant --eval-iters 0".split(' '));
    command.args(["--nproc-per-node", ranks, "--train-iters", iterations, "--data-path"]).arg(&data);
    command.args("--override-opt_param-scheduler".split(' ')).args(more.split_whitespace());
    command
}

/// Standard error of a run that fails.
fn failed(mut command: assert_cmd::Command) -> String {
    let done = command.assert().code(1);
    String::from_utf8_lossy(&done.get_output().stderr).into_owned()
}

/// The same of a run with a planted fault, from which on it takes less than a second to end. A machine that is busy with other
/// tests has three tries.
fn failed_at_once(fault: &str, command: impl Fn() -> assert_cmd::Command) -> String {
    let mut least = Duration::MAX;
    for _ in 0..3 {
        let mut command = command();
        command.env("MS_PLANTED_FAULT", fault);
        let said = failed(command);
        let ended = SystemTime::now();
        let end = said.find(" ms after 1970").unwrap_or_else(|| panic!("{fault}: no deed: {said}"));
        let deed = said[..end].rsplit(' ').next().unwrap().parse().unwrap();
        let deed = SystemTime::UNIX_EPOCH + Duration::from_millis(deed);
        let took = ended.duration_since(deed).unwrap_or_default();
        if took < AT_ONCE {
            return said;
        }
        least = least.min(took);
    }
    panic!("{fault}: every rank ends within {AT_ONCE:?} of it, found {least:?}");
}

fn latest(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("out/latest_checkpointed_iteration.txt")).unwrap().trim().to_owned()
}

fn losses(dir: &Path, file: &str) -> Vec<f64> {
    metrics(&dir.join(file)).iter().map(|row| row["lm loss"].as_f64().unwrap()).collect()
}

/// Goes on with two ranks from what there is; its losses are those of a run that nothing happened to.
fn goes_on(dir: &Path, from: usize, more: &str) {
    train(dir, "2", "8", &format!("--load out --metrics-file on.jsonl {more}")).assert().success();
    train(dir, "2", "8", &format!("--metrics-file straight.jsonl {more}")).assert().success();
    let (on, straight) = (losses(dir, "on.jsonl"), losses(dir, "straight.jsonl"));
    assert_eq!((on.len(), straight.len()), (8 - from, 8));
    for (on, straight) in on.iter().zip(&straight[from..]) {
        assert!((on - straight).abs() < 2e-5, "{on} {straight}");
    }
}

#[test]
fn a_rank_that_dies_ends_all_and_the_run_goes_on_with_fewer() {
    // In the fifth iteration, at another place of another rank of another topology each.
    for (rank, exchange, time, flags) in [
        (2, "squared norm", 5, "--tp 2"),
        (0, "loss", 5, "--cp 2"),
        (3, "gradients", 5, ""),
        (1, "a border", 9, "--pp 2 --num-layers 2"),
        (3, "gradients of a border", 9, "--pp 2 --num-layers 2"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let save = format!("{flags} --save out --save-interval 2");
        let fault = format!("{rank} {exchange} {time} panic");
        let said = failed_at_once(&fault, || train(dir.path(), "4", "8", &save));
        let named = format!("rank {rank} of 4: internal error: planted at {exchange}");
        assert!(said.contains(&named), "{fault}: {said}");
        // Iteration 5 is lost, which was not saved.
        assert_eq!(latest(dir.path()), "4", "{fault}");
        goes_on(dir.path(), 4, if flags.contains("layers") { "--num-layers 2" } else { "" });
    }
}

#[test]
fn an_exchange_that_one_rank_leaves_out_ends_all_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let half = "--tp 2 --fp16 --initial-loss-scale 1024";
    for (what, flags) in [
        ("1 overflow 2", half),
        ("0 overflow 2", half),
        ("1 squared norm 2", "--tp 2"),
        ("3 enter_tp 3", "--tp 2"),
        ("2 leave_tp 4", "--tp 2 --pp 2 --num-layers 2"),
        ("1 loss 2", "--tp 2"),
        ("1 gradients 2", ""),
        ("3 gradients 2", "--overlap-grad-reduce --ddp-bucket-size 500"),
        ("2 shared gradients 1", "--tp 2 --sequence-parallel"),
        ("0 a border 2", "--pp 2 --num-layers 2"),
        ("2 gradients of a border 1", "--pp 2 --num-layers 2"),
        ("1 stop 2", "--tp 2"),
        ("2 saved 2", "--tp 2 --save out --save-interval 1"),
        ("2 saving 1", "--tp 2 --save other --save-interval 1 --async-save"),
    ] {
        let said = failed_at_once(&format!("{what} skip"), || train(dir.path(), "4", "4", flags));
        let name = what.split(' ').skip(1).collect::<Vec<_>>();
        let name = name[..name.len() - 1].join(" ");
        assert!(said.contains("does not match: rank ") || said.contains("deadlock: rank "), "{what}: {said}");
        assert!(said.contains(&format!(" of {name}")), "{what}: {said}");
        // Operations, counts, types and groups.
        assert!(said.contains(" x f") && said.contains("of ranks ["), "{what}: {said}");
    }
}

/// The run with a file size limit: a disk that is full after this many blocks of half a kilobyte.
fn on_a_full_disk(command: &assert_cmd::Command, blocks: usize) -> assert_cmd::Command {
    let mut shell = assert_cmd::Command::new("sh");
    // Who does not hear of it gets an error from every write beyond.
    shell.args(["-c", &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args()).timeout(PATIENCE);
    shell.current_dir(command.get_current_dir().unwrap()).env("MS_NO_PROGRESS", "1").env_remove("MS_ISA");
    shell
}

#[test]
fn a_disk_that_is_full_loses_nothing_that_was_saved() {
    for how in ["", "--async-save"] {
        let dir = tempfile::tempdir().unwrap();
        let save = format!("--tp 2 --save out --save-interval 2 {how}");
        train(dir.path(), "4", "2", &save).assert().success();
        let more = || train(dir.path(), "4", "6", &format!("{save} --load out"));
        // The third time that ranks agree the first has made the folder of the last checkpoint: from then on it writes.
        let said = failed_at_once("0 saved 3 note", || on_a_full_disk(&more(), 8));
        assert!(said.contains("iteration 4 was NOT saved: rank 0: "), "{said}");
        // There is no later time for the last one.
        assert!(said.contains("rank 0 of 4: ") || said.contains("rank 0 could not write its part"), "{said}");
        assert!(said.contains("rank_00000.safetensors") && said.contains("File too large"), "{said}");
        assert_eq!(latest(dir.path()), "2");
        let left = std::fs::read_dir(dir.path().join("out")).unwrap().map(|e| e.unwrap().file_name());
        let left: Vec<String> = left.map(|name| name.into_string().unwrap()).collect();
        assert!(left.iter().all(|name| !name.contains("0000004") && !name.contains("0000006")), "{left:?}");
        goes_on(dir.path(), 2, "");
    }
}

/// A file system of its own with room for one checkpoint and a half, where the machine lets a user have one.
#[cfg(target_os = "linux")]
#[test]
fn a_file_system_without_room_for_another_checkpoint_keeps_the_one_it_has() {
    let allowed =
        std::process::Command::new("unshare").args(["-rm", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]).output();
    if !allowed.is_ok_and(|done| done.status.success()) {
        eprintln!("not run: users have no file systems of their own here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = |iterations: &str, more: &str| train(dir.path(), "2", iterations, more);
    run("2", "--tp 2 --save measured --save-interval 2").assert().success();
    let of = |file: std::fs::DirEntry| file.metadata().unwrap().len().next_multiple_of(4096);
    let one: u64 =
        std::fs::read_dir(dir.path().join("measured/iter_0000002")).unwrap().map(|f| of(f.unwrap())).sum();
    std::fs::create_dir(dir.path().join("disk")).unwrap();
    let line = |command: &assert_cmd::Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ")
    };
    for how in ["", "--async-save"] {
        let first = run("6", &format!("--tp 2 --save disk/out --save-interval 2 {how}"));
        let second = run("4", "--load disk/out --metrics-file on.jsonl");
        let script = format!(
            "mount -t tmpfs -o size={} tmpfs disk\n{}; echo \"code $?\"; ls disk/out; cat disk/out/latest*\n{}; echo \"code $?\"",
            one * 3 / 2,
            line(&first),
            line(&second)
        );
        let mut shell = assert_cmd::Command::new("unshare");
        shell.args(["-rm", "sh", "-c", &script]).current_dir(dir.path()).timeout(PATIENCE);
        let done = shell.env("MS_NO_PROGRESS", "1").env_remove("MS_ISA").assert().success();
        let [out, err] = [&done.get_output().stdout, &done.get_output().stderr]
            .map(|b| String::from_utf8_lossy(b).into_owned());
        assert!(
            err.contains("iteration 4 was NOT saved: ") && err.contains("No space left on device"),
            "{how}: {err}"
        );
        let codes: Vec<&str> = out.lines().filter(|l| l.starts_with("code ")).collect();
        assert_eq!(codes, ["code 1", "code 0"], "{how}: {out}{err}");
        assert!(
            out.contains("iter_0000002") && !out.contains("0000004") && !out.contains("0000006"),
            "{how}: {out}"
        );
        let last: Vec<f64> = losses(dir.path(), "on.jsonl");
        assert_eq!(last.len(), 2, "it continues behind the second iteration: {last:?}");
        std::fs::remove_file(dir.path().join("on.jsonl")).unwrap();
    }
}

#[test]
fn a_damaged_part_of_one_rank_is_named_and_an_older_checkpoint_goes_on() {
    const CHECKSUM: &str = "its bytes are not those that were written";
    for damage in ["truncated", "flipped"] {
        let dir = tempfile::tempdir().unwrap();
        train(dir.path(), "4", "4", "--tp 2 --save out --save-interval 2").assert().success();
        let shard = dir.path().join("out/iter_0000004/rank_00003.safetensors");
        let mut bytes = std::fs::read(&shard).unwrap();
        let (length, middle) = (bytes.len(), bytes.len() / 2);
        match damage {
            "truncated" => bytes.truncate(length - 5),
            _ => bytes[middle] ^= 4,
        }
        std::fs::write(&shard, bytes).unwrap();
        let said = failed_at_once(LOADING, || train(dir.path(), "4", "8", "--tp 2 --load out"));
        let by = |rank: u32, what: &str| {
            said.contains(&format!(
                "ms-train: rank {rank} of 4: out/iter_0000004/rank_00003.safetensors: {what}"
            ))
        };
        match damage {
            // Every rank opens all files: the one that ends first says it, the first rank's checksums perhaps.
            "truncated" if by(0, CHECKSUM) => {}
            "truncated" => {
                assert!((0..4).any(|rank| by(rank, "tensor ")), "{said}");
                assert!(said.contains(" are outside the data of "), "{said}");
            }
            // It reads as another number: the first rank compares checksums.
            _ => assert!(by(0, CHECKSUM), "{said}"),
        }
        assert!(said.contains("--ckpt-step 2 loads"), "{said}");
        goes_on(dir.path(), 2, "--ckpt-step 2");
    }
}

#[test]
fn of_several_damaged_checkpoints_the_last_whole_one_is_offered() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), "4", "8", "--tp 2 --save out --save-interval 2").assert().success();
    let damage = |iteration: u32, rank: u32| {
        let shard = dir.path().join(format!("out/iter_{iteration:07}/rank_{rank:05}.safetensors"));
        let mut bytes = std::fs::read(&shard).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(&shard, bytes).unwrap();
    };
    let load = || failed_at_once(LOADING, || train(dir.path(), "4", "8", "--tp 2 --load out"));
    damage(8, 3);
    let said = load();
    assert!(said.contains("--ckpt-step 6 loads the one before, which is whole"), "{said}");
    damage(6, 0);
    damage(4, 2);
    let said = load();
    assert!(said.contains("iter_0000008/rank_00003.safetensors"), "{said}");
    assert!(said.contains("--ckpt-step 2 loads the last whole one; damaged, too: 4, 6"), "{said}");
    // If a requested older one is damaged, there is one before it, too.
    let said = failed(train(dir.path(), "4", "8", "--tp 2 --load out --ckpt-step 6"));
    assert!(said.contains("iter_0000006/rank_00000.safetensors"), "{said}");
    assert!(said.contains("--ckpt-step 2 loads the last whole one; damaged, too: 4"), "{said}");
    damage(2, 1);
    let said = load();
    assert!(said.contains("no older one is whole: 2, 4, 6"), "{said}");
}

#[test]
fn an_iteration_that_is_asked_for_is_read_whatever_the_tracker_says() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), "2", "4", "--save out --save-interval 2").assert().success();
    std::fs::remove_dir_all(dir.path().join("out/iter_0000004")).unwrap();
    for (tracker, which) in [("4", "one before"), ("99", "one before"), ("", "newest")] {
        std::fs::write(dir.path().join("out/latest_checkpointed_iteration.txt"), tracker).unwrap();
        let said = failed(train(dir.path(), "2", "4", "--load out"));
        let hint = format!("--ckpt-step 2 loads the {which}, which is whole");
        assert!(said.contains(&hint), "{tracker:?}: {said}");
        train(dir.path(), "2", "4", "--load out --ckpt-step 2").assert().success();
    }
}

/// Megatron-LM's issue 7452, finding 12: layers that a stage names by its own count are loaded by any other number of stages as
/// those of the first one.
#[test]
fn layers_named_by_the_count_of_their_stage_are_not_loaded_as_others() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), "2", "4", "--num-layers 2 --pp 2 --save out --save-interval 4").assert().success();
    let last = dir.path().join("out/iter_0000004");
    let shard = last.join("rank_00001.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let (of_model, of_stage) = (b"decoder.layers.1.", b"decoder.layers.0.");
    let mut renamed = 0;
    for at in 0..bytes.len() - of_model.len() {
        if &bytes[at..at + of_model.len()] == of_model {
            bytes[at..at + of_stage.len()].copy_from_slice(of_stage);
            renamed += 1;
        }
    }
    assert!(renamed > 4, "{renamed} names");
    std::fs::write(&shard, bytes).unwrap();
    std::fs::remove_file(last.join("ms-checksums.json")).unwrap();
    for (ranks, more) in [("1", ""), ("2", "--pp 2")] {
        let said = failed(train(dir.path(), ranks, "8", &format!("--num-layers 2 --load out {more}")));
        assert!(said.contains("decoder.layers."), "{said}");
    }
}
