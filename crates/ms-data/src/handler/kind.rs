//! Kinds of records.

use super::HandlerOptions;
use crate::{Error, Result};

/// What the records of an input are and what they become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Texts.
    Pretrain,
    /// instruction / input / output, one exchange in a fixed English frame.
    GeneralInstruction,
    /// instruction / input / output / history.
    AlpacaInstruction,
    /// Lists of messages.
    SharegptInstruction,
    /// instruction / input / chosen / rejected.
    AlpacaPairwise,
    /// Lists of messages, chosen, rejected.
    SharegptPairwise,
    /// Steps of a solution with a judgement each.
    ProcessReward,
    /// Prompts only, of Alpaca records.
    AlpacaPrompts,
    /// Prompts and separate answers, of Alpaca records.
    AlpacaR1,
    /// Prompts and separate answers, of lists of messages.
    SharegptR1,
    /// instruction / input / output as one text in a fixed English frame.
    AlpacaPretrain,
    /// Questions and answers about Python as one text.
    StackOverflowPretrain,
    /// Lists of messages whose texts, one after the other, are one text.
    SharegptPretrain,
    /// OpenAI's messages, with reasoning and structured tool calls.
    OpenAiInstruction,
    /// Lists of messages in threes, rendered by the tokenizer's own chat template.
    Hunyuan,
    /// One text of turns marked `Human:` and `Assistant:`, and an output.
    BelleMultiTurn,
    /// Sets of a `dataset_info.json`, Alpaca's or lists of messages.
    LlamaFactory,
    /// MOSS conversations with Baichuan's role tokens.
    MossMultiTurn,
    /// MOSS conversations, a sequence for every turn and all before it.
    MossInstruction,
    /// Problems, code and explanations.
    LeetcodePython,
}

/// Style names of this program, upstream's handler names, kinds.
const NAMES: [(&str, &str, RecordKind); 20] = [
    ("pretrain", "GeneralPretrainHandler", RecordKind::Pretrain),
    ("general-instruction", "GeneralInstructionHandler", RecordKind::GeneralInstruction),
    ("alpaca", "AlpacaStyleInstructionHandler", RecordKind::AlpacaInstruction),
    ("sharegpt", "SharegptStyleInstructionHandler", RecordKind::SharegptInstruction),
    ("pairwise", "AlpacaStylePairwiseHandler", RecordKind::AlpacaPairwise),
    ("pairwise-sharegpt", "SharegptStylePairwiseHandler", RecordKind::SharegptPairwise),
    ("prm", "AlpacaStyleProcessRewardHandler", RecordKind::ProcessReward),
    ("ppo", "PPOAlpacaStyleInstructionHandler", RecordKind::AlpacaPrompts),
    ("r1", "R1AlpacaStyleInstructionHandler", RecordKind::AlpacaR1),
    ("r1-sharegpt", "R1SharegptStyleInstructionHandler", RecordKind::SharegptR1),
    ("alpaca-pretrain", "AlpacaPretrainHandler", RecordKind::AlpacaPretrain),
    ("stackoverflow-pretrain", "StackOverflowPythonPretrainHandler", RecordKind::StackOverflowPretrain),
    ("sharegpt-pretrain", "SharegptPretrainHandler", RecordKind::SharegptPretrain),
    ("openai", "OpenAIInstructionHandler", RecordKind::OpenAiInstruction),
    ("llama-factory", "LlamaFactoryInstructionHandler", RecordKind::LlamaFactory),
    ("hunyuan", "HunyuanInstructionHandler", RecordKind::Hunyuan),
    ("belle", "BelleMultiTurnInstructionHandler", RecordKind::BelleMultiTurn),
    ("moss-multi-turn", "MOSSMultiTurnHandler", RecordKind::MossMultiTurn),
    ("moss", "MOSSInstructionHandler", RecordKind::MossInstruction),
    ("leetcode", "LeetcodePythonInstructionHandler", RecordKind::LeetcodePython),
];

/// Handlers of upstream that this program does not have, and why.
const UNSUPPORTED: [(&str, &str); 1] = [("HuggingfaceEncoder", "it is an internal class")];

impl RecordKind {
    /// The kind called `style` (`pretrain`, `alpaca`, …).
    ///
    /// # Errors
    /// [`Error::Options`] with the known styles.
    pub fn of_style(style: &str) -> Result<Self> {
        NAMES.iter().find(|row| row.0 == style).map(|row| row.2).ok_or_else(|| {
            let known: Vec<_> = NAMES.iter().map(|row| row.0).collect();
            Error::options(format!("unknown style {style:?}; known: {}", known.join(", ")))
        })
    }

    /// The kind of upstream's `--handler-name`; empty is pretraining. Upstream silently treats any unknown name as
    /// pretraining too; here that is an error.
    ///
    /// # Errors
    /// [`Error::Options`] for an unknown name, or one that is not supported.
    pub fn of_handler(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Ok(Self::Pretrain);
        }
        if let Some(row) = NAMES.iter().find(|row| row.1 == name) {
            return Ok(row.2);
        }
        if let Some((_, reason)) = UNSUPPORTED.iter().find(|row| row.0 == name) {
            return Err(Error::options(format!("the handler {name} is not supported: {reason}")));
        }
        let known: Vec<_> = NAMES.iter().map(|row| row.1).collect();
        Err(Error::options(format!("unknown handler {name:?}; known: {}", known.join(", "))))
    }

    /// The style's name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|row| row.2 == self).expect("every kind is in the table").0
    }

    /// Whether records are first converted to prompt and response.
    pub fn aligned(self) -> bool {
        matches!(
            self,
            Self::AlpacaInstruction
                | Self::SharegptInstruction
                | Self::AlpacaPairwise
                | Self::SharegptPairwise
                | Self::AlpacaPrompts
                | Self::AlpacaR1
                | Self::SharegptR1
                | Self::OpenAiInstruction
                | Self::LlamaFactory
                | Self::Hunyuan
        )
    }

    /// Whether a record has two answers.
    pub fn ranking(self) -> bool {
        matches!(self, Self::AlpacaPairwise | Self::SharegptPairwise)
    }

    /// Whether fields are those of Alpaca records.
    pub fn alpaca(self) -> bool {
        matches!(self, Self::AlpacaInstruction | Self::AlpacaPairwise | Self::AlpacaPrompts | Self::AlpacaR1)
    }

    pub(super) fn needs_template(self) -> bool {
        self.aligned() && self != Self::Hunyuan
    }

    pub(super) fn takes_template(self) -> bool {
        !self.is_text()
    }

    /// Whether records become texts, without labels.
    pub fn is_text(self) -> bool {
        matches!(
            self,
            Self::Pretrain | Self::AlpacaPretrain | Self::StackOverflowPretrain | Self::SharegptPretrain
        )
    }

    /// Whether it is taken with upstream's head only. OpenAI's messages, which upstream has at its head only too, are taken
    /// in both.
    pub(super) fn head_only(self) -> bool {
        matches!(self, Self::LlamaFactory | Self::SharegptPretrain)
    }

    /// Whether file names get `_packed`, as all of upstream's instruction handlers do, packed or not.
    pub fn packed_name(self) -> bool {
        !self.is_text()
    }

    /// Whether rows can be packed: those with input ids, attention mask and labels.
    pub fn packable(self) -> bool {
        matches!(
            self,
            Self::GeneralInstruction
                | Self::AlpacaInstruction
                | Self::SharegptInstruction
                | Self::OpenAiInstruction
                | Self::LlamaFactory
                | Self::Hunyuan
                | Self::BelleMultiTurn
                | Self::MossMultiTurn
                | Self::MossInstruction
                | Self::LeetcodePython
        )
    }

    pub(super) fn columns(self, options: &HandlerOptions) -> Vec<String> {
        let names: &[&str] = match self {
            Self::Pretrain | Self::SharegptPretrain => return options.json_keys.clone(),
            Self::AlpacaPretrain | Self::StackOverflowPretrain => &["text"],
            _ if self.packable() => &["input_ids", "attention_mask", "labels"],
            Self::AlpacaPairwise | Self::SharegptPairwise => {
                &["chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels"]
            }
            Self::ProcessReward => &["input_ids", "labels", "attention_mask"],
            _ => &["input_ids", "attention_mask"],
        };
        let mut columns: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        if matches!(self, Self::AlpacaR1 | Self::SharegptR1) {
            columns.extend(options.additional_keys.iter().cloned());
        }
        columns
    }
}
