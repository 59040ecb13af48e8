//! The benchmarks: the name of each, the contents of its folder and how its questions are asked. Help, errors and runs read
//! this one table.

use crate::chinese::{self, Benchmark};
use crate::mmlu::SHOTS;
use crate::question::Question;
use crate::{boolq, hellaswag, mmlu};
use anyhow::Result;
use ms_cli::megatron::Upstream;
use ms_cli::refuse;
use std::path::Path;

/// Reads questions from a folder: with this many solved examples before each, if a number was requested; at most this many;
/// as in that version of MindSpeed-LLM.
type Reader = fn(&Path, Option<usize>, usize, Upstream) -> Result<Vec<Question>>;

/// A benchmark.
#[derive(Debug)]
pub struct Task {
    /// The word that asks for it.
    pub(crate) name: &'static str,
    /// What its folder holds, in lines of the help.
    data: &'static str,
    /// Whether there are solved examples in its folder.
    solved: bool,
    /// The questions as lm-evaluation-harness asks them.
    harness: Reader,
    /// As MindSpeed-LLM asks them, or why not.
    upstream: Result<Reader, &'static str>,
}

/// Why MindSpeed-LLM's prompts of the Chinese benchmarks are not asked.
const PROMPTS: &str = "MindSpeed-LLM's prompts for it are not in this version";

/// All of them.
pub(crate) static TASKS: [Task; 5] = [
    Task {
        name: "mmlu",
        data: "SUBJECT_test.csv files (question,A,B,C,D,answer); the five solved examples of each prompt come from
SUBJECT_dev.csv in the folder dev beside it",
        solved: true,
        harness: |dir, shots, most, _| mmlu::questions(dir, true, shots.unwrap_or(SHOTS), most),
        upstream: Ok(|dir, shots, most, _| mmlu::questions(dir, false, shots.unwrap_or(SHOTS), most)),
    },
    Task {
        name: "boolq",
        data: "*.jsonl with passage, question and answer",
        solved: false,
        harness: |dir, _, most, _| boolq::read(dir, boolq::Asked::Harness, most),
        upstream: Ok(|dir, _, most, version| boolq::read(dir, boolq::Asked::Upstream(version), most)),
    },
    Task {
        name: "hellaswag",
        data: "*.jsonl as published, or with query, choices and gold",
        solved: false,
        harness: |dir, _, most, _| hellaswag::read(dir, most),
        upstream: Err("MindSpeed-LLM does not score it"),
    },
    Task {
        name: "cmmlu",
        data: "test/SUBJECT.csv with a header, and solved examples in the folder dev beside it",
        solved: true,
        harness: |dir, shots, most, _| chinese::questions(Benchmark::Cmmlu, dir, shots.unwrap_or(SHOTS), most),
        upstream: Err(PROMPTS),
    },
    Task {
        name: "ceval",
        data: "val/SUBJECT_val.csv with a header, and SUBJECT_dev.csv with solved examples in the folder dev beside it",
        solved: true,
        harness: |dir, shots, most, _| chinese::questions(Benchmark::Ceval, dir, shots.unwrap_or(SHOTS), most),
        upstream: Err(PROMPTS),
    },
];

/// Their names, with commas between them.
pub(crate) fn names() -> String {
    TASKS.each_ref().map(|task| task.name).join(", ")
}

impl Task {
    /// The benchmark of that name.
    ///
    /// # Errors
    /// [`ms_cli::Usage`] with the names that there are.
    pub fn of(name: &str) -> Result<&'static Self> {
        let Some(task) = TASKS.iter().find(|task| task.name == name) else {
            refuse!(
                "task: expected one of {}, found {name:?}; other tasks are not in this version{}",
                names(),
                ms_cli::megatron::did_you_mean(name, &TASKS.each_ref().map(|task| task.name))
            );
        };
        Ok(task)
    }

    /// What the help says of it.
    pub(crate) fn help(&self) -> String {
        let Self { name, data, upstream, .. } = self;
        let protocol = if upstream.is_ok() { "" } else { " (with --protocol harness)" };
        format!("{name}{protocol}: {data}")
    }

    /// Its questions.
    ///
    /// # Errors
    /// [`ms_cli::Usage`] for examples where there are none, and for a protocol by which it is not asked; files that cannot be
    /// read.
    pub fn questions(
        &self,
        dir: &Path,
        harness: bool,
        shots: Option<usize>,
        most: usize,
        version: Upstream,
    ) -> Result<Vec<Question>> {
        let Self { name, solved, .. } = self;
        if !solved && shots.unwrap_or(0) > 0 {
            refuse!("--num-fewshot: {name} has no solved examples in its folder; leave it out");
        }
        match (harness, self.upstream) {
            (true, _) => (self.harness)(dir, shots, most, version),
            (false, Ok(reader)) => reader(dir, shots, most, version),
            (false, Err(why)) => refuse!("{name}: {why}; pass --protocol harness"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_and_errors_are_of_the_table() {
        let about = crate::about();
        for task in &TASKS {
            assert!(about.contains(&task.help()), "{}", task.name);
            assert!(std::ptr::eq(Task::of(task.name).unwrap(), task));
            let shots = task
                .questions(Path::new("/nowhere"), true, Some(1), 1, Upstream::V2_0_0)
                .unwrap_err()
                .to_string();
            assert_eq!(shots.starts_with("--num-fewshot: "), !task.solved, "{shots}");
            if let Err(why) = task.upstream {
                let said = task
                    .questions(Path::new("/nowhere"), false, None, 1, Upstream::V2_0_0)
                    .unwrap_err()
                    .to_string();
                assert!(said.starts_with(&format!("{}: {why}", task.name)), "{said}");
            }
        }
        assert!(Task::of("mmul").unwrap_err().to_string().contains("mmlu"));
    }
}
