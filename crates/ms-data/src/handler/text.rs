//! Texts: pretraining records as they are, or in a fixed frame; whole or sentence by sentence.

use super::align::{text, text_or_null};
use super::{Encoded, Handler, Row};
use crate::{Reason, Upstream};
use serde_json::{Map, Value};

type Record = Map<String, Value>;
type Result<T> = std::result::Result<T, Reason>;

/// What stands before an Alpaca record's instruction; the missing space before USER is part of the bytes.
const ALPACA_HEAD: &str = "A chat between a curious user and an artificial intelligence assistant. The assistant gives \
    helpful, detailed, and polite answers to the user's questions.USER: Below is an instruction that describes a task. \
    Write a response that appropriately completes the request.\n\n### Instruction:\n";

impl Handler {
    pub(super) fn pretrain(&self, record: &Record) -> Result<Encoded> {
        self.documents(self.columns.iter().map(|key| text(record, key)))
    }

    /// A document of each text, in a column of its own.
    pub(super) fn documents<'t>(&self, texts: impl Iterator<Item = Result<&'t str>>) -> Result<Encoded> {
        if self.options.sentences.is_some() {
            let columns = texts.map(|text| self.document(text?, true)).collect::<Result<_>>()?;
            return Ok(self.rows(columns));
        }
        let columns = texts.map(|text| match text? {
            "" => Ok(None),
            text => self.ended(self.framed(text)?, true).map(Some),
        });
        Ok(Encoded::Row(Row::new(columns.collect::<Result<_>>()?)))
    }

    /// Source: MindSpeed-LLM v2.0.0 `data_handler.py`, the Alpaca pretraining handler. Missing fields read `None`.
    pub(super) fn alpaca_pretrain(&self, record: &Record) -> Result<Encoded> {
        let field = |name: &str| Ok::<_, Reason>(text_or_null(record, name)?.unwrap_or("None"));
        let input = match text_or_null(record, "input")?.unwrap_or_default() {
            "" => "None".to_owned(),
            input => format!(" Input:\n{input}"),
        };
        let text = format!(
            "{ALPACA_HEAD}{}\n\n###{input}\n\n### Response: ASSISTANT: {}",
            field("instruction")?,
            field("output")?
        );
        Ok(self.rows(vec![self.document(&text, false)?]))
    }

    /// The text that upstream means: its own handler fails on every record.
    pub(super) fn stack_overflow(&self, record: &Record) -> Result<Encoded> {
        let text = format!(
            "In python, {}\n### Question:\n{}\n### Response:\n{}\n",
            text(record, "title")?,
            text(record, "question_body")?,
            text(record, "answer_body")?
        );
        Ok(self.rows(vec![self.document(&text, true)?]))
    }

    /// The texts of a conversation without anything between them. Source: MindSpeed-LLM head, `data_handler.py`; a text is
    /// a message's `value`, else its `content`.
    pub(super) fn sharegpt_pretrain(&self, record: &Record) -> Result<Encoded> {
        let mut columns = Vec::with_capacity(self.columns.len());
        for key in &self.columns {
            let messages = record.get(key).and_then(Value::as_array);
            let messages = messages.ok_or_else(|| format!("{key}: expected a list of messages"))?;
            let mut all = String::new();
            for (i, message) in messages.iter().enumerate() {
                let field = |name: &str| message.get(name).filter(|value| !value.is_null());
                let text = field("value").or_else(|| field("content")).and_then(Value::as_str);
                all.push_str(text.ok_or_else(|| {
                    format!("{key}: message {}: expected a text as value or content", i + 1)
                })?);
            }
            columns.push(self.document(&all, false)?);
        }
        Ok(self.rows(columns))
    }

    /// A document per column, of a sequence per sentence if texts are split. A column without as many sentences as another one
    /// begins in a later row, so that all columns end with the document.
    fn rows(&self, columns: Vec<Vec<Vec<i32>>>) -> Encoded {
        let Some(_) = self.options.sentences else {
            return Encoded::Row(Row::new(columns.into_iter().map(|mut all| all.pop()).collect()));
        };
        let count = columns.iter().map(Vec::len).max().unwrap_or_default().max(1);
        let mut rows: Vec<Row> =
            (0..count).map(|i| Row { columns: Vec::new(), continues: i + 1 < count }).collect();
        for column in columns {
            let missing = count - column.len();
            let sequences = std::iter::repeat_n(None, missing).chain(column.into_iter().map(Some));
            rows.iter_mut().zip(sequences).for_each(|(row, sequence)| row.columns.push(sequence));
        }
        Encoded::Rows(rows)
    }

    /// Sequences of a document; none for an empty text. `fills`: whether `--pad-to-multiple-of` acts, as upstream's handlers
    /// of conversations as texts ignore it.
    fn document(&self, text: &str, fills: bool) -> Result<Vec<Vec<i32>>> {
        let mut sequences = match &self.options.sentences {
            _ if text.is_empty() => Vec::new(),
            None => vec![self.framed(text)?],
            Some(splitter) => {
                let spans = splitter.spans(text).into_iter();
                spans.map(|span| self.framed(&text[span])).collect::<Result<_>>()?
            }
        };
        if let Some(ids) = sequences.pop() {
            sequences.push(self.ended(ids, fills)?);
        }
        Ok(sequences)
    }

    /// The last sequence of a document with what stands at its end.
    fn ended(&self, mut ids: Vec<i32>, fills: bool) -> Result<Vec<i32>> {
        if fills && self.options.upstream == Upstream::Head && self.options.pad_to_multiple_of > 1 {
            // A whole multiple is added even where the document is aligned already.
            let multiple = self.options.pad_to_multiple_of;
            let full = (ids.len() / multiple + 1) * multiple - usize::from(self.options.append_eod);
            ids.resize(full.max(ids.len()), self.tokenizer.vocab_size() as i32);
        }
        if self.options.append_eod {
            ids.push(self.eos()?);
        }
        Ok(ids)
    }
}
