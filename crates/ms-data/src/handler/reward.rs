//! Process-reward records: the steps of a solution, each followed by a placeholder, and a label for each step.

use super::align::text;
use super::{Handler, Row};
use crate::sft::IGNORED;
use crate::{Error, Reason, Result as DataResult};
use ms_text::Tokenizer;
use serde_json::{Map, Value};

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
    pub(super) fn process_reward(&self, record: &Map<String, Value>) -> Result<Row, Reason> {
        let reward = self.reward.as_ref().ok_or("the handler has no reward tokens")?;
        let ids = self.plain(text(record, "input")?)?;
        let values =
            record.get("value").and_then(Value::as_array).ok_or("value: expected a list of judgements")?;
        // As upstream, also those that are too many for the placeholders.
        let judgements = values.iter().map(|value| {
            let known = reward.labels.iter().find(|(text, _)| value == text.as_str());
            known.map(|(_, id)| *id).ok_or_else(|| format!("value: {value} is not among the reward tokens"))
        });
        let mut judgements = judgements.collect::<Result<Vec<i32>, _>>()?.into_iter();
        let mut labels = vec![IGNORED; ids.len()];
        for (label, _) in labels.iter_mut().zip(&ids).filter(|(_, id)| **id == reward.placeholder) {
            *label = judgements.next().ok_or("value: fewer judgements than placeholders in the input")?;
        }
        let mask = vec![1; ids.len()];
        Ok(Row::new(vec![Some(ids), Some(labels), Some(mask)]))
    }
}
