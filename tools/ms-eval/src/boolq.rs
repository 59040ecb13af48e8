//! `BoolQ`: a passage, a question about it, yes or no.
//!
//! # Source
//! MindSpeed-LLM v2.0.0, `mindspeed_llm/tasks/evaluation/eval_impl/boolq_eval.py`; lm-evaluation-harness 0.4.13, task
//! `boolq`. Both use the same prompt, and extract the answer in different ways.

use crate::jsonl::{self, kind};
use crate::question::{Answer, Question};
use anyhow::{Context, Result};
use ms_cli::megatron::Upstream;
use std::path::Path;

/// By whom it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// lm-evaluation-harness.
    Harness,
    /// This version of MindSpeed-LLM: v2.0.0 reads every file of the folder, newer ones those with `dev` in their names.
    Upstream(Upstream),
}

/// The questions of a folder of `.jsonl` files (`passage`, `question`, `answer`), at most `most` of each file.
///
/// # Errors
/// If there is no such file, or a row lacks a field.
pub(crate) fn read(dir: &Path, asked: Asked, most: usize) -> Result<Vec<Question>> {
    let harness = asked == Asked::Harness;
    let every = asked == Asked::Upstream(Upstream::V2_0_0);
    let rows = jsonl::read(dir, "dev", every, most)?;
    rows.iter()
        .enumerate()
        .map(|(number, (place, row))| {
            let passage = jsonl::text(row, "passage", place)?;
            let question = jsonl::text(row, "question", place)?;
            let gold = &row["answer"];
            let gold = gold.as_bool().with_context(|| {
                format!("{place}: expected true or false under \"answer\", found {}", kind(gold))
            })?;
            let choices = || vec!["no".to_owned(), "yes".to_owned()];
            Ok(Question {
                subject: "boolq".to_owned(),
                id: format!("boolq/{number}"),
                prompt: format!("{passage}\nQuestion: {question}?\nAnswer:"),
                labels: if harness { &["no", "yes"] } else { &["F", "T"] },
                gold: usize::from(gold),
                answer: if harness {
                    Answer::Likeliest { choices: choices(), normalised: false }
                } else {
                    Answer::YesOrNo
                },
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_first_version_reads_every_file_and_others_the_dev_files() {
        let dir = tempfile::tempdir().unwrap();
        let row = r#"{"passage": "p", "question": "q", "answer": true}"#;
        std::fs::write(dir.path().join("dev.jsonl"), row).unwrap();
        std::fs::write(dir.path().join("train.jsonl"), format!("{row}\n{row}\n")).unwrap();
        let count = |asked| read(dir.path(), asked, usize::MAX).unwrap().len();
        assert_eq!(count(Asked::Upstream(Upstream::V2_0_0)), 3);
        assert_eq!(count(Asked::Upstream(Upstream::Head)), 1);
        assert_eq!(count(Asked::Harness), 1);
        // So many of each file, as upstream has it.
        assert_eq!(read(dir.path(), Asked::Upstream(Upstream::V2_0_0), 1).unwrap().len(), 2);
    }

    #[test]
    fn prompts_are_upstreams() {
        let (Some(cases), Some(dir)) =
            (ms_testing::shared("data/eval/_golden/prompts.jsonl"), ms_testing::shared("data/eval/boolq"))
        else {
            return;
        };
        let questions = read(&dir, Asked::Upstream(Upstream::V2_0_0), usize::MAX).unwrap();
        assert_eq!(questions.len(), 3_270);
        let mut seen = 0;
        for line in std::fs::read_to_string(cases).unwrap().lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            if case["task"] == "boolq" && case["mode"] == "default" {
                let q = &questions[case["id"].as_str().unwrap().parse::<usize>().unwrap()];
                assert_eq!(Some(q.prompt.as_str()), case["prompt"].as_str());
                assert_eq!(Some(q.labels[q.gold]), case["gold"].as_str());
                seen += 1;
            }
        }
        assert!(seen > 1);
    }
}
