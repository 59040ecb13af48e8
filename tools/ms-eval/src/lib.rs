//! `ms-eval` scores a model on benchmarks with MindSpeed-LLM's prompts and extraction rules, or by log-likelihood as
//! lm-evaluation-harness does.

#[macro_use]
#[path = "../../../crates/ms-cli/src/megatron/macros.rs"]
mod macros;

mod boolq;
mod chinese;
mod hellaswag;
mod jsonl;
pub mod mmlu;
mod options;
mod pandas;
pub mod question;
mod report;
mod run;
pub mod task;

use anyhow::Result;
use ms_cli::megatron::{ConfigFile, Line, Program, begin};
use ms_cli::refuse;
use options::Options;
use std::sync::OnceLock;
use task::Task;

/// What the help says of the program.
fn about() -> &'static str {
    static ABOUT: OnceLock<String> = OnceLock::new();
    ABOUT.get_or_init(|| {
        let (names, folders) = (task::names(), task::TASKS.each_ref().map(task::Task::help).join("\n"));
        format!(
            "Scores a model on benchmarks: {names}.

  ms-eval mmlu --data-path mmlu/test --load qwen3-0.6b --output scores
  ms-eval hellaswag --protocol harness --data-path hellaswag/val --load qwen3-0.6b --json

What the folder of each holds:

{folders}

Of several benchmarks each has a folder of its own in --output. Without such a word: the arguments of upstream's evaluation.py
(--task mmlu --task-data-path DIR)."
        )
    })
}

/// The command line.
pub fn line() -> &'static Line {
    static LINE: OnceLock<Line> = OnceLock::new();
    LINE.get_or_init(|| {
        Line::new::<(ConfigFile, Options)>(Program::Eval, "ms-eval", about()).with_help(&[(
            "--dtype",
            "element type to compute in (default: bf16); fp64 uses the slow reference device",
        )])
    })
}

/// The program.
///
/// # Errors
/// If a flag is wrong, the model, tokenizer or data cannot be read, or scores cannot be written.
pub fn main(interrupt: &ms_cli::Interrupt) -> Result<()> {
    let Some((mut tasks, args)) = begin(line(), usize::MAX, |word| Task::of(word).is_ok())? else {
        return Ok(());
    };
    let o: Options = args.read()?;
    if let ([word, ..], false) = (&tasks[..], o.asked.tasks.is_empty()) {
        refuse!("--task: cannot be combined with the command {word}");
    }
    if tasks.is_empty() {
        tasks = o.asked.tasks.clone();
    }
    if tasks.is_empty() {
        refuse!("expected the name of a task: {}", task::names());
    }
    let tasks = tasks.iter().map(|name| Task::of(name)).collect::<Result<Vec<_>>>()?;
    let output = &o.asked.output;
    // Before anything is computed.
    let _claim = output.as_ref().map(|dir| ms_cli::Claim::folder(dir, interrupt)).transpose()?;
    for task in &tasks {
        let output =
            output.as_ref().map(|dir| if tasks.len() > 1 { dir.join(task.name) } else { dir.clone() });
        run::task(&args, &o, task, output.as_deref())?;
    }
    Ok(())
}
