//! `HellaSwag`: choose the ending of a text, from four endings, one written by a human.
//!
//! # Source
//! lm-evaluation-harness 0.4.13, `lm_eval/tasks/hellaswag/utils.py`.

use crate::jsonl::{self, kind};
use crate::question::{Answer, Question};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;

/// The questions of a folder of `.jsonl` files: rows as they are published (`activity_label`, `ctx_a`, `ctx_b`, `endings`,
/// `label`), or prepared already (`query`, `choices`, `gold`); at most `most` of each file.
///
/// # Errors
/// If there is no such file, or a row is neither.
pub(crate) fn read(dir: &Path, most: usize) -> Result<Vec<Question>> {
    let rows = jsonl::read(dir, "val", false, most)?;
    let questions = rows.iter().enumerate().map(|(number, (place, row))| {
        let (prompt, choices, gold) = if row.get("query").is_some() {
            (
                jsonl::text(row, "query", place)?.to_owned(),
                texts(row, "choices", place)?,
                index(row, "gold", place)?,
            )
        } else {
            let part = |key| jsonl::text(row, key, place);
            let context = format!("{} {}", part("ctx_a")?, ms_text::python_case::capitalize(part("ctx_b")?));
            let endings = texts(row, "endings", place)?;
            let prompt = clean(&format!("{}: {context}", part("activity_label")?));
            (prompt, endings.iter().map(|e| clean(e)).collect(), index(row, "label", place)?)
        };
        ensure!(choices.len() == 4, "{place}: expected four endings, found {}", choices.len());
        ensure!(gold < 4, "{place}: expected a right ending from 0 to 3, found {gold}");
        Ok(Question {
            subject: "hellaswag".to_owned(),
            id: format!("hellaswag/{number}"),
            prompt,
            labels: &["0", "1", "2", "3"],
            gold,
            answer: Answer::Likeliest { choices, normalised: true },
        })
    });
    questions.collect()
}

fn texts(row: &Value, key: &str, place: &str) -> Result<Vec<String>> {
    let all = row[key].as_array().and_then(|a| a.iter().map(|v| v.as_str().map(str::to_owned)).collect());
    all.with_context(|| format!("{place}: expected a list of texts under {key:?}, found {}", kind(&row[key])))
}

/// A number, or its digits as text: both are in use.
fn index(row: &Value, key: &str, place: &str) -> Result<usize> {
    let value = &row[key];
    let number = value.as_u64().or_else(|| value.as_str().and_then(|t| t.trim().parse().ok()));
    let number = number.and_then(|n| usize::try_from(n).ok());
    number.with_context(|| {
        format!("{place}: expected the number of the right ending under {key:?}, found {value}")
    })
}

/// Leaves out the marks that texts from how-to pages have: ` [title]` ends a sentence, other brackets go with what they
/// hold (within a line), and two spaces become one.
fn clean(text: &str) -> String {
    let text = crate::mmlu::strip(text).replace(" [title]", ". ");
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(open) = rest.find('[') {
        let (before, bracket) = rest.split_at(open);
        kept.push_str(before);
        let line = bracket.find('\n').unwrap_or(bracket.len());
        rest = match bracket[..line].find(']') {
            Some(close) => &bracket[close + 1..],
            None => {
                kept.push('[');
                &bracket[1..]
            }
        };
    }
    kept.push_str(rest);
    kept.replace("  ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_rows_are_prepared_as_the_harness_does() {
        let dir = tempfile::tempdir().unwrap();
        let row = serde_json::json!({
            "activity_label": "Baking bread", "ctx_a": "A man [header] stands.  [title] Knead", "ctx_b": "he Then",
            "endings": [" kneads it. ", "[step] sleeps", "a [b", "c] d"], "label": "1",
        });
        // A byte order mark and line ends of Windows, as its programs write them.
        std::fs::write(dir.path().join("val.jsonl"), format!("\u{feff}{row}\r\n\r\n")).unwrap();
        std::fs::write(dir.path().join("train.jsonl"), "no json\n").unwrap();
        std::fs::write(dir.path().join("._val.jsonl"), "no json\n").unwrap();
        let questions = read(dir.path(), usize::MAX).unwrap();
        // Computed with the harness' own function.
        assert_eq!(questions[0].prompt, "Baking bread: A man stands. . Knead He then");
        let Answer::Likeliest { choices, normalised: true } = &questions[0].answer else { panic!() };
        assert_eq!(choices[..], ["kneads it.", " sleeps", "a [b", "c] d"]);
        assert_eq!((questions.len(), questions[0].gold), (1, 1));
    }

    #[test]
    fn a_row_of_another_kind_is_refused_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        for (row, says) in [
            (r#"{"query":"q","choices":["a","b"],"gold":0}"#, "four endings"),
            (r#"{"query":"q","choices":["a","b","c","d"],"gold":4}"#, "from 0 to 3"),
            (r#"{"query":"q","choices":"abcd","gold":0}"#, "\"choices\""),
            (r#"{"question":"q"}"#, "\"ctx_a\""),
        ] {
            std::fs::write(dir.path().join("x.jsonl"), format!("\n{row}\n")).unwrap();
            let message = format!("{:#}", read(dir.path(), usize::MAX).unwrap_err());
            assert!(message.contains("x.jsonl: line 2") && message.contains(says), "{message}");
        }
    }
}
