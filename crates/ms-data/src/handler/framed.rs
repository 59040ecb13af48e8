//! Old-style instruction records: turns in a fixed English frame, tokenized as one text.
//!
//! Source: MindSpeed-LLM v2.0.0 `mindspeed_llm/tasks/preprocess/{data_handler,utils}.py`.

use super::align::text;
use super::{Handler, Row, three_columns};
use crate::Reason;
use crate::sft::IGNORED;
use serde_json::{Map, Value};

type Record = Map<String, Value>;
type Result<T> = std::result::Result<T, Reason>;

/// The frame of old-style instruction records; part of the bytes.
const SYSTEM: &str = "Below is an instruction that describes a task, paired with an input that provides further \
    context. Write a response that appropriately completes the request. Please note that you need to think through your \
    response logically and step by step.";
const USER_MARK: &str = "### Instruction:";
const ASSISTANT_MARK: &str = "### Response:";
/// Baichuan's role tokens, which upstream puts in whatever the tokenizer is.
const BAICHUAN_USER: i32 = 195;
const BAICHUAN_ASSISTANT: i32 = 196;

/// A turn: whether the user speaks, and the text.
type Said = (bool, String);

impl Handler {
    pub(super) fn general_instruction(&self, record: &Record) -> Result<Row> {
        let question = format!("{}\n{}", text(record, "instruction")?, text(record, "input")?);
        self.framed_turns(&[(true, question), (false, text(record, "output")?.to_owned())], true)
    }

    /// `Human:` and `Assistant:` divide one text into turns; the last turn is replaced by the output.
    pub(super) fn belle(&self, record: &Record) -> Result<Row> {
        let mut turns: Vec<Said> = Vec::new();
        for part in text(record, "instruction")?.split("Human:").filter(|part| !part.is_empty()) {
            let mut sides = part.split("Assistant:");
            let first = strip(sides.next().unwrap_or_default()).to_owned();
            match sides.next() {
                Some(second) => turns.extend([(true, first), (false, strip(second).to_owned())]),
                None => turns.push((false, first)),
            }
        }
        if turns.pop().is_none() {
            return Err("instruction: expected turns marked Human: and Assistant:".into());
        }
        turns.push((false, strip(text(record, "output")?).to_owned()));
        self.framed_turns(&turns, true)
    }

    pub(super) fn leetcode(&self, record: &Record) -> Result<Row> {
        let problem = text(record, "code_with_problem")?.split("```").next().unwrap_or_default();
        let answer = format!("{}\n{}", text(record, "code_only")?, text(record, "explanation_only")?);
        self.framed_turns(&[(true, strip(problem).to_owned()), (false, answer)], true)
    }

    /// A sequence for every turn and all before it; no end of document is appended.
    pub(super) fn moss(&self, record: &Record) -> Result<Vec<Row>> {
        let mut turns: Vec<Said> = Vec::new();
        let mut rows = Vec::new();
        for (human, moss) in moss_turns(record)? {
            turns.extend([(true, human), (false, moss)]);
            rows.push(Row { continues: true, ..self.framed_turns(&turns, false)? });
        }
        if let Some(last) = rows.last_mut() {
            last.continues = false;
        }
        Ok(rows)
    }

    /// One sequence with role tokens; the end of sequence stands in the labels where each turn begins.
    pub(super) fn moss_multi_turn(&self, record: &Record) -> Result<Row> {
        let eos = self.eos()?;
        let (mut ids, mut labels) = (Vec::new(), Vec::new());
        for (human, moss) in moss_turns(record)? {
            let (human, moss) = (self.framed(&human)?, self.framed(&moss)?);
            labels.push(eos);
            labels.resize(labels.len() + human.len() + 1, IGNORED);
            labels.extend_from_slice(&moss);
            ids.push(BAICHUAN_USER);
            ids.extend(human);
            ids.push(BAICHUAN_ASSISTANT);
            ids.extend(moss);
        }
        ids.push(eos);
        labels.push(eos);
        Ok(three_columns(ids, labels))
    }

    /// Turns as one text. What comes before the last answer is masked: its number of tokens counts, not the tokens.
    fn framed_turns(&self, turns: &[Said], may_end: bool) -> Result<Row> {
        let mut full = format!("\n{SYSTEM}\n");
        for (user, said) in turns {
            full.push_str(if *user { USER_MARK } else { ASSISTANT_MARK });
            full.push('\n');
            full.push_str(said);
            full.push('\n');
        }
        let answer = full.rfind(ASSISTANT_MARK).map_or(full.len(), |at| at + ASSISTANT_MARK.len());
        let prompt = format!("{}\n", &full[..answer]);
        let mut ids = self.framed(&full)?;
        let masked = self.framed(&prompt)?.len().min(ids.len());
        let mut labels = vec![IGNORED; masked];
        labels.extend_from_slice(&ids[masked..]);
        if may_end && self.options.append_eod {
            ids.push(self.eos()?);
            labels.push(self.eos()?);
        }
        Ok(three_columns(ids, labels))
    }
}

/// Turns of a MOSS record: an object of objects with `Human` and `MOSS`, whose marks are taken out.
fn moss_turns(record: &Record) -> Result<Vec<(String, String)>> {
    let chat = record.get("chat").and_then(Value::as_object).ok_or("chat: expected an object of turns")?;
    let mut turns = Vec::new();
    for (name, turn) in chat {
        let turn = match turn {
            Value::Null => continue,
            Value::Object(turn) if turn.is_empty() => continue,
            Value::Object(turn) => turn,
            _ => return Err(format!("chat.{name}: expected an object").into()),
        };
        let side = |key: &str, marks: [&str; 2]| {
            let said = text(turn, key).map_err(|e| e.within(&format!("chat.{name}")))?;
            let said = marks.iter().fold(said.to_owned(), |said, mark| said.replace(mark, ""));
            Ok::<_, Reason>(strip(&said).to_owned())
        };
        turns.push((side("Human", ["<eoh>", "<|Human|>: "])?, side("MOSS", ["<|MOSS|>:", "<eom>"])?));
    }
    Ok(turns)
}

/// Python's `strip`: white space, and the four separators that Unicode does not count as such.
fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
}
