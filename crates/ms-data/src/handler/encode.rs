//! Conversations and texts as token rows, one function per family of handlers.

use super::align::{Aligned, text};
use super::{Encoded, Handler, Row};
use crate::sft::{IGNORED, shares};
use crate::{Error, Result as DataResult, Upstream};
use ms_text::Tokenizer;
use ms_text::template::{Message, Role, Template, Turn};
use serde_json::{Map, Value};

type Record = Map<String, Value>;
type Result<T> = std::result::Result<T, String>;

/// Upstream's head cuts conversations to this many tokens when no length is given.
const HEAD_CUTOFF: usize = 100_000;
/// Upstream v2.0.0 cuts here, which no conversation reaches.
const V2_CUTOFF: usize = 1_000_000;

/// The frame of old-style instruction records; part of the bytes.
const GENERAL_SYSTEM: &str = "Below is an instruction that describes a task, paired with an input that provides further \
    context. Write a response that appropriately completes the request. Please note that you need to think through your \
    response logically and step by step.";

/// Ids that process-reward records are made of.
pub(super) struct Reward {
    placeholder: i32,
    labels: Vec<(String, i32)>,
}

impl Reward {
    pub(super) fn new(tokenizer: &Tokenizer, placeholder: &str, labels: &[String]) -> DataResult<Self> {
        let single = |token: &str| match tokenizer.encode(token)?.as_slice() {
            [id] => Ok(*id as i32),
            ids => {
                Err(Error::options(format!("{token:?} must be one token, but it encodes to {}", ids.len())))
            }
        };
        if labels.is_empty() {
            return Err(Error::options(
                "process-reward records need their judgements\nhint: pass --reward-tokens + -",
            ));
        }
        Ok(Self {
            placeholder: single(placeholder)?,
            labels: labels
                .iter()
                .map(|label| Ok((label.clone(), single(label)?)))
                .collect::<DataResult<_>>()?,
        })
    }
}

impl Handler {
    pub(super) fn pretrain(&self, record: &Record) -> Result<Row> {
        let mut columns = Vec::with_capacity(self.columns.len());
        for key in &self.columns {
            let text = text(record, key)?;
            if text.is_empty() {
                columns.push(None);
                continue;
            }
            let mut ids = signed(&self.tokenizer.encode_with_special(text).map_err(|e| e.to_string())?);
            if self.options.upstream == Upstream::Head && self.options.pad_to_multiple_of > 1 {
                // A whole multiple is added even where the document is aligned already.
                let multiple = self.options.pad_to_multiple_of;
                let full = (ids.len() / multiple + 1) * multiple - usize::from(self.options.append_eod);
                ids.resize(full.max(ids.len()), self.tokenizer.vocab_size() as i32);
            }
            if self.options.append_eod {
                ids.push(self.eos()?);
            }
            columns.push(Some(ids));
        }
        Ok(Row { columns })
    }

    pub(super) fn general_instruction(&self, record: &Record) -> Result<Row> {
        let mark = "### Response:";
        let full = format!(
            "\n{GENERAL_SYSTEM}\n### Instruction:\n{}\n{}\n{mark}\n{}\n",
            text(record, "instruction")?,
            text(record, "input")?,
            text(record, "output")?
        );
        let answer = full.rfind(mark).map_or(full.len(), |at| at + mark.len());
        let prompt = format!("{}\n", &full[..answer]);
        let encode = |text: &str| self.tokenizer.encode_with_special(text).map_err(|e| e.to_string());
        let mut ids = signed(&encode(&full)?);
        // The number of prompt tokens counts, not the tokens themselves.
        let masked = encode(&prompt)?.len().min(ids.len());
        let mut labels = vec![IGNORED; masked];
        labels.extend_from_slice(&ids[masked..]);
        if self.options.append_eod {
            ids.push(self.eos()?);
            labels.push(self.eos()?);
        }
        Ok(three_columns(ids, labels))
    }

    pub(super) fn instruction(&self, aligned: &Aligned) -> Result<Encoded> {
        let (turns, replaced) = self.turns(aligned)?;
        let template = self.template()?;
        let eos = self.eos()?;
        let neat_cut = (self.options.upstream == Upstream::Head && self.options.neat_pack)
            .then(|| self.options.seq_length.unwrap_or(HEAD_CUTOFF).saturating_sub(1));
        let (mut ids, mut labels) = (Vec::new(), Vec::new());
        for (k, turn) in turns.iter().enumerate() {
            let (mut source, mut target) = (turn.source.as_slice(), turn.target.as_slice());
            if let Some(room) = neat_cut {
                let (s, t) = shares(source.len(), target.len(), room);
                (source, target) = (&source[..s], &target[..t]);
            }
            ids.extend(source.iter().chain(target).map(|&id| id as i32));
            let start = labels.len();
            labels.resize(start + source.len(), IGNORED);
            if template.efficient_eos && k > 0 && !source.is_empty() {
                labels[start] = eos;
            }
            labels.extend(target.iter().map(|&id| id as i32));
        }
        let ends = usize::from(template.efficient_eos) + usize::from(self.options.append_eod);
        for _ in 0..ends {
            ids.push(eos);
            labels.push(eos);
        }
        Ok(wrap(three_columns(ids, labels), replaced))
    }

    pub(super) fn pairwise(&self, aligned: &Aligned) -> Result<Encoded> {
        let valid = aligned.prompt.len() % 2 == 1 && aligned.response.len() == 2;
        let template = self.template()?;
        let encode = |answer: usize| -> Result<(Vec<i32>, Vec<i32>)> {
            let messages = if valid {
                let mut messages = aligned.prompt.clone();
                messages.push(aligned.response[answer].clone());
                messages
            } else {
                empty_conversation()
            };
            let turns = self.encode_turns(&messages, aligned, V2_CUTOFF)?;
            let (last, earlier) = turns.split_last().ok_or("the conversation has no turn")?;
            let mut prompt: Vec<i32> = Vec::new();
            for turn in earlier {
                prompt.extend(turn.source.iter().chain(&turn.target).map(|&id| id as i32));
            }
            prompt.extend(last.source.iter().map(|&id| id as i32));
            let mut answer = signed(&last.target);
            if template.efficient_eos {
                answer.push(self.eos()?);
            }
            Ok((prompt, answer))
        };
        let ((prompt, chosen), (_, rejected)) = (encode(0)?, encode(1)?);
        let row = |answer: &[i32]| {
            let mut labels = vec![IGNORED; prompt.len()];
            labels.extend_from_slice(answer);
            (Some([prompt.as_slice(), answer].concat()), Some(labels))
        };
        let ((ids, labels), (other_ids, other_labels)) = (row(&chosen), row(&rejected));
        Ok(wrap(Row { columns: vec![ids, labels, other_ids, other_labels] }, !valid))
    }

    pub(super) fn prompts(&self, aligned: &Aligned) -> Result<Encoded> {
        let (turns, replaced) = self.turns(aligned)?;
        let ids: Vec<i32> = turns.iter().flat_map(|turn| turn.source.iter().map(|&id| id as i32)).collect();
        let mask = vec![1; ids.len()];
        Ok(wrap(Row { columns: vec![Some(ids), Some(mask)] }, replaced))
    }

    pub(super) fn r1(&self, aligned: &Aligned, record: &Record) -> Result<Encoded> {
        let (turns, replaced) = self.turns(aligned)?;
        let mut ids: Vec<i32> = Vec::new();
        for (k, turn) in turns.iter().enumerate() {
            ids.extend(turn.source.iter().map(|&id| id as i32));
            if k + 1 < turns.len() {
                ids.extend(turn.target.iter().map(|&id| id as i32));
            }
        }
        let mut columns = vec![None, Some(vec![1; ids.len()])];
        columns[0] = Some(ids);
        for key in &self.options.additional_keys {
            let text = if key == "labels" {
                aligned.response.last().map(|message| message.content.as_str()).unwrap_or_default()
            } else {
                text(record, key)?
            };
            columns.push(Some(signed(&self.tokenizer.encode(text).map_err(|e| e.to_string())?)));
        }
        Ok(wrap(Row { columns }, replaced))
    }

    pub(super) fn process_reward(&self, record: &Record) -> Result<Row> {
        let reward = self.reward.as_ref().ok_or("the handler has no reward tokens")?;
        let ids = signed(&self.tokenizer.encode(text(record, "input")?).map_err(|e| e.to_string())?);
        let values =
            record.get("value").and_then(Value::as_array).ok_or("value: expected a list of judgements")?;
        let mut values = values.iter();
        let mut labels = vec![IGNORED; ids.len()];
        for (label, _) in labels.iter_mut().zip(&ids).filter(|(_, id)| **id == reward.placeholder) {
            let value = values.next().ok_or("value: fewer judgements than placeholders in the input")?;
            let known = reward.labels.iter().find(|(text, _)| value == text.as_str());
            *label = known.ok_or_else(|| format!("value: {value} is not among the reward tokens"))?.1;
        }
        let mask = vec![1; ids.len()];
        Ok(Row { columns: vec![Some(ids), Some(labels), Some(mask)] })
    }

    /// The turns of a conversation, and whether an empty one stands in its place.
    fn turns(&self, aligned: &Aligned) -> Result<(Vec<Turn>, bool)> {
        let valid = aligned.prompt.len() % 2 == 1 && aligned.response.len() == 1;
        let messages = if valid {
            aligned.prompt.iter().chain(&aligned.response).cloned().collect()
        } else {
            empty_conversation()
        };
        let cutoff = match self.options.upstream {
            Upstream::V2_0_0 => V2_CUTOFF,
            Upstream::Head => self.options.seq_length.unwrap_or(HEAD_CUTOFF),
        };
        Ok((self.encode_turns(&messages, aligned, cutoff)?, !valid))
    }

    fn encode_turns(&self, messages: &[Message], aligned: &Aligned, cutoff: usize) -> Result<Vec<Turn>> {
        self.template()?
            .encode(&self.tokenizer, messages, &aligned.system, &aligned.tools, cutoff)
            .map_err(|e| e.to_string())
    }

    fn template(&self) -> Result<&Template> {
        self.template.as_ref().ok_or_else(|| "the handler has no prompt template".to_owned())
    }

    fn eos(&self) -> Result<i32> {
        self.tokenizer.eod().map(|id| id as i32).map_err(|e| e.to_string())
    }
}

fn empty_conversation() -> Vec<Message> {
    vec![Message::new(Role::User, ""), Message::new(Role::Assistant, "")]
}

fn three_columns(ids: Vec<i32>, labels: Vec<i32>) -> Row {
    let mask = vec![1; ids.len()];
    Row { columns: vec![Some(ids), Some(mask), Some(labels)] }
}

fn wrap(row: Row, replaced: bool) -> Encoded {
    if replaced { Encoded::Replaced(row) } else { Encoded::Row(row) }
}

/// Ids are below 2^31: vocabularies are.
fn signed(ids: &[u32]) -> Vec<i32> {
    ids.iter().map(|&id| id as i32).collect()
}
