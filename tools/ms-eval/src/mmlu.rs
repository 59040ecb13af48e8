//! MMLU: data, prompts, extraction of answers.
//!
//! # Source
//! MindSpeed-LLM v2.0.0, `mindspeed_llm/tasks/evaluation/eval_impl/mmlu_eval.py`.

use crate::pandas;
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
    /// The question and the options as pandas prints them.
    pub printed: [String; 5],
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

/// Endings of files with questions, in the order in which they are looked for (upstream takes all of them).
const ENDINGS: [&str; 4] = ["_test.csv", "_val.csv", "_dev.csv", ".csv"];

/// The subjects of a folder, in the order of their names. Files with questions are `SUBJECT_test.csv` in `dir` or in
/// `dir/test`, where there is none, `SUBJECT_val.csv`, `SUBJECT_dev.csv` or `SUBJECT.csv`; examples are `SUBJECT_dev.csv` in
/// the folder `dev` next to the questions' folder.
///
/// # Errors
/// If there is no file with questions, or a file cannot be read.
pub fn read(dir: &Path) -> Result<Vec<Subject>> {
    read_solved(dir, true)
}

/// The same, without the solved examples unless they are `wanted`.
fn read_solved(dir: &Path, wanted: bool) -> Result<Vec<Subject>> {
    let tests = if dir.join("test").is_dir() { dir.join("test") } else { dir.to_owned() };
    let dev = if tests == dir { dir.join("../dev") } else { dir.join("dev") };
    files_by_subject(&tests, &ENDINGS)?
        .into_iter()
        .map(|(name, path)| {
            let solved = dev.join(format!("{name}_dev.csv"));
            let examples = if wanted {
                read_questions(&solved).with_context(|| format!("the solved examples of {name}"))?
            } else {
                Vec::new()
            };
            let questions = read_questions(&path)?;
            ensure!(!questions.is_empty(), "{}: expected questions, found none", path.display());
            Ok(Subject { questions, examples, name })
        })
        .collect()
}

/// Subjects and files of a folder, by name: those with the first of `endings` that any file has, hidden ones excepted.
///
/// # Errors
/// If there is none.
pub(crate) fn files_by_subject(tests: &Path, endings: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    if tests.is_file() {
        bail!("{}: expected a folder, found a file", tests.display());
    }
    let entries = std::fs::read_dir(tests).with_context(|| tests.display().to_string())?;
    let paths: Vec<PathBuf> = entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    let ending_with = |ending: &&str| -> Vec<(String, PathBuf)> {
        let subject = |path: &PathBuf| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            let name = name.strip_suffix(ending).filter(|name| !name.starts_with('.'))?.to_owned();
            Some((name, path.clone()))
        };
        paths.iter().filter_map(subject).collect()
    };
    let found = endings.iter().map(ending_with).find(|files| !files.is_empty());
    let mut files = found
        .with_context(|| format!("{}: expected files SUBJECT{}, found none", tests.display(), endings[0]))?;
    files.sort();
    Ok(files)
}

/// The questions of a folder as they are asked: by MindSpeed-LLM's prompts, or by the harness' with `shots` solved examples;
/// at most `most` of each subject.
///
/// # Errors
/// As of [`read`], and if a subject has too few solved examples.
pub(crate) fn questions(dir: &Path, harness: bool, shots: usize, most: usize) -> Result<Vec<Question>> {
    let subjects = read_solved(dir, shots > 0)?;
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
                prompt: if harness { harness_prompt(subject, q, shots) } else { prompt(subject, q) },
                labels: &LETTERS,
                gold: LETTERS
                    .iter()
                    .position(|l| *l == q.answer)
                    .context("answers are checked when they are read")?,
                answer: if harness {
                    Answer::Likeliest { choices: LETTERS.map(str::to_owned).to_vec(), normalised: false }
                } else {
                    Answer::Extracted(extract)
                },
            });
        }
    }
    Ok(all)
}

/// A sixth question without options, with which upstream's examples of `nutrition` end.
const STRAY: &str =
    "\nWhich foods tend to be consumed in lower quantities in Wales and Scotland (as of 2020)?";

/// The answers.
pub(crate) const LETTERS: [&str; 4] = ["A", "B", "C", "D"];

/// Whether a row is a line of blanks, which pandas skips.
pub(crate) fn is_blank(row: &csv::StringRecord) -> bool {
    row.len() == 1 && row[0].trim_matches([' ', '\t']).is_empty()
}

fn read_questions(path: &Path) -> Result<Vec<Asked>> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_path(path)
        .with_context(|| path.display().to_string())?;
    let mut questions = Vec::new();
    for (row, record) in reader.records().enumerate() {
        let record = record.with_context(|| path.display().to_string())?;
        if is_blank(&record) {
            continue;
        }
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
        questions.push(Asked {
            text: cell(0),
            options: [cell(1), cell(2), cell(3), cell(4)],
            answer,
            printed: Default::default(),
        });
    }
    for column in 0..5 {
        let cell = |q: &Asked| if column == 0 { q.text.clone() } else { q.options[column - 1].clone() };
        let cells: Vec<String> = questions.iter().map(cell).collect();
        for (q, printed) in questions.iter_mut().zip(pandas::printed(&cells)) {
            q.printed[column] = printed;
        }
    }
    Ok(questions)
}

/// The question with its options, ending with `Answer:`, as MindSpeed-LLM prints it.
fn ask(q: &Asked) -> String {
    let [text, a, b, c, d] = &q.printed;
    format!("{text}\nA. {a}\nB. {b}\nC. {c}\nD. {d}\nAnswer:")
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

/// The prompt of MindSpeed-LLM: an introduction with two spaces after "about", solved examples without empty lines, the question.
///
/// # Source
/// The examples are those of `fewshot_template/mmlu_5shot_template.json`, which upstream takes instead of the dev files.
pub fn prompt(subject: &Subject, question: &Asked) -> String {
    let name = subject.name.replace('_', " ");
    let mut solved = String::new();
    for example in subject.examples.iter().take(SHOTS) {
        solved += &format!("\n{} {}", ask(example), example.answer);
    }
    while solved.contains("\n\n") {
        solved = solved.replace("\n\n", "\n");
    }
    if subject.name == "nutrition" {
        solved += STRAY;
    }
    format!(
        "The following are multiple choice questions (with answers) about  {name}.{solved}\n\n{}",
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
    let text = text.trim_start_matches(is_space);
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
    fn examples_are_those_of_upstreams_template() {
        let file = ms_testing::shared("data/eval/_fewshot/mmlu_5shot_template.json");
        let (Some(file), Some(dir)) = (file, ms_testing::shared("data/eval/mmlu")) else { return };
        let template: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        for subject in read(&dir).unwrap() {
            let q = &subject.questions[0];
            let want = format!("{}\n\n{}", template[&subject.name].as_str().unwrap(), ask(q));
            assert_eq!(prompt(&subject, q), want, "{}", subject.name);
        }
    }

    #[test]
    fn questions_may_be_those_of_val_or_dev() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, file) in [("dev", "x_dev.csv"), ("val", "x_val.csv"), ("plain", "x.csv")] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
            // Lines of blanks are no rows.
            std::fs::write(dir.path().join(folder).join(file), " \t\nq,1,2,3,4,B\n \n").unwrap();
            let subjects = read(&dir.path().join(folder)).unwrap();
            assert_eq!((subjects.len(), subjects[0].name.as_str()), (1, "x"));
            assert_eq!(subjects[0].questions.len(), 1);
        }
    }

    #[test]
    fn without_solved_examples_no_file_of_them_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x_test.csv"), "q,1,2,3,4,B\n").unwrap();
        assert_eq!(questions(dir.path(), true, 0, usize::MAX).unwrap().len(), 1);
        let message = format!("{:#}", questions(dir.path(), true, 1, usize::MAX).unwrap_err());
        assert!(message.contains("x_dev.csv"), "{message}");
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
