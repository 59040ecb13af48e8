//! MMLU: data, prompts, extraction of answers.
//!
//! # Source
//! MindSpeed-LLM v2.0.0, `mindspeed_llm/tasks/evaluation/eval_impl/mmlu_eval.py`.

use crate::question::{Answer, Question};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};

/// One question of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The question.
    pub text: String,
    /// Options A to D.
    pub options: [String; 4],
    /// The right one: `A`, `B`, `C` or `D`.
    pub answer: String,
}

/// The questions of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Name of the file without its ending: `abstract_algebra`.
    pub name: String,
    /// Solved examples, from the dev file.
    pub examples: Vec<Asked>,
    /// The questions to ask.
    pub questions: Vec<Asked>,
}

/// Solved examples in a prompt, unless told otherwise.
pub const SHOTS: usize = 5;

/// The subjects of a folder, in the order of their names. Test files are `SUBJECT_test.csv` in `dir` or in `dir/test`;
/// examples are `SUBJECT_dev.csv` in the folder `dev` beside the test files' folder.
///
/// # Errors
/// If there is no test file, or a file cannot be read.
pub fn read(dir: &Path) -> Result<Vec<Subject>> {
    let tests = if dir.join("test").is_dir() { dir.join("test") } else { dir.to_owned() };
    let dev = tests.join("../dev");
    let entries = std::fs::read_dir(&tests).with_context(|| tests.display().to_string())?;
    let mut files: Vec<(String, PathBuf)> = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(subject) = name.strip_suffix("_test.csv") {
            files.push((subject.to_owned(), path));
        }
    }
    ensure!(!files.is_empty(), "{}: expected files SUBJECT_test.csv, found none", tests.display());
    files.sort();
    files
        .into_iter()
        .map(|(name, path)| {
            let examples = dev.join(format!("{name}_dev.csv"));
            let examples = read_questions(&examples)
                .with_context(|| format!("the solved examples of {name}: expected {}", examples.display()))?;
            let questions = read_questions(&path)?;
            ensure!(!questions.is_empty(), "{}: expected questions, found none", path.display());
            Ok(Subject { questions, examples, name })
        })
        .collect()
}

/// The questions of a folder as they are asked: by MindSpeed-LLM's prompts, or by the harness' with `shots` solved examples;
/// at most `most` of each subject.
///
/// # Errors
/// As of [`read`], and if a subject has too few solved examples.
pub(crate) fn questions(dir: &Path, harness: bool, shots: usize, most: usize) -> Result<Vec<Question>> {
    let subjects = read(dir)?;
    if let Some(subject) = subjects.iter().find(|s| s.examples.len() < shots) {
        let (name, has) = (&subject.name, subject.examples.len());
        bail!(
            "{}: {name}: expected {shots} solved examples, found {has}\nhint: lower --num-fewshot",
            dir.display()
        );
    }
    let mut all = Vec::new();
    for subject in &subjects {
        for (number, q) in subject.questions.iter().take(most).enumerate() {
            all.push(Question {
                subject: subject.name.clone(),
                id: format!("{}/{number}", subject.name),
                prompt: match harness {
                    true => harness_prompt(subject, q, shots),
                    false => prompt(subject, q),
                },
                labels: &LETTERS,
                gold: LETTERS
                    .iter()
                    .position(|l| *l == q.answer)
                    .context("answers are checked when they are read")?,
                answer: match harness {
                    true => {
                        Answer::Likeliest { choices: LETTERS.map(str::to_owned).to_vec(), normalised: false }
                    }
                    false => Answer::Extracted(extract),
                },
            });
        }
    }
    Ok(all)
}

/// The answers.
pub(crate) const LETTERS: [&str; 4] = ["A", "B", "C", "D"];

/// Cells that upstream's reader takes for missing and prints as `nan`.
const MISSING: [&str; 19] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
    "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
];

fn read_questions(path: &Path) -> Result<Vec<Asked>> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_path(path)
        .with_context(|| path.display().to_string())?;
    let mut questions = Vec::new();
    for (row, record) in reader.records().enumerate() {
        let record = record.with_context(|| path.display().to_string())?;
        ensure!(
            record.len() == 6,
            "{}: row {}: expected question,A,B,C,D,answer, found {} cells",
            path.display(),
            row + 1,
            record.len()
        );
        let cell = |i: usize| record[i].to_owned();
        let answer = record[5].trim().to_owned();
        ensure!(
            LETTERS.contains(&answer.as_str()),
            "{}: row {}: expected an answer from A to D, found {answer:?}",
            path.display(),
            row + 1
        );
        questions.push(Asked { text: cell(0), options: [cell(1), cell(2), cell(3), cell(4)], answer });
    }
    Ok(questions)
}

/// The question with its options, ending with `Answer:`, as MindSpeed-LLM prints it.
fn ask(q: &Asked) -> String {
    let cell = |text: &String| if MISSING.contains(&text.as_str()) { "nan".to_owned() } else { text.clone() };
    let [a, b, c, d] = q.options.each_ref().map(cell);
    format!("{}\nA. {a}\nB. {b}\nC. {c}\nD. {d}\nAnswer:", cell(&q.text))
}

/// The same as lm-evaluation-harness prints it: without white space around the question, options as they are.
fn ask_harness(q: &Asked) -> String {
    let [a, b, c, d] = &q.options;
    format!("{}\nA. {a}\nB. {b}\nC. {c}\nD. {d}\nAnswer:", strip(&q.text))
}

/// What Python takes for white space: also the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Python's `str.strip`.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Python's `str.rstrip`.
pub(crate) fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// The prompt of MindSpeed-LLM: an introduction with two spaces after "about", solved examples, the question.
pub fn prompt(subject: &Subject, question: &Asked) -> String {
    let name = subject.name.replace('_', " ");
    let solved: Vec<String> =
        subject.examples.iter().take(SHOTS).map(|e| format!("{} {}", ask(e), e.answer)).collect();
    format!(
        "The following are multiple choice questions (with answers) about  {name}.\n{}\n\n{}",
        solved.join("\n"),
        ask(question)
    )
}

/// The prompt of lm-evaluation-harness' `mmlu` with the first `shots` examples; the choices are ` A` to ` D`.
pub fn harness_prompt(subject: &Subject, question: &Asked, shots: usize) -> String {
    let name = subject.name.replace('_', " ");
    let examples = subject.examples.iter().take(shots);
    let solved: String = examples.map(|e| format!("{} {}\n\n", ask_harness(e), e.answer)).collect();
    format!(
        "The following are multiple choice questions (with answers) about {name}.\n\n{solved}{}",
        ask_harness(question)
    )
}

/// The answer in a generated text: the last `X.` of the first line with X among `A|BCD`, else such a character at the
/// start. (Upstream's character class holds `|`, so it can be an answer, always a wrong one.)
pub fn extract(text: &str) -> Option<char> {
    let text = text.trim_start();
    let first_line: Vec<char> = text.lines().next().unwrap_or("").chars().collect();
    let legal = |c: char| matches!(c, 'A' | '|' | 'B' | 'C' | 'D');
    let dotted = first_line.windows(2).rev().find(|w| legal(w[0]) && w[1] == '.').map(|w| w[0]);
    dotted.or_else(|| text.chars().next().filter(|&c| legal(c)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn golden(file: &str) -> Option<Vec<Value>> {
        let path = ms_testing::shared(&format!("data/eval/_golden/{file}"))?;
        let text = std::fs::read_to_string(path).unwrap();
        Some(
            text.lines()
                .map(|l| serde_json::from_str(l).unwrap())
                .filter(|v: &Value| v["task"] == "mmlu" && v["mode"] == "default")
                .collect(),
        )
    }

    #[test]
    fn prompts_are_upstreams() {
        let (Some(cases), Some(dir)) = (golden("prompts.jsonl"), ms_testing::shared("data/eval/mmlu/test"))
        else {
            return;
        };
        let subjects = read(&dir).unwrap();
        assert_eq!(subjects.len(), 57);
        assert_eq!(subjects.iter().map(|s| s.questions.len()).sum::<usize>(), 14_042);
        assert!(!cases.is_empty());
        for case in cases {
            let (name, row) = case["id"].as_str().unwrap().split_once('/').unwrap();
            let subject = subjects.iter().find(|s| s.name == name).unwrap();
            let question = &subject.questions[row.parse::<usize>().unwrap()];
            assert_eq!(prompt(subject, question), case["prompt"].as_str().unwrap(), "{}", case["id"]);
            assert_eq!(question.answer, case["gold"].as_str().unwrap());
        }
    }

    #[test]
    fn answers_are_extracted_as_upstream_does() {
        let Some(cases) = golden("extract.jsonl") else { return };
        assert!(cases.len() > 5);
        for case in cases {
            let got = extract(case["text"].as_str().unwrap()).map(String::from);
            assert_eq!(got.as_deref(), case["expected"].as_str(), "{}", case["text"]);
        }
    }

    #[test]
    fn a_file_with_a_wrong_row_is_refused_with_its_number() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, file) in [("dev", "x_dev.csv"), ("test", "x_test.csv")] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
            std::fs::write(dir.path().join(folder).join(file), "q,1,2,3,4,B\nq,1,2,3,4,E\n").unwrap();
        }
        let message = format!("{:#}", read(dir.path()).unwrap_err());
        assert!(message.contains("row 2") && message.contains("\"E\""), "{message}");
    }
}
