//! The library makes the same run from flags as the program.

use crate::tiny::{counting, metrics, model, ms_train, samples};
use ms_cli::megatron::{Line, Program, parse};
use ms_options::plan::plan;
use ms_options::training::{Options, Purpose, Resolved, resolve};
use ms_trainer::{Hooks, Observer};
use serde_json::Value;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Keeps the iterations that it hears of.
#[derive(Default)]
struct Heard(Mutex<Vec<u64>>);

impl Observer for Heard {
    fn line(&self, _: &str) {}
    fn progress(&self, _: u64, _: u64, _: f64) {}
    fn iteration(&self, iteration: u64) {
        self.0.lock().unwrap().push(iteration);
    }
}

/// Flags of a run on two ranks that share every layer.
fn flags(data: &Path) -> Vec<String> {
    let more = "--nproc-per-node 2 --tensor-model-parallel-size 2 --train-iters 3 --lr 1e-2 --eval-iters 0 --data-path";
    let flags = model().chain(more.split(' ')).map(str::to_owned);
    flags.chain([data.display().to_string()]).collect()
}

fn resolved(flags: &[String], purpose: Purpose) -> anyhow::Result<(Options, Resolved)> {
    let line = Box::leak(Box::new(Line::new::<Options>(Program::Train, "a program", "")));
    let options: Options = parse(line, flags.iter().cloned())?.read()?;
    let run = resolve(&options, purpose, None)?;
    Ok((options, run))
}

#[test]
fn weights_round_to_even_by_the_flag_that_each_upstream_reads() {
    let even = |more: &str| {
        let more = format!("--bf16 --reuse-fp32-param {more}");
        let more = more.split_whitespace().map(str::to_owned);
        let flags: Vec<String> = model().map(str::to_owned).chain(more).collect();
        resolved(&flags, Purpose::Plan).unwrap().1.config.optimizer.form.ties_to_even
    };
    assert!(!even("--use-deter-comp") && even("--npu-deterministic"));
    assert!(!even("--upstream head") && even("--upstream head --use-deter-comp"));
}

#[test]
fn trains_as_the_program_does() {
    let dir = tempfile::tempdir().unwrap();
    let data = samples(dir.path(), 3, 4, counting);
    let (ours, programs) = (dir.path().join("ours.jsonl"), dir.path().join("programs.jsonl"));
    let mut flags = flags(&data);
    ms_train().args(&flags).arg("--metrics-file").arg(&programs).assert().success();
    flags.extend(["--metrics-file".to_owned(), ours.display().to_string()]);

    let (options, run) = resolved(&flags, Purpose::Train).unwrap();
    let heard = Heard::default();
    let hooks = Hooks { stop: Arc::default(), recorder: None, observer: &heard, job: String::new() };
    let choice = options.compute.arithmetic().unwrap();
    let ended =
        ms_dist::threads::run(run.world, |fabric| run.train(run.context(&fabric)?, choice, &hooks)).unwrap();
    assert_eq!(ended.len(), 2);
    assert_eq!(heard.0.into_inner().unwrap().last(), Some(&3));
    let losses = |file: &Path| -> Vec<Value> {
        metrics(file).into_iter().map(|line| line["lm loss"].clone()).collect()
    };
    assert!(losses(&ours).iter().all(Value::is_number) && losses(&ours).len() == 3, "{:?}", losses(&ours));
    assert_eq!(losses(&ours), losses(&programs));
}

#[test]
fn plans_as_the_program_does() {
    let dir = tempfile::tempdir().unwrap();
    let flags = flags(&samples(dir.path(), 3, 4, counting));
    let said = ms_train().args(&flags).args(["--dry-run", "--json"]).output().unwrap();
    let mut programs: Value = serde_json::from_slice(&said.stdout).unwrap();
    let mut ours = plan(&resolved(&flags, Purpose::Plan).unwrap().1).unwrap();
    // What is free changes while both are asked.
    for plan in [&mut programs, &mut ours] {
        assert!(plan["memory"].as_object_mut().unwrap().remove("available").is_some());
    }
    assert_eq!(ours, programs);
}

#[test]
fn refuses_what_the_program_refuses() {
    let mut flags = flags(Path::new("nowhere.safetensors"));
    flags.extend(["--bf16", "--fp16"].map(str::to_owned));
    let said = ms_train().args(&flags).assert().code(2);
    let said = String::from_utf8_lossy(&said.get_output().stderr).into_owned();
    let ours = resolved(&flags, Purpose::Train).unwrap_err();
    assert!(
        ours.is::<ms_cli::Usage>() && said.contains(&ours.to_string()),
        "{ours}, and the program: {said}"
    );
}
