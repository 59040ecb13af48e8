//! Upstream's own scripts: every trainer invocation is planned, or the unsupported flag is named.

use crate::tiny::ms_train;
use serde_json::Value;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranks that a launcher starts.
fn ranks(launcher: &[&str]) -> Option<usize> {
    let after = |name: &str| {
        let at = launcher.iter().position(|word| word.replace('_', "-") == name)?;
        launcher.get(at + 1)?.parse::<usize>().ok()
    };
    let here = after("--nproc-per-node").or_else(|| after("--local-worker-num"));
    after("--worker-num").or_else(|| Some(here? * after("--nnodes").unwrap_or(1)))
}

/// Whether the error's first word is a flag of the line, one of sizes, or one that the line lacks.
fn names_a_flag(message: &str, argv: &[&str]) -> bool {
    const OTHERS: [&str; 3] = ["--nproc-per-node", "--micro-batch-size", "--seq-length"];
    let last = message.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let said = last.and_then(|error| error["message"].as_str().map(str::to_owned)).unwrap_or_default();
    let first =
        said.strip_prefix("ms-train: ").unwrap_or(&said).split_whitespace().next().unwrap_or_default();
    let flag = first.trim_end_matches([':', ',']);
    flag.starts_with("--") && (argv.contains(&flag) || OTHERS.contains(&flag))
}

fn words<'a>(record: &'a Value, key: &str) -> Vec<&'a str> {
    record[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The command that plans what a script starts.
fn plan_of(record: &Value, folder: &Path) -> assert_cmd::Command {
    let mut command = ms_train();
    command.current_dir(folder).args(words(record, "argv")).args(["--dry-run", "--json"]);
    if record["version"] != "v2.0.0" {
        command.args(["--upstream", "head"]);
    }
    if let Some(ranks) = ranks(&words(record, "launcher")) {
        command.args(["--nproc-per-node", &ranks.to_string()]);
    }
    command
}

#[test]
fn a_plan_of_671b_costs_as_much_for_a_large_batch_as_for_a_small_one() {
    let Some(path) = ms_testing::shared("goldens/scripts.jsonl") else {
        return println!("skipped: no recorded scripts");
    };
    let empty = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let mut seen = 0;
    for record in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let argv = words(&record, "argv");
        let says = |flag: &str, value: &str| argv.windows(2).any(|pair| pair == [flag, value]);
        if !(argv.contains(&"dualpipev") && says("--num-experts", "256") && says("--hidden-size", "7168")) {
            continue;
        }
        // Converters have that flag, too, and some starts have another one that is refused.
        if !starts_a_trainer(&record)
            || plan_of(&record, empty.path()).output().unwrap().status.code() == Some(2)
        {
            continue;
        }
        let tensors = |extra: &[&str]| {
            let done = plan_of(&record, empty.path()).args(extra).output().unwrap();
            let plan: Value = serde_json::from_slice(&done.stdout).unwrap();
            (plan["rehearsed_tensors"].as_u64().unwrap(), plan["parameters"].as_u64().unwrap())
        };
        let global = argv[argv.iter().position(|word| *word == "--global-batch-size").unwrap() + 1];
        let larger = (8 * global.parse::<u64>().unwrap()).to_string();
        let (few, parameters) = tensors(&[]);
        assert_eq!(tensors(&["--global-batch-size", &larger]).0, few, "{}", record["script"]);
        println!("{}: {parameters} parameters, {few} tensors", record["script"]);
        assert!(few > 0 && few < MOST_TENSORS, "{}: {few} tensors", record["script"]);
        seen += 1;
    }
    assert!(seen > 0, "no script starts it");
    println!("{seen} scripts");
}

/// Whether a recorded command line starts a trainer as upstream accepts it.
fn starts_a_trainer(record: &Value) -> bool {
    let trainer = ["pretrain_gpt.py", "posttrain_gpt.py", "pretrain_deepseek4.py"]
        .contains(&record["program"].as_str().unwrap());
    trainer && record["upstream_accepts"] == Value::Bool(true)
}

/// Far below a second on any machine: as many are made in some hundred milliseconds.
const MOST_TENSORS: u64 = 400_000;

#[test]
fn every_start_of_a_trainer_is_planned_or_the_flag_is_named() {
    let Some(path) = ms_testing::shared("goldens/scripts.jsonl") else {
        return println!("skipped: no recorded scripts");
    };
    let empty = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let records: Vec<Value> = records.filter(starts_a_trainer).collect();
    let found = Mutex::new((0, 0, Vec::new()));
    let next = AtomicUsize::new(0);
    let judge = || {
        while let Some(record) = records.get(next.fetch_add(1, Ordering::Relaxed)) {
            let done = plan_of(record, empty.path()).output().unwrap();
            let script = record["script"].as_str().unwrap();
            let message = String::from_utf8_lossy(&done.stderr);
            let mut found = found.lock().unwrap();
            match done.status.code() {
                Some(0) => {
                    let plan: Value = serde_json::from_slice(&done.stdout).unwrap();
                    let whole = plan["parameters"].as_u64() > Some(0) && plan["bytes_per_rank"].is_object();
                    assert!(whole, "{script}");
                    found.0 += 1;
                }
                Some(2) if names_a_flag(&message, &words(record, "argv")) => found.1 += 1,
                code => found.2.push(format!("{script}: {code:?}: {message}")),
            }
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (0..cores).for_each(|_| drop(scope.spawn(judge)));
    });
    let (planned, refused, wrong) = found.into_inner().unwrap();
    println!("{planned} planned, {refused} refused by a flag's name, {} neither", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!((planned, refused), (255, 58));
}
