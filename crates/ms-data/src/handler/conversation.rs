//! Conversations as token rows, one function per family of handlers.

use super::align::text;
use super::alignment::Aligned;
use super::{Encoded, Handler, Row, signed, three_columns};
use crate::sft::IGNORED;
use crate::{Error, Reason, Result as DataResult, Upstream};
use ms_text::template::{Message, Role, Turn, shares};
use ms_text::{ChatTemplate, GenerationPrompt, Tokenizer};
use serde_json::{Map, Value, json};

type Record = Map<String, Value>;
type Result<T> = std::result::Result<T, Reason>;

/// Upstream's head cuts conversations to this many tokens when no length is given.
const HEAD_CUTOFF: usize = 100_000;
/// Upstream v2.0.0 cuts here, which no conversation reaches.
const V2_CUTOFF: usize = 1_000_000;

/// What Hunyuan's records need: the tokenizer's chat template, and the tokens between which answers stand.
pub(super) struct Spans {
    template: ChatTemplate,
    begin: i32,
    end: i32,
}

impl Spans {
    pub(super) fn new(tokenizer: &Tokenizer) -> DataResult<Self> {
        let id = |token: &str| {
            let id = tokenizer.token_to_id(token).map(|id| id as i32);
            id.ok_or_else(|| {
                Error::options(format!("hunyuan records need the token {token}, which the tokenizer lacks"))
            })
        };
        Ok(Self { template: tokenizer.chat_template()?, begin: id("<|extra_0|>")?, end: id("<|eos|>")? })
    }
}

impl Handler {
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
            let turn = template
                .encode_answer(&self.tokenizer, &messages, &aligned.system, &aligned.tools)
                .map_err(|e| e.to_string())?;
            let (prompt, mut answer) = (signed(turn.source), signed(turn.target));
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
        Ok(wrap(Row::new(vec![ids, labels, other_ids, other_labels]), !valid))
    }

    pub(super) fn prompts(&self, aligned: &Aligned) -> Result<Encoded> {
        let (turns, replaced) = self.turns(aligned)?;
        let ids: Vec<i32> = turns.iter().flat_map(|turn| turn.source.iter().map(|&id| id as i32)).collect();
        let mask = vec![1; ids.len()];
        Ok(wrap(Row::new(vec![Some(ids), Some(mask)]), replaced))
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
            columns.push(Some(self.plain(text)?));
        }
        Ok(wrap(Row::new(columns), replaced))
    }

    /// The tokenizer's chat template; trained is what stands from each `<|extra_0|>` to its `<|eos|>`, both included.
    pub(super) fn hunyuan(&self, aligned: &Aligned) -> Result<Encoded> {
        let spans = self.hunyuan.as_ref().ok_or("the handler has no chat template")?;
        let messages: Vec<Value> = aligned
            .prompt
            .iter()
            .chain(&aligned.response)
            .map(|message| {
                let role = match message.role {
                    Role::System => "system",
                    Role::User => "user",
                    _ => "assistant",
                };
                json!({"role": role, "content": message.content})
            })
            .collect();
        let text = spans
            .template
            .render(&Value::Array(messages), None, GenerationPrompt::Omit)
            .map_err(|e| e.to_string())?;
        let mut ids = self.plain(&text)?;
        let mut labels = vec![IGNORED; ids.len()];
        let places =
            |token: i32| ids.iter().enumerate().filter(move |(_, id)| **id == token).map(|(at, _)| at);
        for (begin, end) in places(spans.begin).zip(places(spans.end)) {
            if begin <= end {
                labels[begin..=end].copy_from_slice(&ids[begin..=end]);
            }
        }
        if self.options.append_eod {
            ids.push(self.eos()?);
            labels.push(self.eos()?);
        }
        Ok(Encoded::Row(three_columns(ids, labels)))
    }

    /// The turns of a conversation, and whether an empty one replaces it.
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
        let turns = self
            .template()?
            .encode(&self.tokenizer, &messages, &aligned.system, &aligned.tools, cutoff)
            .map_err(|e| e.to_string())?;
        Ok((turns, !valid))
    }
}

fn empty_conversation() -> Vec<Message> {
    vec![Message::new(Role::User, ""), Message::new(Role::Assistant, "")]
}

fn wrap(row: Row, replaced: bool) -> Encoded {
    if replaced { Encoded::Replaced(row) } else { Encoded::Row(row) }
}
